//! Uploads: parts become one object without a copy, users see nothing of parts and uploads, and each block has one owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shoal_base::ManualClock;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_device::{Device, MemDevice};
use shoal_engine::{
    Attributes, Bucket, BucketConfig, Buffer, ByteRange, CompleteOptions, Completed, Completing, Error,
    FormatOptions, ListRequest, Lsn, Metadata, NewUpload, ObjectInfo, OpenOptions, PARTS_MAX, PartRef,
    PartValue, PutOptions, RejectRules, Store, Upload, UploadsAfter, block_on,
};
use shoal_testkit::bytes::patterned;

use crate::common::{
    ByName, assert_clean, blank, checked, format_as, key, open, open_at, open_in_real_time, repaired, tiny,
    tiny_with_layers, tiny_without_layers,
};

const BLOCKS: u64 = 2_048;

/// Metadata of an object whose upload it was: in the entry, or before the value.
pub(crate) fn metadata(is_long: bool) -> Metadata {
    let mut metadata = Metadata { content_type: "image/png".into(), ..Metadata::default() };
    metadata.attributes.set(Attributes::ETAG, Some(&[7; 17]));
    if is_long {
        metadata.attributes.set(9, Some(&[b't'; 900]));
    }
    metadata
}

pub(crate) fn begin(store: &Store, name: &str) -> Upload {
    let settings = NewUpload { metadata: metadata(false), ..NewUpload::default() };
    block_on(store.begin_upload(&key(name), settings, None)).unwrap()
}

/// The value of a part.
pub(crate) fn value_of(number: u16, bytes: usize) -> Vec<u8> {
    patterned(bytes, usize::from(number) * 7 + bytes)
}

pub(crate) fn try_part(store: &Store, upload: &Upload, number: u16, bytes: usize) -> Result<PartRef, Error> {
    let mut metadata = Metadata::default();
    metadata.attributes.set(Attributes::CHECKSUM, Some(&[1, number as u8]));
    let value = PartValue::Chunks(value_of(number, bytes).into());
    let put = block_on(store.upload_part(upload, number, value, metadata))?;
    Ok(PartRef { number, version: put.version })
}

pub(crate) fn part(store: &Store, upload: &Upload, number: u16, bytes: usize) -> PartRef {
    try_part(store, upload, number, bytes).unwrap()
}

pub(crate) fn try_complete(
    store: &Store,
    upload: &Upload,
    parts: &[PartRef],
    is_long: bool,
) -> Result<Completed, Error> {
    let mut answer = Attributes::default();
    answer.set(1, Some(b"answer"));
    let options = CompleteOptions::<()> { metadata: metadata(is_long), answer, judge: None, bucket: None };
    match block_on(store.complete_upload(upload, parts, options))? {
        Completing::Done(done) => Ok(done),
        Completing::Refused(()) => unreachable!("there is no judge"),
    }
}

pub(crate) fn complete(store: &Store, upload: &Upload, parts: &[PartRef]) -> Completed {
    try_complete(store, upload, parts, false).unwrap()
}

/// Brings all records into the trees.
pub(crate) fn apply(store: &Store) {
    drop(block_on(store.snapshot()).unwrap());
}

fn read(store: &Store, name: &str) -> Option<(ObjectInfo, Vec<u8>)> {
    let mut reader = block_on(store.get_stream(&key(name), ByteRange::ALL)).unwrap()?;
    let mut value = Vec::new();
    while let Some(piece) = block_on(reader.next()).unwrap() {
        value.extend_from_slice(&piece.to_vec());
    }
    Some((reader.info().clone(), value))
}

/// Reads ranges of an object that cross the borders of its parts.
fn assert_ranges(store: &Store, name: &str, value: &[u8]) {
    let bytes = value.len() as u64;
    for step in [1_000, 5_001, 65_536, 70_001] {
        for first in (0..bytes).step_by(step) {
            for length in [1, 4_999, 66_000] {
                let range = ByteRange { first, bytes: Some(length) };
                let found = block_on(store.get(&key(name), range)).unwrap().unwrap().value.to_vec();
                let end = (first + length).min(bytes) as usize;
                assert_eq!(found, value[first as usize..end], "{length} bytes from {first} on");
            }
        }
    }
}

fn usual_options() -> OpenOptions {
    OpenOptions { cache_bytes: 32 << 20, background: false, ..OpenOptions::default() }
}

/// A new store of the usual sizes.
fn usual(device: &Device, blocks: u64) -> Store {
    format_as(device, &FormatOptions::for_blocks(blocks), 1);
    open_in_real_time(device, usual_options())
}

const SIZES: [usize; 6] = [5_000, 1, 70_000, 0, 300_000, 12_345];

fn joined() -> Vec<u8> {
    (1..).zip(SIZES).flat_map(|(number, bytes)| value_of(number, bytes)).collect()
}

fn all_parts(store: &Store, upload: &Upload) -> Vec<PartRef> {
    (1..).zip(SIZES).map(|(number, bytes)| part(store, upload, number, bytes)).collect()
}

/// Parts, and their completion, as records and in the trees; metadata in the entry and before the value; after openings, a repair and
/// compactions. At the end no block is lost.
#[test]
fn parts_become_one_object() {
    for (options, applies) in
        [(tiny_with_layers(), false), (tiny_with_layers(), true), (tiny_without_layers(), true)]
    {
        let (_, device) = blank(BLOCKS, 5);
        let store = open(&device, options.clone()).unwrap();
        let free = store.stat().free_blocks;
        for is_long in [false, true] {
            let name = if is_long { "long" } else { "short" };
            let upload = begin(&store, name);
            // Part 2 is sent twice, and parts 8 and 9 are not used.
            part(&store, &upload, 2, 9_000);
            let unused = part(&store, &upload, 9, 20_000);
            if applies {
                apply(&store);
            }
            let parts = all_parts(&store, &upload);
            part(&store, &upload, 8, 100);
            let listed = block_on(store.list_parts(&upload, 0, 100)).unwrap();
            let listed: Vec<PartRef> = listed.parts.iter().map(|part| part.to_ref()).collect();
            assert_eq!(&listed[..6], &parts[..]);
            assert_eq!(listed[7], unused);
            let done = try_complete(&store, &upload, &parts, is_long).unwrap();
            let info = block_on(store.head(&key(name))).unwrap().unwrap();
            assert_eq!((info.version, info.metadata.clone()), (done.version, metadata(is_long)));
            assert_eq!(read(&store, name), Some((info, joined())));
            assert!(block_on(store.list_parts(&upload, 0, 100)).unwrap().parts.is_empty());
        }
        let assert_all = |store: &Store| {
            for (name, is_long) in [("short", false), ("long", true)] {
                let (info, value) = read(store, name).unwrap();
                assert_eq!((info.metadata, value), (metadata(is_long), joined()), "{name}");
                let (_, parts) = block_on(store.object_parts(&key(name))).unwrap().unwrap();
                let sizes: Vec<_> = parts.iter().map(|part| part.bytes as usize).collect();
                assert_eq!(sizes, SIZES);
                assert_eq!((parts[2].first, &parts[2].checksum[..]), (5_001, &[1, 3][..]));
            }
        };
        assert_all(&store);
        drop(store);
        assert_clean(&device, "after the log is replayed");
        let store = open(&device, options.clone()).unwrap();
        assert_all(&store);
        apply(&store);
        assert_all(&store);
        assert_ranges(&store, "long", &joined());
        for other in 0..60 {
            store.set(format!("other-{}", other % 20), vec![1; 700]).unwrap();
        }
        (0..20).for_each(|other| store.remove(format!("other-{other}")).unwrap());
        block_on(store.close()).unwrap();
        assert_clean(&device, "after a close");
        repaired(&device).unwrap();
        let store = open(&device, options).unwrap();
        assert_all(&store);
        store.remove("short").unwrap();
        store.remove("long").unwrap();
        for info in block_on(store.all_uploads(None, 10)).unwrap().uploads {
            assert!(!block_on(store.abort_upload(&info.upload)).unwrap(), "it was completed");
        }
        apply(&store);
        apply(&store);
        drop(store);
        assert_clean(&device, "without the objects");
        let store = open(&device, tiny()).unwrap();
        assert!(
            store.stat().free_blocks + 40 > free,
            "{} of {free} blocks are free",
            store.stat().free_blocks
        );
    }
}

/// The object is overwritten or deleted at each moment, with the parts and the completion in the log or in the trees; then the store is
/// opened again. No block is lost, and none has two owners.
#[test]
fn each_block_has_one_owner_whatever_is_applied() {
    for options in [tiny_with_layers(), tiny_without_layers()] {
        for case in 0..64 {
            let is = |bit: u32| case >> bit & 1 != 0;
            let (_, device) = blank(512, 6);
            let mut large = options.clone();
            large.tuning.memtable_records_max = 64;
            let store = open(&device, large.clone()).unwrap();
            let upload = begin(&store, "object");
            let first = part(&store, &upload, 1, 300_000);
            if is(0) {
                apply(&store);
            }
            // Another part of the same number, in the log or in the trees.
            let first = if is(1) { part(&store, &upload, 1, 280_000) } else { first };
            let second = part(&store, &upload, 2, 5_000);
            if is(2) {
                apply(&store);
            }
            complete(&store, &upload, &[first, second]);
            if is(3) {
                apply(&store);
            }
            if is(4) {
                store.set("object", vec![3; 6_000]).unwrap();
                if is(5) {
                    let again = begin(&store, "object");
                    let only = part(&store, &again, 4, 50_000);
                    complete(&store, &again, &[only]);
                }
            } else if is(5) {
                store.remove("object").unwrap();
            }
            let expected = read(&store, "object");
            drop(store);
            assert_clean(&device, &format!("case {case}, replayed"));
            let store = open(&device, large.clone()).unwrap();
            assert_eq!(read(&store, "object"), expected, "case {case}");
            apply(&store);
            assert_eq!(read(&store, "object"), expected, "case {case}");
            drop(store);
            assert_clean(&device, &format!("case {case}, applied"));
        }
    }
}

#[test]
fn a_completed_upload_answers_again() {
    let (_, device) = blank(BLOCKS, 7);
    let store = open(&device, tiny()).unwrap();
    let upload = begin(&store, "object");
    let parts = [part(&store, &upload, 1, 9_000), part(&store, &upload, 5, 10)];
    let done = complete(&store, &upload, &parts);
    assert_eq!(complete(&store, &upload, &parts), done);
    store.set("object", "another value").unwrap();
    assert_eq!(complete(&store, &upload, &parts), done, "also without the object");
    assert!(matches!(try_part(&store, &upload, 1, 10), Err(Error::NoUpload(id)) if id == upload.id));
    drop(store);
    let store = open(&device, tiny()).unwrap();
    assert_eq!(complete(&store, &upload, &parts), done);
    let info = block_on(store.upload(&upload)).unwrap().unwrap();
    assert_eq!(info.completed, Some(done));
    assert_eq!(store.find("object").unwrap().unwrap().value.to_vec(), b"another value");
}

#[test]
fn wrong_completions_leave_the_upload_open() {
    let (_, device) = blank(BLOCKS, 8);
    let store = open(&device, tiny()).unwrap();
    let upload = begin(&store, "object");
    let one = part(&store, &upload, 1, 9_000);
    let two = part(&store, &upload, 2, 9_000);
    let replaced = part(&store, &upload, 2, 100);
    let refused = |parts: &[PartRef]| try_complete(&store, &upload, parts, false).unwrap_err();
    assert!(matches!(refused(&[]), Error::Invalid(_)));
    assert!(matches!(refused(&[replaced, one]), Error::Invalid(_)));
    assert!(matches!(refused(&[one, one]), Error::Invalid(_)));
    assert!(matches!(refused(&[PartRef { number: 0, ..one }]), Error::Invalid(_)));
    assert!(matches!(refused(&[PartRef { number: PARTS_MAX + 1, ..one }]), Error::Invalid(_)));
    assert!(matches!(refused(&[one, two]), Error::NoPart(2)), "it was replaced");
    assert!(matches!(refused(&[one, PartRef { number: 3, version: Lsn(9) }]), Error::NoPart(3)));
    let other = Upload { id: shoal_engine::UploadId::new(1).unwrap(), ..upload.clone() };
    assert!(matches!(try_complete(&store, &other, &[one], false), Err(Error::NoUpload(_))));
    assert!(matches!(try_part(&store, &other, 1, 10), Err(Error::NoUpload(_))));
    assert_eq!(block_on(store.upload(&other)).unwrap(), None);
    let judge = |present: Option<&ObjectInfo>| if present.is_some() { Ok(()) } else { Err("absent") };
    let options = || CompleteOptions {
        metadata: Metadata::default(),
        answer: Attributes::default(),
        judge: Some(&judge),
        bucket: None,
    };
    let judged = block_on(store.complete_upload(&upload, &[one, replaced], options())).unwrap();
    assert!(matches!(judged, Completing::Refused("absent")));
    assert!(store.find("object").unwrap().is_none());
    let mut long = Metadata::default();
    long.attributes.set(9, Some(&[1; 200]));
    let value = PartValue::Chunks(Buffer::from(vec![1]));
    assert!(matches!(block_on(store.upload_part(&upload, 3, value, long)), Err(Error::Invalid(_))));
    store.set("object", "present").unwrap();
    let judged = block_on(store.complete_upload(&upload, &[one, replaced], options())).unwrap();
    assert!(matches!(judged, Completing::Done(_)));
    let value = [value_of(1, 9_000), value_of(2, 100)].concat();
    assert_eq!(read(&store, "object").unwrap().1, value);
}

/// A part that arrives in pieces.
#[test]
fn long_parts_are_streams() {
    let device = Device::new(Arc::new(MemDevice::new(8_192)));
    let store = usual(&device, 8_192);
    let upload = begin(&store, "object");
    let mut parts = Vec::new();
    for (number, bytes) in [(1, 100), (2, VALUE_BYTES_SINGLE_MAX as usize + 70_001)] {
        let mut writer = block_on_stream(&store, &upload, number);
        for piece in value_of(number, bytes).chunks(300_000) {
            block_on(writer.write(piece)).unwrap();
        }
        let mut metadata = Metadata::default();
        metadata.attributes.set(Attributes::CHECKSUM, Some(&[9; 9]));
        writer.set_metadata(metadata.clone()).unwrap();
        metadata.attributes.set(9, Some(&[1; 200]));
        assert!(writer.set_metadata(metadata).is_err(), "it has no room in the entry");
        parts.push(PartRef { number, version: block_on(writer.finish()).unwrap().version });
    }
    let expected = [value_of(1, 100), value_of(2, VALUE_BYTES_SINGLE_MAX as usize + 70_001)].concat();
    let listed = block_on(store.list_parts(&upload, 1, 10)).unwrap().parts;
    assert_eq!(listed[0].info.metadata.attributes.get(Attributes::CHECKSUM), Some(&[9; 9][..]));
    let late = block_on_stream(&store, &upload, 3);
    complete(&store, &upload, &parts);
    assert!(matches!(block_on(late.finish()), Err(Error::NoUpload(_))));
    assert_eq!(read(&store, "object").unwrap().1, expected);
    block_on(store.close()).unwrap();
    assert_clean(&device, "with long parts");
}

fn block_on_stream(store: &Store, upload: &Upload, number: u16) -> shoal_engine::ValueWriter {
    store.upload_part_stream(upload, number, Metadata::default()).unwrap()
}

/// Neither listings nor counts, snapshots and backups have uploads and parts; nobody can name their keys.
#[test]
fn users_see_objects_only() {
    let (_, device) = blank(BLOCKS, 9);
    let mut store = open(&device, tiny()).unwrap();
    store.set("a", "value").unwrap();
    let uploads: Vec<Upload> = (0..3).map(|_| begin(&store, "only-an-upload")).collect();
    let zero = block_on(store.begin_upload(&key(b"with\0zero"), NewUpload::default(), None)).unwrap();
    for round in 0..2 {
        uploads.iter().for_each(|upload| _ = part(&store, upload, 3, 5_000));
        part(&store, &zero, 1, 10);
        let listed =
            block_on(store.list(&ListRequest { bucket: "default".into(), ..ListRequest::default() }));
        assert_eq!(listed.unwrap().entries.len(), 1);
        assert_eq!(block_on(store.buckets("", 10)).unwrap().names, ["default"]);
        assert_eq!(block_on(store.buckets("default", 10)).unwrap().names, [""; 0]);
        let snapshot = block_on(store.snapshot()).unwrap();
        let place = shoal_engine::SnapshotPlace::default();
        assert_eq!(block_on(snapshot.objects(&place, 100)).unwrap().objects.len(), 1);
        let (mut place, mut keys, mut objects) = (Some(shoal_engine::ChangesPlace::default()), 0, 0);
        while let Some(at) = place {
            let page = block_on(snapshot.changes(None, &at, 100)).unwrap();
            (keys, objects) = (keys + page.keys.len(), objects + page.objects.len());
            place = page.next;
        }
        assert_eq!((keys, objects), (1, 1));
        drop(snapshot);
        let stat = store.stat();
        assert_eq!((stat.objects, stat.log_puts, stat.results, stat.expiring), (1, 0, 0, 0), "round {round}");
        drop(store);
        assert_clean(&device, "with uploads");
        store = open(&device, tiny()).unwrap();
        block_on(store.count_results()).unwrap();
    }
    assert_eq!(store.stat().objects, 1);
}

/// Lists page by page, and compares with one page.
#[test]
fn uploads_and_parts_are_listed_in_order() {
    let (_, device) = blank(BLOCKS, 10);
    let store = open(&device, tiny()).unwrap();
    let names: [&[u8]; 6] = [b"a", b"a", b"a\0b", b"a/1", b"a/2", b"b"];
    let mut expected: Vec<(Vec<u8>, u64)> = Vec::new();
    for name in names {
        let upload = block_on(store.begin_upload(&key(name), NewUpload::default(), None)).unwrap();
        expected.push((name.to_vec(), upload.id.number()));
    }
    expected.sort();
    let other = shoal_engine::ObjectKey::new("other", b"a").unwrap();
    let elsewhere = block_on(store.begin_upload(&other, NewUpload::default(), None)).unwrap();
    let aborted = begin(&store, "a");
    part(&store, &aborted, 1, 5_000);
    assert!(block_on(store.abort_upload(&aborted)).unwrap());
    let bucket = Bucket::new("default").unwrap();
    let list = |prefix: &[u8], after: &UploadsAfter, limit| {
        let page = block_on(store.list_uploads(&bucket, prefix, after, limit)).unwrap();
        let uploads =
            page.uploads.into_iter().map(|info| (info.upload.key.key().to_vec(), info.upload.id.number()));
        (uploads.collect::<Vec<_>>(), page.next)
    };
    assert_eq!(list(b"", &UploadsAfter::Start, 100), (expected.clone(), None));
    assert_eq!(list(b"a/", &UploadsAfter::Start, 100).0, expected[3..5]);
    assert_eq!(list(b"", &UploadsAfter::Key(b"a".to_vec()), 100).0, expected[2..]);
    assert_eq!(list(b"", &UploadsAfter::Prefix(b"a/".to_vec()), 100).0, expected[5..]);
    let (mut after, mut found) = (UploadsAfter::Start, Vec::new());
    loop {
        let (page, next) = list(b"", &after, 2);
        found.extend(page);
        let Some(Upload { key, id }) = next else { break };
        after = UploadsAfter::Upload(key.key().to_vec(), id);
    }
    assert_eq!(found, expected);
    let (mut after, mut all) = (None, Vec::new());
    loop {
        let page = block_on(store.all_uploads(after.as_ref(), 3)).unwrap();
        all.extend(page.uploads.into_iter().map(|info| info.upload));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((all.len(), all.last()), (7, Some(&elsewhere)));
    for number in [9, 3, 1, 700] {
        part(&store, &elsewhere, number, 100);
    }
    let parts = |after, limit| {
        let page = block_on(store.list_parts(&elsewhere, after, limit)).unwrap();
        (page.parts.iter().map(|part| part.number).collect::<Vec<_>>(), page.is_cut)
    };
    assert_eq!(parts(0, 10), (vec![1, 3, 9, 700], false));
    assert_eq!(parts(1, 2), (vec![3, 9], true));
    assert_eq!(parts(9, 1), (vec![700], false));
    assert_eq!(parts(u16::MAX, 10), (vec![], false));
}

/// A part is replaced after the completion has looked at it: the completion looks again.
#[test]
fn a_part_that_changes_meanwhile_is_not_used() {
    let (_, device) = blank(BLOCKS, 16);
    let store = open(&device, tiny()).unwrap();
    let upload = begin(&store, "object");
    let parts = [part(&store, &upload, 1, 9_000), part(&store, &upload, 2, 5_000)];
    for (changes, number) in [(1, 2), (0, 3), (0, 0)] {
        let calls = AtomicU64::new(0);
        let judge = |_: Option<&ObjectInfo>| -> Result<(), ()> {
            if calls.fetch_add(1, Ordering::Relaxed) == 0 && number > 0 {
                part(&store, &upload, number, 5_000);
            }
            Ok(())
        };
        let options = CompleteOptions {
            metadata: Metadata::default(),
            answer: Attributes::default(),
            judge: Some(&judge),
            bucket: None,
        };
        // Part 3 is no part of the object: it does not count.
        let listed = block_on(store.list_parts(&upload, 0, 2)).unwrap().parts;
        let used: Vec<PartRef> = listed.iter().map(|part| part.to_ref()).collect();
        assert_eq!(used.len(), parts.len());
        let outcome = block_on(store.complete_upload(&upload, &used, options));
        if changes > 0 {
            assert!(matches!(outcome, Err(Error::NoPart(2))), "{outcome:?}");
        } else {
            assert!(matches!(outcome, Ok(Completing::Done(_))), "{outcome:?}");
            break;
        }
    }
    assert_eq!(read(&store, "object").unwrap().1, [value_of(1, 9_000), value_of(2, 5_000)].concat());
    drop(store);
    assert_clean(&device, "after the race");
}

/// Parts that are stored and completed between two applies: no block is lost until the next opening.
#[test]
fn blocks_come_back_while_the_store_is_open() {
    let (_, device) = blank(BLOCKS, 17);
    let mut options = tiny();
    options.tuning.memtable_records_max = 64;
    let store = open(&device, options).unwrap();
    let settled = |store: &Store| {
        apply(store);
        store.set("a", "value").unwrap();
        apply(store);
        store.stat().allocated_blocks
    };
    let mut before = 0;
    for round in 0..12 {
        let upload = begin(&store, "object");
        let parts = [part(&store, &upload, 1, 300_000), part(&store, &upload, 2, 300_000)];
        try_complete(&store, &upload, &parts, true).unwrap();
        if round % 2 == 0 {
            apply(&store);
        }
        store.remove("object").unwrap();
        block_on(store.abort_upload(&upload)).unwrap();
        before = if round < 2 { settled(&store) } else { before };
    }
    let after = settled(&store);
    assert!(after <= before + 3, "{after} blocks, {before} before");
}

#[test]
fn an_aborted_upload_leaves_nothing() {
    let (_, device) = blank(BLOCKS, 11);
    let store = open(&device, tiny()).unwrap();
    let settled = |store: &Store| {
        apply(store);
        apply(store);
        store.stat().allocated_blocks
    };
    store.set("a", "value").unwrap();
    let before = settled(&store);
    let upload = begin(&store, "object");
    (1..30).for_each(|number| _ = part(&store, &upload, number, 3_000 * usize::from(number)));
    let late = block_on_stream(&store, &upload, 50);
    assert!(settled(&store) > before + 100);
    assert!(block_on(store.abort_upload(&upload)).unwrap());
    assert!(!block_on(store.abort_upload(&upload)).unwrap());
    assert_eq!(block_on(store.upload(&upload)).unwrap(), None);
    assert!(matches!(try_part(&store, &upload, 1, 10), Err(Error::NoUpload(_))));
    assert!(matches!(block_on(late.finish()), Err(Error::NoUpload(_))));
    assert!(matches!(
        try_complete(&store, &upload, &[PartRef { number: 1, version: Lsn(1) }], false),
        Err(Error::NoUpload(_))
    ));
    let after = settled(&store);
    assert!(after <= before + 12, "{after} blocks, {before} before");
    drop(store);
    assert_clean(&device, "after an abort");
}

/// An hour after the completion its record is gone, with a part that was on its way at that time.
#[test]
fn completed_uploads_are_forgotten_after_an_hour() {
    let (_, device) = blank(BLOCKS, 12);
    let clock = Arc::new(ManualClock::new(1_000));
    let store = open_at(&device, tiny(), &clock).unwrap();
    let upload = begin(&store, "object");
    let parts = [part(&store, &upload, 1, 9_000)];
    complete(&store, &upload, &parts);
    clock.advance(Duration::from_secs(3_500).as_nanos() as u64);
    block_on(store.reap()).unwrap();
    assert!(block_on(store.upload(&upload)).unwrap().is_some());
    let expired = store.stat().expired;
    clock.advance(Duration::from_secs(200).as_nanos() as u64);
    assert_eq!(block_on(store.upload(&upload)).unwrap(), None);
    block_on(store.reap()).unwrap();
    assert_eq!((store.stat().expired, store.stat().expiring), (expired, 0), "users did not see it");
    assert!(matches!(try_complete(&store, &upload, &parts, false), Err(Error::NoUpload(_))));
    assert_eq!(read(&store, "object").unwrap().1, value_of(1, 9_000));
    block_on(store.close()).unwrap();
    drop(store);
    let report = checked(&device).unwrap();
    assert!(report.is_clean() && (report.objects, report.own_objects) == (1, 0), "{report:?}");
}

#[test]
fn a_deleted_bucket_has_no_uploads() {
    let (_, device) = blank(BLOCKS, 13);
    let store = open(&device, tiny()).unwrap();
    let state = store.create_bucket("photos", BucketConfig::default()).unwrap().state;
    let cat = shoal_engine::ObjectKey::new("photos", b"cat").unwrap();
    let uploads: Vec<Upload> = (0..5)
        .map(|_| block_on(store.begin_upload(&cat, NewUpload::default(), Some(&state))).unwrap())
        .collect();
    let parts: Vec<PartRef> = uploads.iter().map(|upload| part(&store, upload, 1, 20_000)).collect();
    complete(&store, &uploads[0], &parts[..1]);
    assert!(matches!(store.delete_bucket("photos"), Err(Error::BucketNotEmpty(_))));
    block_on(store.delete(&cat, RejectRules::default())).unwrap();
    store.delete_bucket("photos").unwrap();
    assert!(block_on(store.all_uploads(None, 10)).unwrap().uploads.is_empty());
    let refused = block_on(store.begin_upload(&cat, NewUpload::default(), Some(&state)));
    assert!(matches!(refused, Err(Error::NoBucket(_))));
    assert!(matches!(try_complete(&store, &uploads[1], &parts[1..2], false), Err(Error::NoUpload(_))));
    drop(store);
    assert_clean(&device, "after the bucket is gone");
}

/// As many parts as an upload can have, in a store with the usual sizes.
#[test]
fn ten_thousand_parts_are_completed_at_once() {
    const BYTES: usize = 20;
    let device = Device::new(Arc::new(MemDevice::new(1 << 17)));
    let store = usual(&device, 1 << 17);
    let upload = begin(&store, "object");
    let parts: Vec<PartRef> = (1..=PARTS_MAX).map(|number| part(&store, &upload, number, BYTES)).collect();
    complete(&store, &upload, &parts);
    let expected: Vec<u8> = (1..=PARTS_MAX).flat_map(|number| value_of(number, BYTES)).collect();
    assert_eq!(read(&store, "object").unwrap().1, expected);
    block_on(store.close()).unwrap();
    assert_clean(&device, "with ten thousand parts");
    let store = open_in_real_time(&device, usual_options());
    assert_eq!(read(&store, "object").unwrap().1, expected);
    let range = ByteRange { first: 99_990, bytes: Some(50) };
    assert_eq!(
        block_on(store.get(&key("object"), range)).unwrap().unwrap().value.to_vec(),
        expected[99_990..100_040]
    );
}

/// A device without room refuses parts, and an abort works.
#[test]
fn a_full_store_aborts_uploads() {
    let (_, device) = blank(512, 14);
    let store = open(&device, OpenOptions { ..tiny() }).unwrap();
    let upload = begin(&store, "object");
    let mut number = 1;
    let refused = loop {
        match try_part(&store, &upload, number, 30_000) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    while store.set_with(format!("small-{number}"), vec![1; 90], PutOptions::default()).is_ok() {
        number += 1;
    }
    assert!(block_on(store.abort_upload(&upload)).unwrap());
    apply(&store);
    apply(&store);
    let again = begin(&store, "object");
    part(&store, &again, 1, 30_000);
    drop(store);
    assert_clean(&device, "after a full device");
}
