//! The chart of a climb: puts a second against the objects put so far, a line for each order or store.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::plot::{Axis, LineChart, Mark};

/// Stores by their names in a table, and their proper names.
const PROPER_NAMES: [(&str, &str); 4] =
    [("shoal", "Shoal"), ("rocksdb", "RocksDB"), ("sqlite", "SQLite"), ("lmdb", "LMDB")];

/// The proper name of a store.
pub(crate) fn proper_name(name: &str) -> &str {
    PROPER_NAMES.iter().find(|(known, _)| *known == name).map_or(name, |(_, proper)| proper)
}

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

/// The curves in the table that a run of `shoal-compare scale` printed: a row is a store, its objects, its puts a second and
/// further figures. Each curve stops at the last mark that all stores reached, so that their last points can be compared; other
/// lines are skipped.
#[must_use]
pub fn curves_of(table: &str) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for line in table.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(at), Some(rate)) = (words.next(), words.next(), words.next()) else { continue };
        let (Ok(at), Ok(rate)) = (at.parse(), rate.parse()) else { continue };
        let name = proper_name(name);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push((at, rate)),
            None => curves.push(Curve { name: name.into(), points: vec![(at, rate)] }),
        }
    }
    let last = |curve: &Curve| curve.points.last().map_or(0.0, |point| point.0);
    let end = curves.iter().map(last).fold(f64::INFINITY, f64::min);
    for curve in &mut curves {
        curve.points.retain(|point| point.0 <= end);
    }
    curves
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
pub(crate) fn short(number: f64) -> String {
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
    fn title_states_the_result() {
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

    #[test]
    fn curves_are_read_from_a_table() {
        let table = "# machine: 2 cores, fast\ncase variant puts/s\nshoal 1000 5.5 7\nshoal 2000 6 7\nshoal closed - 1\n\
            other 1000 4 x\n";
        let curves = curves_of(table);
        let points: Vec<_> = curves.iter().map(|curve| (&curve.name[..], &curve.points[..])).collect();
        assert_eq!(points, [("Shoal", &[(1e3, 5.5)][..]), ("other", &[(1e3, 4.0)][..])]);
        assert!(curves_of("").is_empty());
    }

    #[test]
    fn readme_chart_matches_newest_run() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let runs = fs::read_dir(docs.join("measurements/runs")).unwrap();
        let names = runs.map(|run| run.unwrap().file_name().into_string().unwrap());
        let newest = names.filter(|name| name.ends_with("-growth-50m.txt")).max().unwrap();
        let table = fs::read_to_string(docs.join("measurements/runs").join(&newest)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("growth.svg");
        draw(&path, &curves_of(&table)).unwrap();
        let told = format!(
            "cargo run -p shoal-bench --example chart -- docs/measurements/runs/{newest} docs/charts/growth.svg"
        );
        let same = fs::read(path).unwrap() == fs::read(docs.join("charts/growth.svg")).unwrap();
        assert!(same, "draw it anew: {told}");
    }
}
