//! Pins, eviction, starvation, the end of the pool.

use std::thread;
use std::time::Duration;

use shoal_base::Run;
use shoal_base::task::block_on;
use shoal_testkit::task::Wakes;

use super::*;
use crate::{Hint, PoolError};

#[test]
fn frames_hold_no_more_blocks_than_there_are() {
    let (pool, device) = pool_of(16, 100);
    for sweep in 0..3 {
        for block in 0..100 {
            assert_eq!(
                block_on(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap().page()[..],
                content(block, 0)[..]
            );
        }
        let resident = (0..100).filter(|&block| pool.is_resident(&page_unit(block, 0).id)).count();
        assert_eq!(resident, 16);
        assert!(
            device.counts().reads >= 100 + sweep * 84,
            "the audit: 16 frames serve at most 16 blocks of a sweep"
        );
    }
    assert_eq!(pool.counters().frames_used, 16);
    assert_eq!(pool.counters().evictions, pool.counters().misses - 16);
}

#[test]
fn pins_protect_and_exhaustion_is_an_error() {
    let (pool, device) = pool_of(8, 40);
    let pins: Vec<_> =
        (0..8).map(|block| block_on(pool.fetch(page_unit(block, 0), Hint::Scan)).unwrap()).collect();
    for result in
        [block_on(pool.fetch(page_unit(9, 0), Hint::Lookup)), run(pool.fetch(page_unit(9, 0), Hint::Scan))]
    {
        assert!(matches!(result, Err(PoolError::Exhausted { frames: 8 })));
    }
    assert_eq!((pool.counters().exhausted, device.counts().reads), (2, 8));
    for (block, pin) in pins.iter().enumerate() {
        assert_eq!(pin.page()[..], content(block as u64, 0)[..]);
    }
    drop(pins);
    assert!(block_on(pool.fetch(page_unit(9, 0), Hint::Lookup)).is_ok());
    let (value, data) = bytes_unit(&device, 20, 1, 8 * 4096 - 1);
    assert_eq!(
        all_bytes(&block_on(pool.fetch(value, Hint::Lookup)).unwrap()),
        data,
        "a unit as large as the pool"
    );
}

#[test]
fn a_try_fetch_does_not_wait_for_a_frame() {
    let (pool, device) = pool_with(PoolOptions { pin_wait_ms: 600_000, ..PoolOptions::new(8) }, 40);
    let pins: Vec<_> =
        (0..8).map(|block| block_on(pool.try_fetch(page_unit(block, 0), Hint::Scan)).unwrap()).collect();
    let refused = block_on(pool.try_fetch(page_unit(9, 0), Hint::Scan));
    assert!(matches!(refused, Err(PoolError::Exhausted { frames: 8 })));
    assert!(block_on(pool.try_fetch(page_unit(7, 0), Hint::Scan)).is_ok(), "a resident one needs no frame");
    assert_eq!(device.counts().reads, 8);
    drop(pins);
}

#[test]
fn unpin_wakes_waiting_fetch() {
    let (pool, _device) = pool_with(PoolOptions { pin_wait_ms: 100_000, ..PoolOptions::new(8) }, 40);
    for blocking in [false, true] {
        let pins: Vec<_> =
            (0..8).map(|block| block_on(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap()).collect();
        let waiter = {
            let pool = pool.clone();
            thread::spawn(move || {
                let fetch = pool.fetch(page_unit(30, 0), Hint::Lookup);
                if blocking { block_on(fetch) } else { run(fetch) }.unwrap().page().to_vec()
            })
        };
        thread::sleep(Duration::from_millis(25));
        assert!(!waiter.is_finished());
        drop(pins);
        assert_eq!(waiter.join().unwrap(), content(30, 0));
        pool.forget(Run::new(0, 40));
    }
}

#[test]
fn an_unpin_wakes_without_the_watchdog() {
    let (pool, _device) = pool_with(PoolOptions { pin_wait_ms: 10_000, ..PoolOptions::new(4) }, 40);
    let (wakes, waker) = Wakes::new();
    for round in 0..20 {
        let pins: Vec<_> =
            (0..4).map(|block| run(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap()).collect();
        let mut fetch = Box::pin(pool.fetch(page_unit(30 + round % 10, 0), Hint::Lookup));
        // The watchdog may wake too, but hardly each time in this moment.
        assert!(fetch.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        wakes.take();
        if round % 2 == 0 {
            pool.forget(Run::new(0, 4));
        }
        drop(pins);
        assert!(wakes.count() > 0, "round {round}");
        assert!(run(fetch).is_ok());
    }
}

#[test]
fn scans_leave_the_hot_set_alone() {
    for frames in [32, 400] {
        let (pool, device) = pool_of(frames, 2000);
        let hot = frames as u64 / 2;
        for _ in 0..4 {
            for block in 0..hot {
                drop(block_on(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap());
            }
            // Time passes with units that enter.
            for block in 1000..1010 {
                drop(block_on(pool.fetch(page_unit(block, 0), Hint::Scan)).unwrap());
                pool.forget(Run::new(block, 1));
            }
        }
        for block in hot..900 {
            drop(block_on(pool.fetch(page_unit(block, 0), Hint::Scan)).unwrap());
        }
        let before = device.counts().reads;
        for block in 0..hot {
            drop(block_on(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap());
        }
        assert_eq!(device.counts().reads, before, "{frames} frames");
        let share = PoolOptions::new(frames).scan_frames_max;
        assert_eq!(pool.counters().frames_used, frames / 2 + share, "scans reuse their own frames");
    }
}

#[test]
fn often_used_units_survive_a_flood_of_new_ones() {
    for frames in [32, 1000] {
        let (pool, device) = pool_of(frames, 4000);
        for _ in 0..10 {
            for block in 0..frames as u64 / 4 {
                drop(block_on(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap());
            }
            drop(block_on(pool.fetch(page_unit(3999, 0), Hint::Scan)).unwrap());
            pool.forget(Run::new(3999, 1));
        }
        for block in 1500..3900 {
            drop(block_on(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap());
        }
        let before = device.counts().reads;
        for block in 0..frames as u64 / 4 {
            drop(block_on(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap());
        }
        assert_eq!(device.counts().reads, before, "{frames} frames");
    }
}

#[test]
fn forgotten_units_go_with_their_last_pin() {
    let (pool, device) = pool_of(40, 64);
    let (value, data) = bytes_unit(&device, 10, 700, 9000);
    let pinned = run(pool.fetch(value, Hint::Lookup)).unwrap();
    drop(run(pool.fetch(page_unit(9, 0), Hint::Lookup)).unwrap());
    drop(run(pool.fetch(page_unit(12, 0), Hint::Lookup)).unwrap());
    drop(run(pool.fetch(page_unit(13, 0), Hint::Lookup)).unwrap());
    pool.forget(Run::new(12, 1));
    assert!(!pool.is_resident(&value.id), "its last block is in the run");
    assert!(pool.get(&value).is_none());
    assert!(pool.is_resident(&page_unit(9, 0).id) && pool.is_resident(&page_unit(13, 0).id));
    assert!(!pool.is_resident(&page_unit(12, 0).id));
    let second = run(pool.fetch(value, Hint::Lookup)).unwrap();
    assert_eq!(pool.counters().frames_used, 2 + 3 + 3);
    assert_eq!(all_bytes(&pinned), data);
    drop(pinned);
    assert_eq!(pool.counters().frames_used, 2 + 3);
    drop(second);
    pool.forget(Run::new(0, u32::MAX));
    assert_eq!(pool.counters().frames_used, 0);
}

#[test]
fn buffers_hold_the_pin_and_need_no_copy() {
    let (pool, device) = pool_of(40, 64);
    // Frames out of order, so that the value has several chunks.
    let singles: Vec<_> =
        (0..30).map(|block| run(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap()).collect();
    drop(singles);
    (0..30).step_by(2).for_each(|block| pool.forget(Run::new(block, 1)));
    (30..40).for_each(|block| drop(run(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap()));
    let (value, data) = bytes_unit(&device, 40, 700, 50_000);
    let pinned = run(pool.fetch(value, Hint::Lookup)).unwrap();
    let starts: Vec<_> = pinned.chunks().map(<[u8]>::as_ptr).collect();
    assert!(starts.len() > 1);
    let buffers: Vec<_> = pinned.into_bytes().collect();
    assert_eq!(buffers.iter().map(|buffer| buffer.as_ptr()).collect::<Vec<_>>(), starts);
    assert_eq!(buffers.concat(), data);
    assert_eq!(pool.counters().frames_pinned, value.blocks());
    let part = buffers[0].slice(1..9);
    drop(buffers);
    assert_eq!(pool.counters().frames_pinned, value.blocks());
    drop(pool);
    assert_eq!(part[..], data[1..9], "the memory outlives the pool");
}

#[test]
fn the_pool_may_go_before_pins_and_requests() {
    let (pool, device) = pool_of(8, 20);
    let memory = Arc::downgrade(pool.residents());
    let pinned = run(pool.fetch(page_unit(1, 0), Hint::Lookup)).unwrap();
    let clone = pinned.clone();
    drop(run(pool.fetch(page_unit(2, 0), Hint::Lookup)).unwrap());
    device.hold();
    pool.prefetch(&[page_unit(3, 0)], Hint::Lookup);
    drop(pool);
    assert_eq!(pinned.page()[..], content(1, 0)[..]);
    drop(pinned);
    let other = thread::spawn(move || clone.page().to_vec());
    assert_eq!(other.join().unwrap(), content(1, 0));
    assert!(memory.strong_count() > 0, "the read under way owns its frames");
    device.release();
    eventually(|| memory.strong_count() == 0);
}

#[test]
fn pins_race_with_the_end_of_the_pool() {
    for round in 0..200 {
        let (pool, _device) = pool_of(4, 4);
        let memory = Arc::downgrade(pool.residents());
        let pins: Vec<_> =
            (0..3).map(|block| run(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap()).collect();
        let clones = pins.clone();
        let first = thread::spawn(move || drop(pins));
        let second = thread::spawn(move || drop(clones));
        if round % 2 == 0 {
            thread::yield_now();
        }
        drop(pool);
        first.join().unwrap();
        second.join().unwrap();
        // The device's thread may still hold the completed request.
        eventually(|| memory.strong_count() == 0);
    }
}
