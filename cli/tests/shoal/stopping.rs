//! The store after a server is stopped: nothing in its log, or, if the time was too short, a log that the next start replays.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use shoal_testkit::skipped::skipped;

use crate::harness::{Frontends, assert_clean, command, run, run_with, serve, started};
use crate::machine::disk_folder;

const BLOCK_BYTES: u64 = 4096;
/// The log's ring of a store of 256 MiB.
const LOG: std::ops::Range<u64> = 34..34 + 512;
const KEYS: usize = 30;

/// A store of 256 MiB with some objects, some of them deleted; its server was stopped in order.
fn stopped(data: &Path) -> Vec<String> {
    let (mut child, url) = serve(data, &[]);
    let keys: Vec<String> = (0..KEYS).map(|which| format!("key-{which:02}")).collect();
    for key in &keys {
        let mut put = command(&["put", key.as_str(), "-"]);
        let done = run_with(
            {
                put.env("SHOAL_SERVER", &url);
                put
            },
            key.repeat(20).as_bytes(),
        );
        assert_eq!(done.code, 0, "{}", done.stderr);
    }
    let (gone, kept) = keys.split_at(KEYS / 3);
    let mut rm = command(&["rm", "--server", &url]);
    assert_eq!(
        run_with(
            {
                rm.args(gone);
                rm
            },
            b""
        )
        .code,
        0
    );
    child.stop();
    kept.to_vec()
}

/// 12 of 40 stores that had been stopped in order were refused after one bit of their log had changed.
#[test]
fn log_bit_flip_after_clean_stop_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let (data, damaged) = (folder.path().join("data"), folder.path().join("damaged"));
    let kept = stopped(&data);
    let mut log = vec![0; ((LOG.end - LOG.start) * BLOCK_BYTES) as usize];
    fs::File::open(&data).unwrap().read_exact_at(&mut log, LOG.start * BLOCK_BYTES).unwrap();
    let used: Vec<usize> = (0..log.len()).filter(|&at| log[at] != 0).collect();
    assert!(used.len() > KEYS * 50, "the log was written to");
    for trial in 0..16 {
        let at = used[used.len() * trial / 16];
        fs::copy(&data, &damaged).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&damaged).unwrap();
        file.write_all_at(&[log[at] ^ 1 << (trial % 8)], LOG.start * BLOCK_BYTES + at as u64).unwrap();
        drop(file);
        let listed = run(&["ls", "--data", damaged.to_str().unwrap()]);
        assert_eq!(listed.code, 0, "byte {at} of the log: {}", listed.stderr);
        let keys: Vec<&str> = listed.text().lines().collect();
        assert_eq!(keys, kept, "byte {at} of the log");
    }
}

/// Supervisors kill a process that does not stop in time: a stop without time leaves the log, reports that, and is no failure.
#[test]
fn a_stop_without_time_leaves_the_log_to_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut serve = command(&["serve", "--listen", "127.0.0.1:0", "--size", "64M", "--cache", "16M"]);
    serve.args(["--stop-timeout", "0", "--log", "warn", "--data"]).arg(&data);
    serve.stderr(Stdio::piped());
    let (mut child, url) = started(serve);
    let mut put = command(&["put", "key", "-", "--server"]);
    assert_eq!(
        run_with(
            {
                put.arg(&url);
                put
            },
            b"value"
        )
        .code,
        0
    );
    let said = child.stop_and_read();
    assert!(said.contains("nothing is lost") && said.contains("--stop-timeout"), "{said}");
    let got = run(&["get", "key", "--data", data.to_str().unwrap()]);
    assert_eq!((got.code, got.text()), (0, "value"), "{}", got.stderr);
}

/// A control group that limits the number of tasks.
struct TaskGroup(PathBuf);

impl TaskGroup {
    /// A group with the process. None if the machine does not allow it.
    fn around(pid: u32) -> Option<Self> {
        let (first, second) = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup");
        let root = if Path::new(first).exists() { first } else { second };
        let group = Self(Path::new(root).join(format!("shoal-test-tasks-{pid}")));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(group)
    }

    /// From now on there may be as many tasks as there are.
    fn close(&self) {
        let now = fs::read_to_string(self.0.join("pids.current")).unwrap();
        fs::write(self.0.join("pids.max"), now.trim()).unwrap();
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        // The process is gone: the group is empty.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Symptom: a server in a container with as many tasks as it may have (`pids.max`) ended with exit code 1 at SIGTERM, by a panic. Cause:
/// the stop started a thread. Fix: its thread is there from the start.
#[test]
fn a_server_that_may_start_no_thread_stops_in_order() {
    let folder = disk_folder();
    let data = folder.path().join("data");
    let server = Frontends::start(Frontends::command(&data, "256M"));
    let Some(group) = TaskGroup::around(server.pid()) else {
        skipped("this machine makes no control group for tasks: a stop without a further thread");
        return;
    };
    let url = server.grpc.trim().to_owned();
    let put = run_with(command(&["put", "key", "-", "--server", &url]), b"value");
    assert_eq!(put.code, 0, "{}", put.stderr);
    group.close();
    // A growth of the cap has a thread, too: it is refused, and the server lives.
    let grown = run(&["grow", "--size", "300M", "--server", &url]);
    assert!(grown.code != 0 && grown.stderr.contains("thread"), "{} {}", grown.code, grown.stderr);
    server.stop();
    assert_clean(&data);
    drop(group);
}
