//! The owners and the state that applies, compactions, publishes and growth work with.

use std::sync::Arc;

use arc_swap::ArcSwap;
use shoal_base::Clock;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_common::error::Result;
use shoal_common::event::{Bell, Token};
use shoal_common::options::Tuning;
use shoal_device::Device;
use shoal_image::layout::Layout;
use shoal_image::slot_watch::SlotWatch;
use shoal_image::superblock::Superblock;
use shoal_log::{Log, run_to_end};
use shoal_memtable::Memtable;
use shoal_memtable::admission::MemtableAdmission;
use shoal_pool::Pool;
use shoal_space_manager::{GrowthHistory, OwnSpace, SpaceManager};
use shoal_value::packed::run_blocks_max;

use crate::checkpoint::applier::Applier;
use crate::checkpoint::closing::Closing;
use crate::checkpoint::features::NamedFeatures;
use crate::checkpoint::pause::Pause;
use crate::checkpoint::quiet::Quiet;
use crate::checkpoint::rate::MoveLimits;
use crate::counters::OperationCounters;
use crate::tablet::tablets::Tablets;
use crate::tablet::tree_io::{PoolSink, depth_of};

/// The owners that a checkpoint works with, and its own state. The store builds it once.
pub struct Checkpointer {
    /// The device of the store.
    pub device: Device,
    /// The pool of its pages and units of values.
    pub pool: Pool,
    /// Changed by a growth of the cap.
    pub layout: ArcSwap<Layout>,
    /// The identity of the store: a part of every checksum.
    pub identity: [u8; 16],
    /// The settings that no user has to know.
    pub tuning: Tuning,
    /// The monotonic clock.
    pub clock: Arc<dyn Clock>,
    /// The last time that the superblocks on the device were compared with the newest. Only a heuristic: any memory order is fine.
    pub looked_ns: AtomicU64,
    /// The superblocks of this opening; `None` unless the device is shared.
    pub watch: Option<Arc<SlotWatch>>,
    /// The log.
    pub log: Arc<Log>,
    /// The free space, and the blocks that wait for readers.
    pub space: Arc<SpaceManager>,
    /// Runs of blocks that a user of the library reserved.
    pub own: Arc<OwnSpace>,
    /// The tablets.
    pub tablets: Arc<Tablets>,
    /// Counts of operations.
    pub counters: Arc<OperationCounters>,
    /// The newest durable superblock: its holder publishes the next one.
    pub publisher: Token<Superblock>,
    /// The features that the superblocks name.
    pub features: NamedFeatures,
    /// The turn of the one apply.
    pub applier: Applier,
    /// The token of the one growth of the file.
    pub grower: Token<()>,
    /// The rate at which the store fills, and the failures to grow.
    pub growth: GrowthHistory,
    /// Set while the store closes.
    pub closing: Closing,
    /// The limits of relocation.
    pub move_limits: MoveLimits,
    /// Whether little is written: noted by the threads that compact layers and move values.
    pub quiet: Quiet,
    /// The threads that finish the work of an apply; `None` if the apply does it.
    pub helpers: Option<Helpers>,
    /// True during a repair: a page that the device cannot read is lost and is not retried.
    pub gives_up: bool,
}

/// The threads that finish the work of an apply.
pub struct Helpers {
    /// Wakes the thread that compacts layers.
    pub compaction: Arc<Bell>,
    /// Wakes the thread that drops applied memtables: freeing the records would take a fifth of an apply's time.
    free: Arc<Bell>,
    /// The memtable that was applied last, until that thread drops it.
    applied: Mutex<Option<Arc<Memtable>>>,
    /// Wakes the thread that applies.
    apply: Arc<Bell>,
    /// The pause after the newest apply, until that thread takes it.
    pub paused: Mutex<Option<Pause>>,
    /// The time that an apply of that thread may take, in nanoseconds. Only that thread uses it.
    pub apply_time_ns: AtomicU64,
}

impl Helpers {
    /// Threads with these bells.
    pub fn new(compaction: Arc<Bell>, free: Arc<Bell>, apply: Arc<Bell>) -> Self {
        Self {
            compaction,
            free,
            applied: Mutex::default(),
            apply,
            paused: Mutex::default(),
            apply_time_ns: AtomicU64::new(0),
        }
    }

    /// Returns true on the thread that applies.
    pub(crate) fn is_applier(&self) -> bool {
        self.apply.is_of_this_thread()
    }

    /// Passes a pause to the thread that applies. An earlier one that is still queued is over.
    pub(crate) fn leave_pause(&self, pause: Pause) {
        let before = self.paused.lock().replace(pause);
        self.apply.ring();
        drop(before);
    }

    /// Queues a memtable to be dropped. Drops the previous one first if it is still queued.
    pub(crate) fn leave(&self, memtable: Arc<Memtable>) {
        let before = self.applied.lock().replace(memtable);
        self.free.ring();
        drop(before);
    }

    /// Drops the queued memtable.
    pub fn drop_applied(&self) {
        let applied = self.applied.lock().take();
        drop(applied);
    }
}

impl Checkpointer {
    /// The places of everything, as of the newest growth of the cap.
    pub fn layout(&self) -> Layout {
        **self.layout.load()
    }

    /// Limit on the blocks of a new packed run.
    pub(crate) fn run_blocks_max(&self) -> u32 {
        run_blocks_max(&self.tuning, self.space.withheld())
    }

    /// A sink for the pages of an apply or a compaction.
    pub fn page_sink(&self) -> PoolSink<'_> {
        PoolSink::new(&self.pool, &self.space, &self.counters, self.tuning.apply_bytes_in_flight)
    }

    /// The memtables that decide whether background work has time to read within the budget of the pool. Without threads there is no
    /// background work: a caller waits for the apply.
    pub(crate) fn pacing(&self) -> Option<&MemtableAdmission> {
        (self.helpers.is_some() && !self.closing.is_begun()).then_some(&*self.tablets.admission)
    }

    /// Writes of values that an apply may have in flight.
    pub(crate) fn home_writes_in_flight(&self) -> usize {
        depth_of(&self.pool, self.pacing())
    }

    /// Measures whether the store is quiet.
    pub(crate) fn note_writes(&self) {
        let extents = self.counters.extent_blocks_written.load(Ordering::Relaxed);
        self.quiet.note(self.now_ns(), self.log.committer.counters().log_blocks + extents);
    }

    /// The time of the store's clock in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Lends the room that the newest apply reserved for a pause, on this thread; `is_over` stops it early.
    pub fn pause(&self, is_over: impl Fn() -> bool) {
        let Some(pause) = self.helpers.as_ref().and_then(|helpers| helpers.paused.lock().take()) else {
            return;
        };
        let began_ns = self.now_ns();
        pause.run(|| is_over() || self.closing.is_begun(), || self.log.committer.moved.notify());
        OperationCounters::add(&self.counters.paused_ns, self.now_ns().saturating_sub(began_ns));
    }

    /// Applies one tablet's memtables, so that the space that this frees is reusable at once.
    pub async fn free_by_an_apply(&self) -> Result<()> {
        self.apply_fullest().await?;
        self.make_freed_reusable().await;
        Ok(())
    }

    /// Applies all memtables, so that the space of overwritten and deleted values is reusable at once.
    pub async fn free_what_is_dead(&self) -> Result<()> {
        self.apply_all().await?;
        self.make_freed_reusable().await;
        Ok(())
    }

    /// Names the newest superblock in a flushed batch, and makes the blocks that it freed reusable (R9).
    pub async fn make_freed_reusable(&self) {
        run_to_end(self.log.committer.seal());
        self.log.committer.drive_all();
        self.limit_snapshots();
        self.tablets.held_streams.expire(self.now_ns());
        self.space.reclaim(self.log.committer.named_superblock());
    }
}
