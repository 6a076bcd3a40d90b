//! [`Pool`]: groups that a client leases, allocated from at memory speed.
//!
//! The pool has the store's own allocator over the groups that it leased: exact best fit, neighbours merged at once, freed runs are reused.
//! The owner learns nothing of this until [`Pool::commit`], which reports, in one call for each lease, the blocks that came into use and
//! the blocks that went out of use since the last commit.
//!
//! Dropping a pool without a commit is like a crash: the owner takes back all blocks that were not committed.

use std::collections::BTreeMap;

use shoal_base::Run;
use shoal_space::{Space, SpaceError};

use crate::client::{ClientError, SpaceClient};
use crate::coverage::Coverage;
use crate::state::ITEMS_MAX;

/// Leased groups, and their used blocks.
pub struct LeasedSpace {
    client: SpaceClient,
    space: Space,
    leases: BTreeMap<u64, LeasedGroups>,
    /// The groups of all leases.
    groups: Coverage,
}

struct LeasedGroups {
    groups: Coverage,
    /// The blocks that the owner knows to be in use.
    committed: Coverage,
}

impl SpaceClient {
    /// A pool over no groups yet.
    #[must_use]
    pub fn pool(&self) -> LeasedSpace {
        let space = Space::new(self.blocks(), self.group_blocks());
        LeasedSpace { client: self.clone(), space, leases: BTreeMap::new(), groups: Coverage::default() }
    }
}

impl LeasedSpace {
    /// Allocates a run of `blocks` leased blocks, without a call. Returns `None` if no such run is free: then [`Self::lease`] helps.
    ///
    /// # Panics
    /// If `blocks` is 0.
    #[inline]
    #[must_use]
    pub fn allocate(&mut self, blocks: u32) -> Option<Run> {
        self.space.allocate(blocks)
    }

    /// Frees any part of the allocated blocks, which can be allocated again at once: no durable data may refer to these blocks any more.
    /// Without a call: the owner learns it from the next commit.
    ///
    /// # Errors
    /// [`SpaceError::AlreadyFree`], and [`SpaceError::Outside`] if the run is not leased.
    #[inline]
    pub fn free(&mut self, run: Run) -> Result<(), SpaceError> {
        self.check(run)?;
        self.space.free(run)
    }

    /// As [`Self::free`], for many.
    ///
    /// # Errors
    /// As [`Self::free`]; nothing is changed then.
    pub fn free_batch(&mut self, runs: &[Run]) -> Result<(), SpaceError> {
        runs.iter().try_for_each(|&run| self.check(run))?;
        self.space.free_batch(runs)
    }

    /// Leases `groups` groups more: one call.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::NoSpace`] if there are fewer.
    pub async fn lease(&mut self, groups: usize) -> Result<(), ClientError> {
        let (lease, groups) = self.client.grant(groups).await?;
        let mut held = LeasedGroups { groups: Coverage::default(), committed: Coverage::default() };
        let is_ours = groups
            .iter()
            .all(|&group| held.groups.add(group) && self.groups.add(group) && self.space.free(group).is_ok());
        if !is_ours {
            return Err(ClientError::Refused("the owner leased blocks that were leased already".into()));
        }
        self.leases.insert(lease, held);
        Ok(())
    }

    /// Reports the blocks that came into use and went out of use since the last commit to the owner: one call for each lease that changed.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Fenced`] if the lease ran out: runs that were not committed before are lost then.
    pub async fn commit(&mut self) -> Result<(), ClientError> {
        let used = self.used();
        for (&lease, held) in &mut self.leases {
            let now = within(&used, &held.groups);
            let (kept, freed) = (now.without(&held.committed), held.committed.without(&now));
            let calls = kept.len().div_ceil(ITEMS_MAX).max(freed.len().div_ceil(ITEMS_MAX));
            for call in 0..calls {
                let part = |runs: &[Run]| -> Vec<Run> {
                    runs.iter().copied().skip(call * ITEMS_MAX).take(ITEMS_MAX).collect()
                };
                let (kept, freed) = (part(&kept), part(&freed));
                self.client.commit(lease, &kept, &freed).await?;
                let noted = kept.iter().all(|&run| held.committed.add(run));
                let noted = freed.iter().all(|&run| held.committed.remove(run)) && noted;
                assert!(noted, "the owner took blocks that have another state on this side");
            }
        }
        Ok(())
    }

    /// Commits, and returns all leases: their unused blocks are free for everybody again.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub async fn give_back(mut self) -> Result<(), ClientError> {
        self.commit().await?;
        for &lease in self.leases.keys() {
            self.client.give_back(lease).await?;
        }
        Ok(())
    }

    /// The number of leases.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// The number of blocks that are leased and free.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.space.free_blocks()
    }

    /// Bytes of memory in use.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.space.memory_bytes()
    }

    /// Refuses a run outside of the leases.
    fn check(&self, run: Run) -> Result<(), SpaceError> {
        let is_run = run.blocks > 0 && run.block.checked_add(u64::from(run.blocks)).is_some();
        if is_run && self.groups.covers(run) {
            return Ok(());
        }
        Err(SpaceError::Outside { run, blocks_max: self.space.blocks_max() })
    }

    /// All blocks of the leases that are not free.
    fn used(&self) -> Coverage {
        let mut free = Coverage::default();
        self.space.for_each_run(&mut |run| assert!(free.add(run), "free runs do not overlap"));
        let mut used = Coverage::default();
        for run in self.groups.without(&free) {
            assert!(used.add(run), "the rests of the groups do not overlap");
        }
        used
    }
}

/// The part of `used` in `groups`.
fn within(used: &Coverage, groups: &Coverage) -> Coverage {
    let mut within = groups.clone();
    for run in groups.without(used) {
        assert!(within.remove(run), "it was found in there");
    }
    within
}
