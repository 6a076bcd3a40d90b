//! The layout of the device (`docs/format/superblock.md`). The superblock holds it; the default is
//!
//! ```text
//! 0, 1        first copies of the two superblock slots
//! 2 .. 31     nothing, so that a run of bad sectors cannot take both copies
//! 32, 33      second copies
//! 34 ..       the log's ring
//! then        two areas of the space image, then data
//! ```

use crate::common::error::{Error, Result};
use crate::common::options::FormatOptions;
use crate::log::ring::Ring;

/// Blocks of the four superblock copies: slot 0 and 1, first copy, then slot 0 and 1, second copy.
pub(crate) const SUPERBLOCK_COPIES: [[u64; 2]; 2] = [[0, 32], [1, 33]];

/// First block after the superblocks: every area lies behind them.
const AREAS_FIRST: u64 = 34;

/// Fixed places of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Largest number of blocks that the store may have.
    pub blocks_max: u64,
    /// Blocks of a group of the allocator.
    pub group_blocks: u32,
    /// Blocks of the log's ring.
    pub log_blocks: u32,
    /// Blocks of each of the two areas of the space image.
    pub space_area_blocks: u32,
    /// The first blocks of the areas.
    pub places: Places,
}

/// First blocks of the areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// The ring of the log.
    pub log: u64,
    /// Both areas of the space image.
    pub space_areas: [u64; 2],
    /// The blocks of objects and pages, after all areas.
    pub data: u64,
}

impl Places {
    /// One area after the other, as in every store of version 2.
    pub(crate) fn one_after_the_other(log_blocks: u32, space_area_blocks: u32) -> Self {
        let first = AREAS_FIRST + u64::from(log_blocks);
        let second = first + u64::from(space_area_blocks);
        let data = second + u64::from(space_area_blocks);
        Self { log: AREAS_FIRST, space_areas: [first, second], data }
    }
}

impl Layout {
    pub(crate) fn new(options: &FormatOptions) -> Result<Self> {
        let blocks_max = options.blocks_max;
        // A snapshot costs at most a bit a block; deltas get as much again and at least 64 KiB.
        let snapshot_blocks = blocks_max.div_ceil(8 * 4096) + blocks_max.div_ceil(1 << 20) + 2;
        let space_area_blocks = u32::try_from(2 * snapshot_blocks + 16)
            .map_err(|_| Error::Invalid(format!("a store of {blocks_max} blocks is too large")))?;
        let log_blocks = options.log_blocks();
        let layout = Self {
            blocks_max,
            group_blocks: shoal_space::group_blocks_for(blocks_max),
            log_blocks,
            space_area_blocks,
            places: Places::one_after_the_other(log_blocks, space_area_blocks),
        };
        let least = layout.data_first() + 64;
        if layout.log_blocks < 8 {
            return Err(Error::Invalid("the log needs at least 8 blocks".into()));
        }
        if blocks_max < least {
            return Err(Error::Invalid(format!(
                "a store of {blocks_max} blocks of 4 KiB is too small: this layout needs at least {least}"
            )));
        }
        Ok(layout)
    }

    /// Returns true if every area lies between the superblocks and the data, and none overlaps another.
    pub(crate) fn is_sensible(&self) -> bool {
        let Places { log, space_areas: [first, second], data } = self.places;
        let area_blocks = u64::from(self.space_area_blocks);
        let mut areas =
            [(log, u64::from(self.log_blocks)), (first, area_blocks), (second, area_blocks), (data, 0)];
        areas[..3].sort_unstable();
        // No sum overflows: an area that begins after the data is refused first.
        areas[0].0 >= AREAS_FIRST
            && areas[..3].iter().all(|&(start, _)| start <= data)
            && data <= self.blocks_max
            && areas.windows(2).all(|pair| pair[0].0.saturating_add(pair[0].1) <= pair[1].0)
    }

    /// The log's ring.
    pub(crate) const fn ring(&self) -> Ring {
        Ring { first: self.places.log, blocks: self.log_blocks }
    }

    /// First block of the log's ring.
    pub(crate) const fn log_first(&self) -> u64 {
        self.places.log
    }

    /// First block of area 0 or 1 of the space image.
    pub(crate) const fn space_area(&self, area: u8) -> u64 {
        self.places.space_areas[(area & 1) as usize]
    }

    /// First block that objects and pages may use.
    pub(crate) const fn data_first(&self) -> u64 {
        self.places.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_lie_apart_from_each_other_and_in_front_of_the_data() {
        let layout = Layout::new(&FormatOptions::for_blocks(4_096)).unwrap();
        assert!(layout.is_sensible());
        let with = |change: &dyn Fn(&mut Places)| {
            let mut layout = layout;
            change(&mut layout.places);
            layout.is_sensible()
        };
        assert!(with(&|places| places.space_areas.swap(0, 1)), "in any order");
        assert!(with(&|places| places.data += 5), "with gaps");
        assert!(!with(&|places| places.log -= 1), "over a superblock");
        assert!(!with(&|places| places.log += 1), "over an area");
        assert!(!with(&|places| places.space_areas[1] -= 1));
        assert!(!with(&|places| places.data -= 1));
        assert!(!with(&|places| places.data = 4_097), "behind the end");
        assert!(!with(&|places| places.space_areas[0] = u64::MAX));
        assert!(!with(&|places| places.log = u64::MAX - 3));
    }
}
