//! Closes a store: the log's records go into the trees, so that the next opening needs no record of the log.
//!
//! The order: new writes are refused, the store's threads end, everything is applied, the log is sealed, and the last
//! superblock says that the log is empty (its tail is its head, and its ceiling allows no further number). A crash
//! during the close is a crash like any other. A close may have a deadline: an apply that would exceed it is given up,
//! and its records stay in the log for the next opening, as after a crash.

use std::time::Duration;

use shoal_base::sync::atomic::Ordering;
use shoal_base::task::Boxed;

use crate::common::error::{Error, Result};
use crate::log::driver::uninterrupted;
use crate::store::{Inner, Store};

/// A close that takes longer than this logs its progress, and again after each such time.
const PROGRESS_NS: u64 = 1_000_000_000;
/// One of this many steps of an apply reads the clock.
const STEPS_A_LOOK: u64 = 64;
/// An apply takes each record twice: its value goes home, then the record goes into the tree.
const STEPS_A_RECORD: u64 = 2;
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
    /// Notes that an apply finished one more record. During a close, logs the progress from time to time.
    ///
    /// # Errors
    /// [`Error::Closed`] if the deadline of the close has passed: the apply ends, and its records stay in the log.
    pub(crate) fn closing_step(&self) -> Result<()> {
        let closing = &self.maintenance.closing;
        if !closing.is_begun() {
            return Ok(());
        }
        let steps = closing.steps.fetch_add(1, Ordering::Relaxed) + 1;
        if !steps.is_multiple_of(STEPS_A_LOOK) {
            return Ok(());
        }
        let now_ns = self.now_ns();
        if closing.is_over(now_ns) {
            return Err(Error::Closed);
        }
        let said_ns = closing.said_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(said_ns) >= PROGRESS_NS
            && closing.said_ns.compare_exchange(said_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let done = steps / STEPS_A_RECORD;
            let left = closing.records.load(Ordering::Relaxed).saturating_sub(done);
            let took_ns = now_ns.saturating_sub(closing.began_ns.load(Ordering::Relaxed)).max(1);
            let rate = u128::from(done) * 1_000_000_000 / u128::from(took_ns);
            tracing::info!("closing: {left} records of the log are still to be applied, {rate} a second");
        }
        Ok(())
    }

    /// The number of records that only the log holds.
    fn records_left(&self) -> u64 {
        let size = |tablet: &crate::tablet::view::Tablet| {
            let view = tablet.view();
            let frozen = view.frozen.as_ref().map_or(0, |overlay| overlay.size().records);
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
                if tablet.first_unapplied().is_none() || self.maintenance.closing.is_over(self.now_ns()) {
                    break;
                }
                if let Err(error) = self.apply_tablet(tablet).await {
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
    /// As the device. [`Error::Poisoned`] where a write of the close itself failed.
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
        let was_poisoned = inner.log.poison.reason().is_some();
        inner.maintenance.closing.begin(inner.now_ns(), limit, inner.records_left());
        if inner.check_writable().is_ok() {
            if inner.own.len() > 0 {
                // Values that go home now take groups, too. The apply below returns these errors.
                let _ = uninterrupted(inner.apply_before_close());
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
        // A write checks under its overlay's lock that the store is open. After each lock was taken once, every write
        // that saw it open has queued its record.
        inner.tablets.all().iter().for_each(|tablet| drop(tablet.view().active.lock()));
        if let Some(worker) = &inner.maintenance.worker {
            worker.stop();
        }
        uninterrupted(async {
            inner.log.committer.commit_all().await;
            if was_poisoned {
                return Ok(Closed { records_left: inner.records_left() });
            }
            inner.log.poison.check()?;
            inner.apply_before_close().await?;
            inner.log.committer.seal().await;
            // A record queued while the seal was written relies on this commit, because its writer found a driver.
            inner.log.committer.commit_all().await;
            inner.apply_before_close().await?;
            let published = inner.publish_last().await;
            published.map(|()| Closed { records_left: inner.records_left() })
        })
    }
}
