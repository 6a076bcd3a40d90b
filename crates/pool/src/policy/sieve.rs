//! SIEVE: one queue by age, and a hand that walks from the oldest to the newest. What was used since the hand passed stays
//! where it is; the first one that was not goes (Zhang and others, NSDI 2024). No defence against scans of its own.

use std::sync::atomic::{AtomicBool, Ordering};

use shoal_base::sync::Mutex;

use super::{Replacement, Search};
use crate::free::NONE;
use crate::pin::Slot;
use crate::unit::Hint;

#[derive(Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
    linked: bool,
}

struct Queue {
    links: Box<[Link]>,
    newest: u32,
    oldest: u32,
    hand: u32,
    count: usize,
}

impl Queue {
    fn push(&mut self, index: u32) {
        self.remove(index);
        self.links[index as usize] = Link { newer: NONE, older: self.newest, linked: true };
        match self.newest {
            NONE => self.oldest = index,
            newest => self.links[newest as usize].newer = index,
        }
        self.newest = index;
        self.count += 1;
    }

    fn remove(&mut self, index: u32) {
        let Link { newer, older, linked } = self.links[index as usize];
        if !linked {
            return;
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        if self.hand == index {
            self.hand = newer;
        }
        self.links[index as usize].linked = false;
        self.count -= 1;
    }
}

pub(crate) struct Sieve {
    queue: Mutex<Queue>,
    used: Box<[AtomicBool]>,
}

impl Sieve {
    pub(crate) fn new(slots: usize) -> Self {
        let links = vec![Link { newer: NONE, older: NONE, linked: false }; slots].into();
        let queue = Queue { links, newest: NONE, oldest: NONE, hand: NONE, count: 0 };
        Self { queue: Mutex::new(queue), used: (0..slots).map(|_| AtomicBool::new(false)).collect() }
    }
}

impl Replacement for Sieve {
    fn entered(&self, _slot: &Slot, index: u32, _now: u32, hint: Hint) {
        self.used[index as usize].store(hint == Hint::Index, Ordering::Relaxed);
        self.queue.lock().push(index);
    }

    fn accessed(&self, _slot: &Slot, index: u32, _now: u32) {
        self.used[index as usize].store(true, Ordering::Relaxed);
    }

    fn left(&self, _slot: &Slot, index: u32, _now: u32, _remember: bool) {
        self.queue.lock().remove(index);
    }

    fn inherit(&self, _from: (&Slot, u32), to: (&Slot, u32)) {
        self.used[to.1 as usize].store(true, Ordering::Relaxed);
    }

    fn victim(&self, search: &Search<'_>) -> Option<u32> {
        let mut queue = self.queue.lock();
        // Twice around: the first time may find everything used.
        for _ in 0..2 * queue.count {
            let index = if queue.hand == NONE { queue.oldest } else { queue.hand };
            if index == NONE {
                return None;
            }
            if !self.used[index as usize].swap(false, Ordering::Relaxed) && search.can_go(index) {
                queue.hand = index;
                return Some(index);
            }
            queue.hand = queue.links[index as usize].newer;
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
    fn the_oldest_that_was_not_used_goes_first() {
        let slots = slots(4);
        let policy = policy(PolicyKind::Sieve, &slots, 1, 0);
        (0..4).for_each(|index| policy.entered(&slots[index as usize], index, Hint::Lookup));
        policy.touched(&slots[0], 0, Hint::Lookup);
        policy.touched(&slots[2], 2, Hint::Lookup);
        // The hand passes 0, takes 1, passes 2, takes 3, and begins anew.
        assert_eq!(order(&policy, &slots), [1, 3, 0, 2]);
    }
}
