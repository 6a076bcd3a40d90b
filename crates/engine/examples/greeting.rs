//! The program of docs/embedded.md, word for word: a test compares the two.
//! `cargo run -p shoal-engine --example greeting`

use shoal_engine::{ByteRange, ObjectKey, PathOptions, PutOptions, Result, Store};

fn main() -> Result<()> {
    // Made, if it is not there.
    let store = shoal_engine::block_on(Store::open_path("notes.data", PathOptions::default()))?;
    let key = ObjectKey::new("default", b"greeting")?;
    // Durable on return.
    shoal_engine::block_on(store.put(&key, b"hello".to_vec().into(), PutOptions::default()))?;
    let object = shoal_engine::block_on(store.get(&key, ByteRange::ALL))?.expect("it was just put");
    assert_eq!(object.value.to_vec(), b"hello");
    shoal_engine::block_on(store.close())
}
