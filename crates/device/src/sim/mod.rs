//! A simulated device for the tests of every layer above: it takes time, fails and forgets on demand, and records the states that a crash
//! could leave.
//!
//! Reading order: [`Image`] (contents), [`SimDevice`] (the device), [`Fault`] (its failures), [`History`] (its events), then the crash
//! states: the versions of a block that a crash may leave, and the combinations to try.

mod choice;
mod crash;
mod device;
mod fault;
mod history;
mod image;
mod line;
mod room;

#[cfg(test)]
mod tests;

pub use crash::{CrashPoint, StateId, StateIdError};
pub use device::{Latency, SimDevice, SimOptions};
pub use fault::{Effect, Fault, FaultOp};
pub use history::{Event, History, RecordedWrite, WriteKind};
pub use image::{Block, Image};
