//! The bookkeeping of the comparison pools: which page is in which frame, pins, and LRU-K as the course asks for it.
//!
//! Backward k-distance over the accesses since the page entered (the history stops with the eviction), pages with
//! fewer than k accesses first, by their first access. Always used under the pool's one lock.

/// Not in the pool; no page.
const NONE: u32 = u32::MAX;

#[derive(Clone)]
struct Frame {
    page: u64,
    pins: u32,
    dirty: bool,
    accesses: u64,
}

pub(crate) struct Frames {
    k: usize,
    clock: u64,
    /// Frame of each page.
    places: Vec<u32>,
    frames: Vec<Frame>,
    /// The last `k` accesses of each frame, as a ring.
    history: Vec<u64>,
    /// The page with the least rank is evicted first: the class in the top bit, then the time that counts.
    ranks: Vec<u64>,
    used: usize,
}

/// A page that had to go.
pub(crate) struct Victim {
    pub(crate) page: u64,
    pub(crate) dirty: bool,
}

const FULL_HISTORY: u64 = 1 << 63;

impl Frames {
    pub(crate) fn new(pages: u64, frames: usize, k: usize) -> Self {
        let frame = Frame { page: 0, pins: 0, dirty: false, accesses: 0 };
        Self {
            k,
            clock: 0,
            places: vec![NONE; pages as usize],
            frames: vec![frame; frames],
            history: vec![0; frames * k],
            ranks: vec![0; frames],
            used: 0,
        }
    }

    /// Pins `page` if it is resident.
    pub(crate) fn pin(&mut self, page: u64) -> Option<usize> {
        let frame = self.places[page as usize];
        (frame != NONE).then(|| {
            self.accessed(frame as usize);
            self.frames[frame as usize].pins += 1;
            frame as usize
        })
    }

    /// Makes room for `page` and pins it; `None` if everything is pinned.
    pub(crate) fn replace(&mut self, page: u64) -> Option<(usize, Option<Victim>)> {
        let mut victim = None;
        let frame = if self.used < self.frames.len() {
            self.used += 1;
            self.used - 1
        } else {
            let free = |&frame: &usize| self.frames[frame].pins == 0;
            let frame = (0..self.frames.len()).filter(free).min_by_key(|&frame| self.ranks[frame])?;
            let old = &self.frames[frame];
            self.places[old.page as usize] = NONE;
            victim = Some(Victim { page: old.page, dirty: old.dirty });
            frame
        };
        self.frames[frame] = Frame { page, pins: 1, dirty: false, accesses: 0 };
        self.places[page as usize] = frame as u32;
        self.accessed(frame);
        Some((frame, victim))
    }

    fn accessed(&mut self, frame: usize) {
        self.clock += 1;
        let accesses = self.frames[frame].accesses;
        let ring = &mut self.history[frame * self.k..][..self.k];
        ring[accesses as usize % self.k] = self.clock;
        let oldest = (accesses + 1) as usize % self.k;
        self.ranks[frame] = if accesses + 1 < self.k as u64 { ring[0] } else { FULL_HISTORY | ring[oldest] };
        self.frames[frame].accesses += 1;
    }

    pub(crate) fn unpin(&mut self, frame: usize, dirty: bool) {
        let frame = &mut self.frames[frame];
        frame.pins -= 1;
        frame.dirty |= dirty;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_accesses_first_then_backward_distance() {
        let mut frames = Frames::new(10, 3, 2);
        for page in 0..3 {
            let (frame, victim) = frames.replace(page).unwrap();
            assert!(victim.is_none());
            frames.unpin(frame, page == 1);
        }
        for page in [0, 2, 0, 0] {
            let frame = frames.pin(page).unwrap();
            frames.unpin(frame, false);
        }
        // 1 has one access; then 2, whose second last access is older than 0's.
        let (frame, victim) = frames.replace(5).unwrap();
        let victim = victim.unwrap();
        assert_eq!((victim.page, victim.dirty), (1, true));
        assert!(frames.pin(1).is_none());
        // 5 is pinned.
        assert_eq!(frames.replace(6).unwrap().1.unwrap().page, 2);
        assert_eq!(frames.replace(7).unwrap().1.unwrap().page, 0);
        assert!(frames.replace(8).is_none());
        frames.unpin(frame, false);
        assert_eq!(frames.replace(8).unwrap().1.unwrap().page, 5);
    }
}
