//! The read cache beside the writes and applies of a store.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::{ManualClock, SeededEntropy};
use shoal_buffer::Buffer;
use shoal_common::object::{Expiry, PutOptions};
use shoal_common::options::{Environment, OpenOptions, Tuning};
use shoal_memtable::hash_of;
use shoal_memtable::read_cache::{KEPT_BYTES_MAX, PLACE_BYTES};

use crate::read::get::{ShortObject, TryGet};
use crate::store::Store;
use crate::testing::fixtures::{in_memory, key, open_in};
use crate::{ByteRange, Lookup, Write, block_on};

fn store(environment: Environment) -> Store {
    let options = OpenOptions { cache_bytes: 16 << 20, ..OpenOptions::default() };
    open_in(&in_memory(), options, environment)
}

fn put(store: &Store, name: &str, value: &[u8], options: PutOptions) {
    block_on(store.put(&key(name), Buffer::from(value.to_vec()), options)).unwrap();
}

fn shown(store: &Store, name: &str) -> Option<Vec<u8>> {
    match store.try_get(&key(name), |found| found.map(|found| found.value().to_vec())) {
        TryGet::Shown(value) => value,
        TryGet::MustWait(lookup) => panic!("{lookup:?}"),
    }
}

/// Returns true if the key's value is cached and valid.
fn is_cached(store: &Store, name: &str) -> bool {
    let key = key(name);
    let hash = hash_of(key.encoded());
    let cached = store.0.read_cache.find(hash, key.encoded());
    cached.is_some_and(|cached| cached.count == store.0.tablets.write_counts.now(hash))
}

#[test]
fn a_value_is_cached_from_the_second_get_until_it_is_written() {
    let store = store(Environment::default());
    put(&store, "a", b"one", PutOptions::default());
    assert_eq!((shown(&store, "a"), is_cached(&store, "a")), (Some(b"one".to_vec()), false));
    assert_eq!((shown(&store, "a"), is_cached(&store, "a")), (Some(b"one".to_vec()), true));
    // The value's place does not matter.
    block_on(store.0.checkpointer.apply_all()).unwrap();
    assert!(is_cached(&store, "a"));
    assert_eq!(shown(&store, "a"), Some(b"one".to_vec()));
    put(&store, "a", b"two", PutOptions::default());
    assert!(!is_cached(&store, "a"));
    assert_eq!((shown(&store, "a"), is_cached(&store, "a")), (Some(b"two".to_vec()), true));
    block_on(store.delete(&key("a"), crate::RejectRules::default())).unwrap();
    assert_eq!(shown(&store, "a"), None);
    put(&store, "a", &[7; KEPT_BYTES_MAX], PutOptions::default());
    assert_eq!(shown(&store, "a"), Some(vec![7; KEPT_BYTES_MAX]));
    assert!(!is_cached(&store, "a"), "too long");
    assert_eq!(store.0.counters.gets.load(Ordering::Relaxed), 6);
}

/// The cache, a record and a leaf return the same information about an object; an object with metadata is not
/// cached.
#[test]
fn the_info_of_an_object_is_kept_with_it() {
    let store = store(Environment::default());
    let metadata = crate::Metadata { content_type: "text/plain".into(), ..crate::Metadata::default() };
    for (name, metadata) in [("plain", crate::Metadata::default()), ("rich", metadata)] {
        let is_plain = metadata == crate::Metadata::default();
        put(&store, name, b"value", PutOptions { metadata, modified_ns: Some(7), ..PutOptions::default() });
        let known = block_on(store.head(&key(name))).unwrap().unwrap();
        for applied in [false, true] {
            if applied {
                block_on(store.0.checkpointer.apply_all()).unwrap();
                let key = key(name);
                // No lookup has read the leaf of the first apply; the leaf of the next one takes its place in the
                // pool.
                let lookup = match store.try_get(&key, |_| ()) {
                    TryGet::MustWait(lookup) => lookup,
                    TryGet::Shown(()) => Lookup::default(),
                };
                let get = store.get_from(lookup, &key, ByteRange::ALL, |_| Ok::<_, crate::Error>(()));
                let object = block_on(get).unwrap().unwrap();
                assert_eq!((object.info, object.value.to_vec()), (known.clone(), b"value".to_vec()));
            }
            let check = |found: Option<&ShortObject<'_>>| {
                let found = found.unwrap();
                assert_eq!((found.info().unwrap(), found.value()), (known.clone(), &b"value"[..]));
            };
            assert!(matches!(store.try_get(&key(name), check), TryGet::Shown(())));
            for _ in 0..3 {
                assert!(matches!(store.try_get(&key(name), check), TryGet::Shown(())));
            }
        }
        assert_eq!(is_cached(&store, name), is_plain);
    }
    assert!(matches!(store.try_get(&key("none"), |found| found.is_none()), TryGet::Shown(true)));
}

#[test]
fn cached_value_expires() {
    let clock = Arc::new(ManualClock::new(1_000));
    let store = store(Environment { clock: clock.clone(), ..Environment::default() });
    let life = std::time::Duration::from_millis(1);
    for (name, expiry) in [("a", Expiry::At(1_001_000)), ("b", Expiry::After(life))] {
        put(&store, name, b"one", PutOptions { expiry, ..PutOptions::default() });
        for _ in 0..3 {
            assert_eq!(shown(&store, name), Some(b"one".to_vec()));
        }
        assert!(is_cached(&store, name));
    }
    clock.advance(999_999);
    assert!(shown(&store, "a").is_some() && shown(&store, "b").is_some());
    clock.advance(1);
    assert!(shown(&store, "a").is_none() && shown(&store, "b").is_none());
}

/// A get that read its leaf from the device caches the value when the key misses again, and not while a newer value is
/// in flight.
#[test]
fn a_value_from_the_device_is_cached_at_its_second_miss() {
    let store = store(Environment::default());
    let a = key("a");
    let read = || match store.try_get(&a, |found| found.map(|found| found.value().to_vec())) {
        TryGet::Shown(value) => (value, false),
        TryGet::MustWait(lookup) => {
            let get = store.get_from(lookup, &a, ByteRange::ALL, |_| Ok::<_, crate::Error>(()));
            (block_on(get).unwrap().map(|object| object.value.to_vec()), true)
        }
    };
    put(&store, "a", b"one", PutOptions::default());
    block_on(store.0.checkpointer.apply_all()).unwrap();
    assert_eq!(read(), (Some(b"one".to_vec()), true));
    assert!(!is_cached(&store, "a"), "a walk over many keys reads each of them once");
    assert_eq!(read(), (Some(b"one".to_vec()), false));
    assert!(is_cached(&store, "a"));
    put(&store, "b", b"one", PutOptions::default());
    store.0.read_cache.missed_again(hash_of(key("b").encoded()));
    let token = block_on(store.0.log.committer.stop());
    let (b, value) = (key("b"), Buffer::from(b"two".to_vec()));
    let options = PutOptions::default();
    let pending = block_on(store.write(Write::put(&b, &value, &options))).unwrap();
    for _ in 0..3 {
        store.0.keep_read(&b, 3);
        assert!(!is_cached(&store, "b"), "a newer value is in flight");
    }
    drop(token);
    block_on(pending.durable()).unwrap();
    (0..2).for_each(|_| store.0.keep_read(&b, 3));
    assert_eq!((is_cached(&store, "b"), shown(&store, "b")), (true, Some(b"two".to_vec())));
}

/// A cache that a hot set fills to three quarters has nearly all of it after ten gets a key, all from the device.
#[test]
fn most_of_a_hot_set_is_cached() {
    let keys = 3_000;
    let tuning = Tuning { read_cache_bytes: keys * PLACE_BYTES * 3 / 2, ..Tuning::default() };
    let options = OpenOptions { cache_bytes: 16 << 20, tuning, ..OpenOptions::default() };
    let store = open_in(&in_memory(), options, Environment::default());
    (0..keys).for_each(|at| put(&store, &at.to_string(), b"value", PutOptions::default()));
    let random = SeededEntropy::new(7);
    for _ in 0..10 * keys {
        let at = random.below(keys as u64);
        store.0.keep_read(&key(at.to_string()), b"value".len());
    }
    let cached = (0..keys).filter(|at| is_cached(&store, &at.to_string())).count();
    assert!(cached * 100 >= keys * 97, "{cached} of {keys} keys are cached");
}

/// While a newer value of a key is in flight, a get returns the older one. That must not be cached: the cache
/// does not learn when the newer one becomes durable.
#[test]
fn a_value_that_is_not_settled_is_not_kept() {
    let store = store(Environment::default());
    put(&store, "a", b"old", PutOptions::default());
    let token = block_on(store.0.log.committer.stop());
    let (done, held) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || {
            let (key, value) = (key("a"), Buffer::from(b"new".to_vec()));
            let options = PutOptions::default();
            let pending = block_on(store.write(Write::put(&key, &value, &options))).unwrap();
            done.send(()).unwrap();
            block_on(pending.durable()).unwrap();
        });
        held.recv().unwrap();
        for _ in 0..3 {
            assert_eq!(shown(store, "a"), Some(b"old".to_vec()));
            assert!(!is_cached(store, "a"));
        }
        drop(token);
    });
    for _ in 0..3 {
        assert_eq!(shown(&store, "a"), Some(b"new".to_vec()));
    }
}

/// A thread that has seen a number never sees a smaller one later: writers count keys up, readers cache them.
#[test]
fn reads_never_return_superseded_acknowledged_value() {
    let store = store(Environment::default());
    let acknowledged: [AtomicU64; 8] = Default::default();
    let ended = AtomicBool::new(false);
    (0..8).for_each(|at| put(&store, &at.to_string(), b"0", PutOptions::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    for (at, acknowledged) in acknowledged.iter().enumerate() {
                        let least = acknowledged.load(Ordering::Acquire);
                        let read = store.try_get(&key(at), |found| found.map(|found| found.value().to_vec()));
                        let TryGet::Shown(value) = read else { continue };
                        let value: u64 = String::from_utf8(value.unwrap()).unwrap().parse().unwrap();
                        assert!(value >= least, "key {at}: {value} after {least} was acknowledged");
                    }
                }
            });
        }
        for round in 1..400_u64 {
            let at = (round * 5 % 8) as usize;
            put(&store, &at.to_string(), round.to_string().as_bytes(), PutOptions::default());
            acknowledged[at].store(round, Ordering::Release);
            if round % 50 == 0 {
                block_on(store.0.checkpointer.apply_all()).unwrap();
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    let got = block_on(store.get(&key(0), ByteRange::ALL)).unwrap();
    assert!(got.is_some());
}
