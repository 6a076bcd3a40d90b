//! The body of a request, for the tests of its readers.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use shoal_buffer::Buffer;
use shoal_engine::block_on;
use tonic::Status;

use crate::call::receive::receive_to_store;
use crate::call::with_value::{Valued, WithValue};

/// `bytes` in frames of `frame_bytes`, each in separate memory, as they come from the network.
pub(crate) fn frames(bytes: &[u8], frame_bytes: usize) -> Vec<Bytes> {
    bytes.chunks(frame_bytes).map(Bytes::copy_from_slice).collect()
}

/// The request in `frames`, with its value in their memory.
pub(crate) fn received<M: Valued>(frames: Vec<Bytes>) -> Result<WithValue<M::Request, Buffer>, Status> {
    let mut body = Frames(frames.into_iter());
    let WithValue { message, value } = block_on(receive_to_store::<M>(&mut body, |_, _| None))?;
    Ok(WithValue { message, value: value.into_buffer() })
}

/// The addresses of `bytes`.
pub(crate) fn range_of(bytes: &[u8]) -> Range<usize> {
    let at = bytes.as_ptr() as usize;
    at..at + bytes.len()
}

/// The number of bytes of `chunks` that are copies, outside of the memory of `sources`.
pub(crate) fn copied<'a>(chunks: impl Iterator<Item = &'a [u8]>, sources: &[Range<usize>]) -> usize {
    let lies_in = |chunk: &Range<usize>| {
        sources.iter().any(|source| source.start <= chunk.start && chunk.end <= source.end)
    };
    chunks.map(range_of).filter(|chunk| !lies_in(chunk)).map(|chunk| chunk.len()).sum()
}

/// A body in its frames, all of which have arrived.
pub(crate) struct Frames(pub(crate) std::vec::IntoIter<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.next().map(|data| Ok(Frame::data(data))))
    }
}
