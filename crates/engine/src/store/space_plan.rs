//! The space in parts, for a map that is drawn again and again while the store serves.
//!
//! [`Store::free_space`] copies all free runs of one moment under the allocator's lock, which takes long on a large and
//! fragmented device. Here the caller asks for one part at a time, so that no put waits for more than the walk over one group, and
//! the parts are of slightly different moments.

use std::ops::Range;

use shoal_base::Run;
use shoal_image::layout::AREAS_FIRST;
use shoal_space::GroupState;

use crate::store::Store;

/// The parts of the device that do not change while the store is open, except that it grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpacePlan {
    /// Blocks of the device that are usable now.
    pub device_blocks: u64,
    /// Blocks of a group of the allocator.
    pub group_blocks: u32,
    /// The log's ring.
    pub log: Range<u64>,
    /// The superblocks, and both areas of the space image.
    pub areas: [Range<u64>; 3],
    /// The buckets with their own space: bucket `n` owns the groups whose owner is `n + 1`.
    pub own_buckets: Vec<String>,
}

impl Store {
    /// The plan of the space, now.
    #[must_use]
    pub fn space_plan(&self) -> SpacePlan {
        let (inner, layout) = (&*self.0, self.0.layout());
        let area = |number| {
            let first = layout.space_area(number);
            first..first + u64::from(layout.space_area_blocks)
        };
        let log = layout.log_first()..layout.log_first() + u64::from(layout.log_blocks);
        SpacePlan {
            device_blocks: inner.usable_blocks(),
            group_blocks: inner.space.allocator().group_blocks(),
            log,
            areas: [0..AREAS_FIRST, area(0), area(1)],
            own_buckets: inner.own.buckets().map(str::to_owned).collect(),
        }
    }

    /// The states of the groups in `range`, appended to `out`; groups past the end are left out.
    pub fn group_states(&self, range: Range<usize>, out: &mut Vec<GroupState>) {
        self.0.space.allocator().group_states(range, out);
    }

    /// The free runs of a group in ascending order, appended to `out`. Holes and freed blocks that may not be reused yet are left out.
    pub fn free_runs_of(&self, group: usize, out: &mut Vec<Run>) {
        self.0.space.allocator().free_runs_of(group, out);
    }

    /// The holes in ascending order, at most 65,536: free blocks that were returned to the device.
    #[must_use]
    pub fn holes(&self) -> Vec<Run> {
        self.0.space.holes().all().into_iter().map(|hole| hole.run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::{in_memory_as, open_in, options, put};
    use crate::{Environment, FormatOptions, ObjectKey, OpenOptions};

    #[test]
    fn parts_add_up_to_the_figures_of_the_store() {
        let device = in_memory_as(&FormatOptions::for_blocks(8192));
        let own = OpenOptions { own_space: vec!["films".into(), "photos".into()], ..options() };
        let store = open_in(&device, own, Environment::default());
        for index in 0..20u8 {
            put(&store, &ObjectKey::new("photos", &[index]).unwrap(), vec![index; 40_000]);
        }
        let plan = store.space_plan();
        let stat = store.stat();
        assert_eq!((plan.device_blocks, plan.group_blocks), (stat.device_blocks, 128));
        assert_eq!(plan.log.end - plan.log.start, stat.log_blocks);
        assert_eq!(plan.own_buckets, ["films", "photos"]);
        let mut taken: Vec<Range<u64>> = plan.areas.into_iter().chain([plan.log]).collect();
        let mut states = Vec::new();
        store.group_states(0..usize::MAX, &mut states);
        assert_eq!(states.len(), 64);
        let free: u64 = states.iter().map(|state| u64::from(state.free_blocks)).sum();
        let in_areas: u64 = taken.iter().map(|area| area.end - area.start).sum();
        let elsewhere = stat.allocated_blocks + stat.pending_blocks + stat.hole_blocks;
        assert_eq!(free + in_areas + elsewhere, stat.device_blocks, "{stat:?}");
        let owned: u64 = states.iter().map(|state| 128 * u64::from(state.owner == 2)).sum();
        assert!(owned > 0 && owned == stat.own_blocks && states.iter().all(|state| state.owner != 1));
        let mut runs = Vec::new();
        (0..64).for_each(|group| store.free_runs_of(group, &mut runs));
        assert_eq!(runs.iter().map(|run| u64::from(run.blocks)).sum::<u64>(), free);
        // Nothing is in two parts.
        taken.extend(runs.iter().chain(&store.holes()).map(|run| run.block..run.end()));
        taken.sort_by_key(|part| part.start);
        assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start), "{taken:?}");
    }
}
