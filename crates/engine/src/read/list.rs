//! Listing: the keys of a bucket in order, merged from all tablets.
//!
//! Each tablet has a stream: active overlay, frozen overlay and tree under one view, the newest record of a key first.
//! One view of each tablet serves a page; the next page continues after the last key under newer views (R23), so a
//! listing is no snapshot of the whole bucket.
//!
//! A listing skips damage: wrong bytes, and blocks that the device cannot read. Its page has everything else and names
//! each range of keys that it skipped (R19). Records of the overlays within such a range are listed all the same. A
//! page that met much damage ends early, after the last key that it lists.
//!
//! Deleted and expired objects cost as much work as listed ones. A page that passed [`LIST_PASSED_MAX`] of them ends,
//! even if it is empty, so the work of one page is bounded.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use shoal_base::limits::{LIST_PAGE_MAX, LIST_PASSED_MAX};
use shoal_base::list::DamagedRange;
use shoal_base::task::{Boxed, yield_now};

use crate::common::error::{Error, Result};
use crate::common::key::{ObjectKey, check_bucket};
use crate::common::object::{ListPage, ListRequest, Metadata, ObjectInfo};
use crate::log::commit::Committer;
use crate::log::format::RecordKind;
use crate::log::record::Record;
use crate::read::get::{FoundEntry, entry_of_leaf, entry_of_record};
use crate::store::{Inner, Store};
use crate::tablet::damage;
use crate::tablet::layers::Trees;
use crate::tablet::overlay::Overlay;
use crate::tablet::snapshots::Frozen;
use crate::tablet::tree::{Gap, Root};
use crate::tablet::tree_io::{PoolPages, tree_of};
use crate::tablet::trees_cursor::{Next, TreesCursor};
use crate::tablet::view::View;
use crate::testing::injected_bug::{Bug, injected};
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
            Lister::new(inner, request, None)?.run().await
        })
    }
}

/// The same page of a snapshot.
///
/// # Errors
/// As [`Store::list`].
pub(crate) async fn list_frozen(inner: &Inner, request: &ListRequest, frozen: &Frozen) -> Result<ListPage> {
    Lister::new(inner, request, Some(frozen))?.run().await
}

/// The number of `things` that a page with this limit has at most; 0 stands for [`LIST_PAGE_MAX`].
pub(super) fn page_limit(limit: usize, things: &str) -> Result<usize> {
    match limit {
        0 => Ok(LIST_PAGE_MAX),
        1..=LIST_PAGE_MAX => Ok(limit),
        _ => Err(Error::Invalid(format!("a page has at most {LIST_PAGE_MAX} {things}, not {limit}"))),
    }
}

/// Records of an overlay that are read at a time under its lock.
pub(super) const CHUNK_RECORDS: usize = 512;

/// Damaged ranges that one page lists separately; a page that met as many ends if it can. If it has no key to end
/// after, it joins further ranges with their neighbours of the same tablet.
pub const DAMAGED_RANGES_MAX: usize = 64;

/// The state of a listing while it makes one page.
struct Lister<'a> {
    inner: &'a Inner,
    request: &'a ListRequest,
    limit: usize,
    /// The bucket's name and the byte after it.
    base: Vec<u8>,
    page: ListPage,
    /// Keys of deleted and expired objects that were passed.
    passed: usize,
    /// The snapshot that is listed; none: the store as it is.
    frozen: Option<&'a Frozen>,
}

impl<'a> Lister<'a> {
    fn new(inner: &'a Inner, request: &'a ListRequest, frozen: Option<&'a Frozen>) -> Result<Self> {
        check_bucket(&request.bucket)?;
        let limit = page_limit(request.limit, "keys")?;
        let base = [request.bucket.as_bytes(), &[0]].concat();
        Ok(Self { inner, request, limit, base, page: ListPage::default(), passed: 0, frozen })
    }

    fn views(&self) -> Vec<Arc<View>> {
        match self.frozen {
            Some(frozen) => frozen.views.clone(),
            None => self.inner.tablets.all().iter().map(|tablet| tablet.view()).collect(),
        }
    }

    fn is_over(&self, found: &FoundEntry) -> bool {
        match self.frozen {
            Some(frozen) => frozen.moment.is_over(found.entry.end, found.version),
            None => self.inner.is_over(found.entry.end, found.version),
        }
    }

    async fn run(mut self) -> Result<ListPage> {
        let under = [&self.base[..], &self.request.prefix].concat();
        let Some(start) = self.start(&under) else { return Ok(self.page) };
        let end = successor(&under);
        let tablets = self.inner.tablets.all();
        // A tablet's share of the page and a little more, because shares differ. With a delimiter most keys are
        // skipped.
        let expected = self.request.delimiter.is_empty().then(|| self.limit / tablets.len() * 9 / 8 + 8);
        let streams = self
            .views()
            .into_iter()
            .map(|view| TabletStream::new(self.inner, view, end.as_deref(), expected))
            .collect();
        let mut merge = Merge::new(streams);
        let from = start.clone();
        merge.seek(start).await?;
        while let Some((key, found)) = merge.next().await? {
            if !key.starts_with(&under) {
                break;
            }
            let Some(found) = found.filter(|found| !self.is_over(found)) else {
                if self.pass(&key).await {
                    break;
                }
                continue;
            };
            let given = self.page.entries.len() + self.page.common_prefixes.len();
            let met_much = given > 0 && merge.damaged.len() >= DAMAGED_RANGES_MAX;
            if (given == self.limit || met_much) && !injected(Bug::PageWithoutEnd) {
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
                    let info = self.info_of(&mut merge, &key, &found).await?;
                    self.page.entries.push((key[self.base.len()..].to_vec(), info));
                }
            }
        }
        let given = self.page.entries.len() + self.page.common_prefixes.len();
        self.inner.counters.note_passed(self.passed as u64);
        for stream in merge.streams.iter().filter(|_| self.frozen.is_none()) {
            self.inner.tablets.note_searches(&stream.view, given.div_ceil(tablets.len()));
        }
        assert!(
            given <= self.limit || injected(Bug::PageWithoutEnd),
            "a page of a listing ends at its limit (R23)"
        );
        if !merge.damaged.is_empty() && !self.inner.device_answers().await {
            // Nothing is readable now: an empty page would look like an empty bucket.
            return Err(Error::Busy("its device does not read anything, not even superblocks"));
        }
        // A bucket that ends within damage has no key after it. Streams look ahead: damage after the page belongs to
        // the next page.
        let last = self.page.next.as_ref().map(|next| [&self.base[..], next, &[0]].concat());
        let to = last.as_deref().or(end.as_deref());
        let damaged = std::mem::take(&mut merge.damaged);
        let of_page = damaged.into_iter().filter(|range| range.overlaps(&from, to));
        self.page.damaged = of_page.map(|range| self.within_bucket(range)).collect();
        self.page.damaged.sort();
        Ok(self.page)
    }

    /// Passes a key whose object does not exist. Returns true if the page ends after it.
    async fn pass(&mut self, key: &[u8]) -> bool {
        self.passed += 1;
        if self.passed < LIST_PASSED_MAX || injected(Bug::PageWithoutEnd) {
            return false;
        }
        let key = &key[self.base.len()..];
        if self.is_common_prefix(key) {
            // The next page would skip all that begins with this key, as after a common prefix that was listed.
            if self.passed.is_multiple_of(LIST_PASSED_MAX) {
                yield_now().await;
            }
            return false;
        }
        self.page.next = Some(key.to_vec());
        true
    }

    /// The information of a found object; damage of its metadata is noted in `merge`.
    async fn info_of(&self, merge: &mut Merge<'_>, key: &[u8], found: &FoundEntry) -> Result<ObjectInfo> {
        let mut info = match self.inner.info(found).await {
            Ok(info) => info,
            // The object exists, and a part of its information is readable: users can delete it like any other.
            Err(error @ (Error::Corrupt { .. } | Error::Io(_))) => {
                if matches!(error, Error::Io(_)) {
                    self.inner.pool.doubt_device(true);
                }
                if let Some(range) = unreadable_metadata(self.inner, key, &error) {
                    merge.add_damaged(self.inner, range);
                }
                self.inner.info_of(found, Metadata::default())
            }
            Err(error) => return Err(error),
        };
        if let Some(frozen) = self.frozen {
            info.expiry = found.entry.end.map(|end| frozen.moment.deadline(end));
        }
        Ok(info)
    }

    /// Turns a range of encoded keys into a range of the bucket's keys.
    fn within_bucket(&self, range: DamagedRange) -> DamagedRange {
        let key = |encoded: &[u8]| encoded.strip_prefix(&self.base[..]).map(<[u8]>::to_vec);
        DamagedRange {
            from: key(&range.from).unwrap_or_default(),
            // A range that ends after the bucket's last key has no end in the bucket.
            to: range.to.as_deref().and_then(key),
            ..range
        }
    }

    /// The least full key that may be listed.
    fn start(&self, under: &[u8]) -> Option<Vec<u8>> {
        let after = &self.request.start_after;
        if after.is_empty() {
            return Some(under.to_vec());
        }
        let full = [&self.base[..], after].concat();
        let behind =
            if self.is_common_prefix(after) { successor(&full)? } else { [&full[..], &[0]].concat() };
        Some(behind.max(under.to_vec()))
    }

    /// Returns true if `key` reads as a common prefix.
    fn is_common_prefix(&self, key: &[u8]) -> bool {
        let ListRequest { delimiter, prefix, .. } = self.request;
        !delimiter.is_empty()
            && key.ends_with(delimiter)
            && key.starts_with(prefix)
            && key.len() > prefix.len()
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

/// The range of one key: the object's metadata lie in front of its value and cannot be read.
fn unreadable_metadata(inner: &Inner, key: &[u8], error: &Error) -> Option<DamagedRange> {
    let block = if let Error::Corrupt { block, .. } = error { *block } else { 0 };
    let tablet = inner.tablets.of(&ObjectKey::of_encoded(key)?).id;
    let (from, to) = (key.to_vec(), Some([key, &[0]].concat()));
    Some(DamagedRange { tablet, from, to, block, why: format!("the object's metadata: {error}") })
}

/// Looks at up to `limit` keys from `from` on, in the order of their encoded keys, and shows the stored objects that may
/// have a deadline to `look`, expired ones included. Returns the key to continue with; `None` at the end. Trees without such objects are not
/// read.
pub(crate) async fn walk_expiring(
    inner: &Inner,
    from: Vec<u8>,
    limit: usize,
    mut look: impl FnMut(&[u8], &FoundEntry),
) -> Result<Option<Vec<u8>>> {
    let tablets = inner.tablets.all();
    let expected = limit / tablets.len() + 8;
    let streams = tablets.iter().map(|tablet| {
        let view = tablet.view();
        let trees = if view.totals.is_for_ever() { Trees::only(Root::EMPTY) } else { view.trees.clone() };
        TabletStream::with_trees(inner, view, &trees, None, Some(expected))
    });
    let mut merge = Merge::new(streams.collect());
    merge.seek(from).await?;
    let mut last = Vec::new();
    for _ in 0..limit {
        let Some((key, found)) = merge.next().await? else { return Ok(None) };
        if let Some(found) = found {
            look(&key, &found);
        }
        last = key;
    }
    last.push(0);
    Ok(Some(last))
}

/// Entries of a snapshot of all buckets, in the order of their encoded keys.
#[derive(Default)]
pub(crate) struct FrozenPage {
    /// Encoded keys and entries, those of the store's own objects and of expired ones left out.
    pub entries: Vec<(ObjectKey, FoundEntry)>,
    /// The encoded key to go on with; none: this is the end.
    pub next: Option<Vec<u8>>,
    pub damaged: Vec<DamagedRange>,
}

/// About `limit` entries of a snapshot, from the encoded key `from` on.
///
/// # Errors
/// [`Error::Busy`] where the device reads nothing at all; as the device.
pub(crate) async fn walk_frozen(
    inner: &Inner,
    frozen: &Frozen,
    from: Vec<u8>,
    limit: usize,
) -> Result<FrozenPage> {
    let expected = limit / frozen.views.len().max(1) + 8;
    let streams =
        frozen.views.iter().map(|view| TabletStream::new(inner, view.clone(), None, Some(expected)));
    let mut merge = Merge::new(streams.collect());
    let (start, mut page) = (from.clone(), FrozenPage::default());
    merge.seek(from).await?;
    for _ in 0..limit {
        let Some((key, found)) = merge.next().await? else {
            page.next = None;
            break;
        };
        page.next = Some([&key[..], &[0]].concat());
        let found = found.filter(|found| !frozen.moment.is_over(found.entry.end, found.version));
        let name = ObjectKey::of_encoded(&key).filter(|name| !name.is_system());
        page.entries.extend(name.zip(found));
        if merge.damaged.len() >= DAMAGED_RANGES_MAX {
            break;
        }
    }
    if !merge.damaged.is_empty() && !inner.device_answers().await {
        return Err(Error::Busy("its device does not read anything, not even superblocks"));
    }
    let damaged = std::mem::take(&mut merge.damaged);
    page.damaged = damaged.into_iter().filter(|range| range.overlaps(&start, page.next.as_deref())).collect();
    page.damaged.sort();
    Ok(page)
}

/// The least byte string above all strings that begin with `prefix`; `None` if there is none.
pub(super) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xFF)?;
    let mut out = prefix[..=last].to_vec();
    out[last] += 1;
    Some(out)
}

/// A key that a tablet has, and its object if it was not deleted.
type Item = (Vec<u8>, Option<FoundEntry>);

/// The streams of all tablets in one order.
pub(super) struct Merge<'a> {
    streams: Vec<TabletStream<'a>>,
    heap: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    /// What each stream has at the key in the heap; none: it is to be read on from there.
    waiting: Vec<Option<Option<FoundEntry>>>,
    /// The damaged ranges of encoded keys.
    pub(super) damaged: Vec<DamagedRange>,
}

impl<'a> Merge<'a> {
    pub(super) fn new(streams: Vec<TabletStream<'a>>) -> Self {
        let waiting = streams.iter().map(|_| None).collect();
        Self { streams, heap: BinaryHeap::new(), waiting, damaged: Vec::new() }
    }

    /// Notes a damaged range; see [`DAMAGED_RANGES_MAX`].
    fn add_damaged(&mut self, inner: &Inner, range: DamagedRange) {
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
                self.waiting[index] = Some(found);
                self.heap.push(Reverse((key, index)));
            }
            Some(Next::Behind(key)) => self.heap.push(Reverse((key, index))),
            None => {}
        }
        Ok(())
    }

    fn take_damaged(&mut self, index: usize) {
        let inner = self.streams[index].inner;
        for range in std::mem::take(&mut self.streams[index].damaged) {
            self.add_damaged(inner, range);
        }
    }

    /// The next key, and its object if it was not deleted: the caller bounds the number of keys that it looks at.
    pub(super) async fn next(&mut self) -> Result<Option<Item>> {
        loop {
            let Some(Reverse((key, index))) = self.heap.pop() else { return Ok(None) };
            let found = self.waiting[index].take();
            self.pull(index).await?;
            if let Some(found) = found {
                return Ok(Some((key, found)));
            }
        }
    }
}

/// The keys of one tablet, in order, under one view.
pub(super) struct TabletStream<'a> {
    queues: Vec<RecordQueue<'a>>,
    cursor: TreesCursor<PoolPages<'a>>,
    /// The trees' next entry.
    leaf: Option<Next<Item>>,
    /// The caller has come to the end of the damage that the trees met last.
    is_due: bool,
    /// The damage met since it was last taken.
    damaged: Vec<DamagedRange>,
    inner: &'a Inner,
    view: Arc<View>,
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

    /// Those of the overlays of `view` and of `trees`.
    fn with_trees(
        inner: &'a Inner,
        view: Arc<View>,
        trees: &Trees,
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
        // An unreadable block counts as damaged here: the listing has the rest.
        let source = PoolPages::new(&inner.pool).giving_up(true).of_pass();
        // Reserved keys lie behind all objects.
        let cursor = TreesCursor::new(tree, &source, trees, end.or(Some(&[RESERVED])), expected);
        Self { queues, cursor, leaf: None, is_due: false, damaged: Vec::new(), inner, view }
    }

    /// Moves to `start` through the pages in memory; [`pull_leaf`](Self::pull_leaf) reads the others.
    fn approach(&mut self, start: &[u8]) {
        for queue in &mut self.queues {
            queue.seek(start);
        }
        self.cursor.approach(start);
        self.is_due = false;
    }

    async fn pull_leaf(&mut self) -> Result<()> {
        self.leaf = loop {
            let next = self.cursor.next_key().await;
            // Neighbours are one: a part of a tree that is all damage takes no more memory than one page of it.
            for gap in self.cursor.take_gaps() {
                damage::add(&mut self.damaged, gap.in_tablet(self.view.tablet), DAMAGED_RANGES_MAX);
            }
            let (key, found) = match next? {
                Some(Next::Entry(item)) => item,
                Some(Next::Behind(key)) => break Some(Next::Behind(key)),
                None => break None,
            };
            match found.map(entry_of_leaf).transpose() {
                Ok(found) => break Some(Next::Entry((key, found))),
                Err(error) => {
                    let range = gap_of_entry(&key, &error).in_tablet(self.view.tablet);
                    damage::add(&mut self.damaged, range, DAMAGED_RANGES_MAX);
                }
            }
        };
        Ok(())
    }

    /// The next key. Damage comes once; then the trees are read on.
    async fn next(&mut self) -> Result<Option<Next<Item>>> {
        if self.is_due {
            self.pull_leaf().await?;
            self.is_due = false;
        }
        for queue in &mut self.queues {
            queue.fill().await;
        }
        let record = self.queues.iter().filter_map(|queue| queue.front()).min_by(|a, b| a.key().cmp(b.key()));
        let record = record.cloned();
        let is_before = |key: &[u8]| record.as_ref().is_none_or(|record| key < record.key());
        match &self.leaf {
            Some(Next::Entry((key, _))) if is_before(key) => {
                let leaf = self.leaf.take();
                self.pull_leaf().await?;
                return Ok(leaf);
            }
            // The key of the record may be the next one of the trees.
            Some(Next::Behind(key)) if record.as_ref().is_none_or(|record| &key[..] <= record.key()) => {
                self.is_due = true;
                return Ok(Some(Next::Behind(key.clone())));
            }
            _ => {}
        }
        let Some(record) = record else { return Ok(None) };
        // The first queue with this key is the newer overlay: `min_by` returns the first of equal items.
        for queue in &mut self.queues {
            queue.pop_if(record.key());
        }
        if matches!(&self.leaf, Some(Next::Entry((key, _))) if &key[..] == record.key()) {
            self.pull_leaf().await?;
        }
        let found = if record.kind() == RecordKind::Put { Some(entry_of_record(&record)?) } else { None };
        Ok(Some(Next::Entry((record.key().to_vec(), found))))
    }
}

/// The range of an entry that cannot be decoded: its own key.
pub(super) fn gap_of_entry(key: &[u8], error: &Error) -> Gap {
    Gap { block: 0, low: key.to_vec(), high: Some([key, &[0]].concat()), why: error.to_string() }
}

/// The records of an overlay in order, read in chunks, so that its lock is never held for long.
pub(super) struct RecordQueue<'a> {
    overlay: Arc<Overlay>,
    committer: &'a Committer,
    chunk: usize,
    queue: VecDeque<Arc<Record>>,
    next: Bound<Bytes>,
    done: bool,
}

impl<'a> RecordQueue<'a> {
    pub(super) fn new(overlay: Arc<Overlay>, committer: &'a Committer, chunk: usize) -> Self {
        Self { overlay, committer, chunk, queue: VecDeque::new(), next: Bound::Unbounded, done: true }
    }

    pub(super) fn seek(&mut self, start: &[u8]) {
        self.queue.clear();
        self.next = Bound::Included(Bytes::copy_from_slice(start));
        self.done = false;
    }

    pub(super) async fn fill(&mut self) {
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
    use super::*;

    #[test]
    fn successors() {
        assert_eq!(successor(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(successor(b"a\xFF\xFF"), Some(b"b".to_vec()));
        assert_eq!(successor(b"\xFF"), None);
    }
}
