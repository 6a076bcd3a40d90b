//! A walk over all trees of a tablet: every page of each, and the entries that decide.
//!
//! An entry is skipped if a newer tree has one for its key: its blocks were freed when the newer one was written (INV-27, INV-35). It is
//! also skipped if a newer tree is damaged at its key: no read gets past the damage, and the blocks of the entry may be free.

use shoal_common::error::Result;
use shoal_common::injected_bug::{Bug, injected};

use crate::layers::settled::{Settled, estimate_of};
use crate::layers::{Layers, Trees, is_tombstone, version_of};
use crate::{PageRef, PageSource, Problem, Root, Tree, Visitor};
use shoal_common::key::is_reserved;

/// The result of a walk over all trees of a tablet.
#[derive(Debug, Default)]
pub struct WalkedTrees {
    /// Keys that exist, as far as the pages can be read.
    pub live: u64,
    /// The difference that settling all entries would make now.
    pub unsettled: Settled,
    /// The pages with a problem, and those marked "base lost", in the order in which the walk met them.
    pub damaged: Vec<DamagedPlace>,
}

impl WalkedTrees {
    /// The number of keys by the estimates of unsettled entries, as the list of layers has it.
    pub fn counted(&self) -> u64 {
        self.live.saturating_sub(self.unsettled.absent)
    }
}

/// A page that hides keys, or may do so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPlace {
    /// The number of its tree, as [`Trees::root`] has it.
    pub tree: usize,
    /// Its block.
    pub block: u64,
    /// The first key that it may hide.
    pub low: Vec<u8>,
}

/// The answer of the trees newer than a certain one, for a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newer {
    /// None of them has an entry.
    Absent,
    /// The newest entry has this version.
    Version(u64),
    /// They decide, but the result is unknown: one of them is damaged there, or the key is below the frontier of a compaction.
    Decide,
}

impl Trees {
    /// The tree of this number; layers come first, from the newest on.
    pub fn root(&self, number: usize) -> Root {
        self.layers.list.get(number).copied().unwrap_or(self.base)
    }

    /// Returns true if a tree newer than this number decides for `key`, or may do so because it is damaged there.
    pub async fn is_shadowed<S: PageSource>(
        &self,
        tree: Tree,
        source: &S,
        number: usize,
        key: &[u8],
    ) -> bool {
        self.newer(tree, source, number, key).await != Newer::Absent
    }

    /// The answer of the trees newer than this number, for `key`.
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

    /// The difference that settling an entry of the layer of this number makes; none if damage hides older entries.
    async fn unsettled<S: PageSource>(
        &self,
        tree: Tree,
        source: &S,
        number: usize,
        (key, entry): (&[u8], &[u8]),
    ) -> Settled {
        let mut settled = Settled::default();
        let estimate = estimate_of(entry).filter(|_| number < self.layers.list.len());
        let Some(estimate) = estimate.filter(|_| key >= self.layers.valid_from(number)) else {
            return settled;
        };
        for (older, root) in self.at(key).filter(|&(older, _)| older > number) {
            match tree.lookup(source, root, &self.probe(tree, key, older)).await {
                Ok(None) => {}
                Ok(Some(found)) => {
                    settled.meet(estimate, self.decide(older, found).as_deref());
                    return settled;
                }
                Err(_) => return settled,
            }
        }
        settled.meet(estimate, None);
        settled
    }

    /// Visits every page of all trees, and every entry that decides; returns the number of these entries.
    ///
    /// # Errors
    /// As [`Tree::walk`].
    pub async fn walk<S: PageSource, V: Visitor>(
        &self,
        tree: Tree,
        source: &S,
        visitor: &mut V,
    ) -> Result<WalkedTrees> {
        let mut walked = WalkedTrees::default();
        for number in 0..=self.layers.list.len() {
            let mut deciding =
                Deciding { trees: self, tree, source, number, visitor, waiting: Vec::new(), walked };
            tree.walk(source, self.root(number), &mut deciding).await?;
            walked = deciding.walked;
        }
        Ok(walked)
    }
}

/// Passes on the entries that decide.
struct Deciding<'a, S, V> {
    trees: &'a Trees,
    tree: Tree,
    source: &'a S,
    number: usize,
    visitor: &'a mut V,
    /// Entries of the leaf that is being visited.
    waiting: Vec<(Vec<u8>, Vec<u8>, PageRef)>,
    walked: WalkedTrees,
}

impl<S, V> Deciding<'_, S, V> {
    fn note_damage(&mut self, page: PageRef, low: &[u8]) {
        self.walked.damaged.push(DamagedPlace { tree: self.number, block: page.block, low: low.to_vec() });
    }
}

impl<S: PageSource, V: Visitor> Visitor for Deciding<'_, S, V> {
    fn page(&mut self, page: PageRef, level: u8, used_bytes: usize) {
        self.visitor.page(page, level, used_bytes);
    }

    fn entry(&mut self, key: &[u8], entry: &[u8], page: PageRef) {
        let Layers { list, .. } = &*self.trees.layers;
        if list.is_empty() {
            self.walked.live += 1;
            self.visitor.entry(key, entry, page);
        } else if self.number == list.len() || !is_tombstone(entry) || estimate_of(entry).is_some() {
            self.waiting.push((key.to_vec(), entry.to_vec(), page));
        }
    }

    fn lost(&mut self, page: PageRef, low: &[u8], high: Option<&[u8]>) {
        self.note_damage(page, low);
        self.visitor.lost(page, low, high);
    }

    fn problem(&mut self, problem: Problem) {
        self.note_damage(problem.page, &problem.low);
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
                self.problem(Problem { page, level: 0, what, low: key.clone() });
            }
            let is_gone = self.number < self.trees.layers.list.len() && is_tombstone(&entry);
            if !is_gone && (newer == Newer::Absent || injected(Bug::ShadowedOwn)) {
                self.walked.live += 1;
                self.visitor.entry(&key, &entry, page);
            }
            let unsettled = self.trees.unsettled(self.tree, self.source, self.number, (&key, &entry)).await;
            self.walked.unsettled.add(unsettled);
        }
        self.visitor.leaf_done().await
    }
}
