//! Support for relocation: picks the group of a [`Space`] to empty, and keeps it empty meanwhile.
//!
//! The space moves nothing itself: it does not know the content of a block. The relocation closes the emptiest group, asks
//! for holes elsewhere ([`Space::allocate_in_hole`]), copies, frees the old runs, and opens the group again. A closed group
//! takes frees but serves no request.

use shoal_base::Run;

use crate::Space;

/// A group that is closed because it is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The group's blocks.
    pub group: Run,
    /// The used ones among them, which have to move.
    pub used_blocks: u32,
}

impl Space {
    /// Closes the open group with the fewest used blocks, at least one. Skips groups with a free run above 4 MiB (such a group
    /// still serves every value) and groups in `except`; `None` if no group is left. Walks over the groups.
    #[must_use]
    pub fn close_emptiest(&self, except: &[Run]) -> Option<Victim> {
        let mut runs = self.lock();
        let (group, used_blocks) = runs.emptiest(except)?;
        runs.close(group);
        Some(Victim { group: runs.group_run(group), used_blocks })
    }

    /// Closes the group that starts with `group`, with all that it holds; `None` if it is closed already or one bucket's.
    #[must_use]
    pub fn close(&self, group: Run) -> Option<Victim> {
        let mut runs = self.lock();
        let number = runs.geometry.group_of(group.block);
        if !runs.groups.get(number)?.is_open() {
            return None;
        }
        let group = runs.group_run(number);
        let used_blocks = group.blocks - runs.groups[number].free_blocks;
        runs.close(number);
        Some(Victim { group, used_blocks })
    }

    /// Opens a group that was closed: its free blocks are handed out again.
    ///
    /// # Panics
    /// If the group is not closed.
    pub fn open(&self, victim: Victim) {
        let mut runs = self.lock();
        let group = runs.geometry.group_of(victim.group.block);
        assert!(runs.groups[group].is_closed, "group at block {} is open", victim.group.block);
        runs.open(group);
    }

    /// The number of used blocks of the group that starts with `group`; blocks past the end of the space do not count.
    #[must_use]
    pub fn used_blocks(&self, group: Run) -> u32 {
        let runs = self.lock();
        let number = runs.geometry.group_of(group.block);
        runs.group_run(number).blocks - runs.groups[number].free_blocks
    }

    /// How many shared groups are wholly free.
    #[must_use]
    pub fn whole_groups(&self) -> usize {
        self.lock().index.whole_count()
    }
}
