//! A tablet's overlay: what the log holds and the tree does not yet.
//!
//! Writers put a record in and push it to the committer's queue under one lock (R4). A record is *in flight* until the
//! batch that holds it was flushed; readers skip it until then. Newest durable and in-flight records of a key are kept,
//! older ones are dropped and their extents noted for the next apply to free.

mod keys;

use std::future::poll_fn;
use std::ops::Bound;
use std::sync::Arc;
use std::task::Poll;

use shoal_base::Lsn;
use shoal_base::hash::hash64_secret;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::sync::{Mutex, MutexGuard};

use crate::log::format::RecordKind;
use crate::log::record::Record;
use keys::{Keys, Versions, sort_by_key};

/// What a key costs besides its records and its bytes, roughly: its records' place, two places of the table, and its place in the
/// order.
pub(crate) const ENTRY_OVERHEAD_BYTES: usize = 144;

/// Keys that are put in order, or looked at, under one taking of the lock.
const KEYS_AT_A_TIME: usize = 256;

/// The hash of a key by which an overlay finds it.
pub(crate) fn hash_of(key: &[u8]) -> u64 {
    hash64_secret(key)
}

/// Records of one tablet.
pub(crate) struct Overlay {
    inner: Mutex<Inner>,
    filter: Filter,
}

/// The part under the lock.
pub(crate) struct Inner {
    keys: Keys,
    frozen: bool,
    first: Option<Arc<Record>>,
    size: Size,
    /// Superseded before they reached a tree, and owners of extents; the next apply of this overlay frees their extents.
    dropped: Vec<Arc<Record>>,
}

/// The contents of an overlay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub records: usize,
    pub bytes: usize,
    /// Blocks promised to the apply.
    pub promised: u64,
}

/// The change of the overlay's size by an insertion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Growth {
    /// The record that came.
    pub bytes: usize,
    /// What went: records that a newer durable one superseded, and that own nothing.
    pub dropped: Size,
}

impl Growth {
    /// This insertion and another one.
    pub(crate) fn and(self, other: Self) -> Self {
        let (a, b) = (self.dropped, other.dropped);
        let dropped = Size {
            records: a.records + b.records,
            bytes: a.bytes + b.bytes,
            promised: a.promised + b.promised,
        };
        Self { bytes: self.bytes + other.bytes, dropped }
    }
}

impl Overlay {
    /// An overlay that will probably have about `keys` keys.
    pub(crate) fn new(filter_bits: usize, keys: usize) -> Self {
        let inner = Inner {
            keys: Keys::new(keys),
            frozen: false,
            first: None,
            size: Size::default(),
            dropped: Vec::new(),
        };
        Self { inner: Mutex::new(inner), filter: Filter::new(filter_bits) }
    }

    /// The lock under which a write decides and takes its place.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Inserts under the lock that `inner` holds. `hash` is the key's ([`hash_of`]).
    pub(crate) fn insert(&self, inner: &mut Inner, record: Arc<Record>, hash: u64, durable: Lsn) -> Growth {
        assert!(!inner.frozen, "a frozen overlay takes no records");
        self.filter.add(hash);
        let mut growth = Growth { bytes: record.memory_bytes(), dropped: Size::default() };
        inner.size.records += 1;
        inner.size.promised += record.promised();
        if inner.first.is_none() {
            inner.first = Some(record.clone());
        }
        let key_bytes = record.key().len();
        match inner.keys.entry(hash, record) {
            Some((versions, record)) => {
                growth.dropped = prune(versions, durable, &mut inner.dropped);
                versions.push(record);
            }
            None => growth.bytes += key_bytes + ENTRY_OVERHEAD_BYTES,
        }
        inner.size.bytes += growth.bytes;
        inner.size.records -= growth.dropped.records;
        inner.size.bytes -= growth.dropped.bytes;
        inner.size.promised -= growth.dropped.promised;
        growth
    }

    /// The newest record of `key` that is durable, and whether it is settled: nothing of the key is in flight.
    ///
    /// `durable` is asked under the lock: an answer from before could be older than what a writer meanwhile dropped older
    /// records by, and the key would seem to have none.
    pub(crate) fn get(&self, key: &[u8], durable: impl FnOnce() -> Lsn) -> (Option<Arc<Record>>, bool) {
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

    /// The newest record of `key`, in flight or not.
    pub(crate) fn newest(&self, key: &[u8]) -> Option<Arc<Record>> {
        let hash = hash_of(key);
        if !self.filter.may_contain(hash) {
            return None;
        }
        self.inner.lock().newest_of(hash, key).cloned()
    }

    /// Puts the keys in order that there are now: for [`range`](Self::range), which then finds few that are not. Others have their
    /// turn every some keys (R23).
    pub(crate) async fn order(&self) {
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

    /// Up to `limit` keys from `start` on with their newest durable record, in order. Where it gives fewer, there are
    /// no more. `durable` is asked under the lock, as in [`get`](Self::get).
    pub(crate) fn range(
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

    /// The newest records of all keys, in order of the keys. Only of a frozen overlay, once everything in it is durable.
    pub(crate) fn sorted(&self) -> Vec<Arc<Record>> {
        let mut records = Vec::with_capacity(self.lock().keys.len());
        loop {
            let inner = self.inner.lock();
            assert!(inner.frozen, "only a frozen overlay is applied");
            let some = inner.keys.of_numbers(records.len(), KEYS_AT_A_TIME);
            if some.is_empty() {
                break;
            }
            records.extend(some.iter().filter_map(|versions| versions.last().cloned()));
        }
        sort_by_key(&mut records);
        records
    }

    /// The number of the first record, [`UNNUMBERED`] where it has none yet; none in an empty overlay.
    pub(crate) fn first_lsn(&self) -> Option<u64> {
        self.inner.lock().first.as_ref().map(|record| record.lsn_raw())
    }

    /// Its contents.
    pub(crate) fn size(&self) -> Size {
        self.inner.lock().size
    }

    /// About how many of its keys it writes, and how many it deletes: exact up to `sample` keys, and beyond in their proportion.
    pub(crate) fn puts_and_deletes(&self, sample: usize) -> (u64, u64) {
        let inner = self.inner.lock();
        let looked_at = inner.keys.of_numbers(0, sample);
        let is_put =
            |versions: &&Versions| versions.last().is_some_and(|last| last.kind() == RecordKind::Put);
        let puts = looked_at.iter().filter(is_put).count();
        let all_puts = inner.keys.len() * puts / looked_at.len().max(1);
        (all_puts as u64, (inner.keys.len() - all_puts) as u64)
    }
}

impl Inner {
    /// How many keys it has.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// The newest record of `key`, in flight or not.
    pub(crate) fn newest(&self, key: &[u8]) -> Option<&Arc<Record>> {
        self.newest_of(hash_of(key), key)
    }

    fn newest_of(&self, hash: u64, key: &[u8]) -> Option<&Arc<Record>> {
        self.keys.get(hash, key).and_then(|versions| versions.last())
    }

    /// What [`crate::testing::injected_bug::Bug::DroppedFreedAtOnce`] frees.
    pub(crate) fn take_superseded(&mut self) -> Vec<Arc<Record>> {
        std::mem::take(&mut self.dropped)
    }

    /// Takes what an apply frees although it never was in the tree: of each key all but the newest record. Only once
    /// everything in the frozen overlay is durable.
    pub(crate) fn take_dropped(&mut self) -> Vec<Arc<Record>> {
        assert!(self.frozen, "only a frozen overlay is applied");
        let mut dropped = std::mem::take(&mut self.dropped);
        for versions in self.keys.all_mut() {
            while versions.len() > 1 {
                dropped.push(versions.remove(0));
            }
        }
        dropped
    }
}

fn newest_durable(versions: &[Arc<Record>], durable: Lsn) -> Option<&Arc<Record>> {
    versions.iter().rev().find(|record| record.is_durable(durable))
}

/// Drops what a newer durable record supersedes, and gives what that took; only what owns extents leaves something to be freed,
/// and still counts. A reader that found the dropped record holds the view, so its extents stay until the apply of this
/// overlay and longer (R16).
fn prune(versions: &mut Versions, durable: Lsn, dropped: &mut Vec<Arc<Record>>) -> Size {
    let mut gone = Size::default();
    if let Some(newest) = versions.iter().rposition(|record| record.is_durable(durable)) {
        for record in versions.drain(..newest) {
            if record.owned().is_empty() {
                gone.records += 1;
                gone.bytes += record.memory_bytes();
                gone.promised += record.promised();
            } else {
                dropped.push(record);
            }
        }
    }
    gone
}

/// Tells most absent keys at the cost of two memory reads: most gets must not pay for an ordered lookup.
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
            // Where the bit is set, whoever set it did so under the same lock: looking costs less than writing.
            if self.words[word].load(Ordering::Relaxed) & bit == 0 {
                self.words[word].fetch_or(bit, Ordering::Release);
            }
        }
    }

    /// Pairs with `add`, which comes before the record can become durable: a reader that must see it does.
    fn may_contain(&self, hash: u64) -> bool {
        self.places(hash).iter().all(|&(word, bit)| self.words[word].load(Ordering::Acquire) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use shoal_base::TabletId;

    use super::*;
    use crate::log::format::{RecordKind, encode_record};

    const KEY: &[u8] = b"key";

    fn record(lsn: u64) -> Arc<Record> {
        Arc::new(Record::recovered(encode_record(RecordKind::Put, TabletId(0), KEY, &[], false), Lsn(lsn)))
    }

    fn insert(overlay: &Overlay, lsn: u64, durable: u64) {
        overlay.insert(&mut overlay.lock(), record(lsn), hash_of(KEY), Lsn(durable));
    }

    /// A reader asks what is durable. Meanwhile the next record becomes durable, and a writer drops what it supersedes.
    fn read_while_overwritten(read: impl FnOnce(&Overlay, &mut dyn FnMut() -> Lsn) -> Option<Arc<Record>>) {
        let overlay = Overlay::new(64, 0);
        insert(&overlay, 1, 0);
        insert(&overlay, 2, 1);
        std::thread::scope(|scope| {
            let overlay = &overlay;
            let found = read(overlay, &mut || {
                let (done, written) = mpsc::channel();
                scope.spawn(move || {
                    insert(overlay, 3, 2);
                    let _ = done.send(());
                });
                // Under the lock the writer cannot be through; without it, it is soon.
                let _ = written.recv_timeout(Duration::from_millis(50));
                Lsn(1)
            });
            assert_eq!(found.map(|record| record.lsn()), Some(Lsn(1)));
        });
    }

    #[test]
    fn a_key_that_is_overwritten_is_never_absent() {
        read_while_overwritten(|overlay, durable| overlay.get(KEY, durable).0);
        read_while_overwritten(|overlay, durable| overlay.range(Bound::Unbounded, 8, durable).pop());
    }
}
