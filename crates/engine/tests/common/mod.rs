//! What the engine's tests share: a tiny store whose rare paths are common, and a driver that keeps the oracle.

#![allow(dead_code)]

use std::sync::Arc;

use shoal_base::{ManualClock, SeededEntropy};
use shoal_device::Device;
use shoal_device::sim::SimDevice;
use shoal_engine::{
    ByteRange, Environment, Error, FormatOptions, Lsn, ObjectKey, OpenOptions, PutOptions, RejectRules,
    Store, Tuning, block_on,
};
use shoal_testkit::{Condition, Effect, Model, Observed, Operation};

pub fn environment(seed: u64) -> Environment {
    Environment { clock: Arc::new(ManualClock::new(1_000)), entropy: Arc::new(SeededEntropy::new(seed)) }
}

/// Sizes so small that a handful of operations crosses freezes, applies, publishes and a turn of the log.
pub fn tiny() -> OpenOptions {
    OpenOptions {
        cache_bytes: 256 << 10,
        overlay_bytes: Some(24 << 10),
        background: false,
        tuning: Tuning {
            leaf_value_bytes_max: 100,
            log_value_bytes_max: 2_000,
            batch_bytes_max: 16 << 10,
            overlay_records_max: 8,
            apply_bytes_in_flight: 64 << 10,
            growth_blocks: 64,
            ..Tuning::default()
        },
        ..OpenOptions::default()
    }
}

pub fn tiny_format(blocks: u64) -> FormatOptions {
    FormatOptions { tablets: 2, log_blocks: Some(24), ..FormatOptions::for_blocks(blocks) }
}

pub fn device(sim: &Arc<SimDevice>) -> Device {
    Device::new(sim.clone())
}

pub fn format(device: &Device, blocks: u64, seed: u64) {
    block_on(Store::format(device, &tiny_format(blocks), &environment(seed))).unwrap();
}

pub fn open(device: &Device, options: OpenOptions) -> shoal_engine::Result<Store> {
    block_on(Store::open(device.clone(), options, environment(99)))
}

pub fn key(name: &[u8]) -> ObjectKey {
    ObjectKey::new("default", name).unwrap()
}

pub fn rules(condition: Condition) -> RejectRules {
    match condition {
        Condition::None => RejectRules::default(),
        Condition::IfExists => RejectRules { if_exists: true, ..RejectRules::default() },
        Condition::IfMissing => RejectRules { if_missing: true, ..RejectRules::default() },
        Condition::IfVersionNot(version) => {
            RejectRules { if_version_not: Some(Lsn(version)), ..RejectRules::default() }
        }
        Condition::IfVersionAtMost(version) => {
            RejectRules { if_version_at_most: Some(Lsn(version)), ..RejectRules::default() }
        }
    }
}

/// Gives one operation to the store; the version of what it wrote.
pub async fn perform(store: &Store, operation: &Operation) -> shoal_engine::Result<Lsn> {
    let key = key(&operation.key);
    let rules = rules(operation.condition);
    match operation.effect {
        Effect::Put(value) => {
            let options = PutOptions { rules, ..PutOptions::default() };
            store.put(&key, value.to_vec().into(), options).await.map(|put| put.version)
        }
        Effect::Delete => store.delete(&key, rules).await.map(|delete| delete.version),
    }
}

/// Performs one operation and tells the model how it went. Errors that leave the outcome open are allowed only where `faulty`.
pub fn step(
    store: &Store,
    model: &mut Model,
    operation: &Operation,
    faulty: bool,
    begun: impl FnOnce(&Model),
) {
    let id = model.begin(&operation.key, operation.effect, operation.condition);
    begun(model);
    match block_on(perform(store, operation)) {
        Ok(version) => model.acknowledge(id, version.0).unwrap(),
        Err(Error::ConditionFailed { current }) => {
            model.rejected(id, current.map(|version| version.0)).unwrap();
        }
        Err(Error::Full { .. } | Error::Poisoned(_)) => model.refused(id).unwrap(),
        Err(Error::Unknown(_) | Error::Io(_)) if faulty => {}
        Err(error) => panic!("{operation:?}: {error}"),
    }
}

/// Reads a key and gives what was seen to `judge`.
pub fn read(store: &Store, name: &[u8]) -> shoal_engine::Result<Option<(u64, Vec<u8>)>> {
    let object = block_on(store.get(&key(name), ByteRange::ALL))?;
    Ok(object.map(|object| (object.info.version.0, object.value.to_vec())))
}

/// Compares every key of the model with the running store.
pub fn observe_all(store: &Store, model: &mut Model) {
    let names: Vec<Vec<u8>> = model.keys().map(<[u8]>::to_vec).collect();
    for name in names {
        match read(store, &name).unwrap() {
            None => model.observe(&name, Observed::Absent),
            Some((version, bytes)) => model.observe(&name, Observed::Present { version, bytes: &bytes }),
        }
        .unwrap();
    }
}

/// Compares every key with what a crash may have left.
pub fn recover_all(store: &Store, model: &mut Model) -> Result<(), String> {
    let names: Vec<Vec<u8>> = model.keys().map(<[u8]>::to_vec).collect();
    for name in names {
        match read(store, &name).map_err(|error| format!("{}: {error}", name.escape_ascii()))? {
            None => model.recovered(&name, Observed::Absent),
            Some((version, bytes)) => model.recovered(&name, Observed::Present { version, bytes: &bytes }),
        }
        .map_err(|violation| violation.to_string())?;
    }
    Ok(())
}
