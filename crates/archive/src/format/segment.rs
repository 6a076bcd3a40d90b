//! A segment: one slot of a log. Its bytes never change once the first request with them was sent.
//!
//! The header alone identifies a segment: log, slot and nonce. A reader decides by the first 128 bytes of a slot whether its own request won.

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::checksum::crc32c;
use shoal_log::format::COUNTER_MAX;

use super::batch::{BATCH_HEAD_BYTES, BATCH_ROW_BYTES, BatchRow, BatchWriter, PackedBatch, SegmentBatch};
use super::{Fields, FormatError, LogSlot, Opening, VolumeId, seal, started};
use crate::limits::SEGMENT_BYTES_MAX;

/// Bytes of the header of a segment.
pub const SEGMENT_HEADER_BYTES: usize = 128;
const MAGIC: [u8; 4] = *b"SHsg";
const AFTER_GAP: u32 = 1;
const CLOSING: u32 = 1 << 1;

/// The kind of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Batches of the store's log.
    Data = 1,
    /// No batch: it renews the lease.
    Heartbeat = 2,
    /// Slot 0: the server that writes the log.
    Opening = 3,
    /// The owner released the volume; a tombstone follows.
    Close = 4,
}

/// Flags of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentFlags {
    /// Of an opening: numbers up to its last one are in no log. A base at or above it is needed.
    pub after_gap: bool,
    /// The owner will release the volume in a moment.
    pub closing: bool,
}

/// The end of the log after a slot, that slot included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogEnd {
    /// The last number.
    pub last_lsn: Lsn,
    /// The store time of the last batch.
    pub store_ns: u64,
    /// The wall clock of the last batch; in a heartbeat, of now.
    pub wall_ns: u64,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The checksum of the rest of the header: the chain of the next slot.
    pub crc: u32,
    /// The kind.
    pub kind: SegmentKind,
    /// Batches in the table.
    pub batches: u32,
    /// The volume.
    pub volume: VolumeId,
    /// Log and slot.
    pub slot: LogSlot,
    /// The epoch of the owner's claim.
    pub epoch: u64,
    /// The first number in it; 0 if it has no record with a number.
    pub first_lsn: Lsn,
    /// The end of the log.
    pub end: LogEnd,
    /// The `crc` of the slot before; 0 in slot 0.
    pub chain: u32,
    /// The checksum of the table; of an opening, of its body.
    pub table_crc: u32,
    /// Bytes of the object.
    pub bytes: u64,
    /// Random: another one in each segment.
    pub nonce: u64,
    /// The flags.
    pub flags: SegmentFlags,
}

/// The fields of a segment that its writer knows before its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStart {
    /// The volume.
    pub volume: VolumeId,
    /// Log and slot.
    pub slot: LogSlot,
    /// The epoch of the owner's claim.
    pub epoch: u64,
    /// The checksum in the header of the slot before; 0 in slot 0.
    pub chain: u32,
    /// A random number.
    pub nonce: u64,
    /// The flags.
    pub flags: SegmentFlags,
    /// The end of the log before this slot.
    pub end: LogEnd,
}

/// A whole segment.
#[derive(Clone, Debug)]
pub struct ArchiveSegment {
    /// The header.
    pub header: SegmentHeader,
    /// The rest.
    pub body: SegmentBody,
}

/// The part of a segment after its header.
#[derive(Clone, Debug)]
pub enum SegmentBody {
    /// Of a segment of data.
    Batches(Vec<SegmentBatch>),
    /// Of an opening.
    Opening(Opening),
    /// Of a heartbeat or a close.
    Empty,
}

/// Builds a segment of data.
pub struct SegmentWriter {
    start: SegmentStart,
    batches: Vec<PackedBatch>,
    bytes: usize,
}

impl SegmentStart {
    /// The bytes of a heartbeat at the wall clock `wall_ns`.
    #[must_use]
    pub fn heartbeat(self, wall_ns: u64) -> Vec<u8> {
        let start = Self { end: LogEnd { wall_ns, ..self.end }, ..self };
        start.encode(SegmentKind::Heartbeat, 0, Lsn::NONE, &[])
    }

    /// The bytes of a close.
    #[must_use]
    pub fn close(self) -> Vec<u8> {
        self.encode(SegmentKind::Close, 0, Lsn::NONE, &[])
    }

    /// The bytes of an opening.
    ///
    /// # Panics
    /// If a name has more than 255 bytes.
    #[must_use]
    pub fn opening(self, opening: &Opening) -> Vec<u8> {
        let body = opening.encode();
        let mut out = self.encode(SegmentKind::Opening, 0, Lsn::NONE, &body);
        out.extend_from_slice(&body);
        out
    }

    /// The header of a segment with this table, after which `out` gets the rest: see `bytes` of the header.
    fn encode(self, kind: SegmentKind, batches: u32, first_lsn: Lsn, table: &[u8]) -> Vec<u8> {
        self.encode_sized(kind, (batches, first_lsn), table, SEGMENT_HEADER_BYTES + table.len())
    }

    fn encode_sized(
        self,
        kind: SegmentKind,
        (batches, first_lsn): (u32, Lsn),
        table: &[u8],
        bytes: usize,
    ) -> Vec<u8> {
        assert!(bytes <= SEGMENT_BYTES_MAX, "a segment has {bytes} bytes");
        assert_eq!(kind == SegmentKind::Opening, self.slot.seq == 0, "slot 0 is the opening, and no other");
        assert!(self.slot.seq > 0 || self.chain == 0, "slot 0 follows none");
        assert!(kind == SegmentKind::Opening || !self.flags.after_gap, "a log starts after a gap");
        let mut out = started(MAGIC, bytes);
        out.extend_from_slice(&(kind as u16).to_le_bytes());
        out.extend_from_slice(&batches.to_le_bytes());
        out.extend_from_slice(&self.volume);
        let LogEnd { last_lsn, store_ns, wall_ns } = self.end;
        for number in [self.slot.log, self.slot.seq, self.epoch, first_lsn.0, last_lsn.0, store_ns, wall_ns] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.chain.to_le_bytes());
        out.extend_from_slice(&crc32c(table).to_le_bytes());
        out.extend_from_slice(&(bytes as u64).to_le_bytes());
        out.extend_from_slice(&self.nonce.to_le_bytes());
        out.extend_from_slice(&self.flags.bits().to_le_bytes());
        out.extend_from_slice(&[0; 12]);
        assert_eq!(out.len(), SEGMENT_HEADER_BYTES, "the header has a fixed length");
        seal(out, SEGMENT_HEADER_BYTES)
    }
}

impl SegmentWriter {
    /// A segment without a batch.
    #[must_use]
    pub fn new(start: SegmentStart) -> Self {
        Self { start, batches: Vec::new(), bytes: SEGMENT_HEADER_BYTES }
    }

    /// Bytes of the segment so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a batch.
    ///
    /// # Panics
    /// If it has no record, if its last write batch is not whole, or if its numbers do not follow those before.
    pub fn push(&mut self, batch: BatchWriter) {
        self.push_packed(batch.finish());
    }

    /// Appends a batch in its final form.
    ///
    /// # Panics
    /// If its numbers do not follow those before.
    pub fn push_packed(&mut self, batch: PackedBatch) {
        if batch.count > 0 {
            assert!(batch.first_lsn > self.start.end.last_lsn, "numbers ascend");
            self.start.end.last_lsn = Lsn(batch.first_lsn.0 + u64::from(batch.count) - 1);
        }
        (self.start.end.store_ns, self.start.end.wall_ns) = (batch.store_ns, batch.wall_ns);
        self.bytes += batch.segment_bytes();
        self.batches.push(batch);
    }

    /// Its bytes.
    ///
    /// # Panics
    /// If it has no batch, or is longer than [`SEGMENT_BYTES_MAX`].
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        assert!(!self.batches.is_empty(), "a segment of data has a batch");
        let mut table = Vec::with_capacity(BATCH_ROW_BYTES * self.batches.len());
        let mut offset = (SEGMENT_HEADER_BYTES + BATCH_ROW_BYTES * self.batches.len()) as u64;
        for batch in &self.batches {
            let PackedBatch { first_lsn, count, bytes, .. } = batch;
            let crc = crc32c(bytes);
            let bytes = bytes.len() as u32;
            BatchRow { count: *count, offset, bytes, crc, first_lsn: *first_lsn }.encode(&mut table);
            offset += u64::from(bytes);
        }
        let numbered = self.batches.iter().find(|batch| batch.count > 0);
        let first_lsn = numbered.map_or(Lsn::NONE, |batch| batch.first_lsn);
        let batches = self.batches.len() as u32;
        let mut out = self.start.encode_sized(SegmentKind::Data, (batches, first_lsn), &table, self.bytes);
        out.extend_from_slice(&table);
        self.batches.iter().for_each(|batch| out.extend_from_slice(&batch.bytes));
        assert_eq!(out.len(), self.bytes, "the segment has the announced length");
        out
    }
}

impl SegmentFlags {
    fn bits(self) -> u32 {
        (if self.after_gap { AFTER_GAP } else { 0 }) | (if self.closing { CLOSING } else { 0 })
    }

    fn of(bits: u32) -> Option<Self> {
        let is_known = bits & !(AFTER_GAP | CLOSING) == 0;
        is_known.then_some(Self { after_gap: bits & AFTER_GAP != 0, closing: bits & CLOSING != 0 })
    }
}

impl SegmentHeader {
    /// The header in `bytes`, the first [`SEGMENT_HEADER_BYTES`] of `slot`.
    ///
    /// # Errors
    /// The bytes are not a header of this slot and volume.
    pub fn decode(bytes: &[u8], volume: &VolumeId, slot: LogSlot) -> Result<Self, FormatError> {
        let mut fields = Fields::new(&slot, 0, bytes);
        fields.start(MAGIC, SEGMENT_HEADER_BYTES)?;
        let crc = bytes.get(..4).and_then(|crc| crc.try_into().ok()).map_or(0, u32::from_le_bytes);
        let kind = match fields.u16()? {
            1 => SegmentKind::Data,
            2 => SegmentKind::Heartbeat,
            3 => SegmentKind::Opening,
            4 => SegmentKind::Close,
            _ => return Err(fields.newer("a kind of segment")),
        };
        let batches = fields.u32()?;
        let found_volume = fields.array()?;
        let found = LogSlot { log: fields.u64()?, seq: fields.u64()? };
        let (epoch, first_lsn) = (fields.u64()?, Lsn(fields.u64()?));
        let end = LogEnd { last_lsn: Lsn(fields.u64()?), store_ns: fields.u64()?, wall_ns: fields.u64()? };
        let (chain, table_crc) = (fields.u32()?, fields.u32()?);
        let (bytes, nonce) = (fields.u64()?, fields.u64()?);
        let flags = SegmentFlags::of(fields.u32()?).ok_or_else(|| fields.newer("a flag"))?;
        fields.zeros(12)?;
        if found_volume != *volume {
            return Err(fields.foreign("the volume differs"));
        }
        if found != slot {
            return Err(fields.foreign("log or slot differ"));
        }
        let volume = found_volume;
        let header = Self {
            crc,
            kind,
            batches,
            volume,
            slot,
            epoch,
            first_lsn,
            end,
            chain,
            table_crc,
            bytes,
            nonce,
            flags,
        };
        header.wrong().map_or(Ok(header), |why| Err(fields.damaged_at(0, why)))
    }

    /// The reason why these fields are no header; `None` if they are one.
    fn wrong(&self) -> Option<&'static str> {
        let is_data = self.kind == SegmentKind::Data;
        let is_opening = self.kind == SegmentKind::Opening;
        let batches = u64::from(self.batches) * (BATCH_ROW_BYTES + BATCH_HEAD_BYTES + 1) as u64;
        let rest = self.bytes.checked_sub(SEGMENT_HEADER_BYTES as u64);
        let checks = [
            (self.bytes <= SEGMENT_BYTES_MAX as u64, "it is longer than a segment may be"),
            (rest.is_some_and(|rest| rest >= batches), "it is shorter than its batches"),
            (is_data == (self.batches > 0), "only a segment of data has batches"),
            (
                is_data || is_opening || rest == Some(0),
                "a segment without contents has bytes after its header",
            ),
            (is_opening == (self.slot.seq == 0), "slot 0 is the opening, and no other"),
            (self.slot.seq > 0 || self.chain == 0, "slot 0 follows another slot"),
            (is_opening || !self.flags.after_gap, "a gap inside of a log"),
            (is_data || self.first_lsn == Lsn::NONE, "it has numbers without records"),
            (self.first_lsn <= self.end.last_lsn, "its first number is above its last one"),
            (self.end.last_lsn.0 <= COUNTER_MAX, "a number is impossible"),
        ];
        checks.into_iter().find(|(is_right, _)| !is_right).map(|(_, why)| why)
    }

    /// Checks that this slot is the one after `before`, of the same log.
    ///
    /// # Errors
    /// It continues another slot, or its numbers do not follow.
    pub fn check_follows(&self, before: &Self) -> Result<(), FormatError> {
        let fields = Fields::new(&self.slot, 0, &[]);
        if before.slot.log != self.slot.log || Some(self.slot.seq) != before.slot.seq.checked_add(1) {
            return Err(fields.foreign("it is not the next slot of the log"));
        }
        if self.chain != before.crc || self.epoch != before.epoch {
            return Err(fields.damaged_at(88, "it does not continue the slot before it"));
        }
        let (last, first) = (before.end.last_lsn, self.first_lsn);
        let follows = if first == Lsn::NONE { self.end.last_lsn == last } else { first > last };
        if follows { Ok(()) } else { Err(fields.damaged_at(56, "its numbers do not follow those before")) }
    }
}

impl ArchiveSegment {
    /// The segment in `bytes`, which were read from `slot`. The records of its batches are decoded by [`SegmentBatch::records`].
    ///
    /// # Errors
    /// The bytes are not a segment of this slot and volume.
    pub fn decode(bytes: &Bytes, volume: &VolumeId, slot: LogSlot) -> Result<Self, FormatError> {
        let header = SegmentHeader::decode(bytes, volume, slot)?;
        let rest = bytes.slice(SEGMENT_HEADER_BYTES..);
        let mut fields = Fields::new(&slot, SEGMENT_HEADER_BYTES as u64, &rest);
        if header.bytes != bytes.len() as u64 {
            return Err(fields.damaged_at(96, "its length is not that of the object"));
        }
        let table_bytes = match header.kind {
            SegmentKind::Opening => rest.len(),
            _ => header.batches as usize * BATCH_ROW_BYTES,
        };
        if rest.get(..table_bytes).map(crc32c) != Some(header.table_crc) {
            return Err(fields.damaged("the checksum of the table is wrong"));
        }
        let body = match header.kind {
            SegmentKind::Opening => SegmentBody::Opening(Opening::decode(&mut fields)?),
            SegmentKind::Data => SegmentBody::Batches(Self::batches(&header, &mut fields, bytes)?),
            SegmentKind::Heartbeat | SegmentKind::Close => SegmentBody::Empty,
        };
        Ok(Self { header, body })
    }

    fn batches(
        header: &SegmentHeader,
        fields: &mut Fields<'_>,
        bytes: &Bytes,
    ) -> Result<Vec<SegmentBatch>, FormatError> {
        let mut next = (SEGMENT_HEADER_BYTES + header.batches as usize * BATCH_ROW_BYTES) as u64;
        let (mut first, mut last) = (Lsn::NONE, Lsn::NONE);
        let mut batches = Vec::with_capacity(header.batches as usize);
        for _ in 0..header.batches {
            let row = BatchRow::decode(fields)?;
            if row.offset != next || (row.count > 0 && row.first_lsn <= last) {
                return Err(fields.damaged("a batch does not follow the one before it"));
            }
            next += u64::from(row.bytes);
            if row.count > 0 {
                last = Lsn(row.first_lsn.0 + u64::from(row.count) - 1);
                first = if first == Lsn::NONE { row.first_lsn } else { first };
            }
            batches.push(row.batch(header.slot, bytes)?);
        }
        let ends = next == header.bytes && first == header.first_lsn;
        if !ends || (last != Lsn::NONE && last != header.end.last_lsn) {
            return Err(fields.damaged_at(56, "the table does not match the header"));
        }
        Ok(batches)
    }
}
