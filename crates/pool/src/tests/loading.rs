//! Reads: verification, coalescing, errors, dropped futures, several units at once.

use std::thread;
use std::time::Duration;

use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, Run};

use super::*;
use crate::{Hint, PoolError};

#[test]
fn a_page_is_read_once_and_then_hit() {
    let (pool, device) = pool_of(8, 20);
    let unit = page_unit(3, 0);
    assert!(pool.get(&unit).is_none());
    let pinned = block_on(pool.fetch(unit, Hint::Lookup)).unwrap();
    assert_eq!(pinned.page()[..], content(3, 0)[..]);
    assert_eq!(pinned.unit(), unit);
    let again = pool.get(&unit).unwrap();
    assert_eq!(again.page().as_ptr(), pinned.page().as_ptr());
    drop(run(pool.fetch(unit, Hint::Index)).unwrap());
    let counters = pool.counters();
    assert_eq!((counters.hits, counters.misses, device.counts().reads), (2, 1, 1));
    assert_eq!((counters.frames_used, counters.frames_pinned), (1, 1));
    drop((pinned, again));
    assert_eq!(pool.counters().frames_pinned, 0);
    assert!(pool.is_resident(&unit.id));
}

#[test]
fn values_begin_and_end_inside_blocks() {
    let (pool, device) = pool_of(40, 64);
    for (block, offset, bytes) in
        [(0, 0, 1), (1, 4095, 1), (2, 4095, 2), (5, 100, 65536), (30, 0, 65536), (7, 9, 4087)]
    {
        let (unit, data) = bytes_unit(&device, block, offset, bytes);
        let pinned = block_on(pool.fetch(unit, Hint::Lookup)).unwrap();
        assert_eq!(all_bytes(&pinned), data, "{block}, {offset}, {bytes}");
        assert_eq!(pinned.byte_count(), bytes as usize);
        assert_eq!(pinned.chunks().remaining(), bytes as usize);
    }
    assert_eq!(device.counts().reads, 6, "one vectored read a unit");
    assert_eq!(device.counts().blocks_read, 1 + 1 + 2 + 17 + 16 + 1);
}

#[test]
fn impossible_units_are_errors() {
    let (pool, device) = pool_of(8, 40);
    let (mut unit, _) = bytes_unit(&device, 0, 0, 65536);
    let exhausted = block_on(pool.fetch(unit, Hint::Lookup)).unwrap_err();
    assert!(matches!(exhausted, PoolError::Exhausted { frames: 8 }), "{exhausted}");
    unit.check = crate::Check::Bytes { offset: 0, bytes: 0, crc: 0 };
    assert!(matches!(block_on(pool.fetch(unit, Hint::Lookup)), Err(PoolError::Invalid { .. })));
    assert!(matches!(block_on(pool.fetch_all(&[unit], Hint::Lookup))[0], Err(PoolError::Invalid { .. })));
    let outside = block_on(pool.fetch(page_unit(40, 0), Hint::Lookup)).unwrap_err();
    assert!(matches!(outside, PoolError::Device(_)), "{outside}");
    assert_eq!(pool.counters().frames_used, 0);
    for (frames, k) in [(0, 4), (8, 0), (8, 17), (usize::MAX, 4)] {
        let setup = Pool::new(device.device(), PoolOptions { frames, k, ..PoolOptions::new(8) });
        assert!(matches!(setup, Err(PoolError::Setup { .. })), "{frames}, {k}");
    }
    let options = PoolOptions { side_buffers: usize::MAX, ..PoolOptions::new(8) };
    let setup = Pool::new(device.device(), options).map(|_| ()).unwrap_err();
    assert!(setup.to_string().contains("the number of side buffers is not supported"), "{setup}");
}

#[test]
fn blocking_threads_share_one_read() {
    let (pool, device) = pool_of(8, 20);
    device.hold();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let pool = pool.clone();
            thread::spawn(move || {
                block_on(pool.fetch(page_unit(5, 0), Hint::Lookup)).unwrap().page().to_vec()
            })
        })
        .collect();
    eventually(|| pool.counters().coalesced == 7);
    device.release();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), content(5, 0));
    }
    assert_eq!((device.counts().reads, pool.counters().misses), (1, 1));
    assert_eq!(pool.counters().frames_pinned, 0);
}

#[test]
fn submitted_fetches_share_one_read() {
    let (pool, device) = pool_of(8, 20);
    device.hold();
    let mut fetches: Vec<_> = (0..8).map(|_| Box::pin(pool.fetch(page_unit(5, 0), Hint::Scan))).collect();
    assert!(fetches.iter_mut().all(|fetch| poll_once(fetch).is_pending()));
    let waits: Vec<_> = (0..2)
        .map(|_| {
            let pool = pool.clone();
            thread::spawn(move || run(pool.fetch(page_unit(5, 0), Hint::Lookup)).unwrap().page().to_vec())
        })
        .collect();
    eventually(|| pool.counters().coalesced == 9);
    device.release();
    for wait in waits {
        assert_eq!(wait.join().unwrap(), content(5, 0));
    }
    for fetch in fetches {
        assert_eq!(run(fetch).unwrap().page()[..], content(5, 0)[..]);
    }
    assert_eq!(device.counts().reads, 1);
}

#[test]
fn dropped_loader_does_not_strand_waiters() {
    let (pool, device) = pool_of(8, 20);
    device.hold();
    let mut loader = Box::pin(pool.fetch(page_unit(5, 0), Hint::Lookup));
    assert!(poll_once(&mut loader).is_pending());
    let waiter = {
        let pool = pool.clone();
        thread::spawn(move || run(pool.fetch(page_unit(5, 0), Hint::Lookup)).unwrap().page().to_vec())
    };
    eventually(|| pool.counters().coalesced == 1);
    drop(loader);
    device.release();
    assert_eq!(waiter.join().unwrap(), content(5, 0));
    assert_eq!(pool.counters().frames_pinned, 0, "the dropped loader has no pin");
}

#[test]
fn abandoned_load_finishes() {
    let (pool, device) = pool_of(8, 20);
    device.hold();
    let mut fetch = Box::pin(pool.fetch(page_unit(5, 0), Hint::Lookup));
    assert!(poll_once(&mut fetch).is_pending());
    drop(fetch);
    assert_eq!(pool.counters().frames_used, 1, "the frames belong to the request");
    device.release();
    eventually(|| pool.is_resident(&page_unit(5, 0).id));
    assert_eq!(pool.counters().frames_pinned, 0);
    drop(pool.fetch(page_unit(6, 0), Hint::Lookup));
    assert_eq!(pool.counters().misses, 1, "a future that was never polled asked for nothing");
}

#[test]
fn unawaited_read_of_reused_block_is_not_damage() {
    let (pool, device) = pool_of(8, 20);
    device.hold();
    let mut fetch = Box::pin(pool.fetch(page_unit(5, 0), Hint::Lookup));
    assert!(poll_once(&mut fetch).is_pending());
    drop(fetch);
    device.put(5, &content(5, 1));
    device.release();
    eventually(|| pool.counters().frames_used == 0);
    assert_eq!(pool.counters().corrupt, 0);
}

#[test]
fn a_finished_load_that_was_not_collected_gives_its_pin_back() {
    let (pool, device) = pool_of(8, 20);
    device.hold();
    let mut fetch = Box::pin(pool.fetch(page_unit(5, 0), Hint::Lookup));
    assert!(poll_once(&mut fetch).is_pending());
    device.release();
    eventually(|| pool.counters().frames_pinned == 1);
    drop(fetch);
    assert_eq!(pool.counters().frames_pinned, 0);
}

#[test]
fn load_error_reaches_all_waiters() {
    let (pool, device) = pool_of(8, 20);
    device.fail_reads(5, true);
    device.hold();
    let mut fetches: Vec<_> = (0..3).map(|_| Box::pin(pool.fetch(page_unit(5, 0), Hint::Lookup))).collect();
    assert!(fetches.iter_mut().all(|fetch| poll_once(fetch).is_pending()));
    device.release();
    for fetch in fetches {
        assert!(matches!(run(fetch), Err(PoolError::Device(_))));
    }
    assert_eq!((pool.counters().frames_used, pool.counters().read_errors), (0, 1));
    device.fail_reads(5, false);
    assert!(block_on(pool.fetch(page_unit(5, 0), Hint::Lookup)).is_ok(), "the next fetch tries again");
}

#[test]
fn damage_is_detected_and_not_cached() {
    let (pool, device) = pool_of(8, 20);
    let mut page = content(5, 0);
    page[2000] ^= 4;
    device.put(5, &page);
    let error = block_on(pool.fetch(page_unit(5, 0), Hint::Lookup)).unwrap_err();
    assert!(matches!(error, PoolError::Corrupt { block: 5, .. }), "{error}");
    // A lost write: an older version, itself whole.
    device.put(5, &content(5, 0));
    let error = block_on(pool.fetch(page_unit(5, 1), Hint::Lookup)).unwrap_err();
    assert!(matches!(error, PoolError::Corrupt { block: 5, .. }), "{error}");
    let (unit, _) = bytes_unit(&device, 8, 10, 9000);
    device.put(9, &[0; BLOCK_BYTES]);
    let error = block_on(pool.fetch(unit, Hint::Lookup)).unwrap_err();
    assert!(matches!(error, PoolError::Corrupt { block: 8, .. }), "{error}");
    assert_eq!((pool.counters().corrupt, pool.counters().frames_used), (3, 0));
    assert!(block_on(pool.fetch(page_unit(5, 0), Hint::Lookup)).is_ok());
}

#[test]
fn another_identity_or_check_is_another_unit() {
    let (pool, device) = pool_of(8, 20);
    drop(block_on(pool.fetch(page_unit(5, 0), Hint::Lookup)).unwrap());
    device.put(5, &content(5, 1));
    assert!(pool.get(&page_unit(5, 1)).is_none(), "R11: the old bytes are not served for the new identity");
    let pinned = block_on(pool.fetch(page_unit(5, 1), Hint::Lookup)).unwrap();
    assert_eq!(pinned.page()[..], content(5, 1)[..]);
    // A value whose LSN equals the page's checksum.
    let (mut value, data) = bytes_unit(&device, 5, 0, 4096);
    value.id = page_unit(5, 1).id;
    assert!(pool.get(&value).is_none());
    let pinned = block_on(pool.fetch(value, Hint::Lookup)).unwrap();
    assert_eq!(all_bytes(&pinned), data);
    assert_eq!(device.counts().reads, 3);
    // The same bytes, written again by another record.
    value.id.identity += 1;
    assert!(pool.get(&value).is_none());
    drop(block_on(pool.fetch(value, Hint::Lookup)).unwrap());
    assert_eq!(device.counts().reads, 4);
}

#[test]
fn several_units_go_out_in_one_batch_and_neighbours_in_one_read() {
    let (pool, device) = pool_of(40, 64);
    drop(block_on(pool.fetch(page_unit(12, 0), Hint::Lookup)).unwrap());
    let (value, data) = bytes_unit(&device, 20, 500, 10_000);
    let mut units: Vec<_> =
        [15, 10, 11, 12, 13, 14, 40, 10].iter().map(|&block| page_unit(block, 0)).collect();
    units.push(value);
    for blocking in [false, true] {
        let before = device.counts().reads;
        let fetch = pool.fetch_all(&units, Hint::Lookup);
        let results = if blocking { block_on(fetch) } else { run(fetch) };
        for (unit, result) in units.iter().zip(&results) {
            assert_eq!(result.as_ref().unwrap().unit(), *unit);
        }
        assert_eq!(all_bytes(results[8].as_ref().unwrap()), data);
        // 10 and 11, 13 to 15, 20 to 22, 40.
        assert_eq!(device.counts().reads - before, 4);
        drop(results);
        pool.forget(Run::new(0, 12));
        pool.forget(Run::new(13, 51));
    }
}

/// The same if a thread that may block reads for itself, and others wait for its read.
#[test]
fn an_error_of_a_read_in_place_reaches_the_task_that_waited_for_it() {
    let (pool, device) = pool_of(8, 20);
    device.fail_reads(5, true);
    device.hold();
    let reader = {
        let pool = pool.clone();
        thread::spawn(move || block_on(pool.fetch(page_unit(5, 0), Hint::Lookup)).map(|_| ()))
    };
    eventually(|| pool.counters().misses == 1);
    let mut waiting = Box::pin(pool.fetch(page_unit(5, 0), Hint::Lookup));
    assert!(poll_once(&mut waiting).is_pending());
    device.release();
    assert!(matches!(reader.join().unwrap(), Err(PoolError::Device(_))));
    // The waiter is woken, and fails by its own read.
    assert!(matches!(run(waiting), Err(PoolError::Device(_))));
    assert_eq!((pool.counters().frames_used, pool.counters().read_errors), (0, 2));
}

#[test]
fn bad_block_does_not_affect_neighbours() {
    let (pool, device) = pool_of(8, 20);
    device.fail_reads(6, true);
    let units: Vec<_> = (4..9).map(|block| page_unit(block, 0)).collect();
    for blocking in [false, true] {
        let fetch = pool.fetch_all(&units, Hint::Lookup);
        let results = if blocking { block_on(fetch) } else { run(fetch) };
        for (unit, result) in units.iter().zip(results) {
            match result {
                Ok(pinned) => assert_eq!(pinned.page()[..], content(unit.id.block, 0)[..]),
                Err(error) => assert!(unit.id.block == 6 && matches!(error, PoolError::Device(_)), "{error}"),
            }
        }
        assert_eq!(pool.counters().frames_used, 4);
        pool.forget(Run::new(0, 20));
    }
}

#[test]
fn more_units_than_frames_are_refused_in_part() {
    let (pool, _device) = pool_of(8, 20);
    let units: Vec<_> = (0..12).map(|block| page_unit(block, 0)).collect();
    let results = block_on(pool.fetch_all(&units, Hint::Lookup));
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 8);
    assert!(results[11].as_ref().is_err_and(|error| matches!(error, PoolError::Exhausted { .. })));
}

#[test]
fn prefetch_reads_in_the_background_and_takes_a_share() {
    let (pool, device) = pool_of(40, 64);
    device.hold();
    let units: Vec<_> = (0..30).map(|block| page_unit(block, 0)).collect();
    pool.prefetch(&units, Hint::Scan);
    assert_eq!(pool.counters().prefetched, 10, "a quarter of the pool");
    pool.prefetch(&units, Hint::Scan);
    assert_eq!(pool.counters().prefetched, 10, "what is on its way is not read again");
    device.release();
    eventually(|| units[..10].iter().all(|unit| pool.is_resident(&unit.id)));
    assert_eq!(device.counts().reads, 1);
    pool.prefetch(&units[..12], Hint::Scan);
    eventually(|| pool.is_resident(&units[11].id));
    assert_eq!(device.counts().blocks_read, 12);
    let used = pool.counters().frames_used;
    device.fail_reads(20, true);
    pool.prefetch(&units[19..22], Hint::Lookup);
    eventually(|| pool.counters().read_errors == 3);
    assert_eq!(pool.counters().frames_used, used, "a failed prefetch leaves nothing");
    assert!(run(pool.fetch(units[19], Hint::Lookup)).is_ok());
}

#[test]
fn a_slow_device_serves_many_waiters() {
    let (pool, device) = pool_of(16, 64);
    device.delay(Duration::from_micros(200));
    let threads: Vec<_> = (0..4_u64)
        .map(|thread| {
            let pool = pool.clone();
            thread::spawn(move || {
                for round in 0..60 {
                    let block = (round * 7 + thread % 2) % 40;
                    let fetch = pool.fetch(page_unit(block, 0), Hint::Lookup);
                    let pinned = if thread < 2 { block_on(fetch) } else { run(fetch) }.unwrap();
                    assert_eq!(pinned.page()[..], content(block, 0)[..]);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let counters = pool.counters();
    assert_eq!(counters.misses, device.counts().reads);
    assert!(counters.frames_used <= 16 && counters.frames_pinned == 0);
}
