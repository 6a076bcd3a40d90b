//! Frames for a value that is not on the device yet: its receiver fills them, the device writes from them, and they are
//! resident once the value is durable. So the first read of a value that was just written reads nothing.
//!
//! Invariants:
//! 1. No lookup finds such frames before [`Pool::adopt`] names them. A name has an identity (R11), so a reused block is
//!    not taken for its earlier contents.
//! 2. A written value displaces nothing that is read often. It takes free frames first if the pool has some, and
//!    otherwise frames as a scan does: the frames that will be missed least, no more than the scans' share, and
//!    the same number again while it is in flight.
//! 3. Their total is bounded: a value that gets no frames uses private memory, and is not kept.

use std::fmt;
use std::sync::Arc;

use shoal_base::BLOCK_BYTES;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::sync::atomic::Ordering;
use smallvec::SmallVec;

use crate::memory::frame::{FilledFrames, Frames, SharedFrames, WriteMemory};
use crate::pool::Pool;
use crate::shared::Shared;
use crate::unit::{Hint, Unit};

/// Blocks of a value's unit that starts at the start of a block.
const UNIT_BLOCKS: usize = VALUE_UNIT_BYTES / BLOCK_BYTES;

/// Counts a number of blocks as fresh.
pub(crate) struct Counted {
    shared: Arc<Shared>,
    blocks: usize,
    /// The hint with which they enter the pool.
    hint: Hint,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.fresh.fetch_sub(self.blocks, Ordering::Relaxed);
    }
}

/// Frames to be filled with a value; their contents are left over from earlier uses. Dropping them frees them.
pub struct Fresh {
    /// Of a unit each.
    frames: SmallVec<[Frames; 1]>,
    counted: Counted,
}

/// Filled frames, which are only read from now on. Clones share them; the last clone frees them.
#[derive(Clone)]
pub struct Filled {
    frames: SmallVec<[Arc<Frames>; 1]>,
    counted: Arc<Counted>,
}

impl fmt::Debug for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fresh({} blocks)", self.counted.blocks)
    }
}

impl fmt::Debug for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filled({} blocks)", self.counted.blocks)
    }
}

impl Fresh {
    /// Bytes of all frames.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.counted.blocks * BLOCK_BYTES
    }

    /// The memory of each unit in order; adjacent frames in one piece.
    pub fn units_mut(&mut self) -> impl Iterator<Item = impl Iterator<Item = &mut [u8]>> {
        self.frames.iter_mut().map(|frames| {
            let bytes = frames.count() * BLOCK_BYTES;
            frames.chunks_mut(0, bytes)
        })
    }

    /// The memory of `bytes` bytes from byte `skip` on, in order.
    pub fn pieces_mut(&mut self, skip: usize, bytes: usize) -> SmallVec<[&mut [u8]; 4]> {
        let (mut skip, mut left) = (skip, bytes);
        let mut pieces = SmallVec::new();
        for piece in self.units_mut().flatten() {
            let from = skip.min(piece.len());
            skip -= from;
            let count = left.min(piece.len() - from);
            left -= count;
            if count > 0 {
                pieces.push(&mut piece[from..from + count]);
            }
        }
        pieces
    }

    /// Finishes the filling.
    #[must_use]
    pub fn filled(self) -> Filled {
        let Self { frames, counted } = self;
        Filled { frames: frames.into_iter().map(Arc::new).collect(), counted: Arc::new(counted) }
    }
}

impl Filled {
    /// Bytes of all frames.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.counted.blocks * BLOCK_BYTES
    }

    /// The memory of each unit in order; adjacent frames in one piece.
    pub fn units(&self) -> impl Iterator<Item = impl Iterator<Item = &[u8]>> {
        self.frames.iter().map(|frames| frames.chunks(0, frames.count() * BLOCK_BYTES))
    }

    /// The same memory for a write to the device.
    #[must_use]
    pub fn memory(&self) -> WriteMemory {
        WriteMemory::Filled(FilledFrames {
            frames: SharedFrames(self.frames.clone()),
            _guard: self.counted.clone(),
        })
    }
}

impl Pool {
    /// Frames for a value of `blocks` blocks that starts at the start of a block. `None` if it is too large to be
    /// kept, if too many blocks are in flight already, or if nothing can be evicted for it now.
    #[must_use]
    pub fn fresh(&self, blocks: usize) -> Option<Fresh> {
        let shared = self.shared();
        if blocks == 0 || (blocks * BLOCK_BYTES) as u64 > self.pass_through_bytes() {
            return None;
        }
        let most = shared.policy.scan_frames_max();
        let more = |fresh: usize| (fresh + blocks <= most).then_some(fresh + blocks);
        shared.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let mut counted = Counted { shared: shared.clone(), blocks, hint: Hint::Lookup };
        let mut frames = SmallVec::new();
        let mut left = blocks;
        while left > 0 {
            let count = left.min(UNIT_BLOCKS);
            frames.push(match shared.residents.memory.take(count) {
                Some(free) => free,
                None => {
                    counted.hint = Hint::Scan;
                    self.try_take(count, Hint::Scan)?
                }
            });
            left -= count;
        }
        Some(Fresh { frames, counted })
    }

    /// Makes filled frames resident, one unit each, in their order: the device has their bytes, and no thread changes
    /// them from now on. Units that are resident already stay. Frames that another clone still holds are not kept.
    pub fn adopt(&self, filled: Filled, units: impl IntoIterator<Item = Unit>) {
        let Filled { frames, counted } = filled;
        for (frames, unit) in frames.into_iter().zip(units) {
            assert_eq!(frames.count(), unit.blocks(), "the frames are of this unit");
            if let Some(frames) = Arc::into_inner(frames) {
                self.adopt_one(frames, &unit, counted.hint);
            }
        }
        self.residents().memory.starving.notify();
    }

    fn adopt_one(&self, frames: Frames, unit: &Unit, hint: Hint) {
        let shared = self.shared();
        let guard = shared.table.lock(unit.id.block);
        let mut chain = shared.table.chain(unit.id.block, &guard);
        if guard.is_loading(unit) || chain.any(|index| shared.residents.slot(index).is(unit)) {
            // A second copy of it would never be evicted together with the first.
            drop(guard);
            return;
        }
        // Earlier versions at the block: no reader fetches them any more.
        let earlier = shared.retire(unit.id.block, &guard, |_| true);
        shared.enter(&frames, unit, hint, &guard);
        shared.residents.publish(frames, 0);
        shared.stats.adopted.add(1);
        drop(guard);
        drop(earlier);
    }
}

#[cfg(test)]
mod unit_tests {
    use shoal_base::checksum::crc32c;
    use shoal_device::IoMemory;

    use super::*;
    use crate::tests::{pool_of, run};
    use crate::unit::{Check, UnitId};

    /// Fills `fresh` with `value`.
    fn fill(fresh: &mut Fresh, value: &[u8]) {
        let mut rest = value;
        for piece in fresh.pieces_mut(0, value.len()) {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
        }
        assert!(rest.is_empty());
    }

    fn units(block: u64, identity: u64, value: &[u8]) -> Vec<Unit> {
        let parts = value.chunks(VALUE_UNIT_BYTES);
        let unit = |(at, part): (u64, &[u8])| Unit {
            id: UnitId { block: block + at * UNIT_BLOCKS as u64, identity },
            check: Check::Bytes { offset: 0, bytes: part.len() as u32, crc: crc32c(part) },
        };
        (0..).zip(parts).map(unit).collect()
    }

    #[test]
    fn a_filled_unit_is_found_without_a_read_and_only_by_its_own_id() {
        let (pool, _device) = pool_of(4096, 64);
        let value: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        let mut fresh = pool.fresh(25).unwrap();
        assert_eq!(fresh.byte_count(), 25 * BLOCK_BYTES);
        fill(&mut fresh, &value);
        let skipped: usize = fresh.pieces_mut(70_000, 20_000).iter().map(|piece| piece.len()).sum();
        assert_eq!(skipped, 20_000);
        let filled = fresh.filled();
        let memory = filled.memory();
        let mut bytes = 0;
        memory.segments(&mut |_, segment| bytes += segment);
        assert_eq!(bytes, filled.byte_count());
        let units = units(7, 1, &value);
        assert!(units.iter().all(|unit| pool.get(unit).is_none()), "nobody finds it before it is adopted");
        drop(memory);
        pool.adopt(filled, units.clone());
        let mut read = Vec::new();
        for unit in &units {
            let pinned = run(pool.fetch(*unit, Hint::Lookup)).unwrap();
            pinned.chunks().for_each(|chunk| read.extend_from_slice(chunk));
        }
        assert_eq!(read, value);
        assert_eq!((pool.counters().misses, pool.counters().adopted), (0, 2));
        let later = Unit { id: UnitId { identity: 2, ..units[0].id }, ..units[0] };
        assert!(pool.get(&later).is_none(), "a reused block is another unit");
        pool.forget_unit(UnitId { identity: 3, ..units[1].id });
        assert!(pool.get(&units[1]).is_some(), "another life of it");
        pool.forget_unit(units[1].id);
        assert!(pool.get(&units[1]).is_none());
        // The next use of the block takes the frames' place in the table.
        let mut fresh = pool.fresh(1).unwrap();
        fill(&mut fresh, b"short");
        pool.adopt(fresh.filled(), units_of_short());
        assert!(pool.get(&units[0]).is_none());
        assert!(pool.get(&units_of_short()[0]).is_some());
        assert_eq!(pool.shared().fresh.load(Ordering::Relaxed), 0);
    }

    fn units_of_short() -> Vec<Unit> {
        units(7, 2, b"short")
    }

    #[test]
    fn a_unit_that_is_still_written_or_there_already_is_not_adopted() {
        let (pool, _device) = pool_of(4096, 64);
        let used = || pool.counters().frames_used;
        let mut fresh = pool.fresh(1).unwrap();
        fill(&mut fresh, b"short");
        let filled = fresh.filled();
        let memory = filled.memory();
        pool.adopt(filled, units_of_short());
        assert_eq!((pool.counters().adopted, used()), (0, 1), "the write has the frame");
        drop(memory);
        assert_eq!(used(), 0);
        for _ in 0..2 {
            let mut fresh = pool.fresh(1).unwrap();
            fill(&mut fresh, b"short");
            pool.adopt(fresh.filled(), units_of_short());
        }
        assert_eq!((pool.counters().adopted, used()), (1, 1));
    }

    /// A put that is dropped while the device writes holds its frames until the write completes, and they count until
    /// then.
    #[test]
    fn frames_that_the_device_holds_count() {
        let (pool, _device) = pool_of(4096, 64);
        let most = pool.scan_frames_max();
        let written: Vec<WriteMemory> =
            (0..most / 16).map(|_| pool.fresh(16).unwrap().filled().memory()).collect();
        assert!(pool.fresh(16).is_none(), "the device has all of them");
        drop(written);
        assert!(pool.fresh(16).is_some());
    }

    #[test]
    fn fresh_frames_are_bounded_and_push_out_no_more_than_scans_do() {
        let (pool, _device) = pool_of(4096, 4096 * 2);
        let most = pool.scan_frames_max();
        assert!(pool.fresh(0).is_none());
        assert!(pool.fresh(4096 / 64 + 1).is_none(), "too large to be kept");
        let held: Vec<Fresh> = (0..most / 16).map(|_| pool.fresh(16).unwrap()).collect();
        assert!(pool.fresh(16).is_none(), "all of them are under way");
        drop(held);
        // Pages that are read often fill the pool.
        let pages: Vec<Unit> = (0..4096).map(|block| crate::tests::page_unit(block, 0)).collect();
        for _ in 0..3 {
            for page in &pages {
                drop(run(pool.fetch(*page, Hint::Lookup)).unwrap());
            }
        }
        for round in 0..3 * most as u64 {
            let mut fresh = pool.fresh(1).unwrap();
            fill(&mut fresh, b"short");
            let mut units = units_of_short();
            units[0].id.block = 10_000 + round;
            pool.adopt(fresh.filled(), units);
        }
        let left = pages.iter().filter(|page| pool.is_resident(&page.id)).count();
        assert!(left >= 4096 - most, "{left} of 4096 pages are left");
        assert!(left < 4096, "the pool was full");
    }
}
