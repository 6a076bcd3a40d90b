//! A store with two writers, or without its file.

use std::sync::Arc;

use shoal_base::BLOCK_BYTES_U64;
use shoal_device::{Device, IoBuf, MemDevice};
use shoal_image::layout::SUPERBLOCK_COPIES;

use crate::testing::fixtures::{environment, open_in, options};
use crate::{Environment, Error, FormatOptions, ObjectKey, OpenOptions, PutOptions, Result, Store, block_on};

fn formatted() -> Device {
    formatted_in(&environment())
}

fn formatted_in(environment: &Environment) -> Device {
    let device = Device::new(Arc::new(MemDevice::new(1 << 14)));
    block_on(Store::format(&device, &FormatOptions::for_blocks(1 << 14), environment)).unwrap();
    device
}

fn opened(device: &Device, look_ns: u64) -> Store {
    let mut options: OpenOptions = options();
    options.tuning.file_look_ns = look_ns;
    open_in(device, options, environment())
}

fn put(store: &Store, name: &[u8]) -> Result<()> {
    let key = ObjectKey::new("default", name).unwrap();
    block_on(store.put(&key, vec![1; 100].into(), PutOptions::default())).map(|_| ())
}

fn apply(store: &Store) -> Result<()> {
    block_on(store.0.checkpointer.apply_all())
}

/// Two programs that opened one device overwrote each other silently.
#[test]
fn a_second_writer_makes_both_read_only() {
    let device = formatted();
    let first = opened(&device, 0);
    put(&first, b"one").unwrap();
    apply(&first).unwrap();
    let second = opened(&device, 0);
    put(&first, b"two").unwrap();
    assert!(matches!(apply(&first), Err(Error::Poisoned(why)) if why.contains("another program writes to")));
    assert!(matches!(put(&first, b"three"), Err(Error::Poisoned(_))));
    assert!(first.stat().poisoned.unwrap().contains("of opening 2"));
    assert!(matches!(block_on(first.close()), Err(Error::Poisoned(_))), "a stop is no success");
    // The second one has the newest superblock, and nothing of it was overwritten.
    put(&second, b"four").unwrap();
    apply(&second).unwrap();
    block_on(second.close()).unwrap();
}

/// A close always checks.
#[test]
fn second_writer_is_detected_at_close() {
    let device = formatted();
    let first = opened(&device, u64::MAX);
    drop(opened(&device, u64::MAX));
    assert!(matches!(block_on(first.close()), Err(Error::Poisoned(why)) if why.contains("another program")));
}

#[test]
fn emptied_or_replaced_file_is_detected() {
    let write = |device: &Device, blocks: u64, source: Option<&Device>| {
        for block in 0..blocks {
            let bytes = source.map_or_else(
                || IoBuf::new(1),
                |source| block_on(source.read(block, IoBuf::unfilled(1))).ok().unwrap(),
            );
            block_on(device.write(block, bytes)).ok().unwrap();
        }
    };
    let cases = ["is gone from it", "another store", "is gone from it"];
    let other = formatted_in(&Environment::default());
    for (case, words) in cases.into_iter().enumerate() {
        let device = formatted();
        let older = Device::new(Arc::new(MemDevice::new(64)));
        write(&older, 64, Some(&device));
        let store = opened(&device, 0);
        put(&store, b"one").unwrap();
        apply(&store).unwrap();
        assert_eq!(block_on(store.0.checkpointer.lost_file()), None);
        write(&device, 34, [None, Some(&other), Some(&older)][case]);
        let what = block_on(store.0.checkpointer.lost_file()).unwrap();
        assert!(what.contains(words), "case {case}: {what}");
        put(&store, b"two").unwrap();
        assert!(matches!(apply(&store), Err(Error::Poisoned(_))));
    }
}

/// Bad sectors and bit rot are the scrub's concern: a store that can publish heals them.
#[test]
fn damaged_copies_do_not_prove_second_writer() {
    let device = formatted();
    let store = opened(&device, 0);
    for round in 0..4_u8 {
        for block in SUPERBLOCK_COPIES.into_iter().flatten() {
            let mut bytes = block_on(device.read(block, IoBuf::unfilled(1))).ok().unwrap();
            bytes[usize::from(round) * 40] ^= 0x55;
            block_on(device.write(block, bytes)).ok().unwrap();
        }
        assert_eq!(block_on(store.0.checkpointer.lost_file()), None);
        put(&store, &[round]).unwrap();
        apply(&store).unwrap();
    }
    block_on(store.close()).unwrap();
    assert!(device.blocks() * BLOCK_BYTES_U64 > 0);
}
