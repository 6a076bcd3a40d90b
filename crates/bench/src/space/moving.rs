//! Moving live runs out of the emptiest group into holes elsewhere, as a store would do it in the background.

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
        while tried.len() < GROUPS_PER_REQUEST {
            let Some(victim) = self.space.close_emptiest(&tried) else { return false };
            self.empty(victim, u32::MAX, pieces);
            self.space.open(victim);
            if self.space.largest_run() >= blocks {
                return true;
            }
            // What is left in it fits nowhere else: another group may be better.
            tried.push(victim.group);
        }
        false
    }

    /// Empties groups until the reserve is there, at most as many as it wants at a time.
    pub(crate) fn keep(&mut self, reserve: Reserve, pieces: &mut Pieces) {
        for _ in 0..reserve.wanted(self.space) {
            let Some(victim) = self.space.close_emptiest(&[]) else { return };
            let is_empty = self.empty(victim, reserve.hole_blocks, pieces);
            self.space.open(victim);
            if !is_empty {
                return;
            }
        }
    }

    /// Moves what lives in the group into holes of at most `hole_blocks`, as far as there are any; says whether all of it
    /// went.
    fn empty(&mut self, victim: Victim, hole_blocks: u32, pieces: &mut Pieces) -> bool {
        let mut is_empty = true;
        for (number, from) in pieces.in_group(victim.group) {
            let Some(to) = self.space.allocate_in_hole(from.blocks, hole_blocks) else {
                is_empty = false;
                continue;
            };
            pieces.relocate(number, to);
            let freed = self.space.free(from);
            assert!(freed.is_ok(), "it was in use: {freed:?}");
            self.moved_blocks += u64::from(from.blocks);
        }
        is_empty
    }
}
