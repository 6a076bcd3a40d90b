//! What the client's calls take and give. They say the same as the engine's types; a program that only uses the client
//! does not link the engine.

use std::time::Duration;

use bytes::Bytes;

use crate::error::Result;

/// The bucket that is meant where none is named.
pub const DEFAULT_BUCKET: &str = "default";

/// Conditions on a write: any that is set and applies rejects it with [`Error::ConditionFailed`](crate::Error).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectRules {
    /// Reject if the object exists.
    pub if_exists: bool,
    /// Reject if the object does not exist.
    pub if_missing: bool,
    /// Reject unless the object exists with just this version.
    pub if_version_not: Option<u64>,
    /// Reject if the object exists with this version or an older one.
    pub if_version_at_most: Option<u64>,
}

/// One of the rules of [`RejectRules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The object exists.
    IfExists,
    /// The object does not exist.
    IfMissing,
    /// It does not have the version that was named.
    IfVersionNot,
    /// It has the version that was named, or an older one.
    IfVersionAtMost,
}

/// What a user says about an object besides its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// MIME type; empty where unknown. At most 255 bytes.
    pub content_type: String,
    /// Names and values, kept in this order; together at most 2 KiB.
    pub user: Vec<(String, Bytes)>,
}

/// How to put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Conditions.
    pub rules: RejectRules,
    /// Content type and user metadata.
    pub metadata: Metadata,
    /// Modification time in nanoseconds since the Unix epoch; the server's clock where it is none.
    pub modified_ns: Option<u64>,
    /// When the object's time is over.
    pub expiry: Expiry,
}

/// When an object's time is to be over; from then on it does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// So long after the store took it, in elapsed time, whatever becomes of the wall clock; above 0.
    After(Duration),
    /// When the server's wall clock shows this, in nanoseconds since the Unix epoch.
    At(u64),
}

impl Expiry {
    /// As the messages say it: a time to live, or a moment, both in nanoseconds.
    pub(crate) fn fields(self) -> (Option<u64>, Option<u64>) {
        match self {
            Self::Never => (None, None),
            Self::After(time) => (Some(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)), None),
            Self::At(at_ns) => (None, Some(at_ns)),
        }
    }
}

/// The one interface over both transports: gRPC ([`Client::bucket`](crate::Client::bucket)) and the Redis protocol
/// ([`RespClient`](crate::RespClient)). What only one of them has (metadata, streams, listing) is with that one.
pub trait Objects {
    /// The object's value; none where there is no such object.
    ///
    /// # Errors
    /// [`Error`](crate::Error) says which there are; so with all of these calls.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// Its version and value.
    fn get_versioned(&self, key: &[u8]) -> impl Future<Output = Result<Option<(u64, Bytes)>>> + Send;

    /// Stores a value; durable when it returns.
    fn put(&self, key: &[u8], value: Bytes, rules: RejectRules) -> impl Future<Output = Result<()>> + Send;

    /// Deletes an object; deleting what does not exist succeeds.
    fn delete(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// Several values, in batches by the server that has them. No common snapshot. In the order of `keys`.
    fn get_many(&self, keys: &[Bytes]) -> impl Future<Output = Vec<Result<Option<Bytes>>>> + Send;

    /// Several puts, in batches by server, each with an outcome of its own. In the order of `items`.
    fn put_many(&self, items: &[(Bytes, Bytes)]) -> impl Future<Output = Vec<Result<()>>> + Send;

    /// Several puts as one step: done as a whole or not at all, also over a crash. All keys must be on one server.
    fn put_together(&self, items: &[(Bytes, Bytes)]) -> impl Future<Output = Result<()>> + Send;
}

/// What a put did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutResult {
    /// The object's version now.
    pub version: u64,
}

/// What a delete did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteResult {
    /// The version that was deleted, where the store had to look it up for a condition.
    pub deleted: Option<u64>,
    /// The version of the delete itself.
    pub version: u64,
}

/// What is known about an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Only grows, and is never used twice, not even after a delete.
    pub version: u64,
    /// Length of the value.
    pub bytes: u64,
    /// Modification time in nanoseconds since the Unix epoch.
    pub modified_ns: u64,
    /// Content type and user metadata.
    pub metadata: Metadata,
    /// Nanoseconds that its time had left when the store answered; none: its time does not end.
    pub ttl_ns: Option<u64>,
    /// What the wall clock shows when its time is over, unless somebody sets it before, in nanoseconds since the Unix epoch.
    pub expire_time_ns: Option<u64>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What is known about the whole object.
    pub info: ObjectInfo,
    /// The bytes that were asked for.
    pub value: Bytes,
}

/// What to list.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// The bucket; empty: [`DEFAULT_BUCKET`].
    pub bucket: String,
    /// Only keys that begin with this.
    pub prefix: Bytes,
    /// Keys that contain this after the prefix are rolled up into one common prefix, up to and with the delimiter.
    /// Empty: no rolling up.
    pub delimiter: Bytes,
    /// Only keys behind this one. Where it is a common prefix that an earlier page gave, everything under it is skipped.
    pub start_after: Bytes,
    /// At most so many keys and common prefixes in a page, up to 1,000; 0: 1,000.
    pub page_size: u32,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// Its key.
    pub key: Bytes,
    /// What is known about it.
    pub info: ObjectInfo,
}

/// One page of a listing, in the order of the keys' bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects.
    pub entries: Vec<ListEntry>,
    /// Rolled-up prefixes, in order.
    pub common_prefixes: Vec<Bytes>,
    /// Where there may be more: the `start_after` of the next page. A page may be short and yet have this.
    pub next: Option<Bytes>,
    /// Damaged ranges that the page goes past, in order: objects that were stored there and not written since are not among the
    /// entries. Each page names those that overlap it, so several pages may name the same.
    pub damaged: Vec<DamagedRange>,
}

/// A range of keys of one tablet of which nobody knows what they hold. A read or a condition on a key in it fails; a put or a delete
/// without a condition works, and settles the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// The tablet; keys of others in the same range are not concerned.
    pub tablet: u32,
    /// The first key of the range; empty where it begins in front of the bucket's first key.
    pub from: Bytes,
    /// The first key behind it; none where it reaches behind the bucket's last key.
    pub to: Option<Bytes>,
    /// Where the damaged page lies, as a block number; 0 where that is not known.
    pub block: u64,
    /// Why it cannot be read.
    pub why: String,
}

/// Figures about the store and the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The server's version, as "0.1.0".
    pub server_version: String,
    /// Why the store refuses writes, where it does since its device failed.
    pub read_only: Option<String>,
    /// Since the server started, in nanoseconds.
    pub uptime_ns: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Objects, where counted.
    pub objects: u64,
    /// Blocks that are in use or usable now.
    pub blocks: u64,
    /// Blocks that may be handed out now.
    pub free_blocks: u64,
    /// Everything else, by name.
    pub figures: Vec<Figure>,
}

/// One figure about the store or the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figure {
    /// As "server.connections": the part that it belongs to first.
    pub name: String,
    /// As "count", "bytes", "ns".
    pub unit: String,
    /// Its value.
    pub value: u64,
}
