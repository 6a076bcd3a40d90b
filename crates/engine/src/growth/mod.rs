//! Growth of the data file, of the cap and of the log.
//!
//! Reading order: [`grow`] (the file grows ahead of need), [`fill`] (takes the room of holes again), [`map_room`] (the room of the space image in a file), [`raise_cap`] (of an open
//! store), [`at_opening`] (the same at an opening), [`hold_room`] (fills the holes of a copied file at an opening), [`longer_log`]. The
//! checkpointer holds the state of growing (`GrowthHistory` of `shoal-space-manager`).

pub(crate) mod at_opening;
pub(crate) mod fill;
pub(crate) mod grow;
pub(crate) mod hold_room;
pub(crate) mod longer_log;
pub(crate) mod map_room;
pub(crate) mod raise_cap;
