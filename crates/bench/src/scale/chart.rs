//! The chart of a climb: puts a second against the objects put so far, a line for each order or store.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::plot::{Axis, LineChart, Mark};

/// A line: its name, and at each mark the puts so far and the puts a second since the mark before.
pub struct Curve {
    /// In the legend.
    pub name: String,
    /// Puts, puts a second.
    pub points: Vec<(f64, f64)>,
}

/// Draws `curves` into the file at `path`.
///
/// # Errors
/// It cannot be drawn or written.
pub fn draw(path: &Path, curves: &[Curve]) -> Result<()> {
    let (x, y) = (Axis::new("objects put", "").log(), Axis::new("durable puts", "1/s").log());
    let mut chart = LineChart::new(&title(curves), x, y).legend_beside();
    for curve in curves {
        chart.add(&curve.name, Mark::Line, curve.points.iter().copied());
        chart.add_alike("", Mark::Points, curve.points.iter().copied());
    }
    fs::write(path, chart.svg()?).with_context(|| format!("cannot write {}", path.display()))
}

/// The chart in one sentence: how fast each curve is at its last mark.
fn title(curves: &[Curve]) -> String {
    let mut ends: Vec<(&str, (f64, f64))> =
        curves.iter().filter_map(|curve| Some((curve.name.as_str(), *curve.points.last()?))).collect();
    ends.sort_by(|one, other| other.1.1.total_cmp(&one.1.1));
    match &ends[..] {
        [] => "Nothing was put".into(),
        [(name, (puts, rate))] => {
            let first = curves.iter().find_map(|curve| curve.points.first()).copied().unwrap_or_default();
            format!(
                "{name}: {} puts a second up to {} objects, {} at {}",
                short(first.1),
                short(first.0),
                short(*rate),
                short(*puts)
            )
        }
        [(name, (puts, rate)), others @ ..] => {
            let others: Vec<String> =
                others.iter().map(|(name, (_, rate))| format!("{name} {}", short(*rate))).collect();
            format!(
                "At {} objects {name} puts {} a second, {}",
                short(*puts),
                short(*rate),
                others.join(", ")
            )
        }
    }
}

/// With two or three digits: `950`, `1.5k`, `24k`, `10M`.
fn short(number: f64) -> String {
    let (value, unit) = match number {
        1e9.. => (number / 1e9, "G"),
        1e6.. => (number / 1e6, "M"),
        1e3.. => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let digits = usize::from(value < 10.0 && value.fract() >= 0.05);
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(name: &str, points: &[(f64, f64)]) -> Curve {
        Curve { name: name.into(), points: points.to_vec() }
    }

    #[test]
    fn a_title_says_what_is_seen() {
        let random = curve("random", &[(1e5, 158_000.0), (1e7, 21_400.0)]);
        assert_eq!(title(&[]), "Nothing was put");
        let one = title(std::slice::from_ref(&random));
        assert_eq!(one, "random: 158k puts a second up to 100k objects, 21k at 10M");
        let faster = curve("sequential", &[(1e7, 1_540_000.0)]);
        assert_eq!(title(&[random, faster]), "At 10M objects sequential puts 1.5M a second, random 21k");
    }

    #[test]
    fn a_chart_is_a_file_with_all_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chart.svg");
        draw(&path, &[curve("random", &[(1e3, 5.0), (1e4, 6.0)]), curve("zipf", &[(1e4, 9.0)])]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for word in ["<svg", "objects put", "durable puts [1/s]", "random", "zipf"] {
            assert!(text.contains(word), "{word}");
        }
        assert!(draw(&folder.path().join("no/chart.svg"), &[]).is_err());
    }
}
