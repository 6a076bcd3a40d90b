//! The scrub finds decay in a running store (T27 of `docs/reliability.md`): each of fifty faults alone, and all of them in one pass, with
//! the name of every unreadable object. It finds nothing in a healthy store, with or without load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shoal_base::SeededEntropy;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{ByteRange, Error, Store, block_on};
use shoal_testkit::Value;

use crate::common::{ByName, checked, device, formatted, key, open, tiny};

const BLOCKS: u64 = 1_024;
const OBJECTS: u64 = 160;
const FAULTS: usize = 50;
/// The log and the space areas precede it.
const DATA_FIRST: u64 = 110;

fn name(which: u64) -> Vec<u8> {
    format!("{which:04}").into_bytes()
}

fn put(store: &Store, which: u64, seed: u64) {
    let sizes = [40, 300, 1_500, 5_000, 12_000];
    let bytes = sizes[(which % 5) as usize];
    store.set(name(which), Value { key: which, seed, bytes }.to_vec()).unwrap();
}

/// A store whose objects are all in the trees.
fn filled() -> Image {
    let sim = formatted(BLOCKS, 9);
    let device = device(&sim);
    let store = open(&device, tiny()).unwrap();
    (0..OBJECTS).for_each(|which| put(&store, which, which));
    // The last writes push all earlier ones out of the log.
    for turn in 0..20 {
        put(&store, OBJECTS + turn % 2, 500 + turn);
    }
    for which in (3..OBJECTS).step_by(17) {
        store.remove(name(which)).unwrap();
    }
    block_on(store.close()).unwrap();
    drop(store);
    sim.image()
}

/// Bits of live pages and values: those that a check reports, except for footers of runs.
fn faults(image: &Image) -> Vec<(u64, usize, u8)> {
    let dice = SeededEntropy::new(4);
    let mut found: Vec<(u64, usize, u8)> = Vec::new();
    while found.len() < FAULTS {
        let block = DATA_FIRST + dice.below(BLOCKS - DATA_FIRST);
        if image.block(block).iter().all(|&byte| byte == 0) || found.iter().any(|(other, ..)| *other == block)
        {
            continue;
        }
        let (byte, mask) = (dice.below(4_096) as usize, 1 << dice.below(8));
        let mut damaged = image.clone();
        damaged.flip(block, byte, mask);
        let device = Device::new(SimDevice::from_image(damaged));
        let report = checked(&device).unwrap();
        let is_footer = |what: &str| what.contains("footer") || what.contains("record ");
        if report.problems.iter().any(|problem| !is_footer(&problem.what)) {
            found.push((block, byte, mask));
        }
    }
    found
}

#[test]
fn every_fault_is_found_in_one_pass() {
    let image = filled();
    let sim = SimDevice::from_image(image.clone());
    let store = open(&device(&sim), tiny()).unwrap();
    let healthy = block_on(store.scrub()).unwrap();
    assert_eq!(healthy.problem_count, 0, "{:?}", healthy.problems);
    assert!(healthy.objects > 140 && healthy.pages > 5 && healthy.bytes > 500_000, "{healthy:?}");

    // For a lost page the range is reported, and no single object. Both copies of a list hide all objects of a tablet.
    let is_page = |what: &str| what.contains("page of level") || what.contains("a copy of the list");
    let mut together = Vec::new();
    for (block, byte, mask) in faults(&image) {
        let sim = SimDevice::from_image(image.clone());
        let store = open(&device(&sim), tiny()).unwrap();
        sim.corrupt(block, byte, mask);
        let report = block_on(store.scrub()).unwrap();
        assert!(report.problem_count >= 1, "byte {byte} of block {block} was not found");
        assert_eq!(store.stat().scrub_problems, report.problem_count);
        if !report.problems.iter().any(|problem| is_page(&problem.what)) {
            together.push((block, byte, mask));
        }
    }

    // All others at once, in the open store, whose cache holds much of it.
    together.iter().for_each(|&(block, byte, mask)| sim.corrupt(block, byte, mask));
    let report = block_on(store.scrub()).unwrap();
    let told: String = report.problems.iter().map(|problem| problem.what.clone() + "\n").collect();
    let damaged = Device::new(SimDevice::from_image(sim.image()));
    let cold = open(&damaged, tiny()).unwrap();
    let mut lost = 0;
    for which in 0..OBJECTS {
        if let Err(Error::Corrupt { .. }) = block_on(cold.get(&key(name(which)), ByteRange::ALL)) {
            lost += 1;
            let is_named = told.contains(&format!("object default/{which:04}:"));
            assert!(is_named, "{which} cannot be read, and was not named:\n{told}");
        }
    }
    assert!(lost > 10, "{lost} objects lost");
    let stat = store.stat();
    assert_eq!(stat.scrub_passes, 2);
    assert_eq!(stat.scrub_bytes, healthy.bytes + report.bytes);
    println!("{FAULTS} faults found; {} of them together, with {lost} objects damaged", together.len());
}

/// One copy of the newest superblock.
#[test]
fn a_lost_copy_of_the_superblock_is_found() {
    for block in [0, 1, 32, 33] {
        let sim = SimDevice::from_image(filled());
        let store = open(&device(&sim), tiny()).unwrap();
        sim.corrupt(block, 100, 1);
        let report = block_on(store.scrub()).unwrap();
        // The older slot is no longer needed: the next superblock goes there.
        assert!(report.problem_count <= 1);
        if let Some(problem) = report.problems.first() {
            assert!(problem.what.contains("superblock") && problem.block == block, "{problem:?}");
        }
        let other = [1, 0, 33, 32][[0, 1, 32, 33].iter().position(|&place| place == block).unwrap()];
        sim.corrupt(other, 100, 1);
        assert_eq!(block_on(store.scrub()).unwrap().problem_count, 1, "one of the two slots is the newest");
    }
}

/// Writers overwrite and delete meanwhile: a value that moves during a scrub is no damage.
#[test]
fn scrub_under_load_reports_nothing() {
    let sim = SimDevice::from_image(filled());
    let mut options = tiny();
    options.background = true;
    options.tuning.scrub_bytes_per_s = 0;
    let store = open(&Device::new(sim), options).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (store, ended) = (&store, ended.clone());
            scope.spawn(move || {
                let dice = SeededEntropy::new(thread);
                let mut seed = 10_000 * (thread + 1);
                while !ended.load(Ordering::Relaxed) {
                    let which = dice.below(OBJECTS / 2) * 2 + thread;
                    seed += 1;
                    if dice.below(6) == 0 {
                        store.remove(name(which)).unwrap();
                    } else {
                        put(store, which, seed);
                    }
                }
            });
        }
        for _ in 0..25 {
            let report = block_on(store.scrub()).unwrap();
            assert_eq!(report.problem_count, 0, "{:?}", report.problems);
        }
        ended.store(true, Ordering::Relaxed);
    });
    block_on(store.close()).unwrap();
    assert!(matches!(block_on(store.scrub()), Err(Error::Closed)));
}
