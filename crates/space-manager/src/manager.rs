//! The space of a store: blocks that may be allocated, blocks reserved for applies (R3), and freed blocks that may not be
//! reused yet (R9).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Weak;

use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shoal_base::sync::{Mutex, MutexGuard};
use shoal_base::{Lsn, Run};
use shoal_common::error::Error;
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::options::UNIT_BLOCKS;
use shoal_space::Space;
use smallvec::SmallVec;

use crate::closed::ClosedGroups;
use crate::holes::Holes;
use crate::scattered::SHORT_BLOCKS_MAX;
use crate::unread::Unread;

/// A bucket's number with the allocator; 0 has no separate space.
pub type OwnerId = u16;

/// Blocks of the tree that a record may cost at its apply: its leaf, and its share of splits and inner pages.
pub const TREE_BLOCKS_PER_RECORD: u64 = 2;

/// Runs of one value at most.
pub const RUNS_MAX: usize = 4096;

/// A value in more runs than these shows that free space is in pieces.
const FEW_RUNS: usize = 4;

/// Tries of a value after other values took the largest run first.
const MISSES_MAX: usize = 64;

/// The read epoch of a root. Every view of a tablet with the same root holds it: once it is gone, no reader can reach
/// pages and values that the next root does not have (R16).
pub struct ReadEpoch;

/// The runs that a publish freed.
#[derive(Debug, Default)]
pub struct FreedRuns {
    /// Pages, packed runs and others that no record of the log names.
    pub unnamed: Vec<Run>,
    /// Runs of values. Records may name them, up to the next one.
    pub named: Vec<Run>,
    /// No record above this one names them.
    pub last: Lsn,
}

impl FreedRuns {
    /// Runs that no record names.
    pub fn unnamed(runs: Vec<Run>) -> Self {
        Self { unnamed: runs, ..Self::default() }
    }

    fn blocks(&self) -> u64 {
        self.unnamed.iter().chain(&self.named).map(|run| u64::from(run.blocks)).sum()
    }
}

/// The frees of one publish: reusable once a flushed batch names its superblock and the previous read epoch is gone.
struct PendingFree {
    superblock: u64,
    epoch: Weak<ReadEpoch>,
    runs: FreedRuns,
    blocks: u64,
}

struct State {
    /// By tablet, oldest first: readers of an earlier root can delay later frees. The last one is the store's own, which has no readers.
    pending: Vec<VecDeque<PendingFree>>,
    pending_blocks: u64,
    /// The runs that only an archive holds; without one, always empty.
    unread: Unread,
}

/// The blocks of data: up to the published end of the device, which grows.
#[derive(Clone)]
pub struct DataBlocks {
    /// From the first block after superblocks and log to the published end.
    pub blocks: Range<u64>,
    /// Areas of the space image among them.
    pub areas: Vec<Run>,
}

/// The store's space.
pub struct SpaceManager {
    space: Space,
    state: Mutex<State>,
    /// Blocks that applies of the memtables' records may need. Changes acquire and release: a thread that sees a value's
    /// reservation gone also sees its blocks taken.
    reserved_blocks: AtomicU64,
    /// Blocks withheld from values, so that deletes and their applies work on a full device.
    pub(crate) withheld: AtomicU64,
    data: Mutex<DataBlocks>,
    /// Groups that are being emptied.
    pub closed: ClosedGroups,
    /// Free blocks without room in the file system. They are none of the allocator's free blocks.
    pub(crate) holes: Holes,
    /// Held while several runs are taken for a value: two values at a time could each take blocks that the other one
    /// relies on.
    pieces: Mutex<()>,
    /// True if a value got more than a few runs: free space is in pieces.
    splintered: AtomicBool,
    /// Values with their own runs, the number of these runs, and the values with more than a few. For statistics
    /// only.
    pub placed: [AtomicU64; 3],
}

/// The reason why a claim was refused.
#[derive(Clone, Copy, Debug)]
pub struct Shortage {
    /// Blocks that the claim needs.
    pub needed: u64,
    /// Blocks that were available for it.
    pub available: u64,
}

impl From<Shortage> for Error {
    fn from(shortage: Shortage) -> Self {
        Self::full(shortage.needed, shortage.available)
    }
}

impl SpaceManager {
    /// The manager of `space`, whose blocks of `data` without its areas are for objects and pages.
    pub fn new(space: Space, tablets: usize, blocks_max: u64, data: DataBlocks) -> Arc<Self> {
        let pending = (0..=tablets).map(|_| VecDeque::new()).collect();
        let manager = Self {
            // The cap may grow: pieces above the old one then count as touched.
            holes: Holes::new(blocks_max, space.group_blocks()),
            space,
            state: Mutex::new(State { pending, pending_blocks: 0, unread: Unread::default() }),
            reserved_blocks: AtomicU64::new(0),
            withheld: AtomicU64::new(0),
            data: Mutex::new(data),
            closed: ClosedGroups::default(),
            pieces: Mutex::new(()),
            splintered: AtomicBool::new(false),
            placed: Default::default(),
        };
        manager.settle_withheld();
        Arc::new(manager)
    }

    /// The number of tablets.
    pub(crate) fn tablets(&self) -> usize {
        self.state.lock().pending.len() - 1
    }

    /// The allocator.
    #[inline]
    pub fn allocator(&self) -> &Space {
        &self.space
    }

    /// Blocks of the device for objects and pages.
    pub fn data_blocks(&self) -> u64 {
        let data = self.data.lock();
        let areas: u64 = data.areas.iter().map(|area| u64::from(area.blocks)).sum();
        data.blocks.end.saturating_sub(data.blocks.start + areas)
    }

    /// Blocks that are missing for a value of `blocks` blocks.
    #[inline]
    pub fn missing(&self, blocks: u64) -> u64 {
        let reserved = self.reserved_blocks.load(Ordering::Acquire);
        (blocks + reserved + self.withheld()).saturating_sub(self.space.free_blocks())
    }

    /// Blocks that values may take now.
    #[inline]
    pub fn available(&self) -> u64 {
        let reserved = self.reserved_blocks.load(Ordering::Acquire);
        self.space.free_blocks().saturating_sub(reserved + self.withheld())
    }

    /// Reserved blocks.
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved_blocks.load(Ordering::Acquire)
    }

    /// Freed blocks that may not be reused yet.
    pub fn pending_blocks(&self) -> u64 {
        self.state.lock().pending_blocks
    }

    /// Those of them that only an archive holds.
    pub fn unread_blocks(&self) -> u64 {
        self.state.lock().unread.blocks()
    }

    /// From now on, runs that records above `floor` name are not reused (INV-47).
    pub fn keep_for_archive(&self, floor: Lsn) {
        self.state.lock().unread.start(floor);
    }

    /// Takes a free run of a value that record `lsn` names, which is applied, so that it is not reused before the archive has read it.
    /// Returns false if a part of the run is in use, or if applies may need the blocks (R3).
    pub fn hold_for_archive(self: &Arc<Self>, lsn: Lsn, run: Run) -> bool {
        // Reserved until they are taken. The blocks that are withheld from values may be used: they were not free before the crash.
        let Ok(_reservation) = self.try_reserve(u64::from(run.blocks), 0) else { return false };
        let is_taken = self.space.take(run).is_ok();
        if is_taken {
            let mut state = self.state.lock();
            state.pending_blocks += u64::from(run.blocks);
            let runs = state.unread.pass(lsn, vec![run]);
            assert!(runs.is_empty(), "only runs of records above the floor are held (INV-47)");
        }
        is_taken
    }

    /// Makes the runs reusable that only the archive held, of records up to `floor`. Returns the number of blocks.
    pub fn release_unread(&self, floor: Lsn) -> u64 {
        let mut state = self.state.lock();
        let ready = state.unread.release(floor);
        self.reuse(state, &ready)
    }

    /// A run of exactly `blocks` blocks.
    pub fn allocate(&self, blocks: u32) -> Option<Run> {
        self.space.allocate(blocks)
    }

    /// A run of exactly `blocks` blocks from a free run of at most `hole_blocks`.
    pub fn allocate_in_hole(&self, blocks: u32, hole_blocks: u32) -> Option<Run> {
        self.space.allocate_in_hole(blocks, hole_blocks)
    }

    /// A run for pages, of at most `blocks` blocks: the longest free run if all are shorter. While long runs are being made, a short one if
    /// there is any.
    pub fn allocate_for_pages(&self, blocks: u32) -> Option<Run> {
        let is_short = self.closed.fills_short_runs();
        let short = if is_short { self.allocate_in_hole(1, SHORT_BLOCKS_MAX) } else { None };
        short.or_else(|| self.allocate_at_most(blocks))
    }

    /// A run of `blocks` blocks, or the longest free run. Opens groups that are being emptied if it needs them.
    pub fn allocate_at_most(&self, blocks: u32) -> Option<Run> {
        let allocate = || self.space.allocate_at_most(blocks);
        allocate().or_else(|| self.open_closed().then(allocate).flatten())
    }

    /// Takes `value_blocks` blocks for a value of `owner`, and reserves `apply_blocks` more for the apply of its
    /// record.
    ///
    /// # Errors
    /// [`Shortage`]: nothing was taken.
    pub fn claim_value(
        self: &Arc<Self>,
        owner: OwnerId,
        value_blocks: u64,
        apply_blocks: u64,
    ) -> Result<(Arc<Extents>, Reservation), Shortage> {
        // The value's blocks are reserved until they are taken: no other claim counts on them meanwhile.
        let mut reservation =
            self.try_reserve(value_blocks + apply_blocks, self.withheld()).or_else(|shortage| {
                let injected = injected(Bug::ReserveGivenAway) && shortage.needed <= self.space.free_blocks();
                if injected { Ok(self.reserve_unchecked(shortage.needed)) } else { Err(shortage) }
            })?;
        let Some(runs) = self.allocate_value(owner, value_blocks) else {
            // The caller's reservation must not count.
            drop(reservation);
            return Err(Shortage { needed: value_blocks + apply_blocks, available: self.available() });
        };
        let taken: u64 = runs.iter().map(|run| u64::from(run.blocks)).sum();
        assert_eq!(taken, value_blocks, "a value has the blocks that were claimed for it (R3)");
        reservation.blocks = apply_blocks;
        self.release_reservation(value_blocks);
        Ok((Extents::new(self.clone(), runs), reservation))
    }

    /// Reserves blocks for the apply of a record that needs no other blocks now.
    ///
    /// # Errors
    /// [`Shortage`].
    #[inline]
    pub fn claim_apply(self: &Arc<Self>, blocks: u64) -> Result<Reservation, Shortage> {
        self.try_reserve(blocks, self.withheld())
    }

    /// Reserves blocks for the apply of a delete, from the reserve if necessary.
    ///
    /// # Errors
    /// [`Shortage`].
    #[inline]
    pub fn claim_delete(self: &Arc<Self>) -> Result<Reservation, Shortage> {
        self.try_reserve(TREE_BLOCKS_PER_RECORD, 0)
    }

    /// Reserves blocks for the moves of an apply, and leaves half of the reserve untouched, with `short` an eighth:
    /// moves free more than they take, once they are published.
    pub fn reserve_for_moves(self: &Arc<Self>, blocks: u64, short: bool) -> Option<Reservation> {
        self.try_reserve(blocks, self.withheld() / if short { 8 } else { 2 }).ok()
    }

    /// Reserves `blocks` blocks if that many are free besides other reservations and `kept`. The reservation is made
    /// before the check: if only one of two fits, the later one, or both, are refused.
    #[inline]
    fn try_reserve(self: &Arc<Self>, blocks: u64, kept: u64) -> Result<Reservation, Shortage> {
        let reservation = self.reserve_unchecked(blocks);
        let others = self.reserved_blocks.load(Ordering::Acquire).saturating_sub(blocks);
        let available = self.space.free_blocks().saturating_sub(others + kept);
        if blocks > available { Err(Shortage { needed: blocks, available }) } else { Ok(reservation) }
    }

    #[inline]
    fn reserve_unchecked(self: &Arc<Self>, blocks: u64) -> Reservation {
        self.reserved_blocks.fetch_add(blocks, Ordering::AcqRel);
        Reservation { space: self.clone(), blocks }
    }

    /// Releases the reservation of `blocks` blocks after its apply.
    #[inline]
    pub fn release_reservation(&self, blocks: u64) {
        let before = self.reserved_blocks.fetch_sub(blocks, Ordering::AcqRel);
        assert!(before >= blocks, "more blocks released than were reserved (R3)");
    }

    /// Reserves blocks for records found by recovery.
    pub fn reserve_recovered(&self, blocks: u64) {
        self.reserved_blocks.fetch_add(blocks, Ordering::AcqRel);
    }

    /// Opens the groups that are being emptied; returns true if there were any.
    pub fn open_closed(&self) -> bool {
        !self.closed.open(&self.space, |_| true).is_empty()
    }

    /// Returns true if a value got more than a few runs since the last call.
    pub fn take_splintered(&self) -> bool {
        self.splintered.swap(false, Ordering::Relaxed)
    }

    /// Runs for a value: one run, or whole units as far as there are runs for them (so that few units are split), or
    /// splinters, the largest first. Fails only if too few blocks are free.
    pub fn allocate_value(&self, owner: OwnerId, blocks: u64) -> Option<SmallVec<[Run; 1]>> {
        let runs = self
            .allocate_pieces(owner, blocks)
            .or_else(|| self.open_closed().then(|| self.allocate_pieces(owner, blocks)).flatten())?;
        if blocks == 0 {
            return Some(runs);
        }
        let is_splintered = runs.len() > FEW_RUNS;
        if is_splintered {
            self.splintered.store(true, Ordering::Relaxed);
        }
        let counts = [1, runs.len() as u64, u64::from(is_splintered)];
        self.placed.iter().zip(counts).for_each(|(sum, count)| _ = sum.fetch_add(count, Ordering::Relaxed));
        Some(runs)
    }

    fn allocate_pieces(&self, owner: OwnerId, blocks: u64) -> Option<SmallVec<[Run; 1]>> {
        let allocate = |blocks| match owner {
            0 => self.space.allocate(blocks),
            owner => self.space.allocate_own(owner, blocks),
        };
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        let mut rest = u32::try_from(blocks).ok()?;
        if rest > 0 {
            runs.extend(allocate(rest));
            rest -= runs.first().map_or(0, |run| run.blocks);
        }
        let one_at_a_time = (rest > 0).then(|| self.pieces.lock());
        let mut misses = 0;
        while rest > 0 && runs.len() < RUNS_MAX {
            let run = allocate(rest).or_else(|| {
                let largest = self.space.largest_run().min(rest);
                let whole = largest / UNIT_BLOCKS * UNIT_BLOCKS;
                allocate(if whole > 0 { whole } else { largest.max(1) })
            });
            match run {
                Some(run) => {
                    rest -= run.blocks;
                    runs.push(run);
                }
                // Another caller took the largest run meanwhile: look for the next one.
                None if misses < MISSES_MAX && self.space.largest_run() > 0 => misses += 1,
                None => break,
            }
        }
        drop(one_at_a_time);
        if rest == 0 {
            return Some(runs);
        }
        self.give_back(&runs);
        None
    }

    /// Notes the published size of the device: the new blocks may be freed.
    pub fn grown(&self, device_blocks: u64) {
        let before = std::mem::replace(&mut self.data.lock().blocks.end, device_blocks);
        assert!(before <= device_blocks, "the published data end before blocks that were handed out (R21)");
        self.settle_withheld();
    }

    /// Makes the space as large as the growth of the cap that superblock `superblock` published: `blocks_max` blocks in groups of
    /// `group_blocks`, of which `data` are for objects and pages. Of the blocks that it freed, `fresh` were never in use, and are
    /// handed out at once; `old` are, once a flushed batch names the superblock (R9). No group may be closed meanwhile.
    pub fn raise_cap(
        &self,
        (blocks_max, group_blocks): (u64, u32),
        data: DataBlocks,
        superblock: u64,
        fresh: &[Run],
        old: Vec<Run>,
    ) {
        self.open_closed();
        assert!(data.blocks.end >= self.data_end(), "a growth takes no data away");
        self.space.grow(blocks_max, group_blocks);
        *self.data.lock() = data;
        self.free_later(self.tablets(), superblock, Weak::new(), FreedRuns::unnamed(old));
        self.give_back(fresh);
        // Last: a larger reserve is taken from the new blocks, if there are any.
        self.settle_withheld();
    }

    /// The end of the data, in blocks.
    pub fn data_end(&self) -> u64 {
        self.data.lock().blocks.end
    }

    /// Takes `data` for the blocks of objects and pages, after superblock `superblock` moved the ring of the log. The blocks of the ring
    /// before are handed out once a flushed batch names that superblock (R9).
    pub fn move_log(&self, data: DataBlocks, superblock: u64, old: Option<Run>) {
        *self.data.lock() = data;
        let old = FreedRuns::unnamed(old.into_iter().collect());
        self.free_later(self.tablets(), superblock, Weak::new(), old);
        self.settle_withheld();
    }

    /// Removes runs outside of the data area, and runs of which a part is free, from the runs that an apply frees. Only a
    /// tree that contradicts itself or the space image under valid checksums names such runs: freed, they would be
    /// allocated, log and superblocks included, or twice.
    pub fn drop_foreign(&self, freed: &mut Vec<Run>) {
        let DataBlocks { blocks, areas } = self.data.lock().clone();
        freed.retain(|run| {
            let is_data = blocks.contains(&run.block)
                && run.end() <= blocks.end
                && !areas.iter().any(|area| area.overlaps(*run))
                && self.space.is_used(*run);
            if !is_data && !injected(Bug::ForeignFreed) {
                tracing::error!(
                    "{run} is outside the data or free, and is not freed: a tree names blocks that it cannot own"
                );
            }
            is_data || injected(Bug::ForeignFreed)
        });
    }

    /// Frees runs that no durable structure names.
    pub fn give_back(&self, runs: &[Run]) {
        if let Err(error) = self.space.free_batch(runs) {
            unreachable!("space that was handed out is returned once (R8, R9): {error}");
        }
        runs.iter().for_each(|&run| self.holes.freed(run));
    }

    /// Notes the runs that the publish of `superblock` freed in the queue of `tablet`.
    pub fn free_later(&self, tablet: usize, superblock: u64, epoch: Weak<ReadEpoch>, runs: FreedRuns) {
        let mut state = self.state.lock();
        let blocks = runs.blocks();
        state.pending_blocks += blocks;
        let newest = state.pending[tablet].back().map_or(0, |free| free.superblock);
        assert!(newest < superblock, "superblock {superblock} freed blocks after superblock {newest} (R9)");
        state.pending[tablet].push_back(PendingFree { superblock, epoch, runs, blocks });
    }

    /// Freed blocks that only readers hold back; `named` as in [`reclaim`](Self::reclaim).
    pub fn held_blocks(&self, named: u64) -> u64 {
        let state = self.state.lock();
        state.pending.iter().flatten().filter(|free| free.superblock <= named).map(|free| free.blocks).sum()
    }

    /// Makes freed runs reusable if they may be (R9); `named` is the newest superblock that a flushed batch names.
    /// Returns the number of blocks.
    pub fn reclaim(&self, named: u64) -> u64 {
        let mut ready = Vec::new();
        let mut state = self.state.lock();
        let State { pending, unread, .. } = &mut *state;
        for queue in pending {
            while let Some(free) = queue.pop_front_if(|free| {
                (free.superblock <= named || injected(Bug::ReusedAtOnce))
                    && (free.epoch.strong_count() == 0 || injected(Bug::ReusedUnderReaders))
            }) {
                let FreedRuns { unnamed, named, last } = free.runs;
                ready.extend(unnamed);
                ready.extend(unread.pass(last, named));
            }
        }
        self.reuse(state, &ready)
    }

    /// Makes pending runs free blocks of the allocator. Returns their number.
    fn reuse(&self, mut state: MutexGuard<'_, State>, ready: &[Run]) -> u64 {
        let blocks = ready.iter().map(|run| u64::from(run.blocks)).sum();
        assert!(state.pending_blocks >= blocks, "blocks are reused once (R9)");
        state.pending_blocks -= blocks;
        drop(state);
        if !ready.is_empty() {
            self.free_named(ready);
        }
        blocks
    }

    /// Frees runs that trees named. Trees with a common page under valid checksums free it twice: then the second run stays in use.
    fn free_named(&self, runs: &[Run]) {
        if self.space.free_batch(runs).is_ok() {
            runs.iter().for_each(|&run| self.holes.freed(run));
            return;
        }
        for &run in runs {
            match self.space.free(run) {
                Ok(()) => self.holes.freed(run),
                Err(error) => tracing::error!("{run} is not freed again, because trees share it: {error}"),
            }
        }
    }
}

/// Blocks of a write in flight. Dropped before it is [kept](Self::keep), it frees them. The write's memory holds it, so
/// that happens only after the device is done with them (R8).
pub struct Extents {
    space: Arc<SpaceManager>,
    runs: SmallVec<[Run; 1]>,
    kept: AtomicBool,
}

impl Extents {
    /// Allocated `runs`, which no record names yet.
    #[inline]
    pub fn new(space: Arc<SpaceManager>, runs: SmallVec<[Run; 1]>) -> Arc<Self> {
        Arc::new(Self { space, runs, kept: AtomicBool::new(false) })
    }

    /// The runs, in the order of the bytes.
    #[inline]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.blocks)).sum()
    }

    /// Gives back all but the first `blocks` blocks, of which the result takes care instead of these ones. Nothing may be written to them
    /// any more.
    #[must_use]
    pub fn shortened(&self, blocks: u64) -> Arc<Self> {
        let (mut rest, mut kept, mut gone) = (blocks, SmallVec::new(), SmallVec::new());
        for run in &self.runs {
            let count = rest.min(u64::from(run.blocks)) as u32;
            let parts = [
                (&mut kept, run.block, count),
                (&mut gone, run.block + u64::from(count), run.blocks - count),
            ];
            for (runs, block, blocks) in parts.into_iter().filter(|part| part.2 > 0) {
                runs.push(Run::new(block, blocks));
            }
            rest -= u64::from(count);
        }
        assert_eq!(rest, 0, "extents cannot become longer");
        let was_kept = self.kept.swap(true, Ordering::AcqRel);
        assert!(!was_kept, "blocks that a record names are freed by its apply (R9)");
        self.space.give_back(&gone);
        Self::new(self.space.clone(), kept)
    }

    /// Keeps the blocks: a record names them now, and the apply that removes the record frees them.
    #[inline]
    pub fn keep(&self) {
        self.kept.store(!injected(Bug::ExtentsNotKept), Ordering::Release);
    }
}

impl Drop for Extents {
    #[inline]
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Acquire) {
            self.space.give_back(&self.runs);
        }
    }
}

/// Blocks reserved for the apply of one record. Dropped before it is [kept](Self::keep), the reservation is void.
pub struct Reservation {
    space: Arc<SpaceManager>,
    blocks: u64,
}

impl Reservation {
    /// The number of blocks.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Joins this reservation and `other`.
    #[inline]
    pub fn and(mut self, other: Option<Self>) -> Self {
        self.blocks += other.map_or(0, Self::keep);
        self
    }

    /// Keeps the reservation: the record is in the memtable, whose apply releases it. Returns the number of blocks.
    #[inline]
    pub fn keep(mut self) -> u64 {
        std::mem::take(&mut self.blocks)
    }
}

impl Drop for Reservation {
    #[inline]
    fn drop(&mut self) {
        if self.blocks > 0 {
            self.space.release_reservation(self.blocks);
        }
    }
}
