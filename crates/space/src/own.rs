//! Space per owner: an owner's requests are served from whole groups that serve only this owner.
//!
//! Isolates a heavy load that does not fit the others (docs/sources.md, 3): loads with different sizes or lifetimes do not cut
//! up each other's free space. The mechanism is in `owners`; the engine decides which owners there are.

use shoal_base::Run;

use crate::Space;
use crate::geometry::Merged;

/// Space per owner.
impl Space {
    /// Hands out a run from groups that serve only `owner` (1 to 65,535): exact best fit among these. If none fits, one
    /// more wholly free group becomes the owner's; if there is none, the shared groups serve the request. Freed like any
    /// run; a group that becomes wholly free is shared again, except for one spare. A shared request that nothing else can
    /// serve is served from an owner's groups, too.
    ///
    /// Owners are known in memory only: after a restart all groups are shared until a call of [`Self::own`].
    ///
    /// # Panics
    /// If `blocks` or `owner` is 0.
    #[must_use]
    pub fn allocate_own(&self, owner: u16, blocks: u32) -> Option<Run> {
        assert!(blocks > 0 && owner > 0, "{blocks} blocks for owner {owner}");
        self.change(|runs| {
            let own = runs.allocate_own(owner, blocks);
            let grows = own.is_none() && blocks <= runs.geometry.group_blocks() && runs.grow(owner);
            let own = if grows { runs.allocate_own(owner, blocks) } else { own };
            own.or_else(|| runs.allocate(blocks))
        })
    }

    /// Assigns to the owner every shared group that starts within one of `runs`, with its content. `runs` is
    /// the result of [`Self::groups_of`] before a restart.
    ///
    /// # Panics
    /// If `owner` is 0.
    pub fn own(&self, owner: u16, runs: &[Run]) {
        assert!(owner > 0, "a shared group has no owner");
        let mut free_runs = self.lock();
        runs.iter().for_each(|&run| free_runs.own(owner, run));
    }

    /// How often a group got another owner, or lost its owner: a caller that saves the owners detects changes by it.
    #[must_use]
    pub fn owner_changes(&self) -> u64 {
        self.lock().owner_changes
    }

    /// The groups that serve only `owner`, in ascending order, neighbours merged. Walks over the groups.
    #[must_use]
    pub fn groups_of(&self, owner: u16) -> Vec<Run> {
        Merged::new(self.lock().runs_of(owner)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups_of(space: &Space, owner: u16) -> usize {
        space.groups_of(owner).iter().map(|run| run.blocks.div_ceil(space.group_blocks()) as usize).sum()
    }

    #[test]
    fn owned_groups_serve_only_their_owner() {
        let space = Space::new(640, 64);
        space.free(Run::new(0, 640)).unwrap();
        let own: Vec<Run> = (0..7).map(|_| space.allocate_own(3, 20).unwrap()).collect();
        assert_eq!(groups_of(&space, 3), 3, "three of 20 blocks to a group");
        let groups = space.groups_of(3);
        let others = (0..7 * 64).map(|_| space.allocate(1).unwrap());
        others.for_each(|run| assert!(groups.iter().all(|group| !group.overlaps(run)), "{run}"));
        assert_eq!(space.allocate_own(3, 44).map(|run| run.block), Some(own[6].end()));
        assert_eq!(space.allocate_own(3, 50), None);
        space.audit();
        space.free_batch(&own[..6]).unwrap();
        assert_eq!(groups_of(&space, 3), 2, "one group was whole and is a spare, one went back");
        assert_eq!(space.allocate(64).map(|run| run.blocks), Some(64));
        space.audit();
    }

    #[test]
    fn groups_are_the_owners_again_after_a_restart() {
        let space = Space::new(1000, 64);
        space.free(Run::new(0, 1000)).unwrap();
        let own: Vec<Run> = (0..9).map(|_| space.allocate_own(7, 50).unwrap()).collect();
        let groups = space.groups_of(7);
        let after = Space::new(1000, 64);
        after.free(Run::new(0, 1000)).unwrap();
        own.iter().for_each(|&run| after.take(run).unwrap());
        after.own(7, &groups);
        assert_eq!(after.groups_of(7), groups);
        assert!(
            own.iter().any(|run| run.end() == after.allocate_own(7, 14).unwrap().block),
            "the first hole"
        );
        after.free_batch(&own).unwrap();
        assert_eq!(groups_of(&after, 7), 2, "the one with a hole in use, and a spare");
        after.audit();
    }

    #[test]
    fn shared_requests_borrow_before_they_are_refused() {
        let space = Space::new(128, 64);
        space.free(Run::new(0, 128)).unwrap();
        assert_eq!(space.allocate_own(1, 60).map(|run| run.block), Some(0));
        assert_eq!(space.allocate(64), Some(Run::new(64, 64)), "the shared group");
        assert_eq!(space.largest_run(), 4);
        assert_eq!(space.allocate(5), None);
        assert_eq!(space.allocate(3), Some(Run::new(60, 3)), "borrowed");
        assert_eq!(space.allocate_at_most(9), Some(Run::new(63, 1)));
        assert_eq!((space.allocate(1), space.free_blocks()), (None, 0));
        space.audit();
    }
}
