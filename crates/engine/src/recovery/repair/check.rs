//! `shoal check` walks everything: every page, every object's bytes, the owner of every block, and the free space,
//! which must be the blocks without an owner. It can rebuild the free space from the trees, the liveness of packed runs
//! from the live values, and objects that a tree lost from the log (`tree_salvage.rs`). For users: `docs/repair.md`.

use std::collections::BTreeMap;

use shoal_base::task::Boxed;
use shoal_base::{Lsn, TabletId};
use shoal_common::error::{Error, Result};
use shoal_common::key::{is_own, name};
use shoal_common::options::OpenOptions;
use shoal_device::Device;
use shoal_log::format::RecordKind;
use shoal_pool::Pool;
use shoal_tablets::tablet::damage;
use shoal_tablets::tablet::tree_io::{PoolPages, owner_of, tree_of};
use shoal_tree::layers::Trees;
use shoal_tree::layers::page as layers_page;
use shoal_tree::layers::walk::{DamagedPlace, WalkedTrees};
use shoal_tree::{Gap, Tree};
use shoal_value::Entry;
use shoal_value::packed::{Footer, Totals, read_footers};

use crate::maintenance::stored_kind::StoredKind;
use crate::maintenance::verify::value_problems;
use crate::recovery::owners::Owners;
use crate::recovery::read::Recovery;
use crate::recovery::rebuild::{TabletWalk, TreeVisitor};
use crate::recovery::recount::{Counted, TreeCount};
use crate::recovery::repair::findings::{Findings, TabletFindings};
use crate::recovery::repair::gaps::{KeyRanges, gaps_at, gaps_of};
use crate::recovery::repair::hidden::Hidden;
use crate::recovery::repair::repair;
use crate::recovery::report::{CheckOptions, CheckReport, PROBLEMS_MAX};

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
    let mut findings = Findings { owners: Owners::of_areas(&recovery.superblock), ..Findings::default() };
    let area_blocks = findings.owners.blocks();
    for (id, _) in (0_u16..).zip(&recovery.superblock.tablets) {
        check_tablet(&recovery, TabletId(id), options, &mut findings, &mut report).await?;
    }
    assert_eq!(findings.tablets.len(), recovery.superblock.tablets.len(), "a tablet was left out");
    findings.owners.sort();
    report.owned_blocks = findings.owners.blocks() - area_blocks;
    report.free_blocks = recovery.image.free_blocks();
    for &kind in StoredKind::ALL {
        check_store(kind, &recovery, options, &findings, &mut report).await;
    }
    report.damaged_ranges.sort();
    assert_eq!(
        report.problems.len() as u64,
        report.problem_count.min(PROBLEMS_MAX as u64),
        "problems are counted and not listed"
    );
    let is_repaired = report.problem_count > 0 || options.acknowledge && !report.remembered.is_none();
    if (options.repair || options.acknowledge)
        && is_repaired
        && let Err(error) = repair(device, recovery, open, options, findings, &mut report).await
    {
        report.notes.push(format!("repair: it did not get to its end: {error}"));
    }
    Ok(report)
}

/// Walks over the trees of a tablet, and checks the other kinds of things that it has.
///
/// # Errors
/// As the device, except for failed reads.
async fn check_tablet(
    recovery: &Recovery,
    id: TabletId,
    options: &CheckOptions,
    findings: &mut Findings,
    report: &mut CheckReport,
) -> Result<()> {
    let Recovery { device, pool, superblock, .. } = recovery;
    let (tree, trees) = (tree_of(superblock.identity, id), recovery.trees(usize::from(id.0)));
    let totals = superblock.tablets.get(usize::from(id.0)).map(|tablet| tablet.totals).unwrap_or_default();
    let mut visitor = TreeVisitor::new(device, pool, superblock, report, &mut findings.owners);
    visitor.verify = true;
    visitor.progress = options.progress.clone();
    let walked = trees.walk(tree, &PoolPages::new(pool).of_pass(), &mut visitor).await?;
    let (live, WalkedTrees { damaged, unsettled, .. }) = (walked.counted(), walked);
    let mut walk = visitor.finish(&trees);
    walk.count.unsettled = unsettled;
    let stored = (trees.live(), trees.layers.unsettled);
    if walk.is_whole && (live, unsettled.entries) != stored {
        let what = format!(
            "tablet {id}: {live} keys exist and {} entries are unsettled, its list of layers has {stored:?}",
            unsettled.entries
        );
        report.problem(what, trees.layers.stored.map_or(0, |stored| stored.block));
    }
    let (gaps, may_be_lost) = hidden_by(pool, tree, &trees, &damaged, &walk).await?;
    let hidden = (!gaps.is_empty()).then(|| Hidden::of(&trees, &totals, live, &walk.count, &gaps));
    findings.hidden.push(hidden);
    let hidden_keys = KeyRanges::of(&gaps);
    for gap in gaps {
        damage::add(&mut report.damaged_ranges, gap.in_tablet(id), PROBLEMS_MAX);
    }
    for kind in StoredKind::ALL {
        match kind {
            StoredKind::PackedRuns => {
                check_packed(pool, (tree, &trees), &walk.count, &hidden_keys, totals, report).await;
            }
            StoredKind::LayerLists => check_list(device, (tree, &trees), report).await,
            // The walk has read them.
            StoredKind::TreePages | StoredKind::Extents | StoredKind::Manifests => {}
            // `check_store` does.
            StoredKind::SpaceImage | StoredKind::LogBatches | StoredKind::Superblocks => {}
        }
    }
    findings.tablets.push(TabletFindings {
        counted: Counted::new(&walk.count, live, walk.is_counted),
        knows_owners: walk.knows_owners,
        trees,
        damaged,
        may_be_lost,
    });
    Ok(())
}

/// The damaged ranges of a tablet, and all keys whose entry or value may be lost.
///
/// # Errors
/// As the device, except for failed reads.
async fn hidden_by(
    pool: &Pool,
    tree: Tree,
    trees: &Trees,
    damaged: &[DamagedPlace],
    walk: &TabletWalk,
) -> Result<(Vec<Gap>, KeyRanges)> {
    assert!(walk.is_whole || !damaged.is_empty(), "damage without a place");
    if let Some(gaps) = gaps_at(pool, tree, trees, damaged).await {
        let may_be_lost = match &walk.damaged_keys {
            Some(keys) => KeyRanges::of(&gaps).and(keys.clone()),
            None => KeyRanges::all(),
        };
        return Ok((gaps, may_be_lost));
    }
    // A page is damaged in a way that its place does not tell: nothing is ruled out.
    Ok((gaps_of(pool, tree, trees).await?, KeyRanges::all()))
}

/// Checks the things of this kind that belong to no tablet.
async fn check_store(
    kind: StoredKind,
    recovery: &Recovery,
    options: &CheckOptions,
    findings: &Findings,
    report: &mut CheckReport,
) {
    match kind {
        // The published image describes the trees alone: every recovery adds the runs that the log's records own.
        StoredKind::SpaceImage => {
            findings.owners.report_overlaps(report);
            findings.owners.compare(&recovery.image, &recovery.superblock, report);
        }
        StoredKind::LogBatches => {
            check_log(recovery, options, report).await;
            count_log(recovery, report).await;
        }
        // `Recovery::read` took the newest whole copy. A crash may leave the other one torn: that is no problem, and the
        // next publishes write both slots.
        StoredKind::Superblocks => {}
        // `check_tablet` does.
        StoredKind::TreePages
        | StoredKind::Extents
        | StoredKind::Manifests
        | StoredKind::PackedRuns
        | StoredKind::LayerLists => {}
    }
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

/// Adds the objects to the report that a packed run names and that cannot be read. Only keys in `hidden` are looked up, and
/// none once the report has its share of names.
async fn name_lost(
    pool: &Pool,
    (tree, trees): (Tree, &Trees),
    hidden: &KeyRanges,
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
    hidden: &KeyRanges,
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
        let problems = value_problems(device, pool, superblock.device_blocks, &values).await;
        report.problems_of(problems.into_iter().map(|(_, problem)| problem));
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
