//! The path of a get: one object, a listing, the buckets, a stream, a snapshot and its changes.

pub(crate) mod buckets;
pub(crate) mod changes;
pub(crate) mod counted;
pub(crate) mod flushed;
pub(crate) mod get;
pub(crate) mod list;
#[cfg(test)]
mod read_cache_tests;
pub(crate) mod results;
pub(crate) mod snapshot;
pub(crate) mod streams;
pub(crate) mod uploads;
pub(crate) mod value_reader;
