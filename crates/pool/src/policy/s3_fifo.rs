//! S3-FIFO: what is new waits in a small queue; what was used there moves to the main one, what was not leaves, and its name
//! is kept for a while: if it comes back soon, it goes to the main queue at once (Yang and others, SOSP 2023).

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use shoal_base::sync::Mutex;

use super::{Replacement, Search};
use crate::pin::Slot;
use crate::unit::{Hint, UnitId};

/// The small queue's part of the pool.
const SMALL_SHARE: usize = 10;

/// Uses that are counted.
const USES_MAX: u8 = 3;

/// Uses in the small queue that are worth a place in the main one: more than one.
const USES_TO_STAY: u8 = 2;

/// A unit in one use of its slot. One that left stays here until it comes to the front.
#[derive(Clone, Copy)]
struct Entry {
    index: u32,
    generation: u32,
}

impl Entry {
    fn of(slot: &Slot, index: u32) -> Self {
        Self { index, generation: slot.generation.load(Ordering::Relaxed) }
    }

    fn is_current(self, slots: &[Slot]) -> bool {
        let slot = &slots[self.index as usize];
        slot.generation.load(Ordering::Relaxed) == self.generation && !slot.scanned.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Queues {
    small: VecDeque<Entry>,
    main: VecDeque<Entry>,
    /// Names of what left the small queue.
    ghosts: VecDeque<UnitId>,
    ghost_names: HashSet<UnitId>,
}

pub(crate) struct S3Fifo {
    queues: Mutex<Queues>,
    uses: Box<[AtomicU8]>,
    in_main: Box<[AtomicBool]>,
}

impl S3Fifo {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            queues: Mutex::default(),
            uses: (0..slots).map(|_| AtomicU8::new(0)).collect(),
            in_main: (0..slots).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    fn uses(&self, index: u32) -> &AtomicU8 {
        &self.uses[index as usize]
    }

    fn small_max(&self) -> usize {
        (self.uses.len() / SMALL_SHARE).max(1)
    }

    /// The front of the small queue: goes, moves, or is no longer there.
    fn try_small(&self, queues: &mut Queues, search: &Search<'_>) -> Option<u32> {
        let entry = queues.small.pop_front().filter(|entry| entry.is_current(search.slots))?;
        if self.uses(entry.index).load(Ordering::Relaxed) >= USES_TO_STAY {
            self.uses(entry.index).store(0, Ordering::Relaxed);
            self.in_main[entry.index as usize].store(true, Ordering::Relaxed);
            queues.main.push_back(entry);
            return None;
        }
        queues.small.push_back(entry);
        search.can_go(entry.index).then_some(entry.index)
    }

    fn try_main(&self, queues: &mut Queues, search: &Search<'_>) -> Option<u32> {
        let entry = queues.main.pop_front().filter(|entry| entry.is_current(search.slots))?;
        queues.main.push_back(entry);
        let uses = self.uses(entry.index).load(Ordering::Relaxed);
        if uses > 0 {
            self.uses(entry.index).store(uses - 1, Ordering::Relaxed);
            return None;
        }
        search.can_go(entry.index).then_some(entry.index)
    }
}

impl Replacement for S3Fifo {
    fn entered(&self, slot: &Slot, index: u32, _now: u32, hint: Hint) {
        let mut queues = self.queues.lock();
        let returns = queues.ghost_names.remove(&slot.id()) || hint == Hint::Index;
        self.uses(index).store(0, Ordering::Relaxed);
        self.in_main[index as usize].store(returns, Ordering::Relaxed);
        let Queues { small, main, .. } = &mut *queues;
        let queue = if returns { main } else { small };
        // Entries of units that left otherwise: an entry a slot is enough.
        if queue.len() >= 2 * self.uses.len() {
            queue.pop_front();
        }
        queue.push_back(Entry::of(slot, index));
    }

    fn accessed(&self, _slot: &Slot, index: u32, _now: u32) {
        // Two threads may count one use: it orders evictions, nothing else.
        let uses = self.uses(index).load(Ordering::Relaxed);
        self.uses(index).store((uses + 1).min(USES_MAX), Ordering::Relaxed);
    }

    fn left(&self, slot: &Slot, index: u32, _now: u32, remember: bool) {
        if !remember || self.in_main[index as usize].load(Ordering::Relaxed) {
            return;
        }
        let mut queues = self.queues.lock();
        if queues.ghost_names.insert(slot.id()) {
            queues.ghosts.push_back(slot.id());
        }
        while queues.ghosts.len() > self.uses.len() {
            let Some(oldest) = queues.ghosts.pop_front() else { break };
            queues.ghost_names.remove(&oldest);
        }
    }

    fn inherit(&self, _from: (&Slot, u32), to: (&Slot, u32)) {
        self.uses(to.1).store(USES_MAX, Ordering::Relaxed);
    }

    fn victim(&self, search: &Search<'_>) -> Option<u32> {
        let mut queues = self.queues.lock();
        let tries = (queues.small.len() + queues.main.len()) * (usize::from(USES_MAX) + 1);
        for turn in 0..tries {
            // What cannot go must not keep the other queue from being looked at.
            let small_first = queues.small.len() > self.small_max() || queues.main.is_empty();
            let stuck = turn % 8 == 7;
            let found = if small_first != stuck {
                self.try_small(&mut queues, search)
            } else {
                self.try_main(&mut queues, search)
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

#[cfg(test)]
mod unit_tests {
    use super::super::PolicyKind;
    use super::super::tests::{order, policy, slots};
    use super::*;

    #[test]
    fn what_was_used_twice_stays_and_what_returns_is_known() {
        let slots = slots(4);
        let policy = policy(PolicyKind::S3Fifo, &slots, 1, 0);
        (0..4).for_each(|index| policy.entered(&slots[index as usize], index, Hint::Lookup));
        // A use is counted once a unit of time: two accesses at one time are one.
        policy.touched(&slots[0], 0, Hint::Lookup);
        policy.touched(&slots[0], 0, Hint::Lookup);
        policy.entered(&slots[3], 3, Hint::Lookup);
        policy.touched(&slots[0], 0, Hint::Lookup);
        assert_eq!(order(&policy, &slots).last(), Some(&0));

        policy.left(&slots[1], 1, true);
        policy.entered(&slots[1], 1, Hint::Lookup);
        policy.entered(&slots[2], 2, Hint::Lookup);
        slots[1].word().publish(0);
        slots[2].word().publish(0);
        assert_eq!(order(&policy, &slots), [2, 1], "1 went to the main queue");
    }
}
