//! Openings with a log that contradicts the other structures, openings on a failing device, and repeated closes.

use shoal_base::checksum::crc32c;
use shoal_base::{BLOCK_BYTES, BLOCK_BYTES_U64, TabletId};
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice, SimOptions};
use shoal_log::format::{EncodedRecord, encode_record};
use shoal_value::Manifest;
use smallvec::SmallVec;

use super::*;
use crate::testing::fixtures::{BLOCKS, Fixture, entry, environment, key, options};
use crate::{ByteRange, FormatOptions, ObjectKey, PutOptions, block_on};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn put(which: u32, value_bytes: u64, home: Home) -> EncodedRecord {
    let mut body = Vec::new();
    entry(value_bytes, home).encode(&mut body);
    encode_record(RecordKind::Put, TabletId(0), key(which).encoded(), &[&body], false)
}

fn delete(which: u32) -> EncodedRecord {
    encode_record(RecordKind::Delete, TabletId(0), key(which).encoded(), &[], false)
}

fn block_of_ones(which: u32, block: u64) -> EncodedRecord {
    let runs = SmallVec::from_slice(&[Run::new(block, 1)]);
    let checksums = SmallVec::from_slice(&[crc32c(&[1; BLOCK_BYTES])]);
    put(which, BLOCK_BYTES_U64, Home::Extents { offset: 0, runs, checksums })
}

#[test]
fn failed_allocation_leaves_no_store() {
    let options = SimOptions { growable: true, record: false, ..SimOptions::default() };
    let sim = SimDevice::with_options(Image::new(1), options);
    let device = Device::new(sim.clone());
    sim.inject(Fault::fail(FaultOp::Grow, ENOSPC));
    let format = FormatOptions { tablets: 1, log_blocks: Some(16), ..FormatOptions::for_blocks(BLOCKS) };
    let refused = block_on(Store::format(&device, &format, &environment()));
    let words = "the data file could not get 256 blocks of 4 KiB: ";
    assert!(matches!(&refused, Err(Error::Unopenable(why)) if why.starts_with(words)), "{refused:?}");
    assert_eq!(device.blocks(), 1);
    block_on(Store::format(&device, &format, &environment())).unwrap();
}

/// A record that owns blocks that are not free is damage: its value may be any other data.
#[test]
fn record_with_foreign_blocks_is_damage() {
    let mut made = Fixture::new();
    let used = made.block();
    made.write(used, &[1; BLOCK_BYTES]);
    made.publish();
    made.batch(&[block_of_ones(1, used)]);
    let opened = made.open().map(|_| ());
    let words = "record 1 owns blocks that something else owns too (";
    assert!(
        matches!(&opened, Err(Error::Corrupt { what, block }) if what.starts_with(words) && *block == used),
        "{opened:?}"
    );
}

/// A record in another tablet than that of its key would be found by no reader, and its value would stay there (R14).
#[test]
fn a_record_of_another_tablet_is_damage() {
    let mut made = Fixture::new();
    let mut half = made.superblock.tablets[0];
    half.slot_first = 8_192;
    made.superblock.tablets[0].slot_last = 8_191;
    made.superblock.tablets.push(half);
    made.publish();
    let which = (0..).find(|which| key(which).slot() > 8_191).unwrap();
    made.batch(&[delete(which)]);
    let opened = made.open().map(|_| ());
    let words = "record 1 names tablet 0, which is not that of its key";
    assert!(matches!(&opened, Err(Error::Corrupt { what, .. }) if what == words), "{opened:?}");
    let report = made.check(false);
    assert!(report.problems.iter().any(|it| it.what.ends_with(&words[9..])), "{:?}", report.problems);
    // A repair leaves it out.
    let options = OpenOptions { accept_damaged_log: true, ..options() };
    let store = block_on(Store::open(made.device.clone(), options, environment())).unwrap();
    assert_eq!(store.0.not_replayed, [key(which).encoded()]);
}

#[test]
fn unreadable_value_of_last_batch_fails_open() {
    let mut made = Fixture::new();
    made.publish();
    let value = made.next + 3;
    made.write(value, &[1; BLOCK_BYTES]);
    made.batch(&[block_of_ones(1, value)]);
    made.sim.inject(Fault::fail(FaultOp::Read, EIO).at(value..value + 1));
    let opened = made.open().map(|_| ());
    assert!(matches!(opened, Err(Error::Io(_))), "it may be there: {opened:?}");
    let store = made.open().unwrap();
    let object = block_on(store.get(&key(1), ByteRange::ALL)).unwrap().unwrap();
    assert_eq!(object.value.to_vec(), [1; BLOCK_BYTES]);
}

/// The last batch was never acknowledged, so a body that cannot be read counts like a missing value.
#[test]
fn unreadable_last_batch_counts_as_unacknowledged() {
    let mut made = Fixture::new();
    made.publish();
    made.batch(&[delete(1)]);
    made.batch(&[encode_record(RecordKind::Put, TabletId(0), key(2).encoded(), &[&[9]], false)]);
    let recovery = block_on(Recovery::read(made.device.clone(), &options())).unwrap();
    let note = "the last batch (from record 2) was not complete: it was never acknowledged";
    assert_eq!((recovery.notes, recovery.damage), (vec![note.to_owned()], Vec::new()));
    let store = made.open().unwrap();
    assert!(block_on(store.get(&key(2), ByteRange::ALL)).unwrap().is_none());
}

/// Only the value is lost: the store opens, and the blocks that the record names stay taken.
#[test]
fn a_record_whose_manifest_is_damaged_opens() {
    let mut made = Fixture::new();
    made.publish();
    let (place, value) = (made.next + 2, made.next + 9);
    let (mut bytes, checksum) = Manifest { runs: vec![Run::new(value, 90)], checksums: vec![0; 6] }.encode();
    let runs = SmallVec::from_slice(&[Run::new(place, 1)]);
    let length = bytes.len() as u32;
    bytes.resize(BLOCK_BYTES, 0);
    bytes[20] ^= 1;
    made.write(place, bytes[..].try_into().unwrap());
    made.batch(&[put(1, 360_000, Home::Manifest { runs, bytes: length, checksum })]);
    made.batch(&[delete(2)]);
    let store = made.open().unwrap();
    let read = block_on(store.get(&key(1), ByteRange::ALL)).map(|_| ());
    assert!(matches!(read, Err(Error::Corrupt { block, .. }) if block == place), "{read:?}");
    let space = store.0.space.allocator();
    assert!(!space.is_free(Run::new(place, 1)), "the manifest's");
    assert!(space.is_free(Run::new(value, 90)), "nobody knows whose it is");
}

#[test]
fn a_store_is_closed_once() {
    let mut made = Fixture::new();
    made.publish();
    let store = made.open().unwrap();
    block_on(store.close()).unwrap();
    let number = crate::testing::fixtures::newest(&made.device).number;
    block_on(store.close()).unwrap();
    assert_eq!(crate::testing::fixtures::newest(&made.device).number, number, "nothing is written twice");
}

#[test]
fn a_store_that_is_read_only_closes_and_writes_nothing() {
    let mut made = Fixture::new();
    made.publish();
    let store = made.open().unwrap();
    let number = crate::testing::fixtures::newest(&made.device).number;
    made.sim.inject(Fault::fail(FaultOp::Flush, EIO));
    let put = block_on(store.put(&key(1), vec![1; 50].into(), PutOptions::default())).map(|_| ());
    assert!(matches!(put, Err(Error::Unknown(_))), "{put:?}");
    let before = made.sim.image();
    block_on(store.close()).unwrap();
    assert!(before.differences(&made.sim.image()).is_empty());
    assert_eq!(crate::testing::fixtures::newest(&made.device).number, number);
}

/// The saved groups only choose the places of later values, so failing to save them loses nothing. The close reports
/// the failure of the device.
#[test]
fn groups_of_buckets_that_cannot_be_saved_lose_nothing() {
    let mut made = Fixture::with_blocks(8_192);
    made.publish();
    let options = OpenOptions { own_space: vec!["photos".into()], ..options() };
    let open = || block_on(Store::open(made.device.clone(), options.clone(), environment())).unwrap();
    let photo = ObjectKey::new("photos", b"1").unwrap();
    let store = open();
    block_on(store.put(&photo, vec![1; 400_000].into(), PutOptions::default())).unwrap();
    assert!(store.stat().own_blocks > 0);
    made.sim.inject(Fault::fail(FaultOp::Flush, EIO));
    let closed = block_on(store.close());
    assert!(matches!(closed, Err(Error::Poisoned(_))), "{closed:?}");
    assert!(store.stat().poisoned.is_some(), "a write of the close failed");
    drop(store);
    let store = open();
    let object = block_on(store.get(&photo, ByteRange::ALL)).unwrap().unwrap();
    assert_eq!(object.value.to_vec(), vec![1; 400_000]);
    assert_eq!(store.stat().own_blocks, 0, "they were not saved");
}
