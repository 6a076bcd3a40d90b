//! The errors of the engine, sorted by the caller's options.

use std::fmt::Display;

use shoal_base::Lsn;
use shoal_base::id::Current;
use shoal_device::DeviceError;

use crate::upload::UploadId;

/// `EDQUOT` and `EFBIG` of Linux.
const QUOTA: i32 = 122;
const FILE_SIZE: i32 = 27;

/// The reason why an operation of the store failed. A failed write had no effect, except with [`Error::Unknown`].
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
    /// The bucket has no record, or was deleted.
    #[error("there is no bucket {0:?}")]
    NoBucket(String),
    /// The bucket has objects, so it cannot be deleted.
    #[error("bucket {0:?} has objects: only an empty bucket can be deleted")]
    BucketNotEmpty(String),
    /// The upload was aborted, or never started; or it was completed more than an hour ago.
    #[error("there is no upload {0}: it was aborted or completed, or never started; start a new one")]
    NoUpload(UploadId),
    /// A part of a completion is missing, or was replaced since it was listed.
    #[error(
        "part {0} of the upload is missing or was replaced: list the parts and complete the upload again"
    )]
    NoPart(u16),
    /// The device is full.
    #[error(
        "the store is full: {needed} block(s) of 4 KiB are needed and {available} may be used{}", more_room(cannot_grow.as_deref())
    )]
    Full {
        /// Blocks that the write needs.
        needed: u64,
        /// Blocks that the write may take.
        available: u64,
        /// The reason why the data file cannot grow towards the cap, such as a full file system. `None`: it has its full size, or the
        /// operation does not need growth.
        cannot_grow: Option<String>,
    },
    /// There is no room for a write within the data file. Reads work, and writes are accepted again once there is room.
    #[error(
        "the data file has no room for the write: {0}; nothing was changed, and writes are taken again as soon as there is room"
    )]
    NoRoom(String),
    /// The store is overloaded; try again.
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
    #[error("the store is read-only since the device failed: {0}; the log of the server has the next step")]
    Poisoned(String),
    /// The store was opened with [`OpenOptions::read_only`](crate::options::OpenOptions::read_only).
    #[error("the store was opened read-only: nothing can be written to it")]
    ReadOnly,
    /// The object changed while it was read in pieces.
    #[error("the object changed while it was read (version {read} is gone); read it again")]
    Changed {
        /// The version that was being read.
        read: Lsn,
    },
    /// The store dropped a snapshot because it was held for too long or its space was needed.
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
    /// The device is not blank, so no store is formatted on it.
    #[error("{0}; nothing was changed")]
    NotBlank(String),
    /// The device does not hold a store that this program can open.
    #[error("{0}")]
    Unopenable(String),
}

impl Error {
    /// [`Error::Full`] of a write that lacks room; without a reason why the file cannot grow.
    #[must_use]
    pub const fn full(needed: u64, available: u64) -> Self {
        Self::Full { needed, available, cannot_grow: None }
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        if !error.is_no_room() {
            return Self::Io(error);
        }
        let code = if let DeviceError::Io { code, .. } = &error { *code } else { None };
        Self::NoRoom(no_room(code, &error))
    }
}

/// The cause of a lack of room in the data file, with the remedy. `code` is the system's error.
#[must_use]
pub fn no_room(code: Option<i32>, error: &dyn Display) -> String {
    let what = match code {
        Some(QUOTA) => "its quota is used up: raise it, or delete files that count",
        Some(FILE_SIZE) => {
            "a limit of file sizes is reached (`ulimit -f`, LimitFSIZE of systemd, or that of its file system): raise it and start again"
        }
        _ => "its file system is full: delete or move other files there",
    };
    format!("{what} ({error})")
}

/// The end of the message of [`Error::Full`]: the ways to get more room.
fn more_room(cannot_grow: Option<&str>) -> String {
    match cannot_grow {
        None => "; delete objects, or let the store grow (`shoal grow --size SIZE`)".into(),
        Some(why) => format!(", and the data file cannot grow: {why}; deleted objects make room, too"),
    }
}

/// A result of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;
