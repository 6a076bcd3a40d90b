//! An apply makes a new tree from an old one and sorted operations, in one pass.
//!
//! The pass walks the old tree from left to right along the operations. A subtree that no operation meets goes into the new tree unread, if
//! the waiting pages below its level can be closed with a decent fill. Otherwise the pass enters the subtree and merges its first page with
//! the waiting items. So splits, merges, growth and shrinking of the tree are the same work: [`super::builder`] cuts the items of one level
//! into new pages. Pages are written bottom up. The pass neither writes nor releases unchanged pages.
//!
//! R19: if an operation meets the range of a page that cannot be read, the pass replaces the page with a leaf that is marked "base lost"
//! with its bounds and holds the new entries. Such a leaf is never merged with neighbours. An error of the device aborts the apply: the
//! next one may be able to read the page.

use std::ops::Range;

use shoal_base::Lsn;
use shoal_common::error::{Error, Result};

use crate::format::{Bounds, Child, ENTRY_BYTES_MAX, TREE_KEY_BYTES_MAX};
use crate::format::{Damage, PageRef};
use crate::page::PageView;
use crate::pages::{PageSink, PageSource, ReadHint};
use crate::read::leaf_finder::LeafFinder;
use crate::write::levels::Levels;
use crate::{Root, Tree};

/// Maximum number of inner pages that an apply prefetches.
const READ_AHEAD_PAGES: usize = 64;
/// Maximum number of leaves that an apply prefetches: a device is only fast with many requests.
const LEAVES_AHEAD: usize = 512;
/// More leaves are requested once one part in this many was entered: a short list, because the apply does nothing else meanwhile.
const ASKED_SHARE: usize = 16;

/// The tree's state for the key of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Old<'a> {
    /// The tree has no entry.
    Absent,
    /// The tree has this entry.
    Present(&'a [u8]),
    /// Unknown: the page of the key was lost.
    Lost,
}

/// The result for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The tree's entry stays.
    Stay,
    /// The content of the buffer, which is not empty, becomes the entry. Entry and key have at most [`ENTRY_BYTES_MAX`] bytes.
    Put,
    /// The tree has no entry for the key afterwards.
    Delete,
}

/// Determines the result of each operation.
pub trait Merge: Send {
    /// An operation.
    type Op: Sync;

    /// The key of an operation: at most [`TREE_KEY_BYTES_MAX`] bytes.
    fn key<'a>(&self, op: &'a Self::Op) -> &'a [u8];

    /// Called once for each operation, in the order of the keys, with the tree's state for the key. `new` is empty and takes the entry to
    /// put.
    ///
    /// # Errors
    /// Any; it ends the apply.
    fn merge(&mut self, op: &Self::Op, old: Old<'_>, new: &mut Vec<u8>) -> Result<Fate>;
}

/// A range of keys whose base this apply lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostRange {
    /// The page that could not be read.
    pub page: PageRef,
    /// The page's level: above 0 a whole subtree was lost, and its other pages are not released.
    pub level: u8,
    /// The first key of the range.
    pub low: Vec<u8>,
    /// The end of the range (exclusive); `None` is the end of the tree.
    pub high: Option<Vec<u8>>,
    /// Number of entries in the range.
    pub entries: u64,
    /// The reason why the page could not be read.
    pub why: String,
}

/// The result of an apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The new tree.
    pub root: Root,
    /// Pages written.
    pub pages_written: u64,
    /// Pages of the old tree that are not in the new one.
    pub pages_released: u64,
    /// The damaged pages that the apply replaced, one range each.
    pub lost: Vec<LostRange>,
}

/// An apply that is ready to run.
pub struct Apply<'a, S, K, M> {
    /// The tree.
    pub tree: Tree,
    /// The LSN in every new page: the new tree holds the log up to it.
    pub lsn: Lsn,
    /// The old pages.
    pub source: &'a S,
    /// Takes the new pages.
    pub sink: &'a mut K,
    /// Determines the results of operations.
    pub merge: &'a mut M,
    /// True if new leaves get filters.
    pub filters: bool,
}

impl<S: PageSource, K: PageSink, M: Merge> Apply<'_, S, K, M> {
    /// Applies `ops` to the tree under `root`. The keys must be strictly ascending.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a key or an entry is too large, [`Error::Io`] if the device failed, and the errors of sink and merge. The old
    /// tree stays valid.
    pub async fn run(self, root: Root, ops: &[M::Op]) -> Result<Applied> {
        self.run_over(root, ops, false).await
    }

    /// As [`run`](Self::run), but settles damage: if an operation meets a lost or unreadable range, the range keeps its known entries, its
    /// other keys become absent, and its mark is removed.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_and_settle(self, root: Root, ops: &[M::Op]) -> Result<Applied> {
        self.run_over(root, ops, true).await
    }

    async fn run_over(self, root: Root, ops: &[M::Op], settles: bool) -> Result<Applied> {
        let top = root.top()?;
        if ops.is_empty() {
            return Ok(Applied { root, pages_written: 0, pages_released: 0, lost: Vec::new() });
        }
        self.check_ops(ops)?;
        let mut pass = Pass {
            tree: self.tree,
            source: self.source,
            merge: self.merge,
            ops,
            levels: Levels::new(self.tree, self.lsn, self.sink, self.filters),
            path: Vec::new(),
            leaves: LeavesAhead { finder: LeafFinder::new(self.tree, self.source, root), op: 0, waiting: 0 },
            new: Vec::new(),
            lost: Vec::new(),
            settles,
        };
        pass.run(top, root.entries).await
    }

    fn check_ops(&self, ops: &[M::Op]) -> Result<()> {
        let keys = || ops.iter().map(|op| self.merge.key(op));
        assert!(keys().is_sorted_by(|a, b| a < b), "operations are not in order (R13)");
        match keys().map(<[u8]>::len).max() {
            Some(bytes) if bytes > TREE_KEY_BYTES_MAX => Err(Error::Invalid(format!(
                "a key of {bytes} bytes; at most {TREE_KEY_BYTES_MAX} fit in a page"
            ))),
            _ => Ok(()),
        }
    }
}

/// A subtree of the old tree with the bounds of its keys and the operations that meet it.
struct Subtree {
    child: Child,
    level: u8,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    ops: Range<usize>,
}

/// An inner page of the old tree on the path of the pass.
struct Open<P> {
    page: P,
    at: PageRef,
    level: u8,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    /// The index of the next child.
    next: usize,
    /// The operations not yet assigned to a child.
    ops: Range<usize>,
    ahead: Ahead,
}

/// The progress of prefetching inner pages under one page.
struct Ahead {
    /// The first operation whose child was not prefetched yet.
    op: usize,
    /// Prefetched pages that the pass has not entered yet.
    pages: usize,
}

/// The progress of prefetching leaves.
struct LeavesAhead<'a, S: PageSource> {
    finder: LeafFinder<&'a S>,
    /// The first operation whose leaf was not prefetched yet.
    op: usize,
    /// Prefetched leaves that the pass has not entered yet.
    waiting: usize,
}

impl<S: PageSource> LeavesAhead<'_, S> {
    /// Prefetches the leaves that the operations from `from` meet, before the pass enters the first of them. A read that fails here fails
    /// again in the pass.
    async fn prefetch<M: Merge>(&mut self, source: &S, merge: &M, ops: &[M::Op], from: usize) {
        self.waiting = self.waiting.saturating_sub(1);
        self.op = self.op.max(from);
        let most = source.ahead_max().min(LEAVES_AHEAD);
        if self.waiting > most - most / ASKED_SHARE || self.op == ops.len() {
            return;
        }
        let mut leaves: Vec<PageRef> = Vec::with_capacity(most.saturating_sub(self.waiting));
        while self.waiting + leaves.len() < most && self.op < ops.len() {
            let Ok(leaf) = self.finder.leaf_of(merge.key(&ops[self.op])).await else { break };
            self.op += 1;
            leaves.extend(leaf.filter(|leaf| leaves.last() != Some(leaf)));
        }
        self.waiting += leaves.len();
        assert!(leaves.len() <= most, "the number of pages that are read ahead is bounded");
        source.prefetch(&leaves, 0, ReadHint::Apply);
    }
}

struct Pass<'a, S: PageSource, K, M: Merge> {
    tree: Tree,
    source: &'a S,
    merge: &'a mut M,
    ops: &'a [M::Op],
    levels: Levels<'a, K>,
    path: Vec<Open<S::Page>>,
    leaves: LeavesAhead<'a, S>,
    new: Vec<u8>,
    lost: Vec<LostRange>,
    /// Lost keys become absent.
    settles: bool,
}

impl<S: PageSource, K: PageSink, M: Merge> Pass<'_, S, K, M> {
    async fn run(&mut self, top: Option<(PageRef, u8)>, entries: u64) -> Result<Applied> {
        let all = 0..self.ops.len();
        match top {
            None => self.merge_leaf(None, &[], all, false).await?,
            Some((page, level)) => {
                let child = Child { page, entries };
                self.enter(Subtree { child, level, low: Vec::new(), high: None, ops: all }).await?;
            }
        }
        while !self.path.is_empty() {
            self.keep_untouched().await?;
            if let Some(subtree) = self.next_subtree()? {
                self.enter(subtree).await?;
            } else {
                self.path.pop();
            }
        }
        let root = self.levels.finish().await?;
        let root = self.shrink(root).await?;
        Ok(Applied {
            root,
            pages_written: self.levels.pages_written,
            pages_released: self.levels.pages_released,
            lost: std::mem::take(&mut self.lost),
        })
    }

    /// Keeps the next children of the innermost open page, unread, up to the first one that an operation meets. Keeps none if the waiting
    /// items below must be merged with the first of them.
    async fn keep_untouched(&mut self) -> Result<()> {
        let Some(open) = self.path.last_mut() else { return Ok(()) };
        let level = usize::from(open.level);
        let at = open.at;
        let damaged = |damage: Damage| damage.at(at);
        let view = self.tree.view(&open.page, at, open.level)?;
        let touched = match self.ops.get(open.ops.start) {
            Some(op) if !open.ops.is_empty() => view.child_of(self.merge.key(op)).map_err(damaged)?,
            _ => view.count(),
        };
        if open.next >= touched || !self.levels.can_close_below(level) {
            return Ok(());
        }
        self.levels.close_below(level).await?;
        for index in open.next..touched {
            let item = view.item(index).map_err(damaged)?;
            let (prefix, suffix) =
                if index == 0 { (&open.low[..], &[][..]) } else { (view.prefix(), item.suffix) };
            self.levels.push_subtree(level, prefix, suffix, item.payload).await?;
        }
        open.next = touched;
        Ok(())
    }

    /// Returns the next child of the innermost open page; `None` after the last.
    fn next_subtree(&mut self) -> Result<Option<Subtree>> {
        let Some(open) = self.path.last_mut() else { return Ok(None) };
        let view = self.tree.view(&open.page, open.at, open.level)?;
        if open.next == view.count() {
            assert!(open.ops.is_empty(), "an operation belongs to no child");
            return Ok(None);
        }
        let damaged = |damage: Damage| damage.at(open.at);
        let child = view.child(open.next).map_err(damaged)?;
        let mut low = Vec::new();
        if open.next == 0 {
            low.clone_from(&open.low);
        } else {
            view.separator(open.next, &mut low).map_err(damaged)?;
        }
        open.next += 1;
        let high = if open.next == view.count() {
            open.high.clone()
        } else {
            let mut high = Vec::new();
            view.separator(open.next, &mut high).map_err(damaged)?;
            Some(high)
        };
        let merge = &*self.merge;
        let end = ops_below(self.ops, open.ops.clone(), high.as_deref(), |op| merge.key(op));
        let ops = open.ops.start..end;
        open.ops.start = end;
        Ok(Some(Subtree { child, level: open.level - 1, low, high, ops }))
    }

    /// Keeps an old subtree unchanged.
    async fn keep(&mut self, subtree: &Subtree) -> Result<()> {
        let above = usize::from(subtree.level) + 1;
        self.levels.close_below(above).await?;
        let mut payload = Vec::new();
        subtree.child.encode(&mut payload);
        self.levels.push_subtree(above, &subtree.low, &[], &payload).await
    }

    /// Reads the topmost page of a subtree, then merges it if it is a leaf, or opens it.
    async fn enter(&mut self, subtree: Subtree) -> Result<()> {
        if subtree.level > 0 {
            self.read_ahead(&subtree);
        } else if !subtree.ops.is_empty() {
            self.leaves.prefetch(self.source, self.merge, self.ops, subtree.ops.start).await;
        }
        let page = match self.load(&subtree).await {
            Ok(page) => page,
            Err(error @ Error::Corrupt { .. }) => return self.replace_lost(subtree, &error).await,
            Err(error) => return Err(error),
        };
        let at = subtree.child.page;
        let view = self.tree.view(&page, at, subtree.level)?;
        if subtree.level > 0 {
            self.levels.open(subtree.level, at, view.count(), &subtree.low).await?;
            let ahead = Ahead { op: subtree.ops.start, pages: 0 };
            let Subtree { level, low, high, ops, .. } = subtree;
            self.path.push(Open { page, at, level, low, high, next: 0, ops, ahead });
            return Ok(());
        }
        if let Some(bounds) = view.lost().map_err(|damage| damage.at(at))? {
            if !self.settles || subtree.ops.is_empty() {
                return self.merge_lost_leaf(&view, bounds, &subtree).await;
            }
            self.levels.open(0, at, view.count(), &subtree.low).await?;
            self.levels.touch(0);
            return self.merge_leaf(Some(&view), &subtree.low, subtree.ops, false).await;
        }
        self.levels.open(0, at, view.count(), &subtree.low).await?;
        self.merge_leaf(Some(&view), &subtree.low, subtree.ops, false).await
    }

    /// Reads a page and checks all of it: the pass relies on that.
    async fn load(&self, subtree: &Subtree) -> Result<S::Page> {
        let at = subtree.child.page;
        let page = self.source.page(at, subtree.level, ReadHint::Apply).await?;
        let view = self.tree.view(&page, at, subtree.level)?;
        view.check(&subtree.low, subtree.high.as_deref()).map_err(|damage| damage.at(at))?;
        Ok(page)
    }

    /// Merges the items of `old` with operations. With `lost`, a key without an item is unknown instead of absent.
    async fn merge_leaf(
        &mut self,
        old: Option<&PageView<'_>>,
        low: &[u8],
        ops: Range<usize>,
        lost: bool,
    ) -> Result<()> {
        self.levels.leaves().set_low(low);
        let all_ops = self.ops;
        let mut next = 0;
        for op in &all_ops[ops] {
            let key = self.merge.key(op);
            let (index, present) = match old {
                Some(view) => view.find(next, key).map_err(internal)?,
                None => (0, false),
            };
            self.copy_items(old, next..index).await?;
            next = index + usize::from(present);
            let entry = match old {
                Some(view) if present => Some(view.item(index).map_err(internal)?.payload),
                _ => None,
            };
            let state = match entry {
                Some([]) => Old::Absent,
                Some(entry) => Old::Present(entry),
                None if lost => Old::Lost,
                None => Old::Absent,
            };
            self.new.clear();
            match (self.merge.merge(op, state, &mut self.new)?, entry) {
                (Fate::Stay, Some(_)) => self.copy_items(old, index..index + 1).await?,
                (Fate::Stay, None) => {}
                (Fate::Put, _) => {
                    check_entry(key, &self.new)?;
                    self.levels.touch(0);
                    self.levels.push_entry(key, &[], &self.new).await?;
                }
                (Fate::Delete, _) if lost => {
                    self.levels.touch(0);
                    self.levels.push_entry(key, &[], &[]).await?;
                }
                (Fate::Delete, Some(_)) => self.levels.touch(0),
                (Fate::Delete, None) => {}
            }
        }
        let count = old.map_or(0, PageView::count);
        self.copy_items(old, next..count).await
    }

    async fn copy_items(&mut self, old: Option<&PageView<'_>>, range: Range<usize>) -> Result<()> {
        let Some(view) = old else { return Ok(()) };
        for index in range {
            let item = view.item(index).map_err(internal)?;
            // Outside a lost range a key needs no mark of its absence.
            if item.payload.is_empty() && self.settles && self.levels.leaves().is_whole() {
                continue;
            }
            self.levels.push_entry(view.prefix(), item.suffix, item.payload).await?;
        }
        Ok(())
    }

    /// Merges a leaf marked "base lost", which keeps its bounds. Operations outside of them go to separate leaves: the bounds can be
    /// narrower than the leaf's range if the tree beside it was, or became, empty.
    async fn merge_lost_leaf(
        &mut self,
        view: &PageView<'_>,
        bounds: Bounds<'_>,
        subtree: &Subtree,
    ) -> Result<()> {
        let ops = subtree.ops.clone();
        if ops.is_empty() {
            return self.keep(subtree).await;
        }
        let merge = &*self.merge;
        let first = ops_below(self.ops, ops.clone(), Some(bounds.low), |op| merge.key(op));
        let end = ops_below(self.ops, first..ops.end, bounds.high, |op| merge.key(op));
        self.merge_leaf(None, &subtree.low, ops.start..first, false).await?;
        self.levels.close(0, false).await?;
        self.levels.open(0, subtree.child.page, view.count(), bounds.low).await?;
        self.merge_lost(Some(view), bounds, first..end).await?;
        self.merge_leaf(None, bounds.high.unwrap_or_default(), end..ops.end, false).await
    }

    async fn merge_lost(
        &mut self,
        old: Option<&PageView<'_>>,
        bounds: Bounds<'_>,
        ops: Range<usize>,
    ) -> Result<()> {
        self.levels.leaves().begin_lost(bounds.low, bounds.high);
        self.merge_leaf(old, bounds.low, ops, true).await?;
        self.levels.close(0, false).await
    }

    /// R19. A damaged page that no operation meets is kept: a repair may recover it.
    async fn replace_lost(&mut self, subtree: Subtree, error: &Error) -> Result<()> {
        if subtree.ops.is_empty() {
            return self.keep(&subtree).await;
        }
        self.levels.close(0, false).await?;
        self.levels.release(subtree.child.page);
        let bounds = Bounds { low: &subtree.low, high: subtree.high.as_deref() };
        if self.settles {
            self.merge_leaf(None, bounds.low, subtree.ops, false).await?;
        } else {
            self.merge_lost(None, bounds, subtree.ops).await?;
        }
        self.lost.push(LostRange {
            page: subtree.child.page,
            level: subtree.level,
            low: subtree.low,
            high: subtree.high,
            entries: subtree.child.entries,
            why: error.to_string(),
        });
        Ok(())
    }

    /// Prefetches the inner pages that the operations meet under the same parent, before the pass enters one of them.
    fn read_ahead(&mut self, subtree: &Subtree) {
        let Some(open) = self.path.last_mut() else { return };
        let ahead = &mut open.ahead;
        if !subtree.ops.is_empty() {
            ahead.pages = ahead.pages.saturating_sub(1);
        }
        let most = self.source.ahead_max().min(READ_AHEAD_PAGES);
        if ahead.pages > most / 2 {
            return;
        }
        // The pass reads the child that it enters immediately, without a prefetch.
        ahead.op = ahead.op.max(open.ops.start);
        let Ok(view) = self.tree.view(&open.page, open.at, open.level) else { return };
        let merge = &*self.merge;
        let mut pages = Vec::new();
        let mut high = Vec::new();
        while ahead.pages < most && ahead.op < open.ops.end {
            let Ok(index) = view.child_of(merge.key(&self.ops[ahead.op])) else { return };
            let Ok(child) = view.child(index) else { return };
            pages.push(child.page);
            ahead.pages += 1;
            high.clear();
            let bound = match index + 1 < view.count() {
                true if view.separator(index + 1, &mut high).is_err() => return,
                true => Some(&high[..]),
                false => None,
            };
            ahead.op = ops_below(self.ops, ahead.op..open.ops.end, bound, |op| merge.key(op));
        }
        if !pages.is_empty() {
            self.source.prefetch(&pages, subtree.level, ReadHint::Apply);
        }
    }

    /// If a single old subtree remains, its page may have a single child in turn. A new page never has a single child: `Levels::finish`
    /// does not write it.
    async fn shrink(&mut self, mut root: Root) -> Result<Root> {
        if root.page == self.levels.last_written {
            return Ok(root);
        }
        while let Some((at, level @ 1..)) = root.top()? {
            let page = match self.source.page(at, level, ReadHint::Apply).await {
                Ok(page) => page,
                Err(Error::Corrupt { .. }) => break,
                Err(error) => return Err(error),
            };
            let Ok(view) = self.tree.view(&page, at, level) else { break };
            let (1, Ok(child)) = (view.count(), view.child(0)) else { break };
            self.levels.release(at);
            root = Root { page: Some(child.page), height: level, entries: child.entries };
        }
        Ok(root)
    }
}

/// The error for an item of a page that passed its check when it was loaded.
fn internal(damage: Damage) -> Error {
    damage.at(PageRef::default())
}

fn check_entry(key: &[u8], entry: &[u8]) -> Result<()> {
    let bytes = key.len() + entry.len();
    if entry.is_empty() || bytes > ENTRY_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "an entry of {} bytes with a key of {}: 1 byte to {ENTRY_BYTES_MAX} together are allowed",
            entry.len(),
            key.len()
        )));
    }
    Ok(())
}

/// Finds the end of the operations of `range` whose keys are below `high`, by galloping: the end is usually close.
fn ops_below<O>(ops: &[O], range: Range<usize>, high: Option<&[u8]>, key: impl Fn(&O) -> &[u8]) -> usize {
    let Some(high) = high else { return range.end };
    let ops = &ops[range.clone()];
    let mut step = 1;
    while step < ops.len() && key(&ops[step - 1]) < high {
        step *= 2;
    }
    let from = step / 2;
    let to = step.min(ops.len());
    range.start + from + ops[from..to].partition_point(|op| key(op) < high)
}
