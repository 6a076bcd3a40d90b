//! Prepares a write: records with all resources that they hold until they are queued. A single put is a batch of
//! one.
//!
//! All records of a batch are in one log batch, and recovery takes all of them or none (R22).

use std::sync::Arc;

use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::ObjectKey;
use shoal_common::object::PutOptions;
use shoal_log::format::{RecordKind, RecordPlace, encode_placed, record_bytes};
use shoal_log::{Kept, Record, RingSpace, ValueWrite};
use shoal_memtable::{self as memtable, hash_of};
use shoal_space_manager::{Extents, Reservation};
use shoal_tablets::tablet::view::Tablet;
use shoal_value::{Placement, placement_of};
use smallvec::SmallVec;

use crate::bucket::BucketState;
use crate::store::Inner;
use crate::write::change::{Change, Outline};
use crate::write::permit::Permit;

/// Records of one write batch at most: all of them are inserted into their memtables under the memtables' locks.
pub(crate) const BATCH_RECORDS_MAX: usize = 65_536;

/// A record, with its tablet and the hash of its key.
pub(crate) struct PreparedRecord<'a> {
    pub tablet: &'a Arc<Tablet>,
    /// The hash of the key.
    pub hash: u64,
    pub record: Arc<Record>,
}

/// Records with everything that they hold until they are queued. Dropped before that, it frees everything.
pub(crate) struct PreparedBatch<'a> {
    pub inner: &'a Inner,
    pub records: SmallVec<[PreparedRecord<'a>; 1]>,
    /// Blocks reserved for the applies of all records.
    pub reservation: Option<Reservation>,
    /// Extents that the records name; kept once they are queued.
    pub extents: Vec<Arc<Extents>>,
    /// Writes of their values that the committer starts with the batch.
    pub writes: Vec<ValueWrite>,
    /// Values that stay in the pool, in the order of their records.
    pub kept: Vec<(Arc<Record>, Kept)>,
    /// The bucket that must not be closed when the batch is queued, if the writer named it.
    pub bucket: Option<Arc<BucketState>>,
    /// True if it aborts an upload: the deletion of a bucket aborts the uploads into it while it is closed.
    pub ends_upload: bool,
}

/// A batch with a permit for memtables and log.
pub(crate) struct AdmittedBatch<'a> {
    pub batch: PreparedBatch<'a>,
    pub permit: Permit<'a>,
}

/// The place of a record in its batch (R22).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// True if the next record belongs to the same batch.
    pub continues: bool,
    /// True if the batch is large: values that would ride in the log get extents at once.
    pub is_large: bool,
    /// True if its blocks in the tree may come from the reserve, as those of a delete (R3).
    pub uses_reserve: bool,
    /// True for the put of an object that an upload makes, and for the deletes of its parts (R44).
    pub adopts: bool,
}

impl Part {
    /// The last record of a batch. Most batches have no other.
    pub(crate) const LAST: Self =
        Self { continues: false, is_large: false, uses_reserve: false, adopts: false };
}

impl<'a> PreparedBatch<'a> {
    pub(crate) fn new(inner: &'a Inner) -> Self {
        let (records, reservation) = (SmallVec::new(), None);
        let (extents, writes, kept) = (Vec::new(), Vec::new(), Vec::new());
        Self { inner, records, reservation, extents, writes, kept, bucket: None, ends_upload: false }
    }

    /// The same for writes into a bucket that must not be closed when they are queued.
    pub(crate) fn in_bucket(self, bucket: Option<&Arc<BucketState>>) -> Self {
        Self { bucket: bucket.cloned(), ..self }
    }

    /// The same for a batch that aborts an upload.
    pub(crate) fn ending_upload(self) -> Self {
        Self { ends_upload: true, ..self }
    }

    /// Checks that no bucket of its puts is closed. Called under the locks of its memtables.
    ///
    /// # Errors
    /// [`Error::NoBucket`]; [`Error::Busy`] while nobody knows.
    #[inline]
    pub(crate) fn check_buckets(&self) -> Result<()> {
        if self.inner.buckets.is_closing() && !self.ends_upload {
            let puts = self.records.iter().filter(|it| it.record.kind() == RecordKind::Put);
            self.inner.buckets.check_open(puts.map(|it| it.record.key()))?;
        }
        match &self.bucket {
            Some(bucket) if bucket.is_closed() && !injected(Bug::ClosingIgnored) => {
                Err(Error::NoBucket(bucket.name().to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Adds a record with the blocks reserved for its apply and the extents that it names.
    pub(crate) fn add(
        &mut self,
        kind: RecordKind,
        key: &ObjectKey,
        body: &[&[u8]],
        reservation: Reservation,
        extents: Vec<Arc<Extents>>,
        part: Part,
    ) {
        let mut tablet = self.inner.tablets.of(key).id;
        if injected(Bug::RecordOfOtherTablet) {
            tablet.0 = (tablet.0 + 1) % self.inner.tablets.all().len() as u16;
        }
        assert!(reservation.blocks() > 0, "each record has blocks for its apply (R3)");
        let place = RecordPlace { continues: part.continues, adopts: part.adopts };
        let mut record = Record::new(encode_placed(kind, tablet, key.encoded(), body, place));
        record.own(extents.iter().flat_map(|extent| extent.runs().iter().copied()));
        record.set_reserved_blocks(reservation.blocks());
        self.reservation = Some(reservation.and(self.reservation.take()));
        if self.extents.is_empty() {
            self.extents = extents;
        } else {
            self.extents.extend(extents);
        }
        self.add_record(key, record);
    }

    /// Adds an encoded record, whose share the batch's reservation includes already.
    pub(crate) fn add_record(&mut self, key: &ObjectKey, record: Record) {
        let (tablet, hash, record) = (self.inner.tablets.of(key), hash_of(key.encoded()), Arc::new(record));
        assert!(
            record.tablet() == tablet.id || injected(Bug::RecordOfOtherTablet),
            "a record names the tablet of its key (R14)"
        );
        self.records.push(PreparedRecord { tablet, hash, record });
    }

    /// Bytes of memory of its records and their places in memtables at most, and blocks of the log.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its records do not fit in one log batch.
    pub(crate) fn needs(&self) -> Result<(usize, u32)> {
        let records = || self.records.iter().map(|prepared| &prepared.record);
        let bytes: usize = records().map(|record| record.bytes().len()).sum();
        let memory = records().map(|record| memory_bytes(record)).sum();
        let bytes_max = self.inner.log.committer.ring.write_batch_bytes_max();
        match self.records.len() {
            1 => Ok((memory, RingSpace::blocks_of(bytes))),
            _ if bytes <= bytes_max => Ok((memory, RingSpace::blocks_of_many(bytes))),
            count => Err(too_large(count, bytes, bytes_max)),
        }
    }
}

impl<'a> AdmittedBatch<'a> {
    /// The tablets of the batch's records.
    pub(crate) fn tablets(&self) -> impl Iterator<Item = &'a Arc<Tablet>> {
        self.batch.records.iter().map(|prepared| prepared.tablet)
    }

    /// The last record, without the `behind` records at the end.
    pub(crate) fn last(&self, behind: usize) -> Arc<Record> {
        let records = &self.batch.records;
        records[records.len().saturating_sub(behind + 1)].record.clone()
    }
}

/// The error for a batch with too many objects or bytes.
fn too_large(objects: usize, bytes: usize, bytes_max: usize) -> Error {
    Error::Invalid(format!(
        "{objects} objects in one write batch need {bytes} bytes of the log at once; {bytes_max} are allowed"
    ))
}

/// Bytes of memory of a record and its place in a memtable at most.
fn memory_bytes(record: &Record) -> usize {
    record.memory_bytes() + record.key().len() + memtable::ENTRY_OVERHEAD_BYTES
}

impl Inner {
    /// Waits for the permit of a batch.
    pub(crate) async fn admit_batch<'a>(&'a self, batch: PreparedBatch<'a>) -> Result<AdmittedBatch<'a>> {
        assert!(!batch.records.is_empty(), "a write batch has a record (R22)");
        assert!(
            batch.records.iter().rev().enumerate().all(|(behind, it)| it.record.continues() == (behind > 0)),
            "all records but the last one continue their batch (R22)"
        );
        let (memory, blocks) = batch.needs()?;
        let permit = self.admit(batch.records.len(), memory, blocks).await?;
        Ok(AdmittedBatch { batch, permit })
    }

    /// Encodes the changes, and writes values that do not ride in their records. The changes after the first `named`
    /// ones are the batch's result: if the first ones store nothing, the result is part of a delete, which works on a
    /// full device (R3).
    pub(crate) async fn prepare_changes<'a>(
        &'a self,
        keys: &[ObjectKey],
        changes: &mut [Change],
        named: usize,
        bucket: Option<&Arc<BucketState>>,
    ) -> Result<PreparedBatch<'a>> {
        let outlines = keys.iter().zip(&*changes).filter(|(_, change)| change.is_write());
        let is_large = self.check_size(outlines.map(|(key, change)| change.outline(key)))?;
        let last = changes.iter().rposition(Change::is_write);
        let stores =
            changes.iter().take(named).any(|change| change.is_write() && !matches!(change, Change::Delete));
        let mut batch = PreparedBatch::new(self).in_bucket(bucket);
        for (at, (key, change)) in keys.iter().zip(changes).enumerate() {
            let uses_reserve = at >= named && !stores;
            let part = Part { continues: Some(at) != last, is_large, uses_reserve, adopts: false };
            match change {
                Change::NoChange => {}
                Change::Put { value, metadata, expiry } => {
                    let (metadata, expiry) = (std::mem::take(metadata), *expiry);
                    let options = PutOptions { metadata, expiry, ..PutOptions::default() };
                    batch.put(key, &*value, &options, part).await?;
                }
                Change::PutWith { value, options } => batch.put(key, &*value, options, part).await?,
                Change::Placed(placed) => batch.put_placed(key, placed, part).await?,
                Change::Delete => batch.delete(key, part).await?,
            }
        }
        Ok(batch)
    }

    /// Returns true if a batch of these writes is a large one ([`Part::is_large`]).
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are too many, or if their records cannot fit in one log batch. Call this before values
    /// are written and space is claimed for each: that may fail first, with a misleading error that the device is full.
    pub(crate) fn check_size<'k>(&self, writes: impl Iterator<Item = Outline<'k>> + Clone) -> Result<bool> {
        let count = writes.clone().count();
        if count > BATCH_RECORDS_MAX {
            return Err(Error::Invalid(format!(
                "one write batch has {count} objects; {BATCH_RECORDS_MAX} are allowed"
            )));
        }
        let bytes_max = self.log.committer.ring.write_batch_bytes_max();
        let value_bytes: usize = writes.clone().map(|write| write.value_bytes).sum();
        let is_large = count > 1 && value_bytes > bytes_max / 2;
        let bytes = || writes.map(|write| self.record_bytes_min(&write, is_large)).sum();
        match if count > 1 { bytes() } else { 0 } {
            bytes if bytes > bytes_max => Err(too_large(count, bytes, bytes_max)),
            _ => Ok(is_large),
        }
    }

    /// Bytes of the record of a write at least. `is_large` is that of its batch's parts.
    fn record_bytes_min(&self, write: &Outline<'_>, is_large: bool) -> usize {
        let key_bytes = write.key.encoded().len();
        let value_bytes = match placement_of(key_bytes, 0, write.value_bytes, &self.tuning) {
            // The metadata may change the placement of the value.
            _ if write.has_metadata => 0,
            Placement::Leaf => write.value_bytes,
            Placement::Log if !is_large => write.value_bytes,
            Placement::Log | Placement::Extents => 0,
        };
        record_bytes(key_bytes, value_bytes)
    }
}
