//! Moving live runs out of the emptiest group into holes elsewhere, as a store would do it in the background.

use std::cmp::Reverse;

use shoal_space::{Reserve, Space, Victim};

use super::pieces::Pieces;

/// How many groups may be emptied for one request.
const GROUPS_PER_REQUEST: usize = 64;

/// Moves runs of `pieces` about in `space`.
pub(crate) struct Mover<'a> {
    pub(crate) space: &'a Space,
    pub(crate) moved_blocks: u64,
}

impl<'a> Mover<'a> {
    pub(crate) fn new(space: &'a Space) -> Self {
        Self { space, moved_blocks: 0 }
    }

    /// Empties groups until `blocks` blocks can be had in one run; says whether they can.
    pub(crate) fn make_room(&mut self, blocks: u32, pieces: &mut Pieces) -> bool {
        let mut tried = Vec::new();
        // First groups of which everything finds a place, then those where only a part does.
        for is_partial in [false, true] {
            while tried.len() < GROUPS_PER_REQUEST {
                let Some(victim) = self.space.close_emptiest(&tried) else { break };
                self.empty(victim, u32::MAX, is_partial, pieces);
                self.space.open(victim);
                if self.space.largest_run() >= blocks {
                    return true;
                }
                tried.push(victim.group);
            }
            tried.clear();
        }
        false
    }

    /// Empties as many groups as the reserve wants now. One from which not everything can go is emptier at least, and the
    /// first candidate the next time.
    pub(crate) fn keep(&mut self, reserve: Reserve, pieces: &mut Pieces) {
        let mut tried = Vec::new();
        for _ in 0..reserve.wanted(self.space) {
            let Some(victim) = self.space.close_emptiest(&tried) else { return };
            self.empty(victim, reserve.hole_blocks, true, pieces);
            self.space.open(victim);
            tried.push(victim.group);
        }
    }

    /// Moves what lives in the group into holes of at most `hole_blocks`, the longest first.
    /// Where something finds no place, that ends it, so that little is moved in vain; a partial one goes on.
    fn empty(&mut self, victim: Victim, hole_blocks: u32, is_partial: bool, pieces: &mut Pieces) {
        let mut living = pieces.in_group(victim.group);
        living.sort_unstable_by_key(|&(_, run)| Reverse(run.blocks));
        for (number, from) in living {
            let Some(to) = self.space.allocate_in_hole(from.blocks, hole_blocks) else {
                if is_partial {
                    continue;
                }
                break;
            };
            pieces.relocate(number, to);
            let freed = self.space.free(from);
            assert!(freed.is_ok(), "it was in use: {freed:?}");
            self.moved_blocks += u64::from(from.blocks);
        }
    }
}
