//! Moving, counting, buckets, dry runs, exit codes, and tokens that may not do everything: with a server, and without one.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Server, command, run_with, serve};

#[test]
fn exit_codes_separate_absent_from_rejected() {
    let server = Server::start();
    for words in [
        &["get", "none"][..],
        &["stat", "none"],
        &["cp", "none", "x"],
        &["mv", "none", "x"],
        &["cp", "-r", "none/", "x/"],
        &["mv", "-r", "none/", "x/"],
        &["bucket", "stat", "none"],
        &["bucket", "rm", "none", "-r"],
    ] {
        let done = server.run(words);
        assert_eq!(done.code, 3, "{words:?}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    server.put("k", b"1", &[]);
    server.put("l", b"2", &[]);
    for words in [
        &["put", "k", "/dev/null", "--if-absent"][..],
        &["rm", "k", "--if-version", "1234567"],
        &["rm", "k", "l", "--if-version", "1234567"],
        &["cp", "k", "l", "--if-absent"],
        &["mv", "k", "l"],
    ] {
        assert_eq!(server.run(words).code, 4, "{words:?}");
    }
    // Two causes are neither of them.
    assert_eq!(server.run(&["rm", "k", &"x".repeat(2000), "--if-version", "1234567"]).code, 1);
    assert_eq!(server.keys(), ["k", "l"]);
}

#[test]
fn put_prints_version() {
    let server = Server::start();
    let done = run_with(server.command(&["put", "k", "-", "--json"]), b"hello");
    let put = done.json();
    assert_eq!((put["key"].as_str(), put["bytes"].as_u64()), (Some("k"), Some(5)));
    assert_eq!(put["version"], server.run(&["stat", "k", "--json"]).json()["version"]);
    let version = put["version"].to_string();
    let silent = run_with(server.command(&["put", "k", "-", "--if-version", &version]), b"again");
    assert!(silent.code == 0 && silent.stdout.is_empty() && silent.stderr.is_empty(), "{silent:?}");
    let long = vec![7; 3 << 20];
    let done = run_with(server.command(&["put", "long", "-", "--json", "--ttl", "1h"]), &long);
    assert_eq!(done.json()["bytes"], 3 << 20);
    let ttl_s = server.run(&["stat", "long", "--json"]).json()["ttl_ns"].as_u64().unwrap() / 1_000_000_000;
    assert!((3000..=3600).contains(&ttl_s), "{ttl_s}");
    let listed = server.run(&["ls", "--json"]).json_lines();
    assert!(listed[0].get("expire_time_ns").is_none() && listed[1]["expire_time_ns"].is_u64());
}

#[test]
fn a_move_keeps_everything_but_the_key() {
    let server = Server::start();
    let value = vec![9; (5 << 20) + 3];
    server.put("from", &value, &["--meta", "a=b", "--content-type", "x/y", "--ttl", "1h"]);
    let before = server.run(&["stat", "from", "--json"]).json();
    let odd = OsStr::from_bytes(b"to\n\xff");
    server.ok(&[OsStr::new("mv"), OsStr::new("from"), odd, OsStr::new("--to-bucket"), OsStr::new("other")]);
    assert!(server.keys().is_empty());
    let stat = [OsStr::new("stat"), odd, OsStr::new("--json"), OsStr::new("-b"), OsStr::new("other")];
    let after = server.run(&stat).json();
    for field in ["bytes", "modified_ns", "content_type", "meta"] {
        assert_eq!(before[field], after[field], "{field}");
    }
    assert!(after["ttl_ns"].as_u64() <= before["ttl_ns"].as_u64() && after["ttl_ns"].is_u64());
    assert!(server.ok(&[OsStr::new("get"), odd, OsStr::new("-b"), OsStr::new("other")]) == value);
    // Neither over itself, nor into itself.
    server.put("p/1", b"1", &[]);
    for words in [
        &["mv", "p/1", "p/1"][..],
        &["mv", "p/1", "p/1", "--overwrite"],
        &["mv", "-r", "p/", "p/q/"],
        &["mv", "-r", "", "x"],
    ] {
        assert_eq!(server.run(words).code, 2, "{words:?}");
    }
    assert_eq!(server.keys(), ["p/1"]);
}

#[test]
fn prefixes_are_copied_and_moved() {
    let server = Server::start();
    // More than a page of a listing.
    let files = server.folder.path().join("files");
    fs::create_dir(&files).unwrap();
    for number in 0..1_100 {
        fs::write(files.join(format!("{number:04}")), number.to_string()).unwrap();
    }
    server.ok(&["import", files.to_str().unwrap(), "--prefix", "a/"]);
    let count = 1_101;
    server.put("a/a/0000", b"within", &[]);
    let done = server.run(&["cp", "-r", "a/", "b/", "--json"]);
    assert_eq!((done.code, done.json()["copied"].as_u64()), (0, Some(count)));
    server.put("c/0007", b"mine", &[]);
    // One is in the way: it stays, and so does its source; all others go.
    let done = server.run(&["mv", "-r", "b/", "c/", "--json"]);
    assert_eq!(
        (done.code, done.json()["moved"].as_u64(), done.json()["failed"].as_u64()),
        (4, Some(count - 1), Some(1))
    );
    assert!(done.stderr.contains("c/0007") && done.stderr.contains("--overwrite"), "{}", done.stderr);
    assert_eq!(server.ok(&["get", "c/0007"]), b"mine");
    assert_eq!(server.ok(&["ls", "b/"]), b"b/0007\n");
    assert_eq!(server.run(&["mv", "-r", "b/", "c/", "--overwrite"]).code, 0);
    assert_eq!(server.ok(&["get", "c/0007"]), b"7");
    // A shorter prefix: a key that would be a source again is left alone.
    let done = server.run(&["mv", "-r", "a/", ""]);
    assert!(done.code == 1 && done.stderr.contains("a/a/0000"), "{}", done.stderr);
    assert_eq!(server.ok(&["ls", "a/"]), b"a/a/0000\n");
    assert_eq!(server.ok(&["get", "0039"]), b"39");
    let dry = server.run(&["mv", "-r", "c/", "d/", "--dry-run"]);
    assert!(dry.code == 0 && dry.text().contains("1,101 would be moved"), "{}", dry.text());
    assert!(server.ok(&["ls", "d/"]).is_empty());
}

/// Writers and movers at the same time: the newest value that was acknowledged under the old key is never lost.
#[test]
fn a_move_loses_nothing_that_is_written_meanwhile() {
    let server = Server::start();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0_u64;
            while !over.load(Ordering::Relaxed) {
                number += 1;
                server.put("hot", number.to_string().as_bytes(), &[]);
            }
            number
        });
        let mut newest = 0;
        for _ in 0..30 {
            let done = server.run(&["mv", "hot", "cold", "--overwrite"]);
            assert!([0, 1, 3].contains(&done.code), "{}", done.stderr);
            if done.code == 0 {
                let moved: u64 = String::from_utf8(server.ok(&["get", "cold"])).unwrap().parse().unwrap();
                assert!(moved > newest, "{moved} after {newest}");
                newest = moved;
            }
        }
        over.store(true, Ordering::Relaxed);
        let last = writer.join().unwrap();
        let hot = server.run(&["get", "hot"]);
        let found: u64 = match hot.code {
            0 => hot.text().parse().unwrap(),
            _ => newest,
        };
        assert_eq!(found, last);
        assert!(newest > 0);
    });
}

#[test]
fn usage_and_buckets_are_counted() {
    let server = Server::start();
    for (key, bytes) in [("a/x/1", 10), ("a/x/2", 20), ("a/y", 5), ("b", 7)] {
        server.put(key, &vec![0; bytes], &[]);
    }
    server.put("m", b"123", &["--bucket", "maps", "--ttl", "60"]);
    let du = server.run(&["du", "--json", "--depth", "2"]).json_lines();
    let rows: Vec<_> = du
        .iter()
        .map(|row| {
            (
                row["prefix"].as_str().unwrap_or("total"),
                row["bytes"].as_u64().unwrap(),
                row["objects"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(rows, [("a/x/", 30, 2), ("a/", 35, 3), ("total", 42, 4)]);
    assert!(
        String::from_utf8(server.ok(&["du", "a/", "--bytes"]))
            .unwrap()
            .lines()
            .last()
            .unwrap()
            .contains("35")
    );
    assert_eq!(server.ok(&["bucket", "ls"]), b"default\nmaps\n");
    let maps = server.run(&["bucket", "stat", "maps", "--json"]).json();
    assert_eq!(
        (maps["objects"].as_u64(), maps["bytes"].as_u64(), maps["with_deadline"].as_u64()),
        (Some(1), Some(3), Some(1))
    );
    // The command deletes only with -r.
    let done = server.run(&["bucket", "rm", "maps"]);
    assert!(done.code == 1 && done.stderr.contains("-r"), "{}", done.stderr);
    for words in [
        &["bucket", "rm", "maps", "--dry-run"][..],
        &["bucket", "rm", "maps", "-r", "--dry-run"],
        &["rm", "--prefix", "", "--dry-run"],
        &["rm", "b", "none", "--dry-run"],
    ] {
        let done = server.run(words);
        assert!(done.code == 0 && done.text().contains("would be deleted"), "{words:?}: {}", done.text());
    }
    let dry = server.run(&["rm", "--prefix", "a/", "--dry-run", "--json"]).json();
    assert_eq!(
        (dry["deleted"].as_u64(), dry["bytes"].as_u64(), dry["dry_run"].as_bool()),
        (Some(3), Some(35), Some(true))
    );
    assert_eq!(server.run(&["rm", "b", "--if-version", "99999", "--dry-run"]).code, 4);
    assert_eq!(server.keys().len(), 4);
    server.ok(&["bucket", "rm", "maps", "-r"]);
    assert_eq!(server.ok(&["bucket", "ls"]), b"default\n");
}

#[test]
fn it_works_on_the_data_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").into_os_string().into_string().unwrap();
    let on = |words: &[&str]| run_with(command(&[words, &["--data", &data]].concat()), b"value");
    for words in [&["du"][..], &["mv", "a", "b"], &["bucket", "ls"], &["cp", "-r", "a", "b"]] {
        let done = on(words);
        assert!(done.code == 1 && done.stderr.contains("there is no store"), "{words:?}: {}", done.stderr);
    }
    assert_eq!(on(&["put", "a/1", "-", "--bucket", "films"]).code, 0);
    assert_eq!(on(&["mv", "-r", "a/", "b/", "--bucket", "films"]).code, 0);
    assert_eq!(on(&["bucket", "ls"]).text(), "films\n");
    assert_eq!(on(&["du", "--bucket", "films", "--json", "--depth", "0"]).json()["bytes"], 5);
    assert_eq!(on(&["mv", "b/1", "c", "--bucket", "films", "--read-only"]).code, 2);
    assert_eq!(on(&["rm", "b/1", "--bucket", "films", "--dry-run", "--read-only"]).code, 0);
}

#[test]
fn tokens_may_be_for_reading_or_for_a_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let (all, reads, films) = ("all-all-all-all-all", "reads-reads-reads", "films-films-films");
    let tokens = file("tokens", &format!("{all}\n{reads} read-only\n{films} bucket=films\n"));
    let own = [file("all", all), file("reads", &format!("{reads} read-only\n")), file("films", films)];
    let (child, url) = serve(&folder.path().join("data"), &["--token-file", &tokens]);
    let server = Server { child, url, folder: tempfile::tempdir().unwrap() };
    let by = |who: usize, words: &[&str]| {
        let done = server.run(&[words, &["--token-file", &own[who]]].concat());
        assert!(done.code == 0 || done.stderr.contains("the token"), "{words:?}: {}", done.stderr);
        done.code == 0
    };
    for bucket in ["films", "maps"] {
        assert!(by(0, &["put", "k", "/dev/null", "--bucket", bucket]));
    }
    for (words, may) in [
        (&["ls", "--bucket", "maps"][..], [true, true, false]),
        (&["ls", "--bucket", "films"], [true, true, true]),
        (&["du", "--bucket", "maps"], [true, true, false]),
        (&["bucket", "ls"], [true, true, false]),
        (&["stat"], [true, true, false]),
        (&["stat", "--map"], [true, true, false]),
        (&["put", "k", "/dev/null", "--bucket", "films"], [true, false, true]),
        (&["cp", "k", "k2", "--bucket", "films"], [true, false, true]),
        (&["cp", "k", "k2", "--bucket", "maps", "--to-bucket", "films"], [true, false, false]),
        (
            &["mv", "k2", "k3", "--bucket", "films", "--to-bucket", "maps", "--overwrite"],
            [true, false, false],
        ),
        (&["relocation", "pause"], [true, false, false]),
        (&["rm", "k", "--bucket", "maps"], [true, false, false]),
        (&["rm", "k", "--bucket", "films"], [true, false, true]),
    ] {
        for who in [1, 2, 0] {
            assert_eq!(by(who, words), may[who], "{words:?} by {who}");
        }
    }
}

/// Symptom: `echo hello | shoal put greeting` was wrong usage, and a file above 5 GiB was sent before it was refused, without
/// a way out. Fix: a put without a file reads standard input, and the length of a file is looked at first.
#[test]
fn a_put_reads_standard_input_and_names_the_limit_of_a_value() {
    let server = Server::start();
    assert_eq!(run_with(server.command(&["put", "greeting"]), b"hello").code, 0);
    assert_eq!(server.ok(&["get", "greeting"]), b"hello");
    // A file that has no bytes on the disk.
    let long = server.folder.path().join("long");
    fs::File::create(&long).unwrap().set_len((5 << 30) + 1).unwrap();
    let import = server.folder.path().join("import");
    fs::create_dir(&import).unwrap();
    fs::rename(&long, import.join("long")).unwrap();
    let long = import.join("long");
    for words in [&["put", "k", long.to_str().unwrap()][..], &["import", import.to_str().unwrap()]] {
        let done = server.run(words);
        assert_eq!(done.code, 1, "{words:?}: {}", done.stderr);
        for part in ["5,368,709,120 bytes (5.0 GiB)", "5,368,709,121", "split -b"] {
            assert!(done.stderr.contains(part), "{words:?}: {part}: {}", done.stderr);
        }
    }
    assert_eq!(server.keys(), ["greeting"]);
}
