//! Backups: the drill, files that are refused, damage, and cuts.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Done, Server, assert_clean, client_of, command, run, run_with, serve, text_of};

/// The value of the object number `which` in its state `state`; some are short, some long.
fn value(which: usize, state: usize) -> Vec<u8> {
    let bytes = [0, 50, 3_000, 20_000, 90_000, 700_000][which % 6] + state;
    (0..bytes).map(|at| (at / 7 + which * 31 + state) as u8).collect()
}

fn key(which: usize) -> String {
    format!("dir/{:03}\u{1}{}", which, "x".repeat(which % 200))
}

/// All objects of a bucket, from an export of it.
fn all(store: &[&str], keys: &[String]) -> BTreeMap<String, Vec<u8>> {
    let get = |key: &String| {
        let done = run(&[&["get", key][..], store].concat());
        (done.code == 0).then(|| (key.clone(), done.stdout))
    };
    keys.iter().filter_map(get).collect()
}

fn counted(done: &Done) -> u64 {
    done.json()["objects"].as_u64().unwrap()
}

/// Load runs, a backup is made, the server is killed, its file is flipped: the restored store is that of the backup's version.
#[test]
fn the_drill() {
    const COUNT: usize = 48;
    let folder = tempfile::tempdir().unwrap();
    let (data, dest, new) =
        (folder.path().join("data"), folder.path().join("one.shoal"), folder.path().join("new"));
    let (mut server, url) = serve(&data, &[]);
    let (runtime, client) = client_of(&url);
    let put = async |which: usize, state: usize| {
        let options = shoal_client::PutOptions::default();
        client.put("default", key(which).as_bytes(), value(which, state).into(), options).await
    };
    // The first COUNT keys are written before the backup, and never again.
    for which in 0..COUNT {
        runtime.block_on(put(which, 0)).unwrap();
    }
    // The others change: key COUNT + n passes through the states 1, 2, ... under load, one after the other, in pairs of keys.
    let stop = AtomicBool::new(false);
    let written = std::sync::Mutex::new(Vec::new());
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            for state in 1.. {
                for which in COUNT..COUNT + 6 {
                    let Ok(put) = runtime.block_on(put(which, state)) else { return };
                    written.lock().unwrap().push((put.version.0, which, state));
                }
                if stop.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        while written.lock().unwrap().len() < 12 {
            std::thread::yield_now();
        }
        let done = run(&["backup", text_of(&dest), "--server", &url, "--json"]);
        stop.store(true, Ordering::Release);
        done
    });
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(counted(&done), COUNT as u64 + 6);
    let version = done.json()["version"].as_u64().unwrap();
    let mut expected: BTreeMap<String, Vec<u8>> =
        (0..COUNT).map(|which| (key(which), value(which, 0))).collect();
    for (put, which, state) in written.into_inner().unwrap() {
        if put <= version {
            expected.insert(key(which), value(which, state));
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let mut bytes = fs::read(&data).unwrap();
    let mut place = 12_345_usize;
    for _ in 0..1_000 {
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (place >> 20) % bytes.len();
        bytes[at] ^= 1 << (place % 8);
    }
    fs::write(&data, bytes).unwrap();

    let mode = fs::metadata(&dest).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a backup is for its owner alone");
    let verified = run(&["backup", "verify", text_of(&dest), "--json"]);
    assert_eq!((verified.code, counted(&verified)), (0, COUNT as u64 + 6), "{}", verified.stderr);
    let restored = run(&["restore", "--data", text_of(&new), text_of(&dest), "--json", "--size", "256M"]);
    assert_eq!((restored.code, counted(&restored)), (0, COUNT as u64 + 6), "{}", restored.stderr);
    let keys: Vec<String> = (0..COUNT + 6).map(key).collect();
    let found = all(&["--data", text_of(&new)], &keys);
    assert!(found == expected, "the restored store is another one");
    let stat = run(&["stat", &key(0), "--data", text_of(&new), "--json"]);
    assert!(stat.json()["version"].as_u64().unwrap() >= version + (1 << 40), "{}", stat.text());
    assert_clean(&new);
    // A part of it.
    let part = folder.path().join("part");
    let done = run(&[
        "restore",
        "--data",
        text_of(&part),
        text_of(&dest),
        "--prefix",
        "dir/00",
        "--json",
        "--size",
        "64M",
    ]);
    assert_eq!((done.code, counted(&done)), (0, 10), "{}", done.stderr);
    let none = folder.path().join("none");
    let done = run(&[
        "restore",
        "--data",
        text_of(&none),
        text_of(&dest),
        "--bucket",
        "other",
        "--json",
        "--size",
        "64M",
    ]);
    assert_eq!((done.code, counted(&done)), (0, 0), "{}", done.stderr);
}

/// Metadata, times and deadlines come back; existing files are never overwritten; damage is named with its place.
#[test]
fn damage_is_named_and_existing_files_are_kept() {
    let server = Server::start();
    server.put("plain", b"1", &["--meta", "a=b", "--content-type", "text/x"]);
    server.put("mortal", b"2", &["--ttl", "1h"]);
    server.put("short", b"3", &["--ttl", "8s"]);
    for which in 0..8 {
        server.put(format!("filled{which}"), &vec![which; 60_000], &[]);
    }
    let folder = tempfile::tempdir().unwrap();
    let (dest, new) = (folder.path().join("one.shoal"), folder.path().join("new"));
    let done = server.run(&["backup", text_of(&dest)]);
    assert!(
        done.code == 0 && done.text().contains("11 objects") && done.text().contains("whole"),
        "{done:?}"
    );
    let again = server.run(&["backup", text_of(&dest)]);
    assert!(
        again.code == 1 && again.stderr.contains("exists") && again.stderr.contains("--force"),
        "{again:?}"
    );
    assert_eq!(server.run(&["backup", text_of(&dest), "--force"]).code, 0);
    let before = server.run(&["stat", "plain", "--json"]).json();
    let mortal = server.run(&["stat", "mortal", "--json"]).json();
    let to_pipe = server.run(&["backup", "-", "--json"]);
    assert!(to_pipe.code == 0 && to_pipe.stdout.starts_with(b"SHBK"), "{}", to_pipe.stderr);
    let piped = run_with(command(&["backup", "verify", "-"]), &to_pipe.stdout);
    assert_eq!(piped.code, 0, "{}", piped.stderr);

    std::thread::sleep(std::time::Duration::from_millis(8_100));
    let restore = |backup: &Path, more: &[&str]| {
        let words = ["restore", "--data", text_of(&new), text_of(backup), "--size", "64M", "--json"];
        run(&[&words[..], more].concat())
    };
    let done = restore(&dest, &[]);
    assert_eq!((done.code, counted(&done), &done.json()["expired"]), (0, 10, &1.into()), "{}", done.stderr);
    let data = ["--data", text_of(&new)];
    let stat = |key| run(&[&["stat", key, "--json"][..], &data].concat()).json();
    for field in ["modified_ns", "meta", "content_type", "bytes"] {
        assert_eq!(stat("plain")[field], before[field], "{field}");
    }
    let moved =
        stat("mortal")["expire_time_ns"].as_i64().unwrap() - mortal["expire_time_ns"].as_i64().unwrap();
    assert!(moved.abs() < 1_000_000_000, "the deadline moved by {moved} ns");
    let exists = restore(&dest, &[]);
    assert!(exists.code == 1 && exists.stderr.contains("exists"), "{exists:?}");

    // A flipped bit in a value; a cut.
    fs::remove_file(&new).unwrap();
    let whole = fs::read(&dest).unwrap();
    let (flipped, cut) = (folder.path().join("flipped"), folder.path().join("cut"));
    let mut bytes = whole.clone();
    let place = bytes.windows(64).position(|some| some == [3; 64]).expect("the value is in the backup");
    bytes[place] ^= 4;
    fs::write(&flipped, &bytes).unwrap();
    fs::write(&cut, &whole[..whole.len() - 20]).unwrap();
    for backup in [&flipped, &cut] {
        let verified = run(&["backup", "verify", text_of(backup)]);
        assert!(
            verified.code == 1 && verified.stderr.contains("in frame") && verified.stderr.contains("at byte"),
            "{verified:?}"
        );
        let done = restore(backup, &[]);
        assert!(
            done.code == 1 && done.stderr.contains("--past-damage") && done.stderr.contains("at byte"),
            "{done:?}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "no store is left");
        let done = restore(backup, &["--past-damage"]);
        assert_eq!(done.code, 1, "{}", done.stderr);
        let is_cut = backup == &cut;
        assert!(
            counted(&done) == 10 && is_cut || counted(&done) < 10 && counted(&done) > 0 && !is_cut,
            "{}",
            done.text()
        );
        fs::remove_file(&new).unwrap();
    }
    let wrong = restore(Path::new("/etc/passwd"), &[]);
    assert!(wrong.code == 1 && !new.exists(), "{wrong:?}");
}

/// `--rate` is kept, and a backup of a closed store is that of its server.
#[test]
fn a_closed_store_and_a_rate() {
    let server = Server::start();
    for which in 0..4_u8 {
        server.put(format!("k{which}"), &vec![which; 100_000], &[]);
    }
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("slow.shoal");
    let began = std::time::Instant::now();
    assert_eq!(server.run(&["backup", text_of(&dest), "--rate", "200K"]).code, 0);
    assert!(began.elapsed().as_secs_f64() > 1.5, "400 KB at 200 KiB a second take two seconds");
    let data = folder.path().join("data");
    let put = command(&["put", "k", "-", "--data", text_of(&data)]);
    assert_eq!(run_with(put, b"v").code, 0);
    let closed = folder.path().join("closed.shoal");
    let done = run(&["backup", text_of(&closed), "--data", text_of(&data), "--json"]);
    assert_eq!((done.code, counted(&done)), (0, 1), "{}", done.stderr);
}

/// An object that the store could not read is missing in the backup, and no command reports success: not the backup, not its
/// check, not a restore.
#[test]
fn an_unreadable_object_is_named_by_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (data, dest, new) = (at("data"), at("lossy"), at("new"));
    for (key, byte) in [("hurt", 0xA7_u8), ("well", 0x3C)] {
        let put = command(&["put", key, "-", "--data", text_of(&data)]);
        assert_eq!(run_with(put, &vec![byte; 300_000]).code, 0);
    }
    let mut bytes = fs::read(&data).unwrap();
    let place = bytes.windows(64).position(|some| some == [0xA7; 64]).expect("the value is in the file");
    bytes[place + 5_000] ^= 1;
    fs::write(&data, bytes).unwrap();
    let made = run(&["backup", text_of(&dest), "--data", text_of(&data), "--json"]);
    let verified = run(&["backup", "verify", text_of(&dest), "--json"]);
    for done in [made, verified] {
        assert_eq!((done.code, counted(&done)), (1, 1), "{}", done.stderr);
        let missing = done.json()["missing"].clone();
        assert!(
            missing.as_array().unwrap().len() == 1 && missing[0].as_str().unwrap().contains("hurt"),
            "{missing}"
        );
    }
    // An object that the last backup lacks would be missing in every increment after it, and named in none.
    let next = at("next");
    let refused =
        run(&["backup", text_of(&next), "--data", text_of(&data), "--incremental-from", text_of(&dest)]);
    assert!(refused.code == 1 && refused.stderr.contains("make a full backup"), "{refused:?}");
    assert!(!next.exists());
    let shown = run(&["backup", "verify", text_of(&dest)]);
    assert!(!shown.text().contains("it is whole") && shown.text().contains("missing"), "{}", shown.text());
    let restored = run(&["restore", "--data", text_of(&new), text_of(&dest), "--json", "--size", "64M"]);
    assert_eq!((restored.code, counted(&restored)), (1, 1), "{}", restored.stderr);
    assert_eq!(restored.json()["missing"], 1);
}

/// A restore that is killed leaves no store at its place, and does not block the next one.
#[test]
fn a_killed_restore_leaves_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (data, dest, new) = (at("data"), at("backup"), at("new"));
    for which in 0..4 {
        let put = command(&["put", &key(which), "-", "--data", text_of(&data)]);
        assert_eq!(run_with(put, &value(which, 0)).code, 0);
    }
    assert_eq!(run(&["backup", text_of(&dest), "--data", text_of(&data)]).code, 0);
    let bytes = fs::read(&dest).unwrap();
    let mut half = command(&["restore", "--data", text_of(&new), "-", "--size", "64M"]);
    let mut restore = half.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut pipe = restore.stdin.take().unwrap();
    pipe.write_all(&bytes[..bytes.len() / 2]).unwrap();
    let unfinished = at("new.unfinished");
    while !unfinished.exists() {
        std::thread::yield_now();
    }
    restore.kill().unwrap();
    restore.wait().unwrap();
    assert!(!new.exists(), "a part of a store has the name of a whole one");
    let again = run(&["restore", "--data", text_of(&new), text_of(&dest), "--json", "--size", "64M"]);
    assert_eq!((again.code, counted(&again)), (0, 4), "{}", again.stderr);
    assert!(!unfinished.exists());
}

/// A restore right after a killed one failed with "in use": the lock of the killed one lives until its last write is done.
#[test]
fn a_restore_waits_for_the_lock_of_a_killed_one() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file, new) =
        (folder.path().join("data"), folder.path().join("backup"), folder.path().join("new"));
    assert_eq!(run_with(command(&["put", "k", "-", "--data", text_of(&data)]), b"v").code, 0);
    assert_eq!(run(&["backup", "--data", text_of(&data), text_of(&file)]).code, 0);
    let held = fs::File::create(folder.path().join("new.unfinished")).unwrap();
    held.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_secs(2));
            held.unlock().unwrap();
        });
        let done = run(&["restore", "--data", text_of(&new), text_of(&file)]);
        assert!(done.code == 0 && done.text().contains(": 1 object with"), "{}{}", done.text(), done.stderr);
    });
    assert_eq!(run(&["get", "k", "--data", text_of(&new)]).stdout, b"v");
}
