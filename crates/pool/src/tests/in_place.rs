//! Pages that change in place: the bytes that reads see and the device gets, and the waiting for each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, Run};

use super::{eventually, poll_once, pool_with, run};
use crate::tests::device::TestDevice;
use crate::{Hint, Pool, PoolError, PoolOptions};

const NUMBER: usize = 16;
const NUMBER_AGAIN: usize = BLOCK_BYTES - 8;

pub(super) fn put(page: &mut [u8; BLOCK_BYTES], number: u64) {
    page[NUMBER..NUMBER + 8].copy_from_slice(&number.to_le_bytes());
    page[NUMBER_AGAIN..].copy_from_slice(&number.to_le_bytes());
}

pub(super) fn number(page: &[u8]) -> u64 {
    let at = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    assert_eq!(at(NUMBER), at(NUMBER_AGAIN), "torn");
    at(NUMBER)
}

pub(super) fn on_device(device: &TestDevice, block: u64) -> u64 {
    number(&device.peek(block, 0, BLOCK_BYTES))
}

/// A pool over pages that all hold 0.
fn zeroed(frames: usize, blocks: u64) -> (Pool, Arc<TestDevice>) {
    zeroed_with(PoolOptions { pin_wait_ms: 30, ..PoolOptions::new(frames) }, blocks)
}

pub(super) fn zeroed_with(options: PoolOptions, blocks: u64) -> (Pool, Arc<TestDevice>) {
    let (pool, device) = pool_with(options, blocks);
    (0..blocks).for_each(|block| device.put(block, &[0; BLOCK_BYTES]));
    (pool, device)
}

/// Makes the pool believe that its device is slow.
pub(super) fn slow_down(pool: &Pool, device: &TestDevice) {
    device.delay(Duration::from_millis(1));
    for _ in 0..400 {
        drop(block_on(pool.read(0, Hint::Scan)).unwrap());
        block_on(pool.delete(0)).unwrap();
        if pool.counters().read_us > 100 {
            return;
        }
    }
    panic!("{:?}", pool.counters());
}

/// Both threads found the page before either latched it.
#[test]
fn one_of_two_pinners_latches_the_page() {
    let (pool, _device) = zeroed(4, 8);
    let [one, two] = [1, 1].map(|block| block_on(pool.read(block, Hint::Lookup)).unwrap());
    let mut first = Box::pin(pool.latched(one));
    assert!(poll_once(&mut first).is_pending(), "it waits for the other one's pin");
    let mut second = Box::pin(pool.latched(two));
    assert!(poll_once(&mut second).is_pending(), "it gave its pin up, and waits for the latch");
    let mut page = run(first).expect("it has the latch");
    put(&mut page, 7);
    drop(page);
    assert!(run(second).is_none(), "the page is to be looked for again");
    assert_eq!(number(&block_on(pool.write(1, Hint::Lookup)).unwrap()[..]), 7);
}

#[test]
fn writers_of_one_page_take_turns() {
    let (pool, _device) = zeroed(4, 8);
    let first = block_on(pool.write(1, Hint::Lookup)).unwrap();
    let mut second = Box::pin(pool.write(1, Hint::Lookup));
    let mut third = Box::pin(pool.create(1, Hint::Lookup));
    assert!(poll_once(&mut second).is_pending() && poll_once(&mut third).is_pending());
    let mut first = first;
    put(&mut first, 7);
    drop(first);
    let page = run(second).unwrap();
    assert_eq!(number(&page[..]), 7, "the second one sees what the first one wrote");
    assert!(poll_once(&mut third).is_pending());
    drop(page);
    assert_eq!(number(&run(third).unwrap()[..]), 0, "the third one clears it");
}

#[test]
fn a_change_is_seen_and_reaches_the_device_before_its_frame_is_used() {
    let (pool, device) = zeroed(2, 8);
    put(&mut block_on(pool.write(1, Hint::Lookup)).unwrap(), 7);
    assert_eq!(number(block_on(pool.read(1, Hint::Lookup)).unwrap().page()), 7);
    assert_eq!(on_device(&device, 1), 0, "it was written though nobody wanted its frame");
    for block in 2..8 {
        drop(block_on(pool.read(block, Hint::Lookup)).unwrap());
    }
    assert_eq!(on_device(&device, 1), 7);
    assert_eq!(number(block_on(pool.read(1, Hint::Lookup)).unwrap().page()), 7);
}

/// A regression: the device failed once and recovered, and a flush that left nothing dirty still returned the old
/// error.
#[test]
fn a_flush_answers_for_its_own_writes_only() {
    let (pool, device) = zeroed(4, 8);
    put(&mut block_on(pool.write(1, Hint::Lookup)).unwrap(), 7);
    device.fail_writes(1, true);
    for block in 2..8 {
        // Its frame is wanted, and its write fails.
        let _ = block_on(pool.read(block, Hint::Lookup));
    }
    assert!(pool.counters().write_errors > 0, "nobody wanted its frame");
    device.fail_writes(1, false);
    run(pool.flush_all()).unwrap();
    assert_eq!(on_device(&device, 1), 7, "what failed before is written by the flush");
    run(pool.flush_all()).unwrap();

    // An error of this flush's writes is returned, once; the page stays dirty and is written by the next one.
    put(&mut block_on(pool.write(1, Hint::Lookup)).unwrap(), 8);
    device.fail_writes(1, true);
    assert!(matches!(run(pool.flush_all()), Err(PoolError::Device(_))));
    assert!(matches!(run(pool.flush_all()), Err(PoolError::Device(_))), "it is dirty still");
    device.fail_writes(1, false);
    run(pool.flush_all()).unwrap();
    assert_eq!(on_device(&device, 1), 8);
}

#[test]
fn flush_merges_neighbours_and_reports_failures() {
    let (pool, device) = zeroed(8, 8);
    for block in 0..4 {
        put(&mut run(pool.write(block, Hint::Lookup)).unwrap(), block + 10);
    }
    run(pool.flush_all()).unwrap();
    assert_eq!((0..4).map(|block| on_device(&device, block)).collect::<Vec<_>>(), [10, 11, 12, 13]);
    assert_eq!((device.counts().writes, device.counts().blocks_written), (1, 4));
    run(pool.flush_all()).unwrap();
    assert_eq!(device.counts().writes, 1, "nothing was dirty");

    put(&mut run(pool.write(2, Hint::Lookup)).unwrap(), 99);
    device.fail_writes(2, true);
    assert!(matches!(run(pool.flush_page(2)), Err(PoolError::Device(_))));
    assert!(matches!(run(pool.flush_all()), Err(PoolError::Device(_))));
    assert_eq!(number(run(pool.read(2, Hint::Lookup)).unwrap().page()), 99, "it stays, dirty");
    device.fail_writes(2, false);
    run(pool.flush_page(2)).unwrap();
    assert_eq!(on_device(&device, 2), 99);
}

/// A regression: a request that found only dirty pages started to write them, was woken by the failures, and started
/// again. It retried the device without a pause until its time was over, and returned the error that every frame is in
/// use.
#[test]
fn a_request_that_waits_for_unwritable_pages_pauses_and_gets_the_error() {
    for inline in [false, true] {
        let (pool, device) = zeroed_with(PoolOptions { pin_wait_ms: 100, ..PoolOptions::new(2) }, 8);
        for block in 0..2 {
            put(&mut run(pool.write(block, Hint::Lookup)).unwrap(), 5);
            device.fail_writes(block, true);
        }
        let read = pool.read(7, Hint::Lookup);
        let error = if inline { block_on(read) } else { run(read) }.unwrap_err();
        assert!(matches!(error, PoolError::Device(_)), "{error}");
        let tried = device.counts().errors;
        assert!((2..150).contains(&tried), "{tried} writes");
        device.fail_writes(1, false);
        drop(run(pool.read(7, Hint::Lookup)).unwrap());
        device.fail_writes(0, false);
        run(pool.flush_page(0)).unwrap();
        assert_eq!((on_device(&device, 0), on_device(&device, 1)), (5, 5));
    }
}

/// Ten writes at a time, however many waited: on a device that is fast at reading and slow at writing sixteen threads waited
/// for each other's frames.
#[test]
fn write_back_scales_with_waiting_requests() {
    let (pool, device) = zeroed_with(PoolOptions { pin_wait_ms: 10_000, ..PoolOptions::new(64) }, 128);
    for block in 0..64 {
        put(&mut run(pool.write(block, Hint::Lookup)).unwrap(), block + 1);
    }
    device.hold();
    let mut waiting: Vec<_> = (64..80).map(|block| Box::pin(pool.read(block, Hint::Lookup))).collect();
    waiting.iter_mut().for_each(|read| assert!(poll_once(read).is_pending()));
    let writing = pool.shared().writes.from_frames.load(Ordering::Relaxed);
    assert!((20..=32).contains(&writing), "{writing} writes for 16 requests");
    device.release();
    waiting.into_iter().for_each(|read| drop(run(read).unwrap()));
    run(pool.flush_all()).unwrap();
    assert!((0..64).all(|block| on_device(&device, block) == block + 1));
}

#[test]
fn new_pages_are_not_read_and_deleted_ones_not_written() {
    let (pool, device) = zeroed(4, 8);
    device.put(3, &[9; BLOCK_BYTES]);
    let page = run(pool.create(3, Hint::Lookup)).unwrap();
    assert!(page.iter().all(|&byte| byte == 0));
    drop(page);
    assert_eq!(device.counts().reads, 0);
    run(pool.delete(3)).unwrap();
    run(pool.delete(4)).unwrap();
    assert_eq!(pool.counters().frames_used, 0);
    run(pool.flush_all()).unwrap();
    assert_eq!(device.counts().writes, 0);
    assert_eq!(run(pool.read(3, Hint::Lookup)).unwrap().page()[0], 9);
    put(&mut run(pool.create(3, Hint::Lookup)).unwrap(), 5);
    assert_eq!(number(run(pool.read(3, Hint::Lookup)).unwrap().page()), 5, "one that is there is cleared");
}

#[test]
fn a_writer_waits_for_readers_and_keeps_new_ones_out() {
    let (pool, _device) = zeroed(4, 8);
    let reader = run(pool.read(1, Hint::Lookup)).unwrap();
    let mut writer = Box::pin(pool.write(1, Hint::Lookup));
    assert!(poll_once(&mut writer).is_pending());
    let mut late = Box::pin(pool.read(1, Hint::Lookup));
    assert!(poll_once(&mut late).is_pending());
    drop(reader);
    let std::task::Poll::Ready(page) = poll_once(&mut writer) else { panic!("the last reader is gone") };
    put(&mut page.unwrap(), 3);
    let std::task::Poll::Ready(page) = poll_once(&mut late) else { panic!("the writer is gone") };
    assert_eq!(number(page.unwrap().page()), 3);
    // A writer that is dropped while it waits leaves the page to others.
    let reader = run(pool.read(1, Hint::Lookup)).unwrap();
    let mut writer = Box::pin(pool.write(1, Hint::Lookup));
    assert!(poll_once(&mut writer).is_pending());
    drop(writer);
    assert!(pool.get(&crate::Unit::mutable(1)).is_some());
    drop(reader);
    assert_eq!(pool.counters().frames_pinned, 0);
}

#[test]
fn a_page_that_is_being_written_is_readable_and_not_changed() {
    let (pool, device) = zeroed(4, 8);
    put(&mut run(pool.write(1, Hint::Lookup)).unwrap(), 1);
    device.hold();
    let mut flush = Box::pin(pool.flush_page(1));
    assert!(poll_once(&mut flush).is_pending());
    assert_eq!(number(pool.get(&crate::Unit::mutable(1)).unwrap().page()), 1);
    let mut writer = Box::pin(pool.write(1, Hint::Lookup));
    assert!(poll_once(&mut writer).is_pending(), "changed while it is written");
    device.release();
    put(&mut run(writer).unwrap(), 2);
    drop(flush);
    run(pool.flush_page(1)).unwrap();
    assert_eq!(on_device(&device, 1), 2, "the newest image wins");
}

#[test]
fn a_stream_reads_ahead_on_a_slow_device_only() {
    let (pool, device) = zeroed(32, 64);
    let mut stream = pool.stream(Run::new(0, 64));
    for block in 0..64 {
        drop(block_on(stream.read(block)).unwrap());
    }
    assert_eq!(pool.counters().ahead_used, 0, "a fast device");
    drop(stream);
    slow_down(&pool, &device);
    let mut stream = pool.stream(Run::new(0, 64));
    for block in 0..40 {
        let mut page = block_on(stream.write(block)).unwrap();
        put(&mut page, block);
    }
    let counters = pool.counters();
    assert!(counters.ahead_used >= 30, "{counters:?}");
    // The stream moves: the prefetched pages are dropped.
    drop(block_on(stream.read(60)).unwrap());
    drop(stream);
    block_on(pool.flush_all()).unwrap();
    assert_eq!(pool.counters().frames_pinned, 0);
    assert!((0..40).all(|block| on_device(&device, block) == block));
}

#[test]
fn threads_lose_no_update_and_see_no_torn_page() {
    const PAGES: u64 = 24;
    const SLOW: Duration = Duration::from_micros(200);
    for (frames, delay, side_buffers) in
        [(10, Duration::ZERO, 0), (10, SLOW, 0), (10, SLOW, 3), (32, Duration::ZERO, 0)]
    {
        // Patient: on a busy machine threads wait long for each other's frames.
        let options = PoolOptions { pin_wait_ms: 20_000, side_buffers, ..PoolOptions::new(frames) };
        let (pool, device) = zeroed_with(options, PAGES);
        if !delay.is_zero() {
            slow_down(&pool, &device);
            device.delay(delay);
        }
        let written: Arc<Vec<AtomicU64>> = Arc::new((0..PAGES).map(|_| AtomicU64::new(0)).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let scans: Vec<_> = (0..2)
            .map(|_| {
                let (pool, written, stop) = (pool.clone(), written.clone(), stop.clone());
                thread::spawn(move || {
                    let mut stream = pool.stream(Run::new(0, PAGES as u32));
                    while !stop.load(Ordering::Relaxed) {
                        for block in 0..PAGES {
                            let at_least = written[block as usize].load(Ordering::Acquire);
                            let page = block_on(stream.read(block)).unwrap();
                            assert!(number(page.page()) >= at_least, "stale");
                        }
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..3_u64)
            .map(|thread| {
                let (pool, written) = (pool.clone(), written.clone());
                let rounds = if delay.is_zero() { 4_000 } else { 400 };
                thread::spawn(move || {
                    for round in 0..rounds {
                        let block = (round * 7 + round / 5) % (PAGES / 3) * 3 + thread;
                        let slot = &written[block as usize];
                        let expected = slot.load(Ordering::Acquire);
                        let mut page = block_on(pool.write(block, Hint::Lookup)).unwrap();
                        assert_eq!(number(&page[..]), expected, "an update was lost");
                        put(&mut page, expected + 1);
                        drop(page);
                        slot.store(expected + 1, Ordering::Release);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|thread| thread.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        scans.into_iter().for_each(|thread| thread.join().unwrap());
        block_on(pool.flush_all()).unwrap();
        for block in 0..PAGES {
            assert_eq!(on_device(&device, block), written[block as usize].load(Ordering::Relaxed));
        }
        eventually(|| pool.counters().frames_pinned == 0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read(u64),
    Write(u64),
    Create(u64),
    Delete(u64),
    FlushPage(u64),
    FlushAll,
    Scan(u64),
    ScanWrite(u64),
    FailReads(u64, bool),
    FailWrites(u64, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let block = 0_u64..12;
    let step = prop_oneof![
        4 => block.clone().prop_map(Step::Read),
        6 => block.clone().prop_map(Step::Write),
        1 => block.clone().prop_map(Step::Create),
        1 => block.clone().prop_map(Step::Delete),
        1 => block.clone().prop_map(Step::FlushPage),
        1 => Just(Step::FlushAll),
        3 => block.clone().prop_map(Step::Scan),
        2 => block.clone().prop_map(Step::ScanWrite),
        1 => (block.clone(), any::<bool>()).prop_map(|(block, fail)| Step::FailReads(block, fail)),
        1 => (block, any::<bool>()).prop_map(|(block, fail)| Step::FailWrites(block, fail)),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    /// Against a map: a read returns the last written bytes after any evictions, flushes and failures. A deleted
    /// page has the device's bytes, which are one of its former images.
    #[test]
    fn is_a_map(steps in steps(), frames in 4_usize..9, side_buffers in 0_usize..4, inline: bool) {
        let options = PoolOptions { pin_wait_ms: 30, side_buffers, ..PoolOptions::new(frames) };
        let (pool, device) = zeroed_with(options, 12);
        let mut model: HashMap<u64, u64> = (0..12).map(|block| (block, 0)).collect();
        let mut stream = pool.stream(Run::new(0, 12));
        let mut last = 0;
        // Runs a future as an embedded caller does, or as a runtime does.
        macro_rules! wait { ($future:expr) => { if inline { block_on($future) } else { run($future) } } }
        let mut failing = [false; 12];
        for step in steps {
            match step {
                Step::Read(block) => if let Ok(page) = wait!(pool.read(block, Hint::Lookup)) {
                    prop_assert_eq!(number(page.page()), model[&block]);
                },
                Step::Scan(block) => if let Ok(page) = wait!(stream.read(block)) {
                    prop_assert_eq!(number(page.page()), model[&block]);
                },
                Step::Write(block) => if let Ok(mut page) = wait!(pool.write(block, Hint::Lookup)) {
                    prop_assert_eq!(number(&page[..]), model[&block]);
                    last += 1;
                    put(&mut page, last);
                    model.insert(block, last);
                },
                Step::ScanWrite(block) => if let Ok(mut page) = wait!(stream.write(block)) {
                    prop_assert_eq!(number(&page[..]), model[&block]);
                    last += 1;
                    put(&mut page, last);
                    model.insert(block, last);
                },
                Step::Create(block) => if let Ok(mut page) = wait!(pool.create(block, Hint::Lookup)) {
                    prop_assert!(page.iter().all(|&byte| byte == 0));
                    last += 1;
                    put(&mut page, last);
                    model.insert(block, last);
                },
                Step::Delete(block) => if wait!(pool.delete(block)).is_ok() {
                    model.insert(block, on_device(&device, block));
                },
                Step::FlushPage(block) => if wait!(pool.flush_page(block)).is_ok() {
                    prop_assert_eq!(on_device(&device, block), model[&block]);
                },
                Step::FlushAll => if wait!(pool.flush_all()).is_ok() {
                    for block in 0..12 {
                        prop_assert_eq!(on_device(&device, block), model[&block]);
                    }
                } else {
                    prop_assert!(failing.contains(&true), "the error is of a write that failed before");
                },
                Step::FailReads(block, fail) => device.fail_reads(block, fail),
                Step::FailWrites(block, fail) => {
                    device.fail_writes(block, fail);
                    failing[block as usize] = fail;
                }
            }
        }
        drop(stream);
        for block in 0..12 {
            device.fail_reads(block, false);
            device.fail_writes(block, false);
        }
        run(pool.flush_all()).unwrap();
        for block in 0..12 {
            prop_assert_eq!(on_device(&device, block), model[&block]);
        }
        prop_assert_eq!((pool.counters().frames_pinned, pool.counters().side_buffers_used), (0, 0));
    }
}
