//! `shoal bench tail`: a short run against the server that stores nothing, and options without a run. No figure is judged.

use std::fs;

use serde_json::Value;

use crate::harness::run;

#[test]
fn a_run_has_figures_for_each_second_and_overall_and_a_chart() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("chart.svg").into_os_string().into_string().unwrap();
    let done = run(&[
        "bench",
        "tail",
        "--echo",
        "--rate",
        "500",
        "--seconds",
        "1",
        "--warm-up-seconds",
        "0",
        "--pause-seconds",
        "0",
        "--json",
        "--plot",
        &chart,
    ]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let lines: Vec<Value> = done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (variant, metric) in
        [("second-0", "p99_ms"), ("set", "p999_ms"), ("set", "stall_ms"), ("sent-late", "max_ms")]
    {
        let is_it = |line: &Value| line["variant"] == variant && line["metric"] == metric;
        assert!(lines.iter().any(is_it), "{variant} {metric}: {}", done.text());
    }
    assert!(fs::read_to_string(&chart).unwrap().contains("latency from the intended send time"));
}

#[test]
fn impossible_options_end_with_2_and_their_name() {
    let cases: [(&[&str], &str); 8] = [
        (&["--share", "0.3,9"], "--share"),
        (&["--rate", "0"], "--rate"),
        (&["--share", "0.3", "--rate", "5"], "--rate"),
        (&["--arrivals", "uniform"], "poisson"),
        (&["--seconds", "1e30"], "--seconds"),
        (&["--connections", "0"], "--connections"),
        (&["--value-bytes", "5M"], "--value-bytes"),
        (&["--plot", "no/such/folder/chart.svg"], "--plot"),
    ];
    for (arguments, word) in cases {
        let done = run(&[&["bench", "tail", "--echo"], arguments].concat());
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(word), "{arguments:?}: {}", done.stderr);
    }
    let done = run(&["bench", "tail", "--echo", "--data", "x"]);
    assert_eq!(done.code, 2, "{}", done.stderr);
}
