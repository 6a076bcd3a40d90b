//! The speed of the tree alone: pages in memory, one thread. `cargo bench -p shoal-tree`.
//!
//! Times are processor times of the thread, if the system has them, so that a busy machine disturbs less.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use shoal_base::task::block_on;
use shoal_base::{BLOCK_BYTES, Lsn, SeededEntropy, TabletId};
use shoal_common::error::{Error, Result};
use shoal_tree::*;

const TREE: Tree = Tree { device: 1, tablet: TabletId(0) };
const ENTRIES: u64 = 1_000_000;

type Bytes = Arc<[u8; BLOCK_BYTES]>;

#[derive(Default)]
struct Memory(RwLock<Vec<Option<Bytes>>>);

impl PageSource for Memory {
    type Page = Bytes;

    async fn page(&self, page: PageRef, _: u8, _: ReadHint) -> Result<Bytes> {
        let pages = self.0.read();
        pages
            .get(page.block as usize)
            .and_then(Clone::clone)
            .ok_or_else(|| Error::Corrupt { what: "freed".to_owned(), block: page.block })
    }

    fn prefetch(&self, _: &[PageRef], _: u8, _: ReadHint) {}
}

struct Sink<'a>(&'a Memory, Vec<PageRef>);

impl PageSink for Sink<'_> {
    async fn write(&mut self, draft: &mut Draft, _: Option<PageRef>) -> Result<PageRef> {
        let mut pages = self.0.0.write();
        let (page, bytes) = draft.seal(pages.len() as u64);
        pages.push(Some(Arc::new(*bytes)));
        Ok(page)
    }

    fn release(&mut self, page: PageRef) {
        self.1.push(page);
    }
}

type Op = (Vec<u8>, Option<[u8; 48]>);

struct Plain;

impl Merge for Plain {
    type Op = Op;

    fn key<'a>(&self, op: &'a Op) -> &'a [u8] {
        &op.0
    }

    fn merge(&mut self, op: &Op, _: Old<'_>, new: &mut Vec<u8>) -> Result<Fate> {
        let Some(entry) = &op.1 else { return Ok(Fate::Delete) };
        new.extend_from_slice(entry);
        Ok(Fate::Put)
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("default\0photos/{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes()
}

fn apply(memory: &Memory, root: Root, ops: &[Op]) -> Applied {
    let mut sink = Sink(memory, Vec::new());
    let apply =
        Apply { tree: TREE, lsn: Lsn(1), source: memory, sink: &mut sink, merge: &mut Plain, filters: true };
    let applied = block_on(apply.run(root, ops)).expect("pages in memory do not fail");
    let mut pages = memory.0.write();
    for page in sink.1 {
        pages[page.block as usize] = None;
    }
    applied
}

fn sorted(numbers: impl Iterator<Item = u64>, entry: Option<[u8; 48]>) -> Vec<Op> {
    let mut ops: Vec<Op> = numbers.map(|number| (key(number), entry)).collect();
    ops.sort_by(|a, b| a.0.cmp(&b.0));
    ops.dedup_by(|a, b| a.0 == b.0);
    ops
}

#[derive(Default)]
struct Quiet;

impl Visitor for Quiet {
    fn page(&mut self, _: PageRef, _: u8, _: usize) {}
    fn entry(&mut self, _: &[u8], _: &[u8], _: PageRef) {}
    fn lost(&mut self, _: PageRef, _: &[u8], _: Option<&[u8]>) {}
    fn problem(&mut self, problem: Problem) {
        panic!("{problem:?}");
    }
    async fn leaf_done(&mut self) -> Result<()> {
        Ok(())
    }
}

fn walk(memory: &Memory, root: Root) -> Walked {
    block_on(TREE.walk(memory, root, &mut Quiet)).expect("the visitor does not fail")
}

struct Stopwatch(Instant, Option<Duration>);

impl Stopwatch {
    fn start() -> Self {
        Self(Instant::now(), on_processor())
    }

    fn report(&self, what: &str, count: u64, more: &str) {
        let spent = match (self.1, on_processor()) {
            (Some(start), Some(end)) => end - start,
            _ => self.0.elapsed(),
        };
        let seconds = spent.as_secs_f64();
        println!(
            "{what:<44} {:>12.0}/s  {:>8.0} ns  {more}",
            count as f64 / seconds,
            seconds * 1e9 / count as f64
        );
    }
}

fn on_processor() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

fn lookups(memory: &Memory, root: Root, what: &str, numbers: impl Fn(&SeededEntropy) -> u64, found: bool) {
    let random = SeededEntropy::new(1);
    let keys: Vec<Vec<u8>> = (0..ENTRIES).map(|_| key(numbers(&random))).collect();
    let watch = Stopwatch::start();
    for key in &keys {
        let entry = block_on(TREE.lookup(memory, root, &Probe::expected(TREE, key)))
            .expect("pages in memory do not fail");
        assert_eq!(black_box(entry).is_some(), found);
    }
    watch.report(what, ENTRIES, "");
}

fn main() {
    let memory = Memory::default();
    let ops = sorted(0..ENTRIES, Some([1; 48]));
    let watch = Stopwatch::start();
    let Applied { root, pages_written, .. } = apply(&memory, Root::EMPTY, &ops);
    watch.report("bulk load", ENTRIES, &format!("{pages_written} pages, {} levels", root.height));

    lookups(&memory, root, "lookup, present", |random| random.below(ENTRIES), true);
    lookups(&memory, root, "lookup, absent", |random| ENTRIES + random.below(ENTRIES), false);

    let watch = Stopwatch::start();
    let mut cursor = Cursor::new(TREE, &memory, root, b"", None);
    let mut seen = 0;
    block_on(async {
        while let Some(entry) = cursor.next().await.expect("pages in memory do not fail") {
            black_box(entry.key);
            seen += 1;
        }
    });
    watch.report("scan", seen, "");
    let watch = Stopwatch::start();
    let walked = walk(&memory, root);
    watch.report("walk with all checks", walked.entries, "");

    let random = SeededEntropy::new(2);
    let mut root = root;
    for (what, batch, rounds) in [
        ("apply, 100 in a batch", 100, 100),
        ("apply, 10,000 in a batch", 10_000, 20),
        ("apply, 250,000 in a batch", 250_000, 2),
    ] {
        for (kind, base, entry) in [
            ("updates", 0, Some([2; 48])),
            ("inserts", u64::MAX / 2, Some([3; 48])),
            ("deletes of nothing", u64::MAX / 4, None),
        ] {
            let span = if base == 0 { ENTRIES } else { u64::MAX / 4 };
            let batches: Vec<Vec<Op>> =
                (0..rounds).map(|_| sorted((0..batch).map(|_| base + random.below(span)), entry)).collect();
            let (mut count, mut written) = (0, 0);
            let watch = Stopwatch::start();
            for ops in &batches {
                let applied = apply(&memory, root, ops);
                root = applied.root;
                count += ops.len() as u64;
                written += applied.pages_written;
            }
            let pages = format!("{:.2} pages an operation", written as f64 / count as f64);
            watch.report(&format!("{what}: {kind}"), count, &pages);
        }
        let walked = walk(&memory, root);
        let fill = walked.leaf_bytes as f64 / (walked.leaves * BLOCK_BYTES as u64) as f64;
        println!("  {} entries in {} leaves, {:.0} % full", walked.entries, walked.leaves, fill * 100.0);
    }
}
