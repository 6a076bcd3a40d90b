//! From HTTP/2 frames to messages and back, by the shape of a method: what stands between `dispatch` and a verb.
//!
//! A verb is given an [`Authenticated`] message, never less: there is no other way to register one.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use futures_util::{Stream, TryStreamExt};
use prost::Message;
use shoal_api::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX, Method, ServerStreaming, Unary};
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::auth::Authenticated;
use crate::body::ResponseBody;
use crate::failure::Failure;
use crate::flow::{ConnectionFlow, Lease, RequestBody, STREAM_LEASE_BYTES};

/// The longest message of a stream of a caller, in bytes: a chunk or a header, and framing.
pub(crate) const PART_BYTES_MAX: usize = CHUNK_BYTES_MAX + (64 << 10);

/// A request that was admitted, and what it holds.
pub(crate) struct Call {
    pub(crate) request: Authenticated<http::Request<RequestBody>>,
    pub(crate) flow: Arc<ConnectionFlow>,
    pub(crate) lease: Arc<Lease>,
}

pub(crate) type HttpResponse = http::Response<ResponseBody>;

/// Answers a unary method that reads with `verb`.
pub(crate) async fn read<M: Unary, F>(
    call: Call,
    verb: impl FnOnce(Authenticated<M::Request>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<M::Response, Failure>>,
{
    unary::<M, F>(call, verb, |lease, answer_bytes| lease.set(answer_bytes)).await
}

/// Answers a unary method that writes with `verb`. Its answer is small, and never refused for want of room.
pub(crate) async fn write<M: Unary, F>(
    call: Call,
    verb: impl FnOnce(Authenticated<M::Request>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<M::Response, Failure>>,
{
    unary::<M, F>(call, verb, |lease, answer_bytes| {
        lease.set_regardless(answer_bytes);
        Ok(())
    })
    .await
}

async fn unary<M: Unary, F>(
    call: Call,
    verb: impl FnOnce(Authenticated<M::Request>) -> F,
    hold: impl FnOnce(&Lease, usize) -> Result<(), Failure>,
) -> HttpResponse
where
    F: Future<Output = Result<M::Response, Failure>>,
{
    let Call { request, flow, lease } = call;
    let (http, admitted) = request.take();
    let answer = async |request: Request<M::Request>| {
        let _working = flow.working();
        let answer = verb(admitted.with(request.into_inner())).await.map_err(Failure::into_status)?;
        // The request is gone; from here on the lease stands for the answer.
        hold(&lease, answer.encoded_len()).map_err(Failure::into_status)?;
        Ok(Response::new(answer))
    };
    let response = grpc::<M>(MESSAGE_BYTES_MAX).unary(Once(Some(answer)), http).await;
    retold(response).map(|body| ResponseBody::new(body, lease))
}

/// Answers a method that streams its answer with `verb`.
pub(crate) async fn server_streaming<M: ServerStreaming, F, S>(
    call: Call,
    verb: impl FnOnce(Authenticated<M::Request>) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<S, Failure>>,
    S: Stream<Item = Result<M::Response, Failure>> + Send + 'static,
{
    let Call { request, flow, lease } = call;
    let (http, admitted) = request.take();
    let answer = async |request: Request<M::Request>| {
        let _working = flow.working();
        lease.set(STREAM_LEASE_BYTES).map_err(Failure::into_status)?;
        let answers = verb(admitted.with(request.into_inner())).await.map_err(Failure::into_status)?;
        Ok(Response::new(answers.map_err(Failure::into_status)))
    };
    let response = grpc::<M>(MESSAGE_BYTES_MAX).server_streaming(Once(Some(answer)), http).await;
    retold(response).map(|body| ResponseBody::new(body, lease))
}

/// What tonic answers, with gRPC's own code for a message that is too long.
fn retold(response: http::Response<Body>) -> http::Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() == Code::OutOfRange => Failure::from(status).into_status().into_http(),
        _ => response,
    }
}

/// The longest message that the caller of a stream may send, in bytes, and how long one waits for room.
pub(crate) struct Room {
    pub(crate) message_bytes_max: usize,
    pub(crate) wait_max: Duration,
}

/// Answers without looking at the request's body.
pub(crate) fn refuse(failure: Failure) -> HttpResponse {
    failure.into_status().into_http()
}

fn grpc<M: Method>(message_bytes_max: usize) -> Grpc<ProstCodec<M::Response, M::Request>> {
    Grpc::new(ProstCodec::default()).max_decoding_message_size(message_bytes_max)
}

/// Fits a function that answers one request into tonic's traits.
struct Once<H>(Option<H>);

impl<H> Once<H> {
    fn answer<R, F, A>(&mut self, request: R) -> Either<F, Ready<Result<A, Status>>>
    where
        H: FnOnce(R) -> F,
        F: Future<Output = Result<A, Status>>,
    {
        match self.0.take() {
            Some(handler) => Either::Left(handler(request)),
            None => Either::Right(ready(Err(Status::internal("a request was answered twice")))),
        }
    }
}

impl<H, F, R, A> UnaryService<R> for Once<H>
where
    H: FnOnce(Request<R>) -> F,
    F: Future<Output = Result<Response<A>, Status>>,
{
    type Response = A;
    type Future = Either<F, Ready<Result<Response<A>, Status>>>;

    fn call(&mut self, request: Request<R>) -> Self::Future {
        self.answer(request)
    }
}

impl<H, F, R, A, S> ServerStreamingService<R> for Once<H>
where
    H: FnOnce(Request<R>) -> F,
    F: Future<Output = Result<Response<S>, Status>>,
    S: Stream<Item = Result<A, Status>>,
{
    type Response = A;
    type ResponseStream = S;
    type Future = Either<F, Ready<Result<Response<S>, Status>>>;

    fn call(&mut self, request: Request<R>) -> Self::Future {
        self.answer(request)
    }
}
