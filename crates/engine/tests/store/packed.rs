//! Packed runs: their cost, their exact liveness after every crash, the return of their dead space, and the local effect of damage to them.

use std::sync::Arc;

use proptest::prelude::*;
use shoal_base::BLOCK_BYTES;
use shoal_device::{BlockDevice, Device, MemDevice};
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{
    ByteRange, CheckOptions, Error, FormatOptions, Metadata, ObjectKey, OpenOptions, PutOptions, Store,
    Tuning, block_on, check,
};
use shoal_testkit::wait::within;
use shoal_testkit::{Model, Value, Workload, WorkloadOptions};

use crate::common::{
    ByName, assert_clean, check_clean, checked, device, format_as, formatted, key, marked_step, observe_all,
    open, open_in_real_time, recover_all, rot_newest, step, tiny, tiny_format, works_on,
};

/// Nearly all of these sizes are packed; one is not.
const SIZES: [usize; 6] = [150, 700, 1_300, 2_500, 3_500, 4_050];

/// As [`tiny`], with larger values in the log.
fn small() -> OpenOptions {
    let tuning = Tuning { log_value_bytes_max: 6_000, memtable_records_max: 12, ..tiny().tuning };
    OpenOptions { tuning, ..tiny() }
}

fn workload(seed: u64, keys: u64) -> Workload {
    let sizes = SIZES.to_vec();
    Workload::new(seed, WorkloadOptions { keys, sizes, delete_percent: 25, condition_percent: 10 })
}

/// Opens the image of a crash to a state that the acknowledgements allow, with exact liveness, and uses it.
fn recovers(image: Image, model: &Model, deep: bool) -> Result<(), String> {
    let sim = SimDevice::from_image(image);
    let device = Device::new(sim);
    check_clean(&device)?;
    let store = open(&device, small()).map_err(|error| format!("did not open: {error}"))?;
    let mut recovered = model.clone();
    recover_all(&store, &mut recovered)?;
    if !deep {
        return Ok(());
    }
    let mut workload = workload(9_000_000, 30);
    works_on(&store, &mut recovered, &mut workload, 40)?;
    drop(store);
    check_clean(&device).map_err(|found| format!("after working on: {found}"))
}

/// Runs are filled, killed, rewritten and freed, and their blocks reused, with a crash at any moment.
#[test]
fn crashes_while_runs_are_rewritten_and_freed() {
    const BLOCKS: u64 = 420;
    let mut states = 0;
    for seed in 1..=4 {
        let sim = formatted(BLOCKS, seed);
        let sim = SimDevice::from_image(sim.image());
        let store = open(&Device::new(sim.clone()), small()).unwrap();
        let (mut workload, mut model) = (workload(seed, 26), Model::new());
        let mut models = vec![model.clone()];
        sim.mark(0);
        let mut most_runs = 0;
        for _ in 0..170 {
            marked_step(&store, &sim, &mut workload, (&mut model, &mut models));
            most_runs = most_runs.max(store.stat().packed_runs);
        }
        observe_all(&store, &mut model);
        let stat = store.stat();
        assert!(most_runs > 4 && stat.moved_values > 10, "seed {seed}: {most_runs} runs, {stat:?}");
        drop(store);
        sim.history().for_each_crash_state(2, seed, |point, image| {
            let Some(&mark) = point.marks.last() else { return };
            states += 1;
            if let Err(violation) = recovers(image, &models[mark as usize], states % 9 == 0) {
                panic!("seed {seed}, state {}: {violation}", point.id);
            }
        });
    }
    println!("{states} states");
    assert!(states > 1_000, "only {states} states were explored");
}

/// After every few operations the liveness exactly matches the tree, and no run is kept forever.
fn accounts(seed: u64, keys: u64, operations: usize) {
    const BLOCKS: u64 = 1_500;
    let sim = formatted(BLOCKS, seed);
    let device = Device::new(sim.clone());
    let mut store = open(&device, small()).unwrap();
    let (mut workload, mut model) = (workload(seed, keys), Model::new());
    for number in 1..=operations {
        let operation = workload.next(&model);
        step(&store, &mut model, &operation, false, |_| {});
        if number % 50 == 0 {
            let image = Device::new(SimDevice::from_image(sim.image()));
            assert_clean(&image, &format!("seed {seed}, after {number} operations"));
        }
        if number % 120 == 0 {
            drop(store);
            store = open(&device, small()).unwrap();
        }
    }
    observe_all(&store, &mut model);
    for which in 0..keys {
        store.remove_numbered(which);
    }
    // More deletes push the last ones through an apply.
    for _ in 0..40 {
        store.remove_numbered(0);
        store.remove_numbered(1);
    }
    block_on(store.close()).unwrap();
    let stat = store.stat();
    if stat.memtable_records == 0 {
        assert_eq!((stat.packed_runs, stat.packed_blocks, stat.live_value_bytes), (0, 0, 0), "{stat:?}");
    }
    assert!(stat.packed_runs <= 2, "everything was deleted: {stat:?}");
    drop(store);
    assert_clean(&device, "at the end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn the_liveness_is_exact(seed in any::<u64>(), keys in 4_u64..120) {
        accounts(seed, keys, 500);
    }
}

fn large(background: bool) -> (Device, Store) {
    const BLOCKS: u64 = 24_000;
    let device = Device::new(Arc::new(MemDevice::new(BLOCKS)));
    format_as(&device, &FormatOptions { log_blocks: Some(2_048), ..tiny_format(BLOCKS) }, 1);
    let options = OpenOptions { background, cache_bytes: 32 << 20, ..OpenOptions::default() };
    let store = open_in_real_time(&device, options);
    (device, store)
}

/// A value of 9,000 bytes costs 9,000 bytes, the pages and the footers; with half of them deleted at random an idle store is soon as dense
/// again.
#[test]
fn values_use_their_length_in_space() {
    const COUNT: u64 = 4_000;
    within("packing", || {
        let (device, store) = large(true);
        (0..COUNT).for_each(|which| store.put_numbered(which, which, 9_000));
        let dense = |goal: f64| {
            // A store that is not dense after a minute never is.
            (0..600).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(100));
                let stat = store.stat();
                let ratio =
                    (stat.allocated_blocks * BLOCK_BYTES as u64) as f64 / stat.live_value_bytes as f64;
                stat.memtable_records == 0 && ratio <= goal
            })
        };
        assert!(dense(1.04), "after puts: {:?}", store.stat());
        let before = store.stat();
        // A value that is alone in its apply gets separate extents.
        let packed = before.packed_live_bytes / 9_000;
        assert!(packed > COUNT * 98 / 100 && before.packed_runs > 30, "{before:?}");
        let gone = |which: u64| which.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1;
        (0..COUNT).filter(|&which| gone(which)).for_each(|which| store.remove_numbered(which));
        assert!(dense(1.08), "after deletes: {:?}", store.stat());
        let after = store.stat();
        assert!(after.moved_bytes > 0 && after.moved_bytes <= 2 * after.live_value_bytes, "{after:?}");
        (0..COUNT).filter(|&which| !gone(which)).for_each(|which| store.assert_numbered(which, which, 9_000));
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "packed and tidied");
    });
}

/// Under random overwrites packed runs stay below one and a half times their live bytes.
#[test]
fn overwrites_keep_runs_dense() {
    let (device, store) = large(false);
    let bytes = |which: u64| 5_000 + (which * 7_919 % 6_000) as usize;
    (0..2_000).for_each(|which| store.put_numbered(which, 0, bytes(which)));
    let mut worst: f64 = 0.0;
    for turn in 1..=10_000_u64 {
        let which = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 2_000;
        store.put_numbered(which, turn, bytes(which + turn));
        let stat = store.stat();
        if turn > 4_000 {
            worst =
                worst.max((stat.packed_blocks * BLOCK_BYTES as u64) as f64 / stat.packed_live_bytes as f64);
        }
    }
    let stat = store.stat();
    println!("worst {worst:.2}, {} bytes moved for {} written", stat.moved_bytes, stat.value_bytes_written);
    assert!(worst < 1.5, "packed blocks over live bytes: {worst:.2}");
    assert!(stat.moved_bytes < 3 * stat.value_bytes_written, "{stat:?}");
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "overwritten");
}

/// The longest name with the maximum of metadata in an entry, in values of every home: the entry has to fit in its leaf.
#[test]
fn the_largest_entries_fit() {
    const BLOCKS: u64 = 2_000;
    let sim = formatted(BLOCKS, 7);
    let store = open(&device(&sim), small()).unwrap();
    let bucket = "b".repeat(63);
    for (turn, bytes) in [0, 50, 99, 700, 2_500, 4_096, 70_000, 300_000].into_iter().enumerate() {
        for meta in [0, 100, 200, 240, 252, 300, 900] {
            let name = [vec![b'k'; 1_015], format!("{turn:03}{meta:06}").into_bytes()].concat();
            let name = ObjectKey::new(&bucket, &name).unwrap();
            let metadata = Metadata { content_type: "m".repeat(meta.min(200)), ..Metadata::default() };
            let user = vec![("x".into(), vec![b'u'; meta.saturating_sub(204)].into())];
            let metadata = if meta > 204 { Metadata { user, ..metadata } } else { metadata };
            let value = vec![turn as u8; bytes];
            let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
            block_on(store.put(&name, value.clone().into(), options))
                .unwrap_or_else(|error| panic!("{bytes} bytes, {meta} of metadata: {error}"));
            let object = block_on(store.get(&name, ByteRange::ALL)).unwrap().unwrap();
            assert_eq!((object.value.to_vec(), object.info.metadata), (value, metadata));
        }
    }
    for which in 0..40 {
        store.put_numbered(which, which, 90);
    }
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device(&sim), "the largest entries");
}

/// One request reads exactly the blocks of a packed value.
#[test]
fn a_get_reads_the_values_blocks_only() {
    const BLOCKS: u64 = 4_000;
    let sim = formatted(BLOCKS, 1);
    let store = open(&device(&sim), small()).unwrap();
    (0..200).for_each(|which| store.put_numbered(which, which, 2_500));
    drop(store);
    let store = open(&device(&sim), small()).unwrap();
    let mut read = 0;
    for which in 0..150 {
        block_on(store.head(&key(Workload::key(which)))).unwrap().expect("it is there");
        let before = sim.counters();
        store.assert_numbered(which, which, 2_500);
        let after = sim.counters();
        let (reads, blocks) = (after.reads - before.reads, after.blocks_read - before.blocks_read);
        assert!(reads <= 1 && blocks <= 2, "object {which}: {reads} reads of {blocks} blocks");
        read += reads;
    }
    assert!(read > 100, "only {read} values came from the device");
}

/// A reader that started before its value's run was rewritten and its blocks reused gets the value or an error (R9, R16).
#[test]
fn a_slow_reader_of_a_packed_value() {
    const BLOCKS: u64 = 700;
    let sim = formatted(BLOCKS, 6);
    let store = open(&device(&sim), small()).unwrap();
    let (mut seed, mut read) = (0, 0);
    for turn in 0..30_u64 {
        for which in 0..40 {
            seed += 1;
            store.put_numbered(which, seed, 2_500);
        }
        let which = turn % 24;
        let written = seed - 39 + which;
        let name = key(Workload::key(which));
        let mut stream = block_on(store.get_stream(&name, ByteRange::ALL)).unwrap().unwrap();
        // Neighbours die, the run is rewritten, this value is overwritten, and blocks are reused again and again.
        for round in 0..4 {
            for other in (0..40).filter(|other| round > 1 || *other != which) {
                seed += 1;
                store.put_numbered(other, seed, 2_500 + round);
            }
        }
        let value = block_on(stream.next()).unwrap_or_else(|error| panic!("turn {turn}: {error}")).unwrap();
        Value { key: which, seed: written, bytes: 2_500 }.check(&value.to_vec()).unwrap();
        read += 1;
    }
    assert!(read == 30 && store.stat().moved_values > 100, "{:?}", store.stat());
}

/// Both copies of the newest superblock decay after a crash at any moment: no run overwrote blocks that the previous superblock needs, or
/// the opening detects it (R9).
#[test]
fn damaged_newest_superblock_finds_its_runs() {
    const BLOCKS: u64 = 260;
    let (mut opened, mut noticed) = (0, 0);
    for seed in 61..65 {
        let sim = formatted(BLOCKS, seed);
        let sim = SimDevice::from_image(sim.image());
        let store = open(&Device::new(sim.clone()), small()).unwrap();
        let (mut workload, mut model) = (workload(seed, 22), Model::new());
        let mut models = vec![model.clone()];
        sim.mark(0);
        for _ in 0..120 {
            marked_step(&store, &sim, &mut workload, (&mut model, &mut models));
        }
        drop(store);
        sim.history().for_each_crash_state(2, seed, |point, mut image| {
            let Some(&mark) = point.marks.last() else { return };
            rot_newest(&mut image);
            match open(&Device::new(SimDevice::from_image(image)), small()) {
                Ok(store) => {
                    opened += 1;
                    recover_all(&store, &mut models[mark as usize].clone())
                        .unwrap_or_else(|violation| panic!("seed {seed}, state {}: {violation}", point.id));
                }
                Err(Error::Corrupt { .. } | Error::Unopenable(_)) => noticed += 1,
                Err(error) => panic!("seed {seed}, state {}: {error}", point.id),
            }
        });
    }
    println!("{opened} opened, {noticed} noticed");
    assert!(opened > 10 && noticed > 10, "{opened} opened, {noticed} noticed");
}

/// Blocks whose last bytes are the tail of a packed run.
fn tails(image: &Image) -> Vec<u64> {
    let is_tail = |block: &u64| {
        image.block(*block)[BLOCK_BYTES - 36..BLOCK_BYTES - 32] == 0x464B_5053_u32.to_le_bytes()
    };
    (0..image.blocks()).filter(is_tail).collect()
}

/// A damaged footer costs no object; the run stays in place, and is freed when all its values are dead.
#[test]
fn damaged_footers_are_local() {
    const BLOCKS: u64 = 900;
    let sim = formatted(BLOCKS, 3);
    let store = open(&device(&sim), small()).unwrap();
    (0..60).for_each(|which| store.put_numbered(which, which, 2_500));
    block_on(store.close()).unwrap();
    drop(store);
    let mut image = sim.image();
    let tails = tails(&image);
    assert!(tails.len() > 8, "{} runs", tails.len());
    tails.iter().for_each(|&block| image.flip(block, BLOCK_BYTES - 4, 1));
    let sim = SimDevice::from_image(image);
    let device = device(&sim);
    let report = checked(&device).unwrap();
    let footers = report.problems.iter().filter(|problem| problem.what.contains("footer")).count();
    assert!(footers > 8 && footers as u64 == report.problem_count, "{:?}", report.problems);
    let store = open(&device, small()).unwrap();
    // Most are overwritten: the runs would be rewritten if they could be.
    (0..60).filter(|which| which % 4 > 0).for_each(|which| store.put_numbered(which, 1_000 + which, 2_500));
    for which in 0..60 {
        store.assert_numbered(which, if which % 4 > 0 { 1_000 + which } else { which }, 2_500);
    }
    (0..60).for_each(|which| store.remove_numbered(which));
    (0..60).for_each(|which| store.put_numbered(which, 2_000 + which, 2_500));
    (0..60).for_each(|which| store.put_numbered(which, 3_000 + which, 2_500));
    block_on(store.close()).unwrap();
    drop(store);
    assert_clean(&device, "everything damaged is dead and gone");
}

/// Pages that hold the liveness are lost: objects outside of them are still readable, space is kept, and a repair counts again.
#[test]
fn a_lost_liveness_is_counted_again() {
    const BLOCKS: u64 = 900;
    let sim = formatted(BLOCKS, 4);
    let store = open(&device(&sim), small()).unwrap();
    (0..120).for_each(|which| store.put_numbered(which, which, 1_300));
    block_on(store.close()).unwrap();
    drop(store);
    let clean = sim.image();
    let leaves: Vec<u64> = (34..BLOCKS)
        .filter(|&block| {
            clean.block(block)[4..8] == *b"Sp\x02\x00" || clean.block(block)[4..8] == *b"Sp\x01\x00"
        })
        .filter(|&block| clean.block(block).windows(4).any(|bytes| bytes[..2] == [0xFF, b'r']))
        .collect();
    let mut damaged = 0;
    for block in leaves {
        let mut image = clean.clone();
        image.flip(block, 50, 1);
        let device = Device::new(SimDevice::from_image(image));
        if checked(&device).unwrap().is_clean() {
            // An older page without a reference.
            continue;
        }
        damaged += 1;
        let store = open(&device, small()).unwrap();
        let alive: Vec<u64> =
            (0..120).filter(|&which| matches!(store.find(Workload::key(which)), Ok(Some(_)))).collect();
        // New runs, so that the damaged leaf is replaced.
        (200..260).for_each(|which| store.put_numbered(which, which, 1_300));
        alive.iter().for_each(|&which| store.assert_numbered(which, which, 1_300));
        block_on(store.close()).unwrap();
        drop(store);
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        block_on(check(device.clone(), &repair)).unwrap();
        let report = checked(&device).unwrap();
        for problem in &report.problems {
            assert!(problem.what.contains("lost with a damaged page"), "block {block}: {problem:?}");
        }
        let store = open(&device, small()).unwrap();
        alive.iter().for_each(|&which| store.assert_numbered(which, which, 1_300));
        (200..260).for_each(|which| store.remove_numbered(which));
        alive.iter().for_each(|&which| store.put_numbered(which, 5_000 + which, 1_300));
        alive.iter().for_each(|&which| store.assert_numbered(which, 5_000 + which, 1_300));
    }
    assert!(damaged >= 2, "{damaged} pages with liveness");
}

/// Bits flip anywhere in a store of packed runs: reads return the right bytes or an error, and `check` detects all damage that reads
/// detect.
#[test]
fn bits_flip() {
    const BLOCKS: u64 = 320;
    let sim = formatted(BLOCKS, 5);
    let store = open(&device(&sim), small()).unwrap();
    (0..60).for_each(|which| store.put_numbered(which, which, SIZES[which as usize % 4]));
    (0..60).step_by(4).for_each(|which| store.put_numbered(which, 100 + which, 700));
    (1..60).step_by(9).for_each(|which| store.remove_numbered(which));
    block_on(store.close()).unwrap();
    drop(store);
    let image = sim.image();
    let value = |which: u64| match which {
        _ if which % 9 == 1 => None,
        _ if which.is_multiple_of(4) => Some(Value { key: which, seed: 100 + which, bytes: 700 }),
        _ => Some(Value { key: which, seed: which, bytes: SIZES[which as usize % 4] }),
    };
    let used = (0..BLOCKS).filter(|&block| image.block(block).iter().any(|&byte| byte != 0));
    let (mut trials, mut noticed) = (0, 0);
    for block in used {
        for byte in (block as usize % 211..BLOCK_BYTES).step_by(211).chain([BLOCK_BYTES - 20]) {
            let what = format!("bit of byte {byte} of block {block}");
            let mut damaged = image.clone();
            damaged.flip(block, byte, 1 << (byte % 8));
            trials += 1;
            let errors = match open(&Device::new(SimDevice::from_image(damaged.clone())), small()) {
                Ok(store) => (0..60).filter(|&which| !reads(&store, which, value(which), &what)).count(),
                Err(Error::Corrupt { .. } | Error::Unopenable(_)) => continue,
                Err(error) => panic!("{what}: {error}"),
            };
            if errors > 0 {
                noticed += 1;
                let device = Device::new(SimDevice::from_image(damaged));
                let report = checked(&device).unwrap();
                assert!(!report.is_clean(), "{what}: {errors} errors, but check finds nothing");
            }
        }
    }
    println!("{trials} flips, {noticed} noticed");
    assert!(trials > 1_000 && noticed > 100, "{trials} flips, {noticed} noticed");
}

/// Returns true if the object is readable; panics if its value is not the one that was put.
fn reads(store: &Store, which: u64, value: Option<Value>, what: &str) -> bool {
    match (store.find(Workload::key(which)), value) {
        (Ok(None), None) => true,
        (Ok(Some(object)), Some(value)) => {
            value.check(&object.value.to_vec()).unwrap_or_else(|why| panic!("{what}: {which}: {why}"));
            true
        }
        (Err(Error::Corrupt { .. }), _) => false,
        (read, _) => panic!("{what}: {which}: {:?}", read.map(|object| object.map(|object| object.info))),
    }
}
