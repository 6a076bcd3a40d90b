//! The progress of an apply: writers get the room of its memtable step by step as it goes home, not all of it at the end.

use std::sync::Arc;

use shoal_log::{Committer, Record};
use shoal_memtable::admission::{LENT_STEPS, Lent};
use shoal_tree::ENTRY_BYTES_MAX;

use crate::apply::pace::Pace;
use crate::checkpoint::pause::Pause;

/// Weights of an operation of an apply, roughly by duration: sorted and brought home; looked up; and the whole of it, with the merge into a
/// tree.
pub const HOME: usize = 16;
const LOOK: usize = 32;
/// The weight of an operation from its start to its place in a tree.
pub const WHOLE: usize = 128;
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
pub struct Progress<'a> {
    committer: &'a Committer,
    lent: Option<Lent>,
    /// The weight done so far, and the total.
    pub done: usize,
    /// The weight of the whole apply.
    pub whole: usize,
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
    pub fn new(committer: &'a Committer, lent: Option<Lent>, ops: usize, lends: bool) -> Self {
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
    pub fn with_pause(mut self, permille: u64, now_ns: u64) -> Self {
        let pause = (self.whole as u64).saturating_mul(permille) / 1000;
        let lends = self.next < usize::MAX;
        (self.pause, self.began_ns) = (if lends { pause as usize } else { 0 }, now_ns);
        self
    }

    /// An apply with time to spare.
    pub fn with_pace(mut self, pace: Option<Pace<'a>>) -> Self {
        if pace.is_some() {
            self.weight = PACED_SORT;
        }
        self.pace = pace;
        self
    }

    /// Starts to bring the sorted `records` home. Sets the weights by the share of values that go home.
    pub fn brings_home(&mut self, records: &[Arc<Record>]) {
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
    pub fn looks(&mut self) {
        self.weight = self.look;
    }

    /// The following operations are merged: `into_layer` of them into a layer, then `into_base` into the base.
    pub fn merges(&mut self, into_layer: usize, into_base: usize) {
        let rest = self.whole.saturating_sub(self.done);
        self.weight = rest / (into_layer + into_base * BASE_OVER_LAYER).max(1);
        self.weight_in_base = self.weight * BASE_OVER_LAYER;
    }

    /// The following operations are merged into the base.
    pub fn merges_into_base(&mut self) {
        self.weight = self.weight_in_base;
    }

    /// Notes that `ops` operations finished the present part.
    #[inline]
    pub fn note(&mut self, ops: usize) {
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
    pub fn end(mut self, now_ns: u64) -> Option<Pause> {
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
