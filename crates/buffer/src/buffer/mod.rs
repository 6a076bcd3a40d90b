//! The buffer's memory: its chunks, the open one among them, and clearing.
//!
//! The *closed* chunks are a list. The *tail*, which follows them, is the one internal chunk that can grow; it is not in the list. It is in
//! the built-in storage or, when that is full, in an allocation. Appending needs only the tail's length (`tail_len`) and its bound
//! (`limit`): one test, `count <= limit - tail_len`, excludes every special case, and the length of the buffer follows from `tail_len` too,
//! so an append changes one word.
//!
//! Invariants (`check` in the tests):
//! - `closed_len` is the length of the closed chunks together; no closed chunk is empty.
//! - The tail's storage has `limit` bytes from the tail's first one on; its first `tail_len` ones are initialised.
//! - Built-in chunks are in the built-in storage in logical order; nothing is used below `head`. A built-in tail follows all of them.
//! - The buffer can be moved: built-in bytes are addressed relative to the buffer, never by a stored pointer.
//! - Each internal byte belongs to one chunk: an allocation may be shared by several chunks, a byte of it never.
//! - If `owes` is not set, no field has anything to drop. If `is_compound` is not set, the bytes are the `tail_len` bytes of the built-in
//!   storage that follow the room for prepending.
//! - `heap` is initialised if and only if `tail_at` is an address.
//! - An empty buffer is as new, except that room may be reserved.
//!
//! One file a noun or verb: `chunk` and `list` define the closed chunks and their storage, `append`, `prepend` and `truncate` change them,
//! `chunks` reads them.
//!
//! Not here: the safe operations on top (`range`, `body`), and limits on the size, which the receiver of a message sets.
#![allow(unsafe_code)]

mod append;
mod chunk;
mod chunks;
mod list;
mod prepend;
mod truncate;

use std::mem::MaybeUninit;
use std::{fmt, ptr};

use bytes::BytesMut;

pub use chunks::Chunks;
pub(crate) use chunks::Part;

use list::List;

/// Bytes of the storage that is part of the buffer itself. It moves with the buffer, which bounds its size: a header
/// and a short message must fit, not a value. As in RAMCloud.
pub const BUILT_IN_BYTES: usize = 1000;

/// The part of [`BUILT_IN_BYTES`] that is kept for [`Buffer::prepend`]: room for the headers of a few layers.
pub const PREPEND_BYTES: usize = 100;

/// Capacity of the first allocation for internal chunks; each further one is twice as large.
const ALLOCATION_BYTES_MIN: usize = 2 << 10;

/// The doubling stops here: a longer message wastes at most this part of its last allocation.
const ALLOCATION_BYTES_MAX: usize = 64 << 10;

/// A message or a value, in chunks.
///
/// Cloning shares external chunks and copies internal ones. Moving one copies its built-in storage, a bit more than
/// [`BUILT_IN_BYTES`]: long-lived ones are better boxed.
#[repr(C)]
pub struct Buffer {
    /// The bound on the tail's length in its storage.
    limit: usize,
    /// The tail's first byte. In the built-in storage: its offset there, smaller than any address.
    tail_at: *mut u8,
    /// The tail's length. Zero in a new buffer, as are the next fields, so a few stores make one.
    tail_len: usize,
    /// The total length of the closed chunks.
    closed_len: usize,
    /// The lowest byte of the built-in storage that is in use, less [`PREPEND_BYTES`] ([`Buffer::head`]).
    head_moved: i16,
    /// The factor between the first allocation and the next one, as a power of two.
    doublings: u8,
    /// True if a chunk has an owner, or memory was allocated: something is to be released.
    owes: bool,
    /// True if there is or was more than a built-in tail in its first place: a closed chunk, an allocation, prepended bytes, or bytes
    /// dropped at the front.
    is_compound: bool,
    chunks: List,
    /// Owner of the tail's storage if that is an allocation.
    heap: MaybeUninit<BytesMut>,
    built_in: MaybeUninit<[u8; BUILT_IN_BYTES]>,
}

// SAFETY: `tail_at` refers to memory that `heap` owns, or to nothing; nothing is changed through a shared reference.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// An empty buffer.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limit: BUILT_IN_BYTES - PREPEND_BYTES,
            tail_at: ptr::without_provenance_mut(PREPEND_BYTES),
            tail_len: 0,
            closed_len: 0,
            head_moved: 0,
            doublings: 0,
            owes: false,
            is_compound: false,
            chunks: List::new(),
            heap: MaybeUninit::uninit(),
            built_in: MaybeUninit::uninit(),
        }
    }

    /// The total length of all chunks, in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.closed_len + self.tail_len
    }

    /// Returns true if the buffer has no bytes.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of bytes that can be appended before the next allocation; they will be contiguous.
    #[inline]
    #[must_use]
    pub const fn room(&self) -> usize {
        self.limit - self.tail_len
    }

    /// Drops all chunks, and releases their memory and their owners. Room that was reserved in an empty buffer stays reserved.
    #[inline(always)]
    pub fn clear(&mut self) {
        if !self.is_empty() {
            self.rewind();
        }
    }

    /// Makes the buffer as new, with any content.
    #[inline]
    fn rewind(&mut self) {
        if self.owes {
            self.release();
        }
        self.chunks.forget();
        (self.head_moved, self.doublings, self.is_compound) = (0, 0, false);
        (self.closed_len, self.tail_len) = (0, 0);
        self.put_tail_at(PREPEND_BYTES);
    }

    /// Drops the contents of all fields. Keeps the lengths: the buffer is dropped next, or rewound.
    #[inline(never)]
    fn release(&mut self) {
        self.owes = false;
        if !self.is_tail_built_in() {
            drop(self.take_heap());
        }
        self.chunks.clear();
    }

    /// The lowest byte of the built-in storage that is in use.
    #[inline(always)]
    const fn head(&self) -> usize {
        (self.head_moved + PREPEND_BYTES as i16) as usize
    }

    #[inline(always)]
    const fn set_head(&mut self, head: usize) {
        self.head_moved = head as i16 - PREPEND_BYTES as i16;
    }

    /// Returns true if `tail_at` is an offset.
    #[inline(always)]
    fn is_tail_built_in(&self) -> bool {
        self.tail_at.addr() <= BUILT_IN_BYTES
    }

    /// Makes the built-in storage from `offset` on the tail's. The caller sets the tail's length and owner.
    #[inline(always)]
    fn put_tail_at(&mut self, offset: usize) {
        self.tail_at = ptr::without_provenance_mut(offset);
        self.limit = BUILT_IN_BYTES - offset;
    }

    /// Takes the tail's allocation. The tail has no storage then.
    fn take_heap(&mut self) -> Option<BytesMut> {
        if self.is_tail_built_in() {
            return None;
        }
        self.put_tail_at(BUILT_IN_BYTES);
        // SAFETY: `tail_at` was an address; it marks `heap` as uninitialised now.
        Some(unsafe { self.heap.assume_init_read() })
    }

    /// The tail's first byte.
    #[inline(always)]
    fn tail_ptr(&self) -> *const u8 {
        if self.is_tail_built_in() {
            self.built_in.as_ptr().cast::<u8>().wrapping_add(self.tail_at.addr())
        } else {
            self.tail_at
        }
    }

    #[inline(always)]
    fn tail_mut_ptr(&mut self) -> *mut u8 {
        if self.is_tail_built_in() {
            self.built_in.as_mut_ptr().cast::<u8>().wrapping_add(self.tail_at.addr())
        } else {
            self.tail_at
        }
    }
}

/// One test for a short message; the fields themselves have nothing to drop then.
impl Drop for Buffer {
    #[inline(always)]
    fn drop(&mut self) {
        if self.owes {
            self.release();
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

/// The kind and length of each chunk; values do not belong in messages.
impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.len()).field("chunks", &self.kinds()).finish()
    }
}

#[cfg(test)]
impl Buffer {
    /// Checks the invariants of this module, and that every byte can be read.
    pub(crate) fn check(&self) {
        assert_eq!(self.chunks().map(<[u8]>::len).sum::<usize>(), self.len(), "{self:?}");
        assert!(self.chunks().all(|chunk| !chunk.is_empty()), "{self:?}");
        assert_eq!(self.chunks().count(), self.chunk_count());
        let folded: Vec<&[u8]> = self.chunks().fold(Vec::new(), |mut all, chunk| {
            all.push(chunk);
            all
        });
        assert_eq!(folded, self.chunks().take(usize::MAX).collect::<Vec<_>>());
        assert!(self.tail_len <= self.limit && self.head() <= BUILT_IN_BYTES);
        assert_eq!(self.chunks.is_empty(), self.closed_len == 0, "{self:?}");
        let closed = self.chunks.as_slice();
        let is_simple = closed.is_empty() && self.tail_at.addr() == PREPEND_BYTES;
        assert!(self.is_compound || is_simple, "{self:?}");
        assert!(self.owes || self.is_tail_built_in() && !closed.iter().any(chunk::Chunk::owns), "{self:?}");
        let mut at = self.head();
        for chunk in closed.iter().filter(|chunk| chunk.is_built_in()) {
            assert!(!self.chunks.is_simple(), "{self:?}");
            assert!(at <= chunk.at.addr(), "built-in chunks in logical order: {self:?}");
            at = chunk.at.addr() + chunk.len;
        }
        if self.is_tail_built_in() {
            let start = self.tail_at.addr();
            assert!(at <= start, "the tail is out of date: {self:?}");
            assert_eq!(self.limit, BUILT_IN_BYTES - start, "{self:?}");
            assert!(!closed.is_empty() || start == self.head(), "prepending joins the tail: {self:?}");
            assert!(!self.is_empty() || start == PREPEND_BYTES, "empty and not as new: {self:?}");
        } else {
            // SAFETY: initialised, because `tail_at` is an address.
            let heap = unsafe { self.heap.assume_init_ref() };
            assert_eq!(heap.as_ptr().addr() + heap.capacity(), self.tail_at.addr() + self.limit);
        }
    }

    /// The kinds of the chunks, and their lengths.
    pub(crate) fn shape(&self) -> String {
        self.kinds()
            .iter()
            .map(|(kind, len)| format!("{kind}({len}) "))
            .collect::<String>()
            .trim_end()
            .to_owned()
    }
}
