//! All levels of a tree that an apply makes: each page that one level completes becomes an item of the level above.

use shoal_base::Lsn;
use shoal_common::error::Result;
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::leaf_entry::is_plain;

use crate::filter;
use crate::format::PageRef;
use crate::format::{Child, Draft, Stamp};
use crate::pages::PageSink;
use crate::write::builder::{Builder, Sealed};
use crate::{HEIGHT_MAX, Root, Tree};

/// A complete page: its item in the level above.
struct Completed {
    low: Vec<u8>,
    child: Child,
    filter: Vec<u8>,
    /// True for a leaf whose entries own no blocks and have no deadline.
    is_plain: bool,
}

/// See the top of the file.
pub(crate) struct Levels<'a, K> {
    tree: Tree,
    lsn: Lsn,
    sink: &'a mut K,
    builders: Vec<Builder>,
    draft: Draft,
    payload: Vec<u8>,
    /// True if leaves get filters.
    filters: bool,
    /// The page written last; a root written in this pass is the last of all.
    pub last_written: Option<PageRef>,
    pub pages_written: u64,
    pub pages_released: u64,
}

impl<'a, K: PageSink> Levels<'a, K> {
    pub(crate) fn new(tree: Tree, lsn: Lsn, sink: &'a mut K, filters: bool) -> Self {
        Self {
            tree,
            lsn,
            sink,
            builders: vec![Builder::new(0)],
            draft: Draft::new(),
            payload: Vec::new(),
            filters,
            last_written: None,
            pages_written: 0,
            pages_released: 0,
        }
    }

    fn builder(&mut self, level: usize) -> &mut Builder {
        while self.builders.len() <= level {
            let next = self.builders.len() as u8;
            // One more than the highest tree has: the root becomes an item before the pass knows that it has no siblings.
            assert!(next <= HEIGHT_MAX, "a tree of more than {HEIGHT_MAX} levels");
            self.builders.push(Builder::new(next));
        }
        &mut self.builders[level]
    }

    pub(crate) fn leaves(&mut self) -> &mut Builder {
        &mut self.builders[0]
    }

    pub(crate) fn release(&mut self, page: PageRef) {
        self.pages_released += 1;
        self.sink.release(page);
    }

    /// Announces the items of an old page of this level; see [`Builder::open`].
    pub(crate) async fn open(&mut self, level: u8, page: PageRef, count: usize, low: &[u8]) -> Result<()> {
        let level = usize::from(level);
        // Unchanged pages are complete: they must not be mixed with this page.
        for below in 0..=level.min(self.builders.len() - 1) {
            if self.builders[below].unchanged().is_some() {
                self.close(below, false).await?;
            } else if self.builders[below].has_page() {
                break;
            }
        }
        for page in self.builder(level).open(page, count, low).into_iter().flatten() {
            self.release(page);
        }
        // The items waiting below come from the previous page; they will be mixed with this one.
        if self.builders[..level].iter().any(Builder::has_page) {
            self.touch(level);
        }
        Ok(())
    }

    /// Records a change of the old page that the pass reads at this level.
    pub(crate) fn touch(&mut self, level: usize) {
        if let Some(page) = self.builder(level).touch() {
            self.release(page);
        }
    }

    /// Appends an entry with the key `prefix` + `suffix`. An empty entry marks a key as absent within a lost range.
    pub(crate) async fn push_entry(&mut self, prefix: &[u8], suffix: &[u8], entry: &[u8]) -> Result<()> {
        if self.leaves().push(prefix, suffix, entry, u64::from(!entry.is_empty())) {
            self.write_first(0).await?;
        }
        Ok(())
    }

    /// Appends an old subtree, whose keys are not below `prefix` + `suffix`, to the pages of `level`. `payload` is the encoded child. The
    /// caller has closed all levels below.
    pub(crate) async fn push_subtree(
        &mut self,
        level: usize,
        prefix: &[u8],
        suffix: &[u8],
        payload: &[u8],
    ) -> Result<()> {
        let entries = Child::decode(payload).map_err(|damage| damage.at(PageRef::default()))?.entries;
        if self.builder(level).push(prefix, suffix, payload, entries) {
            self.write_first(level).await?;
        }
        Ok(())
    }

    /// Returns true if the first page of `level` must be written now.
    #[must_use]
    fn push_child(&mut self, level: usize, done: &Completed) -> bool {
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        done.child.encode(&mut payload);
        payload.extend_from_slice(&done.filter);
        if done.is_plain {
            Child::mark_plain(&mut payload);
        }
        let full = self.builder(level).push(&done.low, &[], &payload, done.child.entries);
        self.payload = payload;
        full
    }

    /// Writes the first page of `level` and adds it to the level above; continues upwards while pages become full.
    async fn write_first(&mut self, mut level: usize) -> Result<()> {
        loop {
            let done = self.complete_first(level).await?;
            level += 1;
            if !self.push_child(level, &done) {
                return Ok(());
            }
        }
    }

    /// Takes the first page of `level` out of its builder: writes it, or keeps the old page if nothing changed.
    async fn complete_first(&mut self, level: usize) -> Result<Completed> {
        let filter = self.filter_of_first(level);
        let is_plain = !filter.is_empty() && self.builders[0].first_payloads().all(is_plain);
        if let Some(page) = self.builders[level].unchanged() {
            let builder = &mut self.builders[level];
            let Sealed { low, entries, .. } = builder.sealed();
            builder.drop_first();
            // The page stays in the tree: the builder drops it without a release.
            let kept = builder.touch();
            assert!(kept == Some(page), "another page was kept");
            return Ok(Completed { low, child: Child { page, entries }, filter, is_plain });
        }
        self.touch(level);
        let stamp = Stamp { tree: self.tree, lsn: self.lsn, level: level as u8 };
        let Sealed { low, entries, replaces } = self.builders[level].encode(&mut self.draft, stamp);
        let page = self.sink.write(&mut self.draft, replaces).await?;
        assert!(replaces != Some(page), "a published page never changes (R6)");
        self.pages_written += 1;
        self.last_written = Some(page);
        self.builders[level].drop_first();
        self.touch(level + 1);
        Ok(Completed { low, child: Child { page, entries }, filter, is_plain })
    }

    /// The filter of the first page of `level`: empty above the leaves, and for a leaf with unknown keys.
    fn filter_of_first(&self, level: usize) -> Vec<u8> {
        if level > 0 || !self.filters || !self.builders[0].is_whole() {
            return Vec::new();
        }
        let hashes = || self.builders[0].first_keys().map(|key| filter::hash_of(self.tree.device, key));
        let is_broken = injected(Bug::KeyNotInFilter);
        let filter = filter::filter_of(hashes().skip(usize::from(is_broken)));
        debug_assert!(
            is_broken || hashes().all(|hash| filter::may_contain(&filter, hash)),
            "a filter denies a key of its leaf (INV-29)"
        );
        filter
    }

    /// Returns true if closing all levels below `level` leaves no page that should be merged with a neighbour.
    pub(crate) fn can_close_below(&self, level: usize) -> bool {
        let mut from_below = false;
        for builder in self.builders.iter().take(level) {
            if !builder.has_page() && !from_below {
                continue;
            }
            if !builder.is_decent() {
                return false;
            }
            from_below = true;
        }
        true
    }

    /// Closes all levels below `level`, so that an old subtree may follow there.
    pub(crate) async fn close_below(&mut self, level: usize) -> Result<()> {
        for below in 0..level {
            self.close(below, false).await?;
        }
        assert!(
            self.builders.iter().take(level).all(|builder| !builder.has_page()),
            "keys would be out of order"
        );
        Ok(())
    }

    /// Writes all waiting items of `level`. With `at_end` nothing follows in the tree.
    pub(crate) async fn close(&mut self, level: usize, at_end: bool) -> Result<()> {
        self.builder(level).balance(at_end);
        while self.builders[level].has_page() {
            self.write_first(level).await?;
        }
        Ok(())
    }

    /// Writes the remaining items and returns the new root.
    pub(crate) async fn finish(&mut self) -> Result<Root> {
        let mut level = 0;
        let root = loop {
            let top = self.builders.iter().skip(level + 1).all(|builder| !builder.has_page());
            if top && !self.builder(level).has_page() {
                assert!(level == 0, "a closed level hands its pages to the next");
                break Root::EMPTY;
            }
            if top
                && level > 0
                && let Some(child) = self.builders[level].only_child()
            {
                assert!(level <= usize::from(HEIGHT_MAX), "an opening accepts the height of a tree");
                break Root { page: Some(child.page), height: level as u8, entries: child.entries };
            }
            self.close(level, true).await?;
            level += 1;
        };
        // These pages belong to levels that the new tree does not have, or lost all their children.
        for level in 0..self.builders.len() {
            self.touch(level);
        }
        Ok(root)
    }
}
