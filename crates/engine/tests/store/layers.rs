//! Layers above the base of a tablet's tree (`docs/format/layers.md`): the store reads the same for every division of a history into
//! layers; slow readers, many layers, full devices; damage in each kind of page.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{ByteRange, Error, FormatOptions, OpenOptions, PutOptions, RejectRules, Store, block_on};
use shoal_testkit::Value;
use shoal_testkit::bytes::number;
use shoal_testkit::lab;
use shoal_testkit::wait::within;

use crate::common::{
    ByName, acknowledged, assert_clean, blank, checked, format_as, judge_listing, key, memory, open, quiet,
    tiny_format, tiny_with_layers, tiny_without_layers,
};

const BLOCKS: u64 = 1_024;
/// `LAYERS_MAX` of the engine.
const LAYERS_MAX: usize = 40;
/// The largest `merge_permille` whose product with a store's entries does not overflow: layers are never compacted for their size.
const NEVER: u64 = u64::MAX / (1 << 32);

/// A history of whole memtables: each opening applies its records in one go when it closes, and compacts nothing.
fn one_apply() -> OpenOptions {
    let mut options = tiny_with_layers();
    // A listing holds a page or two of each tree.
    (options.cache_bytes, options.memtable_bytes) = (4 << 20, Some(160 << 10));
    options.tuning.memtable_records_max = 256;
    options.tuning.dense_records = 1 << 20;
    options.tuning.merge_permille = NEVER;
    options
}

pub(crate) fn name(which: u64) -> Vec<u8> {
    format!("{}object-{which:04}", "folder/".repeat((which % 3) as usize)).into_bytes()
}

/// Long, so that a few fill a leaf; every other name is the direct successor of the previous one.
fn long_name(which: u64) -> Vec<u8> {
    format!(
        "{}object-{:04}{}{}",
        "folder/".repeat((which / 2 % 3) as usize),
        which / 2,
        "-long".repeat(50),
        ["", "\0"][(which % 2) as usize]
    )
    .into_bytes()
}

fn value(which: u64, seed: u64) -> Value {
    // In leaves, packed, with separate blocks.
    let bytes = [0, 40, 90, 400, 1_500, 30, 60, 5_000][(seed % 8) as usize];
    Value { key: which, seed, bytes }
}

fn put(store: &Store, which: u64, value: Value) -> u64 {
    put_as(store, &name(which), value)
}

fn put_as(store: &Store, name: &[u8], value: Value) -> u64 {
    store.set(name, value.to_vec()).unwrap_or_else(|error| panic!("put {}: {error}", value.key))
}

fn delete(store: &Store, which: u64) {
    store.remove(name(which)).unwrap_or_else(|error| panic!("delete {which}: {error}"));
}

/// A device with an empty store whose log takes some hundred records between two applies.
fn roomy(seed: u64) -> (Arc<SimDevice>, Device) {
    const BLOCKS: u64 = 4_096;
    let (sim, device) = quiet(&Image::new(BLOCKS));
    let options = FormatOptions { log_blocks: Some(160), ..tiny_format(BLOCKS) };
    format_as(&device, &options, seed);
    (sim, device)
}

/// Each object with its version and value.
pub(crate) type Objects = BTreeMap<u64, (u64, Value)>;

/// Compares gets, heads and listings of all keys below `keys` with the objects that exist.
fn conforms(store: &Store, objects: &Objects, keys: u64, what: &str) {
    conforms_as(store, objects, keys, name, what);
}

fn conforms_as(store: &Store, objects: &Objects, keys: u64, name: fn(u64) -> Vec<u8>, what: &str) {
    for which in 0..keys {
        let got = store.find(name(which)).unwrap_or_else(|error| panic!("{what}: get {which}: {error}"));
        let head = block_on(store.head(&key(name(which))))
            .unwrap_or_else(|error| panic!("{what}: head {which}: {error}"));
        assert_eq!(got.as_ref().map(|object| object.info.version), head.as_ref().map(|info| info.version));
        match (got, objects.get(&which)) {
            (None, None) => {}
            (Some(object), Some((version, value))) => {
                assert_eq!(object.info.version.0, *version, "{what}: {which}");
                value.check(&object.value.to_vec()).unwrap_or_else(|why| panic!("{what}: {which}: {why}"));
            }
            (got, held) => panic!("{what}: {which}: {:?}, not {held:?}", got.map(|object| object.info)),
        }
    }
    let expected = objects.iter().map(|(&which, (version, _))| (name(which), Some(*version))).collect();
    for limit in [1, 7, 1_000] {
        let judged = judge_listing(store, &expected, limit).unwrap_or_else(|why| panic!("{what}: {why}"));
        assert!(judged.missing.is_empty() && !judged.damaged, "{what}: {:?}", judged.missing);
    }
}

// The layers on the device: docs/format/superblock.md and layers.md.

const COPIES: [[u64; 2]; 2] = [[0, 32], [1, 33]];

/// The newest superblock.
pub(crate) fn superblock(image: &Image) -> [u8; BLOCK_BYTES] {
    let slots = [0, 1].map(|block| *image.block(block));
    slots.into_iter().max_by_key(|bytes| number(bytes, (32, 8))).unwrap()
}

/// The list of one tablet's layers.
#[derive(Clone, Debug)]
pub(crate) struct List {
    pub(crate) block: u64,
    pub(crate) copies: u64,
    /// Block and height of each layer's root, newest first.
    pub(crate) roots: Vec<(u64, u8)>,
    pub(crate) compacting: u64,
}

/// The lists of all tablets that have one.
pub(crate) fn lists(image: &Image) -> Vec<List> {
    let newest = superblock(image);
    let tablets = number(&newest, (12, 4)) as usize;
    let records = newest[256..].chunks(96).take(tablets).filter(|record| number(record, (80, 8)) != 0);
    records
        .map(|record| {
            let (block, copies) = (number(record, (80, 8)), number(record, (92, 2)));
            let page = image.block(block);
            assert_eq!(page[4..6], *b"Sc");
            let roots = page[56..].chunks(24).take(page[7].into());
            let roots = roots.map(|item| (number(item, (0, 8)), item[12])).collect();
            List { block, copies, roots, compacting: page[12].into() }
        })
        .collect()
}

/// The largest number of layers of a tablet.
pub(crate) fn most_layers(image: &Image) -> usize {
    lists(image).iter().map(|list| list.roots.len()).max().unwrap_or(0)
}

/// All pages of a tree, with their levels.
pub(crate) fn pages(image: &Image, root: u64, height: u8) -> Vec<(u64, u8)> {
    let mut found = vec![(root, height - 1)];
    let mut at = 0;
    while let Some(&(block, level)) = found.get(at) {
        at += 1;
        if level == 0 {
            continue;
        }
        let page = image.block(block);
        for slot in page[40..].chunks(2).take(number(page, (12, 2)) as usize) {
            let item = number(slot, (0, 2)) as usize;
            let length = |at: usize| match page[at] {
                short if short < 128 => (usize::from(short), 1),
                low => (usize::from(low & 127) | usize::from(page[at + 1]) << 7, 2),
            };
            let (suffix, first) = length(item);
            let (_, second) = length(item + first);
            // The top bit marks a plain leaf.
            let block = number(page, (item + first + second + suffix, 6)) & ((1 << 47) - 1);
            found.push((block, level - 1));
        }
    }
    found
}

// Any division of a history into layers.

#[derive(Clone, Debug)]
enum Act {
    Put(u64, u64),
    Delete(u64),
}

/// The acts between two openings, and the division of their records among the base and layers.
#[derive(Clone, Debug)]
struct Part {
    acts: Vec<Act>,
    layers_from: u64,
    dense_records: usize,
    memtable_records_max: usize,
    merge_permille: u64,
    merge_slice_bytes: usize,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..KEYS, 0..1_000_u64).prop_map(|(which, seed)| Act::Put(which, seed)),
        1 => (0..KEYS).prop_map(Act::Delete),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    (
        prop::collection::vec(act(), 0..30),
        prop_oneof![4 => Just(0), 1 => Just(u64::MAX)],
        prop_oneof![Just(1), Just(2), Just(4), Just(1 << 20)],
        prop_oneof![Just(1), Just(3), Just(8), Just(64)],
        prop_oneof![Just(0), Just(700), Just(5_000), Just(NEVER)],
        prop_oneof![Just(1), Just(200), Just(2_000), Just(1 << 20)],
    )
        .prop_map(
            |(acts, layers_from, dense_records, memtable_records_max, merge_permille, merge_slice_bytes)| {
                Part {
                    acts,
                    layers_from,
                    dense_records,
                    memtable_records_max,
                    merge_permille,
                    merge_slice_bytes,
                }
            },
        )
}

const KEYS: u64 = 60;

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 300, ..ProptestConfig::with_cases(lab::number("DIVISIONS", 40) as u32) })]

    /// Gets, heads, listings and counts depend neither on the division between layers and base, nor on the progress of a compaction.
    #[test]
    fn any_division_into_layers_reads_the_same(parts in prop::collection::vec(part(), 1..9)) {
        let (_, device) = blank(BLOCKS, 5);
        let mut objects = Objects::new();
        for (at, part) in parts.iter().enumerate() {
            let mut options = tiny_without_layers();
            let tuning = &mut options.tuning;
            (tuning.layers_from, tuning.layer_records_min) = (part.layers_from, 1);
            (tuning.dense_records, tuning.memtable_records_max) = (part.dense_records, part.memtable_records_max);
            (tuning.merge_permille, tuning.merge_slice_bytes) = (part.merge_permille, part.merge_slice_bytes);
            let store = open(&device, options).unwrap();
            for act in &part.acts {
                match *act {
                    Act::Put(which, seed) => {
                        let value = value(which, seed);
                        objects.insert(which, (put_as(&store, &long_name(which), value), value));
                    }
                    Act::Delete(which) => {
                        store.remove(long_name(which)).unwrap();
                        objects.remove(&which);
                    }
                }
            }
            conforms_as(&store, &objects, KEYS, long_name, &format!("part {at}"));
            block_on(store.close()).unwrap();
            drop(store);
            assert_clean(&device, &format!("part {at}"));
            let store = open(&device, tiny_without_layers()).unwrap();
            // Each unsettled entry may be a new object that a filter passed (INV-27).
            let (stat, exact) = (store.stat(), objects.len() as u64);
            let counted = stat.objects..=stat.objects + stat.unsettled;
            assert!(counted.contains(&exact), "part {at}: {exact} objects count as {counted:?}");
            conforms_as(&store, &objects, KEYS, long_name, &format!("part {at}, opened again"));
        }
    }
}

/// A reader that started before three compactions gets its object, even if its blocks were freed meanwhile (R16).
#[test]
fn a_slow_reader_across_three_compactions() {
    let (sim, device) = blank(BLOCKS, 6);
    let mut options = tiny_with_layers();
    options.tuning.dense_records = 1 << 20;
    options.tuning.merge_permille = 300;
    let store = open(&device, options).unwrap();
    let mut seed = 0;
    for turn in 0..12_u64 {
        for which in 0..40 {
            seed += 1;
            put(&store, which, value(which, seed));
        }
        let readers: Vec<_> = [turn, turn + 9, turn + 20]
            .into_iter()
            .map(|which| {
                let written = value(which, seed - 39 + which);
                (
                    which,
                    written,
                    block_on(store.get_stream(&key(name(which)), ByteRange::ALL)).unwrap().unwrap(),
                )
            })
            .collect();
        // A compaction has finished when a tablet has fewer layers than before.
        let (mut ended, mut before) = (0, most_layers(&sim.image()));
        for round in 0.. {
            assert!(round < 2_000, "turn {turn}: {ended} compactions");
            seed += 1;
            put(&store, round % 40, value(round % 40, seed));
            let now = most_layers(&sim.image());
            ended += u64::from(now < before);
            before = now;
            if ended == 3 {
                // The next round starts with the keys in order.
                break;
            }
        }
        for (which, written, mut reader) in readers {
            let mut bytes = Vec::new();
            while let Some(piece) =
                block_on(reader.next()).unwrap_or_else(|error| panic!("turn {turn}, {which}: {error}"))
            {
                bytes.extend(piece.to_vec());
            }
            written.check(&bytes).unwrap_or_else(|why| panic!("turn {turn}, {which}: {why}"));
        }
    }
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "after slow readers");
}

/// A compaction is paused in the middle. An object that is written below its frontier goes into the base, and is newer than the entries that the
/// layers still hold there (INV-28).
#[test]
fn a_write_below_the_frontier_decides() {
    const KEYS: u64 = 400;
    let (sim, device) = roomy(8);
    let mut objects = Objects::new();
    let mut write = |options: &OpenOptions, all: &mut dyn Iterator<Item = u64>, seed: u64| {
        let store = open(&device, options.clone()).unwrap();
        for which in all {
            let value = Value { key: which, seed, bytes: 60 };
            objects.insert(which, (put(&store, which, value), value));
        }
        conforms(&store, &objects, KEYS, &format!("seed {seed}"));
        block_on(store.close()).unwrap();
        drop(store);
        let store = open(&device, options.clone()).unwrap();
        conforms(&store, &objects, KEYS, &format!("seed {seed}, applied"));
    };
    let mut options = one_apply();
    options.tuning.layers_from = u64::MAX;
    write(&options, &mut (0..KEYS), 1);
    options.tuning.layers_from = 0;
    // A layer of all keys, and one apply followed by compactions, which take twice the bytes of the apply.
    options.tuning.memtable_records_max = 1_000;
    write(&options, &mut (0..KEYS), 2);
    (options.tuning.merge_permille, options.tuning.merge_slice_bytes) = (1, 200);
    options.tuning.memtable_records_max = 4;
    write(&options, &mut (0..3), 3);
    // Above a newer layer, whose only leaf has no filter, the records would also go into a layer.
    let stands = |list: &List| list.compacting > 0 && list.compacting == list.roots.len() as u64;
    assert!(lists(&sim.image()).iter().any(stands), "no compaction stands so: {:?}", lists(&sim.image()));
    // Each key is dense enough for the base. These are the first keys in order, and few, so that they are applied as the store closes, when
    // nothing is compacted.
    options.tuning.dense_records = 1;
    options.tuning.memtable_records_max = 1_000;
    write(&options, &mut (2..KEYS).step_by(3).take(16), 4);
    assert!(lists(&sim.image()).iter().any(|list| list.compacting > 0));
    assert_clean(&device, "below the frontier");
}

/// A store with the maximum number of layers: only the limit makes it compaction them.
fn full_of_layers() -> (Arc<SimDevice>, Device, Objects) {
    let (sim, device) = roomy(7);
    let mut objects = Objects::new();
    let mut counts = Vec::new();
    for life in 0..LAYERS_MAX as u64 {
        let store = open(&device, one_apply()).unwrap();
        for which in 0..8 {
            let which = (which * 7 + life * 3) % 50;
            let value = value(which, life * 100 + which);
            objects.insert(which, (put(&store, which, value), value));
        }
        if life > 4 {
            delete(&store, life);
            objects.remove(&life);
        }
        block_on(store.close()).unwrap();
        counts.push(most_layers(&sim.image()));
    }
    assert!(*counts.iter().max().unwrap() == LAYERS_MAX - 1, "{counts:?}");
    (sim, device, objects)
}

/// A tablet never has more than `LAYERS_MAX` layers: the apply that would write one more compacts first (R33).
#[test]
fn the_number_of_layers_is_bounded() {
    let (sim, device, mut objects) = full_of_layers();
    let mut most = 0;
    for life in 0..8_u64 {
        let store = open(&device, one_apply()).unwrap();
        for which in 0..8 {
            let which = (which * 5 + life) % 50;
            let value = value(which, life + 7 * which);
            objects.insert(which, (put(&store, which, value), value));
        }
        conforms(&store, &objects, 60, &format!("life {life}"));
        block_on(store.close()).unwrap();
        drop(store);
        most = most.max(most_layers(&sim.image()));
        assert_clean(&device, &format!("life {life}"));
    }
    assert!(most < LAYERS_MAX, "{most} layers");
    let store = open(&device, OpenOptions { cache_bytes: 4 << 20, ..tiny_with_layers() }).unwrap();
    conforms(&store, &objects, 60, "at the end");
}

/// A cache of the minimum size: gets, listings, applies and a check work over the maximum number of layers.
#[test]
fn many_layers_under_a_small_cache() {
    let (_, device, mut objects) = full_of_layers();
    let options = || OpenOptions { cache_bytes: 0, ..one_apply() };
    let store = open(&device, options()).unwrap();
    conforms(&store, &objects, 60, "64 frames");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| conforms(&store, &objects, 60, "four listings beside each other"));
        }
    });
    for which in 0..8 {
        let value = value(which, 7 * which);
        objects.insert(which, (put(&store, which, value), value));
    }
    conforms(&store, &objects, 60, "behind puts");
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "a small cache");
}

/// A full device whose objects are in layers: deletes work, and all of its space comes back.
#[test]
fn a_full_device_of_layers_is_empty_again() {
    const BLOCKS: u64 = 8_192;
    within("a full device", || {
        let device = memory(BLOCKS);
        let mut options = tiny_with_layers();
        options.cache_bytes = 4 << 20;
        options.tuning.memtable_records_max = 128;
        options.tuning.dense_records = 1 << 20;
        let store = open(&device, options).unwrap();
        let fill = || {
            for which in 0_u64.. {
                // Spread over all leaves.
                let spread = which.wrapping_mul(0x9E37_79B9) % (1 << 20);
                let bytes = Value { key: which, seed: which, bytes: 6_000 }.to_vec();
                let name = key(format!("{spread:08}-{which}").as_bytes());
                match block_on(store.put(&name, bytes.into(), PutOptions::default())) {
                    Ok(_) => {}
                    Err(Error::Full { .. }) => return which,
                    Err(error) => panic!("filling: {error}"),
                }
            }
            unreachable!("the device is never full")
        };
        let empty = |count: u64| {
            for which in 0..count {
                let spread = which.wrapping_mul(0x9E37_79B9) % (1 << 20);
                let name = key(format!("{spread:08}-{which}").as_bytes());
                block_on(store.delete(&name, RejectRules::default()))
                    .unwrap_or_else(|error| panic!("deleting {which} of {count}: {error}"));
            }
        };
        let count = fill();
        assert!(count > 3_000, "full at {count} objects");
        empty(count);
        let again = fill();
        assert!(again * 100 >= count * 97, "{count} objects at first, {again} after all were deleted");
        empty(again);
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "emptied");
    });
}

/// A write is refused only if no layer's pages could be room for it. A regression: the writes of a full store each made an apply write a
/// layer, and were refused before the compaction thread had a core.
#[test]
fn a_full_store_has_no_layers() {
    let device = memory(320);
    let mut options = tiny_with_layers();
    options.tuning.merge_permille = NEVER;
    let store = open(&device, options).unwrap();
    let mut most = 0;
    let full = (0..).find_map(|which| {
        let put = store.set(format!("{which:05}"), vec![1; 9_000]);
        most = most.max(store.stat().layers);
        put.err()
    });
    assert!(matches!(full, Some(Error::Full { .. })), "{full:?}");
    assert!(most > 4, "{most} layers at most");
    assert_eq!(store.stat().layers, 0, "their pages are room for objects");
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "a full store");
}

// Damage.

/// A closed store whose tablets have several layers, one of them of two levels, and its objects.
pub(crate) fn subject() -> (Image, Objects) {
    let (sim, device) = roomy(9);
    let mut objects = Objects::new();
    let mut options = one_apply();
    for life in 0..4_u64 {
        // The first life fills the base, the others write a layer each.
        options.tuning.layers_from = if life == 0 { u64::MAX } else { 0 };
        options.tuning.memtable_records_max = if life == 0 { 8 } else { 256 };
        let store = open(&device, options.clone()).unwrap();
        let all: Vec<u64> = match life {
            0 => (0..KEYS_OF_DAMAGE).collect(),
            1 => (0..KEYS_OF_DAMAGE).filter(|which| which % 2 == 1).collect(),
            _ => (0..KEYS_OF_DAMAGE).filter(|which| which % 11 == life).collect(),
        };
        for which in all {
            // Long enough for several leaves.
            let value = Value { key: which, seed: life, bytes: 60 + (which % 40) as usize };
            objects.insert(which, (put(&store, which, value), value));
        }
        for which in (life..KEYS_OF_DAMAGE).step_by(29).take(if life == 0 { 0 } else { 9 }) {
            delete(&store, which);
            objects.remove(&which);
        }
        block_on(store.close()).unwrap();
    }
    (sim.image(), objects)
}

const KEYS_OF_DAMAGE: u64 = 240;

/// Uses a store whose `blocks` are damaged: every key returns its object or `Corrupt`, writes work, and an acknowledgement gives up the
/// keys that returned an error and no other key. Returns the number of these keys.
fn trial(image: &Image, objects: &Objects, blocks: &[u64], what: &str) -> usize {
    let (sim, device) = quiet(image);
    blocks.iter().for_each(|&block| sim.corrupt(block, 1_000, 1));
    let mut objects = objects.clone();
    let judge = |store: &Store, objects: &Objects, when: &str| -> Vec<u64> {
        let mut hidden = Vec::new();
        for which in 0..KEYS_OF_DAMAGE {
            match (store.find(name(which)), objects.get(&which)) {
                (Ok(None), None) => {}
                (Ok(Some(object)), Some((version, value))) => {
                    assert_eq!(object.info.version.0, *version, "{what}, {when}: {which}");
                    value.check(&object.value.to_vec()).unwrap();
                }
                (Err(Error::Corrupt { .. }), _) => hidden.push(which),
                (got, held) => panic!("{what}, {when}: {which}: {got:?}, not {held:?}"),
            }
        }
        let expected = objects.iter().map(|(&which, (version, _))| (name(which), Some(*version))).collect();
        let judged =
            judge_listing(store, &expected, 50).unwrap_or_else(|why| panic!("{what}, {when}: {why}"));
        let named = |which: &u64| judged.missing.contains_key(&name(*which)) || !objects.contains_key(which);
        assert!(hidden.iter().all(named), "{what}, {when}: {hidden:?}");
        assert!(judged.missing.len() <= hidden.len(), "{what}, {when}: a listing hides more than gets");
        hidden
    };
    let report = checked(&device).unwrap();
    let store = open(&device, tiny_with_layers()).unwrap_or_else(|error| panic!("{what}: opening: {error}"));
    let hidden = judge(&store, &objects, "as it is");
    assert_eq!(hidden.is_empty(), report.damaged_ranges.is_empty(), "{what}: {:?}", report.damaged_ranges);
    assert!(!report.is_clean(), "{what}: check finds nothing");
    // New writes work, of hidden keys and others, through applies and compactions.
    for which in (0..KEYS_OF_DAMAGE).filter(|which| which % 5 == 0) {
        let value = Value { key: which, seed: 99, bytes: 50 };
        objects.insert(which, (put(&store, which, value), value));
    }
    for &which in hidden.iter().filter(|which| *which % 5 == 1) {
        delete(&store, which);
        objects.remove(&which);
    }
    let left: Vec<u64> = hidden.iter().copied().filter(|which| which % 5 > 1).collect();
    assert_eq!(judge(&store, &objects, "written to"), left, "{what}");
    block_on(store.close()).unwrap_or_else(|error| panic!("{what}: closing: {error}"));
    drop(store);
    let store = open(&device, tiny_with_layers()).unwrap();
    assert_eq!(judge(&store, &objects, "applied"), left, "{what}");
    drop(store);
    // Objects whose records are still in the log come back, the others are given up.
    let lost = acknowledged(&device).losses.lost;
    let report = checked(&device).unwrap();
    assert!(report.is_clean(), "{what}: acknowledged: {:?}", report.problems);
    let store = open(&device, tiny_with_layers()).unwrap();
    let mut gone = 0;
    for which in left {
        match store.find(name(which)).unwrap() {
            None => gone += u64::from(objects.remove(&which).is_some()),
            Some(object) => {
                let (version, value) = objects.get_mut(&which).unwrap_or_else(|| panic!("{what}: {which}"));
                value.check(&object.value.to_vec()).unwrap_or_else(|why| panic!("{what}: {which}: {why}"));
                *version = object.info.version.0;
            }
        }
    }
    assert_eq!(judge(&store, &objects, "acknowledged"), [0_u64; 0], "{what}");
    // Keys that were written while their old state was hidden may count as lost.
    assert!(gone <= lost && lost <= hidden.len() as u64 + 1, "{what}: {gone} are gone, {lost} counted");
    assert_eq!(store.stat().poisoned, None);
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, what);
    hidden.len()
}

/// Every page of every layer, one at a time: leaves and inner pages. Only keys that the page may hold are hidden.
#[test]
fn damage_in_each_page_of_a_layer() {
    let (image, objects) = subject();
    let (mut leaves, mut inner, mut hidden) = (0, 0, 0);
    for list in lists(&image) {
        assert!(list.roots.len() >= 3, "{list:?}");
        for (root, height) in list.roots {
            for (block, level) in pages(&image, root, height) {
                let count = trial(&image, &objects, &[block], &format!("block {block} of level {level}"));
                *(if level == 0 { &mut leaves } else { &mut inner }) += 1;
                assert!(count > 0, "block {block} of level {level} hides nothing");
                assert!(
                    level > 0 || height == 1 || count < 100,
                    "a leaf hides {count} keys: its filter denies most"
                );
                hidden += count;
            }
        }
    }
    println!("{leaves} leaves, {inner} inner pages, {hidden} hidden keys");
    assert!(leaves > 8 && inner >= 2, "{leaves} leaves, {inner} inner pages");
}

/// The list of the layers: one copy is enough; without both every key of the tablet returns an error until it is written.
#[test]
fn damage_in_the_list_of_layers() {
    let (image, objects) = subject();
    for list in lists(&image) {
        assert_eq!(list.copies, 2);
        for copy in 0..2 {
            let (sim, device) = quiet(&image);
            sim.corrupt(list.block + copy, 1_000, 1);
            let report = checked(&device).unwrap();
            assert!(
                report.damaged_ranges.is_empty() && !report.is_clean(),
                "copy {copy}: {:?}",
                report.problems
            );
            let store = open(&device, tiny_with_layers()).unwrap();
            conforms(&store, &objects, KEYS_OF_DAMAGE, &format!("copy {copy}"));
            let scrubbed = block_on(store.scrub()).unwrap();
            assert_eq!(scrubbed.problem_count, 1, "copy {copy}: {:?}", scrubbed.problems);
        }
        let both = [list.block, list.block + 1];
        let hidden = trial(&image, &objects, &both, "both copies of a list");
        assert!(hidden as u64 > KEYS_OF_DAMAGE / 4, "{hidden} keys are hidden: all of one tablet");
    }
}

/// Seen as a lost write: layers above a damaged one are compacted with each other, including the inputs of a compaction with a frontier; a layer
/// that replaced them counted as one of that compaction, so its entries below the frontier were ignored.
#[test]
fn layers_above_damage_are_bounded() {
    let (image, mut objects) = subject();
    let mut written = std::collections::BTreeSet::new();
    let list = lists(&image).remove(0);
    let (root, height) = list.roots[1];
    // The last leaf: a compaction makes much progress before it meets the damage.
    let leaf = pages(&image, root, height).into_iter().rfind(|&(_, level)| level == 0).unwrap().0;
    let (sim, device) = quiet(&image);
    sim.corrupt(leaf, 1_000, 1);
    let (mut most, mut fewest) = (0, usize::MAX);
    for life in 0..60_u64 {
        let mut options = one_apply();
        options.tuning.merge_permille = if life < 2 { 1 } else { NEVER };
        let store = open(&device, options).unwrap();
        for which in (life % 7..KEYS_OF_DAMAGE).step_by(37) {
            let value = Value { key: which, seed: life, bytes: 40 };
            objects.insert(which, (put(&store, which, value), value));
            written.insert(which);
        }
        if life < 2 {
            // Compactions follow an apply that is not the apply of a close.
            for which in 0..70 {
                let value = Value { key: which, seed: 1_000 + life, bytes: 40 };
                objects.insert(which, (put(&store, which, value), value));
                written.insert(which);
            }
        }
        for which in 0..KEYS_OF_DAMAGE {
            match (store.find(name(which)), objects.get(&which)) {
                (Err(Error::Corrupt { .. }), _) => assert!(!written.contains(&which), "life {life}: {which}"),
                (Ok(None), None) => {}
                (Ok(Some(object)), Some((version, _))) => {
                    assert_eq!(object.info.version.0, *version, "life {life}: {which}");
                }
                (got, held) => panic!("life {life}: {which}: {got:?}, not {held:?}"),
            }
        }
        block_on(store.close()).unwrap();
        drop(store);
        let count = lists(&sim.image()).iter().map(|list| list.roots.len()).min().unwrap();
        (most, fewest) =
            (most.max(most_layers(&sim.image())), if life > 45 { fewest.min(count) } else { fewest });
    }
    assert!(most < LAYERS_MAX && fewest < LAYERS_MAX / 2, "{most} layers, then {fewest}");
    acknowledged(&device);
    assert_clean(&device, "acknowledged");
    let store = open(&device, tiny_with_layers()).unwrap();
    for which in 0..KEYS_OF_DAMAGE {
        let object = store.find(name(which)).unwrap();
        match (object, objects.get(&which)) {
            (Some(object), Some((_, value))) => value.check(&object.value.to_vec()).unwrap(),
            (None, _) => assert!(!written.contains(&which), "{which} is gone"),
            (Some(object), None) => panic!("{which} is back: {:?}", object.info),
        }
    }
}

/// The maximum number of layers, and the newest one is damaged: nothing can be compacted, so writes that need an apply fail with `Busy`; an
/// acknowledgement makes room.
#[test]
fn damage_above_maximum_layers() {
    let (sim, device, mut objects) = full_of_layers();
    let list = lists(&sim.image()).into_iter().max_by_key(|list| list.roots.len()).unwrap();
    sim.corrupt(list.roots[0].0, 1_000, 1);
    acknowledged(&device);
    let report = checked(&device).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let store = open(&device, tiny_with_layers()).unwrap();
    for which in 0..60 {
        match (store.find(name(which)).unwrap(), objects.get(&which)) {
            (Some(object), Some((_, value))) => value.check(&object.value.to_vec()).unwrap(),
            (None, _) => _ = objects.remove(&which),
            (Some(object), None) => panic!("{which} is back: {:?}", object.info),
        }
    }
    assert!(objects.len() > 20, "{} objects are left", objects.len());
}

// Compatibility.

/// The first publish of a layer sets bits 0 and 3 of the incompatible features; a store without layers never has it. A program that does not know
/// a bit refuses the store.
#[test]
fn layers_set_the_feature_flag() {
    let incompatible = |image: &Image| number(&superblock(image), (172, 4));
    let (sim, device) = blank(BLOCKS, 11);
    let store = open(&device, tiny_without_layers()).unwrap();
    (0..60).for_each(|which| _ = put(&store, which, value(which, which)));
    block_on(store.close()).unwrap();
    drop(store);
    assert_eq!((incompatible(&sim.image()), most_layers(&sim.image())), (0, 0), "a small store");
    let (image, objects) = subject();
    assert_eq!(incompatible(&image), 0b1001);
    assert!(lists(&image).iter().all(|list| list.compacting == 0));
    let mut odd = image.clone();
    for block in COPIES.concat() {
        let mut bytes = *odd.block(block);
        if bytes[..7] == *b"SHOALSB" {
            bytes[172] |= 64;
            let crc = crc32c(&bytes[..BLOCK_BYTES - 4]);
            bytes[BLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            odd.write(block, &bytes);
        }
    }
    let (sim, device) = quiet(&odd);
    let refused = open(&device, tiny_with_layers()).err().expect("it is refused").to_string();
    assert!(refused.contains("does not have (bit 6)"), "{refused}");
    assert_eq!(sim.image(), odd, "nothing was changed");
    // A program that knows layers reads them with any thresholds.
    let (_, device) = quiet(&image);
    let store = open(&device, tiny_without_layers()).unwrap();
    conforms(&store, &objects, KEYS_OF_DAMAGE, "with the thresholds of large stores");
}
