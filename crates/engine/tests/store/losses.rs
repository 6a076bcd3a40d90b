//! A repair that loses data reports the losses, and the store remembers them until a user acknowledges them. Every block of the log of a
//! crashed store is damaged, one at a time, and the report of the repair is compared with the real changes (docs/repair.md).

use std::collections::BTreeMap;

use shoal_base::BLOCK_BYTES;
use shoal_device::Device;
use shoal_device_sim::Image;
use shoal_engine::{CheckOptions, CheckReport, Losses, OpenOptions, Store, block_on, check};

use crate::common::{ByName, blank, flat_name as name, open, quiet, tiny};

const BLOCKS: u64 = 256;
/// The place and the length of the log: docs/format/superblock.md.
const LOG: std::ops::Range<u64> = 34..58;
const KEYS: u64 = 12;

/// The turn of each key's last put; `None` if it was deleted.
type State = BTreeMap<u64, Option<u8>>;

/// Puts a value that encodes its turn.
fn put(store: &Store, state: &mut State, which: u64, turn: u8) {
    let value = vec![turn; 700 + which as usize];
    store.set(name(which), value).unwrap();
    state.insert(which, Some(turn));
}

fn delete(store: &Store, state: &mut State, which: u64) {
    store.remove(name(which)).unwrap();
    state.insert(which, None);
}

/// A store with objects in its trees, and newer puts and deletes in its log that no tree has.
fn subject(ends_in_order: bool) -> (Image, State) {
    let (sim, device) = blank(BLOCKS, 31);
    let mut state = State::new();
    let options = || OpenOptions { background: false, ..tiny() };
    let store = open(&device, options()).unwrap();
    (0..KEYS).for_each(|which| put(&store, &mut state, which, 1));
    block_on(store.close()).unwrap();
    drop(store);
    let store = open(&device, options()).unwrap();
    (0..6).for_each(|which| put(&store, &mut state, which, 2));
    (6..9).for_each(|which| delete(&store, &mut state, which));
    put(&store, &mut state, 20, 3);
    put(&store, &mut state, 0, 4);
    if ends_in_order {
        block_on(store.close()).unwrap();
    }
    let image = sim.image();
    drop(store);
    (image, state)
}

fn run(device: &Device, repair: bool, acknowledge: bool) -> CheckReport {
    let options = CheckOptions { repair, acknowledge, ..CheckOptions::default() };
    block_on(check(device.clone(), &options)).unwrap()
}

/// The current states of the keys, and the losses that the store remembers.
fn look(device: &Device) -> (State, Losses) {
    let store = open(device, OpenOptions { read_only: true, ..tiny() }).unwrap();
    let get = |which| store.find(name(which)).unwrap();
    let state = (0..KEYS).chain([20]).map(|which| (which, get(which).map(|object| object.value.to_vec()[0])));
    (state.collect(), store.stat().losses)
}

fn damaged(image: &Image, block: u64) -> Image {
    let mut image = image.clone();
    [60, 100, 2_000].iter().for_each(|&byte| image.flip(block, byte, 0x24));
    image
}

#[test]
fn repair_losses_are_reported_and_recorded() {
    let (image, expected) = subject(false);
    assert_eq!(look(&quiet(&image).1), (expected.clone(), Losses::default()));
    let (mut with_losses, mut unnoticed, mut kinds) = (0, 0, [0; 3]);
    for block in LOG {
        if image.block(block).iter().all(|&byte| byte == 0) {
            continue;
        }
        let device = quiet(&damaged(&image, block)).1;
        let found = run(&device, true, false);
        let (state, remembered) = look(&device);
        let changed: Vec<u64> = expected
            .iter()
            .filter(|(which, value)| state[which] != **value)
            .map(|(&which, _)| which)
            .collect();
        for which in &changed {
            kinds[match (expected[which], state[which]) {
                (Some(_), None) => 0,
                (Some(newest), Some(turn)) if turn < newest => 1,
                (None, Some(1)) => 2,
                (newest, turn) => panic!("block {block}: {which} is of turn {turn:?}, expected {newest:?}"),
            }] += 1;
        }
        if found.problem_count == 0 {
            // The last batch: no later batch promises it, so the crash may have torn it.
            assert!(changed.iter().all(|&which| which == 0), "block {block}: {changed:?}");
            unnoticed += usize::from(!changed.is_empty());
            continue;
        }
        let Losses { lost, reverted, resurrected, .. } = found.losses;
        let records: u64 = found.lost_records.iter().map(|range| range.end - range.start).sum();
        assert_eq!((lost, reverted, resurrected), (records, 0, 0), "block {block}: no name is known");
        assert!(
            changed.len() as u64 <= records,
            "block {block}: {changed:?} changed, {records} records are told"
        );
        assert_eq!(Losses { since_number: 0, ..remembered }, found.losses, "block {block}");
        if found.losses.is_none() {
            continue;
        }
        with_losses += 1;
        // No other problem is left; still, no check reports the store as clean, nor does another repair, until a user acknowledges the
        // losses.
        for repair in [false, true] {
            let again = run(&device, repair, false);
            assert!(again.problem_count == 0 && again.losses.is_none(), "block {block}: {again:?}");
            assert_eq!((again.remembered, again.is_clean()), (remembered, false), "block {block}");
        }
        let acknowledged = run(&device, false, true);
        assert_eq!(acknowledged.remembered, remembered);
        assert!(
            acknowledged.notes.iter().any(|note| note.starts_with("acknowledged: losses of earlier repairs"))
        );
        assert!(run(&device, false, false).is_clean(), "block {block}");
        assert_eq!(look(&device), (state, Losses::default()), "block {block}: nothing else changed");
    }
    assert_eq!(unnoticed, 1);
    assert!(with_losses >= 5 && kinds.iter().all(|&count| count > 0), "{with_losses} with losses: {kinds:?}");
}

/// A loss that no user has seen cannot be acknowledged: a repair's losses are remembered with any options.
#[test]
fn a_new_loss_is_not_acknowledged_yet() {
    let (image, _) = subject(false);
    let block = LOG.rev().find(|&block| image.block(block).iter().any(|&byte| byte != 0)).unwrap();
    let device = quiet(&damaged(&image, block)).1;
    let found = run(&device, true, true);
    assert!(!found.losses.is_none() && !run(&device, false, false).is_clean(), "{found:?}");
    run(&device, false, true);
    assert!(run(&device, false, false).is_clean());
}

/// A completely closed store needs no record of its log, so none can be lost.
#[test]
fn clean_close_loses_nothing() {
    let (image, expected) = subject(true);
    for block in LOG {
        let device = quiet(&damaged(&image, block)).1;
        assert!(run(&device, true, false).losses.is_none(), "block {block}");
        assert_eq!(look(&device), (expected.clone(), Losses::default()), "block {block}");
    }
}

/// Seen as exit code 0 after an acknowledgement that gave up a damaged range: its objects were in no count, because only losses of the log
/// were counted. Every block of the trees is damaged, one at a time.
#[test]
fn acknowledged_losses_are_counted_and_recorded() {
    let (whole, expected) = subject(true);
    let mut without_log = whole.clone();
    LOG.for_each(|block| without_log.write(block, &[0; BLOCK_BYTES]));
    let (mut counted, mut restored) = (0, 0);
    let cases = (LOG.end..BLOCKS).flat_map(|block| {
        [&whole, &without_log]
            .into_iter()
            .flat_map(move |image| [(image, false, block), (image, true, block)])
    });
    for (image, repairs_first, block) in cases {
        if image.block(block).iter().all(|&byte| byte == 0) {
            continue;
        }
        let device = quiet(&damaged(image, block)).1;
        let is_hidden = !run(&device, false, false).damaged_ranges.is_empty();
        if repairs_first {
            let repaired = run(&device, true, false);
            assert_eq!(repaired.losses, Losses::default(), "block {block}: nothing is given up yet");
            restored += repaired.restored_count;
        }
        let found = run(&device, false, true);
        let store = open(&device, OpenOptions { read_only: true, ..tiny() }).unwrap();
        let gone = expected
            .iter()
            .filter(|(which, turn)| turn.is_some() && matches!(store.find(name(**which)), Ok(None)))
            .count() as u64;
        assert_eq!(store.stat().losses.lost, found.losses.lost, "block {block}: remembered");
        drop(store);
        let lost = found.losses.lost;
        // A repair may have replaced the page with a marked leaf, which counts as one more.
        let is_right = lost == gone || repairs_first && (1..=gone + 1).contains(&lost);
        assert!(is_right, "block {block}, repaired first: {repairs_first}: {gone} are gone: {found:?}");
        let again = run(&device, false, false);
        assert_eq!(again.remembered.lost, lost, "block {block}");
        assert!(lost == 0 || !again.is_clean() && is_hidden, "block {block}: {again:?}");
        if lost > 0 {
            counted += 1;
            run(&device, false, true);
            assert!(run(&device, false, false).is_clean(), "block {block}: acknowledged");
        }
    }
    assert!(counted > 1 && restored > 0, "{counted} blocks with losses, {restored} restored");
}
