//! The repair of each kind of structure by `check --repair`, and the reads afterwards (T27; `docs/repair.md` for
//! users).
//!
//! Every block in use is damaged, one at a time. The repair always completes, afterwards only the losses that it names remain, every object
//! reads right or is reported as lost, objects that the log still had are back, and rewriting the lost objects leaves a clean store.

use std::collections::BTreeMap;

use shoal_base::BLOCK_BYTES;
use shoal_device_sim::{Fault, FaultOp, Image};
use shoal_engine::{Error, Store, block_on};
use shoal_testkit::Value;

use crate::common::{ByName, blank, checked, flat_name as name, open, quiet, repaired, tiny};

const BLOCKS: u64 = 256;
/// The places of the areas with a log of 24 blocks: docs/format/superblock.md.
const LOG_FIRST: u64 = 34;
const SPACE_FIRST: u64 = LOG_FIRST + 24;

/// The contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Superblock,
    Log,
    SpaceImage,
    Leaf,
    InnerPage,
    /// The last block of a packed run.
    PackedFooter,
    /// A value's blocks (packed or separate), a manifest, or unused contents.
    Value,
}

fn kind(image: &Image, block: u64, data_first: u64) -> Kind {
    let bytes = image.block(block);
    if block < LOG_FIRST {
        Kind::Superblock
    } else if block < SPACE_FIRST {
        Kind::Log
    } else if block < data_first {
        Kind::SpaceImage
    } else if bytes[4..6] == *b"Sp" {
        if bytes[7] == 0 { Kind::Leaf } else { Kind::InnerPage }
    } else if bytes[BLOCK_BYTES - 36..BLOCK_BYTES - 32] == *b"SPKF" {
        Kind::PackedFooter
    } else {
        Kind::Value
    }
}

fn put(store: &Store, which: u64, seed: u64, bytes: usize) -> Value {
    let value = Value { key: which, seed, bytes };
    store.set(name(which), value.to_vec()).unwrap();
    value
}

/// A closed store with its objects: values in leaves, packed, in extents, in many units.
fn subject() -> (Image, BTreeMap<u64, Value>) {
    let (sim, device) = blank(BLOCKS, 29);
    let store = open(&device, tiny()).unwrap();
    let sizes = [20, 90, 60, 1_900, 40, 700, 5_000];
    let mut objects = BTreeMap::new();
    for which in 0..90 {
        objects.insert(which, put(&store, which, which, sizes[(which % 7) as usize]));
    }
    objects.insert(200, put(&store, 200, 200, 150_000));
    for which in (0..90).step_by(11) {
        objects.insert(which, put(&store, which, 1_000 + which, sizes[(which % 5) as usize]));
    }
    store.remove(name(5)).unwrap();
    objects.remove(&5);
    block_on(store.close()).unwrap();
    drop(store);
    (sim.image(), objects)
}

/// The results of the repairs of one kind.
#[derive(Default, Debug)]
struct Sum {
    damaged: u64,
    noticed: u64,
    /// Stores that are clean after the repair.
    whole: u64,
    restored: u64,
    lost: u64,
}

/// Damages `block`, repairs, and judges; adds to `sum`.
fn repair(image: &Image, objects: &BTreeMap<u64, Value>, block: u64, kind: Kind, sum: &mut Sum) {
    let mut image = image.clone();
    [60, 100, 2_000, 4_090].iter().for_each(|&byte| image.flip(block, byte, 0x24));
    let device = quiet(&image).1;
    sum.damaged += 1;
    let found = repaired(&device).unwrap_or_else(|error| panic!("block {block}: repair: {error}"));
    let left = checked(&device).unwrap_or_else(|error| panic!("block {block}: check: {error}"));
    sum.noticed += u64::from(!found.is_clean());
    sum.whole += u64::from(left.is_clean());
    sum.restored += found.restored.len() as u64;
    for problem in &left.problems {
        let names = ["object ", "were lost with a damaged page", "cannot be read", "is not trusted"];
        let named = names.iter().any(|words| problem.what.contains(words));
        assert!(named, "block {block}: after the repair: {problem:?}");
    }
    let cut = found.problems.iter().any(|problem| problem.what.contains("the log was damaged"));
    let store = open(&device, tiny()).unwrap_or_else(|error| panic!("block {block}: opening: {error}"));
    let mut lost = Vec::new();
    for which in (0..90).chain([200]) {
        let found = store.find(name(which));
        match (found, objects.get(&which)) {
            (Ok(Some(object)), Some(value)) if value.check(&object.value.to_vec()).is_ok() => {}
            (Ok(None), None) => {}
            (Err(Error::Corrupt { .. }), _) => lost.push(which),
            // Records after the damage in the log are lost, and were reported.
            (Ok(_), _) if cut => {}
            (found, expected) => {
                let found = found.map(|object| object.map(|object| object.info));
                panic!("block {block}: {which}: {found:?}, expected {expected:?}");
            }
        }
    }
    assert!(lost.is_empty() || !left.is_clean(), "block {block}: {lost:?} are lost, and check is silent");
    sum.lost += lost.len() as u64;
    // Deleted or rewritten, they leave no trace.
    for &which in &lost {
        put(&store, which, 7_000 + which, 50);
    }
    block_on(store.close()).unwrap();
    drop(store);
    repaired(&device).unwrap();
    let last = checked(&device).unwrap();
    // Ranges of keys that were lost with a page stay marked: they may have held other keys.
    let may_stay = matches!(kind, Kind::Leaf | Kind::InnerPage | Kind::PackedFooter);
    assert!(last.is_clean() || may_stay, "block {block}: written anew: {:?}", last.problems);
    let store = open(&device, tiny()).unwrap();
    for which in lost {
        let object = store.find(name(which)).unwrap().unwrap();
        Value { key: which, seed: 7_000 + which, bytes: 50 }.check(&object.value.to_vec()).unwrap();
    }
}

#[test]
fn each_structure_is_repaired_or_its_objects_are_named() {
    let (image, objects) = subject();
    assert!(checked(&quiet(&image).1).unwrap().is_clean());
    // The superblock has the layout: the blocks of a space area, after those of the log.
    let area = u64::from(u32::from_le_bytes(image.block(0)[140..144].try_into().unwrap()));
    let data_first = SPACE_FIRST + 2 * area;
    let mut sums: BTreeMap<Kind, Sum> = BTreeMap::new();
    for block in 0..image.blocks() {
        if image.block(block).iter().any(|&byte| byte != 0) {
            let kind = kind(&image, block, data_first);
            repair(&image, &objects, block, kind, sums.entry(kind).or_default());
        }
    }
    for (kind, sum) in &sums {
        println!("{kind:?}: {sum:?}");
    }
    for kind in [Kind::Superblock, Kind::SpaceImage] {
        let sum = &sums[&kind];
        assert!(sum.whole == sum.damaged && sum.lost == 0, "{kind:?}: all of it is elsewhere, too: {sum:?}");
    }
    assert!(sums[&Kind::Leaf].restored > 0, "what the log had is back: {sums:?}");
    assert!(sums[&Kind::Leaf].lost > 0 && sums[&Kind::Value].lost > 0, "what nobody has is lost: {sums:?}");
    let all = sums.values().fold(0, |all, sum| all + sum.noticed);
    assert!(all > 20, "{all} were noticed: {sums:?}");
}

/// A repair treats a block that the device cannot read like one with wrong bytes. The block is readable after the repair, and the keys that
/// the repair gave up stay given up.
#[test]
fn bad_sectors_are_repaired_as_damage_is() {
    const EIO: i32 = 5;
    let (image, objects) = subject();
    let area = u64::from(u32::from_le_bytes(image.block(0)[140..144].try_into().unwrap()));
    let data_first = SPACE_FIRST + 2 * area;
    let mut sums: BTreeMap<Kind, Sum> = BTreeMap::new();
    for block in SPACE_FIRST..image.blocks() {
        if image.block(block).iter().all(|&byte| byte == 0) {
            continue;
        }
        let sum = sums.entry(kind(&image, block, data_first)).or_default();
        let (sim, device) = quiet(&image);
        sim.inject(Fault::fail(FaultOp::Read, EIO).at(block..block + 1).for_good());
        let found = repaired(&device).unwrap_or_else(|error| panic!("block {block}: {error}"));
        sim.clear_faults();
        let failed = ["did not get to its end", "could not be"];
        let fails = |note: &String| failed.iter().any(|words| note.contains(words));
        assert!(!found.notes.iter().any(fails), "block {block}: {:?}", found.notes);
        sum.damaged += 1;
        sum.noticed += u64::from(!found.is_clean());
        sum.restored += found.restored_count;
        let store = open(&device, tiny()).unwrap_or_else(|error| panic!("block {block}: opening: {error}"));
        for which in (0..90).chain([200]) {
            let read = store.find(name(which));
            match (read, objects.get(&which)) {
                (Ok(Some(object)), Some(value)) if value.check(&object.value.to_vec()).is_ok() => {}
                (Ok(None), None) => {}
                (Err(Error::Corrupt { .. }), _) => sum.lost += 1,
                (read, expected) => {
                    let read = read.map(|object| object.map(|object| object.info));
                    panic!("block {block}: {which}: {read:?}, expected {expected:?}");
                }
            }
        }
    }
    println!("{sums:?}");
    assert!(sums[&Kind::Leaf].restored > 0 && sums[&Kind::Value].restored > 0, "{sums:?}");
    assert_eq!(sums[&Kind::SpaceImage].lost + sums[&Kind::Value].lost, 0, "{sums:?}");
}
