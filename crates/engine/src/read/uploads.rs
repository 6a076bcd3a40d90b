//! Reads uploads, their parts, and the parts of completed objects.

use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::key::{Bucket, ObjectKey};
use shoal_common::object::ObjectInfo;
use shoal_common::upload::{ObjectPart, PartPage, Upload, UploadInfo, UploadPage, UploadsAfter};

use crate::store::Store;

impl Store {
    /// An upload that is open, or was completed within the last hour; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn upload<'a>(&'a self, _upload: &'a Upload) -> Boxed<'a, Result<Option<UploadInfo>>> {
        Box::pin(async move { Err(Error::Invalid("uploads are not there yet".into())) })
    }

    /// A page of the parts of an upload after part `after`, at most `limit` (up to 10,000). Empty if there is no such upload.
    ///
    /// # Errors
    /// As [`Self::list`]; [`Error::Corrupt`] if damage may hide a part.
    pub fn list_parts<'a>(
        &'a self,
        _upload: &'a Upload,
        _after: u16,
        _limit: usize,
    ) -> Boxed<'a, Result<PartPage>> {
        Box::pin(async move { Err(Error::Invalid("uploads are not there yet".into())) })
    }

    /// A page of the uploads into a bucket whose keys start with `prefix`, at most `limit` (up to 1,000). A caller that rolls up keys at a
    /// delimiter passes over a common prefix with [`UploadsAfter::Prefix`].
    ///
    /// # Errors
    /// As [`Self::list`]; [`Error::Corrupt`] if damage may hide an upload.
    pub fn list_uploads<'a>(
        &'a self,
        _bucket: &'a Bucket,
        _prefix: &'a [u8],
        _after: &'a UploadsAfter,
        _limit: usize,
    ) -> Boxed<'a, Result<UploadPage>> {
        Box::pin(async move { Err(Error::Invalid("uploads are not there yet".into())) })
    }

    /// A page of the uploads of all buckets after `after`, at most `limit` (up to 1,000).
    ///
    /// # Errors
    /// As [`Self::list_uploads`].
    pub fn all_uploads<'a>(
        &'a self,
        _after: Option<&'a Upload>,
        _limit: usize,
    ) -> Boxed<'a, Result<UploadPage>> {
        Box::pin(async move { Err(Error::Invalid("uploads are not there yet".into())) })
    }

    /// An object and the parts of which an upload made it, in order; no parts if it was written in another way. `None` if there is no
    /// object.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn object_parts<'a>(
        &'a self,
        _key: &'a ObjectKey,
    ) -> Boxed<'a, Result<Option<(ObjectInfo, Vec<ObjectPart>)>>> {
        Box::pin(async move { Err(Error::Invalid("uploads are not there yet".into())) })
    }
}
