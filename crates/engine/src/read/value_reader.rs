//! A value that is read in pieces: up to 5 GiB in bounded memory.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::sync::Mutex;
use shoal_base::task::Boxed;
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::key::ObjectKey;
use shoal_common::object::{ByteRange, ObjectInfo};
use shoal_pool::Hint;
use shoal_tablets::tablet::held::HoldsSpace;
use shoal_tablets::tablet::view::View;
use shoal_value::Home;

use crate::read::get::FoundEntry;
use crate::store::Store;

/// Bytes of one piece of a value.
const READ_PIECE_BYTES: u64 = 1 << 20;
/// A reader of a long value holds the space of its version for this time; afterwards it looks the key up again.
const HOLD_VIEW_NS: u64 = 30_000_000_000;

impl Store {
    /// The object, to be read piece by piece; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub async fn get_stream(&self, key: &ObjectKey, range: ByteRange) -> Result<Option<ValueReader>> {
        let inner = &*self.0;
        inner.check_open()?;
        let view = inner.tablets.of(key).view();
        let Some(found) = inner.find(&view, key.encoded()).await? else { return Ok(None) };
        let info = inner.info(&found).await?;
        let (first, bytes) = range.within(info.bytes);
        let until_ns = inner.now_ns().saturating_add(HOLD_VIEW_NS);
        let held = Arc::new(Holding(Mutex::new(Some(Arc::new(HeldView { _view: view, found, until_ns })))));
        inner.tablets.held_streams.add(&held);
        Ok(Some(ValueReader { store: self.clone(), key: key.clone(), info, next: first, left: bytes, held }))
    }
}

/// Holds the space of the version that is being read.
struct HeldView {
    _view: Arc<View>,
    found: FoundEntry,
    until_ns: u64,
}

/// The holding of one reader; `None` after its time has ended.
struct Holding(Mutex<Option<Arc<HeldView>>>);

impl HoldsSpace for Holding {
    fn expire(&self, now_ns: u64) {
        let expired = self.0.lock().take_if(|held| held.until_ns < now_ns);
        drop(expired);
    }
}

/// A value that is read piece by piece.
pub struct ValueReader {
    store: Store,
    key: ObjectKey,
    info: ObjectInfo,
    next: u64,
    left: u64,
    held: Arc<Holding>,
}

impl ValueReader {
    /// The version, length, times and metadata of the whole object.
    #[must_use]
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// The next piece (at most 1 MiB); `None` at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`]; [`Error::Changed`] if the object was overwritten or deleted and the reader
    /// took longer than the space of old versions is held (30 s).
    pub async fn next(&mut self) -> Result<Option<Buffer>> {
        self.read_piece().await
    }

    fn read_piece(&mut self) -> Boxed<'_, Result<Option<Buffer>>> {
        Box::pin(async move {
            if self.left == 0 {
                return Ok(None);
            }
            assert!(self.next + self.left <= self.info.bytes, "a reader stays within its value");
            let inner = &*self.store.0;
            inner.check_open()?;
            inner.tablets.held_streams.expire(inner.now_ns());
            let held = self.held.0.lock().clone();
            let held = match held {
                Some(held) => held,
                None => {
                    let held = Arc::new(self.look_again().await?);
                    *self.held.0.lock() = Some(held.clone());
                    held
                }
            };
            // Pieces end at unit borders, so that no unit is loaded twice.
            let to_border = READ_PIECE_BYTES
                - (self.next + u64::from(held.found.entry.meta_in_front())) % READ_PIECE_BYTES;
            let bytes = self.left.min(to_border);
            let value = if held.found.entry.home == Home::Inline {
                inner.read_object(&held.found, self.next, bytes, Hint::Lookup).await?.value
            } else {
                let (entry, version) = (&held.found.entry, held.found.version);
                let located = inner.manifests.find(&inner.device, &inner.pool, entry, version).await?;
                let from = u64::from(held.found.entry.meta_in_front()) + self.next;
                shoal_value::read(&inner.device, &inner.pool, &located, from, bytes, Hint::Scan).await?
            };
            assert_eq!(value.len() as u64, bytes, "a piece has the bytes that it was asked for");
            self.next += bytes;
            self.left -= bytes;
            Ok(Some(value))
        })
    }

    /// Finds the same version under a newer view.
    async fn look_again(&self) -> Result<HeldView> {
        let inner = &*self.store.0;
        let view = inner.tablets.of(&self.key).view();
        let read: Lsn = self.info.version;
        let found = inner.find(&view, self.key.encoded()).await?.filter(|found| found.version == read);
        let found = found.ok_or(Error::Changed { read })?;
        Ok(HeldView { _view: view, found, until_ns: inner.now_ns().saturating_add(HOLD_VIEW_NS) })
    }
}
