//! Many threads on one store with background threads: conditions that race, slow readers, dropped futures, on an in-memory device and on a
//! slow one; with the blocking executor and with one that never blocks in I/O.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self};
use std::time::Duration;

use shoal_base::ManualClock;
use shoal_device::Device;
use shoal_device_sim::{Fault, FaultOp, Latency, SimDevice};
use shoal_engine::{
    ByteRange, Error, ListRequest, OpenOptions, PutOptions, RejectRules, Store, Write, block_on,
};
use shoal_testkit::device::slow;
use shoal_testkit::task::{run_as_runtime, run_some};
use shoal_testkit::wait::within;
use shoal_testkit::{Condition, Value};

use crate::common::{
    self, ByName, assert_clean, blank, formatted, key, memory, names_of, open_at, open_in_real_time, rules,
    tiny, tiny_with_threads,
};

const BLOCKS: u64 = 2_048;
const THREADS: u64 = 8;
/// The slow device of these tests.
const LATENCY: Latency =
    Latency { read_ns: 20_000, write_ns: 30_000, flush_ns: 60_000, slow_every: 23, slow_times: 10 };

/// Runs a future to completion, every second one without blocking.
fn run<F: Future>(number: u64, future: F) -> F::Output {
    if number.is_multiple_of(2) { block_on(future) } else { run_as_runtime(future) }
}

fn sim() -> Device {
    Device::new(slow(formatted(BLOCKS, 1).image(), LATENCY))
}

/// Runs `body` on eight threads, and then checks the store.
fn on_threads(device: Device, body: impl Fn(&Store, u64) + Send + Sync + 'static) {
    within("eight threads", move || {
        let store = open_in_real_time(&device, tiny_with_threads());
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (store, body) = (&store, &body);
                scope.spawn(move || body(store, number));
            }
        });
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "afterwards");
        // The log that a crash leaves is replayed without a conflict, too.
        drop(open_in_real_time(&device, tiny_with_threads()));
    });
}

fn put_options(condition: Condition) -> PutOptions {
    PutOptions { rules: rules(condition), ..PutOptions::default() }
}

/// Increments the counter that the threads share; returns the number of lost races.
fn count_up(store: &Store, number: u64, name: &[u8]) -> u64 {
    let mut lost = 0;
    loop {
        let now = run(number, store.get(&key(name), ByteRange::ALL)).unwrap();
        let (condition, count) = match &now {
            None => (Condition::IfExists, 0),
            Some(object) => {
                let bytes = object.value.to_vec();
                assert_eq!(bytes.len(), 300 * 8, "half a value");
                assert!(bytes.chunks(8).all(|chunk| chunk == &bytes[..8]), "a mixed value");
                (
                    Condition::IfVersionNot(object.info.version.0),
                    u64::from_le_bytes(bytes[..8].try_into().unwrap()),
                )
            }
        };
        let value = (count + 1).to_le_bytes().repeat(300);
        match run(number, store.put(&key(name), value.into(), put_options(condition))) {
            Ok(_) => return lost,
            Err(Error::ConditionFailed { .. }) => lost += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

fn counter(device: Device, rounds: u64) {
    on_threads(device, move |store, number| {
        for _ in 0..rounds {
            count_up(store, number, b"counter");
            // Other keys fill the memtables, so that freezes are frequent.
            let other = key(format!("other-{number}").as_bytes());
            run(number, store.put(&other, vec![1; 50].into(), PutOptions::default())).unwrap();
        }
    });
}

#[test]
fn compare_and_set_counts_every_success_in_memory() {
    let device = memory(BLOCKS);
    counter(device.clone(), 60);
    assert_count(&device, 60 * THREADS);
}

#[test]
fn compare_and_set_counts_every_success_on_a_slow_device() {
    let device = sim();
    counter(device.clone(), 25);
    assert_count(&device, 25 * THREADS);
}

fn assert_count(device: &Device, expected: u64) {
    let store = open_in_real_time(device, tiny_with_threads());
    let object = store.find(b"counter").unwrap().unwrap();
    assert_eq!(u64::from_le_bytes(object.value.to_vec()[..8].try_into().unwrap()), expected);
}

#[test]
fn of_eight_creators_one_wins() {
    for device in [memory(BLOCKS), sim()] {
        let wins: Arc<Vec<AtomicU64>> = Arc::new((0..60).map(|_| AtomicU64::new(0)).collect());
        let counted = wins.clone();
        on_threads(device, move |store, number| {
            for (turn, wins) in wins.iter().enumerate() {
                let name = key(format!("new-{turn}").as_bytes());
                let value = vec![number as u8; 40 * (turn % 3) * (turn % 60)];
                match run(
                    number + turn as u64,
                    store.put(&name, value.into(), put_options(Condition::IfExists)),
                ) {
                    Ok(_) => drop(wins.fetch_add(1, Ordering::Relaxed)),
                    Err(Error::ConditionFailed { current: Some(_), .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        assert!(counted.iter().all(|wins| wins.load(Ordering::Relaxed) == 1), "{counted:?}");
    }
}

/// Every thread works on separate keys, and knows their values.
#[test]
fn own_keys_and_values() {
    for device in [memory(BLOCKS), sim()] {
        on_threads(device, |store, number| {
            let mut known: std::collections::BTreeMap<Vec<u8>, (u64, Value)> =
                std::collections::BTreeMap::new();
            for turn in 0..90_u64 {
                let which = (turn * 7 + number) % 9;
                let name = format!("thread-{number}/{which}").into_bytes();
                let seed = turn << 8 | number;
                let bytes = [0, 60, 1_000, 2_500, 9_000, 70_000][(turn % 6) as usize];
                let value = Value { key: which, seed, bytes };
                if turn % 5 == 4 {
                    run(seed, store.delete(&key(&name), RejectRules::default())).unwrap();
                    known.remove(&name);
                } else {
                    let name_key = key(&name);
                    let put = store.put(&name_key, value.to_vec().into(), PutOptions::default());
                    let put = run(turn, put).unwrap();
                    let before = known.insert(name.clone(), (put.version.0, value));
                    assert!(before.is_none_or(|(version, _)| version < put.version.0));
                }
                let probe = format!("thread-{number}/{}", (turn * 3) % 9).into_bytes();
                let object = run(turn / 2, store.get(&key(&probe), ByteRange::ALL)).unwrap();
                match (known.get(&probe), object) {
                    (None, None) => {}
                    (Some((version, value)), Some(object)) => {
                        assert_eq!(object.info.version.0, *version);
                        value.check(&object.value.to_vec()).unwrap();
                    }
                    (known, object) => panic!("known {known:?}, read {:?}", object.map(|object| object.info)),
                }
                if turn % 10 == 9 {
                    let prefix = format!("thread-{number}/").into_bytes();
                    let request = ListRequest {
                        bucket: "default".into(),
                        prefix,
                        limit: 100,
                        ..ListRequest::default()
                    };
                    let page = run(turn, store.list(&request)).unwrap();
                    let keys: Vec<Vec<u8>> = page.entries.into_iter().map(|(key, _)| key).collect();
                    assert!(keys.iter().eq(known.keys()), "listed {keys:?}, known {:?}", known.keys());
                }
            }
        });
    }
}

/// A reader holds an old version while its object is overwritten and deleted, and space is reused again and again.
#[test]
fn slow_reader_across_reuse() {
    for device in [memory(BLOCKS), sim()] {
        within("a slow reader", move || {
            let clock = Arc::new(ManualClock::new(1_000));
            let store = open_at(&device, tiny_with_threads(), &clock).unwrap();
            let name = key(b"read slowly");
            let mut finished = 0;
            let mut changed = 0;
            for turn in 0..8_u64 {
                let first = Value { key: 1, seed: turn << 16, bytes: 1_500_000 };
                block_on(store.put(&name, first.to_vec().into(), PutOptions::default())).unwrap();
                let mut stream = block_on(store.get_stream(&name, ByteRange::ALL)).unwrap().unwrap();
                let mut read = block_on(stream.next()).unwrap().unwrap().to_vec();
                // In total more than the device holds.
                for round in 1..=10 {
                    if round % 4 == 3 {
                        block_on(store.delete(&name, RejectRules::default())).unwrap();
                    }
                    let value = Value { key: 1, seed: turn << 16 | round, bytes: 1_300_000 };
                    let put = block_on(store.put(&name, value.to_vec().into(), PutOptions::default()));
                    match put {
                        Ok(_) => {}
                        // The reader may hold the space of a few versions, for half a minute.
                        Err(Error::Full { .. }) => clock.advance(31_000_000_000),
                        Err(error) => panic!("{error}"),
                    }
                }
                if turn % 2 == 1 {
                    clock.advance(31_000_000_000);
                }
                loop {
                    match run(turn, stream.next()) {
                        Ok(Some(piece)) => read.extend(piece.to_vec()),
                        Ok(None) => {
                            first.check(&read).unwrap();
                            finished += 1;
                            break;
                        }
                        Err(Error::Changed { .. }) => {
                            changed += 1;
                            break;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            println!("{finished} finished, {changed} changed");
            assert!(changed > 0, "no reader was ever too slow");
            block_on(store.close()).unwrap();
            drop(store);
            assert_clean(&device, "afterwards");
        });
    }
}

/// A stream that is no longer read holds space for a bounded time only, without any request (R16).
#[test]
fn a_forgotten_stream_does_not_stop_reclamation() {
    within("a forgotten stream", || {
        let device = memory(BLOCKS);
        let clock = Arc::new(ManualClock::new(1_000));
        let store = open_at(&device, tiny_with_threads(), &clock).unwrap();
        let name = key(b"forgotten");
        let put = |seed| {
            let value = Value { key: 1, seed, bytes: 1_300_000 }.to_vec();
            block_on(store.put(&name, value.into(), PutOptions::default()))
        };
        put(0).unwrap();
        let stream = block_on(store.get_stream(&name, ByteRange::ALL)).unwrap().unwrap();
        let full = (1..20).find(|&seed| matches!(put(seed), Err(Error::Full { .. })));
        clock.advance(31_000_000_000);
        for seed in 20..60 {
            put(seed).unwrap_or_else(|error| panic!("full since {full:?}: {error}"));
        }
        drop(stream);
    });
}

/// Polls a future at most `polls` times and then drops it; returns its output if it completed.
fn run_briefly<F: Future>(future: F, polls: u64) -> Option<F::Output> {
    run_some(pin!(future), polls, Duration::from_millis(2))
}

/// Drops puts and deletes at every possible point.
fn dropped_midway(device: Device, background: bool) {
    within("dropped futures", move || {
        let options = OpenOptions { background, ..tiny() };
        let store = open_in_real_time(&device, options.clone());
        let mut cancelled = 0;
        let mut allowed: std::collections::BTreeMap<u64, Vec<Option<Value>>> =
            std::collections::BTreeMap::new();
        for turn in 0..260_u64 {
            let which = turn % 7;
            let name = key(format!("dropped-{which}").as_bytes());
            let bytes = [40, 1_500, 9_000, 200_000][(turn / 3 % 4) as usize];
            let value = Value { key: which, seed: turn, bytes };
            let polls = turn % 13;
            let delete = turn % 9 == 8;
            let outcome = if delete {
                run_briefly(store.delete(&name, RejectRules::default()), polls).map(|done| done.map(|_| ()))
            } else {
                let put = store.put(&name, value.to_vec().into(), PutOptions::default());
                run_briefly(put, polls).map(|done| done.map(|_| ()))
            };
            let effect = (!delete).then_some(value);
            let states = allowed.entry(which).or_insert_with(|| vec![None]);
            match outcome {
                Some(Ok(())) => *states = vec![effect],
                Some(Err(error)) => panic!("turn {turn}: {error}"),
                None => {
                    cancelled += 1;
                    states.push(effect);
                }
            }
            if turn % 3 == 0 {
                let read = run_as_runtime(store.get(&name, ByteRange::ALL)).unwrap();
                assert_allowed(states, read.as_ref().map(|object| object.value.to_vec()).as_deref(), turn);
            }
        }
        assert!(cancelled > 20, "only {cancelled} futures were dropped midway");
        for (which, states) in &allowed {
            // After a later write was awaited, no dropped write can become visible.
            let name = key(format!("dropped-{which}").as_bytes());
            let read = run_as_runtime(store.get(&name, ByteRange::ALL)).unwrap();
            assert_allowed(states, read.map(|object| object.value.to_vec()).as_deref(), 1_000 + which);
            let last = Value { key: *which, seed: 5_000 + which, bytes: 3_000 };
            run_as_runtime(store.put(&name, last.to_vec().into(), PutOptions::default())).unwrap();
            let read = run_as_runtime(store.get(&name, ByteRange::ALL)).unwrap().unwrap();
            last.check(&read.value.to_vec()).unwrap();
        }
        run_as_runtime(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "afterwards");
        let store = open_in_real_time(&device, options);
        for which in allowed.keys() {
            let name = key(format!("dropped-{which}").as_bytes());
            let read = block_on(store.get(&name, ByteRange::ALL)).unwrap().unwrap();
            Value { key: *which, seed: 5_000 + which, bytes: 3_000 }.check(&read.value.to_vec()).unwrap();
        }
    });
}

fn assert_allowed(states: &[Option<Value>], read: Option<&[u8]>, turn: u64) {
    let fits = states.iter().any(|state| match (state, read) {
        (None, None) => true,
        (Some(value), Some(bytes)) => value.check(bytes).is_ok(),
        _ => false,
    });
    assert!(fits, "turn {turn}: {:?} bytes are none of {states:?}", read.map(<[u8]>::len));
}

#[test]
fn futures_dropped_midway_with_threads() {
    dropped_midway(sim(), true);
}

#[test]
fn futures_dropped_midway_without_threads() {
    dropped_midway(sim(), false);
}

/// On a device so full that puts make room themselves.
#[test]
fn futures_dropped_midway_on_a_full_device() {
    within("dropped futures on a full device", || {
        const SMALL: u64 = 400;
        let sim = slow(formatted(SMALL, 1).image(), LATENCY);
        let device = Device::new(sim);
        let store = open_in_real_time(&device, tiny_with_threads());
        let mut kept = std::collections::BTreeMap::new();
        for turn in 0..160_u64 {
            let which = turn % 6;
            let name = key(format!("full-{which}").as_bytes());
            let value = Value { key: which, seed: turn, bytes: 90_000 + 4_096 * (turn % 5) as usize };
            let put = store.put(&name, value.to_vec().into(), PutOptions::default());
            let states: &mut Vec<Option<Value>> = kept.entry(which).or_insert_with(|| vec![None]);
            match run_briefly(put, if turn % 4 == 3 { u64::MAX } else { 1 + turn % 40 }) {
                Some(Ok(_)) => *states = vec![Some(value)],
                Some(Err(Error::Full { .. })) => {}
                Some(Err(error)) => panic!("turn {turn}: {error}"),
                None => states.push(Some(value)),
            }
            let read = run_as_runtime(store.get(&name, ByteRange::ALL)).unwrap();
            assert_allowed(states, read.map(|object| object.value.to_vec()).as_deref(), turn);
        }
        run_as_runtime(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "afterwards");
        let store = open_in_real_time(&device, tiny_with_threads());
        for (which, states) in &kept {
            let name = key(format!("full-{which}").as_bytes());
            let read = block_on(store.get(&name, ByteRange::ALL)).unwrap();
            assert_allowed(states, read.map(|object| object.value.to_vec()).as_deref(), 1_000 + which);
        }
    });
}

/// Waiting writers get an answer when the store becomes read-only, whichever part of it failed, and when it is closed.
#[test]
fn ended_store_answers_all_waiters() {
    for end in 0..12_u64 {
        within(&format!("writers at end {end}"), move || {
            let sim = slow(formatted(BLOCKS, 1).image(), LATENCY);
            let device = Device::new(sim.clone());
            let store = open_in_real_time(&device, tiny_with_threads());
            thread::scope(|scope| {
                for number in 0..THREADS {
                    let store = &store;
                    scope.spawn(move || {
                        for turn in 0_u64.. {
                            let name = key(format!("{number}-{}", turn % 5).as_bytes());
                            let put = store.put(&name, vec![7; 1_800].into(), PutOptions::default());
                            match run(number, put) {
                                Ok(_) => {}
                                Err(Error::Unknown(_) | Error::Poisoned(_) | Error::Closed) => return,
                                Err(error) => panic!("{error}"),
                            }
                        }
                    });
                }
                thread::sleep(Duration::from_millis(20));
                match end {
                    0..4 => block_on(store.close()).unwrap(),
                    // Superblocks and pages are not in the log's ring: only an apply meets the fault.
                    4..8 => sim.inject(Fault::fail(FaultOp::Write, libc::EIO).at(0..2).for_good()),
                    _ => sim.inject(Fault::fail(FaultOp::Write, libc::EIO).at(100..BLOCKS).for_good()),
                }
            });
        });
    }
}

/// A key that was overwritten all the time was seen as absent: a reader loaded the durable number, and before it looked the key up, a
/// writer dropped all versions except the ones that became durable since.
#[test]
fn overwritten_keys_are_never_absent() {
    on_threads(memory(BLOCKS), |store, number| {
        let name = key(format!("hot-{}", number % 2).as_bytes());
        if number < 2 {
            run(0, store.put(&name, b"first".to_vec().into(), PutOptions::default())).unwrap();
        }
        for turn in 0..400 {
            if number < 4 {
                run(number, store.put(&name, vec![7; 20].into(), PutOptions::default())).unwrap();
            } else if run(number, store.head(&key(b"hot-0"))).unwrap().is_some() {
                for _ in 0..20 {
                    assert!(run(number, store.head(&key(b"hot-0"))).unwrap().is_some(), "turn {turn}");
                }
                assert!(names_of(store, 1 + turn % 3).contains(&b"hot-0"[..]), "turn {turn}: not listed");
            }
        }
    });
}

/// Every object acknowledged before the start of a listing is in it, under concurrent freezes, applies and publishes.
#[test]
fn listings_hold_everything_acknowledged() {
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    on_threads(memory(BLOCKS), move |store, number| {
        for turn in 0..120_u64 {
            if number < 5 {
                let name = format!("{}/{number}-{turn}", turn % 7).into_bytes();
                let bytes = [10, 300, 3_000][(turn % 3) as usize];
                run(number, store.put(&key(&name), vec![1; bytes].into(), PutOptions::default())).unwrap();
                acknowledged.lock().unwrap().insert(name);
            } else {
                let expected = acknowledged.lock().unwrap().clone();
                let found = names_of(store, 3 + turn as usize % 40);
                let missing: Vec<_> = expected.difference(&found).collect();
                assert!(missing.is_empty(), "turn {turn}: {} of {}", missing.len(), expected.len());
            }
        }
    });
}

/// A snapshot of the volume under a running store (LVM, ZFS, a cloud disk), which captures the device at one moment, is a store with every
/// write acknowledged before it.
#[test]
fn an_atomic_copy_of_the_device_is_a_store() {
    const WRITERS: usize = 3;
    const KEYS: u64 = 20;
    let value = |number: u64| {
        let mut value = number.to_le_bytes().to_vec();
        value.resize([30, 3_000, 9_000, 40_000][number as usize % 4], number as u8);
        value
    };
    let name = |writer: usize, number: u64| key(format!("{writer}/{}", number % KEYS).as_bytes());
    let (sim, device) = blank(8_000, 2);
    let store = common::open(&device, tiny_with_threads()).unwrap();
    let acknowledged: [AtomicU64; WRITERS] = Default::default();
    let stop = AtomicBool::new(false);
    let mut copies = Vec::new();
    thread::scope(|scope| {
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                for number in 1.. {
                    let key = name(writer, number);
                    block_on(store.put(&key, value(number).into(), PutOptions::default())).unwrap();
                    acknowledged.store(number, Ordering::Release);
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                }
            });
        }
        for copy in 1..=12 {
            while acknowledged.iter().any(|number| number.load(Ordering::Acquire) < 25 * copy) {
                thread::yield_now();
            }
            let before = [0, 1, 2].map(|writer| acknowledged[writer].load(Ordering::Acquire));
            copies.push((before, sim.image()));
        }
        stop.store(true, Ordering::Release);
    });
    drop(store);
    for (before, image) in copies {
        let device = Device::new(SimDevice::from_image(image));
        let store = common::open(&device, tiny()).unwrap();
        for (writer, &before) in before.iter().enumerate() {
            for newest in before.saturating_sub(KEYS - 1)..=before {
                let object = block_on(store.get(&name(writer, newest), ByteRange::ALL)).unwrap().unwrap();
                let found = object.value.to_vec();
                let number = u64::from_le_bytes(found[..8].try_into().unwrap());
                assert!(found == value(number), "writer {writer}: the value of {number}");
                assert!(number >= newest && number % KEYS == newest % KEYS, "{number} instead of {newest}");
            }
        }
        drop(store);
        assert_clean(&device, "an atomic copy");
    }
}

/// A thread that holds back the writes of values has to make room for the next value. The work that it then waits for must not wait for
/// those writes.
#[test]
fn plugged_thread_makes_room() {
    within("one thread that serves several clients", || {
        let device = sim();
        // Without background threads only this thread makes room.
        let store = open_in_real_time(&device, tiny());
        let (options, mut runtime) = (PutOptions::default(), Context::from_waker(Waker::noop()));
        for round in 0..200_u64 {
            let values: Vec<_> = (0..6_u64).map(|at| vec![(round + at) as u8; 100_000].into()).collect();
            let names: Vec<_> = (0..6_u64).map(|at| key(format!("{at}").as_bytes())).collect();
            let mut puts: Vec<_> = std::iter::zip(&names, &values)
                .map(|(name, value)| Box::pin(store.write(Write::put(name, value, &options))))
                .collect();
            while !puts.is_empty() {
                store.gather(|| {
                    puts.retain_mut(|put| match put.as_mut().poll(&mut runtime) {
                        Poll::Ready(queued) => queued.is_err_and(|error| panic!("round {round}: {error}")),
                        Poll::Pending => true,
                    });
                });
            }
        }
        block_on(store.close()).unwrap();
        assert_clean(&device, "after the rounds");
    });
}
