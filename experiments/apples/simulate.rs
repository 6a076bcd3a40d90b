//! The monkey itself: many rounds by chance, each up to the day on which it finds its bucket empty.
//!
//! In two ways that share only the random numbers. *Day by day* plays the question literally. *In leaps* draws for each
//! bucket the moment at which it would be found empty, a gamma of `M + 1` divided by its probability, in a Poisson
//! process of days; the first of them ends the round. A bucket whose moment `g` comes later than that end `t` had its
//! first `M` apples taken at moments that are independent and even before `g`, so that it has a binomial number of `M`
//! left, each with probability `1 - t / g`. That is exact too, and takes the same time for 10^6 apples as for one.
//!
//! Every round has a separate sequence of random numbers: results do not depend on the number of threads.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::choice::{Orchard, Picker};
use super::law::{Figures, QUANTILES};
use super::random::Random;

/// Rounds that a thread takes at a time.
const ROUNDS_AT_ONCE: u64 = 4;

/// The result of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Round {
    /// The day on which the chosen bucket was empty.
    pub(super) day: f64,
    pub(super) apples: f64,
    pub(super) value: f64,
}

/// How a round is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepping {
    Days,
    Leaps,
}

/// Plays `rounds` rounds on all cores; `progress` receives the number of finished ones, from any thread.
pub(super) fn play(
    orchard: &Orchard,
    way: Stepping,
    rounds: u64,
    seed: u64,
    progress: &(dyn Fn(u64) + Sync),
) -> Vec<Round> {
    let picker = Picker::new(&orchard.probabilities);
    let play_round = |round: u64| {
        let mut random = Random::new(seed, round);
        match way {
            Stepping::Days => by_days(orchard, &picker, &mut random),
            Stepping::Leaps => by_leaps(orchard, &mut random),
        }
    };
    on_all_cores(rounds, ROUNDS_AT_ONCE, &play_round, progress)
}

/// Calls `work` for every number below `count`; the results in order.
pub(super) fn on_all_cores<T: Send>(
    count: u64,
    at_once: u64,
    work: &(dyn Fn(u64) -> T + Sync),
    progress: &(dyn Fn(u64) + Sync),
) -> Vec<T> {
    let threads =
        thread::available_parallelism().map_or(1, NonZero::get).min(count.div_ceil(at_once).max(1) as usize);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let serve = || {
        let mut results = Vec::new();
        loop {
            let first = next.fetch_add(at_once, Ordering::Relaxed);
            if first >= count {
                return results;
            }
            let last = (first + at_once).min(count);
            results.extend((first..last).map(|number| (number, work(number))));
            progress(done.fetch_add(last - first, Ordering::Relaxed) + last - first);
        }
    };
    let mut all: Vec<(u64, T)> = thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(serve)).collect();
        let mut all = serve();
        for helper in helpers {
            match helper.join() {
                Ok(results) => all.extend(results),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, result)| result).collect()
}

fn by_days(orchard: &Orchard, picker: &Picker, random: &mut Random) -> Round {
    let mut left = orchard.apples.clone();
    let mut day = 1u64;
    loop {
        let bucket = &mut left[picker.pick(random)];
        if *bucket == 0 {
            break;
        }
        *bucket -= 1;
        day += 1;
    }
    end_of_round(day, left.iter().copied())
}

fn by_leaps(orchard: &Orchard, random: &mut Random) -> Round {
    let moments: Vec<f64> = orchard
        .probabilities
        .iter()
        .zip(&orchard.apples)
        .map(|(probability, &apples)| random.gamma(f64::from(apples) + 1.0) / probability)
        .collect();
    let end = moments.iter().copied().fold(f64::INFINITY, f64::min);
    let left: Vec<u32> = moments
        .iter()
        .zip(&orchard.apples)
        .map(|(moment, &apples)| if *moment <= end { 0 } else { random.binomial(apples, 1.0 - end / moment) })
        .collect();
    let apples: u64 = left.iter().map(|&apples| u64::from(apples)).sum();
    end_of_round(orchard.total() - apples + 1, left.into_iter())
}

fn end_of_round(day: u64, left: impl Iterator<Item = u32>) -> Round {
    let (mut apples, mut value) = (0u64, 0.0);
    for (count, price) in left.zip(1u32..) {
        apples += u64::from(count);
        value += f64::from(count) * f64::from(price);
    }
    Round { day: day as f64, apples: apples as f64, value }
}

/// Mean, deviation and quantiles of the draws; at least one.
pub(super) fn figures(draws: impl Iterator<Item = f64>) -> Figures {
    let mut draws: Vec<f64> = draws.collect();
    assert!(!draws.is_empty(), "figures of nothing");
    draws.sort_unstable_by(f64::total_cmp);
    let count = draws.len() as f64;
    let mean = draws.iter().sum::<f64>() / count;
    let square = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>();
    let quantiles = QUANTILES.map(|share| draws[((count * share) as usize).min(draws.len() - 1)]);
    Figures { mean, deviation: (square / (count - 1.0).max(1.0)).sqrt(), quantiles }
}

#[cfg(test)]
mod tests {
    use super::super::choice::{Choice, Supply};
    use super::super::law::Law;
    use super::*;

    fn quiet(_: u64) {}

    /// Panics unless the draws agree with the law: the mean within five standard errors, the deviation within eight
    /// of its standard errors (as of a normal quantity), and 5, 50 and 95 per cent of the draws below the law's quantiles.
    fn agree(what: &str, draws: &[f64], law: Figures) {
        let (found, count) = (figures(draws.iter().copied()), draws.len() as f64);
        let error = law.deviation / count.sqrt();
        assert!((found.mean - law.mean).abs() < 5.0 * error, "{what}: mean {}, law {law:?}", found.mean);
        let ratio = found.deviation / law.deviation;
        assert!(
            (ratio - 1.0).abs() < 8.0 / (2.0 * count).sqrt(),
            "{what}: deviation {}, law {law:?}",
            found.deviation
        );
        for (share, quantile) in QUANTILES.into_iter().zip(law.quantiles) {
            let below = draws.iter().filter(|draw| **draw <= quantile).count() as f64 / count;
            let tolerance = 5.0 * (share * (1.0 - share) / count).sqrt() + 0.015;
            assert!(
                (below - share).abs() < tolerance,
                "{what}: {below} at most {quantile}, the law says {share}"
            );
        }
    }

    fn check(buckets: u32, apples: u32, choice: Choice, supply: Supply, way: Stepping, rounds: u64) {
        let orchard = Orchard::new(buckets, apples, choice, supply);
        let law = Law::new(&orchard);
        let drawn = play(&orchard, way, rounds, 7, &quiet);
        let case =
            |what: &str| format!("{what}, {buckets} buckets of {apples}, {choice}, {supply:?}, {way:?}");
        let column = |get: fn(&Round) -> f64| -> Vec<f64> { drawn.iter().map(get).collect() };
        agree(&case("day"), &column(|round| round.day), law.day());
        agree(&case("apples"), &column(|round| round.apples), law.apples().figures());
        agree(&case("value"), &column(|round| round.value), law.value().figures());
    }

    #[test]
    fn day_by_day_agrees_with_the_law() {
        for choice in Choice::ALL {
            check(64, 30, choice, Supply::Equal, Stepping::Days, 1500);
        }
        check(64, 30, Choice::Linear, Supply::Matched, Stepping::Days, 1500);
        check(1024, 10, Choice::Uniform, Supply::Equal, Stepping::Days, 1000);
        check(256, 200, Choice::Uniform, Supply::Equal, Stepping::Days, 400);
    }

    #[test]
    fn leaps_agree_with_the_law() {
        for choice in Choice::ALL {
            check(64, 30, choice, Supply::Equal, Stepping::Leaps, 1500);
            check(64, 1_000_000, choice, Supply::Matched, Stepping::Leaps, 1000);
        }
        for apples in [100, 1_000_000] {
            check(1024, apples, Choice::Uniform, Supply::Equal, Stepping::Leaps, 500);
        }
    }

    #[test]
    fn rounds_do_not_depend_on_the_threads() {
        let orchard = Orchard::new(16, 20, Choice::Linear, Supply::Equal);
        for way in [Stepping::Days, Stepping::Leaps] {
            let rounds = play(&orchard, way, 50, 3, &quiet);
            assert_eq!(rounds, play(&orchard, way, 50, 3, &quiet));
            assert_ne!(rounds, play(&orchard, way, 50, 4, &quiet));
            let total = orchard.total() as f64;
            assert!(
                rounds.iter().all(|round| round.day == total - round.apples + 1.0),
                "what is taken is not left"
            );
        }
    }

    #[test]
    fn a_bucket_of_one_is_empty_on_the_second_day() {
        let orchard = Orchard { probabilities: vec![1.0], apples: vec![1] };
        for way in [Stepping::Days, Stepping::Leaps] {
            assert_eq!(play(&orchard, way, 1, 1, &quiet), [Round { day: 2.0, apples: 0.0, value: 0.0 }]);
        }
    }
}
