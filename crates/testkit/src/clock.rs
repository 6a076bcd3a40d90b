//! A clock that advances with each reading.

use std::sync::atomic::{AtomicU64, Ordering};

use shoal_base::Clock;

/// A clock whose monotonic time advances whenever it is read; nothing else moves.
#[derive(Debug)]
pub struct SteppingClock {
    now_ns: AtomicU64,
    step_ns: AtomicU64,
}

impl SteppingClock {
    /// The clock at its first nanosecond.
    #[must_use]
    pub const fn new(step_ns: u64) -> Self {
        Self { now_ns: AtomicU64::new(1), step_ns: AtomicU64::new(step_ns) }
    }

    /// Sets the steps from now on.
    pub fn set_step(&self, step_ns: u64) {
        self.step_ns.store(step_ns, Ordering::Relaxed);
    }
}

impl Clock for SteppingClock {
    fn wall_ns(&self) -> u64 {
        1_000
    }

    fn monotonic_ns(&self) -> u64 {
        self.now_ns.fetch_add(self.step_ns.load(Ordering::Relaxed), Ordering::Relaxed)
    }

    fn boot_ns(&self) -> u64 {
        1_000
    }

    fn boot_id(&self) -> [u8; 16] {
        [0; 16]
    }
}
