//! Consuming a buffer from front to back: as a [`Buf`] and as the body of an HTTP message.
//!
//! A chunk is released as soon as it is consumed, so a frame of the pool is not pinned until the whole value is sent.

use std::convert::Infallible;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use crate::Buffer;

impl Buf for Buffer {
    #[inline]
    fn remaining(&self) -> usize {
        self.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self.first_chunk()
    }

    fn chunks_vectored<'a>(&'a self, target: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slot, chunk) in target.iter_mut().zip(self.chunks()) {
            *slot = IoSlice::new(chunk);
            count += 1;
        }
        count
    }

    /// # Panics
    /// If fewer than `count` bytes remain, as [`Buf`] demands.
    #[inline]
    fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advancing {count} bytes, but {} remain", self.len());
        self.truncate_front(count);
    }

    /// The next `count` bytes. Copied only if they are built in or span several chunks.
    ///
    /// # Panics
    /// If fewer than `count` bytes remain, as [`Buf`] demands.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        assert!(count <= self.len(), "taking {count} bytes, but {} remain", self.len());
        if count <= self.first_chunk().len() {
            return self.split_first(count);
        }
        let mut out = BytesMut::with_capacity(count);
        while out.len() < count {
            let chunk = self.first_chunk();
            let now = chunk.len().min(count - out.len());
            out.extend_from_slice(&chunk[..now]);
            self.truncate_front(now);
        }
        out.freeze()
    }
}

/// One frame with the whole buffer: the sender asks for the chunks.
impl Body for Buffer {
    type Data = Self;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self>, Infallible>>> {
        let whole = std::mem::take(self.get_mut());
        Poll::Ready((!whole.is_empty()).then(|| Ok(Frame::data(whole))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;

    fn buffer_of(pieces: &[Vec<u8>]) -> Buffer {
        let mut buffer = Buffer::new();
        for (index, piece) in pieces.iter().enumerate() {
            match index % 3 {
                0 => buffer.append_external(Bytes::copy_from_slice(piece)),
                1 => buffer.append_copy(piece),
                _ => buffer.prepend(piece),
            }
        }
        buffer
    }

    #[test]
    fn an_external_chunk_is_shared_and_then_released() {
        let chunk = Bytes::from(vec![1; 1000]);
        let mut buffer = Buffer::from(chunk.clone());
        buffer.append_copy(b"end");
        assert!(!chunk.is_unique());
        let part = buffer.copy_to_bytes(600);
        assert_eq!(part.as_ptr(), chunk.as_ptr());
        drop(part);
        buffer.advance(400);
        assert!(chunk.is_unique(), "the buffer still holds a chunk that it is through with");
        assert_eq!(buffer.copy_to_bytes(3), &b"end"[..]);
        assert!(!buffer.has_remaining() && buffer.chunk().is_empty());
    }

    #[test]
    fn allocation_moves_without_copy() {
        let mut buffer = Buffer::new();
        buffer.append_copy(&[7; 5000]);
        let at = buffer.first_chunk().as_ptr();
        let taken = buffer.copy_to_bytes(4000);
        assert_eq!((taken.as_ptr(), &taken[..]), (at, &[7; 4000][..]));
        assert_eq!(buffer.copy_to_bytes(1000), &[7; 1000][..]);
        buffer.check();
        assert!(buffer.is_empty());
    }

    #[test]
    #[should_panic(expected = "advancing 4 bytes, but 3 remain")]
    fn advance_beyond_end_panics() {
        Buffer::from(vec![0; 3]).advance(4);
    }

    #[test]
    fn a_body_is_one_frame() {
        let mut body = Buffer::from(vec![3; 700]);
        body.append_copy(b"tail");
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!((body.is_end_stream(), Body::size_hint(&body).exact()), (false, Some(704)));
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else { panic!() };
        assert_eq!(frame.into_data().unwrap().to_vec().len(), 704);
        assert!(matches!(Pin::new(&mut body).poll_frame(&mut context), Poll::Ready(None)));
        assert!(body.is_end_stream());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: crate::tests::cases(200), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn gives_the_bytes_in_order(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..700), 0..8), steps in proptest::collection::vec((0..3_u8, 0..900_usize), 0..40)) {
            let mut buffer = buffer_of(&pieces);
            let model = buffer.to_vec();
            let mut at = 0;
            for (how, count) in steps {
                let count = count.min(buffer.remaining());
                match how {
                    0 => buffer.advance(count),
                    1 => {
                        let bytes = buffer.copy_to_bytes(count);
                        prop_assert_eq!(&bytes[..], &model[at..at + count]);
                    }
                    _ => {
                        let mut target = vec![0; count];
                        buffer.copy_to_slice(&mut target);
                        prop_assert_eq!(&target, &model[at..at + count]);
                    }
                }
                at += count;
                buffer.check();
                prop_assert_eq!(buffer.remaining(), model.len() - at);
                let mut slices = [IoSlice::new(&[]); 16];
                let used = buffer.chunks_vectored(&mut slices);
                let rest: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.to_vec()).collect();
                prop_assert_eq!(&rest, &model[at..]);
            }
        }
    }
}
