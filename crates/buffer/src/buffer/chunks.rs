//! Reading the chunks: as `Chunks`, each with its address and length at hand, or as `Part`, by the way in which it can be shared.

use std::iter::FusedIterator;
use std::slice;

use bytes::{Bytes, BytesMut};

use super::chunk::{Chunk, Owner};
use super::list::BUILT_IN;
use super::{Buffer, PREPEND_BYTES};

/// A closed chunk or the tail, by the way in which it can be shared.
pub(crate) enum Part<'a> {
    /// The bytes can only be copied.
    Internal(&'a [u8]),
    /// The bytes can be referred to for ever.
    Static(&'static [u8]),
    /// These bytes of the owner can be shared.
    Shared(&'a Bytes, &'a [u8]),
}

impl Buffer {
    /// The tail's bytes.
    #[inline(always)]
    fn tail(&self) -> &[u8] {
        // SAFETY: `tail_len` bytes are initialised and belong to the tail.
        unsafe { slice::from_raw_parts(self.tail_ptr(), self.tail_len) }
    }

    /// The `count` bytes from `offset` on, if the tail holds all of them.
    #[inline]
    pub(crate) fn range_of_tail(&self, offset: usize, count: usize) -> Option<&[u8]> {
        let skip = offset.checked_sub(self.closed_len)?;
        self.tail().get(skip..skip.checked_add(count)?)
    }

    /// The `count` bytes from `offset` on, if the buffer is only a built-in tail in its first place.
    #[inline(always)]
    pub(crate) fn range_of_short(&self, offset: usize, count: usize) -> Option<&[u8]> {
        if self.is_compound || offset.checked_add(count)? > self.tail_len {
            return None;
        }
        // SAFETY: the tail's bytes are there.
        Some(unsafe {
            let tail = self.built_in.as_ptr().cast::<u8>().add(PREPEND_BYTES);
            slice::from_raw_parts(tail.add(offset), count)
        })
    }

    /// The chunks, in order; none is empty.
    #[inline(always)]
    #[must_use]
    pub fn chunks(&self) -> Chunks<'_> {
        Chunks { buffer: self, closed: self.chunks.as_slice().iter(), is_tail_taken: false }
    }

    /// The number of chunks.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        self.chunks.as_slice().len() + usize::from(self.tail_len > 0)
    }

    /// The first chunk; empty if the buffer is.
    #[inline]
    #[must_use]
    pub fn first_chunk(&self) -> &[u8] {
        if self.chunks.is_empty() {
            return self.tail();
        }
        match self.chunks.as_slice().first() {
            // SAFETY: the chunk is one of this buffer.
            Some(chunk) => unsafe { chunk.view(self.built_in.as_ptr().cast()) },
            None => &[],
        }
    }

    /// The chunks, in order, by the way in which they can be shared; none is empty.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let built_in = self.built_in.as_ptr().cast();
        let closed = self.chunks.as_slice().iter().map(move |chunk| {
            // SAFETY: the chunk is one of this buffer.
            let view = unsafe { chunk.view(built_in) };
            match &chunk.owner {
                Owner::BuiltIn | Owner::Owned(_) => Part::Internal(view),
                // SAFETY: the bytes are static.
                Owner::Static => Part::Static(unsafe { slice::from_raw_parts(chunk.at, chunk.len) }),
                Owner::Shared(owner) => Part::Shared(owner, view),
            }
        });
        closed.chain((self.tail_len > 0).then(|| Part::Internal(self.tail())))
    }

    /// Lengths of the external chunks, in order: the memory of others that the buffer pins.
    pub fn external_lengths(&self) -> impl Iterator<Item = usize> {
        let is_external = |chunk: &&Chunk| matches!(chunk.owner, Owner::Shared(_));
        self.chunks.as_slice().iter().filter(is_external).map(|chunk| chunk.len)
    }

    /// Replaces each external chunk by a copy, so that the buffer pins no memory of others.
    pub fn own(&mut self) {
        self.owes |= !self.chunks.is_empty();
        for chunk in self.chunks.as_mut_slice() {
            if let Owner::Shared(bytes) = &chunk.owner {
                *chunk = Chunk::owned(BytesMut::from(&bytes[..]));
            }
        }
    }

    /// Writes `source` over the bytes from `offset` on, which must exist. A chunk whose memory is not the buffer's is replaced by an
    /// internal copy first.
    pub(crate) fn overwrite(&mut self, offset: usize, source: &[u8]) {
        let built_in = self.built_in.as_mut_ptr().cast::<u8>();
        let (mut skip, mut source) = (offset, source);
        self.owes |= !self.chunks.is_empty();
        for chunk in self.chunks.as_mut_slice() {
            let from = skip.min(chunk.len);
            let (now, later) = source.split_at(source.len().min(chunk.len - from));
            skip -= from;
            source = later;
            if !now.is_empty() {
                // SAFETY: the chunk is one of this buffer, which is borrowed mutably and drops the chunk's owner.
                let view = unsafe { chunk.view_mut(built_in) };
                view[from..from + now.len()].copy_from_slice(now);
            }
        }
        // SAFETY: as in `tail`; the buffer is borrowed mutably.
        let tail = unsafe { slice::from_raw_parts_mut(self.tail_mut_ptr(), self.tail_len) };
        if !source.is_empty() {
            tail[skip..skip + source.len()].copy_from_slice(source);
        }
    }

    /// Kind and length of each chunk.
    pub(super) fn kinds(&self) -> Vec<(&'static str, usize)> {
        let closed = self.chunks.as_slice().iter().map(|chunk| (chunk.kind(), chunk.len));
        closed.chain((self.tail_len > 0).then_some(("tail", self.tail_len))).collect()
    }
}

/// The chunks of a buffer; made by [`Buffer::chunks`].
#[derive(Clone)]
pub struct Chunks<'a> {
    buffer: &'a Buffer,
    closed: slice::Iter<'a, Chunk>,
    is_tail_taken: bool,
}

impl<'a> Chunks<'a> {
    /// The tail, if it is still to come and is not empty.
    #[inline(always)]
    fn rest(&self) -> Option<&'a [u8]> {
        (self.buffer.tail_len > 0 && !self.is_tail_taken).then(|| self.buffer.tail())
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if let Some(chunk) = self.closed.next() {
            // SAFETY: the chunk is one of the buffer that is borrowed for 'a, and so is the built-in storage.
            return Some(unsafe { chunk.view(self.buffer.built_in.as_ptr().cast()) });
        }
        let tail = self.rest();
        self.is_tail_taken = true;
        tail
    }

    /// Iteration over all chunks, as in `for_each`: does not test at each chunk if the tail is next or if the chunk is built in, and
    /// unrolls the first few, because a step is so short that the jump back dominates its cost.
    #[inline(always)]
    fn fold<B, F: FnMut(B, &'a [u8]) -> B>(self, initial: B, mut take: F) -> B {
        let closed = self.closed.as_slice();
        let mut all = initial;
        if self.buffer.chunks.is_simple() {
            for index in 0..BUILT_IN {
                let Some(chunk) = closed.get(index) else { break };
                // SAFETY: no chunk is built in, so each has its address; they are of the buffer that is borrowed for 'a.
                all = take(all, unsafe { chunk.view_elsewhere() });
            }
        } else {
            for chunk in closed {
                // SAFETY: as in `next`.
                all = take(all, unsafe { chunk.view(self.buffer.built_in.as_ptr().cast()) });
            }
        }
        if let Some(tail) = self.rest() { take(all, tail) } else { all }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.closed.len() + usize::from(self.rest().is_some());
        (count, Some(count))
    }
}

impl ExactSizeIterator for Chunks<'_> {}
impl FusedIterator for Chunks<'_> {}
