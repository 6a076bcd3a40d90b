//! The layout of the device (`docs/format/superblock.md`). The superblock holds it; the default is
//!
//! ```text
//! 0, 1        first copies of the two superblock slots
//! 2 .. 31     nothing, so that a run of bad sectors cannot take both copies
//! 32, 33      second copies
//! 34 ..       the log's ring
//! then        two areas of the space image, then data
//! ```
//!
//! A store that grew has the areas of its space image among the data ([`Layout::grown`]), and a longer log, too
//! ([`Layout::with_log`]).

use std::ops::Range;

use shoal_base::{BLOCK_BYTES, Run};
use shoal_common::error::{Error, Result};
use shoal_common::options::FormatOptions;
use shoal_log::Ring;
use shoal_space::SPACE_BLOCKS_MAX;
use shoal_space::image::{SNAPSHOT_PIECE_BYTES_MAX, snapshot_pieces_max};

use crate::features::{MOVED_AREAS, MOVED_LOG};

/// Blocks of the four superblock copies: slot 0 and 1, first copy, then slot 0 and 1, second copy.
pub const SUPERBLOCK_COPIES: [[u64; 2]; 2] = [[0, 32], [1, 33]];

/// First block after the superblocks; every area follows them.
pub const AREAS_FIRST: u64 = 34;

/// Blocks from one piece of a snapshot to the next, so that a damaged piece does not hide the places of the others.
pub(crate) const PIECE_BLOCKS: u64 = (SNAPSHOT_PIECE_BYTES_MAX / BLOCK_BYTES) as u64;

/// Fewest blocks of an area that the image uses, 1 MiB: publishes seldom write it anew.
const IMAGE_LEAST: u64 = 256;

/// Fewest blocks that a growth adds, in addition to the areas of the space image.
const GROWN_LEAST: u64 = 64;

/// Fixed places of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Largest number of blocks that the store may have.
    pub blocks_max: u64,
    /// Blocks of a group of the allocator.
    pub group_blocks: u32,
    /// Blocks of the log's ring.
    pub log_blocks: u32,
    /// Blocks of each of the two areas of the space image.
    pub space_area_blocks: u32,
    /// The first blocks of the areas.
    pub places: Places,
}

/// First blocks of the areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The ring of the log.
    pub log: u64,
    /// Both areas of the space image.
    pub space_areas: [u64; 2],
    /// The blocks of objects and pages. In a store that grew, the areas of the space image and the ring may be among them.
    pub data: u64,
}

impl Places {
    /// One area directly after the other, as in every store of version 2.
    pub(crate) fn one_after_the_other(log_blocks: u32, space_area_blocks: u32) -> Self {
        let first = AREAS_FIRST + u64::from(log_blocks);
        let second = first + u64::from(space_area_blocks);
        let data = second + u64::from(space_area_blocks);
        Self { log: AREAS_FIRST, space_areas: [first, second], data }
    }
}

impl Layout {
    /// The layout of a new store.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the areas do not fit, or if the store would be too large.
    pub fn new(options: &FormatOptions) -> Result<Self> {
        let blocks_max = options.blocks_max;
        let space_area_blocks = space_area_blocks_for(blocks_max)?;
        let log_blocks = options.log_blocks();
        let layout = Self {
            blocks_max,
            group_blocks: shoal_space::group_blocks_for(blocks_max),
            log_blocks,
            space_area_blocks,
            places: Places::one_after_the_other(log_blocks, space_area_blocks),
        };
        let least = layout.data_first() + 64;
        if layout.log_blocks < 8 {
            return Err(Error::Invalid("the log needs at least 8 blocks".into()));
        }
        if blocks_max < least {
            return Err(Error::Invalid(format!(
                "a store of {blocks_max} blocks of 4 KiB is too small: this layout needs at least {least}"
            )));
        }
        assert!(layout.is_sensible(blocks_max, 0), "an opening accepts the layout of a new store");
        Ok(layout)
    }

    /// Returns the layout of this store with a cap of `blocks_max` blocks, and the blocks that become free. The new areas of the space
    /// image start at block `end`, the end of the blocks in use; the log keeps its ring. The data then start after the ring: the old areas
    /// become data.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the store cannot have that cap; the message names a possible one.
    pub fn grown(&self, blocks_max: u64, end: u64) -> Result<(Self, Vec<Range<u64>>)> {
        let area_blocks = space_area_blocks_for(blocks_max)?;
        let least = end + 2 * u64::from(area_blocks) + GROWN_LEAST;
        if blocks_max < least {
            return Err(Error::Invalid(format!(
                "a cap of {blocks_max} blocks of 4 KiB is too close to the present cap: growing itself takes room, so it can \
                 grow to {least} blocks and more"
            )));
        }
        let behind_log = self.log_first() + u64::from(self.log_blocks);
        let data = behind_log.min(self.data_first());
        let moved = self.space_areas_in_data().map(|area| area.block..area.end());
        let freed = std::iter::once(data..self.data_first()).chain(moved).collect();
        let grown = Self {
            blocks_max,
            group_blocks: shoal_space::group_blocks_for(blocks_max),
            log_blocks: self.log_blocks,
            space_area_blocks: area_blocks,
            places: Places { log: self.log_first(), space_areas: [end, end + u64::from(area_blocks)], data },
        };
        let data_end = end + 2 * u64::from(area_blocks);
        assert!(
            grown.is_sensible(data_end, MOVED_AREAS | MOVED_LOG),
            "an opening accepts the layout of a growth"
        );
        Ok((grown, freed))
    }

    /// Returns this layout with `ring`, which is among the data, for the log; and the blocks of the old ring if they become free. If the
    /// data start right after the old ring, its blocks become data, too.
    pub fn with_log(&self, ring: Ring) -> (Self, Option<Run>) {
        let old = Run::new(self.log_first(), self.log_blocks);
        let data = if old.end() == self.data_first() { old.block } else { self.data_first() };
        let places = Places { log: ring.first, data, ..self.places };
        (Self { log_blocks: ring.blocks, places, ..*self }, Some(old).filter(|old| old.block >= data))
    }

    /// Returns true if all areas are between the superblocks and the data, and none overlaps another. With the incompatible features of
    /// moved areas and of a moved log they may also be among the data, which end at block `data_end`.
    pub fn is_sensible(&self, data_end: u64, features: u32) -> bool {
        let Places { log, space_areas: [first, second], data } = self.places;
        let (log_blocks, area_blocks) = (u64::from(self.log_blocks), u64::from(self.space_area_blocks));
        let has = |feature: u32| features & feature != 0;
        let mut areas = [
            ((log, log_blocks), has(MOVED_LOG)),
            ((first, area_blocks), has(MOVED_AREAS)),
            ((second, area_blocks), has(MOVED_AREAS)),
        ];
        areas.sort_unstable();
        let lies_between = |(start, blocks): (u64, u64), from: u64, to: u64| {
            start >= from && start.checked_add(blocks).is_some_and(|end| end <= to)
        };
        let has_place = |(area, moves): ((u64, u64), bool)| {
            lies_between(area, AREAS_FIRST, data) || moves && lies_between(area, data, data_end)
        };
        let are_apart = |one: (u64, u64), next: (u64, u64)| one.0.saturating_add(one.1) <= next.0;
        (AREAS_FIRST..=self.blocks_max).contains(&data)
            && areas.iter().all(|&area| has_place(area))
            && areas.windows(2).all(|pair| are_apart(pair[0].0, pair[1].0))
    }

    /// The areas among the data, including the log's ring: none unless the store grew.
    pub fn areas_in_data(&self) -> impl Iterator<Item = Run> + Clone + use<> {
        let log = Run::new(self.log_first(), self.log_blocks);
        let log = Some(log).filter(|log| log.block >= self.data_first());
        self.space_areas_in_data().chain(log)
    }

    /// The areas of the space image that are among the data.
    fn space_areas_in_data(&self) -> impl Iterator<Item = Run> + Clone + use<> {
        let (data, blocks) = (self.data_first(), self.space_area_blocks);
        let areas = self.places.space_areas.into_iter();
        areas.filter(move |&first| first >= data && blocks > 0).map(move |first| Run::new(first, blocks))
    }

    /// The number of blocks before `end` for objects and pages.
    pub fn data_blocks(&self, end: u64) -> u64 {
        let areas: u64 = self.areas_in_data().map(|area| u64::from(area.blocks)).sum();
        end.saturating_sub(self.data_first() + areas)
    }

    /// The log's ring.
    pub const fn ring(&self) -> Ring {
        Ring { first: self.places.log, blocks: self.log_blocks }
    }

    /// First block of the log's ring.
    pub const fn log_first(&self) -> u64 {
        self.places.log
    }

    /// First block of area 0 or 1 of the space image.
    pub const fn space_area(&self, area: u8) -> u64 {
        self.places.space_areas[(area & 1) as usize]
    }

    /// Blocks of each area, from its start on, that the image of a store of `device_blocks` blocks uses: a snapshot in the worst case, and
    /// the same again for deltas. Rounded up to a power of two of `device_blocks`, so that it seldom changes. In a file the rest of an area
    /// is a hole (INV-40).
    pub fn image_blocks(&self, device_blocks: u64) -> u32 {
        let blocks = device_blocks.checked_next_power_of_two().unwrap_or(u64::MAX).min(self.blocks_max);
        let pieces = |blocks_max| snapshot_pieces_max(blocks, blocks_max, self.group_blocks);
        let wanted = (PIECE_BLOCKS * (pieces(self.blocks_max) + pieces(blocks)) + 16).max(IMAGE_LEAST);
        u32::try_from(wanted).map_or(self.space_area_blocks, |wanted| wanted.min(self.space_area_blocks))
    }

    /// The used parts of both areas in a store of `device_blocks` blocks.
    pub fn used_areas(&self, device_blocks: u64) -> [Range<u64>; 2] {
        let used = u64::from(self.image_blocks(device_blocks));
        self.places.space_areas.map(|first| first..first + used)
    }

    /// The parts of both areas that no image of a store of `device_blocks` blocks uses.
    pub fn unused_areas(&self, device_blocks: u64) -> [Range<u64>; 2] {
        let blocks = u64::from(self.space_area_blocks);
        let used = u64::from(self.image_blocks(device_blocks));
        self.places.space_areas.map(|first| first + used..first + blocks)
    }

    /// First block that objects and pages may use.
    pub const fn data_first(&self) -> u64 {
        self.places.data
    }
}

/// Blocks of an area of the space image. A snapshot costs at most a bit per block; deltas get the same again and at least 64 KiB.
fn space_area_blocks_for(blocks_max: u64) -> Result<u32> {
    let too_large = || {
        Error::Invalid(format!(
            "a store of {blocks_max} blocks of 4 KiB is too large: it has at most {SPACE_BLOCKS_MAX} blocks (64 TiB)"
        ))
    };
    if blocks_max > SPACE_BLOCKS_MAX {
        return Err(too_large());
    }
    let snapshot_blocks = blocks_max.div_ceil(8 * 4096) + blocks_max.div_ceil(1 << 20) + 2;
    u32::try_from(2 * snapshot_blocks + 16).map_err(|_| too_large())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap_and_precede_data() {
        let layout = Layout::new(&FormatOptions::for_blocks(4_096)).unwrap();
        assert!(layout.is_sensible(4_096, 0));
        let with = |change: &dyn Fn(&mut Places)| {
            let mut layout = layout;
            change(&mut layout.places);
            layout.is_sensible(4_096, 0)
        };
        assert!(with(&|places| places.space_areas.swap(0, 1)), "in any order");
        assert!(with(&|places| places.data += 5), "with gaps");
        assert!(!with(&|places| places.log -= 1), "over a superblock");
        assert!(!with(&|places| places.log += 1), "over an area");
        assert!(!with(&|places| places.space_areas[1] -= 1));
        assert!(!with(&|places| places.data -= 1));
        assert!(!with(&|places| places.data = 4_097), "behind the end");
        assert!(!with(&|places| places.space_areas[0] = u64::MAX));
        assert!(!with(&|places| places.log = u64::MAX - 3));
    }

    #[test]
    fn areas_of_grown_store_are_among_data() {
        let first = Layout::new(&FormatOptions::for_blocks(4_096)).unwrap();
        let behind_log = first.log_first() + u64::from(first.log_blocks);
        let (layout, freed) = first.grown(100_000, 4_000).unwrap();
        assert_eq!(freed.as_slice(), std::slice::from_ref(&(behind_log..first.data_first())));
        assert_eq!((layout.log_first(), layout.log_blocks), (first.log_first(), first.log_blocks));
        assert_eq!((layout.blocks_max, layout.data_first()), (100_000, behind_log));
        let area = u64::from(layout.space_area_blocks);
        let end = 4_000 + 2 * area;
        assert_eq!(layout.places.space_areas, [4_000, 4_000 + area]);
        assert_eq!(layout.data_blocks(end), 4_000 - behind_log);
        assert_eq!(layout.areas_in_data().map(|run| run.end()).collect::<Vec<_>>(), [4_000 + area, end]);
        assert!(layout.is_sensible(end, MOVED_AREAS));
        assert!(!layout.is_sensible(end, MOVED_LOG), "only with the feature");
        assert!(!layout.is_sensible(end - 1, MOVED_AREAS), "behind the end of the data");
        let with = |change: &dyn Fn(&mut Places)| {
            let mut layout = layout;
            change(&mut layout.places);
            layout.is_sensible(end, MOVED_AREAS)
        };
        assert!(with(&|places| places.space_areas.swap(0, 1)));
        assert!(with(&|places| places.space_areas[0] = behind_log));
        assert!(!with(&|places| places.space_areas[0] = behind_log - 1), "over the log and the data");
        assert!(!with(&|places| places.space_areas[0] += 1), "over each other");
        assert!(!with(&|places| places.data = 4_001), "half of an area among the data");
        assert!(!with(&|places| places.space_areas[1] = u64::MAX - 2));
        assert!(!with(&|places| places.log = behind_log), "the log stays in front");
        // Once more: the areas of the first growth are free.
        let (second, freed) = layout.grown(200_000, 90_000).unwrap();
        assert_eq!(freed, vec![behind_log..behind_log, 4_000..4_000 + area, 4_000 + area..end]);
        assert!(second.is_sensible(90_000 + 2 * u64::from(second.space_area_blocks), MOVED_AREAS));
    }

    #[test]
    fn longer_log_is_among_data() {
        let grown = Layout::new(&FormatOptions::for_blocks(4_096)).unwrap().grown(100_000, 4_000).unwrap().0;
        let end = grown.places.space_areas[1] + u64::from(grown.space_area_blocks);
        let (longer, old) = grown.with_log(Ring { first: end, blocks: 781 });
        assert_eq!(old, Some(Run::new(grown.log_first(), grown.log_blocks)));
        assert_eq!(longer.data_first(), grown.log_first(), "where the old ring was, there are data");
        let areas: Vec<Run> = longer.areas_in_data().collect();
        assert_eq!((areas.len(), areas[2]), (3, Run::new(end, 781)));
        let all = end + 781;
        let blocks = 2 * u64::from(grown.space_area_blocks) + 781;
        assert_eq!(longer.data_blocks(all), all - longer.data_first() - blocks);
        assert!(longer.is_sensible(all, MOVED_AREAS | MOVED_LOG));
        assert!(!longer.is_sensible(all, MOVED_AREAS), "only with the feature");
        assert!(!longer.is_sensible(all - 1, MOVED_AREAS | MOVED_LOG), "behind the end of the data");
        // The second time only the old ring becomes free.
        let (again, old) = longer.with_log(Ring { first: 90_000, blocks: 2_000 });
        assert_eq!((old, again.data_first()), (Some(Run::new(end, 781)), longer.data_first()));
        // A later growth keeps the ring.
        let (more, freed) = longer.grown(200_000, all).unwrap();
        assert_eq!((more.log_first(), more.log_blocks, freed.len()), (end, 781, 3));
        assert!(freed.iter().all(|run| run.end <= end));
        // An area of a new store is between the ring and the data: the ring's blocks stay unused.
        let first = Layout::new(&FormatOptions::for_blocks(4_096)).unwrap();
        let (moved, old) = first.with_log(Ring { first: 3_000, blocks: 64 });
        assert_eq!((old, moved.data_first()), (None, first.data_first()));
        assert!(moved.is_sensible(4_096, MOVED_LOG));
    }

    /// The map grows with the space in use: 40 TiB took 5.2 GiB at once.
    #[test]
    fn the_image_uses_what_the_device_needs() {
        let mib = |blocks_max: u64, device_blocks: u64| {
            let layout = Layout::new(&FormatOptions::for_blocks(blocks_max)).unwrap();
            2 * u64::from(layout.image_blocks(device_blocks)) / 256
        };
        const TIB: u64 = 1 << 28;
        assert_eq!(mib(40 * TIB, 3_000), 3);
        assert_eq!(mib(40 * TIB, 3 * TIB / 2), 295);
        assert_eq!(mib(40 * TIB, 40 * TIB), 5_280);
        assert_eq!(mib(64 * TIB, u64::MAX), 8_448);
        for blocks_max in [320, 4_096, 100_000, 3_000_000, 4_000_000, 5_000_000, TIB / 4, 3 * TIB] {
            let log_blocks = Some(16);
            let options = FormatOptions { log_blocks, ..FormatOptions::for_blocks(blocks_max) };
            let layout = Layout::new(&options).unwrap();
            let all = layout.space_area_blocks;
            assert_eq!(layout.image_blocks(blocks_max), all, "{blocks_max}: a device uses whole areas");
            let steps: Vec<u32> = (0..=64).map(|part| layout.image_blocks(blocks_max / 64 * part)).collect();
            assert!(steps.is_sorted() && steps[0] >= all.min(256), "{steps:?}");
            for (used, unused) in layout.used_areas(300).into_iter().zip(layout.unused_areas(300)) {
                assert_eq!((used.end, used.start + u64::from(all)), (unused.start, unused.end));
            }
        }
    }

    #[test]
    fn a_growth_has_room_for_its_areas_and_the_format_a_limit() {
        let layout = Layout::new(&FormatOptions::for_blocks(4_096)).unwrap();
        let least = (4_096..).find(|&blocks| layout.grown(blocks, 4_096).is_ok()).unwrap();
        let why = layout.grown(least - 1, 4_096).unwrap_err().to_string();
        assert!(why.contains(&format!("grow to {least} blocks")), "{why}");
        for blocks in [SPACE_BLOCKS_MAX + 1, u64::MAX] {
            assert!(layout.grown(blocks, 4_096).unwrap_err().to_string().contains("64 TiB"));
        }
    }
}
