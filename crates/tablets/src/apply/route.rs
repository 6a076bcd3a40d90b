//! Divides the records of an apply between the base and a new layer.
//!
//! A leaf of the base that meets many records is rewritten: each record costs a fraction of a page. Sparse records would cost a page each,
//! so they become a layer. A record goes into the base only if no layer holds its key (INV-30): an entry of a layer would shadow it. One
//! probe of the filters answers both this and which leaves may hold the replaced entry: mostly none, so a new key costs no read. An entry of
//! a *plain* leaf frees nothing if it is replaced: a value that stays in its leaf shadows it unread (INV-27).

use shoal_base::Lsn;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::{is_reserved, is_uncounted};
use shoal_common::leaf_entry::{ESTIMATE_BYTES, is_inline, is_plain};
use shoal_log::{FETCHED, fetch};
use shoal_space_manager::TREE_BLOCKS_PER_RECORD;
use shoal_tree::layers::{Trees, is_tombstone, tombstone};
use shoal_tree::{
    ENTRY_BYTES_MAX, Fate, LeafFinder, LeafPlace, Merge, Old, PageRef, PageSource, Probe, ReadHint, Root,
    Tree, TreeWriter,
};

use crate::apply::progress::Progress;
use crate::apply::replace::{Op, ReplaceEntries, What};
use crate::checkpoint::checkpointer::Checkpointer;
use crate::tablet::damage::Unread;
use crate::tablet::tree_io::{PageBlocks, PoolPages, PoolSink, Remembers};

/// Old leaves that are requested and not looked up yet, at most. The device needs many requests in flight.
const SETTLED_AT_A_TIME: usize = 2_048;
/// The same if the pool has room for few pages.
const SETTLED_AT_LEAST: usize = 64;

/// A leaf that may hold the key of an operation.
#[derive(Clone, Copy)]
enum OldLeaf {
    Of {
        is_layer: bool,
        page: PageRef,
    },
    /// The page that would name the leaf is damaged.
    Unknown,
    /// The replaced entry frees nothing, and is shadowed unread.
    Unread,
}

/// The operations of an apply by destination; each list in the order of the keys.
#[derive(Default)]
pub(crate) struct Routed {
    pub direct: Vec<Op>,
    pub layered: Layered,
}

/// Operations for a new layer, and the places of the entries that they replace.
#[derive(Default)]
pub(crate) struct Layered {
    pub ops: Vec<Op>,
    old: OldLeaves,
}

/// Leaves that may hold the entry that an operation replaces, with the operation's number; in the order of the operations, for each the
/// newest tree's first. Few operations of a large store have any, so most cost nothing here.
type OldLeaves = Vec<(usize, OldLeaf)>;

/// The destination of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Destination {
    Base,
    Layer,
    /// Into the base if enough other operations go to the same leaf.
    Open,
}

/// The leaves that may hold the key of one operation, the newest tree's first.
#[derive(Default)]
struct Candidates {
    leaves: Vec<OldLeaf>,
    in_layer: bool,
    in_base: bool,
    /// True if none of the leaves has an entry that owns blocks or has a deadline, or a tombstone.
    are_plain: bool,
    /// Damaged layers of one leaf that were met before.
    damaged: Vec<PageRef>,
}

/// The destinations of operations, in the order of the keys. Neighbours that go to one leaf form a group, which is decided once it is
/// complete.
struct Destinations {
    of_ops: Vec<Destination>,
    old: OldLeaves,
    /// The leaf of the last group, and the number of its first operation.
    group: (Option<PageRef>, usize),
    /// A leaf that meets at least this many operations is rewritten.
    dense: usize,
}

/// A layer that is written but not published yet.
pub(crate) struct NewLayer<'a> {
    pub root: Root,
    pub pages: PageBlocks<'a>,
    /// Keys that exist now and did not before, and the reverse.
    pub added: u64,
    pub removed: u64,
}

impl Destinations {
    fn new(ops: usize, dense: usize) -> Self {
        Self { of_ops: Vec::with_capacity(ops), old: Vec::new(), group: (None, 0), dense }
    }

    /// Notes the next operation, and the leaf of the base that it would go to, if known.
    fn note(&mut self, destination: Destination, leaf: Option<PageRef>) {
        if leaf.is_none() || leaf != self.group.0 {
            self.decide();
            self.group = (leaf, self.of_ops.len());
        }
        self.of_ops.push(destination);
    }

    /// Notes the leaves that may hold the entry that the next operation replaces. If it probably exists and nothing outside of leaves can
    /// be freed, `op` shadows it unread. Only the filter of one leaf of the base may be wrong about the existence: this bounds the error of
    /// the number of keys.
    fn note_old(&mut self, op: &Op, old: &mut Candidates) {
        let is_unread = old.in_base && old.are_plain && may_shadow_unread(op);
        let number = self.of_ops.len();
        if is_unread {
            old.leaves.clear();
            self.old.push((number, OldLeaf::Unread));
        }
        self.old.extend(old.leaves.drain(..).map(|leaf| (number, leaf)));
    }

    /// Decides the last group. An operation with an unknown leaf goes into the base, as does one whose leaf meets many.
    fn decide(&mut self) {
        let (leaf, start) = self.group;
        let group = &mut self.of_ops[start..];
        let open = group.iter().filter(|&&destination| destination == Destination::Open).count();
        let destination =
            if leaf.is_none() || open >= self.dense { Destination::Base } else { Destination::Layer };
        group.iter_mut().filter(|open| **open == Destination::Open).for_each(|open| *open = destination);
    }

    fn layered(&self) -> usize {
        self.of_ops.iter().filter(|&&destination| destination == Destination::Layer).count()
    }

    /// Divides the operations. Those of the layer stay in the memory of `ops`: they are not copied to a second list.
    fn divide(self, mut ops: Vec<Op>) -> Routed {
        let Self { of_ops, mut old, .. } = self;
        assert_eq!(of_ops.len(), ops.len(), "each operation has its destination (INV-30)");
        let mut destinations = of_ops.iter();
        let direct = ops.extract_if(.., |_| destinations.next() == Some(&Destination::Base)).collect();
        let (mut seen, mut before) = (0, 0);
        old.retain_mut(|(op, _)| {
            before +=
                of_ops[seen..*op].iter().filter(|&&destination| destination == Destination::Base).count();
            seen = *op;
            let is_layered = of_ops[seen] == Destination::Layer;
            *op -= before;
            is_layered
        });
        Routed { direct, layered: Layered { ops, old } }
    }
}

impl Checkpointer {
    /// Divides the operations of an apply.
    ///
    /// # Errors
    /// As the device.
    pub(crate) async fn route(
        &self,
        tree: Tree,
        trees: &Trees,
        unread: Unread,
        ops: Vec<Op>,
        progress: &mut Progress<'_>,
    ) -> Result<Routed> {
        let has_layers = !trees.layers.list.is_empty();
        if !has_layers && !self.may_start_layers(trees, &ops) {
            return Ok(Routed { direct: ops, ..Routed::default() });
        }
        progress.looks();
        let destinations = self.look_at_leaves(tree, trees, unread, &ops, progress).await?;
        let layered = destinations.layered();
        if !has_layers && (layered * 16 < ops.len() || layered < self.tuning.layer_records_min) {
            return Ok(Routed { direct: ops, ..Routed::default() });
        }
        Ok(destinations.divide(ops))
    }

    /// Returns true if a tablet without layers is large enough for one.
    fn may_start_layers(&self, trees: &Trees, ops: &[Op]) -> bool {
        trees.base.entries >= self.tuning.layers_from && self.has_room_for_layer(ops)
    }

    /// Returns true if the device has room to merge a layer of these operations later (INV-32), including the possible growth of a file.
    /// Without room, as many operations as possible go into the base.
    fn has_room_for_layer(&self, ops: &[Op]) -> bool {
        self.room_with_growth() > ops.len() as u64 * 2 * TREE_BLOCKS_PER_RECORD
    }

    /// Free blocks and holes, plus the blocks by which the device can still grow.
    pub fn room_with_growth(&self) -> u64 {
        let device = self.device.inner();
        let growth =
            if device.can_grow() { self.layout().blocks_max.saturating_sub(device.blocks()) } else { 0 };
        self.space.available() + self.space.holes().blocks() + growth
    }

    /// Finds the destination of each operation: operations whose leaf meets enough of them go into the base, and if room is short, all that
    /// may.
    async fn look_at_leaves(
        &self,
        tree: Tree,
        trees: &Trees,
        unread: Unread,
        ops: &[Op],
        progress: &mut Progress<'_>,
    ) -> Result<Destinations> {
        let source = PoolPages::new(&self.pool).giving_up(unread != Unread::Fails);
        let roots = trees.layers.list.iter().chain(std::iter::once(&trees.base));
        let mut finders: Vec<_> = roots.map(|&root| LeafFinder::new(tree, source, root)).collect();
        // A layer of values that are moved to gather free blocks would take more of them, and its pages do not move.
        let gathers = self.space.closed.fills_short_runs() && ops.iter().all(|op| op.record().is_none());
        let may_layer = self.has_room_for_layer(ops) && !gathers;
        let dense = if may_layer { self.tuning.dense_records } else { 0 };
        let mut destinations = Destinations::new(ops.len(), dense);
        let mut old = Candidates::default();
        for (at, op) in ops.iter().enumerate() {
            if at % FETCHED == 0 {
                fetch(ops[at..].iter().take(FETCHED).filter_map(Op::record));
            }
            progress.note(1);
            let key = op.key();
            if is_reserved(key) || matches!(op.what, What::Touch(_)) {
                destinations.note(Destination::Base, None);
                continue;
            }
            let probe = Probe::unexpected(tree, key);
            let mut leaf = None;
            (old.in_layer, old.in_base, old.are_plain) = (false, false, true);
            for (number, root) in trees.at(key) {
                let is_layer = number < trees.layers.list.len();
                let (place, plain) = match finders[number].find(&probe).await? {
                    LeafPlace::None => continue,
                    LeafPlace::Leaf { page, mut may_hold, mut is_plain } => {
                        leaf = if is_layer { leaf } else { Some(page) };
                        // A layer of one leaf has no filter: the leaf itself is asked, but a damaged one only once.
                        if is_layer && root.height == 1 && !old.damaged.contains(&page) {
                            match ask_leaf(tree, &source, page, &probe).await? {
                                Some(answer) => (may_hold, is_plain) = answer,
                                None => old.damaged.push(page),
                            }
                        }
                        if !may_hold {
                            continue;
                        }
                        (OldLeaf::Of { is_layer, page }, is_plain || injected(Bug::OwnersUnread))
                    }
                    LeafPlace::Unknown(_) => (OldLeaf::Unknown, false),
                };
                old.in_layer |= is_layer;
                old.in_base |= !is_layer;
                old.are_plain &= plain;
                old.leaves.push(place);
            }
            destinations.note_old(op, &mut old);
            let is_free = !old.in_layer || injected(Bug::DirectBesideLayer);
            destinations.note(if is_free { Destination::Open } else { Destination::Layer }, leaf);
        }
        destinations.decide();
        Ok(destinations)
    }

    /// Writes the layer of `layered` above `trees`; passes the replaced entries to `merge`.
    ///
    /// # Errors
    /// As the device; the errors of `merge`.
    pub(crate) async fn write_layer(
        &self,
        (tree, lsn): (Tree, Lsn),
        unread: Unread,
        merge: &mut ReplaceEntries<'_>,
        layered: &Layered,
    ) -> Result<NewLayer<'_>> {
        let mut sink = self.page_sink().of_layer();
        let written = self.fill_layer((tree, lsn), unread, merge, layered, &mut sink).await;
        let (root, added, removed) = match written {
            Ok(written) => written,
            Err(error) => {
                let error = self.apply_failed(&error);
                // R8: the pages' blocks are returned only after the writes to them have finished.
                drop(sink.finish().await);
                return Err(error);
            }
        };
        let pages = sink.finish().await.map_err(|error| self.apply_failed(&error))?;
        Ok(NewLayer { root, pages, added, removed })
    }

    async fn fill_layer(
        &self,
        (tree, lsn): (Tree, Lsn),
        unread: Unread,
        merge: &mut ReplaceEntries<'_>,
        layered: &Layered,
        sink: &mut PoolSink<'_>,
    ) -> Result<(Root, u64, u64)> {
        let remembers = if unread == Unread::Fails { Remembers::WrongBytes } else { Remembers::All };
        let source = PoolPages::new(&self.pool).giving_up(unread != Unread::Fails).remembering(remembers);
        let source = source.paced_by(self.pacing());
        let mut writer = TreeWriter::new(tree, lsn, sink);
        let (mut added, mut removed, mut new) = (0, 0, Vec::new());
        let (mut old, mut asked) = (&layered.old[..], 0);
        for (number, op) in layered.ops.iter().enumerate() {
            // The leaves that are read and not looked up yet.
            asked = asked.max(layered.old.len() - old.len());
            let waiting = asked + old.len() - layered.old.len();
            let most = source.ahead_max().clamp(SETTLED_AT_LEAST, SETTLED_AT_A_TIME).min(source.depth());
            if waiting <= most / 2 && asked < layered.old.len() {
                let some = &layered.old[asked..layered.old.len().min(asked + most - waiting)];
                let leaves: Vec<PageRef> = some.iter().filter_map(|(_, leaf)| leaf.page()).collect();
                source.prefetch(&leaves, 0, ReadHint::Apply);
                asked += some.len();
            }
            if number % FETCHED == 0 {
                fetch(layered.ops[number..].iter().take(FETCHED).filter_map(Op::record));
            }
            let leaves;
            (leaves, old) = old.split_at(old.iter().take_while(|(op, _)| *op == number).count());
            if let [(_, OldLeaf::Unread)] = leaves {
                new.clear();
                merge.shadow_unread(op, &mut new)?;
                writer.push(op.key(), &new).await?;
                continue;
            }
            let settled = settle(tree, &source, op.key(), leaves).await?;
            let old = match &settled {
                Settled::Absent => Old::Absent,
                Settled::Present(entry) => Old::Present(entry),
                Settled::Lost => Old::Lost,
            };
            new.clear();
            match merge.merge(op, old, &mut new)? {
                Fate::Stay => {}
                Fate::Put => {
                    added += u64::from(!matches!(old, Old::Present(_)));
                    writer.push(op.key(), &new).await?;
                }
                Fate::Delete => {
                    removed += u64::from(matches!(old, Old::Present(_)));
                    if !matches!(old, Old::Absent) && !injected(Bug::TombstoneLeftOut) {
                        writer.push(op.key(), &tombstone(version_of_delete(op))).await?;
                    }
                }
            }
        }
        Ok((writer.finish().await?, added, removed))
    }
}

/// Returns true if an operation may shadow a plain entry unread: the put of a value that stays in its leaf, with room for the estimate.
/// Results, uploads and parts are counted exactly.
fn may_shadow_unread(op: &Op) -> bool {
    let What::Record(record) = &op.what else { return false };
    let body = record.body_bytes();
    op.body.is_none()
        && op.deletes().is_none()
        && is_inline(body)
        && !is_uncounted(op.key())
        && op.key().len() + size_of::<Lsn>() + ESTIMATE_BYTES + body.len() <= ENTRY_BYTES_MAX
}

/// Returns true if a leaf has the key, and true if its entry for the key is plain; `None` if the leaf is damaged.
///
/// # Errors
/// As the device.
async fn ask_leaf<S: PageSource>(
    tree: Tree,
    source: &S,
    page: PageRef,
    probe: &Probe<'_>,
) -> Result<Option<(bool, bool)>> {
    match tree.lookup_leaf(source, page, probe).await {
        Ok(found) => Ok(Some((found.is_some(), found.is_some_and(|found| is_plain(&found))))),
        Err(Error::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The entry that an operation replaces.
enum Settled<P> {
    Absent,
    Present(shoal_tree::Found<P>),
    /// Unknown: a page is damaged.
    Lost,
}

async fn settle<S: PageSource>(
    tree: Tree,
    source: &S,
    key: &[u8],
    old: &[(usize, OldLeaf)],
) -> Result<Settled<S::Page>> {
    if injected(Bug::NotSettled) {
        return Ok(Settled::Absent);
    }
    for (_, leaf) in old {
        let &OldLeaf::Of { is_layer, page } = leaf else { return Ok(Settled::Lost) };
        match tree.lookup_leaf(source, page, &Probe::expected(tree, key)).await {
            Ok(None) => {}
            Ok(Some(found)) if is_layer && is_tombstone(&found) => return Ok(Settled::Absent),
            Ok(Some(found)) => return Ok(Settled::Present(found)),
            Err(Error::Corrupt { .. }) => return Ok(Settled::Lost),
            Err(error) => return Err(error),
        }
    }
    Ok(Settled::Absent)
}

/// The version of the record that deletes a key.
fn version_of_delete(op: &Op) -> Lsn {
    op.deletes().unwrap_or_else(|| unreachable!("only a record deletes"))
}

impl OldLeaf {
    fn page(&self) -> Option<PageRef> {
        match self {
            Self::Of { page, .. } => Some(*page),
            Self::Unknown | Self::Unread => None,
        }
    }
}
