//! Group commit: the answers to writers, and the values after them.

use shoal_device_sim::{Fault, FaultOp};
use shoal_engine::Error;
use shuttle::rand::{Rng, thread_rng};

use super::common::tiny_with_memtables;
use super::{Share, World, explore, formatted, join, spawn};

const BLOCKS: u64 = 256;
/// A value of each home: in the leaf, packed, with separate extents.
const SIZES: [usize; 3] = [60, 1_500, 5_000];
const EIO: i32 = 5;

/// Three writers, some of which apply; a crash at any moment keeps all acknowledged values, and no value that was never
/// written.
fn writers(name: &str, share: Share, memtable_records: usize, numbers: u64) {
    let image = formatted(BLOCKS);
    explore(name, share, move || {
        let world = World::open(&image, tiny_with_memtables(memtable_records));
        let clients = (0..3).map(|client| {
            let bytes = SIZES[client as usize];
            spawn(&world, move |world| world.put_all(client, 1..=numbers, bytes))
        });
        join(clients.collect());
        (0..3).for_each(|client| assert_eq!(world.get(client), numbers));
        world.crash(tiny_with_memtables(memtable_records), |world, promised| {
            for client in 0..3 {
                let (found, least) = (world.get(client), promised(client));
                assert!((least..=numbers).contains(&found), "client {client}: {found}, {least} was promised");
            }
        });
    });
}

#[test]
fn group_acknowledged_writes_survive_crash() {
    writers("group commit", Share::All, 40, 2);
}

#[test]
fn acknowledged_writes_survive_apply_and_publish() {
    writers("commit, apply, publish", Share::Few, 2, 3);
}

/// One flush fails, of any thread. Every writer gets an answer; writes that were acknowledged are there after a crash; no
/// write succeeds any more.
#[test]
fn failed_flush_reaches_all_dependents() {
    let image = formatted(BLOCKS);
    explore("a failed flush", Share::All, move || {
        let world = World::open(&image, tiny_with_memtables(3));
        let flush = thread_rng().gen_range(0..5);
        world.sim.inject(Fault::fail(FaultOp::Flush, EIO).after(flush));
        let clients = (0..3).map(|client| {
            spawn(&world, move |world| {
                for number in 1..=2 {
                    match world.put(client, number, SIZES[client as usize]) {
                        Ok(_) => world.sim.mark(super::mark(client, number)),
                        Err(Error::Unknown(_)) => return number,
                        // The flush was that of an apply which made room for it: it had no effect.
                        Err(Error::Poisoned(_) | Error::Io(_)) => return number - 1,
                        Err(error) => panic!("client {client}: {error}"),
                    }
                }
                2
            })
        });
        let begun = join(clients.collect());
        if world.sim.injected() > 0 {
            assert!(matches!(world.put(7, 1, 60), Err(Error::Poisoned(_))), "a flush failed");
        }
        world.sim.clear_faults();
        world.crash(tiny_with_memtables(3), |world, promised| {
            for (client, &begun) in (0..).zip(&begun) {
                let (found, least) = (world.get(client), promised(client));
                assert!((least..=begun).contains(&found), "client {client}: {found}, {least} was promised");
            }
        });
    });
}

/// A store is closed while it is written to: writes that were acknowledged are there, refused ones are not.
#[test]
fn closing_answers_every_writer() {
    let image = formatted(BLOCKS);
    explore("closing", Share::All, move || {
        let world = World::open(&image, tiny_with_memtables(3));
        let clients = (0..2).map(|client| {
            spawn(&world, move |world| {
                let mut done = 0;
                for number in 1..=2 {
                    match world.put(client, number, SIZES[client as usize]) {
                        Ok(_) => done = number,
                        Err(Error::Closed) => break,
                        Err(error) => panic!("client {client}: {error}"),
                    }
                }
                done
            })
        });
        let clients: Vec<_> = clients.collect();
        shoal_base::task::block_on(world.store.close()).unwrap();
        let done = join(clients);
        let World { sim, store } = world;
        drop(store);
        let again = World::open(&sim.image(), tiny_with_memtables(3));
        for (client, done) in (0..).zip(done) {
            assert_eq!(again.get(client), done, "client {client}");
        }
    });
}
