//! Strings of a server of the Redis protocol become objects: `link` is a connection, [`load`] the import.

mod link;
pub mod load;
