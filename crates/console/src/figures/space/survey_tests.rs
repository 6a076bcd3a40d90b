//! Surveys of a store against its free runs: whole ones, and those with a small budget.

use super::*;
use crate::figures::space::testing::fragmented;

fn surveyed(store: &Store, runs_max: usize) -> Survey {
    let mut survey = Survey::new(store.space_plan(), PARTS_MAX);
    survey.look(store, runs_max);
    survey
}

#[test]
fn parts_and_sizes_add_up_to_the_free_blocks() {
    let store = fragmented(900, 40_000);
    let survey = surveyed(&store, RUNS_AT_A_LOOK);
    assert!(survey.is_complete);
    let free: u64 = survey.free.iter().sum();
    assert_eq!(free, store.free_space().map(|run| u64::from(run.blocks)).sum::<u64>());
    assert_eq!(survey.bins().iter().map(|bin| bin.blocks).sum::<u64>(), free);
    let blocks: u64 = (0..survey.free.len()).map(|part| survey.blocks_of_part(part)).sum();
    assert_eq!(blocks, store.stat().device_blocks);
    assert_eq!(survey.part_blocks, 2);
    // Each part has the blocks of the runs in it.
    let mut expected = vec![0; survey.free.len()];
    for run in store.free_space() {
        (run.block..run.end()).for_each(|block| expected[(block / 2) as usize] += 1);
    }
    assert_eq!(survey.free, expected);
}

#[test]
fn a_look_with_a_small_budget_is_continued() {
    let store = fragmented(900, 40_000);
    let whole = surveyed(&store, RUNS_AT_A_LOOK);
    let mut survey = surveyed(&store, 1);
    assert!(!survey.is_complete);
    // Groups that were not walked over have their free blocks nevertheless.
    assert_eq!(survey.free.iter().sum::<u64>(), whole.free.iter().sum::<u64>());
    assert!(
        survey.bins().iter().map(|bin| bin.runs).sum::<u64>() < whole.bins().iter().map(|bin| bin.runs).sum()
    );
    let looks = (0..10_000).take_while(|_| {
        survey.look(&store, 1);
        !survey.is_complete
    });
    assert!(looks.count() > 2, "the budget bounds a look");
    assert_eq!((&survey.free, survey.bins()), (&whole.free, whole.bins()));
    // Another round finds the same.
    survey.look(&store, RUNS_AT_A_LOOK);
    assert_eq!((&survey.free, survey.bins()), (&whole.free, whole.bins()));
}

#[test]
fn parts_of_several_groups_add_up() {
    let store = fragmented(900, 40_000);
    let whole = surveyed(&store, RUNS_AT_A_LOOK);
    let mut coarse = Survey::new(store.space_plan(), PARTS_MAX);
    // As on a large device.
    coarse.part_blocks = 4 * u64::from(coarse.plan.group_blocks);
    let parts = coarse.plan.device_blocks.div_ceil(coarse.part_blocks) as usize;
    (coarse.free, coarse.walked, coarse.sizes) = (vec![0; parts], Vec::new(), vec![[(0, 0); BINS]; parts]);
    for _ in 0..2 {
        coarse.look(&store, RUNS_AT_A_LOOK);
        assert_eq!(coarse.bins(), whole.bins());
        let fine_parts = (coarse.part_blocks / whole.part_blocks) as usize;
        let sums: Vec<u64> = whole.free.chunks(fine_parts).map(|parts| parts.iter().sum()).collect();
        assert_eq!(coarse.free, sums);
    }
}

#[test]
fn large_devices_have_bounded_parts() {
    for blocks in [1, 100, 16_384, 16_385, 1 << 20, (1 << 32) - 5, 1 << 34] {
        let group_blocks = if blocks >= 1 << 32 { 65_536 } else { 128 };
        let plan = SpacePlan {
            device_blocks: blocks,
            group_blocks,
            log: 0..0,
            areas: [0..0, 0..0, 0..0],
            own_buckets: Vec::new(),
        };
        let survey = Survey::new(plan, PARTS_MAX);
        assert!(survey.free.len() as u64 <= PARTS_MAX && survey.sizes.len() as u64 <= PARTS_MAX, "{blocks}");
        let sum: u64 = (0..survey.free.len()).map(|part| survey.blocks_of_part(part)).sum();
        assert_eq!(sum, blocks);
    }
}

#[test]
fn survey_follows_a_device_that_grew() {
    let store = fragmented(900, 40_000);
    let whole = surveyed(&store, RUNS_AT_A_LOOK);
    let plan = store.space_plan();
    // A device that was shorter by half a group, and one with other parts.
    for blocks in [plan.device_blocks - 64, 10_000] {
        let mut survey = Survey::new(SpacePlan { device_blocks: blocks, ..plan.clone() }, PARTS_MAX);
        survey.look(&store, RUNS_AT_A_LOOK);
        survey.follow(plan.clone());
        survey.look(&store, RUNS_AT_A_LOOK);
        assert_eq!((&survey.free, survey.bins()), (&whole.free, whole.bins()), "{blocks}");
    }
    let mut survey = surveyed(&store, RUNS_AT_A_LOOK);
    survey.follow(plan);
    assert!(survey.is_complete, "the same plan");
}
