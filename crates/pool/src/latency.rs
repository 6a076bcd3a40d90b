//! The time that the device takes for a read. It decides which thread does the work: on a fast device the thread that
//! needs something does it itself, on a slow one the work is started early and left to the device.
//!
//! The estimate moves by a fixed factor towards each sample, so it follows the median: a thread that loses its core in
//! the middle of a read does not make the device slow.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The time, for all measurements of the device.
pub(crate) fn moment() -> Instant {
    Instant::now()
}

/// One of this many reads of a thread is timed: a look at the clock costs the time of a hit.
const SAMPLED: u32 = 32;

/// A device with this latency or more is slow. A hand-off to another thread costs 10 to 20 us, a read of an NVMe device
/// 50 to 100 us.
const SLOW_NS: u64 = 60_000;

/// The first estimate: fast, so that no work is started early before the latency is known.
const START_NS: u64 = 20_000;

const NS_MIN: u64 = 500;
const NS_MAX: u64 = 1 << 40;

pub(crate) struct Latency {
    estimate_ns: AtomicU64,
}

thread_local! {
    /// Reads that this thread started, of all pools.
    static READS: Cell<u32> = const { Cell::new(0) };
}

impl Latency {
    pub(crate) fn new() -> Self {
        Self { estimate_ns: AtomicU64::new(START_NS) }
    }

    /// Notes the start of a read; returns the time if it is sampled.
    pub(crate) fn began(&self) -> Option<Instant> {
        // An exiting thread does not sample.
        let reads = READS.try_with(|reads| reads.replace(reads.get().wrapping_add(1))).unwrap_or(1);
        reads.is_multiple_of(SAMPLED).then(moment)
    }

    /// Notes the end of the read.
    pub(crate) fn ended(&self, began: Option<Instant>) {
        if let Some(began) = began {
            self.sample(began.elapsed().as_nanos() as u64);
        }
    }

    fn sample(&self, ns: u64) {
        let estimate = self.estimate_ns.load(Ordering::Relaxed);
        let next = if ns > estimate { estimate + estimate / 4 } else { estimate - estimate / 5 };
        let next = next.clamp(NS_MIN, NS_MAX);
        // All threads read it at each access.
        if next != estimate {
            self.estimate_ns.store(next, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.estimate_ns.load(Ordering::Relaxed) >= SLOW_NS
    }

    pub(crate) fn us(&self) -> u64 {
        self.estimate_ns.load(Ordering::Relaxed) / 1000
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn follows_the_median_and_no_outlier() {
        let latency = Latency::new();
        (0..100).for_each(|n| latency.sample(if n % 20 == 0 { 8_000_000 } else { 1_000 }));
        assert!(!latency.is_slow() && latency.us() < 3, "{}", latency.us());
        (0..60).for_each(|_| latency.sample(1_000_000));
        assert!(latency.is_slow() && (500..2_000).contains(&latency.us()), "{}", latency.us());
    }
}
