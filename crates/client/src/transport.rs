//! The transport of calls to the server: the only module that knows gRPC. The verbs use methods and their messages
//! ([`shoal_api::Method`]); another way of carrying these messages belongs in here, with the same three calls.
//!
//! Several HTTP/2 connections are used in turn. A broken connection fails the calls on it and is reopened by the next one.

use std::future::ready;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use http::uri::PathAndQuery;
use shoal_api::{
    Bidirectional, BytesCodec, ClientStreaming, MESSAGE_BYTES_MAX, Method, OutgoingMessage, SEQUENCE_HEADER,
    SESSION_HEADER, ServerStreaming, Unary, decode, within,
};
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{self, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};

use crate::connector::{Progress, counting};
use crate::error::{Error, Result, innermost, silent};
use crate::options::{ConnectOptions, Secret};
use crate::request_id::RequestId;
use crate::retry::{Failed, Outcome};
use crate::trust::{Trust, explained};
use crate::wire;

/// HTTP/2 window of one stream, in bytes: a chunk and a bit, so that a stream is not stopped in the middle of one.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;

/// HTTP/2 window of one connection, in bytes: 100 values of 64 KiB on their way at once.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// The longest HTTP/2 frame that is accepted, in bytes: the same as the server's, which was measured.
const FRAME_BYTES_MAX: u32 = 32 << 10;

/// A peer that does not answer pings for this time is gone.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Connections to one server.
pub(crate) struct Transport {
    channels: Box<[Channel]>,
    next: AtomicUsize,
    server: Arc<str>,
    answer_timeout: Duration,
    progress: Progress,
    /// The value of the header `authorization:` of every call.
    authorization: Option<MetadataValue<Ascii>>,
}

impl Transport {
    pub(crate) async fn connect(options: &ConnectOptions) -> Result<Self> {
        let uri = options.uri()?;
        let server: Arc<str> = uri.authority().map(ToString::to_string).unwrap_or_default().into();
        let is_tls = uri.scheme_str() == Some("https");
        let endpoint = Endpoint::from(uri)
            .connect_timeout(options.connect_timeout)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE);
        let endpoint = if is_tls { with_tls(endpoint, options)? } else { endpoint };
        let authorization = options.token.as_ref().map(authorization).transpose()?;
        let progress = Progress::default();
        let connector = counting(Some(options.connect_timeout), progress.clone(), is_tls);
        // The first connection is opened now, so that a wrong address is noticed here and not by the first call.
        let first = within(options.answer_timeout, endpoint.connect_with_connector(connector.clone())).await;
        let first = first.ok_or_else(|| silent(&server, options.answer_timeout))?;
        let first = first.map_err(|error| Error::Unavailable {
            server: server.to_string(),
            reason: explained(innermost(&error)),
        })?;
        let more = (1..options.connections).map(|_| endpoint.connect_with_connector_lazy(connector.clone()));
        let channels = std::iter::once(first).chain(more).collect();
        Ok(Self {
            channels,
            next: AtomicUsize::new(0),
            server,
            answer_timeout: options.answer_timeout,
            progress,
            authorization,
        })
    }

    /// A transport without a server.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        let (channels, next) = (Box::default(), AtomicUsize::new(0));
        let answer_timeout = Duration::from_secs(60);
        let progress = Progress::default();
        Self { channels, next, server: "nowhere".into(), answer_timeout, progress, authorization: None }
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// The progress of its connections.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// One message to the server, one message back.
    pub(crate) async fn call<M: Unary>(&self, request: M::Request) -> Result<M::Response, Failed> {
        self.call_as::<M>(None, request).await
    }

    /// As [`Self::call`]; the answer is as it is on the wire.
    pub(crate) async fn call_for_bytes<M: Unary>(&self, request: &M::Request) -> Result<Bytes, Failed> {
        let request = OutgoingMessage::Encoded(prost::Message::encode_to_vec(request).into());
        self.unary(self.request(request), path::<M>()).await
    }

    /// As [`Self::call`] for a write; with an id, the server does it once.
    pub(crate) async fn call_as<M: Unary>(
        &self,
        id: Option<RequestId>,
        request: M::Request,
    ) -> Result<M::Response, Failed> {
        let mut request = self.request(OutgoingMessage::of(request));
        if let Some(RequestId { session, sequence }) = id {
            let metadata = request.metadata_mut();
            metadata.insert(SESSION_HEADER, session.into());
            metadata.insert(SEQUENCE_HEADER, sequence.into());
        }
        self.decoded(self.unary(request, path::<M>()).await?)
    }

    async fn unary(&self, request: Request<OutgoingMessage>, path: PathAndQuery) -> Result<Bytes, Failed> {
        let mut grpc = self.grpc();
        let answer = async {
            self.ready(&mut grpc).await?;
            grpc.unary(request, path, BytesCodec).await.map_err(|status| self.failed(&status))
        };
        Ok(self.within(answer).await?.into_inner())
    }

    /// A stream of messages to the server, one message back. The future must be polled for the messages to leave. The caller
    /// limits its time ([`Self::within`]).
    pub(crate) async fn send<M: ClientStreaming>(
        &self,
        parts: impl Stream<Item = M::Request> + Send + 'static,
    ) -> Result<M::Response, Failed> {
        let mut grpc = self.grpc();
        self.ready(&mut grpc).await?;
        let request = self.request(parts.map(OutgoingMessage::of).boxed());
        let answer = grpc.client_streaming(request, path::<M>(), BytesCodec).await;
        self.decoded(answer.map_err(|status| self.failed(&status))?.into_inner())
    }

    /// One message to the server, a stream of messages back.
    pub(crate) async fn receive<M: ServerStreaming>(&self, request: M::Request) -> Result<Parts<M>, Failed> {
        let request = OutgoingMessage::of(request);
        let messages = self.streaming(stream::once(ready(request)).boxed(), path::<M>()).await?;
        Ok(Parts { messages, method: PhantomData })
    }

    /// Streams both ways: the messages of the answer. The callers write and read messages themselves.
    pub(crate) async fn exchange<M: Bidirectional>(
        &self,
        parts: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Streaming<Bytes>, Failed> {
        self.streaming(parts.map(OutgoingMessage::Encoded).boxed(), path::<M>()).await
    }

    async fn streaming(
        &self,
        parts: BoxStream<'static, OutgoingMessage>,
        path: PathAndQuery,
    ) -> Result<Streaming<Bytes>, Failed> {
        let mut grpc = self.grpc();
        let answer = async {
            self.ready(&mut grpc).await?;
            let answer = grpc.streaming(self.request(parts), path, BytesCodec).await;
            answer.map_err(|status| self.failed(&status))
        };
        Ok(self.within(answer).await?.into_inner())
    }

    fn decoded<T: prost::Message + Default>(&self, message: Bytes) -> Result<T, Failed> {
        decode(message).map_err(|status| self.failed(&status))
    }

    async fn next_of(&self, messages: &mut Streaming<Bytes>) -> Result<Option<Bytes>, Failed> {
        self.within(async { messages.message().await.map_err(|status| self.failed(&status)) }).await
    }

    /// The longest silence of the server.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.answer_timeout
    }

    /// A request with the client's token.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }

    /// Waits for `answer` for the longest silence of the server; moving bytes are not silence.
    pub(crate) async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let silent = || Err(Failed { error: self.silent(), outcome: Outcome::Open });
        self.progress.within(self.answer_timeout, answer).await.unwrap_or_else(silent)
    }

    /// The failure of `status`.
    pub(crate) fn failed(&self, status: &Status) -> Failed {
        self.speaks_tls().unwrap_or_else(|| wire::failed(status, &self.server))
    }

    /// The failure of a server that answered in TLS. It has not parsed the request.
    fn speaks_tls(&self) -> Option<Failed> {
        self.progress.is_tls().then(|| {
            let reason = format!("it speaks TLS: try https://{}", self.server);
            Failed::refused(Error::Unavailable { server: self.server.to_string(), reason })
        })
    }

    /// The failure of a server that was silent for too long.
    pub(crate) fn silent(&self) -> Error {
        silent(&self.server, self.answer_timeout)
    }

    /// The next connection.
    fn grpc(&self) -> Grpc<Channel> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        // There is at least one channel: ConnectOptions::check, and `connect` puts the first in.
        let channel = &self.channels[turn % self.channels.len()];
        Grpc::new(channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Waits until the connection accepts a call. If this fails, nothing was sent.
    async fn ready(&self, grpc: &mut Grpc<Channel>) -> Result<(), Failed> {
        grpc.ready().await.map_err(|error| {
            self.speaks_tls().unwrap_or_else(|| {
                let (server, reason) = (self.server.to_string(), explained(innermost(&error)));
                Failed { error: Error::Unavailable { server, reason }, outcome: Outcome::NotApplied }
            })
        })
    }
}

/// The messages of an answer that is a stream.
pub(crate) struct Parts<M> {
    messages: Streaming<Bytes>,
    method: PhantomData<M>,
}

impl<M: ServerStreaming> Parts<M> {
    /// The next message; `None` at the end.
    pub(crate) async fn next(&mut self, transport: &Transport) -> Result<Option<M::Response>, Failed> {
        transport.next_of(&mut self.messages).await?.map(|message| transport.decoded(message)).transpose()
    }
}

/// `endpoint` over TLS.
fn with_tls(endpoint: Endpoint, options: &ConnectOptions) -> Result<Endpoint> {
    let tls = match &options.identity_pem {
        Some((certificate, key)) => {
            ClientTlsConfig::new().identity(transport::Identity::from_pem(certificate, key.as_bytes()))
        }
        None => ClientTlsConfig::new(),
    };
    let bad = |why: String| Error::Invalid(format!("certificates: {why}"));
    let endpoint = match &options.ca_pem {
        Some(pem) => endpoint.tls_config_with_verifier(tls, Arc::new(Trust::new(pem).map_err(bad)?)),
        None => endpoint.tls_config(tls.with_native_roots()),
    };
    endpoint.map_err(|error| bad(innermost(&error)))
}

fn authorization(token: &Secret) -> Result<MetadataValue<Ascii>> {
    let value = MetadataValue::try_from([b"Bearer ", token.as_bytes()].concat());
    value.map_err(|_| Error::Invalid("the token has bytes that a header cannot contain".into()))
}

fn path<M: Method>() -> PathAndQuery {
    PathAndQuery::from_static(M::PATH)
}
