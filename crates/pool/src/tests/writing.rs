//! The writer of new pages.

use shoal_base::BLOCK_BYTES;
use shoal_base::task::block_on;

use super::*;
use crate::{Hint, Keep, PoolError, Writer, WriterOptions};

async fn write(writer: &mut Writer, block: u64, version: u64, keep: Keep) -> Result<(), PoolError> {
    let mut page = writer.page().await?;
    assert!(page.iter().all(|&byte| byte == 0), "a new page is zeroed");
    page.copy_from_slice(&content(block, version));
    page[..4].fill(0);
    let crc = page.seal();
    let unit = page_unit(block, version);
    assert_eq!(Unit::page(block, crc), unit);
    writer.write(page, unit.id, keep).await
}

#[test]
fn neighbours_leave_in_one_request_whatever_their_order() {
    let (pool, device) = pool_of(32, 64);
    let mut writer = pool.writer(WriterOptions::default());
    run(async {
        for block in [12, 10, 30, 11, 13, 31, 50] {
            write(&mut writer, block, 1, Keep::Free).await.unwrap();
        }
        assert_eq!(device.counts().writes, 0, "gathered");
        assert!(pool.get(&page_unit(30, 1)).is_some(), "and readable");
        writer.finish().await.unwrap();
    });
    assert_eq!((device.counts().writes, device.counts().blocks_written), (3, 7));
    for block in [10, 11, 12, 13, 30, 31, 50] {
        assert_eq!(device.peek(block, 0, BLOCK_BYTES), content(block, 1));
        assert!(!pool.is_resident(&page_unit(block, 1).id));
    }
    assert_eq!(pool.counters().frames_used, 0);
    assert_eq!((pool.counters().writes, pool.counters().blocks_written), (3, 7));
}

#[test]
fn more_pages_than_frames() {
    for (frames, keep) in [(1, Keep::Free), (8, Keep::Free), (8, Keep::Resident(Hint::Lookup))] {
        let (pool, device) = pool_of(frames, 300);
        let mut writer = pool.writer(WriterOptions::default());
        block_on(async {
            for block in 0..300 {
                write(&mut writer, block, 1, keep).await.unwrap();
            }
            writer.finish().await.unwrap();
        });
        assert_eq!(device.counts().blocks_written, 300);
        assert!((0..300).all(|block| device.peek(block, 0, BLOCK_BYTES) == content(block, 1)));
        let resident = (0..300).filter(|&block| pool.is_resident(&page_unit(block, 1).id)).count();
        assert_eq!(resident, if keep == Keep::Free { 0 } else { frames });
    }
}

#[test]
fn bytes_in_flight_are_bounded_by_writer() {
    let (pool, device) = pool_of(64, 64);
    let options = WriterOptions { in_flight_bytes_max: 8 * BLOCK_BYTES, request_bytes_max: 2 * BLOCK_BYTES };
    let mut writer = pool.writer(options);
    device.hold();
    let mut pages = 0;
    let mut writing = Box::pin(async {
        for block in 0..40 {
            write(&mut writer, block, 1, Keep::Free).await.unwrap();
            pages += 1;
        }
        writer.finish().await.unwrap();
    });
    assert!(poll_once(&mut writing).is_pending());
    device.release();
    run(writing);
    assert_eq!(pages, 40);
    assert_eq!(device.counts().writes, 20);
}

#[test]
fn in_flight_pages_stop_at_the_limit() {
    let (pool, device) = pool_of(64, 64);
    let mut writer =
        pool.writer(WriterOptions { in_flight_bytes_max: 8 * BLOCK_BYTES, ..Default::default() });
    device.hold();
    run(async {
        for block in 0..8 {
            write(&mut writer, block, 1, Keep::Free).await.unwrap();
        }
    });
    {
        let mut ninth = Box::pin(writer.page());
        assert!(poll_once(&mut ninth).is_pending());
        assert_eq!(pool.counters().frames_used, 8);
    }
    device.release();
    run(async {
        drop(writer.page().await.unwrap());
        writer.finish().await.unwrap();
    });
    assert_eq!(pool.counters().frames_used, 0);
}

#[test]
fn a_page_is_readable_while_it_is_written() {
    let (pool, device) = pool_of(8, 20);
    let mut writer = pool.writer(WriterOptions { request_bytes_max: BLOCK_BYTES, ..Default::default() });
    device.hold();
    run(write(&mut writer, 5, 1, Keep::Free)).unwrap();
    let pinned = run(pool.fetch(page_unit(5, 1), Hint::Lookup)).unwrap();
    device.release();
    run(writer.finish()).unwrap();
    assert_eq!(pinned.page()[..], content(5, 1)[..], "the reader keeps what is no longer resident");
    assert!(!pool.is_resident(&page_unit(5, 1).id));
    assert_eq!(pool.counters().frames_used, 1);
    drop(pinned);
    assert_eq!(pool.counters().frames_used, 0);
    assert_eq!(device.counts().reads, 0);
}

#[test]
fn a_page_inherits_the_residency_of_the_one_that_it_replaces() {
    let (pool, device) = pool_of(32, 64);
    let mut writer = pool.writer(WriterOptions::default());
    drop(run(pool.fetch(page_unit(1, 0), Hint::Index)).unwrap());
    run(async {
        write(&mut writer, 11, 1, Keep::Inherit(page_unit(1, 0).id)).await.unwrap();
        write(&mut writer, 12, 1, Keep::Inherit(page_unit(2, 0).id)).await.unwrap();
        write(&mut writer, 13, 1, Keep::Resident(Hint::Scan)).await.unwrap();
        writer.finish().await.unwrap();
    });
    assert!(pool.is_resident(&page_unit(11, 1).id));
    assert!(!pool.is_resident(&page_unit(12, 1).id), "the replaced page was not resident");
    assert!(pool.is_resident(&page_unit(13, 1).id));
    let others = |blocks: std::ops::Range<u64>| {
        blocks.for_each(|block| drop(run(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap()));
    };
    others(20..60);
    assert!(pool.is_resident(&page_unit(11, 1).id), "it has the history of the inner page");
    assert!(pool.is_resident(&page_unit(1, 0).id), "which is read until the new one is published");
    pool.let_go(1);
    others(60..61);
    assert!(pool.is_resident(&page_unit(11, 1).id));
    assert!(!pool.is_resident(&page_unit(1, 0).id), "it goes first");
    assert_eq!(device.counts().writes, 1);
}

#[test]
fn rewritten_block_drops_cached_page() {
    let (pool, _device) = pool_of(8, 20);
    let old = run(pool.fetch(page_unit(5, 0), Hint::Lookup)).unwrap();
    let mut writer = pool.writer(WriterOptions::default());
    run(write(&mut writer, 5, 1, Keep::Resident(Hint::Lookup))).unwrap();
    assert!(pool.get(&page_unit(5, 0)).is_none());
    assert_eq!(pool.get(&page_unit(5, 1)).unwrap().page()[..], content(5, 1)[..]);
    assert_eq!(old.page()[..], content(5, 0)[..]);
    run(writer.finish()).unwrap();
    assert!(pool.is_resident(&page_unit(5, 1).id));
}

#[test]
fn the_first_error_is_kept_and_its_pages_are_not() {
    let (pool, device) = pool_of(8, 64);
    let mut writer = pool.writer(WriterOptions { request_bytes_max: BLOCK_BYTES, ..Default::default() });
    device.fail_writes(5, true);
    run(async {
        write(&mut writer, 4, 1, Keep::Resident(Hint::Lookup)).await.unwrap();
        let _ = write(&mut writer, 5, 1, Keep::Resident(Hint::Lookup)).await;
        for _ in 0..2 {
            let error = writer.finish().await.unwrap_err();
            assert!(error.to_string().contains("block 5"), "{error}");
        }
        assert!(writer.page().await.is_err());
    });
    assert!(pool.is_resident(&page_unit(4, 1).id));
    assert!(!pool.is_resident(&page_unit(5, 1).id), "what is not on the device is not served");
    assert_eq!((pool.counters().write_errors, pool.counters().frames_used), (1, 1));
}

#[test]
fn a_writer_may_be_dropped_with_writes_in_flight() {
    let (pool, device) = pool_of(8, 64);
    let mut writer = pool.writer(WriterOptions { request_bytes_max: 2 * BLOCK_BYTES, ..Default::default() });
    device.hold();
    run(async {
        for block in 0..3 {
            write(&mut writer, block, 1, Keep::Resident(Hint::Lookup)).await.unwrap();
        }
    });
    let unwritten = run(writer.page()).unwrap();
    drop(writer);
    assert!(!pool.is_resident(&page_unit(2, 1).id), "it was never handed to the device");
    assert_eq!(pool.counters().frames_used, 3, "two pages are being written, one is being filled");
    drop(unwritten);
    assert_eq!(pool.counters().frames_pinned, 2);
    device.release();
    eventually(|| pool.counters().frames_pinned == 0);
    assert_eq!(device.peek(1, 0, BLOCK_BYTES), content(1, 1));
    assert!(pool.is_resident(&page_unit(1, 1).id));
}

#[test]
fn the_pool_may_go_before_its_writes() {
    let (pool, device) = pool_of(8, 64);
    let memory = Arc::downgrade(pool.residents());
    let mut writer = pool.writer(WriterOptions { request_bytes_max: BLOCK_BYTES, ..Default::default() });
    device.hold();
    run(write(&mut writer, 7, 1, Keep::Free)).unwrap();
    drop(writer);
    drop(pool);
    assert!(memory.strong_count() > 0);
    device.release();
    eventually(|| memory.strong_count() == 0);
    assert_eq!(device.peek(7, 0, BLOCK_BYTES), content(7, 1));
}

#[test]
fn writer_waits_while_readers_hold_every_frame() {
    let (pool, _device) = pool_of(4, 64);
    let pins: Vec<_> =
        (0..4).map(|block| run(pool.fetch(page_unit(block, 0), Hint::Lookup)).unwrap()).collect();
    let mut writer = pool.writer(WriterOptions::default());
    assert!(matches!(run(writer.page()), Err(PoolError::Exhausted { .. })));
    drop(pins);
    assert!(run(writer.page()).is_ok());
}

#[test]
#[should_panic(expected = "without its checksum")]
fn a_page_without_checksum_is_a_bug() {
    let (pool, _device) = pool_of(8, 20);
    let mut writer = pool.writer(WriterOptions::default());
    run(async {
        let mut page = writer.page().await.unwrap();
        page[77] = 1;
        writer.write(page, UnitId { block: 1, identity: 1 }, Keep::Free).await.unwrap();
    });
}
