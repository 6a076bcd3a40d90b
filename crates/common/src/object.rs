//! The parameters and results of the store's operations.

use shoal_base::Lsn;
pub use shoal_base::list::*;
pub use shoal_base::object::*;
use shoal_buffer::Buffer;

/// An object without its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The version. It only increases and is never reused, not even after a delete.
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
    /// The properties of the whole object, without its value.
    pub info: ObjectInfo,
    /// The requested bytes, in chunks that refer to the pool's frames.
    pub value: Buffer,
}

/// One page of a listing: keys with their objects' information.
pub type ListPage = Page<(Vec<u8>, ObjectInfo)>;
