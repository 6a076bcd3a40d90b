//! Salvage of the log's batches after damage: for `shoal check --repair`.
//!
//! An opening reads the log up to the damage and cuts it there. Later batches may still lie in the ring, and their
//! newest part can be trusted: the batches that are linked to the last one of this epoch, each by its checksum in the
//! next. Every record of a key in that part is newer than all records that the opening finds, and the newest of them is
//! the key's newest record. So the repair writes these write batches again, each as a whole or not at all (R22). A
//! write batch with an unreadable value is left out, and its objects are named. A tablet whose tree already holds a
//! record does not get it again.
//!
//! The records between the damage and that part are lost: an object written there, and not later, stays as an older
//! record left it. The report has the numbers of these records; the names of their objects are unknown.
//!
//! Batches between two damaged places are linked to nothing. A batch of an older pass of the ring could be among them,
//! so they are not trusted.
//!
//! If the newest superblock is lost together with an opening that it published, the log continues in an epoch that the
//! older superblock does not know. These batches come after the damage, too: no older batch has an epoch above the
//! superblock's.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use shoal_base::Lsn;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_common::error::Result;
use shoal_common::hidden_key::is_hidden;
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::{ObjectKey, name, of_encoded};
use shoal_image::losses::Losses;
use shoal_log::format::{BatchHeader, EncodedRecord, RecordKind};
use shoal_log::{LogPlace, Ring};
use shoal_tablets::checkpoint::publish::Publication;
use shoal_value::{Entry, Home, read_direct};

use crate::bucket::is_record;
use crate::recovery::read::Recovery;
use crate::recovery::repair::tree_salvage::{Batches, Found, batch_before, contents, read_batch};
use crate::recovery::report::CheckReport;
use crate::store::Store;
use crate::write::change::Change;
use crate::write::change::ReadLevel;
use crate::write::txn::{Decision, TransactOptions};

/// Objects whose newest record could not be written again, by encoded key; true if that record deletes.
pub(crate) type NotDone = BTreeMap<Vec<u8>, bool>;

/// The objects of a write batch and their changes, in the order of its records.
type Changes = Vec<(ObjectKey, Change)>;

/// The write batches to write again.
#[derive(Default)]
pub(crate) struct LogSalvage {
    /// The write batches, the newest first.
    write_batches: Vec<Changes>,
    bytes: usize,
    /// Number ranges of the lost records: at the cut of the log, and promised ones after its newest whole batch.
    pub lost: Vec<Range<u64>>,
    /// True if memory was full before all batches were read.
    pub is_full: bool,
    /// Headers of these batches, the newest first: their clocks count (R18).
    pub headers: Vec<BatchHeader>,
    /// The newest epoch and the largest record number in the whole ring: neither is given again (R1, R5).
    pub given: (u64, Lsn),
    /// Objects whose newest record cannot be written again, true if it deletes, and the reason; the newest first.
    left_out: Vec<(Vec<u8>, bool, &'static str)>,
}

/// Reads the batches after the cut of the log, up to `bytes_max` bytes of keys and values.
pub(crate) async fn read_log_salvage(recovery: &Recovery, found: &Batches, bytes_max: usize) -> LogSalvage {
    let Recovery { device, superblock, log, .. } = recovery;
    let ring = superblock.layout.ring();
    let mut salvage = LogSalvage { given: given(found), ..LogSalvage::default() };
    if !recovery.is_cut {
        return salvage;
    }
    let first = log.head.first_lsn.0;
    let mut newest = newest_batch(recovery, found, ring);
    let end = newest.map_or(0, |batch| batch.header.next_lsn().0).max(first);
    let mut lost_to = end;
    let mut decided = HashSet::new();
    while let Some(batch) = newest.filter(|batch| batch.header.position >= log.head.position)
        && let Some(records) = read_batch(device, superblock.log_seed, batch).await
    {
        let lsns = batch.header.first_lsn.0..;
        let mut records: Vec<(Lsn, EncodedRecord)> = lsns.map(Lsn).zip(records).collect();
        while let Some(write_batch) = last_write_batch(&mut records) {
            if salvage.bytes > bytes_max {
                salvage.is_full = true;
                break;
            }
            salvage.add(recovery, &write_batch, &mut decided).await;
            lost_to = write_batch.first().map_or(lost_to, |(lsn, _)| lsn.0);
        }
        if salvage.is_full {
            break;
        }
        lost_to = batch.header.first_lsn.0;
        salvage.headers.push(batch.header);
        let place = batch.header.place();
        if is_linked(place, log.head, ring) {
            // An opening skips numbers: there is no record between these two.
            lost_to = first;
            break;
        }
        newest = batch_before(found, place, batch.header.epoch, ring);
        if injected(Bug::UnlinkedBelieved) && newest.is_none() {
            let before = found.values().flatten().filter(|other| other.header.position < place.position);
            newest = before.max_by_key(|other| other.header.position);
        }
    }
    let promised = log.promised.0 + 1;
    // Without a whole batch between them, the two ranges are one.
    let (lost, tail) =
        if lost_to == end { (first..promised.max(end), 0..0) } else { (first..lost_to, end..promised) };
    // Records that every tree holds are not lost.
    let applied = superblock.tablets.iter().map(|tablet| tablet.applied.0).min().unwrap_or(0);
    let unapplied = |range: Range<u64>| range.start.max(applied + 1)..range.end;
    salvage.lost = [lost, tail].into_iter().map(unapplied).filter(|range| !range.is_empty()).collect();
    salvage
}

/// The newest epoch and the largest record number in the ring.
fn given(found: &Batches) -> (u64, Lsn) {
    let headers = || found.values().flatten().map(|batch| &batch.header);
    let last = headers().map(|header| header.next_lsn().0).max();
    (headers().map(|header| header.epoch).max().unwrap_or(0), Lsn(last.unwrap_or(0).saturating_sub(1)))
}

/// Returns true if the batch at `place` was written directly after the last batch that the opening found.
fn is_linked(place: LogPlace, head: LogPlace, ring: Ring) -> bool {
    place.chain == head.chain
        && (place.position == head.position || place.position == ring.turn(head.position))
}

/// The last batch after the damage of the newest epoch. If that epoch has no batch yet, the batch after which it began.
///
/// There is no upper bound: if the newest superblock is lost, the log has continued further than the older one allows.
fn newest_batch<'a>(recovery: &Recovery, found: &'a Batches, ring: Ring) -> Option<&'a Found> {
    let Recovery { superblock, log, .. } = recovery;
    let behind = |batch: &&Found| batch.header.position >= log.head.position;
    let all = || found.values().flatten().filter(behind);
    let ours = all().filter(|batch| {
        batch.header.epoch == superblock.epoch && batch.header.position >= superblock.epoch_position
    });
    // Not across an omitted epoch: records are missing there (`open.rs`).
    let before = all().filter(|batch| {
        let end = batch.header.end();
        let meets = end == superblock.epoch_position || ring.turn(end) == superblock.epoch_position;
        meets && batch.header.epoch + 1 == superblock.epoch
    });
    let later = all().filter(|batch| batch.header.epoch > superblock.epoch);
    later
        .max_by_key(|batch| (batch.header.epoch, batch.header.position))
        .or_else(|| ours.max_by_key(|batch| batch.header.position))
        .or_else(|| before.max_by_key(|batch| batch.header.position))
}

/// Removes the last write batch from the end of `records`.
fn last_write_batch(records: &mut Vec<(Lsn, EncodedRecord)>) -> Option<Vec<(Lsn, EncodedRecord)>> {
    let before = records.len().checked_sub(1)?;
    let start =
        records[..before].iter().rposition(|(_, record)| !record.continues).map_or(0, |last| last + 1);
    assert!(start <= before, "a write batch has a record");
    Some(records.split_off(start))
}

impl LogSalvage {
    /// Returns true if there is a write batch to write again.
    pub(crate) fn has_write_batches(&self) -> bool {
        !self.write_batches.is_empty()
    }

    /// MiB of held keys and values.
    pub(crate) fn held_mib(&self) -> usize {
        self.bytes >> 20
    }

    /// Adds a write batch, as a whole or not at all, without records that a newer batch or a tree has already.
    /// `decided` has the keys of newer batches.
    async fn add(
        &mut self,
        recovery: &Recovery,
        write_batch: &[(Lsn, EncodedRecord)],
        decided: &mut HashSet<Vec<u8>>,
    ) {
        assert!(!write_batch.is_empty(), "a write batch has a record");
        let mut changes = Changes::new();
        let mut keys: Vec<(Vec<u8>, bool)> = Vec::new();
        let mut why = None;
        for (lsn, record) in write_batch.iter().rev() {
            let Some(tablet) = recovery.superblock.tablets.get(usize::from(record.tablet.0)) else {
                why = Some("it names a tablet that does not exist");
                continue;
            };
            let key = record.key().to_vec();
            // An upload that loses records is completed again, or aborted.
            if is_hidden(&key) {
                continue;
            }
            if *lsn <= tablet.applied || decided.contains(&key) || keys.iter().any(|(other, _)| *other == key)
            {
                continue;
            }
            match change(recovery, *lsn, record).await {
                Ok(change) => changes.extend(of_encoded(&key).map(|object| (object, change))),
                Err(reason) => why = Some(reason),
            }
            keys.push((key, record.kind == RecordKind::Delete));
        }
        assert!(changes.len() <= keys.len(), "a change without a key");
        if why.is_none() && changes.len() < keys.len() {
            why = Some("it names an object that cannot be");
        }
        self.bytes += keys.iter().map(|(key, _)| key.len()).sum::<usize>();
        if let Some(why) = why.filter(|_| !injected(Bug::WriteBatchesInPart)) {
            self.left_out.extend(keys.into_iter().map(|(key, deletes)| (key, deletes, why)));
            return;
        }
        self.bytes += changes.iter().map(|(_, change)| change.value_bytes()).sum::<usize>();
        decided.extend(keys.into_iter().map(|(key, _)| key));
        changes.reverse();
        if !changes.is_empty() {
            self.write_batches.push(changes);
        }
    }
}

/// The change that the record made, with its value in memory.
async fn change(
    recovery: &Recovery,
    lsn: Lsn,
    record: &EncodedRecord,
) -> std::result::Result<Change, &'static str> {
    if record.kind == RecordKind::Delete {
        return Ok(Change::Delete);
    }
    let (entry, inline) =
        Entry::decode(record.body_bytes()).map_err(|_| "its record cannot be understood")?;
    let stored = if entry.home == Home::Inline {
        inline.to_vec()
    } else if entry.value_bytes > VALUE_BYTES_SINGLE_MAX {
        return Err("its value is larger than 4 MiB");
    } else {
        let Recovery { device, pool, superblock, .. } = recovery;
        let read = read_direct(device, pool, superblock.device_blocks, &entry, lsn).await;
        read.map_err(|_| "its value cannot be read")?
    };
    let (value, options) = contents(&entry, &stored).map_err(|_| "its record cannot be understood")?;
    Ok(Change::PutWith { value: value.into(), options: Box::new(options) })
}

impl Store {
    /// Writes the batches from after the damage again, the oldest first. Reports the written and the lost ones, and
    /// returns the objects whose newest record was not written again.
    ///
    /// # Errors
    /// [`Error::Poisoned`], once the device failed.
    pub(crate) async fn do_again(&self, salvage: LogSalvage, report: &mut CheckReport) -> Result<NotDone> {
        for lost in &salvage.lost {
            report.notes.push(format!(
                "repair: the log's records {} to {} are lost: an object that was written there, and not later, is as it was \
                 before, or missing if its tree did not have it yet; the names are unknown",
                lost.start,
                lost.end - 1
            ));
        }
        if salvage.is_full {
            report.notes.push(format!(
                "repair: {} MiB of values after the damage were held, the limit of memory: records before them are among the \
                 lost (repair a copy again with more --cache)",
                salvage.held_mib()
            ));
        }
        let (mut again, mut not_done) = (0, NotDone::new());
        for (key, deletes, why) in salvage.left_out {
            report.was_not_done_again(&name(&key), why);
            not_done.entry(key).or_insert(deletes);
        }
        for changes in salvage.write_batches.into_iter().rev() {
            match self.write_again(&changes).await {
                Ok(()) => {
                    again += 1;
                    let users = changes.iter().filter(|(key, _)| !key.is_system());
                    users.for_each(|(key, _)| report.was_restored(name(key.encoded())));
                }
                Err(error) => {
                    for (key, change) in &changes {
                        report.was_not_restored(&name(key.encoded()), &error);
                        let deletes = matches!(change, Change::Delete);
                        not_done.entry(key.encoded().to_vec()).or_insert(deletes);
                    }
                    self.0.log.poison.check()?;
                }
            }
        }
        if again > 0 {
            report
                .notes
                .push(format!("repair: {again} write batch(es) after the damage in the log were done again"));
        }
        Ok(not_done)
    }

    /// Reports the present states of the objects of `not_done`, and adds them to the superblock's losses.
    ///
    /// # Errors
    /// As the device; then the store is poisoned.
    pub(crate) async fn account_losses(&self, not_done: NotDone, report: &mut CheckReport) -> Result<()> {
        let before = report.losses;
        for (encoded, deletes) in not_done {
            let Some(key) = of_encoded(&encoded) else { continue };
            if key.is_system() && !is_record(&key) {
                continue;
            }
            let view = self.0.tablets.of(&key).view();
            match (self.0.find(&view, &encoded).await, deletes) {
                (Ok(None), true) => {}
                (Ok(None) | Err(_), _) => report.was_lost(name(&encoded)),
                (Ok(Some(_)), false) => report.was_reverted(name(&encoded)),
                (Ok(Some(_)), true) => report.was_resurrected(name(&encoded)),
            }
        }
        if report.losses != before {
            // The superblock counts the lost records already.
            let more = Losses { lost: report.losses.lost - before.lost, ..report.losses };
            self.0.checkpointer.publish(Publication { losses: Some(more), ..Publication::default() }).await?;
        }
        Ok(())
    }

    async fn write_again(&self, changes: &Changes) -> Result<()> {
        let keys: Vec<(ObjectKey, ReadLevel)> =
            changes.iter().map(|(key, _)| (key.clone(), ReadLevel::Nothing)).collect();
        let decide = |_: &[Option<crate::Object>]| {
            let changes: Vec<Change> = changes.iter().map(|(_, change)| change.clone()).collect();
            Decision::Do(changes.into(), ())
        };
        let outcome = self.transact(&keys, &TransactOptions::default(), decide).await?;
        outcome.done().durable().await.map(|_| ())
    }
}

#[cfg(test)]
#[path = "log_salvage_tests.rs"]
mod tests;
