//! The store's own work: its threads, relocation, expiry, scrubs.

pub(crate) mod expire;
pub(crate) mod own_space;
pub(crate) mod raise_cap;
pub(crate) mod relocate;
pub(crate) mod scrub;
pub(crate) mod verify;
pub(crate) mod workers;
