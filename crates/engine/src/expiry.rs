//! Time to live: the clock that decides it (R18).
//!
//! Expiry follows the wall clock, except that it never goes back: not while the store is open, and not behind the moment
//! that the newest flushed batch and the superblock name, however the machine's clock was set meanwhile. So an object
//! that a durable batch saw expired stays expired.

use std::sync::Arc;

use shoal_base::Clock;
use shoal_base::sync::atomic::{AtomicU64, Ordering};

use crate::entry::Entry;

/// The clock of expiry.
pub(crate) struct ExpiryClock {
    clock: Arc<dyn Clock>,
    /// The latest moment that was given out. Relaxed: only its growing counts.
    latest: AtomicU64,
}

impl ExpiryClock {
    /// A clock that begins at `floor_ns` at the earliest.
    pub(crate) fn new(clock: Arc<dyn Clock>, floor_ns: u64) -> Arc<Self> {
        Arc::new(Self { clock, latest: AtomicU64::new(floor_ns) })
    }

    /// Now, in nanoseconds since the Unix epoch.
    pub(crate) fn now_ns(&self) -> u64 {
        let wall = self.clock.wall_ns();
        self.latest.fetch_max(wall, Ordering::Relaxed).max(wall)
    }

    /// Whether an entry's time is over. The clock is asked only where the entry has one.
    pub(crate) fn is_over(&self, entry: &Entry) -> bool {
        entry.expiry_ns.is_some_and(|expiry| expiry <= self.now_ns())
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::ManualClock;

    use super::*;

    #[test]
    fn never_goes_back() {
        let manual = Arc::new(ManualClock::new(100));
        let clock = ExpiryClock::new(manual.clone(), 150);
        assert_eq!(clock.now_ns(), 150, "the machine's clock was set back while the store was closed");
        manual.advance(100);
        assert_eq!(clock.now_ns(), 200);
        let behind = ExpiryClock::new(Arc::new(ManualClock::new(50)), clock.now_ns());
        assert_eq!(behind.now_ns(), 200);
    }
}
