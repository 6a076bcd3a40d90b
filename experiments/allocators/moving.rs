//! Moving live runs out of the emptiest group into holes elsewhere, as a store would do it in the background.

use std::cmp::Reverse;

use shoal_base::Run;
use shoal_space::Space;

use super::pieces::Pieces;

/// The number of groups that are examined for one request.
const GROUPS_PER_REQUEST: usize = 512;

/// The part of a space to keep in whole free groups, and limits of the work for it.
///
/// Upward drift of sizes fragments a device; a small reserve that is refilled from the emptiest groups keeps it usable
/// at 0.06 blocks moved for each one allocated (docs/sources.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserve {
    /// Whole free groups to keep, in thousandths of all, to the nearest number of groups but at least one.
    pub(crate) permille: u32,
    /// Most groups to empty at a time.
    pub(crate) groups_at_once: usize,
    /// Longest hole that moved values may use: the reserve is for longer ones.
    pub(crate) hole_blocks: u32,
}

impl Default for Reserve {
    fn default() -> Self {
        Self { permille: 20, groups_at_once: 4, hole_blocks: 1023 }
    }
}

impl Reserve {
    /// The number of groups to empty now.
    fn wanted(&self, space: &Space) -> usize {
        let wanted = (space.groups() * self.permille as usize + 500) / 1000;
        let kept = wanted.max(usize::from(self.permille > 0));
        kept.saturating_sub(space.whole_groups()).min(self.groups_at_once)
    }
}

/// Moves runs of `pieces` about in `space`.
pub(crate) struct Mover<'a> {
    pub(crate) space: &'a Space,
    pub(crate) moved_blocks: u64,
}

impl<'a> Mover<'a> {
    pub(crate) fn new(space: &'a Space) -> Self {
        Self { space, moved_blocks: 0 }
    }

    /// Moves the runs that separate `blocks` blocks, in the emptiest groups first, until the blocks can be had in one run;
    /// returns true if they can.
    pub(crate) fn make_room(&mut self, blocks: u32, pieces: &mut Pieces) -> bool {
        let mut tried = Vec::new();
        // A run that is longer than every hole has nowhere to go: it stays, and only the runs between such ones move.
        let mut longest = self.space.largest_run();
        while tried.len() < GROUPS_PER_REQUEST && longest < blocks {
            let Some(victim) = self.space.close_emptiest(&tried) else { break };
            let mut living = pieces.in_group(victim.group);
            living.sort_unstable_by_key(|&(_, run)| run.block);
            let mut movable = Vec::new();
            for between in living.split(|&(_, run)| run.blocks > longest || !lies_in(run, victim.group)) {
                if stretch(&living, between, victim.group) >= u64::from(blocks) {
                    movable.extend_from_slice(between);
                }
            }
            self.relocate(movable, u32::MAX, pieces);
            self.space.open(victim);
            tried.push(victim.group);
            longest = self.space.largest_run();
        }
        longest >= blocks
    }

    /// Empties as many groups as the reserve wants now. One from which not everything can go is emptier at least, and the
    /// first candidate the next time. (Emptying only groups of which everything finds a hole moves nothing at all: with sizes
    /// that grow, some value of each finds none.)
    pub(crate) fn keep(&mut self, reserve: Reserve, pieces: &mut Pieces) {
        let mut tried = Vec::new();
        for _ in 0..reserve.wanted(self.space) {
            let Some(victim) = self.space.close_emptiest(&tried) else { return };
            self.relocate(pieces.in_group(victim.group), reserve.hole_blocks, pieces);
            self.space.open(victim);
            tried.push(victim.group);
        }
    }

    /// Moves these into holes, the longest first; a run that finds none stays.
    fn relocate(&mut self, mut living: Vec<(u32, Run)>, hole_blocks: u32, pieces: &mut Pieces) {
        living.sort_unstable_by_key(|&(_, run)| Reverse(run.blocks));
        for (number, from) in living {
            if let Some(to) = self.space.allocate_in_hole(from.blocks, hole_blocks) {
                self.moved(number, from, to, pieces);
            }
        }
    }

    fn moved(&mut self, number: u32, from: Run, to: Run, pieces: &mut Pieces) {
        pieces.relocate(number, to);
        let freed = self.space.free(from);
        assert!(freed.is_ok(), "it was in use: {freed:?}");
        self.moved_blocks += u64::from(from.blocks);
    }
}

fn lies_in(run: Run, group: Run) -> bool {
    group.block <= run.block && run.end() <= group.end()
}

/// Blocks of `group` from the living run before `between`, a part of `living`, to the one after it.
fn stretch(living: &[(u32, Run)], between: &[(u32, Run)], group: Run) -> u64 {
    let Some(&(first, _)) = between.first() else { return 0 };
    let at = living.iter().position(|&(number, _)| number == first).unwrap_or(0);
    let before = at.checked_sub(1).and_then(|before| living.get(before));
    let behind = living.get(at + between.len());
    let start = before.map_or(group.block, |(_, run)| run.end().max(group.block));
    let end = behind.map_or(group.end(), |(_, run)| run.block.min(group.end()));
    end - start
}
