//! Gets frames: free ones, or the frames of the unit that will be missed least.
//!
//! No lock is held while a candidate is evicted: a candidate that gets pinned meanwhile is replaced by another one.

use std::future::poll_fn;
use std::task::Poll;

use shoal_base::sync::atomic::Ordering;

use crate::PoolError;
use crate::latency;
use crate::memory::frame::Frames;
use crate::memory::starve::TICK_MS;
use crate::policy::Queue;
use crate::pool::Pool;
use crate::unit::Hint;

/// Searches before every slot is tried.
const SEARCHES: usize = 3;

/// Units at the front of a queue that a search tries: pinned ones go to its end.
const QUEUE_TRIES: usize = 8;

impl Pool {
    /// Takes `count` frames for `hint`, and evicts units if it must; `None` if nothing can be evicted now. With
    /// `starving`, the last unpin of a pinned unit wakes the starving requests.
    pub(crate) fn try_take_or(&self, count: usize, hint: Hint, starving: bool) -> Option<Frames> {
        let shared = self.shared();
        if hint == Hint::Scan {
            let on_their_way = shared.scanning.load(Ordering::Relaxed);
            while shared.policy.scan_share_used(on_their_way + count) {
                match self.evict_unneeded().or_else(|| self.evict_scanned()) {
                    Some(frames) if frames.count() == count => return Some(frames),
                    Some(frames) => drop(frames),
                    None => break,
                }
            }
        }
        loop {
            if let Some(frames) = shared.residents.memory.take(count) {
                return Some(frames);
            }
            let frames = self.evict_one(starving)?;
            if frames.count() == count {
                return Some(frames);
            }
        }
    }

    /// As [`try_take_or`](Self::try_take_or), for a caller that does not wait.
    pub(crate) fn try_take(&self, count: usize, hint: Hint) -> Option<Frames> {
        self.try_take_or(count, hint, false)
    }

    pub(crate) fn exhausted(&self) -> PoolError {
        self.shared().stats.exhausted.add(1);
        PoolError::Exhausted { frames: self.frames() }
    }

    /// Takes `count` frames; waits for an unpin or the end of a request, up to the options' limit. Returns the
    /// device's error if writes failed meanwhile.
    pub(crate) async fn take(&self, count: usize, hint: Hint) -> Result<Frames, PoolError> {
        let shared = self.shared();
        let exhausted = || self.exhausted();
        if count > self.frames() {
            return Err(exhausted());
        }
        if let Some(frames) = self.try_take(count, hint) {
            return Ok(frames);
        }
        shared.stats.starved.add(1);
        let began = latency::moment();
        let waiting = shared.residents.memory.starving.enter().ok_or_else(exhausted)?;
        let ticks_max = shared.pin_wait_ms.div_ceil(TICK_MS);
        let failed = shared.stats.write_errors.get();
        let taken = poll_fn(move |context| {
            waiting.register(context.waker());
            if let Some(frames) = self.try_take_or(count, hint, true) {
                return Poll::Ready(Ok(frames));
            }
            if waiting.ticks() > ticks_max {
                let error = shared.writes.error.lock().clone();
                return Poll::Ready(Err(match error {
                    Some(error) if shared.stats.write_errors.get() > failed => error.into(),
                    _ => exhausted(),
                }));
            }
            Poll::Pending
        })
        .await;
        shared.stats.starved_us.add(began.elapsed().as_micros() as u64);
        taken
    }

    fn evict_one(&self, starving: bool) -> Option<Frames> {
        if let Some(frames) = self.evict_unneeded() {
            return Some(frames);
        }
        let spares_scans = self.shared().policy.scans_hold_little();
        if !spares_scans && let Some(frames) = self.evict_scanned() {
            return Some(frames);
        }
        let mut clean_only = false;
        for _ in 0..SEARCHES {
            let Some(index) = self.shared().worst(clean_only) else { break };
            if let Some(frames) = self.evict_or_write(index) {
                return Some(frames);
            }
            // The page is being written, or another thread evicted it first: take one that is clean.
            clean_only = true;
        }
        if spares_scans && let Some(frames) = self.evict_scanned() {
            return Some(frames);
        }
        self.evict_any(starving)
    }

    /// Evicts a unit that no new reader needs.
    fn evict_unneeded(&self) -> Option<Frames> {
        self.evict_from(&self.shared().policy.unneeded)
    }

    /// Evicts the oldest unit that only scans touched.
    fn evict_scanned(&self) -> Option<Frames> {
        self.evict_from(&self.shared().policy.scanned)
    }

    fn evict_from(&self, queue: &Queue) -> Option<Frames> {
        for _ in 0..QUEUE_TRIES {
            let entry = queue.pop(&self.residents().slots)?;
            if let Some(frames) = self.evict_or_write(entry.index()) {
                return Some(frames);
            }
            queue.push(entry);
        }
        None
    }

    /// Evicts the first unit that is not pinned, if there is one.
    fn evict_any(&self, starving: bool) -> Option<Frames> {
        let residents = self.residents();
        let touched = residents.memory.free.touched();
        let start = self.shared().draw.sequence().below(touched);
        (start..touched).chain(0..start).find_map(|index| {
            // A pinned unit is flagged; an unpinned one can be evicted, unless another thread is faster.
            let pinned = starving && residents.slot(index).word.wake_at_unpin();
            if pinned { None } else { self.evict_or_write(index) }
        })
    }

    /// Evicts the unit in this slot if it is not pinned. A dirty page is written first: on this thread if that is
    /// faster, else in the background, and then it is not evicted yet.
    pub(crate) fn evict_or_write(&self, index: u32) -> Option<Frames> {
        if self.residents().slot(index).word.is_dirty() {
            if !self.does_it_itself() {
                let frames = self.take_frame_to_side(index);
                if frames.is_none() {
                    self.begin_write(index);
                }
                return frames;
            }
            if let Some(page) = self.pin_dirty(index) {
                self.write_here(page);
            }
        }
        self.shared().evict(index)
    }
}
