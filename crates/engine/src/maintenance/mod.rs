//! The store's own work: its threads, and the work that they or a caller run: relocation, expiry, scrubs.

pub(crate) mod apply_timer;
pub(crate) mod expire;
pub(crate) mod own_space;
pub(crate) mod relocation;
pub(crate) mod room_of_values;
pub(crate) mod schedule;
pub(crate) mod scrub;
pub(crate) mod stored_kind;
pub(crate) mod verify;
pub(crate) mod workers;
