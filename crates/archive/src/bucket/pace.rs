//! The pace of requests: pauses between attempts, the second attempt beside a slow one, the budget of PUTs.

use std::time::Duration;

use parking_lot::Mutex;
use shoal_base::Entropy;
use tokio::time::{Instant, sleep_until};

/// Larger objects take no turn. At the prices of S3 their PUTs cost no more than a month of their room, and a store that writes that much needs
/// the requests: with a pause before each, the archive would never catch up. In bytes.
pub(super) const LARGE_BYTES: usize = 256 << 10;
/// The pause after the first attempt. Each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The earliest second attempt beside the first one.
const SECOND_ATTEMPT_MIN: Duration = Duration::from_secs(1);
/// Times of successful PUTs that the latest percentile is taken of.
const TIMES: usize = 64;

/// The pause after attempt `attempt`, counted from 0: half of it is random, so that servers that failed together do not return together.
pub(super) fn pause(attempt: u32, dice: &dyn Entropy) -> Duration {
    let whole = PAUSE_MIN.saturating_mul(1 << attempt.min(10)).min(PAUSE_MAX);
    let half = whole / 2;
    half + half.mul_f64((dice.next_u64() >> 11) as f64 / (1_u64 << 53) as f64)
}

/// The newest times of successful PUTs.
#[derive(Default)]
pub(super) struct PutTimes(Mutex<Vec<Duration>>);

impl PutTimes {
    pub(super) fn add(&self, time: Duration) {
        let mut times = self.0.lock();
        if times.len() == TIMES {
            times.remove(0);
        }
        times.push(time);
    }

    /// The time after which a second attempt starts beside the first one: the 95th percentile, at least 1 s.
    pub(super) fn second_attempt(&self) -> Duration {
        let mut times = self.0.lock().clone();
        times.sort_unstable();
        let percentile = times.get((times.len() * 95 / 100).min(times.len().saturating_sub(1)));
        percentile.copied().unwrap_or_default().max(SECOND_ATTEMPT_MIN)
    }
}

/// The budget of PUTs of small objects: they wait for their turn, so that a second has at most a number of them. A whole second's number may
/// start at once.
pub(super) struct PutBudget {
    interval: Duration,
    burst: Duration,
    /// The turn of the next request, if there were no burst.
    next: Mutex<Option<Instant>>,
}

impl PutBudget {
    pub(super) fn new(puts_per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / puts_per_second.max(1);
        Self { interval, burst: Duration::from_secs(1) - interval, next: Mutex::new(None) }
    }

    /// Waits for the turn of a PUT of `bytes` bytes.
    pub(super) async fn turn(&self, bytes: usize) {
        if bytes >= LARGE_BYTES {
            return;
        }
        let turn = {
            let (mut next, now) = (self.next.lock(), Instant::now());
            let turn = next.map_or(now, |next| next.max(now));
            *next = Some(turn + self.interval);
            turn.checked_sub(self.burst).unwrap_or(now)
        };
        sleep_until(turn).await;
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::SeededEntropy;

    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let dice = SeededEntropy::new(1);
        for attempt in 0..40 {
            let whole = Duration::from_millis((50_u64 << attempt.min(10)).min(5_000));
            let all: Vec<Duration> = (0..50).map(|_| pause(attempt, &dice)).collect();
            assert!(all.iter().all(|pause| (whole / 2..=whole).contains(pause)), "{attempt}: {all:?}");
            assert!(all.iter().max() > all.iter().min(), "no two are alike");
        }
    }

    #[test]
    fn a_second_attempt_follows_the_newest_times() {
        let times = PutTimes::default();
        assert_eq!(times.second_attempt(), Duration::from_secs(1));
        (0..64).for_each(|ms| times.add(Duration::from_millis(ms)));
        assert_eq!(times.second_attempt(), Duration::from_secs(1));
        (0..64).for_each(|at| times.add(Duration::from_millis(if at < 60 { 100 } else { 3_000 })));
        assert_eq!(times.second_attempt(), Duration::from_secs(3));
        (0..64).for_each(|_| times.add(Duration::from_millis(9)));
        assert_eq!(times.second_attempt(), Duration::from_secs(1), "old times are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_has_at_most_the_budget() {
        let budget = PutBudget::new(10);
        let start = Instant::now();
        let mut turns = Vec::new();
        for _ in 0..35 {
            // Large ones take no turn from others.
            budget.turn(LARGE_BYTES).await;
            budget.turn(LARGE_BYTES - 1).await;
            turns.push(start.elapsed());
        }
        assert!(turns[9] < Duration::from_millis(10), "{turns:?}");
        for (at, turn) in turns.iter().enumerate().skip(10) {
            let expected = Duration::from_millis((at as u64 - 9) * 100);
            assert!(turn.abs_diff(expected) < Duration::from_millis(10), "{at}: {turn:?}");
        }
        // An idle time saves one burst, not more.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let start = Instant::now();
        for _ in 0..20 {
            budget.turn(1).await;
        }
        assert!(start.elapsed() >= Duration::from_millis(990), "{:?}", start.elapsed());
    }
}
