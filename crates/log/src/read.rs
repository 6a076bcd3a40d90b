//! Reads the log at recovery: from the superblock's tail to the first missing batch.
//!
//! Three ends must be distinguished (R1, R15): a torn tail is the end of the log, a batch of an older pass of the
//! ring is never replayed, and damage in promised records is an error.

use std::ops::Range;

use shoal_base::codec::Reader;
use shoal_base::{BLOCK_BYTES, Lsn};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_device::{Device, IoBuf};

use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, EncodedRecord, check_batch, decode_record, peek_header,
};
use crate::ring::{LogPlace, Ring};

/// Blocks that are read at a time.
const WINDOW_BLOCKS: u64 = 256;

/// A batch found in the log.
pub struct FoundBatch {
    /// The header, checked.
    pub header: BatchHeader,
    /// All records of the batch.
    pub records: Vec<EncodedRecord>,
}

/// The contents of the log from the tail on.
pub struct FoundLog {
    /// The valid batches, in the order of positions.
    pub batches: Vec<FoundBatch>,
    /// The place of the next batch.
    pub head: LogPlace,
    /// The newest promise: all records up to this one were flushed.
    pub promised: Lsn,
    /// The damage, if promised records are missing.
    pub damage: Option<String>,
}

/// The fields of a superblock that describe the log.
pub struct PublishedLog {
    /// The place of the ring.
    pub ring: Ring,
    /// The store's secret, by which its batches are recognised.
    pub seed: u64,
    /// The place of the first batch that recovery needs.
    pub tail: LogPlace,
    /// All records up to this one were flushed when the superblock was written (R15).
    pub durable_lsn: Lsn,
    /// No record gets a number above this one without a new superblock (R5).
    pub ceiling: Lsn,
    /// The newest opening's epoch (R1).
    pub epoch: u64,
    /// Position of the first batch of that epoch.
    pub epoch_position: u64,
    /// The superblock's number.
    pub superblock: u64,
}

/// Reads the log that a superblock names.
///
/// # Errors
/// As the device.
pub async fn read_log(device: &Device, published: &PublishedLog) -> Result<FoundLog> {
    let ring = published.ring;
    let holds_nothing = holds_nothing(published);
    let mut window = Window { device, ring, start: 0, bytes: IoBuf::new(0), holds_nothing };
    let mut found =
        FoundLog { batches: Vec::new(), head: published.tail, promised: published.durable_lsn, damage: None };
    let mut epoch = 0;
    let limit = published.tail.position + u64::from(ring.blocks);
    while let Some((batch, crc)) = next_batch(&mut window, published, &found.head, epoch, limit).await? {
        epoch = batch.header.epoch;
        found.promised = found.promised.max(batch.header.durable_lsn);
        let (position, first_lsn) = (batch.header.end(), batch.header.next_lsn());
        assert!(
            found.head.position < position && position <= limit,
            "a batch that counts is in the ring, after the batch before it (R1)"
        );
        found.head = LogPlace { position, chain: crc, first_lsn };
        if batch.header.superblock > published.superblock && !injected(Bug::LostSuperblockIgnored) {
            found.damage = Some(format!(
                "the log names superblock {}, but the newest valid one is {}",
                batch.header.superblock, published.superblock
            ));
        }
        found.batches.push(batch);
    }
    if found.damage.is_none() && !injected(Bug::DamageIgnored) {
        found.damage = find_damage(&mut window, published, &found, epoch).await?;
    }
    Ok(found)
}

/// Returns true if no record can follow the tail: every number up to the ceiling is before it, and a larger one
/// would have needed a newer superblock first (R5). That is the state after a complete close.
fn holds_nothing(published: &PublishedLog) -> bool {
    published.ceiling < published.tail.first_lsn
}

/// The batch at `head`, or at the ring's start if it would not fit there; `None` at the end of the log.
async fn next_batch(
    window: &mut Window<'_>,
    published: &PublishedLog,
    head: &LogPlace,
    epoch: u64,
    limit: u64,
) -> Result<Option<(FoundBatch, u32)>> {
    let ring = window.ring;
    for position in [head.position, ring.turn(head.position)] {
        if position >= limit {
            continue;
        }
        let Some((header, crc, bytes)) = window.batch(position, published.seed).await? else { continue };
        let epoch_fits = if position >= published.epoch_position {
            header.epoch == published.epoch
        } else {
            header.epoch >= epoch && header.epoch < published.epoch
        };
        let follows = header.position == position
            && (header.chain == head.chain || injected(Bug::GhostsReplayed))
            && (header.first_lsn >= head.first_lsn || injected(Bug::GhostsReplayed))
            && header.end() <= limit;
        if !(epoch_fits || injected(Bug::GhostsReplayed)) || !follows {
            continue;
        }
        let Some(records) = decode_records(&header, bytes) else { continue };
        return Ok(Some((FoundBatch { header, records }, crc)));
    }
    Ok(None)
}

/// The records of a whole batch; `None` if they do not match its header.
pub fn decode_records(header: &BatchHeader, bytes: &[u8]) -> Option<Vec<EncodedRecord>> {
    let end = BATCH_HEADER_BYTES + header.record_bytes as usize;
    let mut reader = Reader::new(bytes.get(BATCH_HEADER_BYTES..end)?);
    let records = (0..header.records)
        .map(|_| decode_record(&mut reader))
        .collect::<std::result::Result<Vec<_>, _>>()
        .ok()?;
    // No writer makes a batch with only a part of a write batch at its end; accepting it would apply that
    // part (R22).
    let is_whole = records.last().is_none_or(|last| !last.continues);
    (reader.is_empty() && is_whole).then_some(records)
}

/// Looks for a promise beyond the end, in the superblock or in a later batch: only damage explains it.
async fn find_damage(
    window: &mut Window<'_>,
    published: &PublishedLog,
    found: &FoundLog,
    epoch: u64,
) -> Result<Option<String>> {
    let end = found.head;
    let last = Lsn(end.first_lsn.0.saturating_sub(1));
    if found.promised > last && found.promised >= end.first_lsn {
        return Ok(Some(format!("record {} was promised, but the log ends at {last}", found.promised)));
    }
    let limit = published.tail.position + u64::from(window.ring.blocks);
    let mut position = end.position;
    while position < limit {
        // A misdirected batch after the end proves the same as one in its place.
        if window.may_begin_batch(position, end.position..limit).await?
            && let Some((header, ..)) = window.batch(position, published.seed).await?
        {
            // An epoch above the superblock's was published before this batch was written: that superblock is lost.
            let is_later = header.epoch >= epoch
                && (header.position < published.epoch_position || header.epoch >= published.epoch);
            let names_newer =
                header.superblock > published.superblock && !injected(Bug::LostSuperblockIgnored);
            if is_later && (header.durable_lsn >= end.first_lsn || names_newer) {
                return Ok(Some(format!(
                    "the log ends at record {last}, but a batch at position {position} promises {}",
                    header.durable_lsn
                )));
            }
        }
        position += 1;
    }
    Ok(None)
}

/// A piece of the ring in memory.
struct Window<'a> {
    device: &'a Device,
    ring: Ring,
    start: u64,
    bytes: IoBuf,
    /// See [`holds_nothing`]: unreadable blocks are not missed.
    holds_nothing: bool,
}

impl Window<'_> {
    /// The bytes of `blocks` blocks at `position`; fewer at the ring's end.
    async fn at(&mut self, position: u64, blocks: u64) -> Result<&[u8]> {
        let blocks = blocks.min(u64::from(self.ring.rest(position)));
        let held = self.start..self.start + self.bytes.blocks() as u64;
        if !(held.contains(&position) && position + blocks <= held.end) {
            let count = blocks.max(WINDOW_BLOCKS).min(u64::from(self.ring.rest(position)));
            let fresh = IoBuf::unfilled(count as usize);
            self.bytes = match self.device.read(self.ring.block(position), fresh).await.ok() {
                Ok(bytes) => bytes,
                Err(error) if count > 1 => {
                    // A bad sector in the window must not hide its neighbours: read only the requested blocks.
                    tracing::warn!("reading the log: {error}");
                    let fresh = IoBuf::unfilled(blocks as usize);
                    self.device.read(self.ring.block(position), fresh).await.ok().map_err(Error::Io)?
                }
                Err(error) => return Err(error.into()),
            };
            self.start = position;
        }
        let from = (position - self.start) as usize * BLOCK_BYTES;
        Ok(&self.bytes[from..from + blocks as usize * BLOCK_BYTES])
    }

    /// Returns true if a batch of one of these positions may start there, in its place or not.
    async fn may_begin_batch(&mut self, position: u64, positions: Range<u64>) -> Result<bool> {
        let holds_nothing = self.holds_nothing;
        let header = match self.at(position, 1).await {
            Ok(bytes) => peek_header(bytes),
            Err(Error::Io(_)) if holds_nothing => None,
            Err(error) => return Err(error),
        };
        Ok(header.is_some_and(|header| positions.contains(&header.position)))
    }

    /// The valid batch at `position`, if there is one.
    async fn batch(&mut self, position: u64, seed: u64) -> Result<Option<(BatchHeader, u32, &[u8])>> {
        let holds_nothing = self.holds_nothing;
        let header = match self.at(position, 1).await {
            Ok(bytes) => peek_header(bytes),
            Err(Error::Io(_)) if holds_nothing => None,
            Err(error) => return Err(error),
        };
        let Some(header) = header else { return Ok(None) };
        let bytes = self.at(position, u64::from(header.blocks)).await?;
        Ok(check_batch(bytes, seed).map(|(header, crc)| (header, crc, bytes)))
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::TabletId;

    use super::*;
    use crate::format::{BatchTimes, RecordKind, encode_record};

    /// No writer makes such a batch; accepting it would take a part of a write batch (R22).
    #[test]
    fn a_log_batch_that_ends_within_a_write_batch_is_not_valid() {
        let is_valid = |continues: [bool; 2]| {
            let mut bytes = vec![0; BATCH_HEADER_BYTES];
            for continues in continues {
                let record = encode_record(RecordKind::Delete, TabletId(0), b"key", &[], continues);
                bytes.extend_from_slice(&record.bytes);
            }
            let header = BatchHeader {
                epoch: 1,
                position: 0,
                blocks: 1,
                records: 2,
                first_lsn: Lsn(1),
                durable_lsn: Lsn(0),
                superblock: 1,
                stamp: BatchTimes::Now { store_ns: 0, wall_ns: 0 },
                chain: 0,
                record_bytes: (bytes.len() - BATCH_HEADER_BYTES) as u32,
            };
            decode_records(&header, &bytes).is_some()
        };
        assert!(is_valid([true, false]) && is_valid([false, false]));
        assert!(!is_valid([true, true]) && !is_valid([false, true]));
    }
}
