//! The write-ahead log: one ring of batches on the device, group commit, and the clocks by which objects expire.
//!
//! A writer encodes a record ([`format`]), reserves blocks of the ring ([`RingSpace::reserve`]) and queues the record under the lock of its
//! memtable ([`Committer::submit`]). The order of the queue is the order of versions (R4). One thread at a time, the *driver*, takes the
//! whole queue, numbers its records, writes them as one batch and flushes once. Then it wakes the writers, which answer their clients.
//! Batches are written one after the other, and each has the checksum of the previous one, so recovery finds the end of the log by
//! reading it ([`read_log`]).
//!
//! The log knows neither objects nor trees. A record names a key and has an opaque body; the memtables refuse records through
//! [`Unwritten`], and values are written with the batch as [`ValueWrite`]s.
//!
//! # Which thread flushes my SET?
//!
//! `commit/who_commits.rs` decides it in one function:
//!
//! | the SET is | its flush is issued by |
//! |---|---|
//! | one of several that clients wait for | the committer's thread, once for all that is queued by then |
//! | the only one that its dispatch thread serves | that thread, if the last batch was quick; else the committer's |
//! | a `put` under `block_on` in a program that links the engine | the caller's thread |
//! | for a store without a committer's thread: a tool, or a store that closes | the caller's thread |
//!
//! `commit/driver.rs` runs the commit on the chosen thread: [`Committer::turn`] for a dispatch thread, [`Committer::drive_until`] for a
//! caller, [`Committer::thread_turn`] for the committer's.
//!
//! # Failures
//!
//! A failed write or flush of the log poisons the store (R20): no record is numbered after it, and reads continue. A batch without room in
//! the data file is refused and sealed over, and the log continues at the same place (`commit/refuse.rs`).
//!
//! # Reading order
//!
//! 1. `format.rs` and `docs/format/log.md`: the bytes of batches and records.
//! 2. `ring/mod.rs`: positions in the ring; `ring/space.rs`: its used, reserved and free blocks.
//! 3. `record.rs`: a record in memory, its number and its wakers.
//! 4. `commit/queue.rs`, then `commit/mod.rs`: from the queue to a durable batch. `commit/kept.rs`: values that stay in the pool.
//!    `commit/watch.rs`: the alarm of a shared device. `commit/archived.rs`: the log as an archive reads it.
//! 5. `commit/who_commits.rs`, `commit/driver.rs`: the thread that commits.
//! 6. `failure/`: poison, the fence of overlapping flushes, lack of room.
//! 7. `clock/`: time to live.
//! 8. `read.rs`: the log at recovery.
//! 9. `log.rs`: [`Log`], the log as the engine uses it.

mod clock;
mod commit;
mod failure;
pub mod format;
mod log;
mod read;
mod record;
mod ring;

#[cfg(test)]
mod tests;

pub use clock::{
    CLOCK_RECORD_BYTES, ClockRecord, ExpiryClock, FoundTime, Moment, Newest, Numbered, WallMark, first_record,
};
pub use commit::driver::{Waiting, run_to_end};
pub use commit::kept::Kept;
pub use commit::queue::{Item, Marker, QueuedBatch, ValueWrite};
pub use commit::{
    ArchivedStart, ClosedLog, CommitCounters, CommitStart, Committer, DeviceWatch, StoppedLog, Unwritten,
};
pub use failure::{Poison, Room};
pub use log::Log;
pub use read::{FoundBatch, FoundLog, PublishedLog, decode_records, read_log};
pub use record::{FETCHED, Record, UNNUMBERED, fetch};
pub use ring::{BatchIndex, LogPlace, Ring, RingSpace};
