//! Which superblocks are those of another opening.

use std::sync::Arc;

use shoal_base::task::block_on;
use shoal_device::MemDevice;

use super::*;
use crate::copies::copies;
use crate::format_tests::superblock;

/// A superblock of opening `epoch`.
fn of(number: u64, epoch: u64) -> Superblock {
    Superblock { number, epoch, ..superblock() }
}

fn write(device: &Device, superblock: &Superblock) {
    for block in copies(superblock.number) {
        block_on(device.write(block, superblock.encode())).ok().unwrap();
    }
}

fn watched() -> (Device, SlotWatch) {
    let device = Device::new(Arc::new(MemDevice::new(64)));
    write(&device, &of(1000, 4));
    write(&device, &of(1001, 5));
    let watch = SlotWatch::new(device.clone(), &of(1001, 5), true);
    (device, watch)
}

fn found(watch: &SlotWatch) -> Option<String> {
    block_on(watch.look()).unwrap()
}

#[test]
fn superblocks_of_this_opening_and_the_one_before_are_no_others() {
    let (device, watch) = watched();
    assert_eq!(found(&watch), None);
    for number in 1002..1010 {
        let next = of(number, 5);
        watch.note(&next);
        assert_eq!(found(&watch), None, "{number} is not written yet");
        write(&device, &next);
        assert_eq!(found(&watch), None, "{number} is written");
    }
}

#[test]
fn every_other_superblock_is_found() {
    let others = [
        ("a claim", of(1002, 5)),
        ("an opening", of(1003, 6)),
        ("a slow opening from an older superblock", of(1001, 6)),
        ("an older server that publishes", of(1002, 4)),
        ("another store", Superblock { identity: [8; 16], ..of(1002, 5) }),
        ("an opening at the same time", Superblock { wall_high_ns: 1, ..of(1001, 5) }),
    ];
    for (case, other) in others {
        let (device, watch) = watched();
        write(&device, &other);
        let words = found(&watch).unwrap_or_else(|| panic!("{case} is not found"));
        let is_replaced = other.identity != superblock().identity;
        assert!(
            words.contains(if is_replaced { "another store" } else { "another server opened" }),
            "{words}"
        );
    }
}

/// A program that knows the format of this one only must not take the superblocks of a newer one for damage.
#[test]
fn newer_versions_are_found() {
    let (device, watch) = watched();
    let mut newer = of(1002, 6);
    newer.features.incompatible = 1 << 31;
    write(&device, &newer);
    let words = found(&watch).unwrap();
    assert!(words.contains("another server, of a newer version of shoal, opened"), "{words}");
}

#[test]
fn damaged_copies_prove_nothing_and_second_copies_count() {
    let (device, watch) = watched();
    let damage = |block: u64| {
        let bytes = IoBuf::new(1);
        block_on(device.write(block, bytes)).ok().unwrap();
    };
    write(&device, &of(1002, 6));
    damage(0);
    assert!(found(&watch).is_some(), "the second copy of slot 0");
    damage(32);
    assert_eq!(found(&watch), None);
}

/// The numbers of several publishes may pass during one slow read, and a superblock without room leaves its number to the next one.
#[test]
fn a_slow_look_beside_publishes_finds_nothing() {
    let (device, watch) = watched();
    let before = *watch.own.lock();
    for number in 1002..1012 {
        watch.note(&of(number, 5));
    }
    let after = *watch.own.lock();
    for number in 1001..1012 {
        let head = SuperblockHead::of(&of(number, 5).encode()).unwrap();
        assert!(watch.is_own(&head, (&before, &after)), "{number}");
    }
    let later = SuperblockHead::of(&of(1012, 5).encode()).unwrap();
    assert!(!watch.is_own(&later, (&before, &after)));

    for wall_high_ns in 0..6 {
        watch.note(&Superblock { wall_high_ns, ..of(1012, 5) });
    }
    write(&device, &of(1010, 5));
    write(&device, &of(1011, 5));
    assert_eq!(found(&watch), None, "the slots are unchanged");
}

#[test]
fn an_opening_without_room_has_no_superblock_yet() {
    let (device, _) = watched();
    let watch = SlotWatch::new(device.clone(), &of(1001, 6), false);
    assert_eq!(found(&watch), None);
    watch.note(&of(1002, 6));
    write(&device, &of(1002, 6));
    assert_eq!(found(&watch), None);
}
