//! The body of an answer: bytes where they lie, in pieces, then the trailers.
//!
//! A value's chunks (frames of the pool, a record of the log) go to HTTP/2 as they are, many in one piece of the body: no
//! byte of a value is copied here. What an answer holds of the budget, and of the pool, is held until the body was
//! dropped.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::Stream;
use http::HeaderMap;
use http_body::Frame;
use shoal_buffer::Buffer;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;

use crate::auth::Revoked;
use crate::failure::Failure;
use crate::flow::{Idle, Lease};
use crate::pack::pack;
use crate::sending::Ticket;
use crate::web;

/// An answer is handed to HTTP/2 in pieces of at most so many bytes, for what it was handed is no longer counted here.
pub(crate) const PIECE_BYTES_MAX: usize = 128 << 10;

/// Bytes in several chunks, none of which is empty; read from the front.
#[derive(Debug, Default)]
pub(crate) struct Data {
    first: Bytes,
    rest: std::vec::IntoIter<Bytes>,
    remaining: usize,
}

impl Data {
    pub(crate) fn new(mut chunks: Vec<Bytes>) -> Self {
        chunks.retain(|chunk| !chunk.is_empty());
        let remaining = chunks.iter().map(Bytes::len).sum();
        let mut rest = chunks.into_iter();
        Self { first: rest.next().unwrap_or_default(), rest, remaining }
    }

    /// The chunks of `buffer` where they lie.
    pub(crate) fn of(buffer: Buffer) -> Self {
        Self::new(buffer.into_chunks().collect())
    }

    /// The chunks as a buffer of the store.
    pub(crate) fn into_buffer(self) -> Buffer {
        let mut buffer = Buffer::new();
        self.into_chunks().for_each(|chunk| buffer.append_external(chunk));
        buffer
    }

    pub(crate) fn into_chunks(self) -> impl Iterator<Item = Bytes> {
        std::iter::once(self.first).filter(|first| !first.is_empty()).chain(self.rest)
    }

    pub(crate) fn len(&self) -> usize {
        self.remaining
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.remaining == 0
    }

    /// Takes the first `bytes_max` bytes, or all where there are fewer. Nothing is copied.
    pub(crate) fn take_front(&mut self, bytes_max: usize) -> Self {
        if self.remaining <= bytes_max {
            return std::mem::take(self);
        }
        let (mut taken, mut room) = (Vec::new(), bytes_max);
        while room > 0 {
            let chunk = if self.first.len() <= room { self.next_chunk() } else { self.first.split_to(room) };
            room -= chunk.len();
            taken.push(chunk);
        }
        self.remaining -= bytes_max;
        Self::new(taken)
    }

    /// Everything in one piece: copied where there are several chunks.
    pub(crate) fn into_contiguous(mut self) -> Bytes {
        self.copy_to_bytes(self.remaining)
    }

    fn next_chunk(&mut self) -> Bytes {
        std::mem::replace(&mut self.first, self.rest.next().unwrap_or_default())
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Self { remaining: bytes.len(), first: bytes, rest: Vec::new().into_iter() }
    }
}

impl Buf for Data {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        &self.first
    }

    fn chunks_vectored<'a>(&'a self, target: &mut [IoSlice<'a>]) -> usize {
        let chunks =
            std::iter::once(&self.first).filter(|first| !first.is_empty()).chain(self.rest.as_slice());
        let mut count = 0;
        for (slot, chunk) in target.iter_mut().zip(chunks) {
            *slot = IoSlice::new(chunk);
            count += 1;
        }
        count
    }

    /// # Panics
    /// Where fewer than `count` bytes remain, as [`Buf`] demands.
    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining, "advancing {count} bytes where {} remain", self.remaining);
        self.remaining -= count;
        let mut count = count;
        while count >= self.first.len() && count > 0 {
            count -= self.next_chunk().len();
        }
        self.first.advance(count);
    }

    /// # Panics
    /// Where fewer than `count` bytes remain, as [`Buf`] demands.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        if count < self.first.len() || (count == self.first.len() && count == self.remaining) {
            self.remaining -= count;
            return self.first.split_to(count);
        }
        let mut whole = bytes::BytesMut::with_capacity(count);
        bytes::BufMut::put(&mut whole, self.take(count));
        whole.freeze()
    }
}

/// Where the rest of an answer comes from.
enum Source {
    /// From tonic.
    Body(Body),
    /// Messages, and then whether the call succeeded.
    Messages(Pin<Box<dyn Stream<Item = Result<Data, Failure>> + Send>>),
    /// There is nothing more but trailers; none where there are none, or they were given.
    Trailers(Option<HeaderMap>),
}

/// What an answer holds while it is under way: its part of the budget, and its place in the line.
struct Held {
    lease: Arc<Lease>,
    ticket: Ticket,
}

impl Held {
    fn of(lease: Arc<Lease>) -> Option<Self> {
        Some(Self { lease, ticket: Ticket::default() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.lease.sending().leave(&mut self.ticket);
    }
}

/// The body of an answer, which holds the request's lease until it was taken.
pub(crate) struct ResponseBody {
    source: Source,
    held: Option<Held>,
    /// What is left of a frame that is handed over in pieces.
    rest: Data,
    /// When the call's time is over: it ends then, whatever is missing.
    deadline: Option<Pin<Box<Sleep>>>,
    /// When its caller may not have it any more: it ends then, too.
    revoked: Option<Revoked>,
    web: Option<web::Encoder>,
    is_packed: bool,
    /// Whether it is not the client's turn while there is no frame: of a stream both ways, which may be idle.
    is_open_ended: bool,
    /// Held while that is so.
    idle: Option<Idle>,
}

impl ResponseBody {
    /// A body that tonic made.
    pub(crate) fn new(body: Body, lease: Arc<Lease>) -> Self {
        Self { source: Source::Body(body), held: Held::of(lease), ..Self::default() }
    }

    /// Messages with their prefixes, up to the first failure.
    pub(crate) fn messages(
        messages: impl Stream<Item = Result<Data, Failure>> + Send + 'static,
        lease: Arc<Lease>,
    ) -> Self {
        Self { source: Source::Messages(Box::pin(messages)), held: Held::of(lease), ..Self::default() }
    }

    /// One message, and that the call succeeded.
    pub(crate) fn message(message: Data, lease: Arc<Lease>) -> Self {
        let source = Source::Trailers(Some(succeeded()));
        Self { source, held: Held::of(lease), rest: message, ..Self::default() }
    }

    /// Of a stream both ways: while it has nothing to send, its client need not take anything.
    pub(crate) fn open_ended(self) -> Self {
        Self { is_open_ended: true, ..self }
    }

    /// Notes whose turn it is.
    fn turn(&mut self, is_ours: bool) {
        self.idle = match (&self.held, is_ours && self.is_open_ended) {
            (Some(held), true) => match self.idle.take() {
                Some(idle) if idle.is_all_of(&held.lease) => Some(idle),
                _ => Some(held.lease.idle()),
            },
            _ => None,
        };
    }

    /// Ends at `deadline`. An answer that leaves in one piece is at its end already.
    pub(crate) fn until(self, deadline: Instant) -> Self {
        if matches!(self.source, Source::Trailers(_)) && self.rest.len() <= PIECE_BYTES_MAX {
            return self;
        }
        Self { deadline: Some(Box::pin(sleep_until(deadline))), ..self }
    }

    /// Of a stream: ends when its caller may not have it any more.
    pub(crate) fn while_allowed(self, revoked: Revoked) -> Self {
        Self { revoked: Some(revoked), ..self }
    }

    /// Its messages are packed where that makes them shorter; those of tonic, which are short, stay as they are.
    pub(crate) fn packed(mut self) -> Self {
        self.is_packed = true;
        self.rest = pack(std::mem::take(&mut self.rest));
        self
    }

    /// In the words of gRPC-Web.
    pub(crate) fn for_web(self, encoder: web::Encoder) -> Self {
        Self { web: Some(encoder), ..self }
    }

    /// The next piece of what there is, when it is its turn.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Frame<Data>> {
        if let Some(Held { lease, ticket }) = &mut self.held {
            let bytes = self.rest.len().min(PIECE_BYTES_MAX);
            if !lease.sending().is_turn(ticket, bytes, context) {
                // Others have not been taken yet.
                self.turn(false);
                return Poll::Pending;
            }
            lease.note_moved();
        }
        let piece = self.rest.take_front(PIECE_BYTES_MAX);
        Poll::Ready(Frame::data(match &self.web {
            Some(web) => web.data(piece),
            None => piece,
        }))
    }

    fn trailers(&self, trailers: HeaderMap) -> Frame<Data> {
        match &self.web {
            Some(web) => Frame::data(web.trailers(&trailers)),
            None => Frame::trailers(trailers),
        }
    }

    /// Cuts the answer short where its time is over.
    fn look_at_deadline(&mut self, context: &mut Context<'_>) {
        let Some(deadline) = &mut self.deadline else { return };
        if deadline.as_mut().poll(context).is_pending() {
            return;
        }
        self.cut(Failure::deadline());
    }

    /// Cuts it short where its caller has no credentials any more.
    fn look_at_credentials(&mut self, context: &mut Context<'_>) {
        let Some(revoked) = &mut self.revoked else { return };
        if let Poll::Ready(denied) = revoked.as_mut().poll(context) {
            self.cut(Failure::revoked(&denied));
        }
    }

    fn cut(&mut self, failure: Failure) {
        (self.deadline, self.revoked) = (None, None);
        self.rest = Data::default();
        self.source = Source::Trailers(Some(failed(failure)));
    }
}

fn succeeded() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("0"));
    trailers
}

fn failed(failure: Failure) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if failure.into_status().add_header(&mut trailers).is_err() {
        // What does not fit in headers is left out; the code is what counts.
        trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("13"));
    }
    trailers
}

impl Default for ResponseBody {
    fn default() -> Self {
        Self {
            source: Source::Trailers(None),
            held: None,
            rest: Data::default(),
            deadline: None,
            revoked: None,
            web: None,
            is_packed: false,
            is_open_ended: false,
            idle: None,
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Data;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Data>, Status>>> {
        let this = &mut *self;
        this.look_at_deadline(context);
        this.look_at_credentials(context);
        loop {
            if !this.rest.is_empty() {
                return this.poll_piece(context).map(|piece| Some(Ok(piece)));
            }
            let trailers = match &mut this.source {
                Source::Body(body) => {
                    let polled = Pin::new(body).poll_frame(context);
                    this.turn(polled.is_pending());
                    match ready!(polled) {
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(data) => {
                                this.rest = data.into();
                                continue;
                            }
                            // There is no third kind of frame.
                            Err(other) => other.into_trailers().unwrap_or_default(),
                        },
                        Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                        None => return Poll::Ready(None),
                    }
                }
                Source::Messages(messages) => {
                    let polled = messages.as_mut().poll_next(context);
                    this.turn(polled.is_pending());
                    let trailers = match ready!(polled) {
                        Some(Ok(message)) => {
                            this.rest = if this.is_packed { pack(message) } else { message };
                            continue;
                        }
                        Some(Err(failure)) => failed(failure),
                        None => succeeded(),
                    };
                    this.source = Source::Trailers(None);
                    trailers
                }
                Source::Trailers(trailers) => {
                    (this.deadline, this.revoked) = (None, None);
                    match trailers.take() {
                        Some(trailers) => trailers,
                        None => return Poll::Ready(None),
                    }
                }
            };
            return Poll::Ready(Some(Ok(this.trailers(trailers))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
            && match &self.source {
                Source::Body(body) => body.is_end_stream(),
                Source::Messages(_) => false,
                Source::Trailers(trailers) => trailers.is_none(),
            }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::poll_fn;
    use futures_util::stream;
    use http_body::Body as _;
    use proptest::prelude::*;

    use super::*;
    use crate::flow::Flow;
    use crate::testing_frames::Frames;

    proptest! {
        /// Whatever is taken off, the bytes are those of the chunks, in order.
        #[test]
        fn data_is_its_chunks(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
            steps in prop::collection::vec((0..4_u8, 0..20_usize), 0..12)
        ) {
            let mut model: Vec<u8> = chunks.concat();
            let mut data = Data::new(chunks.into_iter().map(Bytes::from).collect());
            for (step, bytes) in steps {
                prop_assert_eq!(data.len(), model.len());
                let count = bytes.min(model.len());
                let expected: Vec<u8> = model.drain(..count).collect();
                match step {
                    0 => data.advance(count),
                    1 => prop_assert_eq!(&data.copy_to_bytes(count)[..], &expected),
                    2 => prop_assert_eq!(&data.take_front(bytes).into_contiguous()[..], &expected),
                    _ => {
                        let mut slices = [IoSlice::new(&[]); 16];
                        let used = data.chunks_vectored(&mut slices);
                        let seen: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.to_vec()).collect();
                        prop_assert_eq!(seen, [&expected[..], &model].concat());
                        data.advance(count);
                    }
                }
                prop_assert_eq!(data.chunk().is_empty(), model.is_empty());
            }
            let chunks: Vec<Bytes> = data.into_chunks().collect();
            prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty()));
            prop_assert_eq!(chunks.concat(), model);
        }
    }

    fn frames(body: &mut ResponseBody) -> Vec<Frame<Data>> {
        let frames = stream::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let frames = shoal_engine::block_on(futures_util::StreamExt::collect::<Vec<_>>(frames));
        frames.into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn an_answer_leaves_in_pieces_and_releases_its_lease_at_the_end() {
        let flow = Flow::new(1 << 30, 1 << 30);
        let lease = flow.connection().lease();
        lease.grow(7).unwrap();
        let value: Bytes = (0..PIECE_BYTES_MAX * 2 + 5).map(|i| i as u8).collect::<Vec<_>>().into();
        let inner = Frames(vec![value.clone()].into_iter());
        let mut body = ResponseBody::new(Body::new(inner), lease);
        let pieces: Vec<Bytes> =
            frames(&mut body).into_iter().map(|frame| frame.into_data().unwrap().into_contiguous()).collect();
        let lengths: Vec<usize> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [PIECE_BYTES_MAX, PIECE_BYTES_MAX, 5]);
        assert_eq!(pieces.concat(), value);
        assert_eq!(flow.bytes(), 7);
        drop(body);
        assert_eq!(flow.bytes(), 0);
        let ended = shoal_engine::block_on(poll_fn(|context| {
            Pin::new(&mut ResponseBody::default()).poll_frame(context)
        }));
        assert!(ended.is_none());
    }

    #[test]
    fn a_message_is_followed_by_its_status() {
        let lease = Flow::new(9, 9).connection().lease();
        let mut body = ResponseBody::message(Data::new(vec!["ab".into(), "c".into()]), lease);
        assert!(!body.is_end_stream());
        let mut frames = frames(&mut body).into_iter();
        assert_eq!(frames.next().unwrap().into_data().unwrap().into_contiguous(), "abc");
        assert_eq!(frames.next().unwrap().into_trailers().unwrap()["grpc-status"], "0");
        assert!(frames.next().is_none() && body.is_end_stream());
    }

    #[test]
    fn a_stream_ends_at_its_first_failure() {
        let lease = || Flow::new(9, 9).connection().lease();
        let message = |text: &'static str| Ok(Data::from(Bytes::from(text)));
        let status = |frame: Frame<Data>| frame.into_trailers().unwrap()["grpc-status"].clone();
        let messages = vec![message("ab"), Err(Failure::invalid("no")), message("c")];
        let mut frames_now = frames(&mut ResponseBody::messages(stream::iter(messages), lease())).into_iter();
        assert_eq!(frames_now.next().unwrap().into_data().unwrap().into_contiguous(), "ab");
        assert_eq!(status(frames_now.next().unwrap()), "3");
        assert!(frames_now.next().is_none());
        let mut body = ResponseBody::messages(stream::iter(vec![message("ab")]), lease());
        assert_eq!(status(frames(&mut body).remove(1)), "0");
    }
}
