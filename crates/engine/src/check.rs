//! `shoal check`: walks everything - every page, every object's bytes, every block owned exactly once, free space
//! equal to what nobody owns - and can rebuild what can be rebuilt: the free space from the trees, the accounting of packed
//! runs from what is alive, objects that a tree lost from the log (`salvage.rs`). For users: `docs/repair.md`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use shoal_base::{Lsn, Run, TabletId};
use shoal_device::Device;
use shoal_pool::Pool;
use shoal_space::FreeImage;

use crate::acknowledge::damaged_ranges;
use crate::damage::{self, DamagedRange};
use crate::entry::{Entry, split_leaf_entry};
use crate::error::{Error, Result};
use crate::log::format::RecordKind;
use crate::losses::Losses;
use crate::open::{Recovery, owned_runs};
use crate::options::{Environment, OpenOptions};
use crate::owners::{Owners, image_without};
use crate::packed::{Count, Footer, is_reserved, read_footer};
use crate::repair::repair;
use crate::superblock::{Superblock, TabletRecord};
use crate::tree::{PageRef, Problem, Tree, Visitor};
use crate::tree_io::{PoolPages, tree_of};
use crate::value::read::verify_direct;

/// Takes a warning.
type Warn = dyn Fn(&str) + Send + Sync;

/// What a check is asked to do.
#[derive(Clone, Default)]
pub struct CheckOptions {
    /// Rebuild what can be rebuilt: the free space and the accounting of packed runs from the trees, objects that a tree
    /// lost from what the log still has; a log that lost promised records is cut at the damage, and the steps behind it that are
    /// linked to its newest batch are done again under new versions. An interrupted repair of a cut log can only be repeated on
    /// a copy that was made before it.
    pub repair: bool,
    /// Repair, and then give up what is lost: keys of damaged ranges that were not written since do not exist from now on.
    pub acknowledge: bool,
    /// Repair even where memory has no room for all that the log has behind damage: the oldest of that is lost then. Without
    /// it such a repair writes nothing, and a note says so.
    pub in_part: bool,
    /// Memory for pages, in bytes; 0 for 64 MiB.
    pub cache_bytes: usize,
    /// Called with the numbers of objects and bytes verified so far, from time to time.
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
    /// Called with a warning before a repair writes for the first time, where it could not be repeated if it were interrupted.
    pub before_writing: Option<Arc<Warn>>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckProblem {
    /// What is wrong, and with which object where one is concerned.
    pub what: String,
    /// Where, as a block number.
    pub block: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Pages of the trees.
    pub pages: u64,
    /// Objects of the trees; what only the log holds is in `log_records`.
    pub objects: u64,
    /// Bytes of values that were read and verified.
    pub value_bytes: u64,
    /// Blocks that trees and values own.
    pub owned_blocks: u64,
    /// Free blocks of the published image, without what the log's records own.
    pub free_blocks: u64,
    /// Records that only the log holds.
    pub log_records: u64,
    /// What is wrong; at most 1,000 are listed.
    pub problems: Vec<CheckProblem>,
    /// Problems in all.
    pub problem_count: u64,
    /// What recovery had to say, and what repair did.
    pub notes: Vec<String>,
    /// Objects that may be among those that were lost with a page: packed runs know their names, but not whether they were
    /// deleted since. At most 1,000 are listed.
    pub may_be_lost: BTreeSet<String>,
    /// Whether there are more of them than are listed.
    pub may_be_lost_more: bool,
    /// Ranges of encoded keys of which nobody knows what they hold, in order: all of them; where there are more than 1,000, neighbours of
    /// one tablet are one.
    pub damaged_ranges: Vec<DamagedRange>,
    /// The same of what an acknowledgement gave up: nothing exists there but what was written since.
    pub given_up: Vec<DamagedRange>,
    /// Objects that a repair wrote anew from the log, or learned from it to be deleted; at most 1,000 are listed.
    pub restored: Vec<String>,
    /// How many it restored in all.
    pub restored_count: u64,
    /// What this repair lost.
    pub losses: Losses,
    /// Numbers of the log's records that it lost, from the first up to and without the last: which objects they wrote or deleted is not
    /// known. A record counts as lost unless every tree has taken its number over.
    pub lost_records: Vec<Range<u64>>,
    /// Objects that it lost and whose names are known; at most 1,000 are listed, as of the next two.
    pub lost: Vec<String>,
    /// Objects that went back to an older state.
    pub reverted: Vec<String>,
    /// Objects whose deletion was undone.
    pub resurrected: Vec<String>,
    /// What repairs before this check lost, and nobody acknowledged.
    pub remembered: Losses,
}

/// What a report lists of each kind, at most.
pub(crate) const PROBLEMS_MAX: usize = 1000;
/// Notes about objects that could not be restored.
const NOT_RESTORED_MAX: usize = 1000;

impl CheckReport {
    /// Whether nothing is wrong, and nothing was lost that nobody acknowledged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0 && self.losses.is_none() && self.remembered.is_none()
    }

    pub(crate) fn problem(&mut self, what: String, block: u64) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(CheckProblem { what, block });
        }
    }

    fn may_be_lost(&mut self, object: String) {
        if self.may_be_lost.len() < PROBLEMS_MAX {
            self.may_be_lost.insert(object);
        } else {
            self.may_be_lost_more |= !self.may_be_lost.contains(&object);
        }
    }

    pub(crate) fn was_restored(&mut self, object: String) {
        self.restored_count += 1;
        list(&mut self.restored, object);
    }

    pub(crate) fn were_lost(&mut self, records: &Range<u64>) {
        self.losses.lost += records.end - records.start;
        self.lost_records.push(records.clone());
    }

    pub(crate) fn was_lost(&mut self, object: String) {
        self.losses.lost += 1;
        list(&mut self.lost, object);
    }

    pub(crate) fn was_reverted(&mut self, object: String) {
        self.losses.reverted += 1;
        list(&mut self.reverted, object);
    }

    pub(crate) fn was_resurrected(&mut self, object: String) {
        self.losses.resurrected += 1;
        list(&mut self.resurrected, object);
    }

    pub(crate) fn was_not_done_again(&mut self, object: &str, why: &str) {
        if self.notes.len() < NOT_RESTORED_MAX {
            self.notes.push(format!(
                "repair: object {object}: its newest record in the log was left out ({why}): it is as it was before, or missing"
            ));
        }
    }

    pub(crate) fn was_not_restored(&mut self, object: &str, why: &Error) {
        if self.notes.len() < NOT_RESTORED_MAX {
            self.notes.push(format!("repair: object {object}: not restored: {why}"));
        }
    }
}

fn list(names: &mut Vec<String>, name: String) {
    if names.len() < PROBLEMS_MAX {
        names.push(name);
    }
}

/// Checks the store on `device`, which nobody else has open. Without `repair` nothing is written.
///
/// # Errors
/// [`Error::Unopenable`] where there is no store; as the device. Damage is in the report, and so is a repair that did not get to
/// its end.
pub async fn check(device: Device, options: &CheckOptions) -> Result<CheckReport> {
    let cache_bytes = if options.cache_bytes == 0 { 64 << 20 } else { options.cache_bytes };
    let open =
        OpenOptions { cache_bytes, background: false, accept_damaged_log: true, ..OpenOptions::default() };
    let recovery = Recovery::read(device.clone(), &open, &Environment::default()).await?;
    let remembered = recovery.superblock.losses;
    let mut report = CheckReport { notes: recovery.notes.clone(), remembered, ..CheckReport::default() };
    for note in &recovery.damage {
        report.problem(note.clone(), 0);
    }
    let mut owners = Owners::default();
    let Recovery { pool, superblock, .. } = &recovery;
    for (id, tablet) in (0_u16..).zip(&superblock.tablets) {
        let mut visitor = TreeVisitor::new(&device, pool, superblock, &mut report, &mut owners);
        visitor.verify = true;
        visitor.progress = options.progress.clone();
        let tree = tree_of(superblock.identity, TabletId(id));
        tree.walk(&PoolPages::new(pool), tablet.root, &mut visitor).await?;
        let (count, is_whole) = visitor.finish();
        if !is_whole {
            for range in damaged_ranges(pool, tree, tablet.root).await? {
                damage::add(&mut report.damaged_ranges, range, PROBLEMS_MAX);
            }
        }
        check_packed(pool, tree, &count, is_whole, tablet, &mut report).await;
    }
    // The published image describes the trees alone: what the log's records own is added at every recovery.
    owners.sort();
    owners.report_overlaps(&mut report);
    owners.compare(&recovery.image, superblock, &mut report);
    report.free_blocks = recovery.image.free_blocks();
    report.owned_blocks = owners.blocks();
    report.damaged_ranges.sort();
    check_log(&recovery, options, &mut report).await;
    let is_repaired = report.problem_count > 0 || options.acknowledge && !report.remembered.is_none();
    if (options.repair || options.acknowledge)
        && is_repaired
        && let Err(error) = repair(device, recovery, open, options, &mut report).await
    {
        report.notes.push(format!("repair: it did not get to its end: {error}"));
    }
    Ok(report)
}

/// Says which objects that a packed run names lie in the ranges that cannot be read.
async fn name_lost(
    pool: &Pool,
    tree: Tree,
    tablet: &TabletRecord,
    footer: &Footer,
    report: &mut CheckReport,
) {
    for key in footer.items().filter_map(|item| Some(item.ok()?.key)) {
        let found = tree.lookup(&PoolPages::new(pool), tablet.root, key).await;
        if matches!(found, Err(Error::Corrupt { .. } | Error::Io(_))) {
            report.may_be_lost(name(key));
        }
    }
}

/// Compares the accounting of a tablet's packed runs with what its tree names, and reads the runs' footers, one at a time. Where the
/// tree is not whole, they say which objects may be lost.
async fn check_packed(
    pool: &Pool,
    tree: Tree,
    count: &Count,
    is_whole: bool,
    tablet: &TabletRecord,
    report: &mut CheckReport,
) {
    let device = pool.device();
    for (block, what) in count.differences() {
        report.problem(what, block);
    }
    let (totals, mut expected) = (tablet.totals, count.totals());
    expected.expiring = totals.expiring.and(expected.expiring);
    if totals != expected {
        let what =
            format!("tablet {}: the superblock says {totals:?}, the tree has {expected:?}", tree.tablet);
        report.problem(what, 0);
    }
    for (run, entry) in count.runs() {
        if run.end() > device.blocks() {
            report.problem(format!("the packed run {run} lies behind the end of the device"), run.block);
            continue;
        }
        match read_footer(device, tree, run).await {
            Ok(footer) if footer.fits(entry) => {
                if !is_whole {
                    name_lost(pool, tree, tablet, &footer, report).await;
                }
            }
            // A run that a repair found without its accounting has none that could be found.
            _ if entry.fixed => {}
            Ok(_) | Err(_) => {
                report.problem(format!("the footer of the packed run {run} cannot be read"), run.block);
            }
        }
    }
}

/// What a rebuild of the free space demands of the trees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trees {
    /// Opening: every page must be readable.
    MustBeWhole,
    /// Repair: what cannot be read is lost.
    AsFarAsTheyGo,
}

/// The free space as the trees leave it.
///
/// # Errors
/// As the device. What damaged pages own is not known: it may come out as free, and the objects there were lost with the
/// page.
pub(crate) async fn rebuild_image(
    device: &Device,
    pool: &Pool,
    superblock: &Superblock,
    trees: Trees,
) -> Result<FreeImage> {
    let mut owners = Owners::default();
    let mut report = CheckReport::default();
    for (id, tablet) in (0_u16..).zip(&superblock.tablets) {
        let mut visitor = TreeVisitor::new(device, pool, superblock, &mut report, &mut owners);
        tree_of(superblock.identity, TabletId(id))
            .walk(&PoolPages::new(pool), tablet.root, &mut visitor)
            .await?;
        visitor.finish();
    }
    if let (Trees::MustBeWhole, Some(problem)) = (trees, report.problems.first()) {
        // What a page owns that cannot be read now would come out as free, and be written over.
        let what = format!(
            "the space image, and the trees that it could be rebuilt from ({}); `shoal check --repair` rebuilds it without what is lost",
            problem.what
        );
        return Err(Error::Corrupt { what, block: problem.block });
    }
    let layout = &superblock.layout;
    let size = (layout.blocks_max, layout.group_blocks);
    image_without(size, layout.data_first()..superblock.device_blocks, owners, trees)
}

/// Collects what a tree owns, and verifies the values.
struct TreeVisitor<'a> {
    device: &'a Device,
    pool: &'a Pool,
    superblock: &'a Superblock,
    report: &'a mut CheckReport,
    owners: &'a mut Owners,
    verify: bool,
    progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
    /// Entries of the leaf that is being visited.
    entries: Vec<(Vec<u8>, Lsn, Entry)>,
    count: Count,
    /// Whether every page could be read, now and when it was written.
    is_whole: bool,
}

impl<'a> TreeVisitor<'a> {
    fn new(
        device: &'a Device,
        pool: &'a Pool,
        superblock: &'a Superblock,
        report: &'a mut CheckReport,
        owners: &'a mut Owners,
    ) -> Self {
        let count = Count::default();
        let entries = Vec::new();
        let (verify, is_whole) = (false, true);
        Self { device, pool, superblock, report, owners, verify, progress: None, entries, count, is_whole }
    }

    /// The tree was walked: its packed runs have one owner each, the tablet. Gives what was counted, and whether the tree is
    /// whole.
    fn finish(self) -> (Count, bool) {
        for run in self.count.runs().map(|(run, _)| run).chain(self.count.orphans()) {
            self.owners.add(run);
        }
        (self.count, self.is_whole)
    }
}

impl Visitor for TreeVisitor<'_> {
    fn page(&mut self, page: PageRef, _level: u8, _used_bytes: usize) {
        self.report.pages += 1;
        self.owners.add(Run::new(page.block, 1));
    }

    fn entry(&mut self, key: &[u8], entry: &[u8], page: PageRef) {
        if is_reserved(key) {
            if let Some(what) = self.count.reserved(key, entry) {
                self.report.problem(what.into(), page.block);
            }
            return;
        }
        self.report.objects += 1;
        match split_leaf_entry(entry).and_then(|(version, body)| Ok((version, Entry::decode(body)?.0))) {
            Ok((version, entry)) => {
                self.count.object(&entry);
                self.entries.push((key.to_vec(), version, entry));
            }
            Err(_) => self.report.problem(format!("the entry of {} cannot be read", name(key)), page.block),
        }
    }

    fn lost(&mut self, page: PageRef, low: &[u8], high: Option<&[u8]>) {
        self.is_whole = false;
        let high = high.map_or("the end".into(), name);
        let what = format!("the objects from {} up to {high} were lost with a damaged page", name(low));
        self.report.problem(what, page.block);
    }

    fn problem(&mut self, problem: Problem) {
        self.is_whole = false;
        let Problem { page, level, what, low } = problem;
        let what = format!("page of level {level} (keys from {} on): {what}", name(&low));
        self.report.problem(what, page.block);
    }

    async fn leaf_done(&mut self) -> Result<()> {
        for (key, version, entry) in std::mem::take(&mut self.entries) {
            for run in owned_runs(self.device, self.pool, &entry, version).await {
                self.owners.add(run);
            }
            if self.verify {
                verify(self.device, self.pool, self.superblock, &key, &entry, version, self.report).await;
            }
        }
        if let Some(progress) = &self.progress {
            progress(self.report.objects, self.report.value_bytes);
        }
        Ok(())
    }
}

/// Reads and verifies a value; damage becomes a problem that names the object.
async fn verify(
    device: &Device,
    pool: &Pool,
    superblock: &Superblock,
    key: &[u8],
    entry: &Entry,
    version: Lsn,
    report: &mut CheckReport,
) {
    report.value_bytes += entry.value_bytes;
    match verify_direct(device, pool, superblock.device_blocks, entry, version).await {
        Ok(()) => {}
        Err(Error::Corrupt { what, block }) => report.problem(format!("object {}: {what}", name(key)), block),
        Err(error) => report.problem(format!("object {}: {error}", name(key)), 0),
    }
}

/// Verifies the values that only the log names.
async fn check_log(recovery: &Recovery, options: &CheckOptions, report: &mut CheckReport) {
    let Recovery { device, pool, superblock, log, .. } = recovery;
    for batch in &log.batches {
        for (lsn, record) in (batch.header.first_lsn.0..).zip(&batch.records) {
            let applied = superblock.tablets.get(usize::from(record.tablet.0)).map(|tablet| tablet.applied);
            if applied.is_none_or(|applied| Lsn(lsn) <= applied) {
                continue;
            }
            report.log_records += 1;
            if record.kind == RecordKind::Delete {
                continue;
            }
            let key = record.bytes.get(record.key.0 as usize..record.key.1 as usize).unwrap_or(&[]);
            match Entry::decode(record.bytes.get(record.body as usize..).unwrap_or(&[])) {
                Ok((entry, _)) => verify(device, pool, superblock, key, &entry, Lsn(lsn), report).await,
                Err(_) => report.problem(format!("record {lsn} of {} cannot be read", name(key)), 0),
            }
        }
        if let Some(progress) = &options.progress {
            progress(report.objects + report.log_records, report.value_bytes);
        }
    }
}

/// An encoded key as `bucket/key`.
pub(crate) fn name(key: &[u8]) -> String {
    match key.iter().position(|&byte| byte == 0) {
        Some(at) => format!("{}/{}", key[..at].escape_ascii(), key[at + 1..].escape_ascii()),
        None => key.escape_ascii().to_string(),
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
