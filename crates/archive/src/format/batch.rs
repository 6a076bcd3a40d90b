//! A batch of a segment: the records of one batch of the store's log, and the values that the log only names.
//!
//! Records are those of the log (`docs/format/log.md`), except that a value elsewhere is carried after the records or comes in pieces. A batch
//! is whole: every write batch (R22) that starts in it ends in it. Two kinds of records have no number: pieces of values, and kinds from 128
//! on, which a reader skips if it does not know them.

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_base::checksum::crc32c;
use shoal_base::codec::{Reader, put_varint};
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_log::format::{COUNTER_MAX, EncodedRecord, RecordKind, RecordPlace, decode_record, encode_placed};
use shoal_value::{BodyHead, Entry, split_home};

use super::piece::{KIND_PIECE, PIECE_FIXED_BYTES, ValuePiece};
use super::{Fields, FormatError, LogSlot};
use crate::limits::PIECE_BYTES;

/// Bytes of a batch before its records.
pub(super) const BATCH_HEAD_BYTES: usize = 32;
/// Bytes of a batch in the table.
pub(super) const BATCH_ROW_BYTES: usize = 32;
/// Records of these kinds are skipped by a reader that does not know them.
const KIND_SKIPPED_MIN: u8 = 128;
/// Bits of an entry's flags: its home, and those that this version does not know.
const HOME_MASK: u8 = 0b11;
const FLAGS_UNKNOWN: u8 = 0b1110_0000;
const HOME_INLINE: u8 = 0;
const HOME_CARRIED: u8 = 1;
const HOME_PIECES: u8 = 2;

/// The place of a record's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoggedValue {
    /// In the record, which is one of the log; or it has none.
    InRecord,
    /// Carried in the batch.
    Carried {
        /// Metadata in front, if any, then the value: verified.
        stored: Bytes,
        /// The checksum of each unit.
        checksums: Vec<u32>,
    },
    /// In pieces, in earlier batches or in this one.
    InPieces {
        /// The id of the pieces.
        id: u64,
        /// The checksum of each unit.
        checksums: Vec<u32>,
    },
}

/// A record of a batch.
#[derive(Clone, Debug)]
pub enum LoggedRecord {
    /// A put or a delete.
    Write {
        /// Its number.
        lsn: Lsn,
        /// The record. Unless the value is in the record, the home in its body is one of the archive's.
        record: EncodedRecord,
        /// The value.
        value: LoggedValue,
    },
    /// A piece of a value.
    Piece(ValuePiece),
}

/// Builds a batch.
pub struct BatchWriter {
    store_ns: u64,
    wall_ns: u64,
    first_lsn: Lsn,
    count: u32,
    continues: bool,
    records: Vec<u8>,
    values: Vec<u8>,
}

/// A batch in its final form, which is the same in each segment that has it.
#[derive(Clone, Debug)]
pub struct PackedBatch {
    /// The number of its first record; 0 if it has pieces only.
    pub first_lsn: Lsn,
    /// Records with a number.
    pub count: u32,
    pub(super) store_ns: u64,
    /// The wall clock then, nanoseconds since the Unix epoch.
    pub wall_ns: u64,
    pub(super) bytes: Bytes,
}

impl PackedBatch {
    /// Bytes that it adds to a segment.
    #[must_use]
    pub fn segment_bytes(&self) -> usize {
        BATCH_ROW_BYTES + self.bytes.len()
    }

    /// The number of its last record; 0 if it has pieces only.
    #[must_use]
    pub fn last_lsn(&self) -> Lsn {
        Lsn((self.first_lsn.0 + u64::from(self.count)).saturating_sub(1))
    }
}

impl BatchWriter {
    /// A batch of the log with these times, whose first record has the number `first_lsn`.
    #[must_use]
    pub fn new(first_lsn: Lsn, store_ns: u64, wall_ns: u64) -> Self {
        let (records, values) = (Vec::new(), Vec::new());
        Self { store_ns, wall_ns, first_lsn, count: 0, continues: false, records, values }
    }

    /// Bytes of the batch so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        BATCH_HEAD_BYTES + self.records.len() + self.values.len()
    }

    /// True if it has a record or a piece.
    #[must_use]
    pub fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    /// Appends a delete, or a put whose value is in the record.
    ///
    /// # Panics
    /// If the value of the record is elsewhere.
    pub fn push(&mut self, record: &EncodedRecord) {
        let home = record.body_bytes().first().map_or(HOME_INLINE, |flags| flags & HOME_MASK);
        assert_eq!(home, HOME_INLINE, "the value is in the record");
        if record.adopts {
            let place = RecordPlace { continues: record.continues, adopts: false };
            let record =
                encode_placed(record.kind, record.tablet, record.key(), &[record.body_bytes()], place);
            self.append(&record);
        } else {
            self.append(record);
        }
    }

    /// Appends a put and carries its stored bytes: metadata in front, if any, then the value.
    ///
    /// # Panics
    /// If the record is no put of this number of stored bytes.
    pub fn push_carried(&mut self, record: &EncodedRecord, stored: &[u8]) {
        let head = head_of(record);
        assert!(!stored.is_empty() && stored.len() as u64 == head.stored_bytes, "the value of the record");
        let checksums: Vec<u32> = stored.chunks(VALUE_UNIT_BYTES).map(crc32c).collect();
        self.push_elsewhere(record, HOME_CARRIED, &[], &checksums);
        self.values.extend_from_slice(stored);
    }

    /// Appends a put whose stored bytes are in the pieces `id`, all of which were appended before. `checksums` are those of its units.
    ///
    /// # Panics
    /// If the record is no put, or its stored bytes have another number of units.
    pub fn push_in_pieces(&mut self, record: &EncodedRecord, id: u64, checksums: &[u32]) {
        let stored_bytes = head_of(record).stored_bytes;
        assert!(stored_bytes > 0, "a value in pieces has a byte");
        let units = stored_bytes.div_ceil(VALUE_UNIT_BYTES as u64);
        assert_eq!(checksums.len() as u64, units, "each unit has a checksum");
        self.push_elsewhere(record, HOME_PIECES, &[id, pieces_of(stored_bytes)], checksums);
    }

    /// Appends a piece of a value.
    ///
    /// # Panics
    /// If it has no byte or more than [`PIECE_BYTES`].
    pub fn push_piece(&mut self, piece: &ValuePiece) {
        piece.encode(&mut self.records);
    }

    fn push_elsewhere(&mut self, record: &EncodedRecord, home: u8, place: &[u64], checksums: &[u32]) {
        let mut body = head_of(record).bytes.to_vec();
        body[0] = body[0] & !HOME_MASK | home;
        place.iter().for_each(|number| put_varint(&mut body, *number));
        put_varint(&mut body, checksums.len() as u64);
        body.extend(checksums.iter().flat_map(|checksum| checksum.to_le_bytes()));
        let place = RecordPlace { continues: record.continues, adopts: false };
        self.append(&encode_placed(RecordKind::Put, record.tablet, record.key(), &[&body], place));
    }

    fn append(&mut self, record: &EncodedRecord) {
        self.records.extend_from_slice(&record.bytes);
        self.count += 1;
        self.continues = record.continues;
    }

    /// The whole batch.
    ///
    /// # Panics
    /// If it has no record, or if its last write batch is not whole.
    #[must_use]
    pub fn finish(self) -> PackedBatch {
        assert!(!self.continues, "a batch has whole write batches (R22)");
        assert!(!self.records.is_empty(), "a batch without records is not archived");
        assert!(self.count == 0 || self.first_lsn > Lsn::NONE, "a record has a number");
        let mut bytes = Vec::with_capacity(self.bytes());
        bytes.extend_from_slice(&self.store_ns.to_le_bytes());
        bytes.extend_from_slice(&self.wall_ns.to_le_bytes());
        bytes.extend_from_slice(&(self.records.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(self.values.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&self.records);
        bytes.extend_from_slice(&self.values);
        let first_lsn = if self.count == 0 { Lsn::NONE } else { self.first_lsn };
        let (store_ns, wall_ns) = (self.store_ns, self.wall_ns);
        PackedBatch { first_lsn, count: self.count, store_ns, wall_ns, bytes: bytes.into() }
    }
}

/// The fields of a put before its home.
fn head_of(record: &EncodedRecord) -> BodyHead<'_> {
    assert_eq!(record.kind, RecordKind::Put, "only a put has a value");
    split_home(record.body_bytes()).expect("a record of this program has a body").0
}

fn pieces_of(stored_bytes: u64) -> u64 {
    stored_bytes.div_ceil(PIECE_BYTES as u64)
}

/// A batch of a segment whose checksum is right.
#[derive(Clone, Debug)]
pub struct SegmentBatch {
    /// The store time of the batch, nanoseconds (R18).
    pub store_ns: u64,
    /// The wall clock then, nanoseconds since the Unix epoch.
    pub wall_ns: u64,
    /// The number of its first record; 0 if it has pieces only.
    pub first_lsn: Lsn,
    /// Records with a number.
    pub count: u32,
    slot: LogSlot,
    /// Offset of the records in the segment.
    offset: u64,
    whole: Bytes,
    records: Bytes,
    values: Bytes,
}

/// The row of a batch in the table.
#[derive(Clone, Copy)]
pub(super) struct BatchRow {
    pub(super) count: u32,
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) crc: u32,
    pub(super) first_lsn: Lsn,
}

impl BatchRow {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        // The volume.
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.crc.to_le_bytes());
        out.extend_from_slice(&self.first_lsn.0.to_le_bytes());
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Self, FormatError> {
        fields.zeros(4)?;
        let count = fields.u32()?;
        let offset = fields.u64()?;
        let (bytes, crc) = (fields.u32()?, fields.u32()?);
        let first_lsn = Lsn(fields.u64()?);
        let is_numbered = first_lsn > Lsn::NONE && first_lsn.0 <= COUNTER_MAX;
        if is_numbered != (count > 0) {
            return Err(fields.damaged("the number of the first record is impossible"));
        }
        Ok(Self { count, offset, bytes, crc, first_lsn })
    }

    /// The batch of this row in `bytes`, a whole segment.
    pub(super) fn batch(&self, slot: LogSlot, bytes: &Bytes) -> Result<SegmentBatch, FormatError> {
        let start = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let whole = bytes.get(start..).and_then(|rest| rest.get(..self.bytes as usize));
        let mut fields = Fields::new(&slot, self.offset, whole.unwrap_or_default());
        if crc32c(whole.unwrap_or_default()) != self.crc || whole.is_none() {
            return Err(fields.damaged("the checksum of the batch is wrong"));
        }
        let (store_ns, wall_ns) = (fields.u64()?, fields.u64()?);
        let record_bytes = fields.u32()? as usize;
        fields.zeros(4)?;
        let value_bytes = fields.u64()?;
        let offset = fields.offset();
        let records = bytes.slice_ref(fields.bytes(record_bytes)?);
        let values = bytes.slice_ref(fields.rest());
        if values.len() as u64 != value_bytes || records.is_empty() {
            return Err(fields.damaged("the lengths of records and values are not that of the batch"));
        }
        let (first_lsn, count) = (self.first_lsn, self.count);
        let whole = bytes.slice_ref(whole.unwrap_or_default());
        Ok(SegmentBatch { store_ns, wall_ns, first_lsn, count, slot, offset, whole, records, values })
    }
}

impl SegmentBatch {
    /// The batch as it is, for another segment.
    #[must_use]
    pub fn packed(&self) -> PackedBatch {
        let (bytes, count, first_lsn) = (self.whole.clone(), self.count, self.first_lsn);
        PackedBatch { first_lsn, count, store_ns: self.store_ns, wall_ns: self.wall_ns, bytes }
    }

    /// Its records, in order, all of them or an error: a batch is applied as a whole or not at all.
    ///
    /// # Errors
    /// A record is damaged, or of a kind that this version does not know.
    pub fn records(&self) -> Result<Vec<LoggedRecord>, FormatError> {
        let mut found = Vec::new();
        let (mut at, mut values) = (0, self.values.clone());
        let (mut lsn, mut continues) = (self.first_lsn, false);
        while at < self.records.len() {
            let fields = self.fields(at, &[]);
            let rest = self.records.slice(at..);
            let bytes = Reader::new(&rest).u32().map_or(usize::MAX, |bytes| bytes as usize);
            let end = bytes.checked_add(4).filter(|end| *end <= rest.len() && *end > 8);
            let whole = rest.slice(..end.ok_or_else(|| fields.damaged("a record is cut off"))?);
            match whole[8] {
                KIND_SKIPPED_MIN.. => checked(&whole, &fields)?,
                KIND_PIECE => found.push(LoggedRecord::Piece(self.piece(at, &whole)?)),
                _ => {
                    let (record, value) = self.write(at, &whole, &mut values)?;
                    continues = record.continues;
                    found.push(LoggedRecord::Write { lsn, record, value });
                    lsn = lsn.next();
                }
            }
            at += whole.len();
        }
        let fields = self.fields(0, &[]);
        if lsn.0 - self.first_lsn.0 != u64::from(self.count) {
            return Err(fields.damaged("the table counts other records"));
        }
        if continues {
            return Err(fields.damaged("the last write batch is not whole"));
        }
        if !values.is_empty() {
            return Err(fields.damaged("a carried value belongs to no record"));
        }
        Ok(found)
    }

    /// The fields of `bytes`, which are at byte `at` of the records.
    fn fields<'a>(&'a self, at: usize, bytes: &'a [u8]) -> Fields<'a> {
        Fields::new(&self.slot, self.offset + at as u64, bytes)
    }

    fn piece(&self, at: usize, whole: &Bytes) -> Result<ValuePiece, FormatError> {
        checked(whole, &self.fields(at, whole))?;
        if whole.len() <= PIECE_FIXED_BYTES {
            return Err(self.fields(at, whole).damaged("a piece of a value has no bytes"));
        }
        let rest = whole.slice(9..);
        ValuePiece::decode(&mut self.fields(at + 9, &rest), &rest)
    }

    fn write(
        &self,
        at: usize,
        whole: &Bytes,
        values: &mut Bytes,
    ) -> Result<(EncodedRecord, LoggedValue), FormatError> {
        let fields = self.fields(at, whole);
        if !matches!(whole[8], 1 | 2) {
            return Err(fields.newer("a kind of record"));
        }
        let record = decode_record(&mut Reader::new(whole));
        let record = record.map_err(|_| fields.damaged("a record is damaged"))?;
        if record.adopts {
            return Err(fields.newer("a flag of a record"));
        }
        let value = match record.kind {
            RecordKind::Delete if record.body_bytes().is_empty() => LoggedValue::InRecord,
            RecordKind::Delete => return Err(fields.damaged("a delete has a body")),
            RecordKind::Put => self.value(at + record.body as usize, record.body_bytes(), values)?,
        };
        Ok((record, value))
    }

    /// The value of a put with this body; a carried one is taken off `values`.
    fn value(&self, at: usize, body: &[u8], values: &mut Bytes) -> Result<LoggedValue, FormatError> {
        let fields = self.fields(at, &[]);
        let damaged = |_| fields.damaged("the entry of a put is damaged");
        let (head, home) = split_home(body).map_err(damaged)?;
        let flags = body.first().copied().unwrap_or_default();
        if flags & FLAGS_UNKNOWN != 0 {
            return Err(fields.newer("a flag of an entry"));
        }
        let mut home = self.fields(at + head.bytes.len(), home);
        let stored_bytes = head.stored_bytes;
        match flags & HOME_MASK {
            HOME_INLINE => Entry::decode(body).map(|_| LoggedValue::InRecord).map_err(damaged),
            HOME_CARRIED => {
                let checksums = checksums(&mut home, stored_bytes)?;
                let bytes = usize::try_from(stored_bytes).unwrap_or(usize::MAX);
                if bytes > values.len() {
                    return Err(fields.damaged("the carried value is cut off"));
                }
                let stored = values.split_to(bytes);
                if !stored.chunks(VALUE_UNIT_BYTES).map(crc32c).eq(checksums.iter().copied()) {
                    return Err(fields.damaged("the carried value does not match its checksums"));
                }
                Ok(LoggedValue::Carried { stored, checksums })
            }
            HOME_PIECES => {
                let (id, pieces) = (home.varint()?, home.varint()?);
                if pieces != pieces_of(stored_bytes) {
                    return Err(fields.damaged("the value has another number of pieces"));
                }
                Ok(LoggedValue::InPieces { id, checksums: checksums(&mut home, stored_bytes)? })
            }
            _ => Err(fields.newer("a place of a value")),
        }
    }
}

/// The checksums at the end of a body whose value is elsewhere.
fn checksums(fields: &mut Fields<'_>, stored_bytes: u64) -> Result<Vec<u32>, FormatError> {
    let units = fields.varint()?;
    let is_right = units == stored_bytes.div_ceil(VALUE_UNIT_BYTES as u64) && units > 0;
    if !is_right || fields.rest().len() as u64 != units * 4 {
        return Err(fields.damaged("the checksums are not those of the value's units"));
    }
    (0..units).map(|_| fields.u32()).collect()
}

/// Checks the checksum of a whole record.
fn checked(whole: &[u8], fields: &Fields<'_>) -> Result<(), FormatError> {
    let crc = whole.get(4..8).map(|crc| crc == crc32c(&whole[8..]).to_le_bytes());
    if crc == Some(true) { Ok(()) } else { Err(fields.damaged("the checksum of a record is wrong")) }
}
