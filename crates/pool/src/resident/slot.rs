//! Slots, which describe units, and [`Residents`]: all slots with the memory of their units.
//!
//! Each unit is described by the slot of its first frame; the slot's [`Word`] protects it.
//!
//! Invariant: the frames of a resident or doomed unit belong to its word. Only this file makes `Frames` for them, for a
//! caller that brought the word to vacant.

#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use shoal_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::latch::Latches;
use super::word::Word;
use crate::counters::Count;
use crate::memory::frame::{Frames, Stores};
use crate::memory::free::{List, NONE};
use crate::unit::{Unit, UnitId};

/// The description of the unit whose first frame has the slot's index. One cache line, so that a hit touches one.
#[repr(align(64))]
pub(crate) struct Slot {
    pub(crate) word: Word,
    block: AtomicU64,
    identity: AtomicU64,
    check: AtomicU64,
    /// The next slot in the table's chain.
    pub(crate) chain: AtomicU32,
    /// The policy's fields: time of the last access, number of accesses, the number of this use of the slot, and
    /// whether only scans touched it.
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

    /// Returns true if the unit is a page; stable as the unit is.
    #[inline]
    pub(crate) fn is_page(&self) -> bool {
        Unit::is_page_packed(self.check.load(Ordering::Relaxed))
    }

    pub(crate) fn is(&self, unit: &Unit) -> bool {
        self.id() == unit.id && self.check.load(Ordering::Relaxed) == unit.packed()
    }
}

/// All slots, and the memory of the units that they describe: a pin refers to it.
pub(crate) struct Residents {
    pub(crate) slots: Arc<[Slot]>,
    pub(crate) memory: Stores,
    pub(crate) latches: Latches,
    /// Hits of units that are gone.
    pub(crate) hits: Count,
}

impl Residents {
    /// As [`Stores::new`], with a slot for each frame.
    pub(crate) fn new(frames: u32) -> io::Result<Self> {
        Ok(Self {
            slots: (0..frames).map(|_| Slot::new()).collect(),
            memory: Stores::new(frames)?,
            latches: Latches::new(),
            hits: Count::default(),
        })
    }

    pub(crate) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// The slots that were ever used.
    pub(crate) fn used_slots(&self) -> &[Slot] {
        &self.slots[..self.memory.free.touched() as usize]
    }

    /// Passes the frames to the word of their slot, which [names](Slot::name) the unit and then has `pins` pins;
    /// returns the slot.
    pub(crate) fn give_frames(&self, frames: Frames, pins: u32) -> u32 {
        let index = frames.list().head;
        let slot = self.slot(index);
        assert!(frames.are_of(&self.memory), "frames of another pool");
        assert_eq!(frames.count(), slot.unit().blocks(), "a unit of other size was published");
        let _ = frames.into_list();
        if slot.word.publish(pins) {
            self.latches.wake(index);
        }
        index
    }

    /// Takes the frames of an unpinned unit. The caller then takes its slot out of the table.
    pub(crate) fn claim(&self, index: u32) -> Option<Frames> {
        self.hits.add(self.slot(index).word.claim()?);
        // SAFETY: claiming brought the word to vacant.
        Some(unsafe { self.frames_of(index) })
    }

    /// Releases one pin, and performs the duties of the last pin. Returns true if the caller must drop a reference
    /// that [`close`](super::pin::close) left.
    pub(crate) fn unpin_for_others(&self, index: u32) -> bool {
        let duties = self.slot(index).word.unpin_for_others();
        if duties.free {
            // SAFETY: this unpin brought the word from doomed to vacant.
            drop(unsafe { self.frames_of(index) });
        }
        if duties.wake {
            self.memory.starving.notify();
        }
        if duties.unlatched {
            self.latches.wake(index);
        }
        duties.close
    }

    /// # Safety
    /// The caller brought the slot's word from resident or doomed to vacant.
    unsafe fn frames_of(&self, index: u32) -> Frames {
        let count = self.slot(index).unit().blocks() as u32;
        // SAFETY: `give_frames` passed the frames to the word, and the word passed them to the caller.
        unsafe { self.memory.claim(List { head: index, count }) }
    }
}
