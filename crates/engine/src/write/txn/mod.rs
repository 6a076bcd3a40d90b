//! Transactions: read, decide, write. The reads are of one moment, the writes are one batch, and no other write comes
//! between.
//!
//! The decision is made on the newest states of the keys (`look.rs`), without a lock. It is made again if one of them
//! changed before the batch was queued (`append.rs`): under the locks of all memtables, each key must still have the
//! same record or root, so states in flight count, too. A transaction of several keys also holds its reads to one
//! moment if it writes nothing. Readers that read one key after the other see no snapshot: some keys may be from before
//! the batch and others from after it. A transaction that loses too many races queues for its keys (`turns.rs`).

pub(crate) mod dedup;
pub(crate) mod look;

use std::sync::Arc;

use bytes::Bytes;
use shoal_base::task::Boxed;
use shoal_base::{Lsn, RequestId};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::ObjectKey;
use shoal_common::object::{Deadline, EndTime, Expiry, Object};
use shoal_memtable::turns::Tries;
use shoal_tablets::counters::OperationCounters;
use smallvec::{SmallVec, smallvec};

use crate::bucket::BucketState;
use crate::store::{Inner, Store};
use crate::write::append::{Attempt, Condition};
use crate::write::batch::{Part, PreparedBatch};
use crate::write::change::{Change, ReadLevel};
use crate::write::ticket::Ticket;
use crate::write::txn::dedup::ResultSlot;
use crate::write::txn::look::{Admit, Looked};
use crate::write::watch::Watch;

/// The result of a transaction that was done.
#[derive(Debug)]
pub struct Updated<T> {
    /// The answer of the decision.
    pub answer: T,
    /// The writes that must be durable before the answer may leave: the transaction's own last one, or the states in
    /// flight that the decision saw.
    pub pending: SmallVec<[Ticket; 1]>,
}

impl<T> Updated<T> {
    /// Waits until the answer may leave. Returns it with the version of the last write, [`Lsn::NONE`] if none was in
    /// flight.
    ///
    /// # Errors
    /// As [`Ticket::durable`].
    pub async fn durable(self) -> Result<(T, Lsn)> {
        let mut last = Lsn::NONE;
        for pending in self.pending {
            last = pending.durable().await?;
        }
        Ok((self.answer, last))
    }
}

/// The decision of a transaction.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a decision is carried out at once, and its changes need no allocation"
)]
pub enum Decision<T> {
    /// These changes, one for each key in their order, and this answer.
    Do(Changes, T),
    /// No change: the answer is returned at once, and does not hold for one moment.
    Leave(T),
}

/// The change of each key.
pub type Changes = SmallVec<[Change; 1]>;

impl<T> Decision<T> {
    /// The change of the only key, and this answer.
    #[must_use]
    pub fn one(change: Change, answer: T) -> Self {
        Self::Do(smallvec![change], answer)
    }
}

/// The outcome of a transaction.
#[derive(Debug)]
pub enum Outcome<T> {
    /// It was done.
    Done(Updated<T>),
    /// The decision was [`Decision::Leave`].
    Left(T),
    /// A watched key changed: nothing was done.
    Changed,
    /// A transaction with this request id was done before, and is durable.
    Before {
        /// The version of the last object that it wrote; of its result if it wrote none.
        version: Lsn,
        /// The kept part of its answer; `None` if that was too long.
        answer: Option<Bytes>,
    },
}

impl<T> Outcome<T> {
    /// The result of a transaction that has no other outcome: one without watches and request id, which is never left.
    ///
    /// On any other outcome.
    #[must_use]
    pub fn done(self) -> Updated<T> {
        match self {
            Self::Done(done) => done,
            Self::Left(_) | Self::Changed | Self::Before { .. } => panic!("a transaction was not done"),
        }
    }
}

/// The options of a transaction.
pub struct TransactOptions<'a, T> {
    /// The transaction does nothing if one of these keys changed.
    pub watches: &'a [Watch],
    /// The transaction is done once. If one with this request id was done before, nothing is done, and the kept part of
    /// its answer is returned, even if a watched key changed since: the first one changed it. A decision without
    /// changes counts as done, too. At least one key must be named, and a repetition must name the same first one.
    pub request: Option<Keeping<'a, T>>,
    /// Called with the length of each value before it is read, in bytes. The transaction fails with its error, and does nothing.
    pub admit: Option<&'a Admit<'a>>,
    /// The transaction fails with [`Error::NoBucket`], and does nothing, if this bucket is deleted before its writes have their places.
    pub bucket: Option<&'a Arc<BucketState>>,
}

/// The request id of a transaction, and the function that returns the part of the answer to keep.
pub type Keeping<'a, T> = (RequestId, &'a (dyn Fn(&T) -> Vec<u8> + Sync));

impl<T> Default for TransactOptions<'_, T> {
    fn default() -> Self {
        Self { watches: &[], request: None, admit: None, bucket: None }
    }
}

impl Store {
    /// Shows `decide` the newest states of all keys at one moment, each as far as its [`ReadLevel`] goes, and writes
    /// its decision as one batch: no other write comes between, and after a crash all of it is there or nothing.
    /// `decide` is called again if a key changed meanwhile; after several such calls the transaction queues for its
    /// keys. A key may be named twice: the later change wins. Returns when the writes have their places in the order
    /// of writes.
    ///
    /// The answer may leave once all of [`Updated::pending`] are durable. The versions of the written objects are
    /// consecutive in the order of the keys, and end with the version of the last pending write.
    ///
    /// # Errors
    /// As [`Store::put`] and [`Store::get`]; then nothing happened. [`Error::Invalid`], too, if the records do not fit
    /// in one log batch, if all read values have more than [`Tuning::looks_bytes_max`](crate::Tuning::looks_bytes_max), or if one of them has more than 4 MiB.
    /// [`Error::Unknown`] if the session is already [`RESULTS_KEPT`](crate::RESULTS_KEPT) writes further.
    pub async fn transact<T>(
        &self,
        keys: &[(ObjectKey, ReadLevel)],
        options: &TransactOptions<'_, T>,
        mut decide: impl FnMut(&[Option<Object>]) -> Decision<T>,
    ) -> Result<Outcome<T>> {
        if options.request.is_some() && keys.is_empty() {
            return Err(Error::Invalid("a write with a request id names at least one key".into()));
        }
        if !options.watches.iter().all(|watch| watch.is_of(&self.0)) {
            return Err(Error::Invalid("a key of another store is watched".into()));
        }
        let request = options.request.as_ref().map(|(request, _)| *request);
        let mut trial = Trial::new(self, keys, options, request).await?;
        loop {
            match trial.look().await? {
                Shown::All => {}
                Shown::Changed => return Ok(Outcome::Changed),
                Shown::Before(version, answer) => return Ok(Outcome::Before { version, answer }),
            }
            let (mut changes, answer) = match decide(&trial.looked.objects) {
                Decision::Do(changes, answer) => (changes, answer),
                Decision::Leave(answer) => return Ok(Outcome::Left(answer)),
            };
            trial.looked.objects.clear();
            let kept = options.request.as_ref().map(|(_, keep)| keep(&answer));
            match trial.carry_out(&mut changes, kept).await? {
                Carried::Done(pending) => return Ok(Outcome::Done(Updated { answer, pending })),
                Carried::Changed => return Ok(Outcome::Changed),
                Carried::Conflict => {}
            }
        }
    }

    /// The deadline of an object that is written now with this expiry.
    #[must_use]
    pub fn deadline_of(&self, expiry: Expiry) -> Option<Deadline> {
        let inner = &*self.0;
        let end = inner.log.end_of(expiry)?;
        Some(inner.log.deadline(end))
    }
}

/// The tries of a transaction.
struct Trial<'a> {
    store: &'a Store,
    named: &'a [(ObjectKey, ReadLevel)],
    /// The named keys, followed by the key of the request's result.
    keys: SmallVec<[ObjectKey; 1]>,
    watches: &'a [Watch],
    request: Option<RequestId>,
    admit: Option<&'a Admit<'a>>,
    bucket: Option<&'a Arc<BucketState>>,
    tries: Tries<'a>,
    /// The states that the last try read, by key.
    looked: Looked,
    /// True if the result slot has no earlier result.
    is_first_result: bool,
}

/// The result of reading: all objects can be shown, or the transaction stops.
enum Shown {
    All,
    Changed,
    Before(Lsn, Option<Bytes>),
}

/// The result of writing a decision.
enum Carried {
    Done(SmallVec<[Ticket; 1]>),
    Conflict,
    Changed,
}

impl<'a> Trial<'a> {
    async fn new<T>(
        store: &'a Store,
        named: &'a [(ObjectKey, ReadLevel)],
        options: &TransactOptions<'a, T>,
        request: Option<RequestId>,
    ) -> Result<Self> {
        let inner = &*store.0;
        inner.check_open()?;
        let mut keys: SmallVec<[ObjectKey; 1]> = named.iter().map(|(key, _)| key.clone()).collect();
        if let (Some(request), Some((first, _))) = (request, named.first()) {
            keys.push(inner.result_key(first, request));
        }
        let (tries, looked) = (Tries::new(&inner.tablets.turns), Looked::default());
        let (watches, admit, bucket) = (options.watches, options.admit, options.bucket);
        let is_first_result = false;
        let trial =
            Self { store, named, keys, watches, request, admit, bucket, tries, looked, is_first_result };
        if let Some(key) = trial.keys.first().filter(|_| trial.is_of_one_key()) {
            inner.tablets.pass(key).await;
        }
        Ok(trial)
    }

    fn is_of_one_key(&self) -> bool {
        self.keys.len() == 1 && self.watches.is_empty()
    }

    /// Reads the newest states of the keys.
    fn look(&mut self) -> Boxed<'_, Result<Shown>> {
        Box::pin(self.look_now())
    }

    async fn look_now(&mut self) -> Result<Shown> {
        let inner = &*self.store.0;
        let named = self.named.iter().map(|(key, _)| key);
        if self.is_of_one_key() {
            self.tries.go_on(named).await;
        } else {
            self.tries.begin(named).await;
        }
        let mut result_seen = None;
        if let (Some(request), Some(key)) = (self.request, self.keys.get(self.named.len())) {
            let (seen, slot) = inner.look_at_result(key).await?;
            self.is_first_result = slot.is_none();
            if let Some((version, answer)) = inner.result_before(request, &seen, slot).await? {
                return Ok(Shown::Before(version, answer));
            }
            result_seen = Some(seen);
        }
        if self.watches.iter().any(Watch::is_changed) {
            return Ok(Shown::Changed);
        }
        self.looked.seen.clear();
        inner.look_at_all(self.named, self.admit, &mut self.looked).await?;
        self.looked.seen.extend(result_seen.map(Some));
        Ok(Shown::All)
    }

    /// Writes a decision if the keys are still in the states that were seen. `kept` is the part of the answer that is
    /// kept for the request.
    fn carry_out<'s>(
        &'s mut self,
        changes: &'s mut Changes,
        kept: Option<Vec<u8>>,
    ) -> Boxed<'s, Result<Carried>> {
        Box::pin(self.carry_out_now(changes, kept))
    }

    async fn carry_out_now(&mut self, changes: &mut Changes, kept: Option<Vec<u8>>) -> Result<Carried> {
        let inner = &*self.store.0;
        let named = self.named.len();
        assert_eq!(changes.len(), named, "a decision has one change for each key");
        let writes = changes.iter().filter(|change| change.is_write()).count();
        let deletes = changes.iter().filter(|change| matches!(change, Change::Delete)).count();
        if let (Some(request), Some(kept)) = (self.request, kept) {
            changes.push(ResultSlot::new(request, writes as u32, kept).change());
            // Each later result of the slot finds the key noted: the expiry worker follows it to its end.
            if let Some(key) = self.keys.get(named).filter(|_| self.is_first_result) {
                inner.maintenance.expiring.note(inner.end_of_result(), key.encoded());
            }
        }
        let (mut batch, mut last) = (None, None);
        if changes.iter().any(Change::is_write) {
            inner.be_writable().await?;
            let prepared = inner.prepare_changes(&self.keys, changes, named, self.bucket).await?;
            let admitted = inner.admit_batch(prepared).await?;
            // The caller wants the version of the last write of a named key; the result comes after it.
            last = Some(admitted.last(usize::from(self.request.is_some() && writes > 0)));
            batch = Some(admitted);
        } else if self.is_of_one_key() || injected(Bug::ReadsNotValidated) {
            return Ok(Carried::Done(self.seen_in_flight()));
        }
        let condition = Condition::Seen { keys: &self.keys, seen: &self.looked.seen, watches: self.watches };
        match inner.try_queue(condition, &mut batch)? {
            Attempt::Done(_) => {}
            Attempt::Changed => return Ok(Carried::Changed),
            Attempt::Conflict | Attempt::Rejected(_) | Attempt::Undecided(_) => {
                self.tries.conflict();
                return Ok(Carried::Conflict);
            }
        }
        let Some(last) = last else { return Ok(Carried::Done(self.seen_in_flight())) };
        // Other batches have their turn while this one is committed.
        self.tries = Tries::new(&inner.tablets.turns);
        inner.log.committer.request_commit(1);
        OperationCounters::add(&inner.counters.puts, (writes - deletes) as u64);
        OperationCounters::add(&inner.counters.deletes, deletes as u64);
        Ok(Carried::Done(SmallVec::from_iter([Ticket::new(self.store.clone(), last)])))
    }

    /// The states that were seen and are not durable yet.
    fn seen_in_flight(&mut self) -> SmallVec<[Ticket; 1]> {
        let records = self.looked.seen.drain(..).flatten().filter_map(|seen| seen.record);
        let pending = records.map(|record| Ticket::new(self.store.clone(), record));
        pending.filter(|pending| !pending.is_durable()).collect()
    }
}

/// The result of expiring one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    Deleted,
    /// The object was written again, and expires later.
    Later {
        end: EndTime,
    },
    /// The object does not exist, or has no deadline.
    Stays,
}

impl Inner {
    /// Deletes an object if it has expired.
    pub(crate) async fn delete_if_over(&self, key: &ObjectKey) -> Result<Reaped> {
        let tablet = self.tablets.of(key);
        loop {
            let (seen, found) = self.look_stored(tablet, key, ReadLevel::Info).await?;
            let Some((end, version)) = found.and_then(|found| Some((found.entry.end?, found.version))) else {
                return Ok(Reaped::Stays);
            };
            if !self.is_over(Some(end), version) && !injected(Bug::ReaperUnconditional) {
                return Ok(Reaped::Later { end });
            }
            self.be_writable().await?;
            let mut batch = PreparedBatch::new(self);
            batch.delete(key, Part::LAST).await?;
            let mut batch = Some(self.admit_batch(batch).await?);
            let (keys, seen) = (std::slice::from_ref(key), &[Some(seen)]);
            if let Attempt::Done(_) =
                self.try_queue(Condition::Seen { keys, seen, watches: &[] }, &mut batch)?
            {
                self.log.committer.request_commit(1);
                return Ok(Reaped::Deleted);
            }
        }
    }
}
