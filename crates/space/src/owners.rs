//! Groups that serve one owner, and groups that serve no one because they are being emptied.
//!
//! An owner's groups grow and shrink by whole groups: one more is taken from the shared ones when a request does not fit,
//! and one that becomes wholly free goes back, except for a spare. Frees need not know the owner. Before a shared request
//! is refused, it borrows from an owner's groups: an owner's space keeps loads apart, it is not a quota.

use shoal_base::Run;

use crate::free_runs::{FreeRuns, Group, SHARED};
use crate::group::GroupRuns;
use crate::index::RunIndex;
use crate::span::Span;

impl FreeRuns {
    /// A run from the owner's groups.
    pub(crate) fn allocate_own(&mut self, owner: u16, blocks: u32) -> Option<Run> {
        let found = self.owned.get(&owner)?.best_fit(blocks)?;
        Some(self.cut(found, blocks))
    }

    /// Assigns the lowest wholly free shared group to the owner; returns false if there is none.
    pub(crate) fn grow(&mut self, owner: u16) -> bool {
        let Some(group) = self.index.whole_from(0) else { return false };
        self.change(group, |state| state.owner = owner);
        true
    }

    /// Returns a group of the owner's that became wholly free, unless it is the owner's only such group.
    pub(crate) fn shrink(&mut self, owner: u16, group: usize) {
        let Some(index) = self.owned.get(&owner) else { return };
        let first = index.whole_from(0);
        if first != Some(group) || index.whole_from(group + 1).is_some() {
            self.change(group, |state| state.owner = SHARED);
        }
    }

    /// Assigns every shared group that starts within `run` to the owner.
    pub(crate) fn own(&mut self, owner: u16, run: Run) {
        for group in 0..self.groups.len() {
            let first = self.group_run(group).block;
            if self.groups[group].owner == SHARED && (run.block..run.end()).contains(&first) {
                self.change(group, |state| state.owner = owner);
            }
        }
    }

    /// A run from the groups of any owner, the shortest that fits: the last resort for a request that no shared group can
    /// serve.
    pub(crate) fn borrow(&mut self, blocks: u32) -> Option<Run> {
        let fitting = self.owned.values().filter_map(|index| index.best_fit(blocks));
        let found = fitting.min_by_key(|found| found.blocks)?;
        Some(self.cut(found, blocks))
    }

    /// The longest run in the groups of any owner.
    pub(crate) fn longest_owned(&self) -> Option<Run> {
        let longest = self.owned.values().filter_map(RunIndex::longest);
        longest
            .max_by_key(|found| found.blocks)
            .map(|found| self.geometry.run(found.group, self.span_of(found).1))
    }

    /// The groups of the owner, in ascending order.
    pub(crate) fn runs_of(&self, owner: u16) -> impl Iterator<Item = Run> {
        let groups = self.groups.iter().enumerate().filter(move |(_, state)| state.owner == owner);
        groups.map(|(group, _)| self.group_run(group))
    }

    /// Stops serving requests from a group.
    pub(crate) fn close(&mut self, group: usize) {
        self.change(group, |state| state.is_closed = true);
    }

    /// Serves requests from a group again.
    pub(crate) fn open(&mut self, group: usize) {
        self.change(group, |state| state.is_closed = false);
    }

    /// The open group with the fewest used blocks, and their number. Skips groups without used blocks, groups with a
    /// free run above 4 MiB, and groups in `except`.
    pub(crate) fn emptiest(&self, except: &[Run]) -> Option<(usize, u32)> {
        let mut emptiest: Option<(usize, u32)> = None;
        for (group, state) in self.groups.iter().enumerate() {
            let blocks = self.group_run(group);
            let used = blocks.blocks - state.free_blocks;
            // A group with a run for any value does not need to be emptied: often it was emptied recently.
            let is_fitting = used > 0 && state.large_runs == 0 && state.is_open();
            let is_better = is_fitting && emptiest.is_none_or(|(_, least)| used < least);
            if is_better && !except.iter().any(|run| run.overlaps(blocks)) {
                emptiest = Some((group, used));
            }
        }
        emptiest
    }

    /// Takes up to `count` wholly free shared groups, the lowest first; returns them as runs.
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

    /// The blocks of a group; the last one may be short.
    pub(crate) fn group_run(&self, group: usize) -> Run {
        let first = self.geometry.run(group, Span { start: 0, blocks: 1 }).block;
        let blocks = (self.geometry.blocks_max() - first).min(u64::from(self.geometry.group_blocks()));
        Run::new(first, blocks as u32)
    }

    /// The group of `block`; `None` past the end.
    pub(crate) fn group_at(&self, block: u64) -> Option<&Group> {
        self.groups.get(self.geometry.group_of(block))
    }

    /// Moves the runs of a group from the index it is in to the one it belongs in after `change`.
    pub(crate) fn change(&mut self, group: usize, change: impl FnOnce(&mut Group)) {
        let owner = self.groups[group].owner;
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
        self.owner_changes += u64::from(self.groups[group].owner != owner);
        if let Some(index) = self.index_of(group) {
            spans.iter().for_each(|&span| index.insert(group, span));
        }
        for span in [spans.first(), spans.last()].into_iter().flatten() {
            self.note_borders(group, *span);
        }
    }

    /// The index that a group belongs in; made here if its owner is new.
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
