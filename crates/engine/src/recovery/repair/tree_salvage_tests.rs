//! The objects lost by a tree that a repair restores, and those that it leaves alone.

use std::sync::Arc;

use shoal_base::TabletId;
use shoal_device_sim::SimDevice;
use shoal_log::format::{BatchTimes, encode_record};

use super::*;
use crate::bucket::record_key;
use crate::testing::fixtures::{self, checked, environment, newest, open_in, options, put};
use crate::{BucketConfig, ByteRange, OpenOptions, block_on};

const BLOCKS: u64 = 192;

fn open(device: &Device) -> Store {
    open_in(device, options(), environment())
}

fn formatted() -> (Arc<SimDevice>, Device) {
    fixtures::formatted(BLOCKS, 2, 16)
}

/// A key of this tablet.
fn key_of(store: &Store, tablet: u16) -> ObjectKey {
    let mut keys = (0..).map(|which: u32| ObjectKey::new("default", which.to_string().as_bytes()).unwrap());
    keys.find(|key| store.0.tablets.of(key).id == TabletId(tablet)).unwrap()
}

fn get(device: &Device, key: &ObjectKey) -> Result<Option<Vec<u8>>> {
    let store = open(device);
    let value = fixtures::get(&store, key);
    block_on(store.close()).unwrap();
    value
}

/// A store whose second tablet is ahead of the rest of the log: the log has the old value of the key, the tree the new
/// one, and the record of the new one is damaged.
fn cut() -> (Arc<SimDevice>, Device, ObjectKey) {
    let (sim, device) = formatted();
    let store = open(&device);
    let (other, key) = (key_of(&store, 0), key_of(&store, 1));
    let apply = || block_on(store.0.checkpointer.apply_tablet(store.0.tablets.of(&key))).unwrap();
    put(&store, &key, b"old");
    apply();
    // Keeps the log's tail before the next record.
    put(&store, &other, b"other");
    let place = store.0.log.committer.place_of(Lsn(u64::MAX));
    put(&store, &key, b"new");
    apply();
    block_on(store.close()).unwrap();
    let layout = newest(&device).layout;
    let ring = layout.ring();
    sim.corrupt(ring.block(place.position), 100, 1);
    (sim, device, key)
}

fn damage_leaf(sim: &SimDevice, device: &Device) {
    sim.corrupt(newest(device).tablets[1].root.page.unwrap().block, 2_000, 1);
}

#[test]
fn a_cut_log_never_brings_back_what_was_overwritten() {
    let (sim, device, key) = cut();
    damage_leaf(&sim, &device);
    let report = checked(&device, true);
    assert!(report.restored.is_empty(), "{report:?}");
    assert!(matches!(get(&device, &key), Err(Error::Corrupt { .. })));
}

#[test]
fn a_later_repair_does_not_walk_across_a_cut() {
    let (sim, device, key) = cut();
    checked(&device, true);
    assert_eq!(get(&device, &key).unwrap().unwrap(), b"new");
    damage_leaf(&sim, &device);
    let report = checked(&device, true);
    assert!(report.restored.is_empty(), "{report:?}");
    assert!(matches!(get(&device, &key), Err(Error::Corrupt { .. })));
}

#[test]
fn objects_in_an_uncut_log_are_restored() {
    let (sim, device) = formatted();
    let store = open(&device);
    let key = key_of(&store, 1);
    put(&store, &key, b"old");
    put(&store, &key, b"new");
    block_on(store.0.checkpointer.apply_all()).unwrap();
    block_on(store.close()).unwrap();
    assert_eq!(get(&device, &key).unwrap().unwrap(), b"new");
    damage_leaf(&sim, &device);
    let report = checked(&device, true);
    assert_eq!(report.restored_count, 1, "{report:?}");
    assert_eq!(get(&device, &key).unwrap().unwrap(), b"new");
}

#[test]
fn failed_restore_does_not_stop_others() {
    let (sim, device) = formatted();
    let store = open(&device);
    let key = key_of(&store, 1);
    put(&store, &key, b"value");
    block_on(store.0.checkpointer.apply_all()).unwrap();
    block_on(store.close()).unwrap();
    damage_leaf(&sim, &device);
    let store = open(&device);
    let tablet = TabletId(1);
    let mut keys = (0..)
        .map(|which: u32| ObjectKey::new("default", which.to_string().as_bytes()).unwrap())
        .filter(|key| store.0.tablets.of(key).id == tablet);
    let good = encode_record(RecordKind::Put, tablet, b"", &[&[0; 11]], false);
    let bad = encode_record(RecordKind::Put, tablet, b"", &[&[9]], false);
    let names: Vec<ObjectKey> = (&mut keys).take(2).collect();
    let held = [bad, good].map(|record| Some(Restorable { lsn: Lsn(1), record }));
    let keys = names.iter().map(|key| key.encoded().to_vec()).zip(held).collect();
    let mut report = CheckReport::default();
    block_on(store.salvage(Known { keys, ..Known::default() }, &mut HiddenObjects::default(), &mut report))
        .unwrap();
    assert_eq!((report.restored_count, report.notes.len()), (1, 1), "{report:?}");
    assert!(report.notes[0].contains("not restored"), "{report:?}");
    assert_eq!(block_on(store.get(&names[1], ByteRange::ALL)).unwrap().unwrap().value.len(), 0);
}

fn recovery(device: &Device) -> Recovery {
    let options = OpenOptions { accept_damaged_log: true, background: false, ..OpenOptions::default() };
    block_on(Recovery::read(device.clone(), &options)).unwrap()
}

fn held(lsn: u64, kind: RecordKind, body: &[u8]) -> Option<Restorable> {
    Some(Restorable { lsn: Lsn(lsn), record: encode_record(kind, TabletId(1), b"", &[body], false) })
}

/// An object that was written since, can be read after all, or does not exist any more is left alone.
#[test]
fn an_object_that_is_not_lost_any_more_is_left_alone() {
    let (_sim, device) = formatted();
    let store = open(&device);
    let key = key_of(&store, 1);
    let known = |lsn| Known {
        keys: [(key.encoded().to_vec(), held(lsn, RecordKind::Put, &[0; 11]))].into(),
        ..Known::default()
    };
    let salvage = |lsn| {
        let mut report = CheckReport::default();
        block_on(store.salvage(known(lsn), &mut HiddenObjects::default(), &mut report)).unwrap();
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

/// A delete that a tree lost is restored as a delete: the key is known to be absent.
#[test]
fn a_delete_is_restored_as_one() {
    let (sim, device) = formatted();
    let store = open(&device);
    let (key, other) = (key_of(&store, 1), {
        let mut keys =
            (0..).map(|which: u32| ObjectKey::new("default", format!("-{which}").as_bytes()).unwrap());
        keys.find(|key| store.0.tablets.of(key).id == TabletId(1)).unwrap()
    });
    put(&store, &key, b"old");
    put(&store, &other, b"other");
    block_on(store.delete(&key, RejectRules::default())).unwrap();
    block_on(store.0.checkpointer.apply_all()).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    damage_leaf(&sim, &device);
    assert!(matches!(get(&device, &key), Err(Error::Corrupt { .. })));
    let report = checked(&device, true);
    assert_eq!(report.restored_count, 2, "{report:?}");
    assert!(get(&device, &key).unwrap().is_none());
    assert_eq!(get(&device, &other).unwrap().unwrap(), b"other");
}

/// Metadata that do not fit in the entry lie before the value, and are restored with it.
#[test]
fn metadata_in_front_of_a_value_are_restored() {
    let (sim, device) = formatted();
    let store = open(&device);
    let key = key_of(&store, 1);
    let user = vec![("name".to_owned(), vec![b'm'; 900].into())];
    let metadata = crate::Metadata { content_type: "text/plain".into(), user, ..crate::Metadata::default() };
    let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
    block_on(store.put(&key, vec![7; 60].into(), options)).unwrap();
    block_on(store.0.checkpointer.apply_all()).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    damage_leaf(&sim, &device);
    assert_eq!(checked(&device, true).restored_count, 1);
    let store = open(&device);
    let object = block_on(store.get(&key, ByteRange::ALL)).unwrap().unwrap();
    assert_eq!((object.value.to_vec(), object.info.metadata), (vec![7; 60], metadata));
}

/// The settings of a bucket count again.
#[test]
fn a_record_of_a_bucket_is_restored() {
    let (sim, device) = formatted();
    let store = open(&device);
    let is_of_tablet = |name: &String| store.0.tablets.of(&record_key(name)).id == TabletId(1);
    let name = (0..).map(|which: u32| format!("bucket-{which}")).find(is_of_tablet).unwrap();
    let config = BucketConfig { has_object_acls: true, ..BucketConfig::default() };
    let created = store.create_bucket(&name, config).unwrap().state;
    block_on(store.0.checkpointer.apply_all()).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    damage_leaf(&sim, &device);
    assert_eq!(checked(&device, true).restored_count, 1);
    let store = open(&device);
    store.load_buckets().unwrap();
    assert_eq!(store.bucket(&name).unwrap().unwrap().config(), created.config());
}

/// The newest records are held until memory is full; older ones stay lost, and the report names them.
#[test]
fn records_beyond_memory_stay_lost_and_are_reported() {
    let (sim, device) = formatted();
    let store = open(&device);
    let mut keys = (0..)
        .map(|which: u32| ObjectKey::new("default", format!("{which:04}").as_bytes()).unwrap())
        .filter(|key| store.0.tablets.of(key).id == TabletId(1));
    let keys: Vec<ObjectKey> = (&mut keys).take(6).collect();
    for key in &keys {
        put(&store, key, [7; 100]);
    }
    block_on(store.0.checkpointer.apply_all()).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    damage_leaf(&sim, &device);
    let recovery = recovery(&device);
    let found = block_on(read_ring(&recovery));
    let all = block_on(read_known(&recovery, &found, usize::MAX, &MayBeLost::default()));
    assert_eq!((all.keys.len(), all.is_full), (6, false));
    let some = block_on(read_known(&recovery, &found, all.bytes / 2, &MayBeLost::default()));
    assert!(some.is_full && some.has_any() && some.keys.len() < 6, "{}", some.keys.len());
    let expected: Vec<&[u8]> = keys[6 - some.keys.len()..].iter().map(ObjectKey::encoded).collect();
    assert!(some.keys.keys().eq(expected), "the newest ones");
    let restored = some.keys.len() as u64;
    drop(recovery);
    let store = open(&device);
    let mut report = CheckReport::default();
    block_on(store.salvage(some, &mut HiddenObjects::default(), &mut report)).unwrap();
    assert_eq!(report.restored_count, restored);
    assert_eq!(report.notes.len(), 1, "{report:?}");
    assert!(report.notes[0].contains("MiB of records were held, all that memory allows"), "{report:?}");
}

/// An unreadable entry with the record's version is lost, as if its page were.
#[test]
fn unreadable_entry_is_lost() {
    use crate::testing::fixtures::Fixture;
    let mut made = Fixture::new();
    let block = made.block();
    let key = ObjectKey::new("default", b"1").unwrap();
    let wrong = [&7_u64.to_le_bytes()[..], &[9]].concat();
    let page = made.page(shoal_tree::fixtures::leaf(made.tree(), block, &[(key.encoded(), wrong)]));
    made.root(page, 1, 1);
    made.superblock.tablets[0].applied = Lsn(7);
    made.superblock.lsn_ceiling = Lsn(7);
    made.publish();
    let recovery = recovery(&made.device);
    let record = |kind| encode_record(kind, TabletId(0), key.encoded(), &[], false);
    let lost = |lsn, kind| block_on(is_lost(&recovery, key.encoded(), Lsn(lsn), &record(kind)));
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
        stamp: BatchTimes::Now { store_ns: 0, wall_ns: 0 },
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
    assert_eq!(before(vec![batch(1, 2, 1), batch(4, 2, 1)], 6, 1), Some(4), "all of a checksum are asked");
    assert_eq!(before(vec![batch(12, 2, 1)], 16, 1), Some(12), "the ring turned behind it");
    assert_eq!(before(vec![batch(12, 2, 1)], 15, 1), None);
}

#[test]
fn an_epoch_that_is_missing_ends_the_walk() {
    assert_eq!(before(vec![batch(4, 2, 5)], 6, 6), Some(4), "the next opening");
    assert_eq!(before(vec![batch(4, 2, 5)], 6, 7), None, "an opening cut the log between them");
    assert_eq!(before(vec![batch(4, 2, 5)], 6, 4), None);
}
