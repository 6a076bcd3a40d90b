//! The blocks of the log's ring: which are used, reserved for batches that are queued, and free.

use shoal_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use shoal_base::{BLOCK_BYTES, blocks_for};

use super::format::BATCH_HEADER_BYTES;
use super::ring::Ring;
use crate::common::pace::{Pace, WHOLE, may_not_fit};

/// Blocks of the ring that admission leaves for seals and for what is left out at the ring's end.
pub(crate) const LOG_MARGIN_BLOCKS: u32 = 10;

/// Most bytes of records in one write batch, whatever the ring's size: a batch has at most 16 MiB.
const WRITE_BATCH_BYTES_MAX: usize = 8 << 20;

/// The ring, and how far it is used.
pub(crate) struct RingSpace {
    ring: Ring,
    /// Where the oldest batch begins that recovery needs.
    tail: AtomicU64,
    /// Blocks of the ring, from its start on, that batches may lie in; a batch that would pass them begins at the ring's start. Only grows.
    prepared: AtomicU32,
    /// Where the next batch goes, as the index says. Release by the leader before it gives reserved blocks back; pairs with the acquire
    /// in `used_blocks`.
    head: AtomicU64,
    /// When an apply is due.
    pub(crate) pace: Pace,
    reserved: AtomicU64,
}

impl RingSpace {
    pub(super) fn new(ring: Ring, prepared: u32, tail: u64, head: u64) -> Self {
        Self {
            ring,
            tail: AtomicU64::new(tail),
            prepared: AtomicU32::new(prepared),
            head: AtomicU64::new(head),
            pace: Pace::default(),
            reserved: AtomicU64::new(0),
        }
    }

    /// The block of the device at `position`.
    pub(super) fn block(&self, position: u64) -> u64 {
        self.ring.block(position)
    }

    /// The position at the ring's start that follows `position`.
    pub(super) fn turn(&self, position: u64) -> u64 {
        self.ring.turn(position)
    }

    /// Whether batches up to the position `end` overwrite nothing from the tail on.
    pub(super) fn holds(&self, end: u64) -> bool {
        end - self.tail.load(Ordering::Acquire) <= u64::from(self.ring.blocks)
    }

    /// A superblock is durable that needs nothing before `tail`.
    pub(super) fn set_tail(&self, tail: u64) {
        self.tail.store(tail, Ordering::Release);
    }

    /// A batch that ends there is durable.
    pub(super) fn set_head(&self, head: u64) {
        self.head.store(head, Ordering::Release);
    }

    /// Blocks of the ring between tail and head.
    pub(crate) fn used_blocks(&self) -> u64 {
        self.head.load(Ordering::Acquire).saturating_sub(self.tail.load(Ordering::Acquire))
    }

    /// Blocks of the ring that may be written to.
    pub(crate) fn prepared(&self) -> u32 {
        self.prepared.load(Ordering::Acquire)
    }

    /// The ring is prepared up to there, and a durable superblock says so.
    pub(super) fn prepare(&self, blocks: u32) {
        self.prepared.fetch_max(blocks, Ordering::AcqRel);
    }

    /// Blocks that batches may still take, in both parts of the ring: behind the head, and in front of the tail.
    ///
    /// With head and tail in one turn of the ring these are what is prepared without what lies between them. Once the head is a
    /// turn ahead, what is not prepared lies between them, too, and is passed already. The tail is asked first: it follows
    /// the head, so what is stale here gives less room, never more.
    pub(super) fn free_blocks(&self) -> u64 {
        let tail = self.tail.load(Ordering::Acquire);
        let head = self.head.load(Ordering::Acquire);
        let ring = u64::from(self.ring.blocks);
        let room = if head / ring == tail / ring { u64::from(self.prepared()) } else { ring };
        room.saturating_sub(head.saturating_sub(tail))
    }

    /// Blocks of what is prepared that no write reserves.
    fn margin(&self) -> u64 {
        u64::from(LOG_MARGIN_BLOCKS.min(self.prepared() / 2))
    }

    /// How full what is prepared of the ring is, in thousandths.
    pub(crate) fn fill_permille(&self) -> usize {
        self.fill_permille_of(u64::from(self.prepared()))
    }

    fn fill_permille_of(&self, blocks: u64) -> usize {
        (u64::from(self.prepared()).saturating_sub(self.free_blocks()) * WHOLE as u64 / blocks) as usize
    }

    /// Whether an apply is due for the log's sake: against what writes may reserve, so that one that finds no room finds this.
    pub(crate) fn is_apply_due(&self) -> bool {
        self.pace.is_due(self.fill_permille_of(u64::from(self.prepared()) - self.margin()))
    }

    /// How far the head is, in thousandths of what is prepared.
    pub(crate) fn came_permille(&self) -> usize {
        (self.head.load(Ordering::Acquire) * WHOLE as u64 / u64::from(self.prepared())) as usize
    }

    /// Whether a reservation of so many blocks may find no room before an apply is due.
    pub(crate) fn is_large(&self, blocks: u32) -> bool {
        may_not_fit(blocks as usize, self.prepared() as usize - self.margin() as usize)
    }

    /// Blocks from `position` to the end of what is prepared.
    pub(super) fn rest(&self, position: u64) -> u32 {
        let offset = (position % u64::from(self.ring.blocks)) as u32;
        self.prepared().saturating_sub(offset)
    }

    /// Whether a write batch that reserves `blocks` blocks finds room once everything is applied, and leaves room for others.
    pub(crate) fn suits(&self, blocks: u32) -> bool {
        self.prepared() == self.ring.blocks || blocks.saturating_mul(4) <= self.prepared()
    }

    /// Blocks of the ring that a record of so many bytes may take, with a batch of its own.
    pub(crate) fn blocks_of(record_bytes: usize) -> u32 {
        blocks_for((BATCH_HEADER_BYTES + record_bytes) as u64) as u32
    }

    /// Most bytes that the records of one write batch may have: their batch in the log must fit in the ring several times, however full that is.
    pub(crate) fn write_batch_bytes_max(&self) -> usize {
        let ring_bytes = self.ring.blocks as usize * BLOCK_BYTES;
        (ring_bytes / 8).min(WRITE_BATCH_BYTES_MAX)
    }

    /// Blocks of the ring that a write batch of several records may take. Its batch in the log may be so long that what is left out at the ring's
    /// end because of it is more than the margin.
    pub(crate) fn blocks_of_many(record_bytes: usize) -> u32 {
        2 * Self::blocks_of(record_bytes)
    }

    /// Takes room in the ring for a record; false where there is none now.
    pub(crate) fn reserve(&self, blocks: u32) -> bool {
        let margin = self.margin();
        self.reserved
            .try_update(Ordering::AcqRel, Ordering::Acquire, |reserved| {
                let wanted = reserved + u64::from(blocks);
                (wanted + margin <= self.free_blocks()).then_some(wanted)
            })
            .is_ok()
    }

    /// Gives room back that no record will use.
    pub(crate) fn unreserve(&self, blocks: u32) {
        self.reserved.fetch_sub(u64::from(blocks), Ordering::AcqRel);
    }
}
