//! An open store: the state that its verbs share. The verbs are `read`, `write`, `maintenance` and `recovery`; no
//! module below the store imports it.

pub(crate) mod background;
pub(crate) mod census;
pub(crate) mod expiring;
pub(crate) mod free_space;
pub(crate) mod last_backup;
pub(crate) mod log_facts;
pub(crate) mod shared_steps;
pub(crate) mod space_plan;
pub(crate) mod standstill;
pub(crate) mod stat;
#[cfg(test)]
mod stat_tests;
pub(crate) mod threads;

use std::sync::Arc;
use std::time::Duration;

use shoal_base::TabletId;
use shoal_base::list::DamagedRange;
use shoal_base::sync::atomic::{AtomicBool, Ordering};
use shoal_base::sync::{Mutex, pause};
use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::key::ObjectKey;
use shoal_common::options::{Environment, Tuning};
use shoal_device::Device;
use shoal_image::copies;
use shoal_image::layout::Layout;
use shoal_image::losses::Losses;
use shoal_log::{Log, run_to_end};
use shoal_memtable::read_cache::ReadCache;
use shoal_pool::Pool;
use shoal_space_manager::{OwnSpace, Shortage, SpaceManager};
use shoal_tablets::checkpoint::checkpointer::Checkpointer;
use shoal_tablets::checkpoint::publish::Publication;
use shoal_tablets::counters::OperationCounters;
use shoal_tablets::gc::relocate::Relocator;
use shoal_tablets::tablet::tablets::Tablets;
use shoal_value::ManifestCache;

use crate::bucket::Buckets;
use crate::store::background::Maintenance;
use crate::store::last_backup::BackupNote;
use crate::store::log_facts::LogFacts;
use crate::store::shared_steps::SharedSteps;

/// A write that finds too few blocks waits this often, for this time, if readers hold enough freed ones: a view that a task only
/// looks at is gone in a moment, and its blocks are no reason to refuse the write.
const READERS_AWAITED: u32 = 10;
const READER_PAUSE: Duration = Duration::from_millis(1);
/// Most slices of layers that a write without enough blocks compacts before it is refused.
const COMPACTIONS_AWAITED: u32 = 64;
/// A write that finds too few blocks deletes expired objects this often at most: other writers may take the room first.
const REAPS_AWAITED: u32 = 64;

/// The progress of a write that looks for room.
#[derive(Default)]
struct RoomSearch {
    steps: u32,
    has_applied_all: bool,
}

/// An open store. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Inner>);

impl Store {
    /// The tablet of an object: damaged ranges are ranges of one tablet's keys.
    #[must_use]
    pub fn tablet_id(&self, key: &ObjectKey) -> TabletId {
        self.0.tablets.of(key).id
    }

    /// Returns true if objects of the store may have attributes. It never becomes false again.
    #[must_use]
    pub fn has_attributes(&self) -> bool {
        self.0.checkpointer.has_attributes()
    }

    /// The reason why the store accepts no more writes after a failure.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.0.log.poison.failure().map(str::to_owned)
    }

    /// Waits until the store accepts no more writes after a failure; returns the reason. Never completes before.
    pub async fn failed(&self) -> String {
        self.0.log.poison.failed().await
    }

    /// The damaged ranges of encoded keys met since the store was opened, at most about 64, with neighbours joined. A
    /// [listing](Store::list) of all keys finds all damaged ranges.
    #[must_use]
    pub fn damage_met(&self) -> Vec<DamagedRange> {
        self.0.tablets.met.all()
    }
}

/// The state that the verbs share: the log, the space, the tablets, the checkpointer, the store's own work, and the device,
/// pool and settings.
pub(crate) struct Inner {
    pub device: Device,
    pub pool: Pool,
    pub identity: [u8; 16],
    pub environment: Environment,
    pub tuning: Tuning,
    pub log: Arc<Log>,
    pub space: Arc<SpaceManager>,
    pub own: Arc<OwnSpace>,
    pub tablets: Arc<Tablets>,
    pub checkpointer: Arc<Checkpointer>,
    pub relocator: Relocator,
    pub maintenance: Maintenance,
    /// Losses of earlier repairs that no user has acknowledged.
    pub losses: Losses,
    /// Keys whose newest record a repair could not replay: an older superblock uses the record's blocks for something else.
    pub not_replayed: Vec<Vec<u8>>,
    pub closed: AtomicBool,
    /// The last backup, as it was noted.
    pub last_backup: Mutex<Option<BackupNote>>,
    pub counters: Arc<OperationCounters>,
    pub read_cache: ReadCache,
    /// The manifests of long values that were read.
    pub manifests: ManifestCache,
    /// The buckets with a record.
    pub buckets: Buckets,
    /// The memory that streams of long values share.
    pub shared_steps: SharedSteps,
    /// The log as the opening found it, for an archive.
    pub log_facts: LogFacts,
}

impl Inner {
    /// The state of an open store, with the environment of its checkpoints.
    pub(crate) fn new(
        checkpointer: Checkpointer,
        environment: Environment,
        maintenance: Maintenance,
        losses: Losses,
        not_replayed: Vec<Vec<u8>>,
    ) -> Self {
        let checkpointer = Arc::new(checkpointer);
        Self {
            device: checkpointer.device.clone(),
            pool: checkpointer.pool.clone(),
            identity: checkpointer.identity,
            environment,
            tuning: checkpointer.tuning.clone(),
            log: checkpointer.log.clone(),
            space: checkpointer.space.clone(),
            own: checkpointer.own.clone(),
            tablets: checkpointer.tablets.clone(),
            counters: checkpointer.counters.clone(),
            read_cache: ReadCache::new(checkpointer.tuning.read_cache_bytes),
            manifests: ManifestCache::new(&checkpointer.pool),
            shared_steps: SharedSteps::new(&checkpointer.pool),
            relocator: Relocator::new(checkpointer.clone()),
            checkpointer,
            maintenance,
            losses,
            not_replayed,
            closed: AtomicBool::new(false),
            last_backup: Mutex::new(None),
            buckets: Buckets::default(),
            log_facts: LogFacts::default(),
        }
    }

    /// Returns false if the device reads nothing at all: unreadable blocks are no damage then, and are forgotten. Asks
    /// the device only if it reported an unreadable block since it was asked last.
    pub(crate) async fn device_answers(&self) -> bool {
        if !self.pool.is_device_in_doubt() {
            return true;
        }
        let answers = copies::answers(&self.device).await;
        if answers {
            self.pool.doubt_device(false);
        } else {
            self.pool.forget_all_damage();
        }
        answers
    }

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
    /// [`Error::Closed`], [`Error::Poisoned`], [`Error::NoRoom`].
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        self.log.poison.check()?;
        self.log.committer.room.check()
    }

    /// As [`check_writable`](Self::check_writable), for a write that may wait: it looks for room itself if the store has no thread
    /// that does.
    pub(crate) async fn be_writable(&self) -> Result<()> {
        let checked = self.check_writable();
        if let Err(Error::NoRoom(_)) = checked
            && self.maintenance.worker.is_none()
        {
            run_to_end(self.look_for_room())?;
            return self.check_writable();
        }
        checked
    }

    /// Retries the writes that found no room: the superblock of the opening, then a batch of the log.
    pub(crate) async fn look_for_room(&self) -> Result<()> {
        if self.log.committer.room.awaits_opening() {
            self.checkpointer.publish(Publication::default()).await?;
        }
        self.log.committer.seal().await;
        Ok(())
    }

    /// The layout of the data file.
    pub(crate) fn layout(&self) -> Layout {
        self.checkpointer.layout()
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.environment.clock.monotonic_ns()
    }

    /// Claims space for a write. If there is none, makes some, also by deleting expired objects.
    ///
    /// # Errors
    /// [`Error::Full`] if there is still too little.
    pub(crate) async fn claim<T>(
        &self,
        attempt: impl Fn() -> std::result::Result<T, Shortage> + Send + Sync,
    ) -> Result<T> {
        let claimed = attempt();
        // A long value takes space for a long time before its record is committed: the file grows ahead of it.
        self.log.committer.sleepers.wake();
        let shortage = match claimed {
            Ok(claimed) => return Ok(claimed),
            Err(shortage) => shortage,
        };
        // Before snapshots are dropped, and packed runs are rewritten.
        if self.is_room_short() {
            run_to_end(self.reap_for_room(shortage.needed))?;
        }
        let mut reaps = 0;
        loop {
            match self.claim_from_free(&attempt).await {
                Err(Error::Full { needed, .. })
                    if reaps < REAPS_AWAITED && run_to_end(self.reap_for_room(needed))? =>
                {
                    reaps += 1;
                }
                Err(Error::Full { needed, available, .. }) => {
                    let cannot_grow = self.checkpointer.growth.cannot_grow();
                    return Err(Error::Full { needed, available, cannot_grow });
                }
                claimed => return claimed,
            }
        }
    }

    /// Claims space. If there is none, makes some without deleting objects: pending frees, applies, growth, rewriting of
    /// packed runs.
    ///
    /// # Errors
    /// [`Error::Full`] if there is still too little.
    pub(crate) async fn claim_from_free<T>(
        &self,
        attempt: impl Fn() -> std::result::Result<T, Shortage> + Send + Sync,
    ) -> Result<T> {
        if let Ok(claimed) = attempt() {
            return Ok(claimed);
        }
        self.tablets.held_streams.expire(self.now_ns());
        self.checkpointer.limit_snapshots();
        self.space.reclaim(self.log.committer.named_superblock());
        // One writer makes space for all: each waiting writer tries again once it has the token.
        let turn = self.maintenance.room.take().await;
        let mut claimed = attempt();
        let mut search = RoomSearch::default();
        while let Err(shortage) = &claimed {
            if !self.make_room(&mut search, shortage)? {
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
        drop(turn);
        if claimed.as_ref().is_err_and(|shortage| self.is_room_unread(shortage)) {
            return self.wait_for_archive(attempt).await;
        }
        claimed.map_err(|shortage| {
            self.maintenance.standstill.refused(shortage.needed);
            Error::from(shortage)
        })
    }

    /// Takes the next step towards enough room. Returns false if the last resort, the dead bytes of packed runs, yields none, and the
    /// device cannot grow. Other writers may take the room of a step before the caller does.
    fn make_room(&self, search: &mut RoomSearch, shortage: &Shortage) -> Result<bool> {
        search.steps += 1;
        OperationCounters::add(&self.counters.room_steps, 1);
        // An apply without room for its pages: the next steps make some.
        let or_full = |freed| match freed {
            Err(Error::Full { .. } | Error::NoRoom(_)) => Ok(true),
            freed => freed.map(|()| true),
        };
        match search.steps {
            // The write waits for this apply, which releases the reservation of its tablet's records. Holes are faster to fill.
            1 if self.space.holes().blocks() == 0 => {
                or_full(run_to_end(self.checkpointer.free_by_an_apply()))
            }
            _ if run_to_end(self.checkpointer.grow_for(shortage.needed))? => Ok(true),
            _ if search.steps > 1 && self.is_room_unread(shortage) => Ok(false),
            _ if !std::mem::replace(&mut search.has_applied_all, true) => {
                or_full(run_to_end(self.checkpointer.free_what_is_dead()))
            }
            ..=COMPACTIONS_AWAITED if run_to_end(self.checkpointer.compact_for_room())? => Ok(true),
            _ if self.drop_snapshots_for(shortage) => {
                run_to_end(self.checkpointer.make_freed_reusable());
                Ok(true)
            }
            _ => run_to_end(self.checkpointer.tidy_for_room()),
        }
    }

    /// Returns true if a write finds its room once the archive has read the values in it.
    fn is_room_unread(&self, shortage: &Shortage) -> bool {
        shortage.available + self.space.unread_blocks() >= shortage.needed
    }

    /// Claims space as the archive releases it.
    fn wait_for_archive<'a, T: 'a>(
        &'a self,
        attempt: impl Fn() -> std::result::Result<T, Shortage> + Send + Sync + 'a,
    ) -> Boxed<'a, Result<T>> {
        Box::pin(self.log.committer.moved.wait_until(move || {
            if let Err(error) = self.check_writable() {
                return Some(Err(error));
            }
            match attempt() {
                Err(shortage) if self.is_room_unread(&shortage) => None,
                claimed => Some(claimed.map_err(Error::from)),
            }
        }))
    }

    /// Drops the snapshots if they hold the blocks that a write lacks. Returns true if it did.
    fn drop_snapshots_for(&self, shortage: &Shortage) -> bool {
        let held = self.space.held_blocks(self.log.committer.named_superblock());
        let helps =
            held > 0 && shortage.available + held >= shortage.needed && self.tablets.snapshots.count() > 0;
        if helps {
            self.tablets.snapshots.drop_all("a write found no room without the space that it held");
        }
        helps
    }
}
