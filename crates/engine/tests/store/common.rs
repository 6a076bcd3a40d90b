//! What the engine's tests share: a tiny store whose rare paths are common, and a driver that keeps the oracle.

use std::sync::Arc;

use shoal_base::{BLOCK_BYTES, ManualClock, SeededEntropy};
use shoal_device::Device;
use shoal_device::sim::{Image, SimDevice};
use shoal_engine::{
    ByteRange, Environment, Error, FormatOptions, Lsn, ObjectKey, OpenOptions, PutOptions, RejectRules,
    Store, Tuning, block_on,
};
use shoal_testkit::{Condition, Effect, Model, Observed, Operation};

pub(crate) fn environment(seed: u64) -> Environment {
    Environment { clock: Arc::new(ManualClock::new(1_000)), entropy: Arc::new(SeededEntropy::new(seed)) }
}

/// Sizes so small that a handful of operations crosses freezes, applies, publishes and a turn of the log.
pub(crate) fn tiny() -> OpenOptions {
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

pub(crate) fn tiny_format(blocks: u64) -> FormatOptions {
    FormatOptions { tablets: 2, log_blocks: Some(24), ..FormatOptions::for_blocks(blocks) }
}

pub(crate) fn device(sim: &Arc<SimDevice>) -> Device {
    Device::new(sim.clone())
}

pub(crate) fn format(device: &Device, blocks: u64, seed: u64) {
    block_on(Store::format(device, &tiny_format(blocks), &environment(seed))).unwrap();
}

pub(crate) fn open(device: &Device, options: OpenOptions) -> shoal_engine::Result<Store> {
    block_on(Store::open(device.clone(), options, environment(99)))
}

pub(crate) fn key(name: &[u8]) -> ObjectKey {
    ObjectKey::new("default", name).unwrap()
}

pub(crate) fn rules(condition: Condition) -> RejectRules {
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
pub(crate) async fn perform(store: &Store, operation: &Operation) -> shoal_engine::Result<Lsn> {
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
pub(crate) fn step(
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
pub(crate) fn read(store: &Store, name: &[u8]) -> shoal_engine::Result<Option<(u64, Vec<u8>)>> {
    let object = block_on(store.get(&key(name), ByteRange::ALL))?;
    Ok(object.map(|object| (object.info.version.0, object.value.to_vec())))
}

/// Compares every key of the model with the running store.
pub(crate) fn observe_all(store: &Store, model: &mut Model) {
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
pub(crate) fn recover_all(store: &Store, model: &mut Model) -> Result<(), String> {
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

/// Seconds after which a test hangs: no machine that works is so slow.
const HANGS_AFTER_S: u64 = 600;

/// Runs `body` on a thread of its own and fails where it does not end: a hang must not be a silent one.
pub(crate) fn within<T: Send + 'static>(what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(body());
    });
    match receiver.recv_timeout(std::time::Duration::from_secs(HANGS_AFTER_S)) {
        Ok(value) => {
            thread.join().unwrap();
            value
        }
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what}: hangs"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread ended without a value"),
        },
    }
}

/// How much a test of the laboratory does: `LAB_<name>` where it is set (by `cargo x lab`), else `quick`.
pub(crate) fn lab_number(name: &str, quick: u64) -> u64 {
    match std::env::var(format!("LAB_{name}")) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("LAB_{name}: {text:?} is no number")),
        Err(_) => quick,
    }
}

/// Calls `trial` with every number below `count`, on all cores.
pub(crate) fn on_all_cores(count: u64, trial: impl Fn(u64) + Sync) {
    on_each_core(1, count, trial);
}

/// The same with `several` threads a core: for trials that wait for a while.
pub(crate) fn on_each_core(several: usize, count: u64, trial: impl Fn(u64) + Sync) {
    let next = std::sync::atomic::AtomicU64::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if number >= count {
                return;
            }
            trial(number);
        }
    };
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores * several).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
}

/// `check` without repair finds nothing wrong.
pub(crate) fn assert_clean(device: &Device, what: &str) {
    let report = block_on(shoal_engine::check(device.clone(), &shoal_engine::CheckOptions::default()))
        .unwrap_or_else(|error| panic!("{what}: check: {error}"));
    assert!(report.is_clean(), "{what}: check: {:?}", report.problems);
}

/// Makes both copies of the newest superblock rot.
pub(crate) fn rot_newest(image: &mut Image) {
    const COPIES: [[u64; 2]; 2] = [[0, 32], [1, 33]];
    let number = |image: &Image, block| u64::from_le_bytes(image.block(block)[32..40].try_into().unwrap());
    let newest =
        |image: &Image, copy: usize| usize::from(number(image, copy as u64) < number(image, copy as u64 + 1));
    let slot = newest(image, 0);
    COPIES[slot].iter().for_each(|&block| image.write(block, &[0x5A; BLOCK_BYTES]));
}
