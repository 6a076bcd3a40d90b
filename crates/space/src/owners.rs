//! Groups that serve one owner, and groups that serve nobody because they are being emptied.
//!
//! An owner's groups grow and shrink by whole groups: one more is taken from the shared ones when a request does not fit,
//! and one that comes wholly free goes back, except for a spare. Frees need not know the owner.

use shoal_base::Run;

use crate::free_runs::{FreeRuns, Group, SHARED};
use crate::group::{GroupRuns, Span};
use crate::index::RunIndex;

impl FreeRuns {
    /// A run from the owner's groups.
    pub(crate) fn allocate_own(&mut self, owner: u16, blocks: u32) -> Option<Run> {
        let found = self.owned.get(&owner)?.best_fit(blocks)?;
        Some(self.cut(found, blocks))
    }

    /// Gives the owner the lowest shared group that is wholly free; says whether there was one.
    pub(crate) fn grow(&mut self, owner: u16) -> bool {
        let Some(group) = self.index.whole_from(0) else { return false };
        self.change(group, |state| state.owner = owner);
        true
    }

    /// Gives back a group of the owner's that became wholly free, unless it is the only such one.
    pub(crate) fn shrink(&mut self, owner: u16, group: usize) {
        let Some(index) = self.owned.get(&owner) else { return };
        let first = index.whole_from(0);
        if first != Some(group) || index.whole_from(group + 1).is_some() {
            self.change(group, |state| state.owner = SHARED);
        }
    }

    /// Makes all groups of the owner shared ones.
    pub(crate) fn disown(&mut self, owner: u16) {
        for group in 0..self.groups.len() {
            if self.groups[group].owner == owner {
                self.change(group, |state| state.owner = SHARED);
            }
        }
        self.owned.remove(&owner);
    }

    /// How many groups belong to the owner.
    pub(crate) fn groups_of(&self, owner: u16) -> usize {
        self.groups.iter().filter(|state| state.owner == owner).count()
    }

    /// Stops serving requests from a group.
    pub(crate) fn close(&mut self, group: usize) {
        self.change(group, |state| state.is_closed = true);
    }

    /// Serves requests from it again.
    pub(crate) fn open(&mut self, group: usize) {
        self.change(group, |state| state.is_closed = false);
    }

    /// The open group with the fewest blocks in use, of those that have any, have no free run above 4 MiB and are not in
    /// `except`; and how many these blocks are.
    pub(crate) fn emptiest(&self, except: &[Run]) -> Option<(usize, u32)> {
        let mut emptiest: Option<(usize, u32)> = None;
        for (group, state) in self.groups.iter().enumerate() {
            let used = self.geometry.blocks_of(group) - state.free_blocks;
            // One with a run that holds any value is not in need: often it was emptied not long ago.
            let is_fitting = used > 0 && state.large_runs == 0 && state.is_open();
            if !is_fitting || emptiest.is_some_and(|(_, least)| least <= used) {
                continue;
            }
            let first = self.geometry.run(group, Span { start: 0, blocks: 1 });
            if !except.iter().any(|run| run.overlaps(first)) {
                emptiest = Some((group, used));
            }
        }
        emptiest
    }

    /// Whole groups that are free and shared, at most `count` of them, lowest first, as runs that nobody serves from now
    /// on.
    pub(crate) fn take_whole(&mut self, count: usize) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        while runs.len() < count {
            let Some(group) = self.index.whole_from(0) else { break };
            let run = self.geometry.run(group, Span { start: 0, blocks: self.geometry.group_blocks() });
            self.take_checked(run);
            runs.push(run);
        }
        runs
    }

    pub(crate) fn group_at(&self, block: u64) -> Option<&Group> {
        (block >= self.geometry.first()).then(|| self.groups.get(self.geometry.group_of(block))).flatten()
    }

    /// Moves the runs of a group from the index it is in to the one it belongs in after `change`.
    fn change(&mut self, group: usize, change: impl FnOnce(&mut Group)) {
        let spans: Vec<Span> = self.groups[group].runs.iter().collect();
        let nothing = GroupRuns::default();
        if let Some(index) = self.index_of(group) {
            spans.iter().for_each(|&span| index.remove(group, span, &nothing, 0));
        }
        self.joined.remove(group);
        if group > 0 {
            self.joined.remove(group - 1);
        }
        change(&mut self.groups[group]);
        if let Some(index) = self.index_of(group) {
            spans.iter().for_each(|&span| index.insert(group, span));
        }
        for span in [spans.first(), spans.last()].into_iter().flatten() {
            self.note_borders(group, *span);
        }
    }

    /// The index that a group belongs in; it is made where its owner is new.
    fn index_of(&mut self, group: usize) -> Option<&mut RunIndex> {
        let state = &self.groups[group];
        match (state.is_closed, state.owner) {
            (true, _) => None,
            (false, SHARED) => Some(&mut self.index),
            (false, owner) => {
                let geometry = self.geometry;
                Some(self.owned.entry(owner).or_insert_with(|| RunIndex::new(geometry)))
            }
        }
    }
}
