//! Errors outside of recovery: failed reads under an apply or a move, missing space, limits.

use shoal_base::checksum::crc32c;
use shoal_base::{BLOCK_BYTES, Lsn, Run};
use shoal_device_sim::{Fault, FaultOp, Image};
use shoal_space::FreeImage;
use shoal_tablets::gc::relocate::{Emptied, HOLE_BLOCKS_MAX};
use shoal_tablets::gc::rewrite::{Moves, Pressure, VictimRun};
use shoal_tablets::tablet::tree_io::{PoolPages, tree_of};
use shoal_testkit::bytes::patterned;
use shoal_tree::fixtures as pages;
use shoal_value::packed::{RunEntry, run_key};
use shoal_value::{Entry, Home, Meta};
use smallvec::SmallVec;

use crate::testing::fixtures::{self, Fixture, environment, key, leaf_entry, newest, options};
use crate::{CheckOptions, Error, ListRequest, ObjectKey, OpenOptions, PutOptions, Store, block_on, check};

const EIO: i32 = 5;

fn put(store: &Store, which: u32, value: Vec<u8>) {
    fixtures::put(store, &key(which), value);
}

fn get(store: &Store, which: u32) -> crate::Result<Option<Vec<u8>>> {
    fixtures::get(store, &key(which))
}

fn apply(store: &Store) {
    block_on(store.0.checkpointer.apply_all()).unwrap();
}

fn is_io<T>(result: &crate::Result<T>) -> bool {
    matches!(result, Err(Error::Io(_)))
}

fn is_full<T>(result: &crate::Result<T>) -> bool {
    matches!(result, Err(Error::Full { .. }))
}

/// Returns the first block from `first` that starts with these bytes.
fn find(image: &Image, first: u64, start: &[u8]) -> u64 {
    (first..image.blocks()).find(|&block| image.block(block).starts_with(start)).expect("it is there")
}

/// A published store of `blocks` blocks in which every second block is free and no two free blocks touch.
fn splintered(blocks: u64) -> Fixture {
    let mut made = Fixture::with_blocks(blocks);
    let layout = made.superblock.layout;
    let mut image = FreeImage::new(layout.blocks_max, layout.group_blocks);
    for block in (made.next + 1..made.superblock.device_blocks).step_by(2) {
        image.free(Run::new(block, 1)).unwrap();
    }
    made.publish_with(&image);
    made
}

/// A closed store with values in packed runs, half of them overwritten; and the first block of a run that is worth rewriting.
fn half_dead() -> (Fixture, u64) {
    let mut made = Fixture::new();
    made.publish();
    // Relocation is paused.
    let options = OpenOptions { pause_relocation: true, ..options() };
    let store = block_on(Store::open(made.device.clone(), options, environment())).unwrap();
    (0..40).for_each(|which| put(&store, which, patterned(1_500, which as usize)));
    apply(&store);
    (0..40).step_by(2).for_each(|which| put(&store, which, patterned(300, 100 + which as usize)));
    apply(&store);
    let image = made.sim.image();
    let is_footer = |block: &u64| image.block(*block)[BLOCK_BYTES - 36..BLOCK_BYTES - 32] == *b"SPKF";
    let run_of = |block: u64| {
        u64::from_le_bytes(image.block(block)[BLOCK_BYTES - 24..BLOCK_BYTES - 16].try_into().unwrap())
    };
    let runs = (made.next..image.blocks()).filter(is_footer).map(run_of);
    let run = runs.filter(|&run| liveness_of(&store, run).is_some_and(|entry| entry.live_values > 3)).min();
    block_on(store.close()).unwrap();
    drop(store);
    (made, run.expect("values were packed"))
}

/// The liveness of the run at `block`.
fn liveness_of(store: &Store, block: u64) -> Option<RunEntry> {
    let tablet = &store.0.tablets.all()[0];
    let tree = tree_of(store.0.identity, tablet.id);
    let found =
        block_on(tablet.view().trees.find(tree, &PoolPages::new(&store.0.pool), None, &run_key(block)));
    Some(RunEntry::decode(&found.unwrap()?).unwrap())
}

/// The values read from a run that is to be rewritten.
fn live(store: &Store, victim: VictimRun) -> Moves {
    let tablet = &store.0.tablets.all()[0];
    let mut moves = Moves::default();
    block_on(store.0.checkpointer.read_live(tablet, &tablet.view().trees, vec![victim], &mut moves));
    moves
}

#[test]
fn unreadable_packed_runs_are_skipped() {
    let (made, run) = half_dead();
    let store = made.open().unwrap();
    let entry = liveness_of(&store, run).unwrap();
    let victim = || VictimRun { block: run, entry };
    let whole = live(&store, victim());
    assert_eq!((whole.values.len(), whole.doubtful.len()), (entry.live_values as usize, 0));
    assert!(whole.values.len() > 3);

    // The run itself cannot be read.
    made.sim.inject(Fault::fail(FaultOp::Read, EIO).at(run..run + 1));
    let moves = live(&store, victim());
    assert_eq!((moves.values.len(), moves.doubtful.len()), (0, 0), "another time it may be readable");
    // The page that decides which of its values are alive.
    let cold = made.open().unwrap();
    made.sim.inject(Fault::fail(FaultOp::Read, EIO).after(1).for_good());
    let moves = live(&cold, victim());
    made.sim.clear_faults();
    assert_eq!((moves.values.len(), moves.doubtful.len()), (0, 0));
    // The page with the liveness of the runs.
    let cold = made.open().unwrap();
    let tablet = &cold.0.tablets.all()[0];
    let choose = || block_on(cold.0.checkpointer.choose_moves(tablet, &tablet.view().trees, Pressure::Idle));
    made.sim.inject(Fault::fail(FaultOp::Read, EIO));
    assert!(choose().is_empty());
    assert!(!choose().is_empty(), "now it can be read");
}

#[test]
fn inconsistent_packed_runs_are_doubtful() {
    let (made, run) = half_dead();
    let store = made.open().unwrap();
    let entry = liveness_of(&store, run).unwrap();
    let doubted = |entry| {
        let moves = live(&store, VictimRun { block: run, entry });
        (moves.values.len(), format!("{:?}", moves.doubtful))
    };
    let doubt = |why: &str| (0, format!("[({run}, {why})]"));
    assert_eq!(doubted(RunEntry { values: entry.values + 1, ..entry }), doubt("Contents"), "another footer");
    assert_eq!(doubted(RunEntry { live_values: entry.live_values + 1, ..entry }), doubt("Count"));
    // A byte of a live value.
    let alive = live(&store, VictimRun { block: run, entry }).values.remove(0);
    let Home::Packed { at, .. } = alive.entry.home else { panic!("{:?}", alive.entry) };
    made.sim.corrupt(run + u64::from(at) / 4096, at as usize % 4096, 1);
    assert_eq!(doubted(entry), doubt("Contents"));
}

#[test]
fn a_store_that_is_read_only_makes_no_room() {
    let (made, _) = half_dead();
    let store = made.open().unwrap();
    store.0.log.poison.set("a test".into());
    let tidied = block_on(store.0.checkpointer.tidy_for_room());
    assert!(matches!(tidied, Err(Error::Poisoned(_))), "{tidied:?}");
}

/// Values with separate runs in a freshly opened store: the failures of the walk for groups to be emptied.
#[test]
fn unreadable_value_is_not_relocated() {
    let mut made = Fixture::with_blocks(2_048);
    made.publish();
    let store = made.open().unwrap();
    let large = patterned(70_000, 1);
    put(&store, 1, large.clone());
    put(&store, 2, patterned(360_000, 2));
    // Separate leaves for the next values.
    (100..200).for_each(|which| put(&store, which, patterned(200, which as usize)));
    put(&store, 300, patterned(70_000, 3));
    apply(&store);
    block_on(store.close()).unwrap();
    drop(store);
    let image = made.sim.image();
    let manifest = find(&image, made.next, b"SMNF");
    let value = find(&image, made.next, &large[..64]);
    let everything = [Run::new(made.next, (2_048 - made.next) as u32)];
    let emptied = Emptied { runs: everything.into(), hole_blocks: HOLE_BLOCKS_MAX };
    let walk = |store: &Store| {
        let tablet = &store.0.tablets.all()[0];
        let trees = tablet.view().trees.clone();
        let found = block_on(store.0.relocator.find_in_groups(tablet, &trees, &emptied, b"", u64::MAX));
        found.map(|found| {
            assert!(found.next.is_none(), "to the end of the tree");
            let moves =
                block_on(store.0.relocator.read_found(tablet, &trees, found, false)).expect("there is room");
            moves.values.into_iter().map(|moved| moved.key).collect::<Vec<_>>()
        })
    };
    let names = |which: &[u32]| which.iter().map(|&which| key(which).encoded().to_vec()).collect::<Vec<_>>();
    assert_eq!(walk(&made.open().unwrap()).unwrap(), names(&[1, 2, 300]));

    // The value: the others move.
    let store = made.open().unwrap();
    made.sim.inject(Fault::fail(FaultOp::Read, EIO).at(value..value + 1));
    assert_eq!(walk(&store).unwrap(), names(&[2, 300]));
    // The manifest, unreadable and damaged.
    let store = made.open().unwrap();
    made.sim.inject(Fault::fail(FaultOp::Read, EIO).at(manifest..manifest + 1));
    assert!(is_io(&walk(&store)));
    made.sim.corrupt(manifest, 20, 1);
    assert_eq!(walk(&made.open().unwrap()).unwrap(), names(&[1, 300]));
    made.sim.corrupt(manifest, 20, 1);
    // A page: an unreadable one aborts the walk, a damaged one is passed.
    let store = made.open().unwrap();
    made.sim.inject(Fault::fail(FaultOp::Read, EIO).after(1));
    assert!(is_io(&walk(&store)));
    let leaf = first_leaf(&made);
    made.sim.corrupt(leaf, 2_000, 1);
    assert_eq!(walk(&made.open().unwrap()).unwrap(), names(&[300]));
}

/// The block of the first leaf of a tree of two levels.
fn first_leaf(made: &Fixture) -> u64 {
    let (image, newest) = (made.sim.image(), newest(&made.device));
    let root = newest.tablets[0].root;
    assert_eq!(root.height, 2);
    let page = image.block(root.page.unwrap().block);
    let children = made.next..image.blocks();
    let child = |block: &u64| {
        let child = [&block.to_le_bytes()[..6], &image.block(*block)[..4]].concat();
        page.windows(child.len()).position(|bytes| bytes == child)
    };
    children.filter_map(|block| Some((child(&block)?, block))).min().expect("the root has children").1
}

#[test]
fn a_value_in_several_runs_moves_as_a_whole() {
    let mut made = Fixture::new();
    let (leaf, first) = (made.block(), made.blocks(16));
    made.block();
    let second = made.blocks(1);
    let value = patterned(66_000, 7);
    for (block, part) in (first.block..first.end()).chain([second.block]).zip(value.chunks(BLOCK_BYTES)) {
        let mut page = [0; BLOCK_BYTES];
        page[..part.len()].copy_from_slice(part);
        made.write(block, &page);
    }
    let checksums = value.chunks(65_536).map(crc32c).collect();
    let home = Home::Extents { offset: 0, runs: SmallVec::from_slice(&[first, second]), checksums };
    let meta = Meta::Inline(SmallVec::new());
    let entry = Entry { modified_ns: 1, end: None, value_bytes: 66_000, meta, home };
    let items = [(key(1).encoded().to_vec(), leaf_entry(1, &entry, &[]))];
    let items: Vec<_> = items.iter().map(|(key, entry)| (&key[..], entry.clone())).collect();
    let page = made.page(pages::leaf(made.tree(), leaf, &items));
    made.root(page, 1, 1);
    made.publish();
    let store = made.open().unwrap();
    let tablet = &store.0.tablets.all()[0];
    let trees = tablet.view().trees.clone();
    let emptied = Emptied { runs: [second].into(), hole_blocks: HOLE_BLOCKS_MAX };
    let found = block_on(store.0.relocator.find_in_groups(tablet, &trees, &emptied, b"", u64::MAX)).unwrap();
    let moves = block_on(store.0.relocator.read_found(tablet, &trees, found, true)).unwrap();
    assert_eq!(moves.values.len(), 1);
    assert_eq!(moves.values[0].stored, value);
}

/// An apply replaces a value whose entry or manifest it cannot read: the new value counts, and the space of the old one waits for a repair.
#[test]
fn overwrite_of_unreadable_value_keeps_its_space() {
    let mut made = Fixture::with_blocks(1_024);
    made.publish();
    let store = made.open().unwrap();
    put(&store, 1, patterned(360_000, 1));
    apply(&store);
    block_on(store.close()).unwrap();
    drop(store);
    let image = made.sim.image();
    let manifest = find(&image, made.next, b"SMNF");
    let value = find(&image, made.next, &patterned(64, 1));
    made.sim.corrupt(manifest, 20, 1);
    let store = made.open().unwrap();
    put(&store, 1, b"new".to_vec());
    apply(&store);
    block_on(store.0.checkpointer.make_freed_reusable());
    assert_eq!(get(&store, 1).unwrap().unwrap(), b"new");
    let space = store.0.space.allocator();
    assert!(!space.is_free(Run::new(value, 1)) && !space.is_free(Run::new(manifest, 1)));
    block_on(store.close()).unwrap();
    drop(store);
    let lost = "are neither free nor in use";
    let report = made.check(true);
    assert!(report.problems.iter().any(|problem| problem.what.contains(lost)), "{report:?}");
    assert!(made.check(false).is_clean());
}

#[test]
fn unreadable_entry_can_be_overwritten() {
    let mut made = Fixture::new();
    let leaf = made.block();
    let wrong = [&7_u64.to_le_bytes()[..], &[9]].concat();
    let page = made.page(pages::leaf(made.tree(), leaf, &[(key(1).encoded(), wrong)]));
    made.root(page, 1, 1);
    made.superblock.tablets[0].applied = Lsn(7);
    made.superblock.lsn_ceiling = Lsn(7);
    made.superblock.log_tail.first_lsn = Lsn(8);
    made.publish();
    let store = made.open().unwrap();
    assert!(matches!(get(&store, 1), Err(Error::Corrupt { .. })));
    put(&store, 1, b"new".to_vec());
    apply(&store);
    assert_eq!(get(&store, 1).unwrap().unwrap(), b"new");
    block_on(store.close()).unwrap();
    assert!(made.check(false).is_clean());
}

#[test]
fn apply_without_free_block_is_retried() {
    let mut made = Fixture::new();
    made.publish();
    let store = made.open().unwrap();
    put(&store, 1, b"value".to_vec());
    let space = store.0.space.allocator();
    let mut taken = Vec::new();
    space.for_each_run(&mut |run| taken.push(run));
    taken.iter().for_each(|&run| space.take(run).unwrap());
    assert!(is_full(&block_on(store.0.checkpointer.apply_all())));
    assert_eq!(get(&store, 1).unwrap().unwrap(), b"value");
    taken.iter().for_each(|&run| space.free(run).unwrap());
    apply(&store);
    block_on(store.close()).unwrap();
    assert!(made.check(false).is_clean());
}

#[test]
fn a_manifest_in_too_many_pieces_is_refused() {
    let made = splintered(256);
    let store = made.open().unwrap();
    let free = store.0.space.allocator().free_blocks();
    assert!(is_full(&block_on(store.0.claim_manifest(6)).map(|_| ())));
    assert_eq!(store.0.space.allocator().free_blocks(), free, "nothing stays taken");
    let few = block_on(store.0.claim_manifest(4)).unwrap();
    assert_eq!(few.runs().len(), 4);
}

#[test]
fn a_value_in_too_many_pieces_is_refused() {
    const PIECES: u64 = shoal_space_manager::RUNS_MAX as u64;
    let made = splintered(16_384);
    let store = made.open().unwrap();
    let space = &store.0.space;
    let (free, reserved) = (space.allocator().free_blocks(), space.reserved_blocks());
    let refused = space.claim_value(0, PIECES + 1, 3).map(|_| ()).unwrap_err();
    assert_eq!((refused.needed, refused.available), (PIECES + 4, space.available()));
    assert!(refused.available > refused.needed, "there are blocks, and too many pieces of them");
    assert_eq!((space.allocator().free_blocks(), space.reserved_blocks()), (free, reserved));
    let (extents, _) = space.claim_value(0, PIECES, 3).unwrap();
    assert_eq!(extents.runs().len() as u64, PIECES);
}

#[test]
fn requests_beyond_their_limits_are_refused() {
    let mut made = Fixture::new();
    made.publish();
    let store = made.open().unwrap();
    let refused = |result: crate::Result<()>, words: &str| match result {
        Err(Error::Invalid(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{words}: {other:?}"),
    };
    let request = ListRequest { bucket: "default".into(), limit: 1001, ..ListRequest::default() };
    refused(block_on(store.list(&request)).map(|_| ()), "a page has at most 1000 keys, not 1001");
    let long = vec![0; (4 << 20) + 1];
    let put = block_on(store.put(&key(1), long.into(), PutOptions::default())).map(|_| ());
    refused(put, "a value of 4194305 bytes is too large for one put: use a stream above 4194304 bytes");
    let request_id = crate::RequestId { session: 1, sequence: 1 };
    let options =
        crate::TransactOptions { request: Some((request_id, &|()| Vec::new())), ..Default::default() };
    let none =
        block_on(store.transact(&[], &options, |_| crate::Decision::Do(Vec::new().into(), ()))).map(|_| ());
    refused(none, "names at least one key");
    assert!(get(&store, 1).unwrap().is_none());
}

/// Numbers stay below the ceiling while publishing raises it; otherwise the store stops writing.
#[test]
fn numbers_above_the_ceiling_make_the_store_read_only() {
    let mut made = Fixture::new();
    made.publish();
    let store = made.open().unwrap();
    put(&store, 1, patterned(300, 1));
    let committer = &store.0.log.committer;
    let head = committer.place_of(Lsn(u64::MAX));
    committer.superblock_published(committer.named_superblock() + 1, head, Lsn(1));
    let refused = block_on(store.put(&key(2), vec![1].into(), PutOptions::default())).map(|_| ());
    assert!(matches!(refused, Err(Error::Unknown(_) | Error::Poisoned(_))), "{refused:?}");
    let reason = store.stat().poisoned.expect("it is read-only");
    assert!(reason.contains("numbers reached the ceiling of the newest superblock"), "{reason}");
    assert_eq!(get(&store, 1).unwrap().unwrap(), patterned(300, 1), "reads continue");
    drop(store);
    let store = made.open().unwrap();
    assert_eq!((get(&store, 1).unwrap().unwrap(), get(&store, 2).unwrap()), (patterned(300, 1), None));
}

/// The saved groups of buckets: if they cannot be read, the opening fails, because they may exist; if they are damaged, new groups are
/// created.
#[test]
fn groups_of_buckets_that_cannot_be_read() {
    let mut made = Fixture::with_blocks(8_192);
    made.publish();
    let options = OpenOptions { own_space: vec!["photos".into()], ..options() };
    let open = || block_on(Store::open(made.device.clone(), options.clone(), environment()));
    let photo = ObjectKey::new("photos", b"1").unwrap();
    let store = open().unwrap();
    block_on(store.put(&photo, vec![1; 400_000].into(), PutOptions::default())).unwrap();
    block_on(store.save_own_space()).unwrap();
    apply(&store);
    block_on(store.close()).unwrap();
    drop(store);
    assert!(open().unwrap().stat().own_blocks > 0);
    let root = newest(&made.device).tablets[0].root.page.unwrap().block;
    made.sim.inject(Fault::fail(FaultOp::Read, EIO).at(root..root + 1));
    assert!(is_io(&open().map(|_| ())));
    made.sim.corrupt(root, 2_000, 1);
    assert_eq!(open().unwrap().stat().own_blocks, 0);
}

#[test]
fn failing_discard_is_tried_once() {
    let mut made = Fixture::with_blocks(8_192);
    made.publish();
    let options = OpenOptions { discard: Some(true), ..options() };
    let store = block_on(Store::open(made.device.clone(), options, environment())).unwrap();
    let space = &store.0.space;
    let free = space.allocator().free_blocks() + space.holes().blocks();
    assert!(space.holes().is_any_new(), "an opening makes holes");
    made.sim.inject(Fault::fail(FaultOp::Discard, EIO).for_good());
    (0..2).for_each(|_| _ = block_on(store.0.relocator.discard_some()));
    assert_eq!(made.sim.injected(), 1, "nobody asks again before the next start");
    assert_eq!(space.allocator().free_blocks() + space.holes().blocks(), free);
    assert!(block_on(store.0.checkpointer.fill_holes(u64::MAX)) > 0, "all of it may be used");
    assert_eq!((space.allocator().free_blocks(), space.holes().blocks()), (free, 0));
    assert!(store.stat().poisoned.is_none());
}

/// A value is written in pieces while the device fails: the stream fails, and leaves no object.
#[test]
fn failed_stream_creates_no_object() {
    let mut made = Fixture::with_blocks(8_192);
    made.publish();
    let store = made.open().unwrap();
    let mut stream = store.put_stream(&key(1), PutOptions::default()).unwrap();
    made.sim.inject(Fault::fail(FaultOp::Write, EIO));
    let piece = patterned(5 << 20, 1);
    let written = block_on(async {
        stream.write(&piece).await?;
        stream.write(&piece).await
    });
    let finished = match written {
        Ok(()) => block_on(stream.finish()).map(|_| ()),
        Err(error) => Err(error),
    };
    assert!(is_io(&finished), "{finished:?}");
    assert_eq!(made.sim.injected(), 1);
    assert!(get(&store, 1).unwrap().is_none());
    block_on(store.close()).unwrap();
    let report = block_on(check(made.device.clone(), &CheckOptions::default())).unwrap();
    assert!(report.is_clean(), "{report:?}");
}
