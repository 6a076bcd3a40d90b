//! What to keep: LRU-K by backward k-distance, approximated so that a hit takes no lock and moves no list.
//!
//! - Order of eviction, as in the seed: units that only scans touched, then units with fewer than k accesses, then by
//!   the time of the k-th last access; within each, the longest ago first.
//! - Time is the number of units that entered the pool. A hit records at most one access a unit of time: accesses that
//!   close together are one event (the correlated references of LRU-K), and while everything is resident a hit writes
//!   nothing but its pin.
//! - Concurrent accesses of one unit may record one of them: the history orders evictions, nothing else.
//! - Evicted units keep their history in [`History`] for a while. Scans neither read nor write it.
//! - Units that only scans touched wait in a queue, oldest first. Every request for frames looks there first; a scan that
//!   has reached its share takes from there before it takes a free frame.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::history::{History, Stamps};
use crate::pin::Slot;
use crate::unit::Hint;

/// A unit that only scans touched, in one use of its slot.
#[derive(Clone, Copy)]
pub(crate) struct Scanned {
    pub(crate) index: u32,
    generation: u32,
}

pub(crate) struct Policy {
    k: u32,
    clock: AtomicU32,
    /// The last `k` accesses of each slot; access number n is at n modulo k.
    stamps: Box<[AtomicU32]>,
    history: History,
    scanned: Mutex<VecDeque<Scanned>>,
    /// Frames of units that only scans touched.
    scan_frames: AtomicUsize,
    scan_frames_max: usize,
}

impl Policy {
    pub(crate) fn new(slots: usize, k: usize, history: usize, scan_frames_max: usize) -> Self {
        Self {
            k: k as u32,
            clock: AtomicU32::new(0),
            stamps: (0..slots * k).map(|_| AtomicU32::new(0)).collect(),
            history: History::new(history, k),
            scanned: Mutex::default(),
            scan_frames: AtomicUsize::new(0),
            scan_frames_max,
        }
    }

    fn stamp(&self, index: u32, access: u32) -> &AtomicU32 {
        &self.stamps[(index * self.k + access % self.k) as usize]
    }

    /// A unit enters the pool in this slot, wanted for `hint`. Only for the owner of its frames.
    pub(crate) fn entered(&self, slot: &Slot, index: u32, hint: Hint) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let generation = slot.generation.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if hint == Hint::Scan {
            slot.count.store(0, Ordering::Relaxed);
            // Before now, so that a lookup at this very time is recorded.
            slot.last.store(now.wrapping_sub(1), Ordering::Relaxed);
            self.scan_frames.fetch_add(slot.unit().blocks(), Ordering::Relaxed);
            self.queue(Scanned { index, generation });
            return;
        }
        let mut stamps = self.history.take(slot.id());
        stamps.push(now);
        if hint == Hint::Index {
            stamps.resize(stamps.len().max(self.k as usize), now);
        }
        self.remember(slot, index, &stamps, now);
    }

    fn remember(&self, slot: &Slot, index: u32, stamps: &[u32], now: u32) {
        let kept = &stamps[stamps.len().saturating_sub(self.k as usize)..];
        for (access, &stamp) in (0_u32..).zip(kept) {
            self.stamp(index, access).store(stamp, Ordering::Relaxed);
        }
        slot.last.store(now, Ordering::Relaxed);
        slot.count.store(kept.len() as u32, Ordering::Relaxed);
    }

    /// The accesses that are known of a slot, the oldest first.
    fn recall(&self, slot: &Slot, index: u32) -> Stamps {
        let count = slot.count.load(Ordering::Relaxed);
        let from = count.saturating_sub(self.k);
        (from..count).map(|access| self.stamp(index, access).load(Ordering::Relaxed)).collect()
    }

    /// A resident unit was found. Pinned by the caller.
    #[inline]
    pub(crate) fn touched(&self, slot: &Slot, index: u32, hint: Hint) {
        let now = self.clock.load(Ordering::Relaxed);
        if hint != Hint::Scan && slot.last.load(Ordering::Relaxed) != now {
            self.record(slot, index, now);
        }
    }

    fn record(&self, slot: &Slot, index: u32, now: u32) {
        let count = slot.count.load(Ordering::Relaxed);
        // Stays between k and 2k, so that it never overflows and says which stamp is the oldest.
        let next = if count + 1 == 2 * self.k { self.k } else { count + 1 };
        if slot.count.compare_exchange(count, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        self.stamp(index, count).store(now, Ordering::Relaxed);
        slot.last.store(now, Ordering::Relaxed);
        if count == 0 {
            self.scan_frames.fetch_sub(slot.unit().blocks(), Ordering::Relaxed);
        }
    }

    /// A unit leaves the pool; `remember` it for its return. Only for the owner of its frames, or of its doom.
    pub(crate) fn left(&self, slot: &Slot, index: u32, remember: bool) {
        let stamps = self.recall(slot, index);
        if slot.count.swap(1, Ordering::Relaxed) == 0 {
            self.scan_frames.fetch_sub(slot.unit().blocks(), Ordering::Relaxed);
        } else if remember {
            self.history.save(slot.id(), &stamps, self.clock.load(Ordering::Relaxed));
        }
    }

    /// The unit in slot `to` replaces the resident one in `from` (which the caller pinned): it takes over its history,
    /// and the old one goes as soon as room is needed.
    pub(crate) fn inherit(&self, from: (&Slot, u32), to: (&Slot, u32)) {
        let stamps = self.recall(from.0, from.1);
        let last = from.0.last.load(Ordering::Relaxed);
        if from.0.count.swap(0, Ordering::Relaxed) != 0 {
            self.scan_frames.fetch_add(from.0.unit().blocks(), Ordering::Relaxed);
            self.queue(Scanned { index: from.1, generation: from.0.generation.load(Ordering::Relaxed) });
        }
        if !stamps.is_empty() {
            self.remember(to.0, to.1, &stamps, last);
        }
    }

    /// How much sooner than others the unit should go: the higher, the sooner.
    pub(crate) fn rank(&self, slot: &Slot, index: u32) -> u64 {
        let now = self.clock.load(Ordering::Relaxed);
        let count = slot.count.load(Ordering::Relaxed);
        let (class, stamp) = match count {
            0 => (2_u64, slot.last.load(Ordering::Relaxed)),
            _ if count < self.k => (1, self.stamp(index, 0).load(Ordering::Relaxed)),
            _ => (0, self.stamp(index, count).load(Ordering::Relaxed)),
        };
        class << 32 | u64::from(now.wrapping_sub(stamp))
    }

    /// Whether a scan that wants `frames` more has to give some back first.
    pub(crate) fn scan_share_used(&self, frames: usize) -> bool {
        self.scan_frames.load(Ordering::Relaxed) + frames > self.scan_frames_max
    }

    pub(crate) fn scan_frames_max(&self) -> usize {
        self.scan_frames_max
    }

    pub(crate) fn scan_frames(&self) -> usize {
        self.scan_frames.load(Ordering::Relaxed)
    }

    /// The unit that only scans touched and that entered first.
    pub(crate) fn next_scanned(&self, slots: &[Slot]) -> Option<Scanned> {
        let mut queue = self.scanned.lock();
        while let Some(entry) = queue.pop_front() {
            if Self::is_scanned(entry, slots) {
                return Some(entry);
            }
        }
        None
    }

    fn is_scanned(entry: Scanned, slots: &[Slot]) -> bool {
        let slot = &slots[entry.index as usize];
        slot.count.load(Ordering::Relaxed) == 0 && slot.generation.load(Ordering::Relaxed) == entry.generation
    }

    /// Puts a unit that only scans touched at the end of the queue.
    pub(crate) fn queue(&self, entry: Scanned) {
        let mut queue = self.scanned.lock();
        // Entries of units that left otherwise stay until they come to the front; an entry a slot is enough.
        if queue.len() * self.k as usize >= self.stamps.len() {
            queue.pop_front();
        }
        queue.push_back(entry);
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use crate::unit::Unit;

    fn slots(count: u32) -> Vec<Slot> {
        let slots: Vec<_> = (0..count).map(|_| Slot::new()).collect();
        slots.iter().zip(0_u64..).for_each(|(slot, block)| slot.name(&Unit::page(block, 1)));
        slots
    }

    fn order(policy: &Policy, slots: &[Slot]) -> Vec<u32> {
        let mut order: Vec<_> = (0..slots.len() as u32).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(policy.rank(&slots[index as usize], index)));
        order
    }

    #[test]
    fn scans_first_then_few_accesses_then_backward_distance() {
        let slots = slots(5);
        let policy = Policy::new(5, 2, 64, 4);
        policy.entered(&slots[0], 0, Hint::Lookup);
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Scan);
        policy.touched(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[3], 3, Hint::Index);
        policy.touched(&slots[0], 0, Hint::Scan);
        policy.entered(&slots[4], 4, Hint::Lookup);
        // 2: scan. 0 and 4: one access each. 1: second last access at 2. 3: index, both at 4.
        assert_eq!(order(&policy, &slots), [2, 0, 4, 1, 3]);
        assert_eq!(policy.scan_frames(), 1);
        policy.touched(&slots[2], 2, Hint::Lookup);
        assert_eq!(policy.scan_frames(), 0, "a lookup takes it out of the scans");
        assert_eq!(order(&policy, &slots), [0, 2, 4, 1, 3]);
        for _ in 0..100 {
            policy.clock.fetch_add(1, Ordering::Relaxed);
            policy.touched(&slots[1], 1, Hint::Lookup);
        }
        assert_eq!(order(&policy, &slots), [0, 2, 4, 3, 1]);
    }

    #[test]
    fn history_returns_with_the_unit() {
        let slots = slots(2);
        let policy = Policy::new(2, 2, 64, 4);
        policy.entered(&slots[0], 0, Hint::Lookup);
        policy.entered(&slots[1], 1, Hint::Scan);
        policy.left(&slots[0], 0, true);
        policy.left(&slots[1], 1, true);
        assert_eq!(policy.scan_frames(), 0);
        policy.entered(&slots[0], 0, Hint::Lookup);
        assert_eq!(slots[0].count.load(Ordering::Relaxed), 2, "the access before counts");
        policy.entered(&slots[1], 1, Hint::Lookup);
        assert_eq!(slots[1].count.load(Ordering::Relaxed), 1, "a scan leaves no history");
    }

    #[test]
    fn a_replacement_takes_the_history_over() {
        let slots = slots(3);
        let policy = Policy::new(3, 2, 0, 4);
        policy.entered(&slots[0], 0, Hint::Index);
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Lookup);
        policy.inherit((&slots[0], 0), (&slots[2], 2));
        assert_eq!(order(&policy, &slots), [0, 1, 2]);
        assert_eq!(policy.next_scanned(&slots).map(|entry| entry.index), Some(0));
        assert!(policy.next_scanned(&slots).is_none());
    }
}
