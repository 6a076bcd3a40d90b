//! Transactions (R22): their reads are of one moment, their writes are one batch, and a change of a watched key stops them; over tablets,
//! crashes and other clients' writes. The histories of several clients pass the check of serializability.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use shoal_base::{Entropy, ManualClock, SeededEntropy};
use shoal_buffer::Buffer;
use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice};
use shoal_engine::{
    ByteRange, Change, Decision, Error, Expiry, Lsn, Object, ObjectKey, OpenOptions, Outcome, PutOptions,
    ReadLevel, RejectRules, RequestId, Result, Store, TransactOptions, Watch, Write, WriteBatch, block_on,
};
use shoal_testkit::Value;
use shoal_testkit::bytes::name_of;
use shoal_testkit::lab;
use shoal_testkit::linear::{HistoryEntry, World};
use shoal_testkit::serial::{Transaction, TransactionHistory};
use shoal_testkit::wait::within;

use crate::common::{
    assert_clean, change_to as put, formatted, key, memory, open, open_at, short_batches, tiny,
};
use crate::histories::{options, power_cut, slow};

const BLOCKS: u64 = 1_024;
/// Of both tablets.
const KEYS: u8 = 6;
const CLIENTS: u64 = 5;
/// Transactions of a client between two crashes.
const TRANSACTIONS: u64 = 40;
const LIVES: u64 = 3;
/// Values of all homes.
const SIZES: [usize; 5] = [16, 60, 300, 1_500, 5_000];

fn name(number: u8) -> ObjectKey {
    key(name_of(number.into()))
}

fn names() -> Vec<(ObjectKey, ReadLevel)> {
    (0..KEYS).map(|number| (name(number), ReadLevel::Value)).collect()
}

fn value(key: u8, number: u64) -> Value {
    Value::of_write(key.into(), number, &SIZES)
}

/// Returns the number of the write that stored this object; checks every byte.
fn number_of(key: u8, object: Option<&Object>) -> Option<u64> {
    Some(Value::write_of(key.into(), &object?.value.to_vec(), &SIZES))
}

fn plain(store: &Store, key: &ObjectKey, value: &[u8]) {
    block_on(store.put(key, value.to_vec().into(), PutOptions::default())).unwrap();
}

fn get(store: &Store, key: &ObjectKey) -> Option<Vec<u8>> {
    block_on(store.get(key, ByteRange::ALL)).unwrap().map(|object| object.value.to_vec())
}

fn memory_store(background: bool) -> (Device, Store) {
    let device = memory(4_096);
    let store = open(&device, OpenOptions { background, ..tiny() }).unwrap();
    (device, store)
}

/// Returns the result of a transaction once it is durable; `None` if a watched key changed.
fn transact<T>(
    store: &Store,
    keys: &[(ObjectKey, ReadLevel)],
    watches: &[Watch],
    decide: impl FnMut(&[Option<Object>]) -> Decision<T>,
) -> Result<Option<(T, Option<Lsn>)>> {
    match block_on(store.transact(keys, &TransactOptions { watches, ..Default::default() }, decide))? {
        Outcome::Done(done) => {
            let mut version = None;
            for pending in done.pending {
                version = Some(block_on(pending.durable())?);
            }
            Ok(Some((done.answer, version)))
        }
        Outcome::Changed => Ok(None),
        Outcome::Left(_) | Outcome::Before { .. } => {
            panic!("nothing was left, nothing has a request id")
        }
    }
}

/// Writes all of `keys` unless a watched key changed; returns true if it wrote.
fn write_all(store: &Store, keys: &[ObjectKey], watches: &[Watch]) -> bool {
    let asked: Vec<_> = keys.iter().map(|key| (key.clone(), ReadLevel::Nothing)).collect();
    let decide = |_: &[Option<Object>]| Decision::Do(keys.iter().map(|_| put(vec![7; 30])).collect(), ());
    transact(store, &asked, watches, decide).unwrap().is_some()
}

/// Runs `work` on another thread: its writes come between those of the caller.
fn elsewhere(work: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(work).join()).unwrap();
}

/// New values for some of the keys, or their deletes.
fn writes(world: &World, dice: &SeededEntropy, count: u64) -> Vec<(u8, Option<u64>)> {
    let first = dice.below(u64::from(KEYS));
    let one = |number| {
        let written = world.next_write();
        (((first + number * 2) % u64::from(KEYS)) as u8, (dice.below(4) > 0).then_some(written))
    };
    (0..count).map(one).collect()
}

fn change((key, new): (u8, Option<u64>)) -> Change {
    new.map_or(Change::Delete, |number| put(value(key, number).to_vec()))
}

/// Reads all keys and writes `writes` as one transaction; returns the objects read.
fn all_keys(store: &Store, writes: &[(u8, Option<u64>)]) -> Result<Vec<(u8, Option<u64>)>> {
    let decide = |objects: &[Option<Object>]| {
        let reads = (0..KEYS).zip(objects).map(|(key, object)| (key, number_of(key, object.as_ref())));
        let of = |key: u8| writes.iter().find(|(other, _)| *other == key).copied();
        Decision::Do((0..KEYS).map(|key| of(key).map_or(Change::NoChange, change)).collect(), reads.collect())
    };
    Ok(transact(store, &names(), &[], decide)?.expect("nothing is watched").0)
}

/// Writes `writes` as one write batch, which reads nothing.
fn write_blindly(store: &Store, writes: &[(u8, Option<u64>)]) -> Result<()> {
    let options = PutOptions::default();
    let of = |&(key, new): &(u8, Option<u64>)| {
        (name(key), new.map(|number| Buffer::from(value(key, number).to_vec())))
    };
    let named: Vec<_> = writes.iter().map(of).collect();
    let writes = named.iter().map(|(key, value)| match value {
        Some(value) => Write::put(key, value, &options),
        None => Write::delete(key, RejectRules::default()),
    });
    block_on(block_on(store.write(writes.collect::<WriteBatch<'_>>()))?.durable()).map(drop)
}

/// One action of a client: returns its description and its result; `None` if it had no effect.
fn one(store: &Store, world: &World, dice: &SeededEntropy) -> Option<(Transaction, Result<()>)> {
    let mut done = Transaction::default();
    let result = match dice.below(9) {
        0..=2 => all_keys(store, &[]).map(|reads| done.reads = reads),
        3 | 4 => {
            done.writes = writes(world, dice, 2);
            all_keys(store, &done.writes).map(|reads| done.reads = reads)
        }
        5 => {
            done.writes = writes(world, dice, 1);
            let (number, new) = done.writes[0];
            let options = PutOptions::default();
            match new {
                Some(new) => {
                    let value = value(number, new).to_vec().into();
                    block_on(store.put(&name(number), value, options)).map(drop)
                }
                None => block_on(store.delete(&name(number), RejectRules::default())).map(drop),
            }
        }
        6 => {
            done.writes = writes(world, dice, 3);
            write_blindly(store, &done.writes)
        }
        _ => {
            // As a client of Redis does: watch, read, decide, and write if nothing changed.
            done.writes = writes(world, dice, 2);
            let watched = [dice.below(u64::from(KEYS)) as u8, done.writes[0].0];
            let watches = watched.map(|number| block_on(store.watch(&name(number))));
            // Until the write the outcome is known.
            let watches: Vec<Watch> = watches.into_iter().collect::<Result<_>>().ok()?;
            for number in watched {
                let object = block_on(store.get(&name(number), ByteRange::ALL)).unwrap();
                done.guards.push((number, number_of(number, object.as_ref())));
            }
            let keys: Vec<_> =
                done.writes.iter().map(|(number, _)| (name(*number), ReadLevel::Nothing)).collect();
            let changes: Vec<Change> = done.writes.iter().copied().map(change).collect();
            let decide = |_: &[Option<Object>]| Decision::Do(changes.clone().into(), ());
            transact(store, &keys, &watches, decide).map(|was_done| {
                if was_done.is_none() {
                    done = Transaction::default();
                }
            })
        }
    };
    match result {
        Err(Error::Poisoned(_) | Error::Busy(_) | Error::Full { .. }) => None,
        Ok(()) | Err(Error::Unknown(_)) => Some((done, result)),
        Err(error) => panic!("{done:?}: {error}"),
    }
}

/// One client: returns its history when the store becomes read-only.
fn client(store: &Store, world: &World, id: u64, dice: &SeededEntropy) -> Vec<HistoryEntry<Transaction>> {
    let mut entries = Vec::new();
    for _ in 0..TRANSACTIONS {
        let called = world.now();
        let Some((action, result)) = one(store, world, dice) else {
            if store.stat().poisoned.is_some() {
                break;
            }
            continue;
        };
        let answered = result.is_ok().then(|| world.now());
        entries.push(HistoryEntry { client: id, called, answered, action });
    }
    entries
}

/// Reads all keys while no other client runs.
fn known(store: &Store, world: &World) -> HistoryEntry<Transaction> {
    let called = world.now();
    let action = Transaction { reads: all_keys(store, &[]).unwrap(), ..Transaction::default() };
    HistoryEntry { client: CLIENTS, called, answered: Some(world.now()), action }
}

/// The lives of one store, each ended by failing flushes and a power cut, the last one by a close. The history of a life ends with the
/// state that the next one finds: a write that is absent then must not appear later.
fn lives(seed: u64) -> Vec<TransactionHistory> {
    let dice = SeededEntropy::new(seed);
    let base = formatted(BLOCKS, seed);
    let mut image = base.image();
    let world = World::default();
    let mut histories = vec![TransactionHistory::default()];
    let found = |histories: &mut Vec<TransactionHistory>, store: &Store| {
        let read = known(store, &world);
        let next = TransactionHistory::after(&read.action.reads);
        histories.last_mut().expect("there is one").push(read);
        histories.push(next);
    };
    for life in 0..LIVES {
        let sim = slow(image);
        let store = open(&Device::new(sim.clone()), options()).unwrap();
        found(&mut histories, &store);
        let is_last = life + 1 == LIVES;
        if !is_last {
            sim.inject(Fault::fail(FaultOp::Flush, libc::EIO).after(20 + dice.below(60)).for_good());
        }
        let history = histories.last_mut().expect("there is one");
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|id| {
                    let (store, world, dice) = (&store, &world, SeededEntropy::new(dice.next_u64()));
                    scope.spawn(move || client(store, world, id, &dice))
                })
                .collect();
            clients.into_iter().for_each(|client| history.extend(client.join().unwrap()));
        });
        if is_last {
            block_on(store.close()).unwrap();
        }
        drop(store);
        sim.mark(1);
        image = power_cut(&sim, &dice);
    }
    found(&mut histories, &open(&Device::new(SimDevice::from_image(image)), tiny()).unwrap());
    histories
}

#[test]
fn histories_are_serializable() {
    let (count, first) = (lab::number("TRANSACTIONS", 8), 20_000 * lab::number("SEED", 1));
    let [transactions, pending] = [const { AtomicU64::new(0) }; 2];
    let began = Instant::now();
    lab::on_each_core(2, count, |number| {
        let seed = first + number;
        for history in lives(seed) {
            let counts = history.counts();
            transactions.fetch_add(counts.0 as u64, Ordering::Relaxed);
            pending.fetch_add(counts.1 as u64, Ordering::Relaxed);
            history
                .check()
                .unwrap_or_else(|wrong| panic!("history {seed} (its timing does not repeat): {wrong}"));
        }
    });
    let (transactions, pending) = (transactions.into_inner(), pending.into_inner());
    println!(
        "{count} histories, {transactions} transactions, {pending} of unknown outcome, in {:?}: all serializable",
        began.elapsed(),
    );
    assert!(pending > 0 && transactions > 120 * count, "{pending} pending of {transactions} transactions");
}

/// After every crash all keys of both tablets are of one transaction, and no acknowledged transaction is lost.
#[test]
fn transactions_are_all_or_nothing() {
    let sim = formatted(320, 5);
    let sim = SimDevice::from_image(sim.image());
    let store = open(&Device::new(sim.clone()), short_batches()).unwrap();
    sim.mark(0);
    let tablets: std::collections::BTreeSet<bool> = (0..KEYS).map(|key| name(key).slot() < 8192).collect();
    assert_eq!(tablets.len(), 2, "the keys lie in both tablets");
    for number in 1..=40_u64 {
        let next = |objects: &[Option<Object>]| {
            // Each write increments the number that it read, so a transaction applied in part would continue wrongly.
            let next = (0..KEYS).zip(objects).map(|(key, object)| {
                (key, Some(number_of(key, object.as_ref()).map_or(1, |before| before + 1)))
            });
            Decision::Do(next.map(change).collect(), ())
        };
        transact(&store, &names(), &[], next).unwrap().unwrap();
        sim.mark(number);
    }
    drop(store);
    let mut states = 0;
    sim.history().for_each_crash_state(6, 5, |point, image: Image| {
        let Some(&acknowledged) = point.marks.last() else { return };
        states += 1;
        let device = Device::new(SimDevice::from_image(image));
        let store = open(&device, tiny()).unwrap();
        let read = all_keys(&store, &[]).unwrap();
        assert!(read.windows(2).all(|pair| pair[0].1 == pair[1].1), "state {}: {read:?}", point.id);
        assert!(read[0].1.unwrap_or(0) >= acknowledged, "state {}: {read:?}", point.id);
        if states % 29 == 0 {
            drop(store);
            assert_clean(&device, &point.id.to_string());
        }
    });
    assert!(states > 400, "only {states} states were explored");
}

/// The reads are compared again, also if nothing is written, for values of every home.
#[test]
fn reads_are_of_one_moment() {
    for bytes in [10, 1_000, 6_000] {
        let (_device, store) = memory_store(true);
        let keys = [name(0), name(1)];
        keys.iter().for_each(|key| plain(&store, key, &vec![1; bytes]));
        let asked = keys.clone().map(|key| (key, ReadLevel::Value));
        let mut looks = 0;
        let read = |objects: &[Option<Object>]| {
            looks += 1;
            if looks == 1 {
                elsewhere(|| keys.iter().for_each(|key| plain(&store, key, &vec![2; bytes])));
            }
            let firsts = objects.iter().map(|object| object.as_ref().unwrap().value.to_vec()[0]);
            Decision::Do(vec![Change::NoChange, Change::NoChange].into(), firsts.collect::<Vec<u8>>())
        };
        let (read, _) = transact(&store, &asked, &[], read).unwrap().unwrap();
        // An apply that moves a value meanwhile makes it read once more.
        assert!(read == [2, 2] && (2..=4).contains(&looks), "{bytes} bytes: {read:?} after {looks} looks");
    }
}

#[test]
fn versions_are_consecutive_and_dropped_transaction_does_nothing() {
    let (_device, store) = memory_store(false);
    let keys = [name(0), name(1), name(2)];
    let asked = keys.clone().map(|key| (key, ReadLevel::Whole));
    let left =
        block_on(store.transact(&asked, &TransactOptions::default(), |_| Decision::Leave("enough"))).unwrap();
    assert!(matches!(left, Outcome::Left("enough")));
    let decide =
        |_: &[Option<Object>]| Decision::Do(vec![put(vec![1]), Change::NoChange, put(vec![2])].into(), ());
    let (_, last) = transact(&store, &asked, &[], decide).unwrap().unwrap();
    let seen = |objects: &[Option<Object>]| {
        let seen = objects.iter().flatten().map(|object| (object.info.version, object.value.to_vec()));
        Decision::Do(vec![Change::NoChange; 3].into(), seen.collect::<Vec<_>>())
    };
    let (seen, _) = transact(&store, &asked, &[], seen).unwrap().unwrap();
    let last = last.unwrap();
    assert_eq!(seen, [(Lsn(last.0 - 1), vec![1]), (last, vec![2])]);
}

#[test]
fn a_watched_key_that_was_written_stops_a_transaction() {
    let (_device, store) = memory_store(true);
    let (other, watched) = ([name(0), name(1)], name(2));
    let done_after = |change: &dyn Fn()| {
        let watch = block_on(store.watch(&watched)).unwrap();
        change();
        // The transaction and the watch itself agree.
        let done = write_all(&store, &other, std::slice::from_ref(&watch));
        assert_eq!(done, !watch.is_changed());
        done
    };
    let delete = || {
        block_on(store.delete(&watched, RejectRules::default())).unwrap();
    };
    assert!(done_after(&|| {}));
    assert!(done_after(&|| plain(&store, &name(3), b"another key")));
    assert!(done_after(&delete), "there was nothing to delete");
    assert!(!done_after(&|| plain(&store, &watched, b"value")));
    assert!(!done_after(&|| plain(&store, &watched, b"value")), "the same value");
    assert!(!done_after(&delete));
    let comes_and_goes = || {
        plain(&store, &watched, b"value");
        delete();
        block_on(store.close()).ok();
    };
    // The key is absent before and after, without a version: the watch sees both writes all the same.
    let watch = block_on(store.watch(&watched)).unwrap();
    plain(&store, &watched, b"value");
    delete();
    assert!(!write_all(&store, &other, &[watch]));
    // Its own write counts, too, and so does a write in flight.
    let watch = block_on(store.watch(&watched)).unwrap();
    assert!(write_all(&store, std::slice::from_ref(&watched), std::slice::from_ref(&watch)));
    assert!(!write_all(&store, &other, std::slice::from_ref(&watch)));
    // Two watches of one key: each counts from its own start.
    let again = block_on(store.watch(&watched)).unwrap();
    assert!(watch.is_changed() && !again.is_changed());
    drop(watch);
    assert!(write_all(&store, &other, std::slice::from_ref(&again)));
    plain(&store, &watched, b"value");
    assert!(!write_all(&store, &other, &[again]));
    comes_and_goes();
}

/// A watch starts after the writes in flight: a later read sees them, so a transaction does not overwrite them unseen.
#[test]
fn a_watch_waits_for_what_is_in_flight() {
    let (_device, store) = memory_store(true);
    for round in 0..200_u64 {
        let value = round.to_le_bytes().to_vec();
        let pending =
            block_on(store.write(Write::put(&name(0), &value.clone().into(), &PutOptions::default())))
                .unwrap();
        let watch = block_on(store.watch(&name(0))).unwrap();
        assert!(pending.is_durable() && !watch.is_changed());
        assert_eq!(get(&store, &name(0)), Some(value));
    }
}

#[test]
fn watched_key_changes_on_expiry() {
    let clock = Arc::new(ManualClock::new(1_000));
    let store = open_at(&memory(4_096), tiny(), &clock).unwrap();
    let short_lived = |until| {
        let options = PutOptions { expiry: Expiry::At(until), ..PutOptions::default() };
        block_on(store.put(&name(0), vec![1].into(), options)).unwrap();
    };
    let now = || shoal_base::Clock::wall_ns(&*clock);
    short_lived(now() + 1_000);
    let watch = block_on(store.watch(&name(0))).unwrap();
    assert!(write_all(&store, &[name(1)], std::slice::from_ref(&watch)));
    clock.advance(2_000);
    assert!(!write_all(&store, &[name(1)], &[watch]));
    // An object that had already expired is absent: deleting it for good is no change.
    let watch = block_on(store.watch(&name(0))).unwrap();
    let nothing = |_: &[Option<Object>]| Decision::Do(vec![Change::NoChange].into(), ());
    assert!(transact(&store, &[(name(0), ReadLevel::Info)], &[], nothing).unwrap().is_some());
    assert!(write_all(&store, &[name(1)], std::slice::from_ref(&watch)));
    block_on(store.delete(&name(0), RejectRules::default())).unwrap();
    assert!(write_all(&store, &[name(1)], &[watch]));
    // An object that exists when it is read exists when it is written, or the transaction reads it again.
    short_lived(now() + 1_000);
    let mut seen = Vec::new();
    let decide = |objects: &[Option<Object>]| {
        seen.push(objects[0].is_some());
        clock.advance(2_000);
        Decision::one(put(vec![2]), ())
    };
    transact(&store, &[(name(0), ReadLevel::Info)], &[], decide).unwrap().unwrap();
    assert_eq!(seen, [true, false]);
}

/// Writes of one key come between a transaction again and again; it queues, closes the queue, and completes.
#[test]
fn contended_transaction_finishes() {
    within("a transaction among writers", || {
        let (_device, store) = memory_store(true);
        let (key, mut tries) = (name(0), 0);
        let store = &store;
        thread::scope(|scope| {
            let mut late = Vec::new();
            let decide = |_: &[Option<Object>]| {
                tries += 1;
                let name = &key;
                let writer = scope.spawn(move || plain(store, name, b"between"));
                if tries <= 6 {
                    writer.join().unwrap();
                } else {
                    // The writer is not joined here: it waits for this transaction.
                    late.push(writer);
                }
                Decision::Do(vec![put(b"done".to_vec())].into(), ())
            };
            let asked = [(key.clone(), ReadLevel::Value)];
            transact(store, &asked, &[], decide).unwrap().unwrap();
            assert_eq!((tries, late.len()), (7, 1));
            late.into_iter().for_each(|writer| writer.join().unwrap());
        });
        assert_eq!(get(store, &key), Some(b"between".to_vec()), "the writer at the gate went on");
    });
}

/// Transactions of many threads on one key: all of them complete, none is lost.
#[test]
fn contended_transactions_all_finish() {
    within("many transactions of one key", || {
        for background in [false, true] {
            let (_device, store) = memory_store(background);
            let asked = [(name(0), ReadLevel::Value), (name(1), ReadLevel::Value)];
            let count = |object: &Option<Object>| {
                object.as_ref().map_or(0, |object| {
                    u64::from_le_bytes(*object.value.to_vec().first_chunk().expect("a number"))
                })
            };
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            let next = |objects: &[Option<Object>]| {
                                let next = objects.iter().map(|object| {
                                    let mut value = (count(object) + 1).to_le_bytes().to_vec();
                                    value.resize(3_000, 0);
                                    put(value)
                                });
                                Decision::Do(next.collect(), ())
                            };
                            transact(&store, &asked, &[], next).unwrap().unwrap();
                        }
                    });
                }
            });
            let read = |objects: &[Option<Object>]| {
                Decision::Do(vec![Change::NoChange; 2].into(), objects.iter().map(count).collect::<Vec<_>>())
            };
            assert_eq!(transact(&store, &asked, &[], read).unwrap().unwrap().0, [400, 400]);
        }
    });
}

#[test]
fn oversized_batch_is_rejected_before_any_effect() {
    let (_device, store) = memory_store(true);
    let refused = |keys: &[(ObjectKey, ReadLevel)], changes: &[Change]| {
        let decide = |_: &[Option<Object>]| Decision::Do(changes.to_vec().into(), ());
        match transact(&store, keys, &[], decide) {
            Err(Error::Invalid(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    let many = |count: u32| (0..count).map(|number| (key(number.to_be_bytes()), ReadLevel::Nothing));
    let keys: Vec<_> = many(70_000).collect();
    let text = refused(&keys, &vec![put(vec![1]); keys.len()]);
    assert_eq!(text, "one write batch has 70000 objects; 65536 are allowed");
    let keys: Vec<_> = many(400).collect();
    let text = refused(&keys, &vec![put(vec![1; 90]); keys.len()]);
    assert!(text.starts_with("400 objects in one write batch need"), "{text}");
    assert_eq!(get(&store, &keys[0].0), None);
    // It once reserved space for each object first, and reported a full device.
    let keys: Vec<_> = many(60_000).collect();
    let before = store.stat().value_bytes_written;
    let text = refused(&keys, &vec![put(vec![1]); keys.len()]);
    assert!(text.starts_with("60000 objects in one write batch need"), "{text}");
    assert_eq!(store.stat().value_bytes_written, before);
    let keys: Vec<_> = many(400).collect();
    // The maximum that fits is fine, and the log does not limit reading.
    let decide = |_: &[Option<Object>]| Decision::Do(vec![put(vec![1; 90]); 60].into(), ());
    transact(&store, &keys[..60], &[], decide).unwrap().unwrap();
    let asked: Vec<_> = keys.iter().map(|(key, _)| (key.clone(), ReadLevel::Value)).collect();
    let found = |objects: &[Option<Object>]| {
        Decision::Do(vec![Change::NoChange; objects.len()].into(), objects.iter().flatten().count())
    };
    assert_eq!(transact(&store, &asked, &[], found).unwrap().unwrap().0, 60);
    // A transaction without keys is fine, too.
    transact(&store, &[], &[], |_| Decision::Do(Vec::new().into(), ())).unwrap().unwrap();
}

/// A repeated transaction has no second effect, although it changed the keys that it watches.
#[test]
fn a_transaction_with_a_request_id_is_done_once() {
    let (_device, store) = memory_store(true);
    let (keys, request_id) = (names(), RequestId { session: 7, sequence: 1 });
    let mut versions = Vec::new();
    for round in 0..3 {
        let watches: Vec<Watch> = vec![block_on(store.watch(&name(0))).unwrap()];
        if round == 2 {
            plain(&store, &name(0), b"between");
        }
        let decide = |_: &[Option<Object>]| {
            Decision::Do((0..KEYS).map(|key| put(vec![key; 10])).collect(), b"answer".to_vec())
        };
        let keep = |answer: &Vec<u8>| answer.clone();
        let options =
            TransactOptions { watches: &watches, request: Some((request_id, &keep)), ..Default::default() };
        match block_on(store.transact(&keys, &options, decide)).unwrap() {
            Outcome::Done(done) if round == 0 => {
                assert_eq!(done.pending.len(), 1);
                for pending in done.pending {
                    versions.push(block_on(pending.durable()).unwrap());
                }
            }
            Outcome::Before { version, answer } if round > 0 => {
                assert_eq!(answer.as_deref(), Some(&b"answer"[..]));
                versions.push(version);
            }
            other => panic!("round {round}: {other:?}"),
        }
    }
    assert!(versions.windows(2).all(|pair| pair[0] == pair[1]), "{versions:?}");
    assert_eq!(get(&store, &name(0)), Some(b"between".to_vec()));
}
