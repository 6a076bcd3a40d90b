//! Lines that others can make the server log: its standard error is not read, and a client without credentials causes warnings again
//! and again. Others are served all the while, and the log stays short.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use shoal_testkit::http2::{ACK, PING, frame, greeting, take_frame};
use shoal_testkit::process::raise_open_files;
use shoal_testkit::wait::HANGS_AFTER;

use crate::harness::{Process, command};

/// Answers to pings that were never sent.
const ANSWERS: usize = 100_000;
/// Silent connections: more than the server takes.
const IDLE: usize = 1_100;

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
    stream.set_write_timeout(Some(HANGS_AFTER)).unwrap();
    stream
}

/// Answers pings that were never sent; returns when the server has taken all of them.
fn flood(address: SocketAddr) {
    let mut stream = connect(&address.to_string());
    let (mark, mut received) = ([9; 8], Vec::new());
    let answers = frame(PING, ACK, 0, &[7; 8]).repeat(ANSWERS);
    stream.write_all(&[greeting(&[]), answers, frame(PING, 0, 0, &mark)].concat()).unwrap();
    let mut bytes = [0; 4096];
    loop {
        let count = stream.read(&mut bytes).unwrap();
        assert_ne!(count, 0, "the server ended the connection");
        received.extend_from_slice(&bytes[..count]);
        while let Some(frame) = take_frame(&mut received) {
            if (frame.kind, frame.flags) == (PING, ACK) && frame.payload == mark {
                return;
            }
        }
    }
}

/// Is served by the Redis protocol until `stop`; how often.
fn served(address: &str, stop: &AtomicBool) -> u64 {
    let mut stream = BufReader::new(connect(address));
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) || count == 0 {
        stream.get_mut().write_all(b"SET k v\r\nGET k\r\n").unwrap();
        for expected in ["+OK\r\n", "$1\r\n", "v\r\n"] {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            assert_eq!(line, expected);
        }
        count += 1;
    }
    count
}

/// The lines that a server of this level writes to its standard error, which is read when all is over.
fn log_of(level: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = command(&["serve", "--size", "256M", "--cache", "16M", "--log", level]);
    serve
        .args(["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
        .arg("--data")
        .arg(folder.path().join("data"));
    serve.stderr(Stdio::piped());
    let mut child = Process::start(serve);
    let (grpc, resp) = (child.says("gRPC  http://").parse().unwrap(), child.says("Redis redis://"));
    let stop = AtomicBool::new(false);
    raise_open_files();
    let count = std::thread::scope(|scope| {
        let other = scope.spawn(|| served(&resp, &stop));
        flood(grpc);
        let mut idle: Vec<TcpStream> = (0..IDLE).map(|_| connect(&grpc.to_string())).collect();
        // The oldest one is closed for the newest ones, which is worth a warning each.
        assert_eq!(idle[IDLE - 1_024 - 1].read(&mut [0; 100]).unwrap_or(0), 0);
        // A client that comes only now is served, too.
        served(&resp, &AtomicBool::new(true));
        stop.store(true, Ordering::Relaxed);
        other.join().unwrap()
    });
    let log = child.stop_and_read();
    println!(
        "log: level {level}, {ANSWERS} answers to no ping, {} bytes logged; others were served {count} times",
        log.len()
    );
    log
}

/// The server wrote a warning for each client before it asked for credentials, and stalled as a whole when the pipe
/// was full.
#[test]
fn unread_log_does_not_block_requests() {
    let log = log_of("info");
    assert!(!log.contains("PING") && log.len() < 20_000, "{log}");
    let evicted = log.lines().filter(|line| line.contains("is closed for a new one")).count();
    let left_out = log.lines().filter_map(|line| {
        let (words, _) = line.split_once(" more lines as those of crates/frontend/src/admission.rs:")?;
        words.rsplit(' ').next()?.parse::<usize>().ok()
    });
    assert!(evicted + left_out.sum::<usize>() >= IDLE - 1_024, "what is left out is counted: {log}");
    assert!(log.contains("closing"), "what is said last is there: {log}");
    // With all lines of the libraries: many are dropped, the line about closing perhaps with them, and that is reported.
    let log = log_of("debug,h2=debug");
    assert!(log.contains("lines of the log were dropped") && log.contains("PING"), "{} bytes", log.len());
}

/// The log is not read until the end: the server exits all the same.
#[test]
fn server_with_unread_log_shuts_down() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = command(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--size",
        "256M",
        "--cache",
        "16M",
        "--log",
        "trace,h2=trace",
    ]);
    serve.arg("--data").arg(folder.path().join("data"));
    serve.stderr(Stdio::piped());
    let mut child = Process::start(serve);
    flood(child.says("gRPC  http://").parse().unwrap());
    child.stop();
    drop(child.stderr.take());
}
