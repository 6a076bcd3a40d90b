//! A folder as a bucket.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use shoal_base::SystemEntropy;

use crate::bucket::*;

fn open(folder: &std::path::Path) -> Result<ArchiveBucket, BucketError> {
    let address: BucketAddress = format!("file://{}", folder.display()).parse().unwrap();
    let options = BucketOptions { puts_per_second: 100_000, patience: Duration::from_secs(1) };
    ArchiveBucket::open(&address, options, Arc::new(SystemEntropy))
}

#[tokio::test]
async fn a_folder_keeps_all_promises() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = open(folder.path()).unwrap();
    bucket.probe(ProbeDepth::Full).await.unwrap();
    bucket.probe(ProbeDepth::Short).await.unwrap();
    let name = "log/0000000000000001/0000000000000000";
    assert_eq!(bucket.create(name, Bytes::from_static(b"segment")).await, Ok(CreateOutcome::Created));
    // The layout is that of any store, and nothing else is left.
    assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"segment");
    assert_eq!(fs::read_dir(folder.path().join(".unfinished")).unwrap().count(), 0);
    let mut listed = Vec::new();
    bucket.list("log", |object| listed.push(object)).await.unwrap();
    assert_eq!(listed, [BucketEntry { name: name.to_owned(), bytes: 7 }]);
    bucket.list("base", |object| panic!("{object:?}")).await.unwrap();
    // No empty folder is left, and a disk that is gone is named.
    bucket.delete(name).await.unwrap();
    assert!(!folder.path().join("log").exists() && !folder.path().join("probe").exists());
    let path = folder.path().to_owned();
    folder.close().unwrap();
    let error = bucket.create(name, Bytes::from_static(b"segment")).await.unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()) && error.contains("must exist"), "{error}");
}

/// A disk that is not mounted yet is no empty archive, and is used once it is there.
#[tokio::test]
async fn a_missing_folder_is_refused_until_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("not-mounted");
    let bucket = open(&path).unwrap();
    let get = bucket.get("record").await.unwrap_err().to_string();
    let create = bucket.create("record", Bytes::from_static(b"r")).await.unwrap_err().to_string();
    for missing in [get, create] {
        assert!(missing.contains("not-mounted") && missing.contains("must exist"), "{missing}");
    }
    assert!(!path.exists());
    fs::create_dir(&path).unwrap();
    assert_eq!(bucket.get("record").await, Ok(None));
    assert_eq!(bucket.create("record", Bytes::from_static(b"r")).await, Ok(CreateOutcome::Created));
    // Another disk comes in its place.
    fs::rename(&path, folder.path().join("away")).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(bucket.create("record", Bytes::from_static(b"s")).await.is_err());
    assert_eq!(bucket.create("record", Bytes::from_static(b"s")).await, Ok(CreateOutcome::Created));
    fs::write(folder.path().join("file"), "").unwrap();
    let file = open(&folder.path().join("file")).unwrap().get("record").await.unwrap_err().to_string();
    assert!(file.contains("is not a folder"), "{file}");
}

/// A file that a crash left unfinished is removed an hour later; one that is being written stays.
#[tokio::test]
async fn abandoned_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(open(folder.path()).unwrap().get("record").await, Ok(None));
    let path = |name: &str| folder.path().join(".unfinished").join(name);
    for name in ["old", "new"] {
        fs::write(path(name), "half of a segm").unwrap();
    }
    let old = fs::File::options().write(true).open(path("old")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(4_000)).unwrap();
    let bucket = open(folder.path()).unwrap();
    bucket.list("log", |object| panic!("{object:?}")).await.unwrap();
    assert_eq!((path("old").exists(), path("new").exists()), (false, true));
}
