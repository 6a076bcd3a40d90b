//! Metadata, content type and deadline of objects survive an export into a folder and an import, and the loss of parts that a
//! folder cannot hold is reported.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;
use serde_json::Value;

use crate::harness::{Server, run_with};

/// All objects whose keys start with `prefix`, without it, as `shoal ls --json` shows them, without the fields that differ
/// from copy to copy.
pub(crate) fn objects(server: &Server, prefix: &str) -> Vec<Value> {
    let listed = String::from_utf8(server.ok(&["ls", prefix, "--json"])).unwrap();
    let clean = |line: &str| {
        let mut object: Value = serde_json::from_str(line).unwrap();
        let fields = object.as_object_mut().unwrap();
        fields.remove("version");
        fields.remove("ttl_ns");
        let key = fields["key"].as_str().unwrap().strip_prefix(prefix).unwrap().to_owned();
        fields.insert("key".into(), key.into());
        if let Some(hex) = fields.remove("key_hex") {
            let hex = hex.as_str().unwrap().get(prefix.len() * 2..).unwrap().to_owned();
            fields.insert("key_hex".into(), hex.into());
        }
        // A time to live becomes a moment anew each time; a second is 10^9 of these.
        if let Some(at_ns) = fields.get("expire_time_ns").and_then(Value::as_u64) {
            fields.insert("expire_time_ns".into(), (at_ns / 10_000_000_000).into());
        }
        let meta = fields.get_mut("meta").unwrap().as_array_mut().unwrap();
        meta.sort_by_key(|pair| pair["name"].as_str().unwrap().to_owned());
        object
    };
    listed.lines().map(clean).collect()
}

/// Objects with everything that an object may have beyond a file.
pub(crate) fn put_objects(server: &Server, prefix: &str) {
    server.put(format!("{prefix}plain"), b"plain", &[]);
    server.put(format!("{prefix}typed"), b"<p>", &["--content-type", "text/html; charset=utf-8"]);
    let meta = ["--meta", "colour=bl\u{fc}", "--meta", "a%b~c\u{e4}=x=y", "--meta", "empty="];
    server.put(format!("{prefix}sub/meta"), b"", &meta);
    server.put(format!("{prefix}sub/odd mode"), b"m", &["--meta", "mode=rw-r--r--", "--meta", "mtime=then"]);
    server.put(format!("{prefix}set-id"), b"s", &["--meta", "mode=100644"]);
    server.put(format!("{prefix}mortal"), b"not for ever", &["--ttl", "5h", "--meta", "n=1"]);
    server.put(format!("{prefix}folder/"), b"", &["--meta", "mode=40750", "--meta", "owner=me"]);
    server.put(format!("{prefix}large"), &vec![7; 2_500_000], &["--content-type", "a/b", "--ttl", "1h"]);
}

fn attribute(path: &Path, name: &str) -> Option<String> {
    let mut value = [0; 200];
    let length = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    Some(String::from_utf8(value[..length].to_vec()).unwrap())
}

#[test]
fn metadata_types_and_deadlines_travel_with_the_files() {
    let server = Server::start();
    put_objects(&server, "from/");
    let target = server.folder.path().join("target");
    let done = server.export("from/", &target, &[]);
    assert_eq!((done.code, done.json()["lossy"].as_bool()), (0, Some(false)), "{}", done.stderr);
    assert_eq!(
        attribute(&target.join("typed"), "user.shoal.content-type").unwrap(),
        "text/html; charset=utf-8"
    );
    assert_eq!(attribute(&target.join("sub/meta"), "user.shoal.meta.a~25b~7Ec~C3~A4").unwrap(), "x=y");
    assert_eq!(attribute(&target.join("folder"), "user.shoal.meta.owner").unwrap(), "me");
    let expires = attribute(&target.join("mortal"), "user.shoal.expires").unwrap();
    assert!(humantime::parse_rfc3339(&expires).is_ok(), "{expires}");

    // `sub` is a folder now, which no object was.
    let done = server.import(&target, &["--prefix", "to/", "--exclude", "sub/"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(objects(&server, "to/"), objects(&server, "from/"));
    assert_eq!(server.ok(&["get", "to/large"]), vec![7; 2_500_000]);

    // Again: nothing to do, in either direction. Another value of an attribute is copied.
    assert_eq!(server.export("from/", &target, &[]).json()["files"], 0);
    let again = server.import(&target, &["--prefix", "to/", "--exclude", "sub/"]).json();
    assert_eq!((again["files"].as_u64(), again["unchanged"].as_u64()), (Some(0), Some(8)), "{again}");
    rustix::fs::setxattr(target.join("typed"), "user.shoal.content-type", b"text/css", XattrFlags::REPLACE)
        .unwrap();
    assert_eq!(server.import(&target, &["--prefix", "to/", "--exclude", "sub/"]).json()["files"], 1);
    assert_eq!(server.export("from/", &target, &[]).json()["files"], 1, "the other type comes back");
}

#[test]
fn expired_files_of_a_folder_are_left_out_and_bad_attributes_fail() {
    let server = Server::start();
    let source = server.folder.path().join("source");
    fs::create_dir_all(&source).unwrap();
    let with = |name: &str, attribute: &str, value: &[u8], bytes: usize| {
        fs::write(source.join(name), vec![1; bytes]).unwrap();
        rustix::fs::setxattr(source.join(name), attribute, value, XattrFlags::CREATE).unwrap();
    };
    with("old", "user.shoal.expires", b"2001-01-01T00:00:00Z", 5);
    with("old and large", "user.shoal.expires", b"2001-01-01T00:00:00Z", 2_000_000);
    with("strange", "user.shoal.expires", b"soon", 5);
    with("newer", "user.shoal.colour", b"x", 5);
    with("of others", "user.mime_type", b"text/plain", 5);
    let done = server.import(&source, &["--dry-run"]);
    let dry = done.json();
    let done = server.import(&source, &[]);
    let summary = done.json();
    for summary in [&dry, &summary] {
        assert_eq!(
            (summary["expired"].as_u64(), summary["failed"].as_u64()),
            (Some(2), Some(2)),
            "{summary}"
        );
    }
    assert!(done.code == 1 && done.stderr.contains("is no time such as"), "{}", done.stderr);
    assert!(done.stderr.contains("user.shoal.colour is unknown"), "{}", done.stderr);
    assert_eq!(server.keys(), ["of others"]);
}

#[test]
fn a_deadline_from_a_folder_comes_true() {
    let server = Server::start();
    server.put("brief", b"x", &["--ttl", "3s"]);
    let target = server.folder.path().join("target");
    assert_eq!(server.export("", &target, &[]).code, 0);
    assert_eq!(server.import(&target, &["--prefix", "again/"]).json()["files"], 1);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !server.keys().is_empty() {
        assert!(Instant::now() < deadline, "both are gone: {:?}", server.keys());
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.import(&target, &[]).json()["expired"], 1);
}

#[test]
fn objects_without_valid_file_name_fail_or_are_reported() {
    let server = Server::start();
    let long = "n".repeat(256);
    for key in ["a", "a/b", "a/b/c", "fine", long.as_str(), "x//y"] {
        server.put(key, key.as_bytes(), &[]);
    }
    server.put("folder with a value/", b"v", &["--meta", "mode=40755"]);
    server.put("link", b"fine", &["--meta", "mode=120777", "--content-type", "text/plain"]);
    let target = server.folder.path().join("target");

    let done = server.export("", &target, &[]);
    let summary = done.json();
    assert_eq!((done.code, summary["refused"].as_u64()), (1, Some(1)), "{}", done.stderr);
    assert!(
        done.stderr.contains("cannot hold \"a/b\": the object \"a\" has the name of its folder"),
        "{}",
        done.stderr
    );
    assert!(done.stderr.contains("--lossy"), "{}", done.stderr);
    assert!(!target.join("fine").exists() && !target.join("a/b").exists(), "it ended there");

    for dry in [true, false] {
        let options = if dry { &["--lossy", "--dry-run"][..] } else { &["--lossy"] };
        let done = server.export("", &target, options);
        let summary = done.json();
        assert_eq!((done.code, summary["lossy"].as_bool()), (5, Some(true)), "{}", done.stderr);
        assert_eq!(
            (summary["refused"].as_u64(), summary["dropped"].as_u64()),
            (Some(5), Some(1)),
            "{summary}"
        );
        for key in ["a/b:", "a/b/c:", "x//y:", "folder with a value/:", "link:", &format!("{long}:")] {
            assert!(done.stderr.contains(key), "{key}: {}", done.stderr);
        }
        assert_eq!(target.join("fine").exists(), !dry);
    }
    assert_eq!(fs::read_link(target.join("link")).unwrap().as_os_str().as_bytes(), b"fine");
    assert_eq!(fs::read(target.join("a")).unwrap(), b"a");
}

#[test]
fn patterns_choose_and_a_dry_run_changes_nothing() {
    let server = Server::start();
    let source = server.folder.path().join("source");
    fs::create_dir_all(source.join("2024/tmp")).unwrap();
    for name in ["a.jpg", "b.txt", "2024/c.jpg", "2024/d.png", "2024/tmp/e.jpg"] {
        fs::write(source.join(name), name).unwrap();
    }
    let options = ["--prefix", "p/", "--include", "*.jpg", "--include", "*.png", "--exclude", "2024/tmp/*"];
    let done = run_with(
        {
            let mut command = server.command(&["import", source.to_str().unwrap(), "--dry-run"]);
            command.args(options);
            command
        },
        b"",
    );
    let text =
        "p/2024/c.jpg\np/2024/d.png\np/a.jpg\nwould import 3 files, 0 folders, 0 symlinks: 25 B\n4 left out";
    assert!(done.code == 0 && done.text().starts_with(text), "{}", done.text());
    assert!(server.keys().is_empty());
    let summary = server.import(&source, &options).json();
    assert_eq!((summary["files"].as_u64(), summary["excluded"].as_u64()), (Some(3), Some(4)), "{summary}");
    assert_eq!(server.keys(), ["p/2024/c.jpg", "p/2024/d.png", "p/a.jpg"]);
    let again = server.import(&source, &[&options[..], &["--dry-run"]].concat()).json();
    assert_eq!((again["files"].as_u64(), again["unchanged"].as_u64()), (Some(0), Some(3)), "{again}");

    let target = server.folder.path().join("target");
    let options = ["--include", "2024/*", "--exclude", "*.png"];
    let dry = server.export("p/", &target, &[&options[..], &["--dry-run"]].concat()).json();
    assert_eq!(
        (dry["files"].as_u64(), dry["bytes"].as_u64(), dry["dry_run"].as_bool()),
        (Some(1), Some(10), Some(true))
    );
    assert!(!target.exists());
    assert_eq!(server.export("p/", &target, &options).json()["files"], 1);
    assert!(target.join("2024/c.jpg").exists() && !target.join("a.jpg").exists());
    let again = server.export("p/", &target, &[&options[..], &["--dry-run"]].concat()).json();
    assert_eq!((again["files"].as_u64(), again["unchanged"].as_u64()), (Some(0), Some(1)));
    assert_eq!(server.run(&["import", "x", "--include", "["]).code, 2);
}

/// In a container each command is process 1: a file that a killed command left blocked each later one, and an import stored it as an
/// object.
#[test]
fn leftover_temporary_files_are_harmless() {
    let server = Server::start();
    let target = server.folder.path().join("target");
    fs::create_dir_all(&target).unwrap();
    let leftovers = [".shoal-1-0.tmp", ".shoal-1-1.tmp", ".shoal-00000000000000ff.tmp"];
    for name in leftovers {
        fs::write(target.join(name), b"half").unwrap();
    }
    fs::write(target.join("copy.1.tmp"), b"half").unwrap();
    server.put("a", b"hello", &[]);
    // As process 1, if this process may make one.
    let in_container = |arguments: &[&str]| {
        let own = server.command(arguments);
        let mut command = std::process::Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(own.get_program())
            .args(arguments);
        command.env("SHOAL_SERVER", &server.url).env("SHOAL_RESP", "off").env("SHOAL_METRICS", "off");
        command
    };
    let can_unshare = in_container(&["--version"]).output().is_ok_and(|output| output.status.success());
    if !can_unshare {
        shoal_testkit::skipped::skipped("this process may not make a namespace of process ids");
    }
    let run = |arguments: &[&str]| match can_unshare {
        true => run_with(in_container(arguments), b""),
        false => server.run(arguments),
    };
    let done = run(&["export", target.to_str().unwrap()]);
    assert_eq!((done.code, fs::read(target.join("a")).unwrap()), (0, b"hello".to_vec()), "{}", done.stderr);
    let done = run(&["get", "a", "-o", target.join("copy").to_str().unwrap()]);
    assert_eq!(
        (done.code, fs::read(target.join("copy")).unwrap()),
        (0, b"hello".to_vec()),
        "{}",
        done.stderr
    );

    let done = server.import(&target, &["--prefix", "q/"]);
    let summary = done.json();
    assert_eq!((done.code, summary["leftovers"].as_u64()), (0, Some(3)), "{}", done.stderr);
    assert!(leftovers.iter().all(|name| done.stderr.contains(name)), "each is named: {}", done.stderr);
    assert_eq!(server.keys(), ["a", "q/a", "q/copy", "q/copy.1.tmp"]);

    // A folder cannot hold a key with such a name: an import would leave it out.
    server.put("b/.shoal-1-0.tmp", b"x", &[]);
    let done = server.export("b/", &target, &[]);
    assert!(done.code == 1 && done.stderr.contains("one of Shoal's temporary names"), "{}", done.stderr);
}
