//! The store as its archive sees it (`OpenOptions::archived`): the log from the floor on, and the values that records only name.
//!
//! The archive pulls: it reads batches ([`Store::batch_after`]) and values ([`Store::logged_value`]), and raises the floor
//! ([`Store::release_log`]) once they are safe elsewhere. Until then nothing that it reads is overwritten (INV-46, INV-47). `recovery/unread.rs` finds
//! where it continues after a restart; the floor itself is in `crates/log/src/commit/archived.rs`, and the freed runs that wait for it are in
//! `crates/space-manager/src/unread.rs`.

use bytes::{Buf, Bytes};
use shoal_base::Lsn;
use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_log::FoundBatch;
use shoal_log::format::{BatchTimes, EncodedRecord};
use shoal_pool::Hint;
use shoal_tablets::checkpoint::publish::Publication;
use shoal_value::{Entry, Home};

use crate::store::log_facts::LogFacts;
use crate::store::threads::Duty;
use crate::store::{Inner, Store};

/// A record of the log.
#[derive(Clone, Debug)]
pub struct FlushedRecord {
    /// Its number.
    pub lsn: Lsn,
    /// The record.
    pub record: EncodedRecord,
    /// The length of its stored bytes if they are not in the record; else 0.
    pub stored_bytes: u64,
}

/// A flushed batch of the log.
#[derive(Clone, Debug)]
pub struct FlushedBatch {
    /// Store time, nanoseconds (R18).
    pub store_ns: u64,
    /// The wall clock then, nanoseconds since the Unix epoch.
    pub wall_ns: u64,
    /// Its records, with consecutive numbers; at least one.
    pub records: Vec<FlushedRecord>,
}

impl FlushedBatch {
    fn of(found: FoundBatch) -> Self {
        let (store_ns, wall_ns) = match found.header.stamp {
            BatchTimes::Now { store_ns, wall_ns } => (store_ns, wall_ns),
            BatchTimes::Older { expiry_clock_ns } => (expiry_clock_ns, expiry_clock_ns),
        };
        let numbered = (found.header.first_lsn.0..).map(Lsn).zip(found.records);
        let records = numbered.map(|(lsn, record)| {
            let stored_bytes = entry_outside(&record).map_or(0, |entry| entry.stored_bytes());
            FlushedRecord { lsn, record, stored_bytes }
        });
        Self { store_ns, wall_ns, records: records.collect() }
    }
}

/// The entry of a record whose stored bytes are in blocks; `None` if they are in the record, or if there are none.
fn entry_outside(record: &EncodedRecord) -> Option<Entry> {
    let (entry, _) = Entry::decode(record.body_bytes()).ok()?;
    (entry.home != Home::Inline).then_some(entry)
}

impl Store {
    /// The log as the opening found it. Zeros unless the store was opened with [`OpenOptions::archived`](crate::OpenOptions::archived).
    #[must_use]
    pub fn log_facts(&self) -> LogFacts {
        self.0.log_facts
    }

    /// The number of tablets.
    #[must_use]
    pub fn tablets(&self) -> u16 {
        self.0.tablets.all().len() as u16
    }

    /// Remembers the log of an archive in the superblock: durable when this returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the store was opened without an archive; as a write.
    pub fn remember_archive_log(&self, log: u64) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.0.check_writable()?;
            if self.0.log.committer.floor().is_none() {
                return Err(Error::Invalid(
                    "the store was opened without an archive, so it remembers no log of one".into(),
                ));
            }
            let changes = Publication { archive_log: Some(log), ..Publication::default() };
            self.0.checkpointer.publish(changes).await.map(drop)
        })
    }

    /// The newest flushed record. Numbers that no record has may be above it.
    #[must_use]
    pub fn newest_logged(&self) -> Lsn {
        self.0.log.committer.newest_record()
    }

    /// The first flushed batch with a record after `after`; `None` if there is none. Numbers between two batches may be missing.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the log was overwritten from there on, or is damaged; [`Error::Io`]; [`Error::Closed`], [`Error::Poisoned`] if
    /// no batch can follow.
    pub fn batch_after(&self, after: Lsn) -> Boxed<'_, Result<Option<FlushedBatch>>> {
        Box::pin(async move {
            self.0.check_open()?;
            let found = self.0.log.committer.batch_after(after).await?;
            if found.is_none() {
                self.0.log.poison.check()?;
            }
            Ok(found.map(FlushedBatch::of))
        })
    }

    /// Bytes `first` to `first + bytes` of the stored bytes of a record above the floor: metadata before the value, then the value. Whole
    /// units of 64 KiB are read and verified, past the cache unless they are in it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the record has fewer such bytes; [`Error::Corrupt`] if they are not the written bytes; [`Error::Io`];
    /// [`Error::Closed`].
    pub fn logged_value<'a>(
        &'a self,
        (lsn, record): (Lsn, &'a EncodedRecord),
        first: u64,
        bytes: usize,
    ) -> Boxed<'a, Result<Bytes>> {
        Box::pin(async move {
            let inner = &*self.0;
            inner.check_open()?;
            let entry = entry_outside(record).filter(|entry| {
                first.checked_add(bytes as u64).is_some_and(|end| end <= entry.stored_bytes())
            });
            let Some(entry) = entry else {
                return Err(Error::Invalid(format!(
                    "record {lsn} has no {bytes} stored bytes from byte {first} on in blocks"
                )));
            };
            let located = inner.manifests.find(&inner.device, &inner.pool, &entry, lsn).await?;
            let read =
                shoal_value::read(&inner.device, &inner.pool, &located, first, bytes as u64, Hint::Scan);
            let mut value = read.await?;
            Ok(value.copy_to_bytes(bytes))
        })
    }

    /// Waits until a record after `after` is flushed, or until none can follow.
    pub fn wait_logged(&self, after: Lsn) -> Boxed<'_, ()> {
        Box::pin(async move {
            let inner = &*self.0;
            let is_over = || {
                inner.log.committer.newest_record() > after
                    || inner.check_open().is_err()
                    || inner.log.poison.reason().is_some()
            };
            inner.log.committer.moved.wait_until(|| is_over().then_some(())).await;
        })
    }

    /// Notes that everything up to `lsn` is safe elsewhere: the log may be overwritten up to there, and blocks reused. Does no I/O; the
    /// store's threads let the log go if it is half full or if writers wait.
    pub fn release_log(&self, lsn: Lsn) {
        self.0.release_log(lsn);
    }

    /// The share of the log that holds records above the floor, in thousandths: writers wait when it is full. 0 without an archive.
    #[must_use]
    pub fn log_held_permille(&self) -> u32 {
        self.0.log.committer.unarchived_permille()
    }
}

impl Inner {
    fn release_log(&self, lsn: Lsn) {
        let committer = &self.log.committer;
        if !committer.raise_floor(lsn) {
            return;
        }
        let floor = committer.floor().unwrap_or(lsn);
        if self.space.release_unread(floor) > 0 {
            committer.sleepers.happened();
        }
        if let Some(worker) = &self.maintenance.worker
            && (self.log.fill_permille() >= 500 || self.tablets.admission.is_waited_for())
        {
            worker.wake(Duty::Apply);
        }
        // Writers may wait for just this room.
        committer.moved.notify();
    }
}
