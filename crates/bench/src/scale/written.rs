//! Bytes that a store wrote, by kind, from the counters of the engine.

use std::path::Path;

use anyhow::Result;
use shoal_base::BLOCK_BYTES_U64;
use shoal_engine::StoreStat;

use crate::disk::Disk;

/// Bytes since the store was opened, except those of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) log: u64,
    /// Values at their places, both those moved there by applies and those written there by puts. Includes moves.
    pub(crate) home: u64,
    pub(crate) pages: u64,
    /// The space image, superblocks, and everything else without a separate counter; also the zeros of a growth until it is
    /// complete, which may be after the next mark.
    pub(crate) image: u64,
    /// Zeros of a growth of the file; counted when they are all written.
    pub(crate) growth: u64,
    /// The part of `home` that was moved.
    pub(crate) moves: u64,
    /// All of it.
    pub(crate) all: u64,
    /// By the kernel's count of the whole disk; `None` if there is no count.
    pub(crate) disk: Option<u64>,
}

impl Written {
    pub(crate) fn of(stat: &StoreStat, folder: &Path) -> Result<Self> {
        let bytes = |blocks: u64| blocks * BLOCK_BYTES_U64;
        let home = stat.home_blocks_written + stat.extent_blocks_written;
        let (log, pages, growth) =
            (stat.log_blocks_written, stat.page_blocks_written, stat.growth_blocks_written);
        let all = stat.device.blocks_written;
        Ok(Self {
            log: bytes(log),
            home: bytes(home),
            pages: bytes(pages),
            image: bytes(all.saturating_sub(log + home + pages + growth)),
            growth: bytes(growth),
            moves: stat.moved_bytes + stat.bytes_evacuated,
            all: bytes(all),
            disk: Disk::of(folder)?.map(|disk| disk.bytes_written),
        })
    }

    /// The bytes written since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            log: self.log.saturating_sub(before.log),
            home: self.home.saturating_sub(before.home),
            pages: self.pages.saturating_sub(before.pages),
            image: self.image.saturating_sub(before.image),
            growth: self.growth.saturating_sub(before.growth),
            moves: self.moves.saturating_sub(before.moves),
            all: self.all.saturating_sub(before.all),
            disk: self.disk.zip(before.disk).map(|(now, before)| now.saturating_sub(before)),
        }
    }
}
