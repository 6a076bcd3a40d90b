//! The keys of a server: made, shown to it by both protocols, replaced and removed while it runs.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use shoal_testkit::wait::eventually;

use crate::harness::{Done, Process, command, run, text_of};

/// A key, as `create` and `rotate` print it.
pub(crate) fn key_of(done: &Done) -> (String, String) {
    assert_eq!(done.code, 0, "{}", done.stderr);
    let key = done.json();
    (key["id"].as_str().unwrap().to_owned(), key["secret"].as_str().unwrap().to_owned())
}

fn secret_file(path: &Path, text: &str) -> String {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    text_of(path).to_owned()
}

/// All answers of the Redis frontend to these lines.
pub(crate) fn resp(port: &str, lines: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.write_all(format!("{lines}\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers
}

#[test]
fn keys_let_clients_in_while_the_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shoal.keys");
    let on_file = |words: &[&str]| run(&[&["key"], words, &["--key-file", text_of(&file)]].concat());
    let (id, secret) = key_of(&on_file(&["create", "--allow", "read,list,write default/in/*", "--json"]));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let mut serve = command(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--size",
        "256M",
        "--cache",
        "16M",
        "--resp",
        "127.0.0.1:0",
    ]);
    serve.args(["--data", text_of(&folder.path().join("data")), "--key-file", text_of(&file)]);
    let mut server = Process::start({
        serve.stderr(Stdio::piped());
        serve
    });
    let (grpc, redis) = (server.says("gRPC  http://127.0.0.1:"), server.says("Redis redis://127.0.0.1:"));
    let url = format!("http://127.0.0.1:{grpc}");
    let shown = secret_file(&folder.path().join("shown"), &format!("{id}.{secret}\n"));
    let by = |shown: &str, words: &[&str]| run(&[words, &["--server", &url, "--token-file", shown]].concat());

    assert_eq!(run(&["ls", "--server", &url]).code, 1, "without a key");
    let put = |shown: &str, key: &str| by(shown, &["put", key, "/dev/null"]);
    assert_eq!(put(&shown, "in/a").code, 0);
    let denied = put(&shown, "out/a");
    assert!(denied.code == 1 && denied.stderr.contains("no grant to write"), "{}", denied.stderr);
    assert!(!denied.stderr.contains(&secret), "{}", denied.stderr);
    assert_eq!(by(&shown, &["rm", "in/a"]).code, 1);
    assert_eq!(
        resp(&redis, &format!("AUTH {id} {secret}\r\nGET in/a\r\nGET out/a\r\nDEL in/a")),
        format!(
            "+OK\r\n$0\r\n\r\n-NOPERM No permissions to access a key\r\n-NOPERM User {id} has no permissions to run the 'del' command\r\n+OK\r\n"
        )
    );
    assert!(resp(&redis, "GET in/a").starts_with("-NOAUTH"));

    // A broken file changes nothing.
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}\n[[key]]\nid = 'x'\nallow = []\n")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert_eq!(put(&shown, "in/a").code, 0);
    assert_eq!(on_file(&["list"]).code, 0, "it is TOML, and has the key");
    fs::write(&file, text).unwrap();

    // After a rotation both secrets are accepted, and without an overlap only the new one.
    let (_, second) = key_of(&on_file(&["rotate", &id, "--json"]));
    let shown_second = secret_file(&folder.path().join("second"), &format!("{id}.{second}\n"));
    eventually("the file is read again", || put(&shown_second, "in/a").code == 0);
    assert_eq!(put(&shown, "in/a").code, 0);
    let (_, third) = key_of(&on_file(&["rotate", &id, "--overlap", "0s", "--json"]));
    eventually("the file is read again", || put(&shown_second, "in/a").code == 1);
    assert!(resp(&redis, &format!("AUTH {id} {third}")).starts_with("+OK"));
    assert_eq!(on_file(&["rm", &id]).code, 0);
    eventually("the file is read again", || {
        resp(&redis, &format!("AUTH {id} {third}")).starts_with("-WRONGPASS")
    });
    let log = server.stop_and_read();
    for secret in [&secret, &second, &third] {
        assert!(!log.contains(secret.as_str()), "{log}");
    }
    assert!(log.contains("the credentials stay as they are") && log.contains("key 2"), "{log}");
}

#[test]
fn the_list_shows_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let on_file = |words: &[&str]| run(&[&["key"], words, &["--key-file", text_of(&file)]].concat());
    let create = [
        "create",
        "--name",
        "a name",
        "--allow",
        "read a",
        "--allow",
        "list b*",
        "--expires",
        "90d",
        "--json",
    ];
    let (id, secret) = key_of(&on_file(&create));
    let (_, rotated) = key_of(&on_file(&["rotate", &id, "--json"]));
    for words in [&["list"][..], &["list", "--json"]] {
        let done = on_file(words);
        assert!(done.text().contains(&id) && done.text().contains("a name"), "{}", done.text());
        assert!(!done.text().contains(&secret) && !done.text().contains(&rotated), "{}", done.text());
    }
    let listed = &on_file(&["list", "--json"]).json_lines()[0];
    assert_eq!((&listed["allow"][1], &listed["expired"]), (&"list b*".into(), &false.into()));
    assert!(listed["old_until"].is_string() && listed["expires"].is_string());
}

#[test]
fn a_wrong_key_file_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let on_file = |words: &[&str]| run(&[&["key"], words, &["--key-file", text_of(&file)]].concat());
    assert_eq!(on_file(&["list"]).code, 2, "there is no file");
    for wrong in ["reads a", "read A", "read .shoal", "admin a", "read"] {
        let done = on_file(&["create", "--allow", wrong]);
        assert_eq!((done.code, file.exists()), (2, false), "{wrong}: {}", done.stderr);
    }
    key_of(&on_file(&["create", "--allow", "all *", "--json"]));
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(on_file(&["rm", "nobody"]).code, 3);
    assert_eq!(on_file(&["rotate", "nobody"]).code, 3);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    for words in [&["list"][..], &["create", "--allow", "all *"]] {
        let done = on_file(words);
        assert!(done.code == 2 && done.stderr.contains("chmod 600"), "{}", done.stderr);
    }
    let done = run(&["serve", "--listen", "127.0.0.1:0", "--key-file", text_of(&file)]);
    assert!(done.code == 2 && done.stderr.contains("chmod 600"), "{}", done.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["keys"], "no other file is left");
}

#[test]
fn commands_at_the_same_time_lose_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let done =
                    run(&["key", "create", "--allow", "read a", "--json", "--key-file", text_of(&file)]);
                key_of(&done);
            });
        }
    });
    assert_eq!(run(&["key", "list", "--json", "--key-file", text_of(&file)]).json_lines().len(), 8);
}
