//! The fill of leaves after compactions, and the bytes of an entry in a leaf beside its key and value.

use std::collections::BTreeMap;

use shoal_base::SeededEntropy;

use super::fill;
use crate::format::HEADER_BYTES;
use crate::testing::memory::*;

const KEY_BYTES: u64 = 23;
const VALUE_BYTES: u64 = 100;
/// Version, flags, time of the change and length of the value: `docs/format/object.md`.
const ENTRY_BYTES: usize = 8 + 1 + 8 + 1 + VALUE_BYTES as usize;
/// Entries that a slice of a compaction takes: 4 MiB of keys and entries.
const SLICE: usize = (4 << 20) / (29 + ENTRY_BYTES);

/// New entries with keys of a bucket in random order.
fn puts(random: &SeededEntropy, count: u64) -> Vec<Op> {
    let key = |number: u64| format!("bench\0object-{number:016x}").into_bytes();
    (0..count).map(|_| (key(random.below(u64::MAX)), Some(vec![7; ENTRY_BYTES]))).collect()
}

/// Deletes of about one in `every` entries.
fn deletes(random: &SeededEntropy, tree: &Checked, every: u64) -> Vec<Op> {
    tree.model.keys().filter(|_| random.below(every) == 0).map(|key| (key.clone(), None)).collect()
}

/// Applies `ops` in the slices of a compaction; returns the fill of leaves, and the bytes of an entry beside its key and value, the page's
/// header not counted.
fn compact(tree: &mut Checked, ops: Vec<Op>) -> (f64, f64) {
    let ops: Vec<Op> = ops.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect();
    ops.chunks(SLICE).for_each(|slice| _ = tree.apply(slice.to_vec()));
    let walked = tree.verify();
    let used = walked.leaf_bytes - walked.leaves * HEADER_BYTES as u64;
    (fill(&walked), used as f64 / walked.entries as f64 - (KEY_BYTES + VALUE_BYTES) as f64)
}

/// Compactions with as many entries as make one due by size, then with the fewest that reads or dead entries pay for: two for each leaf.
#[test]
fn compactions_fill_leaves() {
    let random = SeededEntropy::new(1);
    let mut tree = Checked::new();
    compact(&mut tree, puts(&random, 40_000));
    for (per_leaf, fill_min) in [(15, 0.95), (15, 0.95), (4, 0.95), (2, 0.9)] {
        let count = tree.root.entries / 30 * per_leaf;
        let (fill, beside) = compact(&mut tree, puts(&random, count));
        assert!(fill >= fill_min, "{per_leaf} puts a leaf: {fill:.3}");
        // Larger trees have longer common prefixes in a leaf: 11.6 with ten million entries.
        assert!(beside <= 14.0, "{beside:.1} bytes beside key and value");
    }
    for (every, fill_min) in [(2, 0.95), (17, 0.9)] {
        let ops = deletes(&random, &tree, every);
        let (fill, _) = compact(&mut tree, ops);
        assert!(fill >= fill_min, "one of {every} deleted: {fill:.3}");
    }
}
