//! The entry of an object in log and leaves: everything except its key (`docs/format/object.md`).
//!
//! The *body* is the same in a log record and in a leaf, so that an apply copies it; a leaf stores the version (8 bytes)
//! before it. Stored bytes of a value: metadata that does not fit in the leaf, then the value, in units of 64 KiB, each with
//! its checksum.

use shoal_base::codec::{Reader, Truncated, put_prefixed, put_varint};
use shoal_base::limits::{BUCKET_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX, VALUE_UNIT_BYTES};
use shoal_base::{BLOCK_BYTES_U64, Lsn, Run, blocks_for};
use shoal_common::leaf_entry::{HAS_EXPIRY, HOME_MASK, LeafEntry};
use shoal_common::object::{Attributes, EndTime};
use shoal_space_manager::RUNS_MAX;
use smallvec::SmallVec;

use crate::joined::JOINED_BYTES_MAX;
use crate::manifest::manifest_bytes;
use crate::metadata::VALUE_ATTRIBUTES_BYTES_MAX;

/// Most bytes of key and entry together in a leaf: at least three fit in a page.
pub(crate) const LEAF_ENTRY_BYTES_MAX: usize = 1300;
/// Encoded metadata of more bytes is stored before the value.
const META_INLINE_BYTES_MAX: usize = 256;
/// Runs, and checksums of units, that an entry itself may hold; with more, they go into a manifest.
pub const INLINE_RUNS_MAX: usize = 4;

/// Most bytes of metadata before a value: more than a user may store.
const META_IN_FRONT_BYTES_MAX: u32 = VALUE_UNIT_BYTES as u32;
/// A length of metadata before the value from here on is this much larger, and followed by a summary.
const SUMMARY_FOLLOWS: u32 = 1 << 17;
/// Bytes of a manifest at most.
const MANIFEST_BYTES_MAX: usize = JOINED_BYTES_MAX;
const _: () = assert!(
    manifest_bytes(RUNS_MAX, VALUE_BYTES_MAX as usize / VALUE_UNIT_BYTES + 2) <= MANIFEST_BYTES_MAX,
    "the longest manifest is a joined one"
);

/// Most bytes of a leaf's entry besides key, metadata and inline value: version, flags, times and lengths, and
/// extents (offset, count, runs, checksums), the longest home.
const ENTRY_OTHER_BYTES_MAX: usize =
    8 + 1 + 8 + 8 + 10 + 2 + 3 + 1 + INLINE_RUNS_MAX * (10 + 5) + INLINE_RUNS_MAX * 4;

/// Bytes of the summary of metadata before the value: a longer length of the metadata, its length, and the attributes.
const SUMMARY_BYTES_MAX: usize = 1 + 1 + VALUE_ATTRIBUTES_BYTES_MAX;

const _: () = assert!(
    BUCKET_BYTES_MAX + 1 + KEY_BYTES_MAX + ENTRY_OTHER_BYTES_MAX + SUMMARY_BYTES_MAX <= LEAF_ENTRY_BYTES_MAX,
    "the longest key has room for a summary and the longest home beside it"
);

const HOME_INLINE: u8 = 0;
const HOME_EXTENTS: u8 = 1;
const HOME_MANIFEST: u8 = 2;
const HOME_PACKED: u8 = 3;
const META_IN_FRONT: u8 = 1 << 2;
/// The expiry is a moment of store time, not of the wall clock.
const IS_RELATIVE: u8 = 1 << 4;

/// Reads the end of an object's time, if the entry has one.
///
/// # Errors
/// [`Truncated`], also for a kind of end that does not exist.
#[inline]
fn take_end(flags: u8, reader: &mut Reader<'_>) -> Result<Option<EndTime>, Truncated> {
    match (flags & HAS_EXPIRY != 0, flags & IS_RELATIVE != 0) {
        (false, false) => Ok(None),
        (true, false) => Ok(Some(EndTime::Wall(reader.u64()?))),
        (true, true) => Ok(Some(EndTime::Store(reader.u64()?))),
        (false, true) => Err(Truncated),
    }
}

/// The place of the stored bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// They are the rest of the body.
    Inline,
    /// They are in these runs, one after the other, from byte `offset` of the first block on. Every run except the last
    /// is a multiple of a unit, so no unit is in two runs.
    Extents {
        /// Byte of the first run at which they start.
        offset: u16,
        /// The runs, in the order of the bytes.
        runs: SmallVec<[Run; 1]>,
        /// The checksum of each unit.
        checksums: SmallVec<[u32; 4]>,
    },
    /// They are in the packed run at block `run`, from its byte `at` on: one unit. The run belongs to the tablet, not
    /// to the entry.
    Packed {
        /// First block of the packed run.
        run: u64,
        /// Byte of the run at which they start.
        at: u32,
        /// Their checksum.
        checksum: u32,
    },
    /// A manifest of `bytes` bytes in these runs names their runs and checksums.
    Manifest {
        /// The runs of the manifest itself.
        runs: SmallVec<[Run; 1]>,
        /// Bytes of the manifest.
        bytes: u32,
        /// The checksum of the manifest.
        checksum: u32,
    },
}

/// A decoded body, without the inline bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time of the write, in nanoseconds since the Unix epoch.
    pub modified_ns: u64,
    /// The deadline, if it has one.
    pub end: Option<EndTime>,
    /// Bytes of the value.
    pub value_bytes: u64,
    /// The place of its metadata.
    pub meta: Meta,
    /// The place of its stored bytes.
    pub home: Home,
}

/// The place of the encoded metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meta {
    /// In the entry.
    Inline(SmallVec<[u8; 24]>),
    /// In the first stored bytes.
    InFront {
        /// Their number.
        bytes: u32,
        /// The attributes that describe the value, encoded: a listing needs no more. Empty if there are none.
        summary: SmallVec<[u8; 24]>,
    },
}

impl Entry {
    /// Stored bytes: metadata first, then the value.
    #[inline]
    pub fn stored_bytes(&self) -> u64 {
        self.value_bytes + u64::from(self.meta_in_front())
    }

    /// The blocks that hold a packed value.
    #[inline]
    pub(crate) fn packed_blocks(&self) -> Option<Run> {
        let Home::Packed { run, at, .. } = self.home else { return None };
        let first = run + u64::from(at) / BLOCK_BYTES_U64;
        Some(Run::new(first, blocks_for(u64::from(at) % BLOCK_BYTES_U64 + self.stored_bytes()) as u32))
    }

    /// Bytes of metadata before the value.
    #[inline]
    pub fn meta_in_front(&self) -> u32 {
        match self.meta {
            Meta::Inline(_) => 0,
            Meta::InFront { bytes, .. } => bytes,
        }
    }

    /// Appends the body; inline bytes follow it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut flags = match self.home {
            Home::Inline => HOME_INLINE,
            Home::Extents { .. } => HOME_EXTENTS,
            Home::Manifest { .. } => HOME_MANIFEST,
            Home::Packed { .. } => HOME_PACKED,
        };
        if matches!(self.meta, Meta::InFront { .. }) {
            flags |= META_IN_FRONT;
        }
        match self.end {
            None => {}
            Some(EndTime::Wall(_)) => flags |= HAS_EXPIRY,
            Some(EndTime::Store(_)) => flags |= HAS_EXPIRY | IS_RELATIVE,
        }
        out.push(flags);
        out.extend_from_slice(&self.modified_ns.to_le_bytes());
        if let Some(end) = self.end {
            out.extend_from_slice(&end.ns().to_le_bytes());
        }
        put_varint(out, self.value_bytes);
        match &self.meta {
            Meta::Inline(bytes) => put_prefixed(out, bytes),
            Meta::InFront { bytes, summary } if summary.is_empty() => put_varint(out, u64::from(*bytes)),
            Meta::InFront { bytes, summary } => {
                assert!(summary.len() <= VALUE_ATTRIBUTES_BYTES_MAX, "the entry has room for the summary");
                put_varint(out, u64::from(SUMMARY_FOLLOWS + bytes));
                put_prefixed(out, summary);
            }
        }
        match &self.home {
            Home::Inline => {}
            Home::Extents { offset, runs, checksums } => {
                put_varint(out, u64::from(*offset));
                put_runs(out, runs);
                for checksum in checksums {
                    out.extend_from_slice(&checksum.to_le_bytes());
                }
            }
            Home::Packed { run, at, checksum } => {
                put_varint(out, *run);
                put_varint(out, u64::from(*at));
                out.extend_from_slice(&checksum.to_le_bytes());
            }
            Home::Manifest { runs, bytes, checksum } => {
                put_runs(out, runs);
                put_varint(out, u64::from(*bytes));
                out.extend_from_slice(&checksum.to_le_bytes());
            }
        }
    }

    /// The entry in `head`, the fields before its home ([`split_home`]). The home is open.
    ///
    /// # Errors
    /// [`Truncated`] if these are not the fields of a body, or bytes follow them.
    pub fn decode_head(head: &[u8]) -> Result<Self, Truncated> {
        let (head, reader) = Head::take(head)?;
        if reader.is_empty() { Ok(head.into_entry()) } else { Err(Truncated) }
    }

    /// The entry in `body`, and the inline bytes after it.
    ///
    /// # Errors
    /// [`Truncated`] if it is not a body.
    #[inline]
    pub fn decode(body: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let (head, mut reader) = Head::take(body)?;
        let flags = head.flags;
        let mut entry = head.into_entry();
        match flags & HOME_MASK {
            HOME_INLINE if reader.rest().len() as u64 != entry.stored_bytes() => return Err(Truncated),
            HOME_INLINE => {}
            HOME_EXTENTS => {
                let offset = u16::try_from(reader.varint()?).map_err(|_| Truncated)?;
                let runs = take_runs(&mut reader)?;
                let units = entry.stored_bytes().div_ceil(VALUE_UNIT_BYTES as u64);
                let room = runs.iter().map(|run| u64::from(run.blocks)).sum::<u64>();
                if units > INLINE_RUNS_MAX as u64
                    || blocks_for(u64::from(offset) + entry.stored_bytes()) > room
                {
                    return Err(Truncated);
                }
                let checksums = (0..units).map(|_| reader.u32()).collect::<Result<SmallVec<_>, _>>()?;
                entry.home = Home::Extents { offset, runs, checksums };
            }
            HOME_MANIFEST => {
                let runs = take_runs(&mut reader)?;
                let bytes = u32::try_from(reader.varint()?).map_err(|_| Truncated)?;
                if bytes as usize > MANIFEST_BYTES_MAX
                    || blocks_for(u64::from(bytes))
                        > runs.iter().map(|run| u64::from(run.blocks)).sum::<u64>()
                {
                    return Err(Truncated);
                }
                entry.home = Home::Manifest { runs, bytes, checksum: reader.u32()? };
            }
            // Two bits: `HOME_PACKED` is the remaining value.
            _ => {
                let run = reader.varint()?;
                let at = u32::try_from(reader.varint()?).map_err(|_| Truncated)?;
                let stored = entry.stored_bytes();
                let blocks = blocks_for(u64::from(at) + stored.min(VALUE_UNIT_BYTES as u64));
                if stored == 0 || stored > VALUE_UNIT_BYTES as u64 || run.checked_add(blocks).is_none() {
                    return Err(Truncated);
                }
                entry.home = Home::Packed { run, at, checksum: reader.u32()? };
            }
        }
        let inline = if entry.home == Home::Inline { reader.rest() } else { &[] };
        Ok((entry, inline))
    }
}

/// The fields before an entry's home, borrowed.
struct Head<'a> {
    flags: u8,
    modified_ns: u64,
    end: Option<EndTime>,
    value_bytes: u64,
    meta: HeadMeta<'a>,
}

/// See [`Meta`].
enum HeadMeta<'a> {
    Inline(&'a [u8]),
    InFront(u32, &'a [u8]),
}

impl<'a> Head<'a> {
    /// The head of `body`, and a reader of the rest.
    #[inline]
    fn take(body: &'a [u8]) -> Result<(Self, Reader<'a>), Truncated> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        let modified_ns = reader.u64()?;
        let end = take_end(flags, &mut reader)?;
        let value_bytes = reader.varint()?;
        let meta = if flags & META_IN_FRONT != 0 {
            take_in_front(&mut reader)?
        } else {
            HeadMeta::Inline(reader.prefixed()?)
        };
        // No value is longer: sums of lengths cannot overflow, and no memory is taken for impossible lengths.
        let in_front = if let HeadMeta::InFront(bytes, _) = meta { bytes } else { 0 };
        if value_bytes > VALUE_BYTES_MAX || in_front > META_IN_FRONT_BYTES_MAX {
            return Err(Truncated);
        }
        Ok((Self { flags, modified_ns, end, value_bytes, meta }, reader))
    }

    /// The entry with these fields, its home open.
    #[inline]
    fn into_entry(self) -> Entry {
        let meta = match self.meta {
            HeadMeta::Inline(bytes) => Meta::Inline(SmallVec::from_slice(bytes)),
            HeadMeta::InFront(bytes, summary) => {
                Meta::InFront { bytes, summary: SmallVec::from_slice(summary) }
            }
        };
        let Self { modified_ns, end, value_bytes, .. } = self;
        Entry { modified_ns, end, value_bytes, meta, home: Home::Inline }
    }
}

/// The fields of a body before its home, for a format that keeps them and has other homes (`docs/format/archive.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyHead<'a> {
    /// The fields, encoded: flags first.
    pub bytes: &'a [u8],
    /// Bytes of metadata before the value, and of the value.
    pub stored_bytes: u64,
}

/// Splits `body` into the fields before its home, which is not looked at, and the rest.
///
/// # Errors
/// [`Truncated`] if these fields are not those of a body.
pub fn split_home(body: &[u8]) -> Result<(BodyHead<'_>, &[u8]), Truncated> {
    let (head, reader) = Head::take(body)?;
    let in_front = if let HeadMeta::InFront(bytes, _) = head.meta { bytes } else { 0 };
    let (bytes, rest) = body.split_at_checked(body.len() - reader.rest().len()).ok_or(Truncated)?;
    Ok((BodyHead { bytes, stored_bytes: head.value_bytes + u64::from(in_front) }, rest))
}

/// The length of metadata before the value, and its summary.
fn take_in_front<'a>(reader: &mut Reader<'a>) -> Result<HeadMeta<'a>, Truncated> {
    let bytes = u32::try_from(reader.varint()?).map_err(|_| Truncated)?;
    let Some(bytes) = bytes.checked_sub(SUMMARY_FOLLOWS) else { return Ok(HeadMeta::InFront(bytes, &[])) };
    let summary = reader.prefixed()?;
    if summary.is_empty() || summary.len() > VALUE_ATTRIBUTES_BYTES_MAX {
        return Err(Truncated);
    }
    Attributes::check(summary, Attributes::CHECKSUM)?;
    Ok(HeadMeta::InFront(bytes, summary))
}

/// An entry with the value in its body; everything is borrowed.
pub struct InlineEntry<'a> {
    /// The time of the write, in nanoseconds since the Unix epoch.
    pub modified_ns: u64,
    /// The deadline, if it has one.
    pub end: Option<EndTime>,
    /// ValueContent type and user metadata, encoded.
    pub metadata: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> InlineEntry<'a> {
    /// The entry in `body`; `None` if its value is elsewhere, or if `body` is not a body.
    #[inline]
    pub fn decode(body: &'a [u8]) -> Option<Self> {
        let (Head { flags, modified_ns, end, value_bytes, meta }, reader) = Head::take(body).ok()?;
        if flags & HOME_MASK != HOME_INLINE {
            return None;
        }
        let (metadata, value) = match meta {
            HeadMeta::Inline(metadata) => (metadata, reader.rest()),
            HeadMeta::InFront(bytes, _) => reader.rest().split_at_checked(bytes as usize)?,
        };
        (value.len() as u64 == value_bytes).then_some(Self { modified_ns, end, metadata, value })
    }
}

/// The length of the value of an entry with this body, without decoding the rest; 0 if `body` is not a body.
#[inline]
pub fn value_bytes_of(body: &[u8]) -> u64 {
    Head::take(body).map_or(0, |(head, _)| head.value_bytes)
}

/// The deadline of an entry with this body, without decoding the rest.
#[inline]
pub fn end_of(body: &[u8]) -> Option<EndTime> {
    let mut reader = Reader::new(body);
    let flags = reader.u8().ok()?;
    if flags & HAS_EXPIRY == 0 {
        return None;
    }
    reader.u64().ok()?;
    take_end(flags, &mut reader).ok()?
}

fn put_runs(out: &mut Vec<u8>, runs: &[Run]) {
    assert!(runs.len() <= INLINE_RUNS_MAX, "more runs go into a manifest");
    out.push(runs.len() as u8);
    for run in runs {
        put_varint(out, run.block);
        put_varint(out, u64::from(run.blocks));
    }
}

#[inline]
fn take_runs(reader: &mut Reader<'_>) -> Result<SmallVec<[Run; 1]>, Truncated> {
    let count = usize::from(reader.u8()?);
    if count > INLINE_RUNS_MAX {
        return Err(Truncated);
    }
    (0..count)
        .map(|_| {
            let block = reader.varint()?;
            let blocks = u32::try_from(reader.varint()?).map_err(|_| Truncated)?;
            if blocks == 0 || block.checked_add(u64::from(blocks)).is_none() {
                return Err(Truncated);
            }
            Ok(Run::new(block, blocks))
        })
        .collect()
}

/// Splits a leaf's entry into version and body; the estimate of an unsettled one is left out.
///
/// # Errors
/// [`Truncated`].
#[inline]
pub fn split_leaf_entry(bytes: &[u8]) -> Result<(Lsn, &[u8]), Truncated> {
    let LeafEntry { version, body, .. } = LeafEntry::split(bytes)?;
    Ok((Lsn(version), body))
}

/// Version and entry of a leaf's entry, without the inline bytes.
///
/// # Errors
/// [`Truncated`].
#[inline]
pub fn decode_leaf_entry(bytes: &[u8]) -> Result<(Lsn, Entry), Truncated> {
    let (version, body) = split_leaf_entry(bytes)?;
    Ok((version, Entry::decode(body)?.0))
}

/// Returns true if metadata of this encoded length is stored in the entry: beside a long key it may leave no room for
/// the value's home.
#[inline]
pub(crate) fn meta_fits_inline(key_bytes: usize, encoded_bytes: usize) -> bool {
    encoded_bytes <= META_INLINE_BYTES_MAX
        && key_bytes + encoded_bytes + ENTRY_OTHER_BYTES_MAX <= LEAF_ENTRY_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_meta(meta: Meta) -> Entry {
        let home = Home::Packed { run: 9, at: 5, checksum: 7 };
        Entry { modified_ns: 1, end: None, value_bytes: 10, meta, home }
    }

    fn encoded(meta: Meta) -> Vec<u8> {
        let mut out = Vec::new();
        with_meta(meta).encode(&mut out);
        out
    }

    /// `docs/format/object.md`: a length of 2^17 and more, then the summary.
    #[test]
    fn golden_bytes_of_a_summary() {
        let summary = SmallVec::from_slice(&[1, 3, 7, 7, 7]);
        let body = encoded(Meta::InFront { bytes: 300, summary: summary.clone() });
        assert_eq!(body[..10], [3 | META_IN_FRONT, 1, 0, 0, 0, 0, 0, 0, 0, 10]);
        // 2^17 + 300.
        assert_eq!(body[10..19], [0xAC, 0x82, 0x08, 5, 1, 3, 7, 7, 7]);
        let (entry, inline) = Entry::decode(&body).unwrap();
        assert_eq!((entry.stored_bytes(), inline.len()), (310, 0));
        assert_eq!(entry, with_meta(Meta::InFront { bytes: 300, summary }));
        let plain = encoded(Meta::InFront { bytes: 300, summary: SmallVec::new() });
        assert_eq!(plain[10..12], [0xAC, 0x02]);
        assert_eq!(Entry::decode(&plain).unwrap().0.meta_in_front(), 300);
    }

    #[test]
    fn invalid_summaries_are_refused() {
        let meta = |length: u64, summary: &[u8]| {
            let mut out = vec![META_IN_FRONT | HOME_PACKED];
            out.extend_from_slice(&[0; 8]);
            put_varint(&mut out, 10);
            put_varint(&mut out, length);
            out.extend_from_slice(summary);
            out.extend_from_slice(&[9, 5, 1, 2, 3, 4]);
            Entry::decode(&out).map(|(entry, _)| entry.meta_in_front())
        };
        let long = [&[65, 1, 63][..], &[5; 63]].concat();
        let longest = [&[64, 1, 62][..], &[5; 62]].concat();
        assert_eq!(meta(300, &[]), Ok(300));
        assert_eq!(meta((1 << 17) + 300, &[2, 1, 0]), Ok(300));
        assert_eq!(meta((1 << 17) + 300, &longest), Ok(300));
        for (length, summary) in [
            ((1 << 17) - 1, &[2, 1, 0][..]),
            ((1 << 17) + (1 << 16) + 1, &[2, 1, 0]),
            ((1 << 17) + 300, &[0]),
            ((1 << 17) + 300, &[2, 3, 0]),
            ((1 << 17) + 300, &[4, 2, 0, 1, 0]),
            ((1 << 17) + 300, &[2, 1, 1]),
            ((1 << 17) + 300, &long),
            ((1 << 17) + 300, &[200, 1]),
        ] {
            assert_eq!(meta(length, summary), Err(Truncated), "{length} {summary:?}");
        }
    }

    proptest! {
        #[test]
        fn summaries_round_trip(bytes in 0..=META_IN_FRONT_BYTES_MAX, etag in 0..30_usize, sum in 0..30_usize) {
            let mut attributes = Attributes::default();
            attributes.set(Attributes::ETAG, Some(&vec![1; etag]));
            attributes.set(Attributes::CHECKSUM, Some(&vec![2; sum]));
            let entry = with_meta(Meta::InFront { bytes, summary: SmallVec::from_slice(attributes.of_value()) });
            // A packed value has at most one unit.
            prop_assume!(entry.stored_bytes() <= VALUE_UNIT_BYTES as u64);
            let body = encoded(entry.meta.clone());
            prop_assert_eq!(Entry::decode(&body), Ok((entry, &[][..])));
            for cut in 0..body.len() {
                prop_assert!(Entry::decode(&body[..cut]).is_err());
            }
        }
    }
}
