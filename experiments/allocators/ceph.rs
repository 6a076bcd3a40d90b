//! The loads of Ceph's own allocator tests, as the allocator study (docs/sources.md) describes them: `Allocator_bench` P_300 and
//! `aging_fragmentation`.

use shoal_base::Run as Blocks;

use super::allocator::{Allocator, Runs};
use super::figures::Figures;
use super::load::{Random, Sizes, blocks_of};
use super::run::{Run, SEED};

/// 4 KiB to 2 MiB by powers of two.
const SIZES: Sizes = Sizes::Powers(0, 9);

/// Times that the device's capacity is written after it was filled.
const CAPACITIES: u64 = 3;

/// Ageing: fill marks, values that leak for each one freed, rounds, and the two sizes (64 KiB and 8 MiB).
const HIGH_PERCENT: u64 = 90;
const LOW_PERCENT: u64 = 70;
const LEAK_ONE_IN: u64 = 10;
const ROUNDS: u64 = 3;
const AGEING: Sizes = Sizes::Either(16, 2048);

/// Operations that are timed together: few, so that the fill stays at its target.
const CHUNK: usize = 64;

/// Fills to `percent`, then frees random pieces and allocates as much again, in as many runs as it takes.
pub(crate) fn p300(allocator: &dyn Allocator, percent: u64, run: &mut Run) -> Figures {
    let mut figures = Figures { contiguous_failures: Some(0), ..Figures::default() };
    let mut random = Random::new(SEED);
    let blocks = allocator.status().blocks;
    let reserve = blocks * (100 - percent) / 100;
    let mut live: Vec<Blocks> = Vec::new();
    while allocator.status().free_blocks > reserve && !run.is_over() {
        place(allocator, SIZES, &mut random, &mut live, &mut Figures::default());
    }
    figures.fill_at_start = Some(allocator.status().utilisation());
    run.begin();
    let mut round = 0;
    while figures.allocated_blocks < CAPACITIES * blocks && !run.is_over() {
        let mut victims: Vec<Blocks> = Vec::new();
        for _ in 0..CHUNK {
            pick(SIZES.draw(&mut random), &mut random, &mut live, &mut victims);
        }
        figures.free.each(&victims, |&run| assert!(allocator.free(run).is_ok(), "{run} is in use"));
        place(allocator, SIZES, &mut random, &mut live, &mut figures);
        round += 1;
        run.show(round, allocator);
    }
    figures.turnovers = Some(figures.allocated_blocks as f64 / blocks as f64);
    figures.look(allocator);
    figures
}

/// Random runs of `blocks` blocks together; the last one may be a part of one.
fn pick(blocks: u32, random: &mut Random, live: &mut Vec<Blocks>, victims: &mut Vec<Blocks>) {
    let mut left = blocks;
    while left > 0 {
        let Some(victim) = random.take(live) else { return };
        let freed = Blocks::new(victim.block, victim.blocks.min(left));
        if freed.blocks < victim.blocks {
            live.push(Blocks::new(freed.end(), victim.blocks - freed.blocks));
        }
        left -= freed.blocks;
        victims.push(freed);
    }
}

/// Fills to the high mark, frees random values to the low one, three times; now and then another value is freed at once.
pub(crate) fn ageing(allocator: &dyn Allocator, run: &mut Run) -> Figures {
    let mut figures = Figures { contiguous_failures: Some(0), ..Figures::default() };
    let mut random = Random::new(SEED);
    let blocks = allocator.status().blocks;
    let mut live: Vec<Blocks> = Vec::new();
    for round in 1..=ROUNDS {
        while allocator.status().free_blocks > blocks * (100 - HIGH_PERCENT) / 100 && !run.is_over() {
            if !place(allocator, AGEING, &mut random, &mut live, &mut figures) {
                break;
            }
            let leaking = (0..CHUNK).filter(|_| random.below(LEAK_ONE_IN) == 0).count();
            free_random(allocator, leaking, &mut random, &mut live, &mut figures);
            run.show(round, allocator);
        }
        while round < ROUNDS && allocator.status().free_blocks < blocks * (100 - LOW_PERCENT) / 100 {
            free_random(allocator, CHUNK, &mut random, &mut live, &mut figures);
        }
    }
    figures.look(allocator);
    figures
}

fn free_random(
    allocator: &dyn Allocator,
    count: usize,
    random: &mut Random,
    live: &mut Vec<Blocks>,
    figures: &mut Figures,
) {
    let victims: Vec<Blocks> = (0..count).filter_map(|_| random.take(live)).collect();
    figures.free.each(&victims, |&run| assert!(allocator.free(run).is_ok(), "{run} is in use"));
}

/// Places a few values in any number of runs; returns true if all of them were placed.
fn place(
    allocator: &dyn Allocator,
    sizes: Sizes,
    random: &mut Random,
    live: &mut Vec<Blocks>,
    figures: &mut Figures,
) -> bool {
    let wanted: Vec<u32> = (0..CHUNK).map(|_| sizes.draw(random)).collect();
    let mut placed: Vec<Runs> = Vec::with_capacity(CHUNK);
    figures.alloc.each(&wanted, |&blocks| placed.extend(allocator.allocate_runs(blocks, usize::MAX)));
    for runs in &placed {
        figures.placed(blocks_of(runs), runs.len());
        if runs.len() > 1 {
            figures.contiguous_failures = figures.contiguous_failures.map(|failures| failures + 1);
        }
        live.extend(runs);
    }
    placed.len() == wanted.len()
}
