//! The read cache: short values that are read often, in 256 bytes each.
//!
//! The pool caches whole leaves: a scattered hot set of short values needs a page for each there. All threads share this
//! cache. Only a write of a key changes its newest durable value: freezing, applying, publishing and relocation change its
//! place. So a cached answer stays valid until the key is written. Invariants:
//! 1. [`WriteCounts`] counts every record, after it is in its memtable and under that memtable's lock, before it can become
//!    durable.
//! 2. A value is cached with the count from before its lookup, and only if no record of the key was in flight. It is
//!    valid while the count is the same and its deadline has not passed.
//!
//! A value is cached at its second miss, so that a walk over many keys does not displace the values that are read often.
//!
//! Readers take no lock. Each set has a sequence number, which is odd while a value is written: a reader copies a value and
//! uses it only if the number was even before and is the same after (a seqlock: Boehm, "Can seqlocks get along with
//! programming language memory models?", 2012). A writer that finds another one does not wait, and caches nothing.
//!
//! [`WriteCounts`]: super::write_counts::WriteCounts

use std::sync::OnceLock;

use shoal_base::Lsn;
use shoal_base::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::object::EndTime;
use shoal_value::InlineEntry;

/// Bytes of a place: key, value and their attributes, in whole cache lines.
const PLACE_BYTES: usize = 256;
const PLACE_WORDS: usize = PLACE_BYTES / 8;
/// Words of a place before the key.
const ATTRIBUTE_WORDS: usize = 5;
/// Bytes of key and value together at most.
const KEPT_BYTES_MAX: usize = (PLACE_WORDS - ATTRIBUTE_WORDS) * 8;
/// Places of a set. A key has two sets and takes the emptier one: almost no key lacks a place until nearly all are taken.
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

/// A copy of a cached value.
pub(crate) struct CachedValue {
    /// The count of writes from before the lookup of the value.
    pub(crate) count: u64,
    /// See [`packed`].
    end: u64,
    version: u64,
    modified_ns: u64,
    key_bytes: usize,
    value_bytes: usize,
    /// Key, then value.
    bytes: [u8; KEPT_BYTES_MAX],
}

impl CachedValue {
    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes]
    }

    fn value(&self) -> &[u8] {
        &self.bytes[self.key_bytes..][..self.value_bytes]
    }

    pub(crate) fn version(&self) -> Lsn {
        Lsn(self.version)
    }

    pub(crate) fn end(&self) -> Option<EndTime> {
        unpacked(self.end)
    }

    pub(crate) fn entry(&self) -> InlineEntry<'_> {
        InlineEntry { modified_ns: self.modified_ns, end: self.end(), metadata: &[], value: self.value() }
    }
}

/// The memory of a value: count, end, version, modification time, lengths of key and value; key and value.
#[derive(Default)]
#[repr(align(64))]
struct Place([AtomicU64; PLACE_WORDS]);

const _: () =
    assert!(size_of::<Place>() == PLACE_BYTES || cfg!(shoal_shuttle), "a place is four cache lines");

impl Place {
    /// A copy, which is torn if the place is written meanwhile; `None` if the lengths are impossible.
    fn load(&self) -> Option<CachedValue> {
        let [count, end, version, modified_ns, lengths] =
            std::array::from_fn(|word| self.0[word].load(Ordering::Relaxed));
        let (key_bytes, value_bytes) = ((lengths & 0xFFFF) as usize, (lengths >> 16) as usize);
        if key_bytes + value_bytes > KEPT_BYTES_MAX {
            return None;
        }
        let mut bytes = [0; KEPT_BYTES_MAX];
        let words = (key_bytes + value_bytes).div_ceil(8);
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(&self.0[ATTRIBUTE_WORDS..]).take(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some(CachedValue { count, end, version, modified_ns, key_bytes, value_bytes, bytes })
    }

    fn store(&self, value: &CachedValue) {
        let lengths = value.key_bytes as u64 | (value.value_bytes as u64) << 16;
        let attributes = [value.count, value.end, value.version, value.modified_ns, lengths];
        for (word, attribute) in self.0.iter().zip(attributes) {
            word.store(attribute, Ordering::Relaxed);
        }
        let words = (value.key_bytes + value.value_bytes).div_ceil(8);
        for (bytes, word) in value.bytes.chunks_exact(8).zip(&self.0[ATTRIBUTE_WORDS..]).take(words) {
            let mut raw = [0; 8];
            raw.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(raw), Ordering::Relaxed);
        }
    }
}

/// Places, with the tags of their keys.
#[derive(Default)]
#[repr(align(64))]
struct Set {
    /// Odd while a place is written; it also selects the place that a full set gives up.
    sequence: AtomicU32,
    /// The next word of `missed` to use.
    missed_next: AtomicU32,
    /// A part of the hash of the key in each place, zero in an empty place: it settles most misses.
    tags: [AtomicU32; WAYS],
    /// The same for the keys that missed last.
    missed: [AtomicU32; MISSED_MAX],
    /// The memory is taken with the first value.
    places: OnceLock<Box<[Place; WAYS]>>,
}

impl Set {
    /// The place of the key with this tag.
    fn way_of(&self, tag: u32) -> Option<usize> {
        self.tags.iter().position(|other| other.load(Ordering::Relaxed) == tag)
    }

    fn find(&self, tag: u32, key: &[u8]) -> Option<CachedValue> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let value = self.places.get()?[self.way_of(tag)?].load()?;
        // Orders the copy before the second load of the number.
        fence(Ordering::Acquire);
        let is_whole = sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        ((is_whole || injected(Bug::TornReadCache)) && value.key() == key).then_some(value)
    }

    /// Returns true if the key of this tag missed shortly before: it is read often. Two threads may disturb each other here, and then a
    /// value is cached a miss sooner or later.
    fn missed_again(&self, tag: u32) -> bool {
        if let Some(before) = self.missed.iter().find(|other| other.load(Ordering::Relaxed) == tag) {
            before.store(0, Ordering::Relaxed);
            return true;
        }
        let next = self.missed_next.fetch_add(1, Ordering::Relaxed) as usize % MISSED_MAX;
        self.missed[next].store(tag, Ordering::Relaxed);
        false
    }

    fn taken(&self) -> usize {
        self.tags.iter().filter(|tag| tag.load(Ordering::Relaxed) != 0).count()
    }

    /// Caches a value, unless another thread is writing into the set.
    fn put(&self, tag: u32, value: &CachedValue) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        let (from, to) = (sequence & !1, sequence | 1);
        if self.sequence.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        // Orders the odd number before the words of the place.
        fence(Ordering::Release);
        let turn = (sequence / 2) as usize % WAYS;
        let way = self.way_of(tag).or_else(|| self.way_of(0)).unwrap_or(turn);
        self.places.get_or_init(Box::default)[way].store(value);
        self.tags[way].store(tag, Ordering::Relaxed);
        self.sequence.store(from.wrapping_add(2), Ordering::Release);
    }
}

fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

/// See the top of the file.
pub(crate) struct ReadCache(Box<[Set]>);

impl ReadCache {
    /// A cache of at most about `bytes` bytes, at least one set.
    pub(crate) fn new(bytes: usize) -> Self {
        let sets = (bytes / (PLACE_BYTES * WAYS + size_of::<Set>())).clamp(1, 1 << SET_BITS);
        Self((0..sets).map(|_| Set::default()).collect())
    }

    /// The two sets of a key. The first is selected by bits of the hash that neither the tag nor the write count uses.
    fn sets_of(&self, hash: u64) -> [&Set; 2] {
        let mixed = (hash >> 32).wrapping_mul(0x9E37_79B9);
        [hash, mixed].map(|bits| {
            let bits = (bits >> (32 - SET_BITS)) as usize % (1 << SET_BITS);
            &self.0[(bits * self.0.len()) >> SET_BITS]
        })
    }

    /// The cached value of a key, whether or not it is still valid.
    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<CachedValue> {
        let tag = tag_of(hash);
        self.sets_of(hash).into_iter().find_map(|set| set.find(tag, key))
    }

    /// Notes a miss of a key. Returns true if the key missed shortly before.
    pub(crate) fn missed_again(&self, hash: u64) -> bool {
        self.sets_of(hash)[0].missed_again(tag_of(hash))
    }

    /// Returns true if a place has room for a key and a value of these lengths.
    pub(crate) fn fits(key_bytes: usize, value_bytes: usize) -> bool {
        key_bytes + value_bytes <= KEPT_BYTES_MAX
    }

    /// Caches an entry that was found by a lookup after the write count was `count`, while no newer one was in flight. An
    /// object with metadata or a distant deadline is not cached.
    pub(crate) fn put(&self, hash: u64, key: &[u8], version: Lsn, entry: &InlineEntry<'_>, count: u64) {
        let &InlineEntry { modified_ns, end, metadata, value } = entry;
        let Some(end) = packed(end) else { return };
        if !metadata.is_empty() || !Self::fits(key.len(), value.len()) {
            return;
        }
        let (key_bytes, value_bytes, version) = (key.len(), value.len(), version.0);
        let mut bytes = [0; KEPT_BYTES_MAX];
        bytes[..key_bytes].copy_from_slice(key);
        bytes[key_bytes..][..value_bytes].copy_from_slice(value);
        let value = CachedValue { count, end, version, modified_ns, key_bytes, value_bytes, bytes };
        let (tag, sets) = (tag_of(hash), self.sets_of(hash));
        let [first, second] = sets;
        let emptier = if first.taken() <= second.taken() { first } else { second };
        sets.into_iter().find(|set| set.way_of(tag).is_some()).unwrap_or(emptier).put(tag, &value);
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
    use shoal_common::options::{Environment, OpenOptions, Tuning};

    use super::*;
    use crate::Write;
    use crate::memtable::hash_of;
    use crate::read::get::{ShortObject, TryGet};
    use crate::store::Store;
    use crate::testing::fixtures::{in_memory, key, open_in};
    use crate::{ByteRange, Lookup, block_on};

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
    fn a_value_is_cached_from_the_second_time_on_and_until_it_is_written() {
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

    /// A cache that a hot set fills to three quarters has nearly all of it after ten gets a key.
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
            assert_eq!(shown(&store, &at.to_string()), Some(b"value".to_vec()));
        }
        let cached = (0..keys).filter(|at| is_cached(&store, &at.to_string())).count();
        assert!(cached * 100 >= keys * 97, "{cached} of {keys} keys are cached");
    }

    /// Threads that write and read the places of one set never read a value that is mixed of two.
    #[test]
    fn no_cached_value_is_torn() {
        let cache = ReadCache::new(0);
        let ended = AtomicBool::new(false);
        let check = |number: u64| {
            let name = [number as u8 % 4; 9];
            let Some(found) = cache.find(hash_of(&name), &name) else { return false };
            let fill = found.version as u8;
            assert!(found.value().iter().all(|&byte| byte == fill) && found.modified_ns == found.version);
            true
        };
        std::thread::scope(|scope| {
            for writer in 0..2_u64 {
                let (cache, ended) = (&cache, &ended);
                scope.spawn(move || {
                    for number in 0..30_000_u64 {
                        let (name, version) = ([number as u8 % 4; 9], number * 2 + writer);
                        let value = [version as u8; 150];
                        let entry =
                            InlineEntry { modified_ns: version, end: None, metadata: &[], value: &value };
                        cache.put(hash_of(&name), &name, Lsn(version), &entry, 0);
                    }
                    ended.store(true, Ordering::Relaxed);
                });
            }
            let mut found = 0;
            while !ended.load(Ordering::Relaxed) || found == 0 {
                found += (0..4).filter(|&number| check(number)).count();
            }
        });
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
                            let read =
                                store.try_get(&key(at), |found| found.map(|found| found.value().to_vec()));
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
