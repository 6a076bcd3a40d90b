//! A stream of operations and its answers: operations to send, operations in flight, and the link to the server, which is
//! reopened when it breaks. [`Pipeline`](crate::Pipeline) has one for itself; the users of an
//! [`OperationStream`](crate::OperationStream) share one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Stream, stream};
use shoal_api::v1::operation::Action;
use shoal_api::{AwakeSleep, v1};
use tonic::Streaming;

use crate::operation::{Done, Operation, Results};
use crate::outgoing::{Outgoing, Places, UNITS_MAX, locked};
use crate::retry::{Failed, Outcome};
use crate::transport::Transport;
use crate::wire;

/// Operations on one bucket; each has a note of type `T`, which is returned with its result.
pub(crate) struct Exchange<T> {
    transport: Arc<Transport>,
    outgoing: Arc<Mutex<Outgoing>>,
    places: Places<Noted<T>>,
    /// The units of the operations in flight.
    units: u32,
    link: Link,
    /// The rest of the last message of answers.
    results: Results,
    /// Operations that failed with their stream, or before they were sent.
    failed: VecDeque<Ended<T>>,
    silence: Option<Silence>,
    /// Number of received messages.
    heard: u64,
}

/// An operation in flight.
struct Noted<T> {
    note: T,
    action: Action,
    /// Its place in the order of all operations.
    at: u64,
    units: u32,
}

/// The end of an operation.
pub(crate) struct Ended<T> {
    pub(crate) note: T,
    pub(crate) action: Action,
    /// Its units while it was in flight.
    pub(crate) units: u32,
    pub(crate) result: Result<Done, Failed>,
}

type Opening = Pin<Box<dyn Future<Output = Result<Streaming<Bytes>, Failed>> + Send>>;

/// The way to the server.
enum Link {
    None,
    /// With the number of operations sent before it: some leave before the server reports that the stream is open.
    Opening(Opening, u64),
    /// With the same.
    Open(Box<Streaming<Bytes>>, u64),
}

/// A wait for the server, and the counts at its start.
struct Silence {
    bell: AwakeSleep,
    heard: u64,
    sent: u64,
}

impl<T> Exchange<T> {
    pub(crate) fn new(transport: Arc<Transport>, bucket: &str) -> Self {
        Self {
            transport,
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

    pub(crate) fn server(&self) -> &str {
        self.transport.server()
    }

    /// Returns true if a further operation keeps to the limits.
    pub(crate) fn has_room(&self) -> bool {
        self.units < UNITS_MAX && self.failed.len() < UNITS_MAX as usize
    }

    /// Number of started operations whose results were not taken.
    pub(crate) fn under_way(&self) -> usize {
        self.places.len() + self.failed.len()
    }

    /// Returns true if a stream is open, or being opened.
    pub(crate) fn is_linked(&self) -> bool {
        !matches!(self.link, Link::None)
    }

    /// Queues an operation. It leaves while [`Self::poll_next`] is called; one that would break its stream fails instead.
    pub(crate) fn begin(&mut self, operation: &Operation<'_>, note: T) {
        let (action, units) = (operation.action, operation.units());
        if let Err(error) = operation.check() {
            self.failed.push_back(Ended { note, action, units: 0, result: Err(Failed::refused(error)) });
            return;
        }
        let number = self.places.next_number();
        let (at, sender) = locked(&self.outgoing).push(number, operation);
        self.places.add(Noted { note, action, at, units });
        self.units += units;
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    /// The next completed operation; `None` if none is in flight.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Ended<T>>> {
        loop {
            if let Some(ended) = self.failed.pop_front() {
                return Poll::Ready(Some(ended));
            }
            match self.results.next() {
                Ok(Some((number, done))) => match self.places.take(number) {
                    Some(noted) => {
                        let result = done.or_failed(self.transport.server());
                        return Poll::Ready(Some(self.ended(noted, result)));
                    }
                    None => self.broken("it answered an operation that nobody asked for"),
                },
                Ok(None) if self.places.len() == 0 => return Poll::Ready(None),
                Ok(None) => ready!(self.poll_link(context)),
                Err(status) => self.broken(status.message()),
            }
        }
    }

    /// Opens the stream, or takes the next message from it.
    pub(crate) fn poll_link(&mut self, context: &mut Context<'_>) -> Poll<()> {
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

    /// Ready if the server sent nothing for the longest silence allowed, although an operation waits for it.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let (heard, sent) = (self.heard, locked(&self.outgoing).sent());
            let answer_timeout = self.transport.answer_timeout();
            let silence = self.silence.get_or_insert_with(|| Silence {
                bell: AwakeSleep::new(answer_timeout),
                heard,
                sent,
            });
            ready!(Pin::new(&mut silence.bell).poll(context));
            let is_silent = silence.heard == heard;
            let sent = silence.sent;
            self.silence = None;
            if is_silent && self.places.iter_mut().any(|noted| noted.at <= sent) {
                return Poll::Ready(());
            }
        }
    }

    fn ended(&mut self, noted: Noted<T>, result: Result<Done, Failed>) -> Ended<T> {
        let Noted { note, action, units, .. } = noted;
        self.units -= units;
        Ended { note, action, units, result }
    }

    /// The server violated the protocol.
    fn broken(&mut self, what: &str) {
        self.fail(&Failed { outcome: Outcome::Open, ..wire::protocol(what) }, true);
    }

    /// The stream is over: operations that were sent fail, and the others also fail unless they are `kept` for another stream.
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
                let ended = self.ended(noted, Err(failed.clone()));
                self.failed.push_back(ended);
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

impl<T> Drop for Exchange<T> {
    /// The connection drops the rest of the request, with its waker.
    fn drop(&mut self) {
        let sender = locked(&self.outgoing).close();
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::task::Waker;

    use prost::Message as _;

    use super::*;
    use crate::error::Error;

    pub(crate) const GET: Operation<'static> =
        Operation { action: Action::Get, key: b"k", value: &[], extras: None };

    /// An exchange whose stream is never open.
    pub(crate) fn exchange<T>() -> Exchange<T> {
        let mut exchange = Exchange::new(Arc::new(Transport::nowhere()), "b");
        exchange.link = Link::Opening(Box::pin(std::future::pending()), 0);
        exchange
    }

    /// A message with the results of these operations; the version of each is its number.
    pub(crate) fn results(numbers: &[u64]) -> Bytes {
        let result = |&number| v1::OperationResult { number, version: number, ..Default::default() };
        v1::OperationsResponse { results: numbers.iter().map(result).collect() }.encode_to_vec().into()
    }

    impl<T> Exchange<T> {
        /// The number of the next operation.
        pub(crate) fn next_number(&self) -> u64 {
            self.places.next_number()
        }

        /// Receives a message of answers.
        pub(crate) fn receive(&mut self, message: Bytes) {
            self.results = Results::of(message);
        }

        fn next(&mut self) -> Poll<Option<Ended<T>>> {
            self.poll_next(&mut Context::from_waker(Waker::noop()))
        }

        fn take_message(&self, stream: u64) -> Poll<Option<Bytes>> {
            locked(&self.outgoing).poll_message(stream, &mut Context::from_waker(Waker::noop()))
        }
    }

    /// Operations that were sent over a closed stream have failed; the others wait for the next one, if there may be one.
    #[test]
    fn stream_end_follows_last_message() {
        let mut exchange = exchange();
        exchange.begin(&GET, "sent");
        assert!(matches!(exchange.take_message(0), Poll::Ready(Some(_))));
        exchange.begin(&GET, "kept");
        let failed = Failed { error: Error::Changed, outcome: Outcome::Open };
        exchange.fail(&failed, true);
        let Poll::Ready(Some(ended)) = exchange.next() else { panic!("the sent operation has not failed") };
        assert_eq!((ended.note, ended.result), ("sent", Err(failed.clone())));
        assert!(matches!(exchange.take_message(0), Poll::Ready(None)));
        assert!(matches!(exchange.take_message(1), Poll::Ready(Some(_))));
        exchange.begin(&GET, "never");
        exchange.fail(&failed, false);
        let mut notes = [exchange.next(), exchange.next()].map(|ended| match ended {
            Poll::Ready(Some(ended)) => ended.note,
            _ => panic!("one has not failed"),
        });
        notes.sort_unstable();
        assert_eq!((notes, exchange.units), (["kept", "never"], 0));
        assert!(matches!(exchange.next(), Poll::Ready(None)));
    }

    /// An answer that comes twice, belongs to no operation, or is not protobuf breaks the stream.
    #[test]
    fn unsolicited_answers_break_the_stream() {
        for message in [results(&[0, 0]), results(&[7]), Bytes::from_static(b"\x0a")] {
            let mut exchange = exchange();
            exchange.begin(&GET, ());
            exchange.begin(&GET, ());
            assert!(matches!(exchange.take_message(0), Poll::Ready(Some(_))));
            exchange.receive(message);
            let mut failures = 0;
            while exchange.under_way() > 0 {
                let Poll::Ready(Some(ended)) = exchange.next() else { panic!("one has not ended") };
                failures += u32::from(ended.result.is_err());
            }
            assert!(failures > 0 && !exchange.is_linked());
        }
    }
}
