//! Listing: the keys of a bucket in order, across all tablets by a merge.
//!
//! Every tablet gives a stream of its own: active overlay, frozen overlay and tree under one view, the newest winning. A
//! page is read under one view a tablet; the next page continues from the last key under newer views (R23), so a listing
//! is no snapshot of the whole bucket.
//!
//! Damage is gone past, be it wrong bytes or a block that the device cannot read: a page of a listing has everything else, and names each
//! range of keys that it went past (R19). Records of the overlays that lie in such a range are given all the same. Where a page met
//! much damage it ends early, behind the last key that it gives.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use shoal_base::limits::LIST_PAGE_MAX;
use shoal_base::task::Boxed;

use crate::common::damaged_range::DamagedRange;
use crate::common::error::{Error, Result};
use crate::common::key::{ObjectKey, check_bucket};
use crate::common::object::{ListPage, ListRequest, Metadata};
use crate::log::commit::Committer;
use crate::log::format::RecordKind;
use crate::log::record::Record;
use crate::read::get::{FoundEntry, entry_of_leaf, entry_of_record};
use crate::store::{Inner, Store};
use crate::tablet::damage;
use crate::tablet::overlay::Overlay;
use crate::tablet::tree::{Cursor, Gap, Root};
use crate::tablet::tree_io::{PoolPages, tree_of};
use crate::tablet::view::View;
use crate::testing::injected_bug::{Bug, injected};
use crate::value::entry::Entry;
use crate::value::packed::RESERVED;

impl Store {
    /// One page of the keys of a bucket, in order, and the damaged ranges among them.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Closed`]; [`Error::Io`] where the device failed otherwise than with a read.
    pub fn list<'a>(&'a self, request: &'a ListRequest) -> Boxed<'a, Result<ListPage>> {
        Box::pin(async {
            let inner = &*self.0;
            inner.check_open()?;
            check_bucket(&request.bucket)?;
            if !(1..=LIST_PAGE_MAX).contains(&request.limit) {
                return Err(Error::Invalid(format!("a page of a listing has 1 to {LIST_PAGE_MAX} entries")));
            }
            Lister::new(inner, request).run().await
        })
    }
}

/// Records of an overlay that are looked at under its lock at a time.
const CHUNK_RECORDS: usize = 512;

/// Damaged ranges that one page names one by one; a page that met so many ends where it can. Beyond them, where it has nothing to end
/// behind, neighbours of one tablet are named as one.
pub const DAMAGED_RANGES_MAX: usize = 64;

/// The work on one page.
struct Lister<'a> {
    inner: &'a Inner,
    request: &'a ListRequest,
    /// The bucket's name and the byte behind it.
    base: Vec<u8>,
    page: ListPage,
}

impl<'a> Lister<'a> {
    fn new(inner: &'a Inner, request: &'a ListRequest) -> Self {
        let base = [request.bucket.as_bytes(), &[0]].concat();
        Self { inner, request, base, page: ListPage::default() }
    }

    async fn run(mut self) -> Result<ListPage> {
        let under = [&self.base[..], &self.request.prefix].concat();
        let Some(start) = self.start(&under) else { return Ok(self.page) };
        let end = successor(&under);
        let tablets = self.inner.tablets.all();
        // A tablet's share of the page and a little more, as shares differ. With a delimiter most keys are jumped over.
        let expected =
            self.request.delimiter.is_empty().then(|| self.request.limit / tablets.len() * 9 / 8 + 8);
        let streams = tablets
            .iter()
            .map(|tablet| TabletStream::new(self.inner, tablet.view(), end.as_deref(), expected))
            .collect();
        let mut merge = Merge::new(streams);
        let from = start.clone();
        merge.seek(start).await?;
        while let Some((key, found)) = merge.next().await? {
            if !key.starts_with(&under) {
                break;
            }
            if self.inner.is_over(found.entry.end, found.version) {
                continue;
            }
            let given = self.page.entries.len() + self.page.common_prefixes.len();
            let met_much = given > 0 && merge.damaged.len() >= DAMAGED_RANGES_MAX;
            if (given == self.request.limit || met_much) && !injected(Bug::PageWithoutEnd) {
                self.page.next = Some(self.last_given());
                break;
            }
            match self.common_prefix(&key) {
                Some(prefix) => {
                    let behind = successor(&[&self.base[..], &prefix].concat());
                    self.page.common_prefixes.push(prefix);
                    match behind {
                        Some(behind) => merge.seek(behind).await?,
                        None => break,
                    }
                }
                None => {
                    let info = match self.inner.info(&found).await {
                        Ok(info) => info,
                        // The object is there, and a part of what is known about it: it can be deleted as others can.
                        Err(error @ (Error::Corrupt { .. } | Error::Io(_))) => {
                            if let Some(range) = unreadable_metadata(self.inner, &key, &error) {
                                merge.add_damaged(self.inner, range);
                            }
                            self.inner.info_of(&found, Metadata::default())
                        }
                        Err(error) => return Err(error),
                    };
                    self.page.entries.push((key[self.base.len()..].to_vec(), info));
                }
            }
        }
        if !merge.damaged.is_empty() && !self.inner.answers().await {
            // Nothing can be read now: an empty page would look as if nothing were there.
            return Err(Error::Busy("its device does not read anything, not even superblocks"));
        }
        // A bucket that ends within damage has nothing behind it, and streams look ahead: what lies behind the page is the next one's.
        let last = self.page.next.as_ref().map(|next| [&self.base[..], next, &[0]].concat());
        let to = last.as_deref().or(end.as_deref());
        let damaged = std::mem::take(&mut merge.damaged);
        let of_page = damaged.into_iter().filter(|range| range.overlaps(&from, to));
        self.page.damaged = of_page.map(|range| self.within_bucket(range)).collect();
        self.page.damaged.sort();
        Ok(self.page)
    }

    /// A range of encoded keys, as one of the bucket's keys.
    fn within_bucket(&self, range: DamagedRange) -> DamagedRange {
        let key = |encoded: &[u8]| encoded.strip_prefix(&self.base[..]).map(<[u8]>::to_vec);
        DamagedRange {
            from: key(&range.from).unwrap_or_default(),
            // One that ends behind the bucket's last key has no end in it.
            to: range.to.as_deref().and_then(key),
            ..range
        }
    }

    /// The least full key that may be given.
    fn start(&self, under: &[u8]) -> Option<Vec<u8>> {
        let after = &self.request.start_after;
        if after.is_empty() {
            return Some(under.to_vec());
        }
        let full = [&self.base[..], after].concat();
        let delimiter = &self.request.delimiter;
        let is_rolled_up = !delimiter.is_empty()
            && after.ends_with(delimiter)
            && after.starts_with(&self.request.prefix)
            && after.len() > self.request.prefix.len();
        let behind = if is_rolled_up { successor(&full)? } else { [&full[..], &[0]].concat() };
        Some(behind.max(under.to_vec()))
    }

    fn last_given(&self) -> Vec<u8> {
        let key = self.page.entries.last().map(|(key, _)| key);
        key.max(self.page.common_prefixes.last()).cloned().unwrap_or_default()
    }

    fn common_prefix(&self, key: &[u8]) -> Option<Vec<u8>> {
        let delimiter = &self.request.delimiter;
        if delimiter.is_empty() {
            return None;
        }
        let key = &key[self.base.len()..];
        let from = self.request.prefix.len();
        let at = key[from..].windows(delimiter.len()).position(|window| window == &delimiter[..])?;
        Some(key[..from + at + delimiter.len()].to_vec())
    }
}

/// The damage of an object whose metadata lie in front of its value and cannot be read: it is the range of one key.
fn unreadable_metadata(inner: &Inner, key: &[u8], error: &Error) -> Option<DamagedRange> {
    let block = if let Error::Corrupt { block, .. } = error { *block } else { 0 };
    let tablet = inner.tablets.of(&ObjectKey::of_encoded(key)?).id;
    let (from, to) = (key.to_vec(), Some([key, &[0]].concat()));
    Some(DamagedRange { tablet, from, to, block, why: format!("the object's metadata: {error}") })
}

/// Shows every stored object that may have an end of its time to `look`, those whose time is over among them, in the order of
/// their encoded keys from `from` on, at most `limit` of them; gives where to go on, or nothing at the end. Trees that have no
/// such object are not read.
pub(crate) async fn walk_expiring(
    inner: &Inner,
    from: Vec<u8>,
    limit: usize,
    mut look: impl FnMut(&[u8], &Entry),
) -> Result<Option<Vec<u8>>> {
    let tablets = inner.tablets.all();
    let expected = limit / tablets.len() + 8;
    let streams = tablets.iter().map(|tablet| {
        let view = tablet.view();
        let root = if view.totals.is_for_ever() { Root::EMPTY } else { view.root };
        TabletStream::with_root(inner, view, root, None, Some(expected))
    });
    let mut merge = Merge::new(streams.collect());
    merge.seek(from).await?;
    let mut last = Vec::new();
    for _ in 0..limit {
        let Some((key, found)) = merge.next().await? else { return Ok(None) };
        look(&key, &found.entry);
        last = key;
    }
    last.push(0);
    Ok(Some(last))
}

/// The least byte string above everything that begins with `prefix`; none where there is none.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xFF)?;
    let mut out = prefix[..=last].to_vec();
    out[last] += 1;
    Some(out)
}

/// The streams of all tablets in one order.
struct Merge<'a> {
    streams: Vec<TabletStream<'a>>,
    heap: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    waiting: Vec<Option<FoundEntry>>,
    /// The damage that was met, of encoded keys.
    damaged: Vec<DamagedRange>,
}

impl<'a> Merge<'a> {
    fn new(streams: Vec<TabletStream<'a>>) -> Self {
        let waiting = streams.iter().map(|_| None).collect();
        Self { streams, heap: BinaryHeap::new(), waiting, damaged: Vec::new() }
    }

    /// Notes damage; see [`DAMAGED_RANGES_MAX`].
    fn add_damaged(&mut self, inner: &Inner, range: DamagedRange) {
        inner.tablets.met.note(&range);
        damage::add(&mut self.damaged, range, DAMAGED_RANGES_MAX);
    }

    async fn seek(&mut self, start: Vec<u8>) -> Result<()> {
        self.heap.clear();
        // All of them ask the device before the first one waits.
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
        if let Some((key, found)) = next? {
            self.waiting[index] = Some(found);
            self.heap.push(Reverse((key, index)));
        }
        Ok(())
    }

    fn take_damaged(&mut self, index: usize) {
        let inner = self.streams[index].inner;
        for range in std::mem::take(&mut self.streams[index].damaged) {
            self.add_damaged(inner, range);
        }
    }

    async fn next(&mut self) -> Result<Option<(Vec<u8>, FoundEntry)>> {
        let Some(Reverse((key, index))) = self.heap.pop() else { return Ok(None) };
        let found = self.waiting[index].take();
        self.pull(index).await?;
        Ok(found.map(|found| (key, found)))
    }
}

/// The live objects of one tablet, in order, under one view.
struct TabletStream<'a> {
    queues: Vec<RecordQueue<'a>>,
    cursor: Cursor<PoolPages<'a>>,
    /// The tree's next entry.
    leaf: Option<(Vec<u8>, FoundEntry)>,
    /// The damage that was met since it was asked for.
    damaged: Vec<DamagedRange>,
    inner: &'a Inner,
    view: Arc<View>,
}

impl<'a> TabletStream<'a> {
    fn new(inner: &'a Inner, view: Arc<View>, end: Option<&[u8]>, expected: Option<usize>) -> Self {
        let root = view.root;
        Self::with_root(inner, view, root, end, expected)
    }

    /// Those of the overlays of `view` and of the tree under `root`.
    fn with_root(
        inner: &'a Inner,
        view: Arc<View>,
        root: Root,
        end: Option<&[u8]>,
        expected: Option<usize>,
    ) -> Self {
        let overlays = [Some(view.active.clone()), view.frozen.clone()];
        let chunk = expected.unwrap_or(CHUNK_RECORDS).min(CHUNK_RECORDS);
        let queues = overlays
            .into_iter()
            .flatten()
            .map(|overlay| RecordQueue::new(overlay, &inner.log.committer, chunk))
            .collect();
        let tree = tree_of(inner.identity, view.tablet);
        // What the device cannot read is as good as damaged here: the rest is given.
        let source = PoolPages::new(&inner.pool).giving_up(true);
        // Reserved keys lie behind all objects.
        let cursor = Cursor::new(tree, source, root, &[], end.or(Some(&[RESERVED])));
        let cursor = match expected {
            Some(entries) => cursor.with_expected(entries),
            None => cursor,
        };
        Self { queues, cursor, leaf: None, damaged: Vec::new(), inner, view }
    }

    /// Goes to `start` as far as memory goes; [`pull_leaf`](Self::pull_leaf) goes on.
    fn approach(&mut self, start: &[u8]) {
        for queue in &mut self.queues {
            queue.seek(start);
        }
        self.cursor.seek(start);
        self.cursor.approach();
    }

    async fn pull_leaf(&mut self) -> Result<()> {
        self.leaf = loop {
            let gap = match self.cursor.next().await {
                Ok(Some(item)) => {
                    let (page, range) = item.found().into_parts();
                    match entry_of_leaf(&page.into_bytes().slice(range)) {
                        Ok(found) => break Some((item.key.to_vec(), found)),
                        Err(error) => gap_of_entry(item.key, &error),
                    }
                }
                Ok(None) => break None,
                Err(error @ Error::Corrupt { .. }) => self.cursor.take_gap().ok_or(error)?,
                Err(error) => return Err(error),
            };
            // Neighbours are one: a part of a tree that is all damage takes no more memory than one page of it.
            damage::add(&mut self.damaged, DamagedRange::new(self.view.tablet, gap), DAMAGED_RANGES_MAX);
        };
        Ok(())
    }

    /// The next object that exists.
    async fn next(&mut self) -> Result<Option<(Vec<u8>, FoundEntry)>> {
        loop {
            for queue in &mut self.queues {
                queue.fill().await;
            }
            let record =
                self.queues.iter().filter_map(|queue| queue.front()).min_by(|a, b| a.key().cmp(b.key()));
            let Some(record) = record.cloned() else {
                let leaf = self.leaf.take();
                if leaf.is_some() {
                    self.pull_leaf().await?;
                }
                return Ok(leaf);
            };
            if self.leaf.as_ref().is_some_and(|(key, _)| &key[..] < record.key()) {
                let leaf = self.leaf.take();
                self.pull_leaf().await?;
                return Ok(leaf);
            }
            // The first queue with this key is the newer overlay: `min_by` gives the first of equals.
            for queue in &mut self.queues {
                queue.pop_if(record.key());
            }
            if self.leaf.as_ref().is_some_and(|(key, _)| &key[..] == record.key()) {
                self.pull_leaf().await?;
            }
            if record.kind() == RecordKind::Put {
                return Ok(Some((record.key().to_vec(), entry_of_record(&record)?)));
            }
        }
    }
}

/// What an entry hides that cannot be understood: its own key.
fn gap_of_entry(key: &[u8], error: &Error) -> Gap {
    Gap { block: 0, low: key.to_vec(), high: Some([key, &[0]].concat()), why: error.to_string() }
}

/// The records of an overlay in order, a chunk at a time: its lock is never held for long.
struct RecordQueue<'a> {
    overlay: Arc<Overlay>,
    committer: &'a Committer,
    chunk: usize,
    queue: VecDeque<Arc<Record>>,
    next: Bound<Bytes>,
    done: bool,
}

impl<'a> RecordQueue<'a> {
    fn new(overlay: Arc<Overlay>, committer: &'a Committer, chunk: usize) -> Self {
        Self { overlay, committer, chunk, queue: VecDeque::new(), next: Bound::Unbounded, done: true }
    }

    fn seek(&mut self, start: &[u8]) {
        self.queue.clear();
        self.next = Bound::Included(Bytes::copy_from_slice(start));
        self.done = false;
    }

    async fn fill(&mut self) {
        if !self.queue.is_empty() || self.done {
            return;
        }
        self.overlay.order().await;
        let start = self.next.as_ref().map(|key| &key[..]);
        self.queue.extend(self.overlay.range(start, self.chunk, || self.committer.durable()));
        self.done = self.queue.len() < self.chunk;
        if let Some(last) = self.queue.back() {
            self.next = Bound::Excluded(Bytes::copy_from_slice(last.key()));
        }
    }

    fn front(&self) -> Option<&Arc<Record>> {
        self.queue.front()
    }

    fn pop_if(&mut self, key: &[u8]) {
        if self.front().is_some_and(|record| record.key() == key) {
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successors() {
        assert_eq!(successor(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(successor(b"a\xFF\xFF"), Some(b"b".to_vec()));
        assert_eq!(successor(b"\xFF"), None);
    }
}
