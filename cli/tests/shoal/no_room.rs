//! File systems, quotas, limits and copies that leave the data file without room, each with a server that meets it (T7).
//!
//! Symptom: a write without room within the length of the data file made the store read-only until a restart, and a server did not
//! start on a full disk. Cause: blocks that were allocated once were believed to have room for ever, which copies on write, snapshots,
//! copies by reference, holes and limits break. Fix: such a write is refused as full, and the log is written on once there is room.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use shoal_client::RejectRules;
use shoal_testkit::skipped::skipped;
use shoal_testkit::wait::{HANGS_AFTER, eventually, eventually_within};
use tempfile::TempDir;

use crate::containers::{Answer, Connection};
use crate::harness::{Frontends, assert_clean, run, text_of};
use crate::machine::{disk_folder, runtime};
use crate::s3_client::S3Client;

const MIB: u64 = 1 << 20;
const LONG: usize = 400_000;
const SHORT: usize = 100;
/// Objects of the store before its room is taken: some long, some short.
const OBJECTS: u64 = 80;
/// Room that is left for a store that is not copied.
const LEFT_BYTES: u64 = 36 * MIB;
/// Writes are resumed within this time after there is room.
const RESUMES_WITHIN: Duration = Duration::from_secs(15);
/// A limit of file sizes that is below nearly all blocks of a store.
const FILE_SIZE_MAX: &str = "--fsize=131072:unlimited";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Ext4,
    Xfs,
    Btrfs,
    Tmpfs,
    Overlay,
}

/// The cause of the missing room.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lack {
    /// Another program fills the file system.
    Full,
    /// A snapshot holds the blocks, and another program fills the file system.
    Snapshot,
    Quota,
    FileSize,
}

/// The stopped store is changed like this before its room is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Copied {
    Not,
    ByReference,
    Sparse,
    /// Into a file of btrfs without the attribute C.
    OnWrite,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    lack: Lack,
    copied: Copied,
    /// The room is taken while no server runs.
    at_start: bool,
    /// Blocks are freed and returned to the file system before another program takes them.
    gives_back: bool,
    /// Not even short writes find room; otherwise short writes and deletes do.
    stops: bool,
}

const PLAIN: Case = Case {
    kind: Kind::Ext4,
    lack: Lack::Full,
    copied: Copied::Not,
    at_start: false,
    gives_back: false,
    stops: false,
};

/// A separate file system.
struct Disk {
    root: TempDir,
    mounts: Vec<PathBuf>,
    /// The data file is here.
    folder: PathBuf,
    /// Other programs write here.
    below: PathBuf,
}

fn done(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    let is_done = output.as_ref().is_ok_and(|output| output.status.success());
    if !is_done {
        println!("{program} {arguments:?}: {output:?}");
    }
    is_done
}

impl Disk {
    /// None if this machine does not make it, which is printed.
    fn make(kind: Kind) -> Option<Self> {
        let root = disk_folder();
        let mount = root.path().join("mount");
        fs::create_dir(&mount).unwrap();
        let mut disk = Self { root, mounts: Vec::new(), folder: mount.clone(), below: mount };
        let is_made = match kind {
            Kind::Ext4 => disk.format("mkfs.ext4", &["-q", "-F", "-m", "0"], 160),
            Kind::Xfs => disk.format("mkfs.xfs", &["-q", "-f", "-m", "reflink=1"], 320),
            Kind::Btrfs => disk.format("mkfs.btrfs", &["-q", "-f"], 256) && disk.make_subvolume(),
            Kind::Tmpfs => disk.mount(&["-t", "tmpfs", "-o", "size=96m", "tmpfs"]),
            Kind::Overlay => disk.format("mkfs.ext4", &["-q", "-F", "-m", "0"], 160) && disk.lay_over(),
        };
        if !is_made {
            skipped(&format!("this machine makes no file system {kind:?}"));
        }
        // A full file system may have no room for a new name.
        is_made.then(|| {
            fs::File::create(disk.below.join("filler")).unwrap();
            disk
        })
    }

    fn format(&mut self, program: &str, options: &[&str], mib: u64) -> bool {
        let image = self.root.path().join("image");
        fs::File::create(&image).unwrap().set_len(mib * MIB).unwrap();
        let image = text_of(&image);
        done(program, &[options, &[image]].concat()) && self.mount(&["-o", "loop", image])
    }

    /// Mounts `arguments` at the data file's folder.
    fn mount(&mut self, arguments: &[&str]) -> bool {
        let is_done = done("mount", &[arguments, &[text_of(&self.folder)]].concat());
        if is_done {
            self.mounts.push(self.folder.clone());
        }
        is_done
    }

    fn make_subvolume(&mut self) -> bool {
        self.folder = self.below.join("volume");
        let place = text_of(&self.folder);
        done("btrfs", &["subvolume", "create", place]) && done("btrfs", &["quota", "enable", place])
    }

    fn lay_over(&mut self) -> bool {
        self.folder = self.root.path().join("merged");
        fs::create_dir(&self.folder).unwrap();
        let parts = ["lower", "upper", "work"].map(|part| self.below.join(part));
        parts.iter().for_each(|part| fs::create_dir(part).unwrap());
        let [lower, upper, work] = parts.each_ref().map(|part| text_of(part));
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        self.mount(&["-t", "overlay", "-o", &options, "overlay"])
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Leaves less room than the store's cap needs, so that growth finds none at last.
    fn leave_little(&self, kind: Kind) {
        if kind == Kind::Btrfs {
            // The free room of btrfs is an estimate.
            return self.limit_quota("40M");
        }
        let ballast = fs::File::create(self.below.join("ballast")).unwrap();
        let free = || rustix::fs::statvfs(&self.below).map(|disk| disk.f_bavail * disk.f_frsize).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        let mut length = 0;
        while free() > LEFT_BYTES && rustix::fs::fallocate(&ballast, flags, length, 4 * MIB).is_ok() {
            length += 4 * MIB;
        }
    }

    fn limit_quota(&self, most: &str) {
        assert!(done("btrfs", &["qgroup", "limit", most, text_of(&self.folder)]));
    }

    /// Another program takes all of the room.
    fn fill(&self) {
        let filler = self.below.join("filler");
        let mut length = 0;
        for step in [64 * MIB, 8 * MIB, MIB, 64 << 10, 4 << 10] {
            loop {
                let file = fs::OpenOptions::new().create(true).append(true).open(&filler).unwrap();
                let flags = rustix::fs::FallocateFlags::empty();
                if rustix::fs::fallocate(&file, flags, length, step).is_err() {
                    break;
                }
                length += step;
            }
            done("sync", &["--file-system", text_of(&self.below)]);
        }
    }

    /// Replaces the stopped store by a copy.
    fn copy(&self, copied: Copied) {
        if copied == Copied::Not {
            return;
        }
        let (data, copy) = (self.data(), self.folder.join("copy"));
        fs::File::create(&copy).unwrap();
        let how = match copied {
            Copied::ByReference => {
                // A file with the attribute C shares blocks only with another one that has it.
                fs::remove_file(&copy).unwrap();
                let has_attribute = done("chattr", &["+C", text_of(&self.folder)]);
                println!("the folder has the attribute C: {has_attribute}");
                "--reflink=always"
            }
            Copied::Sparse => "--sparse=always",
            Copied::OnWrite | Copied::Not => "--reflink=never",
        };
        assert!(done("cp", &[how, text_of(&data), text_of(&copy)]));
        fs::rename(&data, self.folder.join("original")).unwrap();
        if copied != Copied::ByReference {
            fs::remove_file(self.folder.join("original")).unwrap();
        }
        fs::rename(&copy, &data).unwrap();
        done("sync", &["--file-system", text_of(&self.below)]);
    }

    fn take_room(&self, kind: Kind, lack: Lack, server: Option<&Frontends>) {
        let place = text_of(&self.folder);
        match lack {
            Lack::Full => {
                self.fill();
                if kind == Kind::Btrfs {
                    self.limit_quota("none");
                }
            }
            Lack::Snapshot => {
                let snapshot = self.below.join("snapshot");
                assert!(done("btrfs", &["subvolume", "snapshot", "-r", place, text_of(&snapshot)]));
                self.fill();
            }
            // The limit is there, and is reached by growth.
            Lack::Quota => {}
            Lack::FileSize => limit(server.unwrap(), FILE_SIZE_MAX),
        }
    }

    fn give_room(&self, lack: Lack, server: &Frontends) {
        match lack {
            Lack::Full | Lack::Snapshot => {
                fs::remove_file(self.below.join("filler")).unwrap();
                let _ = fs::remove_file(self.below.join("ballast"));
                done("sync", &["--file-system", text_of(&self.below)]);
            }
            // A change of the limit may itself be over the quota.
            Lack::Quota => assert!(done("btrfs", &["quota", "disable", text_of(&self.below)])),
            Lack::FileSize => limit(server, "--fsize=unlimited"),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for mount in self.mounts.iter().rev() {
            let _ = Command::new("umount").arg("--lazy").arg(mount).status();
        }
    }
}

/// Sets the limit of file sizes of a running server.
fn limit(server: &Frontends, option: &str) {
    assert!(done("prlimit", &["--pid", &server.pid().to_string(), option]));
}

/// The store and its known state.
struct Run {
    case: Case,
    disk: Disk,
    /// The numbers that each object may have: one, unless the outcome of a write is unknown. None: it is deleted.
    known: BTreeMap<u64, Vec<Option<u64>>>,
    next: u64,
}

fn length(key: u64) -> usize {
    if key.is_multiple_of(2) { LONG } else { SHORT }
}

fn value(key: u64, number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().repeat(length(key) / 8 + 1);
    value.truncate(length(key));
    value
}

impl Run {
    fn start(&self, is_limited: bool) -> Frontends {
        let mut command = Frontends::command(&self.disk.data(), "64M");
        if is_limited && self.case.lack == Lack::FileSize {
            let mut limited = Command::new("prlimit");
            limited.arg(FILE_SIZE_MAX).arg("--").arg(command.get_program()).args(command.get_args());
            command = limited;
        }
        Frontends::start(command)
    }

    /// Sets or deletes an object; the refusal, if there was one.
    fn write(&mut self, connection: &mut Connection, key: u64, is_set: bool) -> Result<(), String> {
        self.next += 1;
        let (name, number) = (format!("key-{key}"), is_set.then_some(self.next));
        let answer = match number {
            Some(number) => connection.ask(&[b"set", name.as_bytes(), &value(key, number)]),
            None => connection.ask(&[b"del", name.as_bytes()]),
        };
        match answer.expect("the server is gone") {
            Answer::Error(why) if why.starts_with("OOM") => return Err(why),
            Answer::Error(why) => {
                assert!(why.contains("outcome"), "{:?}: {why}", self.case);
                self.known.entry(key).or_default().push(number);
            }
            _ => _ = self.known.insert(key, vec![number]),
        }
        Ok(())
    }

    fn assert_holds(&self, server: &Frontends) {
        let mut connection = Connection::new(server.resp_address());
        for (key, numbers) in &self.known {
            let answer = connection.ask(&[b"get", format!("key-{key}").as_bytes()]);
            let found = match answer {
                Some(Answer::Bulk(found)) => found,
                other => panic!("{:?}: {other:?}", self.case),
            };
            let may_be = numbers.iter().any(|number| number.map(|number| value(*key, number)) == found);
            let found = found.map(|found| found.len());
            assert!(may_be, "{:?}: key-{key} has {found:?} bytes, not {numbers:?}", self.case);
        }
    }

    /// Writes until long writes are refused, and short ones, too, if not even those find room.
    fn write_until_refused(&mut self, server: &Frontends) {
        let mut connection = Connection::new(server.resp_address());
        let (began, mut in_a_row) = (Instant::now(), 0);
        for turn in 0.. {
            assert!(began.elapsed() < HANGS_AFTER, "{:?}: still not refused", self.case);
            // Only long writes find no room if the file is overwritten in place.
            let key = if self.case.stops { turn } else { turn & !1 } % 400;
            match self.write(&mut connection, key, true) {
                Ok(()) => in_a_row = 0,
                Err(why) => {
                    self.assert_names_cause(&why);
                    in_a_row += 1;
                }
            }
            if in_a_row == 10 {
                break;
            }
        }
        let deleted = self.write(&mut connection, 2, false);
        let written = self.write(&mut connection, 1, true);
        // btrfs refuses all writes over a quota, those in place, too.
        let is_in_place = !self.case.stops && self.case.lack != Lack::Quota;
        assert!(!is_in_place || deleted.is_ok() && written.is_ok(), "{:?}: {written:?}", self.case);
        if self.case.stops {
            let stat = run(&["stat", "--server", &server.grpc]);
            assert!(stat.text().contains("NO ROOM"), "{:?}: {}", self.case, stat.text());
        }
    }

    fn assert_names_cause(&self, why: &str) {
        if self.case.copied != Copied::Not && why.contains("shoal grow") {
            // The file was grown to its full size before the room was taken.
            return;
        }
        let cause = match self.case.lack {
            Lack::Full | Lack::Snapshot => "its file system is full",
            Lack::Quota => "its quota is used up",
            Lack::FileSize => "ulimit -f",
        };
        assert!(why.contains(cause) && !why.contains("shoal grow"), "{:?}: {why}", self.case);
    }

    /// Writes are taken again without a restart, all of them.
    fn assert_resumes(&mut self, server: &Frontends) {
        let (began, mut connection) = (Instant::now(), Connection::new(server.resp_address()));
        let what = format!("{:?}: writes are taken", self.case);
        eventually(&what, || [1, 2].iter().all(|&key| self.write(&mut connection, key, true).is_ok()));
        assert!(began.elapsed() < RESUMES_WITHIN, "{what} after {:?}", began.elapsed());
        if self.case.copied != Copied::Not {
            // The file may have had its full size, so the store is full as well: its objects make room.
            for key in 100..400 {
                eventually(&what, || self.write(&mut connection, key, false).is_ok());
            }
        }
        for key in 0..20 {
            eventually(&what, || self.write(&mut connection, key, true).is_ok());
        }
        // Growth tries again some seconds after it found no room; writes that have room do not wait for it.
        eventually_within(RESUMES_WITHIN, &format!("{:?}: the file grows", self.case), || {
            run(&["stat", "--server", &server.grpc]).text().contains("takes writes")
        });
    }

    fn prepare(&mut self) {
        let server = self.start(false);
        if self.case.copied == Copied::Not && !self.case.stops {
            self.disk.leave_little(self.case.kind);
        }
        let mut connection = Connection::new(server.resp_address());
        for key in 0..OBJECTS {
            self.write(&mut connection, key, true).unwrap();
        }
        drop(connection);
        server.stop();
        self.disk.copy(self.case.copied);
    }

    /// Deletes long objects, and waits until their blocks are returned to the file system: 14 MB are freed, of which the store keeps
    /// one and a half times its least growth ahead of need, 6 MiB.
    fn free_blocks(&mut self, server: &Frontends) {
        let taken = |data: &Path| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(data).unwrap()) * 512;
        let (data, before) = (self.disk.data(), taken(&self.disk.data()));
        let mut connection = Connection::new(server.resp_address());
        for key in (0..OBJECTS - 8).filter(|key| key.is_multiple_of(2)) {
            self.write(&mut connection, key, false).unwrap();
        }
        eventually("blocks are returned", || taken(&data) + 4 * MIB < before);
    }

    fn all(&mut self) {
        self.prepare();
        if self.case.at_start {
            self.disk.take_room(self.case.kind, self.case.lack, None);
        }
        let server = self.start(false);
        if self.case.gives_back {
            self.free_blocks(&server);
        }
        if !self.case.at_start {
            self.disk.take_room(self.case.kind, self.case.lack, Some(&server));
        }
        self.write_until_refused(&server);
        self.assert_holds(&server);
        // Killed, and started without room.
        drop(server);
        let server = self.start(true);
        self.assert_holds(&server);
        self.disk.give_room(self.case.lack, &server);
        self.assert_resumes(&server);
        drop(server);
        let server = self.start(false);
        self.assert_holds(&server);
        server.stop();
        assert_clean(&self.disk.data());
    }
}

fn meet(cases: &[Case]) {
    for &case in cases {
        let Some(disk) = Disk::make(case.kind) else { continue };
        let began = Instant::now();
        Run { case, disk, known: BTreeMap::new(), next: 0 }.all();
        println!("{case:?}: {:?}", began.elapsed());
    }
}

/// The data file is overwritten in place: only growth finds no room.
#[test]
fn a_full_file_system_refuses_growth() {
    meet(&[
        PLAIN,
        Case { kind: Kind::Xfs, ..PLAIN },
        Case { kind: Kind::Btrfs, ..PLAIN },
        Case { kind: Kind::Tmpfs, ..PLAIN },
        Case { kind: Kind::Overlay, ..PLAIN },
        Case { kind: Kind::Btrfs, lack: Lack::Quota, ..PLAIN },
    ]);
}

/// Each write needs new room.
#[test]
fn a_file_that_is_copied_on_write_finds_no_room() {
    let btrfs = Case { kind: Kind::Btrfs, stops: true, ..PLAIN };
    meet(&[
        Case { copied: Copied::OnWrite, ..btrfs },
        Case { lack: Lack::Snapshot, ..btrfs },
        Case { copied: Copied::ByReference, ..btrfs },
    ]);
}

/// An opening takes the room that a copy has not; on a full file system it serves reads.
#[test]
fn copies_take_their_room_at_the_start() {
    let by_reference = Case { kind: Kind::Xfs, copied: Copied::ByReference, ..PLAIN };
    let sparse = Case { copied: Copied::Sparse, ..PLAIN };
    meet(&[
        by_reference,
        Case { at_start: true, stops: true, ..by_reference },
        sparse,
        Case { at_start: true, stops: true, ..sparse },
        Case { kind: Kind::Tmpfs, ..sparse },
    ]);
}

#[test]
fn a_limit_of_file_sizes_below_the_length_stops_writes() {
    let limited = Case { lack: Lack::FileSize, stops: true, ..PLAIN };
    meet(&[limited, Case { kind: Kind::Xfs, ..limited }, Case { kind: Kind::Tmpfs, ..limited }]);
}

/// Another program takes the blocks that the store returned.
#[test]
fn given_back_blocks_are_taken_by_another_program() {
    let case = |kind| Case { kind, gives_back: true, ..PLAIN };
    meet(&[PLAIN.kind, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs, Kind::Overlay].map(case));
}

/// The answer of the metrics listener at `address` about readiness.
fn ready(address: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Symptom: `/readyz` was ready while each write was refused, as the log had room and values had none. Cause: the standstill of writes
/// counted only a store without free blocks. Fix: a value without room in the file counts, too; and the server itself tries if there
/// is room again, since it may get no writes while it is not ready.
#[test]
fn server_without_room_is_not_ready() {
    let Some(disk) = Disk::make(Kind::Ext4) else { return };
    let mut run = Run { case: Case { gives_back: true, ..PLAIN }, disk, known: BTreeMap::new(), next: 0 };
    run.prepare();
    let mut command = Frontends::command(&run.disk.data(), "64M");
    command.args(["--metrics", "127.0.0.1:0"]);
    let mut server = Frontends::start(command);
    let metrics = server.child.says("Metrics http://").strip_suffix("/metrics").unwrap().to_owned();
    run.free_blocks(&server);
    run.disk.take_room(Kind::Ext4, Lack::Full, None);
    run.write_until_refused(&server);
    let mut connection = Connection::new(server.resp_address());
    let until_not_ready = |run: &mut Run, connection: &mut Connection| {
        // The store may return more blocks, and each fill of the disk takes a while: 40 s on an idle machine.
        eventually_within(4 * HANGS_AFTER, "it is not ready", || {
            // A long value of a new key: an overwrite makes room for the next one.
            run.next += 1;
            if run.write(connection, 1_000 + 2 * run.next, true).is_ok() {
                // The store has returned more blocks since.
                run.disk.fill();
            }
            std::thread::sleep(Duration::from_millis(200));
            let answer = ready(&metrics);
            assert!(!answer.contains("the store is full"), "{answer}");
            answer.contains("the data file cannot grow (its file system is full")
        });
    };
    until_not_ready(&mut run, &mut connection);
    assert!(run.write(&mut connection, 1, true).is_ok(), "short writes are taken");
    eventually("a short write got through, so it is ready", || ready(&metrics).starts_with("HTTP/1.1 200"));
    until_not_ready(&mut run, &mut connection);
    // No client writes any more.
    run.disk.give_room(Lack::Full, &server);
    eventually("it is ready", || ready(&metrics).starts_with("HTTP/1.1 200"));
    assert!(run.write(&mut connection, 6, true).is_ok());
    server.stop();
    assert_clean(&run.disk.data());
}

/// Over S3 it is the same: a put and an upload are refused with the cause, deletes work, and both are taken once there is room.
#[test]
fn s3_is_refused_on_a_full_file_system() {
    let Some(disk) = Disk::make(Kind::Ext4) else { return };
    let mut run = Run { case: PLAIN, disk, known: BTreeMap::new(), next: 0 };
    run.prepare();
    let mut command = Frontends::command(&run.disk.data(), "64M");
    command.args(["--s3", "127.0.0.1:0"]);
    let mut server = Frontends::start(command);
    let address = server.child.says("S3    http://");
    let (part, rules) = (value(0, 1), RejectRules::default());
    runtime().block_on(async {
        let client = S3Client::connect(&address, &run.disk.data(), "files").await;
        client.upload(b"kept", &[&part], &rules).await.unwrap();
        run.disk.take_room(Kind::Ext4, Lack::Full, None);
        let mut count = 0;
        let refused = loop {
            match client.another().await.put(format!("put-{count}").as_bytes(), &part, &rules).await {
                Ok(()) => count += 1,
                Err(refused) => break refused.to_string(),
            }
            assert!(count < 1_000, "nothing is refused");
        };
        assert!(refused.contains("507") && refused.contains("InsufficientStorage"), "{refused}");
        run.assert_names_cause(&refused);
        // An apply may have made some room since.
        let (mut uploads, up) = (0, |number: u32| format!("up-{number}").into_bytes());
        let refused = loop {
            match client.another().await.upload(&up(uploads), &[&part], &rules).await {
                Ok(()) => uploads += 1,
                Err(refused) => break refused.to_string(),
            }
            assert!(uploads < 1_000, "no upload is refused");
        };
        assert!(refused.contains("507"), "{refused}");
        run.assert_names_cause(&refused);
        let (_, kept) = client.get(b"kept").await.unwrap().unwrap();
        assert!(kept == part[..] && client.get(&up(uploads)).await.unwrap().is_none());
        client.delete(b"kept").await.unwrap();
        run.disk.give_room(Lack::Full, &server);
        let began = Instant::now();
        while client.another().await.upload(&up(uploads), &[&part], &rules).await.is_err() {
            assert!(began.elapsed() < HANGS_AFTER, "uploads are still refused");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for number in 0..count {
            let (_, found) = client.get(format!("put-{number}").as_bytes()).await.unwrap().unwrap();
            assert!(found == part[..], "{number}");
        }
        for number in 0..=uploads {
            let (_, found) = client.get(&up(number)).await.unwrap().unwrap();
            assert!(found == part[..], "upload {number}");
        }
    });
    run.assert_holds(&server);
    server.stop();
    assert_clean(&run.disk.data());
}
