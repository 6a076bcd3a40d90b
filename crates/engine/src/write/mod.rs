//! The path of a write: a batch of prepared records is inserted into memtables and queue.

pub(crate) mod append;
pub(crate) mod batch;
pub(crate) mod buckets;
pub(crate) mod change;
pub(crate) mod permit;
pub(crate) mod put;
pub(crate) mod receive_buffer;
pub(crate) mod restore;
pub(crate) mod ticket;
pub(crate) mod try_write;
pub(crate) mod txn;
pub(crate) mod upload;
pub(crate) mod value_writer;
pub(crate) mod watch;
pub(crate) mod write_batch;
