//! The loads of the key-value service: its own mix, and reads and writes of one size. Every returned value is checked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tonic::{Code, Status};

use super::calls::Calls;
use super::keys::{Key, Slice, Source};
use super::load::{Call, Ended, Load, Outcome};

/// The work that a server of the series pretends to do for a retrieve, and for each of the others.
pub const READ_WORK: Duration = Duration::from_millis(10);
/// See [`READ_WORK`].
pub const WRITE_WORK: Duration = Duration::from_millis(50);

/// Calls in flight while objects are loaded or checked.
const LOADERS: usize = 64;

/// The kind of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// That of the series: create, retrieve, update and delete with equal odds, of its sizes.
    Crud,
    /// Retrieves of objects that are there.
    Read,
    /// Updates of objects that are there.
    Write,
    /// Both in turn.
    ReadWrite,
}

/// The objects that a server has, and the connection to it. Clones share both.
#[derive(Clone)]
pub(super) struct Objects(Rc<Shared>);

struct Shared {
    source: Rc<Source>,
    calls: Calls,
    /// Length of new values; none: the sizes of the series.
    value_bytes: Option<usize>,
    /// Keys that exist, to the client's knowledge.
    keys: RefCell<Vec<Rc<Key>>>,
}

/// Calls of one mix on some objects.
pub(super) struct Calling {
    objects: Objects,
    mix: Mix,
    turn: Cell<usize>,
}

impl Objects {
    /// None yet, with values of the sizes of the series, or of `value_bytes` bytes.
    pub(super) fn new(source: &Rc<Source>, calls: Calls, value_bytes: Option<usize>) -> Self {
        Self(Rc::new(Shared { source: Rc::clone(source), calls, value_bytes, keys: RefCell::default() }))
    }

    /// Creates `count` of them, with keys of `key_bytes` bytes.
    pub(super) async fn load(&self, count: usize, key_bytes: usize) -> Result<()> {
        let create = |_| Ok(self.create(self.0.source.key(key_bytes)));
        stream::iter(0..count)
            .map(create)
            .try_for_each_concurrent(LOADERS, |call| async { call.await.map(drop) })
            .await
    }

    /// Retrieves every object that is there, and checks it.
    pub(super) async fn check_all(&self) -> Result<usize> {
        let keys = self.0.keys.borrow().clone();
        let count = keys.len();
        let check = |key| Ok(self.retrieve(key));
        stream::iter(keys)
            .map(check)
            .try_for_each_concurrent(LOADERS, |call| async { call.await.map(drop) })
            .await?;
        Ok(count)
    }

    pub(super) fn calling(&self, mix: Mix) -> Calling {
        Calling { objects: self.clone(), mix, turn: Cell::new(0) }
    }

    fn value(&self) -> Slice {
        let source = &self.0.source;
        self.0.value_bytes.map_or_else(|| source.seed_value(), |bytes| source.value(bytes))
    }

    fn any(&self) -> Option<Rc<Key>> {
        let keys = self.0.keys.borrow();
        if keys.is_empty() { None } else { keys.get(self.0.source.below(keys.len())).cloned() }
    }

    fn create(&self, key: Rc<Key>) -> Call {
        let (shared, value) = (Rc::clone(&self.0), self.value());
        Box::pin(async move {
            let writing = key.begin_write(value);
            let created = shared.calls.create(key.name.clone(), shared.source.bytes(value)).await;
            key.end_write(&writing, created.is_ok());
            let outcome = match created {
                Ok(()) => {
                    shared.keys.borrow_mut().push(key);
                    Outcome::Done
                }
                Err(status) if status.code() == Code::AlreadyExists => {
                    key.check_exists()?;
                    Outcome::AlreadyExists
                }
                Err(status) => bail!("create: {status}"),
            };
            Ok(ended(outcome, WRITE_WORK))
        })
    }

    fn retrieve(&self, key: Rc<Key>) -> Call {
        let shared = Rc::clone(&self.0);
        Box::pin(async move {
            let floor = key.begin_read();
            let retrieved = shared.calls.retrieve(key.name.clone()).await;
            let check = |value: Bytes| key.check(&shared.source, floor, &value);
            Ok(Ended { work: READ_WORK, ..found("retrieve", &key, retrieved, check)? })
        })
    }

    fn update(&self, key: Rc<Key>) -> Call {
        let (shared, value) = (Rc::clone(&self.0), self.value());
        Box::pin(async move {
            let writing = key.begin_write(value);
            let updated = shared.calls.update(key.name.clone(), shared.source.bytes(value)).await;
            key.end_write(&writing, updated.is_ok());
            found("update", &key, updated, |()| Ok(()))
        })
    }

    /// Deletes one of the keys, of which there is at least one; it is removed from the set before anything is sent, as in the
    /// client of the series.
    fn delete_any(&self) -> Call {
        let key = {
            let mut keys = self.0.keys.borrow_mut();
            let place = self.0.source.below(keys.len());
            keys.swap_remove(place)
        };
        key.begin_delete();
        let shared = Rc::clone(&self.0);
        Box::pin(async move {
            let deleted = shared.calls.delete(key.name.clone()).await;
            found("delete", &key, deleted, |()| Ok(()))
        })
    }
}

impl Load for Calling {
    fn next(&self) -> Call {
        let objects = &self.objects;
        let turn = self.turn.get();
        self.turn.set(turn + 1);
        let choice = match self.mix {
            Mix::Crud => objects.0.source.below(4),
            Mix::Read => 1,
            Mix::Write => 2,
            Mix::ReadWrite => 1 + turn % 2,
        };
        match (choice, objects.any()) {
            (1, Some(key)) => objects.retrieve(key),
            (2, Some(key)) => objects.update(key),
            (3, Some(_)) => objects.delete_any(),
            _ => objects.create(objects.0.source.seed_key()),
        }
    }
}

fn ended(outcome: Outcome, work: Duration) -> Ended {
    Ended { outcome, operations: 1, work }
}

/// The outcome of a call on a key that existed.
fn found<T>(
    verb: &str,
    key: &Key,
    result: Result<T, Status>,
    check: impl FnOnce(T) -> Result<()>,
) -> Result<Ended> {
    let outcome = match result {
        Ok(answer) => {
            check(answer)?;
            Outcome::Done
        }
        Err(status) if status.code() == Code::NotFound => {
            key.check_missing()?;
            Outcome::NotFound
        }
        Err(status) => bail!("{verb}: {status}"),
    };
    Ok(ended(outcome, WRITE_WORK))
}
