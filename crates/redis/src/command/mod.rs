//! The commands: all of them use `call`; `read` and `write` have all calls of the store, `table` names the commands, and each
//! other file is one family.

pub(crate) mod call;
pub(crate) mod read;
pub(crate) mod table;
pub(crate) mod transactions;
pub(crate) mod write;

mod access;
mod bitfield;
mod bits;
mod client;
mod cluster;
mod command_info;
mod dedup;
mod expiry;
mod info;
mod keys;
mod numbers;
mod scan;
mod server;
mod session;
mod strings;
mod versions;

pub(crate) use dedup::request_id_of;
