//! Listings through a cache that is much smaller than the tree, and walks that read ahead.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use shoal_device::{BlockDevice, MemDevice, Op, Submission};
use shoal_engine::{
    BucketPage, Expiry, ListPage, ListRequest, ListSink, ObjectInfo, ObjectKey, OpenOptions, PutOptions,
    Store, block_on,
};
use shoal_testkit::device::{Intercept, Intercepted};
use shoal_testkit::wait::eventually;

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

/// A device whose reads fail, or are held.
struct Gate {
    inner: MemDevice,
    fails: AtomicBool,
    holds: AtomicBool,
    held: Mutex<Vec<Submission>>,
}

impl Gate {
    fn release(&self) {
        self.holds.store(false, Ordering::Relaxed);
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        self.inner.submit(held);
    }
}

impl Intercept for Gate {
    fn inner(&self) -> &dyn BlockDevice {
        &self.inner
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        let (reads, mut others): (Vec<_>, Vec<_>) =
            submissions.into_iter().partition(|submission| submission.op() == Op::Read);
        if self.fails.load(Ordering::Relaxed) {
            reads.into_iter().for_each(|read| read.fail(&io::Error::from_raw_os_error(5)));
        } else if self.holds.load(Ordering::Relaxed) {
            self.held.lock().unwrap().extend(reads);
        } else {
            others.extend(reads);
        }
        others
    }
}

/// Objects of 100 bytes, about 40 in a leaf.
const SHORT_OBJECTS: u64 = 5_000;

/// A store that was just opened on trees of short objects: no leaf is in memory.
fn short_objects() -> (Arc<Intercepted<Gate>>, Store) {
    let (gate, device) = Intercepted::new(Gate {
        inner: MemDevice::new(BLOCKS),
        fails: AtomicBool::new(false),
        holds: AtomicBool::new(false),
        held: Mutex::default(),
    });
    common::format(&device, BLOCKS, 1);
    let options = OpenOptions { cache_bytes: 64 << 20, ..options() };
    let store = common::open(&device, options.clone()).unwrap();
    for number in 0..SHORT_OBJECTS {
        let name = key(format!("{number:06}").as_bytes());
        block_on(store.put(&name, vec![7; 100].into(), PutOptions::default())).unwrap();
    }
    block_on(store.close()).unwrap();
    drop(store);
    (gate, common::open(&device, options).unwrap())
}

/// The page after the object with this number; 0: the first page.
fn page_after(store: &Store, number: u64, limit: usize) -> ListPage {
    let start_after = if number == 0 { Vec::new() } else { format!("{number:06}").into_bytes() };
    let request = ListRequest { bucket: "default".into(), start_after, limit, ..ListRequest::default() };
    let page = block_on(store.list(&request)).unwrap();
    let first = if number == 0 { 0 } else { number + 1 };
    let expected = (first..).take(limit).map(|number| format!("{number:06}").into_bytes());
    assert!(page.entries.iter().map(|(key, _)| key.clone()).eq(expected.take(page.entries.len())));
    page
}

/// The pages of a walk find their leaves in memory, because the page before read ahead. A first page and a shorter one read nothing for the
/// next one: their callers may stop there.
#[test]
fn walk_reads_the_leaves_of_its_next_page_ahead() {
    let reads = |store: &Store| figure(store, "device.reads");
    for (limit, is_ahead) in [(1_000, true), (999, false)] {
        let (_gate, store) = short_objects();
        assert_eq!(page_after(&store, 1_000, limit).entries.len(), limit);
        let before = reads(&store);
        // Shorter, so that it does not read ahead.
        assert_eq!(page_after(&store, 1_000 + limit as u64, 900).entries.len(), 900);
        assert_eq!(reads(&store) == before, is_ahead, "{limit} keys: {} reads", reads(&store) - before);
        block_on(store.close()).unwrap();
    }
    let (_gate, store) = short_objects();
    page_after(&store, 0, 1_000);
    let before = reads(&store);
    page_after(&store, 999, 900);
    assert!(reads(&store) > before, "a first page reads nothing ahead");
    // The end of the keys: there is no next page.
    let before = figure(&store, "pool.prefetched");
    page_after(&store, SHORT_OBJECTS - 2, 1_000);
    assert!(figure(&store, "pool.prefetched") <= before + 4);
    block_on(store.close()).unwrap();
}

/// A failure while reading ahead is not a failure of the page, and the next page reads its leaves itself.
#[test]
fn failed_read_ahead_is_not_noticed() {
    let (gate, store) = short_objects();
    // The page's own leaves are in memory.
    page_after(&store, 1_000, 700);
    page_after(&store, 1_700, 700);
    gate.fails.store(true, Ordering::Relaxed);
    let page = page_after(&store, 1_000, 1_000);
    assert_eq!((page.entries.len(), page.damaged.len()), (1_000, 0));
    eventually("the read ahead fails", || figure(&store, "pool.read_errors") > 0);
    gate.fails.store(false, Ordering::Relaxed);
    let page = page_after(&store, 2_000, 1_000);
    assert_eq!((page.entries.len(), page.damaged.len()), (1_000, 0));
    block_on(store.close()).unwrap();
}

/// A walk that stops leaves a bounded number of reads, which complete by themselves and hold no frame afterwards.
#[test]
fn walk_that_stops_leaves_nothing() {
    let (gate, store) = short_objects();
    page_after(&store, 1_000, 700);
    page_after(&store, 1_700, 700);
    gate.holds.store(true, Ordering::Relaxed);
    assert_eq!(page_after(&store, 1_000, 1_000).entries.len(), 1_000);
    let held = gate.held.lock().unwrap().len();
    assert!((1..=64).contains(&held), "{held} reads");
    gate.release();
    eventually("no frame is pinned", || figure(&store, "pool.frames_pinned") == 0);
    block_on(store.close()).unwrap();
}

/// A sink that has no room ends the page before the key; prefixes and the next page's start are those of the page so far.
#[test]
fn full_sink_ends_the_page() {
    struct Few(Vec<Vec<u8>>, usize);
    impl ListSink for Few {
        fn take(&mut self, key: &[u8], _: ObjectInfo) -> bool {
            let has_room = self.0.len() < self.1;
            if has_room {
                self.0.push(key.to_vec());
            }
            has_room
        }
    }
    let store = common::open(&common::memory(BLOCKS), options()).unwrap();
    for name in ["a", "b/1", "c", "d/1", "e"] {
        block_on(store.put(&key(name.as_bytes()), vec![7].into(), PutOptions::default())).unwrap();
    }
    let mut request =
        ListRequest { bucket: "default".into(), delimiter: b"/".to_vec(), ..ListRequest::default() };
    let mut sink = Few(Vec::new(), 2);
    let page = block_on(store.list_into(&request, &mut sink)).unwrap();
    assert_eq!((&sink.0[..], page.entries.len()), (&[b"a".to_vec(), b"c".to_vec()][..], 0));
    assert_eq!(page.common_prefixes, [b"b/", b"d/"]);
    assert_eq!(page.next.as_deref(), Some(&b"d/"[..]));
    request.start_after = page.next.unwrap();
    sink.1 = 9;
    let page = block_on(store.list_into(&request, &mut sink)).unwrap();
    assert_eq!((sink.0.len(), page.next), (3, None));
    block_on(store.close()).unwrap();
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
