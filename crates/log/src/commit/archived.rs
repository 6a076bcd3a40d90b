//! The log of a store with an archive, which reads it batch by batch.
//!
//! No superblock's tail passes the *floor*, and the archive raises the floor (INV-46): so every record above it is in the ring, also after a
//! restart. The newest batches are in memory, too: the committer hands their buffers over after the flush. They save the reads of an archive
//! that keeps up, and nothing depends on them.

use std::collections::VecDeque;
use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_common::error::{Error, Result};
use shoal_device::IoBuf;

use super::Committer;
use crate::format::check_batch;
use crate::read::{FoundBatch, decode_records};
use crate::ring::{LogPlace, WrittenBatch};

/// Bytes of the batches in memory at most.
const HOT_BYTES_MAX: usize = 4 << 20;

/// The part of a log that its archive has not read, at an opening.
#[derive(Clone, Copy, Debug)]
pub struct ArchivedStart {
    /// Every record above this one is in the log.
    pub floor: Lsn,
    /// The newest record that recovery found; the floor if there is none above it.
    pub newest: Lsn,
}

/// The part of a log that its archive has not read.
pub(super) struct ArchivedLog {
    /// Only rises. Release by the archive, after everything up to it is safe elsewhere.
    floor: AtomicU64,
    /// Records up to this one may be overwritten: a durable superblock's tail is after them.
    gone: AtomicU64,
    /// The newest flushed record. Numbers without a record may be above it.
    newest: AtomicU64,
    hot: Mutex<HotBatches>,
}

/// The newest batches, in the order of positions.
#[derive(Default)]
struct HotBatches {
    batches: VecDeque<HotBatch>,
    bytes: usize,
}

struct HotBatch {
    position: u64,
    /// The first number after those of its records.
    next_lsn: Lsn,
    bytes: Arc<IoBuf>,
}

impl HotBatches {
    /// Adds a batch. Returns the oldest ones for which no room is left.
    fn push(&mut self, batch: HotBatch) -> Vec<HotBatch> {
        self.bytes += batch.bytes.len();
        self.batches.push_back(batch);
        let mut count = 0;
        while self.bytes > HOT_BYTES_MAX {
            self.bytes -= self.batches[count].bytes.len();
            count += 1;
        }
        self.batches.drain(..count).collect()
    }

    /// Removes and returns the batches that have no record above `floor`.
    fn release(&mut self, floor: Lsn) -> Vec<HotBatch> {
        let count = self.batches.partition_point(|batch| batch.next_lsn <= floor.next());
        self.bytes -= self.batches.iter().take(count).map(|batch| batch.bytes.len()).sum::<usize>();
        self.batches.drain(..count).collect()
    }

    fn get(&self, position: u64) -> Option<Arc<IoBuf>> {
        let found = self.batches.binary_search_by_key(&position, |batch| batch.position).ok()?;
        Some(self.batches[found].bytes.clone())
    }
}

impl ArchivedLog {
    pub(super) fn new(start: ArchivedStart) -> Self {
        assert!(start.floor <= start.newest, "the log has no record below its floor");
        Self {
            floor: AtomicU64::new(start.floor.0),
            gone: AtomicU64::new(start.floor.0),
            newest: AtomicU64::new(start.newest.0),
            hot: Mutex::default(),
        }
    }

    fn floor(&self) -> Lsn {
        Lsn(self.floor.load(Ordering::Acquire))
    }

    /// Keeps the memory of a flushed batch.
    fn keep(&self, position: u64, next_lsn: Lsn, bytes: IoBuf) {
        if bytes.len() <= HOT_BYTES_MAX {
            let batch = HotBatch { position, next_lsn, bytes: Arc::new(bytes) };
            let gone = self.hot.lock().push(batch);
            // Memory is freed outside of the lock.
            drop(gone);
        }
    }

    /// Notes that batches before `tail` may be overwritten from now on.
    pub(super) fn lets_go(&self, tail: LogPlace) {
        let last = tail.first_lsn.0.saturating_sub(1).min(self.floor().0);
        self.gone.fetch_max(last, Ordering::AcqRel);
    }
}

impl Committer {
    /// Keeps the memory of the batch at `position`, which is flushed, for an archive. The number after those of its records is `next_lsn`.
    #[inline]
    pub(super) fn keep_flushed(&self, (position, bytes): (u64, IoBuf), next_lsn: Lsn, has_records: bool) {
        let Some(archived) = &self.archived else { return };
        archived.keep(position, next_lsn, bytes);
        if has_records {
            archived.newest.store(next_lsn.0 - 1, Ordering::Release);
        }
    }

    /// The archive has everything up to this record; `None` without an archive.
    #[inline]
    pub fn floor(&self) -> Option<Lsn> {
        self.archived.as_ref().map(ArchivedLog::floor)
    }

    /// The newest flushed record. Without an archive, a number without a record may be the result.
    pub fn newest_record(&self) -> Lsn {
        match &self.archived {
            Some(archived) => Lsn(archived.newest.load(Ordering::Acquire)),
            None => self.durable(),
        }
    }

    /// Returns true if there is an archive that has not read all records.
    #[inline]
    pub fn has_unread(&self) -> bool {
        self.floor().is_some_and(|floor| floor < self.newest_record())
    }

    /// Raises the floor to `lsn`, at most to the newest flushed record. Returns false if it was as high already.
    pub fn raise_floor(&self, lsn: Lsn) -> bool {
        let Some(archived) = &self.archived else { return false };
        let floor = lsn.min(self.newest_record());
        let is_raised = archived.floor.fetch_max(floor.0, Ordering::AcqRel) < floor.0;
        if is_raised {
            let gone = archived.hot.lock().release(floor);
            drop(gone);
        }
        is_raised
    }

    /// The share of the ring's prepared blocks that have records above the floor, in thousandths; 0 without an archive.
    pub fn unarchived_permille(&self) -> u32 {
        let Some(floor) = self.floor() else { return 0 };
        let (from, head) = {
            let index = self.index.lock();
            (index.place_of(floor.next()).position, index.head().position)
        };
        ((head - from) * 1000 / u64::from(self.ring.prepared())).min(1000) as u32
    }

    /// The first flushed batch with a record after `after`, as the ring has it; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the log no longer has these records, or not as they were written; as the device.
    pub async fn batch_after(&self, after: Lsn) -> Result<Option<FoundBatch>> {
        let Some(archived) = &self.archived else { return Ok(None) };
        let mut position = 0;
        loop {
            // In this order: a batch that is let go meanwhile is reported, not passed over.
            let written = self.index.lock().batch_from(after.next(), position);
            self.check_not_gone(archived, after)?;
            let Some(written) = written.filter(|written| written.place.first_lsn <= self.newest_record())
            else {
                return Ok(None);
            };
            let found = self.read_written(archived, written).await?;
            let Some(found) = found else {
                self.check_not_gone(archived, after)?;
                let reason =
                    format!("the batch of the log from record {} is damaged", written.place.first_lsn);
                return Err(unreadable(reason, self.ring.block(written.place.position)));
            };
            if found.header.records > 0 && found.header.next_lsn() > after.next() {
                return Ok(Some(found));
            }
            position = written.place.position + 1;
        }
    }

    fn check_not_gone(&self, archived: &ArchivedLog, after: Lsn) -> Result<()> {
        let gone = archived.gone.load(Ordering::Acquire);
        if after.0 >= gone {
            return Ok(());
        }
        let reason = format!("the log may be overwritten up to record {gone}, and was read after {after}");
        Err(unreadable(reason, self.ring.block(0)))
    }

    /// The batch at its place, from memory or from the ring; `None` if the ring has something else there.
    async fn read_written(
        &self,
        archived: &ArchivedLog,
        written: WrittenBatch,
    ) -> Result<Option<FoundBatch>> {
        let WrittenBatch { place, blocks } = written;
        let hot = archived.hot.lock().get(place.position);
        let bytes = match hot {
            Some(bytes) => bytes,
            None => {
                let read =
                    self.device.read(self.ring.block(place.position), IoBuf::unfilled(blocks as usize));
                Arc::new(read.await.ok()?)
            }
        };
        let checked = check_batch(&bytes, self.seed).filter(|(header, _)| header.place() == place);
        Ok(checked.and_then(|(header, _)| {
            let records = decode_records(&header, &bytes)?;
            Some(FoundBatch { header, records })
        }))
    }
}

fn unreadable(what: String, block: u64) -> Error {
    Error::Corrupt { what, block }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot(position: u64, next_lsn: u64, blocks: usize) -> HotBatch {
        HotBatch { position, next_lsn: Lsn(next_lsn), bytes: Arc::new(IoBuf::new(blocks)) }
    }

    #[test]
    fn hot_batches_are_bounded_and_released() {
        let mut batches = HotBatches::default();
        for which in 0..3_000 {
            drop(batches.push(hot(which * 2, which + 1, 2)));
            assert!(batches.bytes <= HOT_BYTES_MAX);
        }
        assert_eq!((batches.batches.len(), batches.bytes), (512, HOT_BYTES_MAX));
        assert!(batches.get(5_998).is_some() && batches.get(5_999).is_none() && batches.get(0).is_none());
        assert_eq!(batches.release(Lsn(2_990)).len(), 503);
        assert_eq!((batches.batches.len(), batches.bytes), (9, 9 * 2 * 4096));
        assert_eq!(batches.batches[0].next_lsn, Lsn(2_991 + 1), "a record above the floor is kept");
        let archived = ArchivedLog::new(ArchivedStart { floor: Lsn(1), newest: Lsn(1) });
        archived.keep(0, Lsn(2), IoBuf::new(HOT_BYTES_MAX / 4096 + 1));
        assert!(archived.hot.lock().batches.is_empty(), "longer batches are read from the ring");
    }
}
