//! Runs commits on the thread that [`who_commits`] chooses.
//!
//! A driver continues until its own record is durable, and requests the commit of records queued by then. A thread that serves many
//! requests runs them in turns ([`Committer::turn`]): the writes of a turn share a batch.
//!
//! The writers of a batch write again when they have their answers. If far fewer others are queued, the committer's thread first
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

use super::Committer;
use super::who_commits::{Facts, Moment, QUICK_BATCH_NS_MAX, TURN_WRITES_MAX, Who, who_commits};
use crate::record::Record;

/// The committer checks its queue this often even without a wake-up.
const PERIOD: Duration = Duration::from_secs(10);
/// Pause between two tries of a seal that finds no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest wait of the committer's thread for the end of a turn. A turn of a dispatch thread rarely takes longer.
const TURN_WAIT_MAX: Duration = Duration::from_millis(1);

/// The clients that wait for the writes of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// One client, and nothing else needs the thread before its writes are durable.
    One,
    /// Several, or none: the thread can do other work while the device is busy.
    Several,
}

/// The turn that a thread runs.
#[derive(Clone, Copy)]
struct Turn {
    /// The address of the committer whose writes it collects; zero outside a turn.
    committer: usize,
    /// Writes since the last request.
    writes: usize,
    /// Values with extents.
    values: usize,
    /// Values with extents in the thread's last turn that had any.
    values_before: usize,
    /// The turn may end with [`Waiting::One`].
    may_be_one: bool,
}

thread_local! {
    static TURN: Cell<Turn> = const {
        Cell::new(Turn { committer: 0, writes: 0, values: 0, values_before: 0, may_be_one: false })
    };
}

/// Ends the turn of a thread, also after a panic: the queued writes must be committed.
struct TurnGuard<'a> {
    committer: &'a Committer,
    before: Turn,
    waiting: Waiting,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let turn = TURN.get();
        let values_before = if turn.values > 0 { turn.values } else { turn.values_before };
        TURN.set(Turn { values_before, ..self.before });
        if turn.writes > 0 {
            self.committer.leave_turn();
            let is_light = || turn.writes == 1 || !self.committer.has_extents();
            let who = self.committer.who_commits_turn(self.waiting, is_light);
            if who == Who::Caller && !thread::panicking() {
                run_to_end(self.committer.commit_one());
            }
            if self.committer.has_work() {
                self.committer.request_commit(1);
            }
        }
    }
}

/// The longest batch that delays a seal as a slow device's: 100 ms.
const SLOW_BATCH_NS_MAX: u64 = 100_000_000;

/// The time until a seal is due, `idle_ns` after the start of the last batch, which took `took_ns`; `None` if it is due.
///
/// The next write of a lone client comes right after its batch. A seal before that write would cost it the time of a batch, so a slow device
/// gets its seal later. A batch that a stall made long does not delay the blocks that wait for the seal (R9).
fn until_seal(idle_ns: u64, took_ns: u64, seal_after_ns: u64) -> Option<Duration> {
    let rest_ns = seal_after_ns.saturating_add(2 * took_ns.min(SLOW_BATCH_NS_MAX)).saturating_sub(idle_ns);
    (rest_ns > 0).then(|| Duration::from_nanos(rest_ns))
}

impl Committer {
    /// Ensures that the queued records are committed. `writes` is their number since the last call. Does not wait for
    /// the commit if the store has a thread that commits.
    pub fn request_commit(&self, writes: usize) {
        let facts = Facts::of_thread(self.has_thread());
        let moment = self.count_in_turn(writes, facts);
        match who_commits(moment, facts) {
            Who::Caller => run_to_end(self.commit_all()),
            Who::Committer => self.bell().into_iter().for_each(Bell::ring),
            Who::TurnEnd => {}
        }
    }

    /// Waits until `record`, which is queued, is durable; returns its number.
    ///
    /// # Errors
    /// [`Error::Unknown`](shoal_common::error::Error::Unknown) if the store was poisoned before.
    pub async fn drive_until(&self, record: &Record) -> Result<Lsn> {
        self.drive_record(record);
        self.wait_durable(record).await
    }

    fn drive_record(&self, record: &Record) {
        self.drive_while(|| !self.is_settled(record));
    }

    /// Commits the whole queue on this thread if it may block and no other thread is committing; otherwise requests the commit.
    pub fn drive_all(&self) {
        self.drive_while(|| self.has_work());
    }

    fn drive_while(&self, wants_more: impl Fn() -> bool) {
        let who = who_commits(Moment::Waits, Facts::of_thread(self.has_thread()));
        if who != Who::Caller || run_to_end(self.commit_while(wants_more)) {
            self.request_commit(1);
        }
    }

    /// Commits batches until the queue is empty, unless another thread does.
    pub async fn commit_all(&self) {
        self.commit_while(|| self.has_work()).await;
    }

    /// Commits batches while `wants_more`, unless another thread does. Returns true if records are left and no thread
    /// commits them. A caller that finds another thread committing has queued its record before, so that thread sees the
    /// record before it stops.
    async fn commit_while(&self, wants_more: impl Fn() -> bool) -> bool {
        while wants_more() {
            if !self.commit_one().await {
                return false;
            }
        }
        self.has_work()
    }

    /// Returns true if the store has a thread that commits.
    #[inline]
    pub fn has_thread(&self) -> bool {
        self.bell().is_some()
    }

    #[inline]
    fn bell(&self) -> Option<&Bell> {
        self.thread.bell.as_deref().filter(|bell| !bell.is_closed())
    }

    /// One turn of the committer's thread. Returns the longest time that it may sleep until a request, or `None` if
    /// there is more to do. `last_queued` are the write batches that the turn before found.
    ///
    /// With less than half of them queued, the threads that run the clients' requests on this core get their turn first: a completed
    /// batch wakes both sides, and a batch of few writes costs as much as one of many. Nothing waits if the core has no other work.
    pub fn thread_turn(&self, seal_after_ns: u64, last_queued: &mut usize) -> Option<Duration> {
        if self.queued() < *last_queued / 2 {
            thread::yield_now();
        }
        *last_queued = self.queued();
        let is_driven = *last_queued > 0 && !block_on(self.commit_one());
        if self.has_work() {
            // More writes are coming, and their request rings: a batch now would be a small one. If another thread
            // drives, polling would only take its core away.
            let can_wait = is_driven || self.thread.turns.load(Ordering::Relaxed) > 0;
            return can_wait.then_some(TURN_WAIT_MAX);
        }
        if !self.wants_seal() {
            return Some(PERIOD);
        }
        if let Some(rest) = until_seal(self.idle_ns(), self.last_took_ns(), seal_after_ns) {
            return Some(rest);
        }
        block_on(self.seal());
        // A caller that found the driver's place taken meanwhile relies on this thread.
        block_on(self.commit_all());
        (!self.has_work()).then_some(if self.wants_seal() { RETRY_AFTER } else { PERIOD })
    }

    /// Runs `work`, and requests the commit of the writes that it queues at its end, or earlier if there are many.
    /// `work` must not wait for any of them.
    pub fn gather<T>(&self, work: impl FnOnce() -> T) -> T {
        let _turn = self.enter_turn(false);
        plug(work)
    }

    /// As [`Self::gather`], but this thread commits the writes itself if [`who_commits`] returns so for the clients that
    /// `work` returns. Of more than [`TURN_WRITES_MAX`] it commits the last ones.
    pub fn turn(&self, work: impl FnOnce() -> Waiting) {
        let mut turn = self.enter_turn(true);
        turn.waiting = plug(work);
    }

    fn enter_turn(&self, may_be_one: bool) -> TurnGuard<'_> {
        let before = TURN.get();
        TURN.set(Turn { committer: self.address(), writes: 0, values: 0, may_be_one, ..before });
        TurnGuard { committer: self, before, waiting: Waiting::Several }
    }

    #[inline]
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn leave_turn(&self) {
        let before = self.thread.turns.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a turn ends once");
    }

    fn who_commits_turn(&self, waiting: Waiting, is_light: impl FnOnce() -> bool) -> Who {
        let one_client = waiting == Waiting::One;
        let is_quick = one_client && self.last_took_ns() <= QUICK_BATCH_NS_MAX;
        let facts = Facts::of_thread(self.has_thread());
        who_commits(
            Moment::TurnEnds,
            Facts { one_client, is_quick, is_light: is_quick && is_light(), ..facts },
        )
    }

    /// Returns true if this thread will probably commit the write of a value that it queues now, and no other thread
    /// commits: the bytes of the value can go to the device with the batch. A thread whose last turn had several values
    /// expects several again: they start at once, and their writes are done by the time that a batch names them.
    pub fn commits_next(&self) -> bool {
        let mut turn = TURN.get();
        let may_be_one = turn.committer == self.address() && turn.may_be_one;
        if may_be_one {
            turn.values += 1;
            TURN.set(turn);
        }
        let is_alone = || {
            let is_light = turn.writes == 0 && turn.values_before <= 1;
            may_be_one && self.who_commits_turn(Waiting::One, || is_light) == Who::Caller
        };
        (may_block() || is_alone()) && self.is_idle()
    }

    /// Counts writes that this thread queued in its turn, if it runs one of this committer. A thread that may block can wait for its
    /// writes, so it leaves none to the end of a turn.
    fn count_in_turn(&self, writes: usize, facts: Facts) -> Moment {
        let mut turn = TURN.get();
        if facts.may_block || !facts.has_committer || turn.committer != self.address() {
            return Moment::Queued;
        }
        if turn.writes == 0 {
            self.thread.turns.fetch_add(1, Ordering::Relaxed);
        }
        turn.writes += writes;
        let is_full = turn.writes >= TURN_WRITES_MAX;
        if is_full {
            turn.writes = 0;
            self.leave_turn();
        }
        TURN.set(turn);
        if is_full { Moment::TurnFull } else { Moment::QueuedInTurn }
    }
}

/// Runs a commit, an apply or a growth of a caller to its end, on this thread.
///
/// A caller's future may be dropped wherever it waits. Dropped in the middle of these it would leave a batch numbered and never
/// written, or writes under way on blocks that are handed out again (R8).
///
/// It is called in plain functions, not in a caller's future: each crate that awaits a put would compile the apply anew.
pub fn run_to_end<F: Future>(work: F) -> F::Output {
    block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_comes_after_the_next_write_of_a_lone_client_of_a_slow_device() {
        let after = |idle_ms: u64, took_ms: u64| {
            until_seal(idle_ms * 1_000_000, took_ms * 1_000_000, 10_000_000).map(|rest| rest.as_millis())
        };
        // The batch took 30 ms, and the answer is on its way to the client.
        assert_eq!(after(30, 30), Some(40));
        assert_eq!((after(5, 0), after(10, 0), after(70, 30)), (Some(5), None, None));
        assert_eq!((after(100, 60_000), after(210, 60_000)), (Some(110), None), "a stall");
        assert_eq!(until_seal(0, u64::MAX, u64::MAX), Some(Duration::from_nanos(u64::MAX)));
    }
}
