//! Reads uploads, their parts, and the parts of completed objects.

use shoal_base::limits::LIST_PAGE_MAX;
use shoal_base::task::Boxed;
use shoal_common::damaged_range;
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::{UploadRange, part_key, part_number, parts_prefix, upload_of};
use shoal_common::key::{Bucket, ObjectKey};
use shoal_common::object::ObjectInfo;
use shoal_common::upload::{
    Completed, NewUpload, PARTS_MAX, PartInfo, PartPage, PartedObject, Upload, UploadInfo, UploadPage,
    UploadRecord, UploadState, UploadsAfter,
};
use shoal_pool::Hint;
use shoal_value::read_joined;

use crate::read::get::FoundEntry;
use crate::read::streams::{Merge, TabletStream};
use crate::store::{Inner, Store};

/// A page of uploads ends after this many bytes of metadata.
const PAGE_BYTES: usize = 1 << 20;
/// Entries that a scan expects in a tablet: it reads ahead no further.
const EXPECTED: usize = 64;

impl Store {
    /// An upload that is open, or was completed within the last hour; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn upload<'a>(&'a self, upload: &'a Upload) -> Boxed<'a, Result<Option<UploadInfo>>> {
        Box::pin(async move {
            self.0.check_open()?;
            match self.0.see_upload(upload).await {
                Ok(seen) => Ok(seen.found.and_then(|(info, record)| info_of(upload.clone(), info, record))),
                Err(Error::NoUpload(_)) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    /// A page of the parts of an upload after part `after`, at most `limit` (up to 10,000). Empty if the upload is not open.
    ///
    /// # Errors
    /// As [`Self::list`]; [`Error::Corrupt`] if damage may hide a part.
    pub fn list_parts<'a>(
        &'a self,
        upload: &'a Upload,
        after: u16,
        limit: usize,
    ) -> Boxed<'a, Result<PartPage>> {
        Box::pin(async move {
            let inner = &*self.0;
            inner.check_open()?;
            let (mut page, limit) = (PartPage::default(), limit.min(usize::from(PARTS_MAX)));
            match inner.see_upload(upload).await {
                Ok(seen) if seen.open().is_some() => {}
                Ok(_) | Err(Error::NoUpload(_)) => return Ok(page),
                Err(error) => return Err(error),
            }
            let mut scan = PartScan::new(inner, upload, after).await?;
            while let Some((number, found)) = scan.next().await? {
                if page.parts.len() == limit {
                    page.is_cut = true;
                    break;
                }
                page.parts.push(PartInfo { number, info: inner.info(&found).await? });
            }
            Ok(page)
        })
    }

    /// A page of the uploads into a bucket whose keys start with `prefix`, at most `limit` (up to 1,000). A caller that rolls up keys at a
    /// delimiter passes over a common prefix with [`UploadsAfter::Prefix`].
    ///
    /// # Errors
    /// As [`Self::list`]; [`Error::Corrupt`] if damage may hide an upload.
    pub fn list_uploads<'a>(
        &'a self,
        bucket: &'a Bucket,
        prefix: &'a [u8],
        after: &'a UploadsAfter,
        limit: usize,
    ) -> Boxed<'a, Result<UploadPage>> {
        Box::pin(async move { self.0.uploads_in(UploadRange::of_bucket(bucket, prefix, after), limit).await })
    }

    /// A page of the uploads of all buckets after `after`, at most `limit` (up to 1,000).
    ///
    /// # Errors
    /// As [`Self::list_uploads`].
    pub fn all_uploads<'a>(
        &'a self,
        after: Option<&'a Upload>,
        limit: usize,
    ) -> Boxed<'a, Result<UploadPage>> {
        Box::pin(async move { self.0.uploads_in(UploadRange::of_all(after)?, limit).await })
    }

    /// An object and the parts of which an upload made it, in order; no parts if it was written in another way. `None` if there is no
    /// object.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn object_parts<'a>(&'a self, key: &'a ObjectKey) -> Boxed<'a, Result<Option<PartedObject>>> {
        Box::pin(async move {
            let inner = &*self.0;
            inner.check_open()?;
            // The view is held until the read completes: its blocks are not reused before (R16).
            let view = inner.tablets.of(key).view();
            let Some(found) = inner.find(&view, key.encoded()).await? else { return Ok(None) };
            let joined = read_joined(&inner.device, &inner.pool, &found.entry, found.version).await?;
            let parts = joined.map(|manifest| manifest.parts()).unwrap_or_default();
            Ok(Some((inner.info(&found).await?, parts)))
        })
    }
}

/// The parts of an upload, in the order of their numbers.
pub(crate) struct PartScan<'a> {
    merge: Merge<'a>,
    prefix: Vec<u8>,
}

impl<'a> PartScan<'a> {
    pub(crate) async fn new(inner: &'a Inner, upload: &Upload, after: u16) -> Result<Self> {
        let (view, prefix) = (inner.tablets.of(&upload.key).view(), parts_prefix(upload));
        let end = [&prefix[..], &[0xFF; 3]].concat();
        let stream = TabletStream::new(inner, view, Some(&end), Some(EXPECTED));
        let mut merge = Merge::new(inner, vec![stream.without_values()]);
        merge.seek(part_key(upload, after.saturating_add(1)).encoded().to_vec()).await?;
        Ok(Self { merge, prefix })
    }

    /// The next part.
    ///
    /// # Errors
    /// As a listing; [`Error::Corrupt`] if damage may hide a part.
    pub(crate) async fn next(&mut self) -> Result<Option<(u16, FoundEntry)>> {
        loop {
            let next = self.merge.next(&mut Vec::new()).await?;
            check_whole(&self.merge)?;
            let Some((key, found)) = next.filter(|(key, _)| key.starts_with(&self.prefix)) else {
                return Ok(None);
            };
            if let Some(found) = found {
                return Ok(Some((part_number(&key), found)));
            }
        }
    }
}

/// # Errors
/// [`Error::Corrupt`] if the scan met damage.
fn check_whole(merge: &Merge<'_>) -> Result<()> {
    match merge.damaged.first() {
        Some(range) => Err(damaged_range::error(range)),
        None => Ok(()),
    }
}

impl Inner {
    /// The numbers of the parts of an upload after part `after`, `limit` at most.
    ///
    /// # Errors
    /// As [`PartScan::next`].
    pub(crate) async fn part_numbers(&self, upload: &Upload, after: u16, limit: usize) -> Result<Vec<u16>> {
        let mut scan = PartScan::new(self, upload, after).await?;
        let mut numbers = Vec::new();
        while numbers.len() < limit
            && let Some((number, _)) = scan.next().await?
        {
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// The uploads whose records have keys in `range`.
    async fn uploads_in(&self, range: UploadRange, limit: usize) -> Result<UploadPage> {
        self.check_open()?;
        let limit = limit.clamp(1, LIST_PAGE_MAX);
        let tablets = self.tablets.all().iter();
        let streams =
            tablets.map(|tablet| TabletStream::new(self, tablet.view(), Some(&range.end), Some(EXPECTED)));
        let mut merge = Merge::new(self, streams.collect());
        let (mut page, mut bytes) = (UploadPage::default(), 0);
        merge.seek(range.start).await?;
        loop {
            let next = merge.next(&mut Vec::new()).await?;
            check_whole(&merge)?;
            let Some((key, found)) = next.filter(|(key, _)| key[..] < range.end[..]) else { return Ok(page) };
            let found = found.filter(|found| !self.is_over(found.entry.end, found.version));
            let Some((upload, found)) = upload_of(&key).zip(found) else { continue };
            if page.uploads.len() == limit || bytes > PAGE_BYTES {
                page.next = page.uploads.last().map(|info| info.upload.clone());
                return Ok(page);
            }
            let object = self.read_object(&found, 0, found.entry.value_bytes, Hint::Lookup).await?;
            let record = upload.record_in(&object.value.to_vec())?;
            // A page without an upload would have no place at which the next one starts.
            if let Some(info) = info_of(upload, object.info, record) {
                bytes += found.entry.stored_bytes() as usize;
                page.uploads.push(info);
            }
        }
    }
}

/// The information of an upload for its users; `None` if it is being removed.
fn info_of(upload: Upload, info: ObjectInfo, record: UploadRecord) -> Option<UploadInfo> {
    let completed = match record.state {
        UploadState::Open => None,
        UploadState::Completed { answer, after_object } => {
            Some(Completed { version: shoal_base::Lsn(info.version.0.saturating_sub(after_object)), answer })
        }
        UploadState::Aborted => return None,
    };
    let settings = NewUpload { metadata: info.metadata, items: record.items };
    Some(UploadInfo { upload, created_ns: record.created_ns, settings, completed })
}
