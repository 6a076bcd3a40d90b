//! Giving whole free groups back to the device (`OpenOptions::discard`): a file gets holes, a raw device learns what holds
//! nothing.
//!
//! A piece is taken out of the allocator, discarded, and given back: nobody writes it meanwhile, and what may be
//! handed out may be lost as well (R9: no state that is published or could be recovered refers to it). Only memory knows what
//! was discarded; after a restart everything is discarded once more.

use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shoal_base::{BLOCK_BYTES_U64, Run};
use shoal_space::Space;

use super::Progress;
use crate::error::Result;
use crate::store::Inner;

/// Blocks that are discarded at a time: 64 MiB, so that a write under way does not miss much room.
const PIECE_BLOCKS: u64 = 16_384;

/// Which groups hold nothing on the device either: a bit each, taken away by whoever frees something in the group.
pub(crate) struct Discarded {
    groups: Box<[AtomicU64]>,
    group_blocks: u64,
    /// The group to look at next.
    next: AtomicU64,
    /// The device failed at it once.
    failed: AtomicBool,
}

impl Discarded {
    /// Nothing was discarded.
    pub(crate) fn new(space: &Space) -> Self {
        Self {
            groups: (0..space.groups().div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            group_blocks: u64::from(space.group_blocks()),
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// What was in use may hold something.
    pub(crate) fn freed(&self, run: Run) {
        for group in run.block / self.group_blocks..=(run.end() - 1) / self.group_blocks {
            let bit = 1 << (group % 64);
            if let Some(word) = self.groups.get((group / 64) as usize)
                && word.load(Ordering::Relaxed) & bit != 0
            {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    fn contains(&self, group: u64) -> bool {
        let word = self.groups.get((group / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (group % 64)) != 0)
    }

    fn insert(&self, group: u64) {
        if let Some(word) = self.groups.get((group / 64) as usize) {
            word.fetch_or(1 << (group % 64), Ordering::Relaxed);
        }
    }
}

impl Inner {
    /// Discards the next whole free group that was not discarded since it was last used, where that is asked for.
    ///
    /// # Errors
    /// None: a device that fails at this is not asked again until the next start.
    pub(crate) async fn discard_some(&self) -> Result<Progress> {
        if !self.discard || self.space.discarded.failed.load(Ordering::Relaxed) {
            return Ok(Progress::Idle);
        }
        let Some(group) = self.next_to_discard() else { return Ok(Progress::Idle) };
        let group_blocks = u64::from(self.layout.group_blocks);
        // Beforehand: what is freed in it from now on counts.
        self.space.discarded.insert(group);
        let (mut at, end) = (group * group_blocks, (group + 1) * group_blocks);
        while at < end {
            let blocks = (end - at).min(PIECE_BLOCKS);
            let piece = Run::new(at, blocks as u32);
            at += blocks;
            // Taken by somebody meanwhile, or it would be missed: another time.
            if self.space.available() < 4 * blocks || self.space.allocator().take(piece).is_err() {
                return Ok(Progress::Idle);
            }
            let discarded = self.device.discard(piece.block, blocks).await.ok();
            let freed = self.space.allocator().free(piece);
            assert!(freed.is_ok(), "{piece} was taken a moment ago: {freed:?}");
            if let Err(error) = discarded {
                self.space.discarded.failed.store(true, Ordering::Relaxed);
                tracing::warn!("the device does not take free space back and is not asked again: {error}");
                return Ok(Progress::Idle);
            }
            self.mover.bytes_discarded.fetch_add(blocks * BLOCK_BYTES_U64, Ordering::Relaxed);
            self.mover.charge(blocks * BLOCK_BYTES_U64);
        }
        Ok(Progress::Worked)
    }

    /// The next group that is wholly free and was not discarded.
    fn next_to_discard(&self) -> Option<u64> {
        let group_blocks = u64::from(self.layout.group_blocks);
        let first = self.layout.data_first().div_ceil(group_blocks);
        let end = self.device.blocks().min(self.layout.blocks_max) / group_blocks;
        let space = self.space.allocator();
        let discarded = &self.space.discarded;
        (first..end).find_map(|_| {
            let group = discarded.next.load(Ordering::Relaxed).clamp(first, end - 1);
            let next = if group + 1 == end { first } else { group + 1 };
            discarded.next.store(next, Ordering::Relaxed);
            let is_free = || space.is_free(Run::new(group * group_blocks, self.layout.group_blocks));
            (!discarded.contains(group) && is_free()).then_some(group)
        })
    }
}
