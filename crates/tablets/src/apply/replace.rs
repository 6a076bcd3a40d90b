//! The changes that an apply makes to a tree's entries: the newest record replaces the old entry, and moved values get a new place.

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::{Lsn, Run};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::is_uncounted;
use shoal_common::leaf_entry::LeafEntry;
use shoal_log::Record;
use shoal_log::format::RecordKind;
use shoal_tree::{Fate, Merge, Old};
use shoal_value::packed::Totals;
use shoal_value::{Entry, Home, decode_leaf_entry, end_of};

use crate::apply::progress::Progress;
use crate::checkpoint::checkpointer::Checkpointer;
use crate::gc::liveness::LivenessOps;
use crate::tablet::result_totals::ResultTotals;

/// An operation of an apply on one key. It has a body if its value went home or moved.
pub(crate) struct Op {
    pub what: What,
    pub body: Option<Bytes>,
    /// Bytes of the key's value after the apply.
    pub value_bytes: u64,
}

pub(crate) enum What {
    /// A record of the memtable.
    Record(Arc<Record>),
    /// A put of the memtable whose object has expired: applied as a delete.
    Expired(Arc<Record>),
    /// A delete of a part of the tree: the runs of its value belong to an object of this apply (R44).
    Adopted(Arc<Record>),
    /// A value of the tree goes to another place.
    Move(Box<Moved>),
    /// The entry of this key stays, and moves with its leaf to another block.
    Touch(Bytes),
}

pub(crate) struct Moved {
    pub key: Bytes,
    pub version: Lsn,
    /// The tree's entry.
    pub entry: Entry,
    /// The packed run that takes the value, if any.
    pub to: Option<u64>,
    /// The value's new runs if no packed run takes it.
    pub own: Vec<Run>,
}

impl Op {
    pub(crate) fn key(&self) -> &[u8] {
        match &self.what {
            What::Record(record) | What::Expired(record) | What::Adopted(record) => record.key(),
            What::Move(moved) => &moved.key,
            What::Touch(key) => key,
        }
    }

    /// The record of a memtable; `None` for a move.
    pub(crate) fn record(&self) -> Option<&Record> {
        match &self.what {
            What::Record(record) | What::Expired(record) | What::Adopted(record) => Some(record),
            What::Move(_) | What::Touch(_) => None,
        }
    }

    /// The version of the record if the key does not exist after the apply.
    pub(crate) fn deletes(&self) -> Option<Lsn> {
        match &self.what {
            What::Record(record) if record.kind() == RecordKind::Delete => Some(record.lsn()),
            What::Expired(record) | What::Adopted(record) => Some(record.lsn()),
            What::Record(_) | What::Move(_) | What::Touch(_) => None,
        }
    }

    /// Returns true for the put of an object that has expired.
    pub(crate) fn is_expired(&self) -> bool {
        matches!(self.what, What::Expired(_))
    }

    /// Runs that a memtable's record owns.
    pub(crate) fn owned(&self) -> &[Run] {
        self.record().map_or(&[], Record::owned)
    }
}

/// Replaces the tree's entries by the newest records and keeps the replaced entries.
pub(crate) struct ReplaceEntries<'a> {
    checkpointer: &'a Checkpointer,
    /// Entries that are not in the new tree and may own runs.
    pub old: Vec<(Lsn, Entry)>,
    /// Runs that nothing names: taken for values that did not move in the end, and the manifests of adopted parts.
    pub unplaced: Vec<Run>,
    pub liveness: LivenessOps,
    bytes_added: u64,
    bytes_removed: u64,
    /// Objects with a deadline.
    expiring_added: u64,
    expiring_removed: u64,
    /// Entries that shadow older ones unread (INV-27).
    pub unsettled: u64,
    /// The change of the results of writes with a request id.
    pub results: ResultTotals,
    pub moved_values: u64,
    pub moved_bytes: u64,
    pub progress: Progress<'a>,
}

impl<'a> ReplaceEntries<'a> {
    pub(crate) fn new(checkpointer: &'a Checkpointer, liveness: LivenessOps, progress: Progress<'a>) -> Self {
        Self {
            checkpointer,
            old: Vec::new(),
            unplaced: Vec::new(),
            liveness,
            bytes_added: 0,
            bytes_removed: 0,
            expiring_added: 0,
            expiring_removed: 0,
            unsettled: 0,
            results: ResultTotals::default(),
            moved_values: 0,
            moved_bytes: 0,
            progress,
        }
    }

    /// The tree's totals after the apply, without the changes of its packed runs.
    pub(crate) fn totals_after(&self, before: Totals) -> Totals {
        let left = |before: u64, added: u64, removed: u64| (before + added).saturating_sub(removed);
        Totals {
            value_bytes: left(before.value_bytes, self.bytes_added, self.bytes_removed),
            expiring: before.expiring.map(|count| left(count, self.expiring_added, self.expiring_removed)),
            ..before
        }
    }

    /// Puts the entry of a record above a plain one that is not read. The older value is estimated to be as long as the new one, so the
    /// totals do not change.
    ///
    /// # Errors
    /// As [`merge`](Merge::merge).
    pub(crate) fn shadow_unread(&mut self, op: &Op, new: &mut Vec<u8>) -> Result<()> {
        let What::Record(record) = &op.what else { unreachable!("only a record shadows an entry unread") };
        self.checkpointer.closing.step()?;
        self.progress.note(1);
        self.progress.keep_pace();
        let body = record.body_bytes();
        let estimate = u16::try_from(op.value_bytes).unwrap_or(u16::MAX);
        assert!(u64::from(estimate) == op.value_bytes, "a value in a leaf is short (INV-27)");
        self.unsettled += 1;
        self.expiring_added += u64::from(end_of(body).is_some());
        LeafEntry { version: record.lsn().0, estimate: Some(estimate), body }.encode(new);
        Ok(())
    }

    /// Notes an entry that the tree loses to version `by` of the same key, by `op`.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the entry is newer than its replacement: continuing would lose a write.
    fn replaced(&mut self, op: &Op, old: &[u8], by: Lsn) -> Result<()> {
        let (key, is_adopted) = (op.key(), matches!(op.what, What::Adopted(_)));
        match decode_leaf_entry(old) {
            Ok((version, entry)) => {
                let is_expected = injected(Bug::VersionsAgain) || injected(Bug::ReplayedTwice);
                if version > by && !is_expected {
                    // R5, R13
                    let key = key.escape_ascii();
                    let what = format!("version {by} of {key} would replace version {version}, a newer one");
                    self.checkpointer.log.fail(what.clone());
                    return Err(Error::Poisoned(what));
                }
                self.bytes_removed += entry.value_bytes;
                self.expiring_removed += u64::from(entry.end.is_some());
                if is_uncounted(key) {
                    self.results.remove(key, &entry);
                }
                match entry.home {
                    Home::Inline => {}
                    Home::Packed { .. } if injected(Bug::DeadStayCounted) => {}
                    Home::Packed { run, .. } => self.liveness.kill(run, entry.stored_bytes()),
                    Home::Extents { .. } if is_adopted => {}
                    Home::Manifest { runs, .. } if is_adopted => self.unplaced.extend(runs),
                    Home::Extents { .. } | Home::Manifest { .. } if injected(Bug::ReplacedNotFreed) => {}
                    Home::Extents { .. } | Home::Manifest { .. } => self.old.push((version, entry)),
                }
            }
            Err(_) => {
                let key = key.escape_ascii();
                tracing::warn!(
                    "the entry of {key} was not readable: its space is lost until `shoal check --repair`"
                );
            }
        }
        Ok(())
    }

    /// Returns true if the tree still has the entry to move.
    fn is_unchanged(moved: &Moved, old: Old<'_>) -> bool {
        let Old::Present(old) = old else { return false };
        decode_leaf_entry(old).is_ok_and(|(version, entry)| version == moved.version && entry == moved.entry)
    }
}

impl Merge for ReplaceEntries<'_> {
    type Op = Op;

    fn key<'a>(&self, op: &'a Op) -> &'a [u8] {
        op.key()
    }

    fn merge(&mut self, op: &Op, old: Old<'_>, new: &mut Vec<u8>) -> Result<Fate> {
        self.checkpointer.closing.step()?;
        self.progress.note(1);
        self.progress.keep_pace();
        let (version, body) = match &op.what {
            What::Expired(record) | What::Adopted(record) => (record.lsn(), &[][..]),
            What::Record(record) => (record.lsn(), op.body.as_deref().unwrap_or_else(|| record.body_bytes())),
            What::Move(moved) => {
                if !Self::is_unchanged(moved, old) {
                    // The leaf was lost after the value was read: nothing names the new place.
                    if let Some(to) = moved.to {
                        self.liveness.kill(to, moved.entry.stored_bytes());
                    }
                    self.unplaced.extend_from_slice(&moved.own);
                    return Ok(Fate::Stay);
                }
                self.moved_values += 1;
                self.moved_bytes += moved.entry.stored_bytes();
                (moved.version, op.body.as_deref().unwrap_or_default())
            }
            What::Touch(_) => {
                let Old::Present(old) = old else { return Ok(Fate::Stay) };
                new.extend_from_slice(old);
                return Ok(Fate::Put);
            }
        };
        if let Old::Present(old) = old {
            self.replaced(op, old, version)?;
        }
        if op.deletes().is_some() {
            return Ok(Fate::Delete);
        }
        self.bytes_added += op.value_bytes;
        self.expiring_added += u64::from(end_of(body).is_some());
        if is_uncounted(op.key()) {
            self.results.add(op.key(), op.value_bytes, end_of(body).is_some());
        }
        new.extend_from_slice(&version.0.to_le_bytes());
        new.extend_from_slice(body);
        Ok(Fate::Put)
    }
}
