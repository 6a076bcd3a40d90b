//! The errors of fetching or writing a unit.

use shoal_device::DeviceError;

/// The reason why a unit could not be fetched, or a page not be written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PoolError {
    /// The device failed. The pool keeps nothing of the request; the next fetch tries again.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device returned other bytes than the written ones: decay, or a lost or misdirected write.
    #[error("block {block} is damaged: checksum {found:08x}, expected {expected:08x}")]
    Corrupt {
        /// First block of the unit.
        block: u64,
        /// The checksum of the reference to the unit.
        expected: u32,
        /// The checksum of the bytes read.
        found: u32,
    },
    /// Every frame was pinned or under I/O for the whole time that a request may wait; or the unit is larger than
    /// the pool.
    #[error("no free frame: all {frames} frames of the pool are in use")]
    Exhausted {
        /// Frames of the pool.
        frames: usize,
    },
    /// An impossible unit: no bytes, more than 64 KiB, or an offset outside of its first block.
    #[error("{bytes} bytes at offset {offset} of block {block} are no unit")]
    Invalid {
        /// First block of the unit.
        block: u64,
        /// Offset of the first byte in the first block.
        offset: u16,
        /// Bytes of the unit.
        bytes: u32,
    },
    /// The pool cannot be built: no memory, or options outside of their limits.
    #[error("no buffer pool of {frames} frames: {message}")]
    Setup {
        /// Requested frames.
        frames: usize,
        /// The reason.
        message: String,
    },
}
