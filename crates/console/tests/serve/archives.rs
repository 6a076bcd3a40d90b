//! Folders as archives.

use std::time::Duration;

use shoal_storekit::{in_time, put};

use crate::support::Running;

/// The names and contents of a tar without extended headers.
fn tar_entries(mut tar: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut entries = Vec::new();
    while tar[0] != 0 {
        let text = |range: std::ops::Range<usize>| {
            String::from_utf8(tar[range].to_vec()).unwrap().trim_end_matches('\0').to_owned()
        };
        let bytes = usize::from_str_radix(&text(124..135), 8).unwrap();
        entries.push((text(0..100), tar[512..512 + bytes].to_vec()));
        tar = &tar[512 + bytes.next_multiple_of(512)..];
    }
    assert_eq!(tar.len(), 1024, "two empty blocks end it");
    entries
}

/// The names of a zip, by its directory, with their contents.
fn zip_entries(zip: &[u8]) -> Vec<(String, Vec<u8>)> {
    let number = |at: usize, bytes: usize| {
        zip[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    let end = zip.len() - 22;
    assert_eq!(&zip[end..end + 4], b"PK\x05\x06");
    let (count, mut at) = (number(end + 10, 2), number(end + 16, 4));
    let mut entries = Vec::new();
    for _ in 0..count {
        assert_eq!(&zip[at..at + 4], b"PK\x01\x02");
        let (sum, bytes, name) = (number(at + 16, 4), number(at + 24, 4), number(at + 28, 2));
        let (extra, local) = (number(at + 30, 2), number(at + 42, 4));
        let content = local + 30 + number(local + 26, 2) + number(local + 28, 2);
        let content = zip[content..content + bytes].to_vec();
        let mut crc = flate2::Crc::new();
        crc.update(&content);
        assert_eq!(crc.sum() as usize, sum);
        entries.push((String::from_utf8(zip[at + 46..at + 46 + name].to_vec()).unwrap(), content));
        at += 46 + name + extra;
    }
    assert_eq!(at, end);
    entries
}

#[tokio::test]
async fn a_folder_is_downloaded_as_a_whole() {
    let running = Running::start();
    let mut page = running.admin().await;
    page.put("/s3/bkt", &[], b"").await;
    let large: Vec<u8> = (0..3 << 20 | 77).map(|at: u32| (at / 251) as u8).collect();
    put(&running.store, "bkt", b"x/y/", "");
    put(&running.store, "bkt", b"x/y/a", "A");
    put(&running.store, "bkt", b"x/y/large", large.clone());
    put(&running.store, "bkt", b"x/y/none", "");
    put(&running.store, "bkt", b"x/z", "other");
    let expected = [
        ("y/".to_owned(), Vec::new()),
        ("y/a".to_owned(), b"A".to_vec()),
        ("y/large".to_owned(), large),
        ("y/none".to_owned(), Vec::new()),
    ];
    let tar = page.get("/api/archive?bucket=bkt&prefix=x%2Fy%2F&format=tar").await;
    assert_eq!(tar.header("content-disposition"), Some("attachment; filename=\"y.tar\""));
    assert!(tar.is_whole && tar_entries(&tar.body) == expected);
    let zip = page.get("/api/archive?bucket=bkt&prefix=x%2Fy%2F&format=zip").await;
    assert_eq!(zip.header("content-type"), Some("application/zip"));
    assert!(zip.is_whole && zip_entries(&zip.body) == expected);
}

#[tokio::test]
async fn names_in_an_archive_are_safe_and_different() {
    let running = Running::open();
    let mut page = running.admin().await;
    for key in ["../../etc/x", "/abs", "a//b", "a/_/b", "a/b", "nul\0", "ok"] {
        put(&running.store, "bkt", key.as_bytes(), key);
    }
    let zip = page.get("/api/archive?bucket=bkt&format=zip").await;
    let entries = zip_entries(&zip.body);
    let mut names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["__/__/etc/x~1", "_/abs~1", "a/_/b~1", "a/_/b", "a/b", "nul_~1", "ok"]);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 7);
    assert_eq!(entries[0].1, b"../../etc/x");
}

#[tokio::test]
async fn an_archive_needs_both_grants_and_an_object() {
    let running = Running::start();
    let mut admin = running.admin().await;
    admin.put("/s3/bkt", &[], b"").await;
    admin.put("/s3/bkt/in/a", &[], b"v").await;
    let status = async |grant: &str, target: &str| running.signed_in(grant).await.get(target).await.status;
    let target = "/api/archive?bucket=bkt&prefix=in/";
    assert_eq!(status("read,list bkt/in/*", target).await, 200);
    assert_eq!(status("read bkt/in/*", target).await, 403);
    assert_eq!(status("list bkt/in/*", target).await, 403);
    assert_eq!(status("read,list bkt/in/*", "/api/archive?bucket=bkt&prefix=i").await, 403);
    assert_eq!(status("read,list bkt/in/*", "/api/archive?bucket=none").await, 403);
    assert_eq!(status("all *", "/api/archive?bucket=none").await, 404);
    assert_eq!(status("all *", "/api/archive?bucket=bkt&prefix=none").await, 404);
    assert_eq!(status("all *", "/api/archive?bucket=bkt&format=rar").await, 400);
    assert_eq!(status("all *", "/api/archive?bucket=.shoal").await, 400);
}

/// It would look complete otherwise.
#[tokio::test]
async fn an_archive_of_a_revoked_key_is_cut() {
    let running = Running::start();
    for number in 0..48 {
        put(&running.store, "bkt", format!("{number:02}").as_bytes(), vec![0; 1 << 20]);
    }
    for format in ["tar", "zip"] {
        let page = running.signed_in("read,list bkt").await;
        let mut slow = page.again().await;
        slow.send_head(
            "GET",
            &format!("/api/archive?bucket=bkt&format={format}"),
            &[("cookie", &page.cookie)],
            0,
        )
        .await;
        assert_eq!(in_time("a head", slow.receive_head()).await.status, 200);
        // The server waits for its reader.
        tokio::time::sleep(Duration::from_millis(100)).await;
        running.book.file.lock().entries.clear();
        running.book.enforce();
        let mut body = Vec::new();
        assert!(!in_time("the end", slow.receive_chunks(&mut body)).await, "{format}");
        assert!(body.len() < 48 << 20, "{format}");
    }
}

/// A reader that goes away holds no memory, and the memory of an archive does not follow its length.
#[tokio::test]
async fn an_archive_holds_little_memory_and_gives_it_back() {
    let running = Running::start();
    for number in 0..48 {
        put(&running.store, "bkt", format!("{number:02}").as_bytes(), vec![0; 1 << 20]);
    }
    let page = running.signed_in("read,list bkt").await;
    let mut slow = page.again().await;
    slow.send_head("GET", "/api/archive?bucket=bkt", &[("cookie", &page.cookie)], 0).await;
    slow.receive_head().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let held = || running.metrics.console().connections().unwrap().memory_bytes;
    assert!((3 << 20..4 << 20).contains(&held()), "{}", held());
    drop(slow);
    drop(page);
    in_time("the memory", async {
        while held() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
