//! Moves the log of a store whose cap was raised to a ring that fits its size: after the growth, and at an opening (INV-38).
//!
//! The ring of the log cannot be extended in place: data follow it, and the place of a batch depends on the ring's length. So the log
//! admits no records for a moment, until all of its records are applied, and one superblock names another ring that has no batch yet. Until
//! that superblock is durable, nothing that an older one names has changed. Writers wait meanwhile, as for room in a full log: none is
//! refused.
//!
//! A store without room for the longer ring keeps its log and continues to work: the next growth or opening tries again.

use shoal_base::{BLOCK_BYTES_U64, Run};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::options::log_blocks_for;
use shoal_image::features::MOVED_AREAS;
use shoal_image::space_image;
use shoal_log::Ring;
use shoal_space_manager::DataBlocks;

use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::publish::{MovedLog, Publication};
use crate::growth::grow::zero;
use crate::growth::map_room::{hold, hold_areas};

/// The log gets a new ring if that has at least this many times its length.
const WORTH_MOVING: u32 = 2;

/// Blocks of the log's ring that are prepared at first in a file, 8 MiB: the rest takes no space of the file system until it is
/// [prepared](Checkpointer::prepare_log).
pub const PREPARED_FIRST: u32 = 2_048;

/// The reason why the log of a store with an archive keeps its ring.
const UNREAD: &str = "the archive has not read all of its records yet";

/// The place of a longer ring without any batch.
struct LongerRing {
    ring: Ring,
    /// Blocks of the ring, from its start on, that may be written.
    prepared: u32,
    /// The new end of the data if the file grows for the ring; `None` if its blocks were free.
    device_blocks: Option<u64>,
}

impl Checkpointer {
    /// Moves the log to a ring that fits the cap, if that is worth it. Errors are only logged: no operation depends on a longer ring.
    pub async fn fit_log(&self) {
        if let Err(error) = self.try_to_fit_log().await {
            tracing::warn!("the log could not get a ring that fits the size of the store: {error}");
        }
    }

    async fn try_to_fit_log(&self) -> Result<()> {
        let layout = self.layout();
        let wanted = log_blocks_for(layout.blocks_max);
        if wanted / WORTH_MOVING < layout.log_blocks || !self.has_grown().await {
            return Ok(());
        }
        if self.log.committer.has_unread() {
            self.say_kept(wanted, UNREAD);
            return Ok(());
        }
        // Most of the work is done while writers continue.
        self.empty_log().await?;
        let closed = self.log.committer.close_log();
        closed.is_drained().await?;
        self.empty_log().await?;
        let _turn = self.grower.take().await;
        match self.why_not_now().await? {
            Some(why) => self.say_kept(wanted, why),
            None => match self.place_of_ring(wanted).await {
                Ok(place) => self.move_log(place).await?,
                Err(why) => self.say_kept(wanted, &why),
            },
        }
        Ok(())
    }

    async fn empty_log(&self) -> Result<()> {
        if injected(Bug::LogMovedWithRecords) { Ok(()) } else { self.apply_all().await }
    }

    /// The log of a store that never grew keeps its original length.
    async fn has_grown(&self) -> bool {
        self.publisher.take().await.features.incompatible & MOVED_AREAS != 0
    }

    /// The reason why the log keeps its ring: damage in the trees or in the space image, or the archive.
    async fn why_not_now(&self) -> Result<Option<&'static str>> {
        let is_applied = self.tablets.all().iter().all(|tablet| tablet.first_unapplied().is_none());
        if !is_applied && !injected(Bug::LogMovedWithRecords) {
            return Ok(Some("records of the log could not be applied"));
        }
        if self.log.committer.has_unread() {
            return Ok(Some(UNREAD));
        }
        // A publish that finds damage makes the store read-only.
        let newest = self.publisher.take().await;
        let image = space_image::load(&self.device, &newest).await?;
        Ok(image.incomplete().next().map(|_| "a part of the space image is damaged"))
    }

    /// Finds a place for a ring of `blocks` blocks: after the end of a file, or a free run. The caller has the grower's turn.
    ///
    /// # Errors
    /// The reason why there is no place.
    async fn place_of_ring(&self, blocks: u32) -> std::result::Result<LongerRing, String> {
        let device_blocks = self.publisher.take().await.device_blocks;
        let end = device_blocks + u64::from(blocks);
        self.hold_old_ring().await.map_err(|error| error.to_string())?;
        if self.device.inner().can_grow() && end <= self.layout().blocks_max {
            let ring = Ring { first: device_blocks, blocks };
            let prepared = PREPARED_FIRST.min(blocks);
            let held = hold_areas(&self.device, &self.layout(), device_blocks, end).await;
            held.map_err(|error| error.to_string())?;
            self.write_ring_behind_the_end(ring, prepared).await?;
            return Ok(LongerRing { ring, prepared, device_blocks: Some(end) });
        }
        drop(self.fill_some(self.space.holes().blocks()));
        // The ring must not take blocks that applies may need (R3): reserved until the ring has its run.
        let no_room = "there is no room for it";
        let reservation = self.space.claim_apply(u64::from(blocks)).map_err(|_| no_room)?;
        let run = self.space.allocate(blocks).ok_or(no_room)?;
        drop(reservation);
        match zero(&self.device, run.block, run.end()).await {
            Ok(()) => {
                let ring = Ring { first: run.block, blocks };
                Ok(LongerRing { ring, prepared: blocks, device_blocks: None })
            }
            Err(error) => {
                self.space.give_back(&[run]);
                Err(error.to_string())
            }
        }
    }

    /// Takes room for the unprepared part of the ring if its blocks are to become data.
    async fn hold_old_ring(&self) -> Result<()> {
        let ring = self.layout().ring();
        let Some(old) = self.layout().with_log(ring).1 else { return Ok(()) };
        hold(&self.device, old.block + u64::from(self.log.committer.ring.prepared())..old.end()).await
    }

    /// Makes the file long enough for `ring`. As in a new file, only its first part takes space of the file system at first.
    async fn write_ring_behind_the_end(&self, ring: Ring, prepared: u32) -> std::result::Result<(), String> {
        let inner = self.device.inner();
        let before = inner.blocks();
        let written = match inner.extend(ring.first + u64::from(ring.blocks)) {
            Ok(()) => {
                let written = zero(&self.device, ring.first, ring.first + u64::from(prepared)).await;
                written.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if written.is_err()
            && let Err(kept) = inner.shrink(before)
        {
            tracing::warn!("cannot give back the space of a longer log to the file system: {kept}");
        }
        written
    }

    /// Publishes the superblock with the longer ring. All records of the log are applied, and it admits none.
    async fn move_log(&self, place: LongerRing) -> Result<()> {
        let LongerRing { ring, prepared, device_blocks } = place;
        let before = self.layout();
        let (layout, old) = before.with_log(ring);
        self.flush_grown().await?;
        // No batch may be written from here on: it would go to the old ring.
        let stopped = self.log.committer.stop().await;
        let is_taken = device_blocks.is_none() && !injected(Bug::LongerRingFree);
        let changes = Publication {
            device_blocks,
            taken: is_taken.then(|| Run::new(ring.first, ring.blocks)).into_iter().collect(),
            freed: old.into_iter().collect(),
            moved_log: Some(MovedLog { layout, prepared }),
            ..Publication::default()
        };
        let published = self.publish(changes).await;
        if is_taken && matches!(published, Err(Error::NoRoom(_))) {
            self.space.give_back(&[Run::new(ring.first, ring.blocks)]);
        }
        let number = published?;
        stopped.move_log(ring, prepared);
        let end = device_blocks.unwrap_or(self.space.data_end());
        let data = DataBlocks { blocks: layout.data_first()..end, areas: layout.areas_in_data().collect() };
        self.space.move_log(data, number, old);
        self.tablets.admission.set_log_blocks(layout.log_blocks);
        self.layout.store(std::sync::Arc::new(layout));
        // The previous superblock names the old ring. If the new one were lost, recovery would not read the batches of the new ring, so a
        // second superblock names it as well.
        let named_twice = self.publish(Publication::default()).await;
        named_twice
            .inspect_err(|error| self.log.fail(format!("the longer log is named once only ({error})")))?;
        drop(stopped);
        tracing::info!(
            "the log got a longer ring, which fits the size of the store: {} instead of {}",
            mib(ring.blocks),
            mib(before.log_blocks)
        );
        Ok(())
    }

    fn say_kept(&self, wanted: u32, why: &str) {
        tracing::warn!(
            "the log keeps its size of {} and does not get the {} that fit the size of the store: {why}. The next growth or start tries \
             it again",
            mib(self.layout().log_blocks),
            mib(wanted)
        );
    }
}

fn mib(blocks: u32) -> String {
    format!("{:.1} MiB", (u64::from(blocks) * BLOCK_BYTES_U64) as f64 / f64::from(1 << 20))
}
