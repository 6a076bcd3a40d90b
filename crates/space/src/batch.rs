//! Many requests under one lock: while one is served, the memory that the next ones need is fetched.
//!
//! The answers are those of the same requests one after the other; what is fetched for nothing costs only time.

use shoal_base::Run;

use crate::SpaceError;
use crate::free_runs::FreeRuns;
use crate::prefetch;

/// How many requests ahead the word of the index is fetched, the group, and an array outside of the group.
const AHEAD: [usize; 3] = [6, 4, 2];

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

    /// Gives back runs in their order; where one is refused, those before it stay free: with the refusal comes their number.
    pub(crate) fn free_batch(&mut self, runs: &[Run]) -> Result<(), (usize, SpaceError)> {
        let [_, group, array] = AHEAD;
        for (at, &run) in runs.iter().enumerate() {
            // A run behind the end has no group; it is refused in its turn.
            if let Some(state) = runs.get(at + group).and_then(|later| self.group_at(later.block)) {
                prefetch::soon(state);
            }
            let later = runs.get(at + array).and_then(|later| self.group_at(later.block));
            if let Some(outside) = later.and_then(|state| state.runs.outside()) {
                prefetch::soon(outside);
            }
            self.free(run).map_err(|error| (at, error))?;
        }
        Ok(())
    }
}
