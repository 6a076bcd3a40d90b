//! The free blocks of the device: in memory, for allocation, and as an image, for recovery.
//!
//! - [`Space`] hands out runs of free blocks: exact best fit, lowest address first, neighbours merged at once.
//!   Nothing is journalled for it: the log record that names a run is the allocation.
//! - [`Lease`] is whole groups in one hand; [`Space::allocate_own`] serves an owner from its private groups;
//!   [`Space::close_emptiest`] is for relocations.
//! - [`image`] is the device's view of it: [`FreeImage`], the changes of one superblock ([`Delta`]) and
//!   snapshots in pieces. It is built from published changes only, never from the allocator's memory (R10).
//!
//! Nothing here does I/O, and no lock is held during I/O. The engine decides when a freed run may be handed out
//! again (R8, R9): it calls [`Space::free`] then.
//!
//! Bottom-up: `span` and `geometry` (groups), `bitmap` and `group` (the free runs of one group), `bits` and `classes` (sets of groups),
//! `index` (which group has a run of a size), `free_runs` (the allocator without its lock; `cross`, `batch`, `merge` and `owners`
//! add to it), `space` (with its lock), `grow` (more space), `lease`, `own` and `relocation` (on top).

mod audit;
mod batch;
mod bitmap;
mod bits;
mod classes;
mod cross;
mod error;
mod free_runs;
mod geometry;
mod group;
mod grow;
pub mod image;
mod index;
mod lease;
mod merge;
mod own;
mod owners;
mod prefetch;
mod relocation;
mod space;
mod span;

pub use error::SpaceError;
pub use free_runs::{HISTOGRAM_BINS, Runs};
pub use geometry::{GROUP_BLOCKS_MAX, GROUP_BLOCKS_MIN, SPACE_BLOCKS_MAX, group_blocks_for};
pub use image::{Delta, FreeImage};
pub use lease::Lease;
pub use relocation::Victim;
pub use space::{GroupState, Space};
