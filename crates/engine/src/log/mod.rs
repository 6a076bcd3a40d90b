//! The write-ahead log: one ring of batches on the device, group commit, and the clock that its batches carry.

pub(crate) mod clock_record;
pub(crate) mod commit;
pub(crate) mod driver;
pub(crate) mod expiry;
pub(crate) mod fence;
#[cfg(test)]
mod fence_tests;
pub(crate) mod format;
pub(crate) mod kept;
pub(crate) mod owner;
pub(crate) mod poison;
pub(crate) mod queue;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod ring_space;
pub(crate) mod room;
mod who_commits;

use shoal_common::event;

/// Locks under one name: the models of `testing/models.rs` replace them.
mod sync {
    pub(super) use shoal_base::sync::Mutex;
}
