//! Time as an argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Source of wall-clock and monotonic time.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the Unix epoch.
    fn wall_ns(&self) -> u64;
    /// Nanoseconds since an arbitrary moment; never goes back.
    fn monotonic_ns(&self) -> u64;
}

/// The machine's clocks.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall_ns(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves only when told to; both times are the same number.
#[derive(Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that stands at `ns`.
    #[must_use]
    pub fn new(ns: u64) -> Self {
        Self(AtomicU64::new(ns))
    }

    /// Moves the clock `ns` nanoseconds on.
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn wall_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
