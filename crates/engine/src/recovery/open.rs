//! Opens a store (`close.rs` closes it). Opening is recovery: it reads the newest superblock and the space image, then
//! replays the log from its tail into the memtables (R1, R2, R5, R10, R15).

use std::sync::Arc;

use arc_swap::ArcSwap;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::sync::atomic::AtomicU64;
use shoal_base::task::Boxed;
use shoal_base::{Lsn, Run};
use shoal_common::error::{Error, Result};
use shoal_common::event::{Bell, Token};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::slot_of_encoded;
use shoal_common::options::{Environment, OpenOptions, Tuning};
use shoal_device::Device;
use shoal_image::copies;
use shoal_image::features::UPLOADS;
use shoal_image::slot_watch::SlotWatch;
use shoal_image::superblock::{FORMAT_VERSION, Superblock};
use shoal_log::format::RecordKind;
use shoal_log::{
    ArchivedStart, BatchIndex, CommitStart, Committer, DeviceWatch, ExpiryClock, FoundBatch, FoundTime, Log,
    LogPlace, Numbered, Poison, Record, run_to_end,
};
use shoal_memtable::admission::{MemtableAdmission, records_max};
use shoal_memtable::hash_of;
use shoal_pool::Pool;
use shoal_space::{FreeImage, Space};
use shoal_space_manager::{DataBlocks, GrowthHistory, OwnSpace, SpaceManager, TREE_BLOCKS_PER_RECORD};
use shoal_tablets::checkpoint::applier::Applier;
use shoal_tablets::checkpoint::checkpointer::Checkpointer;
use shoal_tablets::checkpoint::closing::Closing;
use shoal_tablets::checkpoint::features::NamedFeatures;
use shoal_tablets::checkpoint::publish::CEILING_STEP;
use shoal_tablets::checkpoint::quiet::Quiet;
use shoal_tablets::checkpoint::rate::MoveLimits;
use shoal_tablets::growth::hold_room::{hold_room, make_holes};
use shoal_tablets::tablet::tablets::Tablets;
use shoal_tablets::tablet::withdraw::Memtables;
use shoal_tree::layers::Layers;
use shoal_value::{Entry, Home, adopting_runs, manifest_blocks, owned_runs};

use crate::growth::at_opening::raise_cap;
use crate::maintenance::workers;
use crate::recovery::read::Recovery;
use crate::recovery::unread::{keep_for_archive, mark_of};
use crate::store::background::Maintenance;
use crate::store::log_facts::LogFacts;
use crate::store::threads::Worker;
use crate::store::{Inner, Store};

impl Store {
    /// Opens the store on `device` and recovers from a crash. With [`OpenOptions::read_only`] nothing is written to the
    /// device: each such opening replays the log in memory again.
    ///
    /// # Errors
    /// [`Error::Unopenable`] where there is no store that this program can open; [`Error::Corrupt`] where something that
    /// was promised is damaged; as the device.
    pub fn open(
        device: Device,
        options: OpenOptions,
        environment: Environment,
    ) -> Boxed<'static, Result<Self>> {
        Box::pin(async move {
            let mut opened = if options.shared_device && !options.read_only {
                Recovery::read_shared(device, &options).await?.claim(&options).await?
            } else {
                Recovery::read(device, &options).await?
            };
            if let Some(blocks_max) = options.grow_to {
                let state = (&mut opened.superblock, &mut opened.image);
                raise_cap(&opened.device, state, blocks_max, options.read_only).await?;
            }
            // A repair may look for lost objects in the ring as it is.
            let may_move_log = !options.read_only
                && !options.accept_damaged_log
                && !opened.is_cut
                && opened.damage.is_empty();
            let store = opened.start(options, environment).await?;
            if may_move_log && store.0.check_writable().is_ok() {
                run_to_end(store.0.checkpointer.fit_log());
            }
            Ok(store)
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(worker) = &self.maintenance.worker {
            worker.stop();
        }
    }
}

/// The result of replaying the log.
struct Replayed {
    index: BatchIndex,
    time: FoundTime,
    /// The number of the next record.
    next_lsn: Lsn,
    /// The newest epoch of a batch; 0 without one.
    epoch: u64,
    /// The part of the log that an archive has not read.
    archived: Option<ArchivedStart>,
}

impl Recovery {
    /// Replays the log, starts a new epoch, and opens the store with the saved state of buckets that have separate space.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub(crate) async fn start(self, options: OpenOptions, environment: Environment) -> Result<Store> {
        let store = self.start_cold(options, environment).await?;
        store.restore_own_space().await?;
        Ok(store)
    }

    /// As [`start`](Self::start), without the saved state of the store: none of its trees is read.
    pub(crate) async fn start_cold(
        mut self,
        options: OpenOptions,
        environment: Environment,
    ) -> Result<Store> {
        self.tell_notes();
        // A store opened read-only keeps its version, and may have features that this program cannot write.
        let is_older = if options.read_only {
            self.superblock.version < FORMAT_VERSION
        } else {
            self.superblock.upgrade()?
        };
        let own = OwnSpace::new(options.own_space.clone())?;
        let space = recovered_space(&self.superblock, &self.image)?;
        let tablets = empty_tablets(&self.superblock, self.layers.clone(), &options)?;
        let mut not_replayed = Vec::new();
        let dropped = options.accept_damaged_log.then_some(&mut not_replayed);
        let flushes = self.device.counters().flushes;
        let archived = self.archived_start(&options);
        let replayed =
            self.replay_log((&tablets, &space), is_older, (options.read_only, archived), dropped).await?;
        let is_flushed = self.device.counters().flushes > flushes;
        assert!(
            is_flushed || options.read_only || injected(Bug::ReplayNotFlushed),
            "replayed records are served before a flush (R2)"
        );
        // Without an opening of its own, the superblock that was found stays the newest.
        let found = options.read_only.then(|| self.superblock.clone());
        let releases = make_holes_if_wanted(&self.device, &space, &options);
        let found_archive = self.superblock.archive;
        self.superblock.archive = mark_of(found_archive, archived);
        let (log, watch, worker) = self.open_log(replayed, &space, &options, &environment).await?;
        let losses = self.superblock.losses;
        let checkpointer = Checkpointer {
            device: self.device,
            pool: self.pool,
            layout: ArcSwap::from_pointee(self.superblock.layout),
            identity: self.superblock.identity,
            tuning: tuning_of(&options),
            looked_ns: AtomicU64::new(environment.clock.monotonic_ns()),
            clock: environment.clock.clone(),
            watch,
            log: Arc::new(log),
            space,
            own: Arc::new(own),
            tablets: Arc::new(tablets),
            counters: Arc::default(),
            features: NamedFeatures::of(&self.superblock),
            publisher: Token::new(found.unwrap_or(self.superblock)),
            applier: Applier::default(),
            grower: Token::default(),
            growth: GrowthHistory::default(),
            closing: Closing::new(environment.clock.clone()),
            move_limits: MoveLimits::new(options.pause_relocation, releases),
            quiet: Quiet::default(),
            helpers: worker.as_ref().map(|worker| worker.helpers()),
            gives_up: options.accept_damaged_log,
        };
        Memtables::attach_to(&checkpointer.log.committer, &checkpointer.tablets, &checkpointer.space);
        let maintenance = Maintenance { worker: worker.clone(), ..Maintenance::default() };
        maintenance.expiring.0.lock().bytes_max = checkpointer.tuning.deadlines_bytes_max;
        let mut inner = Inner::new(checkpointer, environment, maintenance, losses, not_replayed);
        inner.log_facts = archived.map(|start| LogFacts::of(found_archive, start)).unwrap_or_default();
        let inner = Arc::new(inner);
        inner.look_at_room();
        if options.read_only {
            return Ok(Store(inner));
        }
        start_epoch(inner, worker).await
    }

    fn tell_notes(&self) {
        for note in self.notes.iter().chain(&self.damage) {
            tracing::warn!("recovery: {note}");
        }
    }

    /// Puts the log's records back into the memtables, and flushes the values that they name.
    async fn replay_log(
        &mut self,
        (tablets, space): (&Tablets, &Arc<SpaceManager>),
        is_older: bool,
        (read_only, archived): (bool, Option<ArchivedStart>),
        mut dropped: Option<&mut Vec<Vec<u8>>>,
    ) -> Result<Replayed> {
        let unknown: Vec<Run> = self.image.incomplete().collect();
        let head = self.log.head;
        let mut index = BatchIndex::new(head);
        let mut time = self.superblock.time(is_older);
        let epoch = self.log.batches.last().map_or(0, |batch| batch.header.epoch);
        let mut unread = Vec::new();
        for batch in std::mem::take(&mut self.log.batches) {
            if let Some(archived) = &archived {
                unread.extend(self.unread_runs(&batch, archived.floor, tablets).await);
            }
            let next = LogPlace { position: batch.header.end(), ..head };
            index.push(batch.header.place(), next);
            time.note(&batch.header);
            replay(&self.device, &self.pool, batch, (tablets, space), &unknown, dropped.as_deref_mut())
                .await?;
        }
        if let Some(archived) = archived {
            // After the records that are not applied, which own their runs.
            keep_for_archive(space, archived.floor, unread);
        }
        // R2: the replayed records and values may be in the device's cache only.
        if !read_only && !injected(Bug::ReplayNotFlushed) {
            self.device.flush().await.ok()?;
        }
        let last = Lsn(head.first_lsn.0.saturating_sub(1)).max(self.superblock.durable_lsn);
        // R5: clients may have seen numbers up to the ceiling.
        let next_lsn = if injected(Bug::VersionsAgain) {
            self.superblock.log_tail.first_lsn
        } else {
            last.max(self.superblock.lsn_ceiling).next()
        };
        assert!(
            next_lsn > last && next_lsn > self.superblock.lsn_ceiling || injected(Bug::VersionsAgain),
            "a number is given twice (R5): {next_lsn}"
        );
        Ok(Replayed { index, time, next_lsn, epoch, archived })
    }

    /// Publishes the superblock of this opening, unless it is read-only. Returns the log for the following batches, the watch of a shared
    /// device, and the store's threads, which are not started.
    async fn open_log(
        &mut self,
        replayed: Replayed,
        space: &SpaceManager,
        options: &OpenOptions,
        environment: &Environment,
    ) -> Result<(Log, Option<Arc<SlotWatch>>, Option<Arc<Worker>>)> {
        let Replayed { mut index, time, next_lsn, epoch, archived } = replayed;
        let (device, superblock) = (&self.device, &mut self.superblock);
        let has_older = !options.read_only && copies::has_older(device).await && !injected(Bug::OldSlotStays);
        let is_shared = options.shared_device && !options.read_only;
        if is_shared {
            copies::check_newest(device, superblock).await?;
        }
        let expiry = time.open(environment.clock.clone(), Lsn(next_lsn.0 - 1));
        begin_epoch(superblock, self.log.head, self.is_cut, next_lsn, &expiry);
        assert!(
            superblock.epoch > epoch || injected(Bug::GhostsReplayed),
            "an opening has a new epoch (R1): {} after {epoch}",
            superblock.epoch
        );
        let mut no_room = None;
        if !options.read_only {
            hold_room(device, superblock, space);
            match copies::write(device, superblock).await {
                // The next publish is that of this opening: until then only reads are served.
                Err(Error::NoRoom(why)) if !has_older => {
                    superblock.number -= 1;
                    no_room = Some(why);
                }
                written => written?,
            }
        }
        if has_older {
            assert_eq!(superblock.version, FORMAT_VERSION, "an upgrade writes the version of this program");
            superblock.number += 1;
            copies::write(device, superblock).await?;
            tracing::info!(
                "the store was upgraded to format version {FORMAT_VERSION}; older programs cannot open it any more"
            );
        }
        let head = LogPlace { first_lsn: next_lsn, ..self.log.head };
        index.push_head(head);
        let poison = Arc::new(if options.read_only { Poison::read_only() } else { Poison::default() });
        let watch =
            is_shared.then(|| Arc::new(SlotWatch::new(device.clone(), superblock, no_room.is_none())));
        let bell = (options.background && !options.read_only).then(Arc::<Bell>::default);
        let start = CommitStart {
            ring: superblock.layout.ring(),
            seed: superblock.log_seed,
            epoch: superblock.epoch,
            head,
            index,
            tail: superblock.log_tail.position,
            prepared: superblock.log_prepared,
            ceiling: superblock.lsn_ceiling,
            superblock: superblock.number,
            batch_bytes_max: options.tuning.batch_bytes_max,
            expiry: expiry.clone(),
            watch: watch.clone().map(|watch| watch as Arc<dyn DeviceWatch>),
            archived,
            clock: environment.clock.clone(),
            bell: bell.clone(),
        };
        let committer = Committer::new(device.clone(), self.pool.clone(), start, poison.clone());
        if let Some(why) = no_room {
            committer.await_opening(&why);
        }
        Ok((Log { committer, poison, expiry }, watch, bell.map(Worker::new)))
    }
}

/// Writes the first batch of the epoch, which carries the number at which the log continues, and names the superblock (R9). Starts the
/// store's threads.
async fn start_epoch(inner: Arc<Inner>, worker: Option<Arc<Worker>>) -> Result<Store> {
    inner.log.committer.seal().await;
    inner.log.poison.check()?;
    if let Some(worker) = worker {
        workers::start(&worker, &inner)
            .map_err(|error| Error::Unopenable(format!("a thread could not be started: {error}")))?;
    }
    Ok(Store(inner))
}

/// The tuning, within the room of the cache.
fn tuning_of(options: &OpenOptions) -> Tuning {
    let move_bytes_max = options.tuning.move_bytes_max.min(options.cache_bytes / 8);
    Tuning { move_bytes_max, ..options.tuning }
}

/// Makes holes and returns true if the store releases free blocks to the device: a file system that does not allocate could not return their room.
fn make_holes_if_wanted(device: &Device, space: &Arc<SpaceManager>, options: &OpenOptions) -> bool {
    let inner = device.inner();
    let releases = !options.read_only
        && options.discard.unwrap_or_else(|| inner.can_grow())
        && (!inner.can_grow() || inner.hold_room(0..1).is_ok_and(|allocates| allocates));
    if releases {
        // R10: the log's records have taken their blocks.
        make_holes(device, space);
    }
    releases
}

/// Makes the superblock of this opening, whose batches start at `head` with the number `next_lsn`.
fn begin_epoch(
    superblock: &mut Superblock,
    head: LogPlace,
    is_cut: bool,
    next_lsn: Lsn,
    expiry: &ExpiryClock,
) {
    superblock.number += 1;
    // The omitted epoch marks for ever that records are missing before this one (`tree_salvage.rs`).
    superblock.epoch += if is_cut { 2 } else { 1 };
    superblock.epoch_position = head.position;
    (superblock.clock, superblock.wall_high_ns) = expiry.record(&Numbered(Lsn(next_lsn.0 - 1)));
    superblock.durable_lsn = Lsn(head.first_lsn.0 - 1);
    superblock.lsn_ceiling = Lsn(next_lsn.0 + CEILING_STEP);
    if superblock.log_tail.position == head.position {
        superblock.log_tail = head;
    }
    assert!(
        superblock.durable_lsn < next_lsn || injected(Bug::VersionsAgain),
        "the next number is durable already (R5): {next_lsn}"
    );
    assert!(superblock.lsn_ceiling >= next_lsn, "the next number is above the ceiling (R5): {next_lsn}");
}

/// The tablets as they were published, before the log's records are back in their memtables.
fn empty_tablets(
    superblock: &Superblock,
    layers: Vec<Arc<Layers>>,
    options: &OpenOptions,
) -> Result<Tablets> {
    let layout = superblock.layout;
    let records_max = records_max(&options.tuning, layout.blocks_max);
    let admission = MemtableAdmission::new(options.memtable_bytes(), layout.log_blocks, records_max);
    assert_eq!(layers.len(), superblock.tablets.len(), "each tablet has its layers");
    let tablets = Tablets::new(&superblock.tablets, layers, admission)?;
    if superblock.features.incompatible & UPLOADS != 0 {
        // Parts are not counted yet.
        tablets.all().iter().for_each(|tablet| *tablet.results_at_opening.lock() = None);
    }
    Ok(tablets)
}

/// The allocator over the published image, in which no area of the image itself is free (INV-37), nor a ring among the data (INV-38).
fn recovered_space(superblock: &Superblock, image: &FreeImage) -> Result<Arc<SpaceManager>> {
    let layout = superblock.layout;
    let areas: Vec<Run> = layout.areas_in_data().collect();
    let outside = |run: &Run| {
        run.end() > superblock.device_blocks
            || run.block < layout.data_first()
            || areas.iter().any(|area| area.overlaps(*run))
    };
    if let Some(run) = image.runs().find(outside) {
        let what = "the space image has a run outside of the data".into();
        return Err(Error::Corrupt { what, block: run.block });
    }
    assert_eq!(image.blocks_max(), layout.blocks_max, "the image has the geometry of the layout");
    let data = DataBlocks { blocks: layout.data_first()..superblock.device_blocks, areas };
    let tablets = superblock.tablets.len();
    Ok(SpaceManager::new(Space::from_image(image), tablets, layout.blocks_max, data))
}

/// Takes all of these runs out of the free space, or none: then the one that is not free.
fn take_all(space: &SpaceManager, runs: &[Run]) -> std::result::Result<(), (Run, String)> {
    for (at, &run) in runs.iter().enumerate() {
        if let Err(error) = space.allocator().take(run) {
            space.give_back(&runs[..at]);
            return Err((run, error.to_string()));
        }
    }
    Ok(())
}

/// Puts a batch's records back into the memtables, and takes their runs out of the free space (R10).
async fn replay(
    device: &Device,
    pool: &Pool,
    batch: FoundBatch,
    (tablets, space): (&Tablets, &Arc<SpaceManager>),
    unknown: &[Run],
    mut dropped: Option<&mut Vec<Vec<u8>>>,
) -> Result<()> {
    for (lsn, encoded) in (batch.header.first_lsn.0..).zip(batch.records) {
        let lsn = Lsn(lsn);
        let Some(tablet) = tablets.all().get(usize::from(encoded.tablet.0)) else {
            let what = format!("record {lsn} names tablet {}, which does not exist", encoded.tablet);
            return Err(Error::Corrupt { what, block: 0 });
        };
        let slot = slot_of_encoded(encoded.key());
        if tablets.of_slot(slot).id != encoded.tablet && !injected(Bug::RecordOfOtherTablet) {
            // R14: no reader would find it there, and its extents would stay with the wrong tablet.
            let what = format!("record {lsn} names tablet {}, which is not that of its key", encoded.tablet);
            let Some(dropped) = &mut dropped else { return Err(Error::Corrupt { what, block: 0 }) };
            tracing::error!("repair: {what}: it is not replayed");
            dropped.push(encoded.key().to_vec());
            continue;
        }
        let view = tablet.view();
        if lsn <= view.applied && !injected(Bug::ReplayedTwice) {
            continue;
        }
        let mut record = Record::recovered(encoded, lsn);
        if injected(Bug::DeletesNotReplayed) && record.kind() == RecordKind::Delete {
            continue;
        }
        let mut reserved = TREE_BLOCKS_PER_RECORD;
        if record.kind() == RecordKind::Put {
            let body = record.body();
            let (entry, inline) = Entry::decode(&body)
                .map_err(|_| Error::Corrupt { what: format!("the body of record {lsn}"), block: 0 })?;
            if entry.home == Home::Inline {
                let units = inline.len().div_ceil(VALUE_UNIT_BYTES);
                reserved += shoal_base::blocks_for(inline.len() as u64) + manifest_blocks(1, units);
            }
            own_runs((device, pool), &entry, &mut record).await;
        }
        // A group whose image is damaged has no free blocks, so none are taken from it (R19).
        let owned = if injected(Bug::ReplayTakesNothing) { &[] } else { record.owned() };
        let owned: Vec<Run> = owned.iter().flat_map(|&run| outside(run, unknown)).collect();
        if let Err((run, error)) = take_all(space, &owned) {
            let what = format!("record {lsn} owns blocks that something else owns too ({error})");
            let Some(dropped) = &mut dropped else { return Err(Error::Corrupt { what, block: run.block }) };
            tracing::error!("repair: {what}: it is not replayed");
            dropped.push(record.key().to_vec());
            continue;
        }
        if record.adopts() && record.kind() == RecordKind::Put && dropped.is_some() {
            take_lost_parts((device, pool), space, &mut record).await;
        }
        space.reserve_recovered(reserved);
        record.set_reserved_blocks(reserved);
        let hash = hash_of(record.key());
        let mut active = view.active.lock();
        let growth = view.active.insert(&mut active, Arc::new(record), hash, lsn);
        tablets.admission.take(1, growth.bytes);
        tablets.admission.release(growth.dropped.records, growth.dropped.bytes);
        space.release_reservation(growth.dropped.reserved_blocks);
    }
    Ok(())
}

/// Sets the runs that a replayed put owns.
async fn own_runs((device, pool): (&Device, &Pool), entry: &Entry, record: &mut Record) {
    let lsn = record.lsn();
    let (runs, damage) = if record.adopts() && !injected(Bug::AdoptedTwice) {
        adopting_runs(device, pool, entry, lsn).await
    } else {
        owned_runs(device, pool, entry, lsn).await
    };
    if let Some(error) = damage {
        tracing::warn!("recovery: the manifest of version {lsn} is damaged: {error}");
    }
    record.own(runs);
}

/// Takes the runs that an object adopts and that count as free: a repair rebuilt the free space, and the pages that named the parts are
/// lost. The object owns them at once (R44).
async fn take_lost_parts((device, pool): (&Device, &Pool), space: &SpaceManager, record: &mut Record) {
    let Ok((entry, _)) = Entry::decode(record.body_bytes()) else { return };
    let (runs, _) = owned_runs(device, pool, &entry, record.lsn()).await;
    let is_lost = |run: &Run| !record.owned().contains(run) && space.allocator().take(*run).is_ok();
    let lost: Vec<Run> = runs.into_iter().filter(is_lost).collect();
    record.own(lost);
}

/// The parts of `run` that lie in none of `unknown`, which are in ascending order and do not touch.
fn outside(run: Run, unknown: &[Run]) -> Vec<Run> {
    let mut parts = Vec::new();
    let mut at = run.block;
    let ends = std::iter::once(Run::new(run.end(), 1));
    for hole in unknown.iter().filter(|hole| hole.overlaps(run)).copied().chain(ends) {
        if at < hole.block {
            parts.push(Run::new(at, (hole.block - at) as u32));
        }
        at = at.max(hole.end());
    }
    parts
}

#[cfg(test)]
#[path = "open_tests.rs"]
mod open_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_blocks_are_left_out_of_a_run() {
        let run = Run::new(10, 10);
        assert_eq!(outside(run, &[]), [run]);
        assert_eq!(outside(run, &[Run::new(0, 10), Run::new(20, 5)]), [run]);
        assert_eq!(outside(run, &[Run::new(5, 7), Run::new(14, 2)]), [Run::new(12, 2), Run::new(16, 4)]);
        assert_eq!(outside(run, &[Run::new(18, 20)]), [Run::new(10, 8)]);
        assert!(outside(run, &[Run::new(0, 64)]).is_empty());
    }
}
