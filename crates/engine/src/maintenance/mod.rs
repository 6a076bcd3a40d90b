//! The store's own work: its threads, and what they and a caller ask of it: relocation, expiry, scrubs.

pub(crate) mod expire;
pub(crate) mod own_space;
pub(crate) mod relocation;
pub(crate) mod room_of_values;
pub(crate) mod scrub;
pub(crate) mod verify;
pub(crate) mod workers;
