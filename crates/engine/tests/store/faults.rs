//! The n-th request of the device fails, for every n: failed reads, writes and flushes, once and for good; writes that are lost or
//! misplaced although the device reports success.
//!
//! Nothing hangs or panics; the kind of an error defines the guarantee to the caller; reads continue; and after a new opening every
//! acknowledged write exists, nothing is damaged, and no block is leaked.

use std::sync::Arc;

use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Image, SimDevice};
use shoal_engine::{Error, PutOptions, RejectRules, Store, block_on};
use shoal_testkit::lab;
use shoal_testkit::wait::within;
use shoal_testkit::{Condition, Effect, Model, Observed, Workload, WorkloadOptions};

use crate::common::{self, assert_clean, formatted, key, open, perform, recover_all, step, tiny};

const BLOCKS: u64 = 448;
const SIZES: [usize; 5] = [10, 90, 1_500, 5_000, 70_000];

fn workload(seed: u64) -> Workload {
    let sizes = SIZES.to_vec();
    Workload::new(seed, WorkloadOptions { keys: 6, sizes, delete_percent: 20, condition_percent: 20 })
}

/// The state of a run under faults.
struct Run {
    sim: Arc<SimDevice>,
    model: Model,
    /// A write's outcome was open, or a write was refused because the store is read-only.
    read_only: bool,
    /// Writes that were refused because the data file had no room.
    without_room: u32,
}

impl Run {
    fn new(image: Image) -> Self {
        Self { sim: SimDevice::from_image(image), model: Model::new(), read_only: false, without_room: 0 }
    }

    /// Runs one operation; the store may fail it, but only as documented.
    fn operate(&mut self, store: &Store, workload: &mut Workload, corrupt_is_fine: bool) {
        let operation = workload.next(&self.model);
        let id = self.model.begin(&operation.key, operation.effect, operation.condition);
        let result = block_on(perform(store, &operation));
        if self.read_only {
            assert!(matches!(result, Err(Error::Poisoned(_))), "a read-only store answered {result:?}");
        }
        match result {
            Ok(version) => self.model.acknowledge(id, version.0).unwrap(),
            Err(Error::ConditionFailed { current, .. }) => {
                self.model.rejected(id, current.map(|version| version.0)).unwrap();
            }
            // A write that fails with an error other than "unknown" had no effect.
            Err(Error::Full { .. } | Error::Io(_) | Error::Busy(_)) => self.model.refused(id).unwrap(),
            Err(Error::NoRoom(_)) => {
                self.without_room += 1;
                self.model.refused(id).unwrap();
            }
            Err(error) if is_unread(&error) || corrupt_is_fine && matches!(error, Error::Corrupt { .. }) => {
                self.model.refused(id).unwrap();
            }
            Err(Error::Poisoned(_)) => {
                self.read_only = true;
                self.model.refused(id).unwrap();
            }
            // A batch without room may be complete on the device. The store does not become read-only.
            Err(Error::Unknown(_)) => self.read_only = store.stat().no_room.is_none(),
            Err(error) => panic!("{operation:?}: {error}"),
        }
        let poisoned = store.stat().poisoned;
        assert!(!self.read_only || poisoned.is_some(), "refused as read-only without a reason");
        self.read_only |= poisoned.is_some();
    }

    /// Reads a key: correct bytes, or an error that `may_fail` allows.
    fn observe(&mut self, store: &Store, name: &[u8], may_fail: impl Fn(&Error) -> bool) {
        let observed = match common::read(store, name) {
            Ok(observed) => observed,
            Err(error) if may_fail(&error) => return,
            Err(error) => panic!("{}: {error}", name.escape_ascii()),
        };
        match &observed {
            None => self.model.observe(name, Observed::Absent),
            Some((version, bytes)) => {
                self.model.observe(name, Observed::Present { version: *version, bytes })
            }
        }
        .unwrap();
    }

    fn observe_all(&mut self, store: &Store, may_fail: impl Fn(&Error) -> bool) {
        let names: Vec<Vec<u8>> = self.model.keys().map(<[u8]>::to_vec).collect();
        names.iter().for_each(|name| self.observe(store, name, &may_fail));
    }
}

fn is_unread(error: &Error) -> bool {
    // If the index cannot be read, the object's existence is unknown; that is no damage.
    matches!(error, Error::Io(_)) || matches!(error, Error::Corrupt { what, .. } if what.contains("os error"))
}

/// A run with one fault; false if the run finished before the fault.
fn fails(image: Image, op: FaultOp, number: u64, code: i32, for_good: bool) -> bool {
    let fault = Fault::fail(op, code).after(number);
    let lacks_room = op == FaultOp::Write && shoal_device::is_no_room(code);
    // A write without room has written nothing, a part from its start, or all of it.
    let fault = if lacks_room { fault.leaving([0, 1, 2, u64::MAX][number as usize / 2 % 4]) } else { fault };
    let mut run = Run::new(image);
    run.sim.inject(if for_good { fault.for_good() } else { fault });
    let device = Device::new(run.sim.clone());
    let mut workload = workload(number % 3);
    match open(&device, tiny()) {
        Err(error) => {
            assert!(matches!(error, Error::Io(_) | Error::Poisoned(_)) && !lacks_room, "opening: {error}");
        }
        Ok(store) => {
            for turn in 0..lab::number("FAULT_OPERATIONS", 150) {
                run.operate(&store, &mut workload, false);
                if op == FaultOp::Flush && run.sim.injected() > 0 {
                    assert!(run.read_only, "a flush failed, and the store takes writes");
                }
                let name = Workload::key(turn % 6);
                run.observe(&store, &name, |error| op == FaultOp::Read && is_unread(error));
                if run.read_only && turn % 8 == 0 {
                    break;
                }
            }
            run.observe_all(&store, |error| op == FaultOp::Read && is_unread(error));
            assert!(for_good || run.without_room <= 1, "{} writes for one fault", run.without_room);
            if lacks_room {
                goes_on(&mut run, &store, &mut workload);
            }
        }
    }
    run.sim.mark(1);
    let struck = run.sim.injected() > 0;
    run.sim.clear_faults();
    let what = format!("{op:?} {number}{}", if for_good { " for good" } else { "" });
    reopens(run.sim.image(), &run.model, &what, true);
    if number.is_multiple_of(7) {
        run.sim.history().for_each_crash_state(3, number, |point, image| {
            if point.marks.last() == Some(&1) {
                reopens(image, &run.model, &format!("{what}, state {}", point.id), false);
            }
        });
    }
    struck
}

/// Writes had no room, and have it again: the store accepts them without another opening.
fn goes_on(run: &mut Run, store: &Store, workload: &mut Workload) {
    assert!(!run.read_only, "a lack of room made the store read-only: {:?}", store.stat().poisoned);
    run.sim.clear_faults();
    for turn in 0..6 {
        let name = Workload::key(turn);
        let id = run.model.begin(&name, Effect::Delete, Condition::None);
        let deleted = block_on(store.delete(&key(&name), RejectRules::default()));
        run.model.acknowledge(id, deleted.unwrap().version.0).unwrap();
        run.operate(store, workload, false);
    }
    // A lack of room for values is over when a write finds room.
    let options = WorkloadOptions { keys: 6, sizes: vec![40_000], delete_percent: 0, condition_percent: 0 };
    let mut long = Workload::new(8_000_000, options);
    for _ in 0..2 {
        run.operate(store, &mut long, false);
    }
    assert_eq!(store.stat().no_room, None);
}

/// Opens the device's image to a state that the acknowledgements allow, without leaks, and uses it.
fn reopens(image: Image, model: &Model, what: &str, deep: bool) {
    let sim = SimDevice::from_image(image);
    let device = Device::new(sim);
    let store = open(&device, tiny()).unwrap_or_else(|error| panic!("{what}: did not open: {error}"));
    let mut model = model.clone();
    recover_all(&store, &mut model).unwrap_or_else(|violation| panic!("{what}: {violation}"));
    if deep {
        let options = WorkloadOptions {
            keys: 6,
            sizes: vec![30, 3_000, 9_000],
            delete_percent: 10,
            condition_percent: 0,
        };
        let mut workload = Workload::new(9_000_000, options);
        for _ in 0..6 {
            let operation = workload.next(&model);
            step(&store, &mut model, &operation, false, |_| {});
        }
        recover_all(&store, &mut model).unwrap_or_else(|violation| panic!("{what}: {violation}"));
    }
    drop(store);
    assert_clean(&device, what);
}

/// Every n until a run is shorter: both errors for each in the laboratory, alternating here, and every second n if the failure is
/// permanent.
fn sweep(op: FaultOp, for_good: bool) {
    let image = formatted(BLOCKS, 5).image();
    let all = lab::number("FAULT_CODES", 1) > 1;
    let (mut number, mut runs) = (0, 0);
    loop {
        let codes: &[i32] = match (all, number % 2) {
            (true, _) => &[libc::EIO, libc::ENOSPC],
            (false, 0) => &[libc::EIO],
            (false, _) => &[libc::ENOSPC],
        };
        let mut struck = false;
        for &code in codes {
            let image = image.clone();
            let what = format!("{op:?} {number}, code {code}, for good: {for_good}");
            struck = within(&what, move || fails(image, op, number, code, for_good));
            runs += u64::from(struck);
        }
        if !struck {
            break;
        }
        number += if for_good && !all { 2 } else { 1 };
    }
    println!("{op:?}, for good: {for_good}: {runs} failures at {number} places");
    assert!(number > 20, "only {number} requests of kind {op:?}");
}

#[test]
fn a_read_fails() {
    sweep(FaultOp::Read, false);
}

#[test]
fn reads_fail_for_good() {
    sweep(FaultOp::Read, true);
}

#[test]
fn a_write_fails() {
    sweep(FaultOp::Write, false);
}

#[test]
fn writes_fail_for_good() {
    sweep(FaultOp::Write, true);
}

#[test]
fn a_flush_fails() {
    sweep(FaultOp::Flush, false);
}

#[test]
fn flushes_fail_for_good() {
    sweep(FaultOp::Flush, true);
}

/// A write that the device lost or misplaced. Errors are fine, also from an opening; wrong bytes and silent loss are not.
fn deceives(image: Image, fault: Fault, what: &str, close: bool) -> bool {
    let mut run = Run::new(image);
    let device = Device::new(run.sim.clone());
    let store = open(&device, tiny()).unwrap();
    run.sim.inject(fault);
    let mut workload = workload(7);
    let is_damage = |error: &Error| matches!(error, Error::Corrupt { .. });
    for turn in 0..60 {
        run.operate(&store, &mut workload, true);
        run.observe(&store, &Workload::key(turn % 6), is_damage);
    }
    let struck = run.sim.injected() > 0;
    let struck_late = {
        // Two more batches promise everything before them: only damage of these two may pass as a torn tail.
        for _ in 0..2 {
            run.operate(&store, &mut workload, true);
        }
        run.sim.injected() > 0 && !struck
    };
    run.observe_all(&store, is_damage);
    if close {
        match block_on(store.close()) {
            Ok(()) | Err(Error::Corrupt { .. } | Error::Poisoned(_)) => {}
            Err(error) => panic!("{what}: closing: {error}"),
        }
    }
    // A write that hit the space image makes the store read-only: no later batch promises the misplaced one.
    let is_poisoned = store.stat().poisoned.is_some();
    drop(store);
    run.sim.clear_faults();
    let store = match open(&device, tiny()) {
        Ok(store) => store,
        Err(Error::Corrupt { .. } | Error::Unopenable(_)) => return struck,
        Err(error) => panic!("{what}: opening: {error}"),
    };
    if struck_late && !close || is_poisoned {
        return struck;
    }
    let names: Vec<Vec<u8>> = run.model.keys().map(<[u8]>::to_vec).collect();
    for name in names {
        let judged = match common::read(&store, &name) {
            Err(Error::Corrupt { .. }) => continue,
            Err(error) => panic!("{what}: {error}"),
            Ok(None) => run.model.recovered(&name, Observed::Absent),
            Ok(Some((version, bytes))) => {
                run.model.recovered(&name, Observed::Present { version, bytes: &bytes })
            }
        };
        judged.unwrap_or_else(|violation| panic!("{what}: {violation}"));
    }
    struck
}

fn deceive(fault_of: impl Fn(u64) -> Fault, name: &str) {
    let image = formatted(BLOCKS, 5).image();
    let mut number = 0;
    loop {
        let (image, fault) = (image.clone(), fault_of(number));
        let what = format!("{name} {number}");
        let struck = within(&what.clone(), move || {
            deceives(image.clone(), fault.clone(), &what, false) | deceives(image, fault, &what, true)
        });
        if !struck {
            break;
        }
        number += 1;
    }
    assert!(number > 60, "only {number} writes");
}

#[test]
fn a_write_is_lost() {
    deceive(|number| Fault::lose().after(number), "lost write");
}

#[test]
fn a_write_is_misdirected() {
    for turn in 0..2 {
        let target = move |number: u64| (number * 7_919 + turn * 131) % BLOCKS;
        deceive(|number| Fault::misdirect(target(number)).after(number), "misdirected write");
    }
}

/// A superblock whose write failed may still be on the device. The blocks that it names must not be overwritten, not even by a value in
/// flight when the store becomes read-only.
#[test]
fn blocks_that_a_failed_superblock_names_stay() {
    const LARGE: u64 = 5_000;
    let sim = formatted(LARGE, 5);
    for flush in 1..30 {
        let sim = SimDevice::from_image(sim.image());
        let device = Device::new(sim.clone());
        let store = open(&device, tiny()).unwrap();
        let mut stream = store.put_stream(&key(b"stream"), PutOptions::default()).unwrap();
        let mut model = Model::new();
        let mut workload = workload(1);
        sim.inject(Fault::fail(FaultOp::Flush, libc::EIO).after(flush));
        for _ in 0..40 {
            let operation = workload.next(&model);
            step(&store, &mut model, &operation, true, |_| {});
        }
        assert!(store.stat().poisoned.is_some());
        let piece = vec![0xEE; 9 << 20];
        let written = block_on(stream.write(&piece));
        let _ = written;
        drop(stream);
        sim.mark(1);
        drop(store);
        sim.history().for_each_crash_state(6, flush, |point, image| {
            if point.marks.last() == Some(&1) {
                reopens(image, &model, &format!("flush {flush}, state {}", point.id), false);
            }
        });
    }
}
