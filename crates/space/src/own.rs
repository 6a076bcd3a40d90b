//! Space of one's own: an owner's requests are served from whole groups that serve nobody else.
//!
//! The seed's answer to a heavy load that does not fit the others ("seed 001"): loads with different sizes or lifetimes do
//! not cut up each other's free space. The mechanism is in `owners`; who the owners are is the engine's business.

use shoal_base::Run;

use crate::Space;
use crate::free_runs::FreeRuns;

/// Space of one's own.
impl Space {
    /// Hands out a run from groups that serve only `owner` (1 to 65,535): exact best fit among these; where none fits, one
    /// more wholly free group becomes the owner's; where there is none either, from the shared ones. Freed as any run; a
    /// group that comes wholly free is shared again, but for one spare in a shard. Takes all locks. A shared request that nothing else
    /// can serve is served from an owner's groups too.
    ///
    /// Owners are known in memory only: after a restart all groups are shared until somebody says otherwise ([`Self::own`]).
    ///
    /// # Panics
    /// Where `blocks` or `owner` is 0.
    #[must_use]
    pub fn allocate_own(&self, owner: u16, blocks: u32) -> Option<Run> {
        assert!(blocks > 0 && owner > 0, "{blocks} blocks for owner {owner}");
        let mut all = self.shards();
        let best = |runs: &&mut FreeRuns| {
            runs.owned
                .get(&owner)
                .and_then(|index| index.best_fit(blocks))
                .map_or(u32::MAX, |found| found.blocks)
        };
        if let Some(run) = all.iter_mut().min_by_key(best).and_then(|runs| runs.allocate_own(owner, blocks)) {
            return Some(run);
        }
        if blocks <= self.group_blocks() {
            for runs in all.iter_mut() {
                if runs.grow(owner) {
                    return runs.allocate_own(owner, blocks);
                }
            }
        }
        all.allocate(blocks)
    }

    /// Makes every shared group that begins within one of `runs` the owner's, with whatever lives in it: what
    /// [`Self::groups_of`] gave before a restart.
    ///
    /// # Panics
    /// Where `owner` is 0.
    pub fn own(&self, owner: u16, runs: &[Run]) {
        assert!(owner > 0, "what is shared has no owner");
        for shard in self.shards().iter_mut() {
            runs.iter().for_each(|&run| shard.own(owner, run));
        }
    }

    /// How often a group got another owner, or none any more: whoever remembers the owners sees that there is something new.
    #[must_use]
    pub fn owner_changes(&self) -> u64 {
        self.shards().iter().map(|runs| runs.owner_changes).sum()
    }

    /// The groups that serve only `owner`, in ascending order, neighbours merged. Walks over the groups.
    #[must_use]
    pub fn groups_of(&self, owner: u16) -> Vec<Run> {
        let mut merged: Vec<Run> = Vec::new();
        for run in self.shards().iter().flat_map(|runs| runs.runs_of(owner)) {
            match merged.last_mut() {
                Some(last) if last.end() == run.block && last.blocks.checked_add(run.blocks).is_some() => {
                    last.blocks += run.blocks;
                }
                _ => merged.push(run),
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups_of(space: &Space, owner: u16) -> usize {
        space.groups_of(owner).iter().map(|run| run.blocks.div_ceil(space.group_blocks()) as usize).sum()
    }

    #[test]
    fn an_owner_has_groups_that_nobody_else_is_served_from() {
        let space = Space::with_shards(640, 64, 256);
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
        let space = Space::with_shards(1000, 64, 512);
        space.free(Run::new(0, 1000)).unwrap();
        let own: Vec<Run> = (0..9).map(|_| space.allocate_own(7, 50).unwrap()).collect();
        let groups = space.groups_of(7);
        let after = Space::with_shards(1000, 64, 512);
        after.free(Run::new(0, 1000)).unwrap();
        own.iter().for_each(|&run| after.take(run).unwrap());
        after.own(7, &groups);
        assert_eq!(after.groups_of(7), groups);
        assert!(
            own.iter().any(|run| run.end() == after.allocate_own(7, 14).unwrap().block),
            "the first hole"
        );
        after.free_batch(&own).unwrap();
        assert_eq!(groups_of(&after, 7), 3, "the one with a hole in use, and a spare in each shard");
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
