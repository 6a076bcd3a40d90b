//! `durable-put`: SET over the Redis protocol on Shoal, on a program that only receives, writes, flushes and answers
//! ([`bare`]), and on Redis with a flush for each command, if its program is named.
//!
//! Every server is a process on a separate core, on new files, and the servers take turns in every round, each round in
//! another order. The first part of a measurement is not counted. Keys are overwritten again and again.

mod bare;
mod charts;
mod first;
mod growth;
mod server;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use shoal_bench::cores::Cores;
use shoal_bench::enough::Enough;
use shoal_bench::redis::{Row, command, crowd};
use shoal_bench::report::{Metric, Report};
use shoal_bench::{machine, select};
use tempfile::TempDir;

use self::charts::Rate;
use self::server::Used;
pub(crate) use self::server::{ServerOptions, serve};
use crate::args::seconds;

const VARIANTS: [&str; 3] = ["bare", "shoal", "redis"];

/// A case.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    /// Bytes of a value.
    bytes: usize,
    clients: usize,
    /// Commands that a client sends at once.
    at_once: usize,
    keys: u64,
}

const CASES: [Case; 6] = [
    Case { name: "set-100b-c1", bytes: 100, clients: 1, at_once: 1, keys: 100_000 },
    Case { name: "set-64k-c1", bytes: 64 << 10, clients: 1, at_once: 1, keys: 3000 },
    Case { name: "set-100b-c50", bytes: 100, clients: 50, at_once: 1, keys: 100_000 },
    Case { name: "set-100b-c64", bytes: 100, clients: 64, at_once: 1, keys: 100_000 },
    Case { name: "set-100b-c50-p16", bytes: 100, clients: 50, at_once: 16, keys: 100_000 },
    Case { name: "set-64k-c50", bytes: 64 << 10, clients: 50, at_once: 1, keys: 3000 },
];

/// Values of 64 KiB that fill the cache of 1 GiB.
const FILLED: u64 = 20_000;
/// Removed objects leave their space sooner.
const PAUSE: Duration = Duration::from_secs(4);

const METRICS: &[Metric] = &[
    Metric { name: "puts_per_s", unit: "1/s", head: "puts/s" },
    Metric { name: "p50_us", unit: "us", head: "p50 us" },
    Metric { name: "p99_us", unit: "us", head: "p99 us" },
    Metric { name: "cpu_us_per_put", unit: "us", head: "CPU us" },
    Metric { name: "flushes_per_put", unit: "1", head: "flushes" },
    Metric { name: "of_shoal", unit: "1", head: "/ Shoal" },
];

/// The cases to measure, and the way to.
#[derive(Args, Clone, Debug)]
pub(crate) struct PutOptions {
    /// End within a minute: one round, half a second a case.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this case, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// Only this variant: bare, shoal or redis; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    pub(crate) variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Rounds, of which the medians are printed [default: 5, with --quick 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    pub(crate) rounds: Option<u32>,
    /// Seconds that each case is measured in a round [default: 3, with --quick 0.5].
    #[arg(long = "seconds", value_name = "N", value_parser = seconds)]
    pub(crate) time: Option<Duration>,
    /// The parent of the servers' new folders, which are removed at the end.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub(crate) folder: PathBuf,
    /// The program redis-server: measure it too.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) redis: Option<PathBuf>,
    /// Write the chart as an SVG file into this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
}

/// The figures of one case and server in one round.
#[derive(Clone, Copy, Debug)]
struct Figures {
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
    /// Flushes of the device a put, if the system counts them.
    flushes: Option<f64>,
}

impl Figures {
    /// The figures of a row; `before` and `after` are the server's use of resources.
    fn of(row: &Row, before: Used, after: Used) -> Self {
        Self::beside(row, 0, before, after)
    }

    /// The same, with `others`, SETs beside the row, all sharing the time and the flushes.
    fn beside(row: &Row, others: u64, before: Used, after: Used) -> Self {
        let puts = row.times.count() * row.objects as u64;
        let all = (puts + others).max(1) as f64;
        let flushes = after.flushes.zip(before.flushes);
        Self {
            per_s: puts as f64 / row.took.as_secs_f64().max(f64::MIN_POSITIVE),
            p50_us: row.times.quantile_us(500),
            p99_us: row.times.quantile_us(990),
            cpu_us: after.cpu.saturating_sub(before.cpu).as_secs_f64() * 1e6 / all,
            flushes: flushes.map(|(after, before)| after.saturating_sub(before) as f64 / all),
        }
    }
}

/// Measures and prints.
///
/// # Errors
/// A name that selects nothing; a server, a connection or the output failed.
pub(crate) fn run(options: &PutOptions, out: &mut dyn Write) -> Result<()> {
    let names: Vec<&str> =
        CASES.iter().map(|case| case.name).chain(growth::CASES).chain(first::CASES).collect();
    let cases = select("case", &names, &options.cases)?;
    let mut variants = select("variant", &VARIANTS, &options.variants)?;
    variants.retain(|&variant| variant != "redis" || options.redis.is_some());
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 5 });
    let time = options.time.unwrap_or(Duration::from_secs_f64(if options.quick { 0.5 } else { 3.0 }));
    // Before this thread is kept on one core.
    let machine = machine::describe();
    let cores = Cores::take();
    let mut report = Report::new(out, "durable-put", METRICS, options.json);
    for (name, value) in [
        ("bench", "durable-put: SET over the Redis protocol, one server at a time"),
        ("machine", &machine),
        ("load average", &machine::load()),
        ("version", crate::VERSION),
        ("cores", Cores::describe(cores)),
        ("rounds, and seconds of a case in each", &format!("{rounds}, {}", time.as_secs_f64())),
    ] {
        report.fact(name, value)?;
    }
    let mut all: Vec<(&str, &str, Figures)> = Vec::new();
    for round in 0..rounds as usize {
        let turn = variants.len().max(1);
        for &variant in (0..turn).filter_map(|place| variants.get((place + round) % turn)) {
            for case in CASES.iter().filter(|case| cases.contains(&case.name)) {
                let folder = server::new_folder(options)?;
                let server = server::start(options, variant, case.clients, &folder, cores)?;
                let used = || server::used(&server, &folder);
                let figures = measure(server.address, &used, case, time)?;
                all.push((case.name, variant, figures));
            }
            if variant == "shoal" {
                all.extend(measure_files(options, &cases, time, cores)?);
            }
        }
    }
    let rates = report_medians(&mut report, &cases, &variants, &all)?;
    if let Some(directory) = &options.plot
        && let Some(path) = charts::write(&rates, directory)?
    {
        report.fact("chart", &path.display().to_string())?;
    }
    report.fact("load average at the end", &machine::load())?;
    Ok(())
}

/// Prints the medians of all rounds; returns the puts a second among them.
fn report_medians(
    report: &mut Report<'_>,
    cases: &[&'static str],
    variants: &[&'static str],
    all: &[(&str, &str, Figures)],
) -> Result<Vec<Rate>> {
    let mut rates = Vec::new();
    for &case in cases {
        let median = |variant: &str, of: fn(&Figures) -> Option<f64>| {
            let of_row = all.iter().filter(|row| (row.0, row.1) == (case, variant));
            let mut values: Vec<f64> = of_row.filter_map(|row| of(&row.2)).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let shoal = median("shoal", |row| Some(row.per_s));
        for &variant in variants {
            let Some(per_s) = median(variant, |row| Some(row.per_s)) else { continue };
            rates.push(Rate { case, variant, per_s });
            let figures = [
                Some(per_s),
                median(variant, |row| Some(row.p50_us)),
                median(variant, |row| Some(row.p99_us)),
                median(variant, |row| Some(row.cpu_us)),
                median(variant, |row| row.flushes),
                shoal.map(|shoal| per_s / shoal),
            ];
            report.row(case, variant, &figures)?;
        }
    }
    Ok(rates)
}

/// The cases that compare states of Shoal's file and memory.
fn measure_files(
    options: &PutOptions,
    cases: &[&str],
    time: Duration,
    cores: Option<Cores>,
) -> Result<Vec<(&'static str, &'static str, Figures)>> {
    let start = |folder: &TempDir, clients| server::start(options, "shoal", clients, folder, cores);
    let mut all = Vec::new();
    if growth::CASES.iter().any(|case| cases.contains(case)) {
        let folder = server::new_folder(options)?;
        let server = start(&folder, 1)?;
        let plan = growth::Plan { time, filled: FILLED, pause: PAUSE };
        let used = || server::used(&server, &folder);
        all.extend(growth::CASES.into_iter().zip(growth::measure(server.address, &used, plan)?));
    }
    if first::CASES.iter().any(|case| cases.contains(case)) {
        let folder = server::new_folder(options)?;
        first::grow(start(&folder, 1)?.address, time)?;
        let server = start(&folder, 1)?;
        let used = || server::used(&server, &folder);
        all.extend(first::CASES.into_iter().zip(first::measure(server.address, &used, time)?));
    }
    Ok(all.into_iter().map(|(case, figures)| (case, "shoal", figures)).collect())
}

/// SETs of random keys until the clients have `enough`.
fn sets(address: SocketAddr, case: &Case, enough: Enough) -> Result<Row> {
    let value = vec![b'w'; case.bytes];
    crowd(address, enough, case.clients, case.at_once, |random| {
        let mut commands = Vec::new();
        for _ in 0..case.at_once {
            let key = format!("key:{:012}", random.below(case.keys));
            command(&mut commands, &[b"SET", key.as_bytes(), &value]);
        }
        commands
    })
}

/// Warms the server at `address` up, and measures for `time`.
fn measure(
    address: SocketAddr,
    used: &dyn Fn() -> Result<Used>,
    case: &Case,
    time: Duration,
) -> Result<Figures> {
    sets(address, case, Enough::after(time))?;
    measure_for(address, used, case, Enough::after(time))
}

/// Measures until the clients have `enough`; `used` returns the server's use of resources.
fn measure_for(
    address: SocketAddr,
    used: &dyn Fn() -> Result<Used>,
    case: &Case,
    enough: Enough,
) -> Result<Figures> {
    let before = used()?;
    let row = sets(address, case, enough)?;
    Ok(Figures::of(&row, before, used()?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use shoal_bench::redis::{Bed, StoreLocation};

    use super::*;
    use crate::log_file::LogFile;

    #[test]
    fn a_put_has_its_share_of_time_and_flushes() {
        let mut row = Row { took: Duration::from_secs(2), objects: 2, ..Row::default() };
        (0..10).for_each(|_| row.times.record(Duration::from_micros(100)));
        let before = Used { cpu: Duration::from_micros(50), flushes: Some(7) };
        let after = Used { cpu: Duration::from_micros(250), flushes: Some(17) };
        let figures = Figures::of(&row, before, after);
        assert_eq!((figures.per_s, figures.cpu_us, figures.flushes), (10.0, 10.0, Some(0.5)));
        let figures = Figures::beside(&row, 80, before, Used { flushes: None, ..after });
        assert_eq!((figures.per_s, figures.cpu_us, figures.flushes), (10.0, 2.0, None));
    }

    #[test]
    fn every_case_gives_figures() {
        let bed = Bed::new(StoreLocation::Memory).unwrap();
        let used = || Ok(Used { cpu: machine::cpu_time(), flushes: Some(0) });
        for case in &CASES {
            let figures = measure(bed.address, &used, case, Duration::ZERO).unwrap();
            assert!(
                figures.per_s > 0.0 && figures.p50_us > 0.0 && figures.p99_us >= figures.p50_us,
                "{figures:?}"
            );
        }
        let folder = tempfile::tempdir().unwrap();
        for case in &CASES {
            let mut log = LogFile::new(folder.path()).unwrap();
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let address = listener.local_addr().unwrap();
            // It serves until the test's process exits.
            std::thread::spawn(move || match case.clients {
                1 => bare::serve(&mut log, &listener),
                _ => bare::serve_many(&mut log, listener),
            });
            assert!(measure(address, &used, case, Duration::ZERO).unwrap().per_s > 0.0);
        }
    }
}
