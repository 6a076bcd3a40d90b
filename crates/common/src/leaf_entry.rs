//! The frame of an object's entry in a leaf: the version, in an unsettled entry of a layer the estimate, and the body (`docs/format/object.md`).
//!
//! A layer may shadow an older entry that nobody has read: the entry is *unsettled* until a compaction meets the older one (INV-27). It has the
//! estimated bytes of the older value, by which the totals count.

use shoal_base::codec::{Reader, Truncated};

/// The bit of the version of an unsettled entry. Versions are far below it.
const UNSETTLED: u64 = 1 << 63;
/// Bytes that the estimate adds to an entry.
pub const ESTIMATE_BYTES: usize = 2;

/// Bits of a body's flags: the place of the value, which is 0 inside of the leaf.
pub const HOME_MASK: u8 = 0b11;
/// The bit of a body's flags for an object with a deadline.
pub const HAS_EXPIRY: u8 = 1 << 3;

/// An entry of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEntry<'a> {
    /// The version of the record that wrote it.
    pub version: u64,
    /// Of an unsettled entry: the estimated bytes of the value that it shadows.
    pub estimate: Option<u16>,
    /// The body.
    pub body: &'a [u8],
}

impl<'a> LeafEntry<'a> {
    /// The parts of an entry.
    ///
    /// # Errors
    /// [`Truncated`] if it is too short.
    #[inline]
    pub fn split(entry: &'a [u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(entry);
        let version = reader.u64()?;
        let is_unsettled = version & UNSETTLED != 0 && !reader.is_empty();
        let estimate = if is_unsettled { Some(reader.u16()?) } else { None };
        Ok(Self { version: version & !UNSETTLED, estimate, body: reader.rest() })
    }

    /// Appends the entry to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.version & UNSETTLED == 0, "version {} is a number of the log (R5)", self.version);
        let mark = if self.estimate.is_some() { UNSETTLED } else { 0 };
        out.extend_from_slice(&(self.version | mark).to_le_bytes());
        out.extend(self.estimate.iter().flat_map(|estimate| estimate.to_le_bytes()));
        out.extend_from_slice(self.body);
    }
}

/// Returns true if the value of this body is in the body.
#[inline]
pub fn is_inline(body: &[u8]) -> bool {
    body.first().is_some_and(|flags| flags & HOME_MASK == 0)
}

/// Returns true if a leaf's entry owns nothing outside of the leaf and has no deadline. No tombstone is plain.
#[inline]
pub fn is_plain(entry: &[u8]) -> bool {
    LeafEntry::split(entry)
        .is_ok_and(|entry| entry.body.first().is_some_and(|flags| flags & (HOME_MASK | HAS_EXPIRY) == 0))
}

/// The bytes of the value of a leaf's entry; 0 if it is not readable.
pub fn value_bytes(entry: &[u8]) -> u64 {
    let length = || {
        let mut reader = Reader::new(LeafEntry::split(entry)?.body);
        let flags = reader.u8()?;
        reader.bytes(if flags & HAS_EXPIRY == 0 { 8 } else { 16 })?;
        reader.varint()
    };
    length().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        for (estimate, bytes) in [(None, 11), (Some(0x1234), 13)] {
            let entry = LeafEntry { version: 77, estimate, body: &[0, 1, 2] };
            let mut out = Vec::new();
            entry.encode(&mut out);
            assert_eq!((out.len(), LeafEntry::split(&out)), (bytes, Ok(entry)));
            assert!(is_plain(&out));
        }
        // A tombstone has no body, and is never unsettled.
        let tombstone = (UNSETTLED | 5).to_le_bytes();
        assert_eq!(LeafEntry::split(&tombstone), Ok(LeafEntry { version: 5, estimate: None, body: &[] }));
        assert!(!is_plain(&tombstone) && !is_plain(&[]));
        assert_eq!(LeafEntry::split(&[&tombstone[..], &[1]].concat()), Err(Truncated));
        for flags in [1, 2, 3, HAS_EXPIRY] {
            assert!(!is_plain(&[&[0; 8][..], &[flags]].concat()));
        }
        assert!(!is_inline(&[]) && !is_inline(&[2]) && is_inline(&[HAS_EXPIRY]));
    }
}
