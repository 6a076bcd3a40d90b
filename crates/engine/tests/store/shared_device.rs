//! Two servers on one device, as on two machines: no lock stops the second one.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shoal_device::{BlockDevice, Device, IoBuf, Op, Submission};
use shoal_device_sim::SimDevice;
use shoal_engine::{Error, OpenOptions, Store, block_on};
use shoal_testkit::device::{Intercept, Intercepted};
use shoal_testkit::wait::eventually;

use crate::common::{
    ByName, assert_clean, device, formatted, open, tiny, tiny_with_memtables, tiny_with_threads,
};

const BLOCKS: u64 = 2_048;

fn shared() -> OpenOptions {
    let mut options = OpenOptions { shared_device: true, ..tiny() };
    // Only the look after a flush detects the other server.
    options.tuning.file_look_ns = u64::MAX;
    options
}

fn is_refused(result: &Result<u64, Error>) -> bool {
    matches!(result, Err(Error::Unknown(why) | Error::Poisoned(why)) if why.contains("another server opened"))
}

/// The former server acknowledges nothing from its first flush on after another one opened the device, and the other one has everything
/// that was acknowledged.
#[test]
fn the_former_server_stops_at_its_next_flush() {
    for applied in [false, true] {
        let sim = formatted(BLOCKS, 7);
        let first = open(&device(&sim), shared()).unwrap();
        for which in 0..if applied { 40 } else { 3 } {
            first.put_numbered(which, which, 300);
        }
        let second = open(&device(&sim), shared()).unwrap();
        let refused = first.set_numbered(50, 1, 300);
        assert!(is_refused(&refused), "{refused:?}");
        for which in 51..60 {
            assert!(is_refused(&first.set_numbered(which, 1, 300)));
        }
        let why = first.stat().poisoned.unwrap();
        assert!(why.contains("opening 2 is on it") && why.contains("this server, opening 1"), "{why}");
        first.assert_numbered(1, 1, 300);
        assert!(matches!(block_on(first.close()), Err(Error::Poisoned(_))), "a stop is no success");
        for which in 0..if applied { 40 } else { 3 } {
            second.assert_numbered(which, which, 300);
        }
    }
}

/// The second server works for a while beside an idle first one, which writes nothing, and so is its only owner.
#[test]
fn an_idle_former_server_harms_nothing() {
    let sim = formatted(BLOCKS, 8);
    let first = open(&device(&sim), shared()).unwrap();
    first.put_numbered(1, 1, 300);
    let second = open(&device(&sim), shared()).unwrap();
    for which in 0..40 {
        second.put_numbered(which, 2, 300);
    }
    assert!(matches!(block_on(first.close()), Err(Error::Poisoned(_))));
    for which in 40..80 {
        second.put_numbered(which, 2, 300);
    }
    block_on(second.close()).unwrap();
    assert_clean(&device(&sim), "the second server's store");
    let third = open(&device(&sim), shared()).unwrap();
    (0..80).for_each(|which| third.assert_numbered(which, 2, 300));
}

/// Threads of the store look, too: without any write a former server stops within the period of the look at the file.
#[test]
fn an_idle_former_server_notices() {
    let sim = formatted(BLOCKS, 9);
    let mut options = OpenOptions { shared_device: true, ..tiny_with_threads() };
    options.tuning.file_look_ns = 1_000_000;
    let first = open(&device(&sim), options).unwrap();
    first.put_numbered(1, 1, 300);
    let _second = open(&device(&sim), shared()).unwrap();
    eventually("the former server is read-only", || first.stat().poisoned.is_some());
}

/// The work of another server during the requests of an opening.
type Meanwhile = Box<dyn FnMut(u64) + Send>;

/// A device whose n-th request waits for the work of another server.
struct Interrupted {
    sim: Arc<SimDevice>,
    meanwhile: Mutex<Option<Meanwhile>>,
    requests: AtomicU64,
}

impl Intercept for Interrupted {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.sim
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        for _ in &submissions {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            if let Some(work) = &mut *self.meanwhile.lock().unwrap() {
                work(number);
            }
        }
        submissions
    }
}

/// Before each request of the second server's opening, the first one writes: everything that it acknowledged is in the second one's store.
#[test]
fn writes_acknowledged_while_another_server_opens_are_there() {
    let sim = formatted(BLOCKS, 10);
    // It publishes nothing meanwhile: an opening that finds that is refused.
    let mut options = OpenOptions { memtable_bytes: Some(1 << 20), ..shared() };
    options.tuning.memtable_records_max = 1_000;
    let first = open(&device(&sim), options).unwrap();
    (0..6).for_each(|which| first.put_numbered(which, 0, 300));
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let (noted, writer) = (acknowledged.clone(), first.clone());
    let meanwhile: Meanwhile = Box::new(move |number| {
        if writer.set_numbered(100 + number, 1, 300).is_ok() {
            noted.lock().unwrap().push(100 + number);
        }
    });
    let (device, handle) = Intercepted::new(Interrupted {
        sim: sim.clone(),
        meanwhile: Mutex::new(Some(meanwhile)),
        requests: AtomicU64::new(0),
    });
    let second = block_on(Store::open(handle, shared(), crate::common::environment(99)));
    *device.meanwhile.lock().unwrap() = None;
    let second = second.unwrap();
    let acknowledged = acknowledged.lock().unwrap().clone();
    assert!(acknowledged.len() > 5, "the opening reads before it claims the device: {acknowledged:?}");
    assert!(device.requests.load(Ordering::Relaxed) > acknowledged.len() as u64 + 5);
    (0..6).for_each(|which| second.assert_numbered(which, 0, 300));
    acknowledged.iter().for_each(|&which| second.assert_numbered(which, 1, 300));
    assert!(is_refused(&first.set_numbered(99, 1, 300)));
}

/// A device on which the second server opens at each request of the first one's opening.
#[test]
fn of_two_openings_at_one_time_one_is_refused() {
    let mut refused = 0;
    for at in 0..200 {
        let sim = formatted(BLOCKS, 11);
        let opened = Arc::new(Mutex::new(None));
        let (slot, other) = (opened.clone(), sim.clone());
        let meanwhile: Meanwhile = Box::new(move |number| {
            if number == at {
                *slot.lock().unwrap() = Some(open(&Device::new(other.clone()), shared()));
            }
        });
        let (device, handle) = Intercepted::new(Interrupted {
            sim: sim.clone(),
            meanwhile: Mutex::new(Some(meanwhile)),
            requests: AtomicU64::new(0),
        });
        let first = block_on(Store::open(handle, shared(), crate::common::environment(98)));
        *device.meanwhile.lock().unwrap() = None;
        let Some(second) = opened.lock().unwrap().take() else { break };
        let second = second.unwrap();
        let owns = |store: &Store| store.set_numbered(1, 1, 300).is_ok();
        let owners = [first.as_ref().is_ok_and(owns), owns(&second)];
        assert!(owners != [true, true], "request {at}: both acknowledge");
        refused += u64::from(first.is_err());
    }
    assert!(refused > 3, "{refused}");
}

/// A device that fails reads of the superblocks, all of them or the first copies, or that is read through a cache.
struct Blind {
    sim: Arc<SimDevice>,
    is_blind: AtomicBool,
    last: u64,
    is_cached: bool,
}

impl Blind {
    fn over(sim: &Arc<SimDevice>, last: u64, is_cached: bool) -> (Arc<Intercepted<Self>>, Device) {
        Intercepted::new(Self { sim: sim.clone(), is_blind: AtomicBool::new(false), last, is_cached })
    }
}

impl Intercept for Blind {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.sim
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        let is_blind = self.is_blind.load(Ordering::Relaxed);
        let (failed, passed): (Vec<_>, Vec<_>) = submissions
            .into_iter()
            .partition(|request| is_blind && request.op() == Op::Read && request.block() <= self.last);
        let error = io::Error::from_raw_os_error(libc::EIO);
        failed.into_iter().for_each(|request| request.fail(&error));
        passed
    }

    fn is_cached(&self) -> bool {
        self.is_cached
    }
}

/// Unreadable first copies of the superblocks are a damage of the device; if no copy can be read, the owner is not known.
#[test]
fn an_owner_that_cannot_be_known_is_none() {
    for (last, is_known) in [(1, true), (33, false)] {
        let sim = formatted(BLOCKS, 12);
        let (blind, handle) = Blind::over(&sim, last, false);
        let store = open(&handle, shared()).unwrap();
        store.put_numbered(1, 1, 300);
        blind.is_blind.store(true, Ordering::Relaxed);
        let put = store.set_numbered(2, 2, 300);
        assert_eq!(put.is_ok(), is_known, "{put:?}");
        if !is_known {
            assert!(store.stat().poisoned.unwrap().contains("whether another server has it is not known"));
        }
    }
}

/// Reads from a cache of the machine would never show the other server.
#[test]
fn a_device_behind_a_page_cache_is_refused() {
    let sim = formatted(BLOCKS, 13);
    let before = sim.image();
    let (_, handle) = Blind::over(&sim, 0, true);
    let refused = open(&handle, shared()).map(drop);
    assert!(matches!(&refused, Err(Error::Unopenable(why)) if why.contains("O_DIRECT")), "{refused:?}");
    assert!((0..BLOCKS).all(|block| sim.image().block(block) == before.block(block)), "nothing was written");
    open(&handle, tiny()).unwrap();
}

/// Without the option a commit reads nothing, and an opening claims nothing.
#[test]
fn without_the_option_nothing_is_read() {
    let reads_of = |options: OpenOptions| {
        let sim = formatted(BLOCKS, 14);
        let store = open(&device(&sim), options).unwrap();
        let before = sim.counters().reads;
        (0..3).for_each(|which| store.put_numbered(which, 1, 300));
        sim.counters().reads - before
    };
    assert_eq!((reads_of(tiny()), reads_of(shared())), (0, 3));
}

/// A device whose log is damaged at another place in each reading of an opening.
struct Changing {
    sim: Arc<SimDevice>,
    /// The damaged block of each reading; the last one stays.
    plan: Vec<Option<u64>>,
    readings: AtomicU64,
    damaged: Mutex<Option<u64>>,
}

impl Changing {
    /// Turns the damage of `block` on or off.
    fn flip(&self, block: Option<u64>) {
        let Some(block) = block else { return };
        let device = device(&self.sim);
        let mut bytes = block_on(device.read(block, IoBuf::unfilled(1))).ok().unwrap();
        bytes[100] ^= 0xFF;
        block_on(device.write(block, bytes)).ok().unwrap();
    }
}

impl Intercept for Changing {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.sim
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        // A reading starts with slot 0.
        if submissions.iter().any(|request| request.op() == Op::Read && request.block() == 0) {
            let reading = self.readings.fetch_add(1, Ordering::Relaxed) as usize;
            let next = self.plan[reading.min(self.plan.len() - 1)];
            let mut damaged = self.damaged.lock().unwrap();
            self.flip(*damaged);
            self.flip(next);
            *damaged = next;
        }
        submissions
    }
}

/// A log that another server writes to is read again; damage is the same in the second reading, and stays damage.
#[test]
fn damage_is_the_same_in_two_readings() {
    let (first, second) = (Some(36), Some(38));
    let always = [first, second].repeat(20);
    for (plan, words) in [
        (vec![first, second, None], None),
        (vec![first, first], Some("Acknowledged writes may be lost")),
        (always, Some("another server writes to the device")),
    ] {
        let sim = formatted(BLOCKS, 15);
        let store = open(&device(&sim), tiny_with_memtables(100)).unwrap();
        (0..8).for_each(|which| store.put_numbered(which, 1, 300));
        let image = sim.image();
        drop(store);
        let sim = SimDevice::from_image(image);
        let changing = Changing { sim, plan, readings: AtomicU64::new(0), damaged: Mutex::new(None) };
        let opened = open(&Intercepted::new(changing).1, shared());
        match words {
            None => (0..8).for_each(|which| opened.as_ref().unwrap().assert_numbered(which, 1, 300)),
            Some(words) => {
                let error = opened.err().unwrap().to_string();
                assert!(error.contains(words), "{error}");
            }
        }
    }
}
