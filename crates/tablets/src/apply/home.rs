//! Brings values home: an apply allocates packed runs or extents for values and writes them.

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::checksum::crc32c;
use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{Lsn, Run, TabletId, blocks_for};
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::is_hidden;
use shoal_common::injected_bug::{Bug, injected};
use shoal_log::format::RecordKind;
use shoal_log::{FETCHED, Moment, Record, ValueWrite, fetch};
use shoal_memtable::Memtable;
use shoal_memtable::adoptions::Adoptions;
use shoal_space_manager::{Extents, OwnerId};
use shoal_tree::Tree;
use shoal_value::packed::{Packer, Pending, packs};
use shoal_value::{Entry, Filler, Home, fits_leaf, home_of, manifest_blocks};
use smallvec::SmallVec;

use crate::apply::progress::Progress;
use crate::apply::replace::{Moved, Op, What};
use crate::checkpoint::checkpointer::Checkpointer;
use crate::counters::OperationCounters;
use crate::gc::liveness::LivenessOps;
use crate::gc::rewrite::{LiveValue, MoveStep};
use crate::tablet::tree_io::{owner_of, tree_of};

/// Bytes of values that count as one request of the budget: a flush waits about as long for them as for a read.
const BYTES_OF_A_REQUEST: usize = 32 << 10;
/// Halvings of a run to find a hole for it.
const HOLE_HALVES: usize = 3;

/// The state of an apply while it brings values home.
pub(crate) struct Work<'a> {
    checkpointer: &'a Checkpointer,
    tree: Tree,
    /// Runs that are free in the published image and taken in the new one.
    pub taken: Vec<Run>,
    /// Runs that are taken in the published image and free in the new one.
    pub freed: Vec<Run>,
    /// Runs that the apply took for values. If the apply fails, they are free again after the last write to them has finished.
    pub given: Vec<Arc<Extents>>,
    ops: Vec<Op>,
    packer: Packer,
    pub liveness: LivenessOps,
    writes: HomeWrites,
    /// If values are to fill holes: the length of the longest free run that counts as a hole, in blocks.
    hole_blocks: Option<u32>,
    /// Puts of objects that had expired at this moment are applied as deletes; `None`: all objects are kept.
    moment: Option<&'a Moment>,
    /// The parts whose runs objects adopt.
    adoptions: &'a Adoptions,
}

impl<'a> Work<'a> {
    pub(crate) fn new(
        checkpointer: &'a Checkpointer,
        tablet: TabletId,
        hole_blocks: Option<u32>,
        moment: Option<&'a Moment>,
        adoptions: &'a Adoptions,
    ) -> Self {
        Self {
            checkpointer,
            tree: tree_of(checkpointer.identity, tablet),
            taken: Vec::new(),
            freed: Vec::new(),
            given: Vec::new(),
            ops: Vec::new(),
            packer: Packer::new(checkpointer.run_blocks_max()),
            liveness: LivenessOps::default(),
            writes: HomeWrites::default(),
            hole_blocks,
            moment,
            adoptions,
        }
    }

    /// Returns the operations of the memtable's newest records, up to number `applied`, and of the moves, in the order of the keys. Values
    /// that do not fit in a leaf are packed or get extents, and are written. A memtable's record for a key is newer than a move of that
    /// key, so the move is dropped.
    pub(crate) async fn bring_home(
        &mut self,
        frozen: Option<&Memtable>,
        applied: Lsn,
        moves: Vec<MoveStep>,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Op>> {
        let mut moves = moves.into_iter().peekable();
        let records = frozen.map(|frozen| frozen.sorted(applied, |some| progress.note(some)));
        let mut records = records.unwrap_or_default().into_iter();
        progress.brings_home(records.as_slice());
        self.ops.reserve(records.len() + moves.len());
        while !records.as_slice().is_empty() {
            fetch(records.as_slice().iter().take(FETCHED).map(|record| &**record));
            for record in records.by_ref().take(FETCHED) {
                while let Some(step) = moves.next_if(|step| step.key()[..] < *record.key()) {
                    self.add_move(step).await?;
                }
                if !injected(Bug::MovedBesideNewer) {
                    moves.next_if(|step| step.key()[..] == *record.key());
                }
                self.add_record(record).await?;
                progress.note(1);
                progress.keep_pace();
            }
        }
        for step in moves {
            self.add_move(step).await?;
        }
        self.pack_pending()?;
        self.writes.write(self.checkpointer).await?;
        assert!(self.packer.waiting() == 0 && self.writes.pieces.is_empty(), "each value is written (R7)");
        Ok(std::mem::take(&mut self.ops))
    }

    async fn add_record(&mut self, record: Arc<Record>) -> Result<()> {
        self.checkpointer.closing.step()?;
        let op = self.ops.len();
        if record.kind() == RecordKind::Delete {
            let is_adopted = self.adoptions.has_in_tree(&record);
            let what = if is_adopted { What::Adopted(record) } else { What::Record(record) };
            self.ops.push(Op { what, body: None, value_bytes: 0 });
            return Ok(());
        }
        let damaged = |_| Error::Corrupt { what: format!("record {} in memory", record.lsn()), block: 0 };
        // Borrowed: a counted reference would cost an allocation for each record.
        let (entry, inline) = Entry::decode(record.body_bytes()).map_err(damaged)?;
        // The reaper deletes the parts of an upload before its record.
        let may_be_over = entry.end.is_some() && !is_hidden(record.key());
        if may_be_over && self.moment.is_some_and(|moment| moment.is_over(entry.end, record.lsn())) {
            self.ops.push(Op { what: What::Expired(record), body: None, value_bytes: 0 });
            return Ok(());
        }
        let value_bytes = entry.value_bytes;
        let in_leaf = entry.home != Home::Inline
            || fits_leaf(record.key().len(), record.body_bytes().len(), &entry, &self.checkpointer.tuning);
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

    /// Finds a place for a value. Writes the collected values once they reach the limit of bytes in flight.
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
        if self.writes.is_full(self.checkpointer) {
            self.writes.write(self.checkpointer).await?;
        }
        Ok(())
    }

    /// Packs the waiting values into one run, or into shorter ones if no free run is long enough.
    fn pack_pending(&mut self) -> Result<()> {
        while self.packer.waiting() > 0 {
            let alone = self.packer.waiting() < 2;
            let run = if alone { None } else { self.run_to_pack(self.packer.blocks()) };
            let (count, blocks) = run.map_or((0, 0), |run| self.packer.fits(run.blocks));
            match run {
                Some(run) if count >= 2 => self.fill_run(run, count, blocks),
                run => {
                    // A packed run for one value would be counted and rewritten to no benefit.
                    self.checkpointer.space.give_back(run.as_slice());
                    if let Some(first) = self.packer.pop_first() {
                        self.own_extents(first)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A free run of `wanted` blocks or fewer.
    fn run_to_pack(&self, wanted: u32) -> Option<Run> {
        let space = &self.checkpointer.space;
        let halves = std::iter::successors(Some(wanted), |blocks| Some(blocks / 2).filter(|&half| half > 1));
        halves.take(HOLE_HALVES).find_map(|blocks| self.hole(blocks)).or_else(|| {
            let whole = space.allocate(wanted);
            whole.or_else(|| space.allocate_at_most(wanted))
        })
    }

    /// A run in a hole, if this apply fills holes and there is one.
    fn hole(&self, blocks: u32) -> Option<Run> {
        let hole_blocks = self.hole_blocks.filter(|&hole_blocks| blocks <= hole_blocks)?;
        self.checkpointer.space.allocate_in_hole(blocks, hole_blocks)
    }

    /// Packs the first `count` waiting values into `blocks` blocks of `run` and frees the other blocks.
    fn fill_run(&mut self, run: Run, count: usize, blocks: u32) {
        assert!(count > 0 && (1..=run.blocks).contains(&blocks), "the values fit in their run (R25)");
        if blocks < run.blocks {
            self.checkpointer
                .space
                .give_back(&[Run::new(run.block + u64::from(blocks), run.blocks - blocks)]);
        }
        let run = Run::new(run.block, blocks);
        self.given.push(Extents::new(self.checkpointer.space.clone(), SmallVec::from_slice(&[run])));
        self.taken.push(run);
        OperationCounters::add(&self.checkpointer.counters.home_blocks_written, u64::from(blocks));
        let packed = self.packer.pack(count, run, owner_of(self.tree, run.block));
        self.liveness.set(run.block, packed.entry);
        self.writes.add(run.block, packed.memory);
        for (op, entry) in packed.placed {
            self.placed(op, &entry, Some(run.block), &[]);
        }
    }

    /// Allocates separate extents for the value.
    fn own_extents(&mut self, value: Pending) -> Result<()> {
        let owner = self.checkpointer.own.owner_of_encoded(&value.key);
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
        assert_eq!(bufs.len(), data.runs().len(), "each run of a value is written (R7)");
        for (run, memory) in data.runs().iter().zip(bufs) {
            self.writes.add(run.block, memory);
        }
        let mut writes: Vec<ValueWrite> = Vec::new();
        entry.home =
            home_of(&self.checkpointer.device, data.runs(), 0, checksums, manifest.as_ref(), &mut writes);
        self.writes.others.extend(writes);
        self.placed(
            op,
            &entry,
            None,
            &[data.runs(), manifest.as_ref().map_or(&[], |runs| runs.runs())].concat(),
        );
        Ok(())
    }

    /// Sets the operation's new body and the value's new place: a packed run, or separate runs.
    fn placed(&mut self, op: usize, entry: &Entry, to: Option<u64>, own: &[Run]) {
        let mut body = Vec::with_capacity(96);
        entry.encode(&mut body);
        let op = &mut self.ops[op];
        assert!(op.body.is_none(), "a value goes home once (R13)");
        op.body = Some(body.into());
        if let What::Move(moved) = &mut op.what {
            moved.to = to;
            moved.own.extend_from_slice(own);
        }
    }

    fn take_runs(&mut self, owner: OwnerId, blocks: u64) -> Result<Arc<Extents>> {
        let space = &self.checkpointer.space;
        let hole = u32::try_from(blocks).ok().and_then(|blocks| self.hole(blocks));
        let runs = hole
            .map(|hole| SmallVec::from_slice(&[hole]))
            .or_else(|| space.allocate_value(owner, blocks))
            .ok_or(Error::full(blocks, space.available()))?;
        let extents = Extents::new(space.clone(), runs);
        self.taken.extend_from_slice(extents.runs());
        self.given.push(extents.clone());
        OperationCounters::add(&self.checkpointer.counters.home_blocks_written, blocks);
        Ok(extents)
    }
}

/// Values to write: neighbours on the device share one request.
#[derive(Default)]
struct HomeWrites {
    pieces: Vec<(u64, shoal_device::IoBuf)>,
    others: Vec<ValueWrite>,
    bytes: usize,
}

impl HomeWrites {
    /// Returns true if no more may be in flight. Beside foreground requests each piece may be a request.
    fn is_full(&self, checkpointer: &Checkpointer) -> bool {
        let depth = checkpointer.home_writes_in_flight();
        let bytes_max =
            depth.saturating_mul(BYTES_OF_A_REQUEST).min(checkpointer.tuning.apply_bytes_in_flight);
        self.pieces.len() >= depth || self.bytes >= bytes_max
    }

    fn add(&mut self, block: u64, memory: shoal_device::IoBuf) {
        self.bytes += memory.len();
        self.pieces.push((block, memory));
    }

    /// Writes everything and waits, so that a commit's flush meets a bounded number of bytes in flight.
    async fn write(&mut self, checkpointer: &Checkpointer) -> Result<()> {
        self.bytes = 0;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_unstable_by_key(|(block, _)| *block);
        let mut batch = checkpointer.device.batch();
        let mut writes = Vec::new();
        let mut group: (u64, u64, Vec<shoal_device::IoBuf>) = (0, 0, Vec::new());
        for (block, memory) in pieces {
            assert!(group.1 <= block, "no two values share a block (R8)");
            if group.1 != block && !group.2.is_empty() {
                writes.push(batch.add(checkpointer.device.write(group.0, std::mem::take(&mut group.2))));
            }
            if group.2.is_empty() {
                group.0 = block;
            }
            group.1 = block + memory.blocks() as u64;
            group.2.push(memory);
        }
        if !group.2.is_empty() {
            writes.push(batch.add(checkpointer.device.write(group.0, group.2)));
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
        result.map_err(|error| checkpointer.apply_failed(&error.into()))
    }
}
