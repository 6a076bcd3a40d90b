//! The tablets of a store: the state that readers see, and the work that changes it.
//!
//! A tablet is a range of keys with an active memtable, a frozen one while an apply runs, layers, and a base tree ([`tablet`]). An
//! [apply](mod@apply) moves a frozen memtable into a new layer or into the base, as a flush does in RocksDB. A [`compaction`] merges layers into one, or
//! into the base. [`gc`] rewrites packed values and relocates extents, so that free space is contiguous. [`growth`] makes the
//! file, the log and the map of free space larger. Each of them publishes its result through the [`checkpoint`] module, which writes the superblock.
//!
//! Modules import in one direction: `counters`, `tablet`, `checkpoint`, `growth`, `compaction`, `gc`, `apply`. Methods of the
//! [`Checkpointer`](checkpoint::checkpointer::Checkpointer) are written in the module of their subject. The log calls none of this, and no module
//! here names an open store: reads, writes, maintenance and recovery are in `shoal-engine`.

pub mod apply;
pub mod checkpoint;
pub mod compaction;
pub mod counters;
pub mod gc;
pub mod growth;
pub mod tablet;
