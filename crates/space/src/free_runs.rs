//! The allocator without its lock: the arrays of all groups, the index over them, and the borders between groups
//! that lie within free space.
//!
//! Policy: exact best fit over the free runs of the groups, lowest address first, cut from the front. Anything
//! looser (fewer classes, next fit, avoiding slivers) fragments the device within a few turnovers
//! (`shared/allocator.md`, section 3.2). Only where no group has a fitting run, runs across borders are searched
//! (`cross`), so that a request fails only if no contiguous run fits.

use shoal_base::Run;

use crate::SpaceError;
use crate::bits::GroupSet;
use crate::geometry::{Geometry, Merged};
use crate::group::{GroupRuns, Span};
use crate::index::{Found, RunIndex};

/// The free runs of a space.
pub(crate) struct FreeRuns {
    pub(crate) geometry: Geometry,
    pub(crate) groups: Vec<GroupRuns>,
    pub(crate) index: RunIndex,
    /// Group g is in here if its last block and the first block of group g + 1 are free.
    pub(crate) joined: GroupSet,
    /// No run across a border is longer than this. Exact after a search, an upper bound afterwards.
    pub(crate) cross_blocks_max: u64,
    pub(crate) free_blocks: u64,
}

impl FreeRuns {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            groups: vec![GroupRuns::default(); geometry.groups()],
            index: RunIndex::new(geometry),
            joined: GroupSet::new(geometry.groups()),
            cross_blocks_max: 0,
            free_blocks: 0,
        }
    }

    /// Gives a run back; all or nothing.
    pub(crate) fn free(&mut self, run: Run) -> Result<(), SpaceError> {
        self.geometry.check(run)?;
        let start = self.geometry.start_of(run.block);
        if u64::from(start) + u64::from(run.blocks) > u64::from(self.geometry.group_blocks()) {
            self.check_used(run)?;
            for (group, span) in self.geometry.pieces(run) {
                let inserted = self.insert(group, span);
                assert!(inserted.is_ok(), "run {run} was checked to be in use");
            }
            return Ok(());
        }
        // The common case, one group: the check and the insertion are one search.
        let group = self.geometry.group_of(run.block);
        let span = Span { start, blocks: run.blocks };
        let geometry = self.geometry;
        let refusal = |overlap| SpaceError::AlreadyFree { run, overlap: geometry.run(group, overlap) };
        self.insert(group, span).map_err(refusal)
    }

    /// Gives runs back, in any order; all of them or none.
    pub(crate) fn free_batch(&mut self, runs: &[Run]) -> Result<(), SpaceError> {
        let mut sorted = runs.to_vec();
        sorted.sort_unstable();
        for (index, &run) in sorted.iter().enumerate() {
            self.geometry.check(run)?;
            self.check_used(run)?;
            if let Some(&next) = sorted.get(index + 1)
                && run.overlaps(next)
            {
                let end = run.end().min(next.block.saturating_add(u64::from(next.blocks)));
                let overlap = Run::new(next.block, (end - next.block) as u32);
                return Err(SpaceError::AlreadyFree { run: next, overlap });
            }
        }
        for run in sorted {
            for (group, span) in self.geometry.pieces(run) {
                let inserted = self.insert(group, span);
                assert!(inserted.is_ok(), "run {run} was checked to be in use");
            }
        }
        Ok(())
    }

    /// Takes exactly this run; all or nothing.
    pub(crate) fn take(&mut self, run: Run) -> Result<(), SpaceError> {
        self.geometry.check(run)?;
        for (group, span) in self.geometry.pieces(run) {
            if let Some(overlap) = self.groups[group].first_used(span) {
                return Err(SpaceError::NotFree { run, overlap: self.geometry.run(group, overlap) });
            }
        }
        self.take_checked(run);
        Ok(())
    }

    /// Takes what is free of a run and says how many blocks that were.
    pub(crate) fn take_free_part(&mut self, run: Run) -> Result<u64, SpaceError> {
        self.geometry.check(run)?;
        let free_before = self.free_blocks;
        for (group, span) in self.geometry.pieces(run) {
            while let Some(part) = self.groups[group].first_free(span) {
                self.remove(group, part);
            }
        }
        Ok(free_before - self.free_blocks)
    }

    /// A run of exactly `blocks` blocks.
    pub(crate) fn allocate(&mut self, blocks: u32) -> Option<Run> {
        assert!(blocks > 0, "a run has at least one block");
        if let Some(found) = self.index.best_fit(blocks) {
            return Some(self.cut(found, blocks));
        }
        if self.cross_blocks_max < u64::from(blocks) {
            return None;
        }
        let run = self.search_cross(u64::from(blocks)).best_fit?;
        let run = Run::new(run.block, blocks);
        self.take_checked(run);
        Some(run)
    }

    /// A run of `blocks` blocks, else the longest there is.
    pub(crate) fn allocate_at_most(&mut self, blocks: u32) -> Option<Run> {
        if let Some(run) = self.allocate(blocks) {
            return Some(run);
        }
        let longest = self.longest()?;
        assert!(longest.blocks < blocks, "{longest} fits {blocks} blocks but was not found");
        self.take_checked(longest);
        Some(longest)
    }

    /// Runs of `blocks` blocks together, at most `runs_max` of them: one if there is one, else the longest first
    /// and the last piece by best fit. All or nothing.
    pub(crate) fn allocate_runs(&mut self, blocks: u32, runs_max: usize, out: &mut crate::Runs) -> bool {
        assert!(blocks > 0 && out.is_empty(), "{blocks} blocks, {} runs before", out.len());
        let mut left = blocks;
        while left > 0 && self.free_blocks >= u64::from(left) && out.len() < runs_max {
            if let Some(run) = self.allocate(left) {
                out.push(run);
                return true;
            }
            // Pieces only get shorter: is there any hope with those that are left?
            let pieces_left = (runs_max - out.len()) as u64;
            let hopeful =
                |longest: &Run| u64::from(longest.blocks).saturating_mul(pieces_left) >= u64::from(left);
            let Some(longest) = self.longest().filter(hopeful) else { break };
            self.take_checked(longest);
            out.push(longest);
            left -= longest.blocks;
        }
        for run in out.drain(..) {
            let freed = self.free(run);
            assert!(freed.is_ok(), "run {run} was taken a moment ago");
        }
        false
    }

    /// The longest run, also across borders; at most `u32::MAX` blocks of it.
    pub(crate) fn longest(&mut self) -> Option<Run> {
        let within = self.index.longest()?;
        if self.cross_blocks_max > u64::from(within.blocks)
            && let Some(across) = self.search_cross(u64::MAX).longest
        {
            // A run across a border is longer than its parts, but the longest within a group may lie elsewhere.
            if across.blocks > u64::from(within.blocks) {
                return Some(Run::new(across.block, u32::try_from(across.blocks).unwrap_or(u32::MAX)));
            }
        }
        let span = self.span_of(within).1;
        Some(self.geometry.run(within.group, span))
    }

    /// Whether all of a run is free.
    pub(crate) fn is_free(&self, run: Run) -> bool {
        self.geometry.check(run).is_ok()
            && self
                .geometry
                .pieces(run)
                .all(|(group, span)| self.groups[group].position_covering(span).is_some())
    }

    /// All free runs in ascending order, merged across borders.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let of_group = move |(group, runs)| {
            let runs: &GroupRuns = runs;
            runs.iter().map(move |span| self.geometry.run(group, span))
        };
        Merged::new(self.groups.iter().enumerate().flat_map(of_group))
    }

    /// Takes a run of which all is free.
    fn take_checked(&mut self, run: Run) {
        for (group, span) in self.geometry.pieces(run) {
            self.remove(group, span);
        }
    }

    fn check_used(&self, run: Run) -> Result<(), SpaceError> {
        for (group, span) in self.geometry.pieces(run) {
            if let Some(overlap) = self.groups[group].first_free(span) {
                return Err(SpaceError::AlreadyFree { run, overlap: self.geometry.run(group, overlap) });
            }
        }
        Ok(())
    }

    /// Cuts `blocks` blocks from the front of a run that the index found.
    fn cut(&mut self, found: Found, blocks: u32) -> Run {
        let (at, span) = self.span_of(found);
        let part = Span { start: span.start, blocks };
        self.remove_at(found.group, at, part, at);
        self.geometry.run(found.group, part)
    }

    /// The place in the array, and the run itself, of what the index found.
    fn span_of(&self, found: Found) -> (usize, Span) {
        let runs = &self.groups[found.group];
        let at = match found.start {
            Some(start) => runs.position_covering(Span { start, blocks: found.blocks }),
            None => runs.position_of_length(found.blocks, 0),
        };
        let Some(at) = at else { unreachable!("the index found {found:?}, which the group does not have") };
        let span = runs.at(at);
        assert_eq!(span.blocks, found.blocks, "the index and the array of group {} differ", found.group);
        (at, span)
    }

    fn insert(&mut self, group: usize, span: Span) -> Result<(), Span> {
        let inserted = self.groups[group].insert(span)?;
        let runs = &self.groups[group];
        for swallowed in [inserted.left, inserted.right].into_iter().flatten() {
            self.index.remove(group, swallowed, runs, 0);
        }
        self.index.insert(group, inserted.merged);
        self.free_blocks += u64::from(span.blocks);
        self.note_borders(group, inserted.merged);
        Ok(())
    }

    /// Takes `span` out of the run of `group` that holds all of it.
    fn remove(&mut self, group: usize, span: Span) {
        let at = self.groups[group].position_covering(span);
        let Some(at) = at else { unreachable!("{span:?} of group {group} is not free") };
        self.remove_at(group, at, span, 0);
    }

    /// Takes `span` out of the run at index `at`; the group has no run of the same length before index `from`.
    fn remove_at(&mut self, group: usize, at: usize, span: Span, from: usize) {
        let removed = self.groups[group].remove(at, span);
        self.index.remove(group, removed.whole, &self.groups[group], from);
        for rest in [removed.before, removed.after].into_iter().flatten() {
            self.index.insert(group, rest);
        }
        self.free_blocks -= u64::from(span.blocks);
        if span.start == 0 && group > 0 {
            self.joined.remove(group - 1);
        }
        if span.end() == self.geometry.group_blocks() {
            self.joined.remove(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn among_longest_runs_the_lowest_is_taken() {
        for (blocks, starts) in
            [(5, [3, 30, 100]), (2000, [300, 9000, 20_000]), (8192, [8192, 24_576, 40_960])]
        {
            let mut space = FreeRuns::new(Geometry::new(60_000, 8192));
            starts.into_iter().rev().for_each(|start| space.free(Run::new(start, blocks)).unwrap());
            for start in starts {
                assert_eq!(space.longest(), Some(Run::new(start, blocks)));
                assert_eq!(space.allocate_at_most(60_000), Some(Run::new(start, blocks)));
            }
            assert_eq!(space.allocate_at_most(1), None);
        }
    }

    #[test]
    fn a_failed_allocation_in_several_runs_gives_everything_back() {
        let mut space = FreeRuns::new(Geometry::new(1000, 64));
        for start in [0, 10, 20, 30] {
            space.free(Run::new(start, 4)).unwrap();
        }
        let mut runs = crate::Runs::new();
        assert!(!space.allocate_runs(13, 3, &mut runs), "three runs of 4 are 12");
        assert!(!space.allocate_runs(17, 9, &mut runs), "only 16 are free");
        assert!(!space.allocate_runs(1, 0, &mut runs), "no runs allowed");
        assert_eq!((space.free_blocks, runs.len()), (16, 0));
        space.audit();
        assert!(space.allocate_runs(13, 4, &mut runs));
        assert_eq!(runs.as_slice(), [Run::new(0, 4), Run::new(10, 4), Run::new(20, 4), Run::new(30, 1)]);
    }
}
