//! A base of an archive: a full backup with the results of writes with a request id, and without an index.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use shoal_backup::{BackupStream, Contents, Decoder, Event};
use shoal_base::{ManualClock, RequestId};
use shoal_engine::{LoggedKey, ObjectKey, PutOptions, Store, Write, block_on};
use shoal_storekit::{StoreKit, put};

fn events(mut stream: BackupStream) -> Vec<Event> {
    let (mut decoder, mut events) = (Decoder::new(), Vec::new());
    while let Some(bytes) = block_on(stream.next()).unwrap() {
        decoder.push(&bytes);
        while let Some(event) = decoder.next_event().unwrap() {
            events.push(event);
        }
    }
    events
}

fn keys(events: &[Event]) -> Vec<ObjectKey> {
    let objects = events.iter().filter_map(|event| match event {
        Event::Objects(objects) => Some(objects.iter().map(|object| object.head.key.clone())),
        _ => None,
    });
    objects.flatten().collect()
}

fn put_once(store: &Store, name: &[u8], request: RequestId) {
    let (key, value, options) =
        (ObjectKey::new("b", name).unwrap(), vec![1; 10].into(), PutOptions::default());
    let write = Write::put(&key, &value, &options).with_request_id(Some(request));
    block_on(async { store.write(write).await.unwrap().durable().await }).unwrap();
}

#[test]
fn a_base_has_the_results_of_requests_and_no_index() {
    let store = StoreKit::steady(2_048, &Arc::new(ManualClock::new(1_700_000_000_000_000_000))).in_memory();
    for name in [b"a", b"c"] {
        put(&store, "b", name, vec![2; 70_000]);
    }
    for sequence in 0..5 {
        put_once(&store, &[b'k', sequence], RequestId { session: 9, sequence: u64::from(sequence) });
    }
    let base = events(block_on(BackupStream::begin_base(&store, 1)).unwrap());
    let full = events(block_on(BackupStream::begin(&store, 2)).unwrap());
    let header = |events: &[Event]| match events.first() {
        Some(Event::Header(header)) => header.contents,
        other => panic!("{other:?}"),
    };
    assert_eq!((header(&base), header(&full)), (Contents::Base, Contents::Full));
    let has_index = |events: &[Event]| events.iter().any(|event| matches!(event, Event::Index(_)));
    assert_eq!((has_index(&base), has_index(&full)), (false, true));
    let (mut of_base, mut of_full) = (keys(&base), keys(&full));
    assert_eq!(of_full.len(), 5, "the short objects");
    // The result of each request, in the one tablet or the other.
    let results: Vec<_> = of_base.extract_if(.., |key| key.is_system()).collect();
    assert_eq!(results.len(), 5);
    assert!(results.iter().all(|key| LoggedKey::of(key.encoded()) == Some(LoggedKey::Object(key.clone()))));
    of_base.sort();
    of_full.sort();
    assert_eq!(of_base, of_full);
    let Some(Event::End(end)) = base.last() else { panic!("{base:?}") };
    assert_eq!((end.objects, end.keys), (12, 0));
    block_on(store.close()).unwrap();
}
