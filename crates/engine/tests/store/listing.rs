//! A listing through a cache that is much smaller than the tree.

use shoal_engine::{BucketPage, Expiry, ListRequest, ObjectKey, OpenOptions, PutOptions, Store, block_on};

use crate::common::{self, device, formatted, key, tiny};

const BLOCKS: u64 = 8_192;
const OBJECTS: u64 = 6_000;

fn figure(store: &Store, name: &str) -> u64 {
    store.stat().figures().into_iter().find(|(figure, ..)| *figure == name).unwrap().2
}

fn options() -> OpenOptions {
    let mut options = tiny();
    options.cache_bytes = 1 << 20;
    options.memtable_bytes = Some(1 << 20);
    options.tuning.leaf_value_bytes_max = 1_000;
    options.tuning.memtable_records_max = 500;
    options
}

/// Prefetched leaves must not be evicted before leaves that were read: a listing once loaded every leaf twice, because a leaf that it had
/// passed counted as looked up, and the leaves ahead of it as merely scanned.
#[test]
fn every_leaf_is_loaded_once() {
    let sim = formatted(BLOCKS, 1);
    let store = common::open(&device(&sim), options()).unwrap();
    for number in 0..OBJECTS {
        let name = key(format!("{number:06}").as_bytes());
        block_on(store.put(&name, vec![7; 900].into(), PutOptions::default())).unwrap();
    }
    block_on(store.close()).unwrap();
    drop(store);

    let store = common::open(&device(&sim), options()).unwrap();
    let before = figure(&store, "pool.misses");
    let mut request = ListRequest { bucket: "default".into(), limit: 200, ..ListRequest::default() };
    let mut listed = 0;
    loop {
        let page = block_on(store.list(&request)).unwrap();
        for (name, _) in &page.entries {
            assert_eq!(name, format!("{listed:06}").as_bytes());
            listed += 1;
        }
        match page.next {
            Some(next) => request.start_after = next,
            None => break,
        }
    }
    assert_eq!(listed, OBJECTS);
    // At most four entries per leaf, and the inner pages.
    let (leaves, misses) = (OBJECTS / 4, figure(&store, "pool.misses") - before);
    assert!(misses > leaves, "the cache is too large for this test: {misses} misses");
    assert!(misses < OBJECTS / 3 * 11 / 10, "{misses} misses for at most {} leaves", OBJECTS / 3);
}

/// Buckets are found over several pages, by tree and by memtable; a bucket without a live object is not listed.
#[test]
fn list_buckets_returns_buckets_with_objects() {
    let sim = formatted(BLOCKS, 3);
    let store = common::open(&device(&sim), options()).unwrap();
    assert_eq!(block_on(store.buckets("", 10)).unwrap(), BucketPage::default());
    let put = |bucket: &str, name: &[u8], options: PutOptions| {
        let key = ObjectKey::new(bucket, name).unwrap();
        block_on(store.put(&key, vec![7; 900].into(), options)).unwrap();
    };
    // A name may be a prefix of another one; keys may have any bytes.
    let names = ["a", "a-b", "a.b", "ab", "films", "z"];
    for round in 0..60_u8 {
        for bucket in names {
            put(bucket, &[0, round, 0xff], PutOptions::default());
        }
    }
    put("gone", b"k", PutOptions::default());
    block_on(store.delete(&ObjectKey::new("gone", b"k").unwrap(), Default::default())).unwrap();
    put("over", b"k", PutOptions { expiry: Expiry::At(1), ..PutOptions::default() });
    let all = |store: &Store, limit| {
        let mut found: Vec<String> = Vec::new();
        loop {
            let page = block_on(store.buckets(found.last().map_or("", String::as_str), limit)).unwrap();
            assert!(page.names.len() <= limit && page.damaged == 0);
            found.extend(page.names);
            if !page.is_cut {
                return found;
            }
        }
    };
    for limit in [1, 2, 5, 6, 7, 1000] {
        assert_eq!(all(&store, limit), names, "{limit}");
    }
    assert_eq!(block_on(store.buckets("", 0)).unwrap().names, names);
    assert!(block_on(store.buckets("", 1001)).is_err());
    assert_eq!(block_on(store.buckets("ab", 9)).unwrap().names, ["films", "z"]);
    block_on(store.close()).unwrap();
    drop(store);
    assert_eq!(all(&common::open(&device(&sim), options()).unwrap(), 2), names);
}
