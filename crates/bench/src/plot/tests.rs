//! Charts are read back as text: a well-formed file, with its titles, and every value at its place.

use super::*;

/// Panics if tags or quotes do not match; returns the numbers of all attributes `name`.
fn attributes(svg: &str, name: &str) -> Vec<String> {
    let mut open = Vec::new();
    let mut found = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, _) = part.split_once('>').expect("a tag ends");
        assert!(tag.matches('"').count().is_multiple_of(2), "quotes of <{tag}>");
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed.to_owned()));
            continue;
        }
        if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap().to_owned());
        }
        let attribute = format!(" {name}=\"");
        if let Some((_, rest)) = tag.split_once(&attribute) {
            found.push(rest.split('"').next().unwrap().to_owned());
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    found
}

fn line(points: &str) -> Vec<(i32, i32)> {
    points
        .split_whitespace()
        .map(|point| {
            let (x, y) = point.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        })
        .collect()
}

#[test]
fn chart_has_title_and_labels() {
    let mut chart = LineChart::new("Ups & <downs>", Axis::new("size", "KiB").log(), Axis::new("time", "us"));
    chart.add("first", Mark::Line, [(1.0, 5.0), (10.0, 7.0), (100.0, 9.0)]);
    chart.add_alike("formula", Mark::Points, [(1.0, 5.5)]);
    chart.add("second", Mark::Dashed, [(1.0, 1.0), (100.0, 2.0)]);
    let svg = chart.svg().unwrap();
    attributes(&svg, "x");
    for text in ["Ups &amp; &lt;downs&gt;", "size [KiB]", "time [us]", "first", "formula", "second"] {
        assert!(svg.contains(text), "{text}");
    }
    assert_eq!(svg, chart.svg().unwrap(), "the same chart gives the same bytes");
    assert!(svg.len() < 20_000, "{} bytes", svg.len());
}

#[test]
fn values_are_at_their_places() {
    let mut chart = LineChart::new("t", Axis::new("x", "").log(), Axis::new("y", "").with_zero());
    chart.add("", Mark::Line, [(1.0, 0.0), (10.0, 5.0), (100.0, 10.0)]);
    let lines: Vec<Vec<(i32, i32)>> =
        attributes(&chart.svg().unwrap(), "points").iter().map(|text| line(text)).collect();
    let values = lines.iter().find(|line| line.len() == 3 && line[0].1 > line[2].1).expect("the series");
    // Equal ratios on one axis, equal steps on the other; y grows upwards.
    assert!((values[1].0 - values[0].0 - (values[2].0 - values[1].0)).abs() <= 1, "{values:?}");
    assert!((values[1].1 - values[0].1 - (values[2].1 - values[1].1)).abs() <= 1, "{values:?}");
}

#[test]
fn a_legend_beside_the_plane_covers_no_line() {
    let mut chart = LineChart::new("t", Axis::new("x", ""), Axis::new("y", "")).legend_beside();
    chart.add("first store", Mark::Line, [(1.0, 1.0), (2.0, 2.0)]);
    chart.add("second store", Mark::Points, [(1.0, 2.0), (2.0, 1.0)]);
    let svg = chart.svg().unwrap();
    let texts = || svg.split("<text ").skip(1);
    let name = texts().find(|text| text.contains("first store")).expect("the legend names it");
    let name_x: i32 = attributes(&format!("<text {name}").replace("/svg", "/text"), "x")[0].parse().unwrap();
    let lines = attributes(&svg, "points");
    let farthest = lines.iter().flat_map(|points| line(points)).map(|(x, _)| x).filter(|&x| x < name_x - 40);
    assert!(svg.contains("second store") && farthest.max().unwrap() < name_x - 40, "{svg}");
}

#[test]
fn points_without_a_place_are_left_out() {
    let mut chart = LineChart::new("t", Axis::new("x", "").log(), Axis::new("y", "").log());
    let values =
        [(0.0, 1.0), (1.0, f64::NAN), (-1.0, 2.0), (2.0, 0.0), (5.0, f64::INFINITY), (3.0, 4.0), (4.0, 4.5)];
    chart.add("points", Mark::Points, values);
    // Two values and the one in the legend.
    assert_eq!(attributes(&chart.svg().unwrap(), "r").len(), 3);
    LineChart::new("empty", Axis::new("x", ""), Axis::new("y", "").log()).svg().unwrap();
}

#[test]
fn bars_are_as_high_as_their_values() {
    let mut chart =
        BarChart::new("bars", "allocator", Axis::new("alloc", "ns"), &["bitmap", "hybrid", "tree"]);
    chart.add("mean", [Some(100.0), Some(50.0), None]);
    let svg = chart.svg().unwrap();
    for text in ["allocator", "alloc [ns]", "bitmap", "hybrid", "tree"] {
        assert!(svg.contains(text), "{text}");
    }
    let heights: Vec<f64> = attributes(&svg, "height").iter().map(|text| text.parse().unwrap()).collect();
    // The bars come after the picture and its background.
    assert_eq!(heights.len(), 4, "{heights:?}");
    assert!((heights[2] - 2.0 * heights[3]).abs() <= 2.0, "{heights:?}");
    chart.add("p99", [Some(10.0), Some(20.0), Some(30.0)]);
    let svg = chart.svg().unwrap();
    assert!(svg.contains("p99"), "two series have a legend");
    // Beside the plane: after the picture's own rectangle come the legend's two boxes, and five bars left of them.
    let left = |rect: &str| rect.split("x=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
    let lefts: Vec<f64> = svg.split("<rect ").skip(2).map(|rect| left(rect).unwrap()).collect();
    let (boxes, bars) = lefts.split_at(2);
    let farthest = bars.iter().copied().fold(0.0, f64::max);
    assert!(bars.len() == 5 && boxes.iter().all(|left| *left > farthest + 40.0), "{lefts:?}");
    let labelled = chart.with_values(|value| format!("{value:.1} ns")).svg().unwrap();
    assert!(labelled.contains("100.0 ns") && labelled.contains("30.0 ns"));
}

#[test]
fn charts_are_written_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut chart = BarChart::new("b", "x", Axis::new("y", "").log(), &["a"]);
    chart.add("s", [Some(3.0)]);
    let path = chart.write(&folder.path().join("deep/down"), "chart").unwrap();
    assert_eq!(path, folder.path().join("deep/down/chart.svg"));
    assert_eq!(fs::read_to_string(&path).unwrap(), chart.svg().unwrap());
    let error = chart.write(&path, "below-a-file").unwrap_err();
    assert!(error.to_string().contains("cannot make the folder"), "{error}");
}
