//! The space image on the device: a snapshot and the deltas of the superblocks since, in one of two areas (R10; `docs/format/space.md`).
//!
//! A publish appends its changes. When the used part of an area, which grows with the device (INV-40), is full, the image is read back,
//! updated and written to the other area as a new snapshot. It is never written from the allocator's memory, which is ahead of the
//! published state.

use std::ops::Range;

use shoal_base::{BLOCK_BYTES, Run, blocks_for};
use shoal_common::error::{Error, Result};
use shoal_device::{Device, IoBuf};
use shoal_space::image::SnapshotReader;
use shoal_space::{Delta, FreeImage};

use crate::layout::{Layout, PIECE_BLOCKS};
use crate::superblock::{SpacePlace, Superblock};

/// Writes the image of a new store: all blocks from the first data block on are free.
///
/// # Errors
/// As the device.
pub async fn write_first(device: &Device, superblock: &Superblock) -> Result<SpacePlace> {
    let layout = &superblock.layout;
    let mut image = FreeImage::new(layout.blocks_max, layout.group_blocks);
    free_blocks(&mut image, layout.data_first()..superblock.device_blocks)?;
    write_snapshot(device, superblock, &image, 0).await
}

/// Makes all of `blocks` free in `image`.
///
/// # Errors
/// [`Error::Corrupt`] if any of them is free already.
fn free_blocks(image: &mut FreeImage, blocks: Range<u64>) -> Result<()> {
    let mut first = blocks.start;
    while first < blocks.end {
        let some = (blocks.end - first).min(1 << 20);
        image.free(Run::new(first, some as u32)).map_err(|error| not_following(&error.to_string(), first))?;
        first += some;
    }
    Ok(())
}

/// Writes `image` as the snapshot of `superblock`, in the area that is not in use.
///
/// # Errors
/// As the device; [`Error::Corrupt`] if it does not fit, which is impossible for an image of this size.
pub async fn rewrite(device: &Device, superblock: &Superblock, image: &FreeImage) -> Result<SpacePlace> {
    write_snapshot(device, superblock, image, superblock.space.area ^ 1).await
}

/// Returns `published` in the geometry of `layout`, with the blocks of `freed` free as well.
///
/// # Errors
/// [`Error::Corrupt`] if any of them is free already.
pub fn enlarged(published: &FreeImage, layout: &Layout, freed: &[Run]) -> Result<FreeImage> {
    let mut image = FreeImage::new(layout.blocks_max, layout.group_blocks);
    for run in published.runs().chain(freed.iter().copied()) {
        free_blocks(&mut image, run.block..run.end())?;
    }
    Ok(image)
}

/// Writes the image that `newest` names, with the blocks of `freed` free as well, into an area of `superblock`, which has a larger cap.
///
/// # Errors
/// As [`load`] and [`rewrite`].
pub async fn enlarge(
    device: &Device,
    newest: &Superblock,
    superblock: &Superblock,
    freed: &[Run],
) -> Result<SpacePlace> {
    let published = load(device, newest).await?;
    rewrite(device, superblock, &enlarged(&published, &superblock.layout, freed)?).await
}

/// Appends the changes of `superblock`, which is not written yet. Returns the place of its image.
///
/// # Errors
/// As the device; [`Error::Corrupt`] if a change contradicts the image.
pub async fn append(
    device: &Device,
    superblock: &Superblock,
    taken: &[Run],
    freed: &[Run],
) -> Result<SpacePlace> {
    let mut place = superblock.space;
    let delta = Delta::new(superblock.number, taken, freed)
        .map_err(|error| not_following(&error.to_string(), error_block(taken, freed)))?;
    if delta.taken().is_empty() && delta.freed().is_empty() {
        return Ok(place);
    }
    let bytes = delta.encode(&superblock.identity);
    let blocks = blocks_for(bytes.len() as u64) as u32;
    if place.used_blocks + blocks <= superblock.layout.image_blocks(superblock.device_blocks) {
        let at = superblock.layout.space_area(place.area) + u64::from(place.used_blocks);
        device.write(at, IoBuf::copied_from(&bytes)).await.ok()?;
        place.used_blocks += blocks;
        place.deltas += 1;
        assert!(place.is_sensible(&superblock.layout), "deltas stay in their area (INV-40)");
        return Ok(place);
    }
    let mut image = load(device, superblock).await?;
    image.apply(&delta).map_err(|error| not_following(&error.to_string(), error_block(taken, freed)))?;
    write_snapshot(device, superblock, &image, place.area ^ 1).await
}

/// Reads the image that `superblock` names. Groups with a damaged piece are incomplete in it: none of their blocks is allocated (R19).
///
/// # Errors
/// [`Error::Corrupt`] if a delta is damaged: only the trees know the free blocks then; as the device.
pub async fn load(device: &Device, superblock: &Superblock) -> Result<FreeImage> {
    let (layout, place) = (&superblock.layout, &superblock.space);
    let start = layout.space_area(place.area);
    let empty = FreeImage::new(layout.blocks_max, layout.group_blocks);
    let mut reader =
        SnapshotReader::new(empty, superblock.identity, place.snapshot_number, place.snapshot_pieces);
    for sequence in 0..place.snapshot_pieces {
        let at = u64::from(sequence) * PIECE_BLOCKS;
        let blocks = PIECE_BLOCKS.min(u64::from(place.snapshot_blocks).saturating_sub(at));
        let read = || async { device.read(start + at, IoBuf::unfilled(blocks as usize)).await.ok() };
        // A piece that cannot be read is missing from the next snapshot for good: a single failure of the device must not cause that.
        let piece = match read().await {
            Ok(piece) => Ok(piece),
            Err(_) => read().await,
        };
        let read = piece.map_err(|error| error.to_string());
        if let Err(error) =
            read.and_then(|bytes| reader.piece(sequence, &bytes).map_err(|error| error.to_string()))
        {
            tracing::warn!("piece {sequence} of the space image (block {}) is damaged: {error}", start + at);
        }
    }
    let (mut image, lost) = reader.finish();
    for lost in lost {
        tracing::warn!(
            "the free space of blocks {} to {} is not known; `shoal check --repair` finds it again",
            lost.blocks.start,
            lost.blocks.end
        );
    }
    let first = u64::from(place.snapshot_blocks);
    let count = u64::from(place.used_blocks).saturating_sub(first);
    let bytes = device.read(start + first, IoBuf::unfilled(count as usize)).await.ok()?;
    let mut at = 0;
    for _ in 0..place.deltas {
        let block = start + first + at as u64;
        let rest = bytes.get(at * BLOCK_BYTES..).unwrap_or(&[]);
        let (delta, length) = Delta::decode(rest, &superblock.identity)
            .map_err(|error| not_following(&error.to_string(), block))?;
        if delta.superblock() <= place.snapshot_number || delta.superblock() > superblock.number {
            return Err(not_following("it belongs to another superblock", block));
        }
        image.apply(&delta).map_err(|error| not_following(&error.to_string(), block))?;
        at += length.div_ceil(BLOCK_BYTES);
    }
    Ok(image)
}

async fn write_snapshot(
    device: &Device,
    superblock: &Superblock,
    image: &FreeImage,
    area: u8,
) -> Result<SpacePlace> {
    let start = superblock.layout.space_area(area);
    let mut place = SpacePlace {
        area,
        snapshot_pieces: 0,
        snapshot_blocks: 0,
        used_blocks: 0,
        deltas: 0,
        snapshot_number: superblock.number,
    };
    for piece in image.snapshot(superblock.identity, superblock.number) {
        let at = u64::from(piece.sequence) * PIECE_BLOCKS;
        place.snapshot_pieces = piece.sequence + 1;
        place.used_blocks = (at + blocks_for(piece.bytes.len() as u64)) as u32;
        if place.used_blocks > superblock.layout.space_area_blocks {
            return Err(not_following("a snapshot is larger than its area", start));
        }
        device.write(start + at, IoBuf::copied_from(&piece.bytes)).await.ok()?;
    }
    place.snapshot_blocks = place.used_blocks;
    assert!(place.is_sensible(&superblock.layout), "an opening accepts the place of the image (R10)");
    Ok(place)
}

fn error_block(taken: &[Run], freed: &[Run]) -> u64 {
    taken.first().or(freed.first()).map_or(0, |run| run.block)
}

fn not_following(what: &str, block: u64) -> Error {
    Error::Corrupt { what: format!("the space image: {what}"), block }
}
