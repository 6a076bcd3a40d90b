//! A batch of the store's log as batches of segments: pieces of long values first, then the records.
//!
//! The same batch of the log is encoded to the same bytes each time, whether it goes to the bucket or to the spool, so a reader of one
//! can continue in the other one in the middle of a long value.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use shoal_base::checksum::crc32c;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{Lsn, TabletId};
use shoal_common::hidden_key::is_hidden;
use shoal_log::format::{RecordKind, encode_record};

use crate::format::{BatchWriter, PackedBatch, ValuePiece};
use crate::limits::{CARRIED_BYTES_MAX, PIECE_BYTES, SEGMENT_BYTES_MAX};
use crate::source::{ArchivedStore, SourceBatch, SourceError, SourceRecord};

/// A batch of pieces is complete from this number of bytes on.
const PIECES_BYTES: usize = 1 << 20;
/// Bytes of a batch with records that leave room for the head and the table of its segment.
const RECORDS_BYTES_MAX: u64 = SEGMENT_BYTES_MAX as u64 - CARRIED_BYTES_MAX - (1 << 20);

/// Bytes of the values of a batch that are read from the device at a time; a longer value is read alone.
const READ_BYTES_IN_FLIGHT: u64 = 1 << 20;

/// The place of a record's value in the archive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the record, or it has none.
    InRecord,
    /// An upload, or a part of one: a delete takes its number.
    Hidden,
    Carried,
    InPieces,
}

/// A batch of the store's log that is being encoded.
pub(super) struct Unit {
    batch: SourceBatch,
    places: Vec<Place>,
    /// The record whose value is next.
    at: usize,
    /// Bytes of that value that are encoded.
    done: u64,
    /// Checksums of the units of values in pieces, of all of them in order.
    checksums: Vec<Vec<u32>>,
    is_finished: bool,
}

impl Unit {
    /// The records of `batch` above `after`.
    ///
    /// # Errors
    /// The records do not fit in a segment, or start in a write batch.
    pub(super) fn new(mut batch: SourceBatch, after: Lsn) -> Result<Self, SourceError> {
        let before = batch.records.iter().rev().find(|record| record.lsn <= after);
        if before.is_some_and(|record| record.record.continues) {
            return Err(SourceError::Lost(format!("record {after} is in the middle of a write batch")));
        }
        batch.records.retain(|record| record.lsn > after);
        let mut room = CARRIED_BYTES_MAX;
        let places: Vec<Place> = batch.records.iter().map(|record| place(record, &mut room)).collect();
        let bytes = batch.records.iter().map(|record| {
            // Checksums of the units take the place of the value's extents.
            record.record.bytes.len() as u64 + record.stored_bytes.div_ceil(VALUE_UNIT_BYTES as u64) * 4 + 32
        });
        let bytes: u64 = bytes.sum();
        if bytes > RECORDS_BYTES_MAX || batch.records.is_empty() {
            let first = batch.records.first().map_or(Lsn::NONE, |record| record.lsn);
            return Err(SourceError::Lost(format!(
                "the records of the batch at {first} have {bytes} bytes in the archive, and a segment has room for {RECORDS_BYTES_MAX}"
            )));
        }
        Ok(Self { batch, places, at: 0, done: 0, checksums: Vec::new(), is_finished: false })
    }

    /// The first record: the pieces of all values belong to it.
    pub(super) fn owner(&self) -> Option<Lsn> {
        self.batch.records.first().map(|record| record.lsn)
    }

    /// The next batch of it; `None` at its end.
    ///
    /// # Errors
    /// A value cannot be read.
    pub(super) async fn next(
        &mut self,
        store: &dyn ArchivedStore,
    ) -> Result<Option<PackedBatch>, SourceError> {
        if self.is_finished {
            return Ok(None);
        }
        let mut pieces = self.writer(Lsn::NONE);
        while let Some(record) = self.batch.records.get(self.at) {
            if self.places[self.at] != Place::InPieces {
                self.at += 1;
                continue;
            }
            let left = record.stored_bytes - self.done;
            let bytes = read(store, record, self.done, left.min(PIECE_BYTES as u64) as usize).await?;
            if self.done == 0 {
                self.checksums.push(Vec::new());
            }
            if let Some(checksums) = self.checksums.last_mut() {
                checksums.extend(bytes.chunks(VALUE_UNIT_BYTES).map(crc32c));
            }
            let index = (self.done / PIECE_BYTES as u64) as u32;
            self.done += bytes.len() as u64;
            let is_last = self.done == record.stored_bytes;
            pieces.push_piece(&ValuePiece { id: record.lsn.0, index, bytes });
            if is_last {
                (self.at, self.done) = (self.at + 1, 0);
            }
            if pieces.bytes() >= PIECES_BYTES {
                return Ok(Some(pieces.finish()));
            }
        }
        if pieces.has_records() {
            return Ok(Some(pieces.finish()));
        }
        self.is_finished = true;
        self.records(store).await.map(Some)
    }

    fn writer(&self, first: Lsn) -> BatchWriter {
        BatchWriter::new(first, self.batch.store_ns, self.batch.wall_ns)
    }

    /// The batch of the records.
    async fn records(&self, store: &dyn ArchivedStore) -> Result<PackedBatch, SourceError> {
        let mut checksums = self.checksums.iter();
        // Values from the device ahead of their records, and the record after the last one of them.
        let (mut values, mut in_flight, mut next) = (FuturesOrdered::new(), 0, 0);
        let first = self.batch.records.first().map_or(Lsn::NONE, |record| record.lsn);
        let mut writer = self.writer(first);
        for (record, place) in self.batch.records.iter().zip(&self.places) {
            let logged = &record.record;
            match place {
                Place::InRecord => writer.push(logged),
                Place::Hidden => {
                    let (tablet, continues) = (TabletId(logged.tablet.0), logged.continues);
                    writer.push(&encode_record(RecordKind::Delete, tablet, logged.key(), &[], continues));
                }
                Place::Carried => {
                    while let Some(ahead) = self.batch.records.get(next)
                        && (in_flight == 0 || in_flight + ahead.stored_bytes <= READ_BYTES_IN_FLIGHT)
                    {
                        if self.places[next] == Place::Carried {
                            in_flight += ahead.stored_bytes;
                            values.push_back(read(store, ahead, 0, ahead.stored_bytes as usize));
                        }
                        next += 1;
                    }
                    let stored = values.next().await;
                    let stored = stored.unwrap_or_else(|| unreachable!("a carried value is read"))?;
                    in_flight -= record.stored_bytes;
                    writer.push_carried(logged, &stored);
                }
                Place::InPieces => {
                    let checksums = checksums.next().map_or(&[][..], Vec::as_slice);
                    writer.push_in_pieces(logged, record.lsn.0, checksums);
                }
            }
        }
        Ok(writer.finish())
    }
}

fn place(record: &SourceRecord, room: &mut u64) -> Place {
    if is_hidden(record.record.key()) {
        return Place::Hidden;
    }
    match record.stored_bytes {
        0 => Place::InRecord,
        bytes if bytes <= (PIECE_BYTES as u64).min(*room) => {
            *room -= bytes;
            Place::Carried
        }
        _ => Place::InPieces,
    }
}

/// Reads bytes of a value, all of them.
async fn read(
    store: &dyn ArchivedStore,
    record: &SourceRecord,
    first: u64,
    bytes: usize,
) -> Result<Bytes, SourceError> {
    let found = store.stored(record, first, bytes).await?;
    if found.len() == bytes {
        return Ok(found);
    }
    let (lsn, count) = (record.lsn, found.len());
    Err(SourceError::Lost(format!("{count} of {bytes} bytes of the value of record {lsn} were read")))
}
