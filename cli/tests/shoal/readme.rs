//! The commands of the README and of the quick start run word for word in an empty folder; only the ports are
//! others, because the machine may have a server already. A line with redis-cli is left out if there is none.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::command;
use crate::machine::free_port;

/// The shell blocks of a page, in their order.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in page.lines() {
        match &mut open {
            None if line.strip_prefix("```") == Some(language) => open = Some(String::new()),
            None => {}
            Some(_) if line.starts_with("```") => blocks.extend(open.take()),
            Some(block) => {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    blocks
}

/// Waits until the server answers, half a minute at most.
const WAIT: &str = "for _ in $(seq 300); do if shoal stat >/dev/null 2>&1; then break; fi; sleep 0.1; done\n";

/// Runs the shell blocks of the page one after the other in an empty folder; returns their output.
fn run_page(page: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page)).unwrap();
    let blocks = blocks(&text, "sh");
    assert!(!blocks.is_empty(), "{page} has commands");
    let (grpc, resp, metrics) = (free_port(), free_port(), free_port());
    let has_redis = Command::new("redis-cli").arg("--version").stdout(Stdio::null()).status().is_ok();
    let lines = blocks.iter().flat_map(|block| block.lines());
    let script: String = lines
        .filter(|line| has_redis || !line.contains("redis-cli"))
        .map(|line| {
            // A machine that is busy may need longer than the second that the page allows for the server.
            let wait = if line.starts_with("shoal serve") { WAIT } else { "" };
            line.replace("7411", &grpc.to_string()).replace("7412", &resp.to_string()) + "\n" + wait
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let (work, bin) = (folder.path().join("work"), folder.path().join("bin"));
    fs::create_dir(&work).unwrap();
    fs::create_dir(&bin).unwrap();
    symlink(env!("CARGO_BIN_EXE_shoal"), bin.join("shoal")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    // Servers of the page stop with it, after success and failure. A file takes the output: a server that is left would hold a
    // pipe open.
    let script = format!("trap 'kill -KILL $(jobs -p) 2>/dev/null || true' EXIT\nset -e\n{script}");
    let output = fs::File::create(folder.path().join("output")).unwrap();
    // The environment of the harness, and the shell in place of the binary.
    let mut shell = Command::new("bash");
    for (name, value) in command::<&str>(&[]).get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
        .args(["-c", &script])
        .current_dir(&work)
        .env("PATH", path)
        .env("SHOAL_LISTEN", format!("127.0.0.1:{grpc}"))
        .env("SHOAL_SERVER", format!("http://127.0.0.1:{grpc}"))
        .env("SHOAL_RESP", format!("127.0.0.1:{resp}"))
        .env("SHOAL_METRICS", format!("127.0.0.1:{metrics}"))
        .env("SHOAL_CACHE", "32M")
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output);
    let status = shell.status().unwrap();
    let mut printed = String::new();
    fs::File::open(folder.path().join("output")).unwrap().read_to_string(&mut printed).unwrap();
    assert!(status.success(), "{page}: {status}\n{script}\n{printed}");
    printed
}

#[test]
fn the_commands_of_the_readme_work_in_an_empty_folder() {
    let printed = run_page("README.md");
    for expected in ["buy milk", "photos/cat.jpg", "it is whole", "no problems"] {
        assert!(printed.contains(expected), "{expected:?} is missing in\n{printed}");
    }
    assert_eq!(printed.matches("buy milk").count(), 2, "it survives kill -9:\n{printed}");
}

#[test]
fn the_commands_of_the_quick_start_work_in_an_empty_folder() {
    let printed = run_page("docs/quick-start.md");
    for expected in ["photos/cat.jpg", "it is whole", "no problems"] {
        assert!(printed.contains(expected), "{expected:?} is missing in\n{printed}");
    }
}

/// Two commands do all the set-up, in this form: the main job and the tests. CI runs both.
#[test]
fn the_readme_names_the_two_commands() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
    let start = text.split_once("\n## Start\n").expect("README has a section Start").1;
    assert_eq!(blocks(start, "console"), ["cargo run --release -- serve\ncargo test --workspace\n"]);
}

#[test]
fn blocks_end_where_they_are_closed() {
    let page = "a\n```sh\none\n```\n```rust\ntwo\n```\n```sh\nthree\n```\n";
    assert_eq!(blocks(page, "sh"), ["one\n", "three\n"]);
}
