//! The disk-space allocator between processes: one owner with a small file, clients over gRPC.
//!
//! - [`Owner`] keeps the state: allocated blocks, leases and sessions. Every change is in its file before it is answered.
//! - [`SpaceServer`] serves it over gRPC.
//! - [`SpaceClient`] calls it, with one call for each allocation.
//! - [`Pool`] leases whole groups in one call, allocates from them in memory, and commits the runs that are kept in batches.
//!
//! A silent client is fenced when its time to live is over: its number is refused from then on, and space that it leased and did not commit
//! is free again. That protects the owner's state. It does not protect the blocks of a device that several machines write to: a late client
//! can still write to blocks that have a new user by then, unless the device itself refuses it. Several writers on one network device
//! therefore wait for the cluster, which will fence on the device.
//!
//! Bottom-up: `coverage` (sets of blocks), `state` (the rules, without files), `record` and `journal` (the file), `owner` (both
//! together, for many callers), `server`, then `client` and `pool`. The bytes: `docs/format/space-service.md`.

mod client;
mod coverage;
mod journal;
mod owner;
mod pool;
mod record;
mod refusal;
mod server;
mod state;

/// The messages and methods of the package `shoal.space.v1`; `cargo x proto` writes them.
pub mod v1 {
    #![allow(clippy::all, missing_docs, unreachable_pub, unused_qualifications)]
    include!("generated/shoal.space.v1.rs");
}

pub use client::{ClientError, ClientOptions, SpaceClient};
pub use journal::JournalError;
pub use owner::{LATE_EVERY_MS, Owner, OwnerOptions};
pub use pool::LeasedSpace;
pub use refusal::Refusal;
pub use server::{SpaceServer, SpaceServerError};
pub use state::{
    GROUPS_OF_LEASE_MAX, ITEMS_MAX, LEASES_OF_SESSION_MAX, SESSIONS_MAX, SpaceCommand, SpaceReply, Status,
    TIME_TO_LIVE_MS,
};

/// The longest message, in bytes: an answer of 131,072 runs, and a bit.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

impl From<v1::Run> for shoal_base::Run {
    fn from(run: v1::Run) -> Self {
        Self::new(run.block, run.blocks)
    }
}

impl From<shoal_base::Run> for v1::Run {
    fn from(run: shoal_base::Run) -> Self {
        Self { block: run.block, blocks: run.blocks }
    }
}

fn runs_from(wire: Vec<v1::Run>) -> Vec<shoal_base::Run> {
    wire.into_iter().map(Into::into).collect()
}

fn runs_into(runs: &[shoal_base::Run]) -> Vec<v1::Run> {
    runs.iter().copied().map(Into::into).collect()
}
