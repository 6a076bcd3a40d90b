//! Discards whole free groups on the device (`OpenOptions::discard`): a file gets holes, and a raw device learns which blocks are unused.
//!
//! A piece is allocated, discarded, and freed: no write uses it meanwhile. Blocks that may be allocated may also be lost (R9: no published
//! or recoverable state refers to them). The set of discarded groups is only in memory; after a restart everything is discarded once more.

use shoal_base::sync::atomic::Ordering;
use shoal_base::{BLOCK_BYTES_U64, Run};
use shoal_common::error::Result;
use shoal_space_manager::Discarded;

use super::{Progress, Relocator};

/// Blocks discarded at a time: 64 MiB, so that writes in flight do not miss much space.
const PIECE_BLOCKS: u64 = 16_384;

impl Relocator {
    /// Discards the next whole free group that was used since it was last discarded, if the store discards.
    ///
    /// # Errors
    /// None: after a failure no group is discarded until the next start.
    pub(crate) async fn discard_some(&self) -> Result<Progress> {
        let discarded = self.space.discarded();
        if !self.checkpointer.move_limits.discards || discarded.failed.load(Ordering::Relaxed) {
            return Ok(Progress::Idle);
        }
        let Some(group) = self.next_to_discard(&discarded) else { return Ok(Progress::Idle) };
        let group_blocks = discarded.group_blocks;
        // Set before the discard: blocks freed in the group from now on clear it.
        discarded.insert(group);
        let (mut at, end) = (group * group_blocks, (group + 1) * group_blocks);
        while at < end {
            let blocks = (end - at).min(PIECE_BLOCKS);
            let piece = Run::new(at, blocks as u32);
            at += blocks;
            // A write took the piece meanwhile, or too little space is left for it: retry later.
            if self.space.available() < 4 * blocks || self.space.allocator().take(piece).is_err() {
                return Ok(Progress::Idle);
            }
            let answer = self.checkpointer.device.discard(piece.block, blocks).await.ok();
            let freed = self.space.allocator().free(piece);
            assert!(freed.is_ok(), "{piece} was taken a moment ago: {freed:?}");
            if let Err(error) = answer {
                discarded.failed.store(true, Ordering::Relaxed);
                tracing::warn!("the device does not take free space back and is not asked again: {error}");
                return Ok(Progress::Idle);
            }
            self.bytes_discarded.fetch_add(blocks * BLOCK_BYTES_U64, Ordering::Relaxed);
            self.checkpointer.move_limits.charge(blocks * BLOCK_BYTES_U64);
        }
        Ok(Progress::Worked)
    }

    /// The next group that is wholly free and not discarded.
    fn next_to_discard(&self, discarded: &Discarded) -> Option<u64> {
        let group_blocks = discarded.group_blocks;
        let layout = self.checkpointer.layout();
        let first = layout.data_first().div_ceil(group_blocks);
        let end = self.checkpointer.device.blocks().min(layout.blocks_max) / group_blocks;
        let space = self.space.allocator();
        (first..end).find_map(|_| {
            let group = discarded.next.load(Ordering::Relaxed).clamp(first, end - 1);
            let next = if group + 1 == end { first } else { group + 1 };
            discarded.next.store(next, Ordering::Relaxed);
            let is_free = || space.is_free(Run::new(group * group_blocks, group_blocks as u32));
            (!discarded.contains(group) && is_free()).then_some(group)
        })
    }
}
