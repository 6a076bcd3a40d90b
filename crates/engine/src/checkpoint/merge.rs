//! Merging the layers of a tablet into its base, slice by slice in the order of the keys.
//!
//! A slice takes the entries of all layers that are being merged from the frontier on, applies them to the base as an apply does, and
//! is published with the new frontier (INV-28): a crash loses the work of one slice at most. The blocks that an entry shadowed
//! were freed when its layer was written (INV-27), so a merge frees pages only: those of the base that it replaces, and at the
//! end those of the layers. Applies go on beside a slice, and the layers that they write wait for the next merge. Where one
//! changes the base meanwhile, the slice is put into the new base while no apply runs.
//!
//! A layer that cannot be read is a barrier (INV-34): entries below it may be older than those that it held. It stays, and
//! answers with errors where it is damaged, until a repair gives it up. The layers above it are merged with each other, so their
//! number stays bounded.

mod choice;

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::list::DamagedRange;
use shoal_base::{Lsn, Run};

use crate::checkpoint::apply::NewTree;
use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::merge::choice::Step;
pub(crate) use crate::checkpoint::merge::choice::Wanted;
use crate::common::counters::OperationCounters;
use crate::common::damaged_range;
use crate::common::error::{Error, Result};
use crate::space::manager::{ReadEpoch, Reservation, TREE_BLOCKS_PER_RECORD};
use crate::tablet::damage::Unread;
use crate::tablet::layers::{LAYERS_MAX, Layers, Trees, is_tombstone, tombstone, version_of};
use crate::tablet::tree::{Change, Gap, LeafFinder, LeafPlace, Merge, Old, Probe, Root, TreeWriter};
use crate::tablet::tree_io::{Pages, PoolPages, PoolSink, is_of_medium, tree_of};
use crate::tablet::trees_cursor::TreesCursor;
use crate::tablet::view::{Tablet, View};
use crate::testing::injected_bug::{Bug, injected};
use crate::value::packed::is_reserved;

/// Bytes of entries that are merged for each byte of a memtable that is applied.
const MERGED_PER_FRESH: u64 = 2;

/// The factor by which slices are longer where many layers wait. A slice is put into the base between two applies, so it must merge more
/// entries than an apply adds.
const SLICE_BEHIND: u64 = 4;
/// A write that finds no room merges layers with so many entries in all: about a second's work.
const ENTRIES_FOR_ROOM_MAX: u64 = 1 << 18;
/// An entry of a layer on its way into the base; none: the key does not exist.
struct MergeOp {
    key: Bytes,
    entry: Option<Bytes>,
}

/// Puts the entries of layers in place of those of the base.
struct TakeEntries;

impl Merge for TakeEntries {
    type Op = MergeOp;

    fn key<'a>(&self, op: &'a MergeOp) -> &'a [u8] {
        &op.key
    }

    fn merge(&mut self, op: &MergeOp, old: Old<'_>, new: &mut Vec<u8>) -> Result<Change> {
        let Some(entry) = &op.entry else { return Ok(Change::Delete) };
        assert!(!is_tombstone(entry), "a tombstone goes into the base (INV-31)");
        if let Old::Present(old) = old {
            assert!(
                version_of(old) <= version_of(entry) || injected(Bug::LayerBelowNewest),
                "a layer holds an older version than the base (INV-26, INV-30)"
            );
        }
        new.extend_from_slice(entry);
        Ok(Change::Put)
    }
}

/// The entries that a slice takes.
struct Slice {
    ops: Vec<MergeOp>,
    bytes: u64,
    /// The next slice begins here; none: this is the last one.
    next: Option<Vec<u8>>,
    /// Damage of the layers that was met behind the last entry.
    gaps: Vec<Gap>,
}

/// A slice with the layers that it was taken from, and the room for the pages of the base.
struct TakenSlice {
    layers: Layers,
    slice: Slice,
    reservation: Reservation,
}

/// A base with a slice in it, which no superblock names yet.
struct NewBase<'a> {
    /// The base that the slice was put into.
    of: Root,
    root: Root,
    /// The pages that are new, if there are any.
    pages: Vec<Pages<'a>>,
    /// While it is held, no block of the base is used again (R16): equal roots are one base.
    _epoch: Arc<ReadEpoch>,
}

/// The part of a tablet that an acknowledgement gave up.
#[derive(Default)]
pub(crate) struct GivenUp {
    pub ranges: Vec<DamagedRange>,
    /// Encoded keys that had an older state behind a damaged layer.
    pub keys: Vec<Bytes>,
}

/// The outcome of a step of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merged {
    /// Nothing is to be merged now.
    Nothing,
    /// So many bytes of entries were merged, and more are to be.
    Some(u64),
    /// The last slice, or all of a merge among layers.
    All(u64),
}

impl Checkpointer {
    /// Merges as an apply of `fresh` bytes calls for, so that a merge ends before its layers are as many again (INV-33). A merge
    /// that fails is tried again later: nothing waits for it. A store that is being closed or repaired leaves its layers as they
    /// are.
    pub(crate) async fn merge_after(&self, fresh: u64) {
        if let Some(helpers) = &self.helpers {
            helpers.merge.ring();
            return;
        }
        let mut credit = fresh.saturating_mul(MERGED_PER_FRESH);
        while credit > 0 && !self.closing.is_begun() && !self.gives_up {
            let Some(&tablet) = self.wanting_merges().first() else { break };
            match self.merge_some(tablet, Wanted::BySize).await {
                Ok(Merged::Nothing) => break,
                Ok(Merged::Some(bytes) | Merged::All(bytes)) => credit = credit.saturating_sub(bytes.max(1)),
                Err(error) => {
                    tracing::warn!("layers could not be merged, which will be tried again: {error}");
                    break;
                }
            }
        }
    }

    /// One step of a merge, where one is wanted; says whether there was one.
    ///
    /// # Errors
    /// As an apply.
    pub(crate) async fn merge_idle(&self) -> Result<bool> {
        for tablet in self.wanting_merges() {
            if self.merge_some(tablet, Wanted::BySize).await? != Merged::Nothing {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// One step of the merge of a tablet's layers, waiting for its turn.
    ///
    /// # Errors
    /// As an apply.
    pub(crate) async fn merge_some(&self, tablet: &Tablet, wanted: Wanted) -> Result<Merged> {
        self.log.poison.check()?;
        let (trees, applied) = trees_of(tablet);
        let step = if wanted == Wanted::ForRoom { None } else { self.next_merge(tablet, &trees) };
        let claim = match step {
            None if wanted == Wanted::BySize => return Ok(Merged::Nothing),
            Some(Step::Newest(count)) => tablet.merges.claim_layers(&trees.layers.list[..count]),
            Some(Step::Base) | None => tablet.merges.claim_base(),
        };
        let Some(_claim) = claim else {
            if wanted == Wanted::BySize {
                return Ok(Merged::Nothing);
            }
            tablet.merges.wait().await;
            return Ok(Merged::Some(0));
        };
        if let Some(Step::Newest(count)) = step {
            // Another merge may have ended before the claim, and its pages are free.
            let newest = &trees.layers.list[..count];
            if !trees_of(tablet).0.layers.list.windows(count).any(|some| some == newest) {
                return Ok(Merged::Some(0));
            }
            return self.merge_newest(tablet, &trees, applied, count).await;
        }
        // Only merges change the layers that are merged, and this one has the claim: applies go on while it reads them.
        let (trees, _) = trees_of(tablet);
        let Some(taken) = self.take_next(tablet, &trees, false).await? else { return Ok(Merged::Nothing) };
        let early = self.merge_beside_applies(tablet, trees.base, &taken).await;
        let _turn = self.applier.take().await;
        self.log.poison.check()?;
        match self.merge_slice(tablet, taken, early, self.unread(), false).await {
            // Nothing waits for a merge: it leaves pages alone that may be readable later.
            Err(Error::Io(error)) if is_of_medium(&error) => {
                tracing::warn!("tablet {}: its layers are merged later: {error}", tablet.id);
                let oldest = tablet.view().trees.layers.list.last().copied();
                *tablet.unreadable.lock() = oldest.map(|root| (root, self.now_ns()));
                Ok(Merged::Nothing)
            }
            merged => merged,
        }
    }

    /// A step of the merge of each tablet that has layers, and makes the pages that it freed reusable. Returns true if there was one.
    /// None is made where the layers are large: a write does not wait for that, and their pages are a small part of the store.
    ///
    /// # Errors
    /// As an apply. A lack of space for the pages of the base is no error.
    pub(crate) async fn merge_for_room(&self) -> Result<bool> {
        let entries: u64 = self.tablets.all().iter().map(|tablet| tablet.view().trees.layers.entries()).sum();
        if entries > ENTRIES_FOR_ROOM_MAX {
            return Ok(false);
        }
        let mut any = false;
        for tablet in self.tablets.all() {
            match self.merge_some(tablet, Wanted::ForRoom).await {
                Ok(merged) => any |= merged != Merged::Nothing,
                Err(Error::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if any {
            self.make_freed_reusable().await;
        }
        Ok(any)
    }

    /// Merges all layers of a tablet into its base, also those that came meanwhile. Objects that damaged layers hid are
    /// gone for good; returns their ranges, and the keys of those that older trees hold. The caller has the applier's
    /// turn, and everything is applied.
    ///
    /// # Errors
    /// As an apply.
    pub(crate) async fn give_up_layers(&self, tablet: &Tablet) -> Result<GivenUp> {
        let given_up = self.give_up_gaps(tablet, &tablet.view()).await?;
        loop {
            let trees = tablet.view().trees.clone();
            let Some(taken) = self.take_next(tablet, &trees, true).await? else { break };
            if self.merge_slice(tablet, taken, None, self.unread(), true).await? == Merged::Nothing {
                break;
            }
        }
        Ok(given_up)
    }

    /// Merges until another layer may come (INV-33).
    ///
    /// # Errors
    /// As an apply; [`Error::Busy`] if damaged layers leave nothing that could be merged.
    pub(crate) async fn make_room_for_a_layer(&self, tablet: &Tablet) -> Result<()> {
        while !tablet.view().trees.has_place_for_a_layer() {
            if self.merge_some(tablet, Wanted::ByForce).await? == Merged::Nothing {
                return Err(Error::Busy(
                    "too many layers of its trees are damaged: give them up with `shoal check --acknowledge`",
                ));
            }
        }
        Ok(())
    }

    /// Takes the next slice of the merge into the base; none where nothing can be merged now.
    async fn take_next(&self, tablet: &Tablet, trees: &Trees, gives_up: bool) -> Result<Option<TakenSlice>> {
        let mut layers = (*trees.layers).clone();
        if layers.list.is_empty() || self.is_blocked(tablet, &layers) && !gives_up {
            return Ok(None);
        }
        if layers.merging == 0 {
            (layers.merging, layers.frontier) = (layers.list.len(), Vec::new());
        }
        let taken = self.take_slice_with_room(tablet, &trees.base, &layers, gives_up).await?;
        Ok(taken.map(|(slice, reservation)| TakenSlice { layers, slice, reservation }))
    }

    /// Puts a slice into the base while applies go on. None where they change the base, which was `before` when the slice was taken;
    /// where room is short, because the blocks that they free are not used again meanwhile; and after an error, which comes again, or
    /// does not, while no apply runs.
    async fn merge_beside_applies(
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
        if !slice.ops.is_empty() {
            let at = (tablet, &trees, applied);
            let (merged, written) = self.merge_tree(at, unread, &mut TakeEntries, &slice.ops).await?;
            root = merged;
            pages.push(written);
        }
        Ok(NewBase { of, root, pages, _epoch: epoch })
    }

    /// Publishes a slice, which may be in the base already: `early`. The caller has the applier's turn.
    async fn merge_slice(
        &self,
        tablet: &Tablet,
        taken: TakenSlice,
        early: Option<NewBase<'_>>,
        unread: Unread,
        gives_up: bool,
    ) -> Result<Merged> {
        let TakenSlice { layers: of_slice, slice, reservation: _reservation } = taken;
        let view = tablet.view();
        // An apply that failed comes first.
        if view.frozen.is_some() {
            return Ok(Merged::Nothing);
        }
        let Some(mut layers) = layers_now(&view, &of_slice) else { return Ok(Merged::Some(0)) };
        if let Some(gap) = slice.gaps.first()
            && slice.ops.is_empty()
            && !gives_up
        {
            self.note_unreadable(tablet, &layers, gap).await;
            return Ok(Merged::Some(0));
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
        let NewBase { root: base, pages, .. } = new_base;
        let is_last = slice.next.is_none();
        let pages_written: u64 =
            pages.iter().flat_map(|pages: &Pages<'_>| &pages.taken).map(|run| u64::from(run.blocks)).sum();
        let mut freed = Vec::new();
        if let Some(frontier) = slice.next {
            assert!(frontier >= layers.frontier, "a frontier goes back (INV-28)");
            layers.frontier =
                if injected(Bug::FrontierTooFar) { [&frontier[..], &[0xFF; 4]].concat() } else { frontier };
        } else {
            freed = self.pages_of(tablet, layers.of_merge()).await?;
            self.pay(tablet, &view.trees, None);
            layers.list.truncate(layers.list.len() - layers.merging);
            (layers.merging, layers.frontier) = (0, Vec::new());
            if layers.list.is_empty() {
                layers.live = 0;
            }
        }
        let trees = Trees { base, layers: Arc::new(layers) };
        let new = NewTree::new(trees, view.applied, view.totals);
        self.publish_tree(tablet, NewTree { pages, freed, ..new }).await?;
        tracing::debug!(
            "tablet {}: merged {bytes} bytes of layers, {} pages of the base written; last slice: {is_last}",
            tablet.id,
            pages_written
        );
        OperationCounters::add(&self.counters.merged_bytes, bytes);
        OperationCounters::add(&self.counters.merges, u64::from(is_last));
        self.log.committer.moved.notify();
        Ok(if is_last { Merged::All(bytes) } else { Merged::Some(bytes) })
    }

    /// A slice, and a reservation of the blocks that the base may take for it (INV-32); a short one where the device is nearly full, none
    /// where it has no room for that.
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

    /// The entries of the layers that are being merged, from the frontier on, until they have so many bytes.
    async fn take_slice(
        &self,
        tablet: &Tablet,
        layers: &Layers,
        bytes_max: u64,
        gives_up: bool,
    ) -> Result<Slice> {
        let of_merge = Layers { list: layers.of_merge().to_vec(), ..Layers::default() };
        let mut cursor = self.cursor_over(tablet, of_merge);
        if gives_up {
            cursor = cursor.past_damage();
        }
        cursor.approach(&layers.frontier);
        let mut slice = Slice { ops: Vec::new(), bytes: 0, next: None, gaps: Vec::new() };
        loop {
            let item = cursor.next_with_tombstones().await?;
            slice.gaps.extend(cursor.take_gaps());
            if !slice.gaps.is_empty() && !gives_up {
                // The entries before the damage can be merged; the damage is met again from there on.
                slice.next = Some(slice.ops.last().map_or(layers.frontier.clone(), |op| behind(&op.key)));
                return Ok(slice);
            }
            let Some((key, found)) = item else { return Ok(slice) };
            let entry = (!is_tombstone(&found)).then(|| Bytes::copy_from_slice(&found));
            slice.bytes += (key.len() + found.len()) as u64;
            slice.ops.push(MergeOp { key: key.into(), entry });
            if slice.bytes >= bytes_max {
                slice.next = slice.ops.last().map(|op| behind(&op.key));
                return Ok(slice);
            }
        }
    }

    fn cursor_over(&self, tablet: &Tablet, layers: Layers) -> TreesCursor<PoolPages<'_>> {
        let source = PoolPages::new(&self.pool).giving_up(true);
        let trees = Trees { base: Root::EMPTY, layers: Arc::new(layers) };
        TreesCursor::new(tree_of(self.identity, tablet.id), &source, &trees, None, None)
    }

    /// The pages of trees that are not needed any more.
    async fn pages_of(&self, tablet: &Tablet, roots: &[Root]) -> Result<Vec<Run>> {
        let tree = tree_of(self.identity, tablet.id);
        let mut runs = Vec::new();
        for &root in roots {
            let (mut pages, is_whole) = tree.pages(&PoolPages::new(&self.pool), root).await?;
            if !is_whole {
                tracing::warn!(
                    "tablet {}: pages of a merged layer are lost until `shoal check --repair`",
                    tablet.id
                );
            }
            pages.sort_unstable_by_key(|page| page.block);
            for page in pages {
                match runs.last_mut() {
                    Some(Run { block, blocks }) if *block + u64::from(*blocks) == page.block => *blocks += 1,
                    _ => runs.push(Run::new(page.block, 1)),
                }
            }
        }
        Ok(runs)
    }

    /// A layer cannot be read: merges stop there.
    async fn note_unreadable(&self, tablet: &Tablet, layers: &Layers, gap: &Gap) {
        let tree = tree_of(self.identity, tablet.id);
        let source = PoolPages::new(&self.pool).giving_up(true);
        // Where none is found, the oldest: a merge of those above it finds out which of them cannot be read.
        let mut unreadable = layers.of_merge().last().copied();
        for &root in layers.of_merge().iter().rev() {
            let met = tree.gap_at(source, root, &gap.low).await;
            if met.is_some_and(|met| met.block == gap.block) {
                unreadable = Some(root);
            }
        }
        *tablet.unreadable.lock() = unreadable.map(|root| (root, self.now_ns()));
        let range = gap.clone().in_tablet(tablet.id);
        tracing::error!(
            "a layer is damaged, and layers are not merged past it until a repair: {}",
            damaged_range::words(&range)
        );
        self.tablets.met.note(&range);
    }

    /// Makes one layer of the `count` newest ones of `trees`, which the caller has claimed. Applies go on meanwhile: layers never
    /// change, and only the publish needs the applier's turn.
    async fn merge_newest(
        &self,
        tablet: &Tablet,
        trees: &Trees,
        applied: Lsn,
        count: usize,
    ) -> Result<Merged> {
        let layers = &*trees.layers;
        let newest = layers.list[..count].to_vec();
        // Some of them may be a part of the merge that met damage: these have no say below its frontier, and the layer that replaces
        // them all has a say everywhere.
        let merging = (count + layers.merging).saturating_sub(layers.list.len());
        let of_newest =
            Layers { list: newest.clone(), merging, frontier: layers.frontier.clone(), ..Layers::default() };
        let mut sink = self.page_sink().of_layer();
        let written = self.write_merged(tablet, applied, of_newest, &mut sink).await;
        // R8: also after an error the pages' blocks go back only when the writes on them have ended.
        let finished = sink.finish().await;
        let Some((root, bytes)) = written.map_err(|error| self.apply_failed(&error))? else {
            // The next try is with one layer less.
            *tablet.unreadable.lock() = newest.last().map(|&root| (root, self.now_ns()));
            return Ok(Merged::Some(0));
        };
        let pages = finished.map_err(|error| self.apply_failed(&error))?;
        let freed = self.pages_of(tablet, &newest).await?;
        let _turn = self.applier.take().await;
        self.log.poison.check()?;
        let now = tablet.view();
        let mut layers = (*now.trees.layers).clone();
        let at = layers.list.windows(count).position(|some| some == newest).filter(|at| {
            let merging_now = (at + count + layers.merging).saturating_sub(layers.list.len());
            let is_same_merge = merging == 0 || layers.frontier == trees.layers.frontier;
            now.frozen.is_none() && merging_now == merging && is_same_merge
        });
        // The claim began after they had changed, or an apply failed: the new layer is for nothing.
        let Some(at) = at else {
            return Ok(Merged::Some(bytes));
        };
        layers.list.splice(at..at + count, root.page.is_some().then_some(root));
        layers.merging -= merging;
        let trees = Trees { layers: Arc::new(layers), ..now.trees.clone() };
        let new = NewTree::new(trees, now.applied, now.totals);
        self.publish_tree(tablet, NewTree { pages: vec![pages], freed, ..new }).await?;
        self.pay(tablet, &now.trees, Some(root.entries));
        tracing::debug!("tablet {}: {count} layers became one of {} entries", tablet.id, root.entries);
        OperationCounters::add(&self.counters.merged_bytes, bytes);
        OperationCounters::add(&self.counters.merges, 1);
        Ok(Merged::Some(bytes))
    }

    /// Writes the entries and tombstones of `newest` as one tree; none where damage hides some of them.
    async fn write_merged(
        &self,
        tablet: &Tablet,
        applied: Lsn,
        newest: Layers,
        sink: &mut PoolSink<'_>,
    ) -> Result<Option<(Root, u64)>> {
        let mut cursor = self.cursor_over(tablet, newest);
        cursor.approach(&[]);
        let mut writer = TreeWriter::new(tree_of(self.identity, tablet.id), applied, sink);
        let mut bytes = 0;
        while let Some((key, found)) = cursor.next_with_tombstones().await? {
            bytes += (key.len() + found.len()) as u64;
            writer.push(&key, &found).await?;
        }
        if !cursor.take_gaps().is_empty() {
            return Ok(None);
        }
        Ok(Some((writer.finish().await?, bytes)))
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
                // Below the frontier the layer has no say, damaged or not.
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
            let ops: Vec<MergeOp> =
                gone.iter().map(|key| MergeOp { key: key.clone(), entry: None }).collect();
            self.drop_from_trees(tablet, view, &ops).await?;
        }
        Ok(GivenUp { ranges, keys: gone })
    }

    /// Publishes that these keys do not exist: a layer of tombstones above all trees.
    async fn drop_from_trees(&self, tablet: &Tablet, view: &View, ops: &[MergeOp]) -> Result<()> {
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

/// The layers of a tablet, in whose merge `of_slice` is a slice: none where another merge came between.
fn layers_now(view: &View, of_slice: &Layers) -> Option<Layers> {
    let mut layers = (*view.trees.layers).clone();
    if layers.merging == 0 {
        (layers.merging, layers.frontier) = (of_slice.merging, Vec::new());
    }
    let is_same = layers.merging == of_slice.merging
        && layers.frontier == of_slice.frontier
        && layers.list.ends_with(of_slice.of_merge());
    is_same.then_some(layers)
}

/// The least key above `key`.
fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

#[cfg(test)]
mod tests;
