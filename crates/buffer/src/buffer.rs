//! The buffer: where its bytes lie and how it grows and shrinks at both ends.
//!
//! Invariants: no chunk is empty; `bytes` is the sum of the chunks' lengths; the built-in chunks lie in the built-in
//! storage in logical order without gaps, from `built_in_start` up to `built_in_end` (so room for appending and for
//! prepending is known without a search).
//!
//! Not here: writing into bytes that are in the buffer already, and limits on its size, which belong to whoever
//! receives a message.

use std::borrow::Cow;
use std::fmt;
use std::io::IoSlice;

use bytes::{Buf, Bytes};
use smallvec::SmallVec;

use crate::reader::Reader;

/// Bytes of the storage that is part of the buffer itself. It moves with the buffer, which bounds its size: a header
/// and a short message must fit, not a value.
pub const BUILT_IN_BYTES: usize = 128;

/// How many of [`BUILT_IN_BYTES`] are kept for [`Buffer::prepend`]: HTTP/2's frame header (9), gRPC's prefix (5) and
/// some room.
pub const PREPEND_BYTES: usize = 32;

/// [`Buffer::append`] copies up to so many bytes and refers to more: a short chunk costs its receiver more (an entry
/// of the vector for the socket, a pinned frame) than the copy does. RAMCloud's 500, rounded; not measured here yet.
pub const COPY_BYTES_MAX: usize = 512;

/// Capacity of the first allocation for internal chunks; each further one has twice as much.
const ALLOCATION_BYTES_MIN: usize = 1 << 10;

/// The doubling ends here.
const ALLOCATION_BYTES_MAX: usize = 64 << 10;

/// A range reaches behind the end of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}+{count} are out of range: the buffer has {len}")]
pub struct OutOfRange {
    /// The first byte that was asked for.
    pub offset: usize,
    /// How many bytes were asked for.
    pub count: usize,
    /// Length of the buffer.
    pub len: usize,
}

/// A contiguous piece of the buffer.
#[derive(Clone)]
enum Chunk {
    /// Internal, in the built-in storage from `start` up to `end`.
    BuiltIn { start: usize, end: usize },
    /// Internal, in an allocation that is never enlarged (that would copy it).
    Owned(Vec<u8>),
    /// External.
    External(Bytes),
}

/// A message or a value, in chunks.
///
/// Cloning shares external chunks and copies internal ones.
#[derive(Clone)]
pub struct Buffer {
    bytes: usize,
    built_in_start: usize,
    built_in_end: usize,
    chunks: SmallVec<[Chunk; 3]>,
    built_in: [u8; BUILT_IN_BYTES],
}

impl Buffer {
    /// No chunks.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: 0,
            built_in_start: PREPEND_BYTES,
            built_in_end: PREPEND_BYTES,
            chunks: SmallVec::new(),
            built_in: [0; BUILT_IN_BYTES],
        }
    }

    /// Length of all chunks together, in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is not a byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Appends `chunk`: by copying where it is short (at most [`COPY_BYTES_MAX`]), else by referring to its memory.
    pub fn append(&mut self, chunk: Bytes) {
        if chunk.len() <= COPY_BYTES_MAX {
            self.append_copy(&chunk);
        } else {
            self.append_external(chunk);
        }
    }

    /// Appends a chunk that refers to `chunk`'s memory, however short it is.
    pub fn append_external(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.bytes += chunk.len();
            self.chunks.push(Chunk::External(chunk));
        }
    }

    /// Appends a copy of `bytes`.
    #[inline]
    pub fn append_copy(&mut self, bytes: &[u8]) {
        match self.chunks.last_mut() {
            Some(Chunk::BuiltIn { end, .. }) if bytes.len() <= BUILT_IN_BYTES - *end => {
                let start = *end;
                *end += bytes.len();
                self.built_in_end = *end;
                self.built_in[start..*end].copy_from_slice(bytes);
                self.bytes += bytes.len();
            }
            Some(Chunk::Owned(owned)) if bytes.len() <= owned.capacity() - owned.len() => {
                owned.extend_from_slice(bytes);
                self.bytes += bytes.len();
            }
            _ => self.append_internal_chunk(bytes),
        }
    }

    /// Appends a copy of `bytes` as a chunk of its own.
    #[cold]
    fn append_internal_chunk(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.built_in_end;
        if bytes.len() <= BUILT_IN_BYTES - start {
            let end = start + bytes.len();
            self.built_in[start..end].copy_from_slice(bytes);
            self.built_in_end = end;
            self.chunks.push(Chunk::BuiltIn { start, end });
        } else {
            let mut owned = Vec::with_capacity(self.next_allocation_bytes().max(bytes.len()));
            owned.extend_from_slice(bytes);
            self.chunks.push(Chunk::Owned(owned));
        }
        self.bytes += bytes.len();
    }

    fn next_allocation_bytes(&self) -> usize {
        let last = self.chunks.iter().rev().find_map(|chunk| match chunk {
            Chunk::Owned(owned) => Some(owned.capacity()),
            _ => None,
        });
        last.map_or(ALLOCATION_BYTES_MIN, |bytes| {
            bytes.saturating_mul(2).clamp(ALLOCATION_BYTES_MIN, ALLOCATION_BYTES_MAX)
        })
    }

    /// Appends everything that `other` holds: its external chunks and its long internal ones as they are, its short
    /// internal ones (at most [`COPY_BYTES_MAX`]) by copying.
    pub fn append_buffer(&mut self, other: Self) {
        for chunk in other.chunks {
            match chunk {
                Chunk::BuiltIn { start, end } => self.append_copy(&other.built_in[start..end]),
                Chunk::Owned(owned) if owned.len() <= COPY_BYTES_MAX => self.append_copy(&owned),
                Chunk::Owned(owned) => {
                    self.bytes += owned.len();
                    self.chunks.push(Chunk::Owned(owned));
                }
                Chunk::External(chunk) => self.append_external(chunk),
            }
        }
    }

    /// Puts a copy of `bytes` in front of everything; up to [`PREPEND_BYTES`] in all without an allocation.
    pub fn prepend(&mut self, bytes: &[u8]) {
        if self.is_empty() || bytes.is_empty() {
            return self.append_copy(bytes);
        }
        if bytes.len() > self.built_in_start {
            self.chunks.insert(0, Chunk::External(Bytes::copy_from_slice(bytes)));
        } else {
            let end = self.built_in_start;
            self.built_in_start -= bytes.len();
            self.built_in[self.built_in_start..end].copy_from_slice(bytes);
            if let Some(Chunk::BuiltIn { start, .. }) = self.chunks.first_mut() {
                *start = self.built_in_start;
            } else {
                self.chunks.insert(0, Chunk::BuiltIn { start: self.built_in_start, end });
            }
        }
        self.bytes += bytes.len();
    }

    /// Drops the first `count` bytes; everything where there are not more.
    pub fn truncate_front(&mut self, count: usize) {
        if count >= self.bytes {
            return self.clear();
        }
        self.bytes -= count;
        let mut rest = count;
        let mut whole = 0;
        for chunk in &mut self.chunks {
            let len = chunk.len();
            if rest < len {
                self.built_in_start = chunk.cut_front(rest).unwrap_or(self.built_in_start);
                break;
            }
            rest -= len;
            whole += 1;
            if let Chunk::BuiltIn { end, .. } = chunk {
                self.built_in_start = *end;
            }
        }
        self.chunks.drain(..whole);
        self.reclaim_built_in();
    }

    /// Drops the last `count` bytes; everything where there are not more.
    pub fn truncate_back(&mut self, count: usize) {
        if count >= self.bytes {
            return self.clear();
        }
        self.bytes -= count;
        let mut rest = count;
        while let Some(chunk) = self.chunks.last_mut() {
            let len = chunk.len();
            if rest < len {
                self.built_in_end = chunk.cut_back(rest).unwrap_or(self.built_in_end);
                break;
            }
            rest -= len;
            if let Chunk::BuiltIn { start, .. } = chunk {
                self.built_in_end = *start;
            }
            self.chunks.pop();
        }
        self.reclaim_built_in();
    }

    /// Drops everything and releases what the chunks referred to.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.bytes = 0;
        (self.built_in_start, self.built_in_end) = (PREPEND_BYTES, PREPEND_BYTES);
    }

    /// Where no built-in chunk is left, all of the built-in storage is free.
    fn reclaim_built_in(&mut self) {
        if self.built_in_start == self.built_in_end {
            (self.built_in_start, self.built_in_end) = (PREPEND_BYTES, PREPEND_BYTES);
        }
    }

    /// The chunks, in order; none is empty.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().map(|chunk| self.slice_of(chunk))
    }

    /// The chunks for a vectored write, in order; none is empty.
    pub fn io_slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        self.chunks().map(IoSlice::new)
    }

    /// The chunks, in order, with their owners. Only bytes of the built-in storage are copied.
    pub fn into_chunks(self) -> impl Iterator<Item = Bytes> {
        let built_in = self.built_in;
        self.chunks.into_iter().map(move |chunk| match chunk {
            Chunk::BuiltIn { start, end } => Bytes::copy_from_slice(&built_in[start..end]),
            Chunk::Owned(owned) => owned.into(),
            Chunk::External(chunk) => chunk,
        })
    }

    /// Gives the bytes to code that consumes a [`Buf`]; chunks are released as they are consumed.
    #[must_use]
    pub fn into_reader(self) -> Reader {
        Reader::new(self)
    }

    /// A contiguous copy.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes);
        for chunk in self.chunks() {
            out.extend_from_slice(chunk);
        }
        out
    }

    /// Copies the bytes from `offset` on until `target` is full.
    ///
    /// # Errors
    /// [`OutOfRange`] where fewer are there; `target` is untouched then.
    pub fn copy_out(&self, offset: usize, target: &mut [u8]) -> Result<(), OutOfRange> {
        let mut rest = target;
        for piece in self.pieces(offset, rest.len())? {
            let (now, later) = rest.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            rest = later;
        }
        Ok(())
    }

    /// The `count` bytes from `offset` on as a buffer of their own: refers to external chunks, copies internal ones.
    ///
    /// # Errors
    /// [`OutOfRange`] where fewer are there.
    pub fn range(&self, offset: usize, count: usize) -> Result<Self, OutOfRange> {
        let mut out = Self::new();
        for (chunk, start, end) in self.parts(offset, count)? {
            match chunk {
                Chunk::External(bytes) => out.append_external(bytes.slice(start..end)),
                internal => out.append_copy(&self.slice_of(internal)[start..end]),
            }
        }
        Ok(out)
    }

    /// The `count` bytes from `offset` on as one slice: copied only where they lie in several chunks.
    ///
    /// # Errors
    /// [`OutOfRange`] where fewer are there.
    pub fn contiguous(&self, offset: usize, count: usize) -> Result<Cow<'_, [u8]>, OutOfRange> {
        let mut pieces = self.pieces(offset, count)?;
        let first = pieces.next().unwrap_or_default();
        if first.len() == count {
            return Ok(Cow::Borrowed(first));
        }
        let mut out = Vec::with_capacity(count);
        out.extend_from_slice(first);
        pieces.for_each(|piece| out.extend_from_slice(piece));
        Ok(Cow::Owned(out))
    }

    fn pieces(&self, offset: usize, count: usize) -> Result<impl Iterator<Item = &[u8]>, OutOfRange> {
        Ok(self.parts(offset, count)?.map(|(chunk, start, end)| &self.slice_of(chunk)[start..end]))
    }

    /// The chunks that the range touches, each with the first and the behind-last of its bytes that are meant; parts
    /// are never empty.
    fn parts(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<impl Iterator<Item = (&Chunk, usize, usize)>, OutOfRange> {
        if count > self.bytes || offset > self.bytes - count {
            return Err(OutOfRange { offset, count, len: self.bytes });
        }
        let (mut skip, mut rest) = (offset, count);
        Ok(self.chunks.iter().filter_map(move |chunk| {
            let len = chunk.len();
            let start = skip.min(len);
            let end = len.min(start + rest);
            skip -= start;
            rest -= end - start;
            (start < end).then_some((chunk, start, end))
        }))
    }

    /// The bytes of the chunk with this index; none behind the last.
    pub(crate) fn chunk(&self, index: usize) -> Option<&[u8]> {
        self.chunks.get(index).map(|chunk| self.slice_of(chunk))
    }

    /// Takes `count` bytes from `offset` on out of the chunk with this index as an external chunk, without copying
    /// where it is one. Both must be within the chunk.
    pub(crate) fn share(&self, index: usize, offset: usize, count: usize) -> Bytes {
        match &self.chunks[index] {
            Chunk::External(bytes) => bytes.slice(offset..offset + count),
            internal => Bytes::copy_from_slice(&self.slice_of(internal)[offset..offset + count]),
        }
    }

    /// Gives up the memory of the chunk with this index, which a reader has consumed.
    pub(crate) fn release(&mut self, index: usize) {
        self.chunks[index] = Chunk::BuiltIn { start: 0, end: 0 };
    }

    fn slice_of<'a>(&'a self, chunk: &'a Chunk) -> &'a [u8] {
        match chunk {
            Chunk::BuiltIn { start, end } => &self.built_in[*start..*end],
            Chunk::Owned(owned) => owned,
            Chunk::External(bytes) => bytes,
        }
    }
}

impl Chunk {
    fn len(&self) -> usize {
        match self {
            Self::BuiltIn { start, end } => end - start,
            Self::Owned(owned) => owned.len(),
            Self::External(bytes) => bytes.len(),
        }
    }

    /// Drops the first `count` bytes of more; gives the new start of a built-in chunk.
    fn cut_front(&mut self, count: usize) -> Option<usize> {
        assert!(count < self.len(), "a chunk is never empty");
        match self {
            Self::BuiltIn { start, .. } => {
                *start += count;
                return Some(*start);
            }
            Self::External(bytes) => bytes.advance(count),
            Self::Owned(_) if count == 0 => {}
            Self::Owned(owned) => {
                // The front of a vector cannot be cut off without a copy, that of shared bytes can.
                let mut bytes = Bytes::from(std::mem::take(owned));
                bytes.advance(count);
                *self = Self::External(bytes);
            }
        }
        None
    }

    /// Drops the last `count` bytes of more; gives the new end of a built-in chunk.
    fn cut_back(&mut self, count: usize) -> Option<usize> {
        let Some(len) = self.len().checked_sub(count).filter(|&len| len > 0) else {
            panic!("a chunk is never empty")
        };
        match self {
            Self::BuiltIn { start, end } => {
                *end = *start + len;
                return Some(*end);
            }
            Self::External(bytes) => bytes.truncate(len),
            Self::Owned(owned) => owned.truncate(len),
        }
        None
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("bytes", &self.bytes)
            .field("chunks", &self.chunks)
            .finish_non_exhaustive()
    }
}

/// Says what kind a chunk is and how long; values do not belong into messages.
impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::BuiltIn { .. } => "BuiltIn",
            Self::Owned(_) => "Owned",
            Self::External(_) => "External",
        };
        write!(f, "{kind}({})", self.len())
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
        Bytes::from_static(bytes).into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Buffer {
        fn check(&self) {
            assert_eq!(self.bytes, self.chunks.iter().map(Chunk::len).sum::<usize>());
            assert!(self.chunks.iter().all(|chunk| chunk.len() > 0), "a chunk is empty: {self:?}");
            let built_in = self.chunks.iter().filter_map(|chunk| match chunk {
                Chunk::BuiltIn { start, end } => Some((*start, *end)),
                _ => None,
            });
            let built_in: Vec<_> = built_in.collect();
            assert!(built_in.windows(2).all(|pair| pair[0].1 == pair[1].0), "a gap in the built-in storage");
            let ends = built_in
                .first()
                .zip(built_in.last())
                .map_or((PREPEND_BYTES, PREPEND_BYTES), |(f, l)| (f.0, l.1));
            assert_eq!((self.built_in_start, self.built_in_end), ends);
        }

        fn kinds(&self) -> String {
            format!("{:?}", self.chunks)
        }
    }

    #[test]
    fn a_short_message_is_one_built_in_chunk() {
        let mut buffer = Buffer::new();
        for byte in 0..(BUILT_IN_BYTES - PREPEND_BYTES) as u8 {
            buffer.append_copy(&[byte]);
        }
        buffer.prepend(&[7; PREPEND_BYTES]);
        assert_eq!(buffer.kinds(), "[BuiltIn(128)]");
        buffer.append_copy(&[1]);
        assert_eq!(buffer.kinds(), "[BuiltIn(128), Owned(1)]");
        buffer.prepend(&[1]);
        assert_eq!(buffer.kinds(), "[External(1), BuiltIn(128), Owned(1)]");
        buffer.check();
    }

    #[test]
    fn long_chunks_are_referred_to_and_short_ones_copied() {
        let long = Bytes::from(vec![5; COPY_BYTES_MAX + 1]);
        let mut buffer = Buffer::new();
        buffer.append(long.clone());
        buffer.append(long.slice(..8));
        assert_eq!(buffer.kinds(), "[External(513), BuiltIn(8)]");
        assert_eq!(buffer.chunks().next().unwrap().as_ptr(), long.as_ptr());

        let part = buffer.range(500, 20).unwrap();
        assert_eq!(part.kinds(), "[External(13), BuiltIn(7)]");
        assert_eq!(part.chunks().next().unwrap().as_ptr(), long[500..].as_ptr());
        assert!(matches!(buffer.contiguous(1, 512).unwrap(), Cow::Borrowed(_)));
        assert_eq!(buffer.contiguous(510, 6).unwrap(), Cow::<[u8]>::Owned(vec![5; 6]));
    }

    #[test]
    fn external_memory_is_released_when_it_is_cut_off() {
        struct Owner(std::sync::Arc<[u8; 3]>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0[..]
            }
        }
        let count = std::sync::Arc::new([1, 2, 3]);
        let mut buffer = Buffer::new();
        buffer.append_external(Bytes::from_owner(Owner(count.clone())));
        buffer.append_copy(b"tail");
        buffer.truncate_front(2);
        assert_eq!(std::sync::Arc::strong_count(&count), 2);
        buffer.truncate_front(1);
        assert_eq!(std::sync::Arc::strong_count(&count), 1);
        assert_eq!(buffer.to_vec(), b"tail");
    }

    #[test]
    fn ranges_that_overflow_are_refused() {
        // RAMCloud's Buffer adds offset and length unchecked: these crash it or read foreign memory.
        let buffer = Buffer::from(vec![0; 10]);
        assert!(buffer.contiguous(2, usize::MAX).is_err());
        assert!(buffer.range(3, usize::MAX - 1).is_err());
        assert_eq!(
            buffer.contiguous(usize::MAX, 0),
            Err(OutOfRange { offset: usize::MAX, count: 0, len: 10 })
        );
        assert_eq!(buffer.contiguous(10, 0).unwrap().len(), 0);
        let mut target = [9; 4];
        assert!(buffer.copy_out(7, &mut target).is_err());
        assert_eq!(target, [9; 4]);
    }

    #[test]
    fn many_small_appends_take_few_allocations() {
        let mut buffer = Buffer::new();
        for _ in 0..100_000 {
            buffer.append_copy(&[3; 10]);
        }
        assert_eq!(buffer.len(), 1_000_000);
        assert!(buffer.chunks().count() < 24, "{buffer:?}");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Append(Vec<u8>),
        AppendCopy(Vec<u8>),
        AppendExternal(Vec<u8>),
        AppendBuffer(Vec<(bool, Vec<u8>)>),
        Prepend(Vec<u8>),
        TruncateFront(usize),
        TruncateBack(usize),
        Range(usize, usize),
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => proptest::collection::vec(any::<u8>(), 0..40),
            1 => (any::<u8>(), 0..1500_usize).prop_map(|(byte, count)| vec![byte; count]),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            bytes().prop_map(Step::Append),
            bytes().prop_map(Step::AppendCopy),
            bytes().prop_map(Step::AppendExternal),
            proptest::collection::vec((any::<bool>(), bytes()), 0..4).prop_map(Step::AppendBuffer),
            bytes().prop_map(Step::Prepend),
            (0..300_usize).prop_map(Step::TruncateFront),
            (0..300_usize).prop_map(Step::TruncateBack),
            (0..400_usize, 0..2000_usize).prop_map(|(offset, count)| Step::Range(offset, count)),
        ]
    }

    fn buffer_of(pieces: Vec<(bool, Vec<u8>)>) -> Buffer {
        let mut buffer = Buffer::new();
        for (external, piece) in pieces {
            if external { buffer.append_external(piece.into()) } else { buffer.append_copy(&piece) }
        }
        buffer
    }

    fn apply(step: Step, buffer: &mut Buffer, model: &mut Vec<u8>) {
        match step {
            Step::Append(bytes) => {
                model.extend_from_slice(&bytes);
                buffer.append(bytes.into());
            }
            Step::AppendCopy(bytes) => {
                model.extend_from_slice(&bytes);
                buffer.append_copy(&bytes);
            }
            Step::AppendExternal(bytes) => {
                model.extend_from_slice(&bytes);
                buffer.append_external(bytes.into());
            }
            Step::AppendBuffer(pieces) => {
                pieces.iter().for_each(|(_, piece)| model.extend_from_slice(piece));
                buffer.append_buffer(buffer_of(pieces));
            }
            Step::Prepend(bytes) => {
                model.splice(..0, bytes.iter().copied());
                buffer.prepend(&bytes);
            }
            Step::TruncateFront(count) => {
                model.drain(..count.min(model.len()));
                buffer.truncate_front(count);
            }
            Step::TruncateBack(count) => {
                model.truncate(model.len().saturating_sub(count));
                buffer.truncate_back(count);
            }
            Step::Range(offset, count) => match model.get(offset..offset + count) {
                Some(part) => {
                    *model = part.to_vec();
                    *buffer = buffer.range(offset, count).unwrap();
                }
                None => assert!(buffer.range(offset, count).is_err()),
            },
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn behaves_as_a_vector(steps in proptest::collection::vec(step(), 0..30), offset in 0..200_usize, count in 0..900_usize) {
            let (mut buffer, mut model) = (Buffer::new(), Vec::new());
            for step in steps {
                apply(step, &mut buffer, &mut model);
                buffer.check();
                prop_assert_eq!(buffer.to_vec(), &model[..]);
            }
            match model.get(offset..offset + count) {
                Some(part) => {
                    let mut target = vec![0; count];
                    buffer.copy_out(offset, &mut target).unwrap();
                    prop_assert_eq!(&target, part);
                    let whole = buffer.contiguous(offset, count).unwrap();
                    prop_assert_eq!(&*whole, part);
                }
                None => prop_assert!(buffer.contiguous(offset, count).is_err()),
            }
            let slices: Vec<u8> = buffer.io_slices().flat_map(|slice| slice.to_vec()).collect();
            prop_assert_eq!(&slices, &model);
            let clone = buffer.clone();
            let owned: Vec<u8> = buffer.into_chunks().flatten().collect();
            prop_assert_eq!(&owned, &model);
            prop_assert_eq!(clone.to_vec(), model);
        }
    }
}
