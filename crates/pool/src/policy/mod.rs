//! The choice of units to keep: a class for scans, and [`lru_k`] for everything else.
//!
//! - Time is the number of units that entered the pool; of the units that a scan reads into its own frame only some
//!   count. A hit notifies the policy at most once per unit of time: accesses that close together are one event
//!   (the correlated references of LRU-K), and while everything is resident a hit writes only its pin.
//! - Units that only scans touched do not belong to the policy: they wait in a queue, oldest first. Every request for
//!   frames looks there first; a scan that has reached its share takes from there before it takes a free frame. A scan
//!   that reads for itself keeps the page that it read last out of the queue, and reuses its frame.

mod draw;
mod history;
mod lru_k;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use shoal_base::sync::Mutex;

use crate::counters::Alone;
use crate::resident::slot::Slot;
use crate::unit::Hint;

use lru_k::LruK;

pub(crate) use draw::Draw;
pub(crate) use history::K_MAX;

/// Uses of a scan's own frame for each unit of time: all threads share the clock.
const SCANNED_A_TICK: u32 = 16;

/// The slots that a search for a victim considers.
pub(crate) struct Search<'a> {
    pub(crate) slots: &'a [Slot],
    /// Slots that were ever used.
    pub(crate) touched: u32,
    pub(crate) draw: &'a Draw,
    /// True if only clean units may go.
    pub(crate) clean_only: bool,
    pub(crate) now: u32,
}

impl Search<'_> {
    pub(crate) fn can_go(&self, index: u32) -> bool {
        let word = &self.slots[index as usize].word;
        if self.clean_only { word.is_evictable() } else { word.is_idle() }
    }
}

/// A unit that only scans touched, in one use of its slot.
#[derive(Clone, Copy)]
pub(crate) struct Scanned {
    index: u32,
    generation: u32,
}

impl Scanned {
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}

/// Scans keep this part of the frames that they may take.
const HELD_SHARE: usize = 4;

pub(crate) struct Policy {
    clock: Alone<AtomicU32>,
    lru_k: LruK,
    /// Units that only scans touched.
    pub(crate) scanned: Queue,
    /// Units that no new reader needs.
    pub(crate) unneeded: Queue,
    /// Frames of units that only scans touched.
    scan_frames: Alone<AtomicUsize>,
    scan_frames_max: usize,
}

impl Policy {
    pub(crate) fn new(slots: usize, k: usize, history: usize, scan_frames_max: usize) -> Self {
        Self {
            clock: Alone::default(),
            lru_k: LruK::new(slots, k, history),
            scanned: Queue::new(slots),
            unneeded: Queue::new(slots),
            scan_frames: Alone::default(),
            scan_frames_max,
        }
    }

    fn now(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    fn tick(&self) -> u32 {
        self.clock.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// A unit enters the pool in this slot, wanted for `hint`. Only for the owner of its frames.
    pub(crate) fn entered(&self, slot: &Slot, index: u32, hint: Hint) {
        let now = self.tick();
        if hint == Hint::Scan {
            let entry = self.entered_for(slot, index, false);
            self.scanned.push(entry);
            return;
        }
        Self::renew(slot);
        slot.scanned.store(false, Ordering::Relaxed);
        slot.last.store(now, Ordering::Relaxed);
        self.lru_k.entered(slot, index, now, hint);
    }

    /// Notes that a unit enters the pool in this slot for a scan, which puts it into [`scanned`](Self::scanned) when it moves on.
    /// `counted` is true if the scans' frames include it already.
    pub(crate) fn entered_for(&self, slot: &Slot, index: u32, counted: bool) -> Scanned {
        let generation = Self::renew(slot);
        if generation.is_multiple_of(SCANNED_A_TICK) {
            self.tick();
        }
        slot.scanned.store(true, Ordering::Relaxed);
        // Before now, so that a lookup at this very time is noticed.
        slot.last.store(self.now().wrapping_sub(1), Ordering::Relaxed);
        if !counted {
            self.scan_frames.fetch_add(slot.unit().blocks(), Ordering::Relaxed);
        }
        Scanned { index, generation }
    }

    /// Starts another use of the slot. Only for the owner of its frames.
    fn renew(slot: &Slot) -> u32 {
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        slot.generation.store(generation, Ordering::Relaxed);
        generation
    }

    /// Returns true if the slot still holds this unit, and only scans touched it.
    pub(crate) fn is_scanned(slot: &Slot, entry: Scanned) -> bool {
        slot.scanned.load(Ordering::Relaxed) && slot.generation.load(Ordering::Relaxed) == entry.generation
    }

    /// Notes that a scan reuses the frame of a unit that only it touched, claimed by the caller: the frame stays
    /// counted.
    pub(crate) fn left_to_scan(slot: &Slot) {
        slot.scanned.store(false, Ordering::Relaxed);
    }

    /// A scan did not need the frame after all.
    pub(crate) fn uncount_scanned(&self) {
        self.scan_frames.fetch_sub(1, Ordering::Relaxed);
    }

    /// A resident unit was found. Pinned by the caller.
    #[inline]
    pub(crate) fn touched(&self, slot: &Slot, index: u32, hint: Hint) {
        let now = self.now();
        if hint != Hint::Scan && slot.last.load(Ordering::Relaxed) != now {
            self.accessed(slot, index, now);
        }
    }

    fn accessed(&self, slot: &Slot, index: u32, now: u32) {
        slot.last.store(now, Ordering::Relaxed);
        // Once for several threads: a load keeps the line shared if nothing changes. Acquire: the count that `let_go`
        // added is there before it is subtracted.
        if slot.scanned.load(Ordering::Relaxed) && slot.scanned.swap(false, Ordering::Acquire) {
            self.scan_frames.fetch_sub(slot.unit().blocks(), Ordering::Relaxed);
            self.lru_k.entered(slot, index, now, Hint::Lookup);
        } else {
            self.lru_k.accessed(slot, index, now);
        }
    }

    /// Notes that a unit leaves the pool; with `remember` its history is kept. Only the owner of its frames, or of its
    /// doom, calls this.
    pub(crate) fn left(&self, slot: &Slot, index: u32, remember: bool) {
        if slot.scanned.load(Ordering::Relaxed) && slot.scanned.swap(false, Ordering::Acquire) {
            self.scan_frames.fetch_sub(slot.unit().blocks(), Ordering::Relaxed);
        } else {
            self.lru_k.left(slot, index, self.now(), remember);
        }
    }

    /// The unit in slot `to` replaces the resident one in `from`, which the caller pinned: it takes over its history.
    /// The old one keeps it, too, while it is read: see [`Self::let_go`].
    pub(crate) fn inherit(&self, from: (&Slot, u32), to: (&Slot, u32)) {
        if !from.0.scanned.load(Ordering::Relaxed) {
            self.lru_k.inherit(from, to);
        }
    }

    /// No new reader needs the unit in this slot, which the caller pinned: it goes as soon as frames are needed.
    pub(crate) fn let_go(&self, slot: &Slot, index: u32) {
        if slot.scanned.load(Ordering::Relaxed) {
            return;
        }
        self.lru_k.left(slot, index, self.now(), false);
        // Counted before the flag is set: a reader that sees the flag takes the unit from the scans, and out of the
        // count, at once.
        let blocks = slot.unit().blocks();
        self.scan_frames.fetch_add(blocks, Ordering::Relaxed);
        if slot.scanned.swap(true, Ordering::Release) {
            self.scan_frames.fetch_sub(blocks, Ordering::Relaxed);
        } else {
            let entry = Scanned { index, generation: slot.generation.load(Ordering::Relaxed) };
            self.unneeded.push(entry);
        }
    }

    /// The slot that should be evicted, of the slots that may be.
    pub(crate) fn victim(&self, slots: &[Slot], touched: u32, draw: &Draw, clean_only: bool) -> Option<u32> {
        self.lru_k.victim(&Search { slots, touched, draw, clean_only, now: self.now() })
    }

    /// Returns true if a scan that wants `frames` more frames has to release some first.
    pub(crate) fn scan_share_used(&self, frames: usize) -> bool {
        self.scan_frames.load(Ordering::Relaxed) + frames > self.scan_frames_max
    }

    /// Returns true if few enough units that only scans touched are held, so that they stay: pages that were read ahead are
    /// still to be read, and in a full pool they alone would make room for pages of lookups.
    pub(crate) fn scans_hold_little(&self) -> bool {
        self.scan_frames.load(Ordering::Relaxed) <= self.scan_frames_max / HELD_SHARE
    }

    pub(crate) fn scan_frames_max(&self) -> usize {
        self.scan_frames_max
    }

    #[cfg(test)]
    pub(crate) fn scan_frames(&self) -> usize {
        self.scan_frames.load(Ordering::Relaxed)
    }
}

/// Units that go before those of lookups, the first one first.
pub(crate) struct Queue {
    entries: Alone<Mutex<VecDeque<Scanned>>>,
    /// Their number, to be looked at without the lock.
    queued: Alone<AtomicUsize>,
    /// Entries at most: one a slot is enough, as those of units that left otherwise stay until they come to the front.
    most: usize,
}

impl Queue {
    fn new(most: usize) -> Self {
        Self { entries: Alone::default(), queued: Alone::default(), most }
    }

    /// Puts a unit at the end.
    pub(crate) fn push(&self, entry: Scanned) {
        let mut entries = self.entries.lock();
        if entries.len() >= self.most {
            entries.pop_front();
        }
        entries.push_back(entry);
        self.queued.store(entries.len(), Ordering::Relaxed);
    }

    /// The first entry whose unit is still there.
    pub(crate) fn pop(&self, slots: &[Slot]) -> Option<Scanned> {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut entries = self.entries.lock();
        let mut found = None;
        while let Some(entry) = entries.pop_front() {
            if Policy::is_scanned(&slots[entry.index as usize], entry) {
                found = Some(entry);
                break;
            }
        }
        self.queued.store(entries.len(), Ordering::Relaxed);
        found
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::unit::Unit;

    pub(crate) fn slots(count: u32) -> Vec<Slot> {
        let slots: Vec<_> = (0..count).map(|_| Slot::new()).collect();
        slots.iter().zip(0_u64..).for_each(|(slot, block)| slot.name(&Unit::page(block, 1)));
        slots
    }

    /// A policy over slots that are all resident, and the order in which they would go.
    pub(crate) fn policy(slots: &[Slot], k: usize, history: usize) -> Policy {
        slots.iter().for_each(|slot| {
            slot.word.publish(0);
        });
        Policy::new(slots.len(), k, history, 4)
    }

    /// Takes victims until there is none.
    pub(crate) fn order(policy: &Policy, slots: &[Slot]) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some(index) = policy.victim(slots, slots.len() as u32, &Draw::default(), false) {
            assert!(slots[index as usize].word.claim().is_some());
            policy.left(&slots[index as usize], index, false);
            order.push(index);
        }
        order
    }

    #[test]
    fn scans_have_a_queue_and_a_share() {
        let slots = slots(3);
        let policy = Policy::new(3, 2, 64, 2);
        policy.entered(&slots[0], 0, Hint::Scan);
        policy.entered(&slots[1], 1, Hint::Scan);
        policy.touched(&slots[1], 1, Hint::Scan);
        policy.entered(&slots[2], 2, Hint::Lookup);
        assert!(policy.scan_share_used(1));
        policy.touched(&slots[0], 0, Hint::Lookup);
        assert!(!policy.scan_share_used(1), "a lookup takes it out of the scans");
        assert_eq!(policy.scanned.pop(&slots).map(|entry| entry.index), Some(1));
        policy.left(&slots[1], 1, true);
        policy.left(&slots[0], 0, true);
        assert_eq!(policy.scan_frames(), 0);
        assert!(policy.scanned.pop(&slots).is_none());
    }

    /// A reader of a unit at the moment at which it is let go does not take it out of a count that does not include it
    /// yet.
    #[test]
    fn a_unit_let_go_while_it_is_read_stays_counted() {
        let slots = slots(1);
        let policy = Policy::new(1, 2, 64, 2);
        let ended = AtomicBool::new(false);
        policy.entered(&slots[0], 0, Hint::Lookup);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        policy.tick();
                        policy.touched(&slots[0], 0, Hint::Lookup);
                        // Each of the three may be between the mark and the count.
                        assert!(policy.scan_frames() <= 3, "{} frames", policy.scan_frames());
                    }
                });
            }
            let started = std::time::Instant::now();
            let mut turns = 0;
            while turns < 1_000 || started.elapsed() < std::time::Duration::from_millis(200) {
                policy.let_go(&slots[0], 0);
                turns += 1;
            }
            ended.store(true, Ordering::Relaxed);
        });
        policy.left(&slots[0], 0, false);
        assert_eq!(policy.scan_frames(), 0);
    }

    #[test]
    fn a_unit_that_was_let_go_goes_first() {
        let slots = slots(2);
        let policy = policy(&slots, 2, 0);
        policy.entered(&slots[0], 0, Hint::Lookup);
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.inherit((&slots[0], 0), (&slots[1], 1));
        assert!(policy.unneeded.pop(&slots).is_none(), "it may still be read");
        policy.let_go(&slots[0], 0);
        policy.let_go(&slots[0], 0);
        assert_eq!(policy.unneeded.pop(&slots).map(|entry| entry.index), Some(0));
        assert!(policy.unneeded.pop(&slots).is_none());
        assert_eq!(order(&policy, &slots), [1]);
    }

    #[test]
    fn a_share_of_the_frames_stays_for_scans() {
        let slots = slots(9);
        let policy = Policy::new(9, 2, 0, 8);
        for index in 0..3 {
            policy.entered(&slots[index as usize], index, Hint::Scan);
            assert_eq!(policy.scans_hold_little(), index < 2);
        }
        policy.left(&slots[0], 0, false);
        assert!(policy.scans_hold_little());
    }
}
