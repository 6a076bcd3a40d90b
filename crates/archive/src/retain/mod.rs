//! Retention and collection: the record names the objects that stay, and a sweep deletes the others.

mod dead;
mod plan;
mod sweep;

pub use dead::NamedObjects;
pub use plan::{make_room, retain};
pub use sweep::{SweepReport, dead_objects, sweep};
