//! Writes that look at something first: conditions, write batches over tablets, and writes that are sent twice.

use shoal_base::task::block_on;
use shoal_engine::{
    Change, Decision, Error, Lsn, Object, PutOptions, ReadLevel, RejectRules, RequestId, Result, Store,
    TransactOptions,
};
use shoal_testkit::bytes::name_of;

use super::common::{self, change_to, key, tiny_with_memtables};
use super::{Share, World, explore, formatted, join, mark, spawn, value};

const BLOCKS: u64 = 256;

fn put(name: u64, number: u64) -> Change {
    change_to(value(name, number, 60).to_vec())
}

fn number_of(object: Option<&Object>) -> u64 {
    object.map_or(0, |object| u64::from_le_bytes(*object.value.to_vec().first_chunk().unwrap()))
}

/// Counts key 0 up once; returns the number that it has then, and true if this call counted.
fn count_once(store: &Store, request_id: RequestId) -> Result<(u64, bool)> {
    common::count_once(store, &key(&name_of(0)), request_id, |next| value(0, next, 60).to_vec())
}

/// A session's write is sent by two threads at once, and by a third one of another session beside them: each session's write
/// counts once, a thread that sends it again gets the same answer, also after a crash.
#[test]
fn repeated_write_is_applied_once() {
    let image = formatted(BLOCKS);
    explore("sessions", Share::Few, move || {
        let world = World::open(&image, tiny_with_memtables(4));
        let send = |session: u64| {
            spawn(&world, move |world| {
                let counts = [1, 2].map(|sequence| {
                    let counted = count_once(&world.store, RequestId { session, sequence }).unwrap();
                    world.sim.mark(mark(session, sequence));
                    world.sim.mark(mark(0, counted.0));
                    counted
                });
                (session, counts)
            })
        };
        let mut sent = join(vec![send(1), send(1), send(2)]);
        let (_, other) = sent.pop().unwrap();
        let [(_, first), (_, second)] = sent[..] else { unreachable!() };
        for turn in 0..2 {
            assert_eq!(first[turn].0, second[turn].0, "the same answer");
            assert!(first[turn].1 != second[turn].1 && other[turn].1, "done once: {first:?} {second:?}");
        }
        assert_eq!(world.get(0), 4);
        world.crash(tiny_with_memtables(4), |world, promised| {
            assert!((promised(0)..=4).contains(&world.get(0)));
            for session in [1, 2] {
                let sequence = promised(session);
                if sequence > 0 {
                    let before = world.get(0);
                    let again = count_once(&world.store, RequestId { session, sequence }).unwrap();
                    assert!(!again.1 && again.0 <= before, "session {session} was counted again: {again:?}");
                }
            }
        });
    });
}

/// Of the clients that create a key one succeeds; of the counts up from the version that a client saw none is lost.
#[test]
fn conditions_let_one_through() {
    let image = formatted(BLOCKS);
    explore("conditions", Share::All, move || {
        let world = World::open(&image, tiny_with_memtables(4));
        let clients = (0..3_u64).map(|client| {
            spawn(&world, move |world| {
                let write = |number: u64, rules| {
                    let options = PutOptions { rules, ..PutOptions::default() };
                    let value = value(0, number, 60).to_vec().into();
                    match block_on(world.store.put(&key(&name_of(0)), value, options)) {
                        Ok(put) => Ok(put.version),
                        Err(Error::ConditionFailed { current, .. }) => Err(current),
                        Err(error) => panic!("client {client}: {error}"),
                    }
                };
                let created = write(1, RejectRules { if_exists: true, ..RejectRules::default() });
                let mut seen: Lsn = match created {
                    Ok(version) => version,
                    Err(current) => current.expect("somebody created it, and nobody deletes"),
                };
                loop {
                    let read = block_on(world.store.get(&key(&name_of(0)), shoal_engine::ByteRange::ALL));
                    let object = read.unwrap().expect("it was created");
                    assert!(object.info.version >= seen, "{:?} after {seen:?}", object.info.version);
                    let rules =
                        RejectRules { if_version_not: Some(object.info.version), ..RejectRules::default() };
                    match write(number_of(Some(&object)) + 1, rules) {
                        Ok(_) => return u64::from(created.is_ok()),
                        Err(current) => seen = current.expect("nobody deletes"),
                    }
                }
            })
        });
        assert_eq!(join(clients.collect()).iter().sum::<u64>(), 1, "one creates it");
        assert_eq!(world.get(0), 4, "created with 1, counted up by three");
    });
}

/// Write batches over keys of both tablets, beside writers of one of them: a crash leaves all of a batch or nothing (R22).
#[test]
fn a_write_batch_is_all_or_nothing() {
    const KEYS: [u64; 3] = [0, 1, 2];
    let image = formatted(BLOCKS);
    explore("write batches", Share::Few, move || {
        let world = World::open(&image, tiny_with_memtables(4));
        let batches = (0..2).map(|_| {
            spawn(&world, move |world| {
                for _ in 0..2 {
                    let keys = KEYS.map(|name| (key(&name_of(name)), ReadLevel::Value));
                    // Made again if another write came between, so only the numbers of the last time count.
                    let decide = |objects: &[Option<Object>]| {
                        let numbers = [0, 1, 2].map(|at| number_of(objects[at].as_ref()));
                        Decision::Do(KEYS.map(|name| put(name, numbers[0] + 1)).to_vec().into(), numbers)
                    };
                    let outcome = block_on(world.store.transact(&keys, &TransactOptions::default(), decide));
                    let done = outcome.unwrap().done();
                    let seen = done.answer;
                    assert!(seen.iter().all(|&number| number == seen[0]), "half of a batch: {seen:?}");
                    for pending in done.pending {
                        block_on(pending.durable()).unwrap();
                    }
                    world.sim.mark(mark(0, seen[0] + 1));
                }
            })
        });
        let beside = spawn(&world, |world| world.put_all(9, 1..=3, 1_500));
        join(batches.chain([beside]).collect());
        KEYS.iter().for_each(|&name| assert_eq!(world.get(name), 4));
        world.crash(tiny_with_memtables(4), |world, promised| {
            let found = KEYS.map(|name| world.get(name));
            assert!(found.iter().all(|&number| number == found[0]), "half of a batch: {found:?}");
            assert!((promised(0)..=4).contains(&found[0]), "{found:?}");
            assert!(world.get(9) >= promised(9));
        });
    });
}
