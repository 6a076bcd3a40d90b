//! The server as a process: starting, stopping, and who may have the data file.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Server, command, run, serve, signal};

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

#[test]
fn redis_clients_are_served_beside_grpc() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--size", "256M", "--cache", "16M"];
    let mut serve = command(&["serve"]);
    serve.args(options).arg("--log").arg("warn").arg("--data").arg(folder.path().join("data"));
    let mut child = serve.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (grpc, redis) = (lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap());
    let address = redis.strip_prefix("Redis redis://").expect("where the Redis face listens");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"SET greeting hello\r\nGET greeting\r\nQUIT\r\n").unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers, "+OK\r\n$5\r\nhello\r\n+OK\r\n");
    let url = grpc.strip_prefix("gRPC  ").expect("where gRPC listens");
    let done = run(&["get", "greeting", "--bucket", "redis", "--server", url]);
    assert_eq!((done.code, done.text()), (0, "hello"), "{}", done.stderr);
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
