//! Round trips of any contents, against a list of writes; and each rule of a log's order.

use bytes::Bytes;
use proptest::prelude::*;
use shoal_base::Lsn;
use shoal_base::checksum::crc32c;
use shoal_testkit::bytes::patterned;

use super::{SLOT, VOLUME, delete, put, record, start};
use crate::format::*;
use crate::limits::*;

/// A write as the model has it: key, value (`None`: a delete), home, and whether the next write belongs to the same write batch.
type ModelWrite = (Vec<u8>, Option<Vec<u8>>, u8, bool);

fn writes() -> impl Strategy<Value = Vec<Vec<ModelWrite>>> {
    let value = prop_oneof![Just(0), 1..200_usize, 60_000..200_000_usize];
    let write =
        (proptest::collection::vec(any::<u8>(), 1..20), proptest::option::of(value), 0..3_u8, any::<bool>());
    let write = write.prop_map(|(key, bytes, home, continues)| {
        let home = if bytes.is_none_or(|bytes| bytes == 0) { 0 } else { home };
        // The kit's put with a home elsewhere has at most one unit.
        let bytes = if home == 0 { bytes } else { bytes.map(|bytes| bytes.min(64 << 10)) };
        (key, bytes.map(|bytes| patterned(bytes, home.into())), home, continues)
    });
    proptest::collection::vec(proptest::collection::vec(write, 1..6), 1..5)
}

/// A batch of the model's writes; pieces come before.
fn written(writes: &[ModelWrite], first_lsn: Lsn) -> BatchWriter {
    let mut batch = BatchWriter::new(first_lsn, 5, 6);
    for (at, (key, value, home, continues)) in writes.iter().enumerate() {
        let continues = *continues && at + 1 < writes.len();
        let Some(value) = value else {
            batch.push(&delete(key, continues));
            continue;
        };
        let record = put(key, value, *home == 0, continues);
        match home {
            0 => batch.push(&record),
            1 => batch.push_carried(&record, value),
            _ => {
                batch.push_piece(&ValuePiece { id: at as u64, index: 0, bytes: value.clone().into() });
                batch.push_in_pieces(&record, at as u64, &[crc32c(value)]);
            }
        }
    }
    batch
}

/// The model's writes of a batch, as a reader finds them.
fn found(batch: &SegmentBatch) -> Vec<ModelWrite> {
    let (mut all, mut pieces, mut next) = (Vec::new(), std::collections::BTreeMap::new(), batch.first_lsn);
    for item in batch.records().unwrap() {
        let (lsn, record, value) = match item {
            LoggedRecord::Piece(piece) => {
                assert_eq!(pieces.insert(piece.id, piece.bytes), None);
                continue;
            }
            LoggedRecord::Write { lsn, record, value } => (lsn, record, value),
        };
        assert_eq!(lsn, next);
        next = next.next();
        let is_put = record.kind == shoal_log::format::RecordKind::Put;
        let (home, value) = match value {
            LoggedValue::InRecord => {
                (0, is_put.then(|| record.body()[record.body().len() - inline(&record)..].to_vec()))
            }
            LoggedValue::Carried { stored, .. } => (1, Some(stored.to_vec())),
            LoggedValue::InPieces { id, checksums } => {
                let piece = pieces.remove(&id).unwrap();
                assert_eq!(checksums, [crc32c(&piece)]);
                (2, Some(piece.to_vec()))
            }
        };
        all.push((record.key().to_vec(), value, home, record.continues));
    }
    assert!(pieces.is_empty());
    all
}

fn inline(record: &shoal_log::format::EncodedRecord) -> usize {
    shoal_value::value_bytes_of(record.body_bytes()) as usize
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Segments of any writes, in a spool one after the other, are read as they were written.
    #[test]
    fn segments_of_any_writes_round_trip(model in writes(), torn in 0..100_usize) {
        let (mut file, mut lsn, mut start) = (Vec::new(), Lsn(1056), start(SLOT));
        let (mut expected, mut at) = (Vec::new(), 0);
        for writes in &model {
            let mut writer = SegmentWriter::new(start);
            writer.push(written(writes, lsn));
            prop_assert!(writer.bytes() > SEGMENT_HEADER_BYTES);
            let bytes = writer.finish();
            let header = SegmentHeader::decode(&bytes, &VOLUME, start.slot).unwrap();
            lsn = Lsn(lsn.0 + writes.len() as u64);
            prop_assert_eq!(header.end, LogEnd { last_lsn: Lsn(lsn.0 - 1), store_ns: 5, wall_ns: 6 });
            start.slot.seq += 1;
            (start.chain, start.end) = (header.crc, header.end);
            at = file.len();
            file.extend_from_slice(&bytes);
            file.resize(spool_bytes(file.len() as u64) as usize, 0);
            let mut writes = writes.clone();
            writes.last_mut().unwrap().3 = false;
            expected.push((bytes, writes));
        }
        let (segments, end) = spooled(&file);
        prop_assert_eq!(end, file.len() as u64);
        prop_assert_eq!(segments.len(), expected.len());
        for ((bytes, segment), (written, writes)) in segments.iter().zip(&expected) {
            prop_assert_eq!(&bytes[..], &written[..]);
            let SegmentBody::Batches(batches) = &segment.body else { panic!("{segment:?}") };
            prop_assert_eq!(batches.len(), 1);
            prop_assert_eq!(&found(&batches[0]), writes);
        }
        // The last one is torn.
        let last = &expected[expected.len() - 1].0;
        file.truncate(at + last.len() * torn / 100);
        let (segments, end) = spooled(&file);
        prop_assert_eq!((segments.len(), end), (expected.len() - 1, at as u64));
    }

    /// A record of any lists is the same after a round trip, and any change of a byte is found.
    #[test]
    fn records_round_trip(
        ids in proptest::collection::btree_set(1..u64::MAX, 1..20), owned: bool, at: proptest::sample::Index,
    ) {
        let mut value = record();
        let ids: Vec<u64> = ids.into_iter().collect();
        value.logs = (1..).zip(&ids).map(|(epoch, id)| {
            let end = (id % 3 == 0).then_some(id % 1000 + 3);
            RecordLog { id: *id, epoch, first: id % 3, end, last_lsn: Lsn(epoch), claimed_ns: *id }
        }).collect();
        value.owner = owned.then_some([9; 16]);
        value.epoch = ids.len() as u64;
        let bytes = value.encode().unwrap();
        prop_assert_eq!(ArchiveRecord::decode(&bytes), Ok(value));
        let mut other = bytes.clone();
        *at.get_mut(&mut other) ^= 1 << (at.index(8));
        prop_assert!(ArchiveRecord::decode(&other).is_err());
        prop_assert!(ArchiveRecord::decode(&bytes[..at.index(bytes.len())]).is_err());
    }
}

/// The segments of a spool, and the place of its end.
fn spooled(file: &[u8]) -> (Vec<(Bytes, ArchiveSegment)>, u64) {
    let mut read = |at: u64, out: &mut [u8]| {
        let rest = file.get(at as usize..).unwrap_or_default();
        let bytes = rest.len().min(out.len());
        out[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    };
    let (mut reader, mut segments) = (SpoolReader::new(VOLUME, SLOT), Vec::new());
    while let Some(segment) = reader.next_segment(&mut read).unwrap() {
        segments.push(segment);
    }
    (segments, reader.at())
}

/// A segment of an older life of the file is no part of the spool, even if it has the right slot.
#[test]
fn a_spool_ends_before_a_segment_that_does_not_follow() {
    let mut file = start(SLOT).heartbeat(1);
    let before = SegmentHeader::decode(&file, &VOLUME, SLOT).unwrap();
    file.resize(SPOOL_ALIGNMENT as usize, 0);
    let mut next = start(LogSlot { seq: SLOT.seq + 1, ..SLOT });
    next.end = before.end;
    for (chain, count) in [(before.crc, 2), (before.crc ^ 1, 1)] {
        let whole = [&file[..], &SegmentStart { chain, ..next }.heartbeat(2)].concat();
        assert_eq!(spooled(&whole).0.len(), count);
    }
}

/// A slot follows the one before it by log, number, epoch, chain and numbers of records.
#[test]
fn only_the_next_slot_follows() {
    let mut writer = SegmentWriter::new(start(SLOT));
    writer.push(super::batch(Lsn(1056)));
    let before = SegmentHeader::decode(&writer.finish(), &VOLUME, SLOT).unwrap();
    let mut next = start(LogSlot { seq: SLOT.seq + 1, ..SLOT });
    (next.chain, next.end) = (before.crc, before.end);
    let follows = |start: SegmentStart| {
        let mut writer = SegmentWriter::new(start);
        writer.push(super::batch(start.end.last_lsn.next()));
        let data = SegmentHeader::decode(&writer.finish(), &VOLUME, start.slot).unwrap();
        let beat = SegmentHeader::decode(&start.heartbeat(3), &VOLUME, start.slot).unwrap();
        (data.check_follows(&before).is_ok(), beat.check_follows(&before).is_ok())
    };
    let end = |last_lsn| LogEnd { last_lsn: Lsn(last_lsn), ..next.end };
    assert_eq!(follows(next), (true, true));
    // Numbers may be missing before data: refused records had them.
    assert_eq!(follows(SegmentStart { end: end(1070), ..next }), (true, false));
    assert_eq!(follows(SegmentStart { end: end(1058), ..next }), (false, false));
    assert_eq!(follows(SegmentStart { chain: 1, ..next }), (false, false));
    assert_eq!(follows(SegmentStart { epoch: 1, ..next }), (false, false));
    for slot in [LogSlot { seq: SLOT.seq + 2, ..SLOT }, LogSlot { log: 1, seq: SLOT.seq + 1 }, SLOT] {
        assert_eq!(follows(SegmentStart { slot, ..next }), (false, false), "{slot}");
    }
}

/// A list above its limit is refused before it is written.
#[test]
fn a_record_that_is_too_long_is_not_written() {
    let too_long = |change: &dyn Fn(&mut ArchiveRecord)| {
        let mut value = record();
        change(&mut value);
        value.encode().unwrap_err().to_string()
    };
    let logs = too_long(&|it| it.logs = vec![it.logs[0]; LOGS_MAX + 1]);
    assert_eq!(logs, "the record of the archive would have 513 logs, and 512 are allowed");
    let bases = too_long(&|it| it.bases = vec![it.bases[0]; BASES_MAX + 1]);
    assert!(bases.contains("65 bases, and 64"), "{bases}");
    let pins = too_long(&|it| it.pins = vec![it.pins[0].clone(); PINS_MAX + 1]);
    assert!(pins.contains("65 pins, and 64"), "{pins}");
    let name = too_long(&|it| it.owner_name.node = "x".repeat(NAME_BYTES_MAX + 1));
    assert!(name.contains("256 bytes in a name"), "{name}");
    // The longest one that the counts allow has its place.
    let mut longest = record();
    let log = longest.logs[0];
    longest.logs = (1..=LOGS_MAX as u64).map(|id| RecordLog { id, epoch: id, ..log }).collect();
    let base = longest.bases[0];
    longest.bases = (1..=BASES_MAX as u64).map(|id| RecordBase { id, ..base }).collect();
    let name = "x".repeat(NAME_BYTES_MAX);
    longest.pins = vec![RecordPin { base: 1, until_ns: None, name: name.clone() }; PINS_MAX];
    longest.owner_name = OwnerName { node: name.clone(), resp: name.clone(), grpc: name };
    let bytes = longest.encode().unwrap();
    assert!(bytes.len() <= RECORD_BYTES_MAX);
    assert_eq!(ArchiveRecord::decode(&bytes), Ok(longest));
}
