//! Many small operations over one stream: each is a separate call for its caller, but they travel together.
//!
//! Operations that are submitted while the connection is busy go into one message; there is no waiting for more. A task of the
//! stream takes the answers, and reopens the stream when it breaks: unsent operations go over the new one, and the others are
//! repeated if that is safe (`retry.rs`), as with separate calls. [`Pipeline`](crate::Pipeline) is the same for one task, at a
//! fraction of the cost.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use shoal_api::OPERATION_VALUE_BYTES_MAX;
use shoal_api::v1::operation::Action;
use tokio::sync::{Semaphore, oneshot};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::exchange::{Ended, Exchange};
use crate::object::{ByteRange, DeleteResult, GetResult, PutOptions, PutResult, RejectRules};
use crate::operation::{self, Done, Operation};
use crate::outgoing::{UNITS_MAX, locked};
use crate::retry::{Failed, Outcome};
use crate::wire;

/// Number of operations whose callers are notified at a time.
const TOLD_MAX: usize = 256;

/// The answer to an operation.
type Answer = Result<Done, Failed>;

/// A stream of operations on one bucket. Cheap to clone: clones share it. It closes with its last clone; until then it takes a
/// few megabytes of its connection's share at the server.
///
/// Operations that are in flight at the same time have no order, not even those on one key: a caller that needs one waits for
/// the first. Values share the received memory with their neighbours: a caller that keeps a few of them for a long time should
/// copy them.
#[derive(Clone)]
pub struct OperationStream {
    client: Client,
    bucket: Arc<str>,
    handle: Arc<Handle>,
}

impl Client {
    /// Opens a stream of operations on `bucket`: for programs that have many small ones in flight at the same time. Must be
    /// called on a tokio runtime. If no server answers, the operations fail.
    #[must_use]
    pub fn operations(&self, bucket: &str) -> OperationStream {
        let exchange = Exchange::new(Arc::clone(&self.transport), bucket);
        let shared = Arc::new(Shared::new(exchange));
        tokio::spawn(drive(Driven(Arc::clone(&shared))));
        OperationStream { client: self.clone(), bucket: bucket.into(), handle: Arc::new(Handle(shared)) }
    }
}

impl OperationStream {
    /// As [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get(&self, key: Bytes, range: ByteRange) -> Result<Option<GetResult>> {
        let extras = operation::extras_of_get(range);
        let operation = Operation { action: Action::Get, key: &key, value: &[], extras: extras.as_ref() };
        let found = self.client.retry.read(|| async {
            let Some(done) = wire::found(self.submit(operation).await)? else { return Ok(Some(None)) };
            if done.value_omitted {
                return Ok(None);
            }
            let info = done.info.ok_or_else(wire::no_info)?;
            Ok(Some(Some(GetResult { info, value: done.value })))
        });
        match found.await? {
            Some(found) => Ok(found),
            // It is too long for the stream.
            None => self.client.get(&self.bucket, &key, range).await,
        }
    }

    /// As [`Client::put`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn put(&self, key: Bytes, value: Bytes, options: PutOptions) -> Result<PutResult> {
        if value.len() > OPERATION_VALUE_BYTES_MAX {
            return self.client.put(&self.bucket, &key, value, options).await;
        }
        let put = |id| {
            let extras = operation::extras_of_put(&options, id);
            let (key, value) = (&key, &value);
            async move {
                let operation = Operation { action: Action::Put, key, value, extras: extras.as_ref() };
                Ok(self.submit(operation).await?.put())
            }
        };
        self.client.write(put).await
    }

    /// As [`Client::delete`].
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub async fn delete(&self, key: Bytes, rules: RejectRules) -> Result<DeleteResult> {
        let delete = |id| {
            let extras = operation::extras_of_delete(rules, id);
            let key = &key;
            async move {
                let operation =
                    Operation { action: Action::Delete, key, value: &[], extras: extras.as_ref() };
                Ok(self.submit(operation).await?.delete())
            }
        };
        self.client.write(delete).await
    }

    /// Sends one operation, and waits for its answer.
    async fn submit(&self, operation: Operation<'_>) -> Answer {
        self.handle.0.submit(operation).await
    }
}

impl std::fmt::Debug for OperationStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let server = self.client.server();
        f.debug_struct("OperationStream")
            .field("server", &server)
            .field("bucket", &self.bucket)
            .finish_non_exhaustive()
    }
}

/// The runtime terminated the stream's task.
fn ended() -> Failed {
    Failed { error: Error::Unknown("the stream of operations was ended".into()), outcome: Outcome::Open }
}

/// The state that the users of a stream share with its task.
struct Shared {
    /// Limits the operations in flight, in units of [`Operation::units`].
    permits: Semaphore,
    state: Mutex<State>,
}

struct State {
    /// `None` if the task of the stream is gone: then nobody would answer.
    exchange: Option<Exchange<oneshot::Sender<Answer>>>,
    /// The task of the stream, while nothing is in flight.
    idle: Option<Waker>,
    /// The last user is gone.
    is_closed: bool,
}

impl Shared {
    fn new(exchange: Exchange<oneshot::Sender<Answer>>) -> Self {
        let state = State { exchange: Some(exchange), idle: None, is_closed: false };
        Self { permits: Semaphore::new(UNITS_MAX as usize), state: Mutex::new(state) }
    }

    async fn submit(&self, operation: Operation<'_>) -> Answer {
        operation.check().map_err(Failed::refused)?;
        // The task returns them with the answer, whether or not it is taken.
        let units = operation.units();
        match self.permits.try_acquire_many(units) {
            Ok(permits) => permits.forget(),
            Err(_) => self.permits.acquire_many(units).await.map_err(|_| ended())?.forget(),
        }
        self.begin(&operation)?.await.map_err(|_| ended())?
    }

    fn begin(&self, operation: &Operation<'_>) -> Result<oneshot::Receiver<Answer>, Failed> {
        let (answer, answered) = oneshot::channel();
        let mut state = locked(&self.state);
        let exchange = state.exchange.as_mut().ok_or_else(ended)?;
        exchange.begin(operation, answer);
        // An open stream wakes the task when the answer comes.
        let task = if exchange.is_linked() { None } else { state.idle.take() };
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
        Ok(answered)
    }

    /// The next completed operations; `None` at the end of the stream.
    fn poll_ended(&self, context: &mut Context<'_>) -> Poll<Option<Vec<Ended<oneshot::Sender<Answer>>>>> {
        let mut state = locked(&self.state);
        let State { exchange: Some(exchange), idle, is_closed } = &mut *state else {
            return Poll::Ready(None);
        };
        let mut all = Vec::new();
        while all.len() < TOLD_MAX {
            match exchange.poll_next(context) {
                Poll::Ready(Some(ended)) => all.push(ended),
                Poll::Ready(None) if !all.is_empty() => break,
                Poll::Ready(None) if *is_closed => return Poll::Ready(None),
                // A stream that breaks while nothing is in flight is noticed now, and not by the next operation.
                Poll::Ready(None) if exchange.is_linked() && exchange.poll_link(context).is_ready() => {}
                Poll::Ready(None) => {
                    *idle = Some(context.waker().clone());
                    break;
                }
                Poll::Pending => break,
            }
        }
        if all.is_empty() { Poll::Pending } else { Poll::Ready(Some(all)) }
    }
}

/// Closes the stream when its last user is gone.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        state.is_closed = true;
        let task = state.idle.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// The task's reference to its stream: if the runtime terminates the task, nobody waits forever.
struct Driven(Arc<Shared>);

impl Drop for Driven {
    fn drop(&mut self) {
        let exchange = locked(&self.0.state).exchange.take();
        self.0.permits.close();
        // With the notes of all operations: their callers get the error that there is no answer.
        drop(exchange);
    }
}

/// Sends the results of operations to their callers.
async fn drive(driven: Driven) {
    let shared = &driven.0;
    while let Some(all) = poll_fn(|context| shared.poll_ended(context)).await {
        shared.permits.add_permits(all.iter().map(|ended| ended.units as usize).sum());
        for Ended { note, result, .. } in all {
            // A cancelled caller needs no answer.
            let _ = note.send(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::pin::Pin;

    use proptest::prelude::*;

    use super::*;
    use crate::exchange::tests::{GET, exchange, results};

    type Submitted<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

    fn shared() -> Shared {
        Shared::new(exchange())
    }

    /// A call whose operation is queued, and the operation's number.
    fn submitted(shared: &Shared) -> (u64, Submitted<'_>) {
        let number = locked(&shared.state).exchange.as_ref().unwrap().next_number();
        let mut submitted: Submitted<'_> = Box::pin(shared.submit(GET));
        assert!(look(&mut submitted).is_pending());
        (number, submitted)
    }

    fn look(submitted: &mut Submitted<'_>) -> Poll<Answer> {
        submitted.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Acts as the stream's task after these answers.
    fn answer(shared: &Shared, numbers: &[u64]) {
        locked(&shared.state).exchange.as_mut().unwrap().receive(results(numbers));
        let Poll::Ready(Some(all)) = shared.poll_ended(&mut Context::from_waker(Waker::noop())) else {
            panic!("nothing ended")
        };
        assert_eq!(all.len(), numbers.len());
        shared.permits.add_permits(all.iter().map(|ended| ended.units as usize).sum());
        all.into_iter().for_each(|Ended { note, result, .. }| drop(note.send(result)));
    }

    proptest! {
        /// Answers come in any order, and each goes to its caller, once; a cancelled call does no harm, and its room is freed.
        #[test]
        fn answers_find_their_callers(
            steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>()), 1..200)
        ) {
            let shared = shared();
            let (mut open, mut answered, mut forgotten) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
            for (step, which) in steps {
                let any = |open: &BTreeMap<u64, Submitted<'_>>| *which.get(&open.keys().copied().collect::<Vec<_>>());
                match step {
                    1 if !open.is_empty() => {
                        let number = any(&open);
                        answer(&shared, &[number]);
                        answered.insert(number, open.remove(&number).unwrap());
                    }
                    2 if !open.is_empty() => {
                        let number = any(&open);
                        drop(open.remove(&number));
                        forgotten.push(number);
                    }
                    3 if !answered.is_empty() => {
                        let number = any(&answered);
                        let Poll::Ready(Ok(done)) = look(answered.get_mut(&number).unwrap()) else {
                            panic!("there is no answer")
                        };
                        prop_assert_eq!(done.put().version.0, number);
                        answered.remove(&number);
                    }
                    _ => {
                        let (number, one) = submitted(&shared);
                        prop_assert!(open.insert(number, one).is_none());
                    }
                }
                let under_way = open.len() + forgotten.len();
                prop_assert_eq!(shared.permits.available_permits(), (UNITS_MAX - 4 * under_way as u32) as usize);
            }
            let rest: Vec<u64> = forgotten.into_iter().chain(open.keys().copied()).collect();
            rest.chunks(100).for_each(|rest| answer(&shared, rest));
            drop((open, answered));
            prop_assert_eq!(locked(&shared.state).exchange.as_ref().unwrap().under_way(), 0);
            prop_assert_eq!(shared.permits.available_permits(), UNITS_MAX as usize);
        }
    }

    /// If the runtime terminates the stream's task, callers get an error, and so do later ones.
    #[test]
    fn calls_fail_after_stream_task_ends() {
        let shared = Arc::new(shared());
        let (_, mut waiting) = submitted(&shared);
        drop(Driven(Arc::clone(&shared)));
        assert_eq!(look(&mut waiting), Poll::Ready(Err(ended())));
        assert_eq!(look(&mut (Box::pin(shared.submit(GET)) as Submitted<'_>)), Poll::Ready(Err(ended())));
    }
}
