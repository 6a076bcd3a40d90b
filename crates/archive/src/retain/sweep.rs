//! A sweep: objects that the record does not name are deleted. List first, *then* read the record (R-i).

use futures_util::{StreamExt, TryStreamExt, stream};

use super::NamedObjects;
use crate::bucket::{ArchiveBucket, BucketEntry, BucketError};
use crate::keeper::{ArchiveError, RecordKeeper};

/// Names of dead objects in memory: about 5 MiB. With more of them the archive is listed again.
const NAMES_MAX: usize = 50_000;
/// Deletes at a time.
const DELETES_AT_ONCE: usize = 8;

/// The counts of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Objects that were listed.
    pub listed: u64,
    /// Dead ones, with their bytes.
    pub dead: u64,
    /// See `dead`.
    pub dead_bytes: u64,
    /// Objects that were deleted.
    pub deleted: u64,
}

/// At most `most` dead objects of the archive, in any order, and the counts. A listing that fails anywhere has no result.
///
/// An object that is dead by a version of the record is dead for ever, but one that a version does not name may be newer than it. So the
/// record is read twice: before the listing, to keep few of the names in memory, and after it, to decide (R-i).
///
/// # Errors
/// As the bucket; there is no record, so nobody knows which objects are dead.
pub async fn dead_objects(
    bucket: &ArchiveBucket,
    keeper: &RecordKeeper,
    most: usize,
) -> Result<(Vec<BucketEntry>, SweepReport), ArchiveError> {
    let before = named(keeper).await?;
    let (mut found, mut report) = (Vec::new(), SweepReport::default());
    for folder in ["log", "base"] {
        let take = |object| {
            report.listed += 1;
            if found.len() < most && before.is_dead(&object) {
                found.push(object);
            }
        };
        bucket.list(folder, take).await?;
    }
    let named = named(keeper).await?;
    found.retain(|object| named.is_dead(object));
    report.dead = found.len() as u64;
    report.dead_bytes = found.iter().map(|object| object.bytes).sum();
    Ok((found, report))
}

async fn named(keeper: &RecordKeeper) -> Result<NamedObjects, ArchiveError> {
    let no_record = "there is no archive, so nothing is swept: the prefix has no object \"record\"";
    let (record, _) = keeper.read().await?.ok_or_else(|| ArchiveError::Refused(no_record.into()))?;
    Ok(NamedObjects::of(&record))
}

/// Deletes the dead objects of the archive. `progress` is called after each deletion.
///
/// # Errors
/// As the bucket: some objects may be deleted, and another sweep continues.
pub async fn sweep(
    bucket: &ArchiveBucket,
    keeper: &RecordKeeper,
    progress: &mut (dyn FnMut(&SweepReport) + Send),
) -> Result<SweepReport, ArchiveError> {
    let mut sum = SweepReport::default();
    loop {
        let (dead, report) = dead_objects(bucket, keeper, NAMES_MAX).await?;
        let is_last = dead.len() < NAMES_MAX;
        (sum.listed, sum.dead) = (report.listed, sum.dead + report.dead);
        sum.dead_bytes += report.dead_bytes;
        let deletes = stream::iter(dead).map(async |object| bucket.delete(&object.name).await);
        let mut deletes = deletes.buffer_unordered(DELETES_AT_ONCE);
        while let Some(()) =
            deletes.try_next().await.map_err(|error: BucketError| ArchiveError::from(error))?
        {
            sum.deleted += 1;
            progress(&sum);
        }
        if is_last {
            return Ok(sum);
        }
    }
}
