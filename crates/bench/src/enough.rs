//! The end of a row's measurement: its time is over, and it has enough operations for figures.
//!
//! The time alone would leave a row without figures if one operation takes longer than all of it, as on a busy machine. Tests
//! set the time to zero: then the count alone stops a row, on any machine.

use std::time::{Duration, Instant};

/// Minimum number of operations of a row, or of each of its clients.
pub const OPERATIONS_MIN: u64 = 16;

/// The end of a row.
#[derive(Clone, Copy, Debug)]
pub struct Enough {
    began: Instant,
    time: Duration,
    operations: u64,
}

impl Enough {
    /// A row that starts now and is measured for `time`.
    pub fn after(time: Duration) -> Self {
        Self { began: Instant::now(), time, operations: OPERATIONS_MIN }
    }

    /// A row that starts now, in which each client has this number of operations, without a time limit.
    pub fn of(operations: u64) -> Self {
        Self { began: Instant::now(), time: Duration::ZERO, operations }
    }

    /// Returns true if the row may stop after `operations`. The clock is not read before they are enough.
    pub fn is_reached(&self, operations: u64) -> bool {
        operations >= self.operations && self.began.elapsed() >= self.time
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_ends_by_count_or_by_time() {
        let enough = Enough::after(Duration::ZERO);
        assert!(!enough.is_reached(0) && !enough.is_reached(OPERATIONS_MIN - 1));
        assert!(enough.is_reached(OPERATIONS_MIN));
        assert!(!Enough::after(Duration::from_secs(1 << 40)).is_reached(u64::MAX));
        assert!(!Enough::of(60).is_reached(59) && Enough::of(60).is_reached(60));
    }
}
