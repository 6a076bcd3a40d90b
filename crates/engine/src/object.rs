//! What the store's operations take and give.

use std::time::Duration;

use shoal_base::Lsn;
use shoal_buffer::Buffer;

use crate::damage::DamagedRange;
use crate::entry::End;

/// Conditions on a write, as RAMCloud's reject rules: any that applies rejects it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectRules {
    /// Reject if the object exists.
    pub if_exists: bool,
    /// Reject if the object does not exist.
    pub if_missing: bool,
    /// Reject unless the object exists with just this version.
    pub if_version_not: Option<Lsn>,
    /// Reject if the object exists with this version or an older one.
    pub if_version_at_most: Option<Lsn>,
}

impl RejectRules {
    /// Whether there is no condition at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether an object at `current` (none: it does not exist) makes these rules reject.
    #[must_use]
    pub fn reject(&self, current: Option<Lsn>) -> bool {
        match current {
            None => self.if_missing || self.if_version_not.is_some(),
            Some(version) => {
                self.if_exists
                    || self.if_version_not.is_some_and(|wanted| wanted != version)
                    || self.if_version_at_most.is_some_and(|at_most| version <= at_most)
            }
        }
    }
}

/// What a user says about an object besides its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// MIME type; empty where unknown. At most 255 bytes.
    pub content_type: String,
    /// Names and values, kept in this order; together at most 2 KiB.
    pub user: Vec<(String, Vec<u8>)>,
}

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

/// What a put did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutResult {
    /// The object's version now.
    pub version: Lsn,
}

/// What a delete did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteResult {
    /// The version that was deleted, where the store had to look it up to evaluate a condition; for a delete without
    /// conditions whether the object existed is not looked up, and this is none.
    pub deleted: Option<Lsn>,
    /// The version of the delete itself.
    pub version: Lsn,
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

/// Which bytes of a value are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub first: u64,
    /// How many; none for all up to the end. What lies behind the end of the value is left out.
    pub bytes: Option<u64>,
}

impl ByteRange {
    /// The whole value.
    pub const ALL: Self = Self { first: 0, bytes: None };

    /// The part of a value of `value_bytes` bytes that is meant: first byte and length. The length is 0 where the
    /// range begins behind the end.
    #[must_use]
    pub fn within(self, value_bytes: u64) -> (u64, u64) {
        let first = self.first.min(value_bytes);
        let rest = value_bytes - first;
        (first, self.bytes.map_or(rest, |bytes| bytes.min(rest)))
    }
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
