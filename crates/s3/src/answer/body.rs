//! The body of an answer: references to bytes, in pieces. A value's chunks (frames of the pool, a record of the log) go to HTTP as they
//! are. An answer's share of the memory, and of the pool, is held until the body is dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use shoal_buffer::Buffer;
use shoal_engine::Error;
use shoal_http::{AnswerShare, MemoryPermit, Timer};
use shoal_metrics::RequestResult;

/// The most bytes that HTTP gets at a time: they are no longer counted here.
const PIECE_BYTES_MAX: usize = 128 << 10;

/// The rest of a value.
pub(crate) type ValuePieces = Pin<Box<dyn Stream<Item = Result<Buffer, Error>> + Send>>;

/// The body of an answer.
#[derive(Default)]
pub(crate) struct S3Body {
    /// Bytes that were read, and not handed over.
    ready: Option<Box<Buffer>>,
    /// The bytes after them.
    more: Option<ValuePieces>,
    /// Bytes that were not handed over.
    left: u64,
    share: Option<AnswerShare>,
    /// Runs until the end of a stream.
    timer: Option<Box<Timer>>,
}

impl S3Body {
    /// A document.
    pub(crate) fn of_document(document: Vec<u8>) -> Self {
        Self::of_value(Buffer::from(document), None)
    }

    /// Bytes in memory, which `permit` counts.
    pub(crate) fn of_value(value: Buffer, permit: Option<Arc<MemoryPermit>>) -> Self {
        let left = value.len() as u64;
        let ready = (left > 0).then(|| Box::new(value));
        Self { ready, left, share: permit.map(AnswerShare::new), ..Self::default() }
    }

    /// `bytes` bytes that are read piece by piece, each of which `permit` counts.
    pub(crate) fn of_pieces(pieces: ValuePieces, bytes: u64, permit: Arc<MemoryPermit>) -> Self {
        let share = Some(AnswerShare::new(permit));
        Self { more: Some(pieces), left: bytes, share, ..Self::default() }
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.left
    }

    /// Returns true if it is read while it is sent.
    pub(crate) fn is_stream(&self) -> bool {
        self.more.is_some()
    }

    /// Stops `timer` with the body.
    pub(crate) fn set_timer(&mut self, timer: Timer) {
        self.timer = Some(Box::new(timer));
    }

    fn end_timer(&mut self, result: RequestResult) {
        if let Some(mut timer) = self.timer.take() {
            timer.end(result);
        }
    }

    /// The next piece of the bytes that were read, when it is its turn.
    fn poll_ready_piece(&mut self, context: &mut Context<'_>) -> Poll<Box<Buffer>> {
        let bytes = self.ready.as_ref().map_or(0, |ready| ready.len()).min(PIECE_BYTES_MAX);
        if let Some(share) = &mut self.share {
            ready!(share.poll_turn(bytes, context));
        }
        let piece = match &mut self.ready {
            Some(rest) if rest.len() > PIECE_BYTES_MAX => Box::new(take_front(rest, PIECE_BYTES_MAX)),
            rest => rest.take().unwrap_or_default(),
        };
        self.left = self.left.saturating_sub(piece.len() as u64);
        Poll::Ready(piece)
    }
}

/// Takes the first `bytes` bytes. No external chunk is copied.
fn take_front(buffer: &mut Buffer, bytes: usize) -> Buffer {
    let mut taken = Buffer::new();
    while taken.len() < bytes {
        let count = buffer.first_chunk().len().min(bytes - taken.len());
        taken.append_external(buffer.copy_to_bytes(count));
    }
    taken
}

impl Body for S3Body {
    type Data = Box<Buffer>;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Box<Buffer>>, Error>>> {
        let this = &mut *self;
        loop {
            if this.ready.is_some() {
                let piece = ready!(this.poll_ready_piece(context));
                if this.left == 0 {
                    this.more = None;
                    this.end_timer(RequestResult::Ok);
                }
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let Some(more) = &mut this.more else { return Poll::Ready(None) };
            match ready!(more.as_mut().poll_next(context)) {
                Some(Ok(piece)) if piece.is_empty() => {}
                Some(Ok(piece)) => this.ready = Some(Box::new(piece)),
                // The head has left: the connection is cut before the announced length, so that the client notices.
                Some(Err(error)) => {
                    tracing::warn!("an answer was cut: {error}");
                    (this.more, this.left) = (None, 0);
                    this.end_timer(RequestResult::Failed);
                    return Poll::Ready(Some(Err(error)));
                }
                None => this.more = None,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_none() && self.more.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use shoal_engine::block_on;

    use super::*;

    fn frames(body: &mut S3Body) -> Vec<Result<Vec<u8>, Error>> {
        let frames = stream::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let frames = block_on(futures_util::StreamExt::collect::<Vec<_>>(frames));
        frames.into_iter().map(|frame| frame.map(|frame| frame.into_data().unwrap().to_vec())).collect()
    }

    #[test]
    fn a_value_leaves_in_pieces() {
        let value: Vec<u8> = (0..PIECE_BYTES_MAX * 2 + 5).map(|at| at as u8).collect();
        let mut body = S3Body::of_document(value.clone());
        assert_eq!(body.bytes(), value.len() as u64);
        let pieces: Vec<Vec<u8>> = frames(&mut body).into_iter().map(Result::unwrap).collect();
        assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [PIECE_BYTES_MAX, PIECE_BYTES_MAX, 5]);
        assert_eq!(pieces.concat(), value);
        assert!(body.is_end_stream() && S3Body::default().is_end_stream());
    }

    #[test]
    fn a_stream_ends_at_its_first_error() {
        let permit = || shoal_http::Flow::new(9, 9).connection().permit();
        let piece = |text: &'static [u8]| Ok(Buffer::from(text));
        let pieces = vec![piece(b"ab"), piece(b""), Err(Error::Closed), piece(b"c")];
        let mut body = S3Body::of_pieces(Box::pin(stream::iter(pieces)), 5, permit());
        let found = frames(&mut body);
        assert_eq!(found.len(), 2);
        assert!(found[0].as_ref().is_ok_and(|piece| piece == b"ab") && found[1].is_err());
        assert!(body.is_end_stream());
    }
}
