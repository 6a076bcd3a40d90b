//! Parts of the device that the simulated one shows: requests that the calling thread runs itself, and reads that fail.

use std::sync::Arc;

use shoal_base::SystemEntropy;
use shoal_base::task::block_on;
use shoal_device::blank::look;
use shoal_device::{BLOCK_BYTES, Device, DeviceError, FileOptions, IoBuf, IoMode, MemDevice};
use shoal_device_sim::{Fault, FaultOp, SimDevice};

/// A file and a device in memory run requests on lent memory, the simulated one on memory that it owns meanwhile.
#[test]
fn in_place_requests_match_submitted_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut devices = vec![Device::new(Arc::new(MemDevice::new(4))), Device::new(SimDevice::new(4))];
    for io in [IoMode::Uring, IoMode::Threads] {
        let options = FileOptions { create: true, io, ..FileOptions::default() };
        let device = shoal_device::open(&folder.path().join(format!("{io:?}")), &options).unwrap();
        device.inner().grow(4).unwrap();
        devices.push(device);
    }
    for device in devices {
        let name = format!("{device:?}");
        let bytes: Vec<u8> = (0..2 * BLOCK_BYTES).map(|at| (at % 251) as u8).collect();
        assert!(device.write_now(1, IoBuf::copied_from(&bytes)).result.is_ok(), "{name}");
        let read = device.read_now(1, IoBuf::unfilled(2)).ok().unwrap();
        assert_eq!(&read[..], &bytes[..], "{name}");
        let outside = device.read_now(3, IoBuf::unfilled(2));
        assert!(matches!(outside.result, Err(DeviceError::OutOfRange { .. })), "{name}");
        assert_eq!(outside.memory.len(), 2 * BLOCK_BYTES, "the memory comes back");
        let counters = device.counters();
        assert_eq!((counters.reads, counters.writes, counters.errors), (1, 1, 1), "{name}");
    }
}

#[test]
fn a_device_that_cannot_be_read_is_not_blank() {
    const BLOCKS: u64 = 1 << 20;
    for block in [0, BLOCKS - 1] {
        let sim = SimDevice::new(BLOCKS);
        sim.inject(Fault::fail(FaultOp::Read, 5).at(block..block + 1).for_good());
        assert!(block_on(look(&Device::new(sim), &SystemEntropy)).is_err());
    }
}
