//! Development only: what the tests of the engine and of the frontends share.
//!
//! Reading order: [`value`] (bytes that say whose they are), [`model`] (the oracle: which states of a key the
//! acknowledgements allow), [`workload`] (seeded sequences of operations), [`linear`] (whether the answers that several
//! clients got fit one order of their operations), [`serial`] (the same for transactions of several keys), [`http2`] (frames by hand). Nothing here knows the engine: a test
//! translates between the two, so that an error in the engine's types cannot hide in the oracle.

pub mod http2;
pub mod linear;
pub mod model;
pub mod serial;
pub mod value;
pub mod workload;

pub use model::{Condition, Effect, Model, Observed, OpId, Violation};
pub use value::Value;
pub use workload::{Operation, Workload, WorkloadOptions};
