//! The wholly free groups that were returned to the device. They are known in memory only; after a restart all of
//! them are discarded once more.

use shoal_base::Run;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shoal_space::Space;

/// A bit for each group that is discarded on the device. Freeing blocks in a group clears its bit.
pub struct Discarded {
    groups: Box<[AtomicU64]>,
    /// Blocks of a group.
    pub group_blocks: u64,
    /// The group to check next.
    pub next: AtomicU64,
    /// True after the device failed to discard.
    pub failed: AtomicBool,
}

impl Discarded {
    /// The state without discarded groups, for the present groups of `space`.
    pub fn new(space: &Space) -> Self {
        Self {
            groups: (0..space.groups().div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            group_blocks: u64::from(space.group_blocks()),
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// Notes a freed run: its blocks may hold data on the device.
    pub fn freed(&self, run: Run) {
        assert!(run.blocks > 0, "a freed run has blocks");
        for group in run.block / self.group_blocks..=(run.end() - 1) / self.group_blocks {
            let bit = 1 << (group % 64);
            if let Some(word) = self.groups.get((group / 64) as usize)
                && word.load(Ordering::Relaxed) & bit != 0
            {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    /// Returns true if the group is discarded.
    pub fn contains(&self, group: u64) -> bool {
        let word = self.groups.get((group / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (group % 64)) != 0)
    }

    /// Notes that the group is discarded.
    pub fn insert(&self, group: u64) {
        if let Some(word) = self.groups.get((group / 64) as usize) {
            word.fetch_or(1 << (group % 64), Ordering::Relaxed);
        }
    }
}
