//! Damage of a closed store, byte by byte and block by block (a small form of T4 and T5): reads never return wrong bytes, no object is
//! missing without an error, nothing panics, and `check` reports all damage that reads detect.

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_base::BLOCK_BYTES;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{Error, Store, block_on};
use shoal_testkit::Value;
use shoal_testkit::device::used_blocks;

use crate::common::{
    ByName, checked, device, formatted, judge_listing, name_in_folder as name, open, repaired, tiny,
    with_metadata,
};

const BLOCKS: u64 = 256;

/// The contents of a store, in two versions of its image.
struct Subject {
    image: Image,
    older: Image,
    objects: BTreeMap<Vec<u8>, Value>,
}

fn put(store: &Store, which: u64, seed: u64, bytes: usize) -> Value {
    let value = Value { key: which, seed, bytes };
    // Some metadata precedes the value.
    let options = with_metadata(which.is_multiple_of(7));
    store.set_with(name(which), value.to_vec(), options).unwrap();
    value
}

/// About 200 KiB: leaves of several levels, values in leaves, from the log, in extents, in several units.
fn subject() -> Subject {
    let sim = formatted(BLOCKS, 17);
    let device = device(&sim);
    let store = open(&device, tiny()).unwrap();
    let mut objects = BTreeMap::new();
    let sizes = [0, 20, 90, 300, 1_900, 5_000];
    for which in 0..100 {
        let bytes = if which % 11 == 0 { sizes[(which / 11 % 6) as usize] } else { 20 + which as usize % 70 };
        objects.insert(name(which), put(&store, which, which, bytes));
    }
    objects.insert(name(200), put(&store, 200, 200, 150_000));
    let older = sim.image();
    for which in (0..100).step_by(9) {
        objects.insert(name(which), put(&store, which, 1_000 + which, sizes[(which % 6) as usize]));
    }
    for which in (5..100).step_by(23) {
        store.remove(name(which)).unwrap();
        objects.remove(&name(which));
    }
    objects.insert(name(201), put(&store, 201, 2_000, 6_000));
    block_on(store.close()).unwrap();
    drop(store);
    Subject { image: sim.image(), older, objects }
}

/// The result of using a damaged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The store did not open.
    Refused,
    /// This number of objects, or parts of the listing, returned an error.
    Errors(usize),
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. })
}

/// Opens and reads everything. Panics if bytes are wrong, or if an object is missing or reappears without an error.
fn look(subject: &Subject, image: &Image, what: &str) -> Seen {
    let sim = SimDevice::from_image(image.clone());
    let store = match open(&Device::new(sim), tiny()) {
        Ok(store) => store,
        Err(Error::Corrupt { .. } | Error::Unopenable(_)) => return Seen::Refused,
        Err(error) => panic!("{what}: opening: {error}"),
    };
    Seen::Errors(read_all(subject, &store, what))
}

fn read_all(subject: &Subject, store: &Store, what: &str) -> usize {
    let mut errors = 0;
    for which in (0..100).chain(200..202) {
        let name = name(which);
        match (store.find(&name), subject.objects.get(&name)) {
            (Ok(None), None) => {}
            (Ok(Some(object)), Some(value)) => {
                value.check(&object.value.to_vec()).unwrap_or_else(|why| panic!("{what}: {which}: {why}"));
                let large = object.info.metadata.user.iter().any(|(_, value)| *value == vec![b'm'; 900]);
                assert_eq!(large, which.is_multiple_of(7), "{what}: metadata of {which}");
            }
            (Err(error), _) if is_damage(&error) => errors += 1,
            (Ok(read), value) => {
                panic!("{what}: {which}: {:?}, not {value:?}", read.map(|object| object.info))
            }
            (Err(error), _) => panic!("{what}: {which}: {error}"),
        }
    }
    errors + list_all(subject, store, what)
}

/// Checks that the listing is complete, except for the ranges that it names; returns the number of missing keys.
fn list_all(subject: &Subject, store: &Store, what: &str) -> usize {
    let expected = subject.objects.keys().map(|name| (name.clone(), None)).collect();
    let judged = judge_listing(store, &expected, 40).unwrap_or_else(|error| panic!("{what}: {error}"));
    judged.missing.len().max(usize::from(judged.damaged))
}

/// Returns true if `check` finds a problem.
fn checks(image: &Image, what: &str) -> bool {
    let sim = SimDevice::from_image(image.clone());
    match checked(&Device::new(sim.clone())) {
        Ok(report) => {
            assert_eq!(sim.image(), *image, "{what}: check without repair wrote to the device");
            !report.is_clean()
        }
        Err(Error::Corrupt { .. } | Error::Unopenable(_)) => true,
        Err(error) => panic!("{what}: check: {error}"),
    }
}

/// Checks that `check` detects all damage that reads detect. Returns true if anything was detected.
fn judge(subject: &Subject, image: &Image, what: &str) -> bool {
    let seen = look(subject, image, what);
    if seen == Seen::Errors(0) {
        return false;
    }
    assert!(checks(image, what), "{what}: {seen:?}, but check finds nothing");
    true
}

fn is_value(image: &Image, block: u64) -> bool {
    // Values of the test are cells that start with a small number in eight bytes.
    let bytes = image.block(block);
    let cell = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    cell(0) < 4_000 && cell(0) == cell(16) && cell(0) == cell(32)
}

#[test]
fn bits_flip() {
    let subject = subject();
    assert_eq!(look(&subject, &subject.image, "undamaged"), Seen::Errors(0));
    assert!(!checks(&subject.image, "undamaged"));
    let (mut trials, mut noticed) = (0, 0);
    for block in used_blocks(&subject.image, 0) {
        let stride = if is_value(&subject.image, block) { 1_009 } else { 83 };
        for byte in (block as usize % stride..BLOCK_BYTES).step_by(stride) {
            let mut image = subject.image.clone();
            image.flip(block, byte, 1 << (byte % 8));
            trials += 1;
            noticed += usize::from(judge(&subject, &image, &format!("bit of byte {byte} of block {block}")));
        }
    }
    println!("{trials} flips, {noticed} noticed");
    assert!(trials > 2_000 && noticed > trials / 20, "{trials} flips, {noticed} noticed");
}

/// The heads of metadata blocks, densely: decoders branch on them.
#[test]
fn metadata_headers_flip() {
    let subject = subject();
    for block in used_blocks(&subject.image, 0) {
        if is_value(&subject.image, block) {
            continue;
        }
        for byte in (0..64).step_by(2) {
            let mut image = subject.image.clone();
            image.flip(block, byte, 1 << ((byte + block as usize) % 8));
            judge(&subject, &image, &format!("byte {byte} of block {block}"));
        }
    }
}

#[test]
fn blocks_are_zeroed_swapped_or_old() {
    let subject = subject();
    let used = used_blocks(&subject.image, 0);
    let mut noticed = 0;
    for (index, &block) in used.iter().enumerate() {
        let mut zeroed = subject.image.clone();
        zeroed.write(block, &[0; BLOCK_BYTES]);
        noticed += usize::from(judge(&subject, &zeroed, &format!("block {block} zeroed")));
        let mut ones = subject.image.clone();
        ones.write(block, &[0xFF; BLOCK_BYTES]);
        judge(&subject, &ones, &format!("block {block} all ones"));
        let mut old = subject.image.clone();
        old.write(block, subject.older.block(block));
        judge(&subject, &old, &format!("block {block} as it was before"));
        for step in [1, 17] {
            let other = used[(index + step) % used.len()];
            let mut swapped = subject.image.clone();
            swapped.write(block, subject.image.block(other));
            swapped.write(other, subject.image.block(block));
            judge(&subject, &swapped, &format!("blocks {block} and {other} swapped"));
        }
    }
    assert!(noticed > 20, "only {noticed} zeroed blocks were noticed");
}

/// Runs of bad sectors.
#[test]
fn runs_of_blocks_are_zeroed() {
    let subject = subject();
    for blocks in [2, 5, 16, 30] {
        for first in (0..BLOCKS - blocks).step_by(5) {
            let mut image = subject.image.clone();
            (first..first + blocks).for_each(|block| image.write(block, &[0; BLOCK_BYTES]));
            judge(&subject, &image, &format!("blocks {first} to {} zeroed", first + blocks));
        }
    }
}

/// Damage in one block affects the keys of that block only. An apply over a damaged leaf continues, loses the other keys and stores the new
/// ones (R19); after a repair only real losses remain.
#[test]
fn damage_is_local_and_repairable() {
    let subject = subject();
    let (mut hurt, mut mended) = (0, 0);
    for block in used_blocks(&subject.image, 0) {
        let what = format!("block {block}");
        let mut image = subject.image.clone();
        image.flip(block, 100, 0x10);
        let Seen::Errors(errors) = look(&subject, &image, &what) else { continue };
        if errors == 0 {
            continue;
        }
        hurt += 1;
        let device = Device::new(SimDevice::from_image(image));
        let store = open(&device, tiny()).unwrap();
        let fine: Vec<u64> =
            (0..100).filter(|&which| matches!(store.find(name(which)), Ok(Some(_)))).collect();
        // New keys between all old ones, in every leaf, and enough for several applies.
        for which in 0..60_u64 {
            let between = [name(which * 5 / 3), b"+".to_vec()].concat();
            let value = Value { key: which, seed: 9_000 + which, bytes: 60 };
            store.set(&between, value.to_vec()).unwrap_or_else(|error| panic!("{what}: a new key: {error}"));
        }
        for which in 0..60_u64 {
            let between = [name(which * 5 / 3), b"+".to_vec()].concat();
            let object = store.find(&between).unwrap_or_else(|error| panic!("{what}: a new key: {error}"));
            assert!(object.is_some(), "{what}: a new key is missing");
        }
        for &which in &fine {
            let object = store
                .find(name(which))
                .unwrap_or_else(|error| panic!("{what}: {which} was readable: {error}"));
            subject.objects[&name(which)].check(&object.unwrap().value.to_vec()).unwrap();
        }
        block_on(store.close()).unwrap_or_else(|error| panic!("{what}: closing: {error}"));
        drop(store);
        repaired(&device).unwrap_or_else(|error| panic!("{what}: repair: {error}"));
        let report = checked(&device).unwrap();
        // The only remaining problems are lost objects and corrupt values.
        for problem in &report.problems {
            let lost = ["were lost with a damaged page", "cannot be read", "object ", "checksum"];
            assert!(
                lost.iter().any(|words| problem.what.contains(words)),
                "{what}: after repair: {problem:?}"
            );
        }
        let store = open(&device, tiny()).unwrap_or_else(|error| panic!("{what}: after repair: {error}"));
        for &which in &fine {
            let object = store
                .find(name(which))
                .unwrap_or_else(|error| panic!("{what}: {which} after repair: {error}"));
            subject.objects[&name(which)].check(&object.unwrap().value.to_vec()).unwrap();
        }
        mended += 1;
    }
    println!("{hurt} blocks hurt, {mended} repaired");
    assert!(hurt > 10, "only {hurt} damaged blocks hurt");
}

/// An undamaged store after a crash: its incomplete last batch is no problem.
#[test]
fn check_accepts_torn_tail() {
    let subject = subject();
    let sim: Arc<SimDevice> = SimDevice::from_image(subject.image.clone());
    let store = open(&Device::new(sim.clone()), tiny()).unwrap();
    for which in 0..6 {
        put(&store, which, 5_000 + which, 9_000);
    }
    drop(store);
    let mut states = 0;
    sim.history().for_each_crash_state(8, 1, |point, image| {
        states += 1;
        assert!(!checks(&image, "a crash state"), "state {}: check complains", point.id);
    });
    assert!(states > 50, "only {states} states");
}
