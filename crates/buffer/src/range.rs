//! Operations that are built on the buffer's critical paths: appending other buffers, ranges, copies in and out.
//!
//! Every offset and count is checked against the length without an overflow; a range that does not fit is an error, never a
//! panic. (RAMCloud's Buffer adds offset and length in 32 bits unchecked, and crashes or reads foreign memory.)
//!
//! Not here: memory and `unsafe` (`buffer`).

use std::borrow::Cow;
use std::io::IoSlice;

use bytes::Bytes;

use crate::Buffer;
use crate::buffer::Part;

/// [`Buffer::append`] copies a chunk of at most this size and refers to a longer one. Measured (`experiments message-buffer --case
/// 'refer-*'`): referring to shared memory costs 17 ns at any length (two atomic counts), copying 4 ns for 64 bytes and 8 to 12 for 256 to
/// 768, but 41 once the built-in storage is full. Half of that storage leaves room for the bytes around the chunk.
pub const COPY_BYTES_MAX: usize = 512;

/// A range reaches past the end of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}+{count} are out of range: the buffer has {len}")]
pub struct OutOfRange {
    /// The first byte of the range.
    pub offset: usize,
    /// The length of the range.
    pub count: usize,
    /// Length of the buffer.
    pub len: usize,
}

impl Buffer {
    /// Appends `chunk`: by copying if it is short (at most [`COPY_BYTES_MAX`]), else by referring to its memory.
    #[inline]
    pub fn append(&mut self, chunk: Bytes) {
        if chunk.len() <= COPY_BYTES_MAX {
            self.append_copy(&chunk);
        } else {
            self.append_external(chunk);
        }
    }

    /// Appends the contents of `other`: its external chunks and its long internal ones as they are; copies its short internal ones (at most
    /// [`COPY_BYTES_MAX`]) and its built-in ones.
    pub fn append_buffer(&mut self, mut other: Self) {
        while !other.is_empty() {
            let first = other.first_chunk();
            let count = first.len();
            if count <= COPY_BYTES_MAX && !other.is_external() {
                self.append_copy(first);
                other.truncate_front(count);
            } else if !(other.is_contiguous() && self.append_allocation_of(&mut other)) {
                self.append_external(other.split_first(count));
            } else {
                return;
            }
        }
    }

    /// Appends the `count` bytes of `other` from `offset` on: refers to its external chunks, copies its internal ones.
    ///
    /// # Errors
    /// [`OutOfRange`] if there are fewer; nothing is appended then.
    pub fn append_range(&mut self, other: &Self, offset: usize, count: usize) -> Result<(), OutOfRange> {
        other.check_range(offset, count)?;
        let (mut skip, mut rest) = (offset, count);
        for part in other.parts() {
            let (Part::Internal(bytes) | Part::Static(bytes) | Part::Shared(_, bytes)) = part;
            let from = skip.min(bytes.len());
            let to = bytes.len().min(from + rest);
            skip -= from;
            rest -= to - from;
            match part {
                Part::Internal(bytes) => self.append_copy(&bytes[from..to]),
                Part::Static(bytes) => self.append_static(&bytes[from..to]),
                Part::Shared(owner, bytes) if from < to => {
                    self.append_external(owner.slice_ref(&bytes[from..to]));
                }
                Part::Shared(..) => {}
            }
            if rest == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The `count` bytes from `offset` on as a separate buffer: refers to external chunks, copies internal ones.
    ///
    /// # Errors
    /// [`OutOfRange`] if there are fewer.
    pub fn range(&self, offset: usize, count: usize) -> Result<Self, OutOfRange> {
        let mut out = Self::new();
        out.append_range(self, offset, count)?;
        Ok(out)
    }

    /// The `count` bytes from `offset` on as one slice: copied only if they span several chunks.
    ///
    /// # Errors
    /// [`OutOfRange`] if there are fewer.
    #[inline(always)]
    pub fn contiguous(&self, offset: usize, count: usize) -> Result<Cow<'_, [u8]>, OutOfRange> {
        if let Some(bytes) = self.range_of_short(offset, count) {
            return Ok(Cow::Borrowed(bytes));
        }
        if let Some(bytes) = self.range_of_one(offset, count) {
            return Ok(Cow::Borrowed(bytes));
        }
        // A separate result type, so that the fast path above need not return its result in memory, as this one does.
        match self.range_copied(offset, count) {
            Ok(bytes) => Ok(Cow::Owned(bytes)),
            Err(error) => Err(error),
        }
    }

    /// The `count` bytes from `offset` on, if one chunk holds them.
    #[cold]
    #[inline(never)]
    fn range_of_one(&self, offset: usize, count: usize) -> Option<&[u8]> {
        if let Some(bytes) = self.range_of_tail(offset, count) {
            return Some(bytes);
        }
        let mut skip = offset;
        for chunk in self.chunks() {
            match chunk.get(skip..) {
                Some(rest) if count <= rest.len() => return Some(&rest[..count]),
                Some(rest) if !rest.is_empty() => return None,
                _ => skip -= chunk.len(),
            }
        }
        None
    }

    #[cold]
    fn range_copied(&self, offset: usize, count: usize) -> Result<Vec<u8>, OutOfRange> {
        let pieces = self.pieces(offset, count)?;
        let mut out = Vec::with_capacity(count);
        pieces.for_each(|piece| out.extend_from_slice(piece));
        Ok(out)
    }

    /// The bytes from `offset` to the end of their chunk: empty only at the end of the buffer or after it.
    #[inline]
    #[must_use]
    pub fn peek(&self, offset: usize) -> &[u8] {
        let mut skip = offset;
        for chunk in self.chunks() {
            match chunk.get(skip..) {
                Some(rest) if !rest.is_empty() => return rest,
                _ => skip -= chunk.len(),
            }
        }
        &[]
    }

    /// All bytes as one slice, if there is at most one chunk.
    #[inline]
    #[must_use]
    pub fn as_contiguous(&self) -> Option<&[u8]> {
        let first = self.first_chunk();
        (first.len() == self.len()).then_some(first)
    }

    /// Returns true if there is at most one chunk.
    #[inline]
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.as_contiguous().is_some()
    }

    /// Returns true if the first chunk is external.
    fn is_external(&self) -> bool {
        !matches!(self.parts().next(), None | Some(Part::Internal(_)))
    }

    /// Copies the bytes from `offset` on until `target` is full.
    ///
    /// # Errors
    /// [`OutOfRange`] if there are fewer; `target` is untouched then.
    #[inline]
    pub fn copy_out(&self, offset: usize, target: &mut [u8]) -> Result<(), OutOfRange> {
        self.check_range(offset, target.len())?;
        let (mut skip, mut rest) = (offset, target);
        let mut chunks = self.chunks();
        while !rest.is_empty()
            && let Some(chunk) = chunks.next()
        {
            let Some(chunk) = chunk.get(skip..) else {
                skip -= chunk.len();
                continue;
            };
            skip = 0;
            let (now, later) = rest.split_at_mut(chunk.len().min(rest.len()));
            copy(now, &chunk[..now.len()]);
            rest = later;
        }
        Ok(())
    }

    /// Writes `source` over the bytes from `offset` on. External memory is not written to: its chunk is replaced by an internal copy first.
    ///
    /// # Errors
    /// [`OutOfRange`] if there are fewer bytes than `source` has; nothing is written then.
    pub fn copy_in(&mut self, offset: usize, source: &[u8]) -> Result<(), OutOfRange> {
        self.check_range(offset, source.len())?;
        self.overwrite(offset, source);
        Ok(())
    }

    /// A contiguous copy.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        for chunk in self.chunks() {
            out.extend_from_slice(chunk);
        }
        out
    }

    /// The chunks for a vectored write, in order; none is empty.
    pub fn io_slices(&self) -> impl ExactSizeIterator<Item = IoSlice<'_>> {
        self.chunks().map(IoSlice::new)
    }

    /// The chunks, in order, with their owners. Only bytes of the built-in storage are copied.
    pub fn into_chunks(mut self) -> impl Iterator<Item = Bytes> {
        std::iter::from_fn(move || {
            let count = self.first_chunk().len();
            (count > 0).then(|| self.split_first(count))
        })
    }

    #[inline]
    const fn check_range(&self, offset: usize, count: usize) -> Result<(), OutOfRange> {
        let len = self.len();
        if count > len || offset > len - count { Err(OutOfRange { offset, count, len }) } else { Ok(()) }
    }

    /// The parts of the chunks in the range; none is empty.
    #[inline]
    fn pieces(&self, offset: usize, count: usize) -> Result<impl Iterator<Item = &[u8]>, OutOfRange> {
        self.check_range(offset, count)?;
        let (mut skip, mut rest) = (offset, count);
        let mut chunks = self.chunks();
        Ok(std::iter::from_fn(move || {
            while rest > 0 {
                let chunk = chunks.next()?;
                if skip < chunk.len() {
                    let piece = &chunk[skip..];
                    let piece = &piece[..piece.len().min(rest)];
                    skip = 0;
                    rest -= piece.len();
                    return Some(piece);
                }
                skip -= chunk.len();
            }
            None
        }))
    }
}

/// Copies a piece of the length of `target`. Short pieces, such as the fields of messages, by two words that may overlap: a call would cost
/// more.
#[inline]
fn copy(target: &mut [u8], source: &[u8]) {
    fn by_words<const N: usize>(target: &mut [u8], source: &[u8]) {
        let (Some(first), Some(last)) = (source.first_chunk::<N>(), source.last_chunk::<N>()) else { return };
        if let Some(to) = target.first_chunk_mut::<N>() {
            *to = *first;
        }
        if let Some(to) = target.last_chunk_mut::<N>() {
            *to = *last;
        }
    }
    match source.len() {
        0 => {}
        1 => by_words::<1>(target, source),
        2..4 => by_words::<2>(target, source),
        4..8 => by_words::<4>(target, source),
        8..=16 => by_words::<8>(target, source),
        _ => target.copy_from_slice(source),
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        let mut out = Self::new();
        if out.append_range(self, 0, self.len()).is_err() {
            unreachable!("the whole buffer is a range of it");
        }
        out
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        let mut buffer = Self::new();
        buffer.append_external(bytes);
        buffer
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Self {
        let mut buffer = Self::new();
        buffer.append_static(bytes);
        buffer
    }
}
