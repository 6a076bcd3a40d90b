//! `bench tail`: the latency of SETs and GETs at a fixed rate, over the Redis protocol, corrected for coordinated omission.
//!
//! An open loop: each operation has an intended send time, which does not depend on the server, and its latency counts from
//! that time. First the objects are set, then the closed-loop maximum is measured, then come runs at shares of it, each beside
//! the device's own writes at the same rate. Any server of the Redis protocol can be measured, so all stores have the same
//! generator.
//!
//! Reading order: [`Arrivals`] (the intended times), `work.rs` (the operations), `generator.rs` (one thread that drives all
//! connections), `record.rs` (latencies, seconds, lateness), `device.rs` (the device alone), `chart.rs`, `echo.rs` (a server for
//! the measurement of the generator itself). Latencies are in [`Histogram`]s: a quantile is at most 0.8 % off, the longest
//! latency is exact.

mod chart;
mod connection;
mod device;
mod echo;
mod generator;
mod measured;
mod messages;
mod options;
mod record;
mod rows;
mod schedule;
#[cfg(test)]
mod tests;
mod work;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use shoal_base::BLOCK_BYTES_U64;

pub use self::measured::Measured;
pub use self::options::{OwnStore, Rates, TailOptions, TailServer};
pub use self::schedule::Arrivals;

use self::chart::millis;
use self::echo::Echo;
use self::generator::{ANSWER_MAX, Clients, Pace};
use self::record::{Figures, Second};
use self::rows::Rows;
use self::schedule::Schedule;
use self::work::{Objects, Work};
use crate::cores::Cores;
use crate::data_file::temporary;
use crate::machine;
use crate::redis::{Bed, BedOptions, Link, StoreLocation, alone};
use crate::settle::settle;

/// Commands in flight over each connection while objects are set.
const FILL_IN_FLIGHT: usize = 32;

/// The measured server.
enum Target {
    Own(Box<Bed>, PathBuf),
    Address(SocketAddr),
    Echo(Echo),
}

impl Target {
    fn start(options: &TailOptions) -> Result<Self> {
        let own = match &options.server {
            TailServer::Own(own) => own,
            TailServer::Address(address) => return Ok(Self::Address(*address)),
            TailServer::Echo => return Ok(Self::Echo(Echo::start(options.value_bytes as usize, None)?)),
        };
        let path = own.data.clone().unwrap_or_else(|| temporary("tail"));
        let place = match (options.filled, own.keep) {
            (true, _) => StoreLocation::Existing(&path, own.io),
            (false, true) => StoreLocation::Kept(&path, own.io),
            (false, false) => StoreLocation::File(Some(&path), own.io),
        };
        let wanted = BedOptions {
            cache_bytes: Some(usize::try_from(own.cache)?),
            memtable_bytes: own.memtable.map(usize::try_from).transpose()?,
            blocks: own.size / BLOCK_BYTES_U64,
            ..BedOptions::default()
        };
        let bed = Bed::with(place, &wanted)?;
        Ok(Self::Own(Box::new(bed), path))
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Own(bed, _) => bed.address,
            Self::Address(address) => *address,
            Self::Echo(echo) => echo.address,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Own(_, path) => format!("in this process, on {}", path.display()),
            Self::Address(address) => address.to_string(),
            Self::Echo(_) => "in this process, stores nothing".into(),
        }
    }

    fn cores(&self) -> Option<Cores> {
        match self {
            Self::Own(bed, _) => bed.cores,
            Self::Address(_) | Self::Echo(_) => None,
        }
    }

    /// The data file of an own store.
    fn data(&self) -> Option<&Path> {
        match self {
            Self::Own(_, path) => Some(path),
            Self::Address(_) | Self::Echo(_) => None,
        }
    }

    /// Waits until an own store has written its memtables, and for `pause`.
    fn rest(&self, pause: Duration) {
        if let Self::Own(bed, _) = self {
            settle(bed.store());
        }
        thread::sleep(pause);
    }
}

/// Measures and prints; returns the figures of each run at a fixed rate.
///
/// # Errors
/// The store, a connection, the device or the output failed, or an answer is wrong.
pub fn run(options: &TailOptions, out: &mut dyn Write) -> Result<Vec<Measured>> {
    // Before this thread is pinned to one core.
    let machine = machine::describe();
    let target = Target::start(options)?;
    let objects = Objects::new(options.objects, options.value_bytes);
    let mut rows = Rows::new(out, options.json);
    let server = target.describe();
    for (name, value) in [
        ("bench", "tail: latencies from intended send times, over the Redis protocol"),
        ("machine", machine.as_str()),
        ("load average", &machine::load()),
        ("version", &options.version),
        ("server", &server),
        ("cores", Cores::describe(target.cores())),
    ] {
        rows.fact(name, value)?;
    }
    for (name, value) in options.facts() {
        rows.fact(name, &value)?;
    }
    let mut bench = Bench { options, target, objects, rows };
    bench.fill()?;
    let closed = bench.closed()?;
    let plans = options.rates.plans(closed);
    let mut measured = Vec::new();
    for (number, (name, rate)) in plans.iter().enumerate() {
        let is_alone = plans.len() == 1;
        bench.device(name, *rate)?;
        measured.push(bench.open(name, *rate, number as u64, is_alone)?);
    }
    bench.rows.fact("load average at the end", &machine::load())?;
    Ok(measured)
}

/// A running benchmark.
struct Bench<'a> {
    options: &'a TailOptions,
    target: Target,
    objects: Objects,
    rows: Rows<'a>,
}

impl Bench<'_> {
    fn clients(&self, in_flight: usize) -> Clients {
        Clients {
            address: self.target.address(),
            connections: self.options.connections,
            in_flight,
            value_bytes: self.objects.value_bytes,
            answer_max: ANSWER_MAX,
        }
    }

    /// Sets all objects, or checks that some of them exist.
    fn fill(&mut self) -> Result<()> {
        if matches!(self.target, Target::Echo(_)) {
            return Ok(());
        }
        if self.options.filled {
            let mut link = Link::connect(self.target.address())?;
            for number in [0, self.objects.count / 2, self.objects.count - 1] {
                let key = self.objects.key(number);
                let bytes = link.call(&alone(&[b"GET", &key]), 1)? as u64;
                ensure!(
                    bytes == self.objects.value_bytes,
                    "{} has {bytes} bytes instead of {}: run once without --filled",
                    String::from_utf8_lossy(&key),
                    self.objects.value_bytes
                );
            }
            return Ok(());
        }
        let (clients, pace) = (self.clients(FILL_IN_FLIGHT), Pace::Count(self.objects.count));
        let (figures, _) = drive(&clients, pace, Work::fill(&self.objects), &mut |_| Ok(()))?;
        let (count, took) = (self.objects.count, figures.took.as_secs_f64());
        self.rows.fact("filled", &format!("{count} objects in {took:.1} s"))?;
        Ok(())
    }

    /// Measures the closed-loop maximum if a share needs it; returns operations a second.
    fn closed(&mut self) -> Result<Option<f64>> {
        if !self.options.rates.needs_closed() {
            return Ok(None);
        }
        self.target.rest(self.options.pause);
        let (clients, pace) = (self.clients(self.options.in_flight), Pace::Closed(self.options.measure));
        let work = Work::random(&self.objects, self.options.get_share, 0);
        let rows = &mut self.rows;
        let (figures, _) = drive(&clients, pace, work, &mut |second| Ok(rows.second("closed", second)?))?;
        self.rows.load("closed", None, &figures)?;
        let count = figures.all().count();
        let rate =
            count as f64 / figures.took.as_secs_f64().max(self.options.measure.as_secs_f64()).max(1e-9);
        ensure!(count > 0 && figures.unanswered == 0, "the server does not answer");
        Ok(Some(rate))
    }

    /// The device alone, at the rate of the run `name`.
    fn device(&mut self, name: &str, rate: f64) -> Result<()> {
        let options = self.options;
        let Some(path) = options.device_file(self.target.data()) else { return Ok(()) };
        self.target.rest(options.pause);
        let schedule = |share| Schedule::new(rate * share, options.device_time, options.arrivals, 7);
        if options.get_share < 1.0 {
            let rate = rate * (1.0 - options.get_share);
            let figures =
                device::writes(&path, options.value_bytes as usize, schedule(1.0 - options.get_share))?;
            self.rows.device(name, "device-write", rate, &figures)?;
        }
        if let Some(data) = self.target.data().filter(|_| options.get_share > 0.0) {
            let blocks = std::fs::metadata(data)?.len() / BLOCK_BYTES_U64;
            let figures =
                device::reads(data, options.value_bytes as usize, blocks, schedule(options.get_share))?;
            self.rows.device(name, "device-read", rate * options.get_share, &figures)?;
        }
        Ok(())
    }

    /// A run at a fixed rate.
    fn open(&mut self, name: &str, rate: f64, number: u64, is_alone: bool) -> Result<Measured> {
        let options = self.options;
        self.target.rest(options.pause);
        let schedule = Schedule::new(rate, options.warm_up + options.time, options.arrivals, number + 1);
        let (clients, pace) = (self.clients(options.in_flight), Pace::Open(schedule, options.warm_up));
        let work = Work::random(&self.objects, options.get_share, number + 1);
        let rows = &mut self.rows;
        let (figures, seconds) = drive(&clients, pace, work, &mut |second| Ok(rows.second(name, second)?))?;
        self.rows.load(name, Some(rate), &figures)?;
        if let Some(path) = &options.plot {
            chart::draw(&chart::path(path, name, is_alone), rate, &figures, &seconds)?;
        }
        Ok(Measured::new(&figures, &seconds))
    }
}

/// Runs a load on a separate thread, and calls `complete` on this one for each second.
fn drive(
    clients: &Clients,
    pace: Pace,
    work: Work<'_>,
    complete: &mut dyn FnMut(&Second) -> Result<()>,
) -> Result<(Figures, Vec<Second>)> {
    let (sender, receiver) = mpsc::channel();
    let (figures, seconds) = thread::scope(|scope| {
        let generator = scope.spawn(move || {
            // If printing failed, nobody receives the seconds; the error is reported below.
            generator::run(clients, pace, work, &mut |second| {
                let _ = sender.send(second);
            })
        });
        let mut seconds = Vec::new();
        let printed = receiver.into_iter().try_for_each(|second: Second| {
            seconds.push(second);
            complete(&second)
        });
        let figures = generator.join().unwrap_or_else(|_| bail!("the generator panicked"));
        printed.and(figures.map(|figures| (figures, seconds)))
    })?;
    Ok((figures, seconds))
}
