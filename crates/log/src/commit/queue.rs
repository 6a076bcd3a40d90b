//! The committer's queue: write batches, and the markers of frozen memtables.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_device::{IoFuture, memory::Guarded};
use shoal_pool::WriteMemory;
use shoal_space_manager::Extents;
use smallvec::SmallVec;

use super::kept::Kept;
use crate::record::{Record, UNNUMBERED};

/// The write of a value, which the driver starts together with the batch.
pub type ValueWrite = IoFuture<Guarded<WriteMemory, Arc<Extents>>>;

/// An item of the queue.
pub enum Item {
    /// A write batch.
    Writes {
        /// The records and their values.
        batch: QueuedBatch,
        /// Blocks of the ring that its writer reserved.
        reserved: u32,
    },
    /// The marker of a frozen memtable. It gets the last number before it once everything before it is durable.
    Marker(Arc<Marker>),
}

/// A write batch in the queue. Its records go into one log batch, one after the other, and recovery takes all of them
/// or none (R22).
#[derive(Default)]
pub struct QueuedBatch {
    /// The records, in the order of their numbers.
    pub records: SmallVec<[Arc<Record>; 1]>,
    /// Writes of values that no thread has started.
    pub writes: Vec<ValueWrite>,
    /// True if values were written before: then the batch needs a real flush.
    pub has_extents: bool,
    /// The changes of the pool once the records are durable.
    pub kept: Vec<(Arc<Record>, Kept)>,
}

impl QueuedBatch {
    pub(super) fn bytes(&self) -> usize {
        self.records.iter().map(|record| record.bytes().len()).sum()
    }
}

/// The place of a freeze in the order of records (R4).
pub struct Marker {
    lsn: AtomicU64,
}

impl Marker {
    /// A marker that is about to be queued.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { lsn: AtomicU64::new(UNNUMBERED) })
    }

    pub(super) fn reached(&self) -> Option<Lsn> {
        let lsn = self.lsn.load(Ordering::Acquire);
        (lsn != UNNUMBERED).then_some(Lsn(lsn))
    }
    /// Notes that everything before the marker is durable, up to `lsn`.
    pub(super) fn reach(&self, lsn: Lsn) {
        let before = self.lsn.swap(lsn.0, Ordering::AcqRel);
        assert!(before == UNNUMBERED && lsn.0 < UNNUMBERED, "a marker is reached once (R4)");
    }
}
