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
use crate::frame::Frames;
use crate::pin::Pinned;
use crate::pool::Inner;
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
    fn below(&self, bound: u32) -> u32 {
        let mut z = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u32
    }
}

impl Inner {
    /// Takes `count` frames for `hint`, evicting what must go; `None` where nothing can go now. With `starving` set
    /// whatever is pinned will wake the starving requests.
    pub(crate) fn try_take(&self, count: usize, hint: Hint, starving: bool) -> Option<Frames> {
        if hint == Hint::Scan {
            while self.policy.scan_share_used(count) && self.evict_scanned() {}
        }
        loop {
            if let Some(frames) = self.store.take(count) {
                return Some(frames);
            }
            if !self.evict_one(starving) {
                return None;
            }
        }
    }

    /// Takes `count` frames, waiting for an unpin or the end of a request for the time that the options give.
    pub(crate) async fn take(&self, count: usize, hint: Hint) -> Result<Frames, PoolError> {
        let exhausted = || {
            self.stats.exhausted.add(1);
            PoolError::Exhausted { frames: self.slots.len() }
        };
        if count > self.slots.len() {
            return Err(exhausted());
        }
        if let Some(frames) = self.try_take(count, hint, false) {
            return Ok(frames);
        }
        let waiting = self.store.starving.enter().ok_or_else(exhausted)?;
        let ticks_max = self.pin_wait_ms.div_ceil(TICK_MS);
        poll_fn(move |context| {
            waiting.register(context.waker());
            if let Some(frames) = self.try_take(count, hint, true) {
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
        for _ in 0..SEARCHES {
            match self.worst() {
                Some(index) if self.evict(index) => return true,
                Some(_) => {}
                None => break,
            }
        }
        self.evict_any(starving)
    }

    /// Evicts the oldest unit that only scans touched.
    fn evict_scanned(&self) -> bool {
        if self.policy.scan_frames() == 0 {
            return false;
        }
        for _ in 0..SCANNED_TRIES {
            let Some(entry) = self.policy.next_scanned(&self.slots) else { return false };
            if self.evict(entry.index) {
                return true;
            }
            self.policy.queue(entry);
        }
        false
    }

    /// The candidate that will be missed least.
    fn worst(&self) -> Option<u32> {
        let touched = self.store.free.touched();
        let mut best = None;
        let mut consider = |index: u32| {
            let slot = &self.slots[index as usize];
            let candidate = slot.is_evictable();
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

    /// Evicts the first unit that is not pinned, if there is one.
    fn evict_any(&self, starving: bool) -> bool {
        let touched = self.store.free.touched();
        let start = self.draw.below(touched);
        (start..touched).chain(0..start).any(|index| {
            // Flagged where it is pinned; where it is not, it can be evicted, unless somebody is faster.
            let pinned = starving && self.slots[index as usize].wake_at_unpin();
            !pinned && self.evict(index)
        })
    }

    /// Evicts the unit in this slot, where it is not pinned.
    fn evict(&self, index: u32) -> bool {
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
        if pinned.slot().is_resident() {
            self.table.unlink(&self.slots, pinned.index(), guard);
            self.policy.left(pinned.slot(), pinned.index(), false);
            self.condemn(pinned);
        }
    }
}
