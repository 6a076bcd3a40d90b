//! HTTP for the crate `object_store`: the workspace's hyper and rustls, so that no second client and no second TLS provider is built.
//!
//! A request is sent once. Its time limit covers connecting, sending and the answer's head; the body of an answer has another one, for each
//! of its pieces.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Uri;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector as TcpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tower::Service;

/// A connection that cannot be opened in this time has failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Idle connections are closed before a load balancer drops them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Most bytes of an error's body that are kept.
const ERROR_BYTES_MAX: usize = 4096;

/// An answer that is an error, and which `object_store` has no variant for.
#[derive(Debug)]
pub(super) struct StatusError {
    pub(super) status: u16,
    body: String,
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store answered with status {}: {}", self.status, self.body.trim())
    }
}

impl std::error::Error for StatusError {}

/// Opens connections, and makes clients that share them.
#[derive(Clone)]
pub(super) struct Transport {
    client: Client<Opener, HttpRequestBody>,
    time_limit: Duration,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("time_limit", &self.time_limit).finish_non_exhaustive()
    }
}

impl Transport {
    /// Connections whose requests have this time limit each.
    ///
    /// # Errors
    /// The machine's root certificates cannot be read.
    pub(super) fn new(time_limit: Duration) -> io::Result<Self> {
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let opener = Opener { tcp, tls: TlsConnector::from(Arc::new(tls_config()?)) };
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_TIMEOUT);
        Ok(Self { client: builder.build(opener), time_limit })
    }
}

fn tls_config() -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    // Without a root every https request fails with its reason; a bucket over http needs none.
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

impl HttpConnector for Transport {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Transport {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        async move {
            let time_out =
                |_| HttpError::new(HttpErrorKind::Timeout, io::Error::from(io::ErrorKind::TimedOut));
            let answer = timeout(self.time_limit, self.client.request(request)).await.map_err(time_out)?;
            let (parts, body) = answer.map_err(failure)?.into_parts();
            let body = LimitedBody { body, limit: self.time_limit, sleep: Box::pin(sleep(self.time_limit)) };
            let status = parts.status.as_u16();
            // These have a variant of their own, and 2xx and 3xx are no errors.
            if status < 400 || matches!(status, 401 | 403 | 404 | 409 | 412) {
                return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
            }
            let text = http_body_util::Limited::new(body, ERROR_BYTES_MAX).collect().await;
            let text = text.map_or_else(|_| Bytes::new(), |text| text.to_bytes());
            let body = String::from_utf8_lossy(&text).into_owned();
            Err(HttpError::new(HttpErrorKind::Unknown, StatusError { status, body }))
        }
        .boxed()
    }
}

fn failure(error: hyper_util::client::legacy::Error) -> HttpError {
    let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
    HttpError::new(kind, error)
}

/// The body of an answer, whose pieces have a time limit.
struct LimitedBody {
    body: Incoming,
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let deadline = tokio::time::Instant::now() + self.limit;
            self.sleep.as_mut().reset(deadline);
            let failed = |error| HttpError::new(HttpErrorKind::Interrupted, error);
            return Poll::Ready(frame.map(|frame| frame.map_err(failed)));
        }
        ready!(self.sleep.as_mut().poll(context));
        let error = io::Error::from(io::ErrorKind::TimedOut);
        Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, error))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Opens a connection, with TLS for https.
#[derive(Clone)]
struct Opener {
    tcp: TcpConnector,
    tls: TlsConnector,
}

impl Service<Uri> for Opener {
    type Response = TokioIo<Stream>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let is_tls = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let (opened, tls) = (self.tcp.call(uri), self.tls.clone());
        async move {
            let stream = opened.await?.into_inner();
            if !is_tls {
                return Ok(TokioIo::new(Stream::Plain(stream)));
            }
            let name = ServerName::try_from(host)?;
            let stream = timeout(CONNECT_TIMEOUT, tls.connect(name, stream)).await??;
            Ok(TokioIo::new(Stream::Tls(Box::new(stream))))
        }
        .boxed()
    }
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
