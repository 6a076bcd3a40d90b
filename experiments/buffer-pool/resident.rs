//! `resident`: the cost of a hit without the load generator, and the interference of two threads.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use shoal_base::task::block_on;
use shoal_pool::{Hint, Pool, PoolOptions, Unit};

use super::PoolBenchOptions;
use super::sim::{Handling, Latency, Sim};
use super::zipf::Random;
use shoal_bench::report::Report;

const HITS: usize = 2_000_000;
const ROUNDS: usize = 11;

/// Pages in the order of the hits, drawn beforehand: few enough that reading them costs nothing.
const ORDER: usize = 1 << 12;

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), time.tv_nsec.try_into().unwrap_or_default())
}

/// Nanoseconds of processor time for each hit of each thread: the median.
fn hit_ns(pool: &Pool, order: &[u16], threads: usize) -> f64 {
    let mut samples: Vec<f64> = (0..ROUNDS)
        .flat_map(|_| {
            thread::scope(|scope| {
                let threads: Vec<_> = (0..threads)
                    .map(|thread| {
                        scope.spawn(move || {
                            let start = thread_cpu();
                            for hit in 0..HITS {
                                let page = order[(hit + thread * ORDER / 2) % ORDER];
                                drop(black_box(pool.get(&Unit::mutable(page.into()))));
                            }
                            (thread_cpu() - start).as_secs_f64() * 1e9 / HITS as f64
                        })
                    })
                    .collect();
                threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
            })
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

pub(crate) fn measure(options: &PoolBenchOptions, report: &mut Report<'_>) -> Result<()> {
    let sim = Sim::new(options.pages, Latency::None, Handling::default());
    let pool = Pool::new(sim.device(), PoolOptions::new(options.pages as usize + 64))?;
    for page in 0..options.pages {
        drop(block_on(pool.read(page, Hint::Lookup))?);
    }
    let mut random = Random::new(7);
    let pages = options.pages.min(u16::MAX.into());
    let order: Vec<u16> = (0..ORDER).map(|_| (random.next() % pages) as u16).collect();
    for (variant, threads) in [("default", 1), ("default-2-threads", 2)] {
        let ns = hit_ns(&pool, &order, threads);
        let per_cpu = 1e9 / ns;
        report.row("resident", variant, &[None, Some(per_cpu), Some(ns), None, None, None, None])?;
    }
    Ok(())
}
