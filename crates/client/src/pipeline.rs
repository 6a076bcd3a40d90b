//! Many small operations over one stream, made by one task and answered to it in the order in which they end: without a future,
//! a waker or a channel for each.
//!
//! An operation is written into the message that leaves next; answers are taken apart where they were received, when they are
//! asked for. [`OperationStream`](crate::OperationStream) is the same with a future for each operation, and repeats what is safe
//! to repeat; here each operation is sent once, and what became of it is said.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Stream, stream};
use shoal_api::v1;
use shoal_api::v1::operation::Action;
use tokio::time::{Sleep, sleep};
use tonic::Streaming;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::{ByteRange, DeleteResult, Object, ObjectInfo, PutOptions, PutResult, RejectRules};
use crate::operation::{self, Done, Operation, Results};
use crate::outgoing::{Outgoing, Places, UNITS_MAX, locked, units};
use crate::retry::{Failed, Outcome};
use crate::transport::Transport;
use crate::wire;

/// What an operation of a [`Pipeline`] gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of a get: the object; none where there is none.
    Got(Option<Object>),
    /// Of a get: the value is longer than 64 KiB, and does not fit: get it with [`Client::get`].
    TooLong(ObjectInfo),
    /// Of a put, which is durable.
    Put(PutResult),
    /// Of a delete, which is durable.
    Deleted(DeleteResult),
}

/// A stream of operations on one bucket, for one task that keeps many small ones under way. Each has a note of the caller's,
/// which its answer gives back.
///
/// ```no_run
/// # async fn example() -> shoal_client::Result<()> {
/// use shoal_client::{Answer, ByteRange, Client};
///
/// let client = Client::connect("127.0.0.1:7411").await?;
/// let mut pipeline = client.pipeline("default");
/// let mut names = (0..100_000).map(|number| format!("object-{number}"));
/// loop {
///     // As many as there is room for; the rest when answers have come.
///     while pipeline.has_room()
///         && let Some(name) = names.next()
///     {
///         let begun = pipeline.get(name.as_bytes(), ByteRange::ALL, name.clone());
///         assert!(begun.is_ok(), "there was room");
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
/// Operations under way at the same time have no order, also not those on one key: who needs one waits for the answer of the
/// first. Nothing is sent again: where the stream breaks, every operation that was sent fails, a write with
/// [`Error::Unknown`], and the next operations go over a new stream. An operation leaves while [`Pipeline::next`] is awaited. A
/// pipeline that is dropped cancels what is under way: each write is then wholly done or wholly not. Values of answers lie
/// in the memory in which they were received, with those around them: who keeps few of them for long copies them.
pub struct Pipeline<T> {
    transport: Arc<Transport>,
    bucket: Box<str>,
    outgoing: Arc<Mutex<Outgoing>>,
    places: Places<Noted<T>>,
    units: u32,
    link: Link,
    /// What is left of the last message of answers.
    results: Results,
    /// What failed with its stream, or before it was sent.
    failed: VecDeque<(T, Error)>,
    silence: Option<Silence>,
    /// Messages that came.
    heard: u64,
}

/// An operation under way.
struct Noted<T> {
    note: T,
    action: Action,
    /// Its place in the order of all operations.
    at: u64,
    units: u32,
}

type Opening = Pin<Box<dyn Future<Output = Result<Streaming<Bytes>, Failed>> + Send>>;

/// The way to the server.
enum Link {
    None,
    /// With how many operations were sent before it: some leave before the server says that the stream is open.
    Opening(Opening, u64),
    /// With the same.
    Open(Box<Streaming<Bytes>>, u64),
}

/// A wait for the server, and what there was when it began.
struct Silence {
    bell: Pin<Box<Sleep>>,
    heard: u64,
    sent: u64,
}

impl Client {
    /// A stream of operations on `bucket` for one task, which gives each operation a note of type `T`. It is opened with the
    /// first operation.
    #[must_use]
    pub fn pipeline<T>(&self, bucket: &str) -> Pipeline<T> {
        Pipeline {
            transport: Arc::clone(&self.transport),
            bucket: bucket.into(),
            outgoing: Arc::new(Mutex::new(Outgoing::new(bucket))),
            places: Places::default(),
            units: 0,
            link: Link::None,
            results: Results::default(),
            failed: VecDeque::new(),
            silence: None,
            heard: 0,
        }
    }
}

impl<T> Pipeline<T> {
    /// Begins to read an object, or a part of it.
    ///
    /// # Errors
    /// The note, where there is no room: take an answer first.
    pub fn get(&mut self, key: &[u8], range: ByteRange, note: T) -> Result<(), T> {
        let besides = operation::besides_get(range);
        self.begin(Operation { action: Action::Get, key, value: &[], besides: besides.as_ref() }, note)
    }

    /// Begins to store an object: `value` has at most 64 KiB.
    ///
    /// # Errors
    /// The note, where there is no room: take an answer first.
    pub fn put(&mut self, key: &[u8], value: &[u8], options: &PutOptions, note: T) -> Result<(), T> {
        let besides = operation::besides_put(options, None);
        self.begin(Operation { action: Action::Put, key, value, besides: besides.as_ref() }, note)
    }

    /// Begins to delete an object.
    ///
    /// # Errors
    /// The note, where there is no room: take an answer first.
    pub fn delete(&mut self, key: &[u8], rules: RejectRules, note: T) -> Result<(), T> {
        let besides = operation::besides_delete(rules, None);
        self.begin(Operation { action: Action::Delete, key, value: &[], besides: besides.as_ref() }, note)
    }

    /// Whether there is room for an operation: about a thousand small ones, or 4 MiB of values.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.units < UNITS_MAX && self.failed.len() < UNITS_MAX as usize
    }

    /// How many operations were begun whose answers were not taken.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.places.len() + self.failed.len()
    }

    /// Waits for the next answer; none where nothing is under way. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<(T, Result<Answer>)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Self::next`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(T, Result<Answer>)>> {
        loop {
            if let Some((note, error)) = self.failed.pop_front() {
                return Poll::Ready(Some((note, Err(error))));
            }
            match self.results.next() {
                Ok(Some((number, done))) => match self.places.take(number) {
                    Some(noted) => return Poll::Ready(Some(self.ended(noted, done))),
                    None => self.broken("it answered an operation that nobody asked for"),
                },
                Ok(None) if self.places.len() == 0 => return Poll::Ready(None),
                Ok(None) => ready!(self.poll_link(context)),
                Err(status) => self.broken(status.message()),
            }
        }
    }

    fn begin(&mut self, operation: Operation<'_>, note: T) -> Result<(), T> {
        if !self.has_room() {
            return Err(note);
        }
        if let Err(error) = operation.check() {
            self.failed.push_back((note, error));
            return Ok(());
        }
        let units = units(operation.bytes());
        let number = self.places.next_number();
        let (at, sender) = locked(&self.outgoing).push(number, &operation);
        self.places.add(Noted { note, action: operation.action, at, units });
        self.units += units;
        if let Some(sender) = sender {
            sender.wake();
        }
        Ok(())
    }

    fn ended(&mut self, noted: Noted<T>, done: Done) -> (T, Result<Answer>) {
        let Noted { note, action, units, .. } = noted;
        self.units -= units;
        let answer = done.or_failed(self.transport.server()).and_then(|done| answer_of(action, done));
        let answer = match answer {
            Err(Failed { error: Error::NotFound, .. }) if action == Action::Get => Ok(Answer::Got(None)),
            Err(failed) => Err(error_of(action, failed)),
            Ok(answer) => Ok(answer),
        };
        (note, answer)
    }

    /// Opens the stream, or takes the next message from it.
    fn poll_link(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.link {
            Link::None => {
                let transport = Arc::clone(&self.transport);
                let sent_before = locked(&self.outgoing).sent();
                let messages = messages(&self.outgoing);
                let opening = async move { transport.exchange::<v1::Operations>(messages).await };
                self.link = Link::Opening(Box::pin(opening), sent_before);
            }
            Link::Opening(opening, sent_before) => match ready!(opening.as_mut().poll(context)) {
                Ok(answers) => {
                    self.silence = None;
                    self.link = Link::Open(Box::new(answers), *sent_before);
                }
                Err(failed) => self.fail(&failed, false),
            },
            Link::Open(answers, sent_before) => {
                let is_used = locked(&self.outgoing).sent() > *sent_before;
                match Pin::new(answers.as_mut()).poll_next(context) {
                    Poll::Ready(Some(Ok(message))) => {
                        self.heard += 1;
                        self.results = Results::of(message);
                    }
                    Poll::Ready(Some(Err(status))) => self.fail(&self.transport.failed(&status), is_used),
                    Poll::Ready(None) => {
                        let early = wire::protocol("the stream of operations ended");
                        self.fail(&Failed { outcome: Outcome::Open, ..early }, is_used);
                    }
                    Poll::Pending => {
                        ready!(self.poll_silence(context));
                        let error = self.transport.silent();
                        self.fail(&Failed { error, outcome: Outcome::Open }, true);
                    }
                }
            }
        }
        Poll::Ready(())
    }

    /// Ends where the server said nothing for as long as it may be silent, though it was asked for something.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let (heard, sent) = (self.heard, locked(&self.outgoing).sent());
            let answer_timeout = self.transport.answer_timeout();
            let silence = self.silence.get_or_insert_with(|| Silence {
                bell: Box::pin(sleep(answer_timeout)),
                heard,
                sent,
            });
            ready!(silence.bell.as_mut().poll(context));
            let is_silent = silence.heard == heard;
            let sent = silence.sent;
            self.silence = None;
            if is_silent && self.places.iter_mut().any(|noted| noted.at <= sent) {
                return Poll::Ready(());
            }
        }
    }

    /// The server breaks the rules.
    fn broken(&mut self, what: &str) {
        self.fail(&Failed { outcome: Outcome::Open, ..wire::protocol(what) }, true);
    }

    /// The stream is over: what was sent has failed, and what was not, too, where it is not `kept` for another stream.
    fn fail(&mut self, failed: &Failed, is_kept: bool) {
        (self.link, self.results, self.silence) = (Link::None, Results::default(), None);
        let (sender, sent) = {
            let mut outgoing = locked(&self.outgoing);
            (outgoing.end_stream(is_kept), outgoing.sent())
        };
        if let Some(sender) = sender {
            sender.wake();
        }
        let numbers: Vec<u64> = self.places.numbers().collect();
        for number in numbers {
            let is_over = self.places.get_mut(number).is_some_and(|noted| noted.at <= sent);
            if let Some(noted) = is_over.then(|| self.places.take(number)).flatten() {
                self.units -= noted.units;
                self.failed.push_back((noted.note, error_of(noted.action, failed.clone())));
            }
        }
    }
}

/// The messages of one stream.
fn messages(outgoing: &Arc<Mutex<Outgoing>>) -> impl Stream<Item = Bytes> + Send + 'static {
    let outgoing = Arc::clone(outgoing);
    let number = locked(&outgoing).stream();
    stream::poll_fn(move |context| locked(&outgoing).poll_message(number, context))
}

fn answer_of(action: Action, done: Done) -> Result<Answer, Failed> {
    Ok(match action {
        Action::Put => Answer::Put(PutResult { version: done.version }),
        Action::Delete => Answer::Deleted(DeleteResult { deleted: done.deleted, version: done.version }),
        _ => {
            let info = done.info.ok_or_else(wire::no_info)?;
            match done.value_omitted {
                true => Answer::TooLong(info),
                false => Answer::Got(Some(Object { info, value: done.value })),
            }
        }
    })
}

fn error_of(action: Action, failed: Failed) -> Error {
    match action {
        Action::Put | Action::Delete => failed.of_write(),
        _ => failed.error,
    }
}

impl<T> Drop for Pipeline<T> {
    /// The connection drops what is left of the request, with its waker.
    fn drop(&mut self) {
        let sender = locked(&self.outgoing).close();
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

impl<T> std::fmt::Debug for Pipeline<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("server", &self.transport.server())
            .field("bucket", &self.bucket)
            .field("under_way", &self.under_way())
            .finish_non_exhaustive()
    }
}
