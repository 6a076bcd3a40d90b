//! Every legal crash state of small workloads reopens to a state that the acknowledgements allow.
//!
//! The workloads overwrite, delete, use conditions, cross freezes, applies, publishes, the reuse of space between
//! tablets and turns of the log; some crash again during recovery. A failure prints the seed and the state.

use std::sync::Arc;

use std::sync::atomic::{AtomicI64, Ordering};

use shoal_device::{BlockDevice, Device, Submission};
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::Error;
use shoal_testkit::device::{Intercept, Intercepted};
use shoal_testkit::lab;
use shoal_testkit::wait::eventually;
use shoal_testkit::{Model, Value, Workload, WorkloadOptions};

use crate::common::{
    self, ByName, check_clean, checked, device, formatted, marked_step, observe_all, open, open_read_only,
    recover_all, rot_newest, step, tiny, tiny_with_memtables, works_on,
};

const BLOCKS: u64 = 320;

/// Runs a workload on a recording device; returns the models by mark: there is a mark before and after every operation.
fn run(seed: u64, operations: usize, sizes: Vec<usize>, keys: u64) -> (Arc<SimDevice>, Vec<Model>) {
    run_on(BLOCKS, seed, operations, sizes, keys)
}

fn run_on(
    blocks: u64,
    seed: u64,
    operations: usize,
    sizes: Vec<usize>,
    keys: u64,
) -> (Arc<SimDevice>, Vec<Model>) {
    // The writes of formatting are not tested here: record from the empty store.
    let sim = SimDevice::from_image(formatted(blocks, seed).image());
    let store = open(&Device::new(sim.clone()), tiny()).unwrap();
    let options = WorkloadOptions { keys, sizes, delete_percent: 20, condition_percent: 20 };
    let mut workload = Workload::new(seed, options);
    let mut model = Model::new();
    let mut models = vec![model.clone()];
    sim.mark(0);
    for _ in 0..operations {
        marked_step(&store, &sim, &mut workload, (&mut model, &mut models));
    }
    observe_all(&store, &mut model);
    drop(store);
    (sim, models)
}

/// Opens a crash state and compares it with the model of that moment. With `deep` it is first opened read-only, which must show the same
/// and write nothing; afterwards the ownership of every block is checked, and the store is written and opened again.
fn recovers(image: Image, model: &Model, deep: bool) -> Result<(), String> {
    let mut recovered = model.clone();
    if deep {
        let store =
            open_read_only(&image, tiny()).map_err(|error| format!("did not open read-only: {error}"))?;
        recover_all(&store, &mut recovered).map_err(|violation| format!("read-only: {violation}"))?;
    }
    let sim = SimDevice::from_image(image);
    let device = Device::new(sim.clone());
    let store = open(&device, tiny()).map_err(|error| format!("did not open: {error}"))?;
    recover_all(&store, &mut recovered)?;
    if !deep {
        return Ok(());
    }
    // Versions are above all that any reader may have seen, and no block in use counts as free: overwrite all free blocks.
    let options =
        WorkloadOptions { keys: 5, sizes: vec![30, 3_000, 9_000], delete_percent: 10, condition_percent: 0 };
    let mut workload = Workload::new(7_000_000, options);
    works_on(&store, &mut recovered, &mut workload, 12)?;
    drop(store);
    check_clean(&device)?;
    let store = open(&device, tiny()).map_err(|error| format!("did not open again: {error}"))?;
    recover_all(&store, &mut recovered)
}

fn explore(seed: u64, operations: usize, sizes: Vec<usize>, keys: u64, states_per_point: usize) -> usize {
    let (sim, models) = run(seed, operations, sizes, keys);
    let mut states = 0;
    sim.history().for_each_crash_state(states_per_point, seed, |point, image| {
        let Some(&mark) = point.marks.last() else { return };
        states += 1;
        let deep = states % 7 == 0;
        if let Err(violation) = recovers(image, &models[mark as usize], deep) {
            panic!("seed {seed}, state {}: {violation}", point.id);
        }
    });
    states
}

#[test]
fn small_values() {
    let states: usize = (1..=4).map(|seed| explore(seed, 30, vec![0, 10, 90, 300], 5, 16)).sum();
    assert!(states > 1_000, "only {states} states were explored");
}

#[test]
fn values_of_every_kind() {
    let sizes = vec![10, 90, 1_500, 5_000, 70_000];
    let states: usize = (11..=14).map(|seed| explore(seed, 24, sizes.clone(), 5, 12)).sum();
    assert!(states > 1_000, "only {states} states were explored");
}

#[test]
fn log_wraps_and_blocks_are_reused() {
    let states: usize = (21..=22).map(|seed| explore(seed, 90, vec![20, 2_500, 40_000], 4, 4)).sum();
    assert!(states > 1_000, "only {states} states were explored");
}

/// Every sequence of up to three operations right after formatting.
#[test]
fn short_sequences() {
    for seed in 100..140 {
        explore(seed, 3, vec![10, 1_000, 5_000], 2, 64);
    }
}

/// A second crash, at any moment of the recovery.
#[test]
fn crash_during_recovery() {
    let (sim, models) = run(31, 30, vec![50, 1_500, 9_000], 4);
    let mut states = 0;
    let mut second = 0;
    sim.history().for_each_crash_state(2, 31, |point, image| {
        let Some(&mark) = point.marks.last() else { return };
        states += 1;
        if states % 9 != 0 {
            return;
        }
        let recovering = SimDevice::from_image(image);
        drop(open(&Device::new(recovering.clone()), tiny()).unwrap());
        recovering.history().for_each_crash_state(6, 32, |again, image| {
            second += 1;
            if let Err(violation) = recovers(image, &models[mark as usize], second % 11 == 0) {
                panic!("state {} then {}: {violation}", point.id, again.id);
            }
        });
    });
    assert!(second > 200, "only {second} second crashes were explored");
}

/// Batches of an earlier pass that still follow the newest batch of this pass are never replayed, although each of them is valid in itself
/// and in its place (R1).
#[test]
fn a_ghost_of_an_older_life_is_never_replayed() {
    const LOG: std::ops::Range<u64> = 34..58;
    let sim = formatted(BLOCKS, 61);
    let put = |store: &shoal_engine::Store, name: &[u8]| {
        store.set(name, name.to_vec()).unwrap();
    };
    // The first life writes one batch after the other.
    let store = open(&device(&sim), tiny()).unwrap();
    put(&store, b"kept");
    let forked = sim.image();
    (0..5).for_each(|number| put(&store, format!("ghost-{number}").as_bytes()));
    drop(store);
    let first_life = sim.image();
    // In the second life the power failed after the first batch: none of the others had been flushed.
    let sim = SimDevice::from_image(forked.clone());
    let store = open(&device(&sim), tiny()).unwrap();
    put(&store, b"new");
    drop(store);
    let mut image = sim.image();
    let ghosts: Vec<u64> = LOG
        .filter(|&block| {
            image.block(block) == forked.block(block) && first_life.block(block) != forked.block(block)
        })
        .collect();
    assert!(ghosts.len() >= 3, "the second life wrote over all but {}", ghosts.len());
    ghosts.iter().for_each(|&block| image.write(block, first_life.block(block)));
    let store = open(&Device::new(SimDevice::from_image(image)), tiny()).unwrap();
    for name in ["kept", "new"] {
        assert!(common::read(&store, name.as_bytes()).unwrap().is_some(), "{name}");
    }
    for number in 0..5 {
        let name = format!("ghost-{number}");
        assert_eq!(common::read(&store, name.as_bytes()).unwrap(), None, "{name}");
    }
}

/// The last batch of an idle store is promised, too (R15): its damage is detected, although the store was not closed.
#[test]
fn the_last_batch_of_an_idle_store_is_promised() {
    const LOG: std::ops::Range<u64> = 34..58;
    let sim = formatted(BLOCKS, 71);
    let mut options = tiny();
    options.background = true;
    options.tuning.seal_after_ns = 0;
    let store = open(&device(&sim), options).unwrap();
    let before = sim.image();
    store.set(b"last", vec![7; 50]).unwrap();
    let written = |image: &Image| -> Vec<u64> {
        LOG.filter(|&block| image.block(block) != before.block(block)).collect()
    };
    // The batch, and the seal after it.
    eventually("the log is sealed", || written(&sim.image()).len() >= 2);
    let mut image = sim.image();
    image.flip(written(&image)[0], 200, 1);
    drop(store);
    let opened = open(&Device::new(SimDevice::from_image(image)), tiny());
    assert!(matches!(opened, Err(Error::Corrupt { .. })), "a promised batch rotted, and nobody says so");
}

/// A device whose process dies after a number of requests: later ones never reach it.
struct Dying {
    sim: Arc<SimDevice>,
    left: AtomicI64,
}

impl Dying {
    /// Returns true if a request arrived after the death.
    fn is_dead(&self) -> bool {
        self.left.load(Ordering::Relaxed) < 0
    }

    fn living(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        let dead = std::io::Error::from_raw_os_error(libc::EIO);
        submissions.into_iter().fold(Vec::new(), |mut living, submission| {
            if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
                living.push(submission);
            } else {
                submission.fail(&dead);
            }
            living
        })
    }
}

impl Intercept for Dying {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.sim
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        self.living(submissions)
    }
}

/// The process is killed, which leaves writes in the device's cache, the store is opened again, and then the power fails, at any moment
/// (R2): the store still opens, and keeps everything that a reader saw in between.
#[test]
fn power_cut_after_kill() {
    let base = formatted(BLOCKS, 41);
    let mut states = 0;
    for requests in 20..110 {
        let sim = SimDevice::from_image(base.image());
        let (dying, device) = Intercepted::new(Dying { sim: sim.clone(), left: AtomicI64::new(requests) });
        let Ok(store) = open(&device, tiny()) else { continue };
        let options = WorkloadOptions {
            keys: 4,
            sizes: vec![50, 1_500, 9_000],
            delete_percent: 20,
            condition_percent: 0,
        };
        let mut workload = Workload::new(requests as u64 % 5, options);
        let mut model = Model::new();
        while !dying.is_dead() {
            let operation = workload.next(&model);
            step(&store, &mut model, &operation, true, |_| {});
        }
        drop(store);
        sim.mark(0);
        let store = open(&Device::new(sim.clone()), tiny()).unwrap();
        let before = model.clone();
        recover_all(&store, &mut model).unwrap();
        sim.mark(1);
        drop(store);
        sim.history().for_each_crash_state(4, requests as u64, |point, image| {
            let Some(&mark) = point.marks.last() else { return };
            states += 1;
            let model = if mark == 0 { &before } else { &model };
            if let Err(violation) = recovers(image, model, states % 29 == 0) {
                panic!("killed after {requests} requests, state {}: {violation}", point.id);
            }
        });
    }
    assert!(states > 300, "only {states} states were explored");
}

/// Repairs a store; returns the number of keys that differ from `model`, or `None` if it cannot be repaired. The repair and the later
/// checks must report them.
fn repaired(device: &Device, model: &Model, state: &str) -> Option<usize> {
    let report = common::repaired(device).ok()?;
    let store = open(device, tiny()).unwrap_or_else(|error| panic!("{state}: {error}"));
    let is_right = |name: &&[u8]| {
        let object = store.find(name);
        object.is_ok_and(|object| model.allows(name, object.map(|object| object.value.to_vec()).as_deref()))
    };
    let changed: Vec<String> =
        model.keys().filter(|name| !is_right(name)).map(|name| name.escape_ascii().to_string()).collect();
    drop(store);
    if !changed.is_empty() {
        let again = checked(device).unwrap();
        let is_told = !report.losses.is_none() && again.remembered == report.losses;
        assert!(
            is_told || again.problem_count > 0,
            "{state}: {changed:?} changed: {report:?}, then {again:?}"
        );
    }
    Some(changed.len())
}

/// Both copies of the newest superblock decay after a crash at any moment: an opening from the previous superblock must detect reuse of its
/// blocks or its log (R9). A repair reports and records the losses.
#[test]
fn damaged_newest_superblock_is_detected_or_harmless() {
    let (mut opened, mut noticed, mut whole, mut changed) = (0, 0, 0, 0);
    for seed in 51..51 + lab::number("ROTTEN_SEEDS", 32) {
        // Every second device is so small that puts make space: then an apply follows another one without a batch between them.
        let (sim, models) = if seed % 2 == 0 {
            run(seed, 30, vec![90, 1_500, 9_000, 40_000], 4)
        } else {
            run_on(190, seed, 40, vec![300, 1_500, 3_000, 20_000], 24)
        };
        sim.history().for_each_crash_state(3, seed, |point, mut image| {
            let Some(&mark) = point.marks.last() else { return };
            rot_newest(&mut image);
            let device = Device::new(SimDevice::from_image(image));
            match open(&device, tiny()) {
                Ok(store) => {
                    opened += 1;
                    recover_all(&store, &mut models[mark as usize].clone())
                        .unwrap_or_else(|violation| panic!("seed {seed}, state {}: {violation}", point.id));
                }
                // Unopenable: the other slot was being written.
                Err(Error::Corrupt { .. } | Error::Unopenable(_)) => {
                    noticed += 1;
                    let state = format!("seed {seed}, state {}", point.id);
                    let losses = repaired(&device, &models[mark as usize], &state);
                    whole += usize::from(losses == Some(0));
                    changed += losses.unwrap_or(0);
                }
                Err(error) => panic!("seed {seed}, state {}: {error}", point.id),
            }
        });
    }
    println!("{opened} opened, {noticed} noticed: {whole} whole after a repair, {changed} keys with losses");
    assert!(opened > 10 && noticed > 10, "{opened} opened, {noticed} noticed");
}

/// The log still names a record that was superseded in a memtable: another key's value in its place would have two owners after a crash
/// (R9, R10).
#[test]
fn an_overwritten_extent_is_not_used_again_before_its_apply() {
    let sim = formatted(256, 3);
    let device = device(&sim);
    // No apply runs meanwhile.
    let store = open(&device, tiny_with_memtables(60)).unwrap();
    let value = |which: u64, seed| Value { key: which, seed, bytes: 9_000 };
    let put = |which: u64, seed| {
        let name = format!("key-{which}");
        let value = value(which, seed).to_vec();
        store.set(&name, value).unwrap();
    };
    (0..4).for_each(|seed| put(0, seed));
    (1..8).for_each(|which| put(which, 9));
    let crashed = Device::new(SimDevice::from_image(sim.image()));
    drop(store);
    let store = open(&crashed, tiny()).unwrap();
    for (which, seed) in std::iter::once((0, 3)).chain((1..8).map(|which| (which, 9))) {
        let name = format!("key-{which}");
        let object = store.find(&name).unwrap().unwrap();
        value(which, seed).check(&object.value.to_vec()).unwrap();
    }
}
