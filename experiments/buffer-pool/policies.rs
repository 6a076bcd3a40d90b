//! Policies that are only simulated, for their hit rates: exact, one access after the other, with counters and lists that
//! no pool could afford. Scans are accesses like any other for them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// Accesses a frame between two halvings of the aged counts.
const AGE: u64 = 128;

/// The resident pages, and the order in which they go.
pub(crate) struct Ranked {
    frames: usize,
    /// Rank and page; the least is evicted first.
    order: BTreeSet<(u64, u64, u64)>,
    known: HashMap<u64, (u64, u64)>,
    now: u64,
    kind: Kind,
}

/// The rank of a page.
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

    /// Returns true if the page was resident.
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
                // Kept even if it is the least: there is no other place to read it into.
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

/// A ring of frames and a hand that passes over pages used since its last visit.
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

    /// Returns true if the page was resident.
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

/// One queue by age, and a hand that walks from the oldest page to the newest: a page that was used since it passed stays, the
/// first one that was not goes (Zhang and others, NSDI 2024).
pub(crate) struct Sieve {
    frames: usize,
    /// Pages by the number of their entry, with a mark if they were used since the hand passed.
    queue: BTreeMap<u64, (u64, bool)>,
    entries: HashMap<u64, u64>,
    next: u64,
    hand: u64,
}

impl Sieve {
    pub(crate) fn new(frames: usize) -> Self {
        Self { frames, queue: BTreeMap::new(), entries: HashMap::new(), next: 0, hand: 0 }
    }

    /// Returns true if the page was resident.
    pub(crate) fn access(&mut self, page: u64) -> bool {
        if let Some(entry) = self.entries.get(&page) {
            self.queue.entry(*entry).and_modify(|(_, used)| *used = true);
            return true;
        }
        if self.queue.len() == self.frames {
            self.evict();
        }
        self.queue.insert(self.next, (page, false));
        self.entries.insert(page, self.next);
        self.next += 1;
        false
    }

    fn evict(&mut self) {
        loop {
            let Some((&entry, (page, used))) = self.queue.range_mut(self.hand..).next() else {
                self.hand = 0;
                continue;
            };
            self.hand = entry + 1;
            if !std::mem::take(used) {
                self.entries.remove(page);
                self.queue.remove(&entry);
                return;
            }
        }
    }
}

/// New pages wait in a small queue; a page that was used there more than once moves to the main one. Any other page leaves, and its
/// name is kept for a while: if it comes back soon, it enters the main queue at once (Yang and others, SOSP 2023).
pub(crate) struct S3Fifo {
    frames: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    /// Uses of the pages of both queues.
    uses: HashMap<u64, u8>,
    /// Names of the pages that left the small queue, in their order.
    ghosts: VecDeque<u64>,
    ghost_names: HashSet<u64>,
}

impl S3Fifo {
    /// The small queue's part of the frames.
    const SMALL_SHARE: usize = 10;
    const USES_MAX: u8 = 3;
    /// Uses in the small queue that are worth a place in the main one.
    const USES_TO_STAY: u8 = 2;

    pub(crate) fn new(frames: usize) -> Self {
        Self {
            frames,
            small: VecDeque::new(),
            main: VecDeque::new(),
            uses: HashMap::new(),
            ghosts: VecDeque::new(),
            ghost_names: HashSet::new(),
        }
    }

    /// Returns true if the page was resident.
    pub(crate) fn access(&mut self, page: u64) -> bool {
        if let Some(uses) = self.uses.get_mut(&page) {
            *uses = (*uses + 1).min(Self::USES_MAX);
            return true;
        }
        while self.uses.len() >= self.frames {
            self.evict();
        }
        self.uses.insert(page, 0);
        let queue = if self.ghost_names.remove(&page) { &mut self.main } else { &mut self.small };
        queue.push_back(page);
        false
    }

    /// Looks at the front of one queue.
    fn evict(&mut self) {
        let small_max = (self.frames / Self::SMALL_SHARE).max(1);
        if self.small.len() > small_max || self.main.is_empty() {
            let Some(page) = self.small.pop_front() else { return };
            if self.uses.get(&page).is_some_and(|&uses| uses >= Self::USES_TO_STAY) {
                self.uses.insert(page, 0);
                self.main.push_back(page);
                return;
            }
            self.uses.remove(&page);
            self.ghost_names.insert(page);
            self.ghosts.push_back(page);
            if self.ghosts.len() > self.frames
                && let Some(oldest) = self.ghosts.pop_front()
            {
                self.ghost_names.remove(&oldest);
            }
        } else if let Some(page) = self.main.pop_front() {
            match self.uses.get_mut(&page) {
                Some(uses) if *uses > 0 => {
                    *uses -= 1;
                    self.main.push_back(page);
                }
                _ => {
                    self.uses.remove(&page);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_evicts_the_page_that_it_should() {
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

    #[test]
    fn the_oldest_that_was_not_used_goes_first() {
        let mut sieve = Sieve::new(3);
        let hits: Vec<_> = [1, 2, 3, 1, 4, 1, 5, 3].iter().map(|&page| sieve.access(page)).collect();
        // The hand passes 1 and takes 2 for 4; then it takes 3 for 5.
        assert_eq!(hits, [false, false, false, true, false, true, false, false]);
    }

    #[test]
    fn a_page_used_twice_stays_and_a_page_that_returns_is_known() {
        let mut cache = S3Fifo::new(3);
        let hits: Vec<_> = [1, 1, 1, 2, 3, 4, 1, 2].iter().map(|&page| cache.access(page)).collect();
        assert_eq!(hits, [false, true, true, false, false, false, true, false]);
        // 1 moved; 2 left for 4, was known when it returned, and took the place of 3.
        assert_eq!((cache.small, cache.main), (VecDeque::from([4]), VecDeque::from([1, 2])));
    }
}
