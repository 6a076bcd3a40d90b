//! The apply merges a tablet's frozen memtable into its tree.
//!
//! One apply runs at a time. It never waits for readers, and no reader waits for it: new pages and values go to fresh blocks, and the
//! publish makes them part of the tablet.

pub mod home;
pub mod one_version;
pub mod pace;
pub mod progress;
pub mod replace;
pub mod route;

use std::sync::Arc;

use shoal_base::list::DamagedRange;
use shoal_base::sync::atomic::Ordering;
use shoal_base::{Lsn, Run};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_image::copies;
use shoal_log::{Item, Moment};
use shoal_memtable::Memtable;
use shoal_memtable::adoptions::Adoptions;
use shoal_space_manager::Extents;
use shoal_tree::layers::page as layers_page;
use shoal_tree::layers::settled::Settled;
use shoal_tree::layers::{LayersRef, Trees};
use shoal_tree::{Applied, Apply, Merge, Root};
use shoal_value::{Entry, manifest_of, owned_runs};

use crate::apply::home::Work;
use crate::apply::pace::Pace;
use crate::apply::progress::Progress;
use crate::apply::replace::{Op, ReplaceEntries};
use crate::apply::route::Routed;
use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::new_tree::NewTree;
use crate::checkpoint::publish::Publication;
use crate::counters::OperationCounters;
use crate::gc::liveness::{Liveness, LivenessOps};
use crate::gc::rewrite::{Moves, Pressure};
use crate::tablet::damage::Unread;
use crate::tablet::tree_io::{LATE_PERMILLE, PageBlocks, PoolPages, is_of_medium, tree_of};
use crate::tablet::view::{Tablet, View};

/// Attempts of an apply before it abandons pages that the device cannot read.
const READS_TRIED: u32 = 3;

/// The objects of a memtable that had expired when it was applied.
struct Expired {
    count: u64,
    /// Runs of their values.
    owned: Vec<Run>,
}

impl Expired {
    /// The expired objects among `ops`, and the runs that all others own.
    fn of(ops: &[Op]) -> (Self, Vec<Run>) {
        let (mut expired, mut owned) = (Self { count: 0, owned: Vec::new() }, Vec::new());
        for op in ops {
            let runs = if op.is_expired() { &mut expired.owned } else { &mut owned };
            runs.extend_from_slice(op.owned());
            expired.count += u64::from(op.is_expired());
        }
        (expired, owned)
    }
}

/// Passes the runs of parts that never reach the tree to the objects of the apply; nobody owns their manifests any more.
fn adopt(adoptions: &Adoptions, new: &mut NewTree<'_>) {
    for part in adoptions.parts() {
        let manifest = manifest_of(part.body_bytes());
        new.taken.extend(part.owned().iter().filter(|run| !manifest.contains(run)));
        new.dropped.extend(manifest);
    }
}

impl Checkpointer {
    /// Applies every tablet.
    pub async fn apply_all(&self) -> Result<()> {
        for tablet in self.tablets.all() {
            self.apply_tablet(tablet).await?;
        }
        self.let_log_go().await
    }

    /// Publishes without an apply if the log is at least half full and all of its records are applied. Recovery may find the log in this
    /// state, and then no apply's superblock would free its blocks. The same once an archive has read records that were applied before.
    pub async fn let_log_go(&self) -> Result<()> {
        let is_applied = || self.tablets.first_unapplied().is_none();
        let helps = match self.log.committer.floor() {
            Some(_) => self.archive_lets_log_go(),
            None => self.log.fill_permille() >= 500 && is_applied(),
        };
        if helps {
            self.publish(Publication::default()).await?;
        }
        Ok(())
    }

    /// Returns true if [`let_log_go`](Self::let_log_go) publishes for an archive: room is wanted, and a superblock now would let batches of
    /// the log be overwritten. A writer that waits for this publishes, and then it is false again.
    pub fn archive_lets_log_go(&self) -> bool {
        if self.log.committer.floor().is_none() {
            return false;
        }
        let is_wanted = self.log.fill_permille() >= 500 || self.tablets.admission.is_waited_for();
        is_wanted && self.lets_log_go()
    }

    /// Returns true if a superblock now would let batches of the log be overwritten.
    fn lets_log_go(&self) -> bool {
        let first = self.first_needed(&Publication::default());
        let tail = self.log.committer.place_of(Lsn(first.min(self.log.committer.assigned().next().0)));
        self.log.committer.ring.tail() < tail.position
    }

    /// Returns true if no apply makes room in the log, because its archive needs all records from the first unapplied one on.
    pub fn is_log_held(&self) -> bool {
        let Some(floor) = self.log.committer.floor() else { return false };
        self.log.committer.has_unread() && self.tablets.first_unapplied().is_none_or(|first| first > floor.0)
    }

    /// Applies the tablet whose apply helps most.
    pub async fn apply_fullest(&self) -> Result<()> {
        match self.fullest() {
            Some(tablet) => self.apply_tablet(tablet).await,
            None => self.let_log_go().await,
        }
    }

    /// The tablet whose apply helps most: if the log is fuller than the memtables, the one that holds the log's tail, else the one with the
    /// largest memtables.
    pub fn fullest(&self) -> Option<&Tablet> {
        let tablets = self.tablets.all().iter().map(|tablet| &**tablet);
        let tablets = tablets.filter(|tablet| tablet.first_unapplied().is_some());
        if self.log.fill_permille() >= self.tablets.admission.fill_permille() && !self.is_log_held() {
            tablets.min_by_key(|tablet| tablet.first_unapplied())
        } else {
            tablets.max_by_key(|tablet| {
                let view = tablet.view();
                view.active.size().bytes + view.frozen.as_ref().map_or(0, |memtable| memtable.size().bytes)
            })
        }
    }

    /// Applies one tablet; waits until no other apply runs. Does nothing if there is nothing to apply.
    ///
    /// # Errors
    /// As the device: the memtable stays frozen, and the next apply tries again. A failed write poisons the store, unless it only
    /// lacked room.
    pub async fn apply_tablet(&self, tablet: &Tablet) -> Result<()> {
        let fresh = self.apply_alone(tablet).await?;
        self.compact_after(fresh).await;
        Ok(())
    }

    /// The same without merges; returns the bytes of the applied memtable.
    pub async fn apply_alone(&self, tablet: &Tablet) -> Result<u64> {
        let _turn = loop {
            self.make_room_for_a_layer(tablet).await?;
            let turn = self.applier.turn().await;
            // An apply that held the turn before may have taken the place (INV-33).
            if tablet.view().trees.has_place_for_a_layer() {
                break turn;
            }
        };
        self.log.poison.check()?;
        self.limit_snapshots();
        self.space.reclaim(self.log.committer.named_superblock());
        let Some(marker) = tablet.freeze(|marker| self.log.committer.submit(Item::Marker(marker))) else {
            return Ok(0);
        };
        self.log.committer.drive_all();
        let applied = self.log.committer.wait_marker(&marker).await?;
        self.apply_frozen(tablet, applied, &self.log.moment()).await
    }

    /// Applies the frozen memtable of a tablet, whose records are durable up to `applied`, and returns its bytes. Objects that had expired
    /// at `moment` are dropped. The caller holds the applier's turn.
    pub(crate) async fn apply_frozen(&self, tablet: &Tablet, applied: Lsn, moment: &Moment) -> Result<u64> {
        let view = tablet.view();
        let Some(frozen) = &view.frozen else { return Ok(0) };
        let fresh = frozen.size().bytes as u64;
        let pressure = Pressure::Load { fresh_bytes: frozen.size().bytes };
        let moves = self.choose_moves(tablet, &view.trees, pressure).await;
        let at = (applied, Some(moment));
        let mut outcome = self.run_apply(tablet, &view, at, moves, self.unread()).await;
        for tried in 1..READS_TRIED {
            let Err(Error::Io(error)) = &outcome else { break };
            if !is_of_medium(error) || self.log.poison.check().is_err() {
                break;
            }
            // A page that stays unreadable while the device reads others counts as lost, like a damaged page (R19): otherwise the tablet
            // could not apply any record, and the log would fill up.
            let is_given_up = tried + 1 == READS_TRIED && copies::answers(&self.device).await;
            let unread = if is_given_up { Unread::IsLost } else { Unread::Fails };
            outcome = self.run_apply(tablet, &view, at, Moves::default(), unread).await;
        }
        outcome?;
        if let Some(helpers) = &self.helpers {
            helpers.leave(frozen.clone());
        }
        Ok(fresh)
    }

    /// The treatment of pages that an apply cannot read.
    pub fn unread(&self) -> Unread {
        if self.gives_up { Unread::IsLost } else { Unread::Fails }
    }

    /// Rewrites packed runs of one tablet that have too few live bytes, and applies nothing. Returns true if the runs take fewer blocks
    /// afterwards.
    ///
    /// # Errors
    /// As [`apply_tablet`](Self::apply_tablet).
    pub(crate) async fn tidy_tablet(&self, tablet: &Tablet, pressure: Pressure) -> Result<bool> {
        let _turn = self.applier.turn().await;
        self.log.poison.check()?;
        let view = tablet.view();
        // An earlier apply failed: its memtable comes first. Moved values whose entries are in layers need a new layer.
        if view.frozen.is_some() || !view.trees.has_place_for_a_layer() {
            return Ok(false);
        }
        let moves = self.choose_moves(tablet, &view.trees, pressure).await;
        if moves.is_empty() {
            return Ok(false);
        }
        self.run_apply(tablet, &view, (view.applied, None), moves, self.unread()).await?;
        // The gain may be smaller than expected, because short runs are rounded up and free space is fragmented. Then the search rests.
        let totals = tablet.view().totals;
        let gained = totals.packed_blocks < view.totals.packed_blocks;
        if !gained {
            tablet.tidy.lock().rest(pressure.aim(), totals);
        }
        Ok(gained)
    }

    /// Makes and publishes a tree from `view`'s frozen memtable, if there is one, and `moves`. Returns the bytes of the
    /// moved values. Puts of objects that had expired at `moment` are applied as deletes: the published superblock has a
    /// later time, so they stay absent. The caller holds the applier's token.
    pub async fn run_apply(
        &self,
        tablet: &Tablet,
        view: &View,
        (applied, moment): (Lsn, Option<&Moment>),
        moves: Moves,
        unread: Unread,
    ) -> Result<u64> {
        if unread != Unread::Fails {
            // This apply loses pages for good: it reads each of them itself.
            self.pool.forget_all_damage();
        }
        let _working = self.pool.budget().work();
        let frozen = view.frozen.as_deref();
        let adoptions = frozen.map(|memtable| memtable.lock().adoptions(applied)).unwrap_or_default();
        let mut work = Work::new(self, tablet.id, moves.hole_blocks, moment, &adoptions);
        moves.doubtful.iter().for_each(|&(block, doubt)| work.liveness.doubt(block, doubt));
        let (steps, _reservation) = moves.into_steps();
        let mut progress = self.progress_of(tablet, frozen);
        let ops = work.bring_home(frozen, applied, steps, &mut progress).await?;
        let (expired, owned) = Expired::of(&ops);
        let tree = tree_of(self.identity, tablet.id);
        let mut merge = ReplaceEntries::new(self, std::mem::take(&mut work.liveness), progress);
        let Routed { direct, layered } =
            self.route(tree, &view.trees, unread, ops, &mut merge.progress).await?;
        let mut trees = view.trees.clone();
        let mut pages = Vec::new();
        merge.progress.merges(layered.ops.len(), direct.len());
        if !layered.ops.is_empty() {
            let layer = self.write_layer((tree, applied), unread, &mut merge, &layered).await?;
            trees = trees.with_layer(layer.root, layer.added, layer.removed);
            trees = trees.settle(merge.unsettled, Settled::default());
            pages.push(layer.pages);
        }
        if !direct.is_empty() {
            merge.progress.merges_into_base();
            let (root, written) =
                self.merge_tree((tablet, &trees, applied), unread, &mut merge, &direct).await?;
            trees = trees.with_base(root);
            pages.push(written);
        }
        let Work { taken, freed, given, .. } = work;
        let new = NewTree::new(trees, applied, merge.totals_after(view.totals));
        let mut new = NewTree { results: merge.results, pages, taken, freed, given, ..new };
        self.merge_liveness(tablet, &mut new, unread, std::mem::take(&mut merge.liveness)).await?;
        self.free_replaced(merge.old, &mut new.freed_values).await;
        new.freed_values.extend(merge.unplaced);
        new.taken.extend(owned);
        adopt(&adoptions, &mut new);
        let dropped = frozen.map(|memtable| memtable.lock().dropped(&adoptions)).unwrap_or_default();
        if !injected(Bug::DroppedNeverFreed) {
            new.dropped.extend(dropped.iter().flat_map(|record| record.owned().iter().copied()));
        }
        new.dropped.extend(expired.owned);
        self.growth.applied(new.dead_blocks());
        tracing::debug!(
            "tablet {}: applied {} records to the base and {} to a layer; {} layers of {} entries above {} of the base",
            tablet.id,
            direct.len(),
            layered.ops.len(),
            new.trees.layers.list.len(),
            new.trees.layers.entries(),
            new.trees.base.entries,
        );
        self.publish_tree(tablet, new).await?;
        OperationCounters::add(&self.counters.expired, expired.count);
        self.note_applied(frozen, merge.progress, (merge.moved_values, merge.moved_bytes));
        Ok(merge.moved_bytes)
    }

    /// The progress of an apply of `frozen`, a memtable of `tablet`.
    fn progress_of(&self, tablet: &Tablet, frozen: Option<&Memtable>) -> Progress<'_> {
        let Some(frozen) = frozen else { return Progress::new(&self.log.committer, None, 0, false) };
        let size = frozen.size();
        let lent = self.tablets.admission.lend(size.records, size.bytes);
        let lends = size.bytes >= self.tuning.lend_bytes_min;
        Progress::new(&self.log.committer, Some(lent), size.records, lends)
            .with_pause(self.pause_permille(tablet), self.now_ns())
            .with_pace(self.pace())
    }

    /// The pace of an apply on the thread that applies; `None` on others, whose callers wait.
    fn pace(&self) -> Option<Pace<'_>> {
        let helpers = self.helpers.as_ref().filter(|helpers| helpers.is_applier())?;
        Some(Pace::new(self, helpers.apply_time_ns.load(Ordering::Relaxed)))
    }

    /// Returns true if something waits for an apply to end: writers for room, or a task for the applier's turn.
    pub fn is_apply_waited_for(&self) -> bool {
        let admission = &self.tablets.admission;
        admission.fill_permille() >= LATE_PERMILLE
            || self.log.fill_permille() >= LATE_PERMILLE && !self.is_log_held()
            || self.applier.is_waited_for()
            || self.closing.is_begun()
            || self.log.poison.reason().is_some()
    }

    /// Adds the runs of replaced entries to `freed`.
    async fn free_replaced(&self, old: Vec<(Lsn, Entry)>, freed: &mut Vec<Run>) {
        for (version, entry) in old {
            match owned_runs(&self.device, &self.pool, &entry, version).await {
                (runs, None) => freed.extend(runs),
                // The runs stay taken until a repair.
                (_, Some(error)) => {
                    tracing::warn!("the space of a value is lost until `shoal check --repair`: {error}");
                }
            }
        }
    }

    /// Counts a published apply and returns the room of its memtable to writers.
    fn note_applied(
        &self,
        frozen: Option<&Memtable>,
        progress: Progress<'_>,
        (moved_values, moved_bytes): (u64, u64),
    ) {
        if let Some(frozen) = frozen {
            self.space.release_reservation(frozen.size().reserved_blocks);
        }
        OperationCounters::add(&self.counters.applies, 1);
        OperationCounters::add(&self.counters.moved_values, moved_values);
        OperationCounters::add(&self.counters.moved_bytes, moved_bytes);
        // A moved value is read and written.
        self.move_limits.charge(2 * moved_bytes);
        if let Some(pause) = progress.end(self.now_ns())
            && let Some(helpers) = &self.helpers
        {
            helpers.leave_pause(pause);
        }
    }

    /// Merges an apply's changes of the packed runs' liveness into its tree.
    pub async fn merge_liveness<'a>(
        &'a self,
        tablet: &Tablet,
        new: &mut NewTree<'a>,
        unread: Unread,
        ops: LivenessOps,
    ) -> Result<()> {
        if ops.is_empty() {
            return Ok(());
        }
        let mut liveness = Liveness::new(new.totals);
        let at = (tablet, &new.trees, new.applied);
        let (root, pages) = self.merge_tree(at, unread, &mut liveness, &ops.into_ops()).await?;
        (new.trees, new.totals) = (new.trees.with_base(root), liveness.totals);
        new.freed.extend(liveness.freed);
        new.pages.push(pages);
        Ok(())
    }

    /// Merges `ops` into the tree under `root`. Returns the new root and the pages taken and freed for it, all written.
    pub(crate) async fn merge_tree<M: Merge>(
        &self,
        (tablet, trees, lsn): (&Tablet, &Trees, Lsn),
        unread: Unread,
        merge: &mut M,
        ops: &[M::Op],
    ) -> Result<(Root, PageBlocks<'_>)> {
        let source = PoolPages::new(&self.pool).giving_up(unread != Unread::Fails).paced_by(self.pacing());
        let mut sink = self.page_sink();
        let tree = tree_of(self.identity, tablet.id);
        let (root, filters) = (trees.base, self.wants_filters(trees));
        let apply = Apply { tree, lsn, source: &source, sink: &mut sink, merge, filters };
        let ran = match unread {
            Unread::IsAbsent => apply.run_and_settle(root, ops).await,
            Unread::Fails | Unread::IsLost => apply.run(root, ops).await,
        };
        let applied = match ran {
            Ok(applied) => applied,
            Err(error) => {
                let error = self.apply_failed(&error);
                // R8: the pages' blocks are free again only after the writes to them have finished.
                drop(sink.finish().await);
                return Err(error);
            }
        };
        self.report_lost(tablet, &applied);
        let pages = sink.finish().await.map_err(|error| self.apply_failed(&error))?;
        Ok((applied.root, pages))
    }

    /// Returns true if written leaves get filters.
    pub(crate) fn wants_filters(&self, trees: &Trees) -> bool {
        !trees.layers.list.is_empty() || trees.base.entries >= self.tuning.layers_from
    }

    /// Writes the list of the layers of `trees` and returns its extents; `None` if the list did not change or is empty. The previous list
    /// is freed.
    ///
    /// # Errors
    /// [`Error::Full`]; as the device.
    pub(crate) async fn store_layers(
        &self,
        tablet: &Tablet,
        trees: &mut Trees,
        applied: Lsn,
        freed: &mut Vec<Run>,
    ) -> Result<Option<Arc<Extents>>> {
        let before = tablet.view();
        let before = &before.trees.layers;
        if trees.layers == *before {
            return Ok(None);
        }
        if let Some(LayersRef { block, copies, .. }) = before.stored {
            // A list that could not be read became an unreadable layer with its root at the list's first block.
            let is_layer =
                trees.layers.list.iter().any(|root| root.page.is_some_and(|page| page.block == block));
            let kept = u32::from(is_layer);
            freed.extend(
                Some(Run::new(block + u64::from(kept), u32::from(copies) - kept))
                    .filter(|run| run.blocks > 0),
            );
        }
        let layers = Arc::make_mut(&mut trees.layers);
        layers.stored = None;
        if layers.list.is_empty() {
            return Ok(None);
        }
        let run = self.space.allocate_at_most(layers_page::COPIES);
        let run = run.ok_or(Error::full(1, self.space.available()))?;
        let extents = Extents::new(self.space.clone(), smallvec::smallvec![run]);
        let tree = tree_of(self.identity, tablet.id);
        let mut crc = 0;
        for block in run.block..run.end() {
            let (page, of_page) = layers_page::encode(tree, layers, applied, run.block);
            crc = of_page;
            let written = self.device.write(block, vec![page]).await;
            written.result.map_err(|error| self.apply_failed(&error.into()))?;
        }
        layers.stored = Some(LayersRef { block: run.block, crc, copies: run.blocks as u16 });
        Ok(Some(extents))
    }

    /// A failed write of an apply poisons the store: blocks that its pages would have named may be missing on the device (R20). A failed
    /// read, or a write without room, changes nothing.
    pub(crate) fn apply_failed(&self, error: &Error) -> Error {
        match error {
            Error::NoRoom(why) => self.log.no_apply(why),
            Error::Io(device) if device.is_write() => {
                self.log.fail(format!("an apply could not write ({error})"));
            }
            _ => {}
        }
        error.clone()
    }

    /// Reports the keys that an apply found lost (R19).
    fn report_lost(&self, tablet: &Tablet, applied: &Applied) {
        for lost in &applied.lost {
            tracing::error!(
                "tablet {}: page {} of level {} is damaged ({}): about {} objects from {} up to {} answer with an error from now on",
                tablet.id,
                lost.page.block,
                lost.level,
                lost.why,
                lost.entries,
                lost.low.escape_ascii(),
                lost.high.as_ref().map_or("the end".into(), |high| high.escape_ascii().to_string()),
            );
            self.tablets.met.note(&DamagedRange {
                tablet: tablet.id,
                from: lost.low.clone(),
                to: lost.high.clone(),
                block: lost.page.block,
                why: lost.why.clone(),
            });
        }
    }
}
