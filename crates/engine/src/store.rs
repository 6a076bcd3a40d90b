//! An open store: what its operations share. The operations themselves are in files of their own: `put.rs`, `get.rs`,
//! `delete.rs`, `list.rs`, `stream.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shoal_base::task::may_block;
use shoal_device::Device;
use shoal_pool::Pool;

use crate::admission::{Admission, Admitted};
use crate::background::Worker;
use crate::error::{Error, Result};
use crate::event::Baton;
use crate::key::ObjectKey;
use crate::layout::Layout;
use crate::log::commit::Committer;
use crate::options::{Environment, Tuning};
use crate::poison::Poison;
use crate::publish::Publisher;
use crate::space::{Shortage, SpaceManager};
use crate::tablet::{Tablet, TabletMap};

/// An open store. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Inner>);

/// What the operations share.
pub(crate) struct Inner {
    pub device: Device,
    pub pool: Pool,
    pub layout: Layout,
    pub identity: [u8; 16],
    pub environment: Environment,
    pub tuning: Tuning,
    pub tablets: TabletMap,
    pub committer: Committer,
    pub space: Arc<SpaceManager>,
    pub admission: Arc<Admission>,
    pub poison: Arc<Poison>,
    pub publisher: Baton<Publisher>,
    /// One apply at a time.
    pub applier: Baton<()>,
    /// One growth of the file at a time.
    pub grower: Baton<()>,
    /// The store's threads; none where callers do their work.
    pub worker: Option<Arc<Worker>>,
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
    pub applies: AtomicU64,
    pub pages_written: AtomicU64,
    pub home_blocks_written: AtomicU64,
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

    pub(crate) fn tablet_of(&self, key: &ObjectKey) -> &Arc<Tablet> {
        self.tablets.of_slot(key.slot())
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.environment.clock.monotonic_ns()
    }

    /// Waits for room in overlays and log for a record of `record_bytes` bytes; gives it with the blocks of the log
    /// that were reserved.
    pub(crate) async fn admit(
        &self,
        memory_bytes: usize,
        record_bytes: usize,
    ) -> Result<(Admitted, LogRoom<'_>)> {
        let blocks = Committer::blocks_of(record_bytes);
        let attempt = || {
            let admitted = self.admission.try_admit(memory_bytes)?;
            self.committer.reserve(blocks).then(|| (admitted, LogRoom { committer: &self.committer, blocks }))
        };
        loop {
            if let Some(room) = attempt() {
                if self.wants_apply() {
                    match &self.worker {
                        Some(worker) => worker.wake_apply(),
                        None if self.is_nearly_full() => self.apply_fullest().await?,
                        None => {}
                    }
                }
                return Ok(room);
            }
            self.check_writable()?;
            match &self.worker {
                Some(worker) => {
                    worker.wake_apply();
                    let waited = self
                        .committer
                        .moved
                        .wait_until(|| self.poison.check().err().map(Err).or_else(|| attempt().map(Ok)));
                    return waited.await;
                }
                None => self.apply_all().await?,
            }
        }
    }

    /// Whether an apply should run: overlays or log are half full.
    pub(crate) fn wants_apply(&self) -> bool {
        self.admission.fill_permille() >= 500 || self.log_fill_permille() >= 500
    }

    fn is_nearly_full(&self) -> bool {
        self.admission.fill_permille() >= 700 || self.log_fill_permille() >= 700
    }

    pub(crate) fn log_fill_permille(&self) -> usize {
        (self.committer.used_blocks() * 1000 / u64::from(self.layout.log_blocks)) as usize
    }

    /// Claims space, making room where there is none: pending frees, growth, applies.
    ///
    /// # Errors
    /// [`Error::Full`] where that did not help.
    pub(crate) async fn claim<T>(
        &self,
        attempt: impl Fn() -> std::result::Result<T, Shortage> + Send,
    ) -> Result<T> {
        let mut shortage = match attempt() {
            Ok(claimed) => return Ok(claimed),
            Err(shortage) => shortage,
        };
        for step in 0..3 {
            match step {
                0 => {
                    self.space.reclaim(self.committer.named_superblock());
                }
                1 => {
                    self.grow_for(shortage.needed).await?;
                }
                _ => {
                    self.apply_all().await?;
                    self.committer.seal().await;
                    self.drive().await;
                    self.space.reclaim(self.committer.named_superblock());
                }
            }
            match attempt() {
                Ok(claimed) => return Ok(claimed),
                Err(still) => shortage = still,
            }
        }
        Err(shortage.into())
    }

    /// Sees to it that the queue is committed: by this thread where it may block and nobody else does, by the
    /// committer's thread, or, without one, here.
    pub(crate) async fn drive(&self) {
        match &self.worker {
            Some(worker) if !may_block() => worker.wake_commit(),
            Some(worker) => {
                self.committer.lead(self.now_ns()).await;
                if self.committer.has_work() {
                    worker.wake_commit();
                }
            }
            None => {
                self.committer.lead(self.now_ns()).await;
            }
        }
    }
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
        }
    }
}
