//! Relocation: groups are emptied while the store is in use, no value is lost by it at any moment, and free groups are returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use shoal_base::ManualClock;
use shoal_device::{Device, MemDevice};
use shoal_device_sim::{Image, SimDevice, SimOptions};
use shoal_engine::{
    ByteRange, Environment, Error, FormatOptions, OpenOptions, PutOptions, RejectRules, Store, Tuning,
    block_on,
};
use shoal_testkit::wait::within;
use shoal_testkit::{Model, Value, Workload, WorkloadOptions};

use crate::common::{
    ByName, assert_clean, check_clean, format, format_as, formatted, key, observe_all, open_at,
    open_in_real_time, recover_all, step, tiny, tiny_format,
};

/// Longer than any pause of the mover.
pub(crate) const LONG_NS: u64 = 100_000_000_000;

/// A store whose clock the test moves.
pub(crate) struct Bed {
    pub store: Store,
    pub clock: Arc<ManualClock>,
}

impl Bed {
    pub(crate) fn open(device: &Device, options: OpenOptions) -> Result<Self, String> {
        let clock = Arc::new(ManualClock::new(1_000));
        let store = open_at(device, options, &clock);
        Ok(Self { store: store.map_err(|error| format!("did not open: {error}"))?, clock })
    }

    /// Relocates until no work is due, in at most `steps` steps.
    pub(crate) fn settle(&self, steps: usize) {
        self.clock.advance(LONG_NS);
        for _ in 0..steps {
            match block_on(self.store.move_step()) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

pub(crate) fn small() -> OpenOptions {
    // A large reserve, so that there is work.
    let tuning = Tuning { reserve_permille: 500, ..tiny().tuning };
    OpenOptions { cache_bytes: 2 << 20, tuning, ..tiny() }
}

/// Bytes of value `which`: in leaves, in packed runs, in extents, with a manifest.
fn bytes_of(which: u64) -> usize {
    [60, 700, 1_500, 5_000, 12_288, 9_000, 40_000, 70_000][which as usize % 8]
}

/// A nearly full store of 4,096 blocks with three quarters of its objects deleted.
fn holey(device: &Device) -> (Bed, Vec<u64>) {
    format(device, 4_096, 1);
    let bed = Bed::open(device, small()).unwrap();
    let mut put = 0;
    while bed.store.stat().free_blocks > 300 {
        bed.store.put_numbered(put, 1, bytes_of(put));
        put += 1;
    }
    let left: Vec<u64> = (0..put).filter(|which| which % 4 == (which / 32) % 4).collect();
    (0..put).filter(|which| !left.contains(which)).for_each(|which| bed.store.remove_numbered(which));
    (bed, left)
}

#[test]
fn groups_are_emptied_and_nothing_is_lost() {
    let device = Device::new(Arc::new(MemDevice::new(4_096)));
    let (bed, left) = holey(&device);
    // Later writes apply all current contents of the memtables.
    let mut seen = bed.store.stat();
    for _ in 0..200 {
        bed.settle(1_000);
        seen = bed.store.stat();
        if seen.groups_to_empty == 0 && seen.groups_emptied > 0 {
            break;
        }
        // Takes whole groups, so that there is always work.
        bed.store.put_numbered(1_000_000 + seen.groups_emptied, 3, 200_000);
    }
    assert!(seen.groups_emptied >= 2 && seen.bytes_evacuated > 10_000, "{seen:?}");
    assert_eq!((seen.groups_closed, seen.bytes_to_move), (0, 0), "{seen:?}");
    left.iter().for_each(|&which| bed.store.assert_numbered(which, 1, bytes_of(which)));
    drop(bed);
    assert_clean(&device, "after relocation");
    let bed = Bed::open(&device, small()).unwrap();
    left.iter().for_each(|&which| bed.store.assert_numbered(which, 1, bytes_of(which)));
}

#[test]
fn a_pause_stops_moving_and_tidying() {
    let device = Device::new(Arc::new(MemDevice::new(4_096)));
    let (bed, _) = holey(&device);
    bed.store.pause_relocation();
    let before = bed.store.stat();
    assert!(before.relocation_paused);
    bed.settle(100);
    let paused = bed.store.stat();
    assert_eq!(
        (paused.moved_bytes, paused.groups_emptied, paused.groups_closed),
        (before.moved_bytes, before.groups_emptied, 0)
    );
    bed.store.resume_relocation();
    bed.settle(1_000);
    let resumed = bed.store.stat();
    assert!(!resumed.relocation_paused && resumed.moved_bytes > paused.moved_bytes, "{resumed:?}");
    drop(bed);
    assert_clean(&device, "at the end");
    let options = OpenOptions { pause_relocation: true, ..small() };
    let bed = Bed::open(&device, options).unwrap();
    bed.settle(100);
    assert_eq!(bed.store.stat().moved_bytes, 0, "opened paused");
}

/// A value that has no other place gets the room of groups that are being emptied.
#[test]
fn value_can_use_a_group_being_emptied() {
    let device = Device::new(Arc::new(MemDevice::new(4_096)));
    let (bed, left) = holey(&device);
    let mut largest = 0;
    for round in 0..60 {
        bed.clock.advance(LONG_NS);
        block_on(bed.store.move_step()).unwrap();
        let stat = bed.store.stat();
        if stat.groups_closed == 0 {
            bed.store.put_numbered(2_000_000 + round, 5, 200_000);
            continue;
        }
        // All space that the store reports as free is usable.
        let bytes = (stat.free_blocks.saturating_sub(8) * 4096).min(4 << 20) as usize;
        bed.store.put_numbered(3_000_000, round, bytes);
        bed.store.assert_numbered(3_000_000, round, bytes);
        bed.store.remove_numbered(3_000_000);
        largest = largest.max(bytes);
    }
    assert!(largest > 1 << 20, "{largest}");
    left.iter().for_each(|&which| bed.store.assert_numbered(which, 1, bytes_of(which)));
    drop(bed);
    assert_clean(&device, "at the end");
}

/// A reader of an old view sees the same as before, although everything under it moved.
#[test]
fn a_slow_reader_keeps_what_it_reads() {
    let device = Device::new(Arc::new(MemDevice::new(4_096)));
    let (bed, left) = holey(&device);
    let which = *left.iter().find(|&&which| bytes_of(which) == 70_000).unwrap();
    let mut stream =
        block_on(bed.store.get_stream(&key(Workload::key(which)), ByteRange::ALL)).unwrap().unwrap();
    for _ in 0..300 {
        if !block_on(bed.store.move_step()).unwrap() {
            break;
        }
    }
    let mut bytes = Vec::new();
    while let Some(piece) = block_on(stream.next()).unwrap() {
        bytes.extend(piece.to_vec());
    }
    Value { key: which, seed: 1, bytes: 70_000 }.check(&bytes).unwrap();
    drop(stream);
    drop(bed);
    assert_clean(&device, "at the end");
}

const SIZES: [usize; 7] = [60, 700, 1_500, 3_500, 4_096, 5_000, 20_000];

fn workload(seed: u64, keys: u64) -> Workload {
    let options = WorkloadOptions { keys, sizes: SIZES.to_vec(), delete_percent: 35, condition_percent: 10 };
    Workload::new(seed, options)
}

/// Opens the image of a crash to a state that the acknowledgements allow, without damage, and uses it.
fn recovers(image: Image, model: &Model, deep: bool) -> Result<(), String> {
    let device = Device::new(SimDevice::from_image(image));
    check_clean(&device)?;
    let bed = Bed::open(&device, small())?;
    let mut recovered = model.clone();
    recover_all(&bed.store, &mut recovered)?;
    if !deep {
        return Ok(());
    }
    let mut workload = workload(9_000_000, 30);
    for _ in 0..30 {
        let operation = workload.next(&recovered);
        step(&bed.store, &mut recovered, &operation, false, |_| {});
        bed.settle(3);
    }
    recover_all(&bed.store, &mut recovered)?;
    drop(bed);
    check_clean(&device).map_err(|found| format!("after working on: {found}"))
}

#[test]
fn crashes_while_groups_are_emptied() {
    const BLOCKS: u64 = 420;
    let (mut states, mut emptied, mut moved) = (0, 0, 0);
    let options = || OpenOptions { tuning: Tuning { reserve_permille: 900, ..small().tuning }, ..small() };
    for seed in 1..=3 {
        let sim = formatted(BLOCKS, seed);
        let sim = SimDevice::from_image(sim.image());
        let bed = Bed::open(&Device::new(sim.clone()), options()).unwrap();
        let (mut workload, mut model) = (workload(seed, 60), Model::new());
        let mut models = vec![model.clone()];
        sim.mark(0);
        for number in 0..170 {
            let operation = workload.next(&model);
            step(&bed.store, &mut model, &operation, false, |in_flight| {
                models.push(in_flight.clone());
                sim.mark(models.len() as u64 - 1);
            });
            models.push(model.clone());
            sim.mark(models.len() as u64 - 1);
            if number % 3 == 0 {
                bed.settle(8);
            }
        }
        observe_all(&bed.store, &mut model);
        let stat = bed.store.stat();
        emptied += stat.groups_emptied;
        moved += stat.bytes_evacuated;
        drop(bed);
        sim.history().for_each_crash_state(2, seed, |point, image| {
            let Some(&mark) = point.marks.last() else { return };
            states += 1;
            if let Err(violation) = recovers(image, &models[mark as usize], states % 9 == 0) {
                panic!("seed {seed}, state {}: {violation}", point.id);
            }
        });
    }
    println!("{states} states, {emptied} groups emptied, {moved} bytes moved");
    assert!(
        states > 1_000 && emptied > 4 && moved > 50_000,
        "{states} states, {emptied} groups, {moved} bytes"
    );
}

/// Random load, relocation and reopening against a model; all space is accounted for at all times.
fn moves_under_load(seed: u64, keys: u64, operations: usize, move_steps: usize) {
    const BLOCKS: u64 = 1_200;
    let sim = formatted(BLOCKS, seed);
    let device = Device::new(sim.clone());
    let mut bed = Bed::open(&device, small()).unwrap();
    let (mut workload, mut model) = (workload(seed, keys), Model::new());
    for number in 1..=operations {
        let operation = workload.next(&model);
        step(&bed.store, &mut model, &operation, false, |_| {});
        if number % 4 == 0 {
            bed.settle(move_steps);
        }
        if number % 60 == 0 {
            let image = Device::new(SimDevice::from_image(sim.image()));
            assert_clean(&image, &format!("seed {seed}, after {number} operations"));
        }
        if number % 130 == 0 {
            observe_all(&bed.store, &mut model);
            drop(bed);
            bed = Bed::open(&device, small()).unwrap();
        }
    }
    observe_all(&bed.store, &mut model);
    drop(bed);
    assert_clean(&device, "at the end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn relocation_is_invisible_to_readers(
        seed in any::<u64>(), keys in 20_u64..200, operations in 60_usize..320, move_steps in 1_usize..6,
    ) {
        moves_under_load(seed, keys, operations, move_steps);
    }
}

/// Several threads overwrite and delete values that move; each sees its own writes.
#[test]
fn moving_races_with_writers() {
    within("relocation beside writers", || {
        let device = Device::new(Arc::new(MemDevice::new(6_000)));
        block_on(Store::format(&device, &tiny_format(6_000), &Environment::default())).unwrap();
        let tuning = Tuning { memtable_records_max: 60, ..small().tuning };
        let options = OpenOptions { background: true, tuning, ..small() };
        let store = open_in_real_time(&device, options);
        let end = Instant::now() + Duration::from_secs(4);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let store = &store;
                scope.spawn(move || writer(store, thread, end));
            }
            // Takes and returns whole groups, so that the reserve is low again and again.
            scope.spawn(|| {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = key(format!("large/{}", round % 9).as_bytes());
                    let value = vec![7; 500_000];
                    let _ = block_on(store.put(&name, value.into(), PutOptions::default()));
                    let _ = block_on(store.move_step());
                }
            });
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            stop.store(true, Ordering::Relaxed);
        });
        let stat = store.stat();
        println!("{} groups emptied, {} bytes moved", stat.groups_emptied, stat.bytes_evacuated);
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "after all threads");
    });
}

fn writer(store: &Store, thread: u64, end: Instant) {
    const KEYS: u64 = 60;
    let mut newest = vec![None; KEYS as usize];
    let mut state = thread + 1;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        let which = random(KEYS);
        let number = thread * 1_000 + which;
        let name = key(Workload::key(number));
        let slot = &mut newest[which as usize];
        match random(4) {
            0 => {
                block_on(store.delete(&name, RejectRules::default())).unwrap();
                *slot = None;
            }
            1 | 2 => {
                let value = Value { key: number, seed: round, bytes: SIZES[random(7) as usize] };
                match block_on(store.put(&name, value.to_vec().into(), PutOptions::default())) {
                    Ok(_) => *slot = Some(value),
                    Err(Error::Full { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            _ => {
                let object = block_on(store.get(&name, ByteRange::ALL)).unwrap();
                match (slot.as_ref(), object) {
                    (None, None) => {}
                    (Some(value), Some(object)) => value.check(&object.value.to_vec()).unwrap(),
                    (expected, found) => panic!("{number}: {expected:?}, but found {}", found.is_some()),
                }
            }
        }
    }
}

/// Free blocks are returned to the device once they have been free for a while, and come back when they are needed.
#[test]
fn free_blocks_are_given_back() {
    let sim = SimDevice::new(4_096);
    let device = Device::new(sim.clone());
    let (bed, left) = holey(&device);
    bed.settle(1_000);
    assert_eq!(bed.store.stat().bytes_discarded, 0, "a device is asked only if the user wants it");
    block_on(bed.store.close()).unwrap();
    drop(bed);
    // A reserve that is there already: no group is emptied.
    let tuning = Tuning { reserve_permille: 20, ..small().tuning };
    let bed = Bed::open(&device, OpenOptions { discard: Some(true), tuning, ..small() }).unwrap();
    (0..3).for_each(|_| bed.settle(2_000));
    let stat = bed.store.stat();
    assert!(stat.hole_blocks > 500 && stat.bytes_discarded / 4_096 >= stat.hole_blocks, "{stat:?}");
    bed.settle(2_000);
    assert_eq!(bed.store.stat().bytes_discarded, stat.bytes_discarded, "once is enough");
    left.iter().for_each(|&which| bed.store.assert_numbered(which, 1, bytes_of(which)));
    // Blocks that were used and freed again are returned again, but not at once.
    (0..9).for_each(|which| bed.store.put_numbered(5_000_000 + which, 1, 250_000));
    assert!(bed.store.stat().hole_blocks < stat.hole_blocks, "holes are filled");
    (0..9).for_each(|which| bed.store.remove_numbered(5_000_000 + which));
    (0..60).for_each(|_| bed.store.put_numbered(6_000_000, 1, 100));
    (0..3).for_each(|_| bed.settle(2_000));
    assert!(bed.store.stat().bytes_discarded > stat.bytes_discarded);
    drop(bed);
    assert_clean(&device, "after blocks were returned");
}

/// A file whose file system has `room` free blocks.
pub(crate) fn file(image: Image, room: u64) -> (Arc<SimDevice>, Device) {
    let options = SimOptions { growable: true, allocates: true, room: Some(room), ..SimOptions::default() };
    let sim = SimDevice::with_options(image, options);
    (sim.clone(), Device::new(sim))
}

/// Another program takes the room of the holes: writes are refused as full, deletes work, nothing is lost, and the holes are used once
/// there is room.
#[test]
fn holes_without_room_refuse_writes() {
    let (sim, device) = file(Image::new(1), 1 << 20);
    let layout = FormatOptions { initial_blocks: Some(0), ..tiny_format(1 << 14) };
    format_as(&device, &layout, 1);
    let bed = Bed::open(&device, small()).unwrap();
    (0..100).for_each(|which| bed.store.put_numbered(which, 1, 200_000));
    (10..100).for_each(|which| bed.store.remove_numbered(which));
    for _ in 0..4 {
        (0..9).for_each(|_| bed.store.put_numbered(1_000, 1, 100));
        bed.settle(1_000);
    }
    let stat = bed.store.stat();
    assert!(stat.hole_blocks > 2_000, "{stat:?}");
    assert!(sim.held_blocks(None).unwrap() + stat.hole_blocks <= stat.device_blocks, "holes have no room");
    sim.set_room(0);
    let put = |which: u64| bed.store.set_numbered(10_000 + which, 1, 200_000);
    let refused = (0..1_000).find_map(|which| put(which).err()).expect("the file system is full");
    assert!(matches!(refused, Error::Full { cannot_grow: Some(_), .. }), "{refused}");
    (0..5).for_each(|which| bed.store.remove_numbered(which));
    (5..10).for_each(|which| bed.store.assert_numbered(which, 1, 200_000));
    assert!(bed.store.stat().poisoned.is_none() && bed.store.stat().no_room.is_none());
    let Bed { store, clock } = bed;
    drop(store);
    // A restart on the full file system; it keeps the blocks that have room.
    let store = open_at(&device, small(), &clock).unwrap();
    (5..8).for_each(|which| store.remove_numbered(which));
    (8..10).for_each(|which| store.assert_numbered(which, 1, 200_000));
    sim.set_room(1 << 20);
    (0..100).for_each(|which| store.put_numbered(2_000 + which, 1, 200_000));
    assert!(store.stat().hole_blocks < 1_000, "{:?}", store.stat());
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "after its file system was full");
}

/// A power cut at each write and hole of a store that is overwritten, applied and punched: a hole never has a block that the superblock
/// before still names.
#[test]
fn every_crash_beside_holes_leaves_all_objects() {
    let (sim, device) = file(Image::new(1), 1 << 20);
    let layout = FormatOptions { initial_blocks: Some(0), ..tiny_format(1 << 14) };
    format_as(&device, &layout, 1);
    let bed = Bed::open(&device, small()).unwrap();
    (0..12).for_each(|which| bed.store.put_numbered(which, 1, bytes_of(which)));
    (100..130).for_each(|which| bed.store.put_numbered(which, 1, 200_000));
    (100..130).for_each(|which| bed.store.remove_numbered(which));
    bed.settle(1_000);
    drop(bed);
    let (sim_of_test, device) = file(sim.image(), 1 << 20);
    let bed = Bed::open(&device, small()).unwrap();
    sim_of_test.mark(1);
    for turn in 2..5 {
        (0..12).for_each(|which| bed.store.put_numbered(which, turn, bytes_of(which)));
        bed.settle(1_000);
        sim_of_test.mark(turn);
    }
    assert!(bed.store.stat().bytes_discarded > 0, "{:?}", bed.store.stat());
    drop(bed);
    let mut states = 0;
    sim_of_test.history().for_each_crash_state(3, 1, |point, image| {
        let Some(&least) = point.marks.last() else { return };
        let (_, device) = file(image, 1 << 20);
        let bed = Bed::open(&device, small()).unwrap_or_else(|error| panic!("state {}: {error}", point.id));
        for which in 0..12 {
            let found = bed
                .store
                .find(Workload::key(which))
                .unwrap_or_else(|error| panic!("state {}: {error}", point.id));
            let bytes = found.map(|object| object.value.to_vec()).unwrap_or_default();
            let is = |&seed: &u64| Value { key: which, seed, bytes: bytes_of(which) }.check(&bytes).is_ok();
            let found = (least..=5).find(is);
            assert!(found.is_some(), "state {}: object {which} is not of turn {least} or later", point.id);
        }
        drop(bed);
        states += 1;
        if states % 8 == 0 {
            assert_clean(&device, &format!("state {}", point.id));
        }
    });
    assert!(states > 100, "only {states} states");
}
