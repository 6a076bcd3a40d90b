//! Hostile contents of each structure on the device (T13): the functions that fuzzers and replayed corpora call, one for each format.
//!
//! An input replaces the structure, its checksums are corrected (a wrong checksum would hide all code after its check from the fuzzer), and
//! every reader of the structure reads it. Nothing may panic, hang or allocate memory for data that is only announced, and a structure that
//! was decoded must be the same when it is encoded again. Built for tests and with `--cfg fuzzing` only; the product has none of it.

#![allow(missing_docs)] // The names are sufficient, and only fuzzers call them.

#[cfg(test)]
mod child;
#[cfg(test)]
mod forged_tests;
mod layout;
mod limit;
#[cfg(test)]
mod tests;
mod values;

use std::sync::{Arc, LazyLock};

use shoal_base::checksum::crc32c;
use shoal_base::{BLOCK_BYTES, Lsn, ManualClock, SeededEntropy};
use shoal_common::options::Tuning;
use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice, SimOptions};
use shoal_image::copies::{FoundCopies, read_newest};
use shoal_image::features::{Features, MOVED_AREAS};
use shoal_image::superblock::{SpacePlace, Superblock};
use shoal_log::LogPlace;

use crate::{
    ByteRange, CheckOptions, Environment, FormatOptions, ListRequest, ObjectKey, OpenOptions, PutOptions,
    Store, block_on,
};

/// The name of a structure, and the function that tries hostile bytes of it.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// All targets; each has a libFuzzer target of its name in `fuzz/`, and a corpus there.
pub const TARGETS: [FuzzTarget; 6] = [
    ("superblock", superblock),
    ("page", page),
    ("log", log),
    ("space_image", space_image),
    ("packed_run", packed_run),
    ("value_header", value_header),
];

/// Blocks of the store that takes the hostile structures.
const BLOCKS: u64 = 192;
/// Blocks of the store that grew.
const GROWN_BLOCKS: u64 = 400;
/// A bit of a space image's place: it selects the store that grew.
const OF_GROWN: u8 = 1 << 7;
const SUPERBLOCK_CRC_AT: usize = BLOCK_BYTES - 4;
/// Objects of that store.
const OBJECTS: u64 = 12;

/// A small store: an image, and its newest superblock.
static BASE: LazyLock<(Image, Superblock)> = LazyLock::new(|| small_store(BLOCKS, None));

/// The same store after it grew: areas of its space image are among the data.
static GROWN: LazyLock<(Image, Superblock)> = LazyLock::new(|| small_store(GROWN_BLOCKS, Some(GROWN_BLOCKS)));

/// The base of a superblock with these features.
fn base_of(features: Features) -> &'static (Image, Superblock) {
    if features.incompatible & MOVED_AREAS == 0 { &BASE } else { &GROWN }
}

/// A store of [`BLOCKS`] blocks on a device of `device_blocks`, which grows before it gets its objects.
fn small_store(device_blocks: u64, grow_to: Option<u64>) -> (Image, Superblock) {
    let sim = SimDevice::with_options(Image::new(device_blocks), quiet());
    let device = Device::new(sim.clone());
    let format = FormatOptions { tablets: 2, log_blocks: Some(16), ..FormatOptions::for_blocks(BLOCKS) };
    let newest = block_on(async {
        Store::format(&device, &format, &environment()).await?;
        let options = OpenOptions { grow_to, ..options(false) };
        let store = Store::open(device.clone(), options, environment()).await?;
        for which in 0..OBJECTS {
            let value = vec![which as u8; [20, 500, 3_000][(which % 3) as usize]];
            store.put(&key(which)?, value.into(), PutOptions::default()).await?;
        }
        store.0.checkpointer.apply_all().await?;
        store.close().await?;
        read_newest(&device).await
    });
    match newest {
        Ok(FoundCopies::Newest(superblock)) => (sim.image(), *superblock),
        Ok(FoundCopies::Nothing) => unreachable!("a new store has a superblock"),
        Err(error) => unreachable!("a store in memory: {error}"),
    }
}

fn quiet() -> SimOptions {
    SimOptions { record: false, ..SimOptions::default() }
}

fn environment() -> Environment {
    Environment { clock: Arc::new(ManualClock::new(1_000)), entropy: Arc::new(SeededEntropy::new(5)) }
}

fn options(accept_damaged_log: bool) -> OpenOptions {
    OpenOptions {
        cache_bytes: 256 << 10,
        memtable_bytes: Some(16 << 10),
        background: false,
        accept_damaged_log,
        tuning: Tuning {
            leaf_value_bytes_max: 100,
            memtable_records_max: 8,
            lend_bytes_min: 0,
            ..Tuning::default()
        },
        ..OpenOptions::default()
    }
}

fn key(which: u64) -> crate::Result<ObjectKey> {
    ObjectKey::new("default", format!("object-{which}").as_bytes())
}

/// Runs every reader of stored data, before and after a repair, and writes if a check finds no problem. Errors are fine, panics are not. If
/// trees and space image contradict each other under valid checksums, a block that is free already stays free, and the log has an error.
fn use_store(image: &Image) {
    for repair in [false, true] {
        let device = Device::new(SimDevice::with_options(image.clone(), quiet()));
        let check = |repair| {
            let options = CheckOptions { repair, cache_bytes: 256 << 10, ..CheckOptions::default() };
            block_on(crate::check(device.clone(), &options))
        };
        if repair {
            let _ = check(true);
        }
        let is_clean = check(false).is_ok_and(|report| report.is_clean());
        let Ok(store) = block_on(Store::open(device.clone(), options(repair), environment())) else {
            continue;
        };
        let _ = block_on(use_open(&store, is_clean));
        if is_clean {
            let _ = block_on(store.close());
        }
    }
}

async fn use_open(store: &Store, is_clean: bool) -> crate::Result<()> {
    for which in 0..OBJECTS {
        let _ =
            store.get(&key(which)?, ByteRange::ALL).await.map(|object| object.map(|it| it.value.to_vec()));
    }
    let request = ListRequest { bucket: "default".into(), limit: 100, ..ListRequest::default() };
    let _ = store.list(&request).await;
    let _ = store.scrub().await;
    if !is_clean {
        return Ok(());
    }
    for which in 0..OBJECTS {
        let _ = store.put(&key(which)?, vec![1; 200].into(), PutOptions::default()).await;
    }
    let _ = store.list(&request).await;
    Ok(())
}

/// The bytes of a superblock, from its first byte.
pub fn superblock(input: &[u8]) {
    let mut block = [0; BLOCK_BYTES];
    let bytes = input.len().min(SUPERBLOCK_CRC_AT);
    block[..bytes].copy_from_slice(&input[..bytes]);
    let crc = crc32c(&block[..SUPERBLOCK_CRC_AT]);
    block[SUPERBLOCK_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    let Some(superblock) = Superblock::decode(&block) else { return };
    assert_eq!(Superblock::decode(&superblock.encode()).as_ref(), Some(&superblock));
    let mut image = base_of(superblock.features).0.clone();
    shoal_image::layout::SUPERBLOCK_COPIES.as_flattened().iter().for_each(|&copy| image.write(copy, &block));
    use_store(&image);
}

/// The bytes of one page of a tree.
pub fn page(input: &[u8]) {
    shoal_tree::hostile_page(input);
}

/// Batches of the log, one piece each (see [`layout`]).
pub fn log(input: &[u8]) {
    let (mut image, base) = (BASE.0.clone(), &BASE.1);
    // A ring without earlier batches: numbers continue after the highest one of the trees.
    let first_lsn = Lsn(base.lsn_ceiling.0 + 1);
    let superblock = Superblock {
        number: base.number + 2,
        epoch_position: 0,
        durable_lsn: Lsn(first_lsn.0 - 1),
        log_tail: LogPlace { position: 0, chain: 0, first_lsn },
        ..base.clone()
    };
    let ring = layout::pieces(input, superblock.layout.log_blocks as usize);
    let bytes = layout::log_ring(ring, &superblock);
    layout::write(&mut image, superblock.layout.log_first(), &bytes);
    layout::write_superblock(&mut image, &superblock);
    use_store(&image);
}

/// The place of the space image (four bytes, [`OF_GROWN`] in the first one), then its pieces and deltas (see [`layout`]).
pub fn space_image(input: &[u8]) {
    let Some((place, input)) = input.split_first_chunk::<4>() else { return };
    let (image, base): &(Image, Superblock) = if place[0] & OF_GROWN == 0 { &BASE } else { &GROWN };
    let mut image = image.clone();
    let area = base.layout.space_area_blocks;
    let used_blocks = u32::from(place[0] & !OF_GROWN).min(area);
    let superblock = Superblock {
        number: base.number + 2,
        space: SpacePlace {
            area: 0,
            used_blocks,
            snapshot_blocks: u32::from(place[1]).min(used_blocks),
            snapshot_pieces: u32::from(place[2]),
            deltas: u32::from(place[3]),
            snapshot_number: base.number,
        },
        ..base.clone()
    };
    let bytes = layout::space_area(layout::pieces(input, area as usize));
    layout::write(&mut image, base.layout.space_area(0), &bytes);
    layout::write_superblock(&mut image, &superblock);
    use_store(&image);
}

/// The end of a packed run's memory, or its entry.
pub fn packed_run(input: &[u8]) {
    values::packed_run(input);
}

/// The entry of an object in a leaf or a log record, its metadata, or a manifest.
pub fn value_header(input: &[u8]) {
    values::header(input);
}
