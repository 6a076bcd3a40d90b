//! Compaction: the layers of a tablet go into its base, slice by slice in key order.
//!
//! A slice reads the entries of the compacted layers from the frontier on, applies them to the base, and is published with the new
//! frontier (INV-28), so a crash loses at most one slice. The blocks that an entry shadows were freed when its layer was written
//! (INV-27), so a compaction frees pages only: the pages of the base that it replaces and, after the last slice, the pages of the
//! layers. Unsettled entries meet the older ones here, which makes the totals exact. Applies run concurrently; layers that they write wait
//! for the next compaction. If an apply changes the base during a slice, the slice is applied again to the new base while no apply runs.
//!
//! A layer that cannot be read is a barrier (INV-34), because entries below it may be older than its own. It stays, and reads of its
//! damaged ranges fail, until a repair gives it up. The layers above it are compacted with each other, which bounds their number.

pub mod choice;

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::list::DamagedRange;
use shoal_base::{Lsn, Run};
use shoal_common::damaged_range;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::is_reserved;
use shoal_tree::layers::cursor::{CompactedEntry, TreesCursor};
use shoal_tree::layers::settled::{Settled, with_estimate};
use shoal_tree::layers::{LAYERS_MAX, Layers, Trees, is_tombstone, tombstone, version_of};
use shoal_tree::{Fate, Gap, LeafFinder, LeafPlace, Merge, Old, Probe, Root, TreeWriter};

use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::new_tree::NewTree;
use crate::compaction::choice::NextCompaction;
pub use crate::compaction::choice::Wanted;
use shoal_space_manager::{ReadEpoch, Reservation, TREE_BLOCKS_PER_RECORD};
use shoal_value::packed::Totals;

use crate::counters::OperationCounters;
use crate::tablet::damage::Unread;
use crate::tablet::tree_io::{PageBlocks, PoolPages, PoolSink, is_of_medium, tree_of};
use crate::tablet::view::{Tablet, View};

/// Bytes of entries to compact for each applied byte of a memtable.
const COMPACTED_PER_FRESH: u64 = 2;

/// The factor by which slices grow when many layers wait. A slice goes into the base between two applies, so it must take more entries
/// than an apply adds.
const SLICE_BEHIND: u64 = 4;
/// A write without room compacts layers of at most this many entries in total: about a second of work.
const ENTRIES_FOR_ROOM_MAX: u64 = 1 << 18;
/// An entry of a layer on its way into the base; `None`: the key does not exist.
struct CompactionOp {
    key: Bytes,
    entry: Option<Bytes>,
    /// The estimate of the oldest entry of the layers, if it is unsettled.
    estimate: Option<u16>,
}

/// Puts the entries of layers in place of those of the base.
#[derive(Default)]
struct TakeEntries {
    settled: Settled,
}

impl Merge for TakeEntries {
    type Op = CompactionOp;

    fn key<'a>(&self, op: &'a CompactionOp) -> &'a [u8] {
        &op.key
    }

    fn merge(&mut self, op: &CompactionOp, old: Old<'_>, new: &mut Vec<u8>) -> Result<Fate> {
        match (op.estimate, old) {
            (None, _) => {}
            _ if injected(Bug::EstimatesKept) => {}
            (Some(estimate), Old::Present(old)) => self.settled.meet(estimate, Some(old)),
            (Some(estimate), Old::Absent) => self.settled.meet(estimate, None),
            // A repair counts.
            (Some(_), Old::Lost) => self.settled.entries += 1,
        }
        let Some(entry) = &op.entry else { return Ok(Fate::Delete) };
        assert!(!is_tombstone(entry), "a tombstone goes into the base (INV-31)");
        if let Old::Present(old) = old {
            // A forged layer can hold such an entry (INV-26, INV-30).
            if version_of(old) > version_of(entry) && !injected(Bug::LayerBelowNewest) {
                let (old, new) = (version_of(old), version_of(entry));
                let what = format!("version {new} of a key is above version {old} of the base (INV-26)");
                return Err(Error::Corrupt { what, block: 0 });
            }
        }
        new.extend_from_slice(entry);
        Ok(Fate::Put)
    }
}

/// The entries that a slice takes.
struct Slice {
    ops: Vec<CompactionOp>,
    bytes: u64,
    /// The next slice starts here; none: this is the last one.
    next: Option<Vec<u8>>,
    /// The damage of the layers after the last entry.
    gaps: Vec<Gap>,
    /// Entries that met older ones of the same layers.
    settled: Settled,
}

/// A slice with its layers, and the room for the pages of the base.
pub struct TakenSlice {
    layers: Layers,
    slice: Slice,
    reservation: Reservation,
}

/// A base that contains a slice and is not published yet.
pub struct NewBase<'a> {
    /// The base before the slice.
    of: Root,
    root: Root,
    /// The new pages, if any.
    pages: Vec<PageBlocks<'a>>,
    /// Entries that met those of the base.
    settled: Settled,
    /// Prevents the reuse of blocks of the base (R16), so that equal roots mean the same base.
    _epoch: Arc<ReadEpoch>,
}

/// The part of a tablet that an acknowledgement gave up.
#[derive(Default)]
pub struct GivenUp {
    /// Ranges of encoded keys of the damaged layers.
    pub ranges: Vec<DamagedRange>,
    /// Encoded keys that had an older state behind a damaged layer.
    pub keys: Vec<Bytes>,
}

/// The result of one step of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// There is nothing to compact now.
    Nothing,
    /// Compacted this many bytes of entries; more follow.
    Some(u64),
    /// Compacted the last slice, or some layers with each other.
    All(u64),
}

impl Checkpointer {
    /// Compacts in proportion to an apply of `fresh` bytes, so that a compaction finishes before the number of its layers doubles
    /// (INV-33). A failed compaction is retried later, because nothing waits for it. A store that is closing or in repair does not
    /// compact.
    pub(crate) async fn compact_after(&self, fresh: u64) {
        if let Some(helpers) = &self.helpers {
            if fresh > 0 {
                helpers.compaction.ring();
            }
            return;
        }
        let mut credit = fresh.saturating_mul(COMPACTED_PER_FRESH);
        while credit > 0 && !self.closing.is_begun() && !self.gives_up {
            let Some(&tablet) = self.wanting_compaction().first() else { break };
            match self.compact_some(tablet, Wanted::BySize).await {
                Ok(Compacted::Nothing) => break,
                Ok(Compacted::Some(bytes) | Compacted::All(bytes)) => {
                    credit = credit.saturating_sub(bytes.max(1))
                }
                Err(error) => {
                    tracing::warn!("layers could not be compacted, which will be tried again: {error}");
                    break;
                }
            }
        }
    }

    /// Runs one step of the most urgent compaction. Returns true if there was one.
    ///
    /// # Errors
    /// As an apply.
    pub async fn compact_idle(&self) -> Result<bool> {
        self.note_writes();
        for tablet in self.wanting_compaction() {
            if self.compact_some(tablet, Wanted::BySize).await? != Compacted::Nothing {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Runs one step of the compaction of a tablet's layers. Waits for the applier's turn.
    ///
    /// # Errors
    /// As an apply.
    pub async fn compact_some(&self, tablet: &Tablet, wanted: Wanted) -> Result<Compacted> {
        self.log.poison.check()?;
        let (trees, applied) = trees_of(tablet);
        let step = if wanted == Wanted::ForRoom { None } else { self.next_compaction(tablet, &trees) };
        let claim = match step {
            None if wanted == Wanted::BySize => return Ok(Compacted::Nothing),
            Some(NextCompaction::Newest(count)) => {
                tablet.compactions.claim_layers(&trees.layers.list[..count])
            }
            Some(NextCompaction::Base) | None => tablet.compactions.claim_base(),
        };
        let Some(_claim) = claim else {
            if wanted == Wanted::BySize {
                return Ok(Compacted::Nothing);
            }
            tablet.compactions.wait().await;
            return Ok(Compacted::Some(0));
        };
        if let Some(NextCompaction::Newest(count)) = step {
            // Another compaction may have finished before the claim and freed its pages.
            let newest = &trees.layers.list[..count];
            if !trees_of(tablet).0.layers.list.windows(count).any(|some| some == newest) {
                return Ok(Compacted::Some(0));
            }
            return self.compact_newest(tablet, &trees, applied, count).await;
        }
        // Only the owner of the claim changes the compacted layers, so applies can run while it reads them.
        let (trees, _) = trees_of(tablet);
        let _working = self.pool.budget().work();
        let Some(taken) = self.take_next(tablet, &trees, false).await? else { return Ok(Compacted::Nothing) };
        let early = self.compact_beside_applies(tablet, trees.base, &taken).await;
        let _turn = self.applier.turn().await;
        self.log.poison.check()?;
        match self.compact_slice(tablet, taken, early, self.unread(), false).await {
            // Nothing waits for this compaction, and the pages may be readable later.
            Err(Error::Io(error)) if is_of_medium(&error) => {
                tracing::warn!("tablet {}: its layers are compacted later: {error}", tablet.id);
                let oldest = tablet.view().trees.layers.list.last().copied();
                *tablet.unreadable.lock() = oldest.map(|root| (root, self.now_ns()));
                Ok(Compacted::Nothing)
            }
            compacted => compacted,
        }
    }

    /// Runs one step of the compaction of each tablet with layers, and makes the freed pages reusable. Returns true if there was one.
    /// Skips large layers: a write cannot wait for them, and their pages are a small part of the store.
    ///
    /// # Errors
    /// As an apply. A lack of space for the pages of the base is no error.
    pub async fn compact_for_room(&self) -> Result<bool> {
        let entries: u64 = self.tablets.all().iter().map(|tablet| tablet.view().trees.layers.entries()).sum();
        if entries > ENTRIES_FOR_ROOM_MAX {
            return Ok(false);
        }
        let mut any = false;
        for tablet in self.tablets.all() {
            match self.compact_some(tablet, Wanted::ForRoom).await {
                Ok(compacted) => any |= compacted != Compacted::Nothing,
                Err(Error::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if any {
            self.make_freed_reusable().await;
        }
        Ok(any)
    }

    /// Compacts all layers of a tablet into its base, including layers written meanwhile. Gives up the objects that damaged layers hide:
    /// returns their ranges, and the keys that older trees hold. The caller holds the applier's turn and has applied everything.
    ///
    /// # Errors
    /// As an apply.
    pub async fn give_up_layers(&self, tablet: &Tablet) -> Result<GivenUp> {
        let given_up = self.give_up_gaps(tablet, &tablet.view()).await?;
        loop {
            let trees = tablet.view().trees.clone();
            let Some(taken) = self.take_next(tablet, &trees, true).await? else { break };
            if self.compact_slice(tablet, taken, None, self.unread(), true).await? == Compacted::Nothing {
                break;
            }
        }
        Ok(given_up)
    }

    /// Compacts until another layer may come (INV-33).
    ///
    /// # Errors
    /// As an apply; [`Error::Busy`] if damaged layers leave nothing that could be compacted.
    pub(crate) async fn make_room_for_a_layer(&self, tablet: &Tablet) -> Result<()> {
        while !tablet.view().trees.has_place_for_a_layer() {
            if self.compact_some(tablet, Wanted::ByForce).await? == Compacted::Nothing {
                return Err(Error::Busy(
                    "too many layers of its trees are damaged: give them up with `shoal check --acknowledge`",
                ));
            }
        }
        Ok(())
    }

    /// Reads the next slice of the compaction into the base. Returns `None` if nothing can be compacted now.
    pub async fn take_next(
        &self,
        tablet: &Tablet,
        trees: &Trees,
        gives_up: bool,
    ) -> Result<Option<TakenSlice>> {
        let mut layers = (*trees.layers).clone();
        if layers.list.is_empty() || self.is_blocked(tablet, &layers) && !gives_up {
            return Ok(None);
        }
        if layers.compacting == 0 {
            (layers.compacting, layers.frontier) = (layers.list.len(), Vec::new());
        }
        let taken = self.take_slice_with_room(tablet, &trees.base, &layers, gives_up).await?;
        Ok(taken.map(|(slice, reservation)| TakenSlice { layers, slice, reservation }))
    }

    /// Applies a slice to the base concurrently with applies. Returns `None` if the base is no longer `before`, the base from which the
    /// slice was taken; if room is short, because freed blocks are not reusable meanwhile; and after an error, because the retry
    /// without concurrent applies reports it.
    pub async fn compact_beside_applies(
        &self,
        tablet: &Tablet,
        before: Root,
        taken: &TakenSlice,
    ) -> Option<NewBase<'_>> {
        if self.room_with_growth() <= taken.reservation.blocks() {
            return None;
        }
        let view = tablet.view();
        let of = (view.trees.clone(), view.applied, view.epoch.clone());
        // The view would keep memtables in memory that are applied meanwhile.
        drop(view);
        if of.0.base != before {
            return None;
        }
        self.put_into_base(tablet, of, Unread::Fails, &taken.slice).await.ok()
    }

    async fn put_into_base(
        &self,
        tablet: &Tablet,
        (trees, applied, epoch): (Trees, Lsn, Arc<ReadEpoch>),
        unread: Unread,
        slice: &Slice,
    ) -> Result<NewBase<'_>> {
        let (of, mut root, mut pages) = (trees.base, trees.base, Vec::new());
        let mut merge = TakeEntries::default();
        if !slice.ops.is_empty() {
            let at = (tablet, &trees, applied);
            let (merged, written) = self.merge_tree(at, unread, &mut merge, &slice.ops).await?;
            root = merged;
            pages.push(written);
        }
        Ok(NewBase { of, root, pages, settled: merge.settled, _epoch: epoch })
    }

    /// Publishes a slice; `early` is a base that contains it already. The caller holds the applier's turn.
    pub async fn compact_slice(
        &self,
        tablet: &Tablet,
        taken: TakenSlice,
        early: Option<NewBase<'_>>,
        unread: Unread,
        gives_up: bool,
    ) -> Result<Compacted> {
        let TakenSlice { layers: of_slice, slice, reservation: _reservation } = taken;
        let view = tablet.view();
        // A failed apply is retried first.
        if view.frozen.is_some() {
            return Ok(Compacted::Nothing);
        }
        let Some(mut layers) = layers_now(&view, &of_slice) else { return Ok(Compacted::Some(0)) };
        if let Some(gap) = slice.gaps.first()
            && slice.ops.is_empty()
            && !gives_up
        {
            self.note_unreadable(tablet, &layers, gap).await;
            return Ok(Compacted::Some(0));
        }
        let bytes = slice.bytes;
        // The blocks of a base that changed since are free from here on.
        let early = early.filter(|early| early.of == view.trees.base || injected(Bug::SliceOfOldBase));
        let new_base = match early {
            Some(early) => early,
            None => {
                let of = (view.trees.clone(), view.applied, view.epoch.clone());
                self.put_into_base(tablet, of, unread, &slice).await?
            }
        };
        let NewBase { root: base, pages, mut settled, .. } = new_base;
        settled.add(slice.settled);
        layers.settle(0, settled);
        let is_last = slice.next.is_none();
        let pages_written: u64 = pages
            .iter()
            .flat_map(|pages: &PageBlocks<'_>| &pages.taken)
            .map(|run| u64::from(run.blocks))
            .sum();
        let mut freed = Vec::new();
        if let Some(frontier) = slice.next {
            assert!(frontier >= layers.frontier, "a frontier goes back (INV-28)");
            layers.frontier =
                if injected(Bug::FrontierTooFar) { [&frontier[..], &[0xFF; 4]].concat() } else { frontier };
        } else {
            assert!(layers.compacting <= layers.list.len(), "a compaction takes layers that exist (INV-28)");
            freed = self.pages_of(tablet, layers.being_compacted()).await?;
            self.pay(tablet, &view.trees, None);
            layers.list.truncate(layers.list.len() - layers.compacting);
            (layers.compacting, layers.frontier) = (0, Vec::new());
            if layers.list.is_empty() {
                (layers.live, layers.unsettled) = (0, 0);
            }
        }
        let trees = Trees { base, layers: Arc::new(layers) };
        let value_bytes = settled.value_bytes(view.totals.value_bytes);
        let new = NewTree::new(trees, view.applied, Totals { value_bytes, ..view.totals });
        self.publish_tree(tablet, NewTree { pages, freed, ..new }).await?;
        tracing::debug!(
            "tablet {}: compacted {bytes} bytes of layers, {} pages of the base written; last slice: {is_last}",
            tablet.id,
            pages_written
        );
        OperationCounters::add(&self.counters.merged_bytes, bytes);
        OperationCounters::add(&self.counters.merges, u64::from(is_last));
        self.log.committer.moved.notify();
        Ok(if is_last { Compacted::All(bytes) } else { Compacted::Some(bytes) })
    }

    /// Reads a slice and reserves the blocks that the base may need for it (INV-32). The slice is short if the device is nearly full.
    /// Returns `None` if there is no room for a short slice either.
    async fn take_slice_with_room(
        &self,
        tablet: &Tablet,
        base: &Root,
        layers: &Layers,
        gives_up: bool,
    ) -> Result<Option<(Slice, Reservation)>> {
        let behind = if layers.list.len() >= LAYERS_MAX / 3 { SLICE_BEHIND } else { 1 };
        let mut bytes_max = self.tuning.merge_slice_bytes as u64 * behind;
        loop {
            let slice = self.take_slice(tablet, layers, bytes_max, gives_up).await?;
            let records = slice.ops.len() as u64;
            // The pages that the new ones replace come free with the publish. No more than all of the base is written, and the
            // records that came.
            let needed = (records * TREE_BLOCKS_PER_RECORD).min(base.entries / 4 + records / 2 + 8);
            if self.space.missing(needed) > 0 {
                self.grow_for(needed).await?;
            }
            if let Some(reservation) = self.space.reserve_for_moves(needed, false) {
                return Ok(Some((slice, reservation)));
            }
            if slice.ops.len() < 2 || injected(Bug::SliceNotShortened) {
                return Ok(None);
            }
            bytes_max = slice.bytes / 8;
        }
    }

    /// Reads entries of the compacted layers from the frontier on, up to this many bytes.
    async fn take_slice(
        &self,
        tablet: &Tablet,
        layers: &Layers,
        bytes_max: u64,
        gives_up: bool,
    ) -> Result<Slice> {
        let being_compacted = Layers { list: layers.being_compacted().to_vec(), ..Layers::default() };
        let mut cursor = self.cursor_over(tablet, being_compacted);
        if gives_up {
            cursor = cursor.past_damage();
        }
        cursor.approach(&layers.frontier);
        let settled = Settled::default();
        let mut slice = Slice { ops: Vec::new(), bytes: 0, next: None, gaps: Vec::new(), settled };
        loop {
            let item = cursor.next_compacted().await?;
            slice.gaps.extend(cursor.take_gaps());
            if !slice.gaps.is_empty() && !gives_up {
                // The entries before the damage can be compacted; the next slice meets the damage again.
                slice.next = Some(slice.ops.last().map_or(layers.frontier.clone(), |op| behind(&op.key)));
                return Ok(slice);
            }
            let Some(CompactedEntry { key, found, unsettled }) = item else { return Ok(slice) };
            // The entries of a forged leaf may be in any order.
            let is_next = match slice.ops.last() {
                Some(last) => last.key[..] < key[..],
                None => layers.frontier[..] <= key[..],
            };
            if !is_next {
                let block =
                    layers.being_compacted().first().and_then(|root| root.page).map_or(0, |page| page.block);
                let what = "the keys of a layer are not in order (INV-28)".into();
                return Err(Error::Corrupt { what, block });
            }
            let entry = (!is_tombstone(&found)).then(|| {
                let mut entry = Vec::with_capacity(found.len());
                with_estimate(&found, None, &mut entry);
                Bytes::from(entry)
            });
            slice.bytes += (key.len() + found.len()) as u64;
            slice.settled.add(unsettled.settled);
            slice.ops.push(CompactionOp { key: key.into(), entry, estimate: unsettled.estimate });
            if slice.bytes >= bytes_max {
                slice.next = slice.ops.last().map(|op| behind(&op.key));
                return Ok(slice);
            }
        }
    }

    fn cursor_over(&self, tablet: &Tablet, layers: Layers) -> TreesCursor<PoolPages<'_>> {
        let source = PoolPages::new(&self.pool).giving_up(true).paced_by(self.pacing());
        let trees = Trees { base: Root::EMPTY, layers: Arc::new(layers) };
        TreesCursor::new(tree_of(self.identity, tablet.id), &source, &trees, None, None)
    }

    /// Collects the pages of obsolete trees.
    async fn pages_of(&self, tablet: &Tablet, roots: &[Root]) -> Result<Vec<Run>> {
        let tree = tree_of(self.identity, tablet.id);
        let mut runs = Vec::new();
        for &root in roots {
            let (mut pages, is_whole) = tree.pages(&PoolPages::new(&self.pool), root).await?;
            if !is_whole {
                tracing::warn!(
                    "tablet {}: pages of a compacted layer are lost until `shoal check --repair`",
                    tablet.id
                );
            }
            pages.sort_unstable_by_key(|page| page.block);
            // A forged page may name a leaf twice, which is freed once.
            pages.dedup_by_key(|page| page.block);
            for page in pages {
                match runs.last_mut() {
                    Some(Run { block, blocks }) if *block + u64::from(*blocks) == page.block => *blocks += 1,
                    _ => runs.push(Run::new(page.block, 1)),
                }
            }
        }
        Ok(runs)
    }

    /// Notes that a layer cannot be read: compactions stop there.
    async fn note_unreadable(&self, tablet: &Tablet, layers: &Layers, gap: &Gap) {
        let tree = tree_of(self.identity, tablet.id);
        let source = PoolPages::new(&self.pool).giving_up(true);
        // If none is found, blame the oldest: a compaction of the layers above it finds the unreadable one.
        let mut unreadable = layers.being_compacted().last().copied();
        for &root in layers.being_compacted().iter().rev() {
            let met = tree.gap_at(source, root, &gap.low).await;
            if met.is_some_and(|met| met.block == gap.block) {
                unreadable = Some(root);
            }
        }
        *tablet.unreadable.lock() = unreadable.map(|root| (root, self.now_ns()));
        let range = gap.clone().in_tablet(tablet.id);
        tracing::error!(
            "a layer is damaged, and layers are not compacted past it until a repair: {}",
            damaged_range::words(&range)
        );
        self.tablets.met.note(&range);
    }

    /// Compacts the `count` newest layers of `trees`, which the caller has claimed, into one. Applies run concurrently, because layers
    /// never change; only the publish needs the applier's turn.
    pub async fn compact_newest(
        &self,
        tablet: &Tablet,
        trees: &Trees,
        applied: Lsn,
        count: usize,
    ) -> Result<Compacted> {
        let layers = &*trees.layers;
        assert!((1..=layers.list.len()).contains(&count), "a compaction takes layers that exist (INV-26)");
        let newest = layers.list[..count].to_vec();
        // Some of them may be a part of the compaction that met damage: these have no say below its frontier, and the layer that replaces
        // them all has a say everywhere.
        let compacting = (count + layers.compacting).saturating_sub(layers.list.len());
        let of_newest = Layers {
            list: newest.clone(),
            compacting,
            frontier: layers.frontier.clone(),
            ..Layers::default()
        };
        let _working = self.pool.budget().work();
        let mut sink = self.page_sink().of_layer();
        let written = self.write_compacted(tablet, applied, of_newest, &mut sink).await;
        // R8: also after an error, the blocks are free only after the writes to them have finished.
        let finished = sink.finish().await;
        let Some((root, bytes, settled)) = written.map_err(|error| self.apply_failed(&error))? else {
            // Retry with one layer less.
            *tablet.unreadable.lock() = newest.last().map(|&root| (root, self.now_ns()));
            return Ok(Compacted::Some(0));
        };
        let pages = finished.map_err(|error| self.apply_failed(&error))?;
        let freed = self.pages_of(tablet, &newest).await?;
        let _turn = self.applier.turn().await;
        self.log.poison.check()?;
        let now = tablet.view();
        let mut layers = (*now.trees.layers).clone();
        let at = layers.list.windows(count).position(|some| some == newest).filter(|at| {
            let compacting_now = (at + count + layers.compacting).saturating_sub(layers.list.len());
            let is_same_compaction = compacting == 0 || layers.frontier == trees.layers.frontier;
            now.frozen.is_none() && compacting_now == compacting && is_same_compaction
        });
        // The layers changed before the claim, or an apply failed: discard the new layer.
        let Some(at) = at else {
            return Ok(Compacted::Some(bytes));
        };
        layers.list.splice(at..at + count, root.page.is_some().then_some(root));
        assert!(compacting <= layers.compacting, "the frontier is that of these layers (INV-28)");
        layers.compacting -= compacting;
        layers.settle(0, settled);
        let trees = Trees { layers: Arc::new(layers), ..now.trees.clone() };
        let value_bytes = settled.value_bytes(now.totals.value_bytes);
        let new = NewTree::new(trees, now.applied, Totals { value_bytes, ..now.totals });
        self.publish_tree(tablet, NewTree { pages: vec![pages], freed, ..new }).await?;
        self.pay(tablet, &now.trees, Some(root.entries));
        tracing::debug!("tablet {}: {count} layers became one of {} entries", tablet.id, root.entries);
        OperationCounters::add(&self.counters.merged_bytes, bytes);
        OperationCounters::add(&self.counters.merges, 1);
        Ok(Compacted::Some(bytes))
    }

    /// Writes the entries and tombstones of `newest` as one tree. Returns `None` if damage hides some of them.
    async fn write_compacted(
        &self,
        tablet: &Tablet,
        applied: Lsn,
        newest: Layers,
        sink: &mut PoolSink<'_>,
    ) -> Result<Option<(Root, u64, Settled)>> {
        let mut cursor = self.cursor_over(tablet, newest);
        cursor.approach(&[]);
        let mut writer = TreeWriter::new(tree_of(self.identity, tablet.id), applied, sink);
        let (mut bytes, mut settled, mut entry) = (0, Settled::default(), Vec::new());
        while let Some(CompactedEntry { key, found, unsettled }) = cursor.next_compacted().await? {
            bytes += (key.len() + found.len()) as u64;
            settled.add(unsettled.settled);
            entry.clear();
            with_estimate(&found, unsettled.estimate, &mut entry);
            writer.push(&key, &entry).await?;
        }
        if !cursor.take_gaps().is_empty() {
            return Ok(None);
        }
        Ok(Some((writer.finish().await?, bytes, settled)))
    }

    /// Takes the keys out of the trees below a damaged layer that it may have held: their entries are older, and the blocks that
    /// they named were freed.
    async fn give_up_gaps(&self, tablet: &Tablet, view: &View) -> Result<GivenUp> {
        let tree = tree_of(self.identity, tablet.id);
        let source = PoolPages::new(&self.pool).giving_up(true).of_pass();
        let layers = &*view.trees.layers;
        let mut ranges = Vec::new();
        let mut gone: Vec<Bytes> = Vec::new();
        for (index, &root) in layers.list.iter().enumerate() {
            let one = Layers { list: vec![root], ..Layers::default() };
            let mut cursor = self.cursor_over(tablet, one);
            cursor.approach(layers.valid_from(index));
            let mut gaps = Vec::new();
            while cursor.next_with_tombstones().await?.is_some() {
                gaps.extend(cursor.take_gaps());
            }
            gaps.extend(cursor.take_gaps());
            for mut gap in gaps {
                // Below the frontier the layer does not decide, damaged or not.
                if *gap.low < *layers.valid_from(index) {
                    gap.low = layers.valid_from(index).to_vec();
                }
                let older = Trees {
                    base: view.trees.base,
                    layers: Arc::new(Layers { list: layers.list[index + 1..].to_vec(), ..layers.clone() }),
                };
                let mut below =
                    TreesCursor::new(tree, &source, &older, gap.high.as_deref(), None).past_damage();
                below.approach(&gap.low);
                let mut finder = LeafFinder::new(tree, source, root);
                while let Some((key, _)) = below.next().await? {
                    let place = finder.find(&Probe::unexpected(tree, &key)).await?;
                    let held = !matches!(place, LeafPlace::None | LeafPlace::Leaf { may_hold: false, .. });
                    let newer = Trees {
                        base: Root::EMPTY,
                        layers: Arc::new(Layers { list: layers.list[..index].to_vec(), ..Layers::default() }),
                    };
                    let is_newer = newer.holds(tree, &source, &key).await?;
                    if held && !is_newer && !is_reserved(&key) {
                        gone.push(key.into());
                    }
                }
                ranges.push(gap.in_tablet(tablet.id));
            }
        }
        gone.sort_unstable();
        gone.dedup();
        if !gone.is_empty() {
            let ops: Vec<CompactionOp> = gone
                .iter()
                .map(|key| CompactionOp { key: key.clone(), entry: None, estimate: None })
                .collect();
            self.drop_from_trees(tablet, view, &ops).await?;
        }
        Ok(GivenUp { ranges, keys: gone })
    }

    /// Publishes that these keys do not exist: a layer of tombstones above all trees.
    async fn drop_from_trees(&self, tablet: &Tablet, view: &View, ops: &[CompactionOp]) -> Result<()> {
        let tree = tree_of(self.identity, tablet.id);
        let mut sink = self.page_sink();
        let written = async {
            let mut writer = TreeWriter::new(tree, view.applied, &mut sink);
            for op in ops {
                writer.push(&op.key, &tombstone(view.applied)).await?;
            }
            writer.finish().await
        };
        let root = match written.await {
            Ok(root) => root,
            Err(error) => {
                drop(sink.finish().await);
                return Err(self.apply_failed(&error));
            }
        };
        let pages = sink.finish().await.map_err(|error| self.apply_failed(&error))?;
        let trees = view.trees.clone().with_layer(root, 0, 0);
        let new = NewTree::new(trees, view.applied, view.totals);
        self.publish_tree(tablet, NewTree { pages: vec![pages], ..new }).await
    }
}

/// The trees of a tablet, without the view that would keep their freed blocks from being reused.
fn trees_of(tablet: &Tablet) -> (Trees, Lsn) {
    let view = tablet.view();
    (view.trees.clone(), view.applied)
}

/// The current layers of a tablet if `of_slice` is still a slice of their compaction; `None` if another compaction intervened.
fn layers_now(view: &View, of_slice: &Layers) -> Option<Layers> {
    let mut layers = (*view.trees.layers).clone();
    if layers.compacting == 0 {
        (layers.compacting, layers.frontier) = (of_slice.compacting, Vec::new());
    }
    let is_same = layers.compacting == of_slice.compacting
        && layers.frontier == of_slice.frontier
        && layers.list.ends_with(of_slice.being_compacted());
    is_same.then_some(layers)
}

/// The least key above `key`.
fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
