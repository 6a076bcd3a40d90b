//! Getting frames: free ones, or those of the unit that will be missed least.
//!
//! Pools of up to [`EXACT_FRAMES_MAX`] frames are searched as a whole; in larger ones the worst of
//! [`SAMPLE`] random candidates goes. No lock is held while choosing: a candidate that gets pinned meanwhile is lost,
//! and another one is looked for.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use crate::PoolError;
use crate::behind::After;
use crate::frame::Frames;
use crate::pin::Pinned;
use crate::pool::{Inner, Pool};
use crate::starve::TICK_MS;
use crate::table::ShardGuard;
use crate::unit::Hint;

/// Up to here every victim is the right one. A search costs about as much as a 4 KiB copy.
const EXACT_FRAMES_MAX: usize = 128;

/// Candidates of a sampled search.
const SAMPLE: usize = 16;

/// Frames that are looked at for them: interior frames of units, free ones and pinned ones are no candidates.
const SAMPLE_DRAWS: usize = 64;

/// Searches before every slot is tried.
const SEARCHES: usize = 3;

/// Units at the front of the queue of scans that are tried: those that are pinned go to its end.
const SCANNED_TRIES: usize = 8;

/// A sequence that is good enough to sample slots.
#[derive(Default)]
pub(crate) struct Draw(AtomicU64);

impl Draw {
    /// A number below `bound`, or 0. The bias is below 2^-32.
    pub(crate) fn below(&self, bound: u32) -> u32 {
        let mut z = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
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
            while inner.policy.scan_share_used(count) && self.evict_scanned() {}
        }
        loop {
            if let Some(frames) = inner.store.take(count) {
                return Some(frames);
            }
            if !self.evict_one(starving) {
                return None;
            }
        }
    }

    /// As [`try_take_or`](Self::try_take_or), for somebody who does not wait.
    pub(crate) fn try_take(&self, count: usize, hint: Hint) -> Option<Frames> {
        self.try_take_or(count, hint, false)
    }

    /// Takes `count` frames, waiting for an unpin or the end of a request for the time that the options give.
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
        let waiting = inner.store.starving.enter().ok_or_else(exhausted)?;
        let ticks_max = inner.pin_wait_ms.div_ceil(TICK_MS);
        poll_fn(move |context| {
            waiting.register(context.waker());
            if let Some(frames) = self.try_take_or(count, hint, true) {
                return Poll::Ready(Ok(frames));
            }
            if waiting.ticks() > ticks_max {
                return Poll::Ready(Err(exhausted()));
            }
            Poll::Pending
        })
        .await
    }

    fn evict_one(&self, starving: bool) -> bool {
        if self.evict_scanned() {
            return true;
        }
        let mut clean_only = false;
        for _ in 0..SEARCHES {
            match self.inner().worst(clean_only) {
                Some(index) if self.evict_or_write(index) => return true,
                // It is being written, or somebody was faster: one that can go at once.
                Some(_) => clean_only = true,
                None => break,
            }
        }
        self.evict_any(starving)
    }

    /// Evicts the oldest unit that only scans touched.
    fn evict_scanned(&self) -> bool {
        let inner = self.inner();
        if inner.policy.scan_frames() == 0 {
            return false;
        }
        for _ in 0..SCANNED_TRIES {
            let Some(entry) = inner.policy.next_scanned(&inner.slots) else { return false };
            if self.evict_or_write(entry.index) {
                return true;
            }
            inner.policy.queue(entry);
        }
        false
    }

    /// Evicts the first unit that is not pinned, if there is one.
    fn evict_any(&self, starving: bool) -> bool {
        let inner = self.inner();
        let touched = inner.store.free.touched();
        let start = inner.draw.below(touched);
        (start..touched).chain(0..start).any(|index| {
            // Flagged where it is pinned; where it is not, it can be evicted, unless somebody is faster.
            let pinned = starving && inner.slots[index as usize].word().wake_at_unpin();
            !pinned && self.evict_or_write(index)
        })
    }

    /// Evicts the unit in this slot, where it is not pinned. What is dirty is written first: here and now where that is
    /// faster, else in the background, and then it does not go yet.
    fn evict_or_write(&self, index: u32) -> bool {
        if self.inner().slots[index as usize].word().is_dirty() {
            if !self.does_it_itself() {
                self.begin_write(index);
                return false;
            }
            if let Some(page) = self.pin_dirty(index) {
                self.write_back(vec![page], After::Stay, true, None);
            }
        }
        self.inner().evict(index)
    }
}

impl Inner {
    /// The candidate that will be missed least.
    pub(crate) fn worst(&self, clean_only: bool) -> Option<u32> {
        let touched = self.store.free.touched();
        let mut best = None;
        let mut consider = |index: u32| {
            let slot = &self.slots[index as usize];
            let word = slot.word();
            let candidate = if clean_only { word.is_evictable() } else { word.is_idle() };
            if candidate {
                best = best.max(Some((self.policy.rank(slot, index), index)));
            }
            candidate
        };
        if touched as usize <= EXACT_FRAMES_MAX {
            (0..touched).for_each(|index| {
                consider(index);
            });
        } else {
            let mut candidates = 0;
            for _ in 0..SAMPLE_DRAWS {
                let index = self.draw.below(touched);
                candidates += usize::from(consider(index));
                if candidates == SAMPLE {
                    break;
                }
            }
        }
        best.map(|(_, index)| index)
    }

    /// Evicts the unit in this slot, where it is not pinned and not dirty.
    pub(crate) fn evict(&self, index: u32) -> bool {
        let Some(frames) = self.claim(index) else { return false };
        let slot = &self.slots[index as usize];
        let guard = self.table.lock(slot.block());
        self.table.unlink(&self.slots, index, &guard);
        drop(guard);
        self.policy.left(slot, index, true);
        self.stats.evictions.add(1);
        drop(frames);
        true
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
