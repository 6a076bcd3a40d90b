//! The keys of tablets in order, as listings read them.
//!
//! Each tablet has a stream: active memtable, frozen memtable and tree under one view, the newest record of a key first.
//! [`Merge`] makes one order of all streams. A scan over cached pages never waits, so it yields by itself: after some
//! microseconds the other work of its thread gets its turn, for any keys (`docs/limits.md`).

use std::cmp::{Ordering, Reverse};
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use shoal_base::limits::{LIST_PASSED_MAX, SCAN_LOOK_KEYS, SCAN_TURN_NS};
use shoal_base::list::DamagedRange;
use shoal_base::task::yield_now;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::RESERVED;
use shoal_log::format::RecordKind;
use shoal_log::{Committer, Record};
use shoal_memtable::Memtable;
use shoal_tablets::tablet::damage;
use shoal_tablets::tablet::tree_io::{PoolPage, PoolPages, tree_of};
use shoal_tablets::tablet::view::View;
use shoal_tree::layers::Trees;
use shoal_tree::layers::cursor::{DecidedKey, Next, TreesCursor};
use shoal_tree::{Found, Gap};

use crate::read::get::{FoundEntry, entry_of_leaf, entry_of_record, entry_without_value};
use crate::store::Inner;

/// Records of a memtable that are read at a time under its lock.
pub(super) const CHUNK_RECORDS: usize = 512;

/// Damaged ranges that one page lists separately; a page that met this number stops if it can. If it has no key
/// to stop after, it joins further ranges with their neighbours of the same tablet.
pub const DAMAGED_RANGES_MAX: usize = 64;

/// The turn of a scan on its thread.
pub(super) struct Pace<'a> {
    inner: &'a Inner,
    /// Keys examined in this turn.
    examined: usize,
    /// The start of the turn.
    began_ns: u64,
}

impl<'a> Pace<'a> {
    pub(super) fn new(inner: &'a Inner) -> Self {
        Self { inner, examined: 0, began_ns: inner.now_ns() }
    }

    /// Counts an examined key. Yields after [`SCAN_TURN_NS`] or [`LIST_PASSED_MAX`] keys, whichever comes first.
    pub(super) async fn examine(&mut self) {
        if self.is_over() {
            self.yield_turn().await;
        }
    }

    /// Counts an examined key. Returns true if the turn is over.
    #[inline]
    fn is_over(&mut self) -> bool {
        self.examined += 1;
        if !self.examined.is_multiple_of(SCAN_LOOK_KEYS) || injected(Bug::PageWithoutEnd) {
            return false;
        }
        let took_ns = self.inner.now_ns().saturating_sub(self.began_ns);
        took_ns >= SCAN_TURN_NS || self.examined >= LIST_PASSED_MAX
    }

    async fn yield_turn(&mut self) {
        yield_now().await;
        (self.examined, self.began_ns) = (0, self.inner.now_ns());
    }
}

/// A key that a tablet has, and its object if it was not deleted.
type Item = (Vec<u8>, Option<FoundEntry>);

/// The object of a key before it is decoded: a stream moves it several times, and an entry is much longer.
enum Undecoded {
    /// The bytes in a leaf.
    Leaf(Found<PoolPage>),
    /// The record of a memtable.
    Record(Arc<Record>),
}

/// The same as an [`Item`], not decoded.
type UndecodedItem = (Vec<u8>, Option<Undecoded>);

/// The streams of all tablets in one order.
pub(super) struct Merge<'a> {
    pub(super) streams: Vec<TabletStream<'a>>,
    pace: Pace<'a>,
    heap: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    /// The item of each stream at its key in the heap; `None`: read the stream on from there.
    waiting: Vec<Option<Option<Undecoded>>>,
    /// The damaged ranges of encoded keys.
    pub(super) damaged: Vec<DamagedRange>,
}

impl<'a> Merge<'a> {
    pub(super) fn new(inner: &'a Inner, streams: Vec<TabletStream<'a>>) -> Self {
        let waiting = streams.iter().map(|_| None).collect();
        Self { streams, pace: Pace::new(inner), heap: BinaryHeap::new(), waiting, damaged: Vec::new() }
    }

    /// Notes a damaged range; see [`DAMAGED_RANGES_MAX`].
    pub(super) fn add_damaged(&mut self, inner: &Inner, range: DamagedRange) {
        inner.tablets.met.note(&range);
        damage::add(&mut self.damaged, range, DAMAGED_RANGES_MAX);
    }

    pub(super) async fn seek(&mut self, start: Vec<u8>) -> Result<()> {
        self.heap.clear();
        self.waiting.fill_with(|| None);
        // All streams start their reads before the first one waits.
        for stream in &mut self.streams {
            stream.approach(&start);
        }
        for index in 0..self.streams.len() {
            let sought = self.streams[index].pull_leaf().await;
            self.take_damaged(index);
            sought?;
            self.pull(index).await?;
        }
        Ok(())
    }

    async fn pull(&mut self, index: usize) -> Result<()> {
        let next = self.streams[index].next().await;
        self.take_damaged(index);
        match next? {
            Some(Next::Entry((key, found))) => {
                assert!(self.waiting[index].is_none(), "a stream has one key in the heap");
                self.waiting[index] = Some(found);
                self.heap.push(Reverse((key, index)));
            }
            Some(Next::Behind(key)) => self.heap.push(Reverse((key, index))),
            None => {}
        }
        Ok(())
    }

    #[inline]
    fn take_damaged(&mut self, index: usize) {
        if self.streams[index].damaged.is_empty() {
            return;
        }
        let inner = self.streams[index].inner;
        for range in std::mem::take(&mut self.streams[index].damaged) {
            self.add_damaged(inner, range);
        }
    }

    /// Decodes the object of `key`. An entry of a leaf that cannot be decoded is noted as damage; then there is none.
    #[inline]
    fn decode(&mut self, index: usize, key: &[u8], found: Undecoded) -> Result<Option<FoundEntry>> {
        let stream = &self.streams[index];
        let decoded = match found {
            Undecoded::Record(record) => return entry_of_record(&record).map(Some),
            Undecoded::Leaf(found) if stream.is_without_values => entry_without_value(&found),
            Undecoded::Leaf(found) => entry_of_leaf(found),
        };
        match decoded {
            Ok(found) => Ok(Some(found)),
            Err(error) => {
                let (inner, tablet) = (stream.inner, stream.view.tablet);
                self.add_damaged(inner, gap_of_entry(key, &error).in_tablet(tablet));
                Ok(None)
            }
        }
    }

    /// The next key, and its object if it was not deleted: the caller bounds the number of keys that it examines. The
    /// other work of the thread gets its turn in between. Takes the memory of `spare` for a key: that of the last one, if it is not needed.
    #[inline]
    pub(super) async fn next(&mut self, spare: &mut Vec<u8>) -> Result<Option<Item>> {
        loop {
            if self.pace.is_over() {
                self.pace.yield_turn().await;
            }
            let Some(mut top) = self.heap.peek_mut() else { return Ok(None) };
            let index = top.0.1;
            let found = self.waiting[index].take();
            let stream = &mut self.streams[index];
            let next = match stream.next_in_memory(spare) {
                Some(next) => Ok(next),
                None => stream.next().await,
            };
            let key = match next {
                Ok(Some(next)) => {
                    let (key, item) = match next {
                        Next::Entry((key, item)) => (key, Some(item)),
                        Next::Behind(key) => (key, None),
                    };
                    self.waiting[index] = item;
                    let key = std::mem::replace(&mut top.0.0, key);
                    drop(top);
                    self.take_damaged(index);
                    key
                }
                ended => {
                    let Reverse((key, _)) = PeekMut::pop(top);
                    self.take_damaged(index);
                    ended?;
                    key
                }
            };
            match found {
                Some(None) => return Ok(Some((key, None))),
                Some(Some(found)) => {
                    if let Some(found) = self.decode(index, &key, found)? {
                        return Ok(Some((key, Some(found))));
                    }
                }
                None => {}
            }
        }
    }
}

/// The next entry of a tablet's trees.
enum Head {
    /// It is not read yet.
    Unread,
    Next(Next<UndecodedItem>),
    /// There is none.
    End,
}

/// The keys of one tablet, in order, under one view.
pub(super) struct TabletStream<'a> {
    queues: Vec<RecordQueue<'a>>,
    cursor: TreesCursor<PoolPages<'a>>,
    /// The trees' next entry.
    leaf: Head,
    /// True if entries of leaves come without their values.
    is_without_values: bool,
    /// The damage met since it was last taken.
    damaged: Vec<DamagedRange>,
    inner: &'a Inner,
    pub(super) view: Arc<View>,
}

impl<'a> TabletStream<'a> {
    pub(super) fn new(
        inner: &'a Inner,
        view: Arc<View>,
        end: Option<&[u8]>,
        expected: Option<usize>,
    ) -> Self {
        let trees = view.trees.clone();
        Self::with_trees(inner, view, &trees, end, expected)
    }

    /// The keys of the memtables of `view` and of `trees`.
    pub(super) fn with_trees(
        inner: &'a Inner,
        view: Arc<View>,
        trees: &Trees,
        end: Option<&[u8]>,
        expected: Option<usize>,
    ) -> Self {
        let memtables = [Some(view.active.clone()), view.frozen.clone()];
        let chunk = expected.unwrap_or(CHUNK_RECORDS).min(CHUNK_RECORDS);
        let queues = memtables
            .into_iter()
            .flatten()
            .map(|memtable| RecordQueue::new(memtable, &inner.log.committer, chunk))
            .collect();
        let tree = tree_of(inner.identity, view.tablet);
        // An unreadable block counts as damaged here: the listing has the rest.
        let source = PoolPages::new(&inner.pool).giving_up(true).of_pass();
        // Reserved keys sort after all objects.
        let cursor = TreesCursor::new(tree, &source, trees, end.or(Some(&[RESERVED])), expected);
        Self {
            queues,
            cursor,
            leaf: Head::Unread,
            is_without_values: false,
            damaged: Vec::new(),
            inner,
            view,
        }
    }

    /// The same for a reader that needs no values: no entry keeps its leaf pinned.
    pub(super) fn without_values(self) -> Self {
        Self { is_without_values: true, ..self }
    }

    /// Moves to `start` through the pages in memory; [`pull_leaf`](Self::pull_leaf) reads the others.
    fn approach(&mut self, start: &[u8]) {
        for queue in &mut self.queues {
            queue.seek(start);
        }
        self.cursor.approach(start);
        self.leaf = Head::Unread;
    }

    /// Prefetches the leaves with about the next `keys` keys, for a listing that continues after this one.
    pub(super) fn read_ahead(&mut self, keys: usize) {
        self.cursor.read_ahead(keys);
    }

    /// Reads the trees' next entry, if it is not read yet.
    async fn pull_leaf(&mut self) -> Result<()> {
        if matches!(self.leaf, Head::Unread) {
            let next = self.cursor.next_key().await;
            // Neighbours are joined: a part of a tree that is all damage takes the memory of one page of it.
            for gap in self.cursor.take_gaps() {
                damage::add(&mut self.damaged, gap.in_tablet(self.view.tablet), DAMAGED_RANGES_MAX);
            }
            match next? {
                Some(Next::Entry(entry)) => self.leaf = Head::Next(undecoded(entry)),
                Some(Next::Behind(key)) => self.leaf = Head::Next(Next::Behind(key)),
                None => self.leaf = Head::End,
            }
        }
        Ok(())
    }

    /// The next key. Damage is returned once; then the trees are read on.
    async fn next(&mut self) -> Result<Option<Next<UndecodedItem>>> {
        self.pull_leaf().await?;
        for queue in &mut self.queues {
            queue.fill().await;
        }
        Ok(self.take())
    }

    /// The same if nothing has to be read or sorted for it. `None`: call [`next`](Self::next).
    #[inline]
    fn next_in_memory(&mut self, spare: &mut Vec<u8>) -> Option<Option<Next<UndecodedItem>>> {
        if self.queues.iter().any(RecordQueue::is_unread) {
            return None;
        }
        if let Head::Unread = self.leaf {
            self.leaf = Head::Next(undecoded(self.cursor.next_key_in_memory(spare)?));
        }
        Some(self.take())
    }

    /// Takes the least of the next keys of memtables and trees, all of which are read.
    #[inline]
    fn take(&mut self) -> Option<Next<UndecodedItem>> {
        let record = self.queues.iter().filter_map(|queue| queue.front()).min_by(|a, b| a.key().cmp(b.key()));
        let Head::Next(leaf) = &self.leaf else {
            assert!(matches!(self.leaf, Head::End), "the trees' next entry is read");
            return record.cloned().map(|record| self.take_record(record));
        };
        let (key, is_damage) = match leaf {
            Next::Entry((key, _)) => (key, false),
            Next::Behind(key) => (key, true),
        };
        let order = record.map_or(Ordering::Less, |record| key[..].cmp(record.key()));
        // After damage, the key of the record may be the next one of the trees.
        if order == Ordering::Less || (order == Ordering::Equal && is_damage) {
            let Head::Next(leaf) = std::mem::replace(&mut self.leaf, Head::Unread) else { return None };
            return Some(leaf);
        }
        let record = record.cloned();
        if order == Ordering::Equal {
            self.leaf = Head::Unread;
        }
        record.map(|record| self.take_record(record))
    }

    /// Takes `record`, the least one of all memtables, out of their queues.
    fn take_record(&mut self, record: Arc<Record>) -> Next<UndecodedItem> {
        // The first queue with this key is the newer memtable: `min_by` returns the first of equal items.
        for queue in &mut self.queues {
            queue.pop_if(record.key());
        }
        let key = record.key().to_vec();
        Next::Entry((key, (record.kind() == RecordKind::Put).then_some(Undecoded::Record(record))))
    }
}

/// The next entry of trees as an item.
#[inline]
fn undecoded((key, found): DecidedKey<PoolPage>) -> Next<UndecodedItem> {
    Next::Entry((key, found.map(Undecoded::Leaf)))
}

/// The range of an entry that cannot be decoded: its own key.
pub(super) fn gap_of_entry(key: &[u8], error: &Error) -> Gap {
    Gap { block: 0, low: key.to_vec(), high: Some([key, &[0]].concat()), why: error.to_string() }
}

/// The records of a memtable in order, read in chunks, so that its lock is never held for long.
pub(super) struct RecordQueue<'a> {
    memtable: Arc<Memtable>,
    committer: &'a Committer,
    chunk: usize,
    queue: VecDeque<Arc<Record>>,
    next: Bound<Bytes>,
    done: bool,
}

impl<'a> RecordQueue<'a> {
    pub(super) fn new(memtable: Arc<Memtable>, committer: &'a Committer, chunk: usize) -> Self {
        Self { memtable, committer, chunk, queue: VecDeque::new(), next: Bound::Unbounded, done: true }
    }

    pub(super) fn seek(&mut self, start: &[u8]) {
        self.queue.clear();
        self.next = Bound::Included(Bytes::copy_from_slice(start));
        self.done = false;
    }

    /// Returns true if the next records have to be read.
    #[inline]
    fn is_unread(&self) -> bool {
        self.queue.is_empty() && !self.done
    }

    pub(super) async fn fill(&mut self) {
        if !self.is_unread() {
            return;
        }
        self.memtable.order().await;
        let start = self.next.as_ref().map(|key| &key[..]);
        self.queue.extend(self.memtable.range(start, self.chunk, || self.committer.durable()));
        assert!(self.queue.len() <= self.chunk, "a memtable's lock is held for a chunk (R23)");
        self.done = self.queue.len() < self.chunk;
        if let Some(last) = self.queue.back() {
            self.next = Bound::Excluded(Bytes::copy_from_slice(last.key()));
        }
    }

    pub(super) fn front(&self) -> Option<&Arc<Record>> {
        self.queue.front()
    }

    pub(super) fn pop_if(&mut self, key: &[u8]) {
        if self.front().is_some_and(|record| record.key() == key) {
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Poll;
    use std::time::Duration;

    use shoal_common::object::{Expiry, ListRequest};
    use shoal_common::options::{Environment, OpenOptions};
    use shoal_testkit::clock::SteppingClock;
    use shoal_testkit::task::poll_once;

    use super::*;
    use crate::read::changes::ChangesPlace;
    use crate::read::snapshot::SnapshotPlace;
    use crate::testing::fixtures::{in_memory, key, open_in};
    use crate::{PutOptions, Store, block_on};

    /// Turns that a scan takes, each of which lasts until other work of its thread may run.
    fn turns<T: Debug>(scan: impl Future<Output = Result<T>>) -> (usize, T) {
        let mut scan = pin!(scan);
        let mut turns = 1;
        loop {
            match poll_once(scan.as_mut()) {
                Poll::Ready(done) => return (turns, done.unwrap()),
                Poll::Pending => turns += 1,
            }
        }
    }

    /// The scans, the keys that each examines at least, and its turns.
    fn all_scans(store: &Store, keys: usize) -> Vec<(&'static str, usize, usize)> {
        let request = |limit| ListRequest { bucket: "default".into(), limit, ..ListRequest::default() };
        let snapshot = block_on(store.snapshot()).unwrap();
        let mut scans = Vec::new();
        let mut note = |scan, examined, turns| scans.push((scan, examined, turns));
        let (taken, page) = turns(store.list(&request(1000)));
        assert_eq!((page.entries.len(), page.next), (keys, None), "the page is whole");
        note("list", keys, taken);
        note("buckets", 0, turns(store.buckets("", 0)).0);
        note("a list of a snapshot", keys, turns(snapshot.list(&request(1000))).0);
        note("objects of a snapshot", keys, turns(snapshot.objects(&SnapshotPlace::default(), keys)).0);
        let place = ChangesPlace::default();
        note("changes of one tablet", keys / 8, turns(snapshot.changes(None, &place, keys)).0);
        note("the walk of the reaper", keys, turns(store.0.walk_for_expiring(Vec::new())).0);
        scans
    }

    /// Symptom: `RANDOMKEY` over cached pages held its thread for a second. Cause: such a scan never waits. The length
    /// of a page is unchanged; between its turns the other work of the thread runs.
    #[test]
    fn scans_yield_after_their_budget() {
        const KEYS: usize = 960;
        let clock = Arc::new(SteppingClock::new(0));
        let environment = Environment { clock: clock.clone(), ..Environment::default() };
        let options = OpenOptions { cache_bytes: 16 << 20, background: false, ..OpenOptions::default() };
        let store = open_in(&in_memory(), options, environment);
        for number in 0..KEYS {
            let expiry = Expiry::After(Duration::from_secs(1_000));
            let options = PutOptions { expiry, ..PutOptions::default() };
            block_on(store.put(&key(number), b"v".to_vec().into(), options)).unwrap();
        }
        all_scans(&store, KEYS);
        // All pages are cached, so the scan takes no time.
        for (scan, _, turns) in all_scans(&store, KEYS) {
            assert_eq!(turns, 1, "{scan}");
        }
        // Time advances with each look at the clock.
        clock.set_step(SCAN_TURN_NS);
        for (scan, examined, turns) in all_scans(&store, KEYS) {
            assert!(turns >= examined / SCAN_LOOK_KEYS, "{scan}: {turns} turns for {examined} keys");
        }
    }
}
