//! The spool: batches that wait for the bucket in a file beside the data file, so that the store's log need not keep them.
//!
//! Its segments are a log that no record names: an opening with the number after which they start, then whole batches of the store's log.
//! They are packed again into slots of the archive's log when they are sent, so a restart with another log loses nothing.
//!
//! The index of its segments is in memory, under a lock; the file is read and written without it.

mod append;
mod overflow;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use shoal_base::Lsn;

pub(super) use append::SpoolAppender;
#[cfg(test)]
pub(super) use append::SpoolLimits;
pub(super) use overflow::overflow;

use super::chain::LogChain;
use crate::format::{
    ArchiveSegment, LogSlot, LoggedRecord, PackedBatch, SEGMENT_HEADER_BYTES, SegmentBatch, SegmentBody,
    SegmentHeader, SpoolReader, VolumeId, spool_bytes,
};
use crate::source::SourceError;

/// Bytes of the file for the opening, and for the head of a segment.
const SPOOL_SLACK: u64 = 2 * crate::format::SPOOL_ALIGNMENT;

/// A segment of the spool.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: LogSlot,
    offset: u64,
    bytes: u64,
    /// The last number in it; of a segment of pieces, the number of the record that they belong to.
    last: Lsn,
    /// Has pieces only.
    is_pieces: bool,
}

#[derive(Default)]
struct Index {
    entries: VecDeque<Entry>,
    /// The records start after this one.
    from: Lsn,
    /// Everything up to here is flushed.
    last: Lsn,
    /// Bytes of the file.
    bytes: u64,
    /// A restart of the spool: segments of an older one are gone.
    generation: u64,
}

/// The file, locked for this process.
pub(super) struct SpoolFile {
    file: Arc<File>,
    volume: VolumeId,
    index: Mutex<Index>,
}

impl SpoolFile {
    /// Opens the file, or creates it, and locks it.
    ///
    /// # Errors
    /// The file cannot be opened, or another process has it.
    pub(super) fn open(path: &Path, volume: VolumeId) -> io::Result<Self> {
        let options = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = options.map_err(|error| named(path, &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(named(path, &io::Error::other("another process uses it")));
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(named(path, &error)),
        }
        Ok(Self { file: Arc::new(file), volume, index: Mutex::default() })
    }

    /// The number of the last record in it; 0 if it is empty.
    pub(super) fn last(&self) -> Lsn {
        self.index.lock().last
    }

    /// The number after which its records start, if it has one.
    pub(super) fn from(&self) -> Option<Lsn> {
        let index = self.index.lock();
        (index.last > Lsn::NONE).then_some(index.from)
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.index.lock().bytes
    }

    /// Finds the segments that an earlier process left, and cuts the file at the end of the last whole batch of the store's log.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) async fn recover(self: &Arc<Self>) -> io::Result<SpoolAppender> {
        let spool = Arc::clone(self);
        blocking(move || spool.recover_now()).await?;
        Ok(SpoolAppender::new(Arc::clone(self)))
    }

    fn recover_now(&self) -> io::Result<()> {
        let mut read = |offset: u64, buffer: &mut [u8]| read_at(&self.file, offset, buffer);
        let mut head = [0; SEGMENT_HEADER_BYTES];
        let mut index = Index::default();
        if read(0, &mut head)? == head.len() {
            let log = u64::from_le_bytes(head[32..40].try_into().unwrap_or_default());
            let mut reader = SpoolReader::new(self.volume, LogSlot { log, seq: 0 });
            let mut at = 0;
            while let Some((bytes, segment)) = reader.next_segment(&mut read)? {
                index.push(at, bytes.len() as u64, &segment);
                at = reader.at();
            }
        }
        // A long value whose record is missing is read from the store again.
        while index.entries.back().is_some_and(|entry| entry.is_pieces) {
            index.entries.pop_back();
        }
        index.last = index.entries.back().map_or(Lsn::NONE, |entry| entry.last);
        index.bytes = index.entries.back().map_or(0, |entry| entry.offset + spool_bytes(entry.bytes));
        self.file.set_len(index.bytes)?;
        *self.index.lock() = index;
        Ok(())
    }

    /// The header of the last segment.
    async fn last_header(&self) -> io::Result<Option<SegmentHeader>> {
        let Some(entry) = self.index.lock().entries.back().copied() else { return Ok(None) };
        let (file, volume) = (Arc::clone(&self.file), self.volume);
        blocking(move || {
            let mut head = [0; SEGMENT_HEADER_BYTES];
            read_at(&file, entry.offset, &mut head)?;
            SegmentHeader::decode(&head, &volume, entry.slot).map(Some).map_err(io::Error::other)
        })
        .await
    }

    /// Empties it.
    async fn clear(&self) -> io::Result<()> {
        {
            let mut index = self.index.lock();
            *index = Index { generation: index.generation + 1, ..Index::default() };
        }
        let file = Arc::clone(&self.file);
        blocking(move || file.set_len(0)).await
    }

    /// The batches after record `sent`.
    pub(super) fn batches(self: &Arc<Self>, sent: Lsn) -> SpooledBatches {
        let index = self.index.lock();
        let next = index.entries.iter().find(|entry| entry.last > sent).map(|entry| entry.slot.seq);
        SpooledBatches { spool: Arc::clone(self), generation: index.generation, next: next.unwrap_or(0) }
    }
}

impl Index {
    /// Adds the segment at `offset`, an opening too.
    fn push(&mut self, offset: u64, bytes: u64, segment: &ArchiveSegment) {
        let batches = match &segment.body {
            SegmentBody::Opening(opening) => {
                self.from = opening.previous_last_lsn;
                return;
            }
            SegmentBody::Batches(batches) => batches,
            SegmentBody::Empty => return,
        };
        let is_pieces = batches.iter().all(|batch| batch.count == 0);
        let owner = batches.first().and_then(piece_of);
        let last = if is_pieces { owner.unwrap_or_default() } else { segment.header.end.last_lsn };
        self.entries.push_back(Entry { slot: segment.header.slot, offset, bytes, last, is_pieces });
    }
}

/// The record to which a batch of pieces belongs.
fn piece_of(batch: &SegmentBatch) -> Option<Lsn> {
    match batch.records().ok()?.first()? {
        LoggedRecord::Piece(piece) => Some(Lsn(piece.id)),
        LoggedRecord::Write { .. } => None,
    }
}

/// Reads the batches of a spool in order.
pub(super) struct SpooledBatches {
    spool: Arc<SpoolFile>,
    generation: u64,
    /// The next segment.
    next: u64,
}

impl SpooledBatches {
    /// The batches of the next segment without those up to record `sent`; `None` at the end, and if the spool was emptied.
    ///
    /// # Errors
    /// A segment cannot be read.
    pub(super) async fn next(&mut self, sent: Lsn) -> Result<Option<Vec<PackedBatch>>, SourceError> {
        let lost = |why: String| SourceError::Lost(format!("the spool: {why}"));
        let entry = {
            let index = self.spool.index.lock();
            if index.generation != self.generation {
                return Ok(None);
            }
            index.entries.iter().find(|entry| entry.slot.seq >= self.next).copied()
        };
        let Some(entry) = entry else { return Ok(None) };
        let (file, volume) = (Arc::clone(&self.spool.file), self.spool.volume);
        let read = move || {
            let mut bytes = vec![0; entry.bytes as usize];
            let count = read_at(&file, entry.offset, &mut bytes)?;
            bytes.truncate(count);
            Ok(Bytes::from(bytes))
        };
        let bytes = blocking(read).await.map_err(|error| lost(error.to_string()))?;
        let segment = ArchiveSegment::decode(&bytes, &volume, entry.slot);
        let segment = segment.map_err(|error| lost(error.to_string()))?;
        self.next = entry.slot.seq + 1;
        let SegmentBody::Batches(batches) = segment.body else { return Ok(Some(Vec::new())) };
        let is_new = |batch: &&SegmentBatch| match batch.count {
            0 => piece_of(batch).is_some_and(|owner| owner > sent),
            _ => batch.packed().last_lsn() > sent,
        };
        Ok(Some(batches.iter().filter(is_new).map(|batch| batch.packed()).collect()))
    }
}

/// Reads as far as the file goes.
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// File system calls block: they run on threads that may.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the spool {}: {error}", path.display()))
}
