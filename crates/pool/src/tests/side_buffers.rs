//! Side buffers: the request that gets a frame at once, the pages served meanwhile, and the image that the device gets.

use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use shoal_base::BLOCK_BYTES;
use shoal_base::task::block_on;

use super::in_place::{number, on_device, put, slow_down, zeroed_with};
use super::{eventually, poll_once, run};
use crate::{Hint, Pool, PoolError, PoolOptions};

fn options(frames: usize, side_buffers: usize) -> PoolOptions {
    PoolOptions { pin_wait_ms: 10_000, side_buffers, ..PoolOptions::new(frames) }
}

fn change(pool: &Pool, block: u64, to: u64) {
    put(&mut run(pool.write(block, Hint::Lookup)).unwrap(), to);
}

fn seen(pool: &Pool, block: u64) -> u64 {
    number(run(pool.read(block, Hint::Lookup)).unwrap().page())
}

/// A pool of two dirty pages, 0 and 1, on a device that holds every request.
fn two_dirty(side_buffers: usize) -> (Pool, std::sync::Arc<super::device::TestDevice>) {
    let (pool, device) = zeroed_with(options(2, side_buffers), 16);
    change(&pool, 0, 5);
    change(&pool, 1, 6);
    device.hold();
    (pool, device)
}

#[test]
fn a_frame_is_free_before_its_page_is_written_and_the_page_is_served() {
    let (pool, device) = two_dirty(2);
    // Nothing is read from the device, which would wait.
    for (block, to) in [(7, 7), (8, 8)] {
        let created = &mut Box::pin(pool.create(block, Hint::Lookup));
        let Poll::Ready(page) = poll_once(created) else { panic!("it waits for the device") };
        put(&mut page.unwrap(), to);
    }
    assert_eq!((pool.counters().set_aside, pool.counters().side_buffers_used), (2, 2));
    // Both buffers are taken, so a third one waits.
    let mut third = Box::pin(pool.create(9, Hint::Lookup));
    assert!(poll_once(&mut third).is_pending());
    drop(third);
    device.release();
    eventually(|| pool.counters().side_buffers_used == 0);
    assert_eq!((on_device(&device, 0), on_device(&device, 1)), (5, 6));
    run(pool.flush_all()).unwrap();
    assert_eq!([0, 1, 7, 8].map(|block| seen(&pool, block)), [5, 6, 7, 8]);
}

#[test]
fn evicted_page_returns_from_side_buffer() {
    let (pool, device) = two_dirty(1);
    drop(poll_once(&mut Box::pin(pool.create(7, Hint::Lookup))));
    let aside = (0..2).find(|&block| !pool.is_resident(&crate::Unit::mutable(block).id)).unwrap();
    // Its frame is that of page 7, which is dirty, too, and has no side buffer; but it can be deleted.
    drop(poll_once(&mut Box::pin(pool.delete(7))));
    let Poll::Ready(back) = poll_once(&mut Box::pin(pool.write(aside, Hint::Lookup))) else {
        panic!("it waits for the device")
    };
    let mut back = back.unwrap();
    assert_eq!((number(&back[..]), pool.counters().queue_hits), (aside + 5, 1));
    put(&mut back, 99);
    drop(back);
    let mut flush = Box::pin(pool.flush_page(aside));
    assert!(poll_once(&mut flush).is_pending(), "the older image is on its way");
    assert_eq!(
        pool.shared().writes.from_frames.load(Ordering::Relaxed),
        0,
        "the newer one is not, or they might overtake each other"
    );
    device.release();
    run(flush).unwrap();
    assert_eq!((on_device(&device, aside), device.counts().writes), (99, 2), "one after the other");
    run(pool.flush_all()).unwrap();
    assert_eq!(device.counts().writes, 3);
}

/// Flushes of several pages at the same time do not take each other's errors.
#[test]
fn flush_reports_error_of_its_page() {
    let (pool, device) = two_dirty(0);
    device.fail_writes(0, true);
    let (mut bad, mut good) = (Box::pin(pool.flush_page(0)), Box::pin(pool.flush_page(1)));
    assert!(poll_once(&mut bad).is_pending() && poll_once(&mut good).is_pending());
    device.release();
    let failed = || pool.counters().write_errors == 1;
    eventually(failed);
    assert!(run(good).is_ok());
    assert!(matches!(run(bad), Err(PoolError::Device(_))));
}

#[test]
fn unwritable_image_keeps_serving_the_page() {
    for flushed in [false, true] {
        let (pool, device) = two_dirty(2);
        (0..2).for_each(|block| device.fail_writes(block, true));
        drop(poll_once(&mut Box::pin(pool.create(7, Hint::Lookup))));
        drop(poll_once(&mut Box::pin(pool.create(8, Hint::Lookup))));
        device.release();
        eventually(|| pool.counters().write_errors == 2);
        assert_eq!(pool.counters().side_buffers_used, 2);
        assert!(matches!(run(pool.flush_page(0)), Err(PoolError::Device(_))));
        (0..2).for_each(|block| device.fail_writes(block, false));
        if flushed {
            run(pool.flush_page(0)).unwrap();
            assert_eq!(on_device(&device, 0), 5);
        } else {
            assert_eq!(seen(&pool, 0), 5, "fetched, it is dirty again");
            change(&pool, 0, 5);
        }
        run(pool.flush_all()).unwrap();
        assert_eq!((on_device(&device, 0), on_device(&device, 1)), (5, 6));
        assert_eq!(pool.counters().side_buffers_used, 0);
    }
}

#[test]
fn a_delete_of_a_page_waits_for_its_image() {
    let (pool, device) = two_dirty(2);
    drop(poll_once(&mut Box::pin(pool.create(7, Hint::Lookup))));
    drop(poll_once(&mut Box::pin(pool.create(8, Hint::Lookup))));
    let mut delete = Box::pin(pool.delete(0));
    assert!(poll_once(&mut delete).is_pending(), "the block would be written to after it was given away");
    device.release();
    run(delete).unwrap();
    device.put(0, &[9; BLOCK_BYTES]);
    run(pool.flush_all()).unwrap();
    assert_eq!(device.peek(0, 0, 1), [9]);
    // One that failed is forgotten.
    change(&pool, 1, 50);
    device.fail_writes(1, true);
    device.hold();
    for block in 9..11 {
        drop(poll_once(&mut Box::pin(pool.create(block, Hint::Lookup))));
    }
    device.release();
    eventually(|| pool.counters().write_errors == 1);
    run(pool.delete(1)).unwrap();
    device.fail_writes(1, false);
    run(pool.flush_all()).unwrap();
    assert_eq!(on_device(&device, 1), 6);
}

#[test]
fn a_scan_that_writes_leaves_its_frames_at_once() {
    let (pool, device) = zeroed_with(options(12, 4), 64);
    slow_down(&pool, &device);
    let mut stream = pool.stream(shoal_base::Run::new(0, 64));
    for block in 0..64 {
        let mut page = block_on(stream.write(block)).unwrap();
        put(&mut page, block + 1);
    }
    drop(stream);
    assert!(pool.counters().set_aside > 10, "{:?}", pool.counters());
    device.delay(Duration::ZERO);
    block_on(pool.flush_all()).unwrap();
    assert!((0..64).all(|block| on_device(&device, block) == block + 1));
    assert_eq!((pool.counters().side_buffers_used, pool.counters().frames_pinned), (0, 0));
}
