//! `shoal simulate`.

use crate::harness::run;

#[test]
fn apples_are_counted_beside_their_law() {
    let folder = tempfile::tempdir().unwrap();
    let charts = folder.path().join("charts").into_os_string().into_string().unwrap();
    let small = ["simulate", "apples", "--buckets", "32", "--apples", "25", "--rounds", "400"];
    let done = run(&[&small[..], &["--choice", "halves-60", "--json", "--plot", &charts]].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    let figure = |variant: &str, metric: &str| {
        let lines = done.text().lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let line = lines.into_iter().find(|line| line["variant"] == variant && line["metric"] == metric);
        line.unwrap()["value"].as_f64().unwrap()
    };
    for variant in ["day", "apples", "value"] {
        let (drawn, law) = (figure(variant, "simulated_mean"), figure(variant, "law_mean"));
        let error = figure(variant, "simulated_mean_error");
        assert!((drawn - law).abs() < 5.0 * error, "{variant}: {drawn} +- {error}, law {law}");
    }
    for name in ["apples-day", "apples-left", "apples-value", "apples-by-depth"] {
        let svg = std::fs::read_to_string(format!("{charts}/{name}.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{name}");
    }

    let text = run(&small);
    assert!(text.text().contains("1. On which day") && text.text().contains("log-normal"), "{}", text.text());
    assert_eq!(run(&small).stdout, text.stdout, "the same seed");
    for wrong in
        [&["--buckets", "1"][..], &["--choice", "dice"], &["--apples", "0"], &["--returns", "--matched"]]
    {
        assert_eq!(run(&[&small[..], wrong].concat()).code, 2, "{wrong:?}");
    }
}
