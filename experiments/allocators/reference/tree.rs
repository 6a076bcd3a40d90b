//! The search tree that the seed compares with: free runs by address and by size, best fit, neighbours merged at once,
//! both calls O(log n), under one lock.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use shoal_base::Run;

use super::super::allocator::{Allocator, Gate, Refusal, Runs, Status};

/// Memory of an entry in both trees together, as an estimate: nodes of 11 entries, two thirds full, with their links.
const ENTRY_BYTES: usize = 50;

/// Free runs in two ordered trees.
pub(crate) struct Tree {
    device: u64,
    blocks: u64,
    gate: Gate,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// First block to number of blocks.
    by_address: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    free_blocks: u64,
}

impl Tree {
    pub(crate) fn new(device: u64, blocks: u64) -> Self {
        let mut inner = Inner { free_blocks: blocks, ..Inner::default() };
        inner.insert(0, blocks);
        Self { device, blocks, gate: Gate::default(), inner: Mutex::new(inner) }
    }
}

impl Inner {
    fn insert(&mut self, block: u64, blocks: u64) {
        self.by_address.insert(block, blocks);
        self.by_size.insert((blocks, block));
    }

    fn remove(&mut self, block: u64, blocks: u64) {
        self.by_address.remove(&block);
        self.by_size.remove(&(blocks, block));
    }

    fn best_fit(&mut self, blocks: u32) -> Option<Run> {
        let &(found, block) = self.by_size.range((u64::from(blocks), 0)..).next()?;
        Some(self.cut(block, found, blocks))
    }

    fn cut(&mut self, block: u64, found: u64, blocks: u32) -> Run {
        self.remove(block, found);
        let wanted = u64::from(blocks);
        if found > wanted {
            self.insert(block + wanted, found - wanted);
        }
        self.free_blocks -= wanted;
        Run::new(block, blocks)
    }

    fn free(&mut self, run: Run) -> Result<(), Refusal> {
        let (mut block, mut end) = (run.block, run.end());
        let left = self.by_address.range(..=block).next_back().map(|(&block, &blocks)| (block, blocks));
        let right = self.by_address.range(block..).next().map(|(&block, &blocks)| (block, blocks));
        let touches_left = left.is_some_and(|(left, blocks)| left + blocks > block);
        if touches_left || right.is_some_and(|(right, _)| right < end) {
            return Err(Refusal::NotInUse(run));
        }
        if let Some((left, blocks)) = left.filter(|(left, blocks)| left + blocks == block) {
            self.remove(left, blocks);
            block = left;
        }
        if let Some((right, blocks)) = right.filter(|&(right, _)| right == end) {
            self.remove(right, blocks);
            end += blocks;
        }
        self.insert(block, end - block);
        self.free_blocks += u64::from(run.blocks);
        Ok(())
    }
}

impl Allocator for Tree {
    fn device(&self) -> u64 {
        self.device
    }

    fn allocate(&self, blocks: u32) -> Result<Run, Refusal> {
        self.gate.check()?;
        self.inner.lock().best_fit(blocks).ok_or(Refusal::NoSpace)
    }

    fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Result<Runs, Refusal> {
        self.gate.check()?;
        let mut inner = self.inner.lock();
        let mut runs = Runs::new();
        let mut left = blocks;
        while left > 0 && runs.len() < runs_max {
            let run = inner.best_fit(left).or_else(|| {
                let &(found, block) = inner.by_size.last()?;
                Some(inner.cut(block, found, found as u32))
            });
            let Some(run) = run else { break };
            left -= run.blocks;
            runs.push(run);
        }
        if left == 0 {
            return Ok(runs);
        }
        runs.into_iter().try_for_each(|run| inner.free(run))?;
        Err(Refusal::NoSpace)
    }

    fn free(&self, run: Run) -> Result<(), Refusal> {
        self.gate.check()?;
        let end = run.block.checked_add(u64::from(run.blocks)).filter(|_| run.blocks > 0);
        if end.is_none_or(|end| end > self.blocks) {
            return Err(Refusal::NotInUse(run));
        }
        self.inner.lock().free(run)
    }

    fn status(&self) -> Status {
        Status { blocks: self.blocks, free_blocks: self.inner.lock().free_blocks }
    }

    fn memory_bytes(&self) -> usize {
        self.inner.lock().by_address.len() * ENTRY_BYTES
    }

    fn shutdown(&self) {
        self.gate.close();
    }
}
