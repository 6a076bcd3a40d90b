//! [`Store::open_path`]: a file is created once, opened afterwards, and no foreign file is touched.

use std::path::{Path, PathBuf};

use shoal_engine::{ByteRange, Error, ObjectKey, OpenOptions, PathOptions, PutOptions, Store, block_on};

/// The name of a file under construction.
fn unfinished_name(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.unfinished", path.display()))
}

fn small() -> PathOptions {
    let open = OpenOptions { cache_bytes: 4 << 20, ..OpenOptions::default() };
    PathOptions { bytes_max: 64 << 20, open, ..PathOptions::default() }
}

fn refusal(path: &Path, options: PathOptions) -> String {
    match block_on(Store::open_path(path, options)) {
        Err(Error::Unopenable(why)) => why,
        other => panic!("{:?}", other.map(|_| "it was opened")),
    }
}

#[test]
fn a_store_is_made_once_and_then_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    // Left by an interrupted opening.
    std::fs::write(unfinished_name(&path), [0; 8192]).unwrap();
    let key = ObjectKey::new("default", b"k").unwrap();
    let store = block_on(Store::open_path(&path, small())).unwrap();
    block_on(store.put(&key, b"v"[..].into(), PutOptions::default())).unwrap();
    assert!(refusal(&path, small()).contains("in use by another process"));
    block_on(store.close()).unwrap();
    drop(store);
    assert!(!unfinished_name(&path).exists());
    let mut reader = small();
    reader.open.read_only = true;
    let store = block_on(Store::open_path(&path, reader)).unwrap();
    let object = block_on(store.get(&key, ByteRange::ALL)).unwrap().expect("it was put");
    assert_eq!(object.value.to_vec(), b"v");
}

#[test]
fn readers_create_nothing_and_foreign_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let mut reader = small();
    reader.open.read_only = true;
    let never = PathOptions { create: false, ..small() };
    for options in [reader, never] {
        assert!(refusal(&path, options).contains("does not exist"));
        assert!(!path.exists());
    }
    std::fs::write(unfinished_name(&path), b"mine").unwrap();
    assert!(refusal(&path, small()).contains("data.unfinished is in the way"));
    assert_eq!(std::fs::read(unfinished_name(&path)).unwrap(), b"mine");
    std::fs::remove_file(unfinished_name(&path)).unwrap();
    for text in [vec![], b"mine".repeat(5000)] {
        std::fs::write(&path, &text).unwrap();
        refusal(&path, small());
        assert_eq!(std::fs::read(&path).unwrap(), text);
    }
    assert!(refusal(folder.path(), small()).contains("neither a regular file nor a block device"));
    let tiny = PathOptions { bytes_max: 4096, ..small() };
    assert!(matches!(block_on(Store::open_path(folder.path().join("tiny"), tiny)), Err(Error::Invalid(_))));
}
