//! The store's own allocator, [`Space`], as an [`Allocator`] of the comparison.

use shoal_base::Run;
use shoal_space::{Space, SpaceError, group_blocks_for};

use super::allocator::{Allocator, Gate, Refusal, Runs, Status};

/// The store's own allocator.
pub(crate) struct Hybrid {
    device: u64,
    gate: Gate,
    space: Space,
}

impl Hybrid {
    pub(crate) fn new(device: u64, blocks: u64) -> Self {
        let space = Space::new(blocks, group_blocks_for(blocks));
        let mut block = 0;
        while block < blocks {
            let run = Run::new(block, u32::try_from(blocks - block).unwrap_or(u32::MAX));
            let freed = space.free(run);
            assert!(freed.is_ok(), "nothing of a fresh space is free: {freed:?}");
            block = run.end();
        }
        Self { device, gate: Gate::default(), space }
    }
}

impl Hybrid {
    /// The space itself.
    pub(crate) fn inner(&self) -> &Space {
        &self.space
    }
}

fn refusal(error: SpaceError) -> Refusal {
    match error {
        SpaceError::AlreadyFree { run, .. }
        | SpaceError::NotFree { run, .. }
        | SpaceError::Outside { run, .. } => Refusal::NotInUse(run),
    }
}

impl Allocator for Hybrid {
    fn device(&self) -> u64 {
        self.device
    }

    fn allocate(&self, blocks: u32) -> Result<Run, Refusal> {
        self.gate.check()?;
        self.space.allocate(blocks).ok_or(Refusal::NoSpace)
    }

    fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Result<Runs, Refusal> {
        self.gate.check()?;
        self.space.allocate_runs(blocks, runs_max).ok_or(Refusal::NoSpace)
    }

    fn free(&self, run: Run) -> Result<(), Refusal> {
        self.gate.check()?;
        self.space.free(run).map_err(refusal)
    }

    fn allocate_batch(&self, sizes: &[u32], out: &mut Vec<Option<Run>>) -> Result<(), Refusal> {
        self.gate.check()?;
        self.space.allocate_batch(sizes, out);
        Ok(())
    }

    fn free_batch(&self, runs: &[Run]) -> Result<(), Refusal> {
        self.gate.check()?;
        self.space.free_batch(runs).map_err(refusal)
    }

    fn status(&self) -> Status {
        Status { blocks: self.space.blocks_max(), free_blocks: self.space.free_blocks() }
    }

    fn memory_bytes(&self) -> usize {
        self.space.memory_bytes()
    }

    fn shutdown(&self) {
        self.gate.close();
    }

    fn space(&self) -> Option<&Space> {
        Some(&self.space)
    }
}
