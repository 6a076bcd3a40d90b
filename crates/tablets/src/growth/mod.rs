//! Growth of the data file and of the log.
//!
//! Reading order: [`grow`] (the file grows ahead of need), [`fill`] (takes the room of holes again), [`map_room`] (the room of the space
//! image in a file), [`hold_room`] (fills the holes of a copied file at an opening), [`longer_log`]. `growth/` of the engine raises the cap.
//! The checkpointer holds the state of growing (`GrowthHistory` of `shoal-space-manager`).

pub mod fill;
pub mod grow;
pub mod hold_room;
pub mod longer_log;
pub mod map_room;
