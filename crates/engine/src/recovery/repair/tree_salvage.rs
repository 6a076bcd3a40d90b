//! Salvage of objects that a tree lost from the log: for `shoal check --repair`.
//!
//! The log is a ring, and applied records stay in it until they are overwritten. Its batches form a chain that ends at
//! the head, so the batches that can be followed back from there are the last ones written, without gaps: the newest
//! record of a key among them is the newest one at all. A cut log has a gap. So a tablet whose tree holds more than the
//! rest of the log gets nothing from it, and an opening that cuts the log omits an epoch (`open.rs`), across which the
//! chain is not followed. If an entry can still be read, only the record of its version may restore it.
//!
//! Records that carry their value restore the object; of a larger value the log has only the place, which the tree had
//! as well. No other source is trusted: older copies of pages may be stale.

use std::collections::{BTreeMap, HashMap};

use shoal_base::codec::Truncated;
use shoal_base::{BLOCK_BYTES, Lsn, TabletId};
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::key::{ObjectKey, name, of_encoded};
use shoal_common::object::{Deadline, PutOptions, RejectRules};
use shoal_device::{Device, IoBuf};
use shoal_log::format::{BatchHeader, EncodedRecord, RecordKind, check_batch, peek_header};
use shoal_log::{LogPlace, Ring, decode_records};
use shoal_tablets::tablet::tree_io::{PoolPages, tree_of};
use shoal_value::{Entry, Home, Meta, decode_metadata, split_leaf_entry, verify_direct};

use crate::bucket::is_record;
use crate::recovery::read::Recovery;
use crate::recovery::repair::gaps::KeyRanges;
use crate::recovery::repair::hidden::HiddenObjects;
use crate::recovery::report::CheckReport;
use crate::store::{Inner, Store};
use crate::write::write_batch::{Write, WriteBatch};

/// Bytes of keys and records that a repair holds at most, unless the cache is larger. Older records are not restored,
/// and the report names it.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Blocks of the ring that are read by one request: 1 MiB.
const PIECE_BLOCKS: u64 = 256;

/// Bytes that a repair with a cache of `cache_bytes` bytes may hold.
pub(crate) fn held_bytes_max(cache_bytes: usize) -> usize {
    cache_bytes.max(HELD_BYTES_MAX)
}

/// A record that restores an object.
struct Restorable {
    lsn: Lsn,
    record: EncodedRecord,
}

/// The lost part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// Its entry: nobody knows whether the object exists.
    Entry,
    Value,
}

/// The log's records of keys that the trees lost, by encoded key.
#[derive(Default)]
pub(crate) struct Known {
    /// `None`: the newest record of the key restores nothing, and hides the older ones.
    keys: BTreeMap<Vec<u8>, Option<Restorable>>,
    bytes: usize,
    /// True if older records were left out because no more may be held.
    is_full: bool,
}

/// The keys that the trees may have lost, by tablet: a superset.
#[derive(Default)]
pub(crate) struct MayBeLost(Vec<KeyRanges>);

impl MayBeLost {
    /// `tablets`: the ranges of each tablet, in order. A tablet that is not there may have lost every key.
    pub(crate) fn new(tablets: Vec<KeyRanges>) -> Self {
        Self(tablets)
    }

    /// Returns true if nothing can be lost in the tablets that are there.
    fn is_none(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(KeyRanges::is_empty)
    }

    fn contains(&self, tablet: TabletId, key: &[u8]) -> bool {
        self.0.get(usize::from(tablet.0)).is_none_or(|ranges| ranges.contains(key))
    }
}

/// A whole batch in the ring.
pub(crate) struct Found {
    block: u64,
    pub header: BatchHeader,
}

/// All whole batches by their checksums.
pub(crate) type Batches = HashMap<u32, Vec<Found>>;

/// All whole batches of the log's ring.
pub(crate) async fn read_ring(recovery: &Recovery) -> Batches {
    let Recovery { device, superblock, .. } = recovery;
    let ring = superblock.layout.ring();
    find_batches(device, superblock.log_seed, ring).await
}

/// Follows the ring's batches back from the log's head as far as they exist, holding at most `bytes_max` bytes. Stops at
/// a batch that cannot be read. Looks up only the keys that may be lost.
pub(crate) async fn read_known(
    recovery: &Recovery,
    found: &Batches,
    bytes_max: usize,
    may_be_lost: &MayBeLost,
) -> Known {
    let Recovery { device, superblock, log, .. } = recovery;
    let ring = superblock.layout.ring();
    if may_be_lost.is_none() {
        return Known::default();
    }
    let (mut known, mut place) = (Known::default(), log.head);
    let mut epoch = log.batches.last().map_or(superblock.epoch, |batch| batch.header.epoch);
    let oldest = place.position.saturating_sub(u64::from(ring.blocks));
    while let Some(batch) = batch_before(found, place, epoch, ring)
        && batch.header.position >= oldest
        && let Some(records) = read_batch(device, superblock.log_seed, batch).await
    {
        assert!(batch.header.next_lsn() <= place.first_lsn, "newer records come first");
        if known.bytes > bytes_max {
            known.is_full = true;
            break;
        }
        for (index, record) in records.into_iter().enumerate().rev() {
            if may_be_lost.contains(record.tablet, record.key()) {
                known.consider(recovery, Lsn(batch.header.first_lsn.0 + index as u64), record).await;
            }
        }
        place = batch.header.place();
        epoch = batch.header.epoch;
    }
    known
}

/// The batch before `place`, after which the opening of number `epoch` continued: its checksum is the chain there, it
/// ends there or where the ring turned, and no opening between the two is missing.
pub(crate) fn batch_before(found: &Batches, place: LogPlace, epoch: u64, ring: Ring) -> Option<&Found> {
    found.get(&place.chain)?.iter().find(|batch| {
        let header = &batch.header;
        let end = header.end();
        let meets = end == place.position || ring.turn(end) == place.position;
        let in_order = header.next_lsn() <= place.first_lsn;
        meets && in_order && (header.epoch..=header.epoch + 1).contains(&epoch)
    })
}

async fn find_batches(device: &Device, seed: u64, ring: Ring) -> Batches {
    let mut found = Batches::new();
    let end = ring.first + u64::from(ring.blocks);
    for start in (ring.first..end).step_by(PIECE_BLOCKS as usize) {
        let blocks = PIECE_BLOCKS.min(end - start);
        let piece = device.read(start, IoBuf::unfilled(blocks as usize)).await.ok().ok();
        for (at, block) in (0..).zip(start..start + blocks) {
            let Some(piece) = &piece else {
                // One block that cannot be read hides no other.
                let Ok(first) = device.read(block, IoBuf::unfilled(1)).await.ok() else { continue };
                note_batch(device, seed, ring, block, &first, &mut found).await;
                continue;
            };
            note_batch(device, seed, ring, block, &piece[at * BLOCK_BYTES..], &mut found).await;
        }
    }
    found
}

/// Adds the batch that starts at `block` to `found`, if one does and it is whole. `bytes`: the contents from there on, at least a block.
async fn note_batch(device: &Device, seed: u64, ring: Ring, block: u64, bytes: &[u8], found: &mut Batches) {
    let Some(header) = bytes.get(..BLOCK_BYTES).and_then(peek_header) else { return };
    let fits = header.blocks <= ring.rest(header.position) && ring.block(header.position) == block;
    if !fits {
        return;
    }
    let checked = match bytes.get(..header.blocks as usize * BLOCK_BYTES) {
        Some(whole) => check_batch(whole, seed),
        None => match device.read(block, IoBuf::unfilled(header.blocks as usize)).await.ok() {
            Ok(whole) => check_batch(&whole, seed),
            Err(_) => None,
        },
    };
    if let Some((header, crc)) = checked {
        found.entry(crc).or_default().push(Found { block, header });
    }
}

pub(crate) async fn read_batch(device: &Device, seed: u64, batch: &Found) -> Option<Vec<EncodedRecord>> {
    let bytes = device.read(batch.block, IoBuf::unfilled(batch.header.blocks as usize)).await.ok().ok()?;
    let (header, _) = check_batch(&bytes, seed)?;
    decode_records(&header, &bytes)
}

impl Known {
    /// Returns true if there is an object to restore.
    pub(crate) fn has_any(&self) -> bool {
        self.keys.values().any(Option::is_some)
    }

    /// Holds the record if it is the newest of its key and the object cannot be read without it. Newer records come
    /// first.
    async fn consider(&mut self, recovery: &Recovery, lsn: Lsn, record: EncodedRecord) {
        let Recovery { superblock, log, .. } = recovery;
        let Some(tablet) = superblock.tablets.get(usize::from(record.tablet.0)) else { return };
        let key = record.key().to_vec();
        debug_assert!(lsn < log.head.first_lsn, "a record at the head or after it");
        // A tree that is ahead of the log may have held a newer entry.
        if tablet.applied >= log.head.first_lsn || self.keys.contains_key(&key) {
            return;
        }
        let held = if lsn > tablet.applied {
            // The opening replays the record.
            None
        } else if !is_lost(recovery, &key, lsn, &record).await {
            return;
        } else {
            let restores = record.kind == RecordKind::Delete || carries_value(&record);
            restores.then_some(Restorable { lsn, record })
        };
        self.bytes += key.len() + held.as_ref().map_or(0, |held| held.record.bytes.len());
        self.keys.insert(key, held);
    }
}

/// Whether the tree cannot give what the record with this number wrote, or cannot say what the key holds.
async fn is_lost(recovery: &Recovery, key: &[u8], lsn: Lsn, record: &EncodedRecord) -> bool {
    let Recovery { device, pool, superblock, .. } = recovery;
    let tree = tree_of(superblock.identity, record.tablet);
    let trees = recovery.trees(usize::from(record.tablet.0));
    let found = match trees.find(tree, &PoolPages::new(pool).of_pass(), None, key).await {
        Ok(Some(found)) => found,
        Ok(None) => return false,
        Err(error) => return cannot_be_read(&error),
    };
    match split_leaf_entry(&found) {
        Ok((version, body)) if version == lsn && record.kind == RecordKind::Put => {
            match Entry::decode(body) {
                Ok((entry, _)) => {
                    let read = verify_direct(device, pool, superblock.device_blocks, &entry, version).await;
                    read.is_err_and(|error| cannot_be_read(&error))
                }
                Err(_) => true,
            }
        }
        _ => false,
    }
}

fn cannot_be_read(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Io(_))
}

fn carries_value(record: &EncodedRecord) -> bool {
    Entry::decode(record.body_bytes()).is_ok_and(|(entry, _)| entry.home == Home::Inline)
}

/// The value of an entry whose stored bytes are `stored`, and its options.
pub(crate) fn contents(
    entry: &Entry,
    stored: &[u8],
) -> std::result::Result<(Vec<u8>, PutOptions), Truncated> {
    let (front, value) = stored.split_at_checked(entry.meta_in_front() as usize).ok_or(Truncated)?;
    let metadata = match &entry.meta {
        Meta::Inline(bytes) => decode_metadata(bytes)?,
        Meta::InFront { .. } => decode_metadata(front)?,
    };
    let options = PutOptions {
        metadata,
        modified_ns: Some(entry.modified_ns),
        expiry: entry.end.map(Deadline::passed_on).into(),
        ..PutOptions::default()
    };
    Ok((value.to_vec(), options))
}

impl Store {
    /// Writes objects again that cannot be read and that the log still had, with new versions. Reports the restored
    /// objects and the others.
    ///
    /// # Errors
    /// [`Error::Poisoned`], once the device failed.
    pub(crate) async fn salvage(
        &self,
        known: Known,
        hidden: &mut HiddenObjects,
        report: &mut CheckReport,
    ) -> Result<()> {
        if known.is_full {
            report.notes.push(format!(
                "repair: {} MiB of records were held, all that memory allows: older ones in the log were left out, so some \
                 objects stay lost that it could restore (repair a copy again with more --cache)",
                known.bytes >> 20
            ));
        }
        let held = known.keys.into_iter().filter_map(|(key, held)| Some((key, held?)));
        // Deletes need no space.
        let (deletes, puts): (Vec<_>, Vec<_>) =
            held.partition(|(_, held)| held.record.kind == RecordKind::Delete);
        let mut group = Group::default();
        for (encoded, held) in deletes.into_iter().chain(puts) {
            // Results of writes are valid for half an hour only.
            let is_wanted = |key: &ObjectKey| !key.is_system() || is_record(key);
            let Some(key) = of_encoded(&encoded).filter(is_wanted) else { continue };
            match self.restored(key, &held).await {
                Ok(Some(restored)) => group.add(restored),
                Ok(None) => {}
                Err(error) => {
                    report.was_not_restored(&name(&encoded), &error);
                    self.0.log.poison.check()?;
                }
            }
            if group.is_full() {
                self.restore(std::mem::take(&mut group), hidden, report).await?;
            }
        }
        self.restore(group, hidden, report).await
    }

    /// The change that repeats the record's, if the object cannot be read and was not written since.
    async fn restored(&self, key: ObjectKey, held: &Restorable) -> Result<Option<Restored>> {
        let Some(lost) = self.0.lost_since(&key, held.lsn).await? else { return Ok(None) };
        let tablet = held.record.tablet;
        if held.record.kind == RecordKind::Delete {
            return Ok(Some(Restored { key, tablet, lost, put: None }));
        }
        let (value, options) = Entry::decode(held.record.body_bytes())
            .and_then(|(entry, inline)| contents(&entry, inline))
            .map_err(|_| Error::Invalid("its record in the log cannot be understood".into()))?;
        Ok(Some(Restored { key, tablet, lost, put: Some((value.into(), options)) }))
    }

    /// Writes the objects of a group in one write batch, so that one flush makes all of them durable; each for itself if
    /// the batch fails.
    ///
    /// # Errors
    /// [`Error::Poisoned`], once the device failed.
    async fn restore(
        &self,
        group: Group,
        hidden: &mut HiddenObjects,
        report: &mut CheckReport,
    ) -> Result<()> {
        let mut writes = WriteBatch::new();
        group.objects.iter().for_each(|object| writes.add(object.write()));
        let together = match writes.len() {
            0 | 1 => false,
            count => {
                let written = self.write_durably(writes).await.is_ok();
                assert!(!written || count == group.objects.len(), "an object was left out of its group");
                written
            }
        };
        self.0.log.poison.check()?;
        for object in &group.objects {
            let written = if together { Ok(()) } else { self.write_durably(object.write()).await.map(drop) };
            match written {
                Ok(()) => {
                    // A deleted object is not among the hidden ones.
                    if object.lost == Lost::Entry && object.put.is_some() {
                        hidden.was_restored(object.tablet);
                    }
                    report.was_restored(name(object.key.encoded()));
                }
                Err(error) => {
                    report.was_not_restored(&name(object.key.encoded()), &error);
                    self.0.log.poison.check()?;
                }
            }
        }
        Ok(())
    }
}

/// Objects that one write batch restores at most.
const GROUP_OBJECTS: usize = 256;
/// Bytes of keys and values from which on a write batch takes no further object.
const GROUP_BYTES: usize = 256 << 10;

/// An object to restore, and its lost part.
struct Restored {
    key: ObjectKey,
    tablet: TabletId,
    lost: Lost,
    /// `None`: the object is deleted.
    put: Option<(Buffer, PutOptions)>,
}

impl Restored {
    fn write(&self) -> Write<'_> {
        match &self.put {
            Some((value, options)) => Write::put(&self.key, value, options),
            None => Write::delete(&self.key, RejectRules::default()),
        }
    }
}

/// Objects that one write batch restores.
#[derive(Default)]
struct Group {
    objects: Vec<Restored>,
    bytes: usize,
}

impl Group {
    fn add(&mut self, object: Restored) {
        debug_assert!(self.objects.iter().all(|other| other.key != object.key), "a key is restored twice");
        self.bytes += object.key.encoded().len() + object.put.as_ref().map_or(0, |(value, _)| value.len());
        self.objects.push(object);
    }

    fn is_full(&self) -> bool {
        self.objects.len() >= GROUP_OBJECTS || self.bytes >= GROUP_BYTES
    }
}

impl Inner {
    /// The lost part of the object, if it may be in the state that the record `lsn` left; `None` if it can be read.
    async fn lost_since(&self, key: &ObjectKey, lsn: Lsn) -> Result<Option<Lost>> {
        let view = self.tablets.of(key).view();
        let found = match self.find(&view, key.encoded()).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(error) if cannot_be_read(&error) => return Ok(Some(Lost::Entry)),
            Err(error) => return Err(error),
        };
        if found.version != lsn {
            return Ok(None);
        }
        let blocks = self.device.blocks();
        let read = verify_direct(&self.device, &self.pool, blocks, &found.entry, found.version).await;
        Ok(read.is_err().then_some(Lost::Value))
    }
}

#[cfg(test)]
#[path = "tree_salvage_tests.rs"]
mod tests;
