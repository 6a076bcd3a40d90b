//! The ways to ask for units: what is there, one unit, several at once, and ahead of need.
//!
//! Whoever misses reads: under [`shoal_base::task::block_on`] the calling thread makes the system call itself, elsewhere
//! the request is submitted and its completion wakes everybody who waits.

use std::sync::Arc;

use shoal_base::sync::atomic::Ordering;

use crate::PoolError;
use crate::ahead::Ahead;
use crate::frame::{Frames, ReadFrames};
use crate::load::{Load, Part, ReadRequest, Wait};
use crate::pin::Pinned;
use crate::policy::Scanned;
use crate::pool::Pool;
use crate::table::ShardGuard;
use crate::unit::{Hint, Unit};

/// Most blocks that one request reads for several adjacent units: 256 KiB.
const READ_MERGE_BLOCKS_MAX: usize = 64;

/// A prefetch stops when the units that are on their way take this part of the pool.
const PREFETCH_SHARE: usize = 4;

/// What is wanted, and why.
pub(crate) struct Hinted<'a> {
    pub(crate) unit: &'a Unit,
    pub(crate) hint: Hint,
}

/// How a request for a unit begins.
pub(crate) enum Begun<'a> {
    Hit(Pinned),
    /// Somebody reads it already.
    Joined(Wait<'a>),
    /// Ours to read.
    Ours(Wait<'a>, Part),
    /// Ours to read, but frames are needed first.
    FramesNeeded,
    /// Somebody writes to it, or will: the slot to wait for.
    Latched(u32),
}

/// What the table says of a unit.
enum Seen {
    Hit(Pinned),
    /// Somebody writes to it, or will, or reads it on its own thread: the slot to wait for.
    Latched(u32),
    Absent,
}

/// How a read on this thread begins.
enum Reserved {
    Hit(Pinned),
    Ours(Frames),
    /// Somebody has it; the frames are of use if that fails.
    Elsewhere(Frames),
}

/// What becomes of one unit of several.
enum Fate<'a> {
    Done(Result<Pinned, PoolError>),
    Waits(Wait<'a>),
    /// To be fetched alone.
    Alone,
}

impl Pool {
    /// The unit, where it is resident. Never waits; counts as a lookup.
    #[inline]
    #[must_use]
    pub fn get(&self, unit: &Unit) -> Option<Pinned> {
        self.get_hinted(unit, Hint::Lookup)
    }

    /// The unit, where it is resident. Never waits.
    #[inline]
    #[must_use]
    pub fn get_hinted(&self, unit: &Unit, hint: Hint) -> Option<Pinned> {
        self.glance(unit, hint).or_else(|| self.get_locked(unit, hint))
    }

    /// The unit, as far as can be seen without a lock: it may be missed while its chain changes.
    #[inline]
    fn glance(&self, unit: &Unit, hint: Hint) -> Option<Pinned> {
        let inner = self.inner();
        let index = inner
            .table
            .glance(&inner.slots, unit.id.block)
            .find(|&index| inner.slots[index as usize].is(unit))?;
        self.pin_as(index, unit, hint)
    }

    /// Pins the slot if it (still) names `unit`.
    #[inline]
    fn pin_as(&self, index: u32, unit: &Unit, hint: Hint) -> Option<Pinned> {
        let inner = self.inner();
        let pinned = inner.pin_hit(index)?;
        let slot = &inner.slots[index as usize];
        if !slot.is(unit) {
            // The slot was reused between the comparison and the pin.
            slot.word().uncount_hit();
            return None;
        }
        inner.policy.touched(slot, index, hint);
        if slot.word().is_full_of_hits() {
            inner.stats.hits.add(slot.word().collect_hits());
        }
        Some(pinned)
    }

    #[cold]
    fn get_locked(&self, unit: &Unit, hint: Hint) -> Option<Pinned> {
        let guard = self.inner().table.lock(unit.id.block);
        match self.look(unit, hint, &guard) {
            Seen::Hit(pinned) => Some(pinned),
            Seen::Latched(_) | Seen::Absent => None,
        }
    }

    /// Looks for the unit under the lock. A slot that names it is looked at until it is pinned, or seen latched, or seen
    /// vacant: to take one that was unlatched meanwhile for absent would make a second copy of the unit.
    fn look(&self, unit: &Unit, hint: Hint, guard: &ShardGuard<'_>) -> Seen {
        let inner = self.inner();
        for index in inner.table.chain(&inner.slots, unit.id.block, guard) {
            let slot = &inner.slots[index as usize];
            while slot.is(unit) && slot.word().is_resident_or_latched() {
                if let Some(pinned) = inner.pin_hit(index) {
                    assert!(slot.is(unit), "a slot in the table was renamed under the lock");
                    inner.policy.touched(slot, index, hint);
                    return Seen::Hit(pinned);
                }
                if slot.word().is_latched() {
                    return Seen::Latched(index);
                }
            }
        }
        Seen::Absent
    }

    /// The unit, read and verified where it is not resident. Concurrent fetches of one unit share one read. Dropping
    /// the future leaves the read to itself.
    ///
    /// # Errors
    /// [`PoolError::Device`], [`PoolError::Corrupt`]: every fetch that shared the read gets it, and nothing stays.
    /// [`PoolError::Exhausted`] where no frame came free for the time that the options give, [`PoolError::Invalid`].
    pub async fn fetch(&self, unit: Unit, hint: Hint) -> Result<Pinned, PoolError> {
        unit.validate()?;
        if let Some(pinned) = self.glance(&unit, hint) {
            return Ok(pinned);
        }
        let mut frames = None;
        if self.does_it_itself()
            && let Some(taken) = self.try_take(unit.blocks(), hint)
        {
            match self.reserve(&unit, hint, taken) {
                Reserved::Ours(frames) => {
                    let frames = self.read_here(&unit, frames)?;
                    let (inner, index) = (self.inner(), frames.list().head);
                    inner.policy.entered(&inner.slots[index as usize], index, hint);
                    return Ok(inner.publish_one(frames));
                }
                Reserved::Hit(pinned) => return Ok(pinned),
                Reserved::Elsewhere(taken) => frames = Some(taken),
            }
        }
        loop {
            let wait = match self.begin(&unit, hint, frames.take()) {
                Begun::Hit(pinned) => return Ok(pinned),
                Begun::Joined(wait) => wait,
                Begun::Ours(wait, part) => {
                    self.read_one(part);
                    wait
                }
                Begun::FramesNeeded => {
                    frames = Some(self.take(unit.blocks(), hint).await?);
                    continue;
                }
                Begun::Latched(index) => {
                    self.unlatched(index).await;
                    continue;
                }
            };
            if let Some(result) = wait.await {
                return result;
            }
        }
    }

    /// The units in their order, those that are not resident read in one batch; neighbours share a request.
    ///
    /// All of them are pinned at the end, so they have to fit the pool together: what does not gives
    /// [`PoolError::Exhausted`].
    pub async fn fetch_all(&self, units: &[Unit], hint: Hint) -> Vec<Result<Pinned, PoolError>> {
        let mut parts = Vec::new();
        let fates: Vec<_> = units.iter().map(|unit| self.begin_one_of(unit, hint, &mut parts)).collect();
        self.start(grouped(parts), false, None);
        let mut results = Vec::with_capacity(units.len());
        for (fate, unit) in fates.into_iter().zip(units) {
            let result = match fate {
                Fate::Done(result) => Some(result),
                Fate::Waits(wait) => wait.await,
                Fate::Alone => None,
            };
            results.push(match result {
                Some(result) => result,
                None => self.fetch(*unit, hint).await,
            });
        }
        results
    }

    fn begin_one_of<'a>(&'a self, unit: &Unit, hint: Hint, parts: &mut Vec<Part>) -> Fate<'a> {
        if let Err(error) = unit.validate() {
            return Fate::Done(Err(error));
        }
        if let Some(pinned) = self.glance(unit, hint) {
            return Fate::Done(Ok(pinned));
        }
        match self.begin_now(unit, hint) {
            Begun::Hit(pinned) => Fate::Done(Ok(pinned)),
            Begun::Joined(wait) => Fate::Waits(wait),
            Begun::Ours(wait, part) => {
                parts.push(part);
                Fate::Waits(wait)
            }
            Begun::FramesNeeded | Begun::Latched(_) => Fate::Alone,
        }
    }

    /// Starts reading what is not resident, in the background, as far as frames can be had at once; nobody waits, and
    /// errors are left to whoever fetches. Units on their way take at most a quarter of the pool.
    pub fn prefetch(&self, units: &[Unit], hint: Hint) {
        let inner = self.inner();
        let mut parts = Vec::new();
        for unit in units {
            let under_way = inner.prefetching.load(Ordering::Relaxed);
            if under_way + unit.blocks() > inner.slots.len() / PREFETCH_SHARE {
                break;
            }
            if unit.validate().is_err() || self.is_there(unit) {
                continue;
            }
            if let Begun::Ours(wait, (load, frames)) = self.begin_now(unit, hint) {
                drop(wait);
                load.mark_prefetch();
                parts.push((load, frames));
            }
        }
        self.start(grouped(parts), true, None);
    }

    /// Starts the reads of a stream in the background. `parts` are neighbours, but for gaps.
    pub(crate) fn read_ahead(&self, groups: Vec<Vec<Part>>, stream: &Arc<Ahead>) {
        self.start(groups, true, Some(stream));
    }

    /// Whether the unit is resident or on its way.
    pub(crate) fn is_there(&self, unit: &Unit) -> bool {
        let inner = self.inner();
        let guard = inner.table.lock(unit.id.block);
        let mut chain =
            inner.table.chain(&inner.slots, unit.id.block, &guard).map(|index| &inner.slots[index as usize]);
        chain.any(|slot| slot.is(unit) && slot.word().is_resident_or_latched())
            || guard.loads.iter().any(|load| load.unit == *unit)
    }

    /// Begins without waiting for frames.
    pub(crate) fn begin_now(&self, unit: &Unit, hint: Hint) -> Begun<'_> {
        match self.begin(unit, hint, None) {
            Begun::FramesNeeded => match self.try_take(unit.blocks(), hint) {
                Some(frames) => self.begin(unit, hint, Some(frames)),
                None => Begun::FramesNeeded,
            },
            begun => begun,
        }
    }

    /// Looks again under the lock, and where nobody has the unit takes it on with `frames`.
    fn begin(&self, unit: &Unit, hint: Hint, frames: Option<Frames>) -> Begun<'_> {
        let inner = self.inner();
        let mut guard = inner.table.lock(unit.id.block);
        match self.look(unit, hint, &guard) {
            Seen::Hit(pinned) => {
                drop(guard);
                return Begun::Hit(pinned);
            }
            Seen::Latched(index) => {
                if !inner.slots[index as usize].word().is_resident() {
                    inner.stats.coalesced.add(1);
                }
                return Begun::Latched(index);
            }
            Seen::Absent => {}
        }
        if let Some(load) = guard.loads.iter().find(|load| load.unit == *unit) {
            inner.stats.coalesced.add(1);
            return Begun::Joined(load.join(self, hint));
        }
        let Some(frames) = frames else { return Begun::FramesNeeded };
        let frames = match inner.from_aside(Hinted { unit, hint }, frames, &mut guard) {
            Ok(pinned) => return Begun::Hit(pinned),
            Err(frames) => frames,
        };
        let index = frames.list().head;
        inner.slots[index as usize].name(unit);
        inner.table.link(&inner.slots, index, &guard);
        let load = Load::new(inner.clone(), *unit, hint);
        let wait = load.join(self, hint);
        guard.loads.push(load.clone());
        inner.stats.misses.add(1);
        Begun::Ours(wait, (load, frames))
    }

    /// Looks again under the lock, and where nobody has the unit takes it on: who else wants it waits for the slot.
    fn reserve(&self, unit: &Unit, hint: Hint, frames: Frames) -> Reserved {
        let inner = self.inner();
        let mut guard = inner.table.lock(unit.id.block);
        match self.look(unit, hint, &guard) {
            Seen::Hit(pinned) => {
                drop(guard);
                return Reserved::Hit(pinned);
            }
            Seen::Latched(_) => return Reserved::Elsewhere(frames),
            Seen::Absent if guard.loads.iter().any(|load| load.unit == *unit) => {
                return Reserved::Elsewhere(frames);
            }
            Seen::Absent => {}
        }
        let frames = match inner.from_aside(Hinted { unit, hint }, frames, &mut guard) {
            Ok(pinned) => return Reserved::Hit(pinned),
            Err(frames) => frames,
        };
        let index = frames.list().head;
        let slot = &inner.slots[index as usize];
        slot.name(unit);
        slot.word().reserve();
        inner.table.link(&inner.slots, index, &guard);
        Reserved::Ours(frames)
    }

    /// A page for a scan that reads for itself, on this thread, which may block; `own` is what it read last, whose frame is
    /// used again, and then this page, where it had to be read. `None` where it is to be fetched as any other.
    pub(crate) fn read_in_place(
        &self,
        unit: &Unit,
        own: &mut Option<Scanned>,
    ) -> Option<Result<Pinned, PoolError>> {
        if let Some(pinned) = self.glance(unit, Hint::Scan) {
            return Some(Ok(pinned));
        }
        let inner = self.inner();
        let (frames, counted) = match own.take().map(|entry| (entry, self.reclaim(entry))) {
            Some((_, Some(reclaimed))) => reclaimed,
            Some((entry, None)) => {
                inner.policy.queue(entry);
                (self.try_take(1, Hint::Scan)?, false)
            }
            None => (self.try_take(1, Hint::Scan)?, false),
        };
        let result = match self.reserve(unit, Hint::Scan, frames) {
            Reserved::Ours(frames) => self.read_here(unit, frames).map(Some),
            Reserved::Hit(pinned) => {
                if counted {
                    inner.policy.uncount_scanned();
                }
                return Some(Ok(pinned));
            }
            Reserved::Elsewhere(frames) => {
                drop(frames);
                Ok(None)
            }
        };
        match result {
            Ok(Some(frames)) => {
                let index = frames.list().head;
                *own = Some(inner.policy.entered_for(&inner.slots[index as usize], index, counted));
                Some(Ok(inner.publish_one(frames)))
            }
            other => {
                if counted {
                    inner.policy.uncount_scanned();
                }
                other.err().map(Err)
            }
        }
    }

    /// The frame of what a scan read before, written first where it was changed; whether it counts as the scans'.
    fn reclaim(&self, entry: Scanned) -> Option<(Frames, bool)> {
        if let Some(page) = self.pin_dirty(entry.index()) {
            self.write_here(page);
        }
        self.inner().reclaim(entry)
    }

    /// Reads a reserved unit on this thread, which may block, without anything that a hand-off needs. Gives the frames
    /// with the verified bytes, to be published.
    fn read_here(&self, unit: &Unit, frames: Frames) -> Result<Frames, PoolError> {
        let inner = self.inner();
        inner.stats.misses.add(1);
        let index = frames.list().head;
        let begun = inner.latency.begun();
        let outcome = self.lane().read_now(unit.id.block, ReadFrames(smallvec::smallvec![frames]));
        inner.latency.ended(begun);
        let Some(frames) = outcome.memory.0.into_iter().next() else {
            unreachable!("a read gives its memory back")
        };
        let (offset, bytes) = unit.extent();
        let verified = match outcome.result {
            Ok(()) => unit.verify(frames.chunks(offset, bytes)).inspect_err(|_| inner.stats.corrupt.add(1)),
            Err(error) => {
                inner.stats.read_errors.add(1);
                Err(error.into())
            }
        };
        if let Err(error) = verified {
            let guard = inner.table.lock(unit.id.block);
            inner.table.unlink(&inner.slots, index, &guard);
            let awaited = inner.slots[index as usize].word().unreserve();
            drop(guard);
            drop(frames);
            if awaited {
                inner.latches.wake(index);
            }
            return Err(error);
        }
        Ok(frames)
    }

    /// Makes `frames`, zeroed, the page that changes in place, pinned and dirty; `None` where it is there already or on its
    /// way.
    pub(crate) fn install(&self, unit: &Unit, hint: Hint, mut frames: Frames) -> Option<Pinned> {
        let inner = self.inner();
        frames.first_mut().fill(0);
        let guard = inner.table.lock(unit.id.block);
        let on_its_way = guard.loads.iter().any(|load| load.unit == *unit);
        let mut chain = inner.table.chain(&inner.slots, unit.id.block, &guard);
        if on_its_way || chain.any(|index| inner.slots[index as usize].is(unit)) {
            drop(guard);
            return None;
        }
        let index = frames.list().head;
        let slot = &inner.slots[index as usize];
        slot.name(unit);
        inner.policy.entered(slot, index, hint);
        inner.table.link(&inner.slots, index, &guard);
        let pinned = inner.publish_one(frames);
        // Pinned it cannot be taken before it is dirty.
        slot.word().soil();
        drop(guard);
        Some(pinned)
    }

    fn read_one(&self, part: Part) {
        let (block, memory, request) = ReadRequest::new([part], None);
        let mut io = self.lane().read(block, memory);
        io.start();
        request.arm(io);
        self.replenish();
    }

    /// Starts the requests with one submission.
    fn start(&self, groups: Vec<Vec<Part>>, background: bool, stream: Option<&Arc<Ahead>>) {
        let mut batch = self.lane().batch();
        let mut requests = Vec::with_capacity(groups.len());
        for group in groups {
            let (block, memory, request) = ReadRequest::new(group, stream);
            requests.push((request, batch.add(self.lane().read(block, memory))));
        }
        if background {
            batch.start_in_background();
        } else {
            batch.start();
        }
        for (request, io) in requests {
            request.arm(io);
        }
    }
}

/// The reads of several loads, a group a request: neighbours share one.
pub(crate) fn grouped(mut parts: Vec<Part>) -> Vec<Vec<Part>> {
    parts.sort_by_key(|(load, _)| load.unit.id.block);
    let mut groups = Vec::new();
    let mut parts = parts.into_iter().peekable();
    while let Some(first) = parts.next() {
        let mut group = vec![first];
        let mut end = group[0].0.unit.run().end();
        let mut blocks = group[0].0.unit.blocks();
        while let Some(next) = parts.next_if(|(load, _)| {
            load.unit.id.block == end && blocks + load.unit.blocks() <= READ_MERGE_BLOCKS_MAX
        }) {
            end = next.0.unit.run().end();
            blocks += next.0.unit.blocks();
            group.push(next);
        }
        groups.push(group);
    }
    groups
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use crate::tests::{page_unit, pool_of, run};

    #[test]
    fn a_slot_that_was_reused_before_the_pin_is_not_served() {
        let (pool, _device) = pool_of(1, 4);
        let pinned = run(pool.fetch(page_unit(1, 0), Hint::Lookup)).unwrap();
        let index = pinned.index();
        drop(pinned);
        drop(run(pool.fetch(page_unit(2, 0), Hint::Lookup)).unwrap());
        assert!(pool.pin_as(index, &page_unit(1, 0), Hint::Lookup).is_none());
        assert_eq!((pool.counters().frames_pinned, pool.counters().hits), (0, 0));
        assert!(pool.pin_as(index, &page_unit(2, 0), Hint::Lookup).is_some());
        assert_eq!(pool.counters().hits, 1);
    }
}
