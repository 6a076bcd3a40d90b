//! Tests of the pool as a whole, over a device in memory that can be held, delayed and made to fail.
//!
//! Miri runs the tests of the unsafe modules and of the modules under them, in ten seconds:
//! `cargo +nightly miri test -p shoal-pool --lib -- memory::memory:: tests::word tests::free`; and in a minute some that use the
//! whole pool: `tests::side_buffers::a_page_that_comes tests::in_place::a_writer_waits`. (Tests that wait for the clock are no
//! use there.)

pub(crate) mod device;
mod free;
mod in_place;
mod interleave;
mod loading;
mod model;
mod models;

mod pinning;
mod side_buffers;
mod stress;
mod word;
mod writing;

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;
pub(crate) use shoal_testkit::task::run_as_runtime as run;
use shoal_testkit::{task, wait};

use crate::{Pinned, Pool, PoolOptions, Unit, UnitId};
use device::TestDevice;

/// A pool of `frames` frames over a device of `blocks` blocks, each a sealed page of version 0.
pub(crate) fn pool_of(frames: usize, blocks: u64) -> (Pool, Arc<TestDevice>) {
    pool_with(PoolOptions { pin_wait_ms: 30, ..PoolOptions::new(frames) }, blocks)
}

fn pool_with(options: PoolOptions, blocks: u64) -> (Pool, Arc<TestDevice>) {
    let device = TestDevice::new(blocks);
    (0..blocks).for_each(|block| device.put(block, &content(block, 0)));
    (Pool::new(device.device(), options).unwrap(), device)
}

/// A sealed page that no other block or version has.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut page = vec![0; BLOCK_BYTES];
    for (index, word) in page.chunks_exact_mut(8).enumerate() {
        let value = (block << 32 ^ version).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (index as u64) << 48;
        word.copy_from_slice(&value.to_le_bytes());
    }
    let crc = crc32c(&page[4..]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
    page
}

pub(crate) fn page_unit(block: u64, version: u64) -> Unit {
    Unit::page(block, u32::from_le_bytes(content(block, version)[..4].try_into().unwrap()))
}

/// `bytes` bytes from `offset` of `block` on, as the device has them.
fn bytes_unit(device: &TestDevice, block: u64, offset: u16, bytes: u32) -> (Unit, Vec<u8>) {
    let data = device.peek(block, usize::from(offset), bytes as usize);
    (Unit::bytes(UnitId { block, identity: u64::from(offset) << 32 | 1 }, offset, bytes, crc32c(&data)), data)
}

fn all_bytes(pinned: &Pinned) -> Vec<u8> {
    pinned.chunks().flatten().copied().collect()
}

/// Waits for something that another thread does soon.
fn eventually(condition: impl FnMut() -> bool) {
    wait::eventually("what another thread does soon", condition);
}

/// Polls once, with a waker that does nothing.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    task::poll_once(std::pin::Pin::new(future))
}
