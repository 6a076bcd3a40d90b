//! The bucket against real stores: a folder, and the addresses in `SHOAL_ARCHIVE_BUCKETS`, separated by spaces (`.ci/archive-buckets`).

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use shoal_archive::bucket::*;
use shoal_base::{Entropy, SystemEntropy};

fn open(address: &str) -> ArchiveBucket {
    let options = BucketOptions { puts_per_second: 1_000, patience: Duration::from_secs(20) };
    ArchiveBucket::open(&address.parse().unwrap(), options, Arc::new(SystemEntropy)).unwrap()
}

/// Everything that the archive asks of a store.
async fn session(address: &str) {
    let bucket = open(address);
    let start = Instant::now();
    let full = bucket.probe(ProbeDepth::Full).await.unwrap_or_else(|refusal| panic!("{address}: {refusal}"));
    let time = start.elapsed();
    bucket.probe(ProbeDepth::Short).await.unwrap_or_else(|refusal| panic!("{address}: {refusal}"));
    let log = SystemEntropy.next_u64();
    let name = |seq: usize| format!("log/{log:016x}/{seq:016x}");
    // One as long as a full segment; and from a store that has pages of listings, more than one page of objects.
    let objects = if address.starts_with("file") { 60 } else { 1_100 };
    let body = |seq: usize| Bytes::from(vec![seq as u8; if seq == 7 { 8 << 20 } else { 200 }]);
    for seq in 0..objects {
        assert_eq!(bucket.create(&name(seq), body(seq)).await, Ok(CreateOutcome::Created), "{address}");
    }
    let again = bucket.create(&name(7), body(8)).await;
    assert!(
        matches!(again, Ok(CreateOutcome::Exists { object_bytes: 8_388_608, .. })),
        "{address}: {again:?}"
    );
    assert_eq!(bucket.get(&name(7)).await.unwrap().unwrap().bytes, body(7), "{address}");
    assert_eq!(bucket.get(&name(objects)).await, Ok(None), "{address}");
    let mut listed = Vec::new();
    bucket.list(&format!("log/{log:016x}"), |object| listed.push(object)).await.unwrap();
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    let expected = |seq| BucketEntry { name: name(seq), bytes: body(seq).len() as u64 };
    assert!(listed.iter().cloned().eq((0..objects).map(expected)), "{address}: {} are listed", listed.len());
    for object in &listed {
        bucket.delete(&object.name).await.unwrap();
    }
    bucket.list(&format!("log/{log:016x}"), |object| panic!("{address}: {object:?}")).await.unwrap();
    let counts = bucket.counters();
    let failures = counts.failures.load(Ordering::Relaxed);
    println!("{address}: {} checks in {time:?}; {objects} objects; {failures} failed attempts", full.checks);
}

/// Errors name the object and the reason: a bucket that does not exist, and a server that is away.
async fn refusals(address: &str) {
    let missing = open(&address.replacen("s3://archive/", "s3://no-such-bucket/", 1));
    let error = missing.create("record", Bytes::from_static(b"x")).await.unwrap_err();
    assert!(matches!(error, BucketError::Refused { .. }), "{address}: {error}");
    assert!(
        error.to_string().starts_with("record: ") && error.to_string().contains("NoSuchBucket"),
        "{error}"
    );
    let options = BucketOptions { puts_per_second: 10, patience: Duration::from_secs(1) };
    let away = "s3://archive/of/tests?endpoint=http://127.0.0.1:1".parse().unwrap();
    let away = ArchiveBucket::open(&away, options, Arc::new(SystemEntropy)).unwrap();
    let error = away.get("record").await.unwrap_err();
    assert!(matches!(error, BucketError::Undecided { .. }), "{error}");
}

#[tokio::test]
async fn a_folder_keeps_its_promises() {
    let folder = tempfile::tempdir().unwrap();
    session(&format!("file://{}", folder.path().display())).await;
}

#[tokio::test]
async fn stores_keep_their_promises() {
    for address in std::env::var("SHOAL_ARCHIVE_BUCKETS").unwrap_or_default().split_whitespace() {
        session(address).await;
        refusals(address).await;
    }
}
