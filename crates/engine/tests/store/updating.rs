//! Updates, writes that are queued and awaited later, and time to live.

use std::sync::Arc;
use std::thread;

use shoal_base::ManualClock;
use shoal_engine::{
    ByteRange, Change, Error, Expiry, ListRequest, Object, PutOptions, ReadLevel, RejectRules, Store,
    Updated, Write, block_on,
};
use shoal_testkit::wait::eventually;

use crate::common::{
    self, ByName, assert_clean, change_to, key, memory, open_at, tiny, tiny_with_threads, update,
};

const BLOCKS: u64 = 4_096;

fn count_up(object: Option<&Object>) -> (Change, u64) {
    let before =
        object.map_or(0, |object| String::from_utf8(object.value.to_vec()).unwrap().parse().unwrap());
    (change_to((before + 1).to_string().into_bytes()), before + 1)
}

/// A decision sees a value in memory: a value too long for that is refused, as by a get, and nothing changes.
#[test]
fn a_streamed_value_is_not_read_whole() {
    let store = common::open(&memory(BLOCKS), tiny()).unwrap();
    let name = key(b"long");
    let mut stream = store.put_stream(&name, PutOptions::default()).unwrap();
    for _ in 0..5 {
        block_on(stream.write(&vec![7; 1 << 20])).unwrap();
    }
    let version = block_on(stream.finish()).unwrap().version;
    let refused = block_on(update(&store, &name, ReadLevel::Value, count_up));
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(block_on(store.head(&name)).unwrap().unwrap().version, version);
    let delete = |object: Option<&Object>| (Change::Delete, object.is_some());
    assert!(
        block_on(update(&store, &name, ReadLevel::Info, delete)).unwrap().answer,
        "what needs no value goes on"
    );
}

/// Eight threads increment a few keys while applies freeze the memtables under them.
#[test]
fn no_update_is_lost() {
    const THREADS: u64 = 8;
    const UPDATES: u64 = 200;
    for background in [false, true] {
        let device = memory(BLOCKS);
        let mut options = tiny();
        options.background = background;
        options.tuning.memtable_records_max = 40;
        let store = common::open(&device, options.clone()).unwrap();
        thread::scope(|scope| {
            for number in 0..THREADS {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..UPDATES {
                        let name = key(format!("counter-{}", (number + round) % 3).as_bytes());
                        let Updated { pending, answer } =
                            block_on(update(store, &name, ReadLevel::Value, count_up)).unwrap();
                        assert!(answer > 0);
                        if round % 3 == 0 {
                            pending.into_iter().for_each(|pending| _ = block_on(pending.durable()).unwrap());
                        }
                    }
                });
            }
        });
        let counted = |store: &Store| -> u64 {
            (0..3)
                .map(|counter| {
                    let name = key(format!("counter-{counter}").as_bytes());
                    let keep = |object: Option<&Object>| (Change::NoChange, object.cloned());
                    let Updated { answer, pending } =
                        block_on(update(store, &name, ReadLevel::Value, keep)).unwrap();
                    for pending in pending {
                        block_on(pending.durable()).unwrap();
                    }
                    String::from_utf8(answer.unwrap().value.to_vec()).unwrap().parse::<u64>().unwrap()
                })
                .sum()
        };
        assert_eq!(counted(&store), THREADS * UPDATES);
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "after the updates");
        let store = common::open(&device, options).unwrap();
        assert_eq!(counted(&store), THREADS * UPDATES);
    }
}

#[test]
fn update_sees_in_flight_and_large_values() {
    let store = common::open(&memory(BLOCKS), tiny_with_threads()).unwrap();
    for bytes in [10, 3_000, 20_000, 300_000] {
        let name = key(b"k");
        let value = vec![b'x'; bytes];
        let pending = store.gather(|| {
            block_on(store.write(Write::put(&name, &value.clone().into(), &PutOptions::default()))).unwrap()
        });
        let longer = |object: Option<&Object>| {
            let mut value = object.unwrap().value.to_vec();
            value.push(b'y');
            (change_to(value), ())
        };
        let updated = block_on(update(&store, &name, ReadLevel::Value, longer)).unwrap();
        let first = block_on(pending.durable()).unwrap();
        let (_, second) = block_on(updated.durable()).unwrap();
        assert!(second > first);
        let object = block_on(store.get(&name, ByteRange::ALL)).unwrap().unwrap();
        assert_eq!((object.info.version, object.value.len()), (second, bytes + 1));
        let delete = |object: Option<&Object>| (Change::Delete, object.is_some());
        let updated = block_on(update(&store, &name, ReadLevel::Info, delete)).unwrap();
        assert!(updated.answer);
        block_on(updated.durable()).unwrap();
        assert!(block_on(store.head(&name)).unwrap().is_none());
    }
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn expired_object_is_absent() {
    for applied in [false, true] {
        let (device, clock) = (memory(BLOCKS), Arc::new(ManualClock::new(1_000 * SECOND)));
        let store = open_at(&device, tiny(), &clock).unwrap();
        let name = key(b"short");
        for (name, expiry) in [(&name, Some(1_010)), (&key(b"stays"), None)] {
            let expiry = expiry.map_or(Expiry::Never, |second| Expiry::At(second * SECOND));
            let options = PutOptions { expiry, ..PutOptions::default() };
            block_on(store.put(name, b"value".to_vec().into(), options)).unwrap();
        }
        let store = if applied {
            // Opening and closing a store applies its log.
            block_on(store.close()).unwrap();
            drop(store);
            open_at(&device, tiny(), &clock).unwrap()
        } else {
            store
        };
        let there = |store: &Store| {
            let request = ListRequest { bucket: "default".into(), limit: 10, ..ListRequest::default() };
            let listed = block_on(store.list(&request)).unwrap().entries.len() == 2;
            let head = block_on(store.head(&name)).unwrap();
            assert!(
                head.as_ref().is_none_or(|info| info.expiry.is_some_and(|it| it.at_ns == 1_010 * SECOND))
            );
            let got = block_on(store.get(&name, ByteRange::ALL)).unwrap().is_some();
            let stream = block_on(store.get_stream(&name, ByteRange::ALL)).unwrap().is_some();
            assert!([head.is_some(), got, stream].iter().all(|&there| there == listed));
            listed
        };
        assert!(there(&store));
        clock.advance(9 * SECOND);
        assert!(there(&store));
        clock.advance(SECOND);
        assert!(!there(&store), "from its moment on");
        // Conditions read the current state.
        let must_exist = RejectRules { if_missing: true, ..RejectRules::default() };
        let refused = block_on(store.delete(&name, must_exist));
        assert!(matches!(refused, Err(Error::ConditionFailed { current: None, .. })), "{refused:?}");
        let options = PutOptions { rules: must_exist, ..PutOptions::default() };
        let refused = block_on(store.put(&name, b"new".to_vec().into(), options));
        assert!(matches!(refused, Err(Error::ConditionFailed { current: None, .. })), "{refused:?}");
        // The clock was set back while the store was closed: an expired object stays expired.
        store.set(b"other", b"v".to_vec()).unwrap();
        store.remove(b"other").unwrap();
        drop(store);
        let back = Arc::new(ManualClock::new(900 * SECOND));
        let store = open_at(&device, tiny(), &back).unwrap();
        assert!(!there(&store));
        let must_not_exist = RejectRules { if_exists: true, ..RejectRules::default() };
        let options = PutOptions { rules: must_not_exist, ..PutOptions::default() };
        block_on(store.put(&name, b"new".to_vec().into(), options)).unwrap();
        assert!(block_on(store.head(&name)).unwrap().unwrap().expiry.is_none());
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "at the end");
    }
}

/// Without objects that have deadlines, the reaper reads nothing after an opening; it finds a single such object.
#[test]
fn reaper_skips_trees_without_expiring_objects() {
    for with_end in [false, true] {
        let (device, clock) = (memory(BLOCKS), Arc::new(ManualClock::new(1_000 * SECOND)));
        let store = open_at(&device, tiny(), &clock).unwrap();
        for number in 0..1_000 {
            let expiry = if with_end && number == 77 { Expiry::At(1_010 * SECOND) } else { Expiry::Never };
            let options = PutOptions { expiry, ..PutOptions::default() };
            store.set_with(format!("{number}"), vec![7; 200], options).unwrap();
        }
        block_on(store.close()).unwrap();
        drop(store);
        clock.advance(20 * SECOND);
        let store = open_at(&device, tiny_with_threads(), &clock).unwrap();
        let opened = store.stat().device.reads;
        if with_end {
            eventually("it is found", || store.stat().expired > 0);
        } else {
            thread::sleep(std::time::Duration::from_millis(500));
            // There are about 70 leaves; the other work after an opening reads a few blocks.
            let reads = store.stat().device.reads - opened;
            assert!(reads < 20, "{reads} blocks were read");
        }
    }
}

/// The space of expired objects comes back, including objects that an opening found expired.
#[test]
fn the_reaper_gives_space_back() {
    let (device, clock) = (memory(BLOCKS), Arc::new(ManualClock::new(1_000 * SECOND)));
    let store = open_at(&device, tiny(), &clock).unwrap();
    let put = |store: &Store, name: &str, second: Option<u64>| {
        let expiry = second.map_or(Expiry::Never, |second| Expiry::At(second * SECOND));
        let options = PutOptions { expiry, ..PutOptions::default() };
        store.set_with(name, vec![7; 10_000], options).unwrap();
    };
    for number in 0..20 {
        put(&store, &format!("before-{number}"), Some(1_010));
    }
    put(&store, "stays", None);
    block_on(store.close()).unwrap();
    drop(store);
    let store = open_at(&device, tiny_with_threads(), &clock).unwrap();
    for number in 0..20 {
        put(&store, &format!("after-{number}"), Some(1_010));
    }
    put(&store, "renewed", Some(1_010));
    put(&store, "renewed", Some(2_000));
    clock.advance(20 * SECOND);
    eventually("all of them are deleted", || store.stat().expired >= 40);
    assert_eq!(store.stat().expired, 40, "and no more");
    assert!(block_on(store.head(&key(b"renewed"))).unwrap().is_some());
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "after the reaper");
    let store = open_at(&device, tiny(), &clock).unwrap();
    let request = ListRequest { bucket: "default".into(), limit: 100, ..ListRequest::default() };
    assert_eq!(block_on(store.list(&request)).unwrap().entries.len(), 2);
}
