//! Counts of the operations of an open store, for its figures.

use shoal_base::sync::atomic::{AtomicU64, Ordering};

/// Counts of operations, for `stat`.
#[derive(Default)]
pub struct OperationCounters {
    /// Puts that are durable.
    pub puts: AtomicU64,
    /// Gets, of absent objects as well.
    pub gets: AtomicU64,
    /// Deletes that are durable.
    pub deletes: AtomicU64,
    /// Bytes of the values of puts.
    pub value_bytes_written: AtomicU64,
    /// Bytes of values that gets returned.
    pub value_bytes_read: AtomicU64,
    /// Bytes of values that were copied in memory on their way to a reader.
    pub value_bytes_copied: AtomicU64,
    /// Applies of a tablet.
    pub applies: AtomicU64,
    /// Pages of trees that were written.
    pub pages_written: AtomicU64,
    /// Completed compactions of layers: into the base with their last slice, or among layers.
    pub merges: AtomicU64,
    /// Bytes of entries that compactions of layers took, slices included.
    pub merged_bytes: AtomicU64,
    /// Nanoseconds of the pauses after applies.
    pub paused_ns: AtomicU64,
    /// Blocks of values that applies wrote.
    pub home_blocks_written: AtomicU64,
    /// Blocks of values that puts wrote.
    pub extent_blocks_written: AtomicU64,
    /// Blocks of zeros that growth of the file wrote.
    pub growth_blocks_written: AtomicU64,
    /// Values that garbage collection moved.
    pub moved_values: AtomicU64,
    /// Bytes of those values.
    pub moved_bytes: AtomicU64,
    /// Expired objects that were removed.
    pub expired: AtomicU64,
    /// Keys that the walks for expired objects examined, and how often a write without room deleted expired
    /// objects.
    pub expiry_examined: AtomicU64,
    /// Times that a write without room deleted expired objects.
    pub reaps_for_room: AtomicU64,
    /// Steps of writes without room to make some: applies, growth, compactions, rewriting of packed runs.
    pub room_steps: AtomicU64,
    /// Keys of deleted and expired objects that listings skipped, and the most that one page skipped.
    pub keys_passed: AtomicU64,
    /// The most keys that one page of a listing skipped.
    pub keys_passed_most: AtomicU64,
    /// Completed passes of the scrub.
    pub scrub_passes: AtomicU64,
    /// Bytes that the scrub read.
    pub scrub_bytes: AtomicU64,
    /// Problems that the scrub found.
    pub scrub_problems: AtomicU64,
    /// The end of the last pass, in nanoseconds of the Unix epoch; 0: no pass is complete.
    pub scrub_ended_ns: AtomicU64,
}

impl OperationCounters {
    /// Counts the keys of deleted and expired objects that a page of a listing skipped.
    #[inline]
    pub fn note_passed(&self, passed: u64) {
        if passed > 0 {
            Self::add(&self.keys_passed, passed);
            self.keys_passed_most.fetch_max(passed, Ordering::Relaxed);
        }
    }

    /// Adds `amount` to a counter.
    #[inline]
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}
