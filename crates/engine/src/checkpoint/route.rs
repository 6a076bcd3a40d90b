//! Which records of an apply go into the base, and which into a new layer.
//!
//! A leaf of the base that meets many records is rewritten: each record costs a fraction of a page. Records that fall thinly would
//! cost a page each, so they become a layer. A record goes into the base only if no layer holds its key (INV-30): an entry of a
//! layer would shadow it. The filters say so, and the same look at them finds the leaves that may hold what a record replaces:
//! mostly none, so a new key costs no read.

use shoal_base::Lsn;
use smallvec::SmallVec;

use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::progress::Progress;
use crate::checkpoint::replace::{Op, ReplaceEntries, What};
use crate::common::counters::OperationCounters;
use crate::common::error::{Error, Result};
use crate::log::format::RecordKind;
use crate::log::record::{FETCHED, fetch};
use crate::space::manager::TREE_BLOCKS_PER_RECORD;
use crate::tablet::damage::Unread;
use crate::tablet::layers::{Trees, is_tombstone, tombstone};
use crate::tablet::tree::{
    Change, LeafFinder, LeafPlace, Merge, Old, PageRef, PageSource, Probe, ReadHint, Root, Tree, TreeWriter,
};
use crate::tablet::tree_io::{Pages, PoolPages, PoolSink};
use crate::testing::injected_bug::{Bug, injected};
use crate::value::packed::is_reserved;

/// Operations whose old leaves are asked for together, while those of the ones before are looked at: of new keys one in some hundred
/// has any, by an error of the filters, and a device is as fast as it has requests.
const SETTLED_AT_A_TIME: usize = 2_048;
/// The same where the pool has room for few pages.
const SETTLED_AT_LEAST: usize = 64;

/// An operation for a new layer, and where the entry lies that it replaces, if there is one.
pub(crate) struct Layered {
    pub op: Op,
    /// Leaves that may hold the key, the newest tree's first.
    old: SmallVec<[OldLeaf; 2]>,
}

/// A leaf that may hold the key of an operation.
#[derive(Clone, Copy)]
enum OldLeaf {
    Of {
        is_layer: bool,
        page: PageRef,
    },
    /// The page that would name it is damaged.
    Unknown,
}

/// The operations of an apply, by where they go; each list in the order of the keys.
#[derive(Default)]
pub(crate) struct Routed {
    pub direct: Vec<Op>,
    pub layered: Vec<Layered>,
}

/// A layer that is written, and not published yet.
pub(crate) struct NewLayer<'a> {
    pub root: Root,
    pub pages: Pages<'a>,
    /// Keys that exist now and did not before, and the other way round.
    pub added: u64,
    pub removed: u64,
}

/// Where an operation may go.
struct Looked {
    /// The leaf of the base; none where it must go into the base, or where nobody knows.
    leaf: Option<PageRef>,
    must_be_direct: bool,
    /// Whether a layer may hold the key.
    in_layer: bool,
    old: SmallVec<[OldLeaf; 2]>,
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
            progress.note(ops.len());
            return Ok(Routed { direct: ops, layered: Vec::new() });
        }
        let looked = self.look_at_leaves(tree, trees, unread, &ops, progress).await?;
        let is_short = !self.has_room_for_layer(&ops);
        let is_direct = self.direct_ones(&looked, is_short);
        let layered = is_direct.iter().filter(|&&direct| !direct).count();
        if !has_layers && (layered * 16 < ops.len() || layered < self.tuning.layer_records_min) {
            return Ok(Routed { direct: ops, layered: Vec::new() });
        }
        let mut routed = Routed::default();
        for ((op, looked), is_direct) in ops.into_iter().zip(looked).zip(is_direct) {
            if is_direct {
                routed.direct.push(op);
            } else {
                routed.layered.push(Layered { op, old: looked.old });
            }
        }
        Ok(routed)
    }

    /// Whether a tablet without layers is large enough for one.
    fn may_start_layers(&self, trees: &Trees, ops: &[Op]) -> bool {
        trees.base.entries >= self.tuning.layers_from && self.has_room_for_layer(ops)
    }

    /// Whether the device has room to merge a layer of these operations later (INV-32), where it is a file, after it has grown.
    /// Without room as much as possible goes into the base.
    fn has_room_for_layer(&self, ops: &[Op]) -> bool {
        let device = self.device.inner();
        let growth =
            if device.can_grow() { self.layout().blocks_max.saturating_sub(device.blocks()) } else { 0 };
        self.space.available() + growth > ops.len() as u64 * 2 * TREE_BLOCKS_PER_RECORD
    }

    async fn look_at_leaves(
        &self,
        tree: Tree,
        trees: &Trees,
        unread: Unread,
        ops: &[Op],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Looked>> {
        let source = PoolPages::new(&self.pool).giving_up(unread != Unread::Fails);
        let roots = trees.layers.list.iter().chain(std::iter::once(&trees.base));
        let mut finders: Vec<_> = roots.map(|&root| LeafFinder::new(tree, source, root)).collect();
        let mut all = Vec::with_capacity(ops.len());
        for (at, op) in ops.iter().enumerate() {
            if at % FETCHED == 0 {
                fetch(ops[at..].iter().take(FETCHED).filter_map(Op::record));
            }
            let key = op.key();
            let must_be_direct = is_reserved(key) || matches!(op.what, What::Touch(_));
            let mut looked = Looked { leaf: None, must_be_direct, in_layer: false, old: SmallVec::new() };
            if !must_be_direct {
                let probe = Probe::unexpected(tree, key);
                for (number, _) in trees.at(key) {
                    let is_layer = number < trees.layers.list.len();
                    let place = finders[number].find(&probe).await?;
                    looked.note(is_layer, place);
                }
            }
            all.push(looked);
            progress.note(1);
        }
        Ok(all)
    }

    /// Which operations go into the base: those whose leaf meets enough of them, and all that may where room is short.
    fn direct_ones(&self, looked: &[Looked], is_short: bool) -> Vec<bool> {
        let mut direct = Vec::with_capacity(looked.len());
        for group in looked.chunk_by(|one, next| one.leaf == next.leaf && one.leaf.is_some()) {
            let is_free = |looked: &Looked| !looked.in_layer || injected(Bug::DirectBesideLayer);
            let free = group.iter().filter(|looked| is_free(looked)).count();
            let is_dense = free >= self.tuning.dense_records || is_short || group[0].leaf.is_none();
            direct.extend(group.iter().map(|looked| looked.must_be_direct || is_dense && is_free(looked)));
        }
        direct
    }

    /// Writes the layer of `layered` above `trees`; `merge` learns what the records replace.
    ///
    /// # Errors
    /// As the device, and what `merge` says.
    pub(crate) async fn write_layer(
        &self,
        (tree, lsn): (Tree, Lsn),
        unread: Unread,
        merge: &mut ReplaceEntries<'_>,
        layered: &[Layered],
    ) -> Result<NewLayer<'_>> {
        let mut sink = PoolSink::new(&self.pool, &self.space, self.tuning.apply_bytes_in_flight).of_layer();
        let written = self.fill_layer((tree, lsn), unread, merge, layered, &mut sink).await;
        let (root, added, removed) = match written {
            Ok(written) => written,
            Err(error) => {
                let error = self.apply_failed(&error);
                // R8: the pages' blocks go back only when the writes on them have ended.
                drop(sink.finish().await);
                return Err(error);
            }
        };
        let pages = sink.finish().await.map_err(|error| self.apply_failed(&error))?;
        let blocks = pages.taken.iter().map(|run| u64::from(run.blocks)).sum();
        OperationCounters::add(&self.counters.pages_written, blocks);
        Ok(NewLayer { root, pages, added, removed })
    }

    async fn fill_layer(
        &self,
        (tree, lsn): (Tree, Lsn),
        unread: Unread,
        merge: &mut ReplaceEntries<'_>,
        layered: &[Layered],
        sink: &mut PoolSink<'_>,
    ) -> Result<(Root, u64, u64)> {
        let source = PoolPages::new(&self.pool).giving_up(unread != Unread::Fails);
        let mut writer = TreeWriter::new(tree, lsn, sink);
        let (mut added, mut removed, mut new) = (0, 0, Vec::new());
        let at_a_time = source.ahead_max().clamp(SETTLED_AT_LEAST, SETTLED_AT_A_TIME);
        let ask = |some: &[Layered]| {
            let leaves: Vec<PageRef> = some.iter().flat_map(Layered::leaves).collect();
            source.prefetch(&leaves, 0, ReadHint::Apply);
        };
        let mut later = layered.chunks(at_a_time);
        later.next().into_iter().for_each(ask);
        for some in layered.chunks(at_a_time) {
            later.next().into_iter().for_each(ask);
            for (at, Layered { op, old }) in some.iter().enumerate() {
                if at % FETCHED == 0 {
                    fetch(some[at..].iter().take(FETCHED).filter_map(|layered| layered.op.record()));
                }
                let settled = settle(tree, &source, op.key(), old).await?;
                let old = match &settled {
                    Settled::Absent => Old::Absent,
                    Settled::Present(entry) => Old::Present(entry),
                    Settled::Lost => Old::Lost,
                };
                new.clear();
                match merge.merge(op, old, &mut new)? {
                    Change::Stay => {}
                    Change::Put => {
                        added += u64::from(!matches!(old, Old::Present(_)));
                        writer.push(op.key(), &new).await?;
                    }
                    Change::Delete => {
                        removed += u64::from(matches!(old, Old::Present(_)));
                        if !matches!(old, Old::Absent) && !injected(Bug::TombstoneLeftOut) {
                            writer.push(op.key(), &tombstone(version_of(op))).await?;
                        }
                    }
                }
            }
        }
        Ok((writer.finish().await?, added, removed))
    }
}

/// The entry that an operation replaces.
enum Settled<P> {
    Absent,
    Present(crate::tablet::tree::Found<P>),
    /// Nobody knows: a page is damaged.
    Lost,
}

async fn settle<S: PageSource>(
    tree: Tree,
    source: &S,
    key: &[u8],
    old: &[OldLeaf],
) -> Result<Settled<S::Page>> {
    if injected(Bug::NotSettled) {
        return Ok(Settled::Absent);
    }
    for leaf in old {
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

/// The number of the record that deletes a key.
fn version_of(op: &Op) -> Lsn {
    match &op.what {
        What::Record(record) if record.kind() == RecordKind::Delete => record.lsn(),
        _ => unreachable!("only a record deletes"),
    }
}

impl Looked {
    fn note(&mut self, is_layer: bool, place: LeafPlace) {
        match place {
            LeafPlace::None => {}
            LeafPlace::Leaf { page, may_hold } => {
                if !is_layer {
                    self.leaf = Some(page);
                }
                if may_hold {
                    self.in_layer |= is_layer;
                    self.old.push(OldLeaf::Of { is_layer, page });
                }
            }
            LeafPlace::Unknown(_) => {
                self.in_layer |= is_layer;
                self.old.push(OldLeaf::Unknown);
            }
        }
    }
}

impl Layered {
    fn leaves(&self) -> impl Iterator<Item = PageRef> {
        self.old.iter().filter_map(|leaf| match leaf {
            OldLeaf::Of { page, .. } => Some(*page),
            OldLeaf::Unknown => None,
        })
    }
}
