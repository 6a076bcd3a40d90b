//! The cost of small values on a file: `cargo bench -p shoal-engine --bench packed -- FILE [OBJECTS [BYTES [THREADS]]]`.
//!
//! Puts, then deletes of a random half, then an idle store; after each the ratio of allocated to live bytes, the bytes written to the
//! device, and the bytes moved. The file is created and removed afterwards.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shoal_device::{FileOptions, open};
use shoal_engine::{
    Environment, FormatOptions, ObjectKey, OpenOptions, PutOptions, RejectRules, Store, StoreStat, block_on,
};

/// The longest wait for an idle store to be dense.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Without an apply for this time, no work is left.
const QUIET: Duration = Duration::from_secs(5);

fn key(which: u64) -> ObjectKey {
    // Spread over the keys: the order of arrival differs from the order of names, as for real objects.
    let name = format!("object/{:016x}", which.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    ObjectKey::new("default", name.as_bytes()).expect("a fine key")
}

fn ratio(stat: &StoreStat) -> f64 {
    stat.allocated_blocks as f64 * 4096.0 / (stat.live_value_bytes.max(1)) as f64
}

fn report(what: &str, store: &Store, since: Instant) {
    let stat = store.stat();
    println!(
        "{what:<24} {:>6.1} s  allocated/live {:.4}  live {} MiB  runs {}  packed/live {:.4}  device writes {} of {} MiB, log {} MiB, pages {} MiB, home {} MiB, moved {} MiB, applies {}",
        since.elapsed().as_secs_f64(),
        ratio(&stat),
        stat.live_value_bytes >> 20,
        stat.packed_runs,
        stat.packed_blocks as f64 * 4096.0 / stat.packed_live_bytes.max(1) as f64,
        stat.device.writes,
        stat.device.blocks_written >> 8,
        stat.log_blocks_written >> 8,
        stat.page_blocks_written >> 8,
        stat.home_blocks_written >> 8,
        stat.moved_bytes >> 20,
        stat.applies,
    );
}

/// Runs `work` for every number below `count`, distributed over threads.
fn in_threads(threads: u64, count: u64, work: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || (thread..count).step_by(threads as usize).for_each(work));
        }
    });
}

/// Waits until the memtables are empty and the ratio is at most `goal` or the store is idle, for at most the longest time.
fn settle(store: &Store, goal: f64) {
    let start = Instant::now();
    let mut last = (0, Instant::now());
    while start.elapsed() < IDLE_MAX {
        let stat = store.stat();
        if last.0 != stat.applies {
            last = (stat.applies, Instant::now());
        }
        let is_quiet = last.1.elapsed() > QUIET;
        if stat.memtable_records == 0 && (ratio(&stat) <= goal || is_quiet) {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn run(path: &Path, objects: u64, bytes: usize, threads: u64) {
    let blocks = objects * (bytes as u64 + 4096) / 4096 * 2 + 200_000;
    let device = open(path, &FileOptions { create: true, ..FileOptions::default() }).expect("a device");
    block_on(Store::format(&device, &FormatOptions::for_blocks(blocks), &Environment::default()))
        .expect("format");
    let options = OpenOptions { cache_bytes: 256 << 20, ..OpenOptions::default() };
    let store = block_on(Store::open(device, options, Environment::default())).expect("a store");
    let value = vec![0x5A; bytes];
    let start = Instant::now();
    in_threads(threads, objects, |which| {
        block_on(store.put(&key(which), value.clone().into(), PutOptions::default())).expect("a put");
    });
    report("put", &store, start);
    settle(&store, 1.0);
    report("put, and idle", &store, start);
    let start = Instant::now();
    let dies = |which: u64| which.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 63 == 1;
    in_threads(threads, objects, |which| {
        if dies(which) {
            block_on(store.delete(&key(which), RejectRules::default())).expect("a delete");
        }
    });
    report("half deleted", &store, start);
    settle(&store, 1.08);
    report("half deleted, to 1.08", &store, start);
    settle(&store, 1.0);
    report("half deleted, and idle", &store, start);
    block_on(store.close()).expect("close");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let Some(path) = words.first().map(PathBuf::from) else {
        println!("usage: packed FILE [OBJECTS [BYTES [THREADS]]]");
        return;
    };
    let number =
        |at: usize, default: u64| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(default);
    let (objects, bytes, threads) = (number(1, 100_000), number(2, 9_000) as usize, number(3, 16));
    if path.exists() {
        println!("{} exists: it is left alone", path.display());
        return;
    }
    run(&path, objects, bytes, threads);
    if let Err(error) = std::fs::remove_file(&path) {
        println!("{} was not removed: {error}", path.display());
    }
}
