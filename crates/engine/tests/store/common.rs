//! Shared by the engine's tests: a tiny store whose rare paths are common, and a driver that keeps the oracle.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use shoal_base::{BLOCK_BYTES, Clock, Entropy, ManualClock, SeededEntropy};
use shoal_buffer::Buffer;
use shoal_device::sim::{Image, SimDevice, SimOptions};
use shoal_device::{BlockDevice, Device, DeviceCounters, Op, Ticket};
use shoal_engine::{
    ByteRange, Change, DamagedRange, Decision, DeleteResult, Environment, Error, Expiry, FormatOptions,
    ListRequest, Lsn, Metadata, Object, ObjectKey, OpenOptions, Outcome, PutOptions, PutResult, ReadLevel,
    RejectRules, RequestId, Store, TransactOptions, Tuning, Updated, Write, block_on,
};
use shoal_testkit::{Condition, Effect, Model, Observed, Operation, Workload};

/// Elapsed time stands still, and every reading of the wall clock shows another time, days ahead or back: no result of
/// these tests may depend on it (R18).
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

/// A time to live that no test outlives, for every other value; each opening finds the same boot, so it never ends.
pub(crate) fn long_life(seed: u64) -> Expiry {
    if seed.is_multiple_of(2) {
        Expiry::After(Duration::from_secs(100 * 365 * 86_400))
    } else {
        Expiry::Never
    }
}

/// Sizes so small that a handful of operations crosses freezes, applies, publishes and a turn of the log, layers and their merges:
/// unless the variable LAB_LAYERS is 0, when the trees have no layers, as those of small stores.
pub(crate) fn tiny() -> OpenOptions {
    if lab_number("LAYERS", 1) == 0 { tiny_without_layers() } else { tiny_with_layers() }
}

/// Sizes so small that trees get layers at once, whatever LAB_LAYERS says.
pub(crate) fn tiny_with_layers() -> OpenOptions {
    let mut options = tiny_without_layers();
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 4, 1);
    (tuning.merge_permille, tuning.merge_slice_bytes) = (700, 2 << 10);
    options
}

/// The same for trees without layers, as those of small stores.
pub(crate) fn tiny_without_layers() -> OpenOptions {
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

/// The key of an object, in one of three folders within each other.
pub(crate) fn name_in_folder(which: u64) -> Vec<u8> {
    format!("{}object-{which:03}", "folder/".repeat((which % 3) as usize)).into_bytes()
}

/// The key of an object of the stored images of earlier versions.
pub(crate) fn name_in_image(which: u64) -> Vec<u8> {
    format!("{}{which}", "folder/".repeat((which % 3) as usize)).into_bytes()
}

pub(crate) fn flat_name(which: u64) -> Vec<u8> {
    format!("object-{which:03}").into_bytes()
}

/// Options of a put with metadata that do not fit beside a value in a leaf, or without any.
pub(crate) fn with_metadata(is_large: bool) -> PutOptions {
    let user = if is_large { vec![("large".into(), vec![b'm'; 900].into())] } else { Vec::new() };
    PutOptions { metadata: Metadata { user, ..Metadata::default() }, ..PutOptions::default() }
}

/// A change that stores a value without metadata that never ends.
pub(crate) fn change_to(value: Vec<u8>) -> Change {
    Change::Put { value: value.into(), metadata: Metadata::default(), expiry: Expiry::Never }
}

/// A device that fails every request but a read.
pub(crate) struct Unwritable(pub(crate) Arc<SimDevice>);

impl Unwritable {
    pub(crate) fn of(image: &Image) -> Device {
        let options = SimOptions { record: false, ..SimOptions::default() };
        Device::new(Arc::new(Self(SimDevice::with_options(image.clone(), options))))
    }

    fn reads(tickets: Vec<Ticket>) -> Vec<Ticket> {
        for ticket in &tickets {
            assert_eq!(ticket.op(), Op::Read, "block {} of a store that is open read-only", ticket.block());
        }
        tickets
    }
}

impl BlockDevice for Unwritable {
    fn submit(&self, tickets: Vec<Ticket>) {
        self.0.submit(Self::reads(tickets));
    }

    fn execute(&self, tickets: Vec<Ticket>) {
        self.0.execute(Self::reads(tickets));
    }

    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn grow(&self, blocks: u64) -> std::io::Result<()> {
        panic!("a store that is open read-only asks for {blocks} blocks")
    }

    fn describe(&self) -> String {
        "a device that cannot be written".into()
    }

    fn can_grow(&self) -> bool {
        true
    }

    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// Opens `image` read-only, on a device that allows only reads.
pub(crate) fn open_read_only(image: &Image, options: OpenOptions) -> shoal_engine::Result<Store> {
    open(&Unwritable::of(image), OpenOptions { read_only: true, ..options })
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

/// Performs one operation on the store; returns the version of its write.
pub(crate) async fn perform(store: &Store, operation: &Operation) -> shoal_engine::Result<Lsn> {
    let key = key(&operation.key);
    let rules = rules(operation.condition);
    match operation.effect {
        Effect::Put(value) => {
            let options = PutOptions { rules, expiry: long_life(value.seed), ..PutOptions::default() };
            store.put(&key, value.to_vec().into(), options).await.map(|put| put.version)
        }
        Effect::Delete => store.delete(&key, rules).await.map(|delete| delete.version),
    }
}

/// Performs one operation and tells the model the result. Errors that leave the outcome open are allowed only with
/// `faulty`.
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
        Err(Error::ConditionFailed { current, .. }) => {
            model.rejected(id, current.map(|version| version.0)).unwrap();
        }
        Err(Error::Full { .. } | Error::Poisoned(_)) => model.refused(id).unwrap(),
        Err(Error::Unknown(_) | Error::Io(_)) if faulty => {}
        Err(error) => panic!("{operation:?}: {error}"),
    }
}

/// Performs the next operation on a store on `sim`, with a mark before it and one behind it: mark n stands for `models[n]`.
pub(crate) fn marked_step(
    store: &Store,
    sim: &SimDevice,
    workload: &mut Workload,
    (model, models): (&mut Model, &mut Vec<Model>),
) {
    let operation = workload.next(model);
    step(store, model, &operation, false, |begun| {
        models.push(begun.clone());
        sim.mark(models.len() as u64 - 1);
    });
    models.push(model.clone());
    sim.mark(models.len() as u64 - 1);
}

/// Reads a key and returns what the model needs to judge it.
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

/// Compares every key with the states that a crash may have left.
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

/// The result of a listing over damage.
pub(crate) struct Judged {
    /// The keys that the listing left out, with the damaged ranges that name them.
    pub missing: BTreeMap<Vec<u8>, DamagedRange>,
    /// True if any page named a range.
    pub damaged: bool,
}

/// Lists everything in pages of `limit` and checks each page against `expected`, the existing keys, with their versions
/// if these are known. A page ends, and lies after the previous one; each of its keys is expected, and each expected
/// key that it leaves out lies in a damaged range of the key's tablet that this page names.
pub(crate) fn judge_listing(
    store: &Store,
    expected: &BTreeMap<Vec<u8>, Option<u64>>,
    limit: usize,
) -> Result<Judged, String> {
    let mut request = ListRequest { bucket: "default".into(), limit, ..ListRequest::default() };
    let mut judged = Judged { missing: BTreeMap::new(), damaged: false };
    for _ in 0..=expected.len() + 1 {
        let page = block_on(store.list(&request)).map_err(|error| format!("listing: {error}"))?;
        let listed: BTreeMap<Vec<u8>, u64> =
            page.entries.into_iter().map(|(key, info)| (key, info.version.0)).collect();
        for (name, version) in &listed {
            let is_right = match expected.get(name) {
                Some(Some(right)) => right == version,
                Some(None) => true,
                None => false,
            };
            if !is_right {
                return Err(format!("the listing has {} with version {version}", name.escape_ascii()));
            }
        }
        let from = match request.start_after.is_empty() {
            true => Bound::Unbounded,
            false => Bound::Excluded(request.start_after.clone()),
        };
        let to = page.next.clone().map_or(Bound::Unbounded, Bound::Included);
        if page.next.as_ref().is_some_and(|next| *next <= request.start_after) {
            return Err("a page does not lie behind the one before".into());
        }
        judged.damaged |= !page.damaged.is_empty();
        let left_out = expected.range((from, to)).map(|(name, _)| name);
        for name in left_out.filter(|name| !listed.contains_key(*name)) {
            let tablet = store.tablet_id(&key(name));
            let named = page.damaged.iter().find(|range| range.tablet == tablet && range.contains(name));
            let range = named.ok_or_else(|| {
                format!("the listing left out {}, and no range names it", name.escape_ascii())
            })?;
            judged.missing.insert(name.clone(), range.clone());
        }
        match page.next {
            Some(next) => request.start_after = next,
            None => return Ok(judged),
        }
    }
    Err("the listing does not end".into())
}

/// Seconds after which a test hangs: no machine that works is so slow.
const HANGS_AFTER_S: u64 = 600;

/// Runs `body` on a thread of its own and fails where it does not end: a hang must not be a silent one.
pub(crate) fn within<T: Send + 'static>(what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(body());
    });
    match receiver.recv_timeout(Duration::from_secs(HANGS_AFTER_S)) {
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

/// The amount of work of a laboratory test: `LAB_<name>` if it is set (by `cargo x lab`), else `quick`.
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

/// Asserts that `check` without repair finds no problem.
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

/// A transaction without watches that is never left.
pub(crate) async fn together<T>(
    store: &Store,
    keys: &[(ObjectKey, ReadLevel)],
    mut decide: impl FnMut(&[Option<Object>]) -> (Vec<Change>, T),
) -> Result<Updated<T>, Error> {
    let decide = |objects: &[Option<Object>]| {
        let (changes, answer) = decide(objects);
        Decision::Do(changes.into(), answer)
    };
    Ok(store.transact(keys, &TransactOptions::default(), decide).await?.done())
}

/// A transaction of one key.
pub(crate) async fn update<T>(
    store: &Store,
    key: &ObjectKey,
    level: ReadLevel,
    mut decide: impl FnMut(Option<&Object>) -> (Change, T),
) -> Result<Updated<T>, Error> {
    let decide = |objects: &[Option<Object>]| {
        let (change, answer) = decide(objects[0].as_ref());
        Decision::one(change, answer)
    };
    Ok(store.transact(&[(key.clone(), level)], &TransactOptions::default(), decide).await?.done())
}

/// The same, done once.
pub(crate) async fn once<T>(
    store: &Store,
    request: RequestId,
    keys: &[(ObjectKey, ReadLevel)],
    mut decide: impl FnMut(&[Option<Object>]) -> (Vec<Change>, T),
    keep: impl Fn(&T) -> Vec<u8> + Sync,
) -> Result<Outcome<T>, Error> {
    let decide = |objects: &[Option<Object>]| {
        let (changes, answer) = decide(objects);
        Decision::Do(changes.into(), answer)
    };
    let options = TransactOptions { request: Some((request, &keep)), ..Default::default() };
    store.transact(keys, &options, decide).await
}

/// A put that is done once.
pub(crate) async fn put_once(
    store: &Store,
    request: RequestId,
    key: &ObjectKey,
    value: Buffer,
    options: PutOptions,
) -> Result<PutResult, Error> {
    let pending = store.write(Write::put(key, &value, &options).with_request_id(Some(request))).await?;
    Ok(PutResult { version: pending.durable().await? })
}

/// A delete that is done once.
pub(crate) async fn delete_once(
    store: &Store,
    request: RequestId,
    key: &ObjectKey,
    rules: RejectRules,
) -> Result<DeleteResult, Error> {
    let pending = store.write(Write::delete(key, rules).with_request_id(Some(request))).await?;
    let deleted = pending.before();
    Ok(DeleteResult { deleted, version: pending.durable().await? })
}
