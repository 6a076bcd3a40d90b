//! Puts and deletes of one key: the path of a value into the store.

use std::sync::Arc;

use shoal_base::limits::{VALUE_BYTES_SINGLE_MAX, VALUE_UNIT_BYTES};
use shoal_base::task::Boxed;
use shoal_base::{Lsn, blocks_for};
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::ObjectKey;
use shoal_common::object::{DeleteResult, Metadata, PutOptions, PutResult, RejectRules};
use shoal_log::format::RecordKind;
use shoal_log::{Kept, Record, ValueWrite};
use shoal_space_manager::{Extents, Reservation, TREE_BLOCKS_PER_RECORD};
use shoal_tablets::counters::OperationCounters;
use shoal_value::{
    Entry, Home, Placement, ValueContent, encode_metadata, lay_out, manifest_blocks, place_of_metadata,
    placement_of,
};
use smallvec::SmallVec;

use crate::store::{Inner, Store};
use crate::write::batch::{Part, PreparedBatch};
use crate::write::change::Placed;
use crate::write::receive_buffer::{ReceiveBuffer, ReceivedValue};
use crate::write::ticket::Ticket;
use crate::write::write_batch::{What, Write, WriteBatch};

/// Extents of a value that the committer writes itself, together with the batch that names them: a larger one would
/// delay the other writes of the batch.
const WRITTEN_WITH_BATCH_BYTES_MAX: u64 = 64 << 10;

/// A value in extents.
pub(crate) struct WrittenExtents {
    pub extents: Vec<Arc<Extents>>,
    /// Blocks for the apply of its record.
    reservation: Reservation,
    /// The frames that may stay in the pool.
    kept: Option<Kept>,
}

impl Store {
    /// Stores `value`, of at most 4 MiB, under `key` ([`Self::put_stream`] takes larger ones). Durable on return.
    ///
    /// [`Error::ConditionFailed`], [`Error::Invalid`], [`Error::Full`], [`Error::Busy`], [`Error::Poisoned`]: nothing
    /// happened. [`Error::Unknown`]: the device failed during the write.
    pub async fn put(&self, key: &ObjectKey, value: Buffer, options: PutOptions) -> Result<PutResult> {
        self.write_durably(Write::put(key, &value, &options)).await.map(|(done, _)| done)
    }

    /// Deletes an object. Deleting an absent object succeeds, unless the rules reject it. Durable on return; works on a
    /// full device.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(&self, key: &ObjectKey, rules: RejectRules) -> Result<DeleteResult> {
        let (PutResult { version }, deleted) = self.write_durably(Write::delete(key, rules)).await?;
        Ok(DeleteResult { deleted, version })
    }

    /// Writes a [`Write`] or a [`WriteBatch`]; returns when it has its place in the order of writes: it is durable once
    /// [`Ticket::durable`] has returned. The versions of a batch's writes are consecutive ([`Ticket::versions`]).
    ///
    /// # Errors
    /// As [`Self::put`]: nothing of the batch happened. [`Error::Invalid`], too, if the batch has no write, or if its
    /// records do not fit in one batch of the log; [`Error::Unknown`] if the session of its request is already
    /// [`RESULTS_KEPT`](crate::RESULTS_KEPT) writes further.
    pub async fn write<'a>(&self, batch: impl Into<WriteBatch<'a>>) -> Result<Ticket> {
        let mut batch = batch.into();
        let Some(write) = batch.take_single() else { return self.write_batch(batch).await };
        let (record, before) = self.0.queue_write(write).await?;
        self.0.log.committer.request_commit(1);
        Ok(Ticket::new(self.clone(), record).with_before(before))
    }

    /// Writes, and waits until it is durable. Returns the version before, too, if the rules read it.
    pub(crate) async fn write_durably<'a>(
        &self,
        batch: impl Into<WriteBatch<'a>>,
    ) -> Result<(PutResult, Option<Lsn>)> {
        let mut batch = batch.into();
        let Some(write) = batch.take_single() else {
            let pending = self.write_batch(batch).await?;
            let before = pending.before();
            return Ok((PutResult { version: pending.durable().await? }, before));
        };
        let (record, before) = self.0.queue_write(write).await?;
        Ok((PutResult { version: self.0.log.committer.drive_until(&record).await? }, before))
    }

    /// Memory of the pool into which a value of `value_bytes` bytes can be received. `None` if the value rides in its
    /// record, if it is too long to stay in the pool, or if no frames are free.
    pub fn receive_buffer(&self, key: &ObjectKey, value_bytes: usize) -> Option<ReceiveBuffer> {
        let inner = &*self.0;
        if placement_of(key.encoded().len(), 0, value_bytes, &inner.tuning) != Placement::Extents {
            return None;
        }
        let fresh = inner.pool.fresh(blocks_for(value_bytes as u64) as usize)?;
        Some(ReceiveBuffer::new(fresh, value_bytes))
    }
}

impl Inner {
    /// Queues a write of one key if its rules accept. Returns its record, and the version before if the rules read it.
    fn queue_write<'a>(&'a self, write: Write<'a>) -> Boxed<'a, Result<(Arc<Record>, Option<Lsn>)>> {
        Box::pin(async move {
            let Write { key, what, rules, bucket } = write;
            self.be_writable().await?;
            self.tablets.pass(key).await;
            let mut tree = None;
            if !rules.is_empty() {
                self.queue_by_rules(key, rules, &mut tree, None).await?;
            }
            let is_delete = matches!(what, What::Delete);
            let mut batch = PreparedBatch::new(self).in_bucket(bucket);
            batch.write(key, what, Part::LAST).await?;
            let admitted = self.admit_batch(batch).await?;
            let record = admitted.last(0);
            let before = self.queue_by_rules(key, rules, &mut tree, Some(admitted)).await?;
            self.count(if is_delete { &self.counters.deletes } else { &self.counters.puts });
            Ok((record, before))
        })
    }

    /// The entry of a new value, its home still open, and the bytes of the metadata.
    pub(crate) fn new_entry(
        &self,
        key: &ObjectKey,
        options: &PutOptions,
        value_bytes: u64,
    ) -> Result<(Entry, Vec<u8>)> {
        let encoded = encode_metadata(&options.metadata)?;
        let meta = place_of_metadata(key.encoded().len(), &options.metadata, &encoded);
        let modified_ns = options.modified_ns.unwrap_or_else(|| self.environment.clock.wall_ns());
        Ok((
            Entry {
                modified_ns,
                end: self.log.end_of(options.expiry),
                value_bytes,
                meta,
                home: Home::Inline,
            },
            encoded,
        ))
    }

    /// Makes sure that the superblocks name the feature of a record with this metadata, which is queued next.
    pub(crate) fn name_features_of(&self, metadata: &Metadata) -> Result<()> {
        if metadata.attributes.is_empty() {
            return Ok(());
        }
        self.checkpointer.name_attributes()?;
        assert!(
            self.checkpointer.has_attributes() || injected(Bug::AttributesNotNamed),
            "a record needs a feature that no superblock names (R42)"
        );
        Ok(())
    }

    /// Extents for this many stored bytes, and for a manifest if they need one.
    pub(crate) async fn claim_extents(
        &self,
        key: &ObjectKey,
        stored: u64,
    ) -> Result<(Vec<Arc<Extents>>, Reservation)> {
        let blocks = blocks_for(stored);
        let owner = self.own.owner_of(key);
        let (data, reservation) =
            self.claim(|| self.space.claim_value(owner, blocks, TREE_BLOCKS_PER_RECORD)).await?;
        let units = stored.div_ceil(VALUE_UNIT_BYTES as u64) as usize;
        let manifest_blocks = manifest_blocks(data.runs().len(), units);
        OperationCounters::add(&self.counters.extent_blocks_written, blocks + manifest_blocks);
        let mut extents = vec![data];
        if manifest_blocks > 0 {
            extents.push(self.claim_manifest(manifest_blocks).await?);
        }
        Ok((extents, reservation))
    }

    /// Writes the stored bytes of a value to extents, and sets the home of its entry. With `with_batch`, the write of a short value may be
    /// left to the commit of its record.
    pub(crate) async fn write_extents(
        &self,
        key: &ObjectKey,
        entry: &mut Entry,
        front: &[u8],
        value: ValueContent<'_>,
        mut with_batch: Option<&mut Vec<ValueWrite>>,
    ) -> Result<WrittenExtents> {
        let stored = entry.stored_bytes();
        let (mut last_error, mut without_room) = (None, Vec::new());
        // A failed write of a value is tried once elsewhere. Nothing names the first place, which stays out of use, or stays out of
        // use until the end of the second try if it only lacked room.
        for _ in 0..2 {
            let (extents, reservation) = self.claim_extents(key, stored).await?;
            let (data, manifest) = (&extents[0], extents.get(1));
            let laid = lay_out((&self.device, &self.pool), front, value, data, manifest);
            OperationCounters::add(&self.counters.value_bytes_copied, laid.copied as u64);
            entry.home = laid.home;
            let is_short = stored <= WRITTEN_WITH_BATCH_BYTES_MAX;
            let with_batch =
                with_batch.as_deref_mut().filter(|_| is_short && self.log.committer.commits_next());
            if let Some(writes) = with_batch {
                writes.extend(laid.writes);
            } else if let Err(error) = self.write_values(laid.writes).await {
                match error {
                    Error::NoRoom(_) => without_room.push(extents),
                    _ => extents.iter().for_each(|extent| extent.keep()),
                }
                last_error = Some(error);
                continue;
            }
            return Ok(WrittenExtents { extents, reservation, kept: laid.kept });
        }
        Err(last_error.unwrap_or(Error::Busy("the device")))
    }

    /// Extents for a manifest.
    pub(crate) async fn claim_manifest(&self, blocks: u64) -> Result<Arc<Extents>> {
        let (extents, reservation) = self.claim(|| self.space.claim_value(0, blocks, 0)).await?;
        drop(reservation);
        if extents.runs().len() > shoal_value::INLINE_RUNS_MAX {
            return Err(Error::full(blocks, self.space.available()));
        }
        Ok(extents)
    }

    /// Writes values and waits for all of them.
    pub(crate) async fn write_values(&self, writes: Vec<ValueWrite>) -> Result<()> {
        let mut batch = self.device.batch();
        let writes: Vec<ValueWrite> = writes.into_iter().map(|write| batch.add(write)).collect();
        batch.start();
        let mut result = Ok(());
        for write in writes {
            if let Err(error) = write.await.ok() {
                result = Err(self.log.committer.room.value_failed(error));
            }
        }
        if result.is_ok() {
            self.log.committer.room.value_written();
        }
        result
    }
}

impl PreparedBatch<'_> {
    /// Adds the record of a write. A larger value is on the device on return.
    pub(crate) async fn write(&mut self, key: &ObjectKey, what: What<'_>, part: Part) -> Result<()> {
        match what {
            What::Put(value, options) => self.put(key, value, options, part).await,
            What::Received(buffer, options) => {
                // Only the batch holds the frames after this: they can stay in the pool.
                let ReceivedValue { frames, value_bytes, copied, checksums } = buffer.into_value();
                OperationCounters::add(&self.inner.counters.value_bytes_copied, copied as u64);
                let content = ValueContent::Filled { frames: &frames, value_bytes, checksums: &checksums };
                self.put(key, content, options, part).await
            }
            What::Placed(placed) => self.put_placed(key, placed, part).await,
            What::Delete => self.delete(key, part).await,
        }
    }

    /// Adds the record of a put. A larger value is on the device on return.
    pub(crate) async fn put(
        &mut self,
        key: &ObjectKey,
        value: impl Into<ValueContent<'_>>,
        options: &PutOptions,
        part: Part,
    ) -> Result<()> {
        let (inner, value) = (self.inner, value.into());
        if value.byte_count() as u64 > VALUE_BYTES_SINGLE_MAX {
            return Err(Error::Invalid(format!(
                "a value of {} bytes is too large for one put: use a stream above {VALUE_BYTES_SINGLE_MAX} bytes",
                value.byte_count()
            )));
        }
        let (entry, meta) = inner.new_entry(key, options, value.byte_count() as u64)?;
        inner.name_features_of(&options.metadata)?;
        // Results of writes (R17) are noted once for each result slot, not for each write (`txn/mod.rs`).
        if let Some(end) = entry.end.filter(|_| !key.is_system()) {
            inner.maintenance.expiring.note(end, key.encoded());
        }
        OperationCounters::add(&inner.counters.value_bytes_written, value.byte_count() as u64);
        let home_blocks =
            match placement_of(key.encoded().len(), meta.len(), value.byte_count(), &inner.tuning) {
                Placement::Leaf => 0,
                Placement::Log if !part.is_large => {
                    let stored = entry.stored_bytes();
                    let units = stored.div_ceil(VALUE_UNIT_BYTES as u64) as usize;
                    blocks_for(stored) + manifest_blocks(1, units)
                }
                Placement::Log | Placement::Extents => {
                    return self.put_in_extents(key, entry, &meta, value, part).await;
                }
            };
        // The value rides in the record; an apply brings it home.
        let mut head = Vec::with_capacity(64 + meta.len());
        entry.encode(&mut head);
        if entry.meta_in_front() > 0 {
            head.extend_from_slice(&meta);
        }
        let mut body: SmallVec<[&[u8]; 4]> = SmallVec::from_slice(&[&head[..]]);
        value.each(|chunk| body.push(chunk));
        let reservation = if part.uses_reserve && home_blocks == 0 {
            inner.claim(|| inner.space.claim_delete()).await?
        } else {
            let blocks = TREE_BLOCKS_PER_RECORD + home_blocks;
            inner.claim(|| inner.space.claim_apply(blocks)).await?
        };
        self.add(RecordKind::Put, key, &body, reservation, Vec::new(), part);
        Ok(())
    }

    /// Puts the value in its own extents. It is written here and now, unless this thread drives the commit anyway: then value
    /// and log are written together.
    fn put_in_extents<'s>(
        &'s mut self,
        key: &'s ObjectKey,
        mut entry: Entry,
        meta: &'s [u8],
        value: ValueContent<'s>,
        part: Part,
    ) -> Boxed<'s, Result<()>> {
        Box::pin(async move {
            let inner = self.inner;
            let front = if entry.meta_in_front() > 0 { meta } else { &[] };
            let stored = entry.stored_bytes();
            assert_eq!(
                stored,
                (front.len() + value.byte_count()) as u64,
                "the entry has the length of its value"
            );
            let written = inner.write_extents(key, &mut entry, front, value, Some(&mut self.writes)).await?;
            let mut head = Vec::with_capacity(96);
            entry.encode(&mut head);
            self.add(RecordKind::Put, key, &[&head], written.reservation, written.extents, part);
            if let (Some(kept), Some(added)) = (written.kept, self.records.last()) {
                self.kept.push((added.record.clone(), kept));
            }
            Ok(())
        })
    }

    /// Adds the record of a put whose value is on the device.
    pub(crate) async fn put_placed(&mut self, key: &ObjectKey, placed: &Placed, part: Part) -> Result<()> {
        let inner = self.inner;
        let (_, reservation) = inner.claim(|| inner.space.claim_value(0, 0, TREE_BLOCKS_PER_RECORD)).await?;
        self.add(RecordKind::Put, key, &[&placed.entry], reservation, placed.extents.clone(), part);
        Ok(())
    }

    /// Adds the record of a delete: the key does not exist from then on.
    pub(crate) async fn delete(&mut self, key: &ObjectKey, part: Part) -> Result<()> {
        let inner = self.inner;
        let reservation = inner.claim_from_free(|| inner.space.claim_delete()).await?;
        self.add(RecordKind::Delete, key, &[], reservation, Vec::new(), part);
        Ok(())
    }
}
