//! Free runs that cross the borders of groups.
//!
//! Only open groups take part: free space of a group that has an owner, or is being emptied, stops at its borders.
//!
//! Groups do not know their neighbours' runs, so such runs have no class. If no group alone can serve a
//! request, a walk over the borders within free space finds them. A bound on the longest such run makes that
//! rare on a full device: it is exact after a walk and rises only when a run that touches a border grows.

use crate::free_runs::FreeRuns;
use crate::span::Span;

/// A run across at least one border; its length may exceed the range of a [`shoal_base::Run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Across {
    pub(crate) block: u64,
    pub(crate) blocks: u64,
}

/// The result of a search over the borders.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Search {
    /// The shortest run that fits, the lowest of its length.
    pub(crate) best_fit: Option<Across>,
    /// The longest run, the lowest of its length; unknown if the search stopped at an exact fit.
    pub(crate) longest: Option<Across>,
}

impl FreeRuns {
    /// Looks for runs across borders, of at least `blocks` blocks and the longest. Linear in the number of borders
    /// within free space.
    pub(crate) fn search_cross(&mut self, blocks: u64) -> Search {
        let mut search = Search::default();
        let mut next = self.joined.first();
        while let Some(border) = next {
            let (across, last_group) = self.run_across(border);
            if across.blocks >= blocks && search.best_fit.is_none_or(|best| across.blocks < best.blocks) {
                search.best_fit = Some(across);
                if across.blocks == blocks {
                    return search;
                }
            }
            if search.longest.is_none_or(|longest| across.blocks > longest.blocks) {
                search.longest = Some(across);
            }
            next = self.joined.next(last_group);
        }
        self.cross_blocks_max = search.longest.map_or(0, |longest| longest.blocks);
        search
    }

    /// The run that starts in `group` and crosses the border after it, and the last group of that run.
    pub(crate) fn run_across(&self, group: usize) -> (Across, usize) {
        let Some(first) = self.groups[group].runs.last() else {
            unreachable!("group {group} is joined but full")
        };
        let block = self.geometry.run(group, first).block;
        let mut last_group = group + 1;
        while self.index.is_whole(last_group) && self.joined.contains(last_group) {
            last_group += 1;
        }
        let Some(last) = self.groups[last_group].runs.first() else {
            unreachable!("group {last_group} is joined but full")
        };
        let end = self.geometry.run(last_group, last).end();
        (Across { block, blocks: end - block }, last_group)
    }

    /// Updates the borders of a group in which a run grew to `merged`.
    #[inline]
    pub(crate) fn note_borders(&mut self, group: usize, merged: Span) {
        let reaches_border = merged.start == 0 || merged.end() == self.geometry.group_blocks();
        if !reaches_border || !self.groups[group].is_open() {
            return;
        }
        let mut across = 0;
        if merged.start == 0 && group > 0 && self.groups[group - 1].is_open() {
            let last = self.groups[group - 1].runs.last();
            if let Some(last) = last.filter(|last| last.end() == self.geometry.group_blocks()) {
                self.joined.insert(group - 1);
                across += self.reach(last);
            }
        }
        let next = self.groups.get(group + 1).filter(|next| next.is_open());
        if merged.end() == self.geometry.group_blocks()
            && let Some(next) = next
        {
            let first = next.runs.first();
            if let Some(first) = first.filter(|first| first.start == 0) {
                self.joined.insert(group);
                across = self.reach(first).saturating_add(across);
            }
        }
        if across > 0 {
            self.cross_blocks_max =
                self.cross_blocks_max.max(across.saturating_add(u64::from(merged.blocks)));
        }
    }

    /// How far free space may reach into a neighbour and past it: no further than its run, or unknown if the
    /// neighbour is wholly free. A longer walk is not worth it: while there are free groups, the bound is not
    /// needed.
    fn reach(&self, neighbour: Span) -> u64 {
        if neighbour.blocks == self.geometry.group_blocks() { u64::MAX } else { u64::from(neighbour.blocks) }
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::Run;

    use super::*;
    use crate::geometry::Geometry;

    fn free_runs(blocks_max: u64, runs: &[Run]) -> FreeRuns {
        let mut space = FreeRuns::new(Geometry::new(blocks_max, 16));
        space.free_batch(runs).unwrap();
        space
    }

    #[test]
    fn best_fit_across_groups_tightens_bound() {
        // 10..70 spans three borders (two whole groups), 90..100 and 122..132 one each.
        let runs = [Run::new(10, 60), Run::new(90, 10), Run::new(122, 10), Run::new(150, 10)];
        let mut space = free_runs(200, &runs);
        assert_eq!(space.cross_blocks_max, u64::MAX, "a wholly free neighbour leaves the bound unknown");
        let search = space.search_cross(8);
        assert_eq!(search.best_fit, Some(Across { block: 90, blocks: 10 }));
        assert_eq!(search.longest, Some(Across { block: 10, blocks: 60 }));
        assert_eq!(space.cross_blocks_max, 60);
        assert_eq!(space.search_cross(11).best_fit, Some(Across { block: 10, blocks: 60 }));
        assert!(space.search_cross(61).best_fit.is_none());
    }

    #[test]
    fn growth_beside_a_border_raises_the_bound() {
        let mut space = free_runs(200, &[Run::new(30, 4)]);
        assert_eq!(space.cross_blocks_max, 4);
        space.free(Run::new(27, 3)).unwrap();
        assert_eq!(space.cross_blocks_max, 7, "the freed run itself does not touch the border");
        assert_eq!(space.allocate(7), Some(Run::new(27, 7)));
        assert_eq!(space.allocate(7), None);
        assert!(space.joined.first().is_none());
    }

    #[test]
    fn chain_ends_at_hole_and_next_starts_there() {
        // Group 1 is free at its start and its end, with a hole: two runs across borders, not one.
        let mut space = free_runs(64, &[Run::new(14, 6), Run::new(25, 12)]);
        let search = space.search_cross(u64::MAX);
        assert_eq!(search.longest, Some(Across { block: 25, blocks: 12 }));
        assert_eq!(space.search_cross(1).best_fit, Some(Across { block: 14, blocks: 6 }));
    }
}
