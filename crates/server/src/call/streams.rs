//! Calls whose request or answer is a stream of messages.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, TryStreamExt};
use shoal_api::{CHUNK_BYTES_MAX, ClientStreaming, ServerStreaming};
use shoal_buffer::Buffer;
use shoal_metrics::{Stage, mark};

use super::body::RequestBody;
use super::receive::receive;
use super::stream_messages::Messages;
use super::unary::{encode, respond_one};
use super::with_value::{Valued, WithValue};
use super::{Call, HttpResponse, refuse};
use crate::answer::body::ResponseBody;
use crate::auth::{Authenticated, Guarded};
use crate::failure::Failure;

/// The longest message of a stream of a caller, in bytes: a chunk or a header, and framing.
pub(crate) const PART_BYTES_MAX: usize = CHUNK_BYTES_MAX + (64 << 10);

/// Bytes that an answer in pieces may hold: the chunk in work, and the part of the next one that was read.
const STREAM_PERMIT_BYTES: usize = CHUNK_BYTES_MAX + CHUNK_BYTES_MAX / 2;

/// The longest message that the caller of a stream may send, in bytes, and the time for which one waits for room.
pub(crate) struct StreamLimits {
    pub(crate) message_bytes_max: usize,
    pub(crate) wait_max: Duration,
}

/// Answers a method that streams both ways with `operation`, which returns messages with their prefixes. Its caller may be silent for any
/// time.
pub(crate) fn bidirectional<M: Guarded, S>(
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
    ResponseBody::messages(answers, permit).open_ended().into_response()
}

/// Answers a client-streaming method with `operation`.
pub(crate) async fn client_streaming<M: ClientStreaming + Guarded, F>(
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
    mark(Stage::Started);
    let working = flow.working();
    let answer = operation(admitted.with(messages)).await;
    drop(working);
    match answer {
        Ok(answer) => respond_one(encode(None, answer.into()), permit, true),
        Err(failure) => refuse(failure),
    }
}

/// Answers `call` with the messages of `operation`.
pub(crate) async fn server_streaming<M: Valued + ServerStreaming, F, S, R>(
    call: Call,
    operation: impl FnOnce(Authenticated<M::Request>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<S, Failure>>,
    S: Stream<Item = Result<R, Failure>> + Send + 'static,
    R: Into<WithValue<M::Response>>,
{
    let Call { request, flow, permit } = call;
    let (http, admitted) = request.take();
    let request = match receive::<M>(http.into_body()).await {
        Ok(request) => request,
        Err(status) => return status.into_http(),
    };
    mark(Stage::Started);
    let _working = flow.working();
    let answers = match permit.set(STREAM_PERMIT_BYTES) {
        Ok(()) => operation(admitted.with(request)).await,
        Err(no_room) => Err(no_room.into()),
    };
    match answers {
        Ok(answers) => {
            let messages = answers.map_ok(|answer| encode(M::VALUE_OUT, answer.into()));
            ResponseBody::messages(messages, permit).into_response()
        }
        Err(failure) => refuse(failure),
    }
}
