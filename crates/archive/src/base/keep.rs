//! Keeps bases: makes one when it is due, names it in the record, and drops and sweeps everything that no moment of the retention needs.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_base::task::Boxed;
use shoal_base::{Clock, Lsn};
use tokio::time::{Instant, sleep, sleep_until};

use super::due::{AGE_MAX, BaseFacts, BaseReason, base_due};
use super::upload::{BaseFailure, BaseProgress, UploadLimits, upload_base};
use crate::bucket::ArchiveBucket;
use crate::format::{ArchiveName, ArchiveRecord, LogSlot, RecordBase, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::keeper::{ArchiveError, RecordKeeper};
use crate::retain::{SweepReport, make_room, retain, sweep};
use crate::source::{ArchivedStore, SourceError};

/// Readers of an object that was dropped from the record get this time before it is deleted.
const SWEEP_AFTER: Duration = Duration::from_secs(600);
/// The pauses after a base that failed.
const RETRY_FIRST: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// Slots whose length is looked at, to estimate the length of the log at the start.
const SAMPLES: u64 = 16;

/// The place of the writer in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterPlace {
    /// Its log.
    pub log: u64,
    /// The next slot. All slots before it are archived.
    pub seq: u64,
    /// The newest archived record.
    pub archived: Lsn,
}

/// The writer of the log, as bases need it.
pub trait BaseWriter: Send + Sync {
    /// The incarnation that the record names as the owner.
    fn incarnation(&self) -> [u8; 16];

    /// Its place; `None` unless it owns the archive and has opened a log.
    fn place(&self) -> Option<WriterPlace>;

    /// A base with at least this version is needed, because records up to it are in no log.
    fn gap(&self) -> Option<Lsn>;

    /// Bytes of the segments that were archived since the start.
    fn segment_bytes(&self) -> u64;

    /// The record as it is now. A base that it names may be the one that is needed.
    fn note_record(&self, record: &ArchiveRecord);

    /// Waits until the place or the gap changes.
    fn changed(&self) -> Boxed<'_, ()>;
}

/// Options of the bases.
#[derive(Clone, Copy, Debug)]
pub struct BaseOptions {
    /// Every moment of this time can be restored.
    pub retention: Duration,
    /// Memory for parts on their way, in bytes.
    pub memory_bytes: usize,
    /// Bytes of a base a second at most.
    pub bytes_per_second: NonZeroU64,
}

/// The bases, as a status shows them.
#[derive(Debug, Default)]
pub struct BaseStatus {
    /// The progress of the base on its way; all zero while none is.
    pub progress: Arc<BaseProgress>,
    /// Bytes of segments since the newest base.
    pub log_bytes: AtomicU64,
    newest: Mutex<Option<RecordBase>>,
    oldest_ns: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl BaseStatus {
    /// The newest base.
    #[must_use]
    pub fn newest(&self) -> Option<RecordBase> {
        *self.newest.lock()
    }

    /// The oldest moment that can be restored, by the wall clock in nanoseconds; 0 without a base.
    #[must_use]
    pub fn oldest_ns(&self) -> u64 {
        self.oldest_ns.load(Ordering::Relaxed)
    }

    /// The reason why the last base failed; `None` after one that worked.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    fn know(&self, record: &ArchiveRecord) {
        *self.newest.lock() = record.bases.last().copied();
        let oldest_ns = if record.bases.is_empty() { 0 } else { record.oldest_ns };
        self.oldest_ns.store(oldest_ns, Ordering::Relaxed);
    }
}

/// The reason why a base was not made.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Upload(#[from] BaseFailure),
    #[error("the store could not be read: {0}")]
    Source(#[from] SourceError),
}

/// Makes the bases of an archive.
pub struct BaseKeeper {
    store: Arc<dyn ArchivedStore>,
    bucket: Arc<ArchiveBucket>,
    record: RecordKeeper,
    writer: Arc<dyn BaseWriter>,
    options: BaseOptions,
    clock: Arc<dyn Clock>,
    status: Arc<BaseStatus>,
}

impl BaseKeeper {
    /// The keeper of the bases of `store`.
    pub fn new(
        store: Arc<dyn ArchivedStore>,
        (bucket, record): (Arc<ArchiveBucket>, RecordKeeper),
        writer: Arc<dyn BaseWriter>,
        options: BaseOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { store, bucket, record, writer, options, clock, status: Arc::default() }
    }

    /// Its status, now and later.
    #[must_use]
    pub fn status(&self) -> Arc<BaseStatus> {
        Arc::clone(&self.status)
    }

    /// Makes bases until it is dropped.
    pub async fn run(self) {
        let mut known: Option<Known> = None;
        let mut retry = RETRY_FIRST;
        let mut sweep_at: Option<Instant> = None;
        loop {
            self.wait(known.as_ref(), sweep_at).await;
            if sweep_at.is_some_and(|at| at <= Instant::now()) {
                sweep_at = None;
                self.sweep().await;
            }
            let Some(place) = self.writer.place() else { continue };
            let worked = match self.step(&mut known, place).await {
                Ok(true) => {
                    sweep_at = Some(Instant::now() + SWEEP_AFTER);
                    Ok(())
                }
                Ok(false) => Ok(()),
                Err(failure) => Err(failure.to_string()),
            };
            match worked {
                Ok(()) => retry = RETRY_FIRST,
                Err(why) => {
                    tracing::warn!(
                        "no base was made for the archive, and the next try is in {} s: {why}",
                        retry.as_secs()
                    );
                    *self.status.failure.lock() = Some(why);
                    sleep(retry).await;
                    retry = (2 * retry).min(RETRY_MAX);
                    // The record may have changed meanwhile.
                    known = None;
                }
            }
        }
    }

    /// Waits until there may be work: a change of the log, a base that becomes old, a sweep.
    async fn wait(&self, known: Option<&Known>, sweep_at: Option<Instant>) {
        let Some(known) = known else {
            if self.writer.place().is_none() {
                self.writer.changed().await;
            }
            return;
        };
        let old_at = known.old_at.filter(|_| known.log_bytes(&*self.writer) > 0);
        let at = [sweep_at, old_at].into_iter().flatten().min();
        let timer = async {
            match at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.writer.changed() => {}
            () = timer => {}
        }
    }

    /// Makes a base if one is due. Returns true if one was made.
    async fn step(&self, known: &mut Option<Known>, place: WriterPlace) -> Result<bool, Failure> {
        if known.as_ref().is_none_or(|known| known.log != place.log) {
            *known = Some(self.learn(place).await?);
        }
        let Some(now) = known else { return Ok(false) };
        let log_bytes = now.log_bytes(&*self.writer);
        self.status.log_bytes.store(log_bytes, Ordering::Relaxed);
        let gap = self.writer.gap();
        let covers = |gap: Lsn| now.record.bases.last().is_some_and(|base| base.version >= gap);
        let has_gap = gap.is_some_and(|gap| !covers(gap));
        if gap.is_some() && !has_gap {
            self.writer.note_record(&now.record);
        }
        let facts = BaseFacts { has_gap, log_bytes, now_ns: self.clock.wall_ns() };
        let Some(reason) = base_due(&now.record, facts) else { return Ok(false) };
        let segment_bytes = self.writer.segment_bytes();
        let record = self.make(place, reason).await?;
        self.writer.note_record(&record);
        *known = Some(Known {
            log: place.log,
            before: 0,
            since: segment_bytes,
            old_at: old_at(&record, &*self.clock),
            record,
        });
        self.status.log_bytes.store(0, Ordering::Relaxed);
        *self.status.failure.lock() = None;
        Ok(true)
    }

    /// Reads the record, and estimates the bytes of the log since the newest base from the lengths of some slots.
    async fn learn(&self, place: WriterPlace) -> Result<Known, Failure> {
        let gone = || ArchiveError::Refused("the archive has no record: it was deleted".into());
        let (record, _) = self.record.read().await?.ok_or_else(gone)?;
        self.status.know(&record);
        let before = match record.bases.last() {
            Some(base) => self.log_bytes_since(&record, base, place).await?,
            None => 0,
        };
        let since = self.writer.segment_bytes();
        Ok(Known { log: place.log, before, since, old_at: old_at(&record, &*self.clock), record })
    }

    async fn log_bytes_since(
        &self,
        record: &ArchiveRecord,
        base: &RecordBase,
        place: WriterPlace,
    ) -> Result<u64, Failure> {
        let from = record.logs.iter().skip_while(|log| log.id != base.log);
        let slots = from.map(|log| {
            let first = if log.id == base.log { log.first.max(base.seq) } else { log.first };
            let end = if log.id == place.log { place.seq } else { log.end.unwrap_or(first) };
            (log.id, first, end.max(first))
        });
        let slots: Vec<_> = slots.collect();
        let count: u64 = slots.iter().map(|(_, first, end)| end - first).sum();
        let (mut looked, mut bytes) = (0, 0);
        for sample in 0..count.min(SAMPLES) {
            let mut number = sample * count / count.min(SAMPLES);
            let slot = slots.iter().find_map(|&(log, first, end)| match number.checked_sub(end - first) {
                Some(rest) => {
                    number = rest;
                    None
                }
                None => Some(LogSlot { log, seq: first + number }),
            });
            let Some(slot) = slot else { continue };
            let name = ArchiveName::Slot(slot).to_string();
            let found = self
                .bucket
                .get_range(&name, 0..SEGMENT_HEADER_BYTES as u64)
                .await
                .map_err(ArchiveError::from)?;
            let header =
                found.and_then(|found| SegmentHeader::decode(&found.bytes, &record.volume, slot).ok());
            if let Some(header) = header {
                looked += 1;
                bytes += header.bytes;
            }
        }
        Ok((u128::from(bytes) * u128::from(count)).checked_div(looked).unwrap_or(0) as u64)
    }

    /// Makes a base and names it; returns the new record.
    async fn make(&self, place: WriterPlace, reason: BaseReason) -> Result<ArchiveRecord, Failure> {
        let id = self.record.random();
        tracing::info!("base {id:016x} of the archive starts: {reason}");
        let start = Instant::now();
        self.update(|record| {
            record.building = id;
            Ok(())
        })
        .await?;
        let stream = self.store.start_base(id).await?;
        // A replay starts at a slot that is archived: `first` of an open log may not be above it.
        let from = (place.log, place.seq.saturating_sub(1));
        let options = &self.options;
        let limits =
            UploadLimits { memory_bytes: options.memory_bytes, bytes_per_second: options.bytes_per_second };
        let progress = &self.status.progress;
        let uploaded = upload_base(&self.bucket, id, from, stream, limits, progress).await;
        progress.bytes.store(0, Ordering::Relaxed);
        progress.bytes_expected.store(0, Ordering::Relaxed);
        let base = uploaded?;
        let record = self.update(|record| self.name(record, &base)).await?;
        self.status.know(&record);
        tracing::info!(
            "base {id:016x} of the archive has {} objects and {} bytes, in {:.1} s",
            base.objects,
            base.bytes,
            start.elapsed().as_secs_f64()
        );
        Ok(record)
    }

    /// Names `base` in `record`, and drops everything that is not needed any more.
    fn name(&self, record: &mut ArchiveRecord, base: &RecordBase) -> Result<(), ArchiveError> {
        if record.building != base.id {
            return Err(ArchiveError::Refused("another base was started meanwhile".into()));
        }
        if record.bases.last().is_some_and(|newest| newest.version > base.version) {
            return Err(ArchiveError::Refused("the archive has a base of a later version".into()));
        }
        record.building = 0;
        make_room(record);
        record.bases.push(*base);
        retain(record, self.options.retention, self.clock.wall_ns());
        Ok(())
    }

    /// Changes the record as its owner.
    async fn update(
        &self,
        mut change: impl FnMut(&mut ArchiveRecord) -> Result<(), ArchiveError> + Send,
    ) -> Result<ArchiveRecord, ArchiveError> {
        let me = self.writer.incarnation();
        self.record
            .update(|record| {
                if record.owner != Some(me) {
                    return Err(ArchiveError::Refused("another server owns the archive".into()));
                }
                change(record)
            })
            .await
    }

    async fn sweep(&self) {
        match sweep(&self.bucket, &self.record, &mut |_| {}).await {
            Ok(SweepReport { deleted, dead_bytes, .. }) => {
                tracing::info!("{deleted} objects with {dead_bytes} bytes were deleted from the archive");
            }
            Err(error) => tracing::warn!("the archive was not swept: {error}"),
        }
    }
}

/// The record, and the bytes of the log since its newest base.
struct Known {
    log: u64,
    /// Bytes at the moment at which the writer had archived `since` bytes.
    before: u64,
    since: u64,
    /// The moment at which the newest base is old.
    old_at: Option<Instant>,
    record: ArchiveRecord,
}

impl Known {
    fn log_bytes(&self, writer: &dyn BaseWriter) -> u64 {
        self.before + writer.segment_bytes().saturating_sub(self.since)
    }
}

fn old_at(record: &ArchiveRecord, clock: &dyn Clock) -> Option<Instant> {
    let taken_ns = record.bases.last()?.taken_ns;
    let age = Duration::from_nanos(clock.wall_ns().saturating_sub(taken_ns));
    Some(Instant::now() + AGE_MAX.saturating_sub(age))
}

#[cfg(test)]
#[path = "keep_tests.rs"]
mod tests;
