//! Slices whose base changes meanwhile, the choice of layers that become one, and compactions that fall behind.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use shoal_base::{Lsn, ManualClock, SeededEntropy};
use shoal_tablets::compaction::choice::{LAYERS_A_TIER, NextCompaction, full_tier, tier_for};
use shoal_tablets::compaction::{Compacted, Wanted};
use shoal_tablets::tablet::damage::Unread;
use shoal_tablets::tablet::tree_io::{PoolPages, tree_of};
use shoal_testkit::wait::HANGS_AFTER;
use shoal_tree::layers::LAYERS_MAX;
use shoal_tree::{LeafFinder, LeafPlace, Probe, Root, TreeWriter};

use crate::testing::fixtures::{checked, environment, formatted, key, options, put};
use crate::{ByteRange, Environment, Error, ListRequest, PutOptions, RejectRules, Store, block_on};

#[test]
fn a_slice_is_put_again_into_a_base_that_an_apply_changed() {
    let (_, device) = formatted(1 << 14, 1, 1 << 12);
    let mut options = options();
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 8, 1);
    let store = block_on(Store::open(device, options, environment())).unwrap();
    let (checkpointer, tablet) = (&store.0.checkpointer, &store.0.tablets.all()[0]);
    let apply = |keys: &mut dyn Iterator<Item = usize>| {
        for which in keys {
            put(&store, &key(which), [1; 50]);
        }
        block_on(checkpointer.apply_alone(tablet)).unwrap();
    };
    apply(&mut (0..1_000));
    // Thin, but enough for two leaves: the filter of one alone would lie nowhere.
    apply(&mut (0..1_000).step_by(10));
    let trees = tablet.view().trees.clone();
    assert_eq!((trees.layers.list.len(), trees.layers.entries()), (1, 100));
    let taken = block_on(checkpointer.take_next(tablet, &trees, false)).unwrap().unwrap();
    let early = block_on(checkpointer.compact_beside_applies(tablet, trees.base, &taken));
    assert!(early.is_some(), "the base stands still");
    apply(&mut (3_000..3_020));
    assert_ne!(tablet.view().trees.base, trees.base, "records side by side are dense");
    assert!(block_on(checkpointer.compact_beside_applies(tablet, trees.base, &taken)).is_none());
    let turn = block_on(checkpointer.applier.turn());
    let compacted = block_on(checkpointer.compact_slice(tablet, taken, early, Unread::Fails, false)).unwrap();
    assert!(matches!(compacted, Compacted::All(_)), "{compacted:?}");
    drop(turn);
    assert!(tablet.view().trees.layers.list.is_empty());
    for which in (0..1_000).chain(3_000..3_020) {
        assert!(block_on(store.head(&key(which))).unwrap().is_some(), "key {which}");
    }
    block_on(store.close()).unwrap();
}

#[test]
fn fewer_equal_layers_compact_when_few_slots_are_left() {
    let layer = |entries| Root { entries, ..Root::EMPTY };
    let list = [vec![layer(1_000); 3], vec![layer(60_000); 5]].concat();
    assert_eq!(full_tier(&list, tier_for(10)), None);
    assert_eq!(
        full_tier(&list, tier_for(LAYERS_MAX - 16)),
        Some(8),
        "five of the second tier, and what is above them"
    );
    assert_eq!(full_tier(&list, tier_for(LAYERS_MAX - 8)), Some(3));
    assert_eq!(full_tier(&list[..1], tier_for(LAYERS_MAX)), None);
}

/// A store with `tablets` tablets, each with a base of some hundred entries and `layers` layers of some 50.
fn layered(tablets: u16, layers: usize, merge_permille: u64) -> Store {
    let (_, device) = formatted(1 << 14, tablets, 1 << 12);
    let mut options = options();
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 1 << 20, 1);
    (tuning.merge_permille, tuning.merge_slice_bytes) = (merge_permille, 1_000);
    let store = block_on(Store::open(device, options, environment())).unwrap();
    for round in 0..=layers {
        let keys = usize::from(tablets) * if round == 0 { 200 } else { 50 };
        for which in 0..keys {
            put(&store, &key(round * 1_000 + which), [1; 50]);
        }
        for tablet in store.0.tablets.all() {
            block_on(store.0.checkpointer.apply_alone(tablet)).unwrap();
        }
    }
    store
}

#[test]
fn a_compaction_into_the_base_finishes_before_another_one_starts() {
    let store = layered(2, 5, 500);
    let (checkpointer, tablets) = (&store.0.checkpointer, store.0.tablets.all());
    let most_urgent = || checkpointer.wanting_compaction().first().map(|tablet| tablet.id);
    let compact_some = || block_on(checkpointer.compact_some(&tablets[1], Wanted::BySize)).unwrap();
    assert!(matches!(compact_some(), Compacted::Some(_)), "a slice is a part of the layers");
    // The other one has more layers, and more entries in them.
    for which in 0..100 {
        put(&store, &key(9_000 + which), [1; 50]);
    }
    block_on(checkpointer.apply_alone(&tablets[0])).unwrap();
    assert_eq!(checkpointer.wanting_compaction().len(), 2);
    assert_eq!(most_urgent(), Some(tablets[1].id));
    while !matches!(compact_some(), Compacted::All(_)) {
        assert_eq!(most_urgent(), Some(tablets[1].id));
    }
    assert_eq!(most_urgent(), Some(tablets[0].id));
    block_on(store.close()).unwrap();
}

#[test]
fn large_layers_wait_for_the_compaction_into_the_base() {
    let next = |merge_permille| {
        let store = layered(1, LAYERS_A_TIER, merge_permille);
        let tablet = &store.0.tablets.all()[0];
        let trees = tablet.view().trees.clone();
        assert_eq!(trees.layers.list.len(), LAYERS_A_TIER);
        let next = store.0.checkpointer.next_compaction(tablet, &trees);
        block_on(store.close()).unwrap();
        next
    };
    assert_eq!(next(1_000), Some(NextCompaction::Base), "some 400 entries above 200");
    assert_eq!(next(3_000), None, "soon");
    assert_eq!(
        next(10_000),
        Some(NextCompaction::Newest(LAYERS_A_TIER)),
        "a fifth of the entries of the next compaction"
    );
}

#[test]
fn reads_pay_for_compactions() {
    // Two layers of 50 entries above 800; a compaction is due by size at 800.
    let store = layered(4, 2, 1_000);
    let checkpointer = &store.0.checkpointer;
    assert_eq!(checkpointer.wanting_compaction().len(), 0);
    let tablet = &store.0.tablets.all()[0];
    let trees = || tablet.view().trees.clone();
    let entries = trees().layers.entries();
    let per_entry = store.0.tuning.searches_per_entry;
    let of_tablet = (0..800).map(key).find(|key| store.0.tablets.of(key).id == tablet.id).unwrap();
    let get_until = |searches: u64| {
        while tablet.layer_searches.count() < searches {
            assert!(block_on(store.get(&of_tablet, ByteRange::default())).unwrap().is_some());
        }
    };
    let next = || checkpointer.next_compaction(tablet, &trees());
    // Searches above the price of a compaction of all into the base are lost with the first compaction.
    let most = (trees().base.entries + entries) * per_entry;
    tablet.layer_searches.note(usize::try_from(most).unwrap() * 2);
    checkpointer.pay(tablet, &trees(), Some(entries));
    assert_eq!(tablet.layer_searches.count(), most - entries * per_entry);
    checkpointer.pay(tablet, &trees(), None);
    get_until(entries * per_entry - 2);
    assert_eq!(next(), None, "two searches too few");
    get_until(entries * per_entry);
    assert_eq!(next(), Some(NextCompaction::Newest(2)));
    block_on(checkpointer.compact_some(tablet, Wanted::BySize)).unwrap();
    assert_eq!((trees().layers.list.len(), tablet.layer_searches.count(), next()), (1, 0, None));
    get_until((trees().base.entries + entries) * per_entry);
    assert_eq!(next(), Some(NextCompaction::Base));
    while let Some(NextCompaction::Base) = next() {
        block_on(checkpointer.compact_some(tablet, Wanted::BySize)).unwrap();
    }
    assert_eq!((trees().layers.list.len(), tablet.layer_searches.count(), next()), (0, 0, None));
    block_on(store.get(&of_tablet, ByteRange::default())).unwrap();
    assert_eq!(tablet.layer_searches.count(), 0, "no layer was searched");
    // A listing searches the two layers of another tablet for its share of the keys.
    let request = ListRequest { bucket: of_tablet.bucket().into(), limit: 40, ..ListRequest::default() };
    assert_eq!(block_on(store.list(&request)).unwrap().entries.len(), 40);
    assert_eq!(tablet.layer_searches.count(), 0);
    assert_eq!(store.0.tablets.all()[1].layer_searches.count(), 20);
    block_on(store.close()).unwrap();
}

#[test]
fn reads_do_not_pay_for_a_base_far_larger_than_its_layers() {
    let store = layered(1, 0, 1_000);
    let (checkpointer, tablet) = (&store.0.checkpointer, &store.0.tablets.all()[0]);
    for which in 0..10 {
        put(&store, &key(5_000 + which), [1; 50]);
    }
    block_on(checkpointer.apply_alone(tablet)).unwrap();
    let trees = tablet.view().trees.clone();
    assert_eq!((trees.layers.list.len(), trees.layers.entries(), trees.base.entries), (1, 10, 200));
    tablet.layer_searches.note(1 << 20);
    assert_eq!(checkpointer.next_compaction(tablet, &trees), None);
    for which in 10..20 {
        put(&store, &key(5_000 + which), [1; 50]);
    }
    block_on(checkpointer.apply_alone(tablet)).unwrap();
    assert_eq!(
        checkpointer.next_compaction(tablet, &tablet.view().trees.clone()),
        Some(NextCompaction::Base)
    );
    block_on(store.close()).unwrap();
}

/// Symptom: after deleting half of 10 M objects of 100 bytes, the file kept twice the live bytes for ever. Cause: the tombstones were below
/// half of the base, so no compaction was due. Fix: dead entries are worth a compaction once little is written.
#[test]
fn dead_entries_are_compacted_once_little_is_written() {
    const PERIOD_NS: u64 = 2_000_000_000;
    let (_, device) = formatted(1 << 14, 1, 1 << 12);
    let mut options = options();
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 1 << 20, 1);
    tuning.merge_permille = 100_000;
    let clock = Arc::new(ManualClock::new(1_000));
    let environment = Environment { clock: clock.clone(), ..environment() };
    let store = block_on(Store::open(device, options, environment)).unwrap();
    let (checkpointer, tablet) = (&store.0.checkpointer, &store.0.tablets.all()[0]);
    let apply = || block_on(checkpointer.apply_alone(tablet)).unwrap();
    (0..400).for_each(|which| put(&store, &key(which), [1; 50]));
    apply();
    let delete = |keys: std::ops::Range<usize>| {
        for which in keys {
            block_on(store.delete(&key(which), RejectRules::default())).unwrap();
        }
        apply();
    };
    let look = |after_ns| {
        clock.advance(after_ns);
        block_on(checkpointer.compact_idle()).unwrap()
    };
    assert!(!look(0));
    // More blocks of the log than a quiet store writes.
    (400..1_000).for_each(|which| put(&store, &key(which), [1; 50]));
    delete(0..120);
    assert!(!look(PERIOD_NS) && !look(PERIOD_NS - 1), "not quiet for a whole period");
    assert!(look(1));
    while look(0) {}
    let trees = || tablet.view().trees.clone();
    assert_eq!((trees().layers.list.len(), trees().base.entries, trees().live()), (0, 880, 880));
    delete(120..140);
    assert!(!look(PERIOD_NS), "40 dead entries beside 860 live ones");
    (1_000..1_100).for_each(|which| put(&store, &key(which), [1; 50]));
    apply();
    assert!(!look(PERIOD_NS), "new objects shadow nothing");
    assert_eq!((trees().layers.list.len(), trees().layers.entries()), (2, 120));
    block_on(store.close()).unwrap();
}

/// The file grows ahead by the rate of written pages. A compaction that counts seconds of them at once would have it grow by gigabytes.
#[test]
fn pages_of_a_compaction_are_counted_as_they_are_written() {
    let store = layered(1, 1, 500);
    let checkpointer = &store.0.checkpointer;
    let written = || store.stat().page_blocks_written;
    let before = written();
    let mut sink = checkpointer.page_sink();
    let tree = tree_of(checkpointer.identity, store.0.tablets.all()[0].id);
    let mut writer = TreeWriter::new(tree, Lsn(1), &mut sink);
    for which in 0..1_000 {
        block_on(writer.push(format!("{which:04}").as_bytes(), &[1; 100])).unwrap();
    }
    let amid = written() - before;
    assert!(amid > 10, "{amid} pages counted of some 27");
    block_on(writer.finish()).unwrap();
    drop(block_on(sink.finish()).unwrap());
    block_on(store.close()).unwrap();
}

#[test]
fn room_left_to_a_pause_is_returned() {
    let (_, device) = formatted(1 << 14, 1, 1 << 12);
    let mut options = options();
    options.background = true;
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 1 << 20, 1);
    (tuning.lend_bytes_min, tuning.merge_permille) = (0, 1);
    let store = block_on(Store::open(device, options, environment())).unwrap();
    let (checkpointer, tablet) = (&store.0.checkpointer, &store.0.tablets.all()[0]);
    let claim = tablet.compactions.claim_base().expect("nothing is there to be compacted");
    for round in 0..4 {
        for which in 0..50 {
            put(&store, &key(round * 100 + which), [1; 50]);
        }
        block_on(checkpointer.apply_tablet(tablet)).unwrap();
        // The first one makes the base.
        let is_behind = checkpointer.pause_permille(tablet) > 0;
        assert!(is_behind || round == 0, "no compaction runs, and the layers are far more than due");
        let began = Instant::now();
        while store.0.tablets.admission.held() != (0, 0) {
            assert!(began.elapsed() < Duration::from_secs(20), "the room is still taken");
            thread::sleep(Duration::from_millis(1));
        }
    }
    *tablet.unreadable.lock() =
        tablet.view().trees.layers.list.first().map(|&root| (root, checkpointer.now_ns()));
    assert_eq!(checkpointer.pause_permille(tablet), 0, "a pause is of no use where compactions cannot go on");
    *tablet.unreadable.lock() = None;
    drop(claim);
    block_on(store.close()).unwrap();
}

/// An apply that a pause follows keeps room back, and a full device makes writers apply themselves: neither may leave a writer
/// without an answer.
#[test]
fn a_full_device_answers_every_writer_while_applies_pause() {
    const REFUSED_MIN: u32 = 20;
    let (_, device) = formatted(3_000, 1, 256);
    let mut options = options();
    options.background = true;
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 1 << 20, 1);
    (tuning.lend_bytes_min, tuning.merge_permille, tuning.memtable_records_max) = (0, 1, 100);
    let store = block_on(Store::open(device.clone(), options, Environment::default())).unwrap();
    let entropy = SeededEntropy::new(7);
    let (send, answers) = mpsc::channel();
    let refused = AtomicU32::new(0);
    let is_enough = || refused.load(Ordering::Relaxed) >= REFUSED_MIN && store.stat().paused_ns > 0;
    let began = Instant::now();
    let is_over = || is_enough() || began.elapsed() > HANGS_AFTER;
    thread::scope(|scope| {
        for writer in 0..2 {
            let (store, entropy, refused, send) = (&store, &entropy, &refused, send.clone());
            scope.spawn(move || {
                while !is_over() {
                    let key = key(format!("{writer}-{}", entropy.below(2_000)));
                    // A full store has no layers, so nothing pauses: more deletes let it have some again.
                    let deletes = if refused.load(Ordering::Relaxed) < REFUSED_MIN { 1 } else { 6 };
                    let answer = if entropy.below(10) < deletes {
                        block_on(store.delete(&key, RejectRules::default())).map(drop)
                    } else {
                        let value = vec![1; entropy.below(9_000) as usize];
                        block_on(store.put(&key, value.into(), PutOptions::default())).map(drop)
                    };
                    match answer {
                        Ok(()) => {}
                        Err(Error::Full { .. }) => _ = refused.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    }
                    send.send(()).unwrap();
                }
            });
        }
        drop(send);
        loop {
            match answers.recv_timeout(HANGS_AFTER) {
                Ok(()) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                // The scope would wait for the writers for ever.
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    eprintln!("a writer has no answer: {:?}", store.stat());
                    std::process::abort();
                }
            }
        }
    });
    assert!(is_enough(), "{} were refused: {:?}", refused.load(Ordering::Relaxed), store.stat());
    block_on(store.close()).unwrap();
    drop(store);
    assert_eq!(checked(&device, false).problem_count, 0);
}

/// An absent key that the filters pass is shadowed unread, and counted once the compaction finds nothing below it (INV-27).
#[test]
fn a_key_that_only_a_filter_has_is_counted_by_the_compaction() {
    let (_, device) = formatted(1 << 14, 1, 1 << 12);
    let mut options = options();
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 1 << 20, 1);
    tuning.merge_permille = 1_000_000;
    let store = block_on(Store::open(device.clone(), options, environment())).unwrap();
    let (checkpointer, tablet) = (&store.0.checkpointer, &store.0.tablets.all()[0]);
    (0..1_000).for_each(|which| put(&store, &key(which), [1; 50]));
    block_on(checkpointer.apply_alone(tablet)).unwrap();
    let tree = tree_of(checkpointer.identity, tablet.id);
    let passed = (1_000..).find(|&which| {
        let base = tablet.view().trees.base;
        let mut finder = LeafFinder::new(tree, PoolPages::new(&checkpointer.pool), base);
        let place = block_on(finder.find(&Probe::unexpected(tree, key(which).encoded()))).unwrap();
        matches!(place, LeafPlace::Leaf { may_hold: true, is_plain: true, .. })
    });
    let counts = || {
        let view = tablet.view();
        (view.trees.live(), view.trees.layers.unsettled, view.totals.value_bytes)
    };
    assert_eq!(counts(), (1_000, 0, 50_000));
    // It, an overwritten one, and a new one.
    put(&store, &key(passed.unwrap()), [2; 70]);
    put(&store, &key(3), [2; 60]);
    put(&store, &key("!"), [2; 10]);
    block_on(checkpointer.apply_alone(tablet)).unwrap();
    assert_eq!(counts(), (1_001, 2, 50_010), "the values that are shadowed count as equally long");
    // Deleted above the layer: the delete reads only the layer.
    block_on(store.delete(&key(passed.unwrap()), RejectRules::default())).unwrap();
    block_on(checkpointer.apply_alone(tablet)).unwrap();
    assert_eq!(counts(), (1_000, 2, 50_010 - 70));
    let layers = || tablet.view().trees.layers.list.len();
    let (trees, before) = (tablet.view().trees.clone(), layers());
    assert!(before >= 2);
    let claim = tablet.compactions.claim_layers(&trees.layers.list[..2]);
    block_on(checkpointer.compact_newest(tablet, &trees, tablet.view().applied, 2)).unwrap();
    drop(claim);
    assert_eq!(layers(), before - 1);
    assert_eq!(counts(), (1_000, 2, 50_010 - 70), "nothing is settled among the layers");
    while layers() > 0 {
        block_on(checkpointer.compact_some(tablet, Wanted::ByForce)).unwrap();
    }
    assert_eq!(counts(), (1_001, 0, 50_020));
    block_on(store.close()).unwrap();
    drop(store);
    assert!(checked(&device, false).is_clean());
}
