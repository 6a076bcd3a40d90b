//! [`Allocator`]: the operations of every disk-space allocator that is compared here, the store's own included.
//!
//! It is the seed's interface (contiguous and scattered allocation, free, status, device, shutdown) with batches and
//! with a limit on the pieces of a scattered allocation. Nothing here is persistent.

use std::sync::atomic::{AtomicBool, Ordering};

use shoal_base::Run;
use shoal_space::Space;
use smallvec::SmallVec;

/// The runs of one value.
pub(crate) type Runs = SmallVec<[Run; 4]>;

/// Why a call was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// This allocator finds no free space of the wanted shape.
    #[error("no free space of this shape was found")]
    NoSpace,
    /// A run to free is empty, outside, or (if the allocator can know) not in use.
    #[error("{0} is not a run in use")]
    NotInUse(Run),
    /// The allocator was shut down.
    #[error("the allocator was shut down")]
    ShutDown,
}

/// Fill of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// All blocks.
    pub(crate) blocks: u64,
    /// Free blocks.
    pub(crate) free_blocks: u64,
}

impl Status {
    /// The share that is in use, from 0 to 1.
    pub(crate) fn utilisation(self) -> f64 {
        1.0 - self.free_blocks as f64 / self.blocks as f64
    }
}

/// A disk-space allocator. A fresh one has all its blocks free; every call may come from any thread.
pub(crate) trait Allocator: Send + Sync {
    /// The device whose blocks these are: the number it was made with.
    fn device(&self) -> u64;

    /// One run of exactly `blocks` blocks (at least 1).
    fn allocate(&self, blocks: u32) -> Result<Run, Refusal>;

    /// Exactly `blocks` blocks in at most `runs_max` runs: all or nothing.
    fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Result<Runs, Refusal>;

    /// Frees any part of a run that was handed out.
    fn free(&self, run: Run) -> Result<(), Refusal>;

    /// As [`Self::allocate`], one after the other; the answers are appended to `out`.
    fn allocate_batch(&self, sizes: &[u32], out: &mut Vec<Option<Run>>) -> Result<(), Refusal> {
        for &blocks in sizes {
            match self.allocate(blocks) {
                Err(Refusal::ShutDown) => return Err(Refusal::ShutDown),
                answer => out.push(answer.ok()),
            }
        }
        Ok(())
    }

    /// As [`Self::free`], one after the other; stops at the first refusal.
    fn free_batch(&self, runs: &[Run]) -> Result<(), Refusal> {
        runs.iter().try_for_each(|&run| self.free(run))
    }

    /// How full the device is.
    fn status(&self) -> Status;

    /// Bytes of memory that the allocator needs now.
    fn memory_bytes(&self) -> usize;

    /// Refuses every later allocation and free.
    fn shutdown(&self);

    /// The store's own space, if that is the allocator: it can do more (leases, moving).
    fn space(&self) -> Option<&Space> {
        None
    }

    /// Merges neighbouring free runs if that does not happen by itself. No other call may run meanwhile.
    fn compact(&self) {}
}

/// Remembers for an allocator if it was shut down.
#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicBool);

impl Gate {
    /// Refuses once the gate was closed.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        // Relaxed: a thread that must see the end orders itself against it by other means, a join for example.
        if self.0.load(Ordering::Relaxed) { Err(Refusal::ShutDown) } else { Ok(()) }
    }

    pub(crate) fn close(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
