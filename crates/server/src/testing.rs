//! A store for this crate's unit tests.

use std::io;
use std::sync::Arc;

use shoal_device::{BlockDevice, Device, DeviceCounters, Ticket};
use shoal_engine::{Environment, OpenOptions, Store, block_on};

pub(crate) fn store() -> Store {
    let device = Device::new(Arc::new(NoDevice));
    block_on(Store::open(device, OpenOptions::default(), Environment::default())).unwrap()
}

/// The store is a map in memory for now and asks nothing of its device.
struct NoDevice;

impl BlockDevice for NoDevice {
    fn submit(&self, tickets: Vec<Ticket>) {
        assert!(tickets.is_empty());
    }

    fn execute(&self, tickets: Vec<Ticket>) {
        assert!(tickets.is_empty());
    }

    fn blocks(&self) -> u64 {
        0
    }

    fn grow(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        "no device".into()
    }

    fn can_grow(&self) -> bool {
        false
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}
