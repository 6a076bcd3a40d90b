//! Making and opening a store (`close.rs` closes it). Opening is recovery: newest superblock, space image, then the log from its tail back
//! into the overlays (engine.md; R1, R2, R5, R10, R15).

use std::sync::Arc;

use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::slot::SLOT_COUNT;
use shoal_base::sync::atomic::AtomicBool;
use shoal_base::{BLOCK_BYTES, Lsn, Run, TabletId};
use shoal_device::Device;
use shoal_device::blank::{DENSE_BLOCKS, look};
use shoal_pool::{Pool, PoolOptions};
use shoal_space::{FreeImage, Space};

use crate::admission::Admission;
use crate::background::Worker;
use crate::check::{Trees, rebuild_image};
use crate::close::Closing;
use crate::damage::Met;
use crate::entry::{Entry, Home};
use crate::error::{Error, Result};
use crate::event::Baton;
use crate::expiry::{FoundTime, Numbered, first_record};
use crate::features::Features;
use crate::grow::{Growth, zero};
use crate::layout::Layout;
use crate::log::commit::{CommitStart, Committer};
use crate::log::format::RecordKind;
use crate::log::read::{FoundBatch, FoundLog, read_log};
use crate::log::ring::{BatchIndex, Ring};
use crate::losses::Losses;
use crate::moving::Mover;
use crate::near::WriteCounts;
use crate::options::{Environment, FormatOptions, OpenOptions, TABLETS_MAX};
use crate::overlay::{Record, hash_of};
use crate::own_space::OwnSpace;
use crate::packed::{Totals, run_blocks_max};
use crate::plant::{Plant, planted};
use crate::poison::Poison;
use crate::publish::{CEILING_STEP, Publisher};
use crate::reap::Expiring;
use crate::scrub::ScrubCounters;
use crate::space::{SpaceManager, TREE_BLOCKS_PER_RECORD};
use crate::space_image;
use crate::store::{Inner, OperationCounters, Store};
use crate::stream::HeldStreams;
use crate::superblock::{self, FORMAT_VERSION, Found, LogPlace, Superblock, TabletRecord};
use crate::tablet::{Tablet, TabletMap};
use crate::tree::Root;
use crate::turns::Turns;
use crate::value::prepare::manifest_blocks;
use crate::value::read::{Located, verify_direct};
use crate::watch::Watches;

/// Frames that a pool has at least, however small the configured cache: an apply and a few reads need them.
const FRAMES_MIN: usize = 64;

/// Blocks of the log's ring that a new file gets: 8 MiB.
const PREPARED_FIRST: u32 = 2_048;
/// Blocks for objects that a new file gets, besides the least: 8 MiB.
const INITIAL_BLOCKS: u64 = 1_984;

impl Store {
    /// Whether `device` holds a store, as opposed to nothing but zeros.
    ///
    /// # Errors
    /// [`Error::Unopenable`] where it holds something foreign or of another version; as the device.
    pub async fn probe(device: &Device) -> Result<bool> {
        Ok(matches!(superblock::read_newest(device).await?, Found::Newest(_)))
    }

    /// Lays a new, empty store out on `device`, which must be blank. What it writes is durable when it returns.
    ///
    /// A file or a raw device is looked at in many places before ([`shoal_device::blank`]), a device in memory only where
    /// superblocks lie. [`FormatOptions::overwrite`] formats what is not blank, too.
    ///
    /// # Errors
    /// [`Error::NotBlank`] where the device holds something: the message names it; [`Error::Invalid`] for a layout that cannot be;
    /// [`Error::Unopenable`] where a file cannot get its size; as the device.
    pub async fn format(device: &Device, options: &FormatOptions, environment: &Environment) -> Result<()> {
        if !(1..=TABLETS_MAX).contains(&options.tablets) {
            return Err(Error::Invalid(format!("a store has 1 to {TABLETS_MAX} tablets")));
        }
        if !options.overwrite {
            refuse_what_is_there(device, environment).await?;
        }
        let layout = Layout::new(options)?;
        let can_grow = device.inner().can_grow();
        let least = layout.data_first() + 64;
        let prepared = match options.log_prepared {
            _ if !can_grow => layout.log_blocks,
            wanted => wanted.unwrap_or(PREPARED_FIRST).clamp(8, layout.log_blocks),
        };
        let device_blocks = if can_grow {
            let wanted = options.initial_blocks.unwrap_or(least + INITIAL_BLOCKS);
            let blocks = wanted.clamp(least, layout.blocks_max);
            // What is not prepared of the log takes no room yet.
            let extended =
                device.inner().extend(layout.data_first()).and_then(|()| device.inner().grow(blocks));
            extended.map_err(|error| {
                Error::Unopenable(format!("the data file could not get {blocks} blocks of 4 KiB: {error}"))
            })?;
            blocks
        } else {
            layout.blocks_max.min(device.blocks())
        };
        if device_blocks < least {
            return Err(Error::Invalid(format!(
                "the device has {device_blocks} blocks of 4 KiB; this layout needs at least {least}"
            )));
        }
        let zeroed = if can_grow { device_blocks } else { layout.data_first() };
        let behind_log = layout.log_first() + u64::from(layout.log_blocks);
        zero(device, 0, layout.log_first() + u64::from(prepared)).await?;
        zero(device, behind_log, zeroed).await?;
        if options.overwrite {
            // Nobody shall find what was there by what it left at the start or the end, and take the device for it.
            let blocks = device.blocks();
            zero(device, zeroed, DENSE_BLOCKS.min(blocks)).await?;
            zero(device, blocks.saturating_sub(DENSE_BLOCKS).max(zeroed), blocks).await?;
        }
        device.flush().await.ok()?;
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&environment.entropy.next_u64().to_le_bytes());
        identity[8..].copy_from_slice(&environment.entropy.next_u64().to_le_bytes());
        let mut superblock = Superblock {
            version: FORMAT_VERSION,
            features: Features::default(),
            identity,
            log_seed: environment.entropy.next_u64(),
            layout,
            number: 1,
            epoch: 0,
            epoch_position: 0,
            durable_lsn: Lsn::NONE,
            lsn_ceiling: Lsn::NONE,
            device_blocks,
            log_prepared: prepared,
            log_tail: LogPlace { position: 0, chain: 0, first_lsn: Lsn(1) },
            space: superblock::SpacePlace::default(),
            wall_high_ns: 0,
            clock: first_record(&*environment.clock),
            losses: Losses::default(),
            tablets: even_tablets(options.tablets),
        };
        superblock.space = space_image::write_first(device, &superblock).await?;
        device.flush().await.ok()?;
        superblock::write(device, &superblock).await
    }

    /// Opens the store on `device` and recovers what a crash left. With [`OpenOptions::read_only`] the device is not written:
    /// what a crash left in the log is recovered in memory, as often as the store is opened so.
    ///
    /// # Errors
    /// [`Error::Unopenable`] where there is no store that this program can open; [`Error::Corrupt`] where something that
    /// was promised is damaged; as the device.
    pub async fn open(device: Device, options: OpenOptions, environment: Environment) -> Result<Self> {
        let opened = Recovery::read(device, &options, &environment).await?;
        let store = opened.start(options, environment).await?;
        store.restore_own_space().await?;
        Ok(store)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(worker) = &self.worker {
            worker.stop();
        }
    }
}

/// Nothing, where `device` is blank as far as it was looked at.
///
/// # Errors
/// [`Error::NotBlank`]; as the device.
async fn refuse_what_is_there(device: &Device, environment: &Environment) -> Result<()> {
    let found = Store::probe(device).await;
    if matches!(found, Ok(true)) {
        return Err(Error::NotBlank("it holds a Shoal store already".into()));
    }
    if device.inner().may_hold_foreign() {
        let content = look(device, &*environment.entropy).await?;
        if !content.is_blank() {
            return Err(Error::NotBlank(content.to_string()));
        }
    }
    match found {
        Err(Error::Unopenable(_)) => Err(Error::NotBlank("it holds something".into())),
        found => found.map(drop),
    }
}

/// What to say where the log is damaged: which command does what about it.
fn damaged_log(device: &Device, damage: &str) -> String {
    let path = device.inner().path().map_or("FILE".into(), |path| path.display().to_string());
    format!(
        "the log: {damage}. Acknowledged writes may be lost, so the store is not opened. `shoal check --data {path}` \
         says what is damaged and changes nothing; `shoal check --data {path} --repair` does again what the log still \
         has, cuts the rest off and says what is lost"
    )
}

/// Tablets of equal shares of the slots.
fn even_tablets(count: u16) -> Vec<TabletRecord> {
    let border = |index: u16| u32::from(index) * u32::from(SLOT_COUNT) / u32::from(count);
    (0..count)
        .map(|index| TabletRecord {
            slot_first: border(index) as u16,
            slot_last: (border(index + 1) - 1) as u16,
            root: Root::EMPTY,
            applied: Lsn::NONE,
            totals: Totals { expiring: Some(0), ..Totals::default() },
        })
        .collect()
}

/// What recovery read, before anything is written.
pub(crate) struct Recovery {
    pub device: Device,
    pub pool: Pool,
    pub superblock: Superblock,
    pub log: FoundLog,
    /// Free runs of the published image.
    pub image: FreeImage,
    /// What is as it may be after a crash, and worth a line.
    pub notes: Vec<String>,
    /// What is damaged, and was coped with.
    pub damage: Vec<String>,
    /// Whether the log ends before something that was promised: what follows is lost, and trees may hold some of it.
    pub is_cut: bool,
}

impl Recovery {
    /// Reads superblock, space image and log.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub(crate) async fn read(
        device: Device,
        options: &OpenOptions,
        _environment: &Environment,
    ) -> Result<Self> {
        let superblock = match superblock::read_newest(&device).await? {
            Found::Newest(superblock) => *superblock,
            Found::Nothing => return Err(Error::Unopenable("the device holds no store: it is empty".into())),
        };
        if device.blocks() < superblock.device_blocks {
            return Err(Error::Unopenable(format!(
                "the device has {} blocks, but its store uses {}: it was truncated",
                device.blocks(),
                superblock.device_blocks
            )));
        }
        let frames = (options.cache_bytes / BLOCK_BYTES).max(FRAMES_MIN);
        let pool = Pool::new(device.clone(), PoolOptions::new(frames))
            .map_err(|error| Error::Unopenable(format!("the cache could not be made: {error}")))?;
        let (mut notes, mut damages) = (Vec::new(), Vec::new());
        let mut log = read_log(&device, &superblock).await?;
        let mut is_cut = log.damage.is_some();
        if let Some(damage) = log.damage.take() {
            if !options.accept_damaged_log {
                return Err(Error::Corrupt {
                    what: damaged_log(&device, &damage),
                    block: superblock.layout.log_first(),
                });
            }
            damages.push(format!(
                "the log was damaged, and an opening does not see what follows the damage: {damage}"
            ));
        }
        drop_unfinished(&device, &pool, &superblock, &mut log, &mut notes).await?;
        // An opening that cut the log may have ended before it wrote a batch: then only the trees show it.
        is_cut |= superblock.tablets.iter().any(|tablet| tablet.applied >= log.head.first_lsn);
        let image = match space_image::load(&device, &superblock).await {
            Ok(image) => image,
            Err(Error::Io(error)) if options.accept_damaged_log => {
                damages
                    .push(format!("the space image cannot be read ({error}) and was rebuilt from the trees"));
                rebuild_image(&device, &pool, &superblock, Trees::AsFarAsTheyGo).await?
            }
            Err(Error::Corrupt { what, block }) => {
                damages.push(format!(
                    "the space image is damaged ({what} at block {block}) and was rebuilt from the trees"
                ));
                {
                    let trees =
                        if options.accept_damaged_log { Trees::AsFarAsTheyGo } else { Trees::MustBeWhole };
                    rebuild_image(&device, &pool, &superblock, trees).await?
                }
            }
            Err(error) => return Err(error),
        };
        Ok(Self { device, pool, superblock, log, image, notes, damage: damages, is_cut })
    }

    /// Replays the log, begins a new epoch and starts the store.
    async fn start(self, options: OpenOptions, environment: Environment) -> Result<Store> {
        let Self { device, pool, mut superblock, log, image, notes, damage, is_cut } = self;
        // What is only read stays of its version, and may have features that this program cannot write.
        let is_older =
            if options.read_only { superblock.version < FORMAT_VERSION } else { superblock.upgrade()? };
        let has_older =
            !options.read_only && superblock::has_older(&device).await && !planted(Plant::OldSlotStays);
        for note in notes.iter().chain(&damage) {
            tracing::warn!("recovery: {note}");
        }
        let layout = superblock.layout;
        let overlay_bytes = options.overlay_bytes(layout.log_blocks);
        // A fraction of small devices: an apply's pages must find room beside the objects.
        let records_max = options.tuning.overlay_records_max.min((layout.blocks_max / 16).max(16) as usize);
        let filter_bits = records_max.min(overlay_bytes / 256).max(64) * 2;
        let admission = Admission::new(overlay_bytes, records_max);
        let own = OwnSpace::new(options.own_space)?;
        let space = recovered_space(&superblock, &image)?;
        let unknown: Vec<Run> = image.incomplete().collect();
        drop(image);
        let tablets = (0_u16..)
            .zip(&superblock.tablets)
            .map(|(id, tablet)| {
                let slots = (tablet.slot_first, tablet.slot_last);
                Arc::new(Tablet::new(TabletId(id), slots, tablet, filter_bits))
            })
            .collect();
        let tablets = TabletMap::new(tablets)?;
        let mut index = BatchIndex::new(log.head);
        let head = log.head;
        let mut time = FoundTime::of(&superblock, is_older);
        let mut last = Lsn(head.first_lsn.0.saturating_sub(1));
        for batch in log.batches {
            let next = LogPlace { position: batch.at.position + u64::from(batch.header.blocks), ..head };
            index.push(batch.at, next);
            time.note(&batch.header);
            replay(&device, &pool, batch, &tablets, &space, &unknown, &admission).await?;
        }
        last = last.max(superblock.durable_lsn);
        // R2: what was replayed may sit in the device's cache only.
        if !options.read_only && !planted(Plant::ReplayNotFlushed) {
            device.flush().await.ok()?;
        }
        // R5: numbers up to the ceiling may have been seen by somebody.
        let next_lsn = if planted(Plant::VersionsAgain) {
            superblock.log_tail.first_lsn
        } else {
            last.max(superblock.lsn_ceiling).next()
        };
        // Without an opening of its own, what was found stays the newest.
        let found = options.read_only.then(|| superblock.clone());
        superblock.number += 1;
        // The epoch that is left out says for ever that records are missing in front of this one (`salvage.rs`).
        superblock.epoch += if is_cut { 2 } else { 1 };
        superblock.epoch_position = head.position;
        let expiry = time.open(environment.clock.clone(), Lsn(next_lsn.0 - 1));
        (superblock.clock, superblock.wall_high_ns) = expiry.record(&Numbered(Lsn(next_lsn.0 - 1)));
        superblock.durable_lsn = Lsn(head.first_lsn.0 - 1);
        superblock.lsn_ceiling = Lsn(next_lsn.0 + CEILING_STEP);
        if superblock.log_tail.position == head.position {
            superblock.log_tail = head;
        }
        if !options.read_only {
            superblock::write(&device, &superblock).await?;
        }
        if has_older {
            superblock.number += 1;
            superblock::write(&device, &superblock).await?;
            tracing::info!(
                "the store was upgraded to format version {FORMAT_VERSION}; older programs cannot open it any more"
            );
        }
        index.push_head(LogPlace { first_lsn: next_lsn, ..head });
        let poison = Arc::new(if options.read_only { Poison::read_only() } else { Poison::default() });
        let start = CommitStart {
            ring: Ring { first: layout.log_first(), blocks: layout.log_blocks },
            seed: superblock.log_seed,
            epoch: superblock.epoch,
            head: LogPlace { first_lsn: next_lsn, ..head },
            index,
            tail: superblock.log_tail.position,
            prepared: superblock.log_prepared,
            ceiling: superblock.lsn_ceiling,
            superblock: superblock.number,
            batch_bytes_max: options.tuning.batch_bytes_max,
            expiry: expiry.clone(),
        };
        let worker = (options.background && !options.read_only).then(Worker::new);
        let mut tuning = options.tuning;
        tuning.move_bytes_max = tuning.move_bytes_max.min(options.cache_bytes / 8);
        let run_blocks_max = run_blocks_max(&tuning, space.reserve());
        let committer = Committer::new(device.clone(), pool.clone(), start, poison.clone());
        let inner = Arc::new(Inner {
            device,
            pool,
            layout,
            identity: superblock.identity,
            environment,
            tuning,
            run_blocks_max,
            tablets,
            committer,
            space,
            own,
            admission,
            poison,
            gives_up: options.accept_damaged_log,
            losses: superblock.losses,
            expiry,
            expiring: Expiring::default(),
            met: Met::default(),
            publisher: Baton::new(Publisher { superblock: found.unwrap_or(superblock) }),
            applier: Baton::new(()),
            grower: Baton::new(()),
            room: Baton::new(()),
            worker: worker.clone(),
            streams: HeldStreams::default(),
            mover: Mover::new(options.pause_moving),
            scrubbed: ScrubCounters::default(),
            discard: options.discard,
            writes: WriteCounts::default(),
            closing: Closing::default(),
            growth: Growth::default(),
            watches: Watches::default(),
            turns: Turns::default(),
            closed: AtomicBool::new(false),
            counters: OperationCounters::default(),
        });
        if options.read_only {
            return Ok(Store(inner));
        }
        // The first batch of the epoch: the log says where numbers go on, and names the superblock (R9).
        inner.committer.seal().await;
        if let Some(reason) = inner.poison.reason() {
            return Err(Error::Poisoned(reason.to_owned()));
        }
        if let Some(worker) = worker {
            worker
                .start(&inner)
                .map_err(|error| Error::Unopenable(format!("a thread could not be started: {error}")))?;
        }
        Ok(Store(inner))
    }
}

/// The allocator over the published image.
fn recovered_space(superblock: &Superblock, image: &FreeImage) -> Result<Arc<SpaceManager>> {
    let layout = superblock.layout;
    let outside = |run: &Run| run.end() > superblock.device_blocks || run.block < layout.data_first();
    if let Some(run) = image.runs().find(outside) {
        let what = "the space image has a run outside of the data".into();
        return Err(Error::Corrupt { what, block: run.block });
    }
    let data = layout.data_first()..superblock.device_blocks;
    let tablets = superblock.tablets.len();
    Ok(SpaceManager::new(Space::from_image(image), tablets, layout.blocks_max, data))
}

/// Puts a batch's records back into the overlays, and takes what they own out of the free space (R10).
async fn replay(
    device: &Device,
    pool: &Pool,
    batch: FoundBatch,
    tablets: &TabletMap,
    space: &Arc<SpaceManager>,
    unknown: &[Run],
    admission: &Admission,
) -> Result<()> {
    for (lsn, encoded) in (batch.header.first_lsn.0..).zip(batch.records) {
        let lsn = Lsn(lsn);
        let Some(tablet) = tablets.all().get(usize::from(encoded.tablet.0)) else {
            let what = format!("record {lsn} names tablet {}, which does not exist", encoded.tablet);
            return Err(Error::Corrupt { what, block: 0 });
        };
        let view = tablet.view();
        if lsn <= view.applied && !planted(Plant::ReplayedTwice) {
            continue;
        }
        let mut record = Record::recovered(encoded, lsn);
        if planted(Plant::DeletesNotReplayed) && record.kind() == RecordKind::Delete {
            continue;
        }
        let mut promised = TREE_BLOCKS_PER_RECORD;
        if record.kind() == RecordKind::Put {
            let body = record.body();
            let (entry, inline) = Entry::decode(&body)
                .map_err(|_| Error::Corrupt { what: format!("the body of record {lsn}"), block: 0 })?;
            if entry.home == Home::Inline {
                let units = inline.len().div_ceil(VALUE_UNIT_BYTES);
                promised += shoal_base::blocks_for(inline.len() as u64) + manifest_blocks(1, units);
            }
            record.own(owned_runs(device, pool, &entry, lsn).await);
        }
        // Of groups whose image is damaged nothing is free, so there is nothing to take (R19).
        let owned = if planted(Plant::ReplayTakesNothing) { &[] } else { record.owned() };
        for run in owned.iter().flat_map(|&run| outside(run, unknown)) {
            space.allocator().take(run).map_err(|error| Error::Corrupt {
                what: format!("record {lsn} owns blocks that something else owns too ({error})"),
                block: run.block,
            })?;
        }
        space.promise_recovered(promised);
        record.promise(promised);
        let hash = hash_of(record.key());
        let mut active = view.active.lock();
        let growth = view.active.insert(&mut active, Arc::new(record), hash, lsn);
        admission.recovered(1, growth.bytes);
        admission.release(growth.dropped.records, growth.dropped.bytes);
        space.release_promise(growth.dropped.promised);
    }
    Ok(())
}

/// The parts of `run` that lie in none of `unknown`, which are in ascending order and apart from each other.
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

/// All runs of an entry. Where its manifest is damaged only those of the manifest: the value is lost anyway.
pub(crate) async fn owned_runs(device: &Device, pool: &Pool, entry: &Entry, version: Lsn) -> Vec<Run> {
    match &entry.home {
        // A packed run is the tablet's.
        Home::Inline | Home::Packed { .. } => Vec::new(),
        Home::Extents { runs, .. } => runs.to_vec(),
        Home::Manifest { runs, .. } => match Located::find(device, pool, entry, version).await {
            Ok(located) => located.runs().iter().chain(runs).copied().collect(),
            Err(error) => {
                tracing::warn!("recovery: the manifest of version {version} is damaged: {error}");
                runs.to_vec()
            }
        },
    }
}

/// The last batch may be on the device although a value that it names is not: its flush never returned, so nothing in it
/// was acknowledged, and all of it is dropped. Later batches cannot exist.
async fn drop_unfinished(
    device: &Device,
    pool: &Pool,
    superblock: &Superblock,
    log: &mut FoundLog,
    notes: &mut Vec<String>,
) -> Result<()> {
    let Some(last) = log.batches.last() else { return Ok(()) };
    let mut complete = true;
    for (lsn, record) in (last.header.first_lsn.0..).zip(&last.records) {
        if Lsn(lsn) <= log.promised || record.kind == RecordKind::Delete {
            continue;
        }
        let body = record.bytes.slice(record.body as usize..);
        complete &= match Entry::decode(&body) {
            Ok((entry, _)) => is_whole(device, pool, superblock, &entry, Lsn(lsn)).await?,
            Err(_) => false,
        };
    }
    if !complete && !planted(Plant::UnfinishedKept) {
        notes.push(format!(
            "the last batch (from record {}) was not complete: it was never acknowledged",
            last.header.first_lsn
        ));
        log.head = last.at;
        log.head.first_lsn = last.header.first_lsn;
        log.batches.pop();
    }
    Ok(())
}

/// Whether every stored byte of an entry is there and right.
async fn is_whole(
    device: &Device,
    pool: &Pool,
    superblock: &Superblock,
    entry: &Entry,
    version: Lsn,
) -> Result<bool> {
    if entry.home == Home::Inline {
        return Ok(true);
    }
    match verify_direct(device, pool, superblock.device_blocks, entry, version).await {
        Ok(()) => Ok(true),
        Err(Error::Corrupt { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "open_tests.rs"]
mod by_hand_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_left_out_of_a_run() {
        let run = Run::new(10, 10);
        assert_eq!(outside(run, &[]), [run]);
        assert_eq!(outside(run, &[Run::new(0, 10), Run::new(20, 5)]), [run]);
        assert_eq!(outside(run, &[Run::new(5, 7), Run::new(14, 2)]), [Run::new(12, 2), Run::new(16, 4)]);
        assert_eq!(outside(run, &[Run::new(18, 20)]), [Run::new(10, 8)]);
        assert!(outside(run, &[Run::new(0, 64)]).is_empty());
    }
}
