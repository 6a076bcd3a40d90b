//! Objects that expire by the thousand: they are no reason to refuse a write, an apply drops the ones that it meets, and a page of a
//! listing passes a bounded number of them.

use std::sync::Arc;
use std::time::Duration;

use shoal_base::ManualClock;
use shoal_base::limits::LIST_PASSED_MAX;
use shoal_device::Device;
use shoal_engine::{Expiry, ListRequest, OpenOptions, PutOptions, Store, StoreStat, block_on};
use shoal_testkit::lab;

use crate::common::{ByName, assert_clean, memory, open_at, tiny};

const SECOND: u64 = 1_000_000_000;

fn open(device: &Device, clock: &Arc<ManualClock>) -> Store {
    let mut options = OpenOptions { background: false, ..tiny() };
    options.tuning.memtable_records_max = 512;
    open_at(device, options, clock).unwrap()
}

fn put_for(store: &Store, name: impl AsRef<[u8]>, bytes: usize, seconds: u64) {
    let expiry = Expiry::After(Duration::from_secs(seconds));
    store.set_with(name, vec![7; bytes], PutOptions { expiry, ..PutOptions::default() }).unwrap();
}

/// Symptom: writes with a time to live failed with "the store is full" although nearly everything had expired. Cause: a reaper with a fixed
/// pace; a write without room did not wait for it. No thread reaps here: the writes do.
#[test]
fn a_store_that_cycles_expiring_objects_is_never_full() {
    let (device, clock) = (memory(1_024), Arc::new(ManualClock::new(SECOND)));
    let mut store = open(&device, &clock);
    let (mut number, mut bytes, mut expired) = (0_u64, 0, 0);
    let mut work = (0, 0, 0);
    let mut note = |stat: StoreStat| {
        expired += stat.expired;
        work = (work.0 + stat.expiry_examined, work.1 + stat.reaps_for_room, work.2 + stat.room_steps);
    };
    for round in 0..24_u64 {
        for _ in 0..150 {
            // Values of all homes: in leaves, in packed runs, in extents.
            let value = [30, 300, 3_000][(number % 3) as usize] + if number % 50 == 0 { 20_000 } else { 0 };
            put_for(&store, format!("{:0>300}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)), value, 8);
            (number, bytes) = (number + 1, bytes + 300 + value);
        }
        clock.advance(SECOND);
        if round % 16 == 15 {
            note(store.stat());
            // The new opening knows no deadline: the writes walk over the trees.
            block_on(store.close()).unwrap();
            drop(store);
            store = open(&device, &clock);
        }
    }
    assert!(bytes > 1_024 * 4_096, "{bytes} bytes are few");
    note(store.stat());
    assert!(expired > 1_000, "{expired} of {number}");
    // One search deletes enough for many writes.
    let (examined, reaps, steps) = work;
    assert!(
        examined < 2 * number && reaps < number / 50,
        "{examined} keys, {reaps} searches of {number} writes"
    );
    assert!(steps < number / 50, "{steps} steps of {number} writes");
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "after all cycles");
}

/// Symptom (C01): 8,000 puts a second of keys of 300 bytes with `PX 10000` filled a store of 256 MiB within two minutes, and 21,807
/// objects were left half an hour after the last put. Cause: as above; more keys were alive than the reaper remembers. The clock is
/// the load's, so a slow machine does the same work. EXPIRING_PUTS of the laboratory is the number of puts: 960,000 are those two minutes.
#[test]
fn a_load_of_expiring_puts_is_never_refused_and_leaves_nothing() {
    const PUTS_PER_SECOND: u64 = 8_000;
    let puts = lab::number("EXPIRING_PUTS", 12_000);
    // All sizes are those of the case, divided alike.
    let part = |full: u64| full * puts / 960_000;
    let (seconds, step) = (10, SECOND * 120 / puts);
    assert!(puts < 960_000 || step == SECOND / PUTS_PER_SECOND, "the rate of the case");
    let (device, clock) = (memory(part(65_536).max(1_024)), Arc::new(ManualClock::new(SECOND)));
    let mut options = OpenOptions { background: true, ..tiny() };
    options.tuning.memtable_records_max = 2_048;
    options.tuning.deadlines_bytes_max = part(16 << 20) as usize;
    let store = open_at(&device, options, &clock).unwrap();
    for number in 0..puts {
        put_for(&store, format!("{:0>300}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)), 16, seconds);
        clock.advance(step);
    }
    let at_the_end = store.stat().objects;
    clock.advance(seconds * SECOND);
    // The reaper has a thread, and this clock is faster than its rounds: so half an hour, and not the 15 s of a real load.
    let mut passed = 0;
    while store.stat().objects > 0 && passed < 1_800 {
        std::thread::sleep(Duration::from_millis(100));
        clock.advance(SECOND);
        passed += 1;
    }
    let stat = store.stat();
    println!("{puts} puts: {at_the_end} objects at the end, none after {passed} s");
    assert_eq!(stat.objects, 0, "objects are left half an hour after the last deadline: {stat:?}");
    assert_eq!(stat.expired, puts, "each object expired once");
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "after the load");
}

/// An apply drops the objects that expired before it, whatever their home, and frees their space.
#[test]
fn an_apply_drops_what_has_expired() {
    let (device, clock) = (memory(4_096), Arc::new(ManualClock::new(SECOND)));
    let store = open(&device, &clock);
    store.set("stays", b"v".to_vec()).unwrap();
    put_for(&store, "older", 70_000, 2);
    block_on(store.close()).unwrap();
    drop(store);
    let store = open(&device, &clock);
    let snapshot = block_on(store.snapshot()).unwrap();
    let before = store.stat();
    for number in 0..6 {
        put_for(&store, format!("{number}"), [0, 30, 900, 9_000, 70_000, 300_000][number % 6], 1);
    }
    put_for(&store, "older", 9_000, 1);
    clock.advance(SECOND);
    // Not expired at the time of this snapshot.
    put_for(&store, "later", 9_000, 1);
    let late = block_on(store.snapshot()).unwrap();
    clock.advance(2 * SECOND);
    let stat = store.stat();
    assert_eq!((stat.expired, stat.objects), (7, 2), "an apply dropped them, and the older version");
    assert!(block_on(late.head(&crate::common::key(b"later"))).unwrap().is_some());
    assert!(block_on(snapshot.head(&crate::common::key(b"older"))).unwrap().is_some());
    drop((snapshot, late));
    block_on(store.reap()).unwrap();
    block_on(store.close()).unwrap();
    drop(store);
    let store = open(&device, &clock);
    let after = store.stat();
    assert_eq!(after.objects, 1);
    assert!(after.live_value_bytes == 1 && after.allocated_blocks <= before.allocated_blocks, "{after:?}");
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "after the drops");
}

/// Returns the keys of a listing, and its number of pages.
fn listed(store: &Store, delimiter: &[u8]) -> (Vec<Vec<u8>>, usize) {
    let mut request = ListRequest {
        bucket: "default".into(),
        limit: 10,
        delimiter: delimiter.to_vec(),
        ..ListRequest::default()
    };
    let (mut found, mut pages) = (Vec::new(), 0);
    loop {
        let page = block_on(store.list(&request)).unwrap();
        pages += 1;
        found.extend(page.entries.into_iter().map(|(key, _)| key));
        found.extend(page.common_prefixes);
        let Some(next) = page.next else { break };
        assert!(next > request.start_after, "a page makes progress");
        request.start_after = next;
    }
    found.sort();
    (found, pages)
}

/// Symptom: one page over 1,500,000 expired keys occupied its thread for a second. Cause: pages were bounded by the keys listed, not by the
/// keys examined.
#[test]
fn a_page_passes_a_bounded_number_of_deleted_and_expired_keys() {
    const GONE: usize = 2 * LIST_PASSED_MAX + 100;
    for is_deleted in [false, true] {
        let (device, clock) = (memory(8_192), Arc::new(ManualClock::new(SECOND)));
        let store = open(&device, &clock);
        let name =
            |number: usize| format!("gone/{number:06}{}", if number.is_multiple_of(3) { "/" } else { "" });
        for number in 0..GONE {
            put_for(&store, name(number), 1, if is_deleted { 1_000 } else { 1 });
        }
        store.set("gone/000100/lives", b"v".to_vec()).unwrap();
        store.set("z", b"v".to_vec()).unwrap();
        for number in (0..GONE).filter(|_| is_deleted) {
            store.remove(name(number)).unwrap();
        }
        clock.advance(SECOND);
        for delimiter in [&b""[..], b"/"] {
            let (found, pages) = listed(&store, delimiter);
            let first = if delimiter.is_empty() { &b"gone/000100/lives"[..] } else { b"gone/" };
            assert_eq!(found, [first, b"z"], "{is_deleted}");
            // An apply may have dropped some already.
            let passed = store.stat().keys_passed_most as usize;
            assert!(passed <= LIST_PASSED_MAX + 2, "{passed} keys passed by one page");
            assert!(is_deleted || !delimiter.is_empty() || pages > 2, "{pages} pages");
        }
        assert!(block_on(store.buckets("", 0)).unwrap().names == ["default"]);
    }
}
