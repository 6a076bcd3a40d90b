//! Pages and values stay in the cache when an apply replaces the pages that lead to them: a get that needed no device
//! before needs none afterwards.

use std::collections::BTreeSet;

use shoal_pool::Unit;

use crate::testing::fixtures::{self, environment, in_memory_as, open_in};
use crate::{ByteRange, Error, FormatOptions, ObjectKey, OpenOptions, RejectRules, Store, block_on};

const BLOCKS: u64 = 64 << 10;
/// Enough keys for a tree of three levels.
const KEYS: u64 = 4_000;
/// One of this many keys is read all the time, the others are written. A third of the read keys each is in leaves,
/// packed, and in extents of its own.
const READ_EVERY: u64 = 80;
const READ_BYTES: [usize; 3] = [500, 9_000, 40_000];
const WRITES_A_ROUND: usize = 100;
const ROUNDS: usize = 120;
/// A cache that holds everything.
const WHOLE_BYTES: usize = 256 << 20;

fn key(number: u64) -> ObjectKey {
    ObjectKey::new("default", format!("key-{number:05}").as_bytes()).unwrap()
}

fn put(store: &Store, key: &ObjectKey, bytes: usize) {
    fixtures::put(store, key, vec![7; bytes]);
}

/// Reads the read keys; returns those that needed the device.
fn read(store: &Store) -> Vec<u64> {
    let misses = || store.stat().pool.misses;
    let missed = read_keys().filter(|&(number, bytes)| {
        let before = misses();
        let object = block_on(store.get(&key(number), ByteRange::ALL)).unwrap().unwrap();
        assert_eq!(object.value.len(), bytes);
        misses() > before
    });
    missed.map(|(number, _)| number).collect()
}

/// The read keys, and the bytes of their values.
fn read_keys() -> impl Iterator<Item = (u64, usize)> {
    (0..KEYS).step_by(READ_EVERY as usize).zip(READ_BYTES.into_iter().cycle())
}

/// Writes among the read keys in rounds, each with an apply, with a cache of `cache_bytes` bytes.
fn stays_warm(cache_bytes: usize) {
    let device = in_memory_as(&FormatOptions { tablets: 1, ..FormatOptions::for_blocks(BLOCKS) });
    let options = OpenOptions { cache_bytes, background: false, ..OpenOptions::default() };
    let store = open_in(&device, options, environment());
    for (number, bytes) in read_keys() {
        put(&store, &key(number), bytes);
    }
    block_on(store.0.checkpointer.apply_all()).unwrap();
    read(&store);
    assert_eq!(read(&store), [0_u64; 0], "it was just read");
    let root = || store.0.tablets.all()[0].view().trees.base;
    let mut random = 42_u64;
    let mut heights = BTreeSet::new();
    for round in 0..ROUNDS {
        // Some rounds delete most keys, so that leaves are merged.
        let deletes = round % 10 == 9;
        // With packed values, pages are merged twice, and a root that has just grown is replaced at once.
        let sizes = [600, 600, if round < ROUNDS / 2 { 20_000 } else { 9_000 }];
        for write in 0..WRITES_A_ROUND {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (random >> 33) % KEYS;
            if number.is_multiple_of(READ_EVERY) {
                continue;
            }
            if deletes && write % 10 > 0 {
                match block_on(store.delete(&key(number), RejectRules::default())) {
                    Ok(_) | Err(Error::ConditionFailed { .. }) => continue,
                    Err(error) => panic!("{error}"),
                }
            }
            put(&store, &key(number), sizes[write % 3]);
        }
        assert_eq!(read(&store), [0_u64; 0], "before the apply of round {round}");
        block_on(store.0.checkpointer.apply_all()).unwrap();
        assert_eq!(read(&store), [0_u64; 0], "after the apply of round {round}");
        heights.insert(root().height);
    }
    assert!(heights.len() > 1, "the tree never grew: {heights:?}");
    let pool = store.stat().pool;
    assert_eq!(pool.evictions > 0, cache_bytes < WHOLE_BYTES, "{pool:?}");
    if cache_bytes < WHOLE_BYTES {
        // From now on replaced pages are evicted first, even if they were read just now.
        let replaced = root().page.unwrap();
        let replaced = Unit::page(replaced.block, replaced.crc).id;
        put(&store, &key(1), 600);
        block_on(store.0.checkpointer.apply_all()).unwrap();
        assert!(store.0.pool.is_resident(&replaced));
        let written = (KEYS..KEYS + 1_000).take_while(|&number| {
            put(&store, &key(number), 40_000);
            store.0.pool.is_resident(&replaced)
        });
        assert!(written.count() < 1_000, "the root that was replaced is still there");
    }
    block_on(store.close()).unwrap();
}

#[test]
fn apply_keeps_hot_pages_cached() {
    stays_warm(WHOLE_BYTES);
}

#[test]
fn apply_keeps_hot_pages_in_full_cache() {
    stays_warm(8 << 20);
}
