//! Figures for people: objects that only the log holds, commits, scrubs in the background.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::sync::atomic::Ordering;
use shoal_base::{BLOCK_BYTES_U64, ManualClock};
use shoal_device::{Device, MemDevice};

use crate::testing::fixtures::{self, in_memory_as, key, open_in};
use crate::{Environment, FormatOptions, OpenOptions, RejectRules, ScrubStart, Store, Tuning, block_on};

const BLOCKS: u64 = 32_768;
/// The log is long enough that puts are applied only when a test applies them.
const LOG_BLOCKS: u32 = 16_384;

fn store(tuning: Tuning, background: bool) -> Store {
    let format =
        FormatOptions { tablets: 1, log_blocks: Some(LOG_BLOCKS), ..FormatOptions::for_blocks(BLOCKS) };
    let options = OpenOptions { cache_bytes: 8 << 20, background, tuning, ..OpenOptions::default() };
    open_in(&in_memory_as(&format), options, Environment::default())
}

fn put(store: &Store, keys: std::ops::Range<usize>) {
    keys.for_each(|which| fixtures::put(store, &key(which), vec![1; 10]));
}

/// Symptom: `shoal stat` reported 0 objects right after a put.
#[test]
fn objects_count_from_their_put_on() {
    let store = store(Tuning::default(), false);
    // More than are counted one by one, and fewer than start an apply.
    put(&store, 0..1100);
    assert_eq!((store.stat().objects, store.stat().objects_with_log()), (0, 1100));
    (0..200).for_each(|which| {
        block_on(store.delete(&key(which), RejectRules::default())).unwrap();
    });
    // Each delete counts as one of an object in the trees.
    let about = store.stat().objects_with_log();
    // The kinds are estimated from a sample of the keys.
    assert!((600..=1000).contains(&about), "{about}");
    block_on(store.0.checkpointer.apply_all()).unwrap();
    let stat = store.stat();
    assert_eq!((stat.objects, stat.objects_with_log(), stat.log_puts), (900, 900, 0));
    assert!((1300..=stat.batches).contains(&stat.commit_times.count()), "every batch of writes was timed");
    assert!(stat.commit_times.quantile_ns(500).is_some());
    assert!(store.read_only_reason().is_none());
}

/// Symptom: `shoal stat` after an import of 97.7 KiB showed 9 B of values. Cause: only the trees were counted.
#[test]
fn bytes_of_values_count_from_their_put_on() {
    let store = store(Tuning::default(), false);
    put(&store, 0..500);
    fixtures::put(&store, &key(500), vec![1; 100_000]);
    assert_eq!((store.stat().live_value_bytes, store.stat().value_bytes_with_log()), (0, 105_000));
    block_on(store.0.checkpointer.apply_all()).unwrap();
    assert_eq!((store.stat().live_value_bytes, store.stat().value_bytes_with_log()), (105_000, 105_000));
    // Beyond the keys that are looked at one by one, their mean is used for the others.
    put(&store, 1_000..3_000);
    assert_eq!(store.stat().value_bytes_with_log(), 125_000);
    let figures = store.stat().figures();
    assert!(figures.contains(&("objects.value_bytes", "bytes", 125_000)), "{figures:?}");
}

/// The ring of a file takes disk only as far as it is prepared.
#[test]
fn the_disk_of_the_log_is_its_prepared_part() {
    let device = Device::new(Arc::new(MemDevice::growable(1)));
    let format = FormatOptions {
        log_blocks: Some(LOG_BLOCKS),
        initial_blocks: Some(0),
        ..FormatOptions::for_blocks(BLOCKS)
    };
    block_on(Store::format(&device, &format, &Environment::default())).unwrap();
    let options = OpenOptions { background: false, ..OpenOptions::default() };
    let store = open_in(&device, options, Environment::default());
    let before = store.stat();
    assert!(before.log_prepared_blocks < u64::from(LOG_BLOCKS) / 4, "{before:?}");
    block_on(store.0.checkpointer.prepare_log(0)).unwrap();
    let stat = store.stat();
    assert_eq!(stat.log_prepared_blocks, before.log_prepared_blocks * 2);
    assert_eq!(stat.log_blocks, u64::from(LOG_BLOCKS));
    let bytes = stat.log_prepared_blocks * BLOCK_BYTES_U64;
    assert!(stat.figures().contains(&("bytes.log", "bytes", bytes)), "{:?}", stat.figures());
    // A device has its whole ring.
    assert_eq!(self::store(Tuning::default(), false).stat().log_prepared_blocks, u64::from(LOG_BLOCKS));
}

#[test]
fn layers_and_their_compactions_are_counted() {
    let store =
        store(Tuning { layers_from: 0, dense_records: 8, layer_records_min: 1, ..Tuning::default() }, false);
    put(&store, 0..4000);
    block_on(store.0.checkpointer.apply_all()).unwrap();
    let stat = store.stat();
    assert_eq!((stat.layers, stat.layer_entries, stat.merges, stat.merged_bytes), (0, 0, 0, 0));
    (0..4000).step_by(50).for_each(|which| put(&store, which..which + 1));
    block_on(store.0.checkpointer.apply_all()).unwrap();
    let stat = store.stat();
    assert_eq!((stat.layers, stat.layers_most, stat.layer_entries, stat.merges), (1, 1, 80, 0));
    assert_eq!(stat.objects, 4000);
    // Eight layers of one size become one.
    for round in 1..8 {
        (round..4000).step_by(50).for_each(|which| put(&store, which..which + 1));
        block_on(store.0.checkpointer.apply_all()).unwrap();
    }
    let stat = store.stat();
    assert!(stat.layers < 8 && stat.merges >= 1 && stat.merged_bytes > 0, "{stat:?}");
    assert_eq!(stat.objects, 4000);
}

/// Symptom: a thread that hung in the device hid that writes hung there, too. Now the question looks itself.
#[test]
fn a_standstill_is_found_by_asking_for_it() {
    let clock = Arc::new(ManualClock::new(1_000));
    let environment = Environment { clock: clock.clone(), ..Environment::default() };
    let options = OpenOptions { background: false, ..OpenOptions::default() };
    let store = open_in(&in_memory_as(&FormatOptions::for_blocks(BLOCKS)), options, environment);
    assert_eq!(store.standstill_reason(), None);
    store.0.maintenance.standstill.refused(u64::MAX);
    assert_eq!(store.standstill_reason(), None);
    clock.advance(11_000_000_000);
    assert!(store.standstill_reason().unwrap().contains("no write got through for 11 s"));
}

#[test]
fn a_scrub_begins_anew_after_its_period() {
    let tuning = Tuning { scrub_every_ns: 1_000_000, scrub_bytes_per_s: 1 << 30, ..Tuning::default() };
    let store = store(tuning, true);
    put(&store, 0..10);
    let is_anew = (0..1_200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        store.stat().scrub_passes >= 2
    });
    assert!(is_anew, "{:?}", store.stat());
    assert!(store.stat().scrub_ended_ns > 0);
    let never = self::store(Tuning { scrub_bytes_per_s: 0, scrub_every_ns: 0, ..Tuning::default() }, true);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((never.stat().scrub_passes, never.stat().scrub_ended_ns), (0, 0));
}

#[test]
fn a_scrub_starts_on_demand_once() {
    let tuning = Tuning { scrub_every_ns: u64::MAX, scrub_bytes_per_s: 1 << 30, ..Tuning::default() };
    let store = store(tuning, true);
    put(&store, 0..10);
    assert!(!store.stat().scrub_runs);
    // A pass of several pieces, of which the first one starts after this call at the earliest.
    assert_eq!(store.start_scrub(), ScrubStart::Started);
    let is_over = (0..1_200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        store.stat().scrub_passes == 1 && !store.stat().scrub_runs
    });
    assert!(is_over, "{:?}", store.stat());
    store.0.maintenance.scrub_runs.store(true, Ordering::Relaxed);
    assert_eq!(store.start_scrub(), ScrubStart::Runs);
    let never = self::store(Tuning { scrub_bytes_per_s: 0, ..Tuning::default() }, true);
    assert_eq!((never.start_scrub(), never.stat().scrub_runs), (ScrubStart::Off, false));
    let without_threads = self::store(Tuning::default(), false);
    assert_eq!(without_threads.start_scrub(), ScrubStart::Off);
}
