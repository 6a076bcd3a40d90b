//! The bytes in use, and their bounds: of the server, and of each connection.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::wait_queue::OLDEST_BYTES;

/// One of this many parts of the bytes in flight is kept for answers and for short requests: puts that wait for a
/// hanging device must not stop reads from memory.
pub(super) const KEPT_SHARE: usize = 8;

/// The most bytes of the store's memory for values that are being received: a value beyond it is kept in its frames.
const RECEIVE_BUFFERS_BYTES_MAX: usize = 16 << 20;

/// The bytes in use, and their bound.
#[derive(Debug)]
pub(super) struct Budget {
    used: AtomicUsize,
    /// The part of `used` that messages in the queue hold without room: it does not count against short requests and answers.
    pub(super) on_top: AtomicUsize,
    pub(super) max: usize,
    /// Bytes of the store's memory into which values are received.
    frames: AtomicUsize,
}

impl Budget {
    pub(super) fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), on_top: AtomicUsize::new(0), max, frames: AtomicUsize::new(0) }
    }

    /// Returns true if `bytes` more stay within `max` now.
    pub(super) fn has_room(&self, bytes: usize, max: usize) -> bool {
        // Pairs with `give`: a waiter sees the released bytes.
        self.used.load(Ordering::SeqCst).checked_add(bytes).is_some_and(|sum| sum <= max)
    }

    /// Takes `bytes`, if the sum stays within `max`.
    pub(super) fn take(&self, bytes: usize, max: usize) -> bool {
        let room = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= max);
        // The load is as in `has_room`; no memory access depends on the stored value.
        self.used.fetch_update(Ordering::Relaxed, Ordering::SeqCst, room).is_ok()
    }

    /// As [`Self::take`], for answers and short requests.
    pub(super) fn take_short(&self, bytes: usize, max: usize) -> bool {
        self.take(bytes, max + self.on_top.load(Ordering::Relaxed))
    }

    /// Takes `bytes` even without room.
    pub(super) fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn give(&self, bytes: usize) {
        // Pairs with `WaitQueue::wake`: a waiter sees this, or is seen.
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        assert!(before >= bytes, "{bytes} bytes were given back of {before}");
    }

    /// Takes `bytes` of the store's memory for values that are being received, if there is room.
    pub(super) fn take_frames(&self, bytes: usize) -> bool {
        let room = |taken: usize| taken.checked_add(bytes).filter(|&sum| sum <= RECEIVE_BUFFERS_BYTES_MAX);
        self.frames.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    pub(super) fn give_frames(&self, bytes: usize) {
        self.frames.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit for answers and short requests: the whole budget except the share that is kept for a message that must finish. If the
    /// total is small, that share comes on top.
    pub(super) fn short_max(&self) -> usize {
        if self.max >= KEPT_SHARE * OLDEST_BYTES { self.max - OLDEST_BYTES } else { self.max }
    }

    /// For longer requests.
    pub(super) fn long_max(&self) -> usize {
        self.max - self.max / KEPT_SHARE
    }

    /// For a longer request of `bytes`: a request that needs the kept share, too, may have it if it is alone.
    pub(super) fn max_for(&self, bytes: usize) -> usize {
        if bytes > self.long_max() { self.max } else { self.long_max() }
    }

    /// Returns true if no more than `max` is in use, for callers that check repeatedly.
    pub(super) fn is_within(&self, max: usize) -> bool {
        self.used.load(Ordering::SeqCst) <= max
    }
}
