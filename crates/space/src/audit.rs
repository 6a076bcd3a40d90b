//! The check of everything that the allocator knows twice: the index against the arrays, the borders, the sums.

use crate::free_runs::FreeRuns;

impl FreeRuns {
    /// Panics where two parts of the state contradict each other.
    pub(crate) fn audit(&self) {
        let mut free_blocks = 0;
        for (group, runs) in self.groups.iter().enumerate() {
            let mut end = None;
            for span in runs.iter() {
                let run = self.geometry.run(group, span);
                assert!(self.geometry.check(run).is_ok(), "run {run} of group {group} is outside");
                assert!(span.end() <= self.geometry.group_blocks(), "run {run} leaves group {group}");
                assert!(end.is_none_or(|end| end < span.start), "run {run} touches the one before it");
                end = Some(span.end());
                free_blocks += u64::from(span.blocks);
            }
        }
        assert_eq!(self.free_blocks, free_blocks, "the sum of the free blocks");
        self.index.audit(&self.groups);
        self.audit_borders();
    }

    fn audit_borders(&self) {
        self.joined.audit();
        let group_blocks = self.geometry.group_blocks();
        for group in 0..self.groups.len() {
            let reaches_end = self.groups[group].last().is_some_and(|last| last.end() == group_blocks);
            let next = self.groups.get(group + 1).and_then(|next| next.first());
            let is_joined = reaches_end && next.is_some_and(|next| next.start == 0);
            assert_eq!(self.joined.contains(group), is_joined, "the border behind group {group}");
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
