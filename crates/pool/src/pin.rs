//! The word that protects a resident unit, and [`Pinned`], a reader's hold on it.
//!
//! Each unit is described by the slot of its first frame. The slot's word counts pins and says whether the unit may
//! be pinned. A hit is one compare-and-swap in and one out; it also counts the hit.
//!
//! | word | meaning | who may change it, and how |
//! |---|---|---|
//! | no flag, no pins | no unit, or one that is being loaded or evicted: a `Frames` owns the frames | the owner: publish |
//! | resident | the unit is whole and may be read | anybody: pin, unpin; without pins: evict |
//! | doomed, pinned | taken out of the table while it was read | readers: the last unpin frees the frames |
//!
//! Invariants:
//! 1. Frames of a resident or doomed unit belong to its word: only the transition to "no flag, no pins" gives a `Frames`.
//! 2. A pin is taken from zero only on behalf of somebody who holds a [`crate::Pool`]. So after the last handle was
//!    dropped pins only fall, and [`close`] can leave one reference of the pool to each slot that is still pinned: the
//!    last unpin drops it. That keeps the pool's reference count, which all threads share, out of the way of a hit.
//! 3. An unpin that finds no flag for somebody else touches nothing after its compare-and-swap: the pool may be gone.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use shoal_base::BLOCK_BYTES;
use shoal_device::IoMemory;
use smallvec::SmallVec;

use crate::frame::{Frames, Pieces};
use crate::free::List;
use crate::pool::Inner;
use crate::unit::{Check, Unit, UnitId};

const PINS: u64 = (1 << 24) - 1;
const RESIDENT: u64 = 1 << 24;
/// Out of the table; the last unpin frees the frames.
const DOOMED: u64 = 1 << 25;
/// The pins own a reference of the pool; the last unpin drops it.
const CLOSING: u64 = 1 << 26;
/// Somebody waits for a frame; the last unpin tells.
const WAKE: u64 = 1 << 27;
/// One hit. The count has 36 bits and is moved to the pool's statistics before it overflows.
const HIT: u64 = 1 << HIT_SHIFT;
const HIT_SHIFT: u32 = 28;
const HITS_HIGH: u64 = 1 << 63;
const FOR_OTHERS: u64 = DOOMED | CLOSING | WAKE;

/// What is known of the unit whose first frame has the slot's index. One cache line, so that a hit touches one.
#[repr(align(64))]
pub(crate) struct Slot {
    word: AtomicU64,
    block: AtomicU64,
    identity: AtomicU64,
    check: AtomicU64,
    /// The next slot in the table's chain.
    pub(crate) chain: AtomicU32,
    /// The policy's: time of the last access, number of accesses, and which use of the slot this is.
    pub(crate) last: AtomicU32,
    pub(crate) count: AtomicU32,
    pub(crate) generation: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    pub(crate) const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            block: AtomicU64::new(0),
            identity: AtomicU64::new(0),
            check: AtomicU64::new(0),
            chain: AtomicU32::new(crate::free::NONE),
            last: AtomicU32::new(0),
            count: AtomicU32::new(0),
            generation: AtomicU32::new(0),
        }
    }

    /// Names the unit that will be published here. Only for the owner of the frames; made visible by publishing, or
    /// by the table's lock.
    pub(crate) fn name(&self, unit: &Unit) {
        assert_eq!(self.word.load(Ordering::Relaxed), 0, "a slot in use was renamed");
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

    pub(crate) fn is_resident(&self) -> bool {
        self.word.load(Ordering::Acquire) & RESIDENT != 0
    }

    /// Whether the unit could be evicted now.
    pub(crate) fn is_evictable(&self) -> bool {
        self.word.load(Ordering::Acquire) & (RESIDENT | PINS) == RESIDENT
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.word.load(Ordering::Relaxed) & PINS != 0
    }

    /// Hits since they were last collected.
    pub(crate) fn hits(&self) -> u64 {
        self.word.load(Ordering::Relaxed) >> HIT_SHIFT
    }

    /// Has the last unpin wake who waits for frames. `false` where nothing is pinned.
    pub(crate) fn wake_at_unpin(&self) -> bool {
        let flag = |word| if word & PINS != 0 { Some(word | WAKE) } else { None };
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, flag).is_ok()
    }
}

impl Inner {
    /// Pins the unit of this slot and counts a hit, where there is one.
    #[inline]
    pub(crate) fn pin_hit(self: &Arc<Self>, index: u32) -> Option<Pinned> {
        self.pin_and(index, HIT)
    }

    /// Pins the unit of this slot, where there is one.
    pub(crate) fn pin(self: &Arc<Self>, index: u32) -> Option<Pinned> {
        self.pin_and(index, 0)
    }

    #[inline]
    fn pin_and(self: &Arc<Self>, index: u32, count: u64) -> Option<Pinned> {
        let slot = &self.slots[index as usize];
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            if word & RESIDENT == 0 {
                return None;
            }
            assert!(word & PINS < PINS, "too many pins of one unit");
            // Acquire pairs with the release of `publish`: the unit's name and bytes are visible.
            match slot.word.compare_exchange_weak(
                word,
                word.wrapping_add(count + 1),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if word >= HITS_HIGH {
            self.collect_hits(slot);
        }
        Some(Pinned { inner: Arc::as_ptr(self), slot: index })
    }

    #[cold]
    fn collect_hits(&self, slot: &Slot) {
        let before = slot.word.fetch_and(HIT - 1, Ordering::Relaxed);
        self.stats.hits.add(before >> HIT_SHIFT);
    }

    /// Makes the frames readable as the unit that their slot [names](Slot::name), pinned `pins` times.
    pub(crate) fn publish(self: &Arc<Self>, frames: Frames, pins: u32) -> SmallVec<[Pinned; 2]> {
        let index = frames.list().head;
        let slot = &self.slots[index as usize];
        assert!(frames.are_of(&self.store), "frames of another pool");
        assert_eq!(frames.count(), slot.unit().blocks(), "a unit of other size was published");
        assert!(u64::from(pins) < PINS);
        let _ = frames.into_list();
        let before = slot.word.swap(RESIDENT | u64::from(pins), Ordering::Release);
        assert_eq!(before, 0, "a slot in use was published");
        (0..pins).map(|_| Pinned { inner: Arc::as_ptr(self), slot: index }).collect()
    }

    /// Takes the frames of an unpinned unit. The caller then takes its slot out of the table.
    pub(crate) fn claim(&self, index: u32) -> Option<Frames> {
        let slot = &self.slots[index as usize];
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            if word & (RESIDENT | PINS) != RESIDENT {
                return None;
            }
            // Acquire pairs with the release of the last unpin: its reads are over before the frames are written to.
            match slot.word.compare_exchange_weak(word, 0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        self.stats.hits.add(word >> HIT_SHIFT);
        // SAFETY: the word went from resident and unpinned to nothing, here and only here.
        Some(unsafe { self.frames_of(index) })
    }

    /// Ends a unit that the caller pinned and took out of the table: the last unpin frees its frames.
    pub(crate) fn condemn(&self, pinned: &Pinned) {
        let slot = &self.slots[pinned.slot as usize];
        let doom = |word| Some((word & (PINS | CLOSING | WAKE)) | DOOMED);
        let before = slot.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, doom).unwrap_or_default();
        assert_eq!(before & (RESIDENT | DOOMED), RESIDENT, "a unit was condemned twice");
        self.stats.hits.add(before >> HIT_SHIFT);
    }

    /// # Safety
    /// The caller changed the slot's word from resident or doomed to nothing.
    unsafe fn frames_of(&self, index: u32) -> Frames {
        let count = self.slots[index as usize].unit().blocks() as u32;
        // SAFETY: `publish` gave the frames to the word, and the word gave them to the caller.
        unsafe { self.store.claim(List { head: index, count }) }
    }
}

/// Called when the last handle of the pool goes: whatever is still pinned keeps the memory alive from here on.
pub(crate) fn close(inner: &Arc<Inner>) {
    for slot in &inner.slots[..inner.store.free.touched() as usize] {
        // Nothing is pinned anew any more (invariant 2). Acquire pairs with the release of the last unpin.
        if slot.word.load(Ordering::Acquire) & PINS == 0 {
            continue;
        }
        // For the pins; dropped by the last of them.
        let reference = Arc::into_raw(inner.clone());
        if slot.word.fetch_or(CLOSING, Ordering::AcqRel) & PINS == 0 {
            // SAFETY: just made; the last unpin came before the flag and did not see it.
            drop(unsafe { Arc::from_raw(reference) });
        }
    }
}

/// A hold on a resident unit: while it lives, the unit's bytes stay where they are and do not change.
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

    pub(crate) fn index(&self) -> u32 {
        self.slot
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.inner().slots[self.slot as usize]
    }

    /// Takes back a pin whose unit turned out to be another one, and the hit that it counted.
    pub(crate) fn undo_hit(self) {
        let uncount = |word| (word >= HIT).then(|| word - HIT);
        let _ = self.slot().word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, uncount);
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
        assert!(matches!(self.unit().check, Check::Page { .. }), "not a page");
        let Some((start, bytes)) = self.pieces().next() else { unreachable!("a page has one piece") };
        assert_eq!(bytes, BLOCK_BYTES);
        // SAFETY: the frame is initialised, and only read while it is pinned.
        unsafe { &*start.cast() }
    }

    /// The chunks as buffers that hold the pin: the unit is unpinned when the last of them is dropped. No copy is made.
    pub fn into_bytes(self) -> impl Iterator<Item = Bytes> + Send {
        let mut from = 0;
        let lengths: SmallVec<[usize; 4]> = self.chunks().map(<[u8]>::len).collect();
        lengths.into_iter().enumerate().map(move |(index, length)| {
            let range = from..from + length;
            from = range.end;
            Bytes::from_owner(Chunk { pinned: self.clone(), index, range })
        })
    }
}

/// A chunk of a unit, and the pin that protects it.
struct Chunk {
    pinned: Pinned,
    index: usize,
    range: Range<usize>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        let chunk = self.pinned.chunks().nth(self.index).unwrap_or_default();
        assert_eq!(chunk.len(), self.range.len());
        chunk
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
        // Relaxed: this pin keeps the unit, and whoever gets the new one gets it from here.
        let before = self.slot().word.fetch_add(1, Ordering::Relaxed);
        assert!(before & PINS < PINS - (1 << 16), "too many pins of one unit");
        Self { inner: self.inner, slot: self.slot }
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        let word: *const AtomicU64 = &raw const self.slot().word;
        // SAFETY: the pin keeps the slot alive until the compare-and-swap below succeeds.
        let word = unsafe { &*word };
        let mut seen = word.load(Ordering::Relaxed);
        while seen & FOR_OTHERS == 0 {
            // Release pairs with whoever evicts the unit, or frees the pool. Nothing of it is touched afterwards.
            match word.compare_exchange_weak(seen, seen - 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        self.unpin_for_others();
    }
}

impl Pinned {
    #[cold]
    fn unpin_for_others(&self) {
        // SAFETY: made by `Arc::as_ptr`, and alive while the pin is; the new reference keeps it alive afterwards.
        let inner = unsafe {
            Arc::increment_strong_count(self.inner);
            Arc::from_raw(self.inner)
        };
        let slot = &inner.slots[self.slot as usize];
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            let new = match word & PINS {
                0 => unreachable!("unpinned what is not pinned"),
                1 if word & DOOMED != 0 => 0,
                1 => (word - 1) & !(WAKE | CLOSING),
                _ => word - 1,
            };
            match slot.word.compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if word & PINS > 1 {
            return;
        }
        if word & DOOMED != 0 {
            // SAFETY: the word went from doomed to nothing, here and only here.
            drop(unsafe { inner.frames_of(self.slot) });
        }
        if word & WAKE != 0 {
            inner.store.starving.notify();
        }
        if word & CLOSING != 0 {
            // SAFETY: `close` left this reference to the slot's last unpin.
            drop(unsafe { Arc::from_raw(self.inner) });
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(&self.unit()).finish()
    }
}

/// The memory of a write request: pinned pages that follow each other on the device.
pub(crate) struct WriteFrames(pub(crate) Vec<Pinned>);

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
