//! Getting frames: free ones, or those of the unit that will be missed least.
//!
//! Nothing is held while a candidate is evicted: one that gets pinned meanwhile is lost, and another one is looked for.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use shoal_base::sync::atomic::{AtomicU64, Ordering};

use crate::PoolError;
use crate::frame::Frames;
use crate::latency;
use crate::pin::Pinned;
use crate::policy::{Policy, Scanned};
use crate::pool::{Inner, Pool};
use crate::starve::TICK_MS;
use crate::table::ShardGuard;
use crate::unit::Hint;

/// Searches before every slot is tried.
const SEARCHES: usize = 3;

/// Units at the front of the queue of scans that are tried: those that are pinned go to its end.
const SCANNED_TRIES: usize = 8;

/// A sequence that is good enough to sample slots.
#[derive(Default)]
pub(crate) struct Draw(AtomicU64);

/// The part of the sequence that one search uses.
pub(crate) struct Draws(u64);

impl Draw {
    /// Begins a search: one change of what all threads share.
    pub(crate) fn sequence(&self) -> Draws {
        Draws(self.0.fetch_add(1, Ordering::Relaxed) << 32)
    }
}

impl Draws {
    /// A number below `bound`, or 0. The bias is below 2^-32.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u32
    }
}

impl Pool {
    /// Takes `count` frames for `hint`, evicting what must go; `None` where nothing can go now. With `starving` set
    /// whatever is pinned will wake the starving requests.
    pub(crate) fn try_take_or(&self, count: usize, hint: Hint, starving: bool) -> Option<Frames> {
        let inner = self.inner();
        if hint == Hint::Scan {
            let on_their_way = inner.scanning.load(Ordering::Relaxed);
            while inner.policy.scan_share_used(on_their_way + count) {
                match self.evict_scanned() {
                    Some(frames) if frames.count() == count => return Some(frames),
                    Some(frames) => drop(frames),
                    None => break,
                }
            }
        }
        loop {
            if let Some(frames) = inner.store.take(count) {
                return Some(frames);
            }
            let frames = self.evict_one(starving)?;
            if frames.count() == count {
                return Some(frames);
            }
        }
    }

    /// As [`try_take_or`](Self::try_take_or), for somebody who does not wait.
    pub(crate) fn try_take(&self, count: usize, hint: Hint) -> Option<Frames> {
        self.try_take_or(count, hint, false)
    }

    /// Takes `count` frames, waiting for an unpin or the end of a request for the time that the options give. Gives the
    /// device's error where writes failed meanwhile.
    pub(crate) async fn take(&self, count: usize, hint: Hint) -> Result<Frames, PoolError> {
        let inner = self.inner();
        let exhausted = || {
            inner.stats.exhausted.add(1);
            PoolError::Exhausted { frames: inner.slots.len() }
        };
        if count > inner.slots.len() {
            return Err(exhausted());
        }
        if let Some(frames) = self.try_take(count, hint) {
            return Ok(frames);
        }
        inner.stats.starved.add(1);
        let begun = latency::moment();
        let waiting = inner.store.starving.enter().ok_or_else(exhausted)?;
        let ticks_max = inner.pin_wait_ms.div_ceil(TICK_MS);
        let failed = inner.stats.write_errors.get();
        let taken = poll_fn(move |context| {
            waiting.register(context.waker());
            if let Some(frames) = self.try_take_or(count, hint, true) {
                return Poll::Ready(Ok(frames));
            }
            if waiting.ticks() > ticks_max {
                let error = inner.write_error.lock().clone();
                return Poll::Ready(Err(match error {
                    Some(error) if inner.stats.write_errors.get() > failed => error.into(),
                    _ => exhausted(),
                }));
            }
            Poll::Pending
        })
        .await;
        inner.stats.starved_us.add(begun.elapsed().as_micros() as u64);
        taken
    }

    fn evict_one(&self, starving: bool) -> Option<Frames> {
        if let Some(frames) = self.evict_scanned() {
            return Some(frames);
        }
        let mut clean_only = false;
        for _ in 0..SEARCHES {
            let Some(index) = self.inner().worst(clean_only) else { break };
            if let Some(frames) = self.evict_or_write(index) {
                return Some(frames);
            }
            // It is being written, or somebody was faster: one that can go at once.
            clean_only = true;
        }
        self.evict_any(starving)
    }

    /// Evicts the oldest unit that only scans touched.
    fn evict_scanned(&self) -> Option<Frames> {
        let inner = self.inner();
        for _ in 0..SCANNED_TRIES {
            let entry = inner.policy.next_scanned(&inner.slots)?;
            if let Some(frames) = self.evict_or_write(entry.index()) {
                return Some(frames);
            }
            inner.policy.queue(entry);
        }
        None
    }

    /// Evicts the first unit that is not pinned, if there is one.
    fn evict_any(&self, starving: bool) -> Option<Frames> {
        let inner = self.inner();
        let touched = inner.store.free.touched();
        let start = inner.draw.sequence().below(touched);
        (start..touched).chain(0..start).find_map(|index| {
            // Flagged where it is pinned; where it is not, it can be evicted, unless somebody is faster.
            let pinned = starving && inner.slots[index as usize].word().wake_at_unpin();
            if pinned { None } else { self.evict_or_write(index) }
        })
    }

    /// Evicts the unit in this slot, where it is not pinned. What is dirty is written first: here and now where that is
    /// faster, else in the background, and then it does not go yet.
    pub(crate) fn evict_or_write(&self, index: u32) -> Option<Frames> {
        if self.inner().slots[index as usize].word().is_dirty() {
            if !self.does_it_itself() {
                let frames = self.take_frame_aside(index);
                if frames.is_none() {
                    self.begin_write(index);
                }
                return frames;
            }
            if let Some(page) = self.pin_dirty(index) {
                self.write_here(page);
            }
        }
        self.inner().evict(index)
    }
}

impl Inner {
    /// The candidate that will be missed least.
    pub(crate) fn worst(&self, clean_only: bool) -> Option<u32> {
        self.policy.victim(&self.slots, self.store.free.touched(), &self.draw, clean_only)
    }

    /// Evicts the unit in this slot, where it is not pinned and not dirty, and gives its frames.
    pub(crate) fn evict(&self, index: u32) -> Option<Frames> {
        let frames = self.claim(index)?;
        let slot = &self.slots[index as usize];
        let guard = self.table.lock(slot.block());
        self.table.unlink(&self.slots, index, &guard);
        drop(guard);
        self.policy.left(slot, index, true);
        self.stats.evictions.add(1);
        Some(frames)
    }

    /// Evicts what a scan read before, for its next page; whether the frame still counts as the scans'.
    pub(crate) fn reclaim(&self, entry: Scanned) -> Option<(Frames, bool)> {
        let slot = &self.slots[entry.index() as usize];
        if !Policy::is_scanned(slot, entry) {
            return None;
        }
        let frames = self.claim(entry.index())?;
        let guard = self.table.lock(slot.block());
        self.table.unlink(&self.slots, entry.index(), &guard);
        drop(guard);
        self.stats.evictions.add(1);
        // Now that it cannot change: it may have become somebody else's since.
        let counted = Policy::is_scanned(slot, entry) && frames.count() == 1;
        if counted {
            Policy::left_to_scan(slot);
        } else {
            self.policy.left(slot, entry.index(), true);
        }
        Some((frames, counted))
    }

    /// Takes the unit in this slot out of the table, whoever reads it. Its frames are free when the last pin is gone:
    /// also the one that this returns, to be dropped when the lock is.
    pub(crate) fn retire(self: &Arc<Self>, index: u32, guard: &ShardGuard<'_>) -> Option<Pinned> {
        let pinned = self.pin(index)?;
        self.retire_pinned(&pinned, guard);
        Some(pinned)
    }

    /// As [`retire`](Self::retire), for a unit that the caller pinned.
    pub(crate) fn retire_pinned(&self, pinned: &Pinned, guard: &ShardGuard<'_>) {
        // The pin keeps evictions away, and units are retired under the lock only: this stays true.
        if pinned.slot().word().is_resident() {
            self.table.unlink(&self.slots, pinned.index(), guard);
            self.policy.left(pinned.slot(), pinned.index(), false);
            self.condemn(pinned);
        }
    }
}
