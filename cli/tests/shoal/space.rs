//! The map and the dump of a store's free space, by a server and without one.

use std::fs;

use rustix::process::Signal;

use crate::harness::{Server, command, run, serve, signal};

/// The blocks of the runs in a dump, and the number of runs; panics if they are not ascending and apart.
fn dumped(path: &str) -> (u64, u64) {
    let text = fs::read_to_string(path).unwrap();
    let (head, runs) = text.split_once('\n').unwrap();
    assert!(head.starts_with("# shoal free space 1, block_bytes 4096, blocks "), "{head}");
    let (mut end, mut sum, mut count) = (None, 0, 0);
    for line in runs.lines() {
        let (block, blocks) = line.split_once(' ').unwrap();
        let (block, blocks): (u64, u64) = (block.parse().unwrap(), blocks.parse().unwrap());
        assert!(blocks > 0 && end.is_none_or(|end| block > end), "{line}");
        (end, sum, count) = (Some(block + blocks), sum + blocks, count + 1);
    }
    (sum, count)
}

#[test]
fn free_space_is_mapped_and_dumped() {
    let mut server = Server::start();
    let path = |name: &str| server.folder.path().join(name).into_os_string().into_string().unwrap();
    let (large, dump, data) = (path("large"), path("dump"), path("data"));
    fs::write(&large, vec![7; 3 << 20]).unwrap();
    let url = server.url.clone();
    assert_eq!(run(&["put", "large", &large, "--server", &url]).code, 0);

    let text = run(&["stat", "--map", "--server", &url]);
    for words in ["free runs", "4.0 MiB or more", "fragmentation", "share of the free space"] {
        assert!(text.text().contains(words), "{}", text.text());
    }
    let done = run(&["stat", "--map", "--json", "--dump-space", &dump, "--server", &url]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let map = done.json()["map"].clone();
    assert_eq!(dumped(&dump), (map["free_blocks"].as_u64().unwrap(), map["free_runs"].as_u64().unwrap()));

    // The same from the file alone, once the server has left it.
    signal(&server.child, Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    let done = run(&["stat", "--map", "--json", "--dump-space", &dump, "--data", &data]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let alone = done.json()["map"].clone();
    // The file may have grown meanwhile, ahead of need.
    assert!(alone["blocks"].as_u64().unwrap() >= map["blocks"].as_u64().unwrap(), "{alone} {map}");
    let free = alone["free_blocks"].as_u64().unwrap();
    assert_eq!(dumped(&dump).0, free);
    // At least the object is in use; closing the store wrote the records of the log.
    assert!(free <= alone["blocks"].as_u64().unwrap() - 768, "{alone}");

    let wrong = run(&["stat", "--dump-space", "/nonexistent/dump", "--data", &data]);
    assert_eq!(wrong.code, 1, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("cannot write /nonexistent/dump"), "{}", wrong.stderr);
    assert_eq!(run(&["stat", "key", "--map", "--data", &data]).code, 2);
}

/// A bucket has separate groups, before a restart and after it; its free space can be dumped.
#[test]
fn a_bucket_has_its_own_groups() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let (value, dump) = (path("value"), path("dump"));
    fs::write(&value, vec![7; 300_000]).unwrap();
    let mut own = 0;
    for restart in 0..2 {
        let options = ["--own-space", "films,mail"];
        let (mut child, url) = serve(&folder.path().join("data"), &options);
        for index in 0..20 {
            let key = format!("{restart}-{index}");
            assert_eq!(run(&["put", &key, &value, "--bucket", "films", "--server", &url]).code, 0);
        }
        let figures = run(&["stat", "--json", "--server", &url]).json()["figures"].clone();
        assert_eq!(figures["own.buckets"], 2);
        let blocks = figures["own.groups"].as_u64().unwrap();
        assert!(blocks > own, "{blocks} after {own}");
        own = blocks;
        assert_eq!(run(&["stat", "--dump-space", &dump, "--server", &url]).code, 0);
        assert!(dumped(&dump).0 > 0);
        for (what, paused) in [("pause", 1), ("resume", 0)] {
            assert_eq!(run(&["relocation", what, "--server", &url]).code, 0);
            assert_eq!(
                run(&["stat", "--json", "--server", &url]).json()["figures"]["relocation.paused"],
                paused
            );
        }
        let refused = run(&["put", "x", &value, "--bucket", ".shoal", "--server", &url]);
        assert!(refused.stderr.contains("the store's own"), "{}", refused.stderr);
        signal(&child, Signal::TERM);
        assert!(child.wait().unwrap().success());
    }
    let data = path("data");
    let twice = command(&["serve", "--data", &data, "--own-space", "a,a", "--listen", "127.0.0.1:0"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&twice.stderr).contains("named twice"), "{twice:?}");
}
