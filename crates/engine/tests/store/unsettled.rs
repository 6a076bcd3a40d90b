//! Objects that are overwritten unread (INV-27): their number and bytes are estimates, within bounds, and exact after compactions; values with
//! blocks are freed as before.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shoal_device::Device;
use shoal_device_sim::Image;
use shoal_engine::{FormatOptions, OpenOptions, Store, block_on};
use shoal_testkit::Value;
use shoal_testkit::lab;

use crate::common::{ByName, assert_clean, format_as, open, quiet, tiny_format, tiny_with_layers};

/// The first ones have values in leaves only, the others also packed ones and such with separate blocks.
const KEYS: u64 = 400;
const SMALL_KEYS: u64 = 250;
/// Layers are never compacted for their size.
const NEVER: u64 = u64::MAX / (1 << 32);

/// The length of each object's value.
type Lengths = BTreeMap<u64, u64>;

#[derive(Clone, Debug)]
enum Act {
    Put(u64, usize),
    Delete(u64),
}

/// The acts between two openings.
#[derive(Clone, Debug)]
struct Part {
    acts: Vec<Act>,
    dense_records: usize,
    memtable_records_max: usize,
    merge_permille: u64,
    merge_slice_bytes: usize,
}

fn device() -> Device {
    let (_, device) = quiet(&Image::new(8_192));
    format_as(&device, &FormatOptions { log_blocks: Some(160), tablets: 1, ..tiny_format(8_192) }, 7);
    device
}

fn name(which: u64) -> Vec<u8> {
    let kind = if which < SMALL_KEYS { "a-small" } else { "b-mixed" };
    format!("{kind}-{which:04}-{}", "long".repeat(10)).into_bytes()
}

fn layered(part: &Part) -> OpenOptions {
    let mut options = tiny_with_layers();
    (options.cache_bytes, options.memtable_bytes) = (2 << 20, Some(160 << 10));
    let tuning = &mut options.tuning;
    (tuning.memtable_records_max, tuning.dense_records) = (part.memtable_records_max, part.dense_records);
    (tuning.merge_permille, tuning.merge_slice_bytes) = (part.merge_permille, part.merge_slice_bytes);
    options
}

fn thin() -> Part {
    Part {
        acts: Vec::new(),
        dense_records: 1 << 20,
        memtable_records_max: 512,
        merge_permille: NEVER,
        merge_slice_bytes: 1 << 20,
    }
}

/// Opens a store, acts, and closes it. Everything is applied then.
fn run(device: &Device, part: &Part, lengths: &mut Lengths) {
    let store = open(device, layered(part)).unwrap();
    for act in &part.acts {
        match *act {
            Act::Put(which, bytes) => {
                store.set(name(which), Value { key: which, seed: bytes as u64, bytes }.to_vec()).unwrap();
                lengths.insert(which, bytes as u64);
            }
            Act::Delete(which) => {
                store.remove(name(which)).unwrap();
                lengths.remove(&which);
            }
        }
    }
    block_on(store.close()).unwrap();
}

/// Opens the store and compares its figures with the objects; returns the number of estimated objects.
fn figures(device: &Device, lengths: &Lengths, what: &str) -> u64 {
    assert_clean(device, what);
    let store = open(device, layered(&thin())).unwrap();
    let stat = store.stat();
    let (objects, bytes) = (lengths.len() as u64, lengths.values().sum::<u64>());
    let error = objects.abs_diff(stat.objects);
    assert!(error <= stat.unsettled.min(objects / 100 + 2), "{what}: {} of {objects} objects", stat.objects);
    let error = bytes.abs_diff(stat.live_value_bytes);
    assert!(error <= stat.unsettled * 100, "{what}: {} of {bytes} bytes", stat.live_value_bytes);
    objects_are_there(&store, lengths, what);
    stat.unsettled
}

fn objects_are_there(store: &Store, lengths: &Lengths, what: &str) {
    for which in 0..KEYS {
        let found = store.find(name(which)).unwrap();
        let bytes = found.map(|object| object.info.bytes);
        assert_eq!(bytes.as_ref(), lengths.get(&which), "{what}: object {which}");
    }
}

/// Compacts all layers into the base.
fn compact_all(device: &Device, lengths: &mut Lengths) {
    let mut part = Part { merge_permille: 0, memtable_records_max: 8, dense_records: 1, ..thin() };
    for turn in 0.. {
        assert!(turn < 30, "layers are left");
        part.acts = (0..20).map(|which| Act::Put(which, turn)).collect();
        run(device, &part, lengths);
        let store = open(device, layered(&thin())).unwrap();
        if store.stat().layers == 0 {
            return;
        }
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..SMALL_KEYS, 0..100_usize).prop_map(|(which, bytes)| Act::Put(which, bytes)),
        2 => (SMALL_KEYS..KEYS, prop_oneof![Just(30), Just(90), Just(400), Just(5_000)])
            .prop_map(|(which, bytes)| Act::Put(which, bytes)),
        1 => (0..KEYS).prop_map(Act::Delete),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    (
        prop::collection::vec(act(), 0..80),
        prop_oneof![Just(4), Just(1 << 20)],
        prop_oneof![Just(8), Just(32), Just(512)],
        prop_oneof![Just(0), Just(700), Just(5_000), Just(NEVER)],
        prop_oneof![Just(500), Just(5_000), Just(1 << 20)],
    )
        .prop_map(|(acts, dense_records, memtable_records_max, merge_permille, merge_slice_bytes)| {
            Part { acts, dense_records, memtable_records_max, merge_permille, merge_slice_bytes }
        })
}

/// A store with all objects in its base.
fn filled(device: &Device) -> Lengths {
    let mut lengths = Lengths::new();
    let put =
        |which| Act::Put(which, if which < SMALL_KEYS { 50 } else { [60, 400, 5_000][which as usize % 3] });
    for half in [0..KEYS / 2, KEYS / 2..KEYS] {
        let part = Part { acts: half.map(put).collect(), dense_records: 1, ..thin() };
        run(device, &part, &mut lengths);
    }
    compact_all(device, &mut lengths);
    lengths
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 300, ..ProptestConfig::with_cases(lab::number("UNSETTLED", 16) as u32) })]

    /// The number of objects and their bytes are estimates within bounds, and exact after all layers are compacted; no block is lost.
    #[test]
    fn any_overwrites_settle(parts in prop::collection::vec(part(), 1..7)) {
        let device = device();
        let mut lengths = filled(&device);
        for (at, part) in parts.iter().enumerate() {
            run(&device, part, &mut lengths);
            figures(&device, &lengths, &format!("part {at}"));
        }
        compact_all(&device, &mut lengths);
        assert_eq!(figures(&device, &lengths, "at the end"), 0);
    }
}

/// Only entries that own blocks, have a deadline or are deleted are read.
#[test]
fn unread_overwrites_are_counted() {
    let device = device();
    let mut lengths = filled(&device);
    assert_eq!(figures(&device, &lengths, "in the base"), 0);
    let puts = |from: u64, to: u64, bytes: usize| Part {
        acts: (from..to).step_by(2).map(|which| Act::Put(which, bytes)).collect(),
        ..thin()
    };
    run(&device, &puts(0, SMALL_KEYS, 70), &mut lengths);
    let first = figures(&device, &lengths, "small ones");
    assert!(first >= SMALL_KEYS / 2 * 8 / 10, "{first} of {} were unread", SMALL_KEYS / 2);
    // Again, above the layer.
    run(&device, &puts(0, SMALL_KEYS, 80), &mut lengths);
    let second = figures(&device, &lengths, "small ones again");
    assert!(second > first * 3 / 2, "{second} above {first}");
    // Values that have blocks are freed at once, which the check shows.
    run(&device, &puts(SMALL_KEYS + 9, KEYS, 30), &mut lengths);
    assert_eq!(figures(&device, &lengths, "mixed ones"), second);
    // Deletes read.
    let deletes = (0..SMALL_KEYS).step_by(18).map(Act::Delete).collect();
    run(&device, &Part { acts: deletes, ..thin() }, &mut lengths);
    assert_eq!(figures(&device, &lengths, "deleted ones"), second);
    // Some of the layers become one.
    run(
        &device,
        &Part {
            merge_slice_bytes: 300,
            merge_permille: 0,
            memtable_records_max: 1,
            acts: vec![Act::Put(3, 9), Act::Put(5, 9)],
            ..thin()
        },
        &mut lengths,
    );
    assert!(figures(&device, &lengths, "partly compacted") <= second + 1);
    compact_all(&device, &mut lengths);
    assert_eq!(figures(&device, &lengths, "compacted"), 0);
    let store = open(&device, layered(&thin())).unwrap();
    assert_eq!(store.stat().objects, lengths.len() as u64);
    assert_eq!(store.stat().live_value_bytes, lengths.values().sum::<u64>());
}
