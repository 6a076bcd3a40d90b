//! The room of the space image.

use std::sync::Arc;

use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice, SimOptions};
use shoal_image::layout::Layout;
use shoal_image::superblock::Superblock;

use crate::testing::fixtures::{environment, key, open_in, options, put};
use crate::{ByteRange, CheckOptions, FormatOptions, Store, block_on, check};

/// 256 GiB.
const CAP: u64 = 1 << 26;

/// A file whose file system has room for `room` more blocks.
fn file(image: Image, room: u64) -> (Arc<SimDevice>, Device) {
    let options = SimOptions { growable: true, allocates: true, room: Some(room), ..SimOptions::default() };
    let sim = SimDevice::with_options(image, options);
    (sim.clone(), Device::new(sim))
}

fn open(device: &Device) -> Store {
    let mut options = options();
    options.tuning.growth_blocks = 4 << 20;
    open_in(device, options, environment())
}

fn superblock(store: &Store) -> Superblock {
    (*store.0.checkpointer.publisher.try_take().unwrap()).clone()
}

fn formatted() -> (Arc<SimDevice>, Device) {
    let (sim, device) = file(Image::new(1), CAP);
    let format = FormatOptions { tablets: 2, log_blocks: Some(64), ..FormatOptions::for_blocks(CAP) };
    block_on(Store::format(&device, &format, &environment())).unwrap();
    (sim, device)
}

fn held_of_areas(sim: &SimDevice, layout: &Layout) -> [u64; 2] {
    let blocks = u64::from(layout.space_area_blocks);
    layout.places.space_areas.map(|first| sim.held_blocks(Some(first..first + blocks)).unwrap())
}

/// The file grows over a power of two of its blocks: its map gets the room first, and every publish finds it on a file system that is
/// full from then on.
#[test]
fn a_map_has_its_room_before_the_blocks_that_need_it() {
    let (sim, device) = formatted();
    let store = open(&device);
    let layout = store.0.layout();
    assert_eq!(held_of_areas(&sim, &layout), [256; 2]);
    block_on(store.0.checkpointer.grow(3 << 20)).unwrap();
    let grown = superblock(&store);
    let used = layout.image_blocks(grown.device_blocks);
    assert!(used > 256 && used < layout.space_area_blocks, "{used}");
    assert_eq!(held_of_areas(&sim, &layout), [u64::from(used); 2]);
    sim.set_room(0);
    let (mut areas, mut most) = ([0; 2], 0);
    for which in 0..3 * used {
        put(&store, &key(which % 7), vec![which as u8; 30]);
        block_on(store.0.checkpointer.apply_all()).unwrap();
        let place = superblock(&store).space;
        areas[usize::from(place.area)] += 1;
        most = most.max(place.used_blocks);
    }
    assert!(areas[0] > 100 && areas[1] > 100 && most > 256 && most <= used, "{areas:?}, {most}");
    block_on(store.close()).unwrap();
}

/// A power cut at each write of a growth that takes more of the map, and of the publishes after it.
#[test]
fn every_crash_of_a_growing_map_leaves_a_whole_store() {
    let (sim, device) = formatted();
    let store = open(&device);
    put(&store, &key(1), vec![1; 30]);
    drop(store);
    let (sim, device) = file(sim.image(), CAP);
    let store = open(&device);
    sim.mark(0);
    block_on(store.0.checkpointer.grow(3 << 20)).unwrap();
    sim.mark(1);
    for which in 2..4 {
        put(&store, &key(which), vec![which as u8; 9_000]);
        block_on(store.0.checkpointer.apply_all()).unwrap();
        sim.mark(which);
    }
    drop(store);
    let (mut grown, mut states) = ([0, 0], 0);
    sim.history().for_each_crash_state(4, 1, |point, image| {
        let Some(&mark) = point.marks.last() else { return };
        let (sim, device) = file(image, 0);
        sim.set_room(CAP);
        let store = open(&device);
        let (layout, blocks) = (store.0.layout(), superblock(&store).device_blocks);
        let is_grown = blocks > 3 << 20;
        assert!(is_grown || mark == 0, "state {}", point.id);
        grown[usize::from(is_grown)] += 1;
        // After any crash, an opening allocates the room that it needs.
        assert_eq!(
            held_of_areas(&sim, &layout).map(|held| held >= u64::from(layout.image_blocks(blocks))),
            [true; 2]
        );
        for which in (1..4).filter(|&which| which == 1 || which <= mark) {
            assert!(
                block_on(store.get(&key(which), ByteRange::ALL)).unwrap().is_some(),
                "state {}",
                point.id
            );
        }
        drop(store);
        states += 1;
        if states % 4 > 0 {
            return;
        }
        let report = block_on(check(device, &CheckOptions::default())).unwrap();
        assert!(report.is_clean(), "state {}: {:?}", point.id, report.problems);
    });
    assert!(grown[0] > 0 && grown[1] > 5, "both are seen: {grown:?}");
}
