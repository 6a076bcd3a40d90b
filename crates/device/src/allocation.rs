//! [`Allocation`]: memory of whole blocks from the system.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use shoal_base::BLOCK_BYTES;

/// Memory of whole blocks from the system; [`crate::recycle`] hands it out again and again.
pub(crate) struct Allocation {
    start: NonNull<u8>,
    blocks: usize,
}

// SAFETY: the memory is owned like a `Box<[u8]>`'s.
unsafe impl Send for Allocation {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// `blocks` blocks of zeros. 0 blocks take no memory.
    pub(crate) fn zeroed(blocks: usize) -> Self {
        if blocks == 0 {
            return Self { start: NonNull::<Block>::dangling().cast(), blocks };
        }
        let layout = Self::layout(blocks);
        // SAFETY: the layout has a size above 0.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        assert!((start.as_ptr() as usize).is_multiple_of(BLOCK_BYTES), "direct I/O takes aligned memory");
        Self { start, blocks }
    }

    pub(crate) const fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) const fn blocks(&self) -> usize {
        self.blocks
    }

    fn layout(blocks: usize) -> Layout {
        let bytes = blocks.checked_mul(BLOCK_BYTES);
        let layout = bytes.and_then(|bytes| Layout::from_size_align(bytes, BLOCK_BYTES).ok());
        layout.unwrap_or_else(|| panic!("{blocks} blocks exceed the address space"))
    }
}

#[repr(align(4096))]
struct Block;

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.blocks > 0 {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.blocks)) }
        }
    }
}
