//! The state of an archiver, as a plain structure for commands, metrics and alerts.

use std::time::Duration;

use shoal_base::Lsn;

use crate::format::{ArchiveRecord, OwnerName};

/// The server that owns an archive in place of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveOwner {
    /// Its name and its addresses; empty if the record could not be read.
    pub name: OwnerName,
    /// The epoch of its claim.
    pub epoch: u64,
}

/// The state of an archiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiverState {
    /// Looks for the record, claims and seals. It is repeated until it succeeds.
    Connecting {
        /// The last failure; empty before the first one.
        why: String,
    },
    /// The log is shipped.
    Shipping,
    /// A segment has no outcome yet: the same bytes are sent again.
    Waiting {
        /// The last failure.
        why: String,
        /// The time since the first one.
        since: Duration,
    },
    /// The log is shipped, and no moment can be restored before the next base is named.
    NeedsBase {
        /// The reason.
        why: String,
    },
    /// Another server owns the archive, or a slot of this one has other bytes. Archiving stopped; the store is served.
    Fenced {
        /// The owner.
        owner: ArchiveOwner,
        /// The observation.
        why: String,
    },
    /// The archive is that of another store. Archiving stopped before it wrote anything; the store is served.
    Refused {
        /// The reason, and the remedy.
        why: String,
    },
    /// [`Archiver::stop`](super::Archiver::stop) was called, or the store is closed.
    Stopped,
}

/// Archived segments by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Openings.
    pub opening: u64,
    /// Segments of data.
    pub data: u64,
    /// Closes.
    pub close: u64,
}

/// A snapshot of an archiver.
#[derive(Clone, Debug)]
pub struct ArchiverStatus {
    /// The state.
    pub state: ArchiverState,
    /// Every record up to this one is in the archive, or in the base that is needed.
    pub archived: Lsn,
    /// The wall clock of the last archived batch, nanoseconds since the Unix epoch; 0 before the first one.
    pub archived_ns: u64,
    /// The newest flushed record of the store.
    pub durable: Lsn,
    /// The age of the oldest record that is flushed and not archived; zero if there is none.
    pub lag: Duration,
    /// Bytes that were read from the store and are not archived: segments in memory, and the spool.
    pub lag_bytes: u64,
    /// Bytes of the spool's file.
    pub spool_bytes: u64,
    /// Gaps since the start of the process.
    pub gaps: u64,
    /// Reason for a gap that no log has been opened after: writes are in neither the archive nor the spool until the bucket is reached.
    pub gap: Option<String>,
    /// Archived segments since the start of the process.
    pub segments: SegmentCounts,
    /// Their bytes.
    pub segment_bytes: u64,
    /// The epoch of the newest claim; 0 before the first one.
    pub epoch: u64,
    /// The log; 0 before the first claim.
    pub log: u64,
    /// The record as it was read last.
    pub record: Option<ArchiveRecord>,
}

/// A base is needed: the archive has none, or records are in no log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseNeed {
    /// The reason.
    pub why: String,
    /// The base has this version or a higher one.
    pub since: Lsn,
    /// The log that continues after that version.
    pub log: u64,
    /// The first slot of it with records above that version.
    pub seq: u64,
}

/// A place in the archive from which a restore replays.
///
/// All slots of `log` below `seq` are archived, and have records up to `archived` only. A value whose pieces start below `seq` is of a
/// record that was flushed before this position was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchivePosition {
    /// The log.
    pub log: u64,
    /// The first slot that is not archived.
    pub seq: u64,
    /// The last archived record.
    pub archived: Lsn,
}
