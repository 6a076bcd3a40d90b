//! Linearizability (P5, T11 of `docs/reliability.md`) inside one process: eight clients on 64 keys, a slow device whose flushes start to
//! fail and that loses any data it may lose; the store opens again and the same history continues.
//!
//! Every answer to a client stays true: the history has it with the moments of call and answer, and a write of unknown outcome stays
//! pending. `cli/tests/shoal/linear.rs` does the same through gRPC, RESP and `kill -9`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_base::{Entropy, SeededEntropy};
use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image, Latency, SimDevice, SimOptions};
use shoal_engine::{Error, Lsn, OpenOptions, PutOptions, RejectRules, Result, Store, block_on};
use shoal_testkit::Value;
use shoal_testkit::bytes::name_of;
use shoal_testkit::lab;
use shoal_testkit::linear::{HistoryEntry, KeyAction, KeyHistories, World};

use crate::common::{ByName, formatted, key, long_life, open, tiny};

const BLOCKS: u64 = 1_024;
const CLIENTS: u64 = 8;
const KEYS: u64 = 64;
/// Operations of a client between two crashes.
const OPERATIONS: u64 = 84;
/// Lives of a store in one history.
const LIVES: u64 = 3;
const SIZES: [usize; 6] = [16, 60, 300, 1_500, 3_000, 9_000];

pub(crate) fn options() -> OpenOptions {
    let mut options = tiny();
    options.background = true;
    options.tuning.memtable_records_max = 40;
    options.tuning.seal_after_ns = 200_000;
    options
}

pub(crate) fn slow(image: Image) -> Arc<SimDevice> {
    let latency =
        Latency { read_ns: 3_000, write_ns: 10_000, flush_ns: 20_000, slow_every: 50, slow_times: 20 };
    SimDevice::with_options(image, SimOptions { latency, ..SimOptions::default() })
}

/// The state of a key: the number of its write, and the version.
fn read(store: &Store, number: u64) -> Result<Option<(u64, Lsn)>> {
    let Some(object) = store.find(name_of(number))? else { return Ok(None) };
    Ok(Some((Value::write_of(number, &object.value.to_vec(), &SIZES), object.info.version)))
}

fn write(store: &Store, number: u64, written: u64, rules: RejectRules) -> Result<Lsn> {
    let options = PutOptions { rules, expiry: long_life(written), ..PutOptions::default() };
    store.set_with(name_of(number), Value::of_write(number, written, &SIZES).to_vec(), options).map(Lsn)
}

/// The result of an operation.
enum Ended {
    /// The operation returned this answer.
    As(KeyAction),
    /// The outcome is unknown.
    Open(KeyAction),
    /// The operation had no effect.
    Refused,
}

fn outcome<T>(result: Result<T>, done: KeyAction, rejected: KeyAction) -> Ended {
    match result {
        Ok(_) => Ended::As(done),
        Err(Error::ConditionFailed { .. }) => Ended::As(rejected),
        Err(Error::Unknown(_)) => Ended::Open(done),
        Err(Error::Poisoned(_) | Error::Busy(_) | Error::Full { .. }) => Ended::Refused,
        Err(error) => panic!("{done:?}: {error}"),
    }
}

/// One client: returns its history when the store becomes read-only.
fn client(store: &Store, world: &World, id: u64, dice: &SeededEntropy) -> KeyHistories {
    let mut history = KeyHistories::default();
    for _ in 0..OPERATIONS {
        let number = dice.below(KEYS);
        let key = key(name_of(number));
        let mut called = world.now();
        let ended = match dice.below(8) {
            0..=2 => Ended::As(KeyAction::Read(read(store, number).unwrap().map(|(seed, _)| seed))),
            3 | 4 => {
                let written = world.next_write();
                let action = KeyAction::Write(written);
                outcome(write(store, number, written, RejectRules::default()), action, action)
            }
            5 => {
                let written = world.next_write();
                let rules = RejectRules { if_exists: true, ..RejectRules::default() };
                let action = |done| KeyAction::Create(written, done);
                outcome(write(store, number, written, rules), action(true), action(false))
            }
            6 => outcome(
                block_on(store.delete(&key, RejectRules::default())),
                KeyAction::Delete,
                KeyAction::Delete,
            ),
            _ => {
                let before = read(store, number).unwrap();
                let read = KeyAction::Read(before.map(|(seed, _)| seed));
                history.push(
                    &name_of(number),
                    HistoryEntry { client: id, called, answered: Some(world.now()), action: read },
                );
                let Some((seed, version)) = before else { continue };
                called = world.now();
                let written = world.next_write();
                let rules = RejectRules { if_version_not: Some(version), ..RejectRules::default() };
                let action = |done| KeyAction::Swap(seed, written, done);
                outcome(write(store, number, written, rules), action(true), action(false))
            }
        };
        let (answered, action) = match ended {
            Ended::As(action) => (Some(world.now()), action),
            Ended::Open(action) => (None, action),
            Ended::Refused => {
                if store.stat().poisoned.is_some() {
                    break;
                }
                continue;
            }
        };
        history.push(&name_of(number), HistoryEntry { client: id, called, answered, action });
    }
    history
}

/// Returns an image that a power cut leaves of `sim`: any state that is legal at the end.
pub(crate) fn power_cut(sim: &SimDevice, dice: &SeededEntropy) -> Image {
    let mut states = Vec::new();
    sim.history().for_each_crash_state(8, dice.next_u64(), |point, image| {
        if point.marks.last() == Some(&1) {
            states.push(image);
        }
    });
    let chosen = dice.below(states.len() as u64) as usize;
    states.swap_remove(chosen)
}

/// One history: several lives of one store, each ended by failing flushes and a power cut, the last one by a close.
fn history(seed: u64) -> KeyHistories {
    let dice = SeededEntropy::new(seed);
    let base = formatted(BLOCKS, seed);
    let mut image = base.image();
    let world = World::default();
    let mut history = KeyHistories::default();
    for life in 0..LIVES {
        let sim = slow(image);
        let store = open(&Device::new(sim.clone()), options()).unwrap();
        let is_last = life + 1 == LIVES;
        if !is_last {
            sim.inject(Fault::fail(FaultOp::Flush, libc::EIO).after(20 + dice.below(120)).for_good());
        }
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|id| {
                    let (store, world, dice) = (&store, &world, SeededEntropy::new(dice.next_u64()));
                    scope.spawn(move || client(store, world, id, &dice))
                })
                .collect();
            for client in clients {
                history.merge(client.join().unwrap());
            }
        });
        if is_last {
            block_on(store.close()).unwrap();
            assert_eq!(store.stat().pool.frames_pinned, 0, "frames are pinned at the end");
        }
        drop(store);
        sim.mark(1);
        image = power_cut(&sim, &dice);
    }
    let store = open(&Device::new(SimDevice::from_image(image)), tiny()).unwrap();
    for number in 0..KEYS {
        let called = world.now();
        let action = KeyAction::Read(read(&store, number).unwrap().map(|(seed, _)| seed));
        history.push(
            &name_of(number),
            HistoryEntry { client: CLIENTS, called, answered: Some(world.now()), action },
        );
    }
    history
}

/// 500 histories of about 2,000 operations in the laboratory; several at a time, since each waits for its device.
#[test]
fn histories_are_linearizable() {
    let (count, first) = (lab::number("HISTORIES", 6), 10_000 * lab::number("SEED", 1));
    let [operations, pending, checking_us] = [const { AtomicU64::new(0) }; 3];
    let began = Instant::now();
    lab::on_each_core(2, count, |number| {
        let seed = first + number;
        let history = history(seed);
        let counts = history.counts();
        operations.fetch_add(counts.0 as u64, Ordering::Relaxed);
        pending.fetch_add(counts.1 as u64, Ordering::Relaxed);
        let checked = Instant::now();
        history
            .check()
            .unwrap_or_else(|wrong| panic!("history {seed} (its timing does not repeat): {wrong}"));
        checking_us.fetch_add(checked.elapsed().as_micros() as u64, Ordering::Relaxed);
    });
    let (operations, pending) = (operations.into_inner(), pending.into_inner());
    println!(
        "{count} histories, {operations} operations, {pending} of unknown outcome, in {:?}, of which {:?} checking: \
         all linearizable",
        began.elapsed(),
        Duration::from_micros(checking_us.into_inner()),
    );
    assert!(pending > 0 && operations > 800 * count, "{pending} pending of {operations} operations");
}
