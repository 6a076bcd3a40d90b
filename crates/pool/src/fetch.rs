//! The ways to ask for units: what is there, one unit, several at once, and ahead of need.
//!
//! Whoever misses reads: under [`shoal_base::task::block_on`] the calling thread makes the system call itself, elsewhere
//! the request is submitted and its completion wakes everybody who waits.

use std::sync::atomic::Ordering;

use crate::PoolError;
use crate::frame::Frames;
use crate::load::{Load, Part, ReadRequest, Wait};
use crate::pin::Pinned;
use crate::pool::Pool;
use crate::table::ShardGuard;
use crate::unit::{Hint, Unit};

/// Most blocks that one request reads for several adjacent units: 256 KiB.
const READ_MERGE_BLOCKS_MAX: usize = 64;

/// A prefetch stops when the units that are on their way take this part of the pool.
const PREFETCH_SHARE: usize = 4;

/// How a request for a unit begins.
enum Begun<'a> {
    Hit(Pinned),
    /// Somebody reads it already.
    Joined(Wait<'a>),
    /// Ours to read.
    Ours(Wait<'a>, Part),
    /// Ours to read, but frames are needed first.
    FramesNeeded,
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
        let inner = self.inner();
        for index in inner.table.glance(&inner.slots, unit.id.block) {
            let slot = &inner.slots[index as usize];
            if !slot.is(unit) {
                continue;
            }
            let Some(pinned) = inner.pin_hit(index) else { break };
            if slot.is(unit) {
                inner.policy.touched(slot, index, hint);
                return Some(pinned);
            }
            // The slot was reused between the comparison and the pin.
            pinned.undo_hit();
            break;
        }
        self.get_locked(unit, hint)
    }

    /// As [`get_hinted`](Self::get_hinted), where the chain may have changed while it was followed.
    #[cold]
    fn get_locked(&self, unit: &Unit, hint: Hint) -> Option<Pinned> {
        let guard = self.inner().table.lock(unit.id.block);
        self.resident(unit, hint, &guard)
    }

    fn resident(&self, unit: &Unit, hint: Hint, guard: &ShardGuard<'_>) -> Option<Pinned> {
        let inner = self.inner();
        inner.table.chain(&inner.slots, unit.id.block, guard).find_map(|index| {
            let slot = &inner.slots[index as usize];
            let pinned = if slot.is(unit) { inner.pin_hit(index)? } else { return None };
            assert!(slot.is(unit), "a slot in the table was renamed under the lock");
            inner.policy.touched(slot, index, hint);
            Some(pinned)
        })
    }

    /// The unit, read and verified where it is not resident. Concurrent fetches of one unit share one read. Dropping
    /// the future leaves the read to itself.
    ///
    /// # Errors
    /// [`PoolError::Device`], [`PoolError::Corrupt`]: every fetch that shared the read gets it, and nothing stays.
    /// [`PoolError::Exhausted`] where no frame came free for the time that the options give, [`PoolError::Invalid`].
    pub async fn fetch(&self, unit: Unit, hint: Hint) -> Result<Pinned, PoolError> {
        unit.validate()?;
        if let Some(pinned) = self.get_hinted(&unit, hint) {
            return Ok(pinned);
        }
        let mut frames = None;
        loop {
            let wait = match self.begin(&unit, hint, frames.take()) {
                Begun::Hit(pinned) => return Ok(pinned),
                Begun::Joined(wait) => wait,
                Begun::Ours(wait, part) => {
                    self.read_one(part);
                    wait
                }
                Begun::FramesNeeded => {
                    frames = Some(self.inner().take(unit.blocks(), hint).await?);
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
        self.read_all(parts, false);
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
        if let Some(pinned) = self.get_hinted(unit, hint) {
            return Fate::Done(Ok(pinned));
        }
        match self.begin_now(unit, hint) {
            Begun::Hit(pinned) => Fate::Done(Ok(pinned)),
            Begun::Joined(wait) => Fate::Waits(wait),
            Begun::Ours(wait, part) => {
                parts.push(part);
                Fate::Waits(wait)
            }
            Begun::FramesNeeded => Fate::Alone,
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
        self.read_all(parts, true);
    }

    /// Whether the unit is resident or on its way.
    fn is_there(&self, unit: &Unit) -> bool {
        let inner = self.inner();
        let guard = inner.table.lock(unit.id.block);
        let mut chain =
            inner.table.chain(&inner.slots, unit.id.block, &guard).map(|index| &inner.slots[index as usize]);
        chain.any(|slot| slot.is(unit) && slot.is_resident()) || guard.iter().any(|load| load.unit == *unit)
    }

    /// Begins without waiting for frames.
    fn begin_now(&self, unit: &Unit, hint: Hint) -> Begun<'_> {
        match self.begin(unit, hint, None) {
            Begun::FramesNeeded => match self.inner().try_take(unit.blocks(), hint, false) {
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
        if let Some(pinned) = self.resident(unit, hint, &guard) {
            drop(guard);
            return Begun::Hit(pinned);
        }
        if let Some(load) = guard.iter().find(|load| load.unit == *unit) {
            inner.stats.coalesced.add(1);
            return Begun::Joined(load.join(self, hint));
        }
        let Some(frames) = frames else { return Begun::FramesNeeded };
        let index = frames.list().head;
        inner.slots[index as usize].name(unit);
        inner.table.link(&inner.slots, index, &guard);
        let load = Load::new(inner.clone(), *unit, hint);
        let wait = load.join(self, hint);
        guard.push(load.clone());
        inner.stats.misses.add(1);
        Begun::Ours(wait, (load, frames))
    }

    fn read_one(&self, part: Part) {
        let (block, memory, request) = ReadRequest::new([part]);
        let mut io = self.device().read(block, memory);
        io.start();
        request.arm(io);
    }

    /// Starts the reads of several loads with one submission.
    fn read_all(&self, mut parts: Vec<Part>, background: bool) {
        parts.sort_by_key(|(load, _)| load.unit.id.block);
        let mut batch = self.device().batch();
        let mut requests = Vec::new();
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
            let (block, memory, request) = ReadRequest::new(group);
            requests.push((request, batch.add(self.device().read(block, memory))));
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
