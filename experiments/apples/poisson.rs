//! Poisson numbers, the normal distribution and quadrature, as precise as the formulas need them.
//!
//! A bucket that is chosen at rate `p` was chosen a Poisson number of times by the moment `t`. The formulas need of it how likely
//! at most `m` are, its logarithm (products over thousands of buckets), and the probability of just `m` in relation to that. Up
//! to `m` = 10^8 these must not be sums of `m` terms.

use std::f64::consts::PI;

/// A tail of less than e to the minus this is nothing.
const NOTHING: f64 = 40.0;
/// Tails of at most this many expected are summed; above, integrated.
const SUM_MAX: f64 = 400.0;
/// Panels of a tail's integral.
const PANELS: usize = 4;

/// Half of the nodes and weights of the Gauss-Legendre rule of order 12 on -1 to 1.
const NODES: [(f64, f64); 6] = [
    (0.125_233_408_511_468_9, 0.249_147_045_813_402_8),
    (0.367_831_498_998_180_2, 0.233_492_536_538_354_8),
    (0.587_317_954_286_617_4, 0.203_167_426_723_065_9),
    (0.769_902_674_194_304_7, 0.160_078_328_543_346_2),
    (0.904_117_256_370_474_9, 0.106_939_325_995_318_4),
    (0.981_560_634_246_719_3, 0.047_175_336_386_511_8),
];

/// The points and weights of the rule on `panels` equal parts of `low` to `high`.
pub(super) fn quadrature(low: f64, high: f64, panels: usize) -> impl Iterator<Item = (f64, f64)> {
    let half = (high - low) / (2.0 * panels as f64);
    (0..panels).flat_map(move |panel| {
        let centre = low + half * (2 * panel + 1) as f64;
        NODES
            .iter()
            .rev()
            .map(|(node, weight)| (-node, weight))
            .chain(NODES.iter().map(|(node, weight)| (*node, weight)))
            .map(move |(node, weight)| (centre + half * node, half * weight))
    })
}

/// ln n!, of a whole number.
pub(super) fn ln_factorial(n: f64) -> f64 {
    if n < 2.0 { 0.0 } else { (n + 0.5) * n.ln() - n + 0.5 * (2.0 * PI).ln() + stirling_error(n) }
}

/// The error of Stirling's formula for ln n!, of a whole number above 0.
fn stirling_error(n: f64) -> f64 {
    if n < 16.0 {
        let exact: f64 = (2..=n as u32).map(|factor| f64::from(factor).ln()).sum();
        return exact - ((n + 0.5) * n.ln() - n + 0.5 * (2.0 * PI).ln());
    }
    let square = 1.0 / (n * n);
    (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0))) / n
}

/// u - ln(1 + u), without loss near 0.
fn excess(u: f64) -> f64 {
    if u.abs() > 0.1 {
        return u - u.ln_1p();
    }
    // ln(1 + u) = 2 (v + v^3/3 + v^5/5 + ...) of v = u / (2 + u), and u - 2 v = u v.
    let v = u / (2.0 + u);
    let square = v * v;
    let series: f64 = (1..8).rev().fold(0.0, |sum, index| sum * square + 1.0 / f64::from(2 * index + 1));
    u * v - 2.0 * v * square * series
}

/// The logarithm of the probability of just `m` if `expected` are expected.
fn ln_just(m: f64, expected: f64) -> f64 {
    if m == 0.0 {
        return -expected;
    }
    // The saddle point form (Loader 2000): nothing large cancels.
    -stirling_error(m) - m * excess((expected - m) / m) - 0.5 * (2.0 * PI * m).ln()
}

/// About a Poisson number X: the logarithm of P(X <= m), and P(X = m) / P(X <= m).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AtMost {
    pub(super) ln: f64,
    pub(super) just: f64,
}

/// See [`AtMost`].
pub(super) fn at_most(m: u32, expected: f64) -> AtMost {
    let m = f64::from(m);
    if expected <= 0.0 || (m > expected && m * excess((expected - m) / m) > NOTHING) {
        let none = if m == 0.0 { 1.0 } else { 0.0 };
        return AtMost { ln: 0.0, just: none };
    }
    let ln_just = ln_just(m, expected);
    let ln = if expected > m {
        ln_just + lower_tail(m, expected).ln()
    } else {
        (-ln_just.exp() * upper_tail(m, expected)).ln_1p()
    };
    AtMost { ln, just: (ln_just - ln).exp() }
}

/// P(X <= m) / P(X = m), for m < expected.
fn lower_tail(m: f64, expected: f64) -> f64 {
    if expected <= SUM_MAX {
        let (mut term, mut sum, mut k) = (1.0, 1.0, m);
        while k > 0.0 && term > sum * 1e-17 {
            term *= k / expected;
            sum += term;
            k -= 1.0;
        }
        return sum;
    }
    // P(X <= m) is the integral of P(X' = m) over expected' above `expected`.
    let width = (NOTHING / (1.0 - m / expected)).min(10.0 * m.max(1.0).sqrt() + NOTHING);
    tail_integral(m, expected, width, 1.0)
}

/// P(X > m) / P(X = m), for expected <= m.
fn upper_tail(m: f64, expected: f64) -> f64 {
    if expected <= SUM_MAX {
        let (mut term, mut sum, mut k) = (1.0, 0.0, m);
        loop {
            k += 1.0;
            term *= expected / k;
            sum += term;
            if term <= sum * 1e-17 {
                return sum;
            }
        }
    }
    let width = (NOTHING / (m / expected - 1.0)).min(10.0 * m.sqrt()).min(expected * (1.0 - 1e-9));
    tail_integral(m, expected, width, -1.0)
}

/// The integral of P(X' = m) / P(X = m) over expected' from `expected` on, `width` up or down.
fn tail_integral(m: f64, expected: f64, width: f64, direction: f64) -> f64 {
    quadrature(0.0, width, PANELS)
        .map(|(distance, weight)| {
            let relative = direction * distance / expected;
            weight * ((m - expected) * relative - m * excess(relative)).exp()
        })
        .sum()
}

/// The error function's complement.
pub(super) fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    let square = x * x;
    if x < 2.5 {
        // erf x = 2 x exp(-x^2) / sqrt(pi) (1 + (2 x^2) / 3 + (2 x^2)^2 / (3 5) + ...).
        let (mut term, mut sum, mut odd) = (1.0, 1.0, 1.0);
        while term > sum * 1e-17 {
            odd += 2.0;
            term *= 2.0 * square / odd;
            sum += term;
        }
        return 1.0 - 2.0 * x * (-square).exp() / PI.sqrt() * sum;
    }
    // Laplace's continued fraction, from far below.
    let fraction = (1..=60).rev().fold(0.0, |below, k| f64::from(k) / 2.0 / (x + below));
    (-square).exp() / PI.sqrt() / (x + fraction)
}

/// The probability that a standard normal is below `x`.
pub(super) fn below_normal(x: f64) -> f64 {
    0.5 * erfc(-x / std::f64::consts::SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By adding up everything.
    fn slow(m: u32, expected: f64) -> (f64, f64) {
        let terms: Vec<f64> = (0..=m)
            .map(|k| {
                let ln_k: f64 = (1..=k).map(|factor| f64::from(factor).ln()).sum();
                (f64::from(k) * expected.ln() - expected - ln_k).exp()
            })
            .collect();
        let sum: f64 = terms.iter().sum();
        (sum.ln(), terms.last().unwrap() / sum)
    }

    #[test]
    fn probabilities_are_sums_of_probabilities() {
        for m in [0u32, 1, 2, 9, 50, 300, 1000] {
            for ratio in [0.01, 0.5, 0.9, 0.97, 1.0, 1.03, 1.1, 1.5] {
                let expected = (f64::from(m) + 0.5) * ratio;
                let (found, (ln, just)) = (at_most(m, expected), slow(m, expected));
                // Near 1 the slow sum itself has lost the digits of its logarithm.
                assert!(
                    (found.ln - ln).abs() < 1e-11 + 1e-9 * ln.abs(),
                    "m {m}, {expected}: {found:?}, not {ln}"
                );
                assert!(
                    (found.just - just).abs() < 1e-15 + 1e-9 * just,
                    "m {m}, {expected}: {found:?}, not {just}"
                );
            }
        }
        assert_eq!(at_most(5, 0.0), AtMost { ln: 0.0, just: 0.0 });
    }

    #[test]
    fn sums_and_integrals_agree_where_they_meet() {
        for m in [380u32, 400, 420] {
            let (below, above) = (at_most(m, SUM_MAX), at_most(m, SUM_MAX * (1.0 + 1e-12)));
            assert!((below.ln - above.ln).abs() < 1e-10 && (below.just - above.just).abs() < 1e-10, "{m}");
        }
    }

    #[test]
    fn the_largest_buckets_are_nearly_normal() {
        let m = 100_000_000u32;
        for deviations in [-6.0, -2.0, 0.0, 2.0] {
            let expected = f64::from(m) - deviations * f64::from(m).sqrt();
            let found = at_most(m, expected).ln.exp();
            assert!((found - below_normal(deviations)).abs() < 1e-4, "{deviations}: {found}");
        }
    }

    #[test]
    fn the_error_function_has_its_known_values() {
        for (x, value) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_13),
            (2.0, 0.004_677_734_981_047_266),
            (3.0, 2.209_049_699_858_544e-5),
            (5.0, 1.537_459_794_428_035e-12),
            (-1.0, 1.842_700_792_949_715),
        ] {
            assert!((erfc(x) - value).abs() <= 1e-13 * value.max(1e-3), "erfc {x} is {}", erfc(x));
        }
        assert!((below_normal(1.959_963_984_540_054) - 0.975).abs() < 1e-12);
    }

    #[test]
    fn quadrature_is_exact_for_polynomials() {
        let found: f64 = quadrature(1.0, 3.0, 2).map(|(x, weight)| weight * x.powi(7)).sum();
        assert!((found - (3f64.powi(8) - 1.0) / 8.0).abs() < 1e-9, "{found}");
    }
}
