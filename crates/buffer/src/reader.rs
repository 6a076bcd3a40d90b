//! Reading a buffer from front to back, as its owner.
//!
//! A chunk is released as soon as it is consumed: a frame of the pool is not pinned until the whole value was sent.

use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use crate::buffer::Buffer;

/// Consumes a [`Buffer`]; made by [`Buffer::into_reader`].
#[derive(Debug)]
pub struct Reader {
    buffer: Buffer,
    /// The chunk that is being read.
    index: usize,
    /// How much of it was read; less than its length, unless everything was read.
    offset: usize,
    remaining: usize,
}

impl Reader {
    pub(crate) fn new(buffer: Buffer) -> Self {
        let remaining = buffer.len();
        Self { buffer, index: 0, offset: 0, remaining }
    }
}

impl Buf for Reader {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.buffer.chunk(self.index).map_or(&[], |chunk| &chunk[self.offset..])
    }

    fn chunks_vectored<'a>(&'a self, target: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        let mut offset = self.offset;
        for slot in target {
            let Some(chunk) = self.buffer.chunk(self.index + used) else { break };
            *slot = IoSlice::new(&chunk[offset..]);
            offset = 0;
            used += 1;
        }
        used
    }

    /// # Panics
    /// Where fewer than `count` bytes remain, as [`Buf`] demands.
    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining, "advancing {count} bytes where {} remain", self.remaining);
        self.remaining -= count;
        self.offset += count;
        while let Some(chunk) = self.buffer.chunk(self.index) {
            if self.offset < chunk.len() {
                break;
            }
            self.offset -= chunk.len();
            self.buffer.release(self.index);
            self.index += 1;
        }
    }

    /// The next `count` bytes, without copying where they lie in one external chunk.
    ///
    /// # Panics
    /// Where fewer remain, as [`Buf`] demands.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        assert!(count <= self.remaining, "taking {count} bytes where {} remain", self.remaining);
        if count == 0 {
            return Bytes::new();
        }
        if count <= self.chunk().len() {
            let out = self.buffer.share(self.index, self.offset, count);
            self.advance(count);
            return out;
        }
        let mut out = BytesMut::with_capacity(count);
        while out.len() < count {
            let chunk = self.chunk();
            let now = chunk.len().min(count - out.len());
            out.extend_from_slice(&chunk[..now]);
            self.advance(now);
        }
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn buffer_of(pieces: &[Vec<u8>]) -> Buffer {
        let mut buffer = Buffer::new();
        for (index, piece) in pieces.iter().enumerate() {
            if index % 2 == 0 {
                buffer.append_external(Bytes::copy_from_slice(piece));
            } else {
                buffer.append_copy(piece);
            }
        }
        buffer
    }

    #[test]
    fn an_external_chunk_is_shared_and_then_released() {
        let chunk = Bytes::from(vec![1; 1000]);
        let mut buffer = Buffer::from(chunk.clone());
        buffer.append_copy(b"end");
        let mut reader = buffer.into_reader();
        assert!(!chunk.is_unique());
        let part = reader.copy_to_bytes(600);
        assert_eq!(part.as_ptr(), chunk.as_ptr());
        drop(part);
        reader.advance(400);
        assert!(chunk.is_unique(), "the reader still holds a chunk that it is through with");
        assert_eq!(reader.copy_to_bytes(3), &b"end"[..]);
        assert!(!reader.has_remaining() && reader.chunk().is_empty());
    }

    #[test]
    #[should_panic(expected = "advancing 4 bytes where 3 remain")]
    fn nobody_reads_behind_the_end() {
        Buffer::from(vec![0; 3]).into_reader().advance(4);
    }

    proptest! {
        #[test]
        fn gives_the_bytes_in_order(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8), steps in proptest::collection::vec((0..3_u8, 0..400_usize), 0..40)) {
            let model = pieces.concat();
            let mut reader = buffer_of(&pieces).into_reader();
            let mut at = 0;
            for (how, count) in steps {
                let count = count.min(reader.remaining());
                match how {
                    0 => reader.advance(count),
                    1 => {
                        let bytes = reader.copy_to_bytes(count);
                        prop_assert_eq!(&bytes[..], &model[at..at + count]);
                    }
                    _ => {
                        let mut target = vec![0; count];
                        reader.copy_to_slice(&mut target);
                        prop_assert_eq!(&target, &model[at..at + count]);
                    }
                }
                at += count;
                prop_assert_eq!(reader.remaining(), model.len() - at);
                let mut slices = [IoSlice::new(&[]); 16];
                let used = reader.chunks_vectored(&mut slices);
                let rest: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.to_vec()).collect();
                prop_assert_eq!(&rest, &model[at..]);
            }
        }
    }
}
