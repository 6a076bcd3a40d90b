//! A log that is closed to new records, or without commits, for a growth and for a move to another ring.

use shoal_common::error::Result;
use shoal_common::event::TokenGuard;

use super::{Committer, DriverState};
use crate::ring::{LogPlace, Ring};

impl Committer {
    /// Admits no record to the log until the result is dropped: writers wait, as for room.
    pub fn close_log(&self) -> ClosedLog<'_> {
        self.ring.close();
        ClosedLog(self)
    }

    /// Prevents every commit until the result is dropped.
    pub async fn stop(&self) -> StoppedLog<'_> {
        StoppedLog { committer: self, _driver: self.driver.take().await }
    }
}

/// A log that admits no records.
pub struct ClosedLog<'a>(&'a Committer);

impl ClosedLog<'_> {
    /// Waits until every record on its way into the log is durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub async fn is_drained(&self) -> Result<()> {
        let Self(committer) = self;
        committer.drive_all();
        committer
            .moved
            .wait_until(|| {
                let failed = || committer.poison.check().err().map(Err);
                failed().or_else(|| committer.ring.is_unreserved().then_some(Ok(())))
            })
            .await
    }
}

impl Drop for ClosedLog<'_> {
    fn drop(&mut self) {
        self.0.ring.open();
        self.0.moved.notify();
    }
}

/// A log without commits: the result of [`Committer::stop`].
pub struct StoppedLog<'a> {
    committer: &'a Committer,
    _driver: TokenGuard<'a, DriverState>,
}

impl StoppedLog<'_> {
    /// Continues at the start of another ring, which a durable superblock names (INV-38). The log is closed, and no batch is needed.
    pub fn move_log(&self, ring: Ring, prepared: u32) {
        let mut index = self.committer.index.lock();
        let head = index.head();
        let head = LogPlace { position: ring.turn(head.position), ..head };
        index.push_head(head);
        self.committer.ring.move_to(ring, prepared, head.position);
    }
}
