//! The apply: a tablet's frozen overlay becomes a part of its tree (engine.md, "The apply").
//!
//! One at a time. It never waits for readers, and no reader waits for it: new pages and values go to fresh blocks, and the
//! publish makes them the tablet's.

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::checksum::crc32c;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{Lsn, Run, TabletId, blocks_for};
use smallvec::SmallVec;

use crate::damage::{DamagedRange, Unread};
use crate::entry::{Entry, Home, end_of, split_leaf_entry};
use crate::error::{Error, Result};
use crate::log::commit::{Item, ValueWrite};
use crate::log::format::RecordKind;
use crate::overlay::{Overlay, Record};
use crate::own_space::OwnerId;
use crate::packed::{
    Account, AccountOps, LiveValue, MoveStep, Moves, Owner, Packer, Pending, Pressure, packs,
};
use crate::plant::{Plant, planted};
use crate::publish::Changes;
use crate::space::Extents;
use crate::store::{Inner, OperationCounters};
use crate::superblock;
use crate::tablet::{Tablet, View};
use crate::tree::{Applied, Apply, Change, Merge, Old, Root, Tree};
use crate::tree_io::{Pages, PoolPages, PoolSink, is_of_medium, tree_of};
use crate::value::prepare::{Filler, fits_leaf, home_of, manifest_blocks};
use crate::value::read::Located;

/// How often an apply is tried whose pages the device cannot read, before they are given up.
const READS_TRIED: u32 = 3;

/// How often a moved run may be halved to find a hole for it.
const HOLE_HALVES: usize = 3;

/// What the apply does to one key, and the body that it gets where its value went home or moved.
pub(crate) struct Op {
    what: What,
    body: Option<Bytes>,
    /// Bytes of the value that the key has afterwards.
    value_bytes: u64,
}

enum What {
    /// A record of the overlay.
    Record(Arc<Record>),
    /// A value that the tree holds goes to another place.
    Move(Box<Moved>),
    /// The entry of this key stays, and goes with its leaf to another block.
    Touch(Bytes),
}

struct Moved {
    key: Bytes,
    version: Lsn,
    /// As the tree has it.
    entry: Entry,
    /// The packed run that it goes to, where it goes to one.
    to: Option<u64>,
    /// The runs of its own that it gets otherwise.
    own: Vec<Run>,
}

impl Op {
    fn key(&self) -> &[u8] {
        match &self.what {
            What::Record(record) => record.key(),
            What::Move(moved) => &moved.key,
            What::Touch(key) => key,
        }
    }

    /// Runs that an overlay's record brings with it.
    fn owned(&self) -> &[Run] {
        match &self.what {
            What::Record(record) => record.owned(),
            What::Move(_) | What::Touch(_) => &[],
        }
    }
}

impl Inner {
    /// Applies every tablet.
    pub(crate) async fn apply_all(&self) -> Result<()> {
        for tablet in self.tablets.all() {
            self.apply_tablet(tablet).await?;
        }
        self.let_log_go().await
    }

    /// Gives the log's room back where it is half full of what nobody needs any more: recovery may find it so, and there is no apply whose
    /// superblock would do it.
    async fn let_log_go(&self) -> Result<()> {
        let is_applied = self.tablets.all().iter().all(|tablet| tablet.first_unapplied().is_none());
        if is_applied && self.log_fill_permille() >= 500 {
            self.publish(Changes::default()).await?;
        }
        Ok(())
    }

    /// Applies the tablet whose apply helps most: the one that holds the log's tail where the log is fuller than the
    /// overlays, else the one that holds most.
    pub(crate) async fn apply_fullest(&self) -> Result<()> {
        let tablets = self.tablets.all().iter().filter(|tablet| tablet.first_unapplied().is_some());
        let chosen = if self.log_fill_permille() >= self.admission.fill_permille() {
            tablets.min_by_key(|tablet| tablet.first_unapplied())
        } else {
            tablets.max_by_key(|tablet| {
                let view = tablet.view();
                view.active.size().bytes + view.frozen.as_ref().map_or(0, |overlay| overlay.size().bytes)
            })
        };
        match chosen {
            Some(tablet) => self.apply_tablet(tablet).await,
            None => self.let_log_go().await,
        }
    }

    /// Applies one tablet, waiting for its turn. Where there is nothing to apply it does nothing.
    ///
    /// # Errors
    /// As the device: the overlay stays frozen, and the next apply tries again. A failed write poisons the store.
    pub(crate) async fn apply_tablet(&self, tablet: &Tablet) -> Result<()> {
        let _turn = self.applier.take().await;
        self.poison.check()?;
        self.space.reclaim(self.committer.named_superblock());
        let Some(marker) = tablet.freeze(|marker| self.committer.push(Item::Marker(marker))) else {
            return Ok(());
        };
        self.drive().await;
        let applied = self.committer.wait_marker(&marker).await?;
        let view = tablet.view();
        let Some(frozen) = &view.frozen else { return Ok(()) };
        let pressure = Pressure::Load { fresh_bytes: frozen.size().bytes };
        let moves = self.choose_moves(tablet, view.root, pressure).await;
        let mut outcome = self.run_apply(tablet, &view, applied, moves, self.unread()).await;
        for tried in 1..READS_TRIED {
            let Err(Error::Io(error)) = &outcome else { break };
            if !is_of_medium(error) || self.poison.check().is_err() {
                break;
            }
            // A page that stays unreadable while the device reads others is lost as a damaged one is (R19): otherwise nothing of the
            // tablet could be applied any more, and its log would fill up.
            let is_given_up = tried + 1 == READS_TRIED && self.answers().await;
            let unread = if is_given_up { Unread::IsLost } else { Unread::Fails };
            outcome = self.run_apply(tablet, &view, applied, Moves::default(), unread).await;
        }
        outcome.map(|_| ())
    }

    /// What becomes of pages that an apply cannot read at once.
    pub(crate) fn unread(&self) -> Unread {
        if self.gives_up { Unread::IsLost } else { Unread::Fails }
    }

    /// Whether the device reads at least one of the blocks that hold superblocks.
    pub(crate) async fn answers(&self) -> bool {
        for block in superblock::copies(0).into_iter().chain(superblock::copies(1)) {
            if self.device.read(block, shoal_device::IoBuf::unfilled(1)).await.ok().is_ok() {
                return true;
            }
        }
        false
    }

    /// Rewrites packed runs of one tablet in which too little is alive, without anything else; says whether they take less
    /// room now.
    ///
    /// # Errors
    /// As [`apply_tablet`](Self::apply_tablet).
    pub(crate) async fn tidy_tablet(&self, tablet: &Tablet, pressure: Pressure) -> Result<bool> {
        let _turn = self.applier.take().await;
        self.poison.check()?;
        let view = tablet.view();
        // An apply that failed comes first.
        if view.frozen.is_some() {
            return Ok(false);
        }
        let moves = self.choose_moves(tablet, view.root, pressure).await;
        if moves.is_empty() {
            return Ok(false);
        }
        self.run_apply(tablet, &view, view.applied, moves, self.unread()).await?;
        // What was hoped for may not come out: short runs are rounded up, and free space is in pieces. Then enough is enough.
        let totals = tablet.view().totals;
        let gained = totals.packed_blocks < view.totals.packed_blocks;
        if !gained {
            tablet.tidy.lock().rest(pressure, totals);
        }
        Ok(gained)
    }

    /// Makes and publishes the tree of the frozen overlay of `view`, if there is one, and `moves`; gives the bytes of the
    /// values that moved. The caller has the applier's turn.
    pub(crate) async fn run_apply(
        &self,
        tablet: &Tablet,
        view: &View,
        applied: Lsn,
        moves: Moves,
        unread: Unread,
    ) -> Result<u64> {
        let frozen = view.frozen.as_deref();
        let mut work = Work::new(self, tablet.id, moves.hole_blocks);
        moves.doubtful.iter().for_each(|&(block, doubt)| work.account.doubt(block, doubt));
        let (steps, _promise) = moves.into_steps();
        let ops = work.bring_home(frozen, steps).await?;
        let mut merge = ReplaceEntries::new(self, std::mem::take(&mut work.account));
        let (root, pages) = self.merge_tree((tablet, view.root, applied), unread, &mut merge, &ops).await?;
        let mut totals = view.totals;
        totals.value_bytes = (totals.value_bytes + merge.bytes_added).saturating_sub(merge.bytes_removed);
        totals.expiring = totals
            .expiring
            .map(|count| (count + merge.expiring_added).saturating_sub(merge.expiring_removed));
        let mut account = Account::new(totals);
        let (root, counted) = match merge.account.is_empty() {
            true => (root, None),
            false => {
                let ops = merge.account.into_ops();
                let (root, pages) =
                    self.merge_tree((tablet, root, applied), unread, &mut account, &ops).await?;
                (root, Some(pages))
            }
        };
        for (version, entry) in merge.old {
            work.freed.extend(self.runs_of(&entry, version).await);
        }
        work.freed.extend(account.freed);
        work.freed.extend(merge.unplaced);
        work.taken.extend(ops.iter().flat_map(|op| op.owned().iter().copied()));
        for pages in std::iter::once(&pages).chain(&counted) {
            work.taken.extend(pages.taken.iter().copied());
            work.freed.extend(pages.freed.iter().copied());
        }
        self.space.drop_foreign(&mut work.freed);
        // Pages of the first merge that the second one replaced were never in a published tree, nor was what was not moved.
        let between = take_common(&mut work.taken, &mut work.freed);
        let mut freed = work.freed.clone();
        let changes = Changes {
            tablet: Some((tablet.id, root, applied, account.totals)),
            taken: std::mem::take(&mut work.taken),
            freed: std::mem::take(&mut work.freed),
            ..Changes::default()
        };
        if planted(Plant::FreedBeforePublish) {
            self.space.give_back(&std::mem::take(&mut freed));
        }
        let published = self.publish(changes).await;
        // Kept in either case: a superblock whose write failed may be on the device all the same, and what it names must
        // not be written over by a put that is under way (R20).
        work.given.iter().for_each(|extents| extents.keep());
        let replaced: Vec<Run> =
            std::iter::once(&pages).chain(&counted).flat_map(|pages| pages.freed.iter().copied()).collect();
        pages.keep();
        counted.into_iter().for_each(Pages::keep);
        let number = published?;
        self.space.give_back(&between);
        // Never in a published tree, so not in the image's delta; readers of this view may still read them.
        let dropped = frozen.map(|overlay| overlay.lock().take_dropped()).unwrap_or_default();
        if !planted(Plant::DroppedNeverFreed) {
            freed.extend(dropped.iter().flat_map(|record| record.owned().iter().copied()));
        }
        let era = tablet.publish(root, applied, account.totals);
        // Not before: while the device does not answer, an apply does not end, and what was in the cache is read from there.
        replaced.iter().flat_map(|run| run.block..run.end()).for_each(|block| self.pool.let_go(block));
        self.space.free_later(usize::from(tablet.id.0), number, Arc::downgrade(&era), freed);
        if let Some(frozen) = frozen {
            let size = frozen.size();
            self.admission.release(size.records, size.bytes);
            self.space.release_promise(size.promised);
        }
        self.count(&self.counters.applies);
        OperationCounters::add(&self.counters.moved_values, merge.moved_values);
        OperationCounters::add(&self.counters.moved_bytes, merge.moved_bytes);
        // What moves is read and written.
        self.mover.charge(2 * merge.moved_bytes);
        self.committer.moved.notify();
        Ok(merge.moved_bytes)
    }

    /// Merges `ops` into the tree under `root`: the new root, and the pages that were taken and freed for it, all written.
    pub(crate) async fn merge_tree<M: Merge>(
        &self,
        (tablet, root, lsn): (&Tablet, Root, Lsn),
        unread: Unread,
        merge: &mut M,
        ops: &[M::Op],
    ) -> Result<(Root, Pages<'_>)> {
        let source = PoolPages::new(&self.pool).giving_up(unread != Unread::Fails);
        let mut sink = PoolSink::new(self);
        let tree = tree_of(self.identity, tablet.id);
        let apply = Apply { tree, lsn, source: &source, sink: &mut sink, merge };
        let ran = match unread {
            Unread::IsAbsent => apply.run_and_settle(root, ops).await,
            Unread::Fails | Unread::IsLost => apply.run(root, ops).await,
        };
        let applied = match ran {
            Ok(applied) => applied,
            Err(error) => {
                let error = self.apply_failed(&error);
                // R8: the pages' blocks go back only when the writes on them have ended.
                drop(sink.finish().await);
                return Err(error);
            }
        };
        self.report_lost(tablet, &applied);
        let pages = sink.finish().await.map_err(|error| self.apply_failed(&error))?;
        let written = pages.taken.iter().map(|run| u64::from(run.blocks)).sum();
        OperationCounters::add(&self.counters.pages_written, written);
        Ok((applied.root, pages))
    }

    /// A failed write of an apply poisons the store: what its pages would have named is not known to be there (R20). A
    /// failed read leaves everything as it was.
    fn apply_failed(&self, error: &Error) -> Error {
        if let Error::Io(device) = error
            && device.is_write()
        {
            self.poison(format!("an apply could not write ({error})"));
        }
        error.clone()
    }

    /// The runs that an entry owns; none where its manifest is damaged (they stay taken until a repair).
    pub(crate) async fn runs_of(&self, entry: &Entry, version: Lsn) -> Vec<Run> {
        match &entry.home {
            // A packed run is the tablet's, and freed when nothing in it is alive.
            Home::Inline | Home::Packed { .. } => Vec::new(),
            Home::Extents { runs, .. } => runs.to_vec(),
            Home::Manifest { runs, .. } => {
                match Located::find(&self.device, &self.pool, entry, version).await {
                    Ok(located) => located.runs().iter().chain(runs).copied().collect(),
                    Err(error) => {
                        tracing::warn!("the space of a value is lost until `shoal check --repair`: {error}");
                        Vec::new()
                    }
                }
            }
        }
    }
}

/// What an apply collects.
struct Work<'a> {
    inner: &'a Inner,
    tree: Tree,
    /// Runs that the published image does not know as taken yet.
    taken: Vec<Run>,
    /// Runs that the published image knows as taken, and that are free with this publish.
    freed: Vec<Run>,
    /// Runs that the apply itself took for values. Where it fails they go back when the last write on them ended.
    given: Vec<Arc<Extents>>,
    ops: Vec<Op>,
    packer: Packer,
    account: AccountOps,
    writes: HomeWrites,
    /// Values go into free runs of at most so many blocks, as long as there are such.
    hole_blocks: Option<u32>,
}

impl<'a> Work<'a> {
    fn new(inner: &'a Inner, tablet: TabletId, hole_blocks: Option<u32>) -> Self {
        Self {
            inner,
            tree: tree_of(inner.identity, tablet),
            taken: Vec::new(),
            freed: Vec::new(),
            given: Vec::new(),
            ops: Vec::new(),
            packer: Packer::new(inner.run_blocks_max),
            account: AccountOps::default(),
            writes: HomeWrites::default(),
            hole_blocks,
        }
    }

    /// The overlay's newest records and the values that move, in order of keys; values that do not fit in a leaf are
    /// packed or get extents, and are written. What the overlay has for a key is newer than what would move.
    async fn bring_home(&mut self, frozen: Option<&Overlay>, moves: Vec<MoveStep>) -> Result<Vec<Op>> {
        let mut moves = moves.into_iter().peekable();
        let records = frozen.map(Overlay::sorted).unwrap_or_default();
        self.ops.reserve(records.len() + moves.len());
        for record in records {
            while let Some(step) = moves.next_if(|step| step.key()[..] < *record.key()) {
                self.add_move(step).await?;
            }
            if !planted(Plant::MovedBesideNewer) {
                moves.next_if(|step| step.key()[..] == *record.key());
            }
            self.add_record(record).await?;
        }
        for step in moves {
            self.add_move(step).await?;
        }
        self.pack_pending()?;
        self.writes.write(self.inner).await?;
        Ok(std::mem::take(&mut self.ops))
    }

    async fn add_record(&mut self, record: Arc<Record>) -> Result<()> {
        self.inner.closing_step()?;
        let op = self.ops.len();
        if record.kind() == RecordKind::Delete {
            self.ops.push(Op { what: What::Record(record), body: None, value_bytes: 0 });
            return Ok(());
        }
        let damaged = |_| Error::Corrupt { what: format!("record {} in memory", record.lsn()), block: 0 };
        // Borrowed: a reference of its own would cost an allocation for each record.
        let (entry, inline) = Entry::decode(record.body_bytes()).map_err(damaged)?;
        let value_bytes = entry.value_bytes;
        let in_leaf = entry.home != Home::Inline
            || fits_leaf(record.key().len(), record.body_bytes().len(), &entry, &self.inner.tuning);
        if in_leaf {
            self.ops.push(Op { what: What::Record(record), body: None, value_bytes });
            return Ok(());
        }
        let body = record.body();
        let stored = if inline.is_empty() { Bytes::new() } else { body.slice_ref(inline) };
        let key = record.bytes().slice_ref(record.key());
        let (version, checksum) = (record.lsn(), crc32c(&stored));
        self.ops.push(Op { what: What::Record(record), body: None, value_bytes });
        self.go_home(Pending { op, entry, key, version, stored, checksum }).await
    }

    async fn add_move(&mut self, step: MoveStep) -> Result<()> {
        let op = self.ops.len();
        let LiveValue { key, version, entry, stored, checksum } = match step {
            MoveStep::Value(value) => *value,
            MoveStep::Touch(key) => {
                self.ops.push(Op { what: What::Touch(key), body: None, value_bytes: 0 });
                return Ok(());
            }
        };
        let moved = Moved { key: key.clone(), version, entry: entry.clone(), to: None, own: Vec::new() };
        let value_bytes = entry.value_bytes;
        self.ops.push(Op { what: What::Move(Box::new(moved)), body: None, value_bytes });
        self.go_home(Pending { op, entry, key, version, stored, checksum }).await
    }

    /// Finds a place for a value; so much as may be under way is written meanwhile.
    async fn go_home(&mut self, value: Pending) -> Result<()> {
        if packs(value.key.len(), value.stored.len()) {
            if !self.packer.has_room_for(&value) {
                self.pack_pending()?;
            }
            if self.packer.has_room_for(&value) {
                self.packer.push(value);
            } else {
                self.own_extents(value)?;
            }
        } else {
            self.own_extents(value)?;
        }
        if self.writes.bytes >= self.inner.tuning.apply_bytes_in_flight {
            self.writes.write(self.inner).await?;
        }
        Ok(())
    }

    /// Puts what waits into runs: one, or shorter ones where the free space has no run that long.
    fn pack_pending(&mut self) -> Result<()> {
        while self.packer.len() > 0 {
            let alone = self.packer.len() < 2;
            let run = if alone { None } else { self.run_to_pack(self.packer.blocks()) };
            let (count, blocks) = run.map_or((0, 0), |run| self.packer.fits(run.blocks));
            match run {
                Some(run) if count >= 2 => self.fill_run(run, count, blocks),
                run => {
                    // A run for one value would be counted and rewritten for nothing.
                    self.inner.space.give_back(run.as_slice());
                    if let Some(first) = self.packer.pop_first() {
                        self.own_extents(first)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A run of `wanted` blocks or less.
    fn run_to_pack(&self, wanted: u32) -> Option<Run> {
        let space = &self.inner.space;
        let halves = std::iter::successors(Some(wanted), |blocks| Some(blocks / 2).filter(|&half| half > 1));
        halves.take(HOLE_HALVES).find_map(|blocks| self.hole(blocks)).or_else(|| {
            let whole = space.allocate(wanted);
            whole.or_else(|| space.allocate_at_most(wanted))
        })
    }

    /// A run in a hole, where this apply is to fill holes and there is one.
    fn hole(&self, blocks: u32) -> Option<Run> {
        let hole_blocks = self.hole_blocks.filter(|&hole_blocks| blocks <= hole_blocks)?;
        self.inner.space.allocate_in_hole(blocks, hole_blocks)
    }

    /// Packs the first `count` values that wait into `blocks` blocks of `run`, and gives back the others.
    fn fill_run(&mut self, run: Run, count: usize, blocks: u32) {
        if blocks < run.blocks {
            self.inner.space.give_back(&[Run::new(run.block + u64::from(blocks), run.blocks - blocks)]);
        }
        let run = Run::new(run.block, blocks);
        self.given.push(Extents::new(self.inner.space.clone(), SmallVec::from_slice(&[run])));
        self.taken.push(run);
        OperationCounters::add(&self.inner.counters.home_blocks_written, u64::from(blocks));
        let packed = self.packer.pack(count, run, Owner { tree: self.tree, block: run.block });
        self.account.set(run.block, packed.entry);
        self.writes.add(run.block, packed.memory);
        for (op, entry) in packed.placed {
            self.placed(op, &entry, Some(run.block), &[]);
        }
    }

    /// The value gets extents of its own.
    fn own_extents(&mut self, value: Pending) -> Result<()> {
        let owner = self.inner.own.owner_of_encoded(&value.key);
        let Pending { op, mut entry, stored, .. } = value;
        let data = self.take_runs(owner, blocks_for(stored.len() as u64))?;
        let units = stored.len().div_ceil(VALUE_UNIT_BYTES);
        let manifest = match manifest_blocks(data.runs().len(), units) {
            0 => None,
            blocks => Some(self.take_runs(0, blocks)?),
        };
        let mut filler = Filler::new(data.runs());
        filler.take(&stored);
        let (bufs, checksums) = filler.finish();
        for (run, memory) in data.runs().iter().zip(bufs) {
            self.writes.add(run.block, memory);
        }
        let mut writes: Vec<ValueWrite> = Vec::new();
        entry.home = home_of(&self.inner.device, data.runs(), 0, checksums, manifest.as_ref(), &mut writes);
        self.writes.others.extend(writes);
        self.placed(
            op,
            &entry,
            None,
            &[data.runs(), manifest.as_ref().map_or(&[], |runs| runs.runs())].concat(),
        );
        Ok(())
    }

    /// The operation's new body, and where its value went: to a packed run, or to runs of its own.
    fn placed(&mut self, op: usize, entry: &Entry, to: Option<u64>, own: &[Run]) {
        let mut body = Vec::with_capacity(96);
        entry.encode(&mut body);
        let op = &mut self.ops[op];
        op.body = Some(body.into());
        if let What::Move(moved) = &mut op.what {
            moved.to = to;
            moved.own.extend_from_slice(own);
        }
    }

    fn take_runs(&mut self, owner: OwnerId, blocks: u64) -> Result<Arc<Extents>> {
        let space = &self.inner.space;
        let hole = u32::try_from(blocks).ok().and_then(|blocks| self.hole(blocks));
        let runs = hole
            .map(|hole| SmallVec::from_slice(&[hole]))
            .or_else(|| space.allocate_value(owner, blocks))
            .ok_or(Error::Full { needed: blocks, available: space.available() })?;
        let extents = Extents::new(space.clone(), runs);
        self.taken.extend_from_slice(extents.runs());
        self.given.push(extents.clone());
        OperationCounters::add(&self.inner.counters.home_blocks_written, blocks);
        Ok(extents)
    }
}

/// Takes the blocks that are in both lists out of both, and gives them.
pub(crate) fn take_common(taken: &mut Vec<Run>, freed: &mut Vec<Run>) -> Vec<Run> {
    taken.sort_unstable();
    freed.sort_unstable();
    let mut common: Vec<Run> = Vec::new();
    let (mut a, mut b) = (0, 0);
    while let (Some(x), Some(y)) = (taken.get(a), freed.get(b)) {
        let (start, end) = (x.block.max(y.block), x.end().min(y.end()));
        if start < end {
            common.push(Run::new(start, (end - start) as u32));
        }
        if x.end() <= y.end() { a += 1 } else { b += 1 }
    }
    if !common.is_empty() {
        *taken = without(taken, &common);
        *freed = without(freed, &common);
    }
    common
}

/// The parts of `runs` that are not in `holes`; both are in order and do not overlap in themselves.
fn without(runs: &[Run], holes: &[Run]) -> Vec<Run> {
    let mut rest = Vec::with_capacity(runs.len());
    let mut holes = holes.iter().copied().peekable();
    for run in runs {
        let mut at = run.block;
        while let Some(hole) = holes.next_if(|hole| hole.block < run.end()) {
            if at < hole.block {
                rest.push(Run::new(at, (hole.block - at) as u32));
            }
            at = hole.end();
        }
        if at < run.end() {
            rest.push(Run::new(at, (run.end() - at) as u32));
        }
    }
    rest
}

/// Values on their way home: neighbours on the device go out in one request.
#[derive(Default)]
struct HomeWrites {
    pieces: Vec<(u64, shoal_device::IoBuf)>,
    others: Vec<ValueWrite>,
    bytes: usize,
}

impl HomeWrites {
    fn add(&mut self, block: u64, memory: shoal_device::IoBuf) {
        self.bytes += memory.len();
        self.pieces.push((block, memory));
    }

    /// Writes everything and waits: so many bytes at most are under way when a commit flushes.
    async fn write(&mut self, inner: &Inner) -> Result<()> {
        self.bytes = 0;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_unstable_by_key(|(block, _)| *block);
        let mut batch = inner.device.batch();
        let mut writes = Vec::new();
        let mut group: (u64, u64, Vec<shoal_device::IoBuf>) = (0, 0, Vec::new());
        for (block, memory) in pieces {
            if group.1 != block && !group.2.is_empty() {
                writes.push(batch.add(inner.device.write(group.0, std::mem::take(&mut group.2))));
            }
            if group.2.is_empty() {
                group.0 = block;
            }
            group.1 = block + memory.blocks() as u64;
            group.2.push(memory);
        }
        if !group.2.is_empty() {
            writes.push(batch.add(inner.device.write(group.0, group.2)));
        }
        let others: Vec<ValueWrite> = self.others.drain(..).map(|write| batch.add(write)).collect();
        batch.start();
        let mut result = Ok(());
        for write in writes {
            result = result.and(write.await.result);
        }
        for write in others {
            result = result.and(write.await.result);
        }
        result.map_err(|error| inner.apply_failed(&Error::Io(error)))
    }
}

/// The newest record replaces what the tree has, and what it replaces is noted.
struct ReplaceEntries<'a> {
    inner: &'a Inner,
    /// Entries that are not in the new tree and may own runs.
    old: Vec<(Lsn, Entry)>,
    /// Runs that were taken for values that did not move after all.
    unplaced: Vec<Run>,
    account: AccountOps,
    bytes_added: u64,
    bytes_removed: u64,
    /// Objects with an end of their time.
    expiring_added: u64,
    expiring_removed: u64,
    moved_values: u64,
    moved_bytes: u64,
}

impl<'a> ReplaceEntries<'a> {
    fn new(inner: &'a Inner, account: AccountOps) -> Self {
        Self {
            inner,
            old: Vec::new(),
            unplaced: Vec::new(),
            account,
            bytes_added: 0,
            bytes_removed: 0,
            expiring_added: 0,
            expiring_removed: 0,
            moved_values: 0,
            moved_bytes: 0,
        }
    }

    /// Notes what the tree loses.
    fn replaced(&mut self, key: &[u8], old: &[u8]) {
        match split_leaf_entry(old).and_then(|(version, body)| Ok((version, Entry::decode(body)?.0))) {
            Ok((version, entry)) => {
                self.bytes_removed += entry.value_bytes;
                self.expiring_removed += u64::from(entry.end.is_some());
                match entry.home {
                    Home::Inline => {}
                    Home::Packed { .. } if planted(Plant::DeadStayCounted) => {}
                    Home::Packed { run, .. } => self.account.kill(run, entry.stored_bytes()),
                    Home::Extents { .. } | Home::Manifest { .. } if planted(Plant::ReplacedNotFreed) => {}
                    Home::Extents { .. } | Home::Manifest { .. } => self.old.push((version, entry)),
                }
            }
            Err(_) => {
                let key = key.escape_ascii();
                tracing::warn!(
                    "the entry of {key} was not readable: its space is lost until `shoal check --repair`"
                );
            }
        }
    }

    /// Whether the tree still has what is to move.
    fn is_unchanged(moved: &Moved, old: Old<'_>) -> bool {
        let Old::Present(old) = old else { return false };
        split_leaf_entry(old)
            .and_then(|(version, body)| Ok((version, Entry::decode(body)?.0)))
            .is_ok_and(|(version, entry)| version == moved.version && entry == moved.entry)
    }
}

impl Merge for ReplaceEntries<'_> {
    type Op = Op;

    fn key<'a>(&self, op: &'a Op) -> &'a [u8] {
        op.key()
    }

    fn merge(&mut self, op: &Op, old: Old<'_>, new: &mut Vec<u8>) -> Result<Change> {
        self.inner.closing_step()?;
        let (version, body) = match &op.what {
            What::Record(record) => (record.lsn(), op.body.as_deref().unwrap_or_else(|| record.body_bytes())),
            What::Move(moved) => {
                if !Self::is_unchanged(moved, old) {
                    // Its leaf was lost since it was read: the new place holds nothing that is named.
                    if let Some(to) = moved.to {
                        self.account.kill(to, moved.entry.stored_bytes());
                    }
                    self.unplaced.extend_from_slice(&moved.own);
                    return Ok(Change::Keep);
                }
                self.moved_values += 1;
                self.moved_bytes += moved.entry.stored_bytes();
                (moved.version, op.body.as_deref().unwrap_or_default())
            }
            What::Touch(_) => {
                let Old::Present(old) = old else { return Ok(Change::Keep) };
                new.extend_from_slice(old);
                return Ok(Change::Put);
            }
        };
        if let Old::Present(old) = old {
            self.replaced(op.key(), old);
        }
        if matches!(&op.what, What::Record(record) if record.kind() == RecordKind::Delete) {
            return Ok(Change::Delete);
        }
        self.bytes_added += op.value_bytes;
        self.expiring_added += u64::from(end_of(body).is_some());
        new.extend_from_slice(&version.0.to_le_bytes());
        new.extend_from_slice(body);
        Ok(Change::Put)
    }
}

impl Inner {
    /// Says which keys an apply found lost (R19).
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
            self.met.note(&DamagedRange {
                tablet: tablet.id,
                from: lost.low.clone(),
                to: lost.high.clone(),
                block: lost.page.block,
                why: lost.why.clone(),
            });
        }
    }
}
