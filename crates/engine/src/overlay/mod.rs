//! A tablet's overlay: what the log holds and the tree does not yet.
//!
//! Writers put a record in and push it to the committer's queue under one lock (R4). A record is *in flight* until the
//! batch that holds it was flushed; readers skip it until then. Newest durable and in-flight records of a key are kept,
//! older ones are dropped and their extents noted for the next apply to free.

mod record;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use shoal_base::Lsn;
use smallvec::SmallVec;

pub(crate) use record::{Record, UNNUMBERED};

/// What an entry of the map costs besides its record's bytes and its key, roughly.
pub(crate) const ENTRY_OVERHEAD_BYTES: usize = 224;

/// Records of one tablet.
pub(crate) struct Overlay {
    inner: Mutex<Inner>,
    filter: Filter,
}

/// What the lock guards.
pub(crate) struct Inner {
    map: BTreeMap<Box<[u8]>, SmallVec<[Arc<Record>; 1]>>,
    frozen: bool,
    first: Option<Arc<Record>>,
    records: usize,
    bytes: usize,
    /// Blocks promised to the apply.
    promised: u64,
    /// Superseded before they reached a tree, and owners of extents; the next apply of this overlay frees their extents.
    dropped: Vec<Arc<Record>>,
}

impl Overlay {
    pub(crate) fn new(filter_bits: usize) -> Self {
        let inner = Inner {
            map: BTreeMap::new(),
            frozen: false,
            first: None,
            records: 0,
            bytes: 0,
            promised: 0,
            dropped: Vec::new(),
        };
        Self { inner: Mutex::new(inner), filter: Filter::new(filter_bits) }
    }

    /// The lock under which a write decides and takes its place.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Inserts under the lock that `inner` holds; `promised` blocks are for the record's apply. Gives the bytes that the
    /// overlay grew by.
    pub(crate) fn insert(
        &self,
        inner: &mut Inner,
        record: Arc<Record>,
        promised: u64,
        durable: Lsn,
    ) -> usize {
        assert!(!inner.frozen, "a frozen overlay takes no records");
        self.filter.add(record.key());
        let before = inner.bytes;
        inner.bytes += record.memory_bytes();
        inner.records += 1;
        inner.promised += promised;
        if inner.first.is_none() {
            inner.first = Some(record.clone());
        }
        match inner.map.get_mut(record.key()) {
            Some(versions) => {
                prune(versions, durable, &mut inner.dropped);
                versions.push(record);
            }
            None => {
                inner.bytes += record.key().len() + ENTRY_OVERHEAD_BYTES;
                inner.map.insert(record.key().into(), SmallVec::from_iter([record]));
            }
        }
        inner.bytes - before
    }

    /// The newest record of `key` that is durable, and whether it is settled: nothing of the key is in flight.
    ///
    /// `durable` is asked under the lock: an answer from before could be older than what a writer meanwhile dropped older
    /// records by, and the key would seem to have none.
    pub(crate) fn get(&self, key: &[u8], durable: impl FnOnce() -> Lsn) -> (Option<Arc<Record>>, bool) {
        if !self.filter.may_contain(key) {
            return (None, true);
        }
        let inner = self.inner.lock();
        let durable = durable();
        let Some(versions) = inner.map.get(key) else { return (None, true) };
        let is_settled = versions.last().is_none_or(|last| last.is_durable(durable));
        (newest_durable(versions, durable).cloned(), is_settled)
    }

    /// The newest record of `key`, in flight or not.
    pub(crate) fn newest(&self, key: &[u8]) -> Option<Arc<Record>> {
        if !self.filter.may_contain(key) {
            return None;
        }
        self.inner.lock().newest(key).cloned()
    }

    /// Up to `limit` keys from `start` on with their newest durable record, in order. Where it gives fewer, there are
    /// no more. `durable` is asked under the lock, as in [`get`](Self::get).
    pub(crate) fn range(
        &self,
        start: Bound<&[u8]>,
        limit: usize,
        durable: impl FnOnce() -> Lsn,
    ) -> Vec<Arc<Record>> {
        let inner = self.inner.lock();
        let durable = durable();
        inner
            .map
            .range::<[u8], _>((start, Bound::Unbounded))
            .filter_map(|(_, versions)| newest_durable(versions, durable).cloned())
            .take(limit)
            .collect()
    }

    /// The number of the first record, [`UNNUMBERED`] where it has none yet; none in an empty overlay.
    pub(crate) fn first_lsn(&self) -> Option<u64> {
        self.inner.lock().first.as_ref().map(|record| record.lsn_raw())
    }

    /// Records, bytes, and blocks promised to the apply.
    pub(crate) fn size(&self) -> (usize, usize, u64) {
        let inner = self.inner.lock();
        (inner.records, inner.bytes, inner.promised)
    }
}

impl Inner {
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
        self.map.get(key).and_then(|versions| versions.last())
    }

    /// What [`crate::plant::Plant::DroppedFreedAtOnce`] frees.
    pub(crate) fn take_superseded(&mut self) -> Vec<Arc<Record>> {
        std::mem::take(&mut self.dropped)
    }

    /// Takes what an apply frees although it never was in the tree: of each key all but the newest record. Only once
    /// everything in the frozen overlay is durable.
    pub(crate) fn take_dropped(&mut self) -> Vec<Arc<Record>> {
        assert!(self.frozen, "only a frozen overlay is applied");
        let mut dropped = std::mem::take(&mut self.dropped);
        for versions in self.map.values_mut() {
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

/// Drops what a newer durable record supersedes; only what owns extents leaves something to be freed. A reader that found
/// the dropped record holds the view, so its extents stay until the apply of this overlay and longer (R16).
fn prune(versions: &mut SmallVec<[Arc<Record>; 1]>, durable: Lsn, dropped: &mut Vec<Arc<Record>>) {
    if let Some(newest) = versions.iter().rposition(|record| record.is_durable(durable)) {
        dropped.extend(versions.drain(..newest).filter(|record| !record.owned().is_empty()));
    }
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

    fn places(&self, key: &[u8]) -> [(usize, u64); 2] {
        let hash = shoal_base::hash::hash64(key);
        [hash, hash.rotate_right(32)].map(|half| {
            let bit = half as u32 as usize & (self.words.len() * 64 - 1);
            (bit / 64, 1_u64 << (bit % 64))
        })
    }

    fn add(&self, key: &[u8]) {
        for (word, bit) in self.places(key) {
            self.words[word].fetch_or(bit, Ordering::Release);
        }
    }

    /// Pairs with `add`, which comes before the record can become durable: a reader that must see it does.
    fn may_contain(&self, key: &[u8]) -> bool {
        self.places(key).iter().all(|&(word, bit)| self.words[word].load(Ordering::Acquire) & bit != 0)
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
        overlay.insert(&mut overlay.lock(), record(lsn), 0, Lsn(durable));
    }

    /// A reader asks what is durable. Meanwhile the next record becomes durable, and a writer drops what it supersedes.
    fn read_while_overwritten(read: impl FnOnce(&Overlay, &mut dyn FnMut() -> Lsn) -> Option<Arc<Record>>) {
        let overlay = Overlay::new(64);
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
