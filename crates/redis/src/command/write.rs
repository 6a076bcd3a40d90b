//! All calls of the engine that write, for the commands of every family. Next: `write/try_write.rs` of the engine for
//! [`try_sets`], `write/put.rs` for the others.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use shoal_buffer::Buffer;
use shoal_engine::{
    Change, Decision, Error, Expiry, Metadata, Object, ObjectKey, Outcome as Transacted, PutOptions,
    ReadLevel, ReceiveBuffer, RequestId, SHORT_PUTS_MAX, Ticket, TransactOptions, Updated, Watch, Write,
};
use shoal_resp::{Glance, RequestParser};
use smallvec::SmallVec;

use super::call::{Call, Finished, Outcome, Scope, is};
use crate::answer::{Answer, Failed};
use crate::frontend::Frontend;
use crate::memory::{LONG_BYTES, Room};
use crate::stored_answer;

/// Decides the changes of several objects, and the answer. Not generic: `update_batch` and its callees are compiled once.
pub(crate) type DecideAll<'a> = dyn FnMut(&[Option<Object>]) -> (Vec<Change>, Answer) + 'a;

/// SETs with their places in the order of writes.
pub(crate) struct Placed {
    /// The last of them: if it is durable, all are.
    pub last: Ticket,
    pub sets: usize,
    /// Received bytes consumed by them.
    pub bytes: usize,
}

/// Places the SET `first` and the SETs after it in `behind`, `most` at most, as one batch; or only the first. `None` if that
/// needs a task.
pub(crate) fn try_sets(
    frontend: &Frontend,
    parser: &RequestParser,
    first: Glance<'_>,
    behind: &[u8],
    most: usize,
) -> Option<Placed> {
    let (store, bucket) = (&frontend.store, &frontend.bucket);
    let mut sets: SmallVec<[(ObjectKey, &[u8]); 16]> = SmallVec::new();
    let (mut bytes, first_bytes) = (0, first.bytes);
    let mut next = Some(first);
    while let Some(glance) = next
        && let Some(value) = glance.second.filter(|_| is(glance.name, "set"))
        && let Ok(key) = bucket.key(glance.argument)
        // A SET that the store cannot accept at once would delay the others.
        && store.is_short(&key, value.len())
    {
        sets.push((key, value));
        bytes += glance.bytes;
        let is_last = sets.len() == most.min(SHORT_PUTS_MAX);
        let rest = behind.get(bytes - first_bytes..).unwrap_or_default();
        next = if is_last { None } else { parser.glance(rest) };
    }
    if let Some(placed) = store.try_write(&sets) {
        return Some(Placed { last: placed, sets: sets.len(), bytes });
    }
    // There may be room for one.
    let first = sets.get(..1).filter(|_| sets.len() > 1)?;
    let last = store.try_write(first)?;
    Some(Placed { last, sets: 1, bytes: first_bytes })
}

/// Memory for a long value that is written to the device while it is received.
pub(crate) fn receive_buffer(frontend: &Frontend, key: &[u8], value_bytes: usize) -> Option<ReceiveBuffer> {
    frontend.store.receive_buffer(&frontend.bucket.key(key).ok()?, value_bytes)
}

/// The values that a write looks at.
struct Looks<'a> {
    room: Room<'a>,
    /// Bytes of all of them so far.
    bytes: AtomicU64,
}

impl<'a> Looks<'a> {
    fn new(frontend: &'a Frontend) -> Self {
        Self { room: frontend.memory.room(), bytes: AtomicU64::new(0) }
    }

    /// Reserves room for a value, and for the new one that the write may make of it. A few short values need none: many
    /// together are long.
    ///
    /// # Errors
    /// [`Error::Busy`]: there is no room.
    fn admit(&self, bytes: u64) -> Result<(), Error> {
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if all < LONG_BYTES as u64 { Ok(()) } else { self.room.admit(2 * bytes) }
    }
}

/// Updates one object with `decide`, which is called again if another write comes between.
pub(crate) async fn update<T>(
    frontend: &Frontend,
    key: &ObjectKey,
    level: ReadLevel,
    mut decide: impl FnMut(Option<&Object>) -> (Change, T),
) -> Result<Updated<T>, Failed> {
    let decide = |objects: &[Option<Object>]| {
        let (change, answer) = decide(objects.first().and_then(Option::as_ref));
        Decision::one(change, answer)
    };
    let keys = [(key.clone(), level)];
    let looks = Looks::new(frontend);
    let admit = |bytes: u64| looks.admit(bytes);
    let options = TransactOptions { admit: Some(&admit), ..TransactOptions::default() };
    Ok(frontend.store.transact(&keys, &options, decide).await?.done())
}

/// Deletes an object; returns true if it existed. One in a damaged range counts: its existence is unknown, and afterwards it
/// does not exist.
pub(crate) async fn delete(frontend: &Frontend, key: &ObjectKey) -> Result<(bool, Option<Ticket>), Failed> {
    let decide = |object: Option<&Object>| match object {
        Some(_) => (Change::Delete, true),
        None => (Change::NoChange, false),
    };
    let Updated { answer, pending } = update(frontend, key, ReadLevel::Existence, decide).await?;
    Ok((answer, pending.into_iter().next()))
}

/// Applies `decide` to the objects, unless one of `watches` changed; with a request id only once, and the bytes of `keep` are
/// stored with it.
pub(crate) async fn transact<T>(
    frontend: &Frontend,
    (keys, watches): (&[(ObjectKey, ReadLevel)], &[Watch]),
    request_id: Option<RequestId>,
    decide: impl FnMut(&[Option<Object>]) -> Decision<T>,
    keep: impl Fn(&T) -> Vec<u8> + Sync,
) -> Result<Transacted<T>, Failed> {
    let keep: &(dyn Fn(&T) -> Vec<u8> + Sync) = &keep;
    let looks = Looks::new(frontend);
    let admit = |bytes: u64| looks.admit(bytes);
    let request = request_id.map(|request_id| (request_id, keep));
    let options = TransactOptions { watches, request, admit: Some(&admit), ..TransactOptions::default() };
    Ok(frontend.store.transact(keys, &options, decide).await?)
}

impl Call {
    /// Stores an object and answers OK. Its key is the first word after the name.
    pub(crate) async fn put(&self, value: &Bytes, expiry: Expiry) -> Outcome {
        if self.is_one_batch() {
            return self.update(ReadLevel::Nothing, &mut |_| (set_value(value, expiry), Answer::Ok)).await;
        }
        let options = PutOptions { expiry, ..PutOptions::default() };
        Ok(Finished::after(Answer::Ok, [self.queue_put(value, options).await?]))
    }

    /// The same with put options, outside of a transaction.
    pub(crate) async fn queue_put(&self, value: &Bytes, options: PutOptions) -> Result<Ticket, Error> {
        let key = self.frontend.bucket.key(self.word(1))?;
        self.frontend.store.write(Write::put(&key, &Buffer::from(value.clone()), &options)).await
    }

    /// Stores a value that was received into the memory that is written to the device.
    pub(crate) async fn put_received(&self, value: ReceiveBuffer) -> Outcome {
        let (key, options) = (self.key(1)?, PutOptions::default());
        let pending = self.frontend.store.write(Write::put_received(&key, value, &options)).await?;
        Ok(Finished::after(Answer::Ok, [pending]))
    }

    /// Updates the object whose key is the first word after the name; the answer of `decide` leaves when the update is durable.
    pub(crate) async fn update(
        &self,
        look: ReadLevel,
        decide: &mut dyn FnMut(Option<&Object>) -> (Change, Answer),
    ) -> Outcome {
        let key = self.key(1)?;
        if !self.is_one_batch() {
            let Updated { answer, pending } = update(&self.frontend, &key, look, decide).await?;
            return Ok(Finished::after(answer, pending));
        }
        self.update_batch(&[(key, look)], &mut |objects| {
            let (change, answer) = decide(objects.first().and_then(Option::as_ref));
            (vec![change], answer)
        })
        .await
    }

    /// Updates several objects as one write batch; the answer of `decide` leaves when all of it is durable.
    pub(crate) async fn update_batch(
        &self,
        keys: &[(ObjectKey, ReadLevel)],
        decide: &mut DecideAll<'_>,
    ) -> Outcome {
        let request_id = match &self.scope {
            Scope::Plain => None,
            Scope::Dedup(request_id) => Some(*request_id),
            Scope::Transaction(working) => {
                let see = |(key, look): &(ObjectKey, ReadLevel)| match look {
                    ReadLevel::Nothing => Ok(None),
                    look => working.see(key, *look),
                };
                let objects = keys.iter().map(see).collect::<Result<Vec<_>, _>>()?;
                let (changes, answer) = decide(&objects);
                keys.iter().zip(changes).for_each(|((key, _), change)| working.change(key, change));
                return Ok(answer.into());
            }
        };
        let decide = |objects: &[Option<Object>]| {
            let (changes, answer) = decide(objects);
            Decision::Do(changes.into(), answer)
        };
        match transact(&self.frontend, (keys, &[]), request_id, decide, stored_answer::encode).await? {
            Transacted::Before { version, answer } => {
                Ok(stored_answer::answer_of(answer.as_ref(), version.0)?.into())
            }
            done => {
                let Updated { answer, pending } = done.done();
                Ok(Finished::after(answer, pending))
            }
        }
    }
}

/// A change that replaces the object's value and keeps everything else, except the attributes that describe the value.
pub(crate) fn new_value(object: Option<&Object>, value: Vec<u8>) -> Change {
    Change::Put {
        value: Bytes::from(value).into(),
        metadata: object.map_or_else(Metadata::default, |object| object.info.metadata.of_new_value()),
        expiry: object.and_then(|object| object.info.expiry).into(),
    }
}

/// A change of the object's time to live.
pub(crate) fn new_expiry(object: &Object, expiry: Expiry) -> Change {
    Change::Put { value: object.value.clone(), metadata: object.info.metadata.clone(), expiry }
}

/// A change that stores a value as SET does: nothing of the old object is kept.
pub(crate) fn set_value(value: &Bytes, expiry: Expiry) -> Change {
    Change::Put { value: Buffer::from(value.clone()), metadata: Metadata::default(), expiry }
}
