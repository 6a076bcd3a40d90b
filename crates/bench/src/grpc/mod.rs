//! `bench grpc`: the seed's client and its loads, against the seed's servers and Shoal's, in one run.
//!
//! Four servers of the seed's service: `global-lock` and `per-key` pretend to work as the seed's did before and after (10 ms a
//! retrieve, 50 ms a write); `memory` is a plain in-memory tonic server; `durable` is Shoal's, on a data file. Each is a process
//! of its own on a core of its own where there are two; the client has the other one: one thread, one connection. `memory` and
//! `durable` (and etcd, where its program is named) take turns in short rounds, as the machine changes under them. Every value
//! that comes back is compared with what was sent (`keys`).
//!
//! `multi-100b` is the same 100 bytes, reads and writes in turn, counted in operations: on `memory` as unary calls, on
//! `durable` over the stream of operations; its further variants are one way and one kind each, and `stream-futures` is `durable`
//! with a future for each operation.

mod calls;
mod charts;
mod etcd;
mod keys;
mod load;
mod many;
mod memory;
mod pipelined;
mod process;
mod seed;
mod serve;
mod wire;

use std::cell::{Cell, OnceCell};
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use shoal_device::IoMode;
use tokio::runtime::Runtime;

use crate::machine;
use crate::report::{Metric, Report};
use crate::store::case::select;
use calls::Calls;
use charts::Row;
use etcd::EtcdPuts;
use keys::Source;
use load::{Load, Tally, drive};
use many::{Many, Travelling, Way};
use pipelined::Pipelined;
use process::{Cores, Remote};
use seed::{Mix, Objects};
pub use serve::{ServeOptions, serve};

/// The seed of choices, keys, sizes and bytes.
const SEED: u64 = 20_261_121;

/// Turns that servers take in a case.
const ROUNDS: u32 = 4;

/// Parts of a soak that are printed one by one.
const SOAK_PARTS: u32 = 10;

/// What closing a connection may take.
const CLOSE_PAUSE: Duration = Duration::from_millis(100);

/// Lengths of keys and values.
const LARGE: [usize; 2] = [64, 64 << 10];
const SMALL: [usize; 2] = [24, 100];

/// For each object of 64 KiB, so many of 100 bytes.
const SMALL_OBJECTS: usize = 20;

const CASES: [&str; 6] = ["crud-64k", "read-64k", "write-64k", "read-100b", "write-100b", "multi-100b"];

const VARIANTS: [&str; 10] = [
    "global-lock",
    "per-key",
    "memory",
    "durable",
    "etcd",
    "stream-get",
    "stream-put",
    "stream-futures",
    "multi-get",
    "multi-put",
];

const METRICS: &[Metric] = &[
    Metric { name: "calls_per_s", unit: "1/s", head: "calls/s" },
    Metric { name: "p50_us", unit: "us", head: "p50 us" },
    Metric { name: "p99_us", unit: "us", head: "p99 us" },
    Metric { name: "cpu_us_per_call", unit: "us", head: "CPU us" },
    Metric { name: "client_us_per_call", unit: "us", head: "client us" },
    Metric { name: "ok", unit: "count", head: "OK" },
    Metric { name: "not_found", unit: "count", head: "NOT_FOUND" },
    Metric { name: "already_exists", unit: "count", head: "EXISTS" },
    Metric { name: "x_memory", unit: "1", head: "x memory" },
    Metric { name: "of_ceiling", unit: "1", head: "ceiling" },
];

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// JSON lines instead of a table.
    pub json: bool,
    /// Cases by name, or by beginning and `*`; none: all.
    pub cases: Vec<String>,
    /// Variants likewise.
    pub variants: Vec<String>,
    /// How long each variant of a case runs.
    pub time: Duration,
    /// Calls in flight.
    pub in_flight: usize,
    /// Objects of 64 KiB; of 100 bytes there are 20 times as many.
    pub objects: usize,
    /// The data file of the durable server, which must not exist and is removed at the end; none: one in the current folder.
    pub data: Option<PathBuf>,
    /// How its device is driven.
    pub io: IoMode,
    /// Where charts go; none: there are none.
    pub plot: Option<PathBuf>,
    /// The program of etcd, which is measured too then.
    pub etcd: Option<PathBuf>,
    /// This program, which the servers are processes of; none: they are threads.
    pub program: Option<PathBuf>,
    /// Only the seed's load on the durable server for so long, and then every object read again.
    pub soak: Option<Duration>,
}

/// Measures and prints. Must not run on a runtime's thread.
///
/// # Errors
/// A name that selects nothing; a server, a call or the output failed; an answer was wrong.
pub fn run(options: &GrpcOptions, out: &mut dyn Write) -> Result<()> {
    let cases = select("case", &CASES, &options.cases)?;
    let variants = select("variant", &VARIANTS, &options.variants)?;
    // Before this thread is kept on one core.
    let machine = machine::describe();
    let cores = options.program.as_ref().and_then(|_| Cores::choose());
    let is_pinned = cores.is_some_and(Cores::take_clients);
    let mut bench = Bench {
        report: Report::new(out, "grpc", METRICS, options.json),
        options,
        variants,
        cores: cores.filter(|_| is_pinned),
        runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        source: Rc::new(Source::new(SEED)),
        rows: Vec::new(),
    };
    bench.header(&machine)?;
    match options.soak {
        Some(time) => bench.soak(time)?,
        None => bench.cases(&cases)?,
    }
    if let Some(folder) = &options.plot {
        for path in charts::write(&bench.rows, folder)? {
            bench.report.fact("chart", &path.display().to_string())?;
        }
    }
    bench.report.fact("load average at the end", &machine::load())?;
    Ok(())
}

/// A run.
struct Bench<'a> {
    report: Report<'a>,
    options: &'a GrpcOptions,
    variants: Vec<&'a str>,
    cores: Option<Cores>,
    /// Of the clients: the thread that runs the benchmark.
    runtime: Runtime,
    source: Rc<Source>,
    rows: Vec<Row>,
}

/// A server, and what it holds once a case wanted it.
struct Bed {
    remote: Remote,
    calls: Calls,
    crud: Objects,
    large: OnceCell<Objects>,
    small: OnceCell<Objects>,
    many: OnceCell<Rc<Many>>,
}

/// One of those that take turns.
struct Contender<'a> {
    variant: &'static str,
    bed: &'a Bed,
    work: Work,
    in_flight: usize,
}

/// What is done to a server.
enum Work {
    Calls(Box<dyn Load>),
    Pipelined(Box<Pipelined>),
}

impl<'a> Bench<'a> {
    fn header(&mut self, machine: &str) -> Result<()> {
        let options = self.options;
        let data =
            options.data.as_ref().map_or("a file in this folder".into(), |path| path.display().to_string());
        for (name, value) in [
            (
                "bench",
                "grpc: the seed's client, and one server at a time of four, each in a process of its own",
            ),
            ("machine", machine),
            ("load average", &machine::load()),
            ("version", &options.version),
            ("seed", &SEED.to_string()),
            (
                "cores",
                if self.cores.is_some() {
                    "one for the client, another one for the servers"
                } else {
                    "shared"
                },
            ),
            ("calls in flight", &options.in_flight.to_string()),
            ("seconds a variant", &options.time.as_secs_f64().to_string()),
            (
                "objects",
                &format!("{} of 64 KiB, {} of 100 bytes", options.objects, options.objects * SMALL_OBJECTS),
            ),
            ("data", &data),
        ] {
            self.report.fact(name, value)?;
        }
        Ok(())
    }

    fn wants(&self, variant: &str) -> bool {
        self.variants.contains(&variant) && (variant != "etcd" || self.options.etcd.is_some())
    }

    fn cases(&mut self, cases: &[&'static str]) -> Result<()> {
        if cases.contains(&"crud-64k") {
            for variant in ["global-lock", "per-key"] {
                self.pretending(variant)?;
            }
        }
        let wants_many = cases.contains(&"multi-100b");
        let wants = |bench: &Self, variants: &[&str]| variants.iter().any(|variant| bench.wants(variant));
        let memory = if self.wants("memory") { Some(self.start("memory")?) } else { None };
        let ways = ["stream-get", "stream-put", "stream-futures", "multi-get", "multi-put"];
        let wants_durable = self.wants("durable") || (wants_many && wants(self, &ways));
        let durable = if wants_durable { Some(self.start("durable")?) } else { None };
        let etcd = cases.contains(&"write-100b") && self.wants("etcd");
        let etcd = if etcd { Some(self.start("etcd")?) } else { None };
        for &case in cases {
            let mut contenders = Vec::new();
            for (variant, bed) in [("memory", &memory), ("durable", &durable)] {
                if let Some(bed) = bed.as_ref().filter(|_| self.wants(variant)) {
                    let is_stream = case == "multi-100b" && variant != "memory";
                    let (work, in_flight) =
                        if is_stream { self.many(bed, Way::Stream)? } else { self.seed_load(bed, case)? };
                    contenders.push(Contender { variant, bed, work, in_flight });
                }
            }
            if let Some(bed) = etcd.as_ref().filter(|_| case == "write-100b") {
                let count = self.options.objects * SMALL_OBJECTS;
                let load = EtcdPuts::new(&self.source, bed.calls.clone(), count, SMALL);
                let work = Work::Calls(Box::new(load));
                contenders.push(Contender { variant: "etcd", bed, work, in_flight: self.options.in_flight });
            }
            if let Some(bed) = durable.as_ref().filter(|_| case == "multi-100b") {
                let kinds =
                    [Way::StreamGet, Way::StreamPut, Way::StreamFutures, Way::MultiGet, Way::MultiPut];
                for (variant, way) in ways.into_iter().zip(kinds) {
                    if self.wants(variant) {
                        let (work, in_flight) = self.many(bed, way)?;
                        contenders.push(Contender { variant, bed, work, in_flight });
                    }
                }
            }
            self.take_turns(case, &contenders)?;
        }
        for bed in [memory, durable, etcd].into_iter().flatten() {
            self.stop(bed)?;
        }
        Ok(())
    }

    /// The seed's load on a server that pretends to work; it has the machine for itself.
    fn pretending(&mut self, variant: &'static str) -> Result<()> {
        if !self.wants(variant) {
            return Ok(());
        }
        let bed = self.start(variant)?;
        let work = Work::Calls(Box::new(bed.crud.calling(Mix::Crud)));
        let tally = self.measure(&bed, &work, self.options.in_flight, self.options.time)?;
        let at_a_time = if variant == "global-lock" { 1.0 } else { self.options.in_flight as f64 };
        // By the work of the calls that were drawn: a few hundred of them are not just the mean.
        let ceiling = at_a_time * tally.operations as f64 / tally.work.as_secs_f64().max(f64::MIN_POSITIVE);
        let of_ceiling = tally.per_s() / ceiling;
        self.row("crud-64k", variant, &tally, None, Some(of_ceiling))?;
        self.stop(bed)
    }

    /// Measures all in short rounds, one after the other, so that what changes on the machine changes for all.
    fn take_turns(&mut self, case: &'static str, contenders: &[Contender<'_>]) -> Result<()> {
        let mut tallies = vec![Tally::default(); contenders.len()];
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let mut rates = Vec::new();
            for (contender, sum) in contenders.iter().zip(&mut tallies) {
                let Contender { bed, work, in_flight, .. } = contender;
                let tally = self.measure(bed, work, *in_flight, self.options.time / ROUNDS)?;
                rates.push((contender.variant, tally.per_s()));
                sum.add(&tally);
            }
            let rate = |wanted| rates.iter().find(|(variant, _)| *variant == wanted).map(|(_, rate)| *rate);
            ratios.extend(rate("durable").zip(rate("memory")).map(|(durable, memory)| durable / memory));
        }
        let memory = contenders.iter().zip(&tallies).find(|(contender, _)| contender.variant == "memory");
        let memory = memory.map(|(_, tally)| tally.per_s());
        for (contender, tally) in contenders.iter().zip(&tallies) {
            let x_memory = memory.map(|memory| tally.per_s() / memory);
            self.row(case, contender.variant, tally, x_memory, None)?;
        }
        if !ratios.is_empty() {
            let ratios: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
            self.report.fact(&format!("{case}, durable over memory by round"), &ratios.join(" "))?;
        }
        Ok(())
    }

    fn soak(&mut self, time: Duration) -> Result<()> {
        let bed = self.start("durable")?;
        let work = Work::Calls(Box::new(bed.crud.calling(Mix::Crud)));
        let mut sum = Tally::default();
        for _ in 0..SOAK_PARTS {
            let tally = self.measure(&bed, &work, self.options.in_flight, time / SOAK_PARTS)?;
            self.row("soak", "durable", &tally, None, None)?;
            sum.add(&tally);
        }
        let left = self.runtime.block_on(bed.crud.check_all())?;
        self.row("soak-all", "durable", &sum, None, None)?;
        let text =
            format!("every value was compared; {left} objects were read again at the end, none was lost");
        self.report.fact("soak", &text)?;
        // It holds the connection, for whose end the server would wait.
        drop(work);
        self.stop(bed)
    }

    fn measure(&self, bed: &Bed, work: &Work, in_flight: usize, time: Duration) -> Result<Tally> {
        match work {
            Work::Calls(load) => self.runtime.block_on(drive(load.as_ref(), &bed.remote, in_flight, time)),
            Work::Pipelined(work) => self.runtime.block_on(work.drive(&bed.remote, in_flight, time)),
        }
    }

    fn row(
        &mut self,
        case: &'static str,
        variant: &'static str,
        tally: &Tally,
        x_memory: Option<f64>,
        of_ceiling: Option<f64>,
    ) -> Result<()> {
        let each = |time: Duration| Some(time.as_secs_f64() * 1e6 / (tally.operations.max(1)) as f64);
        self.report.row(
            case,
            variant,
            &[
                Some(tally.per_s()),
                Some(tally.latencies.quantile_us(500)),
                Some(tally.latencies.quantile_us(990)),
                each(tally.server_cpu),
                each(tally.client_cpu),
                Some(tally.done as f64),
                Some(tally.not_found as f64),
                Some(tally.already_exists as f64),
                x_memory,
                of_ceiling,
            ],
        )?;
        self.rows.push(Row { case, variant, calls_per_s: tally.per_s(), cpu_us: each(tally.server_cpu) });
        Ok(())
    }

    /// Starts a server and connects to it.
    fn start(&self, variant: &str) -> Result<Bed> {
        let options = self.options;
        let temporary = || PathBuf::from(format!("shoal-grpc-{}.data", std::process::id()));
        let data = options.data.clone().unwrap_or_else(temporary);
        let remote = match &options.etcd {
            Some(program) if variant == "etcd" => Remote::etcd(program, &data, self.cores)?,
            _ => {
                let data = match variant {
                    "durable" => Some(data),
                    _ => None,
                };
                let serve = ServeOptions { variant: variant.into(), data, io: options.io };
                Remote::start(&serve, options.program.as_deref(), self.cores)?
            }
        };
        let calls = self.runtime.block_on(Calls::connect(remote.address))?;
        let crud = Objects::new(&self.source, calls.clone(), None);
        Ok(Bed { remote, calls, crud, large: OnceCell::new(), small: OnceCell::new(), many: OnceCell::new() })
    }

    /// Ends a server, after the connections to it.
    fn stop(&self, bed: Bed) -> Result<()> {
        let Bed { remote, calls, crud, large, small, many } = bed;
        drop((calls, crud, large, small, many));
        // Connections are closed by tasks of this runtime.
        self.runtime.block_on(async { tokio::time::sleep(CLOSE_PAUSE).await });
        remote.stop().context("a server did not end in order")
    }

    /// The calls of a case over the seed's service.
    fn seed_load(&self, bed: &Bed, case: &str) -> Result<(Work, usize)> {
        let mix = match case {
            "crud-64k" => Mix::Crud,
            "read-64k" | "read-100b" => Mix::Read,
            "write-64k" | "write-100b" => Mix::Write,
            _ => Mix::ReadWrite,
        };
        let (objects, count) = match case {
            "crud-64k" => {
                return Ok((Work::Calls(Box::new(bed.crud.calling(mix))), self.options.in_flight));
            }
            "read-64k" | "write-64k" => (&bed.large, (self.options.objects, LARGE)),
            _ => (&bed.small, (self.options.objects * SMALL_OBJECTS, SMALL)),
        };
        if objects.get().is_none() {
            let (count, [key_bytes, value_bytes]) = count;
            let loaded = Objects::new(&self.source, bed.calls.clone(), Some(value_bytes));
            self.runtime.block_on(loaded.load(count, key_bytes))?;
            let _ = objects.set(loaded);
        }
        let objects = objects.get().context("the objects were just loaded")?;
        Ok((Work::Calls(Box::new(objects.calling(mix))), self.options.in_flight))
    }

    /// The operations of a way over Shoal's own interface.
    fn many(&self, bed: &Bed, way: Way) -> Result<(Work, usize)> {
        let many = match bed.many.get() {
            Some(many) => Rc::clone(many),
            None => {
                let count = self.options.objects * SMALL_OBJECTS;
                let many = Many::load(&self.source, bed.remote.address, count, SMALL);
                let many = self.runtime.block_on(many)?;
                let _ = bed.many.set(Rc::clone(&many));
                many
            }
        };
        let work = match way {
            Way::Stream | Way::StreamGet | Way::StreamPut => {
                Work::Pipelined(Box::new(Pipelined::new(many, way)))
            }
            _ => Work::Calls(Box::new(Travelling { many, way, turn: Cell::new(0) })),
        };
        Ok((work, way.in_flight()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> GrpcOptions {
        GrpcOptions {
            version: "test".into(),
            json: true,
            cases: Vec::new(),
            variants: Vec::new(),
            time: Duration::ZERO,
            in_flight: 20,
            objects: 20,
            data: None,
            io: IoMode::Auto,
            plot: None,
            etcd: None,
            program: None,
            soak: None,
        }
    }

    #[test]
    fn every_case_gives_figures_of_every_variant() {
        let folder = tempfile::tempdir().unwrap();
        let (data, plot) = (folder.path().join("data"), folder.path().join("charts"));
        let options = GrpcOptions { data: Some(data.clone()), plot: Some(plot.clone()), ..options() };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for case in CASES {
            for variant in ["memory", "durable"] {
                let start = format!("\"case\":\"{case}\",\"metric\":\"calls_per_s\"");
                let is_row = |line: &&str| line.contains(&start) && line.contains(&format!("\"{variant}\""));
                assert!(text.lines().any(|line| is_row(&line)), "{case} {variant}: {text}");
            }
        }
        for variant in VARIANTS.into_iter().filter(|&variant| variant != "etcd") {
            assert!(text.contains(&format!("\"variant\":\"{variant}\"")), "{variant}: {text}");
        }
        assert!(!data.exists());
        assert!(std::fs::read_to_string(plot.join("grpc-calls.svg")).unwrap().contains("durable"));
    }

    #[test]
    fn a_soak_reads_everything_again() {
        let folder = tempfile::tempdir().unwrap();
        let soak = Some(Duration::ZERO);
        let options = GrpcOptions { data: Some(folder.path().join("data")), soak, ..options() };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("none was lost"), "{text}");
    }
}
