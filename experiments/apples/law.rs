//! The exact answers, by formula: expectation and distribution of the day, of the apples left and of their value.
//!
//! Let the days be the events of a Poisson process of rate 1. Then the buckets know nothing of each other: bucket `i`
//! was chosen a Poisson number of times, `p_i t` expected, up to the moment `t`, and no bucket was found empty before
//! `t` if none was chosen more often than it has apples:
//!
//! ```text
//! P(T > t) = product over i of P(Poisson(p_i t) <= M_i),   h_i(t) = p_i P(just M_i) / P(at most M_i)
//! ```
//!
//! `h_i` is the rate at which bucket `i` is found empty at `t`. For `T = t` and the empty bucket `i`, every other
//! bucket's number is a Poisson number that is at most `M_j`: its mean and variance are known, so those of the apples
//! left and of their value follow by one integral over `t`. The day is the number of apples taken, and one.
//!
//! Means and deviations are exact (quadrature to some 10 digits). For the quantiles, the number of apples that are left for a `t`
//! is taken as normal, being a sum over the buckets: good from some 20 buckets on, unless they are mostly full or empty.

use super::choice::Orchard;
use super::poisson::{at_most, below_normal, quadrature};

/// The integral runs from the moment at which P(T > t) is this far from 1 to the one at which it is this far from 0.
const EDGE: f64 = 1e-12;
/// Panels of the integral.
const PANELS: usize = 20;

/// Expectation and distribution of one quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Expectation.
    pub(super) mean: f64,
    /// Standard deviation.
    pub(super) deviation: f64,
    /// Quantiles of 5, 50 and 95 per cent.
    pub(super) quantiles: [f64; 3],
}

/// The shares of [`Figures::quantiles`].
pub(super) const QUANTILES: [f64; 3] = [0.05, 0.5, 0.95];

impl Figures {
    /// Of `factor` times the quantity, `factor` being above 0.
    pub(super) fn scaled(self, factor: f64) -> Self {
        Self {
            mean: self.mean * factor,
            deviation: self.deviation * factor,
            quantiles: self.quantiles.map(|quantile| quantile * factor),
        }
    }

    /// Of `whole` without the quantity.
    fn rest_of(self, whole: f64) -> Self {
        let [low, middle, high] = self.quantiles;
        Self {
            mean: whole - self.mean,
            deviation: self.deviation,
            quantiles: [whole - high, whole - middle, whole - low],
        }
    }
}

/// Buckets that differ only in their price.
struct Kind {
    probability: f64,
    apples: u32,
    count: f64,
    prices: f64,
    squares: f64,
}

/// A quantity at a moment: the likelihood of the moment, and the quantity's mean and variance then.
#[derive(Clone, Copy)]
struct Given {
    weight: f64,
    mean: f64,
    variance: f64,
}

/// One quantity's distribution.
pub(super) struct Mixture {
    parts: Vec<Given>,
    /// Half of the distance of two neighbouring values of the quantity.
    half_step: f64,
}

/// The answers for one orchard.
pub(super) struct Law {
    total: f64,
    apples: Mixture,
    value: Mixture,
}

impl Law {
    pub(super) fn new(orchard: &Orchard) -> Self {
        let kinds = kinds(orchard);
        let (low, high) = edges(&kinds);
        let moments = quadrature(low, high, PANELS).map(|(moment, weight)| given(&kinds, moment, weight));
        let (apples, value): (Vec<Given>, Vec<Given>) = moments.unzip();
        Self {
            total: orchard.total() as f64,
            apples: Mixture { parts: apples, half_step: 0.5 },
            value: Mixture { parts: value, half_step: 0.5 },
        }
    }

    /// The day on which the monkey finds its bucket empty; the first day is 1.
    pub(super) fn day(&self) -> Figures {
        self.apples.figures().rest_of(self.total + 1.0)
    }

    /// The number of apples left on that day.
    pub(super) fn apples(&self) -> &Mixture {
        &self.apples
    }

    /// Their value.
    pub(super) fn value(&self) -> &Mixture {
        &self.value
    }
}

impl Mixture {
    pub(super) fn figures(&self) -> Figures {
        let all: f64 = self.parts.iter().map(|part| part.weight).sum();
        let mean = self.parts.iter().map(|part| part.weight * part.mean).sum::<f64>() / all;
        let square = |part: &Given| part.weight * (part.variance + (part.mean - mean).powi(2));
        let deviation = (self.parts.iter().map(square).sum::<f64>() / all).max(0.0).sqrt();
        Figures { mean, deviation, quantiles: QUANTILES.map(|share| self.quantile(share, mean, deviation)) }
    }

    /// How likely the quantity is at most `value`.
    pub(super) fn at_most(&self, value: f64) -> f64 {
        let all: f64 = self.parts.iter().map(|part| part.weight).sum();
        let below = |part: &Given| {
            let deviation = part.variance.max(1e-12).sqrt();
            part.weight * below_normal((value + self.half_step - part.mean) / deviation)
        };
        self.parts.iter().map(below).sum::<f64>() / all
    }

    fn quantile(&self, share: f64, mean: f64, deviation: f64) -> f64 {
        let (mut low, mut high) = ((mean - 12.0 * deviation - 1.0).max(-1.0), mean + 12.0 * deviation + 1.0);
        while high - low > 1e-4 * deviation.max(1e-3) {
            let middle = 0.5 * (low + high);
            if self.at_most(middle) < share {
                low = middle;
            } else {
                high = middle;
            }
        }
        high.max(0.0)
    }
}

fn kinds(orchard: &Orchard) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for ((&probability, &apples), price) in orchard.probabilities.iter().zip(&orchard.apples).zip(1u32..) {
        let price = f64::from(price);
        match kinds.last_mut() {
            Some(kind) if kind.probability == probability && kind.apples == apples => {
                kind.count += 1.0;
                kind.prices += price;
                kind.squares += price * price;
            }
            _ => kinds.push(Kind { probability, apples, count: 1.0, prices: price, squares: price * price }),
        }
    }
    kinds
}

/// The logarithm of P(T > t).
fn ln_survival(kinds: &[Kind], moment: f64) -> f64 {
    kinds.iter().map(|kind| kind.count * at_most(kind.apples, kind.probability * moment).ln).sum()
}

/// The bounds of the integral.
fn edges(kinds: &[Kind]) -> (f64, f64) {
    let passes = |limit: f64| {
        let (mut low, mut high) = (0.0, 1.0);
        while ln_survival(kinds, high) > limit {
            (low, high) = (high, 2.0 * high);
        }
        for _ in 0..50 {
            let middle = 0.5 * (low + high);
            if ln_survival(kinds, middle) > limit { low = middle } else { high = middle }
        }
        (low, high)
    };
    (passes(-EDGE).0, passes(EDGE.ln()).1)
}

/// The rest at `moment` if a bucket is found empty just then: apples and their value.
fn given(kinds: &[Kind], moment: f64, step: f64) -> (Given, Given) {
    let mut ln_survival = 0.0;
    let mut rate = 0.0;
    // Of all buckets: mean and variance of the apples left; and, weighted with the rate at which the bucket is the
    // empty one, of its part in that, which is to be subtracted.
    let (mut apples, mut value) = (Parts::default(), Parts::default());
    for kind in kinds {
        let expected = kind.probability * moment;
        let found = at_most(kind.apples, expected);
        ln_survival += kind.count * found.ln;
        let hazard = kind.probability * found.just;
        rate += kind.count * hazard;
        // Mean and variance of a Poisson number that is at most the apples.
        let taken = expected * (1.0 - found.just);
        let variance = taken - expected * found.just * (f64::from(kind.apples) - taken);
        let left = f64::from(kind.apples) - taken;
        apples.add(kind.count, kind.count, left, variance, hazard);
        value.add(kind.prices, kind.squares, left, variance, hazard);
    }
    let weight = step * ln_survival.exp() * rate;
    (apples.given(weight, rate), value.given(weight, rate))
}

#[derive(Default)]
struct Parts {
    mean: f64,
    variance: f64,
    own_mean: f64,
    own_square: f64,
    own_variance: f64,
}

impl Parts {
    fn add(&mut self, prices: f64, squares: f64, left: f64, variance: f64, hazard: f64) {
        self.mean += prices * left;
        self.variance += squares * variance;
        self.own_mean += hazard * prices * left;
        self.own_square += hazard * squares * left * left;
        self.own_variance += hazard * squares * variance;
    }

    fn given(&self, weight: f64, rate: f64) -> Given {
        let rate = rate.max(f64::MIN_POSITIVE);
        let own = self.own_mean / rate;
        let spread = (self.own_square / rate - own * own).max(0.0);
        let variance = (self.variance - self.own_variance / rate).max(0.0) + spread;
        Given { weight, mean: self.mean - own, variance }
    }
}

/// About the share of the apples that are left, for equally likely buckets of `apples` each: the expectation by two
/// formulas without an integral.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Asymptotic {
    /// For many apples: `1 - (1 - b / (3 sqrt(M + 1)))^3` with `b` the expected maximum of N normals, which is
    /// `b / sqrt(M)` in the limit (Wilson and Hilferty's approximation of a gamma).
    pub(super) deep: f64,
    /// For few apples: the day is about `N^(M/(M+1)) (M+1)!^(1/(M+1)) Gamma(1 + 1/(M+1))`, the birthday problem.
    pub(super) shallow: f64,
}

pub(super) fn asymptotic(buckets: u32, apples: u32) -> Asymptotic {
    let (count, depth) = (f64::from(buckets), f64::from(apples));
    let part = expected_maximum(buckets) / (3.0 * (depth + 1.0).sqrt());
    let power = 1.0 / (depth + 1.0);
    let ln_day = (1.0 - power) * count.ln() + power * super::poisson::ln_factorial(depth + 1.0);
    // Gamma(1 + x) for x up to 1/2: the integral of exp(-u^(1/x)).
    let gamma: f64 =
        quadrature(0.0, 40f64.powf(power), 24).map(|(u, weight)| weight * (-u.powf(1.0 / power)).exp()).sum();
    Asymptotic {
        deep: 1.0 - (1.0 - part).max(0.0).powi(3),
        shallow: (1.0 - (ln_day.exp() * gamma - 1.0) / (count * depth)).max(0.0),
    }
}

/// The expected maximum of this many standard normals: 3.248 for 1,024.
pub(super) fn expected_maximum(count: u32) -> f64 {
    let power = f64::from(count);
    let above: f64 =
        quadrature(0.0, 12.0, 40).map(|(x, weight)| weight * (1.0 - below_normal(x).powf(power))).sum();
    let below: f64 = quadrature(-12.0, 0.0, 40).map(|(x, weight)| weight * below_normal(x).powf(power)).sum();
    above - below
}

#[cfg(test)]
mod tests {
    use super::super::choice::{Choice, Supply};
    use super::*;

    /// By enumeration: the probability of every (day, value left), from the state of the buckets day by day.
    fn enumerate(orchard: &Orchard) -> (Figures, Figures) {
        use std::collections::HashMap;
        let mut states: HashMap<Vec<u32>, f64> = HashMap::from([(orchard.apples.clone(), 1.0)]);
        let (mut apples, mut value) = ([0.0; 2], [0.0; 2]);
        while !states.is_empty() {
            let mut next = HashMap::new();
            for (state, likely) in states {
                for (bucket, probability) in orchard.probabilities.iter().enumerate() {
                    let likely = likely * probability;
                    if state[bucket] > 0 {
                        let mut state = state.clone();
                        state[bucket] -= 1;
                        *next.entry(state).or_insert(0.0) += likely;
                        continue;
                    }
                    let left: u32 = state.iter().sum();
                    let worth: f64 =
                        state.iter().zip(1u32..).map(|(&a, price)| f64::from(a) * f64::from(price)).sum();
                    for (sums, quantity) in [(&mut apples, f64::from(left)), (&mut value, worth)] {
                        sums[0] += likely * quantity;
                        sums[1] += likely * quantity * quantity;
                    }
                }
            }
            states = next;
        }
        [apples, value]
            .map(|[mean, square]| Figures {
                mean,
                deviation: (square - mean * mean).sqrt(),
                quantiles: [0.0; 3],
            })
            .into()
    }

    #[test]
    fn small_orchards_are_answered_exactly() {
        for choice in [Choice::Uniform, Choice::Linear, Choice::Halves(80.0), Choice::Zipf(1.0)] {
            for (buckets, depth, supply) in
                [(2, 1, Supply::Equal), (3, 4, Supply::Equal), (4, 2, Supply::Matched), (5, 3, Supply::Equal)]
            {
                let orchard = Orchard::new(buckets, depth, choice, supply);
                let law = Law::new(&orchard);
                let (apples, value) = enumerate(&orchard);
                for (what, found, exact) in
                    [("apples", law.apples().figures(), apples), ("value", law.value().figures(), value)]
                {
                    let case =
                        format!("{what} of {buckets} buckets of {depth}, {choice}: {found:?}, not {exact:?}");
                    assert!((found.mean - exact.mean).abs() < 1e-8 * (1.0 + exact.mean), "mean: {case}");
                    assert!((found.deviation - exact.deviation).abs() < 1e-6, "deviation: {case}");
                }
                let day = law.day();
                assert!((day.mean - (orchard.total() as f64 - apples.mean + 1.0)).abs() < 1e-7, "{day:?}");
            }
        }
    }

    /// The table of the allocator study (docs/sources.md), computed by other means: the expected day, its deviation, the
    /// expected share left in per cent, its deviation. The deviations there are of samples, and for one apple they are
    /// of the moment and not of the day.
    #[test]
    fn the_table_of_the_prototype_holds() {
        for (apples, day, day_sd, left, left_sd) in [
            (1, 40.7, 21.0, 96.1, 2.1),
            (10, 3.36e3, 482.0, 67.2, 4.7),
            (100, 7.32e4, 2.9e3, 28.48, 2.79),
            (1000, 9.23e5, 1.0e4, 9.83, 1.01),
            (10_000, 9.91e6, 3.5e4, 3.206, 0.339),
            (100_000, 1.014e8, 1.2e5, 1.025, 0.113),
            (1_000_000, 1.0207e9, 3.6e5, 0.3240, 0.035),
        ] {
            let orchard = Orchard::new(1024, apples, Choice::Uniform, Supply::Equal);
            let law = Law::new(&orchard);
            let share = law.apples().figures().scaled(100.0 / orchard.total() as f64);
            let found = law.day();
            for (what, found, expected, tolerance) in [
                ("day", found.mean, day, 0.01),
                ("its deviation", found.deviation, day_sd, 0.08),
                ("left", share.mean, left, 0.005),
                ("its deviation", share.deviation, left_sd, 0.05),
            ] {
                assert!(
                    (found / expected - 1.0).abs() < tolerance,
                    "{apples} apples, {what}: {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn a_favourite_bucket_leaves_a_share_that_does_not_vanish() {
        let left = |choice, apples, supply| {
            let orchard = Orchard::new(1024, apples, choice, supply);
            Law::new(&orchard).apples().figures().mean / orchard.total() as f64
        };
        for (choice, hundred, million) in [
            (Choice::Normal(6.0), 0.673, 0.5840),
            (Choice::Normal(3.0), 0.448, 0.277),
            (Choice::Linear, 0.596, 0.500),
            (Choice::Halves(60.0), 0.390, 0.169),
        ] {
            for (apples, expected) in [(100, hundred), (1_000_000, million)] {
                let found = left(choice, apples, Supply::Equal);
                assert!(
                    (found / expected - 1.0).abs() < 0.006,
                    "{choice}, {apples}: {found}, not {expected}"
                );
            }
        }
        let matched = left(Choice::Linear, 10_000, Supply::Matched);
        assert!((matched / 0.169 - 1.0).abs() < 0.03, "matched supplies vanish again: {matched}");
    }

    #[test]
    fn asymptotic_formulas_are_near() {
        assert!((expected_maximum(1024) - 3.248).abs() < 0.003, "{}", expected_maximum(1024));
        assert!(expected_maximum(1).abs() < 1e-12);
        for apples in [1, 10, 100, 1000, 100_000] {
            let orchard = Orchard::new(1024, apples, Choice::Uniform, Supply::Equal);
            let exact = Law::new(&orchard).apples().figures().mean / orchard.total() as f64;
            let found = asymptotic(1024, apples);
            let value = if apples == 1 { found.shallow } else { found.deep };
            assert!((value / exact - 1.0).abs() < 0.04, "{apples}: {found:?}, exact {exact}");
        }
    }
}
