//! Hostile contents of each object of an archive (T13): the function that the fuzzer and the replayed corpus call.
//!
//! An input is an object. Its checksums are corrected (a wrong one would hide all code after its check from the fuzzer), and its readers
//! read it. Nothing may panic or allocate memory for a count that is only announced, and a structure that was decoded must be the same when
//! it is encoded and decoded again. Built for tests and with `--cfg fuzzing` only.

#![allow(missing_docs)] // The name is sufficient, and only fuzzers call it.

use bytes::Bytes;
use shoal_base::checksum::crc32c;

use super::batch::BATCH_ROW_BYTES;
use super::{
    ArchiveRecord, ArchiveSegment, BaseEnd, BatchWriter, LogSlot, LoggedRecord, LoggedValue,
    SEGMENT_HEADER_BYTES, SegmentBatch, SegmentBody, SegmentHeader, SlotHead, SpoolReader, Tombstone,
};

/// Reads `input`: its first byte selects the object, the rest are its bytes.
///
/// # Panics
/// If a reader breaks its promise.
pub fn archive(input: &[u8]) {
    let Some((&kind, input)) = input.split_first() else { return };
    match kind % 5 {
        0 => segment(corrected_segment(input.to_vec())),
        1 => {
            let (bytes, slot) = corrected(input, 64);
            if let Ok(tombstone) = Tombstone::decode(&bytes, &volume(&bytes), slot) {
                assert_eq!(tombstone.encode(), bytes);
            }
        }
        2 => {
            let (bytes, _) = corrected(input, input.len());
            if let Ok(record) = ArchiveRecord::decode(&bytes) {
                let again = record.encode().expect("a record that was decoded has a valid length");
                assert_eq!(ArchiveRecord::decode(&again), Ok(record));
            }
        }
        3 => {
            let (bytes, _) = corrected(input, input.len());
            if let Ok(end) = BaseEnd::decode(&bytes, 1, BaseEnd::crc_of(&bytes)) {
                assert_eq!(end.encode(), bytes);
            }
        }
        _ => spool(&corrected_segment(input.to_vec())),
    }
}

/// `input` with the checksum of `covered` bytes, and the slot that it has if it is a segment or a tombstone.
fn corrected(input: &[u8], covered: usize) -> (Vec<u8>, LogSlot) {
    let mut bytes = input.to_vec();
    if let Some(crc) = bytes.get(4..covered).map(crc32c) {
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
    let slot = slot(&bytes);
    (bytes, slot)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn slot(bytes: &[u8]) -> LogSlot {
    LogSlot { log: number(bytes, 32), seq: number(bytes, 40) }
}

fn volume(bytes: &[u8]) -> [u8; 16] {
    bytes.get(16..32).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default()
}

/// A segment with the right length, and with the right checksums of records, batches, table and header.
pub(super) fn corrected_segment(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() < SEGMENT_HEADER_BYTES {
        return bytes;
    }
    let length = bytes.len() as u64;
    bytes[96..104].copy_from_slice(&length.to_le_bytes());
    let batches = number(&bytes, 12) as u32 as usize;
    let rest = bytes.len() - SEGMENT_HEADER_BYTES;
    let table = batches.saturating_mul(BATCH_ROW_BYTES);
    let table = if bytes[10] == 3 { rest } else { table.min(rest) };
    for row in (0..table / BATCH_ROW_BYTES).map(|row| SEGMENT_HEADER_BYTES + row * BATCH_ROW_BYTES) {
        let (at, count) = (number(&bytes, row + 8) as usize, number(&bytes, row + 16) as u32 as usize);
        let Some(batch) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..count)) else { continue };
        correct_records(batch);
        let crc = crc32c(batch);
        bytes[row + 20..row + 24].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c(&bytes[SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + table]);
    bytes[92..96].copy_from_slice(&crc.to_le_bytes());
    corrected(&bytes, SEGMENT_HEADER_BYTES).0
}

fn correct_records(batch: &mut [u8]) {
    let bytes = number(batch, 16) as u32 as usize;
    let Some(mut records) = batch.get_mut(32..).and_then(|rest| rest.get_mut(..bytes)) else { return };
    while let Some(length) = records.first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((record, rest)) = records[4..].split_at_mut_checked(length) else { return };
        if let Some(crc) = record.get(4..).map(crc32c) {
            record[..4].copy_from_slice(&crc.to_le_bytes());
        }
        records = rest;
    }
}

fn segment(bytes: Vec<u8>) {
    let (slot, volume) = (slot(&bytes), volume(&bytes));
    let head = SlotHead::decode(&bytes, &volume, slot);
    let bytes = Bytes::from(bytes);
    let Ok(found) = ArchiveSegment::decode(&bytes, &volume, slot) else { return };
    assert_eq!(head, Ok(SlotHead::Segment(found.header)));
    if let SegmentBody::Batches(batches) = &found.body {
        batches.iter().for_each(again);
    }
}

/// Writes the records of a batch again: the same values in the same places.
fn again(batch: &SegmentBatch) {
    let Ok(records) = batch.records() else { return };
    let mut writer = BatchWriter::new(batch.first_lsn, batch.store_ns, batch.wall_ns);
    for item in &records {
        match item {
            LoggedRecord::Piece(piece) => writer.push_piece(piece),
            LoggedRecord::Write { record, value: LoggedValue::InRecord, .. } => writer.push(record),
            LoggedRecord::Write { record, value: LoggedValue::Carried { stored, .. }, .. } => {
                writer.push_carried(record, stored);
            }
            LoggedRecord::Write { record, value: LoggedValue::InPieces { id, checksums }, .. } => {
                writer.push_in_pieces(record, *id, checksums);
            }
        }
    }
    let count = records.iter().filter(|item| matches!(item, LoggedRecord::Write { .. })).count();
    assert_eq!(count as u64, u64::from(batch.count));
}

fn spool(bytes: &[u8]) {
    let mut reader = SpoolReader::new(volume(bytes), slot(bytes));
    let mut read = |at: u64, out: &mut [u8]| {
        let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    };
    let mut found = 0;
    while let Ok(Some((whole, segment))) = reader.next_segment(&mut read) {
        assert_eq!(whole.len() as u64, segment.header.bytes);
        found += whole.len() as u64;
        assert!(SegmentHeader::decode(&whole, &segment.header.volume, segment.header.slot).is_ok());
    }
    assert!(found <= reader.at());
}
