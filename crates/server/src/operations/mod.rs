//! The methods of the gRPC services, a file each. `operation_stream.rs` is the method Operations, many operations in one stream;
//! `value_stream.rs` has PutStream and GetStream.

pub(crate) mod backup;
mod batch;
pub(crate) mod buckets;
pub(crate) mod delete;
pub(crate) mod free_space;
pub(crate) mod get;
pub(crate) mod grow;
pub(crate) mod head;
pub(crate) mod key_value;
pub(crate) mod list;
pub(crate) mod multi_delete;
pub(crate) mod multi_get;
pub(crate) mod multi_put;
pub(crate) mod operation_stream;
pub(crate) mod put;
pub(crate) mod relocation;
pub(crate) mod report;
pub(crate) mod stat;
pub(crate) mod value_stream;
mod write_batch;
