//! The closed chunks of a buffer: a queue, the first few without an allocation.
//!
//! Invariants: the chunks are all built in (`shape` counts them, `more` is nothing), or all in `more` from `first` on (those before were
//! taken out; `shape` has [`SPILLED`]). `shape` has [`HAS_BUILT_IN`] if a chunk is or was in the buffer's built-in storage. It is zero in
//! an empty list, which is cheap to make and to recognise.
//! Dropping a list does not drop its chunks: the owner calls [`List::clear`] if there is anything to drop.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::{ptr, slice};

use super::chunk::{Chunk, Owner};

/// This number of chunks needs no allocation, and no further step to find them: a header, and the frames of a value of 16 KiB.
pub(super) const BUILT_IN: usize = 5;

/// In a list's shape: the chunks are in an allocation, and are not counted here.
const SPILLED: u32 = 1 << 31;

/// In a list's shape: a chunk may be in the buffer's built-in storage, so its address must be tested.
const HAS_BUILT_IN: u32 = 1 << 30;

/// From this number on, the room of the chunks that were taken out is reused when they outnumber the remaining ones.
const COMPACT_MIN: u32 = 32;

/// A queue of chunks. The fields that make it empty come first, next to each other.
#[repr(C)]
#[expect(
    clippy::box_collection,
    reason = "one word that is null in most buffers, and few of them ever need it"
)]
pub(super) struct List {
    /// The number of built-in chunks, and flags.
    shape: u32,
    first: u32,
    more: ManuallyDrop<Option<Box<Vec<Chunk>>>>,
    built_in: [MaybeUninit<Chunk>; BUILT_IN],
}

impl List {
    #[inline(always)]
    pub(super) const fn new() -> Self {
        Self {
            shape: 0,
            first: 0,
            more: ManuallyDrop::new(None),
            built_in: [const { MaybeUninit::uninit() }; BUILT_IN],
        }
    }

    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.shape & !HAS_BUILT_IN == 0
    }

    /// Returns true if there are at most [`BUILT_IN`] chunks, each with its address: one test for a reader of all of them.
    #[inline(always)]
    pub(super) const fn is_simple(&self) -> bool {
        self.shape <= BUILT_IN as u32
    }

    const fn is_spilled(&self) -> bool {
        self.shape & SPILLED != 0
    }

    #[inline(always)]
    const fn count_built_in(&self) -> usize {
        (self.shape & !(HAS_BUILT_IN | SPILLED)) as usize
    }

    #[inline(always)]
    pub(super) fn as_slice(&self) -> &[Chunk] {
        if !self.is_simple() {
            return self.as_slice_otherwise();
        }
        // SAFETY: `shape` chunks are initialised.
        unsafe { slice::from_raw_parts(self.built_in.as_ptr().cast(), self.shape as usize) }
    }

    #[cold]
    #[inline(never)]
    fn as_slice_otherwise(&self) -> &[Chunk] {
        if self.is_spilled() {
            return self.more.as_ref().map_or(&[], |more| &more[self.first as usize..]);
        }
        // SAFETY: as above.
        unsafe { slice::from_raw_parts(self.built_in.as_ptr().cast(), self.count_built_in()) }
    }

    #[inline]
    pub(super) fn as_mut_slice(&mut self) -> &mut [Chunk] {
        if self.is_spilled() {
            return self.more.as_mut().map_or(&mut [], |more| &mut more[self.first as usize..]);
        }
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.built_in.as_mut_ptr().cast(), self.count_built_in()) }
    }

    #[inline]
    pub(super) fn first_mut(&mut self) -> Option<&mut Chunk> {
        self.as_mut_slice().first_mut()
    }

    #[inline]
    pub(super) fn last_mut(&mut self) -> Option<&mut Chunk> {
        self.as_mut_slice().last_mut()
    }

    /// Appends `chunk`. Returns true if the list has an allocation now, which [`List::clear`] must release.
    #[inline(always)]
    #[must_use]
    pub(super) fn push(&mut self, chunk: Chunk) -> bool {
        // Not dropped if the allocation fails. A chunk to be dropped would have to be in memory before it is written to its place, and
        // reading it back from there at once costs more than all the rest.
        let chunk = ManuallyDrop::new(chunk);
        let flag = if let Owner::BuiltIn = chunk.owner { HAS_BUILT_IN } else { 0 };
        let has_room = !self.is_spilled() && self.count_built_in() < BUILT_IN;
        let slot = if has_room { self.next_built_in() } else { self.next_spilled() };
        slot.write(ManuallyDrop::into_inner(chunk));
        self.shape |= flag;
        !has_room
    }

    /// Counts one more built-in chunk, which the caller writes.
    #[inline(always)]
    fn next_built_in(&mut self) -> &mut MaybeUninit<Chunk> {
        let slot = &mut self.built_in[self.count_built_in()];
        self.shape += 1;
        slot
    }

    /// Counts one more chunk in the allocation, which the caller writes.
    #[cold]
    #[inline(never)]
    fn next_spilled(&mut self) -> &mut MaybeUninit<Chunk> {
        let more = self.as_vec();
        more.reserve(1);
        let len = more.len();
        // SAFETY: there is room, and the caller initialises the counted element before it is read.
        unsafe {
            more.set_len(len + 1);
            &mut *more.as_mut_ptr().add(len).cast()
        }
    }

    /// Inserts `chunk` before all others. The list has an allocation then, which [`List::clear`] must release.
    pub(super) fn push_front(&mut self, chunk: Chunk) {
        let flag = if let Owner::BuiltIn = chunk.owner { HAS_BUILT_IN } else { 0 };
        self.as_vec().insert(0, chunk);
        self.shape |= flag;
    }

    /// The chunks in an allocation. Built-in ones are moved there, except the ones that were taken out.
    #[cold]
    #[inline(never)]
    fn as_vec(&mut self) -> &mut Vec<Chunk> {
        let more = self.more.get_or_insert_with(|| Box::new(Vec::with_capacity(4 * BUILT_IN)));
        if self.shape & SPILLED != 0 {
            more.drain(..std::mem::take(&mut self.first) as usize);
        } else {
            let count = (self.shape & !HAS_BUILT_IN) as usize;
            self.shape = self.shape & HAS_BUILT_IN | SPILLED;
            for slot in &self.built_in[..count] {
                // SAFETY: these chunks are initialised, and are not counted any more.
                more.push(unsafe { slot.assume_init_read() });
            }
        }
        more
    }

    pub(super) fn pop(&mut self) -> Option<Chunk> {
        let Some(more) = &mut *self.more else {
            let last = self.count_built_in().checked_sub(1)?;
            self.shape -= 1;
            // SAFETY: the chunk was initialised, and is not counted any more.
            return Some(unsafe { self.built_in[last].assume_init_read() });
        };
        let chunk = more.pop();
        self.become_empty();
        chunk
    }

    pub(super) fn pop_front(&mut self) -> Option<Chunk> {
        let Some(more) = &mut *self.more else { return self.pop_front_built_in() };
        let chunk = std::mem::replace(more.get_mut(self.first as usize)?, Chunk::nothing());
        self.first += 1;
        if self.first as usize > more.len() / 2 && self.first > COMPACT_MIN {
            // A buffer that is filled and read at the same time never becomes empty.
            more.drain(..self.first as usize);
            self.first = 0;
        }
        self.become_empty();
        Some(chunk)
    }

    /// Moves the others up: they are few, and readers find the first one at the start of the list.
    fn pop_front_built_in(&mut self) -> Option<Chunk> {
        let left = self.count_built_in().checked_sub(1)?;
        self.shape -= 1;
        let first = self.built_in.as_mut_ptr();
        // SAFETY: the first chunk and the `left` ones after it were initialised; each is moved to a slot that was moved out of.
        unsafe {
            let chunk = first.read().assume_init();
            ptr::copy(first.add(1), first, left);
            Some(chunk)
        }
    }

    /// Releases the allocation if it has no chunk.
    fn become_empty(&mut self) {
        if self.as_slice().is_empty() {
            self.clear();
        }
    }

    /// Drops all chunks.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.is_spilled() {
            return self.clear_spilled();
        }
        let count = self.count_built_in();
        self.shape = 0;
        for slot in &mut self.built_in[..count] {
            // SAFETY: these chunks were initialised, and are not counted any more.
            unsafe { slot.assume_init_drop() };
        }
    }

    #[cold]
    #[inline(never)]
    fn clear_spilled(&mut self) {
        (self.shape, self.first) = (0, 0);
        *self.more = None;
    }

    /// Makes the list empty without dropping its chunks: none owns anything, and there is no allocation.
    #[inline(always)]
    pub(super) fn forget(&mut self) {
        self.shape = 0;
    }
}
