//! Which request goes to which verb: the one table of routes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::Incoming;
use shoal_api::{Method, OPERATIONS_MESSAGE_BYTES_MAX, SEQUENCE_HEADER, SESSION_HEADER, v1};
use shoal_engine::Identity;
use tokio::sync::{Semaphore, watch};
use tonic::Status;

use crate::auth::{Caller, Gate};
use crate::failure::Failure;
use crate::flow::{ConnectionFlow, Flow, RequestBody};
use crate::free_space::free_space;
use crate::moving::moving;
use crate::operations::{OPERATIONS_LEASE_BYTES, operations};
use crate::route::{
    Call, HttpResponse, Room, bidirectional, client_streaming, read, refuse, server_streaming, write,
};
use crate::standard::Standard;
use crate::stat::{Counters, stat};
use crate::{delete, get, head, list, multi, put, stream};

/// What all requests share.
pub(crate) struct Dispatch {
    pub(crate) gate: Gate,
    pub(crate) standard: Standard,
    pub(crate) counters: Counters,
    pub(crate) flow: Flow,
    pub(crate) silence_max: Duration,
    /// Held while the free runs are read.
    pub(crate) free_space_permits: Arc<Semaphore>,
    /// True from when the server is told to stop.
    pub(crate) draining: watch::Receiver<bool>,
}

impl Dispatch {
    /// Answers one request.
    pub(crate) async fn answer(
        &self,
        caller: Caller,
        flow: Arc<ConnectionFlow>,
        request: http::Request<Incoming>,
    ) -> HttpResponse {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        if !is_grpc(&request) {
            return not_grpc();
        }
        let path = request.uri().path().to_owned();
        let identity = match identity(request.headers()) {
            Ok(identity) => identity,
            Err(failure) => return refuse(failure),
        };
        let lease = flow.lease();
        let request = request.map(|body| RequestBody::new(body, Arc::clone(&lease), self.silence_max));
        match self.gate.admit(caller, request) {
            Ok(request) => {
                let request = request.identified(identity);
                self.route(&path, Call { request, flow, lease }).await
            }
            Err(denied) => refuse(Failure::denied(denied.to_string())),
        }
    }

    async fn route(&self, path: &str, call: Call) -> HttpResponse {
        match path {
            v1::Put::PATH => write::<v1::Put, _>(call, put::put).await,
            v1::Get::PATH => read::<v1::Get, _>(call, get::get).await,
            v1::Head::PATH => read::<v1::Head, _>(call, head::head).await,
            v1::Delete::PATH => write::<v1::Delete, _>(call, delete::delete).await,
            v1::List::PATH => read::<v1::List, _>(call, list::list).await,
            v1::MultiGet::PATH => read::<v1::MultiGet, _>(call, multi::multi_get).await,
            v1::MultiPut::PATH => write::<v1::MultiPut, _>(call, multi::multi_put).await,
            v1::MultiDelete::PATH => write::<v1::MultiDelete, _>(call, multi::multi_delete).await,
            v1::PutStream::PATH => client_streaming::<v1::PutStream, _>(call, stream::put_stream).await,
            v1::GetStream::PATH => server_streaming::<v1::GetStream, _, _>(call, stream::get_stream).await,
            v1::Operations::PATH => {
                let room = Room {
                    lease_bytes: OPERATIONS_LEASE_BYTES,
                    message_bytes_max: OPERATIONS_MESSAGE_BYTES_MAX,
                };
                let verb = |request| operations(request, self.draining.clone());
                bidirectional::<v1::Operations, _>(call, room, verb).await
            }
            v1::Stat::PATH => {
                read::<v1::Stat, _>(call, async |request| stat(&request, &self.counters, &self.flow)).await
            }
            v1::Moving::PATH => read::<v1::Moving, _>(call, async |request| Ok(moving(request))).await,
            v1::FreeSpace::PATH => {
                let verb = async |request| free_space(request, &self.free_space_permits);
                server_streaming::<v1::FreeSpace, _, _>(call, verb).await
            }
            _ => match self.standard.answer(path, call).await {
                Ok(response) => response,
                Err(_call) => Status::unimplemented(format!("there is no method {path}")).into_http(),
            },
        }
    }
}

/// Who a write is, where its sender says so: its session, and its number there.
fn identity(headers: &http::HeaderMap) -> Result<Option<Identity>, Failure> {
    let number = |name: &str| {
        let Some(value) = headers.get(name) else { return Ok(None) };
        let number = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
        number.map(Some).ok_or_else(|| Failure::invalid(format!("{name} is a number")))
    };
    match (number(SESSION_HEADER)?, number(SEQUENCE_HEADER)?) {
        (None, None) => Ok(None),
        (Some(session), Some(sequence)) => Ok(Some(Identity { session, sequence })),
        _ => Err(Failure::invalid(format!("{SESSION_HEADER} and {SEQUENCE_HEADER} belong together"))),
    }
}

fn is_grpc(request: &http::Request<Incoming>) -> bool {
    let content_type = request.headers().get(http::header::CONTENT_TYPE);
    request.method() == http::Method::POST
        && content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// What the gRPC protocol says to answer to others.
fn not_grpc() -> HttpResponse {
    let mut response = HttpResponse::default();
    *response.status_mut() = http::StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}
