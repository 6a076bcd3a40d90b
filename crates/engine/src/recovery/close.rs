//! Closes a store: the log's records go into the trees, so that the next opening needs no record of the log.
//!
//! The order: new writes are refused, the store's threads end, everything is applied, the log is sealed, and the last
//! superblock shows that the log is empty (its tail is its head, and its ceiling allows no further number). A crash
//! during the close is a crash like any other. A close may have a deadline: an apply that would exceed it is given up,
//! and its records stay in the log for the next opening, as after a crash.

use std::time::Duration;

use shoal_base::sync::atomic::Ordering;
use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_log::run_to_end;

use crate::store::{Inner, Store};

/// Rounds over all tablets. New writes are refused, so the second round finds at most the records queued during the
/// first one.
const ROUNDS: usize = 3;

/// The result of a close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Records that are in the log only; the next opening replays them. 0 after a complete close.
    pub records_left: u64,
}

impl Inner {
    /// The number of records that only the log holds.
    fn records_left(&self) -> u64 {
        let size = |tablet: &shoal_tablets::tablet::view::Tablet| {
            let view = tablet.view();
            let frozen = view.frozen.as_ref().map_or(0, |memtable| memtable.size().records);
            view.active.size().records + frozen
        };
        self.tablets.all().iter().map(|tablet| size(tablet) as u64).sum()
    }

    /// Applies every tablet, as far as possible before the deadline. Other records stay in the log.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if a write failed.
    async fn apply_before_close(&self) -> Result<()> {
        for tablet in self.tablets.all() {
            for _ in 0..ROUNDS {
                if tablet.first_unapplied().is_none() || self.checkpointer.closing.is_over() {
                    break;
                }
                if let Err(error) = self.checkpointer.apply_tablet(tablet).await {
                    self.log.poison.check()?;
                    if !matches!(error, Error::Closed) {
                        let id = tablet.id;
                        tracing::warn!(
                            "closing: records of tablet {id} stay in the log, which the next opening reads: {error}"
                        );
                    }
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Store {
    /// Finishes writes in flight, applies the log's records, seals the log and ends the store's threads. Every later
    /// call fails with [`Error::Closed`].
    ///
    /// # Errors
    /// As the device. [`Error::Poisoned`] if a write of the close itself failed, or if the data file was deleted, replaced or cut, or another
    /// program writes to it: what was acknowledged may be gone.
    pub fn close(&self) -> Boxed<'_, Result<()>> {
        Box::pin(async { self.finish(None).await.map(|_| ()) })
    }

    /// As [`close`](Self::close), within about `limit`: an apply that would take longer is given up, and its records
    /// stay in the log, which the next opening replays. The close still waits for a device that does not answer.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn close_within(&self, limit: Option<Duration>) -> Boxed<'_, Result<Closed>> {
        Box::pin(self.finish(limit))
    }

    async fn finish(&self, limit: Option<Duration>) -> Result<Closed> {
        let inner = &*self.0;
        if inner.check_open().is_ok()
            && !matches!(inner.check_writable(), Err(Error::ReadOnly))
            && let Some(what) = inner.checkpointer.lost_file().await
        {
            inner.log.lose_file(what);
        }
        let was_poisoned = inner.log.poison.reason().is_some();
        inner.checkpointer.closing.begin(limit, inner.records_left());
        if inner.check_writable().is_ok() {
            if inner.own.count() > 0 {
                // Values that go home now take groups, too. The apply below returns these errors.
                let _ = run_to_end(inner.apply_before_close());
            }
            if let Err(error) = self.save_own_space().await {
                tracing::warn!("which groups belong to which bucket could not be saved: {error}");
            }
        }
        if inner.closed.swap(true, Ordering::AcqRel) {
            return Ok(Closed::default());
        }
        // Wakes writers that wait for room: they learn that the store is closed.
        inner.log.committer.moved.notify();
        // A write checks under its memtable's lock that the store is open. After each lock was taken once, every write
        // that saw it open has queued its record.
        assert!(inner.check_open().is_err(), "writes continue after the close");
        inner.tablets.all().iter().for_each(|tablet| drop(tablet.view().active.lock()));
        if let Some(worker) = &inner.maintenance.worker {
            worker.stop();
        }
        run_to_end(async {
            inner.log.committer.commit_all().await;
            if let Some(reason) = inner.log.poison.displaced() {
                return Err(Error::Poisoned(reason.to_owned()));
            }
            if was_poisoned {
                return Ok(Closed { records_left: inner.records_left() });
            }
            inner.log.poison.check()?;
            inner.apply_before_close().await?;
            inner.log.committer.seal().await;
            // A record queued while the seal was written relies on this commit, because its writer found a driver.
            inner.log.committer.commit_all().await;
            inner.apply_before_close().await?;
            match inner.checkpointer.publish_last().await {
                // As after a crash: the next opening reads the log.
                Err(error @ Error::NoRoom(_)) => tracing::warn!("closing: the log is kept as it is: {error}"),
                published => published?,
            }
            Ok(Closed { records_left: inner.records_left() })
        })
    }
}
