//! A store with an archive (INV-46, INV-47): everything above the floor is read back bit for bit, over applies, overwrites and crashes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use shoal_base::SeededEntropy;
use shoal_device::{BlockDevice, Device};
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{
    Error, FlushedRecord, FormatOptions, LogFacts, Lsn, OpenOptions, RejectRules, Store, block_on,
};
use shoal_log::format::RecordKind;
use shoal_testkit::bytes::patterned;
use shoal_testkit::lab;
use shoal_testkit::wait::eventually;
use shoal_value::Entry;

use crate::common::{
    ByName, assert_clean, check_clean, device, format_as, key, open, open_in_real_time, quiet, tiny,
    tiny_with_memtables, tiny_with_threads,
};
use crate::uploads::{apply, begin, complete, part, value_of};

const SIZES: [usize; 7] = [0, 60, 1_500, 3_000, 9_000, 70_000, 200_000];

pub(crate) fn archived(options: OpenOptions) -> OpenOptions {
    OpenOptions { archived: true, ..options }
}

/// A device with an empty store whose log has 48 blocks.
fn blank(blocks: u64, seed: u64) -> (Arc<SimDevice>, Device) {
    let (sim, device) = quiet(&Image::new(blocks));
    let layout = FormatOptions { tablets: 2, log_blocks: Some(48), ..FormatOptions::for_blocks(blocks) };
    format_as(&device, &layout, seed);
    (sim, device)
}

/// Reads the value of a record, in pieces that are not aligned to units.
fn value_of_record(store: &Store, logged: &FlushedRecord) -> shoal_engine::Result<Option<Vec<u8>>> {
    if logged.record.kind == RecordKind::Delete {
        return Ok(None);
    }
    let (entry, inline) = Entry::decode(logged.record.body_bytes()).unwrap();
    let mut stored = inline.to_vec();
    while (stored.len() as u64) < logged.stored_bytes {
        let first = stored.len() as u64;
        let bytes = (logged.stored_bytes - first).min(100_001) as usize;
        let read = store.logged_value((logged.lsn, &logged.record), first, bytes);
        stored.extend_from_slice(&block_on(read)?);
    }
    assert_eq!(stored.len() as u64, entry.stored_bytes());
    Ok(Some(stored.split_off(entry.meta_in_front() as usize)))
}

/// The effect of a record: its key, and the value of a put.
type Effect = (Vec<u8>, Option<Vec<u8>>);

/// Reads all records after `floor`, twice each, and checks their order.
fn read_from(store: &Store, floor: Lsn) -> shoal_engine::Result<BTreeMap<u64, Effect>> {
    let mut found = BTreeMap::new();
    let mut after = floor;
    while let Some(batch) = block_on(store.batch_after(after))? {
        let last = batch.records.last().unwrap().lsn;
        assert!(last > after && last <= store.newest_logged());
        let again = block_on(store.batch_after(Lsn(last.0 - 1)))?.unwrap();
        assert_eq!(again.records.last().unwrap().lsn, last, "a batch may be read again");
        assert_eq!((batch.store_ns, batch.wall_ns), (again.store_ns, again.wall_ns));
        for (number, logged) in (batch.records[0].lsn.0..).zip(&batch.records) {
            assert_eq!(logged.lsn, Lsn(number), "numbers of a batch follow each other");
            if logged.lsn > floor {
                let effect = (logged.record.key().to_vec(), value_of_record(store, logged)?);
                assert!(found.insert(number, effect).is_none());
            }
        }
        after = last;
    }
    assert!(after >= store.newest_logged().min(after), "the newest record was read");
    Ok(found)
}

/// A store, the acknowledged records, and the floor.
struct Bed {
    sim: Arc<SimDevice>,
    store: Store,
    options: OpenOptions,
    written: BTreeMap<u64, Effect>,
    floor: Lsn,
    /// The floor of this opening: after a kill it may be lower.
    store_floor: Lsn,
}

impl Bed {
    fn new((sim, device): (Arc<SimDevice>, Device), options: OpenOptions) -> Self {
        let options = archived(options);
        let store = open(&device, options.clone()).unwrap();
        let floor = Lsn(store.log_facts().log_start.0 - 1);
        Self { sim, store, options, written: BTreeMap::new(), floor, store_floor: floor }
    }

    fn newest(&self) -> Lsn {
        self.written.last_key_value().map_or(self.floor, |(&lsn, _)| Lsn(lsn))
    }

    fn release(&mut self, lsn: Lsn) {
        self.store.release_log(lsn);
        self.floor = self.floor.max(lsn);
        self.store_floor = self.store_floor.max(lsn);
    }

    /// Releases everything if the log or the space is nearly full: nobody else would.
    fn keep_room(&mut self) {
        if self.store.log_held_permille() >= 350 || self.store.stat().free_blocks < 200 {
            let newest = self.newest();
            self.release(newest);
        }
    }

    fn put(&mut self, name: &str, value: Vec<u8>) -> bool {
        self.keep_room();
        match self.store.set(name, value.clone()) {
            Ok(lsn) => {
                self.written.insert(lsn, (key(name).encoded().to_vec(), Some(value)));
                true
            }
            Err(Error::Full { .. }) => false,
            Err(error) => panic!("putting {name}: {error}"),
        }
    }

    fn delete(&mut self, name: &str) {
        self.keep_room();
        let deleted = block_on(self.store.delete(&key(name), RejectRules::default())).unwrap();
        if deleted.version > self.newest() {
            self.written.insert(deleted.version.0, (key(name).encoded().to_vec(), None));
        }
    }

    fn above_floor(&self) -> BTreeMap<u64, Effect> {
        self.written.range(self.floor.0 + 1..).map(|(lsn, effect)| (*lsn, effect.clone())).collect()
    }

    fn check(&self, place: &str) {
        let found = read_from(&self.store, self.floor).unwrap_or_else(|error| panic!("{place}: {error}"));
        let expected = self.above_floor();
        let numbers = |effects: &BTreeMap<u64, Effect>| effects.keys().copied().collect::<Vec<_>>();
        assert_eq!(numbers(&found), numbers(&expected), "{place}");
        assert!(found == expected, "{place}: other bytes");
    }

    /// Opens the store again, after a kill or a clean close.
    fn reopen(&mut self, cleanly: bool) {
        if cleanly {
            block_on(self.store.close()).unwrap();
        }
        let (sim, device) = quiet(&self.sim.image());
        check_clean(&device).unwrap();
        self.sim = sim;
        self.store = open(&device, self.options.clone()).unwrap();
        let facts = self.store.log_facts();
        assert!(facts.log_start <= self.floor.next(), "{facts:?} after {}", self.floor);
        let expected = self.newest().max(Lsn(facts.log_start.0 - 1));
        assert_eq!(facts.recovered, expected, "{facts:?}");
        let floor = self.store_floor;
        assert!(
            !cleanly || facts.log_start == floor.next(),
            "{facts:?}: a close publishes the floor {floor}"
        );
        self.store_floor = Lsn(facts.log_start.0 - 1);
    }
}

/// Any sequence of writes, applies, releases and openings: every record above the floor is read bit for bit, and in the end all blocks are
/// free again.
#[test]
fn everything_above_the_floor_is_read() {
    for seed in 1..=lab::number("ARCHIVED", 40) {
        let dice = SeededEntropy::new(seed);
        let mut bed =
            Bed::new(blank(1_024, seed), if seed % 2 == 0 { tiny() } else { tiny_with_memtables(40) });
        let mut full = 0;
        for step in 0..120 {
            let name = format!("object-{}", dice.below(5));
            match dice.below(20) {
                0..=10 => {
                    let size = SIZES[dice.below(7) as usize];
                    if !bed.put(&name, patterned(size, (seed * 1_000 + step) as usize)) {
                        full += 1;
                        let newest = bed.newest();
                        bed.release(newest);
                    }
                }
                11..=13 => bed.delete(&name),
                14 => apply(&bed.store),
                15 => {
                    let lsn = Lsn(bed.floor.0 + dice.below(bed.newest().0 - bed.floor.0 + 1));
                    bed.release(lsn);
                }
                16 => bed.reopen(dice.below(3) == 0),
                _ => bed.check(&format!("seed {seed}, step {step}")),
            }
        }
        bed.check(&format!("seed {seed}"));
        assert!(full < 60, "seed {seed}: {full} writes were refused");
        let newest = bed.newest();
        bed.release(newest);
        apply(&bed.store);
        apply(&bed.store);
        bed.put("last", vec![1]);
        apply(&bed.store);
        bed.put("last", vec![2]);
        let held = bed.newest();
        bed.release(held);
        apply(&bed.store);
        block_on(bed.store.close()).unwrap();
        let again = open(&device(&bed.sim), bed.options.clone()).unwrap();
        assert_eq!(
            (again.stat().pending_blocks, again.log_facts().log_start),
            (0, held.next()),
            "seed {seed}"
        );
        drop(again);
        assert_clean(&device(&bed.sim), "after everything was released");
    }
}

/// The acknowledged records and the floor at a moment.
#[derive(Clone)]
struct Promise {
    written: BTreeMap<u64, Effect>,
    floor: Lsn,
}

/// Writes, applies and releases, with a mark after each step; a mark is before its release.
fn script(seed: u64) -> (Arc<SimDevice>, Vec<Promise>, OpenOptions) {
    let sim = SimDevice::from_image(blank(768, seed).0.image());
    let mut bed = Bed::new((sim.clone(), device(&sim)), tiny_with_memtables(6));
    let dice = SeededEntropy::new(seed);
    let mut promises = Vec::new();
    let mut note = |bed: &Bed, floor: Lsn| {
        promises.push(Promise { written: bed.written.clone(), floor });
        sim.mark(promises.len() as u64 - 1);
    };
    note(&bed, bed.floor);
    for step in 0..45 {
        let name = format!("object-{}", dice.below(3));
        match dice.below(8) {
            0..=4 => {
                let size = [60, 3_000, 9_000, 70_000][dice.below(4) as usize];
                let value = patterned(size, step);
                if let Ok(lsn) = bed.store.set(&name, value.clone()) {
                    bed.written.insert(lsn, (key(&name).encoded().to_vec(), Some(value)));
                }
            }
            5 => bed.delete(&name),
            6 => apply(&bed.store),
            _ => {}
        }
        note(&bed, bed.floor);
        if step % 9 == 8 || bed.store.log_held_permille() > 300 {
            let lsn = Lsn(bed.newest().0.saturating_sub(2)).max(bed.floor);
            note(&bed, lsn);
            bed.release(lsn);
        }
    }
    let options = bed.options.clone();
    (sim, promises, options)
}

/// After a crash at any moment, every acknowledged record above the floor of that moment is read bit for bit, also once the next opening
/// has overwritten all free blocks.
#[test]
fn every_crash_keeps_records_above_the_floor() {
    let mut states = 0;
    for seed in 1..=lab::number("ARCHIVED_CRASHES", 3) {
        let (sim, promises, options) = script(seed);
        sim.history().for_each_crash_state(4, seed, |point, image| {
            let Some(&mark) = point.marks.last() else { return };
            states += 1;
            let Promise { written, floor } = &promises[mark as usize];
            let (_, device) = quiet(&image);
            let store = open(&device, options.clone()).unwrap();
            let facts = store.log_facts();
            assert!(facts.log_start <= floor.next(), "state {}: {facts:?} after {floor}", point.id);
            if states % 3 == 0 {
                // Takes the blocks that the trees gave up.
                for which in 0..6 {
                    let _ = store.set(format!("other-{which}"), patterned(30_000, which));
                }
            }
            let found = read_from(&store, *floor);
            let found = found.unwrap_or_else(|error| panic!("seed {seed}, state {}: {error}", point.id));
            for (lsn, effect) in written.range(floor.0 + 1..) {
                assert!(found.get(lsn) == Some(effect), "seed {seed}, state {}: record {lsn}", point.id);
            }
        });
    }
    assert!(states > 500, "only {states} states were explored");
}

/// The parts of an upload become an object, which is deleted: its record names the blocks of the parts, and its value is read from them.
#[test]
fn values_of_adopted_parts_are_read() {
    let mut bed = Bed::new(blank(2_048, 5), tiny());
    let upload = begin(&bed.store, "object");
    let parts = [part(&bed.store, &upload, 1, 5_000), part(&bed.store, &upload, 2, 300_000)];
    apply(&bed.store);
    let before = bed.store.newest_logged();
    complete(&bed.store, &upload, &parts);
    block_on(bed.store.delete(&key("object"), RejectRules::default())).unwrap();
    let joined = [value_of(1, 5_000), value_of(2, 300_000)].concat();
    for round in 0..3 {
        apply(&bed.store);
        for which in 0..4 {
            bed.store.put_numbered(which, round, 100_000);
        }
        let found = read_from(&bed.store, before).unwrap();
        let is_joined = |effect: &&Effect| effect.0 == key("object").encoded() && effect.1.is_some();
        assert_eq!(found.values().find(is_joined).unwrap().1, Some(joined.clone()), "round {round}");
        let (sim, device) = quiet(&bed.sim.image());
        bed.sim = sim;
        bed.store = open(&device, bed.options.clone()).unwrap();
    }
    let pending = bed.store.stat().pending_blocks;
    assert!(pending > 70, "{pending}");
    bed.store.release_log(bed.store.newest_logged());
    bed.store.put_numbered(9, 9, 10);
    assert!(bed.store.stat().pending_blocks < pending - 70);
}

/// A full log: writers wait, the threads of the store rest, and a release lets the writers continue.
#[test]
fn writers_wait_for_the_archive_when_the_log_is_full() {
    for options in [tiny(), tiny_with_threads()] {
        let (sim, handle) = blank(4_096, 6);
        let has_threads = options.background;
        let store = open(&handle, archived(options)).unwrap();
        let (written, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let writer = {
            let (store, written, is_over) = (store.clone(), written.clone(), is_over.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    store.put_numbered(written.load(Ordering::Relaxed) % 50, 1, 1_500);
                    written.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let mut floor = Lsn(store.log_facts().log_start.0 - 1);
        for round in 0..4 {
            let at_rest = || {
                let before = (written.load(Ordering::Relaxed), sim.counters().writes);
                std::thread::sleep(Duration::from_millis(if has_threads { 700 } else { 100 }));
                (written.load(Ordering::Relaxed), sim.counters().writes) == before
            };
            eventually("the writer waits, and nothing else happens", at_rest);
            assert!(store.log_held_permille() > 500, "{}", store.log_held_permille());
            assert_eq!(store.stat().poisoned, None);
            let count = written.load(Ordering::Relaxed);
            let found = read_from(&store, floor).unwrap();
            assert!(found.len() > 10, "round {round}: {}", found.len());
            floor = store.newest_logged();
            store.release_log(floor);
            eventually("the writer continues", || written.load(Ordering::Relaxed) > count + 5);
        }
        is_over.store(true, Ordering::Relaxed);
        while !writer.is_finished() {
            store.release_log(store.newest_logged());
            std::thread::sleep(Duration::from_millis(5));
        }
        writer.join().unwrap();
        store.release_log(store.newest_logged());
        block_on(store.close()).unwrap();
        assert_clean(&device(&sim), "after the writers waited");
    }
}

/// A write without free blocks waits for unread ones, and is refused if these are too few.
#[test]
fn a_write_waits_for_blocks_that_the_archive_reads() {
    for options in [tiny(), tiny_with_threads()] {
        let store = open(&blank(1_024, 11).1, archived(options)).unwrap();
        // Each version takes 74 blocks, of which an overwritten one stays.
        let written = Arc::new(AtomicU64::new(0));
        let writer = std::thread::spawn({
            let (store, written) = (store.clone(), written.clone());
            move || {
                for version in 0..40 {
                    store.put_numbered(1, version, 300_000);
                    written.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut waits = 0;
        while !writer.is_finished() {
            let count = written.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(150));
            if written.load(Ordering::Relaxed) == count && !writer.is_finished() {
                waits += 1;
                store.release_log(store.newest_logged());
            }
        }
        writer.join().unwrap();
        assert!(waits > 1, "all versions found room");
        store.assert_numbered(1, 39, 300_000);
        let refused = store.set("too long", patterned(4_000_000, 1));
        assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
        store.release_log(store.newest_logged());
        block_on(store.close()).unwrap();
    }
}

/// An idle store frees the blocks soon after their release.
#[test]
fn an_idle_store_frees_released_blocks() {
    let store = open_in_real_time(&blank(4_096, 7).1, archived(tiny_with_threads()));
    for which in 0..6 {
        store.put_numbered(which, 1, 100_000);
        store.remove_numbered(which);
    }
    let blocks = 6 * 100_000 / 4_096;
    eventually("everything is applied", || store.stat().pending_blocks > blocks);
    std::thread::sleep(Duration::from_millis(300));
    assert!(store.stat().pending_blocks > blocks, "blocks that are not released stay");
    let free = store.stat().free_blocks;
    store.release_log(store.newest_logged());
    eventually("the blocks are free", || store.stat().free_blocks > free + blocks);
}

/// An overwritten log is reported, and so is the end of a closed store.
#[test]
fn a_gap_is_reported() {
    let bed = Bed::new(blank(1_024, 8), tiny());
    let first = bed.floor;
    for which in 0..300 {
        bed.store.put_numbered(which % 9, which, 900);
        bed.store.release_log(bed.store.newest_logged());
    }
    assert!(bed.store.log_facts().recovered < bed.store.newest_logged());
    let lost = block_on(bed.store.batch_after(first));
    assert!(matches!(lost, Err(Error::Corrupt { .. })), "{lost:?}");
    let newest = bed.store.newest_logged();
    assert!(block_on(bed.store.batch_after(newest)).unwrap().is_none());
    let waiting = std::thread::spawn({
        let store = bed.store.clone();
        move || block_on(store.wait_logged(newest))
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    block_on(bed.store.close()).unwrap();
    waiting.join().unwrap();
    assert!(matches!(block_on(bed.store.batch_after(newest)), Err(Error::Closed)));
}

/// Records of openings that noted no log are no part of what the store wrote to its archive, over any number of them.
#[test]
fn records_of_openings_without_a_log_are_unowned() {
    let mut bed = Bed::new(blank(1_024, 9), tiny());
    bed.put("one", vec![1]);
    block_on(bed.store.remember_archive_log(7)).unwrap();
    bed.put("two", vec![2]);
    let owned = bed.store.newest_logged();
    for cleanly in [false, true, false] {
        bed.reopen(cleanly);
        let facts = bed.store.log_facts();
        assert_eq!((facts.remembered_log, facts.last_owned), (7, owned));
        assert_eq!(facts.recovered, bed.store.newest_logged());
        bed.put("three", vec![3]);
    }
    block_on(bed.store.remember_archive_log(8)).unwrap();
    bed.put("four", vec![4]);
    let owned = bed.store.newest_logged();
    bed.reopen(false);
    assert_eq!((bed.store.log_facts().last_owned, bed.store.log_facts().recovered), (owned, owned));
}

/// The log of the archive is remembered by the openings with an archive, and forgotten by one without.
#[test]
fn an_opening_without_an_archive_forgets_its_log() {
    let mut bed = Bed::new(blank(1_024, 9), tiny());
    bed.put("one", vec![1]);
    block_on(bed.store.remember_archive_log(0xFEED_F00D_0000_0007)).unwrap();
    for cleanly in [false, true] {
        bed.reopen(cleanly);
        assert_eq!(bed.store.log_facts().remembered_log, 0xFEED_F00D_0000_0007);
        bed.put("two", patterned(50_000, 2));
    }
    block_on(bed.store.close()).unwrap();
    let without = open(&device(&bed.sim), tiny()).unwrap();
    assert_eq!(without.log_facts(), LogFacts::default());
    without.set("three", patterned(50_000, 3)).unwrap();
    let refused = block_on(without.remember_archive_log(1));
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    without.release_log(Lsn(u64::MAX));
    drop(without);
    let again = open(&device(&bed.sim), archived(tiny())).unwrap();
    assert_eq!(again.log_facts().remembered_log, 0);
    assert_eq!(again.stat().pending_blocks, 0, "no block is held for records that no archive waits for");
}
