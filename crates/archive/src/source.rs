//! The store behind an archive, as the archive sees it: its log, the values that the log only names, and snapshots for bases.

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::task::Boxed;
use shoal_log::format::EncodedRecord;

use crate::format::VolumeId;

/// Facts about a store that do not change while it is open.
#[derive(Clone, Copy, Debug)]
pub struct SourceFacts {
    /// Its identity.
    pub volume: VolumeId,
    /// Its tablets.
    pub tablets: u16,
    /// The log of the archive that it wrote last; 0 if it was served without an archive since, or never had one.
    pub remembered_log: u64,
    /// The last record that the opening found: everything that the store had acknowledged, and no record of this opening.
    pub recovered: Lsn,
    /// The last record of the openings that had a log of the archive, or `recovered` if all had one: an archive with later records has those
    /// of a copy of the store.
    pub last_owned: Lsn,
    /// Every record from this number on is in the store's log.
    pub log_start: Lsn,
}

/// A record of the store's log.
#[derive(Clone, Debug)]
pub struct SourceRecord {
    /// Its number.
    pub lsn: Lsn,
    /// The record.
    pub record: EncodedRecord,
    /// The length of its stored bytes (metadata before the value, and the value) if they are not in the record; else 0.
    pub stored_bytes: u64,
}

/// A batch of the store's log: whole write batches (R22), flushed.
#[derive(Clone, Debug)]
pub struct SourceBatch {
    /// Store time, nanoseconds (R18).
    pub store_ns: u64,
    /// The wall clock then, nanoseconds since the Unix epoch.
    pub wall_ns: u64,
    /// Its records, with consecutive numbers; at least one.
    pub records: Vec<SourceRecord>,
}

/// The reason why the archive cannot read further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The log was overwritten, or the blocks of a value were reused, before the archive read them: a gap.
    #[error("{0}")]
    Lost(String),
    /// The store is closed or poisoned.
    #[error("{0}")]
    Closed(String),
}

/// A store that is archived.
///
/// The log is kept from the floor on: nothing above it is overwritten, and no block of a value that a record above it names is reused. The
/// floor is at the start of the log when the store is opened, and only [`release`](Self::release) moves it.
pub trait ArchivedStore: Send + Sync + 'static {
    /// Facts that do not change.
    fn facts(&self) -> SourceFacts;

    /// Remembers `log`, durably. It must return before the first slot of that log is sent.
    fn remember_log(&self, log: u64) -> Boxed<'_, Result<(), SourceError>>;

    /// The newest flushed record.
    fn durable(&self) -> Lsn;

    /// The next batch that has a record after `after`, its records up to `after` included; `None` if no such record is flushed. Numbers
    /// between two batches may be missing: no record has them.
    fn next_batch(&self, after: Lsn) -> Boxed<'_, Result<Option<SourceBatch>, SourceError>>;

    /// Bytes `first` to `first + bytes` of the stored bytes of a record that was read above the floor, verified.
    fn stored<'a>(
        &'a self,
        record: &'a SourceRecord,
        first: u64,
        bytes: usize,
    ) -> Boxed<'a, Result<Bytes, SourceError>>;

    /// Waits until a record after `after` is flushed, or the store is closed.
    fn wait_for(&self, after: Lsn) -> Boxed<'_, ()>;

    /// Everything up to `lsn` is safe in another place: the log may be overwritten up to there, and blocks reused.
    fn release(&self, lsn: Lsn);

    /// The share of the log's room that holds records above the floor, in thousandths. Writers wait when it is full.
    fn log_fill_permille(&self) -> u32;

    /// Starts a base of the store as it is now. `base` is its id.
    fn start_base(&self, base: u64) -> Boxed<'_, Result<Box<dyn BaseStream>, SourceError>>;
}

/// The bytes of a base: a backup (`docs/format/backup.md`) of a snapshot.
pub trait BaseStream: Send {
    /// Every write up to this version is in it, and none above.
    fn version(&self) -> Lsn;

    /// The wall clock at that version, nanoseconds since the Unix epoch.
    fn taken_ns(&self) -> u64;

    /// Objects so far; all of them after its end.
    fn objects(&self) -> u64;

    /// About how many bytes it will have: for a display of progress.
    fn bytes_expected(&self) -> u64;

    /// Appends whole frames of it to `out`, at most about 1 MiB; returns false at its end.
    fn next<'a>(&'a mut self, out: &'a mut Vec<u8>) -> Boxed<'a, Result<bool, SourceError>>;
}
