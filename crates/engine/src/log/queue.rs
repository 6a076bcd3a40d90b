//! The committer's queue: write batches, and the markers of frozen memtables.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_device::{IoFuture, memory::Guarded};
use shoal_pool::WriteMemory;
use smallvec::SmallVec;

use crate::log::kept::Kept;
use crate::log::record::{Record, UNNUMBERED};
use crate::space::manager::Extents;

/// The write of a value, which the driver starts together with the batch.
pub(crate) type ValueWrite = IoFuture<Guarded<WriteMemory, Arc<Extents>>>;

/// An item of the queue.
pub(crate) enum Item {
    /// A write batch, with the blocks of the ring that it reserved.
    Writes { batch: QueuedBatch, reserved: u32 },
    /// The marker of a frozen memtable. It gets the last number before it once everything before it is durable.
    Marker(Arc<Marker>),
}

/// A write batch in the queue. Its records go into one log batch, one after the other, and recovery takes all of them
/// or none (R22).
#[derive(Default)]
pub(crate) struct QueuedBatch {
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
pub(crate) struct Marker {
    lsn: AtomicU64,
}

impl Marker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { lsn: AtomicU64::new(UNNUMBERED) })
    }

    pub(super) fn reached(&self) -> Option<Lsn> {
        let lsn = self.lsn.load(Ordering::Acquire);
        (lsn != UNNUMBERED).then_some(Lsn(lsn))
    }
    /// Notes that everything before the marker is durable, up to `lsn`.
    pub(super) fn reach(&self, lsn: Lsn) {
        self.lsn.store(lsn.0, Ordering::Release);
    }
}
