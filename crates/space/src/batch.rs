//! Many requests under one lock: while one is served, the memory that the next ones need is fetched.
//!
//! The answers are those of the same requests one after the other; what is fetched for nothing costs only time.

use shoal_base::Run;

use crate::SpaceError;
use crate::free_runs::FreeRuns;
use crate::group::Span;
use crate::index::Found;
use crate::prefetch;
use crate::shards::Shards;

/// How many requests ahead the word of the index is fetched, the group, and an array outside of the group. Frees find the group
/// first, then the array, and only then know the words.
const AHEAD: [usize; 3] = [6, 4, 2];

impl Shards<'_> {
    /// A run for each size, in order, from the shard where it fits best, or from `own` where no shard has a short one; stops
    /// at the first that no group of any shard has and says how many were served.
    pub(crate) fn allocate_batch(&mut self, own: usize, sizes: &[u32], out: &mut Vec<Option<Run>>) -> usize {
        let [word, group, array] = AHEAD;
        for (at, &blocks) in sizes.iter().enumerate() {
            if let Some(&later) = sizes.get(at + word)
                && let Some((_, runs)) = self.best_short(later)
            {
                runs.index.prefetch(later);
            }
            if let Some((runs, found)) = sizes.get(at + group).and_then(|&later| self.found_short(later)) {
                prefetch::soon(&runs.groups[found.group]);
            }
            if let Some((runs, found)) = sizes.get(at + array).and_then(|&later| self.found_short(later))
                && let Some(outside) = runs.groups[found.group].runs.outside()
            {
                prefetch::soon(outside);
            }
            let best = self.best_short(blocks).map_or(own, |(shard, _)| shard);
            let served = self.allocate_in(best, blocks);
            let Some(run) = served.or_else(|| self.allocate_within_groups(blocks)) else { return at };
            out.push(Some(run));
        }
        sizes.len()
    }

    #[inline]
    fn found_short(&self, blocks: u32) -> Option<(&FreeRuns, Found)> {
        let (_, runs) = self.best_short(blocks)?;
        Some((runs, runs.index.best_short(blocks)?))
    }
}

impl FreeRuns {
    /// A run for each size, in order; stops at the first that has none and says how many were served.
    pub(crate) fn allocate_batch(&mut self, sizes: &[u32], out: &mut Vec<Option<Run>>) -> usize {
        let [word, group, array] = AHEAD;
        for (at, &blocks) in sizes.iter().enumerate() {
            if let Some(&later) = sizes.get(at + word) {
                self.index.prefetch(later);
            }
            if let Some(found) = sizes.get(at + group).and_then(|&later| self.index.best_short(later)) {
                prefetch::soon(&self.groups[found.group]);
            }
            if let Some(found) = sizes.get(at + array).and_then(|&later| self.index.best_short(later))
                && let Some(outside) = self.groups[found.group].runs.outside()
            {
                prefetch::soon(outside);
            }
            match self.allocate(blocks) {
                Some(run) => out.push(Some(run)),
                None => return at,
            }
        }
        sizes.len()
    }

    /// Fetches ahead the words of the index for the lengths that a freed run will have.
    #[inline]
    fn prefetch_words(&self, run: Run) {
        let Some(state) = self.group_at(run.block) else { return };
        let start = self.geometry.start_of(run.block);
        let (left, right) = state.runs.neighbours(Span { start, blocks: run.blocks });
        let lengths = [left.map(|left| left.blocks), right.map(|right| right.blocks)];
        let merged = run.blocks.saturating_add(lengths.iter().flatten().sum::<u32>());
        let group = self.geometry.group_of(run.block);
        for blocks in lengths.into_iter().flatten().chain([merged]) {
            self.index.prefetch_word(blocks, group);
        }
    }

    /// Gives back runs in their order; where one is refused, those before it stay free: with the refusal comes their number.
    pub(crate) fn free_batch(&mut self, runs: &[Run]) -> Result<(), (usize, SpaceError)> {
        let [group, array, word] = AHEAD;
        for (at, &run) in runs.iter().enumerate() {
            // A run behind the end has no group; it is refused in its turn.
            if let Some(state) = runs.get(at + group).and_then(|later| self.group_at(later.block)) {
                prefetch::soon(state);
            }
            let later = runs.get(at + array).and_then(|later| self.group_at(later.block));
            if let Some(outside) = later.and_then(|state| state.runs.outside()) {
                prefetch::soon(outside);
            }
            if let Some(later) = runs.get(at + word) {
                self.prefetch_words(*later);
            }
            self.free(run).map_err(|error| (at, error))?;
        }
        Ok(())
    }
}
