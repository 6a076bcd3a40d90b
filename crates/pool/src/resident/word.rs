//! The word that protects the frames of a unit: pins, state, and the waiters for the last unpin.
//!
//! | word | meaning | changed by |
//! |---|---|---|
//! | no flag, no pins | no unit, or one that is being loaded or evicted: a `Frames` owns the frames | the owner: publish |
//! | resident | the unit is whole and may be read | any thread: pin, unpin; without pins: claim |
//! | doomed, pinned | removed from the table while it was read | readers: the last unpin frees the frames |
//! | latched, not resident | a thread reads it; a `Frames` owns the frames | the owner: publish, unreserve |
//! | resident, latched | one of the pins will write; no new pins | the holder: unlatch |
//! | resident, dirty | the device holds an older image | the thread that wrote that image and still pins it: clean |
//!
//! A pin is also the shared latch: bytes are written only while the unit is latched and its only pin is the holder's. A
//! dirty unit cannot be claimed, so it is read from the device only after its last write completed.
//!
//! The frames of a resident or doomed unit belong to its word: the thread that brings it to "no flag, no pins" gets
//! them. The word also counts hits, so that a hit needs no second atomic operation.

use super::sync::{AtomicU64, Ordering};

const PINS: u64 = (1 << 24) - 1;
/// Room for clones that race past the limit before each of them notices.
const PINS_MAX: u64 = PINS - (1 << 16);
pub(crate) const RESIDENT: u64 = 1 << 24;
/// Out of the table; the last unpin frees the frames.
const DOOMED: u64 = 1 << 25;
/// The pins own a reference of the pool; the last unpin drops it.
const CLOSING: u64 = 1 << 26;
/// A request waits for a frame; the last unpin wakes it.
const WAKE: u64 = 1 << 27;
/// A writer has the right to write, or will have it once all other pins are gone.
const LATCHED: u64 = 1 << 28;
/// Must be written to the device before its frames can be taken.
const DIRTY: u64 = 1 << 29;
/// A task waits for the latch, or for the other pins to go.
const AWAITED: u64 = 1 << 30;
const FOR_OTHERS: u64 = DOOMED | CLOSING | WAKE | AWAITED;
/// One hit. The count has 33 bits; it is collected long before it overflows.
pub(crate) const HIT: u64 = 1 << HIT_SHIFT;
pub(crate) const HIT_SHIFT: u32 = 31;
pub(crate) const HITS_HIGH: u64 = 1 << 63;

#[derive(Default)]
pub(crate) struct Word(pub(crate) AtomicU64);

/// The duties of the last unpin. All `false` if other pins are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Duties {
    /// Free the frames, which are the caller's now.
    pub(crate) free: bool,
    /// Wake the requests that wait for frames.
    pub(crate) wake: bool,
    /// Drop the reference of the pool that its close left.
    pub(crate) close: bool,
    /// Wake the waiters for the latch. Also set if one pin is left, which may be the waiting one.
    pub(crate) unlatched: bool,
}

impl Word {
    /// Returns true if a `Frames` owns the frames.
    pub(crate) fn is_vacant(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !WAKE == 0
    }

    pub(crate) fn is_resident(&self) -> bool {
        self.0.load(Ordering::Acquire) & RESIDENT != 0
    }

    /// Returns true if the unit is resident, not pinned and clean.
    pub(crate) fn is_evictable(&self) -> bool {
        self.0.load(Ordering::Acquire) & (RESIDENT | PINS | DIRTY) == RESIDENT
    }

    /// Returns true if the unit is resident and not pinned: it can be evicted, at once or after its write.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (RESIDENT | PINS) == RESIDENT
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.0.load(Ordering::Acquire) & DIRTY != 0
    }

    pub(crate) fn is_latched(&self) -> bool {
        self.0.load(Ordering::Acquire) & LATCHED != 0
    }

    /// Resident, or latched, or both: one look, because a word goes from the one to the other at any time.
    pub(crate) fn is_resident_or_latched(&self) -> bool {
        self.0.load(Ordering::Acquire) & (RESIDENT | LATCHED) != 0
    }

    /// Latches a unit that the caller has pinned; `false` if it is latched already, or doomed. The right to write
    /// starts when [`is_drained`](Self::is_drained).
    pub(crate) fn latch(&self) -> bool {
        let latch = |word| if word & (LATCHED | DOOMED) == 0 { Some(word | LATCHED) } else { None };
        // Acquire pairs with the release of the holder before.
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, latch).is_ok()
    }

    /// Returns true if the only pin is the caller's, which has the latch.
    pub(crate) fn is_drained(&self) -> bool {
        // Acquire pairs with the release of the last other unpin: its reads are over.
        self.0.load(Ordering::Acquire) & PINS == 1
    }

    /// Releases the latch, not the pin. Returns true if a task waits for it.
    pub(crate) fn unlatch(&self, dirty: bool) -> bool {
        let set = if dirty { DIRTY } else { 0 };
        let unlatch = |word| Some((word & !(LATCHED | AWAITED)) | set);
        let word = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, unlatch).unwrap_or_default();
        assert!(word & LATCHED != 0, "unlatched without a latch");
        word & AWAITED != 0
    }

    /// Releases latch and pin if there are no duties for others; the caller wrote. As [`unpin`](Self::unpin).
    #[inline]
    pub(crate) fn unlatch_and_unpin(&self) -> bool {
        let alone = |word| (word & FOR_OTHERS == 0).then_some(((word - 1) & !LATCHED) | DIRTY);
        self.0.fetch_update(Ordering::Release, Ordering::Relaxed, alone).is_ok()
    }

    /// The image that the caller has pinned is on the device.
    pub(crate) fn clean(&self) {
        let word = self.0.fetch_and(!DIRTY, Ordering::Release);
        assert!(word & PINS != 0, "cleaned without a pin");
    }

    /// Marks a unit dirty that the caller has pinned and filled with bytes that the device does not have.
    pub(crate) fn soil(&self) {
        self.0.fetch_or(DIRTY, Ordering::Release);
    }

    /// Asks the holder of the latch to wake the waiters. `false` if it is not latched.
    pub(crate) fn tell_when_unlatched(&self) -> bool {
        let flag = |word| if word & LATCHED != 0 { Some(word | AWAITED) } else { None };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, flag).is_ok()
    }

    /// Asks the last other pin to wake the waiters. `false` if the caller's pin is the only one.
    pub(crate) fn tell_when_drained(&self) -> bool {
        let flag = |word| if word & PINS > 1 { Some(word | AWAITED) } else { None };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, flag).is_ok()
    }

    pub(crate) fn is_pinned(&self) -> bool {
        // Acquire pairs with the release of the last unpin: a thread that sees no pins may free the frames.
        self.0.load(Ordering::Acquire) & PINS != 0
    }

    /// Hits that were not collected yet.
    pub(crate) fn hits(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> HIT_SHIFT
    }

    /// Returns true if the hits should be collected soon.
    pub(crate) fn is_full_of_hits(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= HITS_HIGH
    }

    /// Takes the count of hits.
    pub(crate) fn collect_hits(&self) -> u64 {
        self.0.fetch_and(HIT - 1, Ordering::Relaxed) >> HIT_SHIFT
    }

    /// Takes one hit back.
    pub(crate) fn uncount_hit(&self) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| word.checked_sub(HIT));
    }

    /// Publishes the owner's frames: resident, and pinned `pins` times by the caller. Returns true if a task waits
    /// since the unit was [reserved](Self::reserve).
    pub(crate) fn publish(&self, pins: u32) -> bool {
        assert!(u64::from(pins) < PINS_MAX);
        // Release pairs with the acquire of `pin`: a thread that pins the unit sees its name and bytes.
        let publish = |word| Some(RESIDENT | u64::from(pins) | (word & WAKE));
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, publish).unwrap_or_default();
        assert_eq!(before & (PINS | RESIDENT | DOOMED), 0, "a word in use was published");
        before & AWAITED != 0
    }

    /// Reserves the frames for a read by their owner: other fetches wait as for a latch.
    pub(crate) fn reserve(&self) {
        let before = self.0.swap(LATCHED, Ordering::Relaxed);
        assert_eq!(before & !WAKE, 0, "a word in use was reserved");
    }

    /// Cancels a reservation after a failed read. Returns true if a task waits.
    pub(crate) fn unreserve(&self) -> bool {
        self.0.swap(0, Ordering::AcqRel) & AWAITED != 0
    }

    /// Pins a resident unit.
    #[inline]
    pub(crate) fn pin(&self, hit: bool) -> bool {
        let add = if hit { HIT + 1 } else { 1 };
        let mut word = self.0.load(Ordering::Relaxed);
        while word & (RESIDENT | LATCHED) == RESIDENT {
            assert!(word & PINS < PINS_MAX, "too many pins of one unit");
            let new = word.wrapping_add(add);
            match self.0.compare_exchange_weak(word, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Adds a pin to a unit that the caller has pinned already.
    pub(crate) fn pin_again(&self) {
        // Relaxed: the first pin keeps the unit, and the second one is handed over by its owner.
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(before & PINS < PINS_MAX, "too many pins of one unit");
    }

    /// Unpins if there are no duties for others afterwards. On `true` the caller's right to the word has ended: the
    /// word may not exist any more.
    #[inline]
    pub(crate) fn unpin(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & FOR_OTHERS == 0 {
            // Release pairs with `claim` and `is_pinned`: the reads are over.
            match self.0.compare_exchange_weak(word, word - 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Unpins, and returns the duties for others.
    pub(crate) fn unpin_for_others(&self) -> Duties {
        let unpin = |word: u64| match word & PINS {
            0 => None,
            1 if word & DOOMED != 0 => Some(0),
            1 => Some((word - 1) & !(WAKE | CLOSING | AWAITED)),
            2 => Some((word - 1) & !AWAITED),
            _ => Some(word - 1),
        };
        let Ok(word) = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, unpin) else {
            unreachable!("unpinned without a pin")
        };
        let unlatched = word & AWAITED != 0 && word & PINS <= 2;
        if word & PINS > 1 {
            return Duties { unlatched, ..Duties::default() };
        }
        Duties { free: word & DOOMED != 0, wake: word & WAKE != 0, close: word & CLOSING != 0, unlatched }
    }

    /// Claims the frames of a resident unit that is not pinned; returns its hits.
    pub(crate) fn claim(&self) -> Option<u64> {
        let vacate = |word| if word & (RESIDENT | PINS | DIRTY) == RESIDENT { Some(0) } else { None };
        let word = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, vacate).ok()?;
        Some(word >> HIT_SHIFT)
    }

    /// Dooms a resident unit that the caller pinned: it gets no new pins, and the last unpin frees its frames.
    /// Returns its hits.
    pub(crate) fn doom(&self) -> u64 {
        let doom = |word| Some((word & (PINS | CLOSING | WAKE | AWAITED)) | DOOMED);
        let word = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, doom).unwrap_or_default();
        assert!(word & RESIDENT != 0 && word & PINS != 0, "doomed a unit that was not resident and pinned");
        word >> HIT_SHIFT
    }

    /// Asks the last unpin to wake the requests that wait for frames, also that of a unit which a thread is reading.
    /// `false` if the unit is neither pinned nor being read.
    pub(crate) fn wake_at_unpin(&self) -> bool {
        let flag = |word| if word & (PINS | LATCHED) != 0 { Some(word | WAKE) } else { None };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, flag).is_ok()
    }

    /// Withdraws [`wake_at_unpin`](Self::wake_at_unpin): the frames of this unit would not help.
    pub(crate) fn let_sleep(&self) {
        self.0.fetch_and(!WAKE, Ordering::Relaxed);
    }

    /// Leaves the last unpin a reference of the pool to drop. `false` if the unit is not pinned any more.
    pub(crate) fn close_at_unpin(&self) -> bool {
        let flag = |word| if word & PINS != 0 { Some(word | CLOSING) } else { None };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, flag).is_ok()
    }
}
