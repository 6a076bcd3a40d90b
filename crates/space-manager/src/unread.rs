//! Freed runs of values that the archive of the store has not read yet (INV-47).
//!
//! A record of the log names the runs of a long value, and the archive reads them later than the commit. Meanwhile the object may be
//! replaced or deleted, and a publish frees the runs. They pass through here on their way to the allocator: a run stays until the archive
//! has every record that may name it.

use std::collections::BTreeMap;

use shoal_base::{Lsn, Run};
use shoal_common::injected_bug::{Bug, injected};

/// See the top of the file.
pub(crate) struct Unread {
    /// The archive has every record up to this one; without an archive, above every number.
    floor: Lsn,
    /// By the last record that may name them.
    runs: BTreeMap<Lsn, Vec<Run>>,
    blocks: u64,
}

impl Default for Unread {
    fn default() -> Self {
        Self { floor: Lsn(u64::MAX), runs: BTreeMap::new(), blocks: 0 }
    }
}

impl Unread {
    /// From now on runs of records above `floor` stay.
    pub(crate) fn start(&mut self, floor: Lsn) {
        assert!(self.runs.is_empty(), "a store is opened once");
        self.floor = floor;
    }

    /// Passes runs that no record above `last` names. Returns the reusable ones: all, or none.
    pub(crate) fn pass(&mut self, last: Lsn, runs: Vec<Run>) -> Vec<Run> {
        if last <= self.floor || injected(Bug::UnreadReused) {
            return runs;
        }
        self.blocks += blocks_of(&runs);
        self.runs.entry(last).or_default().extend(runs);
        Vec::new()
    }

    /// Raises the floor, and returns the runs that may be reused now.
    pub(crate) fn release(&mut self, floor: Lsn) -> Vec<Run> {
        self.floor = self.floor.max(floor);
        let above = self.runs.split_off(&self.floor.next());
        let ready: Vec<Run> = std::mem::replace(&mut self.runs, above).into_values().flatten().collect();
        self.blocks -= blocks_of(&ready);
        ready
    }

    /// Blocks of the runs that stay.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }
}

fn blocks_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.blocks)).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use shoal_space::Space;

    use super::*;
    use crate::manager::{DataBlocks, FreedRuns, SpaceManager};

    fn manager() -> Arc<SpaceManager> {
        let space = Space::new(4_096, 1_024);
        space.free(Run::new(0, 1_024)).unwrap();
        SpaceManager::new(space, 1, 4_096, DataBlocks { blocks: 0..4_096, areas: Vec::new() })
    }

    fn freed(named: Run, last: u64) -> FreedRuns {
        FreedRuns { unnamed: vec![Run::new(named.block + 1_000, 1)], named: vec![named], last: Lsn(last) }
    }

    #[test]
    fn runs_stay_until_the_archive_has_their_records() {
        let space = manager();
        space.keep_for_archive(Lsn(10));
        for (superblock, (run, last)) in
            (1..).zip([(Run::new(1_100, 8), 9), (Run::new(1_200, 8), 12), (Run::new(1_300, 8), 20)])
        {
            space.free_later(0, superblock, Weak::new(), freed(run, last));
        }
        assert_eq!((space.reclaim(0), space.pending_blocks(), space.unread_blocks()), (0, 27, 0));
        // The pages, and the value of a record that the archive has.
        assert_eq!((space.reclaim(9), space.pending_blocks(), space.unread_blocks()), (11, 16, 16));
        assert_eq!((space.release_unread(Lsn(11)), space.release_unread(Lsn(12))), (0, 8));
        assert_eq!((space.release_unread(Lsn(3)), space.unread_blocks()), (0, 8), "a floor never falls");
        assert_eq!((space.release_unread(Lsn(20)), space.pending_blocks()), (8, 0));
        assert!(space.allocator().take(Run::new(1_300, 8)).is_ok());
    }

    #[test]
    fn without_an_archive_nothing_stays() {
        let space = manager();
        space.free_later(0, 1, Weak::new(), freed(Run::new(1_100, 8), u64::MAX));
        assert_eq!((space.reclaim(1), space.pending_blocks(), space.unread_blocks()), (9, 0, 0));
    }

    /// A run of a record that an earlier opening applied: free in the image, and held as a whole.
    #[test]
    fn free_runs_are_held_if_applies_do_not_need_them() {
        let space = manager();
        space.keep_for_archive(Lsn(10));
        assert!(!space.hold_for_archive(Lsn(11), Run::new(1_020, 8)), "a part of it is in use");
        assert!(space.hold_for_archive(Lsn(11), Run::new(1_000, 8)));
        assert!(!space.hold_for_archive(Lsn(12), Run::new(1_000, 8)), "it is held already");
        assert_eq!((space.pending_blocks(), space.reserved_blocks()), (8, 0));
        assert!(space.allocator().take(Run::new(1_000, 8)).is_err());
        let _rest = space.claim_apply(space.available()).unwrap();
        space.reserve_recovered(space.withheld() - 4);
        assert!(!space.hold_for_archive(Lsn(13), Run::new(0, 8)), "applies need all but 4 blocks");
        assert!(space.hold_for_archive(Lsn(13), Run::new(0, 4)));
        assert_eq!(space.release_unread(Lsn(13)), 12);
    }
}
