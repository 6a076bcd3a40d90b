//! `scale`: the load of `shoal bench scale` into one store after the other, on the same disk.
//!
//! Each store runs in a separate process, so that memory and written bytes are its own; that process prints a line of figures at
//! each mark, and this one the report. Written bytes are counted twice: by the process (`/proc/self/io`), and by the disk, whose
//! count includes other programs. The files of a store are removed before the next one starts.

pub mod peer;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
pub mod stores;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use shoal_bench::disk::{self, Disk};
use shoal_bench::machine::{self, Memory};
use shoal_bench::report::{Format, Metric, Report};
use shoal_bench::scale::chart::{self, Curve};
use shoal_bench::scale::{
    Interval, Load, OVERWRITTEN_SHARES, Order, SEED, check_load, climb, marks, overwrite,
};

use self::stores::STORES;

/// Room that an object may need in any of the stores, in its own bytes, besides some for the store itself.
const ROOM: u64 = 3;
/// Bytes of an object besides key and value.
const SPARE_BYTES: u64 = 50;

const METRICS: &[Metric] = &[
    Metric { name: "puts_per_s", unit: "1/s", head: "puts/s" },
    Metric { name: "batch_p50_ms", unit: "ms", head: "p50 ms" },
    Metric { name: "batch_p99_ms", unit: "ms", head: "p99 ms" },
    Metric { name: "batch_p999_ms", unit: "ms", head: "p99.9 ms" },
    Metric { name: "batch_max_ms", unit: "ms", head: "max ms" },
    Metric { name: "seconds_without_commit", unit: "1", head: "stalled s" },
    Metric { name: "process_bytes_per_put", unit: "B", head: "own B" },
    Metric { name: "disk_bytes_per_put", unit: "B", head: "disk B" },
    Metric { name: "process_gb", unit: "GB", head: "own GB" },
    Metric { name: "disk_gb", unit: "GB", head: "disk GB" },
    Metric { name: "stored_mib", unit: "MiB", head: "files MiB" },
    Metric { name: "resident_mib", unit: "MiB", head: "RSS MiB" },
    Metric { name: "anonymous_mib", unit: "MiB", head: "anon MiB" },
    Metric { name: "seconds", unit: "s", head: "s" },
];

/// The same growing load into several stores.
#[derive(Args)]
pub struct Arguments {
    /// The stores, in the order in which they run: shoal, rocksdb, sqlite, lmdb, redb, fjall.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "shoal,sqlite,lmdb")]
    stores: Vec<String>,
    /// The order of keys: random, sequential, zipf or content.
    #[arg(long, default_value = "random")]
    order: Order,
    /// Objects that are put [default: 10000000, with --quick 20000].
    #[arg(long, value_name = "N")]
    objects: Option<u64>,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value: u64,
    /// Puts of a batch, which are durable together.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    batch: u64,
    /// Memory of each store's cache: bytes, or with the suffix K, M or G.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    cache: u64,
    /// Free space that must stay on the disk, likewise.
    #[arg(long, value_name = "SIZE", default_value = "15G", value_parser = size)]
    leave: u64,
    /// The folder for the stores; everything is removed in the end.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// 20,000 objects.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Draw puts a second against objects into this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Draw the table in this file, and measure nothing.
    #[arg(long, value_name = "FILE", requires = "plot")]
    from: Option<PathBuf>,
    /// This is the process of the only store.
    #[arg(long, hide = true)]
    child: bool,
}

/// 1,024 bytes for K, and so on.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => 64,
    };
    let bytes = digits.parse().ok().and_then(|number: u64| number.checked_mul(1_u64.checked_shl(shift)?));
    bytes.ok_or_else(|| format!("{text:?} is not a size; write for example 500M or 1G"))
}

impl Arguments {
    /// Checks that such a run is possible; returns the problem, for the user.
    fn check(&self, objects: u64) -> Result<(), String> {
        check_load(&[self.order], objects, self.value, self.batch)?;
        self.stores.iter().enumerate().try_for_each(|(at, name)| match name {
            name if !stores::is_known(name) => Err(stores::missing(name)),
            name if self.stores[..at].contains(name) => Err(format!("--stores names {name} twice")),
            _ => Ok(()),
        })
    }
}

/// Runs all stores, or, as a child, one.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let (Some(from), Some(plot)) = (&arguments.from, &arguments.plot) {
        let table = fs::read_to_string(from).with_context(|| format!("cannot read {}", from.display()))?;
        return chart::draw(plot, &chart::curves_of(&table));
    }
    let objects = arguments.objects.unwrap_or(if arguments.quick { 20_000 } else { 10_000_000 });
    if let Err(wrong) = arguments.check(objects) {
        eprintln!("scale: {wrong}");
        std::process::exit(2);
    }
    if arguments.child {
        let name = arguments.stores.first().context("a child has one store")?;
        return child(arguments, objects, name);
    }
    let folder = std::path::absolute(&arguments.folder)?;
    let needed = (arguments.value + arguments.order.key_bytes() + SPARE_BYTES)
        .saturating_mul(objects)
        .saturating_mul(ROOM)
        .saturating_add(1 << 30);
    let free = disk::free_bytes(&folder)?;
    if free < needed.saturating_add(arguments.leave) {
        let (free, needed, leave) = (free >> 20, needed >> 20, arguments.leave >> 20);
        eprintln!(
            "scale: {free} MiB are free: a store may take {needed} MiB, and {leave} MiB must stay (--leave)"
        );
        std::process::exit(2);
    }
    let work = folder.join(format!("shoal-scale-{}", std::process::id()));
    fs::create_dir(&work)?;
    let result = parent(arguments, objects, &work);
    fs::remove_dir_all(&work)?;
    result
}

fn parent(arguments: &Arguments, objects: u64, work: &Path) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let format = if arguments.json { Format::Json } else { Format::Table };
    let mut report = Report::formatted(&mut out, "compare-scale", METRICS, format);
    let parameters = format!(
        "{objects} puts of {} bytes in {} order, batches of {}, cache {} MiB",
        arguments.value,
        arguments.order,
        arguments.batch,
        arguments.cache >> 20
    );
    for (name, value) in [
        ("machine", machine::describe()),
        ("load average", machine::load()),
        ("parameters", parameters),
        ("stores", stores::CONFIGURED.to_owned()),
        ("seed", SEED.to_string()),
    ] {
        report.fact(name, &value)?;
    }
    let mut curves = Vec::new();
    for name in &arguments.stores {
        let home = work.join(name);
        fs::create_dir(&home)?;
        // Dirty pages of the store before must not be written by the kernel during this one.
        rustix::fs::syncfs(fs::File::open(work)?)?;
        let points = one(arguments, objects, name, &home, &mut report)?;
        let shown = STORES.iter().find(|(known, _)| known == name).map_or(&name[..], |(_, shown)| shown);
        curves.push(Curve { name: shown.into(), points });
        fs::remove_dir_all(&home)?;
    }
    report.fact("load average at the end", &machine::load())?;
    arguments.plot.as_deref().map_or(Ok(()), |path| chart::draw(path, &curves))
}

/// Kills a child that is still there, on every way out.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It has ended already, or there is nothing more to be had from it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one store in a separate process, and returns its points of the chart.
fn one(
    arguments: &Arguments,
    objects: u64,
    name: &str,
    home: &Path,
    report: &mut Report<'_>,
) -> Result<Vec<(f64, f64)>> {
    let child = Command::new(std::env::current_exe()?)
        .args(["scale", "--child", "--stores", name, "--order", &arguments.order.to_string()])
        .args(["--objects", &objects.to_string(), "--value", &arguments.value.to_string()])
        .args(["--batch", &arguments.batch.to_string(), "--cache", &arguments.cache.to_string()])
        .args(["--leave", &arguments.leave.to_string(), "--folder"])
        .arg(home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut child = Guard(child);
    let mut points = Vec::new();
    for line in BufReader::new(child.0.stdout.take().context("a child has an output")?).lines() {
        let line = line?;
        let (at, figures) = line.split_once(' ').with_context(|| format!("{name} said {line:?}"))?;
        let figures: Vec<Option<f64>> = figures.split(' ').map(|figure| figure.parse().ok()).collect();
        ensure!(figures.len() == METRICS.len(), "{name} said {line:?}");
        report.row(name, at, &figures)?;
        if let (Ok(at), Some(rate)) = (at.parse(), figures[0]) {
            points.push((at, rate));
        }
    }
    let ended = child.0.wait()?;
    ensure!(ended.success(), "{name} failed ({ended})");
    Ok(points)
}

/// Bytes written since a moment, by this process and on the disk.
struct Meter {
    own: Option<u64>,
    disk: Option<u64>,
}

impl Meter {
    fn start(folder: &Path) -> Result<Self> {
        let disk = Disk::of(folder)?.map(|disk| disk.bytes_written);
        Ok(Self { own: machine::written_bytes(), disk })
    }

    fn since(&self, before: &Self) -> [Option<f64>; 2] {
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?) as f64);
        [since(self.own, before.own), since(self.disk, before.disk)]
    }
}

/// Puts everything into one store in this process and overwrites random objects: a line of figures at each mark, after each share that was
/// overwritten, and when the store is closed.
fn child(arguments: &Arguments, objects: u64, name: &str) -> Result<()> {
    let folder = &arguments.folder;
    let mut peer = stores::create(name, folder, arguments.cache)?;
    let mut load = Load::new(arguments.order, u32::try_from(arguments.value)?, objects, 0);
    let start = Meter::start(folder)?;
    let mut before = Meter::start(folder)?;
    let mut row = |name: &str, interval: &Interval| {
        let now = Meter::start(folder)?;
        say(name, &figures(folder, interval, now.since(&before), now.since(&start))?)?;
        before = now;
        let free = disk::free_bytes(folder)?;
        ensure!(free >= arguments.leave, "only {} MiB are free: stopped (--leave)", free >> 20);
        Ok(())
    };
    let began = Instant::now();
    let marks = marks(objects, arguments.batch);
    climb(&mut load, &mut *peer, &marks, arguments.batch, &mut |load, interval| {
        row(&load.puts().to_string(), interval)
    })?;
    for (name, share) in OVERWRITTEN_SHARES {
        row(name, &overwrite(&load, &mut *peer, share, arguments.batch)?)?;
    }
    let put = began.elapsed();
    peer.close()?;
    let total = Meter::start(folder)?.since(&start).map(|bytes| Some(bytes? / 1e9));
    let mut closed = vec![None; METRICS.len()];
    closed[8] = total[0];
    closed[9] = total[1];
    closed[10] = mib(stored_bytes(folder)?);
    closed[13] = Some((began.elapsed() - put).as_secs_f64());
    say("closed", &closed)
}

/// The figures of an interval, of which `bytes` were written in it and `total` since the start, by this process and on the disk.
fn figures(
    folder: &Path,
    interval: &Interval,
    bytes: [Option<f64>; 2],
    total: [Option<f64>; 2],
) -> Result<Vec<Option<f64>>> {
    let per_put = bytes.map(|bytes| Some(bytes? / interval.puts.max(1) as f64));
    let millis = |permille| Some(interval.batches.quantile_us(permille) / 1000.0);
    let memory = Memory::now();
    Ok(vec![
        Some(interval.puts_per_s()),
        millis(500),
        millis(990),
        millis(999),
        millis(1000),
        Some(interval.seconds_without_commit as f64),
        per_put[0],
        per_put[1],
        total[0].map(|bytes| bytes / 1e9),
        total[1].map(|bytes| bytes / 1e9),
        mib(stored_bytes(folder)?),
        mib(memory.resident),
        mib(memory.anonymous),
        Some(interval.time.as_secs_f64()),
    ])
}

fn mib(bytes: u64) -> Option<f64> {
    Some(bytes as f64 / f64::from(1 << 20))
}

/// A line for the parent.
fn say(at: &str, figures: &[Option<f64>]) -> Result<()> {
    let figures: Vec<String> =
        figures.iter().map(|figure| figure.map_or("-".into(), |figure| figure.to_string())).collect();
    let mut out = std::io::stdout();
    writeln!(out, "{at} {}", figures.join(" ")).map_err(|_| anyhow!("the parent has ended"))?;
    Ok(out.flush()?)
}

/// Bytes on the disk of all files below `folder`.
pub fn stored_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // A store may remove a file meanwhile.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { stored_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("1K", 1 << 10), ("64M", 64 << 20), ("15G", 15 << 30)]
        {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "G", "1T", "1GG", "-1", "99999999999G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
