//! [`Pinned`]: a reader's hold on a resident unit. A hit is one compare-and-swap in and one out.
//!
//! Invariants:
//! 1. A pin is taken from zero only on behalf of a caller that holds a [`crate::Pool`]. So pins only fall after the
//!    last handle was dropped, and [`close`] can leave one reference of the memory to each slot that is still pinned:
//!    the last unpin drops it. So a hit does not touch the reference count, which all threads share.
//! 2. An unpin without a duty for others touches nothing after its compare-and-swap: the memory may be gone.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use shoal_base::BLOCK_BYTES;
use shoal_device::IoMemory;
use smallvec::SmallVec;

use super::slot::{Residents, Slot};
use super::word::Word;
use crate::memory::frame::{Frames, Pieces};
use crate::memory::free::List;
use crate::unit::Unit;

impl Residents {
    /// Pins the unit of this slot and counts a hit, if there is one.
    #[inline]
    pub(crate) fn pin_hit(self: &Arc<Self>, index: u32) -> Option<Pinned> {
        self.slot(index).word.pin(true).then(|| self.pinned(index))
    }

    /// Pins the unit of this slot, if there is one.
    pub(crate) fn pin(self: &Arc<Self>, index: u32) -> Option<Pinned> {
        self.slot(index).word.pin(false).then(|| self.pinned(index))
    }

    /// Makes the frames readable as the unit that their slot [names](Slot::name), pinned `pins` times.
    pub(crate) fn publish(self: &Arc<Self>, frames: Frames, pins: u32) -> SmallVec<[Pinned; 2]> {
        let index = self.give_frames(frames, pins);
        (0..pins).map(|_| self.pinned(index)).collect()
    }

    /// As [`publish`](Self::publish), pinned once.
    pub(crate) fn publish_one(self: &Arc<Self>, frames: Frames) -> Pinned {
        let index = self.give_frames(frames, 1);
        self.pinned(index)
    }

    /// The pin that the caller took.
    fn pinned(self: &Arc<Self>, slot: u32) -> Pinned {
        Pinned { residents: Arc::as_ptr(self), slot }
    }

    /// Dooms a unit that the caller pinned and took out of the table: the last unpin frees its frames.
    pub(crate) fn condemn(&self, pinned: &Pinned) {
        self.hits.add(pinned.slot().word.doom());
    }
}

/// Called when the last handle of the pool is dropped: pinned units keep the memory alive from here on.
pub(crate) fn close(residents: &Arc<Residents>) {
    // No unit is pinned anew any more (invariant 1).
    for slot in residents.slots.iter().filter(|slot| slot.word.is_pinned()) {
        // For the pins; dropped by the last of them.
        let reference = Arc::into_raw(residents.clone());
        if !slot.word.close_at_unpin() {
            // SAFETY: just made, and the last unpin came before the flag, so it did not see it.
            drop(unsafe { Arc::from_raw(reference) });
        }
    }
}

/// A pin on a resident unit: while it lives, the unit's bytes stay in their place and do not change. (A writer of a
/// page that changes in place waits for it.)
///
/// Cheap to clone and to drop, from any thread; it does not borrow the pool and may outlive it. Drop it soon if
/// possible: a pinned frame cannot be reused.
pub struct Pinned {
    residents: *const Residents,
    slot: u32,
}

// SAFETY: a pin is a count in an atomic word, and the bytes that it protects are only read.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    #[inline]
    pub(crate) fn residents(&self) -> &Residents {
        // SAFETY: the pin keeps the pool's memory alive (invariant 1).
        unsafe { &*self.residents }
    }

    pub(crate) fn index(&self) -> u32 {
        self.slot
    }

    #[inline]
    pub(crate) fn slot(&self) -> &Slot {
        &self.residents().slots[self.slot as usize]
    }

    /// The unit that is pinned.
    #[must_use]
    pub fn unit(&self) -> Unit {
        self.slot().unit()
    }

    /// Bytes of the unit: 4,096 for a page.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.unit().extent().1
    }

    pub(crate) fn pieces(&self) -> Pieces<'_> {
        let unit = self.unit();
        let (offset, bytes) = unit.extent();
        self.residents().memory.pieces(List { head: self.slot, count: unit.blocks() as u32 }, offset, bytes)
    }

    /// The unit's bytes in order, cut to its offset and length; frames that are adjacent in memory are one chunk.
    pub fn chunks(&self) -> PinnedChunks<'_> {
        PinnedChunks(self.pieces())
    }

    /// The page.
    ///
    /// # Panics
    /// If the unit is not a page.
    #[must_use]
    #[inline]
    pub fn page(&self) -> &[u8; BLOCK_BYTES] {
        assert!(self.slot().is_page(), "not a page");
        let start = self.residents().memory.address(self.slot);
        // SAFETY: a page is one frame, which is initialised, and only read while it is pinned.
        unsafe { &*start.cast() }
    }

    /// The chunks as buffers that hold the pin: the unit is unpinned when the last of them is dropped. No copy is made.
    pub fn into_bytes(self) -> impl Iterator<Item = Bytes> + Send {
        (0..self.chunks().count()).map(move |index| Bytes::from_owner(Chunk { pinned: self.clone(), index }))
    }
}

/// A chunk of a unit, and the pin that protects it.
struct Chunk {
    pinned: Pinned,
    index: usize,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self.pinned.chunks().nth(self.index).unwrap_or_default()
    }
}

/// The chunks of a pinned unit.
pub struct PinnedChunks<'a>(Pieces<'a>);

impl PinnedChunks<'_> {
    /// Bytes of the chunks that were not taken yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.0.bytes()
    }
}

impl<'a> Iterator for PinnedChunks<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (start, bytes) = self.0.next()?;
        // SAFETY: the frames are initialised, and only read while they are pinned; the pin is borrowed for 'a.
        Some(unsafe { std::slice::from_raw_parts(start, bytes) })
    }
}

impl Clone for Pinned {
    fn clone(&self) -> Self {
        self.slot().word.pin_again();
        Self { residents: self.residents, slot: self.slot }
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        let word: *const Word = &raw const self.slot().word;
        // SAFETY: the pin keeps the word alive until its release, which is the last use of the word here.
        if !unsafe { (*word).unpin() } {
            self.unpin_for_others();
        }
    }
}

impl Pinned {
    #[cold]
    fn unpin_for_others(&self) {
        // SAFETY: made by `Arc::as_ptr`, and alive while the pin is; this reference outlives the pin.
        let residents = unsafe {
            Arc::increment_strong_count(self.residents);
            Arc::from_raw(self.residents)
        };
        if residents.unpin_for_others(self.slot) {
            // SAFETY: `close` left this reference to the slot's last unpin.
            drop(unsafe { Arc::from_raw(self.residents) });
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(&self.unit()).finish()
    }
}

/// The memory of a write request: pinned pages that follow each other on the device.
pub(crate) struct WriteFrames(pub(crate) SmallVec<[Pinned; 1]>);

// SAFETY: frames do not move and are block-aligned; pinned units are not written to.
unsafe impl IoMemory for WriteFrames {
    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize)) {
        let mut segment: Option<(*mut u8, usize)> = None;
        for (start, bytes) in self.0.iter().flat_map(Pinned::pieces) {
            segment = match segment {
                Some((first, length)) if first.wrapping_add(length) == start => Some((first, length + bytes)),
                Some((first, length)) => {
                    each(first, length);
                    Some((start, bytes))
                }
                None => Some((start, bytes)),
            };
        }
        if let Some((first, length)) = segment {
            each(first, length);
        }
    }
}
