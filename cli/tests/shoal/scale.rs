//! `shoal bench scale`: a small run of each form of output, with a process that is killed for real. No figure is judged.

use std::fs;

use serde_json::Value;

use crate::harness::run;

/// The questions to a grown store, in their order.
const ANSWERS: [&str; 15] = [
    "get",
    "get-absent",
    "list-long-warm",
    "read-until-merged",
    "get-merged",
    "list-long-merged",
    "before-overwriting",
    "overwrite-10th",
    "overwrite-half",
    "overwritten",
    "open-after-kill",
    "first-put",
    "get-after-opening",
    "list-100-cold",
    "check",
];

#[test]
fn a_quick_run_gives_all_figures_and_a_chart_and_leaves_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let (data, chart) = (path("data"), path("chart.svg"));
    let arguments = ["bench", "scale", "--quick", "--objects", "4000", "--cache", "16M", "--data", &data];
    let done =
        run(&[&arguments[..], &["--order", "random", "--order", "content", "--json", "--plot", &chart]]
            .concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    let lines: Vec<Value> = done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let value = |case: &str, variant: &str, metric: &str| {
        let is_it =
            |line: &&Value| line["case"] == case && line["variant"] == variant && line["metric"] == metric;
        lines.iter().find(is_it).unwrap_or_else(|| panic!("{case} {variant} {metric}: {}", done.text()))["value"].clone()
    };
    for (case, objects) in [("random", 4000.0), ("content", 3200.0)] {
        assert_eq!(value(case, "4000", "objects"), objects);
        for metric in ["puts_per_s", "batch_max_ms", "longest_gap_ms", "log_bytes", "resident_mib"] {
            assert!(value(case, "4000", metric).as_f64().unwrap() > 0.0, "{case} {metric}");
        }
        let mut seen: Vec<&str> = lines
            .iter()
            .filter(|line| line["case"] == case && line["variant"].as_str().unwrap().parse::<u64>().is_err())
            .map(|line| line["variant"].as_str().unwrap())
            .collect();
        seen.dedup();
        assert_eq!(seen, ANSWERS);
        assert!(value(case, "open-after-kill", "operations").as_f64().unwrap() >= 2000.0);
    }
    assert!(fs::read_to_string(&chart).unwrap().contains("content"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the chart is left");
    // Not at a terminal: five words a line.
    let done = run(&arguments);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let rows = done.text().lines().filter(|line| !line.starts_with('#'));
    assert!(
        rows.clone().all(|line| line.split(' ').count() == 5 && line.starts_with("random ")),
        "{}",
        done.text()
    );
    assert!(rows.count() > 100);
}

#[test]
fn impossible_options_end_with_2_and_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let (nowhere, taken) = (inside("no/chart.svg"), inside("taken"));
    let cases: [(&[&str], &str); 8] = [
        (&["--order", "sorted"], "sequential"),
        (&["--order", "zipf", "--order", "zipf"], "twice"),
        (&["--objects", "10"], "--objects"),
        (&["--value", "0"], "--value"),
        (&["--value", "5M"], "--value"),
        (&["--batch", "0"], "--batch"),
        (&["--size", "1M"], "--size"),
        (&["--plot", &nowhere], "--plot"),
    ];
    let data = inside("data");
    for (arguments, word) in cases {
        let done = run(&[&["bench", "scale", "--quick", "--data", &data], arguments].concat());
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(word), "{arguments:?}: {}", done.stderr);
    }
    fs::write(&taken, b"precious").unwrap();
    let done = run(&["bench", "scale", "--quick", "--data", &taken]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("it is left alone"), "{}", done.stderr);
    assert_eq!(fs::read(&taken).unwrap(), b"precious");
}
