//! The slots of the own log: each has the checksum of the one before it, so their bytes are made in order.

use bytes::Bytes;
use shoal_base::Lsn;

use crate::format::{
    FormatError, LogEnd, LogSlot, Opening, PackedBatch, SegmentFlags, SegmentHeader, SegmentKind,
    SegmentStart, SegmentWriter, VolumeId,
};

/// The end of a log that is being written.
pub(super) struct LogChain {
    volume: VolumeId,
    epoch: u64,
    next: LogSlot,
    chain: u32,
    end: LogEnd,
}

/// A slot whose bytes are made, and never change.
#[derive(Clone, Debug)]
pub(super) struct MadeSlot {
    pub(super) slot: LogSlot,
    pub(super) kind: SegmentKind,
    pub(super) end: LogEnd,
    pub(super) bytes: Bytes,
}

impl LogChain {
    /// A log without a slot, after the number `last`.
    pub(super) fn new(volume: VolumeId, log: u64, epoch: u64, last: Lsn) -> Self {
        let end = LogEnd { last_lsn: last, ..LogEnd::default() };
        Self { volume, epoch, next: LogSlot { log, seq: 0 }, chain: 0, end }
    }

    /// A log whose last slot is `header`.
    pub(super) fn after(header: &SegmentHeader) -> Self {
        let next = LogSlot { log: header.slot.log, seq: header.slot.seq + 1 };
        Self { volume: header.volume, epoch: header.epoch, next, chain: header.crc, end: header.end }
    }

    /// The last number in it.
    pub(super) fn last(&self) -> Lsn {
        self.end.last_lsn
    }

    fn start(&self, nonce: u64, flags: SegmentFlags) -> SegmentStart {
        let Self { volume, epoch, next, chain, end } = *self;
        SegmentStart { volume, slot: next, epoch, chain, nonce, flags, end }
    }

    pub(super) fn opening(
        &mut self,
        nonce: u64,
        opening: &Opening,
        after_gap: bool,
    ) -> Result<MadeSlot, FormatError> {
        let flags = SegmentFlags { after_gap, closing: false };
        self.made(self.start(nonce, flags).opening(opening))
    }

    /// A segment of these batches, at least one.
    pub(super) fn data(&mut self, nonce: u64, batches: Vec<PackedBatch>) -> Result<MadeSlot, FormatError> {
        let mut writer = SegmentWriter::new(self.start(nonce, SegmentFlags::default()));
        batches.into_iter().for_each(|batch| writer.push_packed(batch));
        self.made(writer.finish())
    }

    pub(super) fn close(&mut self, nonce: u64) -> Result<MadeSlot, FormatError> {
        self.made(self.start(nonce, SegmentFlags::default()).close())
    }

    fn made(&mut self, bytes: Vec<u8>) -> Result<MadeSlot, FormatError> {
        let header = SegmentHeader::decode(&bytes, &self.volume, self.next)?;
        let made = MadeSlot { slot: self.next, kind: header.kind, end: header.end, bytes: bytes.into() };
        *self = Self::after(&header);
        Ok(made)
    }
}
