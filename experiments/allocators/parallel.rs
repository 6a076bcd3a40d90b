//! Several threads on one allocator, and clients of one that another thread owns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use shoal_base::Run as Blocks;

use super::allocator::Allocator;
use super::figures::Figures;
use super::load::{Random, Sizes};
use super::meter::Meter;
use super::reference::{CachedClient, Pooled, Record, Server};
use super::run::{Run, SEED};
use super::seed::give_back;

/// Allocations of a thread's round, as in the seed's test.
const ROUND: usize = 100_000;

/// Allocations between two looks at the clock.
const PART: usize = 1000;

/// The share of a round that is freed again.
const FREED_PERCENT: usize = 50;

/// Blocks that a client with a pool fetches at a time: 16 GiB, as in the seed's test.
const REGION_BLOCKS: u32 = 1 << 22;

/// The seed's load by `threads` threads, until the first contiguous failure of any. Times are the sum over the threads of
/// their processor time; a value is placed by the wall clock for `allocs_per_s`.
pub(crate) fn threads(allocator: &dyn Allocator, threads: u64, run: &Run) -> Figures {
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    let work = |thread: u64| {
        let mut figures = Figures::default();
        let mut random = Random::new(SEED + thread);
        let mut is_batched = false;
        while !is_over.load(Ordering::Relaxed) && !run.is_over() {
            round(allocator, run, is_batched, &mut random, &mut figures);
            is_batched = !is_batched;
            if figures.utilisation_at_first_failure.is_some() {
                is_over.store(true, Ordering::Relaxed);
            }
        }
        figures
    };
    let mut all = Figures::default();
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        for thread in running {
            match thread.join() {
                Ok(figures) => merge(&mut all, &figures),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all.wall_allocs_per_s = Some(all.values as f64 / began.elapsed().as_secs_f64());
    all.look(allocator);
    all
}

fn merge(all: &mut Figures, one: &Figures) {
    all.alloc.merge(&one.alloc);
    all.free.merge(&one.free);
    all.free_batched.merge(&one.free_batched);
    all.alloc_batched.merge(&one.alloc_batched);
    all.values += one.values;
    all.runs += one.runs;
    let first = [all.utilisation_at_first_failure, one.utilisation_at_first_failure];
    all.utilisation_at_first_failure = first.into_iter().flatten().reduce(f64::min);
}

fn round(allocator: &dyn Allocator, run: &Run, is_batched: bool, random: &mut Random, figures: &mut Figures) {
    let count = run.count(ROUND);
    let sizes: Vec<u32> = (0..count).map(|_| Sizes::SEED.draw(random)).collect();
    let mut runs: Vec<Blocks> = Vec::with_capacity(count);
    figures.utilisation_at_first_failure = fill(allocator, &sizes, &mut runs, &mut figures.alloc, run);
    figures.values += runs.len() as u64;
    figures.runs += runs.len() as u64;
    random.shuffle(&mut runs);
    runs.truncate(runs.len() * FREED_PERCENT / 100);
    give_back(allocator, &runs, is_batched, figures);
}

/// A run for each size up to the first that finds none, how full the device is then; or until the row's time is over.
fn fill(
    allocator: &dyn Allocator,
    sizes: &[u32],
    runs: &mut Vec<Blocks>,
    meter: &mut Meter,
    row: &Run,
) -> Option<f64> {
    let mut first_failure = None;
    // In parts: a round of the slowest takes minutes.
    for part in sizes.chunks(PART) {
        meter.each_while(part, |&blocks| {
            match allocator.allocate(blocks) {
                Ok(run) => runs.push(run),
                Err(_) => first_failure = Some(allocator.status().utilisation()),
            }
            first_failure.is_none()
        });
        if first_failure.is_some() || row.is_over() {
            break;
        }
    }
    first_failure
}

/// The seed's client and server over a device of `blocks`: a call for each allocation, or regions and a pool.
/// `allocs_per_s` is by the wall clock: the processor's knows nothing of waiting.
pub(crate) fn client_server(blocks: u64, is_cached: bool, run: &mut Run) -> Figures {
    let server = Server::start(Box::new(Pooled::new(0, blocks, Record::None)));
    let client: Box<dyn Allocator> = if is_cached {
        let region = u64::from(REGION_BLOCKS).min(blocks / 128).max(1024);
        Box::new(CachedClient::new(&server, region as u32))
    } else {
        Box::new(server.client())
    };
    let mut figures = Figures::default();
    let mut random = Random::new(SEED);
    let mut number = 0;
    // Only allocations count: frees are calls too, and the seed's figure is that of allocations.
    let mut waited = std::time::Duration::ZERO;
    while figures.utilisation_at_first_failure.is_none() && !run.is_over() {
        let count = run.count(if is_cached { ROUND } else { ROUND / 20 });
        let sizes: Vec<u32> = (0..count).map(|_| Sizes::SEED.draw(&mut random)).collect();
        let mut runs: Vec<Blocks> = Vec::with_capacity(count);
        let began = Instant::now();
        figures.utilisation_at_first_failure = fill(&*client, &sizes, &mut runs, &mut figures.alloc, run);
        waited += began.elapsed();
        figures.values += runs.len() as u64;
        figures.runs += runs.len() as u64;
        random.shuffle(&mut runs);
        runs.truncate(runs.len() * FREED_PERCENT / 100);
        give_back(&*client, &runs, true, &mut figures);
        number += 1;
        run.show(number, &*client);
    }
    figures.wall_allocs_per_s = Some(figures.values as f64 / waited.as_secs_f64());
    figures.look(&*client);
    figures
}
