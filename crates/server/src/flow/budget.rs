//! How many bytes are taken, of how many: of the server, and of each connection.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::line::OLDEST_BYTES;

/// Of the bytes in flight one of so many is kept for answers and for short requests: puts that wait for a device that stands still
/// must not stop reads of what is in memory.
pub(super) const KEPT_SHARE: usize = 8;

/// How many bytes are taken, of how many.
#[derive(Debug)]
pub(super) struct Budget {
    used: AtomicUsize,
    /// The part of `used` that messages in the line hold although there was no room: it does not count against short requests and
    /// answers.
    pub(super) on_top: AtomicUsize,
    pub(super) max: usize,
}

impl Budget {
    pub(super) fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), on_top: AtomicUsize::new(0), max }
    }

    /// Whether `bytes` more stay within `max` now.
    pub(super) fn has_room(&self, bytes: usize, max: usize) -> bool {
        // With `give`: who waits sees what was given back.
        self.used.load(Ordering::SeqCst).checked_add(bytes).is_some_and(|sum| sum <= max)
    }

    /// Takes `bytes`, where the sum stays within `max`.
    pub(super) fn take(&self, bytes: usize, max: usize) -> bool {
        let room = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= max);
        // The load is as in `has_room`; nothing is read or written on the strength of what is stored.
        self.used.fetch_update(Ordering::Relaxed, Ordering::SeqCst, room).is_ok()
    }

    /// As [`Self::take`], for answers and short requests.
    pub(super) fn take_short(&self, bytes: usize, max: usize) -> bool {
        self.take(bytes, max + self.on_top.load(Ordering::Relaxed))
    }

    /// Takes `bytes` even where there is no room.
    pub(super) fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn give(&self, bytes: usize) {
        // With `Line::wake`: who waits sees this, or is seen.
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        assert!(before >= bytes, "{bytes} bytes were given back of {before}");
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// For answers and short requests: all but what is kept for a message that must end. Where there is little in all, that comes on
    /// top.
    pub(super) fn short_max(&self) -> usize {
        if self.max >= KEPT_SHARE * OLDEST_BYTES { self.max - OLDEST_BYTES } else { self.max }
    }

    /// For longer requests.
    pub(super) fn long_max(&self) -> usize {
        self.max - self.max / KEPT_SHARE
    }

    /// For a longer request of `bytes`: one that needs the kept share, too, may have that where it is alone.
    pub(super) fn max_for(&self, bytes: usize) -> usize {
        if bytes > self.long_max() { self.max } else { self.long_max() }
    }

    /// Whether there is no more than `max`, for who looks again and again until there is.
    pub(super) fn is_within(&self, max: usize) -> bool {
        self.used.load(Ordering::SeqCst) <= max
    }
}
