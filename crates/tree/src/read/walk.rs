//! The walk over all pages and entries of a tree, for `shoal check`. It reports each problem and continues.

use std::collections::HashSet;
use std::future::Future;
use std::ops::Deref;

use shoal_base::BLOCK_BYTES;
use shoal_common::error::{Error, Result};
use shoal_common::leaf_entry;

use crate::filter;
use crate::format::Child;
use crate::format::{Damage, PageRef};
use crate::page::PageView;
use crate::pages::{PageSource, ReadHint};
use crate::{HEIGHT_MAX, Root, Tree};

/// Maximum number of children that a walk prefetches.
const READ_AHEAD_PAGES: usize = 64;
/// Number of children that a walk prefetches at its start, because it may be a short one.
const READ_AHEAD_FIRST: usize = 2;

/// A problem in a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The page with the problem.
    pub page: PageRef,
    /// The page's level in the tree.
    pub level: u8,
    /// A description of the problem.
    pub what: String,
    /// The affected keys are not below this one, as far as known.
    pub low: Vec<u8>,
}

/// Receives the contents of a tree in the order of its keys.
pub trait Visitor: Send {
    /// A page, before anything below it. `used_bytes` is 0 for a page that cannot be read.
    fn page(&mut self, _page: PageRef, _level: u8, _used_bytes: usize) {}

    /// An entry, and the page that holds it. Empty entries, which mark deletes in a lost range, are skipped.
    fn entry(&mut self, key: &[u8], entry: &[u8], page: PageRef);

    /// A leaf marked "base lost": the keys from `low` and below `high` are unknown, unless the leaf has them.
    fn lost(&mut self, _page: PageRef, _low: &[u8], _high: Option<&[u8]>) {}

    /// A problem was found.
    fn problem(&mut self, problem: Problem);

    /// Called after each leaf: the place to do I/O for the entries seen, or to stop the walk.
    ///
    /// # Errors
    /// Any; it aborts the walk.
    fn leaf_done(&mut self) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// The result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walked {
    /// Pages that could be read, leaves included.
    pub pages: u64,
    /// Leaves that could be read.
    pub leaves: u64,
    /// Entries in these leaves.
    pub entries: u64,
    /// Bytes in use in all these leaves, headers included: 4,096 in a full leaf.
    pub leaf_bytes: u64,
}

struct Subtree {
    child: Child,
    /// Of a leaf, as its parent has it.
    filter: Vec<u8>,
    /// True if its parent marks it as a plain leaf.
    is_plain: bool,
    level: u8,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

struct Open<P> {
    page: P,
    subtree: Subtree,
    next: usize,
    /// The children before this index were prefetched or skipped.
    asked: usize,
    /// Entries seen before this page. After the page the walk compares the count with the parent's, unless it met problems below.
    entries_before: u64,
    problems_before: u64,
}

struct Walk<'a, S: PageSource, V> {
    tree: Tree,
    source: &'a S,
    /// The walk skips keys below this one.
    from: Vec<u8>,
    visitor: &'a mut V,
    path: Vec<Open<S::Page>>,
    walked: Walked,
    problems: u64,
    key: Vec<u8>,
    /// Children that the walk prefetches now.
    window: usize,
    /// The inner pages that were entered. A forged page may name a child again and again: without this, the walk would take exponential time.
    entered: HashSet<u64>,
}

impl Tree {
    /// Visits every page and every entry and checks all properties of a tree: levels, identities, the order of keys within and across
    /// pages, separators, counts, prefixes.
    ///
    /// # Errors
    /// Only errors of [`Visitor::leaf_done`]: the visitor receives damage and errors of the device as problems.
    pub async fn walk<S: PageSource, V: Visitor>(
        &self,
        source: &S,
        root: Root,
        visitor: &mut V,
    ) -> Result<Walked> {
        self.walk_from(source, root, Vec::new(), visitor).await
    }

    /// As [`walk`](Self::walk), without the pages that have only keys below `from`; their entries count with the numbers of their parents.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub async fn walk_from<S: PageSource, V: Visitor>(
        &self,
        source: &S,
        root: Root,
        from: Vec<u8>,
        visitor: &mut V,
    ) -> Result<Walked> {
        let mut walk = Walk {
            tree: *self,
            source,
            from,
            visitor,
            path: Vec::new(),
            walked: Walked::default(),
            problems: 0,
            key: Vec::new(),
            window: READ_AHEAD_FIRST,
            entered: HashSet::new(),
        };
        match root.top() {
            Ok(None) if root.entries == 0 => {}
            Ok(None) => walk.problem(PageRef::default(), 0, &[], "an empty tree has entries".to_owned()),
            Ok(Some((page, level))) => {
                let child = Child { page, entries: root.entries };
                let filter = Vec::new();
                let (low, high, is_plain) = (Vec::new(), None, false);
                walk.enter(Subtree { child, filter, is_plain, level, low, high }).await?;
                walk.run().await?;
            }
            Err(error) => walk.problem(root.page.unwrap_or_default(), 0, &[], error.to_string()),
        }
        Ok(walk.walked)
    }
}

impl<S: PageSource, V: Visitor> Walk<'_, S, V> {
    fn problem(&mut self, page: PageRef, level: u8, low: &[u8], what: String) {
        self.problems += 1;
        self.visitor.problem(Problem { page, level, what, low: low.to_vec() });
    }

    fn damaged(&mut self, subtree: &Subtree, damage: Damage) {
        self.problem(subtree.child.page, subtree.level, &subtree.low, damage.0.to_owned());
    }

    async fn run(&mut self) -> Result<()> {
        while let Some(mut open) = self.path.pop() {
            let child = self.next_child(&mut open);
            match child {
                Some(Ok(child)) if child.high.as_ref().is_some_and(|high| *high <= self.from) => {
                    self.walked.entries = self.walked.entries.saturating_add(child.child.entries);
                    self.path.push(open);
                }
                Some(Ok(child)) => {
                    self.ask_ahead(&mut open);
                    self.path.push(open);
                    self.enter(child).await?;
                }
                Some(Err(damage)) => {
                    self.damaged(&open.subtree, damage);
                    self.path.push(open);
                }
                None => self.check_count(&open.subtree, open.entries_before, open.problems_before),
            }
        }
        Ok(())
    }

    /// Returns the next child of an inner page; `None` after the last.
    fn next_child(&mut self, open: &mut Open<S::Page>) -> Option<std::result::Result<Subtree, Damage>> {
        let subtree = &open.subtree;
        let view = match self.tree.parse(&open.page, subtree.child.page, subtree.level) {
            Ok(view) if open.next < view.count() => view,
            _ => return None,
        };
        let index = open.next;
        open.next += 1;
        Some(child_subtree(&view, subtree, index))
    }

    /// Prefetches the last returned child and the children after it, as soon as the walk has read half of the last batch.
    fn ask_ahead(&mut self, open: &mut Open<S::Page>) {
        let subtree = &open.subtree;
        let (from, window) = (open.asked.max(open.next - 1), self.window.min(self.source.ahead_max()));
        if from - (open.next - 1) > window / 2 {
            return;
        }
        let Ok(view) = self.tree.parse(&open.page, subtree.child.page, subtree.level) else { return };
        let to = (open.next - 1 + window).min(view.count());
        let pages: Vec<PageRef> = (from..to).filter_map(|index| Some(view.child(index).ok()?.page)).collect();
        if !pages.is_empty() {
            self.source.prefetch(&pages, subtree.level - 1, ReadHint::Scan);
        }
        open.asked = to.max(from);
        self.window = (self.window * 2).min(READ_AHEAD_PAGES);
    }

    /// Reads and checks a page, then visits its entries, or opens it so that its children are visited.
    async fn enter(&mut self, subtree: Subtree) -> Result<()> {
        let at = subtree.child.page;
        let page = match self.source.page(at, subtree.level, ReadHint::Scan).await {
            Ok(page) => page,
            Err(error) => {
                self.visitor.page(at, subtree.level, 0);
                self.problem(at, subtree.level, &subtree.low, unreadable(&error));
                return Ok(());
            }
        };
        let view = match self.tree.parse(&page, at, subtree.level) {
            Ok(view) => view,
            Err(damage) => {
                self.visitor.page(at, subtree.level, 0);
                self.damaged(&subtree, damage);
                return Ok(());
            }
        };
        let (entries_before, problems_before) = (self.walked.entries, self.problems);
        self.walked.pages += 1;
        self.visitor.page(at, subtree.level, view.used_bytes().unwrap_or(0));
        if let Err(damage) = view.check(&subtree.low, subtree.high.as_deref()) {
            self.damaged(&subtree, damage);
        }
        if subtree.level > 0 && !self.entered.insert(at.block) {
            self.damaged(&subtree, Damage("the page has two parents"));
            return Ok(());
        }
        if subtree.level > 0 {
            assert!(subtree.level < HEIGHT_MAX, "a tree of more than {HEIGHT_MAX} levels");
            self.path.push(Open { page, subtree, next: 0, asked: 0, entries_before, problems_before });
            return Ok(());
        }
        self.visit_leaf(&page, &subtree);
        self.check_count(&subtree, entries_before, problems_before);
        self.visitor.leaf_done().await
    }

    fn visit_leaf(&mut self, page: &impl Deref<Target = [u8; BLOCK_BYTES]>, subtree: &Subtree) {
        let at = subtree.child.page;
        let Ok(view) = self.tree.parse(page, at, 0) else { return };
        self.walked.leaves += 1;
        self.walked.leaf_bytes += view.used_bytes().unwrap_or(0) as u64;
        if let Ok(Some(bounds)) = view.lost() {
            self.visitor.lost(at, bounds.low, bounds.high);
        }
        let (mut is_denied, mut is_plain) = (false, true);
        for index in 0..view.count() {
            // The check of the page has reported an item that cannot be read.
            let Ok(item) = view.item(index) else { continue };
            if item.payload.is_empty() {
                continue;
            }
            self.key.clear();
            self.key.extend_from_slice(view.prefix());
            self.key.extend_from_slice(item.suffix);
            is_denied |= !subtree.filter.is_empty()
                && !filter::may_contain(&subtree.filter, filter::hash_of(self.tree.device, &self.key));
            is_plain &= leaf_entry::is_plain(item.payload);
            self.walked.entries += 1;
            self.visitor.entry(&self.key, item.payload, at);
        }
        if is_denied {
            self.problem(
                at,
                0,
                &subtree.low,
                "the filter of the page denies a key that the page holds".into(),
            );
        }
        if subtree.is_plain && !is_plain {
            let what = "the page is marked as plain, and an entry owns blocks or has a deadline".into();
            self.problem(at, 0, &subtree.low, what);
        }
    }

    fn check_count(&mut self, subtree: &Subtree, entries_before: u64, problems_before: u64) {
        let seen = self.walked.entries - entries_before;
        if self.problems == problems_before && seen != subtree.child.entries {
            let what = format!("{seen} entries are there, the parent counts {}", subtree.child.entries);
            self.problem(subtree.child.page, subtree.level, &subtree.low, what);
        }
    }
}

fn child_subtree(
    view: &PageView<'_>,
    parent: &Subtree,
    index: usize,
) -> std::result::Result<Subtree, Damage> {
    let mut low = Vec::new();
    view.separator(index, &mut low)?;
    if index == 0 {
        low.clone_from(&parent.low);
    }
    let high = if index + 1 == view.count() {
        parent.high.clone()
    } else {
        let mut high = Vec::new();
        view.separator(index + 1, &mut high)?;
        Some(high)
    };
    let (child, filter) = view.child_and_filter(index)?;
    let (filter, is_plain) = (view.bytes_at(filter).to_vec(), view.is_plain(index));
    Ok(Subtree { child, filter, is_plain, level: parent.level - 1, low, high })
}

fn unreadable(error: &Error) -> String {
    format!("the page cannot be read: {error}")
}
