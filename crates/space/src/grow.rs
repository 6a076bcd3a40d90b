//! A space that becomes larger while it is in use.
//!
//! Groups follow from the size, so a larger space may have larger groups. The free runs are put into new groups under the
//! allocator's lock: no caller sees a state in between. The new blocks are in use until they are freed.

use shoal_base::Run;

use crate::Space;
use crate::free_runs::{FreeRuns, Group, SHARED};
use crate::geometry::Geometry;

impl Space {
    /// Makes the space `blocks_max` blocks large, in groups of `group_blocks`; no block becomes free by that. An owner keeps each
    /// group that has the same start as one of its old groups. Takes time for each free run, with the lock held: 50 to 90 ns a run
    /// with a million runs, on 2 shared cores.
    ///
    /// # Panics
    /// Like [`Self::new`]; if the space or its groups become smaller; if a group is closed.
    pub fn grow(&self, blocks_max: u64, group_blocks: u32) {
        let geometry = Geometry::new(blocks_max, group_blocks);
        self.change(|runs| *runs = runs.grown(geometry));
    }
}

impl FreeRuns {
    /// The same free runs and owners in a space of `geometry`.
    fn grown(&self, geometry: Geometry) -> Self {
        let before = self.geometry;
        assert!(geometry.blocks_max() >= before.blocks_max(), "a space of {} blocks", geometry.blocks_max());
        assert!(geometry.group_blocks() >= before.group_blocks(), "groups become smaller");
        let mut grown = Self::new(geometry);
        let of_group = |(group, state): (usize, &Group)| {
            state.runs.iter().map(|span| before.run(group, span)).collect::<Vec<_>>()
        };
        let runs: Vec<Run> = self.groups.iter().enumerate().flat_map(of_group).collect();
        let freed = grown.free_batch(&runs);
        assert!(freed.is_ok(), "a free run is freed again: {freed:?}");
        for (group, state) in self.groups.iter().enumerate() {
            assert!(!state.is_closed, "group {group} is closed");
            let first = self.group_run(group).block;
            if state.owner != SHARED && geometry.start_of(first) == 0 {
                grown.change(geometry.group_of(first), |group| group.owner = state.owner);
            }
        }
        grown.owner_changes += self.owner_changes;
        grown
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Exactly the blocks that were free before are free afterwards; the space behaves like one that always had this size.
        #[test]
        fn the_same_is_free_in_the_larger_space(
            (before, group_before) in prop_oneof![Just((700_u64, 16_u32)), Just((640, 64)), Just((2_050, 128))],
            (more, group_shift) in (0_u64..5_000, 0_u32..4),
            frees in prop::collection::vec((any::<u64>(), 1_u32..90), 0..60),
            owned in prop::collection::vec((1_u16..3, 1_u32..20), 0..6),
        ) {
            let space = Space::new(before, group_before);
            for (block, blocks) in frees {
                let _ = space.free(Run::new(block % (before - 90), blocks));
            }
            for &(owner, blocks) in &owned {
                let _ = space.allocate_own(owner, blocks);
            }
            let runs = |space: &Space| {
                let mut all = Vec::new();
                space.for_each_run(&mut |run| all.push(run));
                all
            };
            let (was, changes) = (runs(&space), space.owner_changes());
            let owners = [1, 2].map(|owner| space.groups_of(owner));
            space.grow(before + more, group_before << group_shift);
            space.audit();
            prop_assert_eq!(runs(&space), was);
            prop_assert_eq!((space.blocks_max(), space.group_blocks()), (before + more, group_before << group_shift));
            prop_assert!(space.owner_changes() >= changes);
            if group_shift == 0 {
                let blocks = |runs: &[Run]| runs.iter().map(|run| run.block).collect::<Vec<_>>();
                prop_assert_eq!([1, 2].map(|owner| blocks(&space.groups_of(owner))), owners.map(|runs| blocks(&runs)));
            }
            if more > 0 {
                space.free(Run::new(before, more as u32)).unwrap();
                prop_assert!(space.is_free(Run::new(before, more as u32)));
            }
            space.audit();
            while let Some(run) = space.allocate_at_most(50) {
                prop_assert!(run.end() <= before + more);
            }
            prop_assert_eq!(space.free_blocks(), 0);
        }
    }

    #[test]
    fn old_and_new_space_join() {
        let space = Space::new(250, 64);
        space.free(Run::new(100, 150)).unwrap();
        space.grow(1_000, 64);
        space.free(Run::new(250, 750)).unwrap();
        assert_eq!(space.allocate(900), Some(Run::new(100, 900)), "over the old end, which lay in a group");
        space.audit();
    }
}
