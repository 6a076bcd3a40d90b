//! Increments: chains of them against the state of each version, and every way in which links do not belong together.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shoal_client::{Expiry, PutOptions, RejectRules};

use crate::harness::{Done, Server, assert_clean, client_of, command, run, run_with, serve, text_of};

/// The objects of a store, by bucket and key.
type State = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// All objects of a closed data file.
fn contents(data: &Path, folder: &Path) -> State {
    let (mut child, url) = serve(data, &[]);
    let (runtime, client) = client_of(&url);
    let mut all = State::new();
    runtime.block_on(async {
        for bucket in client.list_buckets("").await.unwrap().names {
            let request = shoal_client::ListRequest { bucket: bucket.clone(), ..Default::default() };
            let page = client.list(&request).await.unwrap();
            assert!(page.next.is_none(), "a page has all keys of this test");
            for entry in page.entries {
                let object = client.get(&bucket, &entry.key, shoal_client::ByteRange::ALL).await.unwrap();
                all.insert((bucket.clone(), entry.key.to_vec()), object.unwrap().value.to_vec());
            }
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(folder.exists());
    all
}

fn restore(new: &Path, chain: &[PathBuf], more: &[&str]) -> Done {
    let mut words = vec!["restore", "--data", text_of(new), "--size", "128M", "--json"];
    words.extend(chain.iter().map(|link| text_of(link)));
    words.extend(more);
    run(&words)
}

fn verify(chain: &[PathBuf]) -> Done {
    run(&[&["backup", "verify"][..], &chain.iter().map(|link| text_of(link)).collect::<Vec<_>>()].concat())
}

fn key(which: u32) -> Vec<u8> {
    [b"k\0\xFF/\xC3".as_slice(), &which.to_be_bytes(), &vec![b'x'; which as usize % 90]].concat()
}

fn value(which: u32, state: u32) -> Vec<u8> {
    let bytes = [0, 40, 3_000, 20_000, 300_000][which as usize % 5] + state as usize;
    (0..bytes).map(|at| (at / 5) as u8 ^ which as u8 ^ state as u8).collect()
}

/// A server under load: the full backup, and three increments. Each prefix of the chain is the store of its version.
#[test]
fn a_chain_under_load_is_the_store_of_each_version() {
    const STILL: u32 = 150;
    let server = Server::start();
    let (runtime, client) = client_of(&server.url);
    let put = async |bucket: &str, which: u32, state: u32| {
        client.put(bucket, &key(which), value(which, state).into(), PutOptions::default()).await.unwrap()
    };
    for which in 0..STILL {
        runtime.block_on(put(["one", "two"][which as usize % 2], which, 0));
    }
    let at = |name: &str| server.folder.path().join(name);
    let mut chain: Vec<PathBuf> = Vec::new();
    let mut states: Vec<(u64, State)> = Vec::new();
    // Keys from STILL on pass through states under load, and are deleted now and then; the written states, by version.
    let written = std::sync::Mutex::new(Vec::<(u64, u32, Option<u32>)>::new());
    let stop = AtomicBool::new(false);
    let mut still: State = (0..STILL)
        .map(|which| ((["one", "two"][which as usize % 2].into(), key(which)), value(which, 0)))
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for state in 1.. {
                for which in STILL..STILL + 10 {
                    let version = if (state + which) % 4 == 0 {
                        let done =
                            runtime.block_on(client.delete("load", &key(which), RejectRules::default()));
                        (done.unwrap().version.0, None)
                    } else {
                        (runtime.block_on(put("load", which, state)).version.0, Some(state))
                    };
                    written.lock().unwrap().push((version.0, which, version.1));
                }
                if stop.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        for link in 0..4_u32 {
            let dest = at(&format!("link{link}"));
            let mut words = vec!["backup", text_of(&dest), "--json"];
            if let Some(last) = chain.last() {
                words.extend(["--incremental-from", text_of(last)]);
                // Between two backups some of the others change, too.
                for which in (link * 20..link * 20 + 12).filter(|which| which % 3 > 0) {
                    let bucket = ["one", "two"][which as usize % 2];
                    if which % 3 == 1 {
                        runtime.block_on(put(bucket, which, link));
                        still.insert((bucket.into(), key(which)), value(which, link));
                    } else {
                        runtime.block_on(client.delete(bucket, &key(which), RejectRules::default())).unwrap();
                        still.remove(&(bucket.into(), key(which)));
                    }
                }
            }
            let done = server.run(&words);
            assert_eq!(done.code, 0, "{}", done.stderr);
            states.push((done.json()["version"].as_u64().unwrap(), still.clone()));
            chain.push(dest);
        }
        stop.store(true, Ordering::Release);
    });
    let mut written = written.into_inner().unwrap();
    written.sort_unstable();
    let sizes: Vec<u64> = chain.iter().map(|link| fs::metadata(link).unwrap().len()).collect();
    assert!(sizes[1..].iter().all(|size| size * 2 < sizes[0]), "{sizes:?}");
    let verified = verify(&chain);
    assert_eq!(verified.code, 0, "{}", verified.stderr);
    for (links, (version, mut expected)) in (1..).zip(states) {
        for (put, which, state) in written.iter().filter(|(put, _, _)| *put <= version) {
            let _ = put;
            let name = ("load".to_owned(), key(*which));
            match state {
                Some(state) => expected.insert(name, value(*which, *state)),
                None => expected.remove(&name),
            };
        }
        let new = at(&format!("new{links}"));
        let done = restore(&new, &chain[..links], &[]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert_eq!(done.json()["objects"], expected.len());
        assert!(done.json()["first_version"].as_u64().unwrap() >= version + (1 << 40));
        let found = contents(&new, server.folder.path());
        assert!(found == expected, "{} links: {} objects instead of {}", links, found.len(), expected.len());
        assert_clean(&new);
        // A part of it.
        let part = at(&format!("part{links}"));
        assert_eq!(restore(&part, &chain[..links], &["--bucket", "two"]).code, 0);
        expected.retain(|(bucket, _), _| bucket == "two");
        assert!(contents(&part, server.folder.path()) == expected, "{links} links of one bucket");
    }
}

/// Links that do not belong together are refused before anything is written, and the file that is wrong is named.
#[test]
fn broken_backup_chain_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (data, other) = (at("data"), at("other"));
    let put = |data: &Path, key: &str, value: &[u8]| {
        assert_eq!(run_with(command(&["put", key, "-", "--data", text_of(data)]), value).code, 0);
    };
    let backup = |data: &Path, name: &str, last: Option<&str>| {
        let (dest, last) = (at(name), last.map(at));
        let mut words = vec!["backup", text_of(&dest), "--data", text_of(data)];
        words.extend(last.iter().flat_map(|last| ["--incremental-from", text_of(last)]));
        run(&words)
    };
    put(&data, "a", b"1");
    put(&other, "a", b"1");
    assert_eq!(backup(&data, "full", None).code, 0);
    put(&data, "b", b"2");
    let old = fs::read(&data).unwrap();
    for (name, last) in [("one", "full"), ("two", "one"), ("three", "two")] {
        put(&data, name, &[7; 70_000]);
        let done = backup(&data, name, Some(last));
        assert!(done.code == 0 && done.text().contains("increment"), "{done:?}");
    }
    let new = at("new");
    let named = |names: &[&str]| names.iter().map(|name| at(name)).collect::<Vec<_>>();
    assert_eq!(backup(&other, "foreign", None).code, 0);
    let (wrong, right) = (["one", "two"], ["full", "one", "two", "three"]);
    for (chain, file, words) in [
        (&wrong[..], "one", "before it"),
        (&["full", "two"], "two", "missing"),
        (&["full", "two", "one"], "two", "missing"),
        (&["full", "one", "three"], "three", "missing"),
        (&["full", "one", "full"], "full", "full backup"),
        (&["foreign", "one"], "one", "another store"),
    ] {
        for done in [restore(&new, &named(chain), &[]), verify(&named(chain))] {
            assert!(done.code == 1, "{chain:?}: {done:?}");
            assert!(
                done.stderr.contains(words) && done.stderr.contains(text_of(&at(file))),
                "{}",
                done.stderr
            );
        }
        assert!(!new.exists() && !at("new.unfinished").exists(), "{chain:?}");
    }
    assert_eq!(verify(&named(&right)).code, 0);
    assert_eq!(restore(&new, &named(&right), &[]).json()["objects"], 5);

    // The last backup of an increment: of another store, newer than the store, damaged, cut off, of format 1, of itself.
    let refused = |data: &Path, last: &str, words: &str| {
        let done = backup(data, "refused", Some(last));
        assert!(done.code != 0 && done.stderr.contains(words), "{last}: {done:?}");
        assert!(!at("refused").exists() && !at("refused.unfinished").exists());
    };
    refused(&other, "full", "another store");
    let whole = fs::read(at("three")).unwrap();
    fs::write(
        at("damaged"),
        whole.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 9_000)).collect::<Vec<_>>(),
    )
    .unwrap();
    fs::write(at("cut"), &whole[..whole.len() - 9]).unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/backup/tests/golden.shoal"), at("one.format"))
        .unwrap();
    refused(&data, "damaged", "damaged in frame");
    refused(&data, "cut", "at byte");
    refused(&data, "one.format", "make a full backup");
    refused(&data, "data", "damaged");
    fs::write(&data, old).unwrap();
    refused(&data, "three", "put back");
    let verified = verify(&named(&["one.format"]));
    assert_eq!(verified.code, 0, "{}", verified.stderr);
    let done = run(&["backup", text_of(&at("x")), "--data", text_of(&data), "--incremental-from", "-"]);
    assert_eq!(done.code, 2, "{done:?}");
    let three = at("three");
    let words = [
        "backup",
        text_of(&three),
        "--force",
        "--data",
        text_of(&data),
        "--incremental-from",
        text_of(&three),
    ];
    assert_eq!(run(&words).code, 2);
    assert_eq!(fs::read(&three).unwrap(), whole);
}

/// An object whose time is over at the restore is absent, also if an older link of the chain has it for ever; one that a link damaged is
/// never called clean.
#[test]
fn expired_and_damaged_links() {
    let server = Server::start();
    let at = |name: &str| server.folder.path().join(name);
    server.put("for-ever", b"1", &[]);
    server.put("mortal", b"old copy", &[]);
    server.put("gone", b"gone soon", &[]);
    server.put("short", b"2", &["--ttl", "1s"]);
    server.put("large", &[3; 200_000], &[]);
    let (full, one, two) = (at("full"), at("one"), at("two"));
    server.ok(&["backup", text_of(&full)]);
    server.put("mortal", b"new copy", &["--ttl", "3s"]);
    server.put("large", &[4; 400_000], &[]);
    server.ok(&["rm", "gone"]);
    server.ok(&["backup", text_of(&one), "--incremental-from", text_of(&full)]);
    server.put("later", b"3", &[]);
    server.ok(&["backup", text_of(&two), "--incremental-from", text_of(&one)]);
    std::thread::sleep(Duration::from_millis(3_100));
    let chain = [full, one.clone(), two];
    let names = |data: &Path| -> Vec<String> {
        let keys = contents(data, server.folder.path()).into_keys();
        keys.map(|(_, key)| String::from_utf8(key).unwrap()).collect()
    };
    let new = at("new");
    let done = restore(&new, &chain, &[]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(names(&new), ["for-ever", "large", "later"]);
    assert_eq!(
        contents(&new, server.folder.path())[&("default".into(), b"large".to_vec())],
        vec![4; 400_000]
    );
    fs::remove_file(&new).unwrap();

    let whole = fs::read(&one).unwrap();
    for (name, kind) in [("piece", 4_u8), ("objects", 2), ("index", 7), ("deleted", 8), ("header", 1)] {
        let frame = whole.windows(5).position(|some| some[..4] == *b"SHBK" && some[4] == kind).unwrap();
        let mut bytes = whole.clone();
        bytes[frame + 40] ^= 2;
        let damaged = at(name);
        fs::write(&damaged, bytes).unwrap();
        let chain = [chain[0].clone(), damaged, chain[2].clone()];
        for done in [verify(&chain), restore(&new, &chain, &[])] {
            assert!(done.code == 1 && done.stderr.contains("at byte"), "{name}: {done:?}");
        }
        assert!(!new.exists());
        let done = restore(&new, &chain, &["--past-damage"]);
        assert_eq!(done.code, 1, "{name}: {}", done.stderr);
        assert_eq!(done.json()["damage"].as_array().unwrap().len(), 1);
        let found = names(&new);
        let expected: &[&str] = match kind {
            // The copy of the full backup stays.
            2 => &["for-ever", "large", "later", "mortal"],
            8 => &["for-ever", "gone", "large", "later"],
            _ => &["for-ever", "large", "later"],
        };
        assert_eq!(found, expected, "{name}");
        fs::remove_file(&new).unwrap();
    }
    let shown = run(&[
        "restore",
        "--data",
        text_of(&new),
        "--size",
        "64M",
        "--past-damage",
        text_of(&chain[0]),
        text_of(&at("deleted")),
    ]);
    assert!(shown.code == 1 && shown.text().contains("those of the backup before"), "{shown:?}");
}

/// The snapshot of a backup that takes too long is dropped: the backup reports that and the next step; the existing part stays
/// for --resume.
#[test]
fn dropped_snapshot_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (data, dest) = (folder.path().join("data"), folder.path().join("dest"));
    let (mut child, url) = serve(&data, &["--snapshot-max-age", "1s", "--memtable", "1M"]);
    let (runtime, client) = client_of(&url);
    let put = async |which: u32| {
        let options = PutOptions { expiry: Expiry::Never, ..PutOptions::default() };
        client.put("b", &which.to_be_bytes(), vec![1; 50_000].into(), options).await.unwrap();
    };
    (0..400).for_each(|which| runtime.block_on(put(which)));
    let words = ["backup", text_of(&dest), "--server", &url, "--rate", "4M"];
    let stop = AtomicBool::new(false);
    let backup = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                (0..400).for_each(|which| runtime.block_on(put(which)));
            }
        });
        let done = run(&words);
        stop.store(true, Ordering::Release);
        load.join().unwrap();
        done
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(backup.code, 1, "{backup:?}");
    for words in ["dropped", "snapshot-max-age", "take a new one", "--resume continues it"] {
        assert!(backup.stderr.contains(words), "{}", backup.stderr);
    }
    assert!(!backup.stderr.contains("outcome"), "{}", backup.stderr);
    assert!(!dest.exists() && folder.path().join("dest.unfinished").exists());
}

/// A full backup that is killed continues: objects that changed meanwhile, deletions in its finished part included, are as
/// the store has them at the end.
#[test]
fn killed_backup_resumes() {
    const COUNT: u32 = 6_000;
    let server = Server::start();
    let (runtime, client) = client_of(&server.url);
    let key = |which: u32| format!("key-{which:05}").into_bytes();
    let put = async |which: u32, bytes: usize, byte: u8| {
        client.put("b", &key(which), vec![byte; bytes].into(), PutOptions::default()).await.unwrap();
    };
    let mut expected = State::new();
    for which in 0..COUNT {
        runtime.block_on(put(which, 3_000, 1));
        expected.insert(("b".into(), key(which)), vec![1; 3_000]);
    }
    let at = |name: &str| server.folder.path().join(name);
    let (dest, unfinished, part) = (at("dest"), at("dest.unfinished"), at("dest.part"));
    let nothing = server.run(&["backup", text_of(&dest), "--resume"]);
    assert!(nothing.code == 1 && nothing.stderr.contains("without --resume"), "{nothing:?}");
    let mut slow = server.command(&["backup", text_of(&dest), "--rate", "5M"]);
    let mut child = slow.stderr(std::process::Stdio::null()).spawn().unwrap();
    while fs::metadata(&unfinished).map_or(0, |it| it.len()) < 10 << 20 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let busy = server.run(&["backup", text_of(&dest), "--resume"]);
    assert!(busy.code == 1 && busy.stderr.contains("another backup"), "{busy:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    for which in (0..COUNT).step_by(7) {
        if which % 2 == 0 {
            runtime.block_on(put(which, 200, 2));
            expected.insert(("b".into(), key(which)), vec![2; 200]);
        } else {
            runtime.block_on(client.delete("b", &key(which), RejectRules::default())).unwrap();
            expected.remove(&("b".into(), key(which)));
        }
    }
    let done = server.run(&["backup", text_of(&dest), "--resume", "--json"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(!unfinished.exists());
    let [first, rest] = [&part, &dest].map(|file| fs::metadata(file).unwrap().len());
    assert!(first > 4 << 20 && rest > 4 << 20 && first + rest < 22 << 20, "{first} and {rest} bytes");
    let chain = [part.clone(), dest.clone()];
    assert_eq!(verify(&chain).code, 0);
    let new = at("new");
    let alone = restore(&new, &chain[..1], &[]);
    assert!(alone.code == 1 && alone.stderr.contains("interrupted backup") && !new.exists(), "{alone:?}");
    assert_eq!(verify(&chain[..1]).code, 0, "it is whole as what it is");
    let done = restore(&new, &chain, &[]);
    assert_eq!((done.code, &done.json()["objects"]), (0, &expected.len().into()), "{}", done.stderr);
    // More than a page of a listing.
    for which in (0..COUNT).step_by(61) {
        let done =
            run(&["get", std::str::from_utf8(&key(which)).unwrap(), "-b", "b", "--data", text_of(&new)]);
        let found = (done.code == 0).then_some(done.stdout);
        assert_eq!(found.as_ref(), expected.get(&("b".into(), key(which))), "{which}");
    }
    // An increment continues the resumed one as any other.
    let next = at("next");
    server.ok(&["backup", text_of(&next), "--incremental-from", text_of(&dest)]);
    assert_eq!(verify(&[part, dest, next]).code, 0);
}
