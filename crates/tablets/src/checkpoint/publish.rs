//! Publishing: the only place that composes superblocks (R5, R9, R10, R15, R20).

use std::future::Future;
use std::sync::Arc;

use shoal_base::{Lsn, Run, TabletId};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_image::features::{LAYERS, UNSETTLED};
use shoal_image::layout::Layout;
use shoal_image::losses::Losses;
use shoal_image::superblock::{ArchiveMark, Superblock};
use shoal_image::{copies, space_image};
use shoal_tree::Root;
use shoal_tree::layers::LayersRef;
use shoal_value::packed::Totals;

use crate::checkpoint::checkpointer::Checkpointer;
use crate::tablet::view::Tablet;

/// Distance of a superblock's LSN ceiling from the last assigned LSN.
pub const CEILING_STEP: u64 = 1 << 24;

/// The new trees of a tablet, the last record of the log that they hold, and their totals.
#[derive(Clone, Debug)]
pub struct TabletChange {
    /// The tablet.
    pub id: TabletId,
    /// Its new base.
    pub root: Root,
    /// The page with the list of its layers, if it has any.
    pub layers: Option<LayersRef>,
    /// All records up to this one are in its trees.
    pub applied: Lsn,
    /// The totals of its entries.
    pub totals: Totals,
    /// True if the trees may have the contents that [`LAYERS`] marks.
    pub has_filters: bool,
}

/// A layout with another ring for the log, of which the first `prepared` blocks may be written.
#[derive(Clone, Copy, Debug)]
pub struct MovedLog {
    /// The layout with the new ring.
    pub layout: Layout,
    /// Blocks of the new ring that are written, from its start on.
    pub prepared: u32,
}

/// The changes of a new superblock.
#[derive(Debug, Default)]
pub struct Publication {
    /// The new trees of a tablet.
    pub tablet: Option<TabletChange>,
    /// Runs that were free in the published image and are taken in the new one.
    pub taken: Vec<Run>,
    /// Runs that are taken in the published image and free in the new one.
    pub freed: Vec<Run>,
    /// The new size of the device, in blocks.
    pub device_blocks: Option<u64>,
    /// The layout of a raised cap: the image is written into its new areas (INV-37).
    pub layout: Option<Layout>,
    /// The new length of the prepared part of the log's ring.
    pub log_prepared: Option<u32>,
    /// Another ring for the log (INV-38). No batch of the old ring is needed, and none is written meanwhile.
    pub moved_log: Option<MovedLog>,
    /// More flags of incompatible features.
    pub features: u32,
    /// The losses of a repair, in addition to the losses already in the superblock.
    pub losses: Option<Losses>,
    /// The log of the archive to remember.
    pub archive_log: Option<u64>,
}

impl Publication {
    /// Returns true if the store's threads may find work because of these changes: it is more than the clocks and the tail of the log.
    fn makes_work(&self) -> bool {
        let has_space = !self.taken.is_empty() || !self.freed.is_empty() || self.device_blocks.is_some();
        let has_places = self.layout.is_some() || self.log_prepared.is_some() || self.moved_log.is_some();
        self.tablet.is_some() || has_space || has_places
    }
}

impl Checkpointer {
    /// Publishes `changes`; returns the new superblock's number.
    ///
    /// # Errors
    /// [`Error::NoRoom`]: no copy of the superblock is on the device, and nothing changed. As the device; then the store is poisoned.
    pub async fn publish(&self, changes: Publication) -> Result<u64> {
        self.publish_with(changes, CEILING_STEP, false).await
    }

    /// Publishes the last superblock of a clean close: the next opening continues the numbering without a gap.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub async fn publish_last(&self) -> Result<()> {
        self.publish_with(Publication::default(), 0, true).await.map(|_| ())
    }

    async fn publish_with(&self, changes: Publication, step: u64, is_last: bool) -> Result<u64> {
        let makes_work = changes.makes_work();
        let mut newest = self.publisher.take().await;
        self.log.poison.check()?;
        self.check_sole_writer(&newest, is_last).await?;
        *newest = self.compose_and_write(&newest, changes, step).await.inspect_err(|error| match error {
            Error::NoRoom(why) => self.log.no_apply(why),
            _ if injected(Bug::FailedSuperblockForgiven) => {}
            _ => self.log.fail(format!("a superblock could not be published ({error})")),
        })?;
        if makes_work {
            self.log.committer.sleepers.happened();
        }
        Ok(newest.number)
    }

    async fn compose_and_write(
        &self,
        newest: &Superblock,
        changes: Publication,
        step: u64,
    ) -> Result<Superblock> {
        let mut next = newest.clone();
        next.number += 1;
        // Read first: any record that is numbered later is above it, so the tail stays before that record.
        let assigned = self.log.committer.assigned();
        let tail = self.first_needed(&changes).min(assigned.next().0);
        if let Some(change) = changes.tablet {
            set_tablet(&mut next, change)?;
        }
        next.log_tail = self.log.committer.place_of(Lsn(tail));
        next.archive = self.archive_mark(newest.archive, changes.archive_log);
        next.durable_lsn = self.log.committer.durable();
        assert!(
            newest.durable_lsn <= next.durable_lsn || injected(Bug::VersionsAgain),
            "a superblock takes no promise back (R15)"
        );
        (next.clock, next.wall_high_ns) = self.log.clock_record();
        next.lsn_ceiling = Lsn(assigned.0 + step).max(if step == 0 { Lsn::NONE } else { newest.lsn_ceiling });
        if let Some(blocks) = changes.device_blocks {
            assert!(next.device_blocks <= blocks, "a store takes no blocks back (R21)");
            next.device_blocks = blocks;
        }
        if let Some(layout) = changes.layout {
            next.grow(layout);
        }
        if let Some(blocks) = changes.log_prepared {
            assert!(next.log_prepared <= blocks, "the prepared part of the ring only grows (R21)");
            next.log_prepared = blocks;
        }
        if let Some(moved) = changes.moved_log {
            let head = self.log.committer.place_of(assigned.next());
            assert!(
                next.log_tail == head || injected(Bug::LogMovedWithRecords),
                "the log gets another ring while batches are needed (INV-38)"
            );
            next.move_log(moved.layout, moved.prepared);
        }
        assert!(
            next.layout.is_sensible(next.device_blocks, next.features.incompatible),
            "areas or ring overlap each other or blocks in use (INV-37, INV-38): {:?}",
            next.layout
        );
        next.losses = changes.losses.map_or(next.losses, |more| next.losses.and(more, next.number));
        name_features(&mut next, newest, changes.features);
        let taken = if injected(Bug::TakenNotPublished) { &[] } else { &changes.taken[..] };
        let freed = if injected(Bug::FreedNotPublished) { &[] } else { &changes.freed[..] };
        next.space = match changes.layout {
            Some(_) => space_image::enlarge(&self.device, newest, &next, freed).await?,
            None => space_image::append(&self.device, &next, taken, freed).await?,
        };
        if injected(Bug::PunchedBeforePublish) {
            for run in &changes.freed {
                drop(self.device.discard(run.block, u64::from(run.blocks)).await.ok());
            }
        }
        // Pages, values and the image's delta must be durable before the superblock names them.
        if !injected(Bug::PagesNotFlushed) {
            self.flushed(async { self.device.flush().await.ok().map_err(Error::Io) }).await?;
        }
        // The writes stay outside of `flushed`: commits beside it wait for every operation inside (`fence.rs`).
        self.write_copies(&next).await?;
        self.flushed(copies::flush(&self.device)).await?;
        self.log.committer.superblock_published(next.number, next.log_tail, next.lsn_ceiling);
        Ok(next)
    }

    async fn write_copies(&self, next: &Superblock) -> Result<()> {
        if let Some(watch) = &self.watch {
            watch.note(next);
        }
        copies::write_copies(&self.device, next).await
    }

    /// The mark of the archive. The floor only rises, so a later look at it than the tail's is right, too.
    fn archive_mark(&self, before: ArchiveMark, log: Option<u64>) -> ArchiveMark {
        let Some(floor) = self.log.committer.floor() else { return before };
        let unowned_lsn = if log.is_some() { Lsn::NONE } else { before.unowned_lsn };
        ArchiveMark { log: log.unwrap_or(before.log), first_lsn: floor.next(), unowned_lsn }
    }

    /// The first record that an opening would have to replay with `changes`, or that the archive of the log still reads (INV-46); above
    /// every number without one.
    pub(crate) fn first_needed(&self, changes: &Publication) -> u64 {
        let first_of = |tablet: &Arc<Tablet>| match &changes.tablet {
            Some(change) if change.id == tablet.id => tablet.view().active.first_lsn(),
            _ if injected(Bug::TailIgnoresOthers) => None,
            _ => tablet.first_unapplied(),
        };
        let unapplied = self.tablets.all().iter().filter_map(first_of).min().unwrap_or(u64::MAX);
        let floor = self.log.committer.floor().filter(|_| !injected(Bug::FloorIgnored));
        floor.map_or(unapplied, |floor| unapplied.min(floor.next().0))
    }

    /// See [`Poison::flushed`](shoal_log::Poison::flushed).
    async fn flushed(&self, flush: impl Future<Output = Result<()>>) -> Result<()> {
        if injected(Bug::FailedSuperblockForgiven) {
            return flush.await;
        }
        self.log.poison.flushed(flush).await
    }
}

/// Names more features.
fn name_features(next: &mut Superblock, newest: &Superblock, more: u32) {
    next.features.incompatible |= more;
    let before = newest.features.incompatible;
    assert!(next.features.incompatible & before == before, "a superblock takes no feature back (R42)");
}

/// Names the new trees of a tablet.
fn set_tablet(next: &mut Superblock, change: TabletChange) -> Result<()> {
    let TabletChange { id, root, layers, applied, totals, has_filters } = change;
    if has_filters {
        next.features.incompatible |= LAYERS | UNSETTLED;
    }
    let record = next.tablets.get_mut(usize::from(id.0));
    let record = record.ok_or_else(|| Error::Invalid(format!("there is no tablet {id}")))?;
    assert!(record.applied <= applied, "a superblock takes no record back (R4)");
    record.root = root;
    record.layers = layers;
    record.applied = applied;
    record.totals = totals;
    Ok(())
}
