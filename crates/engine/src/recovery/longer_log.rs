//! Gives a store whose cap was raised a log that fits its size, at an opening (INV-38).
//!
//! The ring of the log cannot become longer where it is: data lie behind it, and the place of a batch depends on the length. So the
//! opening first applies all records, by opening the store and closing it again, and then publishes one superblock with another
//! ring, in which no batch lies yet. Until that superblock is whole, nothing that an older one names has changed. The blocks of the
//! old ring become free in its space image, and are used once the superblock of the opening, the next one, has replaced the older.
//!
//! A store that has no room for the longer ring keeps its log and works on: the next opening tries it again.

use shoal_base::task::Boxed;
use shoal_base::{BLOCK_BYTES_U64, Run};

use crate::checkpoint::copies;
use crate::checkpoint::features::MOVED_AREAS;
use crate::checkpoint::grow::zero;
use crate::checkpoint::space_image;
use crate::checkpoint::superblock::FORMAT_VERSION;
use crate::common::error::{Error, Result};
use crate::common::options::{Environment, OpenOptions, log_blocks_for};
use crate::log::ring::Ring;
use crate::recovery::format::PREPARED_FIRST;
use crate::recovery::read::Recovery;
use crate::testing::injected_bug::{Bug, injected};

/// The log gets a new ring where that is this many times as long.
const WORTH_MOVING: u32 = 2;

/// The place of a longer ring.
struct LongerRing {
    ring: Ring,
    /// The end of the data with it.
    device_blocks: u64,
    /// Its blocks are free in the space image: the file need not grow for it.
    is_free: bool,
}

impl Recovery {
    /// The store with a log that fits its cap, if it can have one.
    ///
    /// # Errors
    /// As the device. A lack of room is none: the store keeps its log then.
    pub(crate) fn with_fitting_log<'a>(
        self,
        options: &'a OpenOptions,
        environment: &'a Environment,
    ) -> Boxed<'a, Result<Self>> {
        Box::pin(async move {
            let Some(blocks) = self.longer_log(options) else { return Ok(self) };
            let is_empty = self.log.batches.is_empty() || injected(Bug::LogMovedWithRecords);
            let mut recovery = if is_empty { self } else { self.applied(options, environment).await? };
            let is_empty = recovery.log.batches.is_empty() || injected(Bug::LogMovedWithRecords);
            match recovery.place_of_ring(blocks) {
                Some(place) if is_empty => recovery.move_log(place).await?,
                _ => recovery.say_kept(
                    blocks,
                    if is_empty {
                        "there is no room for it"
                    } else {
                        "records of the log could not be applied"
                    },
                ),
            }
            Ok(recovery)
        })
    }

    /// Blocks that the ring should have, where that is worth moving it. A damaged store keeps its log until it was repaired.
    fn longer_log(&self, options: &OpenOptions) -> Option<u32> {
        let superblock = &self.superblock;
        let wanted = log_blocks_for(superblock.layout.blocks_max);
        let is_whole = !self.is_cut && self.damage.is_empty() && self.image.incomplete().next().is_none();
        // A repair may look for lost objects in the ring as it is.
        let may_write = !(options.read_only || options.accept_damaged_log)
            && superblock.version == FORMAT_VERSION
            && superblock.features.check_writable().is_ok();
        // The log of a store that never grew has the length that it was made with.
        let grew = superblock.features.incompatible & MOVED_AREAS != 0;
        (grew && is_whole && may_write && wanted / WORTH_MOVING >= superblock.layout.log_blocks)
            .then_some(wanted)
    }

    /// The store with its records applied, as far as that succeeds, read again.
    async fn applied(self, options: &OpenOptions, environment: &Environment) -> Result<Self> {
        let device = self.device.clone();
        let quiet = OpenOptions { background: false, ..options.clone() };
        let closed = async { self.start(quiet, environment.clone()).await?.close().await };
        // The opening that follows meets a failure that lasts, and tells it.
        if let Err(error) = closed.await {
            tracing::warn!("the log could not be emptied for a longer one: {error}");
        }
        Self::read(device, options).await
    }

    /// A place for a ring of `blocks` blocks: behind the end of a file, or the last free run that is long enough.
    fn place_of_ring(&self, blocks: u32) -> Option<LongerRing> {
        let device_blocks = self.superblock.device_blocks;
        let end = device_blocks + u64::from(blocks);
        if self.device.inner().can_grow() && end <= self.superblock.layout.blocks_max {
            let ring = Ring { first: device_blocks, blocks };
            return Some(LongerRing { ring, device_blocks: end, is_free: false });
        }
        let free = self.image.runs().filter(|run| run.blocks >= blocks).last()?;
        let ring = Ring { first: free.end() - u64::from(blocks), blocks };
        Some(LongerRing { ring, device_blocks, is_free: true })
    }

    /// Publishes the superblock with the longer ring.
    ///
    /// # Errors
    /// As the device.
    async fn move_log(&mut self, place: LongerRing) -> Result<()> {
        let LongerRing { ring, device_blocks, is_free } = place;
        let inner = self.device.inner().clone();
        let before = inner.blocks();
        if is_free {
            // The superblock before the newest may name what lay in these blocks (R9): one that has them free takes its place.
            self.superblock.number += 1;
            copies::write(&self.device, &self.superblock).await?;
        }
        // As in a new file, only the first part of the ring takes space of the file system at first.
        let prepared = if inner.can_grow() { PREPARED_FIRST.min(ring.blocks) } else { ring.blocks };
        let extended = if is_free { Ok(()) } else { inner.extend(device_blocks) };
        let written = match extended {
            Ok(()) => zero(&self.device, ring.first, ring.first + u64::from(prepared)).await,
            Err(error) => Err(Error::Unopenable(error.to_string())),
        };
        if let Err(error) = written {
            if let Err(kept) = inner.shrink(before) {
                tracing::warn!("what a longer log took of the file system could not be given back: {kept}");
            }
            self.say_kept(ring.blocks, &error.to_string());
            return Ok(());
        }
        let mut next = self.superblock.clone();
        let (layout, old) = next.layout.with_log(ring);
        let mut image = space_image::enlarged(&self.image, &layout, old.as_slice())?;
        if is_free && !injected(Bug::LongerRingFree) {
            image.take(Run::new(ring.first, ring.blocks)).map_err(|error| {
                let what = format!("the place of a longer log: {error}");
                Error::Corrupt { what, block: ring.first }
            })?;
        }
        assert!(
            self.log.batches.is_empty() || injected(Bug::LogMovedWithRecords),
            "the log gets another ring while batches are needed (INV-38)"
        );
        next.number += 1;
        next.device_blocks = device_blocks;
        next.log_tail = self.log.head;
        next.move_log(layout, prepared);
        next.space = space_image::rewrite(&self.device, &next, &image).await?;
        assert!(
            layout.is_sensible(device_blocks, next.features.incompatible),
            "a longer ring overlaps what is in use (INV-38): {layout:?}"
        );
        self.device.flush().await.ok()?;
        copies::write(&self.device, &next).await?;
        tracing::info!(
            "the log got a longer ring, which fits the size of the store: {} instead of {}",
            mib(ring.blocks),
            mib(self.superblock.layout.log_blocks)
        );
        self.log.batches.clear();
        self.log.head = next.log_tail;
        (self.superblock, self.image) = (next, image);
        Ok(())
    }

    fn say_kept(&self, wanted: u32, why: &str) {
        tracing::warn!(
            "the log keeps its size of {} and does not get the {} that fit the size of the store: {why}. The next start tries it again",
            mib(self.superblock.layout.log_blocks),
            mib(wanted)
        );
    }
}

fn mib(blocks: u32) -> String {
    format!("{:.1} MiB", (u64::from(blocks) * BLOCK_BYTES_U64) as f64 / f64::from(1 << 20))
}
