//! The free space computed from the used blocks: for a store that lost its image of it, and for one that
//! writes none.
//!
//! A counting sort by group, then each group alone: linear except for the sort within a group. Overlapping runs are found on
//! the way, so this checks the owners, too.

use shoal_base::Run;

use super::FreeImage;
use crate::SpaceError;
use crate::group::GroupRuns;
use crate::span::Span;

impl FreeImage {
    /// The image in which every block outside of `used` is free. The runs may come in any order, touch, and cross
    /// groups. Besides the image it needs 4 bytes for each run and 4 for each border that a run crosses.
    ///
    /// # Errors
    /// [`SpaceError::NotFree`] if two runs overlap, [`SpaceError::Outside`].
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn from_used(blocks_max: u64, group_blocks: u32, used: &[Run]) -> Result<Self, SpaceError> {
        let mut image = Self::new(blocks_max, group_blocks);
        let geometry = image.geometry();
        // The start of each group's spans; while they are distributed, the place of its next one.
        let mut ends = vec![0_usize; geometry.groups() + 1];
        for &run in used {
            geometry.check(run)?;
            geometry.pieces(run).for_each(|(group, _)| ends[group + 1] += 1);
        }
        for group in 1..ends.len() {
            ends[group] += ends[group - 1];
        }
        let mut spans = vec![0_u32; ends[geometry.groups()]];
        for (group, span) in used.iter().flat_map(|&run| geometry.pieces(run)) {
            spans[ends[group]] = span.pack();
            ends[group] += 1;
        }
        let mut free = Vec::new();
        let mut begin = 0;
        for (group, &end) in ends[..geometry.groups()].iter().enumerate() {
            let of_group = &mut spans[begin..end];
            begin = end;
            of_group.sort_unstable();
            free.clear();
            let mut at = 0;
            for span in of_group.iter().map(|&packed| Span::unpack(packed)) {
                if span.start < at {
                    let twice = Span { start: span.start, blocks: (at - span.start).min(span.blocks) };
                    let (run, overlap) = (geometry.run(group, span), geometry.run(group, twice));
                    return Err(SpaceError::NotFree { run, overlap });
                }
                free.extend(gap(at, span.start));
                at = span.end();
            }
            free.extend(gap(at, geometry.blocks_of(group)));
            image.set_group(group, GroupRuns::from_sorted(&free, group_blocks));
        }
        Ok(image)
    }
}

/// The free run from `start` up to `end`, packed.
fn gap(start: u32, end: u32) -> Option<u32> {
    (start < end).then(|| Span { start, blocks: end - start }.pack())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Space;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The same as taking every run out of a wholly free space, in any order; the resulting space passes its audit.
        #[test]
        fn rebuilding_is_taking_everything_that_is_in_use(
            (blocks_max, group_blocks) in prop_oneof![Just((1000_u64, 16_u32)), Just((1 << 17, 1 << 16)), Just((70_000, 4096))],
            wanted in prop::collection::vec((any::<u64>(), 1_u32..3000, any::<bool>()), 0..400),
        ) {
            let mut expected = FreeImage::new(blocks_max, group_blocks);
            expected.free(Run::new(0, blocks_max as u32)).unwrap();
            let mut used = Vec::new();
            for (place, blocks, is_short) in wanted {
                let blocks = if is_short { 1 + blocks % 3 } else { blocks };
                let run = Run::new(place % blocks_max, blocks);
                if expected.take(run).is_ok() {
                    used.push(run);
                }
            }
            let image = FreeImage::from_used(blocks_max, group_blocks, &used).unwrap();
            prop_assert_eq!(&image, &expected);
            prop_assert_eq!(image.free_blocks(), expected.free_blocks());
            let space = Space::from_image(&image);
            space.audit();
            prop_assert_eq!(space.free_blocks(), image.free_blocks());
            let mut runs = Vec::new();
            space.for_each_run(&mut |run| runs.push(run));
            prop_assert!(runs.into_iter().eq(image.runs()));
        }
    }

    #[test]
    fn a_group_of_splinters_becomes_a_bitmap() {
        let used: Vec<Run> = (0..1 << 15).map(|pair| Run::new(2 * pair, 1)).collect();
        let image = FreeImage::from_used(1 << 17, 1 << 16, &used).unwrap();
        assert_eq!(image.free_blocks(), (1 << 17) - (1 << 15));
        let space = Space::from_image(&image);
        space.audit();
        let across = (1 << 16) + 1;
        assert_eq!(space.allocate(across), Some(Run::new((1 << 16) - 1, across)), "across the border");
    }

    #[test]
    fn two_owners_and_runs_outside_are_refused() {
        let rebuild = |used: &[Run]| FreeImage::from_used(100, 16, used).map(|image| image.free_blocks());
        let (run, overlap) = (Run::new(24, 4), Run::new(24, 1));
        assert_eq!(rebuild(&[run, Run::new(10, 15)]), Err(SpaceError::NotFree { run, overlap }));
        let outside = Run::new(99, 2);
        assert_eq!(rebuild(&[outside]), Err(SpaceError::Outside { run: outside, blocks_max: 100 }));
        assert_eq!(rebuild(&[Run::new(0, 100)]), Ok(0));
        assert_eq!(rebuild(&[]), Ok(100));
    }
}
