//! What the store's operations take and give.

use std::time::Duration;

use shoal_base::Lsn;
pub use shoal_base::object::*;
use shoal_buffer::Buffer;

use crate::common::damaged_range::DamagedRange;

/// How to put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Conditions.
    pub rules: RejectRules,
    /// Content type and user metadata.
    pub metadata: Metadata,
    /// Modification time in nanoseconds since the Unix epoch; the store's clock where it is none.
    pub modified_ns: Option<u64>,
    /// When the object's time is over.
    pub expiry: Expiry,
}

/// When a write wants its object's time to be over; from then on the object does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// So long after the store took the write. Elapsed time counts, whatever becomes of the wall clock meanwhile.
    After(Duration),
    /// When the wall clock shows this, in nanoseconds since the Unix epoch.
    At(u64),
    /// Together with the object that this was read from.
    Same(Deadline),
}

impl From<Option<Deadline>> for Expiry {
    fn from(deadline: Option<Deadline>) -> Self {
        deadline.map_or(Self::Never, Self::Same)
    }
}

/// When an object's time is over, in nanoseconds (R18, `expiry.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// Of store time: a time to live was given.
    Store(u64),
    /// Since the Unix epoch: a moment of the wall clock was given.
    Wall(u64),
}

/// When an object's time is over, as it was seen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub(crate) end: End,
    pub(crate) left_ns: u64,
    pub(crate) at_ns: u64,
}

impl Deadline {
    /// A deadline that is only given on: what is left of it is not asked.
    pub(crate) fn given_on(end: End) -> Self {
        Self { end, left_ns: 0, at_ns: 0 }
    }

    /// Whether a time to live was given ([`Expiry::After`]), and not a moment of the wall clock.
    #[must_use]
    pub fn is_relative(&self) -> bool {
        matches!(self.end, End::Store(_))
    }

    /// Nanoseconds that were left when this was looked at.
    #[must_use]
    pub fn left_ns(&self) -> u64 {
        self.left_ns
    }

    /// What the wall clock shows when the time is over, unless it is set before, in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn at_ns(&self) -> u64 {
        self.at_ns
    }
}

/// What is known about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Only grows, and is never used twice, not even after a delete.
    pub version: Lsn,
    /// Length of the value.
    pub bytes: u64,
    /// Modification time in nanoseconds since the Unix epoch.
    pub modified_ns: u64,
    /// When its time is over; none: never.
    pub expiry: Option<Deadline>,
    /// Content type and user metadata.
    pub metadata: Metadata,
}

/// An object, or a part of it.
#[derive(Clone, Debug)]
pub struct Object {
    /// What is known about the whole object.
    pub info: ObjectInfo,
    /// The bytes that were asked for, in chunks that refer to the pool's frames.
    pub value: Buffer,
}

/// What to list.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// The bucket.
    pub bucket: String,
    /// Only keys that begin with this.
    pub prefix: Vec<u8>,
    /// Keys that contain this after the prefix are rolled up into one common prefix, up to and with the delimiter.
    /// Empty: no rolling up.
    pub delimiter: Vec<u8>,
    /// Only keys behind this one. Where it is a common prefix that an earlier page gave, everything under it is skipped.
    pub start_after: Vec<u8>,
    /// At most so many keys and common prefixes together; 1 to 1,000.
    pub limit: usize,
}

/// One page of a listing, in the order of the keys' bytes.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// Keys with what is known about their objects.
    pub entries: Vec<(Vec<u8>, ObjectInfo)>,
    /// Rolled-up prefixes, in order.
    pub common_prefixes: Vec<Vec<u8>>,
    /// Where there may be more: the `start_after` of the next page.
    pub next: Option<Vec<u8>>,
    /// The damaged ranges that the page goes past, in order: what was stored there, and not written since, is not among its keys. Keys are
    /// those of the bucket; a range that reaches over the bucket's ends begins with the empty key, or has no end. Each page names those
    /// that overlap it, so that one may be named by several.
    pub damaged: Vec<DamagedRange>,
}
