//! Incidents 2 to 5 of `docs/operate/archive.md`, each as a drill, and the rules of an archive's owner, and its options.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use shoal_testkit::wait::eventually;

use super::{Archived, Drill, objects};
use crate::harness::run;

/// A value that names its key and its number, of a length in one of the store's places.
fn value(key: usize, number: u64) -> Vec<u8> {
    let bytes = [16, 200, 3_000, 20_000, 200_000][key % 5];
    let mut value = format!("{key} {number} ").into_bytes();
    value.resize(bytes, b'.');
    value
}

/// Incident 2: the bucket is away while clients write, over a restart too. Nothing is refused, and it drains by itself.
#[test]
fn archive_waits_for_its_bucket() {
    let drill = Drill::new();
    let (data, away) = (drill.path("data"), drill.path("away"));
    let server = Archived::start(&data, &drill.url());
    server.has_base();
    let mut redis = server.client();
    assert!(redis.set("before", b"1") && redis.is_archived(20_000));
    fs::rename(drill.bucket(), &away).unwrap();
    // The log of this store has 16 MiB at most: it is full without the spool.
    for number in 0..400 {
        assert!(redis.set(&format!("during{number}"), &[7; 100_000]));
    }
    assert!(!redis.is_archived(100));
    let spool = drill.path("data.spool");
    eventually("the spool", || fs::metadata(&spool).is_ok_and(|meta| meta.len() > 0));
    assert!(server.is_in_state("waiting") && server.metric("shoal_archive_lag_seconds") > 0.0);
    drop(redis);
    server.kill();
    let server = Archived::start(&data, &drill.url());
    let mut redis = server.client();
    assert!(redis.set("after", b"2"));
    assert!(!redis.is_archived(100));
    fs::rename(&away, drill.bucket()).unwrap();
    eventually("the archive drains", || redis.is_archived(1_000));
    eventually("the spool is empty", || fs::metadata(&spool).map_or(0, |meta| meta.len()) == 0);
    assert_eq!(server.metric("shoal_archive_gaps_total"), 0.0);
    server.kill();
    let found = objects(&drill.restore("new", &[]));
    assert_eq!((found.len(), &found["after"]), (402, &b"2".to_vec()));
}

/// Incident 2 with a small spool: it is dropped, the state is `gap` while the bucket is still away, and a base ends it. Nothing is refused.
#[test]
fn archive_has_a_gap_when_the_spool_is_full() {
    let drill = Drill::new();
    let away = drill.path("away");
    let server = Archived::with(&drill.path("data"), &drill.url(), &["--archive-spool", "4M"]);
    server.has_base();
    let first_base = server.metric("shoal_archive_base_last_timestamp_seconds");
    let mut redis = server.client();
    fs::rename(drill.bucket(), &away).unwrap();
    for number in 0..400 {
        assert!(redis.set(&format!("during{number}"), &[7; 100_000]));
    }
    eventually("the gap", || server.is_in_state("gap"));
    assert_eq!(server.metric("shoal_archive_gaps_total"), 1.0);
    assert!(redis.set("after", b"2"));
    fs::rename(&away, drill.bucket()).unwrap();
    eventually("the archive follows", || redis.is_archived(1_000) && server.is_in_state("shipping"));
    assert!(server.metric("shoal_archive_base_last_timestamp_seconds") > first_base);
    assert_eq!(server.metric("shoal_archive_gaps_total"), 1.0);
    server.kill();
    assert_eq!(objects(&drill.restore("new", &[])).len(), 401);
}

/// Incident 3: a copy of the data file is served with the same archive. The first server stops archiving, reports it, and continues to serve.
#[test]
fn archive_has_one_owner() {
    let drill = Drill::new();
    let (data, copy) = (drill.path("data"), drill.path("copy"));
    let first = Archived::start(&data, &drill.url());
    first.has_base();
    let mut of_first = first.client();
    assert!(of_first.set("one", b"1") && of_first.is_archived(20_000));
    fs::copy(&data, &copy).unwrap();
    let second = Archived::start(&copy, &drill.url());
    second.has_base();
    let mut of_second = second.client();
    assert!(of_second.set("two", b"2") && of_second.is_archived(20_000));
    assert!(of_first.set("three", b"3"), "the first one serves on");
    assert!(!of_first.is_archived(500));
    eventually("the first one is fenced", || first.is_in_state("fenced"));
    drop((of_first, of_second));
    first.kill();
    second.kill();
    assert_eq!(drill.restored_keys(), ["one", "two"], "nothing is merged");
}

/// A copy of the data file that is served without its bucket, writes as much as the first server, and starts again with it, takes nothing
/// over: the archive would have writes of both.
#[test]
fn archive_refuses_a_copy_that_wrote_without_it() {
    let drill = Drill::new();
    let (data, copy, away) = (drill.path("data"), drill.path("copy"), drill.path("away"));
    let first = Archived::start(&data, &drill.url());
    first.has_base();
    let mut of_first = first.client();
    assert!(of_first.set("both", b"1") && of_first.is_archived(20_000));
    fs::copy(&data, &copy).unwrap();
    assert!(of_first.set("first", b"1") && of_first.is_archived(20_000));
    drop(of_first);
    first.kill();
    fs::rename(drill.bucket(), &away).unwrap();
    let second = Archived::start(&copy, &drill.url());
    let mut of_second = second.client();
    assert!((0..5).all(|number| of_second.set(&format!("second{number}"), b"2")));
    drop(of_second);
    second.kill();
    fs::rename(&away, drill.bucket()).unwrap();
    let second = Archived::start(&copy, &drill.url());
    eventually("the copy is refused", || second.is_in_state("refused"));
    second.kill();
    assert_eq!(drill.restored_keys(), ["both", "first"], "nothing of the copy");
}

/// Incident 4: a program deleted everything. All of it comes back as of the second before, bit for bit.
#[test]
fn archive_restores_a_moment() {
    let drill = Drill::new();
    let server = Archived::start(&drill.path("data"), &drill.url());
    let mut redis = server.client();
    let all: BTreeMap<String, Vec<u8>> = (0..500).map(|key| (format!("key{key}"), value(key, 1))).collect();
    assert!(all.iter().all(|(key, value)| redis.set(key, value)));
    server.has_base();
    assert!(all.iter().all(|(key, value)| redis.set(key, value)) && redis.is_archived(20_000));
    thread::sleep(Duration::from_millis(1_100));
    let before = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(redis.line(&[b"FLUSHALL"]).as_deref(), Some("+OK"));
    assert!(redis.set("new", b"world") && redis.is_archived(20_000));
    server.kill();
    assert!(objects(&drill.restore("then", &["--at", &before])) == all, "{before}");
    let now = objects(&drill.restore("now", &[]));
    assert_eq!(now.into_iter().collect::<Vec<_>>(), [("new".to_owned(), b"world".to_vec())]);
}

/// Incident 5: somebody deleted a segment. It is named, nothing is skipped in silence, and the moments before it can be had.
#[test]
fn archive_names_a_lost_segment() {
    let drill = Drill::new();
    let data = drill.path("data");
    let server = Archived::start(&data, &drill.url());
    server.has_base();
    let mut redis = server.client();
    for number in 0..12 {
        assert!(redis.set(&format!("key{number}"), b"1") && redis.is_archived(20_000));
    }
    server.kill();
    assert_eq!(drill.archive(&["verify"]).code, 0);
    let mut segments: Vec<PathBuf> = Vec::new();
    for log in fs::read_dir(drill.bucket().join("log")).unwrap() {
        segments.extend(fs::read_dir(log.unwrap().path()).unwrap().map(|entry| entry.unwrap().path()));
    }
    segments.sort();
    // Among the last eight, a slot that is missing would be the end of a log that was killed.
    let lost = &segments[2];
    fs::remove_file(lost).unwrap();
    // A restart seals the log: from then on a slot that is missing is damage.
    Archived::start(&data, &drill.url()).kill();
    let name = lost.file_name().unwrap().to_str().unwrap();
    let verified = drill.archive(&["verify"]);
    let said = format!("{}{}", verified.text(), verified.stderr);
    assert!(verified.code == 1 && said.contains(name), "{} {said}", verified.code);
    let done = drill.try_restore("new", &[]);
    assert!(done.code == 1 && done.stderr.contains(name), "{} {}", done.code, done.stderr);
    assert!(!drill.path("new").exists(), "no store is made of half of the writes");
}

/// A restored store is another one: the prefix of the first one refuses it.
#[test]
fn archive_refuses_another_store() {
    let drill = Drill::new();
    let server = Archived::start(&drill.path("data"), &drill.url());
    server.has_base();
    server.kill();
    let new = drill.restore("new", &[]);
    let server = Archived::start(&new, &drill.url());
    eventually("the prefix is refused", || server.is_in_state("refused"));
    assert!(server.client().set("a", b"1"), "it serves all the same");
    server.kill();
}

/// An idle server makes no request, also with an object that expires.
#[test]
fn archive_is_silent_while_idle() {
    let drill = Drill::new();
    let server = Archived::start(&drill.path("data"), &drill.url());
    server.has_base();
    let mut redis = server.client();
    assert_eq!(redis.line(&[b"SET", b"a", b"1", b"EX", b"3600"]).as_deref(), Some("+OK"));
    assert!(redis.is_archived(20_000));
    let requests = || {
        ["put", "get", "delete", "list"]
            .map(|it| server.metric(&format!("shoal_archive_requests_total{{operation=\"{it}\"}}")))
    };
    // A seal and an apply of the store follow the write.
    thread::sleep(Duration::from_secs(5));
    let before = requests();
    thread::sleep(Duration::from_secs(15));
    assert_eq!(before, requests());
    server.kill();
}

#[test]
fn options_of_the_archive_are_checked() {
    for (options, word) in [
        (&["--archive", "http://x/y"][..], "--archive"),
        (&["--archive-puts", "5"], "--archive-puts needs --archive"),
        (&["--archive", "file:///x", "--archive-interval", "2h"], "--archive-interval"),
        (&["--archive", "file:///x", "--archive-base-rate", "0"], "--archive-base-rate"),
        (&["--archive", "file:///x", "--archive-retention", "off"], "--archive-retention"),
    ] {
        let done = run(&[&["serve", "--data", "/nonexistent/data"], options].concat());
        assert!(done.code == 2 && done.stderr.contains(word), "{options:?}: {} {}", done.code, done.stderr);
    }
}
