//! The archive that a command reads or changes.

use std::sync::Arc;

use clap::Args;
use shoal_archive::bucket::{ArchiveBucket, BucketAddress, BucketOptions, WrongAddress};
use shoal_archive::keeper::RecordKeeper;
use shoal_base::SystemEntropy;

use crate::failure::Usage;

/// An archive.
#[derive(Args)]
pub(crate) struct ArchiveArguments {
    /// The archive: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX (with ?endpoint=URL for another server than the
    /// provider's) or file:///FOLDER.
    #[arg(long, value_name = "URL", env = "SHOAL_ARCHIVE")]
    pub(crate) archive: String,
}

impl ArchiveArguments {
    /// The bucket of the archive, and the keeper of its record.
    ///
    /// # Errors
    /// [`Usage`] for an address that is none; a bucket that cannot be used.
    pub(crate) fn open(&self) -> anyhow::Result<(Arc<ArchiveBucket>, RecordKeeper)> {
        open(&self.archive)
    }
}

/// The bucket of `archive`, and the keeper of its record.
///
/// # Errors
/// [`Usage`] for an address that is none; a bucket that cannot be used.
pub(crate) fn open(archive: &str) -> anyhow::Result<(Arc<ArchiveBucket>, RecordKeeper)> {
    let address: BucketAddress = archive.parse().map_err(|error: WrongAddress| Usage(error.to_string()))?;
    let entropy = Arc::new(SystemEntropy);
    let options = BucketOptions { puts_per_second: 100, ..BucketOptions::default() };
    let bucket = Arc::new(ArchiveBucket::open(&address, options, entropy.clone())?);
    let keeper = RecordKeeper::new(Arc::clone(&bucket), entropy);
    Ok((bucket, keeper))
}
