//! Raises the cap of a store at an opening, after the store is read and before its log is replayed. `growth/raise_cap.rs` does it while the
//! store is open.
//!
//! The cap determines the length of the areas of the space image, and the space in use their room (INV-40). So the growth takes new areas
//! after the blocks in use, writes the published image there in the geometry of the new cap, flushes, and publishes one superblock that
//! names all of it (INV-37). Until that superblock is whole, nothing that an older one names has changed: a crash leaves the store with its
//! old cap. The log keeps its ring and its records: the replay that follows starts from an image with the same owners of blocks.

use shoal_base::BLOCK_BYTES_U64;
use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::options::FormatOptions;
use shoal_device::Device;
use shoal_image::copies::{self, FoundCopies};
use shoal_image::layout::Layout;
use shoal_image::space_image;
use shoal_image::superblock::Superblock;
use shoal_space::FreeImage;

use crate::growth::raise_cap::Plan;
use crate::store::Store;

impl Store {
    /// Bytes that the map of the free space takes of the disk in a store with a cap of `blocks_max` blocks and a file of `blocks` blocks:
    /// the map grows with the file. `None` if no store can have that cap.
    #[must_use]
    pub fn map_bytes(blocks_max: u64, blocks: u64) -> Option<u64> {
        let layout = Layout::new(&FormatOptions::for_blocks(blocks_max)).ok()?;
        Some(2 * u64::from(layout.image_blocks(blocks.max(layout.data_first()))) * BLOCK_BYTES_U64)
    }

    /// The cap of the store on `device`: the largest number of blocks that it may have. `None` if `device` holds only zeros.
    /// [`OpenOptions::grow_to`](crate::OpenOptions::grow_to) raises it.
    ///
    /// # Errors
    /// As [`probe`](Self::probe).
    pub fn cap(device: &Device) -> Boxed<'_, Result<Option<u64>>> {
        Box::pin(async {
            Ok(match copies::read_newest(device).await? {
                FoundCopies::Newest(superblock) => Some(superblock.layout.blocks_max),
                FoundCopies::Nothing => None,
            })
        })
    }
}

/// Raises the cap of the store of `superblock` and `image` on `device` to `blocks_max` blocks. Does nothing if the store has that cap.
///
/// # Errors
/// [`Error::Invalid`] if the store cannot have that cap; [`Error::Unopenable`] if this program must not write to the store, or if a file
/// has no room for the new areas; as the device. The store is unchanged then.
pub(crate) async fn raise_cap(
    device: &Device,
    (superblock, image): (&mut Superblock, &mut FreeImage),
    blocks_max: u64,
    read_only: bool,
) -> Result<()> {
    let cap = superblock.layout.blocks_max;
    if blocks_max == cap {
        return Ok(());
    }
    if read_only {
        return Err(Error::Invalid("a store that is opened read-only cannot grow".into()));
    }
    let plan = Plan::new(device, superblock, blocks_max)?;
    let grown = plan.image(image)?;
    plan.take_room(device).await?;
    // From here on an error leaves only bytes that no superblock names.
    let mut next = superblock.clone();
    next.number += 1;
    next.grow(plan.layout);
    next.device_blocks = plan.device_blocks;
    next.space = space_image::rewrite(device, &next, &grown).await?;
    assert!(
        next.layout.is_sensible(next.device_blocks, next.features.incompatible),
        "areas overlap blocks in use (INV-37): {:?}",
        next.layout
    );
    let flushes = device.counters().flushes;
    if !injected(Bug::GrownAreasNotFlushed) {
        device.flush().await.ok()?;
        assert!(device.counters().flushes > flushes, "new areas are named before a flush (INV-37)");
    }
    copies::write(device, &next).await?;
    tracing::info!("the store grew: it may have {blocks_max} blocks of 4 KiB now; it had at most {cap}");
    (*superblock, *image) = (next, grown);
    Ok(())
}
