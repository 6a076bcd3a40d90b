//! Redis clients and all others see one bucket, a store that has keys in bucket `redis` keeps it, and errors name the bucket.

use std::path::Path;
use std::process::Stdio;

use crate::damage::{FILES, damaged_at};
use crate::harness::{Done, Frontends, Server, command, run, run_with, text_of};

fn start(data: &Path, options: &[&str]) -> Frontends {
    let mut serve = command(&["serve", "--size", "256M", "--cache", "16M", "--log", "info"]);
    serve.args(["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0"]).args(options);
    serve.arg("--data").arg(data).stderr(Stdio::piped());
    Frontends::start(serve)
}

/// Stops the server in order; its log.
fn stop(mut server: Frontends) -> String {
    server.child.stop_and_read()
}

fn on(server: &Frontends, arguments: &[&str], input: &[u8]) -> Done {
    let mut command = command(arguments);
    command.env("SHOAL_SERVER", server.grpc.trim());
    run_with(command, input)
}

fn ask<T: redis::FromRedisValue>(server: &Frontends, words: &[&str]) -> T {
    let mut connection =
        redis::Client::open(format!("redis://{}", server.resp)).unwrap().get_connection().unwrap();
    redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).unwrap()
}

/// Symptom: after `redis-cli set greeting` `shoal ls` printed nothing, and `shoal get greeting` found no object. Cause: each kind
/// of client had a separate bucket. Fix: one bucket for all.
#[test]
fn redis_clients_and_commands_see_the_same_objects() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder.path().join("data"), &[]);
    ask::<()>(&server, &["SET", "greeting", "hello"]);
    assert_eq!(on(&server, &["ls"], b"").text(), "greeting\n");
    assert_eq!(on(&server, &["get", "greeting"], b"").stdout, b"hello");
    assert_eq!(on(&server, &["put", "letter", "-"], b"dear").code, 0);
    assert_eq!(ask::<String>(&server, &["GET", "letter"]), "dear");
    let long = vec![0; (4 << 20) + 1];
    assert_eq!(on(&server, &["put", "long", "-"], &long).code, 0);
    let mut connection =
        redis::Client::open(format!("redis://{}", server.resp)).unwrap().get_connection().unwrap();
    let refused = redis::cmd("GET").arg("long").query::<Vec<u8>>(&mut connection).unwrap_err();
    assert!(refused.to_string().contains("4194304"), "{refused}");
    assert_eq!(ask::<u64>(&server, &["DBSIZE"]), 3);
    let info = ask::<String>(&server, &["INFO", "shoal"]);
    assert!(info.contains("shoal_bucket:default\r\n"), "{info}");
    let stat = on(&server, &["stat"], b"");
    assert!(stat.text().contains("on bucket \"default\""), "{}", stat.text());
    assert_eq!(on(&server, &["put", "other", "-", "--bucket", "films"], b"x").code, 0);
    ask::<()>(&server, &["FLUSHALL"]);
    assert!(on(&server, &["ls"], b"").stdout.is_empty(), "FLUSHALL is about the keys that Redis clients see");
    assert_eq!(on(&server, &["get", "other", "--bucket", "films"], b"").code, 0, "... and no others");
    let log = stop(server);
    assert!(log.contains("redis_bucket=\"default\""), "{log}");
}

#[test]
fn a_store_with_keys_in_bucket_redis_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = start(&data, &["--resp-bucket", "redis"]);
    ask::<()>(&server, &["SET", "greeting", "hello"]);
    stop(server);

    let server = start(&data, &[]);
    assert_eq!(ask::<String>(&server, &["GET", "greeting"]), "hello");
    assert_eq!(on(&server, &["put", "letter", "-"], b"dear").code, 0);
    let log = stop(server);
    for words in ["redis_bucket=\"redis\"", "--resp-bucket default", "INFO"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(!log.contains("WARN"), "{log}");

    // Both buckets have objects now: that deserves a warning.
    let log = stop(start(&data, &[]));
    assert!(log.contains("WARN") && log.contains("redis_bucket=\"redis\""), "{log}");

    let server = start(&data, &["--resp-bucket", "default"]);
    assert_eq!(ask::<Option<String>>(&server, &["GET", "greeting"]), None);
    assert_eq!(ask::<String>(&server, &["GET", "letter"]), "dear");
    assert_eq!(on(&server, &["rm", "greeting", "--bucket", "redis"], b"").code, 0);
    stop(server);

    let server = start(&data, &[]);
    assert_eq!(ask::<String>(&server, &["GET", "letter"]), "dear", "without objects the bucket is not there");
    stop(server);
}

/// Symptom: after damage of one leaf Redis clients saw an empty store. Cause: the leaf could have had keys of bucket `redis`, which
/// was taken for the one with objects. Fix: objects that can be read decide.
#[test]
fn damage_moves_redis_clients_to_no_other_bucket() {
    let mut first = Server::start();
    let data = damaged_at(&mut first, FILES - 1);
    let server = start(&data, &[]);
    assert_eq!(ask::<Option<String>>(&server, &["GET", "small/00700"]).as_deref(), Some("value-of-00700;"));
    let log = stop(server);
    assert!(log.contains("redis_bucket=\"default\""), "{log}");
}

#[test]
fn errors_name_the_bucket_and_the_one_that_has_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let store = |words: &[&str]| run(&[words, &["--data", text_of(&data)]].concat());
    assert_eq!(store(&["put", "film", "/dev/null", "--bucket", "films"]).code, 0);
    for words in [
        &["get", "film"][..],
        &["get", "film", "--range=-1"],
        &["stat", "film"],
        &["cp", "film", "x"],
        &["mv", "film", "x"],
    ] {
        let done = store(words);
        assert_eq!(done.code, 3, "{words:?}: {}", done.stderr);
        for part in ["\"film\" in bucket \"default\"", "there is no such object", "--bucket films"] {
            assert!(done.stderr.contains(part), "{words:?}: {part}: {}", done.stderr);
        }
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    let done = store(&["get", "nowhere"]);
    assert!(done.code == 3 && done.stderr.contains("shoal ls"), "{}", done.stderr);
}

#[test]
fn an_empty_bucket_names_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let store = |words: &[&str]| run(&[words, &["--data", text_of(&data)]].concat());
    assert_eq!(store(&["put", "film", "/dev/null", "--bucket", "films"]).code, 0);
    let out = folder.path().join("out");
    for words in [&["ls"][..], &["ls", "fi"], &["ls", "--json"], &["du"], &["export", text_of(&out)]] {
        let done = store(words);
        assert_eq!(done.code, 0, "{words:?}: {}", done.stderr);
        assert!(
            done.stderr.contains("bucket \"default\" has no objects") && done.stderr.contains("films"),
            "{words:?}: {}",
            done.stderr
        );
    }
    // No hint if the bucket has objects, or no other has any.
    for words in [&["ls", "none", "--bucket", "films"][..], &["ls", "--bucket", "films"]] {
        assert_eq!(store(words).stderr, "", "{words:?}");
    }
    assert_eq!(store(&["rm", "film", "--bucket", "films"]).code, 0);
    assert_eq!(store(&["ls"]).stderr, "");
}
