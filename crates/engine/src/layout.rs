//! Where things lie on the device (`docs/format/superblock.md`).
//!
//! ```text
//! 0, 1        first copies of the two superblock slots
//! 2 .. 31     nothing: a run of bad sectors shall not take both copies
//! 32, 33      second copies
//! 34 ..       the log's ring
//! then        two areas of the space image, then data
//! ```

use crate::error::{Error, Result};
use crate::options::FormatOptions;

/// Blocks of the four superblock copies: slot 0 and 1, first copy, then slot 0 and 1, second copy.
pub(crate) const SUPERBLOCK_COPIES: [[u64; 2]; 2] = [[0, 32], [1, 33]];

const LOG_FIRST: u64 = 34;

/// Fixed places of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Blocks that the store may grow to.
    pub blocks_max: u64,
    /// Blocks of an allocator's group.
    pub group_blocks: u32,
    /// Blocks of the log's ring.
    pub log_blocks: u32,
    /// Blocks of each of the two areas of the space image.
    pub space_area_blocks: u32,
}

impl Layout {
    pub(crate) fn new(options: &FormatOptions) -> Result<Self> {
        let blocks_max = options.blocks_max;
        // A snapshot costs at most a bit a block; deltas get as much again and at least 64 KiB.
        let snapshot_blocks = blocks_max.div_ceil(8 * 4096) + blocks_max.div_ceil(1 << 20) + 2;
        let layout = Self {
            blocks_max,
            group_blocks: shoal_space::group_blocks_for(blocks_max),
            log_blocks: options.log_blocks(),
            space_area_blocks: u32::try_from(2 * snapshot_blocks + 16)
                .map_err(|_| Error::Invalid(format!("a store of {blocks_max} blocks is too large")))?,
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

    /// First block of the log's ring.
    pub(crate) const fn log_first(&self) -> u64 {
        LOG_FIRST
    }

    /// First block of area 0 or 1 of the space image.
    pub(crate) const fn space_area(&self, area: u8) -> u64 {
        LOG_FIRST + self.log_blocks as u64 + self.space_area_blocks as u64 * (area & 1) as u64
    }

    /// First block that objects and pages may use.
    pub(crate) const fn data_first(&self) -> u64 {
        LOG_FIRST + self.log_blocks as u64 + 2 * self.space_area_blocks as u64
    }
}
