//! Loads that change their sizes: the seed's worst case, large values after small ones, and a slow drift.

use std::time::Instant;

use shoal_base::Run as Blocks;

use super::allocator::{Allocator, Runs};
use super::churn::fill;
use super::figures::Figures;
use super::load::{Random, Sizes};
use super::moving::{Mover, Reserve};
use super::pieces::Pieces;
use super::run::{Run, SEED};
use super::seed::give_back;

/// Up to 1 MiB, and 3 to 4 MiB.
const SMALL: Sizes = Sizes::Uniform(1, 256);
const LARGE: Sizes = Sizes::Uniform(768, 1024);

/// The share of the first phase that is freed.
const FREED_PERCENT: usize = 80;

/// The fill from which on the first phase may end for lack of time.
const FIRST_PHASE_LEAST: f64 = 0.95;

/// Allocations that are timed together.
const CHUNK: usize = 1000;

/// The drift: how often the device is written while the median of the sizes grows from 4 to 64 KiB.
const DRIFT_TURNOVERS: f64 = 5.0;
const DRIFT_BYTES: [f64; 2] = [4096.0, 65_536.0];
/// Most runs of a value that does not fit in one.
const DRIFT_RUNS_MAX: usize = 8;
/// Values that come and go together, and rounds of these between two looks at the reserve: 16,384 values. A mover that waits for
/// longer finds emptier groups, while the reserve lasts: 0.063 blocks were moved for each one allocated with a look every 4,096
/// values, 0.059 with this, and none failed.
const DRIFT_CHUNK: usize = 64;
const KEPT_EVERY: u64 = 256;

/// The treatment of the holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Nothing.
    Stays,
    /// Live values move.
    Moves,
    /// Free neighbours are merged offline.
    Compacts,
}

/// Fills the device with small values, frees most, and puts large ones in until one fits in no `runs_max` runs. If the allocator lets
/// values be moved, `Treatment::Moves` makes room first; `Treatment::Compacts` merges the free runs once, after the frees.
pub(crate) fn shift(allocator: &dyn Allocator, runs_max: usize, way: Treatment, run: &mut Run) -> Figures {
    let mut figures = Figures::default();
    let mut random = Random::new(SEED);
    let Some(live) = first_phase(allocator, &mut random, &mut figures, run) else { return figures };
    run.begin();
    if way == Treatment::Compacts {
        let began = Instant::now();
        allocator.compact();
        figures.compact_ms = Some(began.elapsed().as_secs_f64() * 1000.0);
    }
    let space = allocator.space().filter(|_| way == Treatment::Moves);
    let mut mover = space.map(Mover::new);
    let mut pieces =
        Pieces::new(allocator.status().blocks, space.map_or(1 << 16, shoal_space::Space::group_blocks));
    if mover.is_some() {
        live.iter().for_each(|&run| pieces.add(run));
    }
    drop(live);
    let mut round = 0;
    while figures.utilisation_at_first_failure.is_none() && !run.is_over() {
        round += 1;
        let wanted: Vec<u32> = (0..CHUNK).map(|_| LARGE.draw(&mut random)).collect();
        let mut placed: Vec<Runs> = Vec::with_capacity(CHUNK);
        let mut has_failed = false;
        let place = |&blocks: &u32| {
            let mut found = one_or_several(allocator, blocks, runs_max);
            if found.is_none()
                && let Some(mover) = &mut mover
                && mover.make_room(blocks, &mut pieces)
            {
                found = one_or_several(allocator, blocks, runs_max);
            }
            if mover.is_some() {
                found.iter().flatten().for_each(|&run| pieces.add(run));
            }
            has_failed = found.is_none();
            placed.extend(found);
            !has_failed
        };
        figures.alloc.each_while(&wanted, place);
        for runs in &placed {
            figures.placed(super::load::blocks_of(runs), runs.len());
        }
        if has_failed {
            figures.utilisation_at_first_failure = Some(allocator.status().utilisation());
        }
        run.show(round, allocator);
    }
    figures.moved_blocks = mover.map(|mover| mover.moved_blocks);
    figures.look(allocator);
    figures
}

/// Small values until one fails, of which most are freed; returns the rest. Its allocations are not in the figures. An
/// allocator that takes too long near the end continues with the fill that was reached; one that is not even near it does not
/// take part.
fn first_phase(
    allocator: &dyn Allocator,
    random: &mut Random,
    figures: &mut Figures,
    run: &mut Run,
) -> Option<Vec<Blocks>> {
    let mut live = Vec::new();
    while let Ok(found) = allocator.allocate(SMALL.draw(random)) {
        live.push(found);
        if live.len() % 4096 == 0 {
            run.show(live.len() as u64, allocator);
            if run.is_over() {
                break;
            }
        }
    }
    let fill = allocator.status().utilisation();
    figures.fill_at_start = Some(fill);
    if fill < FIRST_PHASE_LEAST {
        return None;
    }
    random.shuffle(&mut live);
    let kept = live.split_off(live.len() * FREED_PERCENT / 100);
    give_back(allocator, &live, false, figures);
    figures.memory_bytes = allocator.memory_bytes();
    Some(kept)
}

fn one_or_several(allocator: &dyn Allocator, blocks: u32, runs_max: usize) -> Option<Runs> {
    if runs_max == 1 {
        return allocator.allocate(blocks).ok().map(|run| Runs::from_slice(&[run]));
    }
    allocator.allocate_runs(blocks, runs_max).ok()
}

/// A device at `percent` whose values grow: random ones go, larger ones come. Moving keeps a reserve if it can.
pub(crate) fn drift(allocator: &dyn Allocator, percent: u64, run: &mut Run) -> Figures {
    let mut figures = Figures { contiguous_failures: Some(0), ..Figures::default() };
    let mut random = Random::new(SEED);
    let status = allocator.status();
    let reserved = status.blocks * (100 - percent) / 100;
    let Some(live) = fill(allocator, reserved, Sizes::LogNormal(DRIFT_BYTES[0]), &mut random, run) else {
        return figures;
    };
    figures.fill_at_start = Some(allocator.status().utilisation());
    run.begin();
    let space = allocator.space();
    let mut pieces = Pieces::new(status.blocks, space.map_or(1 << 16, shoal_space::Space::group_blocks));
    live.into_iter().for_each(|run| pieces.add(run));
    let mut mover = space.map(Mover::new);
    let reserve = Reserve::default();
    let (mut round, mut written) = (0, 0_u64);
    while (written as f64) < DRIFT_TURNOVERS * status.blocks as f64 && !run.is_over() {
        let turn = written as f64 / status.blocks as f64 / DRIFT_TURNOVERS;
        let median = DRIFT_BYTES[0] * (DRIFT_BYTES[1] / DRIFT_BYTES[0]).powf(turn);
        let wanted: Vec<u32> = (0..DRIFT_CHUNK).map(|_| Sizes::LogNormal(median).draw(&mut random)).collect();
        let coming: u64 = wanted.iter().map(|&blocks| u64::from(blocks)).sum();
        let mut victims = Vec::new();
        let mut free = allocator.status().free_blocks;
        while free < reserved + coming {
            let Some(victim) = pieces.take_random(&mut random) else { break };
            free += u64::from(victim.blocks);
            victims.push(victim);
        }
        give_back(allocator, &victims, false, &mut figures);
        let mut placed: Vec<Option<Runs>> = Vec::with_capacity(wanted.len());
        figures.alloc.each(&wanted, |&blocks| placed.push(one_or_several(allocator, blocks, 1)));
        for (found, &blocks) in placed.into_iter().zip(&wanted) {
            let found = found.or_else(|| {
                figures.contiguous_failures = figures.contiguous_failures.map(|failures| failures + 1);
                figures.utilisation_at_first_failure.get_or_insert_with(|| allocator.status().utilisation());
                one_or_several(allocator, blocks, DRIFT_RUNS_MAX)
            });
            if let Some(runs) = found {
                figures.placed(u64::from(blocks), runs.len());
                runs.iter().for_each(|&run| pieces.add(run));
            }
        }
        written += coming;
        round += 1;
        if round % KEPT_EVERY == 0 {
            if let Some(mover) = &mut mover {
                mover.keep(reserve, &mut pieces);
            }
            run.show(round, allocator);
        }
    }
    figures.turnovers = Some(written as f64 / status.blocks as f64);
    figures.moved_blocks = mover.map(|mover| mover.moved_blocks);
    figures.look(allocator);
    figures
}
