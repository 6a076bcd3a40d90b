//! Servers of the seed's service that keep everything in memory, as the seed's own do: the yardsticks beside the durable one.
//!
//! They are plain tonic: its codec and its handlers, on hyper's HTTP/2 with the windows of Shoal's server, without the
//! router and the layers of tonic's own transport (which would only make them slower). Values are not checked and not
//! bounded.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures_util::TryFutureExt;
use futures_util::future::{Either, Ready, ready};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::group_commit::GroupCommit;
use shoal_bench::grpc::wire::{CREATE, DELETE, Key, Nothing, Pair, RETRIEVE, UPDATE, Value};
use shoal_bench::grpc::{READ_WORK, WRITE_WORK};

/// Parts of the map, with a lock each.
const SHARDS: usize = 64;

/// As Shoal's server.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const FRAME_BYTES_MAX: u32 = 32 << 10;
const STREAMS_MAX: u32 = 256;

/// The longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The work of a server besides its map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Nothing.
    None,
    /// The seed's work, all calls at the same time.
    PerKey,
    /// The seed's work, one call after the other.
    GlobalLock,
}

/// A map with the interface of the seed's service.
pub(super) struct Memory {
    work: Work,
    /// Takes each write before it is answered.
    log: Option<GroupCommit>,
    lock: tokio::sync::Mutex<()>,
    hasher: RandomState,
    shards: Vec<Mutex<HashMap<Bytes, Bytes>>>,
}

impl Memory {
    pub(super) fn new(work: Work, log: Option<GroupCommit>) -> Self {
        Self {
            work,
            log,
            lock: tokio::sync::Mutex::new(()),
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Serves the connections of `listener`. Returns only with an error.
    ///
    /// # Errors
    /// As the listener.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener) -> Result<()> {
        shoal_base::set_congestion_control(&listener, listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let memory = Arc::clone(&self);
            let requests = service_fn(move |request| {
                let memory = Arc::clone(&memory);
                async move { Ok::<_, Infallible>(memory.answer(request).await) }
            });
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .max_frame_size(FRAME_BYTES_MAX)
                .max_concurrent_streams(STREAMS_MAX)
                .auto_date_header(false)
                .serve_connection(TokioIo::new(stream), requests);
            // A client that closes the connection needs no answer.
            tokio::spawn(async { drop(connection.await) });
        }
    }

    async fn answer(&self, request: http::Request<Incoming>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        match path.as_str() {
            CREATE => unary(request, async |Pair { key, value }| self.create(key, value).await).await,
            RETRIEVE => unary(request, async |Key { key }| self.retrieve(&key).await).await,
            UPDATE => unary(request, async |Pair { key, value }| self.update(&key, value).await).await,
            DELETE => unary(request, async |Key { key }| self.delete(&key).await).await,
            _ => Status::unimplemented("this server has the seed's service only").into_http(),
        }
    }

    async fn create(&self, key: Bytes, value: Bytes) -> Result<Nothing, Status> {
        self.log(&key, &value).await?;
        self.during(WRITE_WORK, || {
            let mut map = self.shard(&key).lock();
            if map.contains_key(&key) {
                return Err(Status::already_exists("there is one"));
            }
            map.insert(key.clone(), value);
            Ok(Nothing {})
        })
        .await
    }

    async fn retrieve(&self, key: &Bytes) -> Result<Value, Status> {
        self.during(READ_WORK, || {
            let value = self.shard(key).lock().get(key).cloned();
            value.map(|value| Value { value }).ok_or_else(|| Status::not_found("there is none"))
        })
        .await
    }

    async fn update(&self, key: &Bytes, value: Bytes) -> Result<Nothing, Status> {
        self.log(key, &value).await?;
        self.during(WRITE_WORK, || match self.shard(key).lock().get_mut(key) {
            Some(old) => {
                *old = value;
                Ok(Nothing {})
            }
            None => Err(Status::not_found("there is none")),
        })
        .await
    }

    async fn delete(&self, key: &Bytes) -> Result<Nothing, Status> {
        self.log(key, &Bytes::new()).await?;
        self.during(WRITE_WORK, || {
            self.shard(key).lock().remove(key);
            Ok(Nothing {})
        })
        .await
    }

    /// Waits until a write is in the log, if there is one.
    async fn log(&self, key: &Bytes, value: &Bytes) -> Result<(), Status> {
        match &self.log {
            Some(log) => {
                let logged = log.append(key.clone(), value.clone()).await;
                logged.map_err(|error| Status::internal(format!("{error:#}")))
            }
            None => Ok(()),
        }
    }

    /// Does `step` after the work that this server pretends to do.
    async fn during<T>(&self, work: Duration, step: impl FnOnce() -> T) -> T {
        let _held = match self.work {
            Work::GlobalLock => Some(self.lock.lock().await),
            Work::PerKey | Work::None => None,
        };
        if self.work != Work::None {
            tokio::time::sleep(work).await;
        }
        step()
    }

    fn shard(&self, key: &Bytes) -> &Mutex<HashMap<Bytes, Bytes>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }
}

/// Answers one call as tonic's generated code would.
async fn unary<Q, A, F>(request: http::Request<Incoming>, step: impl FnOnce(Q) -> F) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Status>>,
{
    let handler = Handler(Some(|request: Request<Q>| step(request.into_inner()).map_ok(Response::new)));
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    grpc.unary(handler, request).await
}

/// A function that answers one request.
struct Handler<H>(Option<H>);

impl<H, Q, A, F> UnaryService<Q> for Handler<H>
where
    H: FnOnce(Request<Q>) -> F,
    F: Future<Output = Result<Response<A>, Status>>,
{
    type Response = A;
    type Future = Either<F, Ready<Result<Response<A>, Status>>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        match self.0.take() {
            Some(step) => Either::Left(step(request)),
            None => Either::Right(ready(Err(Status::internal("a request was answered twice")))),
        }
    }
}
