//! A value that arrives in pieces: up to 5 GiB in bounded memory.

use std::sync::Arc;

use shoal_base::limits::{VALUE_BYTES_MAX, VALUE_BYTES_SINGLE_MAX, VALUE_UNIT_BYTES};
use shoal_base::task::Boxed;
use shoal_base::{BLOCK_BYTES_U64, RequestId, Run, blocks_for};
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::part_number;
use shoal_common::key::ObjectKey;
use shoal_common::object::{Metadata, PutOptions, PutResult, RejectRules};
use shoal_common::upload::Upload;
use shoal_device::memory::Guarded;
use shoal_log::ValueWrite;
use shoal_pool::WriteMemory;
use shoal_space_manager::{Extents, RUNS_MAX};
use shoal_value::{Filler, home_of, manifest_blocks};

use crate::bucket::BucketState;
use crate::store::Store;
use crate::write::change::Placed;
use crate::write::upload::{PartValue, check_part_metadata};
use crate::write::write_batch::Write;

/// Bytes that a stream collects before it writes them to an extent.
const PIECE_BYTES: usize = 4 << 20;

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
    /// Bytes that are not on the device yet; they become a single put if no more follow.
    pending: Vec<u8>,
    /// True once metadata that is stored before the value is in `pending`.
    started: bool,
    meta_in_front: usize,
    written: u64,
    extents: Vec<Arc<Extents>>,
    runs: Vec<Run>,
    checksums: Vec<u32>,
    under_way: Vec<ValueWrite>,
}

impl Store {
    /// Starts to store a value that arrives in pieces: up to 5 GiB. It is visible only after [`ValueWriter::finish`].
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Poisoned`], [`Error::Closed`].
    pub fn put_stream(&self, key: &ObjectKey, options: PutOptions) -> Result<ValueWriter> {
        self.0.check_writable()?;
        self.0.new_entry(key, &options, 0)?;
        Ok(ValueWriter {
            store: self.clone(),
            key: key.clone(),
            options,
            request: None,
            bucket: None,
            upload: None,
            pending: Vec::new(),
            started: false,
            meta_in_front: 0,
            written: 0,
            extents: Vec::new(),
            runs: Vec::new(),
            checksums: Vec::new(),
            under_way: Vec::new(),
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
        if self.started && (self.meta_in_front > 0 || entry.meta_in_front() > 0) {
            return Err(Error::Invalid("the metadata stored before the value is already written".into()));
        }
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
    /// As [`Store::put`]; [`Error::Invalid`] above 5 GiB.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        if self.written + (self.pending.len() + bytes.len()) as u64 > VALUE_BYTES_MAX {
            return Err(Error::Invalid(format!("a value has at most {VALUE_BYTES_MAX} bytes")));
        }
        while !bytes.is_empty() {
            if self.pending.len() == PIECE_BYTES {
                self.write_piece().await?;
            }
            let count = bytes.len().min(PIECE_BYTES - self.pending.len());
            let (now, later) = bytes.split_at(count);
            self.pending.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Completes the value: makes it durable and visible.
    ///
    /// # Errors
    /// As [`Store::put`]; as [`Store::write`] if it has a request.
    pub fn finish(self) -> Boxed<'static, Result<PutResult>> {
        Box::pin(self.put())
    }

    async fn put(mut self) -> Result<PutResult> {
        if !self.started && self.pending.len() as u64 <= VALUE_BYTES_SINGLE_MAX {
            let value = Buffer::from(std::mem::take(&mut self.pending));
            if let Some(upload) = &self.upload {
                let number = part_number(self.key.encoded());
                let metadata = self.options.metadata.clone();
                return self.store.upload_part(upload, number, PartValue::Chunks(value), metadata).await;
            }
            let write =
                Write { bucket: self.bucket.as_ref(), ..Write::put(&self.key, &value, &self.options) };
            return self.store.write_durably(write.with_request_id(self.request)).await.map(|(done, _)| done);
        }
        if !self.pending.is_empty() {
            self.write_piece().await?;
        }
        self.settle().await?;
        let store = self.store.clone();
        let inner = &*store.0;
        let value_bytes = self.written - self.meta_in_front as u64;
        let (mut entry, _) = inner.new_entry(&self.key, &self.options, value_bytes)?;
        inner.name_features_of(&self.options.metadata)?;
        let units = self.written.div_ceil(VALUE_UNIT_BYTES as u64);
        assert_eq!(self.checksums.len() as u64, units, "each unit has its checksum (R7)");
        let blocks = manifest_blocks(self.runs.len(), self.checksums.len());
        let manifest = if blocks > 0 { Some(inner.claim_manifest(blocks).await?) } else { None };
        let mut writes = Vec::new();
        let checksums = std::mem::take(&mut self.checksums);
        let home = home_of(&inner.device, &self.runs, 0, checksums, manifest.as_ref(), &mut writes);
        inner.write_values(writes).await?;
        entry.home = home;
        if let Some(end) = entry.end {
            inner.maintenance.expiring.note(end, self.key.encoded());
        }
        let mut head = Vec::with_capacity(96);
        entry.encode(&mut head);
        let placed = Placed { entry: head, extents: self.extents.drain(..).chain(manifest).collect() };
        if let Some(upload) = &self.upload {
            inner.name_uploads()?;
            return self.store.put_part(upload, self.key.clone(), placed).await;
        }
        let write = Write::put_placed(&self.key, &placed, self.options.rules);
        let write = Write { bucket: self.bucket.as_ref(), ..write };
        self.store.write_durably(write.with_request_id(self.request)).await.map(|(done, _)| done)
    }

    /// Writes the pending bytes to a separate extent, in the background; at most one write is under way.
    fn write_piece(&mut self) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let store = self.store.clone();
            let inner = &*store.0;
            inner.be_writable().await?;
            if !self.started {
                self.started = true;
                if let Some(upload) = &self.upload {
                    inner.check_open_upload(upload).await?;
                }
                // A repeated write gets the answer of the first one, even if the rules reject the object that
                // the first one left.
                if self.request.is_none() {
                    inner.queue_by_rules(&self.key, self.options.rules, &mut None, None).await?;
                }
                let (entry, meta) = inner.new_entry(&self.key, &self.options, 0)?;
                self.meta_in_front = entry.meta_in_front() as usize;
                if self.meta_in_front > 0 {
                    self.pending.splice(0..0, meta);
                }
            }
            // Whole units, so that no unit is in two pieces; only the last piece may contain a partial one.
            let whole = self.pending.len() / VALUE_UNIT_BYTES * VALUE_UNIT_BYTES;
            let take = if self.pending.len() >= PIECE_BYTES { whole } else { self.pending.len() };
            assert!(
                self.written.is_multiple_of(VALUE_UNIT_BYTES as u64),
                "only the last piece has a partial unit"
            );
            let (extents, _) = {
                let blocks = blocks_for(take as u64);
                let owner = inner.own.owner_of(&self.key);
                inner.claim(|| inner.space.claim_value(owner, blocks, 0)).await?
            };
            self.settle().await?;
            let mut filler = Filler::new(extents.runs());
            filler.take(&self.pending[..take]);
            self.pending.drain(..take);
            let (bufs, checksums) = filler.finish();
            let mut batch = inner.device.batch();
            for (run, memory) in extents.runs().iter().zip(bufs) {
                let memory = WriteMemory::Own(memory);
                let write = inner.device.write(run.block, Guarded { memory, guard: extents.clone() });
                self.under_way.push(batch.add(write));
            }
            batch.start_in_background();
            self.written += take as u64;
            self.checksums.extend(checksums);
            for &run in extents.runs() {
                match self.runs.last_mut() {
                    Some(last) if last.end() == run.block && is_whole_units(*last) => {
                        last.blocks += run.blocks
                    }
                    _ => self.runs.push(run),
                }
            }
            self.extents.push(extents);
            if self.runs.len() > RUNS_MAX {
                let needed = blocks_for(self.written);
                return Err(Error::full(needed, inner.space.available()));
            }
            Ok(())
        })
    }

    async fn settle(&mut self) -> Result<()> {
        let mut result = Ok(());
        for write in self.under_way.drain(..) {
            if let Err(error) = write.await.ok() {
                result = Err(self.store.0.log.committer.room.value_failed(error));
            }
        }
        result
    }
}

fn is_whole_units(run: Run) -> bool {
    (u64::from(run.blocks) * BLOCK_BYTES_U64).is_multiple_of(VALUE_UNIT_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::Fixture;
    use crate::{ByteRange, block_on};

    /// Limits that no test reaches with real bytes.
    #[test]
    fn a_value_that_is_too_long_or_in_too_many_runs_is_refused() {
        let mut made = Fixture::with_blocks(8_192);
        made.publish();
        let store = made.open().unwrap();
        let free = store.0.space.allocator().free_blocks();
        let key = ObjectKey::new("default", b"1").unwrap();
        let begin = || store.put_stream(&key, PutOptions::default()).unwrap();
        let mut stream = begin();
        stream.written = VALUE_BYTES_MAX - 10;
        block_on(stream.write(&[1; 10])).unwrap();
        let refused = block_on(stream.write(&[1]));
        assert!(
            matches!(&refused, Err(Error::Invalid(why)) if why.contains("a value has at most")),
            "{refused:?}"
        );
        drop(stream);

        let mut stream = begin();
        block_on(stream.write(&[1; 100_000])).unwrap();
        stream.runs = (0..RUNS_MAX as u64).map(|run| Run::new(3 * run, 1)).collect();
        let refused = block_on(stream.write_piece());
        assert!(matches!(refused, Err(Error::Full { needed: 25, .. })), "{refused:?}");
        drop(stream);
        assert_eq!(store.0.space.allocator().free_blocks(), free, "what was taken is back");
        assert!(block_on(store.get(&key, ByteRange::ALL)).unwrap().is_none());
    }

    /// The ETag of S3 follows from the bytes.
    #[test]
    fn metadata_and_rules_may_be_set_after_the_bytes() {
        let mut made = Fixture::with_blocks(16_384);
        made.publish();
        let store = made.open().unwrap();
        let of_type =
            |content_type: &str| Metadata { content_type: content_type.into(), ..Metadata::default() };
        for (number, bytes) in [100, PIECE_BYTES + 100_000].into_iter().enumerate() {
            let key = ObjectKey::new("default", &[number as u8]).unwrap();
            let before = PutOptions { metadata: of_type("before"), ..PutOptions::default() };
            let mut stream = store.put_stream(&key, before).unwrap();
            block_on(stream.write(&vec![7; bytes])).unwrap();
            assert!(stream.set_metadata(of_type(&"x".repeat(256))).is_err());
            stream.set_metadata(of_type("after")).unwrap();
            stream.set_rules(RejectRules { if_exists: true, ..RejectRules::default() });
            block_on(stream.finish()).unwrap();
            let info = block_on(store.head(&key)).unwrap().unwrap();
            assert_eq!((info.metadata, info.bytes), (of_type("after"), bytes as u64));
            let mut stream = store.put_stream(&key, PutOptions::default()).unwrap();
            stream.set_rules(RejectRules { if_exists: true, ..RejectRules::default() });
            assert!(matches!(block_on(stream.finish()), Err(Error::ConditionFailed { .. })));
        }
        let key = ObjectKey::new("default", b"long").unwrap();
        let user = vec![("name".to_owned(), vec![1; 2_000].into())];
        let long = Metadata { user, ..Metadata::default() };
        let mut stream =
            store.put_stream(&key, PutOptions { metadata: long.clone(), ..PutOptions::default() }).unwrap();
        block_on(stream.write(&vec![7; PIECE_BYTES + 1])).unwrap();
        assert!(stream.set_metadata(of_type("after")).is_err(), "it is on the device");
        block_on(stream.finish()).unwrap();
        assert_eq!(block_on(store.head(&key)).unwrap().unwrap().metadata, long);
    }
}
