//! Damage at its target size (T4 and T5 of `docs/reliability.md`): every bit of an image of 64 used blocks (256 KiB), and every sector and
//! page zeroed, filled with ones, reverted to older contents, or swapped with another one.
//!
//! After each: no wrong byte, version or listing, no object missing without an error, no panic. Two subjects: a closed store, which may
//! lose nothing silently, and a store after a crash, which may lose the newest batch (it is not promised yet). A closed store needs no
//! record of its log: damage there must be harmless, and not even be detected. `cargo test` takes a sample, `cargo x lab` everything.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use shoal_base::BLOCK_BYTES;
use shoal_buffer::Buffer;
use shoal_device::{BlockDevice, Device, Op, Submission};
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{Error, ListRequest, Store, block_on};
use shoal_testkit::Value;
use shoal_testkit::device::{Intercept, Intercepted, used_blocks};
use shoal_testkit::lab;

use crate::common::{ByName, blank, judge_listing, name_in_folder as name, open, quiet, tiny, with_metadata};

const BLOCKS: u64 = 192;
const SECTOR_BYTES: usize = 512;
/// The log's ring.
const LOG: Range<u64> = 34..58;
const OBJECTS: u64 = 26;

/// The state of a key: version and value, with or without metadata before the value.
#[derive(Clone)]
struct KnownObject {
    version: u64,
    value: Value,
    /// The value's bytes, made once: they are compared some million times.
    bytes: Arc<Vec<u8>>,
}

struct Subject {
    image: Image,
    /// Earlier contents of the same device, for lost writes.
    older: Vec<Image>,
    objects: BTreeMap<Vec<u8>, KnownObject>,
    /// The key of the newest batch, and its state before: not promised if the store was not closed.
    open: Option<(Vec<u8>, Option<KnownObject>)>,
}

fn has_metadata(which: u64) -> bool {
    which % 9 == 4
}

fn put(store: &Store, which: u64, seed: u64, bytes: usize) -> KnownObject {
    let value = Value { key: which, seed, bytes };
    let options = with_metadata(has_metadata(which));
    let version = store.set_with(name(which), value.to_vec(), options).unwrap();
    KnownObject { version, value, bytes: Arc::new(value.to_vec()) }
}

/// Values in leaves, packed, in extents, in several units; some overwritten and some deleted.
fn subject(close: bool) -> Subject {
    let (sim, device) = blank(BLOCKS, 17);
    let store = open(&device, tiny()).unwrap();
    let sizes = [20, 90, 60, 1_900, 0, 700, 1_200, 5_000];
    let (mut objects, mut older) = (BTreeMap::new(), Vec::new());
    for which in 0..OBJECTS {
        objects.insert(name(which), put(&store, which, which, sizes[(which % 8) as usize]));
        if which % 9 == 8 {
            older.push(sim.image());
        }
    }
    objects.insert(name(50), put(&store, 50, 50, 70_000));
    for which in (0..OBJECTS).step_by(4) {
        objects.insert(name(which), put(&store, which, 1_000 + which, sizes[(which % 5) as usize]));
    }
    older.push(sim.image());
    for which in [5, 13] {
        store.remove(name(which)).unwrap();
        objects.remove(&name(which));
    }
    let last = name(7);
    let before = objects.insert(last.clone(), put(&store, 7, 3_000, 1_500));
    let open = (!close).then_some((last, before));
    if close {
        block_on(store.close()).unwrap();
    }
    drop(store);
    Subject { image: sim.image(), older, objects, open }
}

/// Returns true if `found` is `bytes`, piece by piece.
fn holds(found: &Buffer, bytes: &[u8]) -> bool {
    let pieces = found.io_slices();
    let rest = pieces.into_iter().try_fold(bytes, |rest, piece| rest.strip_prefix(&piece[..]));
    rest.is_some_and(<[u8]>::is_empty)
}

/// The result of using a damaged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Refused,
    Errors,
    Harmless,
}

#[derive(Default)]
struct Counts([AtomicU64; 3]);

impl Counts {
    fn add(&self, seen: Seen) {
        self.0[seen as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self, seen: Seen) -> u64 {
        self.0[seen as usize].load(Ordering::Relaxed)
    }

    fn trials(&self) -> u64 {
        [Seen::Refused, Seen::Errors, Seen::Harmless].map(|seen| self.get(seen)).iter().sum()
    }

    fn print(&self, what: &str, began: Instant) {
        println!(
            "{what}: {} trials in {:.1} s: {} harmless, {} with errors for objects, {} refused to open; 0 wrong, 0 lost in \
             silence, 0 panics",
            self.trials(),
            began.elapsed().as_secs_f64(),
            self.get(Seen::Harmless),
            self.get(Seen::Errors),
            self.get(Seen::Refused)
        );
    }
}

/// All objects, and the listing.
fn everything() -> Readers {
    Readers { objects: (0..OBJECTS).chain([50]).collect(), listing: true }
}

/// Runs `work`, and reports a panic as a broken promise.
fn without_panic(work: impl FnOnce() -> Result<Seen, String>) -> Result<Seen, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("a panic".into()))
}

/// Opens the store; `None` if it is refused. `Err` if the refusal breaks a promise.
fn opened(device: &Device) -> Result<Option<Store>, String> {
    match open(device, tiny()) {
        Ok(store) => Ok(Some(store)),
        Err(Error::Corrupt { .. } | Error::Unopenable(_)) => Ok(None),
        Err(error) => Err(format!("opening: {error}")),
    }
}

/// Opens and reads everything. Returns `Err` if the store broke a promise.
fn look(subject: &Subject, image: Image) -> Result<Seen, String> {
    without_panic(|| match opened(&quiet(&image).1)? {
        Some(store) => read_all(subject, &store, &everything()),
        None => Ok(Seen::Refused),
    })
}

fn read_all(subject: &Subject, store: &Store, readers: &Readers) -> Result<Seen, String> {
    let (mut errors, mut present) = (0, Vec::new());
    for &which in &readers.objects {
        let name = name(which);
        let found = match store.find(&name) {
            Ok(found) => found,
            Err(Error::Corrupt { .. }) => {
                errors += 1;
                continue;
            }
            Err(error) => return Err(format!("{which}: {error}")),
        };
        let is = |held: Option<&KnownObject>| match (&found, held) {
            (None, None) => true,
            (Some(object), Some(held)) => {
                let large = object.info.metadata.user.iter().any(|(_, value)| *value == vec![b'm'; 900]);
                object.info.version.0 == held.version
                    && holds(&object.value, &held.bytes)
                    && large == has_metadata(which)
            }
            _ => false,
        };
        let earlier = subject.open.as_ref().filter(|(open, _)| *open == name);
        if !is(subject.objects.get(&name)) && !earlier.is_some_and(|(_, before)| is(before.as_ref())) {
            let expected = subject.objects.get(&name).map(|held| (held.version, held.value));
            let seen = found.map(|object| (object.info.version, object.info.bytes));
            return Err(format!("{which}: {seen:?}, expected {expected:?}"));
        }
        if found.is_some() {
            present.push(name);
        }
    }
    if !readers.listing {
        return Ok(if errors == 0 { Seen::Harmless } else { Seen::Errors });
    }
    let is_open = |name: &Vec<u8>| subject.open.as_ref().is_some_and(|(open, _)| open == name);
    let expected: BTreeMap<Vec<u8>, Option<u64>> = subject
        .objects
        .iter()
        .map(|(name, held)| (name.clone(), (!is_open(name)).then_some(held.version)))
        .collect();
    // An object with a damaged value is still listed, and so is every object that the damaged ranges do not cover.
    let judged = judge_listing(store, &expected, 100)?;
    if let Some(name) = present.iter().find(|name| judged.missing.contains_key(*name)) {
        return Err(format!("the listing left out {}, which can be read", name.escape_ascii()));
    }
    if judged.damaged {
        errors += 1;
        let again = judge_listing(store, &expected, 4)?;
        if !again.missing.keys().eq(judged.missing.keys()) {
            return Err("short pages leave out other keys than a long one".into());
        }
    }
    Ok(if errors == 0 { Seen::Harmless } else { Seen::Errors })
}

/// A device that records the blocks that are read.
struct Watch {
    device: Arc<SimDevice>,
    read: Mutex<BTreeSet<u64>>,
}

impl Watch {
    fn over(image: &Image) -> (Arc<Intercepted<Self>>, Device) {
        Intercepted::new(Self { device: quiet(image).0, read: Mutex::default() })
    }

    fn note(&self, submissions: &[Submission]) {
        let reads = submissions.iter().filter(|submission| submission.op() == Op::Read);
        self.read.lock().unwrap().extend(
            reads.flat_map(|submission| submission.block()..submission.block() + submission.blocks()),
        );
    }

    fn take(&self) -> BTreeSet<u64> {
        std::mem::take(&mut *self.read.lock().unwrap())
    }
}

impl Intercept for Watch {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.device
    }

    fn pass(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        self.note(&submissions);
        submissions
    }
}

/// The reads of a store: some objects, and the listing or not.
#[derive(Clone, Default)]
struct Readers {
    objects: Vec<u64>,
    listing: bool,
}

/// The parts of the store that depend on a block. A store in one process, without threads, does the same each time: a block that is read
/// neither by the opening nor on the way to an object does not affect that object.
struct Reach {
    opening: BTreeSet<u64>,
    readers: BTreeMap<u64, Readers>,
    /// The device's contents after an opening without damage, and the store's figures then.
    after: Image,
    figures: [u64; 8],
    /// Blocks of the log that the opening replays.
    replayed: BTreeSet<u64>,
}

impl Reach {
    fn of(subject: &Subject) -> Self {
        // Each from an empty cache.
        let reads = |work: &dyn Fn(&Store)| {
            let (watch, device) = Watch::over(&subject.image);
            let store = open(&device, tiny()).unwrap();
            let opening = watch.take();
            work(&store);
            (opening, watch.take())
        };
        let mut readers: BTreeMap<u64, Readers> = BTreeMap::new();
        for which in everything().objects {
            let get = |store: &Store| drop(store.find(name(which)).unwrap());
            for block in reads(&get).1 {
                readers.entry(block).or_default().objects.push(which);
            }
        }
        let request = ListRequest { bucket: "default".into(), limit: 100, ..ListRequest::default() };
        let (opening, listing) = reads(&|store: &Store| drop(block_on(store.list(&request)).unwrap()));
        for block in listing {
            readers.entry(block).or_default().listing = true;
        }
        let (sim, device) = quiet(&subject.image);
        let store = open(&device, tiny()).unwrap();
        let (after, figures) = (sim.image(), figures(&store));
        // The batch that starts the epoch is at the log's head; the replayed batches precede it.
        let head = after.differences(&subject.image).into_iter().find(|block| LOG.contains(block)).unwrap();
        let ring = LOG.end - LOG.start;
        let back = |blocks: u64| LOG.start + (head - LOG.start + ring - blocks) % ring;
        let replayed = (0..ring.min(store.stat().log_used_blocks + 2)).map(back).collect();
        Self { opening, readers, after, figures, replayed }
    }

    /// As [`look`], without the parts that do not depend on block `block`.
    fn look(&self, subject: &Subject, flip: Flip, live: &mut Option<Live>) -> Result<Seen, String> {
        if self.opening.contains(&flip.block) {
            return without_panic(|| self.look_at_opening(subject, flip));
        }
        match self.readers.get(&flip.block) {
            Some(readers) => without_panic(|| Live::look(live, subject, flip, readers)),
            None => Ok(Seen::Harmless),
        }
    }

    /// For blocks that the opening reads. A superblock and the replayed records determine a store. If the damage is elsewhere, and the
    /// opening left the same on the device as without damage (it has written the new superblock and the first batch), all later reads are
    /// the same.
    fn look_at_opening(&self, subject: &Subject, flip: Flip) -> Result<Seen, String> {
        let (sim, device) = quiet(&flip.of(subject));
        let Some(store) = opened(&device)? else { return Ok(Seen::Refused) };
        let differ = sim.image().differences(&self.after);
        let is_alike = differ.iter().all(|&block| block == flip.block) && figures(&store) == self.figures;
        if is_alike && !self.replayed.contains(&flip.block) {
            return Ok(Seen::Harmless);
        }
        read_all(subject, &store, &everything())
    }
}

/// The figures, other than the writes, that damage in blocks read by the opening might change.
fn figures(store: &Store) -> [u64; 8] {
    let stat = store.stat();
    [
        stat.objects,
        stat.memtable_records,
        stat.free_blocks,
        stat.pending_blocks,
        stat.allocated_blocks,
        stat.live_value_bytes,
        stat.packed_blocks,
        stat.log_used_blocks,
    ]
}

/// One bit.
#[derive(Clone, Copy)]
struct Flip {
    block: u64,
    byte: usize,
    mask: u8,
}

impl Flip {
    fn of(self, subject: &Subject) -> Image {
        let mut image = subject.image.clone();
        image.flip(self.block, self.byte, self.mask);
        image
    }
}

/// A store that is open on a decaying device: for blocks that the opening does not read this makes no difference. The cache keeps no block
/// that fails its check, so one store serves flip after flip, until one is harmless.
struct Live {
    watch: Arc<Intercepted<Watch>>,
    store: Store,
}

impl Live {
    fn open(subject: &Subject) -> Result<Self, String> {
        let (watch, device) = Watch::over(&subject.image);
        let store = opened(&device)?.ok_or("an undamaged store was refused")?;
        Ok(Self { watch, store })
    }

    fn look(
        kept: &mut Option<Self>,
        subject: &Subject,
        flip: Flip,
        readers: &Readers,
    ) -> Result<Seen, String> {
        let live = kept.take().map_or_else(|| Self::open(subject), Ok)?;
        live.watch.take();
        live.watch.device.corrupt(flip.block, flip.byte, flip.mask);
        let seen = read_all(subject, &live.store, readers)?;
        if !live.watch.take().contains(&flip.block) {
            return Err("the damaged block was not read again".into());
        }
        if seen == Seen::Errors {
            live.watch.device.corrupt(flip.block, flip.byte, flip.mask);
            *kept = Some(live);
        }
        Ok(seen)
    }
}

/// One of this many flips is also judged by reading everything, with the same result.
const IN_FULL_EVERY: u64 = 251;
/// Neighbouring bits that one thread takes at a time, on one store if possible.
const AT_A_TIME: u64 = 256;

/// T4: every used bit (some 300 KiB) in the laboratory, a sample here. Of the store after a crash, every eighth bit of the blocks that its
/// opening reads: superblocks, log and space image; the rest is as in the closed one.
#[test]
fn every_bit() {
    const BLOCK_BITS: u64 = BLOCK_BYTES as u64 * 8;
    for close in [true, false] {
        let subject = subject(close);
        assert_eq!(look(&subject, subject.image.clone()), Ok(Seen::Harmless), "undamaged");
        let reach = Reach::of(&subject);
        let blocks: Vec<u64> = used_blocks(&subject.image, 0)
            .into_iter()
            .filter(|block| close || reach.opening.contains(block))
            .collect();
        let bits = blocks.len() as u64 * BLOCK_BITS;
        let trials = lab::number("FLIP_BITS", 5_000).min(if close { bits } else { bits / 8 });
        // Spread evenly if not all are taken.
        let step = bits / trials;
        let (counts, began) = (Counts::default(), Instant::now());
        lab::on_all_cores(trials.div_ceil(AT_A_TIME), |part| {
            let (mut live, mut last) = (None, None);
            for number in part * AT_A_TIME..trials.min((part + 1) * AT_A_TIME) {
                let bit = number * step + lab::number("SEED", 1) % step;
                let (block, within) = (blocks[(bit / BLOCK_BITS) as usize], bit % BLOCK_BITS);
                if last.replace(block) != Some(block) {
                    // The cached pages of the last block are sound.
                    live = None;
                }
                let flip = Flip { block, byte: (within / 8) as usize, mask: 1 << (within % 8) };
                let looked = reach.look(&subject, flip, &mut live);
                if number % IN_FULL_EVERY == 0 {
                    assert_eq!(looked, look(&subject, flip.of(&subject)), "bit {within} of block {block}");
                }
                match looked {
                    Ok(seen) => {
                        assert!(
                            !close || !LOG.contains(&block) || seen == Seen::Harmless,
                            "bit {within} of block {block} of the log of a closed store: {seen:?}"
                        );
                        counts.add(seen);
                    }
                    Err(what) => panic!("closed: {close}, bit {within} of block {block}: {what}"),
                }
            }
        });
        let what = if close { "bits of a closed store" } else { "bits of a store that a crash left" };
        counts.print(&format!("{what} ({} blocks in use)", blocks.len()), began);
        assert_eq!(counts.trials(), trials);
        // No single bit makes a closed store refuse to open.
        assert!(close == (counts.get(Seen::Refused) == 0) && counts.get(Seen::Harmless) > 0);
        assert!(!close || counts.get(Seen::Errors) > 0);
    }
}

/// A damaged image and a description of the damage.
type Trial = (String, Image);

fn sector_of(image: &Image, block: u64, sector: usize) -> Vec<u8> {
    image.block(block)[sector * SECTOR_BYTES..][..SECTOR_BYTES].to_vec()
}

fn with_sector(image: &mut Image, block: u64, sector: usize, bytes: &[u8]) {
    let mut whole = *image.block(block);
    whole[sector * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(bytes);
    image.write(block, &whole);
}

/// All kinds of damage of block number `number` of `used`.
fn sector_trials(subject: &Subject, used: &[u64], number: usize, swaps: usize) -> Vec<Trial> {
    let (block, image) = (used[number], &subject.image);
    let mut trials = Vec::new();
    for sector in 0..BLOCK_BYTES / SECTOR_BYTES {
        for byte in [0x00, 0xFF] {
            let mut damaged = image.clone();
            with_sector(&mut damaged, block, sector, &[byte; SECTOR_BYTES]);
            trials.push((format!("sector {sector} filled with {byte:#x}"), damaged));
        }
        for (age, older) in subject.older.iter().enumerate() {
            let mut damaged = image.clone();
            with_sector(&mut damaged, block, sector, &sector_of(older, block, sector));
            trials.push((format!("sector {sector} as in image {age}"), damaged));
        }
    }
    for (age, older) in subject.older.iter().enumerate() {
        let mut damaged = image.clone();
        damaged.write(block, older.block(block));
        trials.push((format!("as in image {age}"), damaged));
    }
    for &other in used.iter().skip(number + 1).take(swaps) {
        let mut swapped = image.clone();
        swapped.write(block, image.block(other));
        swapped.write(other, image.block(block));
        trials.push((format!("swapped with block {other}"), swapped));
        // A misdirected write: the other block still exists, too.
        let mut copied = image.clone();
        copied.write(block, image.block(other));
        trials.push((format!("overwritten by block {other}"), copied));
    }
    for blocks in [2, 3, 5, 8, 16, 32, 64] {
        // Before a store is closed or has applied, a run over the newest batches of the log removes the promises with the promised records
        // (docs/fault-model.md): the result looks like a torn tail.
        if subject.open.is_some() && block < LOG.end && block + blocks > LOG.start {
            continue;
        }
        let mut damaged = image.clone();
        let end = (block + blocks).min(image.blocks());
        (block..end).for_each(|block| damaged.write(block, &[0; BLOCK_BYTES]));
        trials.push((format!("{blocks} blocks zeroed"), damaged));
    }
    trials
}

/// T5: every sector and every page of the image.
#[test]
fn sector_faults() {
    let swaps = lab::number("FAULT_SWAPS", 2) as usize;
    for close in [true, false] {
        let subject = subject(close);
        let used = used_blocks(&subject.image, 0);
        let every = if lab::number("FAULT_SWAPS", 2) > 2 { 1 } else { 4 };
        let (counts, began) = (Counts::default(), Instant::now());
        lab::on_all_cores(used.len() as u64 / every, |number| {
            let number = (number * every) as usize;
            for (what, image) in sector_trials(&subject, &used, number, swaps) {
                let in_log = || image.differences(&subject.image).iter().all(|block| LOG.contains(block));
                let harmless = close && in_log();
                match look(&subject, image) {
                    Ok(seen) => {
                        assert!(
                            !harmless || seen == Seen::Harmless,
                            "block {} of the log of a closed store {what}: {seen:?}",
                            used[number]
                        );
                        counts.add(seen);
                    }
                    Err(wrong) => panic!("closed: {close}, block {} {what}: {wrong}", used[number]),
                }
            }
        });
        counts.print(
            if close { "sectors of a closed store" } else { "sectors of a store that a crash left" },
            began,
        );
        assert!(counts.get(Seen::Errors) > 0 && counts.get(Seen::Harmless) > 0);
    }
}
