//! Raises the cap of a store at an opening: between the reading of the store and the replay of its log.
//!
//! The areas of the space image are sized by the cap. So the growth takes new areas behind the blocks in use, writes the published
//! image there in the geometry of the new cap, flushes, and publishes one superblock that names all of it (INV-37). Until that
//! superblock is whole, nothing that an older one names has changed: a crash leaves the store with its old cap. The log keeps its
//! ring and its records: the replay that follows starts from an image with the same owners of blocks.

use std::sync::Arc;

use shoal_base::task::Boxed;
use shoal_device::Device;
use shoal_space::FreeImage;

use crate::checkpoint::copies::{self, Found};
use crate::checkpoint::features::MOVED_AREAS;
use crate::checkpoint::grow::zero;
use crate::checkpoint::space_image::{self, free_blocks};
use crate::checkpoint::superblock::{FORMAT_VERSION, Superblock};
use crate::common::error::{Error, Result};
use crate::recovery::read::Recovery;
use crate::store::Store;
use crate::testing::injected_bug::{Bug, injected};

impl Store {
    /// The cap of the store on `device`: the largest number of blocks that it may have. `None` where `device` holds only zeros.
    /// [`OpenOptions::grow_to`](crate::OpenOptions::grow_to) raises it.
    ///
    /// # Errors
    /// As [`probe`](Self::probe).
    pub fn cap(device: &Device) -> Boxed<'_, Result<Option<u64>>> {
        Box::pin(async {
            Ok(match copies::read_newest(device).await? {
                Found::Newest(superblock) => Some(superblock.layout.blocks_max),
                Found::Nothing => None,
            })
        })
    }
}

impl Recovery {
    /// Raises the cap to `blocks_max` blocks; nothing is done if the store has that cap.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the store cannot have that cap; [`Error::Unopenable`] if this program must not write to the store, or
    /// if a file has no room for the new areas; as the device. The store is as before then.
    pub(crate) async fn grow_to(&mut self, blocks_max: u64, read_only: bool) -> Result<()> {
        let cap = self.superblock.layout.blocks_max;
        if blocks_max == cap {
            return Ok(());
        }
        let device = self.device.inner().clone();
        let end = self.superblock.device_blocks;
        self.check_growth(blocks_max, read_only)?;
        let mut next = self.superblock.clone();
        let (layout, freed) = next.layout.grown(blocks_max, end)?;
        next.number += 1;
        next.layout = layout;
        next.features.incompatible |= MOVED_AREAS;
        let areas_end = end + 2 * u64::from(layout.space_area_blocks);
        next.device_blocks = if device.can_grow() { areas_end } else { blocks_max };

        let mut image = FreeImage::new(blocks_max, layout.group_blocks);
        let published: Vec<_> = self.image.runs().map(|run| run.block..run.end()).collect();
        let new = if injected(Bug::GrownAreasFree) { end } else { areas_end };
        for free in published.into_iter().chain(freed).chain(std::iter::once(new..next.device_blocks)) {
            free_blocks(&mut image, free)?;
        }
        if device.can_grow() {
            take_room(&self.device, end, areas_end).await?;
        }
        // From here on an error leaves bytes that no superblock names.
        next.space = space_image::rewrite(&self.device, &next, &image).await?;
        assert!(
            layout.is_sensible(next.device_blocks, true),
            "areas overlap what is in use (INV-37): {layout:?}"
        );
        let flushes = self.device.counters().flushes;
        if !injected(Bug::GrownAreasNotFlushed) {
            self.device.flush().await.ok()?;
            assert!(self.device.counters().flushes > flushes, "new areas are named before a flush (INV-37)");
        }
        copies::write(&self.device, &next).await?;
        tracing::info!("the store grew: it may have {blocks_max} blocks of 4 KiB now; it had at most {cap}");
        (self.superblock, self.image) = (next, image);
        Ok(())
    }

    /// Checks all that can be known before anything is written.
    fn check_growth(&self, blocks_max: u64, read_only: bool) -> Result<()> {
        let Superblock { version, features, layout, .. } = &self.superblock;
        let refused = |why: String| Err(Error::Invalid(why));
        if read_only {
            return refused("a store that is opened read-only cannot grow".into());
        }
        if blocks_max < layout.blocks_max {
            return refused(format!(
                "the store has a cap of {} blocks of 4 KiB and cannot shrink to {blocks_max}: objects may lie in any of them. A smaller \
                 store is a new one: back this one up, and restore it with a smaller size",
                layout.blocks_max
            ));
        }
        let there = self.device.blocks();
        if !self.device.inner().can_grow() && blocks_max > there {
            return refused(format!(
                "the store cannot grow to {blocks_max} blocks of 4 KiB: its device has {there}. Enlarge the device first"
            ));
        }
        features.check_writable()?;
        if *version < FORMAT_VERSION {
            return Err(Error::Unopenable(format!(
                "the store has format version {version} and cannot grow: open it once for writing without growing it, which upgrades it \
                 to version {FORMAT_VERSION}"
            )));
        }
        if self.image.incomplete().next().is_some() {
            return Err(Error::Unopenable(
                "a part of the space image is damaged, and what is not known as free would stay unused for ever: the store does not \
                 grow. `shoal check --repair` finds the free space again; grow then"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// Lengthens the file from `end` to `to` blocks at least. A file that has no room for that gets its length back.
async fn take_room(device: &Device, end: u64, to: u64) -> Result<()> {
    let inner = Arc::clone(device.inner());
    let before = inner.blocks();
    let grown = match inner.grow(to) {
        Ok(()) if inner.allocates() => Ok(()),
        Ok(()) => zero(device, end, to).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    grown.map_err(|error| {
        if let Err(kept) = inner.shrink(before) {
            tracing::warn!("what a growth took of the file system could not be given back: {kept}");
        }
        let mib = ((to - end) * shoal_base::BLOCK_BYTES_U64).div_ceil(1 << 20);
        Error::Unopenable(format!(
            "the store did not grow: the data file needs {mib} MiB more for the map of the new space: {error}. The store is as before"
        ))
    })
}
