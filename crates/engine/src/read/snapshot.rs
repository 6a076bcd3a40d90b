//! A snapshot: the whole store at one version, readable while writes continue (INV-36).

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::list::DamagedRange;
use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::key::ObjectKey;
use shoal_common::object::{ByteRange, ListPage, ListRequest, Metadata, Object, ObjectInfo};
use shoal_log::run_to_end;
use shoal_pool::Hint;
use shoal_tablets::tablet::snapshots::{Frozen, Holding};

use crate::read::get::{FoundEntry, check_single, is_unreadable};
use crate::read::list::{list_page, walk_frozen};
use crate::store::Store;

/// Objects of one [page](Snapshot::objects) of a snapshot at most.
pub const SNAPSHOT_PAGE_MAX: usize = 1_000;

/// All objects of a store at one version. Cheap to clone; the drop of the last clone releases the space.
///
/// A snapshot keeps the space that it reaches, and all space that was freed since, from being reused. So the store drops it after
/// [`Tuning::snapshot_max_age_ns`](crate::Tuning::snapshot_max_age_ns), if it is the reason why less than a tenth of the store's space is
/// free, and if a write finds no room otherwise. From then on each call returns [`Error::SnapshotDropped`].
#[derive(Clone)]
pub struct Snapshot {
    store: Store,
    version: Lsn,
    taken_ns: u64,
    holding: Arc<Holding>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot(version {})", self.version)
    }
}

/// Some objects of a snapshot, in the order of buckets and keys.
#[derive(Clone, Debug, Default)]
pub struct SnapshotPage {
    /// Keys and the information about their objects.
    pub objects: Vec<(ObjectKey, ObjectInfo)>,
    /// The place to continue from; `None`: there are no more.
    pub next: Option<SnapshotPlace>,
    /// Ranges of encoded keys (bucket, a zero byte, key) that the page skips, because they are damaged.
    pub damaged: Vec<DamagedRange>,
}

/// A place in the order of a snapshot's objects. The default is before the first.
#[derive(Clone, Debug, Default)]
pub struct SnapshotPlace(Vec<u8>);

impl Store {
    /// A snapshot of the store as it is now: every write with a version up to [`Snapshot::version`] is in it, and none above.
    ///
    /// It applies the records of the log, after the applies already under way; writes continue meanwhile. A store that was
    /// opened read-only returns a snapshot, too.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Busy`] if there are too many snapshots; errors of the device.
    pub fn snapshot(&self) -> Boxed<'_, Result<Snapshot>> {
        Box::pin(async {
            let inner = &*self.0;
            inner.check_open()?;
            let (version, frozen) = run_to_end(inner.checkpointer.freeze_at_one_version())?;
            let taken_ns = frozen.moment.wall_ns();
            let until_ns = inner.now_ns().saturating_add(inner.tuning.snapshot_max_age_ns);
            let holding = Holding::new(version, until_ns, frozen);
            inner.tablets.snapshots.add(&holding)?;
            Ok(Snapshot { store: self.clone(), version, taken_ns, holding })
        })
    }

    /// The random identity of the store, made when it was laid out.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        self.0.identity
    }

    /// The number of snapshots that hold space now.
    #[must_use]
    pub fn snapshots_held(&self) -> usize {
        self.0.tablets.snapshots.count()
    }
}

impl Snapshot {
    /// Every write with a version up to this one is in the snapshot, and none above.
    #[must_use]
    pub fn version(&self) -> Lsn {
        self.version
    }

    /// The wall clock's time at that version, in nanoseconds since the Unix epoch. Objects that had expired by then are not in the
    /// snapshot; objects that expire later stay, with their deadlines.
    #[must_use]
    pub fn taken_ns(&self) -> u64 {
        self.taken_ns
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The object, or the bytes of it in `range`; `None` if it did not exist.
    ///
    /// # Errors
    /// As [`Store::get`]; [`Error::SnapshotDropped`].
    pub async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Option<Object>> {
        self.get_hinted(key, range, Hint::Lookup).await
    }

    /// Like [`get`](Self::get), for a reader of all objects: a value that is not in the cache bypasses it. So any number of values can
    /// be read at the same time, however small the cache is, and none of them displaces one that is read often.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_once<'a>(&'a self, key: &'a ObjectKey, range: ByteRange) -> Boxed<'a, Result<Option<Object>>> {
        Box::pin(self.get_hinted(key, range, Hint::Scan))
    }

    async fn get_hinted(&self, key: &ObjectKey, range: ByteRange, hint: Hint) -> Result<Option<Object>> {
        let frozen = self.held()?;
        let Some(found) = self.find(&frozen, key).await? else { return Ok(None) };
        let (first, bytes) = range.within(found.entry.value_bytes);
        check_single(bytes)?;
        let mut object = self.store.0.read_object(&found, first, bytes, hint).await?;
        object.info.expiry = found.entry.end.map(|end| frozen.moment.deadline(end));
        Ok(Some(object))
    }

    /// The object's version, length, times and metadata; `None` if it did not exist.
    ///
    /// # Errors
    /// As [`Store::head`]; [`Error::SnapshotDropped`].
    pub async fn head(&self, key: &ObjectKey) -> Result<Option<ObjectInfo>> {
        let frozen = self.held()?;
        match self.find(&frozen, key).await? {
            Some(found) => self.info(&frozen, &found).await.map(Some),
            None => Ok(None),
        }
    }

    /// One page of the keys of a bucket, as [`Store::list`] returns them. All pages are of the same version.
    ///
    /// # Errors
    /// As [`Store::list`]; [`Error::SnapshotDropped`].
    pub async fn list(&self, request: &ListRequest) -> Result<ListPage> {
        list_page(&self.store.0, request, Some(&*self.held()?)).await
    }

    /// At most `limit` objects (1 to [`SNAPSHOT_PAGE_MAX`]) of all buckets from `place` on, in the order of buckets and keys. A page may
    /// be short, or empty, and yet not be the last one.
    ///
    /// # Errors
    /// [`Error::SnapshotDropped`]; errors of the device.
    pub async fn objects(&self, place: &SnapshotPlace, limit: usize) -> Result<SnapshotPage> {
        let frozen = self.held()?;
        let inner = &*self.store.0;
        let limit = limit.clamp(1, SNAPSHOT_PAGE_MAX);
        let walked = walk_frozen(inner, &frozen, place.0.clone(), limit).await?;
        let mut page = SnapshotPage {
            objects: Vec::with_capacity(walked.entries.len()),
            next: walked.next.map(SnapshotPlace),
            damaged: walked.damaged,
        };
        for (key, found) in walked.entries {
            page.objects.push((key, self.info_of_walked(&frozen, &found).await?));
        }
        Ok(page)
    }

    pub(super) fn held(&self) -> Result<Arc<Frozen>> {
        self.store.0.check_open()?;
        self.holding.get()
    }

    async fn find(&self, frozen: &Frozen, key: &ObjectKey) -> Result<Option<FoundEntry>> {
        let inner = &*self.store.0;
        let tablet = usize::from(inner.tablets.of(key).id.0);
        let view = frozen.views.get(tablet).ok_or(Error::Closed)?;
        let found = inner.find_stored(view, key.encoded()).await?;
        Ok(found.filter(|found| !frozen.moment.is_over(found.entry.end, found.version)))
    }

    /// The information of an object. A reader of its value meets damage of its metadata, too, and reports it.
    async fn info_of_walked(&self, frozen: &Frozen, found: &FoundEntry) -> Result<ObjectInfo> {
        match self.info(frozen, found).await {
            Err(error) if is_unreadable(&error) => Ok(self.store.0.info_of(found, Metadata::default())),
            info => info,
        }
    }

    async fn info(&self, frozen: &Frozen, found: &FoundEntry) -> Result<ObjectInfo> {
        let mut info = self.store.0.info(found).await?;
        info.expiry = found.entry.end.map(|end| frozen.moment.deadline(end));
        Ok(info)
    }
}
