//! Many small operations over one stream, each answered by its number when it has ended.
//!
//! Everything of a stream happens in the one task that hands its answers to HTTP/2: it is polled when a message came, when the
//! store is through with something, and when the connection takes bytes. A turn starts what there is room for, hands its writes
//! to the committer together, and answers in one message what has ended by then, without waiting for more. So under load
//! messages and batches of the log grow by themselves.
//!
//! A stream reads no further message while it holds as much as it may: then HTTP/2's window closes, and its client waits. An
//! operation that was begun is answered before the stream ends, whatever ends it; so what has no answer on a stream that the
//! server ended was not done. There is no order among operations that are under way, and nothing here keeps one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, poll_fn};
use futures_util::{FutureExt, Stream, StreamExt};
use prost::Message as _;
use shoal_api::v1::operation::Action;
use shoal_api::{OPERATION_VALUE_BYTES_MAX, OPERATIONS_MESSAGE_BYTES_MAX, v1};
use shoal_base::limits::BATCH_KEYS_MAX;
use shoal_engine::{Change, Identity, Look, ObjectKey, Pending, Store};
use tokio::sync::watch;
use tonic::Streaming;

use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

/// Operations of one stream under way at the same time.
const UNDER_WAY_MAX: usize = 1024;

/// Bytes of keys and values of the requests under way, beyond which no further one is begun.
const UNDER_WAY_BYTES_MAX: usize = 1 << 20;

/// Reads of one stream that wait for the device: each may bring in a value.
const READS_MAX: usize = 32;

/// Bytes of answers that are ready, beyond which they leave before anything else is begun.
const READY_BYTES_MAX: usize = 64 << 10;

/// What an operation takes besides its key and value, request or answer, in bytes.
const OPERATION_BYTES: usize = 32;

/// What a stream may hold, in bytes: what is under way, values that are read, answers, a message in work and what has come of
/// the next.
pub(crate) const OPERATIONS_LEASE_BYTES: usize = UNDER_WAY_BYTES_MAX
    + (READS_MAX + 1) * OPERATION_VALUE_BYTES_MAX
    + READY_BYTES_MAX
    + 3 * OPERATIONS_MESSAGE_BYTES_MAX;

/// Does what the messages of `request` ask for; ends early, but in order, when `draining` becomes true.
pub(crate) fn operations(
    request: Authenticated<Streaming<v1::OperationsRequest>>,
    mut draining: watch::Receiver<bool>,
) -> impl Stream<Item = Result<v1::OperationsResponse, Failure>> + Send + 'static {
    let (messages, admitted) = request.take();
    let mut operations = Operations {
        store: admitted.store().clone(),
        messages,
        input: Input::Open,
        drained: Box::pin(async move {
            // An error means that the server is gone altogether.
            let _ = draining.wait_for(|draining| *draining).await;
        }),
        bucket: String::new(),
        waiting: Vec::new().into_iter(),
        running: FuturesUnordered::new(),
        placed: VecDeque::new(),
        reads: 0,
        held_bytes: 0,
        ready: Vec::new(),
        ready_bytes: 0,
    };
    poll_fn(move |context| operations.poll_next(context))
}

/// What comes from the client.
enum Input {
    Open,
    /// The client sends no more.
    Ended,
    /// What comes is not taken any more; why.
    Refused(Failure),
    /// That was said.
    Over,
}

/// An operation that must wait for something before its place is fixed.
type Running = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// An operation that needs the store's attention no more.
struct Ended {
    held: Held,
    outcome: Outcome,
}

enum Outcome {
    /// A write that is done when it is durable.
    Placed(Pending),
    Done(v1::OperationResult),
}

/// What an operation counts for while it is under way.
#[derive(Clone, Copy)]
struct Held {
    number: u64,
    bytes: usize,
    is_read: bool,
}

/// One stream.
struct Operations {
    store: Store,
    messages: Streaming<v1::OperationsRequest>,
    input: Input,
    drained: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Of the message in work.
    bucket: String,
    /// What is left of that message.
    waiting: vec::IntoIter<v1::Operation>,
    running: FuturesUnordered<Running>,
    /// Writes in their order, which is the order in which they become durable: waiting for the first one is enough.
    placed: VecDeque<(Held, Pending)>,
    /// Reads among `running`.
    reads: usize,
    held_bytes: usize,
    ready: Vec<v1::OperationResult>,
    ready_bytes: usize,
}

impl Operations {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<v1::OperationsResponse, Failure>>> {
        loop {
            let mut moved = self.poll_message(context);
            moved |= self.start(context);
            moved |= self.poll_running(context);
            moved |= self.poll_placed(context);
            if !moved || self.ready_bytes >= READY_BYTES_MAX {
                break;
            }
        }
        if !self.ready.is_empty() {
            self.ready_bytes = 0;
            let results = std::mem::take(&mut self.ready);
            return Poll::Ready(Some(Ok(v1::OperationsResponse { results })));
        }
        if self.waiting.len() > 0 || self.under_way() > 0 {
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

    fn under_way(&self) -> usize {
        self.running.len() + self.placed.len()
    }

    fn has_room(&self) -> bool {
        self.under_way() < UNDER_WAY_MAX
            && self.held_bytes < UNDER_WAY_BYTES_MAX
            && self.reads < READS_MAX
            && self.ready_bytes < READY_BYTES_MAX
    }

    /// Takes the next message, where there is room for it; says whether one came.
    fn poll_message(&mut self, context: &mut Context<'_>) -> bool {
        if !matches!(self.input, Input::Open) {
            return false;
        }
        if self.drained.poll_unpin(context).is_ready() {
            self.refuse(Failure::stopping());
            return true;
        }
        if self.waiting.len() > 0 || !self.has_room() {
            return false;
        }
        match self.messages.poll_next_unpin(context) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(message))) if message.operations.len() <= BATCH_KEYS_MAX => {
                self.bucket = message.bucket;
                self.waiting = message.operations.into_iter();
            }
            Poll::Ready(Some(Ok(message))) => self.refuse(Failure::invalid(format!(
                "a message has at most {BATCH_KEYS_MAX} operations; this one has {}",
                message.operations.len()
            ))),
            Poll::Ready(Some(Err(status))) => self.refuse(status.into()),
            Poll::Ready(None) => self.input = Input::Ended,
        }
        true
    }

    /// Begins no more; what was begun is answered still.
    fn refuse(&mut self, failure: Failure) {
        self.waiting = Vec::new().into_iter();
        self.input = Input::Refused(failure);
    }

    /// Begins what there is room for; the writes among it share a batch. Says whether there was any.
    fn start(&mut self, context: &mut Context<'_>) -> bool {
        if self.waiting.len() == 0 || !self.has_room() {
            return false;
        }
        let store = self.store.clone();
        store.gather(|| {
            while self.has_room()
                && let Some(operation) = self.waiting.next()
            {
                let held = Held::of(&operation);
                self.held_bytes += held.bytes;
                self.reads += usize::from(held.is_read);
                if let Some(pending) = self.put_at_once(&operation) {
                    self.placed.push_back((held, pending));
                    continue;
                }
                let mut running = run(self.store.clone(), &self.bucket, held, operation);
                // Most reads and nearly all writes need no second look.
                match running.poll_unpin(context) {
                    Poll::Ready(ended) => self.take(ended),
                    Poll::Pending => self.running.push(running),
                }
            }
        });
        true
    }

    /// A put of a short value with nothing said besides takes its place without a task.
    fn put_at_once(&self, operation: &v1::Operation) -> Option<Pending> {
        let is_plain = operation.rules.is_none()
            && operation.metadata.is_none()
            && operation.modified_ns.is_none()
            && operation.identity.is_none();
        if operation.action() != Action::Put || !is_plain {
            return None;
        }
        let key = convert::object_key(&self.bucket, &operation.key).ok()?;
        self.store.put_at_once(&key, &operation.value)
    }

    fn poll_running(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while self.ready_bytes < READY_BYTES_MAX
            && let Poll::Ready(Some(ended)) = self.running.poll_next_unpin(context)
        {
            self.take(ended);
            moved = true;
        }
        moved
    }

    fn poll_placed(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some((held, pending)) = self.placed.front()
            && let Poll::Ready(durable) = pending.poll_durable(context)
        {
            let held = *held;
            self.placed.pop_front();
            let result = match durable {
                Ok(version) => v1::OperationResult { version: version.0, ..result(held.number) },
                Err(error) => failed(held.number, Failure::of(&error)),
            };
            self.answer(held, result);
            moved = true;
        }
        moved
    }

    fn take(&mut self, ended: Ended) {
        self.reads -= usize::from(ended.held.is_read);
        match ended.outcome {
            Outcome::Placed(pending) => self.placed.push_back((ended.held, pending)),
            Outcome::Done(result) => self.answer(ended.held, result),
        }
    }

    fn answer(&mut self, held: Held, result: v1::OperationResult) {
        self.held_bytes -= held.bytes;
        self.ready_bytes += OPERATION_BYTES + result.encoded_len();
        self.ready.push(result);
    }
}

impl Held {
    fn of(operation: &v1::Operation) -> Self {
        Self {
            number: operation.number,
            bytes: OPERATION_BYTES + operation.key.len() + operation.value.len(),
            is_read: matches!(operation.action(), Action::Get | Action::Head),
        }
    }
}

/// One operation, up to its answer or its place in the order of writes.
fn run(store: Store, bucket: &str, held: Held, operation: v1::Operation) -> Running {
    let key = convert::object_key(bucket, &operation.key);
    Box::pin(async move {
        let number = held.number;
        let outcome = match key {
            Ok(key) => perform(&store, &key, operation).await,
            Err(failure) => Err(failure),
        };
        let outcome = outcome.unwrap_or_else(|failure| Outcome::Done(failed(number, failure)));
        Ended { held, outcome }
    })
}

async fn perform(store: &Store, key: &ObjectKey, operation: v1::Operation) -> Result<Outcome, Failure> {
    match operation.action() {
        Action::Get => get(store, key, &operation).await.map(Outcome::Done),
        Action::Put => put(store, key, operation).await,
        Action::Delete => delete(store, key, operation).await,
        Action::Head => {
            let info = store.head(key).await.map_err(|error| Failure::of(&error))?;
            let info = info.ok_or_else(|| Failure::not_found(key))?;
            Ok(Outcome::Done(v1::OperationResult {
                info: Some(convert::info(&info)),
                ..result(operation.number)
            }))
        }
        Action::Unspecified => Err(Failure::invalid("an operation of no kind that is known here")),
    }
}

async fn get(
    store: &Store,
    key: &ObjectKey,
    operation: &v1::Operation,
) -> Result<v1::OperationResult, Failure> {
    let range = convert::range(operation.range);
    let object = store.get(key, convert::capped(range, OPERATION_VALUE_BYTES_MAX as u64)).await;
    let object = object.map_err(|error| Failure::of(&error))?.ok_or_else(|| Failure::not_found(key))?;
    let value_omitted = range.within(object.info.bytes).1 > object.value.len() as u64;
    let value = if value_omitted { Bytes::new() } else { convert::contiguous(object.value) };
    let info = Some(convert::info(&object.info));
    Ok(v1::OperationResult { info, value_omitted, value, ..result(operation.number) })
}

async fn put(store: &Store, key: &ObjectKey, operation: v1::Operation) -> Result<Outcome, Failure> {
    let v1::Operation { number, rules, metadata, modified_ns, identity, value, .. } = operation;
    if value.len() > OPERATION_VALUE_BYTES_MAX {
        return Err(Failure::invalid(format!(
            "a value in a stream of operations has at most {OPERATION_VALUE_BYTES_MAX} bytes; this one has {}",
            value.len()
        )));
    }
    let options = convert::put_options(rules, metadata, modified_ns);
    let rules = options.rules;
    let failed = |error| Failure::of_write(&error, &rules);
    let done = match (identity_of(identity), rules.is_empty()) {
        (None, true) => {
            return store.begin_put(key, value.into(), options).await.map(Outcome::Placed).map_err(failed);
        }
        (None, false) => store.put(key, value.into(), options).await,
        (Some(identity), _) => store.put_once(identity, key, value.into(), options).await,
    };
    let version = done.map_err(failed)?.version.0;
    Ok(Outcome::Done(v1::OperationResult { version, ..result(number) }))
}

async fn delete(store: &Store, key: &ObjectKey, operation: v1::Operation) -> Result<Outcome, Failure> {
    let rules = convert::rules(operation.rules);
    let failed = |error| Failure::of_write(&error, &rules);
    let done = match (identity_of(operation.identity), rules.is_empty()) {
        (None, true) => {
            let keys = [(key.clone(), Look::Nothing)];
            let begun = store.update_together(&keys, |_| (vec![Change::Delete], ())).await.map_err(failed)?;
            if let Some(pending) = begun.pending.into_iter().next_back() {
                return Ok(Outcome::Placed(pending));
            }
            store.delete(key, rules).await
        }
        (None, false) => store.delete(key, rules).await,
        (Some(identity), _) => store.delete_once(identity, key, rules).await,
    };
    let done = done.map_err(failed)?;
    let deleted = done.deleted.map(|version| version.0);
    Ok(Outcome::Done(v1::OperationResult { version: done.version.0, deleted, ..result(operation.number) }))
}

fn identity_of(identity: Option<v1::WriteIdentity>) -> Option<Identity> {
    identity.map(|identity| Identity { session: identity.session, sequence: identity.sequence })
}

fn result(number: u64) -> v1::OperationResult {
    v1::OperationResult { number, ..v1::OperationResult::default() }
}

fn failed(number: u64, failure: Failure) -> v1::OperationResult {
    v1::OperationResult { status: Some(failure.into_key_status()), ..result(number) }
}
