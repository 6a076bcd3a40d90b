//! The envelope: each frame has a head with the backup's number, its own number, its length, and a checksum.

use shoal_base::checksum::Crc32c;
use shoal_base::codec::Reader;

use crate::record::{End, Header, Loss};

/// Bytes of a frame before its body.
pub const FRAME_HEAD_BYTES: usize = 32;
/// Bytes of a frame's body at most.
pub const FRAME_BODY_BYTES_MAX: usize = 1 << 19;
/// Bytes of the body of an end, in either version of the format.
const END_BODIES_BYTES: [usize; 2] = [52, 68];
/// The first bytes of each frame, and so of the backup.
pub(crate) const MAGIC: [u8; 4] = *b"SHBK";

/// The kind of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A [`Header`](crate::Header).
    Header = 1,
    /// Whole objects.
    Objects = 2,
    /// The head of an object whose value is in the frames that follow.
    Begin = 3,
    /// A piece of that value.
    Piece = 4,
    /// An object or a range that could not be read from the store.
    Loss = 5,
    /// The [`End`](crate::End).
    End = 6,
    /// Keys that are alive, with their places in the store.
    Index = 7,
    /// Keys that are not alive any more.
    Deleted = 8,
    /// The record of a bucket.
    Bucket = 9,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        use Kind::{Begin, Bucket, Deleted, End, Header, Index, Loss, Objects, Piece};
        [Header, Objects, Begin, Piece, Loss, End, Index, Deleted, Bucket]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// The head of a frame whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// The kind; `None` for one of a later version of the format.
    pub kind: Option<Kind>,
    pub backup: u64,
    pub number: u64,
    pub body_bytes: usize,
}

/// Numbers and counts the frames of a backup that is being written.
pub(crate) struct FrameWriter {
    /// The random number of this backup, in each of its frames.
    backup: u64,
    /// The next frame.
    number: u64,
    crc: Crc32c,
    /// Totals so far.
    pub(crate) end: End,
}

impl FrameWriter {
    pub(crate) fn new(backup: u64) -> Self {
        Self { backup, number: 0, crc: Crc32c::new(), end: End::default() }
    }

    /// Appends a frame to `out`.
    pub(crate) fn put(&mut self, out: &mut Vec<u8>, kind: Kind, body: &[u8]) {
        let start = out.len();
        put_frame(out, kind, self.backup, self.number, body);
        self.number += 1;
        self.end.frames += 1;
        self.end.bytes += (out.len() - start) as u64;
        self.crc.update(&out[start..]);
    }

    /// Appends the header, twice.
    pub(crate) fn put_header(&mut self, out: &mut Vec<u8>, header: &Header) {
        let body = header.encode();
        self.put(out, Kind::Header, &body);
        self.put(out, Kind::Header, &body);
    }

    /// Appends a loss, and counts it.
    pub(crate) fn put_loss(&mut self, out: &mut Vec<u8>, loss: &Loss) {
        match loss {
            Loss::Object { .. } => self.end.unreadable += 1,
            Loss::Range(_) => self.end.ranges += 1,
        }
        self.put(out, Kind::Loss, &loss.encode());
    }

    /// Appends the end.
    pub(crate) fn put_end(&mut self, out: &mut Vec<u8>) {
        let end = End { crc: std::mem::take(&mut self.crc).finish(), ..self.end };
        self.put(out, Kind::End, &end.encode());
    }
}

/// Appends the frame of `body` to `out`.
pub(crate) fn put_frame(out: &mut Vec<u8>, kind: Kind, backup: u64, number: u64, body: &[u8]) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[kind as u8, 0, 0, 0]);
    out.extend_from_slice(&backup.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    let mut crc = Crc32c::new();
    crc.update(&out[start..]);
    crc.update(body);
    out.extend_from_slice(&crc.finish().to_le_bytes());
    out.extend_from_slice(body);
}

/// The start of `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameStart {
    /// A frame, in its first bytes.
    Frame(FrameHead),
    /// Perhaps a frame, which needs this number of bytes in all.
    Short(usize),
    /// No frame, or a damaged one.
    Wrong(&'static str),
}

/// Checks the frame at the start of `bytes`.
pub(crate) fn frame_start(bytes: &[u8]) -> FrameStart {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return FrameStart::Wrong("no frame starts here");
    }
    let Some((head, rest)) = bytes.split_at_checked(FRAME_HEAD_BYTES) else {
        return FrameStart::Short(FRAME_HEAD_BYTES);
    };
    let Some((found, crc)) = read_head(head) else { return FrameStart::Wrong("no frame starts here") };
    if found.body_bytes > FRAME_BODY_BYTES_MAX {
        return FrameStart::Wrong("the frame is longer than frames are");
    }
    let Some(body) = rest.get(..found.body_bytes) else {
        return FrameStart::Short(FRAME_HEAD_BYTES + found.body_bytes);
    };
    let mut sum = Crc32c::new();
    sum.update(&head[..FRAME_HEAD_BYTES - 4]);
    sum.update(body);
    if sum.finish() == crc {
        FrameStart::Frame(found)
    } else {
        FrameStart::Wrong("the frame's checksum is wrong")
    }
}

/// Returns true if `start`, the first bytes of a file, and `end`, its last ones, are those of an unfinished backup: its header exists, and
/// its end does not.
#[must_use]
pub fn is_unfinished(start: &[u8], end: &[u8]) -> bool {
    let is_backup = matches!(frame_start(start), FrameStart::Frame(head) if head.kind == Some(Kind::Header));
    let ends = |body_bytes: usize| {
        let from = end.len().checked_sub(FRAME_HEAD_BYTES + body_bytes);
        let last = from.map(|from| frame_start(&end[from..]));
        matches!(last, Some(FrameStart::Frame(head)) if head.kind == Some(Kind::End) && head.body_bytes == body_bytes)
    };
    is_backup && !END_BODIES_BYTES.into_iter().any(ends)
}

fn read_head(head: &[u8]) -> Option<(FrameHead, u32)> {
    let mut reader = Reader::new(head);
    reader.bytes(MAGIC.len()).ok()?;
    let kind = Kind::of(reader.u8().ok()?);
    reader.bytes(3).ok()?;
    let backup = reader.u64().ok()?;
    let number = reader.u64().ok()?;
    let body_bytes = usize::try_from(reader.u32().ok()?).ok()?;
    Some((FrameHead { kind, backup, number, body_bytes }, reader.u32().ok()?))
}
