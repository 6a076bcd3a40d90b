//! The machinery of `bench grpc`: servers with their objects, the loads on them, turns and rows. The study of key-value
//! services runs further servers through it.

use std::cell::{Cell, OnceCell};
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use super::calls::Calls;
use super::keys::Source;
use super::load::{Load, Tally, drive};
use super::many::{Many, Pattern, Travelling};
use super::pipelined::Pipelined;
use super::process::Remote;
use super::seed::{Mix, Objects};
use super::serve::{DURABLE, ServeOptions};
use super::{GrpcOptions, LARGE, METRICS, SEED, SMALL, SMALL_OBJECTS};
use crate::cores::Cores;
use crate::data_file::temporary;
use crate::machine;
use crate::report::{Metric, Report};

/// Number of turns of each server in a case.
const ROUNDS: u32 = 4;

/// Time limit for closing a connection.
const CLOSE_PAUSE: Duration = Duration::from_millis(100);

/// Variants of `multi-100b` on Shoal's server, besides the stream with gets and puts in turn.
const PATTERNS: [(&str, Pattern); 5] = [
    ("stream-get", Pattern::StreamGet),
    ("stream-put", Pattern::StreamPut),
    ("stream-futures", Pattern::StreamFutures),
    ("multi-get", Pattern::MultiGet),
    ("multi-put", Pattern::MultiPut),
];

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its case.
    pub case: &'static str,
    /// Its variant.
    pub variant: &'static str,
    /// Calls or operations a second.
    pub calls_per_s: f64,
    /// Processor time of the server for each of them.
    pub cpu_us: f64,
}

/// A run.
pub struct Bench<'a> {
    report: Report<'a>,
    /// True if columns that compare servers are printed.
    compares: bool,
    options: &'a GrpcOptions,
    variants: Vec<&'static str>,
    cores: Option<Cores>,
    /// The runtime of the clients: the thread that runs the benchmark.
    runtime: Runtime,
    source: Rc<Source>,
    rows: Vec<Row>,
}

/// A server, and the objects that cases have put into it.
pub struct Bed {
    remote: Remote,
    calls: Calls,
    crud: Objects,
    large: OnceCell<Objects>,
    small: OnceCell<Objects>,
    many: OnceCell<Rc<Many>>,
}

/// One of the servers that take turns.
pub struct Contender<'a> {
    /// Its name.
    pub variant: &'static str,
    /// Its server.
    pub bed: &'a Bed,
    /// The work for the server.
    pub work: Work,
}

/// The work for a server.
pub enum Work {
    /// Calls of a load, with this number in flight.
    Calls(Box<dyn Load>, usize),
    /// Operations over the stream, with this number in flight.
    Pipelined(Box<Pipelined>, usize),
}

impl Bed {
    /// The connection to the server.
    #[must_use]
    pub fn calls(&self) -> &Calls {
        &self.calls
    }
}

impl<'a> Bench<'a> {
    /// A run of the selected `variants`; `compares` adds the columns that compare servers. Takes this thread for the clients:
    /// it stays on one core if there are two.
    ///
    /// # Errors
    /// Those of the system or the output.
    pub fn new(
        out: &'a mut dyn Write,
        what: &str,
        options: &'a GrpcOptions,
        variants: Vec<&'static str>,
        compares: bool,
    ) -> Result<Self> {
        // Before this thread is pinned to one core.
        let machine = machine::describe();
        let cores = options.servers.are_processes().then(Cores::take).flatten();
        let metrics: &'static [Metric] = if compares { &METRICS } else { &METRICS[..METRICS.len() - 2] };
        let mut bench = Self {
            report: Report::new(out, "grpc", metrics, options.json),
            compares,
            options,
            variants,
            cores,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            source: Rc::new(Source::new(SEED)),
            rows: Vec::new(),
        };
        bench.header(what, &machine)?;
        Ok(bench)
    }

    /// Prints the facts that are known only at the end, and returns all rows.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end(mut self) -> Result<(Report<'a>, Vec<Row>)> {
        self.report.fact("load average at the end", &machine::load())?;
        Ok((self.report, self.rows))
    }

    fn header(&mut self, what: &str, machine: &str) -> Result<()> {
        let options = self.options;
        let data =
            options.data.as_ref().map_or("a file in this folder".into(), |path| path.display().to_string());
        for (name, value) in [
            ("bench", what),
            ("machine", machine),
            ("load average", &machine::load()),
            ("version", &options.version),
            ("seed", &SEED.to_string()),
            ("cores", Cores::describe(self.cores)),
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

    /// Returns true if a variant was selected.
    #[must_use]
    pub fn wants(&self, variant: &str) -> bool {
        self.variants.contains(&variant)
    }

    /// Source of keys and values.
    #[must_use]
    pub fn source(&self) -> &Rc<Source> {
        &self.source
    }

    /// The cores of clients and servers.
    #[must_use]
    pub fn cores(&self) -> Option<Cores> {
        self.cores
    }

    /// The data file of a durable server.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.options.data.clone().unwrap_or_else(|| temporary("grpc"))
    }

    /// Starts a server and connects to it.
    ///
    /// # Errors
    /// It does not start, or cannot be reached.
    pub fn start(&self, variant: &str) -> Result<Bed> {
        let data = (variant == DURABLE).then(|| self.data());
        let serve = ServeOptions { variant: variant.into(), data, io: self.options.io };
        self.connect(Remote::start(&serve, &self.options.servers, self.cores)?)
    }

    /// Connects to a running server.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn connect(&self, remote: Remote) -> Result<Bed> {
        let calls = self.runtime.block_on(Calls::connect(remote.address))?;
        let crud = Objects::new(&self.source, calls.clone(), None);
        Ok(Bed { remote, calls, crud, large: OnceCell::new(), small: OnceCell::new(), many: OnceCell::new() })
    }

    /// Stops a server, after the connections to it.
    ///
    /// # Errors
    /// It had failed, or did not stop in time.
    pub fn stop(&self, bed: Bed) -> Result<()> {
        let Bed { remote, calls, crud, large, small, many } = bed;
        drop((calls, crud, large, small, many));
        // Connections are closed by tasks of this runtime.
        self.runtime.block_on(async { tokio::time::sleep(CLOSE_PAUSE).await });
        remote.stop().context("a server did not end in order")
    }

    /// Shoal's server in a case: with the calls of the key-value service, or with every selected pattern of operations.
    ///
    /// # Errors
    /// The objects of the case cannot be put.
    pub fn of_shoal<'b>(&self, bed: &'b Bed, case: &str) -> Result<Vec<Contender<'b>>> {
        let mut contenders = Vec::new();
        if self.wants(DURABLE) {
            let work = if case == "multi-100b" {
                self.many(bed, Pattern::Stream)?
            } else {
                self.seed_load(bed, case)?
            };
            contenders.push(Contender { variant: DURABLE, bed, work });
        }
        for (variant, pattern) in PATTERNS {
            if case == "multi-100b" && self.wants(variant) {
                contenders.push(Contender { variant, bed, work: self.many(bed, pattern)? });
            }
        }
        Ok(contenders)
    }

    /// Returns true if a variant of Shoal's server was selected for one of `cases`.
    #[must_use]
    pub fn wants_shoal(&self, cases: &[&str]) -> bool {
        let wants_pattern = PATTERNS.iter().any(|(variant, _)| self.wants(variant));
        self.wants(DURABLE) || (cases.contains(&"multi-100b") && wants_pattern)
    }

    /// Measures all in short rounds, one after the other, so that changes on the machine affect all of them.
    ///
    /// # Errors
    /// A call failed or returned something wrong; the output.
    pub fn take_turns(&mut self, case: &'static str, contenders: &[Contender<'_>]) -> Result<()> {
        let mut tallies = vec![Tally::default(); contenders.len()];
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let mut rates = Vec::new();
            for (contender, sum) in contenders.iter().zip(&mut tallies) {
                let tally = self.measure(contender.bed, &contender.work, self.options.time / ROUNDS)?;
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

    /// The series' load on the durable server, and then every object read again.
    pub(super) fn soak(&mut self, time: Duration, parts: u32) -> Result<()> {
        let bed = self.start(DURABLE)?;
        let work = self.seed_load(&bed, "crud-64k")?;
        let mut sum = Tally::default();
        for _ in 0..parts {
            let tally = self.measure(&bed, &work, time / parts)?;
            self.row("soak", DURABLE, &tally, None, None)?;
            sum.add(&tally);
        }
        let left = self.runtime.block_on(bed.crud.check_all())?;
        self.row("soak-all", DURABLE, &sum, None, None)?;
        let text =
            format!("every value was compared; {left} objects were read again at the end, none was lost");
        self.report.fact("soak", &text)?;
        // It holds the connection, and the server would wait for its end.
        drop(work);
        self.stop(bed)
    }

    /// Runs `work` on a server for `time`.
    ///
    /// # Errors
    /// A call failed or returned something wrong.
    pub fn measure(&self, bed: &Bed, work: &Work, time: Duration) -> Result<Tally> {
        self.runtime.block_on(async {
            match work {
                Work::Calls(load, in_flight) => drive(load.as_ref(), &bed.remote, *in_flight, time).await,
                Work::Pipelined(work, in_flight) => work.drive(&bed.remote, *in_flight, time).await,
            }
        })
    }

    /// Prints a row.
    ///
    /// # Errors
    /// Those of the output.
    pub fn row(
        &mut self,
        case: &'static str,
        variant: &'static str,
        tally: &Tally,
        x_memory: Option<f64>,
        of_ceiling: Option<f64>,
    ) -> Result<()> {
        let each = |time: Duration| Some(time.as_secs_f64() * 1e6 / (tally.operations.max(1)) as f64);
        let figures = [
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
        ];
        let count = if self.compares { figures.len() } else { figures.len() - 2 };
        self.report.row(case, variant, &figures[..count])?;
        let cpu_us = each(tally.server_cpu).unwrap_or_default();
        self.rows.push(Row { case, variant, calls_per_s: tally.per_s(), cpu_us });
        Ok(())
    }

    /// The calls of a case over the key-value service.
    ///
    /// # Errors
    /// The objects of the case cannot be put.
    pub fn seed_load(&self, bed: &Bed, case: &str) -> Result<Work> {
        let mix = match case {
            "crud-64k" => Mix::Crud,
            "read-64k" | "read-100b" => Mix::Read,
            "write-64k" | "write-100b" => Mix::Write,
            _ => Mix::ReadWrite,
        };
        let (objects, count) = match case {
            "crud-64k" => {
                return Ok(Work::Calls(Box::new(bed.crud.calling(mix)), self.options.in_flight));
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
        Ok(Work::Calls(Box::new(objects.calling(mix)), self.options.in_flight))
    }

    /// The operations of a pattern over Shoal's own interface.
    fn many(&self, bed: &Bed, pattern: Pattern) -> Result<Work> {
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
        let in_flight = pattern.in_flight();
        Ok(match pattern {
            Pattern::Stream | Pattern::StreamGet | Pattern::StreamPut => {
                Work::Pipelined(Box::new(Pipelined::new(many, pattern)), in_flight)
            }
            _ => Work::Calls(Box::new(Travelling { many, pattern, turn: Cell::new(0) }), in_flight),
        })
    }
}
