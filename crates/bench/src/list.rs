//! `bench list`: all keys of a store, page by page: over gRPC, and by SCAN over the Redis protocol.
//!
//! The server is a process, so that its processor time is counted alone: this program's `serve` on a data file in which objects were set in
//! random order. A running server can be listed, too; its processor time is unknown. The client counts the keys and drops them, and asks for
//! one page at a time, over gRPC for two pages ahead.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shoal_base::BLOCK_BYTES_U64;
use shoal_base::limits::{LIST_PAGE_MAX, VALUE_BYTES_SINGLE_MAX};
use shoal_client::{Client, ListRequest};
use shoal_device::IoMode;
use tokio::runtime::{Builder, Runtime};

use crate::data_file::temporary;
use crate::grpc::Remote;
use crate::machine;
use crate::payload::mix;
use crate::redis::{Bed, BedOptions, Link, StoreLocation, load};
use crate::report::{Metric, Report};
use crate::scale::SEED;
use crate::settle::settle;

const METRICS: &[Metric] = &[
    Metric { name: "keys", unit: "1", head: "keys" },
    Metric { name: "keys_per_s", unit: "1/s", head: "keys/s" },
    Metric { name: "server_cpu_us", unit: "us", head: "server us" },
    Metric { name: "client_cpu_us", unit: "us", head: "client us" },
    Metric { name: "read_bytes_per_key", unit: "B", head: "read B" },
    Metric { name: "layers", unit: "1", head: "layers" },
];

/// Longest time until a server listens: it may replay its log first.
const START_MAX: Duration = Duration::from_secs(60);
/// Pause between two attempts to connect.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Objects: their numbers are in memory while they are set.
const OBJECTS_MAX: u64 = 1 << 30;
/// Rounds of a run.
const ROUNDS_MAX: usize = 1_000;

/// The server that is listed.
#[derive(Clone, Debug)]
pub enum ListServer {
    /// A process of this benchmark.
    Own(OwnServer),
    /// A running one, without TLS and credentials.
    Running {
        /// Its address for gRPC.
        grpc: String,
        /// Its address for the Redis protocol.
        resp: SocketAddr,
    },
}

/// A server that is started by the benchmark, and its store.
#[derive(Clone, Debug)]
pub struct OwnServer {
    /// The program; its first argument is `serve`.
    pub program: PathBuf,
    /// The data file; none: a temporary one in the current folder. It must not exist, unless it is filled.
    pub data: Option<PathBuf>,
    /// The objects exist already, in a file that stays.
    pub filled: bool,
    /// The file stays at the end.
    pub keep: bool,
    /// Bytes of cache.
    pub cache: u64,
    /// Bytes that a new file may grow to.
    pub size: u64,
    /// How the device is driven.
    pub io: IoMode,
}

/// The parameters of `bench list`.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// JSON lines instead of a table.
    pub json: bool,
    /// The server.
    pub server: ListServer,
    /// Objects that are set, with keys of 23 bytes.
    pub objects: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Keys of a page.
    pub page_keys: usize,
    /// Listings of each kind.
    pub rounds: usize,
}

impl ListOptions {
    /// Checks that a run is possible with these options.
    ///
    /// # Errors
    /// The error of the options, as a text for the user.
    pub fn check(&self) -> Result<(), String> {
        within("--objects", self.objects, OBJECTS_MAX)?;
        within("--value-bytes", self.value_bytes, VALUE_BYTES_SINGLE_MAX)?;
        within("--page", self.page_keys as u64, LIST_PAGE_MAX as u64)?;
        within("--rounds", self.rounds as u64, ROUNDS_MAX as u64)?;
        let ListServer::Own(own) = &self.server else { return Ok(()) };
        match (&own.data, own.filled, own.keep) {
            (Some(path), true, _) if path.exists() => Ok(()),
            (_, true, _) => Err("--filled needs --data with a file that was filled and kept".into()),
            (Some(path), ..) if path.exists() => Err(format!("{} exists: it is left alone", path.display())),
            (None, _, true) => Err("--keep needs --data".into()),
            _ => Ok(()),
        }
    }
}

fn within(name: &str, number: u64, max: u64) -> Result<(), String> {
    if (1..=max).contains(&number) { Ok(()) } else { Err(format!("{name} is between 1 and {max}")) }
}

/// Lists and prints. Must not run on a runtime's thread.
///
/// # Errors
/// The store, the server, a connection or the output failed, or a listing lacks keys.
pub fn run(options: &ListOptions, out: &mut dyn Write) -> Result<()> {
    options.check().map_err(anyhow::Error::msg)?;
    let mut report = Report::new(out, "list", METRICS, options.json);
    for (name, value) in [
        ("bench", "list: all keys, by pages; times and bytes are for each key"),
        ("machine", &machine::describe()),
        ("load average", &machine::load()),
        ("version", &options.version),
        ("objects", &format!("{} of {} bytes", options.objects, options.value_bytes)),
        ("keys of a page", &options.page_keys.to_string()),
    ] {
        report.fact(name, value)?;
    }
    let (target, _server) = match &options.server {
        ListServer::Own(own) => {
            let (target, server) = own.start(options)?;
            report.fact("cache", &format!("{} MiB", own.cache >> 20))?;
            (target, Some(server))
        }
        ListServer::Running { grpc, resp } => {
            (Target { grpc: grpc.clone(), resp: *resp, process: None }, None)
        }
    };
    // As the command line does it.
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let client = runtime.block_on(Client::connect(target.grpc.clone())).context("no server answers")?;
    for round in 1..=options.rounds {
        for case in ["grpc", "scan"] {
            let layers = runtime.block_on(client.stat())?.figure("layers");
            let before = Moment::now(&target);
            let keys = match case {
                "grpc" => list(&client, &runtime, options.page_keys)?,
                _ => scan(target.resp, options.page_keys)?,
            };
            let lacks = matches!(options.server, ListServer::Own(_)) && keys != options.objects;
            ensure!(!lacks, "{case} has {keys} keys instead of {}", options.objects);
            let figures = Moment::now(&target).since(&before, keys, layers);
            report.row(case, &format!("round-{round}"), &figures)?;
        }
    }
    report.fact("load average at the end", &machine::load())?;
    Ok(())
}

/// All keys over gRPC, as `shoal ls` does it; returns their number.
fn list(client: &Client, runtime: &Runtime, page_keys: usize) -> Result<u64> {
    runtime.block_on(async {
        let mut keys = 0;
        let mut pages = client.list_all(ListRequest { limit: page_keys, ..ListRequest::default() });
        while let Some(page) = pages.next_page().await? {
            keys += page.entries.len() as u64;
        }
        Ok(keys)
    })
}

/// All keys by SCAN; returns their number.
fn scan(address: SocketAddr, page_keys: usize) -> Result<u64> {
    let mut link = Link::connect(address)?;
    let (mut cursor, mut keys) = (0, 0);
    loop {
        let (next, count) = link.scan(cursor, page_keys)?;
        keys += count;
        match next {
            0 => return Ok(keys),
            next => cursor = next,
        }
    }
}

/// A server that is listed.
struct Target {
    grpc: String,
    resp: SocketAddr,
    process: Option<u32>,
}

/// The clock and the counters at one moment.
struct Moment {
    time: Instant,
    own_cpu: Duration,
    server_cpu: Option<Duration>,
    read_bytes: Option<u64>,
}

impl Moment {
    fn now(target: &Target) -> Self {
        Self {
            time: Instant::now(),
            own_cpu: machine::cpu_time(),
            server_cpu: target.process.and_then(machine::cpu_time_of),
            read_bytes: target.process.and_then(machine::read_bytes_of),
        }
    }

    /// The figures of a listing of `keys` that started at `before`.
    fn since(&self, before: &Self, keys: u64, layers: u64) -> Vec<Option<f64>> {
        let each = |amount: f64| amount / keys.max(1) as f64;
        let micros = |time: Duration| each(time.as_secs_f64() * 1e6);
        let took = (self.time - before.time).as_secs_f64();
        let server = self.server_cpu.zip(before.server_cpu).map(|(now, before)| now.saturating_sub(before));
        let read = self.read_bytes.zip(before.read_bytes).map(|(now, before)| now.saturating_sub(before));
        vec![
            Some(keys as f64),
            Some(keys as f64 / took.max(f64::MIN_POSITIVE)),
            server.map(micros),
            Some(micros(self.own_cpu.saturating_sub(before.own_cpu))),
            read.map(|bytes| each(bytes as f64)),
            Some(layers as f64),
        ]
    }
}

impl OwnServer {
    /// Fills a new data file, and starts the server on it.
    fn start(&self, options: &ListOptions) -> Result<(Target, Remote)> {
        let path = self.data.clone().unwrap_or_else(|| temporary("list"));
        let leftovers = if self.filled || self.keep { Vec::new() } else { vec![path.clone()] };
        if !self.filled {
            // The bed pins its thread to one core.
            let filled = thread::scope(|scope| scope.spawn(|| self.fill(options, &path)).join());
            if let Err(error) = filled.unwrap_or_else(|_| bail!("the objects were not set")) {
                // There is no way to report that a file stays.
                let _ = leftovers.first().map(std::fs::remove_file);
                return Err(error);
            }
        }
        let (grpc, resp) = free_ports()?;
        let io = match self.io {
            IoMode::Auto => "auto",
            IoMode::Uring => "uring",
            IoMode::Threads => "threads",
        };
        let mut command = Command::new(&self.program);
        command.arg("serve").arg("--data").arg(&path);
        command.args(["--must-exist", "--metrics", "off", "--io", io]);
        command.args(["--cache", &self.cache.to_string(), "--listen", &grpc.to_string()]);
        command.args(["--resp", &resp.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // As a user would run it: the kernel places server and client.
        let server = Remote::spawn(&mut command, grpc, leftovers, None)?;
        let began = Instant::now();
        while TcpStream::connect(grpc).and_then(|_| TcpStream::connect(resp)).is_err() {
            ensure!(began.elapsed() < START_MAX, "the server does not listen");
            thread::sleep(LOOK_EVERY);
        }
        Ok((Target { grpc: grpc.to_string(), resp, process: server.process() }, server))
    }

    /// Sets the objects in a new file; returns when its trees have all of them.
    fn fill(&self, options: &ListOptions, path: &Path) -> Result<()> {
        let wanted = BedOptions {
            cache_bytes: Some(usize::try_from(self.cache)?),
            blocks: self.size / BLOCK_BYTES_U64,
            ..BedOptions::default()
        };
        let bed = Bed::with(StoreLocation::Kept(path, self.io), &wanted)?;
        load(&mut bed.link()?, options.objects, options.value_bytes as usize, key)?;
        settle(bed.store());
        Ok(())
    }
}

/// The key of an object: 23 bytes, in random order.
fn key(number: u64) -> Vec<u8> {
    format!("key:{:019}", mix(SEED, number) >> 1).into_bytes()
}

/// Two ports that were free a moment ago.
fn free_ports() -> Result<(SocketAddr, SocketAddr)> {
    let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let [one, other] = listeners;
    Ok((one?.local_addr()?, other?.local_addr()?))
}

#[cfg(test)]
mod tests {
    use shoal_server::{Server, ServerOptions};
    use tokio::sync::oneshot;

    use super::*;

    fn options(server: ListServer) -> ListOptions {
        ListOptions {
            version: "test".into(),
            json: true,
            server,
            objects: 2_500,
            value_bytes: 10,
            page_keys: 1_000,
            rounds: 1,
        }
    }

    #[test]
    fn a_running_server_is_listed_whole_over_both_protocols() {
        let bed = Bed::new(StoreLocation::Memory).unwrap();
        load(&mut bed.link().unwrap(), 2_500, 10, key).unwrap();
        let runtime = Runtime::new().unwrap();
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let options_of_server = ServerOptions { listen, ..ServerOptions::default() };
        let server = runtime.block_on(Server::bind(options_of_server)).unwrap();
        let grpc = server.address().to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = runtime.spawn(server.run(bed.store().clone(), async { drop(stopped.await) }));
        let mut out = Vec::new();
        run(&options(ListServer::Running { grpc, resp: bed.address }), &mut out).unwrap();
        drop(stop);
        runtime.block_on(served).unwrap().unwrap();
        let text = String::from_utf8(out).unwrap();
        for case in ["grpc", "scan"] {
            let is_whole = |line: &str| {
                line.contains(&format!("\"case\":\"{case}\""))
                    && line.contains("\"metric\":\"keys\"")
                    && line.contains("2500.0")
            };
            assert!(text.lines().any(is_whole), "{case}: {text}");
        }
        assert!(!text.contains("server_cpu_us"), "the time of this process is not the server's: {text}");
    }

    #[test]
    fn impossible_options_are_named() {
        let resp = (Ipv4Addr::LOCALHOST, 1).into();
        let good = options(ListServer::Running { grpc: String::new(), resp });
        good.check().unwrap();
        let error = |options: ListOptions| options.check().unwrap_err();
        assert!(error(ListOptions { objects: 0, ..good.clone() }).contains("--objects"));
        assert!(error(ListOptions { page_keys: 1_001, ..good.clone() }).contains("--page"));
        assert!(error(ListOptions { rounds: 0, ..good.clone() }).contains("--rounds"));
        assert!(error(ListOptions { value_bytes: 1 << 30, ..good }).contains("--value-bytes"));
        let own = OwnServer {
            program: "shoal".into(),
            data: None,
            filled: false,
            keep: false,
            cache: 1 << 24,
            size: 1 << 30,
            io: IoMode::Auto,
        };
        let error = |own| error(options(ListServer::Own(own)));
        options(ListServer::Own(own.clone())).check().unwrap();
        assert!(error(OwnServer { filled: true, ..own.clone() }).contains("--filled"));
        assert!(error(OwnServer { keep: true, ..own.clone() }).contains("--keep"));
        assert!(error(OwnServer { data: Some("/".into()), ..own }).contains("exists"));
    }
}
