//! Checks the code against `docs/format/`: the tables have no gaps, and the encoders write each field at the documented offset.

use std::collections::BTreeMap;

use shoal_base::codec::Reader;
use shoal_base::{BLOCK_BYTES, Lsn, Run, TabletId};
use shoal_common::bucket::BucketConfig;
use shoal_common::object::{Attributes, Metadata};
use shoal_log::format::{
    BATCH_HEADER_BYTES, BatchBuilder, BatchHeader, BatchTimes, RecordKind, RecordPlace, encode_placed,
    encode_record,
};
use shoal_log::{CLOCK_RECORD_BYTES, ClockRecord, LogPlace, WallMark};
use shoal_testkit::bytes::number;
pub(crate) use shoal_testkit::document::table;
use shoal_tree::layers::page as layers_page;
use shoal_tree::layers::{LAYERS_MAX, Layers, LayersRef, tombstone};
use shoal_tree::{PageRef, Root, Tree};
use shoal_value::packed::{Footer, RunEntry, RunOwner, Totals, put_footer, put_item, run_key};
use shoal_value::{Entry, Home, Manifest, encode_metadata, place_of_metadata};

use crate::features::Features;
use crate::layout::{Layout, Places};
use crate::losses::Losses;
use crate::superblock::{ArchiveMark, FORMAT_VERSION, FORMAT_VERSION_OLDEST, SpacePlace, Superblock};
use crate::tablet_record::TabletRecord;

pub(crate) fn superblock() -> Superblock {
    Superblock {
        version: FORMAT_VERSION,
        features: Features { compatible: 1014, read_only: 1015, incompatible: 0 },
        identity: [7; 16],
        log_seed: 6,
        layout: Layout {
            blocks_max: 9_007,
            group_blocks: 64,
            log_blocks: 33,
            space_area_blocks: 21,
            places: Places { log: 200, space_areas: [300, 100], data: 400 },
        },
        number: 1001,
        epoch: 1002,
        epoch_position: 900,
        durable_lsn: Lsn(1004),
        lsn_ceiling: Lsn(1005),
        device_blocks: 8_008,
        log_prepared: 31,
        log_tail: LogPlace { position: 899, chain: 1010, first_lsn: Lsn(1011) },
        space: SpacePlace {
            area: 1,
            snapshot_pieces: 2,
            snapshot_blocks: 17,
            used_blocks: 20,
            deltas: 3,
            snapshot_number: 1012,
        },
        wall_high_ns: 1013,
        clock: ClockRecord {
            store_ns: 1016,
            wall_ns: 1017,
            boot_ns: 1018,
            boot_id: [8; 16],
            marks: vec![
                WallMark { wall_ns: 1020, lsn: Lsn(1021) },
                WallMark { wall_ns: 1019, lsn: Lsn(1022) },
            ],
        },
        losses: Losses { since_number: 900, lost: 1023, reverted: 1024, resurrected: 1025 },
        archive: ArchiveMark { log: u64::MAX - 1, first_lsn: Lsn(1026), unowned_lsn: Lsn(1027) },
        tablets: vec![
            TabletRecord {
                slot_first: 0,
                slot_last: 9,
                root: Root::EMPTY,
                applied: Lsn(1),
                totals: Totals::default(),
                layers: None,
            },
            TabletRecord {
                slot_first: 10,
                slot_last: 16_383,
                root: Root { page: Some(PageRef { block: 5000, crc: 77 }), height: 3, entries: 12_345 },
                applied: Lsn(88),
                totals: Totals {
                    runs: 91,
                    packed_blocks: 92,
                    packed_live_bytes: 93,
                    value_bytes: 94,
                    expiring: Some(95),
                },
                layers: Some(LayersRef { block: 6000, crc: 78, copies: 2 }),
            },
        ],
    }
}

#[test]
fn superblock_layout_matches_document() {
    let doc = include_str!("../../../docs/format/superblock.md");
    let rows = table(doc, "superblock");
    let value = superblock();
    let block = value.encode();
    assert_eq!(rows["crc"], (BLOCK_BYTES - 4, 4));
    for (field, expected) in [
        ("version", 3),
        ("count", 2),
        ("number", 1001),
        ("epoch", 1002),
        ("epoch_position", 900),
        ("durable_lsn", 1004),
        ("lsn_ceiling", 1005),
        ("log_seed", 6),
        ("blocks_max", 9_007),
        ("device_blocks", 8_008),
        ("wall_high", 1013),
        ("log_tail.position", 899),
        ("log_tail.first_lsn", 1011),
        ("snapshot_number", 1012),
        ("log_tail.chain", 1010),
        ("group_blocks", 64),
        ("log_blocks", 33),
        ("space_area_blocks", 21),
        ("space.area", 1),
        ("space.pieces", 2),
        ("space.snapshot_blocks", 17),
        ("space.used_blocks", 20),
        ("space.deltas", 3),
        ("features.compatible", 1014),
        ("features.read_only", 1015),
        ("features.incompatible", 0),
        ("log_first", 200),
        ("space_area_0", 300),
        ("space_area_1", 100),
        ("data_first", 400),
        ("losses.since", 900),
        ("losses.lost", 1023),
        ("losses.reverted", 1024),
        ("losses.resurrected", 1025),
        ("log_prepared", 31),
        ("clock.store", 1016),
        ("archive.log", u64::MAX - 1),
        ("archive.first_lsn", 1026),
        ("archive.unowned_lsn", 1027),
        ("clock.wall", 1017),
        ("clock.boot", 1018),
        ("clock.marks", 2),
    ] {
        assert_eq!(number(&block, rows[field]), expected, "{field}");
    }
    assert_eq!(rows["tablets"], (256, 32 * 96));
    assert_eq!(rows["clock.store"].0 + CLOCK_RECORD_BYTES, rows["clock.mark"].0 + rows["clock.mark"].1);
    assert_eq!(block[rows["clock.boot_id"].0..][..16], [8; 16]);
    let marks = rows["clock.mark"].0;
    let mark = [0, 8, 16, 24].map(|at| number(&block, (marks + at, 8)));
    assert_eq!(mark, [1020, 1021, 1019, 1022]);
    let tablet = table(doc, "tablet");
    let second = &block[256 + 96..];
    for (field, expected) in [
        ("slot_first", 10),
        ("slot_last", 16_383),
        ("height", 3),
        ("has_root", 1),
        ("root.block", 5000),
        ("root.crc", 77),
        ("entries", 12_345),
        ("applied", 88),
        ("packed_runs", 91),
        ("packed_blocks", 92),
        ("packed_live_bytes", 93),
        ("value_bytes", 94),
        ("expiring", 96),
    ] {
        assert_eq!(number(second, tablet[field]), expected, "{field}");
    }
    assert_eq!(number(second, tablet["layers.block"]), 6000);
    assert_eq!(number(second, tablet["layers.crc"]), 78);
    assert_eq!(number(second, tablet["layers.copies"]), 2);
    assert_eq!(number(second, tablet["reserved.end"]), 0);
    assert_eq!(Superblock::decode(&block).as_ref(), Some(&value));
}

/// Version 2 is version 3 with zeros in the new fields of version 3, and with its areas one after the other.
#[test]
fn version_2_is_read_and_written() {
    let doc = include_str!("../../../docs/format/superblock.md");
    let rows = table(doc, "superblock");
    let mut value = superblock();
    value.version = FORMAT_VERSION_OLDEST;
    let block = value.encode();
    assert_eq!(number(&block, rows["version"]), 2);
    let newer = rows["features.compatible"].0..rows["tablets"].0;
    assert!(block[newer].iter().chain(&block[rows["clock.store"].0..BLOCK_BYTES - 4]).all(|&byte| byte == 0));
    let read = Superblock::decode(&block).unwrap();
    value.features = Features::default();
    value.clock = ClockRecord::default();
    value.losses = Losses::default();
    value.archive = ArchiveMark::default();
    value.log_prepared = value.layout.log_blocks;
    value.layout.places = Places::one_after_the_other(33, 21);
    assert_eq!(value.layout.places, Places { log: 34, space_areas: [67, 88], data: 109 });
    assert_eq!(read, value);
}

/// An unknown feature is refused instead of ignored.
#[test]
fn unknown_incompatible_feature_is_rejected() {
    let mut value = superblock();
    value.features.incompatible = 1 << 7;
    assert_eq!(Superblock::decode(&value.encode()), None);
}

/// A store that grew: its areas are among the data, and a program without the feature would take them for free blocks.
#[test]
fn areas_among_data_need_the_feature() {
    let mut value = superblock();
    value.layout.places = Places { log: 200, space_areas: [8_008 - 21, 7_000], data: 233 };
    assert_eq!(Superblock::decode(&value.encode()), None);
    value.features.incompatible = 1 << 1;
    let block = value.encode();
    let rows = table(include_str!("../../../docs/format/superblock.md"), "superblock");
    assert_eq!(number(&block, rows["features.incompatible"]), 2);
    assert_eq!(number(&block, rows["space_area_0"]), 7_987);
    assert_eq!(number(&block, rows["space_area_1"]), 7_000);
    assert_eq!(Superblock::decode(&block).as_ref(), Some(&value));
    value.device_blocks -= 1;
    assert_eq!(Superblock::decode(&value.encode()), None, "an area behind the end");
}

/// An apply would free a root outside of the blocks for objects and pages. Mutation testing found this.
#[test]
fn root_outside_page_area_is_rejected() {
    let value = superblock();
    let usable = value.layout.data_first()..value.device_blocks;
    for block in [0, usable.start - 1, usable.start, usable.end - 1, usable.end, 0xffff_0000_00a0] {
        let mut value = value.clone();
        value.tablets[0].root = Root { page: Some(PageRef { block, crc: 1 }), height: 1, entries: 1 };
        let decoded = Superblock::decode(&value.encode());
        assert_eq!(decoded.is_some(), usable.contains(&block), "block {block}");
    }
}

#[test]
fn every_flipped_superblock_bit_is_detected() {
    let mut block = superblock().encode();
    for bit in 0..BLOCK_BYTES * 8 {
        block[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Superblock::decode(&block), None, "bit {bit}");
        block[bit / 8] ^= 1 << (bit % 8);
    }
}

/// An apply would take such a record back, because an opening gives the numbers after the ceiling.
#[test]
fn superblock_with_applied_records_above_its_ceiling_is_refused() {
    let mut value = superblock();
    value.lsn_ceiling = value.tablets.iter().map(|tablet| tablet.applied).max().unwrap();
    assert!(Superblock::decode(&value.encode()).is_some());
    value.lsn_ceiling = Lsn(value.lsn_ceiling.0 - 1);
    assert!(Superblock::decode(&value.encode()).is_none());
}

/// The first publish after an opening would count past the limit.
#[test]
fn superblock_without_room_for_its_successors_is_refused() {
    let mut value = superblock();
    value.number = 1 << 59;
    assert!(Superblock::decode(&value.encode()).is_some());
    value.number += 1;
    assert!(Superblock::decode(&value.encode()).is_none());
}

/// The entries of a forged tree can count more than a store holds.
#[test]
fn superblock_that_an_opening_refuses_is_not_written() {
    let mut value = superblock();
    value.tablets[0].root.entries = shoal_tree::ENTRIES_MAX + 1;
    let device = shoal_device::Device::new(std::sync::Arc::new(shoal_device::MemDevice::new(64)));
    let written = shoal_base::task::block_on(crate::copies::write_copies(&device, &value));
    assert!(matches!(written, Err(shoal_common::error::Error::Corrupt { .. })), "{written:?}");
}

/// The list of a tablet's layers, and a tombstone.
#[test]
fn layer_layout_matches_document() {
    let doc = include_str!("../../../docs/format/layers.md");
    let (rows, item) = (table(doc, "layers"), table(doc, "layer"));
    let root = |block, crc, height, entries| Root { page: Some(PageRef { block, crc }), height, entries };
    let layers = Layers {
        list: vec![root(5001, 71, 3, 90_000), root(5002, 72, 2, 4_000), root(5003, 73, 1, 11)],
        compacting: 2,
        frontier: b"default\0photos/17".to_vec(),
        live: 1 << 40,
        unsettled: 1 << 41,
        stored: None,
    };
    let tree = Tree { device: 1_004, tablet: TabletId(3) };
    let (page, crc) = layers_page::encode(tree, &layers, Lsn(1_005), 6_000);
    let magic = u64::from(u16::from_le_bytes(*b"Sc"));
    let header = [
        ("crc", u64::from(crc)),
        ("magic", magic),
        ("version", 2),
        ("count", 3),
        ("tablet", 3),
        ("frontier_bytes", 17),
        ("compacting", 2),
        ("block", 6_000),
        ("lsn", 1_005),
        ("device", 1_004),
        ("live", 1 << 40),
        ("unsettled", 1 << 41),
    ];
    for (field, expected) in header {
        assert_eq!(number(&page, rows[field]), expected, "{field}");
    }
    let end =
        |rows: &BTreeMap<String, (usize, usize)>| rows.values().map(|(at, bytes)| at + bytes).max().unwrap();
    let (header, bytes) = (end(&rows), end(&item));
    let items = [(5001, 71, 3, 90_000), (5002, 72, 2, 4_000), (5003, 73, 1, 11)];
    for (at, (block, crc, height, entries)) in items.into_iter().enumerate() {
        let written = &page[header + at * bytes..];
        let fields =
            [("root.block", block), ("root.crc", crc), ("root.height", height), ("entries", entries)];
        for (field, expected) in fields {
            assert_eq!(number(written, item[field]), expected, "{field} of layer {at}");
        }
    }
    let frontier = header + 3 * bytes;
    assert_eq!(page[frontier..][..17], *b"default\0photos/17");
    assert!(page[frontier + 17..].iter().all(|&byte| byte == 0));
    assert!(doc.contains(&format!("at most {LAYERS_MAX} |")) && doc.contains("exactly 8 bytes"));
    assert_eq!(tombstone(Lsn(9)), 9_u64.to_le_bytes());
}

#[test]
fn batch_layout_matches_document() {
    let doc = include_str!("../../../docs/format/log.md");
    let (batch, record) = (table(doc, "batch"), table(doc, "record"));
    let encoded = encode_record(RecordKind::Delete, TabletId(3), b"key", &[], false);
    let mut builder = BatchBuilder::new(encoded.bytes.len());
    builder.push(&encoded.bytes);
    let header = BatchHeader {
        epoch: 2,
        position: 3,
        blocks: 1,
        records: 1,
        first_lsn: Lsn(5),
        durable_lsn: Lsn(4),
        superblock: 6,
        stamp: BatchTimes::Now { store_ns: 7, wall_ns: 9 },
        chain: 8,
        record_bytes: encoded.bytes.len() as u32,
    };
    let (buf, crc) = builder.finish(&header, 1);
    for (field, expected) in [
        ("crc", u64::from(crc)),
        ("magic", 0x4841_4253),
        ("epoch", 2),
        ("position", 3),
        ("blocks", 1),
        ("records", 1),
        ("first_lsn", 5),
        ("durable_lsn", 4),
        ("superblock", 6),
        ("store_time", 7),
        ("wall_time", 9),
        ("chain", 8),
        ("record_bytes", encoded.bytes.len() as u64),
    ] {
        assert_eq!(number(&buf, batch[field]), expected, "{field}");
    }
    assert_eq!(batch["wall_time"].0 + batch["wall_time"].1, BATCH_HEADER_BYTES);
    let bytes = &buf[BATCH_HEADER_BYTES..];
    for (field, expected) in
        [("bytes", encoded.bytes.len() as u64 - 4), ("kind", 2), ("flags", 0), ("tablet", 3)]
    {
        assert_eq!(number(bytes, record[field]), expected, "{field}");
    }
    assert_eq!(Reader::new(&bytes[12..]).prefixed(), Ok(&b"key"[..]));
    let adopts = RecordPlace { continues: true, adopts: true };
    for (kind, flags) in [(RecordKind::Put, 1 << 1 | 1 << 4), (RecordKind::Delete, 1 << 1 | 1 << 5)] {
        let placed = encode_placed(kind, TabletId(3), b"key", &[], adopts);
        assert_eq!(number(&placed.bytes, record["flags"]), flags, "{kind:?}");
    }
}

#[test]
fn manifest_layout_matches_document() {
    let rows = table(include_str!("../../../docs/format/object.md"), "manifest");
    let (bytes, _) = Manifest { runs: vec![Run::new(9, 16)], checksums: vec![1, 2] }.encode();
    assert_eq!(number(&bytes, rows["magic"]), 0x464E_4D53);
    assert_eq!((number(&bytes, (8, 4)), number(&bytes, (12, 8)), number(&bytes, (20, 4))), (2, 9, 16));
    assert_eq!(bytes.len(), 12 + 12 + 8);
}

#[test]
fn bucket_record_layout_matches_document() {
    let rows = table(include_str!("../../../docs/format/object.md"), "bucket");
    let mut config = BucketConfig {
        created_ns: 0x0102_0304_0506_0708,
        has_crc_etags: true,
        has_object_acls: true,
        ..BucketConfig::default()
    };
    config.items.set(1, Some(b"key"));
    let bytes = config.encode().unwrap();
    for (field, expected) in [("version", 1), ("flags", 1 << 3 | 1 << 5), ("created", config.created_ns)] {
        assert_eq!(number(&bytes, rows[field]), expected, "{field}");
    }
    assert_eq!(&bytes[10..], b"\x01\x03key");
    assert_eq!(BucketConfig::decode(&bytes), Ok(config));
}

/// The examples of the document.
#[test]
fn metadata_with_attributes_matches_document() {
    let doc = include_str!("../../../docs/format/object.md");
    let shown = |bytes: &[u8]| {
        let text = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        assert!(doc.contains(&format!("`{text}`")), "the document does not show `{text}`");
    };
    let mut metadata = Metadata { content_type: "a/b".into(), ..Metadata::default() };
    metadata.attributes.set(Attributes::ETAG, Some(&[7, 7]));
    shown(&encode_metadata(&metadata).unwrap());
    // Tag and length of the other attribute take 3 bytes, and the longer length of all one more: 289.
    metadata.attributes.set(9, Some(&[0; 285]));
    let encoded = encode_metadata(&metadata).unwrap();
    let meta = place_of_metadata(10, &metadata, &encoded);
    let entry = Entry { modified_ns: 0, end: None, value_bytes: 1, meta, home: Home::Inline };
    let mut body = Vec::new();
    entry.encode(&mut body);
    // Flags, time of the write and length of the value.
    shown(&body[10..]);
}

#[test]
fn packed_run_layout_matches_document() {
    let doc = include_str!("../../../docs/format/packed.md");
    let tail = table(doc, "tail");
    let mut memory = vec![0; BLOCK_BYTES];
    let mut items = Vec::new();
    put_item(&mut items, b"default\0key", Lsn(7), 900);
    let owner = RunOwner { device: 0x0102_0304_0506_0708, tablet: TabletId(5), block: 6 };
    put_footer(&mut memory, 900, &items, 1, owner);
    let bytes = &memory[BLOCK_BYTES - 40..];
    for (field, expected) in [
        ("magic", 0x464B_5053),
        ("device", 0x0102_0304_0506_0708),
        ("block", 6),
        ("tablet", 5),
        ("zero", 0),
        ("values", 1),
        ("item_bytes", items.len() as u64),
        ("value_bytes", 900),
    ] {
        assert_eq!(number(bytes, tail[field]), expected, "{field}");
    }
    assert_eq!(tail["value_bytes"].0 + tail["value_bytes"].1, 40);
    // An item: key, version, bytes.
    assert_eq!(items, [&[11][..], b"default\0key", &7_u64.to_le_bytes(), &[0x84, 0x07]].concat());
    assert_eq!(memory[BLOCK_BYTES - 40 - items.len()..BLOCK_BYTES - 40], items);
    assert!(Footer::decode(&memory, owner).is_ok());

    // The liveness of a run.
    assert_eq!(run_key(0x0102)[..], [0xFF, b'r', 0, 0, 0, 0, 0, 0, 1, 2]);
    let entry = RunEntry {
        blocks: 256,
        values: 3,
        value_bytes: 700,
        live_values: 2,
        live_bytes: 500,
        uncertain: true,
        fixed: true,
    };
    let mut bytes = Vec::new();
    entry.encode(&mut bytes);
    assert_eq!(bytes, [3, 0x80, 0x02, 3, 0xBC, 0x05, 2, 0xF4, 0x03]);
}
