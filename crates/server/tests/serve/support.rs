//! A running server for a test, and calls that the client would not make.

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::Stream;
use http::uri::PathAndQuery;
use shoal_api::v1::failure::Kind;
use shoal_api::{ClientStreaming, Described, ServerStreaming, Unary, v1};
use shoal_client::{Client, ConnectOptions};
use shoal_engine::Store;
use shoal_server::{Credentials, Limits, ServeError, Server, ServerOptions, Tokens};
use shoal_storekit::{StoreKit, eventually, in_time};
use shoal_testkit::bytes::patterned;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// The stores of these tests: of 512 MiB.
pub(crate) fn kit() -> StoreKit {
    StoreKit::new(128 << 10).with_cache(64 << 20)
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) store: Store,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) ended: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    pub(crate) async fn start() -> Self {
        Self::with(Limits::default()).await
    }

    pub(crate) async fn with(limits: Limits) -> Self {
        Self::over(kit().in_memory(), limits).await
    }

    /// On any port, over this store.
    pub(crate) async fn over(store: Store, limits: Limits) -> Self {
        Self::on("127.0.0.1:0".parse().unwrap(), limits, store).await
    }

    pub(crate) async fn on(listen: SocketAddr, limits: Limits, store: Store) -> Self {
        Self::as_told(ServerOptions { listen, limits, ..ServerOptions::default() }, store).await
    }

    /// On any port, with `options`.
    pub(crate) async fn told(options: ServerOptions) -> Self {
        let listen = "127.0.0.1:0".parse().unwrap();
        Self::as_told(ServerOptions { listen, ..options }, kit().in_memory()).await
    }

    async fn as_told(options: ServerOptions, store: Store) -> Self {
        let server = Server::bind(options).await.unwrap();
        let address = server.address();
        assert_ne!(address.port(), 0);
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let ended = tokio::spawn(server.run(store.clone(), shutdown));
        Self { address, store, stop, ended }
    }

    /// Options of a client of this server.
    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions::new(self.address.to_string())
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.options()).await.unwrap()
    }

    /// A client that sends each call once.
    pub(crate) async fn impatient_client(&self) -> Client {
        let options = ConnectOptions { attempts: 1, connections: 1, ..self.options() };
        Client::connect(options).await.unwrap()
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        in_time("the server's end", self.ended).await.unwrap().unwrap();
    }
}

/// Bytes that differ from place to place.
pub(crate) fn value(bytes: usize, seed: u8) -> Bytes {
    patterned(bytes, seed.into()).into()
}

/// The name of an object with this number.
pub(crate) fn key(number: usize) -> Bytes {
    format!("key-{number}").into()
}

/// A put without a condition.
pub(crate) fn put_request(key: impl Into<Bytes>, value: Bytes) -> v1::PutRequest {
    v1::PutRequest { key: key.into(), value, ..Default::default() }
}

/// Credentials of these tokens, one a line.
pub(crate) fn credentials_of(tokens: &str) -> Credentials {
    Credentials::new(None, Tokens::parse(tokens.as_bytes()).unwrap()).unwrap()
}

/// A request with this message, or these messages, and a token.
pub(crate) fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// Calls any method over `channel`, which is ready for one.
pub(crate) async fn grpc_over(channel: &Channel) -> Grpc<Channel> {
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(64 << 20);
    grpc.ready().await.unwrap();
    grpc
}

pub(crate) async fn call<M: Unary>(channel: &Channel, request: M::Request) -> Result<M::Response, Status> {
    let codec = ProstCodec::<M::Request, M::Response>::default();
    Ok(grpc_over(channel)
        .await
        .unary(Request::new(request), PathAndQuery::from_static(M::PATH), codec)
        .await?
        .into_inner())
}

pub(crate) async fn send<M: ClientStreaming>(
    channel: &Channel,
    parts: impl Stream<Item = M::Request> + Send + 'static,
) -> Result<M::Response, Status> {
    let codec = ProstCodec::<M::Request, M::Response>::default();
    Ok(grpc_over(channel)
        .await
        .client_streaming(Request::new(parts), PathAndQuery::from_static(M::PATH), codec)
        .await?
        .into_inner())
}

pub(crate) async fn receive<M: ServerStreaming>(
    channel: &Channel,
    request: M::Request,
) -> Result<Streaming<M::Response>, Status> {
    let codec = ProstCodec::<M::Request, M::Response>::default();
    Ok(grpc_over(channel)
        .await
        .server_streaming(Request::new(request), PathAndQuery::from_static(M::PATH), codec)
        .await?
        .into_inner())
}

pub(crate) fn kind(status: &Status) -> Kind {
    Described::from_status(status).failure.kind()
}

pub(crate) fn header(key: &'static str) -> v1::PutStreamRequest {
    let header = v1::PutStreamHeader { key: key.into(), ..Default::default() };
    v1::PutStreamRequest { part: Some(v1::put_stream_request::Part::Header(header)) }
}

pub(crate) fn chunk(bytes: Bytes) -> v1::PutStreamRequest {
    v1::PutStreamRequest { part: Some(v1::put_stream_request::Part::Chunk(bytes)) }
}

pub(crate) fn end(bytes: u64) -> v1::PutStreamRequest {
    v1::PutStreamRequest { part: Some(v1::put_stream_request::Part::End(v1::PutStreamEnd { bytes })) }
}

/// Waits until no request is in memory, and none holds a page.
pub(crate) async fn nothing_is_held(server: &Running) {
    let client = server.client().await;
    eventually("nothing in flight", || async {
        figure(&client, "server.bytes_in_flight").await < 4096
            && figure(&client, "pool.frames_pinned").await == 0
    })
    .await;
}

/// A figure of the server.
pub(crate) async fn figure(client: &Client, name: &str) -> u64 {
    let figures = client.stat().await.unwrap().figures;
    figures.iter().find(|figure| figure.name == name).unwrap().value
}
