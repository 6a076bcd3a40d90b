//! With returns: a freed apple comes back, as in an allocator with a pool of free pieces for each size and no merging.
//!
//! Then every pool's depth is a random walk, and even a load whose sizes never change kills the allocator in the end:
//! the pools drift apart, and the pieces of one cannot serve another. Two laws:
//!
//! - *Pools alone* (N pools of M pieces; each day one is taken from a random pool and one added to another): an empty
//!   one is met after about `N (M+1)^2 / (4 x^2)` days, with `erfc(x) = ln 2 / N`.
//! - *Pools and a common reserve* of R blocks that empty pools cut from: it is used up after about `pi R^2 / N^3`
//!   days, in other words `(pi/2) f^2 B / N^2` turnovers of a device of B blocks whose free share is f. This holds for
//!   the first turnover; later it is a lower bound, because an object that was replaced cannot be replaced again: the
//!   sizes of the live objects, from which the freed ones are drawn, pull the walks back.
//!
//! The simulation keeps the relevant parts of the allocator: the number of pieces in each pool, and the sizes of the
//! live objects.

use super::poisson::{erfc, quadrature};
use super::random::Random;

/// The median of the day on which `pools` pools of `pieces` each meet an empty one.
pub(super) fn pools_law(pools: u32, pieces: u32) -> f64 {
    let count = f64::from(pools);
    let share = std::f64::consts::LN_2 / count;
    let (mut low, mut high) = (0.0, 10.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if erfc(middle) > share { low = middle } else { high = middle }
    }
    count * (f64::from(pieces) + 1.0).powi(2) / (4.0 * low * low)
}

/// The expectation of that day: the integral of the probability that no walk has gone so far, `erf^N`.
pub(super) fn pools_mean(pools: u32, pieces: u32) -> f64 {
    let (count, distance) = (f64::from(pools), f64::from(pieces) + 1.0);
    let still = |day: f64| (count * (-erfc(distance / (2.0 * (day / count).sqrt()))).ln_1p()).exp();
    let scale = pools_law(pools, pieces);
    quadrature(0.0, 20.0 * scale, 60).map(|(day, weight)| weight * still(day)).sum()
}

/// The turnovers after which a reserve of the share `free` of a device of `blocks` blocks is used up, sizes being even
/// from 1 to `sizes` blocks.
pub(super) fn turnovers_law(blocks: f64, free: f64, sizes: u32) -> f64 {
    std::f64::consts::FRAC_PI_2 * free * free * blocks / f64::from(sizes).powi(2)
}

/// Takes from random pools and adds to random pools until one is found empty; returns the day.
pub(super) fn pools_until_empty(pools: u32, pieces: u32, random: &mut Random) -> f64 {
    let mut depths = vec![pieces; pools as usize];
    let mut day = 1u64;
    loop {
        let taken = &mut depths[random.below(u64::from(pools)) as usize];
        if *taken == 0 {
            return day as f64;
        }
        *taken -= 1;
        depths[random.below(u64::from(pools)) as usize] += 1;
        day += 1;
    }
}

/// A device that is filled once and then kept at one fill by replacing random objects, until neither the pool of the
/// wanted size nor the reserve has a piece. Returns the turnovers (blocks allocated since, in devices), at most `most`.
pub(super) fn turnovers_until_full(
    blocks: u64,
    free: f64,
    sizes: u32,
    most: f64,
    random: &mut Random,
) -> f64 {
    let size = |random: &mut Random| 1 + random.below(u64::from(sizes)) as u32;
    let mut live: Vec<u32> = Vec::new();
    let (mut used, mut reserve) = (0, blocks);
    let fill = (blocks as f64 * (1.0 - free)) as u64;
    while used < fill {
        let blocks = size(random);
        used += u64::from(blocks);
        live.push(blocks);
    }
    reserve -= used.min(reserve);
    let mut pools = vec![0u32; sizes as usize];
    let mut allocated = 0u64;
    while (allocated as f64) < most * blocks as f64 {
        // Free until there is room at this fill, then allocate.
        let wanted = size(random);
        while used + u64::from(wanted) > fill && !live.is_empty() {
            let victim = random.below(live.len() as u64) as usize;
            let freed = live.swap_remove(victim);
            used -= u64::from(freed);
            pools[freed as usize - 1] += 1;
        }
        let pool = &mut pools[wanted as usize - 1];
        if *pool > 0 {
            *pool -= 1;
        } else if reserve >= u64::from(wanted) {
            reserve -= u64::from(wanted);
        } else {
            break;
        }
        used += u64::from(wanted);
        allocated += u64::from(wanted);
        live.push(wanted);
    }
    allocated as f64 / blocks as f64
}

#[cfg(test)]
mod tests {
    use super::super::simulate::figures;
    use super::*;

    #[test]
    fn pools_alone_follow_the_law() {
        for (pools, pieces, rounds) in [(64, 30, 300), (256, 60, 100), (1024, 30, 60)] {
            let drawn = figures(
                (0..rounds).map(|round| pools_until_empty(pools, pieces, &mut Random::new(5, round))),
            );
            let mean = pools_mean(pools, pieces);
            let error = drawn.deviation / (rounds as f64).sqrt();
            // The walk is treated as a diffusion: 4 per cent for the smallest.
            assert!(
                (drawn.mean - mean).abs() < 5.0 * error + 0.04 * mean,
                "{pools} {pieces}: {drawn:?}, law {mean}"
            );
            let median = pools_law(pools, pieces);
            assert!(
                (drawn.quantiles[1] / median - 1.0).abs() < 0.15,
                "{pools} {pieces}: {drawn:?}, law {median}"
            );
        }
        // N M^2 / 23.1 of 1,024 pools (docs/sources.md).
        let found = 1024.0 * 101f64.powi(2) / pools_law(1024, 100);
        assert!((found - 23.1).abs() < 0.1, "{found}");
    }

    #[test]
    fn a_reserve_lasts_as_the_law_says() {
        let (blocks, sizes) = (1u64 << 22, 64);
        // The law holds within the first turnover; later, the live objects pull back, and it lasts longer.
        for (free, least, most) in [(0.01, 0.85, 1.3), (0.02, 0.9, 1.7), (0.05, 1.2, 5.0)] {
            let law = turnovers_law(blocks as f64, free, sizes);
            let drawn =
                figures((0..6).map(|round| {
                    turnovers_until_full(blocks, free, sizes, 50.0, &mut Random::new(6, round))
                }));
            assert!((least..most).contains(&(drawn.mean / law)), "{free}: {drawn:?}, law {law}");
        }
    }

    #[test]
    fn it_stops_where_told() {
        assert!((1.0..1.1).contains(&turnovers_until_full(1 << 16, 0.5, 16, 1.0, &mut Random::new(1, 0))));
    }
}
