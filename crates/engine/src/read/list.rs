//! Listing: the keys of a bucket in order, merged from all tablets.
//!
//! One view of each tablet serves a page; the next page continues after the last key under newer views (R23), so a
//! listing is no snapshot of the whole bucket.
//!
//! A listing skips damage: wrong bytes, and blocks that the device cannot read. Its page has everything else and names
//! each range of keys that it skipped (R19). Records of the memtables within such a range are listed all the same. A
//! page that met much damage stops early, after the last key that it lists.
//!
//! A page of the greatest length that continues an earlier one is part of a walk over many keys: at its end the leaves of the next page are
//! prefetched, if the pool has room for them.
//!
//! Deleted and expired objects cost as much work as listed ones. A page stops after [`LIST_PASSED_MAX`] of them, even
//! if it is empty, so the work of one page is bounded. Within a page the scan yields now and then
//! (`read/streams.rs`).

use std::sync::Arc;

use shoal_base::limits::{LIST_PAGE_MAX, LIST_PASSED_MAX};
use shoal_base::list::DamagedRange;
use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::{ObjectKey, check_bucket, of_encoded};
use shoal_common::object::{ListPage, ListRequest, Metadata, ObjectInfo};
use shoal_tablets::tablet::snapshots::Frozen;
use shoal_tablets::tablet::view::View;
use shoal_tree::Root;
use shoal_tree::layers::Trees;

use crate::read::get::FoundEntry;
use crate::read::streams::{DAMAGED_RANGES_MAX, Merge, TabletStream};
use crate::store::{Inner, Store};

/// Frames for pages of scans from which on a walk reads ahead: they hold the leaves of two pages with the longest entries, three in a leaf,
/// and those of layers. In a smaller pool, leaves would be evicted before they are used.
const AHEAD_FRAMES_MIN: usize = LIST_PAGE_MAX;

/// Takes the objects of a page as the listing finds them, in the order of their keys.
pub trait ListSink: Send {
    /// Takes an object. Returns false if there is no room for it: the page ends before its key. The first object must be taken.
    fn take(&mut self, key: &[u8], info: ObjectInfo) -> bool;

    /// Returns true if the attributes of the value are all of the metadata that the sink needs: then the listing reads no
    /// values. It may show more.
    fn needs_only_summary(&self) -> bool {
        false
    }
}

impl ListSink for Vec<(Vec<u8>, ObjectInfo)> {
    fn take(&mut self, key: &[u8], info: ObjectInfo) -> bool {
        self.push((key.to_vec(), info));
        true
    }
}

impl Store {
    /// One page of the keys of a bucket, in order, and the damaged ranges among them.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Closed`]; [`Error::Io`] if the device failed with other than a read.
    pub fn list<'a>(&'a self, request: &'a ListRequest) -> Boxed<'a, Result<ListPage>> {
        Box::pin(list_page(&self.0, request, None))
    }

    /// The same; `sink` takes the objects, and the page has none.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn list_into<'a>(
        &'a self,
        request: &'a ListRequest,
        sink: &'a mut dyn ListSink,
    ) -> Boxed<'a, Result<ListPage>> {
        Box::pin(list_into(&self.0, request, None, sink))
    }
}

/// A page of the store, or of a snapshot.
///
/// # Errors
/// As [`Store::list`].
pub(crate) async fn list_page(
    inner: &Inner,
    request: &ListRequest,
    frozen: Option<&Frozen>,
) -> Result<ListPage> {
    let mut entries = Vec::new();
    let page = list_into(inner, request, frozen, &mut entries).await?;
    Ok(ListPage { entries, ..page })
}

async fn list_into(
    inner: &Inner,
    request: &ListRequest,
    frozen: Option<&Frozen>,
    sink: &mut dyn ListSink,
) -> Result<ListPage> {
    if frozen.is_none() {
        inner.check_open()?;
    }
    Lister::new(inner, request, frozen, sink)?.run().await
}

/// The largest number of `things` in a page with this limit; 0 means [`LIST_PAGE_MAX`].
pub(super) fn page_limit(limit: usize, things: &str) -> Result<usize> {
    match limit {
        0 => Ok(LIST_PAGE_MAX),
        1..=LIST_PAGE_MAX => Ok(limit),
        _ => Err(Error::Invalid(format!("a page has at most {LIST_PAGE_MAX} {things}, not {limit}"))),
    }
}

/// The state of a listing while it makes one page.
struct Lister<'a> {
    inner: &'a Inner,
    request: &'a ListRequest,
    limit: usize,
    /// The bucket's name and the byte after it.
    base: Vec<u8>,
    sink: &'a mut dyn ListSink,
    /// Objects that the sink took.
    listed: usize,
    /// The full key of the last one.
    last: Vec<u8>,
    page: ListPage,
    /// Keys of deleted and expired objects that were skipped.
    passed: usize,
    /// The snapshot that is listed; none: the store as it is.
    frozen: Option<&'a Frozen>,
}

impl<'a> Lister<'a> {
    fn new(
        inner: &'a Inner,
        request: &'a ListRequest,
        frozen: Option<&'a Frozen>,
        sink: &'a mut dyn ListSink,
    ) -> Result<Self> {
        check_bucket(&request.bucket)?;
        let limit = page_limit(request.limit, "keys")?;
        let base = [request.bucket.as_bytes(), &[0]].concat();
        let (page, last) = (ListPage::default(), Vec::new());
        Ok(Self { inner, request, limit, base, sink, listed: 0, last, page, passed: 0, frozen })
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
            .map(|view| TabletStream::new(self.inner, view, end.as_deref(), expected).without_values())
            .collect();
        let mut merge = Merge::new(self.inner, streams);
        let from = start.clone();
        merge.seek(start).await?;
        self.fill(&mut merge, &under).await?;
        if let Some(keys) = expected.filter(|_| self.reads_ahead()) {
            merge.streams.iter_mut().for_each(|stream| stream.read_ahead(keys));
        }
        let given = self.given();
        self.inner.counters.note_passed(self.passed as u64);
        for stream in merge.streams.iter().filter(|_| self.frozen.is_none()) {
            self.inner.note_searches(&stream.view, given.div_ceil(tablets.len()));
        }
        assert!(
            given <= self.limit || injected(Bug::PageWithoutEnd),
            "a page of a listing ends at its limit (R23)"
        );
        if !merge.damaged.is_empty() && !self.inner.device_answers().await {
            // Nothing is readable now: an empty page would look like an empty bucket.
            return Err(Error::Busy("its device does not read anything, not even superblocks"));
        }
        self.note_damage(std::mem::take(&mut merge.damaged), &from, end.as_deref());
        Ok(self.page)
    }

    /// Lists keys that start with `under` until the page ends.
    async fn fill(&mut self, merge: &mut Merge<'_>, under: &[u8]) -> Result<()> {
        let mut spare = Vec::new();
        while let Some((key, found)) = merge.next(&mut spare).await? {
            if !key.starts_with(under) {
                break;
            }
            let found = match found {
                Some(found) if !self.is_over(&found) => found,
                _ if self.pass(&key) => break,
                _ => {
                    spare = key;
                    continue;
                }
            };
            let met_much = self.given() > 0 && merge.damaged.len() >= DAMAGED_RANGES_MAX;
            if (self.given() == self.limit || met_much) && !injected(Bug::PageWithoutEnd) {
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
                    let info = match found.metadata_in_memory() {
                        Some(Ok(metadata)) => self.known_info(&found, metadata),
                        None if self.sink.needs_only_summary() => self.known_info(&found, found.summary()),
                        _ => self.info_of(merge, &key, &found).await?,
                    };
                    if !self.sink.take(&key[self.base.len()..], info) {
                        assert!(self.given() > 0, "a page of a listing makes progress (R23)");
                        self.page.next = Some(self.last_given());
                        break;
                    }
                    self.listed += 1;
                    spare = std::mem::replace(&mut self.last, key);
                }
            }
        }
        Ok(())
    }

    /// Keys and common prefixes of the page so far.
    fn given(&self) -> usize {
        self.listed + self.page.common_prefixes.len()
    }

    /// Returns true if the next page is likely to be requested, and its leaves have room in the pool.
    fn reads_ahead(&self) -> bool {
        let is_walk =
            !self.request.start_after.is_empty() && self.listed >= LIST_PAGE_MAX && self.page.next.is_some();
        is_walk && self.inner.pool.scan_frames_max() >= AHEAD_FRAMES_MIN
    }

    /// Adds the damaged ranges of a page that starts at `from`. `end` is the end of the listing.
    fn note_damage(&mut self, damaged: Vec<DamagedRange>, from: &[u8], end: Option<&[u8]>) {
        // A bucket with damage at its end has no key after it. Streams look ahead: damage after the page belongs to
        // the next page.
        let last = self.page.next.as_ref().map(|next| [&self.base[..], next, &[0]].concat());
        let to = last.as_deref().or(end);
        let of_page = damaged.into_iter().filter(|range| range.overlaps(from, to));
        self.page.damaged = of_page.map(|range| self.within_bucket(range)).collect();
        self.page.damaged.sort();
    }

    /// Passes a key whose object does not exist. Returns true if the page stops after it.
    fn pass(&mut self, key: &[u8]) -> bool {
        self.passed += 1;
        if self.passed < LIST_PASSED_MAX || injected(Bug::PageWithoutEnd) {
            return false;
        }
        let key = &key[self.base.len()..];
        if self.is_common_prefix(key) {
            // The next page would skip every key that starts with this one, as after a listed common prefix.
            return false;
        }
        self.page.next = Some(key.to_vec());
        true
    }

    /// The information of a found object; damage of its metadata is noted in `merge`.
    async fn info_of(&mut self, merge: &mut Merge<'_>, key: &[u8], found: &FoundEntry) -> Result<ObjectInfo> {
        match self.inner.info(found).await {
            Ok(info) => Ok(self.known_info(found, info.metadata)),
            // The object exists, and a part of its information is readable: users can delete it like any other.
            Err(error @ (Error::Corrupt { .. } | Error::Io(_))) => {
                if matches!(error, Error::Io(_)) {
                    self.inner.pool.doubt_device(true);
                }
                if let Some(range) = unreadable_metadata(self.inner, key, &error) {
                    merge.add_damaged(self.inner, range);
                }
                Ok(self.known_info(found, Metadata::default()))
            }
            Err(error) => Err(error),
        }
    }

    /// The information of a found object with this metadata.
    #[inline]
    fn known_info(&self, found: &FoundEntry, metadata: Metadata) -> ObjectInfo {
        let mut info = self.inner.info_of(found, metadata);
        if let Some(frozen) = self.frozen {
            info.expiry = found.entry.end.map(|end| frozen.moment.deadline(end));
        }
        info
    }

    /// Turns a range of encoded keys into a range of the bucket's keys.
    fn within_bucket(&self, range: DamagedRange) -> DamagedRange {
        let key = |encoded: &[u8]| encoded.strip_prefix(&self.base[..]).map(<[u8]>::to_vec);
        DamagedRange {
            from: key(&range.from).unwrap_or_default(),
            // A range that reaches past the bucket's last key has no end in the bucket.
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
        let key = self.last.get(self.base.len()..);
        let prefix = self.page.common_prefixes.last().map(|prefix| &prefix[..]);
        key.max(prefix).unwrap_or_default().to_vec()
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

/// The range of one key: the object's metadata is stored before its value and cannot be read.
fn unreadable_metadata(inner: &Inner, key: &[u8], error: &Error) -> Option<DamagedRange> {
    let block = if let Error::Corrupt { block, .. } = error { *block } else { 0 };
    let tablet = inner.tablets.of(&of_encoded(key)?).id;
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
        TabletStream::with_trees(inner, view, &trees, None, Some(expected)).without_values()
    });
    let mut merge = Merge::new(inner, streams.collect());
    merge.seek(from).await?;
    let mut last = Vec::new();
    for _ in 0..limit {
        let Some((key, found)) = merge.next(&mut last).await? else { return Ok(None) };
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
    /// The encoded key to continue with; `None`: this is the end.
    pub next: Option<Vec<u8>>,
    pub damaged: Vec<DamagedRange>,
}

/// About `limit` entries of a snapshot, from the encoded key `from` on.
///
/// # Errors
/// [`Error::Busy`] if the device reads nothing at all; errors of the device.
pub(crate) async fn walk_frozen(
    inner: &Inner,
    frozen: &Frozen,
    from: Vec<u8>,
    limit: usize,
) -> Result<FrozenPage> {
    let expected = limit / frozen.views.len().max(1) + 8;
    let streams =
        frozen.views.iter().map(|view| TabletStream::new(inner, view.clone(), None, Some(expected)));
    let mut merge = Merge::new(inner, streams.collect());
    let (start, mut page) = (from.clone(), FrozenPage::default());
    merge.seek(from).await?;
    for _ in 0..limit {
        let Some((key, found)) = merge.next(&mut Vec::new()).await? else {
            page.next = None;
            break;
        };
        page.next = Some([&key[..], &[0]].concat());
        let found = found.filter(|found| !frozen.moment.is_over(found.entry.end, found.version));
        let name = of_encoded(&key).filter(|name| !name.is_system());
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

/// The least byte string above all strings with this prefix; `None` if there is none.
pub(super) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xFF)?;
    let mut out = prefix[..=last].to_vec();
    out[last] += 1;
    Some(out)
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
