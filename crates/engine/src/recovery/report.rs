//! The options of a check, and the report of a check or a repair.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use shoal_base::list::DamagedRange;
use shoal_common::error::Error;
use shoal_common::problem::CheckProblem;
use shoal_image::losses::Losses;

/// Takes a warning.
type Warn = dyn Fn(&str) + Send + Sync;

/// The options of a check.
#[derive(Clone, Default)]
pub struct CheckOptions {
    /// Rebuild the free space and the liveness of packed runs from the trees, and objects that a tree lost from the
    /// log. A log that lost promised records is cut at the damage, and the write batches after it that are linked to
    /// its newest log batch are written again with new versions. An interrupted repair of a cut log can only be
    /// repeated on a copy from before it.
    pub repair: bool,
    /// Repair, and then give up lost data: keys of damaged ranges that were not written since do not exist from now on.
    pub acknowledge: bool,
    /// Repair even if memory cannot hold all records after the damage: the oldest of them are lost then. Without this,
    /// such a repair writes nothing, and a note reports it.
    pub in_part: bool,
    /// Memory for pages, in bytes; 0 for 64 MiB.
    pub cache_bytes: usize,
    /// Memory for keys and records that a repair holds, in bytes, and as much again for what the log has behind damage; 0: as much as
    /// the cache, and at least 64 MiB.
    pub held_bytes: usize,
    /// Called with the numbers of objects and bytes verified so far, from time to time.
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
    /// Called with a warning before the first write of a repair that could not be repeated after an interruption.
    pub before_writing: Option<Arc<Warn>>,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Pages of the trees.
    pub pages: u64,
    /// Objects, as a listing has them: those of the trees after the changes of the records that only the log holds.
    /// Expired objects that are not deleted yet count, too.
    pub objects: u64,
    /// Objects of the store's own: results of writes with a request id, and the note of the last backup.
    pub own_objects: u64,
    /// Bytes of values that were read and verified.
    pub value_bytes: u64,
    /// Blocks that trees and values own.
    pub owned_blocks: u64,
    /// Free blocks of the published image, without the blocks that the log's records own.
    pub free_blocks: u64,
    /// Records that only the log holds.
    pub log_records: u64,
    /// The problems; at most 1,000 are listed.
    pub problems: Vec<CheckProblem>,
    /// The number of all problems.
    pub problem_count: u64,
    /// Notes of recovery and of the repair.
    pub notes: Vec<String>,
    /// Objects that may have been lost with a page: packed runs know their names, but not whether they were deleted
    /// since. At most 1,000 are listed.
    pub may_be_lost: BTreeSet<String>,
    /// True if there are more of them than are listed.
    pub may_be_lost_more: bool,
    /// All ranges of encoded keys whose contents are unknown, in order. If there are more than 1,000, neighbours of one
    /// tablet are joined.
    pub damaged_ranges: Vec<DamagedRange>,
    /// The ranges that an acknowledgement gave up: only objects written since exist there.
    pub given_up: Vec<DamagedRange>,
    /// Objects that a repair restored from the log, or deleted because the log has their delete; at most 1,000 are
    /// listed.
    pub restored: Vec<String>,
    /// The number of all restored objects.
    pub restored_count: u64,
    /// The losses of this repair.
    pub losses: Losses,
    /// Number ranges (end exclusive) of the log's lost records: the objects that they wrote or deleted are unknown. A
    /// record counts as lost unless every tree holds its number already.
    pub lost_records: Vec<Range<u64>>,
    /// Lost objects whose names are known; at most 1,000 are listed, as in the next two fields.
    pub lost: Vec<String>,
    /// Objects that went back to an older state.
    pub reverted: Vec<String>,
    /// Objects whose deletion was undone.
    pub resurrected: Vec<String>,
    /// Losses of earlier repairs that no user has acknowledged.
    pub remembered: Losses,
}

/// Entries of each kind that a report lists at most.
pub(crate) const PROBLEMS_MAX: usize = 1000;
/// Notes about objects that could not be restored.
pub(crate) const NOT_RESTORED_MAX: usize = 1000;

impl CheckReport {
    /// Returns true if there is no problem and no unacknowledged loss.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0 && self.losses.is_none() && self.remembered.is_none()
    }

    pub(crate) fn problem(&mut self, what: String, block: u64) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(CheckProblem { what, block });
        }
        debug_assert!(self.problems.len() as u64 <= self.problem_count, "more is listed than counted");
    }

    pub(crate) fn problems_of(&mut self, problems: impl IntoIterator<Item = CheckProblem>) {
        problems.into_iter().for_each(|problem| self.problem(problem.what, problem.block));
    }

    pub(crate) fn may_be_lost(&mut self, object: String) {
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
        assert!(records.start < records.end, "no record is lost in {records:?}");
        self.losses.lost += records.end - records.start;
        self.lost_records.push(records.clone());
    }

    /// Lists the name of an object that is among the counted losses.
    pub(crate) fn names_lost(&mut self, object: String) {
        list(&mut self.lost, object);
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
