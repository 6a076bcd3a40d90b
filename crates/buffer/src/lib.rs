//! The message buffer: a logically linear byte array made of chunks (seeds 000 and 002).
//!
//! *Internal* chunks hold bytes that were copied in; *external* chunks refer to memory that somebody else owns (a
//! pool frame, a received message) and release it by dropping. A value travels from the pool to the socket as external
//! chunks: it is never copied.

use bytes::Bytes;
use smallvec::SmallVec;

/// A message or a value, in chunks.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    chunks: SmallVec<[Bytes; 2]>,
    bytes: usize,
}

impl Buffer {
    /// No chunks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
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

    /// Appends a chunk that refers to `chunk`'s memory.
    pub fn append_external(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.bytes += chunk.len();
            self.chunks.push(chunk);
        }
    }

    /// Appends a copy of `bytes`.
    pub fn append_copy(&mut self, bytes: &[u8]) {
        self.append_external(Bytes::copy_from_slice(bytes));
    }

    /// The chunks, in order; none is empty.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().map(|chunk| &chunk[..])
    }

    /// The chunks, in order, with their owners.
    pub fn into_chunks(self) -> impl Iterator<Item = Bytes> {
        self.chunks.into_iter()
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
