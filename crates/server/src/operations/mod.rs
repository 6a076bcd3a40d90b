//! The operations on the store, a file each.

pub(crate) mod backup;
mod batch;
pub(crate) mod buckets;
pub(crate) mod delete;
pub(crate) mod exchange;
pub(crate) mod free_space;
pub(crate) mod get;
pub(crate) mod grow;
pub(crate) mod head;
pub(crate) mod key_value;
pub(crate) mod list;
pub(crate) mod multi_delete;
pub(crate) mod multi_get;
pub(crate) mod multi_put;
pub(crate) mod put;
pub(crate) mod relocation;
pub(crate) mod report;
pub(crate) mod stat;
pub(crate) mod stream;
mod write_batch;
