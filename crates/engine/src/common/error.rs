//! The errors of the engine, sorted by what the caller can do.

use shoal_base::Lsn;
use shoal_base::id::Current;
use shoal_device::DeviceError;

/// `EDQUOT` and `EFBIG` of Linux.
const QUOTA: i32 = 122;
const FILE_SIZE: i32 = 27;

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
    /// There is no room for a write within the data file. Reads work, and writes are taken again once there is room.
    #[error(
        "the data file has no room for the write: {0}; nothing was changed, and writes are taken again as soon as there is room"
    )]
    NoRoom(String),
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
    /// The device failed a request.
    #[error("device error: {0}")]
    Io(#[source] DeviceError),
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

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        if error.is_no_room() { Self::NoRoom(no_room(&error)) } else { Self::Io(error) }
    }
}

/// The cause of a lack of room, and what to do about it.
fn no_room(error: &DeviceError) -> String {
    let DeviceError::Io { code, .. } = error else { return error.to_string() };
    let what = match *code {
        Some(QUOTA) => "its quota is used up: raise it, or delete files that count",
        Some(FILE_SIZE) => {
            "a limit of file sizes is below its length: raise it (`ulimit -f`, LimitFSIZE of systemd) and start again"
        }
        _ => "its file system is full: delete or move other files there",
    };
    format!("{what} ({error})")
}

/// A result of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;
