//! Transactions and writes with a request id, in short form.

use shoal_buffer::Buffer;
use shoal_engine::{
    Change, Decision, DeleteResult, Error, Expiry, Metadata, Object, ObjectKey, Outcome, PutOptions,
    PutResult, ReadLevel, RejectRules, RequestId, Store, TransactOptions, Updated, Write, block_on,
};

/// A change that stores a value without metadata and without a deadline.
pub(crate) fn change_to(value: Vec<u8>) -> Change {
    Change::Put { value: value.into(), metadata: Metadata::default(), expiry: Expiry::Never }
}

/// A transaction without watches that is never abandoned.
pub(crate) async fn transact<T>(
    store: &Store,
    keys: &[(ObjectKey, ReadLevel)],
    mut decide: impl FnMut(&[Option<Object>]) -> (Vec<Change>, T),
) -> Result<Updated<T>, Error> {
    let decide = |objects: &[Option<Object>]| {
        let (changes, answer) = decide(objects);
        Decision::Do(changes.into(), answer)
    };
    Ok(store.transact(keys, &TransactOptions::default(), decide).await?.done())
}

/// A transaction of one key.
pub(crate) async fn update<T>(
    store: &Store,
    key: &ObjectKey,
    level: ReadLevel,
    mut decide: impl FnMut(Option<&Object>) -> (Change, T),
) -> Result<Updated<T>, Error> {
    let decide = |objects: &[Option<Object>]| {
        let (change, answer) = decide(objects[0].as_ref());
        Decision::one(change, answer)
    };
    Ok(store.transact(&[(key.clone(), level)], &TransactOptions::default(), decide).await?.done())
}

/// The same, exactly once.
pub(crate) async fn once<T>(
    store: &Store,
    request: RequestId,
    keys: &[(ObjectKey, ReadLevel)],
    mut decide: impl FnMut(&[Option<Object>]) -> (Vec<Change>, T),
    keep: impl Fn(&T) -> Vec<u8> + Sync,
) -> Result<Outcome<T>, Error> {
    let decide = |objects: &[Option<Object>]| {
        let (changes, answer) = decide(objects);
        Decision::Do(changes.into(), answer)
    };
    let options = TransactOptions { request: Some((request, &keep)), ..Default::default() };
    store.transact(keys, &options, decide).await
}

/// Increments the number at the start of an object's value, exactly once; returns the new number, and true if this call counted.
pub(crate) fn count_once(
    store: &Store,
    key: &ObjectKey,
    request: RequestId,
    value_of: impl Fn(u64) -> Vec<u8>,
) -> Result<(u64, bool), Error> {
    let number = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap());
    let count_up = |objects: &[Option<Object>]| {
        let next = objects[0].as_ref().map_or(0, |object| number(&object.value.to_vec())) + 1;
        (vec![change_to(value_of(next))], next)
    };
    let keep = |count: &u64| count.to_le_bytes().to_vec();
    match block_on(once(store, request, &[(key.clone(), ReadLevel::Value)], count_up, keep))? {
        Outcome::Done(done) => {
            for pending in done.pending {
                block_on(pending.durable())?;
            }
            Ok((done.answer, true))
        }
        Outcome::Left(_) | Outcome::Changed => unreachable!("nothing is watched, and nothing left"),
        Outcome::Before { answer, .. } => Ok((number(&answer.unwrap()), false)),
    }
}

/// A put that happens exactly once.
pub(crate) async fn put_once(
    store: &Store,
    request: RequestId,
    key: &ObjectKey,
    value: Buffer,
    options: PutOptions,
) -> Result<PutResult, Error> {
    let pending = store.write(Write::put(key, &value, &options).with_request_id(Some(request))).await?;
    Ok(PutResult { version: pending.durable().await? })
}

/// A delete that happens exactly once.
pub(crate) async fn delete_once(
    store: &Store,
    request: RequestId,
    key: &ObjectKey,
    rules: RejectRules,
) -> Result<DeleteResult, Error> {
    let pending = store.write(Write::delete(key, rules).with_request_id(Some(request))).await?;
    let deleted = pending.before();
    Ok(DeleteResult { deleted, version: pending.durable().await? })
}
