//! Ranks with a Zipfian distribution over any number of ranks, in constant time and memory: rejection-inversion
//! (W. Hoermann and G. Derflinger, 1996).

/// Draws ranks from 0 on, the smallest most often: rank r in proportion to 1 / (r + 1)^exponent.
pub(crate) struct Zipf {
    ranks: f64,
    exponent: f64,
    /// The integral of the hat at 3/2 minus 1, and after the last rank: values between them are drawn.
    first: f64,
    last: f64,
    /// A rank this close above a draw is accepted without a further check.
    near: f64,
}

impl Zipf {
    /// Over `ranks` ranks, at least 1. The exponent is above 0 and not 1.
    pub(crate) fn new(ranks: u64, exponent: f64) -> Self {
        let ranks = ranks.max(1) as f64;
        let mut zipf = Self { ranks, exponent, first: 0.0, last: 0.0, near: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(ranks + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.hat(2.0));
        zipf
    }

    /// The rank for random bits; `random` returns 64 at a time.
    pub(crate) fn draw(&self, mut random: impl FnMut() -> u64) -> u64 {
        loop {
            let uniform = (random() >> 11) as f64 / (1_u64 << 53) as f64;
            let area = self.last + uniform * (self.first - self.last);
            let place = self.inverse(area);
            let rank = place.round().clamp(1.0, self.ranks);
            if rank - place <= self.near || area >= self.integral(rank + 0.5) - self.hat(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn hat(&self, place: f64) -> f64 {
        place.powf(-self.exponent)
    }

    fn integral(&self, place: f64) -> f64 {
        (place.powf(1.0 - self.exponent) - 1.0) / (1.0 - self.exponent)
    }

    fn inverse(&self, area: f64) -> f64 {
        (1.0 + area * (1.0 - self.exponent)).powf(1.0 / (1.0 - self.exponent))
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::{Entropy, SeededEntropy};

    use super::*;

    #[test]
    fn shares_match_distribution() {
        const DRAWS: u32 = 200_000;
        for (ranks, exponent) in [(1_000, 0.99), (10, 0.5), (1, 0.99)] {
            let (zipf, random) = (Zipf::new(ranks, exponent), SeededEntropy::new(1));
            let mut counts = vec![0_u32; ranks as usize];
            (0..DRAWS).for_each(|_| counts[zipf.draw(|| random.next_u64()) as usize] += 1);
            let weights: Vec<f64> = (1..=ranks).map(|rank| (rank as f64).powf(-exponent)).collect();
            let all: f64 = weights.iter().sum();
            for (rank, (&count, weight)) in counts.iter().zip(&weights).enumerate().take(5) {
                let (share, wanted) = (f64::from(count) / f64::from(DRAWS), weight / all);
                assert!((share - wanted).abs() < 0.005, "{ranks} {exponent}: rank {rank}: {share} {wanted}");
            }
        }
    }
}
