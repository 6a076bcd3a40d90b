//! The way of a long value to its extents, in steps.
//!
//! The bytes of a step are copied once, into the memory from which they are written, while those of the steps before are being written. Each
//! stream has two steps in memory, one that is filled and one that is written, so that many streams take little; a few streams share
//! memory for more writes at a time ([`SharedStep`]). Room is claimed for many steps at once, so that long values have few runs.

use std::collections::VecDeque;
use std::sync::Arc;

use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::task::Boxed;
use shoal_base::{BLOCK_BYTES_U64, Run, blocks_for};
use shoal_common::error::{Error, Result};
use shoal_device::memory::Guarded;
use shoal_log::ValueWrite;
use shoal_pool::WriteMemory;
use shoal_space_manager::{Extents, OwnerId, RUNS_MAX};
use shoal_value::Filler;
use smallvec::SmallVec;

use crate::store::Store;
use crate::store::shared_steps::{SHARED_STEPS_OF_ONE_MAX, STEP_BYTES, SharedStep};

/// Most bytes whose room is claimed at once; whole steps.
const CLAIM_BYTES: u64 = 4 << 20;

/// The room of a value, and the bytes on their way to it.
#[derive(Default)]
pub(super) struct Placing {
    extents: Vec<Arc<Extents>>,
    runs: Vec<Run>,
    /// Bytes for which there is room.
    claimed: u64,
    /// Bytes that were written, or are being written.
    written: u64,
    /// The step that is being filled.
    step: Option<Step>,
    checksums: Vec<u32>,
    /// The writes of each step that is not known to be on the device. One more than `shared` at most.
    under_way: VecDeque<Vec<ValueWrite>>,
    shared: Vec<SharedStep>,
}

/// Bytes that are written together.
struct Step {
    extents: Arc<Extents>,
    runs: SmallVec<[Run; 1]>,
    filler: Filler,
    /// Bytes that are missing.
    room: usize,
}

/// A value that was written.
pub(super) struct WrittenSteps {
    pub(super) extents: Vec<Arc<Extents>>,
    pub(super) runs: Vec<Run>,
    pub(super) checksums: Vec<u32>,
    pub(super) bytes: u64,
}

impl Placing {
    /// Copies bytes into the step; returns those for which it has no room.
    pub(super) fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(step) = &mut self.step else { return bytes };
        let (now, later) = bytes.split_at(bytes.len().min(step.room));
        step.filler.take(now);
        step.room -= now.len();
        later
    }

    /// Writes the step, and starts the next one. `stored` is the number of all bytes, if it is known.
    ///
    /// # Errors
    /// As a put.
    pub(super) fn next_step<'a>(
        &'a mut self,
        store: &'a Store,
        owner: OwnerId,
        stored: Option<u64>,
    ) -> Boxed<'a, Result<()>> {
        Box::pin(async move {
            self.write_step(store).await?;
            if self.written == self.claimed {
                // Of an unknown length as much as there is already: at most half of it is given back in the end.
                let bytes = match stored {
                    Some(stored) => stored.saturating_sub(self.claimed).clamp(1, CLAIM_BYTES),
                    None => self.claimed.clamp(STEP_BYTES as u64, CLAIM_BYTES),
                };
                let inner = &*store.0;
                let (extents, _) =
                    inner.claim(|| inner.space.claim_value(owner, blocks_for(bytes), 0)).await?;
                self.add(extents, bytes);
                if self.runs.len() > RUNS_MAX {
                    return Err(Error::full(blocks_for(self.claimed), inner.space.available()));
                }
            }
            self.start_step();
            Ok(())
        })
    }

    /// Adds room for `bytes` bytes.
    fn add(&mut self, extents: Arc<Extents>, bytes: u64) {
        for &run in extents.runs() {
            match self.runs.last_mut() {
                Some(last) if last.end() == run.block && is_whole_units(*last) => last.blocks += run.blocks,
                _ => self.runs.push(run),
            }
        }
        self.extents.push(extents);
        self.claimed += bytes;
    }

    /// Gets memory for the next bytes.
    fn start_step(&mut self) {
        let Some(extents) = self.extents.last() else { return };
        assert!(
            self.written.is_multiple_of(VALUE_UNIT_BYTES as u64),
            "no unit is in two steps: only the last one has a partial unit (R7)"
        );
        let rest = self.claimed - self.written;
        let room = rest.min(STEP_BYTES as u64);
        let first = extents.blocks() - blocks_for(rest);
        let runs = between(extents.runs(), first, blocks_for(room));
        let filler = Filler::new(&runs);
        self.step = Some(Step { extents: extents.clone(), runs, filler, room: room as usize });
    }

    /// Writes the step in the background, once there is memory for another one.
    ///
    /// # Errors
    /// A write before failed.
    pub(super) async fn write_step(&mut self, store: &Store) -> Result<()> {
        if self.step.is_none() {
            return Ok(());
        }
        self.make_room(store).await?;
        let Some(Step { extents, runs, filler, .. }) = self.step.take() else { return Ok(()) };
        self.written += filler.taken();
        let (bufs, checksums) = filler.finish();
        let device = &store.0.device;
        let mut batch = device.batch();
        let mut writes = Vec::with_capacity(runs.len());
        for (run, memory) in runs.iter().zip(bufs) {
            let memory = WriteMemory::Own(memory);
            let write = device.write(run.block, Guarded { memory, guard: extents.clone() });
            writes.push(batch.add(write));
        }
        batch.start_in_background();
        self.under_way.push_back(writes);
        self.checksums.extend(checksums);
        Ok(())
    }

    /// Waits until one more step may be under way.
    async fn make_room(&mut self, store: &Store) -> Result<()> {
        self.settle_done(store).await?;
        while self.under_way.len() > self.shared.len() {
            if self.shared.len() < SHARED_STEPS_OF_ONE_MAX
                && let Some(step) = SharedStep::try_take(store)
            {
                self.shared.push(step);
                return Ok(());
            }
            self.settle_first(store).await?;
        }
        Ok(())
    }

    /// Settles the first steps that are on the device already, and returns their shared memory.
    async fn settle_done(&mut self, store: &Store) -> Result<()> {
        while self.under_way.front().is_some_and(|writes| writes.iter().all(ValueWrite::is_done)) {
            self.settle_first(store).await?;
        }
        self.shared.truncate(self.under_way.len());
        Ok(())
    }

    /// Waits until the first step under way is on the device.
    async fn settle_first(&mut self, store: &Store) -> Result<()> {
        let mut result = Ok(());
        for write in self.under_way.pop_front().unwrap_or_default() {
            if let Err(error) = write.await.ok() {
                result = Err(store.0.log.committer.room.value_failed(error));
            }
        }
        result
    }

    /// Waits until everything is on the device, and returns the blocks after the last byte.
    ///
    /// # Errors
    /// A write failed.
    pub(super) async fn finish(mut self, store: &Store) -> Result<WrittenSteps> {
        while !self.under_way.is_empty() {
            self.settle_first(store).await?;
        }
        let units = self.written.div_ceil(VALUE_UNIT_BYTES as u64);
        assert_eq!(self.checksums.len() as u64, units, "each unit has its checksum (R7)");
        let mut rest = blocks_for(self.claimed) - blocks_for(self.written);
        if let Some(last) = self.extents.pop() {
            let used = last.blocks() - rest;
            self.extents.push(if rest > 0 { last.shortened(used) } else { last });
        }
        while let Some(run) = self.runs.last_mut().filter(|_| rest > 0) {
            let now = u64::from(run.blocks).min(rest);
            run.blocks -= now as u32;
            rest -= now;
            if run.blocks == 0 {
                self.runs.pop();
            }
        }
        let Self { extents, runs, checksums, written: bytes, .. } = self;
        Ok(WrittenSteps { extents, runs, checksums, bytes })
    }
}

fn is_whole_units(run: Run) -> bool {
    (u64::from(run.blocks) * BLOCK_BYTES_U64).is_multiple_of(VALUE_UNIT_BYTES as u64)
}

/// `blocks` blocks of `runs`, from block number `first` of them on.
fn between(runs: &[Run], mut first: u64, mut blocks: u64) -> SmallVec<[Run; 1]> {
    let mut found = SmallVec::new();
    for run in runs {
        let skipped = u64::from(run.blocks).min(first);
        let count = (u64::from(run.blocks) - skipped).min(blocks);
        if count > 0 {
            found.push(Run::new(run.block + skipped, count as u32));
        }
        first -= skipped;
        blocks -= count;
    }
    assert_eq!(blocks, 0, "the runs have the blocks");
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Placing {
        /// Adds runs that do not exist.
        pub(in crate::write::value_writer) fn pretend_runs(&mut self, count: u64) {
            self.runs = (0..count).map(|run| Run::new(3 * run, 1)).collect();
        }
    }

    #[test]
    fn a_step_has_its_part_of_the_runs() {
        let runs = [Run::new(10, 3), Run::new(20, 4), Run::new(30, 1)];
        let found = |first, blocks| between(&runs, first, blocks).to_vec();
        assert_eq!(found(0, 8), runs);
        assert_eq!(found(0, 3), [Run::new(10, 3)]);
        assert_eq!(found(1, 3), [Run::new(11, 2), Run::new(20, 1)]);
        assert_eq!(found(3, 2), [Run::new(20, 2)]);
        assert_eq!(found(6, 2), [Run::new(23, 1), Run::new(30, 1)]);
    }
}
