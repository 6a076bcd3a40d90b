//! The disk under the data file: it is full, it is small, the process may not write more, the file is not there any more.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use shoal_testkit::skipped::skipped;
use shoal_testkit::wait::eventually;

use crate::harness::{Process, assert_clean, command, run, run_with, signal};
use crate::machine::LoopDevice;

const MIB: u64 = 1 << 20;

/// A server whose standard error is kept.
struct Watched {
    child: Process,
    url: String,
    said: PathBuf,
}

impl Watched {
    fn start(mut serve: Command, data: &Path, said: &Path) -> Self {
        serve.args(["--listen", "127.0.0.1:0", "--cache", "16M", "--log", "warn", "--data"]).arg(data);
        serve.stderr(fs::File::create(said).unwrap());
        let mut child = Process::start(serve);
        Self { url: child.says("gRPC  "), child, said: said.to_owned() }
    }

    fn said(&self) -> String {
        read(&self.said)
    }

    /// Stores `bytes` bytes under `key`; returns the command's error if it was refused.
    fn put(&self, key: &str, bytes: usize) -> Result<(), String> {
        let mut put = command(&["put", key, "-", "--server"]);
        put.arg(&self.url);
        let done = run_with(put, &vec![7; bytes]);
        if done.code == 0 { Ok(()) } else { Err(done.stderr) }
    }

    /// A stop after the file was lost: no success, and nothing is claimed.
    fn stop_without_its_file(mut self) {
        signal(&self.child, Signal::TERM);
        assert_eq!(self.child.wait().unwrap().code(), Some(1), "{}", self.said());
        assert!(!self.said().contains("nothing is lost"), "{}", self.said());
    }

    fn stop(mut self) {
        signal(&self.child, Signal::TERM);
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.said());
    }
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
    text
}

/// A separate file system of a number of MiB, if this process may make one.
struct Small {
    folder: PathBuf,
}

impl Small {
    fn make(folder: &Path, mib: u64) -> Option<Self> {
        let (image, mount) = (folder.join("image"), folder.join("mount"));
        fs::create_dir(&mount).unwrap();
        fs::File::create(&image).unwrap().set_len(mib * MIB).unwrap();
        let done = |program: &str, arguments: &[&str]| {
            Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
        };
        let (image, place) = (image.to_str().unwrap(), mount.to_str().unwrap());
        let is_ext4 = done("mkfs.ext4", &["-q", "-F", image]) && done("mount", &["-o", "loop", image, place]);
        let size = format!("size={mib}m");
        let is_mounted = is_ext4 || done("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", place]);
        println!("a file system of {mib} MiB: {}", if is_ext4 { "ext4" } else { "tmpfs, or none" });
        is_mounted.then_some(Self { folder: mount })
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

fn free_bytes(folder: &Path) -> u64 {
    let disk = rustix::fs::statvfs(folder).unwrap();
    disk.f_bfree * disk.f_frsize
}

/// Symptom: a file system of 272 MB held 47 MiB of objects: a step of 256 MiB did not fit, and the room that a failed step
/// had taken stayed taken. And the log had the error 195 times.
#[test]
fn small_file_system_is_reported_full_once() {
    const OBJECT: usize = 4 << 20;
    let folder = tempfile::tempdir().unwrap();
    let Some(small) = Small::make(folder.path(), 272) else {
        skipped("this process may not mount a file system");
        return;
    };
    // Something of the owner's.
    let own = small.folder.join("own");
    fs::write(&own, vec![1; 30 << 20]).unwrap();
    let data = small.folder.join("data");
    // A size beyond the file system is refused unless it is forced.
    let name = data.to_str().unwrap();
    assert_ne!(run(&["format", name, "--size", "1G"]).code, 0);
    assert_eq!(run(&["format", &format!("--force={name}"), name, "--size", "1G"]).code, 0);
    let server = Watched::start(command(&["serve"]), &data, &folder.path().join("said"));
    let fill = |from: usize| {
        let mut refused = 0;
        let put = |which: &usize| match server.put(&format!("key-{which}"), OBJECT) {
            Ok(()) => true,
            Err(said) => {
                assert!(said.contains("full"), "{said}");
                false
            }
        };
        let count = (from..1_000).take_while(put).count();
        // Full is full, again and again.
        while refused < 20 {
            assert!(server.put("one more", OBJECT).is_err());
            refused += 1;
        }
        count
    };
    let count = fill(0);
    let held = (count * OBJECT) as u64 / MIB;
    println!("{held} MiB of objects, {} MiB of the file", fs::metadata(&data).unwrap().blocks() * 512 / MIB);
    assert!(held > 120, "full at {held} MiB of objects");
    let metadata = fs::metadata(&data).unwrap();
    assert!(
        metadata.blocks() * 512 <= metadata.len() + MIB,
        "{} bytes are taken for a file of {}",
        metadata.blocks() * 512,
        metadata.len()
    );
    let lines = |words: &str| server.said().lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines("cannot grow"), 1, "{}", server.said());
    // Space that the owner frees is used, and used up again; that is not logged again within a minute.
    fs::remove_file(&own).unwrap();
    assert!(free_bytes(&small.folder) > 20 * MIB);
    let more = fill(count);
    assert!(more >= 5, "{more} objects more in 30 MiB");
    assert!(lines("cannot grow") <= 2, "{}", server.said());
    server.stop();
    assert_clean(&data);
}

/// The limit of file sizes ended the server by SIGXFSZ.
#[test]
fn the_limit_of_file_sizes_is_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--fsize={}", 96 * MIB)).arg(env!("CARGO_BIN_EXE_shoal"));
    limited.args(["serve", "--size", "1G", "--resp", "off"]);
    let server = Watched::start(limited, &data, &folder.path().join("said"));
    let put = |which: usize| server.put(&format!("key-{which}"), 4 << 20);
    let count = (0..100).take_while(|&which| put(which).is_ok()).count();
    assert!((3..40).contains(&count), "{count} objects");
    let refused = put(count).unwrap_err();
    assert!(refused.contains("full"), "{refused}");
    assert!(server.said().contains("cannot grow"), "{}", server.said());
    let got = run(&["get", "key-0", "--server", &server.url]);
    assert_eq!((got.code, got.stdout.len()), (0, 4 << 20), "{}", got.stderr);
    server.stop();
}

/// A server continued for days over a file that was deleted, and all was gone with it.
#[test]
fn deleted_data_file_is_detected() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 3] = [
        ("was deleted", |data| fs::remove_file(data).unwrap()),
        ("was renamed", |data| fs::rename(data, data.with_extension("old")).unwrap()),
        ("was replaced", |data| {
            fs::write(data.with_extension("new"), "another file").unwrap();
            fs::rename(data.with_extension("new"), data).unwrap();
        }),
    ];
    for (words, change) in changes {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let server =
            Watched::start(command(&["serve", "--size", "256M"]), &data, &folder.path().join("said"));
        server.put("key", 100).unwrap();
        change(&data);
        eventually(words, || server.said().contains(words));
        let said = server.said();
        assert!(said.contains("read-only") && said.contains("/proc/") && said.contains("ERROR"), "{said}");
        let refused = server.put("another", 100).unwrap_err();
        assert!(refused.contains(words), "{refused}");
        // The state of health comes from there.
        let stat = run(&["stat", "--server", &server.url]);
        assert!(stat.text().contains(words), "{}", stat.text());
        // It can still be saved.
        let got = run(&["get", "key", "--server", &server.url]);
        assert_eq!((got.code, got.stdout.len()), (0, 100), "{}", got.stderr);
        server.stop_without_its_file();
    }
}

/// Writes to a file that had been cut were acknowledged for a minute, the stop reported no loss, and the store did not open.
#[test]
fn truncated_data_file_is_detected() {
    for length in [0, 12 * MIB] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let server =
            Watched::start(command(&["serve", "--size", "256M"]), &data, &folder.path().join("said"));
        (0..4).for_each(|which| server.put(&format!("key-{which}"), 4 << 20).unwrap());
        // All puts are applied: nothing is running.
        std::thread::sleep(Duration::from_secs(4));
        fs::OpenOptions::new().write(true).open(&data).unwrap().set_len(length).unwrap();
        let began = Instant::now();
        while server.put("small", 100).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(10), "writes are still acknowledged");
            std::thread::sleep(Duration::from_millis(50));
        }
        let refused = server.put("small", 100).unwrap_err();
        assert!(refused.contains("was cut"), "{refused}");
        let stat = run(&["stat", "--server", &server.url]);
        assert!(stat.text().contains("was cut"), "{}", stat.text());
        server.stop_without_its_file();
    }
}

/// A second program wrote to the file of a running server through a loop device.
#[test]
fn a_loop_device_over_the_data_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let path = data.to_str().unwrap();
    let server = Watched::start(command(&["serve", "--size", "256M"]), &data, &folder.path().join("said"));
    server.put("key", 100).unwrap();
    let Some(device) = LoopDevice::over(&data, &[]) else { return };
    let name = &device.0[..];
    for done in [
        run_with(command(&["put", "key", "-", "--data", name]), b"value"),
        run(&["check", "--repair", "--data", name]),
        run(&["serve", "--listen", "127.0.0.1:0", "--data", name]),
        run(&["format", &format!("--force={name}"), name]),
    ] {
        assert_eq!(done.code, 1, "{}", done.stderr);
        let words = format!("{name} is in use by another process through {path}");
        assert!(done.stderr.contains(&words), "{}", done.stderr);
    }
    server.put("key", 100).unwrap();
    server.stop();
    drop(device);
    assert_clean(&data);
}

/// An empty store of default size took 613 MB of the disk.
#[test]
fn an_empty_store_takes_little_of_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let taken = || fs::metadata(&data).unwrap().blocks() * 512;
    let start = || Watched::start(command(&["serve"]), &data, &folder.path().join("said"));
    for _ in 0..2 {
        let server = start();
        assert!(taken() <= 32_000_000, "{} bytes", taken());
        let stat = run(&["stat", "--json", "--server", &server.url]).json();
        let figure = |name: &str| stat["figures"][name].as_u64().unwrap_or_else(|| panic!("{name}: {stat}"));
        let (disk, log) = (figure("bytes.disk"), figure("bytes.log"));
        assert!(0 < log && log < disk && log < 4_096 * figure("log.ring"), "{stat}");
        server.stop();
        assert!(taken() <= 32_000_000, "{} bytes after a stop", taken());
    }
    // Then it grows by the bytes that are written, and takes values of every size at once.
    let server = start();
    for which in 0..12 {
        server.put(&format!("key-{which}"), 4 << 20).unwrap();
    }
    server.put("small", 100).unwrap();
    server.stop();
    assert!(taken() > 48 * MIB, "{} bytes", taken());
    assert_clean(&data);
}
