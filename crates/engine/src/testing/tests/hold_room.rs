//! The room of a new store.

use std::ops::Range;
use std::sync::Arc;

use shoal_device::{Device, MemDevice};
use shoal_image::layout::AREAS_FIRST;
use shoal_image::superblock::Superblock;
use shoal_tablets::growth::hold_room::{data_of, fixed_parts};

use crate::testing::fixtures::{environment, open_in, options};
use crate::{FormatOptions, Store, block_on};

fn superblock() -> Superblock {
    let device = Device::new(Arc::new(MemDevice::growable(1)));
    let format = FormatOptions { initial_blocks: Some(0), ..FormatOptions::for_blocks(1 << 23) };
    block_on(Store::format(&device, &format, &environment())).unwrap();
    let store = open_in(&device, options(), environment());
    let superblock = (*store.0.checkpointer.publisher.try_take().unwrap()).clone();
    block_on(store.close()).unwrap();
    superblock
}

#[test]
fn a_new_store_holds_the_room_of_all_parts_that_it_writes() {
    let mut superblock = superblock();
    let layout = superblock.layout;
    superblock.device_blocks = layout.data_first() + 1_000;
    let log = layout.log_first();
    let [first, second] = layout.places.space_areas.map(|first| first..first + 256);
    assert!(layout.space_area_blocks > 256, "the rest of an area is left alone");
    let fixed = [0..AREAS_FIRST, log..log + u64::from(superblock.log_prepared), first, second];
    assert_eq!(fixed_parts(&superblock), fixed);
    assert_eq!(data_of(&superblock), vec![layout.data_first()..superblock.device_blocks]);
}

/// The unused parts of areas are skipped, and an area is held at most to its end.
#[test]
fn areas_among_the_data_are_not_allocated() {
    let mut superblock = superblock();
    let first = superblock.layout.data_first();
    superblock.layout.log_blocks = 300;
    superblock.layout.space_area_blocks = 50;
    superblock.layout.places.log = first + 500;
    superblock.layout.places.space_areas = [first + 100, first + 800];
    superblock.log_prepared = 20;
    superblock.device_blocks = first + 1_000;
    let from_data = |part: Range<u64>| first + part.start..first + part.end;
    let [_, log, areas @ ..] = fixed_parts(&superblock);
    assert_eq!(log, from_data(500..520));
    assert_eq!(areas, [from_data(100..150), from_data(800..850)]);
    let data = [0..100, 150..500, 800..800, 850..1_000].map(from_data);
    assert_eq!(data_of(&superblock), data);
    // The end of the file is before the last area: nothing follows it.
    superblock.device_blocks = first + 820;
    assert_eq!(data_of(&superblock).last(), Some(&from_data(850..850)));
}
