//! Wrong command lines, wrong configurations, and help.

use std::fs;

use crate::harness::{command, run, run_with};

#[test]
fn wrong_usage_ends_with_2_and_says_what_is_wrong() {
    let cases: [(&[&str], &str); 14] = [
        (&[], "Usage"),
        (&["frobnicate"], "frobnicate"),
        (&["put", "key"], "FILE"),
        (&["get", "key", "--range", "9-3"], "ends before it begins"),
        (&["serve", "--size", "64Q"], "64Q"),
        (&["serve", "--tablets", "0"], "tablets"),
        (&["serve", "--listen", "0.0.0.0:0"], "--insecure"),
        (&["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["put", "k", "-", "--if-absent", "--if-exists"], "--if-exists"),
        (&["rm"], "--prefix"),
        (&["check", "--repair"], "--data"),
        (&["check", "--data", "x", "--io", "magic"], "uring"),
        (&["ls", "--bucket", "Bad Name"], "Bad Name"),
        (&["ls", "--server", "ftp://127.0.0.1:1"], "http"),
    ];
    for (arguments, words) in cases {
        let done = run(arguments);
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.to_uppercase().contains(&words.to_uppercase()), "{arguments:?}: {}", done.stderr);
    }
}

#[test]
fn failures_end_with_1_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").into_os_string().into_string().unwrap();
    // A port that nobody listens on: it was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let cases: [(&[&str], &str); 5] = [
        (&["put", "key", &missing], "cannot open"),
        (&["ls", "--server", &nobody], "shoal serve"),
        (&["get", "key", "--data", &missing], "there is no store"),
        (&["import", &missing], "cannot read"),
        (&["check", "--data", &missing], "there is no store"),
    ];
    for (arguments, words) in cases {
        let done = run(arguments);
        assert_eq!(done.code, 1, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.starts_with("shoal: ") && done.stderr.contains(words), "{}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing was created");
}

#[test]
fn unknown_keys_of_the_configuration_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shoal.toml");
    fs::write(&path, "cache = '1G'\ncash = '1G'\nlissten = 'x'\n").unwrap();
    let done = run(&["serve", "--config", path.to_str().unwrap()]);
    assert_eq!(done.code, 2);
    assert!(
        done.stderr.contains("\"cash\", \"lissten\"") && done.stderr.contains("cache"),
        "{}",
        done.stderr
    );

    fs::write(&path, "io = 'magic'\n").unwrap();
    let mut serve = command(&["serve"]);
    serve.env("SHOAL_CONFIG", &path);
    let done = run_with(serve, b"");
    assert_eq!(done.code, 2, "the environment names the file, too");
    assert!(done.stderr.contains("line 1") && done.stderr.contains("uring"), "{}", done.stderr);
}

#[test]
fn help_and_completions_are_there() {
    let done = run(&["--help"]);
    assert_eq!(done.code, 0);
    for word in ["serve", "import", "Examples:", "SHOAL_SERVER", "Exit codes"] {
        assert!(done.text().contains(word), "{word}");
    }
    for name in ["serve", "put", "get", "ls", "rm", "stat", "cp", "import", "export", "check", "completions"]
    {
        let done = run(&[name, "--help"]);
        assert!(done.code == 0 && done.text().contains("Examples:"), "{name}");
    }
    let done = run(&["completions", "bash"]);
    assert!(done.code == 0 && done.text().contains("complete"));
}
