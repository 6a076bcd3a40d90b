//! A cursor returns the entries of one state of a tree in the order of their keys.
//!
//! The cursor holds the pages on its path from the root to a leaf. A step costs a few comparisons, and at the end of a leaf one page. The
//! cursor prefetches the leaves ahead in batches that double up to a limit, so that a short scan reads little and a long scan rarely waits:
//! once under each page of level 1, which has a few hundred leaves. The cursor reports damage once, when it meets it, with the range of
//! keys that the damage hides ([`Gap`]). The next call continues after that range, or, in a leaf marked "base lost", with the entries that
//! the leaf still has.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use shoal_base::list::DamagedRange;
use shoal_base::{Lsn, TabletId};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};

use crate::format::{Damage, PageRef};
use crate::page::PageView;
use crate::pages::{PageSource, ReadHint};
use crate::read::lookup::{Found, LOST};
use crate::{Root, Tree};

/// Maximum number of leaves that a cursor prefetches.
pub(crate) const READ_AHEAD_MAX: usize = 64;

/// Number of leaves that a cursor prefetches when a scan leaves its first leaf.
const READ_AHEAD_FIRST: usize = 2;

/// An entry under a cursor.
pub struct CursorEntry<'a, P> {
    /// Its key.
    pub key: &'a [u8],
    /// Its bytes.
    pub entry: &'a [u8],
    page: &'a P,
    range: Range<usize>,
}

impl<P: Clone + std::ops::Deref<Target = [u8; shoal_base::BLOCK_BYTES]>> CursorEntry<'_, P> {
    /// The entry's bytes. They keep their page pinned and do not depend on the cursor.
    pub fn found(&self) -> Found<P> {
        Found::new(self.page.clone(), self.range.clone())
    }
}

/// An inner page on the cursor's path.
struct Step<P> {
    page: P,
    at: PageRef,
    level: u8,
    count: usize,
    /// The child after the current one.
    next: usize,
    /// The children before this index were prefetched.
    ahead: usize,
}

/// The leaf under the cursor.
struct Leaf<P> {
    page: P,
    at: PageRef,
    count: usize,
    next: usize,
}

/// A range of keys: first key, and the end (exclusive); `None` is the end of the tree.
type KeyRange = (Vec<u8>, Option<Vec<u8>>);

/// The result of a descent through the pages in memory.
enum Descent {
    /// The cursor is in the leaf, or at the end of the tree.
    There,
    /// This page, with its level, is not in memory.
    Needs(PageRef, u8),
}

/// A range of keys whose entries are unknown, because a page is damaged or lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The block of the page.
    pub block: u64,
    /// The first key of the range.
    pub low: Vec<u8>,
    /// The end of the range (exclusive); `None` is the end of the tree.
    pub high: Option<Vec<u8>>,
    /// The reason why the page cannot be read.
    pub why: String,
}

impl Gap {
    /// Returns true if the range is that of a leaf marked "base lost": the number of its lost entries is not known.
    pub fn is_marked(&self) -> bool {
        self.why == LOST.0
    }

    /// The gap as a range of keys of its tablet.
    #[must_use]
    pub fn in_tablet(self, tablet: TabletId) -> DamagedRange {
        let Self { block, low: from, high: to, why } = self;
        DamagedRange { tablet, from, to, block, why }
    }
}

/// Pages of an earlier state of the tree: a cursor passes such a page with its whole subtree.
#[derive(Clone, Debug)]
pub struct KnownPages {
    /// The pages.
    pub pages: Arc<HashSet<PageRef>>,
    /// No later apply wrote any of them. A page in a reused block has a larger number.
    pub written_by: Lsn,
}

/// See the top of the file.
pub struct Cursor<S: PageSource> {
    tree: Tree,
    source: S,
    root: Root,
    end: Option<Vec<u8>>,
    window: usize,
    /// Number of entries that the caller is going to read from here, if known.
    expected: Option<usize>,
    /// The key to descend to before the next entry is read.
    sought: Option<Vec<u8>>,
    /// The scan is finished until the next seek.
    done: bool,
    path: Vec<Step<S::Page>>,
    leaf: Option<Leaf<S::Page>>,
    key: Vec<u8>,
    /// The keys that the last reported damage hides.
    gap: Option<Gap>,
    /// Every key that follows is after the gap.
    is_behind_gap: bool,
    known: Option<KnownPages>,
    /// Known pages that were passed since the last call of `take_passed`.
    passed: Vec<PageRef>,
}

impl<S: PageSource> Cursor<S> {
    /// Returns a cursor over the entries with keys from `start`, and below `end` if there is one.
    pub fn new(tree: Tree, source: S, root: Root, start: &[u8], end: Option<&[u8]>) -> Self {
        Self {
            tree,
            source,
            root,
            end: end.map(<[u8]>::to_vec),
            window: READ_AHEAD_FIRST,
            expected: None,
            sought: Some(start.to_vec()),
            done: false,
            path: Vec::new(),
            leaf: None,
            key: Vec::new(),
            gap: None,
            is_behind_gap: false,
            known: None,
            passed: Vec::new(),
        }
    }

    /// The same, except that it passes `known` pages and returns no entry under them. Nothing under such a page is read.
    pub fn passing(mut self, known: KnownPages) -> Self {
        self.known = Some(known);
        self
    }

    /// Takes the known pages that were passed since the last call. A page may be returned twice.
    pub fn take_passed(&mut self) -> Vec<PageRef> {
        std::mem::take(&mut self.passed)
    }

    /// Returns the page of level 1 above the last entry, or its leaf if that is the whole tree.
    pub fn page_above(&self) -> Option<PageRef> {
        self.path.last().map(|step| step.at).or(self.leaf.as_ref().map(|leaf| leaf.at))
    }

    /// Passes a page if it is a known one.
    fn passes(&mut self, at: PageRef, level: u8, page: &S::Page) -> bool {
        let Some(known) = self.known.as_ref().filter(|known| known.pages.contains(&at)) else { return false };
        let is_old = match self.tree.parse(page, at, level) {
            Ok(view) => view.header().lsn <= known.written_by.0,
            Err(_) => false,
        };
        if is_old {
            self.passed.push(at);
        }
        is_old
    }

    /// Sets the number of entries that the caller is going to read. The cursor then prefetches the leaves that hold them all at once, and
    /// no leaf after them.
    pub fn with_expected(mut self, entries: usize) -> Self {
        self.expected = Some(entries);
        self
    }

    /// Moves to the first key not below `key`, forward or back. The cursor does not reread the pages that it holds and that are on the new
    /// path. [`next`](Self::next) returns the errors.
    pub fn seek(&mut self, key: &[u8]) {
        let mut sought = self.sought.take().unwrap_or_default();
        sought.clear();
        sought.extend_from_slice(key);
        self.sought = Some(sought);
        self.done = false;
    }

    /// Descends towards the sought key through the pages in memory and prefetches the first missing page. If the number of entries is
    /// known, it prefetches their leaves, too. Callers approach with several cursors, so that all of them wait for the device at the same
    /// time.
    pub fn approach(&mut self) {
        let Some(key) = self.sought.take() else { return };
        match self.descend_in_memory(&key, None) {
            Ok(Descent::There) => {}
            Ok(Descent::Needs(at, level)) => {
                self.source.prefetch(&[at], level, ReadHint::Scan);
                self.sought = Some(key);
            }
            // `next` meets the error again and reports it.
            Err(_) => {
                self.gap = None;
                self.sought = Some(key);
            }
        }
    }

    /// Prefetches the leaves that hold the next `entries` entries, as far as they have the same page of level 1 above them: the caller stops
    /// here, and another cursor is going to continue.
    pub fn read_ahead(&mut self, entries: usize) {
        if self.sought.is_some() || self.done {
            return;
        }
        let held = self.leaf.as_ref().map_or(0, |leaf| leaf.count - leaf.next);
        self.expected = Some(entries.saturating_sub(held));
        self.ask_ahead(false);
    }

    /// Returns the pages on the path to the last entry, its leaf first.
    pub fn pages(&self) -> impl Iterator<Item = PageRef> {
        let leaf = self.leaf.as_ref().map(|leaf| leaf.at);
        leaf.into_iter().chain(self.path.iter().rev().map(|step| step.at))
    }

    /// Takes the range of keys that the damage last reported by [`next`](Self::next) hides.
    pub fn take_gap(&mut self) -> Option<Gap> {
        self.gap.take()
    }

    /// Returns true if no key follows that is below the end of the last taken range, so that the caller need not read on until it wants
    /// keys from there.
    pub fn is_behind_gap(&self) -> bool {
        self.is_behind_gap
    }

    /// Records the range of keys hidden by a damaged page under the first `depth` inner pages of the path.
    fn damaged(&mut self, depth: usize, error: Error) -> Error {
        if let Error::Corrupt { what, block } = &error {
            let (low, high, is_end_exact) = self.bounds(depth);
            self.is_behind_gap = is_end_exact && depth == self.path.len();
            self.gap = Some(Gap { block: *block, low, high, why: what.clone() });
        }
        error
    }

    /// Returns the bounds of the page under the first `depth` inner pages of the path. They come from the readable separators; the last
    /// value is false if a separator is unreadable.
    fn bounds(&self, depth: usize) -> (Vec<u8>, Option<Vec<u8>>, bool) {
        let (mut low, mut high, mut is_end_exact) = (None, None, true);
        for step in self.path.iter().take(depth).rev() {
            let Ok(view) = self.tree.parse(&step.page, step.at, step.level) else {
                is_end_exact = false;
                continue;
            };
            let separator = |index: usize| {
                let mut key = Vec::new();
                view.separator(index, &mut key).ok().map(|()| key)
            };
            let child = step.next.saturating_sub(1);
            if low.is_none() && child > 0 {
                low = separator(child);
            }
            if high.is_none() && child + 1 < step.count {
                high = separator(child + 1);
                is_end_exact &= high.is_some();
            }
        }
        (low.unwrap_or_default(), high, is_end_exact)
    }

    /// Returns the next entry; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] once for each damaged page in the range, after the entries before it; the next call continues
    /// after the page, and [`take_gap`](Self::take_gap) has the range. Likewise once for each leaf marked "base lost",
    /// before its entries. After any other error, such as [`Error::Io`], the call can be repeated: no entry is skipped.
    pub async fn next(&mut self) -> Result<Option<CursorEntry<'_, S::Page>>> {
        let range = loop {
            if self.sought.is_some() {
                self.descend().await?;
            }
            if self.done {
                return Ok(None);
            }
            if let Some(range) = self.next_in_leaf()? {
                break range;
            }
            if !self.done {
                self.next_leaf().await?;
            }
        };
        self.expected = self.expected.map(|rest| rest.saturating_sub(1));
        let Some(leaf) = &self.leaf else { return Ok(None) };
        let Some(entry) = leaf.page.get(range.clone()) else { return Ok(None) };
        Ok(Some(CursorEntry { key: &self.key, entry, page: &leaf.page, range }))
    }

    /// Returns the next entry if it follows in the leaf that the cursor holds. `None`: [`next`](Self::next) returns it, or the damage
    /// before it.
    #[inline]
    pub fn next_in_memory(&mut self) -> Option<CursorEntry<'_, S::Page>> {
        if self.sought.is_some() || self.done {
            return None;
        }
        let leaf = self.leaf.as_mut()?;
        let at = leaf.next;
        let Ok(Some(range)) = Self::step(self.tree, leaf, &mut self.key, self.end.as_deref()) else {
            leaf.next = at;
            return None;
        };
        self.expected = self.expected.map(|rest| rest.saturating_sub(1));
        let entry = leaf.page.get(range.clone())?;
        Some(CursorEntry { key: &self.key, entry, page: &leaf.page, range })
    }

    /// Returns the place of the leaf's next entry; `None` at the end of the leaf or of the whole scan.
    fn next_in_leaf(&mut self) -> Result<Option<Range<usize>>> {
        let Some(leaf) = &mut self.leaf else { return Ok(None) };
        let outcome = Self::step(self.tree, leaf, &mut self.key, self.end.as_deref());
        match outcome {
            Ok(Some(range)) => return Ok(Some(range)),
            Ok(None) => {}
            Err(damage) => {
                let at = leaf.at;
                self.leaf = None;
                return Err(self.damaged(self.path.len(), damage.at(at)));
            }
        }
        self.done = leaf.next < leaf.count;
        self.leaf = None;
        Ok(None)
    }

    /// Stops with `next` at an item only if that item is not below the end of the scan.
    fn step(
        tree: Tree,
        leaf: &mut Leaf<S::Page>,
        key: &mut Vec<u8>,
        end: Option<&[u8]>,
    ) -> std::result::Result<Option<Range<usize>>, Damage> {
        let view = tree.parse(&leaf.page, leaf.at, 0)?;
        while leaf.next < leaf.count {
            if let Some(end) = end
                && view.compare(leaf.next, end)? != Ordering::Less
            {
                return Ok(None);
            }
            let index = leaf.next;
            leaf.next += 1;
            let range = view.payload_range(index)?;
            if range.is_empty() {
                // The leaf marks a key as absent within a lost range.
                continue;
            }
            key.clear();
            key.extend_from_slice(view.prefix());
            key.extend_from_slice(view.item(index)?.suffix);
            return Ok(Some(range));
        }
        Ok(None)
    }

    /// Descends to the sought key. An error other than damage changes nothing, so that the caller can retry.
    async fn descend(&mut self) -> Result<()> {
        let Some(key) = self.sought.take() else { return Ok(()) };
        let mut read = None;
        let outcome = loop {
            match self.descend_in_memory(&key, read.take()) {
                Ok(Descent::There) => break Ok(()),
                Ok(Descent::Needs(at, level)) => match self.source.page(at, level, ReadHint::Scan).await {
                    Ok(page) => read = Some((at, page)),
                    Err(error) => break Err(self.damaged(self.path.len(), error)),
                },
                Err(error) => break Err(error),
            }
        };
        if matches!(&outcome, Err(error) if !matches!(error, Error::Corrupt { .. })) {
            self.sought = Some(key);
        }
        outcome
    }

    /// Descends to `key` through the pages in memory. `read` is the page that was missing in the last attempt.
    fn descend_in_memory(&mut self, key: &[u8], mut read: Option<(PageRef, S::Page)>) -> Result<Descent> {
        let Some((mut at, mut level)) = self.root.top().map_err(|error| self.damaged(0, error))? else {
            self.done = true;
            return Ok(Descent::There);
        };
        let mut depth = 0;
        loop {
            let is_on_path = level > 0 && self.path.get(depth).is_some_and(|step| step.at == at);
            if !is_on_path {
                let held = self.leaf.take_if(|leaf| leaf.at == at).map(|leaf| leaf.page);
                self.forget_below(depth);
                if level == 0 && self.expected.is_some() {
                    self.ask_ahead(true);
                }
                let read = read.take_if(|(block, _)| *block == at).map(|(_, page)| page);
                let page = held.or(read).or_else(|| self.source.cached(at, level, ReadHint::Scan));
                let Some(page) = page else { return Ok(Descent::Needs(at, level)) };
                if self.passes(at, level, &page) {
                    return Ok(Descent::There);
                }
                if level == 0 {
                    return self.enter_leaf(at, page, Some(key)).map(|()| Descent::There);
                }
                if let Err(error) = self.enter_inner(at, level, page, true) {
                    return Err(self.damaged(depth, error));
                }
            }
            let Some(step) = self.path.get_mut(depth) else { return Ok(Descent::There) };
            let found = self
                .tree
                .parse(&step.page, at, level)
                .and_then(|view| view.child_of(key).and_then(|child| Ok((child, view.child(child)?))));
            let Ok((child, target)) = found else {
                // No child of such a page can be reached: the scan continues after it.
                step.next = step.count;
                self.forget_below(depth + 1);
                return Err(self.damaged(depth, Damage("the items of an inner page cannot be read").at(at)));
            };
            if step.next != child + 1 {
                step.next = child + 1;
                step.ahead = child;
                self.window = READ_AHEAD_FIRST;
                self.forget_below(depth + 1);
            }
            (at, level, depth) = (target.page, level - 1, depth + 1);
        }
    }

    /// Drops the pages under the first `depth` inner pages of the path.
    fn forget_below(&mut self, depth: usize) {
        self.path.truncate(depth);
        self.leaf = None;
    }

    /// Checks that the keys of a page are in the range that its parent gives it: entries are in order then also across leaves. The order
    /// inside a leaf is not checked.
    fn check_range(&mut self, view: &PageView<'_>) -> std::result::Result<(), Damage> {
        let mut bound = std::mem::take(&mut self.key);
        let mut checked = Ok(());
        for is_high in [false, true] {
            let has_bound = self.path.iter().rev().any(|step| {
                let index = if is_high { step.next } else { step.next.saturating_sub(1) };
                bound.clear();
                (1..step.count).contains(&index)
                    && self
                        .tree
                        .parse(&step.page, step.at, step.level)
                        .is_ok_and(|view| view.separator(index, &mut bound).is_ok())
            });
            if has_bound {
                let (low, high) = if is_high { (None, Some(&bound[..])) } else { (Some(&bound[..]), None) };
                checked = checked.and_then(|()| view.check_range(low, high));
            }
        }
        self.key = bound;
        checked
    }

    /// Adds an inner page to the path. A scan that enters it from its parent also checks the order of its separators: the ranges of
    /// its children are then disjoint, so a repeated child fails the check of its range.
    fn enter_inner(&mut self, at: PageRef, level: u8, page: S::Page, is_sought: bool) -> Result<()> {
        let view = self.tree.view(&page, at, level)?;
        let in_order = if is_sought { Ok(()) } else { view.check_order() };
        in_order.and_then(|()| self.check_range(&view)).map_err(|damage| damage.at(at))?;
        let count = view.count();
        self.path.push(Step { page, at, level, count, next: 0, ahead: 0 });
        Ok(())
    }

    /// Makes the page the leaf under the cursor, from its first item not below `from`. This includes a leaf marked "base lost"; the result
    /// is damage if the scan meets its lost range.
    fn enter_leaf(&mut self, at: PageRef, page: S::Page, from: Option<&[u8]>) -> Result<()> {
        let entered = self.open_leaf(at, page, from);
        let lost = entered.map_err(|error| self.damaged(self.path.len(), error))?;
        if injected(Bug::LostNotNamed) {
            return Ok(());
        }
        let Some((low, high)) = lost else { return Ok(()) };
        self.gap = Some(Gap { block: at.block, low, high, why: LOST.0.to_owned() });
        // The leaf's remaining entries follow.
        self.is_behind_gap = false;
        Err(LOST.at(at))
    }

    /// Like [`enter_leaf`](Self::enter_leaf); returns the range of keys lost with the leaf's base, if the scan meets it.
    fn open_leaf(&mut self, at: PageRef, page: S::Page, from: Option<&[u8]>) -> Result<Option<KeyRange>> {
        let view = self.tree.view(&page, at, 0)?;
        self.check_range(&view).map_err(|damage| damage.at(at))?;
        let next = match from {
            Some(key) => view.find(0, key).map_err(|damage| damage.at(at))?.0,
            None => 0,
        };
        let lost = view.lost().map_err(|damage| damage.at(at))?.filter(|bounds| {
            let ends_behind = bounds.high.is_none_or(|high| from.is_none_or(|from| from < high));
            ends_behind && self.end.as_deref().is_none_or(|end| bounds.low < end)
        });
        let lost = lost.map(|bounds| (bounds.low.to_vec(), bounds.high.map(<[u8]>::to_vec)));
        let count = view.count();
        self.leaf = Some(Leaf { page, at, count, next });
        Ok(lost)
    }

    /// Moves to the first leaf after the last one.
    async fn next_leaf(&mut self) -> Result<()> {
        loop {
            while self.path.last().is_some_and(|step| step.next >= step.count) {
                self.path.pop();
            }
            let Some(step) = self.path.last() else {
                self.done = true;
                return Ok(());
            };
            let (at, level) = (step.at, step.level);
            let target = self.tree.parse(&step.page, at, level).and_then(|view| {
                if self.is_behind_end(&view, step.next)? { Ok(None) } else { view.child(step.next).map(Some) }
            });
            let child = match target {
                Ok(Some(child)) => child.page,
                Ok(None) => {
                    self.done = true;
                    return Ok(());
                }
                Err(damage) => {
                    // The child is unknown: all keys under the page that holds the item are hidden.
                    let above = self.path.len() - 1;
                    self.skip_child();
                    return Err(self.damaged(above, damage.at(at)));
                }
            };
            self.ask_ahead(false);
            // Skip before the child is read: its bounds are those of the child before the next one.
            self.skip_child();
            let depth = self.path.len();
            let read = self.source.page(child, level - 1, ReadHint::Scan).await;
            if let Ok(page) = &read
                && self.passes(child, level - 1, page)
            {
                continue;
            }
            let entered = match read {
                Ok(page) if level == 1 => self.enter_leaf(child, page, None),
                Ok(page) => self.enter_inner(child, level - 1, page, false),
                Err(error) if level == 1 => Err(self.damaged(depth, error)),
                Err(error) => Err(error),
            };
            match entered {
                // The inner page is on the path now, after its parent.
                Ok(()) if level > 1 => {}
                Ok(()) => return Ok(()),
                Err(error @ Error::Corrupt { .. }) if level > 1 => return Err(self.damaged(depth, error)),
                Err(error @ Error::Corrupt { .. }) => return Err(error),
                Err(error) => {
                    self.unskip_child();
                    return Err(error);
                }
            }
        }
    }

    fn skip_child(&mut self) {
        if let Some(step) = self.path.last_mut() {
            step.next += 1;
        }
    }

    fn unskip_child(&mut self) {
        if let Some(step) = self.path.last_mut() {
            step.next -= 1;
        }
    }

    /// Returns true if all keys under child `index` are after the end of the scan.
    fn is_behind_end(&self, view: &PageView<'_>, index: usize) -> std::result::Result<bool, Damage> {
        match &self.end {
            Some(end) if index > 0 => Ok(view.compare(index, end)? != Ordering::Less),
            _ => Ok(false),
        }
    }

    /// Prefetches the leaf about to be read and the leaves after it. With `from_within` that leaf is read from a key inside it.
    fn ask_ahead(&mut self, from_within: bool) {
        let Some(step) = self.path.last() else { return };
        let first = if from_within { step.next.saturating_sub(1) } else { step.next };
        let from = step.ahead.max(first);
        let window = self.expected.map_or(self.window, |_| READ_AHEAD_MAX).min(self.source.ahead_max());
        if step.level != 1 || from - first > window / 2 {
            return;
        }
        let Ok(view) = self.tree.parse(&step.page, step.at, step.level) else { return };
        let to = (first + window).min(step.count);
        let mut expected = self.expected.map_or(u64::MAX, |entries| entries as u64);
        let mut pages = Vec::new();
        for index in first..to {
            if expected == 0 || !matches!(self.is_behind_end(&view, index), Ok(false)) {
                break;
            }
            let Ok(child) = view.child(index) else { break };
            if index >= from {
                pages.push(child.page);
            }
            // All of the first leaf's entries may be before the key.
            if index > first || !from_within {
                expected = expected.saturating_sub(child.entries);
            }
        }
        let asked = if self.expected.is_some() { from + pages.len() } else { to.max(from) };
        if !pages.is_empty() {
            self.source.prefetch(&pages, 0, ReadHint::Scan);
        }
        self.window = (self.window * 2).min(READ_AHEAD_MAX);
        if let Some(step) = self.path.last_mut() {
            step.ahead = asked;
        }
    }
}

impl Tree {
    /// Returns the range of keys hidden by the damage that a lookup of `key` meets; `None` if it meets none now.
    pub async fn gap_at<S: PageSource>(&self, source: S, root: Root, key: &[u8]) -> Option<Gap> {
        let behind = [key, &[0]].concat();
        let mut cursor = Cursor::new(*self, source, root, key, Some(&behind));
        match cursor.next().await {
            Err(Error::Corrupt { .. }) => cursor.take_gap(),
            _ => None,
        }
    }
}
