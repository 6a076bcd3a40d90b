//! Uploads a base: the stream of a backup becomes parts, a few at a time, and the list of them comes last.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep_until};

use crate::bucket::{ArchiveBucket, BucketError, CreateOutcome};
use crate::format::{ArchiveName, BaseEnd, BasePart, RecordBase};
use crate::limits::{PART_BYTES_MAX, PARTS_MAX};
use crate::source::{BaseStream, SourceError};

/// Parts that are on their way at the same time.
const IN_FLIGHT_MAX: usize = 4;
/// Parts are twice as long after each of these numbers of parts, so that a list is long enough for any store.
const PARTS_OF_A_SIZE: usize = 1 << 17;

/// Bytes of a part and its copies on their way.
const PART_BYTES: std::ops::RangeInclusive<usize> = (1 << 20)..=(8 << 20);

/// The reason why a base was not uploaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BaseFailure {
    /// A request to the bucket.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The snapshot.
    #[error("the store could not be read: {0}")]
    Source(#[from] SourceError),
    /// The base has too many parts.
    #[error("the base has more than {PARTS_MAX} parts")]
    TooLong,
    /// An object of the base exists already, with other bytes.
    #[error("{0} exists already with other bytes: somebody else writes below this prefix")]
    Foreign(String),
}

/// The progress of an upload.
#[derive(Debug, Default)]
pub struct BaseProgress {
    /// Bytes that the bucket has.
    pub bytes: AtomicU64,
    /// About how many bytes the base has.
    pub bytes_expected: AtomicU64,
}

/// The limits of an upload.
#[derive(Clone, Copy, Debug)]
pub struct UploadLimits {
    /// Bytes of memory for parts.
    pub memory_bytes: usize,
    /// Bytes a second at most.
    pub bytes_per_second: NonZeroU64,
}

impl UploadLimits {
    /// Bytes of the next part after `parts` parts.
    fn part_bytes(&self, parts: usize) -> usize {
        let bytes = (self.memory_bytes / (IN_FLIGHT_MAX + 1)).clamp(*PART_BYTES.start(), *PART_BYTES.end());
        (bytes << (parts / PARTS_OF_A_SIZE)).min(PART_BYTES_MAX as usize)
    }

    /// Parts on their way at the same time: at least one, whatever the memory.
    fn in_flight(&self, part_bytes: usize) -> usize {
        (self.memory_bytes / part_bytes).saturating_sub(1).clamp(1, IN_FLIGHT_MAX)
    }
}

/// Uploads `stream` as the base `id`, which the record names as being built. Returns its line for the record, with `log` and `seq` as the
/// slot to replay from.
///
/// # Errors
/// [`BaseFailure`]: nothing of the base is used, and a sweep removes its parts.
pub async fn upload_base(
    bucket: &ArchiveBucket,
    id: u64,
    (log, seq): (u64, u64),
    mut stream: Box<dyn BaseStream>,
    limits: UploadLimits,
    progress: &Arc<BaseProgress>,
) -> Result<RecordBase, BaseFailure> {
    progress.bytes.store(0, Ordering::Relaxed);
    let mut end = BaseEnd::default();
    let mut total = 0;
    let mut on_their_way = FuturesUnordered::new();
    let mut part = Vec::new();
    let start = Instant::now();
    let mut is_more = true;
    while is_more {
        progress.bytes_expected.store(stream.bytes_expected(), Ordering::Relaxed);
        let part_bytes = limits.part_bytes(end.parts.len());
        let before = part.len();
        is_more = stream.next(&mut part).await?;
        total += (part.len() - before) as u64;
        if part.is_empty() || (is_more && part.len() < part_bytes) {
            continue;
        }
        while on_their_way.len() >= limits.in_flight(part_bytes) {
            finished(on_their_way.next().await)?;
        }
        let number = u32::try_from(end.parts.len()).map_err(|_| BaseFailure::TooLong)?;
        if number >= PARTS_MAX {
            return Err(BaseFailure::TooLong);
        }
        let bytes = Bytes::from(std::mem::take(&mut part));
        end.parts.push(BasePart::of(&bytes));
        on_their_way.push(create(bucket, ArchiveName::Part { base: id, part: number }, bytes, progress));
        sleep_until(start + Duration::from_secs_f64(total as f64 / limits.bytes_per_second.get() as f64))
            .await;
    }
    while !on_their_way.is_empty() {
        finished(on_their_way.next().await)?;
    }
    let encoded = Bytes::from(end.encode());
    let end_crc = BaseEnd::crc_of(&encoded);
    create(bucket, ArchiveName::BaseEnd { base: id }, encoded, progress).await?;
    Ok(RecordBase {
        id,
        version: stream.version(),
        log,
        seq,
        parts: end.parts.len() as u32,
        end_crc,
        bytes: total,
        objects: stream.objects(),
        taken_ns: stream.taken_ns(),
    })
}

fn finished(result: Option<Result<(), BaseFailure>>) -> Result<(), BaseFailure> {
    result.unwrap_or(Ok(()))
}

/// Creates an object of the base.
async fn create(
    bucket: &ArchiveBucket,
    name: ArchiveName,
    bytes: Bytes,
    progress: &BaseProgress,
) -> Result<(), BaseFailure> {
    let name = name.to_string();
    let count = bytes.len() as u64;
    match bucket.create(&name, bytes).await? {
        CreateOutcome::Created => {
            progress.bytes.fetch_add(count, Ordering::Relaxed);
            Ok(())
        }
        CreateOutcome::Exists { .. } => Err(BaseFailure::Foreign(name)),
    }
}
