//! One hostile page as a whole tree: every reader and the apply read it (`crate::testing::hostile`).

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_base::checksum::crc32c;
use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, Lsn, TabletId};
use shoal_common::error::{Error, Result};

use crate::filter::Probe;
use crate::format::Header;
use crate::{
    Apply, Cursor, Draft, Fate, HEIGHT_MAX, Merge, Old, PageRef, PageSink, PageSource, Problem, ReadHint,
    Root, Tree, Visitor,
};

type Page = [u8; BLOCK_BYTES];
/// More entries than one page can hold.
const ENTRIES_MAX: usize = 5_000;
/// First block of new pages: no page of an input names one of them.
const NEW_BLOCKS: u64 = 1 << 46;

/// The pages of the tree: the hostile page, and the pages that an apply writes.
#[derive(Clone, Default)]
struct Pages(BTreeMap<u64, Arc<Page>>);

impl PageSource for Pages {
    type Page = Arc<Page>;

    async fn page(&self, page: PageRef, _level: u8, _hint: ReadHint) -> Result<Arc<Page>> {
        let damaged = || Error::Corrupt { what: "there is no such page".into(), block: page.block };
        let bytes = self.0.get(&page.block).ok_or_else(damaged)?;
        if crc32c(&bytes[4..]) == page.crc { Ok(bytes.clone()) } else { Err(damaged()) }
    }

    fn prefetch(&self, _pages: &[PageRef], _level: u8, _hint: ReadHint) {}
}

impl PageSink for Pages {
    async fn write(&mut self, draft: &mut Draft, _replaces: Option<PageRef>) -> Result<PageRef> {
        let (page, bytes) = draft.seal(NEW_BLOCKS + self.0.len() as u64);
        self.0.insert(page.block, Arc::new(*bytes));
        Ok(page)
    }

    fn release(&mut self, _page: PageRef) {}
}

/// A visitor that records everything.
#[derive(Default)]
struct Seen {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    lost: usize,
    problems: Vec<Problem>,
}

impl Visitor for Seen {
    fn page(&mut self, _page: PageRef, _level: u8, _used_bytes: usize) {}

    fn entry(&mut self, key: &[u8], entry: &[u8], _page: PageRef) {
        self.entries.insert(key.to_vec(), entry.to_vec());
    }

    fn lost(&mut self, _page: PageRef, _low: &[u8], _high: Option<&[u8]>) {
        self.lost += 1;
    }

    fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    async fn leaf_done(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A put of these bytes; a delete if there are none.
type Op = (Vec<u8>, Vec<u8>);

struct Plain;

impl Merge for Plain {
    type Op = Op;

    fn key<'a>(&self, op: &'a Op) -> &'a [u8] {
        &op.0
    }

    fn merge(&mut self, op: &Op, _old: Old<'_>, new: &mut Vec<u8>) -> Result<Fate> {
        new.extend_from_slice(&op.1);
        Ok(if op.1.is_empty() { Fate::Delete } else { Fate::Put })
    }
}

/// Runs every reader and the apply over `input`, the bytes of the page.
pub fn page(input: &[u8]) {
    let mut bytes = [0; BLOCK_BYTES];
    let length = input.len().min(BLOCK_BYTES);
    bytes[..length].copy_from_slice(&input[..length]);
    let crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    let Ok(header) = Header::read(&bytes) else { return };
    if header.block >= NEW_BLOCKS || header.level >= HEIGHT_MAX {
        return;
    }
    let tree = Tree { device: header.device, tablet: TabletId(header.tablet) };
    let page = PageRef { block: header.block, crc };
    let pages = Pages(BTreeMap::from([(header.block, Arc::new(bytes))]));
    let entries = if header.level == 0 { u64::from(header.count) } else { 0 };
    let root = Root { page: Some(page), height: header.level + 1, entries };
    let before = walk(&tree, &pages, root);
    read(&tree, &pages, root, &before);
    apply(&tree, pages, root, before);
}

fn walk(tree: &Tree, pages: &Pages, root: Root) -> Seen {
    let mut seen = Seen::default();
    assert!(block_on(tree.walk(pages, root, &mut seen)).is_ok(), "a walk covers everything");
    seen
}

fn read(tree: &Tree, pages: &Pages, root: Root, seen: &Seen) {
    let is_sound = seen.problems.is_empty();
    for (key, entry) in &seen.entries {
        let found = block_on(tree.lookup(pages, root, &Probe::expected(*tree, key)));
        // Ignores empty entries: in a leaf marked "base lost" they mark the key as absent.
        if is_sound && !entry.is_empty() {
            assert_eq!(found.ok().flatten().as_deref(), Some(&entry[..]), "a sound page has its keys");
        }
    }
    for key in [&b""[..], &[0xFF; 1200], b"object"] {
        let _ = block_on(tree.lookup(pages, root, &Probe::expected(*tree, key)));
    }
    let mut cursor = Cursor::new(*tree, pages, root, b"", None);
    let mut steps = 0;
    while let Ok(Some(_)) | Err(_) = block_on(cursor.next()).map(|entry| entry.map(|entry| entry.key.len())) {
        steps += 1;
        assert!(steps < ENTRIES_MAX, "a scan ends");
    }
}

/// Checks that an apply replaces damaged pages and leaves a tree without problems.
fn apply(tree: &Tree, mut pages: Pages, root: Root, before: Seen) {
    let first: Vec<Vec<u8>> =
        before.entries.keys().take(2).filter(|key| key.len() <= 1_000).cloned().collect();
    let mut ops: BTreeMap<Vec<u8>, Vec<u8>> = first.into_iter().map(|key| (key, Vec::new())).collect();
    for (key, bytes) in [(&b"a"[..], 9), (b"object", 900), (b"object-2", 1), (b"\xFFz", 1_200)] {
        ops.insert(key.to_vec(), vec![7; bytes]);
    }
    let list: Vec<Op> = ops.iter().map(|(key, entry)| (key.clone(), entry.clone())).collect();
    let source = pages.clone();
    let apply = Apply {
        tree: *tree,
        lsn: Lsn(9),
        source: &source,
        sink: &mut pages,
        merge: &mut Plain,
        filters: true,
    };
    let Ok(applied) = block_on(apply.run(root, &list)) else { return };
    if !before.problems.is_empty() || before.lost > 0 {
        return;
    }
    let after = walk(tree, &pages, applied.root);
    assert_eq!(after.problems, []);
    let mut expected = before.entries;
    for (key, entry) in ops {
        if entry.is_empty() {
            expected.remove(&key);
        } else {
            expected.insert(key, entry);
        }
    }
    assert_eq!(after.entries, expected);
}
