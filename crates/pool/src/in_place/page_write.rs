//! [`PageWrite`]: the right to write to a page that changes in place.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use shoal_base::BLOCK_BYTES;

use crate::resident::pin::Pinned;
use crate::resident::word::Word;
use crate::shared::Shared;

/// The right to write to a unit that changes in place. Dropping it leaves the unit dirty; the unit is written before
/// its frame is reused, or by a flush.
pub struct PageWrite {
    pinned: ManuallyDrop<Pinned>,
}

impl PageWrite {
    /// Latches a pinned page; returns the pin if another writer has the latch.
    pub(crate) fn latch(pinned: Pinned) -> Result<Draining, Pinned> {
        assert!(pinned.unit().is_mutable(), "only a mutable page is written to in place");
        if pinned.slot().word.latch() { Ok(Draining(Some(pinned))) } else { Err(pinned) }
    }

    fn address(&self) -> *mut u8 {
        let Some((start, bytes)) = self.pinned.pieces().next() else { unreachable!("a page has one piece") };
        assert_eq!(bytes, BLOCK_BYTES);
        start
    }

    /// Takes the page out of the pool unwritten; its frame is free afterwards.
    pub(crate) fn discard(self, shared: &Shared) {
        let page = ManuallyDrop::new(self);
        // SAFETY: `page` is never used nor dropped again.
        let pinned = unsafe { std::ptr::read(&*page.pinned) };
        let guard = shared.table.lock(pinned.slot().block());
        shared.retire_pinned(&pinned, &guard);
        drop(guard);
        shared.residents.latches.wake(pinned.index());
    }
}

impl Deref for PageWrite {
    type Target = [u8; BLOCK_BYTES];

    fn deref(&self) -> &Self::Target {
        // SAFETY: the frame is initialised; this guard holds the latch and the only pin, so no thread writes.
        unsafe { &*self.address().cast() }
    }
}

impl DerefMut for PageWrite {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as in `deref`; and no thread reads, because a latched page gets no pins.
        unsafe { &mut *self.address().cast() }
    }
}

impl Drop for PageWrite {
    #[inline]
    fn drop(&mut self) {
        let word: *const Word = &raw const self.pinned.slot().word;
        // SAFETY: the pin keeps the word alive until its release, which is the last use of the word here.
        if !unsafe { (*word).unlatch_and_unpin() } {
            // SAFETY: taken once, here; the field is not used afterwards.
            let pinned = unsafe { ManuallyDrop::take(&mut self.pinned) };
            if pinned.slot().word.unlatch(true) {
                pinned.residents().latches.wake(pinned.index());
            }
        }
    }
}

impl fmt::Debug for PageWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PageWrite").field(&self.pinned.unit()).finish()
    }
}

/// A latch that waits until every other pin is gone. Dropped before, it releases latch and pin.
pub(crate) struct Draining(Option<Pinned>);

impl Draining {
    pub(crate) async fn drained(mut self) -> PageWrite {
        if let Some(pinned) = &self.0
            && !pinned.slot().word.is_drained()
        {
            let latches = &pinned.residents().latches;
            latches.wait(pinned.index(), || pinned.slot().word.tell_when_drained()).await;
        }
        let Some(pinned) = self.0.take() else { unreachable!("taken once, here") };
        assert!(pinned.slot().word.is_drained());
        PageWrite { pinned: ManuallyDrop::new(pinned) }
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        if let Some(pinned) = &self.0
            && pinned.slot().word.unlatch(false)
        {
            pinned.residents().latches.wake(pinned.index());
        }
    }
}
