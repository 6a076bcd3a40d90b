//! The server as a process: starting, stopping, and who may have the data file.

use std::fs;

use rustix::process::Signal;

use crate::harness::{Server, run, serve, signal};

#[test]
fn stops_in_order_at_a_signal() {
    for stop in [Signal::TERM, Signal::INT] {
        let mut server = Server::start();
        assert_eq!(server.ok(&["ls"]), b"");
        signal(&server.child, stop);
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_data_file_has_one_user() {
    let server = Server::start();
    let data = server.folder.path().join("data").into_os_string().into_string().unwrap();
    for arguments in [&["ls", "--data", &data][..], &["serve", "--data", &data, "--listen", "127.0.0.1:0"]] {
        let done = run(arguments);
        assert_eq!(done.code, 1);
        assert!(done.stderr.contains("in use") && done.stderr.contains("--server"), "{}", done.stderr);
    }
    assert_eq!(server.ok(&["ls"]), b"", "the server goes on");
}

#[test]
fn files_that_are_no_store_are_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letters");
    fs::write(&path, "Dear Ann,\n".repeat(10_000)).unwrap();
    let done = run(&["ls", "--data", path.to_str().unwrap()]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert_eq!(fs::read(&path).unwrap(), "Dear Ann,\n".repeat(10_000).as_bytes());
}

#[test]
fn the_configuration_file_is_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("shoal.toml");
    let data = folder.path().join("here");
    fs::write(&config, "io = 'threads'\ntablets = 5\noverlay = '8M'\ninsecure = true\n").unwrap();
    let (mut child, url) = serve(&data, &["--config", config.to_str().unwrap()]);
    assert_eq!(run(&["ls", "--server", &url]).code, 0);
    assert!(data.is_file());
    assert!(!folder.path().join("here.unfinished").exists());
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
