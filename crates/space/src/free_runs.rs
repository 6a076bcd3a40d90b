//! The allocator without its lock: the arrays of all groups, the index over them, and the borders between groups
//! that are within free space.
//!
//! Policy: exact best fit over the free runs of the groups, lowest address first, cut from the front. Anything
//! looser (fewer classes, next fit, avoiding slivers) fragments the device within a few turnovers
//! (docs/space.md). Runs across borders (`cross`) are searched only if no group has a fitting run, so a
//! request fails only if no contiguous run fits.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use shoal_base::Run;
use smallvec::SmallVec;

use crate::SpaceError;
use crate::bits::GroupSet;
use crate::classes::CLASS_BLOCKS_MAX;
use crate::geometry::{GROUP_BLOCKS_MAX, Geometry, Merged};
use crate::group::GroupRuns;
use crate::index::{Found, RunIndex};
use crate::span::Span;

/// Bins of the histogram: bin `i` counts the free runs of 2^i to 2^(i+1) - 1 blocks within groups.
pub const HISTOGRAM_BINS: usize = 17;

/// The owner of shared groups.
pub(crate) const SHARED: u16 = 0;

/// The runs of one allocation; up to four without memory on the heap.
pub type Runs = SmallVec<[Run; 4]>;

/// The record of one group: one cache line.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Group {
    pub(crate) runs: GroupRuns,
    pub(crate) free_blocks: u32,
    /// The owner whose requests it serves.
    pub(crate) owner: u16,
    /// A closed group serves no requests at all: it is being emptied. Its runs are in no index.
    pub(crate) is_closed: bool,
    /// How many of its runs are longer than any value, 4 MiB.
    pub(crate) large_runs: u8,
}

const _: () = assert!(size_of::<Group>() == 64, "65,536 groups of a 16 TiB device cost 4 MiB");

const _: () = assert!(GROUP_BLOCKS_MAX / CLASS_BLOCKS_MAX <= 64, "they are counted in a byte");

impl Group {
    /// Notes that the runs of the group became `now` instead of `before`.
    #[inline]
    pub(crate) fn count_large(&mut self, before: &[Option<Span>], now: &[Option<Span>]) {
        let large = |spans: &[Option<Span>]| {
            spans.iter().flatten().map(|span| u8::from(span.blocks > CLASS_BLOCKS_MAX)).sum::<u8>()
        };
        self.large_runs = self.large_runs + large(now) - large(before);
    }

    /// Returns true if it serves all requests.
    pub(crate) fn is_open(&self) -> bool {
        self.owner == SHARED && !self.is_closed
    }
}

/// The free runs of a space.
pub(crate) struct FreeRuns {
    pub(crate) geometry: Geometry,
    pub(crate) groups: Vec<Group>,
    /// Over the groups that are open.
    pub(crate) index: RunIndex,
    /// Over the groups of each owner.
    pub(crate) owned: BTreeMap<u16, RunIndex>,
    /// How often a group got another owner.
    pub(crate) owner_changes: u64,
    /// Group g is in here if its last block and the first block of group g + 1 are free, and both are open.
    pub(crate) joined: GroupSet,
    /// No run across a border is longer than this. Exact after a search, an upper bound afterwards.
    pub(crate) cross_blocks_max: u64,
    pub(crate) free_blocks: u64,
}

impl FreeRuns {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            groups: vec![Group::default(); geometry.groups()],
            index: RunIndex::new(geometry),
            owned: BTreeMap::new(),
            owner_changes: 0,
            joined: GroupSet::new(geometry.groups()),
            cross_blocks_max: 0,
            free_blocks: 0,
        }
    }

    /// Sets the free runs of a group that has none yet.
    pub(crate) fn set_group(&mut self, group: usize, of_group: &GroupRuns) {
        let state = &mut self.groups[group];
        assert!(state.free_blocks == 0 && state.is_open(), "group {group} was set before");
        state.runs = of_group.clone();
        state.free_blocks = of_group.iter().map(|span| span.blocks).sum();
        of_group.iter().for_each(|span| state.count_large(&[], &[Some(span)]));
        self.free_blocks += u64::from(state.free_blocks);
        of_group.iter().for_each(|span| self.index.insert(group, span));
        for span in [of_group.first(), of_group.last()].into_iter().flatten() {
            self.note_borders(group, span);
        }
    }

    /// Frees a run; all or nothing.
    #[inline]
    pub(crate) fn free(&mut self, run: Run) -> Result<(), SpaceError> {
        self.free_at(run, None)
    }

    /// Like [`Self::free`]; `place` is the run's place in the array of its group, if known.
    #[inline]
    pub(crate) fn free_at(&mut self, run: Run, place: Option<usize>) -> Result<(), SpaceError> {
        self.geometry.check(run)?;
        let start = self.geometry.start_of(run.block);
        if u64::from(start) + u64::from(run.blocks) > u64::from(self.geometry.group_blocks()) {
            self.check_used(run)?;
            for (group, span) in self.geometry.pieces(run) {
                let inserted = self.insert(group, span, None);
                assert!(inserted.is_ok(), "run {run} was checked to be in use");
            }
            return Ok(());
        }
        // The common case, one group: the check and the insertion are one search.
        let group = self.geometry.group_of(run.block);
        let span = Span { start, blocks: run.blocks };
        let geometry = self.geometry;
        let refusal = |overlap| SpaceError::AlreadyFree { run, overlap: geometry.run(group, overlap) };
        self.insert(group, span, place).map_err(refusal)
    }

    /// Refuses a run of which any part is not free.
    pub(crate) fn check_free(&self, run: Run) -> Result<(), SpaceError> {
        for (group, span) in self.geometry.pieces(run) {
            if let Some(overlap) = self.groups[group].runs.first_used(span) {
                return Err(SpaceError::NotFree { run, overlap: self.geometry.run(group, overlap) });
            }
        }
        Ok(())
    }

    /// The free runs within open groups, by power of two.
    pub(crate) fn histogram(&self) -> [u64; HISTOGRAM_BINS] {
        let mut bins = [0; HISTOGRAM_BINS];
        for state in self.groups.iter().filter(|state| state.is_open()) {
            state.runs.iter().for_each(|span| bins[span.blocks.ilog2() as usize] += 1);
        }
        bins
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let arrays: usize = self.groups.iter().map(|state| state.runs.heap_bytes()).sum();
        let owned: usize = self.owned.values().map(RunIndex::heap_bytes).sum();
        let groups = self.groups.capacity() * size_of::<Group>();
        arrays + groups + owned + self.joined.heap_bytes() + self.index.heap_bytes()
    }

    /// Takes the free blocks of a run and returns their number.
    pub(crate) fn take_free_part(&mut self, run: Run) -> Result<u64, SpaceError> {
        self.geometry.check(run)?;
        let free_before = self.free_blocks;
        for (group, span) in self.geometry.pieces(run) {
            while let Some(part) = self.groups[group].runs.first_free(span) {
                self.remove(group, part);
            }
        }
        Ok(free_before - self.free_blocks)
    }

    /// A run of exactly `blocks` blocks.
    #[inline]
    pub(crate) fn allocate(&mut self, blocks: u32) -> Option<Run> {
        assert!(blocks > 0, "a run has at least one block");
        match self.index.best_fit(blocks) {
            Some(found) => Some(self.cut(found, blocks)),
            None => self.allocate_across(blocks).or_else(|| self.borrow(blocks)),
        }
    }

    /// The same, from a run across borders.
    fn allocate_across(&mut self, blocks: u32) -> Option<Run> {
        if self.cross_blocks_max < u64::from(blocks) {
            return None;
        }
        let across = self.search_cross(u64::from(blocks)).best_fit?;
        let run = Run::new(across.block, blocks);
        self.take_checked(run);
        Some(run)
    }

    /// A run of `blocks` blocks, else the longest run.
    pub(crate) fn allocate_at_most(&mut self, blocks: u32) -> Option<Run> {
        if let Some(run) = self.allocate(blocks) {
            return Some(run);
        }
        let longest = self.longest()?;
        assert!(longest.blocks < blocks, "{longest} fits {blocks} blocks but was not found");
        self.take_checked(longest);
        Some(longest)
    }

    /// Runs of `blocks` blocks together, at most `runs_max` of them: one if there is one, else the longest first
    /// and the last piece by best fit. All or nothing.
    pub(crate) fn allocate_runs(&mut self, blocks: u32, runs_max: usize) -> Option<Runs> {
        assert!(blocks > 0, "a run has at least one block");
        let mut out = Runs::new();
        let mut left = blocks;
        while self.free_blocks >= u64::from(left) && out.len() < runs_max {
            if let Some(run) = self.allocate(left) {
                out.push(run);
                return Some(out);
            }
            // Pieces only get shorter: is there any hope with the remaining ones?
            let pieces_left = (runs_max - out.len()) as u64;
            let hopeful =
                |longest: &Run| u64::from(longest.blocks).saturating_mul(pieces_left) >= u64::from(left);
            let Some(longest) = self.longest().filter(hopeful) else { break };
            self.take_checked(longest);
            out.push(longest);
            left -= longest.blocks;
        }
        for run in out {
            let freed = self.free(run);
            assert!(freed.is_ok(), "{run} was taken a moment ago: {freed:?}");
        }
        None
    }

    /// The longest run, also across borders; at most `u32::MAX` blocks of it. The lowest of its length.
    pub(crate) fn longest(&mut self) -> Option<Run> {
        let runs = [self.longest_shared(), self.longest_owned()].into_iter().flatten();
        runs.max_by_key(|run| (run.blocks, Reverse(run.block)))
    }

    fn longest_shared(&mut self) -> Option<Run> {
        let within = self.index.longest()?;
        if self.cross_blocks_max > u64::from(within.blocks)
            && let Some(across) = self.search_cross(u64::MAX).longest
        {
            // A run across a border is longer than its parts, but the longest within a group may be elsewhere.
            if across.blocks > u64::from(within.blocks) {
                return Some(Run::new(across.block, u32::try_from(across.blocks).unwrap_or(u32::MAX)));
            }
        }
        let span = self.span_of(within).1;
        Some(self.geometry.run(within.group, span))
    }

    /// Returns true if all of a run is free.
    pub(crate) fn is_free(&self, run: Run) -> bool {
        self.geometry.check(run).is_ok()
            && self
                .geometry
                .pieces(run)
                .all(|(group, span)| self.groups[group].runs.position_covering(span).is_some())
    }

    /// All free runs in ascending order, merged across borders.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let of_group = move |(group, state)| {
            let state: &Group = state;
            state.runs.iter().map(move |span| self.geometry.run(group, span))
        };
        Merged::new(self.groups.iter().enumerate().flat_map(of_group))
    }

    /// Takes a run that is wholly free.
    pub(crate) fn take_checked(&mut self, run: Run) {
        for (group, span) in self.geometry.pieces(run) {
            self.remove(group, span);
        }
    }

    /// Refuses a run of which any part is free.
    pub(crate) fn check_used(&self, run: Run) -> Result<(), SpaceError> {
        for (group, span) in self.geometry.pieces(run) {
            if let Some(overlap) = self.groups[group].runs.first_free(span) {
                return Err(SpaceError::AlreadyFree { run, overlap: self.geometry.run(group, overlap) });
            }
        }
        Ok(())
    }

    /// Cuts `blocks` blocks from the front of a run that the index found.
    #[inline]
    pub(crate) fn cut(&mut self, found: Found, blocks: u32) -> Run {
        let (at, span) = self.span_of(found);
        let part = Span { start: span.start, blocks };
        self.remove_at(found.group, at, part, at);
        self.geometry.run(found.group, part)
    }

    /// The place of a run that an index found, and the run itself.
    #[inline]
    pub(crate) fn span_of(&self, found: Found) -> (usize, Span) {
        let runs = &self.groups[found.group].runs;
        let at = match found.start {
            Some(start) => runs.position_covering(Span { start, blocks: found.blocks }),
            None => runs.position_of_length(found.blocks, 0),
        };
        let Some(at) = at else { unreachable!("the index found {found:?}, which the group does not have") };
        let span = runs.at(at);
        assert_eq!(span.blocks, found.blocks, "the index and the array of group {} differ", found.group);
        (at, span)
    }

    #[inline]
    pub(crate) fn insert(&mut self, group: usize, span: Span, place: Option<usize>) -> Result<(), Span> {
        let state = &mut self.groups[group];
        let inserted = state.runs.insert_at(span, place, self.geometry.group_blocks())?;
        state.count_large(&[inserted.left, inserted.right], &[Some(inserted.merged)]);
        state.free_blocks += span.blocks;
        self.free_blocks += u64::from(span.blocks);
        if state.is_closed {
            return Ok(());
        }
        let owner = state.owner;
        let index = if owner == SHARED { Some(&mut self.index) } else { self.owned.get_mut(&owner) };
        let Some(index) = index else { unreachable!("group {group} belongs to {owner}, which has no index") };
        if let Some(left) = inserted.left {
            index.remove(group, left, &state.runs, 0);
        }
        if let Some(right) = inserted.right {
            index.remove(group, right, &state.runs, 0);
        }
        index.insert(group, inserted.merged);
        if owner == SHARED {
            self.note_borders(group, inserted.merged);
        } else if inserted.merged.blocks == self.geometry.group_blocks() {
            self.shrink(owner, group);
        }
        Ok(())
    }

    /// Takes `span` out of the run of `group` that holds all of it.
    pub(crate) fn remove(&mut self, group: usize, span: Span) {
        let at = self.groups[group].runs.position_covering(span);
        let Some(at) = at else { unreachable!("{span:?} of group {group} is not free") };
        self.remove_at(group, at, span, 0);
    }

    /// Takes `span` out of the run at place `at`; the group has no run of the same length before place `from`.
    #[inline]
    fn remove_at(&mut self, group: usize, at: usize, span: Span, from: usize) {
        let state = &mut self.groups[group];
        let was_bitmap = state.runs.is_bitmap();
        let removed = state.runs.remove(at, span, self.geometry.group_blocks());
        state.count_large(&[Some(removed.whole)], &[removed.before, removed.after]);
        state.free_blocks -= span.blocks;
        self.free_blocks -= u64::from(span.blocks);
        if state.is_closed {
            return;
        }
        let owner = state.owner;
        let index = if owner == SHARED { Some(&mut self.index) } else { self.owned.get_mut(&owner) };
        let Some(index) = index else { unreachable!("group {group} belongs to {owner}, which has no index") };
        // A place in one form is meaningless in the other.
        let from = if was_bitmap == state.runs.is_bitmap() { from } else { 0 };
        index.remove(group, removed.whole, &state.runs, from);
        if let Some(before) = removed.before {
            index.insert(group, before);
        }
        if let Some(after) = removed.after {
            index.insert(group, after);
        }
        if span.start == 0 && group > 0 {
            self.joined.remove(group - 1);
        }
        if span.end() == self.geometry.group_blocks() {
            self.joined.remove(group);
        }
    }
}
