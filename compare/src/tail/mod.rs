//! `tail`: latencies of durable SETs at one fixed rate, Shoal beside Redis, RocksDB and SQLite, by the generator of `shoal bench tail`.
//!
//! One store after the other, on the same disk, each in a separate process with the generator: Redis as its program, the libraries behind a
//! small server (`serve.rs`), Shoal as its server.

mod serve;
mod stores;

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use shoal_bench::machine;
use shoal_bench::plot::{Axis, LineChart, Mark};
use shoal_bench::report::{Metric, Report};
use shoal_bench::tail::{Arrivals, Measured, OwnStore, Rates, TailOptions, TailServer};
use shoal_device::IoMode;

use self::serve::Server;
use crate::scale::stores::{CONFIGURED, STORES};

/// Bytes that Shoal's file may grow to.
const SIZE_MAX: u64 = 64 << 30;
/// The wait for a server that starts.
const START_MAX: Duration = Duration::from_secs(10);

const METRICS: &[Metric] = &[
    Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "p50_ms", unit: "ms", head: "p50 ms" },
    Metric { name: "p90_ms", unit: "ms", head: "p90 ms" },
    Metric { name: "p99_ms", unit: "ms", head: "p99 ms" },
    Metric { name: "p999_ms", unit: "ms", head: "p99.9 ms" },
    Metric { name: "max_ms", unit: "ms", head: "max ms" },
    Metric { name: "stall_ms", unit: "ms", head: "stall ms" },
];

/// Latencies of durable SETs at a fixed rate.
#[derive(Args)]
pub struct Arguments {
    /// The stores, in the order in which they run: shoal, redis, rocksdb, sqlite.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "shoal,redis,sqlite")]
    stores: Vec<String>,
    /// Objects [default: 1000000, with --quick 2000].
    #[arg(long, value_name = "N")]
    objects: Option<u64>,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    value: u32,
    /// SETs a second of random existing objects; Poisson arrivals.
    #[arg(long, value_name = "N", default_value_t = 2500.0)]
    rate: f64,
    /// Seconds of each store [default: 60, with --quick 2].
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 16)]
    connections: usize,
    /// MiB of each store's cache; Redis has all objects in memory.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    cache: u64,
    /// The program of Redis.
    #[arg(long, value_name = "PROGRAM", default_value = "redis-server")]
    redis: PathBuf,
    /// The folder for the stores; everything is removed in the end.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// A small run, to see that it works: its figures are meaningless.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Draw the longest latency of each second into this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// This is the process of the only store, in this folder.
    #[arg(long, hide = true)]
    child: bool,
}

impl Arguments {
    fn options(&self, server: TailServer, folder: &Path) -> TailOptions {
        let seconds = self.seconds.unwrap_or(if self.quick { 2.0 } else { 60.0 });
        let pause = Duration::from_secs(if self.quick { 0 } else { 5 });
        TailOptions {
            version: env!("CARGO_PKG_VERSION").into(),
            json: false,
            server,
            objects: self.objects.unwrap_or(if self.quick { 2_000 } else { 1_000_000 }),
            value_bytes: self.value,
            filled: false,
            connections: self.connections,
            in_flight: 1,
            get_share: 0.0,
            arrivals: Arrivals::Poisson,
            rates: Rates::PerSecond(vec![self.rate]),
            measure: Duration::from_secs(1),
            time: Duration::from_secs_f64(seconds.clamp(1.0, 86_000.0)),
            warm_up: pause,
            pause,
            device_file: Some(folder.join("device")),
            device_time: pause * 2 + Duration::from_secs(1),
            plot: None,
        }
    }
}

/// Measures all stores, prints the table and draws.
pub fn run(arguments: &Arguments) -> Result<()> {
    for name in &arguments.stores {
        let is_known = ["shoal", "redis", "sqlite"].contains(&&name[..]);
        ensure!(
            is_known || name == "rocksdb" && cfg!(feature = "rocksdb"),
            "there is no store {name:?}; there are shoal, redis, sqlite, and with --features rocksdb rocksdb"
        );
    }
    if arguments.child {
        let name = arguments.stores.first().context("a child has one store")?;
        return say(&one(arguments, name, &arguments.folder)?);
    }
    let folder = std::path::absolute(&arguments.folder)?;
    let work = folder.join(format!("shoal-tail-{}", std::process::id()));
    fs::create_dir(&work)?;
    let result = all(arguments, &work);
    fs::remove_dir_all(&work)?;
    let measured = result?;
    arguments.plot.as_deref().map_or(Ok(()), |path| draw(arguments, &measured, path))
}

fn all(arguments: &Arguments, work: &Path) -> Result<Vec<(String, Measured)>> {
    let mut all = Vec::new();
    for name in &arguments.stores {
        let home = work.join(name);
        fs::create_dir(&home)?;
        // Dirty pages of the store before must not be written by the kernel during this one.
        rustix::fs::syncfs(fs::File::open(work)?)?;
        let measured = in_child(arguments, name, &home).with_context(|| format!("{name} failed"))?;
        all.push((name.clone(), measured));
        fs::remove_dir_all(&home)?;
    }
    let mut out = std::io::stdout().lock();
    let mut report = Report::new(&mut out, "compare-tail", METRICS, arguments.json);
    let options = arguments.options(TailServer::Echo, work);
    let parameters = format!(
        "{} SETs a second of {} bytes, {} objects, {} connections, {} s each, cache {} MiB; Redis: appendfsync always",
        arguments.rate,
        options.value_bytes,
        options.objects,
        options.connections,
        options.time.as_secs_f64(),
        arguments.cache
    );
    for (name, value) in [
        ("machine", machine::describe()),
        ("load average at the end", machine::load()),
        ("parameters", parameters),
        ("stores", CONFIGURED.to_owned()),
    ] {
        report.fact(name, &value)?;
    }
    for (name, measured) in &all {
        let mut row = vec![Some(measured.per_second)];
        row.extend(measured.quantiles.map(Some));
        row.extend([Some(measured.max), Some(measured.stall)]);
        report.row("set", name, &row)?;
    }
    Ok(all)
}

/// Runs one store in a separate process: the server of Shoal pins its threads, and those of this process.
fn in_child(arguments: &Arguments, name: &str, home: &Path) -> Result<Measured> {
    let options = arguments.options(TailServer::Echo, home);
    let output = Command::new(std::env::current_exe()?)
        .args(["tail", "--child", "--stores", name])
        .args(["--objects", &options.objects.to_string(), "--value", &options.value_bytes.to_string()])
        .args(["--rate", &arguments.rate.to_string(), "--seconds", &options.time.as_secs_f64().to_string()])
        .args(["--connections", &options.connections.to_string(), "--cache", &arguments.cache.to_string()])
        .args(arguments.quick.then_some("--quick"))
        .arg("--redis")
        .arg(&arguments.redis)
        .arg("--folder")
        .arg(home)
        .stdin(Stdio::null())
        // The seconds and the device's own writes are progress.
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "its process ended: {}", output.status);
    read(&String::from_utf8(output.stdout)?).context("its process printed something else than figures")
}

/// Prints figures for the parent: a line of those of the run, then one for each second.
fn say(measured: &Measured) -> Result<()> {
    let [p50, p90, p99, p999] = measured.quantiles;
    let mut text =
        format!("{} {p50} {p90} {p99} {p999} {} {}\n", measured.per_second, measured.max, measured.stall);
    measured.seconds.iter().for_each(|(number, max)| text.push_str(&format!("{number} {max}\n")));
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// Reads the output of [`say`].
fn read(text: &str) -> Option<Measured> {
    let numbers = |line: &str| line.split(' ').map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    let mut lines = text.lines();
    let [per_second, p50, p90, p99, p999, max, stall] = numbers(lines.next()?)?[..] else { return None };
    let second = |line| <[f64; 2]>::try_from(numbers(line)?).ok().map(|[number, max]| (number, max));
    let seconds = lines.map(second).collect::<Option<_>>()?;
    Some(Measured { per_second, quantiles: [p50, p90, p99, p999], max, stall, seconds })
}

fn one(arguments: &Arguments, name: &str, home: &Path) -> Result<Measured> {
    let cache = arguments.cache << 20;
    // Servers stop when they are dropped, after the run.
    let (server, _running): (TailServer, Box<dyn Running>) = match name {
        "shoal" => {
            let own = OwnStore {
                data: Some(home.join("shoal.data")),
                keep: false,
                cache,
                memtable: None,
                size: SIZE_MAX,
                io: IoMode::Auto,
            };
            (TailServer::Own(own), Box::new(()))
        }
        "redis" => {
            let redis = Redis::start(&arguments.redis, home)?;
            (TailServer::Address(redis.address), Box::new(redis))
        }
        name => {
            let server = Server::start(stores::create(name, home, cache)?)?;
            (TailServer::Address(server.address), Box::new(server))
        }
    };
    let options = arguments.options(server, home);
    options.check().map_err(anyhow::Error::msg)?;
    let mut measured = shoal_bench::tail::run(&options, &mut std::io::stderr().lock())?;
    measured.pop().context("a rate is a run")
}

/// A server that stops when it is dropped.
trait Running {}

impl Running for () {}
impl Running for Redis {}
impl Running for Server {}

/// Redis, which is killed in the end.
struct Redis {
    address: SocketAddr,
    child: Child,
}

impl Redis {
    fn start(program: &Path, folder: &Path) -> Result<Self> {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let child = Command::new(program)
            .args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""])
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .arg("--dir")
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}: --redis names the program", program.display()))?;
        let mut redis = Self { address, child };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = redis.child.try_wait()? {
                bail!("Redis ended: {status}");
            }
            ensure!(began.elapsed() < START_MAX, "Redis does not answer");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It has ended already, or nothing more can be done.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn draw(arguments: &Arguments, measured: &[(String, Measured)], path: &Path) -> Result<()> {
    let shown = |name: &str| -> String {
        let known = STORES.iter().find(|(known, _)| *known == name);
        known.map_or("Redis", |(_, shown)| shown).into()
    };
    let parts: Vec<String> =
        measured.iter().map(|(name, of)| format!("{} {:.0} ms", shown(name), of.max)).collect();
    let title =
        format!("At {} durable SETs a second the longest takes: {}", arguments.rate, parts.join(", "));
    let x = Axis::new("intended send time", "s");
    let y = Axis::new("longest latency of the second", "ms").log();
    let mut chart = LineChart::new(&title, x, y).legend_beside();
    for (name, of) in measured {
        chart.add(&shown(name), Mark::Line, of.seconds.iter().copied());
    }
    fs::write(path, chart.svg()?).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_child_are_read() {
        let measured = read("2500 0.5 1 2 3 4 5\n0 4\n2 3.5\n").unwrap();
        assert_eq!((measured.per_second, measured.quantiles[3], measured.max), (2500.0, 3.0, 4.0));
        assert_eq!(measured.seconds, [(0.0, 4.0), (2.0, 3.5)]);
        for wrong in ["", "2500 0.5\n", "a 0.5 1 2 3 4 5", "2500 0.5 1 2 3 4 5\n1\n"] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
    }
}
