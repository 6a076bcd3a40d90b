//! The place of a value on an axis: linear, logarithmic, or one place for each category.
//!
//! One type for all three, so that the same code draws a chart with any axes. Ticks are at round numbers.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// Maximum number of ticks of an axis.
const TICKS_MAX: usize = 11;
/// Ticks that a logarithmic axis has at least.
const LOG_TICKS_MIN: usize = 4;
/// Ticks of a decade, of which the first list with [`LOG_TICKS_MIN`] ticks is used.
const PARTS: [&[f64]; 3] = [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]];

/// One axis.
#[derive(Clone, Debug)]
pub(crate) enum Scale {
    Linear(f64, f64),
    /// Both limits are above 0.
    Log(f64, f64),
    /// Category `i` is at `i`.
    Categories(Vec<String>),
}

impl Scale {
    /// A linear scale that contains all `values`, from one tick to another. `from_zero`: it also contains 0.
    pub(crate) fn linear(values: impl Iterator<Item = f64>, from_zero: bool) -> Self {
        let (mut low, mut high) = bounds(values.filter(|value| value.is_finite())).unwrap_or((0.0, 1.0));
        if from_zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if low == high {
            // One value only: some room around it.
            (low, high) = (low - if from_zero { 0.0 } else { 0.5 }, high + 0.5);
        }
        let step = step(low, high);
        Self::Linear((low / step).floor() * step, (high / step).ceil() * step)
    }

    /// A logarithmic scale that contains all `values` above 0.
    pub(crate) fn log(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) =
            bounds(values.filter(|value| value.is_finite() && *value > 0.0)).unwrap_or((1.0, 10.0));
        let (low, high) = if low == high { (low / 2.0, high * 2.0) } else { (low, high) };
        // A little room, so that no mark is on the border.
        let room = (high / low).powf(0.02);
        Self::Log(low / room, high * room)
    }

    /// Returns true if `value` has a place on it.
    pub(crate) fn holds(&self, value: f64) -> bool {
        let Range { start, end } = self.range();
        value >= start && value <= end
    }

    /// The start of a bar.
    pub(crate) fn floor(&self) -> f64 {
        match self {
            Self::Linear(low, high) => 0f64.clamp(*low, *high),
            Self::Log(low, _) => *low,
            Self::Categories(_) => -0.5,
        }
    }

    /// The share of the axis below `value`.
    fn share(&self, value: f64) -> f64 {
        match self {
            Self::Linear(low, high) => (value - low) / (high - low),
            Self::Log(low, high) => (value / low).ln() / (high / low).ln(),
            Self::Categories(names) => (value + 0.5) / names.len().max(1) as f64,
        }
    }

    pub(crate) fn ticks(&self) -> Vec<f64> {
        match self {
            Self::Linear(low, high) => {
                let step = step(*low, *high);
                let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
                (first..=last).map(|index| index as f64 * step).collect()
            }
            Self::Log(low, high) => log_ticks(*low, *high),
            Self::Categories(names) => (0..names.len()).map(|index| index as f64).collect(),
        }
    }

    fn text(&self, value: f64) -> String {
        match self {
            Self::Categories(names) => {
                let is_place = (value - value.round()).abs() < 1e-6 && value > -0.5;
                names.get(value.round() as usize).filter(|_| is_place).cloned().unwrap_or_default()
            }
            Self::Linear(low, high) => number(value, step(*low, *high)),
            Self::Log(..) => number(value, value),
        }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (f64::from(limit.1 - limit.0) * self.share(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks()
    }

    fn range(&self) -> Range<f64> {
        match self {
            Self::Linear(low, high) | Self::Log(low, high) => *low..*high,
            Self::Categories(names) => -0.5..names.len().max(1) as f64 - 0.5,
        }
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        self.text(*value)
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |found, value| {
        let (low, high) = found.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// 1, 2 or 5 times a power of ten, such that there are at most [`TICKS_MAX`] ticks.
fn step(low: f64, high: f64) -> f64 {
    let rough = (high - low) / (TICKS_MAX - 1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let part = [1.0, 2.0, 5.0, 10.0].into_iter().find(|part| part * power >= rough * (1.0 - 1e-9));
    part.unwrap_or(10.0) * power
}

fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let every = ((high / low).log10() / TICKS_MAX as f64).ceil().max(1.0) as i32;
    let ticks = |parts: &'static [f64]| -> Vec<f64> {
        (first..=last)
            .filter(|power| power.rem_euclid(every) == 0)
            .flat_map(|power| parts.iter().map(move |part| part * 10f64.powi(power)))
            .filter(|tick| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(tick))
            .collect()
    };
    let found = PARTS.into_iter().map(ticks).find(|ticks| ticks.len() >= LOG_TICKS_MIN);
    found.unwrap_or_else(|| ticks(PARTS[PARTS.len() - 1]))
}

/// A number as short as its step allows: `250`, `2k`, `0.05`, `1e-9`.
fn number(value: f64, step: f64) -> String {
    let magnitude = value.abs();
    if magnitude < step.abs() * 1e-6 {
        return "0".into();
    }
    let (divisor, unit) = match magnitude {
        1e15.. => return format!("{value:.0e}"),
        1e12.. => (1e12, "T"),
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e4.. => (1e3, "k"),
        1e-4.. => (1.0, ""),
        _ => return format!("{value:.0e}"),
    };
    let digits = (-(step.abs() / divisor).log10() - 1e-9).ceil().clamp(0.0, 6.0) as usize;
    format!("{:.digits$}{unit}", value / divisor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &Scale) -> Vec<String> {
        scale.ticks().iter().map(|tick| scale.text(*tick)).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        let scale = Scale::linear([3.0, 97.0].into_iter(), false);
        assert_eq!(texts(&scale), ["0", "10", "20", "30", "40", "50", "60", "70", "80", "90", "100"]);
        let scale = Scale::linear([0.0, 0.31].into_iter(), true);
        assert_eq!(
            texts(&scale),
            ["0.00", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30", "0.35"]
                .map(|text| { if text == "0.00" { "0" } else { text } })
        );
        let scale = Scale::linear([12_000.0, 61_000.0].into_iter(), true);
        assert_eq!(texts(&scale), ["0", "10k", "20k", "30k", "40k", "50k", "60k", "70k"]);
        let scale = Scale::log([1.0, 1e6].into_iter());
        assert_eq!(texts(&scale), ["1", "10", "100", "1000", "10k", "100k", "1M"]);
        let scale = Scale::log([4.0, 70.0].into_iter());
        assert_eq!(texts(&scale), ["5", "10", "20", "50"]);
        let scale = Scale::log([500e3, 50e6].into_iter());
        assert_eq!(texts(&scale), ["500k", "1M", "2M", "5M", "10M", "20M", "50M"]);
        let scale = Scale::log([225e3, 638e3].into_iter());
        assert_eq!(texts(&scale), ["300k", "400k", "500k", "600k"]);
        assert!(Scale::log([1e-30, 1e30].into_iter()).ticks().len() <= TICKS_MAX);
        let scale = Scale::Categories(vec!["a".into(), "b".into()]);
        assert_eq!(texts(&scale), ["a", "b"]);
    }

    #[test]
    fn equal_steps_and_equal_ratios_are_equally_long() {
        let linear = Scale::Linear(-10.0, 10.0);
        assert_eq!(
            [-10.0, -5.0, 0.0, 5.0, 10.0].map(|value| linear.map(&value, (0, 400))),
            [0, 100, 200, 300, 400]
        );
        let log = Scale::Log(0.1, 1000.0);
        assert_eq!([0.1, 1.0, 10.0, 1000.0].map(|value| log.map(&value, (400, 0))), [400, 300, 200, 0]);
        let categories = Scale::Categories(vec!["a".into(), "b".into()]);
        assert_eq!([0.0, 1.0].map(|value| categories.map(&value, (0, 400))), [100, 300]);
    }

    #[test]
    fn any_values_have_an_axis() {
        for values in
            [vec![], vec![f64::NAN], vec![5.0], vec![0.0], vec![-3.0, -3.0], vec![f64::INFINITY, 1.0]]
        {
            for scale in [
                Scale::linear(values.iter().copied(), false),
                Scale::linear(values.iter().copied(), true),
                Scale::log(values.iter().copied()),
            ] {
                let Range { start, end } = scale.range();
                assert!(start.is_finite() && end.is_finite() && start < end, "{values:?} {scale:?}");
                assert!(scale.ticks().len() <= TICKS_MAX + 1, "{values:?} {scale:?}");
                for value in values.iter().copied().filter(|value| value.is_finite()) {
                    assert!(
                        scale.holds(value) || matches!(scale, Scale::Log(..)) && value <= 0.0,
                        "{value} {scale:?}"
                    );
                }
            }
        }
    }
}
