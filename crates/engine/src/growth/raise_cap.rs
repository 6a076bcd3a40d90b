//! Raises the cap of an open store while reads, writes and applies continue (INV-37).
//!
//! The cap determines the size of the areas of the space image. So the growth takes new areas after the blocks in use, and one publish
//! writes the published image there in the geometry of the new cap, and then the superblock that names all of it. Until that superblock is
//! durable, nothing that an older one names has changed. The allocator is enlarged afterwards, under its own lock; the old areas become
//! room for objects in the same way as blocks that an apply frees (R9).
//!
//! Writers that find no room meanwhile wait for the grower's turn and then find the new cap: none is refused. `growth/at_opening.rs` does
//! the same at an opening, and shares the plan.

use std::ops::Range;
use std::sync::Arc;

use shoal_base::task::Boxed;
use shoal_base::{BLOCK_BYTES_U64, Run};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_device::Device;
use shoal_image::layout::Layout;
use shoal_image::space_image;
use shoal_image::superblock::{FORMAT_VERSION, Superblock};
use shoal_log::run_to_end;
use shoal_memtable::admission::records_max;
use shoal_space::FreeImage;
use shoal_space_manager::DataBlocks;
use shoal_tablets::checkpoint::publish::Publication;
use shoal_tablets::growth::map_room::hold;

use crate::store::{Inner, Store};

/// The result of a growth of the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapChange {
    /// The largest number of blocks of 4 KiB that the store could have before.
    pub before: u64,
    /// The largest number of blocks that it may have now.
    pub now: u64,
}

/// A possible growth of the cap.
pub(crate) struct Plan {
    /// The layout with the new cap.
    pub layout: Layout,
    /// The size of the device that the superblock of the growth names, in blocks.
    pub device_blocks: u64,
    /// The blocks of the new areas.
    pub areas: Range<u64>,
    /// The old areas, which become free.
    pub old: Vec<Run>,
    /// The parts of them that may have no room in a file yet: blocks that are allocated must have it.
    pub old_unused: Vec<Range<u64>>,
    /// Blocks after the areas that become free: none in a file, which continues to grow as it fills.
    pub fresh: Vec<Run>,
}

impl Plan {
    /// Plans the growth of the store of `superblock` on `device` to a cap of `blocks_max` blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the store cannot have that cap; [`Error::Unopenable`] if this program must not write to the store.
    pub(crate) fn new(device: &Device, superblock: &Superblock, blocks_max: u64) -> Result<Self> {
        let Superblock { version, features, layout, .. } = superblock;
        let refused = |why: String| Err(Error::Invalid(why));
        if blocks_max < layout.blocks_max {
            return refused(format!(
                "the store has a cap of {} blocks of 4 KiB ({}) and cannot shrink to {blocks_max} ({}): objects may be stored \
                 in any of them. For a smaller store, back this one up and restore it with a smaller size",
                layout.blocks_max,
                mib(layout.blocks_max),
                mib(blocks_max)
            ));
        }
        let (can_grow, there) = (device.inner().can_grow(), device.blocks());
        if !can_grow && blocks_max > there {
            return refused(format!(
                "the store cannot grow to {blocks_max} blocks of 4 KiB ({}): its device has {there} ({}). Enlarge the device first",
                mib(blocks_max),
                mib(there)
            ));
        }
        features.check_writable()?;
        if *version < FORMAT_VERSION {
            return Err(Error::Unopenable(format!(
                "the store has format version {version} and cannot grow: open it once for writing without growing it, which upgrades it \
                 to version {FORMAT_VERSION}"
            )));
        }
        let end = superblock.device_blocks;
        let unused = layout.unused_areas(end);
        let (layout, freed) = layout.grown(blocks_max, end)?;
        let is_freed = |unused: &Range<u64>| {
            freed.iter().any(|freed| freed.start <= unused.start && unused.end <= freed.end)
        };
        let old_unused = unused.into_iter().filter(is_freed).collect();
        let areas = end..end + 2 * u64::from(layout.space_area_blocks);
        let device_blocks = if can_grow { areas.end } else { blocks_max };
        let old = freed.into_iter().flat_map(runs).collect();
        let new = if injected(Bug::GrownAreasFree) { areas.start } else { areas.end };
        let fresh: Vec<Run> = runs(new..device_blocks).collect();
        assert_eq!(layout.blocks_max, blocks_max, "the layout has the new cap");
        assert!(
            areas.start >= end && areas.end <= device_blocks,
            "new areas over blocks in use (INV-37): {areas:?}"
        );
        assert!(
            fresh.iter().all(|run| run.block >= areas.end) || injected(Bug::GrownAreasFree),
            "new areas are free (INV-37)"
        );
        Ok(Self { layout, device_blocks, areas, old, old_unused, fresh })
    }

    /// Returns the published image after the growth.
    ///
    /// # Errors
    /// [`Error::Unopenable`] if a part of `published` is damaged; [`Error::Corrupt`] if the plan contradicts it.
    pub(crate) fn image(&self, published: &FreeImage) -> Result<FreeImage> {
        if published.incomplete().next().is_some() {
            return Err(Error::Unopenable(
                "the store does not grow: a part of the space image is damaged, and its free blocks would stay unused for ever. \
                 `shoal check --repair` finds the free space again; grow then"
                    .into(),
            ));
        }
        space_image::enlarged(published, &self.layout, &self.freed())
    }

    fn freed(&self) -> Vec<Run> {
        [&self.old[..], &self.fresh].concat()
    }

    /// Makes a file long enough for the new areas and takes room for the part of them that the image uses (INV-40). A file without room for
    /// that gets its old length back.
    ///
    /// # Errors
    /// [`Error::Unopenable`].
    pub(crate) async fn take_room(&self, device: &Device) -> Result<()> {
        let inner = Arc::clone(device.inner());
        if !inner.can_grow() {
            return Ok(());
        }
        let before = inner.blocks();
        let held = || self.layout.used_areas(self.device_blocks).into_iter().chain(self.old_unused.clone());
        let grown = match inner.extend(self.areas.end) {
            Ok(()) => hold_all(device, held()).await.map_err(|error| match error {
                Error::NoRoom(why) => why,
                error => error.to_string(),
            }),
            Err(error) => Err(error.to_string()),
        };
        grown.map_err(|error| {
            if let Err(kept) = inner.shrink(before) {
                tracing::warn!("cannot give back the space of a growth to the file system: {kept}");
            }
            let blocks: u64 = held().map(|part| part.end - part.start).sum();
            let mib = (blocks * BLOCK_BYTES_U64).div_ceil(1 << 20);
            Error::Unopenable(format!(
                "the store did not grow: the data file needs {mib} MiB more for the map of the new space: {error}. The store is as before"
            ))
        })
    }
}

async fn hold_all(device: &Device, parts: impl Iterator<Item = Range<u64>>) -> Result<()> {
    for part in parts {
        hold(device, part).await?;
    }
    Ok(())
}

fn mib(blocks: u64) -> String {
    format!("{} MiB", blocks.saturating_mul(BLOCK_BYTES_U64) >> 20)
}

/// Divides blocks into runs.
fn runs(blocks: Range<u64>) -> impl Iterator<Item = Run> {
    const RUN_BLOCKS: u64 = 1 << 30;
    let end = blocks.end;
    blocks
        .step_by(RUN_BLOCKS as usize)
        .map(move |first| Run::new(first, (end - first).min(RUN_BLOCKS) as u32))
}

impl Store {
    /// Raises the cap to `blocks_max` blocks of 4 KiB while the store is in use; `None`: to the whole device, whose size is queried again.
    /// Does nothing if the store already has that cap. A crash leaves the old cap or the new one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the store cannot have that cap; [`Error::Unopenable`] if its free space is damaged, or a file has no room for
    /// the map of the new space; the store is unchanged then. As the device: a failed write poisons the store.
    pub fn grow(&self, blocks_max: Option<u64>) -> Boxed<'_, Result<CapChange>> {
        Box::pin(async move {
            self.0.check_writable()?;
            let grown = run_to_end(self.0.raise_cap(blocks_max))?;
            run_to_end(self.0.checkpointer.fit_log());
            Ok(grown)
        })
    }

    /// The number of blocks that the store's file could have with the present free space of its file system; `None` for a block device, and
    /// if the free space is unknown.
    #[must_use]
    pub fn room_blocks(&self) -> Option<u64> {
        self.0.device.inner().room()
    }
}

impl Inner {
    /// A publish that finds damage makes the store read-only, so the image is checked for damage before. No superblock is published
    /// meanwhile.
    async fn plan(&self, blocks_max: u64) -> Result<Plan> {
        let newest = self.checkpointer.publisher.take().await;
        let plan = Plan::new(&self.device, &newest, blocks_max)?;
        plan.image(&space_image::load(&self.device, &newest).await?)?;
        Ok(plan)
    }

    async fn raise_cap(&self, blocks_max: Option<u64>) -> Result<CapChange> {
        // Between two steps of relocation: no group is being emptied, and none will be.
        let _round = self.relocator.round.take().await;
        let _turn = self.checkpointer.grower.take().await;
        let before = self.layout().blocks_max;
        let there =
            self.device.inner().measure().map_err(|error| {
                Error::Unopenable(format!("the size of the device cannot be read: {error}"))
            })?;
        let blocks_max = match blocks_max {
            Some(blocks_max) => blocks_max,
            None if !self.device.inner().can_grow() => there,
            None => {
                return Err(Error::Invalid(
                    "a size is missing: how large the store may become in its file".into(),
                ));
            }
        };
        if blocks_max == before {
            return Ok(CapChange { before, now: before });
        }
        let plan = self.plan(blocks_max).await?;
        plan.take_room(&self.device).await?;
        self.checkpointer.flush_grown().await?;
        let changes = Publication {
            layout: Some(plan.layout),
            device_blocks: Some(plan.device_blocks),
            freed: plan.freed(),
            ..Publication::default()
        };
        let number = self.checkpointer.publish(changes).await?;
        let Plan { layout, device_blocks, old, fresh, .. } = plan;
        let data = DataBlocks {
            blocks: layout.data_first()..device_blocks,
            areas: layout.areas_in_data().collect(),
        };
        self.space.raise_cap((blocks_max, layout.group_blocks), data, number, &fresh, old);
        self.checkpointer.layout.store(Arc::new(layout));
        self.tablets.admission.set_records_max(records_max(&self.tuning, blocks_max));
        self.log.committer.moved.notify();
        tracing::info!(
            "the store grew: it may have {blocks_max} blocks of 4 KiB now; it had at most {before}"
        );
        Ok(CapChange { before, now: blocks_max })
    }
}
