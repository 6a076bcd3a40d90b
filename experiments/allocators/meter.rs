//! Nanoseconds an operation: the mean as processor time of the thread, the distribution as wall-clock time of samples.
//!
//! The processor's clock is read around many operations. The wall clock is read around every 64th, and its own time is
//! subtracted. The machine's work on a thread meanwhile (interrupts, cold caches) is in both.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use shoal_bench::histogram::Histogram;

/// One operation in this many is timed alone.
const SAMPLE_EVERY: usize = 64;

/// Times of one kind of operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    pub(crate) operations: u64,
    cpu_ns: u64,
    samples: Histogram,
    max: Duration,
}

impl Meter {
    /// Runs `work` for each item.
    pub(crate) fn each<T>(&mut self, items: &[T], mut work: impl FnMut(&T)) {
        self.each_while(items, |item| {
            work(item);
            true
        });
    }

    /// Runs `work` for each item up to the first for which it returns false, which counts, too.
    pub(crate) fn each_while<T>(&mut self, items: &[T], mut work: impl FnMut(&T) -> bool) {
        let began = thread_cpu_ns();
        let mut done = 0;
        for item in items {
            let goes_on = if done % SAMPLE_EVERY == 0 {
                let began = Instant::now();
                let goes_on = work(item);
                let took = began.elapsed().saturating_sub(clock_cost());
                self.samples.record(took);
                self.max = self.max.max(took);
                goes_on
            } else {
                work(item)
            };
            done += 1;
            if !goes_on {
                break;
            }
        }
        self.cpu_ns += thread_cpu_ns() - began;
        self.operations += done as u64;
    }

    /// Runs `work`, which is `operations` operations at once.
    pub(crate) fn batch(&mut self, operations: usize, work: impl FnOnce()) {
        let began = thread_cpu_ns();
        work();
        self.cpu_ns += thread_cpu_ns() - began;
        self.operations += operations as u64;
    }

    /// Operations, and their processor time in nanoseconds.
    pub(crate) fn total(&self) -> (u64, u64) {
        (self.operations, self.cpu_ns)
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.operations += other.operations;
        self.cpu_ns += other.cpu_ns;
        self.samples.merge(&other.samples);
        self.max = self.max.max(other.max);
    }

    /// Processor time an operation.
    pub(crate) fn mean_ns(&self) -> Option<f64> {
        (self.operations > 0).then(|| self.cpu_ns as f64 / self.operations as f64)
    }

    /// Operations in a second of processor time.
    pub(crate) fn per_s(&self) -> Option<f64> {
        self.mean_ns().map(|ns| 1e9 / ns.max(0.001))
    }

    /// The value that `permille` thousandths of the samples do not exceed.
    pub(crate) fn quantile_ns(&self, permille: u64) -> Option<f64> {
        (self.samples.count() > 0).then(|| self.samples.quantile_us(permille) * 1000.0)
    }

    pub(crate) fn max_ns(&self) -> Option<f64> {
        (self.samples.count() > 0).then_some(self.max.as_nanos() as f64)
    }
}

/// The least time between two readings of the wall clock.
fn clock_cost() -> Duration {
    static COST: OnceLock<Duration> = OnceLock::new();
    *COST.get_or_init(|| (0..1000).map(|_| Instant::now().elapsed()).min().unwrap_or_default())
}

/// Processor time of this thread.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_for_each_operation() {
        let mut meter = Meter::default();
        assert_eq!((meter.mean_ns(), meter.quantile_ns(500)), (None, None));
        let spin = |turns: u64| assert!((0..turns).map(std::hint::black_box).sum::<u64>() > 0);
        meter.each(&[20_000; 200], |&turns| spin(turns));
        meter.batch(50, || spin(50 * 20_000));
        let mean = meter.mean_ns().unwrap();
        assert_eq!(meter.operations, 250);
        assert!(mean > 1000.0 && meter.quantile_ns(500).unwrap() > 1000.0, "{meter:?}");
        assert!(meter.max_ns() >= meter.quantile_ns(500).map(|ns| ns * 0.98));
    }
}
