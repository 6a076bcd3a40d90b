//! State that the tasks of an archiver share: the frontiers, and the one place that releases the store's log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use shoal_base::{Clock, Entropy, Lsn};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::spool::SpoolFile;
use super::status::{ArchivePosition, ArchiverState, ArchiverStatus, BaseNeed, SegmentCounts};
use super::{ArchiverOptions, Incarnation};
use crate::bucket::ArchiveBucket;
use crate::format::{ArchiveRecord, VolumeId};
use crate::keeper::RecordKeeper;
use crate::source::{ArchivedStore, SourceFacts};

/// A segment without an answer after this time is a state.
const SLOW: Duration = Duration::from_secs(10);

/// Shared by all tasks of one archiver.
pub(super) struct Shared {
    pub(super) store: Arc<dyn ArchivedStore>,
    pub(super) bucket: Arc<ArchiveBucket>,
    pub(super) records: RecordKeeper,
    pub(super) options: ArchiverOptions,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) facts: SourceFacts,
    pub(super) incarnation: Incarnation,
    pub(super) spool: Arc<SpoolFile>,
    pub(super) progress: Mutex<Progress>,
    /// Wakes the task that ships.
    pub(super) shipper: Notify,
    /// Wakes the task that spools and releases.
    pub(super) overflow: Notify,
    /// The frontier that waiters of [`Archiver::wait_archived`](super::Archiver::wait_archived) look at.
    pub(super) safe: watch::Sender<Lsn>,
    pub(super) need: watch::Sender<Option<BaseNeed>>,
}

/// The frontiers, and everything that a status shows.
pub(super) struct Progress {
    pub(super) state: ArchiverState,
    /// Nothing of the store waits for the archive: its log is released as it is flushed.
    pub(super) follows: bool,
    /// Reason for a gap that no log has been opened after.
    pub(super) gap: Option<String>,
    /// The store's log is released up to here.
    pub(super) released: Lsn,
    /// All records up to here are archived.
    pub(super) archived: Lsn,
    pub(super) archived_ns: u64,
    /// The oldest of the wall clocks of batches in memory.
    pub(super) waiting_ns: Option<u64>,
    /// The wall clock when everything was archived last.
    pub(super) caught_up_ns: u64,
    /// First slot that is not archived.
    pub(super) next_slot: u64,
    /// First slot of the pieces of the value that is not complete at `next_slot`; `next_slot` without such a value.
    pub(super) replay_slot: u64,
    pub(super) log: u64,
    pub(super) epoch: u64,
    pub(super) record: Option<ArchiveRecord>,
    /// The bucket does not keep up: records go to the spool.
    pub(super) is_behind: bool,
    /// The segment with this record starts without a linger.
    pub(super) hurry: Lsn,
    pub(super) is_stopping: bool,
    pub(super) trouble: Option<(String, Instant)>,
    /// Slots in flight, and the first attempt of each.
    pub(super) flights: BTreeMap<u64, Instant>,
    pub(super) memory_bytes: u64,
    pub(super) gaps: u64,
    pub(super) segments: SegmentCounts,
    pub(super) segment_bytes: u64,
}

impl Progress {
    pub(super) fn new(facts: &SourceFacts, now_ns: u64) -> Self {
        Self {
            state: ArchiverState::Connecting { why: String::new() },
            follows: false,
            gap: None,
            released: Lsn(facts.log_start.0.saturating_sub(1)),
            archived: Lsn::NONE,
            archived_ns: 0,
            waiting_ns: None,
            caught_up_ns: now_ns,
            next_slot: 0,
            replay_slot: 0,
            log: 0,
            epoch: 0,
            record: None,
            is_behind: false,
            hurry: Lsn::NONE,
            is_stopping: false,
            trouble: None,
            flights: BTreeMap::new(),
            memory_bytes: 0,
            gaps: 0,
            segments: SegmentCounts::default(),
            segment_bytes: 0,
        }
    }
}

impl Shared {
    pub(super) fn volume(&self) -> &VolumeId {
        &self.facts.volume
    }

    /// Releases the store's log as far as its records are in another place, or nobody waits for them.
    pub(super) fn release(&self) {
        let spooled = self.spool.last();
        let durable = self.store.durable();
        let to = {
            let mut progress = self.progress.lock();
            let to = match progress.follows {
                true => durable,
                false => progress.archived.max(spooled),
            };
            if to <= progress.released {
                return;
            }
            progress.released = to;
            to
        };
        self.store.release(to);
    }

    pub(super) fn set_state(&self, state: ArchiverState) {
        self.progress.lock().state = state;
    }

    /// A final state in which the store does not wait for the archive.
    pub(super) fn give_up(&self, state: ArchiverState) {
        {
            let mut progress = self.progress.lock();
            (progress.state, progress.follows) = (state, true);
            (progress.waiting_ns, progress.memory_bytes, progress.trouble) = (None, 0, None);
            progress.flights.clear();
        }
        self.overflow.notify_one();
    }

    /// Records are lost for the archive: the store does not wait for it until a new log is opened.
    pub(super) fn gap(&self, why: String) {
        {
            let mut progress = self.progress.lock();
            if progress.follows {
                return;
            }
            tracing::warn!("the archive has a gap: {why}. A new base is needed");
            (progress.follows, progress.gap) = (true, Some(why));
            // Before the first log it is not known whether the archive is new: then its opening counts it.
            progress.gaps += u64::from(progress.log != 0);
        }
        self.shipper.notify_one();
        self.overflow.notify_one();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.progress.lock().is_stopping
    }

    /// The last record that a restore could have, for those who wait.
    pub(super) fn publish_safe(&self) {
        let archived = self.progress.lock().archived;
        if self.need.borrow().is_none() {
            self.safe.send_if_modified(|safe| std::mem::replace(safe, archived.max(*safe)) < archived);
        }
    }

    pub(super) fn needs_base(&self, need: BaseNeed) {
        self.need.send_replace(Some(need));
    }

    /// The record as it is now. A base that it names may end the need of one.
    pub(super) fn note_record(&self, record: ArchiveRecord) {
        let newest = record.bases.last().map(|base| base.version);
        {
            let mut progress = self.progress.lock();
            if progress.record.as_ref().is_none_or(|older| older.revision <= record.revision) {
                progress.record = Some(record);
            }
        }
        let is_met = |need: &BaseNeed| newest.is_some_and(|version| version >= need.since);
        self.need.send_if_modified(|need| need.take_if(|need| is_met(need)).is_some());
        self.publish_safe();
    }

    pub(super) fn position(&self) -> ArchivePosition {
        let progress = self.progress.lock();
        ArchivePosition { log: progress.log, seq: progress.replay_slot, archived: progress.archived }
    }

    pub(super) fn status(&self) -> ArchiverStatus {
        let durable = self.store.durable();
        let need = self.need.borrow().clone();
        let (spool_bytes, spooled) = (self.spool.file_bytes(), self.spool.last());
        let progress = self.progress.lock();
        let waits = durable > progress.archived;
        let oldest = progress.waiting_ns.unwrap_or(progress.caught_up_ns.max(progress.archived_ns));
        let lag_ns = if waits { self.clock.wall_ns().saturating_sub(oldest) } else { 0 };
        let spool_lag = if spooled > progress.archived { spool_bytes } else { 0 };
        ArchiverStatus {
            state: shown(&progress, need),
            archived: progress.archived,
            archived_ns: progress.archived_ns,
            durable,
            lag: Duration::from_nanos(lag_ns),
            lag_bytes: progress.memory_bytes + spool_lag,
            spool_bytes,
            gaps: progress.gaps,
            gap: progress.gap.clone(),
            segments: progress.segments,
            segment_bytes: progress.segment_bytes,
            epoch: progress.epoch,
            log: progress.log,
            record: progress.record.clone(),
        }
    }
}

/// The state with its reason: trouble of the bucket before the need of a base.
fn shown(progress: &Progress, need: Option<BaseNeed>) -> ArchiverState {
    if progress.state != ArchiverState::Shipping {
        return progress.state.clone();
    }
    if let Some((why, since)) = &progress.trouble {
        return ArchiverState::Waiting { why: why.clone(), since: since.elapsed() };
    }
    let slowest = progress.flights.values().map(Instant::elapsed).max();
    if let Some(since) = slowest.filter(|since| *since > SLOW) {
        return ArchiverState::Waiting { why: "a segment has no answer yet".to_owned(), since };
    }
    match need {
        Some(need) => ArchiverState::NeedsBase { why: need.why },
        None => ArchiverState::Shipping,
    }
}
