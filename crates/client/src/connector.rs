//! Opens TCP connections and watches two things on them: that bytes move, and that a server that is called without TLS does not
//! answer in TLS.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use shoal_api::within;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::{self, Channel, Endpoint};
use tower::{Service, ServiceExt};

/// Fewer bytes than this within a timeout are no progress: pings of HTTP/2 are shorter.
const PROGRESS_BYTES_MIN: u64 = 4 << 10;

/// The first two bytes of a TLS alert, with which a TLS server answers plain text.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// The bytes that moved over all connections to one server, in both directions; and whether it answered plain text with TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    bytes: AtomicU64,
    tls_alert: AtomicBool,
}

impl Progress {
    /// The current count, for a later comparison.
    pub(crate) fn mark(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Returns true if enough bytes have moved since `mark`.
    pub(crate) fn is_past(&self, mark: u64) -> bool {
        self.mark().wrapping_sub(mark) >= PROGRESS_BYTES_MIN
    }

    /// The result of `work`, or `None` after `limit` without progress.
    pub(crate) async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let mark = self.mark();
            match within(limit, work.as_mut()).await {
                None if self.is_past(mark) => {}
                result => return result,
            }
        }
    }

    /// Returns true if the server speaks TLS, and this client does not: then it accepts no call.
    pub(crate) fn is_tls(&self) -> bool {
        self.0.tls_alert.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A connection whose bytes are counted.
pub(crate) struct Connection {
    stream: TcpStream,
    progress: Progress,
    /// Nothing has been received yet on a connection without TLS.
    awaits_first: bool,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = target.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, target))?;
        let came = target.filled().get(before..).unwrap_or_default();
        if std::mem::take(&mut self.awaits_first) && came.starts_with(&TLS_ALERT) {
            self.progress.0.tls_alert.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the server answers in TLS")));
        }
        self.progress.add(came.len());
        Poll::Ready(Ok(()))
    }
}

impl Connection {
    fn sent(&self, sent: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &sent {
            Poll::Ready(Ok(bytes)) => self.progress.add(*bytes),
            // A server that closes after its alert may break a write before anybody reads the alert.
            Poll::Ready(Err(_)) if self.awaits_first => {
                if self.has_alert().unwrap_or(false) {
                    self.progress.0.tls_alert.store(true, Ordering::Relaxed);
                }
            }
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        sent
    }

    /// Looks for an alert in the socket itself: the runtime may not have seen yet that it is readable.
    fn has_alert(&self) -> io::Result<bool> {
        let socket = std::net::TcpStream::from(self.stream.as_fd().try_clone_to_owned()?);
        let mut first = [0; TLS_ALERT.len()];
        let count = socket.peek(&mut first)?;
        Ok(first.get(..count) == Some(&TLS_ALERT[..]))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.sent(sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Connects to an endpoint without TLS, as [`Client`](crate::Client) does. The future is boxed, so that a program that measures
/// channels does not compile the transport again.
#[must_use]
pub fn connect(
    endpoint: Endpoint,
) -> Pin<Box<dyn Future<Output = Result<Channel, transport::Error>> + Send>> {
    Box::pin(async move { endpoint.connect_with_connector(counting(None, Progress::default(), false)).await })
}

/// Opens TCP connections without Nagle's delay, and without a pace on this machine ([`shoal_base::set_congestion_control`]). They
/// count in `progress`. The addresses of a name share `timeout`, so that an unresponsive address leaves time for the next.
pub(crate) fn counting(
    timeout: Option<Duration>,
    progress: Progress,
    is_tls: bool,
) -> impl Service<
    Uri,
    Response = TokioIo<Connection>,
    Error: std::error::Error + Send + Sync + 'static,
    Future: Send,
> + Clone
+ Send {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(timeout);
    http.map_response(move |opened: TokioIo<TcpStream>| {
        let (stream, progress) = (opened.into_inner(), progress.clone());
        // A closed connection has no address, and the first call notices it.
        if let Ok(peer) = stream.peer_addr() {
            shoal_base::set_congestion_control(&stream, peer);
        }
        TokioIo::new(Connection { stream, progress, awaits_first: !is_tls })
    })
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    /// A slow link is not a silent server.
    #[tokio::test]
    async fn progressing_request_does_not_time_out() {
        let progress = Progress::default();
        let slow = async {
            for _ in 0..8 {
                sleep(LIMIT / 2).await;
                progress.add(PROGRESS_BYTES_MIN as usize);
            }
        };
        assert_eq!(progress.within(LIMIT, slow).await, Some(()));
        let pings = async {
            loop {
                sleep(LIMIT / 2).await;
                progress.add(17);
            }
        };
        assert_eq!(progress.within::<()>(LIMIT, pings).await, None);
    }

    /// Symptom: `put` to a TLS server over plain text sometimes had an unknown outcome and "broken pipe". Cause: the server closed with
    /// bytes unread, and the write failed before the alert was read.
    #[tokio::test]
    async fn alert_is_seen_although_a_write_breaks() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let progress = Progress::default();
        let mut connection = Connection { stream, progress: progress.clone(), awaits_first: true };
        let (mut server, _) = listener.accept().await.unwrap();
        connection.write_all(b"PRI * HTTP/2.0").await.unwrap();
        server.readable().await.unwrap();
        server.write_all(&[0x15, 0x03, 0x03, 0, 2, 2, 22]).await.unwrap();
        drop(server);
        while poll_fn(|context| Pin::new(&mut connection).poll_write(context, b"more")).await.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(progress.is_tls());
    }
}
