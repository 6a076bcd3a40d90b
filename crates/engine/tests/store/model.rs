//! Model conformance: put, get, delete, conditions, listing, reopening, against the oracle.

use proptest::prelude::*;
use shoal_device::{Device, MemDevice};
use shoal_engine::{ListRequest, OpenOptions, Store, block_on};
use shoal_testkit::lab;
use shoal_testkit::{Model, Workload, WorkloadOptions};
use std::sync::Arc;

use crate::common::{assert_clean, format, formatted, key, memory, observe_all, open, quiet, step, tiny};

const BLOCKS: u64 = 2_048;

/// A dropped store's threads finish their current work: until then they write to the device.
fn wait_for_threads(device: &Device) {
    while Arc::strong_count(device.inner()) > 1 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// All keys, page by page.
fn list_all(store: &Store, limit: usize, delimiter: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut request = ListRequest {
        bucket: "default".into(),
        limit,
        delimiter: delimiter.to_vec(),
        ..ListRequest::default()
    };
    let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
    loop {
        let page = block_on(store.list(&request)).unwrap();
        assert!(page.entries.len() + page.common_prefixes.len() <= limit);
        keys.extend(page.entries.into_iter().map(|(key, _)| key));
        prefixes.extend(page.common_prefixes);
        match page.next {
            Some(next) => request.start_after = next,
            None => return (keys, prefixes),
        }
    }
}

fn check_listing(store: &Store, model: &Model, limit: usize) {
    let expected: Vec<Vec<u8>> = model.existing().map(<[u8]>::to_vec).collect();
    assert_eq!(list_all(store, limit, b"").0, expected);
    let (keys, prefixes) = list_all(store, limit, b"/");
    let folder = |key: &Vec<u8>| key.iter().position(|&byte| byte == b'/').map(|at| key[..=at].to_vec());
    let mut folders: Vec<Vec<u8>> = expected.iter().filter_map(folder).collect();
    folders.dedup();
    assert_eq!(prefixes, folders);
    assert_eq!(keys, expected.iter().filter(|key| folder(key).is_none()).cloned().collect::<Vec<_>>());
}

fn conform(seed: u64, operations: usize, keys: u64, options: &OpenOptions) {
    let device = Device::new(Arc::new(MemDevice::new(BLOCKS)));
    format(&device, BLOCKS, seed);
    let mut store = open(&device, options.clone()).unwrap();
    let sizes = vec![0, 1, 60, 100, 101, 900, 1_999, 2_001, 4_096, 65_536, 65_537, 300_000];
    let workload = WorkloadOptions { keys, sizes, delete_percent: 25, condition_percent: 30 };
    let mut workload = Workload::new(seed, workload);
    let mut model = Model::new();
    for number in 1..=operations {
        let operation = workload.next(&model);
        step(&store, &mut model, &operation, false, |_| {});
        if number % 40 == 0 {
            observe_all(&store, &mut model);
            check_listing(&store, &model, 1 + number % 7);
        }
        if number % 100 == 0 {
            if number % 200 == 0 {
                block_on(store.close()).unwrap();
            }
            drop(store);
            wait_for_threads(&device);
            store = open(&device, options.clone()).unwrap();
            observe_all(&store, &mut model);
        }
    }
    block_on(store.close()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn conforms_to_the_model(seed in any::<u64>(), keys in 1_u64..40) {
        conform(seed, 300, keys, &tiny());
    }
}

/// A store whose cap is raised every few operations, with and without background threads.
#[test]
fn a_growing_store_conforms() {
    for (seed, background) in [(1, false), (2, true), (3, false), (4, true)] {
        let device = Device::new(Arc::new(MemDevice::growable(1)));
        let mut cap = 1_024;
        format(&device, cap, seed);
        let options = OpenOptions { background, ..tiny() };
        let mut store = open(&device, options.clone()).unwrap();
        let sizes = vec![0, 60, 101, 900, 2_001, 65_537];
        let workload = WorkloadOptions { keys: 15, sizes, delete_percent: 25, condition_percent: 20 };
        let (mut workload, mut model) = (Workload::new(seed, workload), Model::new());
        for number in 1..=240 {
            let operation = workload.next(&model);
            step(&store, &mut model, &operation, false, |_| {});
            if number % 12 == 0 {
                // Sometimes by a little, sometimes so far that groups become larger.
                cap = if number % 36 == 0 { cap * 3 / 2 } else { cap + 200 };
                cap = cap.max(store.stat().device_blocks + 400);
                assert_eq!(block_on(store.grow(Some(cap))).unwrap().now, cap);
                observe_all(&store, &mut model);
            }
            if number % 60 == 0 {
                drop(store);
                wait_for_threads(&device);
                store = open(&device, options.clone()).unwrap();
                assert_eq!(store.stat().blocks_max, cap);
                observe_all(&store, &mut model);
            }
        }
        block_on(store.close()).unwrap();
        drop(store);
        wait_for_threads(&device);
        assert_clean(&device, "a store that grew again and again");
    }
}

/// Many short sequences, each on a fresh store, reopened in the middle: a million operations in the laboratory (T1).
#[test]
fn short_sequences_conform() {
    const OPERATIONS: usize = 50;
    let count = lab::number("SEQUENCES", 200);
    let (image, began) = (formatted(512, 3).image(), std::time::Instant::now());
    lab::on_all_cores(count, |number| {
        let seed = number + (lab::number("SEED", 1) << 32);
        let (_, device) = quiet(&image);
        let mut store = open(&device, tiny()).unwrap();
        let sizes = vec![0, 1, 100, 101, 900, 1_999, 2_001, 4_096, 65_537];
        let options =
            WorkloadOptions { keys: 1 + seed % 12, sizes, delete_percent: 25, condition_percent: 30 };
        let (mut workload, mut model) = (Workload::new(seed, options), Model::new());
        for place in 1..=OPERATIONS {
            let operation = workload.next(&model);
            step(&store, &mut model, &operation, false, |_| {});
            if place == 15 + seed as usize % 20 {
                if seed.is_multiple_of(2) {
                    block_on(store.close()).unwrap();
                }
                drop(store);
                store = open(&device, tiny()).unwrap();
                observe_all(&store, &mut model);
            }
        }
        observe_all(&store, &mut model);
        check_listing(&store, &model, 1 + seed as usize % 7);
    });
    println!("{} operations in {count} sequences in {:?}", count * OPERATIONS as u64, began.elapsed());
}

#[test]
fn conforms_with_background_threads() {
    let mut options = tiny();
    options.background = true;
    for seed in 0..4 {
        conform(seed, 400, 20, &options);
    }
}

#[test]
fn missing_things_are_missing() {
    let device = memory(BLOCKS);
    let store = open(&device, tiny()).unwrap();
    assert!(block_on(store.head(&key(b"nothing"))).unwrap().is_none());
    let (keys, prefixes) = list_all(&store, 10, b"/");
    assert!(keys.is_empty() && prefixes.is_empty());
}
