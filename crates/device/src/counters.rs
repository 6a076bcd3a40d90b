//! Counts of a device, kept without a lock. They are figures, not synchronisation: every access is relaxed.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{DeviceCounters, Op};

/// The live counterpart of [`DeviceCounters`], for implementations of a device.
#[derive(Default)]
pub struct Counters {
    reads: AtomicU64,
    blocks_read: AtomicU64,
    writes: AtomicU64,
    blocks_written: AtomicU64,
    flushes: AtomicU64,
    errors: AtomicU64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    /// Counts a request of `blocks` blocks that completed, successfully or not.
    pub fn count(&self, op: Op, blocks: u64, succeeded: bool) {
        if !succeeded {
            add(&self.errors, 1);
            return;
        }
        match op {
            Op::Read => {
                add(&self.reads, 1);
                add(&self.blocks_read, blocks);
            }
            Op::Write | Op::WriteDurable => {
                add(&self.writes, 1);
                add(&self.blocks_written, blocks);
                add(&self.flushes, u64::from(op == Op::WriteDurable));
            }
            Op::Flush => add(&self.flushes, 1),
            Op::Discard { .. } => {}
        }
    }

    /// The counts now. Requests that complete meanwhile may be counted in part.
    #[must_use]
    pub fn snapshot(&self) -> DeviceCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeviceCounters {
            reads: load(&self.reads),
            blocks_read: load(&self.blocks_read),
            writes: load(&self.writes),
            blocks_written: load(&self.blocks_written),
            flushes: load(&self.flushes),
            errors: load(&self.errors),
        }
    }
}
