//! A write of one key, and a batch of writes that are done as a whole or not at all. The success and the rejection of
//! one with a request id happen once (R17).

use std::sync::Arc;

use shoal_base::codec::{Reader, Truncated};
use shoal_base::task::Boxed;
use shoal_base::{Lsn, RequestId};
use shoal_buffer::Buffer;
use shoal_common::error::{Error, Result};
use shoal_common::key::ObjectKey;
use shoal_common::object::{Metadata, Object, PutOptions, RejectRules};
use shoal_tablets::counters::OperationCounters;
use smallvec::{SmallVec, smallvec};

use crate::bucket::BucketState;
use crate::store::{Inner, Store};
use crate::write::append::{Attempt, Condition};
use crate::write::batch::{Part, PreparedBatch};
use crate::write::change::{Change, Outline, Placed, ReadLevel};
use crate::write::receive_buffer::ReceiveBuffer;
use crate::write::ticket::Ticket;
use crate::write::txn::{Changes, Decision, Outcome, TransactOptions};

/// A write of one key, for [`Store::write`].
pub struct Write<'a> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) what: What<'a>,
    pub(crate) rules: RejectRules,
    pub(crate) bucket: Option<&'a Arc<BucketState>>,
}

/// The kind of a write.
pub(crate) enum What<'a> {
    Put(&'a Buffer, &'a PutOptions),
    /// A put of a value in the memory into which it was received.
    Received(ReceiveBuffer, &'a PutOptions),
    /// A put of a value that is on the device.
    Placed(&'a Placed),
    Delete,
}

impl<'a> Write<'a> {
    fn new(key: &'a ObjectKey, what: What<'a>, rules: RejectRules) -> Self {
        Self { key, what, rules, bucket: None }
    }

    /// The same write, which is refused with [`Error::NoBucket`] if this bucket, the one of its key, is deleted before the
    /// write has its place. Of a batch the last write's bucket counts.
    #[must_use]
    pub fn in_bucket(self, bucket: &'a Arc<BucketState>) -> Self {
        assert_eq!(bucket.name(), self.key.bucket(), "the bucket of the key");
        Self { bucket: Some(bucket), ..self }
    }

    /// A put, as [`Store::put`].
    #[must_use]
    pub fn put(key: &'a ObjectKey, value: &'a Buffer, options: &'a PutOptions) -> Self {
        Self::new(key, What::Put(value, options), options.rules)
    }

    /// A put of a value that was received into a [`ReceiveBuffer`], which must be full: no byte is copied, the device
    /// reads from that memory.
    #[must_use]
    pub fn put_received(key: &'a ObjectKey, value: ReceiveBuffer, options: &'a PutOptions) -> Self {
        Self::new(key, What::Received(value, options), options.rules)
    }

    /// A put of a value that is on the device.
    pub(crate) fn put_placed(key: &'a ObjectKey, value: &'a Placed, rules: RejectRules) -> Self {
        Self::new(key, What::Placed(value), rules)
    }

    /// A delete, as [`Store::delete`].
    #[must_use]
    pub fn delete(key: &'a ObjectKey, rules: RejectRules) -> Self {
        Self::new(key, What::Delete, rules)
    }

    /// The outline of its record.
    pub(crate) fn outline(&self) -> Outline<'_> {
        let (value_bytes, options) = match &self.what {
            What::Put(value, options) => (value.len(), Some(options)),
            What::Received(value, options) => (value.value_bytes(), Some(options)),
            What::Placed(_) | What::Delete => (0, None),
        };
        let has_metadata = options.is_some_and(|options| options.metadata != Metadata::default());
        Outline { key: self.key, value_bytes, has_metadata }
    }

    /// A batch of this write, done once with a request id, however often it is sent.
    #[must_use]
    pub fn with_request_id(self, request: Option<RequestId>) -> WriteBatch<'a> {
        WriteBatch::from(self).with_request_id(request)
    }

    /// The same write as a change of a transaction.
    pub(crate) fn into_change(self) -> Change {
        let put = |value, options: &PutOptions| Change::PutWith { value, options: Box::new(options.clone()) };
        match self.what {
            What::Put(value, options) => put(value.clone(), options),
            What::Received(mut value, options) => put(value.to_vec().into(), options),
            What::Placed(placed) => Change::Placed(placed.clone()),
            What::Delete => Change::Delete,
        }
    }
}

/// Writes that are done as a whole or not at all, also over a crash, for [`Store::write`]. No other write comes
/// between. Of a key that is named twice the later write wins; the rules of both are about its state before the batch.
///
/// At most 65,536 writes, whose records fit in one batch of the log (`docs/limits.md`).
#[derive(Default)]
pub struct WriteBatch<'a> {
    writes: Writes<'a>,
    request: Option<RequestId>,
}

/// The writes of a batch, in their order.
pub(crate) type Writes<'a> = SmallVec<[Write<'a>; 1]>;

impl<'a> WriteBatch<'a> {
    /// A batch without writes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a write.
    pub fn add(&mut self, write: Write<'a>) {
        self.writes.push(write);
    }

    /// Sets the request id: the batch is then done once, however often it is sent.
    #[must_use]
    pub fn with_request_id(self, request: Option<RequestId>) -> Self {
        Self { request, ..self }
    }

    /// Takes the write of a batch of one without a request id: the write needs no transaction.
    pub(crate) fn take_single(&mut self) -> Option<Write<'a>> {
        let is_single = self.writes.len() == 1 && self.request.is_none();
        if is_single { self.writes.pop() } else { None }
    }

    /// The number of its writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Returns true if it has no writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

impl<'a> From<Write<'a>> for WriteBatch<'a> {
    fn from(write: Write<'a>) -> Self {
        Self { writes: smallvec![write], request: None }
    }
}

impl<'a> FromIterator<Write<'a>> for WriteBatch<'a> {
    fn from_iter<I: IntoIterator<Item = Write<'a>>>(writes: I) -> Self {
        Self { writes: writes.into_iter().collect(), request: None }
    }
}

impl Store {
    /// Queues a batch of several writes, or of one with a request id, if the rules of all its writes accept.
    ///
    /// Separate from the write of one key, so that its future is smaller than this one.
    pub(crate) fn write_batch<'s, 'a: 's>(&'s self, batch: WriteBatch<'a>) -> Boxed<'s, Result<Ticket>> {
        Box::pin(async move {
            let WriteBatch { writes, request } = batch;
            if writes.is_empty() {
                return Err(Error::Invalid("a write batch has at least one write".into()));
            }
            // Such a batch does not depend on the states of its keys: this path reads none of them.
            if request.is_none() && writes.iter().all(|write| write.rules.is_empty()) {
                return self.write_blindly(writes).await;
            }
            self.write_as_transaction(writes, request).await
        })
    }

    async fn write_blindly(&self, writes: Writes<'_>) -> Result<Ticket> {
        let inner = &*self.0;
        inner.be_writable().await?;
        for write in &writes {
            inner.tablets.pass(write.key).await;
        }
        let count = writes.len();
        let deletes = writes.iter().filter(|write| matches!(write.what, What::Delete)).count();
        let admitted = inner.admit_batch(inner.prepare_writes(writes).await?).await?;
        let last = admitted.last(0);
        let Attempt::Done(_) = inner.try_queue(Condition::Always, &mut Some(admitted))? else {
            unreachable!("without a condition a batch is queued")
        };
        inner.log.committer.request_commit(count);
        OperationCounters::add(&inner.counters.puts, (count - deletes) as u64);
        OperationCounters::add(&inner.counters.deletes, deletes as u64);
        Ok(Ticket::new(self.clone(), last).with_count(count))
    }

    fn write_as_transaction<'s, 'a: 's>(
        &'s self,
        writes: Writes<'a>,
        request: Option<RequestId>,
    ) -> Boxed<'s, Result<Ticket>> {
        Box::pin(async move {
            let bucket = writes.last().and_then(|write| write.bucket);
            let (mut keys, mut rules, mut changes) = (Vec::new(), Vec::new(), Changes::new());
            for write in writes {
                let level = if write.rules.is_empty() { ReadLevel::Nothing } else { ReadLevel::Version };
                keys.push((write.key.clone(), level));
                rules.push(write.rules);
                changes.push(write.into_change());
            }
            let decide = |objects: &[Option<Object>]| {
                let verdict = Verdict::of(&rules, objects);
                let changes = match verdict.rejected {
                    None => changes.clone(),
                    Some(_) => rules.iter().map(|_| Change::NoChange).collect(),
                };
                Decision::Do(changes, verdict)
            };
            let request = request.map(|request| (request, &Verdict::encode as _));
            let options = TransactOptions { request, bucket, ..Default::default() };
            let (verdict, pending) = match self.transact(&keys, &options, decide).await? {
                Outcome::Done(mut done) => match done.pending.pop() {
                    Some(written) if done.answer.rejected.is_none() => (done.answer, written),
                    result => {
                        // The states that were seen, and the result, are durable before a rejection is returned.
                        for seen in done.pending.into_iter().chain(result) {
                            seen.durable().await?;
                        }
                        (done.answer, Ticket::done(self.clone(), Lsn::NONE))
                    }
                },
                Outcome::Before { version, answer } => {
                    let verdict = answer.and_then(|answer| Verdict::decode(&answer).ok());
                    let verdict = verdict.filter(|verdict| verdict.writes == keys.len());
                    (verdict.ok_or_else(not_repeated)?, Ticket::done(self.clone(), version))
                }
                Outcome::Left(_) | Outcome::Changed => unreachable!("nothing is watched, and nothing left"),
            };
            match verdict.rejected {
                Some(at) => Err(Error::ConditionFailed { current: verdict.current, at }),
                None => Ok(pending.with_before(verdict.current).with_count(keys.len())),
            }
        })
    }
}

impl Inner {
    /// Encodes the writes of a batch, and writes values that do not ride in their records.
    pub(crate) async fn prepare_writes<'a>(&'a self, writes: Writes<'_>) -> Result<PreparedBatch<'a>> {
        let is_large = self.check_size(writes.iter().map(Write::outline))?;
        let mut batch = PreparedBatch::new(self).in_bucket(writes.last().and_then(|write| write.bucket));
        batch.records.reserve_exact(writes.len());
        let mut writes = writes.into_iter();
        while let Some(Write { key, what, .. }) = writes.next() {
            let part = Part { continues: writes.len() > 0, is_large, ..Part::LAST };
            batch.write(key, what, part).await?;
        }
        Ok(batch)
    }
}

/// The request id is that of an earlier write, and this is not a repetition of it.
fn not_repeated() -> Error {
    let same = "a repetition must be the same write";
    Error::Invalid(format!("another kind of write had this session and sequence: {same}"))
}

/// The state found before a batch, as it is kept for a repetition (`docs/format/object.md`).
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    /// The number of writes.
    writes: usize,
    /// The first write whose rules reject it.
    rejected: Option<usize>,
    /// The version of that write's object, or of the only write's one.
    current: Option<Lsn>,
}

impl Verdict {
    fn of(rules: &[RejectRules], objects: &[Option<Object>]) -> Self {
        let version = |object: &Option<Object>| object.as_ref().map(|object| object.info.version);
        let rejected = rules.iter().zip(objects).position(|(rules, object)| rules.reject(version(object)));
        let shown = rejected.or((rules.len() == 1).then_some(0));
        let current = shown.and_then(|at| objects.get(at)).and_then(version);
        Self { writes: rules.len(), rejected, current }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.rejected.is_some())];
        if self.writes > 1 {
            bytes.extend_from_slice(&(self.writes as u32).to_le_bytes());
            if let Some(at) = self.rejected {
                bytes.extend_from_slice(&(at as u32).to_le_bytes());
            }
        }
        if self.writes == 1 || self.rejected.is_some() {
            bytes.extend_from_slice(&self.current.unwrap_or(Lsn::NONE).0.to_le_bytes());
        }
        bytes
    }

    /// # Errors
    /// [`Truncated`] if it is the answer of another kind of write.
    fn decode(bytes: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let is_rejected = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(Truncated),
        };
        let is_single = bytes.len() == SINGLE_BYTES;
        let writes = if is_single { 1 } else { reader.u32()? as usize };
        let at = if is_rejected && !is_single { reader.u32()? as usize } else { 0 };
        let has_version = is_single || is_rejected;
        let current = if has_version { Some(Lsn(reader.u64()?)) } else { None };
        if !reader.is_empty() || at >= writes {
            return Err(Truncated);
        }
        let current = current.filter(|&current| current != Lsn::NONE);
        Ok(Self { writes, rejected: is_rejected.then_some(at), current })
    }
}

/// Bytes of the verdict of one write: no verdict of several has as many.
const SINGLE_BYTES: usize = 1 + 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_batch_result_is_rejected() {
        for (writes, rejected) in [(1, None), (1, Some(0)), (2, None), (2, Some(1)), (65_536, Some(65_535))] {
            for current in [None, Some(Lsn(7))] {
                let current = current.filter(|_| writes == 1 || rejected.is_some());
                let verdict = Verdict { writes, rejected, current };
                let bytes = verdict.encode();
                assert_eq!(Verdict::decode(&bytes), Ok(verdict));
                for cut in 0..bytes.len() {
                    let cut = Verdict::decode(&bytes[..cut]);
                    assert_ne!(cut.map(|verdict| verdict.writes), Ok(writes), "{bytes:?}");
                }
            }
        }
        assert_eq!(Verdict::decode(b"\x02"), Err(Truncated));
        // A batch of one write in the form of several, as `MultiPut` with one item kept it.
        let one = Verdict { writes: 1, rejected: None, current: None };
        assert_eq!(Verdict::decode(b"\0\x01\0\0\0"), Ok(one));
    }
}
