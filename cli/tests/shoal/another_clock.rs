//! A store that is opened in a time namespace: the boot id is the same there, and the clock since boot is another one.

use std::ffi::OsStr;
use std::process::Command;

use shoal_testkit::skipped::skipped;

use crate::harness::{Done, assert_clean, command, run_with};

/// Three years, in seconds.
const AHEAD: &str = "100000000";

/// The command in a time namespace.
fn ahead(inner: &Command) -> Command {
    let mut outer = Command::new("unshare");
    outer.args(["-T", "--boottime", AHEAD]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// Symptom: an object with an hour to live was gone after the store was opened once in a time namespace. Cause: the boot
/// id was the same, so the clock since boot counted. Fix: its offset is part of the clock's identity, and if the clocks
/// disagree by much the shorter time counts.
#[test]
fn time_namespace_keeps_ttl() {
    let probe = ahead(&Command::new("true")).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        skipped("time namespaces: they need root, a kernel with them, and unshare");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let shoal = |arguments: &[&str]| {
        let mut command = command(arguments);
        command.args([OsStr::new("--data"), data.as_os_str()]);
        command
    };
    let got = |done: Done| (done.code, done.stdout);
    let v = || (0, b"v".to_vec());
    let put = ["put", "k", "-", "--ttl", "1h"];
    assert_eq!(run_with(shoal(&put), b"v").code, 0);
    assert_eq!(got(run_with(ahead(&shoal(&["get", "k"])), b"")), v(), "read in the namespace");
    assert_eq!(got(run_with(shoal(&["get", "k"]), b"")), v(), "read outside after that");
    // A write saves the clock of the namespace.
    assert_eq!(run_with(ahead(&shoal(&["put", "other", "-"])), b"").code, 0);
    assert_eq!(got(run_with(ahead(&shoal(&["get", "k"])), b"")), v(), "written in the namespace");
    assert_eq!(got(run_with(shoal(&["get", "k"]), b"")), v(), "written in the namespace, read outside");
    let listed = run_with(shoal(&["ls"]), b"");
    assert_eq!(listed.text(), "k\nother\n");
    assert_clean(&data);
}
