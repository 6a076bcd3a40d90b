//! Histograms of durations: ten buckets a decade from a microsecond to ten seconds.
//!
//! Many threads count in a [`AtomicHistogram`]; [`Durations`] is its content at one moment, which can be added to others and
//! has quantiles. A quantile is the upper bound of a bucket, so it is less than a third too large.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds in a decade, in hundredths of its start: powers of the tenth root of ten, as exact decimals.
const STEPS: [u64; 10] = [100, 125, 160, 200, 250, 315, 400, 500, 630, 800];
/// Decades from a microsecond on.
const DECADES: usize = 7;
/// Bounds of buckets.
const BOUNDS: usize = STEPS.len() * DECADES + 1;
/// Buckets: one below each bound, and one for longer durations.
pub const BUCKETS: usize = BOUNDS + 1;

/// The upper bounds of the buckets but the last, in nanoseconds; a bound belongs to its bucket.
pub const BOUNDS_NS: [u64; BOUNDS] = bounds();
/// The first bucket for each number of leading zeros of a duration.
const FIRST: [u8; 65] = first();

const fn bounds() -> [u64; BOUNDS] {
    let (mut bounds, mut at, mut decade_ns) = ([0; BOUNDS], 0, 1_000);
    while at < BOUNDS {
        bounds[at] = STEPS[at % STEPS.len()] * (decade_ns / 100);
        at += 1;
        if at.is_multiple_of(STEPS.len()) {
            decade_ns *= 10;
        }
    }
    bounds
}

const fn first() -> [u8; 65] {
    let (mut table, mut zeros) = ([0; 65], 0);
    while zeros < 64 {
        let (least_ns, mut at) = (1_u64 << (63 - zeros), 0);
        while at < BOUNDS && BOUNDS_NS[at] < least_ns {
            at += 1;
        }
        table[zeros] = at as u8;
        zeros += 1;
    }
    table
}

/// The bucket of a duration.
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    let mut at = usize::from(FIRST[ns.leading_zeros() as usize]);
    while BOUNDS_NS.get(at).is_some_and(|&bound_ns| bound_ns < ns) {
        at += 1;
    }
    at
}

/// Durations that threads count in.
#[derive(Debug)]
pub struct AtomicHistogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_ns: AtomicU64::new(0) }
    }
}

impl AtomicHistogram {
    /// Counts `times` durations of `ns` each.
    pub fn add(&self, ns: u64, times: u64) {
        // Relaxed: no decision depends on these counts.
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            bucket.fetch_add(times, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(ns.saturating_mul(times), Ordering::Relaxed);
    }

    /// Adds the counts to `durations`.
    pub fn read(&self, durations: &mut Durations) {
        for (sum, bucket) in durations.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        durations.sum_ns = durations.sum_ns.wrapping_add(self.sum_ns.load(Ordering::Relaxed));
    }
}

/// The content of a histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durations {
    /// The number of durations in each bucket.
    pub buckets: [u64; BUCKETS],
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Durations {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Durations {
    /// Durations with these counts; buckets that are missing are empty, and further ones are ignored.
    #[must_use]
    pub fn of(buckets: &[u64], sum_ns: u64) -> Self {
        let mut durations = Self { sum_ns, ..Self::default() };
        for (bucket, &count) in durations.buckets.iter_mut().zip(buckets) {
            *bucket = count;
        }
        durations
    }

    /// The number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// Adds others.
    pub fn merge(&mut self, others: &Self) {
        for (bucket, &count) in self.buckets.iter_mut().zip(&others.buckets) {
            *bucket = bucket.saturating_add(count);
        }
        self.sum_ns = self.sum_ns.wrapping_add(others.sum_ns);
    }

    /// The durations since `before`, which was read earlier from the same histogram.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut durations = self.clone();
        for (bucket, &count) in durations.buckets.iter_mut().zip(&before.buckets) {
            *bucket = bucket.saturating_sub(count);
        }
        durations.sum_ns = durations.sum_ns.wrapping_sub(before.sum_ns);
        durations
    }

    /// The duration, in nanoseconds, that `permille` thousandths of all durations do not exceed; none if there are none.
    /// A duration above the last bound counts as that bound.
    #[must_use]
    pub fn quantile_ns(&self, permille: u64) -> Option<u64> {
        let wanted = (u128::from(self.count()) * u128::from(permille)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (at, &count) in self.buckets.iter().enumerate() {
            seen += u128::from(count);
            if seen >= wanted {
                return BOUNDS_NS.get(at).or(BOUNDS_NS.last()).copied();
            }
        }
        None
    }

    /// The mean in nanoseconds; none without durations.
    #[must_use]
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_decimals_from_a_microsecond_to_ten_seconds() {
        assert_eq!(BOUNDS_NS[..4], [1_000, 1_250, 1_600, 2_000]);
        assert_eq!(BOUNDS_NS.last(), Some(&10_000_000_000));
        assert!(BOUNDS_NS.is_sorted_by(|one, next| one < next && next * 100 <= one * 130));
    }

    #[test]
    fn duration_goes_to_first_fitting_bucket() {
        let mut samples: Vec<u64> =
            BOUNDS_NS.iter().flat_map(|&bound| [bound - 1, bound, bound + 1]).collect();
        samples.extend([0, 1, 999, u64::MAX, 1 << 40]);
        samples.extend((0..64).map(|bit| 1 << bit));
        for ns in samples {
            let expected = BOUNDS_NS.iter().position(|&bound| ns <= bound).unwrap_or(BOUNDS_NS.len());
            assert_eq!(bucket_of(ns), expected, "{ns}");
        }
    }

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let histogram = AtomicHistogram::default();
        histogram.add(900, 50);
        histogram.add(1_000_000, 49);
        histogram.add(60_000_000_000, 1);
        let mut durations = Durations::default();
        assert_eq!((durations.quantile_ns(500), durations.mean_ns()), (None, None));
        histogram.read(&mut durations);
        assert_eq!(durations.count(), 100);
        let quantiles = [500, 501, 990, 1000].map(|permille| durations.quantile_ns(permille));
        assert_eq!(quantiles, [Some(1_000), Some(1_000_000), Some(1_000_000), Some(10_000_000_000)]);
        let before = durations.clone();
        histogram.add(2_000, 3);
        let mut now = Durations::default();
        histogram.read(&mut now);
        let fresh = now.since(&before);
        assert_eq!((fresh.count(), fresh.sum_ns, fresh.quantile_ns(500)), (3, 6_000, Some(2_000)));
        assert_eq!(Durations::of(&now.buckets, now.sum_ns), now);
    }
}
