//! A closed chunk: the address of its bytes, their number and their owner.
//!
//! Invariants: a chunk of a buffer is never empty; its bytes are initialised, and its owner does not move them while the chunk exists.
//!
//! Not here: the list of a buffer's chunks (`list`).

use std::{ptr, slice};

use bytes::{Buf, Bytes, BytesMut};

use super::BUILT_IN_BYTES;

/// The owner of the bytes of a closed chunk.
pub(super) enum Owner {
    /// The buffer: the chunk's `at` is an offset into the built-in storage.
    BuiltIn,
    /// None: the bytes are static.
    Static,
    /// The caller: external.
    Shared(Bytes),
    /// The buffer: internal, in an allocation.
    Owned(BytesMut),
}

/// A contiguous piece of the buffer that does not grow any more.
pub(super) struct Chunk {
    /// The first byte, which its owner does not move. For a built-in chunk: its offset in the built-in storage, smaller than any address
    /// ([`Chunk::is_built_in`]).
    pub(super) at: *const u8,
    pub(super) len: usize,
    pub(super) owner: Owner,
}

// SAFETY: `at` refers to memory of the chunk's owner, which is `Send` and `Sync` itself, or to nothing; nothing is changed through a shared
// reference.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// The `len` bytes from `start` on in the built-in storage.
    #[inline(always)]
    pub(super) const fn built_in(start: usize, len: usize) -> Self {
        Self { at: ptr::without_provenance(start), len, owner: Owner::BuiltIn }
    }

    #[inline(always)]
    pub(super) const fn of_static(bytes: &'static [u8]) -> Self {
        Self { at: bytes.as_ptr(), len: bytes.len(), owner: Owner::Static }
    }

    #[inline(always)]
    pub(super) fn shared(bytes: Bytes) -> Self {
        Self { at: bytes.as_ptr(), len: bytes.len(), owner: Owner::Shared(bytes) }
    }

    pub(super) fn owned(bytes: BytesMut) -> Self {
        Self { at: bytes.as_ptr(), len: bytes.len(), owner: Owner::Owned(bytes) }
    }

    /// The placeholder of a chunk that was taken out.
    pub(super) const fn nothing() -> Self {
        Self { at: ptr::null(), len: 0, owner: Owner::Static }
    }

    /// Returns true if `at` is an offset. `at` itself decides, because every reader has it at hand: no chunk refers to the lowest page,
    /// which no system maps (`append_external` makes sure).
    #[inline(always)]
    pub(super) fn is_built_in(&self) -> bool {
        self.at.addr() < BUILT_IN_BYTES
    }

    /// Returns true if dropping the chunk releases something.
    #[cfg(test)]
    pub(super) const fn owns(&self) -> bool {
        matches!(self.owner, Owner::Shared(_) | Owner::Owned(_))
    }

    /// The chunk's bytes.
    ///
    /// # Safety
    /// `built_in` is the built-in storage of the buffer to which the chunk belongs, and the result does not outlive
    /// a borrow of that buffer.
    #[inline(always)]
    pub(super) unsafe fn view<'a>(&self, built_in: *const u8) -> &'a [u8] {
        let at = if self.is_built_in() { built_in.wrapping_add(self.at.addr()) } else { self.at };
        // SAFETY: a chunk's bytes are initialised, and its owner does not move them.
        unsafe { slice::from_raw_parts(at, self.len) }
    }

    /// The bytes of a chunk that is not built in. The compiler learns that they are not empty: taking the last one needs no test.
    ///
    /// # Safety
    /// It belongs to a buffer and is not built in, and the result does not outlive a borrow of that buffer.
    #[inline(always)]
    pub(super) unsafe fn view_elsewhere<'a>(&self) -> &'a [u8] {
        debug_assert!(!self.is_built_in(), "a built-in chunk has no address");
        // SAFETY: a chunk of a buffer is never empty.
        unsafe { std::hint::assert_unchecked(self.len > 0) };
        // SAFETY: a chunk's bytes are initialised, and its owner does not move them.
        unsafe { slice::from_raw_parts(self.at, self.len) }
    }

    /// The chunk's bytes, mutable; copied first if the buffer does not own them.
    ///
    /// # Safety
    /// As for `view`, and that borrow is a mutable one. A chunk that is not built in has an owner to drop afterwards.
    pub(super) unsafe fn view_mut(&mut self, built_in: *mut u8) -> &mut [u8] {
        if let Owner::Static | Owner::Shared(_) = self.owner {
            // SAFETY: promised by the caller.
            *self = Self::owned(BytesMut::from(unsafe { self.view(built_in) }));
        }
        let Owner::Owned(owner) = &mut self.owner else {
            // SAFETY: built-in bytes are initialised, and this chunk's alone.
            return unsafe { slice::from_raw_parts_mut(built_in.add(self.at.addr()), self.len) };
        };
        // The mutable borrow of the owner invalidates the old pointer: ask again.
        let at = owner.as_mut_ptr();
        self.at = at;
        // SAFETY: the owner has `len` initialised bytes, which are this chunk's alone.
        unsafe { slice::from_raw_parts_mut(at, self.len) }
    }

    /// Drops the first `count` bytes; the chunk has more.
    pub(super) fn cut_front(&mut self, count: usize) {
        assert!(count < self.len, "a chunk is never empty");
        self.at = self.at.wrapping_add(count);
        self.len -= count;
        match &mut self.owner {
            Owner::BuiltIn | Owner::Static => {}
            Owner::Shared(owner) => owner.advance(count),
            Owner::Owned(owner) => owner.advance(count),
        }
    }

    /// Drops the last `count` bytes; the chunk has more.
    pub(super) fn cut_back(&mut self, count: usize) {
        assert!(count < self.len, "a chunk is never empty");
        self.len -= count;
        match &mut self.owner {
            Owner::BuiltIn | Owner::Static => {}
            Owner::Shared(owner) => owner.truncate(self.len),
            Owner::Owned(owner) => owner.truncate(self.len),
        }
    }

    pub(super) const fn kind(&self) -> &'static str {
        match self.owner {
            Owner::BuiltIn => "built-in",
            Owner::Static => "static",
            Owner::Shared(_) => "shared",
            Owner::Owned(_) => "owned",
        }
    }
}
