//! Arguments and results of the client's calls. The engine also has the types of [`shoal_base::object`] and
//! [`shoal_base::list`]; a program that only uses the client does not link the engine.

use std::time::Duration;

use bytes::Bytes;
pub use shoal_base::histogram::Durations;
pub use shoal_base::list::*;
pub use shoal_base::object::*;
pub use shoal_base::{Lsn, TabletId};

/// One of the rules of [`RejectRules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The object exists.
    IfExists,
    /// The object does not exist.
    IfMissing,
    /// It does not have the named version.
    IfVersionNot,
    /// It has the named version, or an older one.
    IfVersionAtMost,
}

/// The options of a put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Conditions.
    pub rules: RejectRules,
    /// Content type and user metadata.
    pub metadata: Metadata,
    /// Modification time in nanoseconds since the Unix epoch; `None`: the server's clock.
    pub modified_ns: Option<u64>,
    /// The expiry of the object.
    pub expiry: Expiry,
}

/// The expiry of an object; from then on it does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// This time after the store accepted it, in elapsed time, independent of the wall clock; above 0.
    After(Duration),
    /// When the server's wall clock reaches this time, in nanoseconds since the Unix epoch.
    At(u64),
}

impl Expiry {
    /// As fields of a message: a time to live, or a point in time, both in nanoseconds.
    pub(crate) fn fields(self) -> (Option<u64>, Option<u64>) {
        match self {
            Self::Never => (None, None),
            Self::After(time) => (Some(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)), None),
            Self::At(at_ns) => (None, Some(at_ns)),
        }
    }
}

/// The attributes of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Only grows, and is never used twice, not even after a delete.
    pub version: Lsn,
    /// Length of the value.
    pub bytes: u64,
    /// Modification time in nanoseconds since the Unix epoch.
    pub modified_ns: u64,
    /// Content type and user metadata.
    pub metadata: Metadata,
    /// The remaining time to live when the store answered, in nanoseconds; `None`: it does not expire.
    pub ttl_ns: Option<u64>,
    /// The wall-clock time at which the object expires, unless the clock is set before, in nanoseconds since the Unix epoch.
    pub expire_time_ns: Option<u64>,
}

/// An object, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The attributes of the whole object.
    pub info: ObjectInfo,
    /// The requested bytes.
    pub value: Bytes,
}

/// One object of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListEntry {
    /// Its key.
    pub key: Bytes,
    /// Its attributes.
    pub info: ObjectInfo,
}

/// One page of a listing.
pub type ListPage = Page<ListEntry>;

/// Figures about the store and the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The server's version, as "0.1.0".
    pub server_version: String,
    /// The reason why the store refuses writes since its device failed, if it does.
    pub read_only: Option<String>,
    /// Since the server started, in nanoseconds.
    pub uptime_ns: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Objects, if counted.
    pub objects: u64,
    /// Blocks that are in use or usable now.
    pub blocks: u64,
    /// Blocks that may be handed out now.
    pub free_blocks: u64,
    /// Everything else, by name.
    pub figures: Vec<Figure>,
    /// Requests by frontend; none of a store without a server.
    pub frontends: Vec<FrontendFigures>,
}

impl Stat {
    /// The figure with this name, or 0.
    #[must_use]
    pub fn figure(&self, name: &str) -> u64 {
        self.figures.iter().find(|figure| figure.name == name).map_or(0, |figure| figure.value)
    }

    /// The bucket used by all clients of this frontend; `None` if the frontend is off, or each request names one.
    #[must_use]
    pub fn bucket_of(&self, frontend: &str) -> Option<&str> {
        let names = self.figures.iter().map(|figure| figure.name.as_str());
        names.filter_map(|name| name.strip_prefix(frontend)).find_map(|rest| rest.strip_prefix(".bucket."))
    }
}

/// The counts of a frontend since the start of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontendFigures {
    /// `grpc` or `redis`.
    pub name: String,
    /// Requests by operation and result, without empty ones.
    pub requests: Vec<RequestFigures>,
}

/// Requests of one operation and result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFigures {
    /// As `get`.
    pub operation: String,
    /// As `ok`.
    pub result: String,
    /// Their durations.
    pub durations: Durations,
}

/// One figure about the store or the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figure {
    /// As "server.connections": the component first.
    pub name: String,
    /// As "count", "bytes", "ns".
    pub unit: String,
    /// Its value.
    pub value: u64,
}
