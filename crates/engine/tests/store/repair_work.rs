//! The work of a repair of a large store, counted in blocks that are read, never in seconds.
//!
//! Symptom: 14 s for a damaged layer of a store of 10^6 objects; `check --repair` of the healthy store took 2 s. Cause: five passes over
//! the trees, and a search in all layers for each record in the log. Now a check and a repair read the trees once, and the
//! check that follows reads them again. REPAIR_OBJECTS of the laboratory is the number of objects.

use std::sync::Arc;
use std::time::Instant;

use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice};
use shoal_engine::{
    CheckOptions, CheckReport, FormatOptions, OpenOptions, PutOptions, Store, Write, WriteBatch, block_on,
    check,
};
use shoal_testkit::bytes::number;
use shoal_testkit::lab;

use crate::common::{acknowledged, assert_clean, checked, format_as, key, open, quiet, repaired};
use crate::layers::{lists, pages, superblock};

const VALUE_BYTES: usize = 100;
/// Objects that a write batch puts.
const AT_A_TIME: u64 = 100;
/// Objects for each record of a layer.
const OF_A_LAYER: u64 = 40;

/// Keys whose neighbours in the tree are rarely written together.
fn name(number: u64) -> Vec<u8> {
    format!("object-{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes()
}

fn put(store: &Store, numbers: impl Iterator<Item = u64>) {
    let keys: Vec<_> = numbers.map(|number| key(name(number))).collect();
    let options = PutOptions::default();
    let value = vec![7; VALUE_BYTES].into();
    for keys in keys.chunks(AT_A_TIME as usize) {
        let mut batch = WriteBatch::new();
        keys.iter().for_each(|key| batch.add(Write::put(key, &value, &options)));
        let ticket = block_on(store.write(batch)).unwrap();
        block_on(ticket.durable()).unwrap();
    }
}

/// The options of a life: its records become the base, or a layer.
fn life(is_first: bool) -> OpenOptions {
    let mut options = OpenOptions { cache_bytes: 64 << 20, background: false, ..OpenOptions::default() };
    options.tuning.layers_from = if is_first { u64::MAX } else { 0 };
    (options.tuning.dense_records, options.tuning.layer_records_min) = (1 << 20, 1);
    // No compactions: the layers stay.
    options.tuning.merge_permille = u64::MAX / (1 << 32);
    options
}

/// A closed store with `objects` objects, two layers or more above each base, and the latest records still in the log.
fn subject(objects: u64) -> Image {
    let blocks = (objects / 4).max(8_192);
    let (sim, device) = quiet(&Image::new(blocks));
    let log_blocks = Some(u32::try_from(objects / 128).unwrap().max(128));
    format_as(&device, &FormatOptions { tablets: 4, log_blocks, ..FormatOptions::for_blocks(blocks) }, 7);
    for turn in 0..3_u64 {
        let store = open(&device, life(turn == 0)).unwrap();
        match turn {
            0 => put(&store, 0..objects),
            _ => put(&store, (turn..objects).step_by(OF_A_LAYER as usize)),
        }
        block_on(store.close()).unwrap();
    }
    sim.image()
}

/// Blocks that `work` reads.
fn blocks_read<T>(device: &Device, work: impl FnOnce() -> T) -> (u64, T) {
    let before = device.counters().blocks_read;
    let done = work();
    (device.counters().blocks_read - before, done)
}

/// Kinds of damage, with the blocks of each; true if it hides objects.
fn kinds(image: &Image) -> Vec<(&'static str, Vec<u64>, bool)> {
    let list = &lists(image)[0];
    let record = superblock(image)[256..].to_vec();
    let base = number(&record, (8, 8));
    let leaves = pages(image, base, record[4]);
    let leaves: Vec<u64> = leaves.iter().filter(|(_, level)| *level == 0).map(|&(block, _)| block).collect();
    vec![
        ("a copy of a list", vec![list.block], false),
        ("the root of a layer", vec![list.roots[0].0], true),
        ("both copies of a list", vec![list.block, list.block + 1], true),
        ("every hundredth leaf of a base", leaves.into_iter().step_by(100).collect(), true),
    ]
}

fn damaged(image: &Image, blocks: &[u64]) -> (Arc<SimDevice>, Device) {
    let (sim, device) = quiet(image);
    blocks.iter().for_each(|&block| sim.corrupt(block, 1_000, 1));
    (sim, device)
}

/// What `shoal check --repair` does: a repair, and another check if anything was wrong.
fn program(device: &Device) -> (u64, u64, CheckReport) {
    let (of_repair, report) = blocks_read(device, || repaired(device).unwrap());
    let of_check = if report.problem_count == 0 { 0 } else { blocks_read(device, || checked(device)).0 };
    (of_repair, of_check, report)
}

#[test]
fn a_repair_reads_little_more_than_a_check() {
    let objects = lab::number("REPAIR_OBJECTS", 20_000);
    let image = subject(objects);
    let (_, device) = quiet(&image);
    let began = Instant::now();
    let (healthy, _, report) = program(&device);
    println!("{objects} objects: {healthy} blocks, {:?}", began.elapsed());
    assert_eq!((report.objects, report.problem_count), (objects, 0));
    assert!(lists(&image)[0].roots.len() >= 2, "layers");
    for (kind, blocks, restores) in kinds(&image) {
        let (_, device) = damaged(&image, &blocks);
        let (began, flushes) = (Instant::now(), device.counters().flushes);
        let (of_repair, of_check, report) = program(&device);
        let (elapsed, flushes) = (began.elapsed(), device.counters().flushes - flushes);
        println!(
            "{kind}: {of_repair} + {of_check} blocks, {:.2} times those of the healthy store, {flushes} flushes, {elapsed:?}; {} restored",
            (of_repair + of_check) as f64 / healthy as f64,
            report.restored_count,
        );
        assert!(report.problem_count > 0, "{kind}");
        assert_eq!(report.restored_count > 0, restores, "{kind}");
        // The repair reads the ring of the log, and one tablet whose objects it restored: to write its leaves anew, and to count it.
        assert!(of_repair <= 2 * healthy, "{kind}: {of_repair} blocks, {healthy} of the healthy store");
        assert!(
            of_check <= healthy + healthy / 4,
            "{kind}: {of_check} blocks, {healthy} of the healthy store"
        );
        // A group of objects is durable by one flush.
        let groups = report.restored_count / 64;
        assert!(flushes <= 64 + groups, "{kind}: {flushes} flushes for {} objects", report.restored_count);
        acknowledged(&device);
        assert_clean(&device, kind);
    }
}

/// A page that cannot be read while the check walks, and can be read when the repair writes: its blocks must not come out as free,
/// and nothing is lost.
#[test]
fn page_that_recovers_during_repair_is_kept() {
    const OBJECTS: u64 = 4_000;
    const EIO: i32 = 5;
    let image = subject(OBJECTS);
    for block in [lists(&image)[0].roots[0].0, kinds(&image)[3].1[0]] {
        let (sim, device) = quiet(&image);
        sim.inject(Fault::fail(FaultOp::Read, EIO).at(block..block + 1).for_good());
        let walked = sim.clone();
        let half = OBJECTS / 2;
        let progress = move |objects: u64, _| {
            if objects >= half {
                walked.clear_faults();
            }
        };
        let options =
            CheckOptions { repair: true, progress: Some(Arc::new(progress)), ..CheckOptions::default() };
        let report = block_on(check(device.clone(), &options)).unwrap();
        assert!(report.problem_count > 0 && report.objects < OBJECTS, "the check met the damage");
        assert!(report.losses.is_none(), "{:?}", report.losses);
        let report = checked(&device).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        assert_eq!(report.objects, OBJECTS);
    }
}
