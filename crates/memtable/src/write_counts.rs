//! The number of writes by the hash of the key. A read cache compares it to find out if its value is still the newest.

use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::sync::stripes;

/// The number of counters, which keys share by their hash. 128 KiB: more would not fit in a core's cache.
const WRITE_COUNTS: usize = stripes(16 << 10);

/// The number of writes by the hash of the key.
pub struct WriteCounts(Box<[AtomicU64]>);

impl Default for WriteCounts {
    fn default() -> Self {
        Self((0..WRITE_COUNTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl WriteCounts {
    /// The counter of a key with this hash.
    #[inline]
    pub fn of(&self, hash: u64) -> &AtomicU64 {
        &self.0[hash as usize % WRITE_COUNTS]
    }

    /// Notes a record of a key with this counter. The caller holds the lock of the memtable that has the record. Pairs
    /// with [`Self::now`]: a reader that sees the new count also sees the record.
    #[inline]
    pub fn note(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Release);
    }

    /// The count for a key's hash.
    #[inline]
    pub fn now(&self, hash: u64) -> u64 {
        self.of(hash).load(Ordering::Acquire)
    }
}
