//! Uploads: values that arrive as parts and become one object when they are completed (`docs/adr/2026-11-30-uploads.md`).
//!
//! The record of an upload and its parts are entries with hidden keys. A part is a value in separate extents, stored only while the
//! record is open. The completion writes a manifest that names the runs of the parts, and then one write batch: the object, the deletes
//! of the parts, and the record as completed (R44).

mod abort;
mod complete;
mod part;

use std::sync::Arc;

use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::upload_key;
use shoal_common::key::ObjectKey;
use shoal_common::object::{ObjectInfo, PutOptions, RejectRules};
use shoal_common::upload::{NewUpload, Upload, UploadId, UploadRecord, UploadState, check_items};

pub use complete::{CompleteOptions, Completing, Judge};
pub use part::PartValue;
pub(crate) use part::check_part_metadata;

use crate::bucket::BucketState;
use crate::store::{Inner, Store};
use crate::write::append::Seen;
use crate::write::change::ReadLevel;
use crate::write::write_batch::Write;

/// Numbers that a new upload tries.
const TRIES: usize = 8;
/// The record of an upload is kept for this time after it was completed; one whose parts are being deleted at most as long.
const KEPT_AFTER_END: std::time::Duration = std::time::Duration::from_secs(3_600);

/// The record of an upload, as it was seen.
pub(crate) struct SeenUpload {
    pub key: ObjectKey,
    pub seen: Seen,
    /// The entry and the record; `None` if there is no such upload.
    pub found: Option<(ObjectInfo, UploadRecord)>,
}

impl SeenUpload {
    /// The record of an open upload.
    pub(crate) fn open(&self) -> Option<&UploadRecord> {
        self.found.as_ref().map(|(_, record)| record).filter(|record| record.state == UploadState::Open)
    }
}

impl Store {
    /// Starts an upload of an object. Durable on return.
    ///
    /// # Errors
    /// As [`Self::put`]; [`Error::Invalid`] if the settings or the name of the object are too long; [`Error::NoBucket`] if `bucket` was
    /// deleted.
    pub fn begin_upload<'a>(
        &'a self,
        key: &'a ObjectKey,
        settings: NewUpload,
        bucket: Option<&'a Arc<BucketState>>,
    ) -> Boxed<'a, Result<Upload>> {
        Box::pin(async move {
            let inner = &*self.0;
            check_items(&settings.items)?;
            let created_ns = inner.environment.clock.wall_ns();
            let record = UploadRecord { state: UploadState::Open, created_ns, items: settings.items };
            let rules = RejectRules { if_exists: true, ..RejectRules::default() };
            let options = PutOptions { metadata: settings.metadata, rules, ..PutOptions::default() };
            let value = record.encode().into();
            inner.new_entry(key, &options, 0)?;
            inner.be_writable().await?;
            inner.name_uploads()?;
            for _ in 0..TRIES {
                let Some(id) = UploadId::new(inner.environment.entropy.next_u64() >> 1) else { continue };
                let upload = Upload { key: key.clone(), id };
                let record_key = upload_key(&upload)?;
                let write = Write { bucket, ..Write::put(&record_key, &value, &options) };
                match self.write_durably(write).await {
                    Ok(_) => return Ok(upload),
                    Err(Error::ConditionFailed { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(Error::Busy("all numbers that it tried for the upload are taken"))
        })
    }
}

impl Inner {
    /// The record of an upload, durable: its effects may be written at once.
    ///
    /// # Errors
    /// As a get; [`Error::NoUpload`] if no upload can have this name; [`Error::Corrupt`] for a record that this program does not know.
    pub(crate) async fn see_upload(&self, upload: &Upload) -> Result<SeenUpload> {
        let key = upload_key(upload).map_err(|_| upload.missing())?;
        let (seen, found) = self.look(self.tablets.of(&key), &key, ReadLevel::Whole).await?;
        let found = match found {
            None => None,
            Some(found) => {
                let object = self.object_for(&found, ReadLevel::Whole).await?;
                Some((object.info, upload.record_in(&object.value.to_vec())?))
            }
        };
        Ok(SeenUpload { key, seen, found })
    }

    /// Makes sure that the superblocks name the feature of a record of uploads, which is queued next.
    pub(crate) fn name_uploads(&self) -> Result<()> {
        self.checkpointer.name_uploads()?;
        assert!(self.checkpointer.has_uploads(), "a record needs a feature that no superblock names (R42)");
        Ok(())
    }
}
