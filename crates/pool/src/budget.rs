//! The budget of device time for background work: reads ahead that applies and compactions keep in flight.
//!
//! A device is fast with many requests, so background work would like to ask for hundreds of pages at a time. A commit or a get that
//! arrives meanwhile queues after all of them in the device: a tenth of a second and more. While foreground requests run, background work
//! therefore keeps at most [`depth`](IoBudget::depth) reads in flight. The depth follows the times of commits, as a congestion window
//! follows the losses of packets (additive increase, multiplicative decrease): a commit beside background work that takes more than twice
//! the median of those without halves it, and a faster one raises it by one. When no foreground request came for
//! [`IDLE_NS`], there is no limit.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::latency::moment;

/// Without a foreground request for this long, background work has the device for itself.
const IDLE_NS: u64 = 50_000_000;

/// The largest depth beside foreground requests, and the first one.
const DEPTH_MAX: usize = 64;
const DEPTH_START: usize = 8;

/// The median moves by this fraction towards each sample.
const MEDIAN_STEP: u64 = 16;

/// The budget of one device.
pub struct IoBudget {
    started: Instant,
    depth: AtomicUsize,
    /// Background work under way.
    working: AtomicUsize,
    /// The estimated median time of a commit without background work beside it, in nanoseconds; 0: unknown.
    quiet_ns: AtomicU64,
    /// The end of the last foreground request, in nanoseconds since `started`; 0: there was none.
    foreground_ns: AtomicU64,
}

/// Background work under way, until this is dropped.
pub struct Working<'a>(&'a IoBudget);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let before = self.0.working.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "background work ends once");
    }
}

impl IoBudget {
    pub(crate) fn new() -> Self {
        Self {
            started: moment(),
            depth: AtomicUsize::new(DEPTH_START),
            working: AtomicUsize::new(0),
            quiet_ns: AtomicU64::new(0),
            foreground_ns: AtomicU64::new(0),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Notes that background work starts.
    pub fn work(&self) -> Working<'_> {
        self.working.fetch_add(1, Ordering::Relaxed);
        Working(self)
    }

    /// Notes a foreground read.
    pub fn note_read(&self) {
        self.note_foreground(self.now_ns());
    }

    /// Notes a commit that took `took_ns` nanoseconds, from its write to the end of its flush.
    pub fn note_commit(&self, took_ns: u64) {
        self.note_commit_at(self.now_ns(), took_ns);
    }

    /// Requests that background work may keep in flight now; at least 1. No limit without foreground requests.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth_at(self.now_ns())
    }

    fn note_foreground(&self, now_ns: u64) {
        self.foreground_ns.store(now_ns.max(1), Ordering::Relaxed);
    }

    fn note_commit_at(&self, now_ns: u64, took_ns: u64) {
        self.note_foreground(now_ns);
        let quiet_ns = self.quiet_ns.load(Ordering::Relaxed);
        if self.working.load(Ordering::Relaxed) == 0 {
            self.quiet_ns.store(median_after(quiet_ns, took_ns), Ordering::Relaxed);
        } else if quiet_ns > 0 {
            let depth = self.depth.load(Ordering::Relaxed);
            let next = if took_ns > 2 * quiet_ns { (depth / 2).max(1) } else { (depth + 1).min(DEPTH_MAX) };
            self.depth.store(next, Ordering::Relaxed);
        }
    }

    fn depth_at(&self, now_ns: u64) -> usize {
        let foreground_ns = self.foreground_ns.load(Ordering::Relaxed);
        if foreground_ns == 0 || now_ns.saturating_sub(foreground_ns) > IDLE_NS {
            return usize::MAX;
        }
        self.depth.load(Ordering::Relaxed)
    }
}

/// A running estimate of a median: it moves a fixed fraction towards each sample, so a few slow commits do not change it.
fn median_after(median: u64, sample: u64) -> u64 {
    let step = (median / MEDIAN_STEP).max(1);
    match median {
        0 => sample.max(1),
        _ if sample > median => median + step,
        _ => (median - step).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn slow_commits_beside_work_halve_the_depth_and_fast_ones_raise_it() {
        let budget = IoBudget::new();
        assert_eq!(budget.depth_at(5 * MS), usize::MAX, "there is no foreground yet");
        for at in 1..=100 {
            budget.note_commit_at(at * MS, MS / 2);
        }
        // A few slow commits do not move the median far.
        (0..3).for_each(|_| budget.note_commit_at(100 * MS, 80 * MS));
        assert_eq!(budget.depth_at(101 * MS), DEPTH_START);
        let working = budget.work();
        budget.note_commit_at(102 * MS, 2 * MS);
        assert_eq!(budget.depth_at(102 * MS), DEPTH_START / 2);
        (0..10).for_each(|_| budget.note_commit_at(103 * MS, 2 * MS));
        assert_eq!(budget.depth_at(103 * MS), 1, "work always goes on");
        (0..5).for_each(|_| budget.note_commit_at(104 * MS, MS / 2));
        assert_eq!(budget.depth_at(104 * MS), 6);
        (0..1_000).for_each(|_| budget.note_commit_at(105 * MS, MS / 2));
        assert_eq!(budget.depth_at(105 * MS), DEPTH_MAX);
        drop(working);
        budget.note_commit_at(106 * MS, 20 * MS);
        assert_eq!(
            budget.depth_at(106 * MS),
            DEPTH_MAX,
            "no work is under way: a slow commit is not its fault"
        );
    }

    #[test]
    fn without_foreground_requests_there_is_no_limit() {
        let budget = IoBudget::new();
        budget.note_foreground(0);
        assert_eq!(budget.depth_at(IDLE_NS), DEPTH_START);
        assert_eq!(budget.depth_at(IDLE_NS + 2), usize::MAX);
        budget.note_foreground(IDLE_NS + 3);
        assert_eq!(budget.depth_at(IDLE_NS + 3), DEPTH_START);
    }

    #[test]
    fn the_median_ignores_rare_outliers() {
        let mut median = 0;
        for sample in 0..1_000 {
            median = median_after(median, if sample % 10 == 0 { 1_000 * MS } else { MS });
        }
        assert!((MS / 2..2 * MS).contains(&median), "{median}");
    }
}
