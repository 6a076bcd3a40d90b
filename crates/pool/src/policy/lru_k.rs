//! LRU-K by backward k-distance, kept so that a hit takes no lock and moves no list.
//!
//! - Order of eviction: units with fewer than k accesses by their last one, then the others by their k-th last one;
//!   within each, the oldest first. (Units that only scans touched go before all of them: see [`super`].) The policy of
//!   CMU 15-445 (`docs/sources.md`) takes the first access of units with few accesses: then a unit that was read k - 1
//!   times up to now goes before one that was read once, and later. The paper (O'Neil and others, 1993) leaves the
//!   choice among them to a second policy, such as LRU.
//! - Concurrent accesses of one unit may record one of them: the history only orders evictions.
//! - Evicted units keep their history in [`History`] for a while. Scans neither read nor write it. (Without a history,
//!   k 16 and 64 frames this is the course's policy.)
//! - Pools of up to [`EXACT_FRAMES_MAX`] frames are searched as a whole; in larger ones the worst of [`SAMPLE`] random
//!   candidates goes. No lock is held while choosing. The keys of all slots are in one dense array, so that a search
//!   does not touch the slots, whose lines travel between the cores at every hit.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Search;
use super::history::{History, Stamps, age};
use crate::resident::slot::Slot;
use crate::unit::{Hint, UNIT_BLOCKS_MAX};

/// Up to this number of frames every victim is the exact one.
const EXACT_FRAMES_MAX: u32 = 128;

const _: () = assert!(EXACT_FRAMES_MAX <= 256, "a slot fits in 8 bits");

/// Candidates that one pass of an exact search finds.
const WORST: usize = 6;

/// Candidates of a sampled search.
const SAMPLE: usize = 16;

/// Units that are looked at for them: some are pinned.
const SAMPLE_DRAWS: usize = 64;

/// Slots that are checked from the drawn one on: only the first of a unit's frames has a key, and if the frames are
/// adjacent, the next unit starts after this many.
const SAMPLE_WALK: usize = UNIT_BLOCKS_MAX;

/// Marks of a key: the slot is the policy's, and the unit has fewer than k accesses. Below them the time that decides.
const OURS: u64 = 1 << 33;
const FEW: u64 = 1 << 32;

/// Puts `rank`, which is above the last one, into its place among `worst`.
fn insert(worst: &mut [u64; WORST], rank: u64) {
    let mut at = WORST - 1;
    while at > 0 && worst[at - 1] < rank {
        worst[at] = worst[at - 1];
        at -= 1;
    }
    worst[at] = rank;
}

pub(crate) struct LruK {
    k: u32,
    /// The key of each slot; 0 if the slot is not the policy's.
    keys: Box<[AtomicU64]>,
    /// The last `k` accesses of each slot; access number n is at n modulo k.
    stamps: Box<[AtomicU32]>,
    history: History,
}

impl LruK {
    pub(crate) fn new(slots: usize, k: usize, history: usize) -> Self {
        let stamps = (0..slots * k).map(|_| AtomicU32::new(0)).collect();
        let keys = (0..slots).map(|_| AtomicU64::new(0)).collect();
        Self { k: k as u32, keys, stamps, history: History::new(history, k) }
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
        self.decide(index, kept.len() as u32);
    }

    /// Sets the key of a slot with `count` accesses.
    fn decide(&self, index: u32, count: u32) {
        // With fewer than k accesses the last one decides, else the k-th last, in whose place the next access will go.
        let (mark, access) =
            if count < self.k { (OURS | FEW, count.saturating_sub(1)) } else { (OURS, count) };
        let stamp = self.stamp(index, access).load(Ordering::Relaxed);
        self.keys[index as usize].store(mark | u64::from(stamp), Ordering::Relaxed);
    }

    /// The accesses that are known of a slot, the oldest first.
    fn recall(&self, slot: &Slot, index: u32) -> Stamps {
        let count = slot.count.load(Ordering::Relaxed);
        let from = count.saturating_sub(self.k);
        (from..count).map(|access| self.stamp(index, access).load(Ordering::Relaxed)).collect()
    }

    /// The rank for eviction: the higher, the sooner; below [`OURS`] not at all.
    fn rank(&self, index: u32, now: u32) -> u64 {
        let key = self.keys[index as usize].load(Ordering::Relaxed);
        key & (OURS | FEW) | u64::from(age(now, key as u32))
    }

    /// The worst unit that can go. Threads that lost their core in the middle of an access keep their units pinned
    /// while these age, so the worst of all often cannot go: each pass finds the next [`WORST`].
    fn exact(&self, search: &Search<'_>) -> Option<u32> {
        let mut bound = u64::MAX;
        loop {
            // Rank and slot in one number, the worst first.
            let mut worst = [0; WORST];
            for index in 0..search.touched {
                let rank = self.rank(index, search.now) << 8 | u64::from(index);
                if rank > worst[WORST - 1] && rank < bound {
                    insert(&mut worst, rank);
                }
            }
            for rank in worst {
                if rank < OURS << 8 {
                    return None;
                }
                let index = u32::from(rank as u8);
                if search.can_go(index) {
                    return Some(index);
                }
            }
            bound = worst[WORST - 1];
        }
    }

    /// The first slot from `start` on that is the policy's, and its rank: a draw that hits the middle of a unit is not lost.
    fn next_from(&self, start: u32, search: &Search<'_>) -> Option<(u64, u32)> {
        let walk = (start..search.touched).chain(0..start).take(SAMPLE_WALK);
        walk.map(|index| (self.rank(index, search.now), index)).find(|&(rank, _)| rank >= OURS)
    }

    /// The worst of a few.
    fn sampled(&self, search: &Search<'_>) -> Option<u32> {
        let mut draws = search.draw.sequence();
        let mut worst = None;
        let mut candidates = 0;
        for _ in 0..SAMPLE_DRAWS {
            let start = draws.below(search.touched);
            let Some((rank, index)) = self.next_from(start, search) else { continue };
            if search.can_go(index) {
                worst = worst.max(Some((rank, index)));
                candidates += 1;
            }
            if candidates == SAMPLE {
                break;
            }
        }
        worst.map(|(_, index)| index)
    }
}

/// The pool's calls. They may come from several threads at once.
impl LruK {
    /// Notes that the slot has a unit now that not only scans want.
    pub(super) fn entered(&self, slot: &Slot, index: u32, now: u32, hint: Hint) {
        let mut stamps = self.history.take(slot.id());
        stamps.push(now);
        if hint == Hint::Index {
            stamps.resize(stamps.len().max(self.k as usize), now);
        }
        self.remember(slot, index, &stamps);
    }

    /// Notes an access. Called at most once a unit of time, with the unit pinned.
    pub(super) fn accessed(&self, slot: &Slot, index: u32, now: u32) {
        let count = slot.count.load(Ordering::Relaxed);
        // Stays between k and 2k, so that it never overflows and locates the oldest stamp.
        let next = if count + 1 == 2 * self.k { self.k } else { count + 1 };
        slot.count.store(next, Ordering::Relaxed);
        self.stamp(index, count).store(now, Ordering::Relaxed);
        self.decide(index, next);
    }

    /// Notes that the unit leaves the pool; with `remember` its history is kept for its return.
    pub(super) fn left(&self, slot: &Slot, index: u32, now: u32, remember: bool) {
        self.keys[index as usize].store(0, Ordering::Relaxed);
        if remember {
            self.history.save(slot.id(), &self.recall(slot, index), now);
        }
    }

    /// The unit in slot `to`, which entered just now, replaces the one in `from`, which stays for now.
    pub(super) fn inherit(&self, from: (&Slot, u32), to: (&Slot, u32)) {
        let stamps = self.recall(from.0, from.1);
        if let Some(&last) = stamps.last() {
            self.remember(to.0, to.1, &stamps);
            to.0.last.store(last, Ordering::Relaxed);
        }
    }

    /// The slot that should go. It stays the policy's until it [left](Self::left): the caller may fail to evict it.
    pub(super) fn victim(&self, search: &Search<'_>) -> Option<u32> {
        if search.touched <= EXACT_FRAMES_MAX { self.exact(search) } else { self.sampled(search) }
    }
}

#[cfg(test)]
mod unit_tests {
    use super::super::Draw;
    use super::super::tests::{order, policy, slots};
    use super::*;

    #[test]
    fn few_accesses_first_then_backward_distance() {
        let slots = slots(5);
        let policy = policy(&slots, 2, 64);
        policy.entered(&slots[0], 0, Hint::Lookup);
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Scan);
        policy.entered(&slots[3], 3, Hint::Index);
        policy.touched(&slots[1], 1, Hint::Lookup);
        policy.touched(&slots[0], 0, Hint::Scan);
        policy.entered(&slots[4], 4, Hint::Lookup);
        // 0 and 4: one access each. 1: second last access at 2. 3: index, both at 3. 2 is the scans'.
        assert_eq!(order(&policy, &slots), [0, 4, 1, 3]);
        assert_eq!(policy.scanned.pop(&slots).map(|entry| entry.index), Some(2));
    }

    /// A unit that is read often, but fewer than k times so far, stays longer than a newer unit that was read once.
    #[test]
    fn with_few_accesses_the_last_one_decides() {
        let slots = slots(4);
        let policy = policy(&slots, 3, 64);
        policy.entered(&slots[0], 0, Hint::Lookup);
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Lookup);
        policy.touched(&slots[0], 0, Hint::Lookup);
        policy.entered(&slots[3], 3, Hint::Lookup);
        policy.touched(&slots[1], 1, Hint::Lookup);
        assert_eq!(order(&policy, &slots), [2, 0, 3, 1]);
    }

    #[test]
    fn accesses_long_ago_do_not_count() {
        let slots = slots(3);
        let policy = policy(&slots, 2, 64);
        policy.entered(&slots[0], 0, Hint::Lookup);
        for _ in 0..100 {
            policy.touched(&slots[0], 0, Hint::Lookup);
        }
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Lookup);
        policy.touched(&slots[1], 1, Hint::Lookup);
        // Unit 0 has age one, because no unit entered meanwhile; unit 1 has age two.
        assert_eq!(order(&policy, &slots), [0, 2, 1]);
    }

    #[test]
    fn a_pinned_unit_stays_and_the_next_one_goes() {
        let count = 3 * WORST as u32 + 1;
        let slots = slots(count);
        let policy = policy(&slots, 2, 0);
        (0..count).for_each(|index| policy.entered(&slots[index as usize], index, Hint::Lookup));
        for pinned in 0..count {
            let draw = Default::default();
            assert_eq!(
                policy.victim(&slots, count, &draw, false),
                Some(pinned),
                "the oldest that is not pinned"
            );
            assert!(slots[pinned as usize].word.pin(false));
        }
        assert_eq!(policy.victim(&slots, count, &Default::default(), false), None);
    }

    /// A regression: the age was 2^32 - 1, so the unit used last went first.
    #[test]
    fn a_unit_used_after_the_search_began_is_young() {
        let slots = slots(3);
        for touched in [3, EXACT_FRAMES_MAX + 1] {
            slots.iter().filter(|slot| slot.word.is_vacant()).for_each(|slot| {
                slot.word.publish(0);
            });
            let policy = LruK::new(3, 1, 0);
            for (now, index) in [(10, 0), (11, 1), (13, 2)] {
                policy.entered(&slots[index], index as u32, now, Hint::Lookup);
            }
            let draw = Default::default();
            let search = Search { slots: &slots, touched: 3, draw: &draw, clean_only: false, now: 12 };
            let found = if touched == 3 { policy.exact(&search) } else { policy.sampled(&search) };
            assert_eq!(found, Some(0));
        }
        let ages = [(0, 9), (5, 6), (5, 5), (5, 4), (2, u32::MAX)].map(|(now, stamp)| age(now, stamp));
        assert!(ages.is_sorted(), "{ages:?}");
    }

    /// A regression: the search drew slots. Among units of 17 frames two of a hundred searches found none, and others
    /// only one, which was used just before.
    #[test]
    fn long_units_are_chosen_as_short_ones_are() {
        const UNITS: u32 = 400;
        for blocks in [1, 3, UNIT_BLOCKS_MAX as u32] {
            let slots = slots(UNITS * blocks);
            let policy = policy(&slots, 2, 0);
            let heads: Vec<u32> = (0..UNITS).map(|unit| unit * blocks).collect();
            heads.iter().for_each(|&head| policy.entered(&slots[head as usize], head, Hint::Lookup));
            // Every fourth one was used again.
            let used: Vec<u32> = heads.iter().copied().step_by(4).collect();
            for &head in &used {
                policy.tick();
                policy.touched(&slots[head as usize], head, Hint::Lookup);
            }
            let draw = Draw::default();
            for search in 0..4_000 {
                let victim = policy.victim(&slots, UNITS * blocks, &draw, false).unwrap();
                assert!(!used.contains(&victim), "search {search} among units of {blocks} frames");
            }
        }
    }

    #[test]
    fn history_returns_with_the_unit() {
        let slots = slots(1);
        let policy = policy(&slots, 2, 64);
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
        let policy = policy(&slots, 2, 0);
        policy.entered(&slots[0], 0, Hint::Index);
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Lookup);
        policy.inherit((&slots[0], 0), (&slots[2], 2));
        policy.let_go(&slots[0], 0);
        assert_eq!(order(&policy, &slots), [1, 2]);
        assert_eq!(policy.unneeded.pop(&slots).map(|entry| entry.index), Some(0));
    }
}
