//! What can go wrong when a unit is fetched or written.

use shoal_device::DeviceError;

/// Why a unit could not be had, or a page not be written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PoolError {
    /// The device failed. Nothing of the request stays in the pool; the next fetch tries again.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device gave other bytes than were written: rot, or a lost or misdirected write.
    #[error("block {block} is damaged: checksum {found:08x} where {expected:08x} was expected")]
    Corrupt {
        /// First block of the unit.
        block: u64,
        /// The checksum that whoever refers to the unit holds.
        expected: u32,
        /// The checksum of what was read.
        found: u32,
    },
    /// Every frame was pinned or under I/O for the whole time that a request may wait; or the unit is larger than
    /// the pool.
    #[error("no free frame: all {frames} frames of the pool are in use")]
    Exhausted {
        /// Frames of the pool.
        frames: usize,
    },
    /// A unit that cannot be: no bytes, more than 64 KiB, or an offset outside of its first block.
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
        /// Frames asked for.
        frames: usize,
        /// What was wrong.
        message: String,
    },
}
