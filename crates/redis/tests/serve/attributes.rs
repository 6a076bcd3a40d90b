//! Attributes of objects (`docs/format/object.md`) under commands that write: those that describe the value go with it.

use shoal_engine::{Attributes, ByteRange, Metadata, Object, ObjectKey, PutOptions, Store, block_on};
use shoal_redis::RedisOptions;

use crate::permissions::COMMANDS;
use crate::support::{Client, serve};

/// A tag that no command interprets.
const OTHER: u8 = 200;
const OBJECTS: [(&str, &str); 3] = [("K", "x1"), ("L", "y2"), ("N", "10")];

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(&RedisOptions::default().bucket, name.as_bytes()).unwrap()
}

/// Puts an object whose ETag and checksum are its value.
fn put(store: &Store, name: &str, value: &str) {
    let mut metadata = Metadata::default();
    for tag in [Attributes::ETAG, Attributes::CHECKSUM] {
        metadata.attributes.set(tag, Some(value.as_bytes()));
    }
    metadata.attributes.set(OTHER, Some(b"kept"));
    let options = PutOptions { metadata, ..PutOptions::default() };
    block_on(store.put(&key(name), value.as_bytes().to_vec().into(), options)).unwrap();
}

fn get(store: &Store, name: &str) -> Option<Object> {
    block_on(store.get(&key(name), ByteRange::ALL)).unwrap()
}

/// Every command of the matrix of permissions, which a test compares with the table of commands.
#[test]
fn no_command_leaves_the_etag_of_another_value() {
    let served = serve(RedisOptions::default());
    let (mut changed, mut kept) = (Vec::new(), Vec::new());
    for (line, _) in COMMANDS.iter().filter(|(_, needs)| needs.contains("write")) {
        OBJECTS.iter().for_each(|(name, value)| put(&served.store, name, value));
        Client::new(&served).run(line);
        for (name, before) in OBJECTS {
            let Some(object) = get(&served.store, name) else { continue };
            let (value, attributes) = (object.value.to_vec(), object.info.metadata.attributes);
            for tag in [Attributes::ETAG, Attributes::CHECKSUM] {
                assert!(attributes.get(tag).is_none_or(|of| of == value), "{line}: {name} is {value:?}");
            }
            if value != before.as_bytes() && attributes.get(Attributes::ETAG).is_none() {
                changed.push((*line, attributes.get(OTHER).is_some()));
            } else if attributes.get(Attributes::ETAG).is_some() && value != before.as_bytes() {
                kept.push(*line);
            }
        }
    }
    // A command that replaces the value alone keeps the other attributes.
    for line in ["append K v", "decr N", "incr N", "incrbyfloat N 1", "setbit K 0 1", "setrange K 0 v"] {
        assert!(changed.contains(&(line, true)), "{line}: {changed:?}");
    }
    for line in ["set K v", "mset K v L v", "bitop and K L L", "getset K v"] {
        assert!(changed.contains(&(line, false)), "{line}: {changed:?}");
    }
    assert_eq!(kept, ["copy K L replace", "rename K L", "shoal.session 1 3 rename K L"]);
}

#[test]
fn a_changed_deadline_keeps_all_attributes() {
    let served = serve(RedisOptions::default());
    put(&served.store, "K", "v");
    let before = get(&served.store, "K").unwrap().info.metadata;
    for line in ["expire K 1000", "persist K", "getex K ex 1000"] {
        Client::new(&served).run(line);
        assert_eq!(get(&served.store, "K").unwrap().info.metadata, before, "{line}");
    }
}
