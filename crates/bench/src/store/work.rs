//! The work of clients, and their latencies: threads for an embedded store, tasks for a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use shoal_base::SeededEntropy;
use shoal_engine::block_on;
use tokio::runtime::Handle;

use super::target::Target;
use crate::enough::Enough;
use crate::histogram::Histogram;
use crate::payload::ObjectSet;

/// The work of all clients of a case together.
pub(crate) enum Work {
    /// Put objects 0, 1 and so on; again from 0 after `wrap` of them. Stops after `limit` puts.
    Put { set: ObjectSet, next: AtomicU64, wrap: u64, limit: u64 },
    /// Get and check random ones of the first `count` objects, others for each `salt`. With `in_turn`, each of them once.
    Get { set: ObjectSet, count: u64, in_turn: Option<AtomicU64>, salt: u64 },
    /// Delete objects from `next` on, up to `count`.
    Delete { set: ObjectSet, next: AtomicU64, count: u64 },
    /// List everything, again and again.
    List,
}

impl Work {
    pub(crate) fn fill(set: &ObjectSet, count: u64) -> Arc<Self> {
        Arc::new(Self::Put { set: set.clone(), next: AtomicU64::new(0), wrap: count.max(1), limit: count })
    }

    pub(crate) fn clear(set: &ObjectSet, count: u64) -> Arc<Self> {
        Arc::new(Self::Delete { set: set.clone(), next: AtomicU64::new(0), count })
    }

    /// Objects made by puts so far.
    pub(crate) fn objects_made(&self) -> u64 {
        match self {
            Self::Put { next, wrap, limit, .. } => next.load(Ordering::Relaxed).min(*wrap).min(*limit),
            Self::Get { .. } | Self::Delete { .. } | Self::List => 0,
        }
    }
}

/// The counts of one client, or of all of them.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) latencies: Histogram,
    /// Operations; for a listing, the number of its keys.
    pub(crate) operations: u64,
    /// Bytes of values.
    pub(crate) bytes: u64,
}

impl Tally {
    fn merge(&mut self, other: &Self) {
        self.latencies.merge(&other.latencies);
        self.operations += other.operations;
        self.bytes += other.bytes;
    }
}

/// One client, and its position in its work.
pub(crate) struct Worker {
    target: Target,
    work: Arc<Work>,
    random: SeededEntropy,
    /// The start of the next page of a listing.
    page: Vec<u8>,
    pub(crate) tally: Tally,
}

impl Worker {
    pub(crate) fn new(target: Target, work: Arc<Work>, number: u64) -> Self {
        let salt = if let Work::Get { salt, .. } = *work { salt } else { 0 };
        let random = SeededEntropy::new(salt ^ number.wrapping_mul(0x9E37_79B9_0000_0001));
        Self { target, work, random, page: Vec::new(), tally: Tally::default() }
    }

    /// Does one operation after the other until they are enough, or nothing is left.
    async fn run(&mut self, enough: Enough) -> Result<()> {
        while !enough.is_reached(self.tally.latencies.count()) && self.step().await? {}
        Ok(())
    }

    /// Does `count` operations, or the rest if fewer are left.
    pub(crate) async fn turn(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            if !self.step().await? {
                break;
            }
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<bool> {
        let work = self.work.clone();
        let (operations, bytes, latency) = match &*work {
            Work::Put { set, next, wrap, limit } => {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= *limit {
                    return Ok(false);
                }
                let (key, value) = (set.key(number % wrap), set.value(number % wrap));
                let bytes = value.len() as u64;
                let began = Instant::now();
                self.target.put(&key, value).await?;
                (1, bytes, began.elapsed())
            }
            Work::Get { set, count, in_turn, .. } => {
                let number = match in_turn {
                    Some(next) => next.fetch_add(1, Ordering::Relaxed),
                    None => self.random.below(*count),
                };
                if number >= *count {
                    return Ok(false);
                }
                let key = set.key(number);
                let began = Instant::now();
                let ends = self.target.get(&key).await?;
                let latency = began.elapsed();
                let ends =
                    ends.with_context(|| format!("object {} is not there", String::from_utf8_lossy(&key)))?;
                set.check(number, &ends)?;
                (1, ends.bytes, latency)
            }
            Work::Delete { set, next, count } => {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= *count {
                    return Ok(false);
                }
                let key = set.key(number);
                let began = Instant::now();
                self.target.delete(&key).await?;
                (1, 0, began.elapsed())
            }
            Work::List => {
                let began = Instant::now();
                let (keys, next) = self.target.list(&self.page).await?;
                self.page = next.unwrap_or_default();
                (keys, 0, began.elapsed())
            }
        };
        self.tally.latencies.record(latency);
        self.tally.operations += operations;
        self.tally.bytes += bytes;
        Ok(true)
    }
}

/// Runs `work` with `clients` clients for `time`, and at least for the minimum number of operations of a row, and returns their
/// counts.
pub(crate) fn run(
    target: &Target,
    runtime: &Handle,
    work: &Arc<Work>,
    clients: usize,
    time: Duration,
) -> Result<Tally> {
    let enough = Enough::after(time);
    let worker = |number: usize| Worker::new(target.clone(), work.clone(), number as u64);
    let results: Vec<Result<Tally>> = match target {
        Target::Embedded(_) => thread::scope(|scope| {
            let spawn = |number| {
                let mut worker = worker(number);
                scope.spawn(move || block_on(worker.run(enough)).map(|()| worker.tally))
            };
            let threads: Vec<_> = (0..clients).map(spawn).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a client's thread panicked")))
            };
            threads.into_iter().map(join).collect()
        }),
        Target::Server(_) => {
            let spawn = |number| {
                let mut worker = worker(number);
                runtime.spawn(async move { worker.run(enough).await.map(|()| worker.tally) })
            };
            let tasks: Vec<_> = (0..clients).map(spawn).collect();
            runtime.block_on(async {
                let mut results = Vec::new();
                for task in tasks {
                    results.push(task.await.unwrap_or_else(|error| Err(error.into())));
                }
                results
            })
        }
    };
    let mut all = Tally::default();
    for result in results {
        all.merge(&result?);
    }
    Ok(all)
}

/// Far enough away.
pub(crate) const FOREVER: Duration = Duration::from_secs(24 * 3600);
