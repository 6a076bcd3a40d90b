//! How often keys were written, by their hashes: a cache of values asks whether what it keeps is still the newest.

use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::sync::stripes;

/// Counters of writes; keys share them by their hash. 128 KiB: more would fit in no core's cache.
const WRITE_COUNTS: usize = stripes(16 << 10);

/// How often keys were written.
pub(crate) struct WriteCounts(Box<[AtomicU64]>);

impl Default for WriteCounts {
    fn default() -> Self {
        Self((0..WRITE_COUNTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl WriteCounts {
    /// The counter of a key with this hash.
    pub(crate) fn of(&self, hash: u64) -> &AtomicU64 {
        &self.0[hash as usize % WRITE_COUNTS]
    }

    /// A record of a key of this counter is in its overlay, whose lock is held. Pairs with [`Self::now`]: who sees the new count
    /// sees the record.
    pub(crate) fn note(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Release);
    }

    /// The count of a key's hash.
    pub(crate) fn now(&self, hash: u64) -> u64 {
        self.of(hash).load(Ordering::Acquire)
    }
}
