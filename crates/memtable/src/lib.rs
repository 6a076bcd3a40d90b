//! The memtables: the records of a tablet that the log holds and the trees do not yet.
//!
//! A writer inserts a record and pushes it into the committer's queue under one lock (R4). A record is *in flight* until its log batch is
//! flushed; readers skip it until then. The memtable keeps the newest durable record of a key and the records in flight. It drops older
//! records, and notes their extents for the next apply to free.

pub mod admission;
pub mod adoptions;
mod keys;
pub mod read_cache;
#[cfg(test)]
mod testing;
pub mod turns;
pub mod watched_keys;
pub mod write_counts;

use std::future::poll_fn;
use std::ops::Bound;
use std::sync::Arc;
use std::task::Poll;

use adoptions::Adoptions;
use keys::{Guess, Keys, Versions, sort_by_key};
use shoal_base::Lsn;
use shoal_base::hash::hash64_secret;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::sync::{Mutex, MutexGuard};
use shoal_common::hidden_key::is_hidden;
use shoal_common::key::{is_result, is_uncounted};
use shoal_log::format::RecordKind;
use shoal_log::{FETCHED, Record, fetch};
use shoal_value::value_bytes_of;

/// Rough number of bytes that a key costs besides its records and its own bytes: the list of its records, two places of the table, and its
/// place in the order.
pub const ENTRY_OVERHEAD_BYTES: usize = 144;

/// Keys that are sorted or read while the lock is held once.
const KEYS_AT_A_TIME: usize = 256;

/// The hash by which a memtable finds a key.
#[inline]
pub fn hash_of(key: &[u8]) -> u64 {
    hash64_secret(key)
}

/// The records of one tablet.
pub struct Memtable {
    inner: Mutex<Inner>,
    filter: Filter,
}

/// The part under the lock.
pub struct Inner {
    keys: Keys,
    /// The number of `keys` that are results of writes with a request id.
    result_keys: usize,
    /// The number of `keys` that are hidden: uploads and parts.
    hidden_keys: usize,
    frozen: bool,
    first: Option<Arc<Record>>,
    size: Size,
    /// Records that own extents and were superseded before they reached a tree. The next apply of this memtable frees
    /// their extents.
    dropped: Vec<Arc<Record>>,
    /// Puts that adopt the runs of parts.
    adopting: Vec<Arc<Record>>,
}

/// The contents of a memtable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The number of records.
    pub records: usize,
    /// Their bytes in memory, those of the tables included.
    pub bytes: usize,
    /// Blocks reserved for the apply.
    pub reserved_blocks: u64,
}

/// The keys that a memtable writes. All counts except `results` exclude the results of writes with a request id, uploads and parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Keys whose newest record is a put.
    pub puts: u64,
    /// Keys whose newest record is a delete.
    pub deletes: u64,
    /// Bytes of the values of `puts`.
    pub value_bytes: u64,
    /// Results of writes with a request id, deleted ones included.
    pub results: u64,
}

/// The change of a memtable's size by an insertion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// Bytes of the inserted record.
    pub bytes: usize,
    /// Records that a newer durable one superseded and that own no extents.
    pub dropped: Size,
}

impl Growth {
    /// The sum of two insertions' growth.
    #[inline]
    pub fn and(self, other: Self) -> Self {
        let (a, b) = (self.dropped, other.dropped);
        let dropped = Size {
            records: a.records + b.records,
            bytes: a.bytes + b.bytes,
            reserved_blocks: a.reserved_blocks + b.reserved_blocks,
        };
        Self { bytes: self.bytes + other.bytes, dropped }
    }
}

impl Memtable {
    /// A memtable with a table for about `keys` keys.
    pub fn new(filter_bits: usize, keys: usize) -> Self {
        let inner = Inner {
            keys: Keys::new(keys),
            result_keys: 0,
            hidden_keys: 0,
            frozen: false,
            first: None,
            size: Size::default(),
            dropped: Vec::new(),
            adopting: Vec::new(),
        };
        Self { inner: Mutex::new(inner), filter: Filter::new(filter_bits) }
    }

    /// The lock under which a write decides and inserts its record.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Inserts a record under the lock that `inner` holds. `hash` is the key's ([`hash_of`]).
    pub fn insert(&self, inner: &mut Inner, record: Arc<Record>, hash: u64, durable: Lsn) -> Growth {
        assert!(!inner.frozen, "a frozen memtable takes no records (R4, R6)");
        self.filter.add(hash);
        let mut growth = Growth { bytes: record.memory_bytes(), dropped: Size::default() };
        inner.size.records += 1;
        inner.size.reserved_blocks += record.reserved_blocks();
        if inner.first.is_none() {
            inner.first = Some(record.clone());
        }
        let key = record.key();
        let (key_bytes, is_result, is_hidden) = (key.len(), is_result(key), is_hidden(key));
        if record.adopts() && record.kind() == RecordKind::Put {
            inner.adopting.push(record.clone());
        }
        match inner.keys.entry(hash, record) {
            Some((versions, record)) => {
                growth.dropped = prune(versions, durable, &mut inner.dropped);
                versions.push(record);
            }
            None => {
                growth.bytes += key_bytes + ENTRY_OVERHEAD_BYTES;
                inner.result_keys += usize::from(is_result);
                inner.hidden_keys += usize::from(is_hidden);
            }
        }
        inner.size.bytes += growth.bytes;
        inner.size.records -= growth.dropped.records;
        inner.size.bytes -= growth.dropped.bytes;
        inner.size.reserved_blocks -= growth.dropped.reserved_blocks;
        growth
    }

    /// The newest durable record of `key`; the flag is true if the key is settled: no record of it is in flight.
    ///
    /// `durable` is called under the lock. An older value could make a key seem to have no record: a writer may have dropped its older
    /// records because a newer one became durable.
    #[inline]
    pub fn get(&self, key: &[u8], durable: impl FnOnce() -> Lsn) -> (Option<Arc<Record>>, bool) {
        let hash = hash_of(key);
        if !self.filter.may_contain(hash) {
            return (None, true);
        }
        let inner = self.inner.lock();
        let durable = durable();
        let Some(versions) = inner.keys.get(hash, key) else { return (None, true) };
        let is_settled = versions.last().is_none_or(|last| last.is_durable(durable));
        (newest_durable(versions, durable).cloned(), is_settled)
    }

    /// The newest record of `key`, durable or in flight.
    #[inline]
    pub fn newest(&self, key: &[u8]) -> Option<Arc<Record>> {
        let hash = hash_of(key);
        if !self.filter.may_contain(hash) {
            return None;
        }
        self.inner.lock().newest_of(hash, key).cloned()
    }

    /// Sorts the present keys, so that the next [`range`](Self::range) finds few unsorted ones. Yields after every [`KEYS_AT_A_TIME`] keys,
    /// so that other tasks run (R23).
    pub async fn order(&self) {
        let count = self.lock().keys.len();
        while !self.lock().keys.order_some(KEYS_AT_A_TIME, count) {
            let mut had_a_turn = false;
            poll_fn(|context| {
                if std::mem::replace(&mut had_a_turn, true) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
    }

    /// Up to `limit` keys from `start` on with their newest durable records, in order. A shorter result is the end. `durable` is called
    /// under the lock, as in [`get`](Self::get).
    pub fn range(
        &self,
        start: Bound<&[u8]>,
        limit: usize,
        durable: impl FnOnce() -> Lsn,
    ) -> Vec<Arc<Record>> {
        loop {
            let mut inner = self.inner.lock();
            if inner.keys.order_some(KEYS_AT_A_TIME, usize::MAX) {
                let durable = durable();
                let all = inner.keys.range(start);
                return all
                    .filter_map(|versions| newest_durable(versions, durable).cloned())
                    .take(limit)
                    .collect();
            }
        }
    }

    /// The newest records of all keys, in the order of the keys. The memtable must be frozen, and everything in it durable: all numbers are
    /// up to `last`. Reports the number of collected records to `collected` step by step.
    pub fn sorted(&self, last: Lsn, mut collected: impl FnMut(usize)) -> Vec<Arc<Record>> {
        let mut records = Vec::with_capacity(self.lock().keys.len());
        let mut seen = 0;
        loop {
            let inner = self.inner.lock();
            assert!(inner.frozen, "only a frozen memtable is applied");
            let some = inner.keys.of_numbers(seen, KEYS_AT_A_TIME);
            if some.is_empty() {
                break;
            }
            for some in some.chunks(FETCHED) {
                fetch(some.iter().filter_map(|versions| versions.last()).map(|record| &**record));
                for versions in some {
                    assert!(
                        versions.is_sorted_by(|one, next| one.lsn_raw() < next.lsn_raw())
                            && versions.last().is_none_or(|newest| newest.is_durable(last)),
                        "records of a key are in the order of their numbers, up to {last} (R4)"
                    );
                    records.extend(versions.last().cloned());
                }
            }
            let count = some.len();
            seen += count;
            drop(inner);
            collected(count);
        }
        sort_by_key(&mut records);
        records
    }

    /// The number of the first record, [`UNNUMBERED`] if it has none yet; `None` for an empty memtable.
    pub fn first_lsn(&self) -> Option<u64> {
        self.inner.lock().first.as_ref().map(|record| record.lsn_raw())
    }

    /// The size of the contents.
    #[inline]
    pub fn size(&self) -> Size {
        self.inner.lock().size
    }

    /// The keys that the memtable writes: exact up to `sample` keys, beyond that extrapolated from the first `sample` ones. The number of
    /// results is exact.
    pub fn written(&self, sample: usize) -> Written {
        let inner = self.inner.lock();
        let (mut seen, mut some) = (0, Written::default());
        for versions in inner.keys.of_numbers(0, sample) {
            if versions.last().is_some_and(|newest| is_uncounted(newest.key())) {
                continue;
            }
            seen += 1;
            match versions.last().map(|newest| (newest.kind(), newest)) {
                Some((RecordKind::Put, newest)) => {
                    some.puts += 1;
                    some.value_bytes += value_bytes_of(newest.body_bytes());
                }
                Some((RecordKind::Delete, _)) => some.deletes += 1,
                _ => {}
            }
        }
        let all = inner.keys.len().saturating_sub(inner.result_keys + inner.hidden_keys);
        let scaled = |of_some: u64| (u128::from(of_some) * all as u128 / seen.max(1)) as u64;
        Written {
            puts: scaled(some.puts),
            deletes: scaled(some.deletes),
            value_bytes: scaled(some.value_bytes),
            results: inner.result_keys as u64,
        }
    }
}

impl Inner {
    /// The number of keys.
    #[inline]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if it takes no more records.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Returns true if it has had no record.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// From now on it takes no more records: an apply can read it.
    pub fn freeze(&mut self) {
        assert!(!self.frozen, "a memtable is frozen once (R6)");
        self.frozen = true;
    }

    /// The newest record of `key`, durable or in flight.
    #[inline]
    pub fn newest(&self, key: &[u8]) -> Option<&Arc<Record>> {
        self.newest_of(hash_of(key), key)
    }

    /// Reads the first place of the search for a hash.
    #[inline]
    pub fn guess(&self, hash: u64) -> Guess {
        self.keys.guess(hash)
    }

    /// The records that an insertion of the guessed key probably reads.
    #[inline]
    pub fn guessed(&self, guess: Guess) -> &[Arc<Record>] {
        self.keys.guessed(guess).map_or(&[], |versions| versions)
    }

    fn newest_of(&self, hash: u64, key: &[u8]) -> Option<&Arc<Record>> {
        self.keys.get(hash, key).and_then(|versions| versions.last())
    }

    /// Takes the records that [`shoal_common::injected_bug::Bug::DroppedFreedAtOnce`] frees.
    pub fn take_superseded(&mut self) -> Vec<Arc<Record>> {
        std::mem::take(&mut self.dropped)
    }

    /// The puts that adopt the runs of parts. The memtable must be frozen, and everything in it durable: all numbers are up to `last`.
    pub fn adoptions(&self, last: Lsn) -> Adoptions {
        assert!(self.frozen, "only a frozen memtable is applied");
        let is_newest =
            |put: &Arc<Record>| self.newest(put.key()).is_some_and(|newest| Arc::ptr_eq(newest, put));
        // One that is not durable was withdrawn.
        let puts = self.adopting.iter().filter(|put| put.is_durable(last));
        let mut adoptions = Adoptions::of(puts.map(|put| (put.lsn(), is_newest(put))));
        if !adoptions.is_empty() {
            for versions in self.keys.of_numbers(0, self.keys.len()) {
                if let [.., part, newest] = &versions[..]
                    && adoptions.has(newest)
                {
                    adoptions.note_part(part);
                }
            }
            adoptions.sort();
        }
        adoptions
    }

    /// The records that an apply frees although they never reached the tree: all but the newest of each key, without those whose runs are
    /// adopted. The memtable must be frozen, and everything in it durable.
    pub fn dropped(&self, adoptions: &Adoptions) -> Vec<Arc<Record>> {
        assert!(self.frozen, "only a frozen memtable is applied");
        let superseded = |versions: &Versions| match &versions[..] {
            [] | [_] => Vec::new(),
            [before @ .., _part, newest] if adoptions.has(newest) => before.to_vec(),
            [before @ .., _newest] => before.to_vec(),
        };
        let of_keys = self.keys.of_numbers(0, self.keys.len()).iter().flat_map(superseded);
        self.dropped.iter().cloned().chain(of_keys).collect()
    }

    /// Removes records that found no room in the log: those of `records` in this memtable, which are all of its records that are not
    /// durable. Returns their size.
    pub fn withdraw<'a>(&mut self, records: impl Iterator<Item = &'a Arc<Record>>) -> Size {
        let before = self.size;
        for record in records {
            let hash = hash_of(record.key());
            if !self.keys.remove(hash, record) {
                continue;
            }
            self.size.records -= 1;
            self.size.bytes -= record.memory_bytes();
            self.size.reserved_blocks -= record.reserved_blocks();
            // No record after the first one is durable either.
            self.first.take_if(|first| Arc::ptr_eq(first, record));
        }
        if self.first.is_none() && before.records > 0 {
            assert!(
                self.size.records == 0 && self.size.reserved_blocks == 0,
                "records stay after a first one was withdrawn (R4)"
            );
            self.keys = Keys::new(0);
            self.size = Size::default();
        }
        Size {
            records: before.records - self.size.records,
            bytes: before.bytes - self.size.bytes,
            reserved_blocks: before.reserved_blocks - self.size.reserved_blocks,
        }
    }
}

fn newest_durable(versions: &[Arc<Record>], durable: Lsn) -> Option<&Arc<Record>> {
    versions.iter().rev().find(|record| record.is_durable(durable))
}

/// Drops records that a newer durable record supersedes, and returns their size. Superseded records that own extents still count: they go
/// to `dropped`, for the apply to free. A reader that found a dropped record holds the view, so its extents stay at least until the apply
/// of this memtable (R16).
fn prune(versions: &mut Versions, durable: Lsn, dropped: &mut Vec<Arc<Record>>) -> Size {
    let mut gone = Size::default();
    if let Some(newest) = versions.iter().rposition(|record| record.is_durable(durable)) {
        for record in versions.drain(..newest) {
            if record.owned().is_empty() {
                gone.records += 1;
                gone.bytes += record.memory_bytes();
                gone.reserved_blocks += record.reserved_blocks();
            } else {
                dropped.push(record);
            }
        }
    }
    gone
}

/// Recognises most absent keys with two memory reads: most gets must not pay for a lookup under the lock.
struct Filter {
    words: Box<[AtomicU64]>,
}

impl Filter {
    fn new(bits: usize) -> Self {
        let words = (bits / 64).next_power_of_two().max(1);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    fn places(&self, hash: u64) -> [(usize, u64); 2] {
        [hash, hash.rotate_right(32)].map(|half| {
            let bit = half as u32 as usize & (self.words.len() * 64 - 1);
            (bit / 64, 1_u64 << (bit % 64))
        })
    }

    fn add(&self, hash: u64) {
        for (word, bit) in self.places(hash) {
            // A set bit was set under the same lock: a load costs less than a write.
            if self.words[word].load(Ordering::Relaxed) & bit == 0 {
                self.words[word].fetch_or(bit, Ordering::Release);
            }
        }
    }

    /// Pairs with `add`, which comes before the record can become durable: a reader that must see the record sees the bits.
    fn may_contain(&self, hash: u64) -> bool {
        self.places(hash).iter().all(|&(word, bit)| self.words[word].load(Ordering::Acquire) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::testing::record;

    const KEY: &[u8] = b"key";

    fn insert(memtable: &Memtable, lsn: u64, durable: u64) {
        memtable.insert(&mut memtable.lock(), record(KEY, lsn), hash_of(KEY), Lsn(durable));
    }

    /// Overwrites a key while a reader looks at it: after the reader calls `durable`, the next record becomes durable,
    /// and a writer drops the record that it supersedes.
    fn read_while_overwritten(read: impl FnOnce(&Memtable, &mut dyn FnMut() -> Lsn) -> Option<Arc<Record>>) {
        let memtable = Memtable::new(64, 0);
        insert(&memtable, 1, 0);
        insert(&memtable, 2, 1);
        std::thread::scope(|scope| {
            let memtable = &memtable;
            let found = read(memtable, &mut || {
                let (done, written) = mpsc::channel();
                scope.spawn(move || {
                    insert(memtable, 3, 2);
                    let _ = done.send(());
                });
                // The writer cannot finish while the reader holds the lock; without the lock it finishes soon.
                let _ = written.recv_timeout(Duration::from_millis(50));
                Lsn(1)
            });
            assert_eq!(found.map(|record| record.lsn()), Some(Lsn(1)));
        });
    }

    #[test]
    fn a_key_that_is_overwritten_is_never_absent() {
        read_while_overwritten(|memtable, durable| memtable.get(KEY, durable).0);
        read_while_overwritten(|memtable, durable| memtable.range(Bound::Unbounded, 8, durable).pop());
    }

    /// A writer that is woken for new room while the records are collected finds the memtable's lock free.
    #[test]
    fn records_are_collected_some_at_a_time() {
        let memtable = Memtable::new(64, 0);
        for which in 0..3 * KEYS_AT_A_TIME as u64 / 2 {
            let key = which.to_le_bytes();
            memtable.insert(&mut memtable.lock(), record(&key, which + 1), hash_of(&key), Lsn(which));
        }
        memtable.lock().freeze();
        let mut counts = Vec::new();
        let sorted = memtable.sorted(Lsn(1 << 20), |count| {
            assert!(memtable.inner.try_lock().is_some());
            counts.push(count);
        });
        assert_eq!(counts, [KEYS_AT_A_TIME, KEYS_AT_A_TIME / 2]);
        assert!(sorted.is_sorted_by(|one, next| one.key() < next.key()) && sorted.len() == 384);
    }
}
