//! The server as a process: starting, stopping, and the lock of the data file.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use shoal_testkit::certificates::RootCertificate;
use shoal_testkit::skipped::skipped;
use shoal_testkit::wait::{HANGS_AFTER, eventually};

use crate::harness::{Frontends, Process, Server, command, run, run_with, serve, signal, started};

#[test]
fn stops_in_order_at_a_signal() {
    for stop in [Signal::TERM, Signal::INT] {
        let mut server = Server::start();
        assert_eq!(server.ok(&["ls"]), b"");
        signal(&server.child, stop);
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

/// Symptom: a server that was paused for 70 s closed well-behaved clients. Cause: it counted its own standstill as their silence.
/// Fix: a look at the clock that is late counts nothing. Here it is paused for longer than the 10 s in which a client must show the
/// password, or start to speak HTTP, to gRPC or to the metrics.
#[test]
fn a_paused_server_keeps_its_clients() {
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    fs::write(&password, "tide\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = Frontends::command(&folder.path().join("data"), "64M");
    command.arg("--password-file").arg(&password).args(["--metrics", "127.0.0.1:0"]);
    let mut server = Frontends::start(command);
    let metrics = server.child.says("Metrics http://").strip_suffix("/metrics").unwrap().to_owned();
    let connect = |address| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        stream
    };
    let (mut redis, mut grpc) = (connect(server.resp_address()), connect(server.grpc_address()));
    let mut watcher = connect(metrics.parse().unwrap());
    // It has taken both when it answers a later one.
    let mut late = connect(server.resp_address());
    let mut answer = [0; 5];
    late.write_all(b"AUTH tide\r\n").unwrap();
    late.read_exact(&mut answer).unwrap();
    assert_eq!(run(&["ls", "--server", &server.grpc]).code, 0);
    signal(&server.child, Signal::STOP);
    std::thread::sleep(Duration::from_millis(11_500));
    signal(&server.child, Signal::CONT);
    // Its timers fire first.
    std::thread::sleep(Duration::from_millis(500));
    redis.write_all(b"AUTH tide\r\n").unwrap();
    redis.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
    watcher.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = [0; 12];
    watcher.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    // The preface of HTTP/2 and empty settings, which are answered with the server's.
    grpc.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    grpc.read_exact(&mut answer).unwrap();
    assert_eq!(answer[3], 4, "a frame of settings: {answer:?}");
    server.stop();
}

/// Symptom: with `--listen localhost:7411` clients that tried ::1 were refused, or clients that tried 127.0.0.1. Cause: only the
/// first address of the name was taken. Fix: each frontend listens on all of them.
#[test]
fn every_address_of_a_name_is_listened_on() {
    let addresses: Vec<_> = "localhost:0".to_socket_addrs().unwrap().map(|address| address.ip()).collect();
    let has = |ip: &IpAddr| TcpListener::bind((*ip, 0)).is_ok();
    let mut wanted: Vec<IpAddr> = addresses.into_iter().filter(has).collect();
    wanted.dedup();
    if wanted.len() < 2 {
        skipped("localhost has one address here");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&["serve", "--size", "64M", "--cache", "16M", "--log", "error"]);
    command.args(["--listen", "localhost:0", "--resp", "localhost:0", "--metrics", "localhost:0"]);
    command.arg("--data").arg(folder.path().join("data"));
    let mut child = Process::start(command);
    for (frontend, end) in [("gRPC  http://", ""), ("Redis redis://", ""), ("Metrics http://", "/metrics")] {
        for ip in &wanted {
            let told = child.says(frontend);
            let address: SocketAddr = told.strip_suffix(end).unwrap().parse().unwrap();
            assert_eq!(address.ip(), *ip);
            TcpStream::connect(address).unwrap();
        }
    }
    child.stop();
}

/// A port that is free now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A standard output whose reader has gone.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Symptom: `shoal serve | true` ended with exit code 0, which no supervisor restarts, and `shoal serve > /dev/full` with 1. Cause: the
/// addresses could not be printed. Fix: that is a warning.
#[test]
fn server_survives_blocked_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let full = || -> Stdio { fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into() };
    let outputs: [(Stdio, bool); 3] = [(full(), false), (closed_pipe(), false), (closed_pipe(), true)];
    for (which, (output, is_space)) in outputs.into_iter().enumerate() {
        let (data, address) = (folder.path().join(which.to_string()), format!("127.0.0.1:{}", free_port()));
        let mut command = if is_space {
            let mut command = command(&["space", "serve", "--size", "64M"]);
            command.arg("--file").arg(&data);
            command
        } else {
            let mut command =
                command(&["serve", "--size", "64M", "--cache", "16M", "--resp", "off", "--metrics", "off"]);
            command.arg("--data").arg(&data);
            command
        };
        let log = folder.path().join("log");
        command.args(["--listen", &address]).stdout(output).stderr(fs::File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        eventually("the server answers", || {
            assert_eq!(child.try_wait().unwrap(), None, "{}", fs::read_to_string(&log).unwrap());
            TcpStream::connect(&address).is_ok()
        });
        let is_told = || fs::read_to_string(&log).unwrap().contains("cannot write the addresses");
        eventually("the warning", is_told);
        if !is_space {
            assert_eq!(run(&["ls", "--server", &format!("http://{address}")]).code, 0);
        }
        signal(&child, Signal::TERM);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

/// A backup of which a part is missing is no success; the log of a server may go nowhere.
#[test]
fn backup_to_closed_pipe_fails_and_closed_log_does_not_stop_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut command =
        command(&["serve", "--size", "64M", "--cache", "16M", "--listen", "127.0.0.1:0", "--log", "debug"]);
    command.arg("--data").arg(folder.path().join("data")).stderr(closed_pipe());
    let (mut child, url) = started(command);
    let mut put = crate::harness::command(&["put", "k", "-", "--server", &url]);
    put.stderr(closed_pipe());
    assert_eq!(run_with(put, &[7; 1 << 20]).code, 0);
    for arguments in [&["backup", "-"][..], &["export", "--tar", "-"]] {
        let mut command = crate::harness::command(arguments);
        let done = command.args(["--server", &url]).stdout(closed_pipe()).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("standard output") || said.contains("roken pipe"), "{arguments:?}: {said}");
    }
    child.stop();
}

/// Every line on standard error is an object, also if the server does not start.
#[test]
fn json_log_has_only_json_lines() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("shoal.toml");
    fs::write(&config, "log-format = 'json'\nslow = 'soon'\n").unwrap();
    let foreign = folder.path().join("letters");
    fs::write(&foreign, "Dear Ann,\n".repeat(1000)).unwrap();
    let (config, foreign) = (config.to_str().unwrap(), foreign.to_str().unwrap());
    let wrong: [(&[&str], i32); 5] = [
        (&["--announce", "nowhere", "--log-format", "json"], 2),
        (&["--config", config], 2),
        (&["--data", foreign, "--log-format=json", "--listen", "127.0.0.1:0", "--resp", "off"], 1),
        (&["--data", foreign, "--log-format=json", "--listen", "0.0.0.0:0"], 2),
        (&["--data", foreign, "--log-format=json", "--listen", "nonsense", "--log", "off"], 2),
    ];
    for (options, code) in wrong {
        let done = run(&[&["serve", "--metrics", "off"][..], options].concat());
        assert_eq!(done.code, code, "{options:?}: {}", done.stderr);
        assert!(!done.stderr.is_empty(), "{options:?}");
        for line in done.stderr.lines() {
            let object: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|_| panic!("{options:?}: {line}"));
            assert!(object["message"].is_string() && object["level"].is_string(), "{line}");
        }
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
fn foreign_files_are_not_modified() {
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
    fs::write(&config, "io = 'threads'\ntablets = 5\nmemtable = '8M'\ninsecure = true\n").unwrap();
    let (mut child, url) = serve(&data, &["--config", config.to_str().unwrap()]);
    assert_eq!(run(&["ls", "--server", &url]).code, 0);
    assert!(data.is_file());
    assert!(!folder.path().join("here.unfinished").exists());
    child.stop();
}

#[test]
fn redis_clients_are_served_beside_grpc() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--size", "256M", "--cache", "16M"];
    let mut serve = command(&["serve"]);
    serve.args(options).arg("--log").arg("warn").arg("--data").arg(folder.path().join("data"));
    let mut child = Process::start(serve);
    let (url, address) = (child.says("gRPC  "), child.says("Redis redis://"));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
    stream.write_all(b"SET greeting hello\r\nGET greeting\r\nQUIT\r\n").unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers, "+OK\r\n$5\r\nhello\r\n+OK\r\n");
    let done = run(&["get", "greeting", "--server", &url]);
    assert_eq!((done.code, done.text()), (0, "hello"), "{}", done.stderr);
    child.stop();
}

/// A root of certificates, and files with a certificate that it signed, in `folder`.
fn write_credentials(folder: &Path) {
    let root = RootCertificate::new();
    fs::write(folder.join("root.pem"), root.pem()).unwrap();
    root.sign("localhost", |_| {}).write_to(folder).unwrap();
}

fn write_tokens(path: &Path, tokens: &str) {
    fs::write(path, tokens).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// TLS and a token, and both replaced while the server runs: by a change of the files, and at SIGHUP.
#[test]
fn credentials_are_read_again() {
    const TOKEN: &str = "correct-horse-battery";
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    write_credentials(folder.path());
    write_tokens(Path::new(&path("tokens")), TOKEN);
    fs::copy(path("root.pem"), path("old.pem")).unwrap();
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
    serve.args(["--log", "warn", "--data", &path("data"), "--token-file", &path("tokens")]);
    serve.args(["--tls-cert", &path("cert.pem"), "--tls-key", &path("key.pem")]);
    let mut child = Process::start(serve);
    let port = child.says("gRPC  https://127.0.0.1:");
    let url = format!("https://localhost:{port}");
    let ls = |root: &str, tokens: &str| {
        run(&["stat", "--server", &url, "--ca-file", &path(root), "--token-file", &path(tokens)])
    };
    assert_eq!(ls("root.pem", "tokens").code, 0, "{}", ls("root.pem", "tokens").stderr);
    let nobody = run(&["stat", "--server", &url, "--ca-file", &path("root.pem")]);
    assert!(nobody.code == 1 && nobody.stderr.contains("credentials"), "{}", nobody.stderr);

    write_tokens(Path::new(&path("old-tokens")), TOKEN);
    write_tokens(Path::new(&path("tokens")), "incorrect-horse-battery\n");
    write_credentials(folder.path());
    signal(&child, Signal::HUP);
    eventually("the credentials are replaced", || ls("root.pem", "tokens").code == 0);
    assert_eq!(ls("root.pem", "old-tokens").code, 1);
    // Files that cannot be used change nothing.
    fs::write(path("key.pem"), "nonsense").unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(ls("root.pem", "tokens").code, 0);
    child.stop();
}

/// `systemctl reload` sends SIGHUP: a server without credentials, which had nothing to read again, ended by it.
#[test]
fn sighup_does_not_stop_server() {
    let mut server = Server::start();
    server.put("a", b"1", &[]);
    signal(&server.child, Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.ok(&["get", "a"]), b"1");
    signal(&server.child, Signal::TERM);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

/// An open server logged nothing, and clients that tried tokens or passwords left no trace.
#[test]
fn open_addresses_and_refused_callers_are_logged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    write_tokens(Path::new(&path("tokens")), "correct-horse-battery");
    write_tokens(Path::new(&path("others")), "incorrect-horse-battery");
    write_tokens(Path::new(&path("password")), "tide pool");
    let start = |more: &[&str]| {
        let mut serve = command(&["serve", "--insecure", "--listen", "0.0.0.0:0", "--resp", "0.0.0.0:0"]);
        serve.args(["--size", "256M", "--cache", "16M", "--data", &path("data")]).args(more);
        serve.stderr(Stdio::piped());
        let mut child = Process::start(serve);
        let mut port = |start| child.says(start).parse::<u16>().unwrap();
        let (grpc, resp) = (port("gRPC  http://0.0.0.0:"), port("Redis redis://0.0.0.0:"));
        (child, grpc, resp)
    };
    let (mut open, ..) = start(&[]);
    let open = open.stop_and_read();
    for frontend in ["gRPC listens on 0.0.0.0", "the Redis protocol listens on 0.0.0.0"] {
        assert!(
            open.lines().any(|line| line.contains(frontend) && line.contains("delete everything")),
            "{open}"
        );
    }

    let (mut asks, grpc, resp) =
        start(&["--token-file", &path("tokens"), "--password-file", &path("password")]);
    let url = format!("http://127.0.0.1:{grpc}");
    assert_eq!(run(&["stat", "--server", &url, "--token-file", &path("others")]).code, 1);
    let nobody = run(&["stat", "--server", &url]);
    assert!(nobody.code == 1 && nobody.stderr.contains("requires a token"), "{}", nobody.stderr);
    assert!(!nobody.stderr.contains("certificate"), "a way that is not configured: {}", nobody.stderr);
    let mut stream = TcpStream::connect(("127.0.0.1", resp)).unwrap();
    stream.write_all(b"AUTH tide\r\nQUIT\r\n").unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert!(answers.starts_with("-WRONGPASS"), "{answers}");
    let asks = asks.stop_and_read();
    for said in [
        "plain text",
        "the token or key of the call is unknown",
        "the call has no credentials",
        "a wrong user or password",
    ] {
        assert!(asks.contains(said), "{said}: {asks}");
    }
    assert!(!asks.contains("the Redis protocol listens") && !asks.contains("horse"), "{asks}");

    // A configured address is served or refused, never ignored.
    for resp in ["0.0.0.0:0", "127.0.0.1:0"] {
        let done = run(&[
            "serve",
            "--insecure",
            "--listen",
            "127.0.0.1:0",
            "--resp",
            resp,
            "--token-file",
            &path("tokens"),
        ]);
        assert!(done.code == 2 && done.stderr.contains("--password-file"), "{} {}", done.code, done.stderr);
    }
}

/// The certificate that one command of openssl makes, which is its own root (the README has it). Without openssl, a test of
/// the server has one that is made alike.
#[test]
fn a_certificate_of_openssl_works_with_itself_as_root() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]);
    openssl.args(["-keyout", &path("key.pem"), "-out", &path("cert.pem")]);
    openssl.args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]);
    let Ok(made) = openssl.stdin(Stdio::null()).output() else {
        return skipped("there is no openssl");
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    write_tokens(Path::new(&path("tokens")), "correct-horse-battery");
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
    serve.args(["--data", &path("data"), "--token-file", &path("tokens")]);
    serve.args(["--tls-cert", &path("cert.pem"), "--tls-key", &path("key.pem")]);
    let mut child = Process::start(serve);
    let port = child.says("gRPC  https://127.0.0.1:");
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{port}");
        let stat = ["stat", "--server", &url, "--token-file", &path("tokens")];
        let done = run(&[&stat[..], &["--ca-file", &path("cert.pem")]].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        let done = run(&stat);
        assert!(done.code == 1 && done.stderr.contains("--ca-file"), "{}", done.stderr);
    }
    child.stop();
}

#[test]
fn credentials_that_others_may_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    fs::write(&path, "correct-horse-battery").unwrap();
    for mode in [0o644, 0o640] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let path = path.to_str().unwrap();
        for option in ["--token-file", "--password-file"] {
            let done = run(&["serve", "--listen", "127.0.0.1:0", option, path]);
            assert!(done.code == 2 && done.stderr.contains("chmod 600"), "{} {}", done.code, done.stderr);
        }
        let done = run(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", path, "--tls-key", path]);
        assert!(done.code == 2 && done.stderr.contains("a private key"), "{} {}", done.code, done.stderr);
        // The file that a command shows to a server, too.
        let done = run(&["stat", "--server", "http://127.0.0.1:1", "--token-file", path]);
        assert!(done.code == 2 && done.stderr.contains("chmod 600"), "{} {}", done.code, done.stderr);
    }
    let done = run(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", "cert.pem"]);
    assert!(done.code == 2 && done.stderr.contains("--tls-key"), "{} {}", done.code, done.stderr);
}
