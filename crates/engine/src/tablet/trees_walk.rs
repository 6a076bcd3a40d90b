//! A walk over all trees of a tablet: every page of each, and the entries that decide.
//!
//! An entry that a newer tree has an entry for is passed over: its blocks were freed when the newer one was written (INV-27,
//! INV-35). So is one of a key at which a newer tree is damaged: no read gets past the damage, and the blocks of the entry may be
//! free.

use crate::common::error::Result;
use crate::tablet::layers::{Layers, Trees, is_tombstone};
use crate::tablet::tree::{PageRef, PageSource, Problem, Root, Tree, Visitor};
use crate::testing::injected_bug::{Bug, injected};
use crate::value::packed::is_reserved;

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
        // The store's own keys are in the base only.
        if is_reserved(key) {
            return false;
        }
        if number < self.layers.list.len() && key < self.layers.valid_from(number) {
            return true;
        }
        for (newer, root) in self.at(key).take_while(|&(newer, _)| newer < number) {
            if !matches!(tree.lookup(source, root, &self.probe(tree, key, newer)).await, Ok(None)) {
                return true;
            }
        }
        false
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
            let is_shadowed = self.trees.is_shadowed(self.tree, self.source, self.number, &key).await;
            if !is_shadowed || injected(Bug::ShadowedOwn) {
                self.shown += 1;
                self.visitor.entry(&key, &entry, page);
            }
        }
        self.visitor.leaf_done().await
    }
}
