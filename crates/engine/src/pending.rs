//! Writes whose place in the order is fixed and that are not durable yet, and the hand-over of many of them at once.
//!
//! A face that answers many requests a turn begins all its writes, hands them to the committer together
//! ([`Store::gather`]), and waits for each; so the writes of a turn share a batch.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Poll};

use shoal_base::Lsn;
use shoal_base::task::may_block;

use crate::error::Result;
use crate::overlay::Record;
use crate::store::{Inner, Store};

/// A write that has its place in the order of writes. Dropping this forgets the answer, not the write.
#[derive(Clone)]
pub struct Pending {
    store: Store,
    record: Arc<Record>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pending(durable: {})", self.is_durable())
    }
}

impl Pending {
    pub(crate) fn new(store: Store, record: Arc<Record>) -> Self {
        Self { store, record }
    }

    /// Whether the write survives a crash by now.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.record.is_durable(self.store.0.committer.durable())
    }

    /// Waits until the write is durable, and gives its version; the context's task is woken then.
    ///
    /// # Errors
    /// [`crate::Error::Unknown`]: the device failed before the write was known to be durable.
    pub fn poll_durable(&self, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        self.store.0.committer.poll_durable(&self.record, context)
    }

    /// Waits until the write is durable, and gives its version.
    ///
    /// # Errors
    /// As [`Self::poll_durable`].
    pub async fn durable(self) -> Result<Lsn> {
        let inner = &*self.store.0;
        if may_block() {
            inner.drive().await;
        }
        inner.committer.wait_durable(&self.record).await
    }
}

/// Writes that a thread gathers before it hands them over: with more the committer begins while the thread goes on.
const GATHERED_MAX: u32 = 256;

/// What this thread gathers.
#[derive(Clone, Copy)]
struct Gathering {
    /// Address of the store whose writes are gathered; zero: of none.
    store: usize,
    /// Writes since the last hand-over.
    writes: u32,
}

thread_local! {
    static GATHERING: Cell<Gathering> = const { Cell::new(Gathering { store: 0, writes: 0 }) };
}

/// Ends the gathering of a thread, also when its work panics: what was queued must be committed.
struct Gathered<'a> {
    inner: &'a Inner,
    before: Gathering,
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        if GATHERING.replace(self.before).writes > 0 {
            self.inner.committer.end_gathering();
            self.inner.hand_over();
        }
    }
}

impl Store {
    /// Runs `work`; the writes of this store that it queues are handed to the committer together when it ends, or when there
    /// are many, so that they share a batch. `work` must not wait for one of them.
    pub fn gather<T>(&self, work: impl FnOnce() -> T) -> T {
        let inner = &*self.0;
        let before = GATHERING.replace(Gathering { store: address(inner), writes: 0 });
        let _gathered = Gathered { inner, before };
        work()
    }
}

fn address(inner: &Inner) -> usize {
    std::ptr::from_ref(inner).addr()
}

/// Whether the hand-over of writes that were queued is left to the end of the gathering; a thread that may block may wait
/// for what it queued.
pub(crate) fn is_put_off(inner: &Inner, writes: usize) -> bool {
    let mut gathering = GATHERING.get();
    if may_block() || gathering.store != address(inner) {
        return false;
    }
    if gathering.writes == 0 {
        inner.committer.begin_gathering();
    }
    gathering.writes += writes as u32;
    let is_full = gathering.writes >= GATHERED_MAX;
    if is_full {
        gathering.writes = 0;
        inner.committer.end_gathering();
    }
    GATHERING.set(gathering);
    !is_full
}
