//! The part that every write shares: conditions, the place in the order, the wait for durability (engine.md, "The way
//! of a write").

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::task::may_block;

use crate::admission::Admitted;
use crate::entry::{End, end_of};
use crate::error::{Error, Result};
use crate::key::ObjectKey;
use crate::log::commit::{Item, Step, ValueWrite};
use crate::log::format::RecordKind;
use crate::near::WriteCounts;
use crate::object::RejectRules;
use crate::overlay::{self, Growth, Record, UNNUMBERED};
use crate::plant::{Plant, planted};
use crate::space::{Extents, Promise};
use crate::store::{Inner, LogRoom, Room, uninterrupted};
use crate::tablet::{Tablet, View};
use crate::value::prepare::Kept;

/// A record with everything that it holds until it takes its place.
pub(crate) struct Prepared {
    pub record: Arc<Record>,
    pub promise: Promise,
    /// Extents that the record names; kept when it is queued.
    pub extents: Vec<Arc<Extents>>,
    /// Writes of its value that the committer starts with the batch.
    pub writes: Vec<ValueWrite>,
    /// Its value, where that stays in the pool.
    pub kept: Option<Kept>,
}

/// A record that has room in overlay and log.
pub(crate) struct Write<'a> {
    pub prepared: Prepared,
    pub room: Room<'a>,
}

/// Where a record stands in its step (R22).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Whether the record behind it belongs to the same step.
    pub continues: bool,
    /// Whether the step is so large that values which would ride in the log get extents at once.
    pub is_large: bool,
    /// Whether its blocks in the tree may be of the reserve, as those of a delete (R3).
    pub uses_reserve: bool,
}

impl Part {
    /// The last record of a step, which most steps are made of.
    pub(crate) const LAST: Self = Self { continues: false, is_large: false, uses_reserve: false };
}

/// What a write did.
pub(crate) struct Written {
    pub version: Lsn,
    /// The version before, where a condition had it looked up.
    pub before: Option<Lsn>,
}

/// The newest state of a key, as seen under the overlay's lock.
enum Newest {
    /// In an overlay, perhaps in flight; whether it says that the object exists.
    Record { record: Arc<Record>, exists: bool },
    /// What the tree said.
    Tree(Option<Lsn>),
}

enum Verdict {
    Accept(Option<Lsn>),
    Reject(Newest),
    /// The entry in flight has no number yet, and the answer depends on it.
    Wait(Arc<Record>),
    /// Only the tree could tell, and it cannot.
    Unknown(Error),
}

impl Inner {
    /// Evaluates `rules`, queues the record and waits until it is durable.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`]: nothing happened. [`Error::Unknown`]: the record was queued before the store was
    /// poisoned.
    pub(crate) async fn commit(
        &self,
        key: &ObjectKey,
        rules: RejectRules,
        write: Write<'_>,
    ) -> Result<Written> {
        let tablet = self.tablet_of(key).clone();
        let record = write.prepared.record.clone();
        let before = self.queue(&tablet, key, rules, write).await?;
        if may_block() {
            if uninterrupted(self.committer.lead_until(&record, self.now_ns())) {
                self.hand_over();
            }
        } else {
            self.drive().await;
        }
        let version = self.committer.wait_durable(&record).await?;
        Ok(Written { version, before })
    }

    /// Evaluates `rules` and queues the record, which somebody commits then.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`]: nothing happened.
    pub(crate) async fn enqueue(&self, key: &ObjectKey, rules: RejectRules, write: Write<'_>) -> Result<()> {
        let tablet = self.tablet_of(key).clone();
        self.queue(&tablet, key, rules, write).await?;
        self.hand_over_or_lead().await;
        Ok(())
    }

    /// Sees to it that what was queued is committed, without waiting for it where the committer's thread can do it.
    pub(crate) async fn hand_over_or_lead(&self) {
        if self.worker.is_some() {
            self.hand_over();
        } else {
            self.drive().await;
        }
    }

    /// Whether `rules` reject the key's state now; for answering early, before a value is written.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`]; as the device.
    pub(crate) async fn check_rules(&self, key: &ObjectKey, rules: RejectRules) -> Result<()> {
        if rules.is_empty() {
            return Ok(());
        }
        let tablet = self.tablet_of(key).clone();
        loop {
            let view = tablet.view();
            let tree = self.tree_version(&view, key).await;
            let verdict = {
                let active = view.active.lock();
                judge(self, &active, &view, key, tree, rules)
            };
            match verdict {
                Verdict::Accept(_) => return Ok(()),
                Verdict::Unknown(error) => return Err(error),
                Verdict::Reject(newest) => return Err(self.rejected(newest).await?),
                Verdict::Wait(record) => {
                    self.wait_for_other(&record).await?;
                }
            }
        }
    }

    /// Puts the record into the overlay and the queue; gives the version before, where it was looked up.
    async fn queue(
        &self,
        tablet: &Tablet,
        key: &ObjectKey,
        rules: RejectRules,
        write: Write<'_>,
    ) -> Result<Option<Lsn>> {
        loop {
            let view = tablet.view();
            let tree = if rules.is_empty() { Ok(None) } else { self.tree_version(&view, key).await };
            let verdict = {
                let mut active = view.active.lock();
                if active.is_frozen() {
                    continue;
                }
                self.check_writable()?;
                let verdict = judge(self, &active, &view, key, tree, rules);
                if let Verdict::Accept(before) = verdict {
                    self.insert(&view, &mut active, write);
                    return Ok(before);
                }
                verdict
            };
            match verdict {
                Verdict::Accept(_) => unreachable!("accepted writes are queued under the lock"),
                Verdict::Unknown(error) => return Err(error),
                Verdict::Reject(newest) => return Err(self.rejected(newest).await?),
                Verdict::Wait(record) => {
                    self.wait_for_other(&record).await?;
                }
            }
        }
    }

    /// Under the overlay's lock: the overlay and the queue get the record at once, and nothing else happens (R4).
    pub(crate) fn insert(&self, view: &View, active: &mut overlay::Inner, write: Write<'_>) {
        let Write { prepared, room } = write;
        let mut step = Step::default();
        let growth = self.insert_part(view, active, prepared, &mut step);
        // First: who waits for room is woken when the step is written.
        self.keep_room(room.overlays, &growth);
        self.push_step(step, room.log);
    }

    /// The records of a step are in their overlays, which grew by so much.
    pub(crate) fn keep_room(&self, admitted: Admitted, growth: &Growth) {
        admitted.keep(growth);
        if growth.dropped.promised > 0 {
            self.space.release_promise(growth.dropped.promised);
        }
    }

    /// Under the overlay's lock: one record of a step; gives what the overlay grew by.
    pub(crate) fn insert_part(
        &self,
        view: &View,
        active: &mut overlay::Inner,
        prepared: Prepared,
        step: &mut Step,
    ) -> Growth {
        let Prepared { record, promise, extents, writes, kept } = prepared;
        assert_eq!(promise.keep(), record.promised(), "a record knows what its apply was promised");
        step.has_extents |= !extents.is_empty();
        for extent in &extents {
            extent.keep();
        }
        step.writes.extend(writes);
        if let Some(mut kept) = kept {
            kept.supersedes(active.newest(record.key()).cloned());
            step.kept.push((record.clone(), kept));
        }
        step.records.push(record.clone());
        let hash = overlay::hash_of(record.key());
        self.insert_record(view, active, record, hash)
    }

    /// Under the overlay's lock: the overlay gets a record, and who keeps values near learns it.
    pub(crate) fn insert_record(
        &self,
        view: &View,
        active: &mut overlay::Inner,
        record: Arc<Record>,
        hash: u64,
    ) -> Growth {
        let count = self.writes.of(hash);
        self.watches.note(hash, record.key(), record.kind());
        let growth = view.active.insert(active, record, hash, self.committer.durable());
        if planted(Plant::DroppedFreedAtOnce) {
            active.take_superseded().iter().for_each(|record| self.space.give_back(record.owned()));
        }
        // Behind the insertion: who keeps values near and sees the count sees the record.
        WriteCounts::note(count);
        growth
    }

    /// Still under the locks of all overlays of the step: it takes its place in the order of writes.
    pub(crate) fn push_step(&self, step: Step, room: LogRoom<'_>) {
        self.committer.push(Item::Step { step, reserved: room.keep() });
    }

    /// An answer that was derived from an entry in flight waits until that entry is durable.
    async fn rejected(&self, newest: Newest) -> Result<Error> {
        let current = match newest {
            Newest::Tree(version) => version,
            Newest::Record { record, exists } => {
                let lsn = self.wait_for_other(&record).await?;
                exists.then_some(lsn)
            }
        };
        Ok(Error::ConditionFailed { current })
    }

    /// Waits for somebody else's record.
    pub(crate) async fn wait_for_other(&self, record: &Record) -> Result<Lsn> {
        self.drive().await;
        self.committer.wait_durable(record).await
    }

    /// The version of `key` in the tree of `view`.
    async fn tree_version(&self, view: &View, key: &ObjectKey) -> Result<Option<Lsn>> {
        let leaf = self.find_in_tree(view, key.encoded()).await?;
        Ok(leaf.filter(|leaf| !self.is_over(leaf.entry.end, leaf.version)).map(|leaf| leaf.version))
    }
}

/// Decides under the overlay's lock. The tree's answer was looked up before, under the root of the same view: while the active
/// overlay is not frozen, overlays and root together say the same as then (R6). Where the tree could not answer, a record in an overlay still
/// can.
fn judge(
    inner: &Inner,
    active: &overlay::Inner,
    view: &View,
    key: &ObjectKey,
    tree: Result<Option<Lsn>>,
    rules: RejectRules,
) -> Verdict {
    if rules.is_empty() {
        return Verdict::Accept(None);
    }
    let newest = active.newest(key.encoded()).cloned().or_else(|| {
        let frozen = view.frozen.as_ref().filter(|_| !planted(Plant::ConditionsForgetFrozen))?;
        frozen.lock().newest(key.encoded()).cloned()
    });
    let Some(record) = newest else {
        let tree = match tree {
            Ok(tree) => tree,
            Err(error) => return Verdict::Unknown(error),
        };
        return if rules.reject(tree) { Verdict::Reject(Newest::Tree(tree)) } else { Verdict::Accept(tree) };
    };
    let exists = record.kind() == RecordKind::Put && !inner.is_record_over(&record);
    let lsn = record.lsn_raw();
    if exists && lsn == UNNUMBERED {
        // Its number will be above all that were given; only "at most" a larger number than those is open.
        if rules.if_version_at_most.is_some_and(|at_most| at_most > inner.committer.assigned()) {
            return Verdict::Wait(record);
        }
        let above_all = Lsn(UNNUMBERED);
        return if rules.reject(Some(above_all)) {
            Verdict::Reject(Newest::Record { record, exists })
        } else {
            Verdict::Accept(None)
        };
    }
    let current = exists.then_some(Lsn(lsn));
    if rules.reject(current) {
        Verdict::Reject(Newest::Record { record, exists })
    } else {
        Verdict::Accept(current)
    }
}

/// Bytes of memory that a record and its place in an overlay take at most.
pub(crate) fn memory_bytes(record: &Record) -> usize {
    record.memory_bytes() + record.key().len() + overlay::ENTRY_OVERHEAD_BYTES
}

impl Inner {
    /// Whether the time of what a put's record holds is over.
    fn is_record_over(&self, record: &Record) -> bool {
        self.is_over(end_of(record.body_bytes()), Lsn(record.lsn_raw()))
    }

    /// Whether the time of this version of an object is over; [`UNNUMBERED`] where it has no number yet.
    #[inline]
    pub(crate) fn is_over(&self, end: Option<End>, version: Lsn) -> bool {
        end.is_some() && self.expiry.is_over(end, version, &self.committer)
    }

    /// Counts an operation.
    pub(crate) fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
