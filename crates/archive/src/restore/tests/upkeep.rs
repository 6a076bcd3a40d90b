//! Verification, sweeps and the state of an archive.

use std::collections::BTreeMap;

use super::*;
use crate::format::{ArchiveName, LogSlot, Tombstone};
use crate::retain::{SweepReport, dead_objects, sweep};
use crate::status::status;
use crate::verify::{VerifyProgress, verify};

async fn open(store: &FaultStore) -> (Arc<ArchiveBucket>, RecordKeeper, ArchiveReader) {
    let bucket = Arc::new(store.bucket(5));
    let keeper = RecordKeeper::new(bucket.clone(), Arc::new(SeededEntropy::new(1)));
    let reader = ArchiveReader::open(bucket.clone(), &keeper).await.unwrap();
    (bucket, keeper, reader)
}

async fn problems(store: &FaultStore, full: bool) -> Vec<String> {
    let (_, _, reader) = open(store).await;
    let mut found = Vec::new();
    let progress = VerifyProgress::default();
    let count = verify(&reader, full, &progress, &mut |problem| found.push(problem)).await.unwrap();
    assert_eq!(count as usize, found.len());
    found
}

/// A history of two logs, the first of which has an end.
fn history() -> History {
    let mut history = History::new(11);
    for _ in 0..12 {
        history.put_alone();
    }
    history.base();
    history.next_log();
    for _ in 0..20 {
        history.put_alone();
    }
    history
}

#[tokio::test]
async fn verification_names_each_damaged_or_missing_object() {
    let history = history();
    for full in [false, true] {
        assert_eq!(problems(&store_of(&history, 1, 0), full).await, Vec::<String>::new());
    }
    let (first, second) = (&history.record.logs[0], &history.record.logs[1]);
    let slot = |log: u64, seq: u64| LogSlot { log, seq }.to_string();
    let base = history.record.bases.last().unwrap();
    let part = ArchiveName::Part { base: base.id, part: 1 }.to_string();
    let end = first.end.unwrap();
    for (name, start) in [
        (slot(first.id, 5), "is missing"),
        (slot(first.id, end - 1), "is missing"),
        (slot(second.id, 3), "is missing"),
        (slot(first.id, end), ", the tombstone of its log, is missing"),
        (part.clone(), "is missing"),
        (ArchiveName::BaseEnd { base: base.id }.to_string(), "is missing"),
    ] {
        let store = store_of(&history, 1, 0);
        store.remove(&name);
        for full in [false, true] {
            let found = problems(&store, full).await;
            let is_it = |problem: &String| problem.starts_with(&name) && problem.contains(start);
            assert!(found.len() == 1 && found.iter().all(is_it), "{name}: {found:?}");
        }
    }
    // The last bit of a slot and of a part: only a full verification reads them.
    for name in [slot(second.id, 4), part] {
        let store = store_of(&history, 1, 0);
        let mut bytes = history.objects[&name].to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        store.plant(&name, bytes.into());
        assert_eq!(problems(&store, false).await, Vec::<String>::new());
        let found = problems(&store, true).await;
        assert!(found.len() == 1 && found[0].starts_with(&name), "{name}: {found:?}");
    }
    let store = store_of(&history, 1, 0);
    store.plant(&slot(second.id, 4), history.objects[&slot(second.id, 5)].clone());
    let found = problems(&store, false).await;
    assert!(found[0].contains("log or slot differ"), "{found:?}");
}

#[tokio::test]
async fn a_sweep_deletes_the_dead_and_nothing_else() {
    let mut history = history();
    let first = history.record.logs[0];
    history.record.logs[0].first = 4;
    history.record.building = 77;
    let old = history.record.bases.remove(0);
    let kept = history.record.bases[0];
    history.record.logs[0].first = kept.seq.min(4);
    let store = store_of(&history, 1, 0);
    let tombstone = Tombstone {
        volume: history.record.volume,
        slot: LogSlot { log: 1234, seq: 2 },
        sealer_epoch: 9,
        sealer_log: 9,
    };
    let junk = Bytes::from_static(b"some bytes");
    let dead_slot = LogSlot { log: 1234, seq: 1 }.to_string();
    let behind = LogSlot { log: first.id, seq: first.end.unwrap() + 1 }.to_string();
    let building = ArchiveName::Part { base: 77, part: 0 }.to_string();
    store.plant(&LogSlot { log: 1234, seq: 2 }.to_string(), tombstone.encode().into());
    for name in [&dead_slot, &behind, &building, "run/00000001/00000002"] {
        store.plant(name, junk.clone());
    }
    let before: BTreeMap<String, Bytes> = store.contents();
    let (bucket, keeper, _) = open(&store).await;
    let (dead, report) = dead_objects(&bucket, &keeper, usize::MAX).await.unwrap();
    let mut expected = vec![dead_slot, behind];
    expected.extend((0..4).map(|seq| LogSlot { log: first.id, seq }.to_string()));
    expected.push(ArchiveName::BaseEnd { base: old.id }.to_string());
    expected.extend((0..old.parts).map(|part| ArchiveName::Part { base: old.id, part }.to_string()));
    expected.sort();
    let mut names: Vec<String> = dead.into_iter().map(|object| object.name).collect();
    names.sort();
    assert_eq!(names, expected);
    assert!(store.contents() == before, "nothing is deleted yet");
    let mut calls = 0;
    let swept = sweep(&bucket, &keeper, &mut |_| calls += 1).await.unwrap();
    assert_eq!(swept, SweepReport { deleted: expected.len() as u64, ..report });
    assert_eq!(calls, expected.len());
    let mut after = before;
    expected.iter().for_each(|name| drop(after.remove(name)));
    assert!(store.contents() == after);
    let (found, _) = restore(&store, RestoreMoment::Newest).await.unwrap();
    assert_eq!(found, history.state_at(|_| true).0);
    // Without a record nothing is known to be dead.
    store.remove("record");
    let refused = sweep(&bucket, &keeper, &mut |_| ()).await.unwrap_err().to_string();
    assert!(refused.contains("nothing is swept"), "{refused}");
    assert_eq!(store.contents().len(), after.len() - 1);
}

#[tokio::test]
async fn the_state_of_an_archive() {
    let mut history = history();
    let (_, _, reader) = open(&store_of(&history, 1, 0)).await;
    let found = status(&reader).await.unwrap();
    assert_eq!((found.newest.version, found.newest.wall_ns), (Lsn(32), history.wall_ns()));
    assert_eq!((found.slots_since_base, found.gaps.len()), (21 + history.slots_after_base(), 0));
    let bytes = history.bytes_after_base();
    assert!(found.bytes_since_base.abs_diff(bytes) < bytes / 4, "{} of {bytes}", found.bytes_since_base);
    history.lose_some();
    let (_, _, reader) = open(&store_of(&history, 1, 0)).await;
    let gaps = status(&reader).await.unwrap().gaps;
    assert_eq!(gaps.len(), 1);
    assert!(!gaps[0].is_bridged && gaps[0].last > Lsn(32), "{gaps:?}");
    history.base();
    let (_, _, reader) = open(&store_of(&history, 1, 0)).await;
    assert!(status(&reader).await.unwrap().gaps[0].is_bridged);
}
