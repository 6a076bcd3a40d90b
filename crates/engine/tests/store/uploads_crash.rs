//! Uploads over crashes, races, relocation and repair: a completion is there as a whole or not at all, acknowledged parts stay, and each
//! block has one owner in every state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shoal_base::BLOCK_BYTES;
use shoal_base::checksum::crc32c;
use shoal_device::{Device, MemDevice};
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{Completed, Error, NewUpload, OpenOptions, PartRef, Store, Tuning, Upload, block_on};
use shoal_testkit::bytes::number;
use shoal_testkit::wait::within;

use crate::common::{
    ByName, assert_clean, blank, check_clean, checked, format, key, open, open_in_real_time, quiet, repaired,
    tiny, tiny_with_layers, tiny_with_threads, tiny_without_layers,
};
use crate::relocation::{Bed, LONG_NS};
use crate::uploads::{apply, begin, complete, part, try_complete, try_part, value_of};

/// The flag of the feature among the incompatible ones.
const UPLOADS: u64 = 1 << 5;

/// The state that is acknowledged after a step; the next step may be there, too.
#[derive(Clone, Default)]
struct Promise {
    /// The value of the object.
    object: Option<Vec<u8>>,
    upload: Option<Upload>,
    /// Parts that are stored while the upload is open.
    parts: Vec<(PartRef, Vec<u8>)>,
    completed: Option<Completed>,
}

fn object_of(store: &Store) -> Option<Vec<u8>> {
    store.find("object").unwrap().map(|object| object.value.to_vec())
}

/// Runs a script over an object; returns the device, and the promise before and after each step.
fn script(options: &OpenOptions, which: u64) -> (Arc<SimDevice>, Vec<Promise>) {
    let sim = SimDevice::from_image(blank(512, which).0.image());
    let store = open(&Device::new(sim.clone()), options.clone()).unwrap();
    let (mut now, mut promises) = (Promise::default(), vec![Promise::default()]);
    sim.mark(0);
    let mut note = |now: &Promise| {
        promises.push(now.clone());
        sim.mark(promises.len() as u64 - 1);
    };
    for round in 0..3 {
        let upload = begin(&store, "object");
        now = Promise { object: now.object.clone(), upload: Some(upload.clone()), ..Promise::default() };
        note(&now);
        let sizes = [(1, 5_000), (2, 300_000), (1, 9_000), (3, 0), (4, 70_000)];
        for (number, bytes) in sizes {
            let stored = part(&store, &upload, number, bytes);
            now.parts.retain(|(part, _)| part.number != number);
            now.parts.push((stored, value_of(number, bytes)));
            note(&now);
            if which.is_multiple_of(2) && number == 2 {
                apply(&store);
            }
        }
        now.parts.sort_by_key(|(part, _)| part.number);
        if (which + round).is_multiple_of(4) {
            assert!(block_on(store.abort_upload(&upload)).unwrap());
            now = Promise { object: now.object.clone(), ..Promise::default() };
            note(&now);
            continue;
        }
        // Part 4 is not used.
        let used: Vec<PartRef> = now.parts[..3].iter().map(|(part, _)| *part).collect();
        now.completed = Some(complete(&store, &upload, &used));
        now.object = Some(now.parts[..3].iter().flat_map(|(_, value)| value.clone()).collect());
        note(&now);
        match (which + round) % 3 {
            0 => apply(&store),
            1 => {
                store.set("object", vec![round as u8; 6_000]).unwrap();
                now.object = Some(vec![round as u8; 6_000]);
                note(&now);
            }
            _ => {}
        }
    }
    store.remove("object").unwrap();
    now.object = None;
    note(&now);
    apply(&store);
    (sim, promises)
}

/// Opens a crash state after the step of `promises[mark]`, and compares.
fn recovers(image: &Image, promises: &[Promise], mark: usize) -> Result<(), String> {
    let (_, device) = quiet(image);
    let store = open(&device, tiny()).map_err(|error| format!("did not open: {error}"))?;
    let (before, after) = (&promises[mark], promises.get(mark + 1).unwrap_or(&promises[mark]));
    let object = object_of(&store);
    if object != before.object && object != after.object {
        let bytes = object.map(|object| object.len());
        return Err(format!("the object has {bytes:?} bytes"));
    }
    if let Some(upload) = &before.upload {
        let found = block_on(store.upload(upload)).map_err(|error| error.to_string())?;
        let completed = found.as_ref().and_then(|info| info.completed.clone());
        let is_known = [before, after].iter().any(|promise| promise.completed == completed)
            // The answer of a completion that was not acknowledged is not known here.
            || before.completed.is_none() && after.completed.as_ref().is_none_or(|_| completed.is_some());
        let may_be_gone = after.upload.is_none() || after.upload != before.upload;
        if !may_be_gone && (!is_known || found.is_none()) {
            return Err(format!("the upload is {found:?}"));
        }
        if found.is_some() && completed.is_none() {
            let parts = block_on(store.list_parts(upload, 0, 100)).map_err(|error| error.to_string())?.parts;
            for (stored, value) in &before.parts {
                let replaced =
                    after.parts.iter().any(|(part, _)| part.number == stored.number && part != stored);
                let found = parts.iter().find(|part| part.number == stored.number);
                if !replaced
                    && found.map(|part| (part.to_ref(), part.info.bytes))
                        != Some((*stored, value.len() as u64))
                {
                    return Err(format!("part {} is {found:?}", stored.number));
                }
            }
            // The parts are whole: they make an object.
            let used: Vec<PartRef> = parts.iter().map(|part| part.to_ref()).collect();
            if !used.is_empty() {
                complete(&store, upload, &used);
                let bytes: u64 = parts.iter().map(|part| part.info.bytes).sum();
                let value = object_of(&store).ok_or("no object")?;
                if value.len() as u64 != bytes {
                    return Err(format!("{} bytes of {bytes} were joined", value.len()));
                }
            }
        }
    }
    // No block in use counts as free: all free blocks are written.
    for other in 0..6 {
        store.set(format!("other-{other}"), vec![other; 40_000]).map_err(|error| error.to_string())?;
    }
    let expected = object_of(&store);
    drop(store);
    check_clean(&device)?;
    let store = open(&device, tiny()).map_err(|error| format!("did not open again: {error}"))?;
    apply(&store);
    if object_of(&store) != expected {
        return Err("the object changed".to_owned());
    }
    drop(store);
    check_clean(&device)
}

fn explore(options: &OpenOptions, which: u64, states_per_point: usize) -> usize {
    let (sim, promises) = script(options, which);
    let mut states = 0;
    sim.history().for_each_crash_state(states_per_point, which, |point, image| {
        let Some(&mark) = point.marks.last() else { return };
        states += 1;
        if let Err(violation) = recovers(&image, &promises, mark as usize) {
            panic!("script {which}, state {}: {violation}", point.id);
        }
    });
    states
}

#[test]
fn every_crash_leaves_whole_uploads() {
    let mut large = tiny_with_layers();
    large.tuning.memtable_records_max = 64;
    let states = explore(&large, 1, 2) + explore(&large, 2, 2) + explore(&tiny_without_layers(), 3, 2);
    assert!(states > 300, "only {states} states were explored");
}

/// Of each valid copy of the superblock, whether it names the feature.
fn names_uploads(image: &Image) -> Vec<bool> {
    let is_valid = |bytes: &&[u8; BLOCK_BYTES]| {
        let crc = number(&bytes[..], (BLOCK_BYTES - 4, 4));
        bytes[..7] == *b"SHOALSB" && crc == u64::from(crc32c(&bytes[..BLOCK_BYTES - 4]))
    };
    let copies = [0, 1, 32, 33].iter().map(|&block| image.block(block)).filter(is_valid);
    copies.map(|bytes| number(&bytes[..], (172, 4)) & UPLOADS != 0).collect()
}

/// Before the first record of an upload is in the log, all copies of the superblock name the feature.
#[test]
fn every_crash_before_the_first_upload_is_safe() {
    let sim = SimDevice::from_image(blank(256, 8).0.image());
    let store = open(&Device::new(sim.clone()), tiny()).unwrap();
    store.set("plain", vec![1; 50]).unwrap();
    assert!(!block_on(store.abort_upload(&foreign())).unwrap());
    assert!(names_uploads(&sim.image()).iter().all(|names| !names), "a store without uploads");
    sim.mark(0);
    // Without attributes, whose feature would be named, too.
    let upload = block_on(store.begin_upload(&key("object"), NewUpload::default(), None)).unwrap();
    sim.mark(1);
    drop(store);
    let (mut without, mut with) = (0, 0);
    sim.history().for_each_crash_state(64, 1, |point, image| {
        let Some(&mark) = point.marks.last() else { return };
        let names = names_uploads(&image);
        let store = open(&Device::new(SimDevice::from_image(image)), tiny()).unwrap();
        let exists = block_on(store.upload(&upload)).unwrap().is_some();
        assert!(exists || mark == 0, "state {}: an acknowledged upload is lost", point.id);
        if exists {
            assert!(names.iter().all(|names| *names), "state {}: {names:?}", point.id);
        }
        *(if exists { &mut with } else { &mut without }) += 1;
    });
    assert!(without > 3 && with > 0, "{without} without, {with} with");
}

fn foreign() -> Upload {
    Upload { key: key("object"), id: shoal_engine::UploadId::new(7).unwrap() }
}

/// Completion, abort and parts of one upload at the same time: it is completed or aborted, and nothing of it is left in either case.
#[test]
fn completion_races_against_parts_and_abort() {
    within("a race over uploads", || {
        let device = Device::new(Arc::new(MemDevice::new(2_048)));
        format(&device, 2_048, 1);
        let store = open_in_real_time(&device, tiny_with_threads());
        let (completed, aborted) = (AtomicU64::new(0), AtomicU64::new(0));
        for round in 0..60_usize {
            let name = format!("object-{round}");
            let upload = begin(&store, &name);
            let parts = [part(&store, &upload, 1, 9_000), part(&store, &upload, 2, 70_000)];
            std::thread::scope(|scope| {
                scope.spawn(|| match try_complete(&store, &upload, &parts, false) {
                    Ok(_) => _ = completed.fetch_add(1, Ordering::Relaxed),
                    Err(Error::NoUpload(_) | Error::NoPart(_)) => {}
                    Err(error) => panic!("{error}"),
                });
                scope.spawn(|| {
                    for number in [3, 2, 4] {
                        match try_part(&store, &upload, number, 5_000) {
                            Ok(_) | Err(Error::NoUpload(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
                if round.is_multiple_of(2) {
                    scope.spawn(|| {
                        if block_on(store.abort_upload(&upload)).unwrap() {
                            aborted.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            block_on(store.abort_upload(&upload)).unwrap();
            assert_eq!(block_on(store.upload(&upload)).unwrap(), None);
            if let Some(object) = store.find(&name).unwrap() {
                assert_eq!(object.value.to_vec(), [value_of(1, 9_000), value_of(2, 70_000)].concat());
                store.remove(&name).unwrap();
            }
        }
        let (completed, aborted) = (completed.into_inner(), aborted.into_inner());
        assert!(completed > 0 && completed + aborted <= 60, "{completed} completed, {aborted} aborted");
        block_on(store.close()).unwrap();
        drop(store);
        assert_clean(&device, "after the races");
        let store = open_in_real_time(&device, tiny());
        assert_eq!(store.stat().objects, 0);
        block_on(store.count_results()).unwrap();
        apply(&store);
        let left = store.stat().allocated_blocks;
        assert!(left < 40, "{left} blocks are left of uploads");
    });
}

/// Relocation leaves parts and joined values where they are: a completion names the runs of parts while its record is in the memtable.
#[test]
fn relocation_does_not_move_parts() {
    const PART: usize = 8_192;
    let device = Device::new(Arc::new(MemDevice::new(4_096)));
    format(&device, 4_096, 1);
    let tuning = Tuning { reserve_permille: 500, memtable_records_max: 64, ..tiny_without_layers().tuning };
    let bed =
        Bed::open(&device, OpenOptions { cache_bytes: 2 << 20, tuning, ..tiny_without_layers() }).unwrap();
    let mut put = 0;
    let mut fill = |bed: &Bed, count| {
        for _ in 0..count {
            bed.store.put_numbered(put, 1, 12_000);
            put += 1;
        }
        put
    };
    let uploads: Vec<(Upload, Vec<PartRef>)> = (0..40)
        .map(|which| {
            let upload = begin(&bed.store, &format!("object-{which}"));
            let parts = (1..=3).map(|number| part(&bed.store, &upload, number, PART)).collect();
            // Between the parts, so that their groups are nearly empty later.
            fill(&bed, 12);
            (upload, parts)
        })
        .collect();
    while bed.store.stat().free_blocks > 300 {
        fill(&bed, 1);
    }
    let count = fill(&bed, 0);
    // The groups with parts have the fewest used blocks.
    let left = |which: u64| which >= 480 && which.is_multiple_of(2);
    (0..count).filter(|&which| !left(which)).for_each(|which| bed.store.remove_numbered(which));
    let (early, late) = uploads.split_at(20);
    let put_some = |store: &Store| store.put_numbered(1_000_000 + store.stat().puts, 3, 100_000);
    early.iter().for_each(|(upload, parts)| _ = complete(&bed.store, upload, parts));
    apply(&bed.store);
    apply(&bed.store);
    for (upload, parts) in late {
        // The groups are chosen, and the parts are in the trees; then the completion is in the memtable only.
        bed.clock.advance(LONG_NS);
        block_on(bed.store.move_step()).unwrap();
        complete(&bed.store, upload, parts);
        bed.settle(1_000);
        // Takes whole groups, so that there is always work, and writes blocks that were freed by mistake.
        put_some(&bed.store);
    }
    assert!(bed.store.stat().moved_bytes > 10_000, "{} bytes were moved", bed.store.stat().moved_bytes);
    let expected: Vec<u8> = (1..=3).flat_map(|number| value_of(number, PART)).collect();
    for which in 0..40 {
        let (info, parts) =
            block_on(bed.store.object_parts(&key(format!("object-{which}")))).unwrap().unwrap();
        assert_eq!((info.bytes, parts.len()), (3 * PART as u64, 3), "object {which}");
        let object = bed.store.find(format!("object-{which}")).unwrap().unwrap();
        assert_eq!(object.value.to_vec(), expected, "object {which}");
    }
    drop(bed);
    assert_clean(&device, "after relocation");
}

/// The parts were durable before their completion: an opening that looks for the end of the log does not read them.
#[test]
fn an_opening_reads_no_parts() {
    let (_, device) = blank(2_048, 16);
    let store = open(&device, tiny()).unwrap();
    let upload = begin(&store, "object");
    let parts: Vec<PartRef> = (1..=6).map(|number| part(&store, &upload, number, 500_000)).collect();
    apply(&store);
    complete(&store, &upload, &parts);
    drop(store);
    let before = device.counters().blocks_read * 4_096;
    let store = open(&device, tiny()).unwrap();
    let read = device.counters().blocks_read * 4_096 - before;
    assert!(read < 1_000_000, "{read} bytes were read");
    assert_eq!(store.find("object").unwrap().unwrap().info.bytes, 3_000_000);
}

/// Each block in use is damaged, one at a time: a repair completes, and completed objects that it does not report are whole.
#[test]
fn repair_keeps_completed_objects() {
    let (sim, device) = blank(256, 15);
    let mut options = tiny();
    options.tuning.memtable_records_max = 64;
    let store = open(&device, options).unwrap();
    let names = ["one", "two", "three"];
    for (which, name) in (0_u16..).zip(names) {
        let upload = begin(&store, name);
        let parts = [part(&store, &upload, 1, 9_000), part(&store, &upload, 2, 5_000)];
        if which == 1 {
            apply(&store);
        }
        complete(&store, &upload, &parts);
    }
    let open_upload = begin(&store, "open");
    part(&store, &open_upload, 1, 5_000);
    let expected = [value_of(1, 9_000), value_of(2, 5_000)].concat();
    drop(store);
    let image = sim.image();
    let (mut whole, mut lost) = (0, 0);
    for block in (34..256).filter(|&block| image.block(block).iter().any(|&byte| byte != 0)) {
        let mut damaged = image.clone();
        damaged.write(block, &[0xA5; BLOCK_BYTES]);
        let (_, device) = quiet(&damaged);
        let Ok(report) = repaired(&device) else { panic!("block {block}: no repair") };
        let store = open(&device, tiny()).unwrap_or_else(|error| panic!("block {block}: {error}"));
        for name in names {
            match store.find(name) {
                Ok(Some(object)) => {
                    assert_eq!(object.value.to_vec(), expected, "block {block}, {name}");
                    whole += 1;
                }
                found => {
                    assert!(report.problem_count > 0, "block {block}, {name}: {found:?}");
                    lost += 1;
                }
            }
        }
        // Aborting the rest of the uploads frees no block of an object.
        for info in block_on(store.all_uploads(None, 10)).map(|page| page.uploads).unwrap_or_default() {
            _ = block_on(store.abort_upload(&info.upload));
        }
        for other in 0..10 {
            _ = store.set(format!("other-{other}"), vec![7; 20_000]);
        }
        for name in names {
            if let Ok(Some(object)) = store.find(name) {
                assert_eq!(object.value.to_vec(), expected, "block {block}, {name}, later");
            }
        }
        drop(store);
        let problems = checked(&device).unwrap().problems;
        let is_owned_twice = problems.iter().any(|problem| problem.what.contains("two owners"));
        assert!(!is_owned_twice, "block {block}: {problems:?}");
    }
    assert!(whole > 3 * lost && lost > 0, "{whole} whole, {lost} lost");
}
