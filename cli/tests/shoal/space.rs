//! The map and the dump of a store's free space, by a server and without one.

use std::fs;

use rustix::process::Signal;

use crate::harness::{Server, run, signal};

/// The blocks of the runs in a dump, and how many runs there are; panics where they are not ascending and apart.
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
    // At least the object is in use; closing the store wrote what the log held.
    assert!(free <= alone["blocks"].as_u64().unwrap() - 768, "{alone}");

    let wrong = run(&["stat", "--dump-space", "/nonexistent/dump", "--data", &data]);
    assert_eq!(wrong.code, 1, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("cannot write /nonexistent/dump"), "{}", wrong.stderr);
    assert_eq!(run(&["stat", "key", "--map", "--data", &data]).code, 2);
}
