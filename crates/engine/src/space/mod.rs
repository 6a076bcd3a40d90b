//! Space: which blocks are free, reserved, or wait for readers; which groups are being emptied, serve one bucket, or were given back
//! to the device; how far ahead of need the file grows.

pub(crate) mod closed;
pub(crate) mod discarded;
pub(crate) mod growth;
pub(crate) mod manager;
pub(crate) mod own_space;
