//! Arguments and results of the verbs, the same in the engine and in its client: conditions, metadata, ranges, results.

use std::time::Duration;

use bytes::Bytes;

use crate::Lsn;
pub use crate::attributes::Attributes;

/// The bucket of requests that name none.
pub const DEFAULT_BUCKET: &str = "default";

/// Conditions on a write, as RAMCloud's reject rules: any that applies rejects it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectRules {
    /// Reject if the object exists.
    pub if_exists: bool,
    /// Reject if the object does not exist.
    pub if_missing: bool,
    /// Reject unless the object exists with exactly this version.
    pub if_version_not: Option<Lsn>,
    /// Reject if the object exists with this version or an older one.
    pub if_version_at_most: Option<Lsn>,
}

impl RejectRules {
    /// Returns true if there is no condition at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if an object at `current` (`None`: it does not exist) makes these rules reject.
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

/// The user's data of an object besides its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// MIME type; empty if unknown. At most 255 bytes.
    pub content_type: String,
    /// Attributes that the store keeps without interpreting them. All of the metadata has at most 24 KiB.
    pub attributes: Attributes,
    /// Names and values, kept in this order; together at most 2 KiB.
    pub user: Vec<(String, Bytes)>,
}

impl Metadata {
    /// The metadata of the same object with another value: without the attributes that describe the value.
    #[must_use]
    pub fn of_new_value(&self) -> Self {
        let mut metadata = self.clone();
        metadata.attributes.drop_of_value();
        metadata
    }
}

/// The options of a put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Conditions.
    pub rules: RejectRules,
    /// Content type and user metadata.
    pub metadata: Metadata,
    /// Modification time in nanoseconds since the Unix epoch; `None` takes the clock of the store's machine.
    pub modified_ns: Option<u64>,
    /// The object's deadline.
    pub expiry: Expiry,
}

/// The deadline of a written object: from then on the object does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// This long after the store accepted the write. Elapsed time counts, independent of changes of the wall clock.
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

/// The end of an object's time, in nanoseconds (INV-18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndTime {
    /// Of store time: the write set a time to live.
    Store(u64),
    /// Since the Unix epoch: the write set a moment of the wall clock.
    Wall(u64),
}

impl EndTime {
    /// The nanoseconds of either clock.
    #[must_use]
    pub fn ns(self) -> u64 {
        match self {
            Self::Store(ns) | Self::Wall(ns) => ns,
        }
    }
}

/// An object's deadline, as seen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The end of the object's time.
    pub end: EndTime,
    /// Nanoseconds that were left at that moment.
    pub left_ns: u64,
    /// The wall clock at the deadline, unless it is set before, in nanoseconds since the Unix epoch.
    pub at_ns: u64,
}

impl Deadline {
    /// A deadline for another object only: its remaining time is not needed.
    #[must_use]
    pub fn passed_on(end: EndTime) -> Self {
        Self { end, left_ns: 0, at_ns: 0 }
    }

    /// Returns true if the write set a time to live ([`Expiry::After`]), not a moment of the wall clock.
    #[must_use]
    pub fn is_relative(&self) -> bool {
        matches!(self.end, EndTime::Store(_))
    }
}

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutResult {
    /// The object's version now.
    pub version: Lsn,
}

/// The result of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteResult {
    /// The version that was deleted, if the store had to look it up to evaluate a condition; `None` for a delete without conditions, which
    /// does not check that the object existed.
    pub deleted: Option<Lsn>,
    /// The version of the delete itself.
    pub version: Lsn,
}

/// A range of the bytes of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub first: u64,
    /// Their number; `None` for all up to the end. Bytes past the end of the value are omitted.
    pub bytes: Option<u64>,
}

impl ByteRange {
    /// The whole value.
    pub const ALL: Self = Self { first: 0, bytes: None };

    /// The range's part of a value of `value_bytes` bytes: first byte and length. The length is 0 if the range starts past the end.
    #[must_use]
    pub fn within(self, value_bytes: u64) -> (u64, u64) {
        let first = self.first.min(value_bytes);
        let rest = value_bytes - first;
        (first, self.bytes.map_or(rest, |bytes| bytes.min(rest)))
    }
}
