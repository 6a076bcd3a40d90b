//! Chooses the blocks to empty if free blocks are scattered: the file system gets long free runs back, and short ones stay taken.
//!
//! The space is divided into windows of 1 MiB. Emptying one makes a long run of its short free runs and of its used blocks, whose contents
//! fill short free runs elsewhere. A group with chosen windows is closed while they are emptied, so its short runs are no places for them. The
//! emptiest windows of the emptiest groups are chosen, until the short runs of the other groups have no place for more.

use shoal_base::Run;

use crate::holes::{HOLE_BLOCKS_MIN, Hole};
use crate::manager::SpaceManager;

/// Blocks of a window, or fewer in a space with smaller groups.
const WINDOW_BLOCKS: u32 = 256;
/// At most this number of used blocks is moved for each free block in a short run.
const MOVED_FOR_ONE: u64 = 8;
/// Groups that are chosen at most: a terabyte. Their windows take some megabytes of memory.
const GROUPS_MAX: usize = 4_096;

/// The longest run that counts as short, in blocks.
pub const SHORT_BLOCKS_MAX: u32 = HOLE_BLOCKS_MIN - 1;

/// A choice of blocks to empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scattered {
    /// The groups that have windows.
    pub groups: Vec<Run>,
    /// The windows to empty, in ascending order; neighbours are one run.
    pub windows: Vec<Run>,
    /// Blocks of short free runs in them: the gain.
    pub gained_blocks: u64,
    /// Used blocks in them: the cost.
    pub moved_blocks: u64,
}

/// The blocks of a window, except those in long free runs and holes.
#[derive(Clone, Copy, Debug)]
struct Window {
    run: Run,
    used: u64,
    /// In free runs that are too short for a hole.
    short: u64,
}

impl Window {
    fn is_worth(&self) -> bool {
        self.short > 0 && self.used <= self.short * MOVED_FOR_ONE
    }

    /// Parts in a thousand of its blocks that are free.
    fn short_permille(&self) -> u64 {
        self.short * 1000 / (self.short + self.used).max(1)
    }
}

/// The windows of a group.
struct OfGroup {
    number: u64,
    windows: Vec<Window>,
    /// Blocks in short free runs, those in windows that may not be emptied included.
    short: u64,
}

impl OfGroup {
    /// The windows that are worth emptying, as one.
    fn sum(&self) -> Window {
        let worth = self.windows.iter().filter(|window| window.is_worth());
        let none = Window { run: Run::new(self.number, 1), used: 0, short: 0 };
        worth.fold(none, |sum, window| Window {
            used: sum.used + window.used,
            short: sum.short + window.short,
            ..sum
        })
    }
}

impl SpaceManager {
    /// Chooses windows of at most `blocks_max` blocks, outside of `except`, whose used blocks fit in the short free runs of other groups.
    /// Walks over the groups.
    pub fn scattered(&self, except: &[Run], blocks_max: u64) -> Scattered {
        let group_blocks = u64::from(self.allocator().group_blocks());
        let holes = self.holes().all();
        let groups = 0..self.data_end().div_ceil(group_blocks);
        let mut places = 0;
        let mut sums: Vec<(u64, Window)> = Vec::new();
        for number in groups {
            let of_group = self.windows_of(number, &holes, except);
            places += of_group.short;
            sums.push((number, of_group.sum()));
        }
        sums.retain(|(_, sum)| sum.short > 0);
        sums.sort_by_key(|&(number, sum)| std::cmp::Reverse((sum.short_permille(), number)));
        let mut chosen = Scattered::default();
        for (number, _) in sums {
            let mut of_group = self.windows_of(number, &holes, except);
            let others = places.saturating_sub(of_group.short);
            // An eighth is left to the pages that name the moved values.
            let room = (others / 8 * 7).saturating_sub(chosen.moved_blocks);
            if chosen.groups.len() < GROUPS_MAX && chosen.add(&mut of_group, room, blocks_max) {
                places = others;
                chosen.groups.push(Run::new(number * group_blocks, group_blocks as u32));
            }
        }
        chosen.windows.sort_unstable();
        chosen.windows.dedup_by(|next, run| {
            let is_next = run.end() == next.block && run.blocks < u32::MAX - next.blocks;
            run.blocks += if is_next { next.blocks } else { 0 };
            is_next
        });
        assert!(
            chosen.gained_blocks + chosen.moved_blocks <= blocks_max && chosen.moved_blocks <= places,
            "more than asked for, or than has a place: {chosen:?}"
        );
        chosen
    }

    fn windows_of(&self, number: u64, holes: &[Hole], except: &[Run]) -> OfGroup {
        let group_blocks = self.allocator().group_blocks();
        let first = number * u64::from(group_blocks);
        let free = self.allocator().long_runs_of(number as usize, 1);
        let window_blocks = WINDOW_BLOCKS.min(group_blocks);
        let runs = (0..group_blocks / window_blocks)
            .map(|at| Run::new(first + u64::from(at) * u64::from(window_blocks), window_blocks));
        let used = u64::from(window_blocks);
        let mut windows: Vec<Window> = runs.map(|run| Window { run, used, short: 0 }).collect();
        let mut short = 0;
        // A group without free runs is full, closed or one bucket's: nothing is gained there.
        if free.is_empty() {
            return OfGroup { number, windows: Vec::new(), short };
        }
        let mut subtract = |run: Run, is_short: bool| {
            let windows = windows.iter_mut().skip(((run.block - first) / u64::from(window_blocks)) as usize);
            for window in windows.take_while(|window| window.run.block < run.end()) {
                let blocks = run.end().min(window.run.end()) - run.block.max(window.run.block);
                window.used -= blocks;
                window.short += if is_short { blocks } else { 0 };
            }
        };
        for run in free {
            let is_short = run.blocks <= SHORT_BLOCKS_MAX;
            short += if is_short { u64::from(run.blocks) } else { 0 };
            subtract(run, is_short);
        }
        let end = first + u64::from(group_blocks);
        let from = holes.partition_point(|hole| hole.run.end() <= first);
        for hole in holes[from..].iter().take_while(|hole| hole.run.block < end) {
            let (start, end) = (hole.run.block.max(first), hole.run.end().min(end));
            subtract(Run::new(start, (end - start) as u32), false);
        }
        windows.retain(|window| !except.iter().any(|run| run.overlaps(window.run)));
        OfGroup { number, windows, short }
    }
}

impl Scattered {
    /// Adds windows of a group, the emptiest first, whose used blocks fit in `room` blocks. Returns false if there are none.
    fn add(&mut self, group: &mut OfGroup, mut room: u64, blocks_max: u64) -> bool {
        group.windows.sort_by_key(|window| std::cmp::Reverse((window.short_permille(), window.run.block)));
        let mut is_any = false;
        for window in group.windows.iter().filter(|window| window.is_worth()) {
            let blocks = self.gained_blocks + self.moved_blocks + window.used + window.short;
            if window.used > room || blocks > blocks_max {
                break;
            }
            room -= window.used;
            self.moved_blocks += window.used;
            self.gained_blocks += window.short;
            self.windows.push(window.run);
            is_any = true;
        }
        is_any
    }
}

#[cfg(test)]
mod tests {
    use shoal_space::Space;

    use super::*;
    use crate::manager::DataBlocks;

    /// A space of four groups of 1,024 blocks, in which the `free` runs are free.
    fn space(free: impl IntoIterator<Item = Run>) -> std::sync::Arc<SpaceManager> {
        let space = Space::new(4_096, 1_024);
        free.into_iter().for_each(|run| space.free(run).unwrap());
        SpaceManager::new(space, 4, 4_096, DataBlocks { blocks: 0..4_096, areas: Vec::new() })
    }

    fn single_blocks(from: u64, to: u64, every: u64) -> impl Iterator<Item = Run> {
        (from..to).step_by(every as usize).map(|block| Run::new(block, 1))
    }

    #[test]
    fn half_of_a_uniform_space_is_emptied_into_the_other_half() {
        let space = space(single_blocks(0, 4_096, 2));
        let chosen = space.scattered(&[], u64::MAX);
        // Each group has 512 used and 512 short free blocks. The contents of two groups fit into seven eighths of the others.
        assert_eq!(chosen.groups, [Run::new(3_072, 1_024), Run::new(2_048, 1_024)]);
        assert_eq!((chosen.gained_blocks, chosen.moved_blocks), (896, 896));
        let blocks: u64 = chosen.windows.iter().map(|run| u64::from(run.blocks)).sum();
        assert_eq!((blocks, chosen.windows.len()), (7 * 256, 1), "{:?}", chosen.windows);
        let few = space.scattered(&[Run::new(3_500, 10)], 600);
        assert_eq!((few.gained_blocks, few.windows), (256, vec![Run::new(3_584, 512)]));
    }

    #[test]
    fn the_emptiest_windows_are_chosen_and_full_ones_stay() {
        let thin = |to| single_blocks(0, to, 10).chain([Run::new(3_072, 100)]);
        let half = || single_blocks(2_048, 2_304, 2);
        let chosen = space(thin(2_048).chain(half())).scattered(&[], u64::MAX);
        assert_eq!(chosen.windows, [Run::new(2_048, 256)], "thin groups would move nine blocks for one");
        let chosen = space(thin(1_024).chain(half())).scattered(&[], u64::MAX);
        assert_eq!(chosen, Scattered::default(), "103 blocks are no place for 128");
    }

    #[test]
    fn short_runs_beside_holes_become_holes_without_a_look() {
        let space = space([Run::new(100, 200), Run::new(301, 5), Run::new(1_000, 5), Run::new(2_048, 900)]);
        let look = space.holes().look();
        assert_eq!(space.runs_for_holes(Some(&look), 50), [Run::new(2_898, 50)]);
        assert!(space.make_hole(Run::new(100, 200)) && space.make_hole(Run::new(2_048, 500)));
        assert_eq!(space.runs_for_holes(None, 4_096), [Run::new(2_548, 400)], "block 300 is in use");
        space.give_back(&[Run::new(300, 1)]);
        assert_eq!(space.runs_for_holes(None, 4_096), [Run::new(2_548, 400), Run::new(300, 6)]);
        assert_eq!(space.runs_for_holes(None, 403), [Run::new(2_548, 400)], "3 of 6 would leave a short run");
    }

    #[test]
    fn long_runs_and_holes_are_neither_gain_nor_cost() {
        let few = single_blocks(2_252, 2_304, 4);
        let space = space(single_blocks(0, 2_048, 2).chain([Run::new(2_048, 200)]).chain(few));
        assert!(space.make_hole(Run::new(2_048, 200)));
        let chosen = space.scattered(&[], 100);
        assert_eq!(chosen.windows, [Run::new(2_048, 256)]);
        assert_eq!((chosen.gained_blocks, chosen.moved_blocks), (13, 43));
    }
}
