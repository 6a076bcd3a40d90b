//! An empty variable in a script must not mean every object of a bucket.

use std::process::{Command, Stdio};

use shoal_testkit::skipped::skipped;

use crate::harness::{Done, Server, run_with};

fn filled() -> Server {
    let server = Server::start();
    for key in ["a", "b/1", "b/2"] {
        server.put(key, b"1", &[]);
    }
    server
}

/// Symptom: `shoal rm --prefix "$P"` with an empty P deleted the whole bucket. Cause: the empty prefix was one like any other.
/// Fix: each change of a whole bucket by prefix needs `--all`.
#[test]
fn an_empty_prefix_needs_all() {
    let server = filled();
    for words in [
        &["rm", "--prefix", ""][..],
        &["rm", "--prefix", "", "--yes"],
        &["rm", "--prefix", "", "--json"],
        &["mv", "-r", "", "x/", "--to-bucket", "other"],
        &["mv", "-r", "", "", "--to-bucket", "other", "--overwrite"],
        &["cp", "-r", "", "x/", "--to-bucket", "other"],
    ] {
        let done = server.run(words);
        assert_eq!(done.code, 2, "{words:?}: {}", done.stderr);
        for part in ["\"default\"", "(3 objects)", "--all"] {
            assert!(done.stderr.contains(part), "{words:?}: {part}: {}", done.stderr);
        }
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        assert!(done.stdout.is_empty(), "{words:?}");
    }
    // No key at all is as empty as an empty one.
    assert_eq!(server.run(&["rm"]).code, 2);
    assert_ne!(server.run(&["rm", ""]).code, 0);
    assert_ne!(server.run(&["bucket", "rm", "", "-r"]).code, 0);
    assert_eq!(server.keys().len(), 3);
    assert_eq!(server.run(&["bucket", "ls"]).text(), "default\n", "nothing was copied");
}

#[test]
fn all_option_means_whole_bucket() {
    let server = filled();
    assert_eq!(server.run(&["rm", "a", "--all"]).code, 2, "keys or all of them");
    // As in a script: rm --prefix "$P" --all
    assert_eq!(server.ok(&["rm", "--prefix", "b/", "--all"]), b"2 deleted\n");
    assert_eq!(server.keys(), ["a"]);
    assert_eq!(server.ok(&["cp", "-r", "", "", "--to-bucket", "other", "--all"]), b"1 copied, 1 B\n");
    assert_eq!(server.ok(&["mv", "-r", "", "x/", "--to-bucket", "other", "--all"]), b"1 moved, 1 B\n");
    assert!(server.keys().is_empty());
    assert_eq!(
        server.ok(&["rm", "--all", "--bucket", "other", "--dry-run"]),
        b"a\nx/a\n2 would be deleted, 2 B\n"
    );
    assert_eq!(server.ok(&["rm", "--prefix", "", "--all", "--bucket", "other"]), b"2 deleted\n");
    server.put("again", b"1", &[]);
    assert_eq!(server.ok(&["rm", "--all"]), b"1 deleted\n");
}

/// Runs the binary on a terminal on which `typed` is typed; none if this machine has no `script`.
fn on_terminal(server: &Server, arguments: &str, typed: &str) -> Option<Done> {
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        skipped("there is no script(1), which runs a command on a terminal");
        return None;
    }
    let mut command = Command::new("script");
    command.args(["-qec", &format!("{} {arguments}", env!("CARGO_BIN_EXE_shoal")), "/dev/null"]);
    command.env("SHOAL_SERVER", &server.url);
    Some(run_with(command, typed.as_bytes()))
}

#[test]
fn removing_a_bucket_asks_on_a_terminal() {
    let server = filled();
    for arguments in ["rm --all", "bucket rm default -r"] {
        for answer in ["\n", "n\n", "what?\n"] {
            let Some(done) = on_terminal(&server, arguments, answer) else { return };
            assert_eq!(done.code, 1, "{arguments}: {}", done.text());
            assert!(done.text().contains("Delete 3 objects of bucket \"default\"? [y/N]"), "{}", done.text());
        }
        assert_eq!(server.keys().len(), 3, "{arguments}");
    }
    for arguments in ["rm --all --dry-run", "bucket rm default --dry-run"] {
        let Some(done) = on_terminal(&server, arguments, "") else { return };
        assert!(done.code == 0 && !done.text().contains("[y/N]"), "{}", done.text());
    }
    let Some(done) = on_terminal(&server, "rm --all", "y\n") else { return };
    assert!(done.code == 0 && done.text().contains("3 deleted"), "{}", done.text());
    for arguments in ["rm --all --yes", "bucket rm default -r -y"] {
        server.put("a", b"1", &[]);
        let Some(done) = on_terminal(&server, arguments, "") else { return };
        assert!(done.code == 0 && !done.text().contains("[y/N]"), "{}", done.text());
        assert!(server.keys().is_empty(), "{arguments}");
    }
}

/// Without a file and without a pipe there is nothing to read: that is a mistake, not a value to wait for.
#[test]
fn a_put_without_a_file_does_not_wait_for_a_terminal() {
    let server = Server::start();
    let Some(done) = on_terminal(&server, "put greeting", "hello\n") else { return };
    assert!(done.code == 2 && done.text().contains("FILE"), "{}", done.text());
    let Some(done) = on_terminal(&server, "put greeting -", "hello\n\u{4}") else { return };
    assert_eq!(done.code, 0, "{}", done.text());
    assert_eq!(server.ok(&["get", "greeting"]), b"hello\n");
}
