//! Chooses the thread that commits the queued records.
//!
//! A thread that may block ([`may_block`]) drives the commit itself, without a hand-off. All others request it from the
//! committer's thread, so no thread of a server ever drives. In a store without such a thread, or in one that is being
//! closed, callers commit. A driver continues until its own record is durable, and requests the commit of records queued by
//! then.
//!
//! A thread that serves many requests a turn gathers ([`Committer::gather`]): one request commits all its writes, and
//! they share a batch. A thread that has one client commits that client's writes itself, and saves two hand-offs
//! ([`Committer::gather_and_commit`]). Of several clients it receives the next commands while the device has a batch.
//!
//! The writers of a batch write again when they have their answers. Where far fewer others are queued, the committer's thread first
//! yields to the threads that send those answers on its core.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use shoal_base::Lsn;
use shoal_base::plug::plug;
use shoal_base::sync::atomic::Ordering;
use shoal_base::task::{block_on, may_block};
use shoal_common::error::Result;
use shoal_common::event::Bell;

use super::commit::Committer;
use crate::log::record::Record;

/// The committer checks its queue this often even without a wake-up.
const PERIOD: Duration = Duration::from_secs(1);
/// The longest wait of the committer for threads that gather writes. A turn of a dispatch thread is hardly ever longer.
const GATHERING_MAX: Duration = Duration::from_millis(1);
/// A thread that serves clients commits its writes itself if the batch before took at most this long: on a slow device the two
/// hand-offs cost nothing beside the flush, and a device that hangs must not take such a thread with it.
const QUICK_BATCH_NS_MAX: u64 = 500_000;
/// Writes that a thread gathers before it requests their commit: with more the committer begins while the thread continues.
const GATHERED_MAX: usize = 256;

/// The end of a gathering: the thread that commits its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtEnd {
    /// The committer's.
    RequestCommit,
    /// The one that gathered them, if the device is quick and no other thread drives.
    Commit,
}

/// The writes that a thread gathers.
#[derive(Clone, Copy)]
struct Gathering {
    /// The address of the committer for which the thread gathers; zero if it does not gather.
    committer: usize,
    /// Writes since the last request.
    writes: usize,
    /// Values with extents.
    values: usize,
    at_end: AtEnd,
}

thread_local! {
    static GATHERING: Cell<Gathering> =
        const { Cell::new(Gathering { committer: 0, writes: 0, values: 0, at_end: AtEnd::RequestCommit }) };
    /// Values with extents in the thread's last [`Committer::gather_and_commit`] that had any.
    static VALUES_BEFORE: Cell<usize> = const { Cell::new(0) };
}

/// Ends the gathering of a thread, also after a panic: the queued writes must be committed.
struct Gathered<'a> {
    committer: &'a Committer,
    before: Gathering,
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        let gathering = GATHERING.replace(self.before);
        if gathering.values > 0 {
            VALUES_BEFORE.set(gathering.values);
        }
        if gathering.writes > 0 {
            self.committer.end_gathering();
            // The device takes long for several values with extents: the thread receives others meanwhile.
            let commits = gathering.at_end == AtEnd::Commit
                && self.committer.is_quick()
                && (gathering.writes == 1 || !self.committer.has_extents());
            if commits && !thread::panicking() {
                run_to_end(self.committer.commit_one());
            }
            if self.committer.has_work() {
                self.committer.request_commit(1);
            }
        }
    }
}

impl Committer {
    /// Ensures that the queued records are committed. `writes` is their number since the last call. Does not wait for
    /// the commit if the store has a thread that commits.
    pub(crate) fn request_commit(&self, writes: usize) {
        match self.bell() {
            Some(bell) => {
                if !self.defer_request(writes) {
                    bell.ring();
                }
            }
            None => run_to_end(self.commit_all()),
        }
    }

    /// Waits until `record`, which is queued, is durable; returns its number.
    ///
    /// # Errors
    /// [`crate::Error::Unknown`] if the store was poisoned before.
    pub(crate) async fn drive_until(&self, record: &Record) -> Result<Lsn> {
        self.drive_record(record);
        self.wait_durable(record).await
    }

    fn drive_record(&self, record: &Record) {
        self.drive_while(|| !self.is_settled(record));
    }

    /// Sees to it that all that is queued is committed: here, where this thread may block and nobody else does it.
    pub(crate) fn drive_all(&self) {
        self.drive_while(|| self.has_work());
    }

    fn drive_while(&self, goes_on: impl Fn() -> bool) {
        if !may_block() || run_to_end(self.commit_while(goes_on)) {
            self.request_commit(1);
        }
    }

    /// Commits batches until the queue is empty, unless another thread does.
    pub(crate) async fn commit_all(&self) {
        self.commit_while(|| self.has_work()).await;
    }

    /// Commits batches as long as `goes_on`, unless another thread does. Returns true if records are left and no thread
    /// commits them. A caller that finds the driver's place taken has queued its record before, so the driver sees the
    /// record when it leaves its place.
    async fn commit_while(&self, goes_on: impl Fn() -> bool) -> bool {
        while goes_on() {
            if !self.commit_one().await {
                return false;
            }
        }
        self.has_work()
    }

    /// Returns true if the store has a thread that commits.
    pub(crate) fn has_thread(&self) -> bool {
        self.bell().is_some()
    }

    fn bell(&self) -> Option<&Bell> {
        self.thread.bell.as_deref().filter(|bell| !bell.is_closed())
    }

    /// One turn of the committer's thread. Returns the longest time that it may sleep until a request, or `None` if
    /// there is more to do. `last_queued` are the write batches that the turn before found.
    ///
    /// With less than half of them queued, the threads that run the clients' requests on this core get their turn first: a completed
    /// batch wakes both sides, and a batch of few writes costs as much as one of many. Nothing waits where the core has no other work.
    pub(crate) fn turn(&self, seal_after_ns: u64, last_queued: &mut usize) -> Option<Duration> {
        if self.queued() < *last_queued / 2 {
            thread::yield_now();
        }
        *last_queued = self.queued();
        let is_driven = *last_queued > 0 && !block_on(self.commit_one());
        if self.has_work() {
            // More writes are coming, and their request rings: a batch now would be a small one. If another thread
            // drives, polling would only take its core away.
            let can_wait = is_driven || self.thread.gathering.load(Ordering::Relaxed) > 0;
            return can_wait.then_some(GATHERING_MAX);
        }
        if !self.wants_seal() {
            return Some(PERIOD);
        }
        let idle_ns = self.idle_ns();
        if idle_ns < seal_after_ns {
            return Some(Duration::from_nanos(seal_after_ns - idle_ns));
        }
        block_on(self.seal());
        // A caller that found the driver's place taken meanwhile relies on this thread.
        block_on(self.commit_all());
        (!self.has_work()).then_some(PERIOD)
    }

    /// Runs `work`. The commit of the writes that it queues is requested at its end, or earlier if there are many.
    /// `work` must not wait for any of them.
    pub(crate) fn gather<T>(&self, work: impl FnOnce() -> T) -> T {
        let _gathered = self.begin_gathering(AtEnd::RequestCommit);
        plug(work)
    }

    /// As [`Self::gather`], but this thread commits the writes if `work` returns true, the device is quick, and no other
    /// thread drives. Of more than [`GATHERED_MAX`] it commits the last ones.
    pub(crate) fn gather_and_commit(&self, work: impl FnOnce() -> bool) {
        let _gathered = self.begin_gathering(AtEnd::Commit);
        if !plug(work) {
            GATHERING.set(Gathering { at_end: AtEnd::RequestCommit, ..GATHERING.get() });
        }
    }

    fn begin_gathering(&self, at_end: AtEnd) -> Gathered<'_> {
        let before = GATHERING.replace(Gathering { committer: self.address(), writes: 0, values: 0, at_end });
        Gathered { committer: self, before }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn end_gathering(&self) {
        let before = self.thread.gathering.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a gathering ends once");
    }

    fn is_quick(&self) -> bool {
        self.last_took_ns() <= QUICK_BATCH_NS_MAX
    }

    /// Returns true if this thread will probably commit the write of a value that it queues now, and no other thread
    /// commits: the bytes of the value can go to the device with the batch. A thread whose last turn had several values
    /// expects several again: they start at once, and their writes are done by the time that a batch names them.
    pub(crate) fn commits_next(&self) -> bool {
        let mut gathering = GATHERING.get();
        let gathers = gathering.committer == self.address() && gathering.at_end == AtEnd::Commit;
        if gathers {
            gathering.values += 1;
            GATHERING.set(gathering);
        }
        let is_alone = || gathering.writes == 0 && VALUES_BEFORE.get() <= 1 && self.is_quick();
        (may_block() || (gathers && is_alone())) && self.is_idle()
    }

    /// Returns true if the request of queued writes is left to the end of the gathering. A thread that may block can
    /// wait for its own writes.
    fn defer_request(&self, writes: usize) -> bool {
        let mut gathering = GATHERING.get();
        if may_block() || gathering.committer != self.address() {
            return false;
        }
        if gathering.writes == 0 {
            self.thread.gathering.fetch_add(1, Ordering::Relaxed);
        }
        gathering.writes += writes;
        let is_full = gathering.writes >= GATHERED_MAX;
        if is_full {
            gathering.writes = 0;
            self.end_gathering();
        }
        GATHERING.set(gathering);
        !is_full
    }
}

/// Runs a commit, an apply or a growth of a caller to its end, on this thread.
///
/// A caller's future may be dropped wherever it waits. Dropped in the middle of these it would leave a batch numbered and never
/// written, or writes under way on blocks that are handed out again (R8).
///
/// It is called in plain functions, not in a caller's future: each crate that awaits a put would compile the apply anew.
pub(crate) fn run_to_end<F: Future>(work: F) -> F::Output {
    block_on(work)
}
