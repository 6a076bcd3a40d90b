//! The ticket of queued writes, whose places in the order of writes are fixed and that are not durable yet.

use std::sync::Arc;
use std::task::{Context, Poll};

use shoal_base::Lsn;
use shoal_base::task::may_block;
use shoal_common::error::Result;
use shoal_log::{Record, Waiting};

use crate::store::Store;

/// The ticket of writes with consecutive places in the order of writes. Dropping it forgets the answer, not the writes.
#[derive(Clone)]
pub struct Ticket {
    store: Store,
    last: Last,
    count: u32,
    before: Option<Lsn>,
}

/// The last of the writes.
#[derive(Clone)]
enum Last {
    Record(Arc<Record>),
    /// The write was durable already.
    Durable(Lsn),
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({}, durable: {})", self.count, self.is_durable())
    }
}

impl Ticket {
    pub(crate) fn new(store: Store, record: Arc<Record>) -> Self {
        Self { store, last: Last::Record(record), count: 1, before: None }
    }

    /// A write that was done before.
    pub(crate) fn done(store: Store, version: Lsn) -> Self {
        Self { store, last: Last::Durable(version), count: 1, before: None }
    }

    pub(crate) fn with_before(self, before: Option<Lsn>) -> Self {
        Self { before, ..self }
    }

    pub(crate) fn with_count(self, count: usize) -> Self {
        Self { count: count as u32, ..self }
    }

    /// The number of writes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// The previous version of the object of a single write, if its rules read it.
    #[must_use]
    pub fn before(&self) -> Option<Lsn> {
        self.before
    }

    /// Returns true if the writes survive a crash.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        match &self.last {
            Last::Record(record) => record.is_durable(self.store.0.log.committer.durable()),
            Last::Durable(_) => true,
        }
    }

    /// Returns the version of the last write once all are durable; until then, registers the context's task to be
    /// woken.
    ///
    /// # Errors
    /// [`crate::Error::Unknown`]: the device failed before the writes were known to be durable.
    pub fn poll_durable(&self, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        match &self.last {
            Last::Record(record) => self.store.0.log.committer.poll_durable(record, context),
            Last::Durable(version) => Poll::Ready(Ok(*version)),
        }
    }

    /// The versions of all writes in their order; `last` is the version of the last one.
    pub fn versions(&self, last: Lsn) -> impl ExactSizeIterator<Item = Lsn> + use<> {
        let count = self.count as usize;
        let before = last.0 - count as u64;
        (0..count).map(move |index| Lsn(before + 1 + index as u64))
    }

    /// Waits until the writes are durable; returns the version of the last one.
    ///
    /// # Errors
    /// As [`Self::poll_durable`].
    pub async fn durable(self) -> Result<Lsn> {
        let committer = &self.store.0.log.committer;
        match &self.last {
            // Threads that may not block have handed the record over.
            Last::Record(record) if may_block() => committer.drive_until(record).await,
            Last::Record(record) => committer.wait_durable(record).await,
            Last::Durable(version) => Ok(*version),
        }
    }
}

impl Store {
    /// Runs `work` as one turn of a thread that serves requests: the writes of this store that it queues share a batch. The committer's
    /// thread gets them at the end of the turn, or earlier if there are many. `work` must not wait for any of them.
    pub fn gather<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.log.committer.gather(work)
    }

    /// As [`Self::gather`], for a thread whose turn may serve one client. `work` returns the clients that wait for its writes. For one
    /// client the thread commits the writes itself, which saves two wake-ups, and blocks meanwhile; on a slow device, and
    /// while another thread commits, the committer's thread gets them nevertheless (`who_commits.rs` of `shoal-log`). So the caller
    /// polls its tickets afterwards, and answers the durable ones before it queues more.
    pub fn turn(&self, work: impl FnOnce() -> Waiting) {
        self.0.log.committer.turn(work);
    }
}
