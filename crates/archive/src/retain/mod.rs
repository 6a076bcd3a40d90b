//! Retention and collection: the record names what stays, and a sweep deletes the rest.

mod dead;
mod plan;
mod sweep;

pub use dead::NamedObjects;
pub use plan::{make_room, retain};
pub use sweep::{SweepReport, dead_objects, sweep};
