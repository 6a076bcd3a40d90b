//! An open store: the state that its verbs share. The verbs are `checkpoint`, `read`, `write`, `maintenance` and
//! `recovery`; no module below the store imports it.

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
#[cfg(test)]
mod stat_tests;
pub(crate) mod superblock;
pub(crate) mod worker;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use shoal_base::TabletId;
use shoal_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shoal_base::sync::pause;
use shoal_device::Device;
use shoal_pool::Pool;

use crate::common::damaged_range::DamagedRange;
use crate::common::error::{Error, Result};
use crate::common::event::Token;
use crate::common::key::ObjectKey;
use crate::common::options::{Environment, Tuning};
use crate::log::driver::uninterrupted;
use crate::log::owner::Log;
use crate::space::manager::{Shortage, SpaceManager};
use crate::space::own_space::OwnSpace;
use crate::store::layout::Layout;
use crate::store::losses::Losses;
use crate::store::maintenance::Maintenance;
use crate::store::superblock::Superblock;
use crate::tablet::tablets::Tablets;
use crate::value::packed::run_blocks_max;

/// A write that finds too few blocks, while enough are freed that readers hold, waits so often and so long: a view that a task only
/// looks at is gone in a moment, and its blocks are no reason to refuse the write.
const READERS_AWAITED: u32 = 10;
const READER_PAUSE: Duration = Duration::from_millis(1);

/// An open store. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Inner>);

impl Store {
    /// The tablet of an object: damaged ranges are ranges of one tablet's keys.
    #[must_use]
    pub fn tablet_id(&self, key: &ObjectKey) -> TabletId {
        self.0.tablets.of(key).id
    }

    /// The damaged ranges of encoded keys met since the store was opened, at most about 64, with neighbours joined. A
    /// [listing](Store::list) of all keys finds all damaged ranges.
    #[must_use]
    pub fn damage_met(&self) -> Vec<DamagedRange> {
        self.0.tablets.met.all()
    }
}

/// The state that the verbs share: the log, the space, the tablets, the store's own work, and the device, pool and
/// settings.
pub(crate) struct Inner {
    pub device: Device,
    pub pool: Pool,
    /// Changed by a growth of the cap.
    pub layout: ArcSwap<Layout>,
    pub identity: [u8; 16],
    pub environment: Environment,
    pub tuning: Tuning,
    pub log: Log,
    pub space: Arc<SpaceManager>,
    pub own: OwnSpace,
    pub tablets: Tablets,
    pub maintenance: Maintenance,
    /// The newest durable superblock: its holder publishes the next one.
    pub publisher: Token<Superblock>,
    /// Losses of earlier repairs that no user has acknowledged.
    pub losses: Losses,
    /// True during a repair: a page that the device cannot read is lost, and is not tried again.
    pub gives_up: bool,
    /// Keys whose newest record a repair could not replay: an older superblock uses the record's blocks for something else.
    pub not_replayed: Vec<Vec<u8>>,
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
    /// Merges of layers that ended: into the base with their last slice, or among layers.
    pub merges: AtomicU64,
    /// Bytes of entries that merges of layers took, slices included.
    pub merged_bytes: AtomicU64,
    pub home_blocks_written: AtomicU64,
    pub extent_blocks_written: AtomicU64,
    pub growth_blocks_written: AtomicU64,
    pub moved_values: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub expired: AtomicU64,
    pub scrub_passes: AtomicU64,
    pub scrub_bytes: AtomicU64,
    pub scrub_problems: AtomicU64,
    /// The end of the last pass, in nanoseconds of the Unix epoch; 0: none ended.
    pub scrub_ended_ns: AtomicU64,
}

impl OperationCounters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

impl Inner {
    /// Checks that the store is open.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Checks that the store may be written.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`].
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        self.log.poison.check()
    }

    /// Where everything lies, as of the newest growth of the cap.
    pub(crate) fn layout(&self) -> Layout {
        **self.layout.load()
    }

    /// Blocks of a new packed run at most.
    pub(crate) fn run_blocks_max(&self) -> u32 {
        run_blocks_max(&self.tuning, self.space.reserve())
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.environment.clock.monotonic_ns()
    }

    /// Claims space. If there is none, makes some: pending frees, applies, growth, rewriting of packed runs.
    ///
    /// # Errors
    /// [`Error::Full`] if that did not help.
    pub(crate) async fn claim<T>(
        &self,
        attempt: impl Fn() -> std::result::Result<T, Shortage> + Send,
    ) -> Result<T> {
        if let Ok(claimed) = attempt() {
            return Ok(claimed);
        }
        self.tablets.held_streams.expire(self.now_ns());
        self.limit_snapshots();
        self.space.reclaim(self.log.committer.named_superblock());
        // One writer makes space for all: each waiting writer tries again once it has the token.
        let _turn = self.maintenance.room.take().await;
        let mut claimed = attempt();
        for step in 0.. {
            let Err(shortage) = &claimed else { break };
            if !self.make_room(step, shortage)? {
                break;
            }
            claimed = attempt();
        }
        for _ in 0..READERS_AWAITED {
            let Err(shortage) = &claimed else { break };
            if shortage.available + self.space.pending_blocks() < shortage.needed {
                break;
            }
            pause(READER_PAUSE);
            self.space.reclaim(self.log.committer.named_superblock());
            claimed = attempt();
        }
        claimed.map_err(Error::from)
    }

    /// One step after another until there is enough room; false where the last resort, what is dead in packed runs, gives none, and the
    /// device cannot grow. Other writers may take what a step made before the caller does.
    fn make_room(&self, step: u32, shortage: &Shortage) -> Result<bool> {
        match step {
            0 => uninterrupted(self.free_what_is_dead()).map(|()| true),
            _ if uninterrupted(self.grow_for(shortage.needed))? => Ok(true),
            _ if self.drop_snapshots_for(shortage) => {
                uninterrupted(self.make_freed_reusable());
                Ok(true)
            }
            _ => uninterrupted(self.tidy_for_room()),
        }
    }

    /// Drops the snapshots if they hold what a write lacks. Returns true if it did.
    fn drop_snapshots_for(&self, shortage: &Shortage) -> bool {
        let held = self.space.held_blocks(self.log.committer.named_superblock());
        let helps =
            held > 0 && shortage.available + held >= shortage.needed && self.tablets.snapshots.count() > 0;
        if helps {
            self.tablets.snapshots.drop_all("a write found no room without the space that it held");
        }
        helps
    }

    /// Drops snapshots that are too old, and all where less than a tenth of the space is free because of them (INV-36).
    pub(crate) fn limit_snapshots(&self) {
        let snapshots = &self.tablets.snapshots;
        if snapshots.count() == 0 {
            return;
        }
        snapshots.expire(self.now_ns());
        let whole = self.layout().data_blocks(self.layout().blocks_max);
        let free = self.space.available() + whole.saturating_sub(self.space.data_blocks());
        let held = self.space.held_blocks(self.log.committer.named_superblock());
        let tenth = whole / 10;
        if free < tenth && held > 0 && (free + held >= tenth || held >= free) {
            snapshots.drop_all("less than a tenth of the store's space was free because of what it held");
        }
    }

    /// Applies what the overlays hold, so that the space of what was overwritten and deleted is reusable at once.
    pub(crate) async fn free_what_is_dead(&self) -> Result<()> {
        self.apply_all().await?;
        self.make_freed_reusable().await;
        Ok(())
    }

    /// Names the newest superblock in a flushed batch, and makes the blocks that it freed reusable (R9).
    pub(crate) async fn make_freed_reusable(&self) {
        uninterrupted(self.log.committer.seal());
        self.log.committer.drive();
        self.limit_snapshots();
        self.tablets.held_streams.expire(self.now_ns());
        self.space.reclaim(self.log.committer.named_superblock());
    }
}
