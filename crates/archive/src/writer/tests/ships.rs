//! The common cases, over a folder.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use shoal_base::Lsn;

use super::replay::{check, replay};
use super::*;

/// All objects below a folder.
fn contents(folder: &tempfile::TempDir) -> BTreeMap<String, Bytes> {
    fn walk(root: &Path, at: &Path, out: &mut BTreeMap<String, Bytes>) {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, out);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                out.insert(name, std::fs::read(&path).unwrap().into());
            }
        }
    }
    let (root, mut out) = (folder.path().join("bucket"), BTreeMap::new());
    walk(&root, &root, &mut out);
    out
}

#[tokio::test]
async fn store_is_shipped_to_a_folder_and_continued_after_a_stop_and_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, bucket) = (disk(1 << 20), folder_bucket(&folder));
    let options = ArchiverOptions { linger: Duration::from_millis(20), ..options(&folder) };
    for round in 0..3 {
        let server = Server::start(&disk, Arc::clone(&bucket), &options, round).await;
        server.opened().await;
        for at in 0..40 {
            server.store.put(&format!("b\0{at}"), [10, 99, 5_000, 300_000][at % 4]);
            if at == 20 {
                // 9 MiB: three pieces.
                server.store.put("b\0long", 9 << 20);
                server.catch_up().await;
            }
        }
        if round == 1 {
            drop(server.archiver);
        } else {
            server.archiver.stop(Duration::from_secs(10)).await;
            assert_eq!(server.state(), ArchiverState::Stopped);
            assert_eq!(server.archiver.archived().0, server.store_last());
        }
        server.store.close();
    }
    let objects = contents(&folder);
    let (record, logs) = replay(&objects, &VOLUME);
    assert_eq!((record.epoch, logs.len()), (3, 3));
    assert!(logs[0].is_closed && !logs[1].is_closed && logs[2].is_closed);
    let gaps: Vec<bool> = logs.iter().map(|log| log.opening.unwrap().1).collect();
    assert_eq!(gaps, [true, false, false], "only the first log needs a base");
    let disk = disk.lock();
    let last = *disk.history.keys().next_back().unwrap();
    assert_eq!(check(&logs, |_| true, &disk.history, Lsn(last)), disk.history.len());
}

/// Writers wait for a log that nobody releases: a store must not depend on the archive's task.
#[tokio::test]
async fn store_continues_after_a_panic_of_the_archiver() {
    let folder = tempfile::tempdir().unwrap();
    let disk = disk(1 << 20);
    let server = Server::start(&disk, folder_bucket(&folder), &options(&folder), 1).await;
    server.opened().await;
    server.store.panics.store(true, Ordering::Relaxed);
    server.store.put("b\0long", 5_000);
    for number in 0..3 {
        let last = server.store.put(&format!("b\0{number}"), 10);
        let limit = tokio::time::Instant::now() + Duration::from_secs(60);
        while disk.lock().floor < last {
            assert!(tokio::time::Instant::now() < limit, "{:?}", server.archiver.status());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(
        matches!(server.state(), ArchiverState::Refused { why } if why.contains("an error of the program"))
    );
    server.archiver.stop(Duration::from_secs(10)).await;
}

/// The values of a batch are read side by side: on a device that answers in a millisecond, one after the other would be a thousand a second.
#[tokio::test]
async fn values_of_a_batch_are_read_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, bucket) = (disk(16 << 20), folder_bucket(&folder));
    let options = ArchiverOptions { memory_bytes: 32 << 20, ..options(&folder) };
    let server = Server::start(&disk, bucket, &options, 1).await;
    server.opened().await;
    let value = Bytes::from(vec![7; 60_000]);
    server.store.write((0..50_u8).map(|at| (vec![b'b', 0, at], Some(value.clone()), false)).collect());
    server.catch_up().await;
    let at_once = server.store.bytes_read_at_once();
    assert!((900_000..=1 << 20).contains(&at_once), "{at_once} bytes at a time");
    server.store.put("b\0long", 3 << 20);
    server.catch_up().await;
    assert_eq!(server.store.bytes_read_at_once(), 3 << 20, "a long value is read alone");
    let (_, logs) = replay(&contents(&folder), &VOLUME);
    assert_eq!(logs.len(), 1);
    server.archiver.stop(Duration::from_secs(10)).await;
}
