//! The listener of `--metrics`: `/metrics`, `/livez` and `/readyz` over HTTP/1.1, for a monitoring system.
//!
//! The listener needs no credentials and shows no keys or values. It takes few connections, each with a time limit, so that its
//! cost stays small for any input. Peers that take all connections, and never read an answer, do not delay a check of the
//! server's health: the oldest connection is closed for a new one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use shoal_api::{AwakeTimer, within};
use shoal_engine::Store;
use shoal_frontend::{ListenError, Listeners, listen_on_all};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::encode::render;
use crate::frontend::Metrics;
use crate::snapshot::Source;

/// The paths that are answered.
pub const PATHS: [&str; 3] = ["/metrics", "/livez", "/readyz"];

/// Connections at the same time; the oldest is closed for a further one.
const CONNECTIONS_MAX: usize = 16;
/// The longest wait for the head of a request, on an idle connection too.
const HEADERS_MAX: Duration = Duration::from_secs(10);
/// The longest life of a connection. A Prometheus server opens another one then.
const CONNECTION_MAX: Duration = Duration::from_secs(600);
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause if no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The stages in the life of a server.
#[derive(Clone, Default)]
enum Stage {
    /// The store is being opened.
    #[default]
    Opening,
    /// It serves this store.
    Serving(Store),
    /// It is shutting down.
    Stopping,
}

/// The server's stage, as the listener answers it. Clones share it.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Stage>>);

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Health({:?})", self.ready())
    }
}

impl Health {
    /// The store is open, and is served.
    pub fn serves(&self, store: Store) {
        *self.0.lock() = Stage::Serving(store);
    }

    /// The server shuts down. The store is released.
    pub fn stops(&self) {
        let before = std::mem::replace(&mut *self.0.lock(), Stage::Stopping);
        drop(before);
    }

    fn store(&self) -> Option<Store> {
        match &*self.0.lock() {
            Stage::Serving(store) => Some(store.clone()),
            _ => None,
        }
    }

    /// Returns `Ok` if the server takes requests of all kinds.
    ///
    /// # Errors
    /// The reason why it does not.
    pub fn ready(&self) -> Result<(), String> {
        let stage = self.0.lock().clone();
        match stage {
            Stage::Opening => Err("the store is being opened".into()),
            Stage::Stopping => Err("the server is stopping".into()),
            Stage::Serving(store) => match store
                .read_only_reason()
                .or_else(|| store.no_room_reason())
                .or_else(|| store.standstill_reason())
            {
                None => Ok(()),
                Some(reason) => Err(format!("the store takes no writes: {reason}")),
            },
        }
    }
}

/// A listener that has its address. Connections wait until [`Self::run`].
pub struct Listener {
    listeners: Listeners,
}

impl Listener {
    /// Listens on `address` and on `others`, the further addresses of its name. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Those of the system.
    pub fn bind(address: SocketAddr, others: &[SocketAddr]) -> Result<Self, ListenError> {
        // Anybody may read the figures.
        let listeners = listen_on_all(address, others, true, ("", ""))?;
        let listeners = Listeners::new(listeners).map_err(|error| ListenError::System { address, error })?;
        Ok(Self { listeners })
    }

    /// The listening addresses, with the actual port.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        self.listeners.addresses()
    }

    /// Answers until the future is dropped; it never completes by itself.
    pub async fn run(self, metrics: Arc<Metrics>, health: Health) {
        // The connections are closed with this future.
        let mut connections = tokio::task::JoinSet::new();
        let mut by_age = VecDeque::with_capacity(CONNECTIONS_MAX + 1);
        loop {
            match self.listeners.accept().await {
                Ok((stream, _)) => {
                    let (metrics, health) = (Arc::clone(&metrics), health.clone());
                    while connections.try_join_next().is_some() {}
                    by_age.retain(|open: &AbortHandle| !open.is_finished());
                    if by_age.len() == CONNECTIONS_MAX
                        && let Some(oldest) = by_age.pop_front()
                    {
                        oldest.abort();
                    }
                    let serving = async move { serve(stream, &metrics, &health).await };
                    by_age.push_back(connections.spawn(serving));
                }
                Err(error) => {
                    tracing::warn!(%error, "the metrics listener cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn serve(stream: TcpStream, metrics: &Arc<Metrics>, health: &Health) {
    let answer = |request: http::Request<Incoming>| {
        let answer = answer(&request, metrics, health);
        async move { Ok::<_, Infallible>(answer) }
    };
    let connection = http1::Builder::new()
        .timer(AwakeTimer)
        .header_read_timeout(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    match within(CONNECTION_MAX, connection).await {
        Some(Ok(())) | None => {}
        Some(Err(error)) => tracing::debug!(%error, "a connection of the metrics listener was closed"),
    }
}

fn answer<B>(request: &http::Request<B>, metrics: &Arc<Metrics>, health: &Health) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused =
            text(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD are answered here\n");
        refused.headers_mut().insert(header::ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/metrics" => {
            let accepted = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
            let open = accepted.is_some_and(|accepted| accepted.contains("application/openmetrics-text"));
            let is_ready = health.ready().is_ok();
            let source = Source { metrics: Arc::clone(metrics), store: health.store(), is_ready };
            match render(&source, open) {
                Ok(figures) => text(StatusCode::OK, if open { OPEN_METRICS } else { TEXT_FORMAT }, figures),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
            }
        }
        "/livez" => text(StatusCode::OK, PLAIN, "ok\n"),
        "/readyz" => match health.ready() {
            Ok(()) => text(StatusCode::OK, PLAIN, "ok\n"),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{reason}\n")),
        },
        _ => text(StatusCode::NOT_FOUND, PLAIN, format!("there is {} here\n", PATHS.join(", "))),
    }
}

fn text(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// The answer to one request over a separate connection.
    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get(address: SocketAddr, path: &str, headers: &str) -> String {
        ask(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")).await
    }

    #[tokio::test]
    async fn idle_scrapers_do_not_block_others() {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &[]).unwrap();
        let address = listener.addresses()[0];
        let running = tokio::spawn(listener.run(Arc::default(), Health::default()));
        let mut kept = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            kept.push(stream);
        }
        let asked = within(HEADERS_MAX / 2, get(address, "/livez", "")).await;
        assert!(asked.expect("nobody is held up").starts_with("HTTP/1.1 200 OK\r\n"));
        running.abort();
    }

    #[tokio::test]
    async fn it_answers_gets_of_its_paths_only() {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &[]).unwrap();
        let (address, health) = (listener.addresses()[0], Health::default());
        let running = tokio::spawn(listener.run(Arc::default(), health.clone()));
        assert!(get(address, "/livez", "").await.starts_with("HTTP/1.1 200 OK\r\n"));
        let opening = get(address, "/readyz", "").await;
        assert!(
            opening.starts_with("HTTP/1.1 503 ") && opening.ends_with("the store is being opened\n"),
            "{opening}"
        );
        health.stops();
        assert!(get(address, "/readyz", "").await.ends_with("the server is stopping\n"));
        let figures = get(address, "/metrics", "").await;
        assert!(
            figures.contains("text/plain; version=0.0.4") && figures.contains("\nshoal_ready 0"),
            "{figures}"
        );
        let open =
            get(address, "/metrics", "Accept: application/openmetrics-text;version=1.0.0,*/*\r\n").await;
        assert!(open.contains("application/openmetrics-text") && open.ends_with("# EOF\n"), "{open}");
        let elsewhere = get(address, "/", "").await;
        assert!(elsewhere.starts_with("HTTP/1.1 404 ") && elsewhere.contains("/readyz"), "{elsewhere}");
        let posted = ask(
            address,
            "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
        assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
        for noise in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
            let answer = ask(address, noise).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
        running.abort();
    }
}
