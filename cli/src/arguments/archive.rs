//! The archive that a command reads or changes.

use std::sync::Arc;

use clap::Args;
use shoal_archive::bucket::{ArchiveBucket, BucketAddress, BucketOptions};
use shoal_archive::keeper::RecordKeeper;
use shoal_base::SystemEntropy;

use crate::failure::Usage;

/// An archive.
#[derive(Args)]
pub(crate) struct ArchiveArguments {
    /// The archive: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER.
    #[arg(long, value_name = "URL", env = "SHOAL_ARCHIVE")]
    pub(crate) archive: String,
    /// The server of the bucket, if it is not the provider's: http://HOST:PORT or https://HOST.
    #[arg(long, value_name = "URL", env = "SHOAL_ARCHIVE_ENDPOINT")]
    pub(crate) archive_endpoint: Option<String>,
}

impl ArchiveArguments {
    /// The bucket of the archive, and the keeper of its record.
    ///
    /// # Errors
    /// [`Usage`] for an address that is none; a bucket that cannot be used.
    pub(crate) fn open(&self) -> anyhow::Result<(Arc<ArchiveBucket>, RecordKeeper)> {
        open(&self.archive, self.archive_endpoint.as_deref())
    }
}

/// The address of `archive` on the server `endpoint`.
///
/// # Errors
/// [`Usage`].
pub(crate) fn address(archive: &str, endpoint: Option<&str>) -> anyhow::Result<BucketAddress> {
    let text = match endpoint {
        None => archive.to_owned(),
        Some(endpoint) => {
            let separator = if archive.contains('?') { '&' } else { '?' };
            format!("{archive}{separator}endpoint={endpoint}")
        }
    };
    text.parse().map_err(|error: shoal_archive::bucket::WrongAddress| Usage(error.to_string()).into())
}

/// The bucket of `archive`, and the keeper of its record.
///
/// # Errors
/// [`Usage`] for an address that is none; a bucket that cannot be used.
pub(crate) fn open(
    archive: &str,
    endpoint: Option<&str>,
) -> anyhow::Result<(Arc<ArchiveBucket>, RecordKeeper)> {
    let entropy = Arc::new(SystemEntropy);
    let options = BucketOptions { puts_per_second: 100, ..BucketOptions::default() };
    let bucket = Arc::new(ArchiveBucket::open(&address(archive, endpoint)?, options, entropy.clone())?);
    let keeper = RecordKeeper::new(Arc::clone(&bucket), entropy);
    Ok((bucket, keeper))
}
