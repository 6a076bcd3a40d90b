//! Tars out and in: any key, all attributes of an object, tars of other programs, and tars that are cut off or damaged.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::harness::{Done, Server, run_with, text_of};
use crate::transfer::{objects, put_objects};

fn export(server: &Server, prefix: &str, tar: &Path, options: &[&str]) -> Done {
    server.run(&[&["export", prefix, "--tar", text_of(tar), "--json"], options].concat())
}

fn import(server: &Server, tar: &Path, options: &[&str]) -> Done {
    server.run(&[&["import", "--tar", text_of(tar), "--json"], options].concat())
}

fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn tar_round_trips_any_object() {
    let server = Server::start();
    put_objects(&server, "from/");
    let long = "deep/".repeat(60);
    for key in
        ["a", "a/b", "../up", "/absolute", "x//y", "./dot", "slash/", "..", "new\nline", &long, "K\u{e4}se"]
    {
        server.put(format!("from/{key}"), key.as_bytes(), &[]);
    }
    server.put("from/device", b"d", &["--meta", "mode=20666"]);
    server.put("from/value/", b"v", &["--meta", "mode=40755"]);
    server.put("from/link", b"../../etc", &["--meta", "mode=120777", "--content-type", "text/plain"]);
    server.put("from/link too long", &vec![b'l'; 5000], &["--meta", "mode=120777"]);
    server.put("from/set-id", b"s", &["--meta", "mode=106755"]);
    let tar = server.folder.path().join("all.tar");
    let done = export(&server, "from/", &tar, &[]);
    assert_eq!((done.code, done.json()["lossy"].as_bool()), (0, Some(false)), "{}", done.stderr);
    let done = import(&server, &tar, &["--prefix", "to/"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(objects(&server, "to/"), objects(&server, "from/"));
    for key in ["large", "a/b", "../up", "link", "value/"] {
        assert_eq!(
            server.ok(&["get", &format!("to/{key}")]),
            server.ok(&["get", &format!("from/{key}")]),
            "{key}"
        );
    }

    // By pipes it is the same tar, and the summary is on standard error.
    let piped = server.run(&["export", "from/", "--tar", "-", "--json"]);
    assert_eq!(piped.code, 0);
    assert!(
        piped.stdout == fs::read(&tar).unwrap() && piped.stderr.contains("\"files\":"),
        "{}",
        piped.stderr
    );
    let done =
        run_with(server.command(&["import", "--tar", "-", "--prefix", "pipe/", "--json"]), &piped.stdout);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(objects(&server, "pipe/"), objects(&server, "from/"));

    let done = export(&server, "from/", &tar, &[]);
    assert!(done.code == 1 && done.stderr.contains("--force"), "{}", done.stderr);
    assert_eq!(export(&server, "from/", &tar, &["--force"]).code, 0);
}

#[test]
fn tar_contains_selection_and_reports_the_rest() {
    let server = Server::start();
    for key in ["p", "p/a.jpg", "p/b.txt", "p/tmp/c.jpg"] {
        server.put(key, b"12345", &[]);
    }
    let tar = server.folder.path().join("some.tar");
    // The key `p` has no byte after the prefix.
    let done = export(&server, "p", &tar, &[]);
    assert!(done.code == 1 && done.stderr.contains("the tar cannot hold \"p\""), "{}", done.stderr);
    assert!(fs::read_dir(server.folder.path()).unwrap().count() == 1, "no part of a tar is left");
    let options = ["--lossy", "--include", "*.jpg", "--include", "", "--exclude", "/tmp/*"];
    let dry = export(&server, "p", &tar, &[&options[..], &["--dry-run"]].concat());
    assert!(!tar.exists());
    let done = export(&server, "p", &tar, &options);
    for (code, summary) in [(dry.code, dry.json()), (done.code, done.json())] {
        let counts = ["files", "bytes", "refused", "excluded"].map(|name| summary[name].as_u64().unwrap());
        assert_eq!((code, counts), (5, [1, 5, 1, 2]), "{summary}");
    }
    let dry = import(&server, &tar, &["--prefix", "q", "--dry-run"]);
    assert_eq!((dry.code, dry.json()["files"].as_u64()), (0, Some(1)));
    let done = import(&server, &tar, &["--prefix", "q", "--exclude", "*"]);
    assert_eq!((done.code, done.json()["excluded"].as_u64()), (0, Some(1)));
    assert_eq!(server.keys().len(), 4);
}

/// A folder of which other programs make a tar.
fn make_source(root: &Path) {
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    fs::create_dir_all(root.join("d".repeat(60)).join("e".repeat(60))).unwrap();
    fs::write(root.join("d".repeat(60)).join("e".repeat(60)).join("f".repeat(70)), b"deep").unwrap();
    fs::write(root.join("K\u{e4}se"), b"cheese").unwrap();
    fs::write(root.join("sub/large"), vec![3; 1_700_000]).unwrap();
    fs::write(root.join("first"), b"linked").unwrap();
    fs::hard_link(root.join("first"), root.join("second")).unwrap();
    symlink("l".repeat(90), root.join("link")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn tars_of_other_programs_are_imported_as_folders_are() {
    let server = Server::start();
    let source = server.folder.path().join("source");
    fs::create_dir(&source).unwrap();
    make_source(&source);
    let done = server.run(&["import", source.to_str().unwrap(), "--prefix", "folder/"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let expected: Vec<_> = objects(&server, "folder/").into_iter().map(seconds).collect();
    let python = "import sys, tarfile\n\
                  with tarfile.open(sys.argv[1], 'w', format=int(sys.argv[3])) as tar: tar.add(sys.argv[2], arcname='.')";
    for format in ["gnu", "oldgnu", "pax", "python 1", "python 2"] {
        let tar = server.folder.path().join(format!("{format}.tar"));
        match format.strip_prefix("python ") {
            Some(number) => {
                ok(Command::new("python3").args(["-c", python]).arg(&tar).arg(&source).arg(number))
            }
            None => ok(Command::new("tar")
                .arg(format!("--format={format}"))
                .arg("-cf")
                .arg(&tar)
                .arg("-C")
                .args([&source, Path::new(".")])),
        };
        let prefix = format!("{format}/");
        let done = import(&server, &tar, &["--prefix", &prefix]);
        let summary = done.json();
        assert_eq!((done.code, summary["special"].as_u64()), (0, Some(1)), "{format}: {}", done.stderr);
        let found: Vec<_> = objects(&server, &prefix).into_iter().map(seconds).collect();
        assert_eq!(found, expected, "{format}");
        assert_eq!(server.ok(&["get", &format!("{prefix}second")]), b"linked");
    }
}

/// Some formats have no fractions of a second.
fn seconds(mut object: serde_json::Value) -> serde_json::Value {
    object.as_object_mut().unwrap().remove("modified_ns");
    object
}

#[test]
fn other_programs_read_our_tars() {
    let server = Server::start();
    put_objects(&server, "");
    let tar = server.folder.path().join("our.tar");
    assert_eq!(export(&server, "", &tar, &[]).code, 0);
    let target = server.folder.path().join("target");
    fs::create_dir(&target).unwrap();
    let xattrs = ["--xattrs", "--xattrs-include=user.shoal.*"];
    ok(Command::new("tar").args(xattrs).arg("-xf").arg(&tar).arg("-C").arg(&target));
    let done = server.run(&[
        "import",
        target.to_str().unwrap(),
        "--prefix",
        "again/",
        "--exclude",
        "sub/",
        "--json",
    ]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let ours: Vec<_> = objects(&server, "")
        .into_iter()
        .filter(|it| !it["key"].as_str().unwrap().starts_with("again/"))
        .collect();
    assert_eq!(objects(&server, "again/"), ours);

    // The same by way of a tar of GNU tar's, which has the attributes, too.
    let second = server.folder.path().join("their.tar");
    ok(Command::new("tar").args(xattrs).arg("-cf").arg(&second).arg("-C").args([&target, Path::new(".")]));
    assert_eq!(import(&server, &second, &["--prefix", "third/", "--exclude", "sub/"]).code, 0);
    assert_eq!(objects(&server, "third/"), ours);

    let list = "import sys, tarfile\nfor m in tarfile.open(sys.argv[1]): print(m.name, m.size, m.pax_headers.get('SCHILY.xattr.user.shoal.content-type'))";
    let listed = ok(Command::new("python3").args(["-c", list]).arg(&tar));
    assert!(
        listed.contains("typed 3 text/html; charset=utf-8") && listed.contains("large 2500000 a/b"),
        "{listed}"
    );
}

#[test]
fn later_entries_of_a_name_win_and_sparse_files_are_named() {
    let server = Server::start();
    let (folder, tar) = (server.folder.path().to_owned(), server.folder.path().join("t.tar"));
    for round in 0..50 {
        fs::write(folder.join("same"), format!("{round}")).unwrap();
        ok(Command::new("tar").arg("-rf").arg(&tar).arg("-C").arg(&folder).arg("same"));
    }
    assert_eq!(import(&server, &tar, &[]).json()["files"], 50);
    assert_eq!(server.ok(&["get", "same"]), b"49");
    fs::File::create(folder.join("holes")).unwrap().set_len(1 << 20).unwrap();
    for format in ["gnu", "pax"] {
        ok(Command::new("tar")
            .args(["-S", &format!("--format={format}"), "-cf"])
            .arg(&tar)
            .arg("-C")
            .arg(&folder)
            .args(["holes", "same"]));
        let done = import(&server, &tar, &["--prefix", format]);
        let summary = done.json();
        assert_eq!((done.code, summary["failed"].as_u64(), summary["files"].as_u64()), (1, Some(1), Some(1)));
        assert!(done.stderr.contains(&format!("{format}holes: it is a sparse file")), "{}", done.stderr);
    }
}

/// An export of a cache failed because of objects whose time ended between the listing and the read.
#[test]
fn objects_expiring_during_export_are_counted() {
    let server = Server::start();
    // More than a pipe holds: the export waits for its reader in the middle of this one.
    server.put("a", &vec![1; 3 << 20], &[]);
    for key in ["deleted", "expires"] {
        server.put(key, b"x", if key == "expires" { &["--ttl", "2s"] } else { &[] });
    }
    let mut command = server.command(&["export", "--tar", "-", "--json", "--jobs", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    server.ok(&["rm", "deleted"]);
    thread::sleep(Duration::from_secs(3));
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let summary = text.lines().find(|line| line.starts_with('{')).unwrap();
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    let counts = ["files", "expired", "failed"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!((output.status.code(), counts), (Some(1), [1, 1, 1]), "{text}");
    let tar = [&first[..], &output.stdout].concat();
    let done = run_with(server.command(&["import", "--tar", "-", "--prefix", "b/", "--json"]), &tar);
    assert_eq!((done.code, done.json()["files"].as_u64()), (0, Some(1)), "the tar is whole: {}", done.stderr);
}

#[test]
fn a_tar_that_is_cut_off_or_damaged_is_an_error_with_its_place() {
    let server = Server::start();
    let tar = server.folder.path().join("t.tar");
    server.put("one", b"1", &[]);
    server.put("two", &vec![2; 3000], &["--content-type", "a/b"]);
    assert_eq!(export(&server, "", &tar, &[]).code, 0);
    let whole = fs::read(&tar).unwrap();
    let end = whole.iter().rposition(|&byte| byte != 0).unwrap() / 512 * 512 + 512;
    let import_bytes = |bytes: &[u8]| {
        fs::write(&tar, bytes).unwrap();
        import(&server, &tar, &["--prefix", "again/"])
    };
    for cut in (0..end).step_by(128) {
        let done = import_bytes(&whole[..cut]);
        let place = format!("at byte {cut}, ");
        assert!(done.code == 1 && done.stderr.contains(&place), "{cut}: {}", done.stderr);
    }
    let done = import_bytes(&whole[..end - 1000]);
    assert!(done.stderr.contains("in the entry \"two\": the tar is cut off"), "{}", done.stderr);
    assert_eq!(done.json()["files"], 1, "the entries before it are stored");
    assert_eq!(server.ok(&["get", "again/one"]), b"1");

    // A byte of any header is another one: an error, or (in the numbers of an extended header) another value. Never a panic.
    for at in (0..end - 3072).step_by(41) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        let done = import_bytes(&damaged);
        assert!([0, 1].contains(&done.code) && !done.stderr.contains("panicked"), "{at}: {}", done.stderr);
    }
    let mut damaged = whole.clone();
    damaged[1024 + 20] = b'x';
    let done = import_bytes(&damaged);
    assert!(done.code == 1 && done.stderr.contains("its checksum is wrong"), "{}", done.stderr);
    let done = import_bytes(&[&whole[..], &whole].concat());
    assert!(
        done.code == 1 && done.stderr.contains("more data after the end of the archive"),
        "{}",
        done.stderr
    );
    let done = import_bytes(b"\x1f\x8b not a tar");
    assert!(done.code == 1 && done.stderr.contains("this is no tar"), "{}", done.stderr);
}

/// A hard link took the value that the store had before under the name of its target.
#[test]
fn a_hard_link_whose_target_is_left_out_fails_by_name() {
    let server = Server::start();
    let (source, tar) = (server.folder.path().join("source"), server.folder.path().join("t.tar"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), b"new").unwrap();
    fs::hard_link(source.join("a"), source.join("b")).unwrap();
    let file = tar.to_str().unwrap();
    ok(Command::new("tar").args(["-cf", file, "-C", source.to_str().unwrap(), "a", "b"]));
    server.put("a", b"old", &[]);
    for options in [&["--exclude", "a"][..], &["--exclude", "a", "--dry-run"]] {
        let done = import(&server, &tar, options);
        assert_eq!((done.code, done.json()["failed"].as_u64()), (1, Some(1)), "{}", done.stderr);
        let why = "b: it is a hard link: the entry \"a\" that it links to was not stored";
        assert!(done.stderr.contains(why), "{}", done.stderr);
        assert_eq!(server.keys(), ["a"]);
    }
    assert_eq!(import(&server, &tar, &[]).code, 0);
    assert_eq!(server.ok(&["get", "b"]), b"new");
}
