//! The parameters and results of the store's operations.

use std::time::Duration;

use shoal_base::Lsn;
pub use shoal_base::object::*;
use shoal_buffer::Buffer;

use crate::common::damaged_range::DamagedRange;

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

/// The deadline that a write gives to its object: from then on the object does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// This long after the store took the write. Elapsed time counts, whatever happens to the wall clock meanwhile.
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
pub(crate) enum End {
    /// Of store time: the write gave a time to live.
    Store(u64),
    /// Since the Unix epoch: the write gave a moment of the wall clock.
    Wall(u64),
}

/// An object's deadline, as seen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub(crate) end: End,
    pub(crate) left_ns: u64,
    pub(crate) at_ns: u64,
}

impl Deadline {
    /// A deadline that is only passed on: its remaining time is not needed.
    pub(crate) fn given_on(end: End) -> Self {
        Self { end, left_ns: 0, at_ns: 0 }
    }

    /// Returns true if the write gave a time to live ([`Expiry::After`]), and not a moment of the wall clock.
    #[must_use]
    pub fn is_relative(&self) -> bool {
        matches!(self.end, End::Store(_))
    }

    /// Nanoseconds that were left at the moment of the read.
    #[must_use]
    pub fn left_ns(&self) -> u64 {
        self.left_ns
    }

    /// The wall clock at the deadline, unless it is set before, in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn at_ns(&self) -> u64 {
        self.at_ns
    }
}

/// An object without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Everything about the whole object but its value.
    pub info: ObjectInfo,
    /// The requested bytes, in chunks that refer to the pool's frames.
    pub value: Buffer,
}

/// The parameters of a listing.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// The bucket.
    pub bucket: String,
    /// Only keys that begin with this prefix are listed.
    pub prefix: Vec<u8>,
    /// Keys that contain this after the prefix are rolled up into one common prefix, which ends with the delimiter.
    /// Empty: no rolling up.
    pub delimiter: Vec<u8>,
    /// Only keys after this one are listed. If it is a common prefix of an earlier page, everything under it is
    /// skipped.
    pub start_after: Vec<u8>,
    /// Keys and common prefixes in all, at most; 1 to 1,000.
    pub limit: usize,
}

/// Names of buckets, in the order of their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketPage {
    /// The names.
    pub names: Vec<String>,
    /// Whether there are more after the last one.
    pub is_cut: bool,
    /// Damaged ranges of keys that the listing skipped: a bucket with objects in nothing else is missing.
    pub damaged: usize,
}

/// One page of a listing, in the order of the keys' bytes.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// The keys with their objects' information.
    pub entries: Vec<(Vec<u8>, ObjectInfo)>,
    /// Rolled-up prefixes, in order.
    pub common_prefixes: Vec<Vec<u8>>,
    /// The `start_after` of the next page, if there may be more.
    pub next: Option<Vec<u8>>,
    /// The damaged ranges that the page skips, in order: objects stored there, and not written since, are not among its
    /// keys. Keys are those of the bucket; a range that reaches beyond the bucket begins with the empty key, or has no
    /// end. Each page lists the ranges that overlap it, so several pages may list the same one.
    pub damaged: Vec<DamagedRange>,
}
