//! Uploads: begin, parts, complete, abort.

use std::sync::Arc;

use shoal_base::task::Boxed;
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::key::ObjectKey;
use shoal_common::object::{Attributes, Metadata, ObjectInfo, PutResult};
use shoal_common::upload::{Completed, NewUpload, PartRef, Upload};

use crate::bucket::BucketState;
use crate::store::Store;
use crate::write::receive_buffer::ReceiveBuffer;
use crate::write::value_writer::ValueWriter;

/// The value of a part, of at most 4 MiB.
pub enum PartValue {
    /// As it was received.
    Chunks(Buffer),
    /// In the memory into which it was received, which must be full: [`Store::receive_buffer`] with the key of the object.
    Received(ReceiveBuffer),
}

/// The judge of a completion: it sees the present object, and refuses with an error.
pub type Judge<'a, E> = dyn Fn(Option<&ObjectInfo>) -> std::result::Result<(), E> + Sync + 'a;

/// The options of a completion.
pub struct CompleteOptions<'a, E> {
    /// The metadata of the object.
    pub metadata: Metadata,
    /// Items that the record of the upload keeps, such as ETag and checksum: a repeated completion returns them. At most 512 bytes.
    pub answer: Attributes,
    /// Decides by the present object if the upload is completed; no other write comes between. It may be called several times.
    pub judge: Option<&'a Judge<'a, E>>,
    /// The upload is completed only if this bucket still exists.
    pub bucket: Option<&'a Arc<BucketState>>,
}

/// The outcome of a completion.
#[derive(Debug)]
pub enum Completing<E> {
    /// The object is durable, now or since an earlier completion of the upload.
    Done(Completed),
    /// The judge refused: the upload stays open.
    Refused(E),
}

impl Store {
    /// Starts an upload of an object. Durable on return.
    ///
    /// # Errors
    /// As [`Self::put`]; [`Error::Invalid`] if the settings are too long; [`Error::NoBucket`] if `bucket` was deleted.
    pub fn begin_upload<'a>(
        &'a self,
        _key: &'a ObjectKey,
        _settings: NewUpload,
        _bucket: Option<&'a Arc<BucketState>>,
    ) -> Boxed<'a, Result<Upload>> {
        Box::pin(async move { Err(Error::Invalid("uploads are not there yet".into())) })
    }

    /// Stores a part of at most 4 MiB; [`Self::upload_part_stream`] takes larger ones. A part with the same number is replaced. Durable on
    /// return.
    ///
    /// # Errors
    /// As [`Self::put`]; [`Error::NoUpload`] if the upload is not open; [`Error::Invalid`] for a number that no part can have, or metadata
    /// of more than 96 bytes.
    pub fn upload_part<'a>(
        &'a self,
        _upload: &'a Upload,
        _number: u16,
        _value: PartValue,
        _metadata: Metadata,
    ) -> Boxed<'a, Result<PutResult>> {
        Box::pin(async move { Err(Error::Invalid("uploads are not there yet".into())) })
    }

    /// Starts to store a part that arrives in pieces. [`ValueWriter::set_metadata`] may set the metadata at the end, and
    /// [`ValueWriter::finish`] stores the part.
    ///
    /// # Errors
    /// As [`Self::upload_part`]; [`ValueWriter::finish`] returns [`Error::NoUpload`] if the upload is not open then.
    pub fn upload_part_stream(
        &self,
        _upload: &Upload,
        _number: u16,
        _metadata: Metadata,
    ) -> Result<ValueWriter> {
        Err(Error::Invalid("uploads are not there yet".into()))
    }

    /// Makes the object of these parts, whose numbers ascend. No value is copied. All other parts are deleted. Durable on return; if the
    /// upload was completed before, the result is the one of that time.
    ///
    /// # Errors
    /// As [`Self::put`]; [`Error::NoUpload`]; [`Error::NoPart`] if a part is missing or has another version: the upload stays open.
    /// [`Error::Invalid`] if the numbers do not ascend, if there are none, or if the parts have more than 5 GiB.
    pub fn complete_upload<'a, E: Send + 'a>(
        &'a self,
        _upload: &'a Upload,
        _parts: &'a [PartRef],
        _options: CompleteOptions<'a, E>,
    ) -> Boxed<'a, Result<Completing<E>>> {
        Box::pin(async move { Err(Error::Invalid("uploads are not there yet".into())) })
    }

    /// Deletes an upload and its parts, or the record of a completed one. Returns true if it was open. Durable on return; works on a full
    /// device.
    ///
    /// # Errors
    /// As [`Self::delete`].
    pub fn abort_upload<'a>(&'a self, _upload: &'a Upload) -> Boxed<'a, Result<bool>> {
        Box::pin(async move { Err(Error::Invalid("uploads are not there yet".into())) })
    }
}
