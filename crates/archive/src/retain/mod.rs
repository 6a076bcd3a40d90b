//! Retention and collection: the record names what stays, and a sweep deletes the rest.

mod plan;

pub use plan::{make_room, oldest, retain};

use crate::bucket::ArchiveBucket;
use crate::keeper::{ArchiveError, RecordKeeper};
pub async fn sweep(_b: &ArchiveBucket, _k: &RecordKeeper) -> Result<u64, ArchiveError> {
    Ok(0)
}
