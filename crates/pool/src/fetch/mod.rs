//! The ways to fetch: a resident unit, one unit, several at once, and ahead of need.
//!
//! A fetch that misses reads: under [`shoal_base::task::block_on`] the calling thread makes the system call itself;
//! otherwise the request is submitted, and its completion wakes all waiters.
//!
//! The path of a fetch: [`Pool::get_hinted`] looks without a lock, [`Pool::fetch`] continues under the shard's lock,
//! frames come from `evict`, the read from [`read`].

pub(crate) mod read;

use shoal_base::sync::atomic::Ordering;

use crate::PoolError;
use crate::memory::frame::Frames;
use crate::policy::Scanned;
use crate::pool::Pool;
use crate::requests::{Driven, neighbours, start};
use crate::resident::pin::Pinned;
use crate::table::ShardGuard;
use crate::table::load::Wait;
use crate::unit::{Hint, Unit};
use read::{Part, Read};

/// Most blocks that one request reads for several adjacent units: 256 KiB.
const READ_MERGE_BLOCKS_MAX: usize = 64;

/// A prefetch stops when the units that are on their way take this part of the pool.
const PREFETCH_SHARE: usize = 4;

/// The first step of an attempt to get a unit.
pub(crate) enum Attempt<'a> {
    Hit(Pinned),
    /// Another fetch reads it already.
    Joined(Wait<'a>),
    /// Ours to read.
    Ours(Wait<'a>, Part),
    /// The caller has to read it, but needs frames first.
    FramesNeeded,
    /// A writer has it, or will have it soon; the slot to wait for.
    Latched(u32),
}

/// The table's state of a unit.
enum Seen {
    Hit(Pinned),
    /// A writer has it, or will have it soon, or another thread reads it itself; the slot to wait for.
    Latched(u32),
    Absent,
}

/// The first step of a read on this thread.
enum Reserved {
    Hit(Pinned),
    Ours(Frames),
    /// Another fetch has it; the frames are useful if that one fails.
    Elsewhere(Frames),
}

/// The state of one unit of several.
enum Fate<'a> {
    Done(Result<Pinned, PoolError>),
    Waits(Wait<'a>),
    /// To be fetched alone.
    Alone,
}

impl Pool {
    /// The unit if it is resident. Never waits; counts as a lookup.
    #[inline]
    #[must_use]
    pub fn get(&self, unit: &Unit) -> Option<Pinned> {
        self.get_hinted(unit, Hint::Lookup)
    }

    /// The unit if it is resident. Never waits.
    #[inline]
    #[must_use]
    pub fn get_hinted(&self, unit: &Unit, hint: Hint) -> Option<Pinned> {
        self.glance(unit, hint).or_else(|| self.get_locked(unit, hint))
    }

    /// The unit, looked up without a lock: it may be missed while its chain changes.
    #[inline]
    fn glance(&self, unit: &Unit, hint: Hint) -> Option<Pinned> {
        let index =
            self.shared().table.glance(unit.id.block).find(|&index| self.residents().slot(index).is(unit))?;
        self.pin_as(index, unit, hint)
    }

    /// Pins the slot if it still names `unit`.
    #[inline]
    fn pin_as(&self, index: u32, unit: &Unit, hint: Hint) -> Option<Pinned> {
        let pinned = self.residents().pin_hit(index)?;
        let slot = self.residents().slot(index);
        if !slot.is(unit) {
            // The slot was reused between the comparison and the pin.
            slot.word.uncount_hit();
            return None;
        }
        self.shared().policy.touched(slot, index, hint);
        if slot.word.is_full_of_hits() {
            self.residents().hits.add(slot.word.collect_hits());
        }
        Some(pinned)
    }

    #[cold]
    fn get_locked(&self, unit: &Unit, hint: Hint) -> Option<Pinned> {
        let guard = self.shared().table.lock(unit.id.block);
        match self.look(unit, hint, &guard) {
            Seen::Hit(pinned) => Some(pinned),
            Seen::Latched(_) | Seen::Absent => None,
        }
    }

    /// Looks the unit up under the lock. Repeats for a slot that names it until the slot is pinned, latched or vacant:
    /// otherwise a unit that was unlatched meanwhile would seem absent, and get a second copy.
    fn look(&self, unit: &Unit, hint: Hint, guard: &ShardGuard<'_>) -> Seen {
        let shared = self.shared();
        for index in shared.table.chain(unit.id.block, guard) {
            let slot = shared.residents.slot(index);
            while slot.is(unit) && slot.word.is_resident_or_latched() {
                if let Some(pinned) = shared.residents.pin_hit(index) {
                    assert!(slot.is(unit), "a slot in the table was renamed under the lock (R11)");
                    shared.policy.touched(slot, index, hint);
                    return Seen::Hit(pinned);
                }
                if slot.word.is_latched() {
                    return Seen::Latched(index);
                }
            }
        }
        Seen::Absent
    }

    /// The unit; reads and verifies it if it is not resident. Concurrent fetches of one unit share one read. If the
    /// future is dropped, the read completes by itself.
    ///
    /// # Errors
    /// [`PoolError::Device`], [`PoolError::Corrupt`]: every fetch that shared the read gets it, and nothing stays.
    /// [`PoolError::Exhausted`] if no frame became free in the time of the options, [`PoolError::Invalid`].
    pub async fn fetch(&self, unit: Unit, hint: Hint) -> Result<Pinned, PoolError> {
        self.fetch_as(unit, hint, true).await
    }

    /// As [`fetch`](Self::fetch), without waiting for a frame: for a caller that pins many units and could deadlock with
    /// itself.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch); [`PoolError::Exhausted`] if no frame is free.
    pub async fn try_fetch(&self, unit: Unit, hint: Hint) -> Result<Pinned, PoolError> {
        self.fetch_as(unit, hint, false).await
    }

    async fn fetch_as(&self, unit: Unit, hint: Hint, waits: bool) -> Result<Pinned, PoolError> {
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
                    let frames = self.read_here(&unit, hint, frames)?;
                    let index = frames.list().head;
                    self.shared().policy.entered(self.residents().slot(index), index, hint);
                    return Ok(self.residents().publish_one(frames));
                }
                Reserved::Hit(pinned) => return Ok(pinned),
                Reserved::Elsewhere(taken) => frames = Some(taken),
            }
        }
        loop {
            let wait = match self.begin(&unit, hint, frames.take(), false) {
                Attempt::Hit(pinned) => return Ok(pinned),
                Attempt::Joined(wait) => wait,
                Attempt::Ours(wait, part) => {
                    let (mut io, read) = Read::request(self, [part], None);
                    io.start();
                    Driven::drive(io, read);
                    self.replenish();
                    wait
                }
                Attempt::FramesNeeded if waits => {
                    frames = Some(self.take(unit.blocks(), hint).await?);
                    continue;
                }
                Attempt::FramesNeeded => {
                    let taken = self.try_take(unit.blocks(), hint);
                    frames = Some(taken.ok_or_else(|| self.exhausted())?);
                    continue;
                }
                Attempt::Latched(index) => {
                    self.unlatched(index).await;
                    continue;
                }
            };
            if let Some(result) = wait.await {
                return result;
            }
        }
    }

    /// The units in their order. Units that are not resident are read in one batch; neighbours share a request.
    ///
    /// All units are pinned at the end, so they must fit in the pool at once: units that do not fit return
    /// [`PoolError::Exhausted`].
    pub async fn fetch_all(&self, units: &[Unit], hint: Hint) -> Vec<Result<Pinned, PoolError>> {
        let mut parts = Vec::new();
        let fates: Vec<_> = units.iter().map(|unit| self.begin_one_of(unit, hint, &mut parts)).collect();
        self.start_reads(parts, false);
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
        match self.begin_now(unit, hint, false) {
            Attempt::Hit(pinned) => Fate::Done(Ok(pinned)),
            Attempt::Joined(wait) => Fate::Waits(wait),
            Attempt::Ours(wait, part) => {
                parts.push(part);
                Fate::Waits(wait)
            }
            Attempt::FramesNeeded | Attempt::Latched(_) => Fate::Alone,
        }
    }

    /// Starts reading the units that are not resident, in the background, as far as frames are available at once. Never
    /// waits, and leaves errors to the fetches. Prefetched units in flight take at most a quarter of the pool.
    pub fn prefetch(&self, units: &[Unit], hint: Hint) {
        let mut parts = Vec::new();
        for unit in units {
            let under_way = self.shared().prefetching.load(Ordering::Relaxed);
            if under_way + unit.blocks() > self.frames() / PREFETCH_SHARE {
                break;
            }
            if unit.validate().is_err() || self.is_there(unit) {
                continue;
            }
            if let Attempt::Ours(wait, part) = self.begin_now(unit, hint, true) {
                drop(wait);
                parts.push(part);
            }
        }
        self.start_reads(parts, true);
    }

    /// Returns true if the unit is resident or in flight.
    pub(crate) fn is_there(&self, unit: &Unit) -> bool {
        let shared = self.shared();
        let guard = shared.table.lock(unit.id.block);
        let mut slots = shared.table.chain(unit.id.block, &guard).map(|index| shared.residents.slot(index));
        slots.any(|slot| slot.is(unit) && slot.word.is_resident_or_latched()) || guard.is_loading(unit)
    }

    /// Starts without waiting for frames.
    pub(crate) fn begin_now(&self, unit: &Unit, hint: Hint, is_prefetch: bool) -> Attempt<'_> {
        match self.begin(unit, hint, None, is_prefetch) {
            Attempt::FramesNeeded => match self.try_take(unit.blocks(), hint) {
                Some(frames) => self.begin(unit, hint, Some(frames), is_prefetch),
                None => Attempt::FramesNeeded,
            },
            other => other,
        }
    }

    /// Looks again under the lock; if no other fetch has the unit, starts its load with `frames`.
    fn begin(&self, unit: &Unit, hint: Hint, frames: Option<Frames>, is_prefetch: bool) -> Attempt<'_> {
        let shared = self.shared();
        let mut guard = shared.table.lock(unit.id.block);
        match self.look(unit, hint, &guard) {
            Seen::Hit(pinned) => {
                drop(guard);
                return Attempt::Hit(pinned);
            }
            Seen::Latched(index) => {
                if !shared.residents.slot(index).word.is_resident() {
                    shared.stats.coalesced.add(1);
                }
                return Attempt::Latched(index);
            }
            Seen::Absent => {}
        }
        if let Some(load) = guard.loads.iter().find(|load| load.unit == *unit) {
            shared.stats.coalesced.add(1);
            return Attempt::Joined(load.join(self, hint));
        }
        let Some(frames) = frames else { return Attempt::FramesNeeded };
        let frames = match shared.restore(unit, hint, frames, &mut guard) {
            Ok(pinned) => return Attempt::Hit(pinned),
            Err(frames) => frames,
        };
        let index = frames.list().head;
        shared.residents.slot(index).name(unit);
        shared.table.link(index, &guard);
        let load = shared.load(unit, hint, is_prefetch);
        let wait = load.join(self, hint);
        guard.loads.push(load.clone());
        Attempt::Ours(wait, (load, frames))
    }

    /// Looks again under the lock; if no other fetch has the unit, reserves it: other fetches wait for the slot.
    fn reserve(&self, unit: &Unit, hint: Hint, frames: Frames) -> Reserved {
        let shared = self.shared();
        let mut guard = shared.table.lock(unit.id.block);
        match self.look(unit, hint, &guard) {
            Seen::Hit(pinned) => {
                drop(guard);
                return Reserved::Hit(pinned);
            }
            Seen::Latched(_) => return Reserved::Elsewhere(frames),
            Seen::Absent if guard.is_loading(unit) => return Reserved::Elsewhere(frames),
            Seen::Absent => {}
        }
        let frames = match shared.restore(unit, hint, frames, &mut guard) {
            Ok(pinned) => return Reserved::Hit(pinned),
            Err(frames) => frames,
        };
        let index = frames.list().head;
        let slot = shared.residents.slot(index);
        slot.name(unit);
        slot.word.reserve();
        shared.table.link(index, &guard);
        Reserved::Ours(frames)
    }

    /// Waits while the slot is latched.
    pub(crate) async fn unlatched(&self, index: u32) {
        let residents = self.residents();
        residents.latches.wait(index, || residents.slot(index).word.tell_when_unlatched()).await;
    }

    /// A page for a scan that reads on this thread, which may block. `own` is the page that the scan read last, whose
    /// frame is reused; it becomes this page if that had to be read. `None` if the page must be fetched like any other.
    pub(crate) fn read_in_place(
        &self,
        unit: &Unit,
        own: &mut Option<Scanned>,
    ) -> Option<Result<Pinned, PoolError>> {
        if let Some(pinned) = self.glance(unit, Hint::Scan) {
            return Some(Ok(pinned));
        }
        let shared = self.shared();
        let (frames, counted) = match own.take().map(|entry| (entry, self.reclaim(entry))) {
            Some((_, Some(reclaimed))) => reclaimed,
            entry => {
                entry.into_iter().for_each(|(entry, _)| shared.policy.scanned.push(entry));
                (self.try_take(1, Hint::Scan)?, false)
            }
        };
        let result = match self.reserve(unit, Hint::Scan, frames) {
            Reserved::Ours(frames) => self.read_here(unit, Hint::Scan, frames).map(Some),
            Reserved::Hit(pinned) => {
                if counted {
                    shared.policy.uncount_scanned();
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
                *own = Some(shared.policy.entered_for(shared.residents.slot(index), index, counted));
                Some(Ok(shared.residents.publish_one(frames)))
            }
            other => {
                if counted {
                    shared.policy.uncount_scanned();
                }
                other.err().map(Err)
            }
        }
    }

    /// The frame of a page that a scan read before, written first if it is dirty; `true` means that it counts as
    /// the scans'.
    fn reclaim(&self, entry: Scanned) -> Option<(Frames, bool)> {
        if let Some(page) = self.pin_dirty(entry.index()) {
            self.write_here(page);
        }
        self.shared().reclaim(entry)
    }

    /// Starts reads with one submission; neighbours share a request.
    fn start_reads(&self, parts: Vec<Part>, background: bool) {
        let groups = grouped(parts).into_iter().map(|(_, group)| Read::request(self, group, None));
        start(self.device(), background, groups);
    }
}

/// The reads of several loads, one request per group: neighbours share one.
pub(crate) fn grouped(parts: Vec<Part>) -> Vec<(u64, Vec<Part>)> {
    neighbours(parts, READ_MERGE_BLOCKS_MAX, |(load, _)| load.unit.run())
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
