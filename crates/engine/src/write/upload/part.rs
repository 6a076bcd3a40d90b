//! The parts of uploads: values in separate extents, stored only while their upload is open.

use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_base::task::Boxed;
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::{part_key, upload_key};
use shoal_common::key::ObjectKey;
use shoal_common::object::{Attributes, Metadata, Object, PutOptions, PutResult};
use shoal_common::upload::{PART_METADATA_BYTES_MAX, Upload, UploadState, check_part_number};
use shoal_value::{NOTE_BYTES_MAX, ValueContent, encode_metadata};
use smallvec::smallvec;

use crate::store::{Inner, Store};
use crate::write::change::{Change, Placed, ReadLevel};
use crate::write::receive_buffer::{ReceiveBuffer, ReceivedValue};
use crate::write::txn::{Decision, TransactOptions};
use crate::write::value_writer::ValueWriter;
use shoal_tablets::counters::OperationCounters;

/// The value of a part, of at most 4 MiB.
#[expect(clippy::large_enum_variant, reason = "a value is stored at once")]
pub enum PartValue {
    /// As it was received.
    Chunks(Buffer),
    /// In the memory into which it was received, which must be full: [`Store::receive_buffer`] with the key of the object.
    Received(ReceiveBuffer),
}

impl Store {
    /// Stores a part of at most 4 MiB; [`Self::upload_part_stream`] takes larger ones. A part with the same number is replaced. Durable on
    /// return.
    ///
    /// # Errors
    /// As [`Self::put`]; [`Error::NoUpload`] if the upload is not open; [`Error::Invalid`] for a number that no part can have, or metadata
    /// of more than 96 bytes.
    pub fn upload_part<'a>(
        &'a self,
        upload: &'a Upload,
        number: u16,
        value: PartValue,
        metadata: Metadata,
    ) -> Boxed<'a, Result<PutResult>> {
        Box::pin(async move {
            let inner = &*self.0;
            check_part_number(number)?;
            check_part_metadata(&metadata)?;
            inner.be_writable().await?;
            inner.check_open_upload(upload).await?;
            let key = part_key(upload, number);
            let options = PutOptions { metadata, ..PutOptions::default() };
            let placed = match value {
                PartValue::Chunks(value) => inner.place_part(&key, (&value).into(), &options).await?,
                PartValue::Received(buffer) => {
                    let ReceivedValue { frames, value_bytes, copied, checksums } = buffer.into_value();
                    OperationCounters::add(&inner.counters.value_bytes_copied, copied as u64);
                    let value = ValueContent::Filled { frames: &frames, value_bytes, checksums: &checksums };
                    inner.place_part(&key, value, &options).await?
                }
            };
            self.put_part(upload, key, placed).await
        })
    }

    /// Starts to store a part that arrives in pieces. [`ValueWriter::set_metadata`] may set the metadata at the end, and
    /// [`ValueWriter::finish`] stores the part.
    ///
    /// # Errors
    /// As [`Self::upload_part`]; [`ValueWriter::finish`] returns [`Error::NoUpload`] if the upload is not open then.
    pub fn upload_part_stream(
        &self,
        upload: &Upload,
        number: u16,
        metadata: Metadata,
    ) -> Result<ValueWriter> {
        check_part_number(number)?;
        check_part_metadata(&metadata)?;
        let options = PutOptions { metadata, ..PutOptions::default() };
        let writer = self.put_stream(&part_key(upload, number), options)?;
        Ok(writer.of_upload(upload.clone()))
    }

    /// Queues the put of a part whose value is on the device, if its upload is open. Durable on return.
    ///
    /// # Errors
    /// As [`Self::upload_part`].
    pub(crate) async fn put_part(
        &self,
        upload: &Upload,
        key: ObjectKey,
        placed: Placed,
    ) -> Result<PutResult> {
        let record_key = upload_key(upload).map_err(|_| upload.missing())?;
        let keys = [(record_key, ReadLevel::Value), (key, ReadLevel::Nothing)];
        let options = TransactOptions::default();
        let outcome = self.transact(&keys, &options, |objects| {
            let record = objects.first().and_then(Option::as_ref);
            let open = is_open(upload, record);
            let change =
                if matches!(open, Ok(true)) { Change::Placed(placed.clone()) } else { Change::NoChange };
            Decision::Do(smallvec![Change::NoChange, change], open)
        });
        let (open, version) = outcome.await?.done().durable().await?;
        if open? { Ok(PutResult { version }) } else { Err(upload.missing()) }
    }
}

impl Inner {
    /// # Errors
    /// [`Error::NoUpload`] if the upload is not open.
    pub(crate) async fn check_open_upload(&self, upload: &Upload) -> Result<()> {
        match self.see_upload(upload).await?.open() {
            Some(_) => Ok(()),
            None => Err(upload.missing()),
        }
    }

    /// Writes the value of a part to its extents; an empty one has none.
    async fn place_part(
        &self,
        key: &ObjectKey,
        value: ValueContent<'_>,
        options: &PutOptions,
    ) -> Result<Placed> {
        let value_bytes = value.byte_count() as u64;
        if value_bytes > VALUE_BYTES_SINGLE_MAX {
            return Err(Error::Invalid(format!(
                "a part of {value_bytes} bytes is too large for one call: use a stream above {VALUE_BYTES_SINGLE_MAX} bytes"
            )));
        }
        let (mut entry, _) = self.new_entry(key, options, value_bytes)?;
        assert!(entry.meta_in_front() == 0, "a part has short metadata (R44)");
        self.name_features_of(&options.metadata)?;
        self.name_uploads()?;
        OperationCounters::add(&self.counters.value_bytes_written, value_bytes);
        let extents = match value_bytes {
            0 => Vec::new(),
            _ => self.write_extents(key, &mut entry, &[], value, None).await?.extents,
        };
        let mut head = Vec::with_capacity(128);
        entry.encode(&mut head);
        Ok(Placed { entry: head, extents })
    }
}

fn is_open(upload: &Upload, record: Option<&Object>) -> Result<bool> {
    let Some(record) = record else { return Ok(false) };
    Ok(upload.record_in(&record.value.to_vec())?.state == UploadState::Open)
}

/// Checks that the metadata of a part has room in its entry, and its checksum in the manifest of the object.
///
/// # Errors
/// [`Error::Invalid`].
pub(crate) fn check_part_metadata(metadata: &Metadata) -> Result<()> {
    let bytes = encode_metadata(metadata)?.len();
    let note = metadata.attributes.get(Attributes::CHECKSUM).map_or(0, <[u8]>::len);
    if bytes > PART_METADATA_BYTES_MAX || note > NOTE_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "the metadata of the part has {bytes} bytes, {note} of them a checksum; {PART_METADATA_BYTES_MAX} and {NOTE_BYTES_MAX} are \
             allowed"
        )));
    }
    Ok(())
}
