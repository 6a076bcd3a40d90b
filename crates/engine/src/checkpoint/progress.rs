//! The progress of an apply: writers get the room of its overlay as it comes home, and not all of it at the end.

use crate::log::commit::Committer;
use crate::tablet::admission::{LENT_STEPS, Lent};

/// Each operation of an apply is put in order, brought home, looked at, and merged into a tree.
const PARTS_PER_OP: usize = 4;

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
    /// An apply of `ops` operations lends the room of `lent` as it goes. With `ops` 0 the room becomes free at the end
    /// only.
    pub(crate) fn new(committer: &'a Committer, lent: Option<Lent>, ops: usize) -> Self {
        let next = if ops == 0 { usize::MAX } else { 0 };
        Self { committer, lent, done: 0, parts: ops * PARTS_PER_OP, next }
    }

    /// Notes that a part of each of so many operations is done, or left out.
    #[inline]
    pub(crate) fn note(&mut self, ops: usize) {
        self.done += ops;
        if self.done >= self.next {
            self.step();
        }
    }

    fn step(&mut self) {
        self.next = self.done + (self.parts / LENT_STEPS).max(1);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::Fixture;

    #[test]
    fn room_comes_back_with_each_part_or_at_the_end() {
        let store = Fixture::new().open().unwrap();
        let admission = &store.0.tablets.admission;
        let of = |ops: usize| {
            admission.take(100, 1_000);
            Progress::new(&store.0.log.committer, Some(admission.lend(100, 1_000)), ops)
        };
        let mut progress = of(100);
        let mut before = 100;
        for part in 1..=PARTS_PER_OP {
            progress.note(100);
            let held = admission.held().0;
            assert!(held < before, "nothing came back in part {part}: {held} records are counted");
            before = held;
        }
        progress.end();
        assert_eq!(admission.held(), (0, 0));
        // A small overlay lends nothing.
        let mut progress = of(0);
        progress.note(400);
        assert_eq!(admission.held(), (100, 1_000));
        progress.end();
        assert_eq!(admission.held(), (0, 0));
        // A failed apply takes its room back.
        let mut progress = of(100);
        progress.note(200);
        drop(progress);
        assert_eq!(admission.held(), (100, 1_000));
        admission.release(100, 1_000);
    }
}
