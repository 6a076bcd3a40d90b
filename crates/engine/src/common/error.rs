//! The errors of the engine, sorted by what the caller can do.

use shoal_base::Lsn;
use shoal_base::id::Current;
use shoal_device::DeviceError;

/// The reason why an operation of the store failed. A write that fails with anything but [`Error::Unknown`] had no
/// effect.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A condition of the write does not hold.
    #[error("the condition does not hold: the object's current version is {}", Current(*current))]
    ConditionFailed {
        /// The object's present version; `None` if it does not exist.
        current: Option<Lsn>,
        /// The number of the write in its batch, from 0 on.
        at: usize,
    },
    /// The request itself is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The device is full.
    #[error(
        "the store is full: {needed} block(s) of 4 KiB are needed and {available} may be used; delete objects, or let the store grow (`shoal grow --size SIZE`)"
    )]
    Full {
        /// Blocks that the write needs.
        needed: u64,
        /// Blocks that the write may take.
        available: u64,
    },
    /// The store has too much to do; try again.
    #[error("the store is busy: {0}; try again")]
    Busy(&'static str),
    /// Stored bytes are damaged.
    #[error("damaged: {what} at block {block}; `shoal check` lists all damage")]
    Corrupt {
        /// The damaged structure.
        what: String,
        /// Its block number.
        block: u64,
    },
    /// The device failed to read.
    #[error("device error: {0}")]
    Io(#[from] DeviceError),
    /// The write may or may not have taken effect.
    #[error("the outcome of the write is not known: {0}; read the object to find out")]
    Unknown(String),
    /// An earlier failure of the device made the store read-only.
    #[error("the store is read-only since the device failed: {0}; restart it to recover from the device")]
    Poisoned(String),
    /// The store was opened with [`OpenOptions::read_only`](crate::OpenOptions::read_only).
    #[error("the store was opened read-only: nothing can be written to it")]
    ReadOnly,
    /// The object changed while it was read in pieces.
    #[error("the object changed while it was read (version {read} is gone); read it again")]
    Changed {
        /// The version that was being read.
        read: Lsn,
    },
    /// The store dropped a snapshot, because it was held for too long or the space that it held was needed.
    #[error("the snapshot of version {version} was dropped: {why}; take a new one")]
    SnapshotDropped {
        /// The version of the snapshot.
        version: Lsn,
        /// The reason.
        why: &'static str,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The device is not blank, so no store is laid out on it.
    #[error("{0}; nothing was changed")]
    NotBlank(String),
    /// The device does not hold a store that this program can open.
    #[error("{0}")]
    Unopenable(String),
}

/// A result of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;
