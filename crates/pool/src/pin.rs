//! Slots, which describe resident units, and [`Pinned`], a reader's hold on one.
//!
//! Each unit is described by the slot of its first frame; the slot's [`Word`] protects it. A hit is one
//! compare-and-swap in and one out.
//!
//! Invariants:
//! 1. Frames of a resident or doomed unit belong to its word; `Frames` for them are made only here, by whoever brought
//!    the word to vacant.
//! 2. A pin is taken from zero only on behalf of somebody who holds a [`crate::Pool`]. So after the last handle was
//!    dropped pins only fall, and [`close`] can leave one reference of the pool to each slot that is still pinned: the
//!    last unpin drops it. That keeps the pool's reference count, which all threads share, out of the way of a hit.
//! 3. An unpin that has nothing to do for others touches nothing after its compare-and-swap: the pool may be gone.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use shoal_base::BLOCK_BYTES;
use shoal_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use shoal_device::IoMemory;
use smallvec::SmallVec;

use crate::frame::{Frames, Pieces};
use crate::free::{List, NONE};
use crate::pool::Inner;
use crate::unit::{Check, Unit, UnitId};
use crate::word::Word;

/// What is known of the unit whose first frame has the slot's index. One cache line, so that a hit touches one.
#[repr(align(64))]
pub(crate) struct Slot {
    word: Word,
    block: AtomicU64,
    identity: AtomicU64,
    check: AtomicU64,
    /// The next slot in the table's chain.
    pub(crate) chain: AtomicU32,
    /// The policy's: time of the last access, number of accesses, which use of the slot this is, and whether only scans
    /// touched it.
    pub(crate) last: AtomicU32,
    pub(crate) count: AtomicU32,
    pub(crate) generation: AtomicU32,
    pub(crate) scanned: AtomicBool,
}

#[cfg(not(shoal_shuttle))]
const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    pub(crate) fn new() -> Self {
        Self {
            word: Word::default(),
            block: AtomicU64::new(0),
            identity: AtomicU64::new(0),
            check: AtomicU64::new(0),
            chain: AtomicU32::new(NONE),
            last: AtomicU32::new(0),
            count: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            scanned: AtomicBool::new(false),
        }
    }

    pub(crate) fn word(&self) -> &Word {
        &self.word
    }

    /// Names the unit that will be published here. Only for the owner of the frames; made visible by publishing, or
    /// by the table's lock.
    pub(crate) fn name(&self, unit: &Unit) {
        assert!(self.word.is_vacant(), "a slot in use was renamed");
        self.block.store(unit.id.block, Ordering::Relaxed);
        self.identity.store(unit.id.identity, Ordering::Relaxed);
        self.check.store(unit.packed(), Ordering::Relaxed);
    }

    pub(crate) fn block(&self) -> u64 {
        self.block.load(Ordering::Relaxed)
    }

    pub(crate) fn id(&self) -> UnitId {
        UnitId { block: self.block(), identity: self.identity.load(Ordering::Relaxed) }
    }

    /// The unit; stable while it is pinned, or under the lock of its shard.
    pub(crate) fn unit(&self) -> Unit {
        Unit::unpacked(self.id(), self.check.load(Ordering::Relaxed))
    }

    pub(crate) fn is(&self, unit: &Unit) -> bool {
        self.id() == unit.id && self.check.load(Ordering::Relaxed) == unit.packed()
    }
}

impl Inner {
    /// Pins the unit of this slot and counts a hit, where there is one.
    #[inline]
    pub(crate) fn pin_hit(self: &Arc<Self>, index: u32) -> Option<Pinned> {
        self.slots[index as usize].word.pin(true).then(|| Pinned { inner: Arc::as_ptr(self), slot: index })
    }

    /// Pins the unit of this slot, where there is one.
    pub(crate) fn pin(self: &Arc<Self>, index: u32) -> Option<Pinned> {
        self.slots[index as usize].word.pin(false).then(|| Pinned { inner: Arc::as_ptr(self), slot: index })
    }

    /// Makes the frames readable as the unit that their slot [names](Slot::name), pinned `pins` times.
    pub(crate) fn publish(self: &Arc<Self>, frames: Frames, pins: u32) -> SmallVec<[Pinned; 2]> {
        let index = self.hand_over(frames, pins);
        (0..pins).map(|_| Pinned { inner: Arc::as_ptr(self), slot: index }).collect()
    }

    /// As [`publish`](Self::publish), pinned once.
    pub(crate) fn publish_one(self: &Arc<Self>, frames: Frames) -> Pinned {
        Pinned { inner: Arc::as_ptr(self), slot: self.hand_over(frames, 1) }
    }

    /// Gives the frames to their slot's word, which has `pins` pins then; the slot.
    fn hand_over(&self, frames: Frames, pins: u32) -> u32 {
        let index = frames.list().head;
        let slot = &self.slots[index as usize];
        assert!(frames.are_of(&self.store), "frames of another pool");
        assert_eq!(frames.count(), slot.unit().blocks(), "a unit of other size was published");
        let _ = frames.into_list();
        if slot.word.publish(pins) {
            self.latches.wake(index);
        }
        index
    }

    /// Takes the frames of an unpinned unit. The caller then takes its slot out of the table.
    pub(crate) fn claim(&self, index: u32) -> Option<Frames> {
        let hits = self.slots[index as usize].word.claim()?;
        self.stats.hits.add(hits);
        // SAFETY: claiming brought the word to vacant.
        Some(unsafe { self.frames_of(index) })
    }

    /// Ends a unit that the caller pinned and took out of the table: the last unpin frees its frames.
    pub(crate) fn condemn(&self, pinned: &Pinned) {
        self.stats.hits.add(self.slots[pinned.slot as usize].word.doom());
    }

    /// # Safety
    /// The caller brought the slot's word from resident or doomed to vacant.
    unsafe fn frames_of(&self, index: u32) -> Frames {
        let count = self.slots[index as usize].unit().blocks() as u32;
        // SAFETY: `publish` gave the frames to the word, and the word gave them to the caller.
        unsafe { self.store.claim(List { head: index, count }) }
    }
}

/// Called when the last handle of the pool goes: whatever is still pinned keeps the memory alive from here on.
pub(crate) fn close(inner: &Arc<Inner>) {
    // Nothing is pinned anew any more (invariant 2).
    for slot in inner.slots.iter().filter(|slot| slot.word.is_pinned()) {
        // For the pins; dropped by the last of them.
        let reference = Arc::into_raw(inner.clone());
        if !slot.word.close_at_unpin() {
            // SAFETY: just made, and the last unpin came before the flag: it did not see it.
            drop(unsafe { Arc::from_raw(reference) });
        }
    }
}

/// A hold on a resident unit: while it lives, the unit's bytes stay where they are and do not change. (Who wants to
/// write to one that changes in place waits for it.)
///
/// Cheap to clone and to drop, from any thread; it does not borrow the pool and may outlive it. Give it back soon
/// where that is possible: a pinned frame cannot be used for anything else.
pub struct Pinned {
    inner: *const Inner,
    slot: u32,
}

// SAFETY: a pin is a count in an atomic word, and what it protects is only read.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(crate) fn inner(&self) -> &Inner {
        // SAFETY: the pin keeps the pool's memory alive (invariant 2).
        unsafe { &*self.inner }
    }

    /// The pool's memory, for somebody who gives the pin back first.
    pub(crate) fn share(&self) -> Arc<Inner> {
        // SAFETY: made by `Arc::as_ptr`, and alive while the pin is.
        unsafe {
            Arc::increment_strong_count(self.inner);
            Arc::from_raw(self.inner)
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.slot
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.inner().slots[self.slot as usize]
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

    fn pieces(&self) -> Pieces<'_> {
        let unit = self.unit();
        let (offset, bytes) = unit.extent();
        self.inner().store.pieces(List { head: self.slot, count: unit.blocks() as u32 }, offset, bytes)
    }

    /// The unit's bytes in order, cut to where they begin and end; frames that are adjacent in memory are one chunk.
    pub fn chunks(&self) -> Chunks<'_> {
        Chunks(self.pieces())
    }

    /// The page.
    ///
    /// # Panics
    /// Where the unit is no page.
    #[must_use]
    pub fn page(&self) -> &[u8; BLOCK_BYTES] {
        assert!(!matches!(self.unit().check, Check::Bytes { .. }), "not a page");
        let Some((start, bytes)) = self.pieces().next() else { unreachable!("a page has one piece") };
        assert_eq!(bytes, BLOCK_BYTES);
        // SAFETY: the frame is initialised, and only read while it is pinned.
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
pub struct Chunks<'a>(Pieces<'a>);

impl Chunks<'_> {
    /// Bytes of the chunks that were not taken yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.0.bytes()
    }
}

impl<'a> Iterator for Chunks<'a> {
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
        Self { inner: self.inner, slot: self.slot }
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        let word: *const Word = &raw const self.slot().word;
        // SAFETY: the pin keeps the word alive until it is given back, which is the last thing that this does with it.
        if !unsafe { (*word).unpin() } {
            self.unpin_for_others();
        }
    }
}

impl Pinned {
    #[cold]
    fn unpin_for_others(&self) {
        let inner = self.share();
        let duties = inner.slots[self.slot as usize].word.unpin_for_others();
        if duties.free {
            // SAFETY: this unpin brought the word from doomed to vacant.
            drop(unsafe { inner.frames_of(self.slot) });
        }
        if duties.wake {
            inner.store.starving.notify();
        }
        if duties.unlatched {
            inner.latches.wake(self.slot);
        }
        if duties.close {
            // SAFETY: `close` left this reference to the slot's last unpin.
            drop(unsafe { Arc::from_raw(self.inner) });
        }
    }
}

/// The right to write to a unit that changes in place. Dropped, it leaves the unit dirty; it is written some time
/// before its frame is used for something else, or when it is flushed.
pub struct PageWrite {
    pinned: ManuallyDrop<Pinned>,
}

impl PageWrite {
    /// Latches what is pinned; gives the pin back where somebody else has the latch.
    pub(crate) fn latch(pinned: Pinned) -> Result<Draining, Pinned> {
        assert!(pinned.unit().is_mutable(), "only a mutable page is written to in place");
        if pinned.slot().word().latch() { Ok(Draining(Some(pinned))) } else { Err(pinned) }
    }

    fn address(&self) -> *mut u8 {
        let Some((start, bytes)) = self.pinned.pieces().next() else { unreachable!("a page has one piece") };
        assert_eq!(bytes, BLOCK_BYTES);
        start
    }

    /// Takes the page out of the pool unwritten; its frame is free afterwards.
    pub(crate) fn discard(self) {
        let page = ManuallyDrop::new(self);
        // SAFETY: `page` is never used nor dropped again.
        let pinned = unsafe { std::ptr::read(&*page.pinned) };
        let inner = pinned.inner();
        let guard = inner.table.lock(pinned.slot().block());
        inner.retire_pinned(&pinned, &guard);
        drop(guard);
        inner.latches.wake(pinned.slot);
    }
}

impl Deref for PageWrite {
    type Target = [u8; BLOCK_BYTES];

    fn deref(&self) -> &Self::Target {
        // SAFETY: the frame is initialised; the latch is ours and every other pin is gone, so nobody writes.
        unsafe { &*self.address().cast() }
    }
}

impl DerefMut for PageWrite {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as in `deref`; and nobody else reads, because no pin can be had while it is latched.
        unsafe { &mut *self.address().cast() }
    }
}

impl Drop for PageWrite {
    #[inline]
    fn drop(&mut self) {
        let word: *const Word = &raw const self.pinned.slot().word;
        // SAFETY: the pin keeps the word alive until it is given back, which is the last thing that this does with it.
        if !unsafe { (*word).unlatch_and_unpin() } {
            // SAFETY: taken once, here; the field is not used afterwards.
            let pinned = unsafe { ManuallyDrop::take(&mut self.pinned) };
            if pinned.slot().word().unlatch(true) {
                pinned.inner().latches.wake(pinned.slot);
            }
        }
    }
}

impl fmt::Debug for PageWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PageWrite").field(&self.pinned.unit()).finish()
    }
}

/// A latch that waits until every other pin is gone. Dropped before, it gives latch and pin back.
pub(crate) struct Draining(Option<Pinned>);

impl Draining {
    pub(crate) async fn drained(mut self) -> PageWrite {
        if let Some(pinned) = &self.0
            && !pinned.slot().word().is_drained()
        {
            let latches = &pinned.inner().latches;
            latches.wait(pinned.slot, || pinned.slot().word().tell_when_drained()).await;
        }
        let Some(pinned) = self.0.take() else { unreachable!("taken once, here") };
        assert!(pinned.slot().word().is_drained());
        PageWrite { pinned: ManuallyDrop::new(pinned) }
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        if let Some(pinned) = &self.0
            && pinned.slot().word().unlatch(false)
        {
            pinned.inner().latches.wake(pinned.slot);
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
