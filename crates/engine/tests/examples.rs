//! Runs the programs of `examples/`.

// As they stand there.
#[path = "../examples/embedded.rs"]
mod embedded;

use shoal_engine::{OpenOptions, PathOptions, block_on};

#[test]
fn the_embedded_store_does_what_its_example_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.data");
    let open = OpenOptions { cache_bytes: 16 << 20, ..OpenOptions::default() };
    let options = PathOptions { bytes_max: 256 << 20, open, ..PathOptions::default() };
    embedded::blocking(&path, options.clone()).unwrap();
    let listed = block_on(embedded::asynchronous(&path, options)).unwrap();
    assert_eq!(listed, ["notes/a", "notes/b", "notes/c"]);
}
