//! The map of a file takes the room that the space in use needs, not the room that its cap would: 40 TiB of cap took 5.2 GiB of disk.

use std::sync::Arc;

use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice, SimOptions};
use shoal_engine::{Error, FormatOptions, OpenOptions, block_on};

use crate::common::{ByName, assert_clean, fill, format, format_as, open, read, tiny, tiny_format};

/// A cap of 1 TiB has a map of 132 MiB.
const TIB: u64 = 1 << 28;
/// Unlimited room.
const ROOM: u64 = 1 << 40;

fn file(image: Image, allocates: bool) -> (Arc<SimDevice>, Device) {
    let options =
        SimOptions { growable: true, allocates, room: Some(ROOM), record: false, ..SimOptions::default() };
    let sim = SimDevice::with_options(image, options);
    (sim.clone(), Device::new(sim))
}

fn held(sim: &SimDevice) -> u64 {
    sim.held_blocks(None).unwrap()
}

/// A new store, a reopened store, and a store with a raised cap have some MiB of map.
#[test]
fn a_large_cap_takes_little_room() {
    for allocates in [true, false] {
        let (sim, device) = file(Image::new(1), allocates);
        format(&device, TIB, 1);
        let mib = |sim: &SimDevice| held(sim) / 256;
        assert!(mib(&sim) <= 12, "{} MiB of a new store, allocates: {allocates}", mib(&sim));
        let store = open(&device, tiny()).unwrap();
        store.set("first", vec![1; 9_000]).unwrap();
        block_on(store.close()).unwrap();
        drop(store);
        assert!(mib(&sim) <= 30, "{} MiB of an opened store, allocates: {allocates}", mib(&sim));
        // A raised cap: at an opening, and of an open store.
        for is_open in [true, false] {
            let (sim, device) = file(Image::new(1), allocates);
            format(&device, 4_096, 1);
            let store = if is_open {
                let store = open(&device, tiny()).unwrap();
                block_on(store.grow(Some(TIB))).unwrap();
                store
            } else {
                open(&device, OpenOptions { grow_to: Some(TIB), ..tiny() }).unwrap()
            };
            assert_eq!(store.stat().blocks_max, TIB);
            store.set("first", vec![1; 9_000]).unwrap();
            block_on(store.close()).unwrap();
            drop(store);
            // 8 MiB are the first part of the longer log.
            assert!(mib(&sim) <= 40, "{} MiB of a store that grew, allocates: {allocates}", mib(&sim));
            assert_clean(&device, "a store that grew");
        }
    }
}

/// The map before a growth becomes room for objects, including the part that no image used: each of its blocks has room then.
#[test]
fn old_map_area_is_reused() {
    const CAP: u64 = TIB / 2;
    const MAP: u64 = 16_932;
    for is_open in [true, false] {
        let (sim, device) = file(Image::new(1), true);
        format(&device, CAP, 1);
        let mut store = open(&device, tiny()).unwrap();
        let grow_to = Some(CAP + 1_000_000);
        if is_open {
            block_on(store.grow(grow_to)).unwrap();
        } else {
            block_on(store.close()).unwrap();
            drop(store);
            store = open(&device, OpenOptions { grow_to, ..tiny() }).unwrap();
        }
        assert!(held(&sim) > MAP && held(&sim) < 2 * MAP, "{} blocks: one map and a little", held(&sim));
        sim.set_room(0);
        let value = |which: u64| vec![which as u8; 60_000];
        let fill_from = |from| fill(from, |which| store.set(format!("{which:05}"), value(which)));
        let objects = fill_from(0);
        assert!(objects > 800, "{objects} objects of 15 blocks: the store withholds 4,096 blocks");
        for which in 0..objects {
            assert!(read(&store, format!("{which:05}").as_bytes()).unwrap().unwrap().1 == value(which));
            store.remove(format!("{which:05}")).unwrap();
        }
        assert!(fill_from(objects) > objects + objects / 2, "deletes make room");
        block_on(store.close()).unwrap();
    }
}

/// The ring before a longer log becomes data: its unprepared part gets its room first, or the log keeps it.
#[test]
fn old_ring_area_is_reused() {
    const RING: std::ops::Range<u64> = 34..234;
    for has_room in [true, false] {
        let (sim, device) = file(Image::new(1), true);
        let layout = FormatOptions { log_blocks: Some(200), log_prepared: Some(64), ..tiny_format(20_000) };
        format_as(&device, &layout, 1);
        let store = open(&device, tiny()).unwrap();
        assert_eq!(sim.held_blocks(Some(RING)), Some(64));
        // Without room: enough for the new map.
        sim.set_room(if has_room { ROOM } else { 100 });
        block_on(store.grow(Some(80_000))).unwrap();
        let stat = store.stat();
        assert_eq!((stat.blocks_max, stat.log_blocks), (80_000, if has_room { 625 } else { 200 }));
        assert_eq!(sim.held_blocks(Some(RING)), Some(if has_room { 200 } else { 64 }));
        sim.set_room(0);
        let objects = fill(0, |which| store.set(format!("{which:05}"), vec![which as u8; 9_000]));
        assert!(objects > 200, "{objects} objects");
        block_on(store.close()).unwrap();
        drop(store);
        sim.set_room(ROOM);
        assert_clean(&device, "a store with a longer log");
    }
}

/// Without room for the used part of the map, nothing grows, and the file keeps its length.
#[test]
fn a_growth_without_room_for_its_map_changes_nothing() {
    let (sim, device) = file(Image::new(1), true);
    format(&device, 4_096, 1);
    let store = open(&device, tiny()).unwrap();
    let before = device.blocks();
    sim.set_room(500);
    match block_on(store.grow(Some(TIB))) {
        Err(Error::Unopenable(why)) => {
            assert!(
                why.contains("needs 2 MiB more for the map of the new space: its file system is full"),
                "{why}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(store.stat().blocks_max == 4_096 && device.blocks() >= before);
    store.set("after", vec![1; 9_000]).unwrap();
    sim.set_room(ROOM);
    block_on(store.grow(Some(TIB))).unwrap();
    block_on(store.close()).unwrap();
}
