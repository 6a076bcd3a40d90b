//! An open store: what its operations share. The operations themselves are in files of their own: `put.rs`, `get.rs`,
//! `delete.rs`, `list.rs`, `stream.rs`.

use std::sync::Arc;

use shoal_base::TabletId;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shoal_base::task::{block_on, may_block};
use shoal_device::Device;
use shoal_pool::Pool;

use crate::admission::{Admission, Admitted};
use crate::background::Worker;
use crate::close::Closing;
use crate::damage::{DamagedRange, Met};
use crate::error::{Error, Result};
use crate::event::Baton;
use crate::expiry::ExpiryClock;
use crate::grow::Growth;
use crate::key::ObjectKey;
use crate::layout::Layout;
use crate::log::commit::Committer;
use crate::losses::Losses;
use crate::moving::Mover;
use crate::near::WriteCounts;
use crate::options::{Environment, Tuning};
use crate::overlay::hash_of;
use crate::own_space::OwnSpace;
use crate::pending::is_put_off;
use crate::poison::Poison;
use crate::publish::Publisher;
use crate::reap::Expiring;
use crate::scrub::ScrubCounters;
use crate::space::{Shortage, SpaceManager};
use crate::stream::HeldStreams;
use crate::tablet::{Tablet, TabletMap};
use crate::turns::Turns;
use crate::watch::Watches;

/// An open store. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Inner>);

impl Store {
    /// The tablet that an object belongs to: damaged ranges are ranges of one tablet's keys.
    #[must_use]
    pub fn tablet_id(&self, key: &ObjectKey) -> TabletId {
        self.0.tablet_of(key).id
    }

    /// The damaged ranges that were met since the store was opened, of encoded keys; at most about 64, neighbours as one. A
    /// [listing](Store::list) of everything finds all of them.
    #[must_use]
    pub fn damage_met(&self) -> Vec<DamagedRange> {
        self.0.met.all()
    }
}

/// What the operations share.
pub(crate) struct Inner {
    pub device: Device,
    pub pool: Pool,
    pub layout: Layout,
    pub identity: [u8; 16],
    pub environment: Environment,
    pub tuning: Tuning,
    /// Blocks of a new packed run, at most.
    pub run_blocks_max: u32,
    pub tablets: TabletMap,
    pub committer: Committer,
    pub space: Arc<SpaceManager>,
    pub own: OwnSpace,
    pub admission: Arc<Admission>,
    pub poison: Arc<Poison>,
    /// A repair: a page that the device cannot read is lost, and not there again the next time.
    pub gives_up: bool,
    /// What repairs lost before this opening, and nobody acknowledged.
    pub losses: Losses,
    /// Decides whose time is over (R18).
    pub expiry: Arc<ExpiryClock>,
    /// Whose time ends soonest.
    pub expiring: Expiring,
    /// Damaged ranges that were met since it was opened.
    pub met: Met,
    pub publisher: Baton<Publisher>,
    /// One apply at a time.
    pub applier: Baton<()>,
    /// One growth of the file at a time.
    pub grower: Baton<()>,
    /// One writer at a time makes room where there is none.
    pub room: Baton<()>,
    /// The store's threads; none where callers do their work.
    pub worker: Option<Arc<Worker>>,
    /// Readers of long values, which hold the space of what they read for a bounded time (R16).
    pub streams: HeldStreams,
    pub mover: Mover,
    /// What scrubs did.
    pub scrubbed: ScrubCounters,
    /// Whether whole free groups are given back to the device.
    pub discard: bool,
    /// How often keys were written, for who keeps values near.
    pub writes: WriteCounts,
    /// How far its closing is.
    pub closing: Closing,
    /// How growing the file went so far.
    pub growth: Growth,
    /// The keys that are watched.
    pub watches: Watches,
    /// Who queues for keys.
    pub turns: Turns,
    pub closed: AtomicBool,
    pub counters: OperationCounters,
}

/// Counts of operations, for `stat`.
#[derive(Default)]
pub(crate) struct OperationCounters {
    pub puts: AtomicU64,
    pub gets: AtomicU64,
    pub deletes: AtomicU64,
    pub value_bytes_written: AtomicU64,
    pub value_bytes_read: AtomicU64,
    pub value_bytes_copied: AtomicU64,
    pub applies: AtomicU64,
    pub pages_written: AtomicU64,
    pub home_blocks_written: AtomicU64,
    pub extent_blocks_written: AtomicU64,
    pub growth_blocks_written: AtomicU64,
    pub moved_values: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub expired: AtomicU64,
}

impl OperationCounters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

impl Inner {
    /// Nothing, where the store is open.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Nothing, where the store may be written.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`].
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        self.poison.check()
    }

    /// Makes the store read-only, and wakes whoever waits for room that will not come.
    pub(crate) fn poison(&self, reason: String) {
        self.poison.set(reason);
        self.committer.moved.notify();
    }

    pub(crate) fn tablet_of(&self, key: &ObjectKey) -> &Arc<Tablet> {
        self.tablets.of_slot(key.slot())
    }

    /// Waits where a step at the front of its line has closed it (`turns.rs`). Before anything else is taken.
    pub(crate) async fn pass(&self, key: &ObjectKey) {
        if self.turns.is_any_closed() {
            self.turns.pass(hash_of(key.encoded())).await;
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.environment.clock.monotonic_ns()
    }

    /// Waits for room in overlays and log for a record of `record_bytes` bytes; gives it with the blocks of the log
    /// that were reserved.
    pub(crate) async fn admit(&self, memory_bytes: usize, record_bytes: usize) -> Result<Room<'_>> {
        self.admit_step(1, memory_bytes, Committer::blocks_of(record_bytes)).await
    }

    /// Room in overlays and log, where there is some now.
    pub(crate) fn try_admit(&self, records: usize, memory_bytes: usize, blocks: u32) -> Option<Room<'_>> {
        let overlays = self.admission.try_admit(records, memory_bytes)?;
        let log = || LogRoom { committer: &self.committer, blocks };
        self.committer.reserve(blocks).then(|| Room { overlays, log: log() })
    }

    /// Whether a thread of the store's own commits what is queued.
    pub(crate) fn has_committer(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| !worker.is_stopped())
    }

    pub(crate) fn wake_apply(&self) {
        if let Some(worker) = &self.worker {
            worker.wake_apply();
        }
    }

    /// The same for the records of one step, which get room together or wait together: two steps of which each holds what the
    /// other one waits for would wait for ever.
    pub(crate) async fn admit_step(
        &self,
        records: usize,
        memory_bytes: usize,
        blocks: u32,
    ) -> Result<Room<'_>> {
        let attempt = || self.try_admit(records, memory_bytes, blocks);
        if !self.committer.suits(blocks) {
            uninterrupted(self.prepare_for_step(blocks))?;
        }
        loop {
            if let Some(room) = attempt() {
                if self.wants_apply() {
                    match &self.worker {
                        Some(worker) => worker.wake_apply(),
                        None if self.is_nearly_full() => {
                            if self.wants_log() {
                                uninterrupted(self.prepare_log(0))?;
                            }
                            uninterrupted(self.apply_fullest())?;
                        }
                        None => {}
                    }
                }
                return Ok(room);
            }
            self.check_writable()?;
            match &self.worker {
                Some(worker) => {
                    // One record never needs more than the other half.
                    let _waiting = (records > 1).then(|| self.admission.wait());
                    worker.wake_apply();
                    worker.wake_grow();
                    let waited = self
                        .committer
                        .moved
                        .wait_until(|| self.check_writable().err().map(Err).or_else(|| attempt().map(Ok)));
                    return waited.await;
                }
                None => {
                    if self.wants_log() {
                        uninterrupted(self.prepare_log(0))?;
                    }
                    uninterrupted(self.apply_all())?;
                    // What is missing now another thread holds. It queues it, and then there is something to apply, or gives it back.
                    let is_applied =
                        || self.tablets.all().iter().all(|tablet| tablet.first_unapplied().is_none());
                    let waited = self.committer.moved.wait_until(|| {
                        let refused = self.check_writable().err().map(Err);
                        let room = || attempt().map(|room| Ok(Some(room)));
                        refused.or_else(room).or_else(|| (!is_applied()).then_some(Ok(None)))
                    });
                    if let Some(room) = waited.await? {
                        return Ok(room);
                    }
                }
            }
        }
    }

    /// Whether an apply should run: overlays or log are half full, or a step waits that may need more than the other half.
    pub(crate) fn wants_apply(&self) -> bool {
        self.admission.is_waited_for()
            || self.admission.fill_permille() >= 500
            || self.log_fill_permille() >= 500
    }

    fn is_nearly_full(&self) -> bool {
        self.admission.fill_permille() >= 700 || self.log_fill_permille() >= 700
    }

    pub(crate) fn log_fill_permille(&self) -> usize {
        self.committer.fill_permille()
    }

    /// Claims space, making room where there is none: pending frees, applies, growth, rewriting of packed runs.
    ///
    /// # Errors
    /// [`Error::Full`] where that did not help.
    pub(crate) async fn claim<T>(
        &self,
        attempt: impl Fn() -> std::result::Result<T, Shortage> + Send,
    ) -> Result<T> {
        if let Ok(claimed) = attempt() {
            return Ok(claimed);
        }
        self.streams.expire(self.now_ns());
        self.space.reclaim(self.committer.named_superblock());
        // One makes room for all: whoever waited for the turn asks again first.
        let _turn = self.room.take().await;
        let mut claimed = attempt();
        for step in 0..2 {
            let Err(shortage) = &claimed else { break };
            if step == 0 {
                uninterrupted(self.free_what_is_dead())?;
            } else {
                uninterrupted(self.grow_for(shortage.needed))?;
            }
            claimed = attempt();
        }
        // The last resort: what is dead in packed runs.
        while claimed.is_err() && uninterrupted(self.tidy_for_room())? {
            claimed = attempt();
        }
        claimed.map_err(Error::from)
    }

    /// Applies what the overlays hold, so that the space of what was overwritten and deleted is reusable at once.
    pub(crate) async fn free_what_is_dead(&self) -> Result<()> {
        self.apply_all().await?;
        self.make_freed_reusable().await;
        Ok(())
    }

    /// Names the newest superblock in a flushed batch, and hands out what that makes reusable (R9).
    pub(crate) async fn make_freed_reusable(&self) {
        uninterrupted(self.committer.seal());
        self.drive().await;
        self.streams.expire(self.now_ns());
        self.space.reclaim(self.committer.named_superblock());
    }

    /// Sees to it that the queue is committed: by this thread where it may block and nobody else does, by the
    /// committer's thread, or, without one, here.
    pub(crate) async fn drive(&self) {
        if may_block() {
            uninterrupted(self.committer.lead(self.now_ns()));
            if !self.committer.has_work() {
                return;
            }
        }
        self.hand_over();
    }

    /// Gives what is queued to the committer's thread. A store that is being closed has none any more, or none yet: then
    /// who was there last commits, here. Somebody else who commits just now hands over in turn.
    pub(crate) fn hand_over(&self) {
        self.hand_over_many(1);
    }

    /// The same for so many writes.
    pub(crate) fn hand_over_many(&self, writes: usize) {
        match &self.worker {
            Some(worker) if !worker.is_stopped() => {
                if !is_put_off(self, writes) {
                    worker.wake_commit();
                }
            }
            _ => {
                uninterrupted(self.committer.lead(self.now_ns()));
            }
        }
    }
}

/// Runs a commit, an apply or a growth that a caller does itself to its end, on this thread.
///
/// A caller's future may be dropped wherever it waits. Dropped in the middle of these it would leave a batch numbered and never
/// written, or writes under way on blocks that are handed out again (R8).
pub(crate) fn uninterrupted<F: Future>(work: F) -> F::Output {
    block_on(work)
}

/// Room for the records of a step, from their admission until they are queued.
pub(crate) struct Room<'a> {
    // Dropped in this order: the second one tells whoever waits for room, who must find both.
    pub overlays: Admitted,
    pub log: LogRoom<'a>,
}

/// Blocks of the log that are reserved for a record. Given back where the record is not queued.
pub(crate) struct LogRoom<'a> {
    committer: &'a Committer,
    blocks: u32,
}

impl LogRoom<'_> {
    /// The record is queued; the committer gives the room back.
    pub(crate) fn keep(mut self) -> u32 {
        std::mem::take(&mut self.blocks)
    }
}

impl Drop for LogRoom<'_> {
    fn drop(&mut self) {
        if self.blocks > 0 {
            self.committer.unreserve(self.blocks);
            // Somebody may wait for just this room.
            self.committer.moved.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::AtomicBool as Flag;
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::by_hand::ByHand;

    /// Asks for room in the moment in which it is woken.
    struct Asks(Store, Flag);

    impl Wake for Asks {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0.0.try_admit(usize::MAX / 4, 1, 1).is_some(), Ordering::Relaxed);
        }
    }

    /// Found by the schedules: the log's room was given back, and told of, before that in the overlays, and who waited for both slept on.
    #[test]
    fn whoever_is_told_of_room_finds_it() {
        let store = ByHand::new().open().unwrap();
        let inner = &store.0;
        // So many have room alone only.
        let attempt = || inner.try_admit(usize::MAX / 4, 1, 1);
        let room = attempt().unwrap();
        let asks = Arc::new(Asks(store.clone(), Flag::new(false)));
        let waker = Waker::from(asks.clone());
        let mut waiting = pin!(inner.committer.moved.wait_until(attempt));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(room);
        assert!(asks.1.load(Ordering::Relaxed));
    }
}
