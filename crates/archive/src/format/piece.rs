//! A piece of a value that is too long to travel with its record: a record without a number, before the record of its value.

use bytes::Bytes;
use shoal_base::checksum::crc32c;

use super::{Fields, FormatError};
use crate::limits::PIECE_BYTES;

/// The kind of a piece among the records of a batch.
pub(super) const KIND_PIECE: u8 = 5;
/// Bytes of a piece's record before its bytes: length, checksum, kind, flags, tablet, length of the key, id, index.
pub(super) const PIECE_FIXED_BYTES: usize = 25;

/// A piece of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePiece {
    /// The value: a number that no other value of the log has.
    pub id: u64,
    /// The piece, from 0.
    pub index: u32,
    /// Its bytes: [`PIECE_BYTES`], or fewer in the last one.
    pub bytes: Bytes,
}

impl ValuePiece {
    /// Appends the record of the piece.
    ///
    /// # Panics
    /// If it has no byte, or too many.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        assert!((1..=PIECE_BYTES).contains(&self.bytes.len()), "a piece has {} bytes", self.bytes.len());
        let start = out.len();
        out.extend_from_slice(&((PIECE_FIXED_BYTES - 4 + self.bytes.len()) as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        // Flags, tablet and the length of the key are zero.
        out.extend_from_slice(&[KIND_PIECE, 0, 0, 0, 0]);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&self.bytes);
        let crc = crc32c(&out[start + 8..]);
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The piece in the rest of a record, from behind its kind on. `whole` is the rest, too, and shares the memory of the segment.
    pub(super) fn decode(fields: &mut Fields<'_>, whole: &Bytes) -> Result<Self, FormatError> {
        // Flags, tablet, the length of the key.
        fields.zeros(4)?;
        let (id, index) = (fields.u64()?, fields.u32()?);
        let bytes = whole.slice_ref(fields.rest());
        if !(1..=PIECE_BYTES).contains(&bytes.len()) {
            return Err(fields.damaged("a piece of a value has no byte or more than 4 MiB"));
        }
        Ok(Self { id, index, bytes })
    }
}
