//! The page buffer pool: what was read from the device and verified, kept in memory until something better needs it.
//!
//! A *unit* is loaded, verified, cached and evicted as a whole: a tree page (one block) or up to 64 KiB of a value
//! (1 to 17 blocks, because its bytes may begin inside a block). The engine's published pages and values never change
//! in place, so a resident unit is immutable: a reader needs a pin and no latch.
//!
//! Beside these there are pages that change in place ([`mutable`]), for a user that is not the engine: there a pin is the
//! shared latch, and a page is written to under the exclusive one.
//!
//! Invariants:
//! 1. A frame has one owner: the free list, an exclusive [`frame::Frames`], or the resident unit whose pin word says so.
//! 2. Bytes are written only through `Frames`; once published, a unit's frames are only read until it is evicted.
//! 3. A unit is served only where block, identity and check all equal what was asked for (R11), and only after its
//!    checksum was verified, or this pool's writer brought it.
//! 4. No lock is held across I/O, an await, or a call of somebody else's waker.
//!
//! 5. A page that changes in place is dirty from the end of a change until its image is on the device, and does not leave
//!    while it is, unless a side buffer has that image. It is pinned while it is written from its frame: no change meanwhile, and
//!    one write of it at a time.
//!
//! Lock order: shard of the table, then a load's state, then history or scan queue; a stream's state and a bucket of
//! latches alone. A hit takes none of them.
//!
//! Reading order: [`unit`] (what is asked for), [`frame`] and [`free`] (memory), [`word`] and [`pin`] (what protects it),
//! [`table`] (where it is), [`policy`] (what to keep), [`evict`] and [`starve`] (getting frames),
//! [`load`] (reads), [`fetch`] (the ways to ask), [`fresh`] (values that are being written), [`write`] (pages of the running apply), [`mutable`], [`latch`] and
//! [`behind`] and [`aside`] (pages that change in place, and how they are written), [`ahead`] and [`pace`] (scans), [`pool`] (the whole).
//!
//! What it does not do: flushes of the device, recovery.

mod ahead;
mod aside;
mod behind;
mod counters;
mod driven;
mod error;
mod evict;
mod fetch;
mod frame;
mod free;
mod fresh;
mod latch;
mod latency;
mod load;
mod mutable;
mod pace;
mod pin;
mod policy;
mod pool;
mod starve;
mod sync;
mod table;
mod unit;
mod word;
mod write;

#[cfg(test)]
mod tests;

pub use ahead::Stream;
pub use counters::PoolCounters;
pub use error::PoolError;
pub use frame::{FilledFrames, WriteMemory};
pub use fresh::{Filled, Fresh};
pub use pin::{Chunks, PageWrite, Pinned};
pub use pool::{Pool, PoolOptions};
pub use unit::{Check, Hint, Unit, UnitId};
pub use write::{Keep, NewPage, Writer, WriterOptions};
