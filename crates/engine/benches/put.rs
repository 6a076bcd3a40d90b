//! The processor time of a short durable put, by thread: `cargo bench -p shoal-engine --bench put -- FILE [PUTS [KEYS [TURN]]]`.
//!
//! One thread puts values of 100 bytes under KEYS keys, TURN of them gathered at a time, with at most [`IN_FLIGHT`] that are not durable,
//! like a frontend for clients that send several at once. The file is created and removed afterwards.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shoal_device::{FileOptions, open};
use shoal_engine::{
    Bucket, Environment, FormatOptions, ObjectKey, OpenOptions, SHORT_PUTS_MAX, Store, block_on,
};
use shoal_testkit::task::run_as_runtime;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Puts that wait for their flush: 50 connections of 16.
const IN_FLIGHT: usize = 800;
/// Blocks of the store.
const BLOCKS: u64 = 1 << 20;

/// Processor time of each thread of this process, by name.
fn processor_time() -> BTreeMap<String, Duration> {
    let mut times = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").expect("threads").flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let ns = read("schedstat").split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        *times.entry(read("comm").trim().to_owned()).or_default() += Duration::from_nanos(ns);
    }
    times
}

fn run(path: &Path, puts: usize, keys: u64, turn: usize) {
    let device = open(path, &FileOptions { create: true, ..FileOptions::default() }).expect("a device");
    block_on(Store::format(&device, &FormatOptions::for_blocks(BLOCKS), &Environment::default()))
        .expect("format");
    let options = OpenOptions { cache_bytes: 512 << 20, ..OpenOptions::default() };
    let store = block_on(Store::open(device, options, Environment::default())).expect("open");
    let bucket = Bucket::new("default").expect("a fine name");
    let value = [b'x'; 100];
    let mut seed = 1_u64;
    let mut waiting = VecDeque::new();
    let mut stalls = 0;
    let (mut before, mut start) = (processor_time(), Instant::now());
    // A quarter warms up.
    let mut left = puts + puts / 4;
    while left > 0 {
        if left <= puts && left + turn > puts {
            (before, start) = (processor_time(), Instant::now());
        }
        let count = turn.min(left);
        let keys: Vec<ObjectKey> = (0..count)
            .map(|_| {
                seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                let key = ((u128::from(seed >> 16) * u128::from(keys)) >> 48) as u64;
                bucket.key(format!("key:{key:012}").as_bytes()).expect("a fine key")
            })
            .collect();
        let last = store.gather(|| put_all(&store, &keys, &value));
        left -= last.1;
        match last.0 {
            Some(last) => waiting.push_back((last, count)),
            None => {
                stalls += 1;
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        while waiting.iter().map(|(_, count)| count).sum::<usize>() > IN_FLIGHT {
            let Some((first, _)) = waiting.pop_front() else { break };
            wait(&first);
        }
    }
    waiting.iter().for_each(|(pending, _)| wait(pending));
    let seconds = start.elapsed().as_secs_f64();
    let after = processor_time();
    let rate = puts as f64 / seconds;
    let mut sum = 0.0;
    print!(
        "{puts} puts, {keys} keys, {turn} at once: {rate:.0}/s, {stalls} stalls; us of processor time a put:"
    );
    for (name, time) in &after {
        let spent = time.saturating_sub(before.get(name).copied().unwrap_or_default());
        let us = spent.as_secs_f64() * 1e6 / puts as f64;
        sum += us;
        if us >= 0.005 {
            print!(" {name} {us:.3}");
        }
    }
    let stat = store.stat();
    println!(" sum {sum:.3}; {} applies, {} pages", stat.applies, stat.page_blocks_written);
    block_on(store.close()).expect("close");
}

/// Queues all puts that find room; returns the last of them, and their number.
fn put_all(store: &Store, keys: &[ObjectKey], value: &[u8]) -> (Option<shoal_engine::Ticket>, usize) {
    let (mut last, mut count) = (None, 0);
    for keys in keys.chunks(SHORT_PUTS_MAX) {
        let puts: Vec<(&ObjectKey, &[u8])> = keys.iter().map(|key| (key, value)).collect();
        let Some(pending) = store.try_write(&puts) else { break };
        (last, count) = (Some(pending), count + keys.len());
    }
    (last, count)
}

/// Waits like a task: another thread commits.
fn wait(pending: &shoal_engine::Ticket) {
    run_as_runtime(poll_fn(|context| pending.poll_durable(context))).expect("a put");
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let Some(path) = arguments.next().map(PathBuf::from) else {
        println!("no file named: nothing to measure");
        return;
    };
    let mut number =
        |otherwise: u64| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (puts, keys, turn) = (number(1_000_000), number(10_000), number(16));
    let _ = std::fs::remove_file(&path);
    run(&path, puts as usize, keys, turn as usize);
    std::fs::remove_file(&path).expect("remove the file");
}
