//! A snapshot becomes a backup: frame after frame, a few at a time.

use std::collections::VecDeque;

use futures_util::future::join_all;
use shoal_base::Lsn;
use shoal_base::checksum::Crc32c;
use shoal_engine::{
    ByteRange, DamagedRange, Error, ObjectInfo, ObjectKey, Result, Snapshot, SnapshotPlace, Store,
};

use crate::FORMAT_VERSION;
use crate::frame::{Kind, put_frame};
use crate::record::{End, ExpiresAt, Header, Loss, ObjectHead};

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

/// All objects of a snapshot as a backup.
pub struct BackupStream {
    snapshot: Snapshot,
    /// The random number of this backup, in each of its frames.
    backup: u64,
    /// The next frame.
    number: u64,
    crc: Crc32c,
    end: End,
    /// Where the snapshot is read on; none: at its end.
    place: Option<SnapshotPlace>,
    /// Listed, and not read.
    listed: VecDeque<(ObjectKey, ObjectInfo)>,
    /// The object whose pieces are on their way, with its length and the next byte.
    long: Option<(ObjectKey, u64, u64)>,
    /// Ranges that were told already.
    ranges: Vec<DamagedRange>,
    header: Option<Header>,
    is_done: bool,
}

impl BackupStream {
    /// Takes a snapshot of `store`, and begins a backup of it. `backup` is a random number.
    ///
    /// # Errors
    /// As [`Store::snapshot`].
    pub async fn begin(store: &Store, backup: u64) -> Result<Self> {
        let snapshot = store.snapshot().await?;
        let stat = store.stat();
        let header = Header {
            format: FORMAT_VERSION,
            store: store.identity(),
            version: snapshot.version(),
            taken_ns: snapshot.taken_ns(),
            objects: stat.objects_with_log(),
            value_bytes: stat.live_value_bytes,
        };
        Ok(Self::of(snapshot, backup, header))
    }

    fn of(snapshot: Snapshot, backup: u64, header: Header) -> Self {
        Self {
            snapshot,
            backup,
            number: 0,
            crc: Crc32c::new(),
            end: End::default(),
            place: Some(SnapshotPlace::default()),
            listed: VecDeque::new(),
            long: None,
            ranges: Vec::new(),
            header: Some(header),
            is_done: false,
        }
    }

    /// The version of the snapshot.
    #[must_use]
    pub fn version(&self) -> Lsn {
        self.snapshot.version()
    }

    /// The next bytes, a frame or some; `None` at the end.
    ///
    /// Objects that the store cannot read are told in the backup, which goes on behind them.
    ///
    /// # Errors
    /// [`Error::SnapshotDropped`]; as the device.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        while out.is_empty() && !self.is_done {
            if let Some(header) = self.header.take() {
                let body = header.encode();
                self.put(&mut out, Kind::Header, &body);
                self.put(&mut out, Kind::Header, &body);
            } else if let Some((key, bytes, at)) = self.long.take() {
                self.put_piece(&mut out, key, bytes, at).await?;
            } else if !self.listed.is_empty() {
                self.put_objects(&mut out).await?;
            } else if let Some(place) = self.place.take() {
                self.list(&mut out, &place).await?;
            } else {
                self.put_end(&mut out);
            }
        }
        Ok((!out.is_empty()).then_some(out))
    }

    fn put(&mut self, out: &mut Vec<u8>, kind: Kind, body: &[u8]) {
        let start = out.len();
        put_frame(out, kind, self.backup, self.number, body);
        self.number += 1;
        self.end.frames += 1;
        self.end.bytes += (out.len() - start) as u64;
        self.crc.update(&out[start..]);
    }

    fn put_end(&mut self, out: &mut Vec<u8>) {
        let end = End { crc: std::mem::take(&mut self.crc).finish(), ..self.end };
        self.put(out, Kind::End, &end.encode());
        self.is_done = true;
    }

    fn put_loss(&mut self, out: &mut Vec<u8>, loss: &Loss) {
        match loss {
            Loss::Object { .. } => self.end.unreadable += 1,
            Loss::Range(_) => self.end.ranges += 1,
        }
        self.put(out, Kind::Loss, &loss.encode());
    }

    async fn list(&mut self, out: &mut Vec<u8>, place: &SnapshotPlace) -> Result<()> {
        let page = self.snapshot.objects(place, shoal_engine::SNAPSHOT_PAGE_MAX).await?;
        self.place = page.next;
        self.listed.extend(page.objects);
        for range in page.damaged {
            if !self.ranges.contains(&range) {
                self.put_loss(out, &Loss::Range(range.clone()));
                self.ranges.push(range);
            }
        }
        Ok(())
    }

    /// Puts some of the listed objects: short ones, or the head of a long one.
    async fn put_objects(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let mut some = Vec::new();
        let mut bytes = 0;
        while let Some((_, info)) = self.listed.front() {
            let is_enough = some.len() >= READS_AT_ONCE || bytes + info.bytes > READ_BYTES_MAX;
            if info.bytes > SHORT_BYTES_MAX || is_enough {
                break;
            }
            bytes += info.bytes;
            some.extend(self.listed.pop_front());
        }
        if some.is_empty() {
            if let Some((key, info)) = self.listed.pop_front() {
                let mut body = Vec::new();
                head(&key, &info).encode(&mut body);
                self.put(out, Kind::Begin, &body);
                self.long = Some((key, info.bytes, 0));
            }
            return Ok(());
        }
        let snapshot = &self.snapshot;
        let read = some.iter().map(|(key, _)| snapshot.get(key, ByteRange::ALL));
        let read = join_all(read).await;
        let mut body = Vec::with_capacity(OBJECTS_FRAME_BYTES);
        for ((key, _), object) in some.into_iter().zip(read) {
            match object {
                Ok(Some(object)) => {
                    head(&key, &object.info).encode(&mut body);
                    object.value.chunks().for_each(|chunk| body.extend_from_slice(chunk));
                    self.end.objects += 1;
                    self.end.value_bytes += object.info.bytes;
                }
                Ok(None) => self.put_loss(out, &gone(key)),
                Err(error) => self.put_loss(out, &unreadable(key, error)?),
            }
            if body.len() >= OBJECTS_FRAME_BYTES {
                self.put(out, Kind::Objects, &std::mem::take(&mut body));
            }
        }
        if !body.is_empty() {
            self.put(out, Kind::Objects, &body);
        }
        Ok(())
    }

    /// Puts the next piece of a long value.
    async fn put_piece(&mut self, out: &mut Vec<u8>, key: ObjectKey, bytes: u64, at: u64) -> Result<()> {
        let count = PIECE_BYTES_MAX.min(bytes - at);
        let range = ByteRange { first: at, bytes: Some(count) };
        match self.snapshot.get(&key, range).await {
            Ok(Some(object)) => {
                let mut body = Vec::with_capacity(8 + object.value.len());
                body.extend_from_slice(&at.to_le_bytes());
                object.value.chunks().for_each(|chunk| body.extend_from_slice(chunk));
                self.put(out, Kind::Piece, &body);
                if at + count < bytes {
                    self.long = Some((key, bytes, at + count));
                } else {
                    self.end.objects += 1;
                    self.end.value_bytes += bytes;
                }
            }
            Ok(None) => self.put_loss(out, &gone(key)),
            Err(error) => self.put_loss(out, &unreadable(key, error)?),
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
    let expiry = info
        .expiry
        .map(|deadline| ExpiresAt { at_ns: deadline.at_ns(), is_relative: deadline.is_relative() });
    ObjectHead {
        key: key.clone(),
        version: info.version,
        modified_ns: info.modified_ns,
        expiry,
        metadata: info.metadata.clone(),
        value_bytes: info.bytes,
    }
}
