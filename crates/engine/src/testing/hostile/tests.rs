//! The stored corpora and mutants of them, with corrected checksums: every find of a fuzzer is tested again, without a fuzzer.
//!
//! `HOSTILE_SEEDS=FOLDER` writes the seeds, one folder a target; fuzzers start from them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use shoal_base::{BLOCK_BYTES, Entropy, Lsn, Run, SeededEntropy, TabletId};
use shoal_common::object::{EndTime, Metadata};
use shoal_device::Device;
use shoal_device_sim::SimDevice;
use shoal_image::features::{Features, MOVED_AREAS};
use shoal_image::losses::Losses;
use shoal_image::superblock::Superblock;
use shoal_log::format::{BatchBuilder, BatchHeader, BatchTimes, RecordKind, encode_record};
use shoal_log::{ClockRecord, WallMark};
use shoal_space::{Delta, FreeImage};
use shoal_testkit::wait::HANGS_AFTER;
use shoal_testkit::{corpus, lab};
use shoal_value::packed::{RunEntry, RunOwner, put_footer, put_item};
use shoal_value::{Entry, Home, Manifest, Meta, encode_metadata};
use smallvec::SmallVec;

use super::limit::ALLOCATION_BYTES_MAX;
use super::{BASE, GROWN, OBJECTS, OF_GROWN, TARGETS, environment, key, options, quiet};
use crate::{ByteRange, CheckOptions, Store, block_on};

/// The duration of the mutants of each target: the laboratory's HOSTILE_MS, or a moment.
fn mutants_for() -> Duration {
    Duration::from_millis(lab::number("HOSTILE_MS", 250))
}

fn trimmed(block: &[u8]) -> Vec<u8> {
    let end = block.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    block[..end].to_vec()
}

fn piece(how: u8, bytes: &[u8]) -> Vec<u8> {
    let bytes = trimmed(bytes);
    [&(bytes.len() as u16).to_le_bytes()[..], &[how], &bytes].concat()
}

/// Pages of the trees of the small store.
fn pages() -> Vec<Vec<u8>> {
    let image = &BASE.0;
    let is_page = |block: &&[u8; BLOCK_BYTES]| block[4..6] == *b"Sp";
    (BASE.1.layout.data_first()..image.blocks())
        .map(|block| image.block(block))
        .filter(is_page)
        .map(|block| trimmed(block))
        .collect()
}

fn entries() -> Vec<Entry> {
    let entry = |value_bytes, home| Entry {
        modified_ns: 5,
        end: [None, Some(EndTime::Wall(77)), Some(EndTime::Store(78))][(value_bytes % 3) as usize],
        value_bytes,
        meta: match value_bytes {
            ..=2_000 => Meta::Inline(SmallVec::new()),
            2_001..=100_000 => Meta::InFront { bytes: 300, summary: SmallVec::new() },
            _ => Meta::InFront { bytes: 300, summary: SmallVec::from_slice(&[1, 2, 7, 7, 2, 1, 5]) },
        },
        home,
    };
    let runs = |runs: &[Run]| SmallVec::from_slice(runs);
    let checksums: SmallVec<[u32; 4]> = SmallVec::from_slice(&[1, 2]);
    vec![
        entry(3, Home::Inline),
        entry(900, Home::Packed { run: 10, at: 5_000, checksum: 9 }),
        entry(
            70_001,
            Home::Extents { offset: 0, runs: runs(&[Run::new(3, 16), Run::new(30, 3)]), checksums },
        ),
        entry(500_000, Home::Manifest { runs: runs(&[Run::new(9, 1)]), bytes: 100, checksum: 3 }),
    ]
}

fn body(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    entry.encode(&mut bytes);
    if entry.home == Home::Inline {
        bytes.extend_from_slice(b"abc");
    }
    bytes
}

fn batch(records: &[(RecordKind, Vec<u8>)]) -> Vec<u8> {
    let encoded: Vec<_> = (0..)
        .zip(records)
        .map(|(which, (kind, body))| {
            let key = key(which).unwrap();
            encode_record(*kind, TabletId(which as u16 % 2), key.encoded(), &[body], which == 0)
        })
        .collect();
    let record_bytes = encoded.iter().map(|record| record.bytes.len()).sum::<usize>();
    let mut builder = BatchBuilder::new(record_bytes);
    encoded.iter().for_each(|record| builder.push(&record.bytes));
    let header = BatchHeader {
        epoch: BASE.1.epoch,
        position: 0,
        blocks: builder.blocks(),
        records: encoded.len() as u32,
        first_lsn: Lsn(1),
        durable_lsn: Lsn(0),
        superblock: BASE.1.number,
        stamp: BatchTimes::Now { store_ns: 9, wall_ns: 0 },
        chain: 0,
        record_bytes: record_bytes as u32,
    };
    builder.finish(&header, BASE.1.log_seed).0.to_vec()
}

fn logs() -> Vec<Vec<u8>> {
    let puts: Vec<_> = entries().iter().map(|entry| (RecordKind::Put, body(entry))).collect();
    let deletes = [(RecordKind::Delete, Vec::new()), (RecordKind::Delete, Vec::new())];
    let both = [piece(0, &batch(&puts[..1])), piece(0, &batch(&deletes)), piece(0, &batch(&puts))].concat();
    vec![piece(0, &batch(&deletes)), both]
}

/// The superblock: unchanged, of the previous version, with all fields set that are zero in a new store, and of a store that grew.
fn superblock_seeds() -> Vec<Vec<u8>> {
    let base = &BASE.1;
    let older = Superblock { version: 2, ..base.clone() };
    let mark = |wall_ns, lsn| WallMark { wall_ns, lsn: Lsn(lsn) };
    let clock = ClockRecord {
        store_ns: 5,
        wall_ns: 6,
        boot_ns: 7,
        boot_id: [8; 16],
        marks: vec![mark(4_000, 1), mark(3_000, 9)],
    };
    let losses = Losses { since_number: 1, lost: 2, reverted: 3, resurrected: 4 };
    let features = Features { compatible: 1, read_only: 0, incompatible: 0 };
    let full = Superblock { clock, losses, features, ..base.clone() };
    [base, &older, &full, &GROWN.1].map(|it| trimmed(&it.encode()[..BLOCK_BYTES - 4])).to_vec()
}

fn space_images() -> Vec<Vec<u8>> {
    [(&BASE.1, 0), (&GROWN.1, OF_GROWN)].map(|(base, bit)| space_images_of(base, bit)).concat()
}

fn space_images_of(base: &Superblock, bit: u8) -> Vec<Vec<u8>> {
    let mut image = FreeImage::new(base.layout.blocks_max, base.layout.group_blocks);
    (0..20).for_each(|run| image.free(Run::new(100 + run * 3, 2)).unwrap());
    let snapshot = image.snapshot(base.identity, base.number).next().unwrap().bytes;
    let delta = Delta::new(base.number + 1, &[Run::new(100, 1)], &[Run::new(70, 5)]).unwrap();
    let delta = piece(0, &delta.encode(&base.identity));
    vec![
        [&[bit | 2, 1, 1, 1][..], &piece(0, &snapshot), &delta].concat(),
        [&[bit | 1, 1, 1, 0][..], &piece(0, &snapshot)].concat(),
    ]
}

fn packed_runs() -> Vec<Vec<u8>> {
    let mut memory = vec![0; BLOCK_BYTES];
    let mut items = Vec::new();
    put_item(&mut items, b"default\0key", Lsn(7), 900);
    put_item(&mut items, b"default\0key-2", Lsn(8), 90);
    let owner = RunOwner { device: 3, tablet: TabletId(5), block: 6 };
    put_footer(&mut memory, 990, &items, 2, owner);
    let mut entry = Vec::new();
    RunEntry {
        blocks: 1,
        values: 2,
        value_bytes: 990,
        live_values: 1,
        live_bytes: 90,
        ..RunEntry::default()
    }
    .encode(&mut entry);
    vec![memory[BLOCK_BYTES - 40 - items.len()..].to_vec(), entry]
}

fn value_headers() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = entries().iter().map(body).collect();
    let user = vec![("name".to_owned(), b"value".to_vec().into())];
    let mut metadata = Metadata { content_type: "text/plain".into(), user, ..Metadata::default() };
    all.push(encode_metadata(&metadata).unwrap());
    metadata.attributes.set(1, Some(&[7; 16]));
    metadata.attributes.set(9, Some(b"tags"));
    all.push(encode_metadata(&metadata).unwrap());
    all.push(Manifest { runs: vec![Run::new(9, 16), Run::new(40, 2)], checksums: vec![1, 2] }.encode().0);
    // A length that overflows when the length of the metadata before it is added.
    let huge = Entry {
        value_bytes: u64::MAX,
        meta: Meta::InFront { bytes: 300, summary: SmallVec::new() },
        ..entries().swap_remove(2)
    };
    all.push(body(&huge));
    all
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "superblock" => superblock_seeds(),
        "page" => pages(),
        "log" => logs(),
        "space_image" => space_images(),
        "packed_run" => packed_runs(),
        "value_header" => value_headers(),
        _ => panic!("no seeds for {target}"),
    }
}

/// A few random changes: fields of one to eight bytes, cuts, copies of parts.
fn mutate(input: &mut Vec<u8>, dice: &SeededEntropy) {
    const INTERESTING: [u64; 9] = [0, 1, 0x7F, 0x80, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 63, u64::MAX];
    for _ in 0..1 + dice.below(3) {
        if input.is_empty() {
            input.push(0);
        }
        let at = dice.below(input.len() as u64) as usize;
        let width = (1 << dice.below(4)).min(input.len() - at);
        let value = match dice.below(5) {
            0 => u64::from(input[at] ^ (1 << dice.below(8))),
            1 => dice.next_u64(),
            2 => INTERESTING[dice.below(INTERESTING.len() as u64) as usize],
            3 => u64::from(input[at]).wrapping_add(dice.below(5)).wrapping_sub(2),
            _ => {
                if dice.below(2) == 0 {
                    input.truncate(at);
                } else {
                    let part = input[at..(at + 64).min(input.len())].to_vec();
                    input.splice(at..at, part);
                }
                continue;
            }
        };
        input[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

fn attack(target: &str) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let seeds = seeds(target);
    if let Some(folder) = std::env::var_os("HOSTILE_SEEDS") {
        let folder = Path::new(&folder).join(target);
        fs::create_dir_all(&folder).unwrap();
        (0..)
            .zip(&seeds)
            .for_each(|(number, seed)| fs::write(folder.join(format!("seed-{number}")), seed).unwrap());
    }
    let stored: Vec<_> = corpus::read(target).into_iter().map(|(_, input)| input).collect();
    assert!(!stored.is_empty() && !seeds.is_empty(), "{target} has a corpus");
    let all: Vec<&Vec<u8>> = seeds.iter().chain(&stored).collect();
    all.iter().for_each(|input| run(input));
    let (began, mut number) = (Instant::now(), 0);
    while began.elapsed() < mutants_for() {
        let seed = lab::number("SEED", 1) << 40 | number;
        let dice = SeededEntropy::new(seed);
        let mut input = all[dice.below(all.len() as u64) as usize].clone();
        mutate(&mut input, &dice);
        let (shown, started) = (input.clone(), Instant::now());
        let outcome = std::panic::catch_unwind(move || run(&shown));
        assert!(outcome.is_ok(), "{target}, mutant {seed}: a panic; the input is {}", input.escape_ascii());
        assert!(started.elapsed() < HANGS_AFTER, "{target}, mutant {seed}: {:?}", started.elapsed());
        number += 1;
    }
    println!(
        "{target}: {} stored inputs, {number} mutants in {:.1} s",
        all.len(),
        began.elapsed().as_secs_f64()
    );
}

/// The base of a store that grew is valid: its areas are among the data, and readers and writers accept it unchanged.
#[test]
fn a_store_that_grew_is_a_base() {
    let (image, superblock) = &*GROWN;
    assert_eq!(superblock.features.incompatible & MOVED_AREAS, MOVED_AREAS);
    assert_eq!(superblock.layout.areas_in_data().count(), 2);
    let device = Device::new(SimDevice::with_options(image.clone(), quiet()));
    let report = block_on(crate::check(device.clone(), &CheckOptions::default())).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let store = block_on(Store::open(device, options(false), environment())).unwrap();
    for which in 0..OBJECTS {
        assert!(block_on(store.get(&key(which).unwrap(), ByteRange::ALL)).unwrap().is_some());
    }
}

/// Targets outside of the engine.
const OTHERS: [&str; 2] = ["archive", "resp_requests"];

#[test]
fn every_target_has_a_fuzzer_and_every_fuzzer_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
    let stem = |path: std::path::PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut files: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|file| stem(file.unwrap().path())).collect();
    let mut targets: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).chain(OTHERS).collect();
    files.sort();
    targets.sort_unstable();
    assert_eq!(files, targets);
    for (name, _) in TARGETS {
        let source = fs::read_to_string(folder.join(format!("{name}.rs"))).unwrap();
        assert!(source.contains(&format!("shoal_engine::hostile::{name}(input)")), "{name}: {source}");
    }
}

#[test]
fn no_allocation_is_larger_than_the_limit() {
    let mut bytes: Vec<u8> = Vec::new();
    assert!(bytes.try_reserve_exact(ALLOCATION_BYTES_MAX + 1).is_err());
    assert!(bytes.try_reserve_exact(ALLOCATION_BYTES_MAX).is_ok());
    assert!(bytes.try_reserve_exact(ALLOCATION_BYTES_MAX + 1).is_err(), "growing, too");
}

#[test]
fn superblocks() {
    attack("superblock");
}

#[test]
fn pages_of_trees() {
    attack("page");
}

#[test]
fn logs_of_batches() {
    attack("log");
}

#[test]
fn images_of_space() {
    attack("space_image");
}

#[test]
fn runs_of_packed_values() {
    attack("packed_run");
}

#[test]
fn headers_of_values() {
    attack("value_header");
}
