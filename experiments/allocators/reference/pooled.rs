//! The seed's third method: a stack of free runs for each exact size up to 1,024 blocks (fast bins) and one of longer
//! runs, from which a size with an empty stack is cut (large bins). O(1), nothing is split or merged by itself.
//!
//! [`Allocator::compact`] merges neighbours while no allocation runs: with [`Record::None`] by sorting every free run,
//! O(n log n); with [`Record::Bitmap`] by a walk over a bitmap that every call keeps, O(n), for more memory and a slower
//! free, as the seed weighs it. Only the bitmap can notice a run that is freed twice.
//!
//! Locks: a bin, then the large bins, then the bitmap.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_base::Run;

use super::super::allocator::{Allocator, Gate, Refusal, Runs, Status};
use super::words::Words;

/// The longest run with a separate bin: 4 MiB.
const FAST_BLOCKS_MAX: u32 = 1024;

/// The structure besides the bins that merges neighbours sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Nothing.
    None,
    /// A bit for every block.
    Bitmap,
}

/// Free runs by exact size.
pub(crate) struct Pooled {
    device: u64,
    blocks: u64,
    gate: Gate,
    free_blocks: AtomicU64,
    fast: Vec<Mutex<Vec<u64>>>,
    large: Mutex<Vec<Run>>,
    record: Option<Mutex<Words>>,
}

impl Pooled {
    pub(crate) fn new(device: u64, blocks: u64, record: Record) -> Self {
        let pooled = Self::empty(device, blocks, record);
        let mut block = 0;
        while block < blocks {
            let run = Run::new(block, u32::try_from(blocks - block).unwrap_or(u32::MAX));
            pooled.put(run);
            block = run.end();
        }
        // The lowest space is on top of the stack and is taken first.
        pooled.large.lock().reverse();
        pooled
    }

    /// One that owns nothing yet: runs are added by [`Allocator::free`].
    pub(crate) fn empty(device: u64, blocks: u64, record: Record) -> Self {
        let fast = (0..FAST_BLOCKS_MAX).map(|_| Mutex::default()).collect();
        let record = (record == Record::Bitmap).then(|| Mutex::new(Words::new(blocks)));
        let free_blocks = AtomicU64::new(0);
        Self { device, blocks, gate: Gate::default(), free_blocks, fast, large: Mutex::default(), record }
    }

    fn bin(&self, blocks: u32) -> &Mutex<Vec<u64>> {
        &self.fast[blocks as usize - 1]
    }

    fn put(&self, run: Run) {
        if run.blocks <= FAST_BLOCKS_MAX {
            self.bin(run.blocks).lock().push(run.block);
        } else {
            self.large.lock().push(run);
        }
        self.free_blocks.fetch_add(u64::from(run.blocks), Ordering::Relaxed);
    }

    /// From the bin of its size, else cut from the large bins.
    fn get(&self, blocks: u32) -> Option<Run> {
        let fast = (blocks <= FAST_BLOCKS_MAX).then(|| self.bin(blocks).lock().pop()).flatten();
        let run = fast.map(|block| Run::new(block, blocks)).or_else(|| self.cut(blocks))?;
        self.free_blocks.fetch_sub(u64::from(blocks), Ordering::Relaxed);
        if let Some(record) = &self.record {
            record.lock().set(run, true);
        }
        Some(run)
    }

    fn cut(&self, blocks: u32) -> Option<Run> {
        let mut large = self.large.lock();
        // The topmost that fits; for a size that has a bin that is the topmost.
        let at = large.iter().rposition(|run| run.blocks >= blocks)?;
        let found = large[at];
        let rest = Run::new(found.block + u64::from(blocks), found.blocks - blocks);
        if rest.blocks > FAST_BLOCKS_MAX {
            large[at] = rest;
        } else {
            large.remove(at);
            if rest.blocks > 0 {
                self.bin(rest.blocks).lock().push(rest.block);
            }
        }
        Some(Run::new(found.block, blocks))
    }

    /// The longest free run that is not longer than `blocks`.
    fn get_at_most(&self, blocks: u32) -> Option<Run> {
        (1..=blocks.min(FAST_BLOCKS_MAX)).rev().find_map(|blocks| {
            let is_there = !self.bin(blocks).lock().is_empty();
            if is_there { self.get(blocks) } else { None }
        })
    }

    /// Takes every free run out of the bins.
    fn drain(&self) -> Vec<Run> {
        let mut runs = std::mem::take(&mut *self.large.lock());
        for (index, bin) in self.fast.iter().enumerate() {
            let starts = std::mem::take(&mut *bin.lock());
            runs.extend(starts.into_iter().map(|block| Run::new(block, index as u32 + 1)));
        }
        self.free_blocks.store(0, Ordering::Relaxed);
        runs
    }
}

impl Allocator for Pooled {
    fn device(&self) -> u64 {
        self.device
    }

    fn allocate(&self, blocks: u32) -> Result<Run, Refusal> {
        self.gate.check()?;
        self.get(blocks).ok_or(Refusal::NoSpace)
    }

    fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Result<Runs, Refusal> {
        self.gate.check()?;
        let mut runs = Runs::new();
        let mut left = blocks;
        while left > 0 && runs.len() < runs_max {
            let Some(run) = self.get(left).or_else(|| self.get_at_most(left - 1)) else { break };
            left -= run.blocks;
            runs.push(run);
        }
        if left == 0 {
            return Ok(runs);
        }
        for run in runs {
            self.free(run)?;
        }
        Err(Refusal::NoSpace)
    }

    fn free(&self, run: Run) -> Result<(), Refusal> {
        self.gate.check()?;
        let end = run.block.checked_add(u64::from(run.blocks)).filter(|_| run.blocks > 0);
        if end.is_none_or(|end| end > self.blocks) {
            return Err(Refusal::NotInUse(run));
        }
        if let Some(record) = &self.record {
            let mut words = record.lock();
            if !words.is_used(run) {
                return Err(Refusal::NotInUse(run));
            }
            words.set(run, false);
        }
        self.put(run);
        Ok(())
    }

    fn status(&self) -> Status {
        Status { blocks: self.blocks, free_blocks: self.free_blocks.load(Ordering::Relaxed) }
    }

    fn memory_bytes(&self) -> usize {
        let fast: usize = self.fast.iter().map(|bin| bin.lock().capacity() * size_of::<u64>()).sum();
        let bins = self.fast.capacity() * size_of::<Mutex<Vec<u64>>>();
        let record = self.record.as_ref().map_or(0, |words| words.lock().heap_bytes());
        fast + bins + self.large.lock().capacity() * size_of::<Run>() + record
    }

    fn shutdown(&self) {
        self.gate.close();
    }

    fn compact(&self) {
        let mut runs = self.drain();
        if let Some(record) = &self.record {
            record.lock().free_runs(0, u32::MAX).for_each(|run| self.put(run));
        } else {
            runs.sort_unstable();
            let mut merged: Option<Run> = None;
            for run in runs {
                merged = Some(match merged {
                    Some(before)
                        if before.end() == run.block && before.blocks.checked_add(run.blocks).is_some() =>
                    {
                        Run::new(before.block, before.blocks + run.blocks)
                    }
                    before => {
                        before.into_iter().for_each(|before| self.put(before));
                        run
                    }
                });
            }
            merged.into_iter().for_each(|run| self.put(run));
        }
        self.large.lock().reverse();
    }
}
