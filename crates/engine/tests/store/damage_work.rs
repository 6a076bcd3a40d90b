//! The work that damage costs: reads of the device and verified damaged pages, counted, never seconds.
//!
//! Seen as a listing of 15 s and a repair of 194 s for 69,345 objects: a damaged inner page of a layer was read again for every key under
//! it. `crates/pool/src/damaged.rs` has the rule. Reads that the rule allows again after some seconds are allowed here by the elapsed time,
//! so a slow machine fails nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice};
use shoal_engine::{CheckReport, FormatOptions, ListRequest, OpenOptions, Store, block_on};
use shoal_testkit::bytes::number;

use crate::common::{
    ByName, acknowledged, assert_clean, checked, format_as, judge_listing, key, open, quiet, repaired,
    tiny_format, tiny_with_layers, tiny_without_layers,
};
use crate::layers::{Objects, lists, name, pages, subject, superblock};

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

/// Failed reads that a pass may make of a damaged page: by read-ahead, by itself, and once more for each five seconds since `began`.
fn allowed(began: Instant) -> u64 {
    4 * (1 + began.elapsed().as_secs() / 5)
}

/// Counts the reads of the device that `work` makes.
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
        let passed = store.stat().keys_passed;
        let judged = judge_listing(&store, &expected, limit).unwrap();
        assert!(judged.missing.len() > 20, "{what}: {} keys are hidden", judged.missing.len());
        let passed = store.stat().keys_passed - passed;
        assert!(
            passed > 20 || what.starts_with("the root"),
            "{what}: {passed} hidden keys count as work of a page"
        );
        let failed = failed(sim, Some(&store), how) - before;
        assert!(failed <= allowed(began), "{what}: pages of {limit} keys read damaged pages {failed} times");
    }
    block_on(store.close()).unwrap();
}

/// A listing, a check and a repair over one damaged page.
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
            // The damaged ranges are found by the pages that the walk found damaged.
            assert!(
                reads_of_check <= of_check + 32,
                "{what}: a check: {reads_of_check} reads, {of_check} of a healthy store"
            );
            let failed = (sim.injected() - before) / blocks.len() as u64;
            assert!(failed <= 2 * allowed(began), "{what}: a check reads each block {failed} times");
            // A store does not open while the device cannot read a list.
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
            // Records that the damage hides are looked for in every batch of the log.
            assert!(
                reads_of_repair <= of_repair + of_check + log_batches(&image) + 32,
                "{what}: a repair: {reads_of_repair} reads, {of_repair} if it hides no object"
            );
            let failed = (sim.injected() - before) / blocks.len() as u64;
            // Each part of a repair reads a page itself before it gives the page up.
            assert!(failed <= 4 * allowed(began), "{what}: a repair reads each block {failed} times");
            sim.clear_faults();
            acknowledged(&device);
            assert_clean(&device, &what);
        }
    }
}

/// The batches of the log, as far as their headers tell.
fn log_batches(image: &Image) -> u64 {
    let is_batch = |&block: &u64| matches!(&image.block(block)[4..8], b"SBAG" | b"SBAH");
    (0..image.blocks()).filter(is_batch).count() as u64
}

/// Returns the number of reads of a repair with damage that hides no object: one copy of a list.
fn reads_of_repair(image: &Image) -> u64 {
    let (sim, device) = quiet(image);
    sim.corrupt(lists(image)[0].block, 1_000, 1);
    let (reads, report): (u64, CheckReport) = reads(&device, || repaired(&device).unwrap());
    assert!(report.problem_count == 1 && report.damaged_ranges.is_empty(), "{:?}", report.problems);
    reads
}

/// A block that becomes readable again: a get sees it at once, and listings from then on.
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

/// Long names: leaves hold few of them.
fn long_name(which: u64) -> Vec<u8> {
    format!("{which:06}-{}", "long-name-".repeat(60)).into_bytes()
}

const OBJECTS: u64 = 4_000;

fn large() -> OpenOptions {
    let mut options = tiny_without_layers();
    (options.cache_bytes, options.memtable_bytes) = (1 << 20, Some(256 << 10));
    options.tuning.memtable_records_max = 1 << 10;
    options
}

/// A closed store of two tablets with some hundred leaves each.
fn large_subject() -> (Image, BTreeMap<Vec<u8>, Option<u64>>) {
    const BLOCKS: u64 = 8_192;
    let (sim, device) = quiet(&Image::new(BLOCKS));
    format_as(&device, &FormatOptions { log_blocks: Some(512), ..tiny_format(BLOCKS) }, 5);
    let store = open(&device, large()).unwrap();
    let put = |which| (long_name(which), Some(store.set(long_name(which), vec![1; 4]).unwrap()));
    let objects = (0..OBJECTS).map(put).collect();
    block_on(store.close()).unwrap();
    (sim.image(), objects)
}

fn pages_listed(store: &Store, limit: usize) -> (usize, usize) {
    let mut request = ListRequest { bucket: "default".into(), limit, ..ListRequest::default() };
    let (mut pages, mut keys) = (0, 0);
    loop {
        let page = block_on(store.list(&request)).unwrap();
        (pages, keys) = (pages + 1, keys + page.entries.len());
        match page.next {
            Some(next) => request.start_after = next,
            None => return (pages, keys),
        }
    }
}

/// Both copies of a list: the layer hides every key of one tablet, and no page of a listing reads through all of them.
#[test]
fn hidden_keys_are_not_read_for_each_page_of_a_listing() {
    let (image, mut objects) = large_subject();
    let (sim, device) = quiet(&image);
    let mut options = large();
    (options.tuning.layers_from, options.tuning.dense_records, options.tuning.layer_records_min) =
        (0, 1 << 20, 1);
    options.tuning.merge_permille = u64::MAX / (1 << 32);
    let store = open(&device, options.clone()).unwrap();
    for which in (0..OBJECTS).step_by(100) {
        objects.insert(long_name(which), Some(store.set(long_name(which), vec![2; 4]).unwrap()));
    }
    block_on(store.close()).unwrap();
    drop(store);
    let lists = lists(&sim.image());
    assert_eq!(lists.len(), 2);
    let (sim, device) = quiet(&sim.image());
    let store = open(&device, options.clone()).unwrap();
    let (healthy, (_, keys)) = reads(&device, || pages_listed(&store, 10));
    assert_eq!(keys, objects.len());
    drop(store);
    damage(&sim, &[lists[0].block, lists[0].block + 1], How::WrongBytes);
    let store = open(&device, options).unwrap();
    let (reads_of_list, (_, keys)) = reads(&device, || pages_listed(&store, 10));
    assert!(keys < objects.len() * 2 / 3, "{keys} keys");
    assert!(reads_of_list <= 2 * healthy + 64, "{reads_of_list} reads, {healthy} of a healthy store");
    let judged = judge_listing(&store, &objects, 50).unwrap();
    assert_eq!(judged.missing.len() + keys, objects.len());
}

/// A long stretch of damage in one tablet, of more pages than are remembered: the pages of a listing return the keys of the other tablet
/// meanwhile, and none of them reads the whole stretch.
#[test]
fn long_damage_is_not_read_again_for_each_list_page() {
    let (image, objects) = large_subject();
    let record = superblock(&image)[256..].to_vec();
    let tree = pages(&image, number(&record, (8, 8)), record[4]);
    let leaves: Vec<u64> = tree.iter().filter(|&&(_, level)| level == 0).map(|&(block, _)| block).collect();
    assert!(leaves.len() > 300, "{} leaves", leaves.len());
    let stretch = &leaves[5..leaves.len() - 5];
    let (_, device) = quiet(&image);
    let store = open(&device, large()).unwrap();
    let (healthy, (_, keys)) = reads(&device, || pages_listed(&store, 10));
    assert_eq!(keys, objects.len());
    drop(store);
    for how in BOTH {
        let (sim, device) = quiet(&image);
        damage(&sim, stretch, how);
        let store = open(&device, large()).unwrap();
        let (reads_of_list, (_, keys)) = reads(&device, || pages_listed(&store, 10));
        assert!(keys < objects.len() * 2 / 3, "{keys} keys");
        assert!(
            reads_of_list <= 2 * healthy + 64,
            "{how:?}: {reads_of_list} reads, {healthy} of a healthy store, {} damaged pages",
            stretch.len()
        );
        let judged = judge_listing(&store, &objects, 50).unwrap();
        assert_eq!(judged.missing.len() + keys, objects.len());
        drop(store);
    }
}
