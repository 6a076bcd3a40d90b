//! The cost of getting and releasing a resident unit, and the cost of a miss besides its read.
//!
//! `cargo bench -p shoal-pool`. Prints nanoseconds for each operation, the best and the median of several rounds: one
//! thread alone, two threads on different units, two on the same one. Prints CPU time per access if the threads do
//! not have the machine to themselves.

#[path = "../src/tests/device.rs"]
mod device;

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use device::TestDevice;
use shoal_base::checksum::crc32c;
use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, SeededEntropy};
use shoal_pool::{Hint, Pool, PoolOptions, Unit};

const BLOCKS: u64 = 4096;
const ROUNDS: usize = 15;
const ACCESSES: usize = 2_000_000;

fn sealed(block: u64) -> (Vec<u8>, Unit) {
    let mut page = vec![block as u8; BLOCK_BYTES];
    page[8..16].copy_from_slice(&block.to_le_bytes());
    let crc = crc32c(&page[4..]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
    (page, Unit::page(block, crc))
}

/// CPU time of this thread in nanoseconds.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn report(name: &str, mut samples: Vec<f64>) {
    samples.sort_by(f64::total_cmp);
    println!("{name:<44} best {:>7.1} ns   median {:>7.1} ns", samples[0], samples[samples.len() / 2]);
}

/// Nanoseconds of CPU that each of `threads` threads spends on one call of `operation(thread, n)`.
fn measure(name: &str, threads: usize, count: usize, operation: impl Fn(usize, usize) + Sync) {
    let samples = (0..ROUNDS)
        .flat_map(|_| {
            thread::scope(|scope| {
                let operation = &operation;
                let threads: Vec<_> = (0..threads)
                    .map(|thread| {
                        scope.spawn(move || {
                            let start = cpu_ns();
                            (0..count).for_each(|n| operation(thread, n));
                            (cpu_ns() - start) as f64 / count as f64
                        })
                    })
                    .collect();
                threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
            })
        })
        .collect();
    report(name, samples);
}

fn main() {
    let device = TestDevice::new(BLOCKS);
    let mut units = Vec::new();
    for block in 0..BLOCKS {
        let (page, unit) = sealed(block);
        device.put(block, &page);
        units.push(unit);
    }
    let Ok(pool) = Pool::new(device.device(), PoolOptions::new(BLOCKS as usize)) else { return };
    let start = Instant::now();
    for unit in &units {
        black_box(block_on(pool.fetch(*unit, Hint::Lookup)).is_ok());
    }
    println!("{BLOCKS} misses over memory: {:.0} ns each", start.elapsed().as_nanos() as f64 / BLOCKS as f64);

    let random = SeededEntropy::new(1);
    let order: Vec<usize> = (0..65_536).map(|_| random.below(BLOCKS) as usize).collect();
    let get = |index: usize| {
        if let Some(pinned) = pool.get(&units[index]) {
            black_box(pinned.page()[0]);
        }
    };
    let drop_only = |index: usize| drop(black_box(pool.get(&units[index])));
    measure("get and drop, one page", 1, ACCESSES, |_, _| drop_only(7));
    measure("get and drop, 64 pages", 1, ACCESSES, |_, n| drop_only(n % 64));
    measure("get and drop, random of 4096 pages", 1, ACCESSES, |_, n| drop_only(order[n % 65_536]));
    measure("get, read a byte and drop, random of 4096", 1, ACCESSES, |_, n| get(order[n % 65_536]));
    measure("two threads, different halves", 2, ACCESSES, |thread, n| {
        drop_only(thread * 2048 + order[n % 65_536] % 2048);
    });
    measure("two threads, random of 4096", 2, ACCESSES, |thread, n| {
        drop_only(order[(n + thread * 999) % 65_536])
    });
    measure("two threads, the same page", 2, ACCESSES, |_, _| drop_only(7));
    measure("fetch of a resident page", 1, ACCESSES, |_, n| {
        black_box(block_on(pool.fetch(units[order[n % 65_536]], Hint::Lookup)).is_ok());
    });
    let Ok(small) = Pool::new(device.device(), PoolOptions::new(512)) else { return };
    measure("miss over memory, 512 of 4096 frames", 1, 100_000, |_, n| {
        black_box(block_on(small.fetch(units[order[n % 65_536]], Hint::Lookup)).is_ok());
    });
    println!("{:?}", small.counters());
}
