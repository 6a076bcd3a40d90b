//! Shared by the engine's tests: a tiny store whose rare paths are common.
//!
//! This file makes and opens stores. [`objects`] writes and reads by name, [`oracle`] drives a store and the model side by side,
//! [`checked`] has the reports of `check`, [`transacted`] has transactions in short form. This module re-exports their items. (Helpers that
//! do not depend on the engine are in `shoal-testkit`.)

mod checked;
mod objects;
mod oracle;
mod transacted;

use std::sync::Arc;

use shoal_base::{Clock, Entropy, ManualClock, SeededEntropy};
use shoal_device::{BlockDevice, Device, MemDevice, Op, Submission};
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{Environment, FormatOptions, OpenOptions, Result, Store, Tuning, block_on};
use shoal_testkit::device::{Intercept, Intercepted};
use shoal_testkit::lab;

pub(crate) use checked::{acknowledged, assert_clean, check_clean, checked, is_clean, repaired, rot_newest};
pub(crate) use objects::{
    ByName, fill, flat_name, key, long_life, name_in_folder, name_in_image, names_of, with_metadata,
};
pub(crate) use oracle::{
    judge_listing, marked_step, observe_all, perform, read, recover_all, rules, step, works_on,
};
pub(crate) use transacted::{change_to, count_once, delete_once, once, put_once, transact, update};

/// Elapsed time does not advance, and every reading of the wall clock is days ahead or back of the previous one: no result of these tests
/// may depend on it (R18).
struct Jumping {
    steady: ManualClock,
    dice: SeededEntropy,
}

impl Clock for Jumping {
    fn wall_ns(&self) -> u64 {
        const BEGIN_NS: u64 = 1_000_000_000_000_000_000;
        const DAYS_NS: u64 = 60 * 86_400 * 1_000_000_000;
        BEGIN_NS + self.dice.next_u64() % DAYS_NS
    }

    fn monotonic_ns(&self) -> u64 {
        self.steady.monotonic_ns()
    }

    fn boot_ns(&self) -> u64 {
        self.steady.boot_ns()
    }

    fn boot_id(&self) -> [u8; 16] {
        self.steady.boot_id()
    }
}

pub(crate) fn environment(seed: u64) -> Environment {
    let clock = Jumping { steady: ManualClock::new(1_000), dice: SeededEntropy::new(seed) };
    Environment { clock: Arc::new(clock), entropy: Arc::new(SeededEntropy::new(seed)) }
}

/// Returns an environment with this clock, which the test moves.
pub(crate) fn environment_at(clock: &Arc<ManualClock>) -> Environment {
    Environment { clock: clock.clone(), entropy: Arc::new(SeededEntropy::new(3)) }
}

/// Sizes so small that a handful of operations crosses freezes, applies, publishes, a turn of the log, layers and their compactions. If the
/// variable LAB_LAYERS is 0, the trees have no layers, like those of small stores.
pub(crate) fn tiny() -> OpenOptions {
    if lab::number("LAYERS", 1) == 0 { tiny_without_layers() } else { tiny_with_layers() }
}

/// Sizes so small that trees get layers at once, regardless of LAB_LAYERS.
pub(crate) fn tiny_with_layers() -> OpenOptions {
    let mut options = tiny_without_layers();
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 4, 1);
    (tuning.merge_permille, tuning.merge_slice_bytes) = (700, 2 << 10);
    options
}

/// The same for trees without layers, like those of small stores.
pub(crate) fn tiny_without_layers() -> OpenOptions {
    OpenOptions {
        cache_bytes: 256 << 10,
        memtable_bytes: Some(24 << 10),
        background: false,
        tuning: Tuning {
            leaf_value_bytes_max: 100,
            log_value_bytes_max: 2_000,
            batch_bytes_max: 16 << 10,
            memtable_records_max: 8,
            lend_bytes_min: 0,
            apply_bytes_in_flight: 64 << 10,
            growth_blocks: 64,
            // The cache is made at once. Under shuttle each of its atomics costs a hundred nanoseconds and more, in each schedule.
            read_cache_bytes: 16 << 10,
            ..Tuning::default()
        },
        ..OpenOptions::default()
    }
}

/// Sizes as [`tiny`], with memtables of `records` records: with few of them the writers also apply and publish.
pub(crate) fn tiny_with_memtables(records: usize) -> OpenOptions {
    let mut options = tiny();
    options.tuning.memtable_records_max = records;
    options
}

pub(crate) fn tiny_format(blocks: u64) -> FormatOptions {
    FormatOptions { tablets: 2, log_blocks: Some(24), ..FormatOptions::for_blocks(blocks) }
}

/// Sizes as [`tiny`], with batches of the log that hold a few small records.
pub(crate) fn short_batches() -> OpenOptions {
    let mut options = tiny();
    options.tuning.batch_bytes_max = 1 << 10;
    options
}

/// Sizes as [`tiny`], with the store's background threads.
pub(crate) fn tiny_with_threads() -> OpenOptions {
    OpenOptions { background: true, ..tiny() }
}

pub(crate) fn format(device: &Device, blocks: u64, seed: u64) {
    format_as(device, &tiny_format(blocks), seed);
}

/// Makes an empty store of this layout.
pub(crate) fn format_as(device: &Device, layout: &FormatOptions, seed: u64) {
    block_on(Store::format(device, layout, &environment(seed))).unwrap();
}

pub(crate) fn device(sim: &Arc<SimDevice>) -> Device {
    Device::new(sim.clone())
}

/// Returns a simulated device with an empty store. The writes of its formatting are in the device's history.
pub(crate) fn formatted(blocks: u64, seed: u64) -> Arc<SimDevice> {
    let sim = SimDevice::new(blocks);
    format(&device(&sim), blocks, seed);
    sim
}

/// Returns an in-memory device with an empty store.
pub(crate) fn memory(blocks: u64) -> Device {
    let device = Device::new(Arc::new(MemDevice::new(blocks)));
    format(&device, blocks, 1);
    device
}

/// Returns a device with an empty store, and without a history.
pub(crate) fn blank(blocks: u64, seed: u64) -> (Arc<SimDevice>, Device) {
    let (sim, device) = quiet(&Image::new(blocks));
    format(&device, blocks, seed);
    (sim, device)
}

/// Returns a device with this image, and without a history.
pub(crate) fn quiet(image: &Image) -> (Arc<SimDevice>, Device) {
    let sim = shoal_testkit::device::quiet(image.clone());
    (sim.clone(), Device::new(sim))
}

pub(crate) fn open(device: &Device, options: OpenOptions) -> Result<Store> {
    block_on(Store::open(device.clone(), options, environment(99)))
}

/// Opens a store in real time.
pub(crate) fn open_in_real_time(device: &Device, options: OpenOptions) -> Store {
    block_on(Store::open(device.clone(), options, Environment::default())).unwrap()
}

/// Opens a store with this clock.
pub(crate) fn open_at(device: &Device, options: OpenOptions, clock: &Arc<ManualClock>) -> Result<Store> {
    block_on(Store::open(device.clone(), options, environment_at(clock)))
}

/// A device that fails every request but a read.
pub(crate) struct Unwritable(Arc<SimDevice>);

impl Unwritable {
    pub(crate) fn of(image: &Image) -> Device {
        Intercepted::new(Self(shoal_testkit::device::quiet(image.clone()))).1
    }
}

impl Intercept for Unwritable {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        for submission in &submissions {
            assert_eq!(
                submission.op(),
                Op::Read,
                "block {} of a store that is open read-only",
                submission.block()
            );
        }
        submissions
    }

    fn grow(&self, blocks: u64) -> std::io::Result<()> {
        panic!("a store that is open read-only asks for {blocks} blocks")
    }

    fn can_grow(&self) -> bool {
        true
    }
}

/// Opens `image` read-only, on a device that allows only reads.
pub(crate) fn open_read_only(image: &Image, options: OpenOptions) -> Result<Store> {
    open(&Unwritable::of(image), OpenOptions { read_only: true, ..options })
}
