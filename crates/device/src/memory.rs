//! Ownership of the bytes that the kernel reads and writes.
//!
//! A request owns its memory until it completed. The types here make that a matter of the type system: [`IoBuf`] is
//! aligned memory of whole blocks; the pool's frames implement the same traits.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use shoal_base::BLOCK_BYTES;

use crate::allocation::Allocation;
use crate::recycle;

/// Memory that a write request reads from.
///
/// # Safety
/// While the value lives: every segment stays valid and initialised at the same address, even if the value moves; its address and length
/// are multiples of the block size; nobody writes to it.
pub unsafe trait IoMemory: Send + 'static {
    /// Calls `each` with the address and length in bytes of every segment, in order.
    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize));
}

/// Memory that a read request may write to.
///
/// # Safety
/// As [`IoMemory`], and nobody else reads or writes the segments while the value lives.
pub unsafe trait ReadMemory: IoMemory {}

// SAFETY: there are no segments.
unsafe impl IoMemory for () {
    fn segments(&self, _each: &mut dyn FnMut(*mut u8, usize)) {}
}

/// Aligned memory of whole blocks.
pub struct IoBuf {
    /// At least `blocks` long; taken out by `drop` only.
    allocation: ManuallyDrop<Allocation>,
    blocks: usize,
}

impl IoBuf {
    /// `blocks` blocks of zeros. 0 blocks are allowed and take no memory.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        let (allocation, is_zero) = recycle::take(blocks);
        assert!(allocation.blocks() >= blocks, "recycled memory is large enough");
        let mut buf = Self { allocation: ManuallyDrop::new(allocation), blocks };
        if !is_zero {
            buf.fill(0);
        }
        buf
    }

    /// `blocks` blocks with any contents, perhaps those of an earlier user. For a read that fills them, or a writer that fills all of it or
    /// clears the rest.
    #[must_use]
    pub fn unfilled(blocks: usize) -> Self {
        let allocation = recycle::take(blocks).0;
        assert!(allocation.blocks() >= blocks, "recycled memory is large enough");
        Self { allocation: ManuallyDrop::new(allocation), blocks }
    }

    /// Whole blocks that hold `bytes`, the rest of the last one zero.
    #[must_use]
    pub fn copied_from(bytes: &[u8]) -> Self {
        let mut buf = Self::unfilled(bytes.len().div_ceil(BLOCK_BYTES));
        buf[..bytes.len()].copy_from_slice(bytes);
        buf[bytes.len()..].fill(0);
        buf
    }

    /// Size in blocks.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// Leaves the first `blocks` blocks.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn shorten(&mut self, blocks: usize) {
        assert!(blocks <= self.blocks, "a buffer cannot become longer");
        self.blocks = blocks;
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        // SAFETY: taken once, here; the value is not used afterwards.
        recycle::keep(unsafe { ManuallyDrop::take(&mut self.allocation) });
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is at least this long, initialised, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.allocation.start(), self.blocks * BLOCK_BYTES) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `deref`, and borrowed mutably with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.allocation.start(), self.blocks * BLOCK_BYTES) }
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoBuf").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

// SAFETY: the allocation does not move with the value and is block-aligned; the request owns the value.
unsafe impl IoMemory for IoBuf {
    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize)) {
        each(self.allocation.start(), self.blocks * BLOCK_BYTES);
    }
}

// SAFETY: owned, so nobody else can reach the bytes.
unsafe impl ReadMemory for IoBuf {}

// SAFETY: as `IoBuf`; shared references only read, so it may be written to the device but is no `ReadMemory`.
unsafe impl IoMemory for Arc<IoBuf> {
    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize)) {
        (**self).segments(each);
    }
}

// SAFETY: each buffer's memory is stable and owned; the vector only holds handles.
unsafe impl IoMemory for Vec<IoBuf> {
    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize)) {
        for buf in self {
            buf.segments(each);
        }
    }
}

// SAFETY: owned, so nobody else can reach the bytes.
unsafe impl ReadMemory for Vec<IoBuf> {}

/// Memory together with a guard that must live until the request completed: a forgotten request releases its extent only after the device
/// finished with it (R8).
#[derive(Debug)]
pub struct Guarded<M, G> {
    /// The memory.
    pub memory: M,
    /// Dropped with the request.
    pub guard: G,
}

// SAFETY: the segments are the memory's own.
unsafe impl<M: IoMemory, G: Send + 'static> IoMemory for Guarded<M, G> {
    fn segments(&self, each: &mut dyn FnMut(*mut u8, usize)) {
        self.memory.segments(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_padded() {
        let buf = IoBuf::copied_from(&[7; 5000]);
        assert_eq!(buf.blocks(), 2);
        assert_eq!(buf.as_ptr() as usize % BLOCK_BYTES, 0);
        assert!(buf[..5000].iter().all(|&byte| byte == 7));
        assert!(buf[5000..].iter().all(|&byte| byte == 0));
        assert!(IoBuf::new(0).is_empty());
    }

    #[test]
    fn recycled_memory_is_cleared_where_zeros_are_promised() {
        for blocks in [1, 3, 9, 37, 700, 1025] {
            IoBuf::unfilled(blocks).fill(0xAB);
            assert!(IoBuf::new(blocks).iter().all(|&byte| byte == 0), "{blocks}");
            IoBuf::unfilled(blocks).fill(0xAB);
            let copied = IoBuf::copied_from(&vec![7; blocks * BLOCK_BYTES - 100]);
            assert!(copied.iter().rev().take(100).all(|&byte| byte == 0), "{blocks}");
        }
    }
}
