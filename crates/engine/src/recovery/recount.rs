//! The liveness of packed runs, counted from the tree itself: for `shoal check`, and for a repair, which corrects it.
//!
//! Memory: an entry for each run, like check's list of owners. No other part of the engine needs that much.

use std::collections::BTreeMap;

use shoal_base::{Run, TabletId, blocks_for};
use shoal_common::error::Result;
use shoal_common::key::is_reserved;
use shoal_pool::Pool;
use shoal_tablets::checkpoint::checkpointer::Checkpointer;
use shoal_tablets::checkpoint::new_tree::NewTree;
use shoal_tablets::gc::liveness::LivenessOps;
use shoal_tablets::tablet::tree_io::{PoolPages, tree_of};
use shoal_tablets::tablet::view::Tablet;
use shoal_tree::layers::Trees;
use shoal_tree::layers::settled::Settled;
use shoal_tree::{PageRef, Problem, Tree, Visitor};
use shoal_value::packed::{RUN_BLOCKS_MAX, RunEntry, Totals, block_of_run_key};
use shoal_value::{Entry, Home, decode_leaf_entry};

/// Values of one run that a tree names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Alive {
    values: u64,
    bytes: u64,
    /// The end of the last value in the run.
    end: u64,
}

/// The counts of a walk over one tablet.
#[derive(Debug, Default)]
pub(crate) struct TreeCount {
    alive: BTreeMap<u64, Alive>,
    /// The liveness that the tree holds.
    runs: BTreeMap<u64, RunEntry>,
    value_bytes: u64,
    expiring: u64,
    /// The difference that settling all entries would make.
    pub unsettled: Settled,
}

impl TreeCount {
    /// Counts the entry of an object.
    pub(crate) fn object(&mut self, entry: &Entry) {
        self.value_bytes += entry.value_bytes;
        self.expiring += u64::from(entry.end.is_some());
        if let Home::Packed { run, at, .. } = entry.home {
            let alive = self.alive.entry(run).or_default();
            alive.values += 1;
            alive.bytes += entry.stored_bytes();
            alive.end = alive.end.max(u64::from(at) + entry.stored_bytes());
        }
    }

    /// Counts the entry of a reserved key; returns the problem if there is one.
    pub(crate) fn reserved(&mut self, key: &[u8], entry: &[u8]) -> Option<&'static str> {
        match (block_of_run_key(key), RunEntry::decode(entry)) {
            (Some(block), Ok(entry)) => {
                self.runs.insert(block, entry);
                None
            }
            (Some(_), Err(_)) => Some("the liveness of a packed run cannot be read"),
            (None, _) => Some("a reserved key that this program does not know cannot be read"),
        }
    }

    /// The runs of the tree's liveness, with their entries.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Run, &RunEntry)> {
        self.runs.iter().map(|(&block, entry)| (entry.run(block), entry))
    }

    /// Blocks of live values whose run has no entry: its page was lost.
    pub(crate) fn orphans(&self) -> impl Iterator<Item = Run> {
        let orphans = self.alive.iter().filter(|(block, _)| !self.runs.contains_key(block));
        orphans.filter_map(|(&block, alive)| Some(Run::new(block, blocks_of(alive)?)))
    }

    /// The totals that the superblock should have if the liveness is right.
    pub(crate) fn totals(&self) -> Totals {
        let value_bytes = self.value_bytes.saturating_add_signed(-self.unsettled.bytes);
        let mut totals = Totals { value_bytes, expiring: Some(self.expiring), ..Totals::default() };
        self.runs.values().for_each(|entry| totals.add_run(entry));
        totals
    }

    /// The differences between liveness and tree: a block, and a description.
    pub(crate) fn differences(&self) -> Vec<(u64, String)> {
        let mut out = Vec::new();
        for (&block, entry) in &self.runs {
            let (run, alive) = (entry.run(block), self.alive_in(block));
            let counted = (u64::from(entry.live_values), u64::from(entry.live_bytes));
            if counted != (alive.values, alive.bytes) {
                out.push((
                    block,
                    format!(
                        "the liveness of the packed run {run} counts {} live bytes of {} values; the tree names {} of {}",
                        counted.1, counted.0, alive.bytes, alive.values
                    ),
                ));
            }
            if alive.end > u64::from(entry.value_bytes) {
                out.push((block, format!("a value is after the values of the packed run {run}")));
            }
            if entry.uncertain {
                let what =
                    "is not trusted: a page of the tree cannot be read, or could not when it was counted";
                out.push((block, format!("the liveness of the packed run {run} {what}")));
            }
        }
        for (&block, alive) in self.alive.iter().filter(|(block, _)| !self.runs.contains_key(block)) {
            let what = "values are alive in the packed run at block";
            out.push((
                block,
                format!("{} {what} {block}, which the recorded liveness does not name", alive.values),
            ));
        }
        out
    }

    fn alive_in(&self, block: u64) -> Alive {
        self.alive.get(&block).copied().unwrap_or_default()
    }

    /// The changes that correct the liveness. If the tree is not `whole` (pages cannot be read), differing runs become
    /// uncertain, and nothing is freed.
    fn corrections(&self, whole: bool) -> LivenessOps {
        let mut ops = LivenessOps::default();
        for (&block, entry) in &self.runs {
            let alive = self.alive_in(block);
            let fits = alive.end <= u64::from(entry.value_bytes) && alive.values <= u64::from(entry.values);
            let same =
                (alive.values, alive.bytes) == (u64::from(entry.live_values), u64::from(entry.live_bytes));
            let right = RunEntry {
                live_values: alive.values.min(u64::from(u32::MAX)) as u32,
                live_bytes: alive.bytes.min(u64::from(u32::MAX)) as u32,
                uncertain: !fits || !whole && (!same || entry.uncertain),
                fixed: false,
                ..*entry
            };
            debug_assert!(
                right.uncertain || right.live_values <= right.values,
                "an account that cannot be is trusted: {right:?}"
            );
            if right != *entry {
                ops.set(block, right);
            }
        }
        for (&block, alive) in self.alive.iter().filter(|(block, _)| !self.runs.contains_key(block)) {
            let Some(blocks) = blocks_of(alive) else { continue };
            let (values, bytes) = (alive.values as u32, alive.bytes as u32);
            // The place of its footer is unknown: the run cannot be moved.
            let entry = RunEntry {
                blocks,
                values,
                value_bytes: alive.end as u32,
                live_values: values,
                live_bytes: bytes,
                uncertain: !whole || alive.bytes > alive.end,
                fixed: true,
            };
            ops.set(block, entry);
        }
        ops
    }
}

/// Blocks from a run's start to the end of its last live value; `None` if no run is that long.
fn blocks_of(alive: &Alive) -> Option<u32> {
    u32::try_from(blocks_for(alive.end)).ok().filter(|blocks| (1..=RUN_BLOCKS_MAX).contains(blocks))
}

/// Counts a tree without reading any value. Lost ranges stay lost: none of their values is alive.
#[derive(Default)]
struct Recount {
    count: TreeCount,
    unreadable: u64,
}

impl Visitor for Recount {
    fn entry(&mut self, key: &[u8], entry: &[u8], _page: PageRef) {
        if is_reserved(key) {
            self.unreadable += u64::from(self.count.reserved(key, entry).is_some());
            return;
        }
        match decode_leaf_entry(entry) {
            Ok((_, entry)) => self.count.object(&entry),
            Err(_) => self.unreadable += 1,
        }
    }

    fn problem(&mut self, _problem: Problem) {
        self.unreadable += 1;
    }
}

/// The result of counting a tablet.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Keys that exist, as far as the pages can be read, by the estimates of unsettled entries.
    live: u64,
    unsettled: u64,
    /// The changes that correct the liveness of packed runs.
    corrections: LivenessOps,
    totals: Totals,
}

impl Counted {
    /// The result of a walk that counted `count`, and `live` keys by estimates. `is_whole`: it could read all pages and entries.
    pub(crate) fn new(count: &TreeCount, live: u64, is_whole: bool) -> Self {
        let unsettled = count.unsettled.entries;
        Self { live, unsettled, corrections: count.corrections(is_whole), totals: count.totals() }
    }
}

/// Counts the live values of a tablet's packed runs and corrects their liveness. Returns the number of wrong runs.
/// A repair calls this before anything is applied. Damage hides `hidden` keys of the tablet, which still count. `known`: the result
/// of a walk over these trees since which nothing became readable; otherwise they are walked now.
///
/// # Errors
/// As an apply.
pub(crate) async fn recount_tablet(
    checkpointer: &Checkpointer,
    tablet: &Tablet,
    hidden: u64,
    known: Option<Counted>,
) -> Result<usize> {
    let _turn = checkpointer.applier.turn().await;
    checkpointer.log.poison.check()?;
    let view = tablet.view();
    let counted = match known {
        Some(counted) => counted,
        None => count_now(checkpointer, tablet.id, &view.trees).await?,
    };
    let live = counted.live + hidden;
    let (ops, totals) = (counted.corrections, counted.totals);
    let wrong = ops.len();
    let is_settled = counted.unsettled == view.trees.layers.unsettled;
    if ops.is_empty() && totals == view.totals && live == view.trees.live() && is_settled {
        return Ok(0);
    }
    let mut new = NewTree::new(view.trees.with_counted(live, counted.unsettled), view.applied, totals);
    checkpointer.merge_liveness(tablet, &mut new, checkpointer.unread(), ops).await?;
    checkpointer.publish_tree(tablet, new).await?;
    Ok(wrong)
}

/// Walks over the trees of a tablet and counts. Liveness under unreadable pages becomes uncertain, so pages remembered as damaged are
/// read again first.
async fn count_now(checkpointer: &Checkpointer, id: TabletId, trees: &Trees) -> Result<Counted> {
    checkpointer.pool.forget_all_damage();
    let (count, live, is_whole) =
        count_trees(&checkpointer.pool, tree_of(checkpointer.identity, id), trees).await?;
    Ok(Counted::new(&count, live, is_whole))
}

/// Walks over trees; returns the counts, the number of keys by estimates, and true if all pages and entries could be read.
///
/// # Errors
/// None of the device: damage and failed reads make the trees not whole.
pub(crate) async fn count_trees(pool: &Pool, tree: Tree, trees: &Trees) -> Result<(TreeCount, u64, bool)> {
    let mut recount = Recount::default();
    let walked = trees.walk(tree, &PoolPages::new(pool).of_pass(), &mut recount).await?;
    recount.count.unsettled = walked.unsettled;
    Ok((recount.count, walked.counted(), recount.unreadable == 0))
}

#[cfg(test)]
mod tests {
    use shoal_value::packed::run_key;

    use super::*;
    use crate::testing::fixtures::entry;

    fn packed(run: u64, at: u32, bytes: u64) -> Entry {
        entry(bytes, Home::Packed { run, at, checksum: 0 })
    }

    fn count(live_values: u32, live_bytes: u32) -> (TreeCount, RunEntry) {
        let entry = RunEntry {
            blocks: 4,
            values: 4,
            value_bytes: 12_000,
            live_values,
            live_bytes,
            uncertain: false,
            fixed: false,
        };
        let mut count = TreeCount::default();
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        assert_eq!(count.reserved(&run_key(70), &bytes), None);
        count.object(&packed(70, 0, 3_000));
        count.object(&packed(70, 6_000, 2_000));
        (count, entry)
    }

    #[test]
    fn counts_that_agree_are_left_alone() {
        let (count, entry) = count(2, 5_000);
        assert!(count.differences().is_empty());
        assert!(count.corrections(true).is_empty() && count.corrections(false).is_empty());
        let totals = Totals {
            runs: 1,
            packed_blocks: 4,
            packed_live_bytes: 5_000,
            value_bytes: 5_000,
            expiring: Some(0),
        };
        assert_eq!(count.totals(), totals);
        assert_eq!(count.runs().collect::<Vec<_>>(), [(entry.run(70), &entry)]);
        assert_eq!(count.orphans().count(), 0);
    }

    #[test]
    fn wrong_counts_are_reported_and_corrected() {
        for (values, bytes) in [(2, 5_001), (2, 4_999), (1, 5_000), (3, 8_000), (0, 0)] {
            let (count, _) = count(values, bytes);
            assert_eq!(count.differences().len(), 1, "{values} values, {bytes} bytes");
            for whole in [true, false] {
                let text = format!("{:?}", count.corrections(whole).into_ops());
                assert!(text.contains("live_values: 2, live_bytes: 5000"), "{text}");
                assert!(text.contains(&format!("uncertain: {}", !whole)), "{text}");
            }
        }
    }

    #[test]
    fn impossible_run_counts_are_reported() {
        // The counts are right, but the second value ends beyond the values of the run.
        let (mut count, entry) = count(2, 5_000);
        let run = entry.run(70);
        let mut bytes = Vec::new();
        RunEntry { value_bytes: 7_999, uncertain: true, ..entry }.encode(&mut bytes);
        assert_eq!(count.reserved(&run_key(70), &bytes), None);
        let what = "is not trusted: a page of the tree cannot be read, or could not when it was counted";
        assert_eq!(
            count.differences(),
            [
                (70, format!("a value is after the values of the packed run {run}")),
                (70, format!("the liveness of the packed run {run} {what}")),
            ]
        );
        for whole in [true, false] {
            assert!(count.corrections(whole).is_empty(), "it stays so, whole or not: {whole}");
        }
    }

    #[test]
    fn values_without_a_run_keep_their_blocks() {
        let (mut count, _) = count(2, 5_000);
        count.object(&packed(90, 5_000, 4_000));
        assert_eq!(count.orphans().collect::<Vec<_>>(), [Run::new(90, 3)]);
        assert_eq!(count.differences().len(), 1);
        let text = format!("{:?}", count.corrections(true).into_ops());
        assert!(text.contains("blocks: 3") && text.contains("fixed: true"), "{text}");
    }
}
