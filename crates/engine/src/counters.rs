//! Counts of the operations of an open store, for its figures.

use shoal_base::sync::atomic::{AtomicU64, Ordering};

/// Counts of operations, for `stat`.
#[derive(Default)]
pub(crate) struct OperationCounters {
    pub puts: AtomicU64,
    pub gets: AtomicU64,
    pub deletes: AtomicU64,
    pub value_bytes_written: AtomicU64,
    pub value_bytes_read: AtomicU64,
    pub value_bytes_copied: AtomicU64,
    pub applies: AtomicU64,
    pub pages_written: AtomicU64,
    /// Completed compactions of layers: into the base with their last slice, or among layers.
    pub merges: AtomicU64,
    /// Bytes of entries that compactions of layers took, slices included.
    pub merged_bytes: AtomicU64,
    /// Nanoseconds of the pauses after applies.
    pub paused_ns: AtomicU64,
    pub home_blocks_written: AtomicU64,
    pub extent_blocks_written: AtomicU64,
    pub growth_blocks_written: AtomicU64,
    pub moved_values: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub expired: AtomicU64,
    /// Keys that the walks for expired objects examined, and how often a write without room deleted expired
    /// objects.
    pub expiry_examined: AtomicU64,
    pub reaps_for_room: AtomicU64,
    /// Steps of writes without room to make some: applies, growth, compactions, rewriting of packed runs.
    pub room_steps: AtomicU64,
    /// Keys of deleted and expired objects that listings skipped, and the most that one page skipped.
    pub keys_passed: AtomicU64,
    pub keys_passed_most: AtomicU64,
    pub scrub_passes: AtomicU64,
    pub scrub_bytes: AtomicU64,
    pub scrub_problems: AtomicU64,
    /// The end of the last pass, in nanoseconds of the Unix epoch; 0: no pass is complete.
    pub scrub_ended_ns: AtomicU64,
}

impl OperationCounters {
    /// Counts the keys of deleted and expired objects that a page of a listing skipped.
    pub(crate) fn note_passed(&self, passed: u64) {
        if passed > 0 {
            Self::add(&self.keys_passed, passed);
            self.keys_passed_most.fetch_max(passed, Ordering::Relaxed);
        }
    }

    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}
