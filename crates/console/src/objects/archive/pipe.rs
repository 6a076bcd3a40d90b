//! Pieces of an answer from a function that writes one byte after the other.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use crate::answer::{CutError, Pieces};

/// Bytes of a piece.
pub(super) const PIECE_BYTES: usize = 128 << 10;

/// The end of the pipe into which bytes are written.
pub(super) struct Outlet {
    pieces: mpsc::Sender<Bytes>,
    buffer: Vec<u8>,
    sent: u64,
}

impl Outlet {
    /// Takes short texts.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// All bytes that were written.
    pub(super) fn written(&self) -> u64 {
        self.sent + self.buffer.len() as u64
    }

    /// Writes bytes, when the reader has taken the earlier ones.
    ///
    /// # Errors
    /// There is no reader.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> Result<(), CutError> {
        while !bytes.is_empty() {
            if self.buffer.len() >= PIECE_BYTES {
                self.flush().await?;
            }
            let count = bytes.len().min(PIECE_BYTES - self.buffer.len());
            let (now, later) = bytes.split_at(count);
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Hands over the bytes that were not.
    ///
    /// # Errors
    /// There is no reader.
    pub(super) async fn flush(&mut self) -> Result<(), CutError> {
        if !self.buffer.is_empty() {
            self.sent += self.buffer.len() as u64;
            let piece = std::mem::take(&mut self.buffer);
            self.pieces.send(piece.into()).await.map_err(|_| "nobody reads the answer")?;
        }
        Ok(())
    }
}

/// The reader's end: it runs the writer.
struct Piped {
    writer: Option<BoxFuture<'static, Result<(), CutError>>>,
    pieces: mpsc::Receiver<Bytes>,
}

impl Stream for Piped {
    type Item = Result<Bytes, CutError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Poll::Ready(Some(piece)) = self.pieces.poll_recv(context) {
                return Poll::Ready(Some(Ok(piece)));
            }
            let Some(writer) = &mut self.writer else { return Poll::Ready(None) };
            match writer.as_mut().poll(context) {
                Poll::Ready(Ok(())) => self.writer = None,
                Poll::Ready(Err(error)) => {
                    self.writer = None;
                    self.pieces.close();
                    while self.pieces.try_recv().is_ok() {}
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Pending => {
                    return match self.pieces.poll_recv(context) {
                        Poll::Ready(Some(piece)) => Poll::Ready(Some(Ok(piece))),
                        _ => Poll::Pending,
                    };
                }
            }
        }
    }
}

/// The pieces that `write` writes. An error is the last one.
pub(super) fn piped<F>(write: impl FnOnce(Outlet) -> F) -> Pieces
where
    F: Future<Output = Result<(), CutError>> + Send + 'static,
{
    let (sender, pieces) = mpsc::channel(1);
    let writer = write(Outlet { pieces: sender, buffer: Vec::new(), sent: 0 });
    Box::pin(Piped { writer: Some(Box::pin(writer)), pieces })
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn everything_that_is_written_is_read_in_pieces() {
        let content: Vec<u8> = (0..3 * PIECE_BYTES + 5).map(|at| at as u8).collect();
        let written = content.clone();
        let pieces = piped(|mut outlet| async move {
            outlet.buffer().extend_from_slice(&written[..10]);
            assert_eq!(outlet.written(), 10);
            outlet.write(&written[10..]).await?;
            assert_eq!(outlet.written(), written.len() as u64);
            outlet.flush().await
        });
        let pieces: Vec<Bytes> = pieces.map(Result::unwrap).collect().await;
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
        assert_eq!(pieces.concat(), content);
    }

    #[tokio::test]
    async fn an_error_ends_the_pieces() {
        let pieces = piped(|mut outlet| async move {
            outlet.write(b"a").await?;
            outlet.flush().await?;
            Err("broken".into())
        });
        let pieces: Vec<_> = pieces.collect().await;
        assert!(matches!(&pieces[..], [.., Err(error)] if error.to_string() == "broken"));
        assert_eq!(pieces.iter().filter(|piece| piece.is_err()).count(), 1);
    }
}
