//! Reads a backup: bytes in, records out. Any bytes lead to a record, or to a damage with its place.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use shoal_base::TabletId;
use shoal_base::checksum::Crc32c;
use shoal_base::codec::Reader;
use shoal_engine::{KeyPlace, ObjectKey};

use crate::frame::{FRAME_HEAD_BYTES, FrameHead, FrameStart, Kind, MAGIC, frame_start};
use crate::index::{IndexKeys, decode_deleted, decode_index};
use crate::record::{
    BucketRecord, Contents, End, Header, Loss, ObjectHead, ObjectRecord, Wrong, decode_objects,
};

/// A damaged place of a backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged in frame {frame}, at byte {offset}: {why}")]
pub struct Damage {
    /// The number of the frame.
    pub frame: u64,
    /// The offset in the backup, bytes.
    pub offset: u64,
    /// The damage, in words.
    pub why: &'static str,
}

/// A damaged place that was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Frames that are missing.
    pub frames: u64,
    /// Bytes that belong to no frame.
    pub bytes: u64,
    /// The place where the backup continues, in bytes.
    pub to: u64,
}

/// The next part of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its header; the second copy of it is no event if the first one was.
    Header(Header),
    /// Whole objects.
    Objects(Vec<ObjectRecord>),
    /// An object whose value comes in pieces, at least one.
    Begin(ObjectHead),
    /// The next piece of that value.
    Piece {
        /// Its bytes.
        bytes: Bytes,
        /// It is the last one.
        is_last: bool,
    },
    /// An object or a range that the store could not read when the backup was made. It is the last event of an object in pieces.
    Loss(Loss),
    /// Keys that are alive at the backup's version.
    Index(IndexKeys),
    /// Objects of the backup before that do not exist any more.
    Deleted(Vec<ObjectKey>),
    /// The record of a bucket. Each backup has all of them.
    Bucket(BucketRecord),
    /// A damaged place was skipped, and the object in pieces, if any, is not complete.
    Skipped(Skipped),
    /// The end. If no damage was skipped, everything before agrees with it.
    End(End),
}

/// Reads a backup, whose bytes are [pushed](Self::push) as they come.
///
/// After a [`Damage`], [`next_event`](Self::next_event) continues with the next whole frame: [`Event::Skipped`] comes first.
pub struct Decoder {
    bytes: BytesMut,
    is_complete: bool,
    /// The offset of `bytes` in the backup.
    offset: u64,
    /// The number of the next frame.
    number: u64,
    backup: Option<u64>,
    crc: Crc32c,
    seen: End,
    has_header: bool,
    /// The backup is a stream of changes.
    is_changes: bool,
    /// The last key of the index so far.
    indexed: Option<(TabletId, Vec<u8>)>,
    /// The place of the last frame that was taken.
    frame: Range<u64>,
    /// Length of the value that comes in pieces, and the next byte of it.
    long: Option<(u64, u64)>,
    /// The number of bytes skipped since the last whole frame, while one is searched.
    passing: Option<u64>,
    was_damaged: bool,
    is_over: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder at the start of a backup.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: BytesMut::new(),
            is_complete: false,
            offset: 0,
            number: 0,
            backup: None,
            crc: Crc32c::new(),
            seen: End::default(),
            has_header: false,
            is_changes: false,
            indexed: None,
            frame: 0..0,
            long: None,
            passing: None,
            was_damaged: false,
            is_over: false,
        }
    }

    /// Takes the next bytes of the backup.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// There are no more bytes.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// The number of bytes read.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The random number of the backup; `None` if no frame was read.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.backup
    }

    /// The place of the last event's frame.
    #[must_use]
    pub fn last_frame(&self) -> Range<u64> {
        self.frame.clone()
    }

    /// Whole objects so far, and the bytes of their values.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.seen.objects, self.seen.value_bytes)
    }

    /// The next part; `None` if more bytes are needed or, after [`complete`](Self::complete), at the end.
    ///
    /// # Errors
    /// A damaged place.
    pub fn next_event(&mut self) -> Result<Option<Event>, Damage> {
        loop {
            if self.passing.is_some() {
                match self.pass() {
                    Some(skipped) => return Ok(Some(Event::Skipped(skipped))),
                    None => return Ok(None),
                }
            }
            if self.bytes.is_empty() && (self.is_over || !self.is_complete) {
                return Ok(None);
            }
            if self.is_over {
                return Err(self.damage("there are bytes after the end of the backup"));
            }
            let head = match frame_start(&self.bytes) {
                FrameStart::Frame(head) => head,
                FrameStart::Short(_) if !self.is_complete => return Ok(None),
                FrameStart::Short(_) if self.bytes.is_empty() => {
                    let error = self.damage("the backup is cut off here: its end is missing");
                    (self.passing, self.is_over) = (None, true);
                    return Err(error);
                }
                // A damaged length may cause this, too: whole frames may follow.
                FrameStart::Short(_) => {
                    return Err(self.damage("the frame is cut off, or its length is damaged"));
                }
                FrameStart::Wrong(why) => return Err(self.damage(why)),
            };
            if *self.backup.get_or_insert(head.backup) != head.backup {
                return Err(self.damage("the frame is one of another backup"));
            }
            if head.number != self.number {
                return Err(
                    self.damage("the frame has the number of another one: frames are missing or repeated")
                );
            }
            match self.take(head) {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) => {}
                Err(why) => {
                    // The frame was taken; the damage has its number and its place.
                    self.was_damaged = true;
                    self.long = None;
                    let offset = self.offset - (FRAME_HEAD_BYTES + head.body_bytes) as u64;
                    return Err(Damage { frame: head.number, offset, why });
                }
            }
        }
    }

    fn damage(&mut self, why: &'static str) -> Damage {
        self.was_damaged = true;
        self.passing = Some(0);
        Damage { frame: self.number, offset: self.offset, why }
    }

    /// Skips bytes up to the next whole frame of this backup; `None` if more bytes are needed, or there is none.
    fn pass(&mut self) -> Option<Skipped> {
        loop {
            let passed = self.passing?;
            let is_it = match frame_start(&self.bytes) {
                _ if self.is_over => None,
                FrameStart::Frame(head) => {
                    let is_ours = self.backup.is_none_or(|backup| backup == head.backup);
                    (is_ours && head.number >= self.number).then_some(head)
                }
                FrameStart::Short(_) if !self.is_complete => return None,
                FrameStart::Short(_) | FrameStart::Wrong(_) => None,
            };
            if let Some(head) = is_it {
                let skipped = Skipped { frames: head.number - self.number, bytes: passed, to: self.offset };
                (self.passing, self.number, self.long) = (None, head.number, None);
                return Some(skipped);
            }
            if self.bytes.is_empty() {
                if self.is_complete && !self.is_over {
                    // The end was among the skipped bytes: the caller gets one more event.
                    self.passing = None;
                    let skipped = Skipped { frames: 0, bytes: passed, to: self.offset };
                    self.long = None;
                    return Some(skipped);
                }
                return None;
            }
            let next = self.bytes[1..].windows(MAGIC.len()).position(|window| *window == MAGIC);
            let keep = if self.is_complete { 0 } else { (MAGIC.len() - 1).min(self.bytes.len() - 1) };
            let skip = next.map_or(self.bytes.len() - keep, |at| at + 1);
            self.bytes.advance(skip);
            self.offset += skip as u64;
            self.passing = Some(passed + skip as u64);
            if next.is_none() && !self.is_complete {
                return None;
            }
        }
    }

    /// Takes the whole frame at the front.
    fn take(&mut self, head: FrameHead) -> Result<Option<Event>, Wrong> {
        let mut frame = self.bytes.split_to(FRAME_HEAD_BYTES + head.body_bytes).freeze();
        let before = End {
            frames: self.number,
            bytes: self.offset,
            crc: if head.kind == Some(Kind::End) { std::mem::take(&mut self.crc).finish() } else { 0 },
            ..self.seen
        };
        self.crc.update(&frame);
        self.frame = self.offset..self.offset + frame.len() as u64;
        self.offset = self.frame.end;
        self.number += 1;
        let body = frame.split_off(FRAME_HEAD_BYTES);
        let Some(kind) = head.kind else {
            return Err("the frame is of a kind that this program does not know");
        };
        if self.long.is_some() && !matches!(kind, Kind::Piece | Kind::Loss) {
            return Err("the value before this frame is not complete");
        }
        match kind {
            Kind::Header => {
                let header = Header::decode(&body)?;
                self.is_changes = matches!(header.contents, Contents::Changes { .. });
                let is_first = !std::mem::replace(&mut self.has_header, true);
                Ok(is_first.then_some(Event::Header(header)))
            }
            Kind::Objects => {
                let objects = decode_objects(&body)?;
                self.seen.objects += objects.len() as u64;
                self.seen.value_bytes += objects.iter().map(|object| object.head.value_bytes).sum::<u64>();
                Ok(Some(Event::Objects(objects)))
            }
            Kind::Begin => {
                let object = ObjectHead::decode(&mut Reader::new(&body))?;
                if object.value_bytes == 0 {
                    return Err("a value in pieces has no bytes");
                }
                self.long = Some((object.value_bytes, 0));
                Ok(Some(Event::Begin(object)))
            }
            Kind::Piece => self.take_piece(body),
            Kind::Loss => {
                let loss = Loss::decode(&body)?;
                match loss {
                    Loss::Object { .. } => self.seen.unreadable += 1,
                    Loss::Range(_) => self.seen.ranges += 1,
                }
                self.long = None;
                Ok(Some(Event::Loss(loss)))
            }
            Kind::Index => self.take_index(&body).map(Some),
            Kind::Deleted => {
                let keys = decode_deleted(&body)?;
                self.seen.deleted += keys.len() as u64;
                Ok(Some(Event::Deleted(keys)))
            }
            Kind::Bucket => BucketRecord::decode(&body).map(|record| Some(Event::Bucket(record))),
            Kind::End => {
                let end = End::decode(&body)?;
                self.is_over = true;
                if !self.was_damaged && end != before {
                    return Err("the end record does not match the records before it");
                }
                Ok(Some(Event::End(end)))
            }
        }
    }

    fn take_index(&mut self, body: &[u8]) -> Result<Event, Wrong> {
        let index = decode_index(body)?;
        for placed in &index.keys {
            let is_alive = match placed.place {
                KeyPlace::Above | KeyPlace::Page(_) => true,
                KeyPlace::Gone | KeyPlace::Kept(_) if !self.is_changes && self.has_header => {
                    return Err("the index has an entry that only a stream of changes may have");
                }
                KeyPlace::Kept(_) => continue,
                KeyPlace::Gone => false,
            };
            let is_behind = self
                .indexed
                .as_ref()
                .is_none_or(|(tablet, last)| (tablet.0, &last[..]) < (index.tablet.0, &placed.key[..]));
            if !is_behind {
                return Err("the keys of the index are not in order");
            }
            let (tablet, last) = self.indexed.get_or_insert_with(|| (index.tablet, Vec::new()));
            *tablet = index.tablet;
            last.clone_from(&placed.key);
            self.seen.keys += u64::from(is_alive);
        }
        Ok(Event::Index(index))
    }

    fn take_piece(&mut self, mut body: Bytes) -> Result<Option<Event>, Wrong> {
        let Some((bytes, next)) = self.long else {
            // The rest of an object whose head is damaged.
            return if self.was_damaged { Ok(None) } else { Err("a piece of no value") };
        };
        if body.len() <= 8 || body.get_u64_le() != next {
            return Err("a piece has another place than the next one of its value");
        }
        let after = next + body.len() as u64;
        if after > bytes {
            return Err("a value is longer than its stated length");
        }
        let is_last = after == bytes;
        self.long = (!is_last).then_some((bytes, after));
        if is_last {
            self.seen.objects += 1;
            self.seen.value_bytes += bytes;
        }
        Ok(Some(Event::Piece { bytes: body, is_last }))
    }
}
