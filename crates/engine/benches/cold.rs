//! Reads everything from a cold cache: `cargo bench -p shoal-engine --bench cold -- FILE [OBJECTS [DELAY_US [ROUNDS]]]`.
//!
//! Lists all objects, lists the objects whose metadata precede their values, scrubs and checks, each with an empty cache of 1 MiB; and
//! lists with a full cache. The file is created if it does not exist, and is kept. Every read takes the given delay longer than the file
//! does, as on a block device over a network; any number of reads are delayed in parallel. `--bench cold` of `shoal-backup` makes a backup
//! of the same file.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use shoal_device::{Device, FileOptions, open};
use shoal_engine::{
    CheckOptions, Environment, FormatOptions, ListRequest, Metadata, ObjectKey, OpenOptions, PutOptions,
    Store, block_on, check,
};
use shoal_testkit::device::Late;
use shoal_testkit::task::run_as_runtime;

/// The cold cache.
const CACHE_BYTES: usize = 1 << 20;
/// The cache that holds all leaves.
const WARM_CACHE_BYTES: usize = 512 << 20;
/// One in this many objects has metadata that do not fit its leaf.
const DESCRIBED_EVERY: u64 = 10;

fn key(which: u64) -> ObjectKey {
    let bucket = if which.is_multiple_of(DESCRIBED_EVERY) { "described" } else { "default" };
    let name = format!("object/{:016x}", which.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    ObjectKey::new(bucket, name.as_bytes()).expect("a fine key")
}

fn fill(path: &Path, objects: u64) {
    let device = device(path, Duration::ZERO, true);
    let (options, environment) = (FormatOptions::for_blocks(1 << 23), Environment::default());
    block_on(Store::format(&device, &options, &environment)).expect("format");
    let store = block_on(Store::open(device, OpenOptions::default(), environment)).expect("open");
    thread::scope(|scope| {
        for thread in 0..16 {
            let store = &store;
            scope.spawn(move || {
                for which in (thread..objects).step_by(16) {
                    let bytes = 1025 + (which.wrapping_mul(7919) % (15 << 10)) as usize;
                    let user = vec![("about".to_owned(), vec![7; 1500].into())];
                    let metadata = match which % DESCRIBED_EVERY {
                        0 => Metadata { user, ..Metadata::default() },
                        _ => Metadata::default(),
                    };
                    let options = PutOptions { metadata, ..PutOptions::default() };
                    let value = vec![which as u8; bytes].into();
                    block_on(store.put(&key(which), value, options)).expect("put");
                }
            });
        }
    });
    block_on(store.close()).expect("close");
}

fn device(path: &Path, delay: Duration, create: bool) -> Device {
    let options = FileOptions { create, ..FileOptions::default() };
    let device = open(path, &options).expect("the file opens");
    Late::over(device.inner().clone(), delay)
}

fn reopened(path: &Path, delay: Duration, cache_bytes: usize) -> (Device, Store) {
    let device = device(path, delay, false);
    let options = OpenOptions { cache_bytes, read_only: true, ..OpenOptions::default() };
    let store = block_on(Store::open(device.clone(), options, Environment::default())).expect("open");
    (device, store)
}

async fn list(store: &Store, bucket: &str) -> u64 {
    let mut request = ListRequest { bucket: bucket.into(), limit: 1000, ..ListRequest::default() };
    let mut count = 0;
    loop {
        let page = store.list(&request).await.expect("a page");
        count += page.entries.len() as u64;
        match page.next {
            Some(next) => request.start_after = next,
            None => return count,
        }
    }
}

fn timed(case: &str, device: &Device, delay: Duration, work: impl FnOnce() -> u64) {
    let before = device.counters();
    let start = Instant::now();
    let objects = work();
    let seconds = start.elapsed().as_secs_f64();
    let counters = device.counters();
    let reads = counters.reads - before.reads;
    println!(
        "{case:<12} {seconds:>8.3} s  {objects:>8} objects  {:>9.0} /s  {reads:>7} reads  {:>6} MiB  {:>6.1} delayed side by side",
        objects as f64 / seconds,
        (counters.blocks_read - before.blocks_read) >> 8,
        reads as f64 * delay.as_secs_f64() / seconds,
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let path = PathBuf::from(arguments.next().expect("a file"));
    let mut number = |default: u64| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (objects, delay, rounds) = (number(200_000), Duration::from_micros(number(0)), number(1));
    if !path.exists() {
        fill(&path, objects);
    }
    for _ in 0..rounds {
        let (device, store) = reopened(&path, delay, CACHE_BYTES);
        timed("list", &device, delay, || run_as_runtime(list(&store, "default")));
        drop((device, store));
        let (device, store) = reopened(&path, delay, CACHE_BYTES);
        timed("described", &device, delay, || run_as_runtime(list(&store, "described")));
        drop((device, store));
        let (device, store) = reopened(&path, delay, CACHE_BYTES);
        timed("scrub", &device, delay, || block_on(store.scrub()).expect("scrub").objects);
        drop((device, store));
        let device = self::device(&path, delay, false);
        let options = CheckOptions { cache_bytes: CACHE_BYTES, ..CheckOptions::default() };
        let found = || run_as_runtime(check(device.clone(), &options)).expect("check");
        timed("check", &device, delay, || {
            let report = found();
            assert_eq!(report.problem_count, 0, "{:?}", report.problems);
            report.objects
        });
        drop(device);
        let (device, store) = reopened(&path, Duration::ZERO, WARM_CACHE_BYTES);
        run_as_runtime(list(&store, "default"));
        timed("list, warm", &device, Duration::ZERO, || run_as_runtime(list(&store, "default")));
    }
}
