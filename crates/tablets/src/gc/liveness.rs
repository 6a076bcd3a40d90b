//! The liveness of packed runs: an apply that kills or moves values changes the counts of their runs.
//!
//! An apply knows the replaced entries only after it has merged them. So the counts change in a second, small merge over the root of the
//! first one, before anything is published: the published root has both or none. The keys of the counts sort after all objects, so the
//! merge touches a few leaves at the end of the tree.
//!
//! Invariant: the live values and bytes of a run that is not uncertain are exactly those of the entries of the same tree that name the run.
//! Counts that contradict each other are no longer trusted: the run becomes uncertain, and is kept until a repair recounts it. A run in
//! doubt is never freed.

use std::collections::BTreeMap;

use shoal_base::Run;
use shoal_common::error::Result;
use shoal_tree::{Fate, Merge, Old};
use shoal_value::packed::{RUN_KEY_BYTES, RunEntry, Totals, run_key};

/// Values of a run that an apply killed or moved away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dead {
    pub values: u64,
    pub bytes: u64,
}

/// An apply's change of one run's count.
#[derive(Clone, Debug)]
pub struct LivenessOp {
    key: [u8; RUN_KEY_BYTES],
    block: u64,
    /// The count of a new run, or a repair's recount.
    set: Option<RunEntry>,
    dead: Dead,
    doubt: Option<Doubt>,
}

/// The reason why a run must not be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Its count does not match its live values.
    Count,
    /// Its footer or a value in it is damaged.
    Contents,
}

/// All changes of one apply, by run.
#[derive(Debug, Default)]
pub struct LivenessOps(BTreeMap<u64, LivenessOp>);

impl LivenessOps {
    fn of(&mut self, block: u64) -> &mut LivenessOp {
        self.0.entry(block).or_insert_with(|| LivenessOp {
            key: run_key(block),
            block,
            set: None,
            dead: Dead::default(),
            doubt: None,
        })
    }

    /// Sets the count of the run at `block`, which is new or recounted.
    pub fn set(&mut self, block: u64, entry: RunEntry) {
        assert!(entry.blocks > 0, "a packed run has blocks (INV-25)");
        self.of(block).set = Some(entry);
    }

    /// Subtracts a value of `bytes` stored bytes from the count of the run at `block`: no entry names it any more.
    pub(crate) fn kill(&mut self, block: u64, bytes: u64) {
        assert!(bytes > 0, "a packed value has bytes (INV-25)");
        let dead = &mut self.of(block).dead;
        dead.values += 1;
        dead.bytes += bytes;
    }

    /// Marks the run at `block`, which must not be rewritten any more.
    pub(crate) fn doubt(&mut self, block: u64, doubt: Doubt) {
        self.of(block).doubt = Some(doubt);
    }

    /// Returns true if no live count changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of runs that change.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The changes in the order of their keys.
    pub fn into_ops(self) -> Vec<LivenessOp> {
        self.0.into_values().collect()
    }
}

/// Merges the changes. Afterwards `totals` are the new totals, and `freed` are the runs without live values.
pub(crate) struct Liveness {
    pub totals: Totals,
    pub freed: Vec<Run>,
}

impl Liveness {
    pub(crate) fn new(totals: Totals) -> Self {
        Self { totals, freed: Vec::new() }
    }
}

impl Merge for Liveness {
    type Op = LivenessOp;

    fn key<'a>(&self, op: &'a LivenessOp) -> &'a [u8] {
        &op.key
    }

    fn merge(&mut self, op: &LivenessOp, old: Old<'_>, new: &mut Vec<u8>) -> Result<Fate> {
        let before = match old {
            Old::Present(bytes) => RunEntry::decode(bytes).ok(),
            Old::Absent | Old::Lost => None,
        };
        let Some(mut entry) = op.set.or(before) else {
            tracing::warn!(
                "the liveness of the packed run at block {} is lost: it stays taken until `shoal check --repair`",
                op.block
            );
            return Ok(Fate::Stay);
        };
        if let Some(before) = &before {
            self.totals.remove_run(before);
        }
        op.take_from(&mut entry);
        if entry.live_values == 0 && entry.live_bytes == 0 && !entry.uncertain {
            self.freed.push(entry.run(op.block));
            return Ok(Fate::Delete);
        }
        self.totals.add_run(&entry);
        entry.encode(new);
        Ok(Fate::Put)
    }
}

impl LivenessOp {
    /// Subtracts the dead values, and doubts a count that is impossible (INV-25).
    fn take_from(&self, entry: &mut RunEntry) {
        let left = |alive: u32, dead: u64| u64::from(alive).checked_sub(dead).map(|left| left as u32);
        let (values, bytes) =
            (left(entry.live_values, self.dead.values), left(entry.live_bytes, self.dead.bytes));
        let contradicts = match (values, bytes) {
            (Some(values), Some(bytes)) => (values == 0) != (bytes == 0),
            _ => true,
        };
        entry.fixed |= self.doubt == Some(Doubt::Contents);
        if (contradicts || self.doubt == Some(Doubt::Count)) && !entry.uncertain {
            tracing::error!(
                "the liveness of the packed run at block {} is wrong ({entry:?}, {:?}): it stays taken until `shoal check --repair`",
                self.block,
                self.dead
            );
            entry.uncertain = true;
        }
        entry.live_values = values.unwrap_or(0);
        entry.live_bytes = bytes.unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: RunEntry = RunEntry {
        blocks: 4,
        values: 3,
        value_bytes: 9_000,
        live_values: 2,
        live_bytes: 5_000,
        uncertain: false,
        fixed: false,
    };

    /// Merges into a run's entry `before`. Returns the new entry, true if the run was freed, and the totals.
    fn merged(before: Option<RunEntry>, ops: LivenessOps) -> (Option<RunEntry>, bool, Totals) {
        let mut totals = Totals { value_bytes: 1, ..Totals::default() };
        let mut old = Vec::new();
        if let Some(before) = before {
            totals.add_run(&before);
            before.encode(&mut old);
        }
        let mut liveness = Liveness::new(totals);
        let ops = ops.into_ops();
        let mut new = Vec::new();
        let old = if old.is_empty() { Old::Absent } else { Old::Present(&old) };
        let fate = liveness.merge(&ops[0], old, &mut new).unwrap();
        let entry = (fate == Fate::Put).then(|| RunEntry::decode(&new).unwrap());
        (entry, liveness.freed == [Run::new(9, 4)], liveness.totals)
    }

    fn kills(bytes: &[u64]) -> LivenessOps {
        let mut ops = LivenessOps::default();
        bytes.iter().for_each(|&bytes| ops.kill(9, bytes));
        ops
    }

    #[test]
    fn dead_values_are_counted_out_and_the_last_one_frees_the_run() {
        let (entry, freed, totals) = merged(Some(ENTRY), kills(&[2_000]));
        assert_eq!(entry, Some(RunEntry { live_values: 1, live_bytes: 3_000, ..ENTRY }));
        assert!(!freed);
        assert_eq!(
            totals,
            Totals { runs: 1, packed_blocks: 4, packed_live_bytes: 3_000, value_bytes: 1, expiring: None }
        );
        let (entry, freed, totals) = merged(Some(ENTRY), kills(&[2_000, 3_000]));
        assert_eq!((entry, freed), (None, true));
        assert_eq!(totals, Totals { value_bytes: 1, ..Totals::default() });
    }

    #[test]
    fn a_run_whose_counts_contradict_themselves_is_kept() {
        for wrong in [&[2_000, 3_000, 1][..], &[5_001], &[5_000], &[2_000, 2_999]] {
            let (entry, freed, _) = merged(Some(ENTRY), kills(wrong));
            assert!(entry.is_some_and(|entry| entry.uncertain) && !freed, "{wrong:?}");
        }
        // A doubted run is kept regardless of the counts.
        let doubted = RunEntry { uncertain: true, ..ENTRY };
        let (entry, freed, _) = merged(Some(doubted), kills(&[2_000, 3_000]));
        assert!(entry.is_some_and(|entry| entry.uncertain) && !freed);
        let mut ops = LivenessOps::default();
        ops.doubt(9, Doubt::Count);
        assert!(merged(Some(ENTRY), ops).0.is_some_and(|entry| entry.uncertain));
        // A run that cannot be rewritten is still counted, and freed.
        let mut ops = kills(&[2_000, 3_000]);
        ops.doubt(9, Doubt::Contents);
        assert!(merged(Some(ENTRY), ops).1);
        let mut ops = LivenessOps::default();
        ops.doubt(9, Doubt::Contents);
        assert_eq!(merged(Some(ENTRY), ops).0, Some(RunEntry { fixed: true, ..ENTRY }));
    }

    #[test]
    fn new_runs_are_counted_in_and_counts_can_be_set() {
        let mut ops = kills(&[2_000]);
        ops.set(9, ENTRY);
        let (entry, _, totals) = merged(None, ops);
        assert_eq!(entry, Some(RunEntry { live_values: 1, live_bytes: 3_000, ..ENTRY }));
        assert_eq!((totals.runs, totals.packed_live_bytes), (1, 3_000));
        let mut ops = LivenessOps::default();
        ops.set(9, ENTRY);
        let (entry, _, totals) = merged(Some(RunEntry { uncertain: true, live_bytes: 77, ..ENTRY }), ops);
        assert_eq!((entry, totals.packed_live_bytes), (Some(ENTRY), 5_000));
        let (entry, freed, _) = merged(None, kills(&[2_000]));
        assert_eq!((entry, freed), (None, false));
    }
}
