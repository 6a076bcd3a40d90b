//! A value that arrives in pieces: up to 5 GiB in bounded memory.

mod placing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use shoal_base::RequestId;
use shoal_base::limits::VALUE_BYTES_MAX;
use shoal_base::task::Boxed;
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::part_number;
use shoal_common::key::ObjectKey;
use shoal_common::object::{Metadata, PutOptions, PutResult, RejectRules};
use shoal_common::upload::Upload;
use shoal_value::{home_of, manifest_blocks};

use self::placing::{Placing, WrittenSteps};
use crate::bucket::BucketState;
use crate::store::Store;
use crate::store::shared_steps::STEP_BYTES;
use crate::write::change::Placed;
use crate::write::upload::{PartValue, check_part_metadata};
use crate::write::write_batch::Write;

/// A value that is being stored in pieces. Dropping it without [`finish`](Self::finish) frees everything.
pub struct ValueWriter {
    store: Store,
    key: ObjectKey,
    options: PutOptions,
    /// The request id of the write, if its client sent one.
    request: Option<RequestId>,
    /// The bucket that must not be deleted before the write has its place.
    bucket: Option<Arc<BucketState>>,
    /// The upload of which the value is a part.
    upload: Option<Upload>,
    /// Bytes of the whole value, if they are known.
    value_bytes: Option<u64>,
    /// Bytes that arrived so far.
    taken: u64,
    /// Bytes of metadata that are stored before the value.
    meta_in_front: usize,
    /// The first bytes; they become a single put if no more follow.
    pending: Vec<u8>,
    /// The place of the value, once more followed.
    placing: Option<Placing>,
}

impl Store {
    /// Starts to store a value that arrives in pieces: up to 5 GiB. It is visible only after [`ValueWriter::finish`].
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Poisoned`], [`Error::Closed`].
    pub fn put_stream(&self, key: &ObjectKey, options: PutOptions) -> Result<ValueWriter> {
        self.0.check_writable()?;
        let meta_in_front = self.0.new_entry(key, &options, 0)?.0.meta_in_front() as usize;
        Ok(ValueWriter {
            store: self.clone(),
            key: key.clone(),
            options,
            request: None,
            bucket: None,
            upload: None,
            value_bytes: None,
            taken: 0,
            meta_in_front,
            pending: Vec::new(),
            placing: None,
        })
    }
}

impl ValueWriter {
    /// Sets the request id: the value is then stored once. A repetition is recognised at [`finish`](Self::finish), and
    /// its bytes are dropped.
    #[must_use]
    pub fn with_request_id(self, request: Option<RequestId>) -> Self {
        Self { request, ..self }
    }

    /// Sets the bucket of the key: the value is not stored if the bucket is deleted before, see [`Write::in_bucket`].
    #[must_use]
    pub fn in_bucket(self, bucket: Arc<BucketState>) -> Self {
        assert_eq!(bucket.name(), self.key.bucket(), "the bucket of the key");
        Self { bucket: Some(bucket), ..self }
    }

    /// Sets the length of the value. It then takes the room that it needs, and no more for a while. Another length is refused.
    #[must_use]
    pub fn with_length(self, value_bytes: u64) -> Self {
        Self { value_bytes: Some(value_bytes), ..self }
    }

    /// The same for a part of an upload.
    pub(crate) fn of_upload(self, upload: Upload) -> Self {
        Self { upload: Some(upload), ..self }
    }

    /// Replaces the metadata, which may follow from the bytes of the value.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the metadata is too long, or is stored before the value and already written: it stays as
    /// it was.
    pub fn set_metadata(&mut self, metadata: Metadata) -> Result<()> {
        let options = PutOptions { metadata, ..self.options.clone() };
        let (entry, _) = self.store.0.new_entry(&self.key, &options, 0)?;
        if self.upload.is_some() {
            check_part_metadata(&options.metadata)?;
        }
        let meta_in_front = entry.meta_in_front() as usize;
        if self.placing.is_some() && (self.meta_in_front > 0 || meta_in_front > 0) {
            return Err(Error::Invalid("the metadata stored before the value is already written".into()));
        }
        self.meta_in_front = meta_in_front;
        self.options = options;
        Ok(())
    }

    /// Replaces the conditions of the write.
    pub fn set_rules(&mut self, rules: RejectRules) {
        self.options.rules = rules;
    }

    /// Takes the next bytes of the value.
    ///
    /// # Errors
    /// As [`Store::put`]; [`Error::Invalid`] above 5 GiB, and above the length that was set.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.taken += bytes.len() as u64;
        let most = self.value_bytes.unwrap_or(VALUE_BYTES_MAX).min(VALUE_BYTES_MAX);
        if self.taken > most {
            return Err(Error::Invalid(format!("the value has at most {most} bytes")));
        }
        if self.placing.is_none() {
            let room = STEP_BYTES.saturating_sub(self.meta_in_front + self.pending.len());
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.pending.extend_from_slice(now);
            bytes = later;
            if bytes.is_empty() {
                return Ok(());
            }
            self.start().await?;
        }
        self.place(bytes).await
    }

    /// Completes the value: makes it durable and visible.
    ///
    /// # Errors
    /// As [`Store::put`]; as [`Store::write`] if it has a request.
    pub fn finish(self) -> Boxed<'static, Result<PutResult>> {
        Box::pin(self.put())
    }

    async fn put(mut self) -> Result<PutResult> {
        let store = self.store.clone();
        let inner = &*store.0;
        if self.value_bytes.is_some_and(|bytes| bytes != self.taken) {
            let why = format!("the value has {} bytes, not as many as announced", self.taken);
            return Err(Error::Invalid(why));
        }
        let Some(mut placing) = self.placing.take() else { return self.put_at_once().await };
        placing.write_step(&store).await?;
        let WrittenSteps { extents, runs, checksums, bytes } = placing.finish(&store).await?;
        if bytes != self.taken + self.meta_in_front as u64 {
            return Err(Error::Invalid("an earlier write of the value failed".into()));
        }
        let (mut entry, _) = inner.new_entry(&self.key, &self.options, self.taken)?;
        inner.name_features_of(&self.options.metadata)?;
        let blocks = manifest_blocks(runs.len(), checksums.len());
        let manifest = if blocks > 0 { Some(inner.claim_manifest(blocks).await?) } else { None };
        let mut writes = Vec::new();
        entry.home = home_of(&inner.device, &runs, 0, checksums, manifest.as_ref(), &mut writes);
        inner.write_values(writes).await?;
        if let Some(end) = entry.end {
            inner.maintenance.expiring.note(end, self.key.encoded());
        }
        let mut head = Vec::with_capacity(96);
        entry.encode(&mut head);
        let placed = Placed { entry: head, extents: extents.into_iter().chain(manifest).collect() };
        if let Some(upload) = &self.upload {
            inner.name_uploads()?;
            return self.store.put_part(upload, self.key.clone(), placed).await;
        }
        let write = Write::put_placed(&self.key, &placed, self.options.rules);
        let write = Write { bucket: self.bucket.as_ref(), ..write };
        self.store.write_durably(write.with_request_id(self.request)).await.map(|(done, _)| done)
    }

    /// Stores a value that fits in one step.
    async fn put_at_once(mut self) -> Result<PutResult> {
        let value = Buffer::from(std::mem::take(&mut self.pending));
        if let Some(upload) = &self.upload {
            let number = part_number(self.key.encoded());
            let metadata = self.options.metadata.clone();
            return self.store.upload_part(upload, number, PartValue::Chunks(value), metadata).await;
        }
        let write = Write { bucket: self.bucket.as_ref(), ..Write::put(&self.key, &value, &self.options) };
        self.store.write_durably(write.with_request_id(self.request)).await.map(|(done, _)| done)
    }

    /// Starts to write to extents: first the metadata that is stored before the value, and the pending bytes.
    fn start(&mut self) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let store = self.store.clone();
            let inner = &*store.0;
            inner.be_writable().await?;
            if let Some(upload) = &self.upload {
                inner.check_open_upload(upload).await?;
            }
            // A repeated write gets the answer of the first one, even if the rules reject the object that
            // the first one left.
            if self.request.is_none() {
                inner.queue_by_rules(&self.key, self.options.rules, &mut None, None).await?;
            }
            let (_, meta) = inner.new_entry(&self.key, &self.options, 0)?;
            if self.meta_in_front > 0 {
                self.place(&meta).await?;
            }
            let pending = std::mem::take(&mut self.pending);
            self.place(&pending).await
        })
    }

    /// Writes bytes step by step.
    async fn place(&mut self, mut bytes: &[u8]) -> Result<()> {
        let store = self.store.clone();
        let owner = store.0.own.owner_of(&self.key);
        let stored = self.value_bytes.map(|bytes| bytes + self.meta_in_front as u64);
        let placing = self.placing.get_or_insert_default();
        loop {
            bytes = placing.take(bytes);
            if bytes.is_empty() {
                return Ok(());
            }
            placing.next_step(&store, owner, stored).await?;
        }
    }
}
