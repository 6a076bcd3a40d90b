//! `shoal check` walks everything: every page, every object's bytes, the owner of every block, and the free space,
//! which must be the blocks without an owner. It can rebuild the free space from the trees, the liveness of packed runs
//! from the live values, and objects that a tree lost from the log (`tree_salvage.rs`). For users: `docs/repair.md`.

use std::collections::BTreeMap;

use shoal_base::task::Boxed;
use shoal_base::{Lsn, TabletId};
use shoal_device::Device;
use shoal_pool::Pool;

use crate::common::error::{Error, Result};
use crate::common::key::{is_own, name};
use crate::common::options::OpenOptions;
use crate::log::format::RecordKind;
use crate::maintenance::verify::value_problems;
use crate::recovery::owners::Owners;
use crate::recovery::read::Recovery;
use crate::recovery::rebuild::{TreeVisitor, owners_of_list};
use crate::recovery::recount::TreeCount;
use crate::recovery::repair::acknowledge::gaps_of;
use crate::recovery::repair::hidden::{Hidden, HiddenObjects};
use crate::recovery::repair::repair;
use crate::recovery::report::{CheckOptions, CheckReport, PROBLEMS_MAX};
use crate::tablet::damage;
use crate::tablet::layers::Trees;
use crate::tablet::layers_page;
use crate::tablet::tree::{Gap, Tree};
use crate::tablet::tree_io::{PoolPages, owner_of, tree_of};
use crate::value::entry::Entry;
use crate::value::packed::{Footer, Totals, read_footers};

/// Footers of packed runs that are read at a time.
const FOOTERS_AT_A_TIME: usize = 64;

/// Checks the store on `device`, which no other process or store may have open. Writes nothing without `repair`.
///
/// # Errors
/// [`Error::Unopenable`] where there is no store; as the device. Damage is in the report, and so is a repair that did not get to
/// its end.
pub fn check(device: Device, options: &CheckOptions) -> Boxed<'_, Result<CheckReport>> {
    Box::pin(run(device, options))
}

async fn run(device: Device, options: &CheckOptions) -> Result<CheckReport> {
    let cache_bytes = if options.cache_bytes == 0 { 64 << 20 } else { options.cache_bytes };
    let open =
        OpenOptions { cache_bytes, background: false, accept_damaged_log: true, ..OpenOptions::default() };
    let recovery = Recovery::read(device.clone(), &open).await?;
    let remembered = recovery.superblock.losses;
    let mut report = CheckReport { notes: recovery.notes.clone(), remembered, ..CheckReport::default() };
    for note in &recovery.damage {
        report.problem(note.clone(), 0);
    }
    let mut owners = Owners::of_areas(&recovery.superblock);
    let area_blocks = owners.blocks();
    let mut hidden = HiddenObjects::default();
    let Recovery { pool, superblock, .. } = &recovery;
    for (id, tablet) in (0_u16..).zip(&superblock.tablets) {
        let mut visitor = TreeVisitor::new(&device, pool, superblock, &mut report, &mut owners);
        visitor.verify = true;
        visitor.progress = options.progress.clone();
        let tree = tree_of(superblock.identity, TabletId(id));
        let trees = recovery.trees(usize::from(id));
        owners_of_list(&trees, &mut visitor);
        let live = trees.walk(tree, &PoolPages::new(pool).of_pass(), &mut visitor).await?;
        let (count, is_whole) = visitor.finish();
        if is_whole && live != trees.live() {
            let what = format!("tablet {id}: {live} keys exist, its list of layers has {}", trees.live());
            report.problem(what, trees.layers.stored.map_or(0, |stored| stored.block));
        }
        let gaps = if is_whole { Vec::new() } else { gaps_of(pool, tree, &trees).await? };
        hidden.push((!gaps.is_empty()).then(|| Hidden::of(&trees, &tablet.totals, live, &count, &gaps)));
        let hidden_keys = HiddenKeys::of(&gaps);
        for gap in gaps {
            damage::add(&mut report.damaged_ranges, gap.in_tablet(tree.tablet), PROBLEMS_MAX);
        }
        check_packed(pool, (tree, &trees), &count, &hidden_keys, tablet.totals, &mut report).await;
        check_list(&device, (tree, &trees), &mut report).await;
    }
    // The published image describes the trees alone: every recovery adds the runs that the log's records own.
    owners.sort();
    owners.report_overlaps(&mut report);
    owners.compare(&recovery.image, superblock, &mut report);
    report.free_blocks = recovery.image.free_blocks();
    report.owned_blocks = owners.blocks() - area_blocks;
    report.damaged_ranges.sort();
    check_log(&recovery, options, &mut report).await;
    count_log(&recovery, &mut report).await;
    let is_repaired = report.problem_count > 0 || options.acknowledge && !report.remembered.is_none();
    if (options.repair || options.acknowledge)
        && is_repaired
        && let Err(error) = repair(device, recovery, open, options, hidden, &mut report).await
    {
        report.notes.push(format!("repair: it did not get to its end: {error}"));
    }
    Ok(report)
}

/// Names the damaged copies of the list of a tablet's layers; a list without a whole copy was reported before.
async fn check_list(device: &Device, (tree, trees): (Tree, &Trees), report: &mut CheckReport) {
    let Some(stored) = trees.layers.stored else { return };
    if let (Some(_), damaged) = layers_page::read_copies(device, tree, stored).await {
        for block in damaged {
            report.problem(layers_page::copy_problem(tree), block);
        }
    }
}

/// The keys that damage may hide, as ranges in order that do not overlap.
struct HiddenKeys(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl HiddenKeys {
    fn of(gaps: &[Gap]) -> Self {
        let mut ranges: Vec<_> = gaps.iter().map(|gap| (gap.low.clone(), gap.high.clone())).collect();
        ranges.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        ranges.dedup_by(|(low, high), (_, last)| {
            let overlaps = last.as_ref().is_none_or(|last| *low <= *last);
            if overlaps {
                *last = last.take().zip(high.take()).map(|(one, two)| one.max(two));
            }
            overlaps
        });
        Self(ranges)
    }

    fn contains(&self, key: &[u8]) -> bool {
        let behind = self.0.partition_point(|(low, _)| &low[..] <= key);
        let last = behind.checked_sub(1).and_then(|at| self.0.get(at));
        last.is_some_and(|(_, high)| high.as_ref().is_none_or(|high| key < &high[..]))
    }
}

/// Adds the objects to the report that a packed run names and that cannot be read. Only keys in `hidden` are looked up, and
/// none once the report has its share of names.
async fn name_lost(
    pool: &Pool,
    (tree, trees): (Tree, &Trees),
    hidden: &HiddenKeys,
    footer: &Footer,
    report: &mut CheckReport,
) {
    let keys = footer.items().filter_map(|item| Some(item.ok()?.key));
    for key in keys.filter(|key| hidden.contains(key)) {
        if report.may_be_lost_more {
            return;
        }
        let found = trees.find(tree, &PoolPages::new(pool).of_pass(), None, key).await;
        if matches!(found, Err(Error::Corrupt { .. } | Error::Io(_))) {
            report.may_be_lost(name(key));
        }
    }
}

/// Compares the liveness of a tablet's packed runs with the values that its tree names, and reads the runs' footers, which
/// name the objects among the `hidden` keys.
async fn check_packed(
    pool: &Pool,
    (tree, trees): (Tree, &Trees),
    count: &TreeCount,
    hidden: &HiddenKeys,
    totals: Totals,
    report: &mut CheckReport,
) {
    let device = pool.device();
    for (block, what) in count.differences() {
        report.problem(what, block);
    }
    let mut expected = count.totals();
    expected.expiring = totals.expiring.and(expected.expiring);
    if totals != expected {
        let what =
            format!("tablet {}: the superblock has {totals:?}, the tree has {expected:?}", tree.tablet);
        report.problem(what, 0);
    }
    let mut runs = count.runs().peekable();
    while runs.peek().is_some() {
        let some: Vec<_> = runs.by_ref().take(FOOTERS_AT_A_TIME).collect();
        let inside = some.iter().filter(|(run, _)| run.end() <= device.blocks());
        let wanted: Vec<_> = inside.map(|&(run, _)| (owner_of(tree, run.block), run)).collect();
        let mut footers = read_footers(device, &wanted).await.into_iter();
        for (run, entry) in some {
            if run.end() > device.blocks() {
                report.problem(format!("the packed run {run} is after the end of the device"), run.block);
                continue;
            }
            match footers.next() {
                Some(Ok(footer)) if footer.fits(entry) => {
                    name_lost(pool, (tree, trees), hidden, &footer, report).await;
                }
                // A repair found this run without its liveness; the place of its footer is unknown.
                _ if entry.fixed => {}
                _ => report.problem(format!("the footer of the packed run {run} cannot be read"), run.block),
            }
        }
    }
}

/// Verifies the values that only the log names, all values of a batch at once, and that records are in the tablets of their
/// keys (R14).
async fn check_log(recovery: &Recovery, options: &CheckOptions, report: &mut CheckReport) {
    let Recovery { device, pool, superblock, log, .. } = recovery;
    for batch in &log.batches {
        let mut values = Vec::new();
        for (lsn, record) in (batch.header.first_lsn.0..).zip(&batch.records) {
            let Some(tablet) = superblock.tablets.get(usize::from(record.tablet.0)) else { continue };
            if Lsn(lsn) <= tablet.applied {
                continue;
            }
            report.log_records += 1;
            if !tablet.owns(record.key()) {
                let key = name(record.key());
                let what = format!(
                    "record {lsn} of {key} names tablet {}, which is not that of its key",
                    record.tablet
                );
                report.problem(what, 0);
            }
            if record.kind == RecordKind::Delete {
                continue;
            }
            let key = record.key();
            match Entry::decode(record.body_bytes()) {
                Ok((entry, _)) => {
                    report.value_bytes += entry.value_bytes;
                    values.push((key.to_vec(), Lsn(lsn), entry));
                }
                Err(_) => report.problem(format!("record {lsn} of {} cannot be read", name(key)), 0),
            }
        }
        report.problems_of(value_problems(device, pool, superblock.device_blocks, &values).await);
        if let Some(progress) = &options.progress {
            progress(report.objects + report.log_records, report.value_bytes);
        }
    }
}

/// Adds the objects to the report that only the log has, and removes those that it deletes. Keys are looked up in
/// their order, so that each leaf is read once.
async fn count_log(recovery: &Recovery, report: &mut CheckReport) {
    let Recovery { pool, superblock, log, .. } = recovery;
    let mut newest = BTreeMap::new();
    for batch in &log.batches {
        for (lsn, record) in (batch.header.first_lsn.0..).zip(&batch.records) {
            let tablet = superblock.tablets.get(usize::from(record.tablet.0));
            if tablet.is_some_and(|tablet| Lsn(lsn) > tablet.applied) {
                newest.insert(record.key(), (record.tablet, record.kind));
            }
        }
    }
    let pages = PoolPages::new(pool).of_pass();
    for (key, (tablet, kind)) in newest {
        let (tree, trees) = (tree_of(superblock.identity, tablet), recovery.trees(usize::from(tablet.0)));
        // An object that damage hides was not counted.
        let is_in_trees = matches!(trees.find(tree, &pages, None, key).await, Ok(Some(_)));
        let count = if is_own(key) { &mut report.own_objects } else { &mut report.objects };
        match kind {
            RecordKind::Put if !is_in_trees => *count += 1,
            RecordKind::Delete if is_in_trees => *count = count.saturating_sub(1),
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
