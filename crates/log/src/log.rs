//! The log of an open store, as its verbs use it: the committer, the poison that forbids writes, and the clock.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_common::object::{Deadline, EndTime, Expiry};

use crate::clock::{ClockRecord, ExpiryClock, Moment};
use crate::commit::Committer;
use crate::failure::Poison;

/// The log of an open store.
pub struct Log {
    /// The queue, and its commits.
    pub committer: Committer,
    /// Set by the first failed write or flush (R20).
    pub poison: Arc<Poison>,
    /// The clocks of expiry (R18).
    pub expiry: Arc<ExpiryClock>,
}

impl Log {
    /// Makes the store read-only, and wakes the writers that wait for room in vain.
    pub fn fail(&self, reason: String) {
        self.poison.set(reason);
        self.committer.moved.notify();
    }

    /// Notes that an apply or a superblock found no room, and wakes the writers that wait for an apply.
    pub fn no_apply(&self, why: &str) {
        self.committer.room.no_apply(why);
        self.committer.moved.notify();
    }

    /// Makes the store read-only because its data file is gone, or not the store's any more, and wakes the writers that wait for room in
    /// vain.
    pub fn lose_file(&self, reason: String) {
        self.poison.set_displaced(reason);
        self.committer.moved.notify();
    }

    /// How full the ring is, in thousandths.
    #[inline]
    pub fn fill_permille(&self) -> usize {
        self.committer.ring.fill_permille()
    }

    /// Returns true if a version has expired (R18).
    #[inline]
    pub fn is_over(&self, end: Option<EndTime>, version: Lsn) -> bool {
        self.expiry.is_over(end, version, &self.committer)
    }

    /// The deadline of an object that is put now; `None` without one.
    #[inline]
    pub fn end_of(&self, expiry: Expiry) -> Option<EndTime> {
        self.expiry.end_of(expiry, &self.committer)
    }

    /// The deadline `end` as users see it.
    #[inline]
    pub fn deadline(&self, end: EndTime) -> Deadline {
        self.expiry.deadline(end, &self.committer)
    }

    /// The wall clock that decides about deadlines, in nanoseconds since the Unix epoch.
    #[inline]
    pub fn wall_ns(&self) -> u64 {
        self.expiry.wall_ns(&self.committer)
    }

    /// The clocks at this moment.
    #[inline]
    pub fn moment(&self) -> Moment {
        self.expiry.moment(&self.committer)
    }

    /// Reads the clocks, so that a step of the wall clock is noticed soon.
    pub fn tick(&self) {
        self.expiry.tick(&self.committer);
    }

    /// The clock record for a superblock, and the latest time of the wall clock.
    pub fn clock_record(&self) -> (ClockRecord, u64) {
        self.expiry.record(&self.committer)
    }
}
