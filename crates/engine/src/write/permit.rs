//! Permits: a write batch waits for room in memtables and log before it is queued.

use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_log::{Committer, run_to_end};
use shoal_memtable::admission::{MemtablePermit, WaitingWrite};
use shoal_tablets::checkpoint::applier::ApplyWait;

use crate::store::Inner;
use crate::store::threads::Duty;

/// A write batch's share of memtables and log. Dropped before the batch is queued, it frees the share.
pub(crate) struct Permit<'a> {
    // Dropped in this order: the log's permit notifies the writers that wait for a permit, which must find both shares
    // free.
    pub memtables: MemtablePermit,
    pub log: LogPermit<'a>,
}

/// Blocks of the log that are reserved for a write batch.
pub(crate) struct LogPermit<'a> {
    committer: &'a Committer,
    blocks: u32,
}

impl LogPermit<'_> {
    /// Keeps the blocks reserved: the batch is queued, and the committer frees them.
    pub(crate) fn keep(mut self) -> u32 {
        std::mem::take(&mut self.blocks)
    }
}

impl Drop for LogPermit<'_> {
    fn drop(&mut self) {
        if self.blocks > 0 {
            self.committer.ring.unreserve(self.blocks);
            // A writer may wait for just these blocks.
            self.committer.moved.notify();
        }
    }
}

/// The place of a write that waits for room. A large batch that leaves the line wakes the writes after it.
struct PlaceInLine<'a> {
    waiting: Option<WaitingWrite<'a>>,
    committer: &'a Committer,
    /// The apply in progress makes the room.
    _wait: ApplyWait<'a>,
}

impl PlaceInLine<'_> {
    fn try_admit(&self) -> Option<MemtablePermit> {
        self.waiting.as_ref()?.try_admit()
    }
}

impl Drop for PlaceInLine<'_> {
    fn drop(&mut self) {
        if self.waiting.take().is_some_and(|waiting| waiting.is_large) {
            self.committer.moved.notify();
        }
    }
}

impl Inner {
    /// A permit for a write batch of `records` records, if there is room for it now.
    pub(crate) fn try_admit(&self, records: usize, memory_bytes: usize, blocks: u32) -> Option<Permit<'_>> {
        self.with_log(self.tablets.admission.try_admit(records, memory_bytes)?, blocks)
    }

    /// Both shares, if the log has room for `blocks` blocks now.
    fn with_log(&self, memtables: MemtablePermit, blocks: u32) -> Option<Permit<'_>> {
        let log = || LogPermit { committer: &self.log.committer, blocks };
        self.log.committer.ring.reserve(blocks).then(|| Permit { memtables, log: log() })
    }

    /// Waits for the permit of a write batch. All its records get room at once or wait: two batches that each hold a
    /// part of the room would wait for each other for ever.
    pub(crate) async fn admit(&self, records: usize, memory_bytes: usize, blocks: u32) -> Result<Permit<'_>> {
        if self.log.committer.ring.suits(blocks)
            && let Some(permit) = self.try_admit(records, memory_bytes, blocks)
        {
            self.apply_early()?;
            return Ok(permit);
        }
        self.wait_for_room(records, memory_bytes, blocks).await
    }

    fn wait_for_room(
        &self,
        records: usize,
        memory_bytes: usize,
        blocks: u32,
    ) -> Boxed<'_, Result<Permit<'_>>> {
        Box::pin(async move {
            let attempt = || self.try_admit(records, memory_bytes, blocks);
            if !self.log.committer.ring.suits(blocks) {
                run_to_end(self.checkpointer.prepare_for_step(blocks))?;
            }
            loop {
                if let Some(permit) = attempt() {
                    self.apply_early()?;
                    return Ok(permit);
                }
                self.check_writable()?;
                if let Some(worker) = &self.maintenance.worker {
                    let place = self.wait_in_line(records, memory_bytes);
                    worker.wake(Duty::Apply);
                    worker.wake(Duty::Grow);
                    let permit = || self.with_log(place.try_admit()?, blocks).map(Ok);
                    let waited = || self.check_waiting().err().map(Err).or_else(permit);
                    return self.log.committer.moved.wait_until(waited).await;
                }
                if self.checkpointer.wants_log() {
                    run_to_end(self.checkpointer.prepare_log(0))?;
                }
                run_to_end(self.checkpointer.apply_all())?;
                // Another thread holds the missing room now. It either queues its records, and then there is something to apply, or
                // returns the room.
                let is_applied =
                    || self.tablets.all().iter().all(|tablet| tablet.first_unapplied().is_none());
                let waited = self.log.committer.moved.wait_until(|| {
                    let permit = || attempt().map(|permit| Ok(Some(permit)));
                    let refused = self.check_writable().err().map(Err);
                    let is_better = || !is_applied() || self.checkpointer.archive_lets_log_go();
                    refused.or_else(permit).or_else(|| is_better().then_some(Ok(None)))
                });
                if let Some(permit) = waited.await? {
                    return Ok(permit);
                }
            }
        })
    }

    /// Checks that a write may wait until the store's threads have made room by an apply.
    fn check_waiting(&self) -> Result<()> {
        self.check_writable()?;
        self.log.committer.room.check_applies()
    }

    fn wait_in_line(&self, records: usize, memory_bytes: usize) -> PlaceInLine<'_> {
        let waiting = Some(self.tablets.admission.wait(records, memory_bytes));
        PlaceInLine { waiting, committer: &self.log.committer, _wait: self.checkpointer.applier.wait() }
    }

    /// Starts an apply if memtables or log are half full. In a store without threads the writer applies later.
    pub(crate) fn apply_early(&self) -> Result<()> {
        match &self.maintenance.worker {
            _ if !self.wants_apply() => {}
            Some(worker) => worker.wake(Duty::Apply),
            None if self.tablets.admission.fill_permille() >= 700 || self.log.fill_permille() >= 700 => {
                if self.checkpointer.wants_log() {
                    run_to_end(self.checkpointer.prepare_log(0))?;
                }
                match run_to_end(self.checkpointer.apply_fullest()) {
                    // The permit is there already.
                    Err(Error::NoRoom(_)) => {}
                    applied => applied?,
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Returns true if an apply should run: memtables or log are half full, or a batch waits that may need more than the
    /// other half. A log that is held for an archive gets no room by an apply.
    pub(crate) fn wants_apply(&self) -> bool {
        self.tablets.admission.fill_permille() >= 500
            || (self.tablets.admission.is_waited_for() || self.log.fill_permille() >= 500)
                && !self.checkpointer.is_log_held()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool as Flag, Ordering};
    use std::task::{Context, Wake, Waker};

    use crate::store::Store;
    use crate::testing::fixtures::{Fixture, environment, options};
    use crate::{OpenOptions, block_on};

    /// A waker that asks for a permit when it is woken.
    struct Asks(Store, Flag);

    impl Wake for Asks {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0.0.try_admit(usize::MAX / 4, 1, 1).is_some(), Ordering::Relaxed);
        }
    }

    /// A waker that notes that it was called.
    #[derive(Default)]
    struct Told(Flag);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// The schedules found this: the log's room was freed and notified before that in the memtables, and a writer that
    /// waited for both slept on.
    #[test]
    fn woken_writer_finds_room() {
        let store = Fixture::new().open().unwrap();
        let inner = &store.0;
        // Each of these fits only into empty memtables.
        let attempt = || inner.try_admit(usize::MAX / 4, 1, 1);
        let room = attempt().unwrap();
        let asks = Arc::new(Asks(store.clone(), Flag::new(false)));
        let waker = Waker::from(asks.clone());
        let mut waiting = pin!(inner.log.committer.moved.wait_until(attempt));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(room);
        assert!(asks.1.load(Ordering::Relaxed));
    }

    /// A small batch that waits for a large one before it continues when the large one is dropped, although
    /// no apply made room.
    #[test]
    fn batch_continues_when_large_one_is_dropped() {
        let fixture = Fixture::new();
        let options = OpenOptions { background: true, ..options() };
        let store = block_on(Store::open(fixture.device.clone(), options, environment())).unwrap();
        let inner = &store.0;
        let small = || inner.try_admit(2, 1, 1);
        let all = inner.try_admit(usize::MAX / 4, 1, 1).unwrap();
        let _lent = inner.tablets.admission.lend(0, 0);
        let told = Arc::new(Told::default());
        let waker = Waker::from(told.clone());
        let mut context = Context::from_waker(&waker);
        let mut large = Box::pin(inner.admit(usize::MAX / 4, 1, 1));
        assert!(large.as_mut().poll(&mut context).is_pending());
        drop(all);
        let mut waiting = pin!(inner.log.committer.moved.wait_until(small));
        assert!(waiting.as_mut().poll(&mut context).is_pending(), "the large batch is the next one");
        told.0.store(false, Ordering::Relaxed);
        drop(large);
        assert!(told.0.load(Ordering::Relaxed));
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }
}
