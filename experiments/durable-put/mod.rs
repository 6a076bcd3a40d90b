//! `durable-put`: SET over the Redis protocol on Shoal, on a program that only receives, writes, flushes and answers
//! ([`bare`]), and on Redis with a flush for each command, where its program is named.
//!
//! Every server is a process on a core of its own, on new files, and the servers take turns in every round, each round in
//! another order. The first part of a measurement is not counted. Keys are overwritten again and again.

mod bare;
mod growth;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use shoal_bench::cores::Cores;
use shoal_bench::grpc::Remote;
use shoal_bench::redis::{Bed, Row, StoreLocation, command, crowd};
use shoal_bench::report::{Metric, Report};
use shoal_bench::{machine, select};
use shoal_device::IoMode;

use crate::args::seconds;
use crate::log_file::LogFile;
use crate::peer;

const VARIANTS: [&str; 3] = ["bare", "shoal", "redis"];

/// Name, bytes of a value, clients, commands that each sends at once, and keys.
const CASES: [(&str, usize, usize, usize, u64); 5] = [
    ("set-100b-c1", 100, 1, 1, 100_000),
    ("set-64k-c1", 64 << 10, 1, 1, 3000),
    ("set-100b-c50", 100, 50, 1, 100_000),
    ("set-100b-c50-p16", 100, 50, 16, 100_000),
    ("set-64k-c50", 64 << 10, 50, 1, 3000),
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
    Metric { name: "of_shoal", unit: "1", head: "/ Shoal" },
];

/// The cases to measure, and the way to.
#[derive(Args, Clone, Debug)]
pub(crate) struct PutOptions {
    /// End within a minute: one round, half a second a case.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this case, or all that begin with NAME where it ends with `*`; may be given again.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// Only this variant: bare, shoal or redis; may be given again.
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
    /// Where new folders are made for the servers; removed at the end.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub(crate) folder: PathBuf,
    /// The program redis-server: measure it too.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) redis: Option<PathBuf>,
}

/// Which server to be.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerOptions {
    /// bare or shoal.
    #[arg(long, value_name = "NAME")]
    variant: String,
    /// Its file, which must not exist.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Where it listens.
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Connections at a time: the bare program serves one with blocking calls.
    #[arg(long, value_name = "N")]
    clients: usize,
}

/// Serves until it is killed.
///
/// # Errors
/// An unknown variant; as the server.
pub(crate) fn serve(options: &ServerOptions) -> Result<()> {
    match options.variant.as_str() {
        "bare" => {
            let folder = options.data.parent().context("the file has no folder")?;
            let (mut log, listener) = (LogFile::new(folder)?, TcpListener::bind(options.listen)?);
            if options.clients > 1 {
                bare::serve_many(&mut log, listener)
            } else {
                bare::serve(&mut log, &listener)
            }
        }
        "shoal" => {
            let place = StoreLocation::File(Some(&options.data), IoMode::Auto);
            let _bed = Bed::at(place, options.listen)?;
            loop {
                std::thread::park();
            }
        }
        other => bail!("{other} is no server"),
    }
}

/// The figures of one case and server in one round.
#[derive(Clone, Copy, Debug)]
struct Figures {
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

impl Figures {
    /// The figures of a row, with the processor time of a put.
    fn of(row: &Row, cpu_us: f64) -> Self {
        let puts = (row.times.count() * row.objects as u64) as f64;
        Self {
            per_s: puts / row.took.as_secs_f64().max(f64::MIN_POSITIVE),
            p50_us: row.times.quantile_us(500),
            p99_us: row.times.quantile_us(990),
            cpu_us,
        }
    }
}

/// Measures and prints.
///
/// # Errors
/// A name that selects nothing; a server, a connection or the output failed.
pub(crate) fn run(options: &PutOptions, out: &mut dyn Write) -> Result<()> {
    let names: Vec<&str> = CASES.iter().map(|case| case.0).chain(growth::CASES).collect();
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
            for case in CASES.iter().filter(|case| cases.contains(&case.0)) {
                let server = start(options, variant, case.2, cores)?;
                all.push((case.0, variant, measure(server.address, &|| server.cpu_time(), case, time)?));
            }
            if variant == "shoal" && growth::CASES.iter().any(|case| cases.contains(case)) {
                let server = start(options, variant, 1, cores)?;
                let plan = growth::Plan { time, filled: FILLED, pause: PAUSE };
                let figures = growth::measure(server.address, &|| server.cpu_time(), plan)?;
                all.extend(
                    growth::CASES.into_iter().zip(figures).map(|(case, figures)| (case, variant, figures)),
                );
            }
        }
    }
    for case in cases {
        let median = |variant: &str, of: fn(&Figures) -> f64| {
            let of_row = all.iter().filter(|row| (row.0, row.1) == (case, variant));
            let mut values: Vec<f64> = of_row.map(|row| of(&row.2)).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let shoal = median("shoal", |row| row.per_s);
        for &variant in &variants {
            let Some(per_s) = median(variant, |row| row.per_s) else { continue };
            let figures = [
                Some(per_s),
                median(variant, |row| row.p50_us),
                median(variant, |row| row.p99_us),
                median(variant, |row| row.cpu_us),
                shoal.map(|shoal| per_s / shoal),
            ];
            report.row(case, variant, &figures)?;
        }
    }
    report.fact("load average at the end", &machine::load())?;
    Ok(())
}

/// Starts a server on a new folder.
fn start(options: &PutOptions, variant: &str, clients: usize, cores: Option<Cores>) -> Result<Remote> {
    let folder = options.folder.join(format!("shoal-durable-put-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let address = peer::free_address()?;
    let mut command = match (variant, &options.redis) {
        ("redis", Some(program)) => {
            let mut command = Command::new(program);
            command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
            command.args(["--port", &address.port().to_string()]).arg("--dir").arg(&folder);
            command
        }
        _ => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["durable-put-server", "--variant", variant]);
            command.args(["--listen", &address.to_string()]).arg("--data").arg(folder.join("data"));
            command.args(["--clients", &clients.to_string()]);
            command
        }
    };
    peer::start(&mut command, address, folder, cores)
}

/// Warms the server at `address` up, and measures; `cpu_time` is the processor time that it has used.
fn measure(
    address: SocketAddr,
    cpu_time: &dyn Fn() -> Duration,
    case: &(&str, usize, usize, usize, u64),
    time: Duration,
) -> Result<Figures> {
    let &(_, bytes, clients, at_once, keys) = case;
    let value = vec![b'w'; bytes];
    let sets = |time| {
        crowd(address, time, clients, at_once, |random| {
            let mut commands = Vec::new();
            for _ in 0..at_once {
                let key = format!("key:{:012}", random.below(keys));
                command(&mut commands, &[b"SET", key.as_bytes(), &value]);
            }
            commands
        })
    };
    sets(time)?;
    let before = cpu_time();
    let row = sets(time)?;
    let puts = (row.times.count() * at_once as u64).max(1) as f64;
    let cpu_us = cpu_time().saturating_sub(before).as_secs_f64() * 1e6 / puts;
    Ok(Figures::of(&row, cpu_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_gives_figures() {
        let bed = Bed::new(StoreLocation::Memory).unwrap();
        for case in &CASES {
            let figures = measure(bed.address, &machine::cpu_time, case, Duration::ZERO).unwrap();
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
            // It serves until the test's process ends.
            std::thread::spawn(move || match case.2 {
                1 => bare::serve(&mut log, &listener),
                _ => bare::serve_many(&mut log, listener),
            });
            assert!(measure(address, &machine::cpu_time, case, Duration::ZERO).unwrap().per_s > 0.0);
        }
    }
}
