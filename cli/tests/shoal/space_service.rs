//! `shoal space serve` and its clients: an answered call outlives `kill -9`, space that was not committed does not.

use std::path::Path;

use rustix::process::Signal;
use shoal_base::Run;
use shoal_space_service::{ClientOptions, SpaceClient};

use crate::harness::{Process, command, run, signal};
use crate::machine::runtime;

fn serve(file: &Path, options: &[&str]) -> (Process, String) {
    let mut command = command(&["space", "serve", "--listen", "127.0.0.1:0", "--file"]);
    command.arg(file).args(options);
    let mut child = Process::start(command);
    let url = child.says("").split_whitespace().last().unwrap_or_default().to_owned();
    (child, url)
}

#[test]
fn answered_requests_outlive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("space");
    let runtime = runtime();
    let mut mine: Vec<Run> = Vec::new();
    for round in 0..4_u32 {
        let size = ["--size", "4G"];
        let (mut child, url) = serve(&file, if round == 0 { &size } else { &[] });
        runtime.block_on(async {
            let client = SpaceClient::connect(&ClientOptions::new(&url)).await.unwrap();
            for blocks in 1..20 {
                mine.push(client.allocate(blocks + round).await.unwrap());
            }
            let freed = mine.swap_remove(round as usize);
            client.free(&[freed]).await.unwrap();
            let mut pool = client.pool();
            pool.lease(2).await.unwrap();
            mine.extend((0..10).map(|_| pool.allocate(30).unwrap()));
            pool.commit().await.unwrap();
            // Never committed: it is not missed.
            assert!(pool.allocate(200).is_some());
        });
        signal(&child, Signal::KILL);
        child.wait().unwrap();
    }
    mine.sort_unstable();
    assert!(mine.windows(2).all(|pair| !pair[0].overlaps(pair[1])), "no block was handed out twice");
    let (mut child, url) = serve(&file, &["--size", "4G"]);
    runtime.block_on(async {
        let client = SpaceClient::connect(&ClientOptions::new(&url)).await.unwrap();
        let status = client.status().await.unwrap();
        assert_eq!((status.leases, status.sessions), (4, 5), "those that were killed have time left");
        assert_eq!(status.committed_blocks, 4 * 300);
        let direct: u64 = mine.iter().map(|run| u64::from(run.blocks)).sum::<u64>() - 4 * 300;
        assert_eq!(status.free_blocks + status.leased_blocks + direct, status.blocks);
        client.close().await.unwrap();
    });
    let second = run(&["space", "serve", "--listen", "127.0.0.1:0", "--file", file.to_str().unwrap()]);
    assert_eq!(second.code, 1);
    assert!(second.stderr.contains("in use by another process"), "{}", second.stderr);
    signal(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
    let other = run(&["space", "serve", "--size", "8G", "--file", file.to_str().unwrap()]);
    assert_eq!(other.code, 1);
    assert!(other.stderr.contains("is for 4294967296 bytes"), "{}", other.stderr);
    assert_eq!(run(&["space", "serve", "--listen", "0.0.0.0:0", "--file", "x", "--size", "1G"]).code, 2);
}
