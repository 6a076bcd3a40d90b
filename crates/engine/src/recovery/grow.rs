//! Raises the cap of a store at an opening: between the reading of the store and the replay of its log. `maintenance/raise_cap.rs` does
//! it while the store is open.
//!
//! The areas of the space image are as long as the cap demands, and have room as the space in use does (INV-40). So the growth takes
//! new areas behind the blocks in use, writes the published
//! image there in the geometry of the new cap, flushes, and publishes one superblock that names all of it (INV-37). Until that
//! superblock is whole, nothing that an older one names has changed: a crash leaves the store with its old cap. The log keeps its
//! ring and its records: the replay that follows starts from an image with the same owners of blocks.

use shoal_base::BLOCK_BYTES_U64;
use shoal_base::task::Boxed;
use shoal_device::Device;

use crate::checkpoint::copies::{self, Found};
use crate::checkpoint::layout::Layout;
use crate::checkpoint::space_image;
use crate::common::error::{Error, Result};
use crate::common::options::FormatOptions;
use crate::maintenance::raise_cap::Plan;
use crate::recovery::read::Recovery;
use crate::store::Store;
use crate::testing::injected_bug::{Bug, injected};

impl Store {
    /// Bytes that the map of the free space takes of the disk in a store with a cap of `blocks_max` blocks whose file has `blocks` blocks:
    /// it grows with the file. `None` if no store can have that cap.
    #[must_use]
    pub fn map_bytes(blocks_max: u64, blocks: u64) -> Option<u64> {
        let layout = Layout::new(&FormatOptions::for_blocks(blocks_max)).ok()?;
        Some(2 * u64::from(layout.image_blocks(blocks.max(layout.data_first()))) * BLOCK_BYTES_U64)
    }

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
        if read_only {
            return Err(Error::Invalid("a store that is opened read-only cannot grow".into()));
        }
        let plan = Plan::new(&self.device, &self.superblock, blocks_max)?;
        let image = plan.image(&self.image)?;
        plan.take_room(&self.device).await?;
        // From here on an error leaves bytes that no superblock names.
        let mut next = self.superblock.clone();
        next.number += 1;
        next.grow(plan.layout);
        next.device_blocks = plan.device_blocks;
        next.space = space_image::rewrite(&self.device, &next, &image).await?;
        assert!(
            next.layout.is_sensible(next.device_blocks, next.features.incompatible),
            "areas overlap blocks in use (INV-37): {:?}",
            next.layout
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
}
