//! Writes within the device find no room, as in a data file on a full copy-on-write file system: they are refused, nothing refused appears,
//! and the store accepts writes again by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shoal_base::ManualClock;
use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, SimDevice};
use shoal_engine::{Error, Lsn, OpenOptions, RejectRules, Store, block_on};
use shoal_testkit::lab;
use shoal_testkit::wait::{eventually, within};

use crate::common::{
    ByName, assert_clean, formatted, key, open, open_at, open_in_real_time, tiny, tiny_with_threads,
};

const BLOCKS: u64 = 2_048;
const SIZES: [usize; 5] = [10, 300, 3_000, 9_000, 70_000];

fn no_room() -> Fault {
    Fault::fail(FaultOp::Write, libc::ENOSPC)
}

/// The possible states of a client's key: after its last acknowledged write, or after one of unknown outcome.
#[derive(Default)]
struct Allowed {
    acknowledged: Option<u64>,
    unknown: Vec<u64>,
    refused: u64,
}

impl Allowed {
    fn note(&mut self, number: u64, result: &shoal_engine::Result<u64>) {
        match result {
            Ok(_) => {
                self.acknowledged = Some(number);
                self.unknown.clear();
            }
            Err(Error::NoRoom(_) | Error::Full { .. }) => self.refused += 1,
            Err(Error::Unknown(_)) => self.unknown.push(number),
            Err(error) => panic!("write {number}: {error}"),
        }
    }

    fn check(&self, which: u64, store: &Store) {
        let found = store.find(name(which)).unwrap().map(|object| object.value.to_vec());
        let found = found.map(|bytes| u64::from_le_bytes(bytes[..8].try_into().unwrap()));
        let unknown = found.is_some_and(|found| self.unknown.contains(&found));
        assert!(
            found == self.acknowledged || unknown,
            "client {which}: {found:?} is there; {:?} was acknowledged, of {:?} nothing is known",
            self.acknowledged,
            self.unknown
        );
    }
}

fn name(which: u64) -> Vec<u8> {
    format!("client-{which}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    let mut bytes = vec![number as u8; SIZES[number as usize % SIZES.len()]];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Clients overwrite separate keys while the device sometimes has no room: for one write, for a part of one, or for a while.
#[test]
fn writes_resume_as_room_comes_and_goes() {
    for round in 0..lab::number("NO_ROOM_ROUNDS", 3) {
        within(&format!("round {round}"), move || clients(round));
    }
}

fn clients(round: u64) {
    let sim = formatted(BLOCKS, round);
    let device = Device::new(sim.clone());
    let store = open_in_real_time(&device, tiny_with_threads());
    let is_over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..4)
        .map(|which| {
            let (store, is_over) = (store.clone(), is_over.clone());
            std::thread::spawn(move || {
                let mut allowed = Allowed::default();
                for number in 1.. {
                    let result = store.set(name(which), value(number));
                    allowed.note(number, &result);
                    if number % 7 == 0 {
                        allowed.check(which, &store);
                    }
                    if is_over.load(Ordering::Relaxed) {
                        return allowed;
                    }
                }
                unreachable!("the loop has no end")
            })
        })
        .collect();
    for turn in 0..30_u64 {
        let fault = no_room().after(turn % 5).leaving([0, 1, u64::MAX][turn as usize % 3]);
        sim.inject(if turn % 4 == 3 { fault.for_good() } else { fault });
        std::thread::sleep(Duration::from_millis(10));
        sim.clear_faults();
        std::thread::sleep(Duration::from_millis(5));
    }
    eventually("a write gets room again", || store.set("after", b"room").is_ok());
    is_over.store(true, Ordering::Relaxed);
    let allowed: Vec<Allowed> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(allowed.iter().map(|one| one.refused).sum::<u64>() > 0, "nothing was refused");
    eventually("the state clears", || store.stat().no_room.is_none());
    assert_eq!(store.stat().poisoned, None);
    for (which, allowed) in allowed.iter().enumerate() {
        assert!(allowed.acknowledged.is_some());
        allowed.check(which as u64, &store);
    }
    // Killed here, or closed.
    if round.is_multiple_of(2) {
        block_on(store.close()).unwrap();
    }
    drop(store);
    let again = SimDevice::from_image(sim.image());
    let device = Device::new(again);
    let store = open(&device, tiny()).unwrap();
    for (which, allowed) in allowed.iter().enumerate() {
        allowed.check(which as u64, &store);
    }
    drop(store);
    assert_clean(&device, "after the room came and went");
}

/// Without any room reads work, writes and deletes are refused until there is room, and nobody reopens the store.
#[test]
fn a_store_without_any_room_serves_reads() {
    for background in [false, true] {
        let sim = formatted(BLOCKS, 1);
        let device = Device::new(sim.clone());
        let store = open_in_real_time(&device, OpenOptions { background, ..tiny() });
        let old: BTreeMap<_, _> =
            (0..20).map(|which| (name(which), store.set(name(which), value(which)).unwrap())).collect();
        let before = store.stat();
        sim.inject(no_room().for_good());
        for which in 0..20 {
            let refused = store.set(name(which), value(100 + which));
            assert!(matches!(refused, Err(Error::NoRoom(_))), "{refused:?}");
            let refused = block_on(store.delete(&key(name(which)), RejectRules::default()));
            assert!(matches!(refused, Err(Error::NoRoom(_))), "{refused:?}");
            let object = store.find(name(which)).unwrap().unwrap();
            assert_eq!((object.info.version, object.value.to_vec()), (Lsn(old[&name(which)]), value(which)));
        }
        let stat = store.stat();
        let why = stat.no_room.clone().unwrap_or_default();
        assert!(why.contains("file system is full"), "background {background}: {why:?}");
        assert_eq!(stat.poisoned, None);
        // A refused write keeps nothing. A background apply lends and takes room meanwhile.
        if !background {
            assert!(stat.memtable_records <= before.memtable_records, "{stat:?}");
            assert!(stat.free_blocks >= before.free_blocks, "{stat:?}");
        }
        sim.clear_faults();
        eventually("deletes work", || store.remove(name(0)).is_ok());
        // The lack of room for values is over when one of them finds room. An apply that failed before may note its failure after that.
        for which in 1..5 {
            eventually("values are set", || store.set(name(which), value(which)).is_ok());
        }
        eventually("a value is overwritten", || store.set(name(1), value(7)).is_ok());
        eventually("the state clears", || store.stat().no_room.is_none());
        block_on(store.close()).unwrap();
        drop(store);
        let store = open(&device, tiny()).unwrap();
        assert!(store.find(name(0)).unwrap().is_none());
        assert_eq!(store.find(name(1)).unwrap().unwrap().value.to_vec(), value(7));
        drop(store);
        assert_clean(&device, "after a time without room");
    }
}

/// Symptom: an apply whose superblock had no room freed blocks twice, or the extents of records that were still in the memtable. Cause: it
/// returned the blocks that it had taken and freed again, which have owners. Fix: the owners return them.
#[test]
fn apply_without_superblock_room_frees_nothing() {
    const SUPERBLOCKS: std::ops::Range<u64> = 0..34;
    let sim = formatted(BLOCKS, 1);
    let device = Device::new(sim.clone());
    let store = open_in_real_time(&device, OpenOptions { background: false, ..tiny() });
    let value =
        |round: u8, which: u64| vec![round; [300, 3_000, 9_000, 40_000][which as usize % 4] + which as usize];
    for round in 0..12 {
        sim.inject(no_room().for_good().at(SUPERBLOCKS));
        let mut refused = 0;
        for which in 0..40 {
            match store.set(name(which % 20), value(100 + round, which)) {
                Ok(_) => {}
                Err(Error::NoRoom(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 0, "round {round}: no apply was due");
        sim.clear_faults();
        for which in 0..20 {
            eventually("writes go on", || store.set(name(which), value(round, which)).is_ok());
        }
        for which in 0..20 {
            assert_eq!(store.find(name(which)).unwrap().unwrap().value.to_vec(), value(round, which));
        }
        assert_eq!(store.stat().poisoned, None);
    }
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "after superblocks without room");
}

/// The first superblock of an opening finds no room: the store serves reads, and accepts writes once there is room.
#[test]
fn an_opening_without_room_serves_reads() {
    for background in [false, true] {
        let sim = formatted(BLOCKS, 1);
        let device = Device::new(sim.clone());
        let store = open(&device, tiny()).unwrap();
        for which in 0..20 {
            store.set(name(which), value(which)).unwrap();
        }
        drop(store);
        sim.inject(no_room().for_good());
        let store = open_in_real_time(&device, OpenOptions { background, ..tiny() });
        for which in 0..20 {
            assert_eq!(store.find(name(which)).unwrap().unwrap().value.to_vec(), value(which));
        }
        let refused = store.set("new", b"value");
        assert!(matches!(refused, Err(Error::NoRoom(_))), "{refused:?}");
        assert!(store.stat().no_room.is_some());
        assert!(store.no_room_reason().unwrap().contains("file system is full"));
        sim.clear_faults();
        eventually("writes are taken", || store.set("new", b"value").is_ok());
        // An apply that failed before may note its failure after that.
        eventually("the state clears", || (store.stat().no_room, store.no_room_reason()) == (None, None));
        // Killed.
        let again = Device::new(SimDevice::from_image(sim.image()));
        drop(store);
        let store = open(&again, tiny()).unwrap();
        assert_eq!(store.find("new").unwrap().unwrap().value.to_vec(), b"value");
        for which in 0..20 {
            assert_eq!(store.find(name(which)).unwrap().unwrap().value.to_vec(), value(which));
        }
        drop(store);
        assert_clean(&again, "after an opening without room");
    }
}

/// A quota and a limit of file sizes are named as such, and no growth is suggested.
#[test]
fn the_refusal_names_its_cause() {
    for (code, words) in [(libc::EDQUOT, "quota"), (libc::EFBIG, "ulimit -f"), (libc::ENOSPC, "full")] {
        let sim = formatted(BLOCKS, 1);
        let store = open(&Device::new(sim.clone()), tiny()).unwrap();
        sim.inject(Fault::fail(FaultOp::Write, code).for_good());
        let refused = store.set("key", b"value").unwrap_err().to_string();
        assert!(refused.contains(words) && !refused.contains("grow"), "{refused}");
    }
}

/// Symptom: `/readyz` was ready although each write was refused: its value found no room in the data file, and the log had some. Cause:
/// only a log without room and a store without free blocks counted. Fix: such writes count, and the store itself retries whether values
/// find room: it may get no writes while it is not ready.
#[test]
fn values_without_room_are_a_standstill_until_there_is_room() {
    within("a standstill of values", || {
        let sim = formatted(BLOCKS, 5);
        let clock = Arc::new(ManualClock::new(1_000));
        let mut options = tiny_with_threads();
        options.tuning.file_look_ns = 1_000_000;
        let store = open_at(&Device::new(sim.clone()), options, &clock).unwrap();
        store.set("before", value(4)).unwrap();
        // The log has room: its ring precedes all values.
        sim.inject(no_room().for_good().at(64..BLOCKS));
        let stands_still = || {
            clock.advance(100_000_000);
            let refused = store.set("long", value(4));
            assert!(matches!(refused, Err(Error::NoRoom(_))), "{refused:?}");
            store.standstill_reason()
        };
        assert_eq!(stands_still(), None, "not yet");
        eventually("the standstill", || stands_still().is_some());
        let reason = store.standstill_reason().unwrap();
        assert!(reason.contains("the data file has no room: its file system is full"), "{reason}");
        assert_eq!(store.no_room_reason(), None, "short writes are taken");
        std::thread::sleep(Duration::from_millis(20));
        assert!(store.standstill_reason().is_some(), "without room it stays");
        sim.clear_faults();
        eventually("the end of the standstill", || {
            // An apply that found no room is tried again.
            clock.advance(100_000_000);
            store.standstill_reason().is_none()
        });
        store.set("long", value(4)).unwrap();
        block_on(store.close()).unwrap();
    });
}
