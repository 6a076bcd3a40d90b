//! The same puts into plain files with fsync, into SQLite with grouped commits, and into Shoal, embedded: on a new file and
//! on a written one. In one run, alternating; of several rounds the medians are printed. [`scale`] is another comparison: stores that grow; [`charts`] asks five questions of them and draws the answers;
//! [`tail`] compares latencies at a fixed rate; [`table`] prints the table of the README.

mod charts;
mod peer;
mod scale;
mod table;
mod tail;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::{Parser, Subcommand};
use shoal_bench::disk::Disk;
use shoal_bench::histogram::Histogram;
use shoal_bench::machine;
use shoal_bench::payload::{ObjectSet, RandomBytes, Sizes};
use shoal_bench::report::{Metric, Report};
use shoal_compare::flips;

use crate::peer::{Files, Peer, Shoal, Sqlite};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SEED: u64 = 20_261_121;

/// Bytes of values that live at a time; then objects are overwritten.
const LIVE_BYTES_MAX: u64 = 2 << 30;

const PEERS: [&str; 4] = ["files", "sqlite", "shoal-fresh", "shoal-written"];

const SIZES: [(&str, Sizes); 5] = [
    ("logn", Sizes::LOG_NORMAL),
    ("64k", Sizes::Fixed(64 << 10)),
    ("16k", Sizes::Fixed(16 << 10)),
    ("4k", Sizes::Fixed(4 << 10)),
    ("1k", Sizes::Fixed(1 << 10)),
];

const CLIENTS: [usize; 3] = [1, 16, 64];

const METRICS: &[Metric] = &[
    Metric { name: "ops_per_s", unit: "1/s", head: "puts/s" },
    Metric { name: "mb_per_s", unit: "MB/s", head: "MB/s" },
    Metric { name: "p50_us", unit: "us", head: "p50 us" },
    Metric { name: "p99_us", unit: "us", head: "p99 us" },
    Metric { name: "disk_bytes_per_user_byte", unit: "1", head: "disk/user" },
    Metric { name: "disk_flushes_per_op", unit: "1", head: "flush/put" },
    Metric { name: "own_bytes_per_user_byte", unit: "1", head: "own/user" },
    Metric { name: "own_flushes_per_op", unit: "1", head: "own flush" },
    Metric { name: "cpu_us_per_op", unit: "us", head: "CPU us" },
];

/// The same puts into plain files, SQLite and Shoal.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds, of which medians are taken.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// One round of half a second each.
    #[arg(long)]
    quick: bool,
    /// Only this case (put-4k-c16), or all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this peer: files, sqlite, shoal-fresh, shoal-written; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// The folder for the stores; everything is removed in the end.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// The other comparisons.
#[derive(Subcommand)]
enum Other {
    /// The same growing load into Shoal, RocksDB, SQLite, LMDB, redb and fjall.
    Scale(scale::Arguments),
    /// Five questions of a user who chooses a store, asked of all of them, and a chart for each.
    Charts(charts::Arguments),
    /// Latencies of durable SETs at a fixed rate: Shoal, Redis, RocksDB, SQLite.
    Tail(tail::Arguments),
    /// Import, gets, list, restart and room around 16 KiB: the table of the README.
    Table(table::Arguments),
    /// One bit flips in a closed store: who notices?
    Flips(flips::Arguments),
}

/// A case: its name, the values' sizes, the clients.
type Case = (String, Sizes, usize);

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    match &arguments.other {
        Some(Other::Scale(arguments)) => return scale::run(arguments),
        Some(Other::Charts(arguments)) => return charts::run(arguments),
        Some(Other::Tail(arguments)) => return tail::run(arguments),
        Some(Other::Table(arguments)) => return table::run(arguments),
        Some(Other::Flips(arguments)) => return flips::run(arguments, &["flips"]),
        None => {}
    }
    if arguments.quick {
        (arguments.seconds, arguments.rounds) = (0.5, 1);
    }
    let folder = arguments.folder.join(format!("shoal-compare-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let result = compare(&arguments, &folder);
    fs::remove_dir_all(&folder)?;
    result
}

fn compare(arguments: &Arguments, folder: &PathBuf) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut report = Report::new(&mut out, "compare", METRICS, arguments.json);
    let parameters = format!(
        "{} s a measurement, medians of {}; live values at most {} MiB; shoal-written: 8 GiB written before; log-normal sizes: \
         median 16 KiB, sigma 1.5, at most 4 MiB, mean {} bytes; disk figures count the whole disk",
        arguments.seconds,
        arguments.rounds,
        LIVE_BYTES_MAX >> 20,
        Sizes::LOG_NORMAL.mean(),
    );
    for (name, value) in [
        ("machine", machine::describe()),
        ("load average", machine::load()),
        ("version", format!("{}, SQLite {}", env!("CARGO_PKG_VERSION"), rusqlite::version())),
        ("parameters", parameters),
        ("seed", SEED.to_string()),
    ] {
        report.fact(name, &value)?;
    }
    let wanted = |wanted: &[String], name: &str| {
        wanted.is_empty() || wanted.iter().any(|wanted| name.starts_with(wanted.trim_end_matches('*')))
    };
    let cases: Vec<Case> = SIZES
        .iter()
        .flat_map(|&(size, sizes)| CLIENTS.map(|clients| (format!("put-{size}-c{clients}"), sizes, clients)))
        .filter(|(name, ..)| wanted(&arguments.cases, name))
        .collect();
    let peers: Vec<&str> = PEERS.into_iter().filter(|name| wanted(&arguments.variants, name)).collect();
    let mut bench = Bench { arguments, folder, pool: RandomBytes::new(SEED), files: None, written: None };
    let mut figures = vec![vec![Vec::new(); peers.len()]; cases.len()];
    for round in 0..arguments.rounds {
        for (case, figures) in cases.iter().zip(&mut figures) {
            // Each round starts with another peer.
            for turn in 0..peers.len() {
                let place = (turn + round) % peers.len();
                let row = bench.measure(case, peers[place])?;
                eprintln!(
                    "round {round} {:14} {:14} {:9.0} puts/s",
                    case.0,
                    peers[place],
                    row[0].unwrap_or(0.0)
                );
                figures[place].push(row);
            }
        }
    }
    for ((name, ..), figures) in cases.iter().zip(&figures) {
        for (peer, rows) in peers.iter().zip(figures) {
            report.row(name, peer, &medians(rows))?;
        }
    }
    report.fact("load average at the end", &machine::load())?;
    Ok(())
}

type Row = Vec<Option<f64>>;

fn medians(rows: &[Row]) -> Row {
    let median = |place: usize| {
        let mut values: Vec<f64> = rows.iter().filter_map(|row| row[place]).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    (0..METRICS.len()).map(median).collect()
}

struct Bench<'a> {
    arguments: &'a Arguments,
    folder: &'a PathBuf,
    pool: RandomBytes,
    /// Made once: their directories.
    files: Option<Files>,
    /// Made once: the file is written.
    written: Option<Shoal>,
}

impl Bench<'_> {
    fn measure(&mut self, case: &Case, peer: &str) -> Result<Row> {
        let folder = self.folder;
        match peer {
            "files" => {
                if self.files.is_none() {
                    self.files = Some(Files::new(folder.join("files"))?);
                }
                self.files.as_ref().map(|peer| self.load(case, peer))
            }
            "sqlite" => Some(self.load(case, &Sqlite::new(folder.join("sqlite"))?)),
            "shoal-fresh" => Some(self.load(case, &Shoal::new(&folder.join("fresh.data"), false)?)),
            _ => {
                if self.written.is_none() {
                    self.written = Some(Shoal::new(&folder.join("written.data"), true)?);
                }
                self.written.as_ref().map(|peer| self.load(case, peer))
            }
        }
        .unwrap_or_else(|| Err(anyhow!("there is no {peer}")))
    }

    fn load(&self, (name, sizes, clients): &Case, peer: &dyn Peer) -> Result<Row> {
        let set = self.pool.set(name, *sizes);
        let wrap = LIVE_BYTES_MAX / sizes.mean().max(1 << 12);
        // Bytes that earlier measurements left in the kernel's memory must not be written during this one.
        rustix::fs::syncfs(fs::File::open(self.folder)?)?;
        let next = AtomicU64::new(0);
        let (disk, own, cpu) = (Disk::of(self.folder)?, peer.own(), machine::cpu_time());
        let began = Instant::now();
        let deadline = began + Duration::from_secs_f64(self.arguments.seconds);
        let results: Vec<Result<(Histogram, u64)>> = thread::scope(|scope| {
            let client = |number| {
                let (set, next) = (&set, &next);
                scope.spawn(move || put_until(deadline, peer, number, set, next, wrap))
            };
            let threads: Vec<_> = (0..*clients).map(client).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a client panicked")))
            };
            threads.into_iter().map(join).collect()
        });
        let (time, cpu) = (began.elapsed(), machine::cpu_time() - cpu);
        let (mut latencies, mut bytes) = (Histogram::default(), 0);
        for result in results {
            let (theirs, written) = result?;
            latencies.merge(&theirs);
            bytes += written;
        }
        let puts = latencies.count() as f64;
        let row = {
            let disk = disk.zip(Disk::of(self.folder)?);
            let own = own.zip(peer.own());
            let own_bytes = own.map(|(before, now)| (now.blocks_written - before.blocks_written) << 12);
            vec![
                Some(puts / time.as_secs_f64()),
                Some(bytes as f64 / 1e6 / time.as_secs_f64()),
                Some(latencies.quantile_us(500)),
                Some(latencies.quantile_us(990)),
                disk.map(|(before, now)| (now.bytes_written - before.bytes_written) as f64 / bytes as f64),
                disk.map(|(before, now)| (now.flushes - before.flushes) as f64 / puts),
                own_bytes.map(|written| written as f64 / bytes as f64),
                own.map(|(before, now)| (now.flushes - before.flushes) as f64 / puts),
                Some(cpu.as_secs_f64() * 1e6 / puts),
            ]
        };
        peer.clear(&set, next.into_inner().min(wrap))?;
        Ok(row)
    }
}

/// One client: puts until `deadline`, and returns its latencies and the bytes of its values.
fn put_until(
    deadline: Instant,
    peer: &dyn Peer,
    client: usize,
    set: &ObjectSet,
    next: &AtomicU64,
    wrap: u64,
) -> Result<(Histogram, u64)> {
    let (mut latencies, mut bytes) = (Histogram::default(), 0);
    while Instant::now() < deadline {
        let number = next.fetch_add(1, Ordering::Relaxed) % wrap;
        let (key, value) = (set.key(number), set.value(number));
        let began = Instant::now();
        peer.put(client, &key, &value)?;
        latencies.record(began.elapsed());
        bytes += value.len() as u64;
    }
    Ok((latencies, bytes))
}
