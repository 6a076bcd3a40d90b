//! Backups of a small store, byte by byte: one of format 1, a full one and an increment of format 2; and a reader's result for each damage
//! to them.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use shoal_backup::{
    BackupStream, Contents, Damage, Decoder, Event, IncrementWriter, IndexKeys, LastBackup, NotChanges,
    ObjectRecord,
};
use shoal_base::ManualClock;
use shoal_engine::{
    BucketConfig, Expiry, KeyPlace, Metadata, ObjectKey, PutOptions, RejectRules, Store, block_on,
};
use shoal_storekit::StoreKit;

/// Of format 1, which no program writes any more.
const FORMAT_1: &[u8] = include_bytes!("golden.shoal");
const FULL: &[u8] = include_bytes!("golden-full.shoal");
const INCREMENT: &[u8] = include_bytes!("golden-increment.shoal");
const LONG_BYTES: usize = 300_000;

fn long_value() -> Vec<u8> {
    (0..LONG_BYTES).map(|at| (at / 1000) as u8).collect()
}

fn put(store: &Store, bucket: &str, key: &[u8], value: &[u8], options: PutOptions) {
    let key = ObjectKey::new(bucket, key).unwrap();
    block_on(store.put(&key, value.to_vec().into(), options)).unwrap();
}

fn all(mut stream: BackupStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(some) = block_on(stream.next()).unwrap() {
        bytes.extend_from_slice(&some);
    }
    bytes
}

/// The index of a backup, frame by frame.
fn index(events: &[Event]) -> Vec<IndexKeys> {
    let keys = |event: &Event| if let Event::Index(keys) = event { Some(keys.clone()) } else { None };
    events.iter().filter_map(keys).collect()
}

/// The increment that is based on `last`.
fn increment(store: &Store, last: &[u8]) -> Vec<u8> {
    let (events, _) = read(last, 1_000);
    let Some(Event::Header(header)) = events.first() else { panic!("{events:?}") };
    let index = index(&events);
    let pages = index.iter().flat_map(|keys| &keys.keys).filter_map(|placed| match placed.place {
        KeyPlace::Page(page) => Some(page),
        _ => None,
    });
    let last =
        LastBackup { store: header.store, version: header.version, pages: pages.collect(), up_to: None };
    let stream = block_on(BackupStream::begin_since(store, 0xFEDC_BA98_7654_3210, &last)).unwrap();
    let (events, damage) = read(&all(stream), 10_000);
    assert_eq!(damage, []);
    let mut index = index.into_iter();
    let (mut writer, mut out) = (IncrementWriter::new(0x0123_4567_89AB_CDEF), Vec::new());
    for event in events {
        writer.take::<NotChanges>(event, &mut || Ok(index.next()), &mut out).unwrap();
    }
    out
}

/// Four objects: with metadata, with both kinds of deadlines, empty; and one in two pieces.
fn store(long: bool) -> (Store, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000_000));
    let store = StoreKit::steady(4_096, &clock).in_memory();
    let put = |bucket: &str, key: &[u8], value: &[u8], options: PutOptions| {
        put(&store, bucket, key, value, options)
    };
    let metadata = Metadata {
        content_type: "text/plain".into(),
        user: vec![("colour".into(), bytes::Bytes::from_static(b"blue\0\xFF"))],
        ..Metadata::default()
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
    (store, clock)
}

fn full(store: &Store) -> Vec<u8> {
    all(block_on(BackupStream::begin(store, 0x0123_4567_89AB_CDEF)).unwrap())
}

fn backup(long: bool) -> Vec<u8> {
    let (store, _) = store(long);
    let bytes = full(&store);
    block_on(store.close()).unwrap();
    bytes
}

/// A full backup, and an increment of one change, one deletion and one new object; one object expired meanwhile.
fn chain() -> (Vec<u8>, Vec<u8>) {
    let (store, clock) = store(false);
    let full = full(&store);
    clock.advance(61_000_000_000);
    put(
        &store,
        "alpha",
        b"\0\xFF/..",
        b"again",
        PutOptions { modified_ns: Some(6), ..PutOptions::default() },
    );
    put(&store, "beta", b"new", b"n", PutOptions { modified_ns: Some(7), ..PutOptions::default() });
    let key = ObjectKey::new("beta", b"at").unwrap();
    block_on(store.delete(&key, RejectRules::default())).unwrap();
    let increment = increment(&store, &full);
    block_on(store.close()).unwrap();
    (full, increment)
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

/// The objects in `events`; an object in pieces with the pieces that came.
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
fn bytes_match_the_format() {
    let (full, increment) = chain();
    if std::env::var_os("SHOAL_WRITE_GOLDEN").is_some() {
        let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
        std::fs::write(format!("{tests}/golden-full.shoal"), &full).unwrap();
        std::fs::write(format!("{tests}/golden-increment.shoal"), &increment).unwrap();
    }
    assert!(full == FULL, "{full:x?}");
    assert!(increment == INCREMENT, "{increment:x?}");
}

#[test]
fn an_increment_is_read() {
    let (events, damage) = read(INCREMENT, 9);
    assert_eq!(damage, []);
    let (full, _) = read(FULL, usize::MAX);
    let (Event::Header(header), Event::Header(before)) = (&events[0], &full[0]) else { panic!("{events:?}") };
    assert_eq!(header.contents, Contents::Increment { from: before.version });
    assert_eq!((header.store, header.format), (before.store, 2));
    assert_eq!(before.contents, Contents::Full);
    let mut values: Vec<_> = objects(&events).into_iter().map(|object| object.value.to_vec()).collect();
    values.sort();
    assert_eq!(values, [b"again".to_vec(), b"n".to_vec()]);
    let deleted = events.iter().filter_map(|event| match event {
        Event::Deleted(keys) => Some(keys.iter().map(|key| key.key().to_vec())),
        _ => None,
    });
    let mut deleted: Vec<_> = deleted.flatten().collect();
    deleted.sort();
    // The store knew at its version that the time of one was over.
    assert_eq!(deleted, [b"after".to_vec(), b"at".to_vec()]);
    let mut keys: Vec<_> =
        index(&events).into_iter().flat_map(|keys| keys.keys).map(|placed| placed.key).collect();
    keys.sort();
    assert_eq!(keys, [b"alpha\0\0\xFF/..".to_vec(), b"beta\0new".to_vec()]);
    let Some(Event::End(end)) = events.last() else { panic!("{events:?}") };
    assert_eq!((end.objects, end.deleted, end.keys, end.value_bytes), (2, 2, 2, 6));
}

#[test]
fn the_full_images_are_read() {
    for (format, image) in [(1, FORMAT_1), (2, FULL)] {
        read_full(format, image);
    }
    assert!(index(&read(FORMAT_1, 7).0).is_empty());
    let keys: usize = index(&read(FULL, 7).0).iter().map(|keys| keys.keys.len()).sum();
    assert_eq!(keys, 3);
}

fn read_full(format: u32, image: &[u8]) {
    let (events, damage) = read(image, 7);
    assert_eq!(damage, []);
    let Some(Event::Header(header)) = events.first() else { panic!("{events:?}") };
    assert_eq!((header.format, header.taken_ns), (format, 1_700_000_000_000_000_000));
    assert_eq!(header.contents, Contents::Full);
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

/// Damage of every kind of frame: every changed bit is noticed, and costs no more than its frame.
#[test]
fn every_flipped_bit_is_detected_and_rest_is_read() {
    for image in [FORMAT_1, FULL, INCREMENT] {
        let whole = read(image, usize::MAX).0;
        for bit in 0..image.len() * 8 {
            let mut bytes = image.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (events, damage) = read(&bytes, 100);
            assert!(!damage.is_empty(), "bit {bit}");
            assert!(damage[0].offset <= bit as u64 / 8, "bit {bit}: {damage:?}");
            assert!(
                matches!(events[0], Event::Header(_)) || matches!(events[1], Event::Header(_)),
                "bit {bit}"
            );
            let kept = events.iter().filter(|event| !matches!(event, Event::Skipped(_)));
            let kept: Vec<_> = kept.collect();
            assert!(kept.len() + 1 >= whole.len(), "bit {bit}: more than one frame is lost");
            assert!(kept.iter().all(|event| whole.contains(event)), "bit {bit}: an event was made up");
        }
    }
}

#[test]
fn every_truncation_is_detected() {
    for image in [FORMAT_1, FULL, INCREMENT] {
        for length in 0..image.len() {
            let (events, damage) = read(&image[..length], 64);
            assert!(!damage.is_empty(), "{length} bytes");
            assert!(!events.iter().any(|event| matches!(event, Event::End(_))), "{length} bytes");
        }
        let more = [image, b"x"].concat();
        let (_, damage) = read(&more, 64);
        assert_eq!((damage.len(), damage[0].offset), (1, image.len() as u64));
    }
}

/// A backup in the value of another one is no part of it, for any damage.
#[test]
fn a_long_value_comes_in_pieces() {
    let bytes = backup(true);
    let (events, damage) = read(&bytes, 4096);
    assert_eq!(damage, []);
    let all = objects(&events);
    let long = all.iter().find(|object| object.head.key.key() == b"long").unwrap();
    assert_eq!(long.value[..], long_value()[..]);
    // The head of the long object is lost: its pieces are skipped, and all else is there.
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

/// A store with attributes writes version 3, which restores them; any other store writes the bytes of version 2.
#[test]
fn attributes_are_in_a_backup_of_version_3() {
    let (store, _) = store(false);
    let header_of = |events: &[Event]| match events.first() {
        Some(Event::Header(header)) => header.format,
        other => panic!("{other:?}"),
    };
    let before = full(&store);
    assert_eq!(header_of(&read(&before, 1_000).0), 2);
    let mut metadata = Metadata { content_type: "a/b".into(), ..Metadata::default() };
    metadata.attributes.set(1, Some(&[7; 16]));
    metadata.attributes.set(200, Some(b"later"));
    for (name, bytes) in [("short", 10), ("long", LONG_BYTES)] {
        let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
        put(&store, "alpha", name.as_bytes(), &vec![1; bytes], options);
    }
    for bytes in [full(&store), increment(&store, &before)] {
        let (events, damage) = read(&bytes, 1_000);
        assert_eq!((header_of(&events), damage.len()), (3, 0));
        let heads = objects(&events).into_iter().map(|object| object.head.metadata);
        let with: Vec<_> = heads.filter(|metadata| !metadata.attributes.is_empty()).collect();
        assert_eq!(with, [metadata.clone(), metadata.clone()]);
    }
    block_on(store.close()).unwrap();
}

fn records(events: &[Event]) -> Vec<(String, Vec<u8>)> {
    let record = |event: &Event| match event {
        Event::Bucket(bucket) => Some((bucket.name.clone(), bucket.record.to_vec())),
        _ => None,
    };
    events.iter().filter_map(record).collect()
}

/// Each backup has all records of buckets, changed or not, as they were at its version.
#[test]
fn every_backup_has_all_records_of_buckets() {
    let (store, _) = store(false);
    store.load_buckets().unwrap();
    let before = full(&store);
    let mut config = BucketConfig { has_crc_etags: true, ..BucketConfig::default() };
    config.items.set(3, Some(&vec![b'p'; 20_000]));
    // More than a page of them.
    let names: Vec<String> = (0..40).map(|which| format!("bucket-{which:02}")).collect();
    for name in &names {
        store.create_bucket(name, config.clone()).unwrap();
    }
    let record = store.bucket("bucket-07").unwrap().unwrap().config().encode().unwrap();
    let stream = block_on(BackupStream::begin(&store, 1)).unwrap();
    store.delete_bucket("bucket-07").unwrap();
    let is_left = |name: &&String| *name != "bucket-07";
    let left: Vec<&String> = names.iter().filter(is_left).collect();
    let cases = [
        (all(stream), names.iter().collect(), 3),
        (increment(&store, &before), left.clone(), 0),
        (full(&store), left, 3),
    ];
    for (bytes, expected, object_count) in cases {
        let (events, damage) = read(&bytes, 10_000);
        assert!(matches!(&events[0], Event::Header(header) if header.format == 3), "{damage:?}");
        let found = records(&events);
        assert!(found.iter().map(|(name, _)| name).eq(expected), "{:?}", found.len());
        assert!(found.iter().all(|(_, found)| found.len() == record.len()));
        assert_eq!((damage.len(), objects(&events).len()), (0, object_count));
    }
    block_on(store.close()).unwrap();
}
