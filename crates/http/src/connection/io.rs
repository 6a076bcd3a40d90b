//! The byte stream below HTTP: it replays the greeting that was read already, notes when its peer takes no more, and fails if headers stay
//! incomplete.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use shoal_api::AwakeSleep;
use shoal_metrics::FrontendMetrics;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frame_time::Frames;
use crate::flow::ConnectionFlow;

/// A stream whose first bytes were read already. It notes when the peer takes no more, and fails if headers stay incomplete.
pub(super) struct Rewound<S> {
    greeting: Bytes,
    stream: S,
    flow: Arc<ConnectionFlow>,
    /// `None` if it does not speak HTTP/2: HTTP/1 checks its headers itself.
    frames: Option<Frames>,
    /// The time for headers.
    greeting_max: Duration,
    /// Runs while the rest of them is awaited.
    late: Option<AwakeSleep>,
    /// The counters of its bytes.
    metrics: Arc<FrontendMetrics>,
}

impl<S> Rewound<S> {
    /// `stream`, of which `greeting` was read.
    pub(super) fn new(
        greeting: Bytes,
        stream: S,
        flow: Arc<ConnectionFlow>,
        is_http2: bool,
        greeting_max: Duration,
        metrics: Arc<FrontendMetrics>,
    ) -> Self {
        let frames = is_http2.then(Frames::default);
        Self { greeting, stream, flow, frames, greeting_max, late: None, metrics }
    }

    /// Checks received bytes; if there are none, checks the time of the rest.
    fn look(&mut self, came: Option<&[u8]>, context: &mut Context<'_>) -> io::Result<()> {
        let Some(frames) = &mut self.frames else { return Ok(()) };
        let Some(bytes) = came else {
            if !frames.is_awaited() {
                return Ok(());
            }
            let greeting_max = self.greeting_max;
            let late = self.late.get_or_insert_with(|| AwakeSleep::new(greeting_max));
            let too_late = || io::Error::new(io::ErrorKind::TimedOut, "its headers did not end in time");
            return if Pin::new(late).poll(context).is_ready() { Err(too_late()) } else { Ok(()) };
        };
        if frames.take(bytes) {
            self.late = None;
        }
        Ok(())
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

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
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
            self.look(came, context)?;
            return read;
        }
        let count = self.greeting.len().min(target.remaining());
        target.put_slice(&self.greeting.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
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
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
