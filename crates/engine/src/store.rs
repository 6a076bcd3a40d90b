//! TEMPORARY: the store's surface over a map in memory, so that the layers above can be built meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use shoal_base::{Clock, Entropy, Lsn, SystemClock, SystemEntropy};
use shoal_buffer::Buffer;
use shoal_device::Device;

use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::object::*;

/// Where time and randomness come from.
#[derive(Clone)]
pub struct Environment {
    /// Wall clock and monotonic clock.
    pub clock: Arc<dyn Clock>,
    /// Identities and seeds.
    pub entropy: Arc<dyn Entropy>,
}

impl Default for Environment {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock::new()), entropy: Arc::new(SystemEntropy) }
    }
}

/// How a new store is laid out. Fixed for its life.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Blocks that the store may grow to; for a raw device its size.
    pub blocks_max: u64,
    /// Tablets, 1 to 32.
    pub tablets: u16,
    /// Blocks of the log's ring; none: in proportion to `blocks_max`.
    pub log_blocks: Option<u64>,
}

impl FormatOptions {
    /// The default layout for a store that may grow to `blocks_max` blocks.
    #[must_use]
    pub fn for_blocks(blocks_max: u64) -> Self {
        Self { blocks_max, tablets: 4, log_blocks: None }
    }
}

/// How a store is run. May differ from opening to opening.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Memory for cached pages and values, in bytes.
    pub cache_bytes: usize,
    /// Memory for what the log holds and the trees do not yet, in bytes; none: in proportion to cache and log.
    pub overlay_bytes: Option<usize>,
    /// Whether the store runs its own threads (committer, apply, growth). Without them the caller drives it with
    /// [`Store::maintain`]: for tests that must be deterministic.
    pub background: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { cache_bytes: 1 << 30, overlay_bytes: None, background: true }
    }
}

/// Figures about a running store.
#[derive(Clone, Debug, Default)]
pub struct StoreStat {
    /// Objects, where counted (published ones).
    pub objects: u64,
    /// Blocks of the device that are in use or usable now.
    pub blocks: u64,
    /// Blocks that may be handed out now.
    pub free_blocks: u64,
}

/// An open store. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    lsn: u64,
    objects: BTreeMap<Vec<u8>, (ObjectInfo, Bytes)>,
}

impl Store {
    /// Lays a new, empty store out on `device`, which must not hold one.
    ///
    /// # Errors
    /// As the device.
    pub async fn format(_device: &Device, _options: &FormatOptions, _environment: &Environment) -> Result<()> {
        Ok(())
    }

    /// Whether `device` holds a store (of whatever version), as opposed to nothing but zeros or something foreign.
    ///
    /// # Errors
    /// [`Error::Unopenable`] where it holds something foreign; as the device.
    pub async fn probe(_device: &Device) -> Result<bool> {
        Ok(false)
    }

    /// Opens the store on `device` and recovers what a crash left.
    ///
    /// # Errors
    /// [`Error::Unopenable`], [`Error::Corrupt`], as the device.
    pub async fn open(_device: Device, _options: OpenOptions, _environment: Environment) -> Result<Self> {
        Ok(Self(Arc::default()))
    }

    /// Stores `value` under `key`. Durable when it returns. For values of at most 4 MiB ([`Self::put_stream`] for larger).
    ///
    /// # Errors
    /// [`Error::ConditionFailed`], [`Error::Invalid`], [`Error::Full`], [`Error::Busy`], [`Error::Poisoned`],
    /// [`Error::Unknown`].
    pub async fn put(&self, key: &ObjectKey, value: Buffer, options: PutOptions) -> Result<PutResult> {
        let mut inner = self.0.lock();
        let current = inner.objects.get(key.encoded()).map(|(info, _)| info.version);
        if options.rules.reject(current) {
            return Err(Error::ConditionFailed { current });
        }
        inner.lsn += 1;
        let version = Lsn(inner.lsn);
        let info = ObjectInfo {
            version,
            bytes: value.len() as u64,
            modified_ns: options.modified_ns.unwrap_or(0),
            metadata: options.metadata,
        };
        inner.objects.insert(key.encoded().to_vec(), (info, value.to_vec().into()));
        Ok(PutResult { version })
    }

    /// Begins to store a value that arrives in pieces: up to 5 GiB.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_stream(&self, key: &ObjectKey, options: PutOptions) -> Result<PutStream> {
        Ok(PutStream { store: self.clone(), key: key.clone(), options, value: Buffer::new() })
    }

    /// The object, or the bytes of it in `range`; none where there is no such object.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`]; [`Error::Invalid`] for more than 4 MiB ([`Self::get_stream`] for those).
    pub async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Option<Object>> {
        let inner = self.0.lock();
        Ok(inner.objects.get(key.encoded()).map(|(info, bytes)| {
            let (first, count) = range.within(info.bytes);
            let value = bytes.slice(first as usize..(first + count) as usize).into();
            Object { info: info.clone(), value }
        }))
    }

    /// The object to be read piece by piece; none where there is no such object.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub async fn get_stream(&self, key: &ObjectKey, range: ByteRange) -> Result<Option<GetStream>> {
        Ok(self.get(key, range).await?.map(|object| GetStream { info: object.info, value: Some(object.value) }))
    }

    /// What is known about an object.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub async fn head(&self, key: &ObjectKey) -> Result<Option<ObjectInfo>> {
        Ok(self.0.lock().objects.get(key.encoded()).map(|(info, _)| info.clone()))
    }

    /// Deletes an object; deleting what does not exist succeeds, unless the rules say otherwise. Durable when it returns.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(&self, key: &ObjectKey, rules: RejectRules) -> Result<DeleteResult> {
        let mut inner = self.0.lock();
        let current = inner.objects.get(key.encoded()).map(|(info, _)| info.version);
        if rules.reject(current) {
            return Err(Error::ConditionFailed { current });
        }
        inner.lsn += 1;
        let version = Lsn(inner.lsn);
        inner.objects.remove(key.encoded());
        Ok(DeleteResult { deleted: current, version })
    }

    /// One page of the keys of a bucket, in order.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Corrupt`], [`Error::Io`].
    pub async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        let inner = self.0.lock();
        let base = [request.bucket.as_bytes(), &[0]].concat();
        let mut page = ListPage::default();
        for (encoded, (info, _)) in &inner.objects {
            let Some(key) = encoded.strip_prefix(&base[..]) else { continue };
            if !key.starts_with(&request.prefix) || key <= &request.start_after[..] {
                continue;
            }
            if page.entries.len() == request.limit {
                page.next = page.entries.last().map(|(key, _)| key.clone());
                break;
            }
            page.entries.push((key.to_vec(), info.clone()));
        }
        Ok(page)
    }

    /// Figures about the store.
    #[must_use]
    pub fn stat(&self) -> StoreStat {
        StoreStat { objects: self.0.lock().objects.len() as u64, ..StoreStat::default() }
    }

    /// Finishes what is under way, publishes everything and ends the store's threads. Later calls give
    /// [`Error::Closed`].
    ///
    /// # Errors
    /// As the device.
    pub async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// A value on its way in. Dropping it without [`finish`](Self::finish) leaves nothing behind.
pub struct PutStream {
    store: Store,
    key: ObjectKey,
    options: PutOptions,
    value: Buffer,
}

impl PutStream {
    /// Takes the next bytes of the value.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.value.append_copy(bytes);
        Ok(())
    }

    /// The value is complete: makes it durable and visible.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn finish(self) -> Result<PutResult> {
        self.store.put(&self.key, self.value, self.options).await
    }
}

/// A value on its way out.
pub struct GetStream {
    info: ObjectInfo,
    value: Option<Buffer>,
}

impl GetStream {
    /// What is known about the whole object.
    #[must_use]
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// The next piece (at most 1 MiB); none at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`], [`Error::Changed`].
    pub async fn next(&mut self) -> Result<Option<Buffer>> {
        Ok(self.value.take())
    }
}
