//! Device contents written by an attacker (T13 of `docs/reliability.md`): superblocks, log, space image and pages with arbitrary changes of
//! fields. Nothing panics, hangs or allocates memory for an announced length alone, and a repair continues.
//!
//! Checksums would refuse nearly all of it, so a build with `--cfg fuzzing` has none (`shoal_base::checksum`): there the decoders get no
//! help. Otherwise the same trials pass through the checksums. `RUSTFLAGS="--cfg fuzzing" cargo test --release -p shoal-engine --test store
//! hostile`, in a separate target folder.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use shoal_base::{BLOCK_BYTES, Entropy, SeededEntropy};
use shoal_device::Device;
use shoal_device_sim::Image;
use shoal_engine::{ListRequest, OpenOptions, Store, block_on};
use shoal_testkit::Value;
use shoal_testkit::lab;
use shoal_testkit::wait::HANGS_AFTER;

use crate::common::{ByName, blank, is_clean, name_in_image as name, open, quiet, repaired, tiny};

const BLOCKS: u64 = 192;
const OBJECTS: u64 = 30;
/// The regions that are changed.
const REGIONS: [(&str, Range<u64>); 4] =
    [("superblock", 0..34), ("log", 34..58), ("space", 58..106), ("page", 106..BLOCKS)];

/// A store of every kind of structure: trees of two levels, packed runs, extents, a manifest, a log that is not applied.
fn base() -> Image {
    let (sim, device) = blank(BLOCKS, 23);
    let store = open(&device, tiny()).unwrap();
    let sizes = [20, 90, 300, 1_900, 0, 700, 5_000];
    for which in 0..OBJECTS {
        let value = Value { key: which, seed: which, bytes: sizes[(which % 7) as usize] };
        store.set(name(which), value.to_vec()).unwrap();
    }
    let large = Value { key: 40, seed: 40, bytes: 140_000 };
    store.set(name(40), large.to_vec()).unwrap();
    store.remove(name(3)).unwrap();
    drop(store);
    sim.image()
}

/// Changes some fields of some blocks.
fn change(image: &mut Image, region: &Range<u64>, dice: &SeededEntropy) {
    let used: Vec<u64> =
        region.clone().filter(|&block| image.block(block).iter().any(|&byte| byte != 0)).collect();
    for _ in 0..1 + dice.below(4) {
        let block = used[dice.below(used.len() as u64) as usize];
        let mut bytes = *image.block(block);
        // Headers more often than the bytes after them.
        let end = [64, 320, BLOCK_BYTES as u64][dice.below(3) as usize];
        let at = dice.below(end) as usize;
        let interesting =
            [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 52, 1 << 63, u64::MAX];
        let (value, width) = match dice.below(4) {
            0 => (u64::from(bytes[at] ^ (1 << dice.below(8))), 1),
            1 => (dice.next_u64(), 1 << dice.below(4)),
            2 => (interesting[dice.below(interesting.len() as u64) as usize], 1 << dice.below(4)),
            // A little more or less than the current value.
            _ => (u64::from(bytes[at]).wrapping_add(dice.below(5)).wrapping_sub(2), 1),
        };
        let width = width.min(BLOCK_BYTES - at);
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        image.write(block, &bytes);
    }
}

/// Runs every reader of stored data, and writes if a check finds no problem (`crates/engine/src/testing/hostile/mod.rs` has the reason).
fn use_it(device: &Device, options: OpenOptions, is_clean: bool) {
    let Ok(store) = open(device, options) else { return };
    read(&store);
    if !is_clean {
        let _ = block_on(store.scrub());
        return;
    }
    let value = Value { key: 1, seed: 99, bytes: 1_500 }.to_vec();
    for which in 0..12 {
        // Errors are fine.
        let _ = store.set(name(which), value.clone());
    }
    let _ = block_on(store.scrub());
    read(&store);
    let _ = block_on(store.close());
}

fn read(store: &Store) {
    for which in (0..OBJECTS).chain([40]) {
        let _ = store.find(name(which)).map(|object| object.map(|it| it.value.to_vec()));
    }
    let request = ListRequest { bucket: "default".into(), limit: 100, ..ListRequest::default() };
    let _ = block_on(store.list(&request));
}

fn trial(image: &Image) {
    let device = quiet(image).1;
    use_it(&device, tiny(), is_clean(&device));
    let device = quiet(image).1;
    let _ = repaired(&device);
    use_it(&device, OpenOptions { accept_damaged_log: true, ..tiny() }, is_clean(&device));
}

#[test]
fn nothing_panics() {
    let (base, began) = (base(), Instant::now());
    let count = lab::number("HOSTILE", 300);
    let longest = AtomicU64::new(0);
    lab::on_all_cores(count, |number| {
        let seed = number + lab::number("SEED", 1) * 1_000_000_000;
        let dice = SeededEntropy::new(seed);
        let (region, blocks) = &REGIONS[(number % REGIONS.len() as u64) as usize];
        let mut image = base.clone();
        change(&mut image, blocks, &dice);
        let started = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| trial(&image))).is_err() {
            panic!("{region}, trial {number} of seed {}: a panic", lab::number("SEED", 1));
        }
        let took = started.elapsed();
        longest.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
        assert!(took < HANGS_AFTER, "{region}, trial {number}: {took:?}");
    });
    println!("{count} trials in {:?}; the longest took {} us", began.elapsed(), longest.into_inner());
}
