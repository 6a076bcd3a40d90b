//! The archive, as its users have it: [`incidents`] are the drills of `docs/operate/archive.md`, [`kills`] the kill of a server under load
//! whose data file is gone afterwards, with the [`writers`] and the [`history`] of their keys. The bucket is a folder;
//! `.ci/archive-buckets` has others.

mod history;
mod incidents;
mod kills;
mod writers;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use shoal_testkit::wait::eventually;
use tempfile::TempDir;

use crate::harness::{Done, Process, assert_clean, command, run, signal, text_of};
use crate::linear::BUCKET;
use crate::machine::disk_folder;

/// A server with an archive in a folder.
struct Archived {
    child: Process,
    grpc: String,
    resp: String,
    /// The address of S3, if it serves it.
    s3: Option<String>,
    metrics: String,
}

impl Archived {
    /// A server of gRPC and Redis clients.
    fn start(data: &Path, archive: &str) -> Self {
        Self::with(data, archive, &[])
    }

    /// The same with these options.
    fn with(data: &Path, archive: &str, options: &[&str]) -> Self {
        let mut serve = Self::command(data, archive);
        serve.args(["--archive-interval", "100ms"]).args(options);
        Self::started(serve, false)
    }

    /// A server with all frontends on one bucket, which archives at the default interval.
    fn with_all_frontends(data: &Path, archive: &str) -> Self {
        let mut serve = Self::command(data, archive);
        serve.args(["--archive-interval", "1s", "--resp-bucket", BUCKET, "--s3", "127.0.0.1:0"]);
        Self::started(serve, true)
    }

    fn command(data: &Path, archive: &str) -> Command {
        let mut serve = command(&["serve", "--size", "256M", "--cache", "16M", "--log", "warn", "--listen"]);
        serve.args([
            "127.0.0.1:0",
            "--resp",
            "127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
            "--archive",
            archive,
        ]);
        serve.arg("--data").arg(data);
        serve
    }

    fn started(serve: Command, has_s3: bool) -> Self {
        let mut child = Process::start(serve);
        let grpc = child.says("gRPC  ");
        let resp = child.says("Redis redis://");
        let s3 = has_s3.then(|| child.says("S3    http://"));
        let metrics = child.says("Metrics http://").strip_suffix("/metrics").unwrap().to_owned();
        Self { child, grpc, resp, s3, metrics }
    }

    /// The value of a metric.
    fn metric(&self, series: &str) -> f64 {
        self.try_metric(series).unwrap()
    }

    /// The same; an error if the server is gone.
    fn try_metric(&self, series: &str) -> std::io::Result<f64> {
        let mut stream = TcpStream::connect(&self.metrics)?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        // The last line may be cut.
        let whole = answer.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let value = whole.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(value.map_or(f64::NAN, |value| value.parse().unwrap()))
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

    /// The keys of the newest moment, in order.
    fn restored_keys(&self) -> Vec<String> {
        objects(&self.restore("new", &[])).into_keys().collect()
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
