//! The work that damage costs: reads of the device and verified damaged pages, counted, never seconds.
//!
//! Seen as a listing of 15 s and a repair of 194 s for 69,345 objects: a damaged inner page of a layer was read again for every key
//! behind it. `crates/pool/src/damaged.rs` has the rule. What it allows again after some seconds is allowed here by the time that
//! passes, so a slow machine fails nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use shoal_device::Device;
use shoal_device::sim::{Fault, FaultOp, Image, SimDevice};
use shoal_engine::{CheckReport, Store, block_on};
use shoal_testkit::bytes::number;

use crate::common::{
    acknowledged, assert_clean, checked, judge_listing, key, open, quiet, repaired, tiny_with_layers,
};
use crate::layers::{Objects, lists, name, subject, superblock};

const EIO: i32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    WrongBytes,
    Unreadable,
}

const BOTH: [How; 2] = [How::WrongBytes, How::Unreadable];

fn damage(sim: &SimDevice, blocks: &[u64], how: How) {
    for &block in blocks {
        match how {
            How::WrongBytes => sim.corrupt(block, 1_000, 1),
            How::Unreadable => sim.inject(Fault::fail(FaultOp::Read, EIO).at(block..block + 1).for_good()),
        }
    }
}

/// Failed reads that a pass may make of a damaged page: ahead, by itself, and once more for each five seconds since `began`.
fn allowed(began: Instant) -> u64 {
    4 * (1 + began.elapsed().as_secs() / 5)
}

/// The reads of the device that `work` makes.
fn reads<T>(device: &Device, work: impl FnOnce() -> T) -> (u64, T) {
    let before = device.counters().reads;
    let done = work();
    (device.counters().reads - before, done)
}

/// Kinds of blocks, one damage each.
fn kinds(image: &Image) -> Vec<(&'static str, Vec<u64>)> {
    let all = lists(image);
    let roots = all.iter().flat_map(|list| list.roots.iter());
    let inner = roots.filter(|(_, height)| *height > 1).map(|&(root, _)| root).next().unwrap();
    let base = number(&superblock(image)[256..], (8, 8));
    vec![
        ("an inner page of a layer", vec![inner]),
        ("both copies of a list", vec![all[0].block, all[0].block + 1]),
        ("the root of a base", vec![base]),
    ]
}

fn failed(sim: &SimDevice, store: Option<&Store>, how: How) -> u64 {
    match (how, store) {
        (How::WrongBytes, Some(store)) => store.stat().pool.corrupt,
        _ => sim.injected(),
    }
}

fn listed(sim: &SimDevice, device: &Device, objects: &Objects, how: How, what: &str) {
    let store = open(device, tiny_with_layers()).unwrap();
    let expected = objects.iter().map(|(&which, (version, _))| (name(which), Some(*version))).collect();
    for limit in [1, 5, 1_000] {
        let (began, before) = (Instant::now(), failed(sim, Some(&store), how));
        let judged = judge_listing(&store, &expected, limit).unwrap();
        assert!(judged.missing.len() > 20, "{what}: {} keys are hidden", judged.missing.len());
        let failed = failed(sim, Some(&store), how) - before;
        assert!(failed <= allowed(began), "{what}: pages of {limit} keys read damaged pages {failed} times");
    }
    block_on(store.close()).unwrap();
}

/// A listing, a check and a repair behind one damaged page.
#[test]
fn a_damaged_page_is_read_a_bounded_number_of_times() {
    let (image, objects) = subject();
    let (_, device) = quiet(&image);
    let (of_check, _) = reads(&device, || checked(&device).unwrap());
    let of_repair = reads_of_repair(&image);
    for (kind, blocks) in kinds(&image) {
        for how in BOTH {
            let what = format!("{kind}, {how:?}");
            let (sim, device) = quiet(&image);
            damage(&sim, &blocks, how);
            let (began, before) = (Instant::now(), sim.injected());
            let (reads_of_check, report) = reads(&device, || checked(&device).unwrap());
            assert!(!report.damaged_ranges.is_empty(), "{what}: {:?}", report.problems);
            // The damaged ranges are listed by a second pass over the trees.
            assert!(
                reads_of_check <= 2 * of_check + 32,
                "{what}: a check: {reads_of_check} reads, {of_check} of a healthy store"
            );
            let failed = (sim.injected() - before) / blocks.len() as u64;
            assert!(failed <= 2 * allowed(began), "{what}: a check reads each block {failed} times");
            // A store is not opened while the device cannot read a list.
            if blocks.len() == 1 || how == How::WrongBytes {
                listed(&sim, &device, &objects, how, &what);
            }

            let (sim, device) = quiet(&image);
            damage(&sim, &blocks, how);
            let (began, before) = (Instant::now(), sim.injected());
            let (reads_of_repair, report) = reads(&device, || repaired(&device).unwrap());
            assert!(!report.is_clean(), "{what}");
            println!(
                "{what}: check {reads_of_check} of {of_check} reads, repair {reads_of_repair} of {of_repair}"
            );
            assert!(
                reads_of_repair <= of_repair + of_check + 32,
                "{what}: a repair: {reads_of_repair} reads, {of_repair} if it hides no object"
            );
            let failed = (sim.injected() - before) / blocks.len() as u64;
            // Each part of a repair looks for itself before it gives a page up.
            assert!(failed <= 4 * allowed(began), "{what}: a repair reads each block {failed} times");
            sim.clear_faults();
            acknowledged(&device);
            assert_clean(&device, &what);
        }
    }
}

/// The reads of a repair with damage that hides no object: one copy of a list.
fn reads_of_repair(image: &Image) -> u64 {
    let (sim, device) = quiet(image);
    sim.corrupt(lists(image)[0].block, 1_000, 1);
    let (reads, report): (u64, CheckReport) = reads(&device, || repaired(&device).unwrap());
    assert!(report.problem_count == 1 && report.damaged_ranges.is_empty(), "{:?}", report.problems);
    reads
}

/// A block that the device reads again: a get has it at once, and a listing from then on.
#[test]
fn a_block_that_recovers_is_read_by_the_next_get() {
    let (image, objects) = subject();
    let (sim, device) = quiet(&image);
    damage(&sim, &kinds(&image)[0].1, How::Unreadable);
    let store = open(&device, tiny_with_layers()).unwrap();
    let expected: BTreeMap<_, _> =
        objects.iter().map(|(&which, (version, _))| (name(which), Some(*version))).collect();
    let missing = judge_listing(&store, &expected, 1_000).unwrap().missing;
    let hidden = missing.keys().next().unwrap();
    assert!(block_on(store.head(&key(hidden))).is_err());
    sim.clear_faults();
    assert!(block_on(store.head(&key(hidden))).unwrap().is_some(), "a get asks the device");
    assert_eq!(judge_listing(&store, &expected, 1_000).unwrap().missing.len(), 0);
    block_on(store.close()).unwrap();
}
