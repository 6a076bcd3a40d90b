//! Seals a log (R-c): the first tombstone is its end.

use std::time::Duration;

use futures_util::future::join_all;
use shoal_base::Lsn;
use tokio::time::sleep;

use super::super::progress::Shared;
use super::{ClaimFailure, SealedLog};
use crate::bucket::{BucketEntry, CreateOutcome, IDENTITY_BYTES};
use crate::format::{ArchiveName, LogSlot, RecordLog, SegmentHeader, SlotHead, TOMBSTONE_BYTES, Tombstone};
use crate::limits::SEAL_WIDTH_MAX;

/// Bytes that are neither a segment nor a tombstone are read again this number of times.
const READS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(200);

/// The contents of a slot.
enum Contents {
    Missing,
    /// `None`: bytes that are damaged, or somebody else's.
    Data(Option<SegmentHeader>),
    Tombstone,
}

/// The last number in `log`, which is open: slots after the newest one that is found may be on their way.
pub(super) async fn last_number(shared: &Shared, log: &RecordLog, from: u64) -> Result<Lsn, ClaimFailure> {
    let Some(seq) = head(shared, log, from).await? else { return Ok(Lsn::NONE) };
    match contents(shared, LogSlot { log: log.id, seq }).await? {
        Contents::Data(Some(header)) => Ok(header.end.last_lsn),
        _ => Ok(Lsn::NONE),
    }
}

/// The newest slot with data. A store that wrote `log` knows how far it came: if the archive seems to have less, somebody may have deleted
/// slots, and the log is listed. A tombstone in the first hole would end the log there, and later slots would be nobody's.
async fn sealed_head(shared: &Shared, log: &RecordLog, from: u64) -> Result<Option<u64>, ClaimFailure> {
    let found = head(shared, log, from).await?;
    let kept_from = shared.spool.from().unwrap_or_else(|| shared.progress.lock().released);
    let is_ours = shared.facts.remembered_log == log.id;
    if !is_ours || last_number(shared, log, from).await? >= kept_from {
        return Ok(found);
    }
    let mut newest = found;
    let take = |object: BucketEntry| match ArchiveName::parse(&object.name) {
        Some(ArchiveName::Slot(slot)) if object.bytes != TOMBSTONE_BYTES as u64 => {
            newest = newest.max(Some(slot.seq));
        }
        _ => {}
    };
    if let Err(error) = shared.bucket.list(&format!("log/{:016x}", log.id), take).await {
        tracing::warn!("the archive's log {:016x} cannot be listed: {error}", log.id);
    }
    if newest > found {
        tracing::error!("slots of the archive's log {:016x} are missing: somebody deleted them", log.id);
    }
    Ok(newest)
}

/// Seals `log` for the claim with this window, epoch and log. Slot `from` of it had data.
pub(super) async fn seal(
    shared: &Shared,
    log: &RecordLog,
    from: u64,
    (window, epoch, sealer): (u16, u64, u64),
) -> Result<SealedLog, ClaimFailure> {
    let head = sealed_head(shared, log, from).await?;
    let mut seq = head.map_or(log.first, |head| (head + 1).saturating_sub(window.into()).max(log.first));
    let (mut width, mut last) = (1, None);
    let end = loop {
        let creates = (seq..seq + width).map(|seq| {
            let slot = LogSlot { log: log.id, seq };
            entomb(
                shared,
                Tombstone { volume: *shared.volume(), slot, sealer_epoch: epoch, sealer_log: sealer },
            )
        });
        let outcomes: Result<Vec<Contents>, ClaimFailure> = join_all(creates).await.into_iter().collect();
        let mut end = None;
        for (at, contents) in (seq..).zip(outcomes?) {
            match contents {
                Contents::Data(header) => last = Some((at, header)),
                Contents::Tombstone | Contents::Missing => {
                    end = Some(at);
                    break;
                }
            }
        }
        if let Some(end) = end {
            break end;
        }
        seq += width;
        width = (2 * width).min(SEAL_WIDTH_MAX.into());
    };
    let newest = match last.filter(|(at, _)| at + 1 == end) {
        Some((_, header)) => header,
        None if end == 0 => None,
        None => match contents(shared, LogSlot { log: log.id, seq: end - 1 }).await? {
            Contents::Data(header) => header,
            Contents::Missing | Contents::Tombstone => None,
        },
    };
    Ok(SealedLog { id: log.id, end, last: newest.map(|header| header.end.last_lsn) })
}

/// Creates a tombstone, or returns the contents of its slot.
async fn entomb(shared: &Shared, tombstone: Tombstone) -> Result<Contents, ClaimFailure> {
    let slot = tombstone.slot;
    match shared.bucket.create(&slot.to_string(), tombstone.encode().into()).await? {
        CreateOutcome::Created => Ok(Contents::Tombstone),
        CreateOutcome::Exists { head, .. } => match SlotHead::decode(&head, shared.volume(), slot) {
            Ok(SlotHead::Segment(header)) => Ok(Contents::Data(Some(header))),
            Ok(SlotHead::Tombstone(_)) => Ok(Contents::Tombstone),
            // Perhaps the bytes were read wrongly.
            Err(_) => match contents(shared, slot).await? {
                Contents::Missing => Err(ClaimFailure::Again(format!("{slot} exists, and then it does not"))),
                found => Ok(found),
            },
        },
    }
}

/// Reads a slot.
async fn contents(shared: &Shared, slot: LogSlot) -> Result<Contents, ClaimFailure> {
    let mut reads = 0;
    loop {
        let found = shared.bucket.get_range(&slot.to_string(), 0..IDENTITY_BYTES).await?;
        let Some(found) = found else { return Ok(Contents::Missing) };
        match SlotHead::decode(&found.bytes, shared.volume(), slot) {
            Ok(SlotHead::Segment(header)) => return Ok(Contents::Data(Some(header))),
            Ok(SlotHead::Tombstone(_)) => return Ok(Contents::Tombstone),
            Err(error) if reads == READS => {
                tracing::error!("{error}: the next log starts after a gap");
                return Ok(Contents::Data(None));
            }
            Err(_) => reads += 1,
        }
        sleep(PAUSE).await;
    }
}

/// A slot with data near the end of the log, found by gets of doubling distance. Each slot W or more below it has data (R-a).
async fn head(shared: &Shared, log: &RecordLog, from: u64) -> Result<Option<u64>, ClaimFailure> {
    let is_data = async |seq| {
        let contents = contents(shared, LogSlot { log: log.id, seq }).await;
        contents.map(|contents| matches!(contents, Contents::Data(_)))
    };
    let mut head = from;
    if !is_data(head).await? {
        if from == log.first || !is_data(log.first).await? {
            return Ok(None);
        }
        head = log.first;
    }
    let mut step = 1;
    while is_data(head + step).await? {
        head += step;
        step *= 2;
    }
    while step > 1 {
        step /= 2;
        if is_data(head + step).await? {
            head += step;
        }
    }
    Ok(Some(head))
}
