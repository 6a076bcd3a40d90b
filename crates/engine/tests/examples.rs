//! Runs the programs of `examples/`.

// Clippy's exception for tests does not apply to the helpers of an integration test.
#![allow(clippy::unwrap_used)]

// Verbatim.
#[path = "../examples/embedded.rs"]
mod embedded;

use std::path::Path;
use std::process::Command;

use shoal_engine::{OpenOptions, PathOptions, block_on};
use shoal_testkit::skipped::skipped;

#[test]
fn embedded_example_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.data");
    let open = OpenOptions { cache_bytes: 16 << 20, ..OpenOptions::default() };
    let options = PathOptions { bytes_max: 256 << 20, open, ..PathOptions::default() };
    embedded::blocking(&path, options.clone()).unwrap();
    let listed = block_on(embedded::asynchronous(&path, options)).unwrap();
    assert_eq!(listed, ["notes/a", "notes/b", "notes/c"]);
}

/// Returns the Rust code blocks of a page at the root of the repository or below it.
fn rust_blocks(page: &str) -> Vec<String> {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    let parts = text.split("\n```rust\n").skip(1);
    parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
}

/// Symptom: the first program of docs/embedded.md did not compile as printed. Cause: it was a fragment that nothing compiled. Fix: it is
/// the example, and the README has lines of it.
#[test]
fn the_printed_programs_are_the_example() {
    let example = include_str!("../examples/greeting.rs");
    let (_, program) = example.split_once("\n\n").unwrap();
    assert_eq!(rust_blocks("docs/embedded.md"), [program]);
    let readme = rust_blocks("README.md");
    assert_eq!(readme.len(), 1);
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let known = lines(program);
    for line in lines(&readme[0]) {
        assert!(
            line.is_empty() || known.contains(&line),
            "README.md has a line that no test compiles: {line}"
        );
    }
}

#[test]
fn the_printed_program_runs() {
    // Cargo builds the examples with the tests, unless one test is requested by name.
    let binary = std::env::current_exe().unwrap().with_file_name("../examples/greeting");
    if !binary.is_file() {
        return skipped("the example `greeting` is not built: `cargo test -p shoal-engine` builds it");
    }
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let status = Command::new(&binary).current_dir(folder.path()).status().unwrap();
        assert!(status.success(), "{status}");
    }
    assert!(folder.path().join("notes.data").is_file());
}
