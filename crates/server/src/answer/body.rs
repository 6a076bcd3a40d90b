//! The body of an answer: references to bytes, in pieces, then the trailers.
//!
//! A value's chunks (frames of the pool, a record of the log) go to HTTP/2 as they are, many in one piece of the body: no byte of a value
//! is copied here. An answer's share of the budget, and of the pool, is held until the body is dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use http::HeaderMap;
use http_body::Frame;
use shoal_buffer::Buffer;
use shoal_http::{AnswerShare, Idle, MemoryPermit, Timer};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;

use super::gzip::compress;
use super::web;
use crate::auth::Revoked;
use crate::failure::Failure;
use crate::timing::result_of;
use crate::wire::take_front;

/// The most bytes of an answer that HTTP/2 gets at a time: they are no longer counted here.
pub(crate) const PIECE_BYTES_MAX: usize = 128 << 10;

/// The source of the rest of an answer.
enum Source {
    /// From tonic.
    Body(Body),
    /// Messages, and then the outcome of the call.
    Messages(Pin<Box<dyn Stream<Item = Result<Box<Buffer>, Failure>> + Send>>),
    /// Only trailers are left; `None` if there are none, or they were taken.
    Trailers(Option<HeaderMap>),
}

/// The body of an answer, which holds the request's permit until it was taken.
pub(crate) struct ResponseBody {
    source: Source,
    held: Option<AnswerShare>,
    /// The rest of a message that is handed over in pieces.
    rest: Option<Box<Buffer>>,
    /// The deadline of the call, which cuts the body even if a part is missing.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Resolves when its caller may not have it any more, which cuts the body, too.
    revoked: Option<Revoked>,
    /// Resolves when the server stops, which finishes an endless stream.
    drained: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    web: Option<web::Encoder>,
    is_packed: bool,
    /// True if it is not the client's turn while there is no frame: of a stream both ways, which may be idle.
    is_open_ended: bool,
    /// Held while it has no frame.
    idle: Option<Idle>,
    /// The time of the request, if it is counted until the end of this body.
    timer: Option<Box<Timer>>,
}

impl ResponseBody {
    /// A body that tonic made.
    pub(crate) fn new(body: Body, permit: Arc<MemoryPermit>) -> Self {
        Self { source: Source::Body(body), held: Some(AnswerShare::new(permit)), ..Self::default() }
    }

    /// Messages with their prefixes, up to the first failure.
    pub(crate) fn messages(
        messages: impl Stream<Item = Result<Box<Buffer>, Failure>> + Send + 'static,
        permit: Arc<MemoryPermit>,
    ) -> Self {
        Self {
            source: Source::Messages(Box::pin(messages)),
            held: Some(AnswerShare::new(permit)),
            ..Self::default()
        }
    }

    /// One message of a call that succeeded.
    pub(crate) fn message(message: Box<Buffer>, permit: Arc<MemoryPermit>) -> Self {
        let source = Source::Trailers(Some(succeeded()));
        Self { source, held: Some(AnswerShare::new(permit)), rest: Some(message), ..Self::default() }
    }

    /// Of a stream both ways: while it has nothing to send, its client need not take anything.
    pub(crate) fn open_ended(self) -> Self {
        Self { is_open_ended: true, ..self }
    }

    /// Returns true if it has a stream of messages.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.source, Source::Messages(_))
    }

    /// Stops the request's timer with the body.
    pub(crate) fn timed(self, timer: Timer) -> Self {
        Self { timer: Some(Box::new(timer)), ..self }
    }

    /// The answer of a call, with this body.
    pub(crate) fn into_response(self) -> http::Response<Self> {
        let mut response = http::Response::new(self);
        let content_type = http::HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
        response
    }

    fn rest_bytes(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    /// Notes if it is this answer's turn.
    fn turn(&mut self, is_ours: bool) {
        self.idle = match (&self.held, is_ours && self.is_open_ended) {
            (Some(held), true) => match self.idle.take() {
                Some(idle) if idle.is_all_of(held.permit()) => Some(idle),
                _ => Some(held.permit().idle()),
            },
            _ => None,
        };
    }

    /// Cuts the body at `deadline`. An answer that leaves in one piece is complete already.
    pub(crate) fn until(self, deadline: Instant) -> Self {
        if matches!(self.source, Source::Trailers(_)) && self.rest_bytes() <= PIECE_BYTES_MAX {
            return self;
        }
        Self { deadline: Some(Box::pin(sleep_until(deadline))), ..self }
    }

    /// Of a stream: cuts it when its caller may not have it any more.
    pub(crate) fn while_allowed(self, revoked: Revoked) -> Self {
        Self { revoked: Some(revoked), ..self }
    }

    /// Of an endless stream: finishes it without an error when the server stops.
    pub(crate) fn until_draining(self, mut draining: watch::Receiver<bool>) -> Self {
        let drained = async move {
            // Resolves also if the server is dropped.
            let _ = draining.wait_for(|draining| *draining).await;
        };
        Self { drained: Some(Box::pin(drained)), ..self }
    }

    /// Packs the messages that become shorter; those of tonic, which are short, stay as they are.
    pub(crate) fn packed(mut self) -> Self {
        self.is_packed = true;
        self.rest = self.rest.map(compress);
        self
    }

    /// In the encoding of gRPC-Web.
    pub(crate) fn for_web(self, encoder: web::Encoder) -> Self {
        Self { web: Some(encoder), ..self }
    }

    /// The next available piece, when it is its turn.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Frame<Box<Buffer>>> {
        let bytes = self.rest_bytes().min(PIECE_BYTES_MAX);
        if let Some(held) = &mut self.held
            && held.poll_turn(bytes, context).is_pending()
        {
            self.turn(false);
            return Poll::Pending;
        }
        let piece = match &mut self.rest {
            Some(rest) if rest.len() > PIECE_BYTES_MAX => Box::new(take_front(rest, PIECE_BYTES_MAX)),
            rest => rest.take().unwrap_or_default(),
        };
        Poll::Ready(Frame::data(match &self.web {
            Some(web) => web.data(piece),
            None => piece,
        }))
    }

    fn trailers(&self, trailers: HeaderMap) -> Frame<Box<Buffer>> {
        match &self.web {
            Some(web) => Frame::data(web.trailers(&trailers)),
            None => Frame::trailers(trailers),
        }
    }

    /// Cuts the answer short if its time is over.
    fn look_at_deadline(&mut self, context: &mut Context<'_>) {
        let Some(deadline) = &mut self.deadline else { return };
        if deadline.as_mut().poll(context).is_pending() {
            return;
        }
        self.cut(Failure::deadline());
    }

    /// Cuts it short if its caller has no credentials any more.
    fn look_at_credentials(&mut self, context: &mut Context<'_>) {
        let Some(revoked) = &mut self.revoked else { return };
        if let Poll::Ready(denied) = revoked.as_mut().poll(context) {
            self.cut(Failure::revoked(&denied));
        }
    }

    /// Finishes the stream of a server that stops, after the message that is under way.
    fn look_at_drain(&mut self, context: &mut Context<'_>) {
        let Some(drained) = self.drained.as_mut().filter(|_| self.rest.is_none()) else { return };
        if drained.as_mut().poll(context).is_ready() {
            self.drained = None;
            self.source = Source::Trailers(Some(succeeded()));
        }
    }

    fn cut(&mut self, failure: Failure) {
        (self.deadline, self.revoked) = (None, None);
        self.rest = None;
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
        // Details that do not fit in headers are omitted; the code is the part that counts.
        trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("13"));
    }
    trailers
}

impl Default for ResponseBody {
    fn default() -> Self {
        Self {
            source: Source::Trailers(None),
            held: None,
            rest: None,
            deadline: None,
            revoked: None,
            drained: None,
            web: None,
            is_packed: false,
            is_open_ended: false,
            idle: None,
            timer: None,
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Box<Buffer>;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Box<Buffer>>, Status>>> {
        let this = &mut *self;
        this.look_at_deadline(context);
        this.look_at_credentials(context);
        this.look_at_drain(context);
        loop {
            if this.rest_bytes() > 0 {
                return this.poll_piece(context).map(|piece| Some(Ok(piece)));
            }
            let trailers = match &mut this.source {
                Source::Body(body) => {
                    let polled = Pin::new(body).poll_frame(context);
                    this.turn(polled.is_pending());
                    match ready!(polled) {
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(data) => {
                                this.rest = Some(Box::new(data.into()));
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
                            this.rest = Some(if this.is_packed { compress(message) } else { message });
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
            if let Some(mut timer) = this.timer.take() {
                timer.end(result_of(&trailers));
            }
            return Poll::Ready(Some(Ok(this.trailers(trailers))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest_bytes() == 0
            && match &self.source {
                Source::Body(body) => body.is_end_stream(),
                Source::Messages(_) => false,
                Source::Trailers(trailers) => trailers.is_none(),
            }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::future::poll_fn;
    use futures_util::stream;
    use http_body::Body as _;
    use shoal_http::Flow;

    use super::*;
    use crate::testing::frames::Frames;

    fn frames(body: &mut ResponseBody) -> Vec<Frame<Box<Buffer>>> {
        let frames = stream::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let frames = shoal_engine::block_on(futures_util::StreamExt::collect::<Vec<_>>(frames));
        frames.into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn answer_leaves_in_pieces_and_returns_permit() {
        let flow = Flow::new(1 << 30, 1 << 30);
        let permit = flow.connection().permit();
        permit.grow(7).unwrap();
        let value: Bytes = (0..PIECE_BYTES_MAX * 2 + 5).map(|i| i as u8).collect::<Vec<_>>().into();
        let inner = Frames(vec![value.clone()].into_iter());
        let mut body = ResponseBody::new(Body::new(inner), permit);
        let pieces: Vec<Bytes> =
            frames(&mut body).into_iter().map(|frame| frame.into_data().unwrap().to_vec().into()).collect();
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
        let permit = Flow::new(9, 9).connection().permit();
        let mut body = ResponseBody::message(Box::new(b"abc"[..].into()), permit);
        assert!(!body.is_end_stream());
        let mut frames = frames(&mut body).into_iter();
        assert_eq!(frames.next().unwrap().into_data().unwrap().to_vec(), b"abc");
        assert_eq!(frames.next().unwrap().into_trailers().unwrap()["grpc-status"], "0");
        assert!(frames.next().is_none() && body.is_end_stream());
    }

    #[test]
    fn a_stream_ends_at_its_first_failure() {
        let permit = || Flow::new(9, 9).connection().permit();
        let message = |text: &'static str| Ok(Box::new(Buffer::from(text.as_bytes())));
        let status = |frame: Frame<Box<Buffer>>| frame.into_trailers().unwrap()["grpc-status"].clone();
        let messages = vec![message("ab"), Err(Failure::invalid("no")), message("c")];
        let mut frames_now =
            frames(&mut ResponseBody::messages(stream::iter(messages), permit())).into_iter();
        assert_eq!(frames_now.next().unwrap().into_data().unwrap().to_vec(), b"ab");
        assert_eq!(status(frames_now.next().unwrap()), "3");
        assert!(frames_now.next().is_none());
        let mut body = ResponseBody::messages(stream::iter(vec![message("ab")]), permit());
        assert_eq!(status(frames(&mut body).remove(1)), "0");
    }
}
