//! What a check is asked to do, and what it and a repair found and did.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::common::damaged_range::DamagedRange;
use crate::common::error::Error;
use crate::common::problem::CheckProblem;
use crate::store::losses::Losses;

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
pub(crate) const NOT_RESTORED_MAX: usize = 1000;

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
