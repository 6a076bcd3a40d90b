//! A rate limit: a budget of bytes that fills with time.
//!
//! Work is done first and paid for afterwards: a step may exceed the budget, and the next one waits until it is paid.

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, Ordering};

/// The largest saved budget, as time at the current rate: 100 ms.
const BURST_NS: u64 = 100_000_000;

/// See the top of the file.
#[derive(Debug, Default)]
pub struct Rate {
    /// Moved bytes that are not paid for yet.
    debt: u64,
    /// The time of the last call.
    last_ns: u64,
}

impl Rate {
    /// Notes completed work.
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.debt = self.debt.saturating_add(bytes);
    }

    /// Nanoseconds until more work may be done at `bytes_per_s`.
    pub(crate) fn wait_ns(&mut self, now_ns: u64, bytes_per_s: u64) -> u64 {
        let paid = share(now_ns.saturating_sub(self.last_ns), bytes_per_s);
        // Time worth less than a byte is carried over.
        if paid > 0 {
            self.debt = self.debt.saturating_sub(paid);
            self.last_ns = now_ns;
        }
        let owed = self.debt.saturating_sub(share(BURST_NS, bytes_per_s));
        (u128::from(owed) * 1_000_000_000 / u128::from(bytes_per_s.max(1))).try_into().unwrap_or(u64::MAX)
    }
}

/// The permission to move values and to release free blocks, and the work that is not paid for yet.
#[derive(Default)]
pub struct MoveLimits {
    /// Set while a user pauses relocation.
    pub paused: AtomicBool,
    /// True if long free runs are returned to the device.
    pub discards: bool,
    /// The moved bytes that are not paid for yet.
    pub rate: Mutex<Rate>,
}

impl MoveLimits {
    /// The limits of a store that was just opened.
    pub fn new(is_paused: bool, discards: bool) -> Self {
        Self { paused: AtomicBool::new(is_paused), discards, ..Self::default() }
    }

    /// Returns true while a user pauses relocation.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Notes bytes that were read, written or discarded.
    pub(crate) fn charge(&self, bytes: u64) {
        if bytes > 0 {
            self.rate.lock().charge(bytes);
        }
    }
}

/// The bytes of a span of time.
fn share(ns: u64, bytes_per_s: u64) -> u64 {
    (u128::from(ns) * u128::from(bytes_per_s) / 1_000_000_000).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_paid_for_with_time() {
        let mut rate = Rate::default();
        let second = 1_000_000_000;
        assert_eq!(rate.wait_ns(second, 1_000), 0);
        rate.charge(100);
        assert_eq!(rate.wait_ns(second, 1_000), 0, "a burst of 100 ms is free");
        rate.charge(2_000);
        assert_eq!(rate.wait_ns(second, 1_000), 2 * second);
        assert_eq!(rate.wait_ns(2 * second, 1_000), second);
        assert_eq!(rate.wait_ns(2 * second, 10_000), 10_000_000, "at another rate the rest is paid sooner");
        assert_eq!(rate.wait_ns(9 * second, 1_000), 0);
        // Idle time is not saved up beyond the burst.
        rate.charge(1_100);
        assert_eq!(rate.wait_ns(9 * second, 1_000), second);
        for ns in 0..1_000 {
            rate.wait_ns(9 * second + ns * 100, 1_000);
        }
        assert_eq!(rate.wait_ns(10 * second, 1_000), 0, "small steps of time count, too");
        rate.charge(u64::MAX);
        rate.charge(u64::MAX);
        assert!(rate.wait_ns(10 * second, 0) > 0);
    }
}
