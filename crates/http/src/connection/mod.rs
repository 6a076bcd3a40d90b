//! One connection: TLS if it is configured, HTTP on it, and the minimum rate of its peer.
//!
//! HTTP/2 and HTTP/1.1 share a port. The first bytes distinguish them. hyper parses HTTP; `tasks.rs` runs the requests of HTTP/2, and
//! `http1.rs` those of HTTP/1.1, each of which is a call of [`serve`](crate::HttpProtocol::serve). `io.rs` and `frame_time.rs` only watch the bytes.

mod frame_time;
mod http1;
mod io;
mod tasks;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1 as http1_server, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use shoal_api::{AwakeTimer, within};
use shoal_base::awake_time;
use shoal_frontend::{name_of, rest_of_life};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rustls::TlsAcceptor;

use self::frame_time::Frames;
use self::http1::{Heads, Progress};
use self::io::{Rewound, Socket, Watched};
use self::tasks::{Cork, Spawner, WithTasks};
use crate::admission::AdmittedConnection;
use crate::flow::{ConnectionFlow, deadline_after};
use crate::limits::{FRAME_BYTES_MAX, STREAM_WINDOW_BYTES, ServerLimits};
use crate::serve::{FrontendParts, Peer};

/// Headers of one request, in bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// The interval and the timeout of pings: a peer that does not answer them is gone.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The first bytes of a client of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Streams that a client opened and reset before they were served ("rapid reset"); with more, the connection is closed.
const RESETS_WAITING_MAX: usize = 32;

/// Streams that were reset for a client's errors; with more, the connection is closed.
const RESETS_FOR_ERRORS_MAX: usize = 256;

/// Serves `stream` until it is closed, `drain` becomes true and all requests are answered, or its peer is too slow.
pub(crate) async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    admitted: Arc<AdmittedConnection>,
    parts: &FrontendParts,
) {
    let cork = Cork::of(&stream);
    let Some(acceptor) = parts.security.tls().map(TlsAcceptor::from) else {
        let peer = Arc::new(Peer { address, admitted, certificate: None, expires: None });
        return speak(Socket::Plain(stream), cork, peer, parts).await;
    };
    let mut drain = parts.drain.clone();
    let accepted = tokio::select! {
        accepted = within(parts.limits.greeting_max, acceptor.accept(stream)) => accepted,
        _ = drain.wait_for(|drain| *drain) => return,
    };
    match accepted {
        Some(Ok(stream)) => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let rest = rest_of_life(chain);
            // TLS does not check the certificates again when a session is resumed.
            if rest.is_some_and(|rest| rest.is_zero()) {
                tracing::debug!(peer = %address, "closed: its certificate has expired");
                return;
            }
            let peer = Arc::new(Peer {
                address,
                admitted,
                certificate: chain.first().map(name_of),
                expires: rest.map(deadline_after),
            });
            if let Some(name) = &peer.certificate {
                peer.admitted.set_authenticated();
                tracing::debug!(peer = %address, %name, "showed a certificate");
            }
            speak(Socket::Tls(Box::new(stream)), cork, peer, parts).await;
        }
        Some(Err(error)) => tracing::debug!(peer = %address, %error, "closed: the TLS handshake failed"),
        None => tracing::debug!(peer = %address, "closed: the TLS handshake took too long"),
    }
}

/// Speaks HTTP on `stream`.
async fn speak(mut stream: Socket, cork: Cork, peer: Arc<Peer>, parts: &FrontendParts) {
    let FrontendParts { protocol, capacity, limits, .. } = parts;
    let mut drain = parts.drain.clone();
    let Some(greeting) = greeting(&mut stream, limits.greeting_max, &mut drain).await else {
        tracing::debug!(peer = %peer.address, "closed: it does not speak HTTP");
        return;
    };
    let is_http2 = greeting.as_slice() == PREFACE;
    let flow = capacity.flow().connection();
    let progress = Arc::<Progress>::default();
    let watched = match is_http2 {
        true => Watched::Http2 { frames: Frames::default(), greeting_max: limits.greeting_max, late: None },
        false => Watched::Http1(Heads::new(Arc::clone(&progress), limits)),
    };
    let stream =
        Rewound::new(greeting.into(), stream, Arc::clone(&flow), watched, Arc::clone(&parts.metrics));
    let stream = TokioIo::new(stream);
    let bounds = Bounds { limits, flow: &flow, admitted: &peer.admitted, expires: peer.expires, drain };
    let ended = if is_http2 {
        let requests = service_fn(|request: http::Request<Incoming>| {
            let (protocol, flow, peer) = (Arc::clone(protocol), Arc::clone(&flow), Arc::clone(&peer));
            async move { Ok::<_, Infallible>(protocol.serve(&peer, flow, request).await) }
        });
        let spawner = Spawner::default();
        let connection = Box::pin(http2(limits, spawner.clone()).serve_connection(stream, requests));
        let (protocol, flow) = (Arc::clone(protocol), Arc::clone(&flow));
        let connection = WithTasks::new(connection, spawner, protocol, capacity, flow, cork);
        let connection = pin!(connection);
        bounds.drive(connection, |mut all| all.connection().as_mut().graceful_shutdown()).await
    } else {
        let requests = service_fn(|request: http::Request<Incoming>| {
            let (flow, progress, peer) = (Arc::clone(&flow), &progress, &peer);
            let answer = http1::answer(&**protocol, peer, flow, (progress, &limits.http1), request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let connection = pin!(http1::builder(limits).serve_connection(stream, requests));
        bounds.drive(connection, http1_server::Connection::graceful_shutdown).await
    };
    let silence_s = limits.min_rate.silence_max.as_secs_f64();
    match ended {
        Ended::Closed(Ok(())) => {}
        Ended::Closed(Err(error)) => tracing::debug!(peer = %peer.address, %error, "closed"),
        Ended::Stalled => {
            tracing::warn!(peer = %peer.address, "closed: it did not read its answers for {silence_s} s");
        }
        Ended::Expired => tracing::info!(peer = %peer.address, "closed: its certificate has expired"),
    }
}

/// The reason for the end of a connection.
enum Ended {
    Closed(hyper::Result<()>),
    /// Its peer did not take its answers.
    Stalled,
    /// Its peer's certificate expired, and requests were still under way after the time to finish.
    Expired,
}

/// The events that close a connection besides its two sides.
struct Bounds<'a> {
    limits: &'a ServerLimits,
    flow: &'a ConnectionFlow,
    admitted: &'a AdmittedConnection,
    expires: Option<Instant>,
    drain: watch::Receiver<bool>,
}

impl Bounds<'_> {
    /// Runs `connection` to its end.
    async fn drive<C: Future<Output = hyper::Result<()>>>(
        mut self,
        mut connection: Pin<&mut C>,
        end: impl Fn(Pin<&mut C>),
    ) -> Ended {
        let mut stalled = pin!(stalled(self.flow, self.limits.min_rate.silence_max));
        let mut expired = pin!(until(self.expires));
        let mut overdue = pin!(self.admitted.overdue());
        let mut cut = pin!(until(self.expires.map(|expires| expires + self.limits.drain_max)));
        let mut draining = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => return Ended::Closed(ended),
                () = stalled.as_mut() => return Ended::Stalled,
                () = cut.as_mut() => return Ended::Expired,
                () = expired.as_mut(), if !draining => draining = true,
                // A client that is only too late learns that none of its requests started.
                () = overdue.as_mut(), if !draining => draining = true,
                _ = self.drain.wait_for(|drain| *drain), if !draining => draining = true,
            }
            // A peer that has another certificate comes back with it.
            end(connection.as_mut());
        }
    }
}

/// Completes at `time`; never if there is none.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn http2(limits: &ServerLimits, spawner: Spawner) -> http2::Builder<Spawner> {
    let mut http = http2::Builder::new(spawner);
    http.timer(AwakeTimer)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits.connection_window_bytes)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_WAITING_MAX)
        .max_local_error_reset_streams(RESETS_FOR_ERRORS_MAX)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .auto_date_header(false);
    http
}

/// The peer's first bytes: all of HTTP/2's preface, or enough to see that it is different. `None` if they did not come in time: a silent
/// peer, or one that sends a byte a minute, must not hold a connection.
async fn greeting<S: AsyncRead + Unpin>(
    stream: &mut S,
    greeting_max: Duration,
    drain: &mut watch::Receiver<bool>,
) -> Option<Vec<u8>> {
    let preface = async {
        let mut bytes = Vec::with_capacity(PREFACE.len());
        while bytes.len() < PREFACE.len() && PREFACE.starts_with(&bytes) {
            let room = (PREFACE.len() - bytes.len()) as u64;
            match (&mut *stream).take(room).read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
        Some(bytes)
    };
    tokio::select! {
        greeting = within(greeting_max, preface) => greeting.flatten(),
        _ = drain.wait_for(|drain| *drain) => None,
    }
}

/// Completes if the peer has not taken a byte of its answers for `silence_max`, during which this process ran.
async fn stalled(flow: &ConnectionFlow, silence_max: Duration) {
    let look = silence_max / 4;
    let mut silent = Duration::ZERO;
    let (mut before, mut since) = (flow.waits_at(), Instant::now());
    while silent < silence_max {
        sleep(look).await;
        let (waits, now) = (flow.waits_at(), Instant::now());
        let waited = awake_time(now - since, look);
        silent = if waits.is_some() && waits == before { silent + waited } else { Duration::ZERO };
        (before, since) = (waits, now);
    }
}
