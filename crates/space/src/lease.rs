//! Leases: whole groups handed out in one call, from which their holder allocates without asking again.
//!
//! Only whole free groups are leased. Leases cut from small runs make small objects eat the runs that large ones need: a
//! device then fails at 51 to 89 % instead of 99.9 % (`shared/allocator.md`, section 3.4).
//!
//! A [`Lease`] is the holder's side: a cursor over its groups. [`LeaseBook`] is the owner's: what was granted to whom until
//! when, and what of it was committed. Only what the owner saw committed counts, never a holder's word at the end. A lease
//! that expired is fenced first (every later call with its number is refused) and only then reclaimed. Between processes
//! that protects the space's truth, not the device: a late holder can still write blocks that were handed out again unless
//! the device itself refuses it. So several writers of one shared device need a device that can fence.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use shoal_base::Run;

use crate::image::{sorted, without};
use crate::{Space, SpaceError};

/// Whole groups whose holder hands out their blocks from the front.
#[derive(Debug)]
pub struct Lease {
    /// The current piece.
    next: u64,
    end: u64,
    /// Pieces not begun, the next one last.
    later: Vec<Run>,
    /// Everything, ascending.
    groups: Vec<Run>,
}

impl Lease {
    pub(crate) fn new(mut groups: Vec<Run>) -> Self {
        groups.sort_unstable();
        let mut later = groups.clone();
        later.reverse();
        Self { next: 0, end: 0, later, groups }
    }

    /// The next `blocks` blocks; `None` once the lease is used up. A piece of a group that is too short is skipped: it goes
    /// back when the lease is settled.
    #[inline]
    pub fn allocate(&mut self, blocks: u32) -> Option<Run> {
        loop {
            let end = self.next + u64::from(blocks);
            if end <= self.end {
                let run = Run::new(self.next, blocks);
                self.next = end;
                return Some(run);
            }
            let piece = self.later.pop()?;
            // Groups in a row are one piece.
            if piece.block != self.end {
                self.next = piece.block;
            }
            self.end = piece.end();
        }
    }

    /// The groups, in ascending order.
    #[must_use]
    pub fn groups(&self) -> &[Run] {
        &self.groups
    }
}

/// Names a grant. Numbers are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// Why a call with a lease was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// No group is free, or the book is full.
    #[error("there are no {groups} free groups to lease")]
    NoGroups {
        /// How many were asked for.
        groups: usize,
    },
    /// The lease was given back, or it expired and was reclaimed.
    #[error("lease {} ended", id.0)]
    Fenced {
        /// Its number.
        id: LeaseId,
    },
    /// A run does not lie in the lease, or was committed before.
    #[error("run {run} does not lie in lease {}, or was committed before", id.0)]
    NotLeased {
        /// The lease.
        id: LeaseId,
        /// The run.
        run: Run,
    },
}

/// Most leases at a time.
pub const LEASES_MAX: usize = 4096;

#[derive(Debug)]
struct Grant {
    groups: Vec<Run>,
    /// First block to length of what was committed.
    committed: BTreeMap<u64, u32>,
    /// On the caller's clock.
    expires_ms: u64,
}

/// What was leased from a [`Space`] to others. It keeps no time of its own: callers say when it is.
#[derive(Debug, Default)]
pub struct LeaseBook {
    /// Below every lock of a space.
    inner: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    grants: BTreeMap<LeaseId, Grant>,
    next: u64,
}

impl LeaseBook {
    /// Leases `groups` whole groups of `space` until `expires_ms`.
    ///
    /// # Errors
    /// [`LeaseError::NoGroups`].
    pub fn grant(
        &self,
        space: &Space,
        groups: usize,
        expires_ms: u64,
    ) -> Result<(LeaseId, Lease), LeaseError> {
        let mut book = self.inner.lock();
        let refused = LeaseError::NoGroups { groups };
        if book.grants.len() >= LEASES_MAX {
            return Err(refused);
        }
        let lease = space.lease(groups).ok_or(refused)?;
        book.next += 1;
        let id = LeaseId(book.next);
        let grant = Grant { groups: lease.groups.clone(), committed: BTreeMap::new(), expires_ms };
        book.grants.insert(id, grant);
        Ok((id, lease))
    }

    /// Lets a lease run on until `expires_ms`.
    ///
    /// # Errors
    /// [`LeaseError::Fenced`].
    pub fn renew(&self, id: LeaseId, expires_ms: u64) -> Result<(), LeaseError> {
        let mut book = self.inner.lock();
        let grant = book.grants.get_mut(&id).ok_or(LeaseError::Fenced { id })?;
        grant.expires_ms = grant.expires_ms.max(expires_ms);
        Ok(())
    }

    /// The holder keeps `run` for good.
    ///
    /// # Errors
    /// [`LeaseError::Fenced`], [`LeaseError::NotLeased`].
    pub fn commit(&self, id: LeaseId, run: Run) -> Result<(), LeaseError> {
        let mut book = self.inner.lock();
        let grant = book.grants.get_mut(&id).ok_or(LeaseError::Fenced { id })?;
        let refused = LeaseError::NotLeased { id, run };
        let end = run.block.checked_add(u64::from(run.blocks)).filter(|_| run.blocks > 0).ok_or(refused)?;
        let lies_inside = without(&[run], &grant.groups).is_empty();
        let before = grant.committed.range(..end).next_back();
        if !lies_inside || before.is_some_and(|(&block, &blocks)| block + u64::from(blocks) > run.block) {
            return Err(refused);
        }
        grant.committed.insert(run.block, run.blocks);
        Ok(())
    }

    /// Ends a lease: what was not committed is free again.
    ///
    /// # Errors
    /// [`LeaseError::Fenced`].
    pub fn give_back(&self, space: &Space, id: LeaseId) -> Result<(), LeaseError> {
        let grant = self.inner.lock().grants.remove(&id).ok_or(LeaseError::Fenced { id })?;
        reclaim(space, &grant);
        Ok(())
    }

    /// Ends every lease that expired before `now_ms` and says which these were.
    pub fn expire(&self, space: &Space, now_ms: u64) -> Vec<LeaseId> {
        let mut book = self.inner.lock();
        let expired: Vec<(LeaseId, Grant)> =
            book.grants.extract_if(.., |_, grant| grant.expires_ms < now_ms).collect();
        // From here on they are fenced: nothing can be committed in them any more.
        drop(book);
        expired.iter().for_each(|(_, grant)| reclaim(space, grant));
        expired.into_iter().map(|(id, _)| id).collect()
    }

    /// How many leases are out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.lock().grants.len()
    }

    /// Whether none is out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn reclaim(space: &Space, grant: &Grant) {
    let kept: Vec<Run> = grant.committed.iter().map(|(&block, &blocks)| Run::new(block, blocks)).collect();
    let freed = space.free_rest(&grant.groups, &kept);
    assert!(freed.is_ok(), "leased groups were taken from the space: {freed:?}");
}

impl Space {
    /// Takes `groups` whole free groups out of the space in one call; `None` where there are not so many.
    #[must_use]
    pub fn lease(&self, groups: usize) -> Option<Lease> {
        let runs = self.take_whole_groups(groups);
        if runs.len() < groups || runs.is_empty() {
            let given_back = self.free_batch(&runs);
            assert!(given_back.is_ok(), "they were taken a moment ago: {given_back:?}");
            return None;
        }
        Some(Lease::new(runs))
    }

    /// Ends a lease: everything of it but `kept` is free again.
    ///
    /// # Errors
    /// [`SpaceError::Outside`] or [`SpaceError::NotFree`] where `kept` does not lie in the lease or overlaps itself. The
    /// lease is lost then, with its groups in use: so much of the caller's books is wrong that nothing may be reused.
    pub fn settle(&self, lease: Lease, kept: &[Run]) -> Result<(), SpaceError> {
        self.free_rest(&lease.groups, kept)
    }

    fn free_rest(&self, groups: &[Run], kept: &[Run]) -> Result<(), SpaceError> {
        let kept = sorted(kept).map_err(|error| match error {
            SpaceError::AlreadyFree { run, overlap } => SpaceError::NotFree { run, overlap },
            other => other,
        })?;
        if let Some(&run) = without(&kept, groups).first() {
            return Err(SpaceError::Outside { run, blocks_max: self.blocks_max() });
        }
        self.free_batch(&without(groups, &kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let space = Space::new(640, 64);
        space.free(Run::new(0, 640)).unwrap();
        space
    }

    #[test]
    fn a_lease_is_whole_groups_and_what_is_not_kept_comes_back() {
        let space = space();
        assert_eq!(space.allocate(10), Some(Run::new(0, 10)));
        let mut lease = space.lease(2).unwrap();
        assert_eq!(lease.groups(), [Run::new(64, 64), Run::new(128, 64)]);
        assert_eq!(space.free_blocks(), 640 - 10 - 128);
        let first = lease.allocate(50).unwrap();
        let across = lease.allocate(50).unwrap();
        assert_eq!((first, across), (Run::new(64, 50), Run::new(114, 50)), "groups in a row are one piece");
        assert_eq!(lease.allocate(50), None);
        space.settle(lease, &[across]).unwrap();
        assert_eq!(space.free_blocks(), 640 - 60);
        assert!(space.is_free(first) && !space.is_free(across));
        space.audit();
        assert!(space.lease(9).is_none(), "never in part");
        assert_eq!(space.free_blocks(), 640 - 60);
    }

    #[test]
    fn a_lease_is_cut_at_groups_that_others_have() {
        let space = space();
        space.take(Run::new(70, 1)).unwrap();
        let mut lease = space.lease(2).unwrap();
        assert_eq!(lease.groups(), [Run::new(0, 64), Run::new(128, 64)]);
        assert_eq!(lease.allocate(60), Some(Run::new(0, 60)));
        assert_eq!(lease.allocate(60), Some(Run::new(128, 60)));
        assert_eq!(lease.allocate(5), None);
        assert!(space.settle(lease, &[Run::new(64, 1)]).is_err(), "block 64 was not leased");
    }

    #[test]
    fn only_what_the_owner_saw_survives_the_holder() {
        let (space, book) = (space(), LeaseBook::default());
        let (id, mut lease) = book.grant(&space, 2, 100).unwrap();
        let (kept, lost) = (lease.allocate(10).unwrap(), lease.allocate(20).unwrap());
        book.commit(id, kept).unwrap();
        assert_eq!(book.commit(id, kept), Err(LeaseError::NotLeased { id, run: kept }), "twice");
        let outside = Run::new(125, 10);
        assert_eq!(book.commit(id, outside), Err(LeaseError::NotLeased { id, run: outside }));
        book.renew(id, 200).unwrap();
        assert_eq!(book.expire(&space, 150), []);
        assert_eq!(book.expire(&space, 201), [id]);
        assert_eq!(
            book.commit(id, lost),
            Err(LeaseError::Fenced { id }),
            "fenced before its blocks are reused"
        );
        assert_eq!(book.renew(id, 999), Err(LeaseError::Fenced { id }));
        assert_eq!(book.give_back(&space, id), Err(LeaseError::Fenced { id }));
        assert!(space.is_free(lost) && !space.is_free(kept));
        assert_eq!((space.free_blocks(), book.len()), (630, 0));
        space.audit();
    }
}
