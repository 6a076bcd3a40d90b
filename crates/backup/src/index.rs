//! The index: all keys that are alive at a backup's version, each with its place in the store; and lists of deleted keys.
//!
//! Keys are in the order of tablets, and in each tablet in byte order. Neighbours share their first bytes, and the place is stored once
//! before all keys that have it.

use shoal_base::TabletId;
use shoal_base::codec::{Reader, Truncated, put_prefixed, put_varint};
use shoal_engine::{KeyPlace, ObjectKey, PlacedKey, TreePage};

use crate::frame::{FRAME_HEAD_BYTES, FrameStart, Kind, frame_start};
use crate::record::Wrong;

/// A frame of keys is full from this length of its body on.
const KEYS_FRAME_BYTES: usize = 128 << 10;
/// A frame of keys is also full from this number of bytes of whole keys on: neighbours share bytes, so a short body may decode to many.
const WHOLE_KEYS_BYTES: usize = 4 << 20;
/// Bytes of an encoded key at most: bucket, a zero byte, key.
const KEY_BYTES_MAX: usize = 63 + 1 + 1_024;

/// The places of a run of keys, as bytes.
const ABOVE: u8 = 0;
const PAGE: u8 = 1;
/// The page that the frame named last.
const SAME_PAGE: u8 = 2;
const GONE: u8 = 3;
const KEPT: u8 = 4;

/// Some keys of the index, all of one tablet, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexKeys {
    /// The tablet.
    pub tablet: TabletId,
    /// The keys; in a stream of changes also keys that are gone, and pages that were kept.
    pub keys: Vec<PlacedKey>,
}

/// Makes the bodies of the frames of the index.
#[derive(Default)]
pub(crate) struct IndexWriter {
    body: Vec<u8>,
    tablet: Option<TabletId>,
    last_key: Vec<u8>,
    whole_keys_bytes: usize,
    last_page: Option<TreePage>,
    /// The keys of the last place, their number, and their bytes.
    run: Option<(KeyPlace, u64, Vec<u8>)>,
}

impl IndexWriter {
    /// Adds a key, or a page that was kept. Returns the body of a full frame.
    pub(crate) fn push(&mut self, tablet: TabletId, place: KeyPlace, key: &[u8]) -> Option<Vec<u8>> {
        let held = self.body.len() + self.run.as_ref().map_or(0, |(_, _, bytes)| bytes.len());
        let is_full = held >= KEYS_FRAME_BYTES || self.whole_keys_bytes >= WHOLE_KEYS_BYTES;
        let full = if self.tablet != Some(tablet) || is_full { self.finish() } else { None };
        if self.tablet.is_none() {
            self.tablet = Some(tablet);
            self.body.extend_from_slice(&tablet.0.to_le_bytes());
        }
        if self.run.as_ref().is_none_or(|(of_run, _, _)| *of_run != place) {
            self.end_run();
            self.run = Some((place, 0, Vec::new()));
        }
        if let Some((place, count, bytes)) = &mut self.run
            && !matches!(place, KeyPlace::Kept(_))
        {
            put_key(bytes, &mut self.last_key, key);
            self.whole_keys_bytes += key.len();
            *count += 1;
        }
        full
    }

    fn end_run(&mut self) {
        let Some((place, count, keys)) = self.run.take() else { return };
        let page = match place {
            KeyPlace::Above => (ABOVE, None),
            KeyPlace::Page(page) if self.last_page == Some(page) => (SAME_PAGE, None),
            KeyPlace::Page(page) => (PAGE, Some(page)),
            KeyPlace::Gone => (GONE, None),
            KeyPlace::Kept(page) => (KEPT, Some(page)),
        };
        self.body.push(page.0);
        if let Some(page) = page.1 {
            put_varint(&mut self.body, page.block);
            self.body.extend_from_slice(&page.crc.to_le_bytes());
        }
        match place {
            KeyPlace::Page(page) => self.last_page = Some(page),
            KeyPlace::Kept(_) => return,
            KeyPlace::Above | KeyPlace::Gone => {}
        }
        put_varint(&mut self.body, count);
        self.body.extend_from_slice(&keys);
    }

    /// The body of the last frame, if it is not empty.
    pub(crate) fn finish(&mut self) -> Option<Vec<u8>> {
        self.end_run();
        let body = std::mem::take(self).body;
        (!body.is_empty()).then_some(body)
    }
}

/// Makes the bodies of the frames of deleted keys.
#[derive(Default)]
pub(crate) struct DeletedWriter {
    body: Vec<u8>,
    last_key: Vec<u8>,
    whole_keys_bytes: usize,
}

impl DeletedWriter {
    /// Adds an encoded key. Returns the body of a full frame.
    pub(crate) fn push(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let is_full = self.body.len() >= KEYS_FRAME_BYTES || self.whole_keys_bytes >= WHOLE_KEYS_BYTES;
        let full = if is_full { self.finish() } else { None };
        put_key(&mut self.body, &mut self.last_key, key);
        self.whole_keys_bytes += key.len();
        full
    }

    /// The body of the last frame, if it is not empty.
    pub(crate) fn finish(&mut self) -> Option<Vec<u8>> {
        let body = std::mem::take(self).body;
        (!body.is_empty()).then_some(body)
    }
}

/// Appends the bytes of `key` that it does not share with `last`, and sets `last` to it.
fn put_key(out: &mut Vec<u8>, last: &mut Vec<u8>, key: &[u8]) {
    let shared = last.iter().zip(key).take_while(|(one, other)| one == other).count();
    put_varint(out, shared as u64);
    put_prefixed(out, &key[shared..]);
    last.truncate(shared);
    last.extend_from_slice(&key[shared..]);
}

fn truncated(_: Truncated) -> Wrong {
    "a list of keys is longer than its frame"
}

/// The last key that was read of a frame, and the bytes of all of them.
#[derive(Default)]
struct Keys {
    last: Vec<u8>,
    bytes: usize,
}

impl Keys {
    /// Reads the next key.
    fn take(&mut self, reader: &mut Reader<'_>) -> Result<&[u8], Wrong> {
        let shared = usize::try_from(reader.varint().map_err(truncated)?).unwrap_or(usize::MAX);
        let rest = reader.prefixed().map_err(truncated)?;
        if shared > self.last.len() || shared + rest.len() > KEY_BYTES_MAX {
            return Err("a key of a list cannot be");
        }
        self.last.truncate(shared);
        self.last.extend_from_slice(rest);
        self.bytes += self.last.len();
        if self.bytes > WHOLE_KEYS_BYTES + KEY_BYTES_MAX {
            return Err("a list of keys covers more bytes than allowed");
        }
        Ok(&self.last)
    }
}

fn take_page(reader: &mut Reader<'_>) -> Result<TreePage, Wrong> {
    let block = reader.varint().map_err(truncated)?;
    Ok(TreePage { block, crc: reader.u32().map_err(truncated)? })
}

/// The keys of a frame of the index.
pub(crate) fn decode_index(body: &[u8]) -> Result<IndexKeys, Wrong> {
    let mut reader = Reader::new(body);
    let tablet = TabletId(reader.u16().map_err(truncated)?);
    let (mut keys, mut read, mut last_page) = (Vec::new(), Keys::default(), None);
    while !reader.is_empty() {
        let place = match reader.u8().map_err(truncated)? {
            ABOVE => KeyPlace::Above,
            PAGE => KeyPlace::Page(*last_page.insert(take_page(&mut reader)?)),
            SAME_PAGE => KeyPlace::Page(last_page.ok_or("the index names no page before this one")?),
            GONE => KeyPlace::Gone,
            KEPT => {
                let place = KeyPlace::Kept(take_page(&mut reader)?);
                keys.push(PlacedKey { place, key: Vec::new() });
                continue;
            }
            _ => return Err("a place of the index is of a kind that is not known"),
        };
        for _ in 0..reader.varint().map_err(truncated)? {
            let key = read.take(&mut reader)?;
            if ObjectKey::of_name(key).is_none() {
                return Err("a key of the index cannot be");
            }
            keys.push(PlacedKey { place, key: key.to_vec() });
        }
    }
    Ok(IndexKeys { tablet, keys })
}

/// The keys of a frame of deleted keys.
pub(crate) fn decode_deleted(body: &[u8]) -> Result<Vec<ObjectKey>, Wrong> {
    let mut reader = Reader::new(body);
    let (mut keys, mut read) = (Vec::new(), Keys::default());
    while !reader.is_empty() {
        let key = read.take(&mut reader)?;
        keys.push(ObjectKey::of_name(key).ok_or("a deleted object has a bucket or a key that cannot be")?);
    }
    Ok(keys)
}

/// The keys of one frame of the index, read again from its place ([`Decoder::last_frame`](crate::Decoder::last_frame)).
///
/// # Errors
/// The damage, in words.
pub fn index_of_frame(frame: &[u8]) -> Result<IndexKeys, &'static str> {
    match frame_start(frame) {
        FrameStart::Frame(head) if head.kind == Some(Kind::Index) => {
            let body = frame.get(FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + head.body_bytes);
            decode_index(body.unwrap_or_default())
        }
        FrameStart::Frame(_) => Err("the frame is none of the index any more"),
        FrameStart::Short(_) => Err("the frame is cut off"),
        FrameStart::Wrong(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Vec<u8> {
        [b"bucket\0".as_slice(), &[b'k'; 1_000], &number.to_be_bytes()].concat()
    }

    /// Keys of 1,011 bytes that share 1,009 of them: each takes four bytes of a body.
    #[test]
    fn frames_of_keys_that_share_much_stay_short() {
        let (mut index, mut deleted) = (IndexWriter::default(), DeletedWriter::default());
        let (mut keys, mut gone, mut frames) = (0, 0, 0);
        let mut read = |index: Option<Vec<u8>>, deleted: Option<Vec<u8>>| {
            frames += index.iter().len();
            keys += index.map_or(0, |body| decode_index(&body).unwrap().keys.len());
            gone += deleted.map_or(0, |body| decode_deleted(&body).unwrap().len());
        };
        for number in 0..10_000 {
            let full = index.push(TabletId(3), KeyPlace::Above, &key(number));
            read(full, deleted.push(&key(number)));
        }
        read(index.finish(), deleted.finish());
        assert_eq!((keys, gone, frames), (10_000, 10_000, 3));
    }

    /// A body that no writer makes: 80 KiB of it decode to 20 MB.
    #[test]
    fn body_with_huge_claimed_size_is_damage() {
        let mut body = Vec::new();
        let mut last = Vec::new();
        (0..20_000).for_each(|number| put_key(&mut body, &mut last, &key(number)));
        assert!(body.len() < 128 << 10, "{}", body.len());
        let why = decode_deleted(&body).unwrap_err();
        assert!(why.contains("more bytes"), "{why}");
        let mut whole = vec![0, 0, ABOVE];
        put_varint(&mut whole, 20_000);
        whole.extend_from_slice(&body);
        assert_eq!(decode_index(&whole).unwrap_err(), why);
    }
}
