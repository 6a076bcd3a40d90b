//! What the log still knows of objects that a tree cannot give any more: for `shoal check --repair`.
//!
//! The log is a ring, and what was applied stays in it until it is overwritten. Its batches form a chain that ends at the head,
//! so what can be followed back from there is everything that was written last, without gaps: the newest record of a
//! key among them is the newest that there is. A cut log has a gap. So a tablet whose tree holds more than what is left of the
//! log gets nothing from it, and an opening that cuts the log leaves an epoch out (`open.rs`): nobody walks back across that.
//! Where an entry can still be read, its record is the one of its version, or none.
//!
//! Records that carry their value restore the object; of a larger value only the place is known, which the tree knew as well.
//! Nothing else is believed: older copies of pages may be stale.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::codec::Truncated;
use shoal_device::{Device, IoBuf};

use crate::check::{CheckReport, name};
use crate::entry::{Entry, Home, Meta, decode_metadata, split_leaf_entry};
use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::log::format::{BatchHeader, EncodedRecord, RecordKind, check_batch, peek_header};
use crate::log::read::decode_records;
use crate::log::ring::Ring;
use crate::object::{Deadline, PutOptions, RejectRules};
use crate::open::Recovery;
use crate::store::{Inner, Store};
use crate::superblock::{LogPlace, TabletRecord};
use crate::tree_io::{PoolPages, tree_of};
use crate::value::read::verify_direct;

/// Bytes of keys and records that are held for a repair, at most, where the cache is not larger. What is older is not restored, and
/// the report says so.
const HELD_BYTES_MAX: usize = 64 << 20;

/// What a repair may hold in memory with a cache of so many bytes.
pub(crate) fn held_bytes_max(cache_bytes: usize) -> usize {
    cache_bytes.max(HELD_BYTES_MAX)
}

/// A record that restores an object.
struct Held {
    lsn: Lsn,
    record: EncodedRecord,
}

/// What the log knows of keys that the trees lost, by encoded key.
#[derive(Default)]
pub(crate) struct Known {
    /// None: the newest record of the key restores nothing, and hides the older ones.
    keys: BTreeMap<Vec<u8>, Option<Held>>,
    bytes: usize,
    /// Whether older records were left out, because no more may be held.
    is_full: bool,
}

/// A batch that lies in the ring, whole.
pub(crate) struct Found {
    block: u64,
    pub header: BatchHeader,
}

/// All whole batches by their checksums.
pub(crate) type Batches = HashMap<u32, Vec<Found>>;

/// All whole batches of the log's ring.
pub(crate) async fn read_ring(recovery: &Recovery) -> Batches {
    let Recovery { device, superblock, .. } = recovery;
    let ring = Ring { first: superblock.layout.log_first(), blocks: superblock.layout.log_blocks };
    find_batches(device, superblock.log_seed, ring).await
}

/// Follows the ring's batches back from the log's head, as far as they are there and no more than `bytes_max` bytes are held. What
/// cannot be read is left out.
pub(crate) async fn read_known(recovery: &Recovery, found: &Batches, bytes_max: usize) -> Known {
    let Recovery { device, superblock, log, .. } = recovery;
    let ring = Ring { first: superblock.layout.log_first(), blocks: superblock.layout.log_blocks };
    let (mut known, mut place) = (Known::default(), log.head);
    let mut epoch = log.batches.last().map_or(superblock.epoch, |batch| batch.header.epoch);
    let oldest = place.position.saturating_sub(u64::from(ring.blocks));
    while let Some(batch) = batch_before(found, place, epoch, ring)
        && batch.header.position >= oldest
        && let Some(records) = read_batch(device, superblock.log_seed, batch).await
    {
        if known.bytes > bytes_max {
            known.is_full = true;
            break;
        }
        for (index, record) in records.into_iter().enumerate().rev() {
            known.consider(recovery, Lsn(batch.header.first_lsn.0 + index as u64), record).await;
        }
        let BatchHeader { position, chain, first_lsn, .. } = batch.header;
        place = LogPlace { position, chain, first_lsn };
        epoch = batch.header.epoch;
    }
    known
}

/// The batch in front of `place`, which the opening of number `epoch` wrote on: its checksum is the chain there, it ends there or
/// where the ring turned, and no opening between the two is missing.
pub(crate) fn batch_before(found: &Batches, place: LogPlace, epoch: u64, ring: Ring) -> Option<&Found> {
    found.get(&place.chain)?.iter().find(|batch| {
        let header = &batch.header;
        let end = header.position + u64::from(header.blocks);
        let meets = end == place.position || ring.turn(end) == place.position;
        let in_order = Lsn(header.first_lsn.0 + u64::from(header.records)) <= place.first_lsn;
        meets && in_order && (header.epoch..=header.epoch + 1).contains(&epoch)
    })
}

async fn find_batches(device: &Device, seed: u64, ring: Ring) -> Batches {
    let mut found = Batches::new();
    for block in ring.first..ring.first + u64::from(ring.blocks) {
        let Ok(first) = device.read(block, IoBuf::unfilled(1)).await.ok() else { continue };
        let Some(header) = peek_header(&first) else { continue };
        let fits = header.blocks <= ring.rest(header.position) && ring.block(header.position) == block;
        if !fits {
            continue;
        }
        let whole = device.read(block, IoBuf::unfilled(header.blocks as usize)).await.ok();
        if let Ok(bytes) = whole
            && let Some((header, crc)) = check_batch(&bytes, seed)
        {
            found.entry(crc).or_default().push(Found { block, header });
        }
    }
    found
}

pub(crate) async fn read_batch(device: &Device, seed: u64, batch: &Found) -> Option<Vec<EncodedRecord>> {
    let bytes = device.read(batch.block, IoBuf::unfilled(batch.header.blocks as usize)).await.ok().ok()?;
    let (header, _) = check_batch(&bytes, seed)?;
    decode_records(&header, &bytes)
}

impl Known {
    /// Whether there is anything to be restored.
    pub(crate) fn has_any(&self) -> bool {
        self.keys.values().any(Option::is_some)
    }

    /// Holds the record where it is the newest of its key and the object cannot be read without it. Newer ones come first.
    async fn consider(&mut self, recovery: &Recovery, lsn: Lsn, record: EncodedRecord) {
        let Recovery { superblock, log, .. } = recovery;
        let Some(tablet) = superblock.tablets.get(usize::from(record.tablet.0)) else { return };
        let key = record.bytes.get(record.key.0 as usize..record.key.1 as usize).unwrap_or(&[]).to_vec();
        // A tree that is ahead of the log may have held something newer.
        if tablet.applied >= log.head.first_lsn || self.keys.contains_key(&key) {
            return;
        }
        let held = if lsn > tablet.applied {
            // The opening brings it back.
            None
        } else if !is_lost(recovery, tablet, &key, lsn, &record).await {
            return;
        } else {
            let restores = record.kind == RecordKind::Delete || carries_value(&record);
            restores.then_some(Held { lsn, record })
        };
        self.bytes += key.len() + held.as_ref().map_or(0, |held| held.record.bytes.len());
        self.keys.insert(key, held);
    }
}

/// Whether the tree cannot give what the record with this number wrote, or cannot say what the key holds.
async fn is_lost(
    recovery: &Recovery,
    tablet: &TabletRecord,
    key: &[u8],
    lsn: Lsn,
    record: &EncodedRecord,
) -> bool {
    let Recovery { device, pool, superblock, .. } = recovery;
    let tree = tree_of(superblock.identity, record.tablet);
    let found = match tree.lookup(&PoolPages::new(pool), tablet.root, key).await {
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

pub(crate) fn body(record: &EncodedRecord) -> Bytes {
    record.bytes.slice(record.body as usize..)
}

fn carries_value(record: &EncodedRecord) -> bool {
    Entry::decode(&body(record)).is_ok_and(|(entry, _)| entry.home == Home::Inline)
}

/// The value of an entry whose stored bytes are `stored`, and what was said about it.
pub(crate) fn contents(
    entry: &Entry,
    stored: &[u8],
) -> std::result::Result<(Vec<u8>, PutOptions), Truncated> {
    let (front, value) = stored.split_at_checked(entry.meta_in_front() as usize).ok_or(Truncated)?;
    let metadata = match &entry.meta {
        Meta::Inline(bytes) => decode_metadata(bytes)?,
        Meta::InFront(_) => decode_metadata(front)?,
    };
    let options = PutOptions {
        metadata,
        modified_ns: Some(entry.modified_ns),
        expiry: entry.end.map(Deadline::given_on).into(),
        ..PutOptions::default()
    };
    Ok((value.to_vec(), options))
}

impl Store {
    /// Writes anew what cannot be read and the log still had, under new versions, and says in `report` what was restored and
    /// what could not be.
    ///
    /// # Errors
    /// [`Error::Poisoned`], once the device failed.
    pub(crate) async fn salvage(&self, known: Known, report: &mut CheckReport) -> Result<()> {
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
        for (encoded, held) in deletes.into_iter().chain(puts) {
            let Some(key) = ObjectKey::of_encoded(&encoded).filter(|key| !key.is_system()) else { continue };
            match self.restore(&key, &held).await {
                Ok(true) => report.was_restored(name(&encoded)),
                Ok(false) => {}
                Err(error) => {
                    report.was_not_restored(&name(&encoded), &error);
                    self.0.poison.check()?;
                }
            }
        }
        Ok(())
    }

    /// Does again what the record did, where the object cannot be read and was not written since; says whether it did.
    async fn restore(&self, key: &ObjectKey, held: &Held) -> Result<bool> {
        if !self.0.is_lost_since(key, held.lsn).await? {
            return Ok(false);
        }
        if held.record.kind == RecordKind::Delete {
            self.delete(key, RejectRules::default()).await?;
        } else {
            let body = body(&held.record);
            let (value, options) = Entry::decode(&body)
                .and_then(|(entry, inline)| contents(&entry, inline))
                .map_err(|_| Error::Invalid("its record in the log cannot be understood".into()))?;
            self.put(key, value.into(), options).await?;
        }
        Ok(true)
    }
}

impl Inner {
    /// Whether the object cannot be read, and may be as the record `lsn` left it.
    async fn is_lost_since(&self, key: &ObjectKey, lsn: Lsn) -> Result<bool> {
        let view = self.tablet_of(key).view();
        let found = match self.find(&view, key.encoded()).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(false),
            Err(error) => return if cannot_be_read(&error) { Ok(true) } else { Err(error) },
        };
        if found.version != lsn {
            return Ok(false);
        }
        let blocks = self.device.blocks();
        Ok(verify_direct(&self.device, &self.pool, blocks, &found.entry, found.version).await.is_err())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_base::{ManualClock, SeededEntropy, TabletId};
    use shoal_device::sim::{Image, SimDevice, SimOptions};

    use super::*;
    use crate::log::format::{Stamp, encode_record};
    use crate::superblock::{Found as FoundSuperblock, Superblock, read_newest};
    use crate::{ByteRange, CheckOptions, Environment, FormatOptions, OpenOptions, block_on, check};

    const BLOCKS: u64 = 192;

    fn environment() -> Environment {
        Environment { clock: Arc::new(ManualClock::new(1_000)), entropy: Arc::new(SeededEntropy::new(5)) }
    }

    fn device(image: Image) -> (Arc<SimDevice>, Device) {
        let sim = SimDevice::with_options(image, SimOptions { record: false, ..SimOptions::default() });
        (sim.clone(), Device::new(sim))
    }

    fn open(device: &Device) -> Store {
        let options = OpenOptions { cache_bytes: 256 << 10, background: false, ..OpenOptions::default() };
        block_on(Store::open(device.clone(), options, environment())).unwrap()
    }

    fn formatted() -> (Arc<SimDevice>, Device) {
        let (sim, device) = device(Image::new(BLOCKS));
        let options = FormatOptions { tablets: 2, log_blocks: Some(16), ..FormatOptions::for_blocks(BLOCKS) };
        block_on(Store::format(&device, &options, &environment())).unwrap();
        (sim, device)
    }

    fn newest(device: &Device) -> Superblock {
        match block_on(read_newest(device)).unwrap() {
            FoundSuperblock::Newest(superblock) => *superblock,
            FoundSuperblock::Nothing => panic!("there is a store"),
        }
    }

    /// A key of this tablet.
    fn key_of(store: &Store, tablet: u16) -> ObjectKey {
        let mut keys =
            (0..).map(|which: u32| ObjectKey::new("default", which.to_string().as_bytes()).unwrap());
        keys.find(|key| store.0.tablet_of(key).id == TabletId(tablet)).unwrap()
    }

    fn put(store: &Store, key: &ObjectKey, value: &[u8]) {
        block_on(store.put(key, value.to_vec().into(), PutOptions::default())).unwrap();
    }

    fn get(device: &Device, key: &ObjectKey) -> Result<Option<Vec<u8>>> {
        let store = open(device);
        let object = block_on(store.get(key, ByteRange::ALL));
        block_on(store.close()).unwrap();
        object.map(|object| object.map(|object| object.value.to_vec()))
    }

    /// A store whose second tablet is ahead of what is left of the log: the log has the old value of the key, the tree the new one,
    /// and the record of the new one is damaged.
    fn cut() -> (Arc<SimDevice>, Device, ObjectKey) {
        let (sim, device) = formatted();
        let store = open(&device);
        let (other, key) = (key_of(&store, 0), key_of(&store, 1));
        let apply = || block_on(store.0.apply_tablet(store.0.tablet_of(&key))).unwrap();
        put(&store, &key, b"old");
        apply();
        // Keeps the log's tail in front of what follows.
        put(&store, &other, b"other");
        let place = store.0.committer.place_of(Lsn(u64::MAX));
        put(&store, &key, b"new");
        apply();
        block_on(store.close()).unwrap();
        let layout = newest(&device).layout;
        let ring = Ring { first: layout.log_first(), blocks: layout.log_blocks };
        sim.corrupt(ring.block(place.position), 100, 1);
        (sim, device, key)
    }

    fn damage_leaf(sim: &SimDevice, device: &Device) {
        sim.corrupt(newest(device).tablets[1].root.page.unwrap().block, 2_000, 1);
    }

    fn repair(device: &Device) -> CheckReport {
        block_on(check(device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() })).unwrap()
    }

    #[test]
    fn a_cut_log_never_brings_back_what_was_overwritten() {
        let (sim, device, key) = cut();
        damage_leaf(&sim, &device);
        let report = repair(&device);
        assert!(report.restored.is_empty(), "{report:?}");
        assert!(matches!(get(&device, &key), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn a_later_repair_does_not_walk_across_a_cut() {
        let (sim, device, key) = cut();
        repair(&device);
        assert_eq!(get(&device, &key).unwrap().unwrap(), b"new");
        damage_leaf(&sim, &device);
        let report = repair(&device);
        assert!(report.restored.is_empty(), "{report:?}");
        assert!(matches!(get(&device, &key), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn what_an_uncut_log_has_is_restored() {
        let (sim, device) = formatted();
        let store = open(&device);
        let key = key_of(&store, 1);
        put(&store, &key, b"old");
        put(&store, &key, b"new");
        block_on(store.0.apply_all()).unwrap();
        block_on(store.close()).unwrap();
        assert_eq!(get(&device, &key).unwrap().unwrap(), b"new");
        damage_leaf(&sim, &device);
        let report = repair(&device);
        assert_eq!(report.restored_count, 1, "{report:?}");
        assert_eq!(get(&device, &key).unwrap().unwrap(), b"new");
    }

    #[test]
    fn one_object_that_cannot_be_restored_does_not_end_the_others() {
        let (sim, device) = formatted();
        let store = open(&device);
        let key = key_of(&store, 1);
        put(&store, &key, b"value");
        block_on(store.0.apply_all()).unwrap();
        block_on(store.close()).unwrap();
        damage_leaf(&sim, &device);
        let store = open(&device);
        let tablet = TabletId(1);
        let mut keys = (0..)
            .map(|which: u32| ObjectKey::new("default", which.to_string().as_bytes()).unwrap())
            .filter(|key| store.0.tablet_of(key).id == tablet);
        let good = encode_record(RecordKind::Put, tablet, b"", &[&[0; 11]], false);
        let bad = encode_record(RecordKind::Put, tablet, b"", &[&[9]], false);
        let names: Vec<ObjectKey> = (&mut keys).take(2).collect();
        let held = [bad, good].map(|record| Some(Held { lsn: Lsn(1), record }));
        let keys = names.iter().map(|key| key.encoded().to_vec()).zip(held).collect();
        let mut report = CheckReport::default();
        block_on(store.salvage(Known { keys, ..Known::default() }, &mut report)).unwrap();
        assert_eq!((report.restored_count, report.notes.len()), (1, 1), "{report:?}");
        assert!(report.notes[0].contains("not restored"), "{report:?}");
        assert_eq!(block_on(store.get(&names[1], ByteRange::ALL)).unwrap().unwrap().value.len(), 0);
    }

    fn recovery(device: &Device) -> Recovery {
        let options = OpenOptions { accept_damaged_log: true, background: false, ..OpenOptions::default() };
        block_on(Recovery::read(device.clone(), &options, &environment())).unwrap()
    }

    fn held(lsn: u64, kind: RecordKind, body: &[u8]) -> Option<Held> {
        Some(Held { lsn: Lsn(lsn), record: encode_record(kind, TabletId(1), b"", &[body], false) })
    }

    /// What was written since, or can be read after all, or is not there any more, is left as it is.
    #[test]
    fn what_is_not_lost_any_more_is_left_alone() {
        let (_sim, device) = formatted();
        let store = open(&device);
        let key = key_of(&store, 1);
        let known = |lsn| Known {
            keys: [(key.encoded().to_vec(), held(lsn, RecordKind::Put, &[0; 11]))].into(),
            ..Known::default()
        };
        let salvage = |lsn| {
            let mut report = CheckReport::default();
            block_on(store.salvage(known(lsn), &mut report)).unwrap();
            (report.restored_count, report.notes)
        };
        assert_eq!(salvage(1), (0, Vec::new()), "it was deleted, or never there");
        assert!(block_on(store.get(&key, ByteRange::ALL)).unwrap().is_none());
        let put = block_on(store.put(&key, vec![7; 50].into(), PutOptions::default())).unwrap();
        assert_eq!(salvage(put.version.0), (0, Vec::new()), "it can be read");
        assert_eq!(salvage(put.version.0 - 1), (0, Vec::new()), "it was written since");
        let object = block_on(store.get(&key, ByteRange::ALL)).unwrap().unwrap();
        assert_eq!((object.value.to_vec(), object.info.version), (vec![7; 50], put.version));
    }

    /// A delete that a tree lost is a delete again: the key is known to be absent.
    #[test]
    fn a_delete_is_restored_as_one() {
        let (sim, device) = formatted();
        let store = open(&device);
        let (key, other) = (key_of(&store, 1), {
            let mut keys =
                (0..).map(|which: u32| ObjectKey::new("default", format!("-{which}").as_bytes()).unwrap());
            keys.find(|key| store.0.tablet_of(key).id == TabletId(1)).unwrap()
        });
        put(&store, &key, b"old");
        put(&store, &other, b"other");
        block_on(store.delete(&key, RejectRules::default())).unwrap();
        block_on(store.0.apply_all()).unwrap();
        block_on(store.close()).unwrap();
        drop(store);
        damage_leaf(&sim, &device);
        assert!(matches!(get(&device, &key), Err(Error::Corrupt { .. })));
        let report = repair(&device);
        assert_eq!(report.restored_count, 2, "{report:?}");
        assert!(get(&device, &key).unwrap().is_none());
        assert_eq!(get(&device, &other).unwrap().unwrap(), b"other");
    }

    /// Metadata that do not fit in the entry lie in front of the value, and come back with it.
    #[test]
    fn metadata_in_front_of_a_value_are_restored() {
        let (sim, device) = formatted();
        let store = open(&device);
        let key = key_of(&store, 1);
        let user = vec![("name".to_owned(), vec![b'm'; 900])];
        let metadata = crate::Metadata { content_type: "text/plain".into(), user };
        let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
        block_on(store.put(&key, vec![7; 60].into(), options)).unwrap();
        block_on(store.0.apply_all()).unwrap();
        block_on(store.close()).unwrap();
        drop(store);
        damage_leaf(&sim, &device);
        assert_eq!(repair(&device).restored_count, 1);
        let store = open(&device);
        let object = block_on(store.get(&key, ByteRange::ALL)).unwrap().unwrap();
        assert_eq!((object.value.to_vec(), object.info.metadata), (vec![7; 60], metadata));
    }

    /// The newest records are held until memory is full; what is older stays lost, and the report says so.
    #[test]
    fn what_memory_has_no_room_for_is_said_to_stay_lost() {
        let (sim, device) = formatted();
        let store = open(&device);
        let mut keys = (0..)
            .map(|which: u32| ObjectKey::new("default", format!("{which:04}").as_bytes()).unwrap())
            .filter(|key| store.0.tablet_of(key).id == TabletId(1));
        let keys: Vec<ObjectKey> = (&mut keys).take(6).collect();
        for key in &keys {
            put(&store, key, &[7; 100]);
        }
        block_on(store.0.apply_all()).unwrap();
        block_on(store.close()).unwrap();
        drop(store);
        damage_leaf(&sim, &device);
        let recovery = recovery(&device);
        let found = block_on(read_ring(&recovery));
        let all = block_on(read_known(&recovery, &found, usize::MAX));
        assert_eq!((all.keys.len(), all.is_full), (6, false));
        let some = block_on(read_known(&recovery, &found, all.bytes / 2));
        assert!(some.is_full && some.has_any() && some.keys.len() < 6, "{}", some.keys.len());
        let expected: Vec<&[u8]> = keys[6 - some.keys.len()..].iter().map(ObjectKey::encoded).collect();
        assert!(some.keys.keys().eq(expected), "the newest ones");
        let restored = some.keys.len() as u64;
        drop(recovery);
        let store = open(&device);
        let mut report = CheckReport::default();
        block_on(store.salvage(some, &mut report)).unwrap();
        assert_eq!(report.restored_count, restored);
        assert_eq!(report.notes.len(), 1, "{report:?}");
        assert!(report.notes[0].contains("MiB of records were held, all that memory allows"), "{report:?}");
    }

    /// An entry of the record's version that nobody can read is lost as its page would be.
    #[test]
    fn an_entry_that_cannot_be_read_is_lost() {
        use crate::by_hand::ByHand;
        let mut made = ByHand::new();
        let block = made.block();
        let key = ObjectKey::new("default", b"1").unwrap();
        let wrong = [&7_u64.to_le_bytes()[..], &[9]].concat();
        let page = made.page(crate::tree::by_hand::leaf(made.tree(), block, &[(key.encoded(), wrong)]));
        made.root(page, 1, 1);
        made.superblock.tablets[0].applied = Lsn(7);
        made.publish();
        let recovery = recovery(&made.device);
        let tablet = recovery.superblock.tablets[0];
        let record = |kind| encode_record(kind, TabletId(0), key.encoded(), &[], false);
        let lost = |lsn, kind| block_on(is_lost(&recovery, &tablet, key.encoded(), Lsn(lsn), &record(kind)));
        assert!(lost(7, RecordKind::Put));
        assert!(!lost(6, RecordKind::Put), "a newer one is there");
        assert!(!lost(7, RecordKind::Delete));
    }

    const RING: Ring = Ring { first: 100, blocks: 16 };

    fn batch(position: u64, blocks: u32, epoch: u64) -> Found {
        let header = BatchHeader {
            epoch,
            position,
            blocks,
            records: 1,
            first_lsn: Lsn(position),
            durable_lsn: Lsn(0),
            superblock: 1,
            stamp: Stamp::Now { store_ns: 0, wall_ns: 0 },
            chain: 0,
            record_bytes: 0,
        };
        Found { block: RING.block(position), header }
    }

    fn before(batches: Vec<Found>, position: u64, epoch: u64) -> Option<u64> {
        let found = Batches::from([(7, batches)]);
        let place = LogPlace { position, chain: 7, first_lsn: Lsn(position) };
        batch_before(&found, place, epoch, RING).map(|batch| batch.header.position)
    }

    #[test]
    fn a_checksum_alone_links_nothing() {
        assert_eq!(before(vec![batch(4, 2, 1)], 6, 1), Some(4));
        assert_eq!(before(vec![batch(4, 2, 1)], 7, 1), None, "it ends elsewhere");
        assert_eq!(
            before(vec![batch(1, 2, 1), batch(4, 2, 1)], 6, 1),
            Some(4),
            "all of a checksum are asked"
        );
        assert_eq!(before(vec![batch(12, 2, 1)], 16, 1), Some(12), "the ring turned behind it");
        assert_eq!(before(vec![batch(12, 2, 1)], 15, 1), None);
    }

    #[test]
    fn an_epoch_that_is_missing_ends_the_walk() {
        assert_eq!(before(vec![batch(4, 2, 5)], 6, 6), Some(4), "the next opening");
        assert_eq!(before(vec![batch(4, 2, 5)], 6, 7), None, "an opening cut the log between them");
        assert_eq!(before(vec![batch(4, 2, 5)], 6, 4), None);
    }
}
