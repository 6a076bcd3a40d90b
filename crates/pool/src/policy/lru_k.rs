//! LRU-K by backward k-distance, kept so that a hit takes no lock and moves no list.
//!
//! - Order of eviction, as in the seed: units that only scans touched, then units with fewer than k accesses, then by
//!   the time of the k-th last access; within each, the longest ago first.
//! - Concurrent accesses of one unit may record one of them: the history orders evictions, nothing else.
//! - Evicted units keep their history in [`History`] for a while. Scans neither read nor write it. (Without a history, k
//!   16 and 64 frames this is the course's policy.)
//! - Pools of up to [`EXACT_FRAMES_MAX`] frames are searched as a whole; in larger ones the worst of [`SAMPLE`] random
//!   candidates goes. No lock is held while choosing.

use std::sync::atomic::{AtomicU32, Ordering};

use super::history::{History, Stamps};
use super::{Replacement, Search};
use crate::pin::Slot;
use crate::unit::Hint;

/// Up to here every victim is the right one. A search costs about as much as a 4 KiB copy.
const EXACT_FRAMES_MAX: u32 = 128;

/// Candidates of a sampled search.
const SAMPLE: usize = 16;

/// Frames that are looked at for them: interior frames of units, free ones and pinned ones are no candidates.
const SAMPLE_DRAWS: usize = 64;

pub(crate) struct LruK {
    k: u32,
    /// The last `k` accesses of each slot; access number n is at n modulo k.
    stamps: Box<[AtomicU32]>,
    history: History,
}

impl LruK {
    pub(crate) fn new(slots: usize, k: usize, history: usize) -> Self {
        let stamps = (0..slots * k).map(|_| AtomicU32::new(0)).collect();
        Self { k: k as u32, stamps, history: History::new(history, k) }
    }

    fn stamp(&self, index: u32, access: u32) -> &AtomicU32 {
        &self.stamps[(index * self.k + access % self.k) as usize]
    }

    fn remember(&self, slot: &Slot, index: u32, stamps: &[u32]) {
        let kept = &stamps[stamps.len().saturating_sub(self.k as usize)..];
        for (access, &stamp) in (0_u32..).zip(kept) {
            self.stamp(index, access).store(stamp, Ordering::Relaxed);
        }
        slot.count.store(kept.len() as u32, Ordering::Relaxed);
    }

    /// The accesses that are known of a slot, the oldest first.
    fn recall(&self, slot: &Slot, index: u32) -> Stamps {
        let count = slot.count.load(Ordering::Relaxed);
        let from = count.saturating_sub(self.k);
        (from..count).map(|access| self.stamp(index, access).load(Ordering::Relaxed)).collect()
    }

    /// How much sooner than others the unit should go: the higher, the sooner.
    fn rank(&self, slot: &Slot, index: u32, now: u32) -> u64 {
        let count = slot.count.load(Ordering::Relaxed);
        let (class, stamp) = if slot.scanned.load(Ordering::Relaxed) {
            (2_u64, slot.last.load(Ordering::Relaxed))
        } else if count < self.k {
            (1, self.stamp(index, 0).load(Ordering::Relaxed))
        } else {
            (0, self.stamp(index, count).load(Ordering::Relaxed))
        };
        class << 32 | u64::from(now.wrapping_sub(stamp))
    }
}

impl Replacement for LruK {
    fn entered(&self, slot: &Slot, index: u32, now: u32, hint: Hint) {
        let mut stamps = self.history.take(slot.id());
        stamps.push(now);
        if hint == Hint::Index {
            stamps.resize(stamps.len().max(self.k as usize), now);
        }
        self.remember(slot, index, &stamps);
    }

    fn accessed(&self, slot: &Slot, index: u32, now: u32) {
        let count = slot.count.load(Ordering::Relaxed);
        // Stays between k and 2k, so that it never overflows and says which stamp is the oldest.
        let next = if count + 1 == 2 * self.k { self.k } else { count + 1 };
        if slot.count.compare_exchange(count, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.stamp(index, count).store(now, Ordering::Relaxed);
        }
    }

    fn left(&self, slot: &Slot, index: u32, now: u32, remember: bool) {
        if remember {
            self.history.save(slot.id(), &self.recall(slot, index), now);
        }
    }

    fn inherit(&self, from: (&Slot, u32), to: (&Slot, u32)) {
        let stamps = self.recall(from.0, from.1);
        if let Some(&last) = stamps.last() {
            self.remember(to.0, to.1, &stamps);
            to.0.last.store(last, Ordering::Relaxed);
        }
    }

    fn victim(&self, search: &Search<'_>) -> Option<u32> {
        let mut worst = None;
        let mut consider = |index: u32| {
            let candidate = search.can_go(index);
            if candidate {
                worst = worst.max(Some((self.rank(&search.slots[index as usize], index, search.now), index)));
            }
            candidate
        };
        if search.touched <= EXACT_FRAMES_MAX {
            (0..search.touched).for_each(|index| {
                consider(index);
            });
        } else {
            let mut candidates = 0;
            for _ in 0..SAMPLE_DRAWS {
                candidates += usize::from(consider(search.draw.below(search.touched)));
                if candidates == SAMPLE {
                    break;
                }
            }
        }
        worst.map(|(_, index)| index)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::super::PolicyKind;
    use super::super::tests::{order, policy, slots};
    use super::*;

    #[test]
    fn scans_first_then_few_accesses_then_backward_distance() {
        let slots = slots(5);
        let policy = policy(PolicyKind::LruK, &slots, 2, 64);
        policy.entered(&slots[0], 0, Hint::Lookup);
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Scan);
        policy.touched(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[3], 3, Hint::Index);
        policy.touched(&slots[0], 0, Hint::Scan);
        policy.entered(&slots[4], 4, Hint::Lookup);
        // 2: scan. 0 and 4: one access each. 1: second last access at 2. 3: index, both at 4.
        assert_eq!(order(&policy, &slots), [2, 0, 4, 1, 3]);
    }

    #[test]
    fn accesses_long_ago_do_not_count() {
        let slots = slots(3);
        let policy = policy(PolicyKind::LruK, &slots, 2, 64);
        policy.entered(&slots[0], 0, Hint::Lookup);
        for _ in 0..100 {
            policy.touched(&slots[0], 0, Hint::Lookup);
        }
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Lookup);
        policy.touched(&slots[1], 1, Hint::Lookup);
        // 0: one time, because nothing entered meanwhile. 1: two.
        assert_eq!(order(&policy, &slots), [0, 2, 1]);
    }

    #[test]
    fn history_returns_with_the_unit() {
        let slots = slots(1);
        let policy = policy(PolicyKind::LruK, &slots, 2, 64);
        policy.entered(&slots[0], 0, Hint::Lookup);
        policy.left(&slots[0], 0, true);
        policy.entered(&slots[0], 0, Hint::Lookup);
        assert_eq!(slots[0].count.load(Ordering::Relaxed), 2, "the access before counts");
        policy.left(&slots[0], 0, false);
        policy.entered(&slots[0], 0, Hint::Scan);
        policy.left(&slots[0], 0, true);
        policy.entered(&slots[0], 0, Hint::Lookup);
        assert_eq!(slots[0].count.load(Ordering::Relaxed), 1, "a scan leaves no history");
    }

    #[test]
    fn a_replacement_takes_the_history_over() {
        let slots = slots(3);
        let policy = policy(PolicyKind::LruK, &slots, 2, 0);
        policy.entered(&slots[0], 0, Hint::Index);
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Lookup);
        policy.inherit((&slots[0], 0), (&slots[2], 2));
        assert_eq!(order(&policy, &slots), [0, 1, 2]);
    }
}
