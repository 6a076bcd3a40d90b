//! `shoal check --repair` makes the free space and the liveness of packed runs anew from the trees and applies the
//! log's records. It writes batches from after damage in the log again (`log_salvage.rs`), and restores objects that
//! the trees lost from the log (`tree_salvage.rs`). If one part fails, the repair says so and continues.

pub(crate) mod acknowledge;
pub(crate) mod check;
pub(crate) mod findings;
pub(crate) mod gaps;
pub(crate) mod hidden;
mod log_salvage;
mod tree_salvage;

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_base::TabletId;
use shoal_common::damaged_range;
use shoal_common::error::Result;
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::name;
use shoal_common::options::{Environment, OpenOptions};
use shoal_device::Device;
use shoal_image::losses::Losses;
use shoal_image::superblock::Superblock;
use shoal_image::{copies, space_image};
use shoal_space::FreeImage;
use shoal_tablets::checkpoint::publish::Publication;
use shoal_tablets::compaction::GivenUp;
use shoal_tablets::tablet::damage;
use shoal_tablets::tablet::tree_io::tree_of;
use shoal_tree::layers::page as layers_page;
use shoal_tree::layers::{Layers, Trees};

use crate::maintenance::stored_kind::StoredKind;
use crate::recovery::owners::Completeness;
use crate::recovery::read::Recovery;
use crate::recovery::rebuild::{image_of, rebuild_image};
use crate::recovery::recount::{Counted, recount_tablet};
use crate::recovery::repair::acknowledge::acknowledge_tablet;
use crate::recovery::repair::findings::Findings;
use crate::recovery::repair::hidden::HiddenObjects;
use crate::recovery::repair::log_salvage::{LogSalvage, read_log_salvage};
use crate::recovery::repair::tree_salvage::{Known, held_bytes_max, read_known, read_ring};
use crate::recovery::report::{CheckOptions, CheckReport, PROBLEMS_MAX};
use crate::store::Store;

/// The warning before the first write to a store with a cut log: from then on the batches after the damage are in
/// memory only.
const NOT_TWICE: &str = "repair: writing starts now; do not interrupt it: the records after the damage in the log are held in \
                         memory and written again, and an interrupted repair can only be repeated on an earlier copy";

/// Makes the store consistent again, with the `findings` of the preceding check: publishes a new image from the trees, and a new epoch
/// after the intact part of the log. If memory cannot hold the batches after the damage, it stops before it writes anything, unless
/// [`CheckOptions::in_part`] is set.
///
/// # Errors
/// As the device, and as an opening; the report has what was done until then.
pub(crate) async fn repair(
    device: Device,
    recovery: Recovery,
    open: OpenOptions,
    options: &CheckOptions,
    findings: Findings,
    report: &mut CheckReport,
) -> Result<()> {
    let held = match options.held_bytes {
        0 => held_bytes_max(open.cache_bytes),
        held => held,
    };
    repair_holding(held, device, recovery, open, options, findings, report).await
}

/// As [`repair`], holding at most about `held` bytes of each kind.
pub(crate) async fn repair_holding(
    held: usize,
    device: Device,
    recovery: Recovery,
    open: OpenOptions,
    options: &CheckOptions,
    mut findings: Findings,
    report: &mut CheckReport,
) -> Result<()> {
    // Read before anything is written: an opening overwrites the oldest batches.
    let found = read_ring(&recovery).await;
    let known = read_known(&recovery, &found, held, &findings.take_may_be_lost()).await;
    let salvage = read_log_salvage(&recovery, &found, held).await;
    drop(found);
    if salvage.is_full && !options.in_part {
        report.notes.push(format!(
            "repair: nothing was written: {} MiB of values after the damage in the log are the limit of memory, and the records \
             before them would be lost: repeat it with more --memory, or with --in-part to give them up",
            salvage.held_mib()
        ));
        return Ok(());
    }
    let cannot_be_repeated = recovery.is_cut && (salvage.has_write_batches() || known.has_any());
    let announce = options.before_writing.as_deref().filter(|_| cannot_be_repeated);
    // Consumes the recovery: its pool and its records are gone before the opening makes new ones.
    salvage.lost.iter().for_each(|records| report.were_lost(records));
    if options.acknowledge && !report.remembered.is_none() {
        report.notes.push(format!("acknowledged: losses of earlier repairs ({})", report.remembered));
    }
    if !findings.hold(&recovery.pool, &recovery.superblock).await {
        findings.renew(&recovery).await?;
    }
    let hidden = std::mem::take(&mut findings.hidden);
    let counted =
        write_anew(&device, recovery, &salvage, findings, announce, options.acknowledge, report).await?;
    let store = Store::open(device, open, Environment::default()).await?;
    let mut counts = Counts::new(hidden, counted);
    let mut restored = restore(&store, salvage, known, &mut counts, report).await;
    if restored.is_ok() && options.acknowledge {
        restored = acknowledge(&store, &mut counts, report).await;
    }
    let closed = store.close().await;
    if report.restored_count > 0 {
        let count = report.restored_count;
        report.notes.push(format!("repair: {count} object(s) were restored from the rest of the log"));
    }
    restored.and(closed)
}

/// Publishes a new image from the trees, the clocks and numbers of the batches after the damage, and the losses of the
/// log's damage: the following opening cuts the log. With `acknowledges`, earlier losses are forgotten. Returns what the
/// findings counted, if they hold.
async fn write_anew(
    device: &Device,
    recovery: Recovery,
    salvage: &LogSalvage,
    findings: Findings,
    announce: Option<&(dyn Fn(&str) + Send + Sync)>,
    acknowledges: bool,
    report: &mut CheckReport,
) -> Result<Vec<(Trees, Counted)>> {
    let Recovery { pool, mut superblock, layers, log, .. } = recovery;
    // The opening that follows writes the other slot before it writes to the log.
    let is_older = superblock.upgrade()?;
    let image = if findings.tablets.is_empty() {
        rebuild_image(device, &pool, &superblock, &layers, Completeness::AsFarAsTheyGo).await?
    } else {
        image_of(&superblock, findings.owners, Completeness::AsFarAsTheyGo)?
    };
    if let Some(announce) = announce {
        announce(NOT_TWICE);
    }
    let mut time = superblock.time(is_older);
    log.batches.iter().for_each(|batch| time.note(&batch.header));
    salvage.headers.iter().rev().for_each(|header| time.note(header));
    (superblock.clock, superblock.wall_high_ns) = time.into_parts();
    superblock.epoch = superblock.epoch.max(salvage.given.0);
    superblock.lsn_ceiling = superblock.lsn_ceiling.max(salvage.given.1);
    let before = superblock.number;
    superblock.number += 1;
    assert_ne!(
        copies::copies(before),
        copies::copies(superblock.number),
        "a repair writes over the newest superblock"
    );
    let remembered = if acknowledges { Losses::default() } else { superblock.losses };
    if !injected(Bug::LossesForgotten) {
        superblock.losses = remembered.and(report.losses, superblock.number);
    }
    for &kind in StoredKind::ALL {
        write_kind(kind, device, &mut superblock, &image, &layers).await?;
    }
    report.notes.push(format!(
        "repair: the free space was rebuilt from the trees ({} blocks free), published as superblock {} after {before}",
        image.free_blocks(),
        superblock.number
    ));
    let counted = findings.tablets.into_iter().map(|tablet| (tablet.trees, tablet.counted));
    Ok(counted.collect())
}

/// Writes the things of this kind anew that need no opening of the store.
///
/// # Errors
/// As the device.
async fn write_kind(
    kind: StoredKind,
    device: &Device,
    superblock: &mut Superblock,
    image: &FreeImage,
    layers: &[Arc<Layers>],
) -> Result<()> {
    match kind {
        StoredKind::SpaceImage => {
            let area = superblock.space.area;
            superblock.space = space_image::rewrite(device, superblock, image).await?;
            assert_ne!(superblock.space.area, area, "a repair writes over the published image (R10)");
        }
        StoredKind::LayerLists => {
            for (id, layers) in (0_u16..).map(TabletId).zip(layers) {
                if let Some(stored) = layers.stored {
                    layers_page::mend_copies(device, tree_of(superblock.identity, id), stored).await?;
                }
            }
        }
        // Everything that it names comes before it.
        StoredKind::Superblocks => {
            assert!(
                superblock.layout.is_sensible(superblock.device_blocks, superblock.features.incompatible),
                "a repair names areas that overlap: {:?}",
                superblock.layout
            );
            let flushes = device.counters().flushes;
            device.flush().await.ok()?;
            assert!(device.counters().flushes > flushes, "the repair is named before a flush");
            copies::write(device, superblock).await?;
        }
        // The objects that they hold are written again once the store is open: `restore` has those of the log.
        StoredKind::TreePages | StoredKind::Extents | StoredKind::Manifests => {}
        // `Counts::count` corrects their liveness.
        StoredKind::PackedRuns => {}
        // The opening cuts the log, and `do_again` writes the batches after the cut.
        StoredKind::LogBatches => {}
    }
    Ok(())
}

/// The hidden objects, and the trees of each tablet as they were counted last.
struct Counts {
    hidden: HiddenObjects,
    /// The counts of the check, by tablet; empty if they must not be used.
    found: Vec<Option<(Trees, Counted)>>,
    /// The trees with the right counts, and the hidden objects that were added.
    last: BTreeMap<TabletId, (Trees, u64)>,
}

impl Counts {
    fn new(hidden: HiddenObjects, found: Vec<(Trees, Counted)>) -> Self {
        Self { hidden, found: found.into_iter().map(Some).collect(), last: BTreeMap::new() }
    }

    /// Counts every tablet again that changed since it was counted; returns the number of packed runs that were counted
    /// wrong.
    async fn count(&mut self, store: &Store, report: &mut CheckReport) -> Result<usize> {
        let mut wrong = 0;
        for tablet in store.0.tablets.all() {
            let objects = self.hidden.of(tablet.id).map_or(0, |hidden| hidden.objects);
            let trees = tablet.view().trees.clone();
            let last = self.last.get(&tablet.id);
            if last.is_some_and(|(counted, hidden)| is_same(counted, &trees) && *hidden == objects) {
                continue;
            }
            let found = self.found.get_mut(usize::from(tablet.id.0)).and_then(Option::take);
            let known = found.filter(|(walked, _)| is_same(walked, &trees)).map(|(_, counted)| counted);
            let counted = recount_tablet(&store.0.checkpointer, tablet, objects, known).await;
            if counted.is_ok() {
                self.last.insert(tablet.id, (tablet.view().trees.clone(), objects));
            }
            wrong += noted(store, "the live values of packed runs could not be counted", counted, report)?;
        }
        Ok(wrong)
    }
}

/// Returns true if these are the same trees: published pages never change.
fn is_same(one: &Trees, other: &Trees) -> bool {
    one.base == other.base && one.layers == other.layers
}

/// Recounts, applies, and restores objects from the log. A failed part is noted, and the next one follows.
///
/// # Errors
/// [`Error::Poisoned`], once the device failed.
async fn restore(
    store: &Store,
    salvage: LogSalvage,
    known: Known,
    counts: &mut Counts,
    report: &mut CheckReport,
) -> Result<()> {
    let inner = &*store.0;
    // Before anything is applied: values that an apply finds dead are counted out.
    let recounted = counts.count(store, report).await?;
    if recounted > 0 {
        report.notes.push(format!("repair: the live values of {recounted} packed run(s) were counted again"));
    }
    // Before older records are looked at: an object that was written again needs none.
    let mut not_done = store.do_again(salvage, report).await?;
    not_done.extend(inner.not_replayed.iter().map(|key| (key.clone(), false)));
    apply(store, report).await?;
    store.salvage(known, &mut counts.hidden, report).await?;
    apply(store, report).await?;
    store.account_losses(not_done, report).await?;
    // Records that were applied above damaged layers found nothing to count out.
    counts.count(store, report).await?;
    report.notes.push(
        "repair: the log's records were applied if possible; damaged objects stay and answer with an error"
            .into(),
    );
    Ok(())
}

/// Gives up lost keys for good, tablet by tablet. The superblock remembers the losses before the first tablet gives up
/// anything: a crash in between may leave losses that did not happen, and none that nobody has counted.
///
/// # Errors
/// [`Error::Poisoned`](crate::Error::Poisoned), once the device failed.
async fn acknowledge(store: &Store, counts: &mut Counts, report: &mut CheckReport) -> Result<()> {
    remember_losses(store, counts.hidden.losses(), report).await?;
    let mut new_ranges = 0;
    for tablet in store.0.tablets.all() {
        let given_up = acknowledge_tablet(&store.0.checkpointer, tablet).await;
        let GivenUp { ranges, keys } = noted(store, "the losses could not be given up", given_up, report)?;
        if counts.hidden.of(tablet.id).is_none() {
            // Damage that the check did not meet.
            new_ranges += ranges.len() as u64;
        }
        if !ranges.is_empty() {
            counts.hidden.was_given_up(tablet.id);
        }
        keys.iter().for_each(|key| report.names_lost(name(key)));
        ranges.into_iter().for_each(|range| damage::add(&mut report.given_up, range, PROBLEMS_MAX));
    }
    remember_losses(store, new_ranges, report).await?;
    counts.count(store, report).await?;
    report.given_up.sort();
    for range in &report.given_up {
        report.notes.push(format!(
            "acknowledged: {} do not exist any more, except those that were written since",
            damaged_range::words(range)
        ));
    }
    Ok(())
}

/// Counts `count` objects that an acknowledgement gives up, in the report and in the superblock.
async fn remember_losses(store: &Store, count: u64, report: &mut CheckReport) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    report.losses.lost += count;
    report.notes.push(format!(
        "acknowledged: at most {count} object(s) are lost; a range whose objects nobody has counted counts as one"
    ));
    let losses = Some(Losses { lost: count, ..Losses::default() });
    store.0.checkpointer.publish(Publication { losses, ..Publication::default() }).await.map(|_| ())
}

/// Applies every tablet, one after the other, even where one fails.
async fn apply(store: &Store, report: &mut CheckReport) -> Result<()> {
    for tablet in store.0.tablets.all() {
        let applied = store.0.checkpointer.apply_tablet(tablet).await;
        noted(store, "the log's records could not be applied", applied, report)?;
    }
    Ok(())
}

/// The value of `result`. A failure becomes a note; only a failed device ends the repair.
fn noted<T: Default>(store: &Store, what: &str, result: Result<T>, report: &mut CheckReport) -> Result<T> {
    result.or_else(|error| {
        report.notes.push(format!("repair: {what}: {error}"));
        store.0.log.poison.check().map(|()| T::default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::testing::fixtures::Fixture;

    /// A failed part does not end the others; a failed device does.
    #[test]
    fn failed_part_stops_repair_only_on_device_failure() {
        let mut made = Fixture::new();
        made.publish();
        let store = made.open().unwrap();
        let mut report = CheckReport::default();
        assert_eq!(noted(&store, "counting", Ok(7), &mut report).unwrap(), 7);
        assert!(report.notes.is_empty());
        let failed = || Err(Error::Busy("a test"));
        assert_eq!(noted::<usize>(&store, "counting", failed(), &mut report).unwrap(), 0);
        assert_eq!(report.notes, ["repair: counting: the store is busy: a test; try again"]);
        store.0.log.poison.set("the device failed".into());
        let ended = noted::<usize>(&store, "counting", failed(), &mut report);
        assert!(matches!(ended, Err(Error::Poisoned(why)) if why == "the device failed"));
        assert_eq!(report.notes.len(), 2);
    }
}
