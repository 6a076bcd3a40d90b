//! The parameters and results of the store's operations.

use std::time::Duration;

use shoal_base::Lsn;
pub use shoal_base::list::*;
pub use shoal_base::object::*;
use shoal_buffer::Buffer;

/// The options of a put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Conditions.
    pub rules: RejectRules,
    /// Content type and user metadata.
    pub metadata: Metadata,
    /// Modification time in nanoseconds since the Unix epoch; `None` takes the store's clock.
    pub modified_ns: Option<u64>,
    /// The object's deadline.
    pub expiry: Expiry,
}

/// The deadline that a write sets for its object: from then on the object does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// This long after the store took the write. Elapsed time counts; changes of the wall clock do not matter.
    After(Duration),
    /// When the wall clock shows this time, in nanoseconds since the Unix epoch.
    At(u64),
    /// The deadline of another object, from which this one was read.
    Same(Deadline),
}

impl From<Option<Deadline>> for Expiry {
    fn from(deadline: Option<Deadline>) -> Self {
        deadline.map_or(Self::Never, Self::Same)
    }
}

/// The end of an object's time, in nanoseconds (R18, `expiry.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Of store time: the write set a time to live.
    Store(u64),
    /// Since the Unix epoch: the write set a moment of the wall clock.
    Wall(u64),
}

/// An object's deadline, as seen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    end: End,
    left_ns: u64,
    at_ns: u64,
}

impl Deadline {
    /// A deadline with this many nanoseconds left, and the wall clock at it.
    #[must_use]
    #[inline]
    pub fn new(end: End, left_ns: u64, at_ns: u64) -> Self {
        Self { end, left_ns, at_ns }
    }

    /// A deadline for another object only: its remaining time is not needed.
    #[must_use]
    pub fn given_on(end: End) -> Self {
        Self::new(end, 0, 0)
    }

    /// The end of the object's time, as records and entries store it.
    #[must_use]
    #[inline]
    pub fn end(&self) -> End {
        self.end
    }

    /// Returns true if the write set a time to live ([`Expiry::After`]), and not a moment of the wall clock.
    #[must_use]
    pub fn is_relative(&self) -> bool {
        matches!(self.end, End::Store(_))
    }

    /// Nanoseconds that were left at the moment of the read.
    #[must_use]
    pub fn left_ns(&self) -> u64 {
        self.left_ns
    }

    /// The wall clock's time at the deadline if the clock is not set before, in nanoseconds since the Unix
    /// epoch.
    #[must_use]
    pub fn at_ns(&self) -> u64 {
        self.at_ns
    }
}

/// An object without its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The version. It only grows, and is never used twice, not even after a delete.
    pub version: Lsn,
    /// Length of the value in bytes.
    pub bytes: u64,
    /// Modification time in nanoseconds since the Unix epoch.
    pub modified_ns: u64,
    /// The deadline; `None` if there is none.
    pub expiry: Option<Deadline>,
    /// Content type and user metadata.
    pub metadata: Metadata,
}

/// An object, or a part of it.
#[derive(Clone, Debug)]
pub struct Object {
    /// The information about the whole object, without its value.
    pub info: ObjectInfo,
    /// The requested bytes, in chunks that refer to the pool's frames.
    pub value: Buffer,
}

/// One page of a listing: keys with their objects' information.
pub type ListPage = Page<(Vec<u8>, ObjectInfo)>;
