//! A closed chunk: where its bytes are, how many, and who owns them.
//!
//! Invariants: a chunk of a buffer is never empty; its bytes are initialised, and its owner keeps them where they are
//! until it is dropped.
//!
//! Not here: where the chunks of a buffer are kept (`list`).

use std::{ptr, slice};

use bytes::{Buf, Bytes, BytesMut};

use super::BUILT_IN_BYTES;

/// The owner of the bytes of a closed chunk.
pub(super) enum Owner {
    /// The buffer: the chunk's `at` is an offset into the built-in storage.
    BuiltIn,
    /// Nobody: they live as long as the program.
    Static,
    /// The caller: external.
    Shared(Bytes),
    /// The buffer: internal, in an allocation.
    Owned(BytesMut),
}

/// A contiguous piece of the buffer that does not grow any more.
pub(super) struct Chunk {
    /// The first byte, whose owner does not move it. Where the chunk is built-in: its offset in the built-in storage,
    /// which is smaller than any address ([`Chunk::is_built_in`]).
    pub(super) at: *const u8,
    pub(super) len: usize,
    pub(super) owner: Owner,
}

// SAFETY: `at` refers to memory of the chunk's owner, which is `Send` and `Sync` itself, or to nothing; nothing is
// changed through a shared reference.
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

    /// Stands where a chunk was taken out.
    pub(super) const fn nothing() -> Self {
        Self { at: ptr::null(), len: 0, owner: Owner::Static }
    }

    /// Whether `at` is an offset. Told by `at` itself, which every reader has at hand: nothing that a chunk refers to
    /// lies on the lowest page, which no system maps (`append_external` makes sure).
    #[inline(always)]
    pub(super) fn is_built_in(&self) -> bool {
        self.at.addr() < BUILT_IN_BYTES
    }

    /// Whether dropping it releases something.
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
        // SAFETY: a chunk's bytes are initialised, and its owner keeps them where they are.
        unsafe { slice::from_raw_parts(at, self.len) }
    }

    /// The chunk's bytes, where it is not built in. The caller knows that they are not nothing: asking for the last one takes no
    /// test.
    ///
    /// # Safety
    /// It belongs to a buffer and is not built in, and the result does not outlive a borrow of that buffer.
    #[inline(always)]
    pub(super) unsafe fn view_elsewhere<'a>(&self) -> &'a [u8] {
        debug_assert!(!self.is_built_in(), "a built-in chunk has no address");
        // SAFETY: a chunk of a buffer is never empty.
        unsafe { std::hint::assert_unchecked(self.len > 0) };
        // SAFETY: a chunk's bytes are initialised, and its owner keeps them where they are.
        unsafe { slice::from_raw_parts(self.at, self.len) }
    }

    /// The chunk's bytes, to be changed; in a copy of its own, where they are not the buffer's.
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
        // The mutable borrow of the owner ends what was known of its memory: ask again.
        let at = owner.as_mut_ptr();
        self.at = at;
        // SAFETY: the owner has `len` initialised bytes, which are this chunk's alone.
        unsafe { slice::from_raw_parts_mut(at, self.len) }
    }

    /// Drops the first `count` bytes of more.
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

    /// Drops the last `count` bytes of more.
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
