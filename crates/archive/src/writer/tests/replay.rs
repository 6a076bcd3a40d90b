//! A reader of an archive, as simple as can be: the oracle of the tests.

use std::collections::BTreeMap;

use bytes::Bytes;
use shoal_base::Lsn;
use shoal_value::split_home;

use super::model::Written;
use crate::format::*;

/// The contents of a log.
#[derive(Debug)]
pub(super) struct ReplayedLog {
    pub(super) id: u64,
    pub(super) records: BTreeMap<u64, Written>,
    /// Its opening: the number after which it starts, and true after a gap; `None` if it was never opened.
    pub(super) opening: Option<(u64, bool)>,
    pub(super) last: u64,
    pub(super) slots: u64,
    pub(super) is_closed: bool,
    pub(super) batches: u64,
}

/// Reads all logs of the archive in `objects`. A log with an end is read up to there, the open one as far as its slots go.
pub(super) fn replay(
    objects: &BTreeMap<String, Bytes>,
    volume: &VolumeId,
) -> (ArchiveRecord, Vec<ReplayedLog>) {
    let record = ArchiveRecord::decode(&objects["record"]).unwrap();
    assert_eq!(record.volume, *volume);
    let logs = record.logs.iter().map(|log| read_log(objects, &record, log)).collect();
    (record, logs)
}

fn read_log(objects: &BTreeMap<String, Bytes>, record: &ArchiveRecord, log: &RecordLog) -> ReplayedLog {
    let mut found = ReplayedLog {
        id: log.id,
        records: BTreeMap::new(),
        opening: None,
        last: 0,
        slots: 0,
        is_closed: false,
        batches: 0,
    };
    let (mut before, mut pieces) = (None, BTreeMap::new());
    for seq in 0..log.end.unwrap_or(u64::MAX) {
        let slot = LogSlot { log: log.id, seq };
        let Some(bytes) = objects.get(&slot.to_string()) else {
            assert!(log.end.is_none(), "{slot} is missing below the end of its log");
            break;
        };
        if bytes.len() == TOMBSTONE_BYTES {
            Tombstone::decode(bytes, &record.volume, slot).unwrap();
            assert!(log.end.is_none(), "{slot} is a tombstone below the end of its log");
            break;
        }
        let segment = ArchiveSegment::decode(bytes, &record.volume, slot).unwrap();
        if let Some(before) = &before {
            segment.header.check_follows(before).unwrap();
        }
        assert_eq!(segment.header.epoch, log.epoch);
        assert!(!found.is_closed, "{slot} follows a close");
        found.last = segment.header.end.last_lsn.0;
        found.slots += 1;
        match segment.body {
            SegmentBody::Opening(_) => found.opening = Some((found.last, segment.header.flags.after_gap)),
            SegmentBody::Empty => found.is_closed = segment.header.kind == SegmentKind::Close,
            SegmentBody::Batches(batches) => {
                found.batches += batches.len() as u64;
                batches.iter().for_each(|batch| read_batch(batch, &mut pieces, &mut found.records));
            }
        }
        before = Some(segment.header);
    }
    if let Some(end) = log.end {
        let slot = LogSlot { log: log.id, seq: end };
        Tombstone::decode(&objects[&slot.to_string()], &record.volume, slot).unwrap();
        assert!(
            found.last <= log.last_lsn.0 || found.opening.is_none(),
            "{} above {}",
            found.last,
            log.last_lsn
        );
    }
    found
}

fn read_batch(
    batch: &SegmentBatch,
    pieces: &mut BTreeMap<(u64, u32), Bytes>,
    records: &mut BTreeMap<u64, Written>,
) {
    for record in batch.records().unwrap() {
        match record {
            LoggedRecord::Piece(piece) => {
                let twice = pieces.insert((piece.id, piece.index), piece.bytes);
                assert!(twice.is_none(), "piece {} of value {} twice", piece.index, piece.id);
            }
            LoggedRecord::Write { lsn, record, value } => {
                let body = record.body_bytes();
                let value = match value {
                    _ if body.is_empty() => None,
                    LoggedValue::InRecord => Some(Bytes::copy_from_slice(split_home(body).unwrap().1)),
                    LoggedValue::Carried { stored, .. } => Some(stored),
                    LoggedValue::InPieces { id, .. } => {
                        let stored = split_home(body).unwrap().0.stored_bytes;
                        let range = (id, 0)..=(id, u32::MAX);
                        let all: Vec<u8> =
                            pieces.range(range).flat_map(|(_, bytes)| bytes.to_vec()).collect();
                        pieces.retain(|(other, _), _| *other != id);
                        assert_eq!(all.len() as u64, stored, "all pieces of {lsn}");
                        Some(all.into())
                    }
                };
                let written = Written { key: record.key().to_vec(), value, continues: record.continues };
                assert!(records.insert(lsn.0, written).is_none(), "record {lsn} twice");
            }
        }
    }
}

/// Checks the archive against the history of a store: records that the logs of it have are those of the history, and everything up to
/// `archived` is in a log or in a marked gap. Returns the number of records.
pub(super) fn check(
    logs: &[ReplayedLog],
    is_ours: impl Fn(u64) -> bool,
    history: &BTreeMap<u64, Written>,
    archived: Lsn,
) -> usize {
    let (mut covered, mut count) = (BTreeMap::new(), 0);
    let mut last = 0;
    for log in logs {
        let Some((from, after_gap)) = log.opening else { continue };
        if after_gap {
            // Below the gap only the base has the records.
            covered.extend(history.range(..=from).map(|(lsn, _)| (*lsn, ())));
        }
        if !is_ours(log.id) {
            // A copy of the data file may continue the log of the original.
            let same = log.records.iter().filter(|(lsn, written)| history.get(lsn) == Some(written));
            covered.extend(same.map(|(lsn, _)| (*lsn, ())));
            last = log.last;
            continue;
        }
        assert!(from >= last || after_gap, "log {:x} starts below the one before it", log.id);
        if !after_gap {
            assert_eq!(from, last, "log {:x} does not continue, and has no gap", log.id);
        }
        for (lsn, written) in &log.records {
            assert!(*lsn > from, "record {lsn} below the start of its log");
            assert_eq!(history.get(lsn), Some(written), "record {lsn}");
            covered.insert(*lsn, ());
            count += 1;
        }
        let mut between = history.keys().skip_while(|lsn| **lsn <= from).take_while(|lsn| **lsn <= log.last);
        assert_eq!(between.find(|lsn| !log.records.contains_key(lsn)), None, "missing in log {:x}", log.id);
        last = log.last;
    }
    for (lsn, _) in history.range(..=archived.0) {
        assert!(covered.contains_key(lsn), "record {lsn} was archived, and is lost; archived: {archived}");
    }
    count
}
