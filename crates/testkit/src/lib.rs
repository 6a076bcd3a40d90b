//! Development only: helpers for the tests of all crates. Look here before you write a new helper for a test.
//!
//! - [`bytes`]: plain bytes for values; [`value`]: values that name their owner and verify themselves.
//! - [`wait`]: waits for a condition, with a time limit; runs a body that must not hang. [`task`]: futures polled by hand, wakers that
//!   count.
//! - [`device`]: devices that count, hold back or fail requests; simulated ones for common cases. [`clock`]: one that advances when read.
//! - [`lab`]: the amount of work of a laboratory test, and trials on all cores. [`process`]: the limits of this process.
//! - [`skipped`]: the parts of a test that this machine cannot run, listed for CI.
//! - [`model`]: the oracle, which states of a key the acknowledgements allow; [`workload`]: seeded sequences of operations.
//! - [`linear`]: checks that the answers to several clients fit one order of their operations; [`serial`]: the same for transactions of
//!   several keys.
//! - [`permissions`]: the oracle of grants, with all kinds of callers.
//! - [`corpus`]: the stored inputs of the fuzz targets. [`document`]: the tables of `docs/format/`.
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
pub mod document;
pub mod http2;
pub mod lab;
pub mod linear;
pub mod model;
pub mod permissions;
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
