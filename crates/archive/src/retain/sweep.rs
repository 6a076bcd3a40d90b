//! A sweep: objects that the record does not name are deleted. List first, *then* read the record (R-i).

use futures_util::{StreamExt, TryStreamExt, stream};

use super::NamedObjects;
use crate::bucket::{ArchiveBucket, BucketEntry, BucketError};
use crate::keeper::{ArchiveError, RecordKeeper};

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

/// The dead objects of the archive, in any order, and the counts. A listing that fails anywhere has no result.
///
/// # Errors
/// As the bucket; there is no record, so nobody knows which objects are dead.
pub async fn dead_objects(
    bucket: &ArchiveBucket,
    keeper: &RecordKeeper,
) -> Result<(Vec<BucketEntry>, SweepReport), ArchiveError> {
    let mut found = Vec::new();
    for folder in ["log", "base"] {
        bucket.list(folder, |object| found.push(object)).await?;
    }
    let no_record = "there is no archive, so nothing is swept: the prefix has no object \"record\"";
    let (record, _) = keeper.read().await?.ok_or_else(|| ArchiveError::Refused(no_record.into()))?;
    let mut report = SweepReport { listed: found.len() as u64, ..SweepReport::default() };
    let named = NamedObjects::of(&record);
    found.retain(|object| named.is_dead(object));
    report.dead = found.len() as u64;
    report.dead_bytes = found.iter().map(|object| object.bytes).sum();
    Ok((found, report))
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
    let (dead, mut report) = dead_objects(bucket, keeper).await?;
    let deletes = stream::iter(dead).map(async |object| bucket.delete(&object.name).await);
    let mut deletes = deletes.buffer_unordered(DELETES_AT_ONCE);
    while let Some(()) = deletes.try_next().await.map_err(|error: BucketError| ArchiveError::from(error))? {
        report.deleted += 1;
        progress(&report);
    }
    Ok(report)
}
