//! The owners of blocks: a walk over the trees collects them, and all other blocks are free (INV-35).

use std::ops::Range;

use shoal_base::Run;
use shoal_common::error::{Error, Result};
use shoal_image::superblock::Superblock;
use shoal_space::FreeImage;

use crate::recovery::report::CheckReport;

/// How complete the trees must be for a rebuild of the free space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completeness {
    /// Opening: every page must be readable.
    MustBeWhole,
    /// A repair: pages that cannot be read are lost.
    AsFarAsTheyGo,
}

/// Blocks of a run of [`area`] at most.
const AREA_BLOCKS: u64 = 1 << 30;

/// The image of a space of `size` (its blocks, and those of a group) in which all blocks of `data` without an owner are
/// free.
pub(crate) fn image_without(
    (blocks_max, group_blocks): (u64, u32),
    data: Range<u64>,
    mut owners: Owners,
    demand: Completeness,
) -> Result<FreeImage> {
    let around: Vec<Run> = area(0, data.start).chain(area(data.end, blocks_max)).collect();
    let build = |owners: &Owners| {
        let used: Vec<Run> = owners.runs.iter().chain(&around).copied().collect();
        FreeImage::from_used(blocks_max, group_blocks, &used)
    };
    match build(&owners) {
        Ok(image) => {
            assert!(image.free_blocks() <= data.end - data.start, "more is free than there is");
            return Ok(image);
        }
        Err(error) if demand == Completeness::MustBeWhole => {
            let what = format!("the space image, and the trees that it could be rebuilt from: {error}");
            return Err(Error::Corrupt { what, block: data.start });
        }
        // The owners overlap, or a run is outside of the device; the check reported that. None of these blocks is
        // free.
        Err(_) => owners.merge(&data),
    }
    build(&owners).map_err(|error| Error::Corrupt { what: error.to_string(), block: data.start })
}

/// The blocks from `first` up to `end`, in runs.
fn area(first: u64, end: u64) -> impl Iterator<Item = Run> {
    let starts = (first..end).step_by(AREA_BLOCKS as usize);
    starts.map(move |block| Run::new(block, (end - block).min(AREA_BLOCKS) as u32))
}

/// Runs that pages and values own. Twelve bytes a run: 12 MB for a million objects, 12 GB for a billion.
#[derive(Default)]
pub(crate) struct Owners {
    runs: Vec<Run>,
}

impl Owners {
    /// The areas of the space image that lie among the data: nothing else may own their blocks, and they are not free.
    pub(crate) fn of_areas(superblock: &Superblock) -> Self {
        Self { runs: superblock.layout.areas_in_data().collect() }
    }

    pub(crate) fn add(&mut self, run: Run) {
        // Pages and values of an apply lie side by side: most join the last run.
        match self.runs.last_mut() {
            Some(last) if last.end() == run.block && last.blocks < 1 << 24 => last.blocks += run.blocks,
            _ => self.runs.push(run),
        }
    }

    /// The number of blocks; a block with two owners counts twice.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.blocks)).sum()
    }

    pub(crate) fn sort(&mut self) {
        self.runs.sort_unstable();
    }

    /// The owned blocks of `data`, each once.
    fn merge(&mut self, data: &Range<u64>) {
        self.sort();
        let mut at = data.start;
        let mut merged = Self::default();
        for run in &self.runs {
            let end = run.end().min(data.end);
            area(run.block.max(at), end).for_each(|run| merged.add(run));
            at = at.max(end);
        }
        assert!(merged.runs.is_sorted_by(|one, next| one.end() <= next.block), "merged owners overlap");
        *self = merged;
    }

    pub(crate) fn report_overlaps(&self, report: &mut CheckReport) {
        assert!(self.runs.is_sorted(), "owners are compared in order");
        let mut end = 0;
        for run in &self.runs {
            if run.block < end {
                report.problem(format!("blocks {run} have two owners"), run.block);
            }
            end = end.max(run.end());
        }
    }

    /// Reports every difference between the free blocks of `image` and the blocks of the device without an owner.
    pub(crate) fn compare(&self, image: &FreeImage, superblock: &Superblock, report: &mut CheckReport) {
        let (first, end) = (superblock.layout.data_first(), superblock.device_blocks);
        let mut events: Vec<Run> = image.runs().collect();
        for run in &events {
            if run.block < first || run.end() > end {
                report.problem(format!("the free run {run} is outside the data"), run.block);
            }
        }
        let mut owned = self.runs.iter().copied().peekable();
        for free in &events {
            while owned.next_if(|run| run.end() <= free.block).is_some() {}
            if let Some(run) = owned.peek().filter(|run| run.overlaps(*free)) {
                report.problem(format!("the free run {free} overlaps {run}, which is in use"), free.block);
            }
        }
        events.extend(&self.runs);
        events.sort_unstable();
        for group in image.incomplete() {
            let what =
                format!("the space image does not have the free blocks of {group}: a piece of it is damaged");
            report.problem(what, group.block);
        }
        let mut at = first;
        for run in events.into_iter().chain(std::iter::once(Run::new(end, 1))) {
            if at < run.block {
                let lost = format!("{} block(s) from {at} on are neither free nor in use", run.block - at);
                if !image.is_incomplete(Run::new(at, 1)) {
                    report.problem(lost, at);
                }
            }
            at = at.max(run.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(owned: &[Run], demand: Completeness) -> Result<FreeImage> {
        let mut owners = Owners::default();
        owned.iter().for_each(|&run| owners.add(run));
        image_without((4096, 64), 100..4000, owners, demand)
    }

    #[test]
    fn unowned_blocks_are_free() {
        let owned = [Run::new(300, 200), Run::new(100, 7), Run::new(3999, 1), Run::new(500, 10)];
        let image = image(&owned, Completeness::MustBeWhole).unwrap();
        let free: Vec<Run> = image.runs().collect();
        assert_eq!(free, [Run::new(107, 193), Run::new(510, 3489)]);
    }

    #[test]
    fn double_ownership_fails_open_and_repair_continues() {
        for owned in [
            [Run::new(300, 200), Run::new(499, 2)],
            [Run::new(300, 200), Run::new(350, 10)],
            [Run::new(300, 200), Run::new(90, 20)],
            [Run::new(300, 200), Run::new(3990, 20)],
        ] {
            assert!(
                matches!(image(&owned, Completeness::MustBeWhole), Err(Error::Corrupt { .. })),
                "{owned:?}"
            );
            let image = image(&owned, Completeness::AsFarAsTheyGo).unwrap();
            let is_free = |block| image.runs().any(|run| run.overlaps(Run::new(block, 1)));
            for block in 0..4096 {
                let is_owned = owned.iter().any(|run| run.overlaps(Run::new(block, 1)));
                let is_data = (100..4000).contains(&block);
                assert_eq!(is_free(block), is_data && !is_owned, "{owned:?}: {block}");
            }
        }
    }
}
