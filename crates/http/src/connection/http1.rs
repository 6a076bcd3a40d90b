//! HTTP/1.1 on a connection: the limits of a head, the time of the next one, and refusals that reach their client.
//!
//! hyper parses: it answers a head that is malformed with 400, and asks for a body (100) when the protocol reads it. A client may be silent
//! between two requests, and must send a started head in time. A client whose body was refused may still be sending when the connection
//! closes: the rest is read for a while, because the system would otherwise reset the connection, and the client could lose the answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use shoal_api::AwakeSleep;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::yield_now;

use crate::flow::ConnectionFlow;
use crate::limits::{Http1Limits, ServerLimits};
use crate::serve::{AnswerBody, HttpProtocol, Peer};

/// Bytes that HTTP/1.1 reads at a time, headers included.
const BUFFER_BYTES: usize = 64 << 10;

/// Bytes of a refused body that are read after its answer, and the time for them.
const LINGER_BYTES_MAX: usize = 64 << 10;
const LINGER_MAX: Duration = Duration::from_secs(2);

/// The answer to a head that did not end in time.
pub(super) const TOO_LATE: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

pub(super) fn builder(limits: &ServerLimits) -> http1::Builder {
    let Http1Limits { headers_max, header_bytes_max, target_bytes_max, .. } = limits.http1;
    let mut http = http1::Builder::new();
    http.header_read_timeout(None)
        .max_headers(headers_max)
        .max_header_size(header_bytes_max + target_bytes_max)
        .max_buf_size(BUFFER_BYTES)
        .auto_date_header(false);
    http
}

/// The progress of a connection through its requests.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// True from the end of a head to the end of the answer.
    is_running: AtomicBool,
    /// Requests whose heads have come.
    requests: AtomicU32,
    /// The last of them has a body.
    has_body: AtomicBool,
}

/// A request that is under way, until this is dropped.
pub(super) struct Running(Arc<Progress>);

impl Running {
    fn start(progress: &Arc<Progress>, has_body: bool) -> Self {
        // Relaxed: one task runs the connection and its requests.
        progress.has_body.store(has_body, Ordering::Relaxed);
        progress.is_running.store(true, Ordering::Relaxed);
        progress.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(progress))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Relaxed);
    }
}

/// The state of a connection that is not in a request, to be done by its byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// It was silent for long enough.
    Close,
    /// A head did not end in time.
    Refuse,
}

/// Watches the time of heads on the byte stream of a connection.
pub(super) struct Heads {
    progress: Arc<Progress>,
    idle_max: Duration,
    head_max: Duration,
    /// A part of a head has come.
    has_begun: bool,
    /// Runs between requests, and until the end of a head that was started.
    timer: Option<AwakeSleep>,
    /// The number of requests when the next head was last awaited.
    awaited_after: u32,
    linger: Option<(usize, AwakeSleep)>,
}

impl Heads {
    pub(super) fn new(progress: Arc<Progress>, limits: &ServerLimits) -> Self {
        Self {
            progress,
            idle_max: limits.http1.idle_max,
            head_max: limits.greeting_max,
            has_begun: false,
            timer: None,
            awaited_after: 0,
            linger: None,
        }
    }

    /// Notes that the connection reads; returns true between requests.
    fn is_awaited(&mut self) -> bool {
        let requests = self.progress.requests.load(Ordering::Relaxed);
        let is_running = self.progress.is_running.load(Ordering::Relaxed);
        if is_running || requests != self.awaited_after {
            (self.has_begun, self.timer) = (false, None);
        }
        if !is_running {
            self.awaited_after = requests;
        }
        !is_running
    }

    /// Notes `bytes` that came.
    pub(super) fn came(&mut self, bytes: usize) {
        if self.is_awaited() && bytes > 0 && !self.has_begun {
            (self.has_begun, self.timer) = (true, None);
        }
    }

    /// Nothing has come: returns the action that is due then. A next head of which a part came with the request before has the time of silence, too.
    pub(super) fn poll_due(&mut self, context: &mut Context<'_>) -> Due {
        if !self.is_awaited() {
            return Due::Nothing;
        }
        let max = if self.has_begun { self.head_max } else { self.idle_max };
        let timer = self.timer.get_or_insert_with(|| AwakeSleep::new(max));
        match Pin::new(timer).poll(context) {
            Poll::Pending => Due::Nothing,
            Poll::Ready(()) if self.has_begun => Due::Refuse,
            Poll::Ready(()) => Due::Close,
        }
    }

    /// Reads the rest of a body that was refused from `stream`, whose own direction is closed. Returns at once if there is none.
    pub(super) fn poll_linger<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let is_answered = self.awaited_after == self.progress.requests.load(Ordering::Relaxed);
        if is_answered || !self.progress.has_body.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        let (left, timer) =
            self.linger.get_or_insert_with(|| (LINGER_BYTES_MAX, AwakeSleep::new(LINGER_MAX)));
        let mut bytes = [0; 4 << 10];
        while *left > 0 && Pin::new(&mut *timer).poll(context).is_pending() {
            let mut target = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut *stream).poll_read(context, &mut target));
            let came = target.filled().len();
            if read.is_err() || came == 0 {
                break;
            }
            *left = left.saturating_sub(came);
        }
        Poll::Ready(())
    }
}

/// The body of an answer, or nothing; the request is under way until it is dropped.
pub(super) struct Answered {
    body: Option<AnswerBody>,
    _running: Running,
}

impl Body for Answered {
    type Data = <AnswerBody as Body>::Data;
    type Error = <AnswerBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// The status for a head that is too large.
fn refusal<B>(request: &Request<B>, limits: &Http1Limits) -> Option<StatusCode> {
    let target_bytes = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let header_bytes: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if target_bytes > limits.target_bytes_max {
        Some(StatusCode::URI_TOO_LONG)
    } else if header_bytes > limits.header_bytes_max {
        Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
    } else {
        None
    }
}

/// Answers one request.
pub(super) async fn answer(
    protocol: &dyn HttpProtocol,
    peer: &Peer,
    flow: Arc<ConnectionFlow>,
    (progress, limits): (&Arc<Progress>, &Http1Limits),
    request: Request<Incoming>,
) -> Response<Answered> {
    let has_body = !request.body().is_end_stream();
    let running = Running::start(progress, has_body);
    // The requests of a connection of HTTP/1.1 follow each other: each is a turn.
    flow.begin_turn();
    if let Some(status) = refusal(&request, limits) {
        let mut refused = Response::new(Answered { body: None, _running: running });
        *refused.status_mut() = status;
        refused.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return refused;
    }
    let answer = protocol.serve(peer, flow, request).await;
    if has_body {
        // hyper looks at a body that the protocol has dropped before it writes the head: a refused one closes the connection.
        yield_now().await;
    }
    answer.map(|body| Answered { body: Some(body), _running: running })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use shoal_frontend::MinRate;
    use shoal_metrics::Metrics;
    use shoal_storekit::in_time;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::sleep;

    use super::*;
    use crate::capacity::Capacity;
    use crate::testing::start;

    const SHORT: Duration = Duration::from_millis(300);

    fn serve(limits: &ServerLimits) -> SocketAddr {
        start((&Capacity::new(limits), Metrics::default().grpc()), limits)
    }

    async fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// Reads up to the end of a head.
    async fn head(stream: &mut TcpStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(in_time("an answer", stream.read_u8()).await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    /// Reads until the peer closes the connection.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut rest = Vec::new();
        in_time("the end", stream.read_to_end(&mut rest)).await.unwrap();
        String::from_utf8(rest).unwrap()
    }

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    #[tokio::test]
    async fn silent_connection_is_closed_quietly() {
        let http1 = Http1Limits { idle_max: SHORT, ..Http1Limits::default() };
        let address = serve(&ServerLimits { http1, ..ServerLimits::default() });
        let mut stream = send(address, GET).await;
        for _ in 0..2 {
            assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
            sleep(SHORT / 2).await;
            stream.write_all(GET).await.unwrap();
        }
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"), "each request starts the time anew");
        let silent = Instant::now();
        assert_eq!(rest(&mut stream).await, "");
        assert!(silent.elapsed() >= SHORT / 2, "{:?}", silent.elapsed());
    }

    #[tokio::test]
    async fn head_that_does_not_end_is_answered_by_408() {
        let address = serve(&ServerLimits { greeting_max: SHORT, ..ServerLimits::default() });
        for before in [&b""[..], GET] {
            let mut stream = send(address, before).await;
            if !before.is_empty() {
                assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
                // A pause between requests is no part of a head.
                sleep(2 * SHORT).await;
            }
            let (mut reads, mut writes) = stream.into_split();
            let trickle = tokio::spawn(async move {
                for byte in GET.iter().take(20) {
                    if writes.write_u8(*byte).await.is_err() {
                        break;
                    }
                    sleep(SHORT / 8).await;
                }
                writes
            });
            let mut answer = [0; 12];
            in_time("an answer", reads.read_exact(&mut answer)).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 408");
            trickle.abort();
        }
    }

    #[tokio::test]
    async fn heads_above_the_limits_are_refused() {
        let address = serve(&ServerLimits::default());
        let with_headers = |count: usize| {
            let more = (2..=count).map(|number| format!("x-{number}: 1\r\n")).collect::<String>();
            format!("GET / HTTP/1.1\r\nhost: x\r\n{more}\r\n")
        };
        let with_header = |bytes| format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "v".repeat(bytes));
        let with_target = |bytes| format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "t".repeat(bytes));
        for (request, status) in [
            (with_headers(100), "200"),
            (with_headers(101), "431"),
            (with_header((32 << 10) - 1), "200"),
            (with_header(32 << 10), "431"),
            (with_header(200 << 10), "431"),
            (with_target((16 << 10) - 1), "200"),
            (with_target(16 << 10), "414"),
            ("GET / HTTP/1.1\r\n: \r\n\r\n".to_owned(), "400"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let (mut reads, mut writes) = stream.split();
            // A client that is refused early may fail to send the rest.
            let (_, answer) = tokio::join!(writes.write_all(request.as_bytes()), async {
                let mut answer = [0; 12];
                in_time("an answer", reads.read_exact(&mut answer)).await.map(|_| answer)
            });
            let answer = answer.unwrap();
            assert_eq!(&answer[9..], status.as_bytes(), "{} bytes", request.len());
        }
    }

    #[tokio::test]
    async fn body_is_asked_for_only_if_it_is_read() {
        let address = serve(&ServerLimits::default());
        let request = |path: &str| {
            format!("PUT {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
        };
        let mut stream = send(address, request("/collect").as_bytes()).await;
        assert_eq!(head(&mut stream).await, "HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"abc").await.unwrap();
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
        let mut refused = send(address, request("/refuse").as_bytes()).await;
        let answer = head(&mut refused).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        assert_eq!(rest(&mut refused).await, "");
    }

    /// A client that sends a body of which nothing is read gets the whole answer, and no reset while it sends 64 KiB more.
    #[tokio::test]
    async fn client_of_refused_body_reads_the_answer() {
        let address = serve(&ServerLimits::default());
        let start = b"PUT /refuse HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nstart of the body";
        let mut stream = send(address, start).await;
        // The server has answered, and closed its direction.
        sleep(SHORT).await;
        for _ in 0..12 {
            stream.write_all(&[7; 4 << 10]).await.unwrap();
            sleep(SHORT / 100).await;
        }
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("connection: close"), "{answer}");
    }

    /// Symptom: a server with an open stream of events took two seconds to stop. Cause: it waited for the rest of a body, as after a refused
    /// one, although the request had none.
    #[tokio::test]
    async fn only_the_rest_of_a_body_is_awaited() {
        for has_body in [false, true] {
            let progress = Arc::<Progress>::default();
            let mut heads = Heads::new(Arc::clone(&progress), &ServerLimits::default());
            // The answer ends, and the connection closes without a look at the next head.
            drop(Running::start(&progress, has_body));
            let (mut stream, _peer) = tokio::io::duplex(64);
            let mut context = Context::from_waker(std::task::Waker::noop());
            assert_eq!(heads.poll_linger(&mut stream, &mut context).is_pending(), has_body);
        }
    }

    /// A small body that came with its head does not cost the connection.
    #[tokio::test]
    async fn small_refused_body_keeps_the_connection() {
        let address = serve(&ServerLimits::default());
        let mut stream =
            send(address, b"PUT /refuse HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody").await;
        assert!(!head(&mut stream).await.contains("connection: close"));
        stream.write_all(GET).await.unwrap();
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn slow_body_ends_the_connection() {
        let min_rate = MinRate { silence_max: SHORT, ..MinRate::default() };
        let address = serve(&ServerLimits { min_rate, ..ServerLimits::default() });
        let mut stream = send(address, b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n").await;
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
        let mut rest = Vec::new();
        let _ = in_time("the end", stream.read_to_end(&mut rest)).await;
        assert!(rest.is_empty());
    }
}
