//! Get and head: memtable, frozen memtable, tree, under one view (R6).

use std::sync::Arc;

use bytes::{Buf, Bytes};
use shoal_base::Lsn;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_base::task::Boxed;
use shoal_common::damaged_range;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::ObjectKey;
use shoal_common::object::{Attributes, ByteRange, Deadline, EndTime, Metadata, Object, ObjectInfo};
use shoal_log::Record;
use shoal_log::format::RecordKind;
use shoal_memtable::hash_of;
use shoal_memtable::read_cache::ReadCache;
use shoal_pool::Hint;
use shoal_tablets::counters::OperationCounters;
use shoal_tablets::tablet::tree_io::{PoolPage, PoolPages, Remembers, tree_of};
use shoal_tablets::tablet::view::View;
use shoal_tree::Found;
use shoal_tree::layers::{SearchState, Searched};
use shoal_value::{Entry, Home, InlineEntry, Meta, decode_metadata, split_leaf_entry};

use crate::store::{Inner, Store};

/// An object's entry, found under a view. Inline bytes refer to the record or to the leaf's frame.
pub(crate) struct FoundEntry {
    pub version: Lsn,
    pub entry: Entry,
    pub inline: Bytes,
}

impl FoundEntry {
    /// Returns true if all bytes of the value are in memory.
    pub(crate) fn is_inline(&self) -> bool {
        self.entry.home == Home::Inline
    }

    /// The object's metadata; `None` if it is stored on the device, before the value.
    #[inline]
    pub(crate) fn metadata_in_memory(&self) -> Option<Result<Metadata>> {
        let bytes = match &self.entry.meta {
            Meta::Inline(bytes) => bytes,
            Meta::InFront { bytes, .. } if self.is_inline() => {
                self.inline.get(..*bytes as usize).unwrap_or(&[])
            }
            Meta::InFront { .. } => return None,
        };
        Some(metadata_of(bytes))
    }

    /// The attributes of the value alone, from an entry whose metadata is stored before the value.
    pub(super) fn summary(&self) -> Metadata {
        let summary: &[u8] = match &self.entry.meta {
            Meta::Inline(_) => &[],
            Meta::InFront { summary, .. } => summary,
        };
        // The summary was checked with the entry.
        let attributes = Attributes::decode(summary).unwrap_or_default();
        Metadata { attributes, ..Metadata::default() }
    }
}

/// An object whose value is contiguous in memory: in its leaf, in a record of the log, or in a read cache.
pub struct ShortObject<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) version: Lsn,
    pub(crate) entry: InlineEntry<'a>,
    /// True if no newer write of the key is in flight.
    pub(crate) is_settled: bool,
}

impl std::fmt::Debug for ShortObject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShortObject({} bytes, version {})", self.entry.value.len(), self.version)
    }
}

impl ShortObject<'_> {
    /// The value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.entry.value
    }

    /// The object's version, length, times and metadata.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn info(&self) -> Result<ObjectInfo> {
        let InlineEntry { modified_ns, end, metadata, value } = self.entry;
        let metadata = decode_metadata(metadata).map_err(|_| corrupt_metadata())?;
        let expiry = self.inner.deadline(end);
        Ok(ObjectInfo { version: self.version, bytes: value.len() as u64, modified_ns, expiry, metadata })
    }
}

/// The answer of memory for a key.
#[derive(Debug)]
pub enum TryGet<T> {
    /// `show` saw the object, or its absence.
    Shown(T),
    /// Memory does not have the answer. [`Store::get_from`] resumes the search.
    MustWait(Lookup),
}

/// The progress of the search for a key. The default is its start.
///
/// A search in progress keeps the space of the pages and the value that it found from reuse (R16): resume it
/// at once, or drop it.
#[derive(Default)]
pub struct Lookup(Progress);

#[derive(Default)]
enum Progress {
    #[default]
    Begin,
    /// The memtables do not have the key; the search continues at this page of the trees.
    Tree(Arc<View>, SearchState),
    /// The entry is found, and its value is on the device.
    Found(Arc<View>, FoundEntry),
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Progress::Begin => "Lookup(begin)",
            Progress::Tree(..) => "Lookup(tree)",
            Progress::Found(..) => "Lookup(found)",
        })
    }
}

impl Store {
    /// The object, or the bytes of it in `range`; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`]; [`Error::Invalid`] for more than 4 MiB at once (use [`Self::get_stream`]).
    pub fn get<'a>(
        &'a self,
        key: &'a ObjectKey,
        range: ByteRange,
    ) -> impl Future<Output = Result<Option<Object>>> + Send + 'a {
        self.get_from(Lookup::default(), key, range, |_| Result::Ok(()))
    }

    /// As [`Self::get`], but resumes the search `lookup`. Calls `admit` with the number of bytes before it brings bytes
    /// of the value into memory.
    ///
    /// # Errors
    /// As [`Self::get`], and the error of `admit`: then the value was not read.
    pub async fn get_from<E: From<Error>>(
        &self,
        lookup: Lookup,
        key: &ObjectKey,
        range: ByteRange,
        admit: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<Option<Object>, E> {
        let inner = &*self.0;
        inner.check_open()?;
        let was_tried = matches!(lookup.0, Progress::Tree(..));
        // The view is held until the read completes: its blocks are not reused before (R16).
        let (_view, found) = match lookup.0 {
            Progress::Begin => {
                let view = inner.tablets.of(key).view();
                let found = inner.find_stored(&view, key.encoded()).await?;
                (view, found)
            }
            Progress::Tree(view, next) => {
                let found = inner.find_below(&view, Some(next), key.encoded()).await?;
                (view, found)
            }
            Progress::Found(view, found) => (view, Some(found)),
        };
        let Some(found) = found.filter(|found| !inner.is_over(found.entry.end, found.version)) else {
            return Ok(None);
        };
        let (first, bytes) = range.within(found.entry.value_bytes);
        check_single(bytes)?;
        admit(bytes)?;
        let object = inner.read_object(&found, first, bytes, Hint::Lookup).await?;
        inner.count_get(bytes);
        if was_tried && found.is_inline() {
            inner.keep_read(key, found.entry.value_bytes as usize);
        }
        Ok(Some(object))
    }

    /// Shows the newest durable state of a key to `show` if memory has it: a short value in its leaf or in a record of
    /// the log, or the absence of the object.
    pub fn try_get<T>(&self, key: &ObjectKey, show: impl FnOnce(Option<&ShortObject<'_>>) -> T) -> TryGet<T> {
        self.0.try_get(key, |found| {
            self.0.count_get(found.map_or(0, |found| found.value().len() as u64));
            show(found)
        })
    }

    /// Like [`Self::get`], if memory has the answer and the value is in its leaf or in a record of the log: such a get
    /// needs no future, which is large.
    pub fn try_get_range(&self, key: &ObjectKey, range: ByteRange) -> TryGet<Option<Object>> {
        let inner = &*self.0;
        if inner.check_open().is_err() {
            return TryGet::MustWait(Lookup::default());
        }
        let view = inner.tablets.of(key).view();
        let found = match inner.try_find(&view, key.encoded()) {
            Ok(Searched::Found(found)) => found,
            Ok(Searched::Absent) => return TryGet::Shown(None),
            Ok(Searched::MustWait(place)) => return TryGet::MustWait(Lookup(Progress::Tree(view, place))),
            // The search that waits reports the damage.
            Err(_) => return TryGet::MustWait(Lookup::default()),
        };
        if inner.is_over(found.entry.end, found.version) {
            return TryGet::Shown(None);
        }
        let (first, bytes) = range.within(found.entry.value_bytes);
        match found.is_inline().then(|| inner.inline_object(&found, first, bytes)) {
            Some(Ok(object)) => {
                inner.count_get(bytes);
                TryGet::Shown(Some(object))
            }
            Some(Err(_)) | None => TryGet::MustWait(Lookup(Progress::Found(view, found))),
        }
    }

    /// The object's version, length, times and metadata; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub async fn head(&self, key: &ObjectKey) -> Result<Option<ObjectInfo>> {
        let inner = &*self.0;
        inner.check_open()?;
        let view = inner.tablets.of(key).view();
        match inner.find(&view, key.encoded()).await? {
            Some(found) => inner.info(&found).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Inner {
    /// The entry of a key under `view`; `None` if the object does not exist or has expired.
    pub(crate) async fn find(&self, view: &View, key: &[u8]) -> Result<Option<FoundEntry>> {
        let found = self.find_stored(view, key).await?;
        Ok(found.filter(|found| !self.is_over(found.entry.end, found.version)))
    }

    /// The newest durable record of a key in the memtables of `view`; `true` means that no newer record is in
    /// flight.
    fn record_of(&self, view: &View, key: &[u8]) -> (Option<Arc<Record>>, bool) {
        let mut is_settled = true;
        let frozen = view.frozen.as_ref().filter(|_| !injected(Bug::FrozenNotRead));
        let durable = || {
            if injected(Bug::InFlightServed) {
                self.log.committer.assigned()
            } else {
                self.log.committer.durable()
            }
        };
        for memtable in [Some(&view.active), frozen].into_iter().flatten() {
            let (record, settled) = memtable.get(key, durable);
            is_settled &= settled;
            if record.is_some() {
                return (record, is_settled);
            }
        }
        (None, is_settled)
    }

    /// Shows the newest durable state of a key to `show` if memory has it: the read cache, or memtables and pool.
    #[inline]
    pub(crate) fn try_get<T>(
        &self,
        key: &ObjectKey,
        show: impl FnOnce(Option<&ShortObject<'_>>) -> T,
    ) -> TryGet<T> {
        if self.check_open().is_err() {
            return TryGet::MustWait(Lookup::default());
        }
        let hash = hash_of(key.encoded());
        // Read before the lookup: a write during the lookup changes the count.
        let count = self.tablets.write_counts.now(hash);
        let cached = self.read_cache.find(hash, key.encoded());
        if let Some(value) = &cached
            && value.count == count
            && !self.is_over(value.end(), value.version())
        {
            let (version, entry) = (value.version(), value.entry());
            return TryGet::Shown(show(Some(&ShortObject { inner: self, version, entry, is_settled: true })));
        }
        self.try_search(key, |found| {
            if let Some(found) = found
                && found.is_settled
                && ReadCache::fits(key.encoded().len(), found.value().len())
                && (cached.is_some() || self.read_cache.missed_again(hash))
            {
                self.read_cache.put(hash, key.encoded(), found.version, &found.entry, count);
            }
            show(found)
        })
    }

    /// Caches the value of a key that misses often, after a get that read its leaf from the device. The leaf is searched
    /// again, because that get does not know if a newer record is in flight.
    pub(crate) fn keep_read(&self, key: &ObjectKey, value_bytes: usize) {
        let hash = hash_of(key.encoded());
        if !ReadCache::fits(key.encoded().len(), value_bytes) || !self.read_cache.missed_again(hash) {
            return;
        }
        let count = self.tablets.write_counts.now(hash);
        self.try_search(key, |found| {
            if let Some(found) = found.filter(|found| found.is_settled) {
                self.read_cache.put(hash, key.encoded(), found.version, &found.entry, count);
            }
        });
    }

    /// As [`Self::try_get`], without the read cache.
    fn try_search<T>(&self, key: &ObjectKey, show: impl FnOnce(Option<&ShortObject<'_>>) -> T) -> TryGet<T> {
        let view = self.tablets.of(key).view();
        let (record, is_settled) = self.record_of(&view, key.encoded());
        let leaf;
        let (version, body) = match &record {
            Some(record) if record.kind() == RecordKind::Delete => return TryGet::Shown(show(None)),
            Some(record) => (Lsn(record.lsn_raw()), record.body_bytes()),
            None => {
                self.note_searches(&view, 1);
                let tree = tree_of(self.identity, view.tablet);
                match view.trees.try_find(tree, &PoolPages::new(&self.pool), key.encoded()) {
                    Ok(Searched::Absent) => return TryGet::Shown(show(None)),
                    Ok(Searched::MustWait(place)) => {
                        return TryGet::MustWait(Lookup(Progress::Tree(view, place)));
                    }
                    Ok(Searched::Found(found)) => leaf = found,
                    // The search that waits reports the damage.
                    Err(_) => return TryGet::MustWait(Lookup::default()),
                }
                match split_leaf_entry(&leaf) {
                    Ok(split) => split,
                    Err(_) => return TryGet::MustWait(Lookup::default()),
                }
            }
        };
        if let Some(entry) = InlineEntry::decode(body) {
            let found = ShortObject { inner: self, version, entry, is_settled };
            let found = Some(&found).filter(|found| !self.is_over(found.entry.end, version));
            return TryGet::Shown(show(found));
        }
        let found = match record {
            Some(record) => entry_of_record(&record),
            None => Entry::decode(body)
                .map(|(entry, _)| FoundEntry { version, entry, inline: Bytes::new() })
                .map_err(|_| corrupt_entry()),
        };
        TryGet::MustWait(Lookup(found.map_or(Progress::Begin, |found| Progress::Found(view, found))))
    }

    fn count_get(&self, bytes: u64) {
        self.count(&self.counters.gets);
        OperationCounters::add(&self.counters.value_bytes_read, bytes);
    }

    /// Like [`Self::find_stored`], but from memory only.
    fn try_find(&self, view: &View, key: &[u8]) -> Result<Searched<FoundEntry>> {
        match self.record_of(view, key).0 {
            Some(record) if record.kind() == RecordKind::Delete => Ok(Searched::Absent),
            Some(record) => entry_of_record(&record).map(Searched::Found),
            None => self.try_find_in_tree(view, key),
        }
    }

    /// Notes that reads search the trees of a view for `keys` keys: they pay for compactions, so a compactor that sleeps looks again.
    pub(crate) fn note_searches(&self, view: &View, keys: usize) {
        if !view.trees.layers.list.is_empty() {
            self.tablets.note_searches(view, keys);
            self.log.committer.sleepers.wake();
        }
    }

    /// Like [`Self::find_in_tree`], but from memory only.
    fn try_find_in_tree(&self, view: &View, key: &[u8]) -> Result<Searched<FoundEntry>> {
        self.note_searches(view, 1);
        let tree = tree_of(self.identity, view.tablet);
        Ok(match view.trees.try_find(tree, &PoolPages::new(&self.pool), key)? {
            Searched::Found(found) => Searched::Found(entry_of_leaf(found)?),
            Searched::Absent => Searched::Absent,
            Searched::MustWait(place) => Searched::MustWait(place),
        })
    }

    /// The newest durable entry of a key under `view`, expired or not.
    pub(crate) async fn find_stored(&self, view: &View, key: &[u8]) -> Result<Option<FoundEntry>> {
        match self.record_of(view, key).0 {
            Some(record) if record.kind() == RecordKind::Delete => Ok(None),
            Some(record) => entry_of_record(&record).map(Some),
            None => self.find_in_tree(view, key).await,
        }
    }

    /// The entry of a key in the tree of `view`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the range if the page that has the answer is damaged, lost, or cannot be read.
    pub(crate) async fn find_in_tree(&self, view: &View, key: &[u8]) -> Result<Option<FoundEntry>> {
        let place = match self.try_find_in_tree(view, key) {
            Ok(Searched::Found(found)) => return Ok(Some(found)),
            Ok(Searched::Absent) => return Ok(None),
            Ok(Searched::MustWait(place)) => Some(place),
            // The search that waits reports the damage.
            Err(_) => None,
        };
        self.find_below(view, place, key).await
    }

    /// The same, from `place` on: the progress of the search so far.
    fn find_below<'a>(
        &'a self,
        view: &'a View,
        place: Option<SearchState>,
        key: &'a [u8],
    ) -> Boxed<'a, Result<Option<FoundEntry>>> {
        Box::pin(async move {
            let tree = tree_of(self.identity, view.tablet);
            // A repair looks up many keys under the same damaged page; a user's get asks the device each
            // time.
            let remembers = if self.checkpointer.gives_up { Remembers::All } else { Remembers::Nothing };
            let pages = PoolPages::new(&self.pool).remembering(remembers);
            match view.trees.find(tree, &pages, place, key).await {
                Ok(Some(found)) => entry_of_leaf(found).map(Some),
                Ok(None) => Ok(None),
                // Rare: the futures of all gets are smaller without this one.
                Err(error) => Err(Box::pin(self.not_known(view, key, error)).await),
            }
        })
    }

    /// The error for a key whose lookup in the tree failed. It names the range that is damaged or cannot be read, if it
    /// still is.
    async fn not_known(&self, view: &View, key: &[u8], error: Error) -> Error {
        if !is_unreadable(&error) {
            return error;
        }
        let tree = tree_of(self.identity, view.tablet);
        // A block that the device reads now was no damage: the error is returned unchanged.
        let remembers = if self.checkpointer.gives_up { Remembers::All } else { Remembers::WrongBytes };
        let pages = PoolPages::new(&self.pool).giving_up(true).remembering(remembers);
        match view.trees.gap_at(tree, &pages, key).await {
            Some(gap) => {
                let range = gap.in_tablet(view.tablet);
                self.tablets.met.note(&range);
                damaged_range::error(&range)
            }
            None => error,
        }
    }

    /// An object with a part of its value, which is stored in its entry.
    fn inline_object(&self, found: &FoundEntry, first: u64, bytes: u64) -> Result<Object> {
        let metadata = found.metadata_in_memory().unwrap_or_else(|| Err(corrupt_metadata()))?;
        let from = u64::from(found.entry.meta_in_front()) + first;
        let value = found.inline.slice(from as usize..(from + bytes) as usize).into();
        Ok(Object { info: self.info_of(found, metadata), value })
    }

    /// Reads a part of an object's value.
    pub(crate) async fn read_object(
        &self,
        found: &FoundEntry,
        first: u64,
        bytes: u64,
        hint: Hint,
    ) -> Result<Object> {
        assert!(first + bytes <= found.entry.value_bytes, "a read is within its value");
        if found.is_inline() {
            return self.inline_object(found, first, bytes);
        }
        self.read_extents(found, first, bytes, hint).await
    }

    /// Reads a part of a value that has extents. Metadata before its first byte is read with it.
    fn read_extents<'a>(
        &'a self,
        found: &'a FoundEntry,
        first: u64,
        bytes: u64,
        hint: Hint,
    ) -> Boxed<'a, Result<Object>> {
        Box::pin(async move {
            let located = self.manifests.find(&self.device, &self.pool, &found.entry, found.version).await?;
            let front = u64::from(found.entry.meta_in_front());
            let read = |from, bytes| shoal_value::read(&self.device, &self.pool, &located, from, bytes, hint);
            let (metadata, value) = match found.metadata_in_memory() {
                Some(metadata) => (metadata?, read(front + first, bytes).await?),
                None if first == 0 => {
                    let mut both = read(0, front + bytes).await?;
                    (metadata_of(&both.copy_to_bytes(front as usize))?, both)
                }
                None => (self.metadata_in_front(found).await?, read(front + first, bytes).await?),
            };
            Ok(Object { info: self.info_of(found, metadata), value })
        })
    }

    /// The object's version, length, times and metadata. Reads from the device only if metadata is stored before
    /// the value.
    pub(crate) async fn info(&self, found: &FoundEntry) -> Result<ObjectInfo> {
        let metadata = match found.metadata_in_memory() {
            Some(metadata) => metadata?,
            None => self.metadata_in_front(found).await?,
        };
        Ok(self.info_of(found, metadata))
    }

    /// Reads metadata that is stored before the value. Rare, so its future is boxed: the futures of all gets are
    /// smaller without it.
    fn metadata_in_front<'a>(&'a self, found: &'a FoundEntry) -> Boxed<'a, Result<Metadata>> {
        Box::pin(async move {
            let located = self.manifests.find(&self.device, &self.pool, &found.entry, found.version).await?;
            let count = u64::from(found.entry.meta_in_front());
            let bytes = shoal_value::read(&self.device, &self.pool, &located, 0, count, Hint::Lookup).await?;
            metadata_of(&bytes.to_vec())
        })
    }
}

impl Inner {
    pub(crate) fn info_of(&self, found: &FoundEntry, metadata: Metadata) -> ObjectInfo {
        ObjectInfo {
            version: found.version,
            bytes: found.entry.value_bytes,
            modified_ns: found.entry.modified_ns,
            expiry: self.deadline(found.entry.end),
            metadata,
        }
    }

    /// The deadline of `end`, as of now.
    pub(crate) fn deadline(&self, end: Option<EndTime>) -> Option<Deadline> {
        end.map(|end| self.log.deadline(end))
    }
}

/// Returns true if stored bytes are damaged, or if the device cannot read them.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } => true,
        Error::Io(device) => !device.is_write(),
        _ => false,
    }
}

/// Refuses to bring more bytes of a value into memory than are allowed at once.
///
/// # Errors
/// [`Error::Invalid`] above 4 MiB.
pub(crate) fn check_single(bytes: u64) -> Result<()> {
    if bytes > VALUE_BYTES_SINGLE_MAX {
        return Err(Error::Invalid(format!(
            "{bytes} bytes are too many for one get: use a stream, or ranges of up to {VALUE_BYTES_SINGLE_MAX} bytes"
        )));
    }
    Ok(())
}

/// The entry in a record of a memtable. Its version is valid only once the record has its number.
pub(crate) fn entry_of_record(record: &Arc<Record>) -> Result<FoundEntry> {
    let body = record.body();
    decode(Lsn(record.lsn_raw()), &body)
        .ok_or_else(|| Error::Corrupt { what: "a record in memory".into(), block: 0 })
}

/// The entry in a leaf. Only one with inline bytes keeps the leaf's frame pinned.
pub(crate) fn entry_of_leaf(found: Found<PoolPage>) -> Result<FoundEntry> {
    let (version, entry, inline) = decode_leaf_entry(&found)?;
    let inline = if inline.is_empty() {
        Bytes::new()
    } else {
        let count = inline.len();
        let (page, range) = found.into_parts();
        page.into_bytes().slice(range.end - count..range.end)
    };
    Ok(FoundEntry { version, entry, inline })
}

/// The entry in a leaf without its value: its `inline` has the metadata only, and no frame stays pinned.
pub(crate) fn entry_without_value(found: &Found<PoolPage>) -> Result<FoundEntry> {
    let (version, entry, inline) = decode_leaf_entry(found)?;
    let metadata = inline.get(..entry.meta_in_front() as usize).unwrap_or_default();
    let inline = if metadata.is_empty() { Bytes::new() } else { Bytes::copy_from_slice(metadata) };
    Ok(FoundEntry { version, entry, inline })
}

#[inline]
fn decode_leaf_entry(found: &Found<PoolPage>) -> Result<(Lsn, Entry, &[u8])> {
    let split = split_leaf_entry(found).and_then(|(version, body)| Ok((version, Entry::decode(body)?)));
    let (version, (entry, inline)) = split.map_err(|_| corrupt_entry())?;
    Ok((version, entry, inline))
}

fn corrupt_entry() -> Error {
    Error::Corrupt { what: "an entry of a leaf".into(), block: 0 }
}

fn metadata_of(bytes: &[u8]) -> Result<Metadata> {
    decode_metadata(bytes).map_err(|_| corrupt_metadata())
}

fn corrupt_metadata() -> Error {
    Error::Corrupt { what: "an object's metadata".into(), block: 0 }
}

fn decode(version: Lsn, body: &Bytes) -> Option<FoundEntry> {
    let (entry, inline) = Entry::decode(body).ok()?;
    let inline = if inline.is_empty() { Bytes::new() } else { body.slice_ref(inline) };
    Some(FoundEntry { version, entry, inline })
}

#[cfg(test)]
mod tests {
    use shoal_base::task::block_on;
    use shoal_common::object::{PutOptions, RejectRules};
    use shoal_common::options::{Environment, OpenOptions};
    use shoal_testkit::bytes::patterned;

    use super::*;
    use crate::testing::fixtures::{in_memory, key, open_in};

    /// Values in records, in leaves and in extents, with metadata beside them and before them; ranges within, across and
    /// past their last bytes.
    #[test]
    fn try_get_matches_get() {
        let options = OpenOptions { background: false, cache_bytes: 16 << 20, ..OpenOptions::default() };
        let store = open_in(&in_memory(), options, Environment::default());
        let same = |store: &Store, name: &str| {
            for (first, bytes) in [(0, u64::MAX), (3, 5), (900, 200), (1_000_000, 1)] {
                let (key, range) = (key(name), ByteRange { first, bytes: Some(bytes) });
                let waited = block_on(store.get(&key, range)).unwrap();
                let (answered, object) = match store.try_get_range(&key, range) {
                    TryGet::Shown(object) => (true, object),
                    TryGet::MustWait(lookup) => (
                        false,
                        block_on(store.get_from(lookup, &key, range, |_| Ok::<_, Error>(()))).unwrap(),
                    ),
                };
                let parts =
                    |object: Option<Object>| object.map(|object| (object.info, object.value.to_vec()));
                let (object, waited) = (parts(object), parts(waited));
                assert_eq!(object, waited, "{name}: {first}, {bytes}");
                let is_long = waited.is_some_and(|(info, _)| info.bytes > 2_000);
                assert!(answered || is_long, "{name} is in memory");
            }
        };
        let metadata = |bytes| Metadata { content_type: "t".repeat(bytes), ..Metadata::default() };
        let names = ["0", "10", "1000", "20000", "100000"];
        for name in names {
            for meta in [0, 5, 120] {
                let put = PutOptions { metadata: metadata(meta), ..PutOptions::default() };
                let value = patterned(name.parse().unwrap(), 1).into();
                block_on(store.put(&key(format!("{name}-{meta}")), value, put)).unwrap();
            }
        }
        block_on(store.delete(&key("10-0"), RejectRules::default())).unwrap();
        for is_applied in [false, true] {
            for name in names {
                [0, 5, 120].into_iter().for_each(|meta| same(&store, &format!("{name}-{meta}")));
            }
            same(&store, "absent");
            if !is_applied {
                block_on(store.0.checkpointer.apply_all()).unwrap();
            }
        }
        block_on(store.close()).unwrap();
        assert!(matches!(store.try_get_range(&key("0-0"), ByteRange::ALL), TryGet::MustWait(_)));
    }
}
