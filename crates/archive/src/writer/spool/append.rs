//! Appends to the spool. A record counts once it is flushed.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use shoal_base::Lsn;

use super::super::chain::MadeSlot;
use super::{Entry, LogChain, SPOOL_SLACK, SpoolFile, blocking};
use crate::format::{Opening, PackedBatch, spool_bytes};

/// The writing end of the spool.
pub(in crate::writer) struct SpoolAppender {
    spool: Arc<SpoolFile>,
    chain: Option<LogChain>,
    /// Batches of the segment that is being built.
    batches: Vec<PackedBatch>,
    batch_bytes: usize,
    /// Record whose pieces are being appended.
    owner: Option<Lsn>,
    /// Segments that are not flushed.
    unflushed: Vec<Entry>,
    /// Where the next segment starts.
    end: u64,
}

/// A reason to give the spool up.
#[derive(Debug)]
pub(in crate::writer) enum SpoolFailure {
    /// It has as many bytes as it may have.
    Full,
    /// The file system.
    Io(io::Error),
}

impl From<io::Error> for SpoolFailure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl SpoolAppender {
    pub(in crate::writer) fn new(spool: Arc<SpoolFile>) -> Self {
        let end = spool.file_bytes();
        Self {
            spool,
            chain: None,
            batches: Vec::new(),
            batch_bytes: 0,
            owner: None,
            unflushed: Vec::new(),
            end,
        }
    }

    /// Empties the spool.
    pub(in crate::writer) async fn clear(&mut self) -> io::Result<()> {
        *self = Self { end: 0, ..Self::new(Arc::clone(&self.spool)) };
        self.spool.clear().await
    }

    /// Appends a batch of the records after `from`. `owner` is the record to which the pieces of a batch of pieces belong.
    pub(in crate::writer) async fn push(
        &mut self,
        batch: PackedBatch,
        from: Lsn,
        owner: Option<Lsn>,
        limits: SpoolLimits,
    ) -> Result<(), SpoolFailure> {
        if self.chain.is_none() {
            self.start(from).await?;
        }
        // A segment whose last batch has pieces has nothing else, so that it can be cut off.
        let starts_pieces = owner.is_some() && owner != self.owner;
        let is_full = self.batch_bytes + batch.segment_bytes() > limits.segment_bytes;
        if !self.batches.is_empty() && (starts_pieces || is_full) {
            self.write().await?;
        }
        self.owner = owner;
        self.batch_bytes += batch.segment_bytes();
        self.batches.push(batch);
        match self.end + self.batch_bytes as u64 + SPOOL_SLACK > limits.file_bytes {
            true => Err(SpoolFailure::Full),
            false => Ok(()),
        }
    }

    /// Flushes everything that was appended, and makes it visible.
    pub(in crate::writer) async fn flush(&mut self) -> Result<(), SpoolFailure> {
        self.write().await?;
        if self.unflushed.is_empty() {
            return Ok(());
        }
        let file = Arc::clone(&self.spool.file);
        blocking(move || file.sync_data()).await?;
        let mut index = self.spool.index.lock();
        index.entries.extend(self.unflushed.drain(..));
        let whole = index.entries.iter().rev().find(|entry| !entry.is_pieces).map(|entry| entry.last);
        index.last = whole.unwrap_or(index.last);
        Ok(())
    }

    /// The log of a new spool, or a new log after the one that an earlier process left.
    async fn start(&mut self, from: Lsn) -> Result<(), SpoolFailure> {
        let last_header = self.spool.last_header().await?;
        if let Some(header) = last_header {
            self.chain = Some(LogChain::after(&header));
            return Ok(());
        }
        let mut chain = LogChain::new(self.spool.volume, 1, 0, from);
        let opening = Opening { previous_last_lsn: from, ..Opening::default() };
        let made = chain.opening(0, &opening, false).map_err(io::Error::other)?;
        self.chain = Some(chain);
        self.spool.index.lock().from = from;
        self.write_slot(&made, 0).await
    }

    async fn write(&mut self) -> Result<(), SpoolFailure> {
        if self.batches.is_empty() {
            return Ok(());
        }
        let is_pieces = self.batches.iter().all(|batch| batch.count == 0);
        let (batches, owner) = (std::mem::take(&mut self.batches), self.owner);
        self.batch_bytes = 0;
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let made = chain.data(0, batches).map_err(io::Error::other)?;
        let last = if is_pieces { owner.unwrap_or_default() } else { made.end.last_lsn };
        let (offset, bytes) = (self.end, made.bytes.len() as u64);
        self.write_slot(&made, offset).await?;
        self.unflushed.push(Entry { slot: made.slot, offset, bytes, last, is_pieces });
        Ok(())
    }

    async fn write_slot(&mut self, made: &MadeSlot, offset: u64) -> Result<(), SpoolFailure> {
        let (file, bytes) = (Arc::clone(&self.spool.file), made.bytes.clone());
        blocking(move || file.write_all_at(&bytes, offset)).await?;
        self.end = offset + spool_bytes(made.bytes.len() as u64);
        self.spool.index.lock().bytes = self.end;
        Ok(())
    }
}

/// Limits of the spool.
#[derive(Clone, Copy, Debug)]
pub(in crate::writer) struct SpoolLimits {
    /// A segment is complete from this number of bytes on.
    pub(in crate::writer) segment_bytes: usize,
    /// Bytes of the file at most.
    pub(in crate::writer) file_bytes: u64,
}
