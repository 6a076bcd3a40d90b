//! Commands that only read, on a store that cannot be written and whose server was killed: everything is there, and not a byte is
//! changed.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use shoal_testkit::skipped::skipped;
use tempfile::TempDir;

use crate::harness::{Done, Server, command, run, run_with, serve};
use crate::machine::LoopDevice;

/// The number of user nobody, and of its group.
const NOBODY: u32 = 65_534;

fn value(which: usize) -> Vec<u8> {
    vec![which as u8; [0, 50, 900, 9_000, 70_000, 300_000][which % 6]]
}

fn name(which: usize) -> String {
    format!("folder/{which:02}")
}

/// The data file of a server that was killed: some of it in trees, some in the log only.
fn crashed() -> (TempDir, PathBuf) {
    let mut server = Server::start();
    let tree = server.folder.path().join("tree");
    fs::create_dir_all(tree.join("folder")).unwrap();
    for which in 0..24 {
        fs::write(tree.join(name(which)), value(which)).unwrap();
    }
    server.ok(&["import", tree.to_str().unwrap()]);
    server.ok(&["rm", &name(23)]);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::copy(server.folder.path().join("data"), &data).unwrap();
    (folder, data)
}

/// The five commands, each by `start`, on `data`: their output is right.
fn everything_is_shown(data: &Path, out: &Path, start: &dyn Fn(&[OsString]) -> Command) {
    let run = |arguments: &[&str], options: &[&str]| -> Done {
        let mut words: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        words.extend(["--data".into(), data.into()]);
        words.extend(options.iter().map(OsString::from));
        let done = run_with(start(&words), b"");
        assert_eq!(done.code, 0, "{arguments:?}: {}{}", done.stderr, String::from_utf8_lossy(&done.stdout));
        done
    };
    for options in [&[][..], &["--read-only"]] {
        let keys: Vec<String> = (0..23).map(name).collect();
        let listed = run(&["ls"], options);
        let listed: Vec<&str> = listed.text().lines().filter(|key| !key.ends_with('/')).collect();
        assert_eq!(listed, keys);
        for which in [0, 3, 4, 5, 22] {
            assert!(run(&["get", &name(which)], options).stdout == value(which), "{which}");
        }
        assert!(run(&["stat", &name(5)], options).text().contains("300000"));
        assert!(run(&["stat"], options).text().starts_with("objects "));
        assert!(run(&["stat", "--map"], options).text().len() > 100);
        let report = run(&["check", "--json"], options).json();
        assert_eq!(report["clean"], true, "{report}");
        assert!(report["log_records"].as_u64().unwrap() > 0, "the log has something: {report}");
        let target = tempfile::tempdir_in(out).unwrap();
        fs::set_permissions(target.path(), Permissions::from_mode(0o777)).unwrap();
        run(&["export", "folder/", target.path().to_str().unwrap()], options);
        for which in 0..23 {
            let file = target.path().join(name(which).trim_start_matches("folder/"));
            assert!(fs::read(file).unwrap() == value(which), "{which}");
        }
    }
}

/// The user of the tests, or, if that is root, another one, bound by permissions.
fn unprivileged(arguments: &[OsString]) -> Command {
    let mut command = command(arguments);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

#[test]
fn a_file_that_may_not_be_written_is_read_and_not_changed() {
    let (folder, data) = crashed();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o444)).unwrap();
    if !unprivileged(&["--version".into()]).output().is_ok_and(|output| output.status.success()) {
        skipped("another user than root cannot run the program where it is");
        return;
    }
    let before = fs::read(&data).unwrap();
    let out = tempfile::tempdir().unwrap();
    fs::set_permissions(out.path(), Permissions::from_mode(0o777)).unwrap();
    everything_is_shown(&data, out.path(), &unprivileged);
    // A command that wants to write is refused.
    let path = data.to_str().unwrap();
    let denied = |words: &[&str], code: i32, says: &str| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let done = run_with(unprivileged(&words), b"value");
        assert_eq!(done.code, code, "{words:?}: {}", done.stderr);
        assert!(done.stderr.contains(says), "{words:?}: {}", done.stderr);
    };
    denied(&["put", "key", "-", "--data", path], 1, "Permission denied");
    denied(&["rm", "folder/01", "--data", path], 1, "Permission denied");
    denied(&["check", "--repair", "--data", path], 1, "Permission denied");
    denied(&["serve", "--listen", "127.0.0.1:0", "--data", path], 1, "Permission denied");
    denied(&["rm", "folder/01", "--data", path, "--read-only"], 2, "this command writes");
    denied(&["check", "--repair", "--read-only", "--data", path], 2, "--read-only");
    assert!(fs::read(&data).unwrap() == before, "the file was changed");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was put beside it");
}

/// The same on a file that could be written, and on a device that cannot.
#[test]
fn reading_changes_nothing_on_a_device_either() {
    let (_folder, data) = crashed();
    let before = fs::read(&data).unwrap();
    let out = tempfile::tempdir().unwrap();
    let start = |arguments: &[OsString]| command(arguments);
    everything_is_shown(&data, out.path(), &start);
    assert!(fs::read(&data).unwrap() == before, "the file was changed");
    let Some(device) = LoopDevice::over(&data, &["--read-only"]) else { return };
    everything_is_shown(Path::new(&device.0), out.path(), &start);
    let put = run_with(command(&["put", "key", "-", "--data", &device.0]), b"value");
    assert!(put.code == 1 && put.stderr.contains("Read-only"), "{}", put.stderr);
    drop(device);
    assert!(fs::read(&data).unwrap() == before, "the device was changed");
    // An opening for writing continues from the state after the crash.
    let (mut child, url) = serve(&data, &["--must-exist"]);
    assert!(run(&["get", &name(5), "--server", &url]).stdout == value(5));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn reader_beside_server_gets_an_error() {
    let server = Server::start();
    let data = server.folder.path().join("data").into_os_string().into_string().unwrap();
    for words in [&["ls"][..], &["stat"], &["get", "key"], &["check"], &["export", "", "out"]] {
        let mut words = words.to_vec();
        words.extend(["--data", &data, "--read-only"]);
        let done = run(&words);
        assert_eq!(done.code, 1, "{words:?}");
        assert!(done.stderr.contains("in use") && done.stderr.contains("--server"), "{}", done.stderr);
    }
}
