//! The progress of closing a store.

use std::time::Duration;

use shoal_base::sync::atomic::{AtomicU64, Ordering};

/// The progress of a close. All fields are zero while the store is open.
#[derive(Default)]
pub(crate) struct Closing {
    /// The beginning, on the monotonic clock; 0: the store is not being closed.
    pub began_ns: AtomicU64,
    /// The deadline on the monotonic clock; `u64::MAX`: there is none.
    pub deadline_ns: AtomicU64,
    /// Records to apply when the close began.
    pub records: AtomicU64,
    pub steps: AtomicU64,
    pub said_ns: AtomicU64,
}

impl Closing {
    /// Begins a close; does nothing if another one began before.
    pub(crate) fn begin(&self, now_ns: u64, limit: Option<Duration>, records: u64) {
        let deadline_ns = limit.map_or(u64::MAX, |limit| {
            now_ns.saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
        });
        if self.began_ns.load(Ordering::Relaxed) == 0 {
            self.deadline_ns.store(deadline_ns, Ordering::Relaxed);
            self.records.store(records, Ordering::Relaxed);
            self.said_ns.store(now_ns, Ordering::Relaxed);
            // Pairs with the acquire in `is_begun`: a thread that sees the beginning also sees the deadline.
            self.began_ns.store(now_ns.max(1), Ordering::Release);
        }
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.began_ns.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.is_begun() && now_ns >= self.deadline_ns.load(Ordering::Relaxed)
    }
}
