//! Closing a store: what the log holds goes into the trees, so that a store that was stopped in order needs nothing of its log.
//!
//! The order: no new writes, the store's threads end, everything is applied, the log is sealed, the last superblock says that
//! the log is empty (its tail is its head, and its ceiling allows no further number). A crash at any moment of it is a crash
//! like any other. A close may have a deadline: an apply that is not through by then is given up, and its records stay
//! in the log for the next opening, as after a crash.

use std::time::Duration;

use shoal_base::sync::atomic::Ordering;
use shoal_base::task::Boxed;

use crate::common::error::{Error, Result};
use crate::log::driver::uninterrupted;
use crate::store::{Inner, Store};

/// A close that takes longer than this says how far it is, and says so again after as long.
const PROGRESS_NS: u64 = 1_000_000_000;
/// Of so many steps of an apply one looks at the clock.
const STEPS_A_LOOK: u64 = 64;
/// An apply takes each record twice: its value goes home, then the record goes into the tree.
const STEPS_A_RECORD: u64 = 2;
/// Rounds over all tablets. Nobody writes any more, so the second round finds at most what was queued during the first one.
const ROUNDS: usize = 3;

/// What became of a close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Records that are in the log only; the next opening replays them. 0 after a close in order.
    pub records_left: u64,
}

impl Inner {
    /// An apply went on by one record. While the store is being closed it says from time to time how far that is.
    ///
    /// # Errors
    /// [`Error::Closed`] where the time to close is over: the apply ends, and its records stay in the log.
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

    /// Records that only the log holds.
    fn records_left(&self) -> u64 {
        let size = |tablet: &crate::tablet::view::Tablet| {
            let view = tablet.view();
            let frozen = view.frozen.as_ref().map_or(0, |overlay| overlay.size().records);
            view.active.size().records + frozen
        };
        self.tablets.all().iter().map(|tablet| size(tablet) as u64).sum()
    }

    /// Applies every tablet, as far as that is possible before the deadline. What cannot be applied stays in the log.
    ///
    /// # Errors
    /// [`Error::Poisoned`] where a write failed.
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
    /// Finishes what is under way, applies what the log holds, seals it and ends the store's threads. Later calls of
    /// anything give [`Error::Closed`].
    ///
    /// # Errors
    /// As the device. [`Error::Poisoned`] where a write of the close itself failed.
    pub fn close(&self) -> Boxed<'_, Result<()>> {
        Box::pin(async { self.finish(None).await.map(|_| ()) })
    }

    /// The same within about `limit`: an apply that would take longer is given up, and its records stay in the log, which the
    /// next opening replays. A device that does not answer is waited for all the same.
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
                // Values that go home now take groups, too. Errors are those of the apply below.
                let _ = uninterrupted(inner.apply_before_close());
            }
            if let Err(error) = self.save_own_space().await {
                tracing::warn!("which groups belong to which bucket could not be saved: {error}");
            }
        }
        if inner.closed.swap(true, Ordering::AcqRel) {
            return Ok(Closed::default());
        }
        // Whoever waits for room learns that none will come.
        inner.log.committer.moved.notify();
        // A write asks under its overlay's lock whether the store is open: who was told so before has queued its record now.
        inner.tablets.all().iter().for_each(|tablet| drop(tablet.view().active.lock()));
        if let Some(worker) = &inner.maintenance.worker {
            worker.stop();
        }
        uninterrupted(async {
            inner.log.committer.lead().await;
            if was_poisoned {
                return Ok(Closed { records_left: inner.records_left() });
            }
            inner.log.poison.check()?;
            inner.apply_before_close().await?;
            inner.log.committer.seal().await;
            // Who was queued while the seal was written found somebody committing and relies on it.
            inner.log.committer.lead().await;
            inner.apply_before_close().await?;
            let published = inner.publish_last().await;
            published.map(|()| Closed { records_left: inner.records_left() })
        })
    }
}
