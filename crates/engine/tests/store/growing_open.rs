//! A cap that is raised while the store is in use: no write is refused, and a crash at any write leaves the old cap or the new one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice};
use shoal_engine::{ByteRange, CapChange, Error, OpenOptions, Store, block_on};
use shoal_testkit::device::growable;
use shoal_testkit::lab;

use crate::common::{ByName, assert_clean, checked, fill, format, key, open, read, tiny, tiny_with_threads};
use crate::growing::areas;

const BLOCKS: u64 = 320;
const VALUE_BYTES: usize = 9_000;

fn put(store: &Store, name: &str, byte: u8) -> shoal_engine::Result<u64> {
    store.set(name, vec![byte; VALUE_BYTES])
}

/// Puts objects from number `from` until the store is full; returns the number after the last one.
fn fill_from(store: &Store, from: u32) -> u32 {
    fill(from.into(), |which| put(store, &format!("{which:05}"), which as u8)) as u32
}

fn assert_holds(store: &Store, objects: std::ops::Range<u32>) {
    for which in objects {
        let (_, value) = read(store, format!("{which:05}").as_bytes()).unwrap().unwrap();
        assert!(value.len() == VALUE_BYTES && value.iter().all(|&byte| byte == which as u8), "{which}");
    }
}

#[test]
fn a_full_store_takes_writes_again_while_it_is_open() {
    for options in [tiny(), tiny_with_threads()] {
        let device = Device::new(growable(Image::new(1)));
        format(&device, BLOCKS, 1);
        let store = open(&device, options).unwrap();
        let mut objects = fill_from(&store, 0);
        let mut before = BLOCKS;
        // From 64 groups of 16 blocks to groups of 256.
        for now in [600, 900, 20_000] {
            assert_eq!(block_on(store.grow(Some(now))).unwrap(), CapChange { before, now });
            assert_eq!(store.stat().blocks_max, now);
            let wanted = if now < 1_000 { u32::MAX } else { objects + 300 };
            while objects < wanted {
                let more = match put(&store, &format!("{objects:05}"), objects as u8) {
                    Ok(_) => true,
                    Err(Error::Full { .. }) => false,
                    Err(error) => panic!("{error}"),
                };
                if !more {
                    break;
                }
                objects += 1;
            }
            assert!(u64::from(objects) > (now.min(1_400) - 250) / 4, "{objects} objects in {now} blocks");
            assert_holds(&store, 0..objects);
            before = now;
        }
        assert_eq!(block_on(store.grow(Some(before))).unwrap(), CapChange { before, now: before });
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "a store that grew while it was open");
        let store = open(&device, tiny()).unwrap();
        assert_eq!(store.stat().blocks_max, before);
        assert_holds(&store, 0..objects);
    }
}

#[test]
fn an_impossible_growth_is_refused_and_changes_nothing() {
    let sim = growable(Image::new(1));
    let device = Device::new(sim.clone());
    format(&device, BLOCKS, 1);
    let store = open(&device, tiny()).unwrap();
    let refused = |store: &Store, blocks: Option<u64>, words: &str| match block_on(store.grow(blocks)) {
        Err(Error::Invalid(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{other:?}"),
    };
    let before = sim.image();
    refused(&store, Some(BLOCKS - 1), "cannot shrink to 319");
    refused(&store, Some(BLOCKS + 1), "too close to the present cap");
    refused(&store, Some(u64::MAX), "(64 TiB)");
    refused(&store, None, "a size is missing");
    assert!(before.differences(&sim.image()).is_empty());
    // The file system has no room for the areas.
    for op in [FaultOp::Grow, FaultOp::Write] {
        sim.inject(Fault::fail(op, libc::ENOSPC));
        let why = block_on(store.grow(Some(600))).unwrap_err().to_string();
        assert!(why.contains("did not grow: the data file needs 1 MiB more"), "{why}");
        sim.clear_faults();
        put(&store, "a", 1).unwrap();
        assert_eq!(store.stat().blocks_max, BLOCKS);
    }
    block_on(store.grow(Some(600))).unwrap();
    block_on(store.close()).unwrap();
    assert!(matches!(block_on(store.grow(Some(900))), Err(Error::Closed)));
    drop(store);
    let store = open(&device, OpenOptions { read_only: true, ..tiny() }).unwrap();
    assert!(block_on(store.grow(Some(900))).is_err());
    let fixed = Device::new(SimDevice::new(BLOCKS));
    format(&fixed, BLOCKS, 1);
    let store = open(&fixed, tiny()).unwrap();
    refused(&store, Some(600), "its device has 320 (1 MiB). Enlarge the device first");
    assert_eq!(block_on(store.grow(None)).unwrap(), CapChange { before: BLOCKS, now: BLOCKS });
}

/// A raw device that became larger: without a size the store takes all of it, and all of it is usable at once.
#[test]
fn a_store_takes_all_of_a_larger_device() {
    let device = Device::new(SimDevice::new(1_000));
    format(&device, BLOCKS, 1);
    let store = open(&device, tiny()).unwrap();
    let first = fill_from(&store, 0);
    assert_eq!(block_on(store.grow(None)).unwrap(), CapChange { before: BLOCKS, now: 1_000 });
    assert_eq!(store.stat().device_blocks, 1_000);
    let second = fill_from(&store, first);
    assert!(second > first + 120, "{first}, then {second} objects");
    assert_holds(&store, 0..second);
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "a store that took all of its device");
}

/// A writer overwrites in a nearly full store without a pause, and adds objects as soon as there is more room.
#[test]
fn no_write_is_refused_while_the_store_grows() {
    for is_file in [true, false] {
        let device =
            if is_file { Device::new(growable(Image::new(1))) } else { Device::new(SimDevice::new(4_000)) };
        format(&device, BLOCKS, 1);
        let store = open(&device, tiny_with_threads()).unwrap();
        let full = fill_from(&store, 0);
        for which in full - 8..full {
            store.remove(format!("{which:05}")).unwrap();
        }
        let mut objects = full - 8;
        let (grown, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut seen = 0;
                for turn in 0.. {
                    let which = turn % (full - 8);
                    put(&store, &format!("{which:05}"), which as u8).unwrap();
                    // Each growth is by 300 blocks: 50 objects of three blocks fit with their overhead.
                    if grown.load(Ordering::Acquire) > seen {
                        seen += 1;
                        for _ in 0..50 {
                            put(&store, &format!("{objects:05}"), objects as u8).unwrap();
                            objects += 1;
                        }
                    }
                    if is_over.load(Ordering::Acquire) && seen == grown.load(Ordering::Acquire) {
                        return turn;
                    }
                }
                unreachable!()
            });
            for growth in 1..=12 {
                block_on(store.grow(Some(BLOCKS + 300 * growth))).unwrap();
                grown.fetch_add(1, Ordering::Release);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            is_over.store(true, Ordering::Release);
            assert!(writer.join().unwrap() > 0);
        });
        assert_holds(&store, 0..objects);
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "a store that grew under a writer");
    }
}

/// Blocks that a snapshot and a slow reader reach are kept, although the old areas become room for objects.
#[test]
fn readers_from_before_growth_continue() {
    let device = Device::new(growable(Image::new(1)));
    format(&device, BLOCKS, 1);
    let store = open(&device, tiny()).unwrap();
    for which in 0..20 {
        put(&store, &format!("{which:05}"), which as u8).unwrap();
    }
    let long: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
    store.set(b"long", long.clone()).unwrap();
    let snapshot = block_on(store.snapshot()).unwrap();
    let mut stream = block_on(store.get_stream(&key(b"long"), ByteRange::default())).unwrap().unwrap();
    let mut streamed = block_on(stream.next()).unwrap().unwrap().to_vec();
    block_on(store.grow(Some(2_000))).unwrap();
    for round in 0..3 {
        for which in 0..60 {
            put(&store, &format!("{which:05}"), which as u8 + 100 + round).unwrap();
        }
    }
    store.remove(b"long").unwrap();
    fill_some(&store, 150);
    for which in 0..20 {
        let name = format!("{which:05}");
        let held = block_on(snapshot.get(&key(name.as_bytes()), ByteRange::default())).unwrap().unwrap();
        assert!(held.value.to_vec().iter().all(|&byte| byte == which as u8), "{name}");
    }
    let held = block_on(snapshot.get(&key(b"long"), ByteRange::default())).unwrap().unwrap();
    assert!(held.value.to_vec() == long);
    while let Some(more) = block_on(stream.next()).unwrap() {
        streamed.extend(more.to_vec());
    }
    assert!(streamed == long);
    drop((snapshot, stream));
    fill_from(&store, 1_000);
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "a store that grew under readers");
}

fn fill_some(store: &Store, count: u32) {
    for which in 500..500 + count {
        put(store, &format!("{which:05}"), which as u8).unwrap();
    }
}

/// A power cut at every write of two growths under a writer. The store has one of the caps, and every acknowledged write.
#[test]
fn every_crash_of_a_growth_under_load() {
    const KEYS: u64 = 7;
    let caps = [BLOCKS, 700, 20_000];
    let seeds = lab::number("GROWTHS", 3);
    let mut seen = [0; 3];
    for seed in 0..seeds {
        let is_file = seed % 2 == 0;
        let sim = if is_file { growable(Image::new(1)) } else { SimDevice::new(caps[2]) };
        let device = Device::new(sim.clone());
        format(&device, BLOCKS, 2 + seed);
        let store = open(&device, tiny_with_threads()).unwrap();
        let (written, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let value = |number: u64| {
            let sizes = [30, 3_000, 9_000, 1_500];
            let mut value = number.to_le_bytes().to_vec();
            value.resize(sizes[number as usize % sizes.len()], number as u8);
            value
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1.. {
                    let name = format!("{}", number % KEYS);
                    store.set(&name, value(number)).unwrap();
                    sim.mark(number);
                    written.store(number, Ordering::Release);
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                }
            });
            let wait_for = |number: u64| {
                while written.load(Ordering::Acquire) < number {
                    std::thread::yield_now();
                }
            };
            for (turn, &cap) in (1..).zip(&caps[1..]) {
                wait_for(12 * turn);
                block_on(store.grow(Some(cap))).unwrap();
            }
            wait_for(written.load(Ordering::Acquire) + 10);
            stop.store(true, Ordering::Release);
        });
        drop(store);
        sim.history().for_each_crash_state(7, seed, |point, image| {
            let Some(&acknowledged) = point.marks.last() else { return };
            let device = match is_file {
                true => Device::new(growable(image)),
                false => Device::new(SimDevice::from_image(image)),
            };
            let store = open(&device, tiny()).unwrap();
            let cap = store.stat().blocks_max;
            seen[caps.iter().position(|&known| known == cap).unwrap()] += 1;
            for name in 0..KEYS {
                let newest = (0..KEYS)
                    .map(|back| acknowledged.saturating_sub(back))
                    .find(|number| number % KEYS == name);
                let found = read(&store, format!("{name}").as_bytes()).unwrap();
                let number = found.map_or(0, |(_, found)| {
                    let number = u64::from_le_bytes(found[..8].try_into().unwrap());
                    assert!(found == value(number), "state {}: key {name}", point.id);
                    number
                });
                assert!(
                    number >= newest.unwrap_or(0),
                    "state {}: key {name} is of {number}, {newest:?} was acknowledged",
                    point.id
                );
            }
            // The growth starts again, and the store is whole.
            block_on(store.grow(Some(caps[2]))).unwrap();
            for which in 0..30 {
                put(&store, &format!("{which:05}"), which as u8).unwrap();
            }
            assert_holds(&store, 0..30);
            drop(store);
            let report = checked(&device).unwrap();
            assert!(report.is_clean(), "state {}: {:?}", point.id, report.problems);
        });
    }
    assert!(seen.iter().all(|&states| states > 20), "all caps are seen: {seen:?}");
}

/// A damaged map is detected before the first write, and the store stays writable.
#[test]
fn store_with_damaged_map_accepts_writes() {
    let sim = growable(Image::new(1));
    let device = Device::new(sim.clone());
    format(&device, BLOCKS, 1);
    let store = open(&device, tiny()).unwrap();
    put(&store, "a", 1).unwrap();
    let refused = |store: &Store, advice: &str| {
        let why = block_on(store.grow(Some(600))).unwrap_err().to_string();
        assert!(why.contains(advice), "{why}");
        put(store, "b", 1).unwrap();
        assert_eq!((store.stat().poisoned, store.stat().blocks_max), (None, BLOCKS));
    };
    sim.inject(Fault::fail(FaultOp::Read, libc::EIO).for_good());
    refused(&store, "Input/output error");
    sim.clear_faults();
    let (places, used, _) = areas(&sim.image());
    sim.corrupt(places[used], 100, 1);
    refused(&store, "`shoal check --repair` finds the free space again");
    sim.corrupt(places[used], 100, 1);
    assert_eq!(block_on(store.grow(Some(600))).unwrap().now, 600);
}
