//! How fast the command comes that is under way: a byte now and then must not hold a connection and what it has in memory.

use std::time::Duration;

/// What came while the rest of a command was waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// A command is there as a whole, or it is not the client that is waited for: what was is no more.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// So many bytes came.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// The rest was waited for, for `period`. True where `window` is over and fewer than `bytes_min` bytes a second came in it. Periods
    /// are counted and not the clock: a process that was stopped must not blame its clients.
    pub(crate) fn waited(&mut self, period: Duration, window: Duration, bytes_min: u64) -> bool {
        self.waited += period;
        if self.waited < window {
            return false;
        }
        let wanted = u128::from(bytes_min) * self.waited.as_millis() / 1000;
        let is_slow = u128::from(self.bytes) < wanted;
        self.forget();
        is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Seconds until a sender of so many bytes a second is too slow, in two minutes.
    fn cut_after(bytes_a_second: usize) -> Option<usize> {
        let mut pace = Pace::default();
        (1..=120).find(|_| {
            pace.came(bytes_a_second);
            pace.waited(SECOND, 30 * SECOND, 1024)
        })
    }

    #[test]
    fn only_below_the_least_is_it_too_slow() {
        assert_eq!([0, 1, 1023, 1024, 100_000].map(cut_after), [Some(30), Some(30), Some(30), None, None]);
    }

    #[test]
    fn what_is_over_is_not_counted() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            assert!(!pace.waited(20 * SECOND, 30 * SECOND, 1024));
            pace.forget();
        }
        // A burst pays for one window only.
        pace.came(1 << 20);
        assert!(!pace.waited(30 * SECOND, 30 * SECOND, 1024));
        assert!(pace.waited(30 * SECOND, 30 * SECOND, 1024));
    }
}
