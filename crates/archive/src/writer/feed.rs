//! The batches that are shipped next: from the spool as far as it goes, else from the store's log.

use std::collections::VecDeque;
use std::sync::Arc;

use shoal_base::Lsn;

use super::progress::Shared;
use super::spool::SpooledBatches;
use super::unit::Unit;
use crate::format::PackedBatch;
use crate::source::SourceError;

/// The source of batches. A batch of the store's log whose values come in pieces is several batches here, the last one with numbers.
pub(super) struct Feed {
    shared: Arc<Shared>,
    /// All records up to here were taken.
    sent: Lsn,
    /// Batches of pieces that were taken after that.
    taken: usize,
    /// Batches of pieces that were taken before the source changed.
    skip: usize,
    source: Source,
}

enum Source {
    None,
    Store(Box<Unit>),
    Spool(SpooledBatches, VecDeque<PackedBatch>),
}

impl Feed {
    /// The batches after `sent`.
    pub(super) fn new(shared: Arc<Shared>, sent: Lsn) -> Self {
        Self { shared, sent, taken: 0, skip: 0, source: Source::None }
    }

    /// The last record that was taken.
    pub(super) fn sent(&self) -> Lsn {
        self.sent
    }

    /// The next batch; `None` if no more is flushed.
    ///
    /// # Errors
    /// [`SourceError`]: the records are in the store's log and in the spool no more.
    pub(super) async fn next(&mut self) -> Result<Option<PackedBatch>, SourceError> {
        loop {
            let batch = match &mut self.source {
                Source::None => {
                    if !self.open().await? {
                        return Ok(None);
                    }
                    continue;
                }
                Source::Store(unit) => {
                    let batch = unit.next(&*self.shared.store).await;
                    if self.is_passed() {
                        // The log may be overwritten there, and the spool has it.
                        self.close();
                        continue;
                    }
                    batch?
                }
                Source::Spool(spooled, batches) => {
                    if self.taken == 0 && self.skip == 0 && self.sent >= self.shared.spool.last() {
                        None
                    } else if batches.is_empty() {
                        match spooled.next(self.sent).await? {
                            Some(found) => batches.extend(found),
                            None => self.close(),
                        }
                        continue;
                    } else {
                        batches.pop_front()
                    }
                }
            };
            match batch {
                None => self.close(),
                Some(_) if self.skip > 0 => self.skip -= 1,
                Some(batch) if batch.count > 0 && batch.first_lsn <= self.sent => {
                    let (first, sent) = (batch.first_lsn, self.sent);
                    let why = format!(
                        "the archive has records up to {sent}, and the store has a batch from {first} on"
                    );
                    return Err(SourceError::Lost(why));
                }
                Some(batch) => return Ok(Some(self.take(batch))),
            }
        }
    }

    /// Waits until there may be a next batch.
    pub(super) async fn wait(&self) {
        self.shared.store.wait_for(self.sent).await;
    }

    fn take(&mut self, batch: PackedBatch) -> PackedBatch {
        if batch.count > 0 {
            (self.sent, self.taken) = (batch.last_lsn(), 0);
        } else {
            self.taken += 1;
        }
        batch
    }

    fn close(&mut self) {
        (self.source, self.skip) = (Source::None, self.taken);
    }

    /// True if the store's log is released beyond the next record.
    fn is_passed(&self) -> bool {
        self.shared.progress.lock().released > self.sent
    }

    /// Opens a source; returns false if there is no more.
    async fn open(&mut self) -> Result<bool, SourceError> {
        if self.shared.spool.last() > self.sent {
            self.source = Source::Spool(self.shared.spool.batches(self.sent), VecDeque::new());
            return Ok(true);
        }
        let batch = self.shared.store.next_batch(self.sent).await;
        if self.is_passed() {
            // The spool took it in the meantime. Without the spool the records are gone.
            return match self.shared.spool.last() > self.sent {
                true => Ok(true),
                false => Err(SourceError::Lost("the store's log was released".to_owned())),
            };
        }
        let Some(batch) = batch? else { return Ok(false) };
        self.source = Source::Store(Box::new(Unit::new(batch, self.sent)?));
        Ok(true)
    }
}
