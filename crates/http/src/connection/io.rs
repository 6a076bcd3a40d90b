//! The byte stream below HTTP: it replays the greeting that was read already, notes when its peer takes no more, and ends or fails if the next
//! request stays away or incomplete.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use shoal_api::AwakeSleep;
use shoal_metrics::FrontendMetrics;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::frame_time::Frames;
use super::http1::{Due, Heads, TOO_LATE};
use crate::flow::ConnectionFlow;

/// The watch over the time of headers.
pub(super) enum Watched {
    Http1(Heads),
    Http2 {
        frames: Frames,
        /// The time for headers.
        greeting_max: Duration,
        /// Runs while the rest of them is awaited.
        late: Option<AwakeSleep>,
    },
}

/// The byte stream of a connection. One type for both kinds, so that HTTP is compiled once.
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, target),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, target),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A stream whose first bytes were read already. It notes when the peer takes no more, and fails if headers stay incomplete.
pub(super) struct Rewound {
    greeting: Bytes,
    stream: Socket,
    flow: Arc<ConnectionFlow>,
    watched: Watched,
    /// The own direction was closed.
    is_shut: bool,
    /// The counters of its bytes.
    metrics: Arc<FrontendMetrics>,
}

impl Rewound {
    /// `stream`, of which `greeting` was read.
    pub(super) fn new(
        greeting: Bytes,
        stream: Socket,
        flow: Arc<ConnectionFlow>,
        watched: Watched,
        metrics: Arc<FrontendMetrics>,
    ) -> Self {
        Self { greeting, stream, flow, watched, is_shut: false, metrics }
    }

    /// Checks received bytes; if there are none, checks the time of the rest.
    fn look(&mut self, came: Option<&[u8]>, context: &mut Context<'_>) -> io::Result<Due> {
        match (&mut self.watched, came) {
            (Watched::Http1(heads), Some(bytes)) => heads.came(bytes.len()),
            (Watched::Http1(heads), None) => return Ok(heads.poll_due(context)),
            (Watched::Http2 { frames, late, .. }, Some(bytes)) => {
                if frames.take(bytes) {
                    *late = None;
                }
            }
            (Watched::Http2 { frames, greeting_max, late }, None) if frames.is_awaited() => {
                let late = late.get_or_insert_with(|| AwakeSleep::new(*greeting_max));
                if Pin::new(late).poll(context).is_ready() {
                    return Err(too_late());
                }
            }
            (Watched::Http2 { .. }, None) => {}
        }
        Ok(Due::Nothing)
    }

    fn noted<T>(&self, written: Poll<T>) -> Poll<T> {
        self.flow.sending().note_blocked(written.is_pending());
        written
    }

    fn counted(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.metrics.add_sent(bytes as u64);
        }
        self.noted(written)
    }
}

fn too_late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its headers did not end in time")
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.greeting.is_empty() {
            let before = target.filled().len();
            let read = Pin::new(&mut self.stream).poll_read(context, target);
            let came = read.is_ready().then(|| target.filled().get(before..).unwrap_or_default());
            self.metrics.add_received(came.map_or(0, <[u8]>::len) as u64);
            return match self.look(came, context)? {
                Due::Nothing => read,
                // As if the peer had closed.
                Due::Close => Poll::Ready(Ok(())),
                Due::Refuse => {
                    // No answer is under way. A peer that takes nothing gets none.
                    let stream = Pin::new(&mut self.stream);
                    if let Poll::Ready(Ok(_)) = stream.poll_write(context, TOO_LATE) {
                        let _ = Pin::new(&mut self.stream).poll_flush(context);
                    }
                    Poll::Ready(Err(too_late()))
                }
            };
        }
        let count = self.greeting.len().min(target.remaining());
        target.put_slice(&self.greeting.split_to(count));
        if let Watched::Http1(heads) = &mut self.watched {
            heads.came(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.counted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.counted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.noted(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, watched, is_shut, .. } = &mut *self;
        if !*is_shut {
            ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
            *is_shut = true;
        }
        if let Watched::Http1(heads) = watched {
            ready!(heads.poll_linger(stream, context));
        }
        Poll::Ready(Ok(()))
    }
}
