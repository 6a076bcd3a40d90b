//! What whoever moves live blocks needs of a [`Space`]: which group to empty, and how to keep it empty meanwhile.
//!
//! The space moves nothing itself: it does not know what lives in a block. The mover closes the emptiest group, asks for
//! holes elsewhere ([`Space::allocate_in_hole`]), copies, frees what it moved, and opens the group again. A closed group
//! takes frees but serves nobody.

use shoal_base::Run;

use crate::Space;
use crate::free_runs::FreeRuns;

/// A group that is closed because it is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The group's blocks.
    pub group: Run,
    /// How many of them are in use: what there is to move.
    pub used_blocks: u32,
}

impl Space {
    /// Closes the open group with the fewest blocks in use that has any, has no free run above 4 MiB (such a group still serves
    /// every value) and is not one of `except`; `None` where there is
    /// none. Walks over the groups.
    #[must_use]
    pub fn close_emptiest(&self, except: &[Run]) -> Option<Victim> {
        let mut all = self.shards();
        let of_shard = |runs: &&mut FreeRuns| runs.emptiest(except).map_or(u32::MAX, |(_, used)| used);
        let runs = all.iter_mut().min_by_key(of_shard)?;
        let (group, used_blocks) = runs.emptiest(except)?;
        runs.close(group);
        Some(Victim { group: runs.group_run(group), used_blocks })
    }

    /// Opens a group that was closed: what is free of it is handed out again.
    ///
    /// # Panics
    /// Where the group is not closed.
    pub fn open(&self, victim: Victim) {
        let mut all = self.shards();
        for (runs, part) in all.parts(victim.group) {
            let group = runs.geometry.group_of(part.block);
            assert!(runs.groups[group].is_closed, "group at block {} is open", part.block);
            runs.open(group);
        }
    }

    /// How many blocks of a group, which begins where `group` does, are in use; blocks behind the end of the space are not.
    #[must_use]
    pub fn used_blocks(&self, group: Run) -> u32 {
        let mut all = self.shards();
        all.parts(group)
            .map(|(runs, part)| part.blocks - runs.groups[runs.geometry.group_of(part.block)].free_blocks)
            .sum()
    }

    /// How many shared groups are wholly free.
    #[must_use]
    pub fn whole_groups(&self) -> usize {
        self.shards().iter().map(|runs| runs.index.whole_count()).sum()
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.geometry().groups()
    }

    /// Takes whole free groups out of the space, at most `count` of them.
    pub(crate) fn take_whole_groups(&self, count: usize) -> Vec<Run> {
        let mut taken = Vec::new();
        for runs in self.shards().iter_mut() {
            taken.extend(runs.take_whole(count - taken.len()));
        }
        taken
    }
}
