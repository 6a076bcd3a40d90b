//! Many small operations over one stream: each is a call of its own for who makes it, but they travel together.
//!
//! What is submitted while the connection is busy goes into one message; there is no waiting for more. A task of the stream
//! takes the answers, and opens the stream again where it broke: what was not sent yet goes over the new one, and what was is
//! repeated where that is safe (`retry.rs`), as with calls of their own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::stream::poll_fn;
use prost::Message as _;
use shoal_api::v1::operation::Action;
use shoal_api::{OPERATION_VALUE_BYTES_MAX, v1};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::object::{ByteRange, DeleteResult, Object, PutOptions, PutResult, RejectRules};
use crate::retry::{Failed, Outcome};
use crate::transport::Transport;
use crate::wire;

/// Operations of one stream under way at the same time; further ones wait. As many as the server begins.
const UNDER_WAY_MAX: usize = 1024;

/// Operations in one message.
const MESSAGE_OPERATIONS_MAX: usize = 256;

/// Bytes of keys and values after which a message is full; the last one may be as long as a value. Under the server's limit.
const MESSAGE_BYTES_FULL: usize = 128 << 10;

/// Bits of an operation's number that say where its caller waits; the rest says which of those that waited there.
const PLACE_BITS: u32 = 16;

/// What an operation gives.
type Answer = Result<v1::OperationResult, Failed>;

/// A stream of operations on one bucket. Cheap to clone: clones share it. It ends with its last clone; until then it takes a
/// few megabytes of what its connection may hold at the server.
///
/// Operations that are under way at the same time have no order, also not those on one key: who needs one waits for the first.
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
        let bucket: Arc<str> = bucket.into();
        let shared = Arc::new(Shared::new(Arc::clone(&bucket)));
        tokio::spawn(drive(Arc::clone(&self.transport), Arc::clone(&shared)));
        OperationStream { client: self.clone(), bucket, handle: Arc::new(Handle(shared)) }
    }
}

impl OperationStream {
    /// As [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get(&self, key: Bytes, range: ByteRange) -> Result<Option<Object>> {
        let found = self.client.retry.read(|| async {
            let operation = v1::Operation {
                action: Action::Get.into(),
                key: key.clone(),
                range: wire::range(range),
                ..v1::Operation::default()
            };
            let Some(result) = wire::found(self.submit(operation).await)? else { return Ok(Some(None)) };
            if result.value_omitted {
                return Ok(None);
            }
            let info = wire::info(result.info)?;
            Ok(Some(Some(Object { info, value: result.value })))
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
            let operation = v1::Operation {
                action: Action::Put.into(),
                key: key.clone(),
                rules: wire::rules(options.rules),
                metadata: wire::metadata(options.metadata.clone()),
                modified_ns: options.modified_ns,
                identity: message_of(identity),
                value: value.clone(),
                ..v1::Operation::default()
            };
            async { Ok(PutResult { version: self.submit(operation).await?.version }) }
        };
        self.client.write(put).await
    }

    /// As [`Client::delete`].
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub async fn delete(&self, key: Bytes, rules: RejectRules) -> Result<DeleteResult> {
        let delete = |identity| {
            let operation = v1::Operation {
                action: Action::Delete.into(),
                key: key.clone(),
                rules: wire::rules(rules),
                identity: message_of(identity),
                ..v1::Operation::default()
            };
            async {
                let result = self.submit(operation).await?;
                Ok(DeleteResult { deleted: result.deleted, version: result.version })
            }
        };
        self.client.write(delete).await
    }

    /// Sends one operation, and waits for its answer.
    async fn submit(&self, operation: v1::Operation) -> Answer {
        let shared = &self.handle.0;
        let permit = Arc::clone(&shared.permits).acquire_owned().await;
        let permit = permit.map_err(|_| ended())?;
        let (answer, answered) = oneshot::channel();
        shared.queue(operation, Waiting { answer, _permit: permit });
        let result = answered.await.map_err(|_| ended())??;
        match result.status {
            Some(status) if status.code != 0 => Err(wire::key_failed(status, self.client.server())),
            _ => Ok(result),
        }
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

fn message_of(identity: Option<Identity>) -> Option<v1::WriteIdentity> {
    identity.map(|identity| v1::WriteIdentity { session: identity.session, sequence: identity.sequence })
}

/// The runtime ended the stream's task.
fn ended() -> Failed {
    Failed { error: Error::Unknown("the stream of operations was ended".into()), outcome: Outcome::Open }
}

/// Ends the stream when its last user is gone.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_closed = true;
        let sender = state.sender.take();
        drop(state);
        self.0.wanted.notify_one();
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

/// What the users of a stream, the connection that sends and the task that takes the answers share.
struct Shared {
    bucket: Arc<str>,
    permits: Arc<Semaphore>,
    /// Rung where something is queued and no stream is open.
    wanted: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Not sent yet.
    queued: VecDeque<(v1::Operation, Waiting)>,
    /// Sent, by place.
    under_way: Vec<Option<(u64, Waiting)>>,
    free_places: Vec<usize>,
    /// How many operations were sent.
    sent: u64,
    /// The connection, where it waits for something to send.
    sender: Option<Waker>,
    /// Grows with each stream; what is left of an earlier one sends nothing more.
    stream: u64,
    is_closed: bool,
}

/// Who waits for an answer.
struct Waiting {
    answer: oneshot::Sender<Answer>,
    _permit: OwnedSemaphorePermit,
}

impl Shared {
    fn new(bucket: Arc<str>) -> Self {
        Self {
            bucket,
            permits: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
            wanted: Notify::new(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, operation: v1::Operation, waiting: Waiting) {
        let mut state = self.state();
        state.queued.push_back((operation, waiting));
        let sender = state.sender.take();
        // Without one a stream is being opened, or none is there, or the sender looks again before it sleeps.
        let is_first = state.queued.len() == 1;
        drop(state);
        match sender {
            Some(sender) => sender.wake(),
            None if is_first => self.wanted.notify_one(),
            None => {}
        }
    }

    /// Waits until something is queued; false where the stream ends instead.
    async fn is_wanted(&self) -> bool {
        loop {
            {
                let state = self.state();
                if !state.queued.is_empty() {
                    return true;
                }
                if state.is_closed {
                    return false;
                }
            }
            self.wanted.notified().await;
        }
    }

    /// The next message of stream number `stream`: all that is queued and fits.
    fn poll_message(&self, stream: u64, context: &mut Context<'_>) -> Poll<Option<v1::OperationsRequest>> {
        let mut state = self.state();
        if state.stream != stream {
            return Poll::Ready(None);
        }
        if state.queued.is_empty() {
            if state.is_closed {
                return Poll::Ready(None);
            }
            state.sender = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut operations = Vec::with_capacity(state.queued.len().min(MESSAGE_OPERATIONS_MAX));
        let mut bytes = 0;
        while operations.len() < MESSAGE_OPERATIONS_MAX
            && bytes < MESSAGE_BYTES_FULL
            && let Some((mut operation, waiting)) = state.queued.pop_front()
        {
            bytes += operation.encoded_len();
            operation.number = state.place(waiting);
            operations.push(operation);
        }
        Poll::Ready(Some(v1::OperationsRequest { bucket: self.bucket.to_string(), operations }))
    }

    /// Hands out answers; false where one is nobody's.
    fn answer(&self, results: Vec<v1::OperationResult>) -> bool {
        let mut state = self.state();
        let mut known = true;
        for result in results {
            match state.take(result.number) {
                // Who gave up meanwhile needs no answer.
                Some(waiting) => drop(waiting.answer.send(Ok(result))),
                None => known = false,
            }
        }
        known
    }

    /// How many operations were sent so far.
    fn sent(&self) -> u64 {
        self.state().sent
    }

    /// Whether one of the first `sent` operations has no answer.
    fn waits_for_one_of(&self, sent: u64) -> bool {
        let state = self.state();
        state.under_way.iter().flatten().any(|(number, _)| (number >> PLACE_BITS) < sent)
    }

    /// The stream is over: tells all whose operations were sent, or, where none could be opened, all.
    fn fail(&self, failed: &Failed, is_opened: bool) {
        let mut state = self.state();
        state.stream += 1;
        // What is left of this stream's request looks again, and ends.
        let sender = state.sender.take();
        let mut over: Vec<Waiting> =
            state.under_way.drain(..).flatten().map(|(_, waiting)| waiting).collect();
        state.free_places.clear();
        if !is_opened {
            over.extend(state.queued.drain(..).map(|(_, waiting)| waiting));
        }
        drop(state);
        if let Some(sender) = sender {
            sender.wake();
        }
        for waiting in over {
            drop(waiting.answer.send(Err(failed.clone())));
        }
    }
}

impl State {
    /// Notes who waits for an answer; the number by which it will come.
    fn place(&mut self, waiting: Waiting) -> u64 {
        let place = self.free_places.pop().unwrap_or_else(|| {
            self.under_way.push(None);
            self.under_way.len() - 1
        });
        assert!(place < 1 << PLACE_BITS, "there are {UNDER_WAY_MAX} permits");
        let number = (self.sent << PLACE_BITS) | place as u64;
        self.sent += 1;
        if let Some(free) = self.under_way.get_mut(place) {
            *free = Some((number, waiting));
        }
        number
    }

    /// Who waits for the answer with this number; none where it was given, or never asked for.
    fn take(&mut self, number: u64) -> Option<Waiting> {
        let place = (number & ((1 << PLACE_BITS) - 1)) as usize;
        let held = self.under_way.get_mut(place)?;
        let (_, waiting) = held.take_if(|(held, _)| *held == number)?;
        self.free_places.push(place);
        Some(waiting)
    }
}

/// Opens streams while there is something to send, and takes their answers.
async fn drive(transport: Arc<Transport>, shared: Arc<Shared>) {
    while shared.is_wanted().await {
        let stream = shared.state().stream;
        let requests = {
            let shared = Arc::clone(&shared);
            poll_fn(move |context| shared.poll_message(stream, context))
        };
        match transport.exchange::<v1::Operations>(requests).await {
            Ok(answers) => {
                let failed = take_answers(&transport, &shared, answers).await;
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
    mut answers: tonic::Streaming<v1::OperationsResponse>,
) -> Failed {
    loop {
        let sent = shared.sent();
        match timeout(transport.answer_timeout(), answers.message()).await {
            Ok(Ok(Some(message))) => {
                if !shared.answer(message.results) {
                    let stranger = wire::protocol("it answered an operation that nobody asked for");
                    return Failed { outcome: Outcome::Open, ..stranger };
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

    use super::*;

    fn waiting(shared: &Shared) -> (Waiting, oneshot::Receiver<Answer>) {
        let permit = Arc::clone(&shared.permits).try_acquire_owned().unwrap();
        let (answer, answered) = oneshot::channel();
        (Waiting { answer, _permit: permit }, answered)
    }

    proptest! {
        /// Whatever the order of answers, each goes to who asked, once.
        #[test]
        fn answers_find_their_callers(order in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..200)) {
            let shared = Shared::new("b".into());
            let mut open = BTreeMap::new();
            for (submits, which) in order {
                if submits || open.is_empty() {
                    let (waiting, answered) = waiting(&shared);
                    let number = shared.state().place(waiting);
                    prop_assert!(open.insert(number, answered).is_none());
                } else {
                    let number = *which.get(&open.keys().copied().collect::<Vec<_>>());
                    let mut answered = open.remove(&number).unwrap();
                    let result = || v1::OperationResult { number, ..Default::default() };
                    prop_assert!(shared.answer(vec![result()]));
                    prop_assert_eq!(answered.try_recv().unwrap().unwrap().number, number);
                    prop_assert!(!shared.answer(vec![result()]));
                }
                prop_assert_eq!(shared.permits.available_permits(), UNDER_WAY_MAX - open.len());
            }
        }
    }

    #[test]
    fn a_message_takes_what_is_queued_and_fits_and_an_old_stream_nothing() {
        let shared = Shared::new("b".into());
        let mut kept = Vec::new();
        for bytes in [60_000, 60_000, 60_000, 10, 10] {
            let (waiting, answered) = waiting(&shared);
            kept.push(answered);
            shared.queue(v1::Operation { value: vec![0; bytes].into(), ..Default::default() }, waiting);
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut next = |stream| shared.poll_message(stream, &mut context);
        let Poll::Ready(Some(message)) = next(0) else { panic!("nothing is sent") };
        assert_eq!(message.operations.len(), 3);
        let failed = Failed { error: Error::Changed, outcome: Outcome::Open };
        shared.fail(&failed, true);
        assert!(matches!(next(0), Poll::Ready(None)));
        let Poll::Ready(Some(message)) = next(1) else { panic!("what was not sent is lost") };
        assert_eq!(message.operations.len(), 2);
        assert!(next(1).is_pending());
        assert_eq!(kept[0].try_recv().unwrap().unwrap_err(), failed);
        assert!(kept[3].try_recv().is_err());
    }
}
