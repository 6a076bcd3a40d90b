//! Walks over a tree and its layers.

use std::sync::Arc;

use shoal_tablets::tablet::tree_io::{PoolPages, tree_of};
use shoal_tree::layers::Trees;
use shoal_tree::{PageRef, Problem, Visitor};

use crate::testing::fixtures::{environment, formatted, key, options, put};
use crate::{Store, block_on};

/// The entries and problems of a walk.
#[derive(Default)]
struct Seen {
    entries: usize,
    problems: Vec<String>,
}

impl Visitor for Seen {
    fn entry(&mut self, _: &[u8], _: &[u8], _: PageRef) {
        self.entries += 1;
    }

    fn problem(&mut self, problem: Problem) {
        self.problems.push(problem.what);
    }
}

#[test]
fn an_entry_below_an_older_one_is_a_problem() {
    let (_, device) = formatted(1 << 12, 1, 1 << 10);
    let mut options = options();
    let tuning = &mut options.tuning;
    (tuning.layers_from, tuning.dense_records, tuning.layer_records_min) = (0, 1 << 20, 1);
    tuning.merge_permille = 100_000;
    let store = block_on(Store::open(device, options, environment())).unwrap();
    let (checkpointer, tablet) = (&store.0.checkpointer, &store.0.tablets.all()[0]);
    for _ in 0..3 {
        (0..20).for_each(|which| put(&store, &key(which), [1; 50]));
        block_on(checkpointer.apply_tablet(tablet)).unwrap();
    }
    let trees = tablet.view().trees.clone();
    assert_eq!(trees.layers.list.len(), 2);
    let walked = |trees: &Trees| {
        let mut seen = Seen::default();
        let pages = PoolPages::new(&checkpointer.pool);
        block_on(trees.walk(tree_of(checkpointer.identity, tablet.id), &pages, &mut seen)).unwrap();
        seen
    };
    let seen = walked(&trees);
    assert_eq!((seen.entries, seen.problems), (20, Vec::new()));
    let mut layers = (*trees.layers).clone();
    layers.list.reverse();
    let seen = walked(&Trees { layers: Arc::new(layers), ..trees });
    assert_eq!(seen.problems.len(), 20, "{:?}", seen.problems);
    assert!(seen.problems[0].contains("is below"), "{:?}", seen.problems);
    block_on(store.close()).unwrap();
}
