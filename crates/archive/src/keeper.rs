//! The record of an archive, read and changed by compare-and-swap.

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::Entropy;

use crate::bucket::{ArchiveBucket, BucketError, CasOutcome, CreateOutcome, FetchedObject, VersionTag};
use crate::format::{ArchiveName, ArchiveRecord, FormatError, RecordTooLong};

/// A change that meets another one is made again on the newer record, this number of times.
const TRIES: u32 = 5;

/// The reason why an archive was not read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// A request to the bucket.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// An object is damaged, of a newer version, or of another archive.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The record would be too long.
    #[error(transparent)]
    TooLong(#[from] RecordTooLong),
    /// The archive is not in the state that the change needs.
    #[error("{0}")]
    Refused(String),
}

/// Reads and changes the record of an archive.
#[derive(Clone)]
pub struct RecordKeeper {
    bucket: Arc<ArchiveBucket>,
    entropy: Arc<dyn Entropy>,
}

impl RecordKeeper {
    /// The record in `bucket`.
    pub fn new(bucket: Arc<ArchiveBucket>, entropy: Arc<dyn Entropy>) -> Self {
        Self { bucket, entropy }
    }

    /// The record, and its version; `None` if the prefix has no archive.
    ///
    /// # Errors
    /// As the bucket; a record that this program does not read.
    pub async fn read(&self) -> Result<Option<(ArchiveRecord, VersionTag)>, ArchiveError> {
        self.bucket.get(&ArchiveName::Record.to_string()).await?.map(decode).transpose()
    }

    /// Creates the record; returns false if there is one.
    ///
    /// # Errors
    /// As the bucket.
    pub async fn create(&self, record: &mut ArchiveRecord) -> Result<bool, ArchiveError> {
        (record.revision, record.nonce) = (1, self.random());
        let bytes = Bytes::from(record.encode()?);
        let created = self.bucket.create(&ArchiveName::Record.to_string(), bytes).await?;
        Ok(created == CreateOutcome::Created)
    }

    /// Changes the record; returns it. `change` is called again with the newer record if another change came first, so it looks at
    /// everything that its decision needs, and returns an error if the change is not to be made.
    ///
    /// # Errors
    /// That of `change`; as the bucket. After [`BucketError::Undecided`] the change may have been made, or may be made later.
    pub async fn update(
        &self,
        mut change: impl FnMut(&mut ArchiveRecord) -> Result<(), ArchiveError>,
    ) -> Result<ArchiveRecord, ArchiveError> {
        let gone = || ArchiveError::Refused("the archive has no record: it was deleted".into());
        let mut found = self.read().await?.ok_or_else(gone)?;
        for _ in 0..TRIES {
            let (mut record, tag) = found;
            change(&mut record)?;
            (record.revision, record.nonce) = (record.revision + 1, self.random());
            let bytes = Bytes::from(record.encode()?);
            match self.bucket.cas(&ArchiveName::Record.to_string(), bytes, &tag).await? {
                CasOutcome::Done(_) => return Ok(record),
                CasOutcome::Changed(newer) => found = decode(newer.ok_or_else(gone)?)?,
            }
        }
        Err(ArchiveError::Refused(format!(
            "the record of the archive changed {TRIES} times in a row: repeat the command"
        )))
    }

    /// A random number other than 0.
    pub fn random(&self) -> u64 {
        loop {
            match self.entropy.next_u64() {
                0 => {}
                number => return number,
            }
        }
    }
}

fn decode(object: FetchedObject) -> Result<(ArchiveRecord, VersionTag), ArchiveError> {
    Ok((ArchiveRecord::decode(&object.bytes)?, object.tag))
}
