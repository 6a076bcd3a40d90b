//! The index of keys as bytes, and changes merged with it, held to a simple model.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use shoal_backup::{
    BackupStream, Contents, Decoder, End, Event, Header, IncrementWriter, IndexKeys, NotChanges,
};
use shoal_base::ManualClock;
use shoal_engine::{KeyPlace, Lsn, PlacedKey, TabletId, TreePage, block_on};
use shoal_storekit::{StoreKit, put};

type Alive = BTreeMap<(u16, Vec<u8>), KeyPlace>;

fn page(number: u8) -> TreePage {
    TreePage { block: u64::from(number) << 30 | 7, crc: u32::from(number) * 0x0101_0101 }
}

/// Frames of `keys`, of at most `some` keys each.
fn frames(keys: Vec<(u16, PlacedKey)>, some: usize) -> Vec<IndexKeys> {
    let mut frames: Vec<IndexKeys> = Vec::new();
    for (tablet, placed) in keys {
        match frames.last_mut() {
            Some(frame) if frame.tablet.0 == tablet && frame.keys.len() < some => frame.keys.push(placed),
            _ => frames.push(IndexKeys { tablet: TabletId(tablet), keys: vec![placed] }),
        }
    }
    frames
}

fn header(contents: Contents) -> Event {
    let (format, store, version) = (2, [7; 16], Lsn(100));
    Event::Header(Header {
        format,
        store,
        version,
        taken_ns: 5,
        objects: 0,
        value_bytes: 0,
        contents,
        part: 0,
    })
}

/// The increment of the changes `told`, with which the backup before has the index `last`.
fn increment(told: Vec<IndexKeys>, last: Vec<IndexKeys>) -> Vec<u8> {
    let mut last = last.into_iter();
    let (mut writer, mut out) = (IncrementWriter::new(9), Vec::new());
    let mut take = |event| {
        writer.take::<NotChanges>(event, &mut || Ok(last.next()), &mut out).unwrap();
    };
    take(header(Contents::Changes { from: Lsn(50) }));
    told.into_iter().for_each(|keys| take(Event::Index(keys)));
    take(Event::End(End::default()));
    out
}

/// The index and the deletions of a backup.
fn read(bytes: &[u8]) -> (Alive, BTreeSet<Vec<u8>>) {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    decoder.complete();
    let (mut alive, mut deleted) = (Alive::new(), BTreeSet::new());
    while let Some(event) = decoder.next_event().unwrap() {
        match event {
            Event::Index(keys) => {
                let tablet = keys.tablet.0;
                alive.extend(keys.keys.into_iter().map(|it| ((tablet, it.key), it.place)));
            }
            Event::Deleted(keys) => deleted.extend(keys.iter().map(|key| key.encoded().to_vec())),
            _ => {}
        }
    }
    (alive, deleted)
}

/// Names with shared beginnings, odd bytes, and all lengths.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![
        prop::collection::vec(prop_oneof![Just(0_u8), Just(0xFF), Just(b'a')], 1..6),
        (1_000..1_025_usize, any::<u8>()).prop_map(|(length, last)| {
            let mut key = vec![b'x'; length - 1];
            key.push(last);
            key
        }),
    ];
    (prop_oneof![Just("a"), Just("bucket")], key)
        .prop_map(|(bucket, key)| [bucket.as_bytes(), &[0], &key].concat())
}

proptest! {
    #[test]
    fn merge_matches_model(
        last in prop::collection::btree_map((0..3_u16, name()), 0..6_u8, 0..300),
        told in prop::collection::btree_map((0..3_u16, name()), 0..8_u8, 0..300),
        kept in prop::collection::btree_set(1..6_u8, 0..6),
        again in prop::collection::vec(any::<bool>(), 300),
        some in 1..50_usize,
    ) {
        let place = |number: u8| if number == 0 { KeyPlace::Above } else { KeyPlace::Page(page(number)) };
        // Some of the keys in the changes are known from the last backup.
        let mut told = told;
        let of_last: Vec<_> = last.keys().cloned().collect();
        for (key, _) in of_last.iter().zip(again).filter(|(_, again)| *again) {
            told.insert(key.clone(), (key.1.len() % 8) as u8);
        }
        // 0: above; 1 to 5: under that page, which is not kept then; 6 and 7: gone.
        let told: BTreeMap<_, _> = told.into_iter().map(|(key, number)| {
            (key, if number >= 6 { KeyPlace::Gone } else if kept.contains(&number) { KeyPlace::Above } else { place(number) })
        }).collect();
        let last: Alive = last.into_iter().map(|(key, number)| (key, place(number))).collect();
        let mut expected: Alive = last.iter().filter(|(key, place)| {
            matches!(place, KeyPlace::Page(of) if kept.iter().any(|number| page(*number) == *of)) && !told.contains_key(*key)
        }).map(|(key, place)| (key.clone(), *place)).collect();
        expected.extend(told.iter().filter(|(_, place)| **place != KeyPlace::Gone).map(|(key, place)| (key.clone(), *place)));
        let gone: BTreeSet<Vec<u8>> =
            last.keys().filter(|key| !expected.contains_key(*key)).map(|(_, key)| key.clone()).collect();

        let placed = |all: &BTreeMap<(u16, Vec<u8>), KeyPlace>| -> Vec<(u16, PlacedKey)> {
            all.iter().map(|((tablet, key), place)| (*tablet, PlacedKey { place: *place, key: key.clone() })).collect()
        };
        let kept = kept.iter().map(|number| (0, PlacedKey { place: KeyPlace::Kept(page(*number)), key: Vec::new() }));
        let changes: Vec<_> = kept.chain(placed(&told)).collect();
        let bytes = increment(frames(changes, some), frames(placed(&last), some));
        let (alive, deleted) = read(&bytes);
        prop_assert_eq!(&alive, &expected);
        prop_assert_eq!(deleted, gone);
        // An increment of nothing has the same index, of the same bytes read again.
        let pages: BTreeSet<TreePage> = alive.values().filter_map(|place| match place {
            KeyPlace::Page(page) => Some(*page),
            _ => None,
        }).collect();
        let above = alive.iter().filter(|(_, place)| **place == KeyPlace::Above).map(|(key, place)| (key.clone(), *place)).collect();
        let kept = pages.into_iter().map(|page| (0, PlacedKey { place: KeyPlace::Kept(page), key: Vec::new() }));
        let bytes = increment(frames(kept.chain(placed(&above)).collect(), some), frames(placed(&alive), some));
        prop_assert_eq!(read(&bytes), (alive, BTreeSet::new()));
    }
}

/// A full backup that was cut after a frame of its index is complete up to there.
#[test]
fn objects_precede_their_index_frame() {
    let store = StoreKit::steady(16_384, &Arc::new(ManualClock::new(1_000))).in_memory();
    for which in 0..4_000_u32 {
        let key = [&which.to_be_bytes()[..], &[which as u8; 200]].concat();
        let bytes = if which % 1_000 == 0 { 100_000 } else { 10 };
        put(&store, "b", &key, vec![1; bytes]);
    }
    let mut stream = block_on(BackupStream::begin(&store, 5)).unwrap();
    let (mut decoder, mut seen, mut frames) = (Decoder::new(), BTreeSet::new(), 0);
    while let Some(bytes) = block_on(stream.next()).unwrap() {
        decoder.push(&bytes);
        while let Some(event) = decoder.next_event().unwrap() {
            match event {
                Event::Objects(objects) => {
                    seen.extend(objects.into_iter().map(|object| object.head.key.encoded().to_vec()));
                }
                Event::Begin(head) => _ = seen.insert(head.key.encoded().to_vec()),
                Event::Index(keys) => {
                    frames += 1;
                    for placed in keys.keys {
                        assert!(seen.remove(&placed.key), "a key is in the index before its object");
                    }
                }
                _ => {}
            }
        }
    }
    assert!(seen.is_empty() && frames > 2, "{frames} frames");
}

/// A server that is older than increments answers with a full backup.
#[test]
fn full_backup_is_rejected_as_increment() {
    let mut writer = IncrementWriter::new(1);
    let mut take = |event| writer.take::<NotChanges>(event, &mut || Ok(None), &mut Vec::new());
    assert_eq!(take(header(Contents::Full)), Err(NotChanges));
    assert_eq!(take(Event::End(End::default())), Err(NotChanges));
}
