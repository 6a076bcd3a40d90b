//! Limits the size of one allocation while hostile contents are read: a larger one is memory for data that was only announced.
//!
//! The allocator of unit tests and fuzzers. A refused allocation aborts the process with a line that has its size. The allocator does not
//! count the total: the fuzzer does that.

#![allow(unsafe_code)] // An allocator is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};

/// Maximum size of one allocation.
pub(super) const ALLOCATION_BYTES_MAX: usize = 256 << 20;

struct Limited;

#[global_allocator]
static LIMITED: Limited = Limited;

// SAFETY: the system's allocator does all of it, or nothing is allocated and the result is a null pointer.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > ALLOCATION_BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller makes the promises that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > ALLOCATION_BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > ALLOCATION_BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: as above; `pointer` came from the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}
