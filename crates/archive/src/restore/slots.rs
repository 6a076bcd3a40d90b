//! The slots of a log, in order: some are fetched and decoded ahead, and each is checked to follow the one before it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;

use super::ahead::Ahead;
use super::{ArchiveReader, RestoreError};
use crate::bucket::{ArchiveBucket, IDENTITY_BYTES};
use crate::format::{
    ArchiveSegment, FormatError, LogSlot, LoggedRecord, RecordLog, SegmentBody, SegmentHeader, SlotHead,
    TOMBSTONE_BYTES, Tombstone, VolumeId,
};

/// Bytes of the first request for a slot. Most slots have no more; the rest of a longer one is fetched in its turn, so the slots that are
/// fetched ahead take a bounded amount of memory.
const FIRST_BYTES: u64 = 8 << 20;
/// Slots that are fetched and decoded ahead at most: 32 MiB, and a few times of that for short records.
const SLOTS_AHEAD: u64 = 4;
/// Distances at which an open log is probed after its end are doubled this number of times.
const PROBES: u32 = 20;

const ADVICE: &str =
    "somebody deleted it. Use --at with an earlier moment, or a moment from the next base on";

/// A slot, decoded.
pub(super) struct ReadSlot {
    pub(super) header: SegmentHeader,
    /// Its batches with their records; none of other slots than those of data.
    pub(super) batches: Vec<ReadBatch>,
}

/// A batch, decoded.
pub(super) struct ReadBatch {
    pub(super) batch: crate::format::SegmentBatch,
    pub(super) records: Vec<LoggedRecord>,
}

enum Fetched {
    Absent,
    Tombstone,
    Slot(Box<ReadSlot>),
    /// The first bytes of a slot that has more.
    Start(Bytes, u64),
}

/// The slots of a log.
pub(super) struct SlotReader<'a> {
    reader: &'a ArchiveReader,
    log: RecordLog,
    /// Slots that exist for sure, because the record names them.
    known: u64,
    /// The slot that is returned next, and the one that is fetched next.
    at: u64,
    next: u64,
    ahead: Ahead<Result<Fetched, RestoreError>>,
    before: Option<SegmentHeader>,
    /// A tombstone was met.
    pub(super) is_sealed: bool,
}

impl<'a> SlotReader<'a> {
    /// The slots of `log` from `first` on.
    pub(super) fn new(reader: &'a ArchiveReader, log: RecordLog, first: u64) -> Self {
        let bases = reader.record.bases.iter().filter(|base| base.log == log.id).map(|base| base.seq);
        let known = log.end.unwrap_or_else(|| bases.max().unwrap_or(0));
        let (ahead, before) = (Ahead::new(), None);
        Self { reader, log, known, at: first, next: first, ahead, before, is_sealed: log.end.is_some() }
    }

    /// The next slot; `None` at the end of the log, or of the part of it that exists.
    pub(super) async fn next(&mut self) -> Result<Option<ReadSlot>, RestoreError> {
        if self.log.end.is_some_and(|end| self.at >= end) {
            return self.check_end();
        }
        let ahead = SLOTS_AHEAD.min(u64::from(self.reader.record.window));
        while (self.ahead.len() as u64) < ahead && self.log.end.is_none_or(|end| self.next < end) {
            let slot = LogSlot { log: self.log.id, seq: self.next };
            let (bucket, volume) = (Arc::clone(&self.reader.bucket), self.reader.record.volume);
            self.ahead.push(async move { fetch(&bucket, &volume, slot).await });
            self.next += 1;
        }
        let slot = LogSlot { log: self.log.id, seq: self.at };
        let fetched = match self.ahead.next().await {
            Some(fetched) => fetched?,
            None => return Ok(None),
        };
        let read = match fetched {
            Fetched::Absent if self.at < self.known => return Err(missing(slot)),
            Fetched::Absent => return self.check_nothing_after(slot).await,
            Fetched::Tombstone if self.at < self.known => {
                let why = "a tombstone below the end of its log";
                return Err(FormatError::Foreign { object: slot.to_string(), why }.into());
            }
            Fetched::Tombstone => {
                self.is_sealed = true;
                return Ok(None);
            }
            Fetched::Slot(read) => *read,
            Fetched::Start(start, bytes) => {
                let all = fetch_rest(&self.reader.bucket, slot, start, bytes).await?;
                decode(&all, &self.reader.record.volume, slot)?
            }
        };
        if let Some(before) = &self.before {
            read.header.check_follows(before)?;
        }
        if read.header.epoch != self.log.epoch {
            let why = "the epoch is not that of the log in the record";
            return Err(FormatError::Foreign { object: slot.to_string(), why }.into());
        }
        self.before = Some(read.header);
        self.at += 1;
        Ok(Some(read))
    }

    /// The log was read up to its end.
    fn check_end(&self) -> Result<Option<ReadSlot>, RestoreError> {
        match &self.before {
            Some(before) if before.end.last_lsn < self.log.last_lsn => {
                let why = "the record names a later last number of its log";
                Err(FormatError::Damaged { object: before.slot.to_string(), offset: 64, why }.into())
            }
            _ => Ok(None),
        }
    }

    /// The open log has no `slot`. An owner starts a slot only once all up to W before it exist, so a slot at that distance shows that
    /// this one was deleted.
    async fn check_nothing_after(&self, slot: LogSlot) -> Result<Option<ReadSlot>, RestoreError> {
        let window = u64::from(self.reader.record.window);
        let probe = |doubled: u32| async move {
            let seq = slot.seq.saturating_add(window << doubled);
            let name = LogSlot { log: slot.log, seq }.to_string();
            self.reader.bucket.get_range(&name, 0..IDENTITY_BYTES).await
        };
        for found in join_all((0..PROBES).map(probe)).await {
            // A tombstone may be anywhere after the end: another server creates some.
            if found?.is_some_and(|found| found.object_bytes != TOMBSTONE_BYTES as u64) {
                return Err(missing(slot));
            }
        }
        Ok(None)
    }
}

fn missing(slot: LogSlot) -> RestoreError {
    RestoreError::Missing { object: slot.to_string(), advice: ADVICE }
}

/// The contents of a slot. It may be spoiled on its way: the second answer counts.
async fn fetch(bucket: &ArchiveBucket, volume: &VolumeId, slot: LogSlot) -> Result<Fetched, RestoreError> {
    match fetch_once(bucket, volume, slot).await {
        Err(RestoreError::Format(_)) => fetch_once(bucket, volume, slot).await,
        fetched => fetched,
    }
}

async fn fetch_once(
    bucket: &ArchiveBucket,
    volume: &VolumeId,
    slot: LogSlot,
) -> Result<Fetched, RestoreError> {
    let found = bucket.get_range(&slot.to_string(), 0..FIRST_BYTES).await?;
    let Some(found) = found else { return Ok(Fetched::Absent) };
    if found.object_bytes == TOMBSTONE_BYTES as u64 {
        Tombstone::decode(&found.bytes, volume, slot)?;
        return Ok(Fetched::Tombstone);
    }
    if found.object_bytes > found.bytes.len() as u64 {
        return Ok(Fetched::Start(found.bytes, found.object_bytes));
    }
    Ok(Fetched::Slot(Box::new(decode(&found.bytes, volume, slot)?)))
}

async fn fetch_rest(
    bucket: &ArchiveBucket,
    slot: LogSlot,
    start: Bytes,
    bytes: u64,
) -> Result<Bytes, RestoreError> {
    // A wrong length is no reason to take memory for it.
    let end = bytes.min(crate::limits::SEGMENT_BYTES_MAX as u64 + 1);
    let mut all = BytesMut::from(&start[..]);
    drop(start);
    while (all.len() as u64) < end {
        let first = all.len() as u64;
        let range = first..end.min(first + FIRST_BYTES);
        let found = bucket.get_range(&slot.to_string(), range).await?.ok_or_else(|| missing(slot))?;
        if found.bytes.is_empty() {
            break;
        }
        all.extend_from_slice(&found.bytes);
    }
    Ok(all.freeze())
}

/// All bytes of a slot.
pub(super) async fn whole(bucket: &ArchiveBucket, slot: LogSlot) -> Result<Bytes, RestoreError> {
    let found = bucket.get_range(&slot.to_string(), 0..FIRST_BYTES).await?.ok_or_else(|| missing(slot))?;
    fetch_rest(bucket, slot, found.bytes, found.object_bytes).await
}

/// The segment in `bytes`, with all of its records.
pub(super) fn decode(bytes: &Bytes, volume: &VolumeId, slot: LogSlot) -> Result<ReadSlot, RestoreError> {
    let segment = ArchiveSegment::decode(bytes, volume, slot)?;
    let batches = match segment.body {
        SegmentBody::Batches(batches) => batches,
        SegmentBody::Opening(_) | SegmentBody::Empty => Vec::new(),
    };
    let read =
        |batch: crate::format::SegmentBatch| batch.records().map(|records| ReadBatch { batch, records });
    let batches = batches.into_iter().map(read).collect::<Result<_, _>>()?;
    Ok(ReadSlot { header: segment.header, batches })
}

/// The contents of the first bytes of `slot`; `None` if it does not exist. With the length of the object.
pub(super) async fn head_of(
    bucket: &ArchiveBucket,
    volume: &VolumeId,
    slot: LogSlot,
) -> Result<Option<(SlotHead, u64)>, RestoreError> {
    let Some(found) = bucket.get_range(&slot.to_string(), 0..IDENTITY_BYTES).await? else { return Ok(None) };
    Ok(Some((SlotHead::decode(&found.bytes, volume, slot)?, found.object_bytes)))
}
