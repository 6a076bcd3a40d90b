//! Write batches of several keys (R22), and writes with a request id (R17): after every legal crash state a batch exists as a whole or not
//! at all, and a repetition has no further effect.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;

use shoal_base::ManualClock;
use shoal_buffer::Buffer;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{
    ByteRange, CheckOptions, Error, Object, ObjectKey, PutOptions, RESULT_LIFE_NS, RESULTS_KEPT, ReadLevel,
    RejectRules, RequestId, Store, Write, WriteBatch, block_on, check,
};
use shoal_testkit::bytes::name_of;
use shoal_testkit::wait::within;

use crate::common::{
    self, ByName, assert_clean, change_to as put, formatted, key, memory, open, open_at, short_batches, tiny,
    tiny_with_threads,
};

const BLOCKS: u64 = 320;
const KEYS: usize = 6;

/// The value that batch `number` stores under its keys: the lengths differ, so that all homes occur.
fn value(number: u64) -> Vec<u8> {
    let bytes = [20, 300, 1_500, 5_000][number as usize % 4];
    let mut value = number.to_le_bytes().to_vec();
    value.resize(bytes, number as u8);
    value
}

fn names() -> Vec<ObjectKey> {
    (0..KEYS).map(|number| key(name_of(number as u64))).collect()
}

/// Returns the number of the batch that wrote a key last.
fn number_of(store: &Store, key: &ObjectKey) -> Option<u64> {
    let object = block_on(store.get(key, ByteRange::ALL)).unwrap()?;
    let bytes = object.value.to_vec();
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, value(number), "a value that nobody wrote");
    Some(number)
}

/// The keys of a batch that reads nothing.
fn blind(keys: &[ObjectKey]) -> Vec<(ObjectKey, ReadLevel)> {
    keys.iter().map(|key| (key.clone(), ReadLevel::Nothing)).collect()
}

fn write_all(store: &Store, keys: &[ObjectKey], number: u64) {
    let decide = |_: &[Option<Object>]| (keys.iter().map(|_| put(value(number))).collect(), ());
    let done = block_on(common::transact(store, &blind(keys), decide)).unwrap();
    assert_eq!(done.pending.len(), 1);
    for pending in done.pending {
        block_on(pending.durable()).unwrap();
    }
}

fn recording() -> (Arc<SimDevice>, Store) {
    let sim = SimDevice::from_image(formatted(BLOCKS, 5).image());
    let store = open(&Device::new(sim.clone()), short_batches()).unwrap();
    sim.mark(0);
    (sim, store)
}

fn reopened(image: Image) -> (Device, Store) {
    let device = Device::new(SimDevice::from_image(image));
    let store = open(&device, tiny()).unwrap();
    (device, store)
}

/// After every crash all keys are of one batch, in any tablets and homes, and no acknowledged batch is lost.
#[test]
fn write_batches_are_all_or_nothing() {
    let (sim, store) = recording();
    let keys = names();
    let tablets: std::collections::BTreeSet<bool> = keys.iter().map(|key| key.slot() < 8192).collect();
    assert_eq!(tablets.len(), 2, "the keys lie in both tablets");
    for number in 1..=40 {
        write_all(&store, &keys, number);
        sim.mark(number);
        if number % 3 == 0 {
            let beside = key(b"beside");
            block_on(store.put(&beside, value(number).into(), PutOptions::default())).unwrap();
        }
    }
    drop(store);
    let mut states = 0;
    sim.history().for_each_crash_state(6, 5, |point, image| {
        let Some(&acknowledged) = point.marks.last() else { return };
        states += 1;
        let (device, store) = reopened(image);
        let numbers: Vec<Option<u64>> = keys.iter().map(|key| number_of(&store, key)).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] == pair[1]), "state {}: {numbers:?}", point.id);
        assert!(numbers[0].unwrap_or(0) >= acknowledged, "state {}: {numbers:?}", point.id);
        if states % 17 == 0 {
            write_all(&store, &keys, 100);
            drop(store);
            assert_clean(&device, &point.id.to_string());
        }
    });
    assert!(states > 500, "only {states} states were explored");
}

/// Eight threads move an amount between accounts in two tablets: the sum stays the same under any interleaving.
#[test]
fn write_batches_of_several_threads_do_not_lose_each_other() {
    for background in [false, true] {
        let device = memory(4_096);
        let mut options = tiny();
        options.background = background;
        options.tuning.memtable_records_max = 40;
        let store = open(&device, options.clone()).unwrap();
        let keys = names();
        let amount = |object: &Option<Object>| {
            let bytes = object.as_ref().unwrap().value.to_vec();
            i64::from_le_bytes(bytes.try_into().unwrap())
        };
        for key in &keys {
            let value = 1_000_i64.to_le_bytes().to_vec();
            block_on(store.put(key, value.into(), PutOptions::default())).unwrap();
        }
        thread::scope(|scope| {
            for number in 0..8 {
                let (store, keys) = (&store, &keys);
                scope.spawn(move || {
                    for round in 0..100 {
                        // Both orders of the same two keys occur: the locks are taken in the order of tablets.
                        let (from, to) = ((number + round) % KEYS, (number * 5 + round * 3 + 1) % KEYS);
                        if from == to {
                            continue;
                        }
                        let pair =
                            [(keys[from].clone(), ReadLevel::Value), (keys[to].clone(), ReadLevel::Value)];
                        let decide = |objects: &[Option<Object>]| {
                            let changes = vec![
                                put((amount(&objects[0]) - 1).to_le_bytes().to_vec()),
                                put((amount(&objects[1]) + 1).to_le_bytes().to_vec()),
                            ];
                            (changes, ())
                        };
                        let done = block_on(common::transact(store, &pair, decide)).unwrap();
                        if round % 7 == 0 {
                            for pending in done.pending {
                                block_on(pending.durable()).unwrap();
                            }
                        }
                    }
                });
            }
        });
        let sum = |store: &Store| -> i64 {
            keys.iter().map(|key| amount(&block_on(store.get(key, ByteRange::ALL)).unwrap())).sum()
        };
        // The last queued record is durable once a later write is.
        store.set(b"last", vec![1]).unwrap();
        assert_eq!(sum(&store), 1_000 * KEYS as i64);
        block_on(store.close()).unwrap();
        let store = open(&device, options).unwrap();
        assert_eq!(sum(&store), 1_000 * KEYS as i64);
        drop(store);
        assert_clean(&device, "after the transfers");
    }
}

/// A batch that is too large for the log is refused before it has any effect; large values do not count.
#[test]
fn a_write_batch_that_is_too_long_is_refused() {
    let device = memory(4_096);
    let store = open(&device, tiny()).unwrap();
    let many: Vec<ObjectKey> = (0..300).map(|number| key(format!("many-{number}").as_bytes())).collect();
    let decide = |_: &[Option<Object>]| (many.iter().map(|_| put(vec![7; 60])).collect(), ());
    let refused = block_on(common::transact(&store, &blind(&many), decide)).map(|_| ());
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(block_on(store.get(&many[0], ByteRange::ALL)).unwrap().is_none());
    let few = &many[..20];
    let decide = |_: &[Option<Object>]| (few.iter().map(|_| put(vec![7; 1_900])).collect(), ());
    let done = block_on(common::transact(&store, &blind(few), decide)).unwrap();
    for pending in done.pending {
        block_on(pending.durable()).unwrap();
    }
    assert_eq!(block_on(store.get(&few[19], ByteRange::ALL)).unwrap().unwrap().value.len(), 1_900);
    drop(store);
    assert_clean(&device, "after a large write batch");
}

/// Increments once; returns the count, and true if this call counted.
fn count_once(store: &Store, name: &ObjectKey, request_id: RequestId) -> shoal_engine::Result<(u64, bool)> {
    common::count_once(store, name, request_id, |count| count.to_le_bytes().to_vec())
}

/// A client that does not know the outcome of a write repeats it after the crash: it counts once in every state that the crash may leave.
#[test]
fn repeated_write_after_crash_is_applied_once() {
    let (sim, store) = recording();
    let name = key(b"counter");
    for sequence in 1..=40 {
        let request_id = RequestId { session: 9, sequence };
        assert_eq!(count_once(&store, &name, request_id).unwrap(), (sequence, true));
        sim.mark(sequence);
    }
    drop(store);
    let (mut states, mut repeated) = (0, 0);
    sim.history().for_each_crash_state(4, 7, |point, image| {
        let Some(&acknowledged) = point.marks.last() else { return };
        states += 1;
        let (device, store) = reopened(image);
        let next = RequestId { session: 9, sequence: acknowledged + 1 };
        let (count, now) = count_once(&store, &name, next).unwrap();
        assert_eq!(count, acknowledged + 1, "state {}", point.id);
        repeated += u32::from(!now);
        if acknowledged > 0 {
            let last = RequestId { session: 9, sequence: acknowledged };
            assert_eq!(count_once(&store, &name, last).unwrap(), (acknowledged, false), "state {}", point.id);
        }
        drop(store);
        if states % 17 == 0 {
            assert_clean(&device, &point.id.to_string());
        }
    });
    assert!(states > 300 && repeated > 20, "{states} states were explored, {repeated} had the write already");
}

#[test]
fn results_are_bounded_and_expire() {
    let device = memory(4_096);
    let clock = Arc::new(ManualClock::new(1_000));
    let store = open_at(&device, tiny(), &clock).unwrap();
    let name = key(b"counter");
    let request_id = |sequence| RequestId { session: 1, sequence };
    for sequence in 0..3 * RESULTS_KEPT {
        assert!(count_once(&store, &name, request_id(sequence)).unwrap().1);
    }
    drop(block_on(store.snapshot()).unwrap());
    let stat = store.stat();
    assert_eq!((stat.objects, stat.results), (1, RESULTS_KEPT), "one entry for each result that is kept");
    let forgotten = count_once(&store, &name, request_id(RESULTS_KEPT));
    assert!(matches!(forgotten, Err(Error::Unknown(_))), "{forgotten:?}");
    let last = request_id(3 * RESULTS_KEPT - 1);
    assert_eq!(count_once(&store, &name, last).unwrap(), (3 * RESULTS_KEPT, false));
    clock.advance(RESULT_LIFE_NS + 1);
    assert_eq!(count_once(&store, &name, last).unwrap(), (3 * RESULTS_KEPT + 1, true), "its time is over");
}

/// Symptom: five increments with request ids counted as six objects. Cause: the entries of a tree were counted, and results are entries.
/// Fix: applies and a walk after the opening count the results.
#[test]
fn results_are_no_objects() {
    let (device, clock) = (memory(4_096), Arc::new(ManualClock::new(1_000)));
    let open = || open_at(&device, tiny(), &clock).unwrap();
    let mut sequence = 0;
    let mut count = |store: &Store, times: u64| {
        for _ in 0..times {
            sequence += 1;
            count_once(store, &key(b"counter"), RequestId { session: sequence, sequence }).unwrap();
        }
    };
    let counts = |store: &Store| {
        let stat = store.stat();
        (stat.objects_with_log(), stat.results, stat.value_bytes_with_log(), stat.expiring)
    };
    let apply = |store: &Store| drop(block_on(store.snapshot()).unwrap());
    let store = open();
    count(&store, 5);
    assert_eq!(counts(&store).1, 5);
    apply(&store);
    let bytes = counts(&store).2;
    assert_eq!(counts(&store), (1, 5, bytes, 0));
    assert!((1..=8).contains(&bytes), "{bytes} bytes of one number");
    // Another run does not know them until they are counted, also if applies add to them before.
    block_on(store.close()).unwrap();
    drop(store);
    let store = open();
    count(&store, 3);
    apply(&store);
    block_on(store.count_results()).unwrap();
    assert_eq!(counts(&store), (1, 8, bytes, 0));
    count(&store, 2);
    block_on(store.count_results()).unwrap();
    apply(&store);
    assert_eq!(counts(&store), (1, 10, bytes, 0));
    clock.advance(RESULT_LIFE_NS + 1);
    block_on(store.reap()).unwrap();
    apply(&store);
    let of_this_run = counts(&store).1;
    assert!(counts(&store) == (1, of_this_run, bytes, 0) && of_this_run <= 5, "{:?}", counts(&store));
    count(&store, 1);
    block_on(store.close()).unwrap();
    drop(store);
    let report = block_on(check(device.clone(), &CheckOptions::default())).unwrap();
    assert_eq!((report.objects, report.own_objects), (1, of_this_run + 1), "{report:?}");
}

/// The machine's clock was set back by more than a result's life: results are still kept.
#[test]
fn results_survive_clock_set_back() {
    let device = memory(4_096);
    let open_at = |now_ns| open_at(&device, tiny(), &Arc::new(ManualClock::new(now_ns))).unwrap();
    let name = key(b"counter");
    let request_id = |sequence| RequestId { session: 1, sequence };
    let store = open_at(3 * RESULT_LIFE_NS);
    assert_eq!(count_once(&store, &name, request_id(1)).unwrap(), (1, true));
    block_on(store.close()).unwrap();
    drop(store);
    let store = open_at(1_000);
    for sequence in 2..4 {
        assert_eq!(count_once(&store, &name, request_id(sequence)).unwrap(), (sequence, true));
        assert_eq!(count_once(&store, &name, request_id(sequence)).unwrap(), (sequence, false));
    }
    assert_eq!(count_once(&store, &name, request_id(1)).unwrap(), (1, false));
}

/// The rejection by a condition is the write's result, too, regardless of later changes.
#[test]
fn a_rejected_write_stays_rejected() {
    let device = memory(4_096);
    let store = open(&device, tiny()).unwrap();
    let name = key(b"name");
    let first = block_on(store.put(&name, b"1".to_vec().into(), PutOptions::default())).unwrap();
    let request_id = RequestId { session: 1, sequence: 1 };
    let if_missing = PutOptions {
        rules: RejectRules { if_exists: true, ..RejectRules::default() },
        ..PutOptions::default()
    };
    let write =
        || block_on(common::put_once(&store, request_id, &name, b"2".to_vec().into(), if_missing.clone()));
    let rejected = Error::ConditionFailed { current: Some(first.version), at: 0 };
    assert_eq!(write().unwrap_err().to_string(), rejected.to_string());
    block_on(store.delete(&name, RejectRules::default())).unwrap();
    assert_eq!(write().unwrap_err().to_string(), rejected.to_string());
    assert!(block_on(store.get(&name, ByteRange::ALL)).unwrap().is_none());
    let next = RequestId { session: 1, sequence: 2 };
    let put =
        |next| block_on(common::put_once(&store, next, &name, b"3".to_vec().into(), if_missing.clone()));
    let version = put(next).unwrap().version;
    assert_eq!(put(next).unwrap().version, version, "the same answer again");
    let info = block_on(store.head(&name)).unwrap().unwrap();
    assert_eq!(info.version, version);
    let third = RequestId { session: 1, sequence: 3 };
    let rules = RejectRules { if_version_not: Some(version), ..RejectRules::default() };
    let delete = || block_on(common::delete_once(&store, third, &name, rules)).unwrap();
    let deleted = delete();
    assert_eq!(deleted.deleted, Some(version));
    assert_eq!(delete(), deleted);
}

/// A batch takes effect if the rules of all its writes accept, with consecutive versions; otherwise it has no effect, and the error names
/// the first rejected write. With a request id either result happens once.
#[test]
fn conditional_batches_are_all_or_nothing() {
    let device = memory(4_096);
    let store = open(&device, tiny()).unwrap();
    let names = names();
    let value = Buffer::from(b"value".to_vec());
    let (always, if_missing) = (PutOptions::default(), RejectRules { if_exists: true, ..Default::default() });
    let put_all = |options: &PutOptions, request| {
        let batch: WriteBatch<'_> = names.iter().map(|name| Write::put(name, &value, options)).collect();
        assert_eq!(batch.len(), KEYS);
        let pending = block_on(store.write(batch.with_request_id(request)))?;
        let versions = pending.clone();
        Ok::<_, Error>(versions.versions(block_on(pending.durable())?).collect::<Vec<_>>())
    };
    let version_of = |name| block_on(store.head(name)).unwrap().map(|info| info.version);

    let request = |sequence| Some(RequestId { session: 1, sequence });
    let versions = put_all(&PutOptions { rules: if_missing, ..always.clone() }, request(1)).unwrap();
    assert!(versions.windows(2).all(|pair| pair[0].next() == pair[1]), "{versions:?}");
    assert!(names.iter().zip(&versions).all(|(name, &version)| version_of(name) == Some(version)));
    let again = put_all(&PutOptions { rules: if_missing, ..always.clone() }, request(1)).unwrap();
    assert_eq!(again, versions, "a repetition has the same answer");

    // One write of the batch is rejected: the put and the delete before it have no effect either.
    let mixed = |request| {
        let mut batch = WriteBatch::new().with_request_id(request);
        batch.add(Write::put(&names[0], &value, &always));
        batch.add(Write::delete(&names[1], RejectRules::default()));
        batch.add(Write::delete(
            &names[2],
            RejectRules { if_version_not: Some(versions[3]), ..Default::default() },
        ));
        block_on(store.write(batch))
    };
    for request in [None, request(2)] {
        let rejected = mixed(request);
        let current = Some(versions[2]);
        assert!(
            matches!(rejected, Err(Error::ConditionFailed { current: found, at: 2 }) if found == current),
            "{rejected:?}"
        );
        assert!(names.iter().zip(&versions).all(|(name, &version)| version_of(name) == Some(version)));
    }
    put_all(&always, None).unwrap();
    let rejected = mixed(request(2));
    assert!(matches!(rejected, Err(Error::ConditionFailed { at: 2, .. })), "its first answer: {rejected:?}");
    // The request id of a batch is not that of a single write, and vice versa.
    let other = Write::put(&names[0], &value, &always).with_request_id(request(1));
    assert!(matches!(block_on(store.write(other)), Err(Error::Invalid(_))));

    let mut both = WriteBatch::new();
    both.add(Write::put(&names[0], &value, &always));
    both.add(Write::delete(&names[0], RejectRules::default()));
    block_on(block_on(store.write(both)).unwrap().durable()).unwrap();
    assert_eq!(version_of(&names[0]), None, "the later write of a key wins");
    assert!(
        matches!(block_on(store.write(WriteBatch::new())), Err(Error::Invalid(_))),
        "a batch without writes"
    );
}

fn write_together(store: &Store, names: &[ObjectKey], value: &Buffer) {
    let options = PutOptions::default();
    let batch: WriteBatch<'_> = names.iter().map(|name| Write::put(name, value, &options)).collect();
    block_on(block_on(store.write(batch)).unwrap().durable()).unwrap();
}

/// Clients with large batches and clients with single writes fill a store whose memtables hold eight records. Each gets its turn, and so
/// does each write while a batch waits whose future nobody polls.
#[test]
fn large_batches_and_single_writes_all_finish() {
    const WRITES: usize = 150;
    within("large batches and single writes", || {
        let store = open(&memory(4_096), tiny_with_threads()).unwrap();
        let (names, value, options) = (names(), Buffer::from(vec![7; 30]), PutOptions::default());
        let all = || names.iter().map(|name| Write::put(name, &value, &options)).collect::<WriteBatch<'_>>();
        let write_singly = |name: &ObjectKey| {
            block_on(store.put(name, value.clone(), options.clone())).unwrap();
        };
        thread::scope(|scope| {
            for number in 0..4 {
                let (store, names, value, write_singly) = (&store, &names, &value, &write_singly);
                scope.spawn(move || {
                    for _ in 0..WRITES {
                        if number < 2 {
                            write_together(store, names, value);
                        } else {
                            write_singly(&names[number]);
                        }
                    }
                });
            }
        });
        let mut context = Context::from_waker(Waker::noop());
        let waiting = std::iter::repeat_with(|| Box::pin(store.write(all())))
            .find_map(|mut batch| batch.as_mut().poll(&mut context).is_pending().then_some(batch));
        for _ in 0..WRITES {
            write_singly(&names[0]);
            write_together(&store, &names[..2], &value);
        }
        drop(waiting);
        write_together(&store, &names, &value);
        block_on(store.close()).unwrap();
    });
}

/// Sends a value of `mebibytes` in pieces; returns its version.
fn stream_once(
    store: &Store,
    request_id: RequestId,
    name: &ObjectKey,
    mebibytes: usize,
    rules: RejectRules,
) -> shoal_engine::Result<shoal_base::Lsn> {
    let options = PutOptions { rules, ..PutOptions::default() };
    let mut stream = store.put_stream(name, options)?.with_request_id(Some(request_id));
    for piece in 0..mebibytes {
        block_on(stream.write(&vec![piece as u8 + 1; 1 << 20]))?;
    }
    block_on(stream.finish()).map(|done| done.version)
}

/// A regression: the request id of a stream was ignored, so a retry after a lost answer wrote again, or met the conditions of its first
/// attempt.
#[test]
fn a_stream_with_a_request_id_is_done_once() {
    const BLOCKS: u64 = 16_384;
    let device = memory(BLOCKS);
    let store = open(&device, tiny()).unwrap();
    let if_exists = RejectRules { if_exists: true, ..RejectRules::default() };
    // One stream that becomes a single put, and one whose value is on the device before its record is.
    for (sequence, mebibytes) in [(1, 2), (2, 9)] {
        let name = key(format!("long-{mebibytes}").as_bytes());
        let request_id = RequestId { session: 4, sequence };
        let send = |store: &Store| stream_once(store, request_id, &name, mebibytes, if_exists).unwrap();
        let version = send(&store);
        let free = store.stat().free_blocks;
        assert_eq!(send(&store), version, "its first answer, whatever its rules say of what it left");
        assert_eq!(store.stat().free_blocks, free, "what the repetition carried is given back");
        // A rule that rejects, with a final answer.
        let other = RequestId { session: 5, sequence };
        let refused = stream_once(&store, other, &name, mebibytes, if_exists).unwrap_err();
        assert!(
            matches!(refused, Error::ConditionFailed { current: Some(current), .. } if current == version)
        );
        block_on(store.delete(&name, RejectRules::default())).unwrap();
        let again = stream_once(&store, other, &name, mebibytes, if_exists).unwrap_err();
        assert_eq!(again.to_string(), refused.to_string());
        assert_eq!(send(&store), version, "done once, also where it was deleted since");
        assert!(block_on(store.head(&name)).unwrap().is_none());
    }
    block_on(store.close()).unwrap();
    drop(store);
    let store = open(&device, tiny()).unwrap();
    let name = key(b"long-9");
    let third = RequestId { session: 4, sequence: 3 };
    let version = stream_once(&store, third, &name, 9, if_exists).unwrap();
    drop(store);
    // The crash leaves it in the log; its repetition is still recognized.
    let store = open(&device, tiny()).unwrap();
    assert_eq!(stream_once(&store, third, &name, 9, if_exists).unwrap(), version);
    let info = block_on(store.head(&name)).unwrap().unwrap();
    assert_eq!((info.version, info.bytes), (version, 9 << 20));
    let mut stream = block_on(store.get_stream(&name, ByteRange::ALL)).unwrap().unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = block_on(stream.next()).unwrap() {
        bytes.extend_from_slice(&piece.to_vec());
    }
    assert!(bytes.chunks(1 << 20).zip(1..).all(|(piece, number)| piece.iter().all(|&byte| byte == number)));
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "streams that were repeated");
}

/// A stream and its result are one write batch: after every crash both exist or neither, and the repetition counts once.
#[test]
fn repeated_stream_after_crash_is_applied_once() {
    const BLOCKS: u64 = 5_120;
    let sim = SimDevice::from_image(formatted(BLOCKS, 5).image());
    let store = open(&Device::new(sim.clone()), tiny()).unwrap();
    let (name, request_id) = (key(b"long"), RequestId { session: 4, sequence: 1 });
    let none = RejectRules::default();
    sim.mark(0);
    let version = stream_once(&store, request_id, &name, 5, none).unwrap();
    sim.mark(version.0);
    drop(store);
    let (mut states, mut repeated) = (0, 0);
    sim.history().for_each_crash_state(2, 3, |point, image| {
        let Some(&acknowledged) = point.marks.last() else { return };
        states += 1;
        let (_device, store) = reopened(image);
        let there = block_on(store.head(&name)).unwrap().map(|info| info.version);
        assert!(there == Some(version) || acknowledged == 0 && there.is_none(), "state {}", point.id);
        let again = stream_once(&store, request_id, &name, 5, none).unwrap();
        repeated += u32::from(there.is_some());
        assert!(there.is_none_or(|there| there == again), "state {}: written twice", point.id);
        let info = block_on(store.head(&name)).unwrap().unwrap();
        assert_eq!((info.version, info.bytes), (again, 5 << 20), "state {}", point.id);
    });
    assert!(states > 5 && repeated > 0, "{states} states were explored, {repeated} had the stream already");
}

/// Eight threads send the same write at the same time: one does it, the others wait for it and return its answer.
#[test]
fn repetitions_at_the_same_time_join_the_first() {
    let device = memory(4_096);
    let mut options = tiny();
    options.background = true;
    let store = open(&device, options).unwrap();
    let name = key(b"counter");
    for sequence in 0..50 {
        let done: u32 = thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let (store, name) = (&store, &name);
                    scope.spawn(move || {
                        let (count, now) =
                            count_once(store, name, RequestId { session: 3, sequence }).unwrap();
                        assert_eq!(count, sequence + 1);
                        u32::from(now)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(done, 1);
    }
}

/// A batch that needs more than half of the memtables waits for an apply that no other write would have started.
#[test]
fn a_large_write_batch_does_not_wait_for_ever() {
    within("a large write batch", || {
        let device = memory(4_096);
        let mut options = tiny();
        options.background = true;
        options.tuning.memtable_records_max = 16;
        let store = open(&device, options).unwrap();
        let many: Vec<ObjectKey> = (0..14).map(|number| key(format!("many-{number}").as_bytes())).collect();
        for number in 0..20 {
            for beside in 0..3 {
                let beside = key([beside]);
                block_on(store.put(&beside, vec![1].into(), PutOptions::default())).unwrap();
            }
            let decide = |_: &[Option<Object>]| (many.iter().map(|_| put(vec![number; 60])).collect(), ());
            let done = block_on(common::transact(&store, &blind(&many), decide)).unwrap();
            for pending in done.pending {
                block_on(pending.durable()).unwrap();
            }
        }
    });
}
