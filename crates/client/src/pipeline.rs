//! Many small operations over one stream, made by one task and answered to it in the order of their completion: without a
//! future, a waker or a channel for each.
//!
//! An operation is written into the message that leaves next; answers are parsed in place, when they are requested.
//! [`OperationStream`](crate::OperationStream) is the same with a future for each operation, and repeats operations if that is
//! safe; here each operation is sent once, and its outcome is reported.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use shoal_api::v1::operation::Action;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::exchange::{Ended, Exchange};
use crate::object::{ByteRange, DeleteResult, Object, ObjectInfo, PutOptions, PutResult, RejectRules};
use crate::operation::{self, Done, Operation};
use crate::retry::Failed;
use crate::wire;

/// The result of an operation of a [`Pipeline`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of a get: the object; `None` if it does not exist.
    Got(Option<Object>),
    /// Of a get: the value is longer than 64 KiB, and does not fit: read it with [`Client::get`].
    TooLong(ObjectInfo),
    /// Of a put, which is durable.
    Put(PutResult),
    /// Of a delete, which is durable.
    Deleted(DeleteResult),
}

/// A stream of operations on one bucket, for one task that keeps many small ones in flight. Each has a note of the caller,
/// which is returned with its answer.
///
/// ```no_run
/// # async fn example() -> shoal_client::Result<()> {
/// use shoal_client::{Answer, ByteRange, Client};
///
/// let client = Client::connect("127.0.0.1:7411").await?;
/// let mut pipeline = client.pipeline("default");
/// let mut names = (0..100_000).map(|number| format!("object-{number}"));
/// loop {
///     // Fills the free room; the rest follows when answers have come.
///     while pipeline.has_room()
///         && let Some(name) = names.next()
///     {
///         let added = pipeline.get(name.as_bytes(), ByteRange::ALL, name.clone());
///         assert!(added.is_ok(), "there was room");
///     }
///     let Some((name, answer)) = pipeline.next().await else { break };
///     if let Answer::Got(Some(object)) = answer? {
///         println!("{name}: {} bytes", object.value.len());
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// Operations in flight at the same time have no order, not even those on one key: a caller that needs one waits for the answer
/// of the first. Nothing is repeated: if the stream breaks, every operation that was sent fails, a write with
/// [`Error::Unknown`], and the next operations go over a new stream. An operation leaves while [`Pipeline::next`] is awaited.
/// Dropping a pipeline cancels its operations: each write is then done completely or not at all. Values of answers share the
/// received memory with their neighbours: a caller that keeps a few of them for a long time should copy them.
pub struct Pipeline<T> {
    exchange: Exchange<T>,
    bucket: Box<str>,
}

impl Client {
    /// A stream of operations on `bucket` for one task, which attaches a note of type `T` to each operation. It is opened with
    /// the first operation.
    #[must_use]
    pub fn pipeline<T>(&self, bucket: &str) -> Pipeline<T> {
        Pipeline { exchange: Exchange::new(Arc::clone(&self.transport), bucket), bucket: bucket.into() }
    }
}

impl<T> Pipeline<T> {
    /// Starts to read an object, or a part of it.
    ///
    /// # Errors
    /// The note, if there is no room: take an answer first.
    pub fn get(&mut self, key: &[u8], range: ByteRange, note: T) -> Result<(), T> {
        let extras = operation::extras_of_get(range);
        self.begin(Operation { action: Action::Get, key, value: &[], extras: extras.as_ref() }, note)
    }

    /// Starts to store an object: `value` has at most 64 KiB.
    ///
    /// # Errors
    /// The note, if there is no room: take an answer first.
    pub fn put(&mut self, key: &[u8], value: &[u8], options: &PutOptions, note: T) -> Result<(), T> {
        let extras = operation::extras_of_put(options, None);
        self.begin(Operation { action: Action::Put, key, value, extras: extras.as_ref() }, note)
    }

    /// Starts to delete an object.
    ///
    /// # Errors
    /// The note, if there is no room: take an answer first.
    pub fn delete(&mut self, key: &[u8], rules: RejectRules, note: T) -> Result<(), T> {
        let extras = operation::extras_of_delete(rules, None);
        self.begin(Operation { action: Action::Delete, key, value: &[], extras: extras.as_ref() }, note)
    }

    fn begin(&mut self, operation: Operation<'_>, note: T) -> Result<(), T> {
        if !self.has_room() {
            return Err(note);
        }
        self.exchange.begin(&operation, note);
        Ok(())
    }

    /// Returns true if there is room for an operation: about a thousand small ones, or 4 MiB of values.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.exchange.has_room()
    }

    /// Number of started operations whose answers were not taken.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.exchange.under_way()
    }

    /// Waits for the next answer; `None` if nothing is in flight. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<(T, Result<Answer>)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Self::next`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(T, Result<Answer>)>> {
        self.exchange.poll_next(context).map(|ended| ended.map(noted_answer))
    }
}

fn noted_answer<T>(ended: Ended<T>) -> (T, Result<Answer>) {
    let Ended { note, action, result, .. } = ended;
    let answer = match result.and_then(|done| answer_of(action, done)) {
        Err(Failed { error: Error::NotFound, .. }) if action == Action::Get => Ok(Answer::Got(None)),
        Err(failed) if action == Action::Get => Err(failed.error),
        Err(failed) => Err(failed.of_write()),
        Ok(answer) => Ok(answer),
    };
    (note, answer)
}

fn answer_of(action: Action, done: Done) -> Result<Answer, Failed> {
    Ok(match action {
        Action::Put => Answer::Put(done.put()),
        Action::Delete => Answer::Deleted(done.delete()),
        _ => {
            let info = done.info.ok_or_else(wire::no_info)?;
            match done.value_omitted {
                true => Answer::TooLong(info),
                false => Answer::Got(Some(Object { info, value: done.value })),
            }
        }
    })
}

impl<T> std::fmt::Debug for Pipeline<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("server", &self.exchange.server())
            .field("bucket", &self.bucket)
            .field("under_way", &self.under_way())
            .finish_non_exhaustive()
    }
}
