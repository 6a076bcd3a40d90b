//! Snapshots: all of a store at one version, under concurrent writes, applies, compactions and moves (INV-36).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use shoal_base::ManualClock;
use shoal_device::{Device, MemDevice};
use shoal_device_sim::SimDevice;
use shoal_engine::{
    ByteRange, Error, Expiry, ListRequest, Metadata, ObjectKey, OpenOptions, PutOptions, ReadLevel,
    RejectRules, Snapshot, SnapshotPlace, Store, Tuning, block_on,
};
use shoal_testkit::Value;
use shoal_testkit::lab;
use shoal_testkit::wait::within;

use crate::common::{
    assert_clean, change_to, environment, format, format_as, key, memory, open, open_at, open_in_real_time,
    tiny, transact,
};

/// Bytes of values of every kind: in leaves, in packed runs, in extents, with a manifest.
const SIZES: [usize; 8] = [0, 60, 700, 1_500, 5_000, 12_288, 40_000, 300_000];

/// The contents of a store: version, and the seed and the length of the value.
type Contents = BTreeMap<ObjectKey, (u64, u64, usize)>;

fn name(bucket: u8, which: u8) -> ObjectKey {
    ObjectKey::new(["alpha", "beta"][usize::from(bucket) % 2], &[b'k', which, 0, 0xFF]).unwrap()
}

fn bytes_of(seed: u64, bytes: usize) -> Vec<u8> {
    Value { key: 1, seed, bytes }.to_vec()
}

/// Checks that the snapshot holds exactly `expected`: by iteration, listing, get and head.
fn holds(snapshot: &Snapshot, expected: &Contents) -> Result<(), String> {
    block_on(async {
        let mut found = Contents::new();
        let (mut place, mut pages) = (Some(SnapshotPlace::default()), 0);
        let mut last: Option<ObjectKey> = None;
        while let Some(at) = place {
            let page = snapshot.objects(&at, 3).await.map_err(|error| format!("iterating: {error}"))?;
            if !page.damaged.is_empty() {
                return Err(format!("damage: {:?}", page.damaged));
            }
            for (key, info) in page.objects {
                if last.as_ref() >= Some(&key) {
                    return Err(format!("{key} comes after {last:?}"));
                }
                let (_, seed, bytes) = *expected.get(&key).ok_or(format!("{key} is too many"))?;
                let object =
                    snapshot.get(&key, ByteRange::ALL).await.map_err(|error| format!("{key}: {error}"))?;
                let object = object.ok_or(format!("{key} is listed and not there"))?;
                if object.value.to_vec() != bytes_of(seed, bytes) || object.info != info {
                    return Err(format!("{key}: other bytes, or {:?} instead of {info:?}", object.info));
                }
                let once = snapshot
                    .get_once(&key, ByteRange::ALL)
                    .await
                    .map_err(|error| format!("{key}: {error}"))?;
                if once.is_none_or(|once| once.info != info || once.value.to_vec() != object.value.to_vec()) {
                    return Err(format!("{key}: another object where it is read once"));
                }
                let head = snapshot.head(&key).await.map_err(|error| error.to_string())?;
                if head.as_ref() != Some(&info) || info.version > snapshot.version() {
                    return Err(format!("{key}: head {head:?}, listed {info:?}, of {snapshot:?}"));
                }
                found.insert(key.clone(), (info.version.0, seed, bytes));
                last = Some(key);
            }
            (place, pages) = (page.next, pages + 1);
            if pages > 10_000 {
                return Err("the iteration does not end".into());
            }
        }
        if found != *expected {
            return Err(format!("found {found:?} instead of {expected:?}"));
        }
        for bucket in ["alpha", "beta"] {
            let mut request = ListRequest { bucket: bucket.into(), limit: 4, ..ListRequest::default() };
            let mut listed = Vec::new();
            loop {
                let page = snapshot.list(&request).await.map_err(|error| error.to_string())?;
                listed.extend(page.entries.into_iter().map(|(key, info)| (key, info.version.0)));
                let Some(next) = page.next else { break };
                request.start_after = next;
            }
            let of_bucket = expected.iter().filter(|(key, _)| key.bucket() == bucket);
            let right: Vec<_> = of_bucket.map(|(key, held)| (key.key().to_vec(), held.0)).collect();
            if listed != right {
                return Err(format!("{bucket} lists {listed:?} instead of {right:?}"));
            }
        }
        Ok(())
    })
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, usize),
    Delete(u8, u8),
    Move,
    Take,
    Look(usize),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..2u8, 0..24u8, 0..SIZES.len()).prop_map(|(bucket, which, size)| Step::Put(bucket, which, size)),
        4 => (0..2u8, 0..24u8).prop_map(|(bucket, which)| Step::Delete(bucket, which)),
        2 => Just(Step::Move),
        2 => Just(Step::Take),
        2 => any::<usize>().prop_map(Step::Look),
        1 => any::<usize>().prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..160)
}

/// Snapshots keep the state of the store from the time they were taken.
fn run(steps: &[Step]) -> Result<(), String> {
    let device = memory(8_192);
    let clock = Arc::new(ManualClock::new(1_000));
    let options = OpenOptions {
        cache_bytes: 2 << 20,
        tuning: Tuning { reserve_permille: 500, snapshot_max_age_ns: u64::MAX, ..tiny().tuning },
        ..tiny()
    };
    let store = open_at(&device, options, &clock).unwrap();
    let mut now = Contents::new();
    let mut taken: Vec<(Snapshot, Contents)> = Vec::new();
    for (seed, step) in (0..).zip(steps) {
        match *step {
            Step::Put(bucket, which, size) => {
                let (key, bytes) = (name(bucket, which), SIZES[size]);
                let put = block_on(store.put(&key, bytes_of(seed, bytes).into(), PutOptions::default()));
                now.insert(key, (put.map_err(|error| error.to_string())?.version.0, seed, bytes));
            }
            Step::Delete(bucket, which) => {
                block_on(store.delete(&name(bucket, which), RejectRules::default())).unwrap();
                now.remove(&name(bucket, which));
            }
            Step::Move => {
                clock.advance(100_000_000_000);
                block_on(store.move_step()).unwrap();
            }
            Step::Take if taken.len() < 4 => {
                taken.push((block_on(store.snapshot()).unwrap(), now.clone()));
            }
            Step::Look(at) if !taken.is_empty() => {
                let (snapshot, held) = &taken[at % taken.len()];
                holds(snapshot, held)?;
            }
            Step::Drop(at) if !taken.is_empty() => drop(taken.swap_remove(at % taken.len())),
            Step::Take | Step::Look(_) | Step::Drop(_) => {}
        }
    }
    taken.iter().try_for_each(|(snapshot, held)| holds(snapshot, held))?;
    let last = block_on(store.snapshot()).unwrap();
    holds(&last, &now)?;
    drop((taken, last));
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "after snapshots");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: lab::number("SNAPSHOTS", 24) as u32, ..ProptestConfig::default() })]

    #[test]
    fn a_snapshot_is_the_store_of_its_version(steps in steps()) {
        run(&steps).map_err(TestCaseError::fail)?;
    }
}

/// Everything is overwritten many times over: otherwise the blocks that the snapshot reaches would be reused.
#[test]
fn blocks_that_a_snapshot_reaches_are_not_reused() {
    let mut all: Vec<Step> = (0..24).map(|which| Step::Put(which, which, usize::from(which) % 8)).collect();
    all.push(Step::Take);
    for round in 0..12 {
        all.extend((0..24).map(|which| Step::Put(which, which, usize::from(which + round) % 8)));
        all.push(Step::Look(0));
    }
    run(&all).unwrap();
}

/// Stops the writers when it is dropped.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Pairs of keys in different tablets are written in one write batch: a snapshot has both or none, and all writes up to its version and
/// none above.
#[test]
fn a_snapshot_under_load_is_of_one_version() {
    within("a snapshot under load", || {
        let device = Device::new(Arc::new(MemDevice::new(16_384)));
        let layout =
            shoal_engine::FormatOptions { log_blocks: Some(1_024), ..crate::common::tiny_format(16_384) };
        format_as(&device, &layout, 1);
        // Writers find room while the memtables are frozen.
        let tuning = Tuning { memtable_records_max: 10_000, ..tiny().tuning };
        let options =
            OpenOptions { background: true, cache_bytes: 4 << 20, memtable_bytes: None, tuning, ..tiny() };
        let store = open_in_real_time(&device, options);
        let pair = |which: u8| [key([b'a', which]), key([b'b', which, 1])];
        let stop = AtomicBool::new(false);
        let acknowledged: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for which in 0..8u8 {
                let (store, stop, acknowledged) = (&store, &stop, &acknowledged[usize::from(which)]);
                scope.spawn(move || {
                    for count in 1.. {
                        let keys = pair(which).map(|key| (key, ReadLevel::Nothing));
                        let value = bytes_of(count, SIZES[count as usize % 5]);
                        let updated = block_on(transact(store, &keys, |_| {
                            (vec![change_to(value.clone()), change_to(value.clone())], ())
                        }));
                        updated.unwrap();
                        acknowledged.store(count, Ordering::Release);
                        if stop.load(Ordering::Acquire) {
                            return;
                        }
                    }
                });
            }
            // Also if an assertion fails: the writers stop, and so the scope finishes.
            let _stopping = Stopping(&stop);
            for _ in 0..lab::number("SNAPSHOTS", 24) {
                let before: Vec<u64> =
                    acknowledged.iter().map(|count| count.load(Ordering::Acquire)).collect();
                let snapshot = block_on(store.snapshot()).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                for which in 0..8u8 {
                    let [one, other] =
                        pair(which).map(|key| block_on(snapshot.get(&key, ByteRange::ALL)).unwrap());
                    let (Some(one), Some(other)) = (&one, &other) else {
                        assert!(one.is_none() && other.is_none(), "half a write batch");
                        assert_eq!(before[usize::from(which)], 0, "an acknowledged write is missing");
                        continue;
                    };
                    assert_eq!(one.info.version.0 + 1, other.info.version.0, "of two write batches");
                    assert_eq!(one.value.to_vec(), other.value.to_vec());
                    assert!(other.info.version <= snapshot.version());
                }
            }
        });
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "after load");
    });
}

fn fill(store: &Store, count: u8, bytes: usize) -> Contents {
    let put = |which: u8| {
        let key = name(which, which);
        let value = bytes_of(u64::from(which), bytes).into();
        let put = block_on(store.put(&key, value, PutOptions::default())).unwrap();
        (key, (put.version.0, u64::from(which), bytes))
    };
    (0..count).map(put).collect()
}

/// A crash with a snapshot held loses no data and no space: the blocks that the snapshot held are free after the restart.
#[test]
fn a_crash_with_a_snapshot_held() {
    for seed in 0..2 {
        let formatted = SimDevice::new(4_096);
        format(&Device::new(formatted.clone()), 4_096, seed);
        let sim = SimDevice::from_image(formatted.image());
        let device = Device::new(sim.clone());
        let store = open(&device, tiny()).unwrap();
        fill(&store, 30, 6_000);
        let snapshot = block_on(store.snapshot()).unwrap();
        let second = fill(&store, 30, 5_000);
        let third = fill(&store, 15, 5_000);
        assert_eq!(snapshot.store().snapshots_held(), 1);
        sim.mark(1);
        let mut expected = second;
        expected.extend(third);
        let states = lab::number("SNAPSHOTS", 24) as usize;
        sim.history().for_each_crash_state(states, seed, |point, image| {
            let device = Device::new(SimDevice::from_image(image));
            let Ok(true) = block_on(Store::probe(&device)) else { return };
            assert_clean(&device, "after the crash");
            let again = open(&device, tiny()).unwrap();
            assert_eq!(again.stat().pending_blocks, 0);
            if point.marks == [1] {
                holds(&block_on(again.snapshot()).unwrap(), &expected).unwrap();
            }
        });
    }
}

/// A snapshot gives way if the store would be full because of it, and reports that; writes are not refused.
#[test]
fn a_full_store_drops_its_snapshot() {
    let device = memory(2_048);
    let store = open(&device, tiny()).unwrap();
    fill(&store, 20, 100_000);
    let snapshot = block_on(store.snapshot()).unwrap();
    let version = snapshot.version();
    let mut was_dropped_at = None;
    for round in 0..12 {
        let held = fill(&store, 20, 100_000 + round);
        match block_on(snapshot.get(&name(1, 1), ByteRange::ALL)) {
            Ok(object) => assert_eq!(object.unwrap().value.len(), 100_000, "round {round}"),
            Err(Error::SnapshotDropped { version: of, why }) => {
                assert_eq!(of, version);
                assert!(why.contains("tenth") || why.contains("no room"), "{why}");
                was_dropped_at.get_or_insert(round);
            }
            Err(error) => panic!("round {round}: {error}"),
        }
        if was_dropped_at.is_some() {
            assert!(matches!(
                block_on(snapshot.objects(&SnapshotPlace::default(), 1)),
                Err(Error::SnapshotDropped { .. })
            ));
            assert_eq!(store.snapshots_held(), 0);
        }
        holds(&block_on(store.snapshot()).unwrap(), &held).unwrap();
    }
    assert!(was_dropped_at.is_some_and(|round| round > 0), "{was_dropped_at:?}");
    drop(snapshot);
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "a store that was full");
}

#[test]
fn a_snapshot_has_an_age() {
    let device = memory(4_096);
    let clock = Arc::new(ManualClock::new(1_000));
    let options = OpenOptions { tuning: Tuning { snapshot_max_age_ns: 1_000, ..tiny().tuning }, ..tiny() };
    let store = open_at(&device, options, &clock).unwrap();
    let held = fill(&store, 4, 600);
    let snapshot = block_on(store.snapshot()).unwrap();
    clock.advance(1_000);
    fill(&store, 16, 600);
    holds(&snapshot, &held).unwrap();
    clock.advance(1);
    fill(&store, 16, 600);
    let error = block_on(snapshot.head(&name(0, 0))).unwrap_err();
    assert!(error.to_string().contains("longer than snapshots may be"), "{error}");
}

/// An expired object is not in a snapshot; an object that expires later stays, with its deadline unchanged.
#[test]
fn an_object_that_expires_later_stays_in_a_snapshot() {
    let device = memory(4_096);
    let clock = Arc::new(ManualClock::new(1_000_000_000_000));
    let store = open_at(&device, tiny(), &clock).unwrap();
    let put = |which, expiry| {
        let metadata = Metadata { content_type: "text/x".into(), ..Metadata::default() };
        let options = PutOptions { expiry, metadata, modified_ns: Some(5), ..PutOptions::default() };
        block_on(store.put(&name(0, which), bytes_of(1, 10).into(), options)).unwrap();
    };
    put(0, Expiry::After(Duration::from_secs(10)));
    put(1, Expiry::After(Duration::from_secs(100)));
    put(2, Expiry::At(1_000_000_000_000 + 100_000_000_000));
    clock.advance(20_000_000_000);
    let snapshot = block_on(store.snapshot()).unwrap();
    clock.advance(1_000_000_000_000);
    assert!(block_on(store.head(&name(0, 1))).unwrap().is_none());
    block_on(store.delete(&name(0, 2), RejectRules::default())).unwrap();
    assert!(block_on(snapshot.head(&name(0, 0))).unwrap().is_none());
    for which in [1, 2] {
        let info = block_on(snapshot.head(&name(0, which))).unwrap().unwrap();
        let deadline = info.expiry.unwrap();
        assert_eq!((deadline.left_ns, deadline.is_relative()), (80_000_000_000, which == 1));
        assert_eq!(deadline.at_ns, 1_100_000_000_000);
        assert_eq!((info.modified_ns, &info.metadata.content_type[..]), (5, "text/x"));
    }
    let page = block_on(snapshot.objects(&SnapshotPlace::default(), 10)).unwrap();
    assert_eq!(page.objects.len(), 2);
}

/// A new store, a store that was opened read-only, and one that starts at a later version.
#[test]
fn snapshots_of_unusual_stores() {
    let sim = SimDevice::new(4_096);
    let device = Device::new(sim.clone());
    let first_version = (1 << 40) + 7;
    let options = shoal_engine::FormatOptions { first_version, ..crate::common::tiny_format(4_096) };
    format_as(&device, &options, 1);
    let store = open(&device, tiny()).unwrap();
    let empty = block_on(store.snapshot()).unwrap();
    holds(&empty, &Contents::new()).unwrap();
    let held = fill(&store, 20, 3_000);
    let least = held.values().map(|held| held.0).min().unwrap();
    assert!(least >= first_version && least < first_version + (1 << 30), "{least}");
    let expected = block_on(store.snapshot()).unwrap();
    assert!(expected.version() > empty.version());
    drop((empty, expected, store));
    // The records are in the log only, or in part.
    let store = crate::common::open_read_only(&sim.image(), tiny()).unwrap();
    holds(&block_on(store.snapshot()).unwrap(), &held).unwrap();
    let refused = shoal_engine::FormatOptions { first_version: 0, ..crate::common::tiny_format(4_096) };
    assert!(block_on(Store::format(&Device::new(SimDevice::new(4_096)), &refused, &environment(1))).is_err());
}

#[test]
fn snapshots_are_bounded() {
    let device = memory(4_096);
    let store = open(&device, tiny()).unwrap();
    let mut all: Vec<Snapshot> = (0..16).map(|_| block_on(store.snapshot()).unwrap()).collect();
    assert!(matches!(block_on(store.snapshot()), Err(Error::Busy(_))));
    all.pop();
    block_on(store.snapshot()).unwrap();
}

/// A value that is read once costs one read, with its metadata, and does not enter the cache; a cached value is taken from the cache.
#[test]
fn a_value_that_is_read_once_stays_out_of_the_cache() {
    let device = memory(4_096);
    let store = open(&device, tiny()).unwrap();
    let user = vec![("about".to_owned(), vec![7; 700].into())];
    let metadata = Metadata { user, ..Metadata::default() };
    let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
    block_on(store.put(&name(0, 1), bytes_of(1, 3_000).into(), options)).unwrap();
    block_on(store.close()).unwrap();
    drop(store);

    let store = open(&device, tiny()).unwrap();
    let snapshot = block_on(store.snapshot()).unwrap();
    assert!(block_on(snapshot.head(&name(0, 2))).unwrap().is_none());
    // The reads of the object, with its leaf in the cache.
    let reads = |once: bool, first: u64, bytes: u64| {
        let (key, range) = (name(0, 1), ByteRange { first, bytes: Some(bytes) });
        let before = device.counters().reads;
        let object = match once {
            true => block_on(snapshot.get_once(&key, range)),
            false => block_on(snapshot.get(&key, range)),
        };
        let object = object.unwrap().unwrap();
        assert_eq!(object.info.metadata, metadata);
        let expected = &bytes_of(1, 3_000)[first as usize..(first + bytes) as usize];
        assert!(object.value.to_vec() == expected, "{bytes} from {first}");
        device.counters().reads - before
    };
    assert_eq!(reads(true, 0, 3_000), 1);
    assert_eq!(reads(true, 0, 3_000), 1, "it is not in the cache");
    assert_eq!(reads(true, 0, 0), 1, "metadata alone");
    assert_eq!(reads(false, 0, 3_000), 1);
    assert_eq!(reads(true, 0, 3_000), 0, "it is in the cache");
    assert_eq!(reads(true, 900, 1_500), 0);
}
