//! One starter that keeps so many calls in flight for some time, as the seed's client does; what it counts.

use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::process::Remote;
use crate::enough::Enough;
use crate::histogram::Histogram;
use crate::machine;

/// How a call ended. Anything else ends the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    NotFound,
    AlreadyExists,
}

/// A call that ended.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    /// Operations that it carried.
    pub(super) operations: u64,
    /// What the seed's server would pretend to do for it.
    pub(super) work: Duration,
}

/// A call under way.
pub(super) type Call = Pin<Box<dyn Future<Output = Result<Ended>>>>;

/// What makes calls.
pub(super) trait Load {
    /// The next call; it is sent when it is polled first.
    fn next(&self) -> Call;
}

/// What was measured, of one round or of several.
#[derive(Clone, Default)]
pub(super) struct Tally {
    pub(super) operations: u64,
    pub(super) done: u64,
    pub(super) not_found: u64,
    pub(super) already_exists: u64,
    pub(super) took: Duration,
    pub(super) work: Duration,
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

    pub(super) fn per_s(&self) -> f64 {
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

/// Keeps `in_flight` calls of `load` to `server` in flight for `time`, and until there are enough, and waits for the last ones, which do not count.
///
/// # Errors
/// That of the first call that failed, or gave something wrong.
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
