//! The process and its surroundings: signals, the end of a server in time, its supervisor, the addresses it listens on.

pub(crate) mod notify;
pub(crate) mod resolve;
pub(crate) mod signals;
pub(crate) mod stopping;
