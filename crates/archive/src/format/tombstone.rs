//! A tombstone: the end of a log, which its owner can never write past. It is never deleted.
//!
//! Nothing else below `log/` has its size, so a listing shows which objects are tombstones.

use super::segment::SegmentHeader;
use super::{Fields, FormatError, LogSlot, SEGMENT_HEADER_BYTES, VolumeId, seal, started};

/// Bytes of a tombstone.
pub const TOMBSTONE_BYTES: usize = 64;
const MAGIC: [u8; 4] = *b"SHts";

/// A tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The volume.
    pub volume: VolumeId,
    /// Its slot.
    pub slot: LogSlot,
    /// The epoch of the server that sealed the log.
    pub sealer_epoch: u64,
    /// The log of that server.
    pub sealer_log: u64,
}

impl Tombstone {
    /// Its bytes. Two servers never write the same ones, because a claim has its own epoch and log.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = started(MAGIC, TOMBSTONE_BYTES);
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(TOMBSTONE_BYTES as u32).to_le_bytes());
        out.extend_from_slice(&self.volume);
        for number in [self.slot.log, self.slot.seq, self.sealer_epoch, self.sealer_log] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        assert_eq!(out.len(), TOMBSTONE_BYTES, "a tombstone has a fixed length");
        seal(out, TOMBSTONE_BYTES)
    }

    /// The tombstone in `bytes`, which were read from `slot`.
    ///
    /// # Errors
    /// The bytes are not a tombstone of this slot and volume.
    pub fn decode(bytes: &[u8], volume: &VolumeId, slot: LogSlot) -> Result<Self, FormatError> {
        let mut fields = Fields::new(&slot, 0, bytes);
        fields.start(MAGIC, TOMBSTONE_BYTES)?;
        fields.zeros(2)?;
        if fields.u32()? as usize != TOMBSTONE_BYTES || bytes.len() != TOMBSTONE_BYTES {
            return Err(fields.damaged_at(12, "a tombstone has 64 bytes"));
        }
        let found = Self {
            volume: fields.array()?,
            slot: LogSlot { log: fields.u64()?, seq: fields.u64()? },
            sealer_epoch: fields.u64()?,
            sealer_log: fields.u64()?,
        };
        if found.volume != *volume {
            return Err(fields.foreign("the volume differs"));
        }
        if found.slot != slot {
            return Err(fields.foreign("log or slot differ"));
        }
        Ok(found)
    }
}

/// The contents of a slot, by its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotHead {
    /// A segment, whose header is right.
    Segment(SegmentHeader),
    /// The end of the log.
    Tombstone(Tombstone),
}

impl SlotHead {
    /// The contents of `slot`, of which `bytes` are the first [`SEGMENT_HEADER_BYTES`], or all if it has fewer.
    ///
    /// # Errors
    /// The bytes are neither a segment nor a tombstone of this slot and volume.
    pub fn decode(bytes: &[u8], volume: &VolumeId, slot: LogSlot) -> Result<Self, FormatError> {
        if bytes.get(4..8) == Some(&MAGIC[..]) {
            return Tombstone::decode(bytes, volume, slot).map(Self::Tombstone);
        }
        let head = bytes.get(..SEGMENT_HEADER_BYTES).unwrap_or(bytes);
        SegmentHeader::decode(head, volume, slot).map(Self::Segment)
    }
}
