//! The places of an input's pieces, and their checksums.
//!
//! A piece is a length (two bytes), a byte with the fields to correct, and that many bytes; each starts at the next block border. So inputs
//! stay short, and a fuzzer need not guess values that only a writer can know.

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::{crc32c, crc32c_seeded};
use shoal_base::codec::Reader;
use shoal_device_sim::Image;
use shoal_image::superblock::Superblock;
use shoal_log::format::{BATCH_HEADER_BYTES, peek_header};

/// A piece in its place.
pub(super) struct Piece {
    how: u8,
    /// Whole blocks.
    bytes: Vec<u8>,
}

/// The pieces of `input` that fit in `blocks` blocks.
pub(super) fn pieces(input: &[u8], mut blocks: usize) -> Vec<Piece> {
    let (mut reader, mut pieces) = (Reader::new(input), Vec::new());
    while let (Ok(length), Ok(how)) = (reader.u16(), reader.u8()) {
        let taken = usize::from(length).min(reader.rest().len());
        let mut bytes = reader.bytes(taken).unwrap_or_default().to_vec();
        let whole = taken.div_ceil(BLOCK_BYTES).max(1);
        if whole > blocks {
            break;
        }
        blocks -= whole;
        bytes.resize(whole * BLOCK_BYTES, 0);
        pieces.push(Piece { how, bytes });
    }
    pieces
}

/// A ring of the log that holds `pieces` as batches.
pub(super) fn log_ring(pieces: Vec<Piece>, superblock: &Superblock) -> Vec<u8> {
    let (mut ring, mut chain, mut next_lsn) = (Vec::new(), 0_u32, superblock.log_tail.first_lsn.0);
    for Piece { how, mut bytes } in pieces {
        let position = (ring.len() / BLOCK_BYTES) as u64;
        let mut set = |bit: u8, at: usize, field: &[u8]| {
            if how & 1 << bit == 0 {
                bytes[at..at + field.len()].copy_from_slice(field);
            }
        };
        // The fields of a batch's header: docs/format/log.md.
        set(0, 8, &superblock.epoch.to_le_bytes());
        set(1, 16, &position.to_le_bytes());
        set(2, 32, &next_lsn.to_le_bytes());
        set(3, 64, &chain.to_le_bytes());
        if let Some(header) = peek_header(&bytes) {
            mend_records(&mut bytes, header.record_bytes as usize, superblock);
            let end = (header.blocks as usize * BLOCK_BYTES).min(bytes.len());
            let crc = crc32c_seeded(superblock.log_seed, &bytes[4..end]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            chain = crc;
            next_lsn = header.first_lsn.0.saturating_add(u64::from(header.records));
        }
        ring.extend_from_slice(&bytes);
    }
    ring
}

/// Corrects tablets and checksums of records.
fn mend_records(batch: &mut [u8], record_bytes: usize, superblock: &Superblock) {
    let end = (BATCH_HEADER_BYTES + record_bytes).min(batch.len());
    let mut at = BATCH_HEADER_BYTES;
    while let Some(record) = batch.get_mut(at..end).filter(|record| record.len() >= 8) {
        let bytes = Reader::new(record).u32().map_or(0, |bytes| bytes as usize).saturating_add(4);
        let tablet = record.get(12..bytes).and_then(|key| tablet_of(key, superblock));
        if let Some(tablet) = tablet {
            record[10..12].copy_from_slice(&tablet.to_le_bytes());
        }
        let Some(summed) = record.get(8..bytes) else { return };
        let crc = crc32c(summed);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
        at += bytes;
    }
}

/// Returns the tablet of a record's key. `record` is the record from byte 12, the start of its key.
fn tablet_of(record: &[u8], superblock: &Superblock) -> Option<u16> {
    let key = Reader::new(record).prefixed().ok()?;
    (0..).zip(&superblock.tablets).find(|(_, tablet)| tablet.owns(key)).map(|(number, _)| number)
}

/// An area of the space image that holds `pieces` as pieces of a snapshot and deltas.
pub(super) fn space_area(pieces: Vec<Piece>) -> Vec<u8> {
    let mut area = Vec::new();
    for Piece { how, mut bytes } in pieces {
        let length = Reader::new(&bytes[12..]).u32().unwrap_or(0) as usize;
        if let Some(summed) = bytes.get(4..length) {
            let crc = crc32c(summed);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
        }
        area.extend_from_slice(&bytes);
        // The next piece is at the place of the piece after a whole one of a snapshot.
        if how & 1 != 0 {
            let whole = area.len().next_multiple_of(shoal_space::image::SNAPSHOT_PIECE_BYTES_MAX);
            area.resize(whole, 0);
        }
    }
    area
}

/// Writes `bytes` from block `first`; bytes beyond the device's end are dropped.
pub(super) fn write(image: &mut Image, first: u64, bytes: &[u8]) {
    for (block, bytes) in (first..image.blocks()).zip(bytes.as_chunks::<BLOCK_BYTES>().0) {
        image.write(block, bytes);
    }
}

/// Makes `superblock` the only one.
pub(super) fn write_superblock(image: &mut Image, superblock: &Superblock) {
    let encoded = superblock.encode();
    for &copy in shoal_image::layout::SUPERBLOCK_COPIES.as_flattened() {
        write(image, copy, &encoded);
    }
}
