//! Uploads in parts: an object that arrives as numbered parts, in any order and over several connections. The store keeps an upload and
//! its parts until the upload is completed, which makes the object in one step and copies no value, or aborted.
//!
//! [`join`] has the pure part: the checksum that an upload promises, and the object that its parts make. Next: `write/upload/mod.rs` of the
//! engine.

pub(crate) mod begin;
pub(crate) mod complete;
pub mod document;
pub mod join;
pub(crate) mod list;
pub(crate) mod part;
pub(crate) mod part_copy;

use shoal_engine::{Attributes, Metadata, PartInfo, Upload, UploadId, UploadInfo};

use self::join::UploadChecksum;
use crate::answer::list::{ListedObject, ListedPart, ListedUpload};
use crate::object::metadata::{S3Metadata, StoredChecksum};
use crate::object::write::etag_of;
use crate::request::error::{ErrorCode, S3Result};
use crate::request::list::upload_id;
use crate::serve::call::S3Call;
use crate::state::{S3State, owner};

/// The tags of an upload's items.
mod item {
    /// The id of the key that started it.
    pub(super) const INITIATOR: u8 = 1;
    /// The checksum that it promises.
    pub(super) const CHECKSUM: u8 = 2;
}

/// The items of a new upload.
fn items_of(initiator: &str, checksum: Option<UploadChecksum>) -> Attributes {
    let mut items = Attributes::default();
    items.set(item::INITIATOR, Some(initiator.as_bytes()));
    items.set(item::CHECKSUM, checksum.map(UploadChecksum::item).as_ref().map(<[u8; 2]>::as_slice));
    items
}

/// The upload that a request names. An id of another key or another bucket names none.
///
/// # Errors
/// `NoSuchUpload`.
fn upload_of(call: &S3Call) -> S3Result<Upload> {
    let id = UploadId::new(upload_id(&call.query)?).ok_or(ErrorCode::NoSuchUpload)?;
    Ok(Upload { key: call.object_key()?, id })
}

/// The upload that a request names, if it is open.
///
/// # Errors
/// `NoSuchUpload`.
async fn open_upload(state: &S3State, call: &S3Call) -> S3Result<UploadInfo> {
    let info = state.store.upload(&upload_of(call)?).await?;
    info.filter(|info| info.completed.is_none()).ok_or_else(|| ErrorCode::NoSuchUpload.into())
}

/// The checksum that an upload promises.
fn checksum_of(info: &UploadInfo) -> Option<UploadChecksum> {
    info.settings.items.get(item::CHECKSUM).and_then(UploadChecksum::of_item)
}

/// An upload in a list.
fn listed_upload(info: &UploadInfo) -> ListedUpload<'_> {
    let initiator = info.settings.items.get(item::INITIATOR).and_then(|id| str::from_utf8(id).ok());
    ListedUpload {
        upload: info.upload.id.number(),
        created_ns: info.created_ns,
        initiator: owner(initiator.unwrap_or_default()),
        checksum: checksum_of(info).map(|checksum| (checksum.algorithm, checksum.is_composite)),
    }
}

/// A part in a list.
fn listed_part(part: &PartInfo) -> ListedPart {
    let info = &part.info;
    let (etag, checksum) = (etag_of(info), info.metadata.checksum());
    let object = ListedObject { etag, checksum, bytes: info.bytes, modified_ns: info.modified_ns };
    ListedPart { number: part.number, object }
}

/// The metadata of a part: its ETag and its checksum.
fn part_metadata(body: &crate::body::check::CheckedBody) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set_of_value(&body.etag, body.checksum.map(|value| StoredChecksum { value, parts: None }));
    metadata
}
