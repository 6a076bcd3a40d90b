//! The loop of imports and exports: one thread plans, several work, and a bounded queue of batches connects them.
//!
//! File I/O blocks, so workers are separate threads that wait for the store through the runtime's handle. A worker has one batch, and
//! its requests, in flight.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use parking_lot::Mutex;

/// Queued batches for each worker.
const WAITING_BATCHES_PER_JOB: usize = 2;
/// Maximum items in a batch: enough to share a flush and a message, few enough to keep all workers busy.
pub(crate) const BATCH_ITEMS_MAX: usize = 128;
/// Maximum value bytes in a batch: a worker holds them in memory. A larger value is sent alone, in pieces.
pub(crate) const BATCH_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of workers.
pub const JOBS_MAX: u16 = 256;

/// Runs `plan` on this thread, and `work` on its batches on `jobs` threads, until both are done.
pub(crate) fn run<T: Send, R>(
    jobs: u16,
    work: impl Fn(Vec<T>) + Sync,
    plan: impl FnOnce(&mut Batches<T>) -> R,
) -> R {
    let jobs = usize::from(jobs.clamp(1, JOBS_MAX));
    let (sender, receiver) = sync_channel::<Vec<T>>(jobs * WAITING_BATCHES_PER_JOB);
    let receiver = Mutex::new(receiver);
    let next = || receiver.lock().recv();
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Ok(batch) = next() {
                    work(batch);
                }
            });
        }
        let mut batches = Batches { sender, items: Vec::new(), bytes: 0 };
        let result = plan(&mut batches);
        batches.send();
        drop(batches);
        result
    })
}

/// Collects the planner's items into batches.
pub(crate) struct Batches<T> {
    sender: SyncSender<Vec<T>>,
    items: Vec<T>,
    bytes: u64,
}

impl<T> Batches<T> {
    /// Adds an item with a value of `bytes` bytes. Blocks while the queue is full.
    pub(crate) fn add(&mut self, item: T, bytes: u64) {
        if !self.items.is_empty() && self.bytes.saturating_add(bytes) > BATCH_BYTES_MAX {
            self.send();
        }
        self.items.push(item);
        self.bytes += bytes;
        if self.items.len() >= BATCH_ITEMS_MAX || self.bytes >= BATCH_BYTES_MAX {
            self.send();
        }
    }

    /// Queues the collected items now.
    pub(crate) fn send(&mut self) {
        self.bytes = 0;
        if !self.items.is_empty() {
            // The receiver outlives all senders.
            let _ = self.sender.send(std::mem::take(&mut self.items));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_processed_once_in_bounded_batches() {
        let done = Mutex::new(Vec::new());
        let work = |batch: Vec<(u32, u64)>| {
            let bytes: u64 = batch.iter().map(|&(_, bytes)| bytes).sum();
            assert!(batch.len() <= BATCH_ITEMS_MAX && (bytes <= BATCH_BYTES_MAX || batch.len() == 1));
            done.lock().extend(batch);
        };
        let given = run(3, work, |batches| {
            for index in 0..5000_u32 {
                let bytes = if index % 500 == 0 { BATCH_BYTES_MAX * 3 } else { u64::from(index) * 7 };
                batches.add((index, bytes), bytes);
            }
            5000
        });
        let mut done: Vec<u32> = done.into_inner().into_iter().map(|(index, _)| index).collect();
        done.sort_unstable();
        assert_eq!(done, (0..given).collect::<Vec<_>>());
    }
}
