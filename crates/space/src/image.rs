//! The free space as the device knows it: a [`FreeImage`] and its two forms in bytes.
//!
//! Rule R10: a new image is the published image plus exactly one apply's [`Delta`]; it is never written from the
//! allocator's memory, which runs ahead (blocks handed out but not logged, blocks freed but not published). The
//! engine appends each superblock's delta to a space log and now and then writes a snapshot of the image in
//! pieces; opening reads the newest snapshot ([`SnapshotReader`]) and applies the deltas after it.
//!
//! Bytes only: their place on the device, and the superblock that counts, are the engine's business. The
//! formats are in `docs/format/space.md`.

mod delta;
mod format;
mod free_image;
mod rebuild;
mod snapshot_read;
mod snapshot_write;

pub use delta::Delta;
pub(crate) use delta::{sorted, without};
pub use format::{DELTA_HEADER_BYTES, SNAPSHOT_PIECE_BYTES_MAX};
pub use free_image::FreeImage;
pub use snapshot_read::{LostGroups, SnapshotReader, published_piece};
pub use snapshot_write::{SnapshotPiece, SnapshotWriter, snapshot_pieces_max};

/// Identity of a device, as in its superblock: bytes of another store are never taken for this one's.
pub type DeviceIdentity = [u8; 16];

/// The reason why bytes are not a delta, or not the wanted piece of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The bytes differ from the written ones: the checksum, or an impossible field under a valid checksum.
    #[error("the bytes are damaged: {what}")]
    Damaged {
        /// The first error.
        what: &'static str,
    },
    /// The bytes are whole, but of another version of the format.
    #[error("format version {found} is not known")]
    Version {
        /// The version that was found.
        found: u16,
    },
    /// The bytes are whole, but of another device.
    #[error("the bytes belong to another device")]
    Foreign,
    /// The bytes are whole, but not the expected ones: an older superblock's, or another piece.
    #[error("the bytes are whole but not those that were expected: {what}")]
    Unexpected {
        /// The difference.
        what: &'static str,
    },
}

impl From<shoal_base::codec::Truncated> for ImageError {
    fn from(_: shoal_base::codec::Truncated) -> Self {
        Self::Damaged { what: "a field reaches past the end" }
    }
}
