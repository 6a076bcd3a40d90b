//! A survey of the device's space, which is looked at again and again: free blocks by part, and free runs by size.
//!
//! The allocator has up to 262,144 groups with up to 32,768 free runs each, too many to walk over at once. A look takes the number of free
//! blocks of each group, which costs some nanoseconds a group, and walks over the runs of as many groups as its budget allows, one lock a
//! group; the next look continues. On a device whose cells are whole groups the map is thus of this moment, and the sizes of runs may be
//! older. Within a group that no look has walked over yet, free blocks are spread evenly.

use shoal_base::Run;
use shoal_engine::{GroupState, SpacePlan, Store};

/// Parts of the finest map at most.
pub(crate) const PARTS_MAX: u64 = 16_384;
/// Groups whose states are read under one lock.
const GROUPS_AT_A_TIME: usize = 1_024;
/// Free runs of 2^i to 2^(i+1) - 1 blocks, for each i; a group has at most 65,536 blocks.
pub(crate) const BINS: usize = 17;
/// Free runs that a look walks over at most, and one group more: some 10 ms.
pub(crate) const RUNS_AT_A_LOOK: usize = 1_000_000;

/// Free runs of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bin {
    pub(crate) runs: u64,
    pub(crate) blocks: u64,
}

/// The free runs of a group or of several by size: counts of runs and of blocks.
type Sizes = [(u32, u32); BINS];

/// A survey.
pub(crate) struct Survey {
    pub(crate) plan: SpacePlan,
    /// Blocks of a part: a power of two. A part is a piece of a group, or whole groups.
    pub(crate) part_blocks: u64,
    parts_max: u64,
    /// The free blocks of each part, holes included.
    pub(crate) free: Vec<u64>,
    pub(crate) groups: Vec<GroupState>,
    /// The free blocks of each part outside of holes, as of the last walk; only if a part is a piece of a group.
    walked: Vec<u32>,
    /// The runs of all groups that start in a part, or the runs of a group if it has several parts.
    sizes: Vec<Sizes>,
    holes: [Bin; BINS],
    /// The next group to walk over.
    next: usize,
    /// True if every group has been walked over.
    pub(crate) is_complete: bool,
}

/// The blocks of a part of a device of this many blocks, which has at most `parts_max` parts.
pub(crate) fn part_blocks_of(device_blocks: u64, parts_max: u64) -> u64 {
    device_blocks.max(1).div_ceil(parts_max.max(1)).next_power_of_two()
}

fn bin_of(blocks: u32) -> usize {
    (blocks.max(1).ilog2() as usize).min(BINS - 1)
}

impl Survey {
    /// A survey of a device with this plan, in at most `parts_max` parts, that has not looked yet.
    pub(crate) fn new(plan: SpacePlan, parts_max: u64) -> Self {
        let blocks = plan.device_blocks.max(1);
        let part_blocks = part_blocks_of(blocks, parts_max);
        let parts = blocks.div_ceil(part_blocks) as usize;
        let groups = blocks.div_ceil(u64::from(plan.group_blocks.max(1))) as usize;
        let is_fine = part_blocks < u64::from(plan.group_blocks);
        Self {
            plan,
            part_blocks,
            parts_max,
            free: vec![0; parts],
            groups: Vec::with_capacity(groups),
            walked: if is_fine { vec![0; parts] } else { Vec::new() },
            sizes: vec![[(0, 0); BINS]; groups.min(parts)],
            holes: [Bin::default(); BINS],
            next: 0,
            is_complete: false,
        }
    }

    /// Takes the plan of now: the device may have grown.
    pub(crate) fn follow(&mut self, plan: SpacePlan) {
        if plan == self.plan {
            return;
        }
        let new = Self::new(plan, self.parts_max);
        if (new.part_blocks, new.plan.group_blocks) != (self.part_blocks, self.plan.group_blocks) {
            *self = new;
            return;
        }
        self.free.resize(new.free.len(), 0);
        self.walked.resize(new.walked.len(), 0);
        self.sizes.resize(new.sizes.len(), [(0, 0); BINS]);
        (self.plan, self.is_complete) = (new.plan, false);
    }

    fn group_blocks(&self) -> u64 {
        u64::from(self.plan.group_blocks.max(1))
    }

    /// The number of groups whose sizes are counted together.
    fn groups_of_sizes(&self) -> usize {
        (self.part_blocks / self.group_blocks()).max(1) as usize
    }

    /// The blocks of a group that the device has.
    fn blocks_of(&self, group: usize) -> u64 {
        let first = group as u64 * self.group_blocks();
        self.plan.device_blocks.saturating_sub(first).min(self.group_blocks())
    }

    /// Looks at the store, and walks over `runs_max` free runs and a group more at most.
    pub(crate) fn look(&mut self, store: &Store, runs_max: usize) {
        let count = self.plan.device_blocks.div_ceil(self.group_blocks()) as usize;
        self.groups.clear();
        for first in (0..count).step_by(GROUPS_AT_A_TIME) {
            store.group_states(first..(first + GROUPS_AT_A_TIME).min(count), &mut self.groups);
        }
        self.walk(store, runs_max);
        self.free.iter_mut().for_each(|free| *free = 0);
        if self.walked.is_empty() {
            for (group, state) in self.groups.iter().enumerate() {
                let part = group as u64 * u64::from(self.plan.group_blocks) / self.part_blocks;
                if let Some(free) = self.free.get_mut(part as usize) {
                    *free += u64::from(state.free_blocks);
                }
            }
        } else {
            self.free.iter_mut().zip(&self.walked).for_each(|(free, walked)| *free = u64::from(*walked));
        }
        self.add_holes(&store.holes());
    }

    /// Walks over groups from the one after the last on, each at most once.
    fn walk(&mut self, store: &Store, runs_max: usize) {
        let (mut left, mut runs) = (runs_max, Vec::new());
        if !self.is_complete && !self.walked.is_empty() {
            (self.next..self.groups.len()).for_each(|group| self.spread(group));
        }
        for _ in 0..self.groups.len() {
            // Not within a part, whose sizes are counted anew.
            if left == 0 && self.next.is_multiple_of(self.groups_of_sizes()) {
                return;
            }
            let group = self.next;
            runs.clear();
            // A group without free blocks has no runs.
            if self.groups.get(group).is_some_and(|state| state.free_blocks > 0) {
                store.free_runs_of(group, &mut runs);
            }
            left = left.saturating_sub(runs.len());
            self.set_runs(group, &runs);
            self.next += 1;
            if self.next >= self.groups.len() {
                (self.next, self.is_complete) = (0, true);
            }
        }
    }

    /// The parts of a group.
    fn parts_of(&self, group: usize) -> std::ops::Range<usize> {
        let first = group as u64 * self.group_blocks();
        let end = first + self.blocks_of(group);
        (first / self.part_blocks) as usize..end.div_ceil(self.part_blocks) as usize
    }

    /// Spreads the free blocks of a group evenly over its parts.
    fn spread(&mut self, group: usize) {
        let (parts, blocks) = (self.parts_of(group), self.blocks_of(group).max(1));
        let mut left = u64::from(self.groups.get(group).map_or(0, |state| state.free_blocks));
        let free = left;
        for part in parts.rev() {
            let share = (free * self.blocks_of_part(part)).div_ceil(blocks).min(left);
            left -= share;
            if let Some(walked) = self.walked.get_mut(part) {
                *walked = share as u32;
            }
        }
    }

    /// Notes the free runs of a group.
    fn set_runs(&mut self, group: usize, runs: &[Run]) {
        let several = self.groups_of_sizes();
        if let Some(sizes) = self.sizes.get_mut(group / several) {
            if group.is_multiple_of(several) {
                *sizes = [(0, 0); BINS];
            }
            for run in runs {
                let bin = &mut sizes[bin_of(run.blocks)];
                *bin = (bin.0 + 1, bin.1 + run.blocks);
            }
        }
        if self.walked.is_empty() {
            return;
        }
        let parts = self.parts_of(group);
        self.walked.get_mut(parts).unwrap_or_default().fill(0);
        let part_blocks = self.part_blocks;
        for run in runs {
            for (part, blocks) in pieces(*run, part_blocks) {
                if let Some(walked) = self.walked.get_mut(part) {
                    *walked += blocks as u32;
                }
            }
        }
    }

    fn add_holes(&mut self, holes: &[Run]) {
        self.holes = [Bin::default(); BINS];
        for hole in holes {
            let bin = &mut self.holes[bin_of(hole.blocks)];
            *bin = Bin { runs: bin.runs + 1, blocks: bin.blocks + u64::from(hole.blocks) };
            for (part, blocks) in pieces(*hole, self.part_blocks) {
                if let Some(free) = self.free.get_mut(part) {
                    *free += blocks;
                }
            }
        }
        // The parts are of slightly different moments: a hole may have been a free run a moment ago.
        for part in 0..self.free.len() {
            let most = self.blocks_of_part(part);
            if let Some(free) = self.free.get_mut(part) {
                *free = (*free).min(most);
            }
        }
    }

    /// The blocks of a part; the last one may be short.
    pub(crate) fn blocks_of_part(&self, part: usize) -> u64 {
        let first = part as u64 * self.part_blocks;
        self.plan.device_blocks.saturating_sub(first).min(self.part_blocks)
    }

    /// The free runs within groups by size, and the holes.
    pub(crate) fn bins(&self) -> [Bin; BINS] {
        let mut bins = self.holes;
        for sizes in &self.sizes {
            for (bin, &(runs, blocks)) in bins.iter_mut().zip(sizes) {
                *bin = Bin { runs: bin.runs + u64::from(runs), blocks: bin.blocks + u64::from(blocks) };
            }
        }
        bins
    }
}

/// The parts that a run is in, each with the number of blocks in it.
fn pieces(run: Run, part_blocks: u64) -> impl Iterator<Item = (usize, u64)> {
    let parts = run.block / part_blocks..run.end().div_ceil(part_blocks);
    parts.map(move |part| {
        let (start, end) = (part * part_blocks, (part + 1) * part_blocks);
        (part as usize, run.end().min(end) - run.block.max(start))
    })
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
