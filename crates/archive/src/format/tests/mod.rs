//! The formats against the page, and against a simple model.

mod document;
mod hostile;
mod round_trip;

use bytes::Bytes;
use shoal_base::{Lsn, TabletId};
use shoal_log::format::{EncodedRecord, RecordKind, encode_record};
use shoal_value::{Entry, Home, Meta};

use super::{
    ArchiveRecord, BatchWriter, LogEnd, LogSlot, Opening, OwnerName, RecordBase, RecordFlags, RecordLog,
    RecordPin, SegmentFlags, SegmentStart, SegmentWriter, ValuePiece, VolumeId,
};

pub(super) const VOLUME: VolumeId = [7; 16];
pub(super) const SLOT: LogSlot = LogSlot { log: 1032, seq: 1040 };

pub(super) fn start(slot: LogSlot) -> SegmentStart {
    SegmentStart {
        volume: VOLUME,
        slot,
        epoch: 1048,
        chain: if slot.seq == 0 { 0 } else { 1088 },
        nonce: 1104,
        flags: SegmentFlags { after_gap: slot.seq == 0, closing: true },
        end: LogEnd { last_lsn: Lsn(1055), store_ns: 1072, wall_ns: 1080 },
    }
}

/// A put with a value of these bytes: inline, or with a home in extents that the archive replaces.
pub(crate) fn put(key: &[u8], value: &[u8], is_inline: bool, continues: bool) -> EncodedRecord {
    let home = match is_inline {
        true => Home::Inline,
        false => Home::Packed { run: 1, at: 0, checksum: 2 },
    };
    let meta = Meta::Inline(Default::default());
    let entry = Entry { modified_ns: 3, end: None, value_bytes: value.len() as u64, meta, home };
    let mut body = Vec::new();
    entry.encode(&mut body);
    let inline = if is_inline { value } else { &[] };
    encode_record(RecordKind::Put, TabletId(1), key, &[&body, inline], continues)
}

pub(crate) fn delete(key: &[u8], continues: bool) -> EncodedRecord {
    encode_record(RecordKind::Delete, TabletId(1), key, &[], continues)
}

/// A batch with each kind of record.
pub(super) fn batch(first_lsn: Lsn) -> BatchWriter {
    let mut batch = BatchWriter::new(first_lsn, 2000, 2008);
    batch.push_piece(&ValuePiece { id: 9, index: 0, bytes: Bytes::from_static(b"piece") });
    batch.push(&put(b"b\0inline", b"hello", true, true));
    batch.push_carried(&put(b"b\0carried", b"world!", false, false), b"world!");
    batch.push_in_pieces(&put(b"b\0pieces", b"piece", false, false), 9, &[77]);
    batch.push(&delete(b"b\0gone", false));
    batch
}

/// A segment of two batches, the first one of pieces only.
pub(super) fn segment() -> Vec<u8> {
    let mut pieces = BatchWriter::new(Lsn::NONE, 1990, 1991);
    pieces.push_piece(&ValuePiece { id: 8, index: 3, bytes: Bytes::from_static(b"other") });
    let mut writer = SegmentWriter::new(start(SLOT));
    writer.push(pieces);
    writer.push(batch(Lsn(1056)));
    writer.finish()
}

pub(super) fn opening() -> Opening {
    Opening {
        host_id: "host".into(),
        boot_id: "boot".into(),
        owner: owner(),
        program: "0.1.0".into(),
        previous_log: 11,
        previous_end: 12,
        previous_last_lsn: Lsn(13),
    }
}

fn owner() -> OwnerName {
    OwnerName { node: "a".into(), resp: "10.0.0.4:6379".into(), grpc: "10.0.0.4:7412".into() }
}

pub(super) fn record() -> ArchiveRecord {
    let log = |id, epoch, end| RecordLog { id, epoch, first: 3, end, last_lsn: Lsn(32), claimed_ns: 40 };
    let base = |id, version| RecordBase {
        id,
        version: Lsn(version),
        log: 16,
        seq: 24,
        parts: 33,
        end_crc: 36,
        bytes: 41,
        objects: 48,
        taken_ns: 56,
    };
    ArchiveRecord {
        flags: RecordFlags { failover: true, sync: false, without_fence: true },
        volume: VOLUME,
        revision: 1032,
        nonce: 1040,
        epoch: 1048,
        owner: Some([8; 16]),
        building: 1080,
        oldest_lsn: Lsn(1088),
        oldest_ns: 1096,
        tablets: 16,
        window: 8,
        lease_ms: 9_000,
        logs: vec![log(1071, 5, Some(9)), log(1072, 1048, None)],
        bases: vec![base(5, 8), base(6, 9)],
        pins: vec![
            RecordPin { base: 6, until_ns: None, name: "year's end".into() },
            RecordPin { base: 5, until_ns: Some(77), name: String::new() },
        ],
        owner_name: owner(),
    }
}
