//! Put: the way of a value into the store.

use std::sync::Arc;

use shoal_base::blocks_for;
use shoal_base::limits::{VALUE_BYTES_SINGLE_MAX, VALUE_UNIT_BYTES};
use shoal_base::task::may_block;
use shoal_buffer::Buffer;
use smallvec::SmallVec;

use crate::entry::{Entry, Home, Meta, encode_metadata, meta_fits_inline};
use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::log::commit::ValueWrite;
use crate::log::format::{RecordKind, encode_record};
use crate::object::{PutOptions, PutResult};
use crate::overlay::Record;
use crate::pending::Pending;
use crate::space::{Extents, Promise, TREE_BLOCKS_PER_RECORD};
use crate::store::{Inner, OperationCounters, Store};
use crate::update::Placed;
use crate::value::prepare::{self, Content, Way, lay_out, manifest_blocks, way_of};
use crate::value::room::Room;
use crate::write::{Part, Prepared, Write, memory_bytes};

/// Extents of a value that the committer writes itself, together with the batch that names them: a larger one would delay its
/// neighbours in the batch.
const WRITTEN_WITH_BATCH_BYTES_MAX: u64 = 64 << 10;

impl Store {
    /// Stores `value` under `key`. Durable when it returns. For values of at most 4 MiB ([`Self::put_stream`] for larger
    /// ones).
    ///
    /// # Errors
    /// [`Error::ConditionFailed`], [`Error::Invalid`], [`Error::Full`], [`Error::Busy`], [`Error::Poisoned`]: nothing
    /// happened. [`Error::Unknown`]: the device failed while it was written.
    pub async fn put(&self, key: &ObjectKey, value: Buffer, options: PutOptions) -> Result<PutResult> {
        let inner = &*self.0;
        inner.check_writable()?;
        inner.pass(key).await;
        inner.check_rules(key, options.rules).await?;
        let write = inner.put_write(key, &value, &options).await?;
        let written = inner.commit(key, options.rules, write).await?;
        inner.count(&inner.counters.puts);
        Ok(PutResult { version: written.version })
    }

    /// As [`Self::put`], but returns when the write has its place in the order of writes: it is durable when
    /// [`Pending::durable`] says so.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn begin_put(&self, key: &ObjectKey, value: Buffer, options: PutOptions) -> Result<Pending> {
        let inner = &*self.0;
        inner.check_writable()?;
        inner.pass(key).await;
        inner.check_rules(key, options.rules).await?;
        let write = inner.put_write(key, &value, &options).await?;
        let record = write.prepared.record.clone();
        inner.enqueue(key, options.rules, write).await?;
        inner.count(&inner.counters.puts);
        Ok(Pending::new(self.clone(), record))
    }

    /// As [`Self::begin_put`], for a value that was received into a [`Room`]: no byte of it is copied, and it goes to the device from
    /// where it is.
    ///
    /// # Errors
    /// As [`Self::put`].
    ///
    /// # Panics
    /// Where the room is not full.
    pub async fn begin_put_room(&self, key: &ObjectKey, room: Room, options: PutOptions) -> Result<Pending> {
        let inner = &*self.0;
        inner.check_writable()?;
        inner.pass(key).await;
        inner.check_rules(key, options.rules).await?;
        let (filled, value_bytes, copied) = room.into_filled();
        OperationCounters::add(&inner.counters.value_bytes_copied, copied as u64);
        let write = inner.put_write(key, Content::Filled { frames: &filled, value_bytes }, &options).await?;
        // Now only the write holds the frames: they can stay in the pool.
        drop(filled);
        let record = write.prepared.record.clone();
        inner.enqueue(key, options.rules, write).await?;
        inner.count(&inner.counters.puts);
        Ok(Pending::new(self.clone(), record))
    }

    /// Room for a value of so many bytes, into which it can be received; none where the value is so short that it rides in a
    /// record, or so long that it would not stay in the pool, or where no frames can be had now.
    pub fn room(&self, key: &ObjectKey, value_bytes: usize) -> Option<Room> {
        let inner = &*self.0;
        if way_of(key.encoded().len(), 0, value_bytes, &inner.tuning) != Way::Extents {
            return None;
        }
        let fresh = inner.pool.fresh(blocks_for(value_bytes as u64) as usize)?;
        Some(Room::new(fresh, value_bytes))
    }
}

impl Inner {
    /// The record of a put, admitted; a larger value is on the device when it returns.
    pub(crate) async fn put_write(
        &self,
        key: &ObjectKey,
        value: impl Into<Content<'_>>,
        options: &PutOptions,
    ) -> Result<Write<'_>> {
        let prepared = self.prepare_put(key, value, options, Part::LAST).await?;
        self.admit_write(prepared).await
    }

    /// The record of a put; a larger value is on the device when it returns.
    pub(crate) async fn prepare_put(
        &self,
        key: &ObjectKey,
        value: impl Into<Content<'_>>,
        options: &PutOptions,
        part: Part,
    ) -> Result<Prepared> {
        let value = value.into();
        if value.len() as u64 > VALUE_BYTES_SINGLE_MAX {
            return Err(Error::Invalid(format!(
                "a value of {} bytes is too large for one put: use a stream above {VALUE_BYTES_SINGLE_MAX} bytes",
                value.len()
            )));
        }
        let (entry, meta) = self.new_entry(key, options, value.len() as u64)?;
        // Results of writes (R17) are noted once a place, not once a write (`together`).
        if let Some(end) = entry.end.filter(|_| !key.is_system()) {
            self.expiring.note(end, key.encoded());
        }
        OperationCounters::add(&self.counters.value_bytes_written, value.len() as u64);
        let way = match way_of(key.encoded().len(), meta.len(), value.len(), &self.tuning) {
            Way::Log if part.is_large => Way::Extents,
            way => way,
        };
        match way {
            Way::Leaf => self.in_record(key, &entry, &meta, value, 0, part).await,
            Way::Log => {
                let stored = entry.stored_bytes();
                let units = stored.div_ceil(VALUE_UNIT_BYTES as u64) as usize;
                let home_blocks = blocks_for(stored) + manifest_blocks(1, units);
                self.in_record(key, &entry, &meta, value, home_blocks, part).await
            }
            Way::Extents => self.in_extents(key, entry, &meta, value, part).await,
        }
    }

    /// The entry of a new value, its home still open, and the metadata's bytes.
    pub(crate) fn new_entry(
        &self,
        key: &ObjectKey,
        options: &PutOptions,
        value_bytes: u64,
    ) -> Result<(Entry, Vec<u8>)> {
        let encoded = encode_metadata(&options.metadata)?;
        let meta = if meta_fits_inline(key.encoded().len(), encoded.len()) {
            Meta::Inline(SmallVec::from_slice(&encoded))
        } else {
            Meta::InFront(encoded.len() as u32)
        };
        let modified_ns = options.modified_ns.unwrap_or_else(|| self.environment.clock.wall_ns());
        Ok((
            Entry {
                modified_ns,
                end: self.expiry.end_of(options.expiry, &self.committer),
                value_bytes,
                meta,
                home: Home::Inline,
            },
            encoded,
        ))
    }

    /// The value rides in the record; `home_blocks` blocks are promised to the apply that brings it home.
    async fn in_record(
        &self,
        key: &ObjectKey,
        entry: &Entry,
        meta: &[u8],
        value: Content<'_>,
        home_blocks: u64,
        part: Part,
    ) -> Result<Prepared> {
        let mut head = Vec::with_capacity(64 + meta.len());
        entry.encode(&mut head);
        if entry.meta_in_front() > 0 {
            head.extend_from_slice(meta);
        }
        let mut body: SmallVec<[&[u8]; 4]> = SmallVec::from_slice(&[&head[..]]);
        value.each(|chunk| body.push(chunk));
        let promise = if part.uses_reserve && home_blocks == 0 {
            self.claim(|| self.space.claim_delete()).await?
        } else {
            let blocks = TREE_BLOCKS_PER_RECORD + home_blocks;
            self.claim(|| self.space.claim_apply(blocks)).await?
        };
        Ok(self.prepared(key, &body, promise, Vec::new(), Vec::new(), part))
    }

    /// The value gets extents of its own. It is written here and now, except where this thread leads the commit anyway: then
    /// value and log are written together.
    async fn in_extents(
        &self,
        key: &ObjectKey,
        mut entry: Entry,
        meta: &[u8],
        value: Content<'_>,
        part: Part,
    ) -> Result<Prepared> {
        let front = if entry.meta_in_front() > 0 { meta } else { &[] };
        let stored = entry.stored_bytes();
        let mut last_error = None;
        // A failed write of a value is tried once elsewhere: nothing names the first place, which stays out of use.
        for _ in 0..2 {
            let (extents, promise) = self.claim_extents(key, stored).await?;
            let (data, manifest) = (&extents[0], extents.get(1));
            let laid = lay_out((&self.device, &self.pool), front, value, data, manifest);
            OperationCounters::add(&self.counters.value_bytes_copied, laid.copied as u64);
            entry.home = laid.home;
            let with_batch =
                may_block() && stored <= WRITTEN_WITH_BATCH_BYTES_MAX && self.committer.is_idle();
            let writes = if with_batch {
                laid.writes
            } else if let Err(error) = self.write_values(laid.writes).await {
                extents.iter().for_each(|extent| extent.keep());
                last_error = Some(error);
                continue;
            } else {
                Vec::new()
            };
            let mut head = Vec::with_capacity(96);
            entry.encode(&mut head);
            let prepared = self.prepared(key, &[&head], promise, extents, writes, part);
            return Ok(Prepared { kept: laid.kept, ..prepared });
        }
        Err(last_error.unwrap_or(Error::Busy("the device")))
    }

    /// Extents for so many stored bytes, and for a manifest where they need one.
    pub(crate) async fn claim_extents(
        &self,
        key: &ObjectKey,
        stored: u64,
    ) -> Result<(Vec<Arc<Extents>>, Promise)> {
        let blocks = blocks_for(stored);
        let owner = self.own.owner_of(key);
        let (data, promise) =
            self.claim(|| self.space.claim_value(owner, blocks, TREE_BLOCKS_PER_RECORD)).await?;
        let units = stored.div_ceil(VALUE_UNIT_BYTES as u64) as usize;
        let manifest_blocks = manifest_blocks(data.runs().len(), units);
        OperationCounters::add(&self.counters.extent_blocks_written, blocks + manifest_blocks);
        let mut extents = vec![data];
        if manifest_blocks > 0 {
            extents.push(self.claim_manifest(manifest_blocks).await?);
        }
        Ok((extents, promise))
    }

    /// Extents for a manifest.
    pub(crate) async fn claim_manifest(&self, blocks: u64) -> Result<Arc<Extents>> {
        let (extents, promise) = self.claim(|| self.space.claim_value(0, blocks, 0)).await?;
        drop(promise);
        if extents.runs().len() > crate::entry::INLINE_RUNS_MAX {
            return Err(Error::Full { needed: blocks, available: self.space.available() });
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
                result = Err(Error::Io(error));
            }
        }
        result
    }

    /// A record with this body.
    pub(crate) fn prepared(
        &self,
        key: &ObjectKey,
        body: &[&[u8]],
        promise: Promise,
        extents: Vec<Arc<Extents>>,
        writes: Vec<ValueWrite>,
        part: Part,
    ) -> Prepared {
        let tablet = self.tablet_of(key).id;
        let encoded = encode_record(RecordKind::Put, tablet, key.encoded(), body, part.continues);
        let mut record = Record::new(encoded);
        record.own(extents.iter().flat_map(|extent| extent.runs().iter().copied()));
        record.promise(promise.blocks());
        Prepared { record: Arc::new(record), promise, extents, writes, kept: None }
    }

    /// The record of a put whose value is on the device.
    pub(crate) async fn prepare_placed(
        &self,
        key: &ObjectKey,
        placed: &Placed,
        part: Part,
    ) -> Result<Prepared> {
        let (_, promise) = self.claim(|| self.space.claim_value(0, 0, TREE_BLOCKS_PER_RECORD)).await?;
        Ok(self.prepared(key, &[&placed.entry], promise, placed.extents.clone(), Vec::new(), part))
    }

    /// Waits for room for a record on its own.
    pub(crate) async fn admit_write(&self, prepared: Prepared) -> Result<Write<'_>> {
        let record = &prepared.record;
        let room = self.admit(memory_bytes(record), record.bytes().len()).await?;
        Ok(Write { prepared, room })
    }
}

pub(crate) use prepare::Filler;
