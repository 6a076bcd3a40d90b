//! Facts about an archive, from its record and the heads of a few slots.

use futures_util::future::try_join_all;
use shoal_base::Lsn;

use crate::format::{LogSlot, SegmentHeader};
use crate::restore::{ArchiveReader, NearMoment, RestoreError};

/// Slots whose lengths are read for an estimate.
const SAMPLES: u64 = 16;
/// Bytes a second of a restore, for an estimate: of a base, and of a log.
const BASE_BYTES_PER_S: u64 = 120_000_000;
const LOG_BYTES_PER_S: u64 = 60_000_000;

/// A gap: numbers up to `last` are in no log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveGap {
    /// The log that starts after the gap.
    pub log: u64,
    /// The last number in the gap.
    pub last: Lsn,
    /// The wall clock at the claim of that log, nanoseconds since the Unix epoch.
    pub claimed_ns: u64,
    /// A base at or after the gap exists: moments from that base on can be restored.
    pub is_bridged: bool,
}

/// The state of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveStatus {
    /// The newest archived moment.
    pub newest: NearMoment,
    /// Slots after the newest base, and about their bytes.
    pub slots_since_base: u64,
    /// See `slots_since_base`.
    pub bytes_since_base: u64,
    /// Gaps, oldest first.
    pub gaps: Vec<ArchiveGap>,
    /// About the seconds of a restore of the newest moment.
    pub restore_seconds: u64,
}

/// The state of the archive of `reader`.
///
/// # Errors
/// As the bucket; a damaged slot.
pub async fn status(reader: &ArchiveReader) -> Result<ArchiveStatus, RestoreError> {
    let newest = reader.newest().await?;
    let mut status = ArchiveStatus {
        newest,
        slots_since_base: 0,
        bytes_since_base: 0,
        gaps: gaps(reader).await?,
        restore_seconds: 0,
    };
    let Some(base) = reader.record().bases.last() else { return Ok(status) };
    for (log, first) in reader.logs_after(base).unwrap_or_default() {
        let last = reader.last_slot(&log).await?;
        let Some(last) = last.filter(|last| last.slot.seq >= first) else { continue };
        let slots = last.slot.seq - first + 1;
        let samples = slots.min(SAMPLES);
        let seqs = (0..samples).map(|at| first + at * slots / samples);
        let heads = seqs.map(|seq| reader.segment(LogSlot { log: log.id, seq }));
        let heads: Vec<SegmentHeader> = try_join_all(heads).await?.into_iter().flatten().collect();
        let bytes: u64 = heads.iter().map(|head| head.bytes).sum();
        status.slots_since_base += slots;
        status.bytes_since_base += bytes / (heads.len() as u64).max(1) * slots;
    }
    status.restore_seconds = base.bytes / BASE_BYTES_PER_S + status.bytes_since_base / LOG_BYTES_PER_S + 1;
    Ok(status)
}

async fn gaps(reader: &ArchiveReader) -> Result<Vec<ArchiveGap>, RestoreError> {
    let record = reader.record();
    let whole = record.logs.iter().filter(|log| log.first == 0 && log.end != Some(0));
    let openings = whole.map(async |log| {
        let opening = reader.segment(LogSlot { log: log.id, seq: 0 }).await?;
        Ok::<_, RestoreError>((log, opening))
    });
    let openings = try_join_all(openings).await?.into_iter();
    let gap = |(log, opening): (&crate::format::RecordLog, Option<SegmentHeader>)| {
        let last = opening.filter(|opening| opening.flags.after_gap)?.end.last_lsn;
        let is_bridged = record.bases.iter().any(|base| base.version >= last);
        Some(ArchiveGap { log: log.id, last, claimed_ns: log.claimed_ns, is_bridged })
    };
    Ok(openings.filter_map(gap).collect())
}
