//! The buffer's memory: its chunks, the one that is open, and the critical paths through them.
//!
//! The *closed* chunks are a list. The *tail* behind them is the one internal chunk that can grow; it is not in the
//! list. It lies in the built-in storage or, when that is full, in an allocation. All that appending has to know is
//! where the tail ends (`end`) and where its room ends (`limit`): one test, `count <= limit - end`, excludes every
//! special case, and the length of the buffer follows from `end` too, so that an append changes one word.
//!
//! Invariants (`check` in the tests):
//! - `len_base + end` (wrapping) is the length of all chunks together; no closed chunk is empty.
//! - `start <= end <= limit`, all within the tail's storage; the bytes from `start` up to `end` are initialised.
//! - Built-in chunks lie in the built-in storage in logical order; nothing is used below `head`. Where the tail is
//!   built-in, it is behind all of them.
//! - The buffer can be moved: what is built in is addressed relative to the buffer, never by a stored pointer.
//! - Each internal byte belongs to one chunk: an allocation may be shared by several chunks, a byte of it never.
//!
//! Not here: what can be done safely with these (`buffer`), and limits on the size, which belong to whoever receives a
//! message.
#![allow(unsafe_code)]

use std::mem::{ManuallyDrop, MaybeUninit};
use std::{fmt, ptr, slice};

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::list::List;

/// Bytes of the storage that is part of the buffer itself. It moves with the buffer, which bounds its size: a header
/// and a short message must fit, not a value. As in RAMCloud.
pub const BUILT_IN_BYTES: usize = 1000;

/// How many of [`BUILT_IN_BYTES`] are kept for [`Buffer::prepend`]: room for the headers of a few layers.
pub const PREPEND_BYTES: usize = 100;

/// Capacity of the first allocation for internal chunks; each further one has twice as much.
const ALLOCATION_BYTES_MIN: u32 = 2 << 10;

/// The doubling ends here: a longer message wastes at most so much of its last allocation.
const ALLOCATION_BYTES_MAX: u32 = 64 << 10;

/// Who owns the bytes of a closed chunk.
pub(crate) enum Owner {
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
pub(crate) struct Chunk {
    /// The first byte, whose owner does not move it. Where the chunk is built-in: its offset in the built-in storage,
    /// which is smaller than any address ([`Chunk::is_built_in`]).
    at: *const u8,
    len: usize,
    owner: Owner,
}

/// A closed chunk or the tail, by what one may do with it.
pub(crate) enum Part<'a> {
    /// Its bytes can only be copied.
    Internal(&'a [u8]),
    /// Its bytes can be referred to for ever.
    Static(&'static [u8]),
    /// These bytes of the owner can be shared.
    Shared(&'a Bytes, &'a [u8]),
}

/// A message or a value, in chunks.
///
/// Cloning shares external chunks and copies internal ones. Moving one copies its built-in storage, a bit more than
/// [`BUILT_IN_BYTES`]: long-lived ones are better boxed.
#[repr(C)]
pub struct Buffer {
    /// Where the next byte goes, relative to the tail's storage.
    end: usize,
    /// Where the tail's storage ends.
    limit: usize,
    /// Where the tail begins.
    start: usize,
    /// Length of the closed chunks minus `start` (wrapping).
    len_base: usize,
    /// The tail's storage where it is an allocation, else null.
    heap_at: *mut u8,
    chunks: List,
    /// The lowest byte of the built-in storage that is in use.
    head: u32,
    /// What the next allocation should hold.
    allocation_bytes: u32,
    /// Owner of the tail's storage where it is an allocation.
    heap: ManuallyDrop<Option<BytesMut>>,
    built_in: MaybeUninit<[u8; BUILT_IN_BYTES]>,
}

// SAFETY: `at` refers to memory of the chunk's owner, which is `Send` and `Sync` itself, or to nothing; nothing is
// changed through a shared reference.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}
// SAFETY: `heap_at` refers to memory that `heap` owns; nothing is changed through a shared reference.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// No chunks.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            end: PREPEND_BYTES,
            limit: BUILT_IN_BYTES,
            start: PREPEND_BYTES,
            len_base: 0_usize.wrapping_sub(PREPEND_BYTES),
            heap_at: ptr::null_mut(),
            chunks: List::new(),
            head: PREPEND_BYTES as u32,
            allocation_bytes: ALLOCATION_BYTES_MIN,
            heap: ManuallyDrop::new(None),
            built_in: MaybeUninit::uninit(),
        }
    }

    /// Length of all chunks together, in bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len_base.wrapping_add(self.end)
    }

    /// Whether there is not a byte.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes can be appended before the next allocation; they will be contiguous.
    #[inline]
    #[must_use]
    pub const fn room(&self) -> usize {
        self.limit - self.end
    }

    /// Where the tail's storage begins.
    #[inline]
    const fn base(&self) -> *const u8 {
        if self.heap_at.is_null() { self.built_in.as_ptr().cast() } else { self.heap_at }
    }

    #[inline]
    const fn base_mut(&mut self) -> *mut u8 {
        if self.heap_at.is_null() { self.built_in.as_mut_ptr().cast() } else { self.heap_at }
    }

    /// Appends `count` zeros and gives them to be overwritten. Contiguous, without an allocation while
    /// [`room`](Self::room) suffices.
    ///
    /// # Panics
    /// Where memory for so many bytes cannot be allocated, as `Vec` does.
    #[inline]
    pub fn alloc(&mut self, count: usize) -> &mut [u8] {
        if count > self.limit - self.end {
            self.grow(count);
        }
        // SAFETY: the tail's storage has room for `count` bytes from `end` on, either from the test or from `grow`;
        // no chunk uses them. They are initialised here before a reference to them is made.
        unsafe {
            let at = self.base_mut().add(self.end);
            at.write_bytes(0, count);
            self.end += count;
            slice::from_raw_parts_mut(at, count)
        }
    }

    /// Appends a copy of `bytes`, contiguously.
    #[inline]
    pub fn append_copy(&mut self, bytes: &[u8]) {
        if bytes.len() > self.limit - self.end {
            self.grow(bytes.len());
        }
        // SAFETY: as in `alloc`; `bytes` cannot overlap what is borrowed mutably.
        unsafe {
            self.base_mut().add(self.end).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.end += bytes.len();
    }

    /// Sees to it that the next `count` bytes can be appended without an allocation and contiguously.
    #[inline]
    pub fn reserve(&mut self, count: usize) {
        if count > self.limit - self.end {
            self.grow(count);
        }
    }

    /// Closes the tail and opens one in a new allocation with room for `count` bytes at least.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, count: usize) {
        let len = self.len();
        if self.start < self.end {
            // Nothing will follow in this storage: an allocation goes to the chunk whole.
            match self.heap.take() {
                Some(heap) => self.push_owned(heap),
                None => self.push_built_in(),
            }
        }
        let mut heap = BytesMut::with_capacity(count.max(self.allocation_bytes as usize));
        self.allocation_bytes = (self.allocation_bytes * 2).min(ALLOCATION_BYTES_MAX);
        self.heap_at = heap.spare_capacity_mut().as_mut_ptr().cast();
        self.limit = heap.capacity();
        *self.heap = Some(heap);
        (self.start, self.end) = (0, 0);
        self.len_base = len;
    }

    /// Makes the tail a closed chunk and opens another one right behind it. `len` does not change.
    #[inline]
    fn close_tail(&mut self) {
        if self.start < self.end {
            self.close_tail_slow();
        }
    }

    fn close_tail_slow(&mut self) {
        let Some(mut heap) = self.heap.take() else {
            self.push_built_in();
            self.start = self.end;
            return;
        };
        // SAFETY: the bytes up to `end` were initialised when they were appended, and `end` is within the capacity.
        unsafe { heap.set_len(self.end) };
        let rest = heap.split_off(self.end);
        self.push_owned(heap);
        let rest = self.heap.insert(rest);
        self.heap_at = rest.spare_capacity_mut().as_mut_ptr().cast();
        self.limit = rest.capacity();
        self.len_base = self.len_base.wrapping_add(self.end);
        (self.start, self.end) = (0, 0);
    }

    fn push_built_in(&mut self) {
        let at = ptr::without_provenance(self.start);
        self.chunks.push(Chunk { at, len: self.end - self.start, owner: Owner::BuiltIn });
    }

    /// The tail, which lies in `heap`, as a closed chunk.
    fn push_owned(&mut self, mut heap: BytesMut) {
        // SAFETY: as in `close_tail_slow`.
        unsafe { heap.set_len(self.end) };
        heap.advance(self.start);
        self.chunks.push(Chunk { at: heap.as_ptr(), len: heap.len(), owner: Owner::Owned(heap) });
    }

    /// Appends a chunk that refers to `chunk`'s memory, however short it is.
    #[inline]
    pub fn append_external(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.push(Chunk { at: chunk.as_ptr(), len: chunk.len(), owner: Owner::Shared(chunk) });
        }
    }

    /// Appends a chunk that refers to memory that lives as long as the program.
    #[inline]
    pub fn append_static(&mut self, chunk: &'static [u8]) {
        if !chunk.is_empty() {
            self.push(Chunk { at: chunk.as_ptr(), len: chunk.len(), owner: Owner::Static });
        }
    }

    #[inline(always)]
    fn push(&mut self, chunk: Chunk) {
        assert!(!chunk.is_built_in(), "memory below {BUILT_IN_BYTES} cannot be told from an offset");
        self.close_tail();
        self.len_base = self.len_base.wrapping_add(chunk.len);
        self.chunks.push(chunk);
    }

    /// Takes the tail's allocation over as a chunk without copying it; false, and nothing is changed, where the tail
    /// is built-in.
    pub(crate) fn append_allocation_of(&mut self, other: &mut Self) -> bool {
        if other.start == other.end || other.heap.is_none() {
            return false;
        }
        other.close_tail();
        other.chunks.pop().into_iter().for_each(|chunk| self.push(chunk));
        true
    }

    /// Puts a copy of `bytes` in front of everything; up to [`PREPEND_BYTES`] in all without an allocation.
    #[inline]
    pub fn prepend(&mut self, bytes: &[u8]) {
        if bytes.len() <= self.head as usize && self.chunks.is_empty() && self.heap_at.is_null() {
            self.start = self.head as usize - bytes.len();
            self.head = self.start as u32;
            // SAFETY: below `head` the built-in storage is free.
            unsafe { self.put_built_in(self.start, bytes) };
            self.len_base = self.len_base.wrapping_add(bytes.len());
        } else {
            self.prepend_chunk(bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn prepend_chunk(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.len_base = self.len_base.wrapping_add(bytes.len());
        if bytes.len() > self.head as usize {
            let copy = BytesMut::from(bytes);
            return self.chunks.push_front(Chunk {
                at: copy.as_ptr(),
                len: copy.len(),
                owner: Owner::Owned(copy),
            });
        }
        let end = self.head as usize;
        let start = end - bytes.len();
        self.head = start as u32;
        // SAFETY: below `head` the built-in storage is free.
        unsafe { self.put_built_in(start, bytes) };
        let at = ptr::without_provenance(start);
        match self.chunks.first_mut() {
            Some(Chunk { at: first, len, owner: Owner::BuiltIn }) if first.addr() == end => {
                *first = at;
                *len += bytes.len();
            }
            _ => self.chunks.push_front(Chunk { at, len: bytes.len(), owner: Owner::BuiltIn }),
        }
    }

    /// # Safety
    /// The built-in storage has room for `bytes` from `at` on, and no chunk uses it.
    #[inline]
    unsafe fn put_built_in(&mut self, at: usize, bytes: &[u8]) {
        let target = self.built_in.as_mut_ptr().cast::<u8>();
        // SAFETY: promised by the caller; `bytes` cannot overlap what is borrowed mutably.
        unsafe { target.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Drops the first `count` bytes; everything where there are not more. Chunks are released as they end.
    #[inline]
    pub fn truncate_front(&mut self, count: usize) {
        if count >= self.len() {
            return self.clear();
        }
        self.len_base = self.len_base.wrapping_sub(count);
        let mut rest = count;
        while let Some(chunk) = self.chunks.first_mut() {
            if rest < chunk.len {
                chunk.cut_front(rest);
                if let Owner::BuiltIn = chunk.owner {
                    self.head = chunk.at.addr() as u32;
                }
                return;
            }
            rest -= chunk.len;
            self.pop_front();
        }
        self.start += rest;
        if self.heap_at.is_null() {
            self.head = self.start as u32;
        }
    }

    /// Releases the first closed chunk, whose bytes were subtracted already.
    fn pop_front(&mut self) {
        if let Some(Chunk { at, len, owner: Owner::BuiltIn }) = self.chunks.pop_front() {
            self.head = (at.addr() + len) as u32;
        }
    }

    /// Drops the last `count` bytes; everything where there are not more.
    pub fn truncate_back(&mut self, count: usize) {
        if count >= self.len() {
            return self.clear();
        }
        let len = self.len() - count;
        let mut rest = count;
        loop {
            let tail = self.end - self.start;
            if rest < tail || rest == 0 {
                self.end -= rest;
                break;
            }
            rest -= tail;
            self.end = self.start;
            let Some(chunk) = self.chunks.last_mut() else {
                unreachable!("more than `count` bytes are there")
            };
            match chunk.owner {
                // The last built-in chunk can become the tail again, so that what follows it is free.
                Owner::BuiltIn if self.heap_at.is_null() => {
                    self.start = chunk.at.addr();
                    self.end = self.start + chunk.len;
                    self.chunks.pop();
                }
                _ if rest < chunk.len => {
                    chunk.cut_back(rest);
                    break;
                }
                _ => {
                    rest -= chunk.len;
                    self.chunks.pop();
                }
            }
        }
        self.len_base = len.wrapping_sub(self.end);
    }

    /// Drops everything and releases what the chunks referred to and what was allocated.
    #[inline]
    pub fn clear(&mut self) {
        // One test for both.
        if self.len() | self.heap_at.addr() == 0 {
            // As new: whatever makes a buffer empty comes through here.
            return;
        }
        if self.owns() {
            self.release();
        }
        self.head = PREPEND_BYTES as u32;
        (self.start, self.end, self.limit) = (PREPEND_BYTES, PREPEND_BYTES, BUILT_IN_BYTES);
        self.len_base = 0_usize.wrapping_sub(PREPEND_BYTES);
    }

    /// Whether there is anything to release.
    #[inline(always)]
    fn owns(&self) -> bool {
        !self.chunks.is_empty() || !self.heap_at.is_null()
    }

    #[inline(never)]
    fn release(&mut self) {
        self.chunks.clear();
        *self.heap = None;
        self.heap_at = ptr::null_mut();
        self.allocation_bytes = ALLOCATION_BYTES_MIN;
    }

    /// The tail's bytes.
    #[inline]
    pub(crate) fn tail(&self) -> &[u8] {
        // SAFETY: the bytes from `start` up to `end` are initialised and belong to the tail.
        unsafe { slice::from_raw_parts(self.base().add(self.start), self.end - self.start) }
    }

    /// The chunks, in order; none is empty.
    #[inline]
    #[must_use]
    pub fn chunks(&self) -> Chunks<'_> {
        // Built-in chunks lie between the head and the built-in tail. Where there is no room for one, readers need not ask each
        // chunk whether it is one.
        let has_built_in = !self.heap_at.is_null() || self.start != self.head as usize;
        let built_in = if has_built_in { self.built_in.as_ptr().cast() } else { ptr::null() };
        Chunks { closed: self.chunks.as_slice().iter(), built_in, tail: self.tail() }
    }

    /// How many chunks there are.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        self.chunks.as_slice().len() + usize::from(self.start < self.end)
    }

    /// The first chunk; empty where the buffer is.
    #[inline]
    #[must_use]
    pub fn first_chunk(&self) -> &[u8] {
        // No byte is in a closed chunk, and so there is none.
        if self.len_base.wrapping_add(self.start) == 0 {
            return self.tail();
        }
        match self.chunks.as_slice().first() {
            // SAFETY: the chunk is one of this buffer.
            Some(chunk) => unsafe { chunk.view(self.built_in.as_ptr().cast()) },
            None => &[],
        }
    }

    /// The chunks, in order, by what one may do with them; none is empty.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let built_in = self.built_in.as_ptr().cast();
        let closed = self.chunks.as_slice().iter().map(move |chunk| {
            // SAFETY: the chunk is one of this buffer.
            let view = unsafe { chunk.view(built_in) };
            match &chunk.owner {
                Owner::BuiltIn | Owner::Owned(_) => Part::Internal(view),
                // SAFETY: the bytes live as long as the program.
                Owner::Static => Part::Static(unsafe { slice::from_raw_parts(chunk.at, chunk.len) }),
                Owner::Shared(owner) => Part::Shared(owner, view),
            }
        });
        closed.chain((self.start < self.end).then(|| Part::Internal(self.tail())))
    }

    /// Writes `source` over the bytes from `offset` on, which must be there. A chunk whose memory is not the buffer's
    /// is replaced by an internal copy first.
    pub(crate) fn overwrite(&mut self, offset: usize, source: &[u8]) {
        let built_in = self.built_in.as_mut_ptr().cast::<u8>();
        let (mut skip, mut source) = (offset, source);
        for chunk in self.chunks.as_mut_slice() {
            let from = skip.min(chunk.len);
            let (now, later) = source.split_at(source.len().min(chunk.len - from));
            skip -= from;
            source = later;
            if !now.is_empty() {
                // SAFETY: the chunk is one of this buffer, whose only reference this is.
                let view = unsafe { chunk.view_mut(built_in) };
                view[from..from + now.len()].copy_from_slice(now);
            }
        }
        let (start, count) = (self.start, self.end - self.start);
        // SAFETY: as in `tail`; the buffer is borrowed mutably.
        let tail = unsafe { slice::from_raw_parts_mut(self.base_mut().add(start), count) };
        if !source.is_empty() {
            tail[skip..skip + source.len()].copy_from_slice(source);
        }
    }

    /// Takes the first `count` bytes, which the first chunk must have, out of the buffer; copies those that are built
    /// in, shares or moves the others.
    pub(crate) fn split_first(&mut self, count: usize) -> Bytes {
        assert!(count <= self.first_chunk().len(), "the first chunk has fewer than {count} bytes");
        if let Some(chunk) = self.take_shared(count) {
            return chunk;
        }
        if self.chunks.is_empty() && self.heap.is_some() {
            self.close_tail();
        }
        let out = match self.chunks.first_mut() {
            Some(Chunk { at, len, owner: Owner::Owned(owner) }) => {
                let out = owner.split_to(count).freeze();
                (*at, *len) = (owner.as_ptr(), *len - count);
                self.len_base = self.len_base.wrapping_sub(count);
                if owner.is_empty() {
                    self.pop_front();
                }
                if self.is_empty() {
                    self.clear();
                }
                return out;
            }
            Some(Chunk { at, owner: Owner::Static, .. }) => {
                // SAFETY: the bytes live as long as the program.
                Bytes::from_static(unsafe { slice::from_raw_parts(*at, count) })
            }
            Some(Chunk { owner: Owner::Shared(owner), .. }) => owner.slice(..count),
            _ => Bytes::copy_from_slice(&self.first_chunk()[..count]),
        };
        self.truncate_front(count);
        out
    }

    /// The first chunk, where it is somebody else's and has just `count` bytes: it changes hands, and nothing is counted.
    #[inline]
    fn take_shared(&mut self, count: usize) -> Option<Bytes> {
        let is_whole = matches!(
            self.chunks.first_mut(),
            Some(Chunk { len, owner: Owner::Shared(_), .. }) if *len == count
        );
        if !is_whole {
            return None;
        }
        let Some(Chunk { owner: Owner::Shared(owner), .. }) = self.chunks.pop_front() else {
            unreachable!("the chunk was looked at");
        };
        self.len_base = self.len_base.wrapping_sub(count);
        if self.is_empty() {
            self.clear();
        }
        Some(owner)
    }

    /// What kind each chunk is and how long.
    fn kinds(&self) -> Vec<(&'static str, usize)> {
        let closed = self.chunks.as_slice().iter().map(|chunk| (chunk.kind(), chunk.len));
        closed.chain((self.start < self.end).then(|| ("tail", self.end - self.start))).collect()
    }
}

impl Chunk {
    /// Whether `at` is an offset. Told by `at` itself, which every reader has at hand: nothing that a chunk refers to
    /// lies on the lowest page, which no system maps (`push` makes sure).
    #[inline]
    fn is_built_in(&self) -> bool {
        self.at.addr() < BUILT_IN_BYTES
    }

    /// The chunk's bytes.
    ///
    /// # Safety
    /// `built_in` is the built-in storage of the buffer to which the chunk belongs, and the result does not outlive
    /// a borrow of that buffer.
    #[inline]
    unsafe fn view<'a>(&self, built_in: *const u8) -> &'a [u8] {
        let at = if self.is_built_in() { built_in.wrapping_add(self.at.addr()) } else { self.at };
        // SAFETY: a chunk's bytes are initialised, and its owner keeps them where they are.
        unsafe { slice::from_raw_parts(at, self.len) }
    }

    /// The chunk's bytes, where it is not built in.
    ///
    /// # Safety
    /// It is not built in, and the result does not outlive a borrow of its buffer.
    #[inline]
    unsafe fn view_elsewhere<'a>(&self) -> &'a [u8] {
        debug_assert!(!self.is_built_in(), "a built-in chunk has no address");
        // SAFETY: a chunk's bytes are initialised, and its owner keeps them where they are.
        unsafe { slice::from_raw_parts(self.at, self.len) }
    }

    /// The chunk's bytes, to be changed.
    ///
    /// # Safety
    /// As for `view`, and that borrow is a mutable one.
    unsafe fn view_mut(&mut self, built_in: *mut u8) -> &mut [u8] {
        if let Owner::Static | Owner::Shared(_) = self.owner {
            // SAFETY: promised by the caller.
            let copy = BytesMut::from(unsafe { self.view(built_in) });
            *self = Self { at: copy.as_ptr(), len: copy.len(), owner: Owner::Owned(copy) };
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

    /// Stands where a chunk was taken out.
    pub(crate) const fn nothing() -> Self {
        Self { at: ptr::null(), len: 0, owner: Owner::Static }
    }

    /// Drops the first `count` bytes of more.
    fn cut_front(&mut self, count: usize) {
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
    fn cut_back(&mut self, count: usize) {
        assert!(count < self.len, "a chunk is never empty");
        self.len -= count;
        match &mut self.owner {
            Owner::BuiltIn | Owner::Static => {}
            Owner::Shared(owner) => owner.truncate(self.len),
            Owner::Owned(owner) => owner.truncate(self.len),
        }
    }

    const fn kind(&self) -> &'static str {
        match self.owner {
            Owner::BuiltIn => "built-in",
            Owner::Static => "static",
            Owner::Shared(_) => "shared",
            Owner::Owned(_) => "owned",
        }
    }
}

/// The chunks of a buffer; made by [`Buffer::chunks`].
#[derive(Clone)]
pub struct Chunks<'a> {
    closed: slice::Iter<'a, Chunk>,
    /// The built-in storage; null where no closed chunk is built in.
    built_in: *const u8,
    tail: &'a [u8],
}

// SAFETY: it stands for a shared reference to a buffer, which is `Sync`.
unsafe impl Send for Chunks<'_> {}
// SAFETY: as above.
unsafe impl Sync for Chunks<'_> {}

#[inline(always)]
fn fold_by_four<B>(closed: &[Chunk], initial: B, mut step: impl FnMut(B, &Chunk) -> B) -> B {
    let (fours, rest) = closed.as_chunks();
    let mut all = initial;
    for [first, second, third, fourth] in fours {
        all = step(all, first);
        all = step(all, second);
        all = step(all, third);
        all = step(all, fourth);
    }
    for chunk in rest {
        all = step(all, chunk);
    }
    all
}

impl<'a> Iterator for Chunks<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if let Some(chunk) = self.closed.next() {
            // SAFETY: the chunk is one of the buffer that is borrowed for 'a, and so is the built-in storage.
            return Some(unsafe { chunk.view(self.built_in) });
        }
        let tail = std::mem::take(&mut self.tail);
        (!tail.is_empty()).then_some(tail)
    }

    /// As `for_each` and its like go through all chunks: without asking at each whether the tail is next, and four at a
    /// time, because a step is so short that its branch is what it costs.
    #[inline]
    fn fold<B, F: FnMut(B, &'a [u8]) -> B>(self, initial: B, mut take: F) -> B {
        let closed = self.closed.as_slice();
        let all = if self.built_in.is_null() {
            // SAFETY: none of these chunks is built in, so each has its address; they are of the buffer that is borrowed for 'a.
            fold_by_four(closed, initial, |all, chunk| take(all, unsafe { chunk.view_elsewhere() }))
        } else {
            // SAFETY: as in `next`.
            fold_by_four(closed, initial, |all, chunk| take(all, unsafe { chunk.view(self.built_in) }))
        };
        if self.tail.is_empty() { all } else { take(all, self.tail) }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.closed.len() + usize::from(!self.tail.is_empty());
        (count, Some(count))
    }
}

impl ExactSizeIterator for Chunks<'_> {}

// SAFETY: room is memory of the tail behind its end, which nobody else uses.
unsafe impl BufMut for Buffer {
    fn remaining_mut(&self) -> usize {
        isize::MAX as usize - self.len()
    }

    /// The room behind the last byte, to read from a socket into: never empty.
    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.reserve(1);
        let room = self.room();
        // SAFETY: the tail's storage has so much room behind `end`; `UninitSlice` is not read from.
        unsafe { UninitSlice::from_raw_parts_mut(self.base_mut().add(self.end), room) }
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(count <= self.room(), "{count} bytes were not written: there is room for fewer");
        self.end += count;
    }

    #[inline]
    fn put_slice(&mut self, bytes: &[u8]) {
        self.append_copy(bytes);
    }
}

/// One test for a short message; the fields themselves have nothing to drop then.
impl Drop for Buffer {
    #[inline(always)]
    fn drop(&mut self) {
        if self.owns() {
            self.release();
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

/// Says what kind each chunk is and how long; values do not belong into messages.
impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.len()).field("chunks", &self.kinds()).finish()
    }
}

#[cfg(test)]
impl Buffer {
    /// The invariants of this module, and that every byte can be read.
    pub(crate) fn check(&self) {
        assert_eq!(self.chunks().map(<[u8]>::len).sum::<usize>(), self.len(), "{self:?}");
        assert!(self.chunks().all(|chunk| !chunk.is_empty()), "{self:?}");
        assert_eq!(self.chunks().count(), self.chunk_count());
        assert!(self.start <= self.end && self.end <= self.limit && self.head as usize <= BUILT_IN_BYTES);
        assert_eq!(self.heap.is_some(), !self.heap_at.is_null());
        assert_eq!(self.chunks.is_empty(), self.len_base.wrapping_add(self.start) == 0, "{self:?}");
        let mut at = self.head as usize;
        for chunk in self.chunks.as_slice().iter().filter(|chunk| matches!(chunk.owner, Owner::BuiltIn)) {
            assert!(at <= chunk.at.addr(), "built-in chunks in logical order: {self:?}");
            at = chunk.at.addr() + chunk.len;
        }
        if let Some(heap) = &*self.heap {
            assert_eq!(heap.capacity(), self.limit);
        } else {
            assert!(at <= self.start && self.limit == BUILT_IN_BYTES, "the tail is behind: {self:?}");
            assert!(
                !self.chunks.is_empty() || self.start == self.head as usize,
                "prepending joins the tail: {self:?}"
            );
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
