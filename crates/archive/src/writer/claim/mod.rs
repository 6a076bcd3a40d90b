//! From a bucket to a log: the record, the claim (R-b), the seals (R-c), the confirmation (R-d).
//!
//! A claim is recognised by incarnation and log. Its outcome may be unknown: the next attempt reads the record again.

mod seal;

use std::time::Duration;

use shoal_base::Lsn;
use tokio::time::sleep;

use super::progress::Shared;
use super::status::{ArchiveOwner, ArchiverState};
use crate::bucket::ProbeDepth;
use crate::format::{ArchiveName, ArchiveRecord, LogSlot, RecordFlags, RecordLog, SlotHead};
use crate::keeper::ArchiveError;
use crate::limits::IN_FLIGHT_MAX;
use seal::{last_number, seal};

/// The pause after an attempt that failed.
const AGAIN: Duration = Duration::from_secs(5);
/// Attempts after which the records go to the spool.
const ATTEMPTS_BEFORE_SPOOL: u32 = 2;
/// The lease of the records that this program creates; a server without followers does not use it.
const LEASE_MS: u32 = 9_000;

/// The reason why an attempt did not lead to a log.
pub(super) enum ClaimFailure {
    /// It is made again.
    Again(String),
    /// It is the last one: the state of the archiver.
    Final(ArchiverState),
}

impl<E: std::error::Error> From<E> for ClaimFailure {
    fn from(error: E) -> Self {
        Self::Again(error.to_string())
    }
}

/// A log that was claimed and confirmed.
pub(super) struct ClaimedLog {
    pub(super) log: u64,
    pub(super) epoch: u64,
    pub(super) window: u16,
    /// The log before, sealed.
    pub(super) previous: Option<SealedLog>,
    /// The number that the next base has to have, for a gap of an earlier process.
    pub(super) open_gap: Option<Lsn>,
    pub(super) has_base: bool,
}

/// A log with its end.
#[derive(Clone, Copy)]
pub(super) struct SealedLog {
    pub(super) id: u64,
    pub(super) end: u64,
    /// The last number in it; `None` if the last slot is damaged, or there is none.
    pub(super) last: Option<Lsn>,
}

/// One server's way to one log.
pub(super) struct Claimant<'a> {
    shared: &'a Shared,
    log: u64,
    /// The process has not owned the archive yet: it takes it from anybody.
    is_first: bool,
    is_probed: bool,
    /// A claim was sent, and may take effect.
    has_tried: bool,
    /// Revision of the record of the claim: older versions are stale reads.
    revision: u64,
}

impl<'a> Claimant<'a> {
    pub(super) fn new(shared: &'a Shared, is_first: bool) -> Self {
        Self {
            shared,
            log: shared.records.random(),
            is_first,
            is_probed: !is_first,
            has_tried: false,
            revision: 0,
        }
    }

    /// Tries until it has the log.
    ///
    /// # Errors
    /// The state after which archiving stops.
    pub(super) async fn claim(mut self) -> Result<ClaimedLog, ArchiverState> {
        let mut attempts = 0;
        loop {
            match self.attempt().await {
                Ok(claimed) => return Ok(claimed),
                Err(ClaimFailure::Final(state)) => return Err(state),
                Err(ClaimFailure::Again(why)) => self.shared.set_state(ArchiverState::Connecting { why }),
            }
            attempts += 1;
            if attempts >= ATTEMPTS_BEFORE_SPOOL {
                self.shared.progress.lock().is_behind = true;
                self.shared.overflow.notify_one();
            }
            sleep(AGAIN).await;
        }
    }

    async fn attempt(&mut self) -> Result<ClaimedLog, ClaimFailure> {
        let found = self.shared.records.read().await?;
        self.probe(found.as_ref().map(|(record, _)| record)).await?;
        match &found {
            Some((record, _)) if self.is_first && !self.has_tried => self.check_not_behind(record).await?,
            Some(_) => {}
            None => {
                if self.shared.facts.remembered_log != 0 {
                    tracing::warn!(
                        "this store was archived before, and nothing is archived below this prefix: a new archive is made. If the prefix is \
                         not new, look whether the bucket or the folder is the right one"
                    );
                }
                self.shared.records.create(&mut self.new_record()).await?;
            }
        }
        self.has_tried = true;
        let claimed = self.claim_record().await?;
        self.revision = claimed.revision;
        let mut sealed = Vec::new();
        for log in claimed.logs.iter().filter(|log| log.end.is_none() && log.id != self.log) {
            let from = known_slot(&claimed, log);
            sealed.push(seal(self.shared, log, from, (claimed.window, claimed.epoch, self.log)).await?);
        }
        let record = self.confirm(&sealed).await?;
        let open_gap = self.open_gap(&record).await?;
        let previous = record.logs.iter().rev().nth(1).map(|log| {
            let known = sealed.iter().find(|sealed| sealed.id == log.id);
            let last = known.map_or(Some(log.last_lsn), |sealed| sealed.last);
            let end = log.end.unwrap_or_default();
            SealedLog { id: log.id, end, last: last.filter(|_| end > 0) }
        });
        let (window, has_base) = (record.window, !record.bases.is_empty());
        let epoch = record.owner_log().map_or(record.epoch, |log| log.epoch);
        self.shared.note_record(record);
        Ok(ClaimedLog { log: self.log, epoch, window, previous, open_gap, has_base })
    }

    /// Checks that the bucket can hold an archive and that the archive is that of this store.
    async fn probe(&mut self, record: Option<&ArchiveRecord>) -> Result<(), ClaimFailure> {
        if let Some(record) = record {
            self.check_volume(record)?;
        }
        if !self.is_probed {
            let depth = if record.is_some() { ProbeDepth::Short } else { ProbeDepth::Full };
            self.shared.bucket.probe(depth).await?;
            self.is_probed = true;
        }
        Ok(())
    }

    fn check_volume(&self, record: &ArchiveRecord) -> Result<(), ClaimFailure> {
        let hex = |volume: &[u8]| volume.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (theirs, ours) = (hex(&record.volume), hex(self.shared.volume()));
        if theirs == ours {
            return Ok(());
        }
        Err(ClaimFailure::Final(ArchiverState::Refused {
            why: format!(
                "the archive is that of volume {theirs}, and this store is volume {ours}: use another prefix, or restore the store from this archive"
            ),
        }))
    }

    /// A store with fewer records than its archive is an old copy of the data file, or another server has written since. It takes nothing
    /// over: the records that it writes next would have numbers that the archive has already. Records that it wrote without the archive do
    /// not count: the archive may have other ones with their numbers.
    async fn check_not_behind(&self, record: &ArchiveRecord) -> Result<(), ClaimFailure> {
        let owned = self.shared.facts.last_owned;
        for log in &record.logs {
            let last = match log.end {
                Some(_) => log.last_lsn,
                None => last_number(self.shared, log, known_slot(record, log)).await?,
            };
            if last > owned {
                return Err(ClaimFailure::Final(ArchiverState::Refused {
                    why: format!(
                        "the archive has records up to {last}, and this store wrote to it up to {owned} at most: its data file is an old copy, or another \
                         server has written since. Restore the store from the archive, or use another prefix"
                    ),
                }));
            }
        }
        Ok(())
    }

    fn new_record(&self) -> ArchiveRecord {
        let facts = &self.shared.facts;
        ArchiveRecord {
            flags: RecordFlags::default(),
            volume: facts.volume,
            revision: 0,
            nonce: 0,
            epoch: 0,
            owner: None,
            building: 0,
            oldest_lsn: Lsn::NONE,
            oldest_ns: 0,
            tablets: facts.tablets,
            window: IN_FLIGHT_MAX,
            lease_ms: LEASE_MS,
            logs: Vec::new(),
            bases: Vec::new(),
            pins: Vec::new(),
            owner_name: self.shared.options.owner.clone(),
        }
    }

    /// R-b.
    async fn claim_record(&self) -> Result<ArchiveRecord, ClaimFailure> {
        let shared = self.shared;
        let mut last = None;
        let result = shared.records.update(|record| {
            last = None;
            let mut wrong = |failure| {
                last = Some(failure);
                Err(ArchiveError::Refused("the archive cannot be claimed".to_owned()))
            };
            if let Err(failure) = self.check_volume(record) {
                return wrong(failure);
            }
            let is_ours = record.owner == Some(shared.incarnation);
            let is_claimed = record.logs.iter().any(|log| log.id == self.log);
            if is_ours && is_claimed {
                return Ok(());
            }
            if record.revision < self.revision {
                return wrong(stale());
            }
            // A claim of this process took effect, and another server's came after it.
            if !is_ours && (is_claimed || !self.is_first) {
                return wrong(fenced(record));
            }
            record.epoch += 1;
            record.owner = Some(shared.incarnation);
            record.owner_name = shared.options.owner.clone();
            record.logs.push(RecordLog {
                id: self.log,
                epoch: record.epoch,
                first: 0,
                end: None,
                last_lsn: Lsn::NONE,
                claimed_ns: shared.clock.wall_ns(),
            });
            Ok(())
        });
        match result.await {
            Ok(record) => Ok(record),
            Err(error) => Err(last.unwrap_or_else(|| error.into())),
        }
    }

    /// R-d.
    async fn confirm(&self, sealed: &[SealedLog]) -> Result<ArchiveRecord, ClaimFailure> {
        let mut last = None;
        let result = self.shared.records.update(|record| {
            last = None;
            let is_ours = record.owner == Some(self.shared.incarnation);
            if !is_ours || record.logs.last().is_none_or(|log| log.id != self.log) {
                let is_stale = record.revision < self.revision;
                last = Some(if is_stale { stale() } else { fenced(record) });
                return Err(ArchiveError::Refused("the claim cannot be confirmed".to_owned()));
            }
            let mut before = Lsn::NONE;
            for log in &mut record.logs {
                if let Some(sealed) = sealed.iter().find(|sealed| sealed.id == log.id) {
                    (log.end, log.last_lsn) = (Some(sealed.end), sealed.last.unwrap_or(before));
                }
                before = log.last_lsn.max(before);
            }
            Ok(())
        });
        match result.await {
            Ok(record) => Ok(record),
            Err(error) => Err(last.unwrap_or_else(|| error.into())),
        }
    }

    /// The number of the newest opening after a gap that no base has.
    async fn open_gap(&self, record: &ArchiveRecord) -> Result<Option<Lsn>, ClaimFailure> {
        let Some(base) = record.bases.last() else { return Ok(None) };
        let from = record.logs.iter().position(|log| log.id == base.log).unwrap_or(0);
        let mut gap = None;
        for log in record.logs[from..].iter().filter(|log| log.first == 0 && log.id != self.log) {
            let slot = LogSlot { log: log.id, seq: 0 };
            let name = ArchiveName::Slot(slot).to_string();
            let Some(found) = self.shared.bucket.get_range(&name, 0..128).await? else { continue };
            if let SlotHead::Segment(header) = SlotHead::decode(&found.bytes, self.shared.volume(), slot)? {
                let needs = header.flags.after_gap && header.end.last_lsn > base.version;
                gap = if needs { Some(header.end.last_lsn) } else { gap };
            }
        }
        Ok(gap)
    }
}

/// A slot of `log` that had data: a base replays from it, or it is the first one.
fn known_slot(record: &ArchiveRecord, log: &RecordLog) -> u64 {
    let of_bases = record.bases.iter().filter(|base| base.log == log.id).map(|base| base.seq);
    of_bases.max().unwrap_or(0).max(log.first)
}

fn stale() -> ClaimFailure {
    ClaimFailure::Again("an old version of the record was read".to_owned())
}

/// The owner in a record.
fn owner_of(record: &ArchiveRecord) -> ArchiveOwner {
    ArchiveOwner { name: record.owner_name.clone(), epoch: record.epoch }
}

fn fenced(record: &ArchiveRecord) -> ClaimFailure {
    let why = "the record names another owner".to_owned();
    ClaimFailure::Final(ArchiverState::Fenced { owner: owner_of(record), why })
}

/// The server that took the archive from this one, as far as the record can be read.
pub(super) async fn new_owner(shared: &Shared) -> ArchiveOwner {
    for _ in 0..3 {
        if let Ok(Some((record, _))) = shared.records.read().await {
            let owner = owner_of(&record);
            let is_other = record.owner != Some(shared.incarnation);
            shared.note_record(record);
            if is_other {
                return owner;
            }
        }
        sleep(AGAIN).await;
    }
    ArchiveOwner::default()
}
