//! In-memory pages, for the tests of the tree: a source that verifies, counts and fails on demand, and a sink.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shoal_base::checksum::crc32c;
use shoal_base::sync::Mutex;
use shoal_base::{BLOCK_BYTES, Lsn, TabletId};
use shoal_common::error::Error;
use shoal_device::DeviceError;

use crate::*;

pub(crate) const TREE: Tree = Tree { device: 0xD0_5EA1, tablet: TabletId(7) };

/// The key of the entry with this number.
pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("photos/{number:012}").into_bytes()
}

type Bytes = Arc<[u8; BLOCK_BYTES]>;

#[derive(Default)]
struct Stored {
    pages: BTreeMap<u64, Bytes>,
    next_block: u64,
    reads: Vec<PageRef>,
    prefetched: Vec<PageRef>,
    batches: usize,
    corrupt: BTreeSet<u64>,
    failing: BTreeSet<u64>,
    cached: BTreeSet<u64>,
    unverified: bool,
}

/// All pages that were written and not freed.
#[derive(Default)]
pub(crate) struct Memory(Mutex<Stored>);

impl Memory {
    pub(crate) fn blocks(&self) -> BTreeSet<u64> {
        self.0.lock().pages.keys().copied().collect()
    }

    /// Makes the page count as in memory from now on.
    pub(crate) fn cache(&self, block: u64) {
        self.0.lock().cached.insert(block);
    }

    pub(crate) fn is_cached(&self, block: u64) -> bool {
        self.0.lock().cached.contains(&block)
    }

    pub(crate) fn corrupt(&self, block: u64) {
        self.0.lock().corrupt.insert(block);
    }

    /// Makes damaged pages readable again, if they are still stored.
    pub(crate) fn heal(&self) {
        self.0.lock().corrupt.clear();
    }

    pub(crate) fn fail(&self, block: u64, fails: bool) {
        let mut stored = self.0.lock();
        if fails {
            stored.failing.insert(block)
        } else {
            stored.failing.remove(&block)
        };
    }

    /// Takes the pages read and the pages prefetched since the last call.
    pub(crate) fn take_reads(&self) -> (Vec<PageRef>, Vec<PageRef>) {
        let mut stored = self.0.lock();
        (std::mem::take(&mut stored.reads), std::mem::take(&mut stored.prefetched))
    }

    pub(crate) fn batches(&self) -> usize {
        self.0.lock().batches
    }

    /// Changes stored bytes without a new checksum; from now on pages are not verified.
    pub(crate) fn vandalise(&self, block: u64, change: impl FnOnce(&mut [u8; BLOCK_BYTES])) {
        let mut stored = self.0.lock();
        stored.unverified = true;
        if let Some(page) = stored.pages.get_mut(&block) {
            change(Arc::make_mut(page));
        }
    }

    fn read(&self, page: PageRef) -> Result<Bytes> {
        let mut stored = self.0.lock();
        stored.reads.push(page);
        if stored.failing.contains(&page.block) {
            let abandoned = DeviceError::Abandoned { op: "read", block: page.block };
            return Err(Error::Io(abandoned));
        }
        let damaged = |what: &str| Err(Error::Corrupt { what: what.to_owned(), block: page.block });
        let Some(bytes) = stored.pages.get(&page.block) else { return damaged("a freed page was read") };
        let sound = stored.unverified || crc32c(&bytes[4..]) == page.crc;
        if stored.corrupt.contains(&page.block) || !sound { damaged("checksum") } else { Ok(bytes.clone()) }
    }
}

impl PageSource for Memory {
    type Page = Bytes;

    fn cached(&self, page: PageRef, _level: u8, _hint: ReadHint) -> Option<Bytes> {
        let stored = self.0.lock();
        stored.cached.get(&page.block).and_then(|block| stored.pages.get(block)).cloned()
    }

    async fn page(&self, page: PageRef, _level: u8, _hint: ReadHint) -> Result<Bytes> {
        self.read(page)
    }

    fn prefetch(&self, pages: &[PageRef], _level: u8, _hint: ReadHint) {
        let mut stored = self.0.lock();
        stored.prefetched.extend_from_slice(pages);
        stored.batches += 1;
    }
}

pub(crate) struct MemorySink<'a> {
    memory: &'a Memory,
    pub written: Vec<PageRef>,
    pub replaced: Vec<Option<PageRef>>,
    pub released: Vec<PageRef>,
}

impl<'a> MemorySink<'a> {
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Self { memory, written: Vec::new(), replaced: Vec::new(), released: Vec::new() }
    }

    /// Frees the pages that the new tree does not have. Fails on a page that was released twice or never written.
    pub(crate) fn free_released(&self) {
        let mut stored = self.memory.0.lock();
        for page in &self.released {
            assert!(stored.pages.remove(&page.block).is_some(), "{page:?} was released twice");
        }
    }
}

impl PageSink for MemorySink<'_> {
    async fn write(&mut self, draft: &mut Draft, replaces: Option<PageRef>) -> Result<PageRef> {
        let mut stored = self.memory.0.lock();
        stored.next_block += 1;
        let block = stored.next_block;
        let (page, bytes) = draft.seal(block);
        stored.pages.insert(block, Arc::new(*bytes));
        self.written.push(page);
        self.replaced.push(replaces);
        Ok(page)
    }

    fn release(&mut self, page: PageRef) {
        self.released.push(page);
    }
}

/// An operation of the tests: a put of these bytes, or a delete.
pub(crate) type Op = (Vec<u8>, Option<Vec<u8>>);

/// The state that a merge received for a key; `None`: unknown, because the page was lost.
type Known = Option<Option<Vec<u8>>>;

/// Entries in order.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Applies the operations, and records the states that it received.
#[derive(Default)]
pub(crate) struct Plain {
    pub seen: Vec<(Vec<u8>, Known)>,
    /// A put that equals the old entry changes nothing.
    pub keep_equal: bool,
}

impl Merge for Plain {
    type Op = Op;

    fn key<'a>(&self, op: &'a Op) -> &'a [u8] {
        &op.0
    }

    fn merge(&mut self, op: &Op, old: Old<'_>, new: &mut Vec<u8>) -> Result<Fate> {
        assert!(new.is_empty());
        let known = match old {
            Old::Absent => Some(None),
            Old::Present(entry) => Some(Some(entry.to_vec())),
            Old::Lost => None,
        };
        self.seen.push((op.0.clone(), known));
        match &op.1 {
            Some(entry) if self.keep_equal && old == Old::Present(entry) => Ok(Fate::Stay),
            Some(entry) => {
                new.extend_from_slice(entry);
                Ok(Fate::Put)
            }
            None => Ok(Fate::Delete),
        }
    }
}

/// A tree in memory and the map that it should equal.
pub(crate) struct Checked {
    pub memory: Memory,
    pub root: Root,
    pub model: BTreeMap<Vec<u8>, Vec<u8>>,
    pub lsn: u64,
}

/// The effects of an apply on the store.
pub(crate) struct Step {
    pub applied: Applied,
    pub written: Vec<PageRef>,
    pub replaced: Vec<Option<PageRef>>,
    pub released: Vec<PageRef>,
}

impl Checked {
    pub(crate) fn new() -> Self {
        Self { memory: Memory::default(), root: Root::EMPTY, model: BTreeMap::new(), lsn: 0 }
    }

    /// Applies the operations to tree and model; the last operation for a key wins.
    pub(crate) fn apply(&mut self, ops: impl IntoIterator<Item = Op>) -> Step {
        self.apply_with(ops, &mut Plain::default())
    }

    pub(crate) fn apply_with(&mut self, ops: impl IntoIterator<Item = Op>, merge: &mut Plain) -> Step {
        let ops: BTreeMap<_, _> = ops.into_iter().collect();
        let ops: Vec<Op> = ops.into_iter().collect();
        self.lsn += 1;
        let mut sink = MemorySink::new(&self.memory);
        let apply = Apply {
            tree: TREE,
            lsn: Lsn(self.lsn),
            source: &self.memory,
            sink: &mut sink,
            merge,
            filters: true,
        };
        let applied = shoal_base::task::block_on(apply.run(self.root, &ops)).unwrap();
        assert_eq!(applied.pages_written, sink.written.len() as u64);
        assert_eq!(applied.pages_released, sink.released.len() as u64);
        sink.free_released();
        let MemorySink { written, replaced, released, .. } = sink;
        self.root = applied.root;
        for (key, entry) in ops {
            match entry {
                Some(entry) => self.model.insert(key, entry),
                None => self.model.remove(&key),
            };
        }
        Step { applied, written, replaced, released }
    }

    pub(crate) fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found =
            shoal_base::task::block_on(TREE.lookup(&self.memory, self.root, &Probe::expected(TREE, key)))?;
        Ok(found.map(|found| found.to_vec()))
    }

    pub(crate) fn walk(&self) -> (Walked, Seen) {
        let mut seen = Seen::default();
        let walked = shoal_base::task::block_on(TREE.walk(&self.memory, self.root, &mut seen)).unwrap();
        (walked, seen)
    }

    /// Returns the entries from `start` and below `end`, and the number of damaged places.
    pub(crate) fn scan(&self, start: &[u8], end: Option<&[u8]>) -> (Entries, usize) {
        let mut cursor = Cursor::new(TREE, &self.memory, self.root, start, end);
        let mut entries = Vec::new();
        let mut damaged = 0;
        shoal_base::task::block_on(async {
            loop {
                match cursor.next().await {
                    Ok(Some(entry)) => {
                        assert_eq!(entry.entry, &*entry.found());
                        entries.push((entry.key.to_vec(), entry.entry.to_vec()));
                    }
                    Ok(None) => return,
                    Err(Error::Corrupt { .. }) => damaged += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        (entries, damaged)
    }

    /// Checks that tree and model are equal, and that the store holds exactly the tree's pages.
    pub(crate) fn verify(&self) -> Walked {
        let (walked, seen) = self.walk();
        assert_eq!(seen.problems, [], "the walk finds nothing wrong");
        assert!(seen.lost.is_empty());
        assert!(seen.entries.iter().map(|(key, entry)| (key, entry)).eq(self.model.iter()), "entries differ");
        assert_eq!(walked.entries, self.model.len() as u64);
        assert_eq!(self.root.entries, self.model.len() as u64);
        assert_eq!(
            seen.pages,
            self.memory.blocks(),
            "released pages are the old ones that are not used any more"
        );
        walked
    }
}

/// A visitor that records everything.
#[derive(Default)]
pub(crate) struct Seen {
    pub pages: BTreeSet<u64>,
    pub leaves: Vec<PageRef>,
    pub inner: Vec<PageRef>,
    pub used: BTreeMap<u64, usize>,
    pub entries: Entries,
    pub lost: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub problems: Vec<Problem>,
    pub leaves_done: usize,
}

impl Visitor for Seen {
    fn page(&mut self, page: PageRef, level: u8, used_bytes: usize) {
        assert!(self.pages.insert(page.block), "{page:?} is reached twice");
        self.used.insert(page.block, used_bytes);
        if level == 0 {
            self.leaves.push(page)
        } else {
            self.inner.push(page)
        };
    }

    fn entry(&mut self, key: &[u8], entry: &[u8], _page: PageRef) {
        self.entries.push((key.to_vec(), entry.to_vec()));
    }

    fn lost(&mut self, _page: PageRef, low: &[u8], high: Option<&[u8]>) {
        self.lost.push((low.to_vec(), high.map(<[u8]>::to_vec)));
    }

    fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    async fn leaf_done(&mut self) -> Result<()> {
        self.leaves_done += 1;
        Ok(())
    }
}
