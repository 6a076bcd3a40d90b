//! Checks the code against `docs/format/archive.md`: the tables have no gaps, and the encoders write each field at the documented offset.

use bytes::Bytes;
use shoal_testkit::bytes::number;
use shoal_testkit::document::table;

use super::{VOLUME, batch, opening, record, segment, start};
use crate::format::*;
use crate::limits::*;
use shoal_base::Lsn;
use shoal_base::checksum::crc32c;

const DOC: &str = include_str!("../../../../../docs/format/archive.md");

/// Checks the fields of the table `name` in `bytes`.
fn check(name: &str, bytes: &[u8], expected: &[(&str, u64)]) {
    let rows = table(DOC, name);
    for (field, value) in expected {
        assert_eq!(number(bytes, rows[*field]), *value, "{name}: {field}");
    }
    let named = |row: &&String| row.starts_with("zero") || expected.iter().any(|(field, _)| field == row);
    let other: Vec<_> = rows.iter().filter(|(row, (_, bytes))| *bytes <= 8 && !named(row)).collect();
    assert!(other.is_empty(), "{name}: fields without a check: {other:?}");
    for (at, length) in rows.iter().filter(|(row, _)| row.starts_with("zero")).map(|(_, place)| *place) {
        assert!(bytes[at..at + length].iter().all(|&byte| byte == 0), "{name}: zero");
    }
}

fn magic(text: &[u8; 4]) -> u64 {
    u64::from(u32::from_le_bytes(*text))
}

fn crc_of(bytes: &[u8]) -> u64 {
    u64::from(crc32c(bytes))
}

#[test]
fn segments_match_the_document() {
    let bytes = segment();
    let header = [
        ("crc", crc_of(&bytes[4..128])),
        ("magic", magic(b"SHsg")),
        ("version", 1),
        ("kind", 1),
        ("batches", 2),
        ("log", 1032),
        ("seq", 1040),
        ("epoch", 1048),
        ("first_lsn", 1056),
        ("last_lsn", 1059),
        ("store_time", 2000),
        ("wall_time", 2008),
        ("chain", 1088),
        ("table_crc", crc_of(&bytes[128..192])),
        ("object_bytes", bytes.len() as u64),
        ("nonce", 1104),
        ("flags", 2),
    ];
    check("segment", &bytes, &header);
    let rows = table(DOC, "segment");
    assert_eq!(rows["volume"], (16, 16));
    assert_eq!(bytes[16..32], VOLUME);
    assert_eq!(rows["zero"].0 + rows["zero"].1, SEGMENT_HEADER_BYTES);
    let first = number(&bytes, (128 + 16, 4));
    check(
        "row",
        &bytes[128..],
        &[
            ("volume", 0),
            ("records", 0),
            ("offset", 192),
            ("batch_bytes", first),
            ("batch_crc", crc_of(&bytes[192..192 + first as usize])),
            ("batch_lsn", 0),
        ],
    );
    let at = 192 + first as usize;
    check(
        "row",
        &bytes[160..],
        &[
            ("volume", 0),
            ("records", 4),
            ("offset", at as u64),
            ("batch_bytes", (bytes.len() - at) as u64),
            ("batch_crc", crc_of(&bytes[at..])),
            ("batch_lsn", 1056),
        ],
    );
    let records = number(&bytes, (at + 16, 4));
    let fields = [("store_time", 2000), ("wall_time", 2008), ("record_bytes", records), ("value_bytes", 6)];
    check("batch", &bytes[at..], &fields);
    assert_eq!(bytes[bytes.len() - 6..], *b"world!");
    let piece = at + 32;
    check(
        "piece",
        &bytes[piece..],
        &[
            ("record_bytes", 26),
            ("record_crc", crc_of(&bytes[piece + 8..piece + 30])),
            ("kind", 5),
            ("flags", 0),
            ("tablet", 0),
            ("key", 0),
            ("id", 9),
            ("index", 0),
        ],
    );
    assert_eq!(bytes[piece + 25..piece + 30], *b"piece");
}

/// The kinds, flags and bodies that the document names in words.
#[test]
fn openings_heartbeats_and_closes_match_the_document() {
    let (kind, flags) = (table(DOC, "segment")["kind"], table(DOC, "segment")["flags"]);
    let slot = LogSlot { log: 1032, seq: 0 };
    let bytes = start(slot).opening(&opening());
    assert_eq!((number(&bytes, kind), number(&bytes, flags), number(&bytes, (88, 4))), (3, 3, 0));
    let texts = b"\x04host\x04boot\x01a\x0d10.0.0.4:6379\x0d10.0.0.4:7412\x050.1.0";
    assert_eq!(bytes[128..128 + texts.len()], *texts);
    let numbers = [0, 8, 16].map(|at| number(&bytes, (128 + texts.len() + at, 8)));
    assert_eq!((numbers, bytes.len()), ([11, 12, 13], 128 + texts.len() + 24));
    let found = ArchiveSegment::decode(&Bytes::from(bytes), &VOLUME, slot).unwrap();
    let SegmentBody::Opening(found) = found.body else { panic!("{found:?}") };
    assert_eq!(found, opening());
    let slot = LogSlot { log: 1032, seq: 5 };
    for (number_of_kind, wall_ns, bytes) in [(2, 9, start(slot).heartbeat(9)), (4, 1080, start(slot).close())]
    {
        assert_eq!((number(&bytes, kind), bytes.len()), (number_of_kind, 128));
        let found = SegmentHeader::decode(&bytes, &VOLUME, slot).unwrap();
        assert_eq!((found.end.last_lsn, found.end.wall_ns, found.first_lsn), (Lsn(1055), wall_ns, Lsn::NONE));
    }
}

/// The homes of a put's value, as the document has them.
#[test]
fn homes_match_the_document() {
    let bytes = segment();
    let found = ArchiveSegment::decode(&Bytes::from(bytes), &VOLUME, super::SLOT).unwrap();
    let SegmentBody::Batches(batches) = found.body else { panic!("{found:?}") };
    let mut bodies = Vec::new();
    for item in batches[1].records().unwrap() {
        if let LoggedRecord::Write { record, .. } = item {
            bodies.push(record.body().to_vec());
        }
    }
    // Flags, modification time, length of the value, length of the metadata; then the home.
    let head = |home: u8, bytes: u8| [&[home, 3, 0, 0, 0, 0, 0, 0, 0, bytes, 0][..]].concat();
    assert_eq!(bodies[0], [&head(0, 5)[..], b"hello"].concat());
    assert_eq!(bodies[1], [&head(1, 6)[..], &[1], &crc32c(b"world!").to_le_bytes()].concat());
    assert_eq!(bodies[2], [&head(2, 5)[..], &[9, 1, 1, 77, 0, 0, 0]].concat());
    assert_eq!(bodies[3], b"");
}

#[test]
fn tombstones_match_the_document() {
    let slot = LogSlot { log: 1032, seq: 1040 };
    let tombstone = Tombstone { volume: VOLUME, slot, sealer_epoch: 1048, sealer_log: 1056 };
    let bytes = tombstone.encode();
    let fields = [
        ("crc", crc_of(&bytes[4..])),
        ("magic", magic(b"SHts")),
        ("version", 1),
        ("bytes", 64),
        ("log", 1032),
        ("seq", 1040),
        ("sealer_epoch", 1048),
        ("sealer_log", 1056),
    ];
    check("tombstone", &bytes, &fields);
    assert_eq!((bytes.len(), &bytes[16..32]), (TOMBSTONE_BYTES, &VOLUME[..]));
    assert_eq!(SlotHead::decode(&bytes, &VOLUME, slot), Ok(SlotHead::Tombstone(tombstone)));
}

#[test]
fn records_match_the_document() {
    let bytes = record().encode().unwrap();
    let fields = [
        ("crc", crc_of(&bytes[4..])),
        ("magic", magic(b"SHrc")),
        ("version", 1),
        ("flags", 5),
        ("bytes", bytes.len() as u64),
        ("revision", 1032),
        ("nonce", 1040),
        ("epoch", 1048),
        ("owner_log", 1072),
        ("building", 1080),
        ("oldest_lsn", 1088),
        ("oldest_time", 1096),
        ("tablets", 16),
        ("logs", 2),
        ("bases", 2),
        ("pins", 2),
        ("volumes", 0),
        ("nodes", 0),
        ("window", 8),
        ("lease", 9_000),
    ];
    check("record", &bytes, &fields);
    let lists = table(DOC, "record")["lease"].0 + 4;
    assert_eq!((&bytes[16..32], &bytes[56..72]), (&VOLUME[..], &[8; 16][..]));
    let log = |id, epoch, end| {
        [("id", id), ("epoch", epoch), ("first", 3), ("end", end), ("last_lsn", 32), ("claimed", 40)]
    };
    check("log", &bytes[lists..], &log(1071, 5, 9));
    check("log", &bytes[lists + 48..], &log(1072, 1048, u64::MAX));
    let bases = lists + 96;
    for (at, id, version) in [(bases, 5, 8), (bases + 64, 6, 9)] {
        let fields = [
            ("id", id),
            ("version", version),
            ("log", 16),
            ("seq", 24),
            ("parts", 33),
            ("end_crc", 36),
            ("bytes", 41),
            ("objects", 48),
            ("taken", 56),
        ];
        check("base", &bytes[at..], &fields);
    }
    let rest = [
        &[6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10][..],
        b"year's end",
        &[5, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 0],
        b"\x01a\x0d10.0.0.4:6379\x0d10.0.0.4:7412",
    ];
    assert_eq!(bytes[bases + 128..], rest.concat());
    assert_eq!(ArchiveRecord::decode(&bytes), Ok(record()));
}

#[test]
fn base_ends_match_the_document() {
    let end = BaseEnd { parts: vec![BasePart { bytes: 5, crc: 6 }, BasePart::of(b"seven")] };
    let bytes = end.encode();
    let fields = [("crc", crc_of(&bytes[4..])), ("magic", magic(b"SHbe")), ("version", 1), ("parts", 2)];
    check("end", &bytes, &fields);
    let list = [(16, 8), (24, 4), (28, 8), (36, 4)].map(|place| number(&bytes, place));
    assert_eq!((list, bytes.len()), ([5, 6, 5, crc_of(b"seven")], 40));
    assert_eq!(BaseEnd::decode(&bytes, 3, BaseEnd::crc_of(&bytes)), Ok(end));
}

#[test]
fn limits_match_the_document() {
    for (limit, value, text) in [
        ("SEGMENT_BYTES_MAX", SEGMENT_BYTES_MAX as u64, "32 MiB"),
        ("PIECE_BYTES", PIECE_BYTES as u64, "4 MiB"),
        ("PART_BYTES_MAX", PART_BYTES_MAX, "64 MiB"),
        ("RECORD_BYTES_MAX", RECORD_BYTES_MAX as u64, "128 KiB"),
    ] {
        let unit = if text.ends_with("MiB") { 20 } else { 10 };
        assert!(DOC.contains(&format!("{text} (`{limit}`)")), "{limit}");
        assert_eq!(text, format!("{} {}", value >> unit, &text[text.len() - 3..]), "{limit}");
    }
    for (limit, value) in [("LOGS_MAX", LOGS_MAX), ("BASES_MAX", BASES_MAX), ("PINS_MAX", PINS_MAX)] {
        assert!(DOC.contains(&format!("at most {value} (`{limit}`)")), "{limit}");
    }
    assert!(DOC.contains("1 to 2^20 (`PARTS_MAX`)") && PARTS_MAX == 1 << 20);
    assert!(DOC.contains("1 to 1,024 |") && SEAL_WIDTH_MAX == 1024);
    assert!(DOC.contains("milliseconds, 1,000 to 3,600,000") && LEASE_MS == (1_000..=3_600_000));
    let batch = batch(Lsn(1));
    assert!(batch.bytes() > 32, "{}", batch.bytes());
}
