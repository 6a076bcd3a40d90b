//! A walk over all trees of a tablet: every page of each, and the entries that decide.
//!
//! An entry that a newer tree has an entry for is passed over: its blocks were freed when the newer one was written (INV-27,
//! INV-35). So is one of a key at which a newer tree is damaged: no read gets past the damage, and the blocks of the entry may be
//! free.

use crate::common::error::Result;
use crate::tablet::layers::{Layers, Trees, is_tombstone, version_of};
use crate::tablet::tree::{PageRef, PageSource, Problem, Root, Tree, Visitor};
use crate::testing::injected_bug::{Bug, injected};
use crate::value::packed::is_reserved;

/// The answer of the trees that are newer than a certain one, for a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newer {
    /// None of them has an entry.
    Absent,
    /// The newest entry has this version.
    Version(u64),
    /// They decide, and how is not known: one of them is damaged there, or the key lies below the frontier of a merge.
    Decide,
}

impl Trees {
    /// The tree of this number; the layers come first, the newest first of all.
    pub(crate) fn root(&self, number: usize) -> Root {
        self.layers.list.get(number).copied().unwrap_or(self.base)
    }

    /// Whether a tree that is newer than the one of this number decides for `key`, or may do so because it is damaged there.
    pub(crate) async fn is_shadowed<S: PageSource>(
        &self,
        tree: Tree,
        source: &S,
        number: usize,
        key: &[u8],
    ) -> bool {
        self.newer(tree, source, number, key).await != Newer::Absent
    }

    /// The answer of the trees that are newer than the one of this number, for `key`.
    async fn newer<S: PageSource>(&self, tree: Tree, source: &S, number: usize, key: &[u8]) -> Newer {
        // The store's own keys are in the base only.
        if is_reserved(key) {
            return Newer::Absent;
        }
        if number < self.layers.list.len() && key < self.layers.valid_from(number) {
            return Newer::Decide;
        }
        for (newer, root) in self.at(key).take_while(|&(newer, _)| newer < number) {
            match tree.lookup(source, root, &self.probe(tree, key, newer)).await {
                Ok(None) => {}
                Ok(Some(found)) => return Newer::Version(version_of(&found)),
                Err(_) => return Newer::Decide,
            }
        }
        Newer::Absent
    }

    /// Visits every page of all trees, and every entry that decides; gives how many of these there are.
    ///
    /// # Errors
    /// As [`Tree::walk`].
    pub(crate) async fn walk<S: PageSource, V: Visitor>(
        &self,
        tree: Tree,
        source: &S,
        visitor: &mut V,
    ) -> Result<u64> {
        let mut shown = 0;
        for number in 0..=self.layers.list.len() {
            let mut deciding =
                Deciding { trees: self, tree, source, number, visitor, waiting: Vec::new(), shown };
            tree.walk(source, self.root(number), &mut deciding).await?;
            shown = deciding.shown;
        }
        Ok(shown)
    }
}

/// Passes the entries on that decide.
struct Deciding<'a, S, V> {
    trees: &'a Trees,
    tree: Tree,
    source: &'a S,
    number: usize,
    visitor: &'a mut V,
    /// Entries of the leaf that is being visited.
    waiting: Vec<(Vec<u8>, Vec<u8>, PageRef)>,
    shown: u64,
}

impl<S: PageSource, V: Visitor> Visitor for Deciding<'_, S, V> {
    fn page(&mut self, page: PageRef, level: u8, used_bytes: usize) {
        self.visitor.page(page, level, used_bytes);
    }

    fn entry(&mut self, key: &[u8], entry: &[u8], page: PageRef) {
        let Layers { list, .. } = &*self.trees.layers;
        if list.is_empty() {
            self.shown += 1;
            self.visitor.entry(key, entry, page);
        } else if self.number == list.len() || !is_tombstone(entry) {
            self.waiting.push((key.to_vec(), entry.to_vec(), page));
        }
    }

    fn lost(&mut self, page: PageRef, low: &[u8], high: Option<&[u8]>) {
        self.visitor.lost(page, low, high);
    }

    fn problem(&mut self, problem: Problem) {
        self.visitor.problem(problem);
    }

    async fn leaf_done(&mut self) -> Result<()> {
        for (key, entry, page) in std::mem::take(&mut self.waiting) {
            let newer = self.trees.newer(self.tree, self.source, self.number, &key).await;
            if let Newer::Version(newer) = newer
                && newer < version_of(&entry)
            {
                let what = format!(
                    "an entry of version {} is below one of version {newer} (INV-26)",
                    version_of(&entry)
                );
                self.visitor.problem(Problem { page, level: 0, what, low: key.clone() });
            }
            if newer == Newer::Absent || injected(Bug::ShadowedOwn) {
                self.shown += 1;
                self.visitor.entry(&key, &entry, page);
            }
        }
        self.visitor.leaf_done().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tablet::tree_io::{PoolPages, tree_of};
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
}
