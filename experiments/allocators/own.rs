//! Separate space: a heavy load of small values comes, fills its part of the device, and leaves again ("seed 001": its coming
//! and going upsets an allocator for everybody). The case measures the part of the device that remains for the others.

use shoal_base::Run as Blocks;

use super::allocator::Allocator;
use super::figures::Figures;
use super::hybrid::Hybrid;
use super::load::{Random, Sizes};
use super::run::{Run, SEED};
use super::seed::give_back;

/// The load that comes and goes, and the others.
const HEAVY: Sizes = Sizes::Uniform(1, 256);
const OTHERS: Sizes = Sizes::Uniform(768, 1024);
/// The heavy load's number as an owner.
const OWNER: u16 = 1;
/// Allocations that are timed together.
const CHUNK: usize = 1000;

/// Fills the device half with the one and half with the others, stops the heavy load, and runs the others until one of
/// their values has no place.
pub(crate) fn come_and_go(blocks: u64, is_own: bool, run: &mut Run) -> Figures {
    let allocator = Hybrid::new(0, blocks);
    let space = allocator.inner();
    let (mut figures, mut random) = (Figures::default(), Random::new(SEED));
    let mut heavy: Vec<Blocks> = Vec::new();
    let (mut heavy_blocks, mut other_blocks, mut round) = (0, 0, 0);
    let mut is_full = false;
    while !is_full {
        let is_heavy = heavy_blocks < other_blocks;
        let sizes = if is_heavy { HEAVY } else { OTHERS };
        let blocks = sizes.draw(&mut random);
        let found =
            if is_heavy && is_own { space.allocate_own(OWNER, blocks) } else { space.allocate(blocks) };
        let Some(found) = found else {
            is_full = true;
            break;
        };
        if is_heavy {
            heavy_blocks += u64::from(blocks);
            heavy.push(found);
        } else {
            other_blocks += u64::from(blocks);
        }
        round += 1;
        if round % 4096 == 0 {
            run.show(round, &allocator);
            if run.is_over() {
                break;
            }
        }
    }
    if !is_full {
        return figures;
    }
    random.shuffle(&mut heavy);
    give_back(&allocator, &heavy, false, &mut figures);
    while figures.utilisation_at_first_failure.is_none() && !run.is_over() {
        let wanted: Vec<u32> = (0..CHUNK).map(|_| OTHERS.draw(&mut random)).collect();
        let mut placed: Vec<Blocks> = Vec::with_capacity(CHUNK);
        let mut first_failure = None;
        figures.alloc.each_while(&wanted, |&blocks| {
            match space.allocate(blocks) {
                Some(run) => placed.push(run),
                None => first_failure = Some(allocator.status().utilisation()),
            }
            first_failure.is_none()
        });
        placed.iter().for_each(|run| figures.placed(u64::from(run.blocks), 1));
        figures.utilisation_at_first_failure = first_failure;
    }
    figures.look(&allocator);
    figures
}
