//! Schedules (T10 of `docs/reliability.md`): the real store and the real pool, one schedule of a few threads after another.
//!
//! Built with `--cfg shoal_shuttle` (`cargo x lab --only schedules`) the locks and atomics by which threads of device, space, pool and
//! engine meet are shuttle's (`shoal_base::sync`), and each use of one is a point at which another thread may continue. Three quarters
//! of the schedules are drawn by PCT (with few changes of priority at random points), a quarter changes threads by chance. The device is
//! the simulated one; if a model checks durability, the device records, and a crash at one moment of each schedule is recovered.
//!
//! Shuttle does not see other orders of memory than the sequential one (loom's models are for that), nor the store's own
//! threads (a writer drives the commit, applies and publishes itself here), nor time.

#![cfg(all(test, shoal_shuttle))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../crates/engine/tests/store/common/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the engine's tests use the rest")]
mod common;

mod commit;
mod pages;
mod read_cache;
mod readers;
mod sessions;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use common::{format, key, open};
use shoal_base::task::block_on;
use shoal_device::Device;
use shoal_device_sim::{CrashPoint, Image, SimDevice};
use shoal_engine::{ByteRange, OpenOptions, PutOptions, PutResult, Result, Store};
use shoal_testkit::bytes::name_of;
use shoal_testkit::{Value, lab};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread::JoinHandle;
use shuttle::{Config, MaxSteps, Runner};

/// Changes of priority in a schedule of PCT: most known bugs need one or two.
const DEPTH: usize = 3;

/// Scheduling points of a schedule: more is a thread that spins.
const STEPS_MAX: usize = 2_000_000;

/// Stack of each thread, in bytes: the engine's futures are deep, and the dev profile keeps all of them.
const STACK_BYTES: usize = 512 << 10;

fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(model);
}

/// The share of the laboratory's schedules that a model runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    All,
    /// Its schedules are long: a twentieth, but not less than show the bugs that are injected.
    Few,
}

/// The minimum of a model that runs few schedules, if the laboratory wants that many.
const FEW_LEAST: u64 = 3_000;

/// Runs `model` by the laboratory's number of schedules. Each thread of a schedule must finish: one that waits in vain is
/// reported as a deadlock.
fn explore(name: &str, share: Share, model: impl Fn() + Send + Sync + 'static) {
    let (all, seed) = (lab::number("SCHEDULES", 200), lab::number("SEED", 1));
    let count = if share == Share::All { all } else { all.min((all / 20).max(FEW_LEAST)) };
    let (count, began) = (count as usize, Instant::now());
    let by_pct = count * 3 / 4;
    let model = Arc::new(model);
    let again = model.clone();
    run(PctScheduler::new_from_seed(seed, DEPTH, by_pct), move || model());
    run(RandomScheduler::new_from_seed(seed, count - by_pct), move || again());
    let seconds = began.elapsed().as_secs_f64();
    println!("schedules, {name}: {count}, of which {by_pct} by PCT, seed {seed}: all fine; {seconds:.1} s");
}

/// Runs `make` once under the rules of a schedule.
fn once<T: Send + 'static>(make: impl Fn() -> T + Send + Sync + 'static) -> T {
    let made = Arc::new(Mutex::new(None));
    let kept = made.clone();
    run(RandomScheduler::new_from_seed(1, 1), move || *kept.lock().unwrap() = Some(make()));
    made.lock().unwrap().take().expect("it was made")
}

/// An empty store of two tablets.
fn formatted(blocks: u64) -> Image {
    once(move || {
        let sim = SimDevice::new(blocks);
        format(&Device::new(sim.clone()), blocks, 5);
        sim.image()
    })
}

/// An open store, and the device that it is on.
#[derive(Clone)]
struct World {
    sim: Arc<SimDevice>,
    store: Store,
}

/// The value with this number of the key with this name: its bytes identify it.
fn value(name: u64, number: u64, bytes: usize) -> Value {
    Value { key: name, seed: number, bytes: bytes.max(16) }
}

/// A mark of the history: this number of this key is durable.
fn mark(name: u64, number: u64) -> u64 {
    name << 32 | number
}

impl World {
    fn open(image: &Image, options: OpenOptions) -> Self {
        let sim = SimDevice::from_image(image.clone());
        let store = open(&Device::new(sim.clone()), options).unwrap();
        Self { sim, store }
    }

    fn put(&self, name: u64, number: u64, bytes: usize) -> Result<PutResult> {
        let value = value(name, number, bytes).to_vec().into();
        block_on(self.store.put(&key(&name_of(name)), value, PutOptions::default()))
    }

    /// Writes the numbers of a key one after the other, and marks each when it is acknowledged.
    fn put_all(&self, name: u64, numbers: std::ops::RangeInclusive<u64>, bytes: usize) {
        for number in numbers {
            self.put(name, number, bytes).unwrap();
            self.sim.mark(mark(name, number));
        }
    }

    /// The number that a key holds, 0 for none.
    fn get(&self, name: u64) -> u64 {
        self.try_get(name).unwrap_or_else(|error| panic!("key {name}: {error}"))
    }

    fn try_get(&self, name: u64) -> Result<u64> {
        let Some(object) = block_on(self.store.get(&key(&name_of(name)), ByteRange::ALL))? else {
            return Ok(0);
        };
        let bytes = object.value.to_vec();
        let number = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        value(name, number, bytes.len()).check(&bytes).unwrap_or_else(|wrong| panic!("key {name}: {wrong}"));
        Ok(number)
    }

    /// Drops the store without closing it, and opens the state after a crash at some moment; `judge` receives the number
    /// that was promised for each key then: the store has at least that one.
    fn crash(self, options: OpenOptions, judge: impl Fn(&World, &dyn Fn(u64) -> u64)) {
        let Self { sim, store } = self;
        drop(store);
        let history = sim.history();
        let (point, seed) = (thread_rng().gen_range(0..=history.events().len()), thread_rng().r#gen::<u32>());
        // Not every moment has a crash state: the next one that has.
        let found = (point..=history.events().len())
            .find_map(|point| history.crash_state(format!("{point}:0:1:{seed:x}").parse().unwrap()));
        let Some((CrashPoint { marks, .. }, image)) = found else { return };
        let promised = |name: u64| {
            let of_key = marks.iter().filter(|&&mark| mark >> 32 == name).map(|mark| mark & 0xFFFF_FFFF);
            of_key.max().unwrap_or(0)
        };
        judge(&World::open(&image, options), &promised);
    }
}

/// Runs `work` with a copy of the world as a thread of the schedule.
fn spawn<T: Send + 'static>(world: &World, work: impl FnOnce(World) -> T + Send + 'static) -> JoinHandle<T> {
    let world = world.clone();
    shuttle::thread::spawn(move || work(world))
}

fn join<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}
