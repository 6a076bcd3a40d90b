//! Putting a load into a growing store, and the time for it, from mark to mark. Any store can be the target.

use std::time::{Duration, Instant};

use anyhow::Result;
use shoal_base::SeededEntropy;

use super::load::{Batch, Load, Put, SEED};
use crate::histogram::Histogram;

/// As many puts as a tenth of the objects overwrite random ones, then as many as a half: long enough for compactions. Rows and shares.
pub const OVERWRITTEN_SHARES: [(&str, u64); 2] = [("overwrite-10th", 10), ("overwrite-half", 2)];

/// A store that takes a load.
pub trait Target {
    /// Stores a batch; it is durable when this returns.
    ///
    /// # Errors
    /// The store failed.
    fn put(&mut self, batch: &Batch) -> Result<()>;
}

/// The puts since the last mark.
#[derive(Clone, Debug, Default)]
pub struct Interval {
    /// Puts.
    pub puts: u64,
    /// Their time, including the making of keys.
    pub time: Duration,
    /// The times of the batches.
    pub batches: Histogram,
    /// The longest time between the completions of two batches.
    pub longest_gap: Duration,
    /// Seconds of the run's clock in which no batch completed.
    pub seconds_without_commit: u64,
}

impl Interval {
    /// Puts a second.
    #[must_use]
    pub fn puts_per_s(&self) -> f64 {
        self.puts as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// The numbers of puts at which figures are taken: tenths and hundredths of all, 19 in all, each a whole number of batches.
#[must_use]
pub fn marks(puts: u64, batch: u64) -> Vec<u64> {
    let batch = batch.max(1);
    let hundredths = (1..=10).chain((20..=100).step_by(10));
    let whole = |hundredth: u64| (puts as u128 * u128::from(hundredth) / 100) as u64 / batch * batch;
    let mut marks: Vec<u64> = hundredths.map(whole).filter(|&mark| mark > 0).collect();
    marks.dedup();
    marks
}

/// Puts `load` into `target` by batches of `batch`, up to the last of `marks`, and calls `at_mark` at each of them. The time of
/// `at_mark` is not counted.
///
/// # Errors
/// Those of the target and `at_mark`.
pub fn climb(
    load: &mut Load,
    target: &mut dyn Target,
    marks: &[u64],
    batch: u64,
    at_mark: &mut dyn FnMut(&Load, &Interval) -> Result<()>,
) -> Result<()> {
    let mut commits = Commits::default();
    // Time of the run so far, without that of the marks.
    let mut before = Duration::ZERO;
    for &mark in marks {
        let (began, mut interval) = (Instant::now(), Interval::default());
        while load.puts() < mark {
            let puts = load.batch(batch.min(mark - load.puts()));
            let put_at = Instant::now();
            target.put(&puts)?;
            interval.batches.record(put_at.elapsed());
            interval.puts += puts.puts.len() as u64;
            commits.end(before + began.elapsed(), &mut interval);
        }
        interval.time = began.elapsed();
        before += interval.time;
        at_mark(load, &interval)?;
    }
    Ok(())
}

/// A batch of `count` random objects of `load`, as they were put.
pub(super) fn again(load: &Load, random: &SeededEntropy, count: u64) -> Batch {
    let put = |_| {
        let number = load.stored(random);
        Put { key: load.key(number), value: load.value(number) }
    };
    Batch { puts: (0..count).map(put).collect(), if_absent: false }
}

/// Puts as many random objects of `load` again as one in `share` of all, by batches of `batch`.
///
/// # Errors
/// Those of the target.
pub fn overwrite(load: &Load, target: &mut dyn Target, share: u64, batch: u64) -> Result<Interval> {
    let random = SeededEntropy::new(SEED + 1 + share);
    let puts = load.objects().div_ceil(share);
    let (began, mut interval, mut commits) = (Instant::now(), Interval::default(), Commits::default());
    while interval.puts < puts {
        let count = batch.min(puts - interval.puts);
        let batch = again(load, &random, count);
        let put_at = Instant::now();
        target.put(&batch)?;
        interval.batches.record(put_at.elapsed());
        interval.puts += count;
        commits.end(began.elapsed(), &mut interval);
    }
    interval.time = began.elapsed();
    Ok(interval)
}

/// The completion times of batches, since the start of the run.
#[derive(Default)]
struct Commits {
    last: Duration,
}

impl Commits {
    /// A batch completed at `now`.
    fn end(&mut self, now: Duration, interval: &mut Interval) {
        interval.longest_gap = interval.longest_gap.max(now.saturating_sub(self.last));
        interval.seconds_without_commit += now.as_secs().saturating_sub(self.last.as_secs() + 1);
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::scale::load::Order;

    #[test]
    fn marks_are_about_twenty_and_end_with_the_last_put() {
        let of = marks(10_000_000, 1000);
        assert_eq!(of.len(), 19);
        assert_eq!((of[0], of[9], of[10], of[18]), (100_000, 1_000_000, 2_000_000, 10_000_000));
        assert_eq!(marks(1000, 1000), [1000]);
        assert_eq!(marks(5, 1000), [0_u64; 0]);
        assert!(marks(u64::MAX, 1).is_sorted());
    }

    #[test]
    fn second_without_completion_is_a_stall() {
        let (mut commits, mut interval) = (Commits::default(), Interval::default());
        for millis in [100, 1_900, 2_000, 4_999, 5_000] {
            commits.end(Duration::from_millis(millis), &mut interval);
        }
        // Of seconds 0 to 5, only the one from 3.0 to 4.0 has no completed batch.
        assert_eq!(interval.seconds_without_commit, 1);
        assert_eq!(interval.longest_gap, Duration::from_millis(2_999));
    }

    #[derive(Default)]
    struct Map(HashMap<Vec<u8>, usize>, Vec<usize>);

    impl Target for Map {
        fn put(&mut self, batch: &Batch) -> Result<()> {
            self.1.push(batch.puts.len());
            self.0.extend(batch.puts.iter().map(|put| (put.key.clone(), put.value.len())));
            Ok(())
        }
    }

    #[test]
    fn overwriting_takes_objects_of_the_load() {
        let (mut load, mut map) = (Load::new(Order::Random, 7, 1000, 0), Map::default());
        climb(&mut load, &mut map, &[1000], 1000, &mut |_, _| Ok(())).unwrap();
        let interval = overwrite(&load, &mut map, 2, 128).unwrap();
        assert_eq!((interval.puts, interval.batches.count(), map.0.len()), (500, 4, 1000));
        assert_eq!(map.1, [1000, 128, 128, 128, 116]);
    }

    #[test]
    fn climb_puts_each_key_once() {
        let (mut load, mut map) = (Load::new(Order::Random, 7, 1000, 0), Map::default());
        let mut seen = Vec::new();
        climb(&mut load, &mut map, &[300, 1000], 128, &mut |load, interval| {
            seen.push((load.puts(), interval.puts, interval.batches.count()));
            assert!(interval.puts_per_s() > 0.0 && interval.longest_gap <= interval.time);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(300, 300, 3), (1000, 700, 6)]);
        assert_eq!((map.0.len(), map.1[2]), (1000, 44));
        assert!(map.0.values().all(|&bytes| bytes == 7));
    }
}
