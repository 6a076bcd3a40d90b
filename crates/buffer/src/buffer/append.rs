//! Appending: the critical path (`append_copy`, `alloc`), and closing the tail.
//!
//! The slow paths are out of line: the tail has room in nearly every call.

use std::mem::ManuallyDrop;
use std::slice;

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::chunk::Chunk;
use super::{ALLOCATION_BYTES_MAX, ALLOCATION_BYTES_MIN, BUILT_IN_BYTES, Buffer};

/// The longest buffer: external chunks may refer to the same memory many times, and the length must not overflow.
const LEN_MAX: usize = isize::MAX as usize;

impl Buffer {
    /// Appends `count` zeros and returns them for writing: contiguous, and without an allocation while [`room`](Self::room) suffices.
    ///
    /// # Panics
    /// If the allocation fails, as for `Vec`.
    #[inline(always)]
    pub fn alloc(&mut self, count: usize) -> &mut [u8] {
        if count > self.room() {
            self.grow(count);
        }
        // SAFETY: the tail's storage has room for `count` bytes after the tail, either by the test or from `grow`; no chunk uses them. They
        // are initialised here before a reference to them is made.
        unsafe {
            let at = self.tail_mut_ptr().add(self.tail_len);
            at.write_bytes(0, count);
            self.tail_len += count;
            slice::from_raw_parts_mut(at, count)
        }
    }

    /// Appends a copy of `bytes`, contiguously.
    ///
    /// # Panics
    /// If the allocation fails, as for `Vec`.
    #[inline(always)]
    pub fn append_copy(&mut self, bytes: &[u8]) {
        if bytes.len() > self.room() {
            self.grow(bytes.len());
        }
        // SAFETY: as in `alloc`; `bytes` cannot overlap the buffer, which is borrowed mutably.
        unsafe {
            self.tail_mut_ptr().add(self.tail_len).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.tail_len += bytes.len();
    }

    /// Ensures that the next `count` bytes are appended contiguously and without an allocation.
    ///
    /// # Panics
    /// If the allocation fails, as for `Vec`.
    #[inline]
    pub fn reserve(&mut self, count: usize) {
        if count > self.room() {
            self.grow(count);
        }
    }

    /// Closes the tail and opens one in a new allocation with room for at least `count` bytes.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, count: usize) {
        let heap = BytesMut::with_capacity(count.max(ALLOCATION_BYTES_MIN << self.doublings));
        if ALLOCATION_BYTES_MIN << self.doublings < ALLOCATION_BYTES_MAX {
            self.doublings += 1;
        }
        if self.tail_len > 0 {
            // Nothing follows in this storage: the chunk takes the whole allocation.
            self.close_storage();
        }
        self.open_tail(heap);
    }

    /// Makes `heap`, which is empty, the storage of an empty tail.
    fn open_tail(&mut self, heap: BytesMut) {
        // Drops an unused reservation.
        drop(self.take_heap());
        let heap = self.heap.write(heap);
        (self.tail_len, self.limit) = (0, heap.capacity());
        self.tail_at = heap.spare_capacity_mut().as_mut_ptr().cast();
        assert!(
            !self.is_tail_built_in(),
            "memory below {BUILT_IN_BYTES} cannot be distinguished from an offset"
        );
        (self.owes, self.is_compound) = (true, true);
    }

    /// Makes the tail a closed chunk and opens an empty tail directly after it.
    #[inline(always)]
    pub(super) fn close_tail(&mut self) {
        if self.tail_len > 0 {
            self.close_tail_slow();
        }
    }

    #[inline]
    fn close_tail_slow(&mut self) {
        if self.is_tail_built_in() {
            let end = self.tail_at.addr() + self.tail_len;
            self.close_storage();
            self.put_tail_at(end);
        } else {
            self.split_storage();
        }
    }

    /// Makes the tail and all of its storage a closed chunk. The caller provides new storage.
    #[inline]
    fn close_storage(&mut self) {
        let (at, len) = (self.tail_at.addr(), self.tail_len);
        let chunk = match self.take_heap() {
            None => Chunk::built_in(at, len),
            Some(mut heap) => {
                let start = at - heap.as_ptr().addr();
                // SAFETY: `start + len` bytes were initialised when they were appended, and are within the capacity.
                unsafe { heap.set_len(start + len) };
                heap.advance(start);
                Chunk::owned(heap)
            }
        };
        self.closed_len += len;
        self.tail_len = 0;
        self.record(chunk);
    }

    /// Makes the tail, which is in an allocation, a closed chunk, and the memory after it the next tail.
    #[cold]
    #[inline(never)]
    fn split_storage(&mut self) {
        // SAFETY: the tail is in an allocation, so `heap` is initialised, and so are the bytes up to the tail's end.
        let rest = unsafe {
            let heap = self.heap.assume_init_mut();
            let end = self.tail_at.addr() - heap.as_ptr().addr() + self.tail_len;
            heap.set_len(end);
            heap.split_off(end)
        };
        self.close_storage();
        self.open_tail(rest);
    }

    /// Appends a chunk that refers to `chunk`'s memory, even if it is short.
    ///
    /// # Panics
    /// If the buffer would be longer than `isize::MAX` bytes.
    #[inline(always)]
    pub fn append_external(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.owes = true;
            self.push(Chunk::shared(chunk));
        }
    }

    /// Appends a chunk that refers to static memory.
    ///
    /// # Panics
    /// If the buffer would be longer than `isize::MAX` bytes.
    #[inline(always)]
    pub fn append_static(&mut self, chunk: &'static [u8]) {
        if !chunk.is_empty() {
            self.push(Chunk::of_static(chunk));
        }
    }

    #[inline(always)]
    fn push(&mut self, chunk: Chunk) {
        let chunk = ManuallyDrop::new(chunk);
        assert!(!chunk.is_built_in(), "memory below {BUILT_IN_BYTES} cannot be distinguished from an offset");
        assert!(chunk.len <= LEN_MAX.saturating_sub(self.len()), "a buffer holds at most {LEN_MAX} bytes");
        self.close_tail();
        self.closed_len += chunk.len;
        self.record(ManuallyDrop::into_inner(chunk));
    }

    /// Appends a closed chunk to the list; the caller counts its bytes.
    #[inline(always)]
    fn record(&mut self, chunk: Chunk) {
        self.is_compound = true;
        if self.chunks.push(chunk) {
            self.owes = true;
        }
    }

    /// Takes over the allocation of `other`'s tail as a chunk without a copy. Returns false, and changes nothing, if that tail is built in.
    pub(crate) fn append_allocation_of(&mut self, other: &mut Self) -> bool {
        if other.tail_len == 0 || other.is_tail_built_in() {
            return false;
        }
        other.close_tail();
        if let Some(chunk) = other.chunks.pop() {
            other.closed_len -= chunk.len;
            self.owes = true;
            self.push(chunk);
        }
        true
    }
}

// SAFETY: the room is memory of the tail after its end, which nothing else uses.
unsafe impl BufMut for Buffer {
    fn remaining_mut(&self) -> usize {
        LEN_MAX.saturating_sub(self.len())
    }

    /// The room after the last byte, to read from a socket into: never empty.
    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.reserve(1);
        let room = self.room();
        // SAFETY: the tail's storage has `room` bytes after the tail; `UninitSlice` is not read from.
        unsafe { UninitSlice::from_raw_parts_mut(self.tail_mut_ptr().add(self.tail_len), room) }
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(count <= self.room(), "{count} bytes were not written: there is room for fewer");
        self.tail_len += count;
    }

    #[inline]
    fn put_slice(&mut self, bytes: &[u8]) {
        self.append_copy(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a buffer holds at most")]
    fn a_length_does_not_overflow() {
        // A buffer this long does not fit in a test's memory, even by reference, so the length is made up.
        let mut buffer = Buffer::new();
        buffer.closed_len += LEN_MAX - 10;
        buffer.append_static(b"ten bytes!");
        assert_eq!((buffer.len(), buffer.remaining_mut()), (LEN_MAX, 0));
        buffer.append_external(Bytes::from_static(b"x"));
    }

    #[test]
    #[should_panic(expected = "capacity overflow")]
    fn oversized_reserve_fails() {
        Buffer::new().reserve(usize::MAX);
    }

    #[test]
    fn failed_growth_leaves_buffer_unchanged() {
        let mut buffer = Buffer::new();
        buffer.append_copy(b"before");
        let grown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffer.reserve(usize::MAX)));
        assert!(grown.is_err());
        buffer.check();
        buffer.append_copy(b" and after");
        assert_eq!(buffer.as_contiguous(), Some(&b"before and after"[..]));
    }
}
