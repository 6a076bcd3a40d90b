//! Backups of a store whose index is damaged: a full one has the rest and names the missing ranges; changes are refused.

// Clippy's exception for tests does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use shoal_backup::{BackupStream, Decoder, Event, LastBackup, Loss};
use shoal_base::ManualClock;
use shoal_device::Device;
use shoal_device_sim::Image;
use shoal_engine::{Error, Result, block_on};
use shoal_storekit::{StoreKit, put};
use shoal_testkit::device::quiet;

const BLOCKS: u64 = 2_048;
const OBJECTS: u8 = 60;

fn kit() -> StoreKit {
    StoreKit::steady(BLOCKS, &Arc::new(ManualClock::new(1_700_000_000_000_000_000)))
}

/// The events of a whole backup, which the store may note.
fn events(mut stream: BackupStream) -> Result<Vec<Event>> {
    block_on(stream.note())?;
    let (mut decoder, mut events) = (Decoder::new(), Vec::new());
    while let Some(bytes) = block_on(stream.next())? {
        decoder.push(&bytes);
        while let Some(event) = decoder.next_event().unwrap() {
            events.push(event);
        }
    }
    block_on(stream.note())?;
    Ok(events)
}

#[test]
fn full_backup_skips_damage_and_incremental_fails() {
    let sim = quiet(Image::new(BLOCKS));
    let store = kit().create(&Device::new(sim.clone()));
    for which in 0..OBJECTS {
        put(&store, "b", &[&[which; 300][..], b"k"].concat(), vec![which; 20]);
    }
    let whole = events(block_on(BackupStream::begin(&store, 1)).unwrap()).unwrap();
    let Some(Event::Header(header)) = whole.first() else { panic!("{whole:?}") };
    let last = LastBackup { store: header.store, version: header.version, pages: Vec::new(), up_to: None };
    let noted = store.stat().last_backup.map(|noted| (noted.version, noted.taken_ns));
    assert_eq!(noted, Some((header.version, header.taken_ns)));
    block_on(store.close()).unwrap();
    drop(store);

    let image = sim.image();
    let is_leaf = |block: &u64| image.block(*block)[4..6] == *b"Sp" && image.block(*block)[7] == 0;
    let leaf = (0..BLOCKS).rfind(is_leaf).unwrap();
    let sim = quiet(image.clone());
    sim.corrupt(leaf, 1_000, 1);
    let store = kit().open(&Device::new(sim));
    let found = events(block_on(BackupStream::begin(&store, 2)).unwrap()).unwrap();
    let lost = found.iter().filter(|event| matches!(event, Event::Loss(Loss::Range(_)))).count();
    let Some(Event::End(end)) = found.last() else { panic!("{found:?}") };
    assert_eq!((lost as u64, end.ranges), (1, 1));
    assert!(end.objects > 0 && end.objects < u64::from(OBJECTS) && end.keys == end.objects, "{end:?}");
    assert_eq!(store.stat().last_backup, None, "a backup that lacks objects is none to rely on");
    let stream = block_on(BackupStream::begin_since(&store, 3, &last)).unwrap();
    let error = events(stream).unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { block, .. } if *block == leaf)
            && error.to_string().contains("make a full backup"),
        "{error}"
    );
}

/// If the first piece of a long value is damaged, the backup has no head of the value, only its loss.
#[test]
fn any_damage_loses_whole_long_value() {
    const LONG_BYTES: usize = 3 << 20;
    let sim = quiet(Image::new(BLOCKS));
    let store = kit().create(&Device::new(sim.clone()));
    put(&store, "b", b"long", vec![7; LONG_BYTES]);
    put(&store, "b", b"short", vec![1; 20]);
    block_on(store.close()).unwrap();
    drop(store);
    let image = sim.image();
    let is_of_value = |block: &u64| image.block(*block).iter().all(|&byte| byte == 7);
    let (first, last) = ((0..BLOCKS).find(is_of_value).unwrap(), (0..BLOCKS).rfind(is_of_value).unwrap());
    for (block, begins) in [(first, 0), (last, 1)] {
        let sim = quiet(image.clone());
        sim.corrupt(block, 1_000, 1);
        let store = kit().open(&Device::new(sim));
        let found = events(block_on(BackupStream::begin(&store, 2)).unwrap()).unwrap();
        let count = |is: fn(&Event) -> bool| found.iter().filter(|event| is(event)).count();
        assert_eq!(count(|event| matches!(event, Event::Begin(_))), begins, "{found:?}");
        assert_eq!(count(|event| matches!(event, Event::Loss(Loss::Object { .. }))), 1);
        let Some(Event::End(end)) = found.last() else { panic!("{found:?}") };
        assert_eq!((end.objects, end.unreadable), (1, 1), "{end:?}");
    }
}
