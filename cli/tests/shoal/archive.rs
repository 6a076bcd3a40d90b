//! The archive, as its users have it: the five incidents of `docs/operate/archive.md`, each as a drill, and the kill of a server whose data
//! file is gone afterwards. The bucket is a folder; `.ci/archive-buckets` has others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use shoal_testkit::wait::eventually;
use tempfile::TempDir;

use crate::harness::{Done, Process, assert_clean, command, run, signal, text_of};
use crate::machine::disk_folder;

/// A server with an archive in a folder.
struct Archived {
    child: Process,
    resp: String,
    metrics: String,
}

impl Archived {
    fn start(data: &Path, archive: &str, options: &[&str]) -> Self {
        let mut serve = command(&["serve", "--size", "256M", "--cache", "16M", "--log", "warn", "--listen"]);
        serve.args(["127.0.0.1:0", "--resp", "127.0.0.1:0", "--s3", "off", "--console", "off"]);
        serve.args(["--metrics", "127.0.0.1:0", "--archive", archive, "--archive-interval", "100ms"]);
        serve.args(options).arg("--data").arg(data);
        let mut child = Process::start(serve);
        child.says("gRPC  ");
        let resp = child.says("Redis redis://");
        let metrics = child.says("Metrics http://").strip_suffix("/metrics").unwrap().to_owned();
        Self { child, resp, metrics }
    }

    /// The value of a metric.
    fn metric(&self, series: &str) -> f64 {
        let mut stream = TcpStream::connect(&self.metrics).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let value = answer.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(f64::NAN, |value| value.parse().unwrap())
    }

    fn is_in_state(&self, state: &str) -> bool {
        self.metric(&format!("shoal_archive_state{{state=\"{state}\"}}")) == 1.0
    }

    /// Waits until the archive follows, and has a base.
    fn has_base(&self) {
        eventually("a base", || {
            self.is_in_state("shipping") && self.metric("shoal_archive_base_last_timestamp_seconds") > 0.0
        });
    }

    fn client(&self) -> Redis {
        Redis::connect(&self.resp)
    }

    fn kill(mut self) {
        signal(&self.child, Signal::KILL);
        self.child.wait().unwrap();
    }
}

/// A client of the Redis protocol.
struct Redis(TcpStream);

impl Redis {
    fn connect(address: &str) -> Self {
        Self(TcpStream::connect(address).unwrap())
    }

    /// Sends a command and returns its answer of one line; `None` if the server is gone.
    fn line(&mut self, words: &[&[u8]]) -> Option<String> {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            command.extend_from_slice(word);
            command.extend_from_slice(b"\r\n");
        }
        self.0.write_all(&command).ok()?;
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte).ok()?;
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).ok()
    }

    fn set(&mut self, key: &str, value: &[u8]) -> bool {
        self.line(&[b"SET", key.as_bytes(), value]).as_deref() == Some("+OK")
    }

    /// Everything written so far is archived.
    fn is_archived(&mut self, ms: u32) -> bool {
        self.line(&[b"WAIT", b"1", ms.to_string().as_bytes()]).as_deref() == Some(":1")
    }

    /// The value of a key.
    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let head = self.line(&[b"GET", key.as_bytes()]).unwrap();
        let bytes: usize = head.strip_prefix('$').unwrap().parse().ok()?;
        let mut value = vec![0; bytes + 2];
        self.0.read_exact(&mut value).unwrap();
        value.truncate(bytes);
        Some(value)
    }
}

/// The folder of a drill: data files and the bucket, on a disk.
struct Drill(TempDir);

impl Drill {
    fn new() -> Self {
        let folder = disk_folder();
        fs::create_dir(folder.path().join("bucket")).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn bucket(&self) -> PathBuf {
        self.path("bucket")
    }

    fn url(&self) -> String {
        format!("file://{}", text_of(&self.bucket()))
    }

    fn archive(&self, words: &[&str]) -> Done {
        run(&[&["archive"], words, &["--archive", &self.url()]].concat())
    }

    /// A restore into `name`, which must work.
    fn restore(&self, name: &str, options: &[&str]) -> PathBuf {
        let done = self.try_restore(name, options);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let new = self.path(name);
        assert_clean(&new);
        new
    }

    fn try_restore(&self, name: &str, options: &[&str]) -> Done {
        let new = self.path(name);
        let words = ["restore", "--archive", &self.url(), "--data", text_of(&new), "--size", "256M"];
        run(&[&words[..], options].concat())
    }
}

/// The objects of a closed store of which `keys` are wanted.
fn objects(data: &Path) -> BTreeMap<String, Vec<u8>> {
    let listed = run(&["ls", "--data", text_of(data)]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    let mut serve = command(&[
        "serve",
        "--must-exist",
        "--listen",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
        "--log",
        "error",
    ]);
    serve.args(["--s3", "off", "--console", "off", "--metrics", "off", "--cache", "16M", "--data"]).arg(data);
    let mut child = Process::start(serve);
    child.says("gRPC  ");
    let mut redis = Redis::connect(&child.says("Redis redis://"));
    let keys: Vec<String> = listed.text().lines().map(str::to_owned).collect();
    let found = keys.into_iter().map(|key| (key.clone(), redis.get(&key).unwrap())).collect();
    child.stop();
    found
}

/// A value that names its key and its number, of a length in one of the store's places.
fn value(key: usize, number: u64) -> Vec<u8> {
    let bytes = [16, 200, 3_000, 20_000, 200_000][key % 5];
    let mut value = format!("{key} {number} ").into_bytes();
    value.resize(bytes, b'.');
    value
}

/// Incident 1, with the server killed in the middle of its writes: everything that WAIT confirmed is there, and of each key a value that
/// was sent, no older than the confirmed one.
#[test]
fn archive_survives_the_machine() {
    let rounds = std::env::var("ARCHIVE_KILLS").map_or(2, |text| text.parse().unwrap());
    for round in 0..rounds {
        let drill = Drill::new();
        let data = drill.path("data");
        let server = Archived::start(&data, &drill.url(), &[]);
        let stopped = AtomicBool::new(false);
        let mut confirmed = BTreeMap::new();
        let mut sent = Vec::new();
        thread::scope(|scope| {
            let writers: Vec<_> = (0..4_usize)
                .map(|writer| {
                    let (mut redis, stopped) = (server.client(), &stopped);
                    scope.spawn(move || {
                        let (mut confirmed, mut sent) = (BTreeMap::new(), BTreeMap::new());
                        for number in 0_u64.. {
                            if stopped.load(Ordering::Relaxed) {
                                break;
                            }
                            let key = writer + 4 * (number as usize % 40);
                            sent.insert(key, number);
                            if !redis.set(&format!("key{key}"), &value(key, number)) {
                                break;
                            }
                            if number % 50 == 49 && redis.is_archived(20_000) {
                                confirmed = sent.clone();
                            }
                        }
                        (confirmed, sent)
                    })
                })
                .collect();
            // The base is uploaded meanwhile.
            thread::sleep(Duration::from_millis(1_500 + 400 * round));
            server.has_base();
            signal(&server.child, Signal::KILL);
            stopped.store(true, Ordering::Relaxed);
            for writer in writers {
                let (of_confirmed, of_sent) = writer.join().unwrap();
                confirmed.extend(of_confirmed);
                sent.extend(of_sent);
            }
        });
        server.kill();
        fs::remove_file(&data).unwrap();
        assert!(confirmed.len() > 20, "{} keys were confirmed", confirmed.len());
        let sent: BTreeMap<usize, u64> = sent.into_iter().collect();
        let found = objects(&drill.restore("new", &[]));
        for (key, least) in &confirmed {
            let bytes = found.get(&format!("key{key}")).unwrap_or_else(|| panic!("key{key} is lost"));
            let words: Vec<&[u8]> = bytes.split(|&byte| byte == b' ').collect();
            let number: u64 = std::str::from_utf8(words[1]).unwrap().parse().unwrap();
            assert_eq!(*bytes, value(*key, number), "key{key}");
            assert!((*least..=sent[key]).contains(&number), "key{key}: {number} of {least} to {}", sent[key]);
        }
        let status = drill.archive(&["verify", "--full"]);
        assert_eq!(status.code, 0, "{}{}", status.text(), status.stderr);
    }
}

/// Incident 2: the bucket is away while clients write, over a restart too. Nothing is refused, and it drains by itself.
#[test]
fn archive_waits_for_its_bucket() {
    let drill = Drill::new();
    let (data, away) = (drill.path("data"), drill.path("away"));
    let server = Archived::start(&data, &drill.url(), &[]);
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
    let server = Archived::start(&data, &drill.url(), &[]);
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

/// Incident 3: a copy of the data file is served with the same archive. The first server stops archiving, reports it, and continues to serve.
#[test]
fn archive_has_one_owner() {
    let drill = Drill::new();
    let (data, copy) = (drill.path("data"), drill.path("copy"));
    let first = Archived::start(&data, &drill.url(), &[]);
    first.has_base();
    let mut of_first = first.client();
    assert!(of_first.set("one", b"1") && of_first.is_archived(20_000));
    fs::copy(&data, &copy).unwrap();
    let second = Archived::start(&copy, &drill.url(), &[]);
    second.has_base();
    let mut of_second = second.client();
    assert!(of_second.set("two", b"2") && of_second.is_archived(20_000));
    assert!(of_first.set("three", b"3"), "the first one serves on");
    assert!(!of_first.is_archived(500));
    eventually("the first one is fenced", || first.is_in_state("fenced"));
    drop((of_first, of_second));
    first.kill();
    second.kill();
    let found = objects(&drill.restore("new", &[]));
    let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["one", "two"]), "nothing is merged");
}

/// Incident 4: a program deleted everything. All of it comes back as of the second before, bit for bit.
#[test]
fn archive_restores_a_moment() {
    let drill = Drill::new();
    let server = Archived::start(&drill.path("data"), &drill.url(), &[]);
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
    let server = Archived::start(&data, &drill.url(), &[]);
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
    Archived::start(&data, &drill.url(), &[]).kill();
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
    let server = Archived::start(&drill.path("data"), &drill.url(), &[]);
    server.has_base();
    server.kill();
    let new = drill.restore("new", &[]);
    let server = Archived::start(&new, &drill.url(), &[]);
    eventually("the prefix is refused", || server.is_in_state("refused"));
    assert!(server.client().set("a", b"1"), "it serves all the same");
    server.kill();
}

/// An idle server makes no request, also with an object that expires.
#[test]
fn archive_is_silent_while_idle() {
    let drill = Drill::new();
    let server = Archived::start(&drill.path("data"), &drill.url(), &[]);
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
