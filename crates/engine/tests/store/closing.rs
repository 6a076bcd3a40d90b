//! A completely closed store needs no record of its log: none is left in it, and no damage of it matters. A crash during the close loses
//! nothing, and a close that exceeds its deadline leaves the rest in the log.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::{BLOCK_BYTES, SeededEntropy};
use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice};
use shoal_engine::{Environment, Error, FormatOptions, OpenOptions, PutOptions, RequestId, Store, block_on};
use shoal_testkit::clock::SteppingClock;
use shoal_testkit::lab;
use shoal_testkit::wait::within;
use shoal_testkit::{Effect, Model, Workload, WorkloadOptions};

use crate::common::{
    ByName, assert_clean, device, format_as, formatted, key, open, read, recover_all, step, tiny,
};

const BLOCKS: u64 = 320;
/// The log's ring.
const LOG: std::ops::Range<u64> = 34..58;
const BLOCK_BITS: u64 = BLOCK_BYTES as u64 * 8;
/// A write with a request id: its result is a record, too.
const ONCE: RequestId = RequestId { session: 7, sequence: 1 };

fn options(background: bool) -> OpenOptions {
    let mut options = OpenOptions { background, own_space: vec!["films".into()], ..tiny() };
    // Large enough to run no apply before the close.
    options.tuning.memtable_records_max = 1_000;
    options.memtable_bytes = Some(64 << 10);
    options
}

/// Puts, overwrites and deletes, a write with a request id, and a bucket with separate space; the store stays open.
fn written(sim: &Arc<SimDevice>, background: bool) -> (Store, Model) {
    let store = open(&device(sim), options(background)).unwrap();
    let sizes = vec![0, 40, 95, 700, 1_900, 5_000];
    let shape = WorkloadOptions { keys: 12, sizes, delete_percent: 30, condition_percent: 0 };
    let mut workload = Workload::new(5, shape);
    let mut model = Model::new();
    for _ in 0..24 {
        let operation = workload.next(&model);
        step(&store, &mut model, &operation, false, |_| {});
    }
    // The last operation is a delete: only its record in the log shows it.
    let mut operation = workload.next(&model);
    operation.effect = Effect::Delete;
    step(&store, &mut model, &operation, false, |_| {});
    block_on(crate::common::put_once(
        &store,
        ONCE,
        &key(b"once"),
        b"1".to_vec().into(),
        PutOptions::default(),
    ))
    .unwrap();
    let film = shoal_engine::ObjectKey::new("films", b"film").unwrap();
    block_on(store.put(&film, vec![1; 9_000].into(), PutOptions::default())).unwrap();
    (store, model)
}

/// Opens `image` and checks that everything exists and nothing came from the log.
fn has_everything(image: Image, model: &Model) -> Result<(), String> {
    let device = Device::new(SimDevice::from_image(image));
    let store = open(&device, options(false)).map_err(|error| format!("refused: {error}"))?;
    let stat = store.stat();
    if stat.memtable_records != 0 {
        return Err(format!("{} records were replayed", stat.memtable_records));
    }
    recover_all(&store, &mut model.clone())?;
    match read(&store, b"once") {
        Ok(Some((_, bytes))) if bytes == b"1" => Ok(()),
        other => Err(format!("once: {other:?}")),
    }
}

/// 421 deletes stayed in the log of a cleanly stopped store, and one flipped bit there made it refuse to open.
#[test]
fn a_clean_stop_leaves_nothing_in_the_log() {
    for background in [false, true] {
        let sim = formatted(BLOCKS, 71);
        let (store, model) = written(&sim, background);
        let closed = block_on(store.close_within(None)).unwrap();
        assert_eq!(closed.records_left, 0);
        drop(store);
        let image = sim.image();
        has_everything(image.clone(), &model).unwrap();
        assert_clean(&Device::new(SimDevice::from_image(image.clone())), "closed");
        // Every bit of the ring, or the sample that the time allows.
        let used: Vec<u64> = LOG.filter(|&block| image.block(block).iter().any(|&byte| byte != 0)).collect();
        assert!(used.len() > 10, "only {} blocks of the log were used", used.len());
        let bits = used.len() as u64 * BLOCK_BITS;
        let trials = lab::number("CLOSED_LOG_BITS", 2_000).min(bits);
        let every = bits / trials;
        lab::on_all_cores(trials, |number| {
            let bit = number * every + lab::number("SEED", 1) % every;
            let (block, within) = (used[(bit / BLOCK_BITS) as usize], bit % BLOCK_BITS);
            let mut damaged = image.clone();
            damaged.flip(block, (within / 8) as usize, 1 << (within % 8));
            has_everything(damaged, &model)
                .unwrap_or_else(|what| panic!("bit {within} of block {block}: {what}"));
        });
        // Whole blocks of the ring: zeros, ones, garbage.
        for block in LOG {
            for byte in [0x00, 0xFF, 0xD5] {
                let mut damaged = image.clone();
                damaged.write(block, &[byte; BLOCK_BYTES]);
                has_everything(damaged, &model)
                    .unwrap_or_else(|what| panic!("block {block} filled with {byte:#x}: {what}"));
            }
        }
    }
}

/// An unreadable sector of the log does not refuse a store that needs no record of its log.
#[test]
fn an_unreadable_log_does_not_matter_after_a_clean_stop() {
    let sim = formatted(BLOCKS, 71);
    let (store, model) = written(&sim, false);
    block_on(store.close()).unwrap();
    drop(store);
    for block in LOG {
        let sim = SimDevice::from_image(sim.image());
        sim.inject(Fault::fail(FaultOp::Read, libc::EIO).at(block..block + 1).for_good());
        let store = open(&device(&sim), options(false)).unwrap_or_else(|error| panic!("{block}: {error}"));
        recover_all(&store, &mut model.clone()).unwrap();
    }
    // After a crash it does: the sector may hold a promised batch.
    let sim = formatted(BLOCKS, 71);
    let (store, _) = written(&sim, false);
    drop(store);
    let sim = SimDevice::from_image(sim.image());
    sim.inject(Fault::fail(FaultOp::Read, libc::EIO).at(LOG.start + 2..LOG.start + 3).for_good());
    assert!(open(&device(&sim), options(false)).is_err());
}

/// The power fails at every write of a close.
#[test]
fn a_crash_during_the_close_loses_nothing() {
    let sim = formatted(BLOCKS, 71);
    let (store, model) = written(&sim, false);
    // Recorded from here: every acknowledged write is durable.
    sim.mark(1);
    let before = sim.history().writes().len();
    block_on(store.close()).unwrap();
    drop(store);
    assert!(sim.history().writes().len() > before + 8, "the close wrote trees, superblocks and a seal");
    let mut states = 0;
    sim.history().for_each_crash_state(12, 3, |point, image| {
        if point.marks.last() != Some(&1) {
            return;
        }
        states += 1;
        let device = Device::new(SimDevice::from_image(image));
        let store = open(&device, options(false)).unwrap_or_else(|error| panic!("{}: {error}", point.id));
        recover_all(&store, &mut model.clone()).unwrap_or_else(|what| panic!("{}: {what}", point.id));
        assert!(read(&store, b"once").unwrap().is_some(), "{}", point.id);
        if states % 5 == 0 {
            // A store that was opened after a crash also closes completely.
            let closed = block_on(store.close_within(None)).unwrap();
            assert_eq!(closed.records_left, 0);
            drop(store);
            assert_clean(&device, &format!("state {}", point.id));
        }
    });
    assert!(states > 60, "only {states} states were explored");
}

/// Closes a store of many records within `limit_ms` readings of its clock; returns the number of records left in the log.
fn left_within(limit_ms: u64) -> u64 {
    const COUNT: u32 = 400;
    let device = Device::new(SimDevice::new(4_096));
    let layout = FormatOptions { tablets: 2, log_blocks: Some(600), ..FormatOptions::for_blocks(4_096) };
    format_as(&device, &layout, 72);
    let clock = Arc::new(SteppingClock::new(1_000_000));
    let environment = Environment { clock, entropy: Arc::new(SeededEntropy::new(1)) };
    let mut options = tiny();
    options.tuning.memtable_records_max = 10_000;
    options.memtable_bytes = Some(1 << 20);
    let store = block_on(Store::open(device.clone(), options, environment)).unwrap();
    let name = |which: u32| format!("key-{which}").into_bytes();
    for which in 0..COUNT {
        store.set(name(which), vec![7; 20]).unwrap();
    }
    let closed = block_on(store.close_within(Some(Duration::from_millis(limit_ms)))).unwrap();
    assert!(matches!(store.remove(name(0)), Err(Error::Closed)));
    drop(store);
    let store = open(&device, tiny()).unwrap();
    assert_eq!(store.stat().memtable_records, closed.records_left);
    for which in 0..COUNT {
        assert!(read(&store, &name(which)).unwrap().is_some(), "{which} after {limit_ms}");
    }
    assert_eq!(block_on(store.close_within(None)).unwrap().records_left, 0);
    drop(store);
    assert_clean(&device, "afterwards");
    closed.records_left
}

/// Records that are not applied before the deadline stay in the log: an interrupted close is no worse than a crash.
#[test]
fn close_past_its_deadline_leaves_rest_in_log() {
    // Before the first apply, in the middle of one, between two, and in time.
    let left: Vec<u64> = (0..40).map(left_within).collect();
    assert!(left[0] > 0 && left[39] == 0, "{left:?}");
    assert!(left.iter().any(|&some| 0 < some && some < left[0]), "{left:?}");
}

/// With threads, too: they stop, and no caller waits forever.
#[test]
fn a_close_in_no_time_ends_with_threads() {
    within("a close with little time", || {
        let sim = formatted(BLOCKS, 71);
        let (store, model) = written(&sim, true);
        block_on(store.close_within(Some(Duration::ZERO))).unwrap();
        drop(store);
        let store = open(&device(&sim), options(false)).unwrap();
        recover_all(&store, &mut model.clone()).unwrap();
    });
}

/// A failed write of the close is reported, and every acknowledged write exists afterwards.
#[test]
fn failed_close_returns_error() {
    let sim = formatted(BLOCKS, 71);
    let (store, model) = written(&sim, false);
    sim.inject(Fault::fail(FaultOp::Write, libc::EIO).for_good());
    assert!(block_on(store.close()).is_err());
    drop(store);
    sim.clear_faults();
    let store = open(&device(&sim), options(false)).unwrap();
    recover_all(&store, &mut model.clone()).unwrap();
    // A poisoned store closes without an error, as always.
    sim.inject(Fault::fail(FaultOp::Write, libc::EIO).for_good());
    let refused = store.set(b"x", vec![1; 10]);
    assert!(refused.is_err() && store.stat().poisoned.is_some());
    block_on(store.close()).unwrap();
}

/// If the log is damaged after a crash, the refusal names the commands that help.
#[test]
fn damaged_log_error_names_the_repair() {
    let sim = formatted(BLOCKS, 71);
    let (store, _) = written(&sim, false);
    drop(store);
    let mut image = sim.image();
    let second = LOG.filter(|&block| image.block(block).iter().any(|&byte| byte != 0)).nth(1).unwrap();
    image.flip(second, 100, 1);
    let Err(Error::Corrupt { what, .. }) = open(&Device::new(SimDevice::from_image(image)), tiny()) else {
        panic!("a log with a hole was opened")
    };
    for words in ["shoal check --data FILE`", "shoal check --data FILE --repair`", "changes nothing"] {
        assert!(what.contains(words), "{what}");
    }
}
