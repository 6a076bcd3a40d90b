//! Leases: whole groups handed out in one call, from which their holder allocates without further calls.
//!
//! Only whole free groups are leased. With leases cut from small runs, small objects use up the runs that large ones
//! need: a device then fails at 51 to 89 % instead of 99.9 %.
//!
//! A [`Lease`] is a cursor over groups. The space service hands leases to clients, decides on their duration, and on the part
//! of a lease that counts after its holder's death.

use shoal_base::Run;

use crate::image::{sorted, without};
use crate::{Space, SpaceError};

/// Whole groups whose holder hands out their blocks from the front.
#[derive(Debug)]
pub struct Lease {
    /// The current piece.
    next: u64,
    end: u64,
    /// Pieces not started, the next one last.
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

impl Space {
    /// Takes `groups` wholly free groups out of the space in one call; `None` if there are fewer.
    #[must_use]
    pub fn lease(&self, groups: usize) -> Option<Lease> {
        let runs = self.change(|runs| runs.take_whole(groups));
        if runs.len() < groups || runs.is_empty() {
            let given_back = self.free_batch(&runs);
            assert!(given_back.is_ok(), "they were taken a moment ago: {given_back:?}");
            return None;
        }
        Some(Lease::new(runs))
    }

    /// Ends a lease: everything of it except `kept` is free again.
    ///
    /// # Errors
    /// [`SpaceError::Outside`] or [`SpaceError::NotFree`] if `kept` is not within the lease or overlaps itself. The
    /// lease is lost then, with its groups in use: the caller's books are too wrong to reuse anything.
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
    fn a_lease_is_whole_groups_and_the_rest_comes_back() {
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
        let run = Run::new(64, 1);
        let outside = space.settle(lease, &[run]);
        assert_eq!(outside, Err(SpaceError::Outside { run, blocks_max: 640 }), "block 64 was not leased");
    }

    /// A wrongly settled lease frees nothing.
    #[test]
    fn a_block_that_is_kept_twice_is_refused() {
        let space = space();
        let mut lease = space.lease(1).unwrap();
        let kept = lease.allocate(10).unwrap();
        let (run, overlap) = (Run::new(kept.block + 9, 5), Run::new(kept.block + 9, 1));
        assert_eq!(space.settle(lease, &[run, kept]), Err(SpaceError::NotFree { run, overlap }));
        assert_eq!(space.free_blocks(), 640 - 64);
        space.audit();
    }
}
