//! Commands and a server that does not answer, that answers slowly, or that speaks TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use shoal_testkit::certificates::RootCertificate;

use crate::harness::{self, Frontends, Server, command, run, run_with, signal};

/// A listener that takes connections and sends nothing.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Symptom: `get` and `stat` waited 570 s for a server that took the connection and sent nothing. Cause: attempts were bounded by
/// their number only. Fix: a call has one time for all attempts (--timeout).
#[test]
fn timeout_option_bounds_silent_server() {
    let (_listener, address) = silent();
    let commands: [&[&str]; 8] = [
        &["get", "k"],
        &["stat"],
        &["stat", "k"],
        &["ls"],
        &["put", "k", "-"],
        &["rm", "k"],
        &["backup", "-"],
        &["bucket", "ls"],
    ];
    for arguments in commands {
        let began = Instant::now();
        let mut command = command(arguments);
        command.args(["--server", &format!("http://{address}"), "--timeout", "700ms"]);
        let done = run_with(command, b"value");
        let took = began.elapsed();
        assert_eq!(done.code, 1, "{arguments:?}: {}", done.stderr);
        assert!(
            took > Duration::from_millis(600) && took < Duration::from_secs(20),
            "{arguments:?}: {took:?}"
        );
        for word in [&address[..], "0.7 s", "--timeout"] {
            assert!(done.stderr.contains(word), "{arguments:?}: no {word} in {}", done.stderr);
        }
    }
    for wrong in ["0s", "soon", "2d", "-1s"] {
        assert_eq!(run(&["ls", &format!("--timeout={wrong}")]).code, 2, "{wrong}");
    }
}

/// A server that stalls in the middle of a backup.
#[test]
fn unresponsive_server_is_detected() {
    let server = Server::start();
    server.put("k", b"value", &[]);
    signal(&server.child, Signal::STOP);
    let began = Instant::now();
    for arguments in [&["get", "k"][..], &["ls"], &["backup", "-"]] {
        let mut command = server.command(arguments);
        command.args(["--timeout", "700ms"]);
        let done = run_with(command, b"");
        assert_eq!(done.code, 1, "{}", done.stderr);
        assert!(done.stderr.contains("--timeout"), "{}", done.stderr);
    }
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    signal(&server.child, Signal::CONT);
    assert_eq!(server.ok(&["get", "k"]), b"value");
}

/// Passes bytes on slowly: `bytes` every 50 ms in each direction.
fn slow_link(to: SocketAddr, bytes: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pass = move |mut from: TcpStream, mut to: TcpStream| {
        let mut block = vec![0; bytes];
        while let Ok(count @ 1..) = from.read(&mut block) {
            if to.write_all(&block[..count]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(to).unwrap();
            let (other_client, other_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pass(client, server));
            std::thread::spawn(move || pass(other_server, other_client));
        }
    });
    format!("http://{address}")
}

/// A message of 1 MiB takes longer than the timeout, and is not cut: bytes move.
#[test]
fn slow_link_does_not_time_out() {
    let folder = tempfile::tempdir().unwrap();
    let server = Frontends::start(Frontends::command(&folder.path().join("data"), "256M"));
    let value: Vec<u8> = (0..5 << 20).map(|at: u32| (at / 7) as u8).collect();
    let mut put = command(&["put", "k", "-", "--server", &server.grpc]);
    put.args(["--content-type", "a/b"]);
    assert_eq!(run_with(put, &value).code, 0);
    // 1.25 MiB a second.
    let slow = slow_link(server.grpc_address(), 64 << 10);
    let options = ["--server", &slow, "--timeout", "700ms"];
    let began = Instant::now();
    let got = run(&[&["get", "k"][..], &options].concat());
    assert_eq!(got.code, 0, "{}", got.stderr);
    assert!(got.stdout == value && began.elapsed() > Duration::from_secs(2), "{:?}", began.elapsed());
    let mut put = command(&["put", "slowly", "-"]);
    put.args(options);
    let done = run_with(put, &value[..3 << 20]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    server.stop();
}

#[test]
fn plaintext_client_learns_server_needs_tls() {
    let folder = tempfile::tempdir().unwrap();
    RootCertificate::new().server().write_to(folder.path()).unwrap();
    let (cert_path, key_path) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let mut command = Frontends::command(&folder.path().join("data"), "64M");
    command.arg("--tls-cert").arg(&cert_path).arg("--tls-key").arg(&key_path);
    let server = Frontends::start(command);
    for arguments in [&["ls"][..], &["get", "k"], &["put", "k", "-"]] {
        let plain = format!("http://{}", server.grpc_address());
        let mut plainly = harness::command(arguments);
        plainly.args(["--server", &plain, "--timeout", "10s"]);
        let done = run_with(plainly, b"v");
        assert_eq!(done.code, 1);
        let told = done.stderr.contains("it speaks TLS: try https://") && !done.stderr.contains("not known");
        assert!(told, "{arguments:?}: {}", done.stderr);
    }
    server.stop();
}
