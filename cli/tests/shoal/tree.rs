//! Whole folders: the files that go in come out, and nothing leads out of the target.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use rustix::process::Signal;

use crate::harness::{Server, run, serve, signal};

fn set_mtime(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A tree with everything that is kept.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("empty/inside")).unwrap();
    fs::create_dir_all(root.join("deep").join(["x"; 40].join("/"))).unwrap();
    fs::create_dir_all(root.join("a!/sub")).unwrap();
    for name in
        ["a", "a!/after", "-rf", "..dots", " space ", "new\nline", "glob*?[", "K\u{e4}se \u{1f9c0}", "q\"'\\"]
    {
        fs::write(root.join(name), name).unwrap();
    }
    fs::write(root.join(OsStr::from_bytes(b"not utf-8 \xff\xfe")), b"\0\xff").unwrap();
    fs::write(root.join("n".repeat(255)), b"long").unwrap();
    fs::write(root.join("empty file"), b"").unwrap();
    let large: Vec<u8> = (0..5_u32 << 20).map(|index| (index ^ (index >> 7)) as u8).collect();
    fs::write(root.join("5 MiB"), &large).unwrap();
    fs::write(root.join("1 MiB and a byte"), &large[..(1 << 20) + 1]).unwrap();
    for index in 0..600_usize {
        fs::write(root.join(format!("a!/sub/{index}")), &large[index..index * 40]).unwrap();
    }
    fs::hard_link(root.join("a"), root.join("hard link")).unwrap();
    for (name, target) in [
        ("link", "a"),
        ("dangling", "nowhere"),
        ("up", "../.."),
        ("absolute", "/etc/hostname"),
        ("folder link", "deep"),
    ] {
        symlink(target, root.join(name)).unwrap();
    }
    for (index, mode) in [0o600, 0o644, 0o755, 0o400, 0o777].into_iter().enumerate() {
        let path = root.join(format!("mode {index}"));
        fs::write(&path, b"x").unwrap();
        set_mode(&path, mode);
    }
    set_mtime(&root.join("a"), 1_000_000_000, 123_456_789);
    set_mtime(&root.join("mode 3"), -5, 999_999_999);
    set_mtime(&root.join("link"), 1_100_000_000, 1);
    set_mode(&root.join("empty"), 0o1777);
    set_mode(&root.join("a!/sub"), 0o555);
    set_mtime(&root.join("a!/sub"), 1_200_000_000, 2);
    set_mtime(&root.join("a!"), 1_300_000_000, 3);
}

/// Everything about everything below `root`: mode, time, size or target.
fn describe(root: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().as_bytes().to_vec()
            } else if metadata.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            let relative = path.strip_prefix(root).unwrap().to_owned();
            found.insert(relative, (metadata.mode(), metadata.mtime(), metadata.mtime_nsec(), content));
        }
    }
    found
}

#[test]
fn tree_round_trips() {
    let server = Server::start();
    let (source, target) = (server.folder.path().join("source"), server.folder.path().join("target"));
    make_tree(&source);
    let before = describe(&source);

    let done = server.import(&source, &["--prefix", "some/folder/"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let summary = done.json();
    let all = summary["files"].as_u64().unwrap()
        + summary["folders"].as_u64().unwrap()
        + summary["symlinks"].as_u64().unwrap();
    assert_eq!(all, before.len() as u64);
    assert_eq!((summary["symlinks"].as_u64(), summary["failed"].as_u64()), (Some(5), Some(0)));

    let done = server.export("some/folder/", &target, &[]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let after = describe(&target);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (path, expected) in &before {
        assert!(
            after[path] == *expected,
            "{path:?}: {:o} {:?}",
            after[path].0,
            (after[path].1, after[path].2)
        );
    }
    let diff = Command::new("diff").args(["-r", "--no-dereference"]).args([&source, &target]).output();
    assert!(diff.unwrap().status.success());

    // Again: nothing to do in either direction.
    let again = server.import(&source, &["--prefix", "some/folder/"]).json();
    assert_eq!((again["unchanged"].as_u64(), again["files"].as_u64()), (Some(before.len() as u64), Some(0)));
    let again = server.export("some/folder/", &target, &[]).json();
    assert_eq!((again["files"].as_u64(), again["symlinks"].as_u64()), (Some(0), Some(0)));
    assert_eq!(describe(&target), before, "the folders still have their modes and times");
}

#[test]
fn tree_round_trips_without_server() {
    let root = tempfile::tempdir().unwrap();
    let (source, target, data) =
        (root.path().join("source"), root.path().join("target"), root.path().join("data"));
    make_tree(&source);
    let embedded = |name: &str, folder: &Path| {
        let done = run(&[OsStr::new(name), folder.as_os_str(), OsStr::new("--data"), data.as_os_str()]);
        assert_eq!(done.code, 0, "{}", done.stderr);
    };
    embedded("import", &source);
    embedded("export", &target);
    assert_eq!(describe(&source), describe(&target));
    let (mut child, url) = serve(&data, &[]);
    assert_eq!(run(&["get", "a!/after", "--server", &url]).stdout, b"a!/after");
    child.stop();
}

#[test]
fn only_changed_files_are_imported_again() {
    let server = Server::start();
    let source = server.folder.path().join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    for name in ["grown", "newer", "mode", "same", "d/same"] {
        fs::write(source.join(name), b"12345").unwrap();
    }
    // Keys of others are before, between and after ours.
    for key in ["aa", "d!", "n", "zz"] {
        server.put(key, b"", &[]);
    }
    assert_eq!(server.import(&source, &[]).json()["files"], 5);
    fs::write(source.join("grown"), b"123456").unwrap();
    set_mtime(&source.join("newer"), 1_000_000_000, 1);
    set_mode(&source.join("mode"), 0o600);
    fs::write(source.join("d/new"), b"").unwrap();
    let summary = server.import(&source, &[]).json();
    assert_eq!((summary["files"].as_u64(), summary["unchanged"].as_u64()), (Some(4), Some(2)));
    assert_eq!(summary["folders"], 1, "its time has changed");
    assert_eq!(server.ok(&["get", "grown"]), b"123456");
}

#[test]
fn an_interrupted_import_is_continued() {
    let server = Server::start();
    let source = server.folder.path().join("source");
    fs::create_dir_all(&source).unwrap();
    let count = 8_000;
    for index in 0..count {
        fs::write(source.join(index.to_string()), b"").unwrap();
    }
    let arguments = [OsStr::new("import"), source.as_os_str(), OsStr::new("--jobs=1"), OsStr::new("--json")];
    let child = server.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(100);
    while server.run(&["stat", "--json"]).json()["objects"] == 0 {
        assert!(Instant::now() < deadline, "the import began");
    }
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("interrupted"));
    let first: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let first = first["files"].as_u64().unwrap();
    assert!((1..count).contains(&first), "{first} files before the interruption");

    let second = server.import(&source, &[]).json();
    assert_eq!((second["unchanged"].as_u64(), second["files"].as_u64()), (Some(first), Some(count - first)));
}

#[test]
fn files_and_folders_that_cannot_be_stored_are_reported() {
    let server = Server::start();
    let source = server.folder.path().join("source");
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("good"), b"x").unwrap();
    let _socket = UnixListener::bind(source.join("socket")).unwrap();
    let done = server.import(&source, &[]);
    assert_eq!((done.code, done.json()["special"].as_u64()), (0, Some(1)), "a special file is no failure");
    assert!(done.stderr.contains("socket"), "{}", done.stderr);

    let deep: PathBuf = std::iter::repeat_n("d".repeat(250), 5).collect();
    fs::create_dir_all(source.join(&deep)).unwrap();
    let done = server.import(&source, &[]);
    let summary = done.json();
    assert_eq!((done.code, summary["failed"].as_u64(), summary["folders"].as_u64()), (1, Some(1), Some(4)));
    assert!(summary["failures"].to_string().contains("1024 are allowed"), "{summary}");
}

#[test]
fn nothing_is_written_outside_the_target() {
    let server = Server::start();
    let root = server.folder.path().join("root");
    let (outside, target) = (root.join("outside"), root.join("target"));
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(&target).unwrap();
    symlink(&outside, target.join("present")).unwrap();
    symlink(outside.join("file"), target.join("replaced")).unwrap();
    let absolute = outside.join("absolute").into_os_string().into_string().unwrap();
    let hostile = [
        "../outside/up",
        "a/../../outside/up",
        "a//b",
        "./c",
        "present/x",
        "present/deep/x",
        &absolute,
        "..",
    ];
    for key in hostile {
        server.put(key, b"evil", &[]);
    }
    server.put("good", b"good", &[]);
    server.put("replaced", b"good", &[]);
    server.put("set-id", b"good", &["--meta", "mode=106755"]);
    server.put("device", b"", &["--meta", "mode=20666"]);

    let arguments = ["export", "", target.to_str().unwrap(), "--json", "--lossy"];
    let done = server.run(&arguments);
    let summary = done.json();
    assert_eq!((done.code, summary["lossy"].as_bool()), (5, Some(true)), "{}", done.stderr);
    assert_eq!(summary["refused"], hostile.len() as u64 + 1, "{summary}");
    assert_eq!((summary["files"].as_u64(), summary["failed"].as_u64()), (Some(3), Some(0)), "{summary}");
    assert!(fs::read_dir(&outside).unwrap().next().is_none());
    assert_eq!(fs::read_dir(&root).unwrap().count(), 2);
    assert!(fs::symlink_metadata(target.join("replaced")).unwrap().is_file(), "the link itself was replaced");
    assert_eq!(fs::metadata(target.join("set-id")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn exported_symlinks_cannot_escape_target() {
    let server = Server::start();
    let root = server.folder.path().join("root");
    let outside = root.join("outside");
    fs::create_dir_all(&outside).unwrap();
    server.put("way", outside.as_os_str().as_bytes(), &["--meta", "mode=120777"]);
    server.put("way/x", b"evil", &[]);
    // Once more, when the symlink (or a folder in its place) is there.
    for round in 0..2 {
        let done = server.export("", &root.join("target"), &[]);
        assert_eq!(done.code, 1, "round {round}: {}", done.stderr);
        assert!(fs::read_dir(&outside).unwrap().next().is_none());
    }
}

#[test]
fn keys_that_are_files_and_folders_at_once_are_reported() {
    let server = Server::start();
    let target = server.folder.path().join("target");
    fs::create_dir_all(target.join("folder")).unwrap();
    fs::write(target.join("file"), b"").unwrap();
    server.put("folder", b"a folder has this name", &[]);
    server.put("file/x", b"a part of this name is a file", &[]);
    server.put("good", b"good", &[]);
    let done = server.export("", &target, &[]);
    let summary = done.json();
    assert_eq!(
        (done.code, summary["failed"].as_u64(), summary["files"].as_u64()),
        (1, Some(2), Some(1)),
        "{summary}"
    );
    let names: Vec<OsString> =
        fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "no temporary files are left: {names:?}");
}
