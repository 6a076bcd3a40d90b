//! R19: damage stays local, and no stored bytes make the tree panic.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use shoal_base::task::block_on;

use super::{entry_of, key_of, tree_of};
use crate::testing::memory::*;
use crate::*;
use shoal_common::error::Error;

fn is_corrupt<T>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(Error::Corrupt { .. }))
}

/// Removes the keys of a lost range from the model and returns them.
fn lose(tree: &mut Checked, range: &LostRange) -> BTreeSet<Vec<u8>> {
    let lost: BTreeSet<_> = tree
        .model
        .range(range.low.clone()..)
        .take_while(|(key, _)| range.high.as_ref().is_none_or(|high| *key < high))
        .map(|(key, _)| key.clone())
        .collect();
    assert_eq!(lost.len() as u64, range.entries);
    lost
}

#[test]
fn a_damaged_leaf_loses_its_keys_and_no_others() {
    let mut tree = tree_of(20_000);
    let page = tree.walk().1.leaves[100];
    tree.memory.corrupt(page.block);
    let inside = tree.model.keys().find(|key| is_corrupt(&tree.lookup(key))).unwrap().clone();

    // Operations elsewhere do not touch it, not even in the leaves beside it.
    let step = tree.apply((0..20_000).step_by(977).map(|i| (key(i * 10 + 1), Some(vec![4; 9]))));
    assert!(step.applied.lost.is_empty() && is_corrupt(&tree.lookup(&inside)));

    // An operation that meets it replaces it.
    let fresh = [&inside[..], b"+"].concat();
    let mut model = tree.model.clone();
    let step = tree.apply([(fresh.clone(), Some(b"new".to_vec()))]);
    assert_eq!(step.applied.lost.len(), 1);
    let range = step.applied.lost[0].clone();
    assert_eq!((range.page, range.level), (page, 0));
    assert!(step.released.contains(&page));
    tree.model.remove(&fresh);
    let lost = lose(&mut tree, &range);
    assert!(lost.contains(&inside) && lost.len() > 20);
    for key in &lost {
        model.remove(key);
    }
    model.insert(fresh.clone(), b"new".to_vec());
    tree.model = model;
    verify_with_lost(&tree, &lost, &range);

    // From now on a put and a delete in it have answers, a second delete too; the other keys are still damaged.
    let lost_keys: Vec<_> = lost.iter().cloned().collect();
    let mut merge = Plain::default();
    tree.apply_with(
        [(lost_keys[3].clone(), Some(b"again".to_vec())), (lost_keys[4].clone(), None)],
        &mut merge,
    );
    assert!(merge.seen.iter().all(|(_, known)| known.is_none()), "the merge learns that nobody knows");
    let mut merge = Plain::default();
    tree.apply_with([(lost_keys[4].clone(), None)], &mut merge);
    assert_eq!(merge.seen[0].1, Some(None), "a deleted key is known to be absent");
    let mut lost = lost;
    lost.remove(&lost_keys[3]);
    lost.remove(&lost_keys[4]);
    assert_eq!(tree.lookup(&lost_keys[4]).unwrap(), None);
    verify_with_lost(&tree, &lost, &range);

    // Many puts in it split it; each part knows its own bounds.
    let ops: Vec<Op> = lost_keys
        .iter()
        .flat_map(|key| (0..5_u8).map(|i| ([&key[..], &[b'-', i]].concat(), Some(vec![5; 300]))))
        .filter(|(key, _)| range.high.as_ref().is_none_or(|high| key < high))
        .collect();
    tree.apply(ops);
    let (_, seen) = tree.walk();
    assert!(seen.lost.len() > 5, "{} leaves are marked", seen.lost.len());
    verify_with_lost(&tree, &lost, &range);

    // Its neighbours are emptied: it absorbs no range that was not lost.
    let outside: Vec<Op> = tree
        .model
        .keys()
        .filter(|key| **key < range.low || range.high.as_ref().is_some_and(|high| *key >= high))
        .map(|key| (key.clone(), None))
        .collect();
    tree.apply(outside.clone());
    verify_with_lost(&tree, &lost, &range);
    for (key, _) in outside.iter().step_by(50) {
        assert_eq!(tree.lookup(key).unwrap(), None);
    }
    // Keys outside of the lost range find a place again.
    tree.apply(outside.into_iter().step_by(9).map(|(key, _)| (key, Some(vec![6; 40]))));
    verify_with_lost(&tree, &lost, &range);
}

/// Checks that the walk finds nothing, that lost keys are reported as lost, and that everything else equals the model.
fn verify_with_lost(tree: &Checked, lost: &BTreeSet<Vec<u8>>, range: &LostRange) {
    let (walked, seen) = tree.walk();
    assert_eq!(seen.problems, []);
    let stored: BTreeMap<_, _> = seen.entries.into_iter().collect();
    assert_eq!(stored, tree.model);
    assert_eq!(tree.root.entries, walked.entries);
    assert_eq!(seen.lost.first().map(|(low, _)| low), Some(&range.low));
    assert_eq!(seen.lost.last().map(|(_, high)| high), Some(&range.high));
    assert!(seen.lost.is_sorted_by(|(_, high), (low, _)| high.as_ref() == Some(low)), "the bounds join");
    for key in lost {
        assert!(is_corrupt(&tree.lookup(key)), "{}", key.escape_ascii());
    }
    for (key, entry) in tree.model.iter().step_by(17) {
        assert_eq!(tree.lookup(key).unwrap().as_ref(), Some(entry));
    }
    // A scan of everything reports this once a leaf; a scan beside it does not.
    let (entries, damaged) = tree.scan(b"", None);
    assert!(entries.iter().map(|(key, entry)| (key, entry)).eq(&tree.model));
    assert_eq!(damaged, seen.lost.len());
    assert_eq!(tree.scan(b"", Some(&range.low)).1, 0);
    assert_eq!(tree.scan(range.high.as_deref().unwrap(), None).1, 0);
    assert_eq!(tree.scan(&range.low, Some(&[&range.low[..], &[0]].concat())).1, 1);
    let unused: Vec<_> = tree.memory.blocks().difference(&seen.pages).copied().collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn a_damaged_inner_page_loses_its_subtree_and_nothing_more() {
    let mut tree = tree_of(40_000);
    let (_, seen) = tree.walk();
    let page = seen.inner[2];
    assert_ne!(Some(page), tree.root.page);
    tree.memory.corrupt(page.block);
    let (entries, damaged) = tree.scan(b"", None);
    assert_eq!(damaged, 1);
    let inside = tree.model.keys().find(|key| is_corrupt(&tree.lookup(key))).unwrap().clone();
    let before = tree.model.clone();
    let step = tree.apply([(inside.clone(), Some(b"new".to_vec()))]);
    let range = step.applied.lost[0].clone();
    assert_eq!((range.page, range.level), (page, 1));
    assert_eq!(range.entries as usize, before.len() - entries.len());
    let mut lost = lose(&mut tree, &range);
    for key in &lost {
        tree.model.remove(key);
    }
    tree.model.insert(inside.clone(), b"new".to_vec());
    lost.remove(&inside);
    let (_, seen) = tree.walk();
    assert_eq!(seen.problems, []);
    assert_eq!(seen.lost, [(range.low.clone(), range.high.clone())]);
    assert!(seen.entries.into_iter().eq(tree.model.clone()));
    assert!(lost.iter().all(|key| is_corrupt(&tree.lookup(key))));
}

/// The last remaining subtree becomes the tree, although its top page cannot be read. A damaged page stays, to be reported; an error of the
/// device fails the apply.
#[test]
fn the_last_subtree_of_a_tree_may_be_damaged() {
    for fails in [false, true] {
        let mut tree = tree_of(40_000);
        let (_, seen) = tree.walk();
        let page = seen.inner[2];
        assert_ne!(Some(page), tree.root.page);
        let inside = {
            tree.memory.corrupt(page.block);
            let (entries, _) = tree.scan(b"", None);
            tree.memory.heal();
            let outside: BTreeSet<_> = entries.into_iter().map(|(key, _)| key).collect();
            tree.model.keys().filter(|key| !outside.contains(*key)).cloned().collect::<BTreeSet<_>>()
        };
        assert!(inside.len() > 1_000, "{}", inside.len());
        let others: Vec<Op> =
            tree.model.keys().filter(|key| !inside.contains(*key)).map(|key| (key.clone(), None)).collect();
        if fails {
            tree.memory.fail(page.block, true);
            let mut merge = Plain::default();
            let mut sink = MemorySink::new(&tree.memory);
            let (source, sink, merge) = (&tree.memory, &mut sink, &mut merge);
            let apply = Apply { tree: TREE, lsn: shoal_base::Lsn(77), source, sink, merge, filters: true };
            let applied = block_on(apply.run(tree.root, &others));
            assert!(matches!(applied, Err(Error::Io(_))), "{applied:?}");
        } else {
            tree.memory.corrupt(page.block);
            tree.apply(others);
            assert_eq!((tree.root.page, tree.root.entries), (Some(page), inside.len() as u64));
            tree.memory.heal();
            assert!(tree.walk().1.entries.iter().map(|(key, _)| key).eq(&inside));
        }
    }
}

#[test]
fn a_damaged_root_leaves_a_tree_that_works() {
    let mut tree = tree_of(20_000);
    tree.memory.corrupt(tree.root.page.unwrap().block);
    let step = tree.apply([(key(7), Some(b"x".to_vec())), (key(50_000), None)]);
    assert_eq!(step.applied.lost[0].entries, 20_000);
    assert_eq!(tree.root.entries, 1);
    assert_eq!(tree.lookup(&key(7)).unwrap().unwrap(), b"x");
    assert_eq!(tree.lookup(&key(50_000)).unwrap(), None);
    assert!(is_corrupt(&tree.lookup(&key(60_000))));
    let (walked, seen) = tree.walk();
    assert_eq!((walked.entries, seen.problems.len()), (1, 0));
    assert_eq!(seen.lost, [(Vec::new(), None)]);
}

/// No operation meets the damaged leaf beside an underfull one: the leaves are not merged, and the damaged leaf stays.
#[test]
fn damage_is_not_merged_with() {
    let mut tree = tree_of(5000);
    let leaves = tree.walk().1.leaves;
    tree.memory.corrupt(leaves[11].block);
    let victims: Vec<_> = {
        let (_, seen) = tree.walk();
        let in_leaf = |index: usize| seen.used.contains_key(&leaves[index].block);
        assert!(in_leaf(10));
        // All keys but one of the leaf before.
        let first_lost = tree.model.keys().position(|key| is_corrupt(&tree.lookup(key))).unwrap();
        tree.model.keys().take(first_lost).rev().skip(1).take(40).cloned().collect()
    };
    let step = tree.apply(victims.into_iter().map(|key| (key, None)));
    assert!(step.applied.lost.is_empty());
    let (_, seen) = tree.walk();
    assert_eq!(seen.problems.len(), 1);
    assert_eq!(seen.problems[0].page, leaves[11]);
}

#[test]
fn a_device_error_ends_the_apply_and_the_old_tree_is_whole() {
    let mut tree = tree_of(5000);
    let leaves = tree.walk().1.leaves;
    let blocks = tree.memory.blocks();
    tree.memory.fail(leaves[20].block, true);
    let ops: Vec<Op> = (0..5000).map(|i| (key(i * 10 + 1), Some(vec![1; 10]))).collect();
    let mut sink = MemorySink::new(&tree.memory);
    let mut merge = Plain::default();
    let apply = Apply {
        tree: TREE,
        lsn: shoal_base::Lsn(9),
        source: &tree.memory,
        sink: &mut sink,
        merge: &mut merge,
        filters: true,
    };
    let outcome = block_on(apply.run(tree.root, &ops));
    assert!(matches!(outcome, Err(Error::Io(_))), "{outcome:?}");
    assert!(blocks.is_subset(&tree.memory.blocks()));
    tree.memory.fail(leaves[20].block, false);
    let (_, seen) = tree.walk();
    assert!(seen.problems.is_empty() && seen.entries.into_iter().eq(tree.model.clone()));
    tree.apply([]);
}

#[test]
fn walk_reports_damage_and_continues() {
    let tree = tree_of(20_000);
    let (_, seen) = tree.walk();
    let pages = [seen.leaves[3], seen.leaves[90], seen.inner[1]];
    for page in pages {
        tree.memory.corrupt(page.block);
    }
    let (walked, seen) = tree.walk();
    let reported: BTreeSet<_> = seen.problems.iter().map(|problem| problem.page.block).collect();
    assert!(reported.is_subset(&pages.iter().map(|page| page.block).collect()));
    assert!(reported.contains(&pages[2].block) && seen.problems.len() == reported.len());
    assert!(walked.entries > 0 && seen.leaves_done > 0);
}

/// A model of a tree that lost pages: the lost ranges, and the keys in them that were put or deleted since.
#[derive(Default)]
struct Known {
    ranges: Vec<LostRange>,
    deleted: BTreeSet<Vec<u8>>,
}

fn covers(range: &LostRange, key: &[u8]) -> bool {
    *range.low <= *key && range.high.as_deref().is_none_or(|high| key < high)
}

impl Known {
    /// The expected state of `key`: unknown (`None`), absent (`Some(None)`), or an entry.
    fn state(&self, model: &BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8]) -> Option<Option<Vec<u8>>> {
        match model.get(key) {
            Some(entry) => Some(Some(entry.clone())),
            None if self.deleted.contains(key) => Some(None),
            None if self.ranges.iter().any(|range| covers(range, key)) => None,
            None => Some(None),
        }
    }
}

/// Damages pages, applies, and checks which keys are lost by that and which are not.
fn damage_and_apply(tree: &mut Checked, known: &mut Known, pages: &[prop::sample::Index], ops: Vec<Op>) {
    let blocks: Vec<u64> = tree.memory.blocks().into_iter().collect();
    for page in pages.iter().filter(|_| !blocks.is_empty()) {
        tree.memory.corrupt(*page.get(&blocks));
    }
    let ops: BTreeMap<_, _> = ops.into_iter().collect();
    let before = tree.model.clone();
    let mut merge = Plain::default();
    let step = tree.apply_with(ops.clone(), &mut merge);
    tree.memory.heal();
    let lost = step.applied.lost;
    for range in &lost {
        tree.model.retain(|key, _| !covers(range, key));
        known.deleted.retain(|key| !covers(range, key));
    }
    for (key, shown) in merge.seen {
        // After the loss every key in a lost range is unknown; the other keys keep their state.
        let lost_now = lost.iter().any(|range| covers(range, &key));
        let wanted = if lost_now { None } else { known.state(&before, &key) };
        assert!(shown == wanted, "{}", key.escape_ascii());
    }
    known.ranges.extend(lost);
    for (key, entry) in ops {
        match entry {
            Some(entry) => {
                known.deleted.remove(&key);
                tree.model.insert(key, entry);
            }
            None => {
                known.deleted.insert(key);
            }
        }
    }
}

/// Runs every reader and writer over pages of arbitrary bytes.
fn exercise(tree: &Checked, probes: &[Vec<u8>], ops: &[Op]) {
    for key in probes {
        let _ = tree.lookup(key);
        let mut cursor = Cursor::new(TREE, &tree.memory, tree.root, key, None);
        block_on(async {
            for _ in 0..200 {
                match cursor.next().await {
                    Ok(Some(entry)) => assert_eq!(&*entry.found(), entry.entry),
                    Ok(None) => break,
                    Err(_) => {}
                }
            }
        });
    }
    let mut sink = MemorySink::new(&tree.memory);
    let mut merge = Plain::default();
    let apply = Apply {
        tree: TREE,
        lsn: shoal_base::Lsn(99),
        source: &tree.memory,
        sink: &mut sink,
        merge: &mut merge,
        filters: true,
    };
    let _ = block_on(apply.run(tree.root, ops));
}

#[derive(Default)]
struct Count(usize);

impl Visitor for Count {
    fn page(&mut self, _: PageRef, _: u8, _: usize) {}
    fn entry(&mut self, _: &[u8], _: &[u8], _: PageRef) {}
    fn lost(&mut self, _: PageRef, _: &[u8], _: Option<&[u8]>) {}
    fn problem(&mut self, _: Problem) {
        self.0 += 1;
    }
    async fn leaf_done(&mut self) -> Result<()> {
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Damage anywhere, at any time, among applies: a page that no apply met comes back whole, the keys of a replaced page are lost as
    /// reported, and nothing else changes.
    #[test]
    fn only_keys_of_replaced_pages_are_lost(
        shapes in prop::collection::vec(0..6_u8, 1..3),
        steps in prop::collection::vec(
            (
                prop::collection::vec(any::<prop::sample::Index>(), 0..3),
                prop::collection::vec((any::<prop::sample::Index>(), 0..400_u32, any::<u32>(), 0..3_u8), 1..60),
            ),
            1..8,
        ),
        emptied in prop::collection::vec((0..400_u32, 0..200_u32), 0..3),
    ) {
        let mut tree = Checked::new();
        let mut known = Known::default();
        tree.apply((0..400).flat_map(|number| shapes.iter().map(move |shape| {
            let key = key_of(*shape, number);
            let entry = entry_of(&key, number, (number % 11) as u8);
            (key, Some(entry))
        })));
        let emptied = emptied.into_iter().map(|(from, count)| {
            let keys = (from..from + count).flat_map(|number| shapes.iter().map(move |shape| key_of(*shape, number)));
            (Vec::new(), keys.map(|key| (key, None)).collect::<Vec<Op>>())
        });
        let random = steps.into_iter().map(|(pages, ops)| {
            let ops = ops.into_iter().map(|(shape, number, seed, kind)| {
                let key = key_of(*shape.get(&shapes), number);
                let entry = (kind > 0).then(|| entry_of(&key, seed, seed as u8));
                (key, entry)
            });
            (pages, ops.collect())
        });
        let mut steps: Vec<(Vec<_>, Vec<Op>)> = random.collect();
        for (index, step) in emptied.enumerate() {
            steps.insert((index * 2 + 1).min(steps.len()), step);
        }
        for (pages, ops) in steps {
            damage_and_apply(&mut tree, &mut known, &pages, ops);
            let (walked, seen) = tree.walk();
            prop_assert_eq!(&seen.problems, &[]);
            prop_assert!(seen.entries.iter().map(|(key, entry)| (key, entry)).eq(&tree.model));
            prop_assert_eq!(walked.entries, tree.root.entries);
            let (entries, damaged) = tree.scan(b"", None);
            prop_assert!(entries.iter().map(|(key, entry)| (key, entry)).eq(&tree.model));
            prop_assert_eq!(damaged, seen.lost.len());
            for number in 0..420 {
                let key = key_of(shapes[0], number);
                let found = tree.lookup(&key);
                match known.state(&tree.model, &key) {
                    None => prop_assert!(is_corrupt(&found)),
                    Some(state) => prop_assert_eq!(found.unwrap(), state),
                }
            }
        }
    }

    /// Any bytes in any pages, as if checksums were disabled.
    #[test]
    fn random_stored_bytes_never_panic(
        shape in 0..6_u8,
        changes in prop::collection::vec((any::<prop::sample::Index>(), 4..BLOCK_BYTES, any::<u8>()), 1..6),
        near in prop::collection::vec((any::<prop::sample::Index>(), 4..200_usize, any::<u8>()), 0..10),
        swap in any::<Option<(prop::sample::Index, prop::sample::Index)>>(),
        probes in prop::collection::vec(0..500_u32, 6),
    ) {
        let mut tree = Checked::new();
        tree.apply((0..300).map(|number| {
            let key = key_of(shape, number);
            let entry = entry_of(&key, number, (number % 11) as u8);
            (key, Some(entry))
        }));
        let blocks: Vec<u64> = tree.memory.blocks().into_iter().collect();
        for (page, at, value) in changes.into_iter().chain(near) {
            tree.memory.vandalise(*page.get(&blocks), |bytes| bytes[at] = value);
        }
        if let Some((from, to)) = swap {
            // A page's content at another page's place, with the header's identity of the other.
            let mut content = [0; BLOCK_BYTES];
            tree.memory.vandalise(*from.get(&blocks), |bytes| content = *bytes);
            tree.memory.vandalise(*to.get(&blocks), |bytes| {
                bytes[8..10].copy_from_slice(&content[8..10]);
                bytes[12..16].copy_from_slice(&content[12..16]);
                bytes[40..].copy_from_slice(&content[40..]);
            });
        }
        let probes: Vec<_> = probes.into_iter().map(|number| key_of(shape, number)).collect();
        let ops: BTreeMap<_, _> = probes.iter().map(|key| (key.clone(), Some(vec![1; 5]))).collect();
        let ops: Vec<Op> = ops.into_iter().collect();
        exercise(&tree, &probes, &ops);
        block_on(TREE.walk(&tree.memory, tree.root, &mut Count::default())).unwrap();
    }
}
