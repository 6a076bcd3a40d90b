//! An open store: what its verbs share, and the state that they keep between their steps. The verbs are `checkpoint`, `read`,
//! `write`, `maintenance` and `recovery`; no module below the store imports it.

pub(crate) mod closing;
pub(crate) mod copies;
pub(crate) mod expiring;
pub(crate) mod features;
#[cfg(test)]
mod format_tests;
pub(crate) mod free_space;
pub(crate) mod layout;
pub(crate) mod losses;
pub(crate) mod maintenance;
pub(crate) mod rate;
pub(crate) mod relocation;
pub(crate) mod stat;
pub(crate) mod superblock;
pub(crate) mod worker;

use std::sync::Arc;

use shoal_base::TabletId;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shoal_device::Device;
use shoal_pool::Pool;

use crate::common::damaged_range::DamagedRange;
use crate::common::error::{Error, Result};
use crate::common::event::Token;
use crate::common::key::ObjectKey;
use crate::common::options::{Environment, Tuning};
use crate::log::commit::Committer;
use crate::log::driver::uninterrupted;
use crate::log::expiry::ExpiryClock;
use crate::log::poison::Poison;
use crate::space::manager::{Shortage, SpaceManager};
use crate::space::own_space::OwnSpace;
use crate::store::layout::Layout;
use crate::store::losses::Losses;
use crate::store::maintenance::Maintenance;
use crate::store::superblock::Superblock;
use crate::store::worker::Worker;
use crate::tablet::admission::Admission;
use crate::tablet::damage::Met;
use crate::tablet::held::HeldStreams;
use crate::tablet::overlay::hash_of;
use crate::tablet::turns::Turns;
use crate::tablet::view::{Tablet, TabletMap};
use crate::tablet::watch::Watches;
use crate::tablet::write_counts::WriteCounts;

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
    /// Damaged ranges that were met since it was opened.
    pub met: Met,
    /// The newest durable superblock: who has it publishes the next one.
    pub publisher: Token<Superblock>,
    /// One apply at a time.
    pub applier: Token<()>,
    /// One writer at a time makes room where there is none.
    pub room: Token<()>,
    pub maintenance: Maintenance,
    /// The store's threads; none where callers do their work.
    pub worker: Option<Arc<Worker>>,
    /// Readers of long values, which hold the space of what they read for a bounded time (R16).
    pub streams: HeldStreams,
    /// How often keys were written, for who keeps values near.
    pub writes: WriteCounts,
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
    pub scrub_passes: AtomicU64,
    pub scrub_bytes: AtomicU64,
    pub scrub_problems: AtomicU64,
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
        self.committer.drive();
        self.streams.expire(self.now_ns());
        self.space.reclaim(self.committer.named_superblock());
    }
}
