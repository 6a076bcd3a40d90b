//! The end of a base: the list of its parts.
//!
//! A base is a backup of the store (`docs/format/backup.md`), cut between frames into parts. The parts one after the other are the backup.
//! The record names the base after its last part, with the checksum of this list.

use shoal_base::checksum::crc32c;

use super::{ArchiveName, Fields, FormatError, seal, started};
use crate::limits::{PART_BYTES_MAX, PARTS_MAX};

const MAGIC: [u8; 4] = *b"SHbe";
/// Bytes before the list.
const HEAD_BYTES: usize = 16;
/// Bytes of an entry of the list.
const PART_ENTRY_BYTES: usize = 12;

/// A part of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BasePart {
    /// Its bytes.
    pub bytes: u64,
    /// Their CRC-32C.
    pub crc: u32,
}

/// The parts of a base, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseEnd {
    /// The parts; at least one.
    pub parts: Vec<BasePart>,
}

impl BasePart {
    /// The entry of a part with these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, crc: crc32c(bytes) }
    }

    /// Checks the bytes that were read of part `part` of `base`.
    ///
    /// # Errors
    /// They are not the bytes that the list names.
    pub fn check(&self, base: u64, part: u32, bytes: &[u8]) -> Result<(), FormatError> {
        let name = ArchiveName::Part { base, part };
        let fields = Fields::new(&name, 0, bytes);
        if bytes.len() as u64 != self.bytes {
            return Err(fields.damaged_at(self.bytes.min(bytes.len() as u64), "its length is wrong"));
        }
        match crc32c(bytes) == self.crc {
            true => Ok(()),
            false => Err(fields.damaged_at(0, "its checksum is not that of the base's list of parts")),
        }
    }
}

impl BaseEnd {
    /// Its bytes.
    ///
    /// # Panics
    /// If there is no part, or too many, or one is empty or too long: the writer cuts a base into others.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let is_part = |part: &BasePart| (1..=PART_BYTES_MAX).contains(&part.bytes);
        assert!(self.parts.iter().all(is_part), "a part has a byte and at most {PART_BYTES_MAX}");
        assert!((1..=PARTS_MAX as usize).contains(&self.parts.len()), "a base has 1 to {PARTS_MAX} parts");
        let bytes = HEAD_BYTES + PART_ENTRY_BYTES * self.parts.len();
        let mut out = started(MAGIC, bytes);
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(self.parts.len() as u32).to_le_bytes());
        for part in &self.parts {
            out.extend_from_slice(&part.bytes.to_le_bytes());
            out.extend_from_slice(&part.crc.to_le_bytes());
        }
        assert_eq!(out.len(), bytes, "the list has the announced length");
        seal(out, bytes)
    }

    /// The list in `bytes`, which were read from the end of `base`. `crc` is the checksum that the record names.
    ///
    /// # Errors
    /// The bytes are not the list that the record names.
    pub fn decode(bytes: &[u8], base: u64, crc: u32) -> Result<Self, FormatError> {
        let name = ArchiveName::BaseEnd { base };
        let mut fields = Fields::new(&name, 0, bytes);
        fields.start(MAGIC, bytes.len())?;
        if bytes.get(..4) != Some(&crc.to_le_bytes()[..]) {
            return Err(fields.foreign("the record names another checksum"));
        }
        fields.zeros(2)?;
        let count = fields.u32()?;
        let expected = HEAD_BYTES as u64 + PART_ENTRY_BYTES as u64 * u64::from(count);
        if !(1..=PARTS_MAX).contains(&count) || expected != bytes.len() as u64 {
            return Err(fields.damaged_at(12, "the number of parts does not match the length"));
        }
        let mut parts = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let part = BasePart { bytes: fields.u64()?, crc: fields.u32()? };
            if !(1..=PART_BYTES_MAX).contains(&part.bytes) {
                return Err(fields.damaged("a part has no byte or more than 64 MiB"));
            }
            parts.push(part);
        }
        Ok(Self { parts })
    }

    /// The checksum that the record names.
    #[must_use]
    pub fn crc_of(encoded: &[u8]) -> u32 {
        encoded.get(..4).and_then(|crc| crc.try_into().ok()).map_or(0, u32::from_le_bytes)
    }
}
