//! The progress of an apply: writers get the room of its memtable as it comes home, and not all of it at the end.

use crate::checkpoint::pause::Pause;
use crate::log::commit::Committer;
use crate::memtable::admission::{LENT_STEPS, Lent};

/// Weights of an operation of an apply, by the time that it takes about: it is put in order and brought home; it is looked at; and
/// the whole of it, with the merge into a tree.
const HOME: usize = 16;
const LOOK: usize = 32;
const WHOLE: usize = 128;
/// The merge of an operation into the base takes so many times as long as that into a layer: it rewrites a page for a few of them.
const BASE_OVER_LAYER: usize = 8;

/// The progress of an apply.
pub(crate) struct Progress<'a> {
    committer: &'a Committer,
    lent: Option<Lent>,
    /// The weight of what is done, and of all that is to be done.
    done: usize,
    whole: usize,
    /// The weight that is left to a pause behind the apply, which began at `began_ns`.
    pause: usize,
    began_ns: u64,
    /// The weight of an operation in the present part of the apply.
    weight: usize,
    /// That in the merge into the base.
    weight_in_base: usize,
    /// The next step begins when so much is done.
    next: usize,
}

impl<'a> Progress<'a> {
    /// An apply of `ops` operations lends the room of `lent` as it goes. With `ops` 0 the room becomes free at the end
    /// only.
    pub(crate) fn new(committer: &'a Committer, lent: Option<Lent>, ops: usize) -> Self {
        let next = if ops == 0 { usize::MAX } else { 0 };
        let whole = ops * WHOLE;
        let (done, pause, began_ns) = (0, 0, 0);
        Self { committer, lent, done, whole, pause, began_ns, weight: HOME, weight_in_base: 0, next }
    }

    /// The apply, which begins at `now_ns`, leaves a part of the room to a pause of so many thousandths of its time.
    pub(crate) fn with_pause(mut self, permille: u64, now_ns: u64) -> Self {
        let pause = (self.whole as u64).saturating_mul(permille) / 1000;
        (self.pause, self.began_ns) = (pause as usize, now_ns);
        self
    }

    /// From now on operations are looked at.
    pub(crate) fn looks(&mut self) {
        self.weight = LOOK;
    }

    /// From now on operations are merged: so many into a layer, and then others into the base.
    pub(crate) fn merges(&mut self, into_layer: usize, into_base: usize) {
        let rest = self.whole.saturating_sub(self.done);
        self.weight = rest / (into_layer + into_base * BASE_OVER_LAYER).max(1);
        self.weight_in_base = self.weight * BASE_OVER_LAYER;
    }

    /// From now on they are merged into the base.
    pub(crate) fn merges_into_base(&mut self) {
        self.weight = self.weight_in_base;
    }

    /// Notes that the present part is done for so many operations.
    #[inline]
    pub(crate) fn note(&mut self, ops: usize) {
        self.done += ops * self.weight;
        if self.done >= self.next {
            self.step();
        }
    }

    fn step(&mut self) {
        self.next = self.done + (self.whole / LENT_STEPS).max(1);
        if let Some(lent) = &mut self.lent
            && lent.advance(self.done.min(self.whole), self.whole + self.pause)
        {
            self.committer.moved.notify();
        }
    }

    /// The apply is published, at `now_ns`: all of the room is free, but for what is left to a pause.
    pub(crate) fn end(mut self, now_ns: u64) -> Option<Pause> {
        let lent = self.lent.take()?;
        let mut paused = None;
        if self.pause > 0 {
            let parts = (self.whole, self.whole + self.pause);
            paused = Some(Pause::new(lent, parts, now_ns.saturating_sub(self.began_ns)));
        } else {
            lent.end();
        }
        self.committer.moved.notify();
        paused
    }
}

impl Drop for Progress<'_> {
    /// The apply failed: it lends no more, and no large batch stops other writes.
    fn drop(&mut self) {
        if self.lent.take().is_some() {
            self.committer.moved.notify();
        }
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
        let mut before = 1_000;
        let mut is_done = |progress: &mut Progress<'_>, ops| {
            progress.note(ops);
            let held = admission.held().1;
            assert!(held < before, "nothing came back: {held} bytes are counted");
            before = held;
            held
        };
        is_done(&mut progress, 100);
        is_done(&mut progress, 100);
        progress.looks();
        is_done(&mut progress, 100);
        progress.merges(60, 40);
        is_done(&mut progress, 60);
        progress.merges_into_base();
        is_done(&mut progress, 20);
        assert!(is_done(&mut progress, 20) <= 50, "all is done, but for the roundings");
        assert!(progress.end(0).is_none());
        assert_eq!(admission.held(), (0, 0));
        // A small memtable lends nothing.
        let mut progress = of(0);
        progress.note(400);
        assert_eq!(admission.held(), (100, 1_000));
        assert!(progress.end(0).is_none());
        assert_eq!(admission.held(), (0, 0));
        // One that leaves a half of it to a pause.
        let mut progress = of(100).with_pause(1_000, 5);
        progress.note(100 * WHOLE / HOME);
        let held = admission.held();
        assert_eq!(held.1, 500);
        let pause = progress.end(10).unwrap();
        assert_eq!(admission.held(), held);
        drop(pause);
        assert_eq!(admission.held(), (0, 0));
        // A failed apply takes its room back.
        let mut progress = of(100);
        progress.note(200);
        drop(progress);
        assert_eq!(admission.held(), (100, 1_000));
        admission.release(100, 1_000);
    }
}
