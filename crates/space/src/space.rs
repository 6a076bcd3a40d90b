//! [`Space`]: the allocator in shards, each behind its lock.
//!
//! A device above 8 TiB has several shards, so that threads seldom meet. A thread prefers one shard as
//! long as that is not much fuller than the others (shards that are filled one after the other fragment); a thread that has been the
//! only one for a while takes the best fit of all. What the chosen shard cannot serve, all shards together are asked for. One shard behaves exactly
//! as the policy says (`free_runs`); several nearly so, for runs of up to 4 MiB.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use shoal_base::Run;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::sync::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::free_runs::{FreeRuns, HISTOGRAM_BINS};
use crate::geometry::{Geometry, Merged};
use crate::present::Present;
use crate::shards::Shards;
use crate::{FreeImage, SpaceError};

/// Blocks of a shard, 8 TiB: smaller ones fragment a device sooner, as every shard looks for the best fit alone (16 TiB by
/// the seed's load, first failure: one shard 99.966 %, two 99.962 %, four 99.954 %; 2026-11-21).
const SHARD_BLOCKS: u64 = 1 << 31;

/// Calls of a thread after which it looks whether another shard is much emptier than its own.
const CALLS_AT_HOME: u32 = 64;

thread_local! {
    /// Only a hint: it serves whatever spaces the thread works on.
    static HOME: Cell<Home> = const { Cell::new(Home { thread: NO_THREAD, shard: 0, calls: 0, alone: 0 }) };
}

/// Where a thread allocates.
#[derive(Clone, Copy)]
struct Home {
    /// The thread's own number, which says what shard it prefers.
    thread: u32,
    /// The shard that it uses.
    shard: u32,
    /// For how many more calls it does not ask again.
    calls: u32,
    /// How many times in a row no other thread had asked since it did.
    alone: u32,
}

impl Home {
    /// Threads allocate in bursts: it takes a while without another one to be alone.
    fn is_alone(self) -> bool {
        self.alone >= ALONE_AFTER
    }
}

/// Questions in a row without another thread's after which a thread is alone: a quarter of a million calls.
const ALONE_AFTER: u32 = 4096;

/// A thread that never asked.
const NO_THREAD: u32 = u32::MAX;

/// Spreads threads over the shards.
static NEXT_THREAD: AtomicU32 = AtomicU32::new(0);

/// The runs of one allocation; up to four without memory of their own.
pub type Runs = SmallVec<[Run; 4]>;

/// A part of the address space.
#[repr(align(128))]
pub(crate) struct Shard {
    /// As when the lock was last given back.
    free_blocks: AtomicU64,
    /// What short runs there are, without the lock.
    present: Arc<Present>,
    runs: Mutex<FreeRuns>,
}

impl Shard {
    fn new(geometry: Geometry) -> Self {
        let runs = FreeRuns::new(geometry);
        Self { free_blocks: AtomicU64::new(0), present: runs.index.present(), runs: Mutex::new(runs) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FreeRuns> {
        self.runs.lock()
    }

    /// To be called with the lock held, after a change.
    #[inline]
    pub(crate) fn note(&self, runs: &FreeRuns) {
        self.free_blocks.store(runs.free_blocks, Ordering::Relaxed);
    }

    fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Relaxed)
    }
}

/// The free runs of a device, in memory.
///
/// Every call takes one mutex for well under a microsecond (longer, or all of them, where it says so) and does no I/O. What
/// is not free is not known here: blocks are in use, not there yet, or waiting to be freed, all alike.
pub struct Space {
    geometry: Geometry,
    shard_shift: u32,
    /// The thread that last asked which shard to use.
    chosen_by: AtomicU32,
    shards: Box<[Shard]>,
}

impl Space {
    /// A space of `blocks_max` blocks, none of them free, in groups of `group_blocks` (see
    /// [`group_blocks_for`](crate::group_blocks_for)), in shards of 8 TiB. Space is added by [`Self::free`].
    ///
    /// # Panics
    /// Where `blocks_max` is 0 or above [`SPACE_BLOCKS_MAX`](crate::SPACE_BLOCKS_MAX), or `group_blocks` is not a
    /// power of two from 16 to 65,536, or both together make more than 262,144 groups.
    #[must_use]
    pub fn new(blocks_max: u64, group_blocks: u32) -> Self {
        Self::with_shards(blocks_max, group_blocks, SHARD_BLOCKS)
    }

    /// As [`Self::new`], in shards of `shard_blocks` blocks.
    ///
    /// # Panics
    /// As [`Self::new`], or where `shard_blocks` is not a power of two that holds at least one group.
    #[must_use]
    pub fn with_shards(blocks_max: u64, group_blocks: u32, shard_blocks: u64) -> Self {
        let geometry = Geometry::new(blocks_max, group_blocks);
        assert!(
            shard_blocks.is_power_of_two() && shard_blocks >= u64::from(group_blocks),
            "shard of {shard_blocks}"
        );
        let part = |index: u64| geometry.part(index * shard_blocks, (index + 1) * shard_blocks);
        let shards = (0..blocks_max.div_ceil(shard_blocks)).map(|index| Shard::new(part(index))).collect();
        let chosen_by = AtomicU32::new(NO_THREAD);
        Self { geometry, shard_shift: shard_blocks.ilog2(), chosen_by, shards }
    }

    /// A space in which exactly what `image` says is free, with the image's groups.
    #[must_use]
    pub fn from_image(image: &FreeImage) -> Self {
        let space = Self::new(image.blocks_max(), image.group_blocks());
        {
            let mut all = Shards::lock(&space.shards);
            let mut groups = 0..image.geometry().groups();
            for runs in all.iter_mut() {
                for (group, of_image) in (0..runs.geometry.groups()).zip(groups.by_ref()) {
                    runs.set_group(group, image.group(of_image).0);
                }
            }
        }
        space
    }

    /// The first block behind the space.
    #[must_use]
    pub fn blocks_max(&self) -> u64 {
        self.geometry.blocks_max()
    }

    /// Blocks of a group.
    #[must_use]
    pub fn group_blocks(&self) -> u32 {
        self.geometry.group_blocks()
    }

    /// Makes a run free: one that is given back, or space that was added. It is merged with its neighbours and may
    /// be handed out again at once, so R9 must hold when this is called.
    ///
    /// # Errors
    /// [`SpaceError::AlreadyFree`] where any block of it is free, [`SpaceError::Outside`]. Nothing is changed then.
    pub fn free(&self, run: Run) -> Result<(), SpaceError> {
        self.geometry.check(run)?;
        if let Some(shard) = self.shard_of(run) {
            let mut runs = shard.lock();
            let freed = runs.free(run);
            shard.note(&runs);
            return freed;
        }
        let mut all = Shards::lock(&self.shards);
        for (runs, part) in all.parts(run) {
            runs.check_used(part).map_err(|error| whole(error, run))?;
        }
        all.free_checked(run);
        Ok(())
    }

    /// Makes many runs free, with one lock for all of a shard: all of them or none. Meanwhile others may be handed some.
    ///
    /// # Errors
    /// As [`Self::free`], for the first run that is found wrong; two runs of the batch that overlap are
    /// [`SpaceError::AlreadyFree`] too. Nothing is changed then, unless another thread was handed a part of the batch
    /// before the wrong run was found: then that part stays with it and the rest is taken back.
    pub fn free_batch(&self, batch: &[Run]) -> Result<(), SpaceError> {
        for &run in batch {
            self.geometry.check(run)?;
        }
        let sorted: SmallVec<[Run; 64]>;
        let order = if self.shards.len() > 1 {
            sorted = self.by_shard(batch);
            &sorted[..]
        } else {
            batch
        };
        let mut done = 0;
        while done < order.len() {
            let freed = match self.shard_index(order[done]) {
                None => self.free(order[done]).map(|()| 1).map_err(|error| (0, error)),
                Some(index) => {
                    let of_shard = |run: &&Run| self.shard_index(**run) == Some(index);
                    let count = order[done..].iter().take_while(of_shard).count();
                    let shard = &self.shards[index];
                    let mut runs = shard.lock();
                    let freed = runs.free_batch(&order[done..done + count]);
                    shard.note(&runs);
                    freed.map(|()| count)
                }
            };
            match freed {
                Ok(count) => done += count,
                Err((count, error)) => {
                    self.take_back(&order[..done + count]);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The same runs by shard, those that cross borders of shards at the end; in their order otherwise. Shards are few.
    fn by_shard(&self, batch: &[Run]) -> SmallVec<[Run; 64]> {
        let mut order = SmallVec::with_capacity(batch.len());
        for index in (0..self.shards.len()).map(Some).chain([None]) {
            order.extend(batch.iter().copied().filter(|&run| self.shard_index(run) == index));
        }
        order
    }

    fn take_back(&self, freed: &[Run]) {
        let mut all = Shards::lock(&self.shards);
        for &run in freed {
            for (runs, part) in all.parts(run) {
                let taken = runs.take_free_part(part);
                assert!(taken.is_ok(), "{part} was freed a moment ago: {taken:?}");
            }
        }
    }

    /// Hands out a contiguous run of exactly `blocks` blocks: from the shortest free run of any group that fits,
    /// the lowest of that length in its shard; where no group has one, the same
    /// among the runs that cross borders of groups (a walk over the borders in free space). `None` only if no contiguous
    /// run fits.
    ///
    /// # Panics
    /// Where `blocks` is 0.
    #[must_use]
    pub fn allocate(&self, blocks: u32) -> Option<Run> {
        assert!(blocks > 0, "a run has at least one block");
        if let Some(run) = self.allocate_in_one(blocks) {
            return Some(run);
        }
        Shards::lock(&self.shards).allocate(blocks)
    }

    /// A run for each of `sizes`, as by [`Self::allocate`] one after the other and with one lock for all: appended to
    /// `out` in the same order, `None` for each that no contiguous run fits.
    ///
    /// # Panics
    /// Where a size is 0.
    pub fn allocate_batch(&self, sizes: &[u32], out: &mut Vec<Option<Run>>) {
        assert!(!sizes.contains(&0), "a run has at least one block");
        let mut done = 0;
        while done < sizes.len() {
            let home = self.home();
            done += if home.is_alone() && self.shards.len() > 1 {
                let own = home.shard as usize % self.shards.len();
                Shards::lock(&self.shards).allocate_batch(own, &sizes[done..], out)
            } else {
                let shard = self.shard_of_home(home);
                let mut runs = shard.lock();
                let served = runs.allocate_batch(&sizes[done..], out);
                shard.note(&runs);
                served
            };
            if let Some(&blocks) = sizes.get(done) {
                out.push(Shards::lock(&self.shards).allocate(blocks));
                done += 1;
            }
        }
    }

    /// Hands out `blocks` blocks in at most `runs_max` runs: in one if possible, else the longest free runs first
    /// and the last piece by best fit. All or nothing. Takes all locks where the thread's own shard has no single run.
    ///
    /// # Panics
    /// Where `blocks` is 0.
    #[must_use]
    pub fn allocate_runs(&self, blocks: u32, runs_max: usize) -> Option<Runs> {
        assert!(blocks > 0, "a run has at least one block");
        let mut out = Runs::new();
        if runs_max > 0 {
            out.extend(self.allocate_in_one(blocks));
            if !out.is_empty() {
                return Some(out);
            }
        }
        Shards::lock(&self.shards).allocate_runs(blocks, runs_max, &mut out).then_some(out)
    }

    /// Hands out a run of `blocks` blocks, or the longest free run where all are shorter. `None` if nothing is free.
    /// Takes all locks.
    ///
    /// # Panics
    /// Where `blocks` is 0.
    #[must_use]
    pub fn allocate_at_most(&self, blocks: u32) -> Option<Run> {
        assert!(blocks > 0, "a run has at least one block");
        Shards::lock(&self.shards).allocate_at_most(blocks)
    }

    /// As [`Self::allocate`], but only from a free run of at most `hole_blocks` blocks within one group: what is moved out
    /// of the way fills holes and leaves the long runs alone. Takes all locks.
    ///
    /// # Panics
    /// Where `blocks` is 0.
    #[must_use]
    pub fn allocate_in_hole(&self, blocks: u32, hole_blocks: u32) -> Option<Run> {
        assert!(blocks > 0, "a run has at least one block");
        let mut all = Shards::lock(&self.shards);
        let found = |runs: &mut FreeRuns| runs.index.best_fit(blocks).map(|found| found.blocks);
        let best = all.iter_mut().filter_map(found).min().filter(|&hole| hole <= hole_blocks)?;
        let runs = all
            .iter_mut()
            .find(|runs| runs.index.best_fit(blocks).is_some_and(|found| found.blocks == best))?;
        runs.allocate(blocks)
    }

    /// Takes exactly this run out of the free space, as recovery does with what the log's records own.
    ///
    /// # Errors
    /// [`SpaceError::NotFree`] with the first part that is in use, [`SpaceError::Outside`]. Nothing is changed then.
    pub fn take(&self, run: Run) -> Result<(), SpaceError> {
        self.geometry.check(run)?;
        let mut all = Shards::lock(&self.shards);
        for (runs, part) in all.parts(run) {
            runs.check_free(part).map_err(|error| whole(error, run))?;
        }
        all.take_checked(run);
        Ok(())
    }

    /// Takes whatever is free of a run and says how many blocks that were: for groups whose image is incomplete
    /// ([`FreeImage::is_incomplete`]) and for areas that must not be handed out.
    ///
    /// # Errors
    /// [`SpaceError::Outside`].
    pub fn take_free_part(&self, run: Run) -> Result<u64, SpaceError> {
        self.geometry.check(run)?;
        let mut all = Shards::lock(&self.shards);
        all.parts(run).map(|(runs, part)| runs.take_free_part(part)).sum()
    }

    /// How many blocks are free, in closed groups too.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.shards.iter().map(Shard::free_blocks).sum()
    }

    /// Blocks of the longest free run, also across groups, at most `u32::MAX`: what [`Self::allocate`] can serve.
    /// With many wholly free groups this walks over them.
    #[must_use]
    pub fn largest_run(&self) -> u32 {
        Shards::lock(&self.shards).longest().map_or(0, |run| run.blocks)
    }

    /// How many free runs have 2^i to 2^(i+1) - 1 blocks, for each i; a run that crosses borders of groups counts
    /// once in each group. Groups with an owner and closed ones are left out. Walks over the groups.
    #[must_use]
    pub fn histogram(&self) -> [u64; HISTOGRAM_BINS] {
        let mut sum = [0; HISTOGRAM_BINS];
        Shards::lock(&self.shards).iter().for_each(|runs| runs.count_runs(&mut sum));
        sum
    }

    /// Whether every block of a run is free.
    #[must_use]
    pub fn is_free(&self, run: Run) -> bool {
        self.geometry.check(run).is_ok()
            && Shards::lock(&self.shards).parts(run).all(|(runs, part)| runs.is_free(part))
    }

    /// Calls `visit` for every free run in ascending order, merged across groups: one consistent state. All locks
    /// are held meanwhile: `visit` must be quick and must not call this space.
    pub fn for_each_run(&self, visit: &mut dyn FnMut(Run)) {
        Merged::new(Shards::lock(&self.shards).iter().flat_map(FreeRuns::runs)).for_each(visit);
    }

    /// Bytes of memory in use. Walks over the groups.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let all = Shards::lock(&self.shards);
        size_of::<Self>() + size_of_val(&*self.shards) + all.iter().map(FreeRuns::heap_bytes).sum::<usize>()
    }

    /// Checks the index against the free runs themselves; slow, for tests and `shoal check`.
    ///
    /// # Panics
    /// Where they contradict each other.
    pub fn audit(&self) {
        let all = Shards::lock(&self.shards);
        all.iter().for_each(FreeRuns::audit);
        assert_eq!(self.free_blocks(), all.free_blocks(), "the shards' own counts");
    }

    pub(crate) fn shards(&self) -> Shards<'_> {
        Shards::lock(&self.shards)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The shard in which all of a run lies.
    #[inline]
    fn shard_of(&self, run: Run) -> Option<&Shard> {
        self.shard_index(run).map(|index| &self.shards[index])
    }

    #[inline]
    fn shard_index(&self, run: Run) -> Option<usize> {
        let index = run.block >> self.shard_shift;
        ((run.end() - 1) >> self.shard_shift == index).then_some(index as usize)
    }

    /// The best fit within a group of the thread's shard; of any shard, where the thread is the only one for now. So shards
    /// fragment hardly sooner than one space would, and several threads do not meet. Where somebody else is in the shard,
    /// the caller waits: a thread that went elsewhere each time would leave blocks everywhere, whose frees are in
    /// everybody's way.
    #[inline]
    fn allocate_in_one(&self, blocks: u32) -> Option<Run> {
        let home = self.home();
        let own = self.shard_of_home(home);
        {
            let mut runs = own.lock();
            let found = runs.index.best_fit(blocks);
            let fit = found.map_or(u32::MAX, |found| found.blocks);
            let may_be_better = home.is_alone() && fit > blocks && self.shards.len() > 1;
            if !may_be_better || self.better_than(fit, blocks).is_none() {
                let run = runs.cut(found?, blocks);
                own.note(&runs);
                return Some(run);
            }
        }
        let better = self.better_than(u32::MAX, blocks)?;
        let mut runs = better.lock();
        let found = runs.index.best_fit(blocks)?;
        let run = runs.cut(found, blocks);
        better.note(&runs);
        Some(run)
    }

    /// The shard with the shortest run that fits, if that is shorter than `fit`.
    fn better_than(&self, fit: u32, blocks: u32) -> Option<&Shard> {
        let shortest = |shard: &&Shard| shard.present.from(blocks as usize - 1).unwrap_or(usize::MAX);
        let best = self.shards.iter().min_by_key(shortest)?;
        (shortest(&best) < fit as usize - 1).then_some(best)
    }

    #[inline]
    fn shard_of_home(&self, home: Home) -> &Shard {
        &self.shards[home.shard as usize % self.shards.len()]
    }

    /// Where this thread allocates now.
    #[inline]
    fn home(&self) -> Home {
        let mut home = HOME.get();
        if self.shards.len() > 1 {
            if home.calls == 0 {
                self.choose(&mut home);
            }
            home.calls -= 1;
            HOME.set(home);
        }
        home
    }

    /// The shard that the thread prefers, unless it has less than three quarters of the free blocks of the emptiest. Were
    /// that the emptiest always, all threads would move together, and meet in one.
    #[cold]
    fn choose(&self, home: &mut Home) {
        if home.thread == NO_THREAD {
            home.thread = NEXT_THREAD.fetch_add(1, Ordering::Relaxed) & (NO_THREAD >> 1);
        }
        let own = home.thread as usize % self.shards.len();
        let free = |shard: usize| self.shards[shard].free_blocks();
        let most = (0..self.shards.len()).max_by_key(|&shard| free(shard)).unwrap_or(own);
        let shard = if free(own) < free(most) / 4 * 3 { most } else { own };
        let before = self.chosen_by.swap(home.thread, Ordering::Relaxed);
        let alone = if before == home.thread { home.alone.saturating_add(1) } else { 0 };
        *home = Home { shard: shard as u32, calls: CALLS_AT_HOME, alone, ..*home };
    }
}

/// The refusal of a part as that of the whole run.
fn whole(mut error: SpaceError, whole: Run) -> SpaceError {
    let (SpaceError::AlreadyFree { run, .. }
    | SpaceError::NotFree { run, .. }
    | SpaceError::Outside { run, .. }) = &mut error;
    *run = whole;
    error
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
    fn a_failed_allocation_in_several_runs_gives_everything_back() {
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
    fn a_run_across_shards_is_found_and_a_batch_that_is_wrong_changes_nothing() {
        let space = Space::with_shards(500, 16, 128);
        space.free(Run::new(100, 300)).unwrap();
        assert_eq!((space.largest_run(), space.free_blocks()), (300, 300));
        let batch = [Run::new(450, 4), Run::new(10, 4), Run::new(90, 11)];
        let (run, overlap) = (batch[2], Run::new(100, 1));
        assert_eq!(space.free_batch(&batch), Err(SpaceError::AlreadyFree { run, overlap }));
        assert_eq!(space.free_blocks(), 300);
        let across = Run::new(120, 16);
        assert_eq!(
            space.free(across),
            Err(SpaceError::AlreadyFree { run: across, overlap: Run::new(120, 8) })
        );
        assert_eq!(space.allocate(299), Some(Run::new(100, 299)));
        space.audit();
        assert_eq!((space.allocate(1), space.allocate(1)), (Some(Run::new(399, 1)), None));
    }

    /// As many runs as are worth sorting.
    #[test]
    fn a_long_batch_that_is_wrong_changes_nothing_either() {
        let blocks_max = 4 * crate::merge::SORTED_RUNS_MIN as u64;
        let space = Space::with_shards(blocks_max, 64, blocks_max);
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
    fn a_closed_group_takes_frees_and_serves_nobody() {
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
