//! The bytes of all objects of an archive (`docs/format/archive.md`). No other module encodes or decodes them.
//!
//! Every decoder takes any bytes: it returns a structure or a [`FormatError`] that names the object, and it allocates no memory for a count
//! or a length that is only announced. Each structure that was decoded is the same after it is encoded and decoded again.

mod base;
mod batch;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod names;
mod opening;
mod piece;
mod record;
mod segment;
mod spool;
#[cfg(test)]
pub(crate) mod tests;
mod tombstone;

pub use base::{BaseEnd, BasePart};
pub use batch::{BatchWriter, LoggedRecord, LoggedValue, PackedBatch, SegmentBatch};
pub use names::{ArchiveName, LogSlot, VolumeId};
pub use opening::Opening;
pub use piece::ValuePiece;
pub use record::{ArchiveRecord, OwnerName, RecordBase, RecordFlags, RecordLog, RecordPin, RecordTooLong};
pub use segment::{
    ArchiveSegment, LogEnd, SEGMENT_HEADER_BYTES, SegmentBody, SegmentFlags, SegmentHeader, SegmentKind,
    SegmentStart, SegmentWriter,
};
pub use spool::{SPOOL_ALIGNMENT, SpoolReader, spool_bytes};
pub use tombstone::{SlotHead, TOMBSTONE_BYTES, Tombstone};

use shoal_base::codec::{Reader, Truncated};

/// The version of all formats of the archive. Readers refuse others.
pub const ARCHIVE_FORMAT_VERSION: u16 = 1;

/// The reason why the bytes of an object are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes are not those that were written.
    #[error("{object} is damaged at byte {offset}: {why}")]
    Damaged {
        /// The object.
        object: String,
        /// The offset of the damage in it.
        offset: u64,
        /// The damage, in words.
        why: &'static str,
    },
    /// A later version of the format: nothing is known about it.
    #[error("{object} has {why} that this program does not know: use the version of shoal that wrote it")]
    Newer {
        /// The object.
        object: String,
        /// The unknown part.
        why: &'static str,
    },
    /// A whole object that belongs somewhere else.
    #[error("{object} holds the bytes of another object: {why}")]
    Foreign {
        /// The object.
        object: String,
        /// The difference.
        why: &'static str,
    },
}

/// Reads the fields of one object, and reports errors with its name and the offset.
pub(crate) struct Fields<'a> {
    object: &'a dyn std::fmt::Display,
    /// Offset in the object of the first byte of `bytes`.
    start: u64,
    bytes: &'a [u8],
    reader: Reader<'a>,
}

impl<'a> Fields<'a> {
    /// The fields of `bytes`, which start at byte `start` of `object`.
    pub(crate) fn new(object: &'a dyn std::fmt::Display, start: u64, bytes: &'a [u8]) -> Self {
        Self { object, start, bytes, reader: Reader::new(bytes) }
    }

    /// The offset of the next field in the object.
    fn offset(&self) -> u64 {
        self.start + (self.bytes.len() - self.reader.rest().len()) as u64
    }

    /// Damage at the next field.
    pub(crate) fn damaged(&self, why: &'static str) -> FormatError {
        self.damaged_at(self.offset(), why)
    }

    /// Damage at this offset of the object.
    pub(crate) fn damaged_at(&self, offset: u64, why: &'static str) -> FormatError {
        FormatError::Damaged { object: self.object.to_string(), offset, why }
    }

    pub(crate) fn newer(&self, why: &'static str) -> FormatError {
        FormatError::Newer { object: self.object.to_string(), why }
    }

    pub(crate) fn foreign(&self, why: &'static str) -> FormatError {
        FormatError::Foreign { object: self.object.to_string(), why }
    }

    fn field<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Truncated>,
    ) -> Result<T, FormatError> {
        read(&mut self.reader).map_err(|_| self.damaged("it ends in the middle of a field"))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.field(Reader::u16)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.field(Reader::u32)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.field(Reader::u64)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, FormatError> {
        self.field(Reader::varint)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        self.field(|reader| reader.bytes(count))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        self.field(|reader| reader.bytes(N)?.try_into().map_err(|_| Truncated))
    }

    /// A prefixed text of at most [`NAME_BYTES_MAX`](crate::limits::NAME_BYTES_MAX) bytes.
    pub(crate) fn text(&mut self) -> Result<String, FormatError> {
        let bytes = self.field(Reader::prefixed)?;
        if bytes.len() > crate::limits::NAME_BYTES_MAX {
            return Err(self.damaged("a name has more than 255 bytes"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| self.damaged("a name is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// Bytes that this version does not use.
    pub(crate) fn zeros(&mut self, count: usize) -> Result<(), FormatError> {
        match self.bytes(count)?.iter().all(|&byte| byte == 0) {
            true => Ok(()),
            false => Err(self.newer("a field")),
        }
    }

    /// The rest of the bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.reader.rest()
    }

    /// Checks that everything was read.
    pub(crate) fn end(&self) -> Result<(), FormatError> {
        match self.reader.is_empty() {
            true => Ok(()),
            false => Err(self.damaged("bytes follow its end")),
        }
    }

    /// Reads checksum, magic and version, the first fields of each object, and checks the checksum of `covered` bytes from the fifth on.
    pub(crate) fn start(&mut self, magic: [u8; 4], covered: usize) -> Result<(), FormatError> {
        let crc = self.u32()?;
        let Some(sum) = self.bytes.get(4..covered) else {
            return Err(self.damaged_at(self.bytes.len() as u64, "it is cut off"));
        };
        if self.array()? != magic {
            return Err(self.damaged_at(4, "it does not start as an object of this kind does"));
        }
        if crc != shoal_base::checksum::crc32c(sum) {
            return Err(self.damaged_at(0, "the checksum is wrong"));
        }
        match self.u16()? {
            ARCHIVE_FORMAT_VERSION => Ok(()),
            _ => Err(self.newer("a version")),
        }
    }
}

/// Writes the checksum of everything after it into the first four bytes.
pub(crate) fn seal(mut bytes: Vec<u8>, covered: usize) -> Vec<u8> {
    let crc = shoal_base::checksum::crc32c(&bytes[4..covered]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The first fields of an object: room for the checksum, the magic, the version.
pub(crate) fn started(magic: [u8; 4], capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&magic);
    out.extend_from_slice(&ARCHIVE_FORMAT_VERSION.to_le_bytes());
    out
}
