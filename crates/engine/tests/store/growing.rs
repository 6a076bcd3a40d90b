//! A cap that an opening raises: after a crash the store has the old cap or the new one, every acknowledged write, and room.

use std::sync::Arc;

use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice};
use shoal_engine::{Error, OpenOptions, Store, block_on};
use shoal_testkit::device::growable;
use shoal_testkit::{Model, Workload, WorkloadOptions};

use crate::common::{
    ByName, assert_clean, checked, fill, format, marked_step, observe_all, open, read, recover_all, repaired,
    step, tiny,
};

const BLOCKS: u64 = 320;
const GROWN: u64 = 600;

fn grown_to(blocks: u64) -> OpenOptions {
    OpenOptions { grow_to: Some(blocks), ..tiny() }
}

fn cap(store: &Store) -> u64 {
    store.stat().blocks_max
}

/// Puts new objects until the store is full; returns their number.
fn fill_from(store: &Store, from: u64) -> u64 {
    fill(from, |which| store.set(format!("{which:05}"), vec![which as u8; 9_000])) - from
}

#[test]
fn full_store_accepts_writes_after_cap_is_raised_twice() {
    let device = Device::new(growable(Image::new(1)));
    format(&device, BLOCKS, 1);
    let mut objects = 0;
    for blocks in [BLOCKS, GROWN, GROWN + 200] {
        let store = open(&device, grown_to(blocks)).unwrap();
        assert_eq!(cap(&store), blocks);
        let more = fill_from(&store, objects);
        assert!(more > 20, "{more} objects more fit in {blocks} blocks");
        objects += more;
        block_on(store.close()).unwrap();
        assert_clean(&device, "a store that grew");
        let store = open(&device, tiny()).unwrap();
        assert_eq!(cap(&store), blocks, "it stays");
        for which in 0..objects {
            let (_, value) = read(&store, format!("{which:05}").as_bytes()).unwrap().unwrap();
            assert!(value.len() == 9_000 && value.iter().all(|&byte| byte == which as u8));
        }
        block_on(store.close()).unwrap();
    }
}

/// The areas of the space image that the newest superblock names, the index of the one in use, and the blocks of its snapshot, and of
/// snapshot and deltas.
pub(crate) fn areas(image: &Image) -> ([u64; 2], usize, [u64; 2]) {
    let newest = [0, 1].map(|slot| *image.block(slot));
    let long = |block: &[u8], at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
    let short =
        |block: &[u8], at: usize| u64::from(u32::from_le_bytes(block[at..at + 4].try_into().unwrap()));
    let block = newest.iter().max_by_key(|block| long(&block[..], 32)).unwrap();
    let used = short(&block[..], 144) as usize;
    ([184, 192].map(|at| long(&block[..], at)), used, [152, 156].map(|at| short(&block[..], at)))
}

#[test]
fn an_impossible_growth_is_refused_and_changes_nothing() {
    let refused = |device: &Device, options: OpenOptions, words: &str| match open(device, options) {
        Err(Error::Invalid(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{:?}", other.err()),
    };
    let sim = growable(Image::new(1));
    let device = Device::new(sim.clone());
    format(&device, BLOCKS, 1);
    block_on(open(&device, tiny()).unwrap().close()).unwrap();
    let before = sim.image();
    refused(&device, grown_to(BLOCKS - 1), "cannot shrink to 319");
    refused(&device, grown_to(BLOCKS + 1), "too close to the present cap");
    refused(&device, grown_to(u64::MAX), "(64 TiB)");
    refused(&device, OpenOptions { read_only: true, ..grown_to(GROWN) }, "read-only cannot grow");
    assert!(before.differences(&sim.image()).is_empty());
    let fixed = Device::new(SimDevice::new(BLOCKS));
    format(&fixed, BLOCKS, 1);
    refused(&fixed, grown_to(GROWN), "its device has 320 (1 MiB). Enlarge the device first");
    assert_eq!(cap(&open(&fixed, grown_to(BLOCKS)).unwrap()), BLOCKS, "the cap that it has is no growth");
}

/// The file system has no room for the areas: the store and the length of its file are unchanged.
#[test]
fn growth_on_full_file_system_changes_nothing() {
    let sim = growable(Image::new(1));
    let device = Device::new(sim.clone());
    format(&device, BLOCKS, 1);
    let blocks = device.blocks();
    for op in [FaultOp::Grow, FaultOp::Write] {
        sim.inject(Fault::fail(op, libc::ENOSPC));
        let why = open(&device, grown_to(GROWN)).err().unwrap().to_string();
        assert!(why.contains("did not grow: the data file needs 1 MiB more"), "{why}");
        sim.clear_faults();
        let store = open(&device, tiny()).unwrap();
        assert_eq!(cap(&store), BLOCKS);
        drop(store);
    }
    assert!(device.blocks() >= blocks);
    assert_eq!(cap(&open(&device, grown_to(GROWN)).unwrap()), GROWN, "once there is room");
}

/// A raw device that became larger: all of it is usable at once.
#[test]
fn a_store_grows_over_a_larger_device() {
    let device = Device::new(SimDevice::new(1_000));
    format(&device, BLOCKS, 1);
    let mut objects = 0;
    for blocks in [BLOCKS, GROWN, 1_000] {
        let store = open(&device, grown_to(blocks)).unwrap();
        assert_eq!((cap(&store), store.stat().device_blocks), (blocks, blocks));
        let more = fill_from(&store, objects);
        assert!(more > 20, "{more} objects more fit in {blocks} blocks");
        objects += more;
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "a store that grew over its device");
    }
    assert_eq!(block_on(Store::cap(&device)).unwrap(), Some(1_000));
}

/// The free space is the space that the trees do not own, and the areas among the data are not free.
#[test]
fn a_damaged_image_of_a_store_that_grew_is_rebuilt() {
    for repair in [false, true] {
        let sim = growable(Image::new(1));
        let device = Device::new(sim.clone());
        format(&device, BLOCKS, 1);
        let store = open(&device, grown_to(GROWN)).unwrap();
        let objects = fill_from(&store, 0);
        block_on(store.close()).unwrap();
        drop(store);
        let mut image = sim.image();
        let (places, used, [snapshot, all]) = areas(&image);
        assert!(places[0] > 106 && all > snapshot, "moved, and with deltas: {places:?}, {snapshot} of {all}");
        for block in snapshot..all {
            image.flip(places[used] + block, 20, 1);
        }
        let sim = growable(image);
        let device = Device::new(sim.clone());
        if repair {
            let report = repaired(&device).unwrap();
            assert!(
                report.problems.iter().any(|problem| problem.what.contains("was rebuilt from the trees"))
            );
            assert_clean(&device, "repaired");
        }
        // Without a repair, a growth from the image that the opening rebuilt writes a whole new one.
        let options = if repair { tiny() } else { grown_to(GROWN + 200) };
        let store = open(&device, options).unwrap();
        for which in 0..objects / 2 {
            store.remove(format!("{which:05}")).unwrap();
        }
        assert!(fill_from(&store, objects) > objects / 4);
        for which in objects / 2..objects {
            let (_, value) = read(&store, format!("{which:05}").as_bytes()).unwrap().unwrap();
            assert!(value.iter().all(|&byte| byte == which as u8));
        }
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "rebuilt");
    }
}

/// Blocks of unknown state would be lost forever in the new image.
#[test]
fn a_store_does_not_grow_while_a_part_of_its_image_is_damaged() {
    let sim = growable(Image::new(1));
    let device = Device::new(sim.clone());
    format(&device, BLOCKS, 1);
    block_on(open(&device, tiny()).unwrap().close()).unwrap();
    let mut image = sim.image();
    let (places, used, _) = areas(&image);
    image.flip(places[used], 100, 1);
    let device = Device::new(growable(image));
    let why = open(&device, grown_to(GROWN)).err().unwrap().to_string();
    assert!(why.contains("`shoal check --repair` finds the free space again"), "{why}");
    repaired(&device).unwrap();
    assert_eq!(cap(&open(&device, grown_to(GROWN)).unwrap()), GROWN);
}

/// A power cut after every write of an opening that grows, and of the puts after it.
#[test]
fn every_crash_of_growth_leaves_old_or_new_cap() {
    crashes_of_a_growth(BLOCKS, GROWN);
}

/// The same with images that use a part of their areas: the growth takes the room of the rest of the old ones (INV-40).
#[test]
fn every_crash_of_large_map_growth_leaves_old_or_new_cap() {
    crashes_of_a_growth(5_000_000, 6_000_000);
}

fn crashes_of_a_growth(before: u64, grown: u64) {
    let sim = growable(Image::new(1));
    let device = Device::new(sim.clone());
    format(&device, before, 2);
    let options =
        WorkloadOptions { keys: 9, sizes: vec![30, 3_000, 9_000], delete_percent: 20, condition_percent: 0 };
    let mut workload = Workload::new(2, options);
    let mut model = Model::new();
    let store = open(&device, tiny()).unwrap();
    for _ in 0..12 {
        let operation = workload.next(&model);
        step(&store, &mut model, &operation, false, |_| {});
    }
    observe_all(&store, &mut model);
    drop(store);
    // Not closed: the growing opening replays a log, too.
    let sim = growable(sim.image());
    let mut models = vec![model.clone()];
    sim.mark(0);
    let store = open(&Device::new(sim.clone()), grown_to(grown)).unwrap();
    let opened = models.len() as u64;
    models.push(model.clone());
    sim.mark(opened);
    for _ in 0..16 {
        marked_step(&store, &sim, &mut workload, (&mut model, &mut models));
    }
    drop(store);
    let mut caps = [0, 0];
    sim.history().for_each_crash_state(12, 2, |point, image| {
        let Some(&mark) = point.marks.last() else { return };
        let device = Device::new(growable(image));
        let store = open(&device, tiny()).unwrap();
        let is_new = cap(&store) == grown;
        assert!(
            is_new || cap(&store) == before && mark < opened,
            "state {}: {} blocks",
            point.id,
            cap(&store)
        );
        caps[usize::from(is_new)] += 1;
        let mut recovered = models[mark as usize].clone();
        if let Err(violation) = recover_all(&store, &mut recovered) {
            panic!("state {}: {violation}", point.id);
        }
        drop(store);
        let report = checked(&device).unwrap();
        assert!(report.is_clean(), "state {}: {:?}", point.id, report.problems);
        // An interrupted growth starts again.
        assert_eq!(cap(&open(&device, grown_to(grown)).unwrap()), grown);
    });
    assert!(caps[0] > 0 && caps[1] > 20, "both caps are seen: {caps:?}");
}

const LONGER: u64 = 20_000;
/// Blocks of the log: of the small store, and of one of [`LONGER`] blocks.
const LOGS: [u64; 2] = [24, LONGER / 128];

/// A growth leaves the store with a log that fits, whether the store is closed afterwards or not.
#[test]
fn log_size_follows_growth() {
    for (is_file, is_closed) in [(true, true), (true, false), (false, true), (false, false)] {
        let device =
            if is_file { Device::new(growable(Image::new(1))) } else { Device::new(SimDevice::new(LONGER)) };
        format(&device, BLOCKS, 2);
        let store = open(&device, tiny()).unwrap();
        // In the log, and in no tree: the growth applies it.
        store.set(b"first", vec![1; 30]).unwrap();
        assert!(store.stat().log_used_blocks > 0 && store.stat().log_blocks == LOGS[0]);
        block_on(store.grow(Some(LONGER))).unwrap();
        assert_eq!(store.stat().log_blocks, LOGS[1], "a store in use, file: {is_file}");
        drop(store);
        let store = open(&device, tiny()).unwrap();
        assert_eq!(read(&store, b"first").unwrap().unwrap().1, [1; 30], "file: {is_file}");
        let mut objects = 0;
        let add = |store: &Store, objects: &mut u64, count: u64| {
            for which in *objects..*objects + count {
                store.set(format!("{which:05}"), vec![which as u8; 9_000]).unwrap();
            }
            *objects += count;
        };
        add(&store, &mut objects, 50);
        if is_closed {
            block_on(store.close()).unwrap();
        }
        drop(store);
        for round in 0..3 {
            let store = open(&device, tiny()).unwrap();
            let stat = store.stat();
            assert_eq!(stat.log_blocks, LOGS[1], "file: {is_file}, closed: {is_closed}, round {round}");
            add(&store, &mut objects, 300);
            for which in 0..objects {
                let (_, value) = read(&store, format!("{which:05}").as_bytes()).unwrap().unwrap();
                assert!(value.len() == 9_000 && value.iter().all(|&byte| byte == which as u8));
            }
            if round == 1 {
                block_on(store.close()).unwrap();
            }
            drop(store);
            assert_clean(&device, "a store with a longer log");
        }
        // A second growth, and a second ring.
        let more =
            open(&device, OpenOptions { grow_to: Some(if is_file { 5 * LONGER } else { LONGER }), ..tiny() })
                .unwrap();
        assert_eq!(more.stat().log_blocks, if is_file { 5 * LONGER / 128 } else { LOGS[1] });
        add(&more, &mut objects, 20);
        drop(more);
        assert_clean(&device, "a store with a third log");
    }
}

/// A store of [`LONGER`] blocks, filled by `prepare`, that lost power between its growth and the longer log.
fn grown_with_the_short_log<T>(is_file: bool, prepare: impl FnOnce(&Store) -> T) -> (Arc<SimDevice>, T) {
    let sim = if is_file { growable(Image::new(1)) } else { SimDevice::new(LONGER) };
    let device = Device::new(sim.clone());
    format(&device, BLOCKS, 2);
    let store = open(&device, tiny()).unwrap();
    let prepared = prepare(&store);
    sim.mark(1);
    block_on(store.grow(Some(LONGER))).unwrap();
    drop(store);
    let mut found = None;
    sim.history().for_each_crash_state(4, 1, |point, image| {
        let device = Device::new(again(is_file, image.clone()));
        let is_later = !point.marks.is_empty();
        if is_later && let Ok(seen) = open(&device, OpenOptions { read_only: true, ..tiny() }) {
            let stat = seen.stat();
            if (stat.blocks_max, stat.log_blocks) == (LONGER, LOGS[0]) {
                found.get_or_insert(image);
            }
        }
    });
    (again(is_file, found.expect("a crash between the growth and the longer log")), prepared)
}

fn again(is_file: bool, image: Image) -> Arc<SimDevice> {
    if is_file { growable(image) } else { SimDevice::from_image(image) }
}

/// An opening installs the longer log that the growth could not; a read-only opening leaves the store unchanged.
#[test]
fn an_opening_gives_a_store_its_longer_log() {
    let (sim, objects) = grown_with_the_short_log(true, |store| fill_from(store, 0));
    let device = Device::new(sim.clone());
    let before = sim.image();
    let seen = open(&device, OpenOptions { read_only: true, ..tiny() }).unwrap();
    assert_eq!(seen.stat().log_blocks, LOGS[0]);
    drop(seen);
    assert!(before.differences(&sim.image()).is_empty());
    // A file system without room: the store keeps its log and works.
    sim.inject(Fault::fail(FaultOp::Grow, libc::ENOSPC).for_good());
    let store = open(&device, tiny()).unwrap();
    assert_eq!(store.stat().log_blocks, LOGS[0]);
    assert!(read(&store, b"00001").unwrap().is_some());
    drop(store);
    sim.clear_faults();
    let store = open(&device, OpenOptions { grow_to: Some(2 * LONGER), ..tiny() }).unwrap();
    assert_eq!(store.stat().log_blocks, 2 * LONGER / 128);
    for which in 0..objects {
        assert!(read(&store, format!("{which:05}").as_bytes()).unwrap().is_some());
    }
    drop(store);
    assert_clean(&device, "a store with a longer log");
}

/// A power cut after every write of an opening that installs a longer log, and of the puts after it.
#[test]
fn every_crash_of_a_longer_log_keeps_every_write() {
    for is_file in [true, false] {
        let options = WorkloadOptions {
            keys: 9,
            sizes: vec![30, 3_000, 9_000],
            delete_percent: 20,
            condition_percent: 0,
        };
        let mut workload = Workload::new(3, options);
        let mut model = Model::new();
        let (sim, ()) = grown_with_the_short_log(is_file, |store| {
            for _ in 0..12 {
                let operation = workload.next(&model);
                step(store, &mut model, &operation, false, |_| {});
            }
            observe_all(store, &mut model);
        });
        let mut models = vec![model.clone()];
        sim.mark(0);
        let store = open(&Device::new(sim.clone()), tiny()).unwrap();
        assert_eq!(store.stat().log_blocks, LOGS[1]);
        for _ in 0..16 {
            marked_step(&store, &sim, &mut workload, (&mut model, &mut models));
        }
        drop(store);
        let mut logs = [0, 0];
        sim.history().for_each_crash_state(12, 2, |point, image| {
            let Some(&mark) = point.marks.last() else { return };
            let device = Device::new(again(is_file, image));
            // A read-only opening shows which log the crash left.
            let seen = open(&device, OpenOptions { read_only: true, ..tiny() }).unwrap();
            let log = seen.stat().log_blocks;
            logs[LOGS.iter().position(|&known| known == log).unwrap()] += 1;
            drop(seen);
            let store = open(&device, tiny()).unwrap();
            assert_eq!(store.stat().log_blocks, LOGS[1], "state {}", point.id);
            let mut recovered = models[mark as usize].clone();
            if let Err(violation) = recover_all(&store, &mut recovered) {
                panic!("state {}: {violation}", point.id);
            }
            drop(store);
            let report = checked(&device).unwrap();
            assert!(report.is_clean(), "state {}: {:?}", point.id, report.problems);
        });
        assert!(logs.iter().all(|&states| states > 20), "both logs are seen: {logs:?}");
    }
}

/// The first block of the log's ring (`docs/format/superblock.md`).
fn ring_first(image: &Image) -> u64 {
    let slots = [0, 1].map(|slot| *image.block(slot));
    let newest =
        slots.iter().max_by_key(|slot| u64::from_le_bytes(slot[32..40].try_into().unwrap())).unwrap();
    u64::from_le_bytes(newest[176..184].try_into().unwrap())
}

/// A longer ring cannot be written: the store keeps its log and works, and the next growth installs the longer one.
#[test]
fn a_longer_log_that_cannot_be_written_waits() {
    for is_file in [true, false] {
        let start = || {
            let sim = if is_file { growable(Image::new(1)) } else { SimDevice::new(LONGER) };
            let device = Device::new(sim.clone());
            format(&device, BLOCKS, 1);
            let store = open(&device, tiny()).unwrap();
            let objects = fill_from(&store, 0);
            (sim, device, store, objects)
        };
        let (sim, _device, store, _) = start();
        block_on(store.grow(Some(LONGER))).unwrap();
        let ring = ring_first(&sim.image());
        let (sim, device, store, objects) = start();
        sim.inject(Fault::fail(FaultOp::Write, libc::EIO).at(ring..ring + LOGS[1]));
        block_on(store.grow(Some(LONGER))).unwrap();
        assert_eq!((store.stat().log_blocks, sim.injected()), (LOGS[0], 1), "file: {is_file}");
        let put = |name: &[u8]| {
            store.set(name, vec![7; 9_000]).unwrap();
        };
        put(b"between");
        block_on(store.grow(Some(LONGER))).unwrap();
        assert_eq!(store.stat().log_blocks, LOGS[1]);
        put(b"last");
        drop(store);
        let store = open(&device, tiny()).unwrap();
        for name in [&b"between"[..], b"last"] {
            assert_eq!(read(&store, name).unwrap().unwrap().1, [7; 9_000]);
        }
        for which in 0..objects {
            assert!(read(&store, format!("{which:05}").as_bytes()).unwrap().is_some());
        }
        drop(store);
        assert_clean(&device, "a store whose longer log waited");
    }
}

/// Both superblocks name the longer ring before it gets a record: if one of them is lost, an opening would search for records in the ring
/// of the other.
#[test]
fn lost_superblock_after_longer_log_loses_no_write() {
    for is_file in [true, false] {
        let sim = if is_file { growable(Image::new(1)) } else { SimDevice::new(LONGER) };
        let device = Device::new(sim.clone());
        format(&device, BLOCKS, 1);
        let store = open(&device, tiny()).unwrap();
        block_on(store.grow(Some(LONGER))).unwrap();
        assert_eq!(store.stat().log_blocks, LOGS[1]);
        store.set(b"last", vec![7; 900]).unwrap();
        drop(store);
        let slots = [0, 1].map(|slot| *sim.image().block(slot));
        let number = |slot: usize| u64::from_le_bytes(slots[slot][32..40].try_into().unwrap());
        let newest = u64::from(number(1) > number(0));
        for copy in [newest, newest + 32] {
            sim.corrupt(copy, 50, 1);
        }
        if let Ok(store) = open(&device, tiny()) {
            assert!(read(&store, b"last").unwrap().is_some(), "file: {is_file}");
        }
    }
}

/// The ring takes free blocks that the superblock before the newest may name: a superblock in which they are free replaces it first (R9).
#[test]
fn a_longer_ring_is_not_written_beside_an_older_superblock() {
    let (sim, ()) = grown_with_the_short_log(false, |_| {});
    let store = open(&Device::new(sim.clone()), tiny()).unwrap();
    assert_eq!(store.stat().log_blocks, LOGS[1]);
    drop(store);
    let ring = ring_first(&sim.image());
    let history = sim.history();
    let blocks: Vec<u64> = history.writes().iter().map(|write| write.block).collect();
    let first = blocks.iter().position(|block| (ring..ring + LOGS[1]).contains(block)).unwrap();
    assert!(blocks[..first].iter().any(|&block| block < 34), "{blocks:?}");
}
