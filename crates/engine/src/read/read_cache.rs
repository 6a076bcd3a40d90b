//! The read cache of one thread: short values that the thread recently served, in the thread's memory.
//!
//! Only a write of a key changes its newest durable value: freezing, applying, publishing and relocation change its
//! place. So a cached answer stays valid until the key is written. Invariants:
//! 1. [`WriteCounts`] counts every record, after it is in its memtable and under that memtable's lock, before it can become
//!    durable.
//! 2. A value is cached with the count from before its lookup, and only if no record of the key was in flight. It is
//!    valid while the count is the same and its deadline has not passed.
//!
//! A value is cached at its second lookup, so that a walk over many keys does not displace the values that are read
//! often. The pool caches whole leaves: a scattered hot set of short values needs a page for each there, and 256 bytes here.
//! Threads share only the counts.

use shoal_base::Lsn;
use shoal_common::key::ObjectKey;
use shoal_common::object::EndTime;
use shoal_value::InlineEntry;

use crate::counters::OperationCounters;
use crate::memtable::hash_of;
use crate::read::get::{ShortObject, TryGet};
use crate::store::{Inner, Store};

/// Bytes of a place: key, value and their attributes, in whole cache lines.
const PLACE_BYTES: usize = 256;
/// Bytes of key and value together at most.
const KEPT_BYTES_MAX: usize = PLACE_BYTES - 36;
/// Places in a key's set. With eight, a cache that is three quarters full has a place for 19 of 20 keys.
const WAYS: usize = 8;
/// Keys of a set that missed lately and are not cached: another miss of one of them caches its value.
const MISSED_MAX: usize = 4;
/// The number of sets is at most two to this power: the bits of a hash that select one.
const SET_BITS: u32 = 18;
/// No deadline.
const FOREVER: u64 = u64::MAX;
/// A bit of a stored deadline: it is one of store time.
const IS_STORE_TIME: u64 = 1 << 63;

/// A deadline in eight bytes; `None` if it does not fit: it is centuries ahead.
fn packed(end: Option<EndTime>) -> Option<u64> {
    match end {
        None => Some(FOREVER),
        Some(EndTime::Wall(ns)) => Some(ns).filter(|&ns| ns < IS_STORE_TIME),
        Some(EndTime::Store(ns)) => {
            Some(ns | IS_STORE_TIME).filter(|&word| ns < IS_STORE_TIME && word != FOREVER)
        }
    }
}

/// The reverse of [`packed`].
fn unpacked(word: u64) -> Option<EndTime> {
    match word {
        FOREVER => None,
        word if word & IS_STORE_TIME != 0 => Some(EndTime::Store(word & !IS_STORE_TIME)),
        word => Some(EndTime::Wall(word)),
    }
}

/// A cached value, or none yet.
#[derive(Clone)]
#[repr(align(64))]
struct CachedValue {
    /// The count of writes from before the lookup of the value.
    count: u64,
    /// See [`packed`].
    end: u64,
    version: u64,
    modified_ns: u64,
    key_bytes: u16,
    value_bytes: u16,
    /// Key, then value.
    bytes: [u8; KEPT_BYTES_MAX],
}

const _: () = assert!(size_of::<CachedValue>() == PLACE_BYTES, "a place is four cache lines");

impl CachedValue {
    const EMPTY: Self = Self {
        count: 0,
        end: FOREVER,
        version: 0,
        modified_ns: 0,
        key_bytes: 0,
        value_bytes: 0,
        bytes: [0; KEPT_BYTES_MAX],
    };

    /// Returns true if a place has room for the key and its value. An object with metadata has none.
    fn fits(key: &[u8], found: &ShortObject<'_>) -> bool {
        key.len() + found.entry.value.len() <= KEPT_BYTES_MAX && found.entry.metadata.is_empty()
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.key_bytes)]
    }

    fn value(&self) -> &[u8] {
        &self.bytes[usize::from(self.key_bytes)..][..usize::from(self.value_bytes)]
    }

    fn object<'a>(&'a self, inner: &'a Inner) -> ShortObject<'a> {
        let (end, modified_ns) = (unpacked(self.end), self.modified_ns);
        let entry = InlineEntry { modified_ns, end, metadata: &[], value: self.value() };
        ShortObject { inner, version: Lsn(self.version), entry, is_settled: true }
    }
}

/// A set of places, and the place of a key in it.
type PlaceOf = (usize, usize);

/// The places of one thread's cache.
struct Places {
    /// The number of sets.
    sets_max: usize,
    /// The sets; the memory of each is taken with its first value.
    sets: Vec<Option<Box<[CachedValue; WAYS]>>>,
    /// A part of the hash of the key in each place, zero in an empty place: it settles most misses.
    tags: Vec<[u32; WAYS]>,
    /// The same for the keys of each set that missed last, the latest first.
    missed: Vec<[u32; MISSED_MAX]>,
    /// The place of a full set that is overwritten next.
    turn: usize,
}

fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

impl Places {
    /// Places of `bytes` bytes in total, at least one set.
    fn new(bytes: usize) -> Self {
        let sets_max = (bytes / (PLACE_BYTES * WAYS)).clamp(1, 1 << SET_BITS);
        Self { sets_max, sets: Vec::new(), tags: Vec::new(), missed: Vec::new(), turn: 0 }
    }

    /// The key's set, by bits of the hash that neither the tag nor the write count uses.
    fn set_of(&self, hash: u64) -> usize {
        let bits = (hash >> (32 - SET_BITS)) as usize % (1 << SET_BITS);
        (bits * self.sets_max) >> SET_BITS
    }

    /// The place of a key, whether or not it is still valid.
    fn find(&self, hash: u64, key: &[u8]) -> Option<PlaceOf> {
        let (set, tag) = (self.set_of(hash), tag_of(hash));
        let way = self.tags.get(set)?.iter().position(|&other| other == tag)?;
        (self.at((set, way))?.key() == key).then_some((set, way))
    }

    fn at(&self, (set, way): PlaceOf) -> Option<&CachedValue> {
        self.sets.get(set)?.as_ref().map(|places| &places[way])
    }

    /// Notes a miss of a key. Returns true if the key missed shortly before: it is read often.
    fn missed_again(&mut self, hash: u64) -> bool {
        if self.missed.is_empty() {
            self.missed = vec![[0; MISSED_MAX]; self.sets_max];
        }
        let (set, tag) = (self.set_of(hash), tag_of(hash));
        let missed = &mut self.missed[set];
        let before = missed.iter().position(|&other| other == tag);
        missed[..=before.unwrap_or(MISSED_MAX - 1)].rotate_right(1);
        missed[0] = if before.is_some() { 0 } else { tag };
        before.is_some()
    }

    /// The place that a new key of `set` takes.
    fn free_place(&mut self, set: usize) -> PlaceOf {
        if self.sets.is_empty() {
            self.sets.resize_with(self.sets_max, || None);
            self.tags = vec![[0; WAYS]; self.sets_max];
        }
        self.turn = (self.turn + 1) % WAYS;
        (set, self.tags[set].iter().position(|&tag| tag == 0).unwrap_or(self.turn))
    }

    /// Caches a found value: in place `at` if the key has one, else only if the key missed shortly before.
    fn keep(&mut self, at: Option<PlaceOf>, hash: u64, key: &[u8], found: &ShortObject<'_>, count: u64) {
        if CachedValue::fits(key, found) && (at.is_some() || self.missed_again(hash)) {
            self.put(at, hash, key, found, count);
        }
    }

    /// Caches a found value that fits.
    fn put(&mut self, at: Option<PlaceOf>, hash: u64, key: &[u8], found: &ShortObject<'_>, count: u64) {
        let InlineEntry { modified_ns, end, value, .. } = found.entry;
        let Some(end) = packed(end) else { return };
        let set = self.set_of(hash);
        let (in_set, way) = at.unwrap_or_else(|| self.free_place(set));
        assert_eq!(in_set, set, "a value is cached in the set of its key");
        let places = self.sets[set].get_or_insert_with(|| Box::new([const { CachedValue::EMPTY }; WAYS]));
        let place = &mut places[way];
        place.bytes[..key.len()].copy_from_slice(key);
        place.bytes[key.len()..][..value.len()].copy_from_slice(value);
        (place.key_bytes, place.value_bytes) = (key.len() as u16, value.len() as u16);
        (place.count, place.end) = (count, end);
        (place.version, place.modified_ns) = (found.version.0, modified_ns);
        self.tags[set][way] = tag_of(hash);
    }
}

/// Short values that one thread recently served.
pub struct ReadCache {
    store: Store,
    places: Places,
    /// Gets and their bytes that the store's counters do not include yet.
    gets: u64,
    bytes: u64,
}

impl std::fmt::Debug for ReadCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadCache({} places)", self.places.sets_max * WAYS)
    }
}

impl Store {
    /// A read cache of at most about `bytes` bytes for one thread; its memory is taken with the values. It caches a value
    /// that has at most 219 bytes together with its key.
    #[must_use]
    pub fn read_cache(&self, bytes: usize) -> ReadCache {
        ReadCache { store: self.clone(), places: Places::new(bytes), gets: 0, bytes: 0 }
    }
}

impl ReadCache {
    /// As [`Store::try_get`], but looks into the cache first.
    #[inline]
    pub fn try_get<T>(
        &mut self,
        key: &ObjectKey,
        show: impl FnOnce(Option<&ShortObject<'_>>) -> T,
    ) -> TryGet<T> {
        let inner = &*self.store.0;
        let hash = hash_of(key.encoded());
        // Read before the lookup: a write during the lookup changes the count.
        let count = inner.tablets.write_counts.now(hash);
        let at = self.places.find(hash, key.encoded());
        if let Some(place) = at.and_then(|at| self.places.at(at))
            && place.count == count
            && !inner.is_over(unpacked(place.end), Lsn(place.version))
            && inner.check_open().is_ok()
        {
            self.gets += 1;
            self.bytes += u64::from(place.value_bytes);
            return TryGet::Shown(show(Some(&place.object(inner))));
        }
        let (places, gets, bytes) = (&mut self.places, &mut self.gets, &mut self.bytes);
        inner.try_get(key, |found| {
            if let Some(found) = found {
                *bytes += found.value().len() as u64;
                if found.is_settled {
                    places.keep(at, hash, key.encoded(), found, count);
                }
            }
            *gets += 1;
            show(found)
        })
    }

    /// Caches the value of a key that misses often, after a get that [`Self::try_get`] did not answer and that read
    /// `value_bytes`: its leaf was read from the device. The leaf is searched again, because the get that waited does not
    /// know if a newer record is in flight.
    pub fn keep_read(&mut self, key: &ObjectKey, value_bytes: usize) {
        if key.encoded().len() + value_bytes > KEPT_BYTES_MAX {
            return;
        }
        let inner = &*self.store.0;
        let hash = hash_of(key.encoded());
        let count = inner.tablets.write_counts.now(hash);
        let at = self.places.find(hash, key.encoded());
        if at.is_none() && !self.places.missed_again(hash) {
            return;
        }
        let places = &mut self.places;
        inner.try_get(key, |found| {
            if let Some(found) =
                found.filter(|found| found.is_settled && CachedValue::fits(key.encoded(), found))
            {
                places.put(at, hash, key.encoded(), found, count);
            }
        });
    }

    /// Adds the gets to the store's counters. Call it after each handful of requests.
    pub fn settle(&mut self) {
        let counters = &self.store.0.counters;
        OperationCounters::add(&counters.gets, std::mem::take(&mut self.gets));
        OperationCounters::add(&counters.value_bytes_read, std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use shoal_base::{ManualClock, SeededEntropy};
    use shoal_buffer::Buffer;

    use shoal_base::sync::atomic::{AtomicU64, Ordering};
    use shoal_common::object::{Expiry, PutOptions};
    use shoal_common::options::{Environment, OpenOptions};

    use super::*;
    use crate::Write;
    use crate::testing::fixtures::{in_memory, key, open_in};
    use crate::{ByteRange, Lookup, block_on};

    fn store(environment: Environment) -> Store {
        let options = OpenOptions { cache_bytes: 16 << 20, ..OpenOptions::default() };
        open_in(&in_memory(), options, environment)
    }

    fn put(store: &Store, name: &str, value: &[u8], options: PutOptions) {
        block_on(store.put(&key(name), Buffer::from(value.to_vec()), options)).unwrap();
    }

    fn shown(cache: &mut ReadCache, name: &str) -> Option<Vec<u8>> {
        match cache.try_get(&key(name), |found| found.map(|found| found.value().to_vec())) {
            TryGet::Shown(value) => value,
            TryGet::MustWait(lookup) => panic!("{lookup:?}"),
        }
    }

    /// Returns true if the key's value is cached and valid.
    fn is_cached(cache: &ReadCache, name: &str) -> bool {
        let key = key(name);
        let hash = hash_of(key.encoded());
        let at = cache.places.find(hash, key.encoded());
        let place = at.and_then(|at| cache.places.at(at));
        place.is_some_and(|place| place.count == cache.store.0.tablets.write_counts.now(hash))
    }

    #[test]
    fn a_value_is_cached_from_the_second_time_on_and_until_it_is_written() {
        let store = store(Environment::default());
        let mut cache = store.read_cache(1 << 20);
        put(&store, "a", b"one", PutOptions::default());
        assert_eq!((shown(&mut cache, "a"), is_cached(&cache, "a")), (Some(b"one".to_vec()), false));
        assert_eq!((shown(&mut cache, "a"), is_cached(&cache, "a")), (Some(b"one".to_vec()), true));
        // The value's place does not matter.
        block_on(store.0.checkpointer.apply_all()).unwrap();
        assert!(is_cached(&cache, "a"));
        assert_eq!(shown(&mut cache, "a"), Some(b"one".to_vec()));
        put(&store, "a", b"two", PutOptions::default());
        assert!(!is_cached(&cache, "a"));
        assert_eq!((shown(&mut cache, "a"), is_cached(&cache, "a")), (Some(b"two".to_vec()), true));
        block_on(store.delete(&key("a"), crate::RejectRules::default())).unwrap();
        assert_eq!(shown(&mut cache, "a"), None);
        put(&store, "a", &[7; KEPT_BYTES_MAX], PutOptions::default());
        assert_eq!(shown(&mut cache, "a"), Some(vec![7; KEPT_BYTES_MAX]));
        assert!(!is_cached(&cache, "a"), "too long");
        cache.settle();
        assert_eq!(store.0.counters.gets.load(Ordering::Relaxed), 6);
    }

    /// The cache, a record and a leaf return the same information about an object; an object with metadata is not
    /// cached.
    #[test]
    fn the_info_of_an_object_is_kept_with_it() {
        let store = store(Environment::default());
        let mut cache = store.read_cache(1 << 20);
        let metadata = crate::Metadata { content_type: "text/plain".into(), user: Vec::new() };
        for (name, metadata) in [("plain", crate::Metadata::default()), ("rich", metadata)] {
            let is_plain = metadata == crate::Metadata::default();
            put(
                &store,
                name,
                b"value",
                PutOptions { metadata, modified_ns: Some(7), ..PutOptions::default() },
            );
            let known = block_on(store.head(&key(name))).unwrap().unwrap();
            for applied in [false, true] {
                if applied {
                    block_on(store.0.checkpointer.apply_all()).unwrap();
                    let key = key(name);
                    // No lookup has read the leaf of the first apply; the leaf of the next one takes its place in the
                    // pool.
                    let lookup = match store.try_get(&key, |_| ()) {
                        TryGet::MustWait(lookup) => lookup,
                        TryGet::Shown(()) => {
                            assert!(!is_plain);
                            Lookup::default()
                        }
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
                    assert!(matches!(cache.try_get(&key(name), check), TryGet::Shown(())));
                }
            }
            assert_eq!(is_cached(&cache, name), is_plain);
        }
        assert!(matches!(cache.try_get(&key("none"), |found| found.is_none()), TryGet::Shown(true)));
    }

    #[test]
    fn cached_value_expires() {
        let clock = Arc::new(ManualClock::new(1_000));
        let store = store(Environment { clock: clock.clone(), ..Environment::default() });
        let mut cache = store.read_cache(1 << 20);
        let life = std::time::Duration::from_millis(1);
        for (name, expiry) in [("a", Expiry::At(1_001_000)), ("b", Expiry::After(life))] {
            put(&store, name, b"one", PutOptions { expiry, ..PutOptions::default() });
            for _ in 0..3 {
                assert_eq!(shown(&mut cache, name), Some(b"one".to_vec()));
            }
            assert!(is_cached(&cache, name));
        }
        clock.advance(999_999);
        assert!(shown(&mut cache, "a").is_some() && shown(&mut cache, "b").is_some());
        clock.advance(1);
        assert!(shown(&mut cache, "a").is_none() && shown(&mut cache, "b").is_none());
    }

    /// A get that read its leaf from the device caches the value when the key misses again, and not while a newer value is
    /// in flight.
    #[test]
    fn a_value_from_the_device_is_cached_at_its_second_miss() {
        let store = store(Environment::default());
        let mut cache = store.read_cache(1 << 20);
        put(&store, "a", b"one", PutOptions::default());
        block_on(store.0.checkpointer.apply_all()).unwrap();
        for (times, cached) in [(1, false), (2, true)] {
            let key = key("a");
            if let TryGet::MustWait(lookup) = cache.try_get(&key, |_| ()) {
                let get = store.get_from(lookup, &key, ByteRange::ALL, |_| Ok::<_, crate::Error>(()));
                assert_eq!(block_on(get).unwrap().unwrap().value.to_vec(), b"one");
            } else {
                assert_eq!(times, 2, "the first get of an applied key reads its leaf");
            }
            cache.keep_read(&key, 3);
            assert_eq!(is_cached(&cache, "a"), cached);
        }
        cache.keep_read(&key("a"), KEPT_BYTES_MAX);
        let token = block_on(store.0.log.committer.stop());
        let (key, value) = (key("a"), Buffer::from(b"two".to_vec()));
        let options = PutOptions::default();
        let pending = block_on(store.write(Write::put(&key, &value, &options))).unwrap();
        (0..3).for_each(|_| cache.keep_read(&key, 3));
        assert!(!is_cached(&cache, "a"), "the older value is not the newest for long");
        drop(token);
        block_on(pending.durable()).unwrap();
        (0..2).for_each(|_| cache.keep_read(&key, 3));
        assert_eq!((is_cached(&cache, "a"), shown(&mut cache, "a")), (true, Some(b"two".to_vec())));
    }

    /// A cache that a hot set fills to three quarters answers nearly all of it after six gets a key.
    #[test]
    fn most_of_a_hot_set_is_cached() {
        let store = store(Environment::default());
        let keys = 3_000;
        let mut cache = store.read_cache(keys * PLACE_BYTES * 4 / 3);
        (0..keys).for_each(|at| put(&store, &at.to_string(), b"value", PutOptions::default()));
        let random = SeededEntropy::new(7);
        for _ in 0..6 * keys {
            let at = random.below(keys as u64);
            assert_eq!(shown(&mut cache, &at.to_string()), Some(b"value".to_vec()));
        }
        let cached = (0..keys).filter(|at| is_cached(&cache, &at.to_string())).count();
        assert!(cached * 100 >= keys * 90, "{cached} of {keys} keys are cached");
    }

    /// While a newer value of a key is in flight, a get returns the older one. That must not be cached: the cache
    /// does not learn when the newer one becomes durable.
    #[test]
    fn a_value_that_is_not_settled_is_not_kept() {
        let store = store(Environment::default());
        let mut cache = store.read_cache(1 << 20);
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
                assert_eq!(shown(&mut cache, "a"), Some(b"old".to_vec()));
                assert!(!is_cached(&cache, "a"));
            }
            drop(token);
        });
        for _ in 0..3 {
            assert_eq!(shown(&mut cache, "a"), Some(b"new".to_vec()));
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
                    let mut cache = store.read_cache(64 << 10);
                    while !ended.load(Ordering::Relaxed) {
                        for (at, acknowledged) in acknowledged.iter().enumerate() {
                            let least = acknowledged.load(Ordering::Acquire);
                            let read =
                                cache.try_get(&key(at), |found| found.map(|found| found.value().to_vec()));
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
}
