//! Retention and collection: the record names what stays, and a sweep deletes the rest.

mod dead;
mod sweep;

pub use dead::NamedObjects;
pub use sweep::{SweepReport, dead_objects, sweep};
