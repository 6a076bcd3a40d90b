//! A longer ring among the data.

use std::sync::Arc;

use shoal_device::{Device, MemDevice};

use crate::testing::fixtures::{environment, open_in, options};
use crate::{FormatOptions, Store, block_on};

/// The ring of a device is among the data: the blocks that writes reserved for their applies stay reserved (R3).
#[test]
fn a_longer_ring_takes_no_reserved_block() {
    const GROWN: u64 = 20_000;
    let device = Device::new(Arc::new(MemDevice::new(GROWN)));
    let format = FormatOptions { tablets: 2, log_blocks: Some(24), ..FormatOptions::for_blocks(320) };
    block_on(Store::format(&device, &format, &environment())).unwrap();
    let store = open_in(&device, options(), environment());
    let log_blocks = || store.stat().log_blocks;
    store.0.space.reserve_recovered(GROWN - 200);
    block_on(store.grow(None)).unwrap();
    let free = store.0.space.allocator().free_blocks();
    assert!(free > GROWN / 128 && log_blocks() == 24, "{free} free, {} of the log", log_blocks());
    store.0.space.release_reservation(GROWN - 200);
    block_on(store.grow(None)).unwrap();
    assert_eq!(log_blocks(), GROWN / 128);
    block_on(store.close()).unwrap();
}
