//! The progress of an apply: writers get the room of its memtable step by step as it goes home, not all of it at the end.

use std::sync::Arc;

use shoal_log::{Committer, Record};
use shoal_tree::ENTRY_BYTES_MAX;

use crate::apply::pace::Pace;
use crate::checkpoint::pause::Pause;
use shoal_memtable::admission::{LENT_STEPS, Lent};

/// Weights of an operation of an apply, roughly by duration: sorted and brought home; looked up; and the whole of it, with the merge into a
/// tree.
const HOME: usize = 16;
const LOOK: usize = 32;
const WHOLE: usize = 128;
/// The same for an apply with a pace. The device limits it, not the processor, so the weights follow its requests: an operation whose value
/// goes home writes that value, and reads the leaf of the replaced entry in the merge.
const PACED_SORT: usize = 2;
const PACED: Parts = Parts { home: 30, look: 32 };
const PACED_WITH_HOMES: Parts = Parts { home: 80, look: 4 };
/// One of this many records is looked at to estimate the share of values that go home.
const HOMES_SAMPLED: usize = 16;
/// Merging an operation into the base takes this many times longer than into a layer: a page is rewritten for only a few of them.
const BASE_OVER_LAYER: usize = 8;

/// Weights of an operation.
struct Parts {
    home: usize,
    look: usize,
}

/// The progress of an apply.
pub(crate) struct Progress<'a> {
    committer: &'a Committer,
    lent: Option<Lent>,
    /// The weight done so far, and the total.
    done: usize,
    whole: usize,
    /// The weight reserved for a pause after the apply, which started at `began_ns`.
    pause: usize,
    began_ns: u64,
    /// The weight of an operation in the present part of the apply.
    weight: usize,
    /// The weight of an operation that is looked up.
    look: usize,
    /// The weight of an operation in the merge into the base.
    weight_in_base: usize,
    /// The next step is due at this weight.
    next: usize,
    pace: Option<Pace<'a>>,
}

impl<'a> Progress<'a> {
    /// An apply of `ops` operations. If it lends, the room of `lent` becomes free step by step, else only at the end.
    pub(crate) fn new(committer: &'a Committer, lent: Option<Lent>, ops: usize, lends: bool) -> Self {
        let next = if lends { 0 } else { usize::MAX };
        let whole = ops * WHOLE;
        let (done, pause, began_ns) = (0, 0, 0);
        Self {
            committer,
            lent,
            done,
            whole,
            pause,
            began_ns,
            weight: HOME,
            look: LOOK,
            weight_in_base: 0,
            next,
            pace: None,
        }
    }

    /// Reserves a part of the room for a pause of `permille` thousandths of the apply's time. The apply starts at `now_ns`.
    pub(crate) fn with_pause(mut self, permille: u64, now_ns: u64) -> Self {
        let pause = (self.whole as u64).saturating_mul(permille) / 1000;
        let lends = self.next < usize::MAX;
        (self.pause, self.began_ns) = (if lends { pause as usize } else { 0 }, now_ns);
        self
    }

    /// An apply with time to spare.
    pub(crate) fn with_pace(mut self, pace: Option<Pace<'a>>) -> Self {
        if pace.is_some() {
            self.weight = PACED_SORT;
        }
        self.pace = pace;
        self
    }

    /// Starts to bring the sorted `records` home. Sets the weights by the share of values that go home.
    pub(crate) fn brings_home(&mut self, records: &[Arc<Record>]) {
        if self.pace.is_none() {
            return;
        }
        let sampled = records.iter().step_by(HOMES_SAMPLED);
        let (all, homes) = sampled.fold((0, 0), |(all, homes), record| {
            (all + 1, homes + usize::from(record.body_bytes().len() > ENTRY_BYTES_MAX))
        });
        let weight = |none: usize, only: usize| (none * (all - homes) + only * homes) / all.max(1);
        self.weight = weight(PACED.home, PACED_WITH_HOMES.home);
        self.look = weight(PACED.look, PACED_WITH_HOMES.look);
    }

    /// Sleeps if the apply is ahead of its pace. The caller holds no lock.
    #[inline]
    pub(crate) fn keep_pace(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.keep(self.done, self.whole);
        }
    }

    /// The following operations are looked up.
    pub(crate) fn looks(&mut self) {
        self.weight = self.look;
    }

    /// The following operations are merged: `into_layer` of them into a layer, then `into_base` into the base.
    pub(crate) fn merges(&mut self, into_layer: usize, into_base: usize) {
        let rest = self.whole.saturating_sub(self.done);
        self.weight = rest / (into_layer + into_base * BASE_OVER_LAYER).max(1);
        self.weight_in_base = self.weight * BASE_OVER_LAYER;
    }

    /// The following operations are merged into the base.
    pub(crate) fn merges_into_base(&mut self) {
        self.weight = self.weight_in_base;
    }

    /// Notes that `ops` operations finished the present part.
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

    /// The apply was published at `now_ns`: all of its room is free, except the part reserved for a pause.
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
    /// The apply failed: it stops lending, and no large batch blocks other writes.
    fn drop(&mut self) {
        if self.lent.take().is_some() {
            self.committer.moved.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::{Lsn, TabletId};
    use shoal_log::format::{RecordKind, encode_record};

    use super::*;
    use crate::testing::fixtures::Fixture;

    #[test]
    fn room_comes_back_with_each_part_or_at_the_end() {
        let store = Fixture::new().open().unwrap();
        let admission = &store.0.tablets.admission;
        let of = |ops: usize| {
            admission.take(100, 1_000);
            Progress::new(&store.0.log.committer, Some(admission.lend(100, 1_000)), ops, ops > 0)
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
        // A memtable that leaves half of its room to a pause.
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

    /// Symptom: an apply of values of 4 KiB wrote all of them in the first eighth of its time, and commits waited behind them. Cause: its parts
    /// had the weights of an apply that waits for the processor.
    #[test]
    fn a_paced_apply_spends_most_of_its_time_on_values_that_go_home() {
        let store = Fixture::new().open().unwrap();
        let inner = &store.0;
        let share = |records: &[Arc<Record>]| {
            let pace = Pace::new(&inner.checkpointer, 1_000);
            let mut progress =
                Progress::new(&inner.log.committer, None, records.len(), false).with_pace(Some(pace));
            progress.note(records.len());
            progress.brings_home(records);
            let before = progress.done;
            progress.note(records.len());
            (progress.done - before) * 100 / progress.whole
        };
        let records = |body_bytes: usize| {
            let encoded = encode_record(RecordKind::Put, TabletId(0), b"key", &[&vec![7; body_bytes]], false);
            let record = Arc::new(Record::recovered(encoded, Lsn(1)));
            std::iter::repeat_n(record, 64).collect::<Vec<_>>()
        };
        assert_eq!(share(&records(100)), 23);
        assert_eq!(share(&records(4_096)), 62);
    }
}
