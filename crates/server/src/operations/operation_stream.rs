//! Many small operations over one stream, each answered by its number when it has ended.
//!
//! Everything of a stream happens in the one task that hands its answers to HTTP/2: it is polled when a message arrives, when the store
//! completes an operation, and when the connection takes bytes. A turn starts operations while there is room, hands its writes to the
//! committer at once, and answers in one message all operations that have finished by then, without waiting for more. So under load
//! messages and log batches grow by themselves.
//!
//! A stream at its memory limit reads no further message: then HTTP/2's window closes, and its client waits. An operation that has started
//! is answered before the stream is closed, for any reason. So an operation without an answer on a stream that the server closed was not
//! executed. Operations in flight have no order, and no code here keeps one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, poll_fn};
use futures_util::{FutureExt, Stream, StreamExt};
use shoal_api::v1::operation::Action;
use shoal_api::{OPERATION_VALUE_BYTES_MAX, v1};
use shoal_buffer::Buffer;
use shoal_engine::{Error, Lookup, ObjectKey, RequestId, Store, Ticket, TryGet, Write};
use shoal_http::MemoryPermit;
use tokio::sync::watch;

use super::batch::{Batch, Item, Numbered, RESULTS, VALUE};
use crate::answer::assembly::{Assembly, Value};
use crate::auth::{Authenticated, Revoked};
use crate::call::receive::FrameBody;
use crate::call::stream_messages::Messages;
use crate::call::with_value::WithValue;
use crate::convert;
use crate::failure::Failure;
use crate::timing::{StreamTimer, result_of_code};

/// Operations of one stream under way at the same time.
const UNDER_WAY_MAX: usize = 1024;

/// Bytes of keys and values of the operations in flight, beyond which no further one starts.
const UNDER_WAY_BYTES_MAX: usize = 1 << 20;

/// Reads of one stream that wait for the device: each may bring in a value.
const READS_MAX: usize = 32;

/// Bytes of ready answers, beyond which they leave before another operation starts.
const READY_BYTES_MAX: usize = 64 << 10;

/// Bytes of an operation besides its key and value, request or answer.
const OPERATION_BYTES: usize = 32;

/// The initial memory of an answer, in bytes.
const ANSWER_BYTES_GUESS: usize = 4 << 10;

/// Bytes in flight and answered count in steps of this size, so that a short operation changes no shared count.
const STEP_BYTES: usize = 64 << 10;

/// Executes the operations in the messages of `request`. Stops early, but completes the started operations, when `draining` becomes true or
/// its caller is `revoked`.
pub(crate) fn run<B: FrameBody + Send + 'static>(
    request: Authenticated<Messages<B>>,
    permit: Arc<MemoryPermit>,
    mut draining: watch::Receiver<bool>,
    revoked: Revoked,
    timer: StreamTimer,
) -> impl Stream<Item = Result<Box<Buffer>, Failure>> + Send + 'static {
    let (messages, admitted) = request.take();
    let mut operations = Operations {
        admitted: Arc::new(admitted),
        messages,
        input: Input::Open,
        drained: Box::pin(async move {
            // An error means that the server is gone altogether.
            let _ = draining.wait_for(|draining| *draining).await;
        }),
        revoked,
        requests: Batch::default(),
        taken: 0,
        running: FuturesUnordered::new(),
        placed: VecDeque::new(),
        reads: 0,
        held_bytes: 0,
        ready: None,
        answer_bytes: 0,
        permit,
        counted: 0,
        timer,
    };
    poll_fn(move |context| operations.poll_next(context))
}

/// The state of the client's side of the stream.
enum Input {
    Open,
    /// The client sends no more.
    Ended,
    /// No message is taken any more, for this reason.
    Refused(Failure),
    /// The reason was sent.
    Over,
}

/// An operation that must wait for something before its place is fixed.
type Running = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// An operation that needs the store no more.
struct Ended {
    held: OperationShare,
    outcome: Outcome,
}

enum Outcome {
    /// A write that is complete when it is durable.
    Placed(Ticket),
    /// A result, and its value.
    Done(Box<WithValue<v1::OperationResult, Buffer>>),
}

impl From<v1::OperationResult> for Outcome {
    fn from(result: v1::OperationResult) -> Self {
        Self::Done(Box::new(WithValue { message: result, value: Buffer::new() }))
    }
}

/// The share of an operation in the stream's limits while it is under way.
struct OperationShare {
    number: u64,
    bytes: usize,
    is_read: bool,
    operation: shoal_metrics::Operation,
    came_ns: u64,
    /// For a log of all requests.
    noted: Option<Box<shoal_metrics::Noted>>,
}

/// One stream.
struct Operations<B> {
    admitted: Arc<Authenticated<()>>,
    messages: Messages<B>,
    input: Input,
    drained: Pin<Box<dyn Future<Output = ()> + Send>>,
    revoked: Revoked,
    /// The message in work.
    requests: Batch<Numbered>,
    /// Started operations of the message.
    taken: usize,
    running: FuturesUnordered<Running>,
    /// Writes in their order, which is the order in which they become durable: waiting for the first one is enough.
    placed: VecDeque<(OperationShare, Ticket)>,
    /// Reads among `running`.
    reads: usize,
    held_bytes: usize,
    /// The results since the last answer; `None` if there are none.
    ready: Option<Assembly>,
    /// Bytes of the last answer, until the next one is taken.
    answer_bytes: usize,
    permit: Arc<MemoryPermit>,
    /// Bytes of all this that count for the permit; the bytes of messages are counted when they are parsed.
    counted: usize,
    timer: StreamTimer,
}

impl<B: FrameBody> Operations<B> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Box<Buffer>, Failure>>> {
        let polled = self.turn(context);
        self.timer.settle();
        self.answer_bytes = if let Poll::Ready(Some(Ok(answer))) = &polled { answer.len() } else { 0 };
        self.count();
        polled
    }

    /// Counts the memory that it holds now.
    fn count(&mut self) {
        let ready_bytes = self.ready.as_ref().map_or(0, Assembly::len);
        let read_bytes = self.reads * OPERATION_VALUE_BYTES_MAX;
        let holds = self.held_bytes + read_bytes + ready_bytes + self.answer_bytes;
        let now = holds.next_multiple_of(STEP_BYTES);
        if now > self.counted {
            self.permit.take(now - self.counted);
        } else {
            self.permit.give(self.counted - now);
        }
        self.counted = now;
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Box<Buffer>, Failure>>> {
        loop {
            let mut moved = self.poll_message(context);
            moved |= self.start(context);
            moved |= self.poll_running(context);
            moved |= self.poll_placed(context);
            if !moved || self.is_full() {
                break;
            }
        }
        if let Some(ready) = self.ready.take_if(|ready| ready.len() > 0) {
            return Poll::Ready(Some(Ok(ready.finish())));
        }
        if self.has_requests() || self.under_way() > 0 {
            return Poll::Pending;
        }
        match std::mem::replace(&mut self.input, Input::Over) {
            Input::Open => {
                self.input = Input::Open;
                Poll::Pending
            }
            Input::Refused(failure) => Poll::Ready(Some(Err(failure))),
            Input::Ended | Input::Over => Poll::Ready(None),
        }
    }

    fn has_requests(&self) -> bool {
        self.taken < self.requests.items.len()
    }

    fn under_way(&self) -> usize {
        self.running.len() + self.placed.len()
    }

    fn has_room(&self) -> bool {
        self.under_way() < UNDER_WAY_MAX
            && self.held_bytes < UNDER_WAY_BYTES_MAX
            && self.reads < READS_MAX
            && !self.is_full()
    }

    /// Returns true if the ready answers have to leave first.
    fn is_full(&self) -> bool {
        self.ready.as_ref().is_some_and(|ready| ready.len() >= READY_BYTES_MAX)
    }

    /// Takes the next message, if there is room for it; returns true if one came.
    fn poll_message(&mut self, context: &mut Context<'_>) -> bool {
        if !matches!(self.input, Input::Open) {
            return false;
        }
        if self.drained.poll_unpin(context).is_ready() {
            self.refuse(Failure::stopping());
            return true;
        }
        if let Poll::Ready(denied) = self.revoked.poll_unpin(context) {
            self.refuse(Failure::revoked(&denied));
            return true;
        }
        if self.has_requests() || !self.has_room() {
            return false;
        }
        match self.messages.poll_next(context) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(message))) => {
                self.timer.message();
                self.taken = 0;
                if let Err(failure) = self.requests.refill(message) {
                    self.refuse(failure);
                }
            }
            Poll::Ready(Some(Err(status))) => self.refuse(status.into()),
            Poll::Ready(None) => self.input = Input::Ended,
        }
        true
    }

    /// Starts no more operations; those in flight are still answered.
    fn refuse(&mut self, failure: Failure) {
        (self.requests, self.taken) = (Batch::default(), 0);
        self.input = Input::Refused(failure);
    }

    /// Starts operations while there is room; their writes share a batch. Returns true if it started any.
    fn start(&mut self, context: &mut Context<'_>) -> bool {
        if !self.has_requests() || !self.has_room() {
            return false;
        }
        let admitted = Arc::clone(&self.admitted);
        let requests = std::mem::take(&mut self.requests);
        admitted.gather(|| {
            while self.has_room()
                && let Some(item) = requests.items.get(self.taken)
            {
                self.taken += 1;
                if let Some(lookup) = self.try_do(&requests, item) {
                    self.run(&requests, item, lookup, context);
                }
            }
        });
        self.requests = requests;
        true
    }

    /// Executes an operation without further options, if the store can do so without waiting. Otherwise the operation needs a task, which
    /// resumes the search that this returns.
    fn try_do(&mut self, batch: &Batch<Numbered>, item: &Item<Numbered>) -> Option<Lookup> {
        let begin = Some(Lookup::default());
        if item.says_more {
            return begin;
        }
        let Ok(key) = batch.key(item) else { return begin };
        match item.extra.action {
            Action::Put => {
                let Ok(store) = self.admitted.to_operate(Action::Put, &key) else { return begin };
                let Some(pending) = store.try_write(&[(&key, batch.value(item))]) else { return begin };
                let held = OperationShare::of(item, &self.timer, Some(&key));
                self.held_bytes += held.bytes;
                self.placed.push_back((held, pending));
                None
            }
            Action::Get => {
                let number = item.extra.number;
                let ready = self.ready.get_or_insert_with(|| Assembly::new(ANSWER_BYTES_GUESS));
                let read = self.admitted.try_get(&key, |object| {
                    let (result, value) = match object.map(|object| (object.info(), object.value())) {
                        None => (failed(number, Failure::not_found(&key)), Value::None),
                        Some((Err(error), _)) => (failed(number, Failure::of(&error)), Value::None),
                        Some((Ok(info), value)) => {
                            let info = Some(convert::info(&info));
                            (v1::OperationResult { info, ..result(number) }, Value::Short(value))
                        }
                    };
                    ready.add(RESULTS, &result, VALUE, value);
                    result_of(&result)
                });
                let result = match read {
                    TryGet::Shown(result) => result,
                    TryGet::MustWait(lookup) => return Some(lookup),
                };
                let noted = self.timer.noted(&key);
                self.timer.ended(shoal_metrics::Operation::Get, result, self.timer.message_ns, noted);
                None
            }
            _ => begin,
        }
    }

    /// Starts an operation that may have to wait; the search of a get continues from `lookup`.
    fn run(
        &mut self,
        batch: &Batch<Numbered>,
        item: &Item<Numbered>,
        lookup: Lookup,
        context: &mut Context<'_>,
    ) {
        let held = OperationShare::of(item, &self.timer, batch.key(item).ok().as_ref());
        self.held_bytes += held.bytes;
        self.reads += usize::from(held.is_read);
        let no_room = held.is_read && !self.permit.has_room();
        let begun = match no_room {
            // A value that is read takes more memory.
            true => Err(self.permit.no_room().into()),
            false => self.admit(batch, item),
        };
        let (store, key, operation) = match begun {
            Ok(begun) => begun,
            Err(failure) => {
                let outcome = failed(held.number, failure).into();
                return self.take(Ended { held, outcome });
            }
        };
        let mut running: Running = Box::pin(async move {
            let outcome = perform(&store, &key, operation, lookup).await;
            let outcome = outcome.unwrap_or_else(|failure| failed(held.number, failure).into());
            Ended { held, outcome }
        });
        // Most reads and nearly all writes need no second poll.
        match running.poll_unpin(context) {
            Poll::Ready(ended) => self.take(ended),
            Poll::Pending => self.running.push(running),
        }
    }

    /// An operation that its caller may execute, with the store.
    fn admit(
        &self,
        batch: &Batch<Numbered>,
        item: &Item<Numbered>,
    ) -> Result<(Store, ObjectKey, v1::Operation), Failure> {
        let key = batch.key(item)?;
        let operation: v1::Operation = batch.whole_apart(item)?;
        let store = self.admitted.to_operate(operation.action(), &key)?;
        Ok((store.clone(), key, operation))
    }

    fn poll_running(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while !self.is_full()
            && let Poll::Ready(Some(ended)) = self.running.poll_next_unpin(context)
        {
            self.take(ended);
            moved = true;
        }
        moved
    }

    fn poll_placed(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some((_, pending)) = self.placed.front()
            && let Poll::Ready(durable) = pending.poll_durable(context)
            && let Some((held, _)) = self.placed.pop_front()
        {
            let result = match durable {
                Ok(version) => v1::OperationResult { version: version.0, ..result(held.number) },
                Err(error) => failed(held.number, Failure::of(&error)),
            };
            self.answer(held, &result, Value::None);
            moved = true;
        }
        moved
    }

    fn take(&mut self, ended: Ended) {
        self.reads -= usize::from(ended.held.is_read);
        match ended.outcome {
            Outcome::Placed(pending) => self.placed.push_back((ended.held, pending)),
            Outcome::Done(mut done) => {
                self.answer(ended.held, &done.message, Value::Chunks(&mut done.value));
            }
        }
    }

    fn answer(&mut self, held: OperationShare, result: &v1::OperationResult, value: Value<'_>) {
        self.timer.ended(held.operation, result_of(result), held.came_ns, held.noted);
        self.held_bytes -= held.bytes;
        let ready = self.ready.get_or_insert_with(|| Assembly::new(ANSWER_BYTES_GUESS));
        ready.add(RESULTS, result, VALUE, value);
    }
}

/// The metrics' operation of a stream's action.
fn operation_of(action: Action) -> shoal_metrics::Operation {
    match action {
        Action::Get => shoal_metrics::Operation::Get,
        Action::Head => shoal_metrics::Operation::Head,
        Action::Put => shoal_metrics::Operation::Put,
        Action::Delete => shoal_metrics::Operation::Delete,
        Action::Unspecified => shoal_metrics::Operation::Other,
    }
}

/// The result of an operation.
fn result_of(result: &v1::OperationResult) -> shoal_metrics::RequestResult {
    result_of_code(result.status.as_ref().map_or(0, |status| status.code))
}

impl OperationShare {
    fn of(item: &Item<Numbered>, timer: &StreamTimer, key: Option<&ObjectKey>) -> Self {
        Self {
            number: item.extra.number,
            bytes: OPERATION_BYTES + item.bytes(),
            is_read: matches!(item.extra.action, Action::Get | Action::Head),
            operation: operation_of(item.extra.action),
            came_ns: timer.message_ns,
            noted: key.and_then(|key| timer.noted(key)),
        }
    }
}

/// One operation, up to its answer or its place in the order of writes.
async fn perform(
    store: &Store,
    key: &ObjectKey,
    operation: v1::Operation,
    lookup: Lookup,
) -> Result<Outcome, Failure> {
    match operation.action() {
        Action::Get => get(store, key, &operation, lookup).await,
        Action::Put => put(store, key, operation).await,
        Action::Delete => delete(store, key, operation).await,
        Action::Head => {
            let info = store.head(key).await.map_err(|error| Failure::of(&error))?;
            let info = info.ok_or_else(|| Failure::not_found(key))?;
            let info = Some(convert::info(&info));
            Ok(v1::OperationResult { info, ..result(operation.number) }.into())
        }
        Action::Unspecified => Err(Failure::invalid("unknown kind of operation")),
    }
}

async fn get(
    store: &Store,
    key: &ObjectKey,
    operation: &v1::Operation,
    lookup: Lookup,
) -> Result<Outcome, Failure> {
    let range = convert::range(operation.range);
    let capped = convert::capped(range, OPERATION_VALUE_BYTES_MAX as u64);
    let object = store.get_from(lookup, key, capped, |_| Ok::<_, Error>(())).await;
    let object = object.map_err(|error| Failure::of(&error))?.ok_or_else(|| Failure::not_found(key))?;
    let value_omitted = range.within(object.info.bytes).1 > object.value.len() as u64;
    let value = if value_omitted { Buffer::new() } else { object.value };
    let info = Some(convert::info(&object.info));
    let result = v1::OperationResult { info, value_omitted, ..result(operation.number) };
    Ok(Outcome::Done(Box::new(WithValue { message: result, value })))
}

async fn put(store: &Store, key: &ObjectKey, operation: v1::Operation) -> Result<Outcome, Failure> {
    let v1::Operation {
        number, rules, metadata, modified_ns, request_id, value, ttl_ns, expire_time_ns, ..
    } = operation;
    if value.len() > OPERATION_VALUE_BYTES_MAX {
        return Err(Failure::invalid(format!(
            "a value in a stream of operations has at most {OPERATION_VALUE_BYTES_MAX} bytes; this one has {}",
            value.len()
        )));
    }
    let options = convert::put_options(rules, metadata, modified_ns, (ttl_ns, expire_time_ns))?;
    let rules = options.rules;
    let failed = |error| Failure::of_write(&error, &rules);
    let request_id = request_id_of(request_id);
    let value = value.into();
    let write = Write::put(key, &value, &options).with_request_id(request_id);
    let pending = store.write(write).await.map_err(failed)?;
    if request_id.is_none() && rules.is_empty() {
        return Ok(Outcome::Placed(pending));
    }
    let version = pending.durable().await.map_err(failed)?.0;
    Ok(v1::OperationResult { version, ..result(number) }.into())
}

async fn delete(store: &Store, key: &ObjectKey, operation: v1::Operation) -> Result<Outcome, Failure> {
    let rules = convert::rules(operation.rules);
    let failed = |error| Failure::of_write(&error, &rules);
    let request_id = request_id_of(operation.request_id);
    let pending = store.write(Write::delete(key, rules).with_request_id(request_id)).await.map_err(failed)?;
    if request_id.is_none() && rules.is_empty() {
        return Ok(Outcome::Placed(pending));
    }
    let deleted = pending.before().map(|version| version.0);
    let version = pending.durable().await.map_err(failed)?.0;
    Ok(v1::OperationResult { version, deleted, ..result(operation.number) }.into())
}

fn request_id_of(request_id: Option<v1::RequestId>) -> Option<RequestId> {
    request_id.map(|request_id| RequestId { session: request_id.session, sequence: request_id.sequence })
}

fn result(number: u64) -> v1::OperationResult {
    v1::OperationResult { number, ..v1::OperationResult::default() }
}

fn failed(number: u64, failure: Failure) -> v1::OperationResult {
    v1::OperationResult { status: Some(failure.into_key_status()), ..result(number) }
}
