//! The bucket is away: the spool, gaps, and the store that waits for neither.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use shoal_base::Lsn;
use tokio::time::{sleep, timeout};

use super::owner::{MOMENT, Owner, archive};
use super::replay::replay;
use super::scripted::{Fate, Scripted};
use super::*;
use crate::format::{BatchWriter, ValuePiece};
use crate::writer::spool::{SpoolFile, SpoolLimits};

/// Every request is lost from now on.
fn away(scripted: &Scripted) {
    for verb in ["create", "replace", "get"] {
        scripted.rule(verb, "", Fate::Away);
    }
}

async fn write_many(owner: &Owner, count: usize, bytes: usize) {
    for at in 0..count {
        owner.server.store.put(&format!("b\0{at}"), bytes);
        sleep(Duration::from_millis(50)).await;
        assert!(!owner.server.store.is_full(), "writers wait at write {at}");
    }
}

fn spool_bytes(owner: &Owner) -> u64 {
    std::fs::metadata(owner.folder.path().join("spool")).unwrap().len()
}

/// The records go to the spool, the store's log never fills up, and everything is drained in order.
#[tokio::test(start_paused = true)]
async fn spool_takes_an_outage() {
    let owner = Owner::start(archive(), disk(8 << 10)).await;
    owner.server.opened().await;
    owner.write().await;
    away(&owner.scripted);
    write_many(&owner, 2_000, 3_000).await;
    assert!(spool_bytes(&owner) > 4 << 20, "{}", spool_bytes(&owner));
    let status = owner.server.archiver.status();
    assert!(status.spool_bytes > 4 << 20 && status.lag_bytes >= status.spool_bytes);
    assert!(matches!(status.state, ArchiverState::Waiting { .. }), "{:?}", status.state);
    let archived = owner.archived();
    assert!(owner.disk.lock().floor > archived, "the log is released as far as it is spooled");
    owner.scripted.forget_rules();
    owner.server.catch_up().await;
    sleep(MOMENT).await;
    assert_eq!((spool_bytes(&owner), owner.server.archiver.status().gaps), (0, 0));
    owner.verify();
}

/// A bucket that is away at the start: spooled records are in the log that is claimed later, after another restart, too.
#[tokio::test(start_paused = true)]
async fn spool_is_shipped_in_the_next_log() {
    let owner = Owner::start(archive(), disk(8 << 10)).await;
    owner.server.opened().await;
    owner.write().await;
    let mut owner = owner;
    let scripted = owner.scripted.other();
    away(&scripted);
    owner = owner.restart_over(scripted).await;
    write_many(&owner, 300, 3_000).await;
    owner.server.store.put("b\0long", 9 << 20);
    write_many(&owner, 300, 3_000).await;
    assert!(matches!(owner.server.state(), ArchiverState::Connecting { .. }));
    let scripted = owner.scripted.other();
    away(&scripted);
    owner = owner.restart_over(scripted).await;
    write_many(&owner, 100, 3_000).await;
    assert!(spool_bytes(&owner) > 10 << 20);
    owner.scripted.forget_rules();
    owner.server.catch_up().await;
    let (_, logs) = replay(&owner.scripted.contents(), &VOLUME);
    let openings: Vec<_> = logs.iter().filter_map(|log| log.opening).collect();
    assert_eq!(openings.len(), 2);
    assert!(!openings[1].1, "no gap");
    assert!(logs.last().unwrap().records.len() > 700);
    owner.verify();
}

/// The spool is full: a gap that is named, a new log, and the store does not wait.
#[tokio::test(start_paused = true)]
async fn full_spool_is_a_gap() {
    let change = |options| ArchiverOptions { spool_bytes_max: 1 << 20, ..options };
    let owner = Owner::start_with(archive(), disk(8 << 10), change).await;
    owner.server.opened().await;
    let first = owner.log();
    away(&owner.scripted);
    write_many(&owner, 1_000, 3_000).await;
    assert_eq!(spool_bytes(&owner), 0, "the spool is dropped");
    assert_eq!(owner.disk.lock().floor, owner.server.store_last());
    let status = owner.server.archiver.status();
    assert!(matches!(status.state, ArchiverState::Connecting { .. }), "{:?}", status.state);
    assert_eq!(status.gaps, 1, "counted when it starts");
    assert!(status.gap.is_some_and(|why| why.contains("1048576 bytes")));
    owner.scripted.forget_rules();
    sleep(Duration::from_secs(120)).await;
    let last = owner.write().await;
    let status = owner.server.archiver.status();
    assert_eq!((status.gaps, status.gap, status.archived), (1, None, Lsn(last)));
    let ArchiverState::NeedsBase { why } = &status.state else { panic!("{:?}", status.state) };
    assert!(why.contains("1048576 bytes") && why.contains("spool"), "{why}");
    let need = owner.server.archiver.needs_base().borrow().clone().unwrap();
    assert_eq!((need.log, need.seq, need.since), (status.log, 0, Lsn(last - 1)));
    assert_ne!(status.log, first);
    owner.verify();
}

/// A long value continues from the spool when its blocks are released in the middle of it: no piece is missing, and none is there twice.
#[tokio::test(start_paused = true)]
async fn long_value_continues_from_the_spool() {
    let owner = Owner::start(archive(), disk(8 << 10)).await;
    owner.server.opened().await;
    owner.scripted.rule("create", owner.slot(1), Fate::Away);
    let long = owner.server.store.put("b\0long", 22 << 20);
    write_many(&owner, 300, 99).await;
    assert!(owner.disk.lock().floor >= long, "the spool has it");
    assert_eq!(owner.archived(), 0);
    owner.scripted.forget_rules();
    owner.server.catch_up().await;
    let (_, logs) = replay(&owner.scripted.contents(), &VOLUME);
    assert_eq!(logs[0].records[&long].value.as_ref().map(Bytes::len), Some(22 << 20));
    assert_eq!(owner.server.archiver.status().gaps, 0);
    owner.verify();
}

/// A restore replays from the first piece of a value whose record is not archived.
#[tokio::test(start_paused = true)]
async fn position_has_the_pieces_of_the_next_record() {
    let owner = Owner::start(archive(), disk(1 << 20)).await;
    owner.server.opened().await;
    let first = owner.write().await;
    owner.scripted.rule("create", owner.slot(4), Fate::Away);
    owner.server.store.put("b\0long", 22 << 20);
    sleep(MOMENT).await;
    assert!(owner.scripted.contents().contains_key(&owner.slot(3)));
    let position = owner.server.archiver.position().unwrap();
    assert_eq!((position.seq, position.archived), (2, Lsn(first)));
    owner.scripted.forget_rules();
    owner.server.catch_up().await;
    let (_, logs) = replay(&owner.scripted.contents(), &VOLUME);
    assert_eq!(owner.server.archiver.position().unwrap().seq, logs[0].slots);
}

/// An idle store makes no request, and a waiting client makes the next segment start at once.
#[tokio::test(start_paused = true)]
async fn idle_costs_nothing_and_waiting_hurries() {
    let change = |options| ArchiverOptions { linger: Duration::from_secs(600), ..options };
    let owner = Owner::start_with(archive(), disk(1 << 20), change).await;
    owner.server.opened().await;
    let first = owner.write().await;
    assert_eq!(owner.archived(), first, "the first write does not linger");
    let count = owner.scripted.arrivals().len();
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(owner.scripted.arrivals().len(), count);
    owner.write().await;
    let last = owner.write().await;
    assert!(owner.archived() < last, "the linger");
    let archiver = &owner.server.archiver;
    let wait = timeout(MOMENT, archiver.wait_archived(Lsn(last))).await;
    assert!(wait.is_err(), "nothing can be restored without a base");
    assert_eq!(owner.archived(), last);
    let mut record = archiver.status().record.unwrap();
    record.bases.push(crate::format::RecordBase {
        id: 5,
        version: Lsn(last),
        log: owner.log(),
        seq: archiver.position().unwrap().seq,
        parts: 1,
        end_crc: 0,
        bytes: 1,
        objects: 1,
        taken_ns: 1,
    });
    archiver.note_record(record);
    assert_eq!(owner.server.state(), ArchiverState::Shipping);
    assert_eq!(*archiver.needs_base().borrow(), None);
    let last = owner.server.store.put("b\0key", 10);
    timeout(MOMENT, archiver.wait_archived(Lsn(last))).await.unwrap();
    assert_eq!(owner.archived(), last);
}

/// A waiting client costs one segment, however long its request takes: the records after it linger.
#[tokio::test(start_paused = true)]
async fn waiting_client_costs_one_segment() {
    let change = |options| ArchiverOptions { linger: Duration::from_secs(600), ..options };
    let owner = Owner::start_with(archive(), disk(1 << 20), change).await;
    owner.server.opened().await;
    owner.write().await;
    owner.scripted.rule("create", owner.slot(2), Fate::Held);
    // A request without an answer is sent again.
    let slots = || {
        let arrivals = owner.scripted.arrivals().into_iter().map(|it| it.name);
        arrivals.filter(|name| name.starts_with("log/")).collect::<BTreeSet<String>>().len()
    };
    let before = slots();
    for _ in 0..5 {
        let last = owner.server.store.put("b\0key", 10);
        assert!(timeout(MOMENT, owner.server.archiver.wait_archived(Lsn(last))).await.is_err());
        for _ in 0..20 {
            owner.server.store.put("b\0key", 10);
            sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(slots() - before, 5, "a segment for each wait");
    owner.scripted.release();
    owner.server.catch_up().await;
}

/// Uploads are not archived: a delete takes the number of each of their records. The completed object has its value.
#[tokio::test(start_paused = true)]
async fn uploads_are_deletes_and_the_completed_object_has_its_value() {
    let owner = Owner::start(archive(), disk(1 << 20)).await;
    owner.server.opened().await;
    let value = |bytes| Some(Bytes::from(vec![7; bytes]));
    owner.server.store.write(vec![
        (b"\xFDb\0key\0u".to_vec(), value(20), true),
        (b"\xFCb\0part1".to_vec(), value(5_000), false),
    ]);
    let last = owner
        .server
        .store
        .write(vec![(b"\xFCb\0part1".to_vec(), None, true), (b"b\0key".to_vec(), value(5_000), false)]);
    owner.server.catch_up().await;
    let (_, logs) = replay(&owner.scripted.contents(), &VOLUME);
    let records = &logs[0].records;
    let values: Vec<_> = (last - 3..=last).map(|lsn| records[&lsn].value.as_ref().map(Bytes::len)).collect();
    assert_eq!(values, [None, None, None, Some(5_000)]);
    assert!(records[&(last - 3)].continues && !records[&(last - 2)].continues);
}

/// Pieces that were flushed without their record are cut off at the next start: the value is read again from its first byte.
#[tokio::test]
async fn spool_is_cut_after_the_last_whole_batch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spool");
    let limits = SpoolLimits { segment_bytes: 1 << 20, file_bytes: 1 << 30 };
    let mut whole = BatchWriter::new(Lsn(5), 1, 2);
    whole.push(&crate::format::tests::delete(b"b\0key", false));
    let mut pieces = BatchWriter::new(Lsn::NONE, 1, 2);
    pieces.push_piece(&ValuePiece { id: 6, index: 0, bytes: Bytes::from_static(b"piece") });
    let whole_bytes = {
        let spool = Arc::new(SpoolFile::open(&path, VOLUME).unwrap());
        let mut appender = spool.recover().await.unwrap();
        appender.push(whole.finish(), Lsn(4), None, limits).await.unwrap();
        appender.flush().await.unwrap();
        let bytes = spool.file_bytes();
        appender.push(pieces.finish(), Lsn(4), Some(Lsn(6)), limits).await.unwrap();
        appender.flush().await.unwrap();
        assert!(spool.file_bytes() > bytes && spool.last() == Lsn(5));
        bytes
    };
    let spool = Arc::new(SpoolFile::open(&path, VOLUME).unwrap());
    let _appender = spool.recover().await.unwrap();
    assert_eq!((spool.file_bytes(), spool.last(), spool.from()), (whole_bytes, Lsn(5), Some(Lsn(4))));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), whole_bytes);
}
