//! The program `experiments`, as a user calls it.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

/// The exit code and the output.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_experiments")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn apples_are_counted_beside_their_law() {
    let folder = tempfile::tempdir().unwrap();
    let charts = folder.path().join("charts").into_os_string().into_string().unwrap();
    let small = ["apples", "--buckets", "32", "--apples", "25", "--rounds", "400"];
    let (code, text, errors) =
        run(&[&small[..], &["--choice", "halves-60", "--json", "--plot", &charts]].concat());
    assert_eq!(code, 0, "{errors}");
    let figure = |variant: &str, metric: &str| {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
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

    let (_, text, _) = run(&small);
    assert!(text.contains("1. On which day") && text.contains("log-normal"), "{text}");
    assert_eq!(run(&small).1, text, "the same seed");
    for wrong in
        [&["--buckets", "1"][..], &["--choice", "dice"], &["--apples", "0"], &["--returns", "--matched"]]
    {
        assert_eq!(run(&[&small[..], wrong].concat()).0, 2, "{wrong:?}");
    }
}
