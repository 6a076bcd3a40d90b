//! Commands over a store with one leaf that is damaged on the file: they return the rest, name the range, and exit with code 1.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::harness::{Done, Server, assert_clean, check, command, run, run_with, serve};

pub(crate) const FILES: u32 = 6_000;
const BLOCK_BYTES: usize = 4096;

fn value(number: u32) -> String {
    format!("value-of-{number:05};")
}

/// A closed store of small objects, with a damaged leaf: that of object 700.
fn damaged(server: &mut Server) -> PathBuf {
    damaged_at(server, 700)
}

/// The same with the leaf of another object; that of the last one hides the buckets after `default`, too.
pub(crate) fn damaged_at(server: &mut Server, number: u32) -> PathBuf {
    let tree = server.folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..FILES {
        fs::write(tree.join(format!("{number:05}")), value(number)).unwrap();
    }
    server.ok(&["import", tree.to_str().unwrap(), "--prefix", "small/"]);
    server.child.stop();
    let data = server.folder.path().join("data");
    assert_clean(&data);
    let bytes = fs::read(&data).unwrap();
    let sought = value(number).into_bytes();
    let file = OpenOptions::new().write(true).open(&data).unwrap();
    let mut leaves = 0;
    for (block, page) in bytes.chunks(BLOCK_BYTES).enumerate() {
        // A checksum, "Sp", the version of the format, level 0.
        let is_leaf = page[4..6] == *b"Sp" && page[7] == 0;
        if is_leaf && page.windows(sought.len()).any(|window| window == sought) {
            file.write_all_at(b"rot", (block * BLOCK_BYTES + 3_000) as u64).unwrap();
            leaves += 1;
        }
    }
    assert!(leaves > 0, "nothing was applied");
    data
}

fn on(data: &Path, words: &[&str]) -> Done {
    let mut all = words.to_vec();
    all.extend(["--data", data.to_str().unwrap()]);
    run(&all)
}

#[test]
fn listing_skips_damaged_leaf_and_reports_it() {
    let mut server = Server::start();
    let data = damaged(&mut server);
    let done = on(&data, &["ls", "small/"]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    let listed: BTreeSet<&str> = done.text().lines().collect();
    let lost: Vec<String> = (0..FILES)
        .map(|number| format!("small/{number:05}"))
        .filter(|key| !listed.contains(&key[..]))
        .collect();
    assert!(lost.contains(&"small/00700".to_owned()) && lost.len() < 1_000, "{} are missing", lost.len());
    // The log may report it first.
    let warning = done.stderr.lines().find(|line| line.starts_with("shoal: ")).unwrap();
    assert!(
        warning.contains("warning: keys of tablet") && warning.contains("cannot be read"),
        "{}",
        done.stderr
    );
    assert!(done.stderr.contains("--acknowledge"), "{}", done.stderr);

    // The ranges for programs hold every key that is missing.
    let done = on(&data, &["ls", "small/", "--json"]);
    let lines: Vec<serde_json::Value> =
        done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ranges: Vec<&serde_json::Value> = lines.iter().filter_map(|line| line.get("damaged")).collect();
    assert!(done.code == 1 && !ranges.is_empty());
    for key in &lost {
        let holds = |range: &&&serde_json::Value| {
            range["from"].as_str().unwrap() <= &key[..] && range["to"].as_str().is_none_or(|to| &key[..] < to)
        };
        assert!(ranges.iter().any(|range| holds(&range)), "{key}");
    }
    let folder = server.folder.path().join("out");
    let done = on(&data, &["export", "small/", folder.to_str().unwrap(), "--json"]);
    let report = done.json();
    assert_eq!(done.code, 1);
    assert_eq!(report["files"], FILES as usize - lost.len());
    assert_eq!(report["damaged"].as_array().unwrap().len(), ranges.len());

    // The same through a server.
    let (child, url) = serve(&data, &[]);
    server.child = child;
    server.url = url;
    let done = server.run(&["ls", "small/"]);
    assert_eq!((done.code, done.text().lines().count()), (1, FILES as usize - lost.len()), "{}", done.stderr);
    let done = server.run(&["get", "small/00700"]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("not known") && done.stderr.contains("check --repair"), "{}", done.stderr);
    let done = run_with(server.command(&["put", "small/00700", "-", "--if-absent"]), b"x");
    assert_eq!(done.code, 1, "nobody knows whether it is absent");
    server.put("small/00700", b"anew", &[]);
    assert_eq!(server.ok(&["get", "small/00700"]), b"anew");
    server.ok(&["rm", &lost[0]]);
    assert_eq!(server.run(&["get", &lost[0]]).code, 3);
    let done = server.run(&["rm", "--prefix", "small/"]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(
        done.text().contains("deleted") && done.stderr.contains("warning: keys of tablet"),
        "{}",
        done.stderr
    );
    server.child.stop();

    // A key whose loss is accepted is absent: no damage is left, and the loss is counted until it is acknowledged, too.
    let done = check(&data, &["--acknowledge", "--json"]);
    let report = done.json();
    assert!(!report["acknowledged"].as_array().unwrap().is_empty(), "{report}");
    assert_eq!((&report["problems_left"], &report["clean"]), (&0.into(), &false.into()), "{report}");
    let lost_now = report["losses"]["lost"].as_u64().unwrap();
    assert!(done.code == 1 && lost_now > 0, "{report}");
    assert_eq!(report["losses_remembered"]["lost"], lost_now, "{report}");
    let done = check(&data, &[]);
    assert!(done.code == 1 && done.text().contains("repaired with losses:"), "{}", done.text());
    assert_eq!(check(&data, &["--acknowledge"]).code, 0);
    assert_clean(&data);
    // The log restored them, or they do not exist; in either case that is known.
    for key in lost.iter().skip(1).take(5) {
        let done = on(&data, &["get", key]);
        let is_absent = done.code == 3 && done.stderr.contains("no such object");
        assert!(done.code == 0 || is_absent, "{}", done.stderr);
        let put = command(&["put", key, "-", "--if-absent", "--data", data.to_str().unwrap()]);
        assert_eq!(run_with(put, b"x").code == 0, is_absent);
    }
}
