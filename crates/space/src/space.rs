//! [`Space`]: the allocator with its lock.

use std::ops::Range;

use shoal_base::Run;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::sync::{Mutex, MutexGuard};

use crate::free_runs::{FreeRuns, HISTOGRAM_BINS, Runs};
use crate::geometry::Geometry;
use crate::{FreeImage, SpaceError};

/// The state of a group at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// Its free blocks.
    pub free_blocks: u32,
    /// The owner that it serves; 0: it is shared.
    pub owner: u16,
    /// True if it serves no requests, because it is being emptied.
    pub is_closed: bool,
}

/// The free runs of a device, in memory.
///
/// Every call takes one mutex for well under a microsecond (longer if its comment names a walk) and does no I/O. The reason why
/// a block is not free is not known here: used blocks, blocks past the device's present size, and blocks that wait to be freed
/// are all alike.
pub struct Space {
    /// As of the last release of the lock.
    free_blocks: AtomicU64,
    runs: Mutex<FreeRuns>,
}

impl Space {
    /// A space of `blocks_max` blocks, none of them free, in groups of `group_blocks` (see
    /// [`group_blocks_for`](crate::group_blocks_for)). Space is added by [`Self::free`].
    ///
    /// # Panics
    /// If `blocks_max` is 0 or above [`SPACE_BLOCKS_MAX`](crate::SPACE_BLOCKS_MAX), or `group_blocks` is not a
    /// power of two from 16 to 65,536, or both together make more than 262,144 groups.
    #[must_use]
    pub fn new(blocks_max: u64, group_blocks: u32) -> Self {
        let geometry = Geometry::new(blocks_max, group_blocks);
        Self { free_blocks: AtomicU64::new(0), runs: Mutex::new(FreeRuns::new(geometry)) }
    }

    /// A space with exactly the free blocks and the groups of `image`.
    #[must_use]
    pub fn from_image(image: &FreeImage) -> Self {
        let space = Self::new(image.blocks_max(), image.group_blocks());
        space.change(|runs| {
            (0..image.geometry().groups()).for_each(|group| runs.set_group(group, image.group(group).0));
        });
        space
    }

    /// The first block after the space.
    #[must_use]
    pub fn blocks_max(&self) -> u64 {
        self.lock().geometry.blocks_max()
    }

    /// Blocks of a group.
    #[must_use]
    pub fn group_blocks(&self) -> u32 {
        self.lock().geometry.group_blocks()
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.lock().geometry.groups()
    }

    /// Makes a run free: an allocated one, or space that was added. It is merged with its neighbours and may be
    /// handed out again at once, so R9 must hold when this is called.
    ///
    /// # Errors
    /// [`SpaceError::AlreadyFree`] if any block of it is free, [`SpaceError::Outside`]. Nothing is changed then.
    pub fn free(&self, run: Run) -> Result<(), SpaceError> {
        self.change(|runs| runs.free(run))
    }

    /// Makes many runs free, with one lock for all: all of them or none.
    ///
    /// # Errors
    /// As [`Self::free`], for the first run that is found wrong; two runs of the batch that overlap are
    /// [`SpaceError::AlreadyFree`] too. Nothing is changed then.
    pub fn free_batch(&self, batch: &[Run]) -> Result<(), SpaceError> {
        self.change(|runs| {
            batch.iter().try_for_each(|&run| runs.geometry.check(run))?;
            runs.free_batch(batch)
        })
    }

    /// Hands out a contiguous run of exactly `blocks` blocks: from the shortest free run of any group that fits, the
    /// lowest of that length; if no group has one, the same among the runs that cross borders of groups (a walk over the
    /// borders in free space). `None` only if no contiguous run fits.
    ///
    /// # Panics
    /// If `blocks` is 0.
    #[must_use]
    pub fn allocate(&self, blocks: u32) -> Option<Run> {
        self.change(|runs| runs.allocate(blocks))
    }

    /// A run for each of `sizes`, as by [`Self::allocate`] one after the other and with one lock for all: appended to
    /// `out` in the same order, `None` for each that no contiguous run fits.
    ///
    /// # Panics
    /// If a size is 0.
    pub fn allocate_batch(&self, sizes: &[u32], out: &mut Vec<Option<Run>>) {
        self.change(|runs| out.extend(sizes.iter().map(|&blocks| runs.allocate(blocks))));
    }

    /// Hands out `blocks` blocks in at most `runs_max` runs: in one if possible, else the longest free runs first
    /// and the last piece by best fit. All or nothing.
    ///
    /// # Panics
    /// If `blocks` is 0.
    #[must_use]
    pub fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Option<Runs> {
        self.change(|runs| runs.allocate_runs(blocks, runs_max))
    }

    /// Hands out a run of `blocks` blocks, or the longest free run if all are shorter. `None` if nothing is free.
    ///
    /// # Panics
    /// If `blocks` is 0.
    #[must_use]
    pub fn allocate_at_most(&self, blocks: u32) -> Option<Run> {
        self.change(|runs| runs.allocate_at_most(blocks))
    }

    /// As [`Self::allocate`], but only from a free run of at most `hole_blocks` blocks within one group: values that are moved
    /// out of the way fill holes and leave the long runs alone.
    ///
    /// # Panics
    /// If `blocks` is 0.
    #[must_use]
    pub fn allocate_in_hole(&self, blocks: u32, hole_blocks: u32) -> Option<Run> {
        assert!(blocks > 0, "a run has at least one block");
        self.change(|runs| {
            let found = runs.index.best_fit(blocks).filter(|found| found.blocks <= hole_blocks)?;
            Some(runs.cut(found, blocks))
        })
    }

    /// Takes exactly this run out of the free space; recovery does this with the runs that the log's records
    /// own.
    ///
    /// # Errors
    /// [`SpaceError::NotFree`] with the first part that is in use, [`SpaceError::Outside`]. Nothing is changed then.
    pub fn take(&self, run: Run) -> Result<(), SpaceError> {
        self.change(|runs| {
            runs.geometry.check(run)?;
            runs.check_free(run)?;
            runs.take_checked(run);
            Ok(())
        })
    }

    /// Takes the free blocks of a run and returns their number: for groups whose image is incomplete
    /// ([`FreeImage::is_incomplete`]) and for areas that must not be handed out.
    ///
    /// # Errors
    /// [`SpaceError::Outside`].
    pub fn take_free_part(&self, run: Run) -> Result<u64, SpaceError> {
        self.change(|runs| runs.take_free_part(run))
    }

    /// How many blocks are free, in closed groups too.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Relaxed)
    }

    /// Blocks of the longest free run, also across groups, at most `u32::MAX`: the largest request that
    /// [`Self::allocate`] can serve. With many wholly free groups this walks over them.
    #[must_use]
    pub fn largest_run(&self) -> u32 {
        self.lock().longest().map_or(0, |run| run.blocks)
    }

    /// How many free runs have 2^i to 2^(i+1) - 1 blocks, for each i; a run that crosses borders of groups counts
    /// once in each group. Groups with an owner and closed ones are left out. Walks over the groups.
    #[must_use]
    pub fn histogram(&self) -> [u64; HISTOGRAM_BINS] {
        self.lock().histogram()
    }

    /// Returns true if every block of a run is free.
    #[must_use]
    pub fn is_free(&self, run: Run) -> bool {
        self.lock().is_free(run)
    }

    /// Returns true if no block of a run is free.
    #[must_use]
    pub fn is_used(&self, run: Run) -> bool {
        self.lock().check_used(run).is_ok()
    }

    /// Calls `visit` for every free run in ascending order, merged across groups: one consistent state. The lock
    /// is held meanwhile: `visit` must be quick and must not call this space.
    pub fn for_each_run(&self, visit: &mut dyn FnMut(Run)) {
        self.lock().runs().for_each(visit);
    }

    /// The free runs of at least `least` blocks in group `group`, in ascending order; none if the group is closed or has an owner.
    #[must_use]
    pub fn long_runs_of(&self, group: usize, least: u32) -> Vec<Run> {
        let runs = self.lock();
        let Some(state) = runs.groups.get(group).filter(|state| state.is_open()) else { return Vec::new() };
        assert!(
            state.free_blocks <= runs.geometry.group_blocks(),
            "a group has no more free blocks than blocks"
        );
        let long = state.runs.iter().filter(|span| span.blocks >= least);
        long.map(|span| runs.geometry.run(group, span)).collect()
    }

    /// The states of the groups in `range`, appended to `out`; groups past the end are left out. One lock for all of them, for a
    /// few nanoseconds each: a caller with many groups asks for a part at a time.
    pub fn group_states(&self, range: Range<usize>, out: &mut Vec<GroupState>) {
        let runs = self.lock();
        let end = range.end.min(runs.groups.len());
        let states = runs.groups.get(range.start.min(end)..end).unwrap_or_default();
        out.extend(states.iter().map(|state| GroupState {
            free_blocks: state.free_blocks,
            owner: state.owner,
            is_closed: state.is_closed,
        }));
    }

    /// The free runs of group `group` in ascending order, appended to `out`, also if the group is closed or has an owner. The lock
    /// is held for a walk over them: a tenth of a millisecond for the most that a group can have.
    pub fn free_runs_of(&self, group: usize, out: &mut Vec<Run>) {
        let runs = self.lock();
        let Some(state) = runs.groups.get(group) else { return };
        out.extend(state.runs.iter().map(|span| runs.geometry.run(group, span)));
    }

    /// Bytes of memory in use. Walks over the groups.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.lock().heap_bytes()
    }

    /// Checks the index against the free runs themselves; slow, for tests and `shoal check`.
    ///
    /// # Panics
    /// If they contradict each other.
    pub fn audit(&self) {
        let runs = self.lock();
        runs.audit();
        assert_eq!(self.free_blocks(), runs.free_blocks, "the count beside the lock");
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FreeRuns> {
        self.runs.lock()
    }

    /// Changes the free runs under the lock, and notes the new number of free blocks.
    #[inline]
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut FreeRuns) -> R) -> R {
        let mut runs = self.lock();
        let result = change(&mut runs);
        self.free_blocks.store(runs.free_blocks, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn among_longest_runs_the_lowest_is_taken() {
        for (blocks, starts) in
            [(5, [3, 30, 100]), (2000, [300, 9000, 20_000]), (8192, [8192, 24_576, 40_960])]
        {
            let space = Space::new(60_000, 8192);
            starts.into_iter().rev().for_each(|start| space.free(Run::new(start, blocks)).unwrap());
            for start in starts {
                assert_eq!(space.largest_run(), blocks);
                assert_eq!(space.allocate_at_most(60_000), Some(Run::new(start, blocks)));
            }
            assert_eq!(space.allocate_at_most(1), None);
        }
    }

    #[test]
    fn failed_multi_run_allocation_is_undone() {
        let space = Space::new(1000, 64);
        for start in [0, 10, 20, 30] {
            space.free(Run::new(start, 4)).unwrap();
        }
        assert_eq!(space.allocate_runs(13, 3), None, "three runs of 4 are 12");
        assert_eq!(space.allocate_runs(17, 9), None, "only 16 are free");
        assert_eq!(space.allocate_runs(1, 0), None, "no runs allowed");
        assert_eq!(space.free_blocks(), 16);
        space.audit();
        let runs = space.allocate_runs(13, 4).unwrap();
        assert_eq!(runs.as_slice(), [Run::new(0, 4), Run::new(10, 4), Run::new(20, 4), Run::new(30, 1)]);
    }

    #[test]
    fn a_run_across_groups_is_found_and_a_batch_that_is_wrong_changes_nothing() {
        let space = Space::new(500, 16);
        space.free(Run::new(100, 300)).unwrap();
        assert_eq!((space.largest_run(), space.free_blocks()), (300, 300));
        let batch = [Run::new(450, 4), Run::new(10, 4), Run::new(90, 11)];
        let (run, overlap) = (batch[2], Run::new(100, 1));
        assert_eq!(space.free_batch(&batch), Err(SpaceError::AlreadyFree { run, overlap }));
        assert_eq!(space.free_blocks(), 300);
        space.audit();
        assert_eq!(space.allocate(299), Some(Run::new(100, 299)));
        space.audit();
        assert_eq!((space.allocate(1), space.allocate(1)), (Some(Run::new(399, 1)), None));
    }

    /// Enough runs to be sorted.
    #[test]
    fn a_long_batch_that_is_wrong_changes_nothing_either() {
        let blocks_max = 4 * crate::merge::SORTED_RUNS_MIN as u64;
        let space = Space::new(blocks_max, 64);
        let mut batch: Vec<Run> = (0..blocks_max / 3).map(|which| Run::new(3 * which, 2)).collect();
        assert!(batch.len() > crate::merge::SORTED_RUNS_MIN);
        let wrong = Run::new(batch[77].block + 1, 2);
        batch.push(wrong);
        let refused = space.free_batch(&batch).unwrap_err();
        assert!(
            matches!(refused, SpaceError::AlreadyFree { run, overlap } if run == wrong && overlap == Run::new(wrong.block, 1)),
            "{refused:?}"
        );
        assert_eq!(space.free_blocks(), 0);
        batch.pop();
        batch.reverse();
        space.free_batch(&batch).unwrap();
        assert_eq!(space.free_blocks(), 2 * batch.len() as u64);
        assert_eq!(space.largest_run(), 2);
        space.audit();
    }

    #[test]
    fn long_runs_are_those_of_an_open_group() {
        let space = Space::new(256, 64);
        for run in [Run::new(60, 10), Run::new(80, 3), Run::new(90, 4)] {
            space.free(run).unwrap();
        }
        assert_eq!(space.long_runs_of(1, 4), [Run::new(64, 6), Run::new(90, 4)]);
        assert_eq!((space.long_runs_of(0, 4), space.long_runs_of(9, 1)), (vec![Run::new(60, 4)], vec![]));
        let victim = space.close_emptiest(&[]).unwrap();
        let group = (victim.group.block / 64) as usize;
        assert_eq!(space.long_runs_of(group, 1), []);
    }

    #[test]
    fn states_and_runs_of_closed_and_owned_groups_are_shown() {
        let space = Space::new(250, 64);
        space.free(Run::new(0, 128)).unwrap();
        space.free(Run::new(200, 50)).unwrap();
        assert_eq!(space.allocate_own(5, 10), Some(Run::new(0, 10)));
        let closed = space.close(Run::new(192, 58)).unwrap();
        let states = |range| {
            let mut states = Vec::new();
            space.group_states(range, &mut states);
            states
        };
        let state = |free_blocks, owner, is_closed| GroupState { free_blocks, owner, is_closed };
        let expected = [state(54, 5, false), state(64, 0, false), state(0, 0, false), state(50, 0, true)];
        assert_eq!(states(0..9), expected);
        assert_eq!((states(1..2), states(4..9)), (vec![expected[1]], vec![]));
        let mut runs = Vec::new();
        (0..5).for_each(|group| space.free_runs_of(group, &mut runs));
        assert_eq!(runs, [Run::new(10, 54), Run::new(64, 64), Run::new(200, 50)]);
        space.open(closed);
    }

    #[test]
    fn closed_group_accepts_frees_only() {
        let space = Space::new(256, 64);
        space.free(Run::new(10, 20)).unwrap();
        space.free(Run::new(64, 40)).unwrap();
        let victim = space.close_emptiest(&[]).unwrap();
        assert_eq!((victim.group, victim.used_blocks), (Run::new(64, 64), 24));
        assert_eq!(space.allocate(21), None);
        space.free(Run::new(104, 12)).unwrap();
        assert_eq!(space.used_blocks(victim.group), 12);
        space.free(Run::new(116, 12)).unwrap();
        assert_eq!(space.used_blocks(victim.group), 0);
        assert_eq!(space.allocate_in_hole(5, 19), None, "the hole is longer");
        assert_eq!(space.allocate_in_hole(5, 20), Some(Run::new(10, 5)));
        space.audit();
        space.open(victim);
        space.audit();
        assert_eq!(space.whole_groups(), 1);
        assert_eq!(space.allocate(60), Some(Run::new(64, 60)));
    }
}
