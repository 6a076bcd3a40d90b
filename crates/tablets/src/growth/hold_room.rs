//! Takes room for a data file's used part at an opening: a sparse copy has holes, and a copy by reference shares its blocks, so an
//! overwrite may find its file system full.
//!
//! A store that releases free blocks does not know which of them have room: it makes holes of all long free runs, except some that it
//! keeps, and takes room for everything else.

use std::ops::Range;
use std::sync::Arc;

use shoal_base::Run;
use shoal_device::Device;
use shoal_image::layout::AREAS_FIRST;
use shoal_image::superblock::Superblock;
use shoal_space_manager::{HOLE_BLOCKS_MAX, HOLE_BLOCKS_MIN, SpaceManager};

/// Free blocks that an opening keeps in addition to those that `space` withholds: 4 MiB.
const KEPT_BLOCKS: u64 = 1_024;
/// Free blocks that are tried to be kept if the file system is full: 1 GiB.
const TRIED_BLOCKS: u64 = 1 << 18;

/// Takes room for every block that `superblock` uses and that is in no hole of `space`, and logs a warning if it cannot.
pub fn hold_room(device: &Device, superblock: &Superblock, space: &SpaceManager) {
    let inner = device.inner();
    if !inner.can_grow() {
        return;
    }
    if inner.is_copied_on_write() {
        tracing::warn!(
            "the data file is copied on write: on a full file system even overwrites and deletes are refused until there is room. \
             To avoid that, copy the stopped store into a new empty file with the attribute C (`chattr +C`), by `cp --reflink=never`"
        );
        return;
    }
    let holes: Vec<Run> = space.holes().all().iter().map(|hole| hole.run).collect();
    let data = without(&data_of(superblock), &holes);
    for blocks in fixed_parts(superblock).into_iter().chain(data) {
        if let Err(error) = inner.hold_room(blocks) {
            tracing::warn!(
                "parts of the data file have no allocated blocks, as in a sparse copy, or share them, and cannot get their own: \
                 {error}. Writes there are refused while the file system is full: make room, and start again"
            );
            return;
        }
    }
}

/// Makes holes of the long free runs of `space`, except the lowest ones, which get room, so that the store can work at once.
pub fn make_holes(device: &Device, space: &Arc<SpaceManager>) {
    let (mut runs, mut kept, mut tried) = (Vec::new(), 0, 0);
    space.allocator().for_each_run(&mut |run| runs.push(run));
    let wanted = space.withheld() + space.reserved_blocks() + KEPT_BLOCKS;
    let most = u64::from(HOLE_BLOCKS_MAX);
    for run in runs.into_iter().filter(|run| run.blocks >= HOLE_BLOCKS_MIN) {
        let mut at = run.block;
        while at < run.end() {
            let blocks = (run.end() - at).min(most);
            let may_keep = kept < wanted && tried < TRIED_BLOCKS;
            if may_keep && device.inner().hold_room(at..at + blocks).is_ok() {
                kept += blocks;
            } else if !space.make_hole(Run::new(at, blocks as u32)) {
                return;
            }
            (tried, at) = (tried + blocks, at + blocks);
        }
    }
    assert!(kept <= space.allocator().free_blocks(), "blocks that are kept are free");
}

/// `parts` without `holes`; both are in ascending order.
fn without(parts: &[Range<u64>], holes: &[Run]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for part in parts {
        let mut at = part.start;
        let first = holes.partition_point(|hole| hole.end() <= part.start);
        for hole in holes.iter().skip(first).take_while(|hole| hole.block < part.end) {
            left.push(at..hole.block.max(at));
            at = hole.end();
        }
        left.push(at..part.end.max(at));
    }
    left.retain(|part| part.start < part.end);
    left
}

/// The superblocks, the part of the log that may be written, and the used parts of the space image.
pub fn fixed_parts(superblock: &Superblock) -> [Range<u64>; 4] {
    let layout = &superblock.layout;
    let [first, second] = layout.used_areas(superblock.device_blocks);
    let log = layout.log_first();
    [0..AREAS_FIRST, log..log + u64::from(superblock.log_prepared), first, second]
}

/// The blocks of data, without the areas and the log among them.
pub fn data_of(superblock: &Superblock) -> Vec<Range<u64>> {
    let layout = &superblock.layout;
    let mut areas: Vec<Run> = layout.areas_in_data().collect();
    areas.sort_unstable_by_key(|area| area.block);
    let (mut at, mut parts) = (layout.data_first(), Vec::new());
    for area in areas {
        parts.push(at..area.block.max(at));
        at = at.max(area.end());
    }
    parts.push(at..superblock.device_blocks.max(at));
    assert!(
        parts.is_sorted_by(|one, next| one.start <= one.end && one.end <= next.start),
        "parts overlap: {parts:?}"
    );
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_without_holes_is_every_other_block() {
        let holes = [Run::new(5, 10), Run::new(20, 5), Run::new(40, 20)];
        assert_eq!(without(&[10..30, 30..50, 50..55, 60..70], &holes), [15..20, 25..30, 30..40, 60..70]);
        assert_eq!(without(&[0..70, 80..90], &[]), [0..70, 80..90]);
    }
}
