//! The closed chunks of a buffer: a queue, the first few without an allocation.
//!
//! Invariants: the chunks are all built in (`count` of them, those before `first` were taken out) or all in `more`,
//! with `count` zero; `first` is zero where there is none. So an empty list is two zeros and a null, cheap to make and to
//! tell. Dropping a list does not drop its chunks: the owner calls [`List::clear`] where it is not empty.
#![allow(unsafe_code)]

use std::mem::{ManuallyDrop, MaybeUninit};
use std::slice;

use crate::raw::Chunk;

/// So many chunks need no allocation, and are found without another step: a header, and the frames of a value of 16 KiB.
const BUILT_IN: usize = 5;

/// From so many on, chunks that were taken out give their room back, when they are more than those that are left.
const COMPACT_MIN: u32 = 32;

/// A queue of chunks.
#[repr(C)]
#[expect(
    clippy::box_collection,
    reason = "one word that is null in most buffers, and few of them ever need it"
)]
pub(crate) struct List {
    more: ManuallyDrop<Option<Box<Vec<Chunk>>>>,
    first: u32,
    count: u32,
    built_in: [MaybeUninit<Chunk>; BUILT_IN],
}

impl List {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self {
            more: ManuallyDrop::new(None),
            first: 0,
            count: 0,
            built_in: [const { MaybeUninit::uninit() }; BUILT_IN],
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0 && self.more.is_none()
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Chunk] {
        match &*self.more {
            // SAFETY: the chunks from `first` up to `count` are initialised.
            None => unsafe {
                let first = self.built_in.as_ptr().cast::<Chunk>().add(self.first as usize);
                slice::from_raw_parts(first, (self.count - self.first) as usize)
            },
            // SAFETY: `first` is at most the length.
            Some(more) => unsafe { more.get_unchecked(self.first as usize..) },
        }
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Chunk] {
        match &mut *self.more {
            // SAFETY: as above.
            None => unsafe {
                let first = self.built_in.as_mut_ptr().cast::<Chunk>().add(self.first as usize);
                slice::from_raw_parts_mut(first, (self.count - self.first) as usize)
            },
            Some(more) => &mut more[self.first as usize..],
        }
    }

    #[inline]
    pub(crate) fn first_mut(&mut self) -> Option<&mut Chunk> {
        self.as_mut_slice().first_mut()
    }

    #[inline]
    pub(crate) fn last_mut(&mut self) -> Option<&mut Chunk> {
        self.as_mut_slice().last_mut()
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, chunk: Chunk) {
        if self.more.is_none()
            && let Some(slot) = self.built_in.get_mut(self.count as usize)
        {
            slot.write(chunk);
            self.count += 1;
        } else {
            self.as_vec().push(chunk);
        }
    }

    /// The chunks in an allocation, where they are moved if they are built in.
    #[cold]
    fn as_vec(&mut self) -> &mut Vec<Chunk> {
        if self.more.is_none() {
            let mut more = Box::new(Vec::with_capacity(4 * BUILT_IN));
            for slot in &self.built_in[self.first as usize..self.count as usize] {
                // SAFETY: these chunks are initialised; `count` is zero before anybody looks again.
                more.push(unsafe { slot.assume_init_read() });
            }
            (self.first, self.count) = (0, 0);
            *self.more = Some(more);
        }
        let Some(more) = &mut *self.more else { unreachable!("made above") };
        more
    }

    pub(crate) fn push_front(&mut self, chunk: Chunk) {
        let more = self.as_vec_with_room();
        more.insert(0, chunk);
    }

    fn as_vec_with_room(&mut self) -> &mut Vec<Chunk> {
        let first = std::mem::take(&mut self.first) as usize;
        if let Some(more) = &mut *self.more {
            more.drain(..first);
        } else {
            self.first = first as u32;
        }
        self.as_vec()
    }

    pub(crate) fn pop(&mut self) -> Option<Chunk> {
        if self.as_slice().is_empty() {
            return None;
        }
        let chunk = if let Some(more) = &mut *self.more {
            more.pop()
        } else {
            self.count -= 1;
            // SAFETY: the chunk was initialised, and does not count any more.
            Some(unsafe { self.built_in[self.count as usize].assume_init_read() })
        };
        self.become_empty();
        chunk
    }

    pub(crate) fn pop_front(&mut self) -> Option<Chunk> {
        let chunk = std::mem::replace(self.first_mut()?, Chunk::nothing());
        self.first += 1;
        self.become_empty();
        if let Some(more) = &mut *self.more
            && self.first as usize > more.len() / 2
            && self.first > COMPACT_MIN
        {
            // A buffer that is filled and read at once never gets empty.
            more.drain(..self.first as usize);
            self.first = 0;
        }
        Some(chunk)
    }

    /// Makes a list without chunks an empty one.
    fn become_empty(&mut self) {
        if self.as_slice().is_empty() {
            self.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self.more = None;
        let (first, count) = (self.first as usize, self.count as usize);
        (self.first, self.count) = (0, 0);
        for slot in self.built_in.get_mut(first..count).unwrap_or_default() {
            // SAFETY: these chunks were initialised, and do not count any more.
            unsafe { slot.assume_init_drop() };
        }
    }
}
