//! The seed's first method: first fit over one bitmap, under one lock.

use parking_lot::Mutex;
use shoal_base::Run;

use super::super::allocator::{Allocator, Gate, Refusal, Runs, Status};
use super::words::Words;

/// One bitmap. No block below the hint is free, so a search starts there.
pub(crate) struct Bitmap {
    device: u64,
    blocks: u64,
    gate: Gate,
    inner: Mutex<Inner>,
}

struct Inner {
    words: Words,
    hint: u64,
    free_blocks: u64,
}

impl Bitmap {
    pub(crate) fn new(device: u64, blocks: u64) -> Self {
        let inner = Inner { words: Words::new(blocks), hint: 0, free_blocks: blocks };
        Self { device, blocks, gate: Gate::default(), inner: Mutex::new(inner) }
    }
}

impl Inner {
    fn take(&mut self, runs: &[Run]) {
        for &run in runs {
            self.words.set(run, true);
            self.free_blocks -= u64::from(run.blocks);
            if run.block == self.hint {
                self.hint = run.end();
            }
        }
    }
}

impl Allocator for Bitmap {
    fn device(&self) -> u64 {
        self.device
    }

    fn allocate(&self, blocks: u32) -> Result<Run, Refusal> {
        self.gate.check()?;
        let inner = &mut *self.inner.lock();
        let run = inner.words.first_fit(inner.hint, blocks).ok_or(Refusal::NoSpace)?;
        inner.take(&[run]);
        Ok(run)
    }

    fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Result<Runs, Refusal> {
        self.gate.check()?;
        let inner = &mut *self.inner.lock();
        let runs = inner.words.first_fit_runs(inner.hint, blocks, runs_max).ok_or(Refusal::NoSpace)?;
        inner.take(&runs);
        Ok(runs)
    }

    fn free(&self, run: Run) -> Result<(), Refusal> {
        self.gate.check()?;
        let inner = &mut *self.inner.lock();
        if !inner.words.holds(run) || !inner.words.is_used(run) {
            return Err(Refusal::NotInUse(run));
        }
        inner.words.set(run, false);
        inner.free_blocks += u64::from(run.blocks);
        inner.hint = inner.hint.min(run.block);
        Ok(())
    }

    fn status(&self) -> Status {
        Status { blocks: self.blocks, free_blocks: self.inner.lock().free_blocks }
    }

    fn memory_bytes(&self) -> usize {
        self.inner.lock().words.heap_bytes()
    }

    fn shutdown(&self) {
        self.gate.close();
    }
}
