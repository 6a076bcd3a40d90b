//! The apply: a tablet's frozen overlay becomes a part of its tree (engine.md, "The apply").
//!
//! One at a time. It never waits for readers, and no reader waits for it: new pages and values go to fresh blocks, and the
//! publish makes them the tablet's.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{Lsn, Run, blocks_for};

use crate::entry::{Entry, Home, split_leaf_entry};
use crate::error::{Error, Result};
use crate::log::commit::ValueWrite;
use crate::log::format::RecordKind;
use crate::overlay::{Overlay, Record};
use crate::publish::Changes;
use crate::space::Extents;
use crate::store::{Inner, OperationCounters};
use crate::tablet::Tablet;
use crate::tree::{Applied, Apply, Change, Merge, Old};
use crate::tree_io::{PoolPages, PoolSink, tree_of};
use crate::value::prepare::{Filler, fits_leaf, home_of, manifest_blocks};
use crate::value::read::Located;

/// Records of the overlay that are looked at under its lock at a time.
const RECORDS_AT_A_TIME: usize = 512;

/// What the apply does to one key: the record, and its body where the value went home.
pub(crate) struct Op {
    record: Arc<Record>,
    moved: Option<Bytes>,
}

impl Inner {
    /// Applies every tablet.
    pub(crate) async fn apply_all(&self) -> Result<()> {
        for tablet in self.tablets.all() {
            self.apply_tablet(tablet).await?;
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
                view.active.size().1 + view.frozen.as_ref().map_or(0, |overlay| overlay.size().1)
            })
        };
        match chosen {
            Some(tablet) => self.apply_tablet(tablet).await,
            None => Ok(()),
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
        let Some(marker) = tablet.freeze(&self.committer) else { return Ok(()) };
        self.drive().await;
        let applied = self.committer.wait_marker(&marker).await?;
        let view = tablet.view();
        let Some(frozen) = &view.frozen else { return Ok(()) };
        let mut work = Work { inner: self, taken: Vec::new(), freed: Vec::new(), given: Vec::new() };
        let ops = work.bring_home(frozen).await?;
        let source = PoolPages::new(&self.pool);
        let mut sink = PoolSink::new(self);
        let mut merge = ReplaceEntries { old: Vec::new() };
        let tree = tree_of(self.identity, tablet.id);
        let apply = Apply { tree, lsn: applied, source: &source, sink: &mut sink, merge: &mut merge };
        let root = match apply.run(view.root, &ops).await {
            Ok(applied) => {
                report_lost(tablet, &applied);
                applied.root
            }
            Err(error) => {
                let error = self.apply_failed(&error);
                // R8: the pages' blocks go back only when the writes on them have ended.
                drop(sink.finish().await);
                return Err(error);
            }
        };
        let pages = match sink.finish().await {
            Ok(pages) => pages,
            Err(error) => return Err(self.apply_failed(&error)),
        };
        let written = pages.taken.iter().map(|run| u64::from(run.blocks)).sum();
        OperationCounters::add(&self.counters.pages_written, written);
        for entry in merge.old {
            work.freed.extend(self.runs_of(&entry.1, entry.0).await);
        }
        let dropped = frozen.lock().take_dropped();
        let dropped: Vec<Run> = dropped.iter().flat_map(|record| record.owned().iter().copied()).collect();
        work.taken.extend(ops.iter().flat_map(|op| op.record.owned().iter().copied()));
        work.taken.extend(pages.taken.iter().copied());
        work.freed.extend(pages.freed.iter().copied());
        let mut freed = work.freed.clone();
        let changes = Changes {
            tablet: Some((tablet.id, root, applied)),
            taken: std::mem::take(&mut work.taken),
            freed: std::mem::take(&mut work.freed),
            device_blocks: None,
        };
        let published = self.publish(changes).await;
        // Kept in either case: a superblock whose write failed may be on the device all the same, and what it names must
        // not be written over by a put that is under way (R20).
        work.given.iter().for_each(|extents| extents.keep());
        pages.keep();
        let number = published?;
        // Never in a published tree, so not in the image's delta; readers of this view may still read them.
        freed.extend(dropped);
        let era = tablet.publish(root, applied);
        self.space.free_later(usize::from(tablet.id.0), number, Arc::downgrade(&era), freed);
        let (records, bytes, promised) = frozen.size();
        self.admission.release(records, bytes);
        self.space.release_promise(promised);
        self.count(&self.counters.applies);
        self.committer.moved.notify();
        Ok(())
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
            Home::Inline => Vec::new(),
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
    /// Runs that the published image does not know as taken yet.
    taken: Vec<Run>,
    /// Runs that the published image knows as taken, and that are free with this publish.
    freed: Vec<Run>,
    /// Runs that the apply itself took for values. Where it fails they go back when the last write on them ended.
    given: Vec<Arc<Extents>>,
}

impl Work<'_> {
    /// The overlay's newest records in order; values that rode in the log and do not fit in a leaf get extents and are
    /// written.
    async fn bring_home(&mut self, frozen: &Overlay) -> Result<Vec<Op>> {
        let mut ops: Vec<Op> = Vec::new();
        let mut batch = HomeWrites::default();
        loop {
            let start = ops.last().map_or(Bound::Unbounded, |op| Bound::Excluded(op.record.key()));
            let records = frozen.range(start, RECORDS_AT_A_TIME, || self.inner.committer.durable());
            let is_last = records.len() < RECORDS_AT_A_TIME;
            for record in records {
                let moved = self.move_home(&record, &mut batch)?;
                ops.push(Op { record, moved });
                if batch.bytes >= self.inner.tuning.apply_bytes_in_flight {
                    batch.write(self.inner).await?;
                }
            }
            if is_last {
                batch.write(self.inner).await?;
                return Ok(ops);
            }
        }
    }

    /// The new body of a record whose value goes home, if it does.
    fn move_home(&mut self, record: &Record, batch: &mut HomeWrites) -> Result<Option<Bytes>> {
        if record.kind() == RecordKind::Delete {
            return Ok(None);
        }
        let body = record.body();
        let damaged = |_| Error::Corrupt { what: format!("record {} in memory", record.lsn()), block: 0 };
        let (mut entry, inline) = Entry::decode(&body).map_err(damaged)?;
        let in_leaf = entry.home != Home::Inline
            || fits_leaf(record.key().len(), body.len(), &entry, &self.inner.tuning);
        if in_leaf {
            return Ok(None);
        }
        let data = self.take_runs(blocks_for(inline.len() as u64))?;
        let units = inline.len().div_ceil(VALUE_UNIT_BYTES);
        let manifest = match manifest_blocks(data.runs().len(), units) {
            0 => None,
            blocks => Some(self.take_runs(blocks)?),
        };
        let mut filler = Filler::new(data.runs());
        filler.take(inline);
        let (bufs, checksums) = filler.finish();
        for (run, memory) in data.runs().iter().zip(bufs) {
            batch.add(run.block, memory);
        }
        let mut writes: Vec<ValueWrite> = Vec::new();
        entry.home = home_of(&self.inner.device, data.runs(), 0, checksums, manifest.as_ref(), &mut writes);
        batch.others.extend(writes);
        let mut moved = Vec::with_capacity(96);
        entry.encode(&mut moved);
        Ok(Some(moved.into()))
    }

    fn take_runs(&mut self, blocks: u64) -> Result<Arc<Extents>> {
        let space = &self.inner.space;
        let runs = space
            .allocate_value(blocks)
            .ok_or(Error::Full { needed: blocks, available: space.available() })?;
        let extents = Extents::new(space.clone(), runs);
        self.taken.extend_from_slice(extents.runs());
        self.given.push(extents.clone());
        OperationCounters::add(&self.inner.counters.home_blocks_written, blocks);
        Ok(extents)
    }
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
struct ReplaceEntries {
    old: Vec<(Lsn, Entry)>,
}

impl Merge for ReplaceEntries {
    type Op = Op;

    fn key<'a>(&self, op: &'a Op) -> &'a [u8] {
        op.record.key()
    }

    fn merge(&mut self, op: &Op, old: Old<'_>, new: &mut Vec<u8>) -> Result<Change> {
        if let Old::Present(old) = old {
            match split_leaf_entry(old).and_then(|(version, body)| Ok((version, Entry::decode(body)?.0))) {
                Ok((_, entry)) if entry.home == Home::Inline => {}
                Ok(replaced) => self.old.push(replaced),
                Err(_) => tracing::warn!(
                    "the entry that {} had is not readable: its space is lost until `shoal check --repair`",
                    op.record.key().escape_ascii()
                ),
            }
        }
        if op.record.kind() == RecordKind::Delete {
            return Ok(Change::Delete);
        }
        new.extend_from_slice(&op.record.lsn().0.to_le_bytes());
        match &op.moved {
            Some(moved) => new.extend_from_slice(moved),
            None => new.extend_from_slice(&op.record.body()),
        }
        Ok(Change::Put)
    }
}

/// Says which keys an apply found lost (R19).
fn report_lost(tablet: &Tablet, applied: &Applied) {
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
    }
}
