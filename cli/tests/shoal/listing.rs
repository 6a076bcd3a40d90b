//! `shoal bench list`: a short run with a server process on a new file, again on the file that it kept, and options without a run. No figure is
//! judged.

use serde_json::Value;

use crate::harness::{run, text_of};

#[test]
fn both_protocols_list_all_keys_of_a_new_and_of_a_kept_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for kept in ["--keep", "--filled"] {
        let options = ["bench", "list", "--objects", "2500", "--rounds", "1", "--json", "--size", "1G"];
        let done = run(&[&options[..], &["--cache", "16M", kept, "--data", text_of(&data)]].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        let lines: Vec<Value> = done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for case in ["grpc", "scan"] {
            let figure = |metric: &str| {
                let line = lines.iter().find(|line| line["case"] == case && line["metric"] == metric);
                line.unwrap_or_else(|| panic!("{case} {metric}: {}", done.text()))["value"].as_f64().unwrap()
            };
            assert_eq!(figure("keys"), 2_500.0);
            assert!(figure("keys_per_s") > 0.0 && figure("server_cpu_us") >= 0.0);
        }
        assert!(data.exists());
    }
}

#[test]
fn impossible_options_end_with_2_and_their_name() {
    let cases: [(&[&str], &str); 5] = [
        (&["--page", "1001"], "--page"),
        (&["--objects", "0"], "--objects"),
        (&["--filled"], "--filled"),
        (&["--keep"], "--keep"),
        (&["--server", "127.0.0.1:1"], "--resp"),
    ];
    for (arguments, word) in cases {
        let done = run(&[&["bench", "list"], arguments].concat());
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(word), "{arguments:?}: {}", done.stderr);
    }
}
