//! `bench store`: put, get, delete and list on a real data file, by size and number of clients.
//!
//! One store serves all cases. First the objects for gets are loaded, and the log's ring is written once completely, so that no
//! put writes a part of it for the first time; then come the cases that read from the cache, the ones that write, and, reopened
//! with a small cache, the ones that read from the device. Variants of a case follow each other directly. The file is written
//! once beforehand: its growth is not measured (the comparison in `compare/` does that).

mod bed;
mod case;
mod target;
mod work;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shoal_device::{DeviceCounters, IoMode};
use shoal_engine::block_on;
use tokio::runtime::Runtime;

use self::bed::{Bed, DataFile};
use self::case::{Case, Kind};
use self::target::Target;
use self::work::{FOREVER, Tally, Work, Worker};
use crate::machine;
use crate::payload::{self, ObjectSet, RandomBytes, Sizes};
use crate::probe::{ReadProbe, WriteProbe};
use crate::report::{Metric, Report};
use crate::select;

/// The seed of keys, sizes and bytes.
const SEED: u64 = 20_261_121;

/// Operations of the store between two turns of the device's own, and vice versa.
const INTERLEAVED: u32 = 50;

/// Clients that load and clear objects.
const LOADERS: usize = 64;

/// Values that are stored in the log at full length: they fill its ring fastest.
const TURNING_BYTES: u32 = 16_000;

const METRICS: &[Metric] = &[
    Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "mb_per_s", unit: "MB/s", head: "MB/s" },
    Metric { name: "p50_us", unit: "us", head: "p50 us" },
    Metric { name: "p99_us", unit: "us", head: "p99 us" },
    Metric { name: "p999_us", unit: "us", head: "p99.9 us" },
    Metric { name: "flushes_per_op", unit: "1", head: "flush/op" },
    Metric { name: "device_reads_per_op", unit: "1", head: "reads/op" },
    Metric { name: "device_bytes_per_user_byte", unit: "1", head: "dev/user" },
    Metric { name: "x_device", unit: "1", head: "x device" },
    Metric { name: "cpu_us_per_op", unit: "us", head: "CPU us" },
];

/// The selected cases, and their parameters.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// All in less than a minute.
    pub quick: bool,
    /// JSON lines instead of a table.
    pub json: bool,
    /// Cases by name, or by prefix and `*`; none: all.
    pub cases: Vec<String>,
    /// Variants likewise.
    pub variants: Vec<String>,
    /// The data file; none: a temporary one in the current folder.
    pub data: Option<PathBuf>,
    /// Bytes that the data file may grow to, as for `serve`: the log's ring is in proportion.
    pub size: u64,
    /// Bytes of cache, except for the cases that read from the device.
    pub cache: u64,
    /// Time for each case; none: 5 s, or half a second in a quick run.
    pub time: Option<Duration>,
    /// How the device is driven.
    pub io: IoMode,
}

/// The sizes of a quick run and of a full one.
struct Scale {
    time: Duration,
    /// Bytes of the file written beforehand.
    filled: u64,
    /// Cache for reads from the device.
    cold_cache: u64,
    /// Objects read from the device: of 4 KiB and of 64 KiB.
    objects_4k: u64,
    objects_64k: u64,
    /// The share of these that is read from the cache.
    warm_share: u64,
    /// Objects that a case deletes.
    deletes: u64,
}

impl Scale {
    fn new(options: &StoreOptions) -> Self {
        let time = |seconds| options.time.unwrap_or(Duration::from_secs_f64(seconds));
        if options.quick {
            Self {
                time: time(0.5),
                filled: 2 << 30,
                cold_cache: 8 << 20,
                objects_4k: 24_000,
                objects_64k: 2_000,
                warm_share: 2,
                deletes: 10_000,
            }
        } else {
            Self {
                time: time(5.0),
                filled: 8 << 30,
                cold_cache: 64 << 20,
                objects_4k: 131_072,
                objects_64k: 24_576,
                warm_share: 4,
                deletes: 100_000,
            }
        }
    }
}

/// Measures the cases of `options` and prints the results to `out`. Must not run on a runtime's thread.
///
/// # Errors
/// An unknown case or variant; the store, the device or the output failed; an object came back wrong.
pub fn run(options: &StoreOptions, out: &mut dyn Write) -> Result<()> {
    let all = case::all();
    let names: Vec<&str> = all.iter().map(|case| case.name.as_str()).collect();
    let selected = select("case", &names, &options.cases)?;
    let cases: Vec<&Case> = all.iter().filter(|case| selected.contains(&case.name.as_str())).collect();
    let variants = select("variant", &case::VARIANTS, &options.variants)?;
    let scale = Scale::new(options);
    let file = DataFile::open(options.data.as_deref(), options.size, scale.filled, options.io)?;
    let mut bench = Bench {
        report: Report::new(out, "store", METRICS, options.json),
        options,
        scale,
        file,
        runtime: tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
        pool: RandomBytes::new(SEED),
        variants,
    };
    bench.header()?;
    let of = |kinds: &[Kind]| -> Vec<&Case> {
        cases.iter().copied().filter(|case| kinds.contains(&case.kind)).collect()
    };
    let (warm, cold) = (of(&[Kind::GetWarm, Kind::List]), of(&[Kind::GetCold]));
    let writes = of(&[Kind::Put, Kind::Delete]);
    bench.warm_and_write(&warm, &writes, !cold.is_empty())?;
    if !cold.is_empty() {
        bench.cold(&cold)?;
    }
    bench.report.fact("load average at the end", &machine::load())?;
    Ok(())
}

/// A run.
struct Bench<'a> {
    report: Report<'a>,
    options: &'a StoreOptions,
    scale: Scale,
    file: DataFile,
    runtime: Runtime,
    pool: RandomBytes,
    variants: Vec<&'a str>,
}

/// The measurements of a case.
struct Measured {
    tally: Tally,
    /// Time and processor time of the store's operations.
    time: Duration,
    cpu: Duration,
    device: DeviceCounters,
    /// The device's own median latency beside it.
    device_p50_us: Option<f64>,
}

impl Bench<'_> {
    fn header(&mut self) -> Result<()> {
        let (options, scale) = (self.options, &self.scale);
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let data =
            options.data.as_ref().map_or("a temporary file here".into(), |path| path.display().to_string());
        let parameters = format!(
            "{} s a case; data in {data}, at most {}, {} of it written beforehand; cache {}, {} for cold gets; {} objects of 4 KiB and \
             {} of 64 KiB loaded; log-normal sizes: median 16 KiB, sigma 1.5, at most 4 MiB, mean {} bytes",
            scale.time.as_secs_f64(),
            mib(options.size),
            mib(scale.filled),
            mib(options.cache),
            mib(scale.cold_cache),
            scale.objects_4k,
            scale.objects_64k,
            Sizes::LOG_NORMAL.mean(),
        );
        let device = self.file.device().inner().describe();
        for (name, value) in [
            (
                "bench",
                "store: put, get, delete, list; embedded: a thread a client, server: gRPC over loopback in this process",
            ),
            ("machine", &machine::describe()),
            ("load average", &machine::load()),
            ("version", &options.version),
            ("parameters", &parameters),
            ("seed", &SEED.to_string()),
            ("device", &device),
        ] {
            self.report.fact(name, value)?;
        }
        Ok(())
    }

    fn objects(&self, sizes: Sizes) -> (ObjectSet, u64) {
        if sizes == Sizes::Fixed(4 << 10) {
            (self.pool.set("read-4k", sizes), self.scale.objects_4k)
        } else {
            (self.pool.set("read-64k", sizes), self.scale.objects_64k)
        }
    }

    fn warm_and_write(&mut self, warm: &[&Case], writes: &[&Case], has_cold: bool) -> Result<()> {
        let bed = Bed::start(&self.file, self.options.cache, &self.runtime)?;
        let is_read = |bytes| has_cold || warm.iter().any(|case| case.sizes == Sizes::Fixed(bytes));
        for bytes in [4 << 10, 64 << 10] {
            if is_read(bytes) {
                let (set, count) = self.objects(Sizes::Fixed(bytes));
                self.load(&bed, &set, count)?;
            }
        }
        bed.settle();
        for case in warm {
            self.read_case(&bed, case)?;
        }
        if !writes.is_empty() {
            self.turn_log(&bed)?;
            for case in writes {
                self.write_case(&bed, case)?;
            }
            self.report.fact("log", &turns(&bed))?;
        }
        bed.stop(&self.runtime)
    }

    fn cold(&mut self, cases: &[&Case]) -> Result<()> {
        let bed = Bed::start(&self.file, self.scale.cold_cache, &self.runtime)?;
        for case in cases {
            self.read_case(&bed, case)?;
        }
        bed.stop(&self.runtime)
    }

    fn load(&self, bed: &Bed, set: &ObjectSet, count: u64) -> Result<()> {
        let target = bed.target("embedded");
        work::run(&target, self.runtime.handle(), &Work::fill(set, count), LOADERS, FOREVER)?;
        Ok(())
    }

    fn clear(&self, bed: &Bed, set: &ObjectSet, count: u64) -> Result<()> {
        let target = bed.target("embedded");
        work::run(&target, self.runtime.handle(), &Work::clear(set, count), LOADERS, FOREVER)?;
        Ok(())
    }

    /// Puts until the log's ring was written once completely.
    fn turn_log(&self, bed: &Bed) -> Result<()> {
        let set = self.pool.set("turn", Sizes::Fixed(TURNING_BYTES));
        let round = 2048;
        loop {
            let stat = bed.store().stat();
            if stat.log_blocks_written > stat.log_blocks {
                break;
            }
            self.load(bed, &set, round)?;
        }
        self.clear(bed, &set, round)
    }

    fn read_case(&mut self, bed: &Bed, case: &Case) -> Result<()> {
        let (set, all) = self.objects(case.sizes);
        let count = if case.kind == Kind::GetWarm { all / self.scale.warm_share } else { all };
        let get = |in_turn, salt| Arc::new(Work::Get { set: set.clone(), count, in_turn, salt });
        for variant in self.variants.clone() {
            let target = bed.target(variant);
            if case.kind == Kind::GetWarm {
                // Twice: a frame that was used only once is evicted first.
                for _ in 0..2 {
                    let warming = get(Some(AtomicU64::new(0)), 0);
                    work::run(&bed.target("embedded"), self.runtime.handle(), &warming, LOADERS, FOREVER)?;
                }
            }
            // Another sequence for each row: the objects read by one variant are in the cache when the next one starts.
            let salt = payload::salt(SEED, &format!("{} {variant}", case.name));
            let work = if case.kind == Kind::List { Arc::new(Work::List) } else { get(None, salt) };
            let measured = if case.is_beside_device() {
                self.beside_reads(bed, &target, &work, case)?
            } else {
                self.measure(bed, &target, &work, case)?
            };
            self.row(case, variant, &measured)?;
        }
        Ok(())
    }

    fn write_case(&mut self, bed: &Bed, case: &Case) -> Result<()> {
        for variant in self.variants.clone() {
            let target = bed.target(variant);
            let set = self.pool.set(&format!("{}-{variant}", case.name), case.sizes);
            let work = if case.kind == Kind::Delete {
                self.load(bed, &set, self.scale.deletes)?;
                Work::clear(&set, self.scale.deletes)
            } else {
                // The live objects fit beside the ones that are read.
                let wrap = (self.scale.filled / 3 / case.sizes.mean().max(1 << 12)).max(1);
                Arc::new(Work::Put { set: set.clone(), next: AtomicU64::new(0), wrap, limit: u64::MAX })
            };
            bed.settle_unless(self.options.quick);
            let measured = if case.is_beside_device() {
                self.beside_writes(bed, &target, &work, &set)?
            } else {
                self.measure(bed, &target, &work, case)?
            };
            self.row(case, variant, &measured)?;
            match case.kind {
                Kind::Delete => self.clear(bed, &set, self.scale.deletes)?,
                _ => self.clear(bed, &set, work.objects_made())?,
            }
        }
        Ok(())
    }

    fn measure(&self, bed: &Bed, target: &Target, work: &Arc<Work>, case: &Case) -> Result<Measured> {
        let (device, cpu, began) = (bed.store().stat().device, machine::cpu_time(), Instant::now());
        let tally = work::run(target, self.runtime.handle(), work, case.clients, self.scale.time)?;
        let (time, cpu) = (began.elapsed(), machine::cpu_time() - cpu);
        if case.kind == Kind::Put {
            // The writes of the applies of these puts count for them.
            bed.settle_unless(self.options.quick);
        }
        let device = since(bed.store().stat().device, device);
        Ok(Measured { tally, time, cpu, device, device_p50_us: None })
    }

    fn beside_writes(
        &mut self,
        bed: &Bed,
        target: &Target,
        work: &Arc<Work>,
        set: &ObjectSet,
    ) -> Result<Measured> {
        let mut path = self.file.path().as_os_str().to_owned();
        if !self.file.device().inner().can_grow() {
            path = "shoal-bench".into();
        }
        path.push(".probe");
        let bytes = match set.sizes() {
            Sizes::Fixed(bytes) => bytes as usize,
            // Compares medians.
            Sizes::LogNormal { median, .. } => median as usize,
        };
        let mut probe = WriteProbe::new(path.as_ref(), bytes)?;
        self.report.fact("device's own", &format!("{bytes} bytes, the faster way here: {}", probe.way()))?;
        let mut measured = self.beside(bed, target, work, |_, _| probe.run(INTERLEAVED))?;
        measured.device_p50_us = Some(probe.latencies.quantile_us(500));
        Ok(measured)
    }

    fn beside_reads(
        &mut self,
        bed: &Bed,
        target: &Target,
        work: &Arc<Work>,
        case: &Case,
    ) -> Result<Measured> {
        let Sizes::Fixed(bytes) = case.sizes else { unreachable!("cold gets have one size") };
        let blocks = self.file.device().blocks().min(self.scale.filled >> 12);
        let mut probe = ReadProbe::new(self.file.path(), bytes as usize, blocks)?;
        let mut measured = self.beside(bed, target, work, |operations, device| {
            let reads = device.reads as f64 / operations.max(1) as f64;
            probe.run(INTERLEAVED, (reads - 1.0).max(0.0))
        })?;
        measured.device_p50_us = Some(probe.latencies.quantile_us(500));
        Ok(measured)
    }

    /// Turns of one client and of `probe`, which gets the number of operations and the device's counters so far.
    fn beside(
        &self,
        bed: &Bed,
        target: &Target,
        work: &Arc<Work>,
        mut probe: impl FnMut(u64, DeviceCounters) -> Result<()>,
    ) -> Result<Measured> {
        let mut worker = Worker::new(target.clone(), work.clone(), 0);
        let (mut time, mut cpu) = (Duration::ZERO, Duration::ZERO);
        let first = bed.store().stat().device;
        loop {
            let (began, used) = (Instant::now(), machine::cpu_time());
            let run = worker.turn(INTERLEAVED);
            match target {
                Target::Embedded(_) => block_on(run)?,
                Target::Server(_) => self.runtime.block_on(run)?,
            };
            time += began.elapsed();
            cpu += machine::cpu_time() - used;
            probe(worker.tally.operations, since(bed.store().stat().device, first))?;
            // At least one turn.
            if time >= self.scale.time {
                break;
            }
        }
        if let Work::Put { .. } = **work {
            bed.settle_unless(self.options.quick);
        }
        let device = since(bed.store().stat().device, first);
        Ok(Measured { tally: worker.tally, time, cpu, device, device_p50_us: None })
    }

    fn row(&mut self, case: &Case, variant: &str, measured: &Measured) -> Result<()> {
        let Measured { tally, time, cpu, device, device_p50_us } = measured;
        ensure!(
            tally.operations > 0,
            "{} {variant}: no operation ended in {} s",
            case.name,
            time.as_secs_f64()
        );
        let per_op = |count: u64| count as f64 / tally.operations as f64;
        let is_write = matches!(case.kind, Kind::Put | Kind::Delete);
        let p50_us = tally.latencies.quantile_us(500);
        let blocks = if is_write { device.blocks_written } else { device.blocks_read };
        let per_byte = (tally.bytes > 0).then(|| (blocks << 12) as f64 / tally.bytes as f64);
        self.report.row(
            &case.name,
            variant,
            &[
                Some(tally.operations as f64 / time.as_secs_f64()),
                (tally.bytes > 0).then(|| tally.bytes as f64 / 1e6 / time.as_secs_f64()),
                Some(p50_us),
                Some(tally.latencies.quantile_us(990)),
                Some(tally.latencies.quantile_us(999)),
                Some(per_op(device.flushes)),
                Some(per_op(device.reads)),
                per_byte,
                device_p50_us.map(|own| p50_us / own.max(0.001)),
                Some(cpu.as_secs_f64() * 1e6 / tally.operations as f64),
            ],
        )?;
        Ok(())
    }
}

/// The number of times that the log's ring was written since the store was opened.
fn turns(bed: &Bed) -> String {
    let stat = bed.store().stat();
    let turns = stat.log_blocks_written as f64 / stat.log_blocks.max(1) as f64;
    format!(
        "ring of {} MiB, written {turns:.1} times, once before the first put was measured",
        stat.log_blocks >> 8
    )
}

fn since(now: DeviceCounters, before: DeviceCounters) -> DeviceCounters {
    DeviceCounters {
        reads: now.reads - before.reads,
        blocks_read: now.blocks_read - before.blocks_read,
        writes: now.writes - before.writes,
        blocks_written: now.blocks_written - before.blocks_written,
        flushes: now.flushes - before.flushes,
        errors: now.errors - before.errors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A complete run of a few cases on a small file: every figure exists, in JSON.
    #[test]
    fn a_short_run_gives_every_figure() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let options = StoreOptions {
            version: "test".into(),
            quick: true,
            json: true,
            cases: vec!["delete-4k-c16".into()],
            variants: Vec::new(),
            data: Some(folder.path().join("data")),
            size: 128 << 20,
            cache: 16 << 20,
            time: Some(Duration::ZERO),
            io: IoMode::Threads,
        };
        let mut out = Vec::new();
        run(&options, &mut out)?;
        let lines: Vec<serde_json::Value> =
            String::from_utf8(out)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        for variant in case::VARIANTS {
            let found = lines.iter().any(|line| {
                line["variant"] == variant && line["metric"] == "ops_per_s" && line["case"] == "delete-4k-c16"
            });
            assert!(found, "{lines:?}");
        }
        assert!(lines.iter().any(|line| line["header"] == "seed"));
        Ok(())
    }
}
