//! A store opened read-only: every object exists, including the records that a crash left in the log; nothing is written, and no write is
//! possible.

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{
    ByteRange, Change, Error, ListRequest, OpenOptions, PutOptions, ReadLevel, RejectRules, RequestId, Store,
    Write, block_on,
};

use crate::common::{
    self, ByName, Unwritable, change_to, checked, device, formatted, key, open, open_read_only, read, tiny,
    tiny_with_threads, update,
};
use crate::golden;

const BLOCKS: u64 = 600;

/// Values of every kind: in leaves, packed, in extents; the last ones only in the log.
fn value(which: usize) -> Vec<u8> {
    vec![which as u8; [0, 30, 90, 700, 1_900, 9_000, 70_000][which % 7]]
}

fn name(which: usize) -> String {
    format!("{which:03}")
}

/// A store of 30 objects, a third of them deleted again, whose process was killed.
fn crashed() -> Image {
    let sim = formatted(BLOCKS, 7);
    let store = open(&device(&sim), tiny()).unwrap();
    for which in 0..30 {
        store.set(name(which), value(which)).unwrap();
        if which % 3 == 0 {
            store.remove(name(which)).unwrap();
        }
    }
    assert!(store.stat().applies > 0, "trees and log both hold something");
    sim.image()
}

fn shows_everything(store: &Store) {
    let expected: Vec<usize> = (0..30).filter(|which| which % 3 != 0).collect();
    for which in 0..30 {
        let found = read(store, name(which).as_bytes()).unwrap();
        let bytes = (which % 3 != 0).then(|| value(which));
        assert_eq!(found.map(|(_, bytes)| bytes), bytes, "{which}");
        let info = block_on(store.head(&key(name(which).as_bytes()))).unwrap();
        assert_eq!(info.map(|info| info.bytes), bytes.map(|bytes| bytes.len() as u64), "{which}");
    }
    let request = ListRequest { bucket: "default".into(), limit: 100, ..ListRequest::default() };
    let page = block_on(store.list(&request)).unwrap();
    let listed: Vec<Vec<u8>> = page.entries.into_iter().map(|(key, _)| key).collect();
    assert_eq!(listed, expected.iter().map(|&which| name(which).into_bytes()).collect::<Vec<_>>());
    let mut stream = block_on(store.get_stream(&key(b"013"), ByteRange::ALL)).unwrap().unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = block_on(stream.next()).unwrap() {
        bytes.extend(piece.to_vec());
    }
    assert_eq!(bytes, value(13));
    assert_eq!(store.stat().poisoned, None, "nothing failed");
    assert!(store.free_space().count() > 0);
    assert_eq!(block_on(store.scrub()).unwrap().problem_count, 0);
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::ReadOnly))
}

/// Every kind of write, on a device that would panic.
fn refuses_writes(store: &Store) {
    let (options, rules) = (PutOptions::default, RejectRules::default());
    let (key, value) = (key(b"001"), b"new".to_vec());
    let request_id = RequestId { session: 1, sequence: 1 };
    let put = || change_to(value.clone());
    block_on(async {
        assert!(is_refused(store.put(&key, value.clone().into(), options()).await));
        assert!(is_refused(store.write(Write::put(&key, &value.clone().into(), &options())).await));
        assert!(is_refused(store.delete(&key, rules).await));
        assert!(is_refused(update(store, &key, ReadLevel::Info, |_| (put(), ())).await));
        assert!(is_refused(update(store, &key, ReadLevel::Info, |_| (Change::Delete, ())).await));
        let keys = [(key.clone(), ReadLevel::Info)];
        assert!(is_refused(common::transact(store, &keys, |_| (vec![put()], ())).await));
        assert!(is_refused(common::once(store, request_id, &keys, |_| (vec![put()], ()), |()| vec![]).await));
        assert!(is_refused(common::put_once(store, request_id, &key, value.clone().into(), options()).await));
        assert!(is_refused(common::delete_once(store, request_id, &key, rules).await));
        assert!(is_refused(store.move_step().await));
    });
    assert!(is_refused(store.put_stream(&key, options())));
    assert!(store.try_write(&[(&key, &value[..])]).is_none());
    // A decision that changes nothing gets an answer.
    let looked =
        block_on(update(store, &key, ReadLevel::Info, |found| (Change::NoChange, found.is_some()))).unwrap();
    assert!(looked.answer && looked.pending.is_empty());
    store.pause_relocation();
    store.resume_relocation();
}

#[test]
fn everything_is_there_and_nothing_is_written() {
    let image = crashed();
    let threads = tiny_with_threads();
    for options in [tiny(), threads, OpenOptions { own_space: vec!["default".into()], ..tiny() }] {
        // Repeatable: the second opening finds the same as the first one.
        for _ in 0..2 {
            let unwritable = Unwritable::of(&image);
            let read_only = OpenOptions { read_only: true, ..options.clone() };
            let store = open(&unwritable, read_only).unwrap();
            shows_everything(&store);
            refuses_writes(&store);
            shows_everything(&store);
            block_on(store.close()).unwrap();
            assert!(matches!(read(&store, b"001"), Err(Error::Closed)));
        }
    }
    let report = checked(&Unwritable::of(&image)).unwrap();
    assert!(report.is_clean() && report.log_records > 0, "{:?}", report.problems);
    // An opening for writing continues from there.
    let store = open(&Device::new(SimDevice::from_image(image)), tiny()).unwrap();
    store.set(b"001", b"new".to_vec()).unwrap();
    assert_eq!(read(&store, b"001").unwrap().unwrap().1, b"new");
}

/// A refused opening reports the reason, for writing and for reading.
#[test]
fn a_damaged_store_is_refused_as_for_writing() {
    let mut image = crashed();
    common::rot_newest(&mut image);
    let for_writing = open(&Device::new(SimDevice::from_image(image.clone())), tiny()).map(drop);
    let read_only = open_read_only(&image, tiny()).map(drop);
    assert_eq!(format!("{read_only:?}"), format!("{for_writing:?}"));
    assert!(matches!(open_read_only(&Image::new(BLOCKS), tiny()), Err(Error::Unopenable(_))));
}

/// Only an opening for writing upgrades.
#[test]
fn every_version_is_read_and_left_as_it_is() {
    for version in [2, 3] {
        let store = open_read_only(&golden::image(version), tiny()).unwrap();
        golden::find_missing(&store).unwrap();
        assert!(is_refused(store.remove(b"any")), "version {version}");
        block_on(store.close()).unwrap();
    }
}

/// A store that this program refuses to write can be read.
#[test]
fn a_store_with_a_feature_that_cannot_be_written_is_read() {
    let mut image = golden::image(3);
    for block in [0, 1, 32, 33] {
        let mut bytes = *image.block(block);
        // A flag of the class that allows reads, but not writes.
        bytes[168] |= 4;
        let crc = crc32c(&bytes[..BLOCK_BYTES - 4]);
        bytes[BLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        image.write(block, &bytes);
    }
    let for_writing = open(&Device::new(SimDevice::from_image(image.clone())), tiny()).map(drop);
    assert!(matches!(for_writing, Err(Error::Unopenable(_))), "{for_writing:?}");
    golden::find_missing(&open_read_only(&image, tiny()).unwrap()).unwrap();
}
