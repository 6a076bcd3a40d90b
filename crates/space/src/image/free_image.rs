//! [`FreeImage`]: the published free space. The arrays of the groups without an index: it is never searched.

use std::collections::BTreeSet;
use std::ops::Range;

use shoal_base::Run;

use super::Delta;
use crate::SpaceError;
use crate::geometry::{Geometry, Merged};
use crate::group::GroupRuns;
use crate::span::Span;

/// The free space as of one superblock.
///
/// A group whose piece of a snapshot was lost is *incomplete*: the blocks that the image knows as free are free, but more may
/// be. At first none is known, so none is handed out (R19). Blocks that later applies free in it count. Taking blocks that are
/// not known as free is no error there. `shoal check --repair` finds the rest again. Incomplete groups stay so through
/// snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeImage {
    geometry: Geometry,
    groups: Vec<GroupRuns>,
    incomplete: BTreeSet<usize>,
    free_blocks: u64,
}

impl FreeImage {
    /// An image in which nothing is free.
    ///
    /// # Panics
    /// As [`Space::new`](crate::Space::new).
    #[must_use]
    pub fn new(blocks_max: u64, group_blocks: u32) -> Self {
        let geometry = Geometry::new(blocks_max, group_blocks);
        let groups = vec![GroupRuns::default(); geometry.groups()];
        Self { geometry, groups, incomplete: BTreeSet::new(), free_blocks: 0 }
    }

    /// The first block after the space.
    #[must_use]
    pub fn blocks_max(&self) -> u64 {
        self.geometry.blocks_max()
    }

    /// Blocks of a group.
    #[must_use]
    pub fn group_blocks(&self) -> u32 {
        self.geometry.group_blocks()
    }

    /// How many blocks are known as free.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// The free runs in ascending order, merged across groups.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let of_group = move |(group, runs)| {
            let runs: &GroupRuns = runs;
            runs.iter().map(move |span| self.geometry.run(group, span))
        };
        Merged::new(self.groups.iter().enumerate().flat_map(of_group))
    }

    /// Makes a run free.
    ///
    /// # Errors
    /// [`SpaceError::AlreadyFree`] if any block of it is free, [`SpaceError::Outside`]. Nothing is changed then.
    pub fn free(&mut self, run: Run) -> Result<(), SpaceError> {
        self.check_free(run)?;
        self.free_checked(run);
        Ok(())
    }

    /// Makes a run used.
    ///
    /// # Errors
    /// [`SpaceError::NotFree`] if a block of it is not free and its group is complete, [`SpaceError::Outside`].
    /// Nothing is changed then.
    pub fn take(&mut self, run: Run) -> Result<(), SpaceError> {
        self.check_take(run)?;
        self.take_checked(run);
        Ok(())
    }

    /// Applies the changes of one superblock: all or nothing.
    ///
    /// # Errors
    /// Like [`Self::take`] and [`Self::free`]: the delta does not follow this image.
    pub fn apply(&mut self, delta: &Delta) -> Result<(), SpaceError> {
        // No block is in both lists, and none twice in one list, so no applied run affects the check of
        // another.
        for &run in delta.taken() {
            self.check_take(run)?;
        }
        for &run in delta.freed() {
            self.check_free(run)?;
        }
        for &run in delta.taken() {
            self.take_checked(run);
        }
        for &run in delta.freed() {
            self.free_checked(run);
        }
        Ok(())
    }

    /// Returns true if any block of a run is in an incomplete group; false if the run is outside.
    #[must_use]
    pub fn is_incomplete(&self, run: Run) -> bool {
        self.geometry.check(run).is_ok()
            && self.geometry.pieces(run).any(|(group, _)| self.incomplete.contains(&group))
    }

    /// The blocks of the groups that are incomplete, in ascending order, merged.
    pub fn incomplete(&self) -> impl Iterator<Item = Run> + '_ {
        let of_group = |&group: &usize| {
            let first = self.geometry.run(group, Span { start: 0, blocks: 1 }).block;
            let blocks = (self.geometry.blocks_max() - first).min(u64::from(self.geometry.group_blocks()));
            Run::new(first, blocks as u32)
        };
        Merged::new(self.incomplete.iter().map(of_group))
    }

    /// Marks every group that has a block in `blocks` as incomplete: more of it may be free than is known.
    /// The known free runs stay. Blocks past the end are ignored.
    pub fn mark_incomplete(&mut self, blocks: Range<u64>) {
        let end = blocks.end.min(self.geometry.blocks_max());
        if blocks.start < end {
            self.incomplete.extend(self.geometry.group_of(blocks.start)..=self.geometry.group_of(end - 1));
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn group(&self, group: usize) -> (&GroupRuns, bool) {
        (&self.groups[group], self.incomplete.contains(&group))
    }

    /// Sets the free runs of a group that has none yet.
    pub(crate) fn set_group(&mut self, group: usize, runs: GroupRuns) {
        assert_eq!(self.groups[group].len(), 0, "group {group} was set before");
        self.free_blocks += runs.iter().map(|span| u64::from(span.blocks)).sum::<u64>();
        self.groups[group] = runs;
    }

    pub(crate) fn check_free(&self, run: Run) -> Result<(), SpaceError> {
        self.geometry.check(run)?;
        for (group, span) in self.geometry.pieces(run) {
            if let Some(overlap) = self.groups[group].first_free(span) {
                return Err(SpaceError::AlreadyFree { run, overlap: self.geometry.run(group, overlap) });
            }
        }
        Ok(())
    }

    fn check_take(&self, run: Run) -> Result<(), SpaceError> {
        self.geometry.check(run)?;
        for (group, span) in self.geometry.pieces(run) {
            if let Some(overlap) = self.groups[group].first_used(span)
                && !self.incomplete.contains(&group)
            {
                return Err(SpaceError::NotFree { run, overlap: self.geometry.run(group, overlap) });
            }
        }
        Ok(())
    }

    fn free_checked(&mut self, run: Run) {
        for (group, span) in self.geometry.pieces(run) {
            let inserted = self.groups[group].insert(span, self.geometry.group_blocks());
            assert!(inserted.is_ok(), "run {run} was checked to be in use: {inserted:?}");
            self.free_blocks += u64::from(span.blocks);
        }
    }

    fn take_checked(&mut self, run: Run) {
        for (group, span) in self.geometry.pieces(run) {
            // In an incomplete group only parts of the piece may be known as free.
            while let Some(part) = self.groups[group].first_free(span) {
                let Some(at) = self.groups[group].position_covering(part) else {
                    unreachable!("{part:?} of group {group} is free")
                };
                self.groups[group].remove(at, part, self.geometry.group_blocks());
                self.free_blocks -= u64::from(part.blocks);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_and_take_refuse_overlaps_and_change_nothing() {
        let mut image = FreeImage::new(100, 16);
        image.free(Run::new(10, 40)).unwrap();
        let before = image.clone();
        let (run, overlap) = (Run::new(5, 40), Run::new(10, 6));
        assert_eq!(image.free(run), Err(SpaceError::AlreadyFree { run, overlap }));
        let (run, overlap) = (Run::new(20, 40), Run::new(50, 10));
        assert_eq!(image.take(run), Err(SpaceError::NotFree { run, overlap }));
        assert!(matches!(image.free(Run::new(99, 2)), Err(SpaceError::Outside { .. })));
        assert_eq!(image, before);
        image.take(Run::new(12, 30)).unwrap();
        assert_eq!(image.runs().collect::<Vec<_>>(), [Run::new(10, 2), Run::new(42, 8)]);
        assert_eq!(image.free_blocks(), 10);
    }

    #[test]
    fn a_delta_is_applied_wholly_or_not_at_all() {
        let mut image = FreeImage::new(100, 16);
        image.free(Run::new(0, 20)).unwrap();
        let before = image.clone();
        let wrong_free = Delta::new(1, &[Run::new(0, 2)], &[Run::new(19, 2)]).unwrap();
        assert!(matches!(image.apply(&wrong_free), Err(SpaceError::AlreadyFree { .. })));
        let wrong_take = Delta::new(1, &[Run::new(0, 2), Run::new(30, 1)], &[]).unwrap();
        assert!(matches!(image.apply(&wrong_take), Err(SpaceError::NotFree { .. })));
        assert_eq!(image, before);
        image.apply(&Delta::new(1, &[Run::new(0, 2)], &[Run::new(20, 30)]).unwrap()).unwrap();
        assert_eq!(image.runs().collect::<Vec<_>>(), [Run::new(2, 48)]);
    }

    #[test]
    fn incomplete_group_accepts_unknown_takes_but_no_double_free() {
        let mut image = FreeImage::new(100, 16);
        image.mark_incomplete(20..33);
        image.mark_incomplete(99..2000);
        assert_eq!(image.incomplete().collect::<Vec<_>>(), [Run::new(16, 32), Run::new(96, 4)]);
        assert!(image.is_incomplete(Run::new(0, 17)) && !image.is_incomplete(Run::new(0, 16)));
        image.free(Run::new(18, 4)).unwrap();
        assert!(image.free(Run::new(21, 1)).is_err());
        image.take(Run::new(16, 10)).unwrap();
        assert_eq!(image.free_blocks(), 0);
        assert!(image.take(Run::new(15, 10)).is_err(), "block 15 is in a complete group");
    }
}
