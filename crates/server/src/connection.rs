//! One connection: HTTP/2 on it, and the patience with it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::auth::Caller;
use crate::dispatch::Dispatch;
use crate::flow::ConnectionFlow;
use crate::options::Limits;

/// HTTP/2 window of one stream, in bytes: a value of 1 MiB is never stopped for a round trip. Fixed windows, as adaptive
/// ones cost pings and only pay on long fat networks.
const STREAM_WINDOW_BYTES: u32 = (1 << 20) + (64 << 10);

/// HTTP/2 window of one connection, in bytes: 64 values of 64 KiB on their way at once.
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// The longest HTTP/2 frame that is accepted, in bytes. Measured for puts of 64 KiB, 100 in flight, median CPU a put on
/// the server (busy machine, 2026-11): 60 us with frames of 16 KiB, 50 with 32, 52 with 64, about as much above.
const FRAME_BYTES_MAX: u32 = 32 << 10;

/// Headers of one request, in bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// A peer that does not answer pings is gone: how often it is asked, and how long it may take.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Pause between two looks at a greeting that has come in part only.
const GREETING_PAUSE: Duration = Duration::from_millis(20);

/// Length of HTTP/2's connection preface, in bytes.
const PREFACE_BYTES: usize = 24;

/// Serves `stream` until it ends, `drain` becomes true and all requests are answered, or its peer is too slow.
pub(crate) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    dispatch: Arc<Dispatch>,
    limits: &Limits,
    mut drain: watch::Receiver<bool>,
) {
    if !greeted(&stream, limits.greeting_max, &mut drain).await {
        tracing::debug!(%peer, "closed: it does not speak HTTP/2");
        return;
    }
    let flow = dispatch.flow.connection();
    let caller = Caller { address: peer.ip() };
    let requests = service_fn(|request: http::Request<Incoming>| {
        let (dispatch, flow) = (Arc::clone(&dispatch), Arc::clone(&flow));
        async move { Ok::<_, Infallible>(dispatch.answer(caller, flow, request).await) }
    });
    let mut connection = pin!(http(limits).serve_connection(TokioIo::new(stream), requests));
    let mut stalled = pin!(stalled(&flow, limits.silence_max));
    let mut draining = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "closed");
                }
                return;
            }
            () = stalled.as_mut() => {
                tracing::warn!(%peer, "closed: it did not take its answers for {} s", limits.silence_max.as_secs_f64());
                return;
            }
            _ = drain.wait_for(|drain| *drain), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

fn http(limits: &Limits) -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .auto_date_header(false);
    http
}

/// Waits for the peer's first bytes, which stay where they are: whether it began to speak HTTP/2 in time. A peer that
/// says nothing, or a byte a minute, must not hold a connection.
async fn greeted(stream: &TcpStream, greeting_max: Duration, drain: &mut watch::Receiver<bool>) -> bool {
    let preface = async {
        let mut bytes = [0; PREFACE_BYTES];
        loop {
            match stream.peek(&mut bytes).await {
                Ok(PREFACE_BYTES) => return true,
                Ok(0) | Err(_) => return false,
                Ok(_) => sleep(GREETING_PAUSE).await,
            }
        }
    };
    tokio::select! {
        greeted = timeout(greeting_max, preface) => greeted.unwrap_or(false),
        _ = drain.wait_for(|drain| *drain) => false,
    }
}

/// Ends where the peer has not taken a byte of its answers for `silence_max`.
async fn stalled(flow: &ConnectionFlow, silence_max: Duration) {
    let mut ticks = interval(silence_max / 4);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waits: Option<(u64, Instant)> = None;
    loop {
        let now = ticks.tick().await;
        waits = match (flow.waits_at(), waits) {
            (Some(at), Some((before, since))) if at == before => {
                if now.duration_since(since) >= silence_max {
                    return;
                }
                Some((at, since))
            }
            (Some(at), _) => Some((at, now)),
            (None, _) => None,
        };
    }
}
