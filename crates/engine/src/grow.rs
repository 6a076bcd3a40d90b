//! Growing the data file ahead of need: zero, flush, publish, and only then hand out (R21).
//!
//! Writing into a hole or an unwritten extent makes every flush pay for the file system's journal (p99 of 40 to 120 ms instead
//! of 4 to 8); so what the allocator gets was written once.

use shoal_base::{BLOCK_BYTES, Run};
use shoal_device::{Device, IoBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::plant::{Plant, planted};
use crate::publish::Changes;
use crate::store::{Inner, OperationCounters};

/// Blocks that are zeroed by one request.
const ZERO_BLOCKS: u64 = 256;

impl Inner {
    /// Whether the file should grow now: less than a step of it is free.
    pub(crate) fn wants_growth(&self) -> bool {
        self.device.inner().can_grow()
            && self.space.allocator().free_blocks() < self.tuning.growth_blocks
            && self
                .publisher
                .try_take()
                .is_some_and(|publisher| publisher.superblock.device_blocks < self.layout.blocks_max)
    }

    /// Grows the file by one step, unless applying what the overlays hold frees enough; false where it has its full size.
    ///
    /// # Errors
    /// As the device.
    pub(crate) async fn grow_unless_freed(&self) -> Result<bool> {
        self.free_what_is_dead().await?;
        if self.wants_growth() { self.grow().await } else { Ok(true) }
    }

    /// Grows the file for a write that found no room.
    pub(crate) async fn grow_for(&self, blocks: u64) -> Result<()> {
        if !self.device.inner().can_grow() {
            return Ok(());
        }
        let mut gained = 0;
        while gained <= blocks {
            match self.grow().await {
                Ok(true) => gained += self.tuning.growth_blocks,
                Ok(false) => return Ok(()),
                Err(error) => {
                    // The disk under the file is full: to the caller that is a full store.
                    tracing::warn!("the data file could not grow: {error}");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Grows the file by one step; false where it has its full size.
    ///
    /// # Errors
    /// As the device; nothing changed then, except that a flush which failed poisons the store.
    pub(crate) async fn grow(&self) -> Result<bool> {
        let _turn = self.grower.take().await;
        let from = self.publisher.take().await.superblock.device_blocks;
        let to = (from + self.tuning.growth_blocks).min(self.layout.blocks_max);
        if to <= from {
            return Ok(false);
        }
        let failed = |message: String| Error::Unopenable(format!("growing to {to} blocks: {message}"));
        self.device.inner().grow(to).map_err(|error| failed(error.to_string()))?;
        if !planted(Plant::GrownNotZeroed) {
            zero(&self.device, from, to).await?;
        }
        OperationCounters::add(&self.counters.growth_blocks_written, to - from);
        let flush = async { self.device.flush().await.ok().map_err(Error::Io) };
        if let Err(error) = self.poison.flushed(flush).await {
            // The store is read-only now: whoever waits for room learns that none will come.
            self.committer.moved.notify();
            return Err(error);
        }
        let run = Run::new(from, u32::try_from(to - from).map_err(|_| failed("too much at once".into()))?);
        self.publish(Changes { freed: vec![run], device_blocks: Some(to), ..Changes::default() }).await?;
        self.space.grown(to);
        self.space.give_back(&[run]);
        self.committer.moved.notify();
        Ok(true)
    }
}

/// Writes zeros from block `from` to block `to`.
///
/// # Errors
/// As the device.
pub(crate) async fn zero(device: &Device, from: u64, to: u64) -> Result<()> {
    let zeros = Arc::new(IoBuf::new(ZERO_BLOCKS.min(to.saturating_sub(from)) as usize));
    let mut at = from;
    while at < to {
        let blocks = (to - at).min(ZERO_BLOCKS);
        if blocks as usize * BLOCK_BYTES == zeros.len() {
            device.write(at, zeros.clone()).await.ok()?;
        } else {
            device.write(at, IoBuf::new(blocks as usize)).await.ok()?;
        }
        at += blocks;
    }
    Ok(())
}
