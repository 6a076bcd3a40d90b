//! The room of the space image in a data file (INV-40): each area has the length for the image of a full store, but only the part that the
//! image of the present blocks uses has room. Its size depends on the published superblock only.
//!
//! Room is taken before a superblock names the blocks that need it: on a full file system a publish finds it, so that deletes free space.

use std::ops::Range;

use shoal_common::error::{Error, Result, no_room};
use shoal_common::injected_bug::{Bug, injected};
use shoal_device::{Device, IoBuf, is_no_room};
use shoal_image::layout::Layout;

/// Blocks written by one request if the file system cannot allocate.
const PIECE_BLOCKS: u64 = 64;

/// Takes room for the part of the areas that the image of `device_blocks` blocks uses and that of `before` blocks does not.
///
/// # Errors
/// As [`hold`].
pub(crate) async fn hold_areas(
    device: &Device,
    layout: &Layout,
    before: u64,
    device_blocks: u64,
) -> Result<()> {
    for (old, new) in layout.used_areas(before).into_iter().zip(layout.used_areas(device_blocks)) {
        hold(device, old.end..new.end.max(old.end)).await?;
    }
    Ok(())
}

/// Takes room for `blocks` in the file system and keeps their contents. The caller excludes other writers.
///
/// # Errors
/// [`Error::NoRoom`]; [`Error::Unopenable`] for any other reason of the file system; as the device.
pub async fn hold(device: &Device, blocks: Range<u64>) -> Result<()> {
    if blocks.is_empty() || injected(Bug::MapWithoutRoom) {
        return Ok(());
    }
    match device.inner().hold_room(blocks.clone()) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) => {
            let code = error.raw_os_error();
            return Err(match code.is_some_and(is_no_room) {
                true => Error::NoRoom(no_room(code, &error)),
                false => Error::Unopenable(format!("no room for the map of the free space: {error}")),
            });
        }
    }
    // A write is the only way to take room here.
    for start in blocks.clone().step_by(PIECE_BLOCKS as usize) {
        let count = PIECE_BLOCKS.min(blocks.end - start);
        let held = device.read(start, IoBuf::unfilled(count as usize)).await.ok()?;
        device.write(start, held).await.ok()?;
    }
    Ok(())
}
