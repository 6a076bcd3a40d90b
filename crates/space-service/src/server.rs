//! [`SpaceServer`]: serves the owner over gRPC, on loopback addresses by default.
//!
//! Callers are not authenticated. So, like the store's server, it refuses to listen on addresses that other machines can reach, unless the
//! operator declares that network trusted.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use shoal_api::{AwakeTimer, Method, Unary, within};
use shoal_frontend::{ListenError, Listeners, listen_on_all};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::owner::{LATE_EVERY_MS, Owner};
use crate::refusal::Refusal;
use crate::state::{SpaceCommand, SpaceReply};
use crate::{MESSAGE_BYTES_MAX, runs_from, runs_into, v1};

/// Most connections; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;

/// Most requests at the same time on one connection.
const STREAMS_MAX: u32 = 256;

/// A peer that does not answer pings is gone.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Headers of one request, in bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// Pause after a failed accept: if file descriptors have run out, the next one fails at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The time for requests to finish when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// The reason why the server does not run.
#[derive(Debug, thiserror::Error)]
pub enum SpaceServerError {
    /// Callers from other machines could connect, and they are not authenticated.
    #[error(
        "refusing to listen on {0}: it is reachable from other machines and callers are not authenticated; listen on 127.0.0.1, \
         or set --insecure if that network is trusted"
    )]
    NotLoopback(SocketAddr),
    /// The server cannot listen on the address.
    #[error(transparent)]
    Listen(ListenError),
}

/// A server that listens. Connections wait until [`Self::run`].
pub struct SpaceServer {
    listeners: Listeners,
}

impl SpaceServer {
    /// Listens on `address` and on `others`, the further addresses of its name; port 0 takes a free one.
    ///
    /// # Errors
    /// [`SpaceServerError`].
    pub fn bind(
        address: SocketAddr,
        others: &[SocketAddr],
        insecure: bool,
    ) -> Result<Self, SpaceServerError> {
        let listeners =
            listen_on_all(address, others, insecure, ("authenticated", "")).map_err(|error| match error {
                ListenError::NotLoopback { address, .. } => SpaceServerError::NotLoopback(address),
                error => SpaceServerError::Listen(error),
            })?;
        let failed = |error| SpaceServerError::Listen(ListenError::System { address, error });
        Ok(Self { listeners: Listeners::new(listeners).map_err(failed)? })
    }

    /// The addresses that are listened on.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        self.listeners.addresses()
    }

    /// Serves `owner` until `shutdown` completes, and fences clients that were silent for too long. Waits for requests under way.
    pub async fn run(self, owner: Owner, shutdown: impl Future<Output = ()>) {
        let drain = watch::Sender::new(false);
        let mut connections = JoinSet::new();
        tokio::select! {
            () = shutdown => {}
            () = fence(&owner) => {}
            () = accept(&self.listeners, &owner, &drain, &mut connections) => {}
        }
        drop(self.listeners);
        drain.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        if within(DRAIN_MAX, all).await.is_none() {
            tracing::warn!("requests were cut: they took longer than {} s", DRAIN_MAX.as_secs());
        }
    }
}

/// Runs for ever.
async fn fence(owner: &Owner) {
    let mut looks = interval(Duration::from_millis(LATE_EVERY_MS));
    loop {
        looks.tick().await;
        match owner.fence_late() {
            Ok(late) => {
                late.iter().for_each(|session| tracing::warn!(session, "fenced: its client is silent"))
            }
            Err(error) => tracing::error!(%error, "cannot fence"),
        }
    }
}

/// Runs for ever.
async fn accept(
    listeners: &Listeners,
    owner: &Owner,
    drain: &watch::Sender<bool>,
    connections: &mut JoinSet<()>,
) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listeners.accept().await {
            Ok((stream, _)) => {
                let (owner, drain) = (owner.clone(), drain.subscribe());
                connections.spawn(async move {
                    serve(stream, owner, drain).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, owner: Owner, mut drain: watch::Receiver<bool>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "answers may be held back");
    }
    let requests = service_fn(|request: http::Request<Incoming>| {
        let owner = owner.clone();
        async move { Ok::<_, Infallible>(answer(&owner, request).await) }
    });
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(AwakeTimer)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .auto_date_header(false);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), requests));
    let mut is_draining = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "closed");
                }
                return;
            }
            _ = drain.wait_for(|drain| *drain), if !is_draining => {
                is_draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The one table of routes, with [`act`].
async fn answer(owner: &Owner, request: http::Request<Incoming>) -> http::Response<Body> {
    match request.uri().path() {
        v1::Open::PATH => {
            unary::<v1::Open, _>(request, async |open| {
                let session = owner.begin(open.time_to_live_ms).await?;
                let blocks = owner.status().blocks;
                Ok(v1::OpenResponse { session, blocks, group_blocks: owner.group_blocks() })
            })
            .await
        }
        v1::Renew::PATH => {
            unary::<v1::Renew, _>(request, async |renew| {
                owner.renew(renew.session).map(|()| v1::RenewResponse {})
            })
            .await
        }
        v1::Close::PATH => {
            unary::<v1::Close, _>(request, async |close| {
                owner.end(close.session).await.map(|()| v1::CloseResponse {})
            })
            .await
        }
        v1::Status::PATH => {
            unary::<v1::Status, _>(request, async |_| {
                let status = owner.status();
                Ok(v1::StatusResponse {
                    blocks: status.blocks,
                    free_blocks: status.free_blocks,
                    leased_blocks: status.leased_blocks,
                    committed_blocks: status.committed_blocks,
                    sessions: status.sessions,
                    leases: status.leases,
                })
            })
            .await
        }
        _ => act(owner, request).await,
    }
}

/// Answers the methods that change the space of a session.
async fn act(owner: &Owner, request: http::Request<Incoming>) -> http::Response<Body> {
    match request.uri().path() {
        v1::Allocate::PATH => {
            unary::<v1::Allocate, _>(request, async |call| {
                let action = SpaceCommand::Allocate { sizes: call.sizes, runs_max: call.runs_max as usize };
                let values = match owner.act(call.session, call.sequence, action).await? {
                    SpaceReply::Values(values) => values,
                    other => unreachable!("an allocation was answered with {other:?}"),
                };
                let values = values.iter().map(|runs| v1::Value { runs: runs_into(runs) }).collect();
                Ok(v1::AllocateResponse { values })
            })
            .await
        }
        v1::Free::PATH => {
            unary::<v1::Free, _>(request, async |call| {
                let action = SpaceCommand::Free { runs: runs_from(call.runs) };
                owner.act(call.session, call.sequence, action).await.map(|_| v1::FreeResponse {})
            })
            .await
        }
        v1::Grant::PATH => {
            unary::<v1::Grant, _>(request, async |call| {
                let action = SpaceCommand::Grant { groups: call.groups as usize };
                match owner.act(call.session, call.sequence, action).await? {
                    SpaceReply::Lease { lease, groups } => {
                        Ok(v1::GrantResponse { lease, groups: runs_into(&groups) })
                    }
                    other => unreachable!("a grant was answered with {other:?}"),
                }
            })
            .await
        }
        v1::Commit::PATH => {
            unary::<v1::Commit, _>(request, async |call| {
                let (kept, freed) = (runs_from(call.kept), runs_from(call.freed));
                let action = SpaceCommand::Commit { lease: call.lease, kept, freed };
                owner.act(call.session, call.sequence, action).await.map(|_| v1::CommitResponse {})
            })
            .await
        }
        v1::GiveBack::PATH => {
            unary::<v1::GiveBack, _>(request, async |call| {
                let action = SpaceCommand::GiveBack { lease: call.lease };
                owner.act(call.session, call.sequence, action).await.map(|_| v1::GiveBackResponse {})
            })
            .await
        }
        path => Status::unimplemented(format!("there is no method {path}")).into_http(),
    }
}

async fn unary<M: Unary, F>(
    request: http::Request<Incoming>,
    verb: impl FnOnce(M::Request) -> F,
) -> http::Response<Body>
where
    F: Future<Output = Result<M::Response, Refusal>>,
{
    let answer = async |request: Request<M::Request>| {
        let answer = verb(request.into_inner()).await;
        answer.map(Response::new).map_err(|refusal| Status::from(&refusal))
    };
    let codec = ProstCodec::<M::Response, M::Request>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
    grpc.unary(OneAnswer(Some(answer)), request).await
}

/// Adapts a function that answers one request to tonic's trait.
struct OneAnswer<H>(Option<H>);

impl<H, F, R, A> UnaryService<R> for OneAnswer<H>
where
    H: FnOnce(Request<R>) -> F,
    F: Future<Output = Result<Response<A>, Status>>,
{
    type Response = A;
    type Future = Either<F, Ready<Result<Response<A>, Status>>>;

    fn call(&mut self, request: Request<R>) -> Self::Future {
        match self.0.take() {
            Some(handler) => Either::Left(handler(request)),
            None => Either::Right(ready(Err(Status::internal("a request was answered twice")))),
        }
    }
}
