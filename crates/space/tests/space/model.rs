//! [`Space`] against a map with one flag per block: every result, the policy, and every refusal.

use proptest::prelude::*;
use shoal_base::Run;
use shoal_space::{HISTOGRAM_BINS, Space, SpaceError};

/// A model of the space, block by block.
struct Model {
    is_free: Vec<bool>,
    group_blocks: u64,
}

impl Model {
    fn new(blocks: u64, group_blocks: u32) -> Self {
        Self { is_free: vec![false; blocks as usize], group_blocks: u64::from(group_blocks) }
    }

    fn flags(&self, run: Run) -> Option<&[bool]> {
        self.is_free.get(run.block as usize..run.end() as usize).filter(|flags| !flags.is_empty())
    }

    fn set(&mut self, run: Run, is_free: bool) {
        self.is_free[run.block as usize..run.end() as usize].fill(is_free);
    }

    /// The first stretch within `run` of blocks that are free, or not; pieces end at the borders of groups.
    fn first(&self, run: Run, is_free: bool) -> Option<Run> {
        self.stretches(is_free, true).into_iter().find_map(|stretch| {
            let (block, end) = (stretch.block.max(run.block), stretch.end().min(run.end()));
            (block < end).then(|| Run::new(block, (end - block) as u32))
        })
    }

    fn stretches(&self, is_free: bool, are_cut: bool) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for block in (0..self.is_free.len() as u64).filter(|&block| self.is_free[block as usize] == is_free) {
            match runs.last_mut() {
                Some(run) if run.end() == block && !(are_cut && block % self.group_blocks == 0) => {
                    run.blocks += 1
                }
                _ => runs.push(Run::new(block, 1)),
            }
        }
        runs
    }

    /// Free runs within groups.
    fn runs_within(&self) -> Vec<Run> {
        self.stretches(true, true)
    }

    /// Free runs, merged.
    fn runs(&self) -> Vec<Run> {
        self.stretches(true, false)
    }

    /// The run that exact best fit takes `blocks` from: the shortest run of a group that fits, else the
    /// shortest run across groups; the lowest of its length.
    fn best_fit(&self, blocks: u32) -> Option<Run> {
        let shortest = |runs: Vec<Run>| {
            runs.into_iter().filter(|run| run.blocks >= blocks).min_by_key(|run| (run.blocks, run.block))
        };
        shortest(self.runs_within()).or_else(|| shortest(self.runs())).map(|run| Run::new(run.block, blocks))
    }

    fn largest(&self) -> u32 {
        self.runs().iter().map(|run| run.blocks).max().unwrap_or(0)
    }

    /// Returns true if `blocks` blocks are available in `runs_max` runs.
    fn can_split(&self, blocks: u32, runs_max: usize) -> bool {
        let mut lengths: Vec<u64> = self.runs().iter().map(|run| u64::from(run.blocks)).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.iter().take(runs_max).sum::<u64>() >= u64::from(blocks)
    }
}

/// A step; numbers are reduced to a sensible range by modulo.
#[derive(Clone, Debug)]
enum Step {
    Free(u64, u32),
    FreeBatch(Vec<(u64, u32)>),
    FreeUsed(u64),
    Take(u64, u32),
    TakeFreePart(u64, u32),
    Allocate(u32),
    AllocateBatch(Vec<u32>),
    AllocateRuns(u32, usize),
    AllocateAtMost(u32),
}

fn steps(blocks: u64, count: usize) -> impl Strategy<Value = Vec<Step>> {
    // Mostly short runs, some across several groups, some past the end.
    let length = || prop_oneof![4 => 1_u32..12, 3 => 1_u32..60, 1 => 1_u32..400];
    let block = move || 0..blocks + 2;
    let step = prop_oneof![
        2 => (block(), length()).prop_map(|(block, blocks)| Step::Free(block, blocks)),
        4 => block().prop_map(Step::FreeUsed),
        1 => prop::collection::vec((block(), 1_u32..30), 0..6).prop_map(Step::FreeBatch),
        1 => (block(), length()).prop_map(|(block, blocks)| Step::Take(block, blocks)),
        1 => (block(), length()).prop_map(|(block, blocks)| Step::TakeFreePart(block, blocks)),
        6 => length().prop_map(Step::Allocate),
        1 => prop::collection::vec(length(), 0..12).prop_map(Step::AllocateBatch),
        1 => (length(), 0_usize..6).prop_map(|(blocks, runs)| Step::AllocateRuns(blocks, runs)),
        1 => length().prop_map(Step::AllocateAtMost),
    ];
    prop::collection::vec(step, 1..count)
}

fn apply(space: &Space, model: &mut Model, step: &Step) {
    match *step {
        Step::Free(block, blocks) => free(space, model, Run::new(block, blocks)),
        Step::FreeBatch(ref runs) => free_batch(space, model, runs),
        Step::FreeUsed(block) => {
            // Frees a stretch that is in use, so that space is freed at the rate at which it is used.
            let used = model.stretches(false, false);
            if let Some(run) = used.iter().find(|run| run.end() > block) {
                let start = run.block.max(block);
                let blocks = (run.end() - start).min(1 + block % 23) as u32;
                free(space, model, Run::new(start, blocks));
            }
        }
        Step::Take(block, blocks) => take(space, model, Run::new(block, blocks)),
        Step::TakeFreePart(block, blocks) => take_free_part(space, model, Run::new(block, blocks)),
        Step::Allocate(blocks) => {
            let found = space.allocate(blocks);
            allocated(model, blocks, found);
        }
        Step::AllocateBatch(ref sizes) => {
            let mut found = vec![None];
            space.allocate_batch(sizes, &mut found);
            assert_eq!(found.len(), sizes.len() + 1, "appended");
            sizes.iter().zip(&found[1..]).for_each(|(&blocks, &found)| allocated(model, blocks, found));
        }
        Step::AllocateRuns(blocks, runs_max) => allocate_runs(space, model, blocks, runs_max),
        Step::AllocateAtMost(blocks) => {
            let expected = model.best_fit(blocks).map_or(model.largest(), |run| run.blocks);
            let run = space.allocate_at_most(blocks);
            assert_eq!(run.map_or(0, |run| run.blocks), expected);
            run.into_iter().for_each(|run| take_known(model, run));
        }
    }
}

fn allocated(model: &mut Model, blocks: u32, found: Option<Run>) {
    let expected = model.best_fit(blocks);
    assert_eq!(found, expected);
    found.into_iter().for_each(|run| take_known(model, run));
}

fn take_known(model: &mut Model, run: Run) {
    assert!(model.flags(run).expect("inside").iter().all(|&is_free| is_free), "{run} was handed out twice");
    model.set(run, false);
}

fn free(space: &Space, model: &mut Model, run: Run) {
    let result = space.free(run);
    match model.flags(run) {
        None => assert!(matches!(result, Err(SpaceError::Outside { .. }))),
        Some(_) => match model.first(run, true) {
            Some(overlap) => assert_eq!(result, Err(SpaceError::AlreadyFree { run, overlap })),
            None => {
                assert_eq!(result, Ok(()));
                model.set(run, true);
            }
        },
    }
}

fn free_batch(space: &Space, model: &mut Model, runs: &[(u64, u32)]) {
    let runs: Vec<Run> = runs.iter().map(|&(block, blocks)| Run::new(block, blocks)).collect();
    let is_right = |run: &Run| model.flags(*run).is_some_and(|flags| flags.iter().all(|&is_free| !is_free));
    let overlaps = |i: usize, j: usize| i != j && runs[i].overlaps(runs[j]);
    let is_disjoint = (0..runs.len()).all(|i| (0..runs.len()).all(|j| !overlaps(i, j)));
    let result = space.free_batch(&runs);
    assert_eq!(result.is_ok(), is_disjoint && runs.iter().all(is_right), "{runs:?}: {result:?}");
    if result.is_ok() {
        runs.iter().for_each(|&run| model.set(run, true));
    }
}

fn take(space: &Space, model: &mut Model, run: Run) {
    let result = space.take(run);
    match model.flags(run) {
        None => assert!(matches!(result, Err(SpaceError::Outside { .. }))),
        Some(_) => match model.first(run, false) {
            Some(overlap) => assert_eq!(result, Err(SpaceError::NotFree { run, overlap })),
            None => {
                assert_eq!(result, Ok(()));
                model.set(run, false);
            }
        },
    }
}

fn take_free_part(space: &Space, model: &mut Model, run: Run) {
    let result = space.take_free_part(run);
    match model.flags(run) {
        None => assert!(matches!(result, Err(SpaceError::Outside { .. }))),
        Some(flags) => {
            assert_eq!(result, Ok(flags.iter().filter(|&&is_free| is_free).count() as u64));
            model.set(run, false);
        }
    }
}

fn allocate_runs(space: &Space, model: &mut Model, blocks: u32, runs_max: usize) {
    let single = model.best_fit(blocks).filter(|_| runs_max > 0);
    let can_split = model.can_split(blocks, runs_max);
    let Some(runs) = space.allocate_runs(blocks, runs_max) else {
        assert!(!can_split, "{blocks} blocks fit in {runs_max} runs");
        return;
    };
    assert!(can_split && runs.len() <= runs_max);
    assert_eq!(runs.iter().map(|run| run.blocks).sum::<u32>(), blocks);
    if let Some(single) = single {
        assert_eq!(runs.as_slice(), [single]);
    }
    for (index, &run) in runs.iter().enumerate() {
        if index + 1 < runs.len() {
            assert_eq!(run.blocks, model.largest(), "the longest first");
        } else {
            assert_eq!(Some(run), model.best_fit(run.blocks), "the last by best fit");
        }
        take_known(model, run);
    }
}

fn compare(space: &Space, model: &Model) {
    space.audit();
    let mut runs = Vec::new();
    space.for_each_run(&mut |run| runs.push(run));
    assert_eq!(runs, model.runs());
    assert_eq!(space.free_blocks(), model.is_free.iter().filter(|&&is_free| is_free).count() as u64);
    assert_eq!(space.largest_run(), model.largest());
    let mut histogram = [0; HISTOGRAM_BINS];
    model.runs_within().iter().for_each(|run| histogram[run.blocks.ilog2() as usize] += 1);
    assert_eq!(space.histogram(), histogram);
    for block in (0..model.is_free.len() as u64).step_by(37) {
        for blocks in [1, 5, 40] {
            let run = Run::new(block, blocks);
            let expected = model.flags(run).is_some_and(|flags| flags.iter().all(|&is_free| is_free));
            assert_eq!(space.is_free(run), expected, "{run}");
        }
    }
}

fn check(blocks: u64, group_blocks: u32, is_free: bool, steps: &[Step]) {
    let space = &Space::new(blocks, group_blocks);
    let mut model = Model::new(blocks, group_blocks);
    if is_free {
        free(space, &mut model, Run::new(0, blocks as u32));
    }
    for (index, step) in steps.iter().enumerate() {
        apply(space, &mut model, step);
        if index % 16 == 0 {
            compare(space, &model);
        }
    }
    compare(space, &model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn behaves_as_the_map_in_tiny_groups(is_free: bool, steps in steps(500, 200)) {
        check(500, 16, is_free, &steps);
    }

    #[test]
    fn behaves_as_the_map_in_small_groups(is_free: bool, steps in steps(1000, 150)) {
        check(1000, 64, is_free, &steps);
    }

    #[test]
    fn behaves_as_the_map_in_groups_that_become_bitmaps(is_free: bool, steps in steps(600, 200)) {
        // 13 runs fit into a group itself, up to 16 into an array of 512 blocks: churn of single blocks exceeds that.
        let mut shredding: Vec<Step> = vec![Step::Free(0, 600)];
        shredding.extend((0..250).map(|i| Step::Take(i * 2, 1)));
        shredding.extend(steps);
        check(600, 512, is_free, &shredding);
    }

    #[test]
    fn behaves_as_the_map_in_one_group(is_free: bool, steps in steps(700, 150)) {
        check(700, 1024, is_free, &steps);
    }
}

/// Runs above 1,024 blocks have a separate index: the same policy, against the same model.
#[test]
fn long_runs_are_best_fit_too() {
    const BLOCKS: u64 = 40_000;
    let (space, mut model) = (Space::new(BLOCKS, 8192), Model::new(BLOCKS, 8192));
    free(&space, &mut model, Run::new(0, BLOCKS as u32));
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut live: Vec<Run> = Vec::new();
    let mut long = 0;
    for step in 0..1500 {
        if random(5) < 3 {
            let longest = [200, 1500, 3000, 10_000][random(4) as usize];
            let blocks = 1 + random(longest) as u32;
            let expected = model.best_fit(blocks);
            assert_eq!(space.allocate(blocks), expected, "step {step}: {blocks} blocks");
            long += u32::from(expected.is_some() && blocks > 1024);
            expected.into_iter().for_each(|run| model.set(run, false));
            live.extend(expected);
        } else if !live.is_empty() {
            let run = live.swap_remove(random(live.len() as u64) as usize);
            free(&space, &mut model, run);
        }
        if step % 50 == 0 {
            compare(&space, &model);
        }
    }
    compare(&space, &model);
    assert!(long > 100, "only {long} long runs were handed out");
}

/// The largest device: every group is indexed, memory stays far below 64 MiB, and the first and last blocks
/// can be handed out.
#[test]
fn device_of_16_tib_can_be_allocated_completely() {
    const BLOCKS: u64 = 1 << 32;
    let space = Space::new(BLOCKS, shoal_space::group_blocks_for(BLOCKS));
    space.free(Run::new(0, u32::MAX)).unwrap();
    space.free(Run::new(BLOCKS - 1, 1)).unwrap();
    assert_eq!((space.free_blocks(), space.largest_run()), (BLOCKS, u32::MAX));
    assert!(space.memory_bytes() < 16 << 20, "{} bytes", space.memory_bytes());
    assert_eq!(space.allocate(u32::MAX), Some(Run::new(0, u32::MAX)));
    assert_eq!(space.allocate(1), Some(Run::new(BLOCKS - 1, 1)));
    assert_eq!((space.allocate(1), space.free_blocks(), space.largest_run()), (None, 0, 0));
    space.free(Run::new(65_000, 1_000_000)).unwrap();
    assert_eq!(space.allocate(900_000), Some(Run::new(65_000, 900_000)), "longer than a group");
    space.audit();
}
