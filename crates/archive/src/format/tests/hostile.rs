//! Hostile contents: cut and flipped objects, huge counts, swapped objects; and the stored inputs of the fuzzer.

use bytes::Bytes;
use shoal_base::checksum::crc32c;
use shoal_base::{Lsn, SeededEntropy, TabletId};
use shoal_log::format::{RecordKind, encode_record};
use shoal_testkit::corpus;

use super::{SLOT, VOLUME, batch, opening, record, segment, start};
use crate::format::hostile::archive;
use crate::format::*;
use crate::limits::PIECE_BYTES;

/// The whole contents of a segment; an error of its records is one of the segment.
fn read(bytes: Vec<u8>, slot: LogSlot) -> Result<(), FormatError> {
    let segment = ArchiveSegment::decode(&Bytes::from(bytes), &VOLUME, slot)?;
    match segment.body {
        SegmentBody::Batches(batches) => batches.iter().try_for_each(|batch| batch.records().map(drop)),
        _ => Ok(()),
    }
}

type ReadObject = Box<dyn Fn(Vec<u8>) -> Result<(), FormatError>>;

/// An object of each kind with its name, and its reader.
fn objects() -> Vec<(String, Vec<u8>, ReadObject)> {
    let first = LogSlot { seq: 0, ..SLOT };
    let tombstone = Tombstone { volume: VOLUME, slot: SLOT, sealer_epoch: 5, sealer_log: 6 }.encode();
    let end = BaseEnd { parts: vec![BasePart::of(b"one"), BasePart::of(b"two")] }.encode();
    let crc = BaseEnd::crc_of(&end);
    vec![
        (SLOT.to_string(), segment(), Box::new(|bytes| read(bytes, SLOT))),
        (SLOT.to_string(), start(SLOT).heartbeat(1), Box::new(|bytes| read(bytes, SLOT))),
        (first.to_string(), start(first).opening(&opening()), Box::new(move |bytes| read(bytes, first))),
        (SLOT.to_string(), tombstone, Box::new(|bytes| SlotHead::decode(&bytes, &VOLUME, SLOT).map(drop))),
        (
            "record".to_owned(),
            record().encode().unwrap(),
            Box::new(|bytes| ArchiveRecord::decode(&bytes).map(drop)),
        ),
        (
            "base/000000000000002a/end".to_owned(),
            end,
            Box::new(move |bytes| BaseEnd::decode(&bytes, 42, crc).map(drop)),
        ),
    ]
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    for (name, bytes, read) in objects() {
        assert_eq!(read(bytes.clone()), Ok(()), "{name}");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = read(changed).expect_err("a flipped bit").to_string();
            assert!(error.starts_with(&name), "bit {bit}: {error}");
        }
        for length in 0..bytes.len() {
            let error = read(bytes[..length].to_vec()).expect_err("a cut").to_string();
            assert!(error.starts_with(&name), "{length} bytes: {error}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(read(longer).is_err(), "{name} with a byte after its end");
    }
}

/// The header of `bytes` with another field, and the right checksum.
fn with(bytes: &[u8], at: usize, field: &[u8], covered: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + field.len()].copy_from_slice(field);
    let crc = crc32c(&bytes[4..covered]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn error_of(result: Result<(), FormatError>) -> String {
    result.expect_err("hostile contents").to_string()
}

#[test]
fn fields_of_a_segment_are_checked() {
    let bytes = segment();
    let change = |at, field: &[u8]| error_of(read(with(&bytes, at, field, 128), SLOT));
    let name = SLOT.to_string();
    let newer = |part: &str| {
        format!("{name} has {part} that this program does not know: use the version of shoal that wrote it")
    };
    assert_eq!(change(8, &[2]), newer("a version"));
    assert_eq!(change(10, &[5]), newer("a kind of segment"));
    assert_eq!(change(112, &[4]), newer("a flag"));
    assert_eq!(change(116, &[1]), newer("a field"));
    let foreign = |part: &str| format!("{name} holds the bytes of another object: {part}");
    assert_eq!(change(16, &[8]), foreign("the volume differs"));
    assert_eq!(change(32, &[9]), foreign("log or slot differ"));
    assert_eq!(change(40, &[8]), foreign("log or slot differ"));
    for (at, field, why) in [
        (12, &u32::MAX.to_le_bytes()[..], "it is shorter than its batches"),
        (12, &0_u32.to_le_bytes(), "only a segment of data has batches"),
        (12, &3_u32.to_le_bytes(), "the checksum of the table is wrong"),
        (10, &2_u16.to_le_bytes(), "only a segment of data has batches"),
        (10, &3_u16.to_le_bytes(), "only a segment of data has batches"),
        (56, &u64::MAX.to_le_bytes(), "its first number is above its last one"),
        (56, &1_u64.to_le_bytes(), "the table does not match the header"),
        (64, &1060_u64.to_le_bytes(), "the table does not match the header"),
        (64, &u64::MAX.to_le_bytes(), "a number is impossible"),
        (96, &u64::MAX.to_le_bytes(), "it is longer than a segment may be"),
        (96, &(32_u64 << 20).to_le_bytes(), "its length is not that of the object"),
        (96, &1_u64.to_le_bytes(), "it is shorter than its batches"),
        (112, &[1], "a gap inside of a log"),
    ] {
        let error = change(at, field);
        assert!(error.ends_with(why), "{at}: {error}");
    }
    let first = LogSlot { seq: 0, ..SLOT };
    let bytes = start(first).opening(&opening());
    let change = |at, field: &[u8]| error_of(read(with(&bytes, at, field, 128), first));
    assert!(change(88, &[1]).ends_with("slot 0 follows another slot"));
    assert!(change(10, &[2]).ends_with("a segment without contents has bytes after its header"));
    assert!(change(56, &[2]).ends_with("it has numbers without records"));
}

/// The body of a segment with one changed byte, and corrected checksums: the checks of the contents remain.
#[test]
fn contents_of_a_segment_are_checked() {
    let bytes = segment();
    let row = 128 + 32;
    let at = u64::from_le_bytes(bytes[row + 8..row + 16].try_into().unwrap()) as usize;
    let corrected = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        hostile::corrected_segment(bytes)
    };
    let change =
        |at, byte| read(corrected(at, byte), SLOT).expect_err(&format!("byte {at} is {byte}")).to_string();
    let inline = at + 32 + 30;
    let carried = inline + 4 + bytes[inline] as usize;
    let pieces = carried + 4 + bytes[carried] as usize;
    let delete = pieces + 4 + bytes[pieces] as usize;
    for (at, byte, why) in [
        (row, 1, "has a field that this program does not know: use the version of shoal that wrote it"),
        (row + 4, 3, "the table does not match the header"),
        (row + 4, 0, "the number of the first record is impossible"),
        (row + 8, 0, "a batch does not follow the one before it"),
        (row + 31, 0x80, "the number of the first record is impossible"),
        (at + 16, 0, "the lengths of records and values are not that of the batch"),
        (at + 20, 1, "has a field that this program does not know: use the version of shoal that wrote it"),
        (at + 24, 5, "the lengths of records and values are not that of the batch"),
        (
            at + 32 + 9,
            1,
            "has a field that this program does not know: use the version of shoal that wrote it",
        ),
        (at + 35, 0x7F, "a record is cut off"),
        (
            inline + 8,
            6,
            "has a kind of record that this program does not know: use the version of shoal that wrote it",
        ),
        (inline + 9, 1, "a record is damaged"),
        (
            inline + 9,
            0x10,
            "has a flag of a record that this program does not know: use the version of shoal that wrote it",
        ),
        (inline + 8, 2, "a delete has a body"),
        (
            carried + 22,
            3,
            "has a place of a value that this program does not know: use the version of shoal that wrote it",
        ),
        (
            carried + 22,
            0x21,
            "has a flag of an entry that this program does not know: use the version of shoal that wrote it",
        ),
        (carried + 22, 0x11, "the entry of a put is damaged"),
        (carried + 31, 5, "the carried value does not match its checksums"),
        (carried + 31, 7, "the carried value is cut off"),
        (carried + 33, 2, "the checksums are not those of the value's units"),
        (carried + 34, 0xEE, "the carried value does not match its checksums"),
        (pieces + 34, 0, "the checksums are not those of the value's units"),
        (pieces + 33, 2, "the value has another number of pieces"),
        (delete + 9, 2, "the last write batch is not whole"),
    ] {
        let error = change(at, byte);
        assert!(error.ends_with(why), "{at}: {error}; expected: {why}");
        assert!(error.starts_with(&SLOT.to_string()), "{error}");
    }
    // Header and table agree about a number that the batch does not have.
    let mut bytes = corrected(row + 4, 5);
    bytes[64] += 1;
    let error = error_of(read(hostile::corrected_segment(bytes), SLOT));
    assert!(error.ends_with("the table counts other records"), "{error}");
    // The values have a byte more.
    let mut bytes = segment();
    bytes.push(1);
    bytes[row + 16] += 1;
    bytes[at + 24] += 1;
    let error = error_of(read(hostile::corrected_segment(bytes), SLOT));
    assert!(error.ends_with("a carried value belongs to no record"), "{error}");
}

/// A value without a byte has no other home than its record.
#[test]
fn an_empty_value_is_in_its_record() {
    for home in [1, 2] {
        // Flags, modification time, bytes of the value, bytes of the metadata; then no piece and no unit.
        let body = [&[home, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], if home == 1 { &[0] } else { &[1, 0, 0] }];
        let put = |body: &[&[u8]]| encode_record(RecordKind::Put, TabletId(1), b"b\0k", body, false);
        let (empty, forged) = (put(&[&[0; 11]]), put(&body));
        let mut writer = SegmentWriter::new(start(SLOT));
        let mut batch = BatchWriter::new(Lsn(1056), 1, 2);
        batch.push(&empty);
        writer.push(batch);
        let mut bytes = writer.finish();
        assert_eq!(read(bytes.clone(), SLOT), Ok(()));
        bytes.truncate(192);
        bytes.extend_from_slice(&forged.bytes);
        for at in [128 + 16, 160 + 16] {
            bytes[at] += (forged.bytes.len() - empty.bytes.len()) as u8;
        }
        let error = error_of(read(hostile::corrected_segment(bytes), SLOT));
        assert!(error.ends_with("the checksums are not those of the value's units"), "{error}");
    }
}

/// Kinds from 128 on have no number and may be skipped; all others are refused.
#[test]
fn only_kinds_from_128_on_are_skipped() {
    let bytes = segment();
    let at = 192 + 8 + 32;
    for kind in 0..=255_u8 {
        // The piece of the first batch becomes a record of this kind.
        let mut changed = bytes.clone();
        let kind_at = 192 + 32 + 8;
        assert_eq!((changed[kind_at], at), (5, kind_at));
        changed[kind_at] = kind;
        let result = read(hostile::corrected_segment(changed.clone()), SLOT);
        let expected = kind == 5 || kind >= 128;
        assert_eq!(result.is_ok(), expected, "{kind}: {result:?}");
        if kind >= 128 {
            // Its checksum counts all the same.
            changed[192 + 32 + 4] ^= 1;
            let crc = crc32c(&changed[192..192 + 62]);
            changed[148..152].copy_from_slice(&crc.to_le_bytes());
            let table = crc32c(&changed[128..192]);
            let error = error_of(read(with(&changed, 92, &table.to_le_bytes(), 128), SLOT));
            assert!(error.ends_with("the checksum of a record is wrong"), "{error}");
        }
    }
}

#[test]
fn fields_of_a_record_are_checked() {
    let bytes = record().encode().unwrap();
    let change =
        |at, field: &[u8]| error_of(ArchiveRecord::decode(&with(&bytes, at, field, bytes.len())).map(drop));
    for (at, field, why) in [
        (8, &[2][..], "a version that this program does not know: use the version of shoal that wrote it"),
        (10, &[8], "a flag that this program does not know: use the version of shoal that wrote it"),
        (112, &[1], "a field that this program does not know: use the version of shoal that wrote it"),
        (114, &[1], "a field that this program does not know: use the version of shoal that wrote it"),
        (118, &[1], "a field that this program does not know: use the version of shoal that wrote it"),
        (12, &[0xFF], "its length is wrong"),
        (56, &[0; 16], "the owner's log is not the newest one"),
        (72, &[0; 8], "the owner's log is not the newest one"),
        (80, &5_u64.to_le_bytes(), "the base that is being uploaded is named already"),
        (104, &[0], "a store has a tablet"),
        (106, &[0xFF, 0xFF], "a list has more entries than the record has room for"),
        (108, &[65], "a list has more entries than the record has room for"),
        (110, &[0xFF, 0xFF], "a list has more entries than the record has room for"),
        (116, &[0], "slots in flight are 1 to 1,024"),
        (116, &[1, 4], "slots in flight are 1 to 1,024"),
        (120, &[0, 0], "a lease is 1 s to 1 h"),
        (124, &[0; 8], "an id is 0, or occurs twice"),
        (124, &1072_u64.to_le_bytes(), "an id is 0, or occurs twice"),
        (132, &2000_u64.to_le_bytes(), "the epochs of the logs do not ascend"),
        (180, &2000_u64.to_le_bytes(), "a log is newer than the newest claim"),
        (140, &10_u64.to_le_bytes(), "a log starts after its end"),
        (220 + 8, &10_u64.to_le_bytes(), "the bases are not in order"),
        (220 + 32, &0_u32.to_le_bytes(), "a base has no part, or too many"),
        (348, &[9], "a pin names no base"),
    ] {
        let error = change(at, field);
        assert!(error.starts_with("record ") && error.ends_with(why), "{at}: {error}; expected: {why}");
    }
}

#[test]
fn lists_of_parts_are_checked() {
    let bytes = BaseEnd { parts: vec![BasePart::of(b"one"), BasePart::of(b"two")] }.encode();
    let decode = |bytes: &[u8]| error_of(BaseEnd::decode(bytes, 42, BaseEnd::crc_of(bytes)).map(drop));
    let change = |at, field: &[u8]| decode(&with(&bytes, at, field, bytes.len()));
    for (at, field, why) in [
        (12, &u32::MAX.to_le_bytes()[..], "the number of parts does not match the length"),
        (12, &[0], "the number of parts does not match the length"),
        (16, &[0; 8], "a part has no byte or more than 64 MiB"),
        (16, &u64::MAX.to_le_bytes(), "a part has no byte or more than 64 MiB"),
    ] {
        assert!(change(at, field).ends_with(why), "{at}");
    }
    // Whole, but not the one that the record names.
    let foreign = error_of(BaseEnd::decode(&bytes, 42, 1).map(drop));
    assert!(foreign.ends_with("the record names another checksum"), "{foreign}");
    let part = BasePart::of(b"one");
    assert_eq!(part.check(42, 0, b"one"), Ok(()));
    let swapped = error_of(part.check(42, 1, b"two"));
    assert!(swapped.starts_with("base/000000000000002a/00000001 is damaged at byte 0"), "{swapped}");
    let short = error_of(part.check(42, 1, b"on"));
    assert!(short.ends_with("at byte 2: its length is wrong"), "{short}");
}

/// A value in more pieces than one, and a piece that is too long.
#[test]
fn pieces_have_their_lengths() {
    let long = vec![3; PIECE_BYTES];
    let mut writer = SegmentWriter::new(start(SLOT));
    let mut pieces = BatchWriter::new(Lsn::NONE, 1, 2);
    pieces.push_piece(&ValuePiece { id: 1, index: 0, bytes: long.into() });
    writer.push(pieces);
    writer.push(batch(Lsn(1056)));
    let bytes = writer.finish();
    assert_eq!(read(bytes.clone(), SLOT), Ok(()));
    // One byte more: the record and the batch are longer, everything after them is the same.
    let mut longer = bytes;
    longer.insert(192 + 32 + 25, 9);
    for (at, by) in [(128 + 16, 1), (160 + 8, 1), (192 + 16, 1), (192 + 32, 1)] {
        let value = u32::from_le_bytes(longer[at..at + 4].try_into().unwrap()) + by;
        longer[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    let error = error_of(read(hostile::corrected_segment(longer), SLOT));
    assert!(error.ends_with("a piece of a value has no byte or more than 4 MiB"), "{error}");
}

#[test]
fn stored_inputs_are_read() {
    let stored = corpus::read("archive");
    assert!(stored.len() >= 6, "{}", stored.len());
    stored.iter().for_each(|(_, input)| archive(input));
}

/// Random changes of the stored inputs, by a seed: a fuzzer's start without a fuzzer.
#[test]
fn changed_inputs_are_read() {
    let dice = SeededEntropy::new(7);
    for (_, input) in corpus::read("archive") {
        for _ in 0..1_000 {
            let mut changed = input.clone();
            for _ in 0..=dice.below(4) {
                let at = dice.below(changed.len() as u64) as usize;
                let byte = [0, 1, 0x7F, 0x80, 0xFF, dice.below(256) as u8][dice.below(6) as usize];
                match dice.below(8) {
                    0 => changed.truncate(at.max(1)),
                    1 => changed.insert(at, byte),
                    2 => drop(changed.remove(at)),
                    _ => changed[at] = byte,
                }
                if changed.is_empty() {
                    break;
                }
            }
            archive(&changed);
        }
    }
}

/// Writes the seeds of the corpus into the folder that the variable names, for `cargo x fuzz --keep`.
#[test]
fn seeds_are_read() {
    let kinds = [0, 0, 0, 1, 2, 3];
    let mut spool = segment();
    spool.resize(spool_bytes(spool.len() as u64) as usize, 0);
    let objects = objects().into_iter().map(|(_, bytes, _)| bytes);
    let seeds = kinds.into_iter().zip(objects).chain([(4, spool)]);
    for (at, (kind, bytes)) in seeds.enumerate() {
        let input = [&[kind][..], &bytes].concat();
        archive(&input);
        if let Some(folder) = std::env::var_os("SHOAL_WRITE_SEEDS") {
            std::fs::write(std::path::Path::new(&folder).join(format!("seed-{at}")), input).unwrap();
        }
    }
}
