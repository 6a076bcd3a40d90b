//! The page buffer pool keeps verified pages and values in memory until more useful ones need their frames.
//!
//! A *unit* is loaded, verified, cached and evicted as a whole: a tree page (one block) or up to 64 KiB of a value (1
//! to 17 blocks, because its bytes may start inside a block). The engine's published pages and values never change in
//! place, so a resident unit is immutable: a reader needs a pin and no latch.
//!
//! Invariants:
//! 1. A frame has one owner: the free list, an exclusive [`Frames`](memory::frame::Frames), or the resident unit according to
//!    its pin word.
//! 2. Bytes are written only through `Frames`; once published, a unit's frames are only read until it is evicted.
//! 3. A unit is served only if block, identity and check all equal the requested ones (R11), and only after its
//!    checksum was verified, or after this pool's writer brought it.
//! 4. No lock is held across I/O, an await, or a call of a foreign waker.
//! 5. A page that changes in place is dirty from the end of a change until its image is on the device. A dirty page is
//!    not evicted unless a side buffer has that image. The page is pinned while it is written from its frame: it does
//!    not change meanwhile, and has one write in flight.
//!
//! Lock order: shard of the table, then a load's state, then history or scan queue; a stream's state and a bucket of
//! latches alone. A hit takes none of them.
//!
//! Reading order, the path of a fetch: [`unit`] (the unit and its identity), [`fetch`] (the ways to fetch), [`table`]
//! (the places of units, and those in flight), [`resident`] (slots, pins), [`evict`] (getting frames), [`policy`] (the
//! units to keep), [`memory`] (frames). Below them [`pool`] (the handle), [`shared`] (the state of all steps) and
//! [`requests`] (the device), [`damaged`] (pages that could not be read lately). Values and pages before their write: [`fresh`] (values that are being written),
//! [`writer`] (pages of the running apply).
//!
//! The second half serves pages that change in place, which the engine does not have: [`in_place`] (a pin is the shared
//! latch, a write needs the exclusive one; scans that read ahead), and [`write_back`] (their writes, from their frames
//! or from side buffers). The first half meets it when a dirty page has to leave.
//!
//! The pool does not flush the device, and does not recover.

mod budget;
mod counters;
mod damaged;
mod error;
mod evict;
mod fetch;
mod fresh;
mod in_place;
mod latency;
mod memory;
mod policy;
mod pool;
mod requests;
mod resident;
mod shared;
mod sync;
mod table;
mod unit;
mod write_back;
mod writer;

#[cfg(test)]
mod tests;

pub use budget::{IoBudget, Working};
pub use counters::PoolCounters;
pub use error::PoolError;
pub use fresh::{Filled, Fresh};
pub use in_place::{PageWrite, Stream};
pub use memory::frame::{FilledFrames, WriteMemory};
pub use pool::{Pool, PoolOptions};
pub use resident::pin::{Pinned, PinnedChunks};
pub use unit::{Check, Hint, Unit, UnitId};
pub use writer::{Keep, NewPage, Writer, WriterOptions};
