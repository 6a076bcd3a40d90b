//! S3 of a server: its keys, and its address.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use shoal_base::{Clock, SystemClock};
use shoal_s3::time::basic_of;
use shoal_testkit::wait::eventually;

use crate::credentials::{key_of, resp};
use crate::harness::{Process, command, run, text_of};

/// The code of the refusal of a request that has no signature, or a wrong one of this key.
fn code_of(address: &str, id: Option<&str>) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut head = "GET /shoal-bench/k HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".to_owned();
    if let Some(id) = id {
        let date = basic_of(SystemClock::default().wall_ns() / 1_000_000_000);
        let (day, signature) = (&date[..8], "0".repeat(64));
        head += &format!(
            "x-amz-date: {date}\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\nauthorization: AWS4-HMAC-SHA256 \
             Credential={id}/{day}/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature={signature}\r\n"
        );
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    answer.split_once("<Code>").unwrap().1.split_once('<').unwrap().0.to_owned()
}

#[test]
fn s3_is_served_to_holders_of_keys() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shoal.keys");
    let on_file = |words: &[&str]| run(&[&["key"], words, &["--key-file", text_of(&file)]].concat());
    let (id, secret) = key_of(&on_file(&["create", "--allow", "all *", "--json"]));
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
    serve.args(["--resp", "off", "--s3", "127.0.0.1:0", "--s3-region", "here"]);
    serve.args(["--data", text_of(&folder.path().join("data")), "--key-file", text_of(&file)]);
    let audit = folder.path().join("audit");
    serve.args(["--audit-log", text_of(&audit)]);
    let mut server = Process::start(serve);
    server.says("gRPC  http://");
    let address = format!("127.0.0.1:{}", server.says("S3    http://127.0.0.1:"));
    assert_eq!(code_of(&address, None), "NoSuchBucket");
    assert_eq!(code_of(&address, Some(&id)), "AuthorizationHeaderMalformed", "of another region");
    let measured = run(&[
        "bench",
        "s3",
        "--endpoint",
        &format!("http://{address}"),
        "--region",
        "here",
        "--access-key-id",
        &id,
        "--secret-access-key",
        &secret,
        "--seconds",
        "0.01",
        "--objects",
        "20",
        "--listed",
        "20",
        "--connections",
        "2",
        "--keep",
        "--json",
    ]);
    assert_eq!(measured.code, 0, "{}", measured.stderr);
    for case in ["put-4k", "get-64k", "list-folders"] {
        assert!(measured.text().contains(&format!("\"case\":\"{case}\"")), "{}", measured.text());
    }
    assert_eq!(code_of(&address, None), "AccessDenied", "of the bucket that the benchmark made");
    server.stop();
    let audit = fs::read_to_string(&audit).unwrap();
    for result in ["denied", "invalid"] {
        let request = r#""proto":"s3","ip":"127.0.0.1","op":"GetObject","bucket":"shoal-bench","key":"k""#;
        assert!(audit.contains(&format!("{request},\"result\":\"{result}\"")), "{audit}");
    }

    let endpoint = format!("http://{address}");
    let environment = on_file(&["env", "--endpoint", &endpoint, "--region", "here"]);
    let printed = environment.text();
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", &*id),
        ("AWS_SECRET_ACCESS_KEY", &secret),
        ("AWS_ENDPOINT_URL", &endpoint),
        ("AWS_REGION", "here"),
    ] {
        assert!(printed.contains(&format!("export {name}='{value}'\n")), "{printed}");
    }
    assert_eq!(on_file(&["env", "nobody"]).code, 3);
    assert_eq!(run(&["serve", "--s3", "127.0.0.1:0", "--s3-region", "a b"]).code, 2);
    assert_eq!(run(&["serve", "--s3", "127.0.0.1:0", "--s3-upload-life", "0s"]).code, 2);
    let both = ["--s3-domain", "s3.a,web.a", "--s3-website-domain", "Web.A"];
    assert_eq!(run(&[&["serve", "--s3", "127.0.0.1:0"], &both[..]].concat()).code, 2);
}

/// Only S3 asks for the key that the first start makes.
#[test]
fn a_first_start_makes_a_key_for_s3_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shoal.keys");
    let start = || {
        let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
        serve.args(["--resp", "127.0.0.1:0", "--s3", "127.0.0.1:0"]);
        serve.args(["--data", text_of(&folder.path().join("data"))]).stderr(Stdio::piped());
        let mut server = Process::start(serve);
        let [grpc, redis, s3] =
            ["gRPC  http://", "Redis redis://", "S3    http://"].map(|start| server.says(start));
        (server, grpc, redis.rsplit(':').next().unwrap().to_owned(), s3)
    };
    let (mut server, grpc, redis, s3) = start();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let listed = run(&["key", "list", "--json", "--key-file", text_of(&file)]).json();
    assert_eq!(listed["allow"][0], "all *");
    let id = listed["id"].as_str().unwrap();
    assert_eq!(code_of(&s3, Some(id)), "SignatureDoesNotMatch", "the key is known");
    assert_eq!(code_of(&s3, Some("SHKAAAAAAAAAAAAAAAAA")), "InvalidAccessKeyId");
    assert_eq!(run(&["ls", "--server", &format!("http://{grpc}")]).code, 0, "gRPC asks for none");
    assert!(resp(&redis, "PING").starts_with("+PONG"), "Redis asks for none");
    let log = server.stop_and_read();
    let shown = format!("eval \"$(shoal key env --key-file {} --endpoint http://{s3})\"", file.display());
    assert!(log.contains(&shown), "{log}");
    let secret = fs::read_to_string(&file).unwrap();
    let secret = secret.split_once("secret = \"").unwrap().1.split_once('"').unwrap().0;
    assert!(!log.contains(secret), "{log}");

    // The next start has the same key, and a new one counts at once.
    let (mut server, _, _, s3) = start();
    assert_eq!(code_of(&s3, Some(id)), "SignatureDoesNotMatch");
    let (other, _) =
        key_of(&run(&["key", "create", "--allow", "read bkt", "--json", "--key-file", text_of(&file)]));
    eventually("the file is read again", || code_of(&s3, Some(&other)) == "SignatureDoesNotMatch");
    assert!(!server.stop_and_read().contains("has a new key"));
}

#[test]
fn a_default_port_that_is_taken_is_a_warning() {
    let mut held = None;
    // Another program of this machine may have it: then it is taken as well.
    if let Ok(listener) = TcpListener::bind("127.0.0.1:7413") {
        held = Some(listener);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
    serve
        .args(["--data", text_of(&folder.path().join("data"))])
        .env_remove("SHOAL_S3")
        .stderr(Stdio::piped());
    let mut server = Process::start(serve);
    server.says("gRPC  http://");
    let log = server.stop_and_read();
    assert!(log.contains("S3 is off: another program listens on 127.0.0.1:7413"), "{log}");
    assert!(!folder.path().join("shoal.keys").exists());
    drop(held);
}

/// A server with a token or a password has no door for another secret.
#[test]
fn servers_with_other_credentials_have_no_s3_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    fs::write(&password, "tide pool\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "256M", "--cache", "16M"]);
    serve.args(["--password-file", text_of(&password), "--resp", "127.0.0.1:0"]);
    serve
        .args(["--data", text_of(&folder.path().join("data"))])
        .env_remove("SHOAL_S3")
        .stderr(Stdio::piped());
    let mut server = Process::start(serve);
    server.says("gRPC  http://");
    server.says("Redis redis://");
    assert!(server.stop_and_read().contains("s3=\"off\""));
    assert!(!folder.path().join("shoal.keys").exists());
}
