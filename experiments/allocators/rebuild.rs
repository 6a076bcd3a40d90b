//! The time to make the free space again from the runs in use: the work of a store that lost its image of it.

use shoal_space::{FreeImage, Space, group_blocks_for};

use super::allocator::Allocator;
use super::churn::fill;
use super::figures::Figures;
use super::hybrid::Hybrid;
use super::load::{Random, Sizes};
use super::run::{Run, SEED};

/// The fill of the device, and the share that is freed again so that it has holes everywhere.
const FILLED_PERCENT: u64 = 95;
const FREED_PERCENT: usize = 10;

/// Rounds; each makes everything again.
const ROUNDS: usize = 3;

/// From the extents of a device with holes, in random order as a tree's keys have them, to a space that serves requests.
pub(crate) fn rebuild(blocks: u64, run: &mut Run) -> Figures {
    let mut figures = Figures::default();
    let hybrid = Hybrid::new(0, blocks);
    let mut random = Random::new(SEED);
    let reserve = blocks * (100 - FILLED_PERCENT) / 100;
    let Some(mut live) = fill(&hybrid, reserve, Sizes::SEED, &mut random, run) else { return figures };
    random.shuffle(&mut live);
    for run in live.split_off(live.len() * (100 - FREED_PERCENT) / 100) {
        assert!(hybrid.free(run).is_ok(), "{run} is in use");
    }
    for _ in 0..ROUNDS {
        figures.rebuild.batch(live.len(), || {
            let image = FreeImage::from_used(blocks, group_blocks_for(blocks), &live);
            let space = image.map(|image| Space::from_image(&image));
            let free = space.map(|space| space.free_blocks());
            assert_eq!(free, Ok(hybrid.status().free_blocks), "the same is free as before");
        });
    }
    figures.values = live.len() as u64;
    figures.runs = figures.values;
    figures.look(&hybrid);
    figures
}
