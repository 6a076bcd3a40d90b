//! Grows the data file ahead of need: take the room, flush, publish, and only then allocate (R21).
//!
//! The file system allocates the room, and the flush makes it and the file's length durable; such blocks read as zeros until they are
//! written. After the first write of a block, the next flush pays for the file system's journal once, regardless of the number of blocks:
//! less than writing all of them twice. If the file system cannot allocate, the blocks are zeroed instead: a hole would need room at the
//! first write, which may then fail.

use std::sync::Arc;

use shoal_base::sync::atomic::Ordering;
use shoal_base::{BLOCK_BYTES, Run};
use shoal_common::error::{Error, Result, no_room};
use shoal_common::injected_bug::{Bug, injected};
use shoal_device::{Device, IoBuf, is_no_room};
use shoal_image::superblock::Superblock;

use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::publish::Publication;
use crate::counters::OperationCounters;
use crate::growth::map_room::hold_areas;
use crate::tablet::view::Tablet;

/// Blocks zeroed by one request if nothing else is written.
const ZERO_BLOCKS: u64 = 256;
/// Blocks zeroed by one request beside commits: each of a commit's writes may wait for a request.
const ZERO_BLOCKS_BESIDE_COMMITS: u64 = 32;
/// A step is halved at most down to this fraction of a whole one: 1 MiB of 256.
const STEP_PARTS_MAX: u64 = 256;

/// Minimum of free blocks ahead of need: 4 MiB.
const AHEAD_MIN: u64 = 1_024;
/// At least this fraction of the file's blocks for objects is free ahead of need.
const HELD_SHARE: u64 = 256;
/// Applies come before growth if they probably free this fraction of the blocks that should be free: early applies make more and smaller
/// layers.
const WORTH_APPLYING: u64 = 8;
/// The next part of the log's ring is prepared once the prepared part is this full, in thousandths.
const PREPARE_FROM_PERMILLE: usize = 250;

/// The reason why a step failed.
enum StepError {
    /// The file system, a quota, or the process's limit of file sizes has no room for it.
    NoRoom(String),
    Other(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoRoom(why) => Self::NoRoom(why),
            error => Self::Other(error),
        }
    }
}

impl Checkpointer {
    /// Blocks that should be free ahead of need: two seconds of writing at the present rate, a small fraction of the file's blocks outside
    /// of holes, and 4 MiB, up to a whole step. Only the rate may exceed a step.
    pub fn growth_ahead(&self) -> u64 {
        let whole = self.tuning.growth_blocks;
        let held = self.space.held_data_blocks() / HELD_SHARE;
        held.clamp(AHEAD_MIN.min(whole), whole).max(self.growth.ahead_of_rate())
    }

    /// Returns true if anything was ever written: an empty store takes no more of the disk than at its creation.
    fn holds_anything(&self) -> bool {
        let holds = |tablet: &Tablet| !tablet.view().trees.is_empty() || tablet.first_unapplied().is_some();
        self.tablets.all().iter().any(|tablet| holds(tablet))
    }

    /// Returns true if the file should grow now, because too few blocks are free ahead of need, or because it could not grow before: only a
    /// step that succeeds shows that there is room again.
    pub fn wants_growth(&self) -> bool {
        (self.space.available() < self.growth_ahead() || self.growth.cannot_grow().is_some())
            && (self.space.holes().blocks() > 0 || self.can_lengthen())
            && self.holds_anything()
    }

    /// Returns true if the file may get longer.
    fn can_lengthen(&self) -> bool {
        let has_rest = |superblock: &Superblock| superblock.device_blocks < self.layout().blocks_max;
        self.device.inner().can_grow()
            && self.publisher.try_take().is_some_and(|superblock| has_rest(&superblock))
    }

    /// Returns true if more of the log's ring should be prepared: the prepared part is a quarter full.
    pub fn wants_log(&self) -> bool {
        self.log.committer.ring.prepared() < self.layout().log_blocks
            && self.log.fill_permille() >= PREPARE_FROM_PERMILLE
    }

    /// Measures the write rate, for growth ahead of need.
    pub fn note_rate(&self) {
        let counters = &self.counters;
        let written =
            [&counters.extent_blocks_written, &counters.home_blocks_written, &counters.pages_written];
        let blocks = written.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        self.growth.note(self.now_ns(), blocks);
    }

    /// Prepares the log for a write batch that reserves `blocks` blocks.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room for that; as the device.
    pub async fn prepare_for_step(&self, blocks: u32) -> Result<()> {
        self.prepare_log(blocks.saturating_mul(4)).await?;
        let prepared = u64::from(self.log.committer.ring.prepared());
        if u64::from(blocks) * 2 > prepared && !self.log.committer.ring.suits(blocks) {
            return Err(Error::full(u64::from(blocks), prepared / 2));
        }
        Ok(())
    }

    /// Doubles the prepared part of the log's ring, to at least `blocks` blocks. Zeroes the new part, so that a commit finds room there
    /// without an allocation of the file system, and publishes it. Returns false if there is no room; the ring is unchanged then.
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    pub async fn prepare_log(&self, blocks: u32) -> Result<bool> {
        let _turn = self.grower.take().await;
        let from = self.log.committer.ring.prepared();
        let to = from.saturating_mul(2).max(blocks).min(self.layout().log_blocks);
        if to <= from {
            return Ok(true);
        }
        let first = self.layout().log_first();
        let (begin, end) = (first + u64::from(from), first + u64::from(to));
        match zero_by(&self.device, begin, end, ZERO_BLOCKS_BESIDE_COMMITS).await {
            Ok(()) => {}
            Err(Error::NoRoom(why)) => {
                drop(self.device.discard(begin, end - begin).await.ok());
                self.say_full(self.space.data_blocks(), &why);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        OperationCounters::add(&self.counters.growth_blocks_written, end - begin);
        self.flush_grown().await?;
        self.publish(Publication { log_prepared: Some(to), ..Publication::default() }).await?;
        self.log.committer.is_prepared(to);
        Ok(true)
    }

    /// Grows the file by one step, unless blocks that are already freed, or that applies free, are enough. Returns false if the file has
    /// its full size, or if there is no room.
    ///
    /// # Errors
    /// As the device.
    pub async fn grow_unless_freed(&self) -> Result<bool> {
        let per_apply = self.growth.freed_by_an_apply();
        if per_apply * self.tablets.all().len() as u64 >= self.growth_ahead() / WORTH_APPLYING {
            self.free_what_is_dead().await?;
        } else {
            self.make_freed_reusable().await;
        }
        if self.wants_growth() { Ok(self.grow(0).await? > 0) } else { Ok(true) }
    }

    /// Grows the file for a write that lacks `blocks` blocks; returns false if it could not grow. If the disk is full, the caller reports a
    /// full store.
    pub async fn grow_for(&self, blocks: u64) -> Result<bool> {
        if self.space.holes().blocks() > 0
            && self.fill_holes(self.space.missing(blocks).max(self.growth_ahead())).await > 0
            && self.space.missing(blocks) == 0
        {
            return Ok(true);
        }
        if !self.device.inner().can_grow() {
            // A growth of the cap may be in progress, which adds all of a device's new space at once.
            let before = self.layout().blocks_max;
            let _turn = self.grower.take().await;
            return Ok(self.layout().blocks_max > before);
        }
        let mut has_grown = false;
        loop {
            match self.grow(self.space.missing(blocks)).await {
                Ok(0) => return Ok(has_grown),
                Ok(_) if self.space.missing(blocks) == 0 => return Ok(true),
                Ok(_) => has_grown = true,
                Err(error) => {
                    tracing::warn!("the data file could not grow: {error}");
                    return Ok(has_grown);
                }
            }
        }
    }

    /// Grows the space by one step for `wanted` blocks and the blocks ahead of need, or by a shorter step if there is no room: fills holes,
    /// or lengthens the file if there are none. Returns the number of new blocks: 0 if the file has its full size, or if there is no room.
    ///
    /// # Errors
    /// As the device; nothing has changed then, except that a failed flush poisons the store.
    pub async fn grow(&self, wanted: u64) -> Result<u64> {
        let _turn = self.grower.take().await;
        let from = self.publisher.take().await.device_blocks;
        let whole = self.tuning.growth_blocks.min(u64::from(u32::MAX));
        let wanted = wanted.max(self.growth_ahead()).min(whole);
        let (filled, no_room) = self.fill_some(wanted);
        if filled > 0 {
            self.growth.grew(whole, whole);
            return Ok(filled);
        }
        if let Some(why) = no_room {
            self.say_full(from, &why);
            return Ok(0);
        }
        if !self.device.inner().can_grow() {
            return Ok(0);
        }
        let rest = self.layout().blocks_max.saturating_sub(from);
        let mut step = self.growth.step_max(whole).min(wanted).min(rest);
        if step == 0 {
            return Ok(0);
        }
        let least = (whole / STEP_PARTS_MAX).max(1).min(rest);
        loop {
            match self.take_step(from, from + step).await {
                Ok(()) => break,
                Err(StepError::Other(error)) => return Err(error),
                Err(StepError::NoRoom(why)) if step <= least => {
                    self.growth.step_max.store(least, Ordering::Relaxed);
                    self.say_full(from, &why);
                    return Ok(0);
                }
                Err(StepError::NoRoom(_)) => step = (step / 2).max(least),
            }
        }
        self.growth.grew(step, whole);
        self.flush_grown().await?;
        let to = from + step;
        let run = Run::new(from, u32::try_from(step).unwrap_or(u32::MAX));
        self.publish(Publication { freed: vec![run], device_blocks: Some(to), ..Publication::default() })
            .await?;
        self.space.grown(to);
        self.space.give_back(&[run]);
        self.log.committer.moved.notify();
        Ok(step)
    }

    /// Makes the new blocks and the file's length durable. A failure makes the store read-only and wakes the writes that wait for room.
    pub async fn flush_grown(&self) -> Result<()> {
        let flush = async { self.device.flush().await.ok().map_err(Error::Io) };
        self.log.poison.flushed(flush).await.inspect_err(|_| self.log.committer.moved.notify())
    }

    /// Takes room for the space image of `to` blocks, extends the file to that length and zeroes the new part. After a failure the file has
    /// `from` blocks again, and the room that the step took is returned to the file system.
    async fn take_step(&self, from: u64, to: u64) -> std::result::Result<(), StepError> {
        hold_areas(&self.device, &self.layout(), from, to).await?;
        if let Err(error) = self.device.inner().grow(to) {
            let code = error.raw_os_error();
            return Err(match code.is_some_and(is_no_room) {
                true => StepError::NoRoom(no_room(code, &error)),
                false => StepError::Other(Error::Unopenable(format!("growing to {to} blocks: {error}"))),
            });
        }
        if self.device.inner().allocates() || injected(Bug::GrownNotZeroed) {
            return Ok(());
        }
        OperationCounters::add(&self.counters.growth_blocks_written, to - from);
        let Err(error) = zero(&self.device, from, to).await else { return Ok(()) };
        if let Err(kept) = self.device.inner().shrink(from) {
            tracing::warn!("cannot give back the space of a growth to the file system: {kept}");
        }
        Err(error.into())
    }

    /// Logs that the file system is full: once when it becomes full, not for each refused write.
    fn say_full(&self, blocks: u64, why: &str) {
        let Some(unsaid) = self.growth.reached(self.now_ns(), why) else { return };
        let mib = blocks * BLOCK_BYTES as u64 / (1 << 20);
        let before =
            if unsaid > 0 { format!(" ({unsaid} times since it was last logged)") } else { String::new() };
        tracing::warn!(
            "the data file has {mib} MiB and cannot grow: {why}{before}; writes that find no room in it are refused until \
             objects are deleted, or there is room in the file system, which is looked for again and again"
        );
    }
}

/// Writes zeros from block `from` to block `to`.
///
/// # Errors
/// As the device.
pub async fn zero(device: &Device, from: u64, to: u64) -> Result<()> {
    zero_by(device, from, to, ZERO_BLOCKS).await
}

/// As [`zero`], by requests of `piece` blocks.
async fn zero_by(device: &Device, from: u64, to: u64, piece: u64) -> Result<()> {
    let zeros = Arc::new(IoBuf::new(piece.min(to.saturating_sub(from)) as usize));
    let mut at = from;
    while at < to {
        let blocks = (to - at).min(piece);
        if blocks as usize * BLOCK_BYTES == zeros.len() {
            device.write(at, zeros.clone()).await.ok()?;
        } else {
            device.write(at, IoBuf::new(blocks as usize)).await.ok()?;
        }
        at += blocks;
    }
    Ok(())
}
