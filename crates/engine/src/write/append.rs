//! Queues a write batch: memtables and queue get all of its records at one moment, if its condition holds at that
//! moment.
//!
//! The locks of the memtables of all its keys are taken in the order of tablets. Under them, the states that were read
//! before are compared with the present ones.

use std::sync::{Arc, Weak};

use shoal_base::Lsn;
use shoal_base::sync::MutexGuard;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::ObjectKey;
use shoal_common::object::{EndTime, RejectRules};
use shoal_log::format::RecordKind;
use shoal_log::{FETCHED, Item, Kept, QueuedBatch, Record, UNNUMBERED};
use shoal_memtable::write_counts::WriteCounts;
use shoal_memtable::{self as memtable, Growth};
use shoal_space_manager::{ReadEpoch, Reservation};
use shoal_tablets::tablet::view::{Tablet, View};
use shoal_value::end_of;
use smallvec::SmallVec;

use crate::store::Inner;
use crate::write::batch::{AdmittedBatch, PreparedRecord};
use crate::write::watch::Watch;

/// The condition of a write batch at the moment at which it is queued.
pub(crate) enum Condition<'a> {
    /// None: it always holds.
    Always,
    /// The rules accept the key's state.
    Rules {
        key: &'a ObjectKey,
        rules: RejectRules,
        /// The key's state in its tablet's trees, if it was read: without a record in a memtable it decides.
        tree: Option<&'a TreeState>,
    },
    /// The keys that were read are in the states that were seen, and no watched key changed.
    Seen { keys: &'a [ObjectKey], seen: &'a [Option<Seen>], watches: &'a [Watch] },
}

/// The newest state of a key, and the view in which it was seen.
pub(crate) struct Seen {
    pub view: Arc<View>,
    /// The record in a memtable; `None`: the state is the tree's.
    pub record: Option<Arc<Record>>,
    /// The deadline and the version that were seen: the state changes when the deadline passes.
    pub expires: Option<(EndTime, Lsn)>,
}

/// The state of a key in the trees of its tablet, valid until the next publish.
pub(crate) struct TreeState {
    /// The read epoch of these trees. It is not held, because the write may wait for room that is freed only after this
    /// epoch (R16).
    epoch: Weak<ReadEpoch>,
    /// The version and the deadline of the object; an error if the trees could not answer.
    found: Result<Option<(Lsn, Option<EndTime>)>>,
}

/// The result of an attempt to queue a batch.
pub(crate) enum Attempt {
    /// The condition holds, and the batch is queued. With the version before, if the rules read it.
    Done(Option<Lsn>),
    /// A key is not in the state that was seen, or its state in the trees decides and was not read.
    Conflict,
    /// A watched key changed.
    Changed,
    /// The rules reject this state of the key.
    Rejected(Newest),
    /// The rules depend on the number of this record, which is not numbered yet.
    Undecided(Arc<Record>),
}

/// The newest state of a key, as seen under the memtable's lock.
pub(crate) enum Newest {
    /// A record in a memtable, perhaps in flight; `exists` is false if it deletes the object or the object has expired.
    Record { record: Arc<Record>, exists: bool },
    /// The version in the tree.
    Tree(Option<Lsn>),
}

impl Inner {
    /// Evaluates `rules`, and queues the batch if they accept. Returns the version before, if it was read. Without a
    /// batch it only evaluates, for an early answer before a value is written. `tree` keeps the state that was read
    /// from the trees, for the next call.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`]: nothing happened. Errors of the device.
    pub(crate) async fn queue_by_rules<'a>(
        &'a self,
        key: &ObjectKey,
        rules: RejectRules,
        tree: &mut Option<TreeState>,
        mut batch: Option<AdmittedBatch<'a>>,
    ) -> Result<Option<Lsn>> {
        loop {
            let condition = if rules.is_empty() {
                Condition::Always
            } else {
                Condition::Rules { key, rules, tree: tree.as_ref() }
            };
            match self.try_queue(condition, &mut batch)? {
                Attempt::Done(before) => return Ok(before),
                Attempt::Rejected(newest) => return Err(self.rejected(newest).await?),
                Attempt::Undecided(record) => {
                    self.log.committer.drive_until(&record).await?;
                }
                Attempt::Conflict | Attempt::Changed => *tree = Some(self.tree_state(key).await),
            }
        }
    }

    /// Queues the batch, if there is one, if the condition holds: all at one moment. Never waits.
    ///
    /// # Errors
    /// The store is read-only or closed; the tree could not return the state that the condition needs.
    pub(crate) fn try_queue<'a>(
        &'a self,
        condition: Condition<'_>,
        batch: &mut Option<AdmittedBatch<'a>>,
    ) -> Result<Attempt> {
        let mut tablets: SmallVec<[&Arc<Tablet>; 4]> =
            batch.iter().flat_map(|batch| batch.tablets()).collect();
        condition.each_key(|key| tablets.push(self.tablets.of(key)));
        tablets.sort_unstable_by_key(|tablet| tablet.id);
        tablets.dedup_by_key(|tablet| tablet.id);
        loop {
            let views: SmallVec<[Arc<View>; 4]> = tablets.iter().map(|tablet| tablet.view()).collect();
            let Some(locked) = lock_all(&views) else { continue };
            if let Some(batch) = batch {
                self.check_writable()?;
                batch.batch.check_buckets()?;
            }
            let mut place = LockedMemtables { tablets: &tablets, views: &views, locked };
            let attempt = self.judge(condition, &place)?;
            if let Attempt::Done(_) = attempt
                && let Some(batch) = batch.take()
            {
                self.insert(&mut place, batch);
            }
            return Ok(attempt);
        }
    }

    /// Evaluates the condition under the memtables' locks.
    fn judge(&self, condition: Condition<'_>, place: &LockedMemtables<'_>) -> Result<Attempt> {
        match condition {
            Condition::Always => Ok(Attempt::Done(None)),
            Condition::Rules { key, rules, tree } => self.judge_rules(key, rules, tree, place),
            Condition::Seen { keys, seen, watches } => {
                assert_eq!(keys.len(), seen.len(), "each key that was read is compared (R22)");
                for (key, seen) in keys.iter().zip(seen) {
                    if !seen.as_ref().is_none_or(|seen| self.is_unchanged(seen, key, place)) {
                        return Ok(Attempt::Conflict);
                    }
                }
                let is_changed = watches.iter().any(Watch::is_changed);
                Ok(if is_changed { Attempt::Changed } else { Attempt::Done(None) })
            }
        }
    }

    /// Evaluates rules under the memtable's lock. A record in a memtable decides. Without one the state `tree` does, which was read
    /// before: while the present view has the same root, it is still that of the trees (R6).
    fn judge_rules(
        &self,
        key: &ObjectKey,
        rules: RejectRules,
        tree: Option<&TreeState>,
        place: &LockedMemtables<'_>,
    ) -> Result<Attempt> {
        let (view, active) = place.of(self.tablets.of(key));
        let newest = if injected(Bug::ConditionsForgetFrozen) {
            active.newest(key.encoded()).cloned()
        } else {
            newest(view, active, key)
        };
        let Some(record) = newest else {
            let Some(tree) = tree.filter(|tree| tree.epoch.as_ptr() == Arc::as_ptr(&view.epoch)) else {
                return Ok(Attempt::Conflict);
            };
            let found = tree.found.clone()?.filter(|&(version, end)| !self.is_over(end, version));
            let version = found.map(|(version, _)| version);
            let rejects = rules.reject(version);
            return Ok(if rejects {
                Attempt::Rejected(Newest::Tree(version))
            } else {
                Attempt::Done(version)
            });
        };
        let exists = record.kind() == RecordKind::Put && !self.is_record_over(&record);
        let lsn = record.lsn_raw();
        let is_numbered = lsn != UNNUMBERED;
        // Its number will be above all assigned ones; only an "at most" with a larger number is undecided.
        let asks_number =
            rules.if_version_at_most.is_some_and(|at_most| at_most > self.log.committer.assigned());
        if exists && !is_numbered && asks_number {
            return Ok(Attempt::Undecided(record));
        }
        // Without a number it counts as above all.
        let current = exists.then_some(Lsn(lsn));
        Ok(if rules.reject(current) {
            Attempt::Rejected(Newest::Record { record, exists })
        } else {
            Attempt::Done(current.filter(|_| is_numbered))
        })
    }

    /// Returns true if the key's newest state is still the one that was seen. Called under the memtables' locks.
    fn is_unchanged(&self, seen: &Seen, key: &ObjectKey, place: &LockedMemtables<'_>) -> bool {
        if seen.expires.is_some_and(|(end, version)| self.is_over(Some(end), version)) {
            return false;
        }
        let (view, active) = place.of(self.tablets.of(key));
        match (&newest(view, active, key), &seen.record) {
            (Some(newest), Some(seen)) => Arc::ptr_eq(newest, seen),
            // The tree's answer is valid while its root is the same (R6): a root has one read epoch.
            (None, None) => Arc::ptr_eq(&view.epoch, &seen.view.epoch),
            _ => false,
        }
    }

    /// Puts the batch into memtables and queue under the memtables' locks; nothing else happens at that moment (R4).
    fn insert(&self, place: &mut LockedMemtables<'_>, admitted: AdmittedBatch<'_>) {
        assert!(
            place.tablets.is_sorted_by(|before, after| before.id < after.id),
            "memtables are locked in the order of their tablets (R22)"
        );
        let AdmittedBatch { batch, permit } = admitted;
        let (mut growth, mut of_records) = (Growth::default(), 0);
        let mut queued = QueuedBatch {
            records: SmallVec::with_capacity(batch.records.len()),
            writes: batch.writes,
            has_extents: !batch.extents.is_empty(),
            kept: batch.kept,
        };
        if batch.records.len() > 1 {
            batch.records.chunks(FETCHED).for_each(|some| place.fetch(some));
        }
        let (mut kept, mut deleted) = (queued.kept.iter_mut().peekable(), Vec::new());
        for PreparedRecord { tablet, hash, record } in batch.records {
            let (view, active) = place.of_mut(tablet);
            if let Some((_, kept)) = kept.next_if(|(of, _)| Arc::ptr_eq(of, &record)) {
                kept.supersedes(active.newest(record.key()).cloned());
            } else if record.kind() == RecordKind::Delete
                && let Some(superseded) = active.newest(record.key()).and_then(Kept::of_superseded)
            {
                deleted.push((record.clone(), superseded));
            }
            of_records += record.reserved_blocks();
            queued.records.push(record.clone());
            growth = growth.and(self.insert_record(view, active, record, hash));
        }
        assert!(kept.next().is_none(), "a value stays in the pool with its record");
        queued.kept.extend(deleted);
        let reserved = batch.reservation.map_or(0, Reservation::keep);
        assert_eq!(reserved, of_records, "records know the blocks that are reserved for their apply (R3)");
        batch.extents.iter().for_each(|extents| extents.keep());
        // Before the batch is queued: a write that waits for room is woken when the batch is written.
        permit.memtables.keep(&growth);
        if growth.dropped.reserved_blocks > 0 {
            self.space.release_reservation(growth.dropped.reserved_blocks);
        }
        self.log.committer.submit(Item::Writes { batch: queued, reserved: permit.log.keep() });
    }

    /// Inserts a record into the memtable, whose lock is held, and bumps the write count of its key for the
    /// read caches.
    fn insert_record(
        &self,
        view: &View,
        active: &mut memtable::Inner,
        record: Arc<Record>,
        hash: u64,
    ) -> Growth {
        let count = self.tablets.write_counts.of(hash);
        self.tablets.watches.note(hash, record.key(), record.kind());
        let growth = view.active.insert(active, record, hash, self.log.committer.durable());
        if injected(Bug::DroppedFreedAtOnce) {
            active.take_superseded().iter().for_each(|record| self.space.give_back(record.owned()));
        }
        // Bump the write count after the insert, so that a read cache that observes the new count also observes the
        // record.
        WriteCounts::note(count);
        growth
    }

    /// A rejection that was derived from an entry in flight waits until that entry is durable.
    async fn rejected(&self, newest: Newest) -> Result<Error> {
        let current = match newest {
            Newest::Tree(version) => version,
            Newest::Record { record, exists } => {
                let lsn = self.log.committer.drive_until(&record).await?;
                exists.then_some(lsn)
            }
        };
        Ok(Error::ConditionFailed { current, at: 0 })
    }

    /// The state of a key in the newest trees of its tablet.
    async fn tree_state(&self, key: &ObjectKey) -> TreeState {
        let view = self.tablets.of(key).view();
        let found = self.find_in_tree(&view, key.encoded()).await;
        let found = found.map(|leaf| leaf.map(|leaf| (leaf.version, leaf.entry.end)));
        TreeState { epoch: Arc::downgrade(&view.epoch), found }
    }

    /// Returns true if the object that a put's record holds has expired.
    fn is_record_over(&self, record: &Record) -> bool {
        self.is_over(end_of(record.body_bytes()), Lsn(record.lsn_raw()))
    }

    /// Returns true if this version of an object has expired. `version` is [`UNNUMBERED`] if it has no number yet.
    #[inline]
    pub(crate) fn is_over(&self, end: Option<EndTime>, version: Lsn) -> bool {
        end.is_some() && self.log.is_over(end, version)
    }

    /// Counts an operation.
    pub(crate) fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Condition<'_> {
    fn each_key<'k>(&'k self, mut show: impl FnMut(&'k ObjectKey)) {
        match self {
            Self::Always => {}
            Self::Rules { key, .. } => show(key),
            Self::Seen { keys, watches, .. } => {
                keys.iter().chain(watches.iter().map(Watch::key)).for_each(show);
            }
        }
    }
}

/// The active memtables of some tablets, locked.
struct LockedMemtables<'a> {
    tablets: &'a [&'a Arc<Tablet>],
    views: &'a [Arc<View>],
    locked: SmallVec<[MutexGuard<'a, memtable::Inner>; 4]>,
}

impl LockedMemtables<'_> {
    fn at(&self, tablet: &Tablet) -> usize {
        let at = self.tablets.partition_point(|other| other.id < tablet.id);
        assert_eq!(self.tablets[at].id, tablet.id, "the memtable of each key is locked (R4)");
        at
    }

    fn of(&self, tablet: &Tablet) -> (&View, &memtable::Inner) {
        let at = self.at(tablet);
        (&self.views[at], &self.locked[at])
    }

    /// Reads the memory that the insertion of these records, [`FETCHED`] at most, uses. Each needs four reads one after the other,
    /// none of which is in the processor's cache: it does the reads of all records in parallel.
    fn fetch(&self, records: &[PreparedRecord<'_>]) {
        let guesses: SmallVec<[_; FETCHED]> = records
            .iter()
            .map(|PreparedRecord { tablet, hash, .. }| {
                let (_, active) = self.of(tablet);
                (active, active.guess(*hash))
            })
            .collect();
        let found: SmallVec<[&[Arc<Record>]; FETCHED]> =
            guesses.iter().map(|(active, guess)| active.guessed(*guess)).collect();
        shoal_log::fetch(found.iter().copied().flatten().map(|record| &**record));
    }

    fn of_mut(&mut self, tablet: &Tablet) -> (&View, &mut memtable::Inner) {
        let at = self.at(tablet);
        (&self.views[at], &mut self.locked[at])
    }
}

/// The newest record of a key in the memtables of `view`, of which the active one is locked.
fn newest(view: &View, active: &memtable::Inner, key: &ObjectKey) -> Option<Arc<Record>> {
    active.newest(key.encoded()).cloned().or_else(|| view.frozen.as_ref()?.newest(key.encoded()))
}

/// Locks all active memtables in the order of tablets. Returns `None` if one of them was frozen meanwhile. Each is
/// checked before the next lock is taken: a frozen memtable's lock comes after all active ones.
fn lock_all(views: &[Arc<View>]) -> Option<SmallVec<[MutexGuard<'_, memtable::Inner>; 4]>> {
    let mut locked = SmallVec::with_capacity(views.len());
    for view in views {
        let active = view.active.lock();
        if active.is_frozen() {
            return None;
        }
        locked.push(active);
    }
    Some(locked)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shoal_base::{ManualClock, SeededEntropy};

    use super::*;
    use crate::testing::fixtures::{Fixture, key, options, put};
    use crate::{Environment, Expiry, PutOptions, Store, block_on};

    fn evaluate(store: &Store, key: &ObjectKey, rules: RejectRules, tree: Option<&TreeState>) -> Attempt {
        store.0.try_queue(Condition::Rules { key, rules, tree }, &mut None).unwrap()
    }

    fn apply(store: &Store) {
        block_on(store.0.checkpointer.apply_all()).unwrap();
    }

    /// A record in a memtable decides without the trees. Their state decides while it is the newest, and holds no read epoch.
    #[test]
    fn the_state_of_the_trees_decides_until_the_next_publish() {
        let (store, key) = (Fixture::new().open().unwrap(), key(1));
        let rules = RejectRules { if_missing: true, ..RejectRules::default() };
        put(&store, &key, "a");
        assert!(matches!(evaluate(&store, &key, rules, None), Attempt::Done(Some(_))));
        apply(&store);
        assert!(matches!(evaluate(&store, &key, rules, None), Attempt::Conflict), "the trees were not read");
        let before = block_on(store.0.tree_state(&key));
        assert!(matches!(evaluate(&store, &key, rules, Some(&before)), Attempt::Done(Some(_))));
        block_on(store.delete(&key, RejectRules::default())).unwrap();
        assert!(matches!(
            evaluate(&store, &key, rules, Some(&before)),
            Attempt::Rejected(Newest::Record { exists: false, .. })
        ));
        apply(&store);
        assert!(matches!(evaluate(&store, &key, rules, Some(&before)), Attempt::Conflict), "older trees");
        assert!(before.epoch.upgrade().is_none(), "the write would keep the old trees");
        let now = block_on(store.0.tree_state(&key));
        assert!(matches!(evaluate(&store, &key, rules, Some(&now)), Attempt::Rejected(Newest::Tree(None))));
    }

    /// An object that expires while the write waits for room does not exist any more.
    #[test]
    fn a_deadline_counts_when_the_write_is_queued() {
        let clock = Arc::new(ManualClock::new(1_000));
        let environment = Environment { clock: clock.clone(), entropy: Arc::new(SeededEntropy::new(5)) };
        let (store, key) =
            (block_on(Store::open(Fixture::new().device, options(), environment)).unwrap(), key(1));
        let expiry = Expiry::After(Duration::from_secs(10));
        block_on(store.put(&key, b"a".to_vec().into(), PutOptions { expiry, ..PutOptions::default() }))
            .unwrap();
        apply(&store);
        let (state, rules) =
            (block_on(store.0.tree_state(&key)), RejectRules { if_missing: true, ..RejectRules::default() });
        assert!(matches!(evaluate(&store, &key, rules, Some(&state)), Attempt::Done(Some(_))));
        clock.advance(11_000_000_000);
        assert!(matches!(evaluate(&store, &key, rules, Some(&state)), Attempt::Rejected(Newest::Tree(None))));
    }
}
