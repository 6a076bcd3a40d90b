//! The tree against a map: random batches over keys of all shapes, its fill, and the pages that an apply reuses.

use proptest::prelude::*;
use shoal_base::SeededEntropy;

use crate::testing::memory::*;
use crate::*;

mod damage;
mod density;
mod layers;
mod page;
mod reuse;
mod seeking;

/// Makes a key of one of the shapes that stress different parts: the number selects the key, the shape its form.
pub(crate) fn key_of(shape: u8, number: u32) -> Vec<u8> {
    let spread = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    match shape % 6 {
        // Tiny, also empty.
        0 => number.to_be_bytes()[3 - (number as usize % 4)..3].to_vec(),
        // Sequential with a common prefix.
        1 => format!("bucket\0folder/file-{number:08}").into_bytes(),
        // Random.
        2 => spread.to_be_bytes().to_vec(),
        // Of the maximum length, different only at the end.
        3 => [&vec![b'k'; 1084][..], &number.to_be_bytes()].concat(),
        // Long, different early, so that separators are long only between similar neighbours.
        4 => [&spread.to_be_bytes()[..1], &vec![b'l'; 1000], &number.to_be_bytes()].concat(),
        // Each the prefix of the next.
        _ => vec![b'p'; number as usize % TREE_KEY_BYTES_MAX],
    }
}

pub(crate) fn entry_of(key: &[u8], seed: u32, large: u8) -> Vec<u8> {
    let room = ENTRY_BYTES_MAX - key.len();
    let bytes = match large % 8 {
        0 => room,
        1 => room / 2,
        2 => 1,
        _ => (seed as usize % 60).clamp(1, room),
    };
    vec![seed as u8; bytes]
}

/// A tree of `count` keys with gaps between them.
fn tree_of(count: u64) -> Checked {
    let mut tree = Checked::new();
    tree.apply((0..count).map(|i| (key(i * 10), Some(vec![3; 50]))));
    tree
}

fn op() -> impl Strategy<Value = Op> {
    (0..6_u8, 0..400_u32, any::<u32>(), any::<u8>(), 0..3_u8).prop_map(
        |(shape, number, seed, large, kind)| {
            let key = key_of(shape, number);
            let entry = (kind > 0).then(|| entry_of(&key, seed, large));
            (key, entry)
        },
    )
}

/// Batches of very different sizes; some delete nearly everything.
fn batch() -> impl Strategy<Value = Vec<Op>> {
    prop_oneof![
        4 => prop::collection::vec(op(), 1..8),
        4 => prop::collection::vec(op(), 1..150),
        1 => prop::collection::vec(op(), 300..600),
        1 => (0..6_u8, 0..400_u32, 1..400_u32).prop_map(|(shape, from, count)| {
            (from..from + count).map(|number| (key_of(shape, number), None)).collect()
        }),
        1 => (0..2400_u32).prop_map(|keep| {
            let all = (0..2400).filter(|number| *number != keep);
            all.map(|number| (key_of((number % 6) as u8, number / 6), None)).collect()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2000, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn equals_a_map(
        batches in prop::collection::vec(batch(), 1..14),
        probes in prop::collection::vec((0..6_u8, 0..450_u32), 12),
    ) {
        let mut tree = Checked::new();
        for ops in batches {
            let before = tree.model.clone();
            let mut merge = Plain::default();
            tree.apply_with(ops, &mut merge);
            tree.verify();
            for (key, old) in merge.seen {
                prop_assert_eq!(old, Some(before.get(&key).cloned()), "what the merge was shown");
            }
            for &(shape, number) in &probes {
                let key = key_of(shape, number);
                prop_assert_eq!(tree.lookup(&key).unwrap(), tree.model.get(&key).cloned());
                let end = key_of(shape, number + 30);
                let ordered = key <= end;
                let (entries, damaged) = tree.scan(&key, ordered.then_some(&end));
                prop_assert_eq!(damaged, 0);
                let wanted: Vec<_> = tree.model.range(key..).filter(|(key, _)| !ordered || **key < end).collect();
                prop_assert!(entries.iter().map(|(key, entry)| (key, entry)).eq(wanted));
            }
        }
    }
}

/// The used share of the leaves' bytes.
fn fill(walked: &Walked) -> f64 {
    walked.leaf_bytes as f64 / (walked.leaves * BLOCK_BYTES as u64) as f64
}

fn random_puts(random: &SeededEntropy, count: u64, keys: u64) -> Vec<Op> {
    (0..count)
        .map(|_| {
            let number = random.below(keys);
            let key = format!("photos/{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes();
            (key, Some(vec![number as u8; 30 + (number % 40) as usize]))
        })
        .collect()
}

#[test]
fn random_inserts_fill_leaves_well_whatever_the_batch() {
    for batch in [1, 20, 3000] {
        let random = SeededEntropy::new(batch);
        let mut tree = Checked::new();
        for _ in 0..6000 / batch {
            let ops = random_puts(&random, batch, u64::MAX);
            tree.apply(ops);
        }
        let walked = tree.verify();
        assert!(fill(&walked) >= 0.6, "batches of {batch}: {:.2}", fill(&walked));
    }
}

#[test]
fn deletes_leave_no_nearly_empty_leaves() {
    for batch in [1, 20, 2000] {
        let random = SeededEntropy::new(batch as u64);
        let mut tree = Checked::new();
        tree.apply(random_puts(&random, 8000, u64::MAX));
        let mut keys: Vec<_> = tree.model.keys().cloned().collect();
        for left in (1..keys.len()).rev() {
            keys.swap(left, random.below(left as u64 + 1) as usize);
        }
        keys.truncate(7000);
        for keys in keys.chunks(batch) {
            tree.apply(keys.iter().map(|key| (key.clone(), None)));
        }
        let walked = tree.verify();
        assert!(fill(&walked) >= 0.45, "batches of {batch}: {:.2}", fill(&walked));
        let rest: Vec<Op> = tree.model.keys().map(|key| (key.clone(), None)).collect();
        tree.apply(rest);
        assert_eq!(tree.root, Root::EMPTY);
        assert!(tree.memory.blocks().is_empty());
    }
}

#[test]
fn growing_keys_fill_leaves_whatever_the_batch() {
    for batch in [1, 7, 1000] {
        let mut tree = Checked::new();
        let ops: Vec<Op> =
            (0..4000_u32).map(|i| (format!("log/{i:010}").into_bytes(), Some(vec![1; 40]))).collect();
        for ops in ops.chunks(batch) {
            tree.apply(ops.iter().cloned());
        }
        let walked = tree.verify();
        assert!(fill(&walked) >= 0.9, "batches of {batch}: {:.2}", fill(&walked));
    }
}

#[test]
fn a_full_leaf_splits_in_halves_and_nothing_else_moves() {
    let mut tree = Checked::new();
    let key = |i: u32| format!("{i:08}").into_bytes();
    tree.apply((0..20_000).map(|i| (key(i * 10), Some(vec![2; 60]))));
    let before = tree.walk().1;
    assert!(before.inner.len() > 2, "three levels");
    // Under the last inner page, which has room.
    let step = tree.apply([(key(198_005), Some(vec![2; 60]))]);
    tree.verify();
    assert_eq!(step.written.len(), tree.root.height as usize + 1, "two leaves and a page a level");
    let (_, after) = tree.walk();
    for page in &step.written[..2] {
        let used = after.used[&page.block];
        assert!((BLOCK_BYTES / 3..BLOCK_BYTES * 2 / 3).contains(&used), "{used} bytes of a half");
    }
    assert!(step.replaced.iter().all(|page| page.is_some_and(|page| step.released.contains(&page))));
}

#[test]
fn keys_and_entries_of_a_wrong_size_are_refused() {
    let mut tree = Checked::new();
    tree.apply(random_puts(&SeededEntropy::new(1), 500, u64::MAX));
    let blocks = tree.memory.blocks();
    for (key_bytes, entry_bytes) in [(1, ENTRY_BYTES_MAX), (TREE_KEY_BYTES_MAX + 1, 1), (5, 0)] {
        let ops = [(vec![b'q'; key_bytes], Some(vec![1; entry_bytes]))];
        let mut sink = MemorySink::new(&tree.memory);
        let mut merge = Plain::default();
        let apply = Apply {
            tree: TREE,
            lsn: shoal_base::Lsn(1),
            source: &tree.memory,
            sink: &mut sink,
            merge: &mut merge,
            filters: true,
        };
        let outcome = shoal_base::task::block_on(apply.run(tree.root, &ops));
        assert!(matches!(outcome, Err(shoal_common::error::Error::Invalid(_))), "{outcome:?}");
    }
    assert!(blocks.is_subset(&tree.memory.blocks()), "the old tree is whole");
}

/// Futures must be able to move between a runtime's threads.
#[test]
fn futures_are_send() {
    fn send<T: Send>(value: T) -> T {
        value
    }
    let memory = Memory::default();
    let mut sink = MemorySink::new(&memory);
    let mut merge = Plain::default();
    let apply = Apply {
        tree: TREE,
        lsn: shoal_base::Lsn(1),
        source: &memory,
        sink: &mut sink,
        merge: &mut merge,
        filters: true,
    };
    drop(send(apply.run(Root::EMPTY, &[])));
    drop(send(TREE.lookup(&memory, Root::EMPTY, &Probe::expected(TREE, b""))));
    drop(send(TREE.walk(&memory, Root::EMPTY, &mut Seen::default())));
    let mut cursor = send(Cursor::new(TREE, std::sync::Arc::new(Memory::default()), Root::EMPTY, b"", None));
    drop(send(cursor.next()));
}

/// A lookup that resumes below the pages in memory returns the same as a whole one, with any number of pages in memory.
#[test]
fn lookup_resumes_at_first_uncached_page() {
    let mut tree = Checked::new();
    tree.apply(random_puts(&SeededEntropy::new(3), 3_000, u64::MAX));
    assert!(tree.root.height >= 2);
    let keys: Vec<Vec<u8>> = tree.model.keys().step_by(97).cloned().chain([b"absent".to_vec()]).collect();
    for key in keys {
        let wanted = tree.lookup(&key).unwrap();
        let mut steps = 0;
        loop {
            match TREE.try_lookup(&tree.memory, tree.root, &Probe::expected(TREE, &key)).unwrap() {
                crate::Step::Found(found) => break assert_eq!(Some(found.to_vec()), wanted),
                crate::Step::Absent => break assert_eq!(wanted, None),
                crate::Step::Below(next) => {
                    let rest = shoal_base::task::block_on(TREE.lookup_below(
                        &tree.memory,
                        next,
                        &Probe::expected(TREE, &key),
                    ))
                    .unwrap();
                    assert_eq!(rest.map(|found| found.to_vec()), wanted);
                    tree.memory.cache(next.0.block);
                    steps += 1;
                }
            }
        }
        assert!(steps <= tree.root.height);
    }
}

#[test]
fn pages_of_others_are_refused() {
    let mut tree = Checked::new();
    tree.apply(random_puts(&SeededEntropy::new(1), 500, u64::MAX));
    let key = tree.model.keys().next().unwrap().clone();
    assert!(tree.lookup(&key).unwrap().is_some());
    let page = tree.root.page.unwrap();
    for (other, root) in [
        (Tree { device: 1, ..TREE }, tree.root),
        (Tree { tablet: TabletId(8), ..TREE }, tree.root),
        (TREE, Root { height: tree.root.height + 1, ..tree.root }),
        (TREE, Root { height: 0, ..tree.root }),
        (TREE, Root { page: Some(PageRef { crc: page.crc ^ 1, ..page }), ..tree.root }),
    ] {
        let outcome =
            shoal_base::task::block_on(other.lookup(&tree.memory, root, &Probe::expected(other, &key)));
        assert!(matches!(outcome, Err(shoal_common::error::Error::Corrupt { .. })), "{outcome:?}");
        let mut seen = Seen::default();
        shoal_base::task::block_on(other.walk(&tree.memory, root, &mut seen)).unwrap();
        assert_eq!(seen.problems.len(), 1, "{:?}", seen.problems);
    }
}
