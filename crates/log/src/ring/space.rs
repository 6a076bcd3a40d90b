//! The blocks of the log's ring: used, reserved for queued batches, and free.

use shoal_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use shoal_base::{BLOCK_BYTES, blocks_for};

use super::Ring;
use crate::format::BATCH_HEADER_BYTES;

/// Blocks of the ring that admission leaves for seals and for the rest that is skipped at the ring's end.
pub(crate) const LOG_MARGIN_BLOCKS: u32 = 10;

/// Most bytes of records in one write batch, for a ring of any size: a log batch has at most 16 MiB.
const WRITE_BATCH_BYTES_MAX: usize = 8 << 20;

/// The bit of `reserved` that is set while the log lets no record in.
const CLOSED: u64 = 1 << 63;

/// The ring, with its used part.
pub struct RingSpace {
    /// The place of the ring. Changed by the driver, while the log lets no record in ([`move_to`](Self::move_to)): drivers see it
    /// through their token, and the release of `reserved` in [`open`](Self::open) pairs with the acquire in [`reserve`](Self::reserve).
    first: AtomicU64,
    blocks: AtomicU32,
    /// The position of the oldest batch that recovery needs.
    tail: AtomicU64,
    /// Blocks of the ring, from its start on, that batches may use; a batch that would exceed them starts at the
    /// ring's start. Only grows.
    prepared: AtomicU32,
    /// The position of the next batch, as in the index. Release by the driver before it frees reserved blocks; pairs
    /// with the acquire in `used_blocks`.
    head: AtomicU64,
    /// Reserved blocks, and [`CLOSED`].
    reserved: AtomicU64,
}

impl RingSpace {
    pub(crate) fn new(ring: Ring, prepared: u32, tail: u64, head: u64) -> Self {
        assert!(prepared <= ring.blocks, "the prepared part is in the ring (R21)");
        assert!(
            tail <= head && head - tail <= u64::from(ring.blocks),
            "the batches that recovery needs are in the ring (R1)"
        );
        Self {
            first: AtomicU64::new(ring.first),
            blocks: AtomicU32::new(ring.blocks),
            tail: AtomicU64::new(tail),
            prepared: AtomicU32::new(prepared),
            head: AtomicU64::new(head),
            reserved: AtomicU64::new(0),
        }
    }

    #[inline]
    fn ring(&self) -> Ring {
        Ring { first: self.first.load(Ordering::Acquire), blocks: self.blocks.load(Ordering::Acquire) }
    }

    /// The block of the device at `position`.
    pub(crate) fn block(&self, position: u64) -> u64 {
        self.ring().block(position)
    }

    /// The position at the ring's start that follows `position`.
    pub(crate) fn turn(&self, position: u64) -> u64 {
        self.ring().turn(position)
    }

    /// Returns true if batches up to the position `end` overwrite nothing from the tail on.
    pub(crate) fn holds(&self, end: u64) -> bool {
        end - self.tail.load(Ordering::Acquire) <= u64::from(self.ring().blocks)
    }

    /// The position of the oldest batch that recovery needs.
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Sets the tail: a durable superblock needs nothing before it.
    pub(crate) fn set_tail(&self, tail: u64) {
        self.tail.store(tail, Ordering::Release);
    }

    /// Sets the head: the batch before it is durable.
    pub(crate) fn set_head(&self, head: u64) {
        let before = self.head.swap(head, Ordering::AcqRel);
        assert!(before < head, "batches are written one after the other (R1)");
    }

    /// Blocks of the ring between tail and head.
    #[inline]
    pub fn used_blocks(&self) -> u64 {
        self.head.load(Ordering::Acquire).saturating_sub(self.tail.load(Ordering::Acquire))
    }

    /// Blocks of the ring, from its start on, that may be written.
    #[inline]
    pub fn prepared(&self) -> u32 {
        self.prepared.load(Ordering::Acquire)
    }

    /// Notes that the ring is prepared up to `blocks` and that a durable superblock records this.
    pub(crate) fn prepare(&self, blocks: u32) {
        assert!(blocks <= self.ring().blocks, "the prepared part is in the ring (R21)");
        self.prepared.fetch_max(blocks, Ordering::AcqRel);
    }

    /// Blocks that batches may still take, in both parts of the ring: after the head, and before the tail.
    ///
    /// With head and tail in one pass of the ring these are the prepared blocks without those between them. Once the
    /// head is a pass ahead, the unprepared blocks are between them, too, and are passed already. The tail is read
    /// first: it follows the head, so a stale tail results in fewer blocks, never more.
    #[inline]
    pub(crate) fn free_blocks(&self) -> u64 {
        let tail = self.tail.load(Ordering::Acquire);
        let head = self.head.load(Ordering::Acquire);
        let ring = u64::from(self.ring().blocks);
        let room = if head / ring == tail / ring { u64::from(self.prepared()) } else { ring };
        room.saturating_sub(head.saturating_sub(tail))
    }

    /// The fill of the prepared part of the ring, in thousandths.
    #[inline]
    pub(crate) fn fill_permille(&self) -> usize {
        let prepared = u64::from(self.prepared());
        (prepared.saturating_sub(self.free_blocks()) * 1000 / prepared) as usize
    }

    /// Blocks from `position` to the end of the prepared part.
    pub(crate) fn rest(&self, position: u64) -> u32 {
        let offset = (position % u64::from(self.ring().blocks)) as u32;
        self.prepared().saturating_sub(offset)
    }

    /// Returns true if a write batch that reserves `blocks` blocks fits once everything is applied, with room left for
    /// others.
    #[inline]
    pub fn suits(&self, blocks: u32) -> bool {
        self.prepared() == self.ring().blocks || blocks.saturating_mul(4) <= self.prepared()
    }

    /// Most blocks of the ring that a record of this many bytes takes, in a separate batch.
    #[inline]
    pub fn blocks_of(record_bytes: usize) -> u32 {
        blocks_for((BATCH_HEADER_BYTES + record_bytes) as u64) as u32
    }

    /// Most bytes of the records of one write batch: its log batch must fit in the ring several times.
    #[inline]
    pub fn write_batch_bytes_max(&self) -> usize {
        (self.ring_bytes() / 8).min(WRITE_BATCH_BYTES_MAX)
    }

    /// Bytes of the ring.
    #[inline]
    pub(crate) fn ring_bytes(&self) -> usize {
        self.ring().blocks as usize * BLOCK_BYTES
    }

    /// Blocks of the ring that a write batch of several records takes at most. Its log batch may be long, and then
    /// the skipped rest at the ring's end is longer than the margin.
    #[inline]
    pub fn blocks_of_many(record_bytes: usize) -> u32 {
        2 * Self::blocks_of(record_bytes)
    }

    /// Reserves blocks of the ring; returns false if too few are free.
    #[inline]
    pub fn reserve(&self, blocks: u32) -> bool {
        let margin = u64::from(LOG_MARGIN_BLOCKS.min(self.prepared() / 2));
        self.reserved
            .try_update(Ordering::AcqRel, Ordering::Acquire, |reserved| {
                let wanted = reserved + u64::from(blocks);
                let has_room = reserved & CLOSED == 0 && wanted + margin <= self.free_blocks();
                has_room.then_some(wanted)
            })
            .is_ok()
    }

    /// Frees reserved blocks that no record will use.
    #[inline]
    pub fn unreserve(&self, blocks: u32) {
        let before = self.reserved.fetch_sub(u64::from(blocks), Ordering::AcqRel);
        assert!(
            before & !CLOSED >= u64::from(blocks),
            "more blocks of the log released than were reserved (R3)"
        );
    }

    /// From here on nothing can be reserved, until the ring is [opened](Self::open) again.
    pub(crate) fn close(&self) {
        self.reserved.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Reopens the log after [`close`](Self::close).
    pub(crate) fn open(&self) {
        self.reserved.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    /// Returns true if nothing is reserved.
    pub(crate) fn is_unreserved(&self) -> bool {
        self.reserved.load(Ordering::Acquire) & !CLOSED == 0
    }

    /// Switches to another ring: its next batch starts at `position`, and its first `prepared` blocks may be written. The caller
    /// drives; the old ring is closed, and no batch in it is needed.
    pub(crate) fn move_to(&self, ring: Ring, prepared: u32, position: u64) {
        let reserved = self.reserved.load(Ordering::Acquire);
        assert!(
            reserved == CLOSED,
            "the log gets another ring while records are on their way into it (INV-38)"
        );
        assert!(prepared <= ring.blocks, "the prepared part is in the ring (R21)");
        assert!(
            position.is_multiple_of(u64::from(ring.blocks)),
            "the first batch of a ring is at its start (INV-38)"
        );
        self.first.store(ring.first, Ordering::Release);
        self.blocks.store(ring.blocks, Ordering::Release);
        self.prepared.store(prepared, Ordering::Release);
        self.tail.store(position, Ordering::Release);
        self.head.store(position, Ordering::Release);
    }
}
