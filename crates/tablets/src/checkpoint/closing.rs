//! The progress of closing a store.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::Clock;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_common::error::{Error, Result};

/// A close that takes longer than this logs its progress, once per such period.
const PROGRESS_NS: u64 = 1_000_000_000;
/// One of this many steps of an apply reads the clock.
const STEPS_A_LOOK: u64 = 64;
/// An apply takes two steps per record: its value goes home, then the record goes into the tree.
const STEPS_A_RECORD: u64 = 2;

/// The progress of a close. All numbers are zero while the store is open.
pub struct Closing {
    clock: Arc<dyn Clock>,
    /// The start on the monotonic clock; 0: the store is not being closed.
    began_ns: AtomicU64,
    /// The deadline on the monotonic clock; `u64::MAX`: none.
    deadline_ns: AtomicU64,
    /// Records to apply at the start of the close.
    records: AtomicU64,
    steps: AtomicU64,
    said_ns: AtomicU64,
}

impl Closing {
    /// A store that is open.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (began_ns, deadline_ns, records, steps, said_ns) = Default::default();
        Self { clock, began_ns, deadline_ns, records, steps, said_ns }
    }

    /// Starts a close; does nothing if one has already started.
    pub fn begin(&self, limit: Option<Duration>, records: u64) {
        let now_ns = self.clock.monotonic_ns();
        let deadline_ns = limit.map_or(u64::MAX, |limit| {
            now_ns.saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
        });
        if self.began_ns.load(Ordering::Relaxed) == 0 {
            self.deadline_ns.store(deadline_ns, Ordering::Relaxed);
            self.records.store(records, Ordering::Relaxed);
            self.said_ns.store(now_ns, Ordering::Relaxed);
            // Pairs with the acquire in `is_begun`: a thread that sees the start also sees the deadline.
            self.began_ns.store(now_ns.max(1), Ordering::Release);
        }
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.began_ns.load(Ordering::Acquire) > 0
    }

    /// Returns true if the deadline of a close has passed.
    pub fn is_over(&self) -> bool {
        self.is_begun() && self.clock.monotonic_ns() >= self.deadline_ns.load(Ordering::Relaxed)
    }

    /// Notes that an apply finished one more step. During a close, logs the progress from time to time.
    ///
    /// # Errors
    /// [`Error::Closed`] if the deadline of the close has passed: the apply stops, and its records stay in the log.
    pub(crate) fn step(&self) -> Result<()> {
        if !self.is_begun() {
            return Ok(());
        }
        let steps = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        if !steps.is_multiple_of(STEPS_A_LOOK) {
            return Ok(());
        }
        let now_ns = self.clock.monotonic_ns();
        if self.is_over() {
            return Err(Error::Closed);
        }
        let said_ns = self.said_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(said_ns) >= PROGRESS_NS
            && self.said_ns.compare_exchange(said_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let done = steps / STEPS_A_RECORD;
            let left = self.records.load(Ordering::Relaxed).saturating_sub(done);
            let took_ns = now_ns.saturating_sub(self.began_ns.load(Ordering::Relaxed)).max(1);
            let rate = u128::from(done) * 1_000_000_000 / u128::from(took_ns);
            tracing::info!("closing: {left} records of the log are still to be applied, {rate} a second");
        }
        Ok(())
    }
}
