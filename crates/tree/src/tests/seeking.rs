//! Cursors: skipping, retrying, reading ahead.

use std::collections::BTreeSet;

use super::tree_of;
use crate::testing::memory::*;
use crate::*;
use shoal_base::SeededEntropy;
use shoal_base::task::block_on;
use shoal_common::error::Error;

#[test]
fn seeks_in_any_direction() {
    let tree = tree_of(20_000);
    let random = SeededEntropy::new(3);
    let mut cursor = Cursor::new(TREE, &tree.memory, tree.root, b"", None);
    block_on(async {
        for _ in 0..2000 {
            let start = match random.below(4) {
                0 => key(random.below(210_000)),
                _ => {
                    let near = cursor.next().await.unwrap().map_or(Vec::new(), |entry| entry.key.to_vec());
                    [&near[..], b"~"].concat()
                }
            };
            cursor.seek(&start);
            let mut wanted = tree.model.range(start..);
            for _ in 0..random.below(120) {
                let found =
                    cursor.next().await.unwrap().map(|entry| (entry.key.to_vec(), entry.entry.to_vec()));
                assert_eq!(found.as_ref().map(|(key, entry)| (key, entry)), wanted.next());
            }
        }
    });
}

#[test]
fn short_skips_read_no_page_again() {
    let tree = tree_of(5000);
    tree.memory.take_reads();
    let mut cursor = Cursor::new(TREE, &tree.memory, tree.root, b"", None);
    block_on(async {
        for i in (0..5000).step_by(3) {
            cursor.seek(&key(i * 10));
            assert_eq!(cursor.next().await.unwrap().unwrap().key, key(i * 10));
        }
    });
    let (reads, _) = tree.memory.take_reads();
    let distinct: BTreeSet<u64> = reads.iter().map(|page| page.block).collect();
    assert_eq!(reads.len(), distinct.len());
}

#[test]
fn a_device_error_loses_nothing() {
    let tree = tree_of(3000);
    let leaves = tree.walk().1.leaves;
    let inner = tree.walk().1.inner;
    for page in [leaves[0], leaves[5], leaves[leaves.len() - 1], inner[0]] {
        for start in [0, 7] {
            tree.memory.fail(page.block, true);
            let mut cursor = Cursor::new(TREE, &tree.memory, tree.root, &key(start), None);
            let mut keys = Vec::new();
            block_on(async {
                loop {
                    match cursor.next().await {
                        Ok(Some(entry)) => keys.push(entry.key.to_vec()),
                        Ok(None) => break,
                        Err(Error::Io(_)) => tree.memory.fail(page.block, false),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            assert!(keys.iter().eq(tree.model.range(key(start)..).map(|(key, _)| key)));
        }
    }
}

#[test]
fn reads_ahead_only_what_the_range_may_need() {
    let tree = tree_of(20_000);
    let leaves = tree.walk().1.leaves.len();
    tree.memory.take_reads();

    // The whole tree: nearly every leaf was prefetched before it was read, in small batches at first.
    tree.scan(b"", None);
    let (reads, prefetched) = tree.memory.take_reads();
    let asked: BTreeSet<u64> = prefetched.iter().map(|page| page.block).collect();
    assert_eq!(asked.len(), prefetched.len(), "no leaf is asked for twice");
    assert!(asked.len() + 3 >= leaves && reads.len() >= leaves);

    // A range of a few keys: one leaf, or two if it crosses a border.
    let (entries, _) = tree.scan(&key(50_000), Some(&key(50_050)));
    assert_eq!(entries.len(), 5);
    let (reads, prefetched) = tree.memory.take_reads();
    assert!(reads.len() <= 4 && prefetched.len() <= 1, "{} {}", reads.len(), prefetched.len());

    // A page of a listing: the leaves of the announced entries are prefetched at once, and hardly one more.
    let mut cursor = Cursor::new(TREE, &tree.memory, tree.root, b"", None).with_expected(500);
    block_on(async {
        for _ in 0..500 {
            assert!(cursor.next().await.unwrap().is_some());
        }
    });
    let (reads, prefetched) = tree.memory.take_reads();
    let left = reads.iter().filter(|page| prefetched.iter().any(|asked| asked.block == page.block)).count();
    assert!(
        prefetched.len() >= 2 && prefetched.len() <= left + 1,
        "{} asked for, {left} read",
        prefetched.len()
    );

    // The next page's leaves, without those that the cursor holds or prefetched already.
    cursor.read_ahead(500);
    let (reads, ahead) = tree.memory.take_reads();
    assert!(reads.is_empty() && ahead.len().abs_diff(prefetched.len()) <= 3, "{}", ahead.len());
    assert!(ahead.iter().all(|page| !prefetched.contains(page)));
    cursor.read_ahead(0);
    assert_eq!(tree.memory.take_reads().1.len(), 0);
}
