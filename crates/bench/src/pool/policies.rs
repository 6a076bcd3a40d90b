//! Policies that are only simulated, for their hit rates: exact, one access after the other, with counters and lists that
//! no pool could afford. Scans are accesses like any other for them.

use std::collections::{BTreeSet, HashMap, VecDeque};

/// Accesses a frame between two halvings of the aged counts.
const AGE: u64 = 128;

/// What is resident, and in which order it goes.
pub(crate) struct Ranked {
    frames: usize,
    /// Rank and page; the least goes first.
    order: BTreeSet<(u64, u64, u64)>,
    known: HashMap<u64, (u64, u64)>,
    now: u64,
    kind: Kind,
}

/// What a page's rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The last access.
    Lru,
    /// All accesses ever, also before it was evicted.
    Lfu,
    /// As `Lfu`, halved now and then; a page that is used less than all residents is not kept.
    AgedLfu,
}

impl Ranked {
    pub(crate) fn new(kind: Kind, frames: usize) -> Self {
        Self { frames, order: BTreeSet::new(), known: HashMap::new(), now: 0, kind }
    }

    /// Whether the page was resident.
    pub(crate) fn access(&mut self, page: u64) -> bool {
        self.now += 1;
        if self.kind == Kind::AgedLfu && self.now.is_multiple_of(AGE * self.frames as u64) {
            self.age();
        }
        let (uses, last) = self.known.get(&page).copied().unwrap_or_default();
        let rank = |uses| if self.kind == Kind::Lru { 0 } else { uses };
        let hit = self.order.remove(&(rank(uses), last, page));
        self.known.insert(page, (uses + 1, self.now));
        self.order.insert((rank(uses + 1), self.now, page));
        if self.order.len() > self.frames {
            let newest = (rank(uses + 1), self.now, page);
            let victim = match self.kind {
                // Kept even where it is the least: there is no other place to read it into.
                Kind::Lru | Kind::Lfu => self.order.iter().find(|&&entry| entry != newest).copied(),
                Kind::AgedLfu => self.order.first().copied(),
            };
            if let Some(victim) = victim {
                self.order.remove(&victim);
            }
        }
        hit
    }

    fn age(&mut self) {
        for (uses, _) in self.known.values_mut() {
            *uses /= 2;
        }
        let halved = self.order.iter().map(|&(uses, last, page)| (uses / 2, last, page));
        self.order = halved.collect();
    }
}

/// A ring of frames and a hand that passes over what was used since it came by.
pub(crate) struct Clock {
    frames: usize,
    ring: VecDeque<(u64, bool)>,
    places: HashMap<u64, usize>,
    hand: usize,
}

impl Clock {
    pub(crate) fn new(frames: usize) -> Self {
        Self { frames, ring: VecDeque::new(), places: HashMap::new(), hand: 0 }
    }

    /// Whether the page was resident.
    pub(crate) fn access(&mut self, page: u64) -> bool {
        if let Some(&place) = self.places.get(&page) {
            self.ring[place].1 = true;
            return true;
        }
        if self.ring.len() < self.frames {
            self.places.insert(page, self.ring.len());
            self.ring.push_back((page, false));
            return false;
        }
        while self.ring[self.hand].1 {
            self.ring[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.frames;
        }
        let (old, _) = std::mem::replace(&mut self.ring[self.hand], (page, false));
        self.places.remove(&old);
        self.places.insert(page, self.hand);
        self.hand = (self.hand + 1) % self.frames;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_what_each_says() {
        let hits = |kind, pages: &[u64]| {
            let mut cache = Ranked::new(kind, 2);
            pages.iter().map(|&page| cache.access(page)).collect::<Vec<_>>()
        };
        // 1 is used most; 3 pushes out the oldest, or the least used.
        assert_eq!(hits(Kind::Lru, &[1, 1, 2, 3, 1]), [false, true, false, false, false]);
        assert_eq!(hits(Kind::Lfu, &[1, 1, 2, 3, 1]), [false, true, false, false, true]);
        let mut clock = Clock::new(2);
        let hits: Vec<_> = [1, 2, 1, 3, 1, 2].iter().map(|&page| clock.access(page)).collect();
        assert_eq!(hits, [false, false, true, false, true, false]);
    }

    #[test]
    fn counts_age() {
        let mut cache = Ranked::new(Kind::AgedLfu, 1);
        (0..100).for_each(|_| {
            cache.access(1);
        });
        assert!(!cache.access(2) && cache.access(1), "2 is not worth it");
        (0..2000).for_each(|_| {
            cache.access(2);
        });
        assert!(cache.access(2), "what was long ago is forgotten");
    }
}
