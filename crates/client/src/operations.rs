//! Many small operations over one stream: each is a call of its own for who makes it, but they travel together.
//!
//! What is submitted while the connection is busy goes into one message; there is no waiting for more. A task of the stream
//! takes the answers, and opens the stream again where it broke: what was not sent yet goes over the new one, and what was is
//! repeated where that is safe (`retry.rs`), as with calls of their own. [`Pipeline`](crate::Pipeline) is the same for one task,
//! at a fraction of the cost.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::stream;
use shoal_api::v1::operation::Action;
use shoal_api::{OPERATION_VALUE_BYTES_MAX, v1};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::{ByteRange, DeleteResult, Object, PutOptions, PutResult, RejectRules};
use crate::operation::{self, Done, Operation, Results};
use crate::outgoing::{Outgoing, Places, UNITS_MAX, locked, units};
use crate::retry::{Failed, Outcome};
use crate::transport::Transport;
use crate::wire;

/// What an operation gives.
type Answer = Result<Done, Failed>;

/// A stream of operations on one bucket. Cheap to clone: clones share it. It ends with its last clone; until then it takes a
/// few megabytes of what its connection may hold at the server.
///
/// Operations that are under way at the same time have no order, also not those on one key: who needs one waits for the first.
/// Values lie in the memory in which they were received, with those around them: who keeps few of them for long copies them.
#[derive(Clone)]
pub struct OperationStream {
    client: Client,
    bucket: Arc<str>,
    handle: Arc<Handle>,
}

impl Client {
    /// Opens a stream of operations on `bucket`: for programs that have many small ones under way at the same time. Must be
    /// called on a tokio runtime. That no server answers is said by the operations.
    #[must_use]
    pub fn operations(&self, bucket: &str) -> OperationStream {
        let shared = Arc::new(Shared::new(bucket));
        tokio::spawn(drive(Arc::clone(&self.transport), Driven(Arc::clone(&shared))));
        OperationStream { client: self.clone(), bucket: bucket.into(), handle: Arc::new(Handle(shared)) }
    }
}

impl OperationStream {
    /// As [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get(&self, key: Bytes, range: ByteRange) -> Result<Option<Object>> {
        let besides = operation::besides_get(range);
        let operation = Operation { action: Action::Get, key: &key, value: &[], besides: besides.as_ref() };
        let found = self.client.retry.read(|| async {
            let Some(done) = wire::found(self.submit(operation).await)? else { return Ok(Some(None)) };
            if done.value_omitted {
                return Ok(None);
            }
            let info = done.info.ok_or_else(wire::no_info)?;
            Ok(Some(Some(Object { info, value: done.value })))
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
        let put = |identity| {
            let besides = operation::besides_put(&options, identity);
            let (key, value) = (&key, &value);
            async move {
                let operation = Operation { action: Action::Put, key, value, besides: besides.as_ref() };
                Ok(PutResult { version: self.submit(operation).await?.version })
            }
        };
        self.client.write(put).await
    }

    /// As [`Client::delete`].
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub async fn delete(&self, key: Bytes, rules: RejectRules) -> Result<DeleteResult> {
        let delete = |identity| {
            let besides = operation::besides_delete(rules, identity);
            let key = &key;
            async move {
                let operation =
                    Operation { action: Action::Delete, key, value: &[], besides: besides.as_ref() };
                let done = self.submit(operation).await?;
                Ok(DeleteResult { deleted: done.deleted, version: done.version })
            }
        };
        self.client.write(delete).await
    }

    /// Sends one operation, and waits for its answer.
    async fn submit(&self, operation: Operation<'_>) -> Answer {
        operation.check().map_err(Failed::refused)?;
        let shared = &self.handle.0;
        let units = units(operation.bytes());
        // They are given back with the answer, whether somebody takes it or not.
        match shared.permits.try_acquire_many(units) {
            Ok(permits) => permits.forget(),
            Err(_) => shared.permits.acquire_many(units).await.map_err(|_| ended())?.forget(),
        }
        let done = Submitted { shared, operation, units, number: None }.await?;
        done.or_failed(self.client.server())
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

/// The runtime ended the stream's task.
fn ended() -> Failed {
    Failed { error: Error::Unknown("the stream of operations was ended".into()), outcome: Outcome::Open }
}

/// An operation that is queued when this is polled first, and answered in the end.
struct Submitted<'a> {
    shared: &'a Shared,
    operation: Operation<'a>,
    units: u32,
    /// None: it is not queued yet, or its answer was taken.
    number: Option<u64>,
}

impl Future for Submitted<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let shared = self.shared;
        let Some(number) = self.number else {
            self.number = shared.queue(&self.operation, self.units, context.waker());
            return if self.number.is_some() { Poll::Pending } else { Poll::Ready(Err(ended())) };
        };
        let mut state = locked(&shared.state);
        match state.places.get_mut(number).map(|waiting| &mut waiting.answer) {
            Some(Waits::ForAnswer(waker)) => {
                waker.clone_from(context.waker());
                return Poll::Pending;
            }
            Some(_) => {}
            None => return Poll::Ready(Err(ended())),
        }
        let taken = state.places.take(number);
        drop(state);
        self.number = None;
        match taken.map(|waiting| waiting.answer) {
            Some(Waits::Answered(answer)) => Poll::Ready(answer),
            _ => Poll::Ready(Err(ended())),
        }
    }
}

impl Drop for Submitted<'_> {
    /// Who gives up needs no answer; the operation is done or not as a whole.
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = locked(&self.shared.state);
        let Some(waiting) = state.places.get_mut(number) else { return };
        let left = match &mut waiting.answer {
            Waits::ForAnswer(_) => std::mem::replace(&mut waiting.answer, Waits::ForNothing),
            _ => state.places.take(number).map_or(Waits::ForNothing, |waiting| waiting.answer),
        };
        drop(state);
        // A waker may do anything when it is dropped.
        drop(left);
    }
}

/// Ends the stream when its last user is gone.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        let sender = locked(&self.0.state).outgoing.close();
        self.0.wanted.notify_one();
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

/// What the users of a stream, the connection that sends and the task that takes the answers share.
struct Shared {
    /// Of what may be under way, in [`units`].
    permits: Semaphore,
    /// Rung where something is queued and no stream is open.
    wanted: Notify,
    state: Mutex<State>,
}

struct State {
    outgoing: Outgoing,
    places: Places<Waiting>,
    /// The task of the stream is gone: nobody would answer.
    is_over: bool,
}

/// An operation that was queued.
struct Waiting {
    answer: Waits,
    /// Its place in the order of all operations.
    at: u64,
    units: u32,
}

/// Who waits for an answer.
enum Waits {
    ForAnswer(Waker),
    /// It is there.
    Answered(Answer),
    /// Who waited has given up.
    ForNothing,
}

impl Shared {
    fn new(bucket: &str) -> Self {
        let state = State { outgoing: Outgoing::new(bucket), places: Places::default(), is_over: false };
        Self { permits: Semaphore::new(UNITS_MAX as usize), wanted: Notify::new(), state: Mutex::new(state) }
    }

    /// Queues an operation; the number by which `waker` finds its answer. None where there will be none.
    fn queue(&self, operation: &Operation<'_>, units: u32, waker: &Waker) -> Option<u64> {
        let mut state = locked(&self.state);
        if state.is_over {
            return None;
        }
        // Without a sender a stream is being opened, or none is there, or the sender looks again before it sleeps.
        let is_first = state.outgoing.is_empty();
        let number = state.places.next_number();
        let (at, sender) = state.outgoing.push(number, operation);
        state.places.add(Waiting { answer: Waits::ForAnswer(waker.clone()), at, units });
        drop(state);
        match sender {
            Some(sender) => sender.wake(),
            None if is_first => self.wanted.notify_one(),
            None => {}
        }
        Some(number)
    }

    /// Waits until something is queued; false where the stream ends instead.
    async fn is_wanted(&self) -> bool {
        loop {
            {
                let state = locked(&self.state);
                if !state.outgoing.is_empty() {
                    return true;
                }
                if state.outgoing.is_closed() {
                    return false;
                }
            }
            self.wanted.notified().await;
        }
    }

    /// Hands out the answers of a message, all at once.
    fn answer(&self, message: Bytes) -> Result<(), Failed> {
        let (mut woken, mut units) = (Vec::new(), 0);
        let answer_all = || {
            let mut results = Results::of(message);
            let mut state = locked(&self.state);
            while let Some((number, done)) =
                results.next().map_err(|status| wire::protocol(status.message()))?
            {
                let known = state.places.end(number, Ok(done), &mut woken);
                units +=
                    known.ok_or_else(|| wire::protocol("it answered an operation that nobody asked for"))?;
            }
            Ok(())
        };
        let answered = answer_all();
        self.permits.add_permits(units as usize);
        woken.into_iter().for_each(Waker::wake);
        answered.map_err(|failed: Failed| Failed { outcome: Outcome::Open, ..failed })
    }

    /// How many operations were sent so far.
    fn sent(&self) -> u64 {
        locked(&self.state).outgoing.sent()
    }

    /// Whether one of the first `sent` operations has no answer.
    fn waits_for_one_of(&self, sent: u64) -> bool {
        let mut state = locked(&self.state);
        let is_open = |waiting: &mut Waiting| !matches!(waiting.answer, Waits::Answered(_));
        state.places.iter_mut().any(|waiting| waiting.at <= sent && is_open(waiting))
    }

    /// The stream is over: tells all whose operations were sent, and the others too, where they are not kept for the next one.
    fn fail(&self, failed: &Failed, is_kept: bool) {
        let (mut woken, mut units) = (Vec::new(), 0);
        let mut state = locked(&self.state);
        // What is left of this stream's request looks again, and ends.
        woken.extend(state.outgoing.end_stream(is_kept));
        let sent = state.outgoing.sent();
        let numbers: Vec<u64> = state.places.numbers().collect();
        for number in numbers {
            if state.places.get_mut(number).is_some_and(|waiting| waiting.at <= sent) {
                units += state.places.end(number, Err(failed.clone()), &mut woken).unwrap_or(0);
            }
        }
        drop(state);
        self.permits.add_permits(units as usize);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Places<Waiting> {
    /// Gives an answer to who waits for it, to be woken when nothing is locked; what the operation counted for. None where it
    /// was answered before, or never asked for.
    fn end(&mut self, number: u64, answer: Answer, woken: &mut Vec<Waker>) -> Option<u32> {
        let waiting = self.get_mut(number)?;
        let units = waiting.units;
        match &mut waiting.answer {
            Waits::Answered(_) => return None,
            Waits::ForNothing => drop(self.take(number)),
            waits @ Waits::ForAnswer(_) => {
                if let Waits::ForAnswer(waker) = std::mem::replace(waits, Waits::Answered(answer)) {
                    woken.push(waker);
                }
            }
        }
        Some(units)
    }
}

/// What the task of a stream has of it: where the runtime ends the task, nobody waits for ever.
struct Driven(Arc<Shared>);

impl Drop for Driven {
    fn drop(&mut self) {
        locked(&self.0.state).is_over = true;
        self.0.permits.close();
        self.0.fail(&ended(), false);
    }
}

/// Opens streams while there is something to send, and takes their answers.
async fn drive(transport: Arc<Transport>, driven: Driven) {
    let shared = &driven.0;
    while shared.is_wanted().await {
        let requests = {
            let (shared, number) = (Arc::clone(shared), locked(&shared.state).outgoing.stream());
            stream::poll_fn(move |context| locked(&shared.state).outgoing.poll_message(number, context))
        };
        match transport.exchange::<v1::Operations>(requests).await {
            Ok(answers) => {
                let failed = take_answers(&transport, shared, answers).await;
                shared.fail(&failed, true);
            }
            Err(failed) => shared.fail(&failed, false),
        }
    }
}

/// Takes the answers of one stream; how it ended.
async fn take_answers(
    transport: &Transport,
    shared: &Shared,
    mut answers: tonic::Streaming<Bytes>,
) -> Failed {
    loop {
        let sent = shared.sent();
        match timeout(transport.answer_timeout(), answers.message()).await {
            Ok(Ok(Some(message))) => {
                if let Err(failed) = shared.answer(message) {
                    return failed;
                }
            }
            // Our server ends a stream in this way only after it answered all.
            Ok(Ok(None)) => {
                let early = wire::protocol("the stream of operations ended");
                return Failed { outcome: Outcome::Open, ..early };
            }
            Ok(Err(status)) => return transport.failed(&status),
            Err(_) if shared.waits_for_one_of(sent) => {
                return Failed { error: transport.silent(), outcome: Outcome::Open };
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    const GET: Operation<'static> = Operation { action: Action::Get, key: b"k", value: &[], besides: None };

    fn submitted(shared: &Shared) -> Submitted<'_> {
        shared.permits.try_acquire_many(units(0)).unwrap().forget();
        let mut submitted = Submitted { shared, operation: GET, units: units(0), number: None };
        assert!(look(&mut submitted).is_pending());
        submitted
    }

    fn look(submitted: &mut Submitted<'_>) -> Poll<Answer> {
        Pin::new(submitted).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn results(numbers: &[u64]) -> Bytes {
        let result = |&number| v1::OperationResult { number, version: number, ..Default::default() };
        v1::OperationsResponse { results: numbers.iter().map(result).collect() }.encode_to_vec().into()
    }

    proptest! {
        /// Whatever the order of answers, each goes to who asked, once; who gave up is not missed, and room is given back.
        #[test]
        fn answers_find_their_callers(
            steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>()), 1..200)
        ) {
            let shared = Shared::new("b");
            let (mut open, mut answered, mut forgotten) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
            for (step, which) in steps {
                let any = |open: &BTreeMap<u64, Submitted<'_>>| *which.get(&open.keys().copied().collect::<Vec<_>>());
                match step {
                    1 if !open.is_empty() => {
                        let number = any(&open);
                        shared.answer(results(&[number])).unwrap();
                        answered.insert(number, open.remove(&number).unwrap());
                        prop_assert!(shared.answer(results(&[number])).is_err());
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
                        prop_assert_eq!(done.version, number);
                        answered.remove(&number);
                    }
                    _ => {
                        let one = submitted(&shared);
                        prop_assert!(open.insert(one.number.unwrap(), one).is_none());
                    }
                }
                let under_way = open.len() + forgotten.len();
                prop_assert_eq!(shared.permits.available_permits(), (UNITS_MAX - 4 * under_way as u32) as usize);
            }
            shared.answer(results(&forgotten)).unwrap();
            let numbers: Vec<u64> = open.keys().copied().collect();
            shared.answer(results(&numbers)).unwrap();
            drop((open, answered));
            prop_assert_eq!(locked(&shared.state).places.len(), 0);
            prop_assert_eq!(shared.permits.available_permits(), UNITS_MAX as usize);
        }
    }

    /// What was sent over a stream that ended has failed; what was not waits for the next one, if there may be one.
    #[test]
    fn the_end_of_a_stream_is_the_end_of_what_was_sent() {
        let shared = Shared::new("b");
        let (mut sent, given_up) = (submitted(&shared), submitted(&shared));
        drop(given_up);
        let take = |stream| {
            let context = &mut Context::from_waker(Waker::noop());
            locked(&shared.state).outgoing.poll_message(stream, context)
        };
        assert!(matches!(take(0), Poll::Ready(Some(_))));
        assert!(shared.waits_for_one_of(1) && !shared.waits_for_one_of(0));
        let mut kept = submitted(&shared);
        let failed = Failed { error: Error::Changed, outcome: Outcome::Open };
        shared.fail(&failed, true);
        assert_eq!(look(&mut sent), Poll::Ready(Err(failed.clone())));
        assert!(look(&mut kept).is_pending());
        assert!(matches!(take(0), Poll::Ready(None)) && matches!(take(1), Poll::Ready(Some(_))));
        let mut never = submitted(&shared);
        shared.fail(&failed, false);
        assert!(look(&mut kept).is_ready() && look(&mut never).is_ready());
        assert_eq!(shared.permits.available_permits(), UNITS_MAX as usize);
        assert!(shared.answer(Bytes::from_static(b"\x0a")).is_err(), "it is not protobuf");
        drop(Driven(Arc::new(Shared::new("b"))));
    }
}
