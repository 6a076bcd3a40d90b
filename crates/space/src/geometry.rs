//! How an address space is cut into groups. A free run never crosses the border of a group; a [`Run`] of the
//! caller may, and is cut into its pieces here.

use shoal_base::Run;

use crate::SpaceError;
use crate::span::Span;

/// Most blocks of a group: a position and a length in a group then fit in one `u32` together.
pub const GROUP_BLOCKS_MAX: u32 = 1 << 16;

/// Fewest blocks of a group; tests use such groups to cross borders often.
pub const GROUP_BLOCKS_MIN: u32 = 16;

/// Most blocks of a space (64 TiB): the sets of groups have three levels of 64.
pub const SPACE_BLOCKS_MAX: u64 = 1 << 34;

/// How many groups even a small device should have.
const GROUPS_WANTED: u64 = 64;

/// The size of groups for a device of `blocks_max` blocks: a power of two, at most [`GROUP_BLOCKS_MAX`], smaller
/// on small devices so that there are at least 64 groups, but never below [`GROUP_BLOCKS_MIN`].
#[must_use]
pub const fn group_blocks_for(blocks_max: u64) -> u32 {
    let wanted = blocks_max / GROUPS_WANTED;
    if wanted >= GROUP_BLOCKS_MAX as u64 {
        GROUP_BLOCKS_MAX
    } else if wanted <= GROUP_BLOCKS_MIN as u64 {
        GROUP_BLOCKS_MIN
    } else {
        1 << wanted.ilog2()
    }
}

/// An address space and its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    blocks_max: u64,
    group_shift: u32,
}

impl Geometry {
    pub(crate) fn new(blocks_max: u64, group_blocks: u32) -> Self {
        assert!(group_blocks.is_power_of_two(), "a group of {group_blocks} blocks is not a power of two");
        assert!(
            (GROUP_BLOCKS_MIN..=GROUP_BLOCKS_MAX).contains(&group_blocks),
            "group of {group_blocks} blocks"
        );
        assert!(blocks_max > 0 && blocks_max <= SPACE_BLOCKS_MAX, "space of {blocks_max} blocks");
        let geometry = Self { blocks_max, group_shift: group_blocks.ilog2() };
        assert!(geometry.groups() <= crate::bits::GROUPS_MAX, "{} groups are too many", geometry.groups());
        geometry
    }

    /// The first block after it.
    pub(crate) const fn blocks_max(self) -> u64 {
        self.blocks_max
    }

    pub(crate) const fn group_shift(self) -> u32 {
        self.group_shift
    }

    pub(crate) const fn group_blocks(self) -> u32 {
        1 << self.group_shift
    }

    pub(crate) const fn groups(self) -> usize {
        self.blocks_max.div_ceil(1 << self.group_shift) as usize
    }

    pub(crate) const fn group_of(self, block: u64) -> usize {
        (block >> self.group_shift) as usize
    }

    /// Blocks of a group: fewer if the space ends in it.
    pub(crate) fn blocks_of(self, group: usize) -> u32 {
        let before = (group as u64) << self.group_shift;
        (self.blocks_max - before).min(u64::from(self.group_blocks())) as u32
    }

    /// The run of `span` of `group`, with the device's block numbers.
    pub(crate) const fn run(self, group: usize, span: Span) -> Run {
        Run::new(((group as u64) << self.group_shift) + span.start as u64, span.blocks)
    }

    /// The place of `block` within its group.
    pub(crate) const fn start_of(self, block: u64) -> u32 {
        (block & ((1 << self.group_shift) - 1)) as u32
    }

    /// Refuses a run that is empty or reaches past the end.
    pub(crate) fn check(self, run: Run) -> Result<(), SpaceError> {
        let end = run.block.checked_add(u64::from(run.blocks));
        if run.blocks > 0 && end.is_some_and(|end| end <= self.blocks_max) {
            return Ok(());
        }
        Err(SpaceError::Outside { run, blocks_max: self.blocks_max })
    }

    /// The pieces of a checked run, group by group.
    pub(crate) const fn pieces(self, run: Run) -> Pieces {
        Pieces { geometry: self, block: run.block, end: run.end() }
    }
}

/// Iterator over the pieces of a run: (group, piece).
pub(crate) struct Pieces {
    geometry: Geometry,
    block: u64,
    end: u64,
}

impl Iterator for Pieces {
    type Item = (usize, Span);

    fn next(&mut self) -> Option<Self::Item> {
        if self.block == self.end {
            return None;
        }
        let group = self.geometry.group_of(self.block);
        let start = self.geometry.start_of(self.block);
        let left = u64::from(self.geometry.group_blocks() - start);
        let blocks = left.min(self.end - self.block) as u32;
        self.block += u64::from(blocks);
        Some((group, Span { start, blocks }))
    }
}

/// Joins runs that touch, over an iterator of ascending runs; a result never has more than `u32::MAX` blocks.
pub(crate) struct Merged<I: Iterator<Item = Run>> {
    runs: I,
    held: Option<Run>,
}

impl<I: Iterator<Item = Run>> Merged<I> {
    pub(crate) fn new(mut runs: I) -> Self {
        let held = runs.next();
        Self { runs, held }
    }
}

impl<I: Iterator<Item = Run>> Iterator for Merged<I> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let mut run = self.held.take()?;
        for next in self.runs.by_ref() {
            match run.blocks.checked_add(next.blocks) {
                Some(blocks) if run.end() == next.block => run.blocks = blocks,
                _ => {
                    self.held = Some(next);
                    break;
                }
            }
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_devices_get_small_groups_and_at_least_64_of_them() {
        let mib = |mib: u64| mib * 256;
        assert_eq!(group_blocks_for(1), 16);
        assert_eq!(group_blocks_for(mib(1)), 16, "16 groups: the minimum size wins");
        assert_eq!(group_blocks_for(mib(64)), 256);
        assert_eq!(group_blocks_for(mib(65)), 256);
        assert_eq!(group_blocks_for(mib(1024)), 4096);
        assert_eq!(group_blocks_for(mib(16 << 10)), 65_536);
        assert_eq!(group_blocks_for(mib(16 << 20)), 65_536);
        for blocks in [1024, 1025, 5000, 99_999, 1 << 22, (1 << 22) + 1, 1 << 32] {
            assert!(Geometry::new(blocks, group_blocks_for(blocks)).groups() >= 64, "{blocks} blocks");
        }
    }

    #[test]
    fn a_run_is_cut_at_the_borders_of_groups() {
        let geometry = Geometry::new(100, 16);
        assert_eq!(geometry.groups(), 7);
        let pieces: Vec<_> = geometry.pieces(Run::new(15, 34)).collect();
        let span = |start, blocks| Span { start, blocks };
        assert_eq!(pieces, [(0, span(15, 1)), (1, span(0, 16)), (2, span(0, 16)), (3, span(0, 1))]);
        let runs = pieces.iter().map(|&(group, span)| geometry.run(group, span));
        assert_eq!(Merged::new(runs).collect::<Vec<_>>(), [Run::new(15, 34)]);
        assert_eq!(geometry.pieces(Run::new(32, 16)).collect::<Vec<_>>(), [(2, span(0, 16))]);
    }

    #[test]
    fn empty_and_out_of_range_runs_are_rejected() {
        let geometry = Geometry::new(100, 16);
        assert_eq!(geometry.check(Run::new(99, 1)), Ok(()));
        for run in [Run::new(99, 2), Run::new(100, 1), Run::new(5, 0), Run::new(u64::MAX, 2)] {
            assert_eq!(geometry.check(run), Err(SpaceError::Outside { run, blocks_max: 100 }));
        }
    }

    #[test]
    fn merging_stops_before_a_length_overflows() {
        let runs = [Run::new(0, u32::MAX), Run::new(u64::from(u32::MAX), 1), Run::new(1 << 33, 4)];
        assert_eq!(Merged::new(runs.into_iter()).collect::<Vec<_>>(), runs);
    }
}
