//! The progress of an apply: writers get the room of its overlay as it comes home, and not all of it at the end.

use crate::log::commit::Committer;
use crate::tablet::admission::Lent;

/// Steps in which an apply lends room.
const STEPS: usize = 64;

/// Each operation of an apply is looked at, and merged into a tree.
const PARTS_PER_OP: usize = 2;

/// The progress of an apply.
pub(crate) struct Progress<'a> {
    committer: &'a Committer,
    lent: Option<Lent>,
    done: usize,
    parts: usize,
    /// The part with which the next step begins.
    next: usize,
}

impl<'a> Progress<'a> {
    /// Of an apply of `ops` operations, which lends the room of `lent` as it goes; with `ops` 0 that room becomes free at
    /// the end only.
    pub(crate) fn new(committer: &'a Committer, lent: Option<Lent>, ops: usize) -> Self {
        let next = if ops == 0 { usize::MAX } else { 0 };
        Self { committer, lent, done: 0, parts: ops * PARTS_PER_OP, next }
    }

    /// Notes that a part of an operation is done.
    #[inline]
    pub(crate) fn note(&mut self) {
        self.done += 1;
        if self.done >= self.next {
            self.step();
        }
    }

    /// Notes that so many operations are looked at, or need no look.
    pub(crate) fn looked_at(&mut self, ops: usize) {
        self.done = self.done.max(ops);
    }

    fn step(&mut self) {
        self.next = self.done + (self.parts / STEPS).max(1);
        if let Some(lent) = &mut self.lent
            && lent.advance(self.done.min(self.parts), self.parts)
        {
            self.committer.moved.notify();
        }
    }

    /// The apply is published: all of the room is free.
    pub(crate) fn end(mut self) {
        if let Some(lent) = self.lent.take() {
            lent.end();
        }
        self.committer.moved.notify();
    }
}
