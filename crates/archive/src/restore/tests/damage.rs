//! Each kind of damage is an error that names the object.

use super::*;
use crate::format::{ArchiveName, LogSlot};

/// A history with one base and one log, whose slots have data.
fn simple() -> History {
    let mut history = History::new(4);
    for _ in 0..12 {
        history.put_alone();
    }
    history
}

fn slot(seq: u64) -> String {
    LogSlot { log: 7, seq }.to_string()
}

async fn error_of(store: &FaultStore) -> String {
    let error = restore(store, RestoreMoment::Newest).await.map(|_| ()).unwrap_err();
    let is_named = matches!(error, RestoreError::Missing { .. } | RestoreError::Format(_));
    assert!(is_named, "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn damaged_slots_are_named() {
    let history = simple();
    let spoiled = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let store = store_of(&history, 1, 0);
        let mut bytes = history.objects[name].to_vec();
        change(&mut bytes);
        store.plant(name, bytes.into());
        store
    };
    let last = history.objects[&slot(4)].len() - 1;
    for (case, store, why) in [
        ("a flipped bit", spoiled(&slot(4), &|bytes| bytes[last] ^= 1), "checksum of the batch is wrong"),
        ("a header", spoiled(&slot(4), &|bytes| bytes[70] ^= 1), "checksum is wrong"),
        ("a cut slot", spoiled(&slot(4), &|bytes| bytes.truncate(last)), "length is not that of the object"),
        ("a short slot", spoiled(&slot(4), &|bytes| bytes.truncate(20)), "cut off"),
        (
            "another slot",
            spoiled(&slot(4), &|bytes| *bytes = history.objects[&slot(5)].to_vec()),
            "log or slot differ",
        ),
        ("an empty slot", spoiled(&slot(4), &|bytes| bytes.clear()), "in the middle of a field"),
    ] {
        let error = error_of(&store).await;
        assert!(error.starts_with(&slot(4)) && error.contains(why), "{case}: {error}");
    }
    // Another history of the same log.
    let other = simple_of(&history);
    let store = spoiled(&slot(4), &|bytes| *bytes = other.clone());
    let error = error_of(&store).await;
    assert!(error.starts_with(&slot(4)) && error.contains("does not continue the slot before it"), "{error}");
}

/// A whole slot 4 that follows another slot 3.
fn simple_of(history: &History) -> Vec<u8> {
    let header = crate::format::SegmentHeader::decode(
        &history.objects[&slot(4)][..128],
        &history.record.volume,
        LogSlot { log: 7, seq: 4 },
    )
    .unwrap();
    crate::format::SegmentStart {
        volume: header.volume,
        slot: header.slot,
        epoch: header.epoch,
        chain: header.chain ^ 1,
        nonce: 9,
        flags: header.flags,
        end: header.end,
    }
    .heartbeat(5)
}

#[tokio::test]
async fn missing_slots_are_named() {
    // A log with an end, and an open one that has slots at a distance that shows the deletion.
    let mut history = simple();
    let store = store_of(&history, 1, 0);
    store.remove(&slot(3));
    let error = error_of(&store).await;
    assert!(error.starts_with(&format!("{} is missing", slot(3))), "{error}");
    history.close();
    for seq in [1, 12] {
        let store = store_of(&history, 1, 0);
        store.remove(&slot(seq));
        let error = error_of(&store).await;
        assert!(error.starts_with(&format!("{} is missing", slot(seq))), "{error}");
    }
    // Of an open log the last slots may be on their way.
    let open = simple();
    let store = store_of(&open, 1, 0);
    store.remove(&slot(12));
    let (_, state) = restore(&store, RestoreMoment::Newest).await.unwrap();
    assert_eq!(state.version, Lsn(11));
    // A tombstone below the end, and an end before the last number.
    let store = store_of(&history, 1, 0);
    let tombstone = crate::format::Tombstone {
        volume: history.record.volume,
        slot: LogSlot { log: 7, seq: 6 },
        sealer_epoch: 9,
        sealer_log: 9,
    };
    store.plant(&slot(6), tombstone.encode().into());
    assert!(error_of(&store).await.contains("a tombstone below the end"), "named");
    history.record.logs[0].end = Some(9);
    let error = error_of(&store_of(&history, 1, 0)).await;
    assert!(error.contains("names a later last number"), "{error}");
}

#[tokio::test]
async fn damaged_bases_are_named() {
    let mut history = simple();
    history.base();
    let base = *history.record.bases.last().unwrap();
    let (part, end) = (ArchiveName::Part { base: base.id, part: 1 }, ArchiveName::BaseEnd { base: base.id });
    let (part, end) = (part.to_string(), end.to_string());
    assert!(base.parts > 2, "a base of some parts: {}", base.parts);
    let spoiled = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let store = store_of(&history, 1, 0);
        let mut bytes = history.objects[name].to_vec();
        change(&mut bytes);
        store.plant(name, bytes.into());
        store
    };
    for (store, name, why) in [
        (spoiled(&part, &|bytes| bytes[40] ^= 1), &part, "its checksum is not that"),
        (spoiled(&part, &|bytes| bytes.truncate(30)), &part, "its length is not that"),
        (spoiled(&part, &|bytes| bytes.push(0)), &part, "its length is not that"),
        (spoiled(&end, &|bytes| bytes[20] ^= 1), &end, "checksum is wrong"),
    ] {
        let error = error_of(&store).await;
        assert!(error.starts_with(name.as_str()) && error.contains(why), "{error}");
    }
    for name in [&part, &end] {
        let store = store_of(&history, 1, 0);
        store.remove(name);
        assert!(error_of(&store).await.starts_with(&format!("{name} is missing")), "{name}");
    }
    // A base with fewer parts whose list is right: its last frame is missing.
    let parts: Vec<_> = (0..base.parts - 1)
        .map(|part| {
            let name = ArchiveName::Part { base: base.id, part }.to_string();
            BasePart::of(&history.objects[&name])
        })
        .collect();
    let list = crate::format::BaseEnd { parts }.encode();
    let its = history.record.bases.last_mut().unwrap();
    (its.parts, its.end_crc) = (base.parts - 1, crate::format::BaseEnd::crc_of(&list));
    history.objects.insert(end, list.into());
    let error = error_of(&store_of(&history, 1, 0)).await;
    assert!(error.contains("cut off") || error.contains("ends before its last frame"), "{error}");
    // The record has another version of the base.
    let its = history.record.bases.last_mut().unwrap();
    its.version = its.version.next();
    history.record.bases.remove(0);
    assert!(error_of(&store_of(&history, 1, 0)).await.contains("no base of this volume"), "named");
}

#[tokio::test]
async fn a_record_that_is_damaged_is_named() {
    let store = store_of(&simple(), 1, 0);
    store.plant("record", Bytes::from_static(b"SHrc is not at the start"));
    let error = restore(&store, RestoreMoment::Newest).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("record is damaged"), "{error}");
}
