//! Writes a snapshot as a backup: frame after frame, a few at a time.

use std::collections::VecDeque;

use futures_util::future::join_all;
use shoal_base::{Lsn, TabletId};
use shoal_engine::{
    BackupNote, BucketRecords, ByteRange, ChangedObject, ChangesPlace, DamagedRange, Error, KeyPlace,
    ObjectInfo, ObjectKey, PlacedKey, Result, Since, Snapshot, Store, TreePage,
};

use crate::frame::{FrameWriter, Kind};
use crate::index::IndexWriter;
use crate::record::{BucketRecord, Contents, ExpiresAt, Header, Loss, ObjectHead};
use crate::{FORMAT_VERSION, FORMAT_VERSION_PLAIN};

/// A value up to this length is in one frame with other objects.
pub const SHORT_BYTES_MAX: u64 = 64 << 10;
/// Bytes of a longer value in one frame.
pub const PIECE_BYTES_MAX: u64 = 256 << 10;
/// Objects that are read at the same time.
const READS_AT_ONCE: usize = 64;
/// Bytes of values that are read at the same time, unless one is longer.
const READ_BYTES_MAX: u64 = 512 << 10;
/// A frame of whole objects is full from this length of its body on.
const OBJECTS_FRAME_BYTES: usize = 192 << 10;

/// The index follows the objects after this number of bytes, and a page of keys.
const INDEX_EVERY_BYTES: u64 = 4 << 20;
/// Pages of a [`LastBackup`] at most.
pub const PAGES_MAX: usize = 300_000;
/// Bytes of a page among [`LastBackup::pages_as_bytes`].
const PAGE_BYTES: usize = 12;

/// The backup that an increment is based on, with all facts that the store needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastBackup {
    /// The identity of its store.
    pub store: [u8; 16],
    /// Its version.
    pub version: Lsn,
    /// The pages that its index names, up to [`PAGES_MAX`]. A page that is left out only costs reads.
    pub pages: Vec<TreePage>,
    /// The last key of a part, encoded, with its tablet; `None` if the backup has all keys.
    pub up_to: Option<(TabletId, Vec<u8>)>,
}

impl LastBackup {
    /// The pages as bytes: the block (8 bytes) and the checksum (4) of each, little-endian.
    #[must_use]
    pub fn pages_as_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.pages.len() * PAGE_BYTES);
        for page in &self.pages {
            out.extend_from_slice(&page.block.to_le_bytes());
            out.extend_from_slice(&page.crc.to_le_bytes());
        }
        out
    }

    /// The same from such bytes; `None` if they are no pages, or too many.
    #[must_use]
    pub fn of_bytes(store: [u8; 16], version: Lsn, pages: &[u8]) -> Option<Self> {
        if !pages.len().is_multiple_of(PAGE_BYTES) || pages.len() > PAGES_MAX * PAGE_BYTES {
            return None;
        }
        let page = |bytes: &[u8]| {
            let mut reader = shoal_base::codec::Reader::new(bytes);
            Some(TreePage { block: reader.u64().ok()?, crc: reader.u32().ok()? })
        };
        let pages = pages.chunks_exact(PAGE_BYTES).map(page).collect::<Option<Vec<_>>>()?;
        Some(Self { store, version, pages, up_to: None })
    }
}

/// All objects of a snapshot as a backup; or its changes, from which an [`IncrementWriter`](crate::IncrementWriter) makes one.
pub struct BackupStream {
    snapshot: Snapshot,
    since: Option<Since>,
    frames: FrameWriter,
    index: IndexWriter,
    /// Keys that were listed, and whose objects are on their way: the index gets them after these.
    indexed_next: Vec<(TabletId, PlacedKey)>,
    has_index: bool,
    /// The offset up to which all objects are in the index.
    indexed_at: u64,
    /// The place from which the snapshot is read on; `None` at its end.
    place: Option<ChangesPlace>,
    /// Listed, and not read.
    listed: VecDeque<ChangedObject>,
    /// The object whose pieces are on their way, with its length and the next byte.
    long: Option<(ObjectKey, u64, u64)>,
    /// Ranges that were reported already.
    ranges: Vec<DamagedRange>,
    header: Option<Header>,
    /// Records of buckets that are put next.
    buckets: Option<BucketRecords>,
    is_done: bool,
}

impl BackupStream {
    /// Takes a snapshot of `store`, and starts a backup of it. `backup` is a random number.
    ///
    /// # Errors
    /// As [`Store::snapshot`].
    pub async fn begin(store: &Store, backup: u64) -> Result<Self> {
        // The header counts objects alone.
        store.count_results().await?;
        let snapshot = store.snapshot().await?;
        Self::of(snapshot, backup, Contents::Full, None).await
    }

    /// The same for a base of an archive: it has the results of writes with a request id, so that a write that is repeated after a restore
    /// is done once, and no index.
    ///
    /// # Errors
    /// As [`Store::snapshot`].
    pub async fn begin_base(store: &Store, backup: u64) -> Result<Self> {
        store.count_results().await?;
        let snapshot = store.snapshot().await?;
        Self::of(snapshot, backup, Contents::Base, None).await
    }

    /// The same for the changes since `last`.
    ///
    /// # Errors
    /// As [`Store::snapshot`]; [`Error::Invalid`] if `last` is no backup of this store, or newer than the store.
    pub async fn begin_since(store: &Store, backup: u64, last: &LastBackup) -> Result<Self> {
        if last.store != store.identity() {
            let why =
                "the last backup is of another store: an increment continues a backup of the same store";
            return Err(Error::Invalid(why.into()));
        }
        // The header counts only objects.
        store.count_results().await?;
        let snapshot = store.snapshot().await?;
        if last.version > snapshot.version() {
            return Err(Error::Invalid(format!(
                "the last backup is of version {}, and the store is at version {}: it was put back from an older state, so make a full \
                 backup of it",
                last.version,
                snapshot.version()
            )));
        }
        let since = Since::new(last.version, last.pages.iter().copied());
        let since = match last.up_to.clone() {
            Some((tablet, key)) => since.up_to(tablet, key),
            None => since,
        };
        let contents = Contents::Changes { from: since.version() };
        Self::of(snapshot, backup, contents, Some(since)).await
    }

    async fn of(snapshot: Snapshot, backup: u64, contents: Contents, since: Option<Since>) -> Result<Self> {
        let buckets = snapshot.bucket_records("").await?;
        let store = snapshot.store();
        let stat = store.stat();
        // An object of the snapshot has attributes only if the store named them before.
        let is_plain = !store.has_attributes() && buckets.records.is_empty();
        let header = Header {
            format: if is_plain { FORMAT_VERSION_PLAIN } else { FORMAT_VERSION },
            store: store.identity(),
            version: snapshot.version(),
            taken_ns: snapshot.taken_ns(),
            objects: stat.objects_with_log(),
            value_bytes: stat.value_bytes_with_log(),
            contents,
            part: 0,
        };
        Ok(Self {
            snapshot,
            since,
            frames: FrameWriter::new(backup),
            index: IndexWriter::default(),
            indexed_next: Vec::new(),
            indexed_at: 0,
            has_index: contents != Contents::Base,
            place: Some(match contents {
                Contents::Base => ChangesPlace::with_results(),
                _ => ChangesPlace::default(),
            }),
            listed: VecDeque::new(),
            long: None,
            ranges: Vec::new(),
            header: Some(header),
            buckets: Some(buckets),
            is_done: false,
        })
    }

    /// The version of the snapshot.
    #[must_use]
    pub fn version(&self) -> Lsn {
        self.snapshot.version()
    }

    /// The wall clock at that version, in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn taken_ns(&self) -> u64 {
        self.snapshot.taken_ns()
    }

    /// Whole objects so far.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.frames.end.objects
    }

    /// Notes the backup with its store, if it is at its end and the store could read everything.
    ///
    /// # Errors
    /// As [`Store::note_backup`].
    pub async fn note(&self) -> Result<()> {
        if !self.is_done || self.frames.end.unreadable > 0 || self.frames.end.ranges > 0 {
            return Ok(());
        }
        let (version, taken_ns) = (self.snapshot.version(), self.snapshot.taken_ns());
        self.snapshot.store().note_backup(BackupNote { version, taken_ns }).await
    }

    /// The next bytes, of one or more frames; `None` at the end.
    ///
    /// The backup lists objects that the store cannot read, and continues after them. If keys cannot be read, a stream of changes fails:
    /// nobody knows which of them were deleted.
    ///
    /// # Errors
    /// [`Error::SnapshotDropped`]; [`Error::Corrupt`] for changes; as the device.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        while out.is_empty() && !self.is_done {
            if let Some(header) = self.header.take() {
                self.frames.put_header(&mut out, &header);
            } else if let Some(buckets) = self.buckets.take() {
                self.put_buckets(&mut out, buckets).await?;
            } else if let Some((key, bytes, at)) = self.long.take() {
                self.put_piece(&mut out, key, bytes, at).await?;
            } else if !self.listed.is_empty() {
                self.put_objects(&mut out).await?;
            } else if let Some(place) = self.place.take() {
                self.list(&mut out, &place).await?;
            } else {
                self.put_keys(&mut out);
                let rest = self.index.finish();
                self.put_index(&mut out, rest);
                self.frames.put_end(&mut out);
                self.is_done = true;
            }
        }
        Ok((!out.is_empty()).then_some(out))
    }

    async fn put_buckets(&mut self, out: &mut Vec<u8>, buckets: BucketRecords) -> Result<()> {
        let next = buckets.next();
        for (name, record) in buckets.records {
            let bucket = BucketRecord { name, record: record.into() };
            self.frames.put(out, Kind::Bucket, &bucket.encode());
        }
        for (_, range) in buckets.unreadable {
            self.frames.put_loss(out, &Loss::Range(range));
        }
        self.put_damaged(out, buckets.damaged)?;
        if let Some(last) = next {
            self.buckets = Some(self.snapshot.bucket_records(&last).await?);
        }
        Ok(())
    }

    fn put_index(&mut self, out: &mut Vec<u8>, body: Option<Vec<u8>>) {
        if let Some(body) = body {
            self.frames.put(out, Kind::Index, &body);
        }
    }

    /// Puts the keys of objects that are in the backup into the index.
    fn put_keys(&mut self, out: &mut Vec<u8>) {
        for (tablet, placed) in std::mem::take(&mut self.indexed_next) {
            let is_alive = matches!(placed.place, KeyPlace::Above | KeyPlace::Page(_));
            self.frames.end.keys += u64::from(is_alive);
            let full = self.index.push(tablet, placed.place, &placed.key);
            self.put_index(out, full);
        }
    }

    async fn list(&mut self, out: &mut Vec<u8>, place: &ChangesPlace) -> Result<()> {
        let limit = shoal_engine::SNAPSHOT_PAGE_MAX;
        let page = self.snapshot.changes(self.since.as_ref(), place, limit).await?;
        self.place = page.next;
        self.listed.extend(page.objects);
        self.put_keys(out);
        // A broken-off run can continue from here.
        if self.frames.end.bytes - self.indexed_at > INDEX_EVERY_BYTES {
            let some = self.index.finish();
            self.put_index(out, some);
            self.indexed_at = self.frames.end.bytes;
        }
        if self.has_index {
            self.indexed_next.extend(page.keys.into_iter().map(|placed| (page.tablet, placed)));
        }
        self.put_damaged(out, page.damaged)
    }

    /// # Errors
    /// [`Error::Corrupt`] for a stream of changes.
    fn put_damaged(&mut self, out: &mut Vec<u8>, damaged: Vec<DamagedRange>) -> Result<()> {
        for range in damaged {
            if self.since.is_some() {
                let what = format!(
                    "keys of tablet {} cannot be read ({}), so nobody knows which of them were deleted: make a full backup, which has \
                     all that can be read; the page",
                    range.tablet, range.why
                );
                return Err(Error::Corrupt { what, block: range.block });
            }
            if !self.ranges.contains(&range) {
                self.frames.put_loss(out, &Loss::Range(range.clone()));
                self.ranges.push(range);
            }
        }
        Ok(())
    }

    /// Puts some of the listed objects if the first one is short; starts the first one if it is long.
    async fn put_objects(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let mut some = Vec::new();
        let mut bytes = 0;
        while let Some(object) = self.listed.front() {
            let is_enough = some.len() >= READS_AT_ONCE || bytes + object.bytes > READ_BYTES_MAX;
            if object.bytes > SHORT_BYTES_MAX || is_enough {
                break;
            }
            bytes += object.bytes;
            some.extend(self.listed.pop_front().map(|object| object.key));
        }
        if some.is_empty() {
            self.long = self.listed.pop_front().map(|object| (object.key, object.bytes, 0));
            return Ok(());
        }
        let snapshot = &self.snapshot;
        let read = some.iter().map(|key| snapshot.get_once(key, ByteRange::ALL));
        let read = join_all(read).await;
        let mut body = Vec::with_capacity(OBJECTS_FRAME_BYTES);
        for (key, object) in some.into_iter().zip(read) {
            match object {
                Ok(Some(object)) => {
                    head(&key, &object.info).encode(&mut body);
                    object.value.chunks().for_each(|chunk| body.extend_from_slice(chunk));
                    self.frames.end.objects += 1;
                    self.frames.end.value_bytes += object.info.bytes;
                }
                Ok(None) => self.frames.put_loss(out, &gone(key)),
                Err(error) => self.frames.put_loss(out, &unreadable(key, error)?),
            }
            if body.len() >= OBJECTS_FRAME_BYTES {
                self.frames.put(out, Kind::Objects, &std::mem::take(&mut body));
            }
        }
        if !body.is_empty() {
            self.frames.put(out, Kind::Objects, &body);
        }
        Ok(())
    }

    /// Puts the next piece of a long value; before the first one, the head of the object.
    async fn put_piece(&mut self, out: &mut Vec<u8>, key: ObjectKey, bytes: u64, at: u64) -> Result<()> {
        let count = PIECE_BYTES_MAX.min(bytes - at);
        let range = ByteRange { first: at, bytes: Some(count) };
        match self.snapshot.get_once(&key, range).await {
            Ok(Some(object)) => {
                if at == 0 {
                    let mut body = Vec::new();
                    head(&key, &object.info).encode(&mut body);
                    self.frames.put(out, Kind::Begin, &body);
                }
                let mut body = Vec::with_capacity(8 + object.value.len());
                body.extend_from_slice(&at.to_le_bytes());
                object.value.chunks().for_each(|chunk| body.extend_from_slice(chunk));
                self.frames.put(out, Kind::Piece, &body);
                if at + count < bytes {
                    self.long = Some((key, bytes, at + count));
                } else {
                    self.frames.end.objects += 1;
                    self.frames.end.value_bytes += bytes;
                }
            }
            Ok(None) => self.frames.put_loss(out, &gone(key)),
            Err(error) => self.frames.put_loss(out, &unreadable(key, error)?),
        }
        Ok(())
    }
}

fn gone(key: ObjectKey) -> Loss {
    Loss::Object { key, why: "the index lists the object, and a search does not find it".into() }
}

/// # Errors
/// `error`, unless it is about this object alone.
fn unreadable(key: ObjectKey, error: Error) -> Result<Loss> {
    match error {
        Error::Corrupt { .. } | Error::Io(_) => Ok(Loss::Object { key, why: error.to_string() }),
        error => Err(error),
    }
}

fn head(key: &ObjectKey, info: &ObjectInfo) -> ObjectHead {
    let expiry =
        info.expiry.map(|deadline| ExpiresAt { at_ns: deadline.at_ns, is_relative: deadline.is_relative() });
    ObjectHead {
        key: key.clone(),
        version: info.version,
        modified_ns: info.modified_ns,
        expiry,
        metadata: info.metadata.clone(),
        value_bytes: info.bytes,
    }
}
