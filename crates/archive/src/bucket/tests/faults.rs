//! Two writers and a reader over a store with every kind of fault: no outcome is wrong, and no damage is read as good.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use shoal_base::{Entropy, Lsn, SeededEntropy};
use shoal_testkit::bytes::random;
use tokio::time::sleep;

use super::over;
use crate::bucket::fault::{FAULTS, FaultStore, Latency};
use crate::bucket::*;
use crate::format::*;

const VOLUME: VolumeId = [3; 16];
const LOG: u64 = 77;

fn segment(seq: u64, nonce: u64) -> Bytes {
    let start = SegmentStart {
        volume: VOLUME,
        slot: LogSlot { log: LOG, seq },
        epoch: 1,
        chain: 5,
        nonce,
        flags: SegmentFlags::default(),
        end: LogEnd::default(),
    };
    let mut batch = BatchWriter::new(Lsn::NONE, 1, 2);
    batch.push_piece(&ValuePiece { id: seq, index: 0, bytes: random(500, nonce).into() });
    let mut writer = SegmentWriter::new(start);
    writer.push(batch);
    writer.finish().into()
}

fn tombstone(seq: u64) -> Bytes {
    let slot = LogSlot { log: LOG, seq };
    Tombstone { volume: VOLUME, slot, sealer_epoch: 2, sealer_log: 78 }.encode().into()
}

fn record(revision: u64, nonce: u64) -> Bytes {
    let record = ArchiveRecord {
        flags: RecordFlags::default(),
        volume: VOLUME,
        revision,
        nonce,
        epoch: 1,
        owner: None,
        building: 0,
        oldest_lsn: Lsn(1),
        oldest_ns: 1,
        tablets: 1,
        window: 8,
        lease_ms: 9_000,
        logs: Vec::new(),
        bases: Vec::new(),
        pins: Vec::new(),
        owner_name: OwnerName::default(),
    };
    record.encode().unwrap().into()
}

/// Owner and claimant create the same slot: at most one of them has it, and the store has the winner's bytes.
async fn contend(
    store: &FaultStore,
    [owner, claimant]: [&ArchiveBucket; 2],
    seq: u64,
    nonce: u64,
) -> Option<(String, Bytes)> {
    let name = ArchiveName::Slot(LogSlot { log: LOG, seq }).to_string();
    let (data, end) = (segment(seq, nonce), tombstone(seq));
    let (data_won, end_won) =
        tokio::join!(owner.create(&name, data.clone()), claimant.create(&name, end.clone()));
    let is_won = |outcome: &Result<CreateOutcome, BucketError>| outcome == &Ok(CreateOutcome::Created);
    match (is_won(&data_won), is_won(&end_won)) {
        // Somebody deleted the first one in time: nothing can be promised then.
        (true, true) if store.vanished().contains(&name) => None,
        (true, true) => panic!("both have slot {seq}"),
        (true, false) => Some((name, data)),
        (false, true) => Some((name, end)),
        (false, false) => None,
    }
}

/// Reads a slot: the result is the written bytes, or an error that names it.
async fn read(reader: &ArchiveBucket, name: &str, expected: &Bytes) -> bool {
    let Ok(Some(found)) = reader.get(name).await else { return false };
    let Some(ArchiveName::Slot(slot)) = ArchiveName::parse(name) else { panic!("{name}") };
    let good = match expected.len() {
        TOMBSTONE_BYTES => Tombstone::decode(&found.bytes, &VOLUME, slot).map(drop),
        _ => ArchiveSegment::decode(&found.bytes, &VOLUME, slot).map(drop),
    };
    match good {
        Ok(()) => assert!(found.bytes == *expected, "damage of {name} was read as good"),
        Err(error) => {
            assert!(error.to_string().starts_with(name), "{error}");
            assert!(found.bytes != *expected, "{error}");
        }
    }
    true
}

/// One more revision of the record; its number if it was certainly written.
async fn swap(writer: &ArchiveBucket, nonce: u64) -> Option<u64> {
    let found = writer.get("record").await.ok()??;
    let revision = ArchiveRecord::decode(&found.bytes).ok()?.revision + 1;
    match writer.cas("record", record(revision, nonce), &found.tag).await {
        Ok(CasOutcome::Done(_)) => Some(revision),
        _ => None,
    }
}

async fn run(seed: u64, latency: Latency, rounds: u64) -> FaultStore {
    let store = FaultStore::new(seed, 60, latency);
    let [owner, claimant, reader] = [1, 2, 3].map(|at| over(&store, seed + at));
    let dice = SeededEntropy::new(seed);
    let (mut won, mut read_count, mut swaps) = (BTreeMap::new(), 0, Vec::new());
    let _ = owner.create("record", record(0, 1)).await;
    for seq in 1..=rounds {
        if let Some((name, bytes)) = contend(&store, [&owner, &claimant], seq, dice.next_u64()).await {
            won.insert(name, bytes);
        }
        let [one, other] = [dice.next_u64(), dice.next_u64()];
        let both = tokio::join!(swap(&owner, one), swap(&claimant, other));
        swaps.extend([both.0, both.1].into_iter().flatten());
        let which = dice.below(won.len() as u64) as usize;
        if let Some((name, bytes)) = won.iter().nth(which) {
            read_count += usize::from(read(&reader, name, bytes).await);
        }
        let _ = reader.list("log", |_| {}).await;
        if seq % 10 == 0 {
            let _ = claimant.delete(&format!("run/{seq}")).await;
        }
    }
    // All late requests have taken effect.
    sleep(Duration::from_secs(120)).await;
    let (contents, vanished) = (store.contents(), store.vanished());
    for (name, bytes) in won.iter().filter(|(name, _)| !vanished.contains(name)) {
        assert_eq!(contents.get(name), Some(bytes), "{name} of its winner");
    }
    assert!(won.len() as u64 > rounds / 4, "{} of {rounds} slots have a winner", won.len());
    assert!(read_count as u64 > rounds / 5, "{read_count} reads");
    if !vanished.iter().any(|name| name == "record") {
        let count = swaps.len();
        swaps.sort_unstable();
        swaps.dedup();
        assert_eq!(swaps.len(), count, "a revision was written twice");
    }
    store
}

#[tokio::test(start_paused = true)]
async fn no_outcome_is_wrong_under_any_fault() {
    let mut total: BTreeMap<_, u64> = FAULTS.iter().map(|fault| (*fault, 0)).collect();
    for seed in 0..12 {
        let latency = if seed % 2 == 0 { Latency::S3 } else { Latency::NEAR };
        for (fault, count) in run(seed, latency, 150).await.counts() {
            *total.entry(fault).or_default() += count;
        }
    }
    for (fault, count) in &total {
        println!("{fault:?}: {count}");
    }
    assert_eq!(total.len(), FAULTS.len());
    let missing: Vec<_> = total.iter().filter(|(_, count)| **count == 0).collect();
    assert!(missing.is_empty(), "never injected: {missing:?}");
}

/// Requests take the times of the named stores on the virtual clock.
#[tokio::test(start_paused = true)]
async fn requests_take_the_times_of_the_store() {
    for (latency, [p50, p99]) in
        [(Latency::S3, [100, 195]), (Latency::NEAR, [8, 16]), (Latency::None, [0, 0])]
    {
        let bucket = over(&FaultStore::new(9, 0, latency), 9);
        let mut times = Vec::new();
        for at in 0..2_000 {
            let start = tokio::time::Instant::now();
            bucket.delete(&format!("log/a/{at}")).await.unwrap();
            times.push(start.elapsed().as_millis() as u64);
        }
        times.sort_unstable();
        // The clock has a resolution of 1 ms.
        assert!(times[1_000].abs_diff(p50) <= p50 / 20 + 1, "{latency:?}: {}", times[1_000]);
        assert!(times[1_980].abs_diff(p99) <= p99 / 20 + 1, "{latency:?}: {}", times[1_980]);
    }
}
