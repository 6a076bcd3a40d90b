//! [`SpaceServer`]: serves the owner over gRPC, on loopback addresses by default.
//!
//! Callers are not authenticated. So, like the store's server, it refuses to listen on addresses that other machines can reach, unless the
//! operator declares that network trusted.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use shoal_api::{AwakeTimer, BytesCodec, Method, OutgoingMessage, Unary, decode, within};
use shoal_base::task::Boxed;
use shoal_frontend::{ListenError, Listeners, listen_on_all};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};

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
    pub fn run<'a>(self, owner: Owner, shutdown: impl Future<Output = ()> + Send + 'a) -> Boxed<'a, ()> {
        self.run_until(owner, Box::pin(shutdown))
    }

    fn run_until(self, owner: Owner, shutdown: Boxed<'_, ()>) -> Boxed<'_, ()> {
        Box::pin(self.serve(owner, shutdown))
    }

    async fn serve(self, owner: Owner, shutdown: Boxed<'_, ()>) {
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

/// The answer to one request.
type Answered = Result<Response<OutgoingMessage>, Status>;

/// Answers the message of a request.
type Handler = fn(Owner, Bytes) -> Boxed<'static, Answered>;

async fn answer(owner: &Owner, request: http::Request<Incoming>) -> http::Response<Body> {
    let path = request.uri().path();
    let Some(handler) = handler_of(path).or_else(|| handler_of_change(path)) else {
        return Status::unimplemented(format!("there is no method {path}")).into_http();
    };
    let mut grpc = Grpc::new(BytesCodec).max_decoding_message_size(MESSAGE_BYTES_MAX);
    grpc.unary(OneAnswer { handler, owner: owner.clone() }, request).await
}

/// The one table of routes, with [`handler_of_change`].
fn handler_of(path: &str) -> Option<Handler> {
    Some(match path {
        v1::Open::PATH => |owner, message| {
            unary::<v1::Open, _>(message, async move |open| {
                let session = owner.begin(open.time_to_live_ms).await?;
                let blocks = owner.status().blocks;
                Ok(v1::OpenResponse { session, blocks, group_blocks: owner.group_blocks() })
            })
        },
        v1::Renew::PATH => |owner, message| {
            unary::<v1::Renew, _>(message, async move |renew| {
                owner.renew(renew.session).map(|()| v1::RenewResponse {})
            })
        },
        v1::Close::PATH => |owner, message| {
            unary::<v1::Close, _>(message, async move |close| {
                owner.end(close.session).await.map(|()| v1::CloseResponse {})
            })
        },
        v1::Status::PATH => |owner, message| {
            unary::<v1::Status, _>(message, async move |_| {
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
        },
        _ => return None,
    })
}

/// The methods that change the space of a session.
fn handler_of_change(path: &str) -> Option<Handler> {
    Some(match path {
        v1::Allocate::PATH => |owner, message| {
            unary::<v1::Allocate, _>(message, async move |call| {
                let action = SpaceCommand::Allocate { sizes: call.sizes, runs_max: call.runs_max as usize };
                let values = match owner.act(call.session, call.sequence, action).await? {
                    SpaceReply::Values(values) => values,
                    other => unreachable!("an allocation was answered with {other:?}"),
                };
                let values = values.iter().map(|runs| v1::Value { runs: runs_into(runs) }).collect();
                Ok(v1::AllocateResponse { values })
            })
        },
        v1::Free::PATH => |owner, message| {
            unary::<v1::Free, _>(message, async move |call| {
                let action = SpaceCommand::Free { runs: runs_from(call.runs) };
                owner.act(call.session, call.sequence, action).await.map(|_| v1::FreeResponse {})
            })
        },
        v1::Grant::PATH => |owner, message| {
            unary::<v1::Grant, _>(message, async move |call| {
                let action = SpaceCommand::Grant { groups: call.groups as usize };
                match owner.act(call.session, call.sequence, action).await? {
                    SpaceReply::Lease { lease, groups } => {
                        Ok(v1::GrantResponse { lease, groups: runs_into(&groups) })
                    }
                    other => unreachable!("a grant was answered with {other:?}"),
                }
            })
        },
        v1::Commit::PATH => |owner, message| {
            unary::<v1::Commit, _>(message, async move |call| {
                let (kept, freed) = (runs_from(call.kept), runs_from(call.freed));
                let action = SpaceCommand::Commit { lease: call.lease, kept, freed };
                owner.act(call.session, call.sequence, action).await.map(|_| v1::CommitResponse {})
            })
        },
        v1::GiveBack::PATH => |owner, message| {
            unary::<v1::GiveBack, _>(message, async move |call| {
                let action = SpaceCommand::GiveBack { lease: call.lease };
                owner.act(call.session, call.sequence, action).await.map(|_| v1::GiveBackResponse {})
            })
        },
        _ => return None,
    })
}

fn unary<M: Unary, F>(
    message: Bytes,
    verb: impl FnOnce(M::Request) -> F + Send + 'static,
) -> Boxed<'static, Answered>
where
    F: Future<Output = Result<M::Response, Refusal>> + Send,
{
    Box::pin(async {
        let answer = verb(decode(message)?).await;
        answer
            .map(|answer| Response::new(OutgoingMessage::of(answer)))
            .map_err(|refusal| Status::from(&refusal))
    })
}

/// Adapts a handler to tonic's trait.
struct OneAnswer {
    handler: Handler,
    owner: Owner,
}

impl UnaryService<Bytes> for OneAnswer {
    type Response = OutgoingMessage;
    type Future = Boxed<'static, Answered>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        (self.handler)(self.owner.clone(), request.into_inner())
    }
}
