//! The pages that an apply reuses, and the number of pages that it reads.

use std::collections::BTreeSet;

use super::tree_of;
use crate::testing::memory::*;
use shoal_base::SeededEntropy;

fn big_tree() -> Checked {
    let tree = tree_of(40_000);
    assert_eq!(tree.root.height, 3);
    tree
}

#[test]
fn few_operations_rewrite_few_pages() {
    let mut tree = big_tree();
    let random = SeededEntropy::new(5);
    // Updates, then deletes, then inserts; these split leaves, which a bulk load leaves full.
    for (entry, offset, leaves_each) in [(Some(vec![4; 50]), 0, 1), (None, 0, 1), (Some(vec![4; 50]), 5, 2)] {
        let before: BTreeSet<u64> = tree.walk().1.leaves.iter().map(|page| page.block).collect();
        let ops: Vec<Op> =
            (0..20).map(|_| (key(random.below(40_000) * 10 + offset), entry.clone())).collect();
        let step = tree.apply(ops);
        let walked = tree.verify();
        assert!(walked.leaves > 500, "most leaves were not touched");
        let after: BTreeSet<u64> = tree.walk().1.leaves.iter().map(|page| page.block).collect();
        let new_leaves = after.difference(&before).count();
        assert!(new_leaves <= 20 * leaves_each, "{new_leaves} leaves for 20 operations");
        assert!(before.difference(&after).count() <= 20);
        let inner = walked.pages - walked.leaves;
        assert!(step.written.len() <= new_leaves + inner as usize);
    }
}

#[test]
fn only_pages_that_operations_meet_are_read_and_in_batches() {
    let mut tree = big_tree();
    tree.apply((0..40_000).filter(|i| i % 3 == 0).map(|i| (key(i * 10), None)));
    let old_leaves = tree.walk().1.leaves;
    tree.memory.take_reads();
    let batches = tree.memory.batches();
    let step = tree.apply((0..40_000).step_by(400).map(|i| (key(i * 10 + 1), Some(vec![4; 50]))));
    let (reads, prefetched) = tree.memory.take_reads();
    let read: BTreeSet<_> = reads.iter().map(|page| page.block).collect();
    let released: BTreeSet<_> = step.released.iter().map(|page| page.block).collect();
    let ahead: BTreeSet<_> = prefetched.iter().map(|page| page.block).collect();
    assert_eq!(ahead.len(), prefetched.len(), "no leaf is prefetched twice");
    // The search for the leaves ahead also reads inner pages, which a cache holds.
    let leaves: Vec<u64> =
        reads.iter().filter(|page| old_leaves.contains(page)).map(|page| page.block).collect();
    assert_eq!(leaves.len(), leaves.iter().collect::<BTreeSet<_>>().len(), "no leaf is read twice");
    assert_eq!(read, released, "a page is read only to be replaced");
    assert!(prefetched.len() >= 90, "all leaves: {}", prefetched.len());
    assert!(prefetched.iter().all(|page| read.contains(&page.block)));
    assert!(tree.memory.batches() - batches <= 12);
}

#[test]
fn operations_without_effect_write_nothing() {
    let mut tree = big_tree();
    let root = tree.root;
    // Deletes of absent keys, and puts of equal entries; alone, in each leaf, and in the last one.
    let mut keep_equal = Plain { keep_equal: true, ..Plain::default() };
    for ops in [
        vec![(key(5), None)],
        (0..40_000).map(|i| (key(i * 10 + 5), None)).collect(),
        (0..40_000).step_by(3).map(|i| (key(i * 10), Some(vec![3; 50]))).collect(),
        vec![(key(399_990), Some(vec![3; 50])), (key(400_000), None)],
    ] {
        let step = tree.apply_with(ops, &mut keep_equal);
        assert_eq!((step.written.len(), step.released.len()), (0, 0));
        assert_eq!(tree.root, root);
    }
    tree.verify();
}

#[test]
fn an_effect_amid_none_rewrites_one_leaf() {
    let mut tree = big_tree();
    let mut keep_equal = Plain { keep_equal: true, ..Plain::default() };
    let ops =
        (0..40_000).step_by(500).map(|i| (key(i * 10), Some(vec![if i == 20_000 { 9 } else { 3 }; 50])));
    let step = tree.apply_with(ops, &mut keep_equal);
    // One leaf; of the inner pages, those that later operations enter.
    let leaves: BTreeSet<u64> = tree.walk().1.leaves.iter().map(|page| page.block).collect();
    assert_eq!(step.written.iter().filter(|page| leaves.contains(&page.block)).count(), 1);
    assert!(step.written.len() <= 16 && step.released.len() == step.written.len(), "{}", step.written.len());
    tree.verify();
}

#[test]
fn the_tree_shrinks_with_its_entries() {
    let mut tree = big_tree();
    // All but the last entry of the last leaf: the page above it has one child then.
    tree.apply((0..39_999).map(|i| (key(i * 10), None)));
    tree.verify();
    assert_eq!(tree.root.height, 1);

    let mut tree = big_tree();
    tree.apply((1..40_000).map(|i| (key(i * 10), None)));
    tree.verify();
    assert_eq!(tree.root.height, 1);
}

#[test]
fn emptied_ranges_take_new_keys() {
    let mut tree = big_tree();
    for range in [0..15_000, 20_000..25_000, 39_000..40_000] {
        tree.apply(range.clone().map(|i| (key(i * 10), None)));
        tree.verify();
        tree.apply(range.step_by(7).map(|i| (key(i * 10 + 3), Some(vec![5; 20]))));
        tree.verify();
    }
    for i in (0..40_000).step_by(111) {
        for key in [key(i * 10), key(i * 10 + 3)] {
            assert_eq!(tree.lookup(&key).unwrap().as_ref(), tree.model.get(&key));
        }
    }
}
