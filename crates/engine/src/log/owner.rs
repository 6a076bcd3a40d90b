//! The log of an open store, as its verbs use it: the committer, the poison that forbids writes, and the clock.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_common::object::{Deadline, End, Expiry};

use crate::log::clock_record::ClockRecord;
use crate::log::commit::Committer;
use crate::log::expiry::{ExpiryClock, Moment};
use crate::log::poison::Poison;

/// The log of an open store.
pub(crate) struct Log {
    pub committer: Committer,
    pub poison: Arc<Poison>,
    pub expiry: Arc<ExpiryClock>,
}

impl Log {
    /// Makes the store read-only, and wakes the writers that wait for room in vain.
    pub(crate) fn fail(&self, reason: String) {
        self.poison.set(reason);
        self.committer.moved.notify();
    }

    /// Notes that an apply or a superblock found no room, and wakes the writers that wait for an apply.
    pub(crate) fn no_apply(&self, why: &str) {
        self.committer.room.no_apply(why);
        self.committer.moved.notify();
    }

    /// Makes the store read-only because its data file is gone, or not the store's any more, and wakes the writers that wait for room in
    /// vain.
    pub(crate) fn lose_file(&self, reason: String) {
        self.poison.set_displaced(reason);
        self.committer.moved.notify();
    }

    /// How full the ring is, in thousandths.
    pub(crate) fn fill_permille(&self) -> usize {
        self.committer.ring.fill_permille()
    }

    /// Returns true if a version has expired (R18).
    pub(crate) fn is_over(&self, end: Option<End>, version: Lsn) -> bool {
        self.expiry.is_over(end, version, &self.committer)
    }

    /// The deadline of an object that is put now; `None` without one.
    pub(crate) fn end_of(&self, expiry: Expiry) -> Option<End> {
        self.expiry.end_of(expiry, &self.committer)
    }

    /// The deadline `end` as users see it.
    pub(crate) fn deadline(&self, end: End) -> Deadline {
        self.expiry.deadline(end, &self.committer)
    }

    /// The wall clock that decides about deadlines, in nanoseconds since the Unix epoch.
    pub(crate) fn wall_ns(&self) -> u64 {
        self.expiry.wall_ns(&self.committer)
    }

    /// The clocks at this moment.
    pub(crate) fn moment(&self) -> Moment {
        self.expiry.moment(&self.committer)
    }

    /// Reads the clocks, so that a step of the wall clock is noticed soon.
    pub(crate) fn tick(&self) {
        self.expiry.tick(&self.committer);
    }

    /// The clock record for a superblock, and the latest time of the wall clock.
    pub(crate) fn clock_record(&self) -> (ClockRecord, u64) {
        self.expiry.record(&self.committer)
    }
}
