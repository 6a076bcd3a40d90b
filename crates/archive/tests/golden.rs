//! Images of each object of an archive, byte by byte: every later version of the program reads them.
//!
//! `SHOAL_WRITE_GOLDEN=1 cargo test -p shoal-archive --test golden` writes them again.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use shoal_archive::format::*;
use shoal_base::{Lsn, TabletId};
use shoal_log::format::{RecordKind, encode_record};

const VOLUME: VolumeId = *b"golden volume id";
const LOG: u64 = 0x0123_4567_89AB_CDEF;
const BASE: u64 = 0xFEDC_BA98_7654_3210;

fn slot(seq: u64) -> LogSlot {
    LogSlot { log: LOG, seq }
}

fn start(seq: u64, chain: u32) -> SegmentStart {
    let end = LogEnd { last_lsn: Lsn(40), store_ns: 1_000, wall_ns: 1_700_000_000_000_000_000 };
    let flags = SegmentFlags { after_gap: seq == 0, closing: false };
    SegmentStart { volume: VOLUME, slot: slot(seq), epoch: 3, chain, nonce: 0xAA00 + seq, flags, end }
}

/// The first four slots of a log: opening, data, heartbeat, close.
fn slots() -> [Vec<u8>; 4] {
    let owner = OwnerName { node: "a".into(), resp: String::new(), grpc: "10.0.0.4:7412".into() };
    let opening = Opening {
        host_id: "host".into(),
        boot_id: "8a1b".into(),
        owner,
        program: "0.1.0".into(),
        previous_log: 7,
        previous_end: 12,
        previous_last_lsn: Lsn(40),
    };
    let opening = start(0, 0).opening(&opening);
    let mut writer = SegmentWriter::new(start(1, chain_of(&opening)));
    let delete = encode_record(RecordKind::Delete, TabletId(2), b"photos\0gone", &[], true);
    // Flags, modification time, bytes of the value, bytes of the metadata, the value.
    let inline = [&[0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0][..], b"hello"];
    let inline = encode_record(RecordKind::Put, TabletId(2), b"photos\0inline", &inline, false);
    // The value has its home in extents: an offset, a run, a checksum.
    let extents = [1, 9, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 1, 33, 1, 1, 2, 3, 4];
    let carried = encode_record(RecordKind::Put, TabletId(5), b"photos\0carried", &[&extents], false);
    let mut batch = BatchWriter::new(Lsn(41), 2_000, 1_700_000_001_000_000_000);
    batch.push(&delete);
    batch.push(&inline);
    batch.push_carried(&carried, b"carried");
    writer.push(batch);
    let mut batch = BatchWriter::new(Lsn(50), 3_000, 1_700_000_002_000_000_000);
    batch.push_piece(&ValuePiece { id: 4, index: 0, bytes: Bytes::from_static(b"carried") });
    batch.push_in_pieces(&carried, 4, &[0x0102_0304]);
    writer.push(batch);
    let data = writer.finish();
    let end = LogEnd { last_lsn: Lsn(50), store_ns: 3_000, wall_ns: 1_700_000_002_000_000_000 };
    let flags = SegmentFlags { after_gap: false, closing: true };
    let next = SegmentStart { end, flags, ..start(2, chain_of(&data)) };
    let heartbeat = next.heartbeat(1_700_000_005_000_000_000);
    let close = SegmentStart { end, ..start(3, chain_of(&heartbeat)) }.close();
    [opening, data, heartbeat, close]
}

fn chain_of(segment: &[u8]) -> u32 {
    u32::from_le_bytes(segment[..4].try_into().unwrap())
}

fn end() -> BaseEnd {
    BaseEnd { parts: vec![BasePart::of(b"the first part"), BasePart::of(b"the last one")] }
}

fn record() -> ArchiveRecord {
    let log = |id, epoch, end, last| RecordLog {
        id,
        epoch,
        first: 2,
        end,
        last_lsn: Lsn(last),
        claimed_ns: 1_700_000_000_000_000_000,
    };
    let base = RecordBase {
        id: BASE,
        version: Lsn(45),
        log: LOG,
        seq: 2,
        parts: 2,
        end_crc: BaseEnd::crc_of(&end().encode()),
        bytes: 26,
        objects: 3,
        taken_ns: 1_700_000_001_500_000_000,
    };
    ArchiveRecord {
        flags: RecordFlags { failover: false, sync: false, without_fence: false },
        volume: VOLUME,
        revision: 9,
        nonce: 0xBB,
        epoch: 3,
        owner: Some(*b"incarnation of a"),
        building: 5,
        oldest_lsn: Lsn(45),
        oldest_ns: 1_700_000_001_500_000_000,
        tablets: 16,
        window: 8,
        lease_ms: 9_000,
        logs: vec![log(7, 2, Some(12), 40), log(LOG, 3, None, 0)],
        bases: vec![base],
        pins: vec![RecordPin { base: BASE, until_ns: None, name: "before the upgrade".into() }],
        owner_name: OwnerName { node: "a".into(), resp: String::new(), grpc: "10.0.0.4:7412".into() },
    }
}

fn tombstone() -> Tombstone {
    Tombstone { volume: VOLUME, slot: slot(4), sealer_epoch: 4, sealer_log: 8 }
}

/// A spool with the second and the third slot.
fn spool() -> Vec<u8> {
    let [_, data, heartbeat, _] = slots();
    let mut file = data;
    file.resize(spool_bytes(file.len() as u64) as usize, 0);
    file.extend_from_slice(&heartbeat);
    file
}

/// All images, with the names of their files.
fn images() -> Vec<(&'static str, Vec<u8>, &'static [u8])> {
    let [opening, data, heartbeat, close] = slots();
    vec![
        ("opening", opening, include_bytes!("golden/opening.bin")),
        ("data", data, include_bytes!("golden/data.bin")),
        ("heartbeat", heartbeat, include_bytes!("golden/heartbeat.bin")),
        ("close", close, include_bytes!("golden/close.bin")),
        ("tombstone", tombstone().encode(), include_bytes!("golden/tombstone.bin")),
        ("record", record().encode().unwrap(), include_bytes!("golden/record.bin")),
        ("base-end", end().encode(), include_bytes!("golden/base-end.bin")),
        ("spool", spool(), include_bytes!("golden/spool.bin")),
    ]
}

#[test]
fn bytes_match_the_format() {
    for (name, bytes, image) in images() {
        if std::env::var_os("SHOAL_WRITE_GOLDEN").is_some() {
            let path = format!("{}/tests/golden/{name}.bin", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, &bytes).unwrap();
        } else {
            assert!(bytes == image, "{name}: {bytes:x?}");
        }
    }
}

#[test]
fn the_log_is_read() {
    let read = |image: &'static [u8], seq| {
        ArchiveSegment::decode(&Bytes::from_static(image), &VOLUME, slot(seq)).unwrap()
    };
    let opening = read(include_bytes!("golden/opening.bin"), 0);
    let data = read(include_bytes!("golden/data.bin"), 1);
    let heartbeat = read(include_bytes!("golden/heartbeat.bin"), 2);
    let close = read(include_bytes!("golden/close.bin"), 3);
    let all = [&opening, &data, &heartbeat, &close].map(|segment| segment.header);
    let kinds = all.map(|header| header.kind);
    use SegmentKind::{Close, Data, Heartbeat, Opening};
    assert_eq!(kinds, [Opening, Data, Heartbeat, Close]);
    assert_eq!(all.map(|header| header.end.last_lsn.0), [40, 50, 50, 50]);
    assert!(all.windows(2).all(|pair| pair[1].check_follows(&pair[0]) == Ok(())));
    assert!(all[0].flags.after_gap && all[2].flags.closing);
    let SegmentBody::Opening(opening) = &opening.body else { panic!("{opening:?}") };
    assert_eq!((opening.previous_log, &*opening.host_id, &*opening.boot_id), (7, "host", "8a1b"));
    let SegmentBody::Batches(batches) = &data.body else { panic!("{data:?}") };
    let mut seen = Vec::new();
    for item in batches.iter().flat_map(|batch| batch.records().unwrap()) {
        seen.push(match item {
            LoggedRecord::Piece(piece) => format!("piece {} {} {:?}", piece.id, piece.index, piece.bytes),
            LoggedRecord::Write { lsn, record, value } => {
                let place = match value {
                    LoggedValue::InRecord => format!("{} bytes", record.body().len()),
                    LoggedValue::Carried { stored, .. } => format!("{stored:?}"),
                    LoggedValue::InPieces { id, checksums } => format!("pieces {id}, {checksums:x?}"),
                };
                let key = String::from_utf8_lossy(record.key()).replace('\0', "/");
                format!("{lsn} {:?} {key}: {place}", record.kind)
            }
        });
    }
    let expected = [
        "41 Delete photos/gone: 0 bytes",
        "42 Put photos/inline: 16 bytes",
        "43 Put photos/carried: b\"carried\"",
        "piece 4 0 b\"carried\"",
        "50 Put photos/carried: pieces 4, [1020304]",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn all_other_objects_are_read() {
    let image = include_bytes!("golden/tombstone.bin");
    let head = SlotHead::decode(image, &VOLUME, slot(4));
    assert_eq!((head, image.len()), (Ok(SlotHead::Tombstone(tombstone())), TOMBSTONE_BYTES));
    let found = ArchiveRecord::decode(include_bytes!("golden/record.bin")).unwrap();
    assert_eq!(found, record());
    assert_eq!(found.owner_log().map(|log| log.id), Some(LOG));
    let crc = found.bases[0].end_crc;
    let end = BaseEnd::decode(include_bytes!("golden/base-end.bin"), BASE, crc).unwrap();
    assert_eq!(end.parts[1].check(BASE, 1, b"the last one"), Ok(()));
    let file = include_bytes!("golden/spool.bin");
    let mut read = |at: u64, out: &mut [u8]| {
        let rest = &file[(at as usize).min(file.len())..];
        let bytes = rest.len().min(out.len());
        out[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    };
    let mut reader = SpoolReader::new(VOLUME, slot(1));
    let mut kinds = Vec::new();
    while let Some((_, segment)) = reader.next_segment(&mut read).unwrap() {
        kinds.push(segment.header.kind);
    }
    assert_eq!(kinds, [SegmentKind::Data, SegmentKind::Heartbeat]);
    assert_eq!(reader.at(), 2 * SPOOL_ALIGNMENT);
}
