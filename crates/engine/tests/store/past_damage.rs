//! Listings, writes and repairs over damage, judged against a model (T28 of `docs/reliability.md`).
//!
//! Every block that holds a part of a tree or of a value is damaged, alone and with others, once by wrong bytes and once by a device that
//! cannot read it. Then every listing completes; it has each key of the model with its version, or names a damaged range of the key's
//! tablet in the page that misses the key, and no other key. A key in a named range can be put and deleted without a condition; a request
//! that needs its state gets an error. The same holds after applies, after a restart, after a repair, and, without any range, after the
//! losses were acknowledged.

use std::collections::BTreeMap;

use shoal_base::BLOCK_BYTES;
use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice};
use shoal_engine::{
    ByteRange, Change, DamagedRange, Error, ListRequest, PutOptions, ReadLevel, RejectRules, Store, block_on,
};
use shoal_testkit::device::used_blocks;
use shoal_testkit::lab;

use crate::common::{
    self, ByName, acknowledged, blank, checked, key, open, quiet, tiny, update, with_metadata,
};

const BLOCKS: u64 = 512;
const EIO: i32 = 5;
/// The end of the log of 24 blocks and the start of the space image: docs/format/superblock.md.
const SPACE_FIRST: u64 = 34 + 24;
const OBJECTS: u64 = 260;

/// The version of each object.
type Versions = BTreeMap<Vec<u8>, u64>;

/// Long names: a leaf holds few of them, so there are inner pages of two levels.
fn name(which: u64) -> Vec<u8> {
    format!("folder-{:02}/{}object-{which:04}", which % 17, "long-name-".repeat(14)).into_bytes()
}

fn put(store: &Store, which: u64, bytes: usize) -> u64 {
    let options = with_metadata(which % 23 == 4);
    store.set_with(name(which), vec![which as u8; bytes], options).unwrap()
}

/// A closed store of some hundred objects, some of them deleted again, and the versions of its objects.
fn subject() -> (Image, Versions) {
    let (sim, device) = blank(BLOCKS, 41);
    let store = open(&device, tiny()).unwrap();
    let mut versions = Versions::new();
    for which in 0..OBJECTS {
        let bytes = [20, 90, 60, 700, 40, 5_000][(which % 6) as usize];
        versions.insert(name(which), put(&store, which, if which % 37 == 5 { bytes } else { bytes.min(90) }));
    }
    for which in (3..OBJECTS).step_by(19) {
        store.remove(name(which)).unwrap();
        versions.remove(&name(which));
    }
    block_on(store.close()).unwrap();
    drop(store);
    (sim.image(), versions)
}

/// The blocks after the space image that are in use.
fn used(image: &Image) -> Vec<u64> {
    let area = u64::from(u32::from_le_bytes(image.block(0)[140..144].try_into().unwrap()));
    used_blocks(image, SPACE_FIRST + 2 * area)
}

fn is_page(image: &Image, block: u64) -> bool {
    image.block(block)[4..6] == *b"Sp"
}

/// As [`common::judge_listing`](crate::common::judge_listing), with known versions.
fn judge_listing(
    store: &Store,
    versions: &Versions,
    limit: usize,
) -> Result<BTreeMap<Vec<u8>, DamagedRange>, String> {
    let expected = versions.iter().map(|(name, version)| (name.clone(), Some(*version))).collect();
    common::judge_listing(store, &expected, limit).map(|judged| judged.missing)
}

/// Common prefixes, against the model: all keys of a missing prefix are in named ranges.
fn judge_folders(store: &Store, versions: &Versions, missing: &BTreeMap<Vec<u8>, DamagedRange>) {
    let mut request = ListRequest {
        bucket: "default".into(),
        delimiter: b"/".to_vec(),
        limit: 3,
        ..ListRequest::default()
    };
    let mut folders = Vec::new();
    loop {
        let page = block_on(store.list(&request)).unwrap();
        folders.extend(page.common_prefixes);
        match page.next {
            Some(next) => request.start_after = next,
            None => break,
        }
    }
    for name in versions.keys().filter(|name| !missing.contains_key(*name)) {
        assert!(folders.iter().any(|folder| name.starts_with(folder)), "{}", name.escape_ascii());
    }
}

/// Damage of some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    WrongBytes,
    Unreadable,
}

fn damage(sim: &SimDevice, blocks: &[u64], how: How) {
    for &block in blocks {
        match how {
            How::WrongBytes => sim.corrupt(block, 1_000, 1),
            How::Unreadable => sim.inject(Fault::fail(FaultOp::Read, EIO).at(block..block + 1).for_good()),
        }
    }
}

/// A request for an unknown state gets an error; a write that does not need the state works.
fn write_into(store: &Store, versions: &mut Versions, missing: &BTreeMap<Vec<u8>, DamagedRange>, what: &str) {
    for (at, name) in missing.keys().enumerate() {
        let object = key(name);
        let told = |error: &Error| {
            let words = error.to_string();
            assert!(matches!(error, Error::Corrupt { .. }), "{what}: {words}");
            assert!(words.contains("not known") && words.contains("check --repair"), "{what}: {words}");
        };
        told(&block_on(store.get(&object, ByteRange::ALL)).unwrap_err());
        told(&block_on(store.head(&object)).unwrap_err());
        let if_missing = PutOptions {
            rules: RejectRules { if_exists: true, ..RejectRules::default() },
            ..PutOptions::default()
        };
        told(&block_on(store.put(&object, vec![1].into(), if_missing.clone())).unwrap_err());
        told(&block_on(update(store, &object, ReadLevel::Value, |_| (Change::Delete, ()))).unwrap_err());
        match at % 4 {
            // Some are unchanged.
            3 => {}
            0 => {
                let put = block_on(store.put(&object, vec![7; 30].into(), PutOptions::default()));
                versions.insert(
                    name.clone(),
                    put.unwrap_or_else(|error| panic!("{what}: put: {error}")).version.0,
                );
                assert_eq!(block_on(store.get(&object, ByteRange::ALL)).unwrap().unwrap().value.len(), 30);
                assert!(matches!(
                    block_on(store.put(&object, vec![1].into(), if_missing)),
                    Err(Error::ConditionFailed { .. })
                ));
            }
            1 => {
                block_on(store.delete(&object, RejectRules::default()))
                    .unwrap_or_else(|error| panic!("{what}: delete: {error}"));
                versions.remove(name);
                assert!(block_on(store.get(&object, ByteRange::ALL)).unwrap().is_none());
            }
            // As DEL of the Redis protocol does.
            _ => {
                let delete = |object: Option<&shoal_engine::Object>| match object {
                    Some(_) => (Change::Delete, 1),
                    None => (Change::NoChange, 0),
                };
                let updated = block_on(update(store, &object, ReadLevel::Existence, delete)).unwrap();
                assert_eq!(updated.answer, 1, "{what}: it counts as one that was there");
                block_on(updated.durable()).unwrap();
                versions.remove(name);
                let again = block_on(update(store, &object, ReadLevel::Existence, delete)).unwrap();
                assert_eq!(again.answer, 0, "{what}: now it is known to be absent");
            }
        }
    }
}

/// One store whose `blocks` are damaged; returns the number of hidden keys.
fn trial(image: &Image, versions: &Versions, blocks: &[u64], how: How) -> usize {
    let what = format!("blocks {blocks:?}, {how:?}");
    let (sim, device) = quiet(image);
    damage(&sim, blocks, how);
    let mut versions = versions.clone();
    let listings = |store: &Store, versions: &Versions, when: &str| {
        let judge = |limit| {
            judge_listing(store, versions, limit)
                .unwrap_or_else(|error| panic!("{what}, {when}, pages of {limit}: {error}"))
        };
        let missing = judge(1_000);
        for missing_now in [judge(7), judge(1)] {
            // A page that an apply wrote to an unreadable block exists while the cache keeps it.
            let is_same = missing_now.len() == missing.len() || how == How::Unreadable;
            assert!(is_same && missing.keys().all(|name| missing_now.contains_key(name)), "{what}, {when}");
        }
        missing
    };
    let store = open(&device, tiny()).unwrap_or_else(|error| panic!("{what}: opening: {error}"));
    let missing = listings(&store, &versions, "as it is");
    let hidden = missing.len();
    judge_folders(&store, &versions, &missing);
    for name in versions.keys() {
        let head = block_on(store.head(&key(name)));
        assert!(!missing.contains_key(name) || head.is_err(), "{what}: what is missing can be read");
    }
    assert_eq!(store.damage_met().is_empty(), missing.is_empty() && block_of_metadata(&store), "{what}");
    write_into(&store, &mut versions, &missing, &what);
    let missing = listings(&store, &versions, "with the memtable");
    // Everything is applied: lost ranges are marked, and the new writes exist.
    block_on(store.close()).unwrap_or_else(|error| panic!("{what}: closing: {error}"));
    drop(store);
    // Blocks that were given up are written again, and readable then, like sectors that a disk remaps.
    sim.clear_faults();
    let store = open(&device, tiny()).unwrap_or_else(|error| panic!("{what}: opening again: {error}"));
    let applied = listings(&store, &versions, "applied");
    // Keys that were only unreadable, and that no apply met, are back.
    let is_back = |name: &Vec<u8>| how == How::Unreadable && missing.contains_key(name);
    let differ = missing.keys().filter(|name| !applied.contains_key(*name) && !is_back(name)).count();
    assert!(differ == 0 && applied.keys().all(|name| missing.contains_key(name)), "{what}");
    drop(store);
    repaired(&device, versions, &what);
    hidden
}

/// Returns true if a whole listing names no range.
fn block_of_metadata(store: &Store) -> bool {
    let request = ListRequest { bucket: "default".into(), limit: 1_000, ..ListRequest::default() };
    block_on(store.list(&request)).unwrap().damaged.is_empty()
}

/// A repair restores the objects that the log has; acknowledged keys are absent for good, and no mark is left.
fn repaired(device: &Device, mut versions: Versions, what: &str) {
    let found = common::repaired(device).unwrap();
    let store = open(device, tiny()).unwrap();
    // A restored object has a new version: read it.
    for name in versions.clone().keys() {
        if let Ok(Some(info)) = block_on(store.head(&key(name))) {
            versions.insert(name.clone(), info.version.0);
        }
    }
    let missing =
        judge_listing(&store, &versions, 100).unwrap_or_else(|error| panic!("{what}, repaired: {error}"));
    drop(store);
    assert!(missing.is_empty() || !found.is_clean(), "{what}");
    let lost = acknowledged(device).losses.lost;
    assert!(
        missing.is_empty() || lost > 0,
        "{what}: {} objects are given up, none is counted",
        missing.len()
    );
    let report = checked(device).unwrap();
    for problem in &report.problems {
        assert!(problem.what.starts_with("object "), "{what}: acknowledged: {problem:?}");
    }
    let store = open(device, tiny()).unwrap();
    versions.retain(|name, _| !missing.contains_key(name));
    let still =
        judge_listing(&store, &versions, 100).unwrap_or_else(|error| panic!("{what}, acknowledged: {error}"));
    assert!(still.is_empty(), "{what}: {still:?}");
    for name in missing.keys() {
        assert!(store.find(name).unwrap().is_none(), "{what}");
        let if_missing = PutOptions {
            rules: RejectRules { if_exists: true, ..RejectRules::default() },
            ..PutOptions::default()
        };
        store.set_with(name, vec![1], if_missing).unwrap();
    }
    block_on(store.close()).unwrap();
}

#[test]
fn every_block_alone() {
    let (image, versions) = subject();
    let blocks = used(&image);
    let pages = blocks.iter().filter(|&&block| is_page(&image, block)).count();
    assert!(pages > 30, "{pages} pages");
    let hidden = std::sync::atomic::AtomicUsize::new(0);
    let step = lab::number("PAST_DAMAGE_STEP", 3);
    lab::on_all_cores(2 * blocks.len() as u64 / step, |number| {
        let at = (number * step) as usize;
        let how = if at.is_multiple_of(2) { How::WrongBytes } else { How::Unreadable };
        let count = trial(&image, &versions, &[blocks[at / 2]], how);
        hidden.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(hidden.into_inner() > 100);
}

/// Many blocks at once: whole neighbourhoods, and pages of all levels.
#[test]
fn many_blocks_together() {
    let (image, versions) = subject();
    let blocks: Vec<u64> = used(&image).into_iter().filter(|&block| is_page(&image, block)).collect();
    lab::on_all_cores(lab::number("PAST_DAMAGE_MANY", 8), |number| {
        let chosen: Vec<u64> = blocks
            .iter()
            .enumerate()
            .filter(|(at, _)| (*at as u64 * 7 + number * 5).is_multiple_of(2 + number % 5))
            .map(|(_, &block)| block)
            .collect();
        let how = if number % 2 == 0 { How::WrongBytes } else { How::Unreadable };
        assert!(trial(&image, &versions, &chosen, how) > 5, "{number}");
    });
}

/// A device that fails every read is not damaged: an empty listing would look like an empty store.
#[test]
fn unreadable_device_is_not_reported_as_damage() {
    let (image, _) = subject();
    let (sim, device) = quiet(&image);
    let store = open(&device, tiny()).unwrap();
    sim.inject(Fault::fail(FaultOp::Read, EIO).for_good());
    let request = ListRequest { bucket: "default".into(), limit: 10, ..ListRequest::default() };
    assert!(matches!(block_on(store.list(&request)), Err(Error::Busy(_))));
    sim.clear_faults();
    assert_eq!(block_on(store.list(&request)).unwrap().entries.len(), 10);
    assert_eq!(BLOCK_BYTES, 4096);
}
