//! Which frames are free: a lock-free stack of lists, and a mark below which frames were used at least once.
//!
//! Frames are named by their index. Lists are chained through `links`, one word a frame, which also chain the frames of
//! a resident unit: a frame is in one list at a time. Frames above the mark were never touched, so memory is used
//! only as the pool fills.

use super::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// No frame, no slot.
pub(crate) const NONE: u32 = u32::MAX;

/// A list of frames, chained through the free list's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) head: u32,
    pub(crate) count: u32,
}

pub(crate) struct FreeList {
    links: Box<[AtomicU32]>,
    /// Tag and top frame. The tag grows with each pop, so that a stack that changed and came back is noticed.
    pub(crate) top: AtomicU64,
    /// Frames from here on were never used.
    fresh: AtomicU32,
    /// Frames on the stack.
    stacked: AtomicUsize,
}

const fn pack(tag: u32, head: u32) -> u64 {
    (tag as u64) << 32 | head as u64
}

impl FreeList {
    pub(crate) fn new(frames: u32) -> Self {
        assert!(frames < NONE);
        Self {
            links: (0..frames).map(|_| AtomicU32::new(NONE)).collect(),
            top: AtomicU64::new(pack(0, NONE)),
            fresh: AtomicU32::new(0),
            stacked: AtomicUsize::new(0),
        }
    }

    pub(crate) fn frames(&self) -> usize {
        self.links.len()
    }

    /// Frames that were used at least once; all others are free.
    pub(crate) fn touched(&self) -> u32 {
        self.fresh.load(Ordering::Relaxed)
    }

    pub(crate) fn used(&self) -> usize {
        (self.touched() as usize).saturating_sub(self.stacked.load(Ordering::Relaxed))
    }

    /// The frame after `frame` in its list.
    pub(crate) fn next(&self, frame: u32) -> u32 {
        self.links[frame as usize].load(Ordering::Relaxed)
    }

    /// Takes `count` frames (at least 1), or none at all.
    pub(crate) fn take(&self, count: usize) -> Option<List> {
        assert!(count > 0);
        let head = self.pop()?;
        let mut list = List { head, count: 1 };
        let mut tail = head;
        while (list.count as usize) < count {
            let Some(frame) = self.pop() else {
                self.give(list);
                return None;
            };
            self.links[tail as usize].store(frame, Ordering::Relaxed);
            tail = frame;
            list.count += 1;
        }
        self.links[tail as usize].store(NONE, Ordering::Relaxed);
        Some(list)
    }

    fn pop(&self) -> Option<u32> {
        // SeqCst: a starving request first announces itself and then looks here; a thread that frees frames first frees
        // them and then looks for starving requests. One of the two must see the other.
        let mut top = self.top.load(Ordering::SeqCst);
        while top as u32 != NONE {
            match self.pop_seen(top) {
                Ok(frame) => return Some(frame),
                Err(now) => top = now,
            }
        }
        self.pop_fresh()
    }

    /// Takes the top frame if the stack was not popped since it was seen as `top`; otherwise returns the present top.
    pub(crate) fn pop_seen(&self, top: u64) -> Result<u32, u64> {
        let frame = top as u32;
        // Another thread may have popped the frame meanwhile: then its link is arbitrary, and the tag makes this try
        // again.
        let next = self.next(frame);
        let tag = ((top >> 32) as u32).wrapping_add(1);
        self.top.compare_exchange_weak(top, pack(tag, next), Ordering::SeqCst, Ordering::SeqCst)?;
        self.stacked.fetch_sub(1, Ordering::Relaxed);
        Ok(frame)
    }

    fn pop_fresh(&self) -> Option<u32> {
        let frames = self.links.len() as u32;
        let fresh = |mark| if mark < frames { Some(mark + 1) } else { None };
        self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fresh).ok()
    }

    /// Frees a list. The caller owned it and must not use its frames afterwards.
    pub(crate) fn give(&self, list: List) {
        let mut tail = list.head;
        for _ in 1..list.count {
            tail = self.next(tail);
        }
        // Counted first, so that the count never falls below zero.
        self.stacked.fetch_add(list.count as usize, Ordering::Relaxed);
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            self.links[tail as usize].store(top as u32, Ordering::Relaxed);
            let new = pack((top >> 32) as u32, list.head);
            match self.top.compare_exchange_weak(top, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}
