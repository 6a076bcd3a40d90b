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

use once_cell::race::OnceBox;
use shoal_base::Lsn;
use shoal_base::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::object::EndTime;
use shoal_value::InlineEntry;

/// Bytes of a place: key, value and their attributes, in whole cache lines.
pub const PLACE_BYTES: usize = 256;
const PLACE_WORDS: usize = PLACE_BYTES / 8;
/// Words of a place before the key.
const ATTRIBUTE_WORDS: usize = 5;
/// Bytes of key and value together at most.
pub const KEPT_BYTES_MAX: usize = (PLACE_WORDS - ATTRIBUTE_WORDS) * 8;
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
pub struct CachedValue {
    /// The count of writes from before the lookup of the value.
    pub count: u64,
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

    /// The version of the object.
    #[inline]
    pub fn version(&self) -> Lsn {
        Lsn(self.version)
    }

    /// The end of its time, if it has one.
    #[inline]
    pub fn end(&self) -> Option<EndTime> {
        unpacked(self.end)
    }

    /// The object as an entry.
    #[inline]
    pub fn entry(&self) -> InlineEntry<'_> {
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

/// Places, with the tags of their keys, in one cache line: a miss in the processor's caches is most of the cost of a lookup that
/// finds nothing.
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
    places: OnceBox<[Place; WAYS]>,
}

const _: () = assert!(size_of::<Set>() == 64 || cfg!(shoal_shuttle), "a set is one cache line");

impl Set {
    /// The place of the key with this tag.
    fn way_of(&self, tag: u32) -> Option<usize> {
        self.tags.iter().position(|other| other.load(Ordering::Relaxed) == tag)
    }

    fn find(&self, tag: u32, key: &[u8]) -> Option<CachedValue> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let way = self.way_of(tag)?;
        let value = self.places.get()?[way].load()?;
        // Orders the copy before the second load of the number.
        fence(Ordering::Acquire);
        let is_whole = sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        ((is_whole || injected(Bug::TornReadCache)) && value.key() == key).then_some(value)
    }

    /// Notes a miss; returns true if the key of this tag missed shortly before. Two threads may disturb each other here, and then a value is
    /// cached a miss sooner or later.
    fn missed_again(&self, tag: u32) -> bool {
        if self.missed.iter().any(|missed| missed.load(Ordering::Relaxed) == tag) {
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
pub struct ReadCache(Box<[Set]>);

impl ReadCache {
    /// A cache of at most about `bytes` bytes, at least one set.
    pub fn new(bytes: usize) -> Self {
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
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<CachedValue> {
        let tag = tag_of(hash);
        self.sets_of(hash).into_iter().find_map(|set| set.find(tag, key))
    }

    /// Notes a miss of a key. Returns true if the key missed shortly before.
    #[inline]
    pub fn missed_again(&self, hash: u64) -> bool {
        self.sets_of(hash)[0].missed_again(tag_of(hash))
    }

    /// Returns true if a place has room for a key and a value of these lengths.
    #[inline]
    pub fn fits(key_bytes: usize, value_bytes: usize) -> bool {
        key_bytes + value_bytes <= KEPT_BYTES_MAX
    }

    /// Caches an entry that was found by a lookup after the write count was `count`, while no newer one was in flight. An
    /// object with metadata or a distant deadline is not cached.
    pub fn put(&self, hash: u64, key: &[u8], version: Lsn, entry: &InlineEntry<'_>, count: u64) {
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
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::hash_of;

    /// A key misses again unless many others miss in between: a walk over all keys caches almost nothing, even if it is repeated.
    #[test]
    fn a_repeated_walk_rarely_misses_again() {
        let percent_again = |keys: u64| {
            let cache = ReadCache::new(16 << 20);
            let again =
                || (0..keys).filter(|at| cache.missed_again(hash_of(&at.to_le_bytes()))).count() as u64;
            assert_eq!(again(), 0, "the first misses of {keys} keys");
            again() * 100 / keys
        };
        let (few, many) = (percent_again(10_000), percent_again(1_000_000));
        assert!(few > 80 && many == 0, "{few} % of few, {many} % of many");
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
}
