//! Get and head: overlay, frozen overlay, tree, under one view (R6).

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_buffer::Buffer;
use shoal_pool::Hint;

use crate::damage::DamagedRange;
use crate::entry::{End, Entry, Home, Meta, decode_metadata, split_leaf_entry};
use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::log::format::RecordKind;
use crate::object::{ByteRange, Deadline, Object, ObjectInfo};
use crate::overlay::Record;
use crate::plant::{Plant, planted};
use crate::store::{Inner, OperationCounters, Store};
use crate::tablet::View;
use crate::tree_io::{PoolPages, tree_of};
use crate::value::read::{self, Located};

/// An object's entry, found under a view. Inline bytes refer to the record or to the leaf's frame.
pub(crate) struct FoundEntry {
    pub version: Lsn,
    pub entry: Entry,
    pub inline: Bytes,
}

impl FoundEntry {
    /// Whether all its bytes are in memory.
    pub(crate) fn is_inline(&self) -> bool {
        self.entry.home == Home::Inline
    }
}

/// A value that lies in memory in one piece.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub value: &'a [u8],
    pub version: Lsn,
    pub modified_ns: u64,
    /// Content type and user metadata, encoded.
    pub metadata: &'a [u8],
    pub end: Option<End>,
    /// Whether no newer write of the key is in flight.
    pub is_settled: bool,
}

impl Shown<'_> {
    /// What is known about the object; none where it cannot be read.
    pub(crate) fn info(&self, inner: &Inner) -> Option<ObjectInfo> {
        let metadata = decode_metadata(self.metadata).ok()?;
        let Self { version, modified_ns, end, .. } = *self;
        let expiry = inner.deadline(end);
        Some(ObjectInfo { version, bytes: self.value.len() as u64, modified_ns, expiry, metadata })
    }
}

impl Store {
    /// The object, or the bytes of it in `range`; none where there is no such object.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`]; [`Error::Invalid`] for more than 4 MiB at once ([`Self::get_stream`] for those).
    pub async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Option<Object>> {
        self.get_admitted(key, range, |_| Result::Ok(())).await
    }

    /// As [`Self::get`], but asks `admit` before so many bytes of the value are brought into memory.
    ///
    /// # Errors
    /// As [`Self::get`], and what `admit` says: then the device was not asked for the value.
    pub async fn get_admitted<E: From<Error>>(
        &self,
        key: &ObjectKey,
        range: ByteRange,
        admit: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<Option<Object>, E> {
        let inner = &*self.0;
        inner.check_open()?;
        // The view is held until the device was read: what it reaches is not reused before (R16).
        let view = inner.tablet_of(key).view();
        let Some(found) = inner.find(&view, key.encoded()).await? else { return Ok(None) };
        let (first, bytes) = range.within(found.entry.value_bytes);
        check_single(bytes)?;
        admit(bytes)?;
        let object = inner.read_object(&found, first, bytes).await?;
        inner.count(&inner.counters.gets);
        OperationCounters::add(&inner.counters.value_bytes_read, bytes);
        Ok(Some(object))
    }

    /// Shows the value of an object to `show`, where it can be told at once and lies in memory in one piece: a short value in
    /// its leaf or in a record of the log. Nothing where it must be waited for, where it is longer, or where it cannot be
    /// read: [`Self::get`] has the answer then.
    pub fn show_at_once<T>(&self, key: &ObjectKey, show: impl FnOnce(Option<&[u8]>) -> T) -> Option<T> {
        let inner = &*self.0;
        inner.check_open().ok()?;
        let (bytes, shown) = inner.show_found(key, |found| show(found.map(|found| found.value)))?;
        inner.count(&inner.counters.gets);
        OperationCounters::add(&inner.counters.value_bytes_read, bytes);
        Some(shown)
    }

    /// As [`Self::show_at_once`], with what is known about the object.
    pub fn show_object_at_once<T>(
        &self,
        key: &ObjectKey,
        show: impl FnOnce(Option<(&ObjectInfo, &[u8])>) -> T,
    ) -> Option<T> {
        let inner = &*self.0;
        inner.check_open().ok()?;
        let (bytes, shown) = inner.show_found(key, |found: Option<Shown<'_>>| match found {
            None => Some(show(None)),
            Some(found) => found.info(inner).map(|info| show(Some((&info, found.value)))),
        })?;
        let shown = shown?;
        inner.count(&inner.counters.gets);
        OperationCounters::add(&inner.counters.value_bytes_read, bytes);
        Some(shown)
    }

    /// As [`Self::show_at_once`], as a copy.
    #[must_use]
    pub fn get_at_once(&self, key: &ObjectKey) -> Option<Option<Bytes>> {
        self.show_at_once(key, |value| value.map(Bytes::copy_from_slice))
    }

    /// What is known about an object; none where there is no such object.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub async fn head(&self, key: &ObjectKey) -> Result<Option<ObjectInfo>> {
        let inner = &*self.0;
        inner.check_open()?;
        let view = inner.tablet_of(key).view();
        match inner.find(&view, key.encoded()).await? {
            Some(found) => inner.info(&found).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Inner {
    /// The entry of a key under `view`; none where it does not exist, or its time is over.
    pub(crate) async fn find(&self, view: &View, key: &[u8]) -> Result<Option<FoundEntry>> {
        let found = self.find_stored(view, key).await?;
        Ok(found.filter(|found| !self.is_over(found.entry.end, found.version)))
    }

    /// The newest durable record of a key in the overlays of `view`, and whether nothing newer is in flight.
    fn record_of(&self, view: &View, key: &[u8]) -> (Option<Arc<Record>>, bool) {
        let mut is_settled = true;
        let frozen = view.frozen.as_ref().filter(|_| !planted(Plant::FrozenNotRead));
        let durable = || {
            if planted(Plant::InFlightServed) { self.committer.assigned() } else { self.committer.durable() }
        };
        for overlay in [Some(&view.active), frozen].into_iter().flatten() {
            let (record, settled) = overlay.get(key, durable);
            is_settled &= settled;
            if record.is_some() {
                return (record, is_settled);
            }
        }
        (None, is_settled)
    }

    /// Shows the value of an object, and its bytes, where it can be told at once and lies in memory in one piece.
    pub(crate) fn show_found<T>(
        &self,
        key: &ObjectKey,
        show: impl FnOnce(Option<Shown<'_>>) -> T,
    ) -> Option<(u64, T)> {
        let view = self.tablet_of(key).view();
        let (record, is_settled) = self.record_of(&view, key.encoded());
        match record {
            Some(record) if record.kind() == RecordKind::Delete => Some((0, show(None))),
            Some(record) => self.show_inline(Lsn(record.lsn_raw()), record.body_bytes(), is_settled, show),
            None => {
                let tree = tree_of(self.identity, view.tablet);
                let pages = PoolPages::new(&self.pool);
                let lookup = pin!(tree.lookup(&pages, view.root, key.encoded()));
                let Poll::Ready(Ok(found)) = lookup.poll(&mut Context::from_waker(Waker::noop())) else {
                    return None;
                };
                match found {
                    Some(found) => {
                        let (version, body) = split_leaf_entry(&found).ok()?;
                        self.show_inline(version, body, is_settled, show)
                    }
                    None => Some((0, show(None))),
                }
            }
        }
    }

    /// Shows the value in the body of an entry, where it lies there; gives its bytes too.
    fn show_inline<T>(
        &self,
        version: Lsn,
        body: &[u8],
        is_settled: bool,
        show: impl FnOnce(Option<Shown<'_>>) -> T,
    ) -> Option<(u64, T)> {
        let (entry, inline) = Entry::decode(body).ok()?;
        if entry.home != Home::Inline {
            return None;
        }
        if self.is_over(entry.end, version) {
            return Some((0, show(None)));
        }
        let (in_front, value) = inline.split_at_checked(entry.meta_in_front() as usize)?;
        let metadata = match &entry.meta {
            Meta::Inline(bytes) => bytes,
            Meta::InFront(_) => in_front,
        };
        let Entry { modified_ns, end, .. } = entry;
        let shown = Shown { value, version, modified_ns, metadata, end, is_settled };
        Some((value.len() as u64, show(Some(shown))))
    }

    async fn find_stored(&self, view: &View, key: &[u8]) -> Result<Option<FoundEntry>> {
        match self.record_of(view, key).0 {
            Some(record) if record.kind() == RecordKind::Delete => Ok(None),
            Some(record) => entry_of_record(&record).map(Some),
            None => self.find_in_tree(view, key).await,
        }
    }

    /// The entry of a key in the tree of `view`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the range, where the page that would tell is damaged, lost, or cannot be read.
    pub(crate) async fn find_in_tree(&self, view: &View, key: &[u8]) -> Result<Option<FoundEntry>> {
        let tree = tree_of(self.identity, view.tablet);
        let found = match tree.lookup(&PoolPages::new(&self.pool), view.root, key).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.not_known(view, key, error).await),
        };
        let (page, range) = found.into_parts();
        entry_of_leaf(&page.into_bytes().slice(range)).map(Some)
    }

    /// What a reader is told of a key that the tree could not look up: the range that is damaged or cannot be read, where it still is.
    async fn not_known(&self, view: &View, key: &[u8], error: Error) -> Error {
        if !is_unreadable(&error) {
            return error;
        }
        let tree = tree_of(self.identity, view.tablet);
        let pages = PoolPages::new(&self.pool).giving_up(true);
        match tree.gap_at(pages, view.root, key).await {
            Some(gap) => {
                let range = DamagedRange::new(view.tablet, gap);
                self.met.note(&range);
                range.error()
            }
            None => error,
        }
    }

    /// Reads a part of an object's value.
    pub(crate) async fn read_object(&self, found: &FoundEntry, first: u64, bytes: u64) -> Result<Object> {
        if found.entry.home == Home::Inline {
            let metadata = self.metadata_of(found, None).await?;
            let from = u64::from(found.entry.meta_in_front()) + first;
            let value = found.inline.slice(from as usize..(from + bytes) as usize).into();
            return Ok(Object { info: self.info_of(found, metadata), value });
        }
        let located = Located::find(&self.device, &self.pool, &found.entry, found.version).await?;
        let metadata = self.metadata_of(found, Some(&located)).await?;
        let from = u64::from(found.entry.meta_in_front()) + first;
        let value = read::read(&self.device, &self.pool, &located, from, bytes, Hint::Lookup).await?;
        Ok(Object { info: self.info_of(found, metadata), value })
    }

    /// What is known about an object; reads from the device only where metadata lies in front of the value.
    pub(crate) async fn info(&self, found: &FoundEntry) -> Result<ObjectInfo> {
        let metadata = if found.entry.meta_in_front() > 0 && found.entry.home != Home::Inline {
            let located = Located::find(&self.device, &self.pool, &found.entry, found.version).await?;
            self.metadata_of(found, Some(&located)).await?
        } else {
            self.metadata_of(found, None).await?
        };
        Ok(self.info_of(found, metadata))
    }

    async fn metadata_of(
        &self,
        found: &FoundEntry,
        located: Option<&Located>,
    ) -> Result<crate::object::Metadata> {
        let in_front: Buffer;
        let joined: Vec<u8>;
        let bytes: &[u8] = match (&found.entry.meta, located) {
            (Meta::Inline(bytes), _) => bytes,
            (Meta::InFront(count), None) => found.inline.get(..*count as usize).unwrap_or(&[]),
            (Meta::InFront(count), Some(located)) => {
                in_front =
                    read::read(&self.device, &self.pool, located, 0, u64::from(*count), Hint::Lookup).await?;
                joined = in_front.to_vec();
                &joined
            }
        };
        decode_metadata(bytes).map_err(|_| Error::Corrupt { what: "an object's metadata".into(), block: 0 })
    }
}

impl Inner {
    pub(crate) fn info_of(&self, found: &FoundEntry, metadata: crate::object::Metadata) -> ObjectInfo {
        ObjectInfo {
            version: found.version,
            bytes: found.entry.value_bytes,
            modified_ns: found.entry.modified_ns,
            expiry: self.deadline(found.entry.end),
            metadata,
        }
    }

    /// What is said of a deadline now.
    pub(crate) fn deadline(&self, end: Option<End>) -> Option<Deadline> {
        end.map(|end| self.expiry.deadline(end, &self.committer))
    }
}

/// Whether stored bytes are damaged, or the device cannot read them.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } => true,
        Error::Io(device) => !device.is_write(),
        _ => false,
    }
}

/// Refuses so many bytes of a value where they would be in memory at once.
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

/// The entry in a record of an overlay; its version counts only where the record has its number.
pub(crate) fn entry_of_record(record: &Arc<Record>) -> Result<FoundEntry> {
    let body = record.body();
    decode(Lsn(record.lsn_raw()), &body)
        .ok_or_else(|| Error::Corrupt { what: "a record in memory".into(), block: 0 })
}

/// The entry in the bytes of a leaf.
pub(crate) fn entry_of_leaf(bytes: &Bytes) -> Result<FoundEntry> {
    let found =
        split_leaf_entry(bytes).ok().and_then(|(version, body)| decode(version, &bytes.slice_ref(body)));
    found.ok_or_else(|| Error::Corrupt { what: "an entry of a leaf".into(), block: 0 })
}

fn decode(version: Lsn, body: &Bytes) -> Option<FoundEntry> {
    let (entry, inline) = Entry::decode(body).ok()?;
    let inline = if inline.is_empty() { Bytes::new() } else { body.slice_ref(inline) };
    Some(FoundEntry { version, entry, inline })
}
