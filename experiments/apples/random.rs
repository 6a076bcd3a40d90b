//! Random numbers of the distributions that the simulation needs, from a seed: the same seed yields the same numbers.
//!
//! Every generator here is exact: its numbers have just the distribution that it names, apart from the 53 bits of a float.

use super::poisson::ln_factorial;

/// A binomial of a smaller mean is drawn trial by success.
const BINOMIAL_MEAN_SMALL: f64 = 10.0;

/// A sequence of random numbers (SplitMix64; Steele, Lea and Flood, OOPSLA 2014).
pub(super) struct Random(u64);

impl Random {
    /// The sequence `stream` of `seed`: independent of every other one for the purposes of this study.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut seeds = Self(seed);
        let base = seeds.next();
        let mut random = Self(base ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03));
        random.0 = random.next();
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is above 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform above 0 and at most 1.
    pub(super) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Marsaglia's polar method).
    fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * square.ln() / square).sqrt();
            }
        }
    }

    /// Gamma of a shape of at least 1 and scale 1 (Marsaglia and Tsang 2000).
    pub(super) fn gamma(&mut self, shape: f64) -> f64 {
        assert!(shape >= 1.0, "a gamma of shape {shape}");
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            if self.unit().ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                return d * v;
            }
        }
    }

    /// The number of successes in `n` trials, each with probability `p`.
    pub(super) fn binomial(&mut self, n: u32, p: f64) -> u32 {
        if p > 0.5 {
            return n - self.binomial(n, 1.0 - p);
        }
        if n == 0 || p <= 0.0 {
            0
        } else if f64::from(n) * p < BINOMIAL_MEAN_SMALL {
            self.binomial_by_gaps(n, p)
        } else {
            self.binomial_by_rejection(n, p)
        }
    }

    /// From success to success: the gaps are geometric.
    fn binomial_by_gaps(&mut self, n: u32, p: f64) -> u32 {
        let ln_failure = (-p).ln_1p();
        let (mut trials, mut successes) = (0.0, 0);
        loop {
            trials += (self.unit().ln() / ln_failure).floor() + 1.0;
            if trials > f64::from(n) {
                return successes;
            }
            successes += 1;
        }
    }

    /// Transformed rejection with a squeeze (Hoermann 1993, "BTRS").
    fn binomial_by_rejection(&mut self, n: u32, p: f64) -> u32 {
        let trials = f64::from(n);
        let deviation = (trials * p * (1.0 - p)).sqrt();
        let b = 1.15 + 2.53 * deviation;
        let a = -0.0873 + 0.0248 * b + 0.01 * p;
        let centre = trials * p + 0.5;
        let alpha = (2.83 + 5.1 / b) * deviation;
        let squeeze = 0.92 - 4.2 / b;
        let mode = ((trials + 1.0) * p).floor();
        let ln_odds = (p / (1.0 - p)).ln();
        loop {
            let u = self.unit() - 0.5;
            let v = self.unit();
            let us = 0.5 - u.abs();
            let k = ((2.0 * a / us + b) * u + centre).floor();
            if us >= 0.07 && v <= squeeze {
                return k as u32;
            }
            if !(0.0..=trials).contains(&k) {
                continue;
            }
            let height = (v * alpha / (a / (us * us) + b)).ln();
            let at_mode = ln_factorial(mode) + ln_factorial(trials - mode);
            let here = at_mode - ln_factorial(k) - ln_factorial(trials - k) + (k - mode) * ln_odds;
            if height <= here {
                return k as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics unless mean and variance of `draws` are those expected, within five standard errors (nearly normal
    /// draws are assumed for the variance's).
    fn check(what: &str, draws: &[f64], mean: f64, variance: f64) {
        let count = draws.len() as f64;
        let found = draws.iter().sum::<f64>() / count;
        assert!(
            (found - mean).abs() < 5.0 * (variance / count).sqrt(),
            "mean of {what}: {found}, not {mean}"
        );
        let spread = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / count;
        let error = 8.0 * variance * (2.0 / count).sqrt();
        assert!((spread - variance).abs() < error, "variance of {what}: {spread}, not {variance}");
    }

    #[test]
    fn draws_have_their_means_and_variances() {
        let mut random = Random::new(1, 0);
        let mut draw = |next: &mut dyn FnMut(&mut Random) -> f64| -> Vec<f64> {
            (0..40_000).map(|_| next(&mut random)).collect()
        };
        check("unit", &draw(&mut |random| random.unit()), 0.5, 1.0 / 12.0);
        check("below", &draw(&mut |random| random.below(7) as f64), 3.0, 4.0);
        check("normal", &draw(&mut |random| random.normal()), 0.0, 1.0);
        for shape in [1.0, 2.5, 11.0, 1001.0] {
            check(&format!("gamma {shape}"), &draw(&mut |random| random.gamma(shape)), shape, shape);
        }
        for (n, p) in
            [(1, 0.3), (10, 0.5), (40, 0.2), (40, 0.9), (1000, 0.3), (1_000_000, 0.001), (5000, 0.999)]
        {
            let (mean, q) = (f64::from(n) * p, 1.0 - p);
            let draws = draw(&mut |random| f64::from(random.binomial(n, p)));
            check(&format!("binomial {n} {p}"), &draws, mean, mean * q);
            assert!(draws.iter().all(|draw| (0.0..=f64::from(n)).contains(draw)));
        }
        assert_eq!([random.binomial(5, 0.0), random.binomial(5, 1.0), random.binomial(0, 0.5)], [0, 5, 0]);
    }

    #[test]
    fn a_binomial_has_its_probabilities() {
        // Both ways of drawing, against the probabilities themselves: chi-square with some 20 bins.
        for (n, p) in [(30u32, 0.3), (60, 0.4)] {
            let mut random = Random::new(2, 0);
            let draws = 100_000;
            let mut counts = vec![0f64; n as usize + 1];
            (0..draws).for_each(|_| counts[random.binomial(n, p) as usize] += 1.0);
            let (mut bins, mut chi) = (0f64, 0f64);
            for (k, count) in counts.iter().enumerate() {
                let k = k as f64;
                let trials = f64::from(n);
                let ln = ln_factorial(trials) - ln_factorial(k) - ln_factorial(trials - k);
                let expected = f64::from(draws) * (ln + k * p.ln() + (trials - k) * (1.0 - p).ln()).exp();
                if expected > 10.0 {
                    bins += 1.0;
                    chi += (count - expected).powi(2) / expected;
                }
            }
            assert!(chi < bins + 5.0 * (2.0 * bins).sqrt(), "n {n}: chi-square {chi} of {bins} bins");
        }
    }

    #[test]
    fn streams_differ_and_repeat() {
        let first = |seed, stream| Random::new(seed, stream).next();
        assert_eq!(first(1, 2), first(1, 2));
        assert!(first(1, 2) != first(1, 3) && first(1, 2) != first(2, 2));
    }
}
