//! Free blocks without room in the file system, because the store released it (INV-41). They are no free blocks of the allocator, so no write meets one;
//! the growth of the file takes their room again before it lengthens the file.
//!
//! Holes are known in memory only: the space image has them as free blocks. An opening makes holes of all long free runs (R10: after the
//! log's records have taken theirs). A hole is *punched* once the device has been asked for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_base::Run;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::manager::SpaceManager;

/// Blocks that share a mark of a recent free: 1 MiB.
const PIECE_BLOCKS: u64 = 256;
/// Holes at most: a few megabytes of memory, and a fraction of a second to allocate the room of the rest at an opening.
const HOLES_MAX: usize = 65_536;
/// A new hole has at most this number of blocks: 16 MiB. The file system blocks writes to the file while it punches one.
pub const HOLE_BLOCKS_MAX: u32 = 4_096;
/// A hole beside no other has at least this number of blocks, 64 KiB: shorter ones cut the file into more extents than they save.
pub const HOLE_BLOCKS_MIN: u32 = 16;

/// A hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Its blocks.
    pub run: Run,
    /// True if the device was asked to punch it.
    pub is_punched: bool,
}

/// Holes by first block, each with its number of blocks.
#[derive(Default)]
struct Maps {
    punched: BTreeMap<u64, u32>,
    /// Those that are not punched.
    new: BTreeMap<u64, u32>,
}

impl Maps {
    fn of(&mut self, is_punched: bool) -> &mut BTreeMap<u64, u32> {
        if is_punched { &mut self.punched } else { &mut self.new }
    }
}

/// Makes one hole of `run` and its neighbours in the same group: short holes beside others do not count towards the limit.
fn join(map: &mut BTreeMap<u64, u32>, run: Run, group_blocks: u64) {
    let (mut start, mut end) = (run.block, run.end());
    if let Some((&block, &blocks)) = map.range(..run.block).next_back()
        && block + u64::from(blocks) == start
        && block / group_blocks == start / group_blocks
    {
        start = block;
    }
    if let Some(&blocks) = map.get(&end)
        && end / group_blocks == run.block / group_blocks
    {
        map.remove(&end);
        end += u64::from(blocks);
    }
    if start < run.block {
        map.remove(&run.block);
    }
    assert!(start <= run.block && run.end() <= end, "a hole gets no shorter (INV-41)");
    map.insert(start, (end - start) as u32);
}

/// The holes of a store.
pub struct Holes {
    /// Blocks of a group: holes of different groups are not joined.
    group_blocks: u64,
    /// A bit for each piece in which a block was freed since the last look.
    touched: Box<[AtomicU64]>,
    is_touched: AtomicBool,
    maps: Mutex<Maps>,
    /// The blocks of all holes, those in the hands of a caller included.
    blocks: AtomicU64,
}

impl Holes {
    /// No holes, in a space of `blocks_max` blocks in groups of `group_blocks`.
    #[must_use]
    pub fn new(blocks_max: u64, group_blocks: u32) -> Self {
        let words = usize::try_from(blocks_max.div_ceil(64 * PIECE_BLOCKS)).unwrap_or(usize::MAX);
        Self {
            group_blocks: u64::from(group_blocks),
            touched: (0..words).map(|_| AtomicU64::new(0)).collect(),
            is_touched: AtomicBool::new(true),
            maps: Mutex::default(),
            blocks: AtomicU64::new(0),
        }
    }

    /// The blocks of all holes.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// All holes, in ascending order.
    #[must_use]
    pub fn all(&self) -> Vec<Hole> {
        let maps = self.maps.lock();
        let of = |map: &BTreeMap<u64, u32>, is_punched| -> Vec<Hole> {
            map.iter().map(|(&block, &blocks)| Hole { run: Run::new(block, blocks), is_punched }).collect()
        };
        let mut all = [of(&maps.punched, true), of(&maps.new, false)].concat();
        drop(maps);
        all.sort_unstable_by_key(|hole| hole.run.block);
        all
    }

    /// Returns true if one more hole is too many.
    pub fn is_full(&self) -> bool {
        let maps = self.maps.lock();
        maps.punched.len() + maps.new.len() >= HOLES_MAX
    }

    /// Returns true if a hole ends before `run` or starts after it: the run can be punched without one more extent of the file.
    fn is_beside(&self, run: Run) -> bool {
        let maps = self.maps.lock();
        [&maps.punched, &maps.new].into_iter().any(|map| {
            let before = map.range(..run.block).next_back();
            before.is_some_and(|(&block, &blocks)| block + u64::from(blocks) == run.block)
                || map.contains_key(&run.end())
        })
    }

    /// Returns true if a hole is not punched.
    pub fn is_any_new(&self) -> bool {
        !self.maps.lock().new.is_empty()
    }

    /// Notes a freed run: its blocks were in use a moment ago.
    #[inline]
    pub(crate) fn freed(&self, run: Run) {
        assert!(run.blocks > 0, "a freed run has blocks");
        for piece in run.block / PIECE_BLOCKS..=(run.end() - 1) / PIECE_BLOCKS {
            if let Some(word) = self.touched.get((piece / 64) as usize)
                && word.load(Ordering::Relaxed) & (1 << (piece % 64)) == 0
            {
                word.fetch_or(1 << (piece % 64), Ordering::Relaxed);
            }
        }
        if !self.is_touched.load(Ordering::Relaxed) {
            self.is_touched.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if a block was freed since the last look.
    pub fn is_touched(&self) -> bool {
        self.is_touched.load(Ordering::Relaxed)
    }

    /// The pieces in which a block was freed since the last look; forgets them.
    #[must_use]
    pub fn look(&self) -> Touched {
        self.is_touched.store(false, Ordering::Relaxed);
        Touched(self.touched.iter().map(|word| word.swap(0, Ordering::Relaxed)).collect())
    }

    /// Adds a hole whose blocks the caller has taken out of the allocator.
    pub(crate) fn insert(&self, run: Run) {
        self.blocks.fetch_add(u64::from(run.blocks), Ordering::AcqRel);
        self.put_back(Hole { run, is_punched: false });
    }

    /// Puts back a hole that the caller has taken.
    pub fn put_back(&self, Hole { run, is_punched }: Hole) {
        let mut maps = self.maps.lock();
        for map in [&maps.punched, &maps.new] {
            let before = map.range(..run.end()).next_back();
            assert!(
                run.blocks > 0
                    && before.is_none_or(|(&block, &blocks)| block + u64::from(blocks) <= run.block),
                "hole {run} overlaps {before:?} (INV-41)"
            );
        }
        let map = maps.of(is_punched);
        map.insert(run.block, run.blocks);
        if is_punched {
            join(map, run, self.group_blocks);
        }
    }

    /// Takes the lowest hole, at most `blocks_max` blocks of it, and no more than a new hole has. Its blocks still count.
    #[must_use]
    pub fn take_lowest(&self, blocks_max: u64) -> Option<Hole> {
        let mut maps = self.maps.lock();
        let first = |map: &BTreeMap<u64, u32>| map.first_key_value().map_or(u64::MAX, |(&block, _)| block);
        let is_punched = first(&maps.punched) < first(&maps.new);
        let map = maps.of(is_punched);
        let (block, blocks) = map.pop_first()?;
        let most = blocks_max.clamp(u64::from(HOLE_BLOCKS_MIN), u64::from(HOLE_BLOCKS_MAX));
        let taken = u64::from(blocks).min(most) as u32;
        if taken < blocks {
            map.insert(block + u64::from(taken), blocks - taken);
        }
        Some(Hole { run: Run::new(block, taken), is_punched })
    }

    /// Takes the highest hole that is not punched. Its blocks still count.
    #[must_use]
    pub fn take_not_punched(&self) -> Option<Hole> {
        let (block, blocks) = self.maps.lock().new.pop_last()?;
        Some(Hole { run: Run::new(block, blocks), is_punched: false })
    }

    /// Notes that the blocks of a hole that the caller took are free blocks of the allocator again.
    pub(crate) fn filled(&self, run: Run) {
        let before = self.blocks.fetch_sub(u64::from(run.blocks), Ordering::AcqRel);
        assert!(before >= u64::from(run.blocks), "more blocks are filled than are in holes");
    }
}

/// The pieces of a space in which a block was freed between two looks.
pub struct Touched(Box<[u64]>);

impl Touched {
    /// The parts of `run` that are in other pieces, of `HOLE_BLOCKS_MIN` to `HOLE_BLOCKS_MAX` blocks each.
    pub fn quiet_parts(&self, run: Run) -> impl Iterator<Item = Run> + '_ {
        let (mut at, end) = (run.block, run.end());
        let is_touched = |block: u64| {
            let piece = block / PIECE_BLOCKS;
            self.0.get((piece / 64) as usize).is_none_or(|word| word & (1 << (piece % 64)) != 0)
        };
        let next_piece = |block: u64| (block / PIECE_BLOCKS + 1) * PIECE_BLOCKS;
        let parts = std::iter::from_fn(move || {
            while at < end && is_touched(at) {
                at = next_piece(at);
            }
            let first = at;
            while at < end && !is_touched(at) && at - first < u64::from(HOLE_BLOCKS_MAX) {
                at = next_piece(at).min(end).min(first + u64::from(HOLE_BLOCKS_MAX));
            }
            (first < end).then(|| Run::new(first, (at - first) as u32))
        });
        parts.filter(|part| part.blocks >= HOLE_BLOCKS_MIN)
    }
}

/// The parts of a free run that may become holes.
fn parts_for_holes(touched: Option<&Touched>, run: Run) -> Vec<Run> {
    if let Some(touched) = touched {
        return touched.quiet_parts(run).collect();
    }
    let starts = (run.block..run.end()).step_by(HOLE_BLOCKS_MAX as usize);
    starts.map(|at| Run::new(at, (run.end() - at).min(u64::from(HOLE_BLOCKS_MAX)) as u32)).collect()
}

impl SpaceManager {
    /// The holes.
    pub fn holes(&self) -> &Holes {
        &self.holes
    }

    /// Makes a hole of `run`. Returns false if a part of it is in use or needed for the free blocks that applies may take, or if there are
    /// too many holes.
    ///
    /// Only free blocks of the allocator become holes, so no superblock that may count names them, nor does a reader reach them (INV-41).
    pub fn make_hole(self: &Arc<Self>, run: Run) -> bool {
        // Reserved until they are taken: no record that is admitted meanwhile counts on them (R3).
        let Ok(_reservation) = self.claim_apply(u64::from(run.blocks)) else { return false };
        let is_taken = !self.holes.is_full() && self.allocator().take(run).is_ok();
        if is_taken {
            self.holes.insert(run);
            self.settle_withheld();
        }
        is_taken
    }

    /// Makes free blocks of a hole that the caller has taken, and that has room again.
    pub fn fill_hole(&self, hole: Hole) {
        self.give_back(&[hole.run]);
        self.holes.filled(hole.run);
        self.settle_withheld();
    }

    /// Free runs that may become holes, from the highest group downwards, `blocks` blocks at most: long ones in which no block was freed
    /// since the look `touched`; without a look, all long ones and those beside holes.
    pub fn runs_for_holes(&self, touched: Option<&Touched>, blocks: u64) -> Vec<Run> {
        let group_blocks = u64::from(self.allocator().group_blocks());
        let end = self.data_end().div_ceil(group_blocks) as usize;
        let least = if touched.is_some() { HOLE_BLOCKS_MIN } else { 1 };
        let (mut found, mut rest) = (Vec::new(), blocks);
        for group in (0..end).rev() {
            for run in self.allocator().long_runs_of(group, least).into_iter().rev() {
                if run.blocks < HOLE_BLOCKS_MIN && !self.holes.is_beside(run) {
                    continue;
                }
                for part in parts_for_holes(touched, run) {
                    let taken = u64::from(part.blocks).min(rest) as u32;
                    if taken < part.blocks.min(HOLE_BLOCKS_MIN) {
                        return found;
                    }
                    rest -= u64::from(taken);
                    found.push(Run::new(part.end() - u64::from(taken), taken));
                }
            }
        }
        assert!(found.iter().map(|run| u64::from(run.blocks)).sum::<u64>() <= blocks, "more than asked for");
        found
    }

    /// The groups that have a hole.
    pub fn groups_with_holes(&self) -> Vec<Run> {
        let group_blocks = u64::from(self.allocator().group_blocks());
        let mut groups: Vec<u64> =
            self.holes.all().iter().map(|hole| hole.run.block / group_blocks).collect();
        groups.dedup();
        groups.into_iter().map(|group| Run::new(group * group_blocks, group_blocks as u32)).collect()
    }

    /// The number of groups that are one hole, or several that leave no other block.
    pub fn hole_groups(&self) -> u64 {
        if self.holes.blocks() == 0 {
            return 0;
        }
        let group_blocks = u64::from(self.allocator().group_blocks());
        let (mut count, mut group, mut sum) = (0, u64::MAX, 0);
        for hole in self.holes.all() {
            let of = hole.run.block / group_blocks;
            (group, sum) = if of == group {
                (of, sum + u64::from(hole.run.blocks))
            } else {
                (of, u64::from(hole.run.blocks))
            };
            count += u64::from(sum == group_blocks);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_parts_leave_out_recent_frees() {
        let holes = Holes::new(100_000, 4_096);
        holes.freed(Run::new(600, 300));
        let touched = holes.look();
        let parts = |run| touched.quiet_parts(run).collect::<Vec<_>>();
        assert_eq!(parts(Run::new(500, 600)), [Run::new(1_024, 76)], "12 blocks before the free are too few");
        assert_eq!(parts(Run::new(490, 20)), [Run::new(490, 20)]);
        assert_eq!(parts(Run::new(1_500, 5_000)), [Run::new(1_500, 4_096), Run::new(5_596, 904)]);
        assert_eq!(parts(Run::new(520, 400)), []);
        assert!(!holes.is_touched());
        let (after, all) = (holes.look(), Run::new(500, 600));
        assert_eq!(after.quiet_parts(all).collect::<Vec<_>>(), [all], "a look forgets");
    }

    #[test]
    fn holes_are_taken_in_parts_and_count_until_they_are_filled() {
        let holes = Holes::new(100_000, 4_096);
        [Run::new(100, 64), Run::new(300, 50)].into_iter().for_each(|run| holes.insert(run));
        let high = holes.take_not_punched().unwrap();
        assert_eq!((high.run, high.is_punched, holes.blocks()), (Run::new(300, 50), false, 114));
        holes.put_back(Hole { is_punched: true, ..high });
        let low = holes.take_lowest(20).unwrap();
        assert_eq!(low.run, Run::new(100, 20));
        holes.filled(low.run);
        assert_eq!(holes.take_not_punched().map(|hole| hole.run), Some(Run::new(120, 44)));
        assert_eq!((holes.take_not_punched(), holes.blocks()), (None, 94));
        assert_eq!(
            holes.take_lowest(1).map(|hole| hole.run),
            Some(Run::new(300, 16)),
            "not less than the minimum"
        );
    }

    #[test]
    fn punched_neighbours_are_one_hole_of_a_group() {
        let holes = Holes::new(100_000, 4_096);
        for run in [Run::new(4_000, 96), Run::new(4_096, 50), Run::new(4_150, 16), Run::new(4_146, 4)] {
            assert_eq!(holes.is_beside(run), run.block != 4_000 && run.block != 4_150, "{run}");
            holes.insert(run);
            let taken = holes.take_not_punched().unwrap();
            holes.put_back(Hole { is_punched: true, ..taken });
        }
        let runs: Vec<Run> = holes.all().iter().map(|hole| hole.run).collect();
        assert_eq!(runs, [Run::new(4_000, 96), Run::new(4_096, 70)]);
        assert_eq!(holes.blocks(), 166);
        let holes = Holes::new(100_000, 8_192);
        for block in [0, 4_096] {
            holes.insert(Run::new(block, HOLE_BLOCKS_MAX));
            holes.put_back(Hole { is_punched: true, ..holes.take_not_punched().unwrap() });
        }
        assert_eq!(holes.all().len(), 1);
        let taken = holes.take_lowest(u64::MAX).map(|hole| hole.run);
        assert_eq!(taken, Some(Run::new(0, 4_096)), "room is taken in steps");
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn overlapping_holes_are_refused() {
        let holes = Holes::new(1_000, 4_096);
        holes.insert(Run::new(100, 64));
        holes.insert(Run::new(90, 20));
    }
}
