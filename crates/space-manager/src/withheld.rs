//! The reserve of a store: blocks that no value may take, so that deletes and their applies work on a full device.

use shoal_base::sync::atomic::Ordering;

use crate::manager::SpaceManager;

/// Blocks that a store with `tablets` tablets withholds from values if `held` blocks for objects have room in the file system: a 64th up to
/// 8 MiB, then a 256th up to 16 MiB. So a small store in a file that may grow large takes little more of the disk than its objects.
fn withheld_for(held: u64, tablets: usize) -> u64 {
    (held / 64).min(2048).max(held / 256).clamp(8, 4096) + 4 * tablets as u64
}

impl SpaceManager {
    /// Blocks for objects and pages that have room in the file system: all outside of holes.
    pub fn held_data_blocks(&self) -> u64 {
        self.data_blocks().saturating_sub(self.holes().blocks())
    }

    /// Blocks that are withheld from values.
    #[inline]
    pub fn withheld(&self) -> u64 {
        self.withheld.load(Ordering::Relaxed)
    }

    /// Adapts the withheld blocks to the blocks that have room. Of two changes of these at a time the later one settles it.
    pub(crate) fn settle_withheld(&self) {
        self.withheld.store(withheld_for(self.held_data_blocks(), self.tablets()), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::Run;
    use shoal_space::Space;

    use super::*;
    use crate::manager::DataBlocks;

    #[test]
    fn a_reserve_grows_with_the_room_up_to_16_mib() {
        let of = |mib: u64| withheld_for(mib << 8, 0) >> 8;
        assert_eq!((of(64), of(512), of(700), of(4 << 10), of(64 << 10)), (1, 8, 8, 16, 16));
        assert_eq!((withheld_for(0, 0), withheld_for(0, 32)), (8, 136));
        assert!((0..5_000).map(|step| withheld_for(step * 301, 4)).is_sorted());
    }

    #[test]
    fn holes_and_growth_change_the_reserve() {
        let space = Space::new(65_536, 4_096);
        (0..16).for_each(|group| space.free(Run::new(group * 4_096, 4_096)).unwrap());
        let space = SpaceManager::new(space, 4, 65_536, DataBlocks { blocks: 0..32_768, areas: Vec::new() });
        assert_eq!(space.withheld(), 512 + 16);
        space.grown(65_536);
        assert_eq!(space.withheld(), 1_024 + 16);
        assert!(space.make_hole(Run::new(8_192, 4_096)) && space.make_hole(Run::new(16_384, 4_096)));
        assert_eq!((space.held_data_blocks(), space.withheld()), (57_344, 896 + 16));
        while let Some(hole) = space.holes().take_lowest(u64::MAX) {
            space.fill_hole(hole);
        }
        assert_eq!(space.withheld(), 1_024 + 16);
    }
}
