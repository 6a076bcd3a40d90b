//! The log of an open store, as its verbs see it: what commits, what says that nothing may be written any more, and the clock.

use std::sync::Arc;

use shoal_base::Lsn;

use crate::common::object::{Deadline, End, Expiry};
use crate::log::clock_record::ClockRecord;
use crate::log::commit::Committer;
use crate::log::expiry::ExpiryClock;
use crate::log::poison::Poison;

/// The log of an open store.
pub(crate) struct Log {
    pub committer: Committer,
    pub poison: Arc<Poison>,
    pub expiry: Arc<ExpiryClock>,
}

impl Log {
    /// Makes the store read-only, and wakes whatever waits for room that will not come.
    pub(crate) fn fail(&self, reason: String) {
        self.poison.set(reason);
        self.committer.moved.notify();
    }

    /// Whether the time of a version is over (R18).
    pub(crate) fn is_over(&self, end: Option<End>, version: Lsn) -> bool {
        self.expiry.is_over(end, version, &self.committer)
    }

    /// When the time of an object that is put now is over; none where it lives for ever.
    pub(crate) fn end_of(&self, expiry: Expiry) -> Option<End> {
        self.expiry.end_of(expiry, &self.committer)
    }

    /// The same as a caller sees it.
    pub(crate) fn deadline(&self, end: End) -> Deadline {
        self.expiry.deadline(end, &self.committer)
    }

    /// The wall clock as deadlines are judged by it, in nanoseconds.
    pub(crate) fn wall_ns(&self) -> u64 {
        self.expiry.wall_ns(&self.committer)
    }

    /// Looks at the clocks, so that a step of the wall clock is noticed soon.
    pub(crate) fn tick(&self) {
        self.expiry.tick(&self.committer);
    }

    /// What a superblock says of time, and the highest wall clock.
    pub(crate) fn clock_record(&self) -> (ClockRecord, u64) {
        self.expiry.record(&self.committer)
    }
}
