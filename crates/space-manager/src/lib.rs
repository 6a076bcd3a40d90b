//! The space of a store, above the allocator (`shoal-space`): blocks that may be taken, blocks that applies need, and freed blocks that may
//! not be reused yet.
//!
//! [`SpaceManager`] has the rules that make a full store usable:
//!
//! - A record is admitted with a [`Reservation`] for its apply, so that an apply never fails for lack of blocks (R3).
//! - The blocks of a value in flight are [`Extents`]. Dropped before a record names them, they are freed, but only when the device is done
//!   with them (R8).
//! - Freed blocks wait for a durable superblock, for a flushed batch that names it, and for the readers of the previous root ([`ReadEpoch`])
//!   before they are reused (R9, R16).
//!
//! Nothing here does I/O.
//!
//! Reading order: `manager.rs`; then its parts: `closed.rs` (groups that are being emptied), `holes.rs` (free blocks that
//! were returned to the file system), `scattered.rs` (the choice of blocks to empty for the file system), `withheld.rs` (the reserve), `unread.rs` (runs that an archive has not read); beside it `own_space.rs` (buckets with separate groups) and `growth_history.rs` (the pace of the file's growth).

mod closed;
mod growth_history;
mod holes;
mod manager;
mod own_space;
mod scattered;
mod unread;
mod withheld;

pub use closed::ClosedGroups;
pub use growth_history::GrowthHistory;
pub use holes::{HOLE_BLOCKS_MAX, HOLE_BLOCKS_MIN, Hole, Holes, Touched};
pub use manager::{
    DataBlocks, Extents, FreedRuns, OwnerId, RUNS_MAX, ReadEpoch, Reservation, Shortage, SpaceManager,
    TREE_BLOCKS_PER_RECORD,
};
pub use own_space::{OWN_SPACES_MAX, OwnSpace};
pub use scattered::{SHORT_BLOCKS_MAX, Scattered};
