//! A full file system with room again.

use std::sync::Arc;

use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice, SimOptions};

use crate::testing::fixtures::{environment, key, open_in, options, put};
use crate::{FormatOptions, Store, block_on};

/// Symptom: a store whose file system had room again kept reporting that its file could not grow. Cause: it had enough free blocks, so
/// it did not try to grow. Fix: a file that could not grow is tried again until it can.
#[test]
fn room_is_noticed_although_enough_is_free() {
    let options_of_file =
        SimOptions { growable: true, allocates: true, room: Some(1 << 20), ..SimOptions::default() };
    let sim = SimDevice::with_options(Image::new(1), options_of_file);
    let device = Device::new(Arc::clone(&sim) as _);
    let format = FormatOptions { initial_blocks: Some(0), ..FormatOptions::for_blocks(1 << 16) };
    block_on(Store::format(&device, &format, &environment())).unwrap();
    let store = open_in(&device, options(), environment());
    put(&store, &key(1), vec![1; 30]);
    let checkpointer = &store.0.checkpointer;
    assert!(block_on(checkpointer.grow(4_096)).unwrap() > 0);
    sim.set_room(0);
    while block_on(checkpointer.grow(0)).unwrap() > 0 {}
    assert!(store.stat().cannot_grow.is_some());
    sim.set_room(1 << 20);
    assert!(checkpointer.space.available() >= checkpointer.growth_ahead() && checkpointer.wants_growth());
    block_on(checkpointer.grow_unless_freed()).unwrap();
    assert!(store.stat().cannot_grow.is_none() && !checkpointer.wants_growth());
}
