//! `bench density`: the disk that objects take, some time after they were put and after half of them was deleted.
//!
//! Each case is a separate store in a new file. The ratio is that of the file's allocated blocks, by the file system's count and without the
//! log's ring, to the bytes of keys and values. Free blocks are returned to the file system in the background, so there is a row when the load
//! ends and one every ten seconds from then on.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shoal_device::IoMode;
use shoal_engine::StoreStat;

use crate::data_file::NewFile;
use crate::machine;
use crate::payload::{Sizes, mix};
use crate::report::{Format, Metric, Report};
use crate::scale::{Load, Order, SEED, Shoal, climb};
use crate::select;

/// A load: values of these sizes, in random order.
struct Case {
    name: &'static str,
    sizes: Sizes,
    objects: u64,
    /// Puts of a batch: about 1 MiB at most.
    batch: u64,
}

const CASES: [Case; 3] = [
    Case { name: "100b", sizes: Sizes::Fixed(100), objects: 10_000_000, batch: 1_000 },
    Case { name: "4k", sizes: Sizes::Fixed(4_096), objects: 4_000_000, batch: 250 },
    Case {
        name: "log-normal",
        sizes: Sizes::LogNormal { median: 8 << 10, sigma: 1.2 },
        objects: 90_000,
        batch: 50,
    },
];

/// A quick run has this share of the objects.
const QUICK_SHARE: u64 = 100;
/// Time between two rows.
const ROW_EVERY: Duration = Duration::from_secs(10);
/// Unit of a file's allocated blocks.
const SECTOR_BYTES: u64 = 512;

const METRICS: &[Metric] = &[
    Metric { name: "seconds", unit: "s", head: "s" },
    Metric { name: "operations_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "objects", unit: "1", head: "objects" },
    Metric { name: "user_mib", unit: "MiB", head: "user MiB" },
    Metric { name: "used_mib", unit: "MiB", head: "used MiB" },
    Metric { name: "disk_mib", unit: "MiB", head: "disk MiB" },
    Metric { name: "log_mib", unit: "MiB", head: "log MiB" },
    Metric { name: "used_per_user_byte", unit: "1", head: "used/user" },
    Metric { name: "disk_per_user_byte", unit: "1", head: "disk/user" },
    Metric { name: "layers", unit: "1", head: "layers" },
    Metric { name: "layer_entries", unit: "1", head: "" },
    Metric { name: "free_mib", unit: "MiB", head: "free MiB" },
];

/// The selected cases, and their parameters.
#[derive(Clone, Debug)]
pub struct DensityOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// The readers of the figures.
    pub format: Format,
    /// Cases by name, or by prefix and `*`; none: all.
    pub cases: Vec<String>,
    /// A hundredth of the objects.
    pub quick: bool,
    /// The number of objects of each case; overrides the case's default.
    pub objects: Option<u64>,
    /// The time for which the store is watched after its load, and after the deletes.
    pub watched: Duration,
    /// Half of the objects is deleted in the end.
    pub deletes_half: bool,
    /// Bytes of cache.
    pub cache: u64,
    /// Bytes that the data file may grow to.
    pub size: u64,
    /// The data file, which must not exist and is removed at the end; none: a temporary one in the current folder.
    pub data: Option<PathBuf>,
    /// How the device is driven.
    pub io: IoMode,
}

/// Runs the cases of `options` and prints the figures to `out`. Must not run on a runtime's thread.
///
/// # Errors
/// An unknown case; the store, the device or the output failed.
pub fn run(options: &DensityOptions, out: &mut dyn Write) -> Result<()> {
    let names = select("case", &CASES.each_ref().map(|case| case.name), &options.cases)?;
    let mut report = Report::formatted(out, "density", METRICS, options.format);
    let parameters = format!(
        "keys of 23 bytes in random order; cache {} MiB; a new file of at most {} MiB that grows; no scrub; watched for {:?}",
        options.cache >> 20,
        options.size >> 20,
        options.watched,
    );
    let meaning = "density: bytes of keys and values (user), of trees and values (used), of the file's allocated blocks (disk), of these for \
                   the log's ring (log); disk/user is without the ring";
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
    for case in CASES.iter().filter(|case| names.contains(&case.name)) {
        run_case(options, case, &mut report)?;
    }
    report.fact("load average at the end", &machine::load())?;
    Ok(())
}

fn run_case(options: &DensityOptions, case: &Case, report: &mut Report<'_>) -> Result<()> {
    let own = if options.quick { case.objects / QUICK_SHARE } else { case.objects };
    let objects = options.objects.unwrap_or(own).max(1);
    let (device, file) = NewFile::create(options.data.as_deref(), "density", options.io)?;
    let mut shoal = Shoal::create(device, options.size, options.cache)?;
    let mut load = Load::of_sizes(Order::Random, case.sizes, objects, 0);
    let bytes_of = |load: &Load, number| (load.key(number).len() + load.value(number).len()) as u64;
    let user = (0..objects).map(|number| bytes_of(&load, number)).sum();
    let mut watch = Watch { case: case.name, file: file.path(), objects, user, report };
    let mut rate = 0.0;
    climb(&mut load, &mut shoal, &[objects], case.batch, &mut |_, interval| {
        rate = interval.puts_per_s();
        Ok(())
    })?;
    watch.rows(&shoal, "loaded", rate, options.watched)?;
    if options.deletes_half {
        let is_gone = |number: &u64| mix(SEED + 1, *number) & 1 == 1;
        let gone: Vec<u64> = (0..objects).filter(is_gone).collect();
        let began = Instant::now();
        for numbers in gone.chunks(case.batch as usize) {
            let keys: Vec<Vec<u8>> = numbers.iter().map(|&number| load.key(number)).collect();
            shoal.delete(&keys)?;
        }
        let rate = gone.len() as f64 / began.elapsed().as_secs_f64().max(1e-9);
        watch.objects -= gone.len() as u64;
        watch.user -= gone.iter().map(|&number| bytes_of(&load, number)).sum::<u64>();
        watch.rows(&shoal, "half-deleted", rate, options.watched)?;
    }
    shoal.close()
}

/// A store that is watched, and the objects that it holds.
struct Watch<'a, 'b> {
    case: &'static str,
    file: &'a Path,
    objects: u64,
    /// Bytes of keys and values.
    user: u64,
    report: &'a mut Report<'b>,
}

impl Watch<'_, '_> {
    /// Prints a row now, one every ten seconds, and the last one after `time`. `rate` is that of the operations before.
    fn rows(&mut self, shoal: &Shoal, name: &str, rate: f64, time: Duration) -> Result<()> {
        let began = Instant::now();
        self.row(shoal, name, Some(rate), Duration::ZERO)?;
        while began.elapsed() < time {
            thread::sleep(ROW_EVERY.min(time - began.elapsed().min(time)));
            let elapsed = began.elapsed();
            self.row(shoal, &format!("{name}-{}s", elapsed.as_secs()), None, elapsed)?;
        }
        Ok(())
    }

    fn row(&mut self, shoal: &Shoal, name: &str, rate: Option<f64>, time: Duration) -> Result<()> {
        let stat = shoal.store().stat();
        let disk = allocated_bytes(self.file)?;
        let figures = figures(&stat, self.objects, self.user, disk, time, rate);
        Ok(self.report.row(self.case, name, &figures)?)
    }
}

fn figures(
    stat: &StoreStat,
    objects: u64,
    user: u64,
    disk: u64,
    time: Duration,
    rate: Option<f64>,
) -> Vec<Option<f64>> {
    let mib = |bytes: u64| Some(bytes as f64 / f64::from(1 << 20));
    let per_user_byte = |bytes: u64| Some(bytes as f64 / user.max(1) as f64);
    let (used, log) = (stat.used_bytes(), stat.log_disk_bytes());
    vec![
        Some(time.as_secs_f64()),
        rate,
        Some(objects as f64),
        mib(user),
        mib(used),
        mib(disk),
        mib(log),
        per_user_byte(used),
        per_user_byte(disk.saturating_sub(log)),
        Some(stat.layers as f64),
        Some(stat.layer_entries as f64),
        mib(stat.free_blocks * shoal_base::BLOCK_BYTES_U64),
    ]
}

fn allocated_bytes(file: &Path) -> Result<u64> {
    let metadata = fs::metadata(file).with_context(|| format!("{} is gone", file.display()))?;
    Ok(metadata.blocks() * SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_watched_after_its_load_and_after_its_deletes() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut options = DensityOptions {
            version: "0".into(),
            format: Format::Lines,
            cases: Vec::new(),
            quick: true,
            objects: Some(600),
            watched: Duration::from_millis(20),
            deletes_half: true,
            cache: 16 << 20,
            size: 1 << 30,
            data: Some(data.clone()),
            io: IoMode::Auto,
        };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let figure = |case: &str, row: &str, name: &str| -> f64 {
            let start = format!("{case} {row} {name} ");
            let found =
                text.lines().find_map(|line| line.strip_prefix(&start)?.split(' ').next()?.parse().ok());
            found.unwrap_or_else(|| panic!("no {start}: {text}"))
        };
        for case in CASES {
            let of = |row, name| figure(case.name, row, name);
            assert_eq!(of("loaded", "objects"), 600.0);
            let left = of("half-deleted-0s", "objects");
            assert!((200.0..400.0).contains(&left), "{left}");
            assert!(of("half-deleted-0s", "user_mib") < of("loaded-0s", "user_mib"));
            let rest = of("loaded", "disk_mib") - of("loaded", "log_mib");
            let ratio = rest / of("loaded", "user_mib");
            assert!(rest > 0.0 && (of("loaded", "disk_per_user_byte") / ratio - 1.0).abs() < 0.01, "{text}");
        }
        assert_eq!(figure("100b", "loaded", "user_mib"), 600.0 * 123.0 / f64::from(1 << 20));
        assert!(!data.exists());
        options.cases = vec!["none".into()];
        assert!(run(&options, &mut Vec::new()).is_err());
    }
}
