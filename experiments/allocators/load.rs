//! Sizes, order and chance of the loads: all from a seed, without a lock.

use shoal_base::Run;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), for one thread.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// From 0 up to but without 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index as u64 + 1) as usize);
        }
    }

    /// Takes a random item out.
    pub(crate) fn take<T>(&mut self, items: &mut Vec<T>) -> Option<T> {
        let index = self.below(items.len() as u64) as usize;
        (index < items.len()).then(|| items.swap_remove(index))
    }
}

/// How the sizes of values are distributed, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sizes {
    /// All from the first to the last alike.
    Uniform(u32, u32),
    /// Log-normal around a median in bytes, sigma 1.5, at most 4 MiB.
    LogNormal(f64),
    /// A power of two, from two to the first to two to the last.
    Powers(u32, u32),
    /// The one or the other.
    Either(u32, u32),
}

impl Sizes {
    /// Up to 4 MiB, as in the seed.
    pub(crate) const SEED: Self = Self::Uniform(1, 1024);

    pub(crate) fn draw(self, random: &mut Random) -> u32 {
        match self {
            Self::Uniform(first, last) => first + random.below(u64::from(last - first) + 1) as u32,
            Self::LogNormal(median) => {
                // Box and Muller; one minus the unit keeps the logarithm finite.
                let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * random.unit()).cos();
                ((median * (1.5 * normal).exp() / 4096.0).ceil() as u32).clamp(1, 1024)
            }
            Self::Powers(first, last) => 1 << (first + random.below(u64::from(last - first) + 1) as u32),
            Self::Either(one, other) => {
                if random.below(2) == 0 {
                    one
                } else {
                    other
                }
            }
        }
    }
}

/// The sum of the lengths.
pub(crate) fn blocks_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.blocks)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_they_say() {
        let mut random = Random::new(1);
        let mut mean = |sizes: Sizes| {
            let drawn: Vec<u32> = (0..100_000).map(|_| sizes.draw(&mut random)).collect();
            assert!(drawn.iter().all(|blocks| (1..=1024).contains(blocks)));
            drawn.iter().map(|&blocks| f64::from(blocks)).sum::<f64>() / 1e5
        };
        assert!((mean(Sizes::SEED) - 512.5).abs() < 5.0);
        assert!((mean(Sizes::Uniform(768, 1024)) - 896.0).abs() < 2.0);
        let log_normal = mean(Sizes::LogNormal(16_384.0));
        assert!((log_normal - 12.8).abs() < 0.5, "{log_normal}, allocator.md says 12.8");
        assert!((mean(Sizes::Powers(0, 9)) - 102.3).abs() < 3.0);
        assert!((mean(Sizes::Either(16, 1024)) - 520.0).abs() < 9.0);
    }
}
