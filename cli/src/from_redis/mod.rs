//! Strings of a server of the Redis protocol become objects: [`link`] is a connection, [`load`] the work of
//! `shoal import --from-redis`.

pub(crate) mod link;
pub(crate) mod load;
