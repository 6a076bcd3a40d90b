//! The bytes of a tree page, version 1: `docs/format/page.md`. No other file encodes or decodes them.
//!
//! A page is a header, an array of slots (offsets of items), the key prefix that all items share, in a leaf marked
//! "base lost" the bounds of the lost range, the items in the order of their keys, and zeros. The functions here check
//! each field's own range, not its meaning, and panic on no bytes.

use shoal_base::checksum::crc32c;
use shoal_base::codec::{Reader, put_varint};
use shoal_base::{BLOCK_BYTES, Lsn};
use shoal_common::error::Error;

use crate::Tree;
use crate::filter::FILTER_BYTES_MAX;

/// A page as its parent (or the superblock) knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PageRef {
    /// The page's block.
    pub block: u64,
    /// The page's checksum: CRC-32C of all bytes except the first four, which hold it.
    pub crc: u32,
}

/// The reason why a page is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damage(pub &'static str);

impl Damage {
    /// Returns the error that names the page.
    pub(crate) fn at(self, page: PageRef) -> Error {
        Error::Corrupt { what: self.0.to_owned(), block: page.block }
    }
}

/// Bytes before the slots.
pub(crate) const HEADER_BYTES: usize = 40;

/// Bytes after the header.
pub(crate) const CAPACITY: usize = BLOCK_BYTES - HEADER_BYTES;

/// Longest key: a full object name (63 + 1 + 1,024 bytes) and room for the engine's own key spaces.
pub const TREE_KEY_BYTES_MAX: usize = 1100;

/// Largest leaf entry together with its key, in bytes; at least three of them fit in a leaf.
pub const ENTRY_BYTES_MAX: usize = 1300;

/// Bytes of a slot: the offset of an item.
pub(crate) const SLOT_BYTES: usize = 2;

/// Maximum size of an item besides key and payload: its slot and two lengths.
const ITEM_OVERHEAD_MAX: usize = SLOT_BYTES + 4;

/// Maximum size of the bounds of a leaf marked "base lost".
pub(crate) const BOUNDS_BYTES_MAX: usize = 2 * (TREE_KEY_BYTES_MAX + 2);

/// A flag: the leaf replaces a page that could not be read, or a whole subtree.
pub(crate) const BASE_LOST: u8 = 1;

const MAGIC: [u8; 2] = *b"Sp";
const VERSION: u8 = 1;
const BLOCK_FIELD_BYTES: usize = 6;
const BLOCK_BITS: usize = 8 * BLOCK_FIELD_BYTES - 1;
/// The top bit of the last byte of a child's block: the leaf is plain.
const PLAIN: u8 = 0x80;

const CRC_AT: usize = 0;
const MAGIC_AT: usize = 4;
const VERSION_AT: usize = 6;
const LEVEL_AT: usize = 7;
const FLAGS_AT: usize = 8;
const RESERVED_AT: usize = 9;
const TABLET_AT: usize = 10;
const COUNT_AT: usize = 12;
const PREFIX_AT: usize = 14;
const BLOCK_AT: usize = 16;
const LSN_AT: usize = 24;
const DEVICE_AT: usize = 32;

// Splitting relies on this: any item fits beside others, also in a leaf that carries bounds.
const _: () = assert!(3 * (ENTRY_BYTES_MAX + ITEM_OVERHEAD_MAX) <= CAPACITY);
const _: () = assert!(ENTRY_BYTES_MAX + ITEM_OVERHEAD_MAX + BOUNDS_BYTES_MAX <= CAPACITY);
const _: () = assert!(2 * (TREE_KEY_BYTES_MAX + CHILD_BYTES_MAX + ITEM_OVERHEAD_MAX) <= CAPACITY);

/// Maximum number of entries of one tree: 2^34 blocks (64 TiB) times fewer than 2^14 entries a leaf. A reader refuses more, so that no sum
/// of the counts of pages, layers and tablets overflows.
pub const ENTRIES_MAX: u64 = 1 << 48;

/// Longest payload of an inner item: block, checksum, number of entries.
const CHILD_BYTES_MAX: usize = BLOCK_FIELD_BYTES + 4 + 10 + FILTER_BYTES_MAX;

type Page = [u8; BLOCK_BYTES];

/// The fields of a page's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub crc: u32,
    pub level: u8,
    pub flags: u8,
    pub tablet: u16,
    pub count: u16,
    pub prefix_bytes: u16,
    pub block: u64,
    pub lsn: u64,
    pub device: u64,
}

impl Header {
    /// Decodes the header and checks the fields that do not depend on the page's place in the tree.
    #[inline]
    pub(crate) fn read(page: &Page) -> Result<Self, Damage> {
        if page[MAGIC_AT..VERSION_AT] != MAGIC {
            return Err(Damage("this is not a page of a tree"));
        }
        if page[VERSION_AT] != VERSION {
            return Err(Damage("the page has a format version that this program does not know"));
        }
        let header = Self {
            crc: u32::from_le_bytes(fixed(page, CRC_AT)),
            level: page[LEVEL_AT],
            flags: page[FLAGS_AT],
            tablet: u16::from_le_bytes(fixed(page, TABLET_AT)),
            count: u16::from_le_bytes(fixed(page, COUNT_AT)),
            prefix_bytes: u16::from_le_bytes(fixed(page, PREFIX_AT)),
            block: u64::from_le_bytes(fixed(page, BLOCK_AT)),
            lsn: u64::from_le_bytes(fixed(page, LSN_AT)),
            device: u64::from_le_bytes(fixed(page, DEVICE_AT)),
        };
        if header.flags & !BASE_LOST != 0 || page[RESERVED_AT] != 0 {
            return Err(Damage("the page has flags that this program does not know"));
        }
        if header.flags & BASE_LOST != 0 && header.level != 0 {
            return Err(Damage("an inner page is marked as a lost leaf"));
        }
        Ok(header)
    }

    /// The offset after the slots.
    #[inline]
    pub(crate) fn slots_end(&self) -> usize {
        HEADER_BYTES + SLOT_BYTES * usize::from(self.count)
    }
}

#[inline]
fn fixed<const N: usize>(page: &Page, at: usize) -> [u8; N] {
    let mut field = [0; N];
    // The offsets are constants within the header.
    field.copy_from_slice(&page[at..at + N]);
    field
}

/// The offset of item `index`, from its slot.
#[inline]
pub(crate) fn slot(page: &Page, index: usize) -> Option<usize> {
    let field = page.get(HEADER_BYTES + SLOT_BYTES * index..)?.first_chunk::<SLOT_BYTES>()?;
    Some(usize::from(u16::from_le_bytes(*field)))
}

/// Decodes a length of at most 14 bits at `at`; returns it and its end.
#[inline]
fn length(page: &Page, at: usize) -> Option<(usize, usize)> {
    let first = *page.get(at)?;
    if first < 0x80 {
        return Some((usize::from(first), at + 1));
    }
    let second = *page.get(at + 1)?;
    if second >= 0x80 {
        return None;
    }
    Some((usize::from(first & 0x7F) | usize::from(second) << 7, at + 2))
}

/// Bytes of the encoding of a length.
#[inline]
pub(crate) fn length_bytes(value: usize) -> usize {
    if value < 0x80 { 1 } else { 2 }
}

/// Suffix and payload of the item at `at`: (start of the suffix, start of the payload, end).
#[inline]
pub(crate) fn item_at(page: &Page, at: usize) -> Option<(usize, usize, usize)> {
    let (suffix_bytes, at) = length(page, at)?;
    let (payload_bytes, suffix) = length(page, at)?;
    let payload = suffix + suffix_bytes;
    let end = payload + payload_bytes;
    if end <= BLOCK_BYTES { Some((suffix, payload, end)) } else { None }
}

/// The lost range of a leaf marked "base lost": keys from `low` and below `high` are unknown, unless the leaf has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds<'a> {
    pub low: &'a [u8],
    /// The end (exclusive); `None` is the end of the tree.
    pub high: Option<&'a [u8]>,
}

impl Bounds<'_> {
    /// Returns true if `key` is in the lost range.
    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.low <= key && self.high.is_none_or(|high| key < high)
    }
}

/// Decodes the bounds at `at`; returns them and their end.
pub(crate) fn bounds_at(page: &Page, at: usize) -> Option<(Bounds<'_>, usize)> {
    let (low_bytes, at) = length(page, at)?;
    let low = page.get(at..at + low_bytes)?;
    let (high_bytes, at) = length(page, at + low_bytes)?;
    // No key is longer: a leaf that inherits the bounds has room for them.
    if low_bytes.max(high_bytes.saturating_sub(1)) > TREE_KEY_BYTES_MAX {
        return None;
    }
    // The length of the upper bound is stored plus one: 0 means no bound.
    let Some(high_bytes) = high_bytes.checked_sub(1) else {
        return Some((Bounds { low, high: None }, at));
    };
    let high = page.get(at..at + high_bytes)?;
    Some((Bounds { low, high: Some(high) }, at + high_bytes))
}

/// A child, as an inner page stores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    pub page: PageRef,
    /// Entries in the leaves under it.
    pub entries: u64,
}

impl Child {
    /// Appends the child as the payload of an inner item.
    #[inline]
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let block = self.page.block.to_le_bytes();
        assert!(self.page.block >> BLOCK_BITS == 0, "block {} needs more than 47 bits", self.page.block);
        out.extend_from_slice(&block[..BLOCK_FIELD_BYTES]);
        out.extend_from_slice(&self.page.crc.to_le_bytes());
        put_varint(out, self.entries);
    }

    /// Marks an encoded child as a plain leaf.
    pub(crate) fn mark_plain(payload: &mut [u8]) {
        payload[BLOCK_FIELD_BYTES - 1] |= PLAIN;
    }

    /// Returns true if an encoded child is marked as a plain leaf: none of its entries owns blocks or has a deadline.
    #[inline]
    pub(crate) fn is_marked_plain(payload: &[u8]) -> bool {
        payload.get(BLOCK_FIELD_BYTES - 1).is_some_and(|byte| byte & PLAIN != 0)
    }

    /// Decodes the payload of an inner item.
    #[inline]
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Damage> {
        Self::decode_with_filter(payload).map(|(child, _)| child)
    }

    /// The same, with the filter of the leaf; it is empty if the child has none.
    #[inline]
    pub(crate) fn decode_with_filter(payload: &[u8]) -> Result<(Self, &[u8]), Damage> {
        const WRONG: Damage = Damage("an inner item is not a child");
        let mut reader = Reader::new(payload);
        let low = reader.u32().map_err(|_| WRONG)?;
        let high = reader.u16().map_err(|_| WRONG)?;
        let crc = reader.u32().map_err(|_| WRONG)?;
        let entries = reader.varint().map_err(|_| WRONG)?;
        let filter = reader.rest();
        if filter.len() > FILTER_BYTES_MAX || entries > ENTRIES_MAX {
            return Err(WRONG);
        }
        let block = u64::from(low) | u64::from(high & !(u16::from(PLAIN) << 8)) << 32;
        Ok((Self { page: PageRef { block, crc }, entries }, filter))
    }
}

/// A page that an apply fills and a sink seals once it knows the block.
pub struct Draft {
    bytes: Box<Page>,
    slot_at: usize,
    slots_end: usize,
    item_at: usize,
}

impl Draft {
    /// An empty draft; it serves one page after the other.
    pub(crate) fn new() -> Self {
        Self { bytes: Box::new([0; BLOCK_BYTES]), slot_at: 0, slots_end: 0, item_at: 0 }
    }

    /// The level of the page that was started last.
    #[inline]
    pub fn level(&self) -> u8 {
        self.bytes[LEVEL_AT]
    }

    /// Starts a page of `count` items. With bounds the page is a leaf marked "base lost".
    pub fn begin(&mut self, stamp: Stamp, count: usize, prefix: &[u8], bounds: Option<Bounds<'_>>) {
        assert!(bounds.is_none() || stamp.level == 0, "only leaves are marked as lost (R19)");
        assert!(
            count <= CAPACITY / SLOT_BYTES && prefix.len() <= TREE_KEY_BYTES_MAX,
            "no room for {count} items"
        );
        let page = &mut *self.bytes;
        page.fill(0);
        page[MAGIC_AT..VERSION_AT].copy_from_slice(&MAGIC);
        page[VERSION_AT] = VERSION;
        page[LEVEL_AT] = stamp.level;
        page[FLAGS_AT] = if bounds.is_some() { BASE_LOST } else { 0 };
        page[TABLET_AT..COUNT_AT].copy_from_slice(&stamp.tree.tablet.0.to_le_bytes());
        page[COUNT_AT..PREFIX_AT].copy_from_slice(&(count as u16).to_le_bytes());
        page[PREFIX_AT..BLOCK_AT].copy_from_slice(&(prefix.len() as u16).to_le_bytes());
        page[LSN_AT..DEVICE_AT].copy_from_slice(&stamp.lsn.0.to_le_bytes());
        page[DEVICE_AT..HEADER_BYTES].copy_from_slice(&stamp.tree.device.to_le_bytes());
        self.slot_at = HEADER_BYTES;
        self.slots_end = HEADER_BYTES + SLOT_BYTES * count;
        self.item_at = self.slots_end;
        self.bytes(prefix);
        if let Some(bounds) = bounds {
            self.length(bounds.low.len());
            self.bytes(bounds.low);
            self.length(bounds.high.map_or(0, |high| high.len() + 1));
            self.bytes(bounds.high.unwrap_or_default());
        }
    }

    /// Appends an item. The item must fit: the caller counted its bytes.
    #[inline]
    pub fn push(&mut self, suffix: &[u8], payload: &[u8]) {
        assert!(self.slot_at < self.slots_end, "more items than were announced");
        let slot = (self.item_at as u16).to_le_bytes();
        self.bytes[self.slot_at..self.slot_at + SLOT_BYTES].copy_from_slice(&slot);
        self.slot_at += SLOT_BYTES;
        self.length(suffix.len());
        self.length(payload.len());
        self.bytes(suffix);
        self.bytes(payload);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.item_at + bytes.len();
        self.bytes[self.item_at..end].copy_from_slice(bytes);
        self.item_at = end;
    }

    fn length(&mut self, value: usize) {
        assert!(value < 1 << 14, "a length of {value} bytes");
        if value < 0x80 {
            self.bytes(&[value as u8]);
        } else {
            self.bytes(&[value as u8 | 0x80, (value >> 7) as u8]);
        }
    }

    /// Stamps the page with its block and computes its checksum. The bytes are final and must be written to that block.
    pub fn seal(&mut self, block: u64) -> (PageRef, &[u8; BLOCK_BYTES]) {
        assert!(self.slot_at == self.slots_end, "fewer items than were announced");
        assert!(block >> BLOCK_BITS == 0, "a parent has 47 bits for block {block}");
        self.bytes[BLOCK_AT..LSN_AT].copy_from_slice(&block.to_le_bytes());
        let crc = crc32c(&self.bytes[MAGIC_AT..]);
        self.bytes[CRC_AT..MAGIC_AT].copy_from_slice(&crc.to_le_bytes());
        (PageRef { block, crc }, &self.bytes)
    }
}

/// The fields that all pages of one level of one apply share.
#[derive(Clone, Copy)]
pub struct Stamp {
    pub tree: Tree,
    pub lsn: Lsn,
    pub level: u8,
}

#[cfg(test)]
mod tests {
    use shoal_base::TabletId;

    use super::*;

    const FIELDS: [(usize, usize, &str); 12] = [
        (CRC_AT, 4, "crc"),
        (MAGIC_AT, 2, "magic"),
        (VERSION_AT, 1, "version"),
        (LEVEL_AT, 1, "level"),
        (FLAGS_AT, 1, "flags"),
        (RESERVED_AT, 1, "reserved"),
        (TABLET_AT, 2, "tablet"),
        (COUNT_AT, 2, "count"),
        (PREFIX_AT, 2, "prefix_bytes"),
        (BLOCK_AT, 8, "block"),
        (LSN_AT, 8, "lsn"),
        (DEVICE_AT, 8, "device"),
    ];

    fn stamp(level: u8) -> Stamp {
        Stamp { tree: Tree { device: 0x1122_3344_5566_7788, tablet: TabletId(3) }, lsn: Lsn(77), level }
    }

    #[test]
    fn the_document_has_the_same_fields() {
        let document = include_str!("../../../docs/format/page.md");
        let rows: Vec<_> = document
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| ")?.split(" | ");
                Some((cells.next()?.parse().ok()?, cells.next()?.parse().ok()?, cells.next()?))
            })
            .collect();
        assert_eq!(rows, FIELDS);
        let end = FIELDS.iter().fold(0, |at, &(offset, bytes, _)| {
            assert_eq!(at, offset);
            at + bytes
        });
        assert_eq!(end, HEADER_BYTES);
        for limit in [TREE_KEY_BYTES_MAX, ENTRY_BYTES_MAX, HEADER_BYTES, CAPACITY] {
            let written = if limit < 1000 {
                limit.to_string()
            } else {
                format!("{},{:03}", limit / 1000, limit % 1000)
            };
            assert!(document.contains(&written), "{written} is not in the document");
        }
    }

    #[test]
    fn a_page_of_version_1_never_changes() {
        let mut draft = Draft::new();
        draft.begin(stamp(0), 2, b"photos/", None);
        draft.push(b"1", b"first entry");
        draft.push(b"2", &[7; 200]);
        let (page, bytes) = draft.seal(0x0102_0304_0506);
        assert_eq!(bytes[..4], page.crc.to_le_bytes());
        assert_eq!(page.crc, crc32c(&bytes[4..]));
        assert_eq!(page.crc, GOLDEN_LEAF_CRC);

        draft.begin(stamp(2), 2, b"p", None);
        let mut child = Vec::new();
        Child { page, entries: 300 }.encode(&mut child);
        draft.push(b"", &child);
        draft.push(b"q", &child);
        assert_eq!(draft.seal(9).0.crc, GOLDEN_INNER_CRC);

        draft.begin(stamp(0), 0, b"", Some(Bounds { low: b"a", high: Some(&[b'b'; 300]) }));
        assert_eq!(draft.seal(10).0.crc, GOLDEN_LOST_CRC);
    }

    const GOLDEN_LEAF_CRC: u32 = 2_495_950_731;
    const GOLDEN_INNER_CRC: u32 = 3_697_737_572;
    const GOLDEN_LOST_CRC: u32 = 624_613_597;

    #[test]
    fn children_round_trip() {
        for entries in [0, 1, 127, 128, ENTRIES_MAX] {
            let child = Child { page: PageRef { block: (1 << 47) - 2, crc: 0xDEAD_BEEF }, entries };
            let mut payload = Vec::new();
            child.encode(&mut payload);
            if entries % 2 == 1 {
                Child::mark_plain(&mut payload);
            }
            assert_eq!(Child::is_marked_plain(&payload), entries % 2 == 1);
            assert!(payload.len() <= CHILD_BYTES_MAX);
            assert_eq!(Child::decode(&payload), Ok(child));
            assert!(Child::decode(&payload[..payload.len() - 1]).is_err());
            // The filter of a leaf follows.
            let end = payload.len();
            payload.resize(end + FILTER_BYTES_MAX, 7);
            assert_eq!(Child::decode_with_filter(&payload), Ok((child, &payload[end..])));
            payload.push(7);
            assert!(Child::decode(&payload).is_err());
        }
        // A count that no store reaches is damage: sums of counts must not overflow.
        for entries in [ENTRIES_MAX + 1, u64::MAX] {
            let mut payload = Vec::new();
            Child { page: PageRef { block: 1, crc: 2 }, entries }.encode(&mut payload);
            assert!(Child::decode(&payload).is_err());
        }
    }

    #[test]
    fn bounds_round_trip() {
        let mut draft = Draft::new();
        for bounds in [
            Bounds { low: b"", high: None },
            Bounds { low: &[1; 1100], high: Some(&[2; 1100]) },
            Bounds { low: b"x", high: Some(b"y") },
        ] {
            draft.begin(stamp(0), 0, b"", Some(bounds));
            let (_, bytes) = draft.seal(1);
            let (read, end) = bounds_at(bytes, HEADER_BYTES).unwrap();
            assert_eq!(read, bounds);
            assert!(end - HEADER_BYTES <= BOUNDS_BYTES_MAX);
            assert!(bytes[end..].iter().all(|&byte| byte == 0));
        }
        assert!(Bounds { low: b"b", high: Some(b"d") }.contains(b"b"));
        assert!(!Bounds { low: b"b", high: Some(b"d") }.contains(b"d"));
        assert!(Bounds { low: b"b", high: None }.contains(b"zz"));
        assert!(!Bounds { low: b"b", high: None }.contains(b"azz"));
    }
}
