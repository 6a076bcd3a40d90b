//! A store for this crate's tests.

use std::sync::Arc;

use shoal_device::{Device, MemDevice};
use shoal_engine::{Environment, FormatOptions, OpenOptions, Store, block_on};

/// Blocks of its device: 512 MiB.
pub(crate) const BLOCKS: u64 = 128 << 10;

/// An empty store in memory.
pub(crate) fn store() -> Store {
    store_on(Device::new(Arc::new(MemDevice::new(BLOCKS))))
}

/// An empty store on `device`, which has [`BLOCKS`] blocks.
pub(crate) fn store_on(device: Device) -> Store {
    store_in(device, &Environment::default())
}

/// The same, with clocks of the test.
pub(crate) fn store_in(device: Device, environment: &Environment) -> Store {
    let options = OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() };
    block_on(async {
        Store::format(&device, &FormatOptions::for_blocks(BLOCKS), environment).await.unwrap();
        Store::open(device, options, environment.clone()).await.unwrap()
    })
}
