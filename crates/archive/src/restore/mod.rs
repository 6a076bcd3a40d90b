//! The state of an archived store at a moment: a base, and the log after it.
//!
//! Reading order: `plan.rs` (the base and the logs that lead to a moment), `base.rs` (the parts of a base, in order), `slots.rs` (the slots of
//! a log, in order), `pieces.rs` (long values), `replay.rs` (all of it, in the order of the store's writes). A reader never changes the
//! bucket.
//!
//! The bytes go to a [`RestoreTarget`]. Nothing damaged is skipped: a missing, damaged or foreign object is an error with its name.

mod ahead;
mod base;
mod newest;
mod object;
mod pieces;
mod plan;
mod replay;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use shoal_backup::{Loss, ObjectHead, ObjectRecord};
use shoal_base::Lsn;
use shoal_base::task::Boxed;
use shoal_engine::ObjectKey;

use crate::bucket::{ArchiveBucket, BucketError};
use crate::format::{ArchiveRecord, BasePart, FormatError, RecordBase, RecordLog};
use crate::keeper::{ArchiveError, RecordKeeper};

pub use plan::{NearMoment, RestorePlan};

/// The moment whose state is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreMoment {
    /// The newest one.
    Newest,
    /// The last one at which the wall clock had not passed this time, nanoseconds since the Unix epoch.
    Time(u64),
    /// The last one without a write above this version.
    Version(Lsn),
}

/// A write that a restore makes. Of a key the later one wins.
#[derive(Clone, Debug)]
pub enum RestoredWrite {
    /// The object has this value from now on.
    Put(Box<ObjectRecord>),
    /// The object does not exist from now on.
    Delete(ObjectKey),
    /// The bucket has this record from now on, or none.
    Bucket {
        /// Its name.
        name: String,
        /// The record, as the store has it.
        record: Option<Bytes>,
    },
}

/// The error of a target.
pub type TargetError = Box<dyn std::error::Error + Send + Sync>;

/// The place into which a store is restored.
pub trait RestoreTarget: Send {
    /// Takes writes, after all earlier ones of the same keys.
    fn write(&mut self, writes: Vec<RestoredWrite>) -> Boxed<'_, Result<(), TargetError>>;

    /// Starts a put whose value comes in pieces.
    fn start_long(&mut self, head: ObjectHead) -> Boxed<'_, Result<(), TargetError>>;

    /// Takes the next bytes of that value.
    fn piece(&mut self, bytes: Bytes) -> Boxed<'_, Result<(), TargetError>>;

    /// That value is whole: the object has it from now on.
    fn finish_long(&mut self) -> Boxed<'_, Result<(), TargetError>>;

    /// The store could not read this when the base was made. A value in pieces that was started is dropped.
    fn missing(&mut self, loss: &Loss);
}

/// The reason why a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The prefix has no archive.
    #[error("there is no archive: the prefix has no object \"record\"")]
    NoArchive,
    /// The record cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A request to the bucket.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// An object is damaged, of a newer version, or of another archive.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An object that the record names, or that is below the end of its log, does not exist.
    #[error("{object} is missing, so the moments after it cannot be restored from this base: {advice}")]
    Missing {
        /// The object.
        object: String,
        /// The next step.
        advice: &'static str,
    },
    /// The moment cannot be had.
    #[error("{0}")]
    NoSuchMoment(String),
    /// The target.
    #[error("{0}")]
    Target(TargetError),
}

/// The place of a restore, for a display of progress. All are statistics.
#[derive(Debug, Default)]
pub struct RestoreProgress {
    /// Bytes of the base, and those of them that were taken.
    pub base_bytes: AtomicU64,
    /// See `base_bytes`.
    pub base_done: AtomicU64,
    /// Bytes of slots that were taken.
    pub log_done: AtomicU64,
    /// Objects of the base, and records of the log, that were taken.
    pub writes: AtomicU64,
    /// The wall clock of the newest batch that was taken, nanoseconds since the Unix epoch; 0 before the first one.
    pub wall_ns: AtomicU64,
}

impl RestoreProgress {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        // A statistic: nothing is ordered by it.
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// The state that a restore reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredState {
    /// Every write up to this version is in it, and none above.
    pub version: Lsn,
    /// The wall clock of its newest write, or of its base: nanoseconds since the Unix epoch.
    pub wall_ns: u64,
    /// Objects, buckets and results of the base that were written.
    pub base_writes: u64,
    /// Records of the log that were written.
    pub log_writes: u64,
    /// Bytes that were read of the base, and of logs.
    pub base_bytes: u64,
    /// See `base_bytes`.
    pub log_bytes: u64,
}

/// An archive that is read.
pub struct ArchiveReader {
    pub(crate) bucket: Arc<ArchiveBucket>,
    pub(crate) record: ArchiveRecord,
}

impl ArchiveReader {
    /// The archive in `bucket`.
    ///
    /// # Errors
    /// [`RestoreError::NoArchive`]; as the bucket; a record that this program does not read.
    pub async fn open(bucket: Arc<ArchiveBucket>, keeper: &RecordKeeper) -> Result<Self, RestoreError> {
        let (record, _) = keeper.read().await?.ok_or(RestoreError::NoArchive)?;
        Ok(Self { bucket, record })
    }

    /// Its record.
    #[must_use]
    pub fn record(&self) -> &ArchiveRecord {
        &self.record
    }

    /// The logs after `base` with the first slots that a restore replays; `None` if slots after it are gone: the base is a moment alone.
    #[must_use]
    pub fn logs_after(&self, base: &RecordBase) -> Option<Vec<(RecordLog, u64)>> {
        plan::logs_after(&self.record, base)
    }

    /// The list of the parts of `base`.
    pub(crate) async fn parts_of(&self, base: &RecordBase) -> Result<Vec<BasePart>, RestoreError> {
        base::parts_of(&self.bucket, base).await
    }

    /// The way to the state at `moment`.
    ///
    /// # Errors
    /// [`RestoreError::NoSuchMoment`] if the record shows already that the moment cannot be had.
    pub fn plan(&self, moment: RestoreMoment) -> Result<RestorePlan, RestoreError> {
        plan::plan(&self.record, moment)
    }

    /// Restores the state at the moment of `plan` into `target`, which is empty.
    ///
    /// # Errors
    /// [`RestoreError`]: the target has some part of the state.
    pub async fn restore(
        &self,
        plan: &RestorePlan,
        target: &mut dyn RestoreTarget,
        progress: &RestoreProgress,
    ) -> Result<RestoredState, RestoreError> {
        replay::Replay::new(self, plan, target, progress).run().await
    }
}
