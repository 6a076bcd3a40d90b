//! Listing: the keys of a bucket in order, across all tablets by a merge.
//!
//! Every tablet gives a stream of its own: active overlay, frozen overlay and tree under one view, the newest winning. A
//! page is read under one view a tablet; the next page continues from the last key under newer views (R23), so a listing
//! is no snapshot of the whole bucket.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use shoal_base::limits::LIST_PAGE_MAX;

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::get::{FoundEntry, entry_of_leaf, entry_of_record};
use crate::key::check_bucket;
use crate::log::commit::Committer;
use crate::log::format::RecordKind;
use crate::object::{ListPage, ListRequest};
use crate::overlay::{Overlay, Record};
use crate::packed::RESERVED;
use crate::plant::{Plant, planted};
use crate::store::{Inner, Store};
use crate::tablet::View;
use crate::tree::{Cursor, Root};
use crate::tree_io::{PoolPages, tree_of};

impl Store {
    /// One page of the keys of a bucket, in order.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Corrupt`], [`Error::Io`].
    pub async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        let inner = &*self.0;
        inner.check_open()?;
        check_bucket(&request.bucket)?;
        if !(1..=LIST_PAGE_MAX).contains(&request.limit) {
            return Err(Error::Invalid(format!("a page of a listing has 1 to {LIST_PAGE_MAX} entries")));
        }
        Lister::new(inner, request).run().await
    }
}

/// Records of an overlay that are looked at under its lock at a time.
const CHUNK_RECORDS: usize = 512;

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
        merge.seek(start).await?;
        while let Some((key, found)) = merge.next().await? {
            if !key.starts_with(&under) {
                break;
            }
            if self.inner.expiry.is_over(&found.entry) {
                continue;
            }
            if self.page.entries.len() + self.page.common_prefixes.len() == self.request.limit
                && !planted(Plant::PageWithoutEnd)
            {
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
                    let info = self.inner.info(&found).await?;
                    self.page.entries.push((key[self.base.len()..].to_vec(), info));
                }
            }
        }
        Ok(self.page)
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
}

impl<'a> Merge<'a> {
    fn new(streams: Vec<TabletStream<'a>>) -> Self {
        let waiting = streams.iter().map(|_| None).collect();
        Self { streams, heap: BinaryHeap::new(), waiting }
    }

    async fn seek(&mut self, start: Vec<u8>) -> Result<()> {
        self.heap.clear();
        for index in 0..self.streams.len() {
            self.streams[index].seek(&start).await?;
            self.pull(index).await?;
        }
        Ok(())
    }

    async fn pull(&mut self, index: usize) -> Result<()> {
        if let Some((key, found)) = self.streams[index].next().await? {
            self.waiting[index] = Some(found);
            self.heap.push(Reverse((key, index)));
        }
        Ok(())
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
    _view: Arc<View>,
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
            .map(|overlay| RecordQueue::new(overlay, &inner.committer, chunk))
            .collect();
        let tree = tree_of(inner.identity, view.tablet);
        let source = PoolPages::new(&inner.pool);
        // Reserved keys lie behind all objects.
        let cursor = Cursor::new(tree, source, root, &[], end.or(Some(&[RESERVED])));
        let cursor = match expected {
            Some(entries) => cursor.with_expected(entries),
            None => cursor,
        };
        Self { queues, cursor, leaf: None, _view: view }
    }

    async fn seek(&mut self, start: &[u8]) -> Result<()> {
        for queue in &mut self.queues {
            queue.seek(start);
        }
        self.cursor.seek(start);
        self.pull_leaf().await
    }

    async fn pull_leaf(&mut self) -> Result<()> {
        self.leaf = match self.cursor.next().await? {
            Some(item) => {
                let (page, range) = item.found().into_parts();
                Some((item.key.to_vec(), entry_of_leaf(&page.into_bytes().slice(range))?))
            }
            None => None,
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
