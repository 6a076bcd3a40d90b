//! Rounds that gather scattered free blocks while little is written: the file returns their room, and the store is idle afterwards.
//!
//! Symptom: after deleting a random half of the objects, the file kept twice the bytes of the others for ever. Cause: each free run was
//! between used ones, and only runs of 64 KiB become holes. A first version emptied whole groups: it continued for minutes on a full file
//! system, and a second round followed. Fix: one round moves the contents of the emptiest windows into short runs.

use std::sync::Arc;

use shoal_device::Device;
use shoal_device_sim::{Image, SimDevice};
use shoal_engine::{Error, FormatOptions, OpenOptions, StoreStat, Tuning, block_on};
use shoal_testkit::{Value, Workload};

use crate::common::{ByName, assert_clean, format_as, tiny_format};
use crate::relocation::{Bed, LONG_NS, file, small};

const BLOCK_BYTES: usize = 4_096;
/// Blocks that the store withholds for deletes: a tenth of the objects here, and little of a large store.
const WITHHELD: u64 = 256;

fn options() -> OpenOptions {
    // No reserve, and a file that keeps little room ahead of need: nothing else moves values or takes blocks.
    let tuning = Tuning { reserve_permille: 0, growth_blocks: 64, ..small().tuning };
    OpenOptions { tuning, ..small() }
}

/// A store in a file, half of whose `count` objects of `bytes` bytes are deleted.
struct Halved {
    sim: Arc<SimDevice>,
    device: Device,
    bed: Bed,
    count: u64,
    bytes: usize,
}

impl Halved {
    fn loaded(count: u64, bytes: usize) -> Self {
        let (sim, device) = file(Image::new(1), 1 << 20);
        let layout = FormatOptions { initial_blocks: Some(0), ..tiny_format(1 << 14) };
        format_as(&device, &layout, 1);
        let bed = Bed::open(&device, options()).unwrap();
        (0..count).for_each(|which| bed.store.put_numbered(which, 1, bytes));
        Self { sim, device, bed, count, bytes }
    }

    fn new(count: u64, bytes: usize) -> Self {
        let made = Self::loaded(count, bytes);
        made.delete_half();
        made
    }

    fn delete_half(&self) {
        (0..self.count)
            .filter(|which| !is_kept(*which))
            .for_each(|which| self.bed.store.remove_numbered(which));
    }

    fn stat(&self) -> StoreStat {
        self.bed.store.stat()
    }

    /// The room of the file, without the log's ring and the blocks for deletes, for each byte of the objects.
    fn disk_per_byte(&self) -> f64 {
        let log = self.stat().log_prepared_blocks;
        let kept = (0..self.count).filter(|which| is_kept(*which)).count();
        let held = self.sim.held_blocks(None).unwrap() - log - WITHHELD;
        (held * BLOCK_BYTES as u64) as f64 / (kept * self.bytes) as f64
    }

    /// Steps until a round has closed groups.
    fn start_round(&self) {
        for _ in 0..2_000 {
            self.bed.clock.advance(LONG_NS / 20);
            block_on(self.bed.store.move_step()).unwrap();
            if self.stat().groups_closed > 0 {
                return;
            }
        }
        panic!("no round starts: {:?}", self.stat());
    }

    fn settle(&self) {
        (0..6).for_each(|_| self.bed.settle(20_000));
        assert_eq!(self.stat().groups_closed, 0, "{:?}", self.stat());
    }

    fn assert_whole(self, what: &str) {
        let kept = (0..self.count).filter(|which| is_kept(*which));
        kept.for_each(|which| self.bed.store.assert_numbered(which, 1, self.bytes));
        drop(self.bed);
        assert_clean(&self.device, what);
    }
}

/// A random half.
fn is_kept(which: u64) -> bool {
    which.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 0
}

#[test]
fn scattered_blocks_are_returned_once_little_is_written() {
    for blocks in [1, 3] {
        let halved = Halved::new(6_000 / blocks, blocks as usize * BLOCK_BYTES);
        let before = halved.disk_per_byte();
        assert!(before > 1.9 && halved.stat().groups_closed == 0, "{before} {:?}", halved.stat());
        halved.settle();
        let after = halved.disk_per_byte();
        println!(
            "{blocks} blocks: {before:.3} before, {after:.3} after; {} bytes moved",
            halved.stat().bytes_evacuated
        );
        assert!(after <= 1.2, "{after}: {:?}", halved.stat());
        halved.assert_whole("after blocks were gathered");
    }
}

#[test]
fn a_store_is_idle_after_its_round() {
    let halved = Halved::new(3_000, 3 * BLOCK_BYTES);
    halved.settle();
    let (stat, held) = (halved.stat(), halved.sim.held_blocks(None));
    assert!(stat.bytes_evacuated > 0, "{stat:?}");
    for _ in 0..50 {
        halved.bed.settle(100);
    }
    let later = halved.stat();
    assert_eq!((later.device, later.bytes_discarded), (stat.device, stat.bytes_discarded), "hours later");
    assert_eq!(halved.sim.held_blocks(None), held);
    // A few more free blocks are not worth a round; many are.
    (0..90).for_each(|which| halved.bed.store.remove_numbered(which));
    halved.settle();
    assert_eq!(halved.stat().bytes_evacuated, stat.bytes_evacuated);
    (90..1_500).for_each(|which| halved.bed.store.remove_numbered(which));
    halved.settle();
    (1_500..3_000).filter(|which| which % 2 == 0).for_each(|which| halved.bed.store.remove_numbered(which));
    halved.settle();
    assert!(halved.stat().bytes_evacuated > stat.bytes_evacuated);
}

#[test]
fn nothing_moves_while_the_file_system_is_full() {
    let halved = Halved::loaded(3_000, 3 * BLOCK_BYTES);
    halved.sim.set_room(0);
    let store = &halved.bed.store;
    let refused = (0..10_000).find_map(|which| store.set_numbered(10_000 + which, 1, 3 * BLOCK_BYTES).err());
    assert!(matches!(refused, Some(Error::Full { cannot_grow: Some(_), .. })), "{refused:?}");
    halved.delete_half();
    for _ in 0..30 {
        halved.bed.settle(20_000);
    }
    let stat = halved.stat();
    assert_eq!((stat.bytes_evacuated, stat.groups_closed), (0, 0), "{stat:?}");
    assert!(stat.cannot_grow.is_some(), "{stat:?}");
    // There is room again: ten minutes later, free blocks are gathered.
    let refused = (0..100).find(|which| store.set_numbered(30_000 + which, 1, 400_000).is_err()).unwrap();
    (0..refused).for_each(|which| store.remove_numbered(30_000 + which));
    halved.sim.set_room(1 << 20);
    let grows = |which: &u64| {
        store.put_numbered(20_000 + which, 1, 400_000);
        halved.stat().cannot_grow.is_none()
    };
    assert!((0..100).any(|which| grows(&which)), "{:?}", halved.stat());
    (0..100).for_each(|which| store.remove_numbered(20_000 + which));
    (0..4).for_each(|_| halved.bed.settle(20_000));
    assert_eq!(halved.stat().bytes_evacuated, 0, "too early");
    (0..6).for_each(|_| halved.bed.settle(20_000));
    assert!(halved.stat().bytes_evacuated > 0, "{:?}", halved.stat());
    halved.assert_whole("after the file system was full");
}

#[test]
fn writes_end_a_round_at_once() {
    let halved = Halved::new(3_000, 3 * BLOCK_BYTES);
    halved.start_round();
    block_on(halved.bed.store.move_step()).unwrap();
    // More than a quiet store writes in two seconds.
    (0..250).for_each(|which| halved.bed.store.put_numbered(20_000 + which, 1, 3 * BLOCK_BYTES));
    let before = halved.stat();
    assert!(before.groups_closed > 0 && before.bytes_evacuated > 0, "{before:?}");
    for _ in 0..10 {
        block_on(halved.bed.store.move_step()).unwrap();
        let stat = halved.stat();
        assert_eq!((stat.groups_closed, stat.bytes_evacuated), (0, before.bytes_evacuated), "{stat:?}");
        halved.bed.clock.advance(1_000_000_000);
    }
    (0..250).for_each(|which| halved.bed.store.assert_numbered(20_000 + which, 1, 3 * BLOCK_BYTES));
    (0..250).for_each(|which| halved.bed.store.remove_numbered(20_000 + which));
    halved.settle();
    let after = halved.disk_per_byte();
    assert!(after <= 1.25, "it is finished later: {after} {:?}", halved.stat());
    halved.assert_whole("after an interrupted round");
}

/// A power cut at each write of a round: no object is lost, and none is found twice.
#[test]
fn every_crash_of_a_round_leaves_all_objects() {
    const COUNT: u64 = 900;
    const BYTES: usize = 3 * BLOCK_BYTES;
    let halved = Halved::new(COUNT, BYTES);
    block_on(halved.bed.store.close()).unwrap();
    let (sim, device) = file(halved.sim.image(), 1 << 20);
    drop(halved);
    let bed = Bed::open(&device, options()).unwrap();
    sim.mark(1);
    (0..6).for_each(|_| bed.settle(20_000));
    let stat = bed.store.stat();
    assert!(stat.bytes_evacuated > 100_000 && stat.bytes_discarded > 0, "{stat:?}");
    drop(bed);
    let mut states = 0_u64;
    sim.history().for_each_crash_state(2, 1, |point, image| {
        if point.marks.is_empty() {
            return;
        }
        states += 1;
        if !states.is_multiple_of(4) {
            return;
        }
        let (_, device) = file(image, 1 << 20);
        let bed = Bed::open(&device, options()).unwrap_or_else(|error| panic!("state {}: {error}", point.id));
        for which in (states % 7..COUNT).step_by(7) {
            let found = bed
                .store
                .find(Workload::key(which))
                .unwrap_or_else(|error| panic!("state {}: {error}", point.id));
            assert_eq!(found.is_some(), is_kept(which), "state {}, object {which}", point.id);
            let bytes = found.map(|object| object.value.to_vec());
            let check = bytes.map(|bytes| Value { key: which, seed: 1, bytes: BYTES }.check(&bytes));
            assert!(check.is_none_or(|check| check.is_ok()), "state {}, object {which}", point.id);
        }
        drop(bed);
        if states.is_multiple_of(32) {
            assert_clean(&device, &format!("state {}", point.id));
        }
    });
    println!("{states} states, {} bytes moved", stat.bytes_evacuated);
    assert!(states > 100, "only {states} states");
}
