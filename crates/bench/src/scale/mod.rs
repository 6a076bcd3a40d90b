//! `bench scale`: the behaviour of a store as it grows.
//!
//! Objects are put in durable batches, in one order of keys after the other, each into a separate store on a new file that
//! grows with it. At some twenty marks there is a row: puts a second since the mark before, stalls, bytes written by kind,
//! memory. Then come questions to the grown store: gets of existing and of missing keys, listings, overwriting, opening after a
//! kill, check.
//!
//! Reading order: [`load`](Load) (the puts), [`climb()`] (marks and stalls), [`Shoal`] (the store), `written.rs` (bytes by
//! kind), `grown.rs` (the questions), `killed.rs` (the child that is killed), [`chart`]. The comparison with other stores
//! (`compare/`) uses the same load and the same climb.

pub mod chart;
mod climb;
mod grown;
mod killed;
mod load;
mod shoal;
mod written;
mod zipf;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use shoal_base::BLOCK_BYTES_U64;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_device::IoMode;

pub use self::climb::{Interval, OVERWRITTEN_SHARES, Target, climb, marks, overwrite};
pub use self::killed::{ChildOptions, Killer, put_until_killed};
pub use self::load::{Batch, Load, ORDERS, Order, Put, SEED};
pub use self::shoal::Shoal;

use self::chart::Curve;
use self::grown::Grown;
use self::written::Written;
use crate::data_file::NewFile;
use crate::report::{Format, Metric, Report};
use crate::{disk, machine};

/// Puts of a batch, at most: all of them are in memory.
pub const BATCH_PUTS_MAX: u64 = 100_000;

/// Bytes that an object may take besides key and value, for the check that there is room for all: entry, page and space that
/// waits to be reusable.
const SPARE_BYTES: u64 = 100;

const METRICS: &[Metric] = &[
    Metric { name: "puts_per_s", unit: "1/s", head: "puts/s" },
    Metric { name: "batch_p50_ms", unit: "ms", head: "p50 ms" },
    Metric { name: "batch_p99_ms", unit: "ms", head: "p99 ms" },
    Metric { name: "batch_p999_ms", unit: "ms", head: "p99.9 ms" },
    Metric { name: "batch_max_ms", unit: "ms", head: "max ms" },
    Metric { name: "longest_gap_ms", unit: "ms", head: "" },
    Metric { name: "seconds_without_commit", unit: "1", head: "stalled s" },
    Metric { name: "log_bytes_per_put", unit: "B", head: "log B" },
    Metric { name: "home_bytes_per_put", unit: "B", head: "home B" },
    Metric { name: "page_bytes_per_put", unit: "B", head: "pages B" },
    Metric { name: "image_bytes_per_put", unit: "B", head: "image B" },
    Metric { name: "growth_bytes_per_put", unit: "B", head: "growth B" },
    Metric { name: "moved_bytes_per_put", unit: "B", head: "" },
    Metric { name: "written_bytes_per_put", unit: "B", head: "all B" },
    Metric { name: "disk_bytes_per_put", unit: "B", head: "disk B" },
    Metric { name: "index_pages_per_put", unit: "1", head: "" },
    Metric { name: "objects", unit: "1", head: "" },
    Metric { name: "allocated_mib", unit: "MiB", head: "data MiB" },
    Metric { name: "file_mib", unit: "MiB", head: "file MiB" },
    Metric { name: "layers", unit: "1", head: "layers" },
    Metric { name: "resident_mib", unit: "MiB", head: "RSS MiB" },
    Metric { name: "log_bytes", unit: "B", head: "" },
    Metric { name: "home_bytes", unit: "B", head: "" },
    Metric { name: "page_bytes", unit: "B", head: "" },
    Metric { name: "image_bytes", unit: "B", head: "" },
    Metric { name: "growth_bytes", unit: "B", head: "" },
    Metric { name: "moved_bytes", unit: "B", head: "" },
    Metric { name: "written_bytes", unit: "B", head: "" },
    Metric { name: "disk_bytes", unit: "B", head: "" },
];

/// The puts of a run, and the output of its figures.
#[derive(Clone, Debug)]
pub struct ScaleOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// The readers of the figures.
    pub format: Format,
    /// Orders of keys, one run each.
    pub orders: Vec<Order>,
    /// Puts of a run.
    pub objects: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Puts of a batch.
    pub batch: u64,
    /// Bytes of cache.
    pub cache: u64,
    /// Bytes that the data file may grow to.
    pub size: u64,
    /// The data file, which must not exist and is removed at the end; none: a temporary one in the current folder.
    pub data: Option<PathBuf>,
    /// The path of the chart.
    pub plot: Option<PathBuf>,
    /// Fewer questions to the grown store.
    pub quick: bool,
    /// How the device is driven.
    pub io: IoMode,
    /// The command of the process that is killed; none: the store is closed in order.
    pub killer: Option<Killer>,
}

impl ScaleOptions {
    /// Checks that a run is possible with these options.
    ///
    /// # Errors
    /// The error of the options, as a text for the user.
    pub fn check(&self) -> Result<(), String> {
        check_load(&self.orders, self.objects, self.value_bytes, self.batch)?;
        let twice = |(at, order): (usize, &Order)| self.orders[..at].contains(order);
        if self.orders.iter().enumerate().any(twice) {
            return Err("--order names an order twice".into());
        }
        let needed = self.bytes_needed();
        if self.size < needed {
            let (size, needed) = (self.size >> 20, needed.div_ceil(1 << 20));
            return Err(format!(
                "--size of {size} MiB has no room for these objects: they may take {needed} MiB"
            ));
        }
        if let Some(path) = &self.plot {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(format!("--plot {}: there is no folder for such a file", path.display()));
            }
        }
        let free = disk::free_bytes(&self.folder()).map_err(|error| format!("--data: {error:#}"))?;
        if free < needed {
            let (free, needed) = (free >> 20, needed.div_ceil(1 << 20));
            return Err(format!("the disk has {free} MiB free, and these objects may take {needed} MiB"));
        }
        Ok(())
    }

    /// Room for twice the size of the puts, and for the log.
    fn bytes_needed(&self) -> u64 {
        let key_bytes = self.orders.iter().map(|order| order.key_bytes()).max().unwrap_or_default();
        let object_bytes = self.value_bytes + key_bytes + SPARE_BYTES;
        self.objects.saturating_mul(object_bytes).saturating_mul(2).saturating_add(128 << 20)
    }

    /// The folder of the data file.
    fn folder(&self) -> PathBuf {
        let folder = self.data.as_deref().and_then(Path::parent);
        folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
    }

    fn sizes(&self) -> Sizes {
        let (gets, listed, short_listings, killed_after) =
            if self.quick { (1_000, 10_000, 50, 2_000) } else { (100_000, 1_000_000, 500, 200_000) };
        Sizes {
            gets,
            listed,
            short_listings,
            killed_after: killed_after.min(self.objects),
            cache: self.cache,
            // Checked before.
            value_bytes: u32::try_from(self.value_bytes).unwrap_or(u32::MAX),
            batch: self.batch,
            io: self.io,
            killer: self.killer.clone(),
        }
    }
}

/// Checks that there can be such a load.
///
/// # Errors
/// The error of the options, as a text for the user.
pub fn check_load(orders: &[Order], objects: u64, value_bytes: u64, batch: u64) -> Result<(), String> {
    let value_bytes_max = VALUE_BYTES_SINGLE_MAX;
    if orders.is_empty() {
        return Err("--order names no order".into());
    }
    if !(1..=value_bytes_max).contains(&value_bytes) {
        return Err(format!("--value is 1 to {value_bytes_max} bytes, not {value_bytes}"));
    }
    if !(1..=BATCH_PUTS_MAX).contains(&batch) {
        return Err(format!("--batch is 1 to {BATCH_PUTS_MAX} puts, not {batch}"));
    }
    if objects < batch {
        return Err(format!("--objects is at least one batch, {batch} objects, not {objects}"));
    }
    Ok(())
}

/// The sizes of the questions to a grown store, and the options to open it.
struct Sizes {
    gets: u64,
    /// Keys of the long listing, at most.
    listed: u64,
    short_listings: u64,
    /// Puts of the child that is killed, at least.
    killed_after: u64,
    cache: u64,
    value_bytes: u32,
    batch: u64,
    io: IoMode,
    killer: Option<Killer>,
}

/// Puts the objects in each order and prints the figures to `out`. Must not run on a runtime's thread.
///
/// # Errors
/// Impossible options; the store, the device or the output failed; an object came back wrong; a check found damage.
pub fn run(options: &ScaleOptions, out: &mut dyn Write) -> Result<()> {
    options.check().map_err(anyhow::Error::msg)?;
    header(options, out)?;
    let mut curves = Vec::new();
    for &order in &options.orders {
        curves.push(Curve { name: order.to_string(), points: run_order(options, order, out)? });
    }
    if let Some(path) = &options.plot {
        chart::draw(path, &curves)?;
    }
    Report::formatted(out, "scale", METRICS, options.format)
        .fact("load average at the end", &machine::load())?;
    Ok(())
}

fn header(options: &ScaleOptions, out: &mut dyn Write) -> Result<()> {
    let mut report = Report::formatted(out, "scale", METRICS, options.format);
    let parameters = format!(
        "{} puts of {} bytes in durable batches of {}; cache {} MiB; a new file of at most {} MiB that grows; no scrub",
        options.objects,
        options.value_bytes,
        options.batch,
        options.cache >> 20,
        options.size >> 20,
    );
    let meaning = "scale: one row per mark, for the time since the mark before; bytes are for each put, home with moves; disk: \
                   the whole disk, by the kernel";
    for (name, value) in [
        ("bench", meaning),
        ("machine", &machine::describe()),
        ("load average", &machine::load()),
        ("version", &options.version),
        ("parameters", &parameters),
        ("seed", &SEED.to_string()),
    ] {
        report.fact(name, value)?;
    }
    Ok(())
}

/// One order; returns its points of the chart.
fn run_order(options: &ScaleOptions, order: Order, out: &mut dyn Write) -> Result<Vec<(f64, f64)>> {
    let (device, file) = NewFile::create(options.data.as_deref(), "scale", options.io)?;
    let mut shoal = Shoal::create(device, options.size, options.cache)?;
    let sizes = options.sizes();
    let mut load = Load::new(order, sizes.value_bytes, options.objects, 0);
    let (folder, store) = (options.folder(), shoal.store().clone());
    let (case, mut points) = (order.to_string(), Vec::new());
    let mut report = Report::formatted(out, "scale", METRICS, options.format);
    let start = Written::of(&store.stat(), &folder)?;
    let mut before = start;
    let marks = marks(options.objects, options.batch);
    climb(&mut load, &mut shoal, &marks, options.batch, &mut |load, interval| {
        let stat = store.stat();
        let now = Written::of(&stat, &folder)?;
        let figures = figures(interval, &now.since(&before), &now.since(&start), load, &stat);
        before = now;
        points.push((load.puts() as f64, interval.puts_per_s()));
        Ok(report.row(&case, &load.puts().to_string(), &figures)?)
    })?;
    drop(store);
    let mut report = Report::formatted(out, "scale", grown::METRICS, options.format);
    Grown { case, load: &load, file: &file, sizes: &sizes, io: options.io }.ask(shoal, &mut report)?;
    Ok(points)
}

/// The row of a mark: the bytes written since the mark before, and since the start.
fn figures(
    interval: &Interval,
    since: &Written,
    total: &Written,
    load: &Load,
    stat: &shoal_engine::StoreStat,
) -> Vec<Option<f64>> {
    let mib = |bytes: u64| Some(bytes as f64 / f64::from(1 << 20));
    let per_put = |bytes: u64| Some(bytes as f64 / interval.puts.max(1) as f64);
    let millis = |permille| Some(interval.batches.quantile_us(permille) / 1000.0);
    let count = |bytes: u64| Some(bytes as f64);
    vec![
        Some(interval.puts_per_s()),
        millis(500),
        millis(990),
        millis(999),
        millis(1000),
        Some(interval.longest_gap.as_secs_f64() * 1000.0),
        count(interval.seconds_without_commit),
        per_put(since.log),
        per_put(since.home),
        per_put(since.pages),
        per_put(since.image),
        per_put(since.growth),
        per_put(since.moves),
        per_put(since.all),
        since.disk.and_then(per_put),
        per_put(since.pages).map(|bytes| bytes / BLOCK_BYTES_U64 as f64),
        count(load.objects()),
        mib(stat.allocated_blocks * BLOCK_BYTES_U64),
        mib(stat.device_blocks * BLOCK_BYTES_U64),
        count(stat.layers),
        mib(machine::Memory::now().resident),
        count(total.log),
        count(total.home),
        count(total.pages),
        count(total.image),
        count(total.growth),
        count(total.moves),
        count(total.all),
        total.disk.and_then(count),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;

    use super::*;

    fn options(folder: &Path) -> ScaleOptions {
        ScaleOptions {
            version: "0".into(),
            format: Format::Lines,
            orders: vec![Order::Content, Order::Zipf],
            objects: 3_000,
            value_bytes: 100,
            batch: 100,
            cache: 16 << 20,
            size: 1 << 30,
            data: Some(folder.join("data")),
            plot: Some(folder.join("chart.svg")),
            quick: true,
            io: IoMode::Auto,
            killer: None,
        }
    }

    #[test]
    fn a_small_run_has_all_marks_and_answers_and_leaves_only_its_chart() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: HashSet<(&str, &str)> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                line.split_once(' ').and_then(|(case, rest)| Some((case, rest.split_once(' ')?.0)))
            })
            .collect();
        for order in ["content", "zipf"] {
            for mark in marks(options.objects, options.batch) {
                assert!(rows.contains(&(order, &mark.to_string()[..])), "{order} {mark}: {text}");
            }
            for name in [
                "get",
                "get-absent",
                "list-long-warm",
                "read-until-merged",
                "get-merged",
                "list-long-merged",
                "overwrite-10th",
                "overwrite-half",
                "overwritten",
                "open",
                "list-100-cold",
                "check",
            ] {
                assert!(rows.contains(&(order, name)), "{order} {name}: {text}");
            }
        }
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["chart.svg"]);
        assert!(fs::read_to_string(folder.path().join("chart.svg")).unwrap().contains("content"));
    }

    #[test]
    fn impossible_options_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let good = options(folder.path());
        assert_eq!(good.check(), Ok(()));
        let bad = [
            (ScaleOptions { orders: Vec::new(), ..good.clone() }, "--order"),
            (ScaleOptions { orders: vec![Order::Zipf, Order::Zipf], ..good.clone() }, "twice"),
            (ScaleOptions { objects: 99, ..good.clone() }, "--objects"),
            (ScaleOptions { value_bytes: 0, ..good.clone() }, "--value"),
            (ScaleOptions { value_bytes: 5 << 20, ..good.clone() }, "--value"),
            (ScaleOptions { batch: 0, ..good.clone() }, "--batch"),
            (ScaleOptions { batch: 1 << 40, objects: 1 << 41, ..good.clone() }, "--batch"),
            (ScaleOptions { size: 1 << 20, ..good.clone() }, "--size"),
            (ScaleOptions { plot: Some(folder.path().to_owned()), ..good.clone() }, "--plot"),
            (ScaleOptions { plot: Some(folder.path().join("no/x.svg")), ..good.clone() }, "--plot"),
            (ScaleOptions { data: Some(folder.path().join("no/data")), ..good.clone() }, "--data"),
            (ScaleOptions { objects: 1 << 50, size: u64::MAX, ..good.clone() }, "free"),
        ];
        for (options, word) in bad {
            let error = options.check().unwrap_err();
            assert!(error.contains(word), "{word}: {error}");
            assert_eq!(run(&options, &mut Vec::new()).unwrap_err().to_string(), error);
        }
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing was made");
    }
}
