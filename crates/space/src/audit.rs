//! Checks the allocator's redundant state: the index against the arrays, the borders, the sums.

use crate::classes::CLASS_BLOCKS_MAX;
use crate::free_runs::{FreeRuns, Group};
use crate::index::RunIndex;

impl FreeRuns {
    /// Panics if two parts of the state contradict each other.
    pub(crate) fn audit(&self) {
        let mut free_blocks = 0;
        for (group, state) in self.groups.iter().enumerate() {
            let mut end = None;
            let (mut in_group, mut large) = (0, 0);
            for span in state.runs.iter() {
                let run = self.geometry.run(group, span);
                assert!(self.geometry.check(run).is_ok(), "run {run} of group {group} is outside");
                assert!(span.end() <= self.geometry.group_blocks(), "run {run} leaves group {group}");
                assert!(end.is_none_or(|end| end < span.start), "run {run} touches the one before it");
                end = Some(span.end());
                in_group += span.blocks;
                large += u8::from(span.blocks > CLASS_BLOCKS_MAX);
            }
            assert_eq!(state.large_runs, large, "the long runs of group {group}");
            assert_eq!(state.free_blocks, in_group, "the sum of the free blocks of group {group}");
            free_blocks += u64::from(in_group);
        }
        assert_eq!(self.free_blocks, free_blocks, "the sum of the free blocks");
        self.audit_index(0, &self.index);
        for (&owner, index) in &self.owned {
            self.audit_index(owner, index);
        }
        self.audit_borders();
    }

    fn audit_index(&self, owner: u16, index: &RunIndex) {
        let is_indexed = |state: &Group| state.owner == owner && !state.is_closed;
        let groups = self.groups.iter().enumerate().filter(|(_, state)| is_indexed(state));
        index.audit(groups.map(|(group, state)| (group, &state.runs)));
    }

    fn audit_borders(&self) {
        self.joined.audit();
        let group_blocks = self.geometry.group_blocks();
        for group in 0..self.groups.len() {
            let reaches_end = self.groups[group].runs.last().is_some_and(|last| last.end() == group_blocks);
            let next = self.groups.get(group + 1);
            let begins_free = next.and_then(|next| next.runs.first()).is_some_and(|first| first.start == 0);
            let are_open = self.groups[group].is_open() && next.is_some_and(Group::is_open);
            let is_joined = reaches_end && begins_free && are_open;
            assert_eq!(self.joined.contains(group), is_joined, "the border after group {group}");
            if is_joined {
                let (across, _) = self.run_across(group);
                assert!(
                    across.blocks <= self.cross_blocks_max,
                    "{across:?} exceeds {}",
                    self.cross_blocks_max
                );
            }
        }
    }
}
