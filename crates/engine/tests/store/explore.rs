//! The crash explorer at its target size (T2, T2a and T3 of `docs/reliability.md`).
//!
//! Many small stores, each with a different shape and random seed, on a device that records. After every legal crash state the store opens
//! to a state that the acknowledgements allow: no acknowledged write is lost, no write batch exists in part, no store is refused. All cores
//! explore; a case does not depend on the thread that takes it. `cargo test` explores for some seconds, `cargo x lab` up to the targets. A
//! failure prints the command that repeats it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use shoal_base::SeededEntropy;
use shoal_base::task::Boxed;
use shoal_buffer::Buffer;
use shoal_device::Device;
use shoal_device::sim::{Image, SimDevice, StateId};
use shoal_engine::{
    Change, Error, Metadata, ObjectKey, OpenOptions, PutOptions, ReadLevel, Store, Write, WriteBatch,
    block_on,
};
use shoal_testkit::lab;
use shoal_testkit::{Condition, Effect, Model, OpId, Operation, Value, Workload, WorkloadOptions};

use crate::common::{
    self, check_clean, key, open, open_read_only, perform, quiet, read, recover_all, tiny_with_memtables,
    works_on,
};
use crate::layers::lists;

/// Puts values as one transaction, and waits until they are durable.
fn transacted<'a>(store: &'a Store, values: &'a [(ObjectKey, Value)]) -> Boxed<'a, Result<(), Error>> {
    Box::pin(async move {
        let named: Vec<_> = values.iter().map(|(key, _)| (key.clone(), ReadLevel::Nothing)).collect();
        let put = |(_, value): &(_, Value)| Change::Put {
            value: value.to_vec().into(),
            metadata: Metadata::default(),
            expiry: common::long_life(value.seed),
        };
        let decide = |_: &[_]| (values.iter().map(put).collect(), ());
        for pending in common::transact(store, &named, decide).await?.pending {
            pending.durable().await?;
        }
        Ok(())
    })
}

/// The same as one write batch, which reads no key.
fn written<'a>(store: &'a Store, values: &'a [(ObjectKey, Value)]) -> Boxed<'a, Result<(), Error>> {
    Box::pin(async move {
        let options = |(_, value): &(_, Value)| {
            let expiry = common::long_life(value.seed);
            (Buffer::from(value.to_vec()), PutOptions { expiry, ..PutOptions::default() })
        };
        let puts: Vec<_> = values.iter().map(options).collect();
        let writes =
            values.iter().zip(&puts).map(|((key, _), (value, options))| Write::put(key, value, options));
        store.write(writes.collect::<WriteBatch<'_>>()).await?.durable().await.map(drop)
    })
}

/// The shape of one case. Everything else follows from the random seed.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    blocks: u64,
    operations: usize,
    keys: u64,
    sizes: &'static [usize],
    /// Records that the memtables hold: an apply follows at the latest when they are full.
    memtable_records: usize,
    /// Percentage of operations: write batches of several keys, and reopenings, clean or not.
    batches: u64,
    reopens: u64,
    states_per_point: usize,
    /// Bytes of entries that a slice of a compaction takes.
    slice_bytes: usize,
    /// The number of values of `dense_records` that the cases take in turn: all 3, or the 2 that make many layers.
    densities: u64,
}

/// Leaves, values from the log that are packed, values with separate extents; few keys, so that overwrites and deletes are common; small
/// devices, so that the other tablet reuses freed space and the log turns. In the last shape a compaction takes many slices, so that crashes and
/// applies come between them.
const SHAPES: [Shape; 6] = [
    Shape {
        name: "leaf",
        blocks: 224,
        operations: 30,
        keys: 6,
        sizes: &[0, 10, 90, 100],
        memtable_records: 8,
        batches: 15,
        reopens: 4,
        states_per_point: 16,
        slice_bytes: 2 << 10,
        densities: 3,
    },
    Shape {
        name: "packed",
        blocks: 256,
        operations: 40,
        keys: 12,
        sizes: &[60, 300, 900, 1_500, 1_900],
        memtable_records: 14,
        batches: 20,
        reopens: 3,
        states_per_point: 12,
        slice_bytes: 2 << 10,
        densities: 3,
    },
    Shape {
        name: "extents",
        blocks: 320,
        operations: 24,
        keys: 5,
        sizes: &[90, 1_500, 5_000, 20_000, 70_000],
        memtable_records: 8,
        batches: 15,
        reopens: 4,
        states_per_point: 12,
        slice_bytes: 2 << 10,
        densities: 3,
    },
    Shape {
        name: "reuse",
        blocks: 200,
        operations: 70,
        keys: 4,
        sizes: &[20, 2_500, 9_000, 40_000],
        memtable_records: 6,
        batches: 10,
        reopens: 3,
        states_per_point: 6,
        slice_bytes: 2 << 10,
        densities: 3,
    },
    Shape {
        name: "eager",
        blocks: 256,
        operations: 24,
        keys: 4,
        sizes: &[30, 1_200, 5_000],
        memtable_records: 2,
        batches: 15,
        reopens: 8,
        states_per_point: 10,
        slice_bytes: 2 << 10,
        densities: 3,
    },
    Shape {
        name: "slices",
        blocks: 256,
        operations: 160,
        keys: 120,
        sizes: &[30, 90, 100],
        memtable_records: 3,
        batches: 15,
        reopens: 5,
        states_per_point: 2,
        slice_bytes: 200,
        densities: 2,
    },
];

/// Keys of one write batch at most.
const BATCH_KEYS_MAX: u64 = 3;

impl Shape {
    /// The options of a case. Its number also determines the minimum of records per leaf of the base; fewer go to a layer.
    fn options(&self, case: u64) -> OpenOptions {
        let mut options = tiny_with_memtables(self.memtable_records);
        options.tuning.merge_slice_bytes = self.slice_bytes;
        options.tuning.dense_records =
            [4, 1 << 20, 1][(case / SHAPES.len() as u64 % self.densities) as usize];
        options
    }

    fn of(case: u64) -> Self {
        SHAPES[(case % SHAPES.len() as u64) as usize]
    }
}

/// The expected state at one mark.
#[derive(Clone)]
struct Expected {
    model: Model,
    /// The write batch in flight: its keys and the value of each after it.
    batch: Vec<(Vec<u8>, Value)>,
}

/// One recorded run.
struct Run {
    sim: Arc<SimDevice>,
    /// By mark.
    expected: Vec<Expected>,
    counts: Counts,
}

/// The events that the runs met: a laboratory that never sees a packed run proves nothing about packed runs.
#[derive(Default)]
struct Counts {
    writes: AtomicU64,
    batches: AtomicU64,
    reopens: AtomicU64,
    applies: AtomicU64,
    packed: AtomicU64,
    extents: AtomicU64,
    log_blocks: AtomicU64,
    layers: AtomicU64,
    merges: AtomicU64,
    frontiers: AtomicU64,
}

impl Counts {
    fn all(&self) -> [(&'static str, &AtomicU64); 10] {
        [
            ("writes", &self.writes),
            ("write batches", &self.batches),
            ("reopens", &self.reopens),
            ("applies", &self.applies),
            ("packed runs seen", &self.packed),
            ("extent blocks", &self.extents),
            ("log blocks", &self.log_blocks),
            ("layers seen", &self.layers),
            ("compactions", &self.merges),
            ("operations amid a compaction", &self.frontiers),
        ]
    }

    fn add(&self, other: &Self) {
        for ((_, sum), (_, more)) in self.all().into_iter().zip(other.all()) {
            sum.fetch_add(more.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn note(&self, store: &Store) {
        let stat = store.stat();
        let seen = [
            (&self.applies, stat.applies),
            (&self.packed, stat.packed_runs),
            (&self.extents, stat.extent_blocks_written),
            (&self.log_blocks, stat.log_blocks_written),
            (&self.layers, stat.layers),
            (&self.merges, stat.merges),
        ];
        seen.into_iter().for_each(|(sum, more)| _ = sum.fetch_add(more, Ordering::Relaxed));
    }
}

/// A driver that records the expected state before and after each operation.
struct Driver {
    sim: Arc<SimDevice>,
    options: OpenOptions,
    store: Option<Store>,
    model: Model,
    expected: Vec<Expected>,
    counts: Counts,
    /// Numbers for the values of batches; no other write has them.
    seeds: u64,
}

impl Driver {
    fn new(blocks: u64, seed: u64, options: OpenOptions) -> Self {
        let (sim, _) = common::blank(blocks, seed);
        // The writes of formatting are not tested here: record from the empty store.
        let sim = SimDevice::from_image(sim.image());
        let mut driver = Self {
            store: open(&Device::new(sim.clone()), options.clone()).ok(),
            sim,
            options,
            model: Model::new(),
            expected: Vec::new(),
            counts: Counts::default(),
            seeds: 1 << 40,
        };
        assert!(driver.store.is_some(), "an empty store opens");
        driver.expect(Vec::new());
        driver
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn expect(&mut self, batch: Vec<(Vec<u8>, Value)>) {
        self.expected.push(Expected { model: self.model.clone(), batch });
        self.sim.mark(self.expected.len() as u64 - 1);
    }

    fn ended(&mut self) {
        self.expect(Vec::new());
        if lists(&self.sim.image()).iter().any(|list| list.compacting > 0) {
            self.counts.frontiers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn write(&mut self, operation: &Operation) {
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
        let id = self.model.begin(&operation.key, operation.effect, operation.condition);
        self.expect(Vec::new());
        match block_on(perform(self.store(), operation)) {
            Ok(version) => self.model.acknowledge(id, version.0).unwrap(),
            Err(Error::ConditionFailed { current, .. }) => {
                self.model.rejected(id, current.map(|version| version.0)).unwrap();
            }
            Err(Error::Full { .. }) => self.model.refused(id).unwrap(),
            Err(error) => panic!("{operation:?}: {error}"),
        }
        self.ended();
    }

    /// Writes several keys as one batch, all or none (R22).
    fn write_batch(&mut self, keys: &[u64], sizes: &[usize]) {
        self.counts.batches.fetch_add(1, Ordering::Relaxed);
        let mut parts: BTreeMap<Vec<u8>, (OpId, Value)> = BTreeMap::new();
        for (&number, &bytes) in keys.iter().zip(sizes) {
            let name = Workload::key(number);
            if parts.contains_key(&name) {
                continue;
            }
            self.seeds += 1;
            // Values of a batch differ in their bytes, so none is empty.
            let value = Value { key: number, seed: self.seeds, bytes: bytes.max(16) };
            let id = self.model.begin(&name, Effect::Put(value), Condition::None);
            parts.insert(name, (id, value));
        }
        self.expect(parts.iter().map(|(name, (_, value))| (name.clone(), *value)).collect());
        let values: Vec<_> = parts.iter().map(|(name, (_, value))| (key(name), *value)).collect();
        let is_transaction = self.seeds.is_multiple_of(2);
        let stored = if is_transaction { transacted } else { written }(self.store(), &values);
        match block_on(stored) {
            Ok(()) => {
                // The batch is durable: a read returns each key's version.
                for (name, (id, _)) in &parts {
                    let version = read(self.store(), name).unwrap().unwrap().0;
                    self.model.acknowledge(*id, version).unwrap();
                }
            }
            Err(Error::Full { .. }) => {
                parts.values().for_each(|(id, _)| self.model.refused(*id).unwrap());
            }
            Err(error) => panic!("a write batch: {error}"),
        }
        self.ended();
    }

    /// Reopens the store; all writes have completed, so nothing may change.
    fn reopen(&mut self, clean: bool) {
        self.counts.reopens.fetch_add(1, Ordering::Relaxed);
        self.counts.note(self.store());
        if clean {
            block_on(self.store().close()).unwrap();
        }
        self.store = None;
        let store = open(&Device::new(self.sim.clone()), self.options.clone()).unwrap();
        recover_all(&store, &mut self.model).unwrap();
        self.store = Some(store);
        self.ended();
    }

    fn finish(mut self) -> Run {
        self.counts.note(self.store());
        let mut model = self.model.clone();
        common::observe_all(self.store(), &mut model);
        // T28: all readers have released their pins.
        assert_eq!(self.store().stat().pool.frames_pinned, 0, "frames are pinned at the end");
        self.store = None;
        Run { sim: self.sim, expected: self.expected, counts: self.counts }
    }
}

fn record(shape: Shape, seed: u64) -> Run {
    let mut driver = Driver::new(shape.blocks, seed, shape.options(seed));
    let options = WorkloadOptions {
        keys: shape.keys,
        sizes: shape.sizes.to_vec(),
        delete_percent: 20,
        condition_percent: 15,
    };
    let mut workload = Workload::new(seed, options);
    let dice = SeededEntropy::new(seed ^ 0xD1CE);
    for _ in 0..shape.operations {
        let roll = dice.below(100);
        if roll < shape.batches {
            let count = 2 + dice.below(BATCH_KEYS_MAX - 1);
            let keys: Vec<u64> = (0..count).map(|_| dice.below(shape.keys)).collect();
            let sizes: Vec<usize> =
                keys.iter().map(|_| shape.sizes[dice.below(shape.sizes.len() as u64) as usize]).collect();
            driver.write_batch(&keys, &sizes);
        } else if roll < shape.batches + shape.reopens {
            driver.reopen(dice.below(2) == 0);
        } else {
            let operation = workload.next(&driver.model);
            driver.write(&operation);
        }
    }
    driver.finish()
}

/// Compares an opened store with the expected state; returns the model that is certain then.
fn compare(store: &Store, expected: &Expected) -> Result<Model, String> {
    let mut model = expected.model.clone();
    recover_all(store, &mut model)?;
    // Either all keys of the batch in flight are new, or none.
    let is_new = |(name, value): &(Vec<u8>, Value)| {
        let found = read(store, name).map_err(|error| error.to_string())?;
        Ok(found.is_some_and(|(_, bytes)| value.check(&bytes).is_ok()))
    };
    let new = expected.batch.iter().map(is_new).collect::<Result<Vec<bool>, String>>()?;
    if new.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(format!("a write batch is there by half: {new:?}"));
    }
    Ok(model)
}

/// As [`compare`], for a store opened read-only, on a device that allows no write. An opening for writing must show the same.
fn compare_read_only(image: &Image, expected: &Expected, options: &OpenOptions) -> Result<Expected, String> {
    let store = open_read_only(image, options.clone()).map_err(|error| format!("did not open: {error}"))?;
    Ok(Expected { model: compare(&store, expected)?, batch: expected.batch.clone() })
}

/// Opens a crash state and compares. `deep`: continues to write, checks the ownership of every block, and opens again.
fn recovers(image: Image, expected: &Expected, options: &OpenOptions, deep: bool) -> Result<(), String> {
    let device = quiet(&image).1;
    let store = open(&device, options.clone()).map_err(|error| format!("did not open: {error}"))?;
    let mut model = compare(&store, expected)?;
    if !deep {
        return Ok(());
    }
    let writes = WorkloadOptions {
        keys: 5,
        sizes: vec![30, 1_500, 3_000, 9_000],
        delete_percent: 10,
        condition_percent: 0,
    };
    let mut workload = Workload::new(7_000_000, writes);
    works_on(&store, &mut model, &mut workload, 10)?;
    drop(store);
    check_clean(&device)?;
    let store = open(&device, options.clone()).map_err(|error| format!("did not open again: {error}"))?;
    recover_all(&store, &mut model)
}

/// One of this many states is tested beyond the comparison.
const DEEP_EVERY: u64 = 61;

/// One of this many states is opened read-only first.
const READ_ONLY_EVERY: u64 = 8;

/// Explores one case; returns the number of states, or the wrong state with the reason.
fn explore(case: u64, only: Option<StateId>) -> Result<(u64, Counts), String> {
    let shape = Shape::of(case);
    let run = record(shape, case);
    let options = shape.options(case);
    let judge = |id: StateId, marks: &[u64], image: Image, number: u64| {
        let Some(&mark) = marks.last() else { return Ok(()) };
        let mut expected = Cow::Borrowed(&run.expected[mark as usize]);
        if number.is_multiple_of(READ_ONLY_EVERY) {
            let seen = compare_read_only(&image, &expected, &options).map_err(|violation| {
                describe("crash_states", case, id, &format!("opened read-only: {violation}"))
            })?;
            expected = Cow::Owned(seen);
        }
        recovers(image, &expected, &options, number.is_multiple_of(DEEP_EVERY))
            .map_err(|violation| describe("crash_states", case, id, &violation))
    };
    let history = run.sim.history();
    if let Some(id) = only {
        let (point, image) = history.crash_state(id).expect("this case has no such state");
        judge(id, point.marks, image.clone(), 1)?;
        judge(id, point.marks, image, 0)?;
        return Ok((1, run.counts));
    }
    let (mut states, mut result) = (0, Ok(()));
    history.for_each_crash_state(shape.states_per_point, case, |point, image| {
        if result.is_ok() {
            states += 1;
            result = judge(point.id, point.marks, image, states);
        }
    });
    result.map(|()| (states, run.counts))
}

fn describe(test: &str, case: u64, id: StateId, violation: &str) -> String {
    format!(
        "{violation}\n  case {case} ({}), state {id}; repeat it with:\n  \
         LAB_CASE={case} LAB_STATE={id} cargo test --release -p shoal-engine --test store explore::{test} -- --exact --nocapture",
        Shape::of(case).name
    )
}

/// The sums over all cores.
struct Total {
    states: u64,
    cases: u64,
    counts: Counts,
    seconds: f64,
}

/// Explores cases from `first`, on all cores, until `goal` states were seen.
fn explore_many(
    goal: u64,
    first: u64,
    explore: impl Fn(u64) -> Result<(u64, Counts), String> + Sync,
) -> Total {
    let began = Instant::now();
    let (next, states, counts) = (AtomicU64::new(first), AtomicU64::new(0), Counts::default());
    let work = || {
        while states.load(Ordering::Relaxed) < goal {
            let (seen, more) = explore(next.fetch_add(1, Ordering::Relaxed))?;
            states.fetch_add(seen, Ordering::Relaxed);
            counts.add(&more);
        }
        Ok::<(), String>(())
    };
    let cores = lab::cores();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => result.unwrap_or_else(|violation| panic!("{violation}")),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    Total {
        states: states.into_inner(),
        cases: next.into_inner() - first,
        counts,
        seconds: began.elapsed().as_secs_f64(),
    }
}

impl Total {
    fn print(&self, what: &str) {
        let counts: Vec<String> = self
            .counts
            .all()
            .iter()
            .map(|(name, count)| format!("{} {name}", count.load(Ordering::Relaxed)))
            .collect();
        println!(
            "{what}: {} states of {} cases in {:.1} s ({:.0} a second); {}",
            self.states,
            self.cases,
            self.seconds,
            self.states as f64 / self.seconds,
            counts.join(", ")
        );
    }
}

/// T2: 400,000 legal states in the laboratory, some thousand here.
#[test]
fn crash_states() {
    if let Some(case) = lab::given("CASE") {
        let state = std::env::var("LAB_STATE").ok().map(|text| text.parse().expect("LAB_STATE"));
        let (states, _) = explore(case, state).unwrap_or_else(|what| panic!("{what}"));
        println!("{states} states");
        return;
    }
    let total = explore_many(lab::number("STATES", 8_000), 1_000 * lab::number("SEED", 1), |case| {
        explore(case, None)
    });
    total.print("crash states");
    let has_layers = lab::number("LAYERS", 1) != 0;
    for (name, count) in total.counts.all() {
        let is_of_layers = ["layers seen", "compactions", "operations amid a compaction"].contains(&name);
        let is_expected = has_layers || !is_of_layers;
        assert_eq!(
            count.load(Ordering::Relaxed) > 0,
            is_expected,
            "{name}: the runs do not reach what they are to test"
        );
    }
}

/// The operations of a short sequence.
#[derive(Clone, Copy, Debug)]
enum Small {
    Put { key: usize, bytes: usize },
    Delete,
    WriteBatch,
    Reopen { clean: bool },
}

/// Two keys in different tablets.
fn small_keys() -> [u64; 2] {
    let tablet = |number: u64| key(Workload::key(number)).slot() < 8_192;
    [0, (1..).find(|&number| tablet(number) != tablet(0)).unwrap()]
}

/// `key` is the place in [`small_keys`].
const ALPHABET: [Small; 9] = [
    Small::Put { key: 0, bytes: 40 },
    Small::Put { key: 0, bytes: 1_500 },
    Small::Put { key: 0, bytes: 5_000 },
    Small::Put { key: 1, bytes: 40 },
    Small::Put { key: 1, bytes: 5_000 },
    Small::Delete,
    Small::WriteBatch,
    Small::Reopen { clean: true },
    Small::Reopen { clean: false },
];

/// Returns the sequence with this number, from 0: first the sequences of one operation, then of two, and so on.
fn sequence(mut number: usize) -> Vec<Small> {
    let mut length = 1;
    let mut count = ALPHABET.len();
    while number >= count {
        number -= count;
        count *= ALPHABET.len();
        length += 1;
    }
    (0..length)
        .map(|_| {
            let small = ALPHABET[number % ALPHABET.len()];
            number /= ALPHABET.len();
            small
        })
        .collect()
}

fn explore_sequence(number: usize, states_per_point: usize) -> Result<(u64, Counts), String> {
    let small = sequence(number);
    // Every second write finds the memtables full: the shortest sequences include applies and publishes, too.
    let options = tiny_with_memtables(2);
    let mut driver = Driver::new(224, 7, options.clone());
    let keys = small_keys();
    for (place, &small) in small.iter().enumerate() {
        let seed = 1 + place as u64;
        let write =
            |key: u64, effect| Operation { key: Workload::key(key), effect, condition: Condition::None };
        match small {
            Small::Put { key, bytes } => {
                let key = keys[key];
                driver.write(&write(key, Effect::Put(Value { key, seed, bytes })));
            }
            Small::Delete => driver.write(&write(keys[0], Effect::Delete)),
            Small::WriteBatch => driver.write_batch(&keys, &[1_200, 40]),
            Small::Reopen { clean } => driver.reopen(clean),
        }
    }
    let run = driver.finish();
    let (mut states, mut result) = (0, Ok(()));
    run.sim.history().for_each_crash_state(states_per_point, number as u64, |point, image| {
        let Some(&mark) = point.marks.last() else { return };
        if result.is_ok() {
            states += 1;
            let deep = states % DEEP_EVERY == 0;
            result = recovers(image, &run.expected[mark as usize], &options, deep).map_err(|violation| {
                format!("{violation}\n  sequence {number} ({small:?}), state {}", point.id)
            });
        }
    });
    result.map(|()| (states, run.counts))
}

/// T2a: every sequence of up to three operations on a fresh store in the laboratory, of up to two here, and every crash point of each.
#[test]
fn every_short_sequence() {
    let length = lab::number("LENGTH", 2) as u32;
    let count: usize = (1..=length).map(|length| ALPHABET.len().pow(length)).sum();
    let per_point = lab::number("PER_POINT", 12) as usize;
    let began = Instant::now();
    let states = AtomicU64::new(0);
    lab::on_all_cores(count as u64, |number| {
        let (seen, _) =
            explore_sequence(number as usize, per_point).unwrap_or_else(|violation| panic!("{violation}"));
        states.fetch_add(seen, Ordering::Relaxed);
    });
    let states = states.into_inner();
    println!("{count} sequences of up to {length} operations: {states} states in {:?}", began.elapsed());
    assert!(states > 20 * count as u64, "only {states} states");
}

/// Number of consecutive crashes: the last recovery yields the same as the first one would have.
const DEPTH: usize = 3;

/// Opens `image` and crashes again at moments of that recovery, `depth` times; `certain` is the result of a single recovery.
fn recovers_again(
    image: Image,
    certain: &Expected,
    options: &OpenOptions,
    depth: usize,
    seed: u64,
    dice: &SeededEntropy,
) -> Result<u64, String> {
    let sim = SimDevice::from_image(image);
    let store =
        open(&Device::new(sim.clone()), options.clone()).map_err(|error| format!("did not open: {error}"))?;
    compare(&store, certain)?;
    drop(store);
    let (mut states, mut result) = (1, Ok(()));
    if depth == 0 {
        return Ok(states);
    }
    sim.history().for_each_crash_state(3, seed, |again, image| {
        // All of the second crashes, some of the third ones.
        if result.is_err() || (depth < DEPTH && dice.below(4) > 0) {
            return;
        }
        match recovers_again(image, certain, options, depth - 1, seed + 1, dice) {
            Ok(seen) => states += seen,
            Err(violation) => result = Err(format!("{violation}, after {}", again.id)),
        }
    });
    result.map(|()| states)
}

fn explore_recovery(case: u64) -> Result<(u64, Counts), String> {
    let shape = Shape::of(case);
    let shape = Shape { operations: (shape.operations * 2 / 5).max(14), ..shape };
    let run = record(shape, case);
    let options = shape.options(case);
    let dice = SeededEntropy::new(case);
    let (mut states, mut result) = (0, Ok(()));
    run.sim.history().for_each_crash_state(2, case, |point, image| {
        let Some(&mark) = point.marks.last() else { return };
        if result.is_err() || dice.below(shape.operations as u64) > 0 {
            return;
        }
        let once = || {
            let store =
                open(&quiet(&image).1, options.clone()).map_err(|error| format!("did not open: {error}"))?;
            let model = compare(&store, &run.expected[mark as usize])?;
            let certain = Expected { model, batch: Vec::new() };
            recovers_again(image.clone(), &certain, &options, DEPTH, case, &dice)
        };
        match once() {
            Ok(seen) => states += seen,
            Err(violation) => result = Err(format!("{violation}; case {case}, state {}", point.id)),
        }
    });
    result.map(|()| (states, run.counts))
}

/// T3: crashes during recovery, three deep, yield the same as one recovery: 40,000 in the laboratory.
#[test]
fn crashes_during_recovery() {
    let goal = lab::number("RECOVERIES", 600);
    let total = explore_many(goal, 1_000 * lab::number("SEED", 1), explore_recovery);
    total.print("crashes during recovery");
}
