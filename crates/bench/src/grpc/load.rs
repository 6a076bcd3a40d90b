//! One task that keeps a number of calls in flight for some time, as the client of the series does, and its counts.

use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::process::Remote;
use crate::enough::Enough;
use crate::histogram::Histogram;
use crate::machine;

/// The outcome of a call. Any other outcome aborts the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As requested.
    Done,
    /// There is no such key.
    NotFound,
    /// The key exists already.
    AlreadyExists,
}

/// A completed call.
pub struct Ended {
    /// Its outcome.
    pub outcome: Outcome,
    /// Operations that it carried.
    pub operations: u64,
    /// The work that a server of the series would pretend to do for it.
    pub work: Duration,
}

/// A call in flight.
pub type Call = Pin<Box<dyn Future<Output = Result<Ended>>>>;

/// A source of calls.
pub trait Load {
    /// The next call; it is sent at its first poll.
    fn next(&self) -> Call;
}

/// The measurements of one round or of several.
#[derive(Clone, Default)]
pub struct Tally {
    /// Completed operations.
    pub operations: u64,
    pub(super) done: u64,
    pub(super) not_found: u64,
    pub(super) already_exists: u64,
    pub(super) took: Duration,
    /// The work that a server of the series would have pretended to do for them, in all.
    pub work: Duration,
    pub(super) latencies: Histogram,
    pub(super) server_cpu: Duration,
    pub(super) client_cpu: Duration,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.done += other.done;
        self.not_found += other.not_found;
        self.already_exists += other.already_exists;
        self.took += other.took;
        self.work += other.work;
        self.latencies.merge(&other.latencies);
        self.server_cpu += other.server_cpu;
        self.client_cpu += other.client_cpu;
    }

    /// Operations a second.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        self.operations as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    pub(super) fn count(&mut self, ended: &Ended) {
        self.operations += ended.operations;
        self.work += ended.work;
        *match ended.outcome {
            Outcome::Done => &mut self.done,
            Outcome::NotFound => &mut self.not_found,
            Outcome::AlreadyExists => &mut self.already_exists,
        } += ended.operations;
    }
}

/// Keeps `in_flight` calls of `load` to `server` in flight for `time`, and until there are enough, and waits for the last ones,
/// which do not count.
///
/// # Errors
/// That of the first call that failed, or returned something wrong.
pub(super) async fn drive(
    load: &dyn Load,
    server: &Remote,
    in_flight: usize,
    time: Duration,
) -> Result<Tally> {
    let mut calls = FuturesUnordered::new();
    let mut tally = Tally::default();
    let start = |load: &dyn Load| {
        let call = load.next();
        let sent = Instant::now();
        async move { (sent, call.await) }
    };
    let cpu = (server.cpu_time(), machine::cpu_time());
    let enough = Enough::after(time);
    (0..in_flight).for_each(|_| calls.push(start(load)));
    while let Some((sent, ended)) = calls.next().await {
        tally.count(&ended?);
        tally.latencies.record(sent.elapsed());
        if enough.is_reached(tally.latencies.count()) {
            break;
        }
        calls.push(start(load));
    }
    tally.took = enough.elapsed();
    tally.server_cpu = server.cpu_time().saturating_sub(cpu.0);
    tally.client_cpu = machine::cpu_time().saturating_sub(cpu.1);
    while let Some((_, ended)) = calls.next().await {
        ended?;
    }
    Ok(tally)
}
