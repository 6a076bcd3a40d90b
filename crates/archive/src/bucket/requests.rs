//! One attempt of each request to a bucket, and its result in the terms of the protocol.
//!
//! Each store implements [`BucketRequests`]; retries and the decision of ambiguous results are above it, the same for all stores.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use futures_util::future::BoxFuture;

/// A version of an object, for a compare-and-swap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionTag {
    pub(crate) etag: Option<String>,
    /// The generation, of stores that have one.
    pub(crate) generation: Option<String>,
}

/// An object, or a range of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedObject {
    /// The bytes.
    pub bytes: Bytes,
    /// Bytes of the whole object.
    pub object_bytes: u64,
    /// Its version.
    pub tag: VersionTag,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketEntry {
    /// Its name below the prefix of the address.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// The result of an attempt that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestFailure {
    /// There is no such object.
    NotFound,
    /// A precondition did not hold, or the store could not decide on it (409 of S3): the object decides.
    Conflict,
    /// The request may have taken effect, or may take effect later: no answer, or an indecisive one (5xx, 408).
    Unknown(String),
    /// The store asks for a pause (503 SlowDown, 429): as unknown.
    Throttled(String),
    /// The store refuses the request whenever it is repeated: credentials, rights, no such bucket.
    Refused(String),
    /// The store does not have the request.
    Unsupported(String),
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("there is no such object"),
            Self::Conflict => f.write_str("a precondition did not hold"),
            Self::Unknown(why) => write!(f, "no decisive answer: {why}"),
            Self::Throttled(why) => write!(f, "the store asks for fewer requests: {why}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Unsupported(why) => write!(f, "the store does not have this request: {why}"),
        }
    }
}

pub(crate) type Attempt<'a, T> = BoxFuture<'a, Result<T, RequestFailure>>;

/// Attempts at requests. Names are relative to the prefix.
pub(crate) trait BucketRequests: Send + Sync {
    /// Creates an object unless it exists.
    fn create(&self, name: &str, bytes: Bytes) -> Attempt<'_, ()>;

    /// Replaces the version `tag` of an object.
    fn replace(&self, name: &str, bytes: Bytes, tag: &VersionTag) -> Attempt<'_, VersionTag>;

    /// Reads an object, or a range of it: as much of the range as the object has.
    fn get(&self, name: &str, range: Option<Range<u64>>) -> Attempt<'_, FetchedObject>;

    /// Deletes an object, which need not exist.
    fn delete(&self, name: &str) -> Attempt<'_, ()>;

    /// All objects whose names start with `prefix`, a whole folder, in any order.
    fn list<'a>(&'a self, prefix: &str, take: &'a mut (dyn FnMut(BucketEntry) + Send)) -> Attempt<'a, ()>;
}
