//! A small log-linear histogram of latencies: 64 buckets to each power of two, so a quantile is at most 1.6 % off.
//!
//! Counts only grow. It does not measure time itself.

use std::time::Duration;

/// Two to this power is the number of buckets for each power of two.
const FINE_BITS: u32 = 6;

/// Values below this have a bucket each.
const EXACT: u64 = 1 << (FINE_BITS + 1);

/// Latencies in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Grows up to the largest bucket used: a few thousand at most.
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

impl Histogram {
    /// Adds one latency.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let bucket = bucket_of(ns);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.max = self.max.max(latency);
    }

    /// Adds everything in `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// The number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest latency, exactly; 0 if there are none.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The latency that `permille` thousandths of all do not exceed, in microseconds; 0 if there are none.
    #[must_use]
    pub fn quantile_us(&self, permille: u64) -> f64 {
        let rank = (self.count * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_of(bucket) / 1000.0;
            }
        }
        0.0
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < EXACT {
        return ns as usize;
    }
    let shift = ns.ilog2() - FINE_BITS;
    ((u64::from(shift) << FINE_BITS) + (ns >> shift)) as usize
}

/// The middle of a bucket in nanoseconds.
fn middle_of(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket as f64;
    }
    let shift = (bucket >> FINE_BITS) - 1;
    let start = (bucket - (shift << FINE_BITS)) << shift;
    start as f64 + (1_u64 << shift) as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bucket_holds_its_values_within_its_promise(ns in any::<u64>()) {
            let middle = middle_of(bucket_of(ns));
            prop_assert!((middle - ns as f64).abs() <= ns as f64 / 120.0 + 0.5, "{ns}: {middle}");
        }

        #[test]
        fn a_longer_latency_is_in_no_lower_bucket(a in any::<u64>(), b in any::<u64>()) {
            prop_assert!(bucket_of(a.min(b)) <= bucket_of(a.max(b)));
        }

        #[test]
        fn quantiles_match_sorted_list(mut list in prop::collection::vec(1_u64..1 << 40, 1..300), permille in 1_u64..=1000) {
            let mut halves = [Histogram::default(), Histogram::default()];
            for (index, &ns) in list.iter().enumerate() {
                halves[index % 2].record(Duration::from_nanos(ns));
            }
            let [mut all, other] = halves;
            all.merge(&other);
            list.sort_unstable();
            prop_assert_eq!(all.count(), list.len() as u64);
            prop_assert_eq!(Some(all.max()), list.last().map(|&ns| Duration::from_nanos(ns)));
            let exact = list[(list.len() * permille as usize).div_ceil(1000) - 1] as f64 / 1000.0;
            prop_assert!((all.quantile_us(permille) - exact).abs() <= exact / 60.0 + 0.001);
        }
    }

    #[test]
    fn an_empty_one_has_quantile_zero() {
        assert_eq!(Histogram::default().quantile_us(500), 0.0);
    }
}
