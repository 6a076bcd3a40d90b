//! Development only: what the tests of all crates share. Look here before a test gets a helper of its own.
//!
//! - [`bytes`]: plain bytes for values; [`value`]: values that say whose they are and verify themselves.
//! - [`wait`]: until something holds, with an end; a body that must not hang. [`task`]: futures polled by hand, wakers that count.
//! - [`device`]: devices that count, hold back or fail requests; simulated ones for common cases. [`clock`]: one that steps on.
//! - [`lab`]: how much a laboratory test does, and trials on all cores. [`process`]: the limits of this process.
//! - [`skipped`]: what a test leaves out on this machine, where CI shows it.
//! - [`model`]: the oracle, which states of a key the acknowledgements allow; [`workload`]: seeded sequences of operations.
//! - [`linear`]: whether the answers that several clients got fit one order of their operations; [`serial`]: the same for
//!   transactions of several keys.
//! - [`corpus`]: the stored inputs of the fuzz targets. [`places`]: lists of the files that a new command or method changes.
//! - [`http2`]: frames by hand; [`resp`]: commands of the Redis protocol. `certificates` (a feature): roots and identities for TLS.
//!
//! The kit knows no engine: a test translates between the two, so that an error in the engine's types cannot hide in the
//! oracle. `shoal-storekit` has stores for the tests of the crates above the engine.

pub mod bytes;
#[cfg(feature = "certificates")]
pub mod certificates;
pub mod clock;
pub mod corpus;
pub mod device;
pub mod http2;
pub mod lab;
pub mod linear;
pub mod model;
pub mod places;
pub mod process;
pub mod resp;
pub mod serial;
pub mod skipped;
pub mod task;
pub mod value;
pub mod wait;
pub mod workload;

pub use model::{Condition, Effect, Model, Observed, OpId, Violation};
pub use value::Value;
pub use workload::{Operation, Workload, WorkloadOptions};
