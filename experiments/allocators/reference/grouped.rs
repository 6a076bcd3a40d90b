//! The seed's second method: groups of 64 Ki blocks, each with a bitmap, a count of its free blocks and a lock.
//!
//! A search starts in a random group, skips groups with too few free blocks without their lock, is first fit within a
//! group, and looks into every group before it fails. A contiguous run never crosses the border of a group.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_base::Run;

use super::super::allocator::{Allocator, Gate, Refusal, Runs, Status};
use super::words::Words;

/// Blocks of a group.
const GROUP_BLOCKS: u64 = 1 << 16;

struct Group {
    first: u64,
    /// Changed under the lock, read without it to skip the group.
    free_blocks: AtomicU32,
    words: Mutex<Words>,
}

/// Bitmaps by group.
pub(crate) struct Grouped {
    device: u64,
    blocks: u64,
    gate: Gate,
    groups: Vec<Group>,
    draws: AtomicU64,
}

impl Grouped {
    pub(crate) fn new(device: u64, blocks: u64) -> Self {
        let group = |index: u64| {
            let own = GROUP_BLOCKS.min(blocks - index * GROUP_BLOCKS);
            let words = Mutex::new(Words::new(own));
            Group { first: index * GROUP_BLOCKS, free_blocks: AtomicU32::new(own as u32), words }
        };
        let groups = (0..blocks.div_ceil(GROUP_BLOCKS)).map(group).collect();
        Self { device, blocks, gate: Gate::default(), groups, draws: AtomicU64::new(0) }
    }

    /// All groups, from a random one on.
    fn starting_anywhere(&self) -> impl Iterator<Item = &Group> {
        let draw = self.draws.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let draw = (draw ^ (draw >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let start = ((u128::from(draw) * self.groups.len() as u128) >> 64) as usize;
        let (before, behind) = self.groups.split_at(start);
        behind.iter().chain(before)
    }

    /// Runs from several groups, for a request that no group alone can serve.
    fn gather(&self, blocks: u32, runs_max: usize) -> Result<Runs, Refusal> {
        let mut runs = Runs::new();
        let mut left = blocks;
        for group in self.starting_anywhere() {
            while left > 0 && runs.len() < runs_max && group.free_blocks.load(Ordering::Relaxed) > 0 {
                let Some(run) = group.take_first(left) else { break };
                left -= run.blocks;
                runs.push(run);
            }
        }
        if left == 0 {
            return Ok(runs);
        }
        for run in runs {
            self.free(run)?;
        }
        Err(Refusal::NoSpace)
    }
}

impl Group {
    /// Takes the runs that `search` finds among the group's own block numbers.
    fn take(&self, search: impl Fn(&Words) -> Option<Runs>) -> Option<Runs> {
        let mut words = self.words.lock();
        let mut runs = search(&words)?;
        for run in &mut runs {
            words.set(*run, true);
            self.free_blocks.fetch_sub(run.blocks, Ordering::Relaxed);
            run.block += self.first;
        }
        Some(runs)
    }

    fn take_first(&self, blocks_max: u32) -> Option<Run> {
        self.take(|words| words.free_runs(0, blocks_max).next().map(|run| Runs::from_slice(&[run])))?.pop()
    }
}

impl Allocator for Grouped {
    fn device(&self) -> u64 {
        self.device
    }

    fn allocate(&self, blocks: u32) -> Result<Run, Refusal> {
        self.gate.check()?;
        let fitting = |group: &&Group| group.free_blocks.load(Ordering::Relaxed) >= blocks;
        self.starting_anywhere()
            .filter(fitting)
            .find_map(|group| {
                group.take(|words| words.first_fit(0, blocks).map(|run| Runs::from_slice(&[run])))?.pop()
            })
            .ok_or(Refusal::NoSpace)
    }

    fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Result<Runs, Refusal> {
        self.gate.check()?;
        let fitting = |group: &&Group| group.free_blocks.load(Ordering::Relaxed) >= blocks;
        let found = self
            .starting_anywhere()
            .filter(fitting)
            .find_map(|group| group.take(|words| words.first_fit_runs(0, blocks, runs_max)));
        found.map_or_else(|| self.gather(blocks, runs_max), Ok)
    }

    fn free(&self, run: Run) -> Result<(), Refusal> {
        self.gate.check()?;
        let Some(group) = self.groups.get((run.block / GROUP_BLOCKS) as usize) else {
            return Err(Refusal::NotInUse(run));
        };
        let own = Run::new(run.block - group.first, run.blocks);
        let mut words = group.words.lock();
        if !words.holds(own) || !words.is_used(own) {
            return Err(Refusal::NotInUse(run));
        }
        words.set(own, false);
        group.free_blocks.fetch_add(run.blocks, Ordering::Relaxed);
        Ok(())
    }

    fn status(&self) -> Status {
        let free = self.groups.iter().map(|group| u64::from(group.free_blocks.load(Ordering::Relaxed)));
        Status { blocks: self.blocks, free_blocks: free.sum() }
    }

    fn memory_bytes(&self) -> usize {
        let words: usize = self.groups.iter().map(|group| group.words.lock().heap_bytes()).sum();
        words + self.groups.capacity() * size_of::<Group>()
    }

    fn shutdown(&self) {
        self.gate.close();
    }
}
