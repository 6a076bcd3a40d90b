//! Verifies an archive: the head of each slot, or all bytes of everything. Each damaged or missing object is reported with its name.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use crate::bucket::{ArchiveBucket, IDENTITY_BYTES};
use crate::format::{
    ArchiveName, ArchiveSegment, FormatError, LogSlot, RecordBase, RecordLog, SegmentBody, SegmentHeader,
    SlotHead, TOMBSTONE_BYTES,
};
use crate::restore::{ArchiveReader, RestoreError};

/// Requests at a time.
const REQUESTS_AT_ONCE: usize = 16;
/// The same for whole objects: a slot has up to 32 MiB.
const OBJECTS_AT_ONCE: usize = 4;
/// Bytes of a request for a part of a base.
const CHUNK_BYTES: u64 = 8 << 20;

/// The counts of a verification, for a display of progress.
#[derive(Debug, Default)]
pub struct VerifyProgress {
    /// Slots and parts that were looked at.
    pub objects: AtomicU64,
    /// Their bytes; of heads, those of the heads.
    pub bytes: AtomicU64,
}

/// Verifies the archive of `reader`, with `full` all of its bytes. `problem` gets each damaged or missing object, as text that starts with
/// its name. Returns the number of problems.
///
/// # Errors
/// As the bucket: the rest was not verified.
pub async fn verify(
    reader: &ArchiveReader,
    full: bool,
    progress: &VerifyProgress,
    problem: &mut (dyn FnMut(String) + Send),
) -> Result<u64, RestoreError> {
    let mut verifier = Verifier { reader, full, progress, problem, problems: 0 };
    for base in &reader.record().bases {
        verifier.base(base).await?;
    }
    for log in &reader.record().logs {
        verifier.log(log).await?;
    }
    Ok(verifier.problems)
}

struct Verifier<'a> {
    reader: &'a ArchiveReader,
    full: bool,
    progress: &'a VerifyProgress,
    problem: &'a mut (dyn FnMut(String) + Send),
    problems: u64,
}

/// The head of a slot that exists.
struct LookedAt {
    head: SlotHead,
    bytes: u64,
}

impl Verifier<'_> {
    fn tell(&mut self, problem: String) {
        self.problems += 1;
        (self.problem)(problem);
    }

    fn count(&self, bytes: u64) {
        // Statistics: nothing is ordered by them.
        self.progress.objects.fetch_add(1, Ordering::Relaxed);
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The slot after the last one that must exist, and the one after the last one that does.
    async fn end_of(&self, log: &RecordLog) -> Result<u64, RestoreError> {
        if let Some(end) = log.end {
            return Ok(end);
        }
        let (mut end, id) = (log.first, log.id);
        let take = |object: crate::bucket::BucketEntry| {
            if let Some(ArchiveName::Slot(slot)) = ArchiveName::parse(&object.name)
                && object.bytes != TOMBSTONE_BYTES as u64
            {
                end = end.max(slot.seq + 1);
            }
        };
        self.reader.bucket.list(&format!("log/{id:016x}"), take).await?;
        Ok(end)
    }

    async fn log(&mut self, log: &RecordLog) -> Result<(), RestoreError> {
        let end = self.end_of(log).await?;
        let (reader, full) = (self.reader, self.full);
        let look = async |seq| {
            let slot = LogSlot { log: log.id, seq };
            (slot, look_at(reader, slot, full).await)
        };
        let at_once = if full { OBJECTS_AT_ONCE } else { REQUESTS_AT_ONCE };
        let mut slots = stream::iter(log.first..end).map(look).buffered(at_once);
        // Of an open log the last W slots may have gaps: they are on their way.
        let due = log.end.unwrap_or_else(|| end.saturating_sub(u64::from(reader.record().window)));
        let mut before: Option<SegmentHeader> = None;
        while let Some((slot, found)) = slots.next().await {
            let header = match found {
                Ok(Some(LookedAt { head: SlotHead::Segment(header), bytes })) => {
                    self.count(bytes);
                    Some(header)
                }
                Ok(Some(LookedAt { head: SlotHead::Tombstone(_), .. })) => {
                    self.tell(format!("{slot} is a tombstone, and its log has slots after it"));
                    None
                }
                Ok(None) => {
                    if slot.seq < due {
                        self.tell(format!("{slot} is missing"));
                    }
                    None
                }
                Err(RestoreError::Format(error)) => {
                    self.tell(error.to_string());
                    None
                }
                Err(error) => return Err(error),
            };
            if let (Some(before), Some(header)) = (&before, &header)
                && let Err(error) = header.check_follows(before)
            {
                self.tell(error.to_string());
            }
            before = header;
        }
        if let Some(seq) = log.end {
            let slot = LogSlot { log: log.id, seq };
            match look_at(reader, slot, false).await {
                Ok(Some(LookedAt { head: SlotHead::Tombstone(_), .. })) => {}
                Ok(Some(_)) => self.tell(format!("{slot} is no tombstone, and its log ends there")),
                Ok(None) => self.tell(format!("{slot}, the tombstone of its log, is missing")),
                Err(RestoreError::Format(error)) => self.tell(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn base(&mut self, base: &RecordBase) -> Result<(), RestoreError> {
        let parts = match self.reader.parts_of(base).await {
            Ok(parts) => parts,
            Err(RestoreError::Missing { object, .. }) => {
                self.tell(format!("{object} is missing"));
                return Ok(());
            }
            Err(RestoreError::Format(error)) => {
                self.tell(error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let (bucket, full, id) = (&*self.reader.bucket, self.full, base.id);
        let check = async |(at, part): (u32, crate::format::BasePart)| {
            check_part(bucket, id, at, part, full).await.map(|problem| (part.bytes, problem))
        };
        let at_once = if full { OBJECTS_AT_ONCE } else { REQUESTS_AT_ONCE };
        let mut checked = stream::iter((0..).zip(parts)).map(check).buffered(at_once);
        while let Some(part) = checked.next().await {
            let (bytes, problem) = part?;
            self.count(if full { bytes } else { IDENTITY_BYTES });
            if let Some(problem) = problem {
                self.tell(problem);
            }
        }
        Ok(())
    }
}

/// The slot; with `full` all of it is decoded.
async fn look_at(
    reader: &ArchiveReader,
    slot: LogSlot,
    full: bool,
) -> Result<Option<LookedAt>, RestoreError> {
    let (bucket, volume) = (&reader.bucket, &reader.record().volume);
    let found = match full {
        true => bucket.get(&slot.to_string()).await?,
        false => bucket.get_range(&slot.to_string(), 0..IDENTITY_BYTES).await?,
    };
    let Some(found) = found else { return Ok(None) };
    let head = SlotHead::decode(&found.bytes, volume, slot)?;
    if let SlotHead::Segment(header) = &head {
        if header.bytes != found.object_bytes {
            let why = "its length is not that of the object";
            return Err(FormatError::Damaged { object: slot.to_string(), offset: 96, why }.into());
        }
        if full {
            check_segment(&found.bytes, reader, slot)?;
        }
    }
    Ok(Some(LookedAt { head, bytes: found.bytes.len() as u64 }))
}

fn check_segment(bytes: &Bytes, reader: &ArchiveReader, slot: LogSlot) -> Result<(), FormatError> {
    let segment = ArchiveSegment::decode(bytes, &reader.record().volume, slot)?;
    if let SegmentBody::Batches(batches) = segment.body {
        batches.iter().try_for_each(|batch| batch.records().map(|_| ()))?;
    }
    Ok(())
}

/// The problem of a part; `None` if there is none.
async fn check_part(
    bucket: &ArchiveBucket,
    base: u64,
    at: u32,
    part: crate::format::BasePart,
    full: bool,
) -> Result<Option<String>, RestoreError> {
    let name = ArchiveName::Part { base, part: at }.to_string();
    let mut crc = shoal_base::checksum::Crc32c::new();
    let mut first = 0;
    loop {
        let range = if full { first..part.bytes.min(first + CHUNK_BYTES) } else { 0..1 };
        let Some(found) = bucket.get_range(&name, range).await? else {
            return Ok(Some(format!("{name} is missing")));
        };
        if found.object_bytes != part.bytes {
            let bytes = found.object_bytes;
            return Ok(Some(format!("{name} is damaged: it has {bytes} bytes instead of {}", part.bytes)));
        }
        crc.update(&found.bytes);
        first += found.bytes.len() as u64;
        if !full {
            return Ok(None);
        }
        if first >= part.bytes || found.bytes.is_empty() {
            let is_right = crc.finish() == part.crc;
            return Ok((!is_right).then(|| format!("{name} is damaged: its checksum is wrong")));
        }
    }
}
