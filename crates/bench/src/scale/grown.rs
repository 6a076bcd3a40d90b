//! The questions to a grown store: gets, listings, overwriting, opening after a kill, check.
//!
//! Each is one row. An object that is not returned as it was put is an error, and so is damage.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shoal_base::{BLOCK_BYTES_U64, SeededEntropy};
use shoal_device::IoMode;
use shoal_engine::{ByteRange, CheckOptions, ListRequest, ObjectKey, Store, StoreStat, block_on, check};

use super::climb::{OVERWRITTEN_SHARES, Target, again, overwrite};
use super::load::{Load, SEED};
use super::shoal::{BUCKET, Shoal, device};
use super::{Sizes, killed};
use crate::data_file::NewFile;
use crate::histogram::Histogram;
use crate::report::{Metric, Report};
use crate::settle::settle;

/// Keys of a page of a long listing.
const PAGE_KEYS: usize = 1000;
/// Keys of a short listing.
const SHORT_KEYS: usize = 100;
/// Time limit of one question.
const ASKED_MAX: Duration = Duration::from_secs(30);
/// The longest time of gets that wait for compactions of the layers.
const READ_MAX: Duration = Duration::from_secs(60);

pub(super) const METRICS: &[Metric] = &[
    Metric { name: "operations", unit: "1", head: "ops" },
    Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "p50_us", unit: "us", head: "p50 us" },
    Metric { name: "p99_us", unit: "us", head: "p99 us" },
    Metric { name: "max_us", unit: "us", head: "max us" },
    Metric { name: "device_reads_per_op", unit: "1", head: "reads/op" },
    Metric { name: "leaf_reads_per_op", unit: "1", head: "leaves/op" },
    Metric { name: "index_reads_per_op", unit: "1", head: "index/op" },
    Metric { name: "written_bytes_per_op", unit: "B", head: "B/op" },
    Metric { name: "read_bytes_per_op", unit: "B", head: "read B/op" },
    Metric { name: "seconds", unit: "s", head: "s" },
    Metric { name: "free_mib", unit: "MiB", head: "free MiB" },
    Metric { name: "pending_mib", unit: "MiB", head: "pend MiB" },
    Metric { name: "allocated_mib", unit: "MiB", head: "data MiB" },
    Metric { name: "layers", unit: "1", head: "layers" },
];

/// The figures of a row; `None` if the question has no such figure.
#[derive(Default)]
struct Row {
    operations: Option<u64>,
    latencies: Option<Histogram>,
    reads: Option<u64>,
    /// The leaves and values read for gets; the device's other reads are for listings, inner pages, and in the background.
    leaf_reads: Option<u64>,
    /// Inner pages that were read.
    index_reads: Option<u64>,
    written_bytes: Option<u64>,
    read_bytes: Option<u64>,
    time: Option<Duration>,
    /// Free, pending and allocated blocks.
    blocks: Option<[u64; 3]>,
    /// Layers of all tablets when the question was answered.
    layers: Option<u64>,
}

/// The figures of a store before a question, and the time.
type Before = (Box<StoreStat>, Instant);

fn before(store: &Store) -> Before {
    (Box::new(store.stat()), Instant::now())
}

impl Row {
    fn figures(&self) -> Vec<Option<f64>> {
        let operations = self.operations.map(|count| count as f64);
        let per_operation = |count: Option<u64>| Some(count? as f64 / operations?.max(1.0));
        let quantile = |permille| self.latencies.as_ref().map(|latencies| latencies.quantile_us(permille));
        let seconds = self.time.map(|time| time.as_secs_f64());
        let mib = |place: usize| Some((self.blocks?[place] * BLOCK_BYTES_U64) as f64 / f64::from(1 << 20));
        vec![
            operations,
            operations.zip(seconds).map(|(count, seconds)| count / seconds.max(1e-9)),
            quantile(500),
            quantile(990),
            self.latencies.as_ref().map(|latencies| latencies.max().as_secs_f64() * 1e6),
            per_operation(self.reads),
            per_operation(self.leaf_reads),
            per_operation(self.index_reads),
            per_operation(self.written_bytes),
            per_operation(self.read_bytes),
            seconds,
            mib(0),
            mib(1),
            mib(2),
            self.layers.map(|count| count as f64),
        ]
    }

    /// A question that only reads, with the counts and the time before it.
    fn of_reads(store: &Store, operations: u64, latencies: Histogram, (before, began): &Before) -> Self {
        let (time, stat) = (began.elapsed(), store.stat());
        Self {
            operations: Some(operations),
            latencies: Some(latencies),
            reads: Some(stat.device.reads - before.device.reads),
            leaf_reads: Some(stat.pool.lookup_misses - before.pool.lookup_misses),
            index_reads: Some(stat.pool.index_misses - before.pool.index_misses),
            time: Some(time),
            layers: Some(stat.layers),
            ..Self::default()
        }
    }

    fn of_space(store: &Store) -> Self {
        let stat = store.stat();
        Self {
            blocks: Some([stat.free_blocks, stat.pending_blocks, stat.allocated_blocks]),
            ..Self::default()
        }
    }
}

/// A grown store, and its load.
pub(super) struct Grown<'a> {
    pub(super) case: String,
    pub(super) load: &'a Load,
    pub(super) file: &'a NewFile,
    pub(super) sizes: &'a Sizes,
    pub(super) io: IoMode,
}

impl Grown<'_> {
    /// Asks everything, one question after the other; `shoal` is the store in its state after the load.
    pub(super) fn ask(&self, mut shoal: Shoal, report: &mut Report<'_>) -> Result<()> {
        let mut tell = |name: &str, row: &Row| report.row(&self.case, name, &row.figures());
        settle(shoal.store());
        tell("get", &self.gets(shoal.store(), false)?)?;
        tell("get-absent", &self.gets(shoal.store(), true)?)?;
        tell("list-long-warm", &self.list_long(shoal.store())?)?;
        tell("read-until-merged", &self.read_until_merged(shoal.store())?)?;
        tell("get-merged", &self.gets(shoal.store(), false)?)?;
        tell("list-long-merged", &self.list_long(shoal.store())?)?;
        tell("before-overwriting", &Row::of_space(shoal.store()))?;
        for (name, share) in OVERWRITTEN_SHARES {
            tell(name, &self.overwrite(&mut shoal, share)?)?;
        }
        settle(shoal.store());
        tell("overwritten", &Row::of_space(shoal.store()))?;
        shoal.close()?;
        let kill = self.sizes.killer.as_ref();
        let killed =
            kill.map(|killer| killed::put_and_kill(killer, self.file.path(), self.sizes)).transpose()?;
        let began = Instant::now();
        let mut shoal = Shoal::open(device(self.file.path(), self.io)?, self.sizes.cache)?;
        let opened =
            Row { operations: killed, latencies: None, time: Some(began.elapsed()), ..Row::default() };
        tell(if killed.is_some() { "open-after-kill" } else { "open" }, &opened)?;
        let random = SeededEntropy::new(SEED);
        shoal.put(&again(self.load, &random, 1))?;
        tell("first-put", &Row { operations: Some(1), time: Some(began.elapsed()), ..Row::default() })?;
        if let Some(puts) = killed {
            killed::verify(shoal.store(), self.sizes, puts)?;
        }
        tell("get-after-opening", &self.gets(shoal.store(), false)?)?;
        tell("list-100-cold", &self.list_short(shoal.store())?)?;
        shoal.close()?;
        tell("check", &self.check()?)?;
        Ok(())
    }

    /// Gets of random objects that exist, each compared with the value of its put; or of missing keys.
    fn gets(&self, store: &Store, absent: bool) -> Result<Row> {
        let random = SeededEntropy::new(SEED + u64::from(absent));
        let mut latencies = Histogram::default();
        let before = before(store);
        while latencies.count() < self.sizes.gets && before.1.elapsed() < ASKED_MAX {
            let number = self.load.stored(&random);
            let key = if absent { self.load.absent_key(&random) } else { self.load.key(number) };
            let key = ObjectKey::new(BUCKET, &key)?;
            let asked = Instant::now();
            let object = block_on(store.get(&key, ByteRange::ALL))?;
            latencies.record(asked.elapsed());
            let is_right = match object {
                None => absent,
                Some(object) => !absent && object.value.to_vec() == self.load.value(number),
            };
            ensure!(
                is_right,
                "object {} did not come back as it was put",
                String::from_utf8_lossy(key.key())
            );
        }
        Ok(Row::of_reads(store, latencies.count(), latencies, &before))
    }

    /// Random gets until the store has compacted all of its layers for them. Layers far smaller than their base stay.
    fn read_until_merged(&self, store: &Store) -> Result<Row> {
        let (mut operations, mut latencies) = (0, Histogram::default());
        let before = before(store);
        while store.stat().layers > 0 && before.1.elapsed() < READ_MAX {
            latencies = self.gets(store, false)?.latencies.unwrap_or_default();
            operations += latencies.count();
        }
        let written = store.stat().device.blocks_written - before.0.device.blocks_written;
        Ok(Row {
            written_bytes: Some(written * BLOCK_BYTES_U64),
            ..Row::of_reads(store, operations, latencies, &before)
        })
    }

    /// Keys in order by pages, for the second time.
    fn list_long(&self, store: &Store) -> Result<Row> {
        self.list_once(store)?;
        self.list_once(store)
    }

    fn list_once(&self, store: &Store) -> Result<Row> {
        let (mut keys, mut after, mut latencies) = (0, Vec::new(), Histogram::default());
        let before = before(store);
        while keys < self.sizes.listed && before.1.elapsed() < ASKED_MAX {
            let asked = Instant::now();
            let page = block_on(store.list(&request(after, PAGE_KEYS)))?;
            latencies.record(asked.elapsed());
            keys += page.entries.len() as u64;
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        ensure!(
            keys >= self.load.objects().min(self.sizes.listed) || before.1.elapsed() >= ASKED_MAX,
            "a listing lacks keys"
        );
        Ok(Row::of_reads(store, keys, latencies, &before))
    }

    /// Short listings from random places on: the store was just opened.
    fn list_short(&self, store: &Store) -> Result<Row> {
        let random = SeededEntropy::new(SEED + 2);
        let mut latencies = Histogram::default();
        let before = before(store);
        while latencies.count() < self.sizes.short_listings && before.1.elapsed() < ASKED_MAX {
            let after = self.load.key(self.load.stored(&random));
            let asked = Instant::now();
            block_on(store.list(&request(after, SHORT_KEYS)))?;
            latencies.record(asked.elapsed());
        }
        Ok(Row::of_reads(store, latencies.count(), latencies, &before))
    }

    /// Puts this share of the objects again, random ones; the figures of space are those right after the last batch. Compactions read and write
    /// meanwhile, and these bytes count, too.
    fn overwrite(&self, shoal: &mut Shoal, share: u64) -> Result<Row> {
        let before = shoal.store().stat().device;
        let interval = overwrite(self.load, shoal, share, self.sizes.batch)?;
        let after = shoal.store().stat().device;
        Ok(Row {
            operations: Some(interval.puts),
            latencies: Some(interval.batches),
            written_bytes: Some((after.blocks_written - before.blocks_written) * BLOCK_BYTES_U64),
            read_bytes: Some((after.blocks_read - before.blocks_read) * BLOCK_BYTES_U64),
            time: Some(interval.time),
            ..Row::of_space(shoal.store())
        })
    }

    fn check(&self) -> Result<Row> {
        let cache_bytes = usize::try_from(self.sizes.cache)?;
        let began = Instant::now();
        let options = CheckOptions { cache_bytes, ..CheckOptions::default() };
        let report =
            block_on(check(device(self.file.path(), self.io)?, &options)).context("the check failed")?;
        if !report.is_clean() {
            bail!("the check found {} problem(s): {:?}", report.problem_count, report.problems.first());
        }
        Ok(Row { operations: Some(report.objects), time: Some(began.elapsed()), ..Row::default() })
    }
}

fn request(start_after: Vec<u8>, limit: usize) -> ListRequest {
    ListRequest { bucket: BUCKET.into(), start_after, limit, ..ListRequest::default() }
}
