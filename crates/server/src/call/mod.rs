//! Calls by the shape of their method, from the frames of HTTP/2 to messages and back, between `dispatch` and an
//! operation.
//!
//! An operation is given an [`Authenticated`] message, never less: there is no other way to register one.

pub(crate) mod body;
pub(crate) mod decode;
mod intake;
pub(crate) mod message;
pub(crate) mod messages;
mod min_rate;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use shoal_api::{CHUNK_BYTES_MAX, ClientStreaming, ServerStreaming, Unary};
use shoal_buffer::Buffer;
use shoal_metrics::{Mark, mark};

use self::body::RequestBody;
use self::message::{Parted, Valued, encode, receive, receive_message};
use self::messages::Messages;
use crate::answer::body::ResponseBody;
use crate::auth::Authenticated;
use crate::failure::Failure;
use crate::flow::{ConnectionFlow, MemoryPermit, STREAM_PERMIT_BYTES};
use crate::wire::into_contiguous;

/// The longest message of a stream of a caller, in bytes: a chunk or a header, and framing.
pub(crate) const PART_BYTES_MAX: usize = CHUNK_BYTES_MAX + (64 << 10);

/// A request that was admitted, with its memory.
pub(crate) struct Call {
    pub(crate) request: Authenticated<http::Request<RequestBody>>,
    pub(crate) flow: Arc<ConnectionFlow>,
    pub(crate) permit: Arc<MemoryPermit>,
}

pub(crate) type HttpResponse = http::Response<ResponseBody>;

/// The longest message that the caller of a stream may send, in bytes, and how long one waits for room.
pub(crate) struct StreamLimits {
    pub(crate) message_bytes_max: usize,
    pub(crate) wait_max: Duration,
}

/// Answers without looking at the request's body.
pub(crate) fn refuse(failure: Failure) -> HttpResponse {
    failure.into_status().into_http()
}

/// Answers `call` with `operation`.
pub(crate) async fn unary<M: Valued + Unary, F, R>(
    call: Call,
    operation: impl FnOnce(Authenticated<Parted<M::Request>>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<R, Failure>>,
    R: Into<Parted<M::Response>>,
{
    let Call { request, flow, permit } = call;
    let (http, admitted) = request.take();
    let request = match receive::<M>(http.into_body()).await {
        Ok(request) => request,
        Err(status) => return status.into_http(),
    };
    mark(Mark::Started);
    let working = flow.working();
    let answer: Parted<M::Response> = match operation(admitted.with(request)).await {
        Ok(answer) => answer.into(),
        Err(failure) => return refuse(failure),
    };
    // A write that answers with a value found one, and wrote nothing.
    let has_written = M::WRITES && answer.value.is_empty();
    let answer = encode(M::VALUE_OUT, answer);
    drop(working);
    respond_one(answer, permit, has_written)
}

/// Answers `call`, whose message and answer have many parts, with `operation`. The operation takes the message apart
/// and assembles the answer, without a structure for each part.
pub(crate) async fn whole<F>(
    call: Call,
    has_written: bool,
    operation: impl FnOnce(Authenticated<Bytes>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<Box<Buffer>, Failure>>,
{
    let Call { request, flow, permit } = call;
    let (http, admitted) = request.take();
    let message = match receive_message(http.into_body()).await {
        Ok(message) => into_contiguous(message),
        Err(status) => return status.into_http(),
    };
    mark(Mark::Started);
    let working = flow.working();
    let answer = match operation(admitted.with(message)).await {
        Ok(answer) => answer,
        Err(failure) => return refuse(failure),
    };
    drop(working);
    respond_one(answer, permit, has_written)
}

/// The request is gone; from here on the permit stands for the answer.
fn respond_one(answer: Box<Buffer>, permit: Arc<MemoryPermit>, has_written: bool) -> HttpResponse {
    if has_written {
        permit.set_regardless(answer.len());
    } else if let Err(failure) = permit.set(answer.len()) {
        return refuse(failure);
    }
    respond(ResponseBody::message(answer, permit))
}

/// Answers a method that streams both ways with `operation`, which gives messages behind their prefixes. Its caller may be silent
/// for as long as it likes.
pub(crate) fn exchange<S>(
    call: Call,
    limits: StreamLimits,
    operation: impl FnOnce(Authenticated<Messages<RequestBody>>) -> S,
) -> HttpResponse
where
    S: Stream<Item = Result<Box<Buffer>, Failure>> + Send + 'static,
{
    let Call { request, permit, .. } = call;
    let (http, admitted) = request.take();
    let body = http.into_body().unhurried(limits.message_bytes_max);
    let messages = Messages::counted(body, limits.message_bytes_max, Arc::clone(&permit), limits.wait_max);
    let answers = operation(admitted.with(messages));
    respond(ResponseBody::messages(answers, permit).open_ended())
}

/// Answers a client-streaming method with `operation`.
pub(crate) async fn client_streaming<M: ClientStreaming, F>(
    call: Call,
    limits: StreamLimits,
    operation: impl FnOnce(Authenticated<Messages<RequestBody>>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<M::Response, Failure>>,
{
    let Call { request, flow, permit } = call;
    let (http, admitted) = request.take();
    let body = http.into_body().uncounted(limits.message_bytes_max);
    let messages = Messages::counted(body, limits.message_bytes_max, Arc::clone(&permit), limits.wait_max);
    mark(Mark::Started);
    let working = flow.working();
    let answer = operation(admitted.with(messages)).await;
    drop(working);
    match answer {
        Ok(answer) => respond_one(encode(None, answer.into()), permit, true),
        Err(failure) => refuse(failure),
    }
}

/// Answers `call` with the messages that `operation` gives.
pub(crate) async fn server_streaming<M: Valued + ServerStreaming, F, S, R>(
    call: Call,
    operation: impl FnOnce(Authenticated<Parted<M::Request>>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<S, Failure>>,
    S: Stream<Item = Result<R, Failure>> + Send + 'static,
    R: Into<Parted<M::Response>>,
{
    let Call { request, flow, permit } = call;
    let (http, admitted) = request.take();
    let request = match receive::<M>(http.into_body()).await {
        Ok(request) => request,
        Err(status) => return status.into_http(),
    };
    mark(Mark::Started);
    let _working = flow.working();
    let answers = match permit.set(STREAM_PERMIT_BYTES) {
        Ok(()) => operation(admitted.with(request)).await,
        Err(failure) => Err(failure),
    };
    match answers {
        Ok(answers) => {
            let messages = answers.map_ok(|answer| encode(M::VALUE_OUT, answer.into()));
            respond(ResponseBody::messages(messages, permit))
        }
        Err(failure) => refuse(failure),
    }
}

fn respond(body: ResponseBody) -> HttpResponse {
    let mut response = http::Response::new(body);
    let content_type = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
    response
}
