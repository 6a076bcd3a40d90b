//! Bytes of the log: batches and records (`docs/format/log.md`). No other file encodes or decodes them.

use shoal_common::hidden_key::{is_hidden, is_part};
use shoal_common::injected_bug::{Bug, injected};

use crate::ring::LogPlace;
use bytes::Bytes;
use shoal_base::checksum::{crc32c, crc32c_seeded};
use shoal_base::codec::{Reader, Truncated, put_prefixed, varint_bytes};
use shoal_base::{BLOCK_BYTES, Lsn, TabletId};
use shoal_device::IoBuf;

/// Bytes of a batch's header.
pub const BATCH_HEADER_BYTES: usize = 80;
/// "SBAG" and "SBAH" read as little-endian: batches of format version 2, and of the present version.
const BATCH_MAGIC_OLDER: u32 = 0x4741_4253;
const BATCH_MAGIC: u32 = 0x4841_4253;
/// Most blocks of a batch: recovery never reads more because of a length in a damaged header.
pub(crate) const BATCH_BLOCKS_MAX: u32 = 4096;

/// Clocks never reach this (292 years): a larger number is damage, and sums of smaller ones do not overflow.
pub(crate) const CLOCK_MAX_NS: u64 = i64::MAX as u64;
/// No counter (numbers of records and superblocks, epochs, positions) reaches this in the life of a device: a
/// larger number is damage, and sums of smaller ones do not overflow.
pub const COUNTER_MAX: u64 = 1 << 60;

/// Bytes of a record before its key: length, checksum, kind, flags, tablet.
const RECORD_FIXED_BYTES: usize = 12;
const KIND_PUT: u8 = 1;
const KIND_DELETE: u8 = 2;
/// A flag: the next record belongs to the same write batch (R22).
const CONTINUES: u8 = 1 << 1;
/// A flag of a put: its manifest names runs of values that deletes of its write batch give up.
const ADOPTS: u8 = 1 << 4;
/// A flag of a delete of a part: the runs of its value belong to the put of its write batch that adopts.
const ADOPTED: u8 = 1 << 5;

/// The times in a batch's header (`expiry.rs`), in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchTimes {
    /// Of format version 2: the clock of expiry, since the Unix epoch.
    Older {
        /// The clock of expiry.
        expiry_clock_ns: u64,
    },
    /// Store time, and the wall clock at that moment, since the Unix epoch.
    Now {
        /// Store time.
        store_ns: u64,
        /// The wall clock at that moment.
        wall_ns: u64,
    },
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The epoch of the opening that wrote it (R1).
    pub epoch: u64,
    /// Position of the batch: blocks written to the log before it, gaps at the ring's end included.
    pub position: u64,
    /// Blocks of the batch.
    pub blocks: u32,
    /// Records of the batch; 0 for a seal.
    pub records: u32,
    /// The number of the first record; without records, of the next one.
    pub first_lsn: Lsn,
    /// All records up to this one were flushed when the header was written (R15).
    pub durable_lsn: Lsn,
    /// The number of the newest durable superblock (R9).
    pub superblock: u64,
    /// The clocks when the header was written.
    pub stamp: BatchTimes,
    /// Checksum of the previous batch (R1).
    pub chain: u32,
    /// Bytes of all records.
    pub record_bytes: u32,
}

impl BatchHeader {
    /// The place of the batch, with the checksum of the previous one.
    pub fn place(&self) -> LogPlace {
        LogPlace { position: self.position, chain: self.chain, first_lsn: self.first_lsn }
    }

    /// The position after the batch.
    pub fn end(&self) -> u64 {
        self.position + u64::from(self.blocks)
    }

    /// The first number after those of its records.
    pub fn next_lsn(&self) -> Lsn {
        Lsn(self.first_lsn.0 + u64::from(self.records))
    }
}

/// Builds a batch in memory that the device writes.
pub struct BatchBuilder {
    buf: IoBuf,
    at: usize,
}

impl BatchBuilder {
    /// A batch with room for `record_bytes` bytes of records.
    pub fn new(record_bytes: usize) -> Self {
        let blocks = (BATCH_HEADER_BYTES + record_bytes).div_ceil(BLOCK_BYTES);
        Self { buf: IoBuf::unfilled(blocks), at: BATCH_HEADER_BYTES }
    }

    /// Blocks of the batch.
    pub fn blocks(&self) -> u32 {
        self.buf.blocks() as u32
    }

    /// Appends an encoded record.
    pub fn push(&mut self, record: &[u8]) {
        self.buf[self.at..self.at + record.len()].copy_from_slice(record);
        self.at += record.len();
    }

    /// Completes the batch. Returns its memory, and its checksum for the chain of the next one. `seed` is the store's
    /// secret.
    pub fn finish(mut self, header: &BatchHeader, seed: u64) -> (IoBuf, u32) {
        assert_eq!(
            header.record_bytes as usize,
            self.at - BATCH_HEADER_BYTES,
            "the records that were announced"
        );
        assert_eq!(header.blocks, self.blocks(), "the batch fills its blocks");
        let mut bytes = Vec::with_capacity(BATCH_HEADER_BYTES - 4);
        let (magic, time, wall_ns) = match header.stamp {
            BatchTimes::Older { expiry_clock_ns } => (BATCH_MAGIC_OLDER, expiry_clock_ns, 0),
            BatchTimes::Now { store_ns, wall_ns } => (BATCH_MAGIC, store_ns, wall_ns),
        };
        bytes.extend_from_slice(&magic.to_le_bytes());
        for field in [header.epoch, header.position] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        for field in [header.blocks, header.records] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        for field in [header.first_lsn.0, header.durable_lsn.0, header.superblock, time] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        for field in [header.chain, header.record_bytes] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&wall_ns.to_le_bytes());
        assert_eq!(bytes.len(), BATCH_HEADER_BYTES - 4, "the header has a fixed length");
        self.buf[4..BATCH_HEADER_BYTES].copy_from_slice(&bytes);
        self.buf[self.at..].fill(0);
        let crc = crc32c_seeded(seed, &self.buf[4..]);
        self.buf[..4].copy_from_slice(&crc.to_le_bytes());
        (self.buf, crc)
    }
}

/// Reads the header at the start of `block` without checking the checksum. It shows only that a batch may start
/// here, and its length.
pub fn peek_header(block: &[u8]) -> Option<BatchHeader> {
    let mut reader = Reader::new(block);
    let header = decode_header(&mut reader).ok()??;
    let room = u64::from(header.blocks) * BLOCK_BYTES as u64;
    let fits = u64::from(header.record_bytes) + BATCH_HEADER_BYTES as u64 <= room;
    let counters =
        [header.epoch, header.position, header.first_lsn.0, header.durable_lsn.0, header.superblock];
    let is_time = match header.stamp {
        BatchTimes::Older { .. } => true,
        BatchTimes::Now { store_ns, wall_ns } => store_ns.max(wall_ns) <= CLOCK_MAX_NS,
    };
    let sensible = is_time && counters.iter().all(|&counter| counter <= COUNTER_MAX);
    (header.blocks >= 1 && header.blocks <= BATCH_BLOCKS_MAX && fits && sensible).then_some(header)
}

fn decode_header(reader: &mut Reader<'_>) -> Result<Option<BatchHeader>, Truncated> {
    reader.u32()?;
    let magic = reader.u32()?;
    if magic != BATCH_MAGIC && magic != BATCH_MAGIC_OLDER {
        return Ok(None);
    }
    let (epoch, position) = (reader.u64()?, reader.u64()?);
    let (blocks, records) = (reader.u32()?, reader.u32()?);
    let (first_lsn, durable_lsn) = (Lsn(reader.u64()?), Lsn(reader.u64()?));
    let (superblock, time) = (reader.u64()?, reader.u64()?);
    let (chain, record_bytes) = (reader.u32()?, reader.u32()?);
    let wall_ns = reader.u64()?;
    let stamp = if magic == BATCH_MAGIC_OLDER {
        BatchTimes::Older { expiry_clock_ns: time }
    } else {
        BatchTimes::Now { store_ns: time, wall_ns }
    };
    Ok(Some(BatchHeader {
        epoch,
        position,
        blocks,
        records,
        first_lsn,
        durable_lsn,
        superblock,
        stamp,
        chain,
        record_bytes,
    }))
}

/// Checks a whole batch. Returns its header and its checksum if it is valid.
pub fn check_batch(bytes: &[u8], seed: u64) -> Option<(BatchHeader, u32)> {
    let header = peek_header(bytes)?;
    let bytes = bytes.get(..header.blocks as usize * BLOCK_BYTES)?;
    let crc = Reader::new(bytes).u32().ok()?;
    let matches = injected(Bug::LogNotChecked) || crc == crc32c_seeded(seed, bytes.get(4..)?);
    matches.then_some((header, crc))
}

/// The effect of a record on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// The key has the entry in the body.
    Put,
    /// The key does not exist.
    Delete,
}

/// An encoded record with the places of its parts.
#[derive(Clone, Debug)]
pub struct EncodedRecord {
    /// The record as the log has it.
    pub bytes: Bytes,
    /// The effect on the key.
    pub kind: RecordKind,
    /// The tablet of the key.
    pub tablet: TabletId,
    /// Start and end of the key in `bytes`.
    pub key: (u32, u32),
    /// Start of the body in `bytes`.
    pub body: u32,
    /// True if the next record belongs to the same write batch.
    pub continues: bool,
    /// True for a put whose manifest names runs of the parts that its write batch deletes, and for the delete of such a part.
    pub adopts: bool,
}

/// The place of a record in its write batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordPlace {
    /// The next record belongs to the same write batch (R22).
    pub continues: bool,
    /// See [`EncodedRecord::adopts`].
    pub adopts: bool,
}

impl RecordPlace {
    fn flags(self, kind: RecordKind) -> u8 {
        let adopts = if kind == RecordKind::Put { ADOPTS } else { ADOPTED };
        (if self.continues { CONTINUES } else { 0 }) | (if self.adopts { adopts } else { 0 })
    }

    /// The place that a record of this kind with this key has by its flags.
    fn of_flags(flags: u8, kind: RecordKind, key: &[u8]) -> Result<Self, Truncated> {
        let adopts = match kind {
            RecordKind::Put if !is_hidden(key) => ADOPTS,
            RecordKind::Delete if is_part(key) => ADOPTED,
            _ => 0,
        };
        if flags & !(CONTINUES | adopts) != 0 {
            return Err(Truncated);
        }
        Ok(Self { continues: flags & CONTINUES != 0, adopts: flags & adopts != 0 })
    }
}

impl EncodedRecord {
    /// The key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        let (start, end) = self.key;
        self.bytes.get(start as usize..end as usize).unwrap_or(&[])
    }

    /// The entry's body, empty for a delete; shares the record's memory.
    #[inline]
    pub fn body(&self) -> Bytes {
        self.bytes.slice(self.body as usize..)
    }

    /// As [`body`](Self::body), borrowed.
    #[inline]
    pub fn body_bytes(&self) -> &[u8] {
        self.bytes.get(self.body as usize..).unwrap_or(&[])
    }
}

/// Bytes of a record.
#[inline]
pub fn record_bytes(key_bytes: usize, body_bytes: usize) -> usize {
    RECORD_FIXED_BYTES + varint_bytes(key_bytes as u64) + key_bytes + body_bytes
}

/// Encodes a record; `body` is empty for a delete. `continues` is true if the next record belongs to the same
/// write batch.
pub fn encode_record(
    kind: RecordKind,
    tablet: TabletId,
    key: &[u8],
    body: &[&[u8]],
    continues: bool,
) -> EncodedRecord {
    encode_placed(kind, tablet, key, body, RecordPlace { continues, adopts: false })
}

/// As [`encode_record`], with this place in its write batch.
pub fn encode_placed(
    kind: RecordKind,
    tablet: TabletId,
    key: &[u8],
    body: &[&[u8]],
    place: RecordPlace,
) -> EncodedRecord {
    let body_bytes: usize = body.iter().map(|part| part.len()).sum();
    write_record(kind, tablet, key, body_bytes, place, |out| {
        body.iter().for_each(|part| out.extend_from_slice(part));
    })
}

/// Encodes a record whose body `write_body` appends. The body has about `body_bytes` bytes and needs no memory besides
/// the record's.
pub fn write_record(
    kind: RecordKind,
    tablet: TabletId,
    key: &[u8],
    body_bytes: usize,
    place: RecordPlace,
    write_body: impl FnOnce(&mut Vec<u8>),
) -> EncodedRecord {
    let key_start = RECORD_FIXED_BYTES + varint_bytes(key.len() as u64);
    let mut out = Vec::with_capacity(key_start + key.len() + body_bytes);
    out.extend_from_slice(&[0; 8]);
    out.push(match kind {
        RecordKind::Put => KIND_PUT,
        RecordKind::Delete => KIND_DELETE,
    });
    out.push(place.flags(kind));
    out.extend_from_slice(&tablet.0.to_le_bytes());
    put_prefixed(&mut out, key);
    let body_start = out.len();
    write_body(&mut out);
    let bytes = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&bytes.to_le_bytes());
    let crc = crc32c(&out[8..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    EncodedRecord {
        bytes: out.into(),
        kind,
        tablet,
        key: (key_start as u32, (key_start + key.len()) as u32),
        body: body_start as u32,
        continues: place.continues,
        adopts: place.adopts,
    }
}

/// Takes the next record from `records`.
///
/// # Errors
/// [`Truncated`] if there is none, if its checksum does not match, or if its kind or a flag is unknown.
pub fn decode_record(records: &mut Reader<'_>) -> Result<EncodedRecord, Truncated> {
    let start = records.rest();
    let bytes = records.u32()? as usize;
    let whole = start.get(..bytes.checked_add(4).ok_or(Truncated)?).ok_or(Truncated)?;
    records.bytes(bytes)?;
    let mut reader = Reader::new(whole);
    reader.u32()?;
    if reader.u32()? != crc32c(reader.rest()) && !injected(Bug::LogNotChecked) {
        return Err(Truncated);
    }
    let kind = match reader.u8()? {
        KIND_PUT => RecordKind::Put,
        KIND_DELETE => RecordKind::Delete,
        _ => return Err(Truncated),
    };
    let flags = reader.u8()?;
    let tablet = TabletId(reader.u16()?);
    let key = reader.prefixed()?;
    let RecordPlace { continues, adopts } = RecordPlace::of_flags(flags, kind, key)?;
    let key_bytes = key.len();
    let body = whole.len() - reader.rest().len();
    Ok(EncodedRecord {
        bytes: Bytes::copy_from_slice(whole),
        kind,
        tablet,
        key: ((body - key_bytes) as u32, body as u32),
        body: body as u32,
        continues,
        adopts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(records: u32, record_bytes: u32, blocks: u32) -> BatchHeader {
        BatchHeader {
            epoch: 3,
            position: 17,
            blocks,
            records,
            first_lsn: Lsn(100),
            durable_lsn: Lsn(99),
            superblock: 5,
            stamp: BatchTimes::Now { store_ns: 1, wall_ns: 2 },
            chain: 0xABCD,
            record_bytes,
        }
    }

    #[test]
    fn batches_round_trip_and_reject_every_flipped_bit_of_their_first_bytes() {
        let record = encode_record(RecordKind::Put, TabletId(2), b"key", &[b"bo", b"dy"], false);
        let mut builder = BatchBuilder::new(2 * record.bytes.len());
        builder.push(&record.bytes);
        builder.push(&record.bytes);
        let header = header(2, 2 * record.bytes.len() as u32, builder.blocks());
        let (mut buf, crc) = builder.finish(&header, 42);
        assert_eq!(check_batch(&buf, 42), Some((header, crc)));
        assert_eq!(check_batch(&buf, 43), None, "another store's seed");
        for bit in 0..(BATCH_HEADER_BYTES + 40) * 8 {
            buf[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check_batch(&buf, 42), None, "bit {bit}");
            buf[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn records_round_trip_and_never_reach_behind_the_end() {
        let record = encode_record(RecordKind::Put, TabletId(2), &[b'k'; 200], &[b"body"], true);
        let mut reader = Reader::new(&record.bytes);
        let back = decode_record(&mut reader).unwrap();
        assert!(reader.is_empty());
        assert_eq!(
            (back.kind, back.tablet, back.key, back.body, back.continues),
            (record.kind, record.tablet, record.key, record.body, true)
        );
        assert_eq!(&back.bytes[back.body as usize..], b"body");
        assert!(!back.adopts);
        for cut in 0..record.bytes.len() {
            assert!(decode_record(&mut Reader::new(&record.bytes[..cut])).is_err());
        }
    }

    /// A put of an object adopts, and the delete of a part is adopted; no other record.
    #[test]
    fn flags_fit_the_kind_and_the_key() {
        for (kind, key, fits) in [
            (RecordKind::Put, &b"b\0key"[..], true),
            (RecordKind::Put, b"\xFCb\0part", false),
            (RecordKind::Put, b"\xFDb\0upload", false),
            (RecordKind::Delete, b"\xFCb\0part", true),
            (RecordKind::Delete, b"\xFDb\0upload", false),
            (RecordKind::Delete, b"b\0key", false),
        ] {
            for continues in [false, true] {
                let place = RecordPlace { continues, adopts: true };
                let record = encode_placed(kind, TabletId(0), key, &[], place);
                let back = decode_record(&mut Reader::new(&record.bytes));
                let back = back.map(|back| RecordPlace { continues: back.continues, adopts: back.adopts });
                assert_eq!(back, if fits { Ok(place) } else { Err(Truncated) }, "{kind:?} {key:?}");
            }
        }
    }
}
