//! Readers beside writers, applies, publishing and the reuse of space.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shoal_base::task::block_on;
use shoal_engine::{ByteRange, ListRequest, RejectRules};
use shoal_testkit::bytes::name_of;
use shoal_testkit::linear::{HistoryEntry, KeyAction, KeyHistories};

use super::common::{key, tiny_with_memtables};
use super::{Share, World, explore, formatted, join, mark, spawn};

/// Three clients on two keys: an order of their operations explains all answers, and every state that a reader saw is there after
/// a crash.
#[test]
fn operations_on_a_key_are_linearizable() {
    let image = formatted(256);
    explore("linearizable", Share::Few, move || {
        let world = World::open(&image, tiny_with_memtables(2));
        // Orders nothing for the store: the threads of a schedule run one at a time.
        let clock = Arc::new(AtomicU64::new(0));
        let clients = (0..3_u64).map(|client| {
            let clock = clock.clone();
            spawn(&world, move |world| {
                let now = || clock.fetch_add(1, Ordering::SeqCst);
                let mut notes = Vec::new();
                for turn in 0..3 {
                    let (name, called) = ((client + turn) % 2, now());
                    let action = match (client + 2 * turn) % 4 {
                        0 | 2 => {
                            let number = 1 + client * 10 + turn;
                            world.put(name, number, [60, 1_500][(turn % 2) as usize]).unwrap();
                            KeyAction::Write(number)
                        }
                        1 => KeyAction::Read(Some(world.get(name)).filter(|&number| number > 0)),
                        _ => {
                            let key = key(&name_of(name));
                            block_on(world.store.delete(&key, RejectRules::default())).unwrap();
                            KeyAction::Delete
                        }
                    };
                    notes.push((name, HistoryEntry { client, called, answered: Some(now()), action }));
                }
                notes
            })
        });
        let clients: Vec<_> = clients.collect();
        let mut history = KeyHistories::default();
        for (name, entry) in join(clients).into_iter().flatten() {
            history.push(&name_of(name), entry);
        }
        history.check().unwrap_or_else(|violation| panic!("{violation}"));
    });
}

/// A reader never sees a value that a crash may still remove, nor an older number after a newer one.
#[test]
fn value_seen_by_reader_survives_crash() {
    const NUMBERS: u64 = 3;
    let image = formatted(256);
    explore("readers and a crash", Share::All, move || {
        let world = World::open(&image, tiny_with_memtables(2));
        let writer = spawn(&world, |world| world.put_all(0, 1..=NUMBERS, 60));
        let readers = (0..2).map(|_| {
            spawn(&world, |world| {
                let mut newest = 0;
                for _ in 0..3 {
                    let seen = world.get(0);
                    assert!(seen >= newest, "{seen} after {newest}");
                    newest = seen;
                    world.sim.mark(mark(0, seen));
                }
            })
        });
        join(readers.chain([writer]).collect());
        world.crash(tiny_with_memtables(2), |world, promised| {
            let (found, least) = (world.get(0), promised(0));
            assert!((least..=NUMBERS).contains(&found), "{found}, {least} was seen");
        });
    });
}

/// Values are overwritten, applied, published, their space used again, while a reader is in the middle of one.
#[test]
fn a_slow_reader_keeps_its_value() {
    let image = formatted(200);
    explore("a slow reader", Share::Few, move || {
        let world = World::open(&image, tiny_with_memtables(2));
        world.put_all(0, 1..=1, 9_000);
        world.put_all(1, 1..=1, 1_500);
        let readers = [(0, 9_000_usize), (1, 1_500)].map(|(name, bytes)| {
            spawn(&world, move |world| {
                let name_key = key(&name_of(name));
                let mut stream =
                    block_on(world.store.get_stream(&name_key, ByteRange::ALL)).unwrap().unwrap();
                shuttle::thread::yield_now();
                let mut read = Vec::new();
                while let Some(piece) = block_on(stream.next()).unwrap() {
                    read.extend(piece.to_vec());
                }
                let number = u64::from_le_bytes(*read.first_chunk().unwrap());
                super::value(name, number, bytes).check(&read).unwrap();
            })
        });
        let writers = [(0, 9_000), (1, 1_500)].map(|(name, bytes)| {
            spawn(&world, move |world| {
                for number in 2..=5 {
                    world.put(name, number, bytes).unwrap();
                }
            })
        });
        join(readers.into_iter().chain(writers).collect());
        assert_eq!([world.get(0), world.get(1)], [5, 5]);
    });
}

/// Pages of a listing beside writers that apply: an object that is there all the time is listed once, in its order.
#[test]
fn listing_includes_keys_present_throughout() {
    const STAYING: u64 = 4;
    let image = formatted(256);
    explore("a listing", Share::Few, move || {
        let world = World::open(&image, tiny_with_memtables(2));
        (0..STAYING).for_each(|name| world.put_all(name, 1..=1, 60));
        let writers = (0..2).map(|which: u64| {
            spawn(&world, move |world| {
                world.put(which, 2, 1_500).unwrap();
                world.put(50 + which, 1, 60).unwrap();
                let gone = key(&name_of(50 + which));
                block_on(world.store.delete(&gone, RejectRules::default())).unwrap();
                world.put(STAYING - 1 - which, 2, 60).unwrap();
            })
        });
        let lister = spawn(&world, |world| {
            let mut request = ListRequest { bucket: "default".into(), limit: 2, ..ListRequest::default() };
            let mut listed = Vec::new();
            loop {
                let page = block_on(world.store.list(&request)).unwrap();
                listed.extend(page.entries.into_iter().map(|(key, _)| key));
                match page.next {
                    Some(next) => request.start_after = next,
                    None => break,
                }
            }
            assert!(listed.is_sorted_by(|one, next| one < next), "{listed:?}");
            for name in 0..STAYING {
                assert!(listed.contains(&name_of(name)), "key {name} is missing: {listed:?}");
            }
        });
        join(writers.chain([lister]).collect());
    });
}
