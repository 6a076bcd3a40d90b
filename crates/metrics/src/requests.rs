//! Durations of requests by operation and result.
//!
//! Each of several threads has a set of cells, so that threads on different cores rarely write to the same cache line.
//! The first request of an operation and a result allocates their cell.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use shoal_base::histogram::{Durations, Histogram};

use crate::request::{Operation, RequestResult};

/// Sets of cells. Further threads share them.
const SHARDS: usize = 16;

const OPERATIONS: usize = Operation::ALL.len();
const RESULTS: usize = RequestResult::ALL.len();

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The set of cells of this thread.
pub(crate) fn shard() -> usize {
    SHARD.get().unwrap_or_else(|| {
        let shard = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
        SHARD.set(Some(shard));
        shard
    })
}

/// A value on separate cache lines, so that its writers do not slow down others.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Alone<T>(pub(crate) T);

/// The cells of one set.
type Cells = [[OnceLock<Box<Histogram>>; RESULTS]; OPERATIONS];

/// Requests of one frontend since its start.
#[derive(Debug)]
pub struct Requests {
    shards: Box<[Alone<Cells>]>,
}

impl Default for Requests {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Alone::default()).collect() }
    }
}

impl Requests {
    /// Counts `times` requests that took `ns` each.
    pub fn add(&self, operation: Operation, result: RequestResult, ns: u64, times: u64) {
        let cells = self.shards.get(shard()).and_then(|shard| shard.0.get(operation as usize));
        if let Some(cell) = cells.and_then(|results| results.get(result as usize)) {
            cell.get_or_init(Box::default).add(ns, times);
        }
    }

    /// The counts by operation and result, without empty ones.
    #[must_use]
    pub fn read(&self) -> Vec<RequestCounts> {
        let mut all = Vec::new();
        for &operation in Operation::ALL {
            for &result in RequestResult::ALL {
                let cells = self
                    .shards
                    .iter()
                    .filter_map(|shard| shard.0.get(operation as usize)?.get(result as usize)?.get());
                let mut durations = None;
                cells.for_each(|cell| cell.read(durations.get_or_insert_default()));
                all.extend(durations.map(|durations| RequestCounts { operation, result, durations }));
            }
        }
        all
    }
}

/// Requests of one operation and result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    /// Their operation.
    pub operation: Operation,
    /// Their result.
    pub result: RequestResult,
    /// Their number and durations.
    pub durations: Durations,
}

/// A count that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct Sum([Alone<std::sync::atomic::AtomicU64>; SHARDS]);

impl Sum {
    pub(crate) fn add(&self, count: u64) {
        if let Some(cell) = self.0.get(shard()) {
            cell.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().fold(0, |sum, cell| sum.wrapping_add(cell.0.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_together() {
        let (requests, sum) = (Requests::default(), Sum::default());
        assert!(requests.read().is_empty());
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    (0..100).for_each(|_| requests.add(Operation::Get, RequestResult::Ok, 1_500, 1));
                    requests.add(Operation::Put, RequestResult::Refused, 3_000_000, 2);
                    sum.add(5);
                });
            }
        });
        let counts: Vec<_> = requests
            .read()
            .into_iter()
            .map(|counts| {
                (counts.operation, counts.result, counts.durations.count(), counts.durations.sum_ns)
            })
            .collect();
        let expected = [
            (Operation::Get, RequestResult::Ok, 2_000, 3_000_000),
            (Operation::Put, RequestResult::Refused, 40, 120_000_000),
        ];
        assert_eq!(counts, expected);
        assert_eq!(sum.get(), 100);
    }
}
