//! Every legal crash state of small workloads reopens to a state that the acknowledgements allow.
//!
//! The workloads overwrite, delete, use conditions, cross freezes, applies, publishes, the reuse of space between
//! tablets and turns of the log; some crash again during recovery. A failure prints the seed and the state.

mod common;

use std::sync::Arc;

use common::{device, format, observe_all, open, recover_all, step, tiny};
use shoal_device::Device;
use shoal_device::sim::{Image, SimDevice};
use shoal_engine::{CheckOptions, block_on, check};
use shoal_testkit::{Model, Workload, WorkloadOptions};

const BLOCKS: u64 = 320;

/// Runs a workload on a recording device; the models by mark: a mark stands before and after every operation.
fn run(seed: u64, operations: usize, sizes: Vec<usize>, keys: u64) -> (Arc<SimDevice>, Vec<Model>) {
    let sim = SimDevice::new(BLOCKS);
    let device = device(&sim);
    format(&device, BLOCKS, seed);
    // What formatting leaves is not the subject here: start recording from the empty store.
    let sim = SimDevice::from_image(sim.image());
    let store = open(&Device::new(sim.clone()), tiny()).unwrap();
    let options = WorkloadOptions { keys, sizes, delete_percent: 20, condition_percent: 20 };
    let mut workload = Workload::new(seed, options);
    let mut model = Model::new();
    let mut models = vec![model.clone()];
    sim.mark(0);
    for _ in 0..operations {
        let operation = workload.next(&model);
        step(&store, &mut model, &operation, false, |begun| {
            models.push(begun.clone());
            sim.mark(models.len() as u64 - 1);
        });
        models.push(model.clone());
        sim.mark(models.len() as u64 - 1);
    }
    observe_all(&store, &mut model);
    drop(store);
    (sim, models)
}

/// Opens a crash state, compares it with the model of that moment, checks the ownership of every block, writes on, and
/// opens again.
fn recovers(image: Image, model: &Model, deep: bool) -> Result<(), String> {
    let sim = SimDevice::from_image(image);
    let device = Device::new(sim.clone());
    let store = open(&device, tiny()).map_err(|error| format!("did not open: {error}"))?;
    let mut recovered = model.clone();
    recover_all(&store, &mut recovered)?;
    if !deep {
        return Ok(());
    }
    // Numbers above all that may have been seen, and space that nobody owns: write over whatever is thought to be free.
    let options =
        WorkloadOptions { keys: 5, sizes: vec![30, 3_000, 9_000], delete_percent: 10, condition_percent: 0 };
    let mut workload = Workload::new(7_000_000, options);
    for _ in 0..12 {
        let operation = workload.next(&recovered);
        step(&store, &mut recovered, &operation, false, |_| {});
    }
    recover_all(&store, &mut recovered)?;
    drop(store);
    let report =
        block_on(check(device.clone(), &CheckOptions::default())).map_err(|error| error.to_string())?;
    if !report.is_clean() {
        return Err(format!("check: {:?}", report.problems));
    }
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
fn turns_of_the_log_and_reuse() {
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
