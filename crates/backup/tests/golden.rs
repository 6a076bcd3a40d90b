//! A backup of a small store, byte by byte; and what a reader makes of each damage to it.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use shoal_backup::{BackupStream, Damage, Decoder, Event, ObjectRecord};
use shoal_base::{ManualClock, SeededEntropy};
use shoal_device::{Device, MemDevice};
use shoal_engine::{
    Environment, Expiry, FormatOptions, Metadata, ObjectKey, OpenOptions, PutOptions, Store, block_on,
};

const GOLDEN: &[u8] = include_bytes!("golden.shoal");
const LONG_BYTES: usize = 300_000;

fn long_value() -> Vec<u8> {
    (0..LONG_BYTES).map(|at| (at / 1000) as u8).collect()
}

/// Four objects: with metadata, with both kinds of deadlines, empty; and one in two pieces.
fn backup(long: bool) -> Vec<u8> {
    let device = Device::new(Arc::new(MemDevice::new(4_096)));
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000_000));
    let environment = Environment { clock, entropy: Arc::new(SeededEntropy::new(7)) };
    let format = FormatOptions { tablets: 2, ..FormatOptions::for_blocks(4_096) };
    block_on(Store::format(&device, &format, &environment)).unwrap();
    let options = OpenOptions { cache_bytes: 4 << 20, background: false, ..OpenOptions::default() };
    let store = block_on(Store::open(device, options, environment)).unwrap();
    let put = |bucket: &str, key: &[u8], value: &[u8], options: PutOptions| {
        let key = ObjectKey::new(bucket, key).unwrap();
        block_on(store.put(&key, value.to_vec().into(), options)).unwrap();
    };
    let metadata = Metadata {
        content_type: "text/plain".into(),
        user: vec![("colour".into(), bytes::Bytes::from_static(b"blue\0\xFF"))],
    };
    put(
        "alpha",
        b"\0\xFF/..",
        b"hello",
        PutOptions { metadata, modified_ns: Some(5), ..PutOptions::default() },
    );
    let after = Expiry::After(Duration::from_secs(60));
    put("alpha", b"after", b"a", PutOptions { expiry: after, ..PutOptions::default() });
    let at = Expiry::At(1_700_000_100_000_000_000);
    put("beta", b"at", b"", PutOptions { expiry: at, ..PutOptions::default() });
    if long {
        put("beta", b"long", &long_value(), PutOptions::default());
    }
    let mut stream = block_on(BackupStream::begin(&store, 0x0123_4567_89AB_CDEF)).unwrap();
    let mut bytes = Vec::new();
    while let Some(some) = block_on(stream.next()).unwrap() {
        bytes.extend_from_slice(&some);
    }
    drop(stream);
    block_on(store.close()).unwrap();
    bytes
}

/// Everything in `bytes`, pushed in pieces of `piece` bytes.
fn read(bytes: &[u8], piece: usize) -> (Vec<Event>, Vec<Damage>) {
    let (mut decoder, mut events, mut damage) = (Decoder::new(), Vec::new(), Vec::new());
    let mut pieces = bytes.chunks(piece);
    let mut is_over = false;
    loop {
        match decoder.next_event() {
            Ok(Some(event)) => events.push(event),
            Err(found) => damage.push(found),
            Ok(None) if is_over => return (events, damage),
            Ok(None) => match pieces.next() {
                Some(piece) => decoder.push(piece),
                None => {
                    decoder.complete();
                    is_over = true;
                }
            },
        }
    }
}

/// The objects in `events`; those in pieces with what came of them.
fn objects(events: &[Event]) -> Vec<ObjectRecord> {
    let mut all: Vec<ObjectRecord> = Vec::new();
    for event in events {
        match event {
            Event::Objects(objects) => all.extend(objects.iter().cloned()),
            Event::Begin(head) => all.push(ObjectRecord { head: head.clone(), value: bytes::Bytes::new() }),
            Event::Piece { bytes, .. } => {
                let object = all.last_mut().unwrap();
                object.value = [&object.value[..], &bytes[..]].concat().into();
            }
            _ => {}
        }
    }
    all
}

#[test]
fn the_bytes_are_those_of_the_format() {
    let bytes = backup(false);
    if std::env::var_os("SHOAL_WRITE_GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.shoal"), &bytes).unwrap();
    }
    assert!(bytes == GOLDEN, "{bytes:x?}");
}

#[test]
fn the_image_is_read() {
    let (events, damage) = read(GOLDEN, 7);
    assert_eq!(damage, []);
    let Some(Event::Header(header)) = events.first() else { panic!("{events:?}") };
    assert_eq!((header.format, header.taken_ns), (1, 1_700_000_000_000_000_000));
    let mut all = objects(&events);
    all.sort_by(|a, b| a.head.key.encoded().cmp(b.head.key.encoded()));
    let keys: Vec<&[u8]> = all.iter().map(|object| object.head.key.key()).collect();
    assert_eq!(keys, [&b"\0\xFF/.."[..], b"after", b"at"]);
    assert_eq!((&all[0].value[..], all[0].head.modified_ns), (&b"hello"[..], 5));
    assert_eq!(all[0].head.metadata.user[0].1[..], b"blue\0\xFF"[..]);
    assert_eq!(all[0].head.metadata.content_type, "text/plain");
    let deadline = |object: &ObjectRecord| object.head.expiry.map(|it| (it.at_ns, it.is_relative));
    assert_eq!(deadline(&all[0]), None);
    assert_eq!(deadline(&all[1]), Some((1_700_000_060_000_000_000, true)));
    assert_eq!(deadline(&all[2]), Some((1_700_000_100_000_000_000, false)));
    let Some(Event::End(end)) = events.last() else { panic!("{events:?}") };
    assert_eq!((end.objects, end.value_bytes, end.unreadable, end.ranges), (3, 6, 0, 0));
}

#[test]
fn every_flipped_bit_is_noticed_and_the_rest_is_read() {
    let whole = objects(&read(GOLDEN, usize::MAX).0);
    for bit in 0..GOLDEN.len() * 8 {
        let mut bytes = GOLDEN.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (events, damage) = read(&bytes, 100);
        assert!(!damage.is_empty(), "bit {bit}");
        assert!(damage[0].offset <= bit as u64 / 8, "bit {bit}: {damage:?}");
        assert!(matches!(events[0], Event::Header(_)) || matches!(events[1], Event::Header(_)), "bit {bit}");
        // The frames of objects are one here: all of it, or nothing.
        let found = objects(&events);
        assert!(found.is_empty() || found == whole, "bit {bit}");
    }
}

#[test]
fn every_cut_is_noticed() {
    for length in 0..GOLDEN.len() {
        let (events, damage) = read(&GOLDEN[..length], 64);
        assert!(!damage.is_empty(), "{length} bytes");
        assert!(!events.iter().any(|event| matches!(event, Event::End(_))), "{length} bytes");
    }
    let more = [GOLDEN, b"x"].concat();
    let (_, damage) = read(&more, 64);
    assert_eq!((damage.len(), damage[0].offset), (1, GOLDEN.len() as u64));
}

/// A backup in the value of another one is no part of it, wherever that is damaged.
#[test]
fn a_long_value_comes_in_pieces() {
    let bytes = backup(true);
    let (events, damage) = read(&bytes, 4096);
    assert_eq!(damage, []);
    let all = objects(&events);
    let long = all.iter().find(|object| object.head.key.key() == b"long").unwrap();
    assert_eq!(long.value[..], long_value()[..]);
    // The begin of the long object is lost: its pieces are passed, and all else is there.
    let begin = bytes.windows(5).position(|window| window == b"SHBK\x03").unwrap();
    let mut cut = bytes.clone();
    cut[begin + 40] ^= 1;
    let (events, damage) = read(&cut, 4096);
    assert_eq!((damage.len(), damage[0].offset), (1, begin as u64));
    assert_eq!(objects(&events).len(), all.len() - 1);
    assert!(matches!(events.last(), Some(Event::End(_))));
    // A frame that is missing.
    let next = begin + bytes[begin + 1..].windows(4).position(|window| window == b"SHBK").unwrap() + 1;
    let missing = [&bytes[..begin], &bytes[next..]].concat();
    let (events, damage) = read(&missing, 4096);
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(objects(&events).len(), all.len() - 1);
}
