//! The exact words of a scrub about each kind of damage, and the ends of its pieces.

use shoal_base::{BLOCK_BYTES_U64, Run};
use shoal_device_sim::{Fault, FaultOp};
use shoal_image::copies;
use shoal_space::FreeImage;
use shoal_tree::fixtures as pages;

use super::*;
use crate::testing::fixtures::{Fixture, inline_entry, key};
use crate::{ObjectKey, PutOptions, block_on};

const EIO: i32 = 5;

/// The problems that a scrub of the store reports.
fn scrub(store: &Store) -> Vec<(String, u64)> {
    let report = block_on(store.scrub()).unwrap();
    assert_eq!(report.problem_count, report.problems.len() as u64);
    report.problems.into_iter().map(|problem| (problem.what, problem.block)).collect()
}

#[test]
fn unreadable_entry_is_reported_and_others_are_checked() {
    let mut made = Fixture::new();
    let (good, bad) = (key(1), key(2));
    // Its length is 200 bytes, and three follow.
    let mut wrong = inline_entry(&[7; 200]);
    wrong.truncate(wrong.len() - 197);
    let block = made.block();
    let items = [(good.encoded(), inline_entry(b"abc")), (bad.encoded(), wrong)];
    let page = made.page(pages::leaf(made.tree(), block, &items));
    made.root(page, 1, 2);
    made.publish();
    let store = made.open().unwrap();
    assert_eq!(scrub(&store), [("the entry of default/0002 cannot be read".to_owned(), block)]);
    assert_eq!(block_on(store.scrub()).unwrap().objects, 1);
}

/// The loss was reported when the leaf was replaced; objects in it are verified like any other.
#[test]
fn replacement_of_lost_leaf_is_not_reported_again() {
    let mut made = Fixture::new();
    let block = made.block();
    let items = [(key(1).encoded().to_vec(), inline_entry(b"abc"))];
    let items: Vec<_> = items.iter().map(|(key, entry)| (&key[..], entry.clone())).collect();
    let page = made.page(pages::lost_leaf(made.tree(), block, (b"", None), &items));
    made.root(page, 1, 1);
    made.publish();
    let store = made.open().unwrap();
    assert_eq!(scrub(&store), []);
    assert_eq!(block_on(store.scrub()).unwrap().objects, 1);
}

/// Symptom: a scrub never finished past 64 leaves without entries in a row. Cause: the next piece started after
/// the last entry, and there was none.
#[test]
fn a_scrub_passes_leaves_without_entries() {
    const LEAVES: usize = LEAVES_AT_A_TIME + 6;
    let mut made = Fixture::new();
    let separators: Vec<Vec<u8>> =
        (0..LEAVES).map(|leaf| format!("default\0{leaf:04}").into_bytes()).collect();
    let mut children = Vec::new();
    for (leaf, low) in separators.iter().enumerate() {
        let low = if leaf == 0 { &[][..] } else { low };
        let bounds = (low, separators.get(leaf + 1).map(|high| &high[..]));
        let block = made.block();
        children.push((low, made.page(pages::lost_leaf(made.tree(), block, bounds, &[])), 0));
    }
    let root = made.block();
    let page = made.page(pages::inner(made.tree(), root, 1, &children));
    made.root(page, 2, 0);
    made.publish();
    let store = made.open().unwrap();
    assert_eq!(scrub(&store), []);
    assert_eq!(block_on(store.scrub()).unwrap().pages, LEAVES as u64 + 1);
}

#[test]
fn an_inner_page_and_its_leaves_are_read_from_the_device() {
    let mut made = Fixture::new();
    let keys: Vec<ObjectKey> = (0..4).map(key).collect();
    let mut leaves = Vec::new();
    for pair in keys.chunks(2) {
        let block = made.block();
        let items: Vec<_> = pair.iter().map(|key| (key.encoded(), inline_entry(b"abc"))).collect();
        leaves.push(made.page(pages::leaf(made.tree(), block, &items)));
    }
    let block = made.block();
    let children = [(&b""[..], leaves[0], 2), (keys[2].encoded(), leaves[1], 2)];
    let page = made.page(pages::inner(made.tree(), block, 1, &children));
    made.root(page, 2, 4);
    made.publish();
    let store = made.open().unwrap();
    assert_eq!(scrub(&store), []);
    // The pages are in the cache now; the scrub reads past it.
    made.sim.corrupt(leaves[1].block, 3_000, 1);
    let what = "page of level 0 (keys from default/0002 on): the page cannot be read: damaged: a page of level 0 at block ";
    let what = format!("{what}{}; `shoal check` lists all damage", leaves[1].block);
    assert_eq!(scrub(&store), [(what, leaves[1].block)]);
}

#[test]
fn copies_of_the_superblock_and_the_space_image_are_looked_at() {
    let mut made = Fixture::new();
    made.publish();
    let store = made.open().unwrap();
    assert_eq!(scrub(&store), []);
    let newest = crate::testing::fixtures::newest(&made.device);
    let copies = copies::copies(newest.number);

    // One copy cannot be read, and one is an older superblock.
    made.sim.inject(Fault::fail(FaultOp::Read, EIO).at(copies[0]..copies[0] + 1));
    let said = scrub(&store);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].0.starts_with("a copy of the newest superblock: ") && said[0].1 == copies[0], "{said:?}");
    let older: [u8; BLOCK_BYTES] =
        Superblock { number: newest.number - 2, ..newest.clone() }.encode()[..].try_into().unwrap();
    made.write(copies[1], &older);
    assert_eq!(scrub(&store), [("a copy of the newest superblock is damaged".to_owned(), copies[1])]);
    made.write(copies[1], newest.encode()[..].try_into().unwrap());
    assert_eq!(scrub(&store), []);

    // The snapshot's piece, then a delta after it that cannot be read.
    let area = newest.layout.space_area(newest.space.area);
    made.sim.corrupt(area, 100, 1);
    assert_eq!(scrub(&store), [("a part of the space image is damaged".to_owned(), 0)]);
    made.sim.corrupt(area, 100, 1);
    block_on(store.put(&key(1), vec![1; 50].into(), PutOptions::default())).unwrap();
    block_on(store.0.checkpointer.apply_all()).unwrap();
    let newest = crate::testing::fixtures::newest(&made.device);
    assert!(newest.space.deltas > 0, "{:?}", newest.space);
    let delta = area + u64::from(newest.space.snapshot_blocks);
    made.sim.corrupt(delta, 30, 1);
    assert_eq!(scrub(&store), [("the space image: the bytes are damaged: the checksum".to_owned(), delta)]);
    made.sim.corrupt(delta, 30, 1);
    let read = Fault::fail(FaultOp::Read, EIO).at(delta..delta + 1);
    made.sim.inject(read);
    let said = scrub(&store);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].0.starts_with("the space image: device error: ") && said[0].1 == 0, "{said:?}");
}

/// A value whose blocks the device cannot read is a problem of that object, and the pass goes on.
#[test]
fn unreadable_value_is_reported_with_its_object() {
    let mut made = Fixture::new();
    made.publish();
    let store = made.open().unwrap();
    for which in 0..3 {
        block_on(store.put(&key(which), vec![which as u8; 40_000].into(), PutOptions::default())).unwrap();
    }
    block_on(store.0.checkpointer.apply_all()).unwrap();
    let image = made.sim.image();
    let block = (made.next..image.blocks()).find(|&block| *image.block(block) == [1; BLOCK_BYTES]).unwrap();
    made.sim.inject(Fault::fail(FaultOp::Read, EIO).at(block..block + 1));
    let report = block_on(store.scrub()).unwrap();
    assert_eq!((report.objects, report.problem_count), (3, 1), "{report:?}");
    assert!(report.problems[0].what.starts_with("object default/0001: device error: "), "{report:?}");
    made.sim.corrupt(block, 9, 1);
    let block = report_block(&image);
    assert_eq!(scrub(&store), [("object default/0001: a value's checksum does not match".to_owned(), block)]);
}

/// The block at which the value of ones starts.
fn report_block(image: &shoal_device_sim::Image) -> u64 {
    (0..image.blocks()).find(|&block| *image.block(block) == [1; BLOCK_BYTES]).unwrap()
}

/// A piece ends after a number of bytes, in the middle of a leaf, and the next one continues after the object; also
/// after a number of leaves.
#[test]
fn scrub_steps_are_bounded_and_complete() {
    const VALUE_BYTES: usize = 2 << 20;
    let mut made = Fixture::with_blocks(4_096);
    made.publish();
    let store = made.open().unwrap();
    for which in 0..5 {
        block_on(store.put(&key(which), vec![1; VALUE_BYTES].into(), PutOptions::default())).unwrap();
    }
    block_on(store.0.checkpointer.apply_all()).unwrap();
    let pieces = |store: &Store| {
        let (mut report, mut place, mut objects) =
            (ScrubReport::default(), ScrubPlace::default(), Vec::new());
        loop {
            let before = report.objects;
            let is_over = block_on(store.0.scrub_some(&mut place, &mut report)).unwrap();
            objects.push(report.objects - before);
            if is_over {
                assert_eq!(report.problem_count, 0, "{report:?}");
                return (objects, report);
            }
        }
    };
    let (objects, report) = pieces(&store);
    assert_eq!(BYTES_AT_A_TIME, 2 * VALUE_BYTES as u64, "two values of this test are a piece");
    // The pages on the path from the root count, too; the last piece is the superblocks'.
    assert_eq!(objects, [2, 2, 1, 0]);
    assert!(report.bytes >= 5 * VALUE_BYTES as u64 + 4 * BLOCK_BYTES_U64);

    // Leaves of many small objects: more than one piece, each object once.
    for which in 0..3_000 {
        block_on(store.put(&key(which), vec![1; 100].into(), PutOptions::default())).unwrap();
    }
    block_on(store.0.checkpointer.apply_all()).unwrap();
    let (objects, report) = pieces(&store);
    assert!(objects.len() > 2 && objects.iter().sum::<u64>() == 3_000, "{objects:?}");
    assert!(report.pages > LEAVES_AT_A_TIME as u64, "{report:?}");
}

/// The store is closed in the middle of a piece: that ends the scrub, and not only the piece.
#[test]
fn scrub_stops_when_store_closes() {
    let mut made = Fixture::new();
    made.publish();
    let store = made.open().unwrap();
    block_on(store.put(&key(1), vec![1; 50].into(), PutOptions::default())).unwrap();
    block_on(store.0.checkpointer.apply_all()).unwrap();
    let mut report = ScrubReport::default();
    let (tree, trees) =
        (tree_of(store.0.identity, shoal_base::TabletId(0)), Trees::only(shoal_tree::Root::EMPTY));
    let mut piece = Piece::new(&store.0, (tree, &trees, 0), Vec::new(), &mut report);
    let entry = inline_entry(b"abc");
    piece.entry(key(1).encoded(), &entry, PageRef::default());
    store.0.closed.store(true, Ordering::Release);
    assert!(matches!(block_on(piece.leaf_done()), Err(Error::Closed)));
    assert!(!piece.is_full);
    assert!(matches!(block_on(store.scrub()), Err(Error::Closed)));
}

/// Closes the store as soon as a scrub reports a problem.
struct Closes(Store);

impl tracing::Subscriber for Closes {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.0.closed.store(true, Ordering::Release);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// The store is closed between two objects of a leaf: that ends the scrub, and is not taken for the end of a piece.
#[test]
fn running_scrub_stops_when_store_closes() {
    let mut made = Fixture::new();
    let block = made.block();
    let items = [(key(1).encoded().to_vec(), vec![9; 12]), (key(2).encoded().to_vec(), inline_entry(b"abc"))];
    let items: Vec<_> = items.iter().map(|(key, entry)| (&key[..], entry.clone())).collect();
    let page = made.page(pages::leaf(made.tree(), block, &items));
    made.root(page, 1, 2);
    made.publish();
    let store = made.open().unwrap();
    let (mut report, mut place) = (ScrubReport::default(), ScrubPlace::default());
    let ended = tracing::subscriber::with_default(Closes(store.clone()), || {
        block_on(store.0.scrub_some(&mut place, &mut report))
    });
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    assert_eq!((report.problem_count, report.objects), (1, 0));
}

/// Problems beyond those that a report lists are counted.
#[test]
fn problems_beyond_the_room_of_a_report_are_counted() {
    let mut report = ScrubReport::default();
    (0..PROBLEMS_MAX as u64 + 2)
        .for_each(|block| report.problem(CheckProblem { what: "wrong".into(), block }));
    assert_eq!((report.problems.len(), report.problem_count), (PROBLEMS_MAX, PROBLEMS_MAX as u64 + 2));
}

/// A store with a partly lost space image opens, and a scrub reports the loss.
#[test]
fn unknown_group_is_reported() {
    let mut made = Fixture::new();
    let layout = made.superblock.layout;
    let mut image = FreeImage::new(layout.blocks_max, layout.group_blocks);
    let group = u64::from(layout.group_blocks);
    let first = made.next.next_multiple_of(group);
    image.free(Run::new(made.next, (first - made.next) as u32)).unwrap();
    image.mark_incomplete(first..first + 1);
    made.publish_with(&image);
    let store = made.open().unwrap();
    assert_eq!(scrub(&store), [("a part of the space image is damaged".to_owned(), 0)]);
}
