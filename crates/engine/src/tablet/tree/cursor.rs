//! A cursor: the entries of one state of a tree in the order of their keys.
//!
//! It holds the pages on its way from the root to a leaf. A step costs a few comparisons; every so many, one page. Leaves
//! ahead are asked for in batches that double up to a limit, so that a short scan reads little and a long one waits
//! seldom (once under each page of level 1, of a few hundred leaves). Damage is reported once where the cursor meets it, with the range
//! of keys that it hides ([`Gap`]); the next call goes on behind it, or, in a leaf marked "base lost", with the entries that are there.

use std::cmp::Ordering;
use std::ops::Range;

use super::format::{Damage, PageRef};
use super::lookup::{Found, LOST};
use super::page::PageView;
use super::pages::{PageSource, ReadHint};
use super::{Root, Tree};
use crate::common::error::{Error, Result};
use crate::testing::injected_bug::{Bug, injected};

/// Leaves that a cursor asks for ahead of need, at most.
pub(crate) const READ_AHEAD_MAX: usize = 64;

/// Leaves asked for at once when a scan leaves its first leaf.
const READ_AHEAD_FIRST: usize = 2;

/// An entry under a cursor.
pub(crate) struct Entry<'a, P> {
    /// Its key.
    pub(crate) key: &'a [u8],
    /// Its bytes.
    #[cfg_attr(not(test), expect(dead_code, reason = "the engine refers to the page, by `found`"))]
    pub(crate) entry: &'a [u8],
    page: &'a P,
    range: Range<usize>,
}

impl<P: Clone + std::ops::Deref<Target = [u8; shoal_base::BLOCK_BYTES]>> Entry<'_, P> {
    /// The entry's bytes in their page, which stays pinned, independent of the cursor.
    pub(crate) fn found(&self) -> Found<P> {
        Found::new(self.page.clone(), self.range.clone())
    }
}

/// An inner page on the way.
struct Step<P> {
    page: P,
    at: PageRef,
    level: u8,
    count: usize,
    /// The child after the one that is being read.
    next: usize,
    /// Children before this one were asked for.
    ahead: usize,
}

/// The leaf under the cursor.
struct Leaf<P> {
    page: P,
    at: PageRef,
    count: usize,
    next: usize,
}

/// From this key on, up to that one, or to the end.
type KeyRange = (Vec<u8>, Option<Vec<u8>>);

/// How far a descent came.
enum Descent {
    /// To the leaf, or to the end.
    There,
    /// To this page, which is not in memory, and its level.
    Needs(PageRef, u8),
}

/// A range of keys of which a damaged or lost page does not say what they hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gap {
    /// Where the page lies.
    pub(crate) block: u64,
    /// The first key of the range.
    pub(crate) low: Vec<u8>,
    /// The first key behind it; none: up to the end.
    pub(crate) high: Option<Vec<u8>>,
    /// Why it cannot be read.
    pub(crate) why: String,
}

/// See the top of the file.
pub(crate) struct Cursor<S: PageSource> {
    tree: Tree,
    source: S,
    root: Root,
    end: Option<Vec<u8>>,
    window: usize,
    /// Entries that the caller will read from here on, where it knows.
    expected: Option<usize>,
    /// Where to go before the next entry is read.
    sought: Option<Vec<u8>>,
    /// Nothing follows until the next seek.
    done: bool,
    path: Vec<Step<S::Page>>,
    leaf: Option<Leaf<S::Page>>,
    key: Vec<u8>,
    /// What the damage that was reported last hides.
    gap: Option<Gap>,
}

impl<S: PageSource> Cursor<S> {
    /// A cursor over the entries with keys from `start` on and, where there is an `end`, below it.
    pub(crate) fn new(tree: Tree, source: S, root: Root, start: &[u8], end: Option<&[u8]>) -> Self {
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
        }
    }

    /// About `entries` entries will be read: the leaves that hold them are asked for at once, and none behind them.
    pub(crate) fn with_expected(mut self, entries: usize) -> Self {
        self.expected = Some(entries);
        self
    }

    /// Goes to the first key not below `key`, forward or back. Pages that the cursor holds and that lie on the new way are
    /// not asked for again. Errors come from the next [`next`](Self::next).
    pub(crate) fn seek(&mut self, key: &[u8]) {
        let mut sought = self.sought.take().unwrap_or_default();
        sought.clear();
        sought.extend_from_slice(key);
        self.sought = Some(sought);
        self.done = false;
    }

    /// Goes to the sought key as far as memory goes, and asks for the page that comes next, and where it is known how many entries
    /// will be read, for their leaves. Several cursors that do so wait for the device together.
    pub(crate) fn approach(&mut self) {
        let Some(key) = self.sought.take() else { return };
        match self.descend_in_memory(&key, None) {
            Ok(Descent::There) => {}
            Ok(Descent::Needs(at, level)) => {
                self.source.prefetch(&[at], level, ReadHint::Scan);
                self.sought = Some(key);
            }
            // `next` meets it again, and reports it.
            Err(_) => {
                self.gap = None;
                self.sought = Some(key);
            }
        }
    }

    /// The pages on the way to the entry that was given last, its leaf first.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageRef> {
        let leaf = self.leaf.as_ref().map(|leaf| leaf.at);
        leaf.into_iter().chain(self.path.iter().rev().map(|step| step.at))
    }

    /// What the damage hides that [`next`](Self::next) reported last.
    pub(crate) fn take_gap(&mut self) -> Option<Gap> {
        self.gap.take()
    }

    /// Notes what the damage of a page hides that lies under the first `depth` inner pages of the way.
    fn damaged(&mut self, depth: usize, error: Error) -> Error {
        if let Error::Corrupt { what, block } = &error {
            let (low, high) = self.bounds(depth);
            self.gap = Some(Gap { block: *block, low, high, why: what.clone() });
        }
        error
    }

    /// The bounds of the page that is read, or was to be, under the first `depth` inner pages of the way: what their separators
    /// say, as far as these can be read.
    fn bounds(&self, depth: usize) -> (Vec<u8>, Option<Vec<u8>>) {
        let (mut low, mut high) = (None, None);
        for step in self.path.iter().take(depth).rev() {
            let Ok(view) = self.tree.parse(&step.page, step.at, step.level) else { continue };
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
            }
        }
        (low.unwrap_or_default(), high)
    }

    /// The next entry; none at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] once for each damaged page that lies in the range, after the entries before it; the next call goes
    /// on behind it, and [`take_gap`](Self::take_gap) has the range. The same once for each leaf that is marked "base lost", before its
    /// entries. Any other error, as [`Error::Io`], can be tried again: nothing is skipped.
    pub(crate) async fn next(&mut self) -> Result<Option<Entry<'_, S::Page>>> {
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
        Ok(Some(Entry { key: &self.key, entry, page: &leaf.page, range }))
    }

    /// Where the next entry of the leaf lies; none where the leaf, or the whole range, is at its end.
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

    /// Leaves `next` at an item exactly where that is not below the end of the range.
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
                // In a lost range: the key is known to be absent.
                continue;
            }
            key.clear();
            key.extend_from_slice(view.prefix());
            key.extend_from_slice(view.item(index)?.suffix);
            return Ok(Some(range));
        }
        Ok(None)
    }

    /// Goes to the sought key. An error that is not damage leaves everything as it was, to be tried again.
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

    /// Goes to `key` through the pages that are in memory; `read` is the one that was missing before.
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
                if level == 0 {
                    return self.enter_leaf(at, page, Some(key)).map(|()| Descent::There);
                }
                if let Err(error) = self.enter_inner(at, level, page) {
                    return Err(self.damaged(depth, error));
                }
            }
            let Some(step) = self.path.get_mut(depth) else { return Ok(Descent::There) };
            let found = self
                .tree
                .parse(&step.page, at, level)
                .and_then(|view| view.child_of(key).and_then(|child| Ok((child, view.child(child)?))));
            let Ok((child, target)) = found else {
                // Nothing under a page whose items cannot be read.
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

    /// Forgets what lies under the first `depth` inner pages.
    fn forget_below(&mut self, depth: usize) {
        self.path.truncate(depth);
        self.leaf = None;
    }

    /// Puts an inner page on the way.
    fn enter_inner(&mut self, at: PageRef, level: u8, page: S::Page) -> Result<()> {
        let count = self.tree.view(&page, at, level)?.count();
        self.path.push(Step { page, at, level, count, next: 0, ahead: 0 });
        Ok(())
    }

    /// Makes the page the leaf under the cursor, from its first item not below `from`. One that is marked "base lost", where the
    /// scanned range meets what was lost, is damage, and the leaf under the cursor all the same.
    fn enter_leaf(&mut self, at: PageRef, page: S::Page, from: Option<&[u8]>) -> Result<()> {
        let entered = self.open_leaf(at, page, from);
        let lost = entered.map_err(|error| self.damaged(self.path.len(), error))?;
        if injected(Bug::LostNotNamed) {
            return Ok(());
        }
        let Some((low, high)) = lost else { return Ok(()) };
        self.gap = Some(Gap { block: at.block, low, high, why: LOST.0.to_owned() });
        Err(LOST.at(at))
    }

    /// Gives the range of keys that was lost with the leaf's base.
    fn open_leaf(&mut self, at: PageRef, page: S::Page, from: Option<&[u8]>) -> Result<Option<KeyRange>> {
        let view = self.tree.view(&page, at, 0)?;
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

    /// Goes to the first leaf behind the last one.
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
                    // Which child it is cannot be said: all under the page that holds the item.
                    let above = self.path.len() - 1;
                    self.skip_child();
                    return Err(self.damaged(above, damage.at(at)));
                }
            };
            self.ask_ahead(false);
            // Before the child is read: its bounds are those of the child before the next one.
            self.skip_child();
            let depth = self.path.len();
            let entered = match self.source.page(child, level - 1, ReadHint::Scan).await {
                Ok(page) if level == 1 => self.enter_leaf(child, page, None),
                Ok(page) => self.enter_inner(child, level - 1, page),
                Err(error) if level == 1 => Err(self.damaged(depth, error)),
                Err(error) => Err(error),
            };
            match entered {
                // The inner page is on the way now, behind its parent.
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

    /// Whether all keys under child `index` lie behind the range.
    fn is_behind_end(&self, view: &PageView<'_>, index: usize) -> std::result::Result<bool, Damage> {
        match &self.end {
            Some(end) if index > 0 => Ok(view.compare(index, end)? != Ordering::Less),
            _ => Ok(false),
        }
    }

    /// Asks for the leaf about to be read and those that follow it. A leaf `from_within` is read from some key on.
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
            // All of the first leaf's entries may lie before the key.
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
