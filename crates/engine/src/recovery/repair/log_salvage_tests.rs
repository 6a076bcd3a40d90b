//! Damages every batch of a log, one at a time, and compares the batches that a repair writes again with a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shoal_base::{ManualClock, Run, SeededEntropy, TabletId};
use shoal_common::options::Tuning;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_log::format::encode_record;
use shoal_value::Meta;
use smallvec::SmallVec;

use super::*;
use crate::testing::fixtures::{self, checked, device as device_of, environment, newest};
use crate::{ByteRange, CheckOptions, DeleteResult, Environment, OpenOptions, block_on, check};

/// Large enough that no apply starts by itself.
const BLOCKS: u64 = 2048;
const LOG_BLOCKS: u32 = 256;

fn open(device: &Device) -> Store {
    open_in(device, environment())
}

fn open_in(device: &Device, environment: Environment) -> Store {
    let tuning = Tuning { leaf_value_bytes_max: 100, ..Tuning::default() };
    let options = OpenOptions { cache_bytes: 512 << 10, background: false, tuning, ..OpenOptions::default() };
    fixtures::open_in(device, options, environment)
}

fn formatted() -> (Arc<SimDevice>, Device) {
    fixtures::formatted(BLOCKS, 2, LOG_BLOCKS)
}

fn ring(device: &Device) -> Ring {
    newest(device).layout.ring()
}

fn key(which: u32) -> ObjectKey {
    ObjectKey::new("default", format!("key-{which}").as_bytes()).unwrap()
}

fn value(seed: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32 * 7 + seed * 31) as u8).collect()
}

/// The changes of a write batch: a value for each object, or its deletion.
type WriteBatch = Vec<(u32, Option<Vec<u8>>)>;

fn perform(store: &Store, write_batch: &WriteBatch) {
    let keys: Vec<(ObjectKey, ReadLevel)> =
        write_batch.iter().map(|(which, _)| (key(*which), ReadLevel::Nothing)).collect();
    let changes: Vec<Change> = write_batch
        .iter()
        .map(|(_, value)| match value {
            Some(value) => Change::PutWith { value: value.clone().into(), options: Box::default() },
            None => Change::Delete,
        })
        .collect();
    let decide = |_: &[Option<crate::Object>]| Decision::Do(changes.clone().into(), ());
    let done = block_on(store.transact(&keys, &TransactOptions::default(), decide)).unwrap().done();
    block_on(done.durable()).unwrap();
}

/// The position of the next batch.
fn head(store: &Store) -> u64 {
    store.0.log.committer.place_of(Lsn(u64::MAX)).position
}

fn tablet(store: &Store, which: u32) -> TabletId {
    store.0.tablets.of(&key(which)).id
}

fn state(device: &Device) -> BTreeMap<u32, Vec<u8>> {
    let store = open(device);
    let object = |which| block_on(store.get(&key(which), ByteRange::ALL)).unwrap();
    let all = (0..12).filter_map(|which| Some((which, object(which)?.value.to_vec()))).collect();
    block_on(store.close()).unwrap();
    all
}

/// Single writes, pairs, renames and deletes over two tablets, values of every kind.
fn write_batches() -> Vec<WriteBatch> {
    let sizes = [20, 900, 60_000, 5_000, 70];
    let mut write_batches = Vec::new();
    for turn in 0..24_u32 {
        let some = |which: u32| (which % 9, Some(value(turn * 10 + which, sizes[(turn % 5) as usize])));
        write_batches.push(match turn % 6 {
            0 | 1 => vec![some(turn)],
            2 => vec![some(turn), some(turn + 4)],
            3 => vec![(turn % 9, None), some(turn + 1)],
            4 => vec![some(turn), some(turn + 2), some(turn + 3)],
            _ => vec![(turn % 9, None)],
        });
    }
    write_batches
}

/// Damages each batch, one at a time: only its contents are lost, no other object and no part of another write batch.
/// Before the batch `applied` one tablet is applied.
fn each_batch_damaged(applied: Option<usize>) {
    let (sim, device) = formatted();
    let store = open(&device);
    let write_batches = write_batches();
    let mut places = Vec::new();
    for (turn, write_batch) in write_batches.iter().enumerate() {
        if applied == Some(turn) {
            block_on(store.0.checkpointer.apply_tablet(&store.0.tablets.all()[0])).unwrap();
        }
        places.push(head(&store));
        perform(&store, write_batch);
    }
    let tablets: Vec<TabletId> = (0..12).map(|which| tablet(&store, which)).collect();
    let applies = store.0.counters.applies.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(applies, u64::from(applied.is_some()), "nothing was applied unasked");
    drop(store);
    let (image, ring) = (sim.image(), ring(&device));
    let mut again = 0;
    for lost in 0..write_batches.len() - 1 {
        let in_tree = |which: u32| {
            tablets[which as usize] == TabletId(0) && applied.is_some_and(|applied| lost < applied)
        };
        let mut expected = BTreeMap::new();
        for (turn, write_batch) in write_batches.iter().enumerate() {
            for (which, value) in write_batch.iter().filter(|(which, _)| turn != lost || in_tree(*which)) {
                expected.remove(which);
                expected.extend(value.clone().map(|value| (*which, value)));
            }
        }
        let (sim, device) = device_of(image.clone());
        sim.corrupt(ring.block(places[lost]), 90, 0x40);
        let report = checked(&device, true);
        let state = state(&device);
        let differs = (0..12).find(|which| state.get(which) != expected.get(which));
        assert_eq!(differs, None, "write batch {lost} is lost: {report:?}");
        if report.is_clean() {
            assert!(write_batches[lost].iter().all(|(which, _)| in_tree(*which)), "{lost}: nobody noticed");
            continue;
        }
        again += report.restored_count;
        let says = |words: &str| report.notes.iter().any(|note| note.contains(words));
        assert!(says("are lost: an object that was written there"), "write batch {lost}: {report:?}");
        assert!(!says("was left out") && !says("did not get to its end"), "write batch {lost}: {report:?}");
        let left = block_on(check(device, &CheckOptions::default())).unwrap();
        assert!(
            left.problem_count == 0 && !left.is_clean(),
            "it remembers what was lost: write batch {lost}: {left:?}"
        );
    }
    assert!(again > 100, "{again}");
}

/// A store that a crash left, with `count` batches of one put each in its log, and the places of the batches.
fn batches_of_one(count: u32) -> (Arc<SimDevice>, Device, Vec<u64>) {
    let (sim, device) = formatted();
    let store = open(&device);
    let mut places = Vec::new();
    for turn in 0..count {
        places.push(head(&store));
        perform(&store, &vec![(turn, Some(value(turn, 50)))]);
    }
    drop(store);
    (sim, device, places)
}

#[test]
fn each_batch_is_lost_alone() {
    each_batch_damaged(None);
}

#[test]
fn records_that_a_tree_has_already_are_not_done_again() {
    each_batch_damaged(Some(12));
}

/// With a second damage, the batches between the two are linked to nothing: only the batches after the later damage are
/// written again.
#[test]
fn salvage_uses_only_batches_linked_to_newest() {
    let (sim, device, places) = batches_of_one(6);
    for lost in [1, 3] {
        sim.corrupt(ring(&device).block(places[lost]), 90, 0x40);
    }
    let report = checked(&device, true);
    let expected = [0, 4, 5].map(|which| (which, value(which, 50)));
    assert_eq!(state(&device), BTreeMap::from(expected), "{report:?}");
    assert_eq!(report.restored, ["default/key-4", "default/key-5"]);
    assert!(report.notes.iter().any(|note| note.contains("records 2 to 4 are lost")), "{report:?}");
}

/// If one value cannot be read, no record of its write batch is written again, its objects are named, and older records
/// count.
#[test]
fn salvaged_batch_is_all_or_nothing() {
    let (sim, device) = formatted();
    let store = open(&device);
    perform(&store, &vec![(0, Some(value(0, 50)))]);
    let damaged = head(&store);
    perform(&store, &vec![(1, Some(value(1, 50)))]);
    perform(&store, &vec![(2, Some(value(2, 50))), (3, Some(value(3, 50)))]);
    let large = value(9, 60_000);
    perform(&store, &vec![(2, None), (3, Some(large.clone())), (4, Some(value(4, 50)))]);
    perform(&store, &vec![(5, Some(value(5, 50)))]);
    drop(store);
    let image = sim.image();
    let is_value = |block: &u64| image.block(*block)[..64] == large[..64];
    let block = (0..image.blocks()).find(is_value).expect("it has blocks of its own");
    let (sim, device) = device_of(image.clone());
    sim.corrupt(ring(&device).block(damaged), 90, 0x40);
    sim.corrupt(block, 2_000, 1);
    // The names of the omitted objects count as held memory, too.
    let (_, recovery) = read(&device);
    let found = block_on(crate::recovery::repair::tree_salvage::read_ring(&recovery));
    let salvage = block_on(read_log_salvage(&recovery, &found, usize::MAX));
    assert_eq!(salvage.bytes, 3 * 50 + 6 * key(0).encoded().len());
    let report = checked(&device, true);
    let expected = [0, 2, 3, 5].map(|which| (which, value(which, 50)));
    assert_eq!(state(&device), BTreeMap::from(expected), "{report:?}");
    let named: BTreeSet<&str> = report
        .notes
        .iter()
        .filter(|note| note.contains("was left out (its value cannot be read)"))
        .filter_map(|note| note.split(' ').nth(2))
        .collect();
    let names = ["default/key-2:", "default/key-3:", "default/key-4:"];
    assert_eq!(named, BTreeSet::from(names), "{report:?}");
}

/// A salvaged write keeps its outcome: a client that sends it again does not write twice (R17).
#[test]
fn salvaged_write_keeps_its_request_id() {
    let (sim, device) = formatted();
    // The outcome has a deadline, by the clock that the repair uses, too.
    let store = open_in(&device, Environment::default());
    let damaged = head(&store);
    perform(&store, &vec![(1, Some(value(1, 50)))]);
    let request_id = crate::RequestId { session: 77, sequence: 3 };
    let delete = |store: &Store| {
        let name = key(0);
        let write =
            crate::Write::delete(&name, crate::RejectRules::default()).with_request_id(Some(request_id));
        let (done, deleted) = block_on(store.write_durably(write))?;
        Ok::<_, crate::Error>(DeleteResult { deleted, version: done.version })
    };
    perform(&store, &vec![(0, Some(value(0, 50)))]);
    let first: DeleteResult = delete(&store).unwrap();
    perform(&store, &vec![(0, Some(value(5, 50)))]);
    drop(store);
    sim.corrupt(ring(&device).block(damaged), 90, 0x40);
    let report = checked(&device, true);
    assert!(!report.restored.iter().any(|name| name.contains("result")), "{report:?}");
    let store = open_in(&device, Environment::default());
    let again = delete(&store).unwrap();
    assert_eq!(again.deleted, first.deleted);
    let object = block_on(store.get(&key(0), ByteRange::ALL)).unwrap().expect("not deleted a second time");
    assert_eq!(object.value.to_vec(), value(5, 50));
}

/// The repair holds no more than memory allows, and the report has the place where that ended.
#[test]
fn records_beyond_memory_are_reported_lost() {
    let (sim, device) = formatted();
    let store = open(&device);
    let damaged = head(&store);
    for turn in 0..8 {
        perform(&store, &vec![(turn, Some(value(turn, 1_000)))]);
    }
    drop(store);
    sim.corrupt(ring(&device).block(damaged), 90, 0x40);
    let options = OpenOptions { accept_damaged_log: true, background: false, ..OpenOptions::default() };
    let salvage = block_on(async {
        let recovery = Recovery::read(device, &options).await.unwrap();
        let found = crate::recovery::repair::tree_salvage::read_ring(&recovery).await;
        read_log_salvage(&recovery, &found, 2_500).await
    });
    assert_eq!((salvage.write_batches.len(), salvage.is_full), (3, true));
    assert_eq!(salvage.lost, std::slice::from_ref(&(1..6)));
    let (_, device) = formatted();
    let store = open(&device);
    let mut report = CheckReport::default();
    block_on(store.do_again(salvage, &mut report)).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("the limit of memory")), "{report:?}");
    assert_eq!(report.restored_count, 3);
}

fn read(device: &Device) -> (OpenOptions, Recovery) {
    let options = OpenOptions { accept_damaged_log: true, background: false, ..OpenOptions::default() };
    let recovery = block_on(Recovery::read(device.clone(), &options)).unwrap();
    (options, recovery)
}

fn is_same(one: &Image, other: &Image) -> bool {
    one.blocks() == other.blocks() && (0..one.blocks()).all(|block| one.block(block) == other.block(block))
}

/// If memory cannot hold everything, nothing is written without the option for it.
#[test]
fn repair_that_would_lose_readable_data_writes_nothing() {
    let (sim, device) = formatted();
    let store = open(&device);
    let damaged = head(&store);
    for turn in 0..8 {
        perform(&store, &vec![(turn, Some(value(turn, 1_000)))]);
    }
    drop(store);
    sim.corrupt(ring(&device).block(damaged), 90, 0x40);
    let before = sim.image();
    let repair = |in_part| {
        let (open, recovery) = read(&device);
        let mut report = CheckReport::default();
        let options = CheckOptions { repair: true, in_part, ..CheckOptions::default() };
        let repair = crate::recovery::repair::repair_holding(
            2_500,
            device.clone(),
            recovery,
            open,
            &options,
            crate::recovery::repair::findings::Findings::default(),
            &mut report,
        );
        block_on(repair).unwrap();
        report
    };
    let report = repair(false);
    assert!(report.notes.iter().any(|note| note.contains("nothing was written")), "{report:?}");
    assert!(is_same(&sim.image(), &before));
    assert_eq!(repair(true).restored_count, 3);
}

/// Once the repair writes, the batches after the damage are in memory only: the warning comes before the first write.
#[test]
fn unrepeatable_repair_warns_before_writing() {
    let (sim, device) = formatted();
    let store = open(&device);
    let damaged = head(&store);
    for turn in 0..3 {
        perform(&store, &vec![(turn, Some(value(turn, 50)))]);
    }
    drop(store);
    sim.corrupt(ring(&device).block(damaged), 90, 0x40);
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    let before = sim.image();
    let before_writing = {
        let said = said.clone();
        move |text: &str| said.lock().unwrap().push((text.to_owned(), is_same(&sim.image(), &before)))
    };
    let options = CheckOptions {
        repair: true,
        before_writing: Some(Arc::new(before_writing)),
        ..CheckOptions::default()
    };
    assert_eq!(block_on(check(device.clone(), &options)).unwrap().restored_count, 2);
    assert_eq!(block_on(check(device, &options)).unwrap().problem_count, 0);
    let said = said.lock().unwrap();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].0.contains("only be repeated on an earlier copy") && said[0].1, "{said:?}");
}

/// Promised records after the newest whole batch are lost, too, and their numbers are named.
#[test]
fn promised_records_after_newest_batch_are_reported() {
    let (sim, device) = formatted();
    let store = open(&device);
    let mut places = Vec::new();
    for turn in 0..6 {
        places.push(head(&store));
        perform(&store, &vec![(turn, Some(value(turn, 50)))]);
    }
    block_on(store.0.checkpointer.publish(Publication::default())).unwrap();
    drop(store);
    for lost in [1, 5] {
        sim.corrupt(ring(&device).block(places[lost]), 90, 0x40);
    }
    let report = checked(&device, true);
    let expected = [0, 2, 3, 4].map(|which| (which, value(which, 50)));
    assert_eq!(state(&device), BTreeMap::from(expected), "{report:?}");
    for numbers in ["records 2 to 2 are lost", "records 6 to 6 are lost"] {
        assert!(report.notes.iter().any(|note| note.contains(numbers)), "{numbers}: {report:?}");
    }
}

/// The store was opened and not written since: the previous epoch is the newest that has batches.
#[test]
fn an_epoch_without_batches_hides_nothing() {
    let (sim, device, places) = batches_of_one(4);
    drop(open(&device));
    sim.corrupt(ring(&device).block(places[1]), 90, 0x40);
    let report = checked(&device, true);
    let expected = [0, 2, 3].map(|which| (which, value(which, 50)));
    assert_eq!(state(&device), BTreeMap::from(expected), "{report:?}");
    assert!(report.notes.iter().any(|note| note.contains("records 2 to 2 are lost")), "{report:?}");
}

/// With the newest superblock the log's current tail is lost: the log has continued more than a ring beyond the older
/// tail.
#[test]
fn batches_beyond_one_ring_after_tail_are_found() {
    let (sim, device) = formatted();
    let store = open(&device);
    for turn in 0.. {
        if head(&store) > u64::from(LOG_BLOCKS) + 8 {
            break;
        }
        perform(&store, &vec![(turn % 9, Some(value(turn, 9_000)))]);
        if turn % 8 == 7 {
            for tablet in store.0.tablets.all() {
                block_on(store.0.checkpointer.apply_tablet(tablet)).unwrap();
            }
        }
    }
    for tablet in store.0.tablets.all() {
        block_on(store.0.checkpointer.apply_tablet(tablet)).unwrap();
    }
    let damaged = head(&store);
    for turn in 0..3 {
        perform(&store, &vec![(turn, Some(value(turn, 50)))]);
    }
    drop(store);
    sim.corrupt(ring(&device).block(damaged), 90, 0x40);
    let (_, mut recovery) = read(&device);
    assert!(recovery.is_cut && recovery.log.head.position > u64::from(LOG_BLOCKS));
    recovery.superblock.log_tail.position = 0;
    let found = block_on(crate::recovery::repair::tree_salvage::read_ring(&recovery));
    let salvage = block_on(read_log_salvage(&recovery, &found, usize::MAX));
    assert_eq!(salvage.write_batches.len(), 2);
}

/// An object that a durable batch saw expired stays expired, even if the opening did not see that batch (R18).
#[test]
fn expiry_clock_is_salvaged_after_damage() {
    const LATE_NS: u64 = 1 << 62;
    let (sim, device) = formatted();
    let clock = Arc::new(ManualClock::new(1_000));
    let environment = Environment { clock: clock.clone(), entropy: Arc::new(SeededEntropy::new(5)) };
    let store = open_in(&device, environment);
    let damaged = head(&store);
    perform(&store, &vec![(1, Some(value(1, 50)))]);
    clock.advance(LATE_NS);
    perform(&store, &vec![(2, Some(value(2, 50)))]);
    drop(store);
    sim.corrupt(ring(&device).block(damaged), 90, 0x40);
    checked(&device, true);
    let (_, recovery) = read(&device);
    let clock = &recovery.superblock.clock;
    assert!(clock.store_ns >= LATE_NS, "{clock:?}");
    // The machine's clock, which the repair used, is behind the batch's clock.
    assert!(clock.marks.iter().any(|mark| mark.wall_ns >= LATE_NS), "{clock:?}");
}

#[test]
fn steps_are_taken_from_the_end() {
    let record = |which: u8, continues| {
        let encoded = encode_record(RecordKind::Delete, TabletId(0), &[which], &[], continues);
        (Lsn(u64::from(which)), encoded)
    };
    let mut records = vec![record(1, false), record(2, true), record(3, true), record(4, false)];
    let mut numbers =
        || Some(last_write_batch(&mut records)?.iter().map(|(lsn, _)| lsn.0).collect::<Vec<_>>());
    assert_eq!([numbers(), numbers(), numbers()], [Some(vec![2, 3, 4]), Some(vec![1]), None]);
}

/// Records that no writer makes, with valid checksums: their write batch is left out, and its other objects are named.
#[test]
fn invalid_record_is_skipped_with_reason() {
    let (_sim, device) = formatted();
    let (_, recovery) = read(&device);
    let delete = |tablet, key: &[u8]| encode_record(RecordKind::Delete, TabletId(tablet), key, &[], false);
    let huge = Entry {
        modified_ns: 1,
        end: None,
        value_bytes: VALUE_BYTES_SINGLE_MAX + 1,
        meta: Meta::Inline(SmallVec::new()),
        home: Home::Manifest { runs: SmallVec::from_slice(&[Run::new(900, 1)]), bytes: 100, checksum: 7 },
    };
    let mut body = Vec::new();
    huge.encode(&mut body);
    let huge = encode_record(RecordKind::Put, TabletId(0), key(3).encoded(), &[&body], false);
    let cut = encode_record(RecordKind::Put, TabletId(0), key(3).encoded(), &[&[9]], false);
    let cases = [
        (delete(9, key(3).encoded()), "it names a tablet that does not exist", vec![key(2)]),
        (delete(0, b"no bucket ends here"), "it names an object that cannot be", vec![key(2)]),
        (huge, "its value is larger than 4 MiB", vec![key(2), key(3)]),
        (cut, "its record cannot be understood", vec![key(2), key(3)]),
    ];
    for (record, expected, names) in cases {
        let mut salvage = LogSalvage::default();
        let write_batch = [(Lsn(5), delete(0, key(2).encoded())), (Lsn(6), record)];
        let mut decided = HashSet::new();
        block_on(salvage.add(&recovery, &write_batch, &mut decided));
        assert!(
            !salvage.has_write_batches() && decided.is_empty(),
            "{expected}: an older write batch may still have the keys"
        );
        assert!(salvage.left_out.iter().all(|(.., why)| *why == expected), "{:?}", salvage.left_out);
        let left_out: Vec<&[u8]> = salvage.left_out.iter().map(|(key, ..)| &key[..]).collect();
        assert!(names.iter().all(|name| left_out.contains(&name.encoded())), "{expected}: {left_out:?}");
    }
}

/// A batch that cannot be written is reported and does not stop the others; a read-only store stops all.
#[test]
fn failed_salvaged_batch_is_reported_and_next_continues() {
    let put = |which, bytes| {
        (key(which), Change::PutWith { value: vec![1; bytes].into(), options: Box::default() })
    };
    let both = || LogSalvage {
        // The newest first: two values that together are larger than the store, and a small one.
        write_batches: vec![vec![put(3, 50)], vec![put(1, 4 << 20), put(2, 4 << 20)]],
        ..LogSalvage::default()
    };
    let (_sim, device) = formatted();
    let store = open(&device);
    let mut report = CheckReport::default();
    block_on(store.do_again(both(), &mut report)).unwrap();
    assert_eq!(report.restored, ["default/key-3"]);
    let said = |which: u32| format!("repair: object default/key-{which}: not restored: the store is full");
    assert!([1, 2].iter().all(|&which| report.notes.iter().any(|note| note.starts_with(&said(which)))));
    assert!(block_on(store.get(&key(1), ByteRange::ALL)).unwrap().is_none(), "as a whole or not at all");

    store.0.log.poison.set("a test".into());
    let mut report = CheckReport::default();
    let ended = block_on(store.do_again(both(), &mut report));
    assert!(matches!(ended, Err(crate::Error::Poisoned(_))), "{ended:?}");
    assert_eq!((report.restored_count, report.notes.len()), (0, 2), "the first batch's objects: {report:?}");
}
