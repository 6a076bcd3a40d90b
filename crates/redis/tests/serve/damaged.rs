//! Commands over a store with a damaged leaf: a command that needs nothing of it succeeds, and one that needs it reports the
//! damage.

use std::collections::BTreeSet;

use shoal_device::Device;
use shoal_device_sim::Image;
use shoal_engine::{DEFAULT_BUCKET, Environment, Store, block_on};
use shoal_redis::RedisOptions;
use shoal_storekit::{names, put};
use shoal_testkit::device::quiet;

use crate::support::{BLOCKS, Client, Seen, kit, serve_store};

const KEYS: usize = 2_000;

/// A store of 2,000 keys with one leaf damaged, and the keys that it hides.
fn damaged_store() -> (Store, BTreeSet<Vec<u8>>) {
    let sim = quiet(Image::new(BLOCKS));
    let device = Device::new(sim.clone());
    let store = kit().create(&device);
    for number in 0..KEYS {
        put(&store, DEFAULT_BUCKET, format!("key{number:06}").as_bytes(), b"value");
    }
    let all = names(&store, DEFAULT_BUCKET);
    assert_eq!(all.len(), KEYS);
    block_on(store.close()).unwrap();
    drop(store);
    let image = sim.image();
    // A leaf starts with a checksum, "Sp", the version of its format, and level 0; a look shows whether it is part of the
    // newest tree.
    let leaves =
        (0..BLOCKS).filter(|&block| image.block(block)[4..6] == *b"Sp" && image.block(block)[7] == 0);
    for block in leaves {
        sim.corrupt(block, 2_000, 1);
        let store = kit().open(&device);
        let hidden: BTreeSet<Vec<u8>> = all.difference(&names(&store, DEFAULT_BUCKET)).cloned().collect();
        if hidden.len() > 10 {
            return (store, hidden);
        }
        drop(store);
        sim.corrupt(block, 2_000, 1);
    }
    panic!("no leaf holds keys");
}

fn strings(seen: Seen) -> BTreeSet<Vec<u8>> {
    let Seen::Array(items) = seen else { panic!("{seen:?}") };
    let string = |item| if let Seen::Bulk(bytes) = item { bytes } else { panic!("{item:?}") };
    items.into_iter().map(string).collect()
}

fn scanned(client: &mut Client) -> BTreeSet<Vec<u8>> {
    let (mut cursor, mut keys) = ("0".to_owned(), BTreeSet::new());
    loop {
        let Seen::Array(mut parts) = client.run(&format!("SCAN {cursor} COUNT 100")) else {
            panic!("two parts")
        };
        keys.extend(strings(parts.pop().unwrap()));
        let Some(Seen::Bulk(next)) = parts.pop() else { panic!("a cursor") };
        cursor = String::from_utf8(next).unwrap();
        if cursor == "0" {
            return keys;
        }
    }
}

#[track_caller]
fn is_unknown(seen: &Seen) {
    assert!(
        matches!(seen, Seen::Error(text) if text.starts_with("DAMAGED ") && text.contains("not known")),
        "{seen:?}"
    );
}

#[test]
fn commands_skip_damage_and_overwrite_damaged_keys() {
    let (store, hidden) = damaged_store();
    let served = serve_store(store, RedisOptions::default(), Environment::default());
    let mut client = Client::new(&served);
    let left = (KEYS - hidden.len()) as i64;
    assert_eq!(client.run("DBSIZE"), Seen::Integer(left));
    let keys = strings(client.run("KEYS *"));
    assert_eq!((keys.len() as i64, keys.intersection(&hidden).count()), (left, 0));
    assert_eq!(scanned(&mut client), keys);
    assert!(matches!(client.run("RANDOMKEY"), Seen::Bulk(key) if keys.contains(&key)));

    // The single range is named, and contains every missing key.
    let Seen::Array(ranges) = client.run("SHOAL.DAMAGE") else { panic!("an array") };
    let [Seen::Array(range)] = &ranges[..] else { panic!("{ranges:?}") };
    let field = |name: &str| &range[range.iter().position(|item| *item == name.into()).unwrap() + 1];
    let (Seen::Integer(_), Seen::Bulk(from)) = (field("tablet"), field("from")) else { panic!("{range:?}") };
    assert!(hidden.iter().all(|key| key >= from));
    if let Seen::Bulk(to) = field("to") {
        assert!(hidden.iter().all(|key| key < to));
    }
    let Seen::Bulk(info) = client.run("INFO damage") else { panic!("a text") };
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains("damaged_ranges:1\r\n") && info.contains("damaged_range0:tablet="), "{info}");

    // A command that needs the state of a lost key fails, because the state is unknown; one that needs nothing of it is done.
    let mut lost = hidden.iter().map(|key| String::from_utf8(key.clone()).unwrap());
    let mut next = || lost.next().unwrap();
    let key = next();
    for command in ["GET", "EXISTS", "STRLEN", "TTL", "TYPE", "INCR", "GETDEL", "PERSIST"] {
        is_unknown(&client.run(&format!("{command} {key}")));
    }
    for command in ["SETNX", "APPEND", "GETSET", "EXPIRE"] {
        is_unknown(&client.run(&format!("{command} {key} 1")));
    }
    is_unknown(&client.run(&format!("SET {key} 1 NX")));
    is_unknown(&client.run(&format!("MSETNX {key} 1 other 2")));
    assert_eq!(client.run(&format!("DEL {key}")), Seen::Integer(1));
    assert_eq!(client.run(&format!("DEL {key}")), Seen::Integer(0));
    client.script(&format!(
        "EXISTS {key} => :0\nSETNX {key} new => :1\nAPPEND {key} er => :5\nGET {key} => newer"
    ));
    let key = next();
    client.script(&format!("SET {key} v => +OK\nGET {key} => v\nEXISTS {key} => :1\nINCR {key} => -ERR value is not an integer or out of range"));
    let (one, two) = (next(), next());
    client.script(&format!(
        "UNLINK {one} {two} => :2\nUNLINK {one} {two} => :0\nMSET {one} 1 {two} 2 => +OK\nINCR {two} => :3"
    ));
    // A write that is done once keeps its result if that place was never lost, or is known by now.
    let key = next();
    client.script(&format!(
        "SHOAL.SESSION 77 1 DEL {key} => :1\nSHOAL.SESSION 77 1 DEL {key} => :1\nEXISTS {key} => :0"
    ));

    // All named keys are deleted; other keys of the range stay unknown.
    let other = next();
    client.script("FLUSHALL => +OK\nDBSIZE => :0\nSET after 1 => +OK\nDBSIZE => :1");
    is_unknown(&client.run(&format!("GET {other}")));
}
