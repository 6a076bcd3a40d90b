//! Things that every layer shares and no layer owns: units, ids, checksums, named limits, hash slots, the clock
//! and randomness (passed in as arguments, so that tests decide them), patterns of keys, locks and atomics, a minimal
//! executor, requests that a thread holds back for a moment, the congestion control of sockets, the priority of threads,
//! histograms of durations, and the values that the verbs of the engine and of the client share (`object`, `list`).
//!
//! Nothing here does I/O or knows another crate of the workspace.

pub mod attributes;
pub mod checksum;
pub mod clock;
pub mod codec;
pub mod congestion;
pub mod copy;
pub mod entropy;
pub mod glob;
pub mod hash;
pub mod histogram;
pub mod id;
pub mod limits;
pub mod list;
pub mod object;
pub mod plug;
pub mod priority;
pub mod run;
pub mod slot;
pub mod sync;
pub mod task;

pub use attributes::Attributes;
pub use checksum::Crc32c;
pub use clock::{AwakeClock, Clock, ManualClock, STALL, SystemClock, awake_time};
pub use congestion::set_congestion_control;
pub use entropy::{Entropy, SeededEntropy, SystemEntropy};
pub use id::{Lsn, RequestId, TabletId};
pub use run::Run;

/// Bytes of a device block, of a page of a tree and of a frame of the pool.
pub const BLOCK_BYTES: usize = 4096;

/// [`BLOCK_BYTES`] for arithmetic on device offsets.
pub const BLOCK_BYTES_U64: u64 = BLOCK_BYTES as u64;

/// Blocks that `bytes` bytes occupy, the last one perhaps partly.
#[must_use]
pub const fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES_U64)
}
